//! One operation of a member on the memories of the others.

pub(in crate::store) mod grace_period;
pub(in crate::store) mod op;
pub(in crate::store) mod stragglers;
