//! Images: erasure-coded objects in the memories of members, replaced atomically.
//!
//! An image is a range of bytes with a name. It is cut into n pieces, any m of which may be lost,
//! and each piece lies in the memory of another member, in another failure domain. A save replaces
//! the image as a whole or not at all, writes only what has changed, and any member loads it, also
//! after its owner's death. Lost pieces come back in the background.
//!
//! ```
//! use outlast::image::{Images, Options};
//! use outlast::store::{self, Store};
//!
//! let job = outlast::join()?;
//! let store = Store::open(&job, store::Options::new())?;
//! let images = Images::open(&store, "grid", Options::new(1 << 20).set(4).lose(1))?;
//! let cells = vec![7; 100_000];
//! images.save("cells", b"step 3", &cells)?;
//! let image = images.load("cells")?;
//! assert_eq!((image.note(), image.bytes()), (&b"step 3"[..], &cells[..]));
//! images.close()?;
//! store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Promises
//! - *Kept.* Since all pieces of an image were last whole, up to `lose` of its holders may die, or
//!   whole domains at the level `apart`, and fewer members of the job than the store has replicas:
//!   the image is loaded as it was saved last.
//! - *Whole again.* Lost pieces come back by themselves, and then the first promise counts anew.
//!   Where too few domains live for that, the next save has fewer pieces.
//! - *Honest.* Beyond that, `load` says [`ImageError::DataLost`]. It never returns older bytes.
//!
//! # Vocabulary
//! - A *stripe* is n − m pieces of the image one after the other, and m parity pieces. The piece
//!   with number i of each stripe is at *place* i of the set.
//! - A *slot* is room for a piece with its head; an *extent* is 16 slots of the *arena*, the memory
//!   that a member lends.
//! - The *descriptor* is the record of the store that names the slots.
//!
//! # Invariants
//! - All facts about images are records of the store: a commit is a single conditional put, and of
//!   two members that save an image one wins.
//! - An extent is written only by the member that has claimed it, and no slot that a descriptor
//!   names is written again. So a process that was stopped in a save and wakes up late harms no
//!   image.
//! - A piece is taken only if its head and checksum are as the descriptor says.
//!
//! # The modules
//! `set` chooses holders, `code` computes parity, `stripe` is the content of a slot,
//! `descriptor` that of the record, `arena` claims extents, `open`, `save` and `load` are the calls
//! of their names, `heal` brings lost pieces back, `leave` waits until the pieces of a leaver are
//! elsewhere, `generation` has saves that count only when a
//! further record says so, `regions` saves the memory of all members together. In the repository,
//! docs/protected-windows.md has the steps, and what a survivor finds after a death in each.
//!
//! # Callers and deaths
//! Programs call it through [`Images`] and [`Regions`]. When a member dies, its
//! arena and the pieces in it are gone. The owner of each image, or the owner's heir, heals it.

#![forbid(unsafe_code)]

mod arena;
mod code;
mod descriptor;
mod error;
mod generation;
mod heal;
mod leave;
mod load;
mod open;
mod options;
mod regions;
mod save;
mod set;
mod stripe;

pub use error::{ImageError, ImageResult};
pub(crate) use generation::Staged;
pub use load::Image;
pub use options::{Level, Options};
pub use regions::{Owner, Regions, Restored};

use crate::engine::deadline::{self, Deadline};
use crate::engine::{Activity, Done, MemberId, Pending, Time};
use crate::job::Job;
use crate::rma::{Agreement, Communicator};
use crate::store::Store;
use crate::sync::lock;
use arena::{Arena, LateSwap};
use heal::{Healed, LateRebuild};
use save::Entry;
use set::Sets;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The phase of the agreement of `close`, as regions.rs has them for its calls.
const CLOSE: u64 = 1 << 59;
/// Whether the caller of `close` puts nothing into the arenas of others any more.
const QUIET: u64 = 1;

/// The images of a job. Clones are handles of the same images.
#[derive(Clone)]
pub struct Images {
    inner: Arc<Inner>,
}

struct Inner {
    job: Job,
    store: Store,
    comm: Communicator,
    options: Options,
    sets: Sets,
    /// The beginning of the keys of all records; no other call of open has it.
    prefix: Vec<u8>,
    /// The arena of each member that lived at open.
    arenas: Vec<Option<Arena>>,
    /// The number of this member's last save.
    saves: AtomicU64,
    /// How many pieces were written. Relaxed: a number for people.
    pieces_written: AtomicU64,
    /// What this member knows of the images that it saves.
    entries: Mutex<HashMap<Vec<u8>, Entry>>,
    /// Swaps of the words of extents that were not answered in time, and may still happen.
    late_swaps: Mutex<Vec<LateSwap>>,
    /// Extents that this member has claimed to heal images, and that only records name.
    healed: Mutex<Vec<Healed>>,
    /// Extents that are given back when no put into them is late.
    late_rebuilds: Mutex<Vec<LateRebuild>>,
    /// The keys of records that puts of this member may bring back after `close` has deleted them.
    late_records: Mutex<BTreeSet<Vec<u8>>>,
    /// Whether the activity that heals has to look again. Set by saves, cleared by it: sequentially
    /// consistent, as the flag orders nothing else.
    is_healing_due: AtomicBool,
    /// Whether this member has called `close`, or has given the images up. Sequentially consistent:
    /// `close` stores it and then looks for entries in use, and calls take an entry and then load
    /// it.
    is_closed: AtomicBool,
    /// Whether an activity of this member is in `close`. Sequentially consistent: only a flag.
    is_closing: AtomicBool,
    /// Whether the images are of no use to any member any more: all have agreed to close them, or
    /// what they were for has failed at all. Sequentially consistent: only a flag.
    is_over: AtomicBool,
    /// The activity that heals.
    healing: Mutex<Option<Activity>>,
}

impl std::fmt::Debug for Images {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Images({:?}, {:?})", self.inner.job, self.inner.options)
    }
}

impl Images {
    /// Whether pieces are apart at the level that was asked for, and as many as were asked for.
    /// Otherwise the level has too few domains, and the loss of a domain may take several pieces of
    /// an image along; `outlast plan` says what that costs.
    pub fn is_apart_as_asked(&self) -> bool {
        !self.inner.sets.is_lower
    }

    /// The members that would hold the pieces of this member's next image.
    pub fn holders(&self) -> Vec<MemberId> {
        self.inner.sets.choose(self.inner.job.me(), &self.inner.lasting_view())
    }

    /// Saves an image under a name, with a note. `Ok` means that all its pieces are at their
    /// holders. Only what has changed since this member's last save of the name is written. On an
    /// error the image that was saved before stands, except as [`ImageError::Timeout`] says.
    pub fn save(&self, name: &str, note: &[u8], bytes: &[u8]) -> ImageResult<()> {
        self.save_from(name, note, bytes.len() as u64, |at, buffer| {
            buffer.copy_from_slice(&bytes[at as usize..at as usize + buffer.len()]);
        })
    }

    /// [`Images::save`] of bytes that `read` copies: it is given an offset and a buffer to fill.
    /// The bytes must not change during the call. The time that `read` takes does not count against
    /// the time limit.
    pub fn save_from(
        &self,
        name: &str,
        note: &[u8],
        len: u64,
        mut read: impl FnMut(u64, &mut [u8]),
    ) -> ImageResult<()> {
        let _call = self.inner.begin()?;
        let job = &self.inner.job;
        let mut read = |at: u64, buffer: &mut [u8]| {
            Deadline::program(|| job.now(), || read(at, buffer));
        };
        self.inner.save_image(name, note, len, &mut read)
    }

    /// Loads an image as it was saved last, by any member.
    pub fn load(&self, name: &str) -> ImageResult<Image> {
        let _call = self.inner.begin()?;
        self.inner.load_image(&self.inner.image_key(name), name, None)
    }

    /// Fills `buffer` with the bytes of an image from an offset on.
    pub fn read(&self, name: &str, offset: u64, buffer: &mut [u8]) -> ImageResult<()> {
        let _call = self.inner.begin()?;
        let range = offset..offset.saturating_add(buffer.len() as u64);
        let image = self.inner.load_image(&self.inner.image_key(name), name, Some(range))?;
        buffer.copy_from_slice(image.bytes());
        Ok(())
    }

    /// Deletes an image. Returns whether it existed. Its memory is used again by later saves.
    pub fn delete(&self, name: &str) -> ImageResult<bool> {
        let _call = self.inner.begin()?;
        let key = self.inner.image_key(name);
        self.inner.with_entry(&key, |entry| self.inner.delete_image(entry, &key))
    }

    /// How many pieces of images are missing: their holders are dead, and no other member holds
    /// them yet.
    pub fn pieces_missing(&self) -> ImageResult<usize> {
        let _call = self.inner.begin()?;
        let view = self.inner.job.view();
        let descriptors = self.inner.descriptors()?;
        let missing = |(_, _, descriptor): &(_, _, descriptor::Descriptor)| {
            descriptor.places.iter().filter(|place| !view.is_living(place.member)).count()
        };
        Ok(descriptors.iter().map(missing).sum())
    }

    /// How many pieces this member's saves have written so far.
    pub fn pieces_written(&self) -> u64 {
        self.inner.pieces_written.load(Ordering::Relaxed)
    }

    /// Closes the images: they and their pieces are gone. All living members call this. It waits
    /// until all have called it, or returns [`ImageError::Timeout`] at the job's time limit. Then
    /// no image is deleted, the images are closed at this member all the same, and `close` may be
    /// called again, to wait for the others once more. No memory is given back if a thread of any
    /// member is in the middle of a save.
    pub fn close(&self) -> ImageResult<()> {
        let inner = &self.inner;
        let is_over = inner.is_over() || inner.job.has_ended();
        if is_over || inner.is_closing.swap(true, Ordering::SeqCst) {
            return Err(ImageError::Closed);
        }
        let closed = inner.close();
        inner.is_closing.store(false, Ordering::SeqCst);
        closed
    }
}

impl Inner {
    /// Begins a call of a program: all its waits share a deadline.
    fn begin(&self) -> ImageResult<Deadline> {
        self.check_open()?;
        Ok(self.call())
    }

    /// A part of a call whose waits share a deadline.
    fn call(&self) -> Deadline {
        Deadline::call(|| self.job.now())
    }

    /// Runs a part of a call that waits for no member.
    fn compute<T>(&self, body: impl FnOnce() -> T) -> T {
        Deadline::compute(|| self.job.now(), body)
    }

    fn check_open(&self) -> ImageResult<()> {
        match self.is_closed.load(Ordering::SeqCst) || self.job.has_ended() {
            true => Err(ImageError::Closed),
            false => Ok(()),
        }
    }

    fn close(&self) -> ImageResult<()> {
        let _call = self.call();
        self.is_closed.store(true, Ordering::SeqCst);
        let _ = self.job.ring(self.job.me());
        let healing = lock(&self.healing).take();
        // It waits for no piece any more when the images are closed.
        let until = self.job.deadline();
        let has_ended = healing.as_ref().is_none_or(|activity| self.job.wait_for(activity, until));
        if !has_ended {
            *lock(&self.healing) = healing;
        }
        // No member puts into the arenas of others any more when the first arena is given back. The
        // save of another thread may still be going on: then no arena is given back.
        self.settle_late_rebuilds();
        self.settle_late_swaps();
        let is_quiet = has_ended
            && !self.is_any_entry_busy()
            && !self.has_late_puts()
            && lock(&self.late_swaps).is_empty();
        let ended = self.agree_to_close(is_quiet)?;
        self.is_over.store(true, Ordering::SeqCst);
        self.bar_late_records();
        self.delete_all_records(ended.failed);
        self.comm.free()?;
        if let Some(arena) = &self.arenas[self.job.me().index()]
            && ended.flags & QUIET != 0
            && self.serves_no_dead()
        {
            arena.give_back(&self.job, &self.options);
        }
        Ok(())
    }

    /// Deletes all records: the first member that is not among these dead does it, and a further
    /// agreement says that it has. If it has died meanwhile, the next member begins anew, since no
    /// later opening finds the records.
    fn delete_all_records(&self, mut dead: Vec<usize>) {
        while let Some(first) = (0..self.comm.size()).find(|rank| !dead.contains(rank)) {
            if first == self.comm.rank() {
                let (keys, listed) = self.reachable_keys(b"");
                let deleted = keys.iter().fold(listed, |result, key| {
                    let deleted = self.store.delete(key).map_err(ImageError::from);
                    if deleted.is_ok() {
                        // A stopped replica is waited for once, not for each record.
                        deadline::restart();
                    }
                    result.and(deleted.map(drop))
                });
                if let Err(error) = deleted {
                    tracing::warn!(%error, "records of closed images stay in the store");
                }
            }
            match self.comm.agree_despite_failures(CLOSE) {
                Ok(agreed) if agreed.failed.contains(&first) => dead = agreed.failed,
                Ok(_) => return,
                // A member that is stopped deletes them when it goes on.
                Err(error) => {
                    tracing::warn!(%error, "records of closed images may stay in the store");
                    return;
                }
            }
        }
    }

    /// Makes sure that no put of this member brings the record of an image back into the store: a
    /// put whose outcome is unknown, or that of a save which goes on while the images are closed.
    /// Called when all members have closed the images, and again by each later end of a save.
    pub(super) fn bar_late_records(&self) {
        let mut keys = std::mem::take(&mut *lock(&self.late_records));
        for (key, entry) in lock(&self.entries).iter() {
            keys.extend(entry.unknown_records(key));
        }
        if keys.is_empty() {
            return;
        }
        // A stopped replica is waited for once, not for each record.
        let _call = self.call();
        for key in keys {
            match self.delete_surely(&key) {
                Ok(_) => deadline::restart(),
                Err(error) => tracing::warn!(%error, "a record may come back into the store"),
            }
        }
    }

    /// A put of this record may still happen.
    fn note_late_record(&self, key: Vec<u8>) {
        lock(&self.late_records).insert(key);
    }

    /// Ends a call that may have put the record of an image.
    pub(super) fn end_of_save(&self, key: &[u8]) -> ImageResult<()> {
        // Sequentially consistent with `close`: either that finds the key, or this finds that all
        // members have closed the images.
        if self.is_closed.load(Ordering::SeqCst) {
            self.note_late_record(key.to_vec());
            if self.is_over() {
                self.bar_late_records();
                return Err(ImageError::Closed);
            }
        }
        Ok(())
    }

    /// Whether the images are of no use to any member any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Waits until no request of a dead member is in its middle on this node; returns `false` if
    /// the time limit comes first. Memory that is given back before could be changed by such a
    /// request when it is used for something else: the dead have not said that they are quiet.
    fn serves_no_dead(&self) -> bool {
        let until = self.job.deadline();
        loop {
            self.job.drain_requests_of_dead();
            if !self.job.is_serving_dead() {
                return true;
            }
            let now = self.job.now();
            if now >= until || self.job.has_ended() {
                tracing::warn!("memory of images is not given back: a request of the dead is late");
                return false;
            }
            self.job.park(self.job.bell(), until.min(now.after(Duration::from_millis(1))));
        }
    }

    /// Agrees with all living members that they close the images. Members that restore or save
    /// regions may be in an agreement of their own meanwhile, or this member was in it, and its
    /// call has timed out: such an agreement closes nothing.
    fn agree_to_close(&self, is_quiet: bool) -> ImageResult<Agreement> {
        let (limit, mut pause) = (self.job.time_limit(), Duration::from_millis(1));
        loop {
            self.comm.failure_ack()?;
            let quiet = if is_quiet { QUIET } else { 0 };
            let agreed = self.comm.agree_despite_failures(CLOSE | quiet)?;
            if agreed.flags & CLOSE != 0 {
                return Ok(agreed);
            }
            let (now, until) = (self.job.now(), self.job.deadline());
            if now >= until {
                return Err(ImageError::Timeout { member: self.job.me(), limit });
            }
            self.job.sleep(pause.min(until.since(now)));
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    /// The key of the descriptor of an image.
    fn image_key(&self, name: &str) -> Vec<u8> {
        [&self.prefix[..], b"d/i/", name.as_bytes()].concat()
    }

    /// The key of what this member knows of the image of a record: the records of all generations
    /// of an image are about the same memory.
    fn entry_key(&self, key: &[u8]) -> Vec<u8> {
        let is_generation = key[self.prefix.len()..].starts_with(b"d/r/");
        let end = key.iter().rposition(|byte| *byte == b'/').filter(|_| is_generation);
        key[..end.unwrap_or(key.len())].to_vec()
    }

    /// Waits for operations until all are complete or the time is over; returns those that are not.
    fn wait_all<T>(
        &self,
        mut pending: Vec<(T, Pending)>,
        until: Time,
        mut done: impl FnMut(T, crate::engine::Result<Done>),
    ) -> Vec<(T, Pending)> {
        loop {
            let bell = self.job.bell();
            let mut left = Vec::new();
            for (what, mut operation) in pending {
                match self.job.poll(&mut operation) {
                    Some(result) => done(what, result),
                    None => left.push((what, operation)),
                }
            }
            pending = left;
            if pending.is_empty() || self.job.now() >= until || self.job.has_ended() {
                return pending;
            }
            self.job.park(bell, until);
        }
    }

    /// Runs `body` with what this member knows of an image, unless another activity has it.
    fn try_with_entry<T>(&self, key: &[u8], body: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let mut taken = self.take_entry(key)?;
        Some(body(&mut taken.entry))
    }

    fn take_entry<'a>(&'a self, key: &'a [u8]) -> Option<Taken<'a>> {
        let mut entries = lock(&self.entries);
        let entry = entries.entry(key.to_vec()).or_default();
        if entry.is_busy {
            return None;
        }
        let taken = std::mem::take(entry);
        entry.is_busy = true;
        Some(Taken { inner: self, key, entry: taken })
    }

    /// Runs `body` with what this member knows of an image. Other activities of this member that
    /// need it wait meanwhile.
    fn with_entry<T>(
        &self,
        key: &[u8],
        body: impl FnOnce(&mut Entry) -> ImageResult<T>,
    ) -> ImageResult<T> {
        let mut taken = self.await_entry(key, || self.job.deadline())?;
        // `close` first stores that the images are closed, and then looks for entries in use.
        self.check_open()?;
        body(&mut taken.entry)
    }

    /// Waits until no other activity of this member has what it knows of an image.
    fn await_entry<'a>(
        &'a self,
        key: &'a [u8],
        until: impl FnOnce() -> Time,
    ) -> ImageResult<Taken<'a>> {
        let mut until = Some(until);
        let mut end = None;
        loop {
            let bell = self.job.bell();
            if let Some(taken) = self.take_entry(key) {
                return Ok(taken);
            }
            if let Some(until) = until.take() {
                end = Some(until());
            }
            let end = end.unwrap_or(Time::NEVER);
            if self.job.has_ended() {
                return Err(ImageError::Closed);
            }
            if self.job.now() >= end {
                let (member, limit) = (self.job.me(), self.job.time_limit());
                return Err(ImageError::Timeout { member, limit });
            }
            self.job.park(bell, end);
        }
    }
}

/// What this member knows of an image, while an activity uses it. It goes back when this is
/// dropped, also if a closure of the program panics in the middle of a save.
struct Taken<'a> {
    inner: &'a Inner,
    key: &'a [u8],
    entry: Entry,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let entry = std::mem::take(&mut self.entry);
        {
            let mut entries = lock(&self.inner.entries);
            match entry.is_vacant() {
                // A program may give each image a name of its own.
                true => entries.remove(self.key),
                false => entries.insert(self.key.to_vec(), entry),
            };
        }
        let _ = self.inner.job.ring(self.inner.job.me());
    }
}
