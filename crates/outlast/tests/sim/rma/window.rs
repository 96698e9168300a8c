//! Windows under the simulator, over many seeds and both links: the scenarios of
//! [`crate::window_scenarios`], which the shm and mpi engines run too, and random programs and
//! schedules that need simulated time. A failing run prints the command that replays it.

use crate::reexecution::this_test;
use crate::simulation::{replay, seeds};
use outlast::rma::{Communicator, LockKind, Update, Window, WindowError};
use outlast::sim::{self, Action, Cost, Link, Options, Random, When};

use outlast::{Job, MemberId, Time};

use crate::window_scenarios::{self, MEMBERS, SCENARIOS, scenario, word};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Runs a simulation. A panic, a deadlock or an endless call in it is a failure, reported with the
/// command that replays it.
#[track_caller]
fn simulate(test: &str, options: &Options, body: impl Fn(Job) + 'static) -> sim::Report {
    let report = sim::run(options, body);
    if !report.is_ok() {
        let hung: Vec<String> = report.hung.iter().map(ToString::to_string).collect();
        panic!(
            "seed {} on {:?}: {:?} {:#?} {hung:#?}\n{}",
            options.seed,
            options.link,
            report.outcome,
            report.panics,
            replay(test, options.seed)
        );
    }
    report
}

/// Even seeds run over memory, odd seeds over a network. In half of the runs members learn of a
/// death soon, in the others at very different times.
fn options_for(seed: u64) -> Options {
    let mut options = Options::new(MEMBERS, seed);
    options.link = Link::of_seed(seed);
    if seed % 4 < 2 {
        options.detection = Duration::from_nanos(100)..=Duration::from_millis(2);
    }
    // In some runs members are stopped for a while, at random steps: that may delay calls, but has
    // no other effect.
    if seed % 8 >= 4 {
        let mut random = Random::new(seed ^ 0x0073_746F_7073);
        for _ in 0..3 {
            let victim = MemberId(random.below(MEMBERS as u64) as u32);
            let when = When::AtStep(victim, 1 + random.below(1500));
            let pause = Duration::from_nanos(random.magnitude(1000, 20_000_000));
            options = options.fault(when, Action::StopFor(victim, pause));
        }
    }
    options
}

/// Each scenario, over all seeds, as a test of its own, so that a failure names its scenario.
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                let run = scenario(stringify!($name));
                for seed in seeds(60) {
                    simulate(this_test!(), &options_for(seed), move |job| run(&job));
                }
            }
        )*

        #[test]
        fn every_scenario_is_a_test() {
            let names = [$(stringify!($name)),*];
            assert_eq!(names.len(), SCENARIOS.len());
        }
    };
}

scenarios!(
    operations_have_their_documented_effect,
    bad_input_changes_nothing,
    members_may_expose_no_memory,
    a_failed_creation_fails_at_all_members,
    the_lock_of_a_dead_exclusive_holder_is_taken_over_once,
    a_holder_dies_while_others_wait,
    a_dead_shared_holder_is_reported,
    a_dead_holder_is_reported_to_all_shared_holders,
    a_waiter_that_gives_up_leaves_the_report_of_a_death_to_the_next,
    a_forced_successor_leaves_the_report_of_a_death_to_the_next,
    a_forced_holder_wakes_late,
    a_forced_shared_holder_wakes_late,
    a_lock_times_out_and_names_its_holder,
    an_interrupt_ends_a_lock_wait,
    a_blocking_put_is_visible_when_it_returns,
    a_target_dies_under_every_operation,
    a_target_dies_while_its_lock_is_waited_for,
    a_revoke_releases_the_waiters_of_a_window,
    a_revoked_window_goes_on_after_a_shrink,
    a_window_shrinks_and_its_communicator_does_not,
    an_open_window_needs_no_lock,
    a_locked_window_is_not_freed,
    a_lock_of_a_dead_member_does_not_keep_a_window,
    others_read_while_a_member_grows,
    ranges_are_attached_and_detached_under_access,
    failures_are_told_to_chosen_members,
    shared_locks_coexist_and_an_exclusive_lock_excludes,
);

// ---- Random programs.

type Log<T> = Rc<RefCell<T>>;

/// The members between lock and unlock, each with the kind of its lock.
#[derive(Default)]
struct Inside {
    members: BTreeMap<MemberId, LockKind>,
    entries: u64,
    takeovers: u64,
}

/// Members lock the memory of rank 0, in both ways, and are killed and stopped at any step. A
/// member inside never meets a living member that it excludes. The guarded words are equal, unless
/// the lock reported that its holder died. Every call ends.
#[test]
fn locks_exclude_under_deaths_and_stops() {
    let total: Log<Inside> = Rc::default();
    for seed in seeds(300) {
        let mut random = Random::new(seed ^ 0x6C6F_636B);
        let mut options = Options::new(2 + random.below(5) as usize, seed);
        options.link = Link::of_seed(seed);
        options.time_limit = Duration::from_secs(2);
        let (kills, stops) = (random.below(4) as usize, random.below(4) as usize);
        let options = options.random_faults(kills, stops, 1 + random.below(1200));
        let inside: Log<Inside> = Rc::default();
        let log = inside.clone();
        simulate(this_test!(), &options, move |job| exclude(&job, &log));
        let inside = inside.borrow();
        total.borrow_mut().entries += inside.entries;
        total.borrow_mut().takeovers += inside.takeovers;
    }
    let total = total.borrow();
    println!("{} times inside, {} of them after a death", total.entries, total.takeovers);
    assert!(total.takeovers > 0 || seeds(300).count() < 100, "no lock was ever taken over");
}

fn exclude(job: &Job, log: &Log<Inside>) {
    let comm = Communicator::world(job).unwrap();
    let window = match Window::allocate(&comm, 64) {
        Ok(window) => window,
        Err(error) => {
            assert!(is_excused(&error), "{error:?}");
            let _ = job.leave();
            return;
        }
    };
    for round in 0..5 {
        let kind = if (comm.rank() + round).is_multiple_of(3) {
            LockKind::Shared
        } else {
            LockKind::Exclusive
        };
        let mut is_whole = true;
        match window.lock(0, kind) {
            Ok(()) => {}
            Err(WindowError::Abandoned { by, .. }) => {
                let failed = window.get_failed();
                assert!(by.iter().all(|rank| failed.contains(rank)), "{by:?} not in {failed:?}");
                is_whole = false;
            }
            Err(error) => {
                assert!(is_excused(&error), "{error:?}");
                continue;
            }
        }
        // Read before the log is borrowed, because other members may run during the call.
        let dead = window_scenarios::dead_members(&window);
        {
            let mut inside = log.borrow_mut();
            inside.entries += 1;
            inside.takeovers += u64::from(!is_whole);
            for (&other, &other_kind) in &inside.members {
                let may_both = kind == LockKind::Shared && other_kind == LockKind::Shared;
                assert!(
                    may_both || dead.contains(&other),
                    "{kind:?} beside {other}, {other_kind:?}"
                );
            }
            inside.members.insert(job.me(), kind);
        }
        let is_through = change(&window, kind, is_whole);
        log.borrow_mut().members.remove(&job.me());
        match window.unlock(0) {
            Ok(()) => {}
            Err(error) => assert!(is_excused(&error), "{error:?}"),
        }
        if !is_through {
            break;
        }
    }
    match window.close() {
        Ok(()) => {}
        Err(error) => assert!(is_excused(&error), "{error:?}"),
    }
    let _ = job.leave();
}

/// Changes or reads two words that are equal whenever no member is inside exclusively. Returns
/// whether the target lives.
fn change(window: &Window, kind: LockKind, is_whole: bool) -> bool {
    // The outcome of a call that timed out is unknown, so the call is repeated: the lock is still
    // held.
    let again = |call: &mut dyn FnMut() -> Result<u64, WindowError>| loop {
        match call() {
            Ok(value) => return Some(value),
            Err(WindowError::Timeout { .. }) => {}
            Err(WindowError::ProcFailed { .. }) => return None,
            Err(error) => panic!("{error:?}"),
        }
    };
    let read = |offset| again(&mut || window.fetch_and_op(0, offset, Update::Keep, 0u64));
    let (Some(first), Some(second)) = (read(0), read(32)) else { return false };
    if is_whole {
        assert_eq!(first, second, "{kind:?}");
    }
    if kind == LockKind::Shared {
        return true;
    }
    let next = first.max(second) + 1;
    for offset in [0, 32] {
        if again(&mut || window.put_blocking(0, offset, &next.to_le_bytes()).map(|()| 0)).is_none()
        {
            return false;
        }
    }
    true
}

/// Errors that are allowed when members die or are stopped for longer than the time limit.
fn is_excused(error: &WindowError) -> bool {
    use outlast::rma::Error;
    match error {
        WindowError::ProcFailed { .. }
        | WindowError::Timeout { .. }
        | WindowError::LockTimeout { .. }
        | WindowError::Revoked
        | WindowError::Engine(outlast::Error::Ended) => true,
        WindowError::Communicator(error) => {
            error.is_failure() || matches!(error, Error::Mismatched { .. })
        }
        _ => false,
    }
}

/// Some members take locks away from others at random. A member only loses a lock that was taken
/// away from it: what the old holders still do, even much later, does not touch the locks of the
/// new holders. At the end no stamp of a living member is left.
#[test]
fn locks_can_be_forced_at_any_time() {
    for seed in seeds(300) {
        let mut random = Random::new(seed ^ 0x666F_7263);
        let mut options = options_for(seed);
        let has_deaths = random.chance(2);
        if has_deaths {
            options = options.random_faults(1, 1, 600);
        }
        let forced: Log<Forced> = Rc::default();
        let log = forced.clone();
        simulate(this_test!(), &options, move |job| force(&job, seed, &log));
        let forced = forced.borrow();
        for (rank, lost) in &forced.lost {
            let taken = forced.taken.get(rank).copied().unwrap_or(0);
            // A member that died did not report what it took.
            assert!(
                has_deaths || *lost <= taken,
                "seed {seed}: rank {rank} lost {lost} locks of {taken} taken"
            );
        }
    }
}

/// A holder is stopped at each step of its unlock, its lock is taken away and taken by another
/// member, and it wakes: the lock of the new holder is untouched, even if the old holder had just
/// read that it still held the lock.
#[test]
fn a_holder_that_is_forced_inside_its_unlock_does_no_harm() {
    let mut lost = 0;
    for seed in seeds(120) {
        let step = 1 + seed / 2 % 60;
        let options = Options::new(3, seed).link(Link::of_seed(seed));
        let results: Log<u64> = Rc::default();
        let log = results.clone();
        simulate(this_test!(), &options, move |job| {
            let comm = Communicator::world(&job).unwrap();
            let window = Window::allocate(&comm, 64).unwrap();
            let kind = if seed.is_multiple_of(4) { LockKind::Shared } else { LockKind::Exclusive };
            match comm.rank() {
                1 => {
                    window.lock(0, kind).unwrap();
                    comm.send(2, 0, b"").unwrap();
                    job.inject(outlast::engine::Fault::StopAtStep(step)).unwrap();
                    match window.unlock(0) {
                        Ok(()) => {}
                        Err(WindowError::LockLost { target: 0 }) => *log.borrow_mut() += 1,
                        other => panic!("{other:?}"),
                    }
                    // If it was not stopped yet, it is stopped here, and rank 0 wakes it.
                    for _ in 0..80 {
                        let _ = job.epoch();
                    }
                    comm.send(0, 1, b"").unwrap();
                }
                2 => {
                    comm.receive(1, 0).unwrap();
                    window_scenarios::pause(&job, Duration::from_millis(2));
                    window.force_unlock(0).unwrap();
                    window.lock(0, LockKind::Exclusive).unwrap();
                    for _ in 0..3 {
                        job.inject(outlast::engine::Fault::Resume(MemberId(1))).unwrap();
                        window_scenarios::pause(&job, Duration::from_millis(2));
                        window.check_lock(0).unwrap();
                        window.put_blocking(0, 0, &[2; 8]).unwrap();
                    }
                    window.unlock(0).unwrap();
                    comm.send(0, 0, b"").unwrap();
                }
                _ => {
                    comm.receive(2, 0).unwrap();
                    window_scenarios::wait_until(&job, "rank 1 is through", || {
                        job.inject(outlast::engine::Fault::Resume(MemberId(1))).unwrap();
                        comm.probe(1, 1).unwrap().is_some()
                    });
                }
            }
            comm.agree_despite_failures(1).unwrap();
            window.close().unwrap();
            comm.agree_despite_failures(1).unwrap();
            job.leave().unwrap();
        });
        lost += *results.borrow();
    }
    assert!(lost > 0 || seeds(120).count() < 100, "no holder was ever forced inside of its unlock");
}

/// The number of locks that each rank reports as lost, and the number that others report to have
/// taken from it.
#[derive(Default)]
struct Forced {
    lost: BTreeMap<usize, u64>,
    taken: BTreeMap<usize, u64>,
}

fn force(job: &Job, seed: u64, log: &Log<Forced>) {
    let comm = Communicator::world(job).unwrap();
    let Ok(window) = Window::open(&comm, 64) else {
        let _ = job.leave();
        return;
    };
    let mut random = Random::new(seed ^ u64::from(job.me().0) << 32);
    for _ in 0..6 {
        let target = random.below(2) as usize;
        let result = match random.below(3) {
            0 => window.force_unlock(target).map(|lost| {
                for rank in lost {
                    *log.borrow_mut().taken.entry(rank).or_default() += 1;
                }
            }),
            choice => {
                let kind = if choice == 1 { LockKind::Exclusive } else { LockKind::Shared };
                match window.lock_within(target, kind, Duration::from_millis(1)) {
                    Ok(()) | Err(WindowError::Abandoned { .. }) => {
                        let put = window.put(target, 8, &[1; 8]);
                        put.and_then(|()| window.unlock(target))
                    }
                    Err(error) => Err(error),
                }
            }
        };
        match result {
            Ok(()) => {}
            Err(WindowError::LockLost { .. }) => {
                *log.borrow_mut().lost.entry(comm.rank()).or_default() += 1;
            }
            Err(error) => assert!(is_excused(&error), "{error:?}"),
        }
        if let Err(error) = window.unlock(target) {
            let expected =
                matches!(error, WindowError::NotLocked { .. } | WindowError::LockLost { .. });
            assert!(expected || is_excused(&error), "{error:?}");
        }
    }
    let _ = comm.agree_despite_failures(1);
    for target in [0, 1] {
        if let Ok(holders) = window.holders(target) {
            // After a stop beyond the time limit a release may still be in flight.
            let failed = window.get_failed();
            let late = job.now() > Time(20_000_000_000);
            assert!(
                late || holders.iter().all(|rank| failed.contains(rank)),
                "{holders:?} at {target}"
            );
        }
    }
    if let Err(error) = window.close() {
        assert!(is_excused(&error), "{error:?}");
    }
    let _ = job.leave();
}

/// Members die while the window is made, used and freed: all survivors have it or none has it, and
/// all calls end.
#[test]
fn windows_are_made_and_freed_under_deaths() {
    for seed in seeds(400) {
        let mut random = Random::new(seed ^ 0x6D61_6B65);
        let mut options = Options::new(2 + random.below(6) as usize, seed);
        options.link = Link::of_seed(seed);
        let kills = 1 + random.below(3) as usize;
        let options = options.random_faults(kills, 0, 1 + random.below(400));
        let made: Log<Vec<(MemberId, bool)>> = Rc::default();
        let survived: Log<Vec<MemberId>> = Rc::default();
        let (log, survivors) = (made.clone(), survived.clone());
        simulate(this_test!(), &options, move |job| {
            let comm = Communicator::world(&job).unwrap();
            let before = job.reserve(64).unwrap();
            job.release(before, 64);
            let window = Window::open(&comm, 256);
            log.borrow_mut().push((job.me(), window.is_ok()));
            match &window {
                // No member is stopped, so no call may time out.
                Err(error) => {
                    let is_late = matches!(error, WindowError::Timeout { .. });
                    assert!(is_excused(error) && !is_late, "{error:?}");
                }
                Ok(window) => {
                    for rank in 0..comm.size() {
                        if let Err(error) = window.put(rank, 0, &[1; 64]) {
                            assert_eq!(error, WindowError::ProcFailed { ranks: vec![rank] });
                        }
                    }
                    let _ = window.flush_all();
                    window.shrink().unwrap();
                    window.close().unwrap();
                }
            }
            let after = job.reserve(64).unwrap();
            assert_eq!(before, after, "all memory was given back after {:?}", window.err());
            // No member leaves before all are done: leaving is a death for the others.
            let _ = comm.agree_despite_failures(1);
            survivors.borrow_mut().push(job.me());
            job.leave().unwrap();
        });
        let survived = survived.borrow();
        let made: Vec<_> =
            made.borrow().iter().copied().filter(|(member, _)| survived.contains(member)).collect();
        assert!(
            made.iter().all(|(_, is_made)| *is_made == made[0].1),
            "seed {seed}: some have the window and some do not: {made:?}"
        );
    }
}

/// Over a network, a target is stopped for longer than the time limit. Calls report the timeout.
/// When the target goes on, nothing of these calls is in the way.
#[test]
fn a_stopped_target_times_out_and_nothing_stays_behind() {
    for seed in seeds(60) {
        let mut options = Options::new(MEMBERS, seed).link(Link::Network);
        options.time_limit = Duration::from_millis(100);
        simulate(this_test!(), &options, |job| {
            let comm = Communicator::world(&job).unwrap();
            let window = Window::open(&comm, 64).unwrap();
            comm.barrier().unwrap();
            // All members have left the barrier before the stop, because it needs all of them.
            if comm.rank() != 2 {
                comm.send(2, 0, b"").unwrap();
            } else {
                [0, 1, 3].iter().for_each(|&rank| drop(comm.receive(rank, 0).unwrap()));
            }
            let stopped = WindowError::Timeout {
                rank: 1,
                member: MemberId(1),
                limit: Duration::from_millis(100),
            };
            if comm.rank() == 2 {
                job.inject(outlast::engine::Fault::Stop(MemberId(1))).unwrap();
                assert_eq!(window.lock(1, LockKind::Exclusive), Err(stopped.clone()));
                assert_eq!(window.lock(1, LockKind::Shared), Err(stopped.clone()));
                assert_eq!(window.put_blocking(1, 0, &[1; 8]), Err(stopped.clone()));
                assert_eq!(window.put(1, 8, &[1; 8]), Ok(()), "complete only at the flush");
                assert_eq!(window.flush(1), Err(stopped));
                window.flush(0).unwrap();
                job.inject(outlast::engine::Fault::Resume(MemberId(1))).unwrap();
                window_scenarios::wait_until(&job, "what was given up is over", || {
                    window.holders(1).is_ok_and(|holders| holders.is_empty())
                });
                window.lock(1, LockKind::Exclusive).unwrap();
                assert_eq!(word(&window, 1, 0), 0x0101_0101_0101_0101);
                window.unlock(1).unwrap();
            }
            // The others wait as long as needed: they are in `free`, which they call again and
            // again.
            let is_late = |result| matches!(result, Err(WindowError::Timeout { .. }));
            while is_late(window.close()) {}
            assert_eq!(window.close(), Err(WindowError::Freed));
            while comm.agree_despite_failures(1).is_err() {}
            let _ = comm.agree_despite_failures(1);
            job.leave().unwrap();
        });
    }
}

/// Over a network, a member waits for a stopped target. A revoke by a third member ends the wait,
/// long before the time limit.
#[test]
fn a_revoke_ends_waits_for_a_stopped_target() {
    for seed in seeds(60) {
        let options = Options::new(MEMBERS, seed).link(Link::Network);
        simulate(this_test!(), &options, move |job| {
            let comm = Communicator::world(&job).unwrap();
            let window = Window::open(&comm, 64).unwrap();
            let tell = |rank: usize| comm.send(rank, 0, b"").unwrap();
            match comm.rank() {
                2 => {
                    // All members have made the window before the stop, because that needs all of
                    // them.
                    [0, 1, 3].iter().for_each(|&rank| drop(comm.receive(rank, 0).unwrap()));
                    job.inject(outlast::engine::Fault::Stop(MemberId(1))).unwrap();
                    tell(3);
                    let begin = job.now();
                    let result = match seed % 6 {
                        0..2 => window.put_blocking(1, 0, &[1; 8]),
                        2..4 => window.put(1, 0, &[1; 8]).and_then(|()| window.flush(1)),
                        _ => window.lock(1, LockKind::Exclusive),
                    };
                    assert_eq!(result, Err(WindowError::Revoked));
                    assert!(job.now().since(begin) < Duration::from_secs(1), "ended by the revoke");
                    job.inject(outlast::engine::Fault::Resume(MemberId(1))).unwrap();
                }
                3 => {
                    tell(2);
                    comm.receive(2, 0).unwrap();
                    window_scenarios::pause(&job, Duration::from_millis(20));
                    window.revoke().unwrap();
                }
                _ => tell(2),
            }
            window.free().unwrap();
            comm.agree_despite_failures(1).unwrap();
            job.leave().unwrap();
        });
    }
}

/// A window is freed with operations in flight, and its memory is reused at once: none of the
/// operations writes to it.
#[test]
fn no_operation_lands_after_a_window_was_freed() {
    const LEN: usize = 512;
    for seed in seeds(300) {
        let options = Options::new(MEMBERS, seed).link(Link::Network);
        simulate(this_test!(), &options, |job| {
            let comm = Communicator::world(&job).unwrap();
            let window = Window::open(&comm, LEN as u64).unwrap();
            if comm.rank() != 1 {
                // These are not flushed, and some are not waited for.
                for at in 0..8 {
                    window.put(1, at * 64, &[1; 64]).unwrap();
                    drop(window.start_accumulate(1, at * 64, Update::Max, &[7u64; 8]).unwrap());
                }
            }
            window.free().unwrap();
            let len = 4 * LEN;
            let place = job.reserve(len as u64).unwrap();
            job.put(outlast::Epoch::ANY, job.me(), place, &vec![0xEE; len]).unwrap();
            window_scenarios::pause(&job, Duration::from_millis(5));
            let mut kept = vec![0; len];
            job.get(outlast::Epoch::ANY, job.me(), place, &mut kept).unwrap();
            assert_eq!(kept, vec![0xEE; len], "a late operation hit memory that was given back");
            comm.agree_despite_failures(1).unwrap();
            job.leave().unwrap();
        });
    }
}

/// Over a network, a third member dies. The target of a release learns of the death before the
/// releasing member does, but is stopped until the release has timed out. The release then belongs
/// to an older view, and takes effect nevertheless.
#[test]
fn a_release_that_timed_out_takes_effect_in_a_later_view() {
    for seed in seeds(60) {
        let mut options = Options::new(MEMBERS, seed).link(Link::Network);
        options.time_limit = Duration::from_millis(100);
        options.detection = Duration::from_micros(10)..=Duration::from_millis(50);
        simulate(this_test!(), &options, move |job| {
            let comm = Communicator::world(&job).unwrap();
            let window = Window::allocate(&comm, 64).unwrap();
            let kind = if seed.is_multiple_of(2) { LockKind::Shared } else { LockKind::Exclusive };
            match comm.rank() {
                2 => {
                    window.lock(1, kind).unwrap();
                    [0, 1, 3].iter().for_each(|&rank| drop(comm.receive(rank, 0).unwrap()));
                    job.inject(outlast::engine::Fault::Stop(MemberId(1))).unwrap();
                    job.inject(outlast::engine::Fault::Kill(MemberId(3))).unwrap();
                    window_scenarios::pause(&job, Duration::from_millis(1 + seed % 10));
                    assert!(matches!(window.unlock(1), Err(WindowError::Timeout { rank: 1, .. })));
                    job.inject(outlast::engine::Fault::Resume(MemberId(1))).unwrap();
                    window_scenarios::wait_until(&job, "the release", || {
                        window.holders(1).is_ok_and(|holders| holders.is_empty())
                    });
                }
                3 => {
                    comm.send(2, 0, b"").unwrap();
                    window_scenarios::pause(&job, Duration::from_secs(3600));
                }
                _ => comm.send(2, 0, b"").unwrap(),
            }
            let is_late = |result| matches!(result, Err(WindowError::Timeout { .. }));
            while is_late(window.close()) {}
            while comm.agree_despite_failures(1).is_err() {}
            let _ = comm.agree_despite_failures(1);
            job.leave().unwrap();
        });
    }
}

/// A member leaves `free` at its time limit, takes a lock, and calls `free` again, while the others
/// have found all locks free and voted: the window is not freed under it.
#[test]
fn a_lock_taken_between_two_calls_of_free_keeps_the_window() {
    for seed in seeds(60) {
        let mut options = Options::new(3, seed);
        options.link = Link::of_seed(seed);
        options.time_limit = Duration::from_millis(100);
        simulate(this_test!(), &options, |job| {
            let comm = Communicator::world(&job).unwrap();
            let window = Window::allocate(&comm, 64).unwrap();
            let late = Duration::from_millis(20);
            if comm.rank() == 0 {
                assert!(matches!(
                    window.free(),
                    Err(WindowError::Communicator(_) | WindowError::Timeout { .. })
                ));
                comm.send(1, 0, b"").unwrap();
                comm.send(2, 0, b"").unwrap();
                window_scenarios::pause(&job, late);
                window.lock(2, LockKind::Exclusive).unwrap();
            } else {
                while comm.receive(0, 0).is_err() {}
            }
            assert_eq!(window.free(), Err(WindowError::StillLocked { target: 2, holder: 0 }));
            if comm.rank() == 0 {
                window.put_blocking(2, 0, &[1; 8]).unwrap();
                window.unlock(2).unwrap();
            }
            window.free().unwrap();
            comm.agree_despite_failures(1).unwrap();
            job.leave().unwrap();
        });
    }
}

/// Two activities of a member take and release locks concurrently: each release finds a complete
/// lock or none, and no lock is left.
#[test]
fn two_activities_lock_and_unlock_all_at_once() {
    for seed in seeds(200) {
        let options = Options::new(3, seed).link(Link::of_seed(seed));
        simulate(this_test!(), &options, move |job| {
            let comm = Communicator::world(&job).unwrap();
            let window = Window::allocate(&comm, 64).unwrap();
            let work = |window: Window| {
                move || {
                    for round in 0..6 {
                        let taken = if (seed + round) % 3 == 0 {
                            window.lock(1, LockKind::Shared)
                        } else {
                            window.lock_all()
                        };
                        assert!(
                            matches!(taken, Ok(()) | Err(WindowError::AlreadyLocked { .. })),
                            "{taken:?}"
                        );
                        let released = if (seed + round) % 3 == 0 {
                            window.unlock(1)
                        } else {
                            window.unlock_all()
                        };
                        let is_fine =
                            matches!(released, Ok(()) | Err(WindowError::NotLocked { .. }));
                        assert!(is_fine, "{released:?}");
                    }
                }
            };
            let further = job.spawn("further", Box::new(work(window.clone()))).unwrap();
            work(window.clone())();
            assert!(job.wait_for(&further, Time::NEVER));
            // Locks that an activity held when the other found them in the way.
            let _ = window.unlock_all();
            let _ = window.unlock(1);
            comm.agree_despite_failures(1).unwrap();
            assert_eq!(window.holders(comm.rank()), Ok(vec![]));
            window.free().unwrap();
            comm.agree_despite_failures(1).unwrap();
            job.leave().unwrap();
        });
    }
}

/// A revoke ends a call that takes a lock while its compare-and-swaps are in flight. The window is
/// freed, and its memory is reused at once: no compare-and-swap writes to it.
#[test]
fn no_compare_and_swap_of_a_lock_lands_after_a_window_was_freed() {
    for seed in seeds(300) {
        let options = Options::new(MEMBERS, seed).link(Link::Network);
        simulate(this_test!(), &options, move |job| {
            let comm = Communicator::world(&job).unwrap();
            let mut random = Random::new(seed ^ u64::from(job.me().0) << 32);
            for _ in 0..12 {
                let window = Window::allocate(&comm, 64).unwrap();
                window_scenarios::pause(&job, Duration::from_nanos(random.below(1500)));
                if comm.rank() == 0 {
                    window.revoke().unwrap();
                } else {
                    let target =
                        (comm.rank() + 1 + random.below(MEMBERS as u64 - 1) as usize) % MEMBERS;
                    match window.lock(target, LockKind::Shared) {
                        Ok(()) => window.unlock(target).unwrap(),
                        Err(WindowError::Revoked) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
                window.free().unwrap();
                // The compare-and-swaps would expect zero there.
                let places: Vec<u64> = (0..16).map(|_| job.reserve(64).unwrap()).collect();
                for &place in &places {
                    job.put(outlast::Epoch::ANY, job.me(), place, &[0; 64]).unwrap();
                }
                window_scenarios::pause(&job, Duration::from_millis(5));
                for &place in &places {
                    let mut kept = [1; 64];
                    job.get(outlast::Epoch::ANY, job.me(), place, &mut kept).unwrap();
                    assert_eq!(kept, [0; 64], "a late swap hit memory that was given back");
                    job.release(place, 64);
                }
            }
            comm.agree_despite_failures(1).unwrap();
            job.leave().unwrap();
        });
    }
}

/// An activity flushes the operations under its lock while another activity takes and releases
/// another lock.
#[test]
fn a_flush_of_all_is_not_disturbed_by_a_lock_that_another_activity_takes() {
    for seed in seeds(60) {
        let options = Options::new(2, seed).link(Link::of_seed(seed));
        let test = this_test!();
        simulate(test, &options, |job| {
            let comm = Communicator::world(&job).unwrap();
            let window = Window::allocate(&comm, 64).unwrap();
            window.lock(0, LockKind::Shared).unwrap();
            let other = window.clone();
            let work = move || {
                for _ in 0..5 {
                    other.lock(1, LockKind::Shared).unwrap();
                    other.unlock(1).unwrap();
                }
            };
            let further = job.spawn("further", Box::new(work)).unwrap();
            while !further.is_finished() {
                window.put(0, 8 * comm.rank() as u64, &[1; 8]).unwrap();
                window.flush_all().unwrap();
            }
            window.close().unwrap();
            comm.agree_despite_failures(1).unwrap();
            job.leave().unwrap();
        });
    }
}

/// The members clear their memory for longer than the time limit, and one of them is ready a little
/// later: clearing is no wait, and all have the window.
#[test]
fn a_window_that_takes_longer_to_clear_than_the_time_limit_is_made() {
    const LIMIT: Duration = Duration::from_millis(4);
    const LEN: u64 = 32 << 20;
    for link in [Link::Memory, Link::Network] {
        for late in 0..3 {
            let mut options = Options::new(2, 1).link(link);
            options.time_limit = LIMIT;
            // Memory is cleared in pieces of 64 KiB, each of which is a call inside a member.
            let local = Duration::from_micros(10);
            options.cost = Some(Cost { local, ..Cost::default() });
            simulate(this_test!(), &options, move |job| {
                let comm = Communicator::world(&job).unwrap();
                let is_late = comm.rank() == 1;
                if is_late {
                    window_scenarios::pause(&job, LIMIT / 4 * late);
                }
                let len = if is_late { LEN + (1 << 20) } else { LEN };
                let began = job.now();
                let window = Window::allocate(&comm, len).unwrap();
                assert!(job.now().since(began) > LIMIT, "it was cleared in time");
                window.free().unwrap();
                job.leave().unwrap();
            });
        }
    }
}

/// Members die while they share a lock, in the middle of what it guards. The next member that takes
/// the lock is stopped from learning it: the window is revoked while it clears the stamps of the
/// dead, or the target is stopped then. The member that takes the lock after that is told.
#[test]
fn dead_sharers_are_told_of_after_a_call_that_ended_while_it_cleared_their_stamps() {
    const LIMIT: Duration = Duration::from_millis(100);
    const DEAD: [usize; 2] = [1, 2];
    let ended = Rc::new(Cell::new([0; 2]));
    for seed in seeds(400) {
        let mut options = Options::new(5, seed).link(Link::Network);
        options.time_limit = LIMIT;
        let (stage, shared, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)), ended.clone());
        let is_revoked = seed.is_multiple_of(2);
        simulate(this_test!(), &options, move |job| {
            let comm = Communicator::world(&job).unwrap();
            let window = Window::allocate(&comm, 64).unwrap();
            let late = Duration::from_nanos(seed / 2 * 7919 % 40_000);
            let have_died = || DEAD.iter().all(|&rank| !job.view().is_living(comm.members()[rank]));
            let wait = |what: &str, until: &dyn Fn() -> bool| {
                window_scenarios::wait_until(&job, what, until);
            };
            if DEAD.contains(&comm.rank()) {
                window.lock(0, LockKind::Shared).unwrap();
                shared.set(shared.get() + 1);
                wait("the other sharer", &|| shared.get() == DEAD.len());
                job.inject(outlast::engine::Fault::Kill(job.me())).unwrap();
            }
            wait("the deaths", &have_died);
            if comm.rank() == 4 {
                // The other member waits for the next step by then.
                job.sleep(Duration::from_millis(5));
                stage.set(1);
                job.sleep(late);
                match is_revoked {
                    true => window.revoke().unwrap(),
                    false => job.inject(outlast::engine::Fault::Stop(MemberId(0))).unwrap(),
                }
            }
            let mut told = Ok(());
            if comm.rank() == 3 {
                while stage.get() == 0 {
                    job.sleep(Duration::from_nanos(200));
                }
                told = window.lock(0, LockKind::Exclusive);
                if told.is_err() && !matches!(told, Err(WindowError::Abandoned { .. })) {
                    let mut counts = ended.get();
                    counts[usize::from(is_revoked)] += 1;
                    ended.set(counts);
                }
                if !is_revoked {
                    // The call may have ended before the fault.
                    job.sleep(LIMIT);
                    job.inject(outlast::engine::Fault::Resume(MemberId(0))).unwrap();
                }
            }
            if is_revoked {
                wait("the revoke", &|| window.is_revoked());
                while window.shrink().is_err() {}
            }
            if comm.rank() == 3 {
                if !matches!(told, Err(WindowError::Abandoned { .. })) {
                    assert!(told.is_err(), "seed {seed}: no call was told of the dead: {told:?}");
                    told = window.lock(0, LockKind::Exclusive);
                }
                match &told {
                    Err(WindowError::Abandoned { by, .. }) => assert_eq!(by, &DEAD),
                    other => panic!("seed {seed}: no call was told of the dead: {other:?}"),
                }
                window.unlock(0).unwrap();
                stage.set(2);
            }
            wait("the end", &|| stage.get() == 2);
            let _ = window.shrink();
            window.free().unwrap();
            let _ = job.leave();
        });
    }
    assert!(ended.get().iter().all(|&count| count > 0), "{:?}", ended.get());
}
