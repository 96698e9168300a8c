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
use crate::engine::deadline::{Deadline, background_wait};
use crate::engine::{Epoch, Error, MemberId, MemberSet, Operation, Pending, Time, View};
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
    ///
    /// A holder of pieces may need longer than that for a part of an image. So the images whose
    /// holders did not answer within the short bound come last, with the time limit as their bound.
    /// In both rounds a holder that does not answer is waited for once, not for each image.
    fn heal_all(&self) -> ImageResult<()> {
        let _background = Deadline::background(std::iter::empty());
        let (descriptors, mut result) = self.reachable_descriptors();
        let (limit, epoch) = (self.job.time_limit(), self.job.epoch());
        let mut held_up = Vec::new();
        let mut silence = Silence { bound: background_wait(limit), silent: MemberSet::new() };
        for (key, _, descriptor) in descriptors {
            self.check_open()?;
            let view = self.job.view();
            let owner = descriptor.owner;
            let healer = if view.is_living(owner) { owner } else { self.store.heir_of(owner) };
            let is_whole = self.places_gone(&descriptor, &self.lasting_view()) == 0;
            if healer != self.job.me() || is_whole {
                continue;
            }
            match self.heal_image(&key, &mut silence) {
                Err(ImageError::Timeout { .. }) => held_up.push(key),
                healed => result = result.and(healed),
            }
        }
        let mut silence = Silence { bound: limit, silent: MemberSet::new() };
        for key in held_up {
            self.check_open()?;
            result = result.and(self.heal_image(&key, &mut silence));
            // A further death has left other images with lost pieces.
            if self.job.epoch() != epoch {
                break;
            }
        }
        result
    }

    /// Heals the image of a record.
    fn heal_image(&self, key: &[u8], silence: &mut Silence) -> ImageResult<()> {
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
            match self.rebuild(&descriptor, &healed, lost, silence) {
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

    /// The holder at the first of these silent places, if the image cannot be read without them.
    fn holder_missed(&self, descriptor: &Descriptor, silent: &HashSet<usize>) -> Option<MemberId> {
        let first = silent.iter().min()?;
        let view = self.job.view();
        let answers = |(index, place): &(usize, &Place)| {
            !silent.contains(index) && view.is_living(place.member)
        };
        let answering = descriptor.places.iter().enumerate().filter(answers).count();
        (answering < descriptor.data()).then(|| descriptor.places[*first].member)
    }

    /// `rebuild`: the pieces of a place, from those of the others.
    fn rebuild(
        &self,
        descriptor: &Descriptor,
        healed: &Descriptor,
        lost: usize,
        silence: &mut Silence,
    ) -> Result<(), Rebuild> {
        let piece_len = self.options.piece_len;
        let mut encoder = Encoder::new(descriptor.data(), descriptor.lose, piece_len);
        let place = &healed.places[lost];
        let mut silent = silence.places_of(descriptor);
        if let Some(member) = self.holder_missed(descriptor, &silent) {
            let limit = self.job.time_limit();
            return Err(Rebuild::Failed(ImageError::Timeout { member, limit }));
        }
        let mut first = 0;
        while first < descriptor.stripes.len() {
            let chunk = first..descriptor.stripes.len().min(first + CHUNK);
            let until = self.job.now().after(silence.bound);
            let stripes = self.read_stripes(descriptor, chunk.clone(), &mut silent, until);
            silence.add(descriptor, &silent);
            let stripes = stripes?;
            // Not the bound of reading: the new holder has just answered, and an attempt that is
            // given up keeps its extents until the puts are over.
            let until = self.job.now().after(self.job.time_limit());
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

/// The holders that did not answer while images were healed.
struct Silence {
    /// How long the reading of each part of an image waits for its holders.
    bound: Duration,
    silent: MemberSet,
}

impl Silence {
    /// The places of an image whose holders are silent.
    fn places_of(&self, descriptor: &Descriptor) -> HashSet<usize> {
        let places = descriptor.places.iter().enumerate();
        let silent = places.filter(|(_, place)| self.silent.contains(place.member));
        silent.map(|(index, _)| index).collect()
    }

    /// Adds the holders of these places of an image.
    fn add(&mut self, descriptor: &Descriptor, places: &HashSet<usize>) {
        for place in places {
            self.silent.insert(descriptor.places[*place].member);
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

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::Job;
    use crate::engine::Fault;
    use crate::engine::sim::{self, Link};
    use crate::image::{Images, Options};
    use crate::store::{self, Store};
    use std::cell::Cell;
    use std::rc::Rc;

    const LIMIT: Duration = Duration::from_secs(1);

    fn nap(job: &Job, what: &str, until: impl Fn() -> bool) {
        let deadline = job.now().after(Duration::from_secs(60));
        while !until() {
            assert!(job.now() < deadline, "{} waited in vain for {what}", job.me());
            job.sleep(Duration::from_millis(5));
        }
    }

    /// Two members die, and a holder is stopped without which none of six images of member 0 can be
    /// healed. An image that needs it not, of a dead member whose heir member 0 is, is healed soon.
    /// A pass over all images waits for the stopped holder once, and not for each image.
    #[test]
    fn healing_waits_once_for_a_stopped_holder_of_many_images() {
        for seed in 0..6 {
            let (arrived, is_over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            let mut simulated = sim::Options::new(6, seed).link(Link::Network);
            (simulated.steps_max, simulated.stack_len) = (20_000_000, 2 << 20);
            simulated.time_limit = LIMIT;
            sim::run(&simulated, move |job: Job| {
                let records = store::Options::new().replicas(3).partitions(64).expected_keys(64);
                let store = Store::open(&job, records).expect("opened");
                let options = Options::new(1500).set(3).lose(1).piece(64).room(400);
                let images = Images::open(&store, "test", options).expect("opened");
                let (healer, dies, stopped, other) =
                    (MemberId(0), MemberId(2), MemberId(4), MemberId(3));
                let stay = [0, 1, 5].map(MemberId);
                let key_of = |name: &String| images.inner.image_key(name);
                let is_apart = |name: &String| {
                    store.replicas_of(key_of(name)).iter().all(|replica| stay.contains(replica))
                };
                let names = (0..).map(|number| format!("image {number}")).filter(is_apart);
                let mut names: Vec<String> = names.take(20).collect();
                // In the order in which the healer finds them.
                names.sort_by_key(|name| store.partition_of(key_of(name)).expect("a partition"));
                let of_other = names.pop().expect("a name");
                if job.me() == other {
                    images.save(&of_other, b"", &[8; 100]).expect("saved");
                }
                if job.me() == healer {
                    assert_eq!(images.holders(), [healer, dies, stopped]);
                    for name in &names[..6] {
                        images.save(name, b"", &[7; 100]).expect("saved");
                    }
                }
                arrived.set(arrived.get() + 1);
                nap(&job, "the others", || arrived.get() == 6);
                if job.me() == healer {
                    let version =
                        || store.get(key_of(&of_other)).expect("read").map(|at| at.version());
                    let before = version();
                    job.inject(Fault::Stop(stopped)).expect("a fault");
                    job.inject(Fault::Kill(dies)).expect("a fault");
                    job.inject(Fault::Kill(other)).expect("a fault");
                    let is_dead = |member| !job.view().is_living(member);
                    nap(&job, "the deaths", || is_dead(dies) && is_dead(other));
                    assert_eq!(store.heir_of(other), healer);
                    let began = job.now();
                    nap(&job, "the other image", || version() != before);
                    let took = job.now().since(began);
                    assert!(took < LIMIT / 2, "seed {seed}: the other image took {took:?}");
                    let began = job.now();
                    let healed = images.inner.heal_all();
                    let took = job.now().since(began);
                    assert!(healed.is_err(), "a holder is stopped");
                    assert!(took < 2 * LIMIT, "seed {seed}: a pass took {took:?}");
                    job.inject(Fault::Resume(stopped)).expect("a fault");
                    nap(&job, "all pieces", || images.pieces_missing() == Ok(0));
                    is_over.set(true);
                }
                nap(&job, "the end", || is_over.get());
                images.close().expect("closed");
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }
}
