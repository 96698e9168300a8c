//! Activities of a member, and the services of its background.

use crate::{DATA, Run};
use outlast::engine::Port;
use outlast::{Epoch, Job, MemberId, Service, Time};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub(crate) fn several(run: &Run) {
    const ACTIVITIES: u64 = 4;
    run.begin(64 * 4);
    let (counter, baton) = (DATA + 64, DATA + 128);
    let each = run.count(2000, 12);
    let done = Arc::new(AtomicU64::new(0));
    let mut activities = Vec::new();
    for number in 0..ACTIVITIES {
        let (activity, done) = (run.clone(), done.clone());
        let body = move || {
            for _ in 0..each {
                for target in activity.all() {
                    activity.fetch_add(Epoch::ANY, target, counter, 1).expect("fetch_add");
                }
            }
            // The activities pass a baton on. Each sleeps until its turn, and the member's bell
            // wakes all of them.
            let me = activity.me();
            for turn in (number..3 * ACTIVITIES).step_by(ACTIVITIES as usize) {
                activity.until_rung("the baton", || {
                    activity.load(Epoch::ANY, me, baton).expect("load") == turn
                });
                activity.put(Epoch::ANY, me, baton, &(turn + 1).to_le_bytes()).expect("put");
                activity.ring(me).expect("ring");
            }
            // The messages of all activities go through a single queue.
            let other = activity.others().next().expect("two members");
            activity.send(other, Port::User, &number.to_le_bytes()).expect("send");
            // Relaxed: it is only a count; the end of the activity orders its other effects.
            done.fetch_add(1, Ordering::Relaxed);
        };
        activities.push(run.spawn(&format!("activity {number}"), Box::new(body)).expect("spawn"));
    }
    for activity in &activities {
        run.until_rung("the end of an activity", || activity.is_finished());
        assert!(run.wait_for(activity, run.now()), "{run:?}: an activity that has ended has ended");
    }
    assert_eq!(
        done.load(Ordering::Relaxed),
        ACTIVITIES,
        "{run:?}: activities that came to their end"
    );
    let mut greetings = Vec::new();
    run.until_rung("the messages of the other's activities", || {
        while let Some(message) = run.receive(Port::User) {
            let bytes = message.bytes.try_into().expect("8 bytes");
            greetings.push(u64::from_le_bytes(bytes));
        }
        greetings.len() == ACTIVITIES as usize
    });
    greetings.sort_unstable();
    assert_eq!(greetings, (0..ACTIVITIES).collect::<Vec<_>>());
    run.barrier("all activities");
    let total = run.load(Epoch::ANY, run.me(), counter).expect("load");
    assert_eq!(total, 2 * ACTIVITIES * each, "{run:?}: what all activities added");
    // An activity that does not end by itself: waiting for it has a bound.
    let sleeper = run.clone();
    let sleeper = run
        .spawn(
            "sleeper",
            Box::new(move || sleeper.until_rung("the word to end", || sleeper.told(5) == 1)),
        )
        .expect("spawn");
    assert!(!run.wait_for(&sleeper, run.now().after(Duration::from_millis(20))));
    run.tell(run.me(), 5, 1);
    run.until_rung("the end of the sleeper", || sleeper.is_finished());
    run.finish();
}

/// A service that sends each message back on another port, and counts how often it ran.
#[derive(Default)]
struct Echo {
    answered: AtomicU64,
    ran: AtomicU64,
}

impl Service for Echo {
    fn run(&self, job: &Job) -> Time {
        self.ran.fetch_add(1, Ordering::Relaxed);
        while let Some(message) = job.receive(Port::Store) {
            if job.send(message.from, Port::User, &message.bytes).is_ok() {
                self.answered.fetch_add(1, Ordering::Relaxed);
            }
        }
        job.now().after(Duration::from_millis(2))
    }
}

pub(crate) fn services(run: &Run) {
    const BUSY: MemberId = MemberId(1);
    run.begin(0);
    let echo = Arc::new(Echo::default());
    run.serve(echo.clone()).expect("serve");
    run.barrier("all services");
    let each = run.count(200, 8);
    if run.me() == BUSY {
        // No call of the engine until all other members have all their answers.
        run.compute_until("answers given in the background", || {
            echo.answered.load(Ordering::Relaxed) == 2 * each
        });
        let ran = echo.ran.load(Ordering::Relaxed);
        run.compute_until("the service's hour", || echo.ran.load(Ordering::Relaxed) > ran + 5);
    } else {
        for number in 0..each {
            run.send(BUSY, Port::Store, &number.to_le_bytes()).expect("send");
            let mut answer = None;
            run.until_rung("an answer", || {
                answer = answer.take().or_else(|| run.receive(Port::User));
                answer.is_some()
            });
            let answer = answer.expect("just received");
            assert_eq!((answer.from, answer.bytes), (BUSY, number.to_le_bytes().to_vec()));
        }
    }
    run.finish();
}
