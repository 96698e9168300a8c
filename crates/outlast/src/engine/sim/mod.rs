//! The sim engine: the members of a job as coroutines in a single thread, under a seeded simulator.
//!
//! [`crate::sim`] is its public face and says what is modelled, and in what the simulator is weaker
//! than the other engines.
//!
//! # How it is built
//! `world` has the queue of events, the scheduler and the activities; `lifecycle` has stops, deaths
//! and views; `memory` has operations on mapped memory, `segment` the memories themselves;
//! `network` has messages and requests; `coroutine` has the stacks and the way from a call into the
//! world, with nearly all unsafe code.
//!
//! All choices come from a single generator, and every engine call is a step of the world. The
//! order of draws and of steps is what a seed means: changing either changes what all recorded
//! seeds replay.

mod coroutine;
mod lifecycle;
mod memory;
mod network;
mod options;
mod random;
mod report;
mod segment;
mod world;

pub use options::{Action, Cost, Link, Options, PlannedFault, When};
pub use random::Random;
pub use report::{Counters, Hung, Outcome, Panicked, Report};

use super::{
    Activity, Bell, Completion, CompoundStep, Done, Engine, Epoch, Error, Fault, MEMBERS_MAX,
    MemberId, Message, Operation, PUBLISH_LEN_MAX, Pending, Port, Result, TRY_SEND_LEN_MAX, Time,
    View, check_compound, deadline, run_compound,
};
use coroutine::{Stage, suspend, with_world};
use memory::{MappedAccess, Progress};
use network::{Consumer, OwnStep, Wanted};
use report::{Call, What};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use world::{Kind, Next, Wait, World, Yielder};

/// What the layer above makes of a simulated member and gives to its body.
pub(crate) trait Host: Clone + 'static {
    /// Takes a member over.
    fn host(sim: Sim) -> Self;

    /// The background activity of the member, until the member ends.
    fn run_background(&self);

    /// Lets go of the services that run in the background. They hold on to the host, and the host
    /// to them.
    fn drop_services(&self);
}

/// Runs a job in this thread; see [`crate::sim::run`].
pub(crate) fn run<H: Host>(options: &Options, body: impl Fn(H) + 'static) -> Report {
    let members = options.members + options.spares;
    assert!(
        options.members >= 1 && members <= MEMBERS_MAX,
        "a job has 1 to {MEMBERS_MAX} members, not {} and {} spares",
        options.members,
        options.spares
    );
    for fault in &options.faults {
        let (Action::Kill(victim)
        | Action::Stop(victim)
        | Action::Resume(victim)
        | Action::StopFor(victim, _)) = fault.action;
        let trigger = match fault.when {
            When::AtStep(member, _) => member,
            When::At(_) => victim,
        };
        assert!(
            victim.index() < members && trigger.index() < members,
            "{fault:?} names a member that the job of {members} does not have"
        );
    }

    // Only tells worlds apart, so relaxed: no decision depends on it.
    static WORLDS: AtomicU64 = AtomicU64::new(1);
    let id = WORLDS.fetch_add(1, Ordering::Relaxed);
    let mut stage = Stage::new(World::new(id, options), options.stack_len);
    let body = Rc::new(body);
    let time_limit = options.time_limit;
    let jobs: Vec<H> = (0..members as u32)
        .map(|member| H::host(Sim { world: id, member, members: members as u32, time_limit }))
        .collect();
    for (member, job) in (0..).zip(&jobs) {
        let main = stage.world().make_actor(member, Kind::Main, "main", None);
        let (body, for_main) = (body.clone(), job.clone());
        stage.make(main, move || body(for_main));
        let background = stage.world().make_actor(member, Kind::Background, "background", None);
        let for_background = Services(job.clone());
        stage.make(background, move || for_background.0.run_background());
    }
    stage.run();
    let report = stage.world().report();
    stage.clear();
    // Drops services that were added after their member's background had ended.
    jobs.iter().for_each(H::drop_services);
    report
}

/// Lets go of a member's services when its background activity ends, however that happens.
struct Services<H: Host>(H);

impl<H: Host> Drop for Services<H> {
    fn drop(&mut self) {
        self.0.drop_services();
    }
}

/// A member on the sim engine.
///
/// It may be moved to any thread, but works only in the thread that runs its world, inside its own
/// member's activities, and as long as that world runs; elsewhere its calls return an error.
pub(crate) struct Sim {
    world: u64,
    member: u32,
    members: u32,
    time_limit: Duration,
}

impl Sim {
    /// Calls `inside` with the world; [`Error::Ended`] if there is none.
    #[inline]
    fn world<R>(&self, inside: impl FnOnce(&mut World) -> R) -> Result<R> {
        with_world(self.world, inside).ok_or(Error::Ended)
    }

    /// A scheduling point: others may run, and this member may die here.
    #[inline]
    fn step(&self, call: Call) -> Result<()> {
        match self.world(|world| world.step(self.member, call))? {
            Next::Go => Ok(()),
            Next::Suspend(yielder) => {
                self.suspend(yielder);
                Ok(())
            }
            Next::Refuse(error) => Err(error),
        }
    }

    #[inline]
    fn suspend(&self, yielder: *const Yielder) {
        // SAFETY: the world gave the yielder of its current activity to a call of that activity
        // just now, and is not borrowed: `world` has returned.
        unsafe { suspend(yielder) }
    }

    /// A number for the activity that runs now.
    pub(crate) fn activity(&self) -> u64 {
        let current = self.world(|world| world.current());
        current.map_or(u64::MAX, |(slot, generation)| u64::from(slot) << 32 | u64::from(generation))
    }

    /// Whether this member maps the memory of `target`: an operation acts on it without a request.
    fn is_target_mapped(&self, target: MemberId) -> bool {
        target.0 == self.member
            || with_world(self.world, |world| world.are_mates(self.member, target.0)) == Some(true)
    }

    /// Executes an operation on memory that this member maps.
    #[inline]
    fn act(
        &self,
        at: Epoch,
        target: MemberId,
        offset: u64,
        mut direct: MappedAccess<'_>,
    ) -> Result<u64> {
        let call = direct.call(target, offset);
        let mut progress = Progress::Fresh;
        loop {
            self.step(call)?;
            let part = self.world(|world| {
                world.act(self.member, at, target, offset, &mut direct, &mut progress)
            })??;
            if let Some(word) = part {
                return Ok(word);
            }
        }
    }

    /// Sends a request and waits for its result.
    fn ask(&self, call: Call, at: Epoch, target: MemberId, wanted: Wanted) -> Result<Done> {
        self.step(call)?;
        deadline::check_late(target)?;
        let (request, until) = self.world(|world| {
            let (slot, generation) = world.current();
            let consumer = Consumer::Activity(slot, generation);
            let until = deadline::until_answer(Time(world.now), self.time_limit, target).0;
            world.request(self.member, at, target, wanted, consumer).map(|request| (request, until))
        })??;
        loop {
            let wait = self.world(|world| {
                if let Some(result) = world.take_result(request) {
                    return Ok(result);
                }
                if world.has_ended(self.member) {
                    // Another activity of this member has left the job meanwhile, which abandoned
                    // the request.
                    return Ok(Err(Error::Ended));
                }
                if world.now >= until {
                    world.abandon(request);
                    return Ok(Err(deadline::timeout(target, self.time_limit)));
                }
                Err(world.block(Wait::Signal, until))
            })?;
            match wait {
                Ok(result) => return result,
                Err(yielder) => self.suspend(yielder),
            }
        }
    }

    /// Sends a request, for whose result the caller waits later.
    fn request(&self, at: Epoch, call: Call, wanted: Wanted) -> Pending {
        let target = MemberId(call.target);
        let started = self.step(call).and_then(|()| {
            let (pending, completer) = Pending::later(target);
            self.world(|world| {
                let consumer = Consumer::Completer(completer);
                world.request(self.member, at, target, wanted, consumer)
            })??;
            Ok(pending)
        });
        started.unwrap_or_else(|error| Pending::ready(target, Err(error)))
    }

    /// A get into a buffer that it makes.
    fn start_get(&self, at: Epoch, target: MemberId, offset: u64, len: usize) -> Result<Done> {
        let operation = Operation::Get { offset, len };
        let fits =
            self.world(|world| operation.check(target, world.reachable_len(target)).is_ok())?;
        if !fits {
            // Refused before a buffer is made, since the length may be absurd.
            self.step(call_of(target, &operation))?;
            self.world(|world| {
                world.check_start(self.member, at, target)?;
                operation.check(target, world.reachable_len(target))
            })??;
        }
        let mut buffer = vec![0; len];
        self.act(at, target, offset, MappedAccess::Get(&mut buffer))?;
        Ok(Done::Get(buffer))
    }

    /// An operation whose result is a word.
    fn word(&self, at: Epoch, target: MemberId, operation: Operation<'_>) -> Result<u64> {
        let (offset, direct) = direct_word(operation);
        if self.is_target_mapped(target) {
            return self.act(at, target, offset, direct);
        }
        self.ask(direct.call(target, offset), at, target, Wanted::new(operation)).map(Done::word)
    }
}

/// The direct form of an operation on a word.
fn direct_word(operation: Operation<'_>) -> (u64, MappedAccess<'static>) {
    match operation {
        Operation::Load { offset } => (offset, MappedAccess::Load),
        Operation::CompareAndSwap { offset, expected, new } => {
            (offset, MappedAccess::CompareAndSwap { expected, new })
        }
        Operation::FetchAdd { offset, delta } => (offset, MappedAccess::FetchAdd(delta)),
        Operation::Put { .. } | Operation::Get { .. } => unreachable!("not an operation on a word"),
    }
}

/// The call of an operation, for the trace.
fn call_of(target: MemberId, operation: &Operation<'_>) -> Call {
    let what = match operation {
        Operation::Put { .. } => What::Put,
        Operation::Get { .. } => What::Get,
        Operation::Load { .. } => What::Load,
        Operation::CompareAndSwap { .. } => What::CompareAndSwap,
        Operation::FetchAdd { .. } => What::FetchAdd,
    };
    let (offset, len) = operation.range();
    Call::range(what, target, offset, len as u64)
}

impl super::sealed::Sealed for Sim {}

impl Engine for Sim {
    fn me(&self) -> MemberId {
        MemberId(self.member)
    }

    fn members(&self) -> usize {
        self.members as usize
    }

    fn domain(&self, member: MemberId) -> Result<String> {
        self.world(|world| world.domain(member))?
    }

    fn epoch(&self) -> Epoch {
        let _ = self.step(Call::plain(What::Epoch));
        self.world(|world| world.epoch(self.member)).unwrap_or(Epoch(0))
    }

    fn view(&self) -> View {
        let _ = self.step(Call::plain(What::View));
        self.world(|world| world.view(self.member)).unwrap_or_else(|_| {
            View::new(self.members as usize, 0, Default::default(), Default::default())
        })
    }

    fn fence(&self, member: MemberId, until: Time) -> Result<()> {
        self.step(Call::to(What::Fence, member))?;
        let begin = self.world(|world| {
            world.check_self(self.member)?;
            world.check_member(member)?;
            world.fence(member.0);
            Ok(Time(world.now))
        })??;
        if member.0 == self.member {
            // This suspends for ever, since the member is dead.
            self.step(Call::to(What::Fence, member))?;
        }
        loop {
            let wait = self.world(|world| {
                if world.knows_dead(self.member, member.0) {
                    return Ok(Ok(()));
                }
                if world.has_ended(self.member) {
                    return Ok(Err(Error::Ended));
                }
                if world.now >= until.0 {
                    return Ok(Err(Error::Timeout { member, limit: until.since(begin) }));
                }
                Err(world.block(Wait::Bell, until.0))
            })?;
            match wait {
                Ok(result) => return result,
                Err(yielder) => self.suspend(yielder),
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.step(Call::plain(What::HasEnded)).is_err()
            || self.world(|world| world.has_ended(self.member)).unwrap_or(true)
    }

    fn leave(&self) -> Result<()> {
        self.step(Call::plain(What::Leave))?;
        self.world(|world| {
            world.check_self(self.member)?;
            world.leave(self.member);
            Ok(())
        })?
    }

    fn segment_len(&self, target: MemberId) -> Result<u64> {
        let call = Call::to(What::SegmentLen, target);
        if self.is_target_mapped(target) {
            self.step(call)?;
            return self.world(|world| world.segment_len(self.member, target))?;
        }
        self.ask(call, Epoch::ANY, target, Wanted::SegmentLen).map(Done::word)
    }

    fn grow(&self, len: u64) -> Result<()> {
        self.step(Call { len, ..Call::plain(What::Grow) })?;
        self.world(|world| world.grow(self.member, len))?
    }

    fn segment_limit(&self) -> Result<u64> {
        self.world(|world| world.segment_limit)
    }

    fn death_order(&self) -> Option<Vec<MemberId>> {
        let _ = self.step(Call::plain(What::View));
        self.world(|world| world.keeps_dead_segments.then(|| world.death_order.clone())).ok()?
    }

    fn read_dead_segment(&self, dead: MemberId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.step(Call::range(What::Get, dead, offset, buffer.len() as u64))?;
        self.world(|world| world.read_dead_segment(self.member, dead, offset, buffer))?
    }

    fn discard_dead_segment(&self, dead: MemberId) -> Result<()> {
        self.step(Call::to(What::Grow, dead))?;
        self.world(|world| {
            world.check_self(self.member)?;
            world.check_member(dead)?;
            world.members[dead.index()].dead_segment.clear();
            Ok(())
        })?
    }

    fn start(&self, at: Epoch, target: MemberId, operation: Operation<'_>) -> Pending {
        if self.is_target_mapped(target) {
            let result = match operation {
                Operation::Put { offset, data } => {
                    self.act(at, target, offset, MappedAccess::Put(data)).map(|_| Done::Put)
                }
                Operation::Get { offset, len } => self.start_get(at, target, offset, len),
                word => {
                    let (offset, direct) = direct_word(word);
                    self.act(at, target, offset, direct).map(Done::Word)
                }
            };
            return Pending::ready(target, result);
        }
        self.request(at, call_of(target, &operation), Wanted::new(operation))
    }

    fn start_compound(&self, at: Epoch, target: MemberId, steps: &[CompoundStep<'_>]) -> Pending {
        if self.is_target_mapped(target) || check_compound(steps).is_err() {
            return Pending::ready(target, run_compound(self, at, target, steps));
        }
        let steps = steps.iter().map(OwnStep::new).collect();
        self.request(
            at,
            Call::to(What::Compound, target),
            Wanted::Compound { steps, done: 0, word: 0 },
        )
    }

    fn poll(&self, pending: &mut Pending) -> Option<Result<Done>> {
        if let Completion::Now(result) = &mut pending.completion {
            return result.take();
        }
        let ended = self.step(Call::to(What::Poll, pending.target)).is_err();
        pending.take().or_else(|| (ended || self.has_left()).then_some(Err(Error::Ended)))
    }

    fn wait_answer(&self, pending: &mut Pending) -> Result<Done> {
        let target = pending.target;
        let address = match &mut pending.completion {
            Completion::Now(result) => {
                return result.take().unwrap_or(Err(Error::Unsupported {
                    what: "waiting for an operation whose result was taken",
                }));
            }
            Completion::Later(slot) => Arc::as_ptr(slot) as usize,
        };
        self.step(Call::to(What::Wait, target))?;
        let mut until = None;
        loop {
            if let Some(result) = pending.take() {
                return result;
            }
            let wait = self.world(|world| {
                if world.has_ended(self.member) {
                    return Err(Error::Ended);
                }
                let until = *until.get_or_insert_with(|| {
                    deadline::until_answer(Time(world.now), self.time_limit, target).0
                });
                if world.now >= until {
                    return Err(deadline::timeout(target, self.time_limit));
                }
                Ok(world.block(Wait::Completion(address), until))
            })?;
            self.suspend(wait?);
        }
    }

    fn put(&self, at: Epoch, target: MemberId, offset: u64, data: &[u8]) -> Result<()> {
        if self.is_target_mapped(target) {
            return self.act(at, target, offset, MappedAccess::Put(data)).map(|_| ());
        }
        let operation = Operation::Put { offset, data };
        self.ask(call_of(target, &operation), at, target, Wanted::new(operation)).map(|_| ())
    }

    fn get(&self, at: Epoch, target: MemberId, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if self.is_target_mapped(target) {
            return self.act(at, target, offset, MappedAccess::Get(buffer)).map(|_| ());
        }
        let operation = Operation::Get { offset, len: buffer.len() };
        match self.ask(call_of(target, &operation), at, target, Wanted::new(operation))? {
            Done::Get(bytes) => buffer.copy_from_slice(&bytes),
            other => unreachable!("a get completed as {other:?}"),
        }
        Ok(())
    }

    fn load(&self, at: Epoch, target: MemberId, offset: u64) -> Result<u64> {
        self.word(at, target, Operation::Load { offset })
    }

    fn compare_and_swap(
        &self,
        at: Epoch,
        target: MemberId,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64> {
        self.word(at, target, Operation::CompareAndSwap { offset, expected, new })
    }

    fn fetch_add(&self, at: Epoch, target: MemberId, offset: u64, delta: u64) -> Result<u64> {
        self.word(at, target, Operation::FetchAdd { offset, delta })
    }

    fn is_mapped(&self) -> bool {
        with_world(self.world, |world| world.link == Link::Memory) == Some(true)
    }

    fn is_member_mapped(&self, member: MemberId) -> bool {
        self.is_target_mapped(member)
    }

    fn server_of_dead(&self) -> Option<MemberId> {
        with_world(self.world, |world| world.server_of_dead(self.member)).flatten()
    }

    fn send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<()> {
        self.step(Call::range(What::Send, to, 0, bytes.len() as u64))?;
        let mut until = None;
        loop {
            let wait = self.world(|world| {
                world.check_send(self.member, to, bytes.len())?;
                if !world.is_full(self.member, to.0, port, bytes.len()) {
                    world.send(self.member, to.0, port, bytes);
                    return Ok(None);
                }
                let until = *until.get_or_insert_with(|| {
                    deadline::until_answer(Time(world.now), self.time_limit, to).0
                });
                if world.now >= until {
                    return Err(deadline::timeout(to, self.time_limit));
                }
                Ok(Some(world.wait_for_room(to.0, until)))
            })??;
            match wait {
                None => return Ok(()),
                Some(yielder) => self.suspend(yielder),
            }
        }
    }

    fn can_publish(&self) -> bool {
        with_world(self.world, |world| world.link == Link::Memory) == Some(true)
    }

    fn try_publish(&self, to: &[MemberId], port: Port, bytes: &[u8]) -> Result<bool> {
        if !self.can_publish() {
            return Err(Error::Unsupported { what: "publishing messages on the network link" });
        }
        if bytes.len() > PUBLISH_LEN_MAX {
            return Err(Error::MessageTooLong { len: bytes.len() });
        }
        self.step(Call::range(What::Send, self.me(), 0, bytes.len() as u64))?;
        self.world(|world| {
            let mut living = Vec::new();
            for &member in to {
                match world.check_send(self.member, member, bytes.len()) {
                    Ok(()) => living.push(member.0),
                    Err(Error::Dead { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            let is_full = |&member: &u32| world.is_full(self.member, member, port, bytes.len());
            if living.iter().any(is_full) {
                return Ok(false);
            }
            living.iter().for_each(|&member| world.publish(self.member, member, port, bytes));
            Ok(true)
        })?
    }

    fn try_send(&self, to: MemberId, port: Port, bytes: &[u8]) -> Result<bool> {
        if bytes.len() > TRY_SEND_LEN_MAX {
            return Err(Error::MessageTooLong { len: bytes.len() });
        }
        self.step(Call::range(What::Send, to, 0, bytes.len() as u64))?;
        self.world(|world| {
            world.check_send(self.member, to, bytes.len())?;
            let has_room = !world.is_full(self.member, to.0, port, bytes.len());
            if has_room {
                world.send(self.member, to.0, port, bytes);
            }
            Ok(has_room)
        })?
    }

    fn receive(&self, port: Port) -> Option<Message> {
        self.step(Call::plain(What::Receive)).ok()?;
        self.world(|world| world.receive(self.member, port)).ok()?
    }

    fn now(&self) -> Time {
        let _ = self.step(Call::plain(What::Now));
        self.world(|world| Time(world.now)).unwrap_or(Time::NEVER)
    }

    fn time_limit(&self) -> Duration {
        self.time_limit
    }

    fn bell(&self) -> Bell {
        let _ = self.step(Call::plain(What::Bell));
        self.world(|world| world.bell(self.member)).unwrap_or(Bell(0))
    }

    fn park(&self, seen: Bell, until: Time) {
        if self.step(Call { offset: until.0, ..Call::plain(What::Park) }).is_err() {
            return;
        }
        if let Ok(Some(yielder)) = self.world(|world| world.park(self.member, seen, until)) {
            self.suspend(yielder);
        }
    }

    fn ring(&self, member: MemberId) -> Result<()> {
        self.step(Call::to(What::Ring, member))?;
        self.world(|world| {
            world.check_self(self.member)?;
            world.check_member(member)?;
            world.send_ring(self.member, member.0);
            Ok(())
        })?
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> Result<Activity> {
        self.step(Call::plain(What::Spawn))?;
        self.world(|world| {
            world.check_self(self.member)?;
            let activity = Activity::new();
            let slot = world.make_actor(self.member, Kind::Further, name, Some(activity.clone()));
            Ok((activity, slot))
        })?
        .and_then(|(activity, slot)| {
            self.world(|world| world.births.push((slot, body)))?;
            Ok(activity)
        })
    }

    fn inject(&self, fault: Fault) -> Result<()> {
        self.step(Call::plain(What::Inject))?;
        self.world(|world| {
            world.check_self(self.member)?;
            world.inject(self.member, fault)
        })??;
        if let Fault::Kill(member) | Fault::Stop(member) = fault
            && member.0 == self.member
        {
            // A further step, at which this member dies or is stopped.
            self.step(Call::plain(What::Inject))?;
        }
        Ok(())
    }
}

impl Sim {
    /// Whether this member has left the job or its world is over.
    fn has_left(&self) -> bool {
        self.world(|world| world.has_ended(self.member)).unwrap_or(true)
    }
}
