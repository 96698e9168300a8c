//! The stores of a job at a member, by their names: which of them are open, the openings that other
//! members have begun, and the way of a message to its store.
//!
//! A store has a name. It can be opened again under that name after it was closed, and each of
//! these *openings* has a number. A message carries the hash of the name and the number of the
//! opening, so that a late message of an earlier opening never reaches a later opening.
#![cfg_attr(outlast_pages, doc = include_str!("../../../../../docs/protocol/opening.md"))]

use crate::engine::{Epoch, MemberId, Message as EngineMessage, Time, View};
use crate::job::Job;
use crate::store::error::{StoreError, StoreResult};
use crate::store::member::state::StoreState;
use crate::store::operation::message::{Address, Message, PORT};
use crate::store::options::{NAME_LEN_MAX, Options};
use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// The stores of the job at this member.
#[derive(Default)]
pub(in crate::store) struct Stores {
    /// By the hash of their names. A member keeps an entry for each name that it or another member
    /// has ever opened, since it numbers the openings.
    named: Mutex<BTreeMap<u64, Named>>,
    /// How many openings this member has registered. It and `is_leaving` change under the lock of
    /// `named`.
    registered: AtomicU64,
    /// Whether this member is about to end its membership, and opens no store any more.
    is_leaving: AtomicBool,
    /// With salvage: the epoch whose dead segments were given back.
    discarded: Mutex<Option<Epoch>>,
    /// When the status page is to be written next; held while it is written.
    pub(in crate::store::member) status_due: Mutex<Option<Time>>,
}

/// What this member knows of the store of a name.
#[derive(Default)]
struct Named {
    name: String,
    /// The number of this member's newest opening; 0 if it has never opened the store.
    opening: u64,
    usage: Usage,
    /// The newest `Hello` of each member, with the number of its opening.
    hellos: BTreeMap<MemberId, (u64, Hello)>,
    /// The openings of this member whose memory other members may still reach, with their numbers.
    states: Vec<(u64, Weak<StoreState>)>,
    /// The greatest number of an opening that a member has abandoned. This member comes to use no
    /// opening up to it; it may use one already.
    abandoned: u64,
}

impl Named {
    /// The greatest number of an opening that another member has begun.
    fn newest(&self) -> u64 {
        self.hellos.values().map(|(opening, _)| *opening).max().unwrap_or(0)
    }

    /// Whether the last call of `open` has failed, and this is its opening.
    fn has_failed(&self, opening: u64) -> bool {
        self.usage == Usage::Failed && self.opening == opening
    }
}

/// What this member does with the store of a name.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Usage {
    /// The store is not open.
    #[default]
    Closed,
    /// A call of `open` is going on.
    Opening,
    /// The store is open.
    Open,
    /// The last call of `open` has failed after this member had said `Hello`. Other members may
    /// have opened the store, so the next call takes this opening up.
    Failed,
}

/// The content of a `Hello`: the offset of the sender's root, and its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Hello {
    pub(in crate::store) root: u64,
    /// Replicas, partitions, buckets, checksums plus 2 for salvage, mode.
    pub(in crate::store) options: [u64; 5],
}

/// How an attempt to open a store begins.
pub(in crate::store::member) enum Begin {
    /// With a new opening of this number.
    New(Address),
    /// With the opening of an earlier call, which had failed.
    Again(Arc<StoreState>),
}

impl Stores {
    /// The stores of this member.
    pub(in crate::store) fn of(job: &Job) -> Arc<Stores> {
        job.layer(Stores::default).0
    }

    /// Begins to open a store under the name of its options. An opening whose call failed is taken
    /// up if its options are these, and no member asks for another opening.
    pub(in crate::store::member) fn begin(
        &self,
        job: &Job,
        options: &Options,
    ) -> StoreResult<Begin> {
        let name = &options.name;
        if name.len() > NAME_LEN_MAX {
            let len = name.len();
            let reason = format!("the name of the store has {len} bytes, more than {NAME_LEN_MAX}");
            return Err(StoreError::Invalid { reason });
        }
        let view = job.view();
        let mut abandoned = None;
        let begin = {
            let mut stores = lock(&self.named);
            let store = Address::new(name, 0).store;
            let named = stores.entry(store).or_default();
            if named.opening == 0 && named.hellos.is_empty() {
                named.name.clone_from(name);
            } else if named.name != *name {
                let reason = format!(
                    "the names {name:?} and {:?} have equal hashes; choose another name",
                    named.name
                );
                return Err(StoreError::Invalid { reason });
            }
            let begun = match named.usage {
                Usage::Opening | Usage::Open => {
                    return Err(StoreError::AlreadyOpen { name: name.clone() });
                }
                Usage::Closed => None,
                Usage::Failed => named.states.last().and_then(|(_, state)| state.upgrade()),
            };
            let newest = named.newest();
            let is_usable = |state: &Arc<StoreState>| {
                state.options == *options
                    && newest <= named.opening
                    && named.abandoned < named.opening
                    && state.mismatch(&view).is_none()
            };
            named.usage = Usage::Opening;
            match begun {
                Some(state) if is_usable(&state) => Begin::Again(state),
                begun => {
                    abandoned = begun;
                    let opening = newest.max(named.opening + 1).max(named.abandoned + 1);
                    Begin::New(Address { store, opening })
                }
            }
        };
        if let Some(state) = abandoned {
            state.abandon();
        }
        Ok(begin)
    }

    /// Registers a new opening, so that it gets its messages, and gives it what other members have
    /// said before. An error if this member is about to leave.
    pub(in crate::store::member) fn register(&self, state: &Arc<StoreState>) -> StoreResult<()> {
        let own = state.address.opening;
        let hellos: Vec<(MemberId, u64, Hello)> = {
            let mut stores = lock(&self.named);
            if self.is_leaving.load(Ordering::Relaxed) {
                return Err(StoreError::Closed);
            }
            let Some(named) = stores.get_mut(&state.address.store) else { return Ok(()) };
            self.registered.fetch_add(1, Ordering::Relaxed);
            named.opening = own;
            named.states.push((own, Arc::downgrade(state)));
            let said = named.hellos.iter().filter(|(_, (opening, _))| *opening >= own);
            said.map(|(&member, &(opening, hello))| (member, opening, hello)).collect()
        };
        for (member, opening, hello) in hellos {
            match opening == own {
                true => state.greeted_by(member, hello),
                false => state.overtaken_by(member),
            }
        }
        Ok(())
    }

    /// How many openings this member has registered.
    pub(in crate::store) fn registered(&self) -> u64 {
        self.registered.load(Ordering::Relaxed)
    }

    /// *end* of leaving: this member opens no store any more. Returns `false` if it has registered
    /// another opening than these: then its stores are not handed over.
    pub(in crate::store) fn end_openings(&self, registered: u64) -> bool {
        let _named = lock(&self.named);
        let is_last = self.registered() == registered;
        self.is_leaving.fetch_or(is_last, Ordering::Relaxed);
        is_last
    }

    /// Records that a call of `open` has come to its end: this member uses the opening. Returns
    /// `false` if another member has abandoned it.
    pub(in crate::store::member) fn finish(&self, address: Address) -> bool {
        let mut stores = lock(&self.named);
        let Some(named) = stores.get_mut(&address.store) else { return false };
        let is_usable = named.abandoned < address.opening;
        if is_usable {
            named.usage = Usage::Open;
        }
        is_usable
    }

    /// Records that a call of `open` has no opening: it has failed before it made an opening, or
    /// has abandoned it.
    pub(in crate::store::member) fn give_up(&self, address: Address) {
        if let Some(named) = lock(&self.named).get_mut(&address.store) {
            named.usage = Usage::Closed;
        }
    }

    /// Records that a call of `open` has failed after this member had said `Hello`.
    pub(in crate::store::member) fn fail(&self, address: Address) {
        if let Some(named) = lock(&self.named).get_mut(&address.store)
            && named.opening == address.opening
        {
            named.usage = Usage::Failed;
        }
    }

    /// Records that this member has closed an opening: the store can be opened again. A thread may
    /// come here when another thread, which has closed the opening, too, begins the next one.
    pub(in crate::store::member) fn close(&self, address: Address) {
        if let Some(named) = lock(&self.named).get_mut(&address.store)
            && named.opening == address.opening
            && !matches!(named.usage, Usage::Opening)
        {
            named.usage = Usage::Closed;
        }
    }

    /// Forgets an opening: no member reaches its memory any more.
    pub(in crate::store::member) fn forget(&self, address: Address) {
        if let Some(named) = lock(&self.named).get_mut(&address.store) {
            named.states.retain(|(opening, _)| *opening != address.opening);
        }
    }

    /// Whether another member has begun a later opening of the store, or abandoned this one.
    pub(in crate::store::member) fn is_overtaken(&self, address: Address) -> bool {
        let stores = lock(&self.named);
        stores.get(&address.store).is_some_and(|named| {
            named.newest() > address.opening || named.abandoned >= address.opening
        })
    }

    /// Whether the last call of `open` has failed, and this is its opening.
    pub(in crate::store::member) fn has_failed(&self, address: Address) -> bool {
        let stores = lock(&self.named);
        stores.get(&address.store).is_some_and(|named| named.has_failed(address.opening))
    }

    /// The openings of all stores that this member has not closed.
    fn unclosed(&self) -> Vec<Arc<StoreState>> {
        let stores = lock(&self.named);
        let unclosed = stores.values().filter(|named| !matches!(named.usage, Usage::Closed));
        unclosed.filter_map(|named| named.states.last()?.1.upgrade()).collect()
    }

    /// The stores that are open at this member, and that it is not closing, in an order that is
    /// identical at all members.
    pub(in crate::store) fn usable(&self) -> impl Iterator<Item = Arc<StoreState>> + use<> {
        let is_usable = |state: &Arc<StoreState>| {
            state.is_open.load(Ordering::Acquire) && !lock(&state.closing).contains(state.me())
        };
        self.unclosed().into_iter().filter(is_usable)
    }

    /// All openings whose memory other members may still reach.
    fn unforgotten(&self) -> Vec<Arc<StoreState>> {
        let stores = lock(&self.named);
        let states = stores.values().flat_map(|named| &named.states);
        states.filter_map(|(_, state)| state.upgrade()).collect()
    }

    /// A member for which this member cannot leave yet, although its usable stores are handed over:
    /// that member may use a store with replicas of this member that cannot be handed over.
    pub(in crate::store) fn in_the_way_of_leaving(&self, job: &Job) -> Option<MemberId> {
        let view = job.view();
        let states = self.unforgotten();
        for state in states.iter().filter(|state| state.mismatch(&view).is_some()) {
            // No member uses it as long as the member with other options lives.
            if self.take_failed(state.address) {
                state.abandon();
            }
        }
        states.iter().find_map(|state| state.in_the_way_of_leaving(&view))
    }

    /// Whether the last call of `open` has failed, and this is its opening. No call takes the
    /// opening up any more then.
    fn take_failed(&self, address: Address) -> bool {
        let mut stores = lock(&self.named);
        let named = stores.get_mut(&address.store);
        let failed = named.filter(|named| named.has_failed(address.opening));
        failed.map(|named| named.usage = Usage::Closed).is_some()
    }

    /// The last step of `salvage.release`: gives the segments of the dead members of a view back,
    /// once no store of the job needs them. A store that a dead member had open is known here, at
    /// least as an opening that has begun, since all living members begin it before any can use it.
    /// An opening that this member has closed may still be needed by members that have not.
    pub(in crate::store::member) fn discard_dead_segments(&self, job: &Job, view: &View) {
        let is_done = |state: &Arc<StoreState>| {
            let is_closed = state.is_closed.load(Ordering::Acquire);
            state.has_released(view.epoch) || is_closed && state.is_ending()
        };
        if *lock(&self.discarded) == Some(view.epoch) || !self.unforgotten().iter().all(is_done) {
            return;
        }
        for dead in view.dead.iter() {
            if let Err(error) = job.discard_dead_segment(dead) {
                let member = dead.0;
                tracing::warn!(member, %error, "the memory of a dead member was not given back");
            }
        }
        *lock(&self.discarded) = Some(view.epoch);
    }

    /// Receives and handles all messages that have arrived, for whichever store.
    pub(in crate::store::member) fn serve_messages(&self, job: &Job) {
        while let Some(message) = job.receive(PORT) {
            self.serve(job, &message);
        }
    }

    fn serve(&self, job: &Job, message: &EngineMessage) {
        let Some((address, note)) = Address::open(&message.bytes) else { return };
        let Some(note) = Message::decode(note) else { return };
        if let Message::Hello { root, replicas, partitions, buckets, checksums, mode, name } = note
        {
            let options = [replicas, partitions, buckets, checksums, mode];
            self.greeted_by(address, &name, message.from, Hello { root, options });
            let _ = job.ring(job.me());
        } else if note == Message::Abandoned {
            self.abandoned_by(job, address, message.from);
        } else if let Some(state) = self.find(address) {
            state.handle(message.from, note);
        }
    }

    fn find(&self, address: Address) -> Option<Arc<StoreState>> {
        let stores = lock(&self.named);
        let states = &stores.get(&address.store)?.states;
        states.iter().find(|(opening, _)| *opening == address.opening)?.1.upgrade()
    }

    /// Records that a member has abandoned an opening, which it has not used. If this member does
    /// not use the opening, it never will: it gives its own part up, and answers.
    fn abandoned_by(&self, job: &Job, address: Address, from: MemberId) {
        let usage = {
            let mut stores = lock(&self.named);
            let named = stores.entry(address.store).or_default();
            named.abandoned = named.abandoned.max(address.opening);
            // Another opening has not begun here, or has ended.
            if named.opening == address.opening { named.usage } else { Usage::Closed }
        };
        let state = self.find(address);
        if let Some(state) = &state {
            state.record_closing(from);
        }
        match (usage, state) {
            // `open` finds it. It answers as a member that abandons the opening.
            (Usage::Opening, _) => drop(job.ring(job.me())),
            // The answer is `close`.
            (Usage::Open, _) => {}
            (Usage::Failed, Some(state)) => {
                if self.take_failed(address) {
                    state.abandon();
                }
            }
            (Usage::Failed | Usage::Closed, state) => {
                // If an answer does not arrive, the member asks again.
                let answer = |note: Message| {
                    drop(job.try_send(from, PORT, &address.enclose(&note.encode())));
                };
                answer(Message::Closing);
                if state.is_none() {
                    // No operation of this member knows any memory of the opening.
                    answer(Message::Quiet);
                }
            }
        }
    }

    /// Records a `Hello`. It also says that its sender has closed the earlier openings.
    fn greeted_by(&self, address: Address, name: &str, from: MemberId, hello: Hello) {
        let states: Vec<Arc<StoreState>> = {
            let mut stores = lock(&self.named);
            let named = stores.entry(address.store).or_default();
            if named.opening == 0 && named.hellos.is_empty() {
                named.name = name.into();
            } else if named.name != name {
                // The names have equal hashes. `open` refuses the second name at each member.
                return;
            }
            let newest = named.hellos.entry(from).or_insert((0, hello));
            if address.opening < newest.0 {
                return;
            }
            *newest = (address.opening, hello);
            named.states.iter().filter_map(|(_, state)| state.upgrade()).collect()
        };
        for state in states {
            if state.address.opening == address.opening {
                state.greeted_by(from, hello);
            } else if state.address.opening < address.opening {
                state.overtaken_by(from);
            }
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::{StoreState, lock};
    use crate::engine::sim::{self, Link, Options as SimOptions};
    use crate::engine::{Fault, MemberId};
    use crate::job::Job;
    use crate::store::testing::{expect_timeout, nap};
    use crate::store::{Options, Store, StoreError};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;

    /// A member has closed a store, and the others go on with it. The member gives a dead segment
    /// back only when they have salvaged what they need of it.
    #[test]
    fn a_dead_segment_is_kept_for_a_store_that_other_members_have_not_closed() {
        let stage = Rc::new(Cell::new(0));
        let mut options = SimOptions::new(3, 3).link(Link::Memory);
        (options.keeps_dead_segments, options.time_limit) = (true, Duration::from_secs(1));
        sim::run(&options, move |job: Job| {
            let named = |name: &str| {
                Options::new().partitions(16).expected_keys(64).salvage(true).name(name)
            };
            let all = Store::open(&job, named("all").replicas(3)).expect("open");
            let some = Store::open(&job, named("some").replicas(1)).expect("open");
            let [first, salvager, victim] = [0, 1, 2].map(MemberId);
            let is_right = |key: &String| {
                let partition = some.partition_of(key.as_bytes()).expect("a key");
                some.state.placement.preference(partition)[..2] == [victim, salvager]
            };
            let key = (0..1000).map(|number| format!("key/{number}")).find(is_right);
            let key = key.expect("some key").into_bytes();
            if job.me() == first {
                nap(&job, "the value", || stage.get() == 1);
                assert_ne!(expect_timeout(some.close()), first);
                job.inject(Fault::Stop(salvager)).expect("a fault");
                job.inject(Fault::Kill(victim)).expect("a fault");
                nap(&job, "the death", || !job.view().is_living(victim));
                // Nothing of the other store has to be salvaged.
                job.sleep(Duration::from_secs(2));
                job.inject(Fault::Resume(salvager)).expect("a fault");
                nap(&job, "the salvage", || stage.get() == 2);
            } else if job.me() == salvager {
                some.put(&key, b"value").expect("put");
                stage.set(1);
                nap(&job, "the death", || !job.view().is_living(victim));
                let found = some.get(&key).expect("it is salvaged").expect("there");
                assert_eq!(found.bytes(), b"value");
                stage.set(2);
                some.close().expect("closed");
            } else {
                nap(&job, "its death", || false);
            }
            all.close().expect("closed");
            let _ = job.leave();
        })
        .expect_ok();
    }

    /// Whether this member has given the memory of the dead back.
    fn has_discarded(store: &Store, job: &Job) -> bool {
        *lock(&store.state.stores.discarded) == Some(job.epoch())
    }

    fn of_salvage(name: &str) -> Options {
        Options::new().replicas(2).partitions(16).expected_keys(64).salvage(true).name(name)
    }

    /// More replicas than members: the call makes no opening, and abandons the one that had failed.
    fn abandon(job: &Job, name: &str) {
        let refused = Store::open(job, of_salvage(name).replicas(8)).unwrap_err();
        assert!(matches!(refused, StoreError::Invalid { .. }), "{refused}");
    }

    /// A member abandons an opening, and a member dies. The others have not begun the opening, or
    /// their calls have failed, too: the memory of the dead is given back.
    #[test]
    fn a_dead_segment_is_not_kept_for_an_opening_that_was_abandoned() {
        for others in 0..3 {
            let stage = Rc::new(Cell::new(0));
            let mut options = SimOptions::new(4, 5).link(Link::Memory);
            (options.keeps_dead_segments, options.time_limit) = (true, Duration::from_secs(1));
            sim::run(&options, move |job: Job| {
                let all = Store::open(&job, of_salvage("all")).expect("open");
                let [first, victim] = [0, 3].map(MemberId);
                // Nobody waits for the last member, which does not open this store.
                if job.me().0 <= others {
                    expect_timeout(Store::open(&job, of_salvage("some")).map(|_| ()));
                }
                stage.set(stage.get() + 1);
                nap(&job, "the others", || stage.get() >= 4);
                if job.me() == first {
                    abandon(&job, "some");
                    job.inject(Fault::Kill(victim)).expect("a fault");
                    nap(&job, "the death", || !job.view().is_living(victim));
                    nap(&job, "free memory", || has_discarded(&all, &job));
                    stage.set(5);
                }
                nap(&job, "the end", || stage.get() == 5);
                all.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }

    /// Two members wait for a third to open a store, in vain, and a member dies. The memory of the
    /// dead is kept until the store is open everywhere.
    #[test]
    fn a_dead_segment_is_kept_while_a_store_cannot_be_opened() {
        let stage = Rc::new(Cell::new(0));
        let mut options = SimOptions::new(4, 5).link(Link::Memory);
        (options.keeps_dead_segments, options.time_limit) = (true, Duration::from_secs(1));
        sim::run(&options, move |job: Job| {
            let all = Store::open(&job, of_salvage("all")).expect("open");
            let (me, victim) = (job.me(), MemberId(3));
            if me.0 < 2 {
                expect_timeout(Store::open(&job, of_salvage("some")).map(|_| ()));
            }
            stage.set(stage.get() + 1);
            nap(&job, "the others", || stage.get() >= 4);
            if me == MemberId(0) {
                job.inject(Fault::Kill(victim)).expect("a fault");
            }
            nap(&job, "the death", || !job.view().is_living(victim));
            job.sleep(Duration::from_secs(20));
            assert!(!has_discarded(&all, &job), "a member may use the store");
            let some = Store::open(&job, of_salvage("some")).expect("open");
            nap(&job, "free memory", || me != MemberId(0) || has_discarded(&all, &job));
            some.close().expect("closed");
            all.close().expect("closed");
            let _ = job.leave();
        })
        .expect_ok();
    }

    /// A call of `open` has failed at a member, and the others have opened the store since. The
    /// member does its part for them: it gives the memory of the dead back.
    #[test]
    fn a_member_whose_open_has_failed_does_its_part_for_the_others() {
        let stage = Rc::new(Cell::new(0));
        let mut options = SimOptions::new(3, 5).link(Link::Memory);
        (options.keeps_dead_segments, options.time_limit) = (true, Duration::from_secs(1));
        options.steps_max = 2_000_000;
        sim::run(&options, move |job: Job| {
            let all = Store::open(&job, of_salvage("all")).expect("open");
            let [first, late, victim] = [0, 1, 2].map(MemberId);
            let some;
            if job.me() == first {
                expect_timeout(Store::open(&job, of_salvage("some")).map(|_| ()));
                stage.set(1);
                nap(&job, "the others", || stage.get() == 3);
                job.inject(Fault::Kill(victim)).expect("a fault");
                nap(&job, "free memory", || has_discarded(&all, &job) && job.epoch().0 == 1);
                stage.set(4);
                // The call takes the opening up.
                some = Store::open(&job, of_salvage("some"));
            } else {
                nap(&job, "the first call", || stage.get() > 0);
                some = Store::open(&job, of_salvage("some"));
                some.as_ref().expect("open").put(b"key", b"value").expect("put");
                stage.set(stage.get() + 1);
                nap(&job, "the end", || job.me() == late && stage.get() == 4);
            }
            let some = some.expect("open");
            assert_eq!(some.get(b"key").expect("read").expect("there").bytes(), b"value");
            some.close().expect("closed");
            all.close().expect("closed");
            let _ = job.leave();
        })
        .expect_ok();
    }

    /// A member abandons an opening before another member begins it, or while it does, and a third
    /// is stopped meanwhile. All then open the store together, and the memory of all openings goes
    /// back.
    #[test]
    fn the_memory_of_an_opening_that_a_member_has_abandoned_goes_back() {
        const LIMIT: Duration = Duration::from_secs(1);
        for seed in 0..60 {
            let is_abandoned = Rc::new(Cell::new(false));
            let mut options = SimOptions::new(3, seed).link(Link::of_seed(seed));
            options.time_limit = LIMIT;
            sim::run(&options, move |job: Job| {
                let began = job.now();
                // With so many indexes it takes a while to begin an opening.
                let plain = || Options::new().replicas(1).partitions(4096).expected_keys(64);
                // The members receive messages before they begin the opening.
                let all = Store::open(&job, plain().partitions(8).name("all")).expect("open");
                let stopped = MemberId(2);
                if job.me() == MemberId(0) {
                    expect_timeout(Store::open(&job, plain()).map(|_| ()));
                    job.inject(Fault::Stop(stopped)).expect("a fault");
                    let refused = Store::open(&job, plain().replicas(8)).unwrap_err();
                    assert!(matches!(refused, StoreError::Invalid { .. }), "{refused}");
                    is_abandoned.set(true);
                    job.sleep(LIMIT / 10);
                    job.inject(Fault::Resume(stopped)).expect("a fault");
                } else if job.me() == stopped {
                    nap(&job, "the other member", || is_abandoned.get());
                } else if seed % 2 == 0 {
                    nap(&job, "the other member", || is_abandoned.get());
                    job.sleep(LIMIT / 100);
                } else {
                    let before = Duration::from_nanos(seed * 30_000);
                    job.sleep(began.after(LIMIT - before).since(job.now()));
                }
                let store = Store::open(&job, plain()).expect("open");
                store.put(format!("{}", job.me()).as_bytes(), b"value").expect("put");
                let stores = store.state.stores.clone();
                store.close().expect("closed");
                drop(store);
                let is_other = |state: &Arc<StoreState>| state.name == "all";
                nap(&job, "the memory", || stores.unforgotten().iter().all(is_other));
                all.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }
}
