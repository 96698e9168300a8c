//! Deaths as programs see them, and the heirs that take over.

use crate::engine::{Epoch, MemberId, MemberSet, View};
use crate::store::api::store::Store;
use crate::store::placement::heir::heir;
use crate::sync::lock;

/// The bit of a position in the list of deaths at which the number of further reports begins that
/// were made for the death at that position. A job has fewer members than the bits below count.
const PLACE_SHIFT: u32 = 32;

/// The death of a member, with the heir that takes over its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// The member that died.
    pub member: MemberId,
    /// Whether the member left on purpose.
    pub left: bool,
    heir: MemberId,
}

impl Death {
    pub(in crate::store) fn new(member: MemberId, left: bool, heir: MemberId) -> Death {
        Death { member, left, heir }
    }

    /// The heir: the member that is to take over the work of the dead member. The heir is identical
    /// at all members that know of identical deaths. If the heir dies too, [`Store::deaths_since`]
    /// returns the first death again, with the next heir.
    pub fn heir(&self) -> MemberId {
        self.heir
    }
}

impl Store {
    /// Returns the deaths since `seen`, in the order in which this member learned of them, and
    /// advances `seen`. Begin with `Epoch(0)`: an epoch that is read after [`Store::open`] may
    /// already count a member that died in the meantime, after it had put keys. Members that died
    /// before the store was opened are in the list, too, and have no keys.
    ///
    /// After a death that makes another member the heir of earlier dead members, for example
    /// because it was their heir, the call returns these members again, with their new heir. So the
    /// loop below adopts every key of every dead member, also if an heir dies before it has adopted
    /// all keys.
    ///
    /// ```
    /// # let job = outlast::join()?;
    /// # use outlast::store::{Options, Store};
    /// let store = Store::open(&job, Options::new())?;
    /// let mut seen = outlast::Epoch(0);
    /// // Now and then, at the price of two loads:
    /// if store.epoch() != seen {
    ///     for death in store.deaths_since(&mut seen) {
    ///         if death.heir() == store.me() {
    ///             for key in store.keys_of(death.member)? {
    ///                 store.adopt(&key)?;
    ///             }
    ///         }
    ///     }
    /// }
    /// # store.close()?;
    /// # job.leave()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn deaths_since(&self, seen: &mut Epoch) -> Vec<Death> {
        let mut deaths: Vec<Death> = Vec::new();
        while let Some(death) = self.next_death(seen) {
            if deaths.iter().all(|other| other.member != death.member) {
                deaths.push(death);
            }
        }
        deaths
    }

    /// Returns the next death of [`Store::deaths_since`], and advances `seen` past it. While there
    /// is a further death that has been reported before, `seen` is no number of deaths: compare it
    /// with [`Store::epoch`] only when this call has returned `None`.
    pub fn next_death(&self, seen: &mut Epoch) -> Option<Death> {
        self.state.record_deaths();
        let view = self.state.job.view();
        let known = lock(&self.state.deaths);
        let (step, place) = (seen.0 as u32 as usize, (seen.0 >> PLACE_SHIFT) as usize);
        let &newest = known.get(step)?;
        let view_of = |dead: &[MemberId]| {
            let dead: MemberSet = dead.iter().copied().collect();
            View::new(view.regulars, view.members - view.regulars, dead, MemberSet::new())
        };
        let (before, after) = (view_of(&known[..step]), view_of(&known[..=step]));
        let has_another_heir = |dead: &MemberId| heir(*dead, &before) != heir(*dead, &after);
        let earlier = known[..step].iter().copied().filter(has_another_heir);
        let mut reported = std::iter::once(newest).chain(earlier).skip(place);
        let member = reported.next()?;
        let has_more = reported.next().is_some();
        seen.0 = match has_more {
            true => step as u64 | (place as u64 + 1) << PLACE_SHIFT,
            false => step as u64 + 1,
        };
        let (left, heir) = (view.left.contains(member), heir(member, &view));
        Some(Death { member, left, heir })
    }

    /// The heir of a dead member under the current view.
    pub fn heir_of(&self, member: MemberId) -> MemberId {
        heir(member, &self.state.job.view())
    }
}
