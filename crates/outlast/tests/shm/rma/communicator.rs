//! Communicators of real processes: what each call does, its errors, and how calls end when a
//! member dies. The rules of ULFM are in [`super::rules`], windows in [`super::window`].

use crate::members::{LIMIT, die, expect_ok_within, is_member, leave_together, members};
use crate::reexecution::this_test;
use outlast::MemberId;
use outlast::rma::{Communicator, Error, Op, Source, TAG_MAX, Tag, wait_all, wait_any};
use std::time::{Duration, Instant};

/// Starts this binary as the members of a test and returns their outputs. In a member, runs `body`
/// and returns nothing.
fn with_members(test: &str, count: usize, body: impl FnOnce(Communicator)) -> Option<Vec<String>> {
    with_members_and(test, count, &[], body)
}

fn with_members_and(
    test: &str,
    count: usize,
    environment: &[(&str, String)],
    body: impl FnOnce(Communicator),
) -> Option<Vec<String>> {
    if is_member(test) {
        let job = outlast::join().unwrap();
        body(Communicator::world(&job).unwrap());
        return None;
    }
    let mut launch = members(test, count).segment_limit(16 << 20);
    for (name, value) in environment {
        launch = launch.env(name, value);
    }
    let what = format!("{test} {environment:?}");
    let outcome = expect_ok_within(launch.start().unwrap(), LIMIT, &what);
    Some(outcome.members.iter().map(|end| outcome.stdout(end.member)).collect())
}

#[test]
fn messages_and_collectives() {
    with_members(this_test!(), 3, |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        assert_eq!((size, comm.member(rank).unwrap()), (3, comm.job().me()));
        let next = (rank + 1) % size;
        for len in [0, 1, 1000, 100_000, 3 << 20] {
            comm.send(next, 5, &vec![rank as u8; len]).unwrap();
            let received = comm.receive(Source::Any, 5).unwrap();
            assert_eq!((received.source + 1) % size, rank);
            assert_eq!(received.bytes, vec![received.source as u8; len]);
        }
        comm.barrier().unwrap();
        let mut bytes = vec![rank as u8; 2 << 20];
        comm.broadcast(2, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 2));
        comm.broadcast(0, &mut []).unwrap();
        let mut values = [rank as u64 + 1, 1 << rank];
        comm.allreduce_u64(Op::Sum, &mut values).unwrap();
        assert_eq!(values, [6, 7]);
        let mut values = [-(rank as i64)];
        comm.allreduce_i64(Op::Min, &mut values).unwrap();
        assert_eq!(values, [-2]);
        let mut values = [0.5 + rank as f64];
        comm.allreduce_f64(Op::Sum, &mut values).unwrap();
        assert_eq!(values, [4.5]);
        let mut values = [!(1u64 << rank)];
        comm.allreduce_u64(Op::And, &mut values).unwrap();
        assert_eq!(values, [!7]);
        let all = comm.allgather(format!("rank {rank}").as_bytes()).unwrap();
        assert_eq!(all[1], b"rank 1");
        let reversed = comm.split(Some(7), -(rank as i64)).unwrap().unwrap();
        assert_eq!(reversed.rank(), 2 - rank);
        assert!(comm.split(None, 0).unwrap().is_none());
        let duplicate = reversed.duplicate().unwrap();
        duplicate.send((duplicate.rank() + 1) % size, 0, b"in another one").unwrap();
        // With its tag, because a rank that is ahead may have sent the next message already, with
        // another tag.
        assert_eq!(comm.probe(Source::Any, 0), Ok(None));
        assert_eq!(duplicate.receive(Source::Any, 0).unwrap().bytes, b"in another one");
        duplicate.free().unwrap();
        assert_eq!(duplicate.barrier(), Err(Error::Freed));
        let requests = [comm.start_send(next, 9, b"x"), comm.start_receive(Source::Any, Tag::Any)];
        let mut requests: Vec<_> = requests.into_iter().map(Result::unwrap).collect();
        assert!(wait_all(&mut requests).unwrap().iter().all(Result::is_ok));
        assert_eq!(wait_any(&mut requests), Err(Error::AlreadyTaken));
        leave_together(&comm);
    });
}

#[test]
fn bad_input_is_refused_and_changes_nothing() {
    with_members(this_test!(), 2, |comm| {
        let (rank, other) = (comm.rank(), 1 - comm.rank());
        let out_of_range = Error::RankOutOfRange { rank: 2, size: 2 };
        assert_eq!(comm.send(2, 0, b""), Err(out_of_range.clone()));
        assert_eq!(comm.receive(2, 0), Err(out_of_range.clone()));
        assert_eq!(comm.broadcast(2, &mut []), Err(out_of_range.clone()));
        assert_eq!(comm.interrupt(2), Err(out_of_range.clone()));
        assert_eq!(comm.notify_failures(&[0, 2]), Err(out_of_range.clone()));
        assert_eq!(comm.member(2), Err(out_of_range));
        let tag = TAG_MAX + 1;
        assert_eq!(comm.send(0, tag, b""), Err(Error::TagOutOfRange { tag }));
        assert_eq!(comm.receive(0, tag), Err(Error::TagOutOfRange { tag }));
        assert!(matches!(comm.allreduce_f64(Op::Or, &mut []), Err(Error::Invalid { .. })));
        assert!(matches!(comm.free(), Err(Error::Invalid { .. })));
        // Empty messages are allowed.
        comm.send(other, TAG_MAX, b"").unwrap();
        assert_eq!(comm.receive_into(other, TAG_MAX, &mut []), Ok((other, TAG_MAX, 0)));
        comm.allreduce_u64(Op::Sum, &mut []).unwrap();
        assert_eq!(comm.allgather(b"").unwrap(), [Vec::<u8>::new(), Vec::new()]);
        // A message too long for the buffer is reported, and not lost.
        comm.send(other, 1, b"12345").unwrap();
        let mut buffer = [0; 4];
        let truncated = Error::Truncated { len: 5, buffer_len: 4 };
        assert_eq!(comm.receive_into(other, 1, &mut buffer), Err(truncated.clone()));
        assert_eq!(comm.receive_into(Source::Any, Tag::Any, &mut buffer), Err(truncated));
        assert_eq!(comm.receive(other, 1).unwrap().bytes, b"12345");
        let freed = comm.duplicate().unwrap();
        freed.free().unwrap();
        assert_eq!(freed.free(), Err(Error::Freed));
        assert_eq!(freed.send(other, 0, b""), Err(Error::Freed));
        assert_eq!(freed.agree(0), Err(Error::Freed));
        assert_eq!(freed.shrink().err(), Some(Error::Freed));
        assert_eq!(freed.revoke(), Err(Error::Freed));
        assert_eq!(freed.get_failed(), Err(Error::Freed));
        // Different roots, lengths and operations are found at both ranks.
        if cfg!(debug_assertions) {
            assert!(matches!(comm.broadcast(rank, &mut [1]), Err(Error::Mismatched { .. })));
            assert!(matches!(
                comm.broadcast(0, &mut vec![1; rank + 1]),
                Err(Error::Mismatched { .. })
            ));
        }
        let op = if rank == 0 { Op::Min } else { Op::Max };
        assert!(matches!(comm.allreduce_u64(op, &mut [1]), Err(Error::Mismatched { .. })));
        let outcome = comm.allreduce_u64(Op::Max, &mut vec![0; rank + 1]);
        assert!(matches!(outcome, Err(Error::Mismatched { .. })), "{outcome:?}");
        let outcome = if rank == 0 { comm.barrier() } else { comm.allgather(b"").map(|_| ()) };
        assert!(matches!(outcome, Err(Error::Mismatched { .. })), "{outcome:?}");
        comm.barrier().unwrap();
        leave_together(&comm);
    });
}

/// A wait for a living member that does nothing ends at the time limit and names the member.
#[test]
fn waits_end_at_the_time_limit() {
    let test = this_test!();
    if is_member(test) {
        let job =
            outlast::JoinOptions::new().time_limit(Duration::from_millis(300)).join().unwrap();
        let comm = Communicator::world(&job).unwrap();
        if comm.rank() == 0 {
            let timeout = |rank| {
                move |error: Error| match error {
                    Error::Timeout { rank: named, member, .. } => {
                        assert_eq!((named, member), (rank, MemberId(rank as u32)));
                    }
                    other => panic!("{other}"),
                }
            };
            comm.receive(1, 0).map_err(timeout(1)).unwrap_err();
            comm.receive(Source::Any, 0).map_err(timeout(1)).unwrap_err();
            let mut request = comm.start_receive(1, 7).unwrap();
            request.wait().map_err(timeout(1)).unwrap_err();
            comm.agree(6).map_err(timeout(1)).unwrap_err();
            comm.send(1, 0, b"go on").unwrap();
            // Neither the request nor the agreement is lost.
            assert_eq!(request.wait().unwrap().bytes, b"late");
            assert_eq!(comm.agree(6), Ok(2));
        } else {
            let received = loop {
                match comm.receive(0, 0) {
                    Err(Error::Timeout { .. }) => continue,
                    other => break other.unwrap(),
                }
            };
            assert_eq!(received.bytes, b"go on");
            comm.send(0, 7, b"late").unwrap();
            assert_eq!(comm.agree(3), Ok(2));
        }
        return leave_together(&comm);
    }
    with_members(test, 2, |_| {});
}

/// Members wait in a receive, a barrier and a duplication. A member dies: all get an error, agree,
/// shrink and go on.
#[test]
fn survivors_get_errors_and_shrink() {
    with_members(this_test!(), 4, |comm| {
        // An agreement, unlike a barrier, is not disturbed by a member that dies as soon as it has
        // the outcome.
        comm.agree_despite_failures(0).unwrap();
        let failed = Error::ProcFailed { ranks: vec![1] };
        match comm.rank() {
            1 => die(),
            0 => assert_eq!(comm.receive(1, 0), Err(failed.clone())),
            2 => assert_eq!(comm.barrier(), Err(failed.clone())),
            _ => assert_eq!(comm.duplicate().err(), Some(failed.clone())),
        }
        assert_eq!(comm.send(1, 0, b""), Err(failed.clone()));
        assert_eq!(comm.get_failed(), Ok(vec![1]));
        assert_eq!(comm.agree(1), Err(failed));
        comm.failure_ack().unwrap();
        assert_eq!(comm.failure_get_acked(), Ok(vec![1]));
        assert_eq!(comm.agree(1 << comm.rank() | 32), Ok(32));
        let smaller = comm.shrink().unwrap();
        assert_eq!(smaller.members(), [MemberId(0), MemberId(2), MemberId(3)]);
        smaller.barrier().unwrap();
        leave_together(&smaller);
    });
}

#[test]
fn revoke_releases_waits_in_all_processes() {
    with_members(this_test!(), 4, |comm| {
        let other = comm.duplicate().unwrap();
        match comm.rank() {
            0 => {
                std::thread::sleep(Duration::from_millis(50));
                other.revoke().unwrap();
            }
            1 => assert_eq!(other.receive(2, 0), Err(Error::Revoked)),
            2 => assert_eq!(other.barrier(), Err(Error::Revoked)),
            _ => {
                // No call since the duplication: only the background receives the revoke.
                let begin = Instant::now();
                while !other.is_revoked() {
                    assert!(begin.elapsed() < Duration::from_secs(20), "not revoked");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        assert_eq!(other.agree(4), Ok(4));
        assert_eq!(other.shrink().unwrap().size(), 4);
        comm.barrier().unwrap();
        leave_together(&comm);
    });
}

#[test]
fn a_wait_is_interrupted_and_the_wildcard_is_pending() {
    with_members(this_test!(), 3, |comm| {
        match comm.rank() {
            0 => {
                assert_eq!(comm.receive(1, 0), Err(Error::Interrupted { by: 2 }));
                comm.send(1, 0, b"die").unwrap();
                let mut request = comm.start_receive(Source::Any, 3).unwrap();
                assert_eq!(request.wait(), Err(Error::ProcFailedPending { ranks: vec![1] }));
                comm.failure_ack().unwrap();
                comm.send(2, 0, b"now").unwrap();
                assert_eq!(request.wait().unwrap().bytes, b"here");
            }
            1 => {
                comm.receive(0, 0).unwrap();
                die();
            }
            _ => {
                comm.interrupt(0).unwrap();
                comm.receive(0, 0).unwrap();
                comm.notify_failures(&[0, 1]).unwrap();
                comm.send(0, 3, b"here").unwrap();
            }
        }
        leave_together(&comm);
    });
}

/// Threads of a member wait concurrently, each on its own communicator and on a common
/// communicator, and the background serves, too.
#[test]
fn threads_share_the_progress() {
    with_members(this_test!(), 2, |comm| {
        let other = 1 - comm.rank();
        let own: Vec<Communicator> = (0..3).map(|_| comm.duplicate().unwrap()).collect();
        std::thread::scope(|scope| {
            for (index, own) in own.iter().enumerate() {
                let comm = &comm;
                scope.spawn(move || {
                    for round in 0..3000u32 {
                        comm.send(other, index as u32, &round.to_le_bytes()).unwrap();
                        let received = comm.receive(other, index as u32).unwrap();
                        assert_eq!(received.bytes, round.to_le_bytes());
                        if round % 16 == 0 {
                            assert_eq!(own.agree(u64::from(round)), Ok(u64::from(round)));
                        }
                    }
                });
            }
        });
        leave_together(&comm);
    });
}

/// A member dies at each engine step of agree and shrink: the lowest rank, another rank, or two
/// ranks.
#[cfg(feature = "faults")]
#[test]
fn a_death_at_each_step_of_agree_and_shrink() {
    use outlast::engine::Fault;
    let test = this_test!();
    let plan = |name: &str| {
        std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
    };
    if is_member(test) {
        with_members(test, 0, |comm| {
            comm.agree_despite_failures(0).unwrap();
            if comm.rank() as u64 == plan("VICTIM") || comm.rank() as u64 == plan("SECOND") {
                comm.job().inject(Fault::DieAtStep(plan("STEP"))).unwrap();
            }
            for round in 0..2 {
                let answer = comm.agree_despite_failures(!(1 << comm.rank())).unwrap();
                println!("agreed {round}: {:#x} {:?}", answer.flags & 0xff, answer.failed);
            }
            let smaller = comm.shrink().unwrap();
            println!("shrunk: {:#x} {:?}", smaller.id(), smaller.members());
            let again = smaller.shrink().unwrap();
            println!("again: {:#x} {:?}", again.id(), again.members());
            // Victims that have not reached their step die here, so that every run has equal
            // deaths.
            if comm.rank() as u64 == plan("VICTIM") || comm.rank() as u64 == plan("SECOND") {
                die();
            }
            leave_together(&again);
        });
        return;
    }
    for (victim, second) in [(0, 0), (2, 2), (0, 1)] {
        for step in (1..40).step_by(if std::env::var("OUTLAST_SEEDS").is_ok() { 1 } else { 3 }) {
            let environment = [
                ("VICTIM", victim.to_string()),
                ("SECOND", second.to_string()),
                ("STEP", step.to_string()),
            ];
            let output =
                with_members_and(test, 4, &environment, |_| {}).expect("this is the launcher");
            // All lines that members have printed, the dead included, are equal.
            for what in ["agreed 0", "agreed 1", "shrunk", "again"] {
                // The test harness prints in front of the first line of a member.
                let lines = output.iter().flat_map(|text| text.lines());
                let mut lines: Vec<&str> =
                    lines.filter_map(|line| line.find(what).map(|at| &line[at..])).collect();
                lines.sort_unstable();
                lines.dedup();
                assert_eq!(lines.len(), 1, "step {step} of {victim} and {second}: {lines:?}");
            }
        }
    }
}
