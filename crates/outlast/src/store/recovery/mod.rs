//! What happens after a death.

pub(in crate::store) mod coordinated;
pub(in crate::store) mod leave;
pub(in crate::store) mod loss;
pub(in crate::store) mod reclaim;
pub(in crate::store) mod repair;
pub(in crate::store) mod salvage;
pub(in crate::store) mod state;
