//! The pin table of this member: which blocks its pins keep.
//!
//! A slot of the table names the blocks of a pinned version. A grace period reads the tables of all
//! members after the operations have ended, and the allocator sets the named blocks aside.
//! docs/protocol/memory.md has the steps, and `api/pin.rs` executes *find* and *end*.

use crate::engine::{Epoch, Error, MemberId};
use crate::store::error::{StoreError, StoreResult};
use crate::store::memory::state::MemoryState;
use crate::store::operation::error::engine_error;
use crate::store::segment::layout::{PARTICIPANTS_USED, PIN_WORDS, PINS, PINS_SHIFT};
use crate::store::segment::place::pin_word;
use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// The slots of this member's table that are in use, a bit for each.
#[derive(Default)]
pub(in crate::store) struct Pins(Mutex<u64>);

impl MemoryState {
    /// Takes a free slot of the table.
    pub(in crate::store) fn claim_pin(&self) -> StoreResult<usize> {
        let mut used = lock(&self.pins.0);
        let slot = used.trailing_ones() as usize;
        if slot >= PINS {
            let reason = format!("this member has {PINS} pins already; drop some of them");
            return Err(StoreError::Invalid { reason });
        }
        *used |= 1 << slot;
        Ok(slot)
    }

    /// `pin.drop`: empties a slot and gives it back.
    pub(in crate::store) fn release_pin(&self, slot: usize) {
        // The memory of this member fails only when this member has ended.
        let _ = self.write_pin(slot, &[]);
        *lock(&self.pins.0) &= !(1 << slot);
        if self.is_closed.load(Ordering::Acquire) {
            // The end of a closed store waits for the pins of this member.
            let _ = self.job.ring(self.me());
        }
    }

    /// Whether this member has pins.
    pub(in crate::store) fn has_pins(&self) -> bool {
        *lock(&self.pins.0) != 0
    }

    /// `pin.record`: writes the locations of a version into a slot.
    pub(in crate::store) fn write_pin(
        &self,
        slot: usize,
        places: &[(MemberId, u64)],
    ) -> Result<(), Error> {
        let mut bytes = [0; PIN_WORDS * 8];
        for (chunk, &(replica, offset)) in bytes.chunks_exact_mut(8).zip(places) {
            chunk.copy_from_slice(&pin_word(replica, offset).to_ne_bytes());
        }
        self.job.put(Epoch::ANY, self.me(), self.root(self.me()) + self.layout.pin(slot), &bytes)
    }

    /// `pin.announce`: makes the slot known to the other members, before the operation begins.
    pub(in crate::store) fn announce_pins(&self, slot: usize) -> StoreResult<()> {
        let (job, me, word) = (&self.job, self.me(), self.root(self.me()) + PARTICIPANTS_USED);
        loop {
            let used = job.load(Epoch::ANY, me, word).map_err(engine_error)?;
            if used >> PINS_SHIFT > slot as u64 {
                return Ok(());
            }
            let wanted = used & ((1 << PINS_SHIFT) - 1) | (slot as u64 + 1) << PINS_SHIFT;
            let found = job.compare_and_swap(Epoch::ANY, me, word, used, wanted);
            found.map_err(engine_error)?;
        }
    }
}
