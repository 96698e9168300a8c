//! Messages that are longer than the engine takes. The sender cuts them into parts, and the
//! receiver puts them together.
//!
//! Parts of different messages may be interleaved; a part carries the number of its message. If a
//! send fails between two parts, the receiver is told to drop the message. The parts of a dead
//! sender are dropped when the sender is drained.

use super::wire::{self, Reader, Writer};
use crate::sync::lock;
use crate::{MemberId, MemberSet};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// The long messages that a member sends and receives.
#[derive(Default)]
pub(super) struct LongMessages {
    /// The number of the next long message that this member sends.
    next: AtomicU32,
    /// The long messages that are incomplete, by their sender and number.
    partial: Mutex<BTreeMap<(MemberId, u32), Vec<u8>>>,
}

/// Which part of a long message a [`wire::PART`] is. [`GIVEN_UP`] has no content: the rest of the
/// message will not come.
const NOT_LAST: u8 = 0;
const LAST: u8 = 1;
const GIVEN_UP: u8 = 2;

impl LongMessages {
    /// A number for the next long message.
    pub(super) fn next_number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds a part that was received from a member. Returns the message if it is complete now.
    pub(super) fn receive(
        &self,
        from: MemberId,
        number: u64,
        mut reader: Reader<'_>,
    ) -> Option<Vec<u8>> {
        let which = reader.u8()?;
        let key = (from, number as u32);
        let mut partial = lock(&self.partial);
        partial.entry(key).or_default().extend_from_slice(reader.rest());
        if which == NOT_LAST {
            return None;
        }
        let bytes = partial.remove(&key).unwrap_or_default();
        (which != GIVEN_UP).then_some(bytes)
    }

    /// Drops the incomplete messages of the dead.
    pub(super) fn forget(&self, dead: &MemberSet) {
        lock(&self.partial).retain(|(from, _), _| !dead.contains(*from));
    }

    #[cfg(all(test, feature = "sim"))]
    pub(super) fn partial_count(&self) -> usize {
        lock(&self.partial).len()
    }
}

/// Cuts a long message into parts of at most `len_max` bytes.
pub(super) fn parts(number: u32, bytes: &[u8], len_max: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut parts = bytes.chunks(len_max - wire::HEADER_LEN - 1).peekable();
    std::iter::from_fn(move || {
        let part = parts.next()?;
        let which = if parts.peek().is_some() { NOT_LAST } else { LAST };
        Some(part_message(number, which, part))
    })
}

/// Tells the receiver that the rest of a long message will not come.
pub(super) fn given_up(number: u32) -> Vec<u8> {
    part_message(number, GIVEN_UP, &[])
}

fn part_message(number: u32, which: u8, part: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new(wire::PART, u64::from(number), 1 + part.len());
    writer.u8(which).bytes(part);
    writer.done()
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::engine::Port;
    use crate::rma::testing::{after, handle};

    #[test]
    fn parts_are_dropped_when_their_sender_dies_or_gives_up() {
        let part = |number, which| part_message(number, which, b"x");
        let sent = move || vec![part(0, NOT_LAST), part(1, NOT_LAST), part(0, GIVEN_UP)];
        after(sent, |job, rma| {
            for kept in [1, 2, 1] {
                handle(rma, job.receive(Port::Rma).unwrap());
                assert_eq!(rma.long_messages.partial_count(), kept);
            }
            rma.progress(job);
            assert_eq!(rma.long_messages.partial_count(), 0);
        });
    }
}
