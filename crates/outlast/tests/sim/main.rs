//! Tests under the simulator: members are coroutines in one thread, time is simulated, and a seed
//! decides the schedule, the deaths and the stops. A failing seed can be run again.
//!
//! `OUTLAST_SEEDS` sets how many seeds each test runs, `OUTLAST_SEED_FIRST` the first seed.

#[path = "../support/damaged_segment.rs"]
mod damaged_segment;
#[path = "../support/promises.rs"]
mod promise_bodies;
#[path = "../support/reexecution.rs"]
mod reexecution;
#[path = "../support/salvage.rs"]
mod salvage_support;
#[path = "../support/simulation.rs"]
mod simulation;
#[path = "../support/window_scenarios.rs"]
mod window_scenarios;

mod engine;
mod engine_memory;
mod promises;
mod rma;
mod snapshot;
mod store;
