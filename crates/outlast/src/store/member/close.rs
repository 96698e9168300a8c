//! Closing a store at a member, and the end of its memory.
//!
//! `docs/protocol/opening.md` has the steps *announce*, *wait*, *end*, *quiet* and *forget*. The
//! call of the program takes the first three, and the background takes the others: the memory of a
//! closed store goes back to the segment when no member can reach it any more.
//!
//! Orderings: `is_closed` is stored SeqCst before the gate is closed for ever, and *quiet* reads
//! the operation counters after that. So an operation finds the store closed (`Op::begin`) or, on a
//! fast path, the gate (`gate.rs`), or *quiet* waits for it. `is_forgotten` is relaxed: the
//! destructor that reads it runs after all other references were dropped, which orders it behind
//! them.

use crate::engine::{Error, MemberId, MemberSet, Time, View};
use crate::store::error::{StoreError, StoreResult};
use crate::store::member::state::StoreState;
use crate::store::operation::error::engine_error;
use crate::store::operation::message::Message;
use crate::store::operation::quiescence::Quiescence;
use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The first pause between two looks whether this member is quiet, and the longest. Pauses double.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// How often a member repeats that it has abandoned an opening, to members that have not answered.
const REMIND: Duration = Duration::from_secs(1);

/// The end of an opening, after it was closed at this member.
pub(in crate::store) struct Ending {
    progress: Mutex<Progress>,
    /// Whether no other member can reach the memory of this opening: none knows it yet, or all have
    /// said that they are quiet.
    pub(in crate::store::member) is_forgotten: AtomicBool,
    /// The process that has made the memory. A forked child has a copy of this state, and must not
    /// give the memory back.
    process: u32,
}

#[derive(Default)]
struct Progress {
    /// The operations that were in flight when the store was closed.
    in_flight: Option<Quiescence>,
    /// The members that reach the memory of no member any more, for this opening.
    quiet: MemberSet,
    /// The members that were told that this member is quiet.
    told: MemberSet,
    pause: Option<Duration>,
    /// Whether this member has given the opening up without having used it.
    is_abandoned: bool,
    /// When to tell the others again that it is abandoned.
    remind: Option<Time>,
    /// The members that had no room for `Closing` as long as `close` waited.
    untold: MemberSet,
    /// When to tell them again.
    announce: Option<Time>,
}

impl Ending {
    pub(in crate::store::member) fn new() -> Ending {
        Ending {
            progress: Mutex::default(),
            is_forgotten: AtomicBool::new(true),
            process: std::process::id(),
        }
    }
}

impl StoreState {
    /// Tells the other members that this member closes the store, waits until all living members
    /// close it, and ends it here.
    pub(in crate::store) fn close(&self) -> StoreResult<()> {
        let job = &self.job;
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let _call = self.begin_call();
        lock(&self.closing).insert(self.me());
        let (limit, until) = (job.time_limit(), job.deadline());
        let mut told: MemberSet = [self.me()].into_iter().collect();
        let result = loop {
            let bell = job.bell();
            // A stopped member may have no room for the message: it keeps no other from being told.
            self.announce_some(&Message::Closing, &mut told)?;
            // This may be the background: a listener of `on_loss` may close the store.
            self.serve_messages();
            let (view, closing) = (job.view(), lock(&self.closing).clone());
            let is_awaited =
                |member: &MemberId| !closing.contains(*member) || !told.contains(*member);
            let Some(member) = view.living().find(is_awaited) else { break Ok(()) };
            if job.now() >= until || job.has_ended() {
                break Err(StoreError::Timeout { member, limit });
            }
            let is_told = view.living().all(|member| told.contains(member));
            job.park(bell, if is_told { until } else { until.min(job.now().after(PAUSE_MAX)) });
        };
        // The background tells the members that had no room for the message.
        let untold = job.view().living().filter(|&member| !told.contains(member)).collect();
        lock(&self.ending.progress).untold = untold;
        self.end();
        result
    }

    /// Gives up an opening that no call of this member got to use.
    pub(in crate::store::member) fn abandon(&self) {
        lock(&self.ending.progress).is_abandoned = true;
        lock(&self.closing).insert(self.me());
        // A member that does not get the message is told again.
        let _ = self.announce_some(&Message::Abandoned, &mut MemberSet::default());
        self.shut();
    }

    /// *announce*: tells the living members that were not told yet and have room for the message.
    fn announce_some(&self, note: &Message, told: &mut MemberSet) -> StoreResult<()> {
        let view = self.job.view();
        for member in view.living().filter(|&member| member != self.me()) {
            if told.contains(member) {
                continue;
            }
            match self.try_send(member, note) {
                Ok(true) | Err(Error::Dead { .. }) => _ = told.insert(member),
                Ok(false) => {}
                Err(error) => return Err(engine_error(error)),
            }
        }
        Ok(())
    }

    /// *end*: no call passes from now on, and the name is free for the next opening. A thread may
    /// come here when this member has begun the next opening: that opening has another number.
    pub(in crate::store) fn end(&self) {
        self.shut();
        self.stores.close(self.address);
    }

    /// No call passes from now on, and the background takes the next steps.
    fn shut(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.gate.close_for_ever();
        let _ = self.job.ring(self.me());
    }

    /// *quiet* and *forget*, by the background of a member that has closed the store. Returns when
    /// to run again.
    pub(in crate::store::member) fn end_some(&self) -> Time {
        if self.job.has_ended() || self.ending.is_forgotten.load(Ordering::Relaxed) {
            return Time::NEVER;
        }
        let reminder = self.remind_of_abandonment();
        let announcement = self.announce_later();
        self.become_quiet().min(reminder).min(announcement)
    }

    /// *announce*, by the background: tells the members that had no room for the message as long as
    /// `close` waited. They would wait for this member in vain. Returns when to run again.
    fn announce_later(&self) -> Time {
        let now = self.job.now();
        let mut untold = {
            let mut progress = lock(&self.ending.progress);
            if progress.untold.is_empty() {
                return Time::NEVER;
            }
            if let Some(due) = progress.announce.filter(|&due| now < due) {
                return due;
            }
            progress.announce = Some(now.after(PAUSE_MAX));
            progress.untold.clone()
        };
        let view = self.job.view();
        let is_told = |member| {
            let told = self.try_send(member, &Message::Closing);
            matches!(told, Ok(true) | Err(Error::Dead { .. }))
        };
        untold =
            untold.iter().filter(|&member| view.is_living(member) && !is_told(member)).collect();
        let is_over = untold.is_empty();
        lock(&self.ending.progress).untold = untold;
        if is_over { Time::NEVER } else { now.after(PAUSE_MAX) }
    }

    /// Tells the members again that this member has abandoned the opening: those that may still
    /// come to use it. Returns when to run again.
    fn remind_of_abandonment(&self) -> Time {
        let now = self.job.now();
        {
            let mut progress = lock(&self.ending.progress);
            if !progress.is_abandoned {
                return Time::NEVER;
            }
            if let Some(remind) = progress.remind.filter(|&remind| now < remind) {
                return remind;
            }
            let is_first = progress.remind.replace(now.after(REMIND)).is_none();
            if is_first {
                return now.after(REMIND);
            }
        }
        let closing = lock(&self.closing).clone();
        let mut is_ending = true;
        for member in self.job.view().living().filter(|&member| !closing.contains(member)) {
            is_ending = false;
            let _ = self.try_send(member, &Message::Abandoned);
        }
        if is_ending { Time::NEVER } else { now.after(REMIND) }
    }

    /// *quiet* and *forget*. Returns when to run again.
    fn become_quiet(&self) -> Time {
        let (job, me) = (&self.job, self.me());
        let is_quiet = lock(&self.ending.progress).quiet.contains(me);
        if !is_quiet && !self.has_come_to_rest() {
            return self.pause();
        }
        let told = {
            let mut progress = lock(&self.ending.progress);
            progress.quiet.insert(me);
            progress.told.clone()
        };
        let communicator = lock(&self.coordinated.communicator).take();
        if let Some(communicator) = communicator {
            // Freeing is local. It fails only if the membership has ended.
            let _ = communicator.free();
        }
        let view = job.view();
        let mut has_told_all = true;
        for member in view.living().filter(|&member| member != me && !told.contains(member)) {
            match self.try_send(member, &Message::Quiet) {
                Ok(true) | Err(Error::Dead { .. }) => {
                    lock(&self.ending.progress).told.insert(member);
                }
                Ok(false) | Err(_) => has_told_all = false,
            }
        }
        let quiet = lock(&self.ending.progress).quiet.clone();
        if !view.living().all(|member| quiet.contains(member)) {
            return if has_told_all { Time::NEVER } else { self.pause() };
        }
        // The dead have not said that they are quiet: their requests must be over.
        job.drain_requests_of_dead();
        if !has_told_all || job.is_serving_dead() {
            return self.pause();
        }
        self.stores.forget(self.address);
        self.ending.is_forgotten.store(true, Ordering::Relaxed);
        Time::NEVER
    }

    /// Whether this member reaches the memory of no member any more: its operations have ended, its
    /// stragglers have landed, and it has no pins.
    fn has_come_to_rest(&self) -> bool {
        let in_flight = lock(&self.ending.progress).in_flight.take();
        // A load of the own segment fails only when this member has ended.
        let mut in_flight = match in_flight {
            Some(in_flight) => in_flight,
            None => Quiescence::begin(self).unwrap_or_default(),
        };
        let has_drained = in_flight.is_over(self, &[]).unwrap_or(true);
        lock(&self.ending.progress).in_flight = Some(in_flight);
        has_drained && self.straggling_replica().is_none() && !self.has_pins()
    }

    /// The time of the next look.
    fn pause(&self) -> Time {
        let mut progress = lock(&self.ending.progress);
        let pause = progress.pause.map_or(PAUSE, |pause| (pause * 2).min(PAUSE_MAX));
        progress.pause = Some(pause);
        drop(progress);
        self.job.now().after(pause)
    }

    /// Records that a member is closing the store, or never comes to use this opening.
    pub(in crate::store::member) fn record_closing(&self, from: MemberId) {
        lock(&self.closing).insert(from);
        let _ = self.job.ring(self.me());
    }

    /// Records that a member reaches the memory of this opening no more.
    pub(in crate::store::member) fn record_quiet(&self, from: MemberId) {
        lock(&self.ending.progress).quiet.insert(from);
        let _ = self.job.ring(self.me());
    }

    /// Records that a member has begun a later opening: it has closed this opening. If it had never
    /// begun this opening, it reaches no memory of it, either.
    pub(in crate::store::member) fn overtaken_by(&self, member: MemberId) {
        lock(&self.closing).insert(member);
        if !self.has_greeted(member) {
            lock(&self.ending.progress).quiet.insert(member);
        }
    }

    /// A member that may use this opening, or come to use it, while this member cannot hand its
    /// replicas over: it has closed the opening, or has not come to the end of opening it.
    pub(in crate::store::member) fn in_the_way_of_leaving(&self, view: &View) -> Option<MemberId> {
        let is_open = self.is_open.load(Ordering::Acquire);
        if is_open && !lock(&self.closing).contains(self.me()) {
            return None;
        }
        let users = self.other_users(view);
        let late = users.iter().find(|&&member| !is_open && !self.knows_root(member));
        late.or(users.first()).copied()
    }

    /// Whether another member may use this opening, or come to use it.
    pub(in crate::store) fn is_used_by_others(&self) -> bool {
        !self.other_users(&self.job.view()).is_empty()
    }

    fn other_users(&self, view: &View) -> Vec<MemberId> {
        let closing = lock(&self.closing).clone();
        let uses = |member: &MemberId| *member != self.me() && !closing.contains(*member);
        view.living().filter(uses).collect()
    }

    /// Whether the service of this opening has nothing left to do.
    pub(in crate::store::member) fn is_over(&self) -> bool {
        self.is_closed.load(Ordering::Acquire) && self.ending.is_forgotten.load(Ordering::Relaxed)
    }
}

impl Drop for StoreState {
    /// Gives the memory back to the segment, if no other member can reach it.
    fn drop(&mut self) {
        if *self.ending.is_forgotten.get_mut() && self.ending.process == std::process::id() {
            self.release_memory();
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::engine::sim::{self, Link, Options as SimOptions};
    use crate::engine::{Epoch, Fault};
    use crate::job::Job;
    use crate::store::placement::{Placement, hash_key};
    use crate::store::segment::intent::intent_key;
    use crate::store::testing::{expect_timeout, nap, third_attempt};
    use crate::store::{Options, Store};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::Arc;

    /// Two threads close a store, and the first opens it again: the name stays in use, however late
    /// the second thread comes.
    #[test]
    fn a_thread_that_closes_late_does_not_close_the_next_opening() {
        for seed in 0..60 {
            sim::run(&SimOptions::new(2, seed), move |job: Job| {
                let options = || Options::new().replicas(2).partitions(8).expected_keys(64);
                let store = Store::open(&job, options()).expect("open");
                let second = store.clone();
                let late = move || {
                    // The first thread may have closed it already.
                    let ended = second.close();
                    assert!(matches!(ended, Ok(()) | Err(StoreError::Closed)), "{ended:?}");
                };
                let late = job.spawn("late", Box::new(late)).expect("started");
                match store.close() {
                    Ok(()) => {}
                    // The other thread is about to end.
                    Err(StoreError::Closed) => assert!(job.wait_for(&late, job.deadline())),
                    Err(error) => panic!("{error}"),
                }
                let again = Store::open(&job, options()).expect("opened again");
                assert!(job.wait_for(&late, job.deadline()));
                let third = Store::open(&job, options());
                assert!(matches!(third, Err(StoreError::AlreadyOpen { .. })), "seed {seed}");
                again.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }

    /// A member is stopped, and has no room for a message. The store is closed here all the same,
    /// and the other members are told.
    #[test]
    fn a_store_is_closed_although_a_member_has_no_room_for_messages() {
        let mut options = SimOptions::new(3, 1);
        options.time_limit = Duration::from_secs(1);
        let stage = Rc::new(Cell::new(0));
        sim::run(&options, move |job: Job| {
            let options = Options::new().replicas(2).partitions(8).expected_keys(64);
            let store = Store::open(&job, options).expect("open");
            let [first, stopped] = [0, 1].map(MemberId);
            if job.me() == first {
                job.inject(Fault::Stop(stopped)).expect("a fault");
                let note = Message::Returned { class: 0 };
                let mut sent = 0;
                while store.state.try_send(stopped, &note) == Ok(true) {
                    sent += 1;
                    assert!(sent < 1_000_000, "messages have no bound");
                }
                stage.set(1);
                assert_eq!(expect_timeout(store.close()), stopped);
                assert!(matches!(store.get("key"), Err(StoreError::Closed)));
                stage.set(stage.get() + 1);
                nap(&job, "the last member", || stage.get() == 3);
                job.inject(Fault::Resume(stopped)).expect("a fault");
            } else if job.me() == stopped {
                nap(&job, "the others", || stage.get() == 3);
                store.close().expect("the others have closed it");
            } else {
                nap(&job, "a full queue", || stage.get() >= 1);
                assert_eq!(expect_timeout(store.close()), stopped);
                let closing = lock(&store.state.closing).clone();
                assert!(closing.contains(first), "{closing:?}");
                stage.set(stage.get() + 1);
            }
            let _ = job.leave();
        })
        .expect_ok();
    }

    /// A member was stopped, and had no room for a message, as long as the call of `close` of
    /// another member waited. When it goes on it hears of that call, although a pin keeps the other
    /// member from becoming quiet.
    #[test]
    fn a_member_that_had_no_room_for_messages_hears_of_a_close_later() {
        const LIMIT: Duration = Duration::from_secs(1);
        for seed in 0..8 {
            let mut options = SimOptions::new(2, seed).link(Link::of_seed(seed));
            options.time_limit = LIMIT;
            let (stage, has_pin) = (Rc::new(Cell::new(0)), seed / 2 % 2 == 0);
            sim::run(&options, move |job: Job| {
                let options = Options::new().replicas(2).partitions(8).expected_keys(64);
                let store = Store::open(&job, options).expect("open");
                let [first, stopped] = [0, 1].map(MemberId);
                if job.me() == first {
                    store.put("key", b"value").expect("put");
                    let pin = has_pin.then(|| store.pin("key").expect("pinned"));
                    job.inject(Fault::Stop(stopped)).expect("a fault");
                    let note = Message::Returned { class: 0 };
                    while store.state.try_send(stopped, &note) == Ok(true) {}
                    assert_eq!(expect_timeout(store.close()), stopped);
                    job.inject(Fault::Resume(stopped)).expect("a fault");
                    stage.set(1);
                    nap(&job, "the other member", || stage.get() == 2);
                    drop(pin);
                } else {
                    nap(&job, "the first call", || stage.get() == 1);
                    let began = job.now();
                    store.close().expect("the other member has closed it");
                    let took = job.now().since(began);
                    assert!(took < LIMIT / 2, "seed {seed}: it took {took:?}");
                    stage.set(2);
                }
                let _ = job.leave();
            })
            .expect_ok();
        }
    }

    /// A transaction outlives its store, and is dropped when another member uses its memory for
    /// something else: the end of the transaction changes nothing there.
    #[test]
    fn a_transaction_that_outlives_its_store_reaches_no_memory() {
        for link in [Link::Memory, Link::Network] {
            let stage = Rc::new(Cell::new(0));
            sim::run(&SimOptions::new(2, 3).link(link), move |job: Job| {
                let options = Options::new().replicas(2).expected_keys(64);
                let intent = hash_key(&intent_key(MemberId(0), 0));
                // The other member is the primary of the intent.
                let is_right = |partitions: &usize| {
                    let placement = Placement::new(2, 0, 2, *partitions, vec![String::new(); 2]);
                    placement.preference(placement.partition(intent))[0] == MemberId(1)
                };
                let partitions = (8..64).find(is_right).expect("some number");
                let store = Store::open(&job, options.partitions(partitions)).expect("open");
                let wait = |until: u32| nap(&job, "the others", || stage.get() >= until);
                if job.me() == MemberId(0) {
                    // This member is the primary of the keys.
                    let is_here = |key: &String| store.replicas_of(key)[0] == job.me();
                    let names = (0..1000).map(|number| format!("key/{number}"));
                    let keys: Vec<String> = names.filter(is_here).take(40).collect();
                    // Free blocks of many sizes lie in the magazine afterwards.
                    for (number, key) in keys.iter().enumerate() {
                        store.put(key.as_bytes(), &vec![1; number * 8]).expect("put");
                    }
                    let tx = third_attempt(&store, |tx| {
                        for key in &keys[..2] {
                            tx.put(key.as_bytes(), b"new").expect("kept");
                        }
                    });
                    store.close().expect("closed");
                    stage.set(1);
                    wait(2);
                    drop(tx);
                    stage.set(3);
                } else {
                    let opening = Arc::downgrade(&store.state);
                    store.close().expect("closed");
                    drop(store);
                    wait(1);
                    nap(&job, "the end of the opening", || opening.strong_count() == 0);
                    let len = job.segment_len(job.me()).expect("known");
                    let offset = job.reserve(len).expect("free");
                    assert_eq!(offset, 0, "the memory of the store is used again");
                    let put = job.put(Epoch::ANY, job.me(), offset, &vec![0; len as usize]);
                    put.expect("put");
                    stage.set(2);
                    wait(3);
                    let mut bytes = vec![1; len as usize];
                    job.get(Epoch::ANY, job.me(), offset, &mut bytes).expect("read");
                    let changed = bytes.iter().filter(|byte| **byte != 0).count();
                    assert_eq!(changed, 0, "bytes were changed by a store that is closed");
                    stage.set(4);
                }
                wait(4);
                let _ = job.leave();
            })
            .expect_ok();
        }
    }
}
