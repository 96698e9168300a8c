//! Communicators and windows of real processes.
//!
//! - `communicator`: the calls of communicators, their errors, and how they end on a death.
//! - `rules`: the rules of ULFM for communicators, which the simulator tests over many seeds.
//! - `window`: windows, the scenarios of all engines, and tests with real time and kills.
//! - `examples`: the programs of `examples/rust/ulfm`.

mod communicator;
pub(crate) mod examples;
#[cfg(feature = "faults")]
mod rules;
#[cfg(feature = "faults")]
mod window;
