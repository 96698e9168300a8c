//! Messages, without deaths and with deaths of senders and receivers.

use crate::{DATA, Inbox, Run, WAIT};
use outlast::engine::{Fault, MESSAGE_CREDIT, MESSAGE_LEN_MAX, Port, message_cost};
use outlast::{Error, MemberId};
use std::time::Duration;

const PORTS: [Port; Port::COUNT] = [Port::Rma, Port::Store, Port::Snapshot, Port::User];

pub(crate) fn in_order(run: &Run) {
    run.begin(0);
    let mut inboxes = PORTS.map(|port| Inbox::new(run, port, 0));
    let all: Vec<MemberId> = run.all().collect();
    let mut random = run.own_random(0);
    let each = run.count(400, 12);
    for _ in 0..each {
        for &target in &all {
            for inbox in &mut inboxes {
                let len = random.pick(&[0, 1, 7, 8, 9, 63, 64, 65, 500, 4096, 5000, 20_000]);
                inbox.send(target, len);
            }
        }
        // Some members receive between their sends, the others only at the end.
        if run.id().is_multiple_of(2) && random.below(3) == 0 {
            inboxes[random.below(3) as usize].drain();
        }
    }
    for inbox in &mut inboxes {
        inbox.await_from(&all, each);
    }
    run.barrier("all messages");
    for inbox in &mut inboxes {
        inbox.drain();
        assert!(
            all.iter().all(|&from| inbox.count_from(from) == each),
            "{run:?}: a message came twice"
        );
    }
    run.finish();
}

pub(crate) fn large_and_empty(run: &Run) {
    run.begin(0);
    let mut inbox = Inbox::new(run, Port::User, 0);
    let all: Vec<MemberId> = run.all().collect();
    let lens = [0, MESSAGE_LEN_MAX, 0, 3, MESSAGE_LEN_MAX - 1, 0, 300_000, 0];
    let lens = &lens[..run.count(8, 4) as usize];
    let rounds = run.count(4, 1);
    for round in 1..=rounds {
        for &len in lens {
            for &target in &all {
                inbox.send(target, len);
            }
        }
        // A further round would exceed the credit of a sender.
        inbox.await_from(&all, round * lens.len() as u64);
        run.barrier("a round");
    }
    run.finish();
}

pub(crate) fn busy_receiver(run: &Run) {
    const BUSY: MemberId = MemberId(0);
    run.begin(0);
    let each = run.count(6000, 150);
    let mut inbox = Inbox::new(run, Port::User, 0);
    if run.me() == BUSY {
        let senders: Vec<MemberId> = run.others().collect();
        run.compute_for(Duration::from_millis(300));
        inbox.await_from(&senders, each);
    } else {
        for _ in 0..each {
            inbox.send(BUSY, 1000);
        }
    }
    run.finish();
}

pub(crate) fn sleeping_receiver(run: &Run) {
    const SLEEPER: MemberId = MemberId(0);
    const STALL: Duration = Duration::from_millis(30);
    run.begin(0);
    let each = run.count(200, 12);
    let mut inbox = Inbox::new(run, Port::User, 0);
    if run.me() == SLEEPER {
        // The main activity receives no message until all are sent; the background makes room for
        // them.
        run.until_rung("the last message", || {
            run.others().all(|sender| run.told(u64::from(sender.0)) == 1)
        });
        inbox.await_from(&run.others().collect::<Vec<_>>(), each);
    } else {
        let mut stalls = 0;
        for _ in 0..each {
            let began = run.now();
            inbox.send(SLEEPER, 20_000);
            stalls += u64::from(run.now().since(began) > STALL);
        }
        // A machine under load delays some messages; an engine that forgets to receive delays many.
        assert!(
            stalls <= 1 + each / 20,
            "{run:?}: {stalls} of {each} messages took longer than {STALL:?}"
        );
        run.tell(SLEEPER, run.id(), 1);
    }
    run.finish();
}

pub(crate) fn mutual_flood(run: &Run) {
    run.begin(0);
    let each = run.count(4000, 100);
    let mut inbox = Inbox::new(run, Port::User, 0);
    let others: Vec<MemberId> = run.others().collect();
    for _ in 0..each {
        for &target in &others {
            inbox.send_or_drain(target, 1000);
        }
    }
    inbox.await_from(&others, each);
    run.finish();
}

pub(crate) fn to_a_member_that_never_receives(run: &Run) {
    const SENDER: MemberId = MemberId(0);
    const SILENT: MemberId = MemberId(1);
    const LEN: usize = 2000;
    run.begin(0);
    let mut inbox = Inbox::new(run, Port::User, 0);
    let mut other_port = Inbox::new(run, Port::Snapshot, 0);
    if run.me() == SENDER {
        let credit = MESSAGE_CREDIT / message_cost(LEN);
        (0..credit).for_each(|_| inbox.send(SILENT, LEN));
        assert!(!inbox.send_at_once(SILENT, LEN), "{run:?}: more messages than the credit");
        let began = run.now();
        match inbox.try_send(SILENT, LEN) {
            Err(Error::Timeout { member: SILENT, limit }) => {
                assert!(run.now().since(began) >= limit);
            }
            other => panic!("{run:?}: a message without credit: {other:?}"),
        }
        // Messages for other ports, and of other members, have credit of their own.
        other_port.send(SILENT, LEN);
        run.tell(MemberId(2), 0, 1);
        run.tell(SILENT, 0, credit);
        // The sender is woken when the receiver receives.
        let began = run.now();
        inbox.send(SILENT, LEN);
        assert!(run.now().since(began) < run.time_limit());
    } else if run.me() == SILENT {
        run.until_rung("a message for another port", || {
            other_port.drain();
            other_port.count_from(SENDER) == 1 && run.told(0) > 0
        });
        inbox.await_from(&[SENDER], run.told(0) + 1);
        inbox.await_from(&[MemberId(2)], 1);
    } else {
        run.until_rung("the full queue", || run.told(0) == 1);
        inbox.send(SILENT, LEN);
    }
    run.finish();
}

pub(crate) fn of_the_dead(run: &Run) {
    let victim = MemberId(run.shared_random(&[]).below(3) as u32);
    run.begin(64 * 3);
    let mut inbox = Inbox::new(run, Port::User, 0);
    let each = run.count(500, 8);
    if run.me() == victim {
        for number in 0..each {
            for target in run.others() {
                inbox.send(target, [16, 0, 3000][number as usize % 3]);
            }
        }
        run.die();
    }
    run.await_dead(&[victim]);
    // Messages of the victim may still arrive. `drain` checks that they come in order, without
    // gaps.
    let other = run.living_others()[0];
    inbox.send(other, 10);
    inbox.await_from(&[other], 1);
    run.within(Duration::from_millis(50), || {
        inbox.drain();
        inbox.count_from(victim) == each
    });
    assert!(inbox.count_from(victim) <= each, "{run:?}: more messages than the dead sent");
    run.check_all_goes_on(1);
    run.finish();
}

pub(crate) fn sender_dies(run: &Run) {
    const RECEIVER: MemberId = MemberId(0);
    let victims = [MemberId(1), MemberId(3)];
    run.begin(64 * 5);
    let mut inbox = Inbox::new(run, Port::User, 0);
    let mut random = run.own_random(0);
    let each = run.count(300, 6);
    if victims.contains(&run.me()) {
        run.fault(Fault::DieAtStep(1 + random.below(run.count(3000, 60))));
        for _ in 0..each {
            let long = run.count(MESSAGE_LEN_MAX as u64, 90_000) as usize;
            inbox.send(RECEIVER, random.pick(&[long, long / 5, 10, 0]));
        }
        run.die();
    }
    if run.me() == RECEIVER {
        let senders = [MemberId(2), MemberId(4)];
        inbox.await_from(&senders, each);
        run.until("the deaths of the senders", || {
            inbox.drain();
            run.view().dead.len() == 2
        });
    } else {
        for _ in 0..each {
            inbox.send(RECEIVER, random.pick(&[2000, 100_000, 0]));
        }
    }
    run.await_dead(&victims);
    run.barrier("messages after the deaths");
    let mut later = Inbox::new(run, Port::Store, 1);
    for target in run.living() {
        later.send(target, run.count(MESSAGE_LEN_MAX as u64, 50_000) as usize);
        later.send(target, 5);
    }
    later.await_from(&run.living(), 2);
    inbox.drain();
    run.check_all_goes_on(1);
    run.finish();
}

pub(crate) fn receiver_dies(run: &Run) {
    const RECEIVER: MemberId = MemberId(1);
    run.begin(64 * 3);
    if run.me() == RECEIVER {
        // The receiver receives nothing, and is killed while the others send.
        run.until("being killed", || false);
    }
    let mut inbox = Inbox::new(run, Port::User, 0);
    let mut random = run.own_random(0);
    let until = run.now().after(WAIT);
    let kill_at = random.below(run.count(300, 40));
    let mut number = 0;
    loop {
        if run.me() == MemberId(0) && number == kill_at {
            run.kill(RECEIVER);
        }
        number += 1;
        match inbox.try_send(RECEIVER, random.pick(&[10, 3000, 20_000])) {
            // A sender must not use all its credit before member 0 has killed the receiver.
            Ok(()) if number > 350 => run.pause(Duration::from_millis(5)),
            Ok(()) if number % 16 == 0 => run.pause(Duration::from_micros(100)),
            Ok(()) => {}
            Err(Error::Dead { member }) => {
                assert_eq!(member, RECEIVER);
                break;
            }
            Err(error) => panic!("{run:?}: message {number} to {RECEIVER}: {error}"),
        }
        assert!(
            run.now() < until,
            "{run:?}: waited {WAIT:?} in vain for the death of the receiver"
        );
    }
    assert!(run.view().dead.contains(RECEIVER), "{run:?}: Dead before the view has the death");
    run.await_dead(&[RECEIVER]);
    assert_eq!(run.send(RECEIVER, Port::User, &[1]), Err(Error::Dead { member: RECEIVER }));
    assert!(run.segment_len(run.me()).expect("the own segment") >= DATA);
    run.check_all_goes_on(1);
    run.finish();
}
