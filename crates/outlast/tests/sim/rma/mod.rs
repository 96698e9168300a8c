//! Communicators and windows under the simulator.
//!
//! - `communicator`: the rules of ULFM for communicators, over many seeds.
//! - `window`: windows, the scenarios of all engines and random programs.
//! - `examples`: the programs of `examples/rust/ulfm`.

mod communicator;
mod examples;
mod window;
