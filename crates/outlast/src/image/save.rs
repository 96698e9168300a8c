//! Saving an image: compare, encode, recheck, commit, free.
//!
//! | step | what it does | a death or stop in it |
//! |---|---|---|
//! | `compare` | the fingerprint of each stripe, against the last save | nothing has happened |
//! | `claim` | extents for the slots that are missing | extents that no descriptor names |
//! | `encode` | put the pieces of changed stripes into slots that no descriptor names | as `claim` |
//! | `recheck` | a holder has died: back to `claim`, with another set | as `claim` |
//! | `commit` | put the descriptor, if no member has saved the image meanwhile | before: the old image; after: the new one |
//! | `free` | slots and extents that no descriptor names are free | dead: a claim that finds no room takes them. Stopped: done when it goes on |
//!
//! The outcome of a commit may be unknown: the store says `Timeout`. The slots of both images are
//! then kept until a later commit succeeded, which makes a late effect of the first impossible. If
//! none comes, the activity that heals puts the record anew, or deletes it once more if there is
//! none: both have that effect, too.

use super::code::Encoder;
use super::descriptor::{Descriptor, Place, Stripe};
use super::options::EXTENT_SLOTS;
use super::stripe::{Head, fingerprint, hash_key};
use super::{ImageError, ImageResult, Inner};
use crate::engine::deadline;
use crate::engine::{Epoch, Error, MemberId, Operation, Pending};
use crate::store::{Expect, StoreError, mutant};
use std::collections::{BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;

/// What a member knows of an image that it saves.
#[derive(Default)]
pub(super) struct Entry {
    pub(super) is_busy: bool,
    /// The last save of this member that is known to be committed.
    pub(super) current: Option<Saved>,
    /// Saves whose commit has an unknown outcome.
    unsettled: Vec<Saved>,
    /// Puts that were not answered in time, and may still happen.
    late: Vec<((), Pending)>,
    /// Extents to give back when no put is late.
    deferred: Vec<(MemberId, u32)>,
    /// The keys of generations that will never count, and may have a descriptor all the same: the
    /// store has not answered its put or its deletion.
    pub(super) given_up: Vec<Vec<u8>>,
}

/// A save of this member.
pub(super) struct Saved {
    pub(super) descriptor: Descriptor,
    fingerprints: Vec<u128>,
}

/// The numbers of the saves whose slots may be named by a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Saves {
    /// The last save that is known to be committed.
    committed: Option<u64>,
    /// Saves whose commit has an unknown outcome.
    unknown: Vec<u64>,
}

impl Saved {
    /// The number of the save.
    fn number(&self) -> u64 {
        self.descriptor.save
    }
}

/// Copies bytes of the image from an offset on.
pub(super) type Read<'a> = &'a mut dyn FnMut(u64, &mut [u8]);

/// How many puts are under way at once.
const WINDOW: usize = 64;

impl Entry {
    /// Whether this member knows nothing of the image, and has nothing to give back for it.
    pub(super) fn is_vacant(&self) -> bool {
        self.live().next().is_none()
            && self.late.is_empty()
            && self.deferred.is_empty()
            && self.given_up.is_empty()
    }

    /// All saves whose slots may be named by a record.
    fn live(&self) -> impl Iterator<Item = &Saved> {
        self.current.iter().chain(&self.unsettled)
    }

    /// The keys of records that puts of this member may bring back, of an image with this key.
    pub(super) fn unknown_records(&self, key: &[u8]) -> Vec<Vec<u8>> {
        let own = (!self.unsettled.is_empty()).then(|| key.to_vec());
        own.into_iter().chain(self.given_up.iter().cloned()).collect()
    }

    /// The numbers of these saves.
    fn saves(&self) -> Saves {
        let committed = self.current.as_ref().map(Saved::number);
        Saves { committed, unknown: self.unsettled.iter().map(Saved::number).collect() }
    }

    /// The extents of these saves.
    fn extents(&self) -> HashSet<(MemberId, u32)> {
        self.live().flat_map(|saved| extents_of(&saved.descriptor)).collect()
    }
}

impl Inner {
    pub(super) fn save_image(
        &self,
        name: &str,
        note: &[u8],
        len: u64,
        read: Read<'_>,
    ) -> ImageResult<()> {
        let key = self.image_key(name);
        let saved = self.with_entry(&key, |entry| {
            loop {
                // Before `encode`, so that a save of another member since then wins.
                let found = self.store.get(&key)?;
                let version = found.as_ref().map(|value| value.version());
                let before = found.and_then(|value| Descriptor::decode(value.bytes()));
                let before = before.map(|before| before.save);
                let saved = self.encode(entry, hash_key(&key), note, len, read)?;
                let expect = version.map_or(Expect::Absent, Expect::Version);
                match self.store.put_if(&key, &saved.descriptor.encode(), expect) {
                    Ok(_) => {
                        self.settle(entry, Some(saved));
                        // More holders may have died since `recheck` than the image can lose. The
                        // bytes are still here.
                        if !self.has_lost_current(entry) {
                            return Ok(());
                        }
                    }
                    Err(StoreError::Conflict { .. }) => {
                        self.drop_saved(entry, saved);
                        if self.adopt_unsettled(entry, &key, before)? {
                            continue;
                        }
                        return Err(ImageError::Replaced { name: name.to_string() });
                    }
                    Err(error @ (StoreError::Timeout { .. } | StoreError::Engine(_))) => {
                        entry.unsettled.push(saved);
                        return Err(error.into());
                    }
                    Err(error) => {
                        self.drop_saved(entry, saved);
                        return Err(error.into());
                    }
                }
            }
        });
        self.end_of_save(&key)?;
        saved
    }

    /// Whether more pieces of the committed save are lost than may be.
    fn has_lost_current(&self, entry: &Entry) -> bool {
        let view = self.job.view();
        let is_lost =
            |saved: &Saved| self.places_gone(&saved.descriptor, &view) > saved.descriptor.lose;
        entry.current.as_ref().is_some_and(is_lost)
    }

    /// After a lost commit: whether the record is a save of this member, whose outcome was unknown
    /// or which was healed meanwhile, or still the save `before` of another member, which was
    /// healed or put once more. Otherwise this member has nothing to compare with any more.
    fn adopt_unsettled(
        &self,
        entry: &mut Entry,
        key: &[u8],
        before: Option<u64>,
    ) -> ImageResult<bool> {
        let Some(value) = self.store.get(key)? else {
            self.settle(entry, None);
            return Ok(false);
        };
        let found = Descriptor::decode(value.bytes());
        if let (Some(current), Some(found)) = (&entry.current, &found)
            && current.number() == found.save
        {
            self.move_pieces(entry, found.save, found.places.clone());
            return Ok(true);
        }
        // Each change has changed the version of the record, so the save is not tried for ever.
        let is_as_before = found.as_ref().is_some_and(|found| Some(found.save) == before);
        match found.filter(|found| entry.unsettled.iter().any(|saved| saved.number() == found.save))
        {
            Some(found) => {
                self.adopt(entry, found);
                Ok(true)
            }
            None => {
                self.settle(entry, None);
                Ok(is_as_before)
            }
        }
    }

    /// The record is a save of this member whose outcome was unknown: it is committed.
    fn adopt(&self, entry: &mut Entry, found: Descriptor) {
        self.move_pieces(entry, found.save, found.places);
        let index = entry.unsettled.iter().position(|saved| saved.number() == found.save);
        let saved = index.map(|index| entry.unsettled.swap_remove(index));
        self.settle(entry, saved);
    }

    /// Computes and writes the pieces of a save. Nothing names them yet.
    pub(super) fn encode(
        &self,
        entry: &mut Entry,
        image: u64,
        note: &[u8],
        len: u64,
        read: Read<'_>,
    ) -> ImageResult<Saved> {
        if len > self.options.bytes {
            return Err(ImageError::TooLong { len, limit: self.options.bytes });
        }
        // `close` first stores that the images are closed, and then looks for entries in use.
        self.check_open()?;
        loop {
            self.settle_late(entry);
            match self.try_encode(entry, image, note, len, read) {
                // A holder died. Each time the view has a further death, so this ends.
                Err(ImageError::Engine(Error::Dead { .. })) => {}
                other => return other,
            }
        }
    }

    fn try_encode(
        &self,
        entry: &mut Entry,
        image: u64,
        note: &[u8],
        len: u64,
        read: Read<'_>,
    ) -> ImageResult<Saved> {
        let me = self.job.me();
        let holders = self.sets.choose(me, &self.lasting_view());
        if holders.is_empty() {
            return Err(ImageError::Closed);
        }
        let lose = self.options.lose.min(holders.len() - 1);
        let data = holders.len() - lose;
        let stripe_len = (data * self.options.piece_len) as u64;
        let stripes = len.div_ceil(stripe_len) as usize;
        let sorted: BTreeSet<MemberId> = holders.iter().copied().collect();
        let base = entry.current.as_ref().filter(|current| {
            let descriptor = &current.descriptor;
            let members: BTreeSet<MemberId> =
                descriptor.places.iter().map(|place| place.member).collect();
            descriptor.len == len
                && descriptor.image == image
                && descriptor.lose == lose
                && stripes > 0
                && entry.late.is_empty()
                && members.iter().eq(sorted.iter())
        });

        // `compare`
        let mut buffer = vec![0; stripe_len as usize];
        let mut fill = |stripe: usize, buffer: &mut [u8]| {
            let at = stripe as u64 * stripe_len;
            let present = stripe_len.min(len - at) as usize;
            read(at, &mut buffer[..present]);
            buffer[present..].fill(0);
        };
        let fingerprints: Vec<u128> = self.compute(|| {
            let mut fingerprint_of = |stripe| {
                fill(stripe, &mut buffer);
                fingerprint(&buffer)
            };
            (0..stripes).map(&mut fingerprint_of).collect()
        });
        let has_changed =
            |stripe: &usize| base.is_none_or(|b| b.fingerprints[*stripe] != fingerprints[*stripe]);
        let changed: Vec<usize> = (0..stripes).filter(has_changed).collect();

        // `claim`
        let mut places: Vec<Place> = match base {
            Some(base) => base.descriptor.places.clone(),
            None => holders.iter().map(|&member| Place { member, extents: Vec::new() }).collect(),
        };
        let mut free = free_slots(&places, entry);
        let missing = changed.len().saturating_sub(free.len());
        let extents = missing.div_ceil(EXTENT_SLOTS as usize);
        let mut claimed: Vec<(MemberId, u32)> = Vec::new();
        let first_new = places[0].extents.len() as u32 * EXTENT_SLOTS as u32;
        for place in &mut places {
            let found = self.claim(place.member, extents);
            let Ok(Some(found)) = found else {
                self.give_back_later(entry, &claimed);
                let needed = extents as u64 * EXTENT_SLOTS * self.options.slot_len();
                return Err(match found {
                    Err(error) => error,
                    Ok(_) => ImageError::NoRoom { member: place.member, needed },
                });
            };
            claimed.extend(found.iter().map(|extent| (place.member, *extent)));
            place.extents.extend(found);
        }
        free.extend(first_new..first_new + extents as u32 * EXTENT_SLOTS as u32);

        // `encode`
        let save = self.next_save();
        let mut all: Vec<Stripe> =
            base.map_or(vec![Stripe { slot: 0, save }; stripes], |b| b.descriptor.stripes.clone());
        let mut encoder = Encoder::new(data, lose, self.options.piece_len);
        let mut puts: Vec<(usize, Pending)> = Vec::new();
        let mut fault = None;
        let mut panic = None;
        for (&stripe, slot) in changed.iter().zip(free) {
            // A panic of the program's closure goes on when the puts are complete, and the extents
            // are given back.
            let read = || catch_unwind(AssertUnwindSafe(|| fill(stripe, &mut buffer)));
            if let Err(payload) = self.compute(read) {
                panic = Some(payload);
                break;
            }
            all[stripe] = Stripe { slot, save };
            let mut put = |index: usize, piece: &[u8]| {
                let place = &places[index];
                let head = Head { image, save, stripe: stripe as u32, place: index as u32 };
                let mut bytes = Vec::new();
                head.slot(piece, self.options.piece_len, &mut bytes);
                let offset = self.slot_offset(place.member, &place.extents, slot);
                let offset = offset.expect("a slot of a claimed extent");
                let operation = Operation::Put { offset, data: &bytes };
                self.pieces_written.fetch_add(1, Ordering::Relaxed);
                puts.push((index, self.job.start(Epoch::ANY, place.member, operation)));
            };
            let pieces = || buffer.chunks_exact(self.options.piece_len);
            self.compute(|| {
                pieces().enumerate().for_each(|(index, piece)| put(index, piece));
                if !(mutant("image-stale-parity") && base.is_some()) {
                    encoder.encode(pieces(), |index, piece| put(data + index, piece));
                }
            });
            if puts.len() >= WINDOW {
                let until = self.job.deadline();
                puts =
                    self.wait_all(puts, until, |_, result| fault = fault.take().or(result.err()));
                if fault.is_some() || !puts.is_empty() {
                    break;
                }
                // The holders have answered. The time limit is counted anew, since an image may be
                // long.
                deadline::restart();
            }
        }
        if !mutant("image-commit-early") || base.is_none() {
            let until = self.job.deadline();
            puts = self.wait_all(puts, until, |_, result| fault = fault.take().or(result.err()));
        }
        if let Some((index, _)) = puts.first() {
            let limit = self.job.time_limit();
            fault = fault.or(Some(Error::Timeout { member: places[*index].member, limit }));
        }
        entry.late.extend(puts.into_iter().map(|(_, put)| ((), put)));
        if let Some(payload) = panic {
            self.give_back_later(entry, &claimed);
            resume_unwind(payload);
        }

        // `recheck`
        let view = self.job.view();
        let dead = places.iter().find(|place| !view.is_living(place.member));
        let fault = dead.map(|place| Error::Dead { member: place.member }).or(fault);
        if let Some(error) = fault {
            self.give_back_later(entry, &claimed);
            return Err(error.into());
        }
        let note = note.to_vec();
        let descriptor =
            Descriptor { owner: me, image, save, len, lose, places, stripes: all, note };
        Ok(Saved { descriptor, fingerprints })
    }

    /// A number that no other save of the job has.
    fn next_save(&self) -> u64 {
        // Relaxed: only that the numbers differ matters.
        let number = self.saves.fetch_add(1, Ordering::Relaxed) + 1;
        (u64::from(self.job.me().0) << 48) | number
    }

    /// `free`: what is committed now, or nothing that this member knows of. All other saves of the
    /// entry are out of the race, and what only they name is given back.
    pub(super) fn settle(&self, entry: &mut Entry, committed: Option<Saved>) {
        let before = entry.extents();
        entry.unsettled.clear();
        entry.current = committed;
        let after = entry.extents();
        let gone: Vec<(MemberId, u32)> = before.difference(&after).copied().collect();
        self.give_back_later(entry, &gone);
        // A holder may have died after `recheck`, and the activity that heals may have looked
        // before `commit`.
        let view = self.lasting_view();
        let is_whole = |saved: &Saved| self.places_gone(&saved.descriptor, &view) == 0;
        if !entry.current.as_ref().is_none_or(is_whole) {
            self.is_healing_due.store(true, Ordering::SeqCst);
            let _ = self.job.ring(self.job.me());
        }
    }

    /// Nothing names a save any more, and nothing will.
    pub(super) fn drop_saved(&self, entry: &mut Entry, saved: Saved) {
        let live = entry.extents();
        let gone: Vec<(MemberId, u32)> =
            extents_of(&saved.descriptor).filter(|extent| !live.contains(extent)).collect();
        self.give_back_later(entry, &gone);
    }

    /// Deletes an image; returns whether it existed.
    pub(super) fn delete_image(&self, entry: &mut Entry, key: &[u8]) -> ImageResult<bool> {
        let existed = match entry.unsettled.is_empty() {
            true => self.store.delete(key)?,
            // It may also come into being later, by a commit with an unknown outcome.
            false => self.delete_surely(key)?,
        };
        self.settle(entry, None);
        Ok(existed)
    }

    /// Deletes a record; returns whether it existed. No put of it that was not answered in time
    /// happens any more.
    pub(super) fn delete_surely(&self, key: &[u8]) -> ImageResult<bool> {
        loop {
            if self.store.delete(key)? {
                return Ok(true);
            }
            if self.store.bar_late_puts(key)? {
                return Ok(false);
            }
        }
    }

    /// Gives extents back, or keeps them until no put to any of them is late.
    pub(super) fn give_back_later(&self, entry: &mut Entry, extents: &[(MemberId, u32)]) {
        // In a fixed order: the order of engine calls is a part of what a seed replays.
        let mut extents = extents.to_vec();
        extents.sort_unstable_by_key(|(member, extent)| (member.0, *extent));
        match entry.late.is_empty() {
            true => self.give_back(&extents),
            false => entry.deferred.extend(extents),
        }
    }

    fn settle_late(&self, entry: &mut Entry) {
        let late = std::mem::take(&mut entry.late);
        entry.late = self.wait_all(late, self.job.now(), |(), _| {});
        if entry.late.is_empty() && !entry.deferred.is_empty() {
            let deferred = std::mem::take(&mut entry.deferred);
            self.give_back(&deferred);
        }
    }

    /// `free` for images that this member does not save at present. Late puts may be over, another
    /// member may have replaced or deleted an image, and the outcome of a commit may be unknown.
    pub(super) fn audit(&self) -> ImageResult<()> {
        let mut known: Vec<(Vec<u8>, Saves)> = crate::sync::lock(&self.entries)
            .iter()
            .filter(|(_, entry)| !entry.is_busy)
            .map(|(key, entry)| (key.clone(), entry.saves()))
            .collect();
        // In a fixed order: the order of engine calls is a part of what a seed replays.
        known.sort_unstable();
        let images = self.image_key("");
        let mut result = Ok(());
        for (key, saves) in known {
            let given_up = self.try_with_entry(&key, |entry| {
                self.settle_late(entry);
                entry.given_up.clone()
            });
            for old in given_up.unwrap_or_default() {
                match self.delete_surely(&old) {
                    Ok(_) => drop(self.try_with_entry(&key, |entry| {
                        entry.given_up.retain(|kept| *kept != old);
                    })),
                    Err(error) => result = result.and(Err(error)),
                }
            }
            // The records of regions are replaced by their own member alone.
            if key.starts_with(&images) && saves != Saves::default() {
                result = result.and(self.audit_image(&key, &saves));
            }
        }
        result
    }

    /// `free` for an image of which this member knows these saves: those that the record cannot
    /// name any more are out of the race.
    ///
    /// It works without the entry, as far as it waits: a save must not wait for a stopped replica.
    /// A save that is going on meanwhile changes the entry, and then the next audit does it.
    fn audit_image(&self, key: &[u8], saves: &Saves) -> ImageResult<()> {
        let value = self.store.get(key)?;
        let found = value.as_ref().and_then(|value| Descriptor::decode(value.bytes()));
        let is_current = found.as_ref().is_some_and(|found| Some(found.save) == saves.committed);
        if is_current && saves.unknown.is_empty() {
            return Ok(());
        }
        if !saves.unknown.is_empty() {
            // Any of these commits may still happen if the record is as it was then. After another
            // put, or a tombstone, it is not.
            match &value {
                None if !self.store.bar_late_puts(key)? => return Ok(()),
                None => {}
                Some(value) => {
                    let expect = Expect::Version(value.version());
                    match self.store.put_if(key, value.bytes(), expect) {
                        Ok(_) => {}
                        Err(StoreError::Conflict { .. }) => return Ok(()),
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
        self.try_with_entry(key, |entry| {
            if entry.saves() != *saves {
                return;
            }
            match found {
                Some(_) if is_current => {
                    let current = entry.current.take();
                    self.settle(entry, current);
                }
                Some(found) if saves.unknown.contains(&found.save) => self.adopt(entry, found),
                _ => self.settle(entry, None),
            }
        });
        Ok(())
    }

    /// Whether an audit may have something to do.
    pub(super) fn has_saved(&self) -> bool {
        let entries = crate::sync::lock(&self.entries);
        entries.values().any(|entry| !entry.is_vacant()) || self.has_healed_extents()
    }

    /// After this member has healed an image and put its descriptor: updates what it knows of it.
    /// If it knows nothing of this save, the new place stays among the healed extents: another
    /// save has replaced the image, or the save belongs to a dead member, or it is a generation
    /// that may come to count.
    pub(super) fn note_healed(&self, entry: &mut Entry, healed: Descriptor) {
        if entry.live().any(|saved| saved.number() == healed.save) {
            self.move_pieces(entry, healed.save, healed.places);
        }
    }

    /// The pieces of a save are at these places now: what this member knows takes them over. The
    /// places before them may be at members that still live, and want to leave.
    fn move_pieces(&self, entry: &mut Entry, save: u64, places: Vec<Place>) {
        let before = entry.extents();
        self.take_over(&places);
        let mut live = entry.current.iter_mut().chain(&mut entry.unsettled);
        if let Some(saved) = live.find(|saved| saved.number() == save) {
            saved.descriptor.places = places;
        }
        let after = entry.extents();
        let gone: Vec<(MemberId, u32)> = before.difference(&after).copied().collect();
        self.give_back_later(entry, &gone);
    }

    /// Whether an activity of this member uses what it knows of an image, for example to save it.
    pub(super) fn is_any_entry_busy(&self) -> bool {
        crate::sync::lock(&self.entries).values().any(|entry| entry.is_busy)
    }

    /// Whether a put of this member may still happen.
    pub(super) fn has_late_puts(&self) -> bool {
        crate::sync::lock(&self.entries).values().any(|entry| !entry.late.is_empty())
            || self.has_late_rebuilds()
    }
}

fn extents_of(descriptor: &Descriptor) -> impl Iterator<Item = (MemberId, u32)> {
    descriptor.places.iter().flat_map(Place::claims)
}

/// The slots of these places that no save of the entry names.
fn free_slots(places: &[Place], entry: &Entry) -> Vec<u32> {
    let slots = places[0].extents.len() as u32 * EXTENT_SLOTS as u32;
    // Saves that share a first extent share all of them, as far as they have them.
    let is_shared = |saved: &&Saved| {
        saved.descriptor.places.first().and_then(|place| place.extents.first())
            == places[0].extents.first()
    };
    let named: HashSet<u32> = entry
        .live()
        .filter(is_shared)
        .flat_map(|saved| saved.descriptor.stripes.iter().map(|stripe| stripe.slot))
        .collect();
    (0..slots).filter(|slot| mutant("image-reuse-slot") || !named.contains(slot)).collect()
}
