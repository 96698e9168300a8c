//! Large scenarios: forty members, random storms, and the death of the launcher.

use crate::{Inbox, Run, pattern};
use outlast::engine::{Fault, Port, Result};
use outlast::{Epoch, Error, MemberId};
use std::time::Duration;

pub(crate) fn forty(run: &Run) {
    let victims: Vec<MemberId> =
        run.shared_random(&[]).distinct(5, run.members()).into_iter().map(MemberId).collect();
    run.begin(64 * 41);
    let all: Vec<MemberId> = run.all().collect();
    let mut inbox = Inbox::new(run, Port::User, 0);
    for &target in &all {
        run.fetch_add(Epoch::ANY, target, run.data_after_check(), 1).expect("fetch_add");
        inbox.send(target, 64);
    }
    inbox.await_from(&all, 1);
    run.barrier("all to all");
    assert_eq!(run.load(Epoch::ANY, run.me(), run.data_after_check()), Ok(40));
    if victims.contains(&run.me()) {
        let mut random = run.own_random(0);
        run.pause_below(&mut random, Duration::from_millis(30));
        run.die();
    }
    run.await_dead(&victims);
    run.check_dead(&victims);
    run.check_all_goes_on(1);
    run.finish();
}

/// Whether an operation of the storm took effect: not if its target is dead or its view was old.
fn has_happened<T: PartialEq + std::fmt::Debug>(
    run: &Run,
    victims: &[MemberId],
    target: MemberId,
    at: Epoch,
    result: Result<T>,
    expected: Option<T>,
) -> bool {
    match result {
        Ok(value) => {
            if let Some(expected) = expected {
                assert_eq!(value, expected, "{run:?}: a word of this member alone, at {target}");
            }
            true
        }
        Err(Error::Dead { member }) => {
            assert!(
                member == target && victims.contains(&member),
                "{run:?}: {member} is said to be dead"
            );
            assert!(run.view().dead.contains(member), "{run:?}: Dead before the view has {member}");
            false
        }
        Err(Error::Stale { now }) => {
            assert!(at < now && run.epoch() >= now, "{run:?}: stale at {at}, now {now}");
            false
        }
        Err(error) => panic!("{run:?}: an operation on {target}: {error}"),
    }
}

/// The content of a member's own words in a target's memory, as the member knows it.
#[derive(Clone, Copy, Default)]
struct Own {
    added: u64,
    swapped: u64,
    generation: u16,
    shared: u64,
}

pub(crate) fn storm(run: &Run) {
    const REGION: u64 = 512;
    const RANGE: usize = 300;
    let victims: Vec<MemberId> =
        run.shared_random(&[]).distinct(3, run.members()).into_iter().map(MemberId).collect();
    let members = run.members() as u64;
    run.begin(64 * members + REGION * (members + 1));
    let region = |writer: u64| run.data_after_check() + REGION * writer;
    let (added, swapped, range) = (region(run.id()), region(run.id()) + 8, region(run.id()) + 19);
    let shared = region(members);
    let all: Vec<MemberId> = run.all().collect();
    let mut random = run.own_random(0);
    let mut inbox = Inbox::new(run, Port::User, 0);
    let mut own = vec![Own::default(); run.members()];
    let is_victim = victims.contains(&run.me());
    let rounds = run.count(4000, 60);
    if is_victim {
        run.fault(Fault::DieAtStep(1 + random.below(run.count(8000, 400))));
    }
    for _ in 0..rounds {
        let target = random.pick(&all);
        let at = if random.below(2) == 0 { Epoch::ANY } else { run.epoch() };
        let known = &mut own[target.index()];
        match random.below(9) {
            0 => {
                let result = run.fetch_add(at, target, added, 1);
                if has_happened(run, &victims, target, at, result, Some(known.added)) {
                    known.added += 1;
                }
            }
            1 => {
                let result =
                    run.compare_and_swap(at, target, swapped, known.swapped, known.swapped + 1);
                if has_happened(run, &victims, target, at, result, Some(known.swapped)) {
                    known.swapped += 1;
                }
            }
            2 => {
                let data = pattern::range(range, RANGE, known.generation + 1);
                let result = run.put(at, target, range, &data);
                if has_happened(run, &victims, target, at, result, None) {
                    known.generation += 1;
                }
            }
            3 => {
                let mut bytes = vec![0; RANGE];
                let result = run.get(at, target, range, &mut bytes);
                if has_happened(run, &victims, target, at, result, None) {
                    assert!(
                        bytes == pattern::range(range, RANGE, known.generation),
                        "{run:?}: the own range at {target}, of generation {}",
                        known.generation
                    );
                }
            }
            4 => {
                let (writer, mut bytes) = (random.below(members), vec![0; RANGE]);
                let result = run.get(at, target, region(writer) + 19, &mut bytes);
                if has_happened(run, &victims, target, at, result, None) {
                    pattern::generations(region(writer) + 19, &bytes);
                }
            }
            5 => {
                let result = run.fetch_add(at, target, shared, 1);
                if has_happened(run, &victims, target, at, result, None) {
                    known.shared += 1;
                }
            }
            6 => {
                let result = inbox.try_send(target, random.pick(&[0, 20, 3000]));
                has_happened(run, &victims, target, Epoch::ANY, result, None);
            }
            7 => {
                inbox.drain();
                run.check_view();
            }
            _ => match random.below(8) {
                0 => run.pause_below(&mut random, Duration::from_millis(1)),
                1 => {
                    let len = run.segment_len(run.me()).expect("the own segment");
                    run.grow(len + 100).expect("growing a little");
                }
                _ => {
                    let result = run.load(at, target, added);
                    has_happened(run, &victims, target, at, result, Some(known.added));
                }
            },
        }
    }
    if is_victim {
        run.die();
    }
    run.await_dead(&victims);
    run.check_dead(&victims);
    run.barrier("the end of the storm");
    for target in run.living() {
        let known = own[target.index()];
        assert_eq!(
            run.load(Epoch::ANY, target, added),
            Ok(known.added),
            "{run:?}: additions at {target}"
        );
        assert_eq!(
            run.load(Epoch::ANY, target, swapped),
            Ok(known.swapped),
            "{run:?}: swaps at {target}"
        );
        let mut bytes = vec![0; RANGE];
        run.get(Epoch::ANY, target, range, &mut bytes).expect("get");
        assert!(
            bytes == pattern::range(range, RANGE, known.generation),
            "{run:?}: the last put at {target}"
        );
        run.tell(target, 2 * run.id(), known.shared);
        run.tell(target, 2 * run.id() + 1, inbox.count_to(target));
        // Each word of a victim's range is of its last put or of the put before it.
        for victim in &victims {
            let offset = region(u64::from(victim.0)) + 19;
            run.get(Epoch::ANY, target, offset, &mut bytes).expect("get");
            pattern::check_cut_short(offset, &bytes);
        }
    }
    run.barrier("what all did");
    let survivors = run.living();
    let acknowledged: u64 = survivors.iter().map(|member| run.told(2 * u64::from(member.0))).sum();
    let found = run.load(Epoch::ANY, run.me(), shared).expect("load");
    let most = acknowledged + victims.len() as u64 * rounds;
    assert!(
        (acknowledged..=most).contains(&found),
        "{run:?}: {found} additions, {acknowledged} acknowledged"
    );
    for &from in &survivors {
        inbox.await_from(&[from], run.told(2 * u64::from(from.0) + 1));
    }
    run.check_all_goes_on(1);
    run.finish();
}

/// The variable with the launcher's process number. No other launcher is killed.
pub(crate) const LAUNCHER: &str = "OUTLAST_CONFORMANCE_LAUNCHER";

pub(crate) fn launcher_dies(run: &Run) {
    let launcher = std::env::var(LAUNCHER).expect("this scenario is started by its own launcher");
    run.begin(64 * 4);
    if run.me() == MemberId(0) {
        let status = std::process::Command::new("sh")
            .args(["-c", "kill -9 \"$1\"", "sh", &launcher])
            .status();
        assert!(status.is_ok_and(|status| status.success()), "{run:?}: cannot kill the launcher");
    }
    run.until("the launcher's death", || {
        std::os::unix::process::parent_id().to_string() != launcher
    });
    run.check_dead(&[]);
    run.check_all_goes_on(1);
    if run.me() == MemberId(1) {
        run.die();
    }
    run.await_dead(&[MemberId(1)]);
    run.check_all_goes_on(2);
    run.finish();
}
