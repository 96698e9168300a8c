//! The bell, and sleeping until it rings.

use crate::{DATA, Inbox, Run, WAIT};
use outlast::engine::Port;
use outlast::{Epoch, MemberId, Time};
use std::time::Duration;

pub(crate) fn bell_and_park(run: &Run) {
    run.begin(0);
    // The other member only waits at the barrier, so it does not ring this member's bell before
    // this member rings there.
    if run.me() == MemberId(0) {
        for _ in 0..run.count(50, 5) {
            let seen = run.bell();
            run.ring(run.me()).expect("ringing the own bell");
            let began = run.now();
            run.until("the own ring", || run.bell() != seen);
            run.park(seen, began.after(WAIT));
            assert!(run.now().since(began) < WAIT / 2, "a bell that has rung does not end a park");
        }
        run.park(run.bell(), Time(0));
        run.park(run.bell(), run.now());
        for duration in [1, 5, 40].map(Duration::from_millis) {
            let until = run.now().after(duration);
            let mut parks = 0;
            while run.now() < until {
                run.park(run.bell(), until);
                parks += 1;
            }
            assert!(parks < 1000, "parking for {duration:?} returned {parks} times for no reason");
            assert!(
                run.now().since(until) < WAIT / 2,
                "parking for {duration:?} lasted far too long"
            );
        }
        run.tell(MemberId(1), 0, 1);
    } else {
        // This member's bell rings a single time, at the end. Until then it sleeps without a time
        // limit of its own.
        let mut parks = 0;
        run.until_rung("the other's ring", || {
            parks += 1;
            run.told(0) == 1
        });
        assert!(parks < 1000, "sleeping returned {parks} times for no reason");
    }
    run.barrier("the other's ring");
    // The clock goes forward at every member.
    let mut last = run.now();
    for _ in 0..100 {
        let now = run.now();
        assert!(now >= last, "the clock went back");
        last = now;
    }
    run.finish();
}

pub(crate) fn no_lost_wakeups(run: &Run) {
    run.begin(64);
    let members = run.members() as u64;
    let rounds = run.count(3000, 20);
    // A token goes round by puts and rings.
    let next = MemberId(((run.id() + 1) % members) as u32);
    for round in 1..=rounds {
        if run.id() != 0 {
            run.until_rung("the token", || run.told(0) == round);
        }
        run.tell(next, 0, round);
        if run.id() == 0 {
            run.until_rung("the token", || run.told(0) == round);
        }
    }
    run.barrier("the last token");
    // A token goes round by messages.
    let mut inbox = Inbox::new(run, Port::User, 0);
    let previous = MemberId(((run.id() + members - 1) % members) as u32);
    for round in 1..=rounds {
        if run.id() != 0 {
            inbox.await_from(&[previous], round);
        }
        inbox.send(next, 8);
        if run.id() == 0 {
            inbox.await_from(&[previous], round);
        }
    }
    run.barrier("the last message");
    // All members ring member 0 at once, which counts.
    for round in 1..=run.count(500, 8) {
        if run.id() == 0 {
            run.until_rung("the rings of all others", || {
                run.load(Epoch::ANY, run.me(), DATA).expect("load") == round * (members - 1)
            });
            for other in run.others() {
                run.tell(other, 1, round);
            }
        } else {
            run.fetch_add(Epoch::ANY, MemberId(0), DATA, 1).expect("fetch_add");
            run.ring(MemberId(0)).expect("ring");
            run.until_rung("the answer to all rings", || run.told(1) == round);
        }
    }
    run.finish();
}
