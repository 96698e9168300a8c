//! Keeps this member's lease, and tells the other nodes which members this node has quarantined.
//! The rules and their proof are in `quorum.rs`. A member starts without a lease. It asks each
//! remote node for a grant every 500 ms, and in the next review if the node has not acknowledged a
//! death. The answer of a member counts for its whole node, so a single member of each node is
//! asked: the member that has granted last. If it has not answered for 500 ms, all members of its
//! node are asked, apart from those that this node has quarantined.
//!
//! The clock of leases goes on while the host is suspended ([`Shm::lease_clock`]).

use super::core::Core;
use super::link::Outgoing;
use super::quorum::LEASE_REQUEST_PERIOD;
use super::wire::{self, Header, Kind};
use crate::engine::shm::Shm;
use crate::engine::{Engine, MemberId, MemberSet, Time};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The lease of this member. The activity that moves data writes it, and all activities read it.
pub(super) struct Lease {
    /// Until when this member has a lease, on the clock of leases: [`Time::NEVER`] if it needs
    /// none.
    until: AtomicU64,
    /// For how many nanoseconds this member has been without a lease. Time in which its process was
    /// stopped does not count.
    missing_ns: AtomicU64,
}

impl Lease {
    pub(super) fn new(is_needed: bool) -> Lease {
        let until = if is_needed { Time(0) } else { Time::NEVER };
        Lease { until: AtomicU64::new(until.0), missing_ns: AtomicU64::new(0) }
    }

    /// Whether this member has a lease now.
    #[inline]
    pub(super) fn is_valid(&self) -> bool {
        let until = self.until.load(Ordering::SeqCst);
        until == Time::NEVER.0 || Shm::lease_clock().0 < until
    }

    /// For how long this member has been without a lease.
    pub(super) fn missing_for(&self) -> Duration {
        Duration::from_nanos(self.missing_ns.load(Ordering::SeqCst))
    }

    /// Counts a further period. Called by a single activity at a time.
    pub(super) fn count(&self, elapsed: Duration) {
        let missing = match self.is_valid() {
            true => Duration::ZERO,
            false => self.missing_for().saturating_add(elapsed),
        };
        self.missing_ns.store(missing.as_nanos() as u64, Ordering::SeqCst);
    }
}

/// The members of a node to be asked for a grant, out of `reachable`: the member that has granted
/// last, or else the first, and all of them if `is_late` says that this member has not answered in
/// time, since it may be stopped.
fn members_to_ask(
    reachable: &[MemberId],
    granting: Option<MemberId>,
    is_late: impl Fn(MemberId) -> bool,
) -> &[MemberId] {
    let at = reachable.iter().position(|&member| Some(member) == granting).unwrap_or(0);
    match reachable.get(at) {
        Some(&member) if !is_late(member) => &reachable[at..=at],
        _ => reachable,
    }
}

impl Core {
    /// This member's lease; `None` if it needs none.
    pub(super) fn lease(&self) -> Option<Arc<Lease>> {
        self.quorum.as_ref().map(|_| self.lease.clone())
    }

    /// Counts the grants that have arrived, looks for silent nodes, announces new quarantines, and
    /// asks all reachable remote nodes for a new grant. A member that leaves needs no lease.
    pub(super) fn keep_lease(&mut self, node: &Shm) {
        if self.quorum.is_none() || node.has_ended() {
            return;
        }
        self.renew_lease(node);
        self.detect_silence(node);
        let epoch = node.epoch().0;
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
        let mut nodes: BTreeMap<usize, Vec<MemberId>> = BTreeMap::new();
        for member in reachable {
            nodes.entry(self.membership.node_of(member)).or_default().push(member);
        }
        let now = Shm::lease_clock();
        for (number, reachable) in nodes {
            let is_over = |at: Time| now >= at.after(LEASE_REQUEST_PERIOD);
            let is_late = |member: MemberId| {
                let link = &self.links[member.index()];
                link.is_lease_requested && link.lease_requested_at.is_none_or(is_over)
            };
            let asked = members_to_ask(&reachable, self.granting[number], is_late).to_vec();
            for member in asked {
                let is_behind = self
                    .quorum
                    .as_ref()
                    .is_some_and(|quorum| quorum.acknowledged_epoch(member) < epoch);
                let link = &mut self.links[member.index()];
                // A single request at a time: an unanswered request is not lost, and a starved
                // member needs no more of them.
                let is_due = link.lease_requested_at.is_none_or(is_over);
                if !link.is_lease_requested && (is_behind || is_due) {
                    (link.is_lease_requested, link.lease_requested_at) = (true, Some(now));
                    let header = Header::new(Kind::LeaseRequest, 0, 0, [now.0, epoch, 0]);
                    self.enqueue_small(node, member, header);
                }
            }
        }
    }

    /// Whether a remote node does not answer, and this member may be needed to declare it dead.
    pub(super) fn is_needed_to_decide(&self, node: &Shm) -> bool {
        let dead = node.view().dead;
        self.lease.is_valid()
            && self
                .quorum
                .as_ref()
                .is_some_and(|quorum| !quorum.is_answered_by_all(&dead, Shm::lease_clock()))
    }

    /// Finds out until when this member has a lease.
    pub(super) fn renew_lease(&mut self, node: &Shm) {
        // The clock is read first, and then the log. The log itself is read, and not the deaths
        // that this member has applied: a local member may have acknowledged a further death to a
        // remote member meanwhile. The remote member then relies on the rule that no member of this
        // node counts the dead member for its lease any more.
        let now = Shm::lease_clock();
        if let (Some(quorum), Some(death_order)) = (&mut self.quorum, node.death_order()) {
            quorum.shrink_voting_base(&death_order);
            let until = quorum.lease_until(&death_order.into_iter().collect(), now);
            self.lease.until.store(until.0, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_member_of_a_node_is_asked_unless_it_is_late() {
        let reachable = [2, 3, 4].map(MemberId);
        let asked = |granting: Option<u32>, late: u32| {
            let late = MemberId(late);
            members_to_ask(&reachable, granting.map(MemberId), |member| member == late)
        };
        assert_eq!(asked(None, 9), [MemberId(2)]);
        assert_eq!(asked(Some(3), 2), [MemberId(3)], "member 2 was not asked last");
        assert_eq!(asked(Some(3), 3), reachable);
        assert_eq!(asked(Some(7), 9), [MemberId(2)], "member 7 is dead or in quarantine");
        assert!(members_to_ask(&[], None, |_| false).is_empty());
    }

    /// The time limit of a member without a lease runs from the loss of the lease, whatever its
    /// calls have waited for since then, and begins anew with the next lease.
    #[test]
    fn time_without_a_lease_is_counted_from_its_loss() {
        let (lease, second) = (Lease::new(true), Duration::from_secs(1));
        lease.count(second);
        lease.count(second);
        assert_eq!(lease.missing_for(), 2 * second);
        lease.until.store(Time::NEVER.0, Ordering::SeqCst);
        lease.count(second);
        assert_eq!(lease.missing_for(), Duration::ZERO);
    }
}
