//! The public calls of the store.
//!
//! Each file holds the calls of a subject, as `impl Store`, and the types that they return. A call
//! checks its arguments and the gate, and then uses the folders below: `record` for a single key,
//! `tx` for several keys, `recovery` for what a death leaves.
//!
//! # Vocabulary
//! - *Handle*: a key with its cached location, or a transaction that is not a closure.
//! - *Owner*: the member that is responsible for a key, for programs that divide their keys among
//!   members. It can differ from the replicas.
//! - *Gate*: the check that returns `Revoked` in global mode, from a death to the next recovery.
//! - *Reserved key*: a key of the store's own, which begins with `RESERVED`. No public call changes
//!   or lists it.
//!
//! # Invariants
//! - A call that returns `Ok` for a write has made it stable: every complete replica holds it.
//! - A call that needs a living member which does not answer ends at its deadline, or at the job's
//!   time limit.
//! - A call keeps no operation in flight while it waits for a key, a lock or a repair, since an
//!   operation in flight keeps blocks from being reused. A part of a consistent cut is the
//!   exception ([`cut`]).
//! - No lock of the store is held while code of the program runs (a listener, a procedure, a
//!   closure).
//!
//! # Callers
//! Programs call it through [`Store`](super::Store), `crate::snapshot` uses [`cut`], and no folder
//! of the store imports it. Every call may be made from any thread.
//!
//! # After a death
//! A call in flight goes on under the new view, or returns an error. The calls in [`deaths`] tell a
//! program of a death and of the heir, [`loss`] reports lost partitions, [`repair`] reports missing
//! replicas, and [`recover`] is the coordinated recovery of global mode. A lock whose holder is
//! dead is taken over by the next caller, and a pin ends with its member.

pub(in crate::store) mod batch;
pub(in crate::store) mod cut;
pub(in crate::store) mod deaths;
#[cfg(feature = "async")]
pub(in crate::store) mod future;
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
#[cfg(any(feature = "serde", feature = "postcard"))]
pub(in crate::store) mod typed;
pub(in crate::store) mod wait;
