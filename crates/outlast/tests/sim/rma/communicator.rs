//! Communicators under the simulator: deaths at every step, simultaneous deaths, deaths of the
//! lowest rank, deaths that members learn of at different times, and messages that arrive late.
//! Each scenario runs over many seeds, on both links. A failing run prints the command that replays
//! it.
//!
//! The rules of ULFM have a test here and another in `shm/rma/rules.rs`, with processes;
//! `docs/ulfm-conformance.md` lists both. Windows are in [`super::window`].

use crate::simulation::{part_of_seeds, replay, seeds, test_name};
use outlast::engine::{Fault, MESSAGE_CREDIT};
use outlast::rma::{
    self, Communicator, Error, Op, Source, Tag, Window, wait_all, wait_any, wait_some,
};
use outlast::sim::{self, Action, Link, Options, Random, When};
use outlast::{Job, MemberId, Time};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// What the members of a run record, for the check after it.
type Log<T> = Rc<RefCell<Vec<T>>>;

/// Runs a simulation. A panic, a deadlock or an endless call in it is a failure, reported with the
/// command that replays it.
fn simulate(scenario: &str, options: &Options, body: impl Fn(Job) + 'static) {
    let report = sim::run(options, body);
    if !report.is_ok() {
        let traced = Options { trace: true, ..options.clone() };
        println!("{scenario}: seed {} with {traced:?}", options.seed);
        let test = test_name();
        // A sweep over steps makes a seed for each step from the seed that it was given.
        let is_sweep = test.contains("_at_each_step_") || test.contains("_two_deaths_at_once_");
        let seed = if is_sweep { options.seed / 1000 } else { options.seed };
        panic!(
            "{scenario}, seed {}: {:?} {:?} {:?}\n{}",
            options.seed,
            report.outcome,
            report.panics,
            report.hung,
            replay(&test, seed)
        );
    }
}

/// Fails with the seed and the options of the run.
macro_rules! ensure {
    ($options:expr, $condition:expr, $($message:tt)+) => {
        if !$condition {
            panic!("seed {}: {} with {:?}", $options.seed, format!($($message)+), $options);
        }
    };
}

/// Leaves the job together with the other members. A member that leaves earlier is a failure for
/// the others in every call but an agreement.
fn leave_together(comm: &Communicator) {
    let _ = comm.agree_despite_failures(0);
    comm.job().leave().unwrap();
}

fn world(job: &Job) -> Communicator {
    Communicator::world(job).unwrap()
}

/// A small random number of members, sometimes more than the number up to which members talk all to
/// all.
fn some_members(random: &mut Random) -> usize {
    match random.below(8) {
        0 => 9 + random.below(9) as usize,
        1 => 1,
        _ => 2 + random.below(6) as usize,
    }
}

fn options_for(seed: u64, salt: u64) -> (Options, Random) {
    let mut random = Random::new(seed.wrapping_mul(0x9E37_79B9).wrapping_add(salt));
    let members = some_members(&mut random);
    let link = Link::of_seed(seed);
    let mut options = Options::new(members, seed).link(link);
    // In half of the runs members learn of a death at very different times, some of them very soon.
    if random.chance(2) {
        options.detection = Duration::from_nanos(100)..=Duration::from_millis(2);
    }
    (options, random)
}

#[derive(Debug)]
struct Agreed {
    round: usize,
    flags: u64,
    failed: Vec<usize>,
    unacknowledged: Vec<usize>,
}

/// Runs `rounds` agreements in a row with these faults and checks them.
fn check_agree(scenario: &str, options: &Options, rounds: usize, ack_from: usize) {
    let agreed: Log<Agreed> = Rc::default();
    let survived: Log<u32> = Rc::default();
    let (log, alive) = (agreed.clone(), survived.clone());
    let members = options.members;
    simulate(scenario, options, move |job| {
        let comm = world(&job);
        for round in 0..rounds {
            if round >= ack_from {
                comm.failure_ack().unwrap();
            }
            // A bit for each member, so that the answer shows the members that contributed to it.
            let own = !(1u64 << comm.rank()) ^ (round as u64) << 32;
            let before = comm.get_failed().unwrap();
            let answer = comm.agree_despite_failures(own).unwrap();
            log.borrow_mut().push(Agreed {
                round,
                flags: answer.flags,
                failed: answer.failed.clone(),
                unacknowledged: answer.unacknowledged.clone(),
            });
            let after = comm.get_failed().unwrap();
            assert!(
                answer.failed.iter().all(|rank| after.contains(rank)),
                "{after:?} lacks some of {answer:?}"
            );
            assert!(before.iter().all(|rank| after.contains(rank)));
            // A failure that a member knew before is part of the agreed failures, and so known to
            // all.
            assert!(
                before.iter().all(|rank| answer.failed.contains(rank)),
                "{before:?} not in {answer:?}"
            );
        }
        alive.borrow_mut().push(job.me().0);
        job.leave().unwrap();
    });
    let (agreed, survived) = (agreed.borrow(), survived.borrow());
    for round in 0..rounds {
        let of_round: Vec<&Agreed> = agreed.iter().filter(|agreed| agreed.round == round).collect();
        let Some(first) = of_round.first() else { continue };
        for other in &of_round {
            ensure!(
                options,
                (other.flags, &other.failed, &other.unacknowledged)
                    == (first.flags, &first.failed, &first.unacknowledged),
                "{scenario}: different answers {first:?} and {other:?}"
            );
        }
        let absent: Vec<u32> =
            (0..members as u32).filter(|rank| first.flags & (1 << rank) != 0).collect();
        ensure!(
            options,
            absent.iter().all(|rank| !survived.contains(rank)),
            "{scenario}: the contribution of a survivor is missing in {first:?}"
        );
        ensure!(
            options,
            absent.iter().all(|&rank| first.failed.contains(&(rank as usize))),
            "{scenario}: a member that did not contribute must count as dead in {first:?}"
        );
    }
}

#[test]
fn agree_gives_a_single_answer_with_deaths_at_any_time() {
    for seed in seeds(1500) {
        let (options, mut random) = options_for(seed, 1);
        let kills = random.below(options.members as u64) as usize;
        let steps = 20 + random.below(150);
        let options = options.random_faults(kills, 0, steps);
        check_agree("agree", &options, 1 + random.below(4) as usize, random.below(4) as usize);
    }
}

/// For each step of an agreement and each member: that member dies there.
#[test]
fn agree_survives_a_death_at_each_step_of_each_member() {
    for members in [2, 3, 4, 9] {
        for link in [Link::Memory, Link::Network] {
            for victim in (0..members as u32).take(4).map(MemberId) {
                for step in 1..=60 {
                    for seed in seeds(2) {
                        let options = Options::new(members, seed * 1000 + step)
                            .link(link)
                            .fault(When::AtStep(victim, step), Action::Kill(victim));
                        check_agree("agree, one death", &options, 2, 1);
                    }
                }
            }
        }
    }
}

/// Two members die at the same instant: the lowest rank, at each of its steps, and another member.
#[test]
fn agree_survives_two_deaths_at_once_with_the_lowest_rank() {
    for members in [3, 4, 6, 10] {
        for link in [Link::Memory, Link::Network] {
            for other in 1..3 {
                for step in 1..=60 {
                    for seed in seeds(1) {
                        let when = When::AtStep(MemberId(0), step);
                        let options = Options::new(members, seed * 1000 + step)
                            .link(link)
                            .fault(when, Action::Kill(MemberId(other)))
                            .fault(when, Action::Kill(MemberId(0)));
                        check_agree("agree, two deaths", &options, 2, 1);
                    }
                }
            }
        }
    }
}

/// Stopped members delay an agreement but do not change it: members that time out call again.
#[test]
fn agree_waits_for_stopped_members_and_goes_on_after_a_timeout() {
    for seed in seeds(300) {
        let (options, mut random) = options_for(seed, 2);
        let options = options.random_faults(random.below(2) as usize, 2, 120);
        let agreed: Log<(usize, u64)> = Rc::default();
        let log = agreed.clone();
        simulate("agree, stops", &options, move |job| {
            let comm = world(&job);
            for round in 0..3 {
                let answer = loop {
                    match comm.agree_despite_failures(!(1 << comm.rank())) {
                        Err(Error::Timeout { .. }) => continue,
                        other => break other.unwrap(),
                    }
                };
                log.borrow_mut().push((round, answer.flags));
            }
            job.leave().unwrap();
        });
        for round in 0..3 {
            let flags: BTreeSet<u64> = agreed
                .borrow()
                .iter()
                .filter(|entry| entry.0 == round)
                .map(|entry| entry.1)
                .collect();
            ensure!(options, flags.len() <= 1, "different answers {flags:?}");
        }
    }
}

/// Unacknowledged failures are an error at all members or at none.
#[test]
fn unacknowledged_failures_are_an_error_at_all_members_or_at_none() {
    for seed in seeds(500) {
        let (options, mut random) = options_for(seed, 3);
        let options = options.random_faults(1 + random.below(2) as usize, 0, 80);
        let results: Log<(usize, rma::Result<u64>)> = Rc::default();
        let log = results.clone();
        simulate("agree, errors", &options, move |job| {
            let comm = world(&job);
            for round in 0..4 {
                // Some members acknowledge, some do not: the failure is no error only if all
                // members do.
                if round >= 1 && (round >= 3 || job.me().0 % 2 == 0) {
                    comm.failure_ack().unwrap();
                }
                let result = comm.agree(7);
                log.borrow_mut().push((round, result));
            }
            job.leave().unwrap();
        });
        for round in 0..4 {
            let results = results.borrow();
            let of_round: Vec<_> =
                results.iter().filter(|entry| entry.0 == round).map(|entry| &entry.1).collect();
            let is_same = of_round.iter().all(|result| *result == of_round[0]);
            ensure!(options, is_same, "round {round}: {of_round:?}");
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Made {
    depth: usize,
    id: u64,
    members: Vec<MemberId>,
}

/// Shrinks `rounds` times in a row under these faults: all members that return have equal
/// communicators, and these work.
fn check_shrink(scenario: &str, options: &Options, rounds: usize) {
    let made: Log<(u32, Made)> = Rc::default();
    let survived: Log<u32> = Rc::default();
    let (log, alive) = (made.clone(), survived.clone());
    simulate(scenario, options, move |job| {
        let mut comm = world(&job);
        for depth in 0..rounds {
            let known = comm.get_failed().unwrap();
            let known: Vec<MemberId> =
                known.into_iter().map(|rank| comm.member(rank).unwrap()).collect();
            comm = comm.shrink().unwrap();
            let members = comm.members().to_vec();
            assert!(
                known.iter().all(|dead| !members.contains(dead)),
                "{known:?} are dead and in {members:?}"
            );
            assert_eq!(comm.members()[comm.rank()], job.me());
            log.borrow_mut().push((job.me().0, Made { depth, id: comm.id(), members }));
        }
        // The last communicator, shrunk until all its members live, works.
        loop {
            let next = comm.shrink().unwrap();
            let mut values = [1];
            match next.allreduce_u64(Op::Sum, &mut values) {
                Ok(()) => {
                    assert_eq!(values[0] as usize, next.size());
                    break;
                }
                Err(Error::ProcFailed { .. } | Error::Revoked) => next.revoke().unwrap(),
                Err(other) => panic!("{other}"),
            }
            comm = next;
        }
        alive.borrow_mut().push(job.me().0);
        job.leave().unwrap();
    });
    let (made, survived) = (made.borrow(), survived.borrow());
    let mut ids = BTreeMap::new();
    for depth in 0..rounds {
        let of_depth: Vec<&Made> =
            made.iter().map(|entry| &entry.1).filter(|made| made.depth == depth).collect();
        let Some(first) = of_depth.first() else { continue };
        ensure!(options, of_depth.iter().all(|made| made == first), "{scenario}: {of_depth:?}");
        ensure!(
            options,
            survived.iter().all(|&member| first.members.contains(&MemberId(member))),
            "{scenario}: a survivor of {survived:?} is not in {first:?}"
        );
        ensure!(
            options,
            ids.insert(first.id, depth).is_none(),
            "{scenario}: an identity was used twice"
        );
    }
}

#[test]
fn shrink_gives_equal_communicators_with_deaths_at_any_time() {
    for seed in seeds(800) {
        let (options, mut random) = options_for(seed, 4);
        let kills = random.below(options.members as u64) as usize;
        let steps = 20 + random.below(300);
        let options = options.random_faults(kills, 0, steps);
        check_shrink("shrink", &options, 1 + random.below(3) as usize);
    }
}

#[test]
fn shrink_survives_a_death_at_each_step_of_each_member() {
    for members in [2, 3, 4] {
        for link in [Link::Memory, Link::Network] {
            for victim in (0..members as u32).map(MemberId) {
                for step in 1..=60 {
                    for seed in seeds(1) {
                        let options = Options::new(members, seed * 1000 + step)
                            .link(link)
                            .fault(When::AtStep(victim, step), Action::Kill(victim));
                        check_shrink("shrink, one death", &options, 2);
                    }
                }
            }
        }
    }
}

#[test]
fn shrink_survives_two_deaths_at_once_with_the_lowest_rank() {
    for members in [3, 5] {
        for link in [Link::Memory, Link::Network] {
            for step in 1..=60 {
                for seed in seeds(1) {
                    let when = When::AtStep(MemberId(0), step);
                    let options = Options::new(members, seed * 1000 + step)
                        .link(link)
                        .fault(when, Action::Kill(MemberId(2)))
                        .fault(when, Action::Kill(MemberId(0)));
                    check_shrink("shrink, two deaths", &options, 2);
                }
            }
        }
    }
}

/// The members kill themselves in turn. The others shrink each time, until a single member is left.
#[test]
fn repeated_shrink_down_to_a_single_member() {
    for seed in seeds(100) {
        let link = Link::of_seed(seed);
        let options = Options::new(2 + seed as usize % 6, seed).link(link);
        let last: Log<(u32, usize)> = Rc::default();
        let log = last.clone();
        simulate("down to one", &options, move |job| {
            let mut comm = world(&job);
            while comm.size() > 1 {
                // The lowest and the highest rank die in turn.
                let victim = if comm.size().is_multiple_of(2) { 0 } else { comm.size() - 1 };
                if comm.rank() == victim {
                    let me = job.me();
                    let _ = job.fence(me, Time::NEVER);
                }
                match comm.receive(victim, 0) {
                    Err(Error::ProcFailed { ranks }) => assert_eq!(ranks, [victim]),
                    other => panic!("{other:?}"),
                }
                comm = comm.shrink().unwrap();
            }
            assert_eq!(comm.agree(5), Ok(5));
            comm.barrier().unwrap();
            log.borrow_mut().push((job.me().0, comm.size()));
            job.leave().unwrap();
        });
        ensure!(
            options,
            last.borrow().len() == 1 && last.borrow()[0].1 == 1,
            "{:?}",
            last.borrow()
        );
    }
}

/// The pattern "return, shrink, go on": iterations of a reduction, recovery after each failure,
/// further failures during recovery. All survivors do all iterations, with equal results.
#[test]
fn iterations_go_on_through_failures_also_during_recovery() {
    for seed in seeds(600) {
        let (options, mut random) = options_for(seed, 5);
        let kills = random.below(options.members as u64) as usize;
        let options = options.random_faults(kills, 0, 400);
        let results: Log<(usize, u64)> = Rc::default();
        let log = results.clone();
        simulate("iterations", &options, move |job| {
            let mut comm = world(&job);
            let mut done = 0;
            while done < 5 {
                let mut sum = [1u64 << (8 * done)];
                let outcome = comm.allreduce_u64(Op::Sum, &mut sum);
                if !matches!(outcome, Ok(()) | Err(Error::ProcFailed { .. } | Error::Revoked)) {
                    panic!("{outcome:?}");
                }
                // An iteration counts if it succeeded at all members.
                comm.failure_ack().unwrap();
                let all = comm.agree_despite_failures(u64::from(outcome.is_ok())).unwrap();
                if all.flags == 1 {
                    log.borrow_mut().push((done, sum[0]));
                    done += 1;
                }
                if all.flags == 0 || !all.failed.is_empty() {
                    comm.revoke().unwrap();
                    comm = comm.shrink().unwrap();
                }
            }
            job.leave().unwrap();
        });
        for iteration in 0..5 {
            let sums: BTreeSet<u64> = results
                .borrow()
                .iter()
                .filter(|entry| entry.0 == iteration)
                .map(|entry| entry.1)
                .collect();
            ensure!(options, sums.len() <= 1, "iteration {iteration}: {sums:?}");
        }
    }
}

/// All survivors of a collective operation get success or an error, and none waits for ever.
#[test]
fn collectives_end_at_all_survivors() {
    for seed in seeds(800) {
        let (options, mut random) = options_for(seed, 6);
        let kills = 1 + random.below(2) as usize;
        let options = options.random_faults(kills, 0, 150);
        simulate("collectives", &options, move |job| {
            let comm = world(&job);
            let (rank, size) = (comm.rank(), comm.size());
            let mut outcomes = Vec::new();
            for round in 0..3 {
                outcomes.push(comm.barrier());
                let mut bytes = [rank as u8; 3];
                let root = round % size;
                outcomes.push(
                    comm.broadcast(root, &mut bytes)
                        .inspect(|()| assert_eq!(bytes, [root as u8; 3])),
                );
                let mut values = [rank as i64, -(rank as i64)];
                let reduced = comm.allreduce_i64(Op::Max, &mut values);
                outcomes.push(reduced.inspect(|()| assert_eq!(values, [size as i64 - 1, 0])));
                let all = comm.allgather(&vec![rank as u8; rank]);
                outcomes.push(all.map(|all| {
                    let expected: Vec<Vec<u8>> =
                        (0..size).map(|rank| vec![rank as u8; rank]).collect();
                    assert_eq!(all, expected);
                }));
                outcomes.push(comm.duplicate().and_then(|duplicate| {
                    assert_ne!(duplicate.id(), comm.id());
                    duplicate.barrier()
                }));
                outcomes.push(comm.split(Some(rank as u32 % 2), -(rank as i64)).and_then(|half| {
                    let half = half.expect("a colour was given");
                    let expected: Vec<usize> =
                        (0..size).rev().filter(|other| other % 2 == rank % 2).collect();
                    let found: Vec<usize> = half
                        .members()
                        .iter()
                        .map(|&member| comm.rank_of(member).unwrap())
                        .collect();
                    assert_eq!(found, expected);
                    half.barrier()
                }));
            }
            for outcome in outcomes {
                match outcome {
                    Ok(()) | Err(Error::ProcFailed { .. } | Error::Revoked) => {}
                    Err(other) => panic!("{other}"),
                }
            }
            job.leave().unwrap();
        });
    }
}

/// Members wait for messages that no member sends. A revoke releases all of them, and agree and
/// shrink still work.
#[test]
fn revoke_releases_all_waits_and_agree_and_shrink_still_work() {
    for seed in seeds(500) {
        let (options, mut random) = options_for(seed, 7);
        let members = options.members;
        let revoker = random.below(members as u64) as usize;
        let kills = if random.chance(2) { random.below(members as u64) as usize } else { 0 };
        let options = options.random_faults(kills, 0, 120);
        simulate("revoke", &options, move |job| {
            let comm = world(&job);
            if comm.rank() == revoker {
                comm.revoke().unwrap();
                assert_eq!(comm.send(0, 0, b"x"), Err(Error::Revoked));
            }
            // The revoker may have died first: then this member revokes.
            let waited = comm.receive(revoker, 1);
            match waited {
                Err(Error::Revoked) => {}
                Err(Error::ProcFailed { .. }) => comm.revoke().unwrap(),
                other => panic!("{other:?}"),
            }
            assert!(comm.is_revoked());
            assert_eq!(comm.barrier(), Err(Error::Revoked));
            assert_eq!(comm.broadcast(0, &mut []), Err(Error::Revoked));
            assert_eq!(comm.duplicate().err(), Some(Error::Revoked));
            assert!(matches!(comm.start_receive(Source::Any, Tag::Any), Err(Error::Revoked)));
            comm.failure_ack().unwrap();
            comm.agree_despite_failures(1).unwrap();
            let smaller = comm.shrink().unwrap();
            assert!(!smaller.is_revoked());
            assert!(smaller.agree_despite_failures(3).unwrap().flags == 3);
            job.leave().unwrap();
        });
    }
}

/// A member that makes no call learns of a revoke.
#[test]
fn is_revoked_is_right_at_a_member_that_makes_no_call() {
    for seed in seeds(100) {
        let link = Link::of_seed(seed);
        let options = Options::new(3 + seed as usize % 20, seed).link(link);
        simulate("is_revoked", &options, move |job| {
            let comm = world(&job);
            if comm.rank() == 1 {
                comm.revoke().unwrap();
            }
            // Only time passes: the member calls nothing of the communicator but the query.
            while !comm.is_revoked() {
                let bell = job.bell();
                assert!(job.now() < Time(1_000_000_000), "not revoked after a second");
                if comm.is_revoked() {
                    break;
                }
                job.park(bell, job.now().after(Duration::from_millis(10)));
            }
            // Stays until all members know of the revoke: a member that leaves does not forward it.
            comm.agree(1).unwrap_or(1);
            job.leave().unwrap();
        });
    }
}

/// A failure in a communicator does not disturb another communicator that does not contain the dead
/// member.
#[test]
fn a_failure_in_a_communicator_does_not_disturb_another() {
    for seed in seeds(200) {
        let link = Link::of_seed(seed);
        let options = Options::new(6, seed).link(link);
        simulate("undisturbed", &options, move |job| {
            let comm = world(&job);
            let half = comm.split(Some(comm.rank() as u32 % 2), 0).unwrap().unwrap();
            // All have their half before a member dies.
            let _ = comm.agree(0);
            if comm.rank() == 3 {
                let _ = job.fence(job.me(), Time::NEVER);
            }
            if comm.rank() % 2 == 1 {
                // The half that contains the dead member fails, and is revoked.
                while half.barrier().is_ok() {}
                half.revoke().unwrap();
                assert_eq!(half.shrink().unwrap().size(), 2);
            } else {
                for round in 0..20 {
                    let mut sum = [round];
                    half.allreduce_u64(Op::Sum, &mut sum).unwrap();
                    assert_eq!(sum[0], 3 * round);
                    let next = (half.rank() + 1) % 3;
                    half.send(next, 5, &[round as u8]).unwrap();
                    assert_eq!(half.receive(Source::Any, 5).unwrap().bytes, [round as u8]);
                }
                assert!(!half.is_revoked());
                assert_eq!(half.agree(9), Ok(9));
            }
            leave_together(&comm);
        });
    }
}

/// Late messages and revokes of old communicators never touch later communicators. The test makes a
/// chain of communicators. Each is filled with unread messages, and all its members revoke it while
/// the next communicators are in use.
#[test]
fn late_messages_and_revokes_never_touch_a_later_communicator() {
    for seed in seeds(400) {
        let (options, mut random) = options_for(seed, 8);
        let kills = random.below(options.members as u64) as usize / 2;
        let options = options.random_faults(kills, 0, 500);
        simulate("late messages", &options, move |job| {
            let mut comm = world(&job);
            for generation in 0..6u32 {
                let size = comm.size();
                // These stay unread. Each generation uses these tags again.
                for other in 0..size {
                    let _ = comm.send(other, 1, &[generation as u8; 4]);
                }
                if comm.rank().is_multiple_of(2) {
                    comm.revoke().unwrap();
                }
                let next = comm.shrink().unwrap();
                assert!(!next.is_revoked(), "revoked before a member did it");
                if comm.rank() % 2 == 1 {
                    comm.revoke().unwrap();
                }
                // All members are in the next communicator before a member revokes it.
                next.failure_ack().unwrap();
                next.agree_despite_failures(0).unwrap();
                assert!(!next.is_revoked(), "hit by a revoke of an older communicator");
                assert_eq!(
                    next.probe(Source::Any, 1),
                    Ok(None),
                    "a message of an older communicator"
                );
                for other in 0..next.size() {
                    let _ = next.send(other, 2, &[generation as u8]);
                }
                next.failure_ack().unwrap();
                match next.receive(next.rank(), 2) {
                    Ok(received) => assert_eq!(received.bytes, [generation as u8]),
                    other => panic!("{other:?}"),
                }
                next.agree_despite_failures(0).unwrap();
                assert!(!next.is_revoked(), "hit by a revoke of an older communicator");
                let old = std::mem::replace(&mut comm, next);
                if old.id() != 0 {
                    old.free().unwrap();
                    assert_eq!(old.revoke(), Err(Error::Freed));
                }
                comm.failure_ack().unwrap();
                comm.agree_despite_failures(0).unwrap();
            }
            job.leave().unwrap();
        });
    }
}

/// Failure notification is local: a member that does not communicate with the dead member notices
/// nothing.
#[test]
fn failure_notification_is_local() {
    for seed in seeds(200) {
        let link = Link::of_seed(seed);
        let options = Options::new(3, seed).link(link);
        simulate("local notification", &options, move |job| {
            let comm = world(&job);
            match comm.rank() {
                0 => {
                    let _ = job.fence(job.me(), Time::NEVER);
                }
                1 => {
                    assert_eq!(comm.receive(0, 0), Err(Error::ProcFailed { ranks: vec![0] }));
                    assert_eq!(comm.get_failed(), Ok(vec![0]));
                    for round in 0..10 {
                        comm.send(2, 0, &[round]).unwrap();
                        assert_eq!(comm.receive(2, 0).unwrap().bytes, [round]);
                    }
                    comm.send(2, 1, b"done").unwrap();
                }
                _ => {
                    for round in 0..10 {
                        assert_eq!(comm.receive(1, 0).unwrap().bytes, [round]);
                        comm.send(1, 0, &[round]).unwrap();
                    }
                    comm.receive(1, 1).unwrap();
                }
            }
            leave_together(&comm);
        });
    }
}

/// A receive from any source is pending after a failure, goes on after the acknowledgement, and
/// gets its message.
#[test]
fn a_wildcard_receive_is_pending_until_acknowledged_and_can_be_continued() {
    for seed in seeds(200) {
        let link = Link::of_seed(seed);
        let options = Options::new(3, seed).link(link);
        simulate("wildcard", &options, move |job| {
            let comm = world(&job);
            match comm.rank() {
                0 => {
                    let mut request = comm.start_receive(Source::Any, 5).unwrap();
                    assert_eq!(request.wait(), Err(Error::ProcFailedPending { ranks: vec![1] }));
                    // The request is still pending, and so is a new request.
                    assert_eq!(request.wait(), Err(Error::ProcFailedPending { ranks: vec![1] }));
                    let blocking = comm.receive(Source::Any, 6);
                    assert_eq!(blocking, Err(Error::ProcFailedPending { ranks: vec![1] }));
                    comm.failure_ack().unwrap();
                    assert_eq!(comm.failure_get_acked(), Ok(vec![1]));
                    comm.send(2, 0, b"go").unwrap();
                    assert_eq!(request.wait().unwrap().bytes, b"hello");
                    assert_eq!(request.wait(), Err(Error::AlreadyTaken));
                    // When the last other member is dead, no member is left that could send.
                    comm.send(2, 0, b"end").unwrap();
                    let mut request = comm.start_receive(Source::Any, 5).unwrap();
                    assert_eq!(request.wait(), Err(Error::ProcFailedPending { ranks: vec![2] }));
                    comm.failure_ack().unwrap();
                    assert_eq!(request.wait(), Err(Error::ProcFailed { ranks: vec![1, 2] }));
                    job.leave().unwrap();
                }
                1 => {
                    let _ = job.fence(job.me(), Time::NEVER);
                }
                _ => {
                    comm.receive(0, 0).unwrap();
                    comm.send(0, 5, b"hello").unwrap();
                    comm.receive(0, 0).unwrap();
                    let _ = job.fence(job.me(), Time::NEVER);
                }
            }
        });
    }
}

/// If a request of a set failed, the others report that they are pending, and can be continued.
#[test]
fn in_a_set_with_a_failed_request_the_others_are_pending_and_stay_usable() {
    for seed in seeds(200) {
        let link = Link::of_seed(seed);
        let options = Options::new(4, seed).link(link);
        simulate("sets", &options, move |job| {
            let comm = world(&job);
            match comm.rank() {
                0 => {
                    let receives = [(1, 0), (2, 0), (3, 0), (2, 1)];
                    let mut requests: Vec<_> = receives
                        .iter()
                        .map(|&(from, tag)| comm.start_receive(from, tag).unwrap())
                        .collect();
                    let results = wait_all(&mut requests).unwrap();
                    assert_eq!(results[0], Err(Error::ProcFailed { ranks: vec![1] }));
                    for result in &results[1..] {
                        assert_eq!(*result, Err(Error::ProcFailedPending { ranks: vec![1] }));
                    }
                    // Another set, with the pending requests and with a new request to the dead
                    // member.
                    requests[0] = comm.start_receive(1, 9).unwrap();
                    let some = wait_some(&mut requests).unwrap();
                    assert_eq!(some[0], (0, Err(Error::ProcFailed { ranks: vec![1] })));
                    assert!(
                        some[1..]
                            .iter()
                            .all(|(_, result)| result.as_ref().is_err_and(Error::is_failure))
                    );
                    assert!(requests[0].is_over() && !requests[1].is_over());
                    comm.send(2, 0, b"go").unwrap();
                    comm.send(3, 0, b"go").unwrap();
                    let mut sources = BTreeSet::new();
                    for _ in 0..3 {
                        let (index, result) = wait_any(&mut requests).unwrap();
                        let received = result.unwrap();
                        assert_eq!((received.source, received.tag), receives[index]);
                        sources.insert(index);
                    }
                    assert_eq!(sources.len(), 3);
                    assert_eq!(wait_any(&mut requests), Err(Error::AlreadyTaken));
                    assert_eq!(wait_some(&mut requests), Ok(vec![]));
                }
                1 => {
                    let _ = job.fence(job.me(), Time::NEVER);
                }
                rank => {
                    comm.receive(0, 0).unwrap();
                    for tag in 0..rank as u32 % 2 + if rank == 2 { 2 } else { 0 } {
                        comm.send(0, tag, &[rank as u8]).unwrap();
                    }
                }
            }
            leave_together(&comm);
        });
    }
}

/// A member interrupts a wait of another member: the wait in progress, or else its next wait.
#[test]
fn a_member_interrupts_the_wait_of_another_member() {
    for seed in seeds(200) {
        let link = Link::of_seed(seed);
        let options = Options::new(2, seed).link(link);
        simulate("interrupt", &options, move |job| {
            let comm = world(&job);
            if comm.rank() == 0 {
                let mut request = comm.start_receive(1, 5).unwrap();
                assert_eq!(request.wait(), Err(Error::Interrupted { by: 1 }));
                comm.send(1, 0, b"again").unwrap();
                assert_eq!(comm.receive(1, 6), Err(Error::Interrupted { by: 1 }));
                comm.send(1, 0, b"now send").unwrap();
                assert_eq!(request.wait().unwrap().bytes, b"late");
            } else {
                comm.interrupt(0).unwrap();
                comm.receive(0, 0).unwrap();
                comm.interrupt(0).unwrap();
                comm.receive(0, 0).unwrap();
                comm.send(0, 5, b"late").unwrap();
                comm.interrupt(1).unwrap();
                assert_eq!(comm.receive(0, 9), Err(Error::Interrupted { by: 1 }));
            }
            comm.barrier().unwrap();
            leave_together(&comm);
        });
    }
}

/// A wait with a limit of its own ends at it, and its request is still active.
#[test]
fn a_wait_ends_at_its_own_limit_and_the_request_stays_active() {
    const SHORT: Duration = Duration::from_millis(20);
    for seed in seeds(50) {
        let options = Options::new(2, seed).link(Link::of_seed(seed));
        simulate("wait within", &options, move |job| {
            let comm = world(&job);
            if comm.rank() == 0 {
                let mut request = comm.start_receive(1, 5).unwrap();
                let began = job.now();
                let late = Error::Timeout { rank: 1, member: MemberId(1), limit: SHORT };
                assert_eq!(request.wait_within(SHORT), Err(late));
                let waited = job.now().since(began);
                assert!(SHORT <= waited && waited < job.time_limit() / 2, "{waited:?}");
                comm.send(1, 0, b"now send").unwrap();
                assert_eq!(request.wait_within(job.time_limit()).unwrap().bytes, b"late");
                assert_eq!(request.wait_within(SHORT), Err(Error::AlreadyTaken));
            } else {
                comm.receive(0, 0).unwrap();
                comm.send(0, 5, b"late").unwrap();
            }
            comm.barrier().unwrap();
            leave_together(&comm);
        });
    }
}

/// The chosen members learn of a failure as soon as they get the notice, long before they would
/// detect it.
#[test]
fn failures_are_propagated_to_a_chosen_subset() {
    for seed in seeds(100) {
        let mut options = Options::new(4, seed).link(Link::Network);
        options.detection = Duration::from_millis(1)..=Duration::from_secs(10);
        simulate("notify", &options, move |job| {
            let comm = world(&job);
            match comm.rank() {
                0 => {
                    let _ = job.fence(job.me(), Time::NEVER);
                }
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
}

/// Messages of any length arrive in order, also many of them, and with several threads.
#[test]
fn messages_arrive_in_order() {
    for seed in part_of_seeds(20, 0..60) {
        let (options, _) = options_for(seed, 9);
        simulate("messages", &options, move |job| {
            let comm = world(&job);
            let size = comm.size();
            for round in 0..5u8 {
                for other in 0..size {
                    let len = [0, 1, 100, 5000, 3_000_000][(round as usize + seed as usize) % 5];
                    let len = if size > 4 { len % 10_000 } else { len };
                    comm.send(other, 3, &vec![round; len]).unwrap();
                    comm.send(other, 4, &[round]).unwrap();
                }
            }
            for other in 0..size {
                for round in 0..5u8 {
                    assert_eq!(comm.receive(other, 4).unwrap().bytes, [round]);
                    let received = comm.receive(other, Tag::Any).unwrap();
                    assert!(received.tag == 3 && received.bytes.iter().all(|&byte| byte == round));
                }
            }
            comm.barrier().unwrap();
            leave_together(&comm);
        });
    }
}

/// Several activities of a member use communicators concurrently.
#[test]
fn activities_of_a_member_share_the_progress() {
    for seed in seeds(200) {
        let link = Link::of_seed(seed);
        let options = Options::new(3, seed).link(link);
        simulate("activities", &options, move |job| {
            let comm = world(&job);
            let other = comm.duplicate().unwrap();
            let further = {
                let (comm, job) = (other.clone(), job.clone());
                job.clone()
                    .spawn(
                        "further",
                        Box::new(move || {
                            for round in 0..5u8 {
                                comm.send((comm.rank() + 1) % 3, 0, &[round]).unwrap();
                                assert_eq!(
                                    comm.receive((comm.rank() + 2) % 3, 0).unwrap().bytes,
                                    [round]
                                );
                                assert_eq!(comm.agree(6), Ok(6));
                            }
                        }),
                    )
                    .unwrap()
            };
            for _ in 0..5 {
                assert_eq!(comm.agree(3), Ok(3));
                comm.barrier().unwrap();
            }
            assert!(job.wait_for(&further, Time::NEVER));
            comm.barrier().unwrap();
            leave_together(&comm);
        });
    }
}

/// All members that call different operations, or with different arguments, get an error.
#[test]
fn mismatched_collectives_are_found() {
    fn check(name: &str, call: fn(&Communicator) -> rma::Result<()>) {
        for seed in seeds(50) {
            for members in 2..6 {
                let link = Link::of_seed(seed);
                let options = Options::new(members, seed).link(link);
                simulate(name, &options, move |job| {
                    let comm = world(&job);
                    let outcome = call(&comm);
                    assert!(matches!(outcome, Err(Error::Mismatched { .. })), "{outcome:?}");
                    assert_eq!(comm.agree(1), Ok(1));
                    comm.barrier().unwrap();
                    leave_together(&comm);
                });
            }
        }
    }
    // Only builds with debug assertions compare before they begin. Other builds report the
    // mismatches that they come across.
    if cfg!(debug_assertions) {
        check("roots", |comm| comm.broadcast(comm.rank() % 2, &mut [0; 4]));
        check("lengths", |comm| {
            comm.broadcast(0, &mut vec![0; if comm.rank() == 1 { 3 } else { 4 }])
        });
        check("operations", |comm| {
            if comm.rank() == 1 { comm.barrier() } else { comm.broadcast(0, &mut [1]) }
        });
        check("reductions", |comm| {
            let op = if comm.rank() == 1 { Op::Max } else { Op::Min };
            comm.allreduce_u64(op, &mut [1])
        });
    }
    check("recoveries", |comm| {
        if comm.rank() == 1 { comm.shrink().map(|_| ()) } else { comm.agree(0).map(|_| ()) }
    });
}

/// Under the cost model: time and messages per member of the recovery calls grow as the logarithm
/// of the members.
#[test]
fn agree_and_shrink_are_of_logarithmic_depth() {
    let measure = |members: usize, call: fn(&Communicator)| {
        let mut options = Options::new(members, 1).link(Link::Network);
        options.cost = Some(sim::Cost::default());
        let report = sim::run(&options, move |job| {
            let comm = world(&job);
            call(&comm);
            // No member leaves while others are in the call: that would be a failure.
            job.sleep(Duration::from_millis(100));
            job.leave().unwrap();
        });
        let messages = report.counters.iter().map(|counters| counters.messages_sent).max().unwrap();
        report.expect_ok();
        messages
    };
    for members in [2usize, 16, 64, 500] {
        let depth = u64::from(members.next_power_of_two().ilog2());
        let agree = measure(members, |comm| assert_eq!(comm.agree(5), Ok(5)));
        assert!(agree <= 2 * depth, "{agree} messages of a member of {members}");
        let shrink =
            measure(members, |comm| assert_eq!(comm.shrink().unwrap().size(), comm.size()));
        assert!(shrink <= 2 * depth, "{shrink} messages of a member of {members}");
        let barrier = measure(members, |comm| comm.barrier().unwrap());
        assert!(barrier <= depth, "{barrier} messages of a member of {members}");
    }
}

/// A communicator that all members have freed is forgotten, and late messages for it do no harm.
#[test]
fn many_communicators_are_made_and_freed() {
    for seed in part_of_seeds(20, 0..20) {
        let (options, _) = options_for(seed, 10);
        simulate("come and go", &options, move |job| {
            let comm = world(&job);
            for round in 0..200u64 {
                let next = if round.is_multiple_of(2) {
                    comm.duplicate().unwrap()
                } else {
                    comm.shrink().unwrap()
                };
                if round % 8 == 7 {
                    // The revoke is late: it may reach members that have freed the communicator.
                    next.revoke().unwrap();
                }
                next.free().unwrap();
            }
            leave_together(&comm);
        });
    }
}

/// All members that the revoking member tells die at that instant, and it goes on: the others learn
/// of the revoke nevertheless.
#[test]
fn a_revoke_reaches_all_though_its_first_receivers_die() {
    for seed in seeds(60) {
        let link = Link::of_seed(seed);
        let options = Options::new(17, seed).link(link);
        simulate("revoke, hearers die", &options, move |job| {
            let comm = world(&job);
            if comm.rank() == 0 {
                for victim in [1, 2, 4, 8, 9, 13, 15, 16] {
                    job.inject(Fault::Kill(MemberId(victim))).unwrap();
                }
                comm.revoke().unwrap();
            }
            while !comm.is_revoked() {
                assert!(job.now() < Time(1_000_000_000), "not revoked after a second");
                job.park(job.bell(), job.now().after(Duration::from_millis(10)));
            }
            leave_together(&comm);
        });
    }
}

/// A duplication succeeds at some members while others give it up, because the old communicator was
/// revoked or a member died: no member waits in the new communicator for members that gave up.
#[test]
fn no_member_waits_in_a_duplicate_for_members_without_it() {
    for seed in seeds(600) {
        let (options, mut random) = options_for(seed, 11);
        let options = options.random_faults(random.below(2) as usize, 0, 60);
        let revokes = random.chance(2);
        let outcomes: Log<&str> = Rc::default();
        let log = outcomes.clone();
        simulate("duplicate, left early", &options, move |job| {
            let comm = world(&job);
            match comm.duplicate() {
                Ok(duplicate) => {
                    if revokes && comm.rank() + 1 == comm.size() {
                        comm.revoke().unwrap();
                    }
                    log.borrow_mut().push("made");
                    match duplicate.barrier() {
                        Ok(()) | Err(Error::Revoked | Error::ProcFailed { .. }) => {}
                        Err(other) => panic!("{other}"),
                    }
                }
                Err(Error::Revoked | Error::ProcFailed { .. }) => log.borrow_mut().push("left"),
                Err(other) => panic!("{other}"),
            }
            leave_together(&comm);
        });
    }
}

/// Repeats the call while it ends with a timeout, up to a limit.
fn patiently<T>(mut call: impl FnMut() -> rma::Result<T>) -> rma::Result<T> {
    for _ in 0..50 {
        match call() {
            Err(Error::Timeout { .. }) => {}
            other => return other,
        }
    }
    call()
}

/// Stops a member and sends to it until its queue is full.
fn stop_and_fill(comm: &Communicator, rank: usize) {
    let member = comm.member(rank).unwrap();
    comm.job().inject(Fault::Stop(member)).unwrap();
    loop {
        match comm.send(rank, 99, b"unread") {
            Ok(()) => {}
            Err(Error::Timeout { .. }) => return,
            Err(other) => panic!("{other}"),
        }
    }
}

/// About the credit that a short message takes.
const MESSAGE_COST: u64 = 100;

/// Options of a job in which the queue of a member holds few messages and the time limit is short.
fn narrow(members: usize, seed: u64, messages_max: u64) -> Options {
    let link = Link::of_seed(seed);
    let mut options = Options::new(members, seed).link(link);
    options.message_credit = messages_max * MESSAGE_COST;
    options.time_limit = Duration::from_millis(20);
    options
}

/// A member is stopped while its queue is full, for longer than the time limit. The messages about
/// a revoke and an agreement are not lost: the member gets them when it goes on.
#[test]
fn a_stopped_member_with_a_full_queue_learns_of_a_revoke_and_an_agreement() {
    for seed in seeds(60) {
        let options = narrow(3, seed, 6);
        let limit = options.time_limit;
        simulate("stopped with a full queue", &options, move |job| {
            let comm = world(&job);
            let other = patiently(|| comm.duplicate()).unwrap();
            if comm.rank() != 0 {
                comm.send(0, 1, b"ready").unwrap();
            } else {
                comm.receive(1, 1).unwrap();
                comm.receive(2, 1).unwrap();
                stop_and_fill(&comm, 2);
                other.revoke().unwrap();
                assert!(matches!(comm.agree(5), Err(Error::Timeout { .. })));
                job.sleep(3 * limit);
                job.inject(Fault::Resume(MemberId(2))).unwrap();
            }
            // Only time passes: the query is right at a member that makes no call.
            while !other.is_revoked() {
                assert!(job.now() < Time(1_000_000_000), "not revoked after a second");
                job.sleep(Duration::from_millis(1));
            }
            assert_eq!(patiently(|| comm.agree(7)), Ok(5));
            assert_eq!(patiently(|| comm.agree(1)), Ok(1));
            job.leave().unwrap();
        });
    }
}

/// A rank receives nothing, and another rank sends to it: what it holds is bounded, the sender is
/// told which rank does not receive, and agreements, collective operations and other ranks go on.
#[test]
fn a_rank_that_receives_nothing_holds_its_senders_up() {
    const LEN: usize = 100_000;
    for seed in seeds(10) {
        let mut options = Options::new(3, seed).link(Link::of_seed(seed));
        options.time_limit = Duration::from_secs(1);
        let limit = options.time_limit;
        simulate("nothing received", &options, move |job| {
            let comm = world(&job);
            if comm.rank() == 0 {
                let mut sent = 0;
                let error = loop {
                    match comm.send(1, 7, &vec![1; LEN]) {
                        Ok(()) => sent += LEN as u64,
                        Err(error) => break error,
                    }
                };
                assert!(matches!(error, Error::Timeout { rank: 1, .. }), "{error}");
                assert!(sent.abs_diff(MESSAGE_CREDIT) <= LEN as u64, "{sent}");
                comm.send(2, 7, b"another rank").unwrap();
            } else {
                job.sleep(limit * 3 / 2);
            }
            comm.barrier().unwrap();
            assert_eq!(comm.agree(3), Ok(3));
            if comm.rank() == 0 {
                // The sender goes on when the receiver receives.
                (0..100).for_each(|_| comm.send(1, 7, &vec![1; LEN]).unwrap());
                comm.send(1, 8, b"").unwrap();
            } else {
                let mut received = 0;
                while comm.rank() == 1 && comm.receive(0, Tag::Any).unwrap().tag == 7 {
                    received += 1;
                }
                assert!(comm.rank() != 1 || received > 100, "{received}");
            }
            leave_together(&comm);
        });
    }
}

/// Members hold one or two messages each and send many to each other: no member waits for room
/// while others wait for it to make room.
#[test]
fn members_with_full_queues_do_not_block_each_other() {
    // With the seed 5,000,022 a background thread once slept while another activity tried in vain
    // to send what both had to send again.
    for seed in seeds(100).chain([5_000_022]) {
        let mut options = narrow(2 + seed as usize % 5, seed, 1 + seed % 2);
        // A single message may be in flight for 19 ms, and occupy one of two places for as long.
        options.time_limit = Duration::from_secs(2);
        simulate("full queues", &options, move |job| {
            let comm = world(&job);
            let mut others = Vec::new();
            for _ in 0..3 {
                others.push(comm.duplicate().unwrap());
            }
            let further = {
                let comm = others[0].clone();
                let work = move || {
                    for round in 0..5 {
                        assert_eq!(comm.agree(round), Ok(round));
                    }
                };
                job.spawn("further", Box::new(work)).unwrap()
            };
            for round in 0..5 {
                assert_eq!(others[1].agree(round), Ok(round));
                others[2].barrier().unwrap();
            }
            assert!(job.wait_for(&further, Time::NEVER));
            leave_together(&comm);
        });
    }
}

/// A failure that a call has reported can be acknowledged at once, also while another activity
/// reads the view.
#[test]
fn a_failure_that_was_reported_can_be_acknowledged_at_once() {
    for seed in seeds(400) {
        let link = Link::of_seed(seed);
        let options = Options::new(4, seed).link(link);
        simulate("acknowledged at once", &options, move |job| {
            let comm = world(&job);
            let window = Window::open(&comm, 64).unwrap();
            patiently(|| comm.agree(1)).unwrap();
            if comm.rank() == 1 {
                let _ = job.fence(job.me(), Time::NEVER);
            }
            while window.put_blocking(1, 0, &[1; 8]).is_ok() {}
            comm.failure_ack().unwrap();
            assert_eq!(comm.failure_get_acked(), Ok(vec![1]));
            assert_eq!(comm.get_failed(), Ok(vec![1]));
            assert!(comm.agree_despite_failures(0).unwrap().failed.contains(&1));
            leave_together(&comm);
        });
    }
}

/// A member leaves the job while others are in a collective operation, or while it is in one
/// itself: all members end soon, and none waits for a member that has given up.
#[test]
fn collectives_end_soon_when_a_member_leaves() {
    for seed in seeds(600) {
        let mut random = Random::new(seed ^ 0x6C65_6176);
        let members = 3 + random.below(7) as usize;
        let link = Link::of_seed(seed);
        let options = Options::new(members, seed).link(link);
        let leaver = random.below(members as u64) as usize;
        let delay = Duration::from_nanos(random.magnitude(100, 300_000));
        simulate("left", &options, move |job| {
            let comm = world(&job);
            if comm.rank() == leaver {
                let leaving = job.clone();
                let leave = move || {
                    leaving.sleep(delay);
                    leaving.leave().unwrap();
                };
                job.spawn("leaves", Box::new(leave)).unwrap();
            }
            for round in 0.. {
                // A member that has left an operation in the middle does not enter the next
                // operation, of any kind.
                let outcome = match (seed + round) % 5 {
                    0 => comm.allreduce_u64(Op::Sum, &mut [1]),
                    1 => comm.broadcast(round as usize % comm.size(), &mut [1; 8]),
                    2 => comm.duplicate().map(|_| ()),
                    3 => comm.split(Some(0), 0).map(|_| ()),
                    _ => comm.allgather(&[1; 8]).map(|_| ()),
                };
                if job.has_ended() {
                    return;
                }
                assert!(job.now() < Time(1_000_000_000), "{outcome:?} after a second");
                match outcome {
                    Ok(()) => {}
                    Err(Error::ProcFailed { ranks }) => {
                        assert_eq!(ranks, [leaver]);
                        break;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            leave_together(&comm);
        });
    }
}

/// A member leaves the job while communicators are made: all members fail soon, or all have the new
/// communicator soon.
#[test]
fn duplicate_and_split_end_soon_when_a_member_leaves() {
    for seed in seeds(600) {
        let mut random = Random::new(seed ^ 0x6475_706C);
        let members = 3 + random.below(7) as usize;
        let link = Link::of_seed(seed);
        let options = Options::new(members, seed).link(link);
        let leaver = random.below(members as u64) as usize;
        let rounds = random.below(3);
        let delay = Duration::from_nanos(random.magnitude(10, 1_000_000));
        let made: Log<u64> = Rc::default();
        let log = made.clone();
        simulate("left", &options, move |job| {
            let comm = world(&job);
            for round in 0.. {
                if comm.rank() == leaver && round == rounds {
                    job.sleep(delay);
                    job.leave().unwrap();
                    return;
                }
                let outcome = match (seed + round) % 2 {
                    0 => comm.duplicate().map(|_| ()),
                    _ => comm.split(Some(0), 0).map(|_| ()),
                };
                assert!(job.now() < Time(1_000_000_000), "{outcome:?} after a second");
                match outcome {
                    Ok(()) => log.borrow_mut().push(round),
                    Err(Error::ProcFailed { ranks }) => {
                        assert_eq!(ranks, [leaver]);
                        break;
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            leave_together(&comm);
        });
        for round in 0..=rounds {
            let count = made.borrow().iter().filter(|&&made| made == round).count();
            ensure!(
                options,
                [0, members - 1, members].contains(&count),
                "round {round}: {count} of {members} have it"
            );
        }
    }
}

/// A member dies, and a spare takes its place, while the others begin: all members have equal world
/// communicators.
#[test]
fn world_communicators_are_equal_though_a_spare_became_active() {
    for seed in seeds(200) {
        let mut random = Random::new(seed ^ 0x7370_6172);
        // Sizes on both sides of the size from which agreements use another algorithm.
        let regulars = 2 + random.below(17) as usize;
        let link = Link::of_seed(seed);
        let mut options = Options::new(regulars, seed).link(link);
        options.spares = 1 + random.below(2) as usize;
        let victim = random.below(regulars as u64) as usize;
        let delays: Vec<u64> = (0..regulars).map(|_| random.magnitude(1, 3_000_000)).collect();
        simulate("spares", &options, move |job| {
            let me = job.me().index();
            if me >= regulars {
                job.sleep(Duration::from_millis(5));
                assert!(matches!(Communicator::world(&job), Err(Error::Invalid { .. })));
                return job.leave().unwrap();
            }
            if me == victim {
                job.sleep(Duration::from_millis(1));
                job.inject(Fault::Kill(job.me())).unwrap();
            }
            job.sleep(Duration::from_nanos(delays[me]));
            let comm = world(&job);
            assert_eq!(comm.size(), regulars);
            let answer = comm.agree_despite_failures(0).unwrap();
            assert_eq!(answer.failed, [victim]);
            assert_eq!(comm.shrink().unwrap().size(), regulars - 1);
            job.leave().unwrap();
        });
    }
}

/// A member that has left the job gets no answer from an agreement: the others go on without it,
/// and it could not learn their outcome.
#[test]
fn a_member_that_has_left_gets_no_answer_from_an_agreement() {
    for seed in seeds(50) {
        let link = Link::of_seed(seed);
        let mut options = Options::new(2, seed).link(link);
        options.time_limit = Duration::from_millis(1);
        let is_shrink = seed / 2 % 2 == 0;
        simulate("left", &options, move |job| {
            let comm = world(&job);
            let call = || {
                if is_shrink {
                    comm.shrink().map(|_| 0)
                } else {
                    comm.agree_despite_failures(!(1 << comm.rank())).map(|answer| answer.flags)
                }
            };
            if comm.rank() == 0 {
                assert!(matches!(call(), Err(Error::Timeout { .. })));
                job.leave().unwrap();
                let until = job.now().after(Duration::from_millis(20));
                while job.now() < until && job.view().dead.len() < 2 {
                    job.park(job.bell(), job.now().after(Duration::from_micros(100)));
                }
                assert_eq!(call(), Err(Error::Engine(outlast::engine::Error::Ended)));
            } else {
                while job.view().dead.is_empty() {
                    job.sleep(Duration::from_micros(100));
                }
                call().unwrap();
                job.leave().unwrap();
            }
        });
    }
}

/// Agreements, shrinks and duplicates follow each other, with deaths, stops, members that leave by
/// another activity, and an activity of each member that fills the queues of the others: all
/// members that get an outcome get equal outcomes.
#[test]
fn agreed_outcomes_are_equal_at_all_members_under_all_faults() {
    for seed in seeds(400) {
        let (mut options, mut random) = options_for(seed, 11);
        if random.chance(2) {
            options.message_credit = (1 + random.below(8)) * MESSAGE_COST;
            options.time_limit = Duration::from_millis(20);
        }
        let members = options.members as u64;
        let (kills, stops, steps) =
            (random.below(members), random.below(3), 1 + random.magnitude(20, 2000));
        let options = options.random_faults(kills as usize, stops as usize, steps);
        // The communicator, the number of the call, and its outcome.
        let outcomes: Log<(u64, usize, String)> = Rc::default();
        let log = outcomes.clone();
        simulate("whatever happens", &options, move |job| {
            let mut random = Random::new(seed ^ (u64::from(job.me().0) << 32) ^ 0x7768_6174);
            let mut comm = world(&job);
            if random.chance(3) {
                let (leaving, delay) =
                    (job.clone(), Duration::from_nanos(random.magnitude(100, 3_000_000)));
                let leave = move || {
                    leaving.sleep(delay);
                    let _ = leaving.leave();
                };
                job.spawn("leaves", Box::new(leave)).unwrap();
            }
            if random.chance(2) {
                let (talking, seed) = (comm.clone(), random.below(u64::MAX));
                let talk = move || {
                    let mut random = Random::new(seed);
                    for number in 0..30 {
                        let to = random.below(talking.size() as u64) as usize;
                        let _ =
                            talking.send(to, number, &vec![0; random.magnitude(1, 3000) as usize]);
                        let _ = talking.probe(Source::Any, Tag::Any);
                    }
                };
                // A member that has left is refused.
                let _ = job.spawn("talks", Box::new(talk));
            }
            let note = |comm: &Communicator, call: usize, outcome: String| {
                log.borrow_mut().push((comm.id(), call, outcome));
            };
            let is_over = |error: Error| {
                assert!(job.has_ended(), "{error} at {:?}", job.me());
            };
            for call in 0..8 {
                let own = !(1 << comm.rank());
                match (seed as usize + call) % 4 {
                    0 => match patiently(|| comm.shrink()) {
                        Ok(made) => {
                            note(&comm, call, format!("{} {:?}", made.id(), made.members()));
                            comm = made;
                        }
                        Err(error) => return is_over(error),
                    },
                    1 => {
                        let made = patiently(|| comm.duplicate());
                        if let Ok(made) = &made {
                            note(&comm, call, made.id().to_string());
                        }
                        // All go on with the new communicator, or none.
                        match patiently(|| comm.agree_despite_failures(u64::from(made.is_ok()))) {
                            Ok(answer) => {
                                note(&comm, call + 100, format!("{answer:?}"));
                                if let (Ok(made), 1) = (made, answer.flags) {
                                    comm = made;
                                }
                            }
                            Err(error) => return is_over(error),
                        }
                    }
                    other => {
                        if other == 2 {
                            let _ = comm.failure_ack();
                        }
                        match patiently(|| comm.agree_despite_failures(own)) {
                            Ok(answer) => note(&comm, call, format!("{answer:?}")),
                            Err(error) => return is_over(error),
                        }
                    }
                }
            }
            let _ = job.leave();
        });
        let mut outcomes = outcomes.take();
        outcomes.sort_unstable();
        outcomes.dedup();
        for two in outcomes.windows(2) {
            ensure!(
                options,
                (two[0].0, two[0].1) != (two[1].0, two[1].1),
                "different outcomes: {two:?}"
            );
        }
    }
}
