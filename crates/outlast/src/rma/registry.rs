//! The communicators of a member by identity: how they are made, revoked, and forgotten after all
//! members have freed them; messages that arrived before their communicator was made.
//!
//! *Early messages.* A message may arrive before this member has made its communicator. It is kept,
//! and delivered once the communicator exists, by the holder of the token: later messages must stay
//! behind it. Until then no member counts as drained in the new communicator.
//!
//! *Freeing.* A communicator is kept after this member freed it, since other members may still need
//! a decision of an agreement from this member. Once all members have freed it, no member can ask
//! any more, and all forget it. Ranks form a binary tree for this. Rank r receives *free notices*
//! from its children, the ranks 2r+1 and 2r+2, and sends a free notice to its parent once they and
//! itself have freed the communicator. Rank 0 then tells all ranks down the tree that it can be
//! forgotten. There is no hurry, so many notices travel in a message. If a member died, the notices
//! do not become complete and the communicator stays: at most as many communicators as there are
//! deaths times communicators in use.

use super::agreement::{ALL, AgreedValue, AgreementKind, Contribution, Sends, SplitPlace};
use super::collective::Collectives;
use super::credit::Credits;
use super::group::{Group, RankSet};
use super::one_round::Agreements;
use super::outbox::{DeferredWork, UnpublishedContribution};
use super::point_to_point::MessageMatcher;
use super::progress::Rma;
use super::wire::{self, Writer};
use crate::engine::Message;
use crate::sync::lock;
use crate::{Job, MemberId, MemberSet, View};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The identity of the communicator of all active members. Identities of later communicators are
/// larger.
pub(crate) const WORLD: u64 = 0;

/// The first identity of a communicator of all members, spares included.
const EVERYONE: u64 = 1;

/// How many bits of an identity number the communicators that a member has proposed.
const NUMBER_BITS: u32 = 44;

/// The identity of the communicator of all members, spares included, with this number. It is below
/// the identities that members propose.
pub(super) fn everyone_id(number: u64) -> u64 {
    EVERYONE + number % ((1 << NUMBER_BITS) - EVERYONE)
}

/// The communicators of a member.
pub(super) struct Registry {
    tables: Mutex<CommunicatorTables>,
    /// Whether there are communicators in [`CommunicatorTables::ready`].
    has_ready: AtomicBool,
    /// The next identity to propose; see [`Rma::propose_ids`].
    next_id: AtomicU64,
    /// Free notices to send, by receiver and kind: kept until they fill a message.
    free_notices: Mutex<BTreeMap<(MemberId, u8), Vec<u64>>>,
}

#[derive(Default)]
struct CommunicatorTables {
    communicators: BTreeMap<u64, Arc<SharedCommunicator>>,
    /// Messages for communicators that this member has not made yet, or that still have undelivered
    /// early messages: later messages have to stay behind these.
    early: BTreeMap<u64, Vec<Message>>,
    /// The communicators of the second kind. The holder of the token delivers the messages.
    ready: Vec<u64>,
    /// The last communicators that all members have freed: messages that still come for them are
    /// dropped.
    gone: VecDeque<u64>,
    /// Per communicator that this member has not made yet: how many children in the tree have freed
    /// it.
    freed_early: BTreeMap<u64, u8>,
    dead: MemberSet,
    left: MemberSet,
    /// The dead without unhandled messages: see `progress`.
    drained: MemberSet,
}

/// How many freed communicators are remembered. A message for a communicator that is no longer
/// remembered is only kept in vain: identities are not used again.
const GONE_MAX: usize = 1024;

/// How many free notices a message carries.
const FREE_NOTICES_MAX: usize = 64;

/// A communicator, as all its handles at a member share it.
pub(crate) struct SharedCommunicator {
    pub(crate) id: u64,
    pub(crate) group: Arc<Group>,
    pub(crate) is_revoked: AtomicBool,
    pub(crate) is_freed: AtomicBool,
    /// Whether a thread is in a collective operation.
    pub(crate) in_collective: AtomicBool,
    /// Whether a thread is in an agreement.
    pub(crate) in_agreement: AtomicBool,
    pub(crate) state: Mutex<CommunicatorState>,
}

/// The changing state of a communicator.
pub(crate) struct CommunicatorState {
    /// The dead ranks that this member knows.
    pub(crate) dead: RankSet,
    /// The dead ranks without unhandled messages. Waits end by these only: a message that a
    /// member sent before it died or left is received, if it came at all.
    pub(crate) drained: RankSet,
    /// The dead that left the job on purpose: they had done their part in the operations that they
    /// took part in.
    pub(crate) left: RankSet,
    /// The dead that the program has acknowledged.
    pub(crate) acked: RankSet,
    pub(crate) matcher: MessageMatcher,
    pub(crate) collectives: Collectives,
    pub(crate) credits: Credits,
    /// `agree` and `shrink`, which work on a revoked communicator too.
    pub(crate) recovery: Agreements,
    /// `duplicate` and `split`. Separate from `recovery`, because members may leave them early,
    /// each at its own time, when the communicator is revoked: that must not disturb the numbering
    /// of the others.
    pub(crate) creation: Agreements,
    /// Whether the caller has left the creation that is in progress.
    pub(crate) is_creation_abandoned: bool,
    /// The rank that wants this member's wait to end.
    pub(crate) interrupted_by: Option<usize>,
    /// The ranks that know that the communicator is revoked.
    told_revoked: RankSet,
    /// How many children in the tree have freed the communicator, with all ranks below them.
    freed_below: u8,
    has_passed_on_freed: bool,
}

/// The sequence of `agree` and `shrink`, and the sequence of `duplicate` and `split`.
pub(super) const RECOVERY: u8 = 0;
pub(super) const CREATION: u8 = 1;

impl Registry {
    pub(super) fn new(me: MemberId) -> Registry {
        Registry {
            tables: Mutex::default(),
            has_ready: AtomicBool::new(false),
            next_id: AtomicU64::new((u64::from(me.0) + 1) << NUMBER_BITS),
            free_notices: Mutex::default(),
        }
    }

    /// The communicator of a message. `None` if the message is kept until the communicator is made
    /// and its early messages have been delivered, or if all members have freed it.
    pub(super) fn find(
        &self,
        id: u64,
        message: Message,
    ) -> Option<(Arc<SharedCommunicator>, Message)> {
        let mut tables = lock(&self.tables);
        match tables.communicators.get(&id) {
            Some(shared) if !tables.early.contains_key(&id) => Some((shared.clone(), message)),
            None if tables.gone.contains(&id) => None,
            _ => {
                tables.early.entry(id).or_default().push(message);
                None
            }
        }
    }

    /// Records the deaths of a view. Returns all communicators, which are to know of them.
    pub(super) fn apply_deaths(&self, view: &View) -> Vec<Arc<SharedCommunicator>> {
        let mut tables = lock(&self.tables);
        if view.dead.len() > tables.dead.len() {
            tables.dead = view.dead.clone();
            tables.left = view.left.clone();
        }
        tables.communicators.values().cloned().collect()
    }

    /// The dead that the communicators know.
    pub(super) fn dead(&self) -> MemberSet {
        lock(&self.tables).dead.clone()
    }

    /// Records these dead members as drained. Returns the communicators that are to know of it.
    pub(super) fn mark_drained(&self, dead: &MemberSet) -> Vec<Arc<SharedCommunicator>> {
        let mut tables = lock(&self.tables);
        tables.drained.union_with(dead);
        // Communicators with early messages follow when these are delivered.
        let made = tables.communicators.iter().filter(|(id, _)| !tables.early.contains_key(id));
        made.map(|(_, shared)| shared.clone()).collect()
    }

    #[cfg(all(test, feature = "sim"))]
    pub(super) fn set_dead(&self, dead: &MemberSet) {
        lock(&self.tables).dead = dead.clone();
    }
}

impl Rma {
    /// Returns the first of `count` identities that no other member proposes and this member has
    /// not proposed before. Lower members propose lower identities.
    pub(crate) fn propose_ids(&self, count: usize) -> u64 {
        self.registry.next_id.fetch_add(count as u64, Ordering::Relaxed)
    }

    /// The communicator with this identity; made if it does not exist. The caller makes progress
    /// next, so that the holder of the token delivers early messages: messages that come meanwhile
    /// have to stay behind them. Until then no member counts as drained in the communicator.
    pub(crate) fn find_or_make(&self, id: u64, group: Arc<Group>) -> Arc<SharedCommunicator> {
        let mut tables = lock(&self.registry.tables);
        if let Some(shared) = tables.communicators.get(&id) {
            return shared.clone();
        }
        let dead = group.ranks_of(&tables.dead);
        let left = group.ranks_of(&tables.left);
        let freed_below = tables.freed_early.remove(&id).unwrap_or(0);
        let drained = if tables.early.contains_key(&id) {
            tables.ready.push(id);
            self.registry.has_ready.store(true, Ordering::SeqCst);
            RankSet::default()
        } else {
            group.ranks_of(&tables.drained)
        };
        let (size, me) = (group.size(), group.me);
        let shared = Arc::new(SharedCommunicator {
            id,
            group,
            is_revoked: AtomicBool::new(false),
            is_freed: AtomicBool::new(false),
            in_collective: AtomicBool::new(false),
            in_agreement: AtomicBool::new(false),
            state: Mutex::new(CommunicatorState {
                drained: drained.clone(),
                left,
                acked: RankSet::default(),
                matcher: MessageMatcher::default(),
                collectives: Collectives::default(),
                credits: Credits::default(),
                recovery: Agreements::new(
                    self.can_publish,
                    id,
                    RECOVERY,
                    size,
                    me,
                    &dead,
                    &drained,
                ),
                creation: Agreements::new(
                    self.can_publish,
                    id,
                    CREATION,
                    size,
                    me,
                    &dead,
                    &drained,
                ),
                is_creation_abandoned: false,
                interrupted_by: None,
                told_revoked: RankSet::default(),
                freed_below,
                has_passed_on_freed: false,
                dead,
            }),
        });
        tables.communicators.insert(id, shared.clone());
        shared
    }

    // ---- Early messages.

    /// Delivers early messages after a communicator was made.
    pub(crate) fn deliver_early_if_ready(&self, job: &Job) {
        if self.registry.has_ready.load(Ordering::SeqCst) {
            self.progress(job);
        }
    }

    /// Delivers early messages to communicators that were made meanwhile. Returns whether there
    /// were any.
    pub(super) fn deliver_early(&self, job: &Job) -> bool {
        let mut has_any = false;
        // A delivered message may make further communicators.
        while self.registry.has_ready.load(Ordering::SeqCst) {
            let (made, messages) = {
                let mut tables = lock(&self.registry.tables);
                let Some(id) = tables.ready.pop() else {
                    self.registry.has_ready.store(false, Ordering::SeqCst);
                    break;
                };
                (
                    tables.communicators.get(&id).cloned(),
                    tables.early.remove(&id).unwrap_or_default(),
                )
            };
            has_any = true;
            for message in messages {
                let mut deferred = DeferredWork::default();
                self.handle(message, &mut deferred);
                self.run_deferred(job, deferred);
            }
            if let Some(shared) = made {
                let drained = lock(&self.registry.tables).drained.clone();
                let mut deferred = DeferredWork::default();
                self.set_drained(&shared, &drained, &mut deferred);
                self.run_deferred(job, deferred);
            }
        }
        has_any
    }

    // ---- Agreements, and the communicators that they make.

    /// Enters an agreement of the communicator.
    pub(crate) fn enter_agreement(
        &self,
        shared: &Arc<SharedCommunicator>,
        state: &mut CommunicatorState,
        own: Contribution,
        deferred: &mut DeferredWork,
    ) {
        let mut sends = Sends::new();
        let is_recovery = matches!(own.kind, AgreementKind::Agree | AgreementKind::Shrink);
        if is_recovery {
            state.recovery.enter(own, &mut sends);
        } else {
            state.creation.enter(own, &mut sends);
        }
        if let Some((ALL, _)) = sends.first() {
            let published = sends.drain(..).map(|(_, bytes)| UnpublishedContribution {
                shared: shared.clone(),
                is_recovery,
                bytes,
            });
            deferred.contributions.extend(published);
        }
        deferred.add(shared, sends);
    }

    /// Handles the decision of a creation that its caller has left, once there is a decision.
    pub(crate) fn finish_abandoned_creation(
        &self,
        shared: &Arc<SharedCommunicator>,
        state: &mut CommunicatorState,
        deferred: &mut DeferredWork,
    ) {
        if state.is_creation_abandoned
            && let Some(kind) = state.creation.unfinished()
            && let Some(value) = state.creation.take_decision()
        {
            // The caller left when the communicator was revoked. Others may have the new
            // communicator: they must not wait for this member in it.
            state.is_creation_abandoned = false;
            if let Some(made) = self.make_agreed(shared, kind, &value) {
                let mut made_state = lock(&made.state);
                self.revoke(&made, &mut made_state, deferred);
                made.is_freed.store(true, Ordering::SeqCst);
                self.report_freed_subtree(&made, &mut made_state, deferred);
            }
        }
    }

    /// Makes the agreed communicator, if this member belongs to it.
    pub(crate) fn make_agreed(
        &self,
        shared: &SharedCommunicator,
        kind: AgreementKind,
        value: &AgreedValue,
    ) -> Option<Arc<SharedCommunicator>> {
        let group = &shared.group;
        let (id, group) = match kind {
            _ if !value.is_of(kind) => return None,
            AgreementKind::Agree => return None,
            AgreementKind::Duplicate if !value.dead.is_empty() || value.flags == 0 => return None,
            AgreementKind::Duplicate => (value.id, group.clone()),
            AgreementKind::Shrink if value.dead.is_empty() => (value.id, group.clone()),
            AgreementKind::Shrink => {
                let living = (0..group.size()).filter(|&rank| !value.dead.contains(rank));
                let members = living.map(|rank| group.member(rank)).collect();
                (value.id, Arc::new(Group::new(members, self.me)?))
            }
            AgreementKind::Split if !value.dead.is_empty() || value.flags == 0 => return None,
            AgreementKind::Split => {
                let own = value.places.iter().find(|place| place.rank as usize == group.me)?;
                if own.color == 0 {
                    return None;
                }
                let mut colors: Vec<u64> = value.places.iter().map(|place| place.color).collect();
                colors.sort_unstable();
                colors.dedup();
                let index = colors.iter().position(|&color| color == own.color)?;
                let mut places: Vec<&SplitPlace> =
                    value.places.iter().filter(|p| p.color == own.color).collect();
                places.sort_by_key(|place| (place.key, place.rank));
                let members =
                    places.iter().map(|place| group.member(place.rank as usize)).collect();
                (value.id + index as u64, Arc::new(Group::new(members, self.me)?))
            }
        };
        Some(self.find_or_make(id, group))
    }

    // ---- Revoking.

    /// Revokes a communicator here and starts to spread the revoke.
    pub(crate) fn revoke(
        &self,
        shared: &SharedCommunicator,
        state: &mut CommunicatorState,
        deferred: &mut DeferredWork,
    ) {
        let mut sends = Sends::new();
        shared.is_revoked.store(true, Ordering::SeqCst);
        self.spread_revoke(shared, state, &mut sends);
        deferred.add(shared, sends);
    }

    /// Handles a revoke that another member has sent.
    pub(super) fn receive_revoke(
        &self,
        shared: &SharedCommunicator,
        state: &mut CommunicatorState,
        from: usize,
        sends: &mut Sends,
        deferred: &mut DeferredWork,
    ) {
        state.told_revoked.insert(from);
        // Activities that do not wait in the communicator may want to know as well.
        deferred.must_ring |= !shared.is_revoked.swap(true, Ordering::SeqCst);
        self.spread_revoke(shared, state, sends);
    }

    /// Sends the revoke to the partners in the flood that do not have it yet.
    ///
    /// The partners are the living ranks at distances of powers of two in both directions, so the
    /// flood has logarithmic depth. Among them is the next living rank: once views agree, the
    /// partners form a ring of all living members, so the flood reaches each of them, whichever
    /// members died in it. When the view changes, the revoke is sent again, to the partners that
    /// are new.
    pub(super) fn spread_revoke(
        &self,
        shared: &SharedCommunicator,
        state: &mut CommunicatorState,
        sends: &mut Sends,
    ) {
        if !shared.is_revoked.load(Ordering::SeqCst) {
            return;
        }
        let group = &shared.group;
        let living: Vec<usize> =
            (0..group.size()).filter(|&rank| !state.dead.contains(rank)).collect();
        let position = living.partition_point(|&rank| rank < group.me);
        let doubling = std::iter::successors(Some(1), |distance| Some(distance * 2));
        for distance in doubling.take_while(|&distance| distance < living.len()) {
            for place in [position + distance, position + living.len() - distance] {
                let partner = living[place % living.len()];
                if partner != group.me && !state.told_revoked.contains(partner) {
                    state.told_revoked.insert(partner);
                    sends.push((partner, Writer::new(wire::REVOKE, shared.id, 0).done()));
                }
            }
        }
    }

    // ---- Freeing; see the head of the module.

    /// Reports that this member has freed the communicator.
    pub(crate) fn report_freed(&self, shared: &SharedCommunicator, deferred: &mut DeferredWork) {
        self.report_freed_subtree(shared, &mut lock(&shared.state), deferred);
    }

    pub(super) fn report_freed_subtree(
        &self,
        shared: &SharedCommunicator,
        state: &mut CommunicatorState,
        deferred: &mut DeferredWork,
    ) {
        let (me, size) = (shared.group.me, shared.group.size());
        let below = (2 * me + 1..=2 * me + 2).filter(|&rank| rank < size).count();
        let is_complete =
            shared.is_freed.load(Ordering::SeqCst) && state.freed_below as usize == below;
        if !is_complete || state.has_passed_on_freed {
            return;
        }
        state.has_passed_on_freed = true;
        if me == 0 {
            self.forget_freed(shared, deferred);
        } else {
            self.queue_free_notice(
                shared.group.member((me - 1) / 2),
                wire::FREED,
                shared.id,
                deferred,
            );
        }
    }

    pub(super) fn receive_free_notice(&self, kind: u8, id: u64, deferred: &mut DeferredWork) {
        let shared = {
            let mut tables = lock(&self.registry.tables);
            let Some(shared) = tables.communicators.get(&id) else {
                // Not made here yet: kept until it is made.
                if kind == wire::FREED {
                    *tables.freed_early.entry(id).or_default() += 1;
                }
                return;
            };
            shared.clone()
        };
        if kind == wire::FREED {
            let mut state = lock(&shared.state);
            state.freed_below += 1;
            self.report_freed_subtree(&shared, &mut state, deferred);
        } else {
            self.forget_freed(&shared, deferred);
        }
    }

    fn forget_freed(&self, shared: &SharedCommunicator, deferred: &mut DeferredWork) {
        let (me, size) = (shared.group.me, shared.group.size());
        for rank in (2 * me + 1..=2 * me + 2).filter(|&rank| rank < size) {
            self.queue_free_notice(shared.group.member(rank), wire::GONE, shared.id, deferred);
        }
        let mut tables = lock(&self.registry.tables);
        if tables.communicators.remove(&shared.id).is_some() {
            tables.gone.push_back(shared.id);
            if tables.gone.len() > GONE_MAX {
                tables.gone.pop_front();
            }
        }
    }

    fn queue_free_notice(&self, to: MemberId, kind: u8, id: u64, deferred: &mut DeferredWork) {
        let mut free_notices = lock(&self.registry.free_notices);
        let ids = free_notices.entry((to, kind)).or_default();
        ids.push(id);
        if ids.len() >= FREE_NOTICES_MAX {
            let mut writer = Writer::new(kind, ids[0], 8 * ids.len());
            for &id in &ids[1..] {
                writer.u64(id);
            }
            ids.clear();
            deferred.sends.push((to, writer.done()));
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::engine::Port;
    use crate::rma::testing::{ID, after, data, handle, make, poll};

    #[test]
    fn early_messages_stay_before_later_ones() {
        after(
            || vec![data(1), data(2), data(3)],
            |job, rma| {
                let next = || job.receive(Port::Rma).unwrap();
                handle(rma, next());
                let shared = make(rma);
                // The activity that makes the communicator is held up here, and the background goes
                // on.
                handle(rma, next());
                rma.deliver_early(job);
                handle(rma, next());
                for number in 1..=3 {
                    assert_eq!(poll(&shared), Some(Ok(vec![number])));
                }
            },
        );
    }

    /// A communicator that was made after its caller had left is forgotten when all members have
    /// freed it.
    #[test]
    fn an_abandoned_creation_is_forgotten() {
        let rma = Rma::new(MemberId(0), false);
        let shared =
            rma.find_or_make(ID, Arc::new(Group::new(vec![MemberId(0)], MemberId(0)).unwrap()));
        let own = Contribution {
            kind: AgreementKind::Duplicate,
            flags: u64::MAX,
            id: 8,
            acked: RankSet::default(),
            place: None,
        };
        let mut deferred = DeferredWork::default();
        let mut state = lock(&shared.state);
        rma.enter_agreement(&shared, &mut state, own, &mut deferred);
        state.is_creation_abandoned = true;
        rma.finish_abandoned_creation(&shared, &mut state, &mut deferred);
        assert_eq!(
            lock(&rma.registry.tables).communicators.keys().copied().collect::<Vec<_>>(),
            [ID]
        );
        assert_eq!(lock(&rma.registry.tables).gone, [8]);
    }
}
