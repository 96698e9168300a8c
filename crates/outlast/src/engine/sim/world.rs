//! The simulated world: members, their activities, the clock and the queue of what happens next.
//!
//! Everything that happens is an [`Event`] with a virtual time. Events are taken in the order of (time, sequence
//! number), and every choice comes from one seeded generator, so a run is a function of its options and its body.
//! An activity that calls the engine draws the time of its next step; if nothing else happens before that, it goes
//! on at once, without a switch, which is the same as if it had been queued.

use super::network::{Channels, Flight, Request};
use super::options::{Action, Cost, Link, Options, When};
use super::random::{Random, mix};
use super::report::{Call, Clock, Counters, Hung, Outcome, Panicked, Report, What};
use super::segment::{Segment, Subset, words_in};
use crate::engine::{
    Activity, Bell, Epoch, Error, Fault, MemberId, MemberSet, Message, Operation, Port, Result, Time, View,
};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// What suspends a running coroutine.
pub(super) type Yielder = corosensei::Yielder<(), ()>;

/// What a member knows of deaths. Shared between members that know the same.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Knowledge {
    pub(super) dead: MemberSet,
    pub(super) left: MemberSet,
    pub(super) epoch: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    Living,
    /// Has left the job; its process may still run.
    Left,
    Dead,
}

pub(super) struct Member {
    pub(super) life: Life,
    /// Whether its process runs, stopped or not.
    runs: bool,
    pub(super) stopped: bool,
    /// What arrived while it was stopped, with the time at which it did.
    held: Vec<(u64, Event)>,
    pub(super) died_at: u64,
    pub(super) bell: u64,
    /// Whether a ring for a change of the view is on its way; bursts of deaths then ring once.
    ring_is_due: bool,
    /// Deaths to be noticed together, in jobs too large for a notice each.
    notices: Vec<u32>,
    activities: Vec<u32>,
    pub(super) segment: Segment,
    inbox: [VecDeque<Message>; Port::COUNT],
    /// Messages in the inbox and on their way to it.
    pub(super) inbox_len: usize,
    /// Activities that wait for room in the inbox.
    senders: Vec<(u32, u32)>,
    /// Requests of this member that are not complete.
    pub(super) requests: Vec<u32>,
    pub(super) counters: Counters,
    /// Faults at steps of this member, the next one last.
    step_faults: Vec<(u64, Action)>,
    next_fault_step: u64,
    /// When its network interface is free, under a cost model.
    pub(super) interface_free_at: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Main,
    Background,
    Further,
}

/// What a blocked activity waits for, besides its deadline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// The member's bell.
    Bell,
    /// Something that wakes just this activity.
    Signal,
    /// The completion with this address; only ever compared.
    Completion(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Runnable,
    Blocked(Wait),
}

struct Actor {
    member: u32,
    generation: u32,
    kind: Kind,
    name: Box<str>,
    yielder: *const Yielder,
    state: State,
    /// Whether it goes on after having been blocked, which is not a step.
    woken: bool,
    call: Call,
    since: u64,
    until: u64,
    /// The time of its timer in the queue; `u64::MAX` if there is none. A timer that comes too early for a later
    /// deadline is set again, so that frequent waits with far deadlines do not fill the queue.
    timer_at: u64,
    handle: Option<Activity>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Run {
        slot: u32,
        generation: u32,
    },
    Timer {
        slot: u32,
        generation: u32,
    },
    Fault {
        index: u32,
    },
    Resume {
        member: u32,
    },
    /// A death enters the one view of the memory link.
    Logged {
        dead: u32,
    },
    /// A member learns of a death on the network link.
    Notice {
        to: u32,
        dead: u32,
    },
    Notices {
        to: u32,
    },
    Ring {
        to: u32,
        for_view: bool,
    },
    Deliver {
        flight: u32,
    },
    Serve {
        request: u32,
        last: bool,
    },
    Respond {
        request: u32,
    },
}

struct Entry {
    time: u64,
    sequence: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.sequence == other.sequence
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    /// Reversed: the standard heap gives its greatest entry first, and the earliest is wanted.
    #[inline]
    fn cmp(&self, other: &Entry) -> Ordering {
        (other.time, other.sequence).cmp(&(self.time, self.sequence))
    }
}

/// What an engine call does next.
pub(super) enum Next {
    /// Go on.
    Go,
    /// Suspend with this, then go on.
    Suspend(*const Yielder),
    /// Return this error without suspending.
    Refuse(Error),
}

/// What the scheduler does next.
pub(super) enum Turn {
    Resume(u32),
    /// Unwind the activities of members that ended.
    Reap(Vec<u32>),
    End,
}

/// How an activity ended by itself.
pub(super) enum Ending {
    Returned,
    Panicked(String),
}

/// A one-sided operation that acts on the target's memory itself.
pub(super) enum Direct<'a> {
    Put(&'a [u8]),
    Get(&'a mut [u8]),
    Load,
    CompareAndSwap { expected: u64, new: u64 },
    FetchAdd(u64),
}

impl Direct<'_> {
    pub(super) fn call(&self, target: MemberId, offset: u64) -> Call {
        let (what, len) = match self {
            Direct::Put(data) => (What::Put, data.len()),
            Direct::Get(buffer) => (What::Get, buffer.len()),
            Direct::Load => (What::Load, 8),
            Direct::CompareAndSwap { .. } => (What::CompareAndSwap, 8),
            Direct::FetchAdd(_) => (What::FetchAdd, 8),
        };
        Call::range(what, target, offset, len as u64)
    }

    pub(super) fn check(&self, target: MemberId, offset: u64, segment_len: u64) -> Result<()> {
        match self {
            Direct::Put(data) => Operation::Put { offset, data }.check(target, segment_len),
            Direct::Get(buffer) => Operation::Get { offset, len: buffer.len() }.check(target, segment_len),
            _ => Operation::Load { offset }.check(target, segment_len),
        }
    }

    pub(super) fn words(&self, offset: u64) -> usize {
        match self {
            Direct::Put(data) => words_in(offset, data.len()),
            Direct::Get(buffer) => words_in(offset, buffer.len()),
            _ => 1,
        }
    }
}

/// How far a direct operation has come.
#[derive(Clone, Copy)]
pub(super) enum Progress {
    Fresh,
    /// Its epoch and its target were checked. The world may change before it acts, as on real shared memory.
    Checked,
    /// Its first phase is done.
    Half(Subset),
}

pub(super) struct World {
    pub(super) id: u64,
    pub(super) link: Link,
    pub(super) cost: Option<Cost>,
    regulars: usize,
    spares: usize,
    seed: u64,
    detection: (u64, u64),
    pub(super) segment_limit: u64,
    inbox_messages_max: usize,
    domains: Vec<String>,
    steps_max: u64,
    time_max: u64,
    planned: Vec<Action>,

    pub(super) random: Random,
    pub(super) now: u64,
    sequence: u64,
    queue: BinaryHeap<Entry>,
    pub(super) members: Vec<Member>,
    actors: Vec<Actor>,
    free_actors: Vec<u32>,
    /// One for all on the memory link, one for each member on the network link.
    knowledge: Vec<Rc<Knowledge>>,
    pub(super) requests: Vec<Request>,
    pub(super) free_requests: Vec<u32>,
    pub(super) flights: Vec<Option<Flight>>,
    pub(super) free_flights: Vec<u32>,
    pub(super) channels: Channels,
    /// The activity that runs now, if one does.
    current: u32,
    /// Whether an activity is being unwound by force.
    unwinding: bool,
    reap: Vec<u32>,
    pub(super) births: Vec<(u32, Box<dyn FnOnce() + Send>)>,
    /// How many members have a running process.
    running: usize,
    outcome: Option<Outcome>,

    steps: u64,
    kills: u64,
    stops: u64,
    digest: u64,
    panics: Vec<Panicked>,
    trace: Option<Vec<String>>,
}

const NONE: u32 = u32::MAX;
/// In larger jobs the deaths that a member has not noticed yet are noticed together.
const NOTICES_APART_MAX: usize = 256;

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl World {
    pub(super) fn new(id: u64, options: &Options) -> World {
        let count = options.members + options.spares;
        let members: Vec<Member> = (0..count)
            .map(|_| Member {
                life: Life::Living,
                runs: true,
                stopped: false,
                held: Vec::new(),
                died_at: 0,
                bell: 0,
                ring_is_due: false,
                notices: Vec::new(),
                activities: Vec::with_capacity(2),
                segment: Segment::default(),
                inbox: Default::default(),
                inbox_len: 0,
                senders: Vec::new(),
                requests: Vec::new(),
                counters: Counters::default(),
                step_faults: Vec::new(),
                next_fault_step: u64::MAX,
                interface_free_at: 0,
            })
            .collect();
        let views = if options.link == Link::Memory { 1 } else { count };
        let mut world = World {
            id,
            link: options.link,
            cost: options.cost,
            regulars: options.members,
            spares: options.spares,
            seed: options.seed,
            detection: (nanos(*options.detection.start()), nanos(*options.detection.end())),
            segment_limit: options.segment_limit,
            inbox_messages_max: options.inbox_messages_max.max(1),
            domains: options.domains.clone(),
            steps_max: options.steps_max,
            time_max: options.time_max.0,
            planned: options.faults.iter().map(|fault| fault.action).collect(),
            random: Random::new(options.seed),
            now: 0,
            sequence: 0,
            queue: BinaryHeap::with_capacity(count * 4),
            members,
            actors: Vec::with_capacity(count * 2),
            free_actors: Vec::new(),
            knowledge: vec![Rc::default(); views],
            requests: Vec::new(),
            free_requests: Vec::new(),
            flights: Vec::new(),
            free_flights: Vec::new(),
            channels: Channels::new(count),
            current: NONE,
            unwinding: false,
            reap: Vec::new(),
            births: Vec::new(),
            running: count,
            outcome: None,
            steps: 0,
            kills: 0,
            stops: 0,
            digest: mix(options.seed),
            panics: Vec::new(),
            trace: options.trace.then(Vec::new),
        };
        for (index, fault) in options.faults.iter().enumerate() {
            match fault.when {
                When::At(time) => world.push(time.0, Event::Fault { index: index as u32 }),
                When::AtStep(member, step) => {
                    world.members[member.index()].step_faults.push((step, fault.action));
                }
            }
        }
        for member in &mut world.members {
            member.sort_step_faults();
        }
        world
    }

    // ---- Time, the queue and the trace.

    #[inline]
    pub(super) fn push(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.queue.push(Entry { time, sequence: self.sequence, event });
    }

    #[inline]
    pub(super) fn note(&mut self, value: u64) {
        self.digest = (self.digest.rotate_left(23) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    pub(super) fn note_bytes(&mut self, bytes: &[u8]) {
        let (chunks, rest) = bytes.as_chunks::<8>();
        for chunk in chunks {
            self.note(u64::from_le_bytes(*chunk));
        }
        self.note(rest.iter().fold(bytes.len() as u64, |all, &byte| all << 8 | u64::from(byte)));
    }

    /// Writes a line about an activity of a member, or about the member as a whole.
    #[inline]
    pub(super) fn tell(&mut self, member: u32, text: impl FnOnce(&World) -> String) {
        if self.trace.is_some() {
            let name = match self.actors.get(self.current as usize) {
                Some(actor) if actor.member == member => &actor.name,
                _ => "",
            };
            let line = format!("{:>14}  m{member} {name:<10} {}", Clock(self.now).to_string(), text(self));
            self.trace.get_or_insert_default().push(line);
        }
    }

    /// How long it takes until an activity's next step.
    #[inline]
    fn step_time(&mut self, member: u32, call: Call) -> u64 {
        let Some(cost) = self.cost else { return self.random.delay() };
        let overhead = nanos(cost.overhead);
        let is_remote = call.target != member && call.target != NONE;
        match (self.link, call.what) {
            (Link::Memory, _) if is_remote && call.is_operation() => {
                overhead + nanos(cost.latency) + call.len.saturating_mul(cost.gap_per_byte_ps) / 1000
            }
            _ if is_remote && (call.is_operation() || call.what == What::Send) => overhead,
            _ => nanos(cost.local).max(1),
        }
    }

    /// How long it takes until a woken activity runs.
    fn wake_time(&mut self) -> u64 {
        match self.cost {
            Some(cost) => nanos(cost.overhead),
            None => self.random.delay(),
        }
    }

    fn detection_time(&mut self) -> u64 {
        match self.cost {
            Some(_) => self.detection.0,
            None => self.random.magnitude(self.detection.0, self.detection.1),
        }
    }

    // ---- Scheduling.

    /// One scheduling point of the activity that runs now.
    #[inline]
    pub(super) fn step(&mut self, member: u32, call: Call) -> Next {
        let slot = self.current;
        let Some(actor) = self.actors.get_mut(slot as usize) else {
            return Next::Refuse(Error::Ended);
        };
        if actor.member != member {
            return Next::Refuse(Error::Unsupported {
                what: "use of another member's Job; each member has its own",
            });
        }
        // A destructor that runs while its activity is unwound must not suspend: the count of panics belongs to
        // the thread, which all activities share.
        if std::thread::panicking() {
            return Next::Refuse(Error::Ended);
        }
        let yielder = actor.yielder;
        let state = &mut self.members[member as usize];
        if state.life == Life::Dead || self.outcome.is_some() {
            // Code that caught the unwinding and went on: suspending starts the unwinding again.
            return Next::Suspend(yielder);
        }
        actor.call = call;
        actor.since = self.now;
        state.counters.steps += 1;
        self.steps += 1;
        if state.counters.steps >= state.next_fault_step {
            self.strike_at_step(member);
            let state = &self.members[member as usize];
            if state.life == Life::Dead {
                return Next::Suspend(yielder);
            }
        }
        if self.steps > self.steps_max {
            self.outcome = Some(Outcome::StepLimit);
            return Next::Suspend(yielder);
        }
        let time = self.now + self.step_time(member, call);
        if self.queue.peek().is_some_and(|first| first.time <= time)
            || time > self.time_max
            || self.members[member as usize].stopped
        {
            let generation = self.actors[slot as usize].generation;
            self.push(time, Event::Run { slot, generation });
            return Next::Suspend(yielder);
        }
        self.now = time;
        self.ran(slot);
        Next::Go
    }

    /// An activity goes on now.
    #[inline]
    fn ran(&mut self, slot: u32) {
        let actor = &mut self.actors[slot as usize];
        let (member, call, woken) = (actor.member, actor.call, actor.woken);
        actor.woken = false;
        let place = u64::from(slot) << 40 ^ u64::from(call.target) << 20 ^ u64::from(woken) << 60;
        let value = self.now ^ place ^ (call.what as u64) << 32 ^ call.offset.rotate_left(17) ^ call.len << 9;
        self.note(value);
        if self.trace.is_some() {
            if woken {
                self.tell(member, |_| format!("wakes in {call}"));
            } else if !call.is_operation() {
                self.tell(member, |_| call.to_string());
            }
        }
    }

    /// Blocks the running activity; the caller then suspends it.
    pub(super) fn block(&mut self, wait: Wait, until: u64) -> *const Yielder {
        let slot = self.current;
        let actor = &mut self.actors[slot as usize];
        actor.state = State::Blocked(wait);
        actor.until = until;
        let (generation, yielder) = (actor.generation, actor.yielder);
        if until < actor.timer_at {
            actor.timer_at = until;
            self.push(until, Event::Timer { slot, generation });
        }
        yielder
    }

    fn wake(&mut self, slot: u32) {
        let actor = &mut self.actors[slot as usize];
        if matches!(actor.state, State::Blocked(_)) {
            actor.state = State::Runnable;
            actor.woken = true;
            let generation = actor.generation;
            let time = self.now + self.wake_time();
            self.push(time, Event::Run { slot, generation });
        }
    }

    /// Wakes an activity that waits for a signal, if it still is the same one.
    pub(super) fn signal(&mut self, slot: u32, generation: u32) {
        if self.actors[slot as usize].generation == generation
            && self.actors[slot as usize].state == State::Blocked(Wait::Signal)
        {
            self.wake(slot);
        }
    }

    /// Wakes the activity of a member that waits for this completion; whether there was one.
    pub(super) fn wake_completion(&mut self, member: u32, address: usize) -> bool {
        let waiter = self.members[member as usize]
            .activities
            .iter()
            .copied()
            .find(|&slot| self.actors[slot as usize].state == State::Blocked(Wait::Completion(address)));
        waiter.map(|slot| self.wake(slot)).is_some()
    }

    /// Rings a member's bell now.
    pub(super) fn ring(&mut self, member: u32) {
        self.members[member as usize].bell += 1;
        for index in 0..self.members[member as usize].activities.len() {
            let slot = self.members[member as usize].activities[index];
            if self.actors[slot as usize].state == State::Blocked(Wait::Bell) {
                self.wake(slot);
            }
        }
    }

    /// Finds out what the scheduler has to do next.
    pub(super) fn turn(&mut self) -> Turn {
        self.current = NONE;
        loop {
            if !self.reap.is_empty() {
                return Turn::Reap(std::mem::take(&mut self.reap));
            }
            if self.outcome.is_some() {
                return Turn::End;
            }
            if self.running == 0 {
                self.outcome = Some(Outcome::Finished);
                return Turn::End;
            }
            let Some(entry) = self.queue.pop() else {
                let waits = self.members.iter().any(|member| member.runs && !member.stopped);
                self.outcome = Some(if waits { Outcome::Deadlock } else { Outcome::Finished });
                return Turn::End;
            };
            if entry.time > self.time_max {
                self.outcome = Some(Outcome::TimeLimit);
                return Turn::End;
            }
            self.now = self.now.max(entry.time);
            if let Some(slot) = self.dispatch(entry.time, entry.event) {
                self.current = slot;
                self.ran(slot);
                return Turn::Resume(slot);
            }
        }
    }

    /// Lets an event happen; the activity to resume, if it is one's turn. `time` is when it was due: earlier than
    /// now if it was held at a stopped member.
    fn dispatch(&mut self, time: u64, event: Event) -> Option<u32> {
        let held_at = match event {
            Event::Run { slot, generation } => {
                let actor = &self.actors[slot as usize];
                if actor.generation != generation {
                    return None;
                }
                Some(actor.member)
            }
            // What is written to memory arrives at a stopped member too.
            _ if self.link == Link::Memory => None,
            Event::Notice { to, .. } | Event::Notices { to } | Event::Ring { to, .. } => Some(to),
            Event::Deliver { flight } => self.flights[flight as usize].as_ref().map(|flight| flight.to),
            Event::Serve { request, .. } => Some(self.requests[request as usize].target),
            Event::Respond { request } => Some(self.requests[request as usize].source),
            _ => None,
        };
        if let Some(member) = held_at {
            let member = &mut self.members[member as usize];
            if member.stopped {
                member.held.push((time, event));
                return None;
            }
        }
        match event {
            Event::Run { slot, .. } => return Some(slot),
            Event::Timer { slot, generation } => self.timer(slot, generation, time),
            Event::Fault { index } => self.strike(self.planned[index as usize]),
            Event::Resume { member } => self.resume(member),
            Event::Logged { dead } => self.log_death(dead),
            Event::Notice { to, dead } => self.learn_deaths(to, &[dead]),
            Event::Notices { to } => {
                let dead = std::mem::take(&mut self.members[to as usize].notices);
                self.learn_deaths(to, &dead);
            }
            Event::Ring { to, for_view } => {
                if for_view {
                    self.members[to as usize].ring_is_due = false;
                }
                self.ring(to);
            }
            Event::Deliver { flight } => self.deliver(flight, time),
            Event::Serve { request, last } => self.serve(request, last, time),
            Event::Respond { request } => self.respond(request, time),
        }
        None
    }

    fn timer(&mut self, slot: u32, generation: u32, time: u64) {
        let actor = &mut self.actors[slot as usize];
        if actor.generation != generation || actor.timer_at != time {
            return;
        }
        actor.timer_at = u64::MAX;
        if matches!(actor.state, State::Blocked(_)) {
            if actor.until <= self.now {
                self.wake(slot);
            } else if actor.until != u64::MAX {
                actor.timer_at = actor.until;
                let until = actor.until;
                self.push(until, Event::Timer { slot, generation });
            }
        }
    }

    // ---- Activities.

    /// Makes an activity; it first runs after a random time.
    pub(super) fn make_actor(
        &mut self,
        member: u32,
        kind: Kind,
        name: &str,
        handle: Option<Activity>,
    ) -> u32 {
        let actor = Actor {
            member,
            generation: 0,
            kind,
            name: name.into(),
            yielder: std::ptr::null(),
            state: State::Runnable,
            woken: false,
            call: Call::plain(What::Begin),
            since: self.now,
            until: 0,
            timer_at: u64::MAX,
            handle,
        };
        let slot = match self.free_actors.pop() {
            Some(slot) => {
                let generation = self.actors[slot as usize].generation;
                self.actors[slot as usize] = Actor { generation, ..actor };
                slot
            }
            None => {
                self.actors.push(actor);
                (self.actors.len() - 1) as u32
            }
        };
        self.members[member as usize].activities.push(slot);
        let time = self.now + self.wake_time();
        let generation = self.actors[slot as usize].generation;
        self.push(time, Event::Run { slot, generation });
        slot
    }

    pub(super) fn set_yielder(&mut self, slot: u32, yielder: *const Yielder) {
        self.actors[slot as usize].yielder = yielder;
    }

    pub(super) fn set_current(&mut self, slot: Option<u32>) {
        self.current = slot.unwrap_or(NONE);
    }

    pub(super) fn set_unwinding(&mut self, unwinding: bool) {
        self.unwinding = unwinding;
    }

    pub(super) fn is_unwinding(&self) -> bool {
        self.unwinding
    }

    /// The activity that runs now, to be woken later.
    pub(super) fn current(&self) -> (u32, u32) {
        (self.current, self.actors[self.current as usize].generation)
    }

    /// An activity's coroutine is gone. Its number may be used again, hence the new generation.
    pub(super) fn free_actor(&mut self, slot: u32) {
        let actor = &mut self.actors[slot as usize];
        actor.generation += 1;
        actor.state = State::Free;
        actor.yielder = std::ptr::null();
        actor.handle = None;
        let member = actor.member as usize;
        self.members[member].activities.retain(|&other| other != slot);
        self.free_actors.push(slot);
    }

    /// An activity ended by itself.
    pub(super) fn ended(&mut self, slot: u32, ending: Ending) {
        let actor = &mut self.actors[slot as usize];
        let (member, kind, name) = (actor.member, actor.kind, actor.name.clone());
        let handle = actor.handle.take();
        self.tell(member, |_| match &ending {
            Ending::Returned => "returns".to_string(),
            Ending::Panicked(message) => format!("panics: {message}"),
        });
        self.free_actor(slot);
        if let Ending::Panicked(message) = ending {
            self.panics.push(Panicked { member: MemberId(member), activity: name.into(), message });
            self.die(member);
            return;
        }
        if let Some(handle) = handle {
            handle.finish();
            self.ring(member);
        }
        if kind == Kind::Main {
            self.die(member);
        }
    }

    /// What to say of activities that have not ended, and what the run gave.
    pub(super) fn report(&mut self) -> Report {
        let outcome = self.outcome.unwrap_or(Outcome::Finished);
        let mut hung = Vec::new();
        if outcome != Outcome::Finished {
            for (index, member) in self.members.iter().enumerate() {
                if !member.runs || member.stopped {
                    continue;
                }
                for actor in member.activities.iter().map(|&slot| &self.actors[slot as usize]) {
                    let is_waiting = matches!(actor.state, State::Blocked(_));
                    // A background activity that waits is doing its duty.
                    if actor.kind != Kind::Background || !is_waiting {
                        hung.push(Hung {
                            member: MemberId(index as u32),
                            activity: actor.name.to_string(),
                            call: actor.call.to_string(),
                            since: Time(actor.since),
                            is_waiting,
                        });
                    }
                }
            }
        }
        let stopped = self.members.iter().enumerate().filter(|(_, member)| member.runs && member.stopped);
        Report {
            outcome,
            steps: self.steps,
            end: Time(self.now),
            kills: self.kills,
            stops: self.stops,
            panics: std::mem::take(&mut self.panics),
            hung,
            still_stopped: stopped.map(|(index, _)| MemberId(index as u32)).collect(),
            counters: self.members.iter().map(|member| member.counters).collect(),
            digest: self.digest,
            trace: self.trace.take().unwrap_or_default(),
        }
    }

    /// All activities that still have a coroutine, in order.
    pub(super) fn remaining(&mut self) -> Vec<u32> {
        self.outcome.get_or_insert(Outcome::Finished);
        (0..self.actors.len() as u32)
            .filter(|&slot| self.actors[slot as usize].state != State::Free)
            .collect()
    }

    // ---- Faults.

    fn strike_at_step(&mut self, member: u32) {
        let steps = self.members[member as usize].counters.steps;
        while let Some(&(step, action)) = self.members[member as usize].step_faults.last() {
            if step > steps {
                break;
            }
            self.members[member as usize].step_faults.pop();
            self.strike(action);
        }
        self.members[member as usize].sort_step_faults();
    }

    fn strike(&mut self, action: Action) {
        match action {
            Action::Kill(member) => self.kill(member.0),
            Action::Stop(member) => {
                self.stop(member.0);
            }
            Action::Resume(member) => self.resume(member.0),
            Action::StopFor(member, pause) => {
                if self.stop(member.0) {
                    let time = self.now.saturating_add(nanos(pause));
                    self.push(time, Event::Resume { member: member.0 });
                }
            }
        }
    }

    pub(super) fn inject(&mut self, member: u32, fault: Fault) -> Result<()> {
        match fault {
            Fault::Kill(target) | Fault::Stop(target) | Fault::Resume(target) => self.check_member(target)?,
            Fault::DieAtStep(_) | Fault::StopAtStep(_) => {}
        }
        let state = &mut self.members[member as usize];
        let steps = state.counters.steps;
        match fault {
            Fault::Kill(target) => self.kill(target.0),
            Fault::Stop(target) => {
                self.stop(target.0);
            }
            Fault::Resume(target) => self.resume(target.0),
            Fault::DieAtStep(n) => {
                state.step_faults.push((steps.saturating_add(n), Action::Kill(MemberId(member))));
                state.sort_step_faults();
            }
            Fault::StopAtStep(n) => {
                state.step_faults.push((steps.saturating_add(n), Action::Stop(MemberId(member))));
                state.sort_step_faults();
            }
        }
        Ok(())
    }

    fn kill(&mut self, member: u32) {
        if self.members[member as usize].runs {
            if self.members[member as usize].life == Life::Living {
                self.kills += 1;
            }
            self.tell(member, |_| "is killed".to_string());
            self.die(member);
        }
    }

    fn stop(&mut self, member: u32) -> bool {
        let state = &mut self.members[member as usize];
        if !state.runs || state.stopped {
            return false;
        }
        state.stopped = true;
        self.stops += 1;
        self.note(0x73_746F_7000 ^ u64::from(member));
        self.tell(member, |_| "is stopped".to_string());
        true
    }

    fn resume(&mut self, member: u32) {
        let state = &mut self.members[member as usize];
        if !state.runs || !state.stopped {
            return;
        }
        state.stopped = false;
        let held = std::mem::take(&mut state.held);
        self.note(0x676F_2000 ^ u64::from(member));
        self.tell(member, |_| "goes on".to_string());
        self.release(held);
    }

    /// Lets happen, in order, what was held at a stopped member.
    fn release(&mut self, held: Vec<(u64, Event)>) {
        for (time, event) in held {
            if let Event::Run { .. } = event {
                let later = self.now + self.wake_time();
                self.push(later, event);
            } else {
                self.dispatch(time, event);
            }
        }
    }

    /// The process of a member ends, for whatever reason.
    fn die(&mut self, member: u32) {
        let now = self.now;
        let state = &mut self.members[member as usize];
        if !state.runs {
            return;
        }
        let was_living = state.life == Life::Living;
        state.runs = false;
        state.stopped = false;
        state.died_at = now;
        if was_living {
            state.life = Life::Dead;
        }
        self.running -= 1;
        self.note(0x6469_6500 ^ u64::from(member) ^ now << 20);
        let state = &mut self.members[member as usize];
        self.reap.extend_from_slice(&state.activities);
        let held = std::mem::take(&mut state.held);
        self.stop_serving(member);
        self.release(held);
        if was_living {
            if self.link == Link::Memory {
                let time = now + self.detection_time();
                self.push(time, Event::Logged { dead: member });
            } else {
                self.spread(member, true);
            }
        }
    }

    /// What a member that left or died no longer has.
    fn stop_serving(&mut self, member: u32) {
        let state = &mut self.members[member as usize];
        state.inbox = Default::default();
        state.inbox_len = 0;
        if self.link == Link::Network || state.life == Life::Left {
            state.segment.clear();
        }
        let senders = std::mem::take(&mut state.senders);
        for request in std::mem::take(&mut state.requests) {
            self.abandon(request);
        }
        for (slot, generation) in senders {
            self.signal(slot, generation);
        }
    }

    // ---- Views.

    /// What a member knows of deaths.
    #[inline]
    pub(super) fn knowledge(&self, member: u32) -> &Rc<Knowledge> {
        &self.knowledge[if self.link == Link::Memory { 0 } else { member as usize }]
    }

    pub(super) fn epoch(&self, member: u32) -> Epoch {
        Epoch(self.knowledge(member).epoch)
    }

    pub(super) fn knows_dead(&self, member: u32, target: u32) -> bool {
        let knowledge = self.knowledge(member);
        knowledge.epoch != 0 && knowledge.dead.contains(MemberId(target))
    }

    pub(super) fn view(&self, member: u32) -> View {
        let knowledge = self.knowledge(member);
        View::new(self.regulars, self.spares, knowledge.dead.clone(), knowledge.left.clone())
    }

    /// Enters deaths into a view; whether any was new.
    fn enter(&mut self, view: usize, dead: &[u32]) -> bool {
        if dead.iter().all(|&member| self.knowledge[view].dead.contains(MemberId(member))) {
            return false;
        }
        let knowledge = Rc::make_mut(&mut self.knowledge[view]);
        for &member in dead {
            if knowledge.dead.insert(MemberId(member)) {
                knowledge.epoch += 1;
                if self.members[member as usize].life == Life::Left {
                    knowledge.left.insert(MemberId(member));
                }
            }
        }
        true
    }

    /// The memory link: a death enters the view of all at one moment; then the bells ring, each at its own time.
    fn log_death(&mut self, dead: u32) {
        if !self.enter(0, &[dead]) {
            return;
        }
        self.members[dead as usize].segment.clear();
        self.note(u64::from(dead));
        self.tell(dead, |world| format!("is known to be dead: epoch {}", world.knowledge[0].epoch));
        for member in 0..self.members.len() {
            let state = &mut self.members[member];
            if state.life == Life::Living && !state.ring_is_due {
                state.ring_is_due = true;
                let time = self.now + self.wake_time();
                self.push(time, Event::Ring { to: member as u32, for_view: true });
            }
        }
    }

    /// The network link: the notice of a death goes to each member.
    fn spread(&mut self, dead: u32, by_detection: bool) {
        for member in 0..self.members.len() {
            if member == dead as usize || self.members[member].life != Life::Living {
                continue;
            }
            if self.members.len() > NOTICES_APART_MAX {
                self.members[member].notices.push(dead);
                if self.members[member].notices.len() > 1 {
                    continue;
                }
            }
            let time = self.now + if by_detection { self.detection_time() } else { self.wake_time() };
            let to = member as u32;
            let together = self.members.len() > NOTICES_APART_MAX;
            self.push(time, if together { Event::Notices { to } } else { Event::Notice { to, dead } });
        }
    }

    /// The network link: a member learns of deaths.
    fn learn_deaths(&mut self, member: u32, dead: &[u32]) {
        if self.members[member as usize].life != Life::Living || !self.enter(member as usize, dead) {
            return;
        }
        for &dead in dead {
            self.note(u64::from(member) << 32 | u64::from(dead));
        }
        self.tell(member, |world| {
            let knowledge = &world.knowledge[member as usize];
            format!("learns of deaths: {} dead, epoch {}", knowledge.dead, knowledge.epoch)
        });
        self.fail_requests(member, dead);
        self.ring(member);
    }

    /// A member adopts what another one knew.
    pub(super) fn adopt(&mut self, member: u32, other: &Rc<Knowledge>) {
        let mine = self.knowledge(member);
        if self.link == Link::Memory || other.epoch == 0 || Rc::ptr_eq(mine, other) {
            return;
        }
        if **mine == **other {
            // Sharing makes the next comparison cheap.
            self.knowledge[member as usize] = other.clone();
            return;
        }
        let news: Vec<u32> =
            other.dead.iter().filter(|&dead| !mine.dead.contains(dead)).map(|dead| dead.0).collect();
        if !news.is_empty() {
            self.learn_deaths(member, &news);
        }
    }

    pub(super) fn leave(&mut self, member: u32) {
        self.members[member as usize].life = Life::Left;
        self.members[member as usize].died_at = self.now;
        self.stop_serving(member);
        if self.link == Link::Memory {
            self.log_death(member);
        } else {
            self.enter(member as usize, &[member]);
            self.spread(member, false);
        }
        self.ring(member);
    }

    pub(super) fn fence(&mut self, target: u32) {
        if self.members[target as usize].life == Life::Living {
            self.kill(target);
        }
    }

    pub(super) fn has_ended(&self, member: u32) -> bool {
        self.outcome.is_some() || self.members[member as usize].life != Life::Living
    }

    // ---- Checks that many calls share.

    pub(super) fn check_self(&self, member: u32) -> Result<()> {
        if self.members[member as usize].life == Life::Living { Ok(()) } else { Err(Error::Ended) }
    }

    pub(super) fn check_member(&self, member: MemberId) -> Result<()> {
        if member.index() < self.members.len() {
            Ok(())
        } else {
            Err(Error::UnknownMember { member, members: self.members.len() })
        }
    }

    /// Checks that a member may start an operation on a target.
    pub(super) fn check_start(&mut self, member: u32, at: Epoch, target: MemberId) -> Result<()> {
        self.check_self(member)?;
        self.check_member(target)?;
        let now = self.epoch(member);
        if self.knows_dead(member, target.0) {
            return Err(Error::Dead { member: target });
        }
        if at < now {
            self.tell(member, |_| format!("is refused an operation on m{}: {at} is past", target.0));
            return Err(Error::Stale { now });
        }
        Ok(())
    }

    pub(super) fn domain(&self, member: MemberId) -> Result<String> {
        self.check_member(member)?;
        Ok(self.domains.get(member.index()).cloned().unwrap_or_default())
    }

    // ---- Memory.

    pub(super) fn grow(&mut self, member: u32, len: u64) -> Result<()> {
        self.check_self(member)?;
        if len > self.segment_limit {
            let reason =
                format!("the simulated limit is {} bytes; raise Options::segment_limit", self.segment_limit);
            return Err(Error::OutOfMemory { wanted: len, reason });
        }
        self.members[member as usize].segment.grow(len);
        Ok(())
    }

    pub(super) fn segment_len(&mut self, member: u32, target: MemberId) -> Result<u64> {
        self.check_start(member, Epoch::ANY, target)?;
        Ok(self.members[target.index()].segment.len())
    }

    /// How long the segment of a member that may not exist is.
    pub(super) fn reachable_len(&self, target: MemberId) -> u64 {
        self.members.get(target.index()).map_or(0, |member| member.segment.len())
    }

    /// Counts an operation that a member starts.
    pub(super) fn count(&mut self, member: u32, what: What, len: usize) {
        let counters = &mut self.members[member as usize].counters;
        counters.operations += 1;
        match what {
            What::Put => counters.operation_bytes_written += len as u64,
            What::Get => counters.operation_bytes_read += len as u64,
            What::Load => counters.operation_bytes_read += 8,
            _ => {
                counters.operation_bytes_read += 8;
                counters.operation_bytes_written += 8;
            }
        }
    }

    /// Does the next part of an operation on memory that the member reaches itself: what it gave, or that there is
    /// more to do after another step.
    pub(super) fn act(
        &mut self,
        member: u32,
        at: Epoch,
        target: MemberId,
        offset: u64,
        direct: &mut Direct<'_>,
        progress: &mut Progress,
    ) -> Result<Option<u64>> {
        let is_torn = self.cost.is_none();
        if let Progress::Fresh = *progress {
            self.check_start(member, at, target)?;
            direct.check(target, offset, self.members[target.index()].segment.len())?;
            let call = direct.call(target, offset);
            self.count(member, call.what, call.len as usize);
            *progress = Progress::Checked;
            // On real shared memory the view may change between the check and the effect.
            if is_torn && self.random.next() & 3 == 0 {
                return Ok(None);
            }
        }
        if self.knows_dead(member, target.0) {
            // The death was noticed while the operation was under way, and the memory is gone.
            return match direct {
                Direct::Put(_) if self.random.chance(2) => Ok(Some(0)),
                _ => Err(Error::Dead { member: target }),
            };
        }
        self.check_self(member)?;
        let (subset, second_phase) = match *progress {
            Progress::Half(subset) => (subset, true),
            _ if is_torn => (Subset::draw(&mut self.random, direct.words(offset)), false),
            _ => (Subset::All, false),
        };
        let word = self.apply(target.0, offset, direct, subset, second_phase);
        self.tell(member, |_| describe(target.0, offset, direct, subset, second_phase, word));
        if subset != Subset::All && !second_phase {
            *progress = Progress::Half(subset);
            return Ok(None);
        }
        Ok(Some(word))
    }

    /// Does one phase of an operation to the target's memory. The range must have been checked.
    pub(super) fn apply(
        &mut self,
        target: u32,
        offset: u64,
        direct: &mut Direct<'_>,
        subset: Subset,
        second_phase: bool,
    ) -> u64 {
        let segment = &mut self.members[target as usize].segment;
        let index = (offset / 8) as usize;
        let word = match direct {
            Direct::Put(data) => {
                segment.put(offset, data, subset, second_phase);
                if !second_phase {
                    self.note_bytes(data);
                }
                return 0;
            }
            Direct::Get(buffer) => {
                segment.get(offset, buffer, subset, second_phase);
                return 0;
            }
            Direct::Load => segment.load(index),
            Direct::CompareAndSwap { expected, new } => {
                let found = segment.load(index);
                if found == *expected {
                    segment.store(index, *new);
                }
                found
            }
            Direct::FetchAdd(delta) => {
                let found = segment.load(index);
                segment.store(index, found.wrapping_add(*delta));
                found
            }
        };
        self.note(word);
        word
    }

    // ---- Messages.

    /// Whether a message to this member must wait for room.
    pub(super) fn is_full(&self, to: u32) -> bool {
        self.members[to as usize].life == Life::Living
            && self.members[to as usize].inbox_len >= self.inbox_messages_max
    }

    pub(super) fn wait_for_room(&mut self, to: u32, until: u64) -> *const Yielder {
        let waiter = self.current();
        self.members[to as usize].senders.push(waiter);
        self.block(Wait::Signal, until)
    }

    fn deliver(&mut self, flight: u32, time: u64) {
        let Some(Flight { from, to, port, message, knowledge }) = self.flights[flight as usize].take() else {
            return;
        };
        self.free_flights.push(flight);
        if self.members[to as usize].life != Life::Living {
            return;
        }
        if self.is_lost(from, to, time) {
            self.members[to as usize].inbox_len -= 1;
            self.tell(to, |_| format!("never gets a message of m{from}, which died"));
            return;
        }
        self.adopt(to, &knowledge);
        self.note(u64::from(from) << 32 ^ u64::from(to) ^ time << 13);
        self.tell(to, |world| {
            let late = if world.knows_dead(to, from) { ", who is dead" } else { "" };
            format!("gets a message of {} B from m{from}{late}", message.bytes.len())
        });
        self.members[to as usize].inbox[port as usize].push_back(message);
        self.ring(to);
    }

    pub(super) fn receive(&mut self, member: u32, port: Port) -> Option<Message> {
        let state = &mut self.members[member as usize];
        let message = state.inbox[port as usize].pop_front()?;
        state.inbox_len -= 1;
        state.counters.messages_received += 1;
        state.counters.message_bytes_received += message.bytes.len() as u64;
        let senders = std::mem::take(&mut state.senders);
        for (slot, generation) in senders {
            self.signal(slot, generation);
        }
        self.note(u64::from(message.from.0));
        Some(message)
    }

    /// Whether something that a member sent and that was due at `time` was lost with its sender. What one pair
    /// exchanges is lost from some moment on, so that no hole comes before something that arrived.
    pub(super) fn is_lost(&self, from: u32, to: u32, time: u64) -> bool {
        let sender = &self.members[from as usize];
        if sender.life != Life::Dead {
            return false;
        }
        let draw =
            mix(self.seed ^ (u64::from(from) << 32 | u64::from(to)).wrapping_mul(0xA24B_AED4_963E_E407));
        let grace = match draw & 3 {
            0 => 0,
            1 => draw >> 50,
            2 => draw >> 44,
            _ => draw >> 38,
        };
        time > sender.died_at.saturating_add(grace)
    }

    // ---- Waiting.

    pub(super) fn bell(&self, member: u32) -> Bell {
        Bell(self.members[member as usize].bell)
    }

    /// Blocks the running activity unless the bell has rung, the time is over or the member has left.
    pub(super) fn park(&mut self, member: u32, seen: Bell, until: Time) -> Option<*const Yielder> {
        let state = &self.members[member as usize];
        if state.bell != seen.0 || self.now >= until.0 || state.life != Life::Living {
            return None;
        }
        let mut until = until.0;
        // The trait allows to return early for no reason; so that nobody relies on the contrary, it happens.
        if self.cost.is_none() && self.random.next() & 63 == 0 {
            until = until.min(self.now + self.random.magnitude(100, 1_000_000));
        }
        Some(self.block(Wait::Bell, until))
    }
}

impl Member {
    /// Puts the next fault last and notes when it is due.
    fn sort_step_faults(&mut self) {
        self.step_faults.sort_by_key(|&(step, _)| std::cmp::Reverse(step));
        self.next_fault_step = self.step_faults.last().map_or(u64::MAX, |&(step, _)| step);
    }
}

/// An operation's effect, for people.
pub(super) fn describe(
    target: u32,
    offset: u64,
    direct: &Direct<'_>,
    subset: Subset,
    second_phase: bool,
    word: u64,
) -> String {
    let call = direct.call(MemberId(target), offset);
    match direct {
        Direct::Put(_) | Direct::Get(_) if subset != Subset::All => {
            let phase = 1 + u32::from(second_phase);
            let words = subset.describe(direct.words(offset), second_phase);
            format!("{call} (phase {phase}: {words})")
        }
        Direct::Put(_) | Direct::Get(_) => call.to_string(),
        Direct::Load => format!("{call}: {word:#x}"),
        Direct::CompareAndSwap { expected, new } if word == *expected => {
            format!("{call}: {word:#x} becomes {new:#x}")
        }
        Direct::CompareAndSwap { expected, .. } => format!("{call}: {word:#x} is not {expected:#x}"),
        Direct::FetchAdd(delta) => format!("{call}: {word:#x} plus {delta:#x}"),
    }
}
