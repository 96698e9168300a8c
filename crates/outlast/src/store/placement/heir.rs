//! Which survivor takes over from a dead member.

use crate::engine::MemberId;
use crate::store::placement::mix;

/// The living member that a rendezvous hash prefers for the dead one: the same at all members with
/// the same view, and a different one for each of several dead.
pub(in crate::store) fn heir(dead: MemberId, view: &crate::engine::View) -> MemberId {
    let score = |member: &MemberId| mix(u64::from(dead.0) << 32 | u64::from(member.0));
    let living = view.living().filter(|&member| view.is_active(member));
    living.max_by_key(score).unwrap_or(dead)
}
