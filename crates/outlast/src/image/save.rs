//! Saving an image: compare, encode, recheck, commit, free.
//!
//! | step | what it does | a death or stop in it |
//! |---|---|---|
//! | `compare` | the fingerprint of each stripe, against the last save | nothing has happened |
//! | `claim` | extents for the slots that are missing | extents that no descriptor names |
//! | `encode` | put the pieces of changed stripes into slots that no descriptor names | as `claim` |
//! | `recheck` | a holder has died: back to `claim`, with another set | as `claim` |
//! | `commit` | put the descriptor, if the record is as it was | before: the old image; after: the new one |
//! | `free` | slots and extents that no descriptor names are free | dead: a claim that finds no room takes them. Stopped: done when it goes on |
//!
//! The outcome of a commit may be unknown: the store says `Timeout`. The slots of both images are
//! then kept until a later commit succeeded, which makes a late effect of the first impossible.

use super::code::Encoder;
use super::descriptor::{Descriptor, Place, Stripe};
use super::options::EXTENT_SLOTS;
use super::stripe::{Head, fingerprint, hash_key};
use super::{ImageError, ImageResult, Inner};
use crate::engine::{Epoch, Error, MemberId, Operation, Pending};
use crate::store::{Expect, StoreError, mutant};
use std::collections::{BTreeSet, HashSet};
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
}

/// A save of this member.
pub(super) struct Saved {
    pub(super) descriptor: Descriptor,
    fingerprints: Vec<u128>,
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
    /// All saves whose slots may be named by a record.
    fn live(&self) -> impl Iterator<Item = &Saved> {
        self.current.iter().chain(&self.unsettled)
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
        self.with_entry(&key, |entry| {
            loop {
                // Before `encode`, so that a save of another member since then wins.
                let found = self.store.get(&key)?;
                let version = found.as_ref().map(|value| value.version());
                let saved = self.encode(entry, hash_key(&key), note, len, read)?;
                let expect = version.map_or(Expect::Absent, Expect::Version);
                match self.store.put_if(&key, &saved.descriptor.encode(), expect) {
                    Ok(_) => {
                        self.settle(entry, Some(saved));
                        return Ok(());
                    }
                    Err(StoreError::Conflict { .. }) => {
                        self.drop_saved(entry, saved);
                        if self.adopt_unsettled(entry, &key)? {
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
        })
    }

    /// After a lost commit: whether the record is a save of this member, whose outcome was unknown
    /// or which was healed meanwhile. Otherwise this member has nothing to compare with any more.
    fn adopt_unsettled(&self, entry: &mut Entry, key: &[u8]) -> ImageResult<bool> {
        let Some(value) = self.store.get(key)? else {
            self.settle(entry, None);
            return Ok(false);
        };
        let found = Descriptor::decode(value.bytes());
        let is_found =
            |saved: &Saved| found.as_ref().is_some_and(|found| found.save == saved.descriptor.save);
        if let (Some(current), Some(found)) = (&entry.current, &found)
            && current.number() == found.save
        {
            self.move_pieces(entry, found.save, found.places.clone());
            return Ok(true);
        }
        match entry.unsettled.iter().position(is_found) {
            Some(index) => {
                let save = entry.unsettled[index].number();
                let places = found.map(|found| found.places).unwrap_or_default();
                self.move_pieces(entry, save, places);
                let saved = entry.unsettled.swap_remove(index);
                self.settle(entry, Some(saved));
                Ok(true)
            }
            None => {
                self.settle(entry, None);
                Ok(false)
            }
        }
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
        let mut fingerprints = Vec::with_capacity(stripes);
        for stripe in 0..stripes {
            fill(stripe, &mut buffer);
            fingerprints.push(fingerprint(&buffer));
        }
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
        let until = self.job.now().after(self.job.time_limit());
        for (&stripe, slot) in changed.iter().zip(free) {
            fill(stripe, &mut buffer);
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
            pieces().enumerate().for_each(|(index, piece)| put(index, piece));
            if !(mutant("image-stale-parity") && base.is_some()) {
                encoder.encode(pieces(), |index, piece| put(data + index, piece));
            }
            if puts.len() >= WINDOW {
                puts =
                    self.wait_all(puts, until, |_, result| fault = fault.take().or(result.err()));
                if fault.is_some() || !puts.is_empty() {
                    break;
                }
            }
        }
        if !mutant("image-commit-early") || base.is_none() {
            puts = self.wait_all(puts, until, |_, result| fault = fault.take().or(result.err()));
        }
        if let Some((index, _)) = puts.first() {
            let limit = self.job.time_limit();
            fault = fault.or(Some(Error::Timeout { member: places[*index].member, limit }));
        }
        entry.late.extend(puts.into_iter().map(|(_, put)| ((), put)));

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

    /// The image is gone.
    pub(super) fn forget(&self, entry: &mut Entry) {
        self.settle(entry, None);
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

    /// `free` for images that this member does not save at present. Late puts may be over, and
    /// another member may have replaced or deleted an image.
    pub(super) fn audit(&self) -> ImageResult<()> {
        let mut known: Vec<(Vec<u8>, Option<u64>)> = crate::sync::lock(&self.entries)
            .iter()
            .filter(|(_, entry)| !entry.is_busy)
            .map(|(key, entry)| (key.clone(), entry.current.as_ref().map(Saved::number)))
            .collect();
        // In a fixed order: the order of engine calls is a part of what a seed replays.
        known.sort_unstable();
        let images = self.image_key("");
        for (key, save) in known {
            self.try_with_entry(&key, |entry| self.settle_late(entry));
            // The records of regions are replaced by their own member alone.
            let Some(save) = save.filter(|_| key.starts_with(&images)) else { continue };
            // The record is read without the entry: a save must not wait for a stopped replica. The
            // save was committed before this read, so another record has replaced it.
            let found = self.store.get(&key)?;
            let found = found.and_then(|value| Descriptor::decode(value.bytes()));
            if found.is_none_or(|found| found.save != save) {
                self.try_with_entry(&key, |entry| {
                    let is_current = entry.current.as_ref().map(Saved::number) == Some(save);
                    if is_current && entry.unsettled.is_empty() {
                        self.settle(entry, None);
                    }
                });
            }
        }
        Ok(())
    }

    /// Whether an audit may have something to do.
    pub(super) fn has_saved(&self) -> bool {
        let entries = crate::sync::lock(&self.entries);
        entries.values().any(|entry| entry.current.is_some() || !entry.late.is_empty())
            || self.has_healed_extents()
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
