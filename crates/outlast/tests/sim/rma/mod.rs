//! Communicators and windows under the simulator.

mod communicator;
mod examples;
mod window;
