//! Reconciling a record: the first access under a new configuration, or to an unfinished version.

#![cfg_attr(
    outlast_pages,
    doc = include_str!("../../../../../docs/protocol/reconciling.md")
)]

use crate::store::mutant::mutant;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::operation::open_swaps::SwapBlocks;
use crate::store::operation::retry::RetryBudget;
use crate::store::placement::replica::{ReplicaIndex, ReplicaSet};
use crate::store::record::block_io::block_class;
use crate::store::record::key::KeyRef;
use crate::store::record::state::RecordOp;
use crate::store::segment::head::{Head, Phase};
use crate::store::segment::layout::{Block, PARTICIPANT_OUTCOME, value_start};
use crate::store::segment::place::Place;
use crate::store::steps;

/// After how many changes of the primary's head word under a configuration number a version was
/// certainly published under that number. Reconciling changes the block that the word names at most
/// once, by *install*.
const CHANGES: u32 = 2;

impl<'a> RecordOp<'a> {
    /// The content of the primary's head word, reconciled under this configuration. An unfinished
    /// version is finished first.
    pub(in crate::store) fn reconciled(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        word: u64,
    ) -> OpResult<Head> {
        self.reconcile_record(config, key, word, u32::MAX)
    }

    /// The content of the primary's head word, when the record was reconciled under this
    /// configuration. The word may lack the stable bit: then other operations have published
    /// versions since this function was called, faster than they could be made stable.
    pub(in crate::store) fn reconciled_or_written(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        word: u64,
    ) -> OpResult<Head> {
        self.reconcile_record(config, key, word, CHANGES)
    }

    /// Reconciles the record until the primary's head word is stable, or has changed so often.
    fn reconcile_record(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        word: u64,
        changes: u32,
    ) -> OpResult<Head> {
        let mut made = None;
        let result = self.reconcile_until_stable(config, key, word, changes, &mut made);
        if let Some(tombstone) = made
            && !matches!(result, Ok(_) | Err(OpError::Needs(..)))
        {
            // The record of a deleted key may have been removed meanwhile. The records that *seal*
            // has made are empty, or *install* has brought the tombstone there.
            self.store.record_tombstone(key.key, 0);
            if tombstone > 0 {
                self.store.record_tombstone(key.key, tombstone);
            }
        }
        result
    }

    /// As [`RecordOp::reconcile_record`]. Sets `made` if it has made a record at a replica: to the
    /// version counter of the tombstone that it may have brought there, or to 0.
    fn reconcile_until_stable(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        word: u64,
        changes: u32,
        made: &mut Option<u64>,
    ) -> OpResult<Head> {
        let primary = config.primary_member();
        let mut budget = RetryBudget::default();
        let (mut last, mut changed): (Option<Head>, u32) = (None, 0);
        loop {
            budget.check(self.store)?;
            let head = Head(self.load(primary, word)?);
            if head.config_number() > config.config_number {
                return Err(OpError::Again);
            }
            if head.config_number() == config.config_number {
                // No block is reused while this operation is in flight, so a word that names
                // another block has changed, and never names the former block again.
                changed += u32::from(last.is_some_and(|last| last.offset() != head.offset()));
                last = Some(head);
                if head.is_stable() || changed >= changes || mutant("no-help") {
                    return Ok(head);
                }
            }
            self.reconcile(config, key, made)?;
        }
    }

    /// A single pass of *seal* to *mark_stable*. It may end early, because another operation was
    /// faster. The caller checks whether the record is reconciled afterwards.
    fn reconcile(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        made: &mut Option<u64>,
    ) -> OpResult<()> {
        self.find_new_replicas(config, key.partition)?;
        // *seal* the complete replicas with an older number; only read the filling replicas. A
        // replica without a record gets an empty record, so that there is a head word to seal.
        steps::enter(steps::Step::ReconcileSeal);
        let mut found: Vec<(ReplicaIndex, u64, Head, bool)> =
            Vec::with_capacity(config.replicas.len());
        let mut skipped = ReplicaSet::EMPTY;
        for replica in config.ready_replicas() {
            let member = config.member(replica);
            let is_complete = self.state(member, key.partition)?.phase() == Phase::Complete;
            let word = match self.find_or_make(config, replica, key) {
                Ok((word, is_new)) => {
                    *made = made.or(is_new.then_some(0));
                    word
                }
                Err(error) if self.may_skip(config, replica, key.partition, &error)? => {
                    skipped.insert(replica);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let head = loop {
                let head = Head(self.load(member, word)?);
                if head.config_number() > config.config_number {
                    return Err(OpError::Again);
                }
                if !is_complete || head.config_number() == config.config_number {
                    break head;
                }
                let sealed = head.with_config_number(config.config_number);
                if self.swap(member, word, head.0, sealed.0)? {
                    break sealed;
                }
            };
            if replica == config.primary
                && head.is_stable()
                && head.config_number() == config.config_number
            {
                return Ok(());
            }
            found.push((replica, word, head, is_complete));
        }
        // *choose* the version with the greatest counter among the complete replicas. Complete
        // replicas with equal counters hold an identical version.
        steps::enter(steps::Step::ReconcileChoose);
        let mut greatest: Option<(u64, ReplicaIndex, Head)> = None;
        for &(replica, _, head, is_complete) in &found {
            if is_complete {
                let counter = self.counter(config.member(replica), head)?;
                if greatest.is_none_or(|(other, _, _)| counter > other) {
                    greatest = Some((counter, replica, head));
                }
            }
        }
        let (counter, source, source_head) = greatest.ok_or(OpError::Again)?;
        let version = match source_head.offset() {
            None => None,
            Some(offset) => {
                let member = config.member(source);
                let block = self.read_block(member, offset)?;
                let mut value = vec![0; block.len as usize];
                self.get(member, offset + value_start(block.len), &mut value)?;
                Some((block, value))
            }
        };
        if let (Some(made), Some((block, _))) = (made.as_mut(), &version)
            && block.is_deleted
            && block.len == 0
        {
            *made = block.counter;
        }
        // *install* the chosen version where it is missing. Only the head words that were seen
        // above are replaced: if a word has changed, the caller starts over.
        let mut primary_head = source_head;
        for &(replica, word, head, _) in &found {
            let member = config.member(replica);
            if head.config_number() == config.config_number
                && self.counter(member, head)? == counter
            {
                if replica == config.primary {
                    primary_head = head;
                }
                continue;
            }
            if head.config_number() == config.config_number && self.counter(member, head)? > counter
            {
                // A newer version was written at this filling replica meanwhile.
                return Ok(());
            }
            let new = match &version {
                None => Head::new(config.config_number, 0),
                Some((block, value)) => match self.fill_block(member, block, value) {
                    Ok(offset) => Head::new(config.config_number, offset),
                    Err(error) if self.may_skip(config, replica, key.partition, &error)? => {
                        skipped.insert(replica);
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            steps::enter(steps::Step::ReconcileInstall);
            let class = match &version {
                Some((block, _)) => Some(block_class(block, member)?),
                None => None,
            };
            let filled = new.offset().zip(class);
            let place = || filled.map(|(offset, class)| Place::new(member, class, offset));
            let blocks = || SwapBlocks::versions(head.offset(), place());
            let swapped = self.swap_blocks(member, word, head.0, new.0, blocks);
            if !matches!(swapped, Ok(true)) {
                if let Some((offset, class)) = filled {
                    self.keep_unless_timed_out(member, class, offset, &swapped);
                }
                return swapped.map(|_| ());
            }
            self.retire_head(member, head);
            if replica == config.primary {
                primary_head = new;
            }
        }
        // A replica that got an index meanwhile lacks the chosen version.
        self.find_new_replicas(config, key.partition)?;
        let found_at = found.iter().map(|&(replica, ..)| replica);
        if config.has_others_than(found_at.chain(skipped.iter()).collect()) {
            return Ok(());
        }
        for replica in skipped.iter() {
            self.skip_full_replica(config, replica, key.partition)?;
        }
        // *notify_writer*: the writer must be able to learn that its version happened before any
        // operation builds on the version.
        steps::enter(steps::Step::ReconcileNotifyWriter);
        if let Some((block, _)) = &version {
            self.notify_writer(block)?;
        }
        steps::enter(steps::Step::ReconcileMarkStable);
        let (primary, word) = found
            .iter()
            .find(|(replica, ..)| *replica == config.primary)
            .map(|&(replica, word, ..)| (config.member(replica), word))
            .ok_or(OpError::Again)?;
        // The writer may be stopped, or may fail before it rings. An operation that sees the stable
        // bit rings no waiters, so this operation rings first.
        self.ring_waiters(primary, key.partition)?;
        // *mark_stable*. If the swap fails, another operation has reconciled the record, or has
        // written it.
        self.swap(primary, word, primary_head.0, primary_head.stable().0)?;
        Ok(())
    }

    /// Tells the writer of a version that it happened, if the writer lives. The outcome word only
    /// grows, so a late helper of an earlier operation takes nothing back.
    pub(in crate::store) fn notify_writer(&self, block: &Block) -> OpResult<()> {
        let view = self.store.view(self.epoch).ok_or(OpError::Again)?;
        // A version that several members may make has no writer that waits for the outcome.
        if !view.is_living(block.writer) || block.operation == 0 {
            return Ok(());
        }
        let word = self.store.root(block.writer)
            + self.store.layout.participant(block.participant)
            + PARTICIPANT_OUTCOME;
        loop {
            let outcome = self.load(block.writer, word)?;
            if outcome >= block.operation
                || self.swap(block.writer, word, outcome, block.operation)?
            {
                return Ok(());
            }
        }
    }

    /// *count_visit*: changes the primary's head word, reconciled in this round of repair. A write
    /// that loaded the word before the round loses its swap of *publish*. A word without the stable
    /// bit has changed in this round already ([`RecordOp::reconciled_or_written`]).
    pub(in crate::store) fn count_visit(
        &self,
        config: &Configuration,
        word: u64,
        head: Head,
    ) -> OpResult<()> {
        steps::enter(steps::Step::RepairCountVisit);
        if !head.is_stable() || mutant("repair-uncounted") {
            return Ok(());
        }
        // If the swap fails, another operation has changed the word in this round, and that write
        // loses its swap all the same.
        self.swap(config.primary_member(), word, head.0, head.with_visit().0).map(drop)
    }

    /// Makes a filling replica hold the version that the primary has now, or a later version.
    /// `word` is the offset of the primary's head word. The record was reconciled in this round, and
    /// visited ([`RecordOp::count_visit`]): each operation that publishes a version from now on
    /// knows of the filling replica, so the version of this moment is enough.
    pub(in crate::store) fn copy_record(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        word: u64,
        target: ReplicaIndex,
    ) -> OpResult<()> {
        let (primary, member) = (config.primary_member(), config.member(target));
        let head = Head(self.load(primary, word)?);
        if head.config_number() != config.config_number {
            return Err(OpError::Again);
        }
        let wanted = self.counter(primary, head)?;
        let target_word = self.find_or_insert(config, target, key)?;
        loop {
            let found = Head(self.load(member, target_word)?);
            if found.config_number() > config.config_number {
                return Err(OpError::Again);
            }
            let is_older = found.config_number() < config.config_number
                || self.counter(member, found)? < wanted;
            if !is_older && !mutant("repair-over-newer") {
                return Ok(());
            }
            let (new, class) = match head.offset() {
                None => (Head::new(config.config_number, 0), None),
                Some(offset) => {
                    let block = self.read_block(primary, offset)?;
                    let mut value = vec![0; block.len as usize];
                    self.get(primary, offset + value_start(block.len), &mut value)?;
                    let filled = self.fill_block(member, &block, &value)?;
                    (Head::new(config.config_number, filled), Some(block_class(&block, member)?))
                }
            };
            let filled = new.offset().zip(class);
            let place = || filled.map(|(offset, class)| Place::new(member, class, offset));
            let blocks = || SwapBlocks::versions(found.offset(), place());
            let swapped = self.swap_blocks(member, target_word, found.0, new.0, blocks);
            match (&swapped, filled) {
                (Ok(true), _) => self.retire_head(member, found),
                (_, Some((offset, class))) => {
                    self.keep_unless_timed_out(member, class, offset, &swapped)
                }
                (_, None) => {}
            }
            // A lost swap says nothing about what the replica holds now. A late writer that did not
            // skip the replica may have been faster, with an older version of this configuration or
            // of an older configuration. The next pass reads the head word there again. Each lost
            // swap has made the version there greater, so there are few passes.
            if swapped? || mutant("repair-lost-swap") {
                return Ok(());
            }
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::engine::sim::{self, Link, Options as SimOptions};
    use crate::engine::{Fault, MemberId, Time};
    use crate::job::Job;
    use crate::store::record::write::{NewVersion, Predecessor};
    use crate::store::segment::layout::{Kind, OPERATION_MASK, holder};
    use crate::store::testing::nap;
    use crate::store::{Options, Store};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    const PARTITIONS: usize = 256;

    /// A plain version of the operation's member.
    fn version(op: &RecordOp<'_>, counter: u64, value: &[u8]) -> Block {
        let me = op.store.me();
        Block {
            counter,
            writer: me,
            participant: op.participant,
            operation: op.number & OPERATION_MASK,
            len: value.len() as u64,
            is_deleted: false,
            kind: Kind::Plain,
            holder: holder(me),
            owner: me,
            checksum: 0,
        }
    }

    /// Replaces the head word `old` at the primary by a word for a new version, and returns it.
    fn publish(
        op: &RecordOp<'_>,
        config: &Configuration,
        word: u64,
        old: Head,
        (counter, value): (u64, &[u8]),
    ) -> OpResult<Head> {
        let primary = config.primary_member();
        let offset = op.fill_block(primary, &version(op, counter, value), value)?;
        let new = Head::new(config.config_number, offset);
        assert!(op.swap(primary, word, old.0, new.0)?, "no other writer");
        Ok(new)
    }

    /// Runs the schedule of the test below. The late writer goes on `delay` after the repairer, or
    /// at the end. Returns how long after the repairer went on the new replica became complete.
    fn complete_after(seed: u64, delay: Option<Duration>) -> Duration {
        let (stage, go_at) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(Time::NEVER)));
        let taken = Rc::new(Cell::new(Duration::ZERO));
        let mut options = SimOptions::new(5, seed);
        options.domains = ["a", "a", "b", "b", "b"].map(String::from).to_vec();
        let result = taken.clone();
        let report = sim::run(&options, move |job: Job| {
            let options = Options::new().replicas(2).partitions(PARTITIONS).expected_keys(64);
            let store = Store::open(&job, options).expect("open");
            let [victim, target, primary, driver, late] = [0, 1, 2, 3, 4].map(MemberId);
            // The list of replicas is [victim, primary], and then [target, primary]: a repairer
            // visits the buckets of the new replica first.
            let is_right = |name: &Vec<u8>| {
                let partition = store.partition_of(name).expect("a key");
                store.state.placement.preference(partition)[..3] == [victim, target, primary]
            };
            let names = (0..10_000).map(|number| format!("key/{number}").into_bytes());
            let name = names.into_iter().find(is_right).expect("some key");
            let key = store.state.any_key_ref(&name);
            let new_replica = ReplicaIndex::new(0);
            let phase = || store.state.run(|op| op.state(target, key.partition)).expect("known");
            if job.me() == driver {
                job.inject(Fault::Stop(target)).expect("a fault");
                job.inject(Fault::Kill(victim)).expect("a fault");
                nap(&job, "the death", || !job.view().is_living(victim));
                stage.set(1);
                nap(&job, "the first version", || stage.get() == 2);
                job.inject(Fault::Stop(primary)).expect("a fault");
                job.inject(Fault::Resume(target)).expect("a fault");
                nap(&job, "the index", || phase().phase() == Phase::Filling);
                // What a put leaves behind that finds no room at the new replica: it reconciles the
                // first version and publishes the second version, and skips the replica each time.
                let skip = |op: &RecordOp<'_>, config: &Configuration| {
                    op.skip_full_replica(config, new_replica, key.partition)
                };
                let put = store.state.run(|op| {
                    let config = op.config(key.partition)?;
                    let word = op.find_or_insert(config, config.primary, &key)?;
                    let first = Head(op.load(primary, word)?);
                    skip(op, config)?;
                    assert!(op.swap(primary, word, first.0, first.stable().0)?);
                    skip(op, config)?;
                    let second = publish(op, config, word, first.stable(), (2, b"second"))?;
                    skip(op, config)?;
                    assert!(op.swap(primary, word, second.0, second.stable().0)?);
                    Ok(())
                });
                put.expect("put");
                let begin = job.now().after(Duration::from_millis(5));
                go_at.set(delay.map_or(begin.after(Duration::from_secs(5)), |at| begin.after(at)));
                job.sleep(begin.since(job.now()));
                job.inject(Fault::Resume(primary)).expect("a fault");
                while phase().phase() != Phase::Complete {
                    assert!(job.now().since(begin) < Duration::from_secs(3), "no repair");
                    job.sleep(Duration::from_micros(5));
                }
                result.set(job.now().since(begin));
                nap(&job, "the late writer", || stage.get() == 3);
                job.inject(Fault::Kill(primary)).expect("a fault");
                nap(&job, "the death", || !job.view().is_living(primary));
                let found = store.get(&name).expect("read").expect("there");
                assert_eq!(found.bytes(), b"second", "an acknowledged version is lost");
                stage.set(4);
            }
            if job.me() == late {
                nap(&job, "the death", || stage.get() == 1);
                let op = RecordOp::begin(&store.state).expect("begun");
                let config = op.config(key.partition).expect("entered");
                assert!(!config.is_ready(new_replica), "the new replica is stopped");
                let word = op.find_or_insert(config, config.primary, &key).expect("made");
                let head = op.reconciled(config, &key, word).expect("reconciled");
                let value: &[u8] = b"first";
                publish(&op, config, word, head, (1, value)).expect("published");
                stage.set(2);
                // Stopped between *publish* and *catch_up*.
                nap(&job, "the repair", || go_at.get() != Time::NEVER);
                job.sleep(go_at.get().since(job.now()));
                let block = version(&op, 1, value);
                let class = block_class(&block, primary).expect("short");
                let done = op.install_everywhere(
                    config,
                    &key,
                    &mut Predecessor::unknown(head),
                    &mut NewVersion::new(block, value, class),
                    ReplicaSet::only(config.primary),
                );
                done.expect("the view is unchanged");
                stage.set(3);
            }
            let is_killed = [victim, primary].contains(&job.me());
            nap(&job, "the end", || stage.get() == 4 && !is_killed);
            let _ = store.close();
            let _ = job.leave();
        });
        report.expect_ok();
        taken.get()
    }

    /// A put is stopped after *publish*. A replica begins to fill, and has no room when another
    /// member replaces the version. Later it has room. The put goes on and installs its version
    /// there, while repair copies the newer version and loses its swap. The replica must not become
    /// complete with the older version.
    #[test]
    fn repair_repeats_a_record_whose_swap_a_late_writer_has_won() {
        for seed in 0..6 {
            let complete = complete_after(seed, None);
            // Some microseconds earlier the late writer's swap meets the repairer's.
            for before in (0..60).map(Duration::from_micros) {
                complete_after(seed, Some(complete.saturating_sub(before)));
            }
        }
    }

    /// On mapped memory a handle deletes a key, and leaves the stable bit out. A reader finds the
    /// tombstone, and is stopped before it has reconciled the record. Meanwhile the record is
    /// removed. When the reader goes on it makes the record again, which is removed as well.
    #[test]
    fn a_late_reader_leaves_no_empty_record() {
        for step in 1..40 {
            let (stage, emptied) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            let mut options = SimOptions::new(3, step).link(Link::Memory);
            options.steps_max = 10_000_000;
            sim::run(&options, move |job: Job| {
                let options = Options::new().replicas(2).partitions(8).expected_keys(64);
                let store = Store::open(&job, options).expect("open");
                let [deleter, reader, other] = [0, 1, 2].map(MemberId);
                let mut keys = (0..1000).map(|number| format!("key/{number}").into_bytes());
                let key = keys.find(|key| !store.replicas_of(key).contains(&reader));
                let key = key.expect("some key");
                if job.me() == deleter {
                    let handle = store.handle(&key).expect("a handle");
                    handle.put(b"value").expect("put");
                    job.sleep(Duration::from_secs(1));
                    assert!(handle.delete().expect("deleted"));
                    stage.set(1);
                } else if job.me() == reader {
                    nap(&job, "the tombstone", || stage.get() == 1);
                    job.inject(Fault::StopAtStep(step)).expect("a fault");
                    assert_eq!(store.get(&key).expect("read").map(|found| found.bytes), None);
                    stage.set(2);
                }
                let records = || {
                    let op = RecordOp::begin(&store.state).expect("begun");
                    store.state.survey(&op).expect("counted").records
                };
                if job.me() == other {
                    let until = job.now().after(Duration::from_secs(60));
                    while emptied.get() < 2 {
                        job.sleep(Duration::from_secs(1));
                        job.inject(Fault::Resume(reader)).expect("a fault");
                        if stage.get() == 2 && records() == 0 {
                            emptied.set(2);
                        }
                        assert!(job.now() < until, "a record is left after step {step}");
                    }
                }
                nap(&job, "the removal", || emptied.get() == 2);
                nap(&job, "the removal here", || records() == 0);
                let _ = store.close();
                let _ = job.leave();
            })
            .expect_ok();
        }
    }
}
