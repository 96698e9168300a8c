//! The conformance suite: the behaviour that every engine of Outlast has to show, written once.
//!
//! A [`Scenario`] is ordinary code that every member of a job runs. It puts, gets, sends and waits
//! through [`outlast::engine::Engine`], injects deaths and stops, and panics when the engine breaks
//! a promise of the trait. It demands no more than the trait promises: an operation on a member
//! that is dead, before the caller's view has the death, may succeed or fail.
//!
//! The scenarios run
//! - on sim, over many seeds: [`sim`];
//! - on shm, as processes with real SIGKILL and SIGSTOP: [`shm`];
//! - on mpi, under `mpirun`, as far as [`Scenario::runs_on_mpi`] selects them: [`mpi`].
//!
//! Every wait of a scenario has a bound ([`WAIT`]), and so has every run (`limit` of its
//! [`Scenario`]). A missed bound is a failure. Nothing is ever retried.
//!
//! # Vocabulary
//! - *body*: the function of a scenario that every member runs, with a [`Run`].
//! - *victim*: a member that dies in the scenario; *survivor*: a member that does not.
//! - *notice*: the moment at which a death is in the view of a member.
//! - *seed*: the number from which all choices of a run follow; on sim also the schedule.
//!
//! To add a scenario, write its body in `scenarios/`, add it to the list in `scenarios/mod.rs`, and
//! name it in the tests of each engine that runs it; a test checks that none is forgotten.

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

/// Makes a test of each scenario, which calls the function `run` of the file. `TESTED` has the
/// names of the scenarios, so that a test can check that none is forgotten.
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

/// A capability of an engine that a scenario needs beyond operations, messages and the view.
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
}

/// A behaviour that engines have to show, and how it is run.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The name on the command line and in the tests.
    pub name: &'static str,
    /// The behaviour, for the list of scenarios.
    pub about: &'static str,
    /// The number of members, without spares.
    pub members: usize,
    /// The number of spares.
    pub spares: usize,
    /// The number of members that are killed; all other members leave.
    pub killed: usize,
    /// The longest time of a run on engines with real time.
    pub limit: Duration,
    /// Whether the scenario takes long even without a failure. It then runs only on request.
    pub slow: bool,
    /// The capabilities of the engine that the scenario needs.
    pub needs: &'static [Need],
    /// The time limit with which the members join.
    pub time_limit: Duration,
    /// The most bytes of a member's segment.
    pub segment_limit: u64,
    /// The code of every member.
    pub body: fn(&Run),
}

impl Scenario {
    /// A scenario of `members` members without a death.
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

    /// The number of members, spares included.
    pub fn total(&self) -> usize {
        self.members + self.spares
    }

    /// Whether the scenario needs this capability.
    pub fn does_need(&self, need: Need) -> bool {
        self.needs.contains(&need)
    }

    /// Whether the scenario can run on the simulator, which has no launcher.
    pub fn runs_on_sim(&self) -> bool {
        !self.does_need(Need::Launcher)
    }

    /// Whether the scenario runs on the mpi engine. Under mpirun there is no launcher of Outlast,
    /// and the processes are too heavy for many members.
    pub fn runs_on_mpi(&self) -> bool {
        self.members <= 8 && !self.slow && !self.does_need(Need::Launcher)
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
        for (index, scenario) in scenarios().iter().enumerate() {
            assert!(
                scenario.name.chars().all(|c| c.is_ascii_lowercase() || c == '-'),
                "{}",
                scenario.name
            );
            assert!(
                scenarios()[index + 1..].iter().all(|other| other.name != scenario.name),
                "{}",
                scenario.name
            );
        }
    }

    #[test]
    fn a_member_survives_and_limits_leave_room_for_a_missed_wait() {
        for scenario in scenarios() {
            assert!(scenario.killed < scenario.total(), "{}", scenario.name);
            assert!(scenario.limit > 2 * WAIT, "{}", scenario.name);
            assert!(scenario.spares == 0 || scenario.does_need(Need::Spares), "{}", scenario.name);
        }
    }
}
