//! Healing: lost pieces come back, in an activity of its own.
//!
//! After a death the owner of each image, or the heir of a dead owner, gives the places of the dead
//! to other members and rebuilds their pieces. The places of a member that leaves count as those of
//! the dead, and it waits until they are healed (`leave`).
//!
//! | step | what it does | a death or stop in it |
//! |---|---|---|
//! | `choose` | a living member for each dead place, of an unused domain if there is one | nothing has happened |
//! | `claim` | extents at the new holder | extents that no descriptor names |
//! | `rebuild` | read each stripe, put the missing piece into the slot of its number | as `claim` |
//! | `whole` | put the descriptor with the new place, if the record is as it was | before: the place is still lost; after: it is whole |
//!
//! A save that commits meanwhile wins, since it has changed the record. A record names a place only
//! when all its pieces are there. A save of this member does not wait for the healing of its image
//! or of its regions: what this member knows of them is taken when the new descriptor is put.
//!
//! The activity also gives back extents of images that this member does not save at present
//! ([`Inner::audit`]).

use super::code::Encoder;
use super::descriptor::{Descriptor, Place};
use super::options::EXTENT_SLOTS;
use super::stripe::Head;
use super::{ImageError, ImageResult, Inner};
use crate::engine::deadline::{self, Deadline};
use crate::engine::{Epoch, Error, MemberId, Operation, Pending, Time, View};
use crate::store::{Expect, StoreError, Version};
use crate::sync::lock;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// When healing is tried again after it could not go on.
const AGAIN: Duration = Duration::from_millis(200);

/// How often the extents of this member's images are compared with the records.
const AUDIT: Duration = Duration::from_secs(1);

/// How many stripes are rebuilt at once.
pub(super) const CHUNK: usize = 16;

/// A descriptor, with the key and the version of its record.
type Described = (Vec<u8>, Version, Descriptor);

impl Inner {
    /// The activity that heals, until the images are closed or the member ends.
    pub(super) fn run_healing(&self) {
        let mut seen = (self.job.epoch(), self.store.leavers_version());
        let mut again: Option<Time> = None;
        let mut audit = Time::NEVER;
        loop {
            let bell = self.job.bell();
            if self.check_open().is_err() {
                return;
            }
            self.settle_late_rebuilds();
            self.settle_late_swaps();
            match self.has_saved() {
                false => audit = Time::NEVER,
                true if audit == Time::NEVER => audit = self.job.now().after(AUDIT),
                true if self.job.now() >= audit => {
                    // What cannot be read now is read at the next audit.
                    let _background = Deadline::background(std::iter::empty());
                    let audited = self.audit_healed().and(self.audit());
                    if let Err(ImageError::Closed) = audited {
                        return;
                    }
                    audit = self.job.now().after(AUDIT);
                    continue;
                }
                true => {}
            }
            let now = (self.job.epoch(), self.store.leavers_version());
            let is_due = self.is_healing_due.swap(false, Ordering::SeqCst);
            if now != seen || is_due || again.is_some_and(|at| self.job.now() >= at) {
                again = match self.heal_all() {
                    Ok(()) => None,
                    Err(ImageError::Closed) => return,
                    // The saves of other images may give room back, and the loss of a partition of
                    // records may be accepted.
                    Err(
                        error @ (ImageError::NoRoom { .. }
                        | ImageError::Store(StoreError::DataLost { .. })),
                    ) => {
                        tracing::debug!(%error, "healing of images waits for room or records");
                        Some(self.job.now().after(AUDIT))
                    }
                    Err(error) => {
                        tracing::warn!(%error, "healing of images is tried again");
                        Some(self.job.now().after(AGAIN))
                    }
                };
                seen = now;
                continue;
            }
            self.job.park(bell, again.unwrap_or(Time::NEVER).min(audit));
        }
    }

    /// All descriptors, with the keys and versions of their records.
    pub(super) fn descriptors(&self) -> ImageResult<Vec<Described>> {
        let (descriptors, result) = self.reachable_descriptors();
        result.map(|()| descriptors)
    }

    /// All descriptors but those in lost partitions, whose images are lost.
    pub(super) fn descriptors_left(&self) -> ImageResult<Vec<Described>> {
        match self.reachable_descriptors() {
            (descriptors, Ok(()) | Err(ImageError::Store(StoreError::DataLost { .. }))) => {
                Ok(descriptors)
            }
            (_, Err(error)) => Err(error),
        }
    }

    /// The descriptors that can be read now; and an error if there may be others, because the
    /// primary of a partition does not answer or because a partition is lost.
    fn reachable_descriptors(&self) -> (Vec<Described>, ImageResult<()>) {
        let (keys, mut result) = self.reachable_keys(b"d/");
        let mut descriptors = Vec::new();
        for key in keys {
            match self.store.get(&key) {
                Ok(Some(value)) => {
                    // There may be many records.
                    deadline::restart();
                    let version = value.version();
                    let descriptor = Descriptor::decode(value.bytes());
                    descriptors.extend(descriptor.map(|descriptor| (key, version, descriptor)));
                }
                Ok(None) => {}
                Err(error) => result = also(result, error.into()),
            }
        }
        (descriptors, result)
    }

    /// The keys of records that begin so behind the prefix of these images, in the partitions that
    /// can be listed now; and an error of the others, that of a lost partition only if all of them
    /// are lost.
    pub(super) fn reachable_keys(&self, beginning: &[u8]) -> (Vec<Vec<u8>>, ImageResult<()>) {
        let prefix = [&self.prefix[..], beginning].concat();
        let (mut keys, mut result) = (Vec::new(), Ok(()));
        for partition in 0..self.store.partitions() {
            match self.store.scan_partition(partition, &prefix) {
                Ok(found) => keys.extend(found),
                Err(error) => result = also(result, error.into()),
            }
        }
        (keys, result)
    }

    /// Heals what can be healed now. A stopped member, a lost partition, and an image that cannot
    /// be healed now do not keep other images from being healed: each thing that is reached for has
    /// a short bound of its own, and the first error says that healing has to be tried again.
    fn heal_all(&self) -> ImageResult<()> {
        let _background = Deadline::background(std::iter::empty());
        let (descriptors, mut result) = self.reachable_descriptors();
        for (key, _, descriptor) in descriptors {
            self.check_open()?;
            let view = self.job.view();
            let owner = descriptor.owner;
            let healer = if view.is_living(owner) { owner } else { self.store.heir_of(owner) };
            let is_whole = self.places_gone(&descriptor, &self.lasting_view()) == 0;
            if healer == self.job.me() && !is_whole {
                result = result.and(self.heal_image(&key));
            }
        }
        result
    }

    /// Heals the image of a record.
    fn heal_image(&self, key: &[u8]) -> ImageResult<()> {
        loop {
            let Some(value) = self.store.get(key)? else { return Ok(()) };
            let Some(descriptor) = Descriptor::decode(value.bytes()) else { return Ok(()) };
            let view = self.lasting_view();
            let lasts = |place: &&Place| view.is_living(place.member);
            let Some(lost) = descriptor.places.iter().position(|place| !lasts(&place)) else {
                return Ok(());
            };
            let members: Vec<MemberId> =
                descriptor.places.iter().filter(lasts).map(|place| place.member).collect();
            let Some(place) = self.claim_place(&descriptor, &members, &view)? else {
                // No other member can hold it. The next save has fewer pieces.
                return Ok(());
            };
            let claimed: Vec<(MemberId, u32)> = place.claims().collect();
            let mut healed = descriptor.clone();
            healed.places[lost] = place;
            match self.rebuild(&descriptor, &healed, lost) {
                Ok(()) => {}
                Err(Rebuild::Again) => {
                    self.give_back(&claimed);
                    continue;
                }
                // Too much is lost, and `load` says so; or a save has changed the record, and
                // has looked for dead holders itself.
                Err(Rebuild::Lost) => {
                    self.give_back(&claimed);
                    return Ok(());
                }
                Err(Rebuild::Failed(error)) => {
                    self.give_back(&claimed);
                    return Err(error);
                }
                // The puts may still happen, so the extents are given back later.
                Err(Rebuild::Late(error, puts)) => {
                    lock(&self.late_rebuilds).push(LateRebuild { extents: claimed, puts });
                    return Err(error);
                }
            }
            let before = value.version();
            let extents = claimed.clone();
            lock(&self.healed).push(Healed { key: key.to_vec(), before, extents });
            match self.store.put_if(key, &healed.encode(), Expect::Version(before)) {
                Ok(_) => self.with_entry_at_last(key, |entry| self.note_healed(entry, healed))?,
                Err(error) => {
                    // The put may still happen, or may have happened.
                    let is_unknown =
                        matches!(error, StoreError::Timeout { .. } | StoreError::Engine(_));
                    if !is_unknown {
                        let claimed = self.take_healed(&claimed);
                        self.give_back(&claimed);
                    }
                    if !matches!(error, StoreError::Conflict { .. }) {
                        return Err(error.into());
                    }
                }
            }
        }
    }

    /// Whether places that this member has healed are named by records alone.
    pub(super) fn has_healed_extents(&self) -> bool {
        !lock(&self.healed).is_empty()
    }

    /// What this member knows of an image names these places from now on.
    pub(super) fn take_over(&self, places: &[Place]) {
        let extents: Vec<(MemberId, u32)> = places.iter().flat_map(Place::claims).collect();
        self.take_healed(&extents);
    }

    /// Takes extents out of those that this member has claimed to heal images; returns those that
    /// were there.
    fn take_healed(&self, extents: &[(MemberId, u32)]) -> Vec<(MemberId, u32)> {
        let mut taken = Vec::new();
        let mut healed = lock(&self.healed);
        for of in healed.iter_mut() {
            taken.extend(of.extents.extract_if(.., |extent| extents.contains(extent)));
        }
        healed.retain(|of| !of.extents.is_empty());
        taken
    }

    /// Gives extents back that this member has claimed to heal an image, if the record does not
    /// name them any more. No record names them again then: each descriptor takes its places from
    /// the record before it.
    pub(super) fn audit_healed(&self) -> ImageResult<()> {
        let healed = lock(&self.healed).clone();
        let mut result = Ok(());
        for Healed { key, before, extents } in healed {
            let found = match self.store.get(&key) {
                Ok(found) => found,
                Err(error) => {
                    result = result.and(Err(error.into()));
                    continue;
                }
            };
            // The put of the healed descriptor, if it was not answered, may still happen.
            if found.as_ref().is_some_and(|found| found.version() == before) {
                continue;
            }
            let descriptor = found.and_then(|found| Descriptor::decode(found.bytes()));
            let named: HashSet<(MemberId, u32)> =
                descriptor.iter().flat_map(|of| &of.places).flat_map(Place::claims).collect();
            let gone: Vec<(MemberId, u32)> =
                extents.into_iter().filter(|extent| !named.contains(extent)).collect();
            if gone.is_empty() {
                continue;
            }
            // A save that is going on may have found them in an older record, and take them over.
            self.try_with_entry(&self.entry_key(&key), |entry| {
                let gone = self.take_healed(&gone);
                self.give_back_later(entry, &gone);
            });
        }
        result
    }

    /// Whether a put into a place that was not healed may still happen.
    pub(super) fn has_late_rebuilds(&self) -> bool {
        !lock(&self.late_rebuilds).is_empty()
    }

    /// Gives the extents of places back that were not healed, once no put into them is late.
    pub(super) fn settle_late_rebuilds(&self) {
        // They are taken out, since the engine is never called under a lock.
        let late = std::mem::take(&mut *lock(&self.late_rebuilds));
        let mut left = Vec::new();
        for LateRebuild { extents, puts } in late {
            let puts = self.wait_all(puts, self.job.now(), |(), _| {});
            match puts.is_empty() {
                true => self.give_back(&extents),
                false => left.push(LateRebuild { extents, puts }),
            }
        }
        lock(&self.late_rebuilds).append(&mut left);
    }

    /// `choose` and `claim`: a place with room for all slots at a member that holds no piece yet.
    /// `None` if there is no such member, and [`ImageError::NoRoom`] if none has room now. A member
    /// that does not answer is as good as full: its late claim is remembered, and the next member
    /// is asked.
    fn claim_place(
        &self,
        descriptor: &Descriptor,
        members: &[MemberId],
        view: &View,
    ) -> ImageResult<Option<Place>> {
        let extents = descriptor.places[0].extents.len();
        let (mut full, mut fault) = (None, None);
        for member in self.sets.candidates(descriptor.owner, members, view) {
            match self.claim(member, extents) {
                Ok(Some(extents)) => return Ok(Some(Place { member, extents })),
                Ok(None) => full = full.or(Some(member)),
                Err(ImageError::Engine(Error::Dead { .. })) => {}
                Err(ImageError::Closed) => return Err(ImageError::Closed),
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        if let Some(error) = fault {
            return Err(error);
        }
        let needed = extents as u64 * EXTENT_SLOTS * self.options.slot_len();
        full.map_or(Ok(None), |member| Err(ImageError::NoRoom { member, needed }))
    }

    /// `rebuild`: the pieces of a place, from those of the others.
    fn rebuild(
        &self,
        descriptor: &Descriptor,
        healed: &Descriptor,
        lost: usize,
    ) -> Result<(), Rebuild> {
        let piece_len = self.options.piece_len;
        let mut encoder = Encoder::new(descriptor.data(), descriptor.lose, piece_len);
        let place = &healed.places[lost];
        let mut silent = HashSet::new();
        let mut first = 0;
        while first < descriptor.stripes.len() {
            self.check_open().map_err(Rebuild::Failed)?;
            let chunk = first..descriptor.stripes.len().min(first + CHUNK);
            // Not the short bound of the background: a chunk may be long, and a member that does
            // not answer is waited for once.
            let end = || self.job.now().after(self.job.time_limit());
            let stripes = self.read_stripes(descriptor, chunk.clone(), &mut silent, end())?;
            let until = end();
            let mut puts: Vec<((), Pending)> = Vec::new();
            for (stripe, data) in chunk.clone().zip(&stripes) {
                let at = descriptor.stripes[stripe];
                let mut put = |piece: &[u8]| {
                    let (stripe_number, place_number) = (stripe as u32, lost as u32);
                    let (image, save) = (descriptor.image, at.save);
                    let head = Head { image, save, stripe: stripe_number, place: place_number };
                    let mut bytes = Vec::new();
                    head.slot(piece, piece_len, &mut bytes);
                    let offset = self.slot_offset(place.member, &place.extents, at.slot);
                    let offset = offset.expect("a slot of a claimed extent");
                    let operation = Operation::Put { offset, data: &bytes };
                    puts.push(((), self.job.start(Epoch::ANY, place.member, operation)));
                };
                match lost.checked_sub(encoder.data()) {
                    None => put(&data[lost]),
                    Some(parity) => {
                        encoder.encode(data.iter().map(Vec::as_slice), |index, piece| {
                            if index == parity {
                                put(piece);
                            }
                        });
                    }
                }
            }
            let mut fault = None;
            let left =
                self.wait_all(puts, until, |(), result| fault = fault.take().or(result.err()));
            if !left.is_empty() {
                let (member, limit) = (place.member, self.job.time_limit());
                return Err(Rebuild::Late(ImageError::Timeout { member, limit }, left));
            }
            match fault {
                None => {}
                Some(Error::Dead { .. }) => return Err(Rebuild::Again),
                Some(error) => return Err(Rebuild::Failed(error.into())),
            }
            first = chunk.end;
        }
        match self.job.view().is_living(place.member) {
            true => Ok(()),
            false => Err(Rebuild::Again),
        }
    }
}

/// The error of a listing in which this error follows a result: any other error counts before that
/// of a lost partition, which lists nothing any more.
fn also(result: ImageResult<()>, error: ImageError) -> ImageResult<()> {
    match result {
        Ok(()) | Err(ImageError::Store(StoreError::DataLost { .. })) => Err(error),
        first => first,
    }
}

/// Why a place could not be rebuilt.
enum Rebuild {
    /// The new holder died.
    Again,
    /// Too many pieces are missing.
    Lost,
    /// No put is late.
    Failed(ImageError),
    /// The new holder has not answered these puts.
    Late(ImageError, Vec<((), Pending)>),
}

/// Extents that this member has claimed to heal an image. Of what this member knows, only the
/// record names them: it is the record of another member's image, or of a generation that does not
/// count yet, or this member has not noted the new place, or does not know whether it was put.
///
/// They leave this list when an entry takes them over, and otherwise when the record names them no
/// more. So they are given back once.
#[derive(Clone)]
pub(super) struct Healed {
    key: Vec<u8>,
    /// The version of the record before the new place.
    before: Version,
    extents: Vec<(MemberId, u32)>,
}

/// Extents of a place that was not healed, since its holder did not answer these puts in time.
pub(super) struct LateRebuild {
    extents: Vec<(MemberId, u32)>,
    puts: Vec<((), Pending)>,
}

impl From<super::load::Unreadable> for Rebuild {
    fn from(error: super::load::Unreadable) -> Rebuild {
        use super::load::Unreadable;
        match error {
            Unreadable::Missing => Rebuild::Lost,
            Unreadable::Unanswered(error) | Unreadable::Failed(error) => {
                Rebuild::Failed(error.into())
            }
        }
    }
}
