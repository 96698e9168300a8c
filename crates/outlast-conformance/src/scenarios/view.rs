//! The view: the dead, the active members, and the effect of epochs on operations.

use crate::{DATA, Inbox, Run, WAIT, pattern};
use outlast::engine::{CompoundStep, Operation, Port};
use outlast::{Epoch, Error, MemberId, MemberSet};
use std::time::Duration;

fn bits(members: &MemberSet) -> u64 {
    members.iter().map(|member| 1 << member.0).sum()
}

pub(crate) fn rules(run: &Run) {
    let victims: Vec<MemberId> =
        run.shared_random(&[]).distinct(4, 8).into_iter().map(MemberId).collect();
    run.begin(64 * 9);
    let mut random = run.own_random(0);
    if victims.contains(&run.me()) {
        run.pause_below(&mut random, Duration::from_millis(10));
        run.die();
    }
    let is_silent = random.below(2) == 0;
    let mut known = run.check_view();
    let mut last_epoch = run.epoch();
    run.until("all deaths", || {
        let view = run.check_view();
        assert!(known.dead.is_subset(&view.dead), "{run:?}: {view:?} after {known:?}");
        assert!(known.active.is_subset(&view.active), "{run:?}: {view:?} after {known:?}");
        let epoch = run.epoch();
        assert!(
            epoch >= last_epoch && epoch >= view.epoch,
            "{run:?}: {epoch} after {last_epoch}, {view:?}"
        );
        (known, last_epoch) = (view, epoch);
        if !is_silent {
            let target = random.pick(&run.living());
            match run.fetch_add(Epoch::ANY, target, run.data_after_check(), 1) {
                Ok(_) => {}
                Err(Error::Dead { member }) => {
                    assert!(
                        run.view().dead.contains(member),
                        "{run:?}: Dead before the view has {member}"
                    );
                }
                Err(error) => panic!("{run:?}: fetch_add at {target}: {error}"),
            }
        }
        known.dead.len() == victims.len()
    });
    run.check_dead(&victims);
    run.barrier("an equal view at all survivors");
    let view = run.check_view();
    for target in run.living() {
        run.tell(target, 2 * run.id(), bits(&view.dead));
        run.tell(target, 2 * run.id() + 1, bits(&view.active));
    }
    run.barrier("the views of all survivors");
    for member in run.living() {
        let told = (run.told(2 * u64::from(member.0)), run.told(2 * u64::from(member.0) + 1));
        assert_eq!(told, (bits(&view.dead), bits(&view.active)), "{run:?}: the view of {member}");
    }
    run.check_all_goes_on(1);
    run.finish();
}

pub(crate) fn stale_is_refused(run: &Run) {
    let victim = MemberId(run.shared_random(&[]).below(3) as u32);
    run.begin(64 * 4);
    let (old, offset) = (run.epoch(), run.data_after_check());
    run.put(old, run.me(), offset, &pattern::range(offset, 64, 9)).expect("put");
    run.barrier("what must stay");
    if run.me() == victim {
        run.die();
    }
    run.await_dead(&[victim]);
    run.barrier("the death at all survivors");
    for target in run.living() {
        let operations = [
            Operation::Put { offset, data: &[0x77; 64] },
            Operation::Get { offset, len: 64 },
            Operation::Load { offset },
            Operation::CompareAndSwap { offset, expected: pattern::word(9), new: 1 },
            Operation::FetchAdd { offset, delta: 1 },
        ];
        for operation in operations {
            let result = run.wait(run.start(old, target, operation));
            assert_eq!(
                result,
                Err(Error::Stale { now: Epoch(1) }),
                "{run:?}: {operation:?} at {target}"
            );
        }
        let parts =
            [CompoundStep::Put { offset, data: &[0x77; 64] }, CompoundStep::Load { offset }];
        let stale = Err(Error::Stale { now: Epoch(1) });
        assert_eq!(run.wait(run.start_compound(old, target, &parts)).map(drop), stale);
        assert_eq!(run.put(old, target, offset, &[1; 64]), stale);
        assert_eq!(run.get(old, target, offset, &mut [0; 64]), stale);
        assert_eq!(run.load(old, target, offset).map(drop), stale);
        assert_eq!(run.compare_and_swap(old, target, offset, pattern::word(9), 1).map(drop), stale);
        assert_eq!(run.fetch_add(old, target, offset, 1).map(drop), stale);
    }
    run.barrier("all refusals");
    for target in run.living() {
        for at in [Epoch::ANY, Epoch(1)] {
            let mut found = vec![0; 64];
            run.get(at, target, offset, &mut found).expect("get under the new view");
            assert!(
                found == pattern::range(offset, 64, 9),
                "{run:?}: a refused operation changed something"
            );
        }
    }
    run.barrier("what stayed");
    for target in run.living() {
        let mine = offset + 8 * run.id();
        run.put(Epoch(1), target, mine, &[0; 8]).expect("put under the new view");
        run.fetch_add(Epoch(1), target, mine, 2).expect("fetch_add under the new view");
        assert_eq!(run.compare_and_swap(Epoch(1), target, mine, 2, 3), Ok(2));
        assert_eq!(run.load(Epoch(1), target, mine), Ok(3));
    }
    run.check_all_goes_on(1);
    run.finish();
}

pub(crate) fn past_is_refused(run: &Run) {
    let chosen = run.shared_random(&[]).distinct(4, 4);
    let (victim, target) = (MemberId(chosen[0]), MemberId(chosen[1]));
    run.begin(64 * 5);
    // For each epoch a word to which operations of that epoch alone add.
    let word = |epoch: Epoch| run.data_after_check() + 8 * epoch.0;
    if run.me() == victim {
        run.pause_below(&mut run.own_random(0), Duration::from_millis(2));
        run.die();
    } else if run.me() == target {
        let count =
            || run.load(Epoch::ANY, target, word(Epoch(0))).expect("reading the own segment");
        run.until_rung("the death", || run.epoch() == Epoch(1));
        let known = count();
        run.until("additions under the new view", || {
            run.load(Epoch::ANY, target, word(Epoch(1))).expect("reading the own segment") > 20
        });
        // If the engine checks the epoch before the operation, and not in a single step with it, an
        // operation of each of the two members may have been between the two.
        let late = count() - known;
        assert!(
            late <= 2,
            "{run:?}: {late} operations of the old view after the new view was known"
        );
    } else {
        let until = run.now().after(WAIT);
        let mut added = 0;
        while added < 20 {
            // Several operations are in flight at once: an answer brings the new view, and the
            // operations behind it were started without that knowledge.
            let at = run.epoch();
            let add = Operation::FetchAdd { offset: word(at), delta: 1 };
            let started: Vec<_> = (0..8).map(|_| run.start(at, target, add)).collect();
            for pending in started {
                match run.wait(pending) {
                    Ok(_) => added += at.0,
                    Err(Error::Stale { now }) => {
                        assert!(
                            now > at && run.epoch() >= now,
                            "{run:?}: stale at {at}, now {now}"
                        );
                    }
                    Err(error) => panic!("{run:?}: fetch_add: {error}"),
                }
            }
            assert!(run.now() < until, "{run:?}: waited {WAIT:?} in vain for the new view");
        }
    }
    run.await_dead(&[victim]);
    run.check_all_goes_on(1);
    run.finish();
}

pub(crate) fn epoch_before_action(run: &Run) {
    let chosen = run.shared_random(&[]).distinct(4, 4);
    let [victim, first, second, third] = chosen[..] else { unreachable!("asked for four") };
    let [victim, first, second, third] = [victim, first, second, third].map(MemberId);
    run.begin(64 * 4);
    let mut random = run.own_random(0);
    let has_it = |how: &str| {
        assert!(
            run.epoch() >= Epoch(1),
            "{run:?}: told of a death {how}, and still at {}",
            run.epoch()
        );
        assert!(
            run.view().dead.contains(victim),
            "{run:?}: told of a death {how}, and not in the view"
        );
    };
    if run.me() == victim {
        run.pause_below(&mut random, Duration::from_millis(3));
        run.die();
    } else if run.me() == first {
        // This member detects the death by itself, and tells a member by a message and another by a
        // word.
        run.until("the death", || run.epoch() == Epoch(1));
        run.send(second, Port::User, b"a death").expect("send");
        run.tell_at(Epoch(1), third, 0, 1);
    } else if run.me() == second {
        let mut message = None;
        run.until_rung("the message", || {
            message = message.take().or_else(|| run.receive(Port::User));
            message.is_some()
        });
        has_it("by a message");
        let message = message.expect("just received");
        assert_eq!(
            (message.from, message.epoch, message.bytes),
            (first, Epoch(1), b"a death".to_vec())
        );
    } else {
        run.until("the word", || run.told(0) == 1);
        has_it("by a word");
        // A member that reads, in an epoch, a word that was written in the new epoch must have the
        // new epoch, too.
        run.tell(second, 1, 1);
    }
    if run.me() == first || run.me() == second {
        let until = run.now().after(WAIT);
        loop {
            let at = run.epoch();
            match run.load(at, third, run.told_offset(0)) {
                Ok(1) => {
                    has_it("by a word that it read");
                    break;
                }
                Ok(other) => assert_eq!(other, 0),
                Err(Error::Stale { now }) => assert!(now > at && run.epoch() >= now),
                Err(error) => panic!("{run:?}: load: {error}"),
            }
            assert!(run.now() < until, "{run:?}: waited {WAIT:?} in vain for a word");
            run.pause(Duration::from_micros(100));
        }
    }
    run.await_dead(&[victim]);
    run.check_all_goes_on(1);
    run.finish();
}

pub(crate) fn spares_activated(run: &Run) {
    run.begin(64 * 6);
    let check_active = |expected: &[u32]| {
        let view = run.check_view();
        let living: Vec<u32> = view.active_living().map(|member| member.0).collect();
        assert_eq!(living, expected, "{run:?}: the active living members of {view:?}");
        assert_eq!(view.is_active(run.me()), expected.contains(&run.me().0));
    };
    check_active(&[0, 1, 2]);
    run.check_all_goes_on(1);
    let mut dead = Vec::new();
    // First a spare dies, which no member replaces; then two regular members, whose places go to
    // the living spares; then a spare that had become active, and no spare is left.
    for (victim, active) in
        [(3, &[0, 1, 2][..]), (1, &[0, 2, 4][..]), (0, &[2, 4, 5][..]), (4, &[2, 5][..])]
    {
        if run.me() == MemberId(victim) {
            let mut random = run.own_random(0);
            run.pause_below(&mut random, Duration::from_millis(2));
            run.die();
        }
        dead.push(MemberId(victim));
        run.await_dead(&dead);
        run.check_dead(&dead);
        check_active(active);
        run.check_all_goes_on(1 + dead.len() as u64);
    }
    run.finish();
}

pub(crate) fn leaving(run: &Run) {
    const LEAVER: MemberId = MemberId(3);
    const VICTIM: MemberId = MemberId(1);
    run.begin(64 * 5);
    let mut inbox = Inbox::new(run, Port::User, 0);
    if run.me() == VICTIM {
        run.die();
    }
    if run.me() == LEAVER {
        let offset = run.data_after_check();
        let mut pending =
            run.start(Epoch::ANY, MemberId(0), Operation::FetchAdd { offset, delta: 1 });
        assert!(!run.has_ended());
        run.leave().expect("leaving");
        assert!(run.has_ended(), "{run:?}: left, and not ended");
        let given = run.poll(&mut pending);
        assert!(matches!(given, None | Some(Ok(_) | Err(Error::Ended))), "{run:?}: {given:?}");
        let ended = Err(Error::Ended);
        for target in run.all() {
            assert_eq!(run.put(Epoch::ANY, target, offset, &[1]), ended);
            assert_eq!(run.get(Epoch::ANY, target, offset, &mut [1]), ended);
            assert_eq!(run.load(Epoch::ANY, target, offset).map(drop), ended);
            assert_eq!(run.compare_and_swap(Epoch::ANY, target, offset, 0, 1).map(drop), ended);
            assert_eq!(run.fetch_add(Epoch::ANY, target, offset, 1).map(drop), ended);
            let started = run.start(run.epoch(), target, Operation::Load { offset });
            assert_eq!(run.wait(started).map(drop), ended);
            assert_eq!(run.send(target, Port::User, &[1]), ended);
            assert_eq!(run.ring(target), ended);
            assert_eq!(run.segment_len(target).map(drop), ended);
            if target != run.me() {
                assert_eq!(run.fence(target, run.now().after(WAIT)), ended);
            }
        }
        assert_eq!(run.grow(DATA + (1 << 20)), ended);
        assert_eq!(run.spawn("too late", Box::new(|| ())).map(drop), ended);
        assert_eq!(run.leave(), ended);
        assert_eq!(run.receive(Port::User), None);
        // These calls give no result, and must not hang.
        run.park(run.bell(), run.now());
        let _ = (run.view(), run.epoch(), run.me(), run.members());
        return;
    }
    run.await_dead(&[VICTIM, LEAVER]);
    run.check_dead(&[VICTIM, LEAVER]);
    let view = run.view();
    assert_eq!(
        view.left,
        [LEAVER].into_iter().collect(),
        "{run:?}: the members that left on purpose"
    );
    let gone = Err(Error::Dead { member: LEAVER });
    assert_eq!(run.put(Epoch::ANY, LEAVER, DATA, &[1]), gone);
    assert_eq!(run.load(Epoch::ANY, LEAVER, DATA).map(drop), gone);
    assert_eq!(inbox.try_send(LEAVER, 8), gone);
    let began = run.now();
    assert_eq!(
        run.fence(LEAVER, run.now().after(WAIT)),
        Ok(()),
        "{run:?}: fencing a member that left"
    );
    assert!(run.now().since(began) < WAIT);
    run.check_all_goes_on(1);
    run.finish();
}
