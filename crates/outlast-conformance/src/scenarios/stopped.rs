//! Members that are stopped: they are alive, and are resumed or fenced.

use crate::{DATA, Inbox, Run, WAIT, pattern};
use outlast::engine::{Fault, Operation, Port};
use outlast::{Epoch, Error, MemberId};
use std::time::Duration;

/// The word of member 0 that counts the beats of another member.
fn beats(run: &Run, of: MemberId) -> u64 {
    run.data_after_check() + 64 * u64::from(of.0)
}

/// Waits until a member that was just stopped shows no sign of life, and returns its last beat.
fn await_silence(run: &Run, of: MemberId) -> u64 {
    let count = || run.load(Epoch::ANY, run.me(), beats(run, of)).expect("reading the own segment");
    let mut last = count();
    run.until("the stopped member's silence", || {
        run.pause(Duration::from_millis(20));
        let before = std::mem::replace(&mut last, count());
        before == last
    });
    last
}

pub(crate) fn is_not_dead(run: &Run) {
    stopped_for(run, Duration::from_millis(300));
}

pub(crate) fn is_not_dead_slow(run: &Run) {
    stopped_for(run, Duration::from_secs(10));
}

fn stopped_for(run: &Run, duration: Duration) {
    const WATCHER: MemberId = MemberId(0);
    const PARTNER: MemberId = MemberId(1);
    const STOPPED: MemberId = MemberId(2);
    run.begin(64 * 7);
    let mut inbox = Inbox::new(run, Port::User, 0);
    if run.me() == STOPPED {
        // This member beats until it is told to end.
        run.until("being told to end", || {
            run.fetch_add(Epoch::ANY, WATCHER, beats(run, run.me()), 1).expect("a beat");
            inbox.drain();
            inbox.count_from(WATCHER) == 2
        });
    } else if run.me() == PARTNER {
        let mut answered = 0;
        run.until_rung("the end of the game", || {
            inbox.drain();
            while answered < inbox.count_from(WATCHER) {
                inbox.send(WATCHER, 30);
                answered += 1;
            }
            assert_eq!(run.epoch(), Epoch(0), "{run:?}: a stopped member was declared dead");
            run.told(0) == 1
        });
    } else {
        let count = || run.load(Epoch::ANY, WATCHER, beats(run, STOPPED)).expect("load");
        run.until("the first beats", || count() > 3);
        run.fault(Fault::Stop(STOPPED));
        let silent = await_silence(run, STOPPED);
        inbox.send(STOPPED, 100);
        let load = run.start(Epoch::ANY, STOPPED, Operation::Load { offset: DATA });
        // The other members go on without a delay.
        let until = run.now().after(duration);
        let mut games = 0;
        while run.now() < until {
            inbox.send(PARTNER, 30);
            games += 1;
            inbox.await_from(&[PARTNER], games);
            run.put(run.epoch(), PARTNER, run.data_after_check(), &[1; 100])
                .expect("put beside a stopped member");
            run.pause(Duration::from_millis(5));
            run.check_dead(&[]);
        }
        assert_eq!(count(), silent, "{run:?}: a stopped member did something");
        run.fault(Fault::Resume(STOPPED));
        run.until("a beat after the resume", || count() > silent);
        assert!(
            run.wait(load).is_ok(),
            "{run:?}: an operation on a member that was stopped for a while"
        );
        inbox.send(STOPPED, 10);
        run.tell(PARTNER, 0, 1);
    }
    run.check_all_goes_on(1);
    run.check_dead(&[]);
    run.finish();
}

pub(crate) fn writer_mid_put(run: &Run) {
    const TARGET: MemberId = MemberId(0);
    const WRITER: MemberId = MemberId(1);
    const LEN: usize = 3000;
    run.begin(64 * 3 + 4096);
    let offset = run.data_after_check() + 3;
    let rounds = run.count(40, 4);
    let last = 30 * rounds as u16;
    if run.me() == WRITER {
        let mut random = run.own_random(0);
        for generation in 1..=last {
            // Thirty generations take more than 25 steps, so that no stop is left for the end.
            if generation % 30 == 1 {
                run.fault(Fault::StopAtStep(1 + random.below(25)));
            }
            run.put(Epoch::ANY, TARGET, offset, &pattern::range(offset, LEN, generation))
                .expect("put");
            run.tell(TARGET, 1, u64::from(generation));
        }
        run.tell(TARGET, 0, 1);
        run.tell(MemberId(2), 0, 1);
    } else {
        let mut newest = 0;
        run.until("the end of the writer", || {
            let known = if run.me() == TARGET { run.told(1) as u16 } else { 0 };
            let mut bytes = vec![0; LEN];
            run.get(Epoch::ANY, TARGET, offset, &mut bytes).expect("a get beside a stopped writer");
            let found = pattern::generations(offset, &bytes);
            let (least, most) = (
                found.iter().copied().min().unwrap_or(0),
                found.iter().copied().max().unwrap_or(0),
            );
            // A get of a range that is being written may mix generations, but finds none that is
            // older than the last complete put.
            assert!(
                least + 1 >= newest && least >= known,
                "{run:?}: {least} after {newest} and {known}"
            );
            newest = newest.max(most);
            run.check_dead(&[]);
            if run.me() == TARGET {
                run.fault(Fault::Resume(WRITER));
            }
            run.told(0) == 1
        });
        let mut bytes = vec![0; LEN];
        run.get(Epoch::ANY, TARGET, offset, &mut bytes).expect("get");
        assert!(bytes == pattern::range(offset, LEN, last), "{run:?}: the last put is complete");
    }
    run.check_all_goes_on(1);
    run.check_dead(&[]);
    run.finish();
}

pub(crate) fn does_not_answer(run: &Run) {
    const CALLER: MemberId = MemberId(0);
    const STOPPED: MemberId = MemberId(1);
    // A call may wait for the time limit; a busy machine adds to that.
    let bound = run.time_limit() + WAIT / 4;
    run.begin(64 * 6);
    let mut inbox = Inbox::new(run, Port::User, 0);
    if run.me() == STOPPED {
        run.until("the resume", || {
            // This member may have been stopped for longer than the time limit while it waited.
            match run.fetch_add(Epoch::ANY, CALLER, beats(run, run.me()), 1) {
                Ok(_) | Err(Error::Timeout { .. }) => {}
                Err(error) => panic!("{run:?}: a beat: {error}"),
            }
            run.told(0) == 1
        });
        let sent = run.told(1);
        inbox.await_from(&[CALLER], sent);
        run.barrier("all messages");
        inbox.drain();
        assert_eq!(
            inbox.count_from(CALLER),
            sent,
            "{run:?}: a message that was refused came all the same"
        );
    } else if run.me() == CALLER {
        run.until("the first beats", || {
            run.load(Epoch::ANY, CALLER, beats(run, STOPPED)).expect("load") > 3
        });
        run.fault(Fault::Stop(STOPPED));
        await_silence(run, STOPPED);
        let mut timeouts = 0;
        let mut check = |result: outlast::engine::Result<()>, began| {
            let took = run.now().since(began);
            assert!(took < bound, "{run:?}: a call that needs a stopped member took {took:?}");
            match result {
                Ok(()) => {}
                Err(Error::Timeout { member, limit }) => {
                    timeouts += 1;
                    assert_eq!((member, limit), (STOPPED, run.time_limit()));
                    assert!(
                        took >= limit,
                        "{run:?}: a time limit of {limit:?} was over after {took:?}"
                    );
                }
                Err(error) => panic!("{run:?}: a call that needs a stopped member: {error}"),
            }
        };
        let began = run.now();
        check(run.put(Epoch::ANY, STOPPED, run.data_after_check(), &[1; 64]), began);
        let began = run.now();
        check(run.load(Epoch::ANY, STOPPED, run.data_after_check()).map(drop), began);
        // Send until the engine accepts no more messages, if its room is bounded.
        for _ in 0..run.count(3000, 60) {
            let began = run.now();
            let result = inbox.try_send(STOPPED, 10_000);
            let is_full = result.is_err();
            check(result, began);
            if is_full {
                break;
            }
        }
        run.check_dead(&[]);
        run.fault(Fault::Resume(STOPPED));
        run.tell(STOPPED, 1, inbox.count_to(STOPPED));
        run.tell(STOPPED, 0, 1);
        run.tell(MemberId(2), 0, 1);
        run.barrier("all messages");
    } else {
        // Any operation of this member on the stopped member would have to wait, too.
        run.until_rung("the resume", || run.told(0) == 1);
        run.barrier("all messages");
    }
    run.check_all_goes_on(1);
    run.check_dead(&[]);
    run.finish();
}

pub(crate) fn fenced(run: &Run) {
    const FENCER: MemberId = MemberId(0);
    const VICTIM: MemberId = MemberId(3);
    run.begin(64 * 8);
    let word = beats(run, VICTIM);
    if run.me() == VICTIM {
        let at = run.epoch();
        run.until("being fenced", || {
            for target in run.others() {
                run.fetch_add(at, target, word, 1).expect("an operation before being stopped");
                run.fetch_add(Epoch::ANY, target, word + 8, 1)
                    .expect("an operation before being stopped");
            }
            false
        });
    }
    if run.me() == FENCER {
        run.until("the first beats", || run.load(Epoch::ANY, FENCER, word).expect("load") > 3);
        run.fault(Fault::Stop(VICTIM));
        let mut random = run.own_random(0);
        run.pause_below(&mut random, Duration::from_millis(3));
        run.check_dead(&[]);
        run.fence(VICTIM, run.now().after(WAIT)).expect("fencing a stopped member");
    }
    run.await_dead(&[VICTIM]);
    // Once a member's view has the death, no operation of the fenced member takes effect at it.
    let count = || {
        [word, word + 8]
            .map(|word| run.load(Epoch::ANY, run.me(), word).expect("reading the own segment"))
    };
    let last = count();
    match run.inject(Fault::Resume(VICTIM)) {
        Ok(()) | Err(Error::Dead { .. }) => {}
        Err(error) => panic!("{run:?}: resuming a fenced member: {error}"),
    }
    assert!(
        !run.within(Duration::from_millis(60), || count() != last),
        "{run:?}: a fenced member did harm"
    );
    run.check_dead(&[VICTIM]);
    run.check_all_goes_on(1);
    run.finish();
}

pub(crate) fn wakes_late(run: &Run) {
    const CALLER: MemberId = MemberId(0);
    const STOPPED: MemberId = MemberId(1);
    const VICTIM: MemberId = MemberId(2);
    run.begin(64 * 8);
    let word = beats(run, STOPPED);
    let old = run.epoch();
    let count = || run.load(Epoch::ANY, CALLER, word).expect("load");
    if run.me() == VICTIM {
        run.until("being killed", || false);
    } else if run.me() == STOPPED {
        // This member goes on in the epoch that it knew, until it is refused.
        run.until("being refused", || match run.fetch_add(old, CALLER, word, 1) {
            Ok(_) => false,
            Err(Error::Stale { now }) => {
                assert!(now > old && run.epoch() >= now, "{run:?}: stale at {old}, now {now}");
                true
            }
            Err(error) => panic!("{run:?}: an operation of an old view: {error}"),
        });
        run.await_dead(&[VICTIM]);
        let before = count();
        assert!(matches!(run.fetch_add(old, CALLER, word, 1), Err(Error::Stale { .. })));
        assert_eq!(count(), before, "{run:?}: an operation that was refused changed something");
    } else if run.me() == CALLER {
        run.until("the first beats", || count() > 3);
        run.fault(Fault::Stop(STOPPED));
        let silent = await_silence(run, STOPPED);
        run.kill(VICTIM);
        run.await_dead(&[VICTIM]);
        // The other members wait in vain for the death of the stopped member.
        assert!(
            !run.within(Duration::from_millis(200), || run.view().dead.contains(STOPPED)),
            "{run:?}: a stopped member was declared dead"
        );
        run.fault(Fault::Resume(STOPPED));
        run.barrier("the resumed member's refusal");
        // The member may have been stopped between the check of its view and an operation: at most
        // a single operation is late.
        let after = count();
        assert!(after <= silent + 1, "{run:?}: {} operations of an old view", after - silent);
    }
    if run.me() != CALLER {
        run.barrier("the resumed member's refusal");
    }
    run.await_dead(&[VICTIM]);
    run.check_dead(&[VICTIM]);
    run.check_all_goes_on(1);
    run.finish();
}
