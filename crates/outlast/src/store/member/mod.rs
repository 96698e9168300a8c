//! The store at a member: the state of all layers, opening and closing, messages, background work.
//!
//! [`state::StoreState`] holds the state of every folder below, each inside the state of the next:
//! operation, memory, record, tx, recovery, and this folder. [`open`] makes the state and [`close`]
//! ends it, [`stores`] knows the stores of the job by their names and receives their messages,
//! [`dispatch`] handles the messages of a store, [`background`] is the list of the background
//! services, [`counts`] times calls, and [`status`] tells observers outside of the job.
//!
//! # Vocabulary
//! - *Root*: the range of a segment from which all data of the store at that member are found.
//! - *Background*: the activity of the job that runs its services whenever the bell of the member
//!   has rung, or a service is due.
//! - *Service*: a bounded piece of background work. It returns when it wants to run again.
//! - *Opening*: the life of a store from `open` to `close`. All members agree on its number.
//! - *Message*: what members tell each other about the store (`operation/message.rs`).
//!
//! # Invariants
//! - The store is open at a member only when the member knows the roots of all living members, and
//!   their options equal its own.
//! - No service except the handling of messages runs before the store is open or after it is
//!   closed.
//! - After `close`, the gate is closed for ever, and every call returns `Closed`.
//! - A folder below reaches this folder only through the trait in `operation/above.rs`.
//!
//! # Callers
//! The folder `api` calls it, and the background of the job calls [`background::Background`].
//!
//! # After a death
//! Opening and closing do not wait for a dead member. The engine rings the bell, and the background
//! runs. [`background`] lists the services that act on the death.

pub(in crate::store) mod background;
pub(in crate::store) mod close;
pub(in crate::store) mod counts;
pub(in crate::store) mod dispatch;
pub(in crate::store) mod open;
pub(in crate::store) mod state;
pub(in crate::store) mod status;
pub(in crate::store) mod stores;
