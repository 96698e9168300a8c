//! Leavers: the members that have announced that they leave.
//!
//! docs/protocol/leaving.md has the protocol, and `recovery/leave.rs` executes it. The operation
//! layer needs the set of leavers to compute the replicas of a partition.

use crate::engine::{MemberId, MemberSet, Time};
use crate::store::error::StoreResult;
use crate::store::operation::quiescence::Quiescence;
use crate::sync::lock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Weak};

/// What a member knows of the leavers.
///
/// *Orderings.* `version` is sequentially consistent, in a single order with the operation
/// counters: an operation swaps its counter before it loads the version, and the member that
/// records a leaver raises the version before it reads the counters. `version` changes only under
/// the lock of `members`.
#[derive(Default)]
pub(in crate::store) struct Leavers {
    /// The members that have announced that they leave.
    pub(in crate::store) members: Mutex<MemberSet>,
    /// The leavers whose replicas may be handed over: all members have acknowledged them
    /// (`leave.hand_over`).
    pub(in crate::store) handed: Mutex<MemberSet>,
    /// A number that is raised whenever `members` grows.
    pub(in crate::store) version: AtomicU64,
    /// The acknowledgements that are due when the operations of this member that began before have
    /// ended.
    pub(in crate::store) due: Mutex<Vec<Due>>,
    /// The leavers of which this member is to tell the other members, if they do not do so soon
    /// themselves (`leave.pass_on`).
    pub(in crate::store) to_pass_on: Mutex<Vec<PassOn>>,
    pub(in crate::store) own: Mutex<OwnLeave>,
    /// What the layers above the store have to hand over.
    pub(in crate::store) layers: Mutex<Vec<Weak<dyn HandOver>>>,
}

/// What a layer above the store has to hand over before this member leaves.
pub(crate) trait HandOver: Send + Sync {
    /// Waits until other members have it. All members know of the leaver then.
    fn hand_over(&self, deadline: Time) -> StoreResult<()>;
}

/// A leaver to be acknowledged, the operations of this member that have to end first, and when this
/// member began to wait for them.
type Due = (MemberId, Quiescence, Time);

/// A leaver of which this member tells the other members.
pub(in crate::store) struct PassOn {
    pub(in crate::store) leaver: MemberId,
    /// When this member tells the others, or tells those again that had no room for the message.
    pub(in crate::store) due: Time,
    /// The members that know of the leaver.
    pub(in crate::store) told: MemberSet,
}

/// The progress of this member as a leaver.
#[derive(Default)]
pub(in crate::store) struct OwnLeave {
    pub(in crate::store) is_leaving: bool,
    pub(in crate::store) is_handing: bool,
    /// The members that have acknowledged this leaver.
    pub(in crate::store) acknowledged: MemberSet,
    /// When to send the announcement again.
    pub(in crate::store) remind: Option<Time>,
}

impl Leavers {
    /// The leavers, for the computation of replicas.
    pub(in crate::store) fn members(&self) -> MemberSet {
        lock(&self.members).clone()
    }

    /// The number of the current set of leavers. It changes with every new leaver.
    pub(in crate::store) fn version(&self) -> u64 {
        // In a single order with the operation counters.
        self.version.load(Ordering::SeqCst)
    }

    /// Calls `act` while no leaver can be added. Returns `None`, without a call, if the set of
    /// leavers has changed since it had this version.
    pub(in crate::store::operation) fn unless_changed<T>(
        &self,
        version: u64,
        act: impl FnOnce() -> T,
    ) -> Option<T> {
        let _members = lock(&self.members);
        (self.version() == version).then(act)
    }

    /// Whether every leaver among these replicas may hand over its replicas.
    pub(in crate::store) fn may_fill(&self, replicas: &[MemberId]) -> bool {
        let (members, handed) = (lock(&self.members).clone(), lock(&self.handed).clone());
        replicas.iter().all(|&replica| !members.contains(replica) || handed.contains(replica))
    }
}
