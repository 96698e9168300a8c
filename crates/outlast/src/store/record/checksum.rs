//! Checksums of values, if [`crate::store::Options::checksums`] turns them on.
//!
//! A checksum covers the key, the version, the owner and the value, and lies in the header of the
//! block. A reader compares it. Memory that another program overwrote, and a block of another key
//! to which a damaged index leads, are therefore reported as [`StoreError::Corrupt`] and never
//! returned as a value. A copy of a block keeps its checksum as it is, so that damage stays visible
//! and repair goes on. The holder of a block is not covered, because it changes.

use crate::engine::MemberId;
use crate::store::error::{StoreError, StoreResult};
use crate::store::operation::error::{OpError, OpResult};
use crate::store::placement::{hash_key, mix};
use crate::store::record::key::KeyRef;
use crate::store::record::state::{RecordOp, RecordState};
use crate::store::segment::layout::{Block, value_start};

/// Odd numbers with about as many set bits as clear bits.
const FACTORS: [u64; 4] =
    [0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db, 0x8ebc_6af0_9c88_c6e3, 0x5899_65cc_7537_4cc3];

/// The bits of a checksum that the header has room for.
const MASK: u64 = (1 << 48) - 1;

/// The two halves of the 128-bit product, combined by exclusive or.
#[inline(always)]
fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    product as u64 ^ (product >> 64) as u64
}

/// The word with this index.
#[inline(always)]
fn word(bytes: &[u8], index: usize) -> u64 {
    u64::from_ne_bytes(bytes[index * 8..index * 8 + 8].try_into().expect("8 bytes"))
}

/// A hash of bytes. It takes four multiplications for every 64 bytes, which do not depend on each
/// other.
#[inline]
fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let mut lanes = FACTORS.map(|factor| seed ^ factor);
    let mut chunks = bytes.chunks_exact(64);
    for chunk in &mut chunks {
        for (index, lane) in lanes.iter_mut().enumerate() {
            *lane =
                fold(word(chunk, 2 * index) ^ *lane, word(chunk, 2 * index + 1) ^ FACTORS[index]);
        }
    }
    let mut hash = fold(lanes[0] ^ lanes[2].rotate_left(17), lanes[1] ^ lanes[3].rotate_left(41));
    for part in chunks.remainder().chunks(8) {
        let mut last = [0; 8];
        last[..part.len()].copy_from_slice(part);
        hash = fold(hash ^ u64::from_ne_bytes(last), FACTORS[1]) ^ hash.rotate_left(23);
    }
    mix(hash)
}

/// The checksum of a version of the key with hash `key_hash`.
#[inline]
pub(in crate::store) fn checksum(key_hash: u64, block: &Block, value: &[u8]) -> u64 {
    let Block { counter, writer, participant, operation, len, is_deleted, kind, owner, .. } =
        *block;
    let mut state = key_hash;
    let who = operation << 18 | (participant as u64) << 12 | u64::from(writer.0);
    for word in
        [counter, who, len << 3 | (kind as u64) << 1 | u64::from(is_deleted), u64::from(owner.0)]
    {
        state = mix(state ^ word);
    }
    hash(state, value) & MASK
}

impl RecordState {
    /// The header with its checksum, if checksums are on.
    #[inline(always)]
    pub(in crate::store) fn with_checksum(
        &self,
        key: &KeyRef<'_>,
        block: Block,
        value: &[u8],
    ) -> Block {
        if !self.checksums {
            return block;
        }
        Block { checksum: checksum(key.hash, &block, value), ..block }
    }

    /// Whether a value matches its checksum; always true without checksums.
    #[inline(always)]
    pub(in crate::store) fn is_right(
        &self,
        key_hash: impl FnOnce() -> u64,
        block: &Block,
        value: &[u8],
    ) -> bool {
        !self.checksums || checksum(key_hash(), block, value) == block.checksum
    }

    /// Returns [`StoreError::Corrupt`] if a value does not match its checksum.
    pub(in crate::store) fn check_value(
        &self,
        key: &[u8],
        member: MemberId,
        block: &Block,
        value: &[u8],
    ) -> StoreResult<()> {
        match self.is_right(|| hash_key(key), block, value) {
            true => Ok(()),
            false => {
                Err(StoreError::Corrupt { member, what: "a value does not match its checksum" })
            }
        }
    }
}

impl<'a> RecordOp<'a> {
    /// Copies the value of a key's block into `value` and checks its checksum.
    #[inline]
    pub(in crate::store) fn get_value(
        &self,
        key: &[u8],
        replica: MemberId,
        offset: u64,
        block: &Block,
        value: &mut [u8],
    ) -> OpResult<()> {
        self.get(replica, offset + value_start(block.len), value)?;
        self.store.check_value(key, replica, block, value).map_err(OpError::Fail)
    }

    /// Checks the checksum of a whole value, for a caller that uses parts of it.
    pub(in crate::store) fn check_whole(
        &self,
        key: &KeyRef<'_>,
        replica: MemberId,
        offset: u64,
        block: &Block,
    ) -> OpResult<()> {
        if !self.store.checksums {
            return Ok(());
        }
        self.get_value(key.key, replica, offset, block, &mut vec![0; block.len as usize])
    }

    /// Gives a checksum to a version that lies inside the value of another version. A provisional
    /// or restored version contains the versions that readers see. The outer version is checked,
    /// and the inner version `seen` gets a checksum of its own.
    pub(in crate::store::record) fn resealed(
        &self,
        key: &KeyRef<'_>,
        replica: MemberId,
        offset: u64,
        block: &Block,
        (seen_at, seen): (u64, Block),
    ) -> OpResult<(u64, Block)> {
        if !self.store.checksums {
            return Ok((seen_at, seen));
        }
        let mut whole = vec![0; block.len as usize];
        self.get_value(key.key, replica, offset, block, &mut whole)?;
        let from = (seen_at + value_start(seen.len)).wrapping_sub(offset + value_start(block.len))
            as usize;
        let part = whole.get(from..).and_then(|rest| rest.get(..seen.len as usize));
        let what = "a part of a value is not in it";
        let part = part.ok_or(OpError::Fail(StoreError::Corrupt { member: replica, what }))?;
        Ok((seen_at, Block { checksum: checksum(key.hash, &seen, part), ..seen }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::segment::layout::Kind;

    /// A change of any bit of the key, the header or the value changes the checksum.
    #[test]
    fn every_bit_changes_the_checksum() {
        let block = Block {
            counter: 7,
            writer: MemberId(5),
            participant: 3,
            operation: 9,
            len: 200,
            is_deleted: false,
            kind: Kind::Plain,
            holder: 6,
            owner: MemberId(4),
            checksum: 0,
        };
        for len in [0, 1, 7, 8, 9, 63, 64, 65, 200, 1000] {
            let value: Vec<u8> = (0..len).map(|at| (at * 37) as u8).collect();
            let right = checksum(1, &block, &value);
            assert_eq!(right, checksum(1, &Block { holder: 1, checksum: 5, ..block }, &value));
            for bit in 0..len * 8 {
                let mut wrong = value.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(right, checksum(1, &block, &wrong), "bit {bit} of {len} bytes");
            }
            assert_ne!(right, checksum(2, &block, &value));
            assert_ne!(right, checksum(1, &Block { counter: 8, ..block }, &value));
            assert_ne!(right, checksum(1, &Block { owner: MemberId(5), ..block }, &value));
            assert_ne!(right, checksum(1, &Block { len: 201, ..block }, &value));
        }
        // Zeros at the end count.
        assert_ne!(checksum(1, &block, &[0; 64]), checksum(1, &block, &[0; 128]));
    }
}
