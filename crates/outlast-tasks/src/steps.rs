//! The steps of the runtime, by name, and the ways to break them on purpose.
//!
//! In builds with the feature `faults` a process can be told to die in a step, with [`die_in`], and
//! the environment variable `OUTLAST_TASKS_MUTANT` names a mutant. `docs/tasks.md` has the table of
//! the steps, with what survivors find after a death in each of them.

use outlast::failpoint;

/// A step of the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The record of a task is put, open.
    Share,
    /// A hint is written to the own board.
    Advertise,
    /// An open task is claimed.
    Claim,
    /// The result of a held task is put.
    Complete,
    /// The worker that waits is told.
    Notify,
    /// Progress is put.
    SaveLeft,
    /// The two halves of a fork are joined.
    Join,
    /// A task whose holder is dead is opened again.
    Reopen,
    /// The slots of past holders are read.
    Resume,
}

/// The names of the steps, in the order of [`Step`].
pub const NAMES: &[&str] =
    &["share", "advertise", "claim", "complete", "notify", "save_left", "join", "reopen", "resume"];

/// The first number of a step of the runtime; lower numbers are steps of the store.
const FIRST: u32 = 1000;

/// Lets this process die by SIGKILL at the `after`-th engine step of the next thread that enters
/// this step, an index into [`NAMES`].
pub fn die_in(step: usize, after: u64) {
    failpoint::die_in(FIRST + step as u32, after);
}

/// The calling thread is in this step until the guard is dropped.
#[inline]
pub(crate) fn within(step: Step) -> failpoint::Within {
    let index = step as u32;
    failpoint::within(failpoint::Step { index: FIRST + index, name: NAMES[index as usize] })
}

/// The names of the mutants, each with what it breaks. `xtask/src/mutants.rs` has an equal list.
#[cfg(feature = "faults")]
const MUTANTS: [&str; 34] = [
    // A claim takes effect whatever the record says meanwhile.
    "claim-unconditional",
    // A result takes effect whatever the record says meanwhile.
    "complete-unconditional",
    // The heir does not open the tasks of the dead again, nor does a waiter: one owner is missing.
    "reopen-skips-heir",
    // The heirs look after the dead at the first death of a run alone.
    "heir-asked-once",
    // A worker that waits for a task looks at that task alone, and not at what is below it.
    "no-walk-down",
    // The worker that waits for a task leaves it to the heir to open it again.
    "waiter-does-not-reopen",
    // A task that is opened again does not name its past holder.
    "past-forgotten",
    // A record counts whatever its generation is.
    "generation-ignored",
    // The slot of a task that nobody has joined is used again.
    "slot-reused-early",
    // The output of a left half is saved under the path of the right half.
    "left-under-right",
    // A task with unfinished children of an earlier life runs on top of a stack.
    "no-bottom-rule",
    // A hint is taken for the state of the record.
    "hints-believed",
    // A task is never poisoned.
    "never-poisoned",
    // The arguments of an earlier life are not compared.
    "arguments-not-compared",
    // A restored strand counts its forks from zero.
    "fork-number-not-restored",
    // The slot of a part of a bag is free before the next progress of the bag.
    "part-covered-early",
    // A right half is shared although an earlier life has left records below it.
    "share-over-records",
    // A claim without an answer is forgotten.
    "claim-forgotten",
    // A worker takes what its board says of the end of a run for the end of its own run.
    "told-is-over",
    // A worker looks at the root only when its board says that a run is over.
    "root-not-looked-at",
    // An error of a member counts there although the run has an output.
    "fail-over-done",
    // A member opens any session that it finds.
    "any-session",
    // A member opens a session that it has opened already.
    "session-opened-twice",
    // A single task in `all` or `sum` runs in the strand of its caller.
    "single-in-strand",
    // The slot of a task that was not joined is freed, and the task stays open.
    "unjoined-not-withdrawn",
    // The tasks of two lives are compared by their arguments alone.
    "task-number-ignored",
    // A task for which the board had no room at first never gets a hint.
    "hints-once",
    // A worker asks for room without a pause.
    "no-pause-without-room",
    // A member opens a session whose keys are being deleted.
    "ending-opened",
    // A worker waits for a task of a member that has left the run.
    "left-holder-waited-for",
    // The long arguments of a member stay although another member has put the root.
    "losing-arguments-kept",
    // The children of a poisoned task stay, with their long values.
    "poisoned-children-kept",
    // A member that comes back to a session tells another board than the others know.
    "board-told-anew",
    // The lowest member ends a session, also if it has given it up.
    "given-up-ends",
];

/// Whether the runtime is to be broken in this way.
#[cfg(feature = "faults")]
pub(crate) fn mutant(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    debug_assert!(MUTANTS.contains(&name), "{name} is in no list");
    let chosen = CHOSEN.get_or_init(|| {
        let chosen = std::env::var("OUTLAST_TASKS_MUTANT").ok();
        chosen.filter(|chosen| MUTANTS.contains(&chosen.as_str()))
    });
    chosen.as_deref() == Some(name)
}

/// Without the feature `faults` nothing is broken.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) fn mutant(_: &str) -> bool {
    false
}
