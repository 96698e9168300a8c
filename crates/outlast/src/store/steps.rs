//! The steps of the store's protocols, by name, for failpoints (feature `faults`).
//!
//! The tables of docs/protocol/ say what each step does, and what a survivor finds if a member dies
//! in it. The steps here are the steps in which a test build can kill its process.
//! [`crate::failpoint`] has the mechanism.

use crate::failpoint::{self, Within};

macro_rules! steps {
    ($($(#[$doc:meta])* $step:ident = $name:literal,)*) => {
        /// A step of a protocol of the store, named as in docs/protocol/.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Step {
            $($(#[$doc])* $step,)*
        }

        /// The names of the steps, in the order of [`Step`].
        pub const NAMES: &[&str] = &[$($name),*];
    };
}

steps! {
    /// A participant begins an operation.
    WriteEnter = "write.enter",
    /// The record of a key is found.
    WriteFind = "write.find",
    /// Blocks of the new version are filled.
    WriteFill = "write.fill",
    /// The new version is published at the primary.
    WritePublish = "write.publish",
    /// The new version is installed at the other replicas.
    WriteInstall = "write.install",
    /// A writer installs its version at replicas that have begun to fill meanwhile.
    WriteCatchUp = "write.catch_up",
    /// The version is marked as stable at the primary.
    WriteMarkStable = "write.mark_stable",
    /// A writer with an unknown outcome finds out whether its version happened.
    WriteConfirm = "write.confirm",
    /// A record is read.
    Read = "read",
    /// The replicas of a record are sealed.
    ReconcileSeal = "reconcile.seal",
    /// The greatest version among the sealed replicas is chosen.
    ReconcileChoose = "reconcile.choose",
    /// The chosen version is installed at replicas without it.
    ReconcileInstall = "reconcile.install",
    /// The writer of the chosen version is told.
    ReconcileNotifyWriter = "reconcile.notify_writer",
    /// The record is marked as reconciled.
    ReconcileMarkStable = "reconcile.mark_stable",
    /// A new replica makes its index.
    RepairMakeIndex = "repair.make_index",
    /// A record's visit count is raised, so that writes which began earlier begin anew.
    RepairCountVisit = "repair.count_visit",
    /// Records are copied to the new replica.
    RepairCopy = "repair.copy",
    /// The new replica is marked as complete.
    RepairComplete = "repair.complete",
    /// Blocks of replaced versions are retired.
    Retire = "retire",
    /// An operation ends.
    LeaveOperation = "leave_operation",
    /// A replica counts nodes, to decide whether its index grows.
    GrowMeasure = "grow.measure",
    /// A replica adds a tier to its index.
    GrowAddTier = "grow.add_tier",
    /// A bucket is copied to the new tier.
    GrowCopy = "grow.copy",
    /// A bucket is split.
    GrowSplit = "grow.split",
    /// The new bucket is marked as valid.
    GrowMark = "grow.mark",
    /// The replica waits for the lookups that began before the last change of its chains.
    GrowWait = "grow.wait",
    /// The chains of two buckets are taken apart.
    GrowUnzip = "grow.unzip",
    /// The intent of a transaction is written.
    TxIntent = "tx.intent",
    /// A key of the write set is locked.
    TxLock = "tx.lock",
    /// The read set is validated.
    TxValidate = "tx.validate",
    /// The intent is decided: the commit point.
    TxCommit = "tx.commit",
    /// A committed write is applied.
    TxApply = "tx.apply",
    /// A write of an aborted transaction is rolled back.
    TxRollBack = "tx.roll_back",
    /// An unfinished transaction is aborted.
    TxAbort = "tx.abort",
    /// The intent is released.
    TxRelease = "tx.release",
    /// The gate is closed.
    RecoverCloseGate = "recover.close_gate",
    /// The survivors make a communicator without the dead members.
    RecoverShrink = "recover.shrink",
    /// The survivors wait for the repair.
    RecoverRepair = "recover.repair",
    /// The survivors agree that all are prepared.
    RecoverVote = "recover.vote",
    /// The decision of the recovery is written.
    RecoverDecide = "recover.decide",
}

impl From<Step> for failpoint::Step {
    #[inline]
    fn from(step: Step) -> failpoint::Step {
        failpoint::Step { index: step as u32, name: NAMES[step as usize] }
    }
}

/// The index in [`NAMES`] of the step with this name. The last part of the name is enough if no
/// other step ends with it: `publish` for `write.publish`.
pub fn find(name: &str) -> Option<usize> {
    if let Some(index) = NAMES.iter().position(|known| *known == name) {
        return Some(index);
    }
    let has_last_part = |known: &&str| known.rsplit('.').next() == Some(name);
    let mut found = NAMES.iter().enumerate().filter(|(_, known)| has_last_part(known));
    match (found.next(), found.next()) {
        (Some((index, _)), None) => Some(index),
        _ => None,
    }
}

/// The calling thread is in this step from now on.
#[inline]
pub(in crate::store) fn enter(step: Step) {
    failpoint::enter(step.into());
}

/// The calling thread is in this step until the guard is dropped, whatever steps it enters
/// meanwhile.
#[inline]
pub(in crate::store) fn within(step: Step) -> Within {
    failpoint::within(step.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_found_by_name_and_by_unique_last_part() {
        assert_eq!(find("write.publish"), Some(Step::WritePublish as usize));
        assert_eq!(find("publish"), Some(Step::WritePublish as usize));
        assert_eq!(find("read"), Some(Step::Read as usize));
        assert_eq!(find("repair"), Some(Step::RecoverRepair as usize));
        assert_eq!(find("install"), None, "write.install and reconcile.install");
        assert_eq!((find("write"), find("")), (None, None));
        for (index, name) in NAMES.iter().enumerate() {
            assert_eq!(find(name), Some(index));
        }
    }
}
