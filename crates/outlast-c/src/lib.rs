//! Outlast for C: the calls of `include/outlast.h`, which says what they guarantee.
//!
//! Each call checks its pointers for null, makes slices of them, calls the Rust library, and turns
//! the result into a code and a message. `call` has the border to C, `status` the codes; the other
//! files have the calls of a section of the header each.
//!
//! C, C++ and Fortran programs call these functions.

#![allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "only C calls these functions; the header says what pointers must be"
)]

pub mod call;
pub mod comm;
pub mod handle;
pub mod images;
pub mod job;
pub mod listing;
pub mod regions;
pub mod request;
pub mod seats;
pub mod snapshot;
pub mod stats;
mod status;
pub mod store;
pub mod tx;
pub mod window;

pub use status::Status;
