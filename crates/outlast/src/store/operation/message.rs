//! What the members of a store tell each other.

use crate::engine::Port;
use crate::store::segment::place::Place;

pub(in crate::store) const PORT: Port = Port::Store;

/// What members tell each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) enum Note {
    /// I have opened the store: my root, and what options I was given.
    Hello { root: u64, replicas: u64, partitions: u64, buckets: u64, checksums: u64, mode: u64 },
    /// I need blocks of this class at your segment.
    Need { class: u64 },
    /// There are blocks of this class now.
    Granted { class: u64 },
    /// There is no room for blocks of this class.
    Refused { class: u64, reason: String },
    /// I am done with the store.
    Closing,
    /// These blocks of yours are free again; each as in [`Place`].
    Give { places: Vec<Place> },
    /// Nodes in these buckets of yours are being removed; each is a partition and a bucket in it.
    Marked { buckets: Vec<u64> },
    /// The partition is lost, and you are its first home: give it up.
    Accept { partition: u64 },
    /// The partition lives.
    Accepted { partition: u64 },
    /// The partition could not be given up.
    NotAccepted { partition: u64, reason: String },
    /// You are a home of the partition and have no index of it.
    Fill { partition: u64 },
    /// I am leaving: other homes than me are needed.
    Leaving,
    /// I know that you are leaving, and no operation of mine does not.
    Noted,
    /// All know that I am leaving: bring up the copies that are to replace mine.
    HandOver,
    /// Keys of the partition are lost.
    Damaged { partition: u64 },
}

impl Note {
    pub(in crate::store) fn encode(&self) -> Vec<u8> {
        let (tag, words, text): (u8, Vec<u64>, &str) = match self {
            Note::Hello { root, replicas, partitions, buckets, checksums, mode } => {
                (0, vec![*root, *replicas, *partitions, *buckets, *checksums, *mode], "")
            }
            Note::Need { class } => (1, vec![*class], ""),
            Note::Granted { class } => (2, vec![*class], ""),
            Note::Refused { class, reason } => (3, vec![*class], reason),
            Note::Closing => (4, vec![], ""),
            Note::Give { places } => (9, places.iter().map(|place| place.0).collect(), ""),
            Note::Marked { buckets } => (10, buckets.clone(), ""),
            Note::Accept { partition } => (5, vec![*partition], ""),
            Note::Accepted { partition } => (6, vec![*partition], ""),
            Note::NotAccepted { partition, reason } => (7, vec![*partition], reason),
            Note::Fill { partition } => (8, vec![*partition], ""),
            Note::Leaving => (20, vec![], ""),
            Note::Noted => (21, vec![], ""),
            Note::HandOver => (22, vec![], ""),
            Note::Damaged { partition } => (23, vec![*partition], ""),
        };
        let mut bytes = vec![tag];
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(text.as_bytes());
        bytes
    }

    /// What the bytes say; `None` if they say nothing that is known.
    pub(in crate::store) fn decode(bytes: &[u8]) -> Option<Note> {
        let (&tag, rest) = bytes.split_first()?;
        let word = |index: usize| -> Option<u64> {
            Some(u64::from_le_bytes(rest.get(index * 8..index * 8 + 8)?.try_into().ok()?))
        };
        let text = || String::from_utf8_lossy(rest.get(8..).unwrap_or_default()).into();
        Some(match tag {
            0 => Note::Hello {
                root: word(0)?,
                replicas: word(1)?,
                partitions: word(2)?,
                buckets: word(3)?,
                checksums: word(4)?,
                mode: word(5)?,
            },
            1 => Note::Need { class: word(0)? },
            2 => Note::Granted { class: word(0)? },
            3 => Note::Refused { class: word(0)?, reason: text() },
            4 => Note::Closing,
            9 => Note::Give { places: (0..rest.len() / 8).map_while(word).map(Place).collect() },
            10 => Note::Marked { buckets: (0..rest.len() / 8).map_while(word).collect() },
            5 => Note::Accept { partition: word(0)? },
            6 => Note::Accepted { partition: word(0)? },
            7 => Note::NotAccepted { partition: word(0)?, reason: text() },
            8 => Note::Fill { partition: word(0)? },
            20 => Note::Leaving,
            21 => Note::Noted,
            22 => Note::HandOver,
            23 => Note::Damaged { partition: word(0)? },
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
            Note::Hello { root: 1, replicas: 2, partitions: 3, buckets: 4, checksums: 1, mode: 1 },
            Note::Need { class: 5 },
            Note::Granted { class: 6 },
            Note::Refused { class: 7, reason: "no room".into() },
            Note::Closing,
            Note::Give { places: vec![Place(8), Place(9)] },
            Note::Marked { buckets: vec![10, 11] },
            Note::Accept { partition: 8 },
            Note::Accepted { partition: 9 },
            Note::NotAccepted { partition: 10, reason: "no room".into() },
            Note::Fill { partition: 11 },
            Note::Leaving,
            Note::Noted,
            Note::HandOver,
            Note::Damaged { partition: 12 },
        ] {
            assert_eq!(Note::decode(&note.encode()), Some(note));
        }
        assert_eq!(Note::decode(&[]), None);
        assert_eq!(Note::decode(&[0, 1, 2]), None);
        assert_eq!(Note::decode(&[99; 40]), None);
    }
}
