//! The simulator: the members of a job as coroutines in a single thread, under a seed.
//!
//! It is for tests of programs, and of this crate: it runs the layers above the engine in thousands
//! of interleavings, with deaths and stops at any step, and replays each of them, step by step,
//! from its seed. Time is virtual; when no activity can run, the clock jumps to the next event. A
//! run never hangs: activities that can no longer go on are listed in its [`Report`].
//!
//! ```
//! use outlast::sim::{self, Action, Options, When};
//! use outlast::{Epoch, MemberId, Time};
//!
//! // Member 1 dies in the middle of its put: any of the two words may have been written.
//! let victim = MemberId(1);
//! let options = Options::new(2, 42).fault(When::AtStep(victim, 2), Action::Kill(victim));
//! let report = sim::run(&options, |job| {
//!     job.grow(64).unwrap();
//!     if job.me() == MemberId(1) {
//!         let _ = job.put(Epoch::ANY, MemberId(0), 0, &[7; 16]);
//!     } else {
//!         job.fence(MemberId(1), Time::NEVER).unwrap();
//!         let mut seen = [0; 16];
//!         job.get(job.epoch(), job.me(), 0, &mut seen).unwrap();
//!         assert!(seen.chunks(8).all(|word| word == [0; 8] || word == [7; 8]));
//!     }
//!     job.leave().unwrap();
//! });
//! assert!(report.is_ok());
//! assert_eq!(report.kills, 1);
//! ```
//!
//! # What is modelled
//! There are two links, see [`Link`]. On both, every call of the engine is a step: the activity
//! goes on at a random later moment (mostly soon, rarely very late), and others run meanwhile. Puts
//! and gets of several words have two phases, with any subset of the words in the first phase. A
//! kill or stop strikes at any step, also between two phases. If the writer of a put dies between
//! its phases, the put stays partial; if the writer is stopped, the put is completed after the
//! writer goes on. Waits return early at times. A message of a dead member may arrive after the
//! notice of the death, or never, and then no later message from that sender to that receiver
//! arrives either. A request that was forgotten ([`crate::engine::Pending`]) before it was served
//! may be dropped, while requests behind it are served.
//!
//! On the network link several members can be of a node ([`Options::nodes`]). They map each other's
//! memory and share a view. A member that is stopped in the middle of a request completes it later,
//! also if its requester is known to be dead by then.
//!
//! A member dies when its body returns without [`Job::leave`], as a process that exits does, or
//! panics. When a member dies, its activities are unwound: their destructors run, and calls of the
//! engine in them return [`crate::Error::Ended`]. So do calls made while a panic unwinds.
//!
//! # What is not modelled
//! The simulator is weaker than the engines shm and mpi in these. Tests with real processes cover
//! them.
//! - An operation that is in flight when the death of its target becomes known returns no data of
//!   the dead member: it returns [`crate::Error::Dead`]. On shm it may return what was in memory.
//! - [`Job::send`] and [`Job::grow`] never run out of memory below their limits.
//! - The words of all puts and gets have a single order, which all members see. On a processor with
//!   weak ordering two members may see the words of two puts in different orders, until an
//!   operation on a word comes in between.

use crate::engine::sim::{self, Host, Sim};
use crate::job::{Backend, Job};

pub use crate::engine::sim::{
    Action, Cost, Counters, Hung, Link, Options, Outcome, Panicked, PlannedFault, Random, Report,
    When,
};

/// Runs a job in this thread: `body` is the main activity of every member. Returns when every
/// member has ended, no event can happen any more, or a limit is reached.
///
/// # Panics
/// If the options make no sense, and when called from within a body.
pub fn run(options: &Options, body: impl Fn(Job) + 'static) -> Report {
    sim::run(options, body)
}

impl Host for Job {
    fn host(sim: Sim) -> Job {
        Job::new(Backend::Sim(sim))
    }

    fn run_background(&self) {
        Job::run_background(self);
    }

    fn drop_services(&self) {
        Job::drop_services(self);
    }
}
