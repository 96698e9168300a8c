//! Reading a record: the protocol page below, on the slow path and over a network. `fast_mapped.rs`
//! has the read where all members map the memory.

#![cfg_attr(outlast_pages, doc = include_str!("../../../../../docs/protocol/reading.md"))]

use crate::engine::mapped::MappedEngine;
use crate::engine::{COMPOUND_LEN_MAX, Done, MemberId, Operation};
use crate::store::error::{StoreError, StoreResult};
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::record::key::KeyRef;
use crate::store::record::location::CachedLocation;
use crate::store::record::state::{RecordOp, RecordState};
use crate::store::segment::head::Head;
use crate::store::segment::layout::{Block, Kind, REMOVALS, value_start};
use crate::store::steps;
use crate::store::value::{Value, Version};

/// A version that a reader found.
pub(in crate::store) struct Found {
    pub(in crate::store) replica: MemberId,
    pub(in crate::store) offset: u64,
    pub(in crate::store) block: Block,
    /// The value, if it was read together with the header.
    value: Option<Vec<u8>>,
}

impl Found {
    /// Reads the value, and checks it.
    pub(in crate::store) fn to_value(&self, op: &RecordOp<'_>, key: &[u8]) -> OpResult<Value> {
        let mut bytes = vec![0; self.block.len as usize];
        self.copy(op, key, &mut bytes)?;
        Ok(Value { bytes, version: self.block.version(), owner: self.block.owner })
    }

    /// Copies the value into `target`, and checks it.
    #[inline]
    pub(in crate::store) fn copy(
        &self,
        op: &RecordOp<'_>,
        key: &[u8],
        target: &mut [u8],
    ) -> OpResult<()> {
        match &self.value {
            None => op.get_value(key, self.replica, self.offset, &self.block, target),
            Some(value) => {
                target.copy_from_slice(value);
                op.store.check_value(key, self.replica, &self.block, target).map_err(OpError::Fail)
            }
        }
    }
}

impl RecordState {
    /// Reads a key: calls `take` inside the operation with the version that it found. `None` if the
    /// key does not exist. Over a network it uses the location cache. `take` may run several times.
    #[inline]
    pub(in crate::store) fn read<T>(
        &self,
        key: &[u8],
        mut take: impl FnMut(&RecordOp<'_>, &Found) -> OpResult<T>,
    ) -> StoreResult<Option<T>> {
        let key = self.key_ref(key)?;
        if self.job.is_mapped() {
            return self.run_call(&key, |op| op.try_read(&key, None, &mut take));
        }
        self.location_cache.call(&key, |cached| self.read_cached(&key, cached, take))
    }

    /// Copies a value into a buffer, on the mapped fast path if possible.
    #[inline]
    pub(in crate::store) fn read_into(
        &self,
        key: &KeyRef<'_>,
        mut cached: Option<&mut CachedLocation>,
        buffer: &mut [u8],
    ) -> StoreResult<Option<(usize, Version)>> {
        let done = self.read_mapped(key, cached.as_deref_mut(), Some(&mut *buffer));
        if let Some(done) = done {
            return done;
        }
        self.run_call(key, |op| {
            op.try_read(key, cached.as_deref_mut(), &mut |op, found| {
                let (needed, given) = (found.block.len, buffer.len() as u64);
                let Some(target) = buffer.get_mut(..needed as usize) else {
                    return Err(OpError::Fail(StoreError::BufferTooSmall { needed, given }));
                };
                found.copy(op, key.key, target)?;
                Ok((needed as usize, found.block.version()))
            })
        })
    }

    /// The version of a key, with a cached location, on the mapped fast path if possible.
    pub(in crate::store) fn read_version(
        &self,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
    ) -> StoreResult<Option<Version>> {
        match self.read_mapped(key, Some(cached), None) {
            Some(found) => found.map(|found| found.map(|(_, version)| version)),
            None => self.read_cached(key, cached, |_, found| Ok(found.block.version())),
        }
    }

    /// Reads a key on the mapped fast path; see [`RecordState::get_mapped`].
    #[inline(always)]
    fn read_mapped(
        &self,
        key: &KeyRef<'_>,
        cached: Option<&mut CachedLocation>,
        buffer: Option<&mut [u8]>,
    ) -> Option<StoreResult<Option<(usize, Version)>>> {
        match self.job.mapped()? {
            MappedEngine::Shm(shm) => self.get_mapped(shm, key, cached, buffer),
            #[cfg(feature = "sim")]
            MappedEngine::Sim(sim) => self.get_mapped(sim, key, cached, buffer),
        }
    }

    /// Reads a key as [`RecordState::read`] does, with a cached location.
    #[inline]
    pub(in crate::store) fn read_cached<T>(
        &self,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        mut take: impl FnMut(&RecordOp<'_>, &Found) -> OpResult<T>,
    ) -> StoreResult<Option<T>> {
        self.run_call(key, |op| op.try_read(key, Some(cached), &mut take))
    }
}

impl<'a> RecordOp<'a> {
    /// An attempt at a read, inside an operation.
    #[inline]
    fn try_read<T>(
        &mut self,
        key: &KeyRef<'_>,
        cached: Option<&mut CachedLocation>,
        take: &mut impl FnMut(&RecordOp<'_>, &Found) -> OpResult<T>,
    ) -> OpResult<Option<T>> {
        let config = self.config(key.partition)?;
        let mut result = None;
        steps::enter(steps::Step::Read);
        if let Some(mut found) = self.find_version(config, key, cached)? {
            if found.block.kind != Kind::Plain {
                (found.offset, found.block) =
                    self.visible(config, key, found.offset, &found.block)?;
                found.value = None;
            }
            if !found.block.is_deleted {
                result = Some(take(self, &found)?);
            }
        }
        if self.store.job.has_ended() {
            // The value may have been written by another thread after the end of the membership, to
            // memory that no other member shares.
            return Err(OpError::Fail(StoreError::Closed));
        }
        if self.is_current() || self.is_still_current(config, key.partition)? {
            Ok(result)
        } else {
            Err(OpError::Again)
        }
    }

    /// The reconciled version of a key at the primary, if it has one.
    #[inline]
    fn find_version(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        mut cached: Option<&mut CachedLocation>,
    ) -> OpResult<Option<Found>> {
        if let Some(cached) = cached.as_deref().filter(|_| !self.store.job.is_mapped())
            && let Some(found) = self.find_cached_remote(config, cached)?
        {
            return Ok(Some(found));
        }
        let Some(head) = self.find_head(config, key, cached.as_deref_mut())? else {
            return Ok(None);
        };
        let Some(offset) = head.offset() else { return Ok(None) };
        let replica = config.primary_member();
        let block = self.read_block(replica, offset)?;
        if let Some(cached) = cached {
            (cached.hint, cached.hint_len) = (offset, block.len);
        }
        Ok(Some(Found { replica, offset, block, value: None }))
    }

    /// The version of a key at the primary in a single round trip, if the key is as it was when the
    /// handle last read or wrote it. The order of the three requests is the order of the steps on
    /// the slow path: the removal count, the head word, and the block that it names.
    fn find_cached_remote(
        &self,
        config: &Configuration,
        cached: &CachedLocation,
    ) -> OpResult<Option<Found>> {
        let (replica, at) = (config.primary_member(), &cached.at[config.primary]);
        let (offset, len) = (cached.hint, value_start(cached.hint_len) + cached.hint_len);
        let is_known = cached.config_number == config.config_number && at.word != 0 && offset != 0;
        // A block that turns out to be of another version was sent in vain, so large values are not
        // requested.
        if !is_known || len > COMPOUND_LEN_MAX as u64 {
            return Ok(None);
        }
        let start = |operation| self.store.job.start(self.epoch, replica, operation);
        let removals = start(Operation::Load { offset: config.roots[config.primary] + REMOVALS });
        let head = start(Operation::Load { offset: at.word });
        let whole = start(Operation::Get { offset, len: len as usize });
        let removals = self.await_answer(removals)?.word();
        let head = Head(self.await_answer(head)?.word());
        let Done::Get(mut bytes) = self.await_answer(whole)? else { return Ok(None) };
        let Some(block) = bytes.first_chunk().map(Block::decode) else { return Ok(None) };
        // A version that this handle wrote itself has happened, with or without the stable bit.
        let is_own = head.stable() == at.head.stable()
            && block.identity() == cached.version.block().identity();
        let is_there = removals == at.removals
            && head.config_number() == config.config_number
            && head.offset() == Some(offset)
            && (head.is_stable() || is_own);
        if !is_there || block.len != cached.hint_len {
            return Ok(None);
        }
        self.check_block(replica, offset, &block)?;
        let value = Some(bytes.split_off(value_start(block.len) as usize));
        Ok(Some(Found { replica, offset, block, value }))
    }

    /// The reconciled content of a key's head word at the primary, for a reader; `None` if there is
    /// no record.
    #[inline]
    pub(in crate::store) fn find_head(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        cached: Option<&mut CachedLocation>,
    ) -> OpResult<Option<Head>> {
        let found = match cached {
            Some(cached) => self.find_cached_head(config, key, cached)?,
            None => self.find(config, config.primary, key)?,
        };
        let Some((word, head)) = found else { return Ok(None) };
        if head.config_number() == config.config_number && head.is_stable() {
            return Ok(Some(head));
        }
        self.reconciled(config, key, word).map(Some)
    }

    /// The offset and content of a key's head word at the primary: at the cached place, or looked
    /// up again.
    #[inline]
    fn find_cached_head(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
    ) -> OpResult<Option<(u64, Head)>> {
        let replica = config.primary;
        let primary = config.member(replica);
        let word = cached.at[replica].word;
        let is_known = cached.config_number == config.config_number && word != 0;
        let place = if is_known { word } else { self.bucket(config, replica, key)? };
        let [removals, loaded] = self
            .load_each([config.roots[replica] + REMOVALS, place].map(|offset| (primary, offset)))?;
        if is_known && cached.at[replica].removals == removals && Head(loaded) != Head::REMOVED {
            return Ok(Some((word, Head(loaded))));
        }
        let found = if is_known {
            self.find(config, replica, key)?
        } else {
            self.find_from(primary, loaded, key)?
        };
        cached.reset(config.config_number);
        cached.at[replica].removals = removals;
        cached.at[replica].word = found.map_or(0, |(word, _)| word);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::store::segment::layout::BLOCK_HOLDER;

    use crate::store::segment::layout::holder;

    /// A read with a cached location returns a block only if the head word names it and is stable,
    /// or if the block holds the version that this handle wrote, and only if the record is where it
    /// was.
    #[cfg(feature = "sim")]
    #[test]
    fn a_read_with_a_cached_location_returns_no_unfinished_version() {
        use crate::engine::sim::{self, Link, Options as SimOptions};
        use crate::store::{Expect, Options, Store};
        let options = SimOptions::new(3, 5).link(Link::Network);
        let report = sim::run(&options, |job: crate::Job| {
            let store = Store::open(&job, Options::new().replicas(2).partitions(1)).expect("open");
            let key = store.state.key_ref(b"key").expect("a key");
            if store.replicas_of(b"key").contains(&job.me()) {
                store.close().expect("close");
                return drop(job.leave());
            }
            store.put_if(b"key", b"value", Expect::Absent).expect("put");
            let mut cached = CachedLocation::NOTHING;
            store
                .state
                .read_cached(&key, &mut cached, |_, _| Ok(()))
                .expect("read")
                .expect("there");
            let op = RecordOp::begin(&store.state).expect("begun");
            let config = op.config(key.partition).expect("replicas");
            let (replica, primary) = (config.primary, config.primary_member());
            let is_found = |cached: &CachedLocation| {
                op.find_cached_remote(config, cached).expect("read").is_some()
            };
            assert!(is_found(&cached));
            let moved = |change: &dyn Fn(&mut CachedLocation)| {
                let mut moved = cached;
                change(&mut moved);
                moved
            };
            assert!(
                !is_found(&moved(&|cached| cached.at[replica].removals += 1)),
                "records were taken out"
            );
            assert!(
                !is_found(&moved(&|cached| cached.hint_len = 8)),
                "the value has another length"
            );
            // Without the stable bit: the version may be unfinished, or its writer used a handle.
            let word = cached.at[replica].word;
            let stable = Head(op.load(primary, word).expect("a head"));
            let head = Head::new(stable.config_number(), cached.hint);
            assert!(
                stable == head.stable()
                    && op.swap(primary, word, stable.0, head.0).expect("swapped")
            );
            assert!(!is_found(&cached), "it may be unfinished");
            let block = op.read_block(primary, cached.hint).expect("a block");
            let own = |counter: u64| {
                moved(&|cached| {
                    cached.at[replica].head = head;
                    cached.set_version(&Block { counter, ..block }, 0);
                })
            };
            assert!(is_found(&own(block.counter)), "it has happened");
            assert!(!is_found(&own(block.counter - 1)), "the block was used again");
            assert!(op.swap(primary, word, head.0, stable.0).expect("swapped"));
            drop(op);
            store.close().expect("close");
            let _ = job.leave();
        });
        report.expect_ok();
    }

    /// A late request retires a block that another version uses by then: that version stays as it
    /// is.
    #[cfg(feature = "sim")]
    #[test]
    fn a_late_retirement_changes_no_other_version() {
        use crate::engine::Epoch;
        use crate::engine::sim::{self, Options as SimOptions};
        use crate::store::{Options, Store};
        let report = sim::run(&SimOptions::new(1, 7), |job: crate::Job| {
            let store = Store::open(&job, Options::new().partitions(1)).expect("open");
            let op = RecordOp::begin(&store.state).expect("begun");
            let block = |holder: u64, len: u64| Block {
                counter: 1,
                writer: MemberId(0),
                participant: 0,
                operation: 1,
                len,
                is_deleted: false,
                kind: Kind::Plain,
                holder,
                owner: MemberId(0),
                checksum: 0,
            };
            let (replica, offset) = (job.me(), op.take_block(job.me(), 0).expect("a block"));
            // The block belonged to a dead member, and now belongs to a third member, with another
            // length.
            op.put(replica, offset, &block(5, 9).encode()).expect("put");
            op.retire_block(replica, offset, &block(4, 8), 0).expect("no error");
            let word = job.load(Epoch::ANY, replica, offset + BLOCK_HOLDER).expect("a word");
            assert_eq!(word, block(5, 9).length_word());
            // If the word is as it was read, this member is the holder afterwards.
            op.retire_block(replica, offset, &block(5, 9), 0).expect("no error");
            let word = job.load(Epoch::ANY, replica, offset + BLOCK_HOLDER).expect("a word");
            assert_eq!(word, block(holder(job.me()), 9).length_word());
            drop(op);
            store.close().expect("close");
            let _ = job.leave();
        });
        report.expect_ok();
    }
}
