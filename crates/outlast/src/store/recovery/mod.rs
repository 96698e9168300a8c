//! What happens after a death.
//!
//! # Purpose
//!
//! This layer makes lost replicas again, reads lost partitions from dead segments, accepts losses,
//! and takes back what dead members held. It also lets a member leave without a loss, and it
//! coordinates the members in global mode. The layers of the store, from the bottom: segment,
//! placement, operation, memory, record, tx, **recovery**, member, api. This layer uses the layers
//! below it and knows nothing of the layers above.
//!
//! # After a death, in order
//!
//! The engine raises the epoch before any member acts on the death. Operations meet the new
//! configuration at their next load of the epoch
//! ([`configuration`](super::operation::configuration)), and reconcile each record that they touch
//! ([`reconcile`](super::record::reconcile)). In localized mode no member stops. The background of
//! each living member then does the following, in this order, in small pieces, and serves messages
//! in between:
//!
//! 1. *Gate.* In global mode it closes the gate: every call returns `Revoked` until all members
//!    have recovered together ([`coordinated`], [`gate`](super::operation::gate)).
//! 2. *Loss.* It accepts the losses that this member was asked to accept, as the first replica of a
//!    lost partition ([`loss`]).
//! 3. *Leaving.* It answers leavers, and takes the steps of its own leaving. A death can be the
//!    last answer that a leaver has waited for ([`leave`]).
//! 4. *Repair.* It makes the indexes of new replicas at this member, and fills the new replicas of
//!    the partitions that this member is the primary of ([`repair`]).
//! 5. *Salvage.* Where repair finds no complete living replica, and salvage is on, the first
//!    replica reads the partition from a dead segment ([`salvage`]). Without salvage the partition
//!    is lost.
//! 6. *Reports of loss.* It calls the program's listeners if partitions or keys are lost
//!    ([`loss`]).
//! 7. *Dead segments.* When every partition lives, the living member with the lowest number gives
//!    the dead segments back to the system ([`salvage`]).
//! 8. *Reclaiming.* It takes back the blocks of this member's segment that dead members held
//!    ([`reclaim`]).
//! 9. *Transactions of dead members.* As the heir of a dead member it ends the orphaned intents
//!    ([`cleanup`](super::tx::cleanup)).
//!
//! # Vocabulary
//!
//! The *first replica* is the first member in the list of a configuration. The *primary* is the
//! first member of the list that was complete before the configuration, if there is any. A
//! *repairer* fills new replicas. A partition *lives* if a primary exists. Otherwise it is being
//! *salvaged*, or is *lost* until the program accepts the loss. [`state`] has what a member keeps
//! for all of this.
//!
//! # Invariants
//!
//! 1. A replica becomes complete only by a swap of its state word from exactly the word that the
//!    repairer, salvager or first replica has seen. So a late member of an older configuration
//!    fails.
//! 2. Each step can be repeated. Several members that do the work of a single step at once do no
//!    harm.
//! 3. A single activity of a member makes indexes at a time
//!    ([`state::RecoveryState::begin_indexes`]).
//! 4. No lock of this layer is held while the engine is called.
//!
//! # Callers
//!
//! The background of the member layer (`member::background`) runs the pieces, and its dispatcher
//! (`member::dispatch`) passes messages on. The api layer calls this layer for the calls of the
//! program that concern losses, repair, leaving and recovery. An operation of a lower layer calls
//! it through `operation::above`, to wait for a salvage, to watch the gate, and to record damage.
//!
//! # A death during recovery
//!
//! The next view starts the work again: repair visits all partitions, the next first replica
//! salvages or accepts, the next heir ends the intents. The pages that the modules include say for
//! each step what a survivor finds.

pub(in crate::store) mod coordinated;
pub(in crate::store) mod leave;
pub(in crate::store) mod loss;
pub(in crate::store) mod reclaim;
pub(in crate::store) mod repair;
pub(in crate::store) mod salvage;
pub(in crate::store) mod state;
