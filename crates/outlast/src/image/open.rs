//! Opening images: all members lend memory, or none does.
//!
//! | step | what it does | a death or stop in it |
//! |---|---|---|
//! | `gather` | the living members make a communicator | nothing has happened |
//! | `lend` | reserve the own arena, and put a record that says where it is, or why there is none | dead: its memory is gone with it. Stopped: the others wait in `tell` |
//! | `tell` | all agree that all have put their records | goes on without the dead |
//! | `read` | read the records of all members | as `lend`: the others wait in `open` |
//! | `open` | all agree whether all could do their part | dead: the others open. Stopped: below |
//!
//! No member uses an arena before `open` has succeeded. A member whose call has ended by the time
//! limit, or with another error, does not know what the others do: one that was stopped may get the
//! outcome much later, and use the arenas of all. So an activity goes on in place of the call. It
//! takes part in what is left of `tell` and `open`, and gives no consent that the call has not
//! given. If the members refuse, it gives the arena back. If they have opened the images, this
//! member has closed them at once: it gives the arena back when all others have closed them, too.

use super::arena::Arena;
use super::set::Sets;
use super::{ImageError, ImageResult, Images, Inner, Options};
use crate::engine::MemberId;
use crate::engine::deadline::Deadline;
use crate::job::Job;
use crate::rma::{self, Communicator};
use crate::store::{Mode, OF_MEMORY, Store};
use crate::sync::lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The number of the communicator by which members meet to open images. The numbers of stores are
/// hashes, or 0.
const COMMUNICATOR_NUMBER: u64 = (1 << 43) - 1;

/// In the agreements: whether the member could do its part.
const FINE: u64 = 1;

/// How long the closing of images that this member has not opened waits after an error.
const AGAIN: Duration = Duration::from_millis(100);

/// A call of `open` of this member, from `lend` on.
struct Opening {
    job: Job,
    store: Store,
    comm: Communicator,
    options: Options,
    sets: Option<Sets>,
    /// How many extents each member lends.
    extents: u64,
    prefix: Vec<u8>,
    /// The own arena, or the reason why there is none.
    own: Result<Arena, String>,
    /// What the records of all members say.
    arenas: Vec<Option<Arena>>,
    /// How many agreements have no outcome yet, as far as this member knows.
    agreements_left: usize,
}

impl Images {
    /// Opens the images of a name. All living members of the job, spares included, call this with
    /// equal options, and lend memory for it:
    /// [`Options`] has how much. The call waits until all have called it.
    ///
    /// # Errors
    ///
    /// [`ImageError::Invalid`] at all members if the options are wrong or differ, if the store has
    /// fewer replicas than pieces may be lost, if a member could not do its part, or with
    /// [`Options::strict`] if there are too few domains. [`ImageError::Timeout`] if a member does
    /// not call, or does not answer. The call may then be repeated, by all members.
    pub fn open(store: &Store, name: &str, options: Options) -> ImageResult<Images> {
        let job = store.job().clone();
        let _call = Deadline::call(|| job.now());
        // `gather`
        let everyone = Communicator::everyone(&job, COMMUNICATOR_NUMBER)?;
        let comm = everyone.shrink()?;
        let regulars = job.view().regulars;
        let mut paths = Vec::new();
        for member in 0..job.members() as u32 {
            paths.push(job.domain(MemberId(member))?);
        }
        let fault = options.fault().or_else(|| Self::fault_of_store(store, &options, regulars));
        let sets = fault.is_none().then(|| Sets::new(&paths, regulars, &options));
        // `lend`
        let extents = sets.as_ref().map_or(0, |sets| sets.extents(&options));
        let own = match &fault {
            None => Arena::lend(&job, extents, &options).map_err(|error| error.to_string()),
            Some(fault) => Err(fault.clone()),
        };
        let prefix = [OF_MEMORY, name.as_bytes(), format!("/{:x}/", comm.id()).as_bytes()].concat();
        let mut opening = Opening {
            job: job.clone(),
            store: store.clone(),
            comm,
            options,
            sets,
            extents,
            prefix,
            own,
            arenas: vec![None; job.members()],
            agreements_left: 2,
        };
        match opening.agree_to_open(fault) {
            Ok(None) => {}
            Ok(Some(reason)) => {
                opening.refuse();
                return Err(ImageError::Invalid { reason });
            }
            Err(error) => {
                opening.go_on_without_the_call();
                return Err(error);
            }
        }
        let inner = opening.opened();
        let healing = inner.clone();
        let activity = job.spawn("outlast-heal", Box::new(move || healing.run_healing()))?;
        *lock(&inner.healing) = Some(activity);
        Ok(Images { inner })
    }

    fn fault_of_store(store: &Store, options: &Options, regulars: usize) -> Option<String> {
        if store.mode() != Mode::Localized {
            return Some("images need a store in localized mode".to_string());
        }
        let needed = (options.lose + 1).min(regulars);
        (store.replicas() < needed).then(|| {
            format!(
                "the store has {} replicas, and its records have to outlast what images do: open \
                 it with {needed}",
                store.replicas()
            )
        })
    }

    /// Closes the images in an activity, together with the other members, however long they take:
    /// for a caller that cannot use them and has not told the others.
    pub(crate) fn close_in_background(self) {
        let job = self.inner.job.clone();
        let inner = self.inner;
        if let Err(error) = job.spawn("outlast-close", Box::new(move || inner.close_at_last())) {
            tracing::warn!(%error, "memory of images is not given back");
        }
    }
}

impl Opening {
    /// `lend` to `open`: whether all members have the images, or why none has. On an error this
    /// member does not know it, or has not given its consent.
    fn agree_to_open(&mut self, fault: Option<String>) -> ImageResult<Option<String>> {
        let told = match &self.own {
            Ok(arena) => arena.encode(&self.options),
            Err(reason) => [&[0], reason.as_bytes()].concat(),
        };
        let put = self.store.put(&self.key_of(self.job.me()), &told);
        // `tell`
        self.agree(put.is_ok())?;
        put?;
        // `read`
        let mut refusal = None;
        for &member in self.comm.members() {
            let Some(value) = self.store.get(&self.key_of(member))? else { continue };
            match Arena::decode(value.bytes(), self.extents, &self.options) {
                Ok(arena) => self.arenas[member.index()] = Some(arena),
                Err(reason) => refusal = refusal.or(Some(format!("{member}: {reason}"))),
            }
        }
        if self.options.is_strict && self.sets.as_ref().is_some_and(|sets| sets.is_lower) {
            let reason = format!(
                "the level {:?} has fewer than {} failure domains; choose a lower level or a \
                 smaller set, or leave `strict` out",
                self.options.apart, self.options.set
            );
            refusal = refusal.or(Some(reason));
        }
        // `open`. All have read the records by then, and they may be deleted.
        let refusal = fault.or(refusal);
        let are_fine = self.agree(refusal.is_none())?;
        let other = || "another member could not open the images; see its error".to_string();
        Ok(refusal.or_else(|| (!are_fine).then(other)))
    }

    /// An agreement; returns whether all could do their part.
    fn agree(&mut self, is_fine: bool) -> ImageResult<bool> {
        self.comm.failure_ack()?;
        let agreed = self.comm.agree_despite_failures(u64::from(is_fine) * FINE)?;
        self.agreements_left -= 1;
        Ok(agreed.flags & FINE != 0)
    }

    /// All members refuse, and none uses an arena.
    fn refuse(self) {
        // The record of this opening is never read again, so it does no harm if it stays.
        if let Err(error) = self.store.delete(&self.key_of(self.job.me())) {
            tracing::warn!(%error, "the record of an arena stays in the store");
        }
        if let Ok(arena) = self.own {
            arena.give_back(&self.job, &self.options);
        }
        let _ = self.comm.free();
    }

    /// All members have the images.
    fn opened(self) -> Arc<Inner> {
        let inner = Arc::new(Inner {
            job: self.job,
            comm: self.comm,
            options: self.options,
            sets: self.sets.expect("the options have no fault"),
            prefix: self.prefix,
            arenas: self.arenas,
            saves: AtomicU64::new(0),
            pieces_written: AtomicU64::new(0),
            entries: Mutex::new(HashMap::new()),
            late_swaps: Mutex::default(),
            healed: Mutex::default(),
            late_rebuilds: Mutex::default(),
            late_records: Mutex::default(),
            is_healing_due: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            healing: Mutex::default(),
            store: self.store,
        });
        let leaving: Weak<Inner> = Arc::downgrade(&inner);
        inner.store.hand_over_before_leaving(leaving);
        inner
    }

    /// The call has ended: an activity takes part in what is left.
    fn go_on_without_the_call(self) {
        let job = self.job.clone();
        if let Err(error) = job.spawn("outlast-open", Box::new(move || self.end())) {
            tracing::warn!(%error, "memory of images is not given back");
        }
    }

    /// Waits for the outcome, however long the others take, and gives the arena back.
    fn end(mut self) {
        let mut are_fine = false;
        while self.agreements_left > 0 {
            // An agreement that the call was in is taken up. In a later one this member has not
            // given its consent.
            match self.agree(false) {
                Ok(found) => are_fine = found,
                Err(ImageError::Timeout { .. }) if !self.job.has_ended() => {}
                Err(_) => return,
            }
        }
        match are_fine {
            false => self.refuse(),
            true => self.opened().close_at_last(),
        }
    }

    /// The key of what a member lends, or why it does not.
    fn key_of(&self, member: MemberId) -> Vec<u8> {
        [&self.prefix[..], format!("a/{}", member.0).as_bytes()].concat()
    }
}

impl Inner {
    /// Closes the images when all others do, however long that takes.
    fn close_at_last(&self) {
        while !self.job.has_ended() {
            match self.close() {
                Ok(()) | Err(ImageError::Closed) => return,
                // The others are in an agreement of another kind.
                Err(ImageError::Communicator(rma::Error::Mismatched { .. })) => {
                    self.job.sleep(AGAIN);
                }
                Err(ImageError::Timeout { .. }) => {}
                Err(error) => {
                    tracing::warn!(%error, "memory of images is not given back");
                    return;
                }
            }
        }
    }
}
