//! Deaths as programs see them, and who takes over.

use crate::engine::{Epoch, MemberId};
use crate::store::api::store::Store;
use crate::store::placement::heir::heir;
use crate::sync::lock;

/// A member that died, and who takes over from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// Who died.
    pub member: MemberId,
    /// Whether it left on purpose.
    pub left: bool,
    heir: MemberId,
}

impl Death {
    pub(in crate::store) fn new(member: MemberId, left: bool, heir: MemberId) -> Death {
        Death { member, left, heir }
    }

    /// Who is to take over the work of the dead: the same one at all members that know of the same
    /// deaths. If the heir dies too, its own death names the next one: ask [`Store::heir_of`] again
    /// for what it had not adopted.
    pub fn heir(&self) -> MemberId {
        self.heir
    }
}

impl Store {
    /// The deaths since `seen`, in the order in which this member learned of them; `seen` is moved
    /// on.
    ///
    /// ```
    /// # let job = outlast::join()?;
    /// # use outlast::store::{Options, Store};
    /// let store = Store::open(&job, Options::new())?;
    /// let mut seen = store.epoch();
    /// // Now and then, at the price of one load:
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

    /// Who takes over from a dead member, as things are now.
    pub fn heir_of(&self, member: MemberId) -> MemberId {
        heir(member, &self.state.job.view())
    }
}
