//! Arenas: the memory that each member lends for the pieces of others, in extents that are claimed
//! one-sidedly.
//!
//! An arena begins with a word for each extent: 0 if the extent is free, or the number of its
//! claimant plus 1. Only the claimant writes into the extent and gives it back. An extent of a dead
//! claimant that no descriptor names is free for any member: the dead commit no descriptor any
//! more. If a member dies between its claim and its commit, its extents come back in this way, when
//! a claim finds no free extents.
//!
//! A holder that is stopped answers the swap of a word late. The member then remembers the swap
//! ([`LateSwap`]): an extent that was claimed too late for its save is given back when the answer
//! comes.

use super::options::{EXTENT_SLOTS, Options};
use super::{ImageError, ImageResult, Inner};
use crate::engine::deadline;
use crate::engine::{self, Done, Epoch, Error, MemberId, Operation, Pending, Time};
use crate::job::Job;
use crate::sync::lock;
use std::collections::HashSet;

/// The arena of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arena {
    offset: u64,
    extents: u32,
}

/// A swap of an extent's word that its holder has not answered in time.
pub(super) struct LateSwap {
    extent: (MemberId, u32),
    /// The word that a claim expects; `None` for a swap that gives the extent back.
    claims: Option<u64>,
    swap: Pending,
}

impl Arena {
    fn len(extents: u64, options: &Options) -> u64 {
        Self::head_len(extents) + extents * EXTENT_SLOTS * options.slot_len()
    }

    /// The length of the words of all extents, so that slots begin at a multiple of 64.
    fn head_len(extents: u64) -> u64 {
        (extents * 8).next_multiple_of(64)
    }

    /// Reserves this member's arena of so many extents, all of them free.
    pub(super) fn lend(job: &Job, extents: u64, options: &Options) -> engine::Result<Arena> {
        let offset = job.reserve(Self::len(extents, options))?;
        let head = vec![0; Self::head_len(extents) as usize];
        job.put(Epoch::ANY, job.me(), offset, &head)?;
        Ok(Arena { offset, extents: extents as u32 })
    }

    pub(super) fn give_back(&self, job: &Job, options: &Options) {
        job.release(self.offset, Self::len(u64::from(self.extents), options));
    }

    /// What the other members are told: the place of the arena, and all options.
    pub(super) fn encode(&self, options: &Options) -> Vec<u8> {
        [&[1], &self.offset.to_le_bytes()[..], format!("{options:?}").as_bytes()].concat()
    }

    /// The arena of a member, of so many extents as all of them, or the reason why there is none.
    pub(super) fn decode(bytes: &[u8], extents: u64, options: &Options) -> Result<Arena, String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match bytes.split_first() {
            Some((1, rest)) if rest.len() >= 8 => {
                let (offset, others) = rest.split_at(8);
                let own = format!("{options:?}");
                if text(others) != own {
                    return Err(format!("other options: {} there, {own} here", text(others)));
                }
                let offset = u64::from_le_bytes(offset.try_into().expect("8 bytes"));
                Ok(Arena { offset, extents: extents as u32 })
            }
            Some((_, reason)) => Err(text(reason)),
            None => Err("an empty record".to_string()),
        }
    }

    fn word(&self, extent: u32) -> u64 {
        self.offset + u64::from(extent) * 8
    }

    /// Where a slot of an extent is, in the segment of the arena's member.
    fn slot(&self, extent: u32, slot: u64, options: &Options) -> u64 {
        let slots = u64::from(extent) * EXTENT_SLOTS + slot;
        self.offset + Self::head_len(u64::from(self.extents)) + slots * options.slot_len()
    }
}

impl Inner {
    /// Where a slot is at a holder; `None` if the holder has no such slot.
    pub(super) fn slot_offset(&self, holder: MemberId, extents: &[u32], slot: u32) -> Option<u64> {
        let arena = self.arenas.get(holder.index())?.as_ref()?;
        let extent = *extents.get((u64::from(slot) / EXTENT_SLOTS) as usize)?;
        (extent < arena.extents)
            .then(|| arena.slot(extent, u64::from(slot) % EXTENT_SLOTS, &self.options))
    }

    /// Claims so many extents at a holder. `None`, and nothing is claimed, if it has not so many.
    pub(super) fn claim(&self, holder: MemberId, count: usize) -> ImageResult<Option<Vec<u32>>> {
        let Some(arena) = self.arenas[holder.index()] else { return Ok(None) };
        self.settle_late_swaps();
        let own = u64::from(self.job.me().0) + 1;
        let mut claimed = Vec::new();
        let result = self.claim_from(arena, holder, count, own, &mut claimed);
        if result.is_ok() && claimed.len() == count {
            return Ok(Some(claimed));
        }
        let given: Vec<(MemberId, u32)> = claimed.iter().map(|extent| (holder, *extent)).collect();
        self.give_back(&given);
        result.map(|()| None)
    }

    /// The words of the extents of a member, if it lends any.
    pub(super) fn claimants(&self, holder: MemberId) -> ImageResult<Option<Vec<u64>>> {
        let Some(arena) = self.arenas[holder.index()] else { return Ok(None) };
        let mut words = vec![0; arena.extents as usize * 8];
        self.job.get(Epoch::ANY, holder, arena.offset, &mut words)?;
        let word = |word: &[u8]| u64::from_le_bytes(word.try_into().expect("8 bytes"));
        Ok(Some(words.chunks_exact(8).map(word).collect()))
    }

    fn claim_from(
        &self,
        arena: Arena,
        holder: MemberId,
        count: usize,
        own: u64,
        claimed: &mut Vec<u32>,
    ) -> ImageResult<()> {
        let (limit, until) = (self.job.time_limit(), self.job.deadline());
        let claimants = self.claimants(holder)?.unwrap_or_default();
        let swap = |extent: u32, from: u64, claimed: &mut Vec<u32>| -> ImageResult<()> {
            loop {
                // With the epoch of the view, so that the holder serves the dead no more.
                let at = self.job.epoch();
                let offset = arena.word(extent);
                let swap = Operation::CompareAndSwap { offset, expected: from, new: own };
                let swap = self.job.start(at, holder, swap);
                match self.wait_for_swap((holder, extent), Some(from), swap, until) {
                    None => return Err(ImageError::Timeout { member: holder, limit }),
                    Some(Ok(Done::Word(found))) if found == from => claimed.push(extent),
                    Some(Ok(_)) => {}
                    Some(Err(Error::Stale { .. })) => continue,
                    Some(Err(error)) => return Err(error.into()),
                }
                return Ok(());
            }
        };
        let view = self.job.view();
        let is_left = |claimant: u64| {
            u32::try_from(claimant.wrapping_sub(1))
                .is_ok_and(|member| view.dead.contains(MemberId(member)))
        };
        // A claim that the words show to be in vain takes no room from the saves of others.
        if claimants.iter().filter(|claimant| **claimant == 0 || is_left(**claimant)).count()
            < count
        {
            return Ok(());
        }
        for (extent, &claimant) in claimants.iter().enumerate() {
            if claimed.len() < count && claimant == 0 {
                swap(extent as u32, 0, claimed)?;
            }
        }
        let has_left = claimants.iter().any(|claimant| is_left(*claimant));
        if claimed.len() >= count || !has_left || self.job.is_serving_dead() {
            return Ok(());
        }
        // The images of descriptors in lost partitions are lost: their extents are free, too.
        let named: HashSet<(MemberId, u32)> = self
            .descriptors_left()?
            .iter()
            .flat_map(|(_, _, descriptor)| &descriptor.places)
            .flat_map(|place| place.extents.iter().map(|extent| (place.member, *extent)))
            .collect();
        for (extent, &claimant) in claimants.iter().enumerate() {
            let is_named = named.contains(&(holder, extent as u32));
            if claimed.len() < count && is_left(claimant) && !is_named {
                swap(extent as u32, claimant, claimed)?;
            }
        }
        Ok(())
    }

    /// Gives extents back that this member has claimed. It waits for the answers for the slack of
    /// its call only, since the call may have waited for a time limit already: a holder that does
    /// not answer until then does it later.
    pub(super) fn give_back(&self, extents: &[(MemberId, u32)]) {
        let swaps =
            extents.iter().filter_map(|&extent| Some((extent, self.start_give_back(extent)?)));
        let swaps: Vec<_> = swaps.collect();
        let until = deadline::until_given_back(self.job.now(), self.job.time_limit());
        // A swap that was not answered may still happen, and a second swap then changes nothing, or
        // frees an extent that this member has claimed again: so it is not tried again.
        let late = self.wait_all(swaps, until, |_, _| {});
        let late = late.into_iter().map(|(extent, swap)| LateSwap { extent, claims: None, swap });
        lock(&self.late_swaps).extend(late);
    }

    fn start_give_back(&self, (holder, extent): (MemberId, u32)) -> Option<Pending> {
        let own = u64::from(self.job.me().0) + 1;
        let offset = self.arenas[holder.index()]?.word(extent);
        let swap = Operation::CompareAndSwap { offset, expected: own, new: 0 };
        Some(self.job.start(Epoch::ANY, holder, swap))
    }

    /// Waits for the answer to a swap; `None` if it is late, and remembered.
    fn wait_for_swap(
        &self,
        extent: (MemberId, u32),
        claims: Option<u64>,
        swap: Pending,
        until: Time,
    ) -> Option<engine::Result<Done>> {
        let mut answer = None;
        let late = self.wait_all(vec![((), swap)], until, |(), result| answer = Some(result));
        let late = late.into_iter().map(|((), swap)| LateSwap { extent, claims, swap });
        lock(&self.late_swaps).extend(late);
        answer
    }

    /// Looks for answers to late swaps, and gives extents back that were claimed too late.
    pub(super) fn settle_late_swaps(&self) {
        // They are taken out, since the engine is never called under a lock.
        let late = std::mem::take(&mut *lock(&self.late_swaps));
        let mut left = Vec::new();
        for mut one in late {
            match self.job.poll(&mut one.swap) {
                None => left.push(one),
                Some(Ok(Done::Word(found))) if one.claims == Some(found) => {
                    if let Some(swap) = self.start_give_back(one.extent) {
                        left.push(LateSwap { claims: None, swap, ..one });
                    }
                }
                // It has changed nothing, or has given the extent back, or the holder is dead.
                Some(_) => {}
            }
        }
        lock(&self.late_swaps).append(&mut left);
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use crate::engine::Fault;
    use crate::engine::sim::{self, Link};
    use crate::image::{ImageError, Images, Inner, Options};
    use crate::store::{self, Store};
    use crate::{Epoch, Job, MemberId};
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    fn nap(job: &Job, what: &str, until: impl Fn() -> bool) {
        let deadline = job.now().after(Duration::from_secs(60));
        while !until() {
            assert!(job.now() < deadline, "{} waited in vain for {what}", job.me());
            job.sleep(Duration::from_millis(5));
        }
    }

    fn open(job: &Job) -> (Store, Images) {
        let records = store::Options::new().replicas(2).partitions(8).expected_keys(64);
        let store = Store::open(job, records).expect("opened");
        // Two sets of two members: each has other members that can take the place of the dead.
        let options = Options::new(1500).set(2).lose(1).piece(64).room(200);
        let images = Images::open(&store, "test", options).expect("opened");
        (store, images)
    }

    /// Waits until all four members have called it: the places that they compute before it, and the
    /// death that comes after it, are the same for all.
    fn meet(job: &Job, arrived: &Cell<u32>) {
        arrived.set(arrived.get() + 1);
        nap(job, "the other members", || arrived.get() == 4);
    }

    fn simulation(seed: u64, link: Link, time_limit: Duration) -> sim::Options {
        let mut options = sim::Options::new(4, seed).link(link);
        (options.steps_max, options.time_limit) = (20_000_000, time_limit);
        options.stack_len = 2 << 20;
        options
    }

    /// How many extents of all arenas are claimed.
    fn claimed(inner: &Inner) -> usize {
        (0..4).map(|holder| claimed_at(inner, MemberId(holder))).sum()
    }

    fn claimed_at(inner: &Inner, holder: MemberId) -> usize {
        words_of(inner, holder).iter().filter(|word| **word != 0).count()
    }

    /// The words of the extents of an arena.
    fn words_of(inner: &Inner, holder: MemberId) -> Vec<u64> {
        inner.claimants(holder).expect("read").expect("an arena")
    }

    /// A holder is stopped at any time of a save, and goes on when the save has timed out. When all
    /// images are deleted, all extents are free again.
    #[test]
    fn extents_that_a_stopped_holder_gives_late_come_back() {
        const LIMIT: Duration = Duration::from_millis(50);
        let late = Rc::new(Cell::new(0));
        for seed in 0..40 {
            let (is_over, late) = (Rc::new(Cell::new(false)), late.clone());
            let opened = Rc::new(Cell::new(0));
            sim::run(&simulation(seed, Link::Network, LIMIT), move |job: Job| {
                let (store, images) = open(&job);
                opened.set(opened.get() + 1);
                nap(&job, "the others", || opened.get() == 4);
                if job.me() == MemberId(0) {
                    let inner = &images.inner;
                    let holders = images.holders();
                    let mut others = holders.iter().filter(|&&holder| holder != job.me());
                    let holder = *others.next_back().expect("another holder");
                    for round in 0..6u64 {
                        let mine = job.clone();
                        let after = Duration::from_nanos((seed * 6 + round) * 7_919 % 60_000);
                        let stop = move || {
                            mine.sleep(after);
                            mine.inject(Fault::Stop(holder)).expect("a fault");
                            mine.sleep(LIMIT * 6);
                            mine.inject(Fault::Resume(holder)).expect("a fault");
                        };
                        let stops = job.spawn("stops", Box::new(stop)).expect("an activity");
                        let name = format!("image {round}");
                        let _ = images.save(&name, b"", &[round as u8; 1500]);
                        let count = super::lock(&inner.late_swaps).len();
                        late.set(late.get() + usize::from(count > 0));
                        nap(&job, "the end of the stop", || stops.is_finished());
                        nap(&job, "the end of the image", || images.delete(&name).is_ok());
                    }
                    nap(&job, "free extents", || claimed(inner) == 0);
                    is_over.set(true);
                }
                nap(&job, "the member that saves", || is_over.get());
                images.close().expect("closed");
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
        assert!(late.get() > 0, "no swap was late");
    }

    /// A replica of the records is stopped at any time of the first save of a name, and goes on
    /// when the save has timed out. The name is not used again: what the save has claimed is named
    /// by a record, or free. A name that is deleted then stays deleted.
    #[test]
    fn extents_of_a_first_save_with_an_unknown_outcome_come_back() {
        const LIMIT: Duration = Duration::from_millis(50);
        let unknown = Arc::new(AtomicU32::new(0));
        for seed in 0..24 {
            let (is_over, unknown) = (Rc::new(Cell::new(false)), unknown.clone());
            let arrived = Rc::new(Cell::new(0));
            sim::run(&simulation(seed, Link::Network, LIMIT), move |job: Job| {
                let (store, images) = open(&job);
                meet(&job, &arrived);
                if job.me() == MemberId(0) {
                    let inner = &images.inner;
                    let holders = images.holders();
                    let mut others = (1..4).map(MemberId);
                    let other = others.find(|member| !holders.contains(member));
                    let other = other.expect("a member without a piece");
                    let mut deleted = Vec::new();
                    for round in 0..6u64 {
                        let name = format!("image {round}");
                        let (own, saved, late) = (images.clone(), name.clone(), unknown.clone());
                        let save = move || {
                            let ended = own.save(&saved, b"", &[round as u8; 1500]);
                            let is_late = matches!(ended, Err(ImageError::Timeout { .. }));
                            late.fetch_add(u32::from(is_late), Ordering::SeqCst);
                        };
                        let saves = job.spawn("saves", Box::new(save)).expect("an activity");
                        let after = (seed * 6 + round) * 7_919 % 60_000;
                        job.sleep(Duration::from_nanos(after));
                        job.inject(Fault::Stop(other)).expect("a fault");
                        nap(&job, "the save", || saves.is_finished());
                        job.inject(Fault::Resume(other)).expect("a fault");
                        if round % 2 == 1 {
                            nap(&job, "the end of the image", || images.delete(&name).is_ok());
                            deleted.push(name);
                        }
                    }
                    nap(&job, "free extents", || unnamed(inner) == 0);
                    for name in deleted {
                        let found = images.load(&name);
                        assert!(matches!(found, Err(ImageError::Absent { .. })), "{found:?}");
                    }
                    is_over.set(true);
                }
                nap(&job, "the member that saves", || is_over.get());
                images.close().expect("closed");
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
        let unknown = unknown.load(Ordering::SeqCst);
        assert!(unknown > 10, "{unknown} saves had an unknown outcome");
    }

    /// The job has fewer members than a set has pieces, so each piece is longer. All members save
    /// images of the length for which the images were opened, and each again with other bytes.
    #[test]
    fn a_small_job_has_room_for_what_it_was_opened_for() {
        for (members, lose) in [(2, 1), (3, 1), (3, 2), (4, 3), (5, 3)] {
            let saved = Rc::new(Cell::new(0));
            let mut simulated = simulation(3, Link::Memory, Duration::from_secs(5));
            simulated.members = members;
            sim::run(&simulated, move |job: Job| {
                let records = store::Options::new().replicas(members).partitions(8);
                let store = Store::open(&job, records.expected_keys(64)).expect("opened");
                let options = Options::new(20_000).set(8).lose(lose).piece(64).room(0);
                let images = Images::open(&store, "test", options).expect("opened");
                for number in 0..4 {
                    let name = format!("image of {}", job.me());
                    images.save(&name, b"", &[number; 20_000]).expect("there is room");
                }
                saved.set(saved.get() + 1);
                nap(&job, "the others", || saved.get() == members);
                images.close().expect("closed");
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }

    /// A replica of the records is stopped at any time while a generation is staged, and goes on
    /// when that has timed out. No descriptor stays of a generation that was not staged.
    #[test]
    fn no_descriptor_of_a_generation_that_was_not_staged_stays() {
        const LIMIT: Duration = Duration::from_millis(50);
        let failed = Rc::new(Cell::new(0));
        for seed in 0..24 {
            let (is_over, failed) = (Rc::new(Cell::new(false)), failed.clone());
            let arrived = Rc::new(Cell::new(0));
            sim::run(&simulation(seed, Link::Network, LIMIT), move |job: Job| {
                let (store, images) = open(&job);
                meet(&job, &arrived);
                if job.me() == MemberId(0) {
                    let holders = images.holders();
                    let mut others = (1..4).map(MemberId);
                    let other = others.find(|member| !holders.contains(member));
                    let other = other.expect("a member without a piece");
                    for round in 0..6u64 {
                        let (mine, reads) = (job.clone(), Arc::new(AtomicU32::new(0)));
                        let counted = reads.clone();
                        let stop = move || {
                            let deadline = mine.now().after(Duration::from_secs(60));
                            // 24 stripes are read for their fingerprints, and again to be put.
                            while counted.load(Ordering::SeqCst) < 48 {
                                assert!(mine.now() < deadline, "nothing is staged");
                                mine.sleep(Duration::from_nanos(100));
                            }
                            let after = (seed * 6 + round) * 397 % 40_000;
                            mine.sleep(Duration::from_nanos(after));
                            mine.inject(Fault::Stop(other)).expect("a fault");
                        };
                        let stops = job.spawn("stops", Box::new(stop)).expect("an activity");
                        let mut read = |_: u64, bytes: &mut [u8]| {
                            reads.fetch_add(1, Ordering::SeqCst);
                            bytes.fill(round as u8);
                        };
                        let name = format!("regions {round}");
                        let staged = images.stage(&name, 7, b"", 1500, &mut read);
                        nap(&job, "the stop", || stops.is_finished());
                        failed.set(failed.get() + u32::from(staged.is_err()));
                        if let Ok(staged) = staged {
                            images.discard_staged(staged).expect("discarded");
                        }
                        job.inject(Fault::Resume(other)).expect("a fault");
                        job.sleep(LIMIT);
                    }
                    let left = || images.inner.reachable_keys(b"d/");
                    nap(&job, "no descriptor", || left() == (Vec::new(), Ok(())));
                    job.sleep(Duration::from_secs(3));
                    assert_eq!(left(), (Vec::new(), Ok(())));
                    is_over.set(true);
                }
                nap(&job, "the end", || is_over.get());
                images.close().expect("closed");
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
        assert!(failed.get() > 10, "{} generations were not staged", failed.get());
    }

    /// A save waits for a replica of the record in `commit`, and meanwhile more holders die than
    /// may be lost. It succeeds all the same, and the image is there.
    #[test]
    fn an_image_whose_holders_die_before_its_commit_is_saved_again() {
        let pause = Duration::from_millis(50);
        let again = Rc::new(Cell::new(0));
        for seed in 0..40 {
            let (arrived, is_over, again) =
                (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)), again.clone());
            let mut options = sim::Options::new(6, seed).link(Link::Network);
            (options.steps_max, options.stack_len) = (20_000_000, 2 << 20);
            sim::run(&options, move |job: Job| {
                let records = store::Options::new().replicas(3).partitions(8).expected_keys(64);
                let store = Store::open(&job, records).expect("opened");
                let options = Options::new(300).set(3).lose(1).piece(64).room(200);
                let images = Images::open(&store, "test", options).expect("opened");
                arrived.set(arrived.get() + 1);
                nap(&job, "the others", || arrived.get() == 6);
                if job.me() == MemberId(0) {
                    let (inner, holders) = (&images.inner, images.holders());
                    let dead = [holders[1], holders[2]];
                    let replicas = |name: &String| store.replicas_of(inner.image_key(name));
                    let name = (0..1000).map(|number| format!("image {number}"));
                    let is_apart =
                        |name: &String| replicas(name).iter().all(|other| !dead.contains(other));
                    let name = name.into_iter().find(is_apart).expect("a record at others");
                    let others = replicas(&name);
                    let replica = *others.iter().rfind(|other| **other != job.me()).expect("other");
                    let stage = Arc::new(AtomicU32::new(0));
                    let (mine, begun) = (job.clone(), stage.clone());
                    let faults = move || {
                        let deadline = mine.now().after(Duration::from_secs(60));
                        // Read for its fingerprint, and again to be put.
                        while begun.load(Ordering::SeqCst) < 2 {
                            assert!(mine.now() < deadline, "nothing is saved");
                            mine.sleep(Duration::from_nanos(100));
                        }
                        mine.sleep(Duration::from_nanos(seed * 777));
                        mine.inject(Fault::Stop(replica)).expect("a fault");
                        mine.sleep(pause);
                        for member in dead {
                            mine.inject(Fault::Kill(member)).expect("a fault");
                        }
                        nap(&mine, "the deaths", || mine.view().dead.len() == 2);
                        mine.inject(Fault::Resume(replica)).expect("a fault");
                    };
                    let faults = job.spawn("faults", Box::new(faults)).expect("an activity");
                    let read = |_: u64, bytes: &mut [u8]| {
                        stage.fetch_add(1, Ordering::SeqCst);
                        bytes.fill(7);
                    };
                    images.save_from(&name, b"", 100, read).expect("saved");
                    if job.view().dead.len() == 2 {
                        again.set(again.get() + 1);
                        assert_eq!(images.load(&name).expect("saved").bytes(), [7; 100]);
                    }
                    nap(&job, "the faults", || faults.is_finished());
                    is_over.set(true);
                }
                nap(&job, "the end", || is_over.get());
                images.close().expect("closed");
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
        assert!(again.get() >= 4, "{} saves waited in their commits", again.get());
    }

    /// The closure that gives the bytes of an image panics in the middle of a save. What the save
    /// has claimed is free again, and the next save succeeds. When all images are deleted, this
    /// member knows nothing of them any more.
    #[test]
    fn a_save_whose_closure_panics_keeps_no_extents() {
        for link in [Link::Memory, Link::Network] {
            sim::run(&simulation(5, link, Duration::from_secs(5)), move |job: Job| {
                let (store, images) = open(&job);
                if job.me() == MemberId(0) {
                    let inner = &images.inner;
                    for number in 0..18 {
                        let name = format!("image {number}");
                        // Each stripe is read for its fingerprint, and again to be put.
                        let mut reads = 0;
                        let read = |_: u64, bytes: &mut [u8]| {
                            reads += 1;
                            assert!(reads < 30 + number, "the closure fails");
                            bytes.fill(1);
                        };
                        let save = || images.save_from(&name, b"", 1500, read);
                        let ended = catch_unwind(AssertUnwindSafe(save));
                        assert!(ended.is_err(), "{ended:?}");
                        nap(&job, "free extents", || claimed(inner) == 0);
                        images.save(&name, b"", &[2; 1500]).expect("saved");
                        assert_eq!(images.delete(&name), Ok(true));
                    }
                    let known = super::lock(&inner.entries).len();
                    assert_eq!(known, 0, "names that are not in use");
                }
                images.close().expect("closed");
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }

    /// The first member dies at any time after all have agreed to close the images: no record stays
    /// in the store.
    #[test]
    fn no_record_stays_when_the_first_member_dies_in_close() {
        for seed in 0..24 {
            let arrived = Rc::new(Cell::new(0));
            let link = Link::of_seed(seed);
            sim::run(&simulation(seed, link, Duration::from_secs(5)), move |job: Job| {
                let (store, images) = open(&job);
                let first = MemberId(0);
                for number in 0..4 {
                    images
                        .save(&format!("{number} of {}", job.me()), b"", &[1; 99])
                        .expect("saved");
                }
                meet(&job, &arrived);
                if job.me() == first {
                    let (mine, own) = (job.clone(), images.clone());
                    let kill = move || {
                        let deadline = mine.now().after(Duration::from_secs(60));
                        while !own.inner.is_over() {
                            assert!(mine.now() < deadline, "the members do not agree to close");
                            mine.sleep(Duration::from_nanos(100));
                        }
                        mine.sleep(Duration::from_nanos(seed * 1_777));
                        mine.inject(Fault::Kill(first)).expect("a fault");
                    };
                    job.spawn("kills", Box::new(kill)).expect("an activity");
                }
                let prefix = images.inner.prefix.clone();
                images.close().expect("closed");
                nap(&job, "the death", || !job.view().is_living(first));
                assert_eq!(store.scan(&prefix).expect("listed").len(), 0, "records stay");
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }

    /// Another member saves an image of this member anew: the extents of this member come back by
    /// themselves.
    #[test]
    fn extents_of_an_image_that_another_member_saves_come_back() {
        for link in [Link::Memory, Link::Network] {
            let stage = Rc::new(Cell::new(0));
            sim::run(&simulation(5, link, Duration::from_secs(5)), move |job: Job| {
                let (store, images) = open(&job);
                if job.me() == MemberId(0) {
                    images.save("shared", b"", &[1; 1500]).expect("saved");
                    stage.set(1);
                    nap(&job, "the other member", || stage.get() == 2);
                    let inner = &images.inner;
                    // The holders have extents of the other member alone.
                    nap(&job, "free extents", || claimed(inner) == 2 * extents(inner));
                    assert_eq!(images.load("shared").expect("loaded").bytes(), [2; 1500]);
                    stage.set(3);
                } else if job.me() == MemberId(1) {
                    nap(&job, "the first save", || stage.get() == 1);
                    images.save("shared", b"", &[2; 1500]).expect("saved");
                    stage.set(2);
                }
                nap(&job, "the end", || stage.get() == 3);
                images.close().expect("closed");
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }

    /// A member saves an image that another member has saved. Meanwhile a holder or the other
    /// member dies, and the image is healed: no member has saved it, so the save succeeds.
    #[test]
    fn a_save_replaces_an_image_of_another_member_that_is_healed_meanwhile() {
        for link in [Link::Memory, Link::Network] {
            for is_owner in [false, true] {
                let (stage, arrived) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
                sim::run(&simulation(5, link, Duration::from_secs(5)), move |job: Job| {
                    let (store, images) = open(&job);
                    let (owner, sets) = (MemberId(0), &images.inner.sets);
                    let holders = sets.choose(owner, &job.view());
                    let dead = if is_owner { owner } else { holders[1] };
                    let mut others = (1..4).map(MemberId);
                    let saver = others.find(|other| !holders.contains(other)).expect("a member");
                    meet(&job, &arrived);
                    if job.me() == owner {
                        images.save("shared", b"", &[1; 1500]).expect("saved");
                        stage.set(1);
                    }
                    if job.me() == saver {
                        nap(&job, "the first save", || stage.get() == 1);
                        let read = |_: u64, buffer: &mut [u8]| {
                            if stage.get() == 1 {
                                stage.set(2);
                                job.inject(Fault::Kill(dead)).expect("a fault");
                                nap(&job, "the death", || !job.view().is_living(dead));
                                nap(&job, "all pieces", || images.pieces_missing() == Ok(0));
                            }
                            buffer.fill(2);
                        };
                        images.save_from("shared", b"", 1500, read).expect("saved");
                        assert_eq!(images.load("shared").expect("loaded").bytes(), [2; 1500]);
                        stage.set(3);
                    }
                    nap(&job, "the end", || stage.get() == 3);
                    images.close().expect("closed");
                    store.close().expect("closed");
                    let _ = job.leave();
                })
                .expect_ok();
            }
        }
    }

    /// A member saves slowly while its image is healed: the save finds the healed record, and names
    /// the new place, too. The place stays claimed, so no other image is written into it, and the
    /// image outlasts the next death.
    #[test]
    fn a_save_that_names_a_healed_place_keeps_its_extents() {
        // The second save uses the healed place, or gives it back itself.
        for (link, len) in
            [Link::Memory, Link::Network].into_iter().flat_map(|link| [(link, 1500), (link, 1400)])
        {
            let (stage, arrived) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
            sim::run(&simulation(7, link, Duration::from_secs(5)), move |job: Job| {
                let (store, images) = open(&job);
                let (me, sets) = (MemberId(0), &images.inner.sets);
                let holders = sets.choose(me, &job.view());
                let spare = sets.candidates(me, &holders, &job.view())[0];
                let dead = holders[1];
                meet(&job, &arrived);
                if job.me() == me {
                    images.save("image", b"", &[1; 1500]).expect("saved");
                    let read = |_: u64, buffer: &mut [u8]| {
                        if stage.get() == 0 {
                            stage.set(1);
                            job.inject(Fault::Kill(dead)).expect("a fault");
                            nap(&job, "the death", || !job.view().is_living(dead));
                            nap(&job, "all pieces", || images.pieces_missing() == Ok(0));
                        }
                        buffer.fill(2);
                    };
                    images.save_from("image", b"", len, read).expect("saved");
                    // A save of another length takes new extents, and gives the others back.
                    images.save("image", b"", &[2; 1300]).expect("saved");
                    // It takes what the save before has given back.
                    images.save("behind", b"", &[3; 1500]).expect("saved");
                    // The activity that heals compares what it has claimed with the records.
                    job.sleep(Duration::from_secs(3));
                    stage.set(2);
                    nap(&job, "its death", || false);
                } else if job.me() == spare {
                    nap(&job, "the save", || stage.get() == 2);
                    // Each save writes into slots that the save before it has left.
                    for number in 0..8 {
                        let name = format!("other {}", number % 2);
                        images.save(&name, b"", &[10 + number; 1500]).expect("saved");
                    }
                    job.inject(Fault::Kill(me)).expect("a fault");
                    nap(&job, "the death", || !job.view().is_living(me));
                    let loaded = images.load("image").expect("a single holder has died");
                    assert_eq!(loaded.bytes(), [2; 1300]);
                    let behind = images.load("behind").expect("a single holder has died");
                    assert_eq!(behind.bytes(), [3; 1500]);
                    stage.set(3);
                }
                nap(&job, "the end", || stage.get() == 3);
                images.close().expect("closed");
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }

    /// The extents that living members have claimed and no record names.
    fn unnamed(inner: &Inner) -> usize {
        let view = inner.job.view();
        let descriptors = inner.descriptors().expect("read");
        let places = descriptors.iter().flat_map(|(_, _, descriptor)| &descriptor.places);
        let named: Vec<(MemberId, u32)> = places.flat_map(|place| place.claims()).collect();
        let count = |holder: MemberId| {
            let is_unnamed = |&(extent, word): &(usize, u64)| {
                let claimant = word.checked_sub(1).map(|member| MemberId(member as u32));
                claimant.is_some_and(|claimant| view.is_living(claimant))
                    && !named.contains(&(holder, extent as u32))
            };
            words_of(inner, holder).into_iter().enumerate().filter(is_unnamed).count()
        };
        (0..4).map(MemberId).filter(|member| view.is_living(*member)).map(count).sum()
    }

    /// The heir of a dead owner heals its image, and the image is replaced or deleted: the extents
    /// that the heir has claimed come back.
    #[test]
    fn extents_that_an_heir_has_claimed_come_back() {
        for (link, replaces) in
            [Link::Memory, Link::Network].into_iter().flat_map(|link| [(link, true), (link, false)])
        {
            let is_over = Rc::new(Cell::new(false));
            sim::run(&simulation(5, link, Duration::from_secs(5)), move |job: Job| {
                let (store, images) = open(&job);
                let (owner, heir) = (MemberId(0), store.heir_of(MemberId(0)));
                if job.me() == owner {
                    images.save("image", b"", &[1; 1500]).expect("saved");
                    job.inject(Fault::Kill(owner)).expect("a fault");
                }
                nap(&job, "the death", || !job.view().is_living(owner));
                if job.me() == heir {
                    nap(&job, "all pieces", || images.pieces_missing() == Ok(0));
                    assert_eq!(images.load("image").expect("healed").bytes(), [1; 1500]);
                    // The extents stay as long as the record names them.
                    job.sleep(Duration::from_secs(5));
                    assert_eq!(images.load("image").expect("healed").bytes(), [1; 1500]);
                    match replaces {
                        true => images.save("image", b"", &[2; 1500]).expect("saved"),
                        false => assert_eq!(images.delete("image"), Ok(true)),
                    }
                    nap(&job, "free extents", || unnamed(&images.inner) == 0);
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

    /// A generation is healed before it counts. When the next generation counts, the extents that
    /// were claimed for that come back.
    #[test]
    fn extents_of_a_generation_that_was_healed_before_its_verdict_come_back() {
        for is_healed_again in [false, true] {
            let is_over = Rc::new(Cell::new(false));
            sim::run(&simulation(5, Link::Network, Duration::from_secs(5)), move |job: Job| {
                let (store, images) = open(&job);
                let (me, sets) = (MemberId(0), &images.inner.sets);
                let holders = sets.choose(me, &job.view());
                let stage = |number: u64| {
                    images.stage("regions", number, b"", 1500, &mut |_, bytes: &mut [u8]| {
                        bytes.fill(number as u8);
                    })
                };
                let kill = |member: MemberId| {
                    job.inject(Fault::Kill(member)).expect("a fault");
                    nap(&job, "the death", || !job.view().is_living(member));
                    nap(&job, "all pieces", || images.pieces_missing() == Ok(0));
                };
                if job.me() == me {
                    let spare = sets.candidates(me, &holders, &job.view())[0];
                    let first = stage(1).expect("staged");
                    kill(holders[1]);
                    images.keep_staged(first).expect("kept");
                    if is_healed_again {
                        kill(spare);
                    }
                    let second = stage(2).expect("staged");
                    images.keep_staged(second).expect("kept");
                    images.delete_generation("regions", 1).expect("deleted");
                    nap(&job, "free extents", || unnamed(&images.inner) == 0);
                    let found = images.load_generation("regions", 2, 0..1500).expect("loaded");
                    assert_eq!(found.bytes(), [2; 1500]);
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

    /// The holder of a new place is stopped while the place is rebuilt, and goes on after the time
    /// limit. When the image is deleted, all extents are free again.
    #[test]
    fn extents_of_a_place_whose_holder_was_stopped_come_back() {
        const LIMIT: Duration = Duration::from_millis(200);
        let late = Rc::new(Cell::new(0));
        for seed in 0..16 {
            let (is_over, late) = (Rc::new(Cell::new(false)), late.clone());
            let arrived = Rc::new(Cell::new(0));
            sim::run(&simulation(seed, Link::Network, LIMIT), move |job: Job| {
                let (store, images) = open(&job);
                let (me, inner) = (MemberId(0), &images.inner);
                let holders = inner.sets.choose(me, &job.view());
                let spare = inner.sets.candidates(me, &holders, &job.view())[0];
                meet(&job, &arrived);
                if job.me() == me {
                    nap(&job, "a save", || images.save("image", b"", &[1; 1500]).is_ok());
                    job.inject(Fault::Kill(holders[1])).expect("a fault");
                    let mut is_late = false;
                    for _ in 0..30 {
                        job.sleep(LIMIT / 10);
                        is_late |= inner.has_late_rebuilds();
                    }
                    late.set(late.get() + u32::from(is_late));
                    job.inject(Fault::Resume(spare)).expect("a fault");
                    nap(&job, "all pieces", || images.pieces_missing() == Ok(0));
                    assert_eq!(images.load("image").expect("healed").bytes(), [1; 1500]);
                    nap(&job, "the end of the image", || images.delete("image").is_ok());
                    nap(&job, "free extents", || unnamed(inner) == 0);
                    is_over.set(true);
                } else if job.me() == spare {
                    // Both extents are claimed, and puts into them are under way.
                    stop_when_claimed(&images, 2);
                }
                nap(&job, "the member that saves", || is_over.get());
                let _ = images.close();
                let _ = store.close();
                let _ = job.leave();
            })
            .expect_ok();
        }
        assert!(late.get() >= 4, "a put was late in {} runs", late.get());
    }

    /// Stops this member as soon as so many extents of its arena are claimed: the claimant waits
    /// for its next answer.
    fn stop_when_claimed(images: &Images, count: usize) {
        let (inner, job) = (&images.inner, &images.inner.job);
        let deadline = job.now().after(Duration::from_secs(60));
        while claimed_at(inner, job.me()) < count {
            assert!(job.now() < deadline, "no extent was claimed");
            job.sleep(Duration::from_nanos(100));
        }
        job.inject(Fault::Stop(job.me())).expect("a fault");
    }

    /// A member dies while no other member has room for its pieces. The pieces come back when there
    /// is room.
    #[test]
    fn pieces_for_which_there_was_no_room_come_back() {
        let is_over = Rc::new(Cell::new(false));
        sim::run(&simulation(3, Link::Memory, Duration::from_secs(5)), move |job: Job| {
            let (store, images) = open(&job);
            let (me, inner) = (MemberId(0), &images.inner);
            let holders = inner.sets.choose(me, &job.view());
            if job.me() == me {
                images.save("image", b"", &[1; 1500]).expect("saved");
                // Saves that are not committed yet.
                let mut others = Vec::new();
                for holder in (0..4).map(MemberId) {
                    while let Some(extents) = inner.claim(holder, 1).expect("claimed") {
                        others.extend(extents.iter().map(|extent| (holder, *extent)));
                    }
                }
                job.inject(Fault::Kill(holders[1])).expect("a fault");
                nap(&job, "the death", || !job.view().is_living(holders[1]));
                job.sleep(Duration::from_secs(1));
                assert_eq!(images.pieces_missing(), Ok(1));
                others.retain(|(holder, _)| *holder != holders[1]);
                inner.give_back(&others);
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

    /// A member dies that has claimed all extents of another member, and with it the last replica
    /// of a partition. The extents are free at once, before the loss is accepted: a descriptor that
    /// is lost names none.
    #[test]
    fn extents_of_the_dead_are_free_while_a_partition_is_lost() {
        for link in [Link::Memory, Link::Network] {
            let (arrived, is_over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
            sim::run(&simulation(3, link, Duration::from_secs(5)), move |job: Job| {
                let (store, images) = open(&job);
                let (me, holder, dying) = (MemberId(0), MemberId(1), [2, 3].map(MemberId));
                let is_theirs = |key: &String| {
                    dying.iter().all(|member| store.replicas_of(key).contains(member))
                };
                let mut names = (0..1000).map(|number| format!("lost {number}"));
                let lost = names.find(is_theirs).expect("some key");
                if job.me() == dying[0] {
                    store.put(&lost, b"value").expect("put");
                    while images.inner.claim(holder, 1).expect("claimed").is_some() {}
                }
                meet(&job, &arrived);
                if job.me() == me {
                    for member in dying {
                        job.inject(Fault::Kill(member)).expect("a fault");
                    }
                    nap(&job, "the deaths", || job.view().dead.len() == 2);
                    nap(&job, "the loss", || store.get(&lost).is_err());
                    nap(&job, "an extent", || match images.inner.claim(holder, 1) {
                        Ok(found) => found.is_some(),
                        Err(error) => panic!("{link:?}: {error:?}"),
                    });
                    store.accept_loss().expect("accepted");
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

    /// A thread saves while another thread of its member closes the images. The arenas are not used
    /// for anything else then, and no record of the save stays in the store.
    #[test]
    fn a_save_that_outlives_its_images_writes_into_no_other_memory() {
        for link in [Link::Memory, Link::Network] {
            // 1: it saves; then a step for each member: closed, and its memory is used again.
            let stage = Arc::new(AtomicU32::new(0));
            sim::run(&simulation(3, link, Duration::from_secs(5)), move |job: Job| {
                let (store, images) = open(&job);
                let inner = &images.inner;
                let reached = |step: u32| stage.load(Ordering::SeqCst) >= step;
                if job.me() == MemberId(0) {
                    let (images, mine, stage) = (images.clone(), job.clone(), stage.clone());
                    let save = move || {
                        let read = |_: u64, buffer: &mut [u8]| {
                            stage.fetch_max(1, Ordering::SeqCst);
                            nap(&mine, "the end", || stage.load(Ordering::SeqCst) >= 5);
                            buffer.fill(1);
                        };
                        let _ = images.save_from("image", b"", 1500, read);
                        stage.store(6, Ordering::SeqCst);
                    };
                    job.spawn("saves", Box::new(save)).expect("an activity");
                }
                nap(&job, "the save", || reached(1));
                images.close().expect("closed");
                let arena = inner.arenas[job.me().index()].expect("an arena");
                let len = super::Arena::len(arena.extents.into(), &inner.options);
                let offset = job.reserve(len).expect("free");
                job.put(Epoch::ANY, job.me(), offset, &vec![0; len as usize]).expect("put");
                stage.fetch_add(1, Ordering::SeqCst);
                nap(&job, "the end of the save", || reached(6));
                let mut bytes = vec![1; len as usize];
                job.get(Epoch::ANY, job.me(), offset, &mut bytes).expect("read");
                let changed = bytes.iter().filter(|byte| **byte != 0).count();
                assert_eq!(changed, 0, "bytes were changed by images that are closed");
                assert_eq!(store.scan(&inner.prefix).expect("listed").len(), 0, "records stay");
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }

    /// How many extents an image has at each holder.
    fn extents(inner: &Inner) -> usize {
        let descriptors = inner.descriptors().expect("read");
        descriptors[0].2.places[0].extents.len()
    }

    /// A member heals its image, and waits for a stopped member meanwhile. Its save of that image
    /// does not wait for the end of that, but for the stopped member alone.
    #[test]
    fn a_save_does_not_wait_for_healing() {
        const LIMIT: Duration = Duration::from_secs(1);
        for seed in 0..6 {
            let (is_over, arrived) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
            sim::run(&simulation(seed, Link::Network, LIMIT), move |job: Job| {
                let (store, images) = open(&job);
                // The set of the first member, and the member that takes the place of the dead.
                let (me, sets) = (MemberId(0), &images.inner.sets);
                let holders = sets.choose(me, &job.view());
                let spare = sets.candidates(me, &holders, &job.view())[0];
                let dead = holders[1];
                meet(&job, &arrived);
                if job.me() == me {
                    images.save("image", b"", &[1; 1500]).expect("saved");
                    job.inject(Fault::Kill(dead)).expect("a fault");
                    nap(&job, "the death", || !job.view().is_living(dead));
                    job.sleep(LIMIT / 10);
                    let began = job.now();
                    let saved = images.save("image", b"", &[2; 1500]);
                    let took = job.now().since(began);
                    match saved {
                        Err(ImageError::Timeout { member, .. }) => assert_eq!(member, spare),
                        other => panic!("{other:?}"),
                    }
                    assert!(took < LIMIT * 3 / 2, "seed {seed}: took {took:?}");
                    job.inject(Fault::Resume(spare)).expect("a fault");
                    nap(&job, "a save", || images.save("image", b"", &[3; 1500]).is_ok());
                    nap(&job, "all pieces", || images.pieces_missing() == Ok(0));
                    assert_eq!(images.load("image").expect("loaded").bytes(), [3; 1500]);
                    is_over.set(true);
                } else if job.me() == spare {
                    stop_when_claimed(&images, 1);
                }
                nap(&job, "the member that saves", || is_over.get());
                images.close().expect("closed");
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }

    /// As for images, for the generations of regions: a save of the next generation does not wait
    /// for the healing of the generation before it.
    #[test]
    fn a_save_of_regions_does_not_wait_for_healing() {
        const LIMIT: Duration = Duration::from_secs(1);
        for seed in 0..6 {
            let (is_over, arrived) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
            sim::run(&simulation(seed, Link::Network, LIMIT), move |job: Job| {
                let (store, images) = open(&job);
                let (me, sets) = (MemberId(0), &images.inner.sets);
                let holders = sets.choose(me, &job.view());
                let spare = sets.candidates(me, &holders, &job.view())[0];
                let dead = holders[1];
                meet(&job, &arrived);
                let stage = |number: u64| {
                    images.stage("regions", number, b"", 1500, &mut |_, bytes: &mut [u8]| {
                        bytes.fill(number as u8);
                    })
                };
                if job.me() == me {
                    let first = stage(1).expect("staged");
                    images.keep_staged(first).expect("kept");
                    job.inject(Fault::Kill(dead)).expect("a fault");
                    nap(&job, "the death", || !job.view().is_living(dead));
                    job.sleep(LIMIT / 10);
                    let began = job.now();
                    let staged = stage(2);
                    let took = job.now().since(began);
                    match staged {
                        Err(ImageError::Timeout { member, .. }) => assert_eq!(member, spare),
                        other => panic!("{other:?}"),
                    }
                    assert!(took < LIMIT * 3 / 2, "seed {seed}: took {took:?}");
                    job.inject(Fault::Resume(spare)).expect("a fault");
                    nap(&job, "all pieces", || images.pieces_missing() == Ok(0));
                    let third = stage(3).expect("staged");
                    images.keep_staged(third).expect("kept");
                    images.delete_generation("regions", 1).expect("deleted");
                    nap(&job, "all pieces", || images.pieces_missing() == Ok(0));
                    let found = images.load_generation("regions", 3, 0..1500).expect("loaded");
                    assert_eq!(found.bytes(), [3; 1500]);
                    is_over.set(true);
                } else if job.me() == spare {
                    stop_when_claimed(&images, 1);
                }
                nap(&job, "the member that saves", || is_over.get());
                images.close().expect("closed");
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }
}
