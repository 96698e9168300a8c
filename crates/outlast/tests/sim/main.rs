//! Tests under the simulator: members are coroutines of a single thread, time is simulated, and a
//! seed decides the schedule, the deaths and the stops. A failing seed can be replayed.
//!
//! - `engine`, `engine_memory`: the simulator itself.
//! - `promises`: the promises of the store, each as a test.
//! - `store`: the calls and protocols of the store, by subject.
//! - `image`, `image_faults`, `image_deadlines`: erasure-coded images; `protect`, `protect_logs`,
//!   `protect_deadlines`: seats.
//! - `snapshot`: snapshots of the store.
//! - `rma`: communicators and windows.
//!
//! `OUTLAST_SEEDS` sets how many seeds each test runs, `OUTLAST_SEED_FIRST` the first seed.
//!
//! The tests run as threads of a process. A test that counts something of the whole process runs in
//! a process of its own ([`reexecution::command`]), and a test that expects panics silences its own
//! thread only ([`simulation::without_panic_messages`]).

#[path = "../support/damaged_segment.rs"]
mod damaged_segment;
#[path = "../support/folders.rs"]
mod folders;
#[path = "../support/images.rs"]
mod image_bodies;
#[path = "../support/promises.rs"]
mod promise_bodies;
#[path = "../support/reexecution.rs"]
mod reexecution;
#[path = "../support/salvage.rs"]
mod salvage_support;
#[path = "../support/seats.rs"]
mod seat_bodies;
#[path = "../support/seat_logs.rs"]
mod seat_log_bodies;
#[path = "../support/simulation.rs"]
mod simulation;
#[path = "../support/window_scenarios.rs"]
mod window_scenarios;

mod engine;
mod engine_memory;
mod image;
mod image_deadlines;
mod image_faults;
mod promises;
mod protect;
mod protect_deadlines;
mod protect_logs;
mod rma;
mod snapshot;
mod store;
