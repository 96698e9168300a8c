//! Seats: ranks with memory that outlive the processes which hold them.
//!
//! A program in the style of MPI RMA keeps what matters in the memory of its seats, and reaches the
//! memory of other seats by put, get, operations on words, locks and barriers. At *points* all
//! seats are saved together, as erasure-coded [images](crate::image) in the memories of others.
//! When a process dies, another member takes its seat: a number, its memory, and its place in the
//! program.
//!
//! ```
//! use outlast::protect::{self, Protect};
//! use outlast::store::{self, Store};
//!
//! const STEPS: u64 = 10;
//! let job = outlast::join()?;
//! let store = Store::open(&job, store::Options::new())?;
//! // Seats of 64 KiB; images in 4 pieces at 4 members, of which any may die.
//! let options = Protect::new(64 << 10).set(4).lose(1);
//! let sums = protect::run(&store, options, |seat| {
//!     let right = (seat.number() + 1) % seat.seats();
//!     let mut step = seat.note_u64()?.unwrap_or(0);
//!     while step < STEPS {
//!         seat.put(right, step * 8, &step.to_le_bytes())?; // into the memory of a neighbour
//!         step += 1;
//!         seat.barrier_point(&step.to_le_bytes())?; // from here on it is taken up again
//!     }
//!     let mut bytes = [0; STEPS as usize * 8];
//!     seat.get(seat.number(), 0, &mut bytes)?;
//!     Ok::<u64, protect::ProtectError>(bytes.chunks(8).map(|word| u64::from(word[0])).sum())
//! })?;
//! assert!(sums.iter().all(|(_, sum)| *sum == 45));
//! store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Promises
//! - *Kept.* Since all images were last whole, up to `lose` members of a set may die at once, or
//!   whole domains at the level `apart`: no saved point is lost.
//! - *Together.* A rollback takes all seats to a single generation, or to the beginning if there is
//!   none.
//! - *The same.* A deterministic program ends with the bytes that it has without deaths.
//! - *Once.* An operation on words counts once: what is not in the generation has not happened.
//! - *Whole again.* Lost pieces come back by themselves.
//! - *Bounded.* A wait ends by the return of the seat, by a rollback, or at its limit.
//! - *Honest.* Beyond that all members get [`ProtectError::SeatLost`], never older bytes.
//!
//! # Vocabulary
//! - A *period* is the time between two rollbacks; without logs each seat has one holder in it.
//! - A *generation* is what all seats saved at a point.
//! - The *course* is the record that says which generation counts and which member holds each seat.
//!
//! # Invariants
//! - All facts about seats are records of the store, and the course changes by conditional puts
//!   alone. Of a verdict and a rollback one wins.
//! - No seat leaves a point before the verdict, and none enters `encode` before all are at theirs.
//! - No operation is under way at any member when the first memory is loaded.
//!
//! # The modules
//! `run` calls the closures and meets the other members, `rollback` takes all seats back, `course`
//! has the records, `period` what the seats of a member share between two rollbacks, `layout` the
//! hidden words; `seat`, `access`, `barrier` and `point` are the calls of a closure, `steps` names
//! the steps for failpoints. In logged mode, which is experimental, `logged` is what a seat logs,
//! `log` the bytes of the logs, `recover` gives a lost seat to its next holder, and `replay`
//! repeats its calls. In the repository, docs/protected-windows.md and docs/logged-mode.md have the
//! protocols.
//!
//! # Callers and deaths
//! Programs call [`run()`]. The death of a holder ends the period at all members, unless the logs
//! recover its seat; the death of a member without a seat ends nothing.

#![forbid(unsafe_code)]

mod access;
mod barrier;
mod course;
mod error;
mod late;
mod layout;
mod log;
mod logged;
#[cfg(feature = "faults")]
#[doc(hidden)]
pub mod mutants;
mod options;
mod period;
mod point;
mod recover;
mod replay;
mod rollback;
mod run;
mod seat;
#[doc(hidden)]
pub mod steps;

pub use error::{ProtectError, ProtectResult};
pub use options::{Interval, Protect};
pub use point::Point;
pub use run::run;
pub use seat::Seat;

pub use crate::image::Level;
pub use crate::rma::{LockKind, Update, Word};
