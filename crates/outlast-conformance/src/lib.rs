//! The conformance suite: what every engine of Outlast has to do, written once.
//!
//! A [`Scenario`] is ordinary code that every member of a job runs. It puts, gets, sends and waits through
//! [`outlast::engine::Engine`], injects deaths and stops, and panics when something is not as the trait promises. It asks for no
//! more than the trait promises: an operation on a member that is dead but not yet noticed may end well or not.
//!
//! The same bodies run
//! - on sim, over many seeds: [`sim`];
//! - on shm, as processes with real SIGKILL and SIGSTOP: [`shm`];
//! - on mpi, those that [`Scenario::runs_on_mpi`] names, under `mpirun`: [`mpi`].
//!
//! Every wait of a scenario has a bound ([`WAIT`]), and so has every run (`limit` of its [`Scenario`]). A missed bound is a
//! failure, and nothing is ever retried.

#![forbid(unsafe_code)]

use std::time::Duration;

mod member;
pub mod mpi;
pub mod pattern;
mod random;
mod run;
mod scenarios;
pub mod shm;
pub mod sim;

/// A test for each scenario, by the `run` of the file that it is in; `TESTED` has their names, so that none is forgotten.
#[macro_export]
macro_rules! tests {
    ($($test:ident => $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                run($name);
            }
        )*

        const TESTED: &[&str] = &[$($name),*];
    };
}

pub use member::be_member;
pub use random::Random;
pub use run::{Clock, DATA, Inbox, Run, WAIT};

/// What a scenario needs from its engine beyond operations, messages and the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Members that kill each other.
    Kill,
    /// Members that are stopped and resumed.
    Stop,
    /// Deaths and stops at the n-th engine step.
    Steps,
    /// [`outlast::Job::fence`].
    Fence,
    /// Spare members.
    Spares,
    /// Growth of segments after the first operation.
    Growth,
    /// Processes with a launcher.
    Launcher,
    /// Room for many messages that their receiver does not receive yet. The trait lets an engine bound it: then a
    /// sender waits, and gives up at its time limit.
    Room,
}

/// One thing that engines have to do, and how it is run.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name on the command line and in the tests.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// How many members it has, without the spares.
    pub members: usize,
    /// How many spares it has.
    pub spares: usize,
    /// How many members are killed; all others leave.
    pub killed: usize,
    /// How long a run may take on engines with real time.
    pub limit: Duration,
    /// Whether it takes long even when all is well, so that it is left out unless asked for.
    pub slow: bool,
    /// What it needs from the engine.
    pub needs: &'static [Need],
    /// The time limit that its members join with.
    pub time_limit: Duration,
    /// The most bytes of a member's segment.
    pub segment_limit: u64,
    /// What every member does.
    pub body: fn(&Run),
}

impl Scenario {
    /// A scenario of `members` members of whom nobody dies.
    pub(crate) const fn new(
        name: &'static str,
        about: &'static str,
        members: usize,
        body: fn(&Run),
    ) -> Scenario {
        Scenario {
            name,
            about,
            members,
            spares: 0,
            killed: 0,
            limit: Duration::from_secs(60),
            slow: false,
            needs: &[],
            time_limit: Duration::from_secs(30),
            segment_limit: 64 << 20,
            body,
        }
    }

    const fn spares(mut self, spares: usize) -> Scenario {
        self.spares = spares;
        self
    }

    const fn killed(mut self, killed: usize) -> Scenario {
        self.killed = killed;
        self
    }

    const fn limit(mut self, limit: Duration) -> Scenario {
        self.limit = limit;
        self
    }

    const fn slow(mut self) -> Scenario {
        self.slow = true;
        self
    }

    const fn needs(mut self, needs: &'static [Need]) -> Scenario {
        self.needs = needs;
        self
    }

    const fn time_limit(mut self, limit: Duration) -> Scenario {
        self.time_limit = limit;
        self
    }

    const fn segment_limit(mut self, bytes: u64) -> Scenario {
        self.segment_limit = bytes;
        self
    }

    /// All members, spares included.
    pub fn total(&self) -> usize {
        self.members + self.spares
    }

    /// Whether it needs this.
    pub fn does_need(&self, need: Need) -> bool {
        self.needs.contains(&need)
    }

    /// Whether it can run on the simulator, which has no launcher.
    pub fn runs_on_sim(&self) -> bool {
        !self.does_need(Need::Launcher)
    }

    /// Whether it is in the part that the mpi engine is held to: it has no launcher of ours, its room for messages is
    /// bounded, and its processes are too heavy for crowds.
    pub fn runs_on_mpi(&self) -> bool {
        let is_beyond = |need: &Need| matches!(need, Need::Launcher | Need::Room);
        self.members <= 8 && !self.slow && !self.needs.iter().any(is_beyond)
    }
}

/// All scenarios.
pub fn scenarios() -> &'static [Scenario] {
    scenarios::ALL
}

/// The scenario with this name.
pub fn scenario(name: &str) -> Option<&'static Scenario> {
    scenarios().iter().find(|scenario| scenario.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_fit_for_a_command_line() {
        for (index, one) in scenarios().iter().enumerate() {
            assert!(one.name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", one.name);
            assert!(
                scenarios()[index + 1..].iter().all(|other| other.name != one.name),
                "{}",
                one.name
            );
        }
    }

    #[test]
    fn somebody_survives_and_limits_leave_room_for_one_missed_wait() {
        for scenario in scenarios() {
            assert!(scenario.killed < scenario.total(), "{}", scenario.name);
            assert!(scenario.limit > 2 * WAIT, "{}", scenario.name);
            assert!(scenario.spares == 0 || scenario.does_need(Need::Spares), "{}", scenario.name);
        }
    }
}
