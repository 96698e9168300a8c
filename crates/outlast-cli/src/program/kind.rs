//! The kinds of random programs.

use clap::ValueEnum;
use outlast_check::workload::Mix;
use serde::{Deserialize, Serialize};

/// What kind of calls the members of a run make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum ProgramKind {
    /// Calls on a single key each
    Calls,
    /// Puts to few keys, also of values that travel in several pieces
    Puts,
    /// Conditional puts and additions on few keys
    Conditional,
    /// Calls and transactions over random keys
    Mixed,
    /// Transfers between accounts, whose sum must not change
    Bank,
    /// Steals of tasks: two queues and the task's record change together
    Steal,
    /// Programs of seats: puts, gets, locks, counters and words
    Seats,
    /// A hash table on seats: words that are inserted and counted
    Table,
    /// A transform with transpositions on seats
    Transform,
}

impl std::fmt::Display for ProgramKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ProgramKind::Calls => "calls",
            ProgramKind::Puts => "puts",
            ProgramKind::Conditional => "conditional",
            ProgramKind::Mixed => "mixed",
            ProgramKind::Bank => "bank",
            ProgramKind::Steal => "steal",
            ProgramKind::Seats => "seats",
            ProgramKind::Table => "table",
            ProgramKind::Transform => "transform",
        })
    }
}

impl ProgramKind {
    /// Whether the programs are those of seats, and make no calls on the store.
    pub(crate) fn is_of_seats(self) -> bool {
        matches!(self, ProgramKind::Seats | ProgramKind::Table | ProgramKind::Transform)
    }

    pub(super) fn mix(self) -> Mix {
        let calls =
            Mix { get: 35, put: 35, put_if: 10, delete: 5, add: 8, wait: 2, ..Mix::NOTHING };
        match self {
            ProgramKind::Calls => calls,
            ProgramKind::Puts => {
                Mix { get: 12, put: 80, put_if: 3, delete: 2, wait: 3, ..Mix::NOTHING }
            }
            ProgramKind::Conditional => {
                Mix { get: 15, put: 15, put_if: 40, delete: 3, add: 25, wait: 2, ..Mix::NOTHING }
            }
            ProgramKind::Mixed => Mix { get: 25, put: 20, transaction: 30, ..calls },
            ProgramKind::Bank => Mix { transfer: 60, audit: 15, peek: 25, ..Mix::NOTHING },
            ProgramKind::Steal => Mix { steal: 60, audit: 10, peek: 30, ..Mix::NOTHING },
            ProgramKind::Seats | ProgramKind::Table | ProgramKind::Transform => Mix::NOTHING,
        }
    }
}
