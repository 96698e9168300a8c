//! Which members are leaving.

use crate::engine::{MemberId, MemberSet, Time};
use crate::store::operation::quiescence::Quiescence;
use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a member knows of those who leave.
#[derive(Default)]
pub(in crate::store) struct Leavers {
    /// Who has said that it leaves.
    pub(in crate::store) members: Mutex<MemberSet>,
    /// Whose copies may be handed on: all members have noted that it leaves.
    pub(in crate::store) handed: Mutex<MemberSet>,
    /// Raised whenever `members` grows.
    pub(in crate::store) version: AtomicU64,
    /// Answers that are due when these participants of this member have left their operations.
    pub(in crate::store) due: Mutex<Vec<Due>>,
    pub(in crate::store) own: Mutex<OwnLeave>,
}

/// The leaver to be acknowledged, and the operations of this member that have to end first.
pub(in crate::store) type Due = (MemberId, Quiescence);

/// How far this member's own leaving is.
#[derive(Default)]
pub(in crate::store) struct OwnLeave {
    pub(in crate::store) is_leaving: bool,
    pub(in crate::store) is_handing: bool,
    /// Who has answered.
    pub(in crate::store) noted: MemberSet,
    /// When to tell again.
    pub(in crate::store) remind: Option<Time>,
}

impl Leavers {
    /// Who leaves, and the version of that; for the computation of replicas.
    pub(in crate::store) fn members(&self) -> MemberSet {
        lock(&self.members).clone()
    }

    /// Changes with every member that begins to leave.
    pub(in crate::store) fn version(&self) -> u64 {
        // SeqCst: in one order with the counters of operations.
        self.version.load(Ordering::SeqCst)
    }

    /// Does something, and nobody begins to leave meanwhile; unless someone has since the version
    /// was this.
    pub(in crate::store) fn unless_changed<T>(
        &self,
        version: u64,
        act: impl FnOnce() -> T,
    ) -> Option<T> {
        let _members = lock(&self.members);
        (self.version() == version).then(act)
    }

    /// Whether copies are handed on from everyone of these who leaves.
    pub(in crate::store) fn may_fill(&self, replicas: &[MemberId]) -> bool {
        let (members, handed) = (lock(&self.members).clone(), lock(&self.handed).clone());
        replicas.iter().all(|&replica| !members.contains(replica) || handed.contains(replica))
    }
}
