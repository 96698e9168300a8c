//! Waiting for a change: the waiter word of a partition, and ringing its members.

#![cfg_attr(outlast_pages, doc = include_str!("../../../../../docs/protocol/waiting.md"))]

use crate::engine::MemberId;
use crate::store::error::StoreResult;
use crate::store::operation::error::OpResult;
use crate::store::record::state::{RecordOp, RecordState};
use crate::store::segment::layout::PARTITION_WAITERS;

/// The bits of a waiter word that name the waiting members. The bits above count the announcements.
pub(in crate::store::record) const WAITER_BITS: u64 = (1 << 40) - 1;

/// The bit of a member in a waiter word. Members with equal numbers modulo 40 share a bit.
fn waiter_bit(member: MemberId) -> u64 {
    1 << (member.0 % 40)
}

impl RecordState {
    /// Announces this member as a waiter for changes in the key's partition. The caller reads the
    /// key after this call, so that it misses no change.
    pub(in crate::store) fn announce_waiter(&self, key: &[u8]) -> StoreResult<()> {
        let key = self.key_ref(key)?;
        let bit = waiter_bit(self.me());
        self.run(|op| {
            let config = op.config(key.partition)?;
            let primary = config.primary_member();
            let word = op.partition_word(primary, key.partition, PARTITION_WAITERS);
            loop {
                let waiters = op.load(primary, word)?;
                let entered = (waiters & !WAITER_BITS).wrapping_add(WAITER_BITS + 1)
                    | waiters & WAITER_BITS
                    | bit;
                if op.swap(primary, word, waiters, entered)? {
                    return Ok(());
                }
            }
        })
    }
}

impl<'a> RecordOp<'a> {
    /// Rings the bells of the members that wait for a change in the partition. An operation rings
    /// after it published a version and before it sets the stable bit. A reader that meets a
    /// committed provisional version rings as well.
    #[inline(always)]
    pub(in crate::store::record) fn ring_waiters(
        &self,
        primary: MemberId,
        partition: usize,
    ) -> OpResult<()> {
        let word = self.partition_word(primary, partition, PARTITION_WAITERS);
        match self.load(primary, word)? {
            waiters if waiters & WAITER_BITS == 0 => Ok(()),
            waiters => self.ring_each(primary, word, waiters),
        }
    }

    /// Rings the members that a waiter word names, and clears their bits.
    #[cold]
    fn ring_each(&self, primary: MemberId, word: u64, waiters: u64) -> OpResult<()> {
        let members = self.store.job.members() as u32;
        for member in (0..members).map(MemberId).filter(|&member| waiters & waiter_bit(member) != 0)
        {
            match self.store.job.ring(member) {
                Ok(()) | Err(crate::engine::Error::Dead { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // After the bells: if this member stops here, no waiter is forgotten. A waiter that
        // announced itself since, for the first time or again, has changed the count in the word,
        // and the swap fails.
        self.swap(primary, word, waiters, waiters & !WAITER_BITS)?;
        Ok(())
    }
}
