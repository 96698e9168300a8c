//! A slot: a head and a piece of a stripe, as they lie in the memory of a holder.
//!
//! | bytes | content |
//! |---|---|
//! | 0 to 7 | the image: a hash of its key |
//! | 8 to 15 | the save that wrote the piece |
//! | 16 to 19 | the stripe |
//! | 20 to 23 | the place in the set |
//! | 24 to 31 | a checksum (xxh3) of the words above and of the hash of the piece |
//! | 32 to 63 | zeros |
//!
//! A reader takes a piece only if all of it is as the descriptor says. So an older piece with a
//! good checksum is not taken for a newer piece, and a piece that is being replaced is not taken at
//! all.

use crate::store::mutant;
use twox_hash::{XxHash3_64, XxHash3_128};

/// The length of a head.
pub(super) const HEAD_LEN: usize = 64;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) image: u64,
    pub(super) save: u64,
    pub(super) stripe: u32,
    pub(super) place: u32,
}

impl Head {
    fn words(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.image.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.save.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.stripe.to_le_bytes());
        bytes[20..].copy_from_slice(&self.place.to_le_bytes());
        bytes
    }

    fn checksum(&self, hash: u128) -> u64 {
        XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(&self.words()), &hash.to_le_bytes())
    }

    /// Writes the head into a slot that has a piece with this hash.
    pub(super) fn seal(&self, slot: &mut [u8], hash: u128) {
        let head = &mut slot[..HEAD_LEN];
        head.fill(0);
        head[..24].copy_from_slice(&self.words());
        head[24..32].copy_from_slice(&self.checksum(hash).to_le_bytes());
    }

    /// The piece in the bytes of a slot, if the slot holds what this head says, undamaged.
    pub(super) fn piece<'a>(&self, slot: &'a [u8]) -> Option<&'a [u8]> {
        let (head, piece) = slot.split_at_checked(HEAD_LEN)?;
        let is_right = (head[..24] == self.words() || mutant("image-old-piece"))
            && head[24..32] == self.checksum(hash_piece(piece)).to_le_bytes()
            && head[32..].iter().all(|byte| *byte == 0);
        is_right.then_some(piece)
    }
}

/// The hash of a piece. The checksum of its slot depends on it, and so does the fingerprint of its
/// stripe.
pub(super) fn hash_piece(piece: &[u8]) -> u128 {
    XxHash3_128::oneshot(piece)
}

/// The hash by which a save finds out whether the bytes of a stripe have changed, of the hashes of
/// its data pieces.
pub(super) fn fingerprint(hashes: &[u128]) -> u128 {
    let bytes: Vec<u8> = hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect();
    XxHash3_128::oneshot(&bytes)
}

/// The hash of a key.
pub(super) fn hash_key(key: &[u8]) -> u64 {
    XxHash3_64::oneshot(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot of 64 bytes and a head.
    fn sealed(head: Head, piece: &[u8]) -> Vec<u8> {
        let mut slot = vec![0; HEAD_LEN + 64];
        slot[HEAD_LEN..HEAD_LEN + piece.len()].copy_from_slice(piece);
        let hash = hash_piece(&slot[HEAD_LEN..]);
        head.seal(&mut slot, hash);
        slot
    }

    #[test]
    fn any_changed_byte_of_a_slot_is_found() {
        let head = Head { image: 1, save: 2, stripe: 3, place: 4 };
        let mut slot = sealed(head, b"some bytes");
        assert_eq!(&head.piece(&slot).expect("it is right")[..10], b"some bytes");
        for at in 0..slot.len() {
            slot[at] ^= 1;
            assert_eq!(head.piece(&slot), None, "byte {at}");
            slot[at] ^= 1;
        }
        assert_eq!(head.piece(&slot[..10]), None);
    }

    #[test]
    fn a_piece_of_another_save_stripe_or_place_is_not_taken() {
        let head = Head { image: 1, save: 2, stripe: 3, place: 4 };
        let slot = sealed(head, &[7; 64]);
        for other in [
            Head { image: 9, ..head },
            Head { save: 9, ..head },
            Head { stripe: 9, ..head },
            Head { place: 9, ..head },
        ] {
            assert_eq!(other.piece(&slot), None);
        }
    }
}
