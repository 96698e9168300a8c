//! The state of the record layer, an operation on records, and how a call is run.

use crate::engine::mapped::Mapped;
use crate::store::error::StoreResult;
use crate::store::key_rules::RESERVED;
use crate::store::memory::recall::BlockWait;
use crate::store::memory::state::{MemoryOp, MemoryState};
use crate::store::operation::error::{OpError, OpResult};
use crate::store::record::grow::Growth;
use crate::store::record::hints::ReadHints;
use crate::store::record::key::KeyRef;
use crate::store::record::key_locations::KeyLocations;
use crate::store::record::location_cache::LocationCache;
use crate::store::record::lock::Locks;
use crate::store::record::remove::Removals;
use std::ops::{Deref, DerefMut};

/// The state of the record layer, with the states of the layers below.
pub(in crate::store) struct RecordState {
    pub(in crate::store) memory: MemoryState,
    pub(in crate::store) hints: ReadHints,
    pub(in crate::store) location_cache: LocationCache,
    pub(in crate::store) key_locations: KeyLocations,
    /// Whether values have checksums.
    pub(in crate::store) checksums: bool,
    /// Whether the program promised that between two recoveries only a single handle writes each
    /// key.
    pub(in crate::store) sole_writers: bool,
    pub(in crate::store) removal: Removals,
    pub(in crate::store) growth: Growth,
    pub(in crate::store) locks: Locks,
}

impl Deref for RecordState {
    type Target = MemoryState;

    #[inline(always)]
    fn deref(&self) -> &MemoryState {
        &self.memory
    }
}

/// An operation on records.
pub(in crate::store) struct RecordOp<'a> {
    op: MemoryOp<'a>,
    pub(in crate::store) store: &'a RecordState,
}

impl RecordState {
    /// Runs the operation of a call on a key. The call passes the gate of global mode inside the
    /// operation. Calls on the store's own records pass it in any state.
    #[inline]
    pub(in crate::store) fn run_call<T>(
        &self,
        key: &KeyRef<'_>,
        mut attempt: impl FnMut(&mut RecordOp<'_>) -> OpResult<T>,
    ) -> StoreResult<T> {
        let is_own = key.key.starts_with(RESERVED);
        self.run_on_key(0, key, |op| {
            if !is_own {
                self.check_gate(op.epoch)?;
            }
            attempt(op)
        })
    }

    /// Runs an operation that may make the record of this key, as [`RecordState::run_as`] does. An
    /// operation that waits for blocks, and waits in vain, may have made the record and left it
    /// empty: the background then removes it.
    pub(in crate::store) fn run_on_key<T>(
        &self,
        attempts: u32,
        key: &KeyRef<'_>,
        mut attempt: impl FnMut(&mut RecordOp<'_>) -> OpResult<T>,
    ) -> StoreResult<T> {
        let mut has_left = false;
        let result = self.run_as(attempts, |op| {
            let result = attempt(op);
            has_left |= matches!(result, Err(OpError::Needs(..)));
            result
        });
        if has_left && result.is_err() {
            self.record_tombstone(key.key, 0);
        }
        result
    }

    /// Runs an operation until it is done. Starts over whenever the view has changed during an
    /// attempt.
    pub(in crate::store) fn run<T>(
        &self,
        attempt: impl FnMut(&mut RecordOp<'_>) -> OpResult<T>,
    ) -> StoreResult<T> {
        self.run_as(0, attempt)
    }

    /// Runs an operation for a transaction after `attempts` failed attempts of the transaction; see
    /// `tx`.
    pub(in crate::store) fn run_as<T>(
        &self,
        attempts: u32,
        mut attempt: impl FnMut(&mut RecordOp<'_>) -> OpResult<T>,
    ) -> StoreResult<T> {
        let mut wait = BlockWait::new(self);
        self.retry(attempts, || {
            let (result, lacks_tombstone) = match RecordOp::begin(self) {
                Ok(mut op) => {
                    op.may_leave.set(wait.may_leave(self));
                    let result = wait.check(self).map_err(OpError::Fail);
                    (result.and_then(|()| attempt(&mut op)), op.lacks_tombstone.get())
                }
                Err(error) => (Err(error), false),
            };
            match result {
                // The operation has ended, so that a stopped replica takes no participant from
                // other calls.
                Err(OpError::Needs(replica, class)) => {
                    (Err(self.await_blocks(&mut wait, replica, class)), false)
                }
                result => (result, lacks_tombstone),
            }
        })
    }

    /// Runs an operation like [`RecordState::run`]; `None` if its partition is lost or is being
    /// salvaged.
    pub(in crate::store) fn run_or_lost<T>(
        &self,
        mut attempt: impl FnMut(&mut RecordOp<'_>) -> OpResult<T>,
    ) -> StoreResult<Option<T>> {
        self.run(|op| match attempt(op) {
            Err(OpError::Lost(_)) => Ok(None),
            other => other.map(Some),
        })
    }
}

impl<'a> RecordOp<'a> {
    /// As [`crate::store::operation::op::Op::begin_again`].
    #[inline(always)]
    pub(in crate::store) fn begin_again<D: Mapped<'a>>(
        store: &'a RecordState,
        direct: D,
    ) -> Option<RecordOp<'a>> {
        Some(RecordOp { op: MemoryOp::begin_again(&store.memory, direct)?, store })
    }

    /// As [`crate::store::operation::op::Op::begin`].
    #[inline]
    pub(in crate::store) fn begin(store: &'a RecordState) -> OpResult<RecordOp<'a>> {
        Ok(RecordOp { op: MemoryOp::begin(&store.memory)?, store })
    }

    /// As [`crate::store::operation::op::Op::begin_as`].
    pub(in crate::store) fn begin_as(store: &'a RecordState, index: usize) -> Option<RecordOp<'a>> {
        Some(RecordOp { op: MemoryOp::begin_as(&store.memory, index)?, store })
    }
}

impl<'a> Deref for RecordOp<'a> {
    type Target = MemoryOp<'a>;

    #[inline(always)]
    fn deref(&self) -> &MemoryOp<'a> {
        &self.op
    }
}

impl<'a> DerefMut for RecordOp<'a> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut MemoryOp<'a> {
        &mut self.op
    }
}
