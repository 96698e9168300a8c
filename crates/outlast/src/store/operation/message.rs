//! The messages between the members of a store, and their encoding.
//!
//! A message is an address, a tag, words of 8 bytes in little-endian order, and a text. The members
//! reach memory without messages. A message is sent only where its receiver has to act itself.
//! `member/stores.rs` receives the messages of all stores of the job, and `member/dispatch.rs`
//! serves the messages of a store.

use crate::codec::{self, Encoded};
use crate::engine::{Error, MemberId, Port};
use crate::store::operation::state::OperationState;
use crate::store::placement::{hash_key, mix};
use crate::store::segment::place::Place;

/// The port of the messages of all stores of a job.
pub(in crate::store) const PORT: Port = Port::Store;

/// The store that a message belongs to: the hash of its name, and the number of its opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) store: u64,
    pub(crate) opening: u64,
}

/// The length of an address in a message.
const ADDRESS_LEN: usize = 16;

impl Address {
    pub(in crate::store) fn new(name: &str, opening: u64) -> Address {
        Address { store: hash_key(name.as_bytes()), opening }
    }

    /// A number that no other opening of any store of the job has, as far as a hash can tell. The
    /// first opening of the store without a name has the number 0.
    pub(in crate::store) fn number(self) -> u64 {
        let first = Address::new("", 1);
        let number = |address: Address| mix(address.store ^ mix(address.opening));
        number(self) ^ number(first)
    }

    /// The bytes of a message, behind this address.
    pub(crate) fn enclose(self, message: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ADDRESS_LEN + message.len());
        bytes.extend(self.store.to_le_bytes());
        bytes.extend(self.opening.to_le_bytes());
        bytes.extend(message);
        bytes
    }

    /// Takes the address off; `None` if the bytes are too short for an address.
    pub(crate) fn open(bytes: &[u8]) -> Option<(Address, &[u8])> {
        let (store, rest) = bytes.split_first_chunk()?;
        let (opening, message) = rest.split_first_chunk()?;
        let address =
            Address { store: u64::from_le_bytes(*store), opening: u64::from_le_bytes(*opening) };
        Some((address, message))
    }
}

impl OperationState {
    /// Sends a message to the store of another member.
    pub(in crate::store) fn send(&self, to: MemberId, message: &Message) -> Result<(), Error> {
        self.job.send(to, PORT, &self.address.enclose(&message.encode()))
    }

    /// Sends a message without waiting: `false` if the receiver has no room for it now.
    pub(in crate::store) fn try_send(
        &self,
        to: MemberId,
        message: &Message,
    ) -> Result<bool, Error> {
        self.job.try_send(to, PORT, &self.address.enclose(&message.encode()))
    }
}

/// A message from a member to another member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) enum Message {
    /// The sender opens the store: the offset of its root, its options, and the name of the store.
    Hello {
        root: u64,
        replicas: u64,
        partitions: u64,
        buckets: u64,
        checksums: u64,
        mode: u64,
        name: String,
    },
    /// The sender needs blocks of this size class in the receiver's segment. If it waits, outside
    /// of its operation, the receiver recalls blocks before it refuses.
    Need { class: u64, waits: bool },
    /// The sender has no room for blocks of this size class, which the receiver may keep.
    Recall { class: u64 },
    /// The answer to `Recall`: the sender has given back what it kept and did not use.
    Returned { class: u64 },
    /// The answer to `Need`, with its `waits`: the sender has made blocks of this size class.
    Granted { class: u64, waits: bool },
    /// The answer to `Need`, with its `waits`: the sender has no room for blocks of this size
    /// class.
    Refused { class: u64, waits: bool, reason: String },
    /// The sender is closing the store, or never opens this opening.
    Closing,
    /// The sender has given up this opening, which it has not used. A receiver that does not use it
    /// gives it up, too, and answers with `Closing`.
    Abandoned,
    /// `close.quiet`: the sender has closed the store, and reaches the memory of no member for it
    /// any more.
    Quiet,
    /// These blocks of the receiver are free again. The sender was their holder, and their grace
    /// period is over.
    Give { places: Vec<Place> },
    /// Records of the receiver are marked as removed, and their nodes can be unlinked. A word has
    /// a partition in its upper half, and the lower half of the key's hash.
    Marked { hashes: Vec<u64> },
    /// The sender has inserted a record of the partition at the receiver, and found many nodes in
    /// its bucket.
    Crowded { partition: u64 },
    /// The partition is lost, and the receiver is its first replica: accept the loss.
    Accept { partition: u64 },
    /// The answer to `Accept`: the partition is usable again.
    Accepted { partition: u64 },
    /// The answer to `Accept`: the loss could not be accepted.
    NotAccepted { partition: u64, reason: String },
    /// The receiver is a replica of the partition and has no index of it: begin to fill it.
    Fill { partition: u64 },
    /// `leave.announce`: the sender leaves, and its partitions need other replicas.
    Leaving,
    /// `leave.acknowledge`: every operation of the sender that began before it knew of the leaver
    /// has ended.
    AcknowledgeLeaving,
    /// `leave.hand_over`: all members have acknowledged the leaver; new replicas may be filled.
    HandOver,
    /// `leave.pass_on`: this member leaves. It has told the sender, or a member that has told the
    /// sender, and perhaps not the receiver.
    Leaver { member: u64 },
    /// Keys of the partition are lost.
    Damaged { partition: u64 },
}

impl Message {
    pub(in crate::store) fn encode(&self) -> Vec<u8> {
        let (tag, words, text): (u8, Vec<u64>, &str) = match self {
            Message::Hello { root, replicas, partitions, buckets, checksums, mode, name } => {
                (0, vec![*root, *replicas, *partitions, *buckets, *checksums, *mode], name)
            }
            Message::Need { class, waits } => (1, vec![*class, u64::from(*waits)], ""),
            Message::Recall { class } => (12, vec![*class], ""),
            Message::Returned { class } => (13, vec![*class], ""),
            Message::Granted { class, waits } => (2, vec![*class, u64::from(*waits)], ""),
            Message::Refused { class, waits, reason } => {
                (3, vec![*class, u64::from(*waits)], reason)
            }
            Message::Closing => (4, vec![], ""),
            Message::Abandoned => (14, vec![], ""),
            Message::Quiet => (11, vec![], ""),
            Message::Give { places } => (9, places.iter().map(|place| place.0).collect(), ""),
            Message::Marked { hashes } => (10, hashes.clone(), ""),
            Message::Crowded { partition } => (15, vec![*partition], ""),
            Message::Accept { partition } => (5, vec![*partition], ""),
            Message::Accepted { partition } => (6, vec![*partition], ""),
            Message::NotAccepted { partition, reason } => (7, vec![*partition], reason),
            Message::Fill { partition } => (8, vec![*partition], ""),
            Message::Leaving => (20, vec![], ""),
            Message::AcknowledgeLeaving => (21, vec![], ""),
            Message::HandOver => (22, vec![], ""),
            Message::Leaver { member } => (24, vec![*member], ""),
            Message::Damaged { partition } => (23, vec![*partition], ""),
        };
        codec::encode(tag, &words, text)
    }

    /// Decodes a message. Returns `None` if no member could have sent these bytes.
    pub(in crate::store) fn decode(bytes: &[u8]) -> Option<Message> {
        let encoded = Encoded::new(bytes)?;
        let word = |index: usize| encoded.word(index);
        let text = || encoded.text_after(1);
        Some(match encoded.tag() {
            0 => Message::Hello {
                root: word(0)?,
                replicas: word(1)?,
                partitions: word(2)?,
                buckets: word(3)?,
                checksums: word(4)?,
                mode: word(5)?,
                name: encoded.text_after(6),
            },
            1 => Message::Need { class: word(0)?, waits: word(1)? != 0 },
            12 => Message::Recall { class: word(0)? },
            13 => Message::Returned { class: word(0)? },
            2 => Message::Granted { class: word(0)?, waits: word(1)? != 0 },
            3 => Message::Refused {
                class: word(0)?,
                waits: word(1)? != 0,
                reason: encoded.text_after(2),
            },
            4 => Message::Closing,
            14 => Message::Abandoned,
            11 => Message::Quiet,
            9 => Message::Give { places: encoded.words().map(Place).collect() },
            10 => Message::Marked { hashes: encoded.words().collect() },
            15 => Message::Crowded { partition: word(0)? },
            5 => Message::Accept { partition: word(0)? },
            6 => Message::Accepted { partition: word(0)? },
            7 => Message::NotAccepted { partition: word(0)?, reason: text() },
            8 => Message::Fill { partition: word(0)? },
            20 => Message::Leaving,
            21 => Message::AcknowledgeLeaving,
            22 => Message::HandOver,
            24 => Message::Leaver { member: word(0)? },
            23 => Message::Damaged { partition: word(0)? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_encoding() {
        for message in [
            Message::Hello {
                root: 1,
                replicas: 2,
                partitions: 3,
                buckets: 4,
                checksums: 1,
                mode: 1,
                name: "results".into(),
            },
            Message::Need { class: 5, waits: true },
            Message::Recall { class: 5 },
            Message::Returned { class: 5 },
            Message::Granted { class: 6, waits: false },
            Message::Refused { class: 7, waits: true, reason: "no room".into() },
            Message::Closing,
            Message::Abandoned,
            Message::Quiet,
            Message::Give { places: vec![Place(8), Place(9)] },
            Message::Marked { hashes: vec![10, 11] },
            Message::Crowded { partition: 13 },
            Message::Accept { partition: 8 },
            Message::Accepted { partition: 9 },
            Message::NotAccepted { partition: 10, reason: "no room".into() },
            Message::Fill { partition: 11 },
            Message::Leaving,
            Message::AcknowledgeLeaving,
            Message::HandOver,
            Message::Leaver { member: 13 },
            Message::Damaged { partition: 12 },
        ] {
            assert_eq!(Message::decode(&message.encode()), Some(message));
        }
        let address = Address::new("results", 3);
        assert_eq!(Address::open(&address.enclose(b"text")), Some((address, &b"text"[..])));
        assert_eq!(Address::open(&[0; ADDRESS_LEN - 1]), None);
        assert_eq!(Address::new("", 1).number(), 0);
        assert_ne!(Address::new("", 2).number(), 0);
        assert_eq!(Message::decode(&[]), None);
        assert_eq!(Message::decode(&[0, 1, 2]), None);
        assert_eq!(Message::decode(&[99; 40]), None);
    }
}
