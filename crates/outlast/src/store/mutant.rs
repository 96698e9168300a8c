//! Mutants: ways to break the protocols on purpose, so that `cargo xtask mutants` can show that the
//! tests notice each of them.
//!
//! In builds with the feature `faults` the environment variable `OUTLAST_MUTANT` names a mutant.
//! Other builds have no mutants.

/// The names of the mutants, each with what it breaks. `xtask/src/mutants.rs` has an equal list.
#[cfg(feature = "faults")]
const NAMES: [&str; 57] = [
    // A write is acknowledged before the last replica holds the version.
    "ack-early",
    // The head word names a block before its value is written.
    "publish-early",
    // Operations of an older view take effect.
    "skip-epoch",
    // A block is reused while operations in flight may still read it.
    "reuse-early",
    // A version that another member has published and not finished is taken as stable.
    "no-help",
    // A replica answers a read from its own memory with a version that may be unstable.
    "near-unmarked",
    // A replica answers a read from its own memory with what it knew before the last death.
    "near-older",
    // A member reads its own replica although it maps the memory of the primary.
    "near-own-node",
    // An index takes shared chains apart while lookups of the former bucket are in flight.
    "grow-early",
    // A bucket is split by what it held before the last insertion.
    "grow-stale",
    // A new bucket is marked as valid before the former bucket is split.
    "grow-mark-early",
    // A member inserts a record into a bucket that was split after its lookup.
    "grow-insert-late",
    // A shared chain is taken apart further while lookups of the other bucket may be on the way.
    "grow-unzip-ahead",
    // A bucket is split while it shares nodes with another bucket.
    "grow-again-early",
    // A node is unlinked from one of the two chains that share it.
    "grow-unlink-shared",
    // An index that is given up retires a shared node from both chains.
    "grow-retire-twice",
    // A walk takes a shared node from both chains.
    "grow-walk-twice",
    // Repair replaces newer versions.
    "repair-over-newer",
    // Repair takes a record for copied although its swap at the new replica failed.
    "repair-lost-swap",
    // Repair lets a write go on that began before the repair, and does not know of it.
    "repair-uncounted",
    // A filling replica becomes the primary.
    "trust-absent",
    // After a delete the versions of the key begin anew.
    "forget-tombstone",
    // A handle replaces the version that it wrote last without a check of the current version.
    "assume-version",
    // A conditional put by handle on mapped memory does not test its condition.
    "assume-condition",
    // A transaction changes a key that has changed since the transaction read it.
    "tx-lost-update",
    // A transaction does not validate the keys that it only read.
    "tx-skip-look",
    // Readers pass a transaction that is validating.
    "tx-read-past",
    // A transaction is applied before it is decided.
    "tx-apply-early",
    // A member aborts a transaction that blocks it although the transaction is committed.
    "tx-abort-late",
    // An intent is released before its transaction is applied.
    "tx-drop-intent",
    // Readers pass a pending transaction that began in an older view.
    "tx-read-older",
    // A transaction is acknowledged although a change was lost before it was applied.
    "tx-skip-outcome",
    // A partition with an accepted loss keeps the records of an incomplete replica.
    "accept-keeps",
    // The changes of a recovery are visible before all members have prepared their changes.
    "recover-partly-visible",
    // A member considers a recovery decided when it has prepared its own changes.
    "recover-skip-vote",
    // The changes that were prepared for an aborted recovery are applied.
    "recover-skip-abort",
    // A value in a dead segment is salvaged although its checksum is wrong.
    "salvage-torn",
    // A partition is salvaged from the replica that died first, and not last.
    "salvage-oldest",
    // A version that was written to a dead segment after its salvage is acknowledged.
    "salvage-late",
    // The record of an image is put before its last piece is written.
    "image-commit-early",
    // A save writes into slots that the image before it names.
    "image-reuse-slot",
    // A save of changed bytes leaves the parity as it was.
    "image-stale-parity",
    // A place of a dead holder goes to a member of a domain that holds a piece already.
    "image-same-domain",
    // A piece with a good checksum is taken, whichever save has written it.
    "image-old-piece",
    // Each wait of a call has the time limit, and not all of them together.
    "limit-per-wait",
    // The background waits for a stopped member as long as a call does.
    "background-waits",
    // A checkpoint of regions is decided before all callers have described theirs.
    "region-vote-missing",
    // A verdict on a save takes effect although a rollback came first.
    "seat-verdict-after-rollback",
    // A save of seats is decided before all seats have described theirs.
    "seat-verdict-early",
    // A seat leaves its point before the verdict.
    "seat-thaw-early",
    // A seat is saved at its point while other seats still run.
    "seat-stage-early",
    // The next holder of a seat loads its newest save, with or without a verdict.
    "seat-rollback-one-late",
    // A survivor keeps its memory in a rollback.
    "seat-survivor-keeps",
    // A survivor keeps the lock word of its seat in a rollback.
    "seat-lock-kept",
    // A seat that gave a point up goes on while the others save.
    "seat-step-kept",
    // A seat gets the note of another seat.
    "seat-wrong-note",
    // Seats are looked for where they were before they were adopted.
    "seat-adopt-without-incarnation",
];

/// Whether the protocol is to be broken in this way.
#[cfg(feature = "faults")]
pub(crate) fn mutant(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let chosen = std::env::var("OUTLAST_MUTANT").ok().filter(|name| !name.is_empty());
        if let Some(name) = &chosen {
            assert!(NAMES.contains(&name.as_str()), "OUTLAST_MUTANT={name}: there are {NAMES:?}");
        }
        chosen
    });
    chosen.as_deref() == Some(name)
}

/// Without the feature `faults` no protocol is broken.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) fn mutant(_: &str) -> bool {
    false
}
