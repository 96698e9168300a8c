//! One replicated record: the index, writing, reconciling, reading.

pub(in crate::store) mod block_io;
pub(in crate::store) mod checksum;
pub(in crate::store) mod fast_mapped;
pub(in crate::store) mod fast_remote;
pub(in crate::store) mod hints;
pub(in crate::store) mod index;
pub(in crate::store) mod key;
pub(in crate::store) mod location;
pub(in crate::store) mod location_cache;
pub(in crate::store) mod lock;
pub(in crate::store) mod publish;
pub(in crate::store) mod put;
pub(in crate::store) mod read;
pub(in crate::store) mod reconcile;
pub(in crate::store) mod remove;
pub(in crate::store) mod state;
pub(in crate::store) mod version_floor;
pub(in crate::store) mod visibility;
pub(in crate::store) mod waiters;
pub(in crate::store) mod walk;
pub(in crate::store) mod write;
