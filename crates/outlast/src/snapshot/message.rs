//! The messages of a snapshot: orders of the coordinator and answers of the participants.
//!
//! | order | the participant | answer |
//! |---|---|---|
//! | `Freeze` | holds back new writes and waits until none is in flight | `Drained` |
//! | `List` | lists its records | `Listed` |
//! | `Unfreeze` | lets writes begin again | `Unfrozen` |
//! | `Write` | writes its part, and reports progress | `Writing`, at the end `Written` |
//! | `Cancel` | gives the attempt up | none |
//!
//! To any order a participant may answer `Busy`, `Stale` or `Failed`: then the attempt is over.

use crate::codec::{self, Encoded};

/// An order or an answer. `id` is the attempt to which the message belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Begin no write for at most this long, in this epoch; answer when no write is in flight.
    Freeze { id: u64, epoch: u64, limit_ns: u64 },
    /// No write is in flight.
    Drained { id: u64 },
    /// No member has a write in flight: list your records.
    List { id: u64 },
    /// The records are listed: the number of partitions, and a sum that identifies them.
    Listed { id: u64, partitions: u64, sum: u64 },
    /// All members have listed their records: let writes begin.
    Unfreeze { id: u64 },
    /// Writes may begin. `in_time` says that the freeze lasted until now; `frozen_ns` is its
    /// length.
    Unfrozen { id: u64, in_time: bool, frozen_ns: u64 },
    /// The lists fit together: write your part of this generation, into the folder with this token.
    Write { id: u64, number: u64, token: u64, taken_at: u64 },
    /// The part is being written: a sign of life, sent again and again.
    Writing { id: u64 },
    /// The part is on the disk.
    Written { id: u64, records: u64, bytes: u64, checksum: u64 },
    /// The attempt is given up.
    Cancel { id: u64 },
    /// The participant works for another attempt.
    Busy { id: u64 },
    /// The participant has another view than the attempt.
    Stale { id: u64 },
    /// The participant could not carry out an order.
    Failed { id: u64, reason: String },
}

impl Message {
    /// The attempt to which the message belongs.
    pub(super) fn id(&self) -> u64 {
        match self {
            Message::Freeze { id, .. }
            | Message::Drained { id }
            | Message::List { id }
            | Message::Listed { id, .. }
            | Message::Unfreeze { id }
            | Message::Unfrozen { id, .. }
            | Message::Write { id, .. }
            | Message::Writing { id }
            | Message::Written { id, .. }
            | Message::Cancel { id }
            | Message::Busy { id }
            | Message::Stale { id }
            | Message::Failed { id, .. } => *id,
        }
    }

    /// Whether the message is for the coordinator.
    pub(super) fn is_answer(&self) -> bool {
        !matches!(
            self,
            Message::Freeze { .. }
                | Message::List { .. }
                | Message::Unfreeze { .. }
                | Message::Write { .. }
                | Message::Cancel { .. }
        )
    }

    /// The bytes of the message.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (tag, words, text): (u8, Vec<u64>, &str) = match self {
            Message::Freeze { id, epoch, limit_ns } => (0, vec![*id, *epoch, *limit_ns], ""),
            Message::Drained { id } => (1, vec![*id], ""),
            Message::List { id } => (2, vec![*id], ""),
            Message::Listed { id, partitions, sum } => (3, vec![*id, *partitions, *sum], ""),
            Message::Unfreeze { id } => (4, vec![*id], ""),
            Message::Unfrozen { id, in_time, frozen_ns } => {
                (5, vec![*id, u64::from(*in_time), *frozen_ns], "")
            }
            Message::Write { id, number, token, taken_at } => {
                (6, vec![*id, *number, *token, *taken_at], "")
            }
            Message::Writing { id } => (7, vec![*id], ""),
            Message::Written { id, records, bytes, checksum } => {
                (8, vec![*id, *records, *bytes, *checksum], "")
            }
            Message::Cancel { id } => (9, vec![*id], ""),
            Message::Busy { id } => (10, vec![*id], ""),
            Message::Stale { id } => (11, vec![*id], ""),
            Message::Failed { id, reason } => (12, vec![*id], reason),
        };
        codec::encode(tag, &words, text)
    }

    /// Decodes a message; `None` if the tag is unknown or the bytes are cut off.
    pub(super) fn decode(bytes: &[u8]) -> Option<Message> {
        let encoded = Encoded::new(bytes)?;
        let word = |index: usize| encoded.word(index);
        let id = word(0)?;
        Some(match encoded.tag() {
            0 => Message::Freeze { id, epoch: word(1)?, limit_ns: word(2)? },
            1 => Message::Drained { id },
            2 => Message::List { id },
            3 => Message::Listed { id, partitions: word(1)?, sum: word(2)? },
            4 => Message::Unfreeze { id },
            5 => Message::Unfrozen { id, in_time: word(1)? != 0, frozen_ns: word(2)? },
            6 => Message::Write { id, number: word(1)?, token: word(2)?, taken_at: word(3)? },
            7 => Message::Writing { id },
            8 => Message::Written { id, records: word(1)?, bytes: word(2)?, checksum: word(3)? },
            9 => Message::Cancel { id },
            10 => Message::Busy { id },
            11 => Message::Stale { id },
            12 => Message::Failed { id, reason: encoded.text_after(1) },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_decoded_as_they_were_encoded() {
        for message in [
            Message::Freeze { id: 1, epoch: 2, limit_ns: 3 },
            Message::Drained { id: 4 },
            Message::List { id: 5 },
            Message::Listed { id: 6, partitions: 7, sum: 8 },
            Message::Unfreeze { id: 9 },
            Message::Unfrozen { id: 10, in_time: true, frozen_ns: 23 },
            Message::Write { id: 11, number: 12, token: 24, taken_at: 13 },
            Message::Writing { id: 14 },
            Message::Written { id: 15, records: 16, bytes: 17, checksum: 18 },
            Message::Cancel { id: 19 },
            Message::Busy { id: 20 },
            Message::Stale { id: 21 },
            Message::Failed { id: 22, reason: "no room".into() },
        ] {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
        for bytes in [&[][..], &[0, 1, 2], &[99; 40], &[6; 10]] {
            assert_eq!(Message::decode(bytes), None);
        }
    }
}
