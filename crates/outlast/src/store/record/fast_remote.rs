//! The remote fast path: a put with a cached location takes a single round trip to the primary, and
//! then a single round trip to all other replicas together.
//!
//! A put executes the steps of docs/protocol/writing.md for the case that nothing has changed since
//! the handle wrote the key. The cached location is not read and compared first. Each replica
//! validates it, in a *compound operation*: a list of steps that the target executes in order and
//! that stops at the first word that is not as expected
//! ([`crate::engine::Engine::start_compound`]). The page's section "Cached locations and the fast
//! paths" has the tables of these steps at the primary and at the other replicas, with the reason
//! for each and for their order, and says what a large value, a failed check, a death and a change
//! of the view do.
//!
//! In short: a compound operation that stops before *publish* has published nothing, and the call
//! continues on the slow path. If it stops before *install*, the slow path installs the version at
//! that replica. If the view changes in its middle, its swap succeeds only where no member has
//! sealed the record under the newer configuration, as in `fast_mapped.rs`.

use crate::engine::{COMPOUND_LEN_MAX, COMPOUND_STEP_LEN, CompoundStep, Done, Operation, Pending};
use crate::store::error::StoreError;
use crate::store::mutant::mutant;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::operation::open_swaps::{Proof, SwapBlocks};
use crate::store::placement::REPLICA_LIST_MAX;
use crate::store::placement::replica::{ReplicaIndex, ReplicaSet};
use crate::store::record::block_io::BlockImage;
use crate::store::record::key::KeyRef;
use crate::store::record::location::CachedLocation;
use crate::store::record::publish::Publication;
use crate::store::record::state::RecordOp;
use crate::store::record::write::{DraftBlock, NewVersion, Predecessor, VersionAttributes};
use crate::store::segment::head::Head;
use crate::store::segment::layout::{PARTITION_WAITERS, REMOVALS};
use crate::store::segment::place::Place;
use crate::store::steps;
use crate::store::value::Version;

/// The greatest number of steps of a compound operation. [`Fills::start`] reserves the space of
/// their headers.
const COMPOUND_STEPS_MAX: usize = 8;

impl<'a> RecordOp<'a> {
    /// Puts a value with a cached location. `None` if the slow path must be taken: all members map
    /// the memory, writes are frozen, or the location of a replica is not cached. Then nothing has
    /// happened. If a replica finds that the location is not valid any more, the location is
    /// dropped, and the call starts over on the slow path.
    pub(in crate::store::record) fn put_cached_remote(
        &mut self,
        key: &KeyRef<'_>,
        cached: &mut CachedLocation,
        value: &[u8],
    ) -> OpResult<Option<Version>> {
        // The slow path waits for the end of a freeze.
        if self.store.job.is_mapped() || self.store.freeze.is_set() {
            return Ok(None);
        }
        let config = self.config(key.partition)?;
        let is_known = cached.config_number == config.config_number
            && config.are_all_ready()
            && !cached.version.block().is_deleted
            && cached.at[..config.replicas.len()]
                .iter()
                .all(|at| at.word != 0 && at.head.offset().is_some());
        if !is_known {
            return Ok(None);
        }
        let attributes = VersionAttributes::plain(false, cached.version.block().owner);
        self.replace(config, key, Predecessor::from_cache(config, cached), value, attributes)
    }

    /// The steps from *fill* to *mark_stable*, by compound operations; whether the version was
    /// published.
    pub(in crate::store::record) fn publish_compound(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        predecessor: &mut Predecessor<'_>,
        new_version: &mut NewVersion<'_>,
    ) -> OpResult<bool> {
        steps::enter(steps::Step::WriteFill);
        for (replica, member) in config.enumerate() {
            match self.take_block(member, new_version.class) {
                Ok(offset) => new_version.blocks[replica] = DraftBlock::Filled(offset),
                // The slow path decides whether the replica may be skipped.
                Err(OpError::Fail(StoreError::OutOfMemory { .. })) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        let image = BlockImage::new(&new_version.block, new_version.value);
        let mut fills = Fills::start(self, config, new_version, &image);
        let mut published =
            self.publish_cached_remote(config, key, predecessor, new_version, &image, &mut fills);
        if let Err(OpError::Fail(_)) = &published {
            // A request without an answer may still execute, and its answer decides what becomes of
            // the block at the primary.
            new_version.blocks[config.primary] = DraftBlock::Open;
        }
        if !matches!(&published, Ok(Some(_))) {
            // The blocks are kept for other versions, so no put to them may be in flight.
            for replica in config.indices() {
                if new_version.blocks[replica].offset().is_none() {
                    continue;
                }
                if let Err(OpError::Fail(error)) = fills.wait(self, replica) {
                    // No request names the block, so it is free when the put has landed: the put is
                    // a straggler, and a grace period outlasts it.
                    let taken = std::mem::take(&mut new_version.blocks[replica]);
                    if let (Some(offset), StoreError::Timeout { .. }) = (taken.offset(), &error) {
                        self.retire(config.member(replica), new_version.class, offset);
                    }
                    published = Err(OpError::Fail(error));
                }
            }
            self.keep_unused(config, new_version);
            new_version.blocks = [DraftBlock::None; REPLICA_LIST_MAX];
        }
        let Some((head, waiters)) = published? else { return Ok(false) };
        self.record_published(config, predecessor, new_version, head);
        let installed =
            self.install_cached_remote(config, predecessor, new_version, &image, &mut fills);
        let publication = Publication { head, waiters: Some(waiters), installed };
        self.complete_publication(config, key, predecessor, new_version, publication)?;
        Ok(true)
    }

    /// *check*, *fill* and *publish* at the primary. Returns the new head word and the waiter word,
    /// or `None` if the primary was not as cached.
    fn publish_cached_remote(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        predecessor: &mut Predecessor<'_>,
        new_version: &NewVersion<'_>,
        image: &BlockImage<'_>,
        fills: &mut Fills,
    ) -> OpResult<Option<(Head, u64)>> {
        let (Some(cached), Some(block)) = (&predecessor.cached, &predecessor.block) else {
            return Ok(None);
        };
        let primary = config.primary_member();
        let Some(offset) = new_version.blocks[config.primary].offset() else { return Ok(None) };
        let (at, new) = (&cached.at[config.primary], Head::new(config.config_number, offset));
        steps::enter(steps::Step::WritePublish);
        loop {
            let Some(old) = predecessor.head.offset() else { return Ok(None) };
            let mut parts = Vec::with_capacity(COMPOUND_STEPS_MAX);
            parts.push(CompoundStep::Expect {
                offset: config.roots[config.primary] + REMOVALS,
                word: at.removals,
            });
            parts.push(CompoundStep::Expect { offset: predecessor.word, word: predecessor.head.0 });
            if !mutant("assume-version") {
                parts.push(CompoundStep::Expect { offset: old, word: block.counter });
            }
            parts.extend(fills.parts(image, offset));
            let swap = parts.len();
            parts.push(CompoundStep::Swap {
                offset: predecessor.word,
                expected: predecessor.head.0,
                new: new.0,
            });
            parts.push(CompoundStep::Load {
                offset: self.partition_word(primary, key.partition, PARTITION_WAITERS),
            });
            let compound = self.store.job.start_compound(self.epoch, primary, &parts);
            let blocks = SwapBlocks::versions(
                Some(old),
                Some(Place::new(primary, new_version.class, offset)),
            );
            let fill = &mut fills.pending[config.primary];
            let (done, word) = self.await_compound(compound, swap, blocks, fill)?;
            fills.wait(self, config.primary)?;
            if done == parts.len() {
                return Ok(Some((new, word)));
            }
            // The head word differs by the stable bit alone: a reader has set the bit, or the
            // request that sets it has not landed. The handle knows that the version is stable, and
            // tries again with the word that was found.
            let is_same_version = done == 1
                && Head(word).stable() == predecessor.head.stable()
                && Head(word) != predecessor.head;
            if !is_same_version {
                return Ok(None);
            }
            predecessor.head = Head(word);
        }
    }

    /// *fill* and *install* at the other replicas. Returns the replicas that hold the version
    /// now. The slow path installs the version at the remaining replicas, in the blocks
    /// that were filled for them here, and the handle looks their records up at its next put.
    fn install_cached_remote(
        &self,
        config: &Configuration,
        predecessor: &mut Predecessor<'_>,
        new_version: &mut NewVersion<'_>,
        image: &BlockImage<'_>,
        fills: &mut Fills,
    ) -> OpResult<ReplicaSet> {
        let (Some(cached), Some(block)) = (&mut predecessor.cached, &predecessor.block) else {
            return Err(OpError::Again);
        };
        steps::enter(steps::Step::WriteInstall);
        let mut started: [Option<(Pending, usize)>; REPLICA_LIST_MAX] =
            std::array::from_fn(|_| None);
        for (replica, member) in
            config.enumerate().filter(|(replica, _)| *replica != config.primary)
        {
            let Some(offset) = new_version.blocks[replica].offset() else { continue };
            let at = &cached.at[replica];
            let new = Head::new(config.config_number, offset);
            let mut parts = Vec::with_capacity(COMPOUND_STEPS_MAX);
            parts.extend(fills.parts(image, offset));
            parts.push(CompoundStep::Expect {
                offset: config.roots[replica] + REMOVALS,
                word: at.removals,
            });
            parts.push(CompoundStep::Swap { offset: at.word, expected: at.head.0, new: new.0 });
            started[replica] =
                Some((self.store.job.start_compound(self.epoch, member, &parts), parts.len()));
        }
        let mut installed = Ok(ReplicaSet::only(config.primary));
        for (replica, started) in config.indices().zip(started) {
            let Some((compound, len)) = started else { continue };
            let (member, at) = (config.member(replica), &mut cached.at[replica]);
            let taken = new_version.blocks[replica].offset();
            let place = taken.map(|offset| Place::new(member, new_version.class, offset));
            let blocks = SwapBlocks::versions(at.head.offset(), place);
            let fill = &mut fills.pending[replica];
            let answer = match self.await_compound(compound, len - 1, blocks, fill) {
                // The answer decides what becomes of the block, so a put to it may stay in flight.
                Err(OpError::Fail(error)) => {
                    new_version.blocks[replica] = DraftBlock::Open;
                    Err(OpError::Fail(error))
                }
                Ok(answer) => fills.wait(self, replica).map(|()| answer).inspect_err(|_| {
                    new_version.blocks[replica] = DraftBlock::Open;
                }),
                // A compound operation that this member refused after a change of the view says
                // nothing about the put of the value before it. That put has timed out if other
                // requests have. No request names its block, which is free when the put has landed.
                Err(again) => match (fills.wait(self, replica), taken) {
                    (Err(OpError::Fail(error)), Some(offset)) => {
                        new_version.blocks[replica] = DraftBlock::None;
                        self.retire(member, new_version.class, offset);
                        Err(OpError::Fail(error))
                    }
                    _ => Err(again),
                },
            };
            match answer {
                Ok((done, _)) if done == len => {
                    let named =
                        std::mem::replace(&mut new_version.blocks[replica], DraftBlock::Named);
                    if let Some(old) = at.head.offset() {
                        // The block was swapped out, whatever else fails.
                        let _ = self.retire_block(member, old, block, cached.version.class);
                    }
                    at.head = Head::new(config.config_number, named.offset().unwrap_or(0));
                    if let Ok(installed) = &mut installed {
                        installed.insert(replica);
                    }
                }
                Ok((done, word)) => {
                    at.word = 0;
                    if done + 2 == len {
                        // The replica has unlinked records. This removal count was loaded before
                        // the record is looked up again, so a later removal is detected.
                        at.removals = word;
                    }
                }
                // The view has changed, and no other member has seen the block.
                Err(OpError::Again) if installed.is_ok() => installed = Err(OpError::Again),
                Err(OpError::Again) => {}
                Err(fail) => installed = Err(fail),
            }
        }
        installed
    }

    /// The number of steps of a compound operation that were executed, and the last word that was
    /// loaded.
    /// `swap` is the index of the step that swaps the head word, and `fill` the put of the value
    /// that comes before the compound operation, if there is any.
    fn await_compound(
        &self,
        compound: Pending,
        swap: usize,
        blocks: SwapBlocks,
        fill: &mut Option<Pending>,
    ) -> OpResult<(usize, u64)> {
        match self.await_swap(compound, Proof::Step(swap), blocks, fill)? {
            Done::Compound { done, word } => Ok((done, word)),
            other => unreachable!("a compound completed as {other:?}"),
        }
    }
}

/// The puts of values that are too large for a compound operation.
struct Fills {
    /// Whether the value is a part of the compound operations.
    is_short: bool,
    /// The put of the value at each replica.
    pending: [Option<Pending>; REPLICA_LIST_MAX],
}

impl Fills {
    /// Starts the puts of a large value at all replicas, without waiting: the compound operations
    /// come behind them, and the operations of an activity on a target take effect in order.
    fn start(
        op: &RecordOp<'_>,
        config: &Configuration,
        new_version: &NewVersion<'_>,
        image: &BlockImage<'_>,
    ) -> Fills {
        let len: usize = image.places(0).iter().map(|(_, bytes)| bytes.len()).sum();
        let is_short = len + COMPOUND_STEPS_MAX * COMPOUND_STEP_LEN <= COMPOUND_LEN_MAX;
        let pending = std::array::from_fn(|replica| {
            let member = *config.replicas.get(replica).filter(|_| !is_short)?;
            let taken = new_version.blocks[ReplicaIndex::new(replica)].offset()?;
            let [_, (offset, data)] = image.places(taken);
            Some(op.store.job.start(op.epoch, member, Operation::Put { offset, data }))
        });
        Fills { is_short, pending }
    }

    /// The steps of a compound operation that fill a block.
    fn parts<'c>(
        &self,
        image: &'c BlockImage<'_>,
        offset: u64,
    ) -> impl Iterator<Item = CompoundStep<'c>> {
        let count = if self.is_short { 2 } else { 1 };
        let places =
            image.places(offset).into_iter().take(count).filter(|(_, data)| !data.is_empty());
        places.map(|(offset, data)| CompoundStep::Put { offset, data })
    }

    /// Waits until the block of a replica is filled. Only after the compound operation behind the
    /// put was answered, or if none follows: a request that its caller gave up may never be sent,
    /// while the compound operation behind it would still be sent.
    fn wait(&mut self, op: &RecordOp<'_>, replica: ReplicaIndex) -> OpResult<()> {
        self.pending[replica].take().map_or(Ok(()), |pending| op.await_answer(pending).map(drop))
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use crate::engine::Fault;
    use crate::engine::sim::{self, Link, Options as SimOptions};
    use crate::store::operation::configuration::Configuration;
    use crate::store::placement::replica::ReplicaIndex;
    use crate::store::record::location::CachedLocation;
    use crate::store::record::state::RecordOp;
    use crate::store::record::write::Change;
    use crate::store::segment::layout::{
        BLOCK_HOLDER, HOLDER_MASK, REMOVALS, class_of, holder, value_start,
    };
    use crate::store::testing::{expect_timeout, nap};
    use crate::store::{Options, Store};
    use crate::{Epoch, Job, MemberId};
    use std::cell::Cell;
    use std::collections::BTreeSet;
    use std::rc::Rc;
    use std::time::Duration;

    /// The member that puts.
    const WRITER: MemberId = MemberId(3);
    const LIMIT: Duration = Duration::from_millis(200);

    /// Runs four members over a network. The writer executes `write`, and the other members are its
    /// replicas meanwhile.
    fn run(seed: u64, replicas: usize, write: impl Fn(&Job, &Store) + 'static) {
        run_with(SimOptions::new(4, seed), replicas, write);
    }

    /// Runs members with these options over a network, as [`run`] does.
    fn run_with(options: SimOptions, replicas: usize, write: impl Fn(&Job, &Store) + 'static) {
        let is_over = Rc::new(Cell::new(false));
        let mut options = options.link(Link::Network);
        (options.steps_max, options.time_limit) = (10_000_000, LIMIT);
        sim::run(&options, move |job: Job| {
            let store =
                Store::open(&job, Options::new().replicas(replicas).partitions(64)).expect("open");
            if job.me() == WRITER {
                write(&job, &store);
                is_over.set(true);
            }
            nap(&job, "the one who puts", || is_over.get());
            let closed = store.close();
            assert!(closed.is_ok() || !job.view().dead.is_empty(), "{closed:?}");
            let _ = job.leave();
        })
        .expect_ok();
    }

    /// Calls `look` with the configuration of a key.
    fn with_config<T>(store: &Store, key: &str, look: impl Fn(&Configuration) -> T) -> T {
        let op = RecordOp::begin(&store.state).expect("begun");
        let key = store.state.key_ref(key.as_bytes()).expect("a key");
        look(op.config(key.partition).expect("replicas"))
    }

    /// A key with a wanted configuration that does not contain the writer.
    fn key_where(store: &Store, is_wanted: impl Fn(&Configuration) -> bool) -> String {
        let is_there = |key: &String| {
            with_config(store, key, |config| {
                is_wanted(config) && !config.replicas.contains(&WRITER)
            })
        };
        (0..1000)
            .map(|number| format!("key {number}"))
            .find(is_there)
            .expect("a key with such replicas")
    }

    /// The primary of a configuration.
    fn primary(config: &Configuration) -> MemberId {
        config.primary_member()
    }

    /// A large value is on its way to a stopped replica, and its put ends with a timeout. No
    /// activity waits for the value any more, so it may never be sent. Then no head word may name
    /// its block, neither there nor at the primary.
    #[test]
    fn a_value_that_was_not_sent_is_never_published() {
        const LEN: usize = 20_000;
        for seed in 0..40 {
            run(seed, 2, move |job, store| {
                // The primary or the other replica is stopped, by turns.
                let (stopped, is_primary) = (MemberId(0), seed % 2 == 0);
                let key = key_where(store, |config| {
                    config.replicas.contains(&stopped) && (primary(config) == stopped) == is_primary
                });
                let slot = store.handle(key.as_bytes()).expect("a slot");
                // Until the magazine has blocks.
                for value in 1..40 {
                    slot.put(&[value; LEN]).expect("put");
                }
                job.inject(Fault::Stop(stopped)).expect("a fault");
                assert_eq!(expect_timeout(slot.put(&[40; LEN])), stopped);
                job.inject(Fault::Resume(stopped)).expect("a fault");
                nap(job, "what was late", || store.state.straggling_replica().is_none());
                if !is_primary {
                    job.inject(Fault::Kill(with_config(store, &key, primary))).expect("a fault");
                }
                let found = store.get(key.as_bytes()).expect("got").expect("a value").bytes;
                assert!([39, 40].iter().any(|&value| found == [value; LEN]), "{:?}", &found[..8]);
            });
        }
    }

    /// The second replica unlinks the record of another key. The next put looks its own record up
    /// again there and caches the new removal count, so that the put after it takes a single
    /// message again.
    #[test]
    fn a_handle_detects_removals_at_other_replicas() {
        for seed in 0..5 {
            run(seed, 2, |job, store| {
                let with_replicas = |wanted: [u32; 2]| {
                    let is_wanted = |config: &Configuration| {
                        config.primary.index() == 0 && config.replicas[..] == wanted.map(MemberId)
                    };
                    key_where(store, is_wanted)
                };
                let (key, other) = (with_replicas([0, 1]), with_replicas([1, 2]));
                let key = store.state.key_ref(key.as_bytes()).expect("a key");
                let mut cached = CachedLocation::NOTHING;
                let mut put = || {
                    store.state.put_cached(&key, &mut cached, b"value").expect("put");
                    (cached.at[1].word != 0).then_some(cached.at[1].removals)
                };
                let replica = MemberId(1);
                let count = || {
                    job.load(Epoch::ANY, replica, store.state.root(replica) + REMOVALS)
                        .expect("a count")
                };
                let before = count();
                assert_eq!((put(), put()), (Some(before), Some(before)));
                store.put(other.as_bytes(), b"value").expect("put");
                store.delete(other.as_bytes()).expect("deleted");
                nap(job, "the removal", || count() > before);
                assert_eq!(put(), Some(count()));
            });
        }
    }

    /// Two replicas are stopped, and the call still ends at its time limit: when the version is
    /// published, and when the cached location is out of date while a large value is on its way.
    #[test]
    fn a_put_to_several_stopped_replicas_ends_at_its_time_limit() {
        for (seed, len, is_known) in
            [(0, 8, true), (1, 20_000, true), (2, 20_000, false), (3, 8, true), (4, 20_000, false)]
        {
            run(seed, 3, move |job, store| {
                let key = key_where(store, |config| primary(config) == MemberId(0));
                let slot = store.handle(key.as_bytes()).expect("a slot");
                for _ in 0..40 {
                    slot.put(&vec![1; len]).expect("put");
                }
                if !is_known {
                    store.put(key.as_bytes(), b"another").expect("put");
                }
                let stopped = [1, 2].map(MemberId);
                stopped
                    .iter()
                    .for_each(|&member| job.inject(Fault::Stop(member)).expect("a fault"));
                let began = job.now();
                assert!(stopped.contains(&expect_timeout(slot.put(&vec![2; len]))));
                let took = job.now().since(began);
                assert!(took < LIMIT * 3 / 2, "it took {took:?}");
                stopped
                    .iter()
                    .for_each(|&member| job.inject(Fault::Resume(member)).expect("a fault"));
                nap(job, "what was late", || store.state.straggling_replica().is_none());
                slot.put(b"after it").expect("put");
            });
        }
    }

    /// A member dies while a large value is on its way to two stopped replicas. Later requests are
    /// refused by this member, and not by the replicas, and the call still ends at its time limit.
    #[test]
    fn a_death_delays_no_put_to_several_stopped_replicas() {
        let noticed = Duration::from_micros(60);
        for seed in 0..200 {
            let mut options = SimOptions::new(5, seed);
            options.detection = noticed..=noticed;
            run_with(options, 3, move |job, store| {
                let dies = MemberId(4);
                let key = key_where(store, |config| {
                    primary(config) == MemberId(0) && !config.replicas.contains(&dies)
                });
                let slot = store.handle(key.as_bytes()).expect("a slot");
                for _ in 0..40 {
                    slot.put(&[1; 20_000]).expect("put");
                }
                let stopped = [1, 2].map(MemberId);
                stopped
                    .iter()
                    .for_each(|&member| job.inject(Fault::Stop(member)).expect("a fault"));
                job.inject(Fault::Kill(dies)).expect("a fault");
                // A little before the death is detected.
                job.sleep(noticed - Duration::from_nanos(10_000 - seed * 50));
                let began = job.now();
                let _ = slot.put(&[2; 20_000]);
                let took = job.now().since(began);
                assert!(took < LIMIT * 3 / 2, "it took {took:?}");
                stopped
                    .iter()
                    .for_each(|&member| job.inject(Fault::Resume(member)).expect("a fault"));
                nap(job, "what was late", || store.state.straggling_replica().is_none());
                slot.put(b"after it").expect("put");
            });
        }
    }

    /// A put returns, and a replica that is not the primary is stopped. Every other member reads
    /// the value: by then the stable bit is set, so no reader needs the stopped replica.
    #[test]
    fn a_value_is_readable_while_another_replica_is_stopped() {
        const READER: MemberId = MemberId(4);
        for seed in 0..60 {
            let (is_put, is_over) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
            let mut options = SimOptions::new(5, seed).link(Link::Network);
            (options.steps_max, options.time_limit) = (10_000_000, LIMIT);
            sim::run(&options, move |job: Job| {
                let store = Store::open(&job, Options::new().replicas(3).partitions(64));
                let store = store.expect("open");
                let is_stopped = |config: &Configuration| {
                    config.replicas.contains(&MemberId(0)) && primary(config) != MemberId(0)
                };
                let key = key_where(&store, |config| {
                    is_stopped(config) && !config.replicas.contains(&READER)
                });
                let key = key.as_bytes();
                match job.me() {
                    WRITER => {
                        let handle = store.handle(key).expect("a handle");
                        for value in 0..seed as u8 % 4 + 1 {
                            match seed % 3 {
                                0 => drop(store.put(key, &[value]).expect("put")),
                                1 => drop(handle.put(&[value]).expect("put")),
                                _ => drop(store.add(key, 1).expect("added")),
                            }
                        }
                        job.inject(Fault::Stop(MemberId(0))).expect("a fault");
                        is_put.set(true);
                    }
                    READER => {
                        nap(&job, "the put", || is_put.get());
                        for _ in 0..10 {
                            let began = job.now();
                            store.get(key).expect("read").expect("a value");
                            let took = job.now().since(began);
                            assert!(took < LIMIT / 2, "it took {took:?}");
                        }
                        job.inject(Fault::Resume(MemberId(0))).expect("a fault");
                        is_over.set(true);
                    }
                    _ => {}
                }
                nap(&job, "the reader", || is_over.get());
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }

    /// The blocks that this member keeps at all replicas except the stopped replica.
    fn kept_blocks(store: &Store, stopped: MemberId) -> BTreeSet<(MemberId, u64)> {
        store.state.known_blocks().into_iter().filter(|(replica, _)| *replica != stopped).collect()
    }

    /// Waits until each of these blocks is kept by this member again, was given back to its
    /// replica, or holds the key's value there.
    fn expect_blocks_kept(
        job: &Job,
        store: &Store,
        key: &str,
        stopped: MemberId,
        predecessor: &BTreeSet<(MemberId, u64)>,
    ) {
        let is_given_back = |&(replica, offset): &(MemberId, u64)| {
            let word = job.load(Epoch::ANY, replica, offset + BLOCK_HOLDER).expect("a word");
            word & HOLDER_MASK != holder(job.me())
        };
        let is_named = |&(replica, offset): &(MemberId, u64)| {
            let op = RecordOp::begin(&store.state).expect("begun");
            let key = store.state.key_ref(key.as_bytes()).expect("a key");
            let config = op.config(key.partition).expect("replicas");
            let index =
                config.replicas.iter().position(|&other| other == replica).expect("a replica");
            let found = op.find(config, ReplicaIndex::new(index), &key).expect("found");
            found.is_some_and(|(_, head)| head.offset() == Some(offset))
        };
        let until = job.now().after(Duration::from_secs(1));
        loop {
            let now = kept_blocks(store, stopped);
            let gone = predecessor.difference(&now);
            let forgotten: Vec<_> = gone.filter(|at| !is_given_back(at) && !is_named(at)).collect();
            if forgotten.is_empty() {
                return;
            }
            assert!(job.now() < until, "nobody knows of {forgotten:?}");
            job.sleep(Duration::from_millis(1));
        }
    }

    /// A replica is stopped, and the magazine has no block there, or no location is cached. The
    /// blocks that were taken at the other replicas are kept.
    #[test]
    fn a_put_to_a_stopped_replica_keeps_its_blocks_at_other_replicas() {
        for (seed, len, is_known) in
            [(0, 8, true), (1, 20_000, true), (2, 8, false), (3, 20_000, false), (4, 8, false)]
        {
            run(seed, 3, move |job, store| {
                let stopped = MemberId(2);
                let key = key_where(store, |config| primary(config) != stopped);
                let slot = store.handle(key.as_bytes()).expect("a slot");
                let value = vec![1; len];
                let put = || match is_known {
                    true => slot.put(&value).map(Some),
                    // This call uses no cached location.
                    false => {
                        store.state.write(key.as_bytes(), false, |_, _| Ok(Change::Put(&value)))
                    }
                };
                for _ in 0..40 {
                    put().expect("put");
                }
                // A grace period that has not ended yet ends a little later.
                for _ in 0..if is_known { 20 } else { 0 } {
                    let op = RecordOp::begin(&store.state).expect("begun");
                    op.reuse_or_give_back(false, usize::MAX);
                    let class = class_of(value_start(len as u64) + len as u64).expect("a class");
                    while op.magazine().take(stopped, class).is_some() {}
                    drop(op);
                    job.sleep(Duration::from_millis(1));
                }
                let predecessor = kept_blocks(store, stopped);
                job.inject(Fault::Stop(stopped)).expect("a fault");
                for _ in 0..5 {
                    assert_eq!(expect_timeout(put()), stopped);
                    expect_blocks_kept(job, store, &key, stopped, &predecessor);
                }
                job.inject(Fault::Resume(stopped)).expect("a fault");
            });
        }
    }

    /// The primary is stopped: the blocks that were taken at the other replicas are kept.
    #[test]
    fn a_put_to_a_stopped_primary_keeps_its_blocks_at_other_replicas() {
        for (seed, len) in [(0, 8), (1, 20_000), (2, 8), (3, 20_000)] {
            run(seed, 3, move |job, store| {
                let stopped = MemberId(0);
                let key = key_where(store, |config| primary(config) == stopped);
                let slot = store.handle(key.as_bytes()).expect("a slot");
                for _ in 0..40 {
                    slot.put(&vec![1; len]).expect("put");
                }
                let predecessor = kept_blocks(store, stopped);
                job.inject(Fault::Stop(stopped)).expect("a fault");
                assert_eq!(expect_timeout(slot.put(&vec![2; len])), stopped);
                assert_eq!(kept_blocks(store, stopped), predecessor);
                job.inject(Fault::Resume(stopped)).expect("a fault");
            });
        }
    }
}
