//! Calls of the store that are built on records.

pub(in crate::store) mod batch;
pub(in crate::store) mod cut;
pub(in crate::store) mod deaths;
pub(in crate::store) mod handle;
pub(in crate::store) mod leave;
pub(in crate::store) mod list;
pub(in crate::store) mod lock;
pub(in crate::store) mod loss;
pub(in crate::store) mod pin;
pub(in crate::store) mod recover;
pub(in crate::store) mod repair;
pub(in crate::store) mod stats;
pub(in crate::store) mod store;
pub(in crate::store) mod transaction;
#[cfg(feature = "serde")]
pub(in crate::store) mod typed;
pub(in crate::store) mod wait;
