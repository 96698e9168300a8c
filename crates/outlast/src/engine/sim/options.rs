//! What to simulate: the job, the link between its members, and the faults that strike it.

use super::random::Random;
use crate::engine::{MESSAGE_CREDIT, MemberId, Time};
use std::ops::RangeInclusive;
use std::time::Duration;

/// How members reach each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// As on shm: an operation acts on the target's memory itself, also if the target is stopped,
    /// and, silently, if it is dead and its death is not known yet. All members share a single
    /// view.
    Memory,
    /// As on mpi: an operation is a request that travels, is served while the target is not
    /// stopped, and is answered. Every member has a view of its own.
    Network,
}

impl Link {
    /// Memory for even seeds and the network for odd seeds, so that a test over many seeds tries
    /// both.
    pub fn of_seed(seed: u64) -> Link {
        if seed.is_multiple_of(2) { Link::Memory } else { Link::Network }
    }
}

/// What communication costs, as in the LogGP model. With a cost model, times follow from it alone
/// and no time is drawn; puts and gets then have a single phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// L: how long a message is on its way.
    pub latency: Duration,
    /// o: how long the processor is busy with sending or receiving a message.
    pub overhead: Duration,
    /// g: the least time between two messages of a member.
    pub gap: Duration,
    /// G: the time per byte of a long message, in picoseconds.
    pub gap_per_byte_ps: u64,
    /// What a call that stays inside the member costs.
    pub local: Duration,
}

impl Default for Cost {
    /// About the values of a current cluster network: 1 us, and 25 GB a second.
    fn default() -> Cost {
        Cost {
            latency: Duration::from_nanos(1000),
            overhead: Duration::from_nanos(200),
            gap: Duration::from_nanos(100),
            gap_per_byte_ps: 40,
            local: Duration::from_nanos(10),
        }
    }
}

/// When a planned fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At this virtual time.
    At(Time),
    /// When this member takes its n-th engine step, counted from 1 over all its activities.
    AtStep(MemberId, u64),
}

/// What a planned fault does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Kills a member.
    Kill(MemberId),
    /// Stops a member.
    Stop(MemberId),
    /// Lets a stopped member go on.
    Resume(MemberId),
    /// Stops a member and lets it go on after this time.
    StopFor(MemberId, Duration),
}

/// A fault that is part of the plan of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedFault {
    /// When it strikes.
    pub when: When,
    /// What it does.
    pub action: Action,
}

/// What to simulate. Two runs with equal options (and an equal body) are equal step by step.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many members are active from the start.
    pub members: usize,
    /// How many further members are spares.
    pub spares: usize,
    /// Decides all that is left open: delays, interleavings, torn puts, times of notices.
    pub seed: u64,
    /// How members reach each other's memory.
    pub link: Link,
    /// The faults that strike, besides faults that the body injects.
    pub faults: Vec<PlannedFault>,
    /// How long after a death its notice comes, in virtual time.
    pub detection: RangeInclusive<Duration>,
    /// [`crate::Job::time_limit`], in virtual time.
    pub time_limit: Duration,
    /// The most bytes that a segment may grow to.
    pub segment_limit: u64,
    /// How many bytes of messages of a sender, for a port, a member holds that it has not received;
    /// the sender waits when there are more. A single message may be longer. See
    /// [`crate::engine::MESSAGE_CREDIT`].
    pub message_credit: u64,
    /// Whether the memory of the dead can be read, as on shm ([`crate::Job::read_dead_segment`]);
    /// on the memory link. Operations that are in flight when their target's death becomes known
    /// may then still change it.
    pub keeps_dead_segments: bool,
    /// The failure domain of each member; empty for members after the end of the list.
    pub domains: Vec<String>,
    /// The node of each member on the network link; each member after the end of the list has a
    /// node of its own. The members of a node map each other's memory and share a view, as on mpi,
    /// and a member that is stopped in the middle of a request completes it later, also if its
    /// requester has died ([`crate::Job::is_serving_dead`]).
    pub nodes: Vec<usize>,
    /// Times from a cost model instead of random times.
    pub cost: Option<Cost>,
    /// The run counts as hung after this many engine steps.
    pub steps_max: u64,
    /// The run counts as hung at this virtual time.
    pub time_max: Time,
    /// How many bytes of stack each activity gets. Only pages that are touched take memory.
    pub stack_len: usize,
    /// Whether to record a trace of the run, line by line.
    pub trace: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            members: 4,
            spares: 0,
            seed: 0,
            link: Link::Memory,
            faults: Vec::new(),
            detection: Duration::from_micros(10)..=Duration::from_millis(1),
            time_limit: Duration::from_secs(30),
            segment_limit: 64 << 20,
            message_credit: MESSAGE_CREDIT,
            keeps_dead_segments: false,
            domains: Vec::new(),
            nodes: Vec::new(),
            cost: None,
            steps_max: 50_000_000,
            time_max: Time(3_600_000_000_000),
            stack_len: 256 << 10,
            trace: false,
        }
    }
}

impl Options {
    /// The defaults with this many members and this seed.
    pub fn new(members: usize, seed: u64) -> Options {
        Options { members, seed, ..Options::default() }
    }

    /// Sets the link.
    pub fn link(mut self, link: Link) -> Options {
        self.link = link;
        self
    }

    /// Adds a planned fault.
    pub fn fault(mut self, when: When, action: Action) -> Options {
        self.faults.push(PlannedFault { when, action });
        self
    }

    /// Adds random faults drawn from the seed: `kills` different members die (at most all but one),
    /// and `stops` times a member is stopped and later goes on. They strike somewhere in the first
    /// `steps_per_member` engine steps of a member; a member that ends earlier escapes its fault.
    ///
    /// Some kills strike several members at the same instant, and some stops outlast the time
    /// limit: the hard cases, which would be rare if left to chance.
    pub fn random_faults(mut self, kills: usize, stops: usize, steps_per_member: u64) -> Options {
        let mut random = Random::new(self.seed ^ 0x0066_6175_6C74_7321);
        let members = self.members + self.spares;
        let steps = steps_per_member.max(1);
        let mut victims: Vec<u32> = (0..members as u32).collect();
        let mut previous = None;
        for _ in 0..kills.min(members.saturating_sub(1)) {
            let victim = MemberId(victims.swap_remove(random.below(victims.len() as u64) as usize));
            let when = match previous {
                Some(when) if random.chance(4) => when,
                _ => When::AtStep(victim, 1 + random.below(steps)),
            };
            previous = Some(when);
            self.faults.push(PlannedFault { when, action: Action::Kill(victim) });
        }
        let limit = self.time_limit.as_nanos() as u64;
        for _ in 0..stops {
            let victim = MemberId(random.below(members as u64) as u32);
            let pause = if random.chance(8) {
                limit.saturating_add(random.magnitude(1000, limit.max(1000)))
            } else {
                random.magnitude(1000, 100_000_000)
            };
            self.faults.push(PlannedFault {
                when: When::AtStep(victim, 1 + random.below(steps)),
                action: Action::StopFor(victim, Duration::from_nanos(pause)),
            });
        }
        self
    }
}
