//! Loading an image: any n − m pieces of each stripe give its bytes.
//!
//! A reader takes the descriptor, gets the data pieces, and parity pieces where data is missing.
//! A piece that is not as the descriptor says counts as missing. If too many are missing, the
//! descriptor may have been replaced meanwhile: the reader begins again if the record has changed,
//! and only otherwise is the image lost. A reader changes nothing, so its death leaves nothing.

use super::code;
use super::descriptor::Descriptor;
use super::stripe::Head;
use super::{ImageError, ImageResult, Inner};
use crate::engine::deadline::{self, slack};
use crate::engine::{self, Done, Epoch, Error, MemberId, Operation, Pending, Time};
use crate::store::Version;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

/// An image that was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub(super) note: Vec<u8>,
    pub(super) bytes: Vec<u8>,
    pub(super) owner: MemberId,
}

impl Image {
    /// The note that it was saved with.
    pub fn note(&self) -> &[u8] {
        &self.note
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes without copying them again.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The member that saved it.
    pub fn owner(&self) -> MemberId {
        self.owner
    }
}

/// Why stripes cannot be read.
#[derive(Debug)]
pub(super) enum Unreadable {
    /// Too many pieces are missing.
    Missing,
    /// Too many pieces are missing, and this living member did not answer.
    Unanswered(Error),
    /// This member cannot go on.
    Failed(Error),
}

/// How many stripes are read and decoded at once.
const CHUNK: usize = 32;

impl Inner {
    /// Loads an image, or a range of it.
    pub(super) fn load_image(
        &self,
        key: &[u8],
        name: &str,
        range: Option<Range<u64>>,
    ) -> ImageResult<Image> {
        let _call = self.call();
        let is_over = || self.job.now() >= self.job.deadline();
        let mut before: Option<Version> = None;
        loop {
            let Some(value) = self.store.get(key)? else {
                return Err(ImageError::Absent { name: name.to_string() });
            };
            let Some(descriptor) = Descriptor::decode(value.bytes()) else {
                return Err(ImageError::DataLost { name: name.to_string() });
            };
            let whole = 0..descriptor.len;
            let range = range.clone().unwrap_or(whole.clone());
            if range.end > whole.end || range.start > range.end {
                let reason =
                    format!("the bytes {range:?} of the image `{name}`, which has {}", whole.end);
                return Err(ImageError::Invalid { reason });
            }
            match self.read_range(&descriptor, range) {
                Ok(bytes) => {
                    let Descriptor { note, owner, .. } = descriptor;
                    return Ok(Image { note, bytes, owner });
                }
                Err(Unreadable::Failed(error)) => return Err(error.into()),
                // The record was read again, and is the same: the pieces are gone.
                Err(Unreadable::Missing) if before == Some(value.version()) => {
                    return Err(ImageError::DataLost { name: name.to_string() });
                }
                Err(Unreadable::Unanswered(error))
                    if before == Some(value.version()) || is_over() =>
                {
                    return Err(error.into());
                }
                Err(_) if is_over() => {
                    let limit = self.job.time_limit();
                    return Err(ImageError::Timeout { member: descriptor.owner, limit });
                }
                Err(_) => before = Some(value.version()),
            }
        }
    }

    fn read_range(
        &self,
        descriptor: &Descriptor,
        range: Range<u64>,
    ) -> Result<Vec<u8>, Unreadable> {
        let piece_len = self.options.piece_len;
        let stripe_len = (descriptor.data() * piece_len) as u64;
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        let mut silent = HashSet::new();
        let end = range.end.div_ceil(stripe_len) as usize;
        let begin = (range.start / stripe_len) as usize;
        let mut first = begin;
        if range.is_empty() {
            return Ok(bytes);
        }
        while first < end {
            if first != begin {
                // The members that it needs have answered. The time limit is counted anew, since an
                // image may be long.
                deadline::restart();
            }
            let chunk = first..end.min(first + CHUNK);
            let until = self.job.deadline();
            let stripes = self.read_stripes(descriptor, chunk.clone(), &mut silent, until)?;
            for (stripe, pieces) in chunk.clone().zip(stripes) {
                for (index, piece) in pieces.iter().enumerate() {
                    let at = stripe as u64 * stripe_len + (index * piece_len) as u64;
                    let from = range.start.clamp(at, at + piece_len as u64) - at;
                    let to = range.end.clamp(at, at + piece_len as u64) - at;
                    bytes.extend_from_slice(&piece[from as usize..to as usize]);
                }
            }
            first = chunk.end;
        }
        Ok(bytes)
    }

    /// The data pieces of some stripes. `silent` has the places that did not answer in time. It
    /// waits for members until `until` at most.
    ///
    /// Parity places are asked one after the other, as many as are needed, while all places answer.
    /// When a place is silent for the slack of a call, all parity places are asked at once.
    pub(super) fn read_stripes(
        &self,
        descriptor: &Descriptor,
        stripes: Range<usize>,
        silent: &mut HashSet<usize>,
        until: Time,
    ) -> Result<Vec<Vec<Vec<u8>>>, Unreadable> {
        let (set, data) = (descriptor.places.len(), descriptor.data());
        let limit = self.job.time_limit();
        // The pieces by place and stripe.
        let mut pieces: Vec<Vec<Option<Vec<u8>>>> = vec![vec![None; stripes.len()]; set];
        // Places that were silent are asked again only if the others do not suffice.
        let mut order: Vec<usize> = (0..set).collect();
        order.sort_by_key(|place| silent.contains(place));
        let answering = set - silent.len();
        let mut gets: Gets = Vec::new();
        let mut asked = 0;
        loop {
            let end = match asked {
                0 if answering == set => data,
                0 if answering >= data => answering,
                0 => set,
                _ if !gets.is_empty() || asked >= answering => set,
                _ => asked + 1,
            };
            for &place in &order[asked..end] {
                for stripe in stripes.clone() {
                    if is_short(&pieces, stripe - stripes.start, data) {
                        gets.extend(self.start_get_of_piece(descriptor, place, stripe));
                    }
                }
            }
            asked = end;
            let patience = self.job.now().after(slack(limit));
            let until = if asked == set { until } else { until.min(patience) };
            self.get_pieces(descriptor, &mut gets, &stripes, &mut pieces, until)?;
            if (0..stripes.len()).all(|index| !is_short(&pieces, index, data)) {
                break;
            }
            let left = gets.iter().map(|((place, _), _)| *place);
            if asked == set {
                *silent = left.collect();
                break;
            }
            silent.extend(left);
        }
        let unanswered = silent.iter().min().map(|place| {
            let member = descriptor.places[*place].member;
            Error::Timeout { member, limit }
        });
        // Stripes that lack equal pieces are decoded together.
        let mut groups: BTreeMap<Vec<bool>, Vec<usize>> = BTreeMap::new();
        for index in 0..stripes.len() {
            let present = pieces.iter().map(|of| of[index].is_some()).collect();
            groups.entry(present).or_default().push(index);
        }
        for (present, group) in groups {
            let missing: Vec<usize> = (0..data).filter(|place| !present[*place]).collect();
            if missing.is_empty() {
                continue;
            }
            let joined = |place: usize| -> Option<Vec<u8>> {
                let of = group.iter().map(|index| pieces[place][*index].as_deref());
                of.collect::<Option<Vec<&[u8]>>>().map(|parts| parts.concat())
            };
            let mut joined: Vec<Option<Vec<u8>>> = (0..set).map(joined).collect();
            if !code::decode(data, descriptor.lose, &mut joined) {
                return Err(unanswered.map_or(Unreadable::Missing, Unreadable::Unanswered));
            }
            for place in missing {
                let whole = joined[place].as_deref().unwrap_or_default();
                for (index, piece) in group.iter().zip(whole.chunks(self.options.piece_len)) {
                    pieces[place][*index] = Some(piece.to_vec());
                }
            }
        }
        let piece = |place: &mut Vec<Option<Vec<u8>>>, index: usize| {
            place[index].take().ok_or(Unreadable::Missing)
        };
        (0..stripes.len())
            .map(|index| pieces[..data].iter_mut().map(|place| piece(place, index)).collect())
            .collect()
    }

    /// Begins to get a piece; `None` if the descriptor names no slot for it.
    fn start_get_of_piece(
        &self,
        descriptor: &Descriptor,
        place: usize,
        stripe: usize,
    ) -> Option<((usize, usize), Pending)> {
        let holder = &descriptor.places[place];
        let at = descriptor.stripes.get(stripe)?;
        let offset = self.slot_offset(holder.member, &holder.extents, at.slot)?;
        let get = Operation::Get { offset, len: self.options.slot_len() as usize };
        Some(((place, stripe), self.job.start(Epoch::ANY, holder.member, get)))
    }

    /// Waits for pieces, and keeps those that are as the descriptor says: until all gets are
    /// answered, each stripe has enough pieces, or the time is over. What is left in `gets` was not
    /// answered.
    fn get_pieces(
        &self,
        descriptor: &Descriptor,
        gets: &mut Gets,
        stripes: &Range<usize>,
        pieces: &mut [Vec<Option<Vec<u8>>>],
        until: Time,
    ) -> Result<(), Unreadable> {
        let data = descriptor.data();
        let mut failed = None;
        loop {
            let bell = self.job.bell();
            let mut keep =
                |(place, stripe): (usize, usize), result: engine::Result<Done>| match result {
                    Ok(Done::Get(bytes)) => {
                        let save = descriptor.stripes[stripe].save;
                        let (stripe_number, place_number) = (stripe as u32, place as u32);
                        let image = descriptor.image;
                        let head = Head { image, save, stripe: stripe_number, place: place_number };
                        let piece = head.piece(&bytes).map(<[u8]>::to_vec);
                        pieces[place][stripe - stripes.start] = piece;
                    }
                    Err(error @ (Error::Ended | Error::Unsupported { .. })) => failed = Some(error),
                    Ok(_) | Err(_) => {}
                };
            let mut left = Vec::new();
            for (what, mut get) in gets.drain(..) {
                match self.job.poll(&mut get) {
                    Some(result) => keep(what, result),
                    None => left.push((what, get)),
                }
            }
            *gets = left;
            if let Some(error) = failed.take() {
                return Err(Unreadable::Failed(error));
            }
            let is_enough = || (0..stripes.len()).all(|index| !is_short(pieces, index, data));
            // The activity that heals needs no piece any more when the images are closed.
            let is_needless = || deadline::is_background() && self.check_open().is_err();
            let is_over = self.job.now() >= until || self.job.has_ended() || is_needless();
            if gets.is_empty() || is_over || is_enough() {
                return Ok(());
            }
            self.job.park(bell, until);
        }
    }
}

/// Gets of pieces that are under way, by place and stripe.
type Gets = Vec<((usize, usize), Pending)>;

/// Whether a stripe lacks pieces to be decoded. `pieces` has them by place and stripe.
fn is_short(pieces: &[Vec<Option<Vec<u8>>>], index: usize, data: usize) -> bool {
    pieces.iter().filter(|of| of[index].is_some()).count() < data
}
