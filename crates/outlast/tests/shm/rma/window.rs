//! Windows of real processes, with real kills and stops: the scenarios of
//! [`crate::window_scenarios`], which the simulator and the mpi engine run too, and tests that need
//! real time, threads and kills.

use crate::members::{LIMIT, SEED, expect_ok, is_member};
use crate::reexecution::this_test;
use crate::window_scenarios::{MEMBERS, SCENARIOS, pause, scenario, word, world};
use outlast::engine::Fault;
use outlast::launch::Launch;
use outlast::rma::{LockKind, Update, Window, WindowError};
use outlast::{Job, MemberId};
use std::time::{Duration, Instant};

/// Prepares the start of the members of a test, with a seed that [`seed`] reads in them.
fn members(test: &str, count: usize, seed: u64) -> Launch {
    crate::members::members(test, count).env(SEED, seed.to_string())
}

fn rounds(default: u64) -> u64 {
    std::env::var("OUTLAST_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Each scenario as a test of its own.
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                let test = this_test!();
                if !is_member(test) {
                    for seed in 0..rounds(2) {
                        expect_ok(members(test, MEMBERS, seed).start().unwrap());
                    }
                    return;
                }
                let run = scenario(stringify!($name));
                run(&outlast::join().unwrap());
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

fn seed() -> u64 {
    std::env::var(SEED).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// A small random number generator: a seed and a member give a sequence.
struct Numbers(u64);

impl Numbers {
    fn new(job: &Job) -> Numbers {
        Numbers(seed().wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(job.me().0 + 1) << 40)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Members lock the memory of rank 0 and change two words in a row. Some of them die at a random
/// engine step, some are stopped in between. The words are equal whenever the lock reports that no
/// holder died, and in the end they count every acknowledged change.
#[test]
fn locks_exclude_under_kills_and_stops() {
    let test = this_test!();
    if !is_member(test) {
        let (mut deaths, mut takeovers) = (0, 0);
        for seed in 0..rounds(8) {
            let running = members(test, 5, seed).start().unwrap();
            // The last two members are stopped for a moment, again and again, at any step.
            for round in 0..6 {
                std::thread::sleep(Duration::from_millis(15));
                let victim = MemberId(3 + round % 2);
                let _ = running.stop(victim);
                std::thread::sleep(Duration::from_millis(5));
                let _ = running.resume(victim);
            }
            let outcome = expect_ok(running);
            deaths += outcome.deaths().count();
            let out: String =
                outcome.members.iter().map(|end| outcome.stdout(end.member)).collect();
            takeovers += out.matches("taken over").count();
        }
        println!("{deaths} deaths, {takeovers} locks taken over");
        assert!(deaths > 0, "no member died");
        return;
    }
    let job = outlast::join().unwrap();
    let comm = world(&job);
    let window = Window::allocate(&comm, 128).unwrap();
    comm.agree_despite_failures(1).unwrap();
    let mut numbers = Numbers::new(&job);
    if job.me().0 == 1 || job.me().0 == 2 {
        job.inject(Fault::DieAtStep(1 + numbers.below(2000))).unwrap();
    }
    let mut acknowledged = 0u64;
    for _ in 0..150 {
        let kind = if numbers.below(4) == 0 { LockKind::Shared } else { LockKind::Exclusive };
        let is_whole = match window.lock(0, kind) {
            Ok(()) => true,
            Err(WindowError::Abandoned { by, .. }) => {
                assert!(by.iter().all(|rank| window.get_failed().contains(rank)), "{by:?}");
                println!("taken over");
                false
            }
            Err(error) => panic!("{error}"),
        };
        let (first, second) = (word(&window, 0, 0), word(&window, 0, 64));
        if is_whole {
            assert_eq!(first, second, "{kind:?}");
        }
        if kind == LockKind::Exclusive {
            let next = first.max(second) + 1;
            window.put(0, 0, &next.to_le_bytes()).unwrap();
            if numbers.below(10) == 0 {
                std::thread::sleep(Duration::from_micros(300));
            }
            window.put(0, 64, &next.to_le_bytes()).unwrap();
            acknowledged += 1;
        } else if !is_whole {
            // Only an exclusive holder can repair the words.
            window.unlock(0).unwrap();
            continue;
        }
        window.unlock(0).unwrap();
    }
    // Counted outside of the lock at rank 0.
    let _ = window.lock(3, LockKind::Shared);
    window.fetch_and_op(3, 0, Update::Sum, acknowledged).unwrap();
    window.unlock(3).unwrap();
    comm.agree_despite_failures(1).unwrap();
    let _ = window.lock(0, LockKind::Shared);
    let _ = window.lock(3, LockKind::Shared);
    let (count, acknowledged) = (word(&window, 0, 0), word(&window, 3, 0));
    // The dead may have made changes: at most all of theirs.
    assert!((acknowledged..=acknowledged + 300).contains(&count), "{count} of {acknowledged}");
    window.unlock(0).unwrap();
    window.unlock(3).unwrap();
    comm.agree_despite_failures(1).unwrap();
    window.close().unwrap();
    job.leave().unwrap();
}

/// A member that waits for a lock sleeps: a wait of a second takes hardly any processor time.
#[test]
fn a_wait_does_not_burn_a_core() {
    let test = this_test!();
    if !is_member(test) {
        expect_ok(members(test, 2, 0).start().unwrap());
        return;
    }
    let job = outlast::join().unwrap();
    let comm = world(&job);
    let window = Window::allocate(&comm, 64).unwrap();
    if comm.rank() == 1 {
        window.lock(0, LockKind::Exclusive).unwrap();
    }
    comm.barrier().unwrap();
    if comm.rank() == 0 {
        let before = processor_time();
        let limit = Duration::from_secs(1);
        let begin = Instant::now();
        let result = window.lock_within(0, LockKind::Exclusive, limit);
        assert_eq!(result, Err(WindowError::LockTimeout { target: 0, holder: 1, limit }));
        assert!(begin.elapsed() >= limit);
        let used = processor_time() - before;
        assert!(used < Duration::from_millis(300), "waiting took {used:?} of processor time");
    }
    comm.barrier().unwrap();
    window.close().unwrap();
    job.leave().unwrap();
}

/// The processor time of this process, with all its threads.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = &stat[stat.rfind(')').unwrap() + 2..];
    let fields: Vec<u64> = after_name.split(' ').filter_map(|field| field.parse().ok()).collect();
    // The state is no number, so user and system time are the 11th and 12th of the remaining
    // fields, in ticks of 10 ms.
    Duration::from_millis(10 * (fields[10] + fields[11]))
}

/// A holder is killed from outside while others wait: they go on at once, not at a time limit.
#[test]
fn a_killed_holder_releases_its_waiters_at_once() {
    let test = this_test!();
    if !is_member(test) {
        for seed in 0..rounds(3) {
            let running = members(test, 4, seed).start().unwrap();
            let begin = Instant::now();
            while !String::from_utf8_lossy(&running.output(MemberId(1)).stdout).contains("holding")
            {
                assert!(begin.elapsed() < LIMIT, "no member holds the lock");
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(20));
            running.kill(MemberId(1)).unwrap();
            let outcome = expect_ok(running);
            assert_eq!(outcome.deaths().count(), 1);
        }
        return;
    }
    let job = outlast::join().unwrap();
    let comm = world(&job);
    let window = Window::allocate(&comm, 64).unwrap();
    if comm.rank() == 1 {
        let kind = if seed().is_multiple_of(2) { LockKind::Exclusive } else { LockKind::Shared };
        window.lock(0, kind).unwrap();
        (0..4).filter(|&rank| rank != 1).for_each(|rank| comm.send(rank, 0, b"").unwrap());
        println!("holding");
        pause(&job, LIMIT);
        unreachable!("ended only by being killed");
    }
    comm.receive(1, 0).unwrap();
    let told: u64 = match window.lock(0, LockKind::Exclusive) {
        Ok(()) => 0,
        Err(WindowError::Abandoned { target: 0, by }) if by == [1] => 1,
        other => panic!("{other:?}"),
    };
    window.accumulate(0, 0, Update::Sum, &[told]).unwrap();
    window.unlock(0).unwrap();
    comm.agree_despite_failures(1).unwrap();
    window.lock(0, LockKind::Shared).unwrap();
    assert_eq!(word(&window, 0, 0), 1, "a single member was told");
    window.unlock(0).unwrap();
    window.close().unwrap();
    job.leave().unwrap();
}

/// Two threads of a member take and release locks concurrently: each release finds a complete lock
/// or none, and no lock is left. Another thread flushes all the while.
#[test]
fn two_activities_lock_and_unlock_all_at_once() {
    let test = this_test!();
    if !is_member(test) {
        expect_ok(members(test, 3, 0).start().unwrap());
        return;
    }
    let job = outlast::join().unwrap();
    let comm = world(&job);
    let window = Window::allocate(&comm, 64).unwrap();
    let work = |window: Window| {
        move || {
            for round in 0..300 {
                let is_one = round % 3 == 0;
                let taken =
                    if is_one { window.lock(1, LockKind::Shared) } else { window.lock_all() };
                assert!(
                    matches!(taken, Ok(()) | Err(WindowError::AlreadyLocked { .. })),
                    "{taken:?}"
                );
                let released = if is_one { window.unlock(1) } else { window.unlock_all() };
                assert!(
                    matches!(released, Ok(()) | Err(WindowError::NotLocked { .. })),
                    "{released:?}"
                );
            }
        }
    };
    let further = job.spawn("further", Box::new(work(window.clone()))).unwrap();
    work(window.clone())();
    assert!(job.wait_for(&further, outlast::Time::NEVER));
    // Locks that a thread held when the other found them in the way.
    let _ = window.unlock_all();
    let _ = window.unlock(1);
    comm.agree_despite_failures(1).unwrap();
    assert_eq!(window.holders(comm.rank()), Ok(vec![]));
    comm.agree_despite_failures(1).unwrap();
    // A flush of all targets beside another thread's lock.
    window.lock(0, LockKind::Shared).unwrap();
    let other = window.clone();
    let lock_another = move || {
        for _ in 0..100 {
            other.lock(1, LockKind::Shared).unwrap();
            other.unlock(1).unwrap();
        }
    };
    let further = job.spawn("further", Box::new(lock_another)).unwrap();
    while !further.is_finished() {
        window.put(0, 8 * comm.rank() as u64, &[1; 8]).unwrap();
        window.flush_all().unwrap();
    }
    window.close().unwrap();
    comm.agree_despite_failures(1).unwrap();
    job.leave().unwrap();
}

/// A member leaves `free` at its time limit, takes a lock, and calls `free` again, while the others
/// have found all locks free and voted: the window is not freed under it.
#[test]
fn a_lock_taken_between_two_calls_of_free_keeps_the_window() {
    let test = this_test!();
    if !is_member(test) {
        expect_ok(members(test, 3, 0).start().unwrap());
        return;
    }
    let job = outlast::JoinOptions::new().time_limit(Duration::from_millis(1500)).join().unwrap();
    let comm = world(&job);
    let window = Window::allocate(&comm, 64).unwrap();
    if comm.rank() == 0 {
        assert!(matches!(
            window.free(),
            Err(WindowError::Communicator(_) | WindowError::Timeout { .. })
        ));
        comm.send(1, 0, b"").unwrap();
        comm.send(2, 0, b"").unwrap();
        pause(&job, Duration::from_millis(50));
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
}
