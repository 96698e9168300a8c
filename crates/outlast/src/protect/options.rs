//! How seats are protected.

use crate::engine::MemberId;
use crate::image::{self, Level};
use std::time::Duration;

/// How often points save.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Interval {
    /// At each point.
    Always,
    /// At the first point after so much time since the last save.
    Time(Duration),
    /// The interval of Daly (2006) for a job of which a member dies after `mtbf` on average, and
    /// the time that saves are measured to take.
    Daly {
        /// The mean time between two deaths in the whole job.
        mtbf: Duration,
    },
}

impl Interval {
    /// Whether a save is due so long after the last save, if that save took `save`.
    pub(super) fn is_due(self, since: Duration, save: Duration) -> bool {
        match self {
            Interval::Always => true,
            Interval::Time(interval) => since >= interval,
            Interval::Daly { mtbf } => {
                since.as_secs_f64() >= daly_s(save.as_secs_f64(), mtbf.as_secs_f64())
            }
        }
    }
}

/// The interval in seconds that loses the least time. The planner has an equal function, and a test
/// compares both.
fn daly_s(save_s: f64, mtbf_s: f64) -> f64 {
    if save_s >= 2.0 * mtbf_s {
        return mtbf_s;
    }
    let part = save_s / (2.0 * mtbf_s);
    (2.0 * save_s * mtbf_s).sqrt() * (1.0 + part.sqrt() / 3.0 + part / 9.0) - save_s
}

/// The options of [`run`](super::run()). They are equal at all members.
#[derive(Clone, Debug, PartialEq)]
pub struct Protect {
    pub(super) bytes: u64,
    pub(super) set: usize,
    pub(super) lose: usize,
    pub(super) apart: Level,
    pub(super) is_strict: bool,
    pub(super) piece_len: usize,
    pub(super) room: usize,
    pub(super) every: Interval,
    pub(super) give_up: u64,
    pub(super) patience: Duration,
    pub(super) gather: Duration,
    /// The bytes of the logs of each seat; 0 for no logs.
    pub(super) logs: u64,
    /// A member whose main activity goes on late after a recovery, and how late.
    #[cfg(feature = "faults")]
    pub(super) lag: Option<(MemberId, Duration)>,
    /// The mutant of the logs that breaks this run, or none.
    #[cfg(feature = "faults")]
    pub(super) broken: &'static str,
}

/// The least budget of logs.
const LOGS_MIN: u64 = 4096;

impl Protect {
    /// Seats with so many bytes each. Images of them have 8 pieces in different innermost domains,
    /// any of which may be lost; each point saves.
    pub fn new(bytes: u64) -> Protect {
        Protect {
            bytes,
            set: 8,
            lose: 1,
            apart: Level::Innermost,
            is_strict: false,
            piece_len: 16 << 10,
            room: 1,
            every: Interval::Always,
            give_up: 8,
            patience: Duration::from_secs(3600),
            gather: Duration::from_secs(1),
            logs: 0,
            #[cfg(feature = "faults")]
            lag: None,
            #[cfg(feature = "faults")]
            broken: "",
        }
    }

    /// Sets how many pieces an image has, 2 to 64. With fewer domains or members there are fewer.
    pub fn set(mut self, set: usize) -> Protect {
        self.set = set;
        self
    }

    /// Sets how many members of a set may die at once, 1 to 3.
    pub fn lose(mut self, lose: usize) -> Protect {
        self.lose = lose;
        self
    }

    /// Sets the level at which the pieces of an image are apart.
    pub fn apart(mut self, level: Level) -> Protect {
        self.apart = level;
        self
    }

    /// Refuses to begin where the level has fewer domains than a set has pieces.
    pub fn strict(mut self) -> Protect {
        self.is_strict = true;
        self
    }

    /// Sets the length of a piece, a multiple of 64; 16 KiB by default. A changed byte costs a
    /// piece at each member of the set.
    pub fn piece(mut self, bytes: usize) -> Protect {
        self.piece_len = bytes;
        self
    }

    /// Sets how many seats of the dead a member can take beside its own; 1 by default. Each member
    /// reserves memory for them at the start.
    pub fn room(mut self, seats: usize) -> Protect {
        self.room = seats;
        self
    }

    /// Sets how often points save.
    pub fn every(mut self, interval: Interval) -> Protect {
        self.every = interval;
        self
    }

    /// Sets how often holders of a seat may die without a new generation; 8 by default. Then the
    /// seat has failed: a closure that kills its process must not kill all members one by one.
    pub fn give_up(mut self, deaths: u64) -> Protect {
        self.give_up = deaths;
        self
    }

    /// Sets how long a call waits for a seat that lives and computes, in a barrier, for a lock, or
    /// in a rollback; an hour by default. It is then a [`Timeout`](super::ProtectError::Timeout).
    /// All waits of a call share it.
    pub fn patience(mut self, limit: Duration) -> Protect {
        self.patience = limit;
        self
    }

    /// Sets how long a seat waits in [`Seat::point`](super::Seat::point) for the points of the
    /// others, a second by default. Then it goes on, and the save is tried again later.
    pub fn gather(mut self, limit: Duration) -> Protect {
        self.gather = limit;
        self
    }

    /// Logs accesses, with so many bytes for the logs of each seat, so that the next holder of a
    /// seat repeats what a dead holder did, and the other seats notice nothing. Off by default.
    ///
    /// **Experimental.** It covers programs that use puts, gets and barriers between two saves, and
    /// a single lost seat at a time. All else is a rollback, as without logs. Puts to other seats
    /// are done at the next barrier, and [`Seat::point`](super::Seat::point) saves nothing. The
    /// closure makes equal calls when it gets equal answers, and two accesses to a byte of which
    /// one is a write have a barrier between them.
    pub fn logged(mut self, budget: u64) -> Protect {
        // No segment has so much room; `run` says so.
        self.logs = budget.min(1 << 50).next_multiple_of(128);
        self
    }

    /// Lets the main activity of a member go on late when a seat was recovered, as on a machine with
    /// busy cores, for tests.
    #[cfg(feature = "faults")]
    #[doc(hidden)]
    pub fn lagging(mut self, member: MemberId, lag: Duration) -> Protect {
        self.lag = Some((member, lag));
        self
    }

    /// How late the main activity of a member goes on, for tests.
    #[cfg(feature = "faults")]
    pub(super) fn lag_of(&self, member: MemberId) -> Option<Duration> {
        self.lag.filter(|(slow, _)| *slow == member).map(|(_, lag)| lag)
    }

    /// Without the feature `faults` no activity waits.
    #[cfg(not(feature = "faults"))]
    #[inline(always)]
    pub(super) fn lag_of(&self, _: MemberId) -> Option<Duration> {
        None
    }

    /// Breaks the protocol of the logs in the way of this name, for tests.
    #[cfg(feature = "faults")]
    #[doc(hidden)]
    pub fn broken(mut self, mutant: &'static str) -> Protect {
        self.broken = mutant;
        self
    }

    /// Whether the protocol of the logs is to be broken in this way.
    #[cfg(feature = "faults")]
    pub(super) fn is_broken(&self, mutant: &str) -> bool {
        debug_assert!(super::mutants::NAMES.iter().any(|(name, _)| *name == mutant), "{mutant}");
        self.broken == mutant
    }

    /// Without the feature `faults` no protocol is broken.
    #[cfg(not(feature = "faults"))]
    #[inline(always)]
    pub(super) fn is_broken(&self, _: &str) -> bool {
        false
    }

    /// Why the options are refused, if they are. Images check the others.
    pub(super) fn fault(&self) -> Option<String> {
        if self.bytes == 0 {
            Some("seats of 0 bytes; a seat has 1 byte at least".to_string())
        } else if self.room > 64 {
            Some(format!("room for {} more seats; there may be up to 64", self.room))
        } else if self.give_up == 0 {
            Some("give up after 0 deaths; there may be 1 at least".to_string())
        } else if self.logs != 0 && self.logs < LOGS_MIN {
            Some(format!("logs of {} bytes; they have {LOGS_MIN} bytes at least", self.logs))
        } else {
            None
        }
    }

    pub(super) fn images(&self) -> image::Options {
        // Images of the seats that a member may take, and half as much for the pieces of the dead.
        let room = 50 + 100 * self.room as u32;
        let options = image::Options::new(self.bytes).set(self.set).lose(self.lose);
        let options = options.apart(self.apart).piece(self.piece_len).room(room);
        if self.is_strict { options.strict() } else { options }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_that_of_the_planner() {
        for (save_s, mtbf_s) in [(300.0, 86400.0), (1.0, 900.0), (0.01, 3600.0), (300.0, 100.0)] {
            let planned = outlast_plan::daly_interval(save_s, mtbf_s);
            assert_eq!(daly_s(save_s, mtbf_s), planned, "{save_s} {mtbf_s}");
        }
        let daly = Interval::Daly { mtbf: Duration::from_secs(900) };
        assert!(!daly.is_due(Duration::from_secs(20), Duration::from_secs(1)));
        assert!(daly.is_due(Duration::from_secs(60), Duration::from_secs(1)));
        assert!(Interval::Always.is_due(Duration::ZERO, Duration::ZERO));
        let time = Interval::Time(Duration::from_secs(5));
        assert!(!time.is_due(Duration::from_secs(4), Duration::ZERO));
        assert!(time.is_due(Duration::from_secs(5), Duration::ZERO));
    }
}
