//! What a scenario's body works with: the job, the seed, and waits that all have a bound.

use crate::random::Random;
use crate::{Scenario, pattern};
use outlast::engine::{Fault, Message, Port};
use outlast::{Epoch, Error, Job, MemberId, MemberSet, View};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a scenario waits for anything. It is far above what any engine needs, so that a machine under load fails
/// no scenario, and below the limit of every scenario, so that the message says what was awaited.
pub const WAIT: Duration = Duration::from_secs(20);

/// How often a wait looks again for something that rings no bell.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Where the part of each segment begins that belongs to the scenario. Before it are the words of [`Run::barrier`],
/// one for each member, and the words of [`Run::tell`].
pub const DATA: u64 = 8192;

/// Where the words of [`Run::tell`] begin, and hence how many members a barrier can have.
const TOLD: u64 = 4096;

/// Whether time passes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Members are processes; time passes while they compute.
    Real,
    /// Members are coroutines; time passes only inside calls of the engine.
    Virtual,
}

/// One member's part in one run of a scenario. It is the [`Job`], with what scenarios need besides.
#[derive(Clone)]
pub struct Run {
    job: Job,
    scenario: &'static Scenario,
    seed: u64,
    clock: Clock,
    barriers: Arc<AtomicU64>,
}

impl Deref for Run {
    type Target = Job;

    fn deref(&self) -> &Job {
        &self.job
    }
}

impl Run {
    /// This member's part in the run of `scenario` that `seed` stands for.
    pub fn new(job: Job, scenario: &'static Scenario, seed: u64, clock: Clock) -> Run {
        Run { job, scenario, seed, clock, barriers: Arc::new(AtomicU64::new(0)) }
    }

    /// The job alone, for an activity.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// This member's number.
    pub fn id(&self) -> u64 {
        u64::from(self.me().0)
    }

    /// All members, the dead and the spares included.
    pub fn all(&self) -> impl Iterator<Item = MemberId> + use<> {
        (0..self.members() as u32).map(MemberId)
    }

    /// All members but this one.
    pub fn others(&self) -> impl Iterator<Item = MemberId> + use<> {
        let me = self.me();
        self.all().filter(move |&member| member != me)
    }

    /// The members that this member's view does not have among the dead.
    pub fn living(&self) -> Vec<MemberId> {
        self.view().living().collect()
    }

    /// The living members but this one.
    pub fn living_others(&self) -> Vec<MemberId> {
        self.view().living().filter(|&member| member != self.me()).collect()
    }

    /// How often to do something: the simulator has thousands of seeds to vary a short run, real processes do not.
    pub fn count(&self, real: u64, simulated: u64) -> u64 {
        match self.clock {
            Clock::Real => real,
            Clock::Virtual => simulated,
        }
    }

    /// Numbers that are the same at all members.
    pub fn shared_random(&self, parts: &[u64]) -> Random {
        Random::of(&[&[self.seed], parts].concat())
    }

    /// Numbers of this member alone.
    pub fn own_random(&self, part: u64) -> Random {
        self.shared_random(&[part, self.id(), 0x6d65])
    }

    // ---- Waiting.

    /// Waits until `condition` holds, looking again at short intervals: for what rings no bell.
    pub fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let until = self.now().after(WAIT);
        loop {
            let bell = self.bell();
            if condition() {
                return;
            }
            let now = self.now();
            assert!(now < until, "{self:?}: waited {WAIT:?} in vain for {what}");
            self.park(bell, until.min(now.after(LOOK_AGAIN)));
        }
    }

    /// Waits until `condition` holds, looking again only when the bell has rung: a wakeup that is lost is a failure.
    pub fn until_rung(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let until = self.now().after(WAIT);
        loop {
            let bell = self.bell();
            if condition() {
                return;
            }
            if self.now() >= until {
                panic!("{self:?}: waited {WAIT:?} in vain for {what}");
            }
            self.park(bell, until);
            if self.now() >= until && condition() {
                panic!("{self:?}: {what} came, but no bell rang for it");
            }
        }
    }

    /// Whether `condition` comes to hold within `duration`.
    pub fn within(&self, duration: Duration, mut condition: impl FnMut() -> bool) -> bool {
        let until = self.now().after(duration);
        loop {
            let bell = self.bell();
            if condition() {
                return true;
            }
            let now = self.now();
            if now >= until {
                return false;
            }
            self.park(bell, until.min(now.after(LOOK_AGAIN)));
        }
    }

    /// Lets time pass, whatever rings.
    pub fn pause(&self, duration: Duration) {
        self.sleep(duration);
    }

    /// Lets an arbitrary time below `below` pass.
    pub fn pause_below(&self, random: &mut Random, below: Duration) {
        self.pause(Duration::from_nanos(random.below(below.as_nanos() as u64)));
    }

    /// Computes without any call of the engine until `condition` holds. The simulator has no such thing as computing,
    /// so there the activity parks.
    pub fn compute_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        match self.clock {
            Clock::Virtual => self.until(what, condition),
            Clock::Real => {
                let began = Instant::now();
                while !condition() {
                    assert!(began.elapsed() < WAIT, "computed {WAIT:?} in vain for {what}");
                    std::thread::yield_now();
                }
            }
        }
    }

    /// Computes for a while without any call of the engine.
    pub fn compute_for(&self, duration: Duration) {
        match self.clock {
            Clock::Virtual => self.pause(duration),
            Clock::Real => {
                let began = Instant::now();
                while began.elapsed() < duration {
                    std::hint::spin_loop();
                }
            }
        }
    }

    // ---- Beginning, meeting, ending.

    /// Grows this member's segment to `len` bytes of data and waits until all others have done the same.
    pub fn begin(&self, len: u64) {
        self.grow(DATA + len).expect("the segment of a scenario is small");
        for other in self.others() {
            self.until("the segments of all members", || match self.segment_len(other) {
                Ok(found) => found >= DATA + len,
                Err(error) => panic!("segment_len({other}) before any fault: {error}"),
            });
        }
        self.barrier("the beginning");
    }

    /// Waits until all members that live have come to the same barrier. Everyone counts the barriers for itself.
    pub fn barrier(&self, what: &str) {
        let number = self.barriers.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(8 * self.members() as u64 <= TOLD, "too many members for the words of a barrier");
        for target in self.living() {
            match self.put(Epoch::ANY, target, 8 * self.id(), &number.to_le_bytes()) {
                Ok(()) => self.ring_or_dead(target),
                Err(Error::Dead { .. }) => {}
                Err(error) => {
                    panic!("{self:?}: barrier {number} ({what}): put to {target}: {error}")
                }
            }
        }
        let mut words = vec![0; 8 * self.members()];
        let mut missing = None;
        let until = self.now().after(WAIT);
        loop {
            let bell = self.bell();
            self.get(Epoch::ANY, self.me(), 0, &mut words).expect("reading one's own segment");
            let arrived = |member: &MemberId| {
                let word = &words[8 * member.index()..][..8];
                u64::from_le_bytes(word.try_into().expect("8 bytes")) >= number
            };
            let absent = self.living().into_iter().find(|member| !arrived(member));
            match (absent, missing) {
                (None, None) => return,
                (None, Some(member)) => {
                    panic!("{self:?}: no bell rang for {member} at barrier {number} ({what})")
                }
                (Some(member), Some(_)) => {
                    panic!(
                        "{self:?}: waited {WAIT:?} in vain for {member} at barrier {number} ({what})"
                    )
                }
                (Some(member), None) if self.now() >= until => missing = Some(member),
                (Some(_), None) => self.park(bell, until),
            }
        }
    }

    /// Writes `value` to word `index` that `target` reads with [`Run::told`], and rings. Nothing if it is dead.
    pub fn tell(&self, target: MemberId, index: u64, value: u64) {
        self.tell_at(Epoch::ANY, target, index, value);
    }

    /// As [`Run::tell`], under a view.
    pub fn tell_at(&self, at: Epoch, target: MemberId, index: u64, value: u64) {
        match self.put(at, target, TOLD + 8 * index, &value.to_le_bytes()) {
            Ok(()) => self.ring_or_dead(target),
            Err(Error::Dead { .. }) => {}
            Err(error) => panic!("{self:?}: telling {target}: {error}"),
        }
    }

    /// What was last told to this member under `index`; 0 at first.
    pub fn told(&self, index: u64) -> u64 {
        self.load(Epoch::ANY, self.me(), TOLD + 8 * index).expect("reading one's own segment")
    }

    /// The offset of the word that [`Run::tell`] writes.
    pub fn told_offset(&self, index: u64) -> u64 {
        TOLD + 8 * index
    }

    fn ring_or_dead(&self, target: MemberId) {
        match self.ring(target) {
            Ok(()) | Err(Error::Dead { .. }) => {}
            Err(error) => panic!("{self:?}: ringing {target}: {error}"),
        }
    }

    /// Waits until all members that live have come to the end, and leaves. Nothing may be checked after it.
    pub fn finish(&self) {
        self.barrier("the end");
        self.leave().expect("leaving once");
    }

    // ---- Faults.

    /// Injects a fault, which must work.
    pub fn fault(&self, fault: Fault) {
        self.inject(fault).unwrap_or_else(|error| panic!("{self:?}: injecting {fault:?}: {error}"));
    }

    /// Kills another member, or finds it dead.
    pub fn kill(&self, member: MemberId) {
        match self.inject(Fault::Kill(member)) {
            Ok(()) | Err(Error::Dead { .. }) => {}
            Err(error) => panic!("{self:?}: killing {member}: {error}"),
        }
    }

    /// Ends this member as a death.
    pub fn die(&self) -> ! {
        let result = self.inject(Fault::Kill(self.me()));
        panic!("{self:?}: outlived its own death: {result:?}")
    }

    /// Ends this member as if all were well, but without leaving. Where members are not processes this returns, and
    /// the body must return too.
    pub fn desert(&self) {
        if self.clock == Clock::Real {
            crate::member::report_end(self);
            std::process::exit(0);
        }
    }

    /// Waits until this member's view has all of `members` among the dead. The change of the view must ring.
    pub fn await_dead(&self, members: &[MemberId]) {
        for &member in members {
            self.until_rung(&format!("the notice of the death of {member}"), || {
                self.view().dead.contains(member)
            });
        }
        self.check_view();
    }

    // ---- Checks.

    /// Checks what holds for every view, and that the epoch of the member is at least as new. Returns the view.
    pub fn check_view(&self) -> View {
        let view = self.view();
        let (regulars, spares) = (self.scenario.members, self.scenario.spares);
        assert_eq!(
            view.epoch,
            Epoch(view.dead.len() as u64),
            "{self:?}: the epoch is the number of the dead"
        );
        assert_eq!(
            view,
            View::new(regulars, spares, view.dead.clone(), view.left.clone()),
            "{self:?}: the view follows from the dead alone"
        );
        assert!(view.left.is_subset(&view.dead), "{self:?}: who left counts as dead: {view:?}");
        assert!(
            view.is_living(self.me()) || self.has_ended(),
            "{self:?}: a member in its own dead: {view:?}"
        );
        assert!(self.epoch() >= view.epoch, "{self:?}: the epoch is older than the view: {view:?}");
        view
    }

    /// Checks that exactly these are dead in this member's view.
    pub fn check_dead(&self, expected: &[MemberId]) {
        let expected: MemberSet = expected.iter().copied().collect();
        assert_eq!(self.check_view().dead, expected, "{self:?}: who is dead");
    }

    /// Checks that the living members go on with everything: all pairs write, count and send. All living members
    /// call it, at the same place. It uses the first 64 bytes of data per member, and the port [`Port::Rma`].
    pub fn check_all_goes_on(&self, round: u64) {
        self.barrier("going on");
        let generation = 1 + (round % 60_000) as u16;
        let living = self.living();
        for &target in &living {
            let at = DATA + 64 * self.id();
            self.put(Epoch::ANY, target, at, &pattern::range(at, 40, generation))
                .expect("put to a living member");
            self.fetch_add(Epoch::ANY, target, at + 40, 1).expect("fetch_add at a living member");
        }
        self.barrier("the puts of those that go on");
        let check = |target: MemberId, writer: MemberId| {
            let at = DATA + 64 * u64::from(writer.0);
            let mut bytes = vec![0; 40];
            self.get(Epoch::ANY, target, at, &mut bytes).expect("get from a living member");
            assert_eq!(
                bytes,
                pattern::range(at, 40, generation),
                "{self:?}: what {writer} wrote at {target}"
            );
        };
        for &other in &living {
            check(other, self.me());
            check(self.me(), other);
        }
        let mut inbox = Inbox::new(self, Port::Rma, round);
        for &target in &living {
            inbox.send(target, 24);
        }
        inbox.await_from(&living, 1);
        self.barrier("having gone on");
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in `{}`, seed {}", self.me(), self.scenario.name, self.seed)
    }
}

/// Letters whose content follows from seed, sender, receiver, port and number, so that the receiver knows each of
/// them beforehand: a letter that is lost, doubled, out of order or changed is a letter with the wrong content.
pub struct Inbox<'a> {
    run: &'a Run,
    port: Port,
    round: u64,
    sent: BTreeMap<MemberId, u64>,
    received: BTreeMap<MemberId, u64>,
}

impl<'a> Inbox<'a> {
    /// Both ends of a round of letters; rounds on one port must not overlap.
    pub fn new(run: &'a Run, port: Port, round: u64) -> Inbox<'a> {
        Inbox { run, port, round, sent: BTreeMap::new(), received: BTreeMap::new() }
    }

    fn letter(&self, from: MemberId, to: MemberId, number: u64, len: usize) -> Vec<u8> {
        let parts =
            [self.round, u64::from(from.0), u64::from(to.0), self.port as u64, number, len as u64];
        self.run.shared_random(&parts).bytes(len)
    }

    /// Sends the next letter, which must work.
    pub fn send(&mut self, to: MemberId, len: usize) {
        self.try_send(to, len)
            .unwrap_or_else(|error| panic!("{:?}: sending to {to}: {error}", self.run));
    }

    /// Sends the next letter; it counts as sent only if that worked.
    pub fn try_send(&mut self, to: MemberId, len: usize) -> outlast::engine::Result<()> {
        let number = self.sent.get(&to).copied().unwrap_or(0);
        let letter = self.letter(self.run.me(), to, number, len);
        self.run.send(to, self.port, &letter)?;
        self.sent.insert(to, number + 1);
        Ok(())
    }

    /// Takes and checks all letters that are there.
    pub fn drain(&mut self) {
        while let Some(message) = self.run.receive(self.port) {
            self.accept(message);
        }
    }

    /// Checks a letter: it is the next one of its sender.
    pub fn accept(&mut self, message: Message) {
        let Message { from, epoch, bytes } = message;
        assert!(from.index() < self.run.members(), "a letter from {from}, who does not exist");
        assert!(
            self.run.epoch() >= epoch,
            "{:?}: a letter of {from} was sent at {epoch}, and its receiver is at {}",
            self.run,
            self.run.epoch()
        );
        let number = self.received.get(&from).copied().unwrap_or(0);
        let expected = self.letter(from, self.run.me(), number, bytes.len());
        assert!(
            bytes == expected,
            "{:?}: letter {number} of {from} on {:?}, {} bytes, is not the one that was sent",
            self.run,
            self.port,
            bytes.len()
        );
        self.received.insert(from, number + 1);
    }

    /// How many letters of `from` have come.
    pub fn count_from(&self, from: MemberId) -> u64 {
        self.received.get(&from).copied().unwrap_or(0)
    }

    /// How many letters were sent to `to`.
    pub fn count_to(&self, to: MemberId) -> u64 {
        self.sent.get(&to).copied().unwrap_or(0)
    }

    /// Waits until `count` letters of each of `senders` have come.
    pub fn await_from(&mut self, senders: &[MemberId], count: u64) {
        let run = self.run;
        for &from in senders {
            let what = format!("{count} letters of {from} on {:?}", self.port);
            run.until_rung(&what, || {
                self.drain();
                self.count_from(from) >= count
            });
            assert_eq!(self.count_from(from), count, "{run:?}: letters of {from}");
        }
    }
}
