//! The store at one member: its state, opening and closing, messages, background work.

pub(in crate::store) mod open;
