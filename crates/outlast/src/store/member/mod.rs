//! The store at one member: its state, opening and closing, messages, background work.

pub(in crate::store) mod background;
pub(in crate::store) mod counts;
pub(in crate::store) mod dispatch;
pub(in crate::store) mod open;
pub(in crate::store) mod state;
