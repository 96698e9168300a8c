//! Communicators and windows of real processes.

mod communicator;
mod examples;
#[cfg(feature = "faults")]
mod rules;
#[cfg(feature = "faults")]
mod window;
