//! Salvage under the simulator: survivors read the memory of the dead, members are stopped at each
//! step, and the memory is damaged. `shm/salvage.rs` has real processes and kills.

use crate::salvage_support::{KEYS, damage_is_named, find, key, options, value, wait_until};
use outlast::engine::Fault;
use outlast::sim::{self, Link, Options as SimOptions};
use outlast::store::{Store, StoreError};
use outlast::{Epoch, Job, MemberId, Time};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn run(test: &str, members: usize, seeds: u64, body: impl Fn(u64, Job) + Clone + 'static) {
    for seed in 0..seeds {
        let mut plan = SimOptions::new(members, seed);
        plan.keeps_dead_segments = true;
        let body = body.clone();
        let report = sim::run(&plan, move |job| body(seed, job));
        assert!(report.is_ok(), "{test}, seed {seed}: {:?} {:#?}", report.outcome, report.panics);
    }
}

#[test]
fn a_damaged_value_is_lost_by_name() {
    run("damage", 2, 40, |_, job| damage_is_named(&job));
}

/// Arbitrary bytes at any place in the memory of a dead member: every call ends, and no wrong value
/// is returned.
#[test]
fn arbitrary_bytes_of_a_dead_member_give_no_wrong_value() {
    let outcomes = Arc::new(Mutex::new([0; 3]));
    let counted = outcomes.clone();
    run("arbitrary", 2, 150, move |seed, job| {
        let store = Store::open(&job, options(1).partitions(4).expected_keys(32)).expect("opened");
        let victim = MemberId(1);
        if job.me() == victim {
            return wait_until(&job, "the end", || false);
        }
        let value = |number: u64| format!("{number} and some more").into_bytes();
        let keys: Vec<Vec<u8>> = (0..40u64).map(|number| key(9, number)).collect();
        for (number, key) in keys.iter().enumerate() {
            store.put(key, &value(number as u64)).expect("put");
        }
        let _: Result<(), StoreError> = store.transaction(|tx| {
            tx.put(&keys[3], &value(3))?;
            tx.put(&keys[4], &value(4))
        });
        // A few words, or a whole range, of what the store has written: most zeros are left alone.
        let mut memory = vec![0; job.segment_len(victim).expect("living") as usize];
        job.get(Epoch::ANY, victim, 0, &mut memory).expect("read");
        let used: Vec<u64> = (0..memory.len() as u64 / 8)
            .filter(|word| memory[*word as usize * 8..][..8] != [0; 8])
            .collect();
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        for _ in 0..1 + seed % 12 {
            let at = used[next() as usize % used.len()] * 8;
            let word = match next() % 4 {
                0 => next(),
                1 => (next() % (memory.len() as u64 * 2)) & !15,
                2 => {
                    memory[at as usize..][..8].try_into().map(u64::from_ne_bytes).unwrap()
                        ^ 1 << (next() % 64)
                }
                _ => used[next() as usize % used.len()] * 8,
            };
            job.put(Epoch::ANY, victim, at, &word.to_ne_bytes()).expect("damaged");
        }
        job.inject(Fault::Kill(victim)).expect("killed");
        wait_until(&job, "the death", || !job.view().is_living(victim));
        for (number, key) in keys.iter().enumerate() {
            let outcome = match store.get(key) {
                Ok(Some(found)) => {
                    assert_eq!(found.bytes(), value(number as u64), "seed {seed}");
                    0
                }
                // An index word was overwritten by another valid word: no checksum covers it.
                Ok(None) => 1,
                Err(StoreError::DataLost { .. }) => 2,
                Err(error) => panic!("{error}"),
            };
            counted.lock().unwrap()[outcome] += 1;
        }
        store.accept_loss().expect("accepted");
        assert_eq!(store.lost_keys(), Ok(vec![]));
        for key in &keys {
            store.put(key, b"new").expect("put");
        }
        store.close().expect("closed");
        let _ = job.leave();
    });
    let [right, absent, lost] = *outcomes.lock().unwrap();
    println!("{right} right, {absent} absent, {lost} lost");
    assert!(right > 1000 && lost > 50, "{right} right, {absent} absent, {lost} lost");
}

/// A writer is stopped at each step of its calls. Meanwhile the only replica dies and is salvaged,
/// and others write. Every acknowledged put is there, and every addition counts once.
#[test]
fn calls_of_a_stopped_writer_are_not_acknowledged_and_lost() {
    let outcomes = Arc::new(Mutex::new([0; 2]));
    for step in 1..240 {
        for seed in 0..16 {
            let mut plan = SimOptions::new(3, seed);
            plan.keeps_dead_segments = true;
            let counted = outcomes.clone();
            let report = sim::run(&plan, move |job| late(&job, step, &counted));
            assert!(
                report.is_ok(),
                "step {step}, seed {seed}: {:?} {:#?}",
                report.outcome,
                report.panics
            );
        }
    }
    let [stopped, all] = *outcomes.lock().unwrap();
    println!("{stopped} of {all} writers were stopped in the middle");
    assert!(stopped > 1000, "{stopped} of {all} writers were stopped in the middle");
}

fn late(job: &Job, step: u64, counted: &Mutex<[u64; 2]>) {
    let store = Store::open(job, options(1).partitions(16).expected_keys(64)).expect("opened");
    let (replica, writer, me) = (MemberId(0), MemberId(1), job.me());
    let at = |member: MemberId, salt: &str| {
        let names = (0..).map(|number| format!("{salt}/{number}").into_bytes());
        names.into_iter().find(|key| store.replicas_of(key) == [member]).expect("a key")
    };
    let (value, sum, begun) = (at(replica, "value"), at(replica, "sum"), at(MemberId(2), "begun"));
    if me == replica {
        // Until it is killed.
        return wait_until(job, "the end", || false);
    }
    let number = |key: &[u8]| store.add(key, 0).expect("read");
    if me == writer {
        let handle = store.handle(&value).expect("a handle");
        handle.put(b"first").expect("put");
        handle.put(b"second").expect("put");
        store.add(&sum, 1).expect("added");
        store.add(&begun, 1).expect("added");
        job.inject(Fault::StopAtStep(step)).expect("planned");
        handle.put(b"third").expect("put");
        assert_eq!(store.get(&value).expect("read").expect("there").bytes(), b"third");
        store.add(&sum, 10).expect("added");
        store.put(&value, b"fourth").expect("put");
        assert_eq!(handle.get().expect("read").expect("there").bytes(), b"fourth");
        store.add(&sum, 100).expect("added");
        let is_late = !job.view().dead.is_empty();
        let mut counted = counted.lock().unwrap();
        counted[0] += u64::from(is_late);
        counted[1] += 1;
        drop(counted);
        store.add(&begun, 10).expect("added");
    } else {
        wait_until(job, "the writer", || number(&begun) > 0);
        job.inject(Fault::Kill(replica)).expect("killed");
        wait_until(job, "the death", || !job.view().is_living(replica));
        let (may_resume, is_over) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (resumer, flags) = (job.clone(), (may_resume.clone(), is_over.clone()));
        let resume = move || {
            while !flags.1.load(Ordering::Relaxed) {
                if flags.0.load(Ordering::Relaxed) {
                    let _ = resumer.inject(Fault::Resume(writer));
                }
                resumer.park(resumer.bell(), resumer.now().after(Duration::from_millis(1)));
            }
        };
        job.spawn("resumer", Box::new(resume)).expect("spawned");
        // The stopped member may be the one that has to salvage it.
        let is_needed = [&value, &sum].iter().any(|key| store.replicas_of(key) == [writer]);
        may_resume.store(is_needed, Ordering::Relaxed);
        // Waits for the salvage.
        store.add(&sum, 1000).expect("added");
        store.get(&value).expect("read");
        may_resume.store(true, Ordering::Relaxed);
        wait_until(job, "the writer", || number(&begun) >= 11);
        assert_eq!(number(&sum), 1111, "after step {step}");
        is_over.store(true, Ordering::Relaxed);
    }
    let _ = store.close();
    let _ = job.leave();
}

/// A member leaves, and another member is killed at the last moment. Replicas of the leaver went to
/// the killed member, and the leaver may be the next replica of its partitions. Nothing is lost, in
/// either order.
#[test]
fn a_death_while_another_member_leaves_loses_nothing() {
    let value = |number: u64| format!("{number} and some more").into_bytes();
    kill_beside_a_leaver(
        3,
        20,
        |step| 5_000 - step * 500,
        move |job, store, at, kill| {
            if job.me() == LEAVER {
                for number in 0..48 {
                    store.put(&key(9, number), &value(number)).expect("put");
                }
                return;
            }
            while job.now() < at {
                job.park(job.bell(), at);
            }
            kill();
            wait_until(job, "both to be gone", || job.epoch() == Epoch(2));
            for number in 0..48 {
                let found =
                    store.get(&key(9, number)).map(|found| found.map(|found| found.into_bytes()));
                assert_eq!(found, Ok(Some(value(number))), "{number}");
            }
        },
    );
}

const LEAVER: MemberId = MemberId(0);

/// Kills member 1 at sixty moments around the end of the leaver, for each seed. `offset` gives the
/// distance from that moment in nanoseconds. `body` is what the leaver does before it leaves, and
/// what the other members do. They get the moment and a function that kills.
fn kill_beside_a_leaver(
    members: usize,
    seeds: u64,
    offset: impl Fn(i64) -> i64,
    body: impl Fn(&Job, &Store, Time, &dyn Fn()) + Clone + 'static,
) {
    let mut counted = [0u64; 2];
    for seed in 0..seeds {
        // A run with this schedule and a late death tells when the leaver goes.
        let (left, _) = leave_and_kill(members, seed, Time(1_000_000_000), body.clone());
        for step in 0..60 {
            let at = Time(left.0.saturating_add_signed(offset(step)));
            let (_, is_before) = leave_and_kill(members, seed, at, body.clone());
            counted[usize::from(is_before)] += 1;
        }
    }
    println!("{counted:?} deaths after and before the leaver was gone");
    assert!(counted.iter().all(|count| *count > 50), "{counted:?}");
}

/// When the leaver has gone, and whether the other member was killed before.
fn leave_and_kill(
    members: usize,
    seed: u64,
    at: Time,
    body: impl Fn(&Job, &Store, Time, &dyn Fn()) + 'static,
) -> (Time, bool) {
    let found = Rc::new(Cell::new((Time::NEVER, false)));
    let (noted, mut plan) = (found.clone(), SimOptions::new(members, seed));
    plan.keeps_dead_segments = true;
    let report = sim::run(&plan, move |job: Job| {
        let store = Store::open(&job, options(1).partitions(16).expected_keys(64)).expect("opened");
        let victim = MemberId(1);
        if job.me() == victim {
            return wait_until(&job, "the end", || false);
        }
        body(&job, &store, at, &|| {
            noted.set((noted.get().0, job.view().is_living(LEAVER)));
            job.inject(Fault::Kill(victim)).expect("killed");
        });
        if job.me() == LEAVER {
            store.leave(job.now().after(Duration::from_secs(20))).expect("left");
            return noted.set((job.now(), noted.get().1));
        }
        let _ = store.close();
        let _ = job.leave();
    });
    assert!(report.is_ok(), "seed {seed}, at {at:?}: {:?} {:#?}", report.outcome, report.panics);
    found.get()
}

/// Two members die at once. Each of the two survivors is the heir of a dead member, and has
/// partitions to salvage that the background of the other survivor needs for its inheritance: they
/// do not wait for each other.
#[test]
fn salvaging_members_do_not_wait_for_each_other() {
    let slowest = Arc::new(Mutex::new(Duration::ZERO));
    let noted = slowest.clone();
    run("heirs", 4, 5, move |_, job| {
        let store = Store::open(&job, options(1).partitions(1024)).expect("opened");
        let (me, dead) = (job.me(), [MemberId(2), MemberId(3)]);
        for number in 0..KEYS {
            store.put(&key(me.0, number), &value(me.0, number)).expect("put");
        }
        store.add(b"put", 1).expect("added");
        wait_until(&job, "all", || store.add(b"put", 0).expect("read") == 4);
        job.sleep(Duration::from_millis(20));
        if dead.contains(&me) {
            return wait_until(&job, "the end", || false);
        }
        dead.iter().for_each(|&member| drop(job.inject(Fault::Kill(member))));
        wait_until(&job, "the deaths", || job.epoch() == Epoch(2));
        assert_ne!(store.heir_of(dead[0]), store.heir_of(dead[1]), "each has a task");
        let began = job.now();
        // The keys that the other survivor has to salvage come first, so that only the background
        // salvages here meanwhile.
        let all = (0..4).flat_map(|member| (0..KEYS).map(move |number| (member, number)));
        let mut all: Vec<(u32, u64)> = all.collect();
        all.sort_by_key(|&(member, number)| store.replicas_of(&key(member, number)) == [me]);
        for (member, number) in all {
            let found = store.get(&key(member, number)).expect("read").expect("there");
            assert_eq!(found.bytes(), value(member, number));
        }
        let took = job.now().since(began);
        let mut slowest = noted.lock().unwrap();
        *slowest = took.max(*slowest);
        drop(slowest);
        let _ = store.close();
        let _ = job.leave();
    });
    let slowest = *slowest.lock().unwrap();
    println!("{slowest:?} at most");
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
}

/// A member leaves and another is killed while two others add: each acknowledged addition counts,
/// and counts once.
#[test]
fn additions_count_once_while_a_member_leaves_and_another_dies() {
    // The additions that were acknowledged to each of the two members, at the end of a run.
    let added = Rc::new(Cell::new([[0i64; 8]; 2]));
    kill_beside_a_leaver(
        4,
        10,
        |step| 10_000 - step * 700,
        move |job, store, at, kill| {
            if job.me() == LEAVER {
                return;
            }
            let (mine, mut own) = (job.me().index() - 2, [0; 8]);
            let until = at.after(Duration::from_millis(2)).min(Time(100_000_000));
            let mut is_killed = mine != 0;
            for number in 0.. {
                let now = job.now();
                if !is_killed && now >= at.min(until) {
                    is_killed = true;
                    kill();
                }
                if now >= until {
                    break;
                }
                store.add(&key(9, number % 8), 1).expect("added");
                own[number as usize % 8] += 1;
                // Without a death this goes on for long.
                if job.now() < Time(at.0.saturating_sub(200_000)) {
                    job.sleep(Duration::from_micros(50));
                }
            }
            let mut both = added.get();
            both[mine] = own;
            added.set(both);
            store.add(b"done", 1).expect("added");
            wait_until(job, "the other", || store.add(b"done", 0).expect("read") == 2);
            for number in 0..8 {
                let sum = store.add(&key(9, number), 0).expect("read");
                let [first, second] = added.get().map(|sums| sums[number as usize]);
                assert_eq!(sum, first + second, "{number}");
            }
            store.add(b"read", 1).expect("added");
            wait_until(job, "the other", || store.add(b"read", 0).expect("read") == 2);
        },
    );
}

/// Some keys whose only replica is this member. Returns when all members know them, so that no
/// member is killed before.
fn keys_at(job: &Job, store: &Store, member: MemberId, count: usize) -> Vec<Vec<u8>> {
    let names = (0..).map(|number| format!("key/{number}").into_bytes());
    let keys = names.filter(|key| store.replicas_of(key) == [member]).take(count).collect();
    store.add(b"ready", 1).expect("added");
    // Another member may have seen that already, and have damaged the segment of this counter as
    // well.
    wait_until(job, "all", || {
        store.add(b"ready", 0).is_ok_and(|count| count == job.members() as i64)
            || job.epoch() != Epoch(0)
    });
    keys
}

/// The only replica of a key dies, with a damaged value of the key.
fn kill_with_damage(job: &Job, store: &Store, victim: MemberId, key: &[u8]) {
    if job.me() == victim {
        return wait_until(job, "the end", || false);
    }
    if job.me().0 == 0 {
        store.put(key, b"this is the value of a key").expect("put");
        damage(job, victim, b"this is the value of a key");
        job.inject(Fault::Kill(victim)).expect("killed");
    }
    wait_until(job, "the death", || !job.view().is_living(victim));
}

/// Overwrites a byte of each place in a member's memory where these bytes are.
fn damage(job: &Job, member: MemberId, bytes: &[u8]) {
    let places = find(job, member, bytes);
    assert!(!places.is_empty(), "nothing to damage");
    places.iter().for_each(|place| job.put(Epoch::ANY, member, place + 9, b"!").expect("damaged"));
}

/// The salvaging member finds a damaged value and dies when it has told some of the others, or
/// none, or all. Whichever member salvages after it, every member learns which key is lost, and can
/// accept the loss.
#[test]
fn all_members_learn_of_damage_though_salvaging_members_die() {
    let deaths = Arc::new(Mutex::new(0));
    for step in 0..600 {
        let counted = deaths.clone();
        run("damage", 4, 4, move |_, job| {
            let store =
                Store::open(&job, options(1).partitions(16).expected_keys(64)).expect("opened");
            let (me, victim) = (job.me(), MemberId(1));
            // Of different partitions, so that different members salvage the key, and other members
            // after them.
            let key = keys_at(&job, &store, victim, 4).remove(step as usize % 4);
            kill_with_damage(&job, &store, victim, &key);
            if store.replicas_of(&key) == [me] && job.epoch() == Epoch(1) {
                job.inject(Fault::DieAtStep(1 + step / 4)).expect("planned");
                // A salvage that is over takes no steps: its member dies before the others look.
                job.sleep(Duration::from_millis(400));
                (0..=step / 4).for_each(|_| drop(job.load(Epoch::ANY, me, 0)));
            }
            // Long enough for all messages.
            job.sleep(Duration::from_millis(500));
            *counted.lock().unwrap() += u64::from(job.epoch() == Epoch(2));
            let lost = StoreError::DataLost { partition: store.partition_of(&key).expect("a key") };
            let first = job.view().living().next().expect("a member");
            let last = job.view().living().last().expect("a member");
            if me == last {
                assert_eq!(store.lost_keys(), Ok(vec![key.clone()]), "{me}");
                assert_eq!(store.get(&key), Err(lost), "{me}");
                assert_eq!(store.accept_loss().map(|lost| lost.len()), Ok(1), "{me}");
                assert_eq!(store.get(&key), Ok(None));
            } else if me == first {
                wait_until(&job, "the acceptance", || store.get(&key) == Ok(None));
                assert_eq!(store.lost_keys(), Ok(vec![]));
            }
            let _ = store.close();
            let _ = job.leave();
        });
    }
    let deaths = *deaths.lock().unwrap();
    assert!(deaths > 100, "{deaths} saw a second death");
}

/// A loss that another member has accepted is not reported as lost after the next death.
#[test]
fn an_accepted_loss_is_not_reported_again() {
    run("told", 5, 20, |_, job| {
        let store = Store::open(&job, options(1).partitions(8).expected_keys(16)).expect("opened");
        let told: Arc<Mutex<Vec<usize>>> = Arc::default();
        let sink = told.clone();
        store.on_loss(move |lost| sink.lock().unwrap().extend(lost));
        let (me, victims) = (job.me(), [MemberId(1), MemberId(2)]);
        let keys = keys_at(&job, &store, victims[0], 1);
        if victims.contains(&me) {
            return wait_until(&job, "the end", || false);
        }
        if me.0 == 0 {
            store.put(&keys[0], b"this is the value of a key").expect("put");
            damage(&job, victims[0], b"this is the value of a key");
            job.inject(Fault::Kill(victims[0])).expect("killed");
        }
        let partition = store.partition_of(&keys[0]).expect("a key");
        wait_until(&job, "the listener", || told.lock().unwrap().contains(&partition));
        store.add(b"told", 1).expect("added");
        if me.0 == 0 {
            wait_until(&job, "the others", || store.add(b"told", 0).expect("read") == 3);
            assert_eq!(store.accept_loss(), Ok(vec![partition]));
        }
        wait_until(&job, "the acceptance", || store.get(&keys[0]) == Ok(None));
        job.sleep(Duration::from_millis(100));
        told.lock().unwrap().clear();
        if me.0 == 0 {
            job.inject(Fault::Kill(victims[1])).expect("killed");
        }
        wait_until(&job, "the death", || job.epoch() == Epoch(2));
        job.sleep(Duration::from_millis(500));
        assert_eq!(*told.lock().unwrap(), [0_usize; 0], "{me}");
        let _ = store.close();
        let _ = job.leave();
    });
}

/// A key is damaged, and later its whole partition: both losses are reported and can be accepted.
#[test]
fn a_partition_can_be_lost_after_a_key_of_it() {
    run("both", 3, 20, |_, job| {
        let store = Store::open(&job, options(1).partitions(4).expected_keys(16)).expect("opened");
        let (me, victim) = (job.me(), MemberId(1));
        let key = keys_at(&job, &store, victim, 1).remove(0);
        let partition = store.partition_of(&key).expect("a key");
        kill_with_damage(&job, &store, victim, &key);
        let lost = Err(StoreError::DataLost { partition });
        assert_eq!(store.get(&key), lost);
        let second = store.replicas_of(&key)[0];
        job.sleep(Duration::from_millis(100));
        if me == second {
            return wait_until(&job, "the end", || false);
        }
        // The bytes of the key itself: the index cannot be read any more.
        let places = find(&job, second, &key);
        places.iter().for_each(|&place| job.put(Epoch::ANY, second, place, b"!").expect("damaged"));
        job.inject(Fault::Kill(second)).expect("killed");
        wait_until(&job, "the death", || job.epoch() == Epoch(2));
        assert_eq!(store.get(&key), lost);
        assert_eq!(store.lost_partitions(), Ok(vec![partition]));
        assert_eq!(store.lost_keys(), Ok(vec![]), "no replica can name it");
        assert_eq!(store.accept_loss(), Ok(vec![partition]));
        assert_eq!((store.get(&key), store.lost_keys()), (Ok(None), Ok(vec![])));
        let _ = store.close();
        let _ = job.leave();
    });
}

/// No snapshot is taken of a store with a lost partition, and the error says so.
#[test]
fn a_snapshot_reports_a_lost_partition() {
    use outlast::snapshot::{self, SnapshotError, Snapshots};
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_path_buf();
    run("snapshot", 3, 20, move |_, job| {
        let store = Store::open(&job, options(1).partitions(4).expected_keys(16)).expect("opened");
        let snapshots = Snapshots::open(&store, &path, snapshot::Options::new()).expect("opened");
        let (me, victim) = (job.me(), MemberId(1));
        let key = keys_at(&job, &store, victim, 1).remove(0);
        let partition = store.partition_of(&key).expect("a key");
        if me == victim {
            return wait_until(&job, "the end", || false);
        }
        if me.0 == 0 {
            store.put(&key, b"this is the value of a key").expect("put");
            let places = find(&job, victim, &key);
            places
                .iter()
                .for_each(|&place| job.put(Epoch::ANY, victim, place, b"!").expect("damaged"));
            job.inject(Fault::Kill(victim)).expect("killed");
            wait_until(&job, "the death", || !job.view().is_living(victim));
            let said = snapshots.take().expect_err("lost");
            let lost = match &said {
                SnapshotError::Store(StoreError::DataLost { partition }) => Some(*partition),
                _ => None,
            };
            assert_eq!(lost, Some(partition), "{said:?}");
            assert_eq!(store.accept_loss(), Ok(vec![partition]));
            snapshots.take().expect("taken");
        }
        let _ = store.close();
        let _ = job.leave();
    });
}

/// While a member is about to leave, data goes to members that would not be replicas otherwise. If
/// the last complete replica was one of these, its replica is salvaged, and not an older replica.
#[test]
fn a_replica_made_because_of_a_leaver_is_salvaged() {
    for seed in 0..20 {
        let mut plan = SimOptions::new(6, seed);
        plan.keeps_dead_segments = true;
        plan.domains = ["b", "b", "a", "b", "c", "c"].map(String::from).to_vec();
        let report = sim::run(&plan, move |job: Job| {
            let options = options(2).partitions(64).expected_keys(64).repair_share(10);
            let store = Store::open(&job, options).expect("opened");
            let (leaver, driver) = (MemberId(0), MemberId(5));
            let keys: Vec<Vec<u8>> = (0..64).map(|number| key(9, number)).collect();
            if job.me() != driver {
                if job.me() == leaver {
                    // It begins to leave, but has no time to complete it.
                    let left = store.leave(job.now());
                    assert!(matches!(left, Err(StoreError::Timeout { .. })), "{left:?}");
                }
                wait_until(&job, "the end", || store.add(b"end", 0).expect("read") > 0);
                let _ = store.close();
                let _ = job.leave();
                return;
            }
            let put_all = |value: &[u8]| {
                for key in &keys {
                    store.put(key, value).expect("put");
                }
            };
            put_all(b"old");
            job.sleep(Duration::from_millis(10));
            for victim in [1, 2, 3].map(MemberId) {
                if victim == MemberId(2) {
                    let until = job.now().after(Duration::from_secs(20));
                    assert!(store.wait_repaired(until).expect("known").is_repaired());
                }
                job.inject(Fault::Kill(victim)).expect("killed");
                wait_until(&job, "the death", || !job.view().is_living(victim));
                if victim == MemberId(2) {
                    put_all(b"new");
                }
            }
            for key in &keys {
                let found = store.get(key).map(|found| found.map(|found| found.into_bytes()));
                assert_eq!(found, Ok(Some(b"new".to_vec())), "{}", String::from_utf8_lossy(key));
            }
            store.add(b"end", 1).expect("added");
            let _ = store.close();
            let _ = job.leave();
        });
        report.expect_ok();
    }
}

/// If the engine cannot read the memory of the dead, the store is not opened with salvage.
#[test]
fn salvage_needs_an_engine_that_keeps_dead_segments() {
    for (link, remains) in [(Link::Network, true), (Link::Memory, false)] {
        let mut plan = SimOptions::new(2, 1).link(link);
        plan.keeps_dead_segments = remains;
        let report = sim::run(&plan, |job| {
            let error = Store::open(&job, options(1)).expect_err("refused");
            assert!(error.to_string().contains("salvage needs an engine"), "{error}");
            let _ = job.leave();
        });
        report.expect_ok();
    }
}

/// The listeners of two members, which run in their backgrounds, each read a key of a partition
/// that the other member has to salvage after a further death. Neither waits for the other: a call
/// of a listener that waits does the work of its background.
#[test]
fn listeners_that_wait_for_each_others_salvage_go_on() {
    run("listeners", 4, 20, |_, job| {
        let [first, second] = [2, 3].map(MemberId);
        let store = Store::open(&job, options(1).partitions(64)).expect("opened");
        if job.me() == first || job.me() == second {
            return wait_until(&job, "its death", || false);
        }
        let other = MemberId(1 - job.me().0);
        let keys: Vec<Vec<u8>> = (0..200).map(|number| key(9, number)).collect();
        if job.me() == MemberId(0) {
            for (number, key) in keys.iter().enumerate() {
                store.put(key, format!("value {number} of a key").as_bytes()).expect("put");
            }
            let is_at_first = |key: &&Vec<u8>| store.replicas_of(key) == [first];
            let index = keys.iter().position(|key| is_at_first(&key)).expect("some key");
            for place in find(&job, first, format!("value {index} of a key").as_bytes()) {
                job.put(Epoch::ANY, first, place, b"!").expect("damaged");
            }
        }
        let [is_asked, is_done] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (asked, done) = (is_asked.clone(), is_done.clone());
        let (listener, clock) = (store.clone(), job.clone());
        let at_second: Vec<Vec<u8>> =
            keys.into_iter().filter(|key| store.replicas_of(key) == [second]).collect();
        store.on_loss(move |_| {
            if asked.swap(true, Ordering::SeqCst) {
                return;
            }
            wait_until(&clock, "the second death", || !clock.view().is_living(second));
            let is_elsewhere = |key: &&Vec<u8>| listener.replicas_of(key) == [other];
            let key = at_second.iter().find(is_elsewhere).expect("some key");
            done.store(listener.get(key).is_ok_and(|found| found.is_some()), Ordering::SeqCst);
        });
        job.sleep(Duration::from_millis(10));
        if job.me() == MemberId(0) {
            job.inject(Fault::Kill(first)).expect("a fault");
        }
        wait_until(&job, "the listener", || is_asked.load(Ordering::SeqCst));
        job.sleep(Duration::from_secs(1));
        if job.me() == MemberId(0) {
            job.inject(Fault::Kill(second)).expect("a fault");
        }
        wait_until(&job, "the second death", || !job.view().is_living(second));
        // Virtual time, which the simulator skips: far below the time limit, at which a listener
        // that waits for another would give up.
        job.sleep(Duration::from_secs(5));
        assert!(is_done.load(Ordering::SeqCst), "no listener waits for another");
        let _ = store.close();
        let _ = job.leave();
    });
}
