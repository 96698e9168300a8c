//! One replicated record: the index, writing, reconciling, reading.

pub(in crate::store) mod checksum;
pub(in crate::store) mod fast_mapped;
pub(in crate::store) mod fast_remote;
pub(in crate::store) mod index;
pub(in crate::store) mod location_cache;
pub(in crate::store) mod remove;
pub(in crate::store) mod write;
