//! The bytes in a segment.

pub(in crate::store) mod head;
pub(in crate::store) mod intent;
pub(in crate::store) mod layout;
pub(in crate::store) mod place;
