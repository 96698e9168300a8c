//! One operation of a member on the memories of the others.

pub(in crate::store) mod above;
pub(in crate::store) mod configuration;
pub(in crate::store) mod error;
pub(in crate::store) mod freeze;
pub(in crate::store) mod gate;
pub(in crate::store) mod grace_period;
pub(in crate::store) mod leavers;
pub(in crate::store) mod message;
pub(in crate::store) mod op;
pub(in crate::store) mod participants;
pub(in crate::store) mod quiescence;
pub(in crate::store) mod retry;
pub(in crate::store) mod state;
pub(in crate::store) mod stragglers;
