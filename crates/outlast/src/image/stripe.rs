//! A slot: a head and a piece of a stripe, as they lie in the memory of a holder.
//!
//! | bytes | content |
//! |---|---|
//! | 0 to 7 | the image: a hash of its key |
//! | 8 to 15 | the save that wrote the piece |
//! | 16 to 19 | the stripe |
//! | 20 to 23 | the place in the set |
//! | 24 to 31 | a checksum (xxh3) of the words above and the piece |
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

    fn checksum(&self, piece: &[u8]) -> u64 {
        XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot(&self.words()), piece)
    }

    /// The bytes of a slot with this piece, filled up with zeros to its length.
    pub(super) fn slot(&self, piece: &[u8], piece_len: usize, slot: &mut Vec<u8>) {
        slot.clear();
        slot.resize(HEAD_LEN, 0);
        slot.extend_from_slice(piece);
        slot.resize(HEAD_LEN + piece_len, 0);
        let checksum = self.checksum(&slot[HEAD_LEN..]);
        slot[..24].copy_from_slice(&self.words());
        slot[24..32].copy_from_slice(&checksum.to_le_bytes());
    }

    /// The piece in the bytes of a slot, if the slot holds what this head says, undamaged.
    pub(super) fn piece<'a>(&self, slot: &'a [u8]) -> Option<&'a [u8]> {
        let (head, piece) = slot.split_at_checked(HEAD_LEN)?;
        let is_right = (head[..24] == self.words() || mutant("image-old-piece"))
            && head[24..32] == self.checksum(piece).to_le_bytes()
            && head[32..].iter().all(|byte| *byte == 0);
        is_right.then_some(piece)
    }
}

/// The hash by which a save finds out whether the bytes of a stripe have changed.
pub(super) fn fingerprint(bytes: &[u8]) -> u128 {
    XxHash3_128::oneshot(bytes)
}

/// The hash of a key.
pub(super) fn hash_key(key: &[u8]) -> u64 {
    XxHash3_64::oneshot(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_byte_of_a_slot_is_found() {
        let head = Head { image: 1, save: 2, stripe: 3, place: 4 };
        let mut slot = Vec::new();
        head.slot(b"some bytes", 64, &mut slot);
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
        let mut slot = Vec::new();
        head.slot(&[7; 64], 64, &mut slot);
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
