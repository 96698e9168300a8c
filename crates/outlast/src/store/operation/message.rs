//! What the members of a store tell each other.

use crate::engine::Port;
use crate::store::segment::place::Place;

pub(in crate::store) const PORT: Port = Port::Store;

/// What members tell each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) enum Message {
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
    /// The partition is lost, and you are its first replica: give it up.
    Accept { partition: u64 },
    /// The partition lives.
    Accepted { partition: u64 },
    /// The partition could not be given up.
    NotAccepted { partition: u64, reason: String },
    /// You are a replica of the partition and have no index of it.
    Fill { partition: u64 },
    /// I am leavers: other replicas than me are needed.
    Leaving,
    /// I know that you are leaving, and no operation of mine does not.
    Noted,
    /// All know that I am leavers: bring up the copies that are to replace mine.
    HandOver,
    /// Keys of the partition are lost.
    Damaged { partition: u64 },
}

impl Message {
    pub(in crate::store) fn encode(&self) -> Vec<u8> {
        let (tag, words, text): (u8, Vec<u64>, &str) = match self {
            Message::Hello { root, replicas, partitions, buckets, checksums, mode } => {
                (0, vec![*root, *replicas, *partitions, *buckets, *checksums, *mode], "")
            }
            Message::Need { class } => (1, vec![*class], ""),
            Message::Granted { class } => (2, vec![*class], ""),
            Message::Refused { class, reason } => (3, vec![*class], reason),
            Message::Closing => (4, vec![], ""),
            Message::Give { places } => (9, places.iter().map(|place| place.0).collect(), ""),
            Message::Marked { buckets } => (10, buckets.clone(), ""),
            Message::Accept { partition } => (5, vec![*partition], ""),
            Message::Accepted { partition } => (6, vec![*partition], ""),
            Message::NotAccepted { partition, reason } => (7, vec![*partition], reason),
            Message::Fill { partition } => (8, vec![*partition], ""),
            Message::Leaving => (20, vec![], ""),
            Message::Noted => (21, vec![], ""),
            Message::HandOver => (22, vec![], ""),
            Message::Damaged { partition } => (23, vec![*partition], ""),
        };
        let mut bytes = vec![tag];
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(text.as_bytes());
        bytes
    }

    /// What the bytes say; `None` if they say nothing that is known.
    pub(in crate::store) fn decode(bytes: &[u8]) -> Option<Message> {
        let (&tag, rest) = bytes.split_first()?;
        let word = |index: usize| -> Option<u64> {
            Some(u64::from_le_bytes(rest.get(index * 8..index * 8 + 8)?.try_into().ok()?))
        };
        let text = || String::from_utf8_lossy(rest.get(8..).unwrap_or_default()).into();
        Some(match tag {
            0 => Message::Hello {
                root: word(0)?,
                replicas: word(1)?,
                partitions: word(2)?,
                buckets: word(3)?,
                checksums: word(4)?,
                mode: word(5)?,
            },
            1 => Message::Need { class: word(0)? },
            2 => Message::Granted { class: word(0)? },
            3 => Message::Refused { class: word(0)?, reason: text() },
            4 => Message::Closing,
            9 => Message::Give { places: (0..rest.len() / 8).map_while(word).map(Place).collect() },
            10 => Message::Marked { buckets: (0..rest.len() / 8).map_while(word).collect() },
            5 => Message::Accept { partition: word(0)? },
            6 => Message::Accepted { partition: word(0)? },
            7 => Message::NotAccepted { partition: word(0)?, reason: text() },
            8 => Message::Fill { partition: word(0)? },
            20 => Message::Leaving,
            21 => Message::Noted,
            22 => Message::HandOver,
            23 => Message::Damaged { partition: word(0)? },
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
            Message::Hello {
                root: 1,
                replicas: 2,
                partitions: 3,
                buckets: 4,
                checksums: 1,
                mode: 1,
            },
            Message::Need { class: 5 },
            Message::Granted { class: 6 },
            Message::Refused { class: 7, reason: "no room".into() },
            Message::Closing,
            Message::Give { places: vec![Place(8), Place(9)] },
            Message::Marked { buckets: vec![10, 11] },
            Message::Accept { partition: 8 },
            Message::Accepted { partition: 9 },
            Message::NotAccepted { partition: 10, reason: "no room".into() },
            Message::Fill { partition: 11 },
            Message::Leaving,
            Message::Noted,
            Message::HandOver,
            Message::Damaged { partition: 12 },
        ] {
            assert_eq!(Message::decode(&note.encode()), Some(note));
        }
        assert_eq!(Message::decode(&[]), None);
        assert_eq!(Message::decode(&[0, 1, 2]), None);
        assert_eq!(Message::decode(&[99; 40]), None);
    }
}
