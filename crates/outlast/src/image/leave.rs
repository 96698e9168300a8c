//! Leaving: a member that leaves waits until the pieces that it holds are at other members.
//!
//! From `leave.announce` of the store on, no member chooses the leaver for a piece, and the places
//! that it holds are healed as those of the dead ([`super::heal`]): its pieces are read where they
//! are, or made again from the others. Members leave in sequence, so each image lacks no more
//! pieces than before when the next member leaves.
//!
//! Where no other member can hold a piece, the leaver goes if the image then lacks no more pieces
//! than may be lost. It waits for no image that is lost already, also by the loss of its record.

use super::descriptor::Descriptor;
use super::heal::CHUNK;
use super::load::Unreadable;
use super::{ImageError, ImageResult, Inner};
use crate::engine::{MemberId, Time, View};
use crate::store::{HandOver, StoreError, StoreResult, Version};
use std::collections::HashSet;
use std::time::Duration;

/// The first pause between two looks at the places of the leaver, and the longest. Pauses double.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// How long an image is waited for before the leaver looks whether it is lost.
const PATIENCE: Duration = Duration::from_secs(1);

impl HandOver for Inner {
    fn hand_over(&self, deadline: Time) -> StoreResult<()> {
        let began = self.job.now();
        let mut lost = HashSet::new();
        let mut pause = PAUSE;
        loop {
            let bell = self.job.bell();
            // A member that has closed the images alone still holds pieces of the others.
            if self.is_over() || self.job.has_ended() {
                return Ok(());
            }
            let looks_closely = self.job.now().since(began) >= PATIENCE;
            let member = match self.piece_in_the_way(&mut lost, looks_closely) {
                Ok(None) => return Ok(()),
                Ok(Some(member)) | Err(ImageError::Timeout { member, .. }) => member,
                // The store or a member failed: the next look tells more.
                Err(_) => self.job.me(),
            };
            let now = self.job.now();
            if now >= deadline {
                return Err(StoreError::Timeout { member, limit: now.since(began) });
            }
            self.job.park(bell, deadline.min(now.after(pause)));
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

impl Inner {
    /// The view as it will be when the leavers are gone. A member that is alone keeps its own
    /// pieces.
    pub(super) fn lasting_view(&self) -> View {
        let view = self.job.view();
        let leavers = self.store.leavers();
        if !leavers.iter().any(|member| view.is_living(member)) {
            return view;
        }
        let mut dead = view.dead.clone();
        dead.union_with(&leavers);
        let later = View::new(view.regulars, view.members - view.regulars, dead, view.left.clone());
        if later.active_living().next().is_none() { view } else { later }
    }

    /// How many places of an image are at no member of this view.
    pub(super) fn places_gone(&self, descriptor: &Descriptor, view: &View) -> usize {
        descriptor.places.iter().filter(|place| !view.is_living(place.member)).count()
    }

    /// The member that has to heal an image before this member can leave. Images that are lost are
    /// collected in `lost`; whether pieces can be read is looked at if `looks_closely`.
    fn piece_in_the_way(
        &self,
        lost: &mut HashSet<Version>,
        looks_closely: bool,
    ) -> ImageResult<Option<MemberId>> {
        let me = self.job.me();
        let (view, lasting) = (self.job.view(), self.lasting_view());
        for (_, version, descriptor) in self.descriptors_left()? {
            let (owner, places) = (descriptor.owner, &descriptor.places);
            let is_here = places.iter().any(|place| place.member == me);
            if !is_here || lost.contains(&version) {
                continue;
            }
            let staying = places.iter().map(|place| place.member);
            let staying: Vec<MemberId> =
                staying.filter(|member| lasting.is_living(*member)).collect();
            let has_room = !self.sets.candidates(owner, &staying, &lasting).is_empty();
            let gone = self.places_gone(&descriptor, &lasting);
            if gone == 0 || !has_room && gone <= descriptor.lose {
                continue;
            }
            let is_lost = self.places_gone(&descriptor, &view) > descriptor.lose
                || looks_closely && self.is_unreadable(&descriptor);
            if is_lost {
                lost.insert(version);
                continue;
            }
            let healer = if view.is_living(owner) { owner } else { self.store.heir_of(owner) };
            return Ok(Some(healer));
        }
        Ok(None)
    }

    /// Whether too many pieces of an image are not as the descriptor says.
    fn is_unreadable(&self, descriptor: &Descriptor) -> bool {
        let count = descriptor.stripes.len();
        let mut silent = HashSet::new();
        let until = self.job.deadline();
        (0..count).step_by(CHUNK).any(|first| {
            let chunk = first..count.min(first + CHUNK);
            let read = self.read_stripes(descriptor, chunk, &mut silent, until);
            matches!(read, Err(Unreadable::Missing))
        })
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use crate::engine::sim::{self, Link};
    use crate::image::{Images, Inner, Options};
    use crate::store::{self, Store, StoreError};
    use crate::{Job, MemberId};
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    fn nap(job: &Job, what: &str, until: impl Fn() -> bool) {
        let deadline = job.now().after(Duration::from_secs(60));
        while !until() {
            assert!(job.now() < deadline, "{} waited in vain for {what}", job.me());
            job.sleep(Duration::from_millis(5));
        }
    }

    fn run(members: usize, set: usize, part: impl Fn(&Job, &Store, &Images) + Clone + 'static) {
        for link in [Link::Memory, Link::Network] {
            let part = part.clone();
            let mut options = sim::Options::new(members, 3).link(link);
            (options.steps_max, options.stack_len) = (20_000_000, 2 << 20);
            sim::run(&options, move |job: Job| {
                let records = store::Options::new().replicas(2).partitions(8).expected_keys(64);
                let store = Store::open(&job, records).expect("opened");
                let options = Options::new(1500).set(set).lose(1).piece(64).room(200);
                let images = Images::open(&store, "test", options).expect("opened");
                part(&job, &store, &images);
            })
            .expect_ok();
        }
    }

    fn end(job: &Job, store: &Store, images: &Images) {
        images.close().expect("closed");
        store.close().expect("closed");
        let _ = job.leave();
    }

    fn refused(store: &Store, job: &Job) -> MemberId {
        match store.leave(job.now().after(Duration::from_secs(3))) {
            Err(StoreError::Timeout { member, .. }) => member,
            other => panic!("{other:?}"),
        }
    }

    fn leave(store: &Store, job: &Job) {
        store.leave(job.now().after(Duration::from_secs(30))).expect("left");
    }

    /// Whether no extent of this member's arena is claimed.
    fn is_free(inner: &Inner, job: &Job) -> bool {
        let words = inner.claimants(job.me()).expect("read").expect("an arena");
        words.iter().all(|word| *word == 0)
    }

    /// All holders of an image leave, one after the other, and at first no other member has room
    /// for their pieces: each of them waits until its piece is at another member.
    #[test]
    fn an_image_outlasts_that_all_its_holders_leave() {
        let stage = Rc::new(Cell::new(0));
        run(4, 2, move |job, store, images| {
            let (me, inner) = (MemberId(0), &images.inner);
            let holders = inner.sets.choose(me, &job.view());
            let first = inner.sets.candidates(me, &holders, &job.view())[0];
            let reached = |number: u32| nap(job, "the others", || stage.get() >= number);
            if job.me() == me {
                stage.set(0);
                images.save("image", b"", &[7; 1500]).expect("saved");
                stage.set(1);
                reached(3);
                leave(store, job);
            } else if job.me() == holders[1] {
                reached(2);
                assert_eq!(refused(store, job), me, "it heals the image");
                stage.set(3);
                // When its pieces are elsewhere, its own memory is free.
                nap(job, "free memory", || is_free(inner, job));
                leave(store, job);
            } else if job.me() == first {
                reached(1);
                let mut others = Vec::new();
                for holder in (0..4).map(MemberId) {
                    while let Some(extents) = inner.claim(holder, 1).expect("claimed") {
                        others.extend(extents.iter().map(|extent| (holder, *extent)));
                    }
                }
                stage.set(2);
                reached(3);
                job.sleep(Duration::from_secs(1));
                inner.give_back(&others);
                nap(job, "both leavers", || job.view().dead.len() == 2);
                assert_eq!(images.load("image").expect("loaded").bytes(), [7; 1500]);
                end(job, store, images);
            } else {
                nap(job, "both leavers", || job.view().dead.len() == 2);
                end(job, store, images);
            }
        });
    }

    /// No other member can hold the pieces of the leavers. The first leaves, since a piece may be
    /// lost. The second leaves when the next save has fewer pieces.
    #[test]
    fn a_member_does_not_leave_with_a_piece_that_must_not_be_lost() {
        let stage = Rc::new(Cell::new(0));
        run(3, 3, move |job, store, images| {
            let reached = |number: u32| nap(job, "the others", || stage.get() >= number);
            match job.me().0 {
                0 => {
                    stage.set(0);
                    images.save("image", b"", &[7; 1500]).expect("saved");
                    stage.set(1);
                    reached(2);
                    assert_eq!(images.load("image").expect("loaded").bytes(), [7; 1500]);
                    images.save("image", b"", &[8; 1500]).expect("saved");
                    nap(job, "both leavers", || job.view().dead.len() == 2);
                    assert_eq!(images.load("image").expect("loaded").bytes(), [8; 1500]);
                    end(job, store, images);
                }
                1 => {
                    reached(1);
                    nap(job, "the first leaver", || job.view().dead.len() == 1);
                    assert_eq!(refused(store, job), MemberId(0));
                    stage.set(2);
                    leave(store, job);
                }
                _ => {
                    reached(1);
                    leave(store, job);
                }
            }
        });
    }
}
