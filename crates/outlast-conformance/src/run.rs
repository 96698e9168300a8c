//! The tools of a scenario's body: the job, the seed, waits with a bound, faults and checks.

use crate::random::Random;
use crate::{Scenario, pattern};
use outlast::engine::{Fault, Message, Port};
use outlast::{Epoch, Error, Job, MemberId, MemberSet, View};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest wait of a scenario. It is far longer than any engine needs, so that no scenario
/// fails on a machine under load, and shorter than the limit of every scenario, so that the message
/// says what was awaited.
pub const WAIT: Duration = Duration::from_secs(20);

/// The time between two checks of a condition that rings no bell.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The offset in each segment at which the data of the scenario begins. Before it are the words of
/// [`Run::barrier`], a word for each member, and the words of [`Run::tell`].
pub const DATA: u64 = 8192;

/// The offset of the words of [`Run::tell`], which limits the number of members of a barrier.
const TOLD: u64 = 4096;

/// Whether time passes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Members are processes; time passes while they compute.
    Real,
    /// Members are coroutines; time passes only inside calls of the engine.
    Virtual,
}

/// A run of a scenario at a member: the [`Job`], and the tools of scenarios.
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
    /// The run of `scenario` with `seed` at this member.
    pub fn new(job: Job, scenario: &'static Scenario, seed: u64, clock: Clock) -> Run {
        Run { job, scenario, seed, clock, barriers: Arc::new(AtomicU64::new(0)) }
    }

    /// The job, for an activity.
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

    /// All members but this member.
    pub fn others(&self) -> impl Iterator<Item = MemberId> + use<> {
        let me = self.me();
        self.all().filter(move |&member| member != me)
    }

    /// The members that this member's view does not have among the dead.
    pub fn living(&self) -> Vec<MemberId> {
        self.view().living().collect()
    }

    /// The living members but this member.
    pub fn living_others(&self) -> Vec<MemberId> {
        self.view().living().filter(|&member| member != self.me()).collect()
    }

    /// The number of repetitions: a run on the simulator is short, because thousands of seeds vary
    /// it; a run of real processes is long.
    pub fn count(&self, real: u64, simulated: u64) -> u64 {
        match self.clock {
            Clock::Real => real,
            Clock::Virtual => simulated,
        }
    }

    /// A source of numbers that is equal at all members.
    pub fn shared_random(&self, parts: &[u64]) -> Random {
        Random::of(&[&[self.seed], parts].concat())
    }

    /// A source of numbers that differs between members.
    pub fn own_random(&self, part: u64) -> Random {
        self.shared_random(&[part, self.id(), 0x6d65])
    }

    // ---- Waiting.

    /// Waits until `condition` holds, checked at short intervals: for conditions that ring no bell.
    pub fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let until = self.now().after(WAIT);
        loop {
            let bell = self.bell();
            if condition() {
                return;
            }
            let now = self.now();
            assert!(now < until, "{self:?}: waited {WAIT:?} in vain for {what}");
            self.park(bell, until.min(now.after(CHECK_INTERVAL)));
        }
    }

    /// Waits until `condition` holds, checked only when the bell has rung: a lost wakeup is a
    /// failure.
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
            self.park(bell, until.min(now.after(CHECK_INTERVAL)));
        }
    }

    /// Lets time pass, even if the bell rings.
    pub fn pause(&self, duration: Duration) {
        self.sleep(duration);
    }

    /// Lets an arbitrary time below `below` pass.
    pub fn pause_below(&self, random: &mut Random, below: Duration) {
        self.pause(Duration::from_nanos(random.below(below.as_nanos() as u64)));
    }

    /// Computes without any call of the engine until `condition` holds. On the simulator no time
    /// passes while a member computes, so there the activity parks.
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

    /// Grows this member's segment to `len` bytes of data and waits until all members have done so.
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

    /// Waits until all living members have come to this barrier. Each member counts its barriers.
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
            self.get(Epoch::ANY, self.me(), 0, &mut words).expect("reading the own segment");
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
                        "{self:?}: waited {WAIT:?} in vain for {member} at barrier {number} \
                         ({what})"
                    )
                }
                (Some(member), None) if self.now() >= until => missing = Some(member),
                (Some(_), None) => self.park(bell, until),
            }
        }
    }

    /// Writes `value` to the word `index`, which `target` reads with [`Run::told`], and rings its
    /// bell. Does nothing if `target` is dead.
    pub fn tell(&self, target: MemberId, index: u64, value: u64) {
        self.tell_at(Epoch::ANY, target, index, value);
    }

    /// Does as [`Run::tell`], in this epoch alone.
    pub fn tell_at(&self, at: Epoch, target: MemberId, index: u64, value: u64) {
        match self.put(at, target, TOLD + 8 * index, &value.to_le_bytes()) {
            Ok(()) => self.ring_or_dead(target),
            Err(Error::Dead { .. }) => {}
            Err(error) => panic!("{self:?}: telling {target}: {error}"),
        }
    }

    /// The last value that this member was told under `index`; 0 at first.
    pub fn told(&self, index: u64) -> u64 {
        self.load(Epoch::ANY, self.me(), TOLD + 8 * index).expect("reading the own segment")
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

    /// Waits until all living members have come to the end, and leaves. No check may follow.
    pub fn finish(&self) {
        self.barrier("the end");
        self.leave().expect("leaving once");
    }

    // ---- Faults.

    /// Injects a fault, which must succeed.
    pub fn fault(&self, fault: Fault) {
        self.inject(fault).unwrap_or_else(|error| panic!("{self:?}: injecting {fault:?}: {error}"));
    }

    /// Kills another member, unless it is dead.
    pub fn kill(&self, member: MemberId) {
        match self.inject(Fault::Kill(member)) {
            Ok(()) | Err(Error::Dead { .. }) => {}
            Err(error) => panic!("{self:?}: killing {member}: {error}"),
        }
    }

    /// Ends this member by a death.
    pub fn die(&self) -> ! {
        let result = self.inject(Fault::Kill(self.me()));
        panic!("{self:?}: outlived its own death: {result:?}")
    }

    /// Ends this member with success, but without leaving. On the simulator this returns, and the
    /// body must return, too.
    pub fn desert(&self) {
        if self.clock == Clock::Real {
            crate::member::report_end(self);
            std::process::exit(0);
        }
    }

    /// Waits until this member's view has all of `members` among the dead. The change of the view
    /// must ring the bell.
    pub fn await_dead(&self, members: &[MemberId]) {
        for &member in members {
            self.until_rung(&format!("the notice of the death of {member}"), || {
                self.view().dead.contains(member)
            });
        }
        self.check_view();
    }

    // ---- Checks.

    /// Checks the rules of every view, and that the member's epoch is not older than its view.
    /// Returns the view.
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
        assert!(
            view.left.is_subset(&view.dead),
            "{self:?}: a member that left is dead, too: {view:?}"
        );
        assert!(
            view.is_living(self.me()) || self.has_ended(),
            "{self:?}: a member in its own dead: {view:?}"
        );
        assert!(self.epoch() >= view.epoch, "{self:?}: the epoch is older than the view: {view:?}");
        view
    }

    /// Checks that exactly these members are dead in this member's view.
    pub fn check_dead(&self, expected: &[MemberId]) {
        let expected: MemberSet = expected.iter().copied().collect();
        assert_eq!(self.check_view().dead, expected, "{self:?}: the dead");
    }

    /// The offset of the bytes that [`Run::check_all_goes_on`] does not use.
    pub fn data_after_check(&self) -> u64 {
        DATA + 64 * self.members() as u64
    }

    /// Checks that the living members can still do everything: all pairs write, count and send. All
    /// living members call it, at one point of the scenario. It uses 64 bytes for each member at
    /// [`DATA`], and the port [`Port::Rma`].
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
        self.barrier("the puts of the living");
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

/// Messages whose content follows from seed, sender, receiver, port and number, so that the
/// receiver can compute each of them. After a message that is lost, doubled, out of order or
/// changed, a message has the wrong content.
pub struct Inbox<'a> {
    run: &'a Run,
    port: Port,
    round: u64,
    sent: BTreeMap<MemberId, u64>,
    received: BTreeMap<MemberId, u64>,
}

impl<'a> Inbox<'a> {
    /// Both ends of a round of messages. Rounds on a port must not overlap.
    pub fn new(run: &'a Run, port: Port, round: u64) -> Inbox<'a> {
        Inbox { run, port, round, sent: BTreeMap::new(), received: BTreeMap::new() }
    }

    /// The content of a message.
    fn content(&self, from: MemberId, to: MemberId, number: u64, len: usize) -> Vec<u8> {
        let parts =
            [self.round, u64::from(from.0), u64::from(to.0), self.port as u64, number, len as u64];
        self.run.shared_random(&parts).bytes(len)
    }

    /// Sends the next message, which must succeed.
    pub fn send(&mut self, to: MemberId, len: usize) {
        self.try_send(to, len)
            .unwrap_or_else(|error| panic!("{:?}: sending to {to}: {error}", self.run));
    }

    /// Sends the next message, which counts as sent only if the call succeeds.
    pub fn try_send(&mut self, to: MemberId, len: usize) -> outlast::engine::Result<()> {
        let number = self.sent.get(&to).copied().unwrap_or(0);
        let content = self.content(self.run.me(), to, number, len);
        self.run.send(to, self.port, &content)?;
        self.sent.insert(to, number + 1);
        Ok(())
    }

    /// Sends the next message if the receiver has room for it; whether it had room.
    pub fn send_at_once(&mut self, to: MemberId, len: usize) -> bool {
        let number = self.sent.get(&to).copied().unwrap_or(0);
        let content = self.content(self.run.me(), to, number, len);
        let is_sent = self
            .run
            .try_send(to, self.port, &content)
            .unwrap_or_else(|error| panic!("{:?}: sending to {to}: {error}", self.run));
        self.sent.insert(to, number + u64::from(is_sent));
        is_sent
    }

    /// Sends the next message, and receives messages while its receiver has no room.
    pub fn send_or_drain(&mut self, to: MemberId, len: usize) {
        let run = self.run;
        run.until("room", || {
            self.drain();
            self.send_at_once(to, len)
        });
    }

    /// Receives and checks all messages that have arrived.
    pub fn drain(&mut self) {
        while let Some(message) = self.run.receive(self.port) {
            self.accept(message);
        }
    }

    /// Checks that a message is the next message of its sender.
    pub fn accept(&mut self, message: Message) {
        let Message { from, epoch, bytes } = message;
        assert!(from.index() < self.run.members(), "a message from {from}, which does not exist");
        assert!(
            self.run.epoch() >= epoch,
            "{:?}: a message of {from} was sent at {epoch}, and its receiver is at {}",
            self.run,
            self.run.epoch()
        );
        let number = self.received.get(&from).copied().unwrap_or(0);
        let expected = self.content(from, self.run.me(), number, bytes.len());
        assert!(
            bytes == expected,
            "{:?}: message {number} of {from} on {:?}, {} bytes, is not as it was sent",
            self.run,
            self.port,
            bytes.len()
        );
        self.received.insert(from, number + 1);
    }

    /// The number of messages received from `from`.
    pub fn count_from(&self, from: MemberId) -> u64 {
        self.received.get(&from).copied().unwrap_or(0)
    }

    /// The number of messages sent to `to`.
    pub fn count_to(&self, to: MemberId) -> u64 {
        self.sent.get(&to).copied().unwrap_or(0)
    }

    /// Waits until `count` messages of each of `senders` have arrived.
    pub fn await_from(&mut self, senders: &[MemberId], count: u64) {
        let run = self.run;
        for &from in senders {
            let what = format!("{count} messages of {from} on {:?}", self.port);
            run.until_rung(&what, || {
                self.drain();
                self.count_from(from) >= count
            });
            assert_eq!(self.count_from(from), count, "{run:?}: messages of {from}");
        }
    }
}
