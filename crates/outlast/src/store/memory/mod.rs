//! Memory: taking, retiring and reusing the blocks of the replicas.
//!
//! *Purpose.* Each replica divides its segment into blocks ([`slab`]). An operation takes a block
//! at a replica, fills it, and retires the block that its own block has replaced ([`allocator`]).
//! Free and retired blocks of a participant are in its magazine ([`magazine`]). A pinned version
//! keeps its blocks ([`pins`]). A replica without room recalls the blocks that members keep and do
//! not use ([`recall`]). [`state`] has the state of the layer, and the operation that owns a
//! magazine. The layer below knows which operations are in flight (`operation/grace_period.rs`),
//! which requests may still land (`operation/stragglers.rs`), and which blocks are free then
//! (`operation/open_swaps.rs`). `recovery/reclaim.rs` takes back the blocks of dead members.
//!
//! *Vocabulary.* Block, size class, slab, free list, magazine, holder, retire, grace period, pin:
//! the page below defines them and has all tables of this protocol. The code calls a free list a
//! *stack*, and the free and retired blocks of a replica and class in a magazine a *ring*.
//!
//! *Invariants.*
//!
//! - A block is on a free list, in a magazine, in the shared lists of the [`allocator`], with an
//!   operation that fills it, or in use (named by a head word, or a node of an index), and
//!   never in two of these places. While a swap that was not answered in time may still make a
//!   block reachable or take it out, the straggler has the block (`operation/open_swaps.rs`).
//! - A retired block is reused only after a grace period, and not while it is pinned.
//! - A block goes onto a free list only when it is new, or right after a grace period. So the
//!   compare-and-swap of the top needs no version tag against ABA. A block that was taken and not
//!   used stays with its member.
//! - The holder word of a block names the member that may reuse it when no head word names it.
//!
//! *Callers.* The record layer wraps [`state::MemoryOp`] in its own operation, and all layers above
//! use it through that. Recovery takes blocks back, and the api pins versions. Memory calls the
//! operation layer and below.
//!
//! *On a death.* A dead member's magazines are private memory and are gone. The holder words in the
//! blocks survive at the replicas, and each replica takes back the blocks that they name. A dead
//! replica takes its blocks with it: requests for them fail with the next view. A dead member's
//! pins do not count any more.
#![cfg_attr(
    outlast_pages,
    doc = include_str!("../../../../../docs/protocol/memory.md")
)]

pub(in crate::store) mod allocator;
pub(in crate::store) mod magazine;
pub(in crate::store) mod pins;
pub(in crate::store) mod recall;
pub(in crate::store) mod slab;
pub(in crate::store) mod state;
