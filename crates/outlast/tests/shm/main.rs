//! Tests with real processes on the shm engine, with real kills (SIGKILL) and stops (SIGSTOP).
//!
//! - `engine`, `launch`, `kernel`: joining, the shm engine, the launcher, and
//!   kernels that lack system calls.
//! - `promises`: the promises of the store, each as a test.
//! - `store`, `salvage`, `snapshot`, `store_examples`: the store, and its example programs.
//! - `image`: erasure-coded images; `protect`, `protect_logs`: seats.
//! - `rma`: communicators and windows.
//!
//! The tests run as threads of a process. Only the members, which are processes of their own
//! ([`members`]), join a job of several members, die, are stopped, or change limits and fail points
//! of their process.

#[path = "../support/folders.rs"]
mod folders;
#[cfg(feature = "faults")]
#[path = "../support/images.rs"]
mod image_bodies;
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
#[path = "../support/seats.rs"]
mod seat_bodies;
#[cfg(feature = "faults")]
#[path = "../support/seat_logs.rs"]
mod seat_log_bodies;
#[path = "../support/unfinished.rs"]
mod unfinished;
#[cfg(feature = "faults")]
#[path = "../support/window_scenarios.rs"]
mod window_scenarios;

mod engine;
#[cfg(feature = "async")]
mod futures;
#[cfg(feature = "faults")]
mod image;
mod kernel;
mod launch;
#[cfg(feature = "faults")]
mod promises;
#[cfg(feature = "faults")]
mod protect;
#[cfg(feature = "faults")]
mod protect_logs;
mod rma;
mod salvage;
mod snapshot;
mod store;
mod store_examples;
