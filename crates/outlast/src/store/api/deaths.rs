//! Deaths as programs see them, and the heirs that take over.

use crate::engine::{Epoch, MemberId};
use crate::store::api::store::Store;
use crate::store::placement::heir::heir;
use crate::sync::lock;

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
    /// at all members that know of identical deaths. If the heir dies too, its own death names the
    /// next heir: ask [`Store::heir_of`] again for the keys that the first heir had not adopted.
    pub fn heir(&self) -> MemberId {
        self.heir
    }
}

impl Store {
    /// Returns the deaths since `seen`, in the order in which this member learned of them, and
    /// advances `seen`.
    ///
    /// ```
    /// # let job = outlast::join()?;
    /// # use outlast::store::{Options, Store};
    /// let store = Store::open(&job, Options::new())?;
    /// let mut seen = store.epoch();
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
        self.state.record_deaths();
        let view = self.state.job.view();
        let known = lock(&self.state.deaths);
        let first = usize::try_from(seen.0).unwrap_or(usize::MAX).min(known.len());
        seen.0 = known.len() as u64;
        known[first..]
            .iter()
            .map(|&member| Death {
                member,
                left: view.left.contains(member),
                heir: heir(member, &view),
            })
            .collect()
    }

    /// The heir of a dead member under the current view.
    pub fn heir_of(&self, member: MemberId) -> MemberId {
        heir(member, &self.state.job.view())
    }
}
