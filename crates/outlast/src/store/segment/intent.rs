//! What transactions write: intents, provisional versions and restored versions, and the record of
//! a recovery decision.
//!
//! All of them are values of ordinary records, in little-endian words.
//! docs/protocol/transactions.md says how the transaction protocol uses them, and
//! docs/protocol/coordinated-recovery.md how a coordinated recovery does.

use crate::engine::{Epoch, MemberId, MemberSet};
use crate::store::key_rules::RESERVED;
use crate::store::value::Version;

/// The identity of a transaction, for the whole job: the number of a member is never reused, and a
/// member never reuses a nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct IntentId {
    pub(in crate::store) member: MemberId,
    /// The number of the intent record among those of the member.
    pub(in crate::store) slot: u32,
    pub(in crate::store) nonce: u64,
}

/// The prefix of the keys of intent records, behind [`RESERVED`], with which all keys of the
/// store's own records begin.
const INTENTS: &[u8] = b"tx/";

/// Whether this is the key of an intent record or of the recovery decision, which has the prefix of
/// the intents too.
pub(in crate::store) fn is_intent(key: &[u8]) -> bool {
    key.strip_prefix(RESERVED).is_some_and(|rest| rest.starts_with(INTENTS))
}

/// The key of an intent record.
pub(in crate::store) fn intent_key(member: MemberId, slot: u32) -> IntentKey {
    const MEMBER: usize = RESERVED.len() + INTENTS.len();
    let mut key = [0; INTENT_KEY_LEN];
    key[..RESERVED.len()].copy_from_slice(RESERVED);
    key[RESERVED.len()..MEMBER].copy_from_slice(INTENTS);
    key[MEMBER..MEMBER + 4].copy_from_slice(&member.0.to_le_bytes());
    key[MEMBER + 4..].copy_from_slice(&slot.to_le_bytes());
    key
}

/// The key of an intent record.
pub(in crate::store) type IntentKey = [u8; INTENT_KEY_LEN];

const INTENT_KEY_LEN: usize = RESERVED.len() + INTENTS.len() + 8;

/// The state of an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum IntentState {
    /// The transaction has not happened, and any member may abort it.
    Pending = 1,
    /// As pending, but the serialization point of the transaction may already have passed: the
    /// transaction may be ordered before later operations. So readers do not pass it.
    Validating = 2,
    /// The transaction has happened.
    Committed = 3,
    /// The transaction will never happen.
    Aborted = 4,
    /// The transaction belongs to an attempt at a coordinated recovery, and happens if that attempt
    /// is committed: see [`RecoveryDecision`].
    Joined = 5,
}

impl IntentState {
    /// Whether the outcome of the transaction is fixed.
    pub(in crate::store) fn is_decided(self) -> bool {
        matches!(self, IntentState::Committed | IntentState::Aborted)
    }
}

/// An intent record: a head of 24 bytes; if the intent is joined to a recovery, 8 bytes with the
/// identity of the attempt; then the keys, each preceded by its length in two bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct Intent {
    pub(in crate::store) nonce: u64,
    pub(in crate::store) state: IntentState,
    /// The number of failed attempts of the transaction.
    pub(in crate::store) attempts: u32,
    /// The epoch from before the intent was written first: all keys were locked under this view or
    /// a later view.
    pub(in crate::store) epoch: Epoch,
    /// The attempt at a coordinated recovery to which the intent is joined, or 0.
    pub(in crate::store) recovery: u64,
    /// Every key that may have a provisional version of this transaction.
    pub(in crate::store) keys: Vec<Vec<u8>>,
}

/// The length of the head of an intent record: nonce; state, failed attempts and epoch; number of
/// keys.
pub(in crate::store) const INTENT_HEAD: usize = 24;

/// The word with this index, or `None` if the bytes end before it.
fn word(bytes: &[u8], index: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(index * 8..index * 8 + 8)?.try_into().ok()?))
}

/// An intent record as it is stored. The committer keeps it while it goes from state to state: only
/// the state changes, and the keys are in it already.
#[derive(Clone, Debug)]
pub(in crate::store) struct EncodedIntent {
    bytes: Vec<u8>,
    /// Where the keys begin.
    keys_at: usize,
}

impl EncodedIntent {
    /// Encodes an intent without its keys, and then these keys, which come in their order.
    pub(in crate::store) fn new<'k>(
        intent: &Intent,
        keys: impl Iterator<Item = &'k [u8]> + Clone,
    ) -> EncodedIntent {
        // An epoch counts dead members, so it has fewer than 24 bits.
        let state = intent.epoch.0 << 40 | u64::from(intent.attempts) << 8 | intent.state as u64;
        // The vector is allocated with its final length, as in `Provisional::encode`: growing it
        // costs more than filling it.
        let (mut count, mut len) = (0, INTENT_HEAD + 8);
        keys.clone().for_each(|key| (count, len) = (count + 1, len + 2 + key.len()));
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice([intent.nonce, state, count].map(u64::to_le_bytes).as_flattened());
        if intent.state == IntentState::Joined {
            bytes.extend_from_slice(&intent.recovery.to_le_bytes());
        }
        let keys_at = bytes.len();
        for key in keys {
            bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
            bytes.extend_from_slice(key);
        }
        EncodedIntent { bytes, keys_at }
    }

    /// Changes the state. A joined intent stays as it is.
    pub(in crate::store) fn set_state(&mut self, state: IntentState) {
        debug_assert!(self.keys_at == INTENT_HEAD && state != IntentState::Joined);
        self.bytes[8] = state as u8;
    }

    pub(in crate::store) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The length of its keys together.
    pub(in crate::store) fn keys_len(&self) -> usize {
        self.bytes.len() - self.keys_at
    }

    /// Its keys, in their order.
    pub(in crate::store) fn keys(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let mut rest = &self.bytes[self.keys_at..];
        std::iter::from_fn(move || {
            let (len, after) = rest.split_first_chunk()?;
            let (key, after) = after.split_at(usize::from(u16::from_le_bytes(*len)));
            rest = after;
            Some(key)
        })
    }

    /// Copies of its keys, in their order.
    pub(in crate::store) fn keys_to_vec(&self) -> Vec<Vec<u8>> {
        self.keys().map(<[u8]>::to_vec).collect()
    }
}

impl Intent {
    pub(in crate::store) fn encode(&self) -> Vec<u8> {
        EncodedIntent::new(self, self.keys.iter().map(Vec::as_slice)).bytes
    }

    /// Decodes the record without its keys, from its first bytes.
    pub(in crate::store) fn decode_head(bytes: &[u8]) -> Option<Intent> {
        let state = match word(bytes, 1)? & 0xff {
            1 => IntentState::Pending,
            2 => IntentState::Validating,
            3 => IntentState::Committed,
            4 => IntentState::Aborted,
            5 => IntentState::Joined,
            _ => return None,
        };
        let (attempts, epoch) = ((word(bytes, 1)? >> 8) as u32, Epoch(word(bytes, 1)? >> 40));
        let nonce = word(bytes, 0)?;
        Some(Intent { nonce, state, attempts, epoch, recovery: 0, keys: Vec::new() })
    }

    /// Decodes a record. Returns `None` if no transaction wrote these bytes.
    pub(in crate::store) fn decode(bytes: &[u8]) -> Option<Intent> {
        let mut intent = Intent::decode_head(bytes)?;
        let mut rest = bytes.get(INTENT_HEAD..)?;
        if intent.state == IntentState::Joined {
            intent.recovery = word(bytes, INTENT_HEAD / 8)?;
            rest = &rest[8..];
        }
        for _ in 0..word(bytes, 2)? {
            let (len, after) = rest.split_first_chunk()?;
            let (key, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
            intent.keys.push(key.to_vec());
            rest = after;
        }
        Some(intent)
    }
}

/// The recovery decision: whether the last attempt at a coordinated recovery is committed or
/// aborted.
///
/// It is a single record of the store, and it decides all intents that are joined to that attempt.
/// The record has a head of four words (the attempt, whether it is committed, the number of members
/// that follow, 0). Behind the head are the members whose deaths the store has recovered from, four
/// bytes each, and the reason of an abort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct RecoveryDecision {
    pub(in crate::store) recovery: u64,
    pub(in crate::store) is_committed: bool,
    /// The members that were dead in the last recovery that was committed.
    pub(in crate::store) recovered: MemberSet,
    pub(in crate::store) reason: String,
}

/// The length of the head of a recovery decision.
pub(in crate::store) const RECOVERY_DECISION_HEAD: usize = 32;

impl RecoveryDecision {
    /// The key of the record.
    pub(in crate::store) fn key() -> Vec<u8> {
        [RESERVED, INTENTS, b"verdict of the last recovery"].concat()
    }

    pub(in crate::store) fn encode(&self) -> Vec<u8> {
        let words = [self.recovery, u64::from(self.is_committed), self.recovered.len() as u64, 0];
        let mut bytes = words.map(u64::to_le_bytes).concat();
        self.recovered.iter().for_each(|member| bytes.extend(member.0.to_le_bytes()));
        bytes.extend(self.reason.as_bytes());
        bytes
    }

    /// Decodes the attempt and whether it is committed, from the first bytes.
    pub(in crate::store) fn decode_head(bytes: &[u8]) -> Option<(u64, bool)> {
        Some((word(bytes, 0)?, word(bytes, 1)? == 1))
    }

    pub(in crate::store) fn decode(bytes: &[u8]) -> Option<RecoveryDecision> {
        let (recovery, is_committed) = RecoveryDecision::decode_head(bytes)?;
        let count = usize::try_from(word(bytes, 2)?).ok()?.checked_mul(4)?;
        let (members, reason) = bytes.get(RECOVERY_DECISION_HEAD..)?.split_at_checked(count)?;
        let member =
            |bytes: &[u8]| MemberId(u32::from_le_bytes(bytes.try_into().expect("4 bytes")));
        let recovered = members.chunks_exact(4).map(member).collect();
        Some(RecoveryDecision {
            recovery,
            is_committed,
            recovered,
            reason: String::from_utf8_lossy(reason).into(),
        })
    }
}

/// What a transaction records of a key that it read, without the value.
///
/// For a key that exists it is the version. For an absent key it is a counter that grows when the
/// key is made and deleted, together with the configuration number, which takes the place of the
/// writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct ObservedVersion {
    pub(in crate::store) exists: bool,
    pub(in crate::store) version: Version,
}

/// What a transaction changes a key to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum New<'a> {
    /// No change: the key stays as it is until the transaction is decided.
    Unchanged,
    Deleted,
    Value {
        bytes: &'a [u8],
        owner: MemberId,
    },
}

/// The head of a provisional version, decoded. The old value and the new value follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Provisional {
    pub(in crate::store) id: IntentId,
    pub(in crate::store) old: ObservedVersion,
    pub(in crate::store) old_owner: MemberId,
    pub(in crate::store) old_len: u64,
    /// `None` if the key is unchanged, `Some(None)` if it is deleted.
    pub(in crate::store) new_len: Option<Option<u64>>,
    pub(in crate::store) new_owner: MemberId,
}

/// The length of the head of a provisional version.
pub(in crate::store) const PROVISIONAL_HEAD: usize = 64;

/// In the place of a new length: the transaction does not change the key.
const UNCHANGED: u64 = u64::MAX;

/// In the place of a length: there is no value.
pub(in crate::store) const NOTHING: u64 = u64::MAX - 1;

/// A word with a member in its lower half and a number in its upper half.
fn pair(low: MemberId, high: u32) -> u64 {
    u64::from(low.0) | u64::from(high) << 32
}

/// The inverse of [`pair`].
fn halves(word: u64) -> (MemberId, u32) {
    (MemberId(word as u32), (word >> 32) as u32)
}

/// Encodes the head of a provisional version, with an old value of `old_len` bytes.
#[inline(always)]
pub(in crate::store) fn encode_provisional_head(
    id: IntentId,
    old: ObservedVersion,
    old_owner: MemberId,
    old_len: u64,
    new: New<'_>,
) -> [[u8; 8]; PROVISIONAL_HEAD / 8] {
    let (new_len, new_owner) = match new {
        New::Unchanged => (UNCHANGED, MemberId(0)),
        New::Deleted => (NOTHING, MemberId(0)),
        New::Value { bytes, owner } => (bytes.len() as u64, owner),
    };
    let words = [
        pair(id.member, id.slot),
        id.nonce,
        old.version.counter,
        pair(old.version.writer, old_owner.0),
        if old.exists { old_len } else { NOTHING },
        new_len,
        u64::from(new_owner.0),
        0,
    ];
    words.map(u64::to_le_bytes)
}

impl Provisional {
    /// The offsets of the old value and of the new value, relative to the start of the block's
    /// value. The new value begins at a multiple of 8.
    pub(in crate::store) fn places(&self) -> (u64, u64) {
        let old = PROVISIONAL_HEAD as u64;
        (old, old + self.old_len.next_multiple_of(8))
    }

    pub(in crate::store) fn encode(
        id: IntentId,
        old: ObservedVersion,
        old_owner: MemberId,
        value: &[u8],
        new: New<'_>,
    ) -> Vec<u8> {
        let new_bytes = if let New::Value { bytes, .. } = new { bytes } else { &[] };
        let len = PROVISIONAL_HEAD + value.len().next_multiple_of(8) + new_bytes.len();
        let mut bytes = Vec::with_capacity(len);
        let head = encode_provisional_head(id, old, old_owner, value.len() as u64, new);
        bytes.extend(head.as_flattened());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.extend(new_bytes);
        bytes
    }

    /// Decodes the head of a provisional version in a block with a value of `block_len` bytes.
    /// Returns `None` if the lengths in the head do not fit into the block: no transaction wrote
    /// it.
    pub(in crate::store) fn decode(
        bytes: &[u8; PROVISIONAL_HEAD],
        block_len: u64,
    ) -> Option<Provisional> {
        let (member, slot) = halves(word(bytes, 0)?);
        let (writer, old_owner) = halves(word(bytes, 3)?);
        let (old_len, new_len) = (word(bytes, 4)?, word(bytes, 5)?);
        let old = ObservedVersion {
            exists: old_len != NOTHING,
            version: Version { counter: word(bytes, 2)?, writer },
        };
        let found = Provisional {
            id: IntentId { member, slot, nonce: word(bytes, 1)? },
            old,
            old_owner: MemberId(old_owner),
            old_len: if old.exists { old_len } else { 0 },
            new_len: match new_len {
                UNCHANGED => None,
                NOTHING => Some(None),
                len => Some(Some(len)),
            },
            new_owner: MemberId(word(bytes, 6)? as u32),
        };
        let new_len = found.new_len.flatten().unwrap_or(0);
        let is_possible = found.old_len <= block_len
            && new_len <= block_len
            && found.places().1 + new_len <= block_len.next_multiple_of(8);
        is_possible.then_some(found)
    }
}

/// The length of the head of a restored version, which holds the version number of the value that
/// was restored.
pub(in crate::store) const RESTORED_HEAD: usize = 16;

/// Encodes a restored version: the old version number, then the old value.
pub(in crate::store) fn encode_restored(version: Version, value: &[u8]) -> Vec<u8> {
    let version = [version.counter, u64::from(version.writer.0)].map(u64::to_le_bytes);
    [version.as_flattened(), value].concat()
}

/// Decodes the version number in the head of a restored version.
pub(in crate::store) fn decode_restored(bytes: &[u8; RESTORED_HEAD]) -> Version {
    let word = |index| word(bytes, index).unwrap_or(0);
    Version { counter: word(0), writer: MemberId(word(1) as u32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intent_survives_encoding_and_rejects_truncation() {
        let keys = vec![b"a".to_vec(), vec![7; 1024], vec![0; 9]];
        for state in [
            IntentState::Pending,
            IntentState::Validating,
            IntentState::Committed,
            IntentState::Aborted,
            IntentState::Joined,
        ] {
            let recovery = if state == IntentState::Joined { u64::MAX - 9 } else { 0 };
            let intent = Intent {
                nonce: u64::MAX - 3,
                state,
                attempts: 70_000,
                epoch: Epoch(4095),
                recovery,
                keys: keys.clone(),
            };
            let bytes = intent.encode();
            assert_eq!(Intent::decode(&bytes), Some(intent.clone()));
            assert_eq!(
                Intent::decode_head(&bytes[..INTENT_HEAD]),
                Some(Intent { keys: Vec::new(), recovery: 0, ..intent })
            );
            // A record that is cut short is not decoded.
            assert!((0..bytes.len()).all(|len| Intent::decode(&bytes[..len]).is_none()));
        }
        assert_eq!(Intent::decode(&[0; 64]), None);
    }

    #[test]
    fn a_recovery_decision_survives_encoding_and_rejects_truncation() {
        for (is_committed, reason) in [(true, ""), (false, "member 3 did not like it")] {
            let recovered = [MemberId(0), MemberId(70), MemberId(4095)].into_iter().collect();
            let recovery_decision = RecoveryDecision {
                recovery: 1 << 44,
                is_committed,
                recovered,
                reason: reason.into(),
            };
            let bytes = recovery_decision.encode();
            assert_eq!(RecoveryDecision::decode(&bytes), Some(recovery_decision));
            assert_eq!(RecoveryDecision::decode_head(&bytes), Some((1 << 44, is_committed)));
            assert!(
                (0..RECOVERY_DECISION_HEAD + 12)
                    .all(|len| RecoveryDecision::decode(&bytes[..len]).is_none())
            );
        }
        assert!(is_intent(&RecoveryDecision::key()));
    }

    #[test]
    fn a_provisional_version_survives_encoding_and_rejects_bad_lengths() {
        let id = IntentId { member: MemberId(9), slot: 3, nonce: 77 };
        let version = Version { counter: 5, writer: MemberId(4) };
        let new = [
            (New::Unchanged, None),
            (New::Deleted, Some(None)),
            (New::Value { bytes: b"new value", owner: MemberId(6) }, Some(Some(9))),
        ];
        for (exists, value) in [(true, &b"before"[..]), (true, b""), (false, b"")] {
            for (new, new_len) in new {
                let old = ObservedVersion { exists, version };
                let bytes = Provisional::encode(id, old, MemberId(8), value, new);
                let head = bytes[..PROVISIONAL_HEAD].try_into().expect("long enough");
                let found = Provisional::decode(head, bytes.len() as u64).expect("possible");
                assert_eq!((found.id, found.old, found.old_owner), (id, old, MemberId(8)));
                assert_eq!((found.old_len, found.new_len), (value.len() as u64, new_len));
                let (old_at, new_at) = found.places();
                assert_eq!(&bytes[old_at as usize..old_at as usize + value.len()], value);
                if let New::Value { bytes: value, owner } = new {
                    assert_eq!((&bytes[new_at as usize..], found.new_owner), (value, owner));
                }
                // Lengths that do not fit into the block are rejected.
                assert_eq!(Provisional::decode(head, 8), None);
            }
        }
    }

    #[test]
    fn a_restored_version_survives_encoding() {
        let version = Version { counter: 1 << 60, writer: MemberId(4095) };
        let bytes = encode_restored(version, b"value");
        assert_eq!(
            decode_restored(bytes[..RESTORED_HEAD].try_into().expect("long enough")),
            version
        );
        assert_eq!(&bytes[RESTORED_HEAD..], b"value");
    }
}
