//! The writers of a run, for stores that are called from this process.

use super::super::pace::wait_until;
use super::course::Write;
use super::{Plan, WRITERS};
use crate::members::machine_ns;
use std::time::{Duration, Instant};

/// How long a writer waits before it repeats a write that failed.
const PAUSE: Duration = Duration::from_millis(2);

/// An acknowledged write with its key.
pub(super) struct Written {
    pub(super) key: String,
    pub(super) write: Write,
}

/// Whether a writer writes keys of the victim.
pub(super) fn is_for_affected(writer: usize) -> bool {
    writer < WRITERS / 2
}

/// The keys of a writer, one for each write. They are chosen before the kill: after it, the victim
/// is responsible for no key.
pub(super) fn keys(writer: usize, plan: &Plan, is_affected: impl Fn(&str) -> bool) -> Vec<String> {
    let count = plan.length.as_nanos().div_ceil(plan.period.as_nanos().max(1));
    (0u64..)
        .map(|number| format!("course/{writer}/{number}"))
        .filter(|key| is_affected(key) == is_for_affected(writer))
        .take(count as usize)
        .collect()
}

/// Writes at the rate of the plan from `begin` on, each key once. Repeats a write that fails until
/// the end of the run.
pub(super) fn write(
    writer: usize,
    begin: Instant,
    plan: &Plan,
    keys: Vec<String>,
    mut put: impl FnMut(&[u8], &[u8]) -> anyhow::Result<()>,
) -> Vec<Written> {
    let value = vec![1; plan.size];
    let mut written = Vec::new();
    let end = begin + plan.length;
    // `begin` may be over when a crowded machine runs this thread.
    let (now_ns, now) = (machine_ns(), Instant::now());
    let late = now.saturating_duration_since(begin).as_nanos() as u64;
    let begin_ns = now_ns - late + begin.saturating_duration_since(now).as_nanos() as u64;
    for (number, key) in keys.into_iter().enumerate() {
        let since = plan.period * number as u32;
        wait_until(begin + since);
        while Instant::now() < end {
            if put(key.as_bytes(), &value).is_ok() {
                let (due_ns, acked_ns) = (begin_ns + since.as_nanos() as u64, machine_ns());
                let write = Write { is_affected: is_for_affected(writer), due_ns, acked_ns };
                written.push(Written { key, write });
                break;
            }
            std::thread::sleep(PAUSE);
        }
    }
    written
}
