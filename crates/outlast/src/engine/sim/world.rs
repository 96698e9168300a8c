//! The simulated world: members, their activities, the clock and the queue of events.
//!
//! Every change of the world is an [`Event`] with a virtual time. Events are taken in the order of
//! (time, sequence number), and every choice comes from a single seeded generator, so a run is a
//! function of its options and its body. An activity that calls the engine draws the time of its
//! next step. If no event is due before that time, it goes on at once, without a switch; the result
//! is equal to that of queueing it.

use super::network::{Channels, Flight, Outstanding, Request, Sent};
use super::options::{Action, Cost, Link, Options, When};
use super::random::{Random, mix};
use super::report::{Call, Clock, Counters, Hung, Outcome, Panicked, Report, What};
use super::segment::Segment;
use crate::engine::{
    Activity, Bell, Epoch, Error, MemberId, MemberSet, Message, Port, Result, Time,
};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// The handle that suspends a running coroutine.
pub(super) type Yielder = corosensei::Yielder<(), ()>;

/// What a member knows of deaths. Members with equal knowledge share it.
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
    pub(super) runs: bool,
    pub(super) stopped: bool,
    /// Events that were due while it was stopped, with their times.
    pub(super) held: Vec<(u64, Event)>,
    pub(super) died_at: u64,
    pub(super) bell: u64,
    /// Whether a ring for a change of the view is on its way; bursts of deaths then ring once.
    pub(super) ring_is_due: bool,
    /// Deaths for the next notice, in jobs too large for a notice per death.
    pub(super) notices: Vec<u32>,
    pub(super) activities: Vec<u32>,
    pub(super) segment: Segment,
    /// What can still be read of its segment after its death is known.
    pub(super) dead_segment: Segment,
    pub(super) inbox: [VecDeque<Message>; Port::COUNT],
    /// By sender and port: the cost of the messages in the inbox and on their way to it.
    pub(super) unreceived: BTreeMap<(u32, Port), u64>,
    /// Activities that wait for room in the inbox.
    pub(super) senders: Vec<(u32, u32)>,
    /// Requests of this member that are not complete.
    pub(super) sent: Sent,
    pub(super) counters: Counters,
    /// Faults at steps of this member, the next fault last.
    pub(super) step_faults: Vec<(u64, Action)>,
    pub(super) next_fault_step: u64,
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
    /// A signal that wakes this activity alone.
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
    /// The time of its timer in the queue; `u64::MAX` if there is none. A timer that comes too
    /// early for a later deadline is set again, so that frequent waits with far deadlines do not
    /// fill the queue.
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
    /// A death enters the single view of the memory link.
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

/// An event in the queue.
struct Entry {
    /// The time in the upper half and the sequence number in the lower half: a single comparison
    /// without a branch.
    key: u128,
    event: Event,
}

impl Entry {
    #[inline]
    fn time(&self) -> u64 {
        (self.key >> 64) as u64
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.key == other.key
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    /// Reversed: the standard heap gives its greatest entry first, and the scheduler wants the
    /// earliest.
    #[inline]
    fn cmp(&self, other: &Entry) -> Ordering {
        other.key.cmp(&self.key)
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

/// How an activity ended, unless it was unwound.
pub(super) enum Ending {
    Returned,
    Panicked(String),
}

pub(super) struct World {
    pub(super) id: u64,
    pub(super) link: Link,
    pub(super) cost: Option<Cost>,
    pub(super) regulars: usize,
    pub(super) spares: usize,
    pub(super) seed: u64,
    pub(super) detection: (u64, u64),
    pub(super) segment_limit: u64,
    pub(super) message_credit: u64,
    pub(super) keeps_dead_segments: bool,
    /// The dead in the order in which they entered the view, on the memory link.
    pub(super) death_order: Vec<MemberId>,
    pub(super) domains: Vec<String>,
    pub(super) steps_max: u64,
    pub(super) time_max: u64,
    pub(super) planned: Vec<Action>,

    pub(super) random: Random,
    pub(super) now: u64,
    pub(super) sequence: u64,
    queue: BinaryHeap<Entry>,
    pub(super) members: Vec<Member>,
    actors: Vec<Actor>,
    pub(super) free_actors: Vec<u32>,
    /// The views of all members; see `view_of`.
    pub(super) knowledge: Vec<Rc<Knowledge>>,
    /// For each member the first member of its node, whose view it shares. On the memory link all
    /// members are of a single node.
    pub(super) view_of: Vec<usize>,
    /// For each member whether the network link has further members on its node.
    pub(super) has_mates: Vec<bool>,
    pub(super) requests: Vec<Request>,
    pub(super) free_requests: Vec<u32>,
    pub(super) outstanding: Outstanding,
    pub(super) flights: Vec<Option<Flight>>,
    pub(super) free_flights: Vec<u32>,
    pub(super) channels: Channels,
    /// The activity that runs now; [`NONE`] if none does.
    pub(super) current: u32,
    /// Whether an activity is being unwound by force.
    pub(super) unwinding: bool,
    pub(super) reap: Vec<u32>,
    pub(super) births: Vec<(u32, Box<dyn FnOnce() + Send>)>,
    /// How many members have a running process.
    pub(super) running: usize,
    pub(super) outcome: Option<Outcome>,

    pub(super) steps: u64,
    pub(super) kills: u64,
    pub(super) stops: u64,
    pub(super) digest: u64,
    pub(super) panics: Vec<Panicked>,
    pub(super) trace: Option<Vec<String>>,
}

const NONE: u32 = u32::MAX;

pub(super) fn nanos(duration: Duration) -> u64 {
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
                dead_segment: Segment::default(),
                inbox: Default::default(),
                unreceived: BTreeMap::new(),
                senders: Vec::new(),
                sent: Sent::default(),
                counters: Counters::default(),
                step_faults: Vec::new(),
                next_fault_step: u64::MAX,
                interface_free_at: 0,
            })
            .collect();
        let view_of: Vec<usize> = (0..count)
            .map(|member| match (options.link, options.nodes.get(member)) {
                (Link::Memory, _) => 0,
                (Link::Network, None) => member,
                (Link::Network, node) => {
                    options.nodes.iter().position(|other| Some(other) == node).unwrap_or(member)
                }
            })
            .collect();
        let mut sizes = vec![0; count];
        view_of.iter().for_each(|&node| sizes[node] += 1);
        let has_mates =
            view_of.iter().map(|&node| options.link == Link::Network && sizes[node] > 1).collect();
        let mut world = World {
            id,
            link: options.link,
            cost: options.cost,
            regulars: options.members,
            spares: options.spares,
            seed: options.seed,
            detection: (nanos(*options.detection.start()), nanos(*options.detection.end())),
            segment_limit: options.segment_limit,
            message_credit: options.message_credit,
            keeps_dead_segments: options.keeps_dead_segments && options.link == Link::Memory,
            death_order: Vec::new(),
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
            knowledge: vec![Rc::default(); count],
            view_of,
            has_mates,
            requests: Vec::new(),
            free_requests: Vec::new(),
            outstanding: Outstanding::new(count),
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
        let key = u128::from(time) << 64 | u128::from(self.sequence);
        self.queue.push(Entry { key, event });
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
            let line =
                format!("{:>14}  m{member} {name:<10} {}", Clock(self.now).to_string(), text(self));
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
                overhead
                    + nanos(cost.latency)
                    + call.len.saturating_mul(cost.gap_per_byte_ps) / 1000
            }
            _ if is_remote && (call.is_operation() || call.what == What::Send) => overhead,
            _ => nanos(cost.local).max(1),
        }
    }

    /// How long it takes until a woken activity runs.
    pub(super) fn wake_time(&mut self) -> u64 {
        match self.cost {
            Some(cost) => nanos(cost.overhead),
            None => self.random.delay(),
        }
    }

    pub(super) fn detection_time(&mut self) -> u64 {
        match self.cost {
            Some(_) => self.detection.0,
            None => self.random.magnitude(self.detection.0, self.detection.1),
        }
    }

    // ---- Scheduling.

    /// A scheduling point of the activity that runs now.
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
        // A destructor that runs while its activity is unwound must not suspend: the count of
        // panics belongs to the thread, which all activities share.
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
        if self.queue.peek().is_some_and(|first| first.time() <= time)
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
        let value = self.now
            ^ place
            ^ (call.what as u64) << 32
            ^ call.offset.rotate_left(17)
            ^ call.len << 9;
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

    /// Wakes an activity that waits for a signal, if its slot has not been used again since.
    pub(super) fn signal(&mut self, slot: u32, generation: u32) {
        if self.actors[slot as usize].generation == generation
            && self.actors[slot as usize].state == State::Blocked(Wait::Signal)
        {
            self.wake(slot);
        }
    }

    /// Wakes the activity of a member that waits for this completion; returns whether there was
    /// any.
    pub(super) fn wake_completion(&mut self, member: u32, address: usize) -> bool {
        let waiter = self.members[member as usize].activities.iter().copied().find(|&slot| {
            self.actors[slot as usize].state == State::Blocked(Wait::Completion(address))
        });
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

    /// The next thing for the scheduler to do.
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
            if entry.time() > self.time_max {
                self.outcome = Some(Outcome::TimeLimit);
                return Turn::End;
            }
            self.now = self.now.max(entry.time());
            if let Some(slot) = self.dispatch(entry.time(), entry.event) {
                self.current = slot;
                self.ran(slot);
                return Turn::Resume(slot);
            }
        }
    }

    /// Executes an event; returns the activity to resume, if the event is an activity's turn.
    /// `time` is when it was due: earlier than now if it was held at a stopped member.
    pub(super) fn dispatch(&mut self, time: u64, event: Event) -> Option<u32> {
        let held_at = match event {
            Event::Run { slot, generation } => {
                let actor = &self.actors[slot as usize];
                if actor.generation != generation {
                    return None;
                }
                Some(actor.member)
            }
            // Writes to memory reach a stopped member, too.
            _ if self.link == Link::Memory => None,
            Event::Notice { to, .. } | Event::Notices { to } | Event::Ring { to, .. } => Some(to),
            Event::Deliver { flight } => {
                self.flights[flight as usize].as_ref().map(|flight| flight.to)
            }
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

    /// An activity returned or panicked.
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

    /// The report of the run, with the activities that have not ended.
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
        let stopped =
            self.members.iter().enumerate().filter(|(_, member)| member.runs && member.stopped);
        Report {
            seed: self.seed,
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
    pub(super) fn check_start(&self, member: u32, at: Epoch, target: MemberId) -> Result<()> {
        self.check_self(member)?;
        self.check_member(target)?;
        let now = self.epoch(member);
        if self.knows_dead(member, target.0) {
            return Err(Error::Dead { member: target });
        }
        if at < now {
            return Err(Error::Stale { now });
        }
        Ok(())
    }

    pub(super) fn domain(&self, member: MemberId) -> Result<String> {
        self.check_member(member)?;
        Ok(self.domains.get(member.index()).cloned().unwrap_or_default())
    }

    // ---- Waiting.

    pub(super) fn bell(&self, member: u32) -> Bell {
        Bell(self.members[member as usize].bell)
    }

    /// Blocks the running activity unless the bell has rung, the time is over or the member has
    /// left.
    pub(super) fn park(&mut self, member: u32, seen: Bell, until: Time) -> Option<*const Yielder> {
        let state = &self.members[member as usize];
        if state.bell != seen.0 || self.now >= until.0 || state.life != Life::Living {
            return None;
        }
        let mut until = until.0;
        // The contract allows `park` to return early without a reason. It does so at times, so that
        // no caller relies on the contrary.
        if self.cost.is_none() && self.random.next() & 63 == 0 {
            until = until.min(self.now + self.random.magnitude(100, 1_000_000));
        }
        Some(self.block(Wait::Bell, until))
    }
}
