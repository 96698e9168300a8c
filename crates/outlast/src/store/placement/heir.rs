//! The heir: the living member that takes over the duties of a dead member.

use crate::engine::MemberId;
use crate::store::placement::mix;

/// The heir of a dead member: the active living member that a rendezvous hash prefers. All members
/// with an equal view choose an equal heir. Different dead members usually have different heirs, so
/// that the duties are spread.
pub(in crate::store) fn heir(dead: MemberId, view: &crate::engine::View) -> MemberId {
    let score = |member: &MemberId| mix(u64::from(dead.0) << 32 | u64::from(member.0));
    let living = view.living().filter(|&member| view.is_active(member));
    living.max_by_key(score).unwrap_or(dead)
}
