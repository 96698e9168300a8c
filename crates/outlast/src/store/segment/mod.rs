//! The bytes in a segment: what each word and each block means.
//!
//! *Purpose.* This layer encodes and decodes everything that the store keeps in the memory of
//! members: the root of a segment ([`layout`]), the buckets of an index ([`bucket`]), head words
//! and replica states ([`head`]), the locations of blocks ([`place`]), and the records that
//! transactions write ([`intent`]). It computes offsets and words. It calls no engine and changes
//! no memory.
//!
//! *Vocabulary.* Segment, root, block, size class, record, head word, replica state, holder, intent
//! and provisional version: docs/glossary.md defines them. docs/segment-layout.md gives the layout
//! byte by byte, and a test of [`layout`] compares the numbers on that page with the code.
//!
//! *Invariants.* A word or a block means the same for all members, for as long as the job lasts.
//! Encoding and decoding are inverse to each other. Other processes write all of this memory, so a
//! decoder accepts any bytes: it returns `None` or a harmless value for bytes that no member wrote,
//! and it never panics.
//!
//! *Callers.* All layers of the store call this layer. It is the lowest layer and calls none of
//! them.
//!
//! *On a death.* This layer keeps no state, so a death changes nothing in it. The bytes that a dead
//! member left are decoded like the bytes of a living member. The protocols decide whether to
//! believe them.

pub(in crate::store) mod bucket;
pub(in crate::store) mod head;
pub(in crate::store) mod intent;
pub(in crate::store) mod layout;
pub(in crate::store) mod place;
