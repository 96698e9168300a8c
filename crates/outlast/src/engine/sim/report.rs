//! The report of a run, and the names of the calls in it.

use crate::engine::{MemberId, Time};
use std::fmt;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every member ended, or is stopped with no member left to resume it.
    Finished,
    /// Some activities wait for an event that can no longer happen.
    Deadlock,
    /// The run took more steps than allowed.
    StepLimit,
    /// The run took more virtual time than allowed.
    TimeLimit,
}

/// An activity that had not ended when its run was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hung {
    /// Whose activity.
    pub member: MemberId,
    /// Which activity: `main`, `background`, or the name it was spawned with.
    pub activity: String,
    /// The call that it was in.
    pub call: String,
    /// When that call began.
    pub since: Time,
    /// Whether it was waiting there; otherwise it was about to go on.
    pub is_waiting: bool,
}

impl fmt::Display for Hung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let doing = if self.is_waiting { "waiting" } else { "running" };
        write!(
            f,
            "m{} {} {doing} in {} since {}",
            self.member.0,
            self.activity,
            self.call,
            Clock(self.since.0)
        )
    }
}

/// An activity that panicked; its member died of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked {
    /// Whose activity.
    pub member: MemberId,
    /// Which activity.
    pub activity: String,
    /// What the panic said.
    pub message: String,
}

/// What a member did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Engine steps.
    pub steps: u64,
    /// Messages given to [`crate::Job::send`] and accepted.
    pub messages_sent: u64,
    /// Their bytes.
    pub message_bytes_sent: u64,
    /// Messages that [`crate::Job::receive`] returned.
    pub messages_received: u64,
    /// Their bytes.
    pub message_bytes_received: u64,
    /// One-sided operations that were started.
    pub operations: u64,
    /// Bytes that one-sided operations wrote.
    pub operation_bytes_written: u64,
    /// Bytes that one-sided operations read.
    pub operation_bytes_read: u64,
}

/// The report of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The seed that replays it.
    pub seed: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// Engine steps of all members together.
    pub steps: u64,
    /// The virtual time at the end.
    pub end: Time,
    /// How many members were killed by a fault or a fence.
    pub kills: u64,
    /// How many times a member was stopped.
    pub stops: u64,
    /// The bodies that panicked.
    pub panics: Vec<Panicked>,
    /// The activities that had not ended, unless the run finished.
    pub hung: Vec<Hung>,
    /// Members that were stopped at the end, with no member left to resume them.
    pub still_stopped: Vec<MemberId>,
    /// What each member did.
    pub counters: Vec<Counters>,
    /// A running hash over every step: equal for equal runs.
    pub digest: u64,
    /// The trace, line by line, if [`super::Options::trace`] was set.
    pub trace: Vec<String>,
}

impl Report {
    /// Whether every member ended and none panicked.
    pub fn is_ok(&self) -> bool {
        self.outcome == Outcome::Finished && self.panics.is_empty()
    }

    /// Panics with the reason if the run is not ok; for tests.
    #[track_caller]
    pub fn expect_ok(self) -> Report {
        if !self.is_ok() {
            let hung: Vec<String> = self.hung.iter().map(Hung::to_string).collect();
            let Report { seed, outcome, panics, .. } = &self;
            panic!(
                "seed {seed}: the run ended as {outcome:?}; panics: {panics:#?}; hung: {hung:#?}"
            );
        }
        self
    }
}

/// Virtual time, for people.
pub(super) struct Clock(pub(super) u64);

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}us", self.0 / 1000, self.0 % 1000)
    }
}

/// Which call of the engine an activity is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Begin,
    Epoch,
    View,
    Fence,
    HasEnded,
    Leave,
    SegmentLen,
    Grow,
    Put,
    Get,
    Load,
    CompareAndSwap,
    FetchAdd,
    Poll,
    Wait,
    Send,
    Receive,
    Now,
    Bell,
    Park,
    Ring,
    Spawn,
    Inject,
    Compound,
}

/// A call with the arguments that matter for the trace, the digest and the list of hung activities.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) what: What,
    pub(super) target: u32,
    pub(super) offset: u64,
    pub(super) len: u64,
}

const NO_TARGET: u32 = u32::MAX;

impl Call {
    pub(super) const fn plain(what: What) -> Call {
        Call { what, target: NO_TARGET, offset: 0, len: 0 }
    }

    pub(super) const fn to(what: What, target: MemberId) -> Call {
        Call { what, target: target.0, offset: 0, len: 0 }
    }

    pub(super) const fn range(what: What, target: MemberId, offset: u64, len: u64) -> Call {
        Call { what, target: target.0, offset, len }
    }

    /// Whether the call touches the target's memory; the trace then shows its effects instead of
    /// the call.
    pub(super) fn is_operation(self) -> bool {
        matches!(
            self.what,
            What::Put
                | What::Get
                | What::Load
                | What::CompareAndSwap
                | What::FetchAdd
                | What::Compound
        )
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.what {
            What::Begin => "begin",
            What::Epoch => "epoch",
            What::View => "view",
            What::Fence => "fence",
            What::HasEnded => "has_ended",
            What::Leave => "leave",
            What::SegmentLen => "segment_len",
            What::Grow => "grow",
            What::Put => "put",
            What::Get => "get",
            What::Load => "load",
            What::CompareAndSwap => "compare_and_swap",
            What::FetchAdd => "fetch_add",
            What::Compound => "compound",
            What::Poll => "poll",
            What::Wait => "wait",
            What::Send => "send",
            What::Receive => "receive",
            What::Now => "now",
            What::Bell => "bell",
            What::Park => "park",
            What::Ring => "ring",
            What::Spawn => "spawn",
            What::Inject => "inject",
        })?;
        if self.target != NO_TARGET {
            write!(f, " -> m{}", self.target)?;
        }
        match self.what {
            What::Put | What::Get => write!(f, " +{:#x} {} B", self.offset, self.len),
            What::Load | What::CompareAndSwap | What::FetchAdd => write!(f, " +{:#x}", self.offset),
            What::Send | What::Grow => write!(f, " {} B", self.len),
            What::Park if self.offset == u64::MAX => f.write_str(" until it rings"),
            What::Park => write!(f, " until {}", Clock(self.offset)),
            _ => Ok(()),
        }
    }
}
