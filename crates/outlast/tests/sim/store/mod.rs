//! The store under the simulator, by subject:
//!
//! | module | subject |
//! |---|---|
//! | `calls` | locks, waits, loss and leaving, under deaths and stops |
//! | `damage` | arbitrary bytes in a segment |
//! | `deadlines` | every call ends in time, whatever stops or dies |
//! | `errors` | bad input and impossible requests |
//! | `global` | global mode and its recoveries |
//! | `memory` | memory comes back |
//! | `messages` | the number of requests of a put |
//! | `model` | random calls against a map |
//! | `pin` | pinned versions |
//! | `places` | placement of replicas |
//! | `programs` | random programs, judged by checkers |
//! | `round_trips` | how often a call waits for the network |
//! | `salvage` | reading the memory of the dead |
//! | `schedules` | schedules that broke earlier versions |
//! | `stops` | stops at any time of a call over a network |
//! | `stores` | several stores of a job, and a store that is opened again |
//! | `tx` | transactions |

mod calls;
mod damage;
mod deadlines;
mod errors;
mod global;
mod memory;
mod messages;
mod model;
mod pin;
mod places;
mod programs;
mod round_trips;
mod salvage;
mod schedules;
mod stops;
mod stores;
mod tx;

use outlast::Job;
use outlast::store::{Options, Store};

/// Options of a small store, whose memory grows in small steps.
fn small_options(replicas: usize) -> Options {
    Options::new().replicas(replicas).partitions(8).expected_keys(32).slab_len_max(16 << 10)
}

/// Opens a small store.
fn open(job: &Job, replicas: usize) -> Store {
    Store::open(job, small_options(replicas).expected_keys(64)).expect("open")
}

/// Closes the store and leaves the job. Both must succeed.
fn end(job: &Job, store: &Store) {
    store.close().expect("closed");
    job.leave().expect("left");
}

/// Closes the store and leaves the job, in tests in which either may fail: members have died or are
/// stopped, or the store is closed already.
fn end_if_possible(job: &Job, store: &Store) {
    let _ = store.close();
    let _ = job.leave();
}
