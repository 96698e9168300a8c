//! The bytes of the logs of seats: the journal of a seat, and the record of what it was told.
//!
//! Both begin with a head of four words: the number of the generation, the length of the entries,
//! the last round whose puts are closed, and the mark of an interval that no log covers. The length
//! is put after the bytes, so that no reader sees half an entry. Entries consist of words, and of
//! bytes that are filled up to words. A reader gets them from the memory of another member: bytes
//! that are no entries give `None`, never a panic.

/// The length of a head.
pub(super) const HEAD: u64 = 64;
/// Where the generation is in a head.
pub(super) const GENERATION: u64 = 0;
/// Where the length of the entries is in a head.
pub(super) const LENGTH: u64 = 8;
/// Where the last closed round is in a head.
pub(super) const CLOSED: u64 = 16;
/// Where the mark is in a head.
pub(super) const MARK: u64 = 24;

/// What is read of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) generation: u64,
    pub(super) length: u64,
    pub(super) closed: u64,
    pub(super) mark: u64,
}

impl Head {
    /// How many bytes are read of a head.
    pub(super) const LEN: usize = 32;

    pub(super) fn decode(bytes: &[u8; Head::LEN]) -> Head {
        let mut words = Words(bytes);
        let mut next = || words.next().unwrap_or_default();
        Head { generation: next(), length: next(), closed: next(), mark: next() }
    }
}

/// An entry of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// The bytes that a get from another seat returned.
    Get { seat: usize, offset: u64, bytes: Vec<u8> },
    /// What came from outside.
    Remember { bytes: Vec<u8> },
    /// All entries before this one were at the witness before a put of this round was sent.
    Release { round: u64 },
    /// The result of a round of the tree.
    Round { round: u64, flags: u64 },
}

/// A put to another seat, and an entry of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoggedPut {
    /// The number of the round that ends the epoch of the put.
    pub(super) epoch: u64,
    pub(super) target: usize,
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

const GET: u64 = 1;
const REMEMBER: u64 = 2;
const RELEASE: u64 = 3;
const ROUND: u64 = 4;

#[inline]
fn push(log: &mut Vec<u8>, words: &[u64], bytes: &[u8]) {
    log.reserve(words.len() * 8 + bytes.len().next_multiple_of(8));
    words.iter().for_each(|word| log.extend_from_slice(&word.to_le_bytes()));
    log.extend_from_slice(bytes);
    let rest = bytes.len().next_multiple_of(8) - bytes.len();
    log.extend_from_slice(&[0; 8][..rest]);
}

/// Appends an entry to a record.
pub(super) fn note(log: &mut Vec<u8>, entry: &Entry) {
    match entry {
        Entry::Get { seat, offset, bytes } => note_get(log, *seat, *offset, bytes),
        Entry::Remember { bytes } => push(log, &[REMEMBER, bytes.len() as u64], bytes),
        Entry::Release { round } => push(log, &[RELEASE, *round], &[]),
        Entry::Round { round, flags } => push(log, &[ROUND, *round, *flags], &[]),
    }
}

/// Appends a get to a record.
pub(super) fn note_get(log: &mut Vec<u8>, seat: usize, offset: u64, bytes: &[u8]) {
    push(log, &[GET, seat as u64, offset, bytes.len() as u64], bytes);
}

/// Appends a put to a journal.
#[inline]
pub(super) fn journal(log: &mut Vec<u8>, epoch: u64, target: usize, offset: u64, bytes: &[u8]) {
    push(log, &[epoch, target as u64, offset, bytes.len() as u64], bytes);
}

/// The targets, offsets and bytes of the puts of a journal that this seat has written itself.
pub(super) fn own_puts(log: &[u8]) -> impl Iterator<Item = (usize, u64, &[u8])> {
    let mut words = Words(log);
    std::iter::from_fn(move || {
        let _epoch = words.next()?;
        Some((words.next()? as usize, words.next()?, words.slice()?))
    })
}

/// The entries of a record; `None` if the bytes are no record.
pub(super) fn entries(log: &[u8]) -> Option<Vec<Entry>> {
    let mut words = Words(log);
    let mut entries = Vec::new();
    while !words.0.is_empty() {
        entries.push(match words.next()? {
            GET => {
                let seat = usize::try_from(words.next()?).ok()?;
                Entry::Get { seat, offset: words.next()?, bytes: words.bytes()? }
            }
            REMEMBER => Entry::Remember { bytes: words.bytes()? },
            RELEASE => Entry::Release { round: words.next()? },
            ROUND => Entry::Round { round: words.next()?, flags: words.next()? },
            _ => return None,
        });
    }
    Some(entries)
}

/// The puts of a journal; `None` if the bytes are no journal.
pub(super) fn puts(log: &[u8]) -> Option<Vec<LoggedPut>> {
    let mut words = Words(log);
    let mut puts = Vec::new();
    while !words.0.is_empty() {
        let epoch = words.next()?;
        let target = usize::try_from(words.next()?).ok()?;
        puts.push(LoggedPut { epoch, target, offset: words.next()?, bytes: words.bytes()? });
    }
    Some(puts)
}

/// Bytes that are read word by word.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn next(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        self.slice().map(<[u8]>::to_vec)
    }
}

impl<'a> Words<'a> {
    /// A length, so many bytes, and what fills them up.
    fn slice(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.next()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(len.checked_next_multiple_of(8)?)?;
        self.0 = rest;
        Some(&bytes[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_they_were_noted() {
        let all = vec![
            Entry::Get { seat: 3, offset: 17, bytes: vec![1, 2, 3] },
            Entry::Remember { bytes: Vec::new() },
            Entry::Release { round: 9 },
            Entry::Round { round: 9, flags: 5 },
        ];
        let mut log = Vec::new();
        all.iter().for_each(|entry| note(&mut log, entry));
        assert_eq!(entries(&log), Some(all));
        let mut log = Vec::new();
        journal(&mut log, 4, 2, 8, &[7; 9]);
        journal(&mut log, 5, 3, 0, &[]);
        let put = LoggedPut { epoch: 4, target: 2, offset: 8, bytes: vec![7; 9] };
        let empty = LoggedPut { epoch: 5, target: 3, offset: 0, bytes: Vec::new() };
        assert_eq!(puts(&log), Some(vec![put, empty]));
        let own: Vec<(usize, u64, &[u8])> = own_puts(&log).collect();
        assert_eq!(own, [(2, 8, &[7; 9][..]), (3, 0, &[][..])]);
    }

    /// The bytes come from the memory of another member.
    #[test]
    fn damaged_logs_are_refused_or_read_and_never_a_panic() {
        let mut log = Vec::new();
        note(&mut log, &Entry::Get { seat: 1, offset: 0, bytes: vec![5; 20] });
        note(&mut log, &Entry::Round { round: 1, flags: 3 });
        for len in 0..log.len() {
            let _ = (entries(&log[..len]), puts(&log[..len]));
        }
        assert_eq!(entries(&log[..log.len() - 1]), None);
        for at in 0..log.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = log.clone();
                damaged[at] = value;
                let _ = (entries(&damaged), puts(&damaged));
            }
        }
        let endless = [1u64, 0, 0, u64::MAX].map(u64::to_le_bytes).concat();
        assert_eq!((entries(&endless), puts(&endless)), (None, None));
    }
}
