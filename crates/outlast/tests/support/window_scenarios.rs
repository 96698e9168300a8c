//! What windows must do, written once for all engines. Each scenario is run by every member of a
//! job of four. `sim/rma/window.rs` runs the scenarios over many seeds and both links,
//! `shm/rma/window.rs` with processes, and `mpi/window.rs` with the ranks of an mpirun.

#![allow(dead_code)]

use outlast::engine::{Done, Fault};
use outlast::rma::{ATTACHED, Communicator, LockKind, Update, Window, WindowError};
use outlast::{Epoch, Job, MemberId, Time};
use std::time::Duration;

pub(crate) const MEMBERS: usize = 4;

/// A scenario by its name.
pub(crate) type Scenario = (&'static str, fn(&Job));

/// All scenarios.
pub(crate) const SCENARIOS: &[Scenario] = &[
    ("operations_have_their_documented_effect", operations_have_their_documented_effect),
    ("bad_input_changes_nothing", bad_input_changes_nothing),
    ("members_may_expose_no_memory", members_may_expose_no_memory),
    ("a_failed_creation_fails_at_all_members", a_failed_creation_fails_at_all_members),
    (
        "the_lock_of_a_dead_exclusive_holder_is_taken_over_once",
        the_lock_of_a_dead_exclusive_holder_is_taken_over_once,
    ),
    ("a_holder_dies_while_others_wait", a_holder_dies_while_others_wait),
    ("a_dead_shared_holder_is_reported", a_dead_shared_holder_is_reported),
    (
        "a_dead_holder_is_reported_to_all_shared_holders",
        a_dead_holder_is_reported_to_all_shared_holders,
    ),
    (
        "a_waiter_that_gives_up_leaves_the_report_of_a_death_to_the_next",
        a_waiter_that_gives_up_leaves_the_report_of_a_death_to_the_next,
    ),
    (
        "a_forced_successor_leaves_the_report_of_a_death_to_the_next",
        a_forced_successor_leaves_the_report_of_a_death_to_the_next,
    ),
    ("a_forced_holder_wakes_late", a_forced_holder_wakes_late),
    ("a_forced_shared_holder_wakes_late", a_forced_shared_holder_wakes_late),
    ("a_lock_times_out_and_names_its_holder", a_lock_times_out_and_names_its_holder),
    ("an_interrupt_ends_a_lock_wait", an_interrupt_ends_a_lock_wait),
    ("a_blocking_put_is_visible_when_it_returns", a_blocking_put_is_visible_when_it_returns),
    ("a_target_dies_under_every_operation", a_target_dies_under_every_operation),
    ("a_target_dies_while_its_lock_is_waited_for", a_target_dies_while_its_lock_is_waited_for),
    ("a_revoke_releases_the_waiters_of_a_window", a_revoke_releases_the_waiters_of_a_window),
    ("a_revoked_window_goes_on_after_a_shrink", a_revoked_window_goes_on_after_a_shrink),
    (
        "a_window_shrinks_and_its_communicator_does_not",
        a_window_shrinks_and_its_communicator_does_not,
    ),
    ("an_open_window_needs_no_lock", an_open_window_needs_no_lock),
    ("a_locked_window_is_not_freed", a_locked_window_is_not_freed),
    (
        "a_lock_of_a_dead_member_does_not_keep_a_window",
        a_lock_of_a_dead_member_does_not_keep_a_window,
    ),
    ("others_read_while_a_member_grows", others_read_while_a_member_grows),
    (
        "ranges_are_attached_and_detached_under_access",
        ranges_are_attached_and_detached_under_access,
    ),
    ("failures_are_told_to_chosen_members", failures_are_told_to_chosen_members),
    (
        "shared_locks_coexist_and_an_exclusive_lock_excludes",
        shared_locks_coexist_and_an_exclusive_lock_excludes,
    ),
];

/// The scenario of this name.
pub(crate) fn scenario(name: &str) -> fn(&Job) {
    SCENARIOS.iter().find(|(other, _)| *other == name).expect("a scenario").1
}

// ---- Helpers.

pub(crate) fn world(job: &Job) -> Communicator {
    Communicator::world(job).unwrap()
}

pub(crate) fn word(window: &Window, target: usize, offset: u64) -> u64 {
    window.fetch_and_op(target, offset, Update::Keep, 0u64).unwrap()
}

/// Ends this member as SIGKILL would.
pub(crate) fn die(job: &Job) -> ! {
    let _ = job.inject(Fault::Kill(job.me()));
    loop {
        job.park(job.bell(), Time::NEVER);
    }
}

pub(crate) fn pause(job: &Job, duration: Duration) {
    let until = job.now().after(duration);
    while job.now() < until && !job.has_ended() {
        job.park(job.bell(), until);
    }
}

/// Waits until the condition holds, at most for the time that a test may take.
pub(crate) fn wait_until(job: &Job, what: &str, mut condition: impl FnMut() -> bool) {
    let until = job.now().after(Duration::from_secs(20));
    loop {
        let bell = job.bell();
        if condition() {
            return;
        }
        assert!(job.now() < until, "{} waited in vain for: {what}", job.me());
        job.park(bell, job.now().after(Duration::from_millis(1)));
    }
}

/// Tells another rank to go on.
fn tell(comm: &Communicator, rank: usize, tag: u32) {
    let _ = comm.send(rank, tag, b"");
}

fn await_word(comm: &Communicator, rank: usize, tag: u32) {
    comm.receive(rank, tag).unwrap();
}

/// Waits for a rank that may die right after it has sent: then the message may be lost.
fn await_word_or_death(comm: &Communicator, rank: usize, tag: u32) {
    match comm.receive(rank, tag) {
        Ok(_) => {}
        Err(error) => assert!(error.is_failure(), "{error}"),
    }
}

/// All survivors meet here, also after deaths, when a barrier would fail.
fn meet(comm: &Communicator) {
    comm.agree_despite_failures(1).unwrap();
}

fn end(job: &Job, comm: &Communicator, window: &Window) {
    meet(comm);
    window.close().unwrap();
    job.leave().unwrap();
}

fn rank_dies(comm: &Communicator, job: &Job, rank: usize) {
    wait_until(job, "the notice of a death", || comm.get_failed().unwrap().contains(&rank));
}

fn failed(rank: usize) -> WindowError {
    WindowError::ProcFailed { ranks: vec![rank] }
}

/// The dead members that a window knows of.
pub(crate) fn dead_members(window: &Window) -> Vec<MemberId> {
    let members = window.communicator().members();
    window.get_failed().into_iter().map(|rank| members[rank]).collect()
}

// ---- What operations do.

fn operations_have_their_documented_effect(job: &Job) {
    let comm = world(job);
    let (me, size) = (comm.rank(), comm.size());
    let window = Window::allocate(&comm, 1024 + 64 * me as u64).unwrap();
    window.lock_all().unwrap();
    let next = (me + 1) % size;
    let mut back = [1; 24];
    window.get(next, 0, &mut back).unwrap();
    assert_eq!(back, [0; 24], "memory is cleared");
    comm.barrier().unwrap();

    window.put(next, 3, &[me as u8 + 1; 13]).unwrap();
    window.flush(next).unwrap();
    comm.barrier().unwrap();
    window.get(me, 0, &mut back[..19]).unwrap();
    let from = ((me + size - 1) % size) as u8 + 1;
    assert_eq!(back[..19], [[0; 3].as_slice(), &[from; 13], &[0; 3]].concat());
    assert_eq!(window.len(next).unwrap(), 1024 + 64 * next as u64);

    // All members use the words of rank 0 concurrently.
    let own = me as i64 - 1;
    window.accumulate(0, 64, Update::Sum, &[me as u64 + 1, 10]).unwrap();
    window.accumulate(0, 80, Update::Max, &[own, -5]).unwrap();
    window.accumulate(0, 96, Update::Min, &[own, -5]).unwrap();
    window.accumulate(0, 112, Update::Or, &[1u64 << me]).unwrap();
    window.accumulate(0, 120, Update::Xor, &[3u64 << me]).unwrap();
    window.flush_all().unwrap();
    let won = window.compare_and_swap(0, 128, 0u64, me as u64 + 1).unwrap();
    let before: i64 = window.fetch_and_op(0, 136, Update::Sum, -1i64).unwrap();
    assert!((1 - size as i64..=0).contains(&before));
    comm.barrier().unwrap();
    let size = size as u64;
    assert_eq!(word(&window, 0, 64), size * (size + 1) / 2);
    assert_eq!(word(&window, 0, 72), 10 * size);
    assert_eq!(word(&window, 0, 80) as i64, size as i64 - 2);
    assert_eq!(word(&window, 0, 88) as i64, 0);
    assert_eq!(word(&window, 0, 96) as i64, -1);
    assert_eq!(word(&window, 0, 104) as i64, -5);
    assert_eq!(word(&window, 0, 112), (1 << size) - 1);
    assert_eq!(word(&window, 0, 120), (0..size).fold(0, |all, rank| all ^ 3 << rank));
    let winner = word(&window, 0, 128);
    assert_eq!(won == 0, winner == me as u64 + 1, "a single member wins");
    assert_eq!(word(&window, 0, 136) as i64, -(size as i64));

    // The operations as requests. Unsigned numbers compare as unsigned.
    let place = 256 + 64 * me as u64;
    let mut requests = vec![
        window.start_put(0, place, &u64::MAX.to_le_bytes()).unwrap(),
        window.start_accumulate(0, place + 8, Update::Replace, &[7u64, 8]).unwrap(),
    ];
    for request in &mut requests {
        assert_eq!(request.target(), 0);
        request.wait().unwrap();
        assert_eq!(request.wait(), Err(WindowError::AlreadyTaken));
        assert_eq!(request.test(), Some(Err(WindowError::AlreadyTaken)));
    }
    let mut min = window.start_fetch_and_op(0, place, Update::Min, 9u64).unwrap();
    assert_eq!(min.wait().unwrap(), Done::Word(u64::MAX));
    let mut swap = window.start_compare_and_swap(0, place + 8, 7u64, 70).unwrap();
    assert_eq!(swap.wait().unwrap(), Done::Word(7));
    let mut get = window.start_get(0, place, 24).unwrap();
    let mut result = None;
    wait_until(job, "a get", || {
        result = get.test();
        result.is_some()
    });
    let expected: Vec<u8> = [9u64, 70, 8].iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(result, Some(Ok(Done::Get(expected))));
    // A dropped request is still completed by the next flush.
    drop(window.start_put(0, place, &[1; 8]).unwrap());
    window.flush(0).unwrap();
    assert_eq!(word(&window, 0, place), 0x0101_0101_0101_0101);
    assert_eq!(window.fetch_and_op(0, place, Update::And, 0xFFu64).unwrap(), 0x0101_0101_0101_0101);
    assert_eq!(word(&window, 0, place), 1);
    window.unlock_all().unwrap();
    end(job, &comm, &window);
}

fn bad_input_changes_nothing(job: &Job) {
    let comm = world(job);
    let size = comm.size();
    let window = Window::allocate(&comm, 100).unwrap();
    let exclusive = LockKind::Exclusive;
    let target = comm.rank();
    // Without a lock.
    let not_locked = WindowError::NotLocked { target };
    assert_eq!(window.put(target, 0, &[1]), Err(not_locked.clone()));
    assert_eq!(window.get(target, 0, &mut [0]), Err(not_locked.clone()));
    assert_eq!(window.fetch_and_op(target, 0, Update::Sum, 1u64), Err(not_locked.clone()));
    assert_eq!(window.unlock(target), Err(not_locked.clone()));
    assert_eq!(window.check_lock(target), Err(not_locked.clone()));
    assert_eq!(window.flush(target), Err(not_locked));
    assert_eq!(window.unlock_all(), Err(WindowError::NotLocked { target: 0 }));
    assert_eq!(window.force_unlock(target), Ok(vec![]));
    // Ranks out of range.
    for rank in [size, usize::MAX] {
        let out = WindowError::RankOutOfRange { rank, size };
        assert_eq!(window.lock(rank, exclusive), Err(out.clone()));
        assert_eq!(window.unlock(rank), Err(out.clone()));
        assert_eq!(window.force_unlock(rank), Err(out.clone()));
        assert_eq!(window.put(rank, 0, &[1]), Err(out.clone()));
        assert_eq!(window.put_blocking(rank, 0, &[1]), Err(out.clone()));
        assert_eq!(window.accumulate(rank, 0, Update::Sum, &[1u64]), Err(out.clone()));
        assert_eq!(window.flush(rank), Err(out.clone()));
        assert_eq!(window.len(rank), Err(out.clone()));
        assert_eq!(window.start_get(rank, 0, 1).err(), Some(out));
    }
    window.lock(target, exclusive).unwrap();
    assert_eq!(window.lock(target, exclusive), Err(WindowError::AlreadyLocked { target }));
    assert_eq!(window.lock(target, LockKind::Shared), Err(WindowError::AlreadyLocked { target }));
    assert_eq!(window.lock_all(), Err(WindowError::AlreadyLocked { target }));
    window.put_blocking(target, 0, &[7; 100]).unwrap();
    // Ranges out of range, and lengths that overflow.
    for offset in [100, 99, 1 << 40, ATTACHED - 1, u64::MAX, u64::MAX - 1] {
        let error = window.put(target, offset, &[1, 1]).unwrap_err();
        if offset < ATTACHED {
            assert_eq!(error, WindowError::OutOfRange { target, offset, len: 2, window_len: 100 });
        } else {
            assert_eq!(error, WindowError::NotAttached { target, offset, len: 2 });
        }
        assert_eq!(window.get(target, offset, &mut [0; 2]), Err(error.clone()));
        assert_eq!(window.start_get(target, offset, 2).err(), Some(error));
    }
    assert!(window.start_get(target, 0, usize::MAX).is_err());
    assert!(window.start_get(target, 50, usize::MAX - 49).is_err());
    // Words that are unaligned or cut off.
    for offset in [1, 4, 95] {
        let unaligned = WindowError::Unaligned { offset };
        assert_eq!(window.fetch_and_op(target, offset, Update::Sum, 1u64), Err(unaligned.clone()));
        assert_eq!(window.compare_and_swap(target, offset, 0u64, 1), Err(unaligned.clone()));
        assert_eq!(window.accumulate(target, offset, Update::Max, &[1i64]), Err(unaligned));
    }
    assert!(
        window.accumulate(target, 88, Update::Sum, &[1u64, 1]).is_err(),
        "the second word is cut off"
    );
    assert!(window.compare_and_swap(target, 96, 0u64, 1).is_err());
    // Empty ranges are allowed, within the window.
    window.put(target, 100, &[]).unwrap();
    window.get(target, 0, &mut []).unwrap();
    window.accumulate::<u64>(target, 8, Update::Sum, &[]).unwrap();
    assert_eq!(window.start_get(target, 100, 0).unwrap().wait(), Ok(Done::Get(vec![])));
    assert!(window.put(target, 101, &[]).is_err());
    assert_eq!(window.grow(0), Ok(100));
    // The memory of this member.
    assert!(matches!(window.attach(0), Err(WindowError::Invalid { .. })));
    assert!(window.attach(u64::MAX).is_err() && window.grow(u64::MAX).is_err());
    assert!(window.grow(1 << 50).is_err() && window.attach(1 << 50).is_err());
    for offset in [0, 100, ATTACHED, u64::MAX] {
        assert_eq!(window.detach(offset), Err(WindowError::NotAttached { target, offset, len: 0 }));
    }
    assert_eq!(window.len(target), Ok(100));
    let mut all = [0; 100];
    window.get(target, 0, &mut all).unwrap();
    assert_eq!(all, [7; 100], "nothing was changed");
    window.unlock(target).unwrap();
    assert_eq!(window.holders(target), Ok(vec![]));
    // A freed window.
    comm.barrier().unwrap();
    let mut request = {
        window.lock(target, exclusive).unwrap();
        let request = window.start_put(target, 0, &[1]).unwrap();
        window.unlock(target).unwrap();
        request
    };
    comm.barrier().unwrap();
    window.free().unwrap();
    assert!(request.wait().is_ok(), "the result is still there");
    let freed = Err(WindowError::Freed);
    assert_eq!(window.put(target, 0, &[1]), freed);
    assert_eq!(window.get(target, 0, &mut [0]), freed);
    assert_eq!(window.lock(target, exclusive), freed);
    assert_eq!(window.unlock(target), freed);
    assert_eq!(window.flush_all(), freed);
    assert_eq!(window.free(), freed);
    assert_eq!(window.close(), freed);
    assert_eq!(window.revoke(), freed);
    assert_eq!(window.grow(8), Err(WindowError::Freed));
    assert_eq!(window.attach(8), Err(WindowError::Freed));
    assert_eq!(window.shrink(), Err(WindowError::Freed));
    job.leave().unwrap();
}

fn members_may_expose_no_memory(job: &Job) {
    let comm = world(job);
    let me = comm.rank();
    let len = if me == 2 { 16 } else { 0 };
    let window = Window::open(&comm, len).unwrap();
    window.put_blocking(2, 0, &[me as u8; 16]).unwrap();
    assert_eq!((window.len(0), window.len(2)), (Ok(0), Ok(16)));
    if me == 1 {
        assert!(matches!(
            window.put(3, 0, &[1]),
            Err(WindowError::OutOfRange { window_len: 0, .. })
        ));
    }
    comm.barrier().unwrap();
    // Locks need no memory to guard.
    window.lock(0, LockKind::Exclusive).unwrap();
    window.unlock(0).unwrap();
    end(job, &comm, &window);
}

fn a_failed_creation_fails_at_all_members(job: &Job) {
    let comm = world(job);
    let me = comm.rank();
    let free_before = job.reserve(64).unwrap();
    job.release(free_before, 64);
    let error = Window::allocate(&comm, if me == 1 { 1 << 45 } else { 64 }).unwrap_err();
    match (me, &error) {
        (1, WindowError::Engine(outlast::Error::OutOfMemory { .. })) => {}
        (_, WindowError::Invalid { what }) if me != 1 => assert!(what.contains("rank 1"), "{what}"),
        _ => panic!("{error}"),
    }
    let made = if me == 2 { Window::open(&comm, 8) } else { Window::allocate(&comm, 8) };
    let error = made.unwrap_err().to_string();
    assert!(
        error.contains(if me == 2 { "allocate" } else { "rank 2 calls Window::open" }),
        "{error}"
    );
    let free_after = job.reserve(64).unwrap();
    assert_eq!(free_before, free_after, "all memory was given back");
    job.release(free_after, 64);
    // Then it works, many times over, without using up memory.
    for _ in 0..3 {
        let window = Window::open(&comm, 4096).unwrap();
        window.grow(100).unwrap();
        window.detach(window.attach(10_000).unwrap()).unwrap();
        window.close().unwrap();
        let free_after = job.reserve(64).unwrap();
        assert_eq!(free_before, free_after, "all memory was given back");
        job.release(free_after, 64);
    }
    meet(&comm);
    job.leave().unwrap();
}

// ---- Locks and deaths.

/// Ranks 2 and 3 take a lock whose holder is dead already.
fn the_lock_of_a_dead_exclusive_holder_is_taken_over_once(job: &Job) {
    let comm = world(job);
    let window = Window::allocate(&comm, 64).unwrap();
    if comm.rank() == 1 {
        window.lock(0, LockKind::Exclusive).unwrap();
        window.put_blocking(0, 0, &[1; 8]).unwrap();
        die(job);
    }
    rank_dies(&comm, job, 1);
    if comm.rank() >= 2 {
        let result = window.lock(0, LockKind::Exclusive);
        let told = word(&window, 0, 16);
        match &result {
            Ok(()) => assert_eq!(told, 1, "the first member is told"),
            Err(WindowError::Abandoned { target: 0, by }) => {
                assert_eq!(by, &[1]);
                assert_eq!(told, 0, "only the first member is told");
                assert_eq!(word(&window, 0, 0), 0x0101_0101_0101_0101);
            }
            other => panic!("{other:?}"),
        }
        window.put_blocking(0, 16, &1u64.to_le_bytes()).unwrap();
        window.unlock(0).unwrap();
    }
    end(job, &comm, &window);
}

/// Ranks 0, 2 and 3 wait for the lock when its holder dies: a single member is told, once.
fn a_holder_dies_while_others_wait(job: &Job) {
    let comm = world(job);
    let window = Window::allocate(&comm, 64).unwrap();
    if comm.rank() == 1 {
        window.lock(0, LockKind::Exclusive).unwrap();
        [0, 2, 3].iter().for_each(|&rank| tell(&comm, rank, 1));
        pause(job, Duration::from_millis(3));
        die(job);
    }
    await_word_or_death(&comm, 1, 1);
    let is_told = match window.lock(0, LockKind::Exclusive) {
        Ok(()) => 0,
        Err(WindowError::Abandoned { target: 0, by }) if by == [1] => 1,
        other => panic!("{other:?}"),
    };
    let (told, passed) = (word(&window, 0, 0), word(&window, 0, 8));
    assert_eq!(passed == 0, is_told == 1, "only the first member is told");
    window.put_blocking(0, 0, &(told + is_told).to_le_bytes()).unwrap();
    window.put_blocking(0, 8, &(passed + 1).to_le_bytes()).unwrap();
    window.unlock(0).unwrap();
    meet(&comm);
    window.lock(0, LockKind::Shared).unwrap();
    assert_eq!((word(&window, 0, 0), word(&window, 0, 8)), (1, 3));
    window.unlock(0).unwrap();
    end(job, &comm, &window);
}

fn a_dead_shared_holder_is_reported(job: &Job) {
    let comm = world(job);
    let window = Window::allocate(&comm, 64).unwrap();
    match comm.rank() {
        1 => {
            window.lock(0, LockKind::Shared).unwrap();
            tell(&comm, 2, 1);
            tell(&comm, 3, 1);
            pause(job, Duration::from_millis(2));
            die(job);
        }
        2 => {
            await_word_or_death(&comm, 1, 1);
            // Sharing goes on beside living and dead holders.
            window.lock(0, LockKind::Shared).unwrap();
            window.unlock(0).unwrap();
            let result = window.lock(0, LockKind::Exclusive);
            assert_eq!(result, Err(WindowError::Abandoned { target: 0, by: vec![1] }));
            assert_eq!(window.holders(0).unwrap(), [2], "the dead member is cleared away");
            window.unlock(0).unwrap();
            window.lock(0, LockKind::Exclusive).unwrap();
            window.unlock(0).unwrap();
        }
        3 => await_word_or_death(&comm, 1, 1),
        _ => {}
    }
    rank_dies(&comm, job, 1);
    end(job, &comm, &window);
}

fn a_dead_holder_is_reported_to_all_shared_holders(job: &Job) {
    let comm = world(job);
    let window = Window::allocate(&comm, 64).unwrap();
    if comm.rank() == 1 {
        window.lock(0, LockKind::Exclusive).unwrap();
        [0, 2, 3].iter().for_each(|&rank| tell(&comm, rank, 1));
        die(job);
    }
    await_word_or_death(&comm, 1, 1);
    let abandoned = Err(WindowError::Abandoned { target: 0, by: vec![1] });
    assert_eq!(window.lock(0, LockKind::Shared), abandoned);
    meet(&comm);
    window.unlock(0).unwrap();
    meet(&comm);
    if comm.rank() == 3 {
        assert_eq!(window.lock(0, LockKind::Exclusive), abandoned);
        window.unlock(0).unwrap();
    }
    meet(&comm);
    window.lock(0, LockKind::Shared).unwrap();
    window.unlock(0).unwrap();
    end(job, &comm, &window);
}

/// Rank 1 dies with the lock. Rank 2 takes its place and waits for rank 3, which shares the lock.
/// Rank 0 forces both out and holds the lock until rank 2 is interrupted. The death of rank 1 is
/// reported to exactly one of the members that take the lock exclusively, in whichever order they
/// take it.
fn a_forced_successor_leaves_the_report_of_a_death_to_the_next(job: &Job) {
    let comm = world(job);
    let window = Window::allocate(&comm, 64).unwrap();
    let abandoned = Err(WindowError::Abandoned { target: 0, by: vec![1] });
    let tell_whether = |is_told: bool| comm.send(3, 5, &[u8::from(is_told)]).unwrap();
    match comm.rank() {
        1 => {
            window.lock(0, LockKind::Exclusive).unwrap();
            tell(&comm, 3, 1);
            die(job);
        }
        3 => {
            await_word_or_death(&comm, 1, 1);
            assert_eq!(window.lock(0, LockKind::Shared), abandoned);
            tell(&comm, 2, 2);
            let told = [0, 2].map(|rank| comm.receive(rank, 5).unwrap().bytes == [1]);
            assert_eq!(window.check_lock(0), Err(WindowError::LockLost { target: 0 }));
            let found = window.lock(0, LockKind::Exclusive);
            assert_eq!(found, if told.contains(&true) { Ok(()) } else { abandoned });
            assert_ne!(told, [true; 2], "once is enough");
            window.unlock(0).unwrap();
            window.lock(0, LockKind::Exclusive).unwrap();
            window.unlock(0).unwrap();
        }
        2 => {
            await_word(&comm, 3, 2);
            rank_dies(&comm, job, 1);
            tell(&comm, 0, 3);
            let taken = window.lock(0, LockKind::Exclusive);
            let is_told = taken == abandoned;
            match taken {
                Err(WindowError::Interrupted { by: 0 }) => {}
                // Rank 0 forces the holders in turn: rank 2 may get the lock when rank 3 is out,
                // and then lose it.
                Ok(()) | Err(WindowError::Abandoned { .. }) => {
                    let released = window.unlock(0);
                    assert!(
                        matches!(released, Ok(()) | Err(WindowError::LockLost { .. })),
                        "{released:?}"
                    );
                }
                other => panic!("{other:?}"),
            }
            tell(&comm, 0, 4);
            tell_whether(is_told);
        }
        _ => {
            await_word(&comm, 2, 3);
            wait_until(job, "rank 2 in the place of the dead", || {
                window.holders(0).unwrap().contains(&2)
            });
            pause(job, Duration::from_millis(5));
            window.force_unlock(0).unwrap();
            let taken = window.lock(0, LockKind::Exclusive);
            assert!(taken == Ok(()) || taken == abandoned, "{taken:?}");
            // Ends the wait of rank 2, unless rank 2 had the lock already: then it is in no wait
            // that this would end.
            comm.interrupt(2).unwrap();
            await_word(&comm, 2, 4);
            window.unlock(0).unwrap();
            tell_whether(taken == abandoned);
        }
    }
    end(job, &comm, &window);
}

/// Rank 1 dies with the lock. Rank 2 waits for it while rank 3 shares it, gives up, and leaves no
/// trace.
fn a_waiter_that_gives_up_leaves_the_report_of_a_death_to_the_next(job: &Job) {
    let comm = world(job);
    let window = Window::allocate(&comm, 64).unwrap();
    if comm.rank() == 1 {
        window.lock(0, LockKind::Exclusive).unwrap();
        [0, 2, 3].iter().for_each(|&rank| tell(&comm, rank, 1));
        die(job);
    }
    await_word_or_death(&comm, 1, 1);
    rank_dies(&comm, job, 1);
    let abandoned = Err(WindowError::Abandoned { target: 0, by: vec![1] });
    if comm.rank() == 3 {
        assert_eq!(window.lock(0, LockKind::Shared), abandoned);
    }
    meet(&comm);
    if comm.rank() == 2 {
        let limit = Duration::from_millis(20);
        let result = window.lock_within(0, LockKind::Exclusive, limit);
        assert_eq!(result, Err(WindowError::LockTimeout { target: 0, holder: 3, limit }));
        assert_eq!(window.holders(0), Ok(vec![1, 3]));
    }
    meet(&comm);
    if comm.rank() == 3 {
        window.unlock(0).unwrap();
        assert_eq!(window.lock(0, LockKind::Exclusive), abandoned);
        window.unlock(0).unwrap();
    }
    end(job, &comm, &window);
}

/// Rank 1 holds the lock and is stopped. Rank 2 takes it away, locks, and wakes rank 1 while
/// holding it.
fn a_forced_holder_wakes_late(job: &Job) {
    let comm = world(job);
    let window = Window::allocate(&comm, 64).unwrap();
    match comm.rank() {
        1 => {
            window.lock(0, LockKind::Exclusive).unwrap();
            window.put_blocking(0, 0, &[1; 16]).unwrap();
            tell(&comm, 2, 1);
            // Stopped at some point in here.
            await_word(&comm, 2, 2);
            let lost = WindowError::LockLost { target: 0 };
            let exclusive = LockKind::Exclusive;
            match job.now().0 % 6 {
                0 => assert_eq!(window.put(0, 0, &[9; 16]), Err(lost)),
                1 => assert_eq!(window.unlock(0), Err(lost)),
                2 => assert_eq!(window.lock(0, exclusive), Err(lost)),
                3 => assert_eq!(window.lock_within(0, exclusive, Duration::ZERO), Err(lost)),
                4 => assert_eq!(window.lock_all(), Err(lost)),
                _ => assert_eq!(window.flush(0), Err(lost)),
            }
            assert_eq!(window.unlock(0), Err(WindowError::NotLocked { target: 0 }));
            assert_eq!(window.put(0, 0, &[9; 16]), Err(WindowError::NotLocked { target: 0 }));
            tell(&comm, 2, 3);
            // The lock of the new holder is respected.
            window.lock(0, LockKind::Exclusive).unwrap();
            assert_eq!(word(&window, 0, 0), 0x0303_0303_0303_0303);
            window.unlock(0).unwrap();
        }
        2 => {
            await_word(&comm, 1, 1);
            job.inject(Fault::Stop(MemberId(1))).unwrap();
            let limit = Duration::from_millis(5);
            let result = window.lock_within(0, LockKind::Exclusive, limit);
            assert_eq!(result, Err(WindowError::LockTimeout { target: 0, holder: 1, limit }));
            assert_eq!(window.force_unlock(0), Ok(vec![1]));
            assert_eq!(window.force_unlock(0), Ok(vec![]), "it is free");
            window.lock(0, LockKind::Exclusive).unwrap();
            window.put_blocking(0, 0, &[2; 16]).unwrap();
            job.inject(Fault::Resume(MemberId(1))).unwrap();
            tell(&comm, 1, 2);
            await_word(&comm, 1, 3);
            window.check_lock(0).unwrap();
            assert_eq!(word(&window, 0, 0), 0x0202_0202_0202_0202);
            window.put_blocking(0, 0, &[3; 16]).unwrap();
            window.unlock(0).unwrap();
        }
        _ => {}
    }
    end(job, &comm, &window);
}

fn a_forced_shared_holder_wakes_late(job: &Job) {
    let comm = world(job);
    let window = Window::open(&comm, 64).unwrap();
    match comm.rank() {
        1 | 3 => {
            window.lock(0, LockKind::Shared).unwrap();
            tell(&comm, 2, 1);
            await_word(&comm, 2, 2);
            assert_eq!(window.get(0, 0, &mut [0; 8]), Err(WindowError::LockLost { target: 0 }));
            tell(&comm, 2, 3);
            window.lock(0, LockKind::Shared).unwrap();
            window.unlock(0).unwrap();
        }
        2 => {
            await_word(&comm, 1, 1);
            await_word(&comm, 3, 1);
            job.inject(Fault::Stop(MemberId(3))).unwrap();
            assert_eq!(window.holders(0), Ok(vec![1, 3]));
            let limit = Duration::from_millis(2);
            let result = window.lock_within(0, LockKind::Exclusive, limit);
            assert!(
                matches!(result, Err(WindowError::LockTimeout { holder: 1 | 3, .. })),
                "{result:?}"
            );
            assert_eq!(window.force_unlock(0), Ok(vec![1, 3]));
            window.lock_within(0, LockKind::Exclusive, limit).unwrap();
            job.inject(Fault::Resume(MemberId(3))).unwrap();
            [1, 3].iter().for_each(|&rank| tell(&comm, rank, 2));
            [1, 3].iter().for_each(|&rank| await_word(&comm, rank, 3));
            window.unlock(0).unwrap();
        }
        _ => {}
    }
    end(job, &comm, &window);
}

fn a_lock_times_out_and_names_its_holder(job: &Job) {
    let comm = world(job);
    let window = Window::allocate(&comm, 64).unwrap();
    if comm.rank() == 1 {
        window.lock(2, LockKind::Exclusive).unwrap();
    }
    comm.barrier().unwrap();
    if comm.rank() != 1 {
        for kind in [LockKind::Exclusive, LockKind::Shared] {
            for limit in [Duration::ZERO, Duration::from_millis(3)] {
                let result = window.lock_within(2, kind, limit);
                assert_eq!(result, Err(WindowError::LockTimeout { target: 2, holder: 1, limit }));
            }
        }
        assert_eq!(window.holders(2), Ok(vec![1]));
    }
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        window.unlock(2).unwrap();
    }
    comm.barrier().unwrap();
    window.lock_within(2, LockKind::Shared, Duration::from_secs(5)).unwrap();
    window.unlock(2).unwrap();
    end(job, &comm, &window);
}

fn an_interrupt_ends_a_lock_wait(job: &Job) {
    let comm = world(job);
    let window = Window::allocate(&comm, 64).unwrap();
    match comm.rank() {
        1 => {
            window.lock(0, LockKind::Exclusive).unwrap();
            tell(&comm, 2, 1);
            pause(job, Duration::from_millis(2));
            comm.interrupt(2).unwrap();
            await_word(&comm, 2, 2);
            window.unlock(0).unwrap();
        }
        2 => {
            await_word(&comm, 1, 1);
            assert_eq!(
                window.lock(0, LockKind::Exclusive),
                Err(WindowError::Interrupted { by: 1 })
            );
            assert_eq!(window.holders(0), Ok(vec![1]));
            tell(&comm, 1, 2);
            window.lock(0, LockKind::Exclusive).unwrap();
            window.unlock(0).unwrap();
        }
        _ => {}
    }
    end(job, &comm, &window);
}

fn a_blocking_put_is_visible_when_it_returns(job: &Job) {
    let comm = world(job);
    let window = Window::open(&comm, 4096).unwrap();
    let (me, size) = (comm.rank(), comm.size());
    for round in 1..4u8 {
        window.put_blocking((me + 1) % size, 512 * u64::from(round), &[round; 500]).unwrap();
        // Sent after the put, so that the receiver sees the put.
        tell(&comm, (me + 1) % size, u32::from(round));
        await_word(&comm, (me + size - 1) % size, u32::from(round));
        let mut seen = [0; 500];
        window.get(me, 512 * u64::from(round), &mut seen).unwrap();
        assert_eq!(seen, [round; 500]);
    }
    comm.barrier().unwrap();
    end(job, &comm, &window);
}

/// Rank 1 dies while the others call every operation on its memory. Each call ends with the error
/// that rank 1 failed.
fn a_target_dies_under_every_operation(job: &Job) {
    let comm = world(job);
    let window = Window::open(&comm, 4096).unwrap();
    if comm.rank() == 1 {
        pause(job, Duration::from_micros(50 * (1 + job.now().0 % 40)));
        die(job);
    }
    let mut buffer = vec![0; 3000];
    let mut calls: Vec<Box<dyn FnMut() -> Result<(), WindowError>>> = vec![
        Box::new(|| window.put(1, 0, &[1; 3000])),
        Box::new(|| window.put_blocking(1, 0, &[2; 3000])),
        Box::new(|| window.get(1, 0, &mut buffer)),
        Box::new(|| window.flush(1)),
        Box::new(|| window.accumulate(1, 3200, Update::Sum, &[1u64; 4])),
        Box::new(|| window.accumulate(1, 3240, Update::Max, &[1i64; 4])),
        Box::new(|| window.fetch_and_op(1, 3200, Update::Xor, 5u64).map(|_| ())),
        Box::new(|| window.compare_and_swap(1, 3200, 1u64, 2).map(|_| ())),
        Box::new(|| window.len(1).map(|_| ())),
        Box::new(|| window.lock(1, LockKind::Exclusive).and_then(|()| window.unlock(1))),
        Box::new(|| window.lock(1, LockKind::Shared).and_then(|()| window.unlock(1))),
        Box::new(|| window.force_unlock(1).map(|_| ())),
        Box::new(|| window.start_put(1, 0, &[3; 100])?.wait().map(|_| ())),
        Box::new(|| window.start_get(1, 0, 100)?.wait().map(|_| ())),
    ];
    let mut live: Vec<usize> = (0..calls.len()).collect();
    let until = job.now().after(Duration::from_secs(20));
    while !live.is_empty() {
        assert!(job.now() < until, "{live:?} never say that their target is dead");
        live.retain(|&index| match calls[index]() {
            // Forced out by another member, independently of the target.
            Ok(()) | Err(WindowError::LockLost { .. } | WindowError::NotLocked { .. }) => true,
            Err(error) => {
                assert_eq!(error, failed(1), "call {index}");
                false
            }
        });
    }
    drop(calls);
    assert_eq!(window.get_failed(), [1]);
    // The other targets are as before.
    window.put_blocking(((comm.rank() + 2) % 4) & !1, 0, b"alive").unwrap();
    assert_eq!(window.flush_all(), Err(failed(1)));
    end(job, &comm, &window);
}

fn a_target_dies_while_its_lock_is_waited_for(job: &Job) {
    let comm = world(job);
    let window = Window::allocate(&comm, 64).unwrap();
    match comm.rank() {
        1 => {
            await_word(&comm, 0, 1);
            pause(job, Duration::from_millis(2));
            die(job);
        }
        0 => {
            window.lock(1, LockKind::Exclusive).unwrap();
            [1, 2, 3].iter().for_each(|&rank| tell(&comm, rank, 1));
            rank_dies(&comm, job, 1);
            assert_eq!(window.unlock(1), Err(failed(1)));
        }
        rank => {
            await_word(&comm, 0, 1);
            let kind = if rank == 2 { LockKind::Exclusive } else { LockKind::Shared };
            assert_eq!(window.lock(1, kind), Err(failed(1)));
            assert_eq!(window.unlock(1), Err(failed(1)));
        }
    }
    end(job, &comm, &window);
}

// ---- Revoking, shrinking, ending.

fn a_revoke_releases_the_waiters_of_a_window(job: &Job) {
    let comm = world(job);
    let window = Window::allocate(&comm, 64).unwrap();
    let other = Window::open(&comm, 64).unwrap();
    match comm.rank() {
        1 => {
            window.lock(0, LockKind::Exclusive).unwrap();
            tell(&comm, 2, 1);
            tell(&comm, 3, 1);
            pause(job, Duration::from_millis(2));
            window.revoke().unwrap();
            assert!(window.is_revoked());
        }
        0 => {
            // Makes no call of windows or communicators.
            wait_until(job, "the news of the revoke", || window.is_revoked());
        }
        rank => {
            await_word(&comm, 1, 1);
            let kind = if rank == 2 { LockKind::Exclusive } else { LockKind::Shared };
            assert_eq!(window.lock(0, kind), Err(WindowError::Revoked));
        }
    }
    wait_until(job, "the news of the revoke", || window.is_revoked());
    let revoked = Err(WindowError::Revoked);
    assert_eq!(window.put(0, 0, &[1]), revoked);
    assert_eq!(window.flush_all(), revoked);
    assert_eq!(window.lock_all(), revoked);
    assert_eq!(window.grow(8), Err(WindowError::Revoked));
    // Calls that end an access still work. Other windows and the communicator are not affected.
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        window.unlock(0).unwrap();
    }
    other.put_blocking(0, 0, &[1]).unwrap();
    assert!(!comm.is_revoked() && !other.is_revoked());
    comm.barrier().unwrap();
    window.free().unwrap();
    end(job, &comm, &other);
}

fn a_revoked_window_goes_on_after_a_shrink(job: &Job) {
    let comm = world(job);
    let window = Window::open(&comm, 64).unwrap();
    window.put_blocking(comm.rank(), 0, &[comm.rank() as u8 + 1; 8]).unwrap();
    meet(&comm);
    match comm.rank() {
        2 => {
            window.lock(0, LockKind::Exclusive).unwrap();
            die(job);
        }
        3 => {
            // Held during the whole scenario.
            window.lock(1, LockKind::Exclusive).unwrap();
            rank_dies(&comm, job, 2);
            window.revoke().unwrap();
        }
        _ => {}
    }
    for round in 0..2 {
        wait_until(job, "the news of the revoke", || window.is_revoked());
        assert_eq!(window.get(0, 0, &mut [0]), Err(WindowError::Revoked));
        let gone = window.shrink().unwrap();
        assert_eq!(gone, if round == 0 { vec![2] } else { vec![] });
        // Only when all have shrunk the window: the next revoke is for the window as it is now.
        meet(&comm);
        assert!(!window.is_revoked());
        for rank in [0, 1, 3] {
            let mut seen = [0; 8];
            window.get(rank, 0, &mut seen).unwrap();
            assert_eq!(seen, [rank as u8 + 1; 8], "memory and ranks are as before");
        }
        window.flush_all().unwrap();
        meet(&comm);
        if round == 0 && comm.rank() == 0 {
            window.revoke().unwrap();
        }
    }
    if comm.rank() == 3 {
        window.check_lock(1).unwrap();
        window.unlock(1).unwrap();
    }
    if comm.rank() == 0 {
        match window.lock(0, LockKind::Exclusive) {
            Ok(()) => {}
            Err(WindowError::Abandoned { by, .. }) => assert_eq!(by, [2]),
            other => panic!("{other:?}"),
        }
    }
    // Closing releases the held locks.
    end(job, &comm, &window);
}

fn a_window_shrinks_and_its_communicator_does_not(job: &Job) {
    let comm = world(job);
    let window = Window::allocate(&comm, 64).unwrap();
    window.lock_all().unwrap();
    window.put(comm.rank(), 0, &[comm.rank() as u8 + 1; 8]).unwrap();
    window.flush_all().unwrap();
    meet(&comm);
    let mut gone = Vec::new();
    for victim in [1, 2] {
        if comm.rank() == victim {
            die(job);
        }
        rank_dies(&comm, job, victim);
        assert_eq!(window.flush_all(), Err(failed(victim)));
        assert_eq!(window.put(victim, 0, &[1]), Err(failed(victim)));
        assert_eq!(window.shrink(), Ok(vec![victim]));
        assert_eq!(window.shrink(), Ok(vec![]));
        gone.push(victim);
        // The locks at the survivors are still held, and operations on them go on.
        window.flush_all().unwrap();
        for rank in (0..4).filter(|rank| !gone.contains(rank)) {
            let mut seen = [0; 8];
            window.get(rank, 0, &mut seen).unwrap();
            assert_eq!(seen, [rank as u8 + 1; 8], "memory and ranks are as before");
        }
        assert_eq!(
            window.put(victim, 0, &[1]),
            Err(failed(victim)),
            "a dead target stays an error"
        );
        meet(&comm);
        window.unlock_all().unwrap();
        meet(&comm);
        window.lock_all().unwrap();
        meet(&comm);
    }
    assert_eq!((window.get_failed(), comm.size()), (vec![1, 2], 4));
    window.unlock_all().unwrap();
    end(job, &comm, &window);
}

fn an_open_window_needs_no_lock(job: &Job) {
    let comm = world(job);
    let window = Window::open(&comm, 64).unwrap();
    window.accumulate(0, 0, Update::Sum, &[1u64]).unwrap();
    window.flush(0).unwrap();
    comm.barrier().unwrap();
    assert_eq!(word(&window, 0, 0), comm.size() as u64);
    // Closed with locks held and operations in flight.
    if comm.rank() == 1 {
        window.lock(2, LockKind::Exclusive).unwrap();
    }
    window.put(0, 8 + comm.rank() as u64, &[1]).unwrap();
    window.close().unwrap();
    meet(&comm);
    job.leave().unwrap();
}

fn a_locked_window_is_not_freed(job: &Job) {
    let comm = world(job);
    let window = Window::allocate(&comm, 64).unwrap();
    let kind = if job.now().0.is_multiple_of(2) { LockKind::Exclusive } else { LockKind::Shared };
    if comm.rank() == 1 {
        window.lock(2, kind).unwrap();
    }
    let still = Err(WindowError::StillLocked { target: 2, holder: 1 });
    comm.barrier().unwrap();
    assert_eq!(window.free(), still);
    assert_eq!(window.free(), still);
    if comm.rank() == 1 {
        window.put(2, 0, b"as before").unwrap();
        window.unlock(2).unwrap();
    }
    window.free().unwrap();
    assert_eq!(window.free(), Err(WindowError::Freed));
    meet(&comm);
    job.leave().unwrap();
}

fn a_lock_of_a_dead_member_does_not_keep_a_window(job: &Job) {
    let comm = world(job);
    let window = Window::allocate(&comm, 64).unwrap();
    let target = if job.now().0.is_multiple_of(2) { 1 } else { 2 };
    if comm.rank() == 1 {
        window.lock(target, LockKind::Shared).unwrap();
        window.lock(3 - target, LockKind::Exclusive).unwrap();
        die(job);
    }
    // Some free the window before they know of the death.
    if comm.rank() == 2 {
        rank_dies(&comm, job, 1);
    }
    window.free().unwrap();
    job.leave().unwrap();
}

// ---- Memory that comes and goes.

/// Rank 1 grows its window while the others read its end.
fn others_read_while_a_member_grows(job: &Job) {
    const ROUNDS: u64 = 12;
    let comm = world(job);
    let window = Window::open(&comm, 16).unwrap();
    if comm.rank() == 1 {
        for round in 1..=ROUNDS {
            // Odd lengths, too: then words cross the borders of ranges.
            let len = window.grow(if round % 2 == 0 { 24 } else { 17 + round }).unwrap();
            window.put_blocking(1, len - 4, &[round as u8; 4]).unwrap();
            window.put_blocking(1, 0, &len.to_le_bytes()).unwrap();
        }
        window.put_blocking(1, 8, &1u64.to_le_bytes()).unwrap();
    } else {
        let mut seen = 16;
        let until = job.now().after(Duration::from_secs(20));
        loop {
            let is_over = word(&window, 1, 8) == 1;
            let told = word(&window, 1, 0);
            let len = window.len(1).unwrap();
            assert!(
                len >= told && told >= if seen == 16 { 0 } else { seen },
                "{len} {told} {seen}"
            );
            if told > 16 {
                let mut whole = vec![9; told as usize];
                window.get(1, 0, &mut whole).unwrap();
                let last = &whole[told as usize - 4..];
                assert!(last[0] != 0 && last.iter().all(|byte| byte == &last[0]), "{last:?}");
                seen = told;
            }
            let beyond = window.get(1, len + 1000, &mut [0]);
            assert!(matches!(beyond, Err(WindowError::OutOfRange { .. })), "{beyond:?}");
            if is_over {
                break;
            }
            assert!(job.now() < until, "growing never ends");
        }
    }
    comm.barrier().unwrap();
    // Reads and writes over the borders of ranges.
    if comm.rank() == 2 {
        let len = window.len(1).unwrap() - 16;
        let data: Vec<u8> = (0..len).map(|at| at as u8).collect();
        window.put(1, 16, &data).unwrap();
        window.flush(1).unwrap();
        let mut back = vec![0; len as usize];
        window.get(1, 16, &mut back).unwrap();
        assert_eq!(back, data);
    }
    end(job, &comm, &window);
}

/// Rank 1 attaches and detaches ranges, each filled with its own number, while rank 2 reads and
/// rank 3 writes them. No member ever sees the number of another range, and no late write hits
/// another range.
fn ranges_are_attached_and_detached_under_access(job: &Job) {
    const ROUNDS: u64 = 10;
    const LEN: usize = 192;
    let comm = world(job);
    let window = Window::open(&comm, 16).unwrap();
    let filled = |offset: u64| offset.to_le_bytes().repeat(LEN / 8 - 1);
    if comm.rank() == 1 {
        let mut previous = None;
        let mut used = std::collections::BTreeSet::new();
        for _ in 0..ROUNDS {
            let offset = window.attach(LEN as u64).unwrap();
            assert!(used.insert(offset), "an offset is never given out twice");
            let mut fresh = [1; LEN];
            window.get(1, offset, &mut fresh).unwrap();
            assert_eq!(fresh, [0; LEN], "a new range is cleared, and no late write hits it");
            window.put_blocking(1, offset, &filled(offset)).unwrap();
            window.put_blocking(1, 0, &offset.to_le_bytes()).unwrap();
            if let Some(previous) = previous.replace(offset) {
                let mut last = vec![0; LEN];
                window.get(1, previous, &mut last).unwrap();
                assert_eq!(last[..LEN - 8], filled(previous), "only its own writers were here");
                let tag = u64::from_le_bytes(last[LEN - 8..].try_into().unwrap());
                assert!(tag == 0 || tag == previous, "{tag:#x} in {previous:#x}");
                window.detach(previous).unwrap();
                assert!(matches!(window.detach(previous), Err(WindowError::NotAttached { .. })));
                let gone = window.get(1, previous, &mut [0; 8]);
                assert_eq!(
                    gone,
                    Err(WindowError::NotAttached { target: 1, offset: previous, len: 8 })
                );
                // Reserves the memory at once if it was released too early.
                let place = job.reserve(LEN as u64).unwrap();
                job.put(Epoch::ANY, job.me(), place, &[0xEE; LEN]).unwrap();
                pause(job, Duration::from_micros(20));
                let mut kept = [0; LEN];
                job.get(Epoch::ANY, job.me(), place, &mut kept).unwrap();
                assert_eq!(kept, [0xEE; LEN], "a late write hit memory that was given back");
                job.release(place, LEN as u64);
            }
        }
        window.put_blocking(1, 8, &1u64.to_le_bytes()).unwrap();
    } else {
        let until = job.now().after(Duration::from_secs(50));
        while word(&window, 1, 8) == 0 {
            assert!(job.now() < until, "attaching never ends");
            let offset = word(&window, 1, 0);
            if offset == 0 {
                continue;
            }
            let result = if comm.rank() == 2 {
                let mut seen = vec![0; LEN];
                window.get(1, offset, &mut seen).map(|()| {
                    assert_eq!(seen[..LEN - 8], filled(offset), "never that of another range");
                })
            } else {
                window
                    .put(1, offset + LEN as u64 - 8, &offset.to_le_bytes())
                    .and_then(|()| window.flush(1))
            };
            match result {
                Ok(()) | Err(WindowError::NotAttached { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    meet(&comm);
    if comm.rank() == 1 {
        wait_until(job, "all memory is given back", || window.bytes_aside().unwrap() == 0);
    }
    end(job, &comm, &window);
}

/// Rank 0 knows of a death and tells rank 2 only: rank 2 knows at once.
fn failures_are_told_to_chosen_members(job: &Job) {
    let comm = world(job);
    let window = Window::open(&comm, 64).unwrap();
    match comm.rank() {
        1 => die(job),
        0 => {
            rank_dies(&comm, job, 1);
            comm.notify_failures(&[2]).unwrap();
            tell(&comm, 2, 1);
        }
        2 => {
            // Without a wait: the message comes after the notice.
            await_word(&comm, 0, 1);
            assert_eq!(window.get_failed(), [1]);
            assert_eq!(window.put(1, 0, &[1]), Err(failed(1)));
        }
        _ => {}
    }
    rank_dies(&comm, job, 1);
    end(job, &comm, &window);
}

/// An exclusive lock excludes all others, a shared lock only exclusive locks.
fn shared_locks_coexist_and_an_exclusive_lock_excludes(job: &Job) {
    let comm = world(job);
    let window = Window::allocate(&comm, 64).unwrap();
    for _ in 0..4 {
        if comm.rank().is_multiple_of(2) {
            window.lock(1, LockKind::Exclusive).unwrap();
            let count = word(&window, 1, 0) + 1;
            window.put(1, 0, &count.to_le_bytes()).unwrap();
            window.flush(1).unwrap();
            window.put(1, 32, &count.to_le_bytes()).unwrap();
            window.unlock(1).unwrap();
        } else {
            window.lock(1, LockKind::Shared).unwrap();
            assert_eq!(word(&window, 1, 0), word(&window, 1, 32));
            window.unlock(1).unwrap();
        }
    }
    comm.barrier().unwrap();
    window.lock(1, LockKind::Shared).unwrap();
    assert_eq!(word(&window, 1, 32), 8);
    window.unlock(1).unwrap();
    end(job, &comm, &window);
}
