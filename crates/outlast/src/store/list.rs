//! Listing keys, and who owns them.

use super::access::{Op, Step};
use super::index::KeyRef;
use super::open::Inner;
use super::placement::hash_key;
use super::write::Change;
use super::{Store, StoreError, StoreResult, check_key};
use crate::engine::{Epoch, MemberId};
use crate::sync::lock;
use std::sync::atomic::Ordering;

impl Store {
    /// All keys that exist, in no particular order. A key that exists throughout the call is in the list; one that is
    /// created or deleted meanwhile may be.
    pub fn keys(&self) -> StoreResult<Vec<Vec<u8>>> {
        self.inner.list(|_, _| true)
    }

    /// The keys that begin so; see [`Store::keys`].
    pub fn scan(&self, prefix: &[u8]) -> StoreResult<Vec<Vec<u8>>> {
        self.inner.list(|key, _| key.starts_with(prefix))
    }

    /// How many keys exist; see [`Store::keys`].
    pub fn len(&self) -> StoreResult<usize> {
        Ok(self.keys()?.len())
    }

    /// Whether no key exists; see [`Store::keys`].
    pub fn is_empty(&self) -> StoreResult<bool> {
        Ok(self.len()? == 0)
    }

    /// The keys that a member owns: those that it created, or adopted; see [`Store::keys`].
    pub fn keys_of(&self, member: MemberId) -> StoreResult<Vec<Vec<u8>>> {
        self.inner.list(|_, owner| owner == member)
    }

    /// The members that hold the copies of a key, or are to hold them, as this member sees the job now.
    pub fn replicas_of(&self, key: &[u8]) -> Vec<MemberId> {
        let placement = &self.inner.placement;
        let partition = placement.partition(hash_key(key));
        self.inner.homes(partition, &self.inner.job.view()).members
    }

    /// Makes this member the owner of a key; whether the key exists. The value stays, its version changes.
    pub fn adopt(&self, key: &[u8]) -> StoreResult<bool> {
        check_key(key)?;
        let written = self.inner.write(key, true, |current, value| {
            Ok(if current.is_some() {
                Change::Adopt(std::mem::take(value))
            } else {
                Change::Nothing
            })
        })?;
        Ok(written.is_some())
    }
}

impl Inner {
    /// Notes who has died since the last time; how many it are by now. A view does not say in which order its members died,
    /// so whoever is told a number must find those who make it up at the beginning of the list.
    #[cold]
    pub(super) fn note_deaths(&self) -> Epoch {
        let view = self.job.view();
        let mut known = lock(&self.deaths);
        for member in view.dead.iter() {
            if !known.contains(&member) {
                known.push(member);
            }
        }
        self.deaths_noted.store(known.len() as u64, Ordering::Release);
        Epoch(known.len() as u64)
    }

    fn list(&self, wanted: impl Fn(&[u8], MemberId) -> bool) -> StoreResult<Vec<Vec<u8>>> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let mut keys = Vec::new();
        for partition in 0..self.placement.partitions {
            let is_wanted =
                |key: &[u8], owner| !key.starts_with(super::leave::RESERVED) && wanted(key, owner);
            keys.extend(self.run(|op| {
                if !self.is_in_procedure() {
                    self.check_gate(op.epoch)?;
                }
                op.list_partition(partition, &is_wanted)
            })?);
        }
        Ok(keys)
    }
}

impl Op<'_> {
    /// The wanted keys of one partition, all under one configuration.
    fn list_partition(
        &mut self,
        partition: usize,
        wanted: &impl Fn(&[u8], MemberId) -> bool,
    ) -> Step<Vec<Vec<u8>>> {
        let config = self.config(partition)?;
        let primary = config.homes[config.primary];
        let mut keys = Vec::new();
        for bucket in 0..self.store.bucket_count {
            for node in self.nodes(config, config.primary, partition, bucket)? {
                let key = KeyRef { key: &node.key, hash: hash_key(&node.key), partition };
                let Some((word, _)) = self.find(config, config.primary, &key)? else { continue };
                let Some(offset) = self.settled(config, &key, word)?.offset() else { continue };
                let block = self.read_block(primary, offset)?;
                let (_, block) = self.visible(config, &key, offset, &block)?;
                if !block.is_deleted && wanted(&node.key, block.owner) {
                    keys.push(node.key);
                }
            }
        }
        if self.is_current() { Ok(keys) } else { Err(super::access::Halt::Again) }
    }
}

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
    pub(super) fn new(member: MemberId, left: bool, heir: MemberId) -> Death {
        Death { member, left, heir }
    }

    /// Who is to take over the work of the dead: the same one at all members that know of the same deaths. If the heir
    /// dies too, its own death names the next one: ask [`Store::heir_of`] again for what it had not adopted.
    pub fn heir(&self) -> MemberId {
        self.heir
    }
}

impl Store {
    /// The deaths since `seen`, in the order in which this member learned of them; `seen` is moved on.
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
        self.inner.note_deaths();
        let view = self.inner.job.view();
        let known = lock(&self.inner.deaths);
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
        heir(member, &self.inner.job.view())
    }
}

/// The living member that a rendezvous hash prefers for the dead one: the same at all members with the same view, and a
/// different one for each of several dead.
pub(super) fn heir(dead: MemberId, view: &crate::engine::View) -> MemberId {
    let score =
        |member: &MemberId| super::placement::mix(u64::from(dead.0) << 32 | u64::from(member.0));
    let living = view.living().filter(|&member| view.is_active(member));
    living.max_by_key(score).unwrap_or(dead)
}
