//! What members tell each other while a snapshot is taken.

/// An order of the one who takes it, or an answer. Each names the attempt that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// Begin no write, under this epoch, for so long at most; say when none is under way.
    Freeze { id: u64, epoch: u64, limit_ns: u64 },
    /// None is.
    Quiet { id: u64 },
    /// All are quiet: list what you have.
    List { id: u64 },
    /// So many partitions, and the sum that tells which.
    Listed { id: u64, partitions: u64, sum: u64 },
    /// All have listed: let writes begin.
    Thaw { id: u64 },
    /// They may; whether they could not until now, and for how long they could not.
    Thawed { id: u64, in_time: bool, frozen_ns: u64 },
    /// The lists fit together: write your part of this generation.
    Write { id: u64, number: u64, taken_at: u64 },
    /// I am writing.
    Writing { id: u64 },
    /// It is on the disk.
    Written { id: u64, records: u64, bytes: u64, checksum: u64 },
    /// It comes to nothing.
    Drop { id: u64 },
    /// I am doing my part of another one.
    Busy { id: u64 },
    /// My view is another one.
    Stale { id: u64 },
    /// I cannot.
    Failed { id: u64, reason: String },
}

impl Note {
    pub(super) fn id(&self) -> u64 {
        match self {
            Note::Freeze { id, .. }
            | Note::Quiet { id }
            | Note::List { id }
            | Note::Listed { id, .. }
            | Note::Thaw { id }
            | Note::Thawed { id, .. }
            | Note::Write { id, .. }
            | Note::Writing { id }
            | Note::Written { id, .. }
            | Note::Drop { id }
            | Note::Busy { id }
            | Note::Stale { id }
            | Note::Failed { id, .. } => *id,
        }
    }

    /// Whether it is for the one who takes the snapshot.
    pub(super) fn is_answer(&self) -> bool {
        !matches!(
            self,
            Note::Freeze { .. }
                | Note::List { .. }
                | Note::Thaw { .. }
                | Note::Write { .. }
                | Note::Drop { .. }
        )
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let (tag, words, text): (u8, Vec<u64>, &str) = match self {
            Note::Freeze { id, epoch, limit_ns } => (0, vec![*id, *epoch, *limit_ns], ""),
            Note::Quiet { id } => (1, vec![*id], ""),
            Note::List { id } => (2, vec![*id], ""),
            Note::Listed { id, partitions, sum } => (3, vec![*id, *partitions, *sum], ""),
            Note::Thaw { id } => (4, vec![*id], ""),
            Note::Thawed { id, in_time, frozen_ns } => {
                (5, vec![*id, u64::from(*in_time), *frozen_ns], "")
            }
            Note::Write { id, number, taken_at } => (6, vec![*id, *number, *taken_at], ""),
            Note::Writing { id } => (7, vec![*id], ""),
            Note::Written { id, records, bytes, checksum } => {
                (8, vec![*id, *records, *bytes, *checksum], "")
            }
            Note::Drop { id } => (9, vec![*id], ""),
            Note::Busy { id } => (10, vec![*id], ""),
            Note::Stale { id } => (11, vec![*id], ""),
            Note::Failed { id, reason } => (12, vec![*id], reason),
        };
        let mut bytes = vec![tag];
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(text.as_bytes());
        bytes
    }

    /// What the bytes say; `None` if they say nothing that is known.
    pub(super) fn decode(bytes: &[u8]) -> Option<Note> {
        let (&tag, rest) = bytes.split_first()?;
        let word = |index: usize| -> Option<u64> {
            Some(u64::from_le_bytes(rest.get(index * 8..index * 8 + 8)?.try_into().ok()?))
        };
        let id = word(0)?;
        Some(match tag {
            0 => Note::Freeze { id, epoch: word(1)?, limit_ns: word(2)? },
            1 => Note::Quiet { id },
            2 => Note::List { id },
            3 => Note::Listed { id, partitions: word(1)?, sum: word(2)? },
            4 => Note::Thaw { id },
            5 => Note::Thawed { id, in_time: word(1)? != 0, frozen_ns: word(2)? },
            6 => Note::Write { id, number: word(1)?, taken_at: word(2)? },
            7 => Note::Writing { id },
            8 => Note::Written { id, records: word(1)?, bytes: word(2)?, checksum: word(3)? },
            9 => Note::Drop { id },
            10 => Note::Busy { id },
            11 => Note::Stale { id },
            12 => Note::Failed { id, reason: String::from_utf8_lossy(&rest[8..]).into() },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_survive_the_way() {
        for note in [
            Note::Freeze { id: 1, epoch: 2, limit_ns: 3 },
            Note::Quiet { id: 4 },
            Note::List { id: 5 },
            Note::Listed { id: 6, partitions: 7, sum: 8 },
            Note::Thaw { id: 9 },
            Note::Thawed { id: 10, in_time: true, frozen_ns: 23 },
            Note::Write { id: 11, number: 12, taken_at: 13 },
            Note::Writing { id: 14 },
            Note::Written { id: 15, records: 16, bytes: 17, checksum: 18 },
            Note::Drop { id: 19 },
            Note::Busy { id: 20 },
            Note::Stale { id: 21 },
            Note::Failed { id: 22, reason: "no room".into() },
        ] {
            assert_eq!(Note::decode(&note.encode()), Some(note));
        }
        for bytes in [&[][..], &[0, 1, 2], &[99; 40], &[6; 10]] {
            assert_eq!(Note::decode(bytes), None);
        }
    }
}
