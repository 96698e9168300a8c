//! Blocks of memory at the replicas.

pub(in crate::store) mod allocator;
pub(in crate::store) mod magazine;
pub(in crate::store) mod pins;
pub(in crate::store) mod slab;
pub(in crate::store) mod state;
