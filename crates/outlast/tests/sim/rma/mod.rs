//! Communicators and windows under the simulator.
//!
//! - `communicator`: the rules of ULFM for communicators, over many seeds.
//! - `deadlines`: every call ends in time, whatever stops meanwhile.
//! - `window`: windows, the scenarios of all engines and random programs.
//! - `examples`: the programs of `examples/rust/ulfm`.

mod communicator;
mod deadlines;
mod examples;
mod window;
