//! Keeps this member's lease, and tells the other nodes which members this node has quarantined.
//! The rules and their proof are in `quorum.rs`. A member starts without a lease. It asks each
//! remote member for a grant every 500 ms, and at once after a death that the node of that member
//! has not acknowledged, but has at most a single open request on a link.

use super::core::Core;
use super::link::Outgoing;
use super::quorum::LEASE_REQUEST_PERIOD;
use super::wire::{self, Header, Kind};
use crate::engine::shm::Shm;
use crate::engine::{Engine, MemberId, MemberSet, Time};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

impl Core {
    /// Until when this member has a lease; `None` if it needs none.
    pub(super) fn lease(&self) -> Option<Arc<AtomicU64>> {
        self.quorum.as_ref().map(|_| self.lease.clone())
    }

    pub(super) fn has_lease(&self, now: Time) -> bool {
        now.0 < self.lease.load(Ordering::SeqCst)
    }

    /// Counts the grants that have arrived, looks for silent nodes, announces new quarantines, and
    /// asks all reachable remote members for a new grant. A member that leaves needs no lease.
    pub(super) fn keep_lease(&mut self, node: &Shm) {
        if self.quorum.is_none() || node.has_ended() {
            return;
        }
        self.renew_lease(node);
        self.detect_silence(node);
        let (now, epoch) = (node.now(), node.epoch().0);
        let living = self.membership.living_remote().into_iter();
        let (quarantined, reachable): (Vec<MemberId>, Vec<MemberId>) =
            living.partition(|&member| node.is_quarantined(member));
        let quarantined: MemberSet = quarantined.into_iter().collect();
        if !quarantined.is_subset(&self.announced) {
            let payload = wire::encode_set(&quarantined, self.membership.members());
            for &member in &reachable {
                let header = Header::new(Kind::Quarantine, 0, 0, [0; 3]);
                self.enqueue(node, member, Outgoing::Small { header, payload: payload.clone() });
            }
            self.announced.union_with(&quarantined);
        }
        for member in reachable {
            let is_behind = self
                .quorum
                .as_ref()
                .is_some_and(|quorum| quorum.acknowledged_epoch(member) < epoch);
            let link = &mut self.links[member.index()];
            // A single request at a time: an unanswered request is not lost, and a starved member
            // needs no more of them.
            let is_due =
                link.lease_requested_at.is_none_or(|at| now >= at.after(LEASE_REQUEST_PERIOD));
            if !link.is_lease_requested && (is_behind || is_due) {
                (link.is_lease_requested, link.lease_requested_at) = (true, Some(now));
                self.enqueue_small(
                    node,
                    member,
                    Header::new(Kind::LeaseRequest, 0, 0, [now.0, epoch, 0]),
                );
            }
        }
    }

    /// Finds out until when this member has a lease.
    pub(super) fn renew_lease(&mut self, node: &Shm) {
        // The clock is read first, and then the log itself instead of the deaths that this member
        // has applied: a local member may meanwhile have acknowledged a death to remote members,
        // which rely on it that the dead member's grant no longer counts.
        let now = node.now();
        if let (Some(quorum), Some(death_order)) = (&mut self.quorum, node.death_order()) {
            quorum.shrink_voting_base(&death_order);
            let until = quorum.lease_until(&death_order.into_iter().collect(), now);
            self.lease.store(until.0, Ordering::SeqCst);
        }
    }
}
