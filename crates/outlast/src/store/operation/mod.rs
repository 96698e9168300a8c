//! Operations: how a participant of this member reaches the segments of all members.
//!
//! *Purpose.* An operation is an attempt at a call, by a single participant, under a single view.
//! This layer begins and ends operations ([`op`], [`participants`]), finds the configuration of a
//! partition ([`configuration`]), and repeats attempts until a call is done or its time is over
//! ([`retry`]). It also waits for operations in flight: of all members ([`grace_period`]) or of
//! this member alone ([`quiescence`]), and for requests that outlive their operation
//! ([`stragglers`], [`open_swaps`]). Three switches hold operations back: the gate of coordinated
//! recovery ([`gate`]), the write freeze of a consistent cut ([`freeze`]), and the set of leavers
//! ([`leavers`]). [`message`] has the messages between the members.
//!
//! *Vocabulary.* Participant, operation counter, in flight, grace period, straggler, configuration,
//! leaver, gate, write freeze: docs/glossary.md defines them. docs/protocol/placement.md has the
//! rules of configurations, docs/protocol/memory.md the tables of grace periods and stragglers.
//!
//! *Invariants.*
//!
//! - The operation counter of a participant is odd exactly while its operation is in flight. No
//!   block that the operation may have seen is reused meanwhile.
//! - An operation makes its counter odd before it checks the gate, the freeze and the leavers. A
//!   member changes these switches before it reads the counters. So either the operation sees the
//!   switch, or the member sees the operation and waits for it.
//! - An operation that ends with a straggler has recorded it before its counter becomes even.
//! - The epoch of an operation does not change, unless the operation adopts a newer view itself
//!   ([`op::Op::renew`]).
//!
//! *Callers.* The memory layer wraps [`op::Op`] in its own operation, and the layers above wrap
//! that in turn, so all layers from memory to api call this layer. It calls placement and segment.
//! The only way upwards is [`above`]: an operation asks the layers above to remove an obstacle.
//!
//! *On a death.* The engine refuses operations of an older view, or the operation finds that the
//! epoch has changed. It then starts over ([`error::OpError::Again`]) and enters the new
//! configuration. Grace periods do not wait for dead members. If this member dies, its counters
//! stay as they are, and the survivors ignore them once their view contains the death.

pub(in crate::store) mod above;
pub(in crate::store) mod configuration;
pub(in crate::store) mod error;
pub(in crate::store) mod freeze;
pub(in crate::store) mod gate;
pub(in crate::store) mod grace_period;
pub(in crate::store) mod leavers;
pub(in crate::store) mod message;
pub(in crate::store) mod op;
pub(in crate::store) mod open_swaps;
pub(in crate::store) mod participants;
pub(in crate::store) mod quiescence;
pub(in crate::store) mod retry;
pub(in crate::store) mod state;
pub(in crate::store) mod stragglers;
