//! The state of the memory layer, and an operation that takes and retires blocks.

use crate::engine::mapped::Mapped;
use crate::store::memory::allocator::Allocator;
use crate::store::memory::magazine::Magazine;
use crate::store::memory::pins::Pins;
use crate::store::operation::error::OpResult;
use crate::store::operation::op::Op;
use crate::store::operation::state::OperationState;
use crate::store::segment::layout::PARTICIPANTS;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

/// The state of the memory layer. It contains the state of the operation layer.
pub(in crate::store) struct MemoryState {
    pub(in crate::store) operation: OperationState,
    pub(in crate::store) allocator: Allocator,
    pub(in crate::store) pins: Pins,
    /// The length of the longest slab, unless a single block is longer.
    pub(in crate::store) slab_len_max: u64,
    magazines: Vec<ParticipantMagazine>,
}

/// The magazine of a participant, on cache lines of its own: the magazines of two threads do not
/// share a line.
#[derive(Default)]
#[repr(align(128))]
struct ParticipantMagazine(OnceLock<Box<Magazine>>);

impl MemoryState {
    pub(in crate::store) fn new(operation: OperationState, slab_len_max: u64) -> MemoryState {
        MemoryState {
            operation,
            allocator: Allocator::default(),
            pins: Pins::default(),
            slab_len_max,
            magazines: (0..PARTICIPANTS).map(|_| ParticipantMagazine::default()).collect(),
        }
    }

    /// All magazines. Valid while no operation uses them.
    #[cfg(all(test, feature = "sim"))]
    pub(in crate::store::memory) fn magazines(&self) -> impl Iterator<Item = &Magazine> {
        self.magazines.iter().filter_map(|magazine| magazine.0.get()).map(Box::as_ref)
    }
}

impl Deref for MemoryState {
    type Target = OperationState;

    #[inline(always)]
    fn deref(&self) -> &OperationState {
        &self.operation
    }
}

/// An operation that takes and retires blocks.
pub(in crate::store) struct MemoryOp<'a> {
    op: Op<'a>,
    pub(in crate::store) store: &'a MemoryState,
    /// Whether the operation may be left to wait for blocks. That is so until it has published a
    /// version, if its caller starts over after [`OpError::Needs`].
    ///
    /// [`OpError::Needs`]: crate::store::operation::error::OpError::Needs
    pub(in crate::store) may_leave: Cell<bool>,
}

impl<'a> MemoryOp<'a> {
    /// As [`Op::begin_again`].
    #[inline(always)]
    pub(in crate::store) fn begin_again<D: Mapped<'a>>(
        store: &'a MemoryState,
        direct: D,
    ) -> Option<MemoryOp<'a>> {
        let op = Op::begin_again(&store.operation, direct)?;
        // The fast path takes any error for a reason to take the slow path.
        Some(MemoryOp { op, store, may_leave: Cell::new(true) })
    }

    /// As [`Op::begin`].
    #[inline]
    pub(in crate::store) fn begin(store: &'a MemoryState) -> OpResult<MemoryOp<'a>> {
        Ok(MemoryOp { op: Op::begin(&store.operation)?, store, may_leave: Cell::new(false) })
    }

    /// As [`Op::begin_as`].
    pub(in crate::store) fn begin_as(store: &'a MemoryState, index: usize) -> Option<MemoryOp<'a>> {
        let op = Op::begin_as(&store.operation, index)?;
        Some(MemoryOp { op, store, may_leave: Cell::new(false) })
    }

    /// From now on the operation waits for blocks inside: other members may see its version, and
    /// the call must not start over.
    pub(in crate::store) fn stay(&self) {
        self.may_leave.set(false);
    }

    /// The magazine of this operation's participant.
    #[inline(always)]
    pub(in crate::store) fn magazine(&self) -> &'a Magazine {
        let magazine = &self.store.magazines[self.participant].0;
        match magazine.get() {
            Some(magazine) => magazine,
            None => {
                let job = &self.store.job;
                magazine.get_or_init(|| Box::new(Magazine::new(job.members(), !job.is_mapped())))
            }
        }
    }
}

impl<'a> Deref for MemoryOp<'a> {
    type Target = Op<'a>;

    #[inline(always)]
    fn deref(&self) -> &Op<'a> {
        &self.op
    }
}

impl<'a> DerefMut for MemoryOp<'a> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Op<'a> {
        &mut self.op
    }
}

impl MemoryOp<'_> {
    /// Lets retired blocks of the participant be reused, if there are enough of them.
    #[inline(always)]
    fn turn_if_due(&self) {
        let magazine = self.store.magazines[self.participant].0.get();
        if magazine.is_some_and(|magazine| magazine.is_due()) {
            self.turn();
        }
    }

    /// Ends the operation, as dropping it does. The code becomes a part of the caller, which
    /// therefore keeps the fields in registers; the code of a drop takes them from memory.
    #[inline(always)]
    pub(in crate::store) fn end(self) {
        self.turn_if_due();
        // Nothing is lost that is not dropped: the fields are numbers and borrows.
        ManuallyDrop::new(self).op.finish();
    }
}

impl Drop for MemoryOp<'_> {
    /// The operation itself ends after this.
    #[inline]
    fn drop(&mut self) {
        self.turn_if_due();
    }
}
