//! Tests of the growth of indexes.

use super::*;
use crate::engine::Fault;
use crate::engine::sim::{self, Link, Options as SimOptions, Random};
use crate::job::Job;
use crate::store::error::StoreError;
use crate::store::record::state::RecordOp;
use crate::store::segment::bucket::{position_of, walk_len};
use crate::store::testing::nap;
use crate::store::{Options, Store};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Whether every index of this member has at least this depth everywhere, and no bucket has a
/// node of another bucket.
fn is_grown(store: &Store, depth_min: usize) -> bool {
    let (state, me) = (&store.state, store.me());
    let Ok(op) = RecordOp::begin(state) else { return false };
    let mut is_grown = true;
    for partition in 0..state.placement.partitions {
        let word = op.partition_word(me, partition, PARTITION_BUCKETS);
        let buckets = op.load(me, word).expect("a word");
        for first in 0..if buckets == 0 { 0 } else { state.bucket_count } {
            let each = |_: u64, bucket: &Bucket| {
                let chain = state.chain(bucket.word.first())?;
                is_grown &=
                    bucket.depth >= depth_min && chain.iter().all(|(_, hash)| bucket.has(*hash));
                Ok(())
            };
            state.for_each_own_bucket(buckets, first, each).expect("visited");
        }
    }
    is_grown
}

/// Walks over the index of partition 0 at its primary, and begins at other positions, too.
/// Each bucket gives the keys of its positions from the first wanted position on, and no other
/// key. Returns the greatest number of records of a bucket.
fn walk(store: &Store, keys: &[Vec<u8>]) -> usize {
    let (base, mut most) = (store.state.bucket_count as u64, 0);
    let op = RecordOp::begin(&store.state).expect("begun");
    let config = op.config(0).expect("replicas");
    let position_of_key =
        |key: &[u8]| position_of(base, store.state.key_ref(key).expect("a key").hash);
    let (mut position, mut found) = (0, 0);
    while position < walk_len(base) {
        let (nodes, end) = op.nodes(config, config.primary, 0, position).expect("read");
        most = most.max(nodes.len());
        found += nodes.len();
        position = end;
    }
    assert_eq!((position, found), (walk_len(base), keys.len()));
    for position in (0..walk_len(base)).step_by(1 << (TIERS_MAX - 3)) {
        let (nodes, end) = op.nodes(config, config.primary, 0, position).expect("read");
        let nodes: BTreeSet<_> = nodes.into_iter().map(|node| node.key).collect();
        let is_wanted = |key: &&Vec<u8>| (position..end).contains(&position_of_key(key));
        let wanted: BTreeSet<_> = keys.iter().filter(is_wanted).cloned().collect();
        assert_eq!(nodes, wanted, "from position {position} to {end}");
    }
    most
}

/// An index that stays as it is is measured once for all reports of a while, and then again, so
/// that no report is lost.
#[test]
fn an_index_that_stays_as_it_is_is_measured_seldom() {
    let report = sim::run(&SimOptions::new(1, 1), |job: Job| {
        let options = Options::new().replicas(1).partitions(1).expected_keys(4);
        let store = Store::open(&job, options).expect("open");
        let state = &store.state;
        job.sleep(Duration::from_millis(20));
        state.hold_removal(true);
        job.sleep(Duration::from_millis(20));
        let is_reported = || !lock(&state.growth.crowded).is_empty();
        state.record_crowded(0);
        assert_eq!(state.grow_piece().0, Time::NEVER);
        assert!(!is_reported(), "measured");
        let until = lock(&state.growth.work).resting[&0];
        for number in 0..KEYS {
            store.put(&key(number), b"value").expect("put");
        }
        state.record_crowded(0);
        while job.now() < until {
            assert_eq!(state.grow_piece().0, until);
            assert!(is_reported() && !is_grown(&store, 1), "not measured");
            job.sleep(MEASURE_PAUSE / 4);
        }
        state.grow_piece();
        assert!(is_reported() || lock(&state.growth.work).grace.is_some(), "it grows");
        state.hold_removal(false);
        nap(&job, "the growth", || is_grown(&store, 3));
        // Few records in a piece of a walk, although it began with four buckets.
        let keys: Vec<_> = (0..KEYS).map(key).collect();
        let most = walk(&store, &keys);
        assert!(most <= 8, "{most} records in a bucket");
        store.close().expect("close");
        let _ = job.leave();
    });
    report.expect_ok();
}

/// All members add to all keys, in an order of their own, while the indexes grow from four
/// buckets. Each key is found by each member, so each has the sum. Between rounds keys are
/// deleted, so that nodes are unlinked meanwhile.
#[test]
fn every_record_is_found_while_an_index_grows() {
    const KEYS: u64 = 150;
    for seed in 0..6 {
        let link = if seed % 2 == 0 { Link::Memory } else { Link::Network };
        let (ended, checked) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let mut options = SimOptions::new(3, seed).link(link);
        options.steps_max = 50_000_000;
        let report = sim::run(&options, move |job: Job| {
            let options = Options::new().replicas(2).partitions(2).expected_keys(1);
            let store = Store::open(&job, options).expect("open");
            let mut random = Random::new(seed * 64 + u64::from(job.me().0));
            let mut order: Vec<u64> = (0..KEYS).collect();
            for index in (1..order.len()).rev() {
                order.swap(index, random.below(index as u64 + 1) as usize);
            }
            for &number in &order {
                let key = format!("key {number}").into_bytes();
                store.add(&key, 1).expect("added");
                let own = format!("own {} {number}", job.me().0).into_bytes();
                store.put(&own, b"value").expect("put");
                if number % 3 == 0 {
                    assert!(store.delete(&own).expect("deleted"), "{number}");
                    assert!(store.get(&own).expect("read").is_none());
                }
            }
            ended.set(ended.get() + 1);
            nap(&job, "all members", || ended.get() == 3);
            for number in 0..KEYS {
                let key = format!("key {number}").into_bytes();
                let found = store.get(&key).expect("read").expect("there");
                assert_eq!(found.bytes(), 3i64.to_le_bytes(), "key {number}");
                let own = format!("own {} {number}", job.me().0).into_bytes();
                assert_eq!(store.exists(&own).expect("read"), number % 3 != 0);
            }
            // 100 or more nodes for each partition, and at most 1.5 for each bucket.
            nap(&job, "the end of the growth", || is_grown(&store, 4));
            checked.set(checked.get() + 1);
            nap(&job, "all checks", || checked.get() == 3);
            store.close().expect("close");
            let _ = job.leave();
        });
        report.expect_ok();
    }
}

/// A lookup has loaded the bucket words and is stopped there. The index grows meanwhile, and
/// the lookup finds all records from what it has loaded: their chains stay whole until its
/// operation ends.
#[test]
fn a_lookup_that_began_before_the_growth_finds_its_record() {
    const KEYS: u64 = 64;
    for seed in 0..10 {
        let link = if seed % 2 == 0 { Link::Memory } else { Link::Network };
        let stage = Rc::new(Cell::new(0));
        let mut options = SimOptions::new(2, seed).link(link);
        options.steps_max = 50_000_000;
        let report = sim::run(&options, move |job: Job| {
            let options = Options::new().replicas(1).partitions(1).expected_keys(4);
            let store = Store::open(&job, options).expect("open");
            let replica = store.replicas_of(b"any")[0];
            let keys: Vec<_> = (0..KEYS).map(|number| format!("key {number}")).collect();
            if job.me() == replica {
                store.state.hold_removal(true);
                stage.set(1);
                nap(&job, "the lookups", || stage.get() == 2);
                store.state.hold_removal(false);
                nap(&job, "the end of the lookups", || stage.get() == 3);
                nap(&job, "the growth", || is_grown(&store, 4));
                stage.set(4);
            } else {
                nap(&job, "the replica", || stage.get() == 1);
                keys.iter().for_each(|key| drop(store.put(key.as_bytes(), b"value")));
                let op = RecordOp::begin(&store.state).expect("begun");
                let config = op.config(0).expect("replicas");
                let buckets = op.buckets(config, config.primary, 0).expect("an index");
                let word = |number: u64| op.load(replica, buckets + number * 8).expect("a word");
                let words: Vec<_> = (0..4).map(|number| BucketWord(word(number))).collect();
                assert!(words.iter().all(|word| word.depth() == 0 && word.first() != 0));
                stage.set(2);
                nap(&job, "the split", || (0..4).all(|at| BucketWord(word(at)).depth() > 0));
                job.sleep(Duration::from_millis(200));
                for key in &keys {
                    let key = store.state.key_ref(key.as_bytes()).expect("a key");
                    let first = words[key.hash as usize % 4].first();
                    let (found, _) = op.find_from(replica, first, &key).expect("read");
                    assert!(found.is_some(), "{:?} is missing", key.key);
                }
                drop(op);
                stage.set(3);
            }
            nap(&job, "the growth", || stage.get() == 4);
            for key in &keys {
                assert!(store.exists(key.as_bytes()).expect("read"), "{key} is missing");
            }
            store.close().expect("close");
            let _ = job.leave();
        });
        report.expect_ok();
    }
}

/// A member is stopped again and again, and a member dies, while all members add to all keys
/// and the indexes grow. The survivors find all records: each key has at least the
/// acknowledged additions, and at most those that were tried.
#[test]
fn a_growing_index_outlasts_stops_and_deaths() {
    const KEYS: usize = 80;
    const MEMBERS: usize = 5;
    for seed in 0..40u64 {
        let link = if seed % 2 == 0 { Link::Memory } else { Link::Network };
        // For each key the acknowledged and the tried additions.
        let sums = Rc::new(RefCell::new(vec![(0i64, 0i64); KEYS]));
        let ended = Rc::new(RefCell::new(BTreeSet::new()));
        let mut options = SimOptions::new(MEMBERS, seed).link(link);
        (options.steps_max, options.time_limit) = (50_000_000, Duration::from_secs(5));
        let report = sim::run(&options, move |job: Job| {
            let options = Options::new().replicas(2).partitions(2).expected_keys(1);
            let store = Store::open(&job, options).expect("open");
            let mut random = Random::new(seed * 64 + u64::from(job.me().0));
            if job.me() == MemberId(0) {
                // The driver: stops members, and kills one.
                for round in 0..12 {
                    let victim = MemberId(1 + random.below(MEMBERS as u64 - 1) as u32);
                    if job.view().is_living(victim) {
                        job.inject(Fault::Stop(victim)).expect("a fault");
                        job.sleep(Duration::from_micros(50 + random.below(3000)));
                        job.inject(Fault::Resume(victim)).expect("a fault");
                    }
                    if round == 5 {
                        let victim = MemberId(1 + random.below(MEMBERS as u64 - 1) as u32);
                        job.inject(Fault::Kill(victim)).expect("a fault");
                    }
                    job.sleep(Duration::from_micros(random.below(2000)));
                }
            } else {
                for _ in 0..2 * KEYS {
                    let number = random.below(KEYS as u64) as usize;
                    sums.borrow_mut()[number].1 += 1;
                    match store.add(format!("key {number}").as_bytes(), 1) {
                        Ok(_) => sums.borrow_mut()[number].0 += 1,
                        Err(StoreError::Timeout { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            ended.borrow_mut().insert(job.me());
            let is_over = || job.view().living().all(|member| ended.borrow().contains(&member));
            nap(&job, "all members", is_over);
            let sums = sums.borrow().clone();
            for (number, &(least, most)) in sums.iter().enumerate() {
                let found = store.get(format!("key {number}").as_bytes()).expect("read");
                let sum = found.map_or(0, |found| {
                    i64::from_le_bytes(found.bytes().try_into().expect("a number"))
                });
                assert!((least..=most).contains(&sum), "key {number}: {least} {sum} {most}");
            }
            nap(&job, "the blocks of the dead", || {
                store.memory_use().is_ok_and(|found| found.held_by_dead == 0)
            });
            let closed = store.close();
            assert!(closed.is_ok() || !job.view().dead.is_empty(), "{closed:?}");
            let _ = job.leave();
        });
        report.expect_ok();
    }
}

/// Members of a test in which the index of a replica grows once all keys are there.
struct Grown {
    job: Job,
    store: Store,
    replica: MemberId,
}

/// The keys that are there before the growth.
const KEYS: usize = 48;

fn key(number: usize) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// How many engine steps after the beginning of the growth a fault strikes: dense at first,
/// and beyond the end of the growth.
fn steps() -> impl Iterator<Item = (u64, Link)> {
    (0..90u64).map(|number| {
        let link = if number % 2 == 0 { Link::Memory } else { Link::Network };
        (1 + number * (1 + number / 3), link)
    })
}

impl Grown {
    /// Opens a store with a partition and four buckets, and fills it while the replica does not
    /// grow. The replica calls `begin` right before the growth.
    fn open(job: &Job, options: Options, stage: &Cell<u32>, begin: impl Fn(&Job)) -> Grown {
        let options = options.partitions(1).expected_keys(4);
        let store = Store::open(job, options).expect("open");
        let replica = store.replicas_of(b"any")[0];
        if job.me() == replica {
            store.state.hold_removal(true);
            job.sleep(Duration::from_millis(20));
            store.state.hold_removal(true);
            stage.set(1);
            nap(job, "the keys", || stage.get() >= 2);
            begin(job);
            store.state.hold_removal(false);
        } else if job.me().0 == (replica.0 + 1) % job.members() as u32 {
            nap(job, "the replica", || stage.get() == 1);
            for number in 0..KEYS {
                store.add(&key(number), 1).expect("added");
            }
            // Blocks for later insertions, if the replica is stopped then.
            for _ in 0..300 {
                store.put(b"spare", b"value").expect("put");
            }
            // A report that was made before the index was held is made again.
            store.state.tell_crowded(replica, 0).expect("told");
            stage.set(2);
        } else {
            nap(job, "the keys", || stage.get() >= 2);
        }
        Grown { job: job.clone(), store, replica }
    }

    /// The keys that are there before the growth, with the key that took blocks for later keys.
    fn keys(&self) -> Vec<Vec<u8>> {
        (0..KEYS).map(key).chain([b"spare".to_vec()]).collect()
    }

    /// Reads, changes, makes and deletes keys.
    fn use_all(&self, round: u64) {
        for number in 0..KEYS {
            let sum = self.store.add(&key(number), 1);
            assert_eq!(sum, Ok(round as i64 + 1), "key {number}");
            let own = format!("own {round} {number}").into_bytes();
            self.store.put(&own, b"value").expect("put");
            if number % 2 == 0 {
                assert_eq!(self.store.delete(&own), Ok(true), "{number}");
            }
        }
    }

    /// Expects what so many rounds of [`Grown::use_all`] have left.
    fn check(&self, rounds: u64) {
        for number in 0..KEYS {
            assert_eq!(self.store.add(&key(number), 0), Ok(rounds as i64 + 1), "key {number}");
            for round in 1..=rounds {
                let own = format!("own {round} {number}").into_bytes();
                assert_eq!(self.store.exists(&own), Ok(number % 2 != 0), "{round} {number}");
            }
        }
    }

    fn end(self) {
        let closed = self.store.close();
        assert!(closed.is_ok() || !self.job.view().dead.is_empty(), "{closed:?}");
        let _ = self.job.leave();
    }
}

fn sim_options(members: usize, seed: u64, link: Link) -> SimOptions {
    let mut options = SimOptions::new(members, seed).link(link);
    (options.steps_max, options.time_limit) = (50_000_000, Duration::from_secs(20));
    options
}

/// The replica is stopped at each step of the growth of its index. Other members use the index
/// as it stands there, over a mapped link without the replica. Then the replica goes on.
#[test]
fn a_replica_that_stops_while_its_index_grows_leaves_an_index_that_works() {
    const LATE: usize = 24;
    let late = |number: usize| format!("late {number}").into_bytes();
    let all_inserted = Rc::new(Cell::new(0));
    for (step, link) in steps() {
        let (stage, count) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let inserted = all_inserted.clone();
        let report = sim::run(&sim_options(3, step, link), move |job: Job| {
            let stop = |job: &Job| job.inject(Fault::StopAtStep(step)).expect("a fault");
            let grown = Grown::open(&job, Options::new().replicas(1), &stage, stop);
            let [user, driver] = [1, 2].map(|distance| MemberId((grown.replica.0 + distance) % 3));
            if job.me() == user {
                if link == Link::Memory {
                    // Without the replica, unless it would have to make blocks.
                    job.sleep(Duration::from_millis(5));
                    for number in 0..KEYS {
                        assert_eq!(grown.store.exists(&key(number)), Ok(true), "{number}");
                    }
                    walk(&grown.store, &grown.keys());
                    let put = |number| match grown.store.put(&late(number), b"value") {
                        Err(StoreError::Timeout { .. }) => false,
                        result => result.is_ok(),
                    };
                    count.set((0..LATE).take_while(|&number| put(number)).count());
                    inserted.set(inserted.get() + count.get());
                }
                stage.set(3);
                (1..=2).for_each(|round| grown.use_all(round));
                stage.set(4);
            } else if job.me() == driver {
                job.sleep(Duration::from_millis(5));
                nap(&job, "the late keys", || stage.get() >= 3);
                while stage.get() < 4 {
                    job.inject(Fault::Resume(grown.replica)).expect("a fault");
                    job.sleep(Duration::from_millis(1));
                }
                stage.set(5);
            }
            if job.me() == grown.replica {
                nap(&job, "the growth", || stage.get() >= 5 && is_grown(&grown.store, 4));
                stage.set(6);
            }
            nap(&job, "the growth", || {
                let _ = job.inject(Fault::Resume(grown.replica));
                stage.get() == 6
            });
            grown.check(2);
            for number in 0..count.get() {
                assert_eq!(grown.store.exists(&late(number)), Ok(true), "late {number}");
            }
            grown.end();
        });
        report.expect_ok();
    }
    assert!(all_inserted.get() > 45 * 4, "{} late insertions", all_inserted.get());
}

/// A member is stopped at each step of its own operations while the indexes of the other
/// members grow. When it goes on, all records are found, by it and by others.
#[test]
fn a_member_that_stops_in_an_operation_beside_growth_misses_no_record() {
    for (step, link) in steps() {
        let stage = Rc::new(Cell::new(0));
        let report = sim::run(&sim_options(3, step, link), move |job: Job| {
            let grown = Grown::open(&job, Options::new().replicas(1), &stage, |_| {});
            let [user, driver] = [1, 2].map(|distance| MemberId((grown.replica.0 + distance) % 3));
            if job.me() == user {
                job.inject(Fault::StopAtStep(step)).expect("a fault");
                grown.use_all(1);
                stage.set(3);
            } else if job.me() == driver {
                job.sleep(Duration::from_millis(20));
                for number in 0..KEYS {
                    let more = format!("more {number}").into_bytes();
                    grown.store.put(&more, b"value").expect("put");
                }
                while stage.get() < 3 {
                    job.inject(Fault::Resume(user)).expect("a fault");
                    job.sleep(Duration::from_millis(1));
                }
            }
            nap(&job, "the end", || {
                let _ = job.inject(Fault::Resume(user));
                stage.get() >= 3
            });
            grown.check(1);
            for number in 0..KEYS {
                let more = format!("more {number}").into_bytes();
                nap(&job, "the last key", || grown.store.exists(&more) == Ok(true));
            }
            grown.end();
        });
        report.expect_ok();
    }
}

/// The only replica dies at each step of the growth of its index, and its memory is salvaged;
/// over a network the first of two replicas dies. Either way all records are found.
#[test]
fn a_death_while_an_index_grows_loses_no_record() {
    for (step, link) in steps() {
        let stage = Rc::new(Cell::new(0));
        let mut options = sim_options(4, step, link);
        options.keeps_dead_segments = link == Link::Memory;
        let report = sim::run(&options, move |job: Job| {
            let die = |job: &Job| job.inject(Fault::DieAtStep(step)).expect("a fault");
            let options = match link {
                Link::Memory => Options::new().replicas(1).salvage(true),
                Link::Network => Options::new().replicas(2),
            };
            let grown = Grown::open(&job, options, &stage, die);
            if job.me() == grown.replica {
                nap(&job, "the end", || stage.get() == 6);
            } else if job.me().0 == (grown.replica.0 + 1) % 4 {
                for round in 1..=3 {
                    grown.use_all(round);
                    job.sleep(Duration::from_millis(20));
                }
                stage.set(6);
            }
            nap(&job, "the end", || stage.get() == 6);
            grown.check(3);
            grown.end();
        });
        report.expect_ok();
    }
}

/// A member leaves while its index grows, and while other members write. The replicas that
/// take over have all records.
#[test]
fn a_member_that_leaves_while_its_index_grows_hands_over_all_records() {
    for seed in 0..20u64 {
        let link = if seed % 2 == 0 { Link::Memory } else { Link::Network };
        let stage = Rc::new(Cell::new(0));
        let report = sim::run(&sim_options(4, seed, link), move |job: Job| {
            let replicas = 1 + seed as usize / 2 % 2;
            let options = Options::new().replicas(replicas);
            let grown = Grown::open(&job, options, &stage, |_| {});
            if job.me() == grown.replica {
                job.sleep(Duration::from_micros(seed * 40));
                let deadline = job.now().after(Duration::from_secs(60));
                grown.store.leave(deadline).expect("left");
                return;
            }
            if job.me().0 == (grown.replica.0 + 1) % 4 {
                grown.use_all(1);
                nap(&job, "the leaver", || !job.view().is_living(grown.replica));
                grown.use_all(2);
                stage.set(6);
            }
            nap(&job, "the end", || stage.get() == 6);
            grown.check(2);
            grown.end();
        });
        report.expect_ok();
    }
}

/// The keys of a partition with four buckets, until there is one with this bucket number at depth 1.
fn key_of_bucket(store: &Store, number: u64) -> Vec<u8> {
    let hash = |key: &[u8]| store.state.key_ref(key).expect("a key").hash;
    let mut keys = (0..1000).map(|number| format!("late {number}").into_bytes());
    keys.find(|key| hash(key) & 7 == number).expect("some key")
}

/// The replica is stopped between *copy* and *split* of a bucket. A member that knows the new depth
/// inserts a record of the new bucket, and a member that does not know it inserts a record of the
/// former bucket. When the replica goes on, both are found.
#[test]
fn insertions_between_copy_and_split_are_kept() {
    let hits = Rc::new(Cell::new(0));
    for step in 1..200 {
        let (stage, hits) = (Rc::new(Cell::new(0)), hits.clone());
        // The late keys that were put.
        let late = Rc::new(RefCell::new(Vec::new()));
        let report = sim::run(&sim_options(3, step, Link::Memory), move |job: Job| {
            let options = Options::new().replicas(1).partitions(1).expected_keys(4);
            let store = Store::open(&job, options).expect("open");
            let replica = store.replicas_of(b"any")[0];
            let [one, other] = [1, 2].map(|distance| MemberId((replica.0 + distance) % 3));
            let keys: Vec<_> = (0..KEYS).map(key).collect();
            let put_late = |number: u64| {
                let key = key_of_bucket(&store, number);
                let is_put = store.put(&key, b"value").is_ok();
                late.borrow_mut().extend(is_put.then_some(key));
            };
            if job.me() == replica {
                store.state.hold_removal(true);
                job.sleep(Duration::from_millis(20));
                store.state.hold_removal(true);
                stage.set(1);
                nap(&job, "the keys", || stage.get() == 3);
                job.inject(Fault::StopAtStep(step)).expect("a fault");
                store.state.hold_removal(false);
                nap(&job, "the growth", || stage.get() >= 20 && is_grown(&store, 3));
                stage.set(30);
            } else if job.me() == one {
                nap(&job, "the replica", || stage.get() == 1);
                for key in keys.iter().step_by(2) {
                    store.put(key, b"value").expect("put");
                }
                stage.set(2);
                nap(&job, "the other keys", || stage.get() == 3);
                job.sleep(Duration::from_millis(5));
                // Which bucket is copied and not split, while bucket 0 is split?
                let copied = {
                    let op = RecordOp::begin(&store.state).expect("begun");
                    let config = op.config(0).expect("replicas");
                    let buckets = op.buckets(config, config.primary, 0).expect("an index");
                    let load = |at: u64| BucketWord(op.load(replica, at).expect("a word"));
                    let tier = load(store.state.directory_word(buckets, 1)).0;
                    (1..4).filter(|_| tier != 0).find(|number| {
                        load(buckets).depth() == 1
                            && load(buckets + number * 8).depth() == 0
                            && load(tier + number * 8).first() != 0
                    })
                };
                if let Some(number) = copied {
                    keys.iter().for_each(|key| assert_eq!(store.exists(key), Ok(true)));
                    put_late(number + 4);
                    stage.set(10 + number);
                    nap(&job, "the other member", || stage.get() == 20);
                    hits.set(hits.get() + late.borrow().len() / 2);
                }
                stage.set(20);
            } else if job.me() == other {
                nap(&job, "the replica", || stage.get() == 2);
                for key in keys.iter().skip(1).step_by(2) {
                    store.put(key, b"value").expect("put");
                }
                store.state.tell_crowded(replica, 0).expect("told");
                stage.set(3);
                nap(&job, "the growth", || stage.get() >= 10);
                if stage.get() < 20 {
                    put_late(stage.get() - 10);
                    stage.set(20);
                }
            }
            nap(&job, "the growth", || {
                if job.me() == one {
                    let _ = job.inject(Fault::Resume(replica));
                }
                stage.get() == 30
            });
            let late = late.borrow().clone();
            for key in keys.iter().chain(&late) {
                assert_eq!(store.exists(key), Ok(true), "step {step}");
            }
            store.close().expect("close");
            let _ = job.leave();
        });
        report.expect_ok();
    }
    assert!(hits.get() > 2, "{} times between the steps", hits.get());
}

/// A lookup begins right after the split, and is stopped before it follows a chain. The replica
/// takes the chains apart meanwhile, and the lookup finds all records from the bucket words that it
/// has loaded: no round goes on before its operation has ended.
#[test]
fn a_lookup_that_began_between_rounds_finds_its_record() {
    for seed in 0..8 {
        let stage = Rc::new(Cell::new(0));
        let report = sim::run(&sim_options(2, seed, Link::Memory), move |job: Job| {
            let options = Options::new().replicas(1).partitions(1).expected_keys(4);
            let store = Store::open(&job, options).expect("open");
            let (state, replica) = (&store.state, store.replicas_of(b"any")[0]);
            let keys: Vec<_> = (0..KEYS).map(key).collect();
            if job.me() == replica {
                state.hold_removal(true);
                job.sleep(Duration::from_millis(20));
                state.hold_removal(true);
                stage.set(1);
                nap(&job, "the keys", || stage.get() == 2);
                state.record_crowded(0);
                state.grow_piece();
                assert_eq!(state.zipped_words().len(), 8, "all buckets are split");
                stage.set(3);
                nap(&job, "the lookup", || stage.get() == 4);
                for _ in 0..20 {
                    state.grow_piece();
                    job.sleep(Duration::from_millis(10));
                }
                assert!(!state.zipped_words().is_empty(), "the lookup is waited for");
                stage.set(5);
                nap(&job, "the end of the lookup", || stage.get() == 6);
                state.hold_removal(false);
                nap(&job, "the growth", || is_grown(&store, 3));
                stage.set(7);
            } else {
                nap(&job, "the replica", || stage.get() == 1);
                keys.iter().for_each(|key| _ = store.put(key, b"value").expect("put"));
                stage.set(2);
                nap(&job, "the split", || stage.get() == 3);
                let op = RecordOp::begin(state).expect("begun");
                let config = op.config(0).expect("replicas");
                let words: Vec<_> = (0..8)
                    .map(|hash| {
                        let found = op.find_bucket(config, config.primary, 0, hash, None);
                        let (_, bucket) = found.expect("a bucket");
                        assert_eq!((bucket.number, bucket.depth), (hash, 1));
                        bucket.word
                    })
                    .collect();
                stage.set(4);
                nap(&job, "the rounds", || stage.get() == 5);
                for key in &keys {
                    let key = state.key_ref(key).expect("a key");
                    let first = words[key.hash as usize & 7].first();
                    let (found, _) = op.find_from(replica, first, &key).expect("read");
                    assert!(found.is_some(), "{:?} is missing", key.key);
                }
                drop(op);
                stage.set(6);
            }
            nap(&job, "the growth", || stage.get() == 7);
            keys.iter().for_each(|key| assert_eq!(store.exists(key), Ok(true)));
            store.close().expect("close");
            let _ = job.leave();
        });
        report.expect_ok();
    }
}

/// A new replica fills, and its index grows, when the last complete replica dies: it gives the
/// index up in the middle of its growth. After the loss is accepted each of its blocks is used
/// once.
#[test]
fn an_index_that_is_given_up_while_it_grows_frees_each_block_once() {
    let hits = Rc::new(Cell::new(0));
    for seed in 0..30u64 {
        let link = if seed % 2 == 0 { Link::Memory } else { Link::Network };
        let (stage, all_hits) = (Rc::new(Cell::new(0)), hits.clone());
        let report = sim::run(&sim_options(4, seed, link), move |job: Job| {
            let options = Options::new().replicas(2).partitions(1).expected_keys(1);
            let store = Store::open(&job, options.slab_len_max(16 << 10)).expect("open");
            let replicas = store.replicas_of(b"any");
            let [first, second] = [replicas[0], replicas[1]];
            let others: Vec<_> = job.view().living().filter(|it| !replicas.contains(it)).collect();
            let wait_for_death = |member| {
                nap(&job, "a death", || !job.view().is_living(member));
            };
            if job.me() == others[0] {
                for number in 0..4 * KEYS {
                    store.put(&key(number), b"value").expect("put");
                }
                job.inject(Fault::Kill(second)).expect("a fault");
                stage.set(1);
            }
            if replicas.contains(&job.me()) {
                nap(&job, "the death", || false);
            }
            wait_for_death(second);
            // The new replica kills the old replica when two of its buckets share nodes.
            let is_filling = store.replicas_of(b"any").contains(&job.me());
            if is_filling {
                let deadline = job.now().after(Duration::from_millis(200));
                while store.state.zipped_words().is_empty() && job.now() < deadline {
                    job.sleep(Duration::from_micros(2 + seed));
                }
                let is_complete = store.repair_status().expect("known").is_repaired();
                let is_zipped = !store.state.zipped_words().is_empty();
                all_hits.set(all_hits.get() + u32::from(is_zipped && !is_complete));
                job.inject(Fault::Kill(first)).expect("a fault");
            }
            wait_for_death(first);
            if job.me() == others[0] {
                nap(&job, "the loss", || match store.accept_loss() {
                    Ok(_) => store.exists(b"any").is_ok(),
                    Err(_) => false,
                });
                for round in 0..3 {
                    for number in 0..4 * KEYS {
                        store.put(&key(number), &[round; 24]).expect("put");
                    }
                    for number in 0..4 * KEYS {
                        let found = store.get(&key(number)).expect("read").expect("there");
                        assert_eq!(found.bytes(), [round; 24], "{number}");
                    }
                    job.sleep(Duration::from_millis(200));
                }
                stage.set(2);
            }
            nap(&job, "the new keys", || stage.get() == 2);
            nap(&job, "the growth", || is_grown(&store, 5));
            let _ = store.close();
            let _ = job.leave();
        });
        report.expect_ok();
    }
    assert!(hits.get() > 5, "{} indexes were given up while they grew", hits.get());
}

/// A member lists keys, again and again, while other members insert and the index grows: each list
/// has each key that was there before exactly once.
#[test]
fn a_list_has_each_key_once_while_an_index_grows() {
    for seed in 0..4u64 {
        let link = if seed % 2 == 0 { Link::Memory } else { Link::Network };
        let (stage, lists) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let count = lists.clone();
        let report = sim::run(&sim_options(3, seed, link), move |job: Job| {
            let options = Options::new().replicas(2).partitions(2).expected_keys(1);
            let store = Store::open(&job, options).expect("open");
            if job.me() == MemberId(0) {
                (0..KEYS).for_each(|number| _ = store.put(&key(number), b"1").expect("put"));
                stage.set(1);
                while stage.get() < 3 {
                    let mut found = store.scan(b"key ").expect("listed");
                    found.sort_unstable();
                    let mut wanted: Vec<_> = (0..KEYS).map(key).collect();
                    wanted.sort_unstable();
                    assert_eq!(found, wanted);
                    lists.set(lists.get() + 1);
                    job.sleep(Duration::from_micros(200));
                }
            } else {
                nap(&job, "the keys", || stage.get() >= 1);
                for number in 0..2 * KEYS {
                    let other = format!("other {} {number}", job.me().0).into_bytes();
                    store.put(&other, b"value").expect("put");
                }
                nap(&job, "the growth", || is_grown(&store, 5));
                stage.set(stage.get() + 1);
            }
            nap(&job, "the end", || stage.get() == 3);
            store.close().expect("close");
            let _ = job.leave();
        });
        report.expect_ok();
        assert!(count.get() > 3, "{} lists", count.get());
    }
}

/// A replica without room for a larger index keeps the index that it has: all keys are found,
/// changed and deleted as before. When another store has given its memory back, the index grows.
#[test]
fn a_replica_without_room_for_a_larger_index_goes_on() {
    const KEYS: usize = 300;
    for seed in 0..6u64 {
        let link = if seed % 2 == 0 { Link::Memory } else { Link::Network };
        let stage = Rc::new(Cell::new(0));
        let mut options = sim_options(2, seed, link);
        options.segment_limit = 1 << 20;
        let report = sim::run(&options, move |job: Job| {
            let options = Options::new().replicas(1).partitions(1).slab_len_max(4 << 10);
            let options = options.expected_keys(64);
            let large = Store::open(&job, options.clone().name("large")).expect("open");
            let store = Store::open(&job, options).expect("open");
            let (state, replica) = (&store.state, store.replicas_of(b"any")[0]);
            let depth = || {
                let buckets = state.root(replica) + state.layout.partition(0) + PARTITION_BUCKETS;
                let load = |at: u64| job.load(Epoch::ANY, replica, at).expect("a word");
                let buckets = load(buckets);
                let tiers = (1..TIERS_MAX).map(|tier| load(state.directory_word(buckets, tier)));
                tiers.take_while(|&tier| tier != 0).count()
            };
            if job.me() == replica {
                state.hold_removal(true);
                job.sleep(Duration::from_millis(20));
                state.hold_removal(true);
                stage.set(1);
                nap(&job, "the keys", || stage.get() == 2);
                for len in [3000, 700, 200, 60, 1] {
                    let fits = |number: u32| {
                        large.put(format!("{len} {number}").as_bytes(), &vec![7; len]).is_ok()
                    };
                    (0..).take_while(|&number| fits(number)).for_each(drop);
                }
                assert!(job.reservable().expect("known") < 64 * 8 * ROOM);
                state.hold_removal(false);
                state.record_crowded(0);
                stage.set(3);
            } else {
                nap(&job, "the replica", || stage.get() == 1);
                (0..KEYS).for_each(|number| _ = store.put(&key(number), b"1").expect("put"));
                stage.set(2);
                nap(&job, "the full replica", || stage.get() == 3);
                job.sleep(Duration::from_millis(20));
                for number in 0..KEYS {
                    assert_eq!(store.exists(&key(number)), Ok(true), "{number}");
                    match number % 3 {
                        0 => assert_eq!(store.delete(&key(number)), Ok(true), "{number}"),
                        _ => _ = store.put(&key(number), b"2").expect("changed"),
                    }
                }
                assert_eq!(depth(), 0, "there is no room");
                stage.set(4);
            }
            nap(&job, "the calls", || stage.get() == 4);
            large.close().expect("close");
            if job.me() == replica {
                nap(&job, "the memory", || job.reservable().expect("known") > 200 << 10);
                stage.set(5);
            } else {
                nap(&job, "the memory", || stage.get() == 5);
                for number in 0..KEYS {
                    assert_eq!(store.exists(&key(number)), Ok(number % 3 != 0), "{number}");
                }
                for number in KEYS..2 * KEYS {
                    store.put(&key(number), b"3").expect("put");
                }
                nap(&job, "the growth", || depth() >= 2);
                for number in 0..2 * KEYS {
                    let is_there = number >= KEYS || number % 3 != 0;
                    assert_eq!(store.exists(&key(number)), Ok(is_there), "{number}");
                }
            }
            store.close().expect("close");
            let _ = job.leave();
        });
        report.expect_ok();
    }
}
