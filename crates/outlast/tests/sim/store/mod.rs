//! The store under the simulator.

mod calls;
mod damage;
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
mod tx;
