//! The rules of ULFM for communicators, with real processes and real kills: for each rule of
//! `docs/ulfm-conformance.md` that `sim/rma/communicator.rs` tests over many seeds, a test of the
//! rule here. [`super::communicator`] tests the calls as such.

use crate::members::{
    LIMIT, STEP, die, expect_ok, expect_ok_within, is_member, leave_together, members, parameter,
};
use crate::reexecution::this_test;
use outlast::Job;
use outlast::engine::Fault;
use outlast::launch::Launch;
use outlast::rma::{Communicator, Error, Op, Source, Tag, Window, wait_all, wait_any, wait_some};
use std::time::{Duration, Instant};

fn launch(test: &str, count: usize, step: u64) -> Launch {
    members(test, count).env(STEP, step.to_string()).segment_limit(16 << 20)
}

/// Starts this binary as the members of a test. Returns the members' outputs, and how many of them
/// died. In a member, runs `body` and returns nothing.
fn with_members(
    test: &str,
    count: usize,
    step: u64,
    body: impl FnOnce(Communicator),
) -> Option<(Vec<String>, usize)> {
    if is_member(test) {
        let job = outlast::join().unwrap();
        body(Communicator::world(&job).unwrap());
        return None;
    }
    let running = launch(test, count, step).start().unwrap();
    let outcome = expect_ok_within(running, LIMIT, &format!("{test}, step {step}"));
    let output = outcome.members.iter().map(|end| outcome.stdout(end.member)).collect();
    Some((output, outcome.deaths().count()))
}

/// The step at which to die, or another number that the test has chosen for its members.
fn step() -> u64 {
    parameter(STEP)
}

fn die_at_step(job: &Job, step: u64) {
    job.inject(Fault::DieAtStep(step)).unwrap();
}

/// The distinct lines that contain `what`, from there on. The test harness prints in front of the
/// first line.
fn distinct<'a>(output: &'a [String], what: &str) -> Vec<&'a str> {
    let lines = output.iter().flat_map(|text| text.lines());
    let mut lines: Vec<&str> =
        lines.filter_map(|line| line.find(what).map(|at| &line[at..])).collect();
    lines.sort_unstable();
    lines.dedup();
    lines
}

/// A member that does not communicate with the dead member notices nothing, in their common
/// communicator.
#[test]
fn failure_notification_is_local() {
    with_members(this_test!(), 3, 0, |comm| {
        comm.agree_despite_failures(0).unwrap();
        match comm.rank() {
            0 => die(),
            1 => {
                assert_eq!(comm.receive(0, 0), Err(Error::ProcFailed { ranks: vec![0] }));
                for round in 0..10 {
                    comm.send(2, 0, &[round]).unwrap();
                    assert_eq!(comm.receive(2, 0).unwrap().bytes, [round]);
                }
            }
            _ => {
                for round in 0..10 {
                    assert_eq!(comm.receive(1, 0).unwrap().bytes, [round]);
                    comm.send(1, 0, &[round]).unwrap();
                }
            }
        }
        assert_eq!(comm.agree(0), Err(Error::ProcFailed { ranks: vec![0] }));
        leave_together(&comm);
    });
}

/// If a request of a set failed, the others report that they are pending, and can be continued.
#[test]
fn in_a_set_with_a_failed_request_the_others_are_pending_and_stay_usable() {
    let test = this_test!();
    with_members(test, 4, 0, |comm| {
        comm.agree_despite_failures(0).unwrap();
        match comm.rank() {
            0 => {
                let mut requests: Vec<_> =
                    (1..4).map(|from| comm.start_receive(from, 0).unwrap()).collect();
                let results = wait_all(&mut requests).unwrap();
                assert_eq!(results[0], Err(Error::ProcFailed { ranks: vec![1] }));
                for result in &results[1..] {
                    assert_eq!(*result, Err(Error::ProcFailedPending { ranks: vec![1] }));
                }
                requests[0] = comm.start_receive(1, 9).unwrap();
                let some = wait_some(&mut requests).unwrap();
                assert_eq!(some[0], (0, Err(Error::ProcFailed { ranks: vec![1] })));
                assert!(requests[0].is_over() && !requests[1].is_over() && !requests[2].is_over());
                comm.send(2, 0, b"go").unwrap();
                comm.send(3, 0, b"go").unwrap();
                for _ in 0..2 {
                    let (index, result) = wait_any(&mut requests).unwrap();
                    assert_eq!(result.unwrap().source, index + 1);
                }
                assert_eq!(wait_any(&mut requests), Err(Error::AlreadyTaken));
            }
            1 => die(),
            rank => {
                comm.receive(0, 0).unwrap();
                comm.send(0, 0, &[rank as u8]).unwrap();
            }
        }
        leave_together(&comm);
    });
}

/// On a revoked communicator `agree` and `shrink` complete, even with a death. All other calls that
/// are not local are refused.
#[test]
fn only_agree_and_shrink_work_on_a_revoked_communicator() {
    with_members(this_test!(), 4, 0, |comm| {
        let mut pending = comm.start_receive(Source::Any, 1).unwrap();
        comm.agree_despite_failures(0).unwrap();
        if comm.rank() == 3 {
            die();
        }
        if comm.rank() == 0 {
            comm.revoke().unwrap();
        }
        loop {
            match pending.wait() {
                Err(Error::Revoked) => break,
                // The death is noticed first.
                Err(Error::ProcFailedPending { .. }) => comm.failure_ack().unwrap(),
                other => panic!("{other:?}"),
            }
        }
        let revoked = Err(Error::Revoked);
        assert!(comm.is_revoked());
        assert_eq!(comm.send(1, 0, b""), revoked);
        assert_eq!(comm.receive(1, 0).map(|_| ()), revoked);
        assert_eq!(comm.start_receive(Source::Any, Tag::Any).err(), Some(Error::Revoked));
        assert_eq!(comm.barrier(), revoked);
        assert_eq!(comm.broadcast(0, &mut []), revoked);
        assert_eq!(comm.allreduce_u64(Op::Sum, &mut [1]), revoked);
        assert_eq!(comm.allgather(b"").map(|_| ()), revoked);
        assert_eq!(comm.duplicate().err(), Some(Error::Revoked));
        assert_eq!(comm.split(None, 0).err(), Some(Error::Revoked));
        assert_eq!(comm.interrupt(1), revoked);
        assert_eq!(comm.notify_failures(&[1]), revoked);
        comm.get_failed().unwrap();
        comm.failure_ack().unwrap();
        assert_eq!(comm.agree_despite_failures(6 | 1 << comm.rank()).unwrap().flags, 6);
        let smaller = comm.shrink().unwrap();
        // The death may not be known to any member yet: then shrink finds it.
        assert!(!smaller.is_revoked() && (3..=4).contains(&smaller.size()));
        leave_together(&smaller);
    });
}

/// Unacknowledged failures are an error at all members or at none, for a death at any step.
#[test]
fn unacknowledged_failures_are_an_error_at_all_members_or_at_none() {
    let test = this_test!();
    for step in 1..13 {
        let ended = with_members(test, 4, 3 * step, |comm| {
            comm.agree_despite_failures(0).unwrap();
            if comm.rank() == 2 {
                die_at_step(comm.job(), self::step());
            }
            for round in 0..6 {
                // Some members acknowledge, some do not: the failure is no error only if all
                // members do.
                if round >= 4 || comm.rank() == round % 2 {
                    comm.failure_ack().unwrap();
                }
                println!("round {round}: {:?}", comm.agree(7));
            }
            if comm.rank() == 2 {
                die();
            }
            leave_together(&comm);
        });
        let Some((output, deaths)) = ended else { return };
        assert_eq!(deaths, 1);
        for round in 0..6 {
            let results = distinct(&output, &format!("round {round}"));
            assert_eq!(results.len(), 1, "{results:?}");
        }
    }
}

/// Survivors of collective operations get success or an error, for a death at any step, and none
/// waits for ever.
#[test]
fn collectives_end_at_all_survivors() {
    for step in 0..16 {
        let ended = with_members(this_test!(), 4, 1 + 7 * step, |comm| {
            let (rank, size) = (comm.rank(), comm.size());
            comm.agree_despite_failures(0).unwrap();
            if rank == self::step() as usize % 4 {
                die_at_step(comm.job(), self::step());
            }
            for round in 0..40 {
                let mut bytes = [rank as u8; 3];
                let mut values = [rank as i64];
                let outcomes = [
                    comm.barrier(),
                    comm.broadcast(round % size, &mut bytes),
                    comm.allreduce_i64(Op::Max, &mut values),
                    comm.allgather(&vec![1; rank]).map(|all| assert_eq!(all[3], [1; 3])),
                    comm.duplicate().and_then(|duplicate| duplicate.barrier()),
                ];
                assert!(outcomes[1].is_err() || bytes == [(round % size) as u8; 3]);
                assert!(outcomes[2].is_err() || values == [3]);
                for outcome in outcomes {
                    assert!(
                        matches!(outcome, Ok(()) | Err(Error::ProcFailed { .. } | Error::Revoked)),
                        "{outcome:?}"
                    );
                }
            }
            leave_together(&comm);
        });
        let Some((_, deaths)) = ended else { return };
        assert_eq!(deaths, 1, "step {step} is reached");
    }
}

/// A failure in a communicator does not disturb another communicator that does not contain the dead
/// member.
#[test]
fn a_failure_in_a_communicator_does_not_disturb_another() {
    with_members(this_test!(), 6, 0, |comm| {
        let half = comm.split(Some(comm.rank() as u32 % 2), 0).unwrap().unwrap();
        comm.agree_despite_failures(0).unwrap();
        if comm.rank() == 3 {
            die();
        }
        if comm.rank() % 2 == 1 {
            while half.barrier().is_ok() {}
            half.revoke().unwrap();
            assert_eq!(half.shrink().unwrap().size(), 2);
        } else {
            // Goes on until all members of this half know of the death.
            let mut round = 0;
            loop {
                let mut sum = [round, u64::from(!comm.get_failed().unwrap().is_empty())];
                half.allreduce_u64(Op::Sum, &mut sum).unwrap();
                assert_eq!(sum[0], 3 * round);
                round += 1;
                if sum[1] == 3 && round > 100 {
                    break;
                }
            }
            assert!(!half.is_revoked());
            assert_eq!(half.agree(9), Ok(9));
        }
        leave_together(&comm);
    });
}

/// The members are killed in turn, the lowest or the highest rank. The others shrink each time,
/// until a single member is left.
#[test]
fn repeated_shrink_down_to_a_single_member() {
    let ended = with_members(this_test!(), 5, 0, |world| {
        let mut comm = world.clone();
        while comm.size() > 1 {
            let victim = if comm.size().is_multiple_of(2) { 0 } else { comm.size() - 1 };
            if comm.rank() == victim {
                die();
            }
            assert_eq!(comm.receive(victim, 0), Err(Error::ProcFailed { ranks: vec![victim] }));
            comm = comm.shrink().unwrap();
        }
        comm.barrier().unwrap();
        assert_eq!(comm.agree(5), Ok(5));
        println!("alone");
        world.job().leave().unwrap();
    });
    let Some((output, deaths)) = ended else { return };
    assert_eq!((deaths, distinct(&output, "alone").len()), (4, 1));
}

/// Iterations with recovery: a member dies in an iteration, and two more at steps of the recovery.
#[test]
fn iterations_go_on_through_failures_also_during_recovery() {
    let test = this_test!();
    for step in 1..13 {
        let ended = with_members(test, 5, 2 * step, |world| {
            let mut comm = world.clone();
            comm.agree_despite_failures(0).unwrap();
            let mut done = 0;
            while done < 8 {
                if done == 3 && world.rank() == 4 {
                    die();
                }
                let mut sum = [1u64];
                let outcome = comm.allreduce_u64(Op::Sum, &mut sum);
                assert!(
                    matches!(outcome, Ok(()) | Err(Error::ProcFailed { .. } | Error::Revoked)),
                    "{outcome:?}"
                );
                if outcome.is_err() {
                    // The lowest rank and another rank die in the middle of the recovery.
                    if world.rank() == 0 || world.rank() == 2 {
                        die_at_step(world.job(), self::step() + world.rank() as u64);
                    }
                    comm.revoke().unwrap();
                }
                let all = comm.agree_despite_failures(u64::from(outcome.is_ok())).unwrap();
                if all.flags == 1 {
                    println!("iteration {done}: {}", sum[0]);
                    done += 1;
                }
                if all.flags == 0 || !all.failed.is_empty() {
                    comm = comm.shrink().unwrap();
                }
            }
            // Members that have not reached their step die here, so that every run has equal
            // deaths.
            if [0, 2].contains(&world.rank()) {
                die();
            }
            leave_together(&comm);
        });
        let Some((output, deaths)) = ended else { return };
        assert_eq!(deaths, 3);
        for iteration in 0..8 {
            let results = distinct(&output, &format!("iteration {iteration}"));
            assert_eq!(results.len(), 1, "{results:?}");
        }
    }
}

/// Late messages and revokes of old communicators never touch later communicators, while members
/// die.
#[test]
fn late_messages_and_revokes_never_touch_a_later_communicator() {
    with_members(this_test!(), 4, 0, |world| {
        let mut comm = world.clone();
        for generation in 0..200u32 {
            if generation == 100 && world.rank() == 1 {
                die();
            }
            for other in 0..comm.size() {
                let _ = comm.send(other, 1, &[generation as u8; 4]);
            }
            if comm.rank().is_multiple_of(2) {
                comm.revoke().unwrap();
            }
            let next = comm.shrink().unwrap();
            assert!(!next.is_revoked(), "revoked before a member did it");
            comm.revoke().unwrap();
            next.failure_ack().unwrap();
            next.agree_despite_failures(0).unwrap();
            assert!(!next.is_revoked(), "hit by a revoke of an older communicator");
            assert_eq!(next.probe(Source::Any, 1), Ok(None), "a message of an older communicator");
            let old = std::mem::replace(&mut comm, next);
            if generation > 0 {
                old.free().unwrap();
                assert_eq!(old.revoke(), Err(Error::Freed));
            }
            // No member revokes the communicator before all have checked it.
            comm.agree_despite_failures(0).unwrap();
        }
        leave_together(&comm);
    });
}

/// The chosen member knows a failure as soon as it receives the message about it.
#[test]
fn failures_are_propagated_to_a_chosen_subset() {
    with_members(this_test!(), 4, 0, |comm| {
        comm.agree_despite_failures(0).unwrap();
        match comm.rank() {
            0 => die(),
            1 => {
                assert!(comm.receive(0, 0).is_err());
                comm.notify_failures(&[2, 0]).unwrap();
                comm.send(2, 7, b"you know").unwrap();
            }
            2 => {
                comm.receive(1, 7).unwrap();
                assert_eq!(comm.get_failed(), Ok(vec![0]));
            }
            _ => {}
        }
        let _ = comm.agree(0);
        assert_eq!(comm.get_failed(), Ok(vec![0]), "agreeing spreads known failures");
        leave_together(&comm);
    });
}

/// A member that makes no call learns of a revoke by a member that dies right after it.
#[test]
fn is_revoked_is_right_at_a_member_that_makes_no_call() {
    with_members(this_test!(), 4, 0, |comm| {
        comm.agree_despite_failures(0).unwrap();
        if comm.rank() == 1 {
            comm.revoke().unwrap();
            die();
        }
        let begin = Instant::now();
        while !comm.is_revoked() {
            assert!(begin.elapsed() < Duration::from_secs(20), "not revoked");
            std::thread::sleep(Duration::from_millis(1));
        }
        leave_together(&comm);
    });
}

/// A duplication succeeds at some members while a member dies or the old communicator is revoked:
/// no member waits for ever.
#[test]
fn no_member_waits_in_a_duplicate_for_members_without_it() {
    for step in 1..13 {
        let ended = with_members(this_test!(), 4, 2 * step, |comm| {
            comm.agree_despite_failures(0).unwrap();
            if comm.rank() == 1 {
                die_at_step(comm.job(), self::step());
            }
            if let Ok(duplicate) = comm.duplicate() {
                if comm.rank() == 3 {
                    comm.revoke().unwrap();
                }
                let outcome = duplicate.barrier();
                assert!(
                    matches!(outcome, Ok(()) | Err(Error::ProcFailed { .. } | Error::Revoked)),
                    "{outcome:?}"
                );
            }
            leave_together(&comm);
        });
        if ended.is_none() {
            return;
        }
    }
}

/// A member is stopped while its queue is full, for longer than the time limit. The messages about
/// a revoke and an agreement are not lost: the member gets them when it goes on.
#[test]
fn a_stopped_member_with_a_full_queue_learns_of_a_revoke_and_an_agreement() {
    let test = this_test!();
    if is_member(test) {
        let job =
            outlast::JoinOptions::new().time_limit(Duration::from_millis(200)).join().unwrap();
        let comm = Communicator::world(&job).unwrap();
        let patiently = |flags| {
            let until = Instant::now() + LIMIT / 2;
            loop {
                match comm.agree(flags) {
                    Err(Error::Timeout { .. }) if Instant::now() < until => {}
                    other => return other,
                }
            }
        };
        assert_eq!(patiently(1), Ok(1));
        let other = comm.duplicate().unwrap();
        assert_eq!(patiently(1), Ok(1));
        if comm.rank() == 0 {
            let member = comm.member(2).unwrap();
            job.inject(Fault::Stop(member)).unwrap();
            while comm.send(2, 99, &[0; 1000]).is_ok() {}
            // Empty messages, so that not even these have room.
            while comm.send(2, 99, &[]).is_ok() {}
            other.revoke().unwrap();
            assert!(matches!(comm.agree(5), Err(Error::Timeout { .. })));
            std::thread::sleep(Duration::from_millis(500));
            job.inject(Fault::Resume(member)).unwrap();
        }
        let until = Instant::now() + LIMIT / 2;
        while !other.is_revoked() {
            assert!(Instant::now() < until, "rank {} has not heard of the revoke", comm.rank());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(patiently(7), Ok(5));
        assert_eq!(patiently(1), Ok(1));
        job.leave().unwrap();
        return;
    }
    with_members(test, 3, 0, |_| {});
}

/// A member leaves the job while all members, itself included, are in collective operations: the
/// others end soon, and none waits for a member that has given up. Then they agree, and none can
/// make a communicator of all members.
#[test]
fn collectives_duplicate_and_split_end_soon_when_a_member_leaves() {
    let test = this_test!();
    for delay_us in [0, 50, 200, 1000, 5000, 20_000] {
        let is_member = with_members(test, 5, delay_us, |comm| {
            let begin = Instant::now();
            let job = comm.job().clone();
            assert_eq!(comm.agree(1), Ok(1));
            if comm.rank() == 1 {
                let (leaving, delay) = (job.clone(), Duration::from_micros(step()));
                let leave = move || {
                    std::thread::sleep(delay);
                    leaving.leave().unwrap();
                };
                job.spawn("leaves", Box::new(leave)).unwrap();
            }
            for round in 0.. {
                let outcome = match round % 5 {
                    0 => comm.allreduce_u64(Op::Sum, &mut [1]),
                    1 => comm.broadcast(round % 3, &mut [1; 8]),
                    2 => comm.duplicate().map(|_| ()),
                    3 => comm.split(Some(0), 0).map(|_| ()),
                    _ => comm.allgather(&[1; 8]).map(|_| ()),
                };
                assert!(begin.elapsed() < LIMIT / 4, "{outcome:?} after {:?}", begin.elapsed());
                if job.has_ended() {
                    return;
                }
                match outcome {
                    Ok(()) => {}
                    Err(Error::ProcFailed { ranks }) => {
                        assert_eq!(ranks, [1]);
                        break;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            assert_eq!(comm.agree_despite_failures(7).unwrap().failed, [1]);
            assert!(matches!(comm.duplicate(), Err(Error::ProcFailed { .. })));
            assert!(matches!(comm.split(None, 0), Err(Error::ProcFailed { .. })));
            assert!(begin.elapsed() < LIMIT / 4);
            leave_together(&comm);
        })
        .is_none();
        if is_member {
            return;
        }
    }
}

/// A member that has left the job gets no answer from an agreement: the others go on without it,
/// and it could not learn their outcome.
#[test]
fn a_member_that_has_left_gets_no_answer_from_an_agreement() {
    let test = this_test!();
    for is_shrink in [0, 1] {
        if is_member(test) {
            let job =
                outlast::JoinOptions::new().time_limit(Duration::from_millis(300)).join().unwrap();
            let comm = Communicator::world(&job).unwrap();
            let call = || match step() {
                0 => comm.agree_despite_failures(!(1 << comm.rank())).map(|answer| answer.flags),
                _ => comm.shrink().map(|_| 0),
            };
            if comm.rank() == 0 {
                assert!(matches!(call(), Err(Error::Timeout { .. })));
                job.leave().unwrap();
                std::thread::sleep(Duration::from_millis(50));
                assert_eq!(call(), Err(Error::Engine(outlast::engine::Error::Ended)));
            } else {
                let until = Instant::now() + LIMIT / 2;
                while job.view().left.is_empty() {
                    assert!(Instant::now() < until, "rank 0 has not left");
                    std::thread::sleep(Duration::from_millis(1));
                }
                call().unwrap();
                job.leave().unwrap();
            }
            return;
        }
        with_members(test, 2, is_shrink, |_| {});
    }
}

/// A member dies, and a spare takes its place, while the others begin: all members have equal world
/// communicators.
#[test]
fn world_communicators_are_equal_though_a_spare_became_active() {
    let test = this_test!();
    const REGULARS: usize = 4;
    if is_member(test) {
        let job = outlast::join().unwrap();
        let me = job.me().index();
        match me {
            0 => die(),
            // Each member begins at another moment: before, around and after the death is known.
            _ => std::thread::sleep(Duration::from_millis(me as u64 * step())),
        }
        if me >= REGULARS {
            assert!(matches!(Communicator::world(&job), Err(Error::Invalid { .. })));
            return job.leave().unwrap();
        }
        let comm = Communicator::world(&job).unwrap();
        assert_eq!(comm.size(), REGULARS);
        assert_eq!(comm.agree_despite_failures(0).unwrap().failed, [0]);
        assert_eq!(comm.shrink().unwrap().size(), REGULARS - 1);
        return job.leave().unwrap();
    }
    for delay_ms in [0, 1, 5] {
        expect_ok(launch(test, REGULARS, delay_ms).spares(1).start().unwrap());
    }
}

/// A failure that a call has reported can be acknowledged at once.
#[test]
fn a_failure_that_was_reported_can_be_acknowledged_at_once() {
    with_members(this_test!(), 4, 0, |comm| {
        let window = Window::open(&comm, 64).unwrap();
        comm.agree(1).unwrap();
        if comm.rank() == 1 {
            die();
        }
        while window.put_blocking(1, 0, &[1; 8]).is_ok() {}
        comm.failure_ack().unwrap();
        assert_eq!(comm.failure_get_acked(), Ok(vec![1]));
        assert_eq!(comm.get_failed(), Ok(vec![1]));
        assert!(comm.agree_despite_failures(0).unwrap().failed.contains(&1));
        leave_together(&comm);
    });
}

/// Agreements, shrinks and duplicates follow each other, with kills, stops and a member that leaves
/// by another thread: all members that get an outcome get equal outcomes.
#[test]
fn agreed_outcomes_are_equal_at_all_members_under_all_faults() {
    let test = this_test!();
    for round in 0..6 {
        let played = with_members(test, 6, round, |world| {
            let (job, round) = (world.job().clone(), step());
            let mut comm = world.clone();
            let delay = Duration::from_micros(300 * round);
            match comm.rank() {
                1 => die_at_step(&job, 1 + 40 * round),
                2 => {
                    let leaving = job.clone();
                    let leave = move || {
                        std::thread::sleep(delay);
                        let _ = leaving.leave();
                    };
                    job.spawn("leaves", Box::new(leave)).unwrap();
                }
                3 => {
                    let (stopping, stopped) = (job.clone(), comm.member(4).unwrap());
                    let stop = move || {
                        std::thread::sleep(delay);
                        stopping.inject(Fault::Stop(stopped)).unwrap();
                        std::thread::sleep(Duration::from_millis(20));
                        stopping.inject(Fault::Resume(stopped)).unwrap();
                    };
                    job.spawn("stops another", Box::new(stop)).unwrap();
                }
                _ => {}
            }
            for call in 0..40 {
                let outcome = match call % 4 {
                    0 => comm.shrink().map(|made| {
                        let said = format!("{} {:?}", made.id(), made.members());
                        comm = made;
                        said
                    }),
                    1 => {
                        let made = comm.duplicate();
                        if let Ok(made) = &made {
                            println!("outcome {call}d: {}", made.id());
                        }
                        comm.agree_despite_failures(u64::from(made.is_ok())).map(|answer| {
                            if let (Ok(made), 1) = (made, answer.flags) {
                                comm = made;
                            }
                            format!("{answer:?}")
                        })
                    }
                    _ => comm
                        .agree_despite_failures(!(1 << comm.rank()))
                        .map(|answer| format!("{answer:?}")),
                };
                match outcome {
                    Ok(said) => println!("outcome {call}: {said}"),
                    Err(error) => {
                        assert!(job.has_ended(), "{error} at {:?}", job.me());
                        return;
                    }
                }
            }
            let _ = job.leave();
        });
        let Some((output, _)) = played else { return };
        let outcomes = distinct(&output, "outcome ");
        assert!(outcomes.len() >= 40, "{outcomes:?}");
        for two in outcomes.windows(2) {
            let call = |line: &str| line.split(':').next().unwrap_or_default().to_string();
            assert_ne!(call(two[0]), call(two[1]), "round {round}: different outcomes: {two:?}");
        }
    }
}
