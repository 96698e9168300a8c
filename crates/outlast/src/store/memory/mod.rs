//! Blocks of memory at the replicas.

pub(in crate::store) mod allocator;
pub(in crate::store) mod magazine;
