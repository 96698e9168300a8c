//! The steps of saving and of rollbacks, by name, for failpoints (feature `faults`).
//!
//! docs/protected-windows.md in the repository has the tables of the steps, with what survivors
//! find after a death in each of them.

use crate::failpoint;

/// A step of the protocols of seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// All operations of the seat are complete, and all seats are here.
    Freeze,
    /// The pieces and the descriptor of a generation are written.
    Encode,
    /// All seats say whether they could.
    Vote,
    /// The course says that the generation counts.
    Verdict,
    /// Slots and records of the generation before are given up.
    Free,
    /// Operations that were given up are waited for.
    Stop,
    /// All members agree on the dead, or that all closures have ended.
    Agree,
    /// The course gives the seats of the dead to others.
    Assign,
    /// The holders load the generation that counts.
    Load,
    /// All members agree that all have loaded.
    Restart,
    /// What was noted goes to the witness.
    Record,
    /// The waiting puts are appended to the journal.
    Journal,
    /// The waiting puts go to their targets.
    Send,
    /// The witness learns that the puts are complete.
    Close,
    /// A seat tells its parent or its children in the tree.
    Tell,
    /// All members agree on the dead, or that all closures have ended, while closures go on.
    Meet,
    /// The dead are served no more.
    Settle,
    /// All members agree that a single seat is lost, and that its logs are enough.
    AgreeAlone,
    /// The course gives the lost seat to its next holder.
    Adopt,
    /// The next holder loads the generation, the record and the journals.
    LoadLogs,
    /// The next holder repeats what the dead holder did.
    Replay,
    /// The past is over: the next holder does what the dead holder had begun.
    GoLive,
    /// All members agree that the seat has its next holder.
    Resume,
}

/// How many steps seats have without logs; the others are entered in logged mode alone.
pub const UNLOGGED: usize = 10;

/// The names of the steps, in the order of [`Step`].
pub const NAMES: &[&str] = &[
    "seat.freeze",
    "seat.encode",
    "seat.vote",
    "seat.verdict",
    "seat.free",
    "seat.stop",
    "seat.agree",
    "seat.assign",
    "seat.load",
    "seat.restart",
    "log.record",
    "log.journal",
    "log.send",
    "log.close",
    "log.tell",
    "recover.meet",
    "recover.settle",
    "recover.agree",
    "recover.adopt",
    "recover.load",
    "recover.replay",
    "recover.go_live",
    "recover.resume",
];

/// The first number of a step of seats; lower numbers are steps of the store.
const FIRST: u32 = 500;

/// Lets this process die by SIGKILL at the `after`-th engine step of the next thread that enters
/// this step, an index into [`NAMES`].
pub fn die_in(step: usize, after: u64) {
    failpoint::die_in(FIRST + step as u32, after);
}

/// The calling thread is in this step until the guard is dropped.
#[inline]
pub(super) fn within(step: Step) -> failpoint::Within {
    let index = step as u32;
    failpoint::within(failpoint::Step { index: FIRST + index, name: NAMES[index as usize] })
}
