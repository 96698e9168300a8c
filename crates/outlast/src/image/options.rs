//! How images are kept.

/// The level of the hierarchy at which the pieces of an image are apart. The domain of a member is
/// a path such as `rack3/node17`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Level {
    /// Different members, which may be on a single host.
    Member,
    /// Different innermost domains, such as nodes. Members without a known domain count as domains
    /// of their own.
    Innermost,
    /// Different outermost domains, such as racks.
    Outermost,
    /// Domains that differ within so many parts of their paths; 1 is the outermost.
    Depth(usize),
}

/// The options of [`Images::open`](super::Images::open). They are equal at all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub(super) bytes: u64,
    pub(super) set: usize,
    pub(super) lose: usize,
    pub(super) apart: Level,
    pub(super) is_strict: bool,
    pub(super) piece_len: usize,
    pub(super) room_percent: u32,
}

impl Options {
    /// Images of at most so many bytes of each member: 8 pieces in different innermost domains, any
    /// of which may be lost.
    pub fn new(bytes: u64) -> Options {
        Options {
            bytes,
            set: 8,
            lose: 1,
            apart: Level::Innermost,
            is_strict: false,
            piece_len: 16 << 10,
            room_percent: 50,
        }
    }

    /// Sets how many pieces an image has, 2 to 64. With fewer domains or members there are fewer.
    pub fn set(mut self, set: usize) -> Options {
        self.set = set;
        self
    }

    /// Sets how many of the pieces may be lost, 1 to 3.
    pub fn lose(mut self, lose: usize) -> Options {
        self.lose = lose;
        self
    }

    /// Sets the level at which pieces are apart.
    pub fn apart(mut self, level: Level) -> Options {
        self.apart = level;
        self
    }

    /// Refuses to open where the level has fewer domains than a set has pieces. Without it pieces
    /// are apart at a lower level, and
    /// [`Images::is_apart_as_asked`](super::Images::is_apart_as_asked) says so.
    pub fn strict(mut self) -> Options {
        self.is_strict = true;
        self
    }

    /// Sets the length of a piece, a multiple of 64; 16 KiB by default. A changed byte costs a
    /// piece at each member of the set.
    pub fn piece(mut self, bytes: usize) -> Options {
        self.piece_len = bytes;
        self
    }

    /// Sets how much more memory each member lends than images take while all members live, in
    /// percent; 50 by default. Survivors need it for the pieces of the dead.
    pub fn room(mut self, percent: u32) -> Options {
        self.room_percent = percent;
        self
    }

    /// Why the options are refused, if they are.
    pub(super) fn fault(&self) -> Option<String> {
        let Options { set, lose, piece_len, .. } = *self;
        if self.bytes == 0 || self.bytes > 1 << 40 {
            Some(format!("images of {} bytes; there may be 1 to 2^40", self.bytes))
        } else if !(2..=64).contains(&set) {
            Some(format!("a set of {set} pieces; there may be 2 to 64"))
        } else if !(1..=3).contains(&lose) || lose >= set {
            let what = format!("{lose} of {set} pieces may be lost");
            Some(format!("{what}; it has to be 1 to 3, and fewer than the set has"))
        } else if piece_len == 0 || !piece_len.is_multiple_of(64) || piece_len > 1 << 24 {
            Some(format!("pieces of {piece_len} bytes; a piece has a multiple of 64, up to 2^24"))
        } else if self.room_percent > 10_000 {
            Some(format!("{} percent of room; there may be up to 10000", self.room_percent))
        } else {
            None
        }
    }

    /// How many extents a member lends to the images of owners whose sets have so many members.
    pub(super) fn extents(&self, sets: impl Iterator<Item = usize>) -> u64 {
        let (mut slots, mut owners) = (0, 0);
        for set in sets {
            let data = (set - self.lose.min(set - 1)) as u64 * self.piece_len as u64;
            // The newest image and the next one.
            slots += 2 * self.bytes.div_ceil(data);
            owners += 1;
        }
        let slots = slots + slots * u64::from(self.room_percent) / 100;
        // An image rounds up at each of its holders, and a new image begins in new extents.
        slots.div_ceil(EXTENT_SLOTS) + 2 * owners
    }

    /// The length of a slot: a head and a piece.
    pub(super) fn slot_len(&self) -> u64 {
        super::stripe::HEAD_LEN as u64 + self.piece_len as u64
    }
}

/// How many slots an extent has.
pub(super) const EXTENT_SLOTS: u64 = 16;
