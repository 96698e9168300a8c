//! Healing: lost pieces come back, in an activity of its own.
//!
//! After a death the owner of each image, or the heir of a dead owner, gives the places of the dead
//! to other members and rebuilds their pieces.
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
use crate::engine::{Epoch, Error, MemberId, Operation, Pending, Time};
use crate::store::{Expect, StoreError, Version};
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// When healing is tried again after it could not go on.
const AGAIN: Duration = Duration::from_millis(200);

/// How often the extents of this member's images are compared with the records.
const AUDIT: Duration = Duration::from_secs(1);

/// How many stripes are rebuilt at once.
const CHUNK: usize = 16;

impl Inner {
    /// The activity that heals, until the images are closed or the member ends.
    pub(super) fn run_healing(&self) {
        let mut seen = self.job.epoch();
        let mut again: Option<Time> = None;
        let mut audit = Time::NEVER;
        loop {
            let bell = self.job.bell();
            if self.check_open().is_err() {
                return;
            }
            self.settle_late_swaps();
            match self.has_saved() {
                false => audit = Time::NEVER,
                true if audit == Time::NEVER => audit = self.job.now().after(AUDIT),
                true if self.job.now() >= audit => {
                    // What cannot be read now is read at the next audit.
                    if let Err(ImageError::Closed) = self.audit() {
                        return;
                    }
                    audit = self.job.now().after(AUDIT);
                    continue;
                }
                true => {}
            }
            let epoch = self.job.epoch();
            let is_due = self.is_healing_due.swap(false, Ordering::SeqCst);
            if epoch != seen || is_due || again.is_some_and(|at| self.job.now() >= at) {
                again = match self.heal_all() {
                    Ok(()) => None,
                    Err(ImageError::Closed) => return,
                    // The saves of other images may give room back.
                    Err(error @ ImageError::NoRoom { .. }) => {
                        tracing::debug!(%error, "healing of images waits for room");
                        Some(self.job.now().after(AUDIT))
                    }
                    Err(error) => {
                        tracing::warn!(%error, "healing of images is tried again");
                        Some(self.job.now().after(AGAIN))
                    }
                };
                seen = epoch;
                continue;
            }
            self.job.park(bell, again.unwrap_or(Time::NEVER).min(audit));
        }
    }

    /// All descriptors, with the keys and versions of their records.
    pub(super) fn descriptors(&self) -> ImageResult<Vec<(Vec<u8>, Version, Descriptor)>> {
        let mut descriptors = Vec::new();
        for key in self.store.scan(&[&self.prefix[..], b"d/"].concat())? {
            let Some(value) = self.store.get(&key)? else { continue };
            let version = value.version();
            if let Some(descriptor) = Descriptor::decode(value.bytes()) {
                descriptors.push((key, version, descriptor));
            }
        }
        Ok(descriptors)
    }

    fn heal_all(&self) -> ImageResult<()> {
        let mut result = Ok(());
        for (key, _, descriptor) in self.descriptors()? {
            let view = self.job.view();
            let owner = descriptor.owner;
            let healer = if view.is_living(owner) { owner } else { self.store.heir_of(owner) };
            let is_whole = descriptor.places.iter().all(|place| view.is_living(place.member));
            if healer == self.job.me() && !is_whole {
                // An image that cannot be healed now does not keep others from being healed.
                result = self.heal_image(&key).and(result);
            }
        }
        result
    }

    fn heal_image(&self, key: &[u8]) -> ImageResult<()> {
        let is_generation = !key.starts_with(&self.image_key(""));
        self.heal_record(key, |healed, claimed| {
            self.with_entry_at_last(key, |entry| {
                self.note_healed(entry, healed, claimed, is_generation);
            })
        })
    }

    /// Heals the image of a record. `note` is called after each place that is whole again, with the
    /// new descriptor and the extents that were claimed for it.
    fn heal_record(
        &self,
        key: &[u8],
        mut note: impl FnMut(Descriptor, &[(MemberId, u32)]) -> ImageResult<()>,
    ) -> ImageResult<()> {
        loop {
            let Some(value) = self.store.get(key)? else { return Ok(()) };
            let Some(descriptor) = Descriptor::decode(value.bytes()) else { return Ok(()) };
            let view = self.job.view();
            let living = |place: &&Place| view.is_living(place.member);
            let Some(lost) = descriptor.places.iter().position(|place| !living(&place)) else {
                return Ok(());
            };
            let members: Vec<MemberId> =
                descriptor.places.iter().filter(living).map(|place| place.member).collect();
            let Some(place) = self.claim_place(&descriptor, &members)? else {
                // No other member can hold it. The next save has fewer pieces.
                return Ok(());
            };
            let claimed: Vec<(MemberId, u32)> =
                place.extents.iter().map(|extent| (place.member, *extent)).collect();
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
                // A put may still happen, so the extents are not used again.
                Err(Rebuild::Failed(error)) => return Err(error),
            }
            let expect = Expect::Version(value.version());
            match self.store.put_if(key, &healed.encode(), expect) {
                Ok(_) => note(healed, &claimed)?,
                Err(StoreError::Conflict { .. }) => {
                    self.give_back(&claimed);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// `choose` and `claim`: a place with room for all slots at a member that holds no piece yet.
    /// `None` if there is no such member, and [`ImageError::NoRoom`] if none has room now.
    fn claim_place(
        &self,
        descriptor: &Descriptor,
        members: &[MemberId],
    ) -> ImageResult<Option<Place>> {
        let extents = descriptor.places[0].extents.len();
        let mut full = None;
        for member in self.sets.candidates(descriptor.owner, members, &self.job.view()) {
            match self.claim(member, extents) {
                Ok(Some(extents)) => return Ok(Some(Place { member, extents })),
                Ok(None) => full = full.or(Some(member)),
                Err(ImageError::Engine(Error::Dead { .. })) => {}
                Err(error) => return Err(error),
            }
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
        let until = self.job.now().after(self.job.time_limit());
        let mut first = 0;
        while first < descriptor.stripes.len() {
            let chunk = first..descriptor.stripes.len().min(first + CHUNK);
            let stripes = self.read_stripes(descriptor, chunk.clone(), &mut silent)?;
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
                return Err(Rebuild::Failed(ImageError::Timeout { member, limit }));
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

/// Why a place could not be rebuilt.
enum Rebuild {
    /// The new holder died.
    Again,
    /// Too many pieces are missing.
    Lost,
    Failed(ImageError),
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
