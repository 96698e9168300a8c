//! Members that wait for a change in a partition.

use crate::engine::MemberId;
use crate::store::error::StoreResult;
use crate::store::operation::error::OpResult;
use crate::store::record::state::{RecordOp, RecordState};
use crate::store::segment::layout::PARTITION_WAITERS;

/// The part of a notice word that says who waits; the rest counts how often someone has entered
/// itself.
pub(in crate::store) const WAITER_BITS: u64 = (1 << 40) - 1;

/// The bit of a member in a notice word; members may share one.
fn waiter_bit(member: MemberId) -> u64 {
    1 << (member.0 % 40)
}

impl RecordState {
    /// Enters this member among those who are rung when something in the key's partition changes.
    pub(in crate::store) fn announce_waiter(&self, key: &[u8]) -> StoreResult<()> {
        let key = self.key_ref(key)?;
        let bit = waiter_bit(self.me());
        self.run(|op| {
            let config = op.config(key.partition)?;
            let primary = config.replicas[config.primary];
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
    #[inline(always)]
    pub(in crate::store) fn ring_waiters(
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
        // After the bells, so that nobody is forgotten if this member stops here. Whoever has
        // entered itself since, for the first time or again, has changed the word.
        self.swap(primary, word, waiters, waiters & !WAITER_BITS)?;
        Ok(())
    }
}
