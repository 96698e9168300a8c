//! Deaths, and operations before, during and after them.

use crate::{DATA, Inbox, Random, Run, WAIT, pattern};
use outlast::engine::{CompoundStep, Done, Fault, Operation, Port, Result};
use outlast::{Epoch, Error, MemberId, Time};
use std::time::Duration;

const KINDS: usize = 5;

/// An operation of each kind on the 64 bytes at `offset`, to be started.
fn operation(kind: usize, offset: u64) -> Operation<'static> {
    match kind % KINDS {
        0 => Operation::Put { offset, data: &[0x55; 64] },
        1 => Operation::Get { offset, len: 64 },
        2 => Operation::Load { offset },
        3 => Operation::CompareAndSwap { offset, expected: 0, new: 1 },
        _ => Operation::FetchAdd { offset, delta: 1 },
    }
}

/// A call of each kind on the 64 bytes at `offset`, which waits for the result.
fn call(run: &Run, kind: usize, at: Epoch, target: MemberId, offset: u64) -> Result<()> {
    match kind % KINDS {
        0 => run.put(at, target, offset, &[0x55; 64]),
        1 => run.get(at, target, offset, &mut [0; 64]),
        2 => run.load(at, target, offset).map(drop),
        3 => run.compare_and_swap(at, target, offset, 0, 1).map(drop),
        _ => run.fetch_add(at, target, offset, 1).map(drop),
    }
}

/// Checks that the view has `dead` among the dead, and that every call with this target returns
/// `Dead`.
fn check_is_dead(run: &Run, dead: MemberId) {
    assert!(run.view().dead.contains(dead), "{run:?}: Dead before the view has {dead}");
    let gone = Err(Error::Dead { member: dead });
    let offset = run.data_after_check();
    for kind in 0..KINDS {
        for at in [Epoch::ANY, run.epoch()] {
            let began = run.now();
            let given = run.wait(run.start(at, dead, operation(kind, offset))).map(drop);
            // Another death in the meantime makes an operation of the epoch stale.
            let is_stale =
                matches!(given, Err(Error::Stale { .. })) && at != Epoch::ANY && at < run.epoch();
            assert!(given == gone || is_stale, "{run:?}: operation {kind} on the dead: {given:?}");
            assert!(
                run.now().since(began) < WAIT,
                "{run:?}: operation {kind} on the dead took too long"
            );
        }
        assert_eq!(
            call(run, kind, Epoch::ANY, dead, offset),
            gone,
            "{run:?}: call {kind} on the dead"
        );
    }
    let parts = [CompoundStep::Load { offset }];
    assert_eq!(
        run.wait(run.start_compound(Epoch::ANY, dead, &parts)).map(drop),
        gone,
        "{run:?}: a compound operation"
    );
    for port in [Port::Rma, Port::Store, Port::User] {
        assert_eq!(run.send(dead, port, b"too late"), gone, "{run:?}: a message to the dead");
    }
    let rung = run.ring(dead);
    assert!(rung == Ok(()) || rung == gone, "{run:?}: ringing the dead: {rung:?}");
    assert_eq!(run.fence(dead, run.now().after(WAIT)), Ok(()), "{run:?}: fencing the dead");
    run.domain(dead).expect("the domain of the dead is still known");
}

pub(crate) fn operations_after(run: &Run) {
    let mut random = run.shared_random(&[]);
    let victim = MemberId(random.below(3) as u32);
    run.begin(64 * 4);
    if run.me() == victim {
        run.pause_below(&mut random, Duration::from_millis(2));
        run.die();
    }
    run.await_dead(&[victim]);
    run.check_dead(&[victim]);
    check_is_dead(run, victim);
    run.check_all_goes_on(1);
    run.finish();
}

pub(crate) fn operations_around(run: &Run) {
    let victim = MemberId(run.shared_random(&[]).below(4) as u32);
    run.begin(64 * 8);
    let mut random = run.own_random(0);
    if run.me() == victim {
        // The victim works, too, so that it dies at any step of any operation.
        run.fault(Fault::DieAtStep(1 + random.below(run.count(2000, 100))));
        for round in 0..run.count(1000, 60) as usize {
            let target = random.pick(&run.all().collect::<Vec<_>>());
            call(run, round, Epoch::ANY, target, run.data_after_check() + 64)
                .expect("no other member dies");
            run.send(target, Port::User, b"alive").expect("no other member dies");
        }
        run.die();
    }
    let until = run.now().after(WAIT);
    for round in 0.. {
        let kind = random.below(KINDS as u64 + 1) as usize;
        let at = if random.below(2) == 0 { Epoch::ANY } else { run.epoch() };
        let began = run.now();
        let result = match kind {
            KINDS => run.send(victim, Port::User, &[1; 100]),
            _ if random.below(2) == 0 => call(run, kind, at, victim, run.data_after_check()),
            _ => run.wait(run.start(at, victim, operation(kind, run.data_after_check()))).map(drop),
        };
        assert!(run.now().since(began) < WAIT, "{run:?}: operation {kind} took too long");
        match result {
            Ok(()) => {}
            Err(Error::Dead { member }) => {
                assert_eq!(member, victim);
                break;
            }
            Err(Error::Stale { now }) => {
                assert!(at < now && run.epoch() >= now, "{run:?}: stale at {at}, now {now}");
            }
            Err(error) => {
                panic!("{run:?}: operation {kind} on a member that may be dying: {error}")
            }
        }
        while run.receive(Port::User).is_some() {}
        if round % 8 == 7 {
            run.pause(Duration::from_micros(20));
        }
        assert!(run.now() < until, "{run:?}: waited {WAIT:?} in vain for the death of {victim}");
    }
    check_is_dead(run, victim);
    run.check_dead(&[victim]);
    run.check_all_goes_on(1);
    run.finish();
}

pub(crate) fn operations_pending(run: &Run) {
    let mut random = run.shared_random(&[]);
    let [victim, killer] = random.distinct(2, 3)[..] else { unreachable!("asked for two") };
    let (victim, killer) = (MemberId(victim), MemberId(killer));
    run.begin(64 * 4);
    if run.me() == victim {
        run.until("being killed", || false);
    }
    let mut own = run.own_random(0);
    let start = |kind| run.start(Epoch::ANY, victim, operation(kind, run.data_after_check()));
    let before: Vec<_> = (0..2 * KINDS).map(start).collect();
    if run.me() == killer {
        run.kill(victim);
    }
    // These operations are started after the death, and mostly before its notice.
    let after: Vec<_> = (0..2 * KINDS).map(start).collect();
    let mut pending: Vec<_> = before.into_iter().chain(after).collect();
    while !pending.is_empty() {
        let chosen = own.below(pending.len() as u64) as usize;
        let began = run.now();
        match run.wait(pending.swap_remove(chosen)) {
            Ok(_) => {}
            Err(Error::Dead { member }) => {
                assert_eq!(member, victim);
                assert!(
                    run.view().dead.contains(victim),
                    "{run:?}: Dead before the view has {victim}"
                );
            }
            Err(error) => panic!("{run:?}: an operation whose target died: {error}"),
        }
        assert!(
            run.now().since(began) < WAIT,
            "{run:?}: an operation whose target died took too long"
        );
    }
    run.await_dead(&[victim]);
    check_is_dead(run, victim);
    run.check_all_goes_on(1);
    run.finish();
}

pub(crate) fn writers_die_mid_put(run: &Run) {
    const TARGET: MemberId = MemberId(0);
    const LEN: usize = 1500;
    let victims: Vec<MemberId> = run.all().filter(|&member| member != TARGET).collect();
    run.begin(64 * 6 + 2048 * 6);
    let region_of = |writer: MemberId| {
        let shift = Random::of(&[u64::from(writer.0)]).below(8);
        run.data_after_check() + 2048 * u64::from(writer.0) + shift
    };
    let mut random = run.own_random(0);
    if run.me() != TARGET {
        let offset = region_of(run.me());
        run.fault(Fault::DieAtStep(1 + random.below(run.count(200, 60))));
        for generation in 1..=run.count(400, 60) as u16 {
            let data = pattern::range(offset, LEN, generation);
            loop {
                let at = if random.below(2) == 0 { Epoch::ANY } else { run.epoch() };
                match run.put(at, TARGET, offset, &data) {
                    Ok(()) => break,
                    Err(Error::Stale { .. }) => {}
                    Err(error) => panic!("{run:?}: put: {error}"),
                }
            }
        }
        run.die();
    }
    let read = |writer: MemberId| {
        let mut bytes = vec![0; LEN];
        run.get(Epoch::ANY, TARGET, region_of(writer), &mut bytes)
            .expect("get from the own segment");
        pattern::generations(region_of(writer), &bytes);
        bytes
    };
    let mut left: Vec<(MemberId, Vec<u8>)> = Vec::new();
    run.until("the deaths of all writers", || {
        let view = run.check_view();
        for &writer in &victims {
            let is_dead = view.dead.contains(writer);
            let bytes = read(writer);
            if is_dead && !left.iter().any(|(known, _)| *known == writer) {
                pattern::check_cut_short(region_of(writer), &bytes);
                left.push((writer, bytes));
            }
        }
        for (writer, bytes) in &left {
            assert!(
                read(*writer) == *bytes,
                "{run:?}: {writer} wrote after the notice of its death"
            );
        }
        left.len() == victims.len()
    });
    run.check_dead(&victims);
    run.pause(Duration::from_millis(20));
    for (writer, bytes) in &left {
        assert!(
            read(*writer) == *bytes,
            "{run:?}: {writer} wrote long after the notice of its death"
        );
        let offset = region_of(*writer);
        let fresh = pattern::range(offset, LEN, 1000);
        run.put(run.epoch(), TARGET, offset, &fresh).expect("put over what the dead left");
        assert!(read(*writer) == fresh);
    }
    run.finish();
}

pub(crate) fn adders_die(run: &Run) {
    let victims: Vec<MemberId> =
        run.shared_random(&[]).distinct(2, 5).into_iter().map(MemberId).collect();
    run.begin(64 * 5 + 64 * 6);
    let (shared, own) = (run.data_after_check(), run.data_after_check() + 64);
    let mut random = run.own_random(0);
    let each = run.count(2000, 25);
    let is_victim = victims.contains(&run.me());
    if is_victim {
        run.fault(Fault::DieAtStep(1 + random.below(run.count(4000, 150))));
    }
    for _ in 0..each {
        for target in run.living() {
            for offset in [shared, own + 64 * run.id()] {
                match run.fetch_add(Epoch::ANY, target, offset, 1) {
                    Ok(_) => {}
                    Err(Error::Dead { member }) => assert!(victims.contains(&member)),
                    Err(error) => panic!("{run:?}: fetch_add at {target}: {error}"),
                }
            }
        }
    }
    if is_victim {
        run.die();
    }
    run.await_dead(&victims);
    run.barrier("all additions");
    let load = |offset| run.load(Epoch::ANY, run.me(), offset).expect("reading the own segment");
    let counts: Vec<u64> = run.all().map(|adder| load(own + 64 * u64::from(adder.0))).collect();
    for adder in run.all() {
        let count = counts[adder.index()];
        if victims.contains(&adder) {
            assert!(count <= each, "{run:?}: {adder} added {count} times at most");
        } else {
            assert_eq!(count, each, "{run:?}: the additions of {adder}");
        }
    }
    // A victim may have added to the shared word and not yet to its own word.
    let (sum, total) = (counts.iter().sum::<u64>(), load(shared));
    assert!((sum..=sum + 2).contains(&total), "{run:?}: {total} additions, {sum} counted");
    run.check_all_goes_on(1);
    run.finish();
}

pub(crate) fn lowest(run: &Run) {
    run.begin(64 * 5);
    if run.me() == MemberId(0) {
        let mut random = run.own_random(0);
        run.fault(Fault::DieAtStep(1 + random.below(30)));
        for _ in 0..100 {
            for target in run.all() {
                run.fetch_add(Epoch::ANY, target, run.data_after_check(), 1)
                    .expect("no other member dies");
            }
        }
        run.die();
    }
    run.await_dead(&[MemberId(0)]);
    run.check_dead(&[MemberId(0)]);
    check_is_dead(run, MemberId(0));
    run.check_all_goes_on(1);
    run.finish();
}

pub(crate) fn two_at_once(run: &Run) {
    let mut random = run.shared_random(&[]);
    let chosen: Vec<MemberId> = random.distinct(3, 5).into_iter().map(MemberId).collect();
    let (killer, victims) = (chosen[0], &chosen[1..]);
    run.begin(64 * 6);
    if victims.contains(&run.me()) {
        let mut inbox = Inbox::new(run, Port::User, 0);
        run.until("being killed", || {
            for target in run.living() {
                drop(inbox.try_send(target, 100));
            }
            inbox.drain();
            false
        });
    }
    if run.me() == killer {
        run.pause_below(&mut random, Duration::from_millis(2));
        for &victim in victims {
            run.kill(victim);
        }
    }
    run.await_dead(victims);
    run.check_dead(victims);
    for &victim in victims {
        check_is_dead(run, victim);
    }
    while run.receive(Port::User).is_some() {}
    run.check_all_goes_on(1);
    run.finish();
}

pub(crate) fn all_but_one(run: &Run) {
    let survivor = MemberId(run.shared_random(&[]).below(5) as u32);
    let victims: Vec<MemberId> = run.all().filter(|&member| member != survivor).collect();
    run.begin(64 * 6);
    let mut random = run.own_random(0);
    if run.me() != survivor {
        run.fault(Fault::DieAtStep(1 + random.below(run.count(1000, 120))));
        for round in 0..run.count(400, 40) as usize {
            for target in run.all() {
                match call(run, round, Epoch::ANY, target, run.data_after_check()) {
                    Ok(()) | Err(Error::Dead { .. }) => {}
                    Err(error) => panic!("{run:?}: operation on {target}: {error}"),
                }
            }
        }
        run.die();
    }
    run.await_dead(&victims);
    run.check_dead(&victims);
    for &victim in &victims {
        check_is_dead(run, victim);
    }
    run.check_all_goes_on(1);
    run.grow(DATA + (1 << 16)).expect("growing alone");
    let pending =
        run.start(run.epoch(), run.me(), Operation::FetchAdd { offset: DATA + 1024, delta: 1 });
    assert_eq!(run.wait(pending), Ok(Done::Word(0)));
    run.finish();
}

pub(crate) fn while_parked(run: &Run) {
    let mut random = run.shared_random(&[]);
    let victim = MemberId(random.below(4) as u32);
    run.begin(64 * 4);
    if run.me() == victim {
        run.pause_below(&mut random, Duration::from_millis(20));
        run.die();
    }
    // A park for each ring: only the death wakes a survivor, since no member tells it of the death.
    let mut parks = 0;
    run.until_rung("the death", || {
        parks += 1;
        run.epoch() == Epoch(1)
    });
    assert!(parks < 1000, "{run:?}: sleeping returned {parks} times for no reason");
    run.check_dead(&[victim]);
    run.check_all_goes_on(1);
    run.finish();
}

pub(crate) fn fence_living(run: &Run) {
    let mut random = run.shared_random(&[]);
    let victim = MemberId(random.below(4) as u32);
    run.begin(64 * 5);
    if run.me() == victim {
        run.until("being fenced", || {
            for target in run.living() {
                drop(call(run, 4, Epoch::ANY, target, run.data_after_check()));
            }
            false
        });
    }
    let mut own = run.own_random(0);
    if own.below(3) > 0 {
        run.pause_below(&mut own, Duration::from_millis(2));
        run.fence(victim, run.now().after(WAIT)).expect("fencing a living member");
        assert!(run.view().dead.contains(victim), "{run:?}: fenced before the view has it");
        assert!(run.epoch() >= Epoch(1));
        check_is_dead(run, victim);
    } else if run.me().index() == (victim.index() + 1) % 4 {
        // At least this member must fence the victim. Its call may not wait, and the victim must
        // die nevertheless.
        match run.fence(victim, Time(0)) {
            Ok(()) => {}
            Err(Error::Timeout { member, .. }) => assert_eq!(member, victim),
            Err(error) => panic!("{run:?}: fencing with no time to wait: {error}"),
        }
    }
    run.await_dead(&[victim]);
    run.check_dead(&[victim]);
    run.check_all_goes_on(1);
    run.finish();
}

pub(crate) fn fence_oneself(run: &Run) {
    run.begin(64 * 3);
    if run.me() == MemberId(1) {
        let result = run.fence(run.me(), run.now().after(WAIT));
        panic!("{run:?}: outlived its own fence: {result:?}");
    }
    run.await_dead(&[MemberId(1)]);
    run.check_dead(&[MemberId(1)]);
    assert!(run.view().left.is_empty(), "{run:?}: a fenced member did not leave");
    run.check_all_goes_on(1);
    run.finish();
}

pub(crate) fn deserter(run: &Run) {
    const DESERTER: MemberId = MemberId(1);
    run.begin(64 * 4);
    if run.me() == DESERTER {
        run.pause_below(&mut run.own_random(0), Duration::from_millis(2));
        run.desert();
        return;
    }
    run.await_dead(&[DESERTER]);
    run.check_dead(&[DESERTER]);
    assert!(run.view().left.is_empty(), "{run:?}: a member that only ends did not leave");
    check_is_dead(run, DESERTER);
    run.check_all_goes_on(1);
    run.finish();
}
