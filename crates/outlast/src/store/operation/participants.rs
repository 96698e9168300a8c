//! The participants of this member: how many operations it may have in flight at once.

use crate::engine::Epoch;
use crate::store::operation::error::OpResult;
use crate::store::operation::state::OperationState;
use crate::store::segment::layout::{PARTICIPANTS, PARTICIPANTS_USED, PINS_SHIFT};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The participants of this member.
///
/// A thread claims a participant by making its operation counter, which lies in the segment, odd.
/// That swap also tells all other members that an operation is in flight. The thread gives the
/// participant back by a single plain write.
///
/// *Orderings.* `announced` only grows. It is raised with release semantics after the word in the
/// segment names the participants, and loaded with acquire: a thread that skips the announcement
/// claims its counter after the announcement. `id` is relaxed, since only its uniqueness matters.
pub(in crate::store) struct Participants {
    pub(in crate::store) participants: Vec<Participant>,
    /// How many participants are announced to the other members; see [`PARTICIPANTS_USED`].
    pub(in crate::store) announced: AtomicUsize,
    /// The number that distinguishes the stores of a process.
    pub(in crate::store) id: u64,
}

/// A participant, on cache lines of its own, so that threads do not disturb each other.
///
/// *Orderings.* The counter here is relaxed: it is only a guess of the counter in the segment, and
/// the swap that claims the participant fails if the guess is wrong.
#[derive(Default)]
#[repr(align(128))]
pub(in crate::store) struct Participant {
    /// The last even number that the operation counter was seen to have.
    pub(in crate::store) counter: AtomicU64,
}

/// How long to sleep while all participants are in use. No bell rings when a participant is given
/// back.
pub(in crate::store) const CROWDED: Duration = Duration::from_micros(200);

impl Participants {
    pub(in crate::store) fn new() -> Participants {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Participants {
            participants: (0..PARTICIPANTS).map(|_| Participant::default()).collect(),
            announced: AtomicUsize::new(0),
            id: IDS.fetch_add(1, Ordering::Relaxed),
        }
    }
}

impl Participants {
    /// The number of operations that have ended: each raises the counter of its participant by 2.
    pub(in crate::store) fn operations(&self) -> u64 {
        let counters = self.participants.iter();
        counters.map(|participant| participant.counter.load(Ordering::Relaxed) / 2).sum()
    }
}

/// Makes the other members read this participant's counter in their grace periods, before the
/// participant is used for the first time.
#[cold]
pub(in crate::store) fn announce(store: &OperationState, participant: usize) -> OpResult<()> {
    let job = &store.job;
    let word = store.root(job.me()) + PARTICIPANTS_USED;
    while store.participants.announced.load(Ordering::Acquire) <= participant {
        let used = job.load(Epoch::ANY, job.me(), word)?;
        let pins = used >> PINS_SHIFT << PINS_SHIFT;
        let wanted = (used - pins).max(participant as u64 + 1);
        let new = pins | wanted;
        if used == new || job.compare_and_swap(Epoch::ANY, job.me(), word, used, new)? == used {
            store.participants.announced.fetch_max(wanted as usize, Ordering::AcqRel);
        }
    }
    Ok(())
}
