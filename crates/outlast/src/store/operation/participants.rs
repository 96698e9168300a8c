//! The operations that a member may have in flight at once.

use crate::engine::Epoch;
use crate::store::operation::error::OpResult;
use crate::store::operation::state::OperationState;
use crate::store::segment::layout::{PARTICIPANTS, PARTICIPANTS_USED, PINS_SHIFT};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The operations that this member may have under way at once.
///
/// An participant is claimed by making its counter, which lies in the segment, odd: the same swap
/// tells the others that it is inside an operation. It is given back by one plain write.
pub(in crate::store) struct Participants {
    pub(in crate::store) participants: Vec<Participant>,
    /// How many are known to the others; see [`PARTICIPANTS_USED`].
    pub(in crate::store) announced: AtomicUsize,
    /// Tells stores of one process apart.
    pub(in crate::store) id: u64,
}

/// Own lines, so that threads do not disturb each other.
#[derive(Default)]
#[repr(align(128))]
pub(in crate::store) struct Participant {
    /// The even number that the counter had when it was last seen so.
    pub(in crate::store) counter: AtomicU64,
}

thread_local! {
    /// The participant that this thread used last, and of which store: the next operation tries it
    /// first.
    pub(in crate::store) static LAST: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

/// How long to sleep while all participants are in use: nobody rings when one is given back.
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

/// Makes sure that others look at an participant when they ask who is inside an operation.
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
