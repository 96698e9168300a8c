//! The descriptor of an image: the record of the store that says where its pieces are.
//!
//! Numbers are little-endian words of 8 bytes: format, owner, image, save, length, length of the
//! note, number of pieces, how many may be lost, number of extents of each place, number of
//! stripes; then for each place its member and its extents; for each stripe its slot and the save
//! that wrote it; then the note. A slot has a single number at all places.

use crate::engine::MemberId;

const FORMAT: u64 = 1;

/// Where the pieces of an image are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// The member that saved it, which heals it while it lives.
    pub(super) owner: MemberId,
    /// The image, as the heads of its slots name it.
    pub(super) image: u64,
    /// The save; no other save of the job has its number.
    pub(super) save: u64,
    /// How many bytes the image has.
    pub(super) len: u64,
    /// How many of the places may be lost.
    pub(super) lose: usize,
    /// The holders of the pieces, data first.
    pub(super) places: Vec<Place>,
    pub(super) stripes: Vec<Stripe>,
    /// What the program said about it.
    pub(super) note: Vec<u8>,
}

/// A holder of pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) member: MemberId,
    /// The extents of the holder's arena, in the order of slot numbers.
    pub(super) extents: Vec<u32>,
}

impl Place {
    /// The extents, each with the holder.
    pub(super) fn claims(&self) -> impl Iterator<Item = (MemberId, u32)> + '_ {
        self.extents.iter().map(|extent| (self.member, *extent))
    }
}

/// Where the pieces of a stripe are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stripe {
    pub(super) slot: u32,
    pub(super) save: u64,
}

impl Descriptor {
    /// How many pieces of a stripe are data.
    pub(super) fn data(&self) -> usize {
        self.places.len() - self.lose
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let extents = self.places.first().map_or(0, |place| place.extents.len());
        let mut words = vec![
            FORMAT,
            u64::from(self.owner.0),
            self.image,
            self.save,
            self.len,
            self.note.len() as u64,
            self.places.len() as u64,
            self.lose as u64,
            extents as u64,
            self.stripes.len() as u64,
        ];
        for place in &self.places {
            words.push(u64::from(place.member.0));
            words.extend(place.extents.iter().map(|extent| u64::from(*extent)));
        }
        for stripe in &self.stripes {
            words.extend([u64::from(stripe.slot), stripe.save]);
        }
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(&self.note);
        bytes
    }

    /// The descriptor in the bytes of a record; `None` if they are no descriptor.
    pub(super) fn decode(bytes: &[u8]) -> Option<Descriptor> {
        let mut at = 0;
        let mut word = || -> Option<u64> {
            let bytes = bytes.get(at..at + 8)?;
            at += 8;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        if word()? != FORMAT {
            return None;
        }
        let owner = MemberId(u32::try_from(word()?).ok()?);
        let image = word()?;
        let (save, len, note_len) = (word()?, word()?, word()?);
        let (places_len, lose) = (usize::try_from(word()?).ok()?, usize::try_from(word()?).ok()?);
        let (extents, stripes_len) = (word()?, word()?);
        if places_len == 0 || places_len > 256 || lose >= places_len {
            return None;
        }
        let mut places = Vec::new();
        for _ in 0..places_len {
            let member = MemberId(u32::try_from(word()?).ok()?);
            let mut list = Vec::new();
            for _ in 0..extents {
                list.push(u32::try_from(word()?).ok()?);
            }
            places.push(Place { member, extents: list });
        }
        let mut stripes = Vec::new();
        for _ in 0..stripes_len {
            let slot = u32::try_from(word()?).ok()?;
            if u64::from(slot) / super::options::EXTENT_SLOTS >= extents {
                return None;
            }
            stripes.push(Stripe { slot, save: word()? });
        }
        let note = bytes.get(at..)?.to_vec();
        if note.len() as u64 != note_len {
            return None;
        }
        Some(Descriptor { owner, image, save, len, lose, places, stripes, note })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Descriptor {
        let place = |member| Place { member: MemberId(member), extents: vec![3, member] };
        Descriptor {
            owner: MemberId(2),
            image: 5,
            save: 77,
            len: 1000,
            lose: 1,
            places: (0..3).map(place).collect(),
            stripes: vec![Stripe { slot: 31, save: 5 }, Stripe { slot: 0, save: 77 }],
            note: b"step 9".to_vec(),
        }
    }

    #[test]
    fn a_descriptor_is_read_as_it_was_written() {
        assert_eq!(Descriptor::decode(&example().encode()), Some(example()));
    }

    /// Records come from the memory of others: any bytes give a descriptor or none, never a panic.
    #[test]
    fn damaged_bytes_are_refused_or_read_without_a_panic() {
        let bytes = example().encode();
        for len in 0..bytes.len() {
            assert_eq!(Descriptor::decode(&bytes[..len]), None, "{len} bytes");
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                let _ = Descriptor::decode(&damaged);
            }
        }
    }
}
