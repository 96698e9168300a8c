//! Tests with real processes on the shm engine, with real kills (SIGKILL) and stops (SIGSTOP).

#[path = "../support/members.rs"]
mod members;
#[cfg(feature = "faults")]
#[path = "../support/promises.rs"]
mod promise_bodies;
#[path = "../support/reexecution.rs"]
mod reexecution;
#[path = "../support/salvage.rs"]
mod salvage_support;
#[cfg(feature = "faults")]
#[path = "../support/window_scenarios.rs"]
mod window_scenarios;

mod engine;
#[cfg(not(feature = "mpi"))]
mod engine_choice;
mod launch;
#[cfg(feature = "faults")]
mod promises;
mod rma;
mod salvage;
mod snapshot;
mod store;
