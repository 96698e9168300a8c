//! Ways to break the protocol of the logs on purpose, by name. A test runs each of them with a seed
//! that catches it: `each_mutant_of_the_logs_is_caught`.

/// The mutants, each with what it breaks.
pub const NAMES: &[(&str, &str)] = &[
    ("put-before-record", "puts are sent before the gets that they depend on are in the record"),
    ("put-at-once", "a put does not wait for the release"),
    ("replay-unsorted", "entries of journals are put without regard to their epochs"),
    ("replay-all-puts", "entries of all epochs are put when the replay begins"),
    ("close-after-tell", "a seat tells its parent before its puts count as closed"),
    ("put-before-journal", "puts are sent a round before they are in the journal"),
    ("journal-left-out", "the next holder reads no journal"),
    ("agree-in-a-mark", "a seat is recovered whose interval is marked"),
    ("resume-without-entering", "members look for the seat at its dead holder"),
    ("round-decided-anew", "the next holder of seat 0 decides a round that was released"),
    ("told-not-pulled", "the next holder does not look what it was told"),
    ("budget-ignored", "logs that are full drop entries, and their interval is not marked"),
    ("logs-kept", "after a save the logs of the generation before are still there"),
];
