//! Transactions: reads and changes of several keys that take effect at a single moment.
//!
//! # Purpose
//!
//! A transaction reads keys and keeps its changes private. To commit, it writes an *intent*, a
//! record of the store's own that lists its keys. It then puts a *provisional version* in the place
//! of each key that it changes, and decides by a conditional write of the intent. Intents and
//! provisional versions are ordinary versions of ordinary records: the record layer writes,
//! reconciles, copies and repairs them. This layer gives them their meaning.
//!
//! The layers of the store, from the bottom: segment, placement, operation, memory, record, **tx**,
//! recovery, member, api. This layer uses the layers below it and knows nothing of the layers
//! above.
//!
//! # Modules
//!
//! - [`transaction`]: a transaction as the program sees it: reads, private changes, commit, abort,
//!   retry.
//! - [`commit`]: the steps of the committer, *intent*, *lock*, *validate* and *commit*.
//! - [`resolve`]: the steps that any member may take, *abort*, *apply* and *roll_back*, and the
//!   recovery decision, which decides the intents of a coordinated recovery.
//! - [`cleanup`]: *release*, and the transactions that their committer did not end.
//! - [`state`]: what a member keeps for transactions.
//!
//! # Vocabulary
//!
//! The *committer* is the member that runs a transaction. A key is *locked* while its current
//! version is a provisional version. The *observed version* is what a transaction records of a key
//! that it read. The *failed attempts* of a transaction are the attempts that did not commit; the
//! field `attempts` counts them. The *heir* of a dead member ends its *orphaned intents*. The page
//! below defines the other words.
//!
//! # Invariants
//!
//! 1. An intent lists every key that has a provisional version of its transaction, and is written
//!    before the first of them.
//! 2. An intent is decided once. A decided intent does not change before each of its keys has lost
//!    its provisional version.
//! 3. Only *apply*, *roll_back*, a second *lock* of its own transaction and, once the transaction
//!    is aborted, a write of the key replace a provisional version. Each of them writes from
//!    exactly the version that it found. Every member that does *apply* or *roll_back* makes an
//!    identical version, so these steps can be repeated.
//! 4. An intent record is reused only when no key has a provisional version of its transaction.
//!
//! # Callers
//!
//! The api layer runs transactions (`api::transaction`) and the transactions of a coordinated
//! recovery (`api::recover`). The background of the member layer calls
//! [`state::TxState::end_transactions`]. An operation that meets a provisional version in its way
//! calls [`state::TxState::clear`], through `operation::above`.
//!
//! # A death
//!
//! A dead committer leaves an intent and provisional versions. Readers and writers of its keys
//! decide and resolve what they meet. Its heir ends all its intents, and deletes them. If a member
//! dies while it ends the transaction of another member, the next member repeats the step. If a
//! partition with an intent or with a key is lost, the committer returns `DataLost`.
#![cfg_attr(
    outlast_pages,
    doc = include_str!("../../../../../docs/protocol/transactions.md")
)]

pub(in crate::store) mod cleanup;
pub(in crate::store) mod commit;
pub(in crate::store) mod resolve;
pub(in crate::store) mod state;
pub(in crate::store) mod transaction;
