//! Ways to break the protocol on purpose, one at a time, so that `cargo xtask mutants` can show
//! that each would be noticed. In builds with the feature `faults` the environment variable
//! `OUTLAST_MUTANT` names the one; in others there are none.

/// The names, and what they break. xtask has the same list.
#[cfg(feature = "faults")]
const NAMES: [&str; 23] = [
    // A write is acknowledged before the last replica holds it.
    "ack-early",
    // The head names a block whose value is not there yet.
    "publish-early",
    // Operations of an older view go through.
    "skip-epoch",
    // A block is used again while others may still read it.
    "reuse-early",
    // What another one has published and not finished is taken as it is.
    "no-help",
    // Repair replaces what is newer.
    "repair-over-newer",
    // A replica that is not complete answers for the partition.
    "trust-absent",
    // After a delete versions begin anew.
    "forget-tombstone",
    // A replica that began to fill while a version was written is left out.
    "miss-news",
    // A handle replaces what it wrote last without a look at the version that is there.
    "assume-version",
    // A transaction changes what it has read also if it has changed since.
    "tx-lost-update",
    // A transaction does not look again at what it only read.
    "tx-skip-look",
    // Readers read past a transaction that is in doubt.
    "tx-read-past",
    // A transaction is applied before it is decided.
    "tx-apply-early",
    // One who finds a transaction in its way aborts it also if it is committed.
    "tx-abort-late",
    // An intent is dropped before the transaction is applied.
    "tx-drop-intent",
    // A partition that is given up keeps what an incomplete replica had of it.
    "accept-keeps",
    // The changes of a recovery can be seen before all members have prepared theirs.
    "recover-partly-visible",
    // A member takes a recovery to be decided when it has prepared its own part.
    "recover-skip-vote",
    // What was prepared for a recovery that does not happen is carried out.
    "recover-skip-abort",
    // Whatever a dead member has left of a value is believed.
    "salvage-torn",
    // The first of the dead is asked, and not the last.
    "salvage-oldest",
    // A version that went to the dead after they were read is acknowledged.
    "salvage-late",
];

/// Whether the protocol is to be broken in this way.
#[cfg(feature = "faults")]
pub(in crate::store) fn mutant(name: &str) -> bool {
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

#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(in crate::store) fn mutant(_: &str) -> bool {
    false
}
