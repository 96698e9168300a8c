//! The erasure code: from k data pieces m parity pieces, and from any k of these k + m pieces the
//! data again.
//!
//! A single parity piece is the exclusive or of the data. Several are a Reed-Solomon code of
//! `reed-solomon-simd`, which encodes at more than half the speed of memcpy. Its decoder has a high
//! price for each call, so [`decode`] takes pieces of many stripes at once.

use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};

/// Computes parity pieces, for many stripes of equal shape.
pub(super) struct Encoder {
    data: usize,
    parity: usize,
    several: Option<ReedSolomonEncoder>,
    /// The parity piece, if there is a single one.
    sum: Vec<u8>,
}

impl Encoder {
    pub(super) fn new(data: usize, parity: usize, piece_len: usize) -> Encoder {
        let several = (parity > 1).then(|| {
            ReedSolomonEncoder::new(data, parity, piece_len).expect("options are checked at open")
        });
        let sum = vec![0; if several.is_none() { piece_len } else { 0 }];
        Encoder { data, parity, several, sum }
    }

    /// Calls `take` with the number and the bytes of each parity piece of these data pieces.
    pub(super) fn encode<'a>(
        &mut self,
        pieces: impl Iterator<Item = &'a [u8]>,
        mut take: impl FnMut(usize, &[u8]),
    ) {
        let Some(encoder) = &mut self.several else {
            if self.parity == 1 {
                self.sum.fill(0);
                pieces.for_each(|piece| add(&mut self.sum, piece));
                take(0, &self.sum);
            }
            return;
        };
        for piece in pieces {
            encoder.add_original_shard(piece).expect("a piece of equal length");
        }
        let result = encoder.encode().expect("all data pieces were added");
        (0..self.parity).for_each(|index| {
            take(index, result.recovery(index).expect("a parity piece for each number"));
        });
    }

    /// How many data pieces a stripe has.
    pub(super) fn data(&self) -> usize {
        self.data
    }
}

/// The missing piece of a stripe with so many data pieces and a single parity piece, from all
/// others; `None` if there are fewer.
pub(super) fn missing_piece<'a>(
    data: usize,
    mut others: impl Iterator<Item = &'a [u8]>,
) -> Option<Vec<u8>> {
    let mut sum = others.next()?.to_vec();
    let mut count = 1;
    for piece in others {
        add(&mut sum, piece);
        count += 1;
    }
    (count >= data).then_some(sum)
}

/// Restores the missing data pieces of a code with `data` and `parity` pieces. `pieces` has the
/// bytes of each piece, data first, or `None` if it is missing; all have equal lengths, and may be
/// the pieces of many stripes one after the other. Returns `false` if too many are missing.
pub(super) fn decode(data: usize, parity: usize, pieces: &mut [Option<Vec<u8>>]) -> bool {
    if pieces[..data].iter().all(Option::is_some) {
        return true;
    }
    let present = pieces.iter().flatten().count();
    let Some(len) = pieces.iter().flatten().map(Vec::len).next() else { return false };
    if present < data {
        return false;
    }
    if parity == 1 {
        let sum = missing_piece(data, pieces.iter().flatten().map(Vec::as_slice));
        let missing = pieces.iter_mut().find(|piece| piece.is_none()).expect("one is missing");
        *missing = sum;
        return missing.is_some();
    }
    let mut decoder = ReedSolomonDecoder::new(data, parity, len).expect("a code that was encoded");
    for (index, piece) in pieces.iter().enumerate() {
        let Some(piece) = piece else { continue };
        match index.checked_sub(data) {
            None => decoder.add_original_shard(index, piece).expect("a new piece"),
            Some(index) => decoder.add_recovery_shard(index, piece).expect("a new piece"),
        }
    }
    let restored = decoder.decode().expect("enough pieces were added");
    for (index, piece) in restored.restored_original_iter() {
        pieces[index] = Some(piece.to_vec());
    }
    true
}

/// Computes the parity pieces of these bytes, stripe by stripe as a save does, into `sums`: for
/// measurements. Bytes at the end that fill no stripe are left out.
pub fn encode_all(data: usize, parity: usize, piece_len: usize, bytes: &[u8], sums: &mut [u8]) {
    let mut encoder = Encoder::new(data, parity, piece_len);
    let stripes = bytes.chunks_exact(data * piece_len);
    for (stripe, sums) in stripes.zip(sums.chunks_exact_mut(parity * piece_len)) {
        encoder.encode(stripe.chunks_exact(piece_len), |index, piece| {
            sums[index * piece_len..][..piece_len].copy_from_slice(piece);
        });
    }
}

/// Adds a piece to a sum, which takes it out again.
pub(super) fn add(sum: &mut [u8], piece: &[u8]) {
    sum.iter_mut().zip(piece).for_each(|(sum, byte)| *sum ^= byte);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripe(data: usize, parity: usize, len: usize) -> Vec<Vec<u8>> {
        let mut pieces: Vec<Vec<u8>> = (0..data)
            .map(|piece| (0..len).map(|at| (piece * 37 + at * 11 + at / 7) as u8).collect())
            .collect();
        let mut all = pieces.clone();
        let mut encoder = Encoder::new(data, parity, len);
        encoder.encode(pieces.iter().map(Vec::as_slice), |_, bytes| all.push(bytes.to_vec()));
        pieces.clear();
        all
    }

    #[test]
    fn the_data_comes_back_from_every_choice_of_lost_pieces() {
        for lose in 1..=3 {
            for set in lose + 1..=12 {
                let whole = stripe(set - lose, lose, 64);
                assert_eq!(whole.len(), set);
                for lost in 0u32..1 << set {
                    if lost.count_ones() as usize > lose {
                        continue;
                    }
                    let piece =
                        |index: usize| (lost >> index & 1 == 0).then(|| whole[index].clone());
                    let mut pieces: Vec<_> = (0..set).map(piece).collect();
                    assert!(decode(set - lose, lose, &mut pieces));
                    for (index, piece) in pieces[..set - lose].iter().enumerate() {
                        assert_eq!(piece.as_ref(), Some(&whole[index]), "{set} {lose} {lost:b}");
                    }
                }
            }
        }
    }

    #[test]
    fn more_losses_than_parity_pieces_are_refused() {
        for lose in 1..=3 {
            let whole = stripe(4, lose, 128);
            let mut pieces: Vec<_> = whole.into_iter().map(Some).collect();
            pieces[..=lose].fill(None);
            assert!(!decode(4, lose, &mut pieces));
        }
    }

    #[test]
    fn pieces_of_many_stripes_are_decoded_at_once() {
        for (data, parity) in [(6, 2), (5, 3), (7, 1), (1, 2)] {
            let stripes = [stripe(data, parity, 192), stripe(data, parity, 192)];
            let joined = |index: usize| [&stripes[0][index][..], &stripes[1][index]].concat();
            let mut pieces: Vec<_> = (0..data + parity).map(|index| Some(joined(index))).collect();
            pieces[..parity].fill(None);
            assert!(decode(data, parity, &mut pieces));
            (0..data).for_each(|index| assert_eq!(pieces[index], Some(joined(index))));
        }
    }
}
