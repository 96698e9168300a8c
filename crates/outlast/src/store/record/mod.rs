//! The record layer: finding, writing, reading, reconciling and deleting a replicated record.
//!
//! A record is the node of a key in the index of a replica: the key and the head word, which names
//! the block of the current version. This layer changes the records of a key at all its replicas so
//! that they act as a single, linearizable record.
//!
//! # The layers
//! The store is built in layers. From the bottom: `segment` (words and offsets of the memory),
//! `placement` (the replicas of a partition), `operation` (participants, views, configurations,
//! grace periods), `memory` (blocks), **`record`**, `tx` (transactions), `recovery` (repair, loss,
//! salvage, leaving), `member` (opening, background, messages) and `api` (the public calls). A
//! layer uses the layers below it. [`RecordState`](state::RecordState) contains the state of the
//! memory layer, and [`RecordOp`](state::RecordOp) contains an operation of the memory layer.
//!
//! | file | what it does | protocol page |
//! |---|---|---|
//! | `state.rs` | the state of the layer, an operation on records, and how a call is run | |
//! | `put.rs` | the entry points of calls that change a key, and the choice of their path | |
//! | `write.rs` | a write on the slow path: *find*, *check*, *confirm* | writing.md |
//! | `publish.rs` | *fill*, *publish*, *install*, *catch_up* and *mark_stable* | writing.md |
//! | `fast_mapped.rs` | a change and a get where all members map the memory | writing.md |
//! | `fast_change.rs` | what the mapped fast path writes: put, conditional put, addition | writing.md |
//! | `fast_remote.rs` | a put by compound operations over a network | writing.md |
//! | `reconcile.rs` | making the newest version stable: *seal* to *mark_stable* | reconciling.md |
//! | `read.rs` | a read, on the slow path and over a network | reading.md |
//! | `visibility.rs` | what a reader sees of a version that is not plain | transactions.md |
//! | `remove.rs`, `version_floor.rs` | removing the records of deleted keys | deleting.md |
//! | `waiters.rs`, `lock.rs` | waiter words, and locks | waiting.md |
//! | `index.rs`, `walk.rs` | the index of a partition at a replica, and the walk over it | |
//! | `grow.rs` | the growth of this member's indexes | growing.md |
//! | `block_io.rs`, `checksum.rs` | reading, checking, filling and retiring a block | |
//! | `key.rs` | a key with its hash and its partition | |
//! | `location.rs` | cached locations | writing.md |
//! | `key_locations.rs`, `location_cache.rs` | the location cache, on mapped memory and over a network | |
//! | `hints.rs` | hints of memory to prefetch | |
//!
//! # Vocabulary
//! docs/protocol/README.md and docs/glossary.md define the words. In the code:
//!
//! | type | meaning |
//! |---|---|
//! | [`KeyRef`](key::KeyRef) | a key with its hash and partition |
//! | [`Head`](crate::store::segment::head::Head) | the content of a head word |
//! | [`Predecessor`](write::Predecessor) | the version that a write replaces |
//! | [`NewVersion`](write::NewVersion) | the version that is being written, with its blocks |
//! | [`BlockImage`](block_io::BlockImage) | the bytes that a block is filled with |
//! | [`CachedLocation`](location::CachedLocation) | where a handle last saw the record |
//!
//! # Invariants
//! The invariants of docs/protocol/README.md hold after every word operation, not only after a
//! call. For the code of this layer they mean:
//!
//! 1. Each access happens inside a [`RecordOp`](state::RecordOp). While it is in flight, no block
//!    and no node that it may have read is reused.
//! 2. A block is filled before a head word names it, and no operation changes it while a head word
//!    names it. Its holder changes only after the block was swapped out.
//! 3. A head word changes only by a compare-and-swap from the exact word that was read. The new
//!    word is greater in the order (configuration number, version counter), adds the stable bit, or
//!    is *removed*. Salvage is the exception: it makes records that no other member can reach yet.
//! 4. The stable bit of a version is set only after the waiters of the partition were rung.
//! 5. An operation validates a cached location or a hint before it relies on it. A store that was
//!    opened with sole writers leaves out a single check, that of the version counter.
//! 6. A block that an attempt took and did not use goes back to the magazine of its participant. If
//!    a request to the block timed out, the block is given up, because the request may still write
//!    to it.
//!
//! # Who may call it
//! The layers `tx`, `recovery`, `member` and `api` call this layer. A call of the public interface
//! runs through [`RecordState::run_call`](state::RecordState::run_call), which passes the gate of
//! global mode. Calls of the store on its own records run through
//! [`RecordState::run`](state::RecordState::run). This layer calls upwards only by the trait of
//! `operation/above.rs`.
//!
//! # On a death
//! A member may die after any word operation. Its blocks that no head word names are reclaimed by
//! their replicas. A version that it published and did not finish is finished by the next operation
//! that reads the head word, by reconciling. A reader leaves nothing behind. A living member sees
//! the death as a change of the view: an access is then refused, the operation ends with
//! [`OpError::Again`](crate::store::operation::error::OpError::Again), and the call starts over. If
//! the version may have been published before, the call confirms it first.
//!
//! # How to read a put
//! Through a handle on shared memory:
//!
//! 1. `api/handle.rs` (`KeyHandle::put`) has the cached location
//! 2. `record/put.rs` (`put_cached`) chooses the path
//! 3. `record/fast_mapped.rs` has the whole put; over a network `record/fast_remote.rs` takes its
//!    place
//! 4. `memory/magazine.rs` gives and retires the blocks
//! 5. `operation/op.rs` (`begin_again`) begins the operation, and ends it
//! 6. `engine/shm/access.rs` reaches the memory of a member after a single check of the view
//! 7. `engine/shm/sys.rs` copies the bytes
//!
//! By key on shared memory, if this member did not write the key last. Otherwise its location cache
//! (`record/key_locations.rs`) has a location, and the call goes on as through a handle:
//!
//! 1. `api/store.rs` (`Store::put`) checks the key
//! 2. `record/put.rs` (`put_by_key`) chooses the path; `record/state.rs` begins the
//!    operation, and `operation/retry.rs` repeats it
//! 3. `record/write.rs` finds the record (`record/index.rs`), and checks it
//!    (`record/reconcile.rs`)
//! 4. `record/publish.rs` orders the version and copies it to the replicas (`record/block_io.rs`)
//! 5. `memory/allocator.rs` takes and retires the blocks
//! 6. `operation/op.rs` begins and ends the operation, and passes the view with each access
//! 7. `job/dispatch.rs` forwards the access to the engine
//! 8. `engine/shm/access.rs` checks the view, and turns a member and an offset into an address

pub(in crate::store) mod block_io;
pub(in crate::store) mod checksum;
pub(in crate::store) mod fast_change;
pub(in crate::store) mod fast_mapped;
pub(in crate::store) mod fast_remote;
pub(in crate::store) mod grow;
pub(in crate::store) mod hints;
pub(in crate::store) mod index;
pub(in crate::store) mod key;
pub(in crate::store) mod key_locations;
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
