//! Tests of the mpi engine under a real mpirun, with real kills (SIGKILL) and stops (SIGSTOP).
//!
//! - `engine`: the mpi engine.
//! - `window`: the scenarios of windows.
//! - `snapshot`: snapshots of the store on several nodes.
//! - `protect`: seats on several nodes, and the loss of a whole node.
//!
//! A single job runs at a time ([`ranks::take_turn`]).

#[path = "../support/folders.rs"]
mod folders;
#[path = "../support/members.rs"]
mod members;
#[path = "../support/reexecution.rs"]
mod reexecution;
#[path = "../support/seats.rs"]
mod seat_bodies;
#[path = "../support/seat_logs.rs"]
mod seat_log_bodies;
#[path = "../support/unfinished.rs"]
mod unfinished;
#[path = "../support/window_scenarios.rs"]
mod window_scenarios;

mod engine;
mod protect;
mod ranks;
mod snapshot;
mod window;
