//! A member's part of a snapshot: the file format, written and read as a stream. `docs/snapshot.md`
//! has it byte by byte.
//!
//! A file is a header, records, and an end. Each of them has its own checksum, so that damage is
//! located. The end has the number of records, so that a file that was cut off is not taken for a
//! whole file. All numbers are little-endian.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

/// The first bytes of every file.
const MAGIC: [u8; 8] = *b"OUTLAST\x1a";
/// The version of the format that this library writes, and the newest that it reads.
pub const FORMAT: u32 = 1;
const HEADER_LEN: usize = 64;
const RECORD_HEADER_LEN: usize = 32;
const KIND_RECORD: u32 = 0x5243_4552;
const KIND_END: u32 = 0x2144_4e45;
/// The longest key that a reader accepts; the store has no longer keys.
const KEY_LEN_MAX: u64 = 1024;
/// The longest value that a reader accepts.
const VALUE_LEN_MAX: u64 = 4 << 30;
/// The most bytes of a value that are read at once: a wrong length must not make the reader reserve
/// all memory.
const PIECE: usize = 1 << 20;

/// The header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The generation to which the part belongs.
    pub generation: u64,
    /// The member that wrote the part.
    pub member: u32,
    /// How many members the job had.
    pub members: u32,
    /// How many replicas each value had.
    pub replicas: u32,
    /// When the snapshot was taken, in seconds since 1970.
    pub taken_at: u64,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The member that owned the key.
    pub owner: u32,
    /// The counter of the value's version.
    pub version: u64,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// The operating system could not read or write the file.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is no part of a snapshot.
    #[error("it is no part of a snapshot")]
    Foreign,
    /// A newer version of this library wrote the file.
    #[error(
        "it has format {0}, and this version reads up to {FORMAT}: restore it with a newer version"
    )]
    Newer(u32),
    /// A checksum or a length is wrong.
    #[error("it is damaged at byte {at}: {what}")]
    Damaged {
        /// The offset of the damage.
        at: u64,
        /// The damaged content.
        what: &'static str,
    },
    /// The file ends too early.
    #[error("it ends at byte {at}, in the middle: it was cut off")]
    CutOff {
        /// The length of the file.
        at: u64,
    },
}

/// The totals of a file, known when its end is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// How many records the file has.
    pub records: u64,
    /// The length of the file.
    pub bytes: u64,
    /// The checksum of all records' checksums, in their order.
    pub checksum: u32,
}

/// Writes a member's part.
pub struct Writer {
    file: BufWriter<File>,
    totals: Totals,
    chain: crc32fast::Hasher,
}

impl Writer {
    /// Makes the file, readable by its owner alone. The file must not exist.
    pub fn create(path: &Path, header: &Header) -> io::Result<Writer> {
        use std::os::unix::fs::OpenOptionsExt;
        let file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        let mut writer = Writer {
            file: BufWriter::with_capacity(PIECE, file),
            totals: Totals::default(),
            chain: crc32fast::Hasher::new(),
        };
        writer.write(&header.encode())?;
        Ok(writer)
    }

    /// Appends a record.
    pub fn add(&mut self, key: &[u8], value: &[u8], owner: u32, version: u64) -> io::Result<()> {
        let mut header = [0; RECORD_HEADER_LEN];
        header[..4].copy_from_slice(&KIND_RECORD.to_le_bytes());
        header[4..8].copy_from_slice(&owner.to_le_bytes());
        header[8..12].copy_from_slice(&(key.len() as u32).to_le_bytes());
        header[12..20].copy_from_slice(&(value.len() as u64).to_le_bytes());
        header[20..28].copy_from_slice(&version.to_le_bytes());
        let own = crc32fast::hash(&header[..28]);
        header[28..].copy_from_slice(&own.to_le_bytes());
        let mut content = crc32fast::Hasher::new_with_initial(own);
        content.update(key);
        content.update(value);
        let content = content.finalize().to_le_bytes();
        self.write(&header)?;
        self.write(key)?;
        self.write(value)?;
        self.write(&content)?;
        self.chain.update(&content);
        self.totals.records += 1;
        Ok(())
    }

    /// The number of bytes that were written so far.
    pub fn bytes(&self) -> u64 {
        self.totals.bytes
    }

    /// Writes the end, and waits until the file is on the disk.
    pub fn finish(mut self) -> io::Result<Totals> {
        let checksum = self.chain.clone().finalize();
        self.write(&encode_end(self.totals.records, checksum))?;
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        Ok(Totals { checksum, ..self.totals })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.totals.bytes += bytes.len() as u64;
        Ok(())
    }
}

fn encode_end(records: u64, checksum: u32) -> [u8; RECORD_HEADER_LEN] {
    let mut end = [0; RECORD_HEADER_LEN];
    end[..4].copy_from_slice(&KIND_END.to_le_bytes());
    end[8..12].copy_from_slice(&checksum.to_le_bytes());
    end[12..20].copy_from_slice(&records.to_le_bytes());
    let own = crc32fast::hash(&end[..28]);
    end[28..].copy_from_slice(&own.to_le_bytes());
    end
}

impl Header {
    fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.member.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.members.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.replicas.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.generation.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.taken_at.to_le_bytes());
        let own = crc32fast::hash(&bytes[..60]);
        bytes[60..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Header, Damage> {
        if bytes[..8] != MAGIC {
            return Err(Damage::Foreign);
        }
        // Checked before the checksum, which may be at another offset in a newer format.
        let format = word32(bytes, 8);
        if format > FORMAT {
            return Err(Damage::Newer(format));
        }
        if word32(bytes, 60) != crc32fast::hash(&bytes[..60]) || format == 0 {
            return Err(Damage::Damaged { at: 0, what: "the header" });
        }
        Ok(Header {
            member: word32(bytes, 12),
            members: word32(bytes, 16),
            replicas: word32(bytes, 20),
            generation: word64(bytes, 24),
            taken_at: word64(bytes, 32),
        })
    }
}

fn word32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// The header of a record.
struct RecordHeader {
    key_len: u64,
    value_len: u64,
    owner: u32,
    version: u64,
    checksum: u32,
}

/// Reads a member's part record by record. A record is checked before it is returned.
pub struct Reader<R = BufReader<File>> {
    source: R,
    header: Header,
    totals: Totals,
    chain: crc32fast::Hasher,
}

impl Reader {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Reader, Damage> {
        Reader::new(BufReader::with_capacity(PIECE, open_regular(path)?))
    }
}

/// Opens a file for reading. An error if it is not a regular file: to open a named pipe would wait
/// for a writer.
pub(super) fn open_regular(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Reads the header from a source of bytes.
    pub fn new(mut source: R) -> Result<Reader<R>, Damage> {
        let mut bytes = [0; HEADER_LEN];
        let read = read_up_to(&mut source, &mut bytes)?;
        if read < HEADER_LEN {
            // With the right first bytes it is a part that was cut off inside the header.
            let is_ours = read >= MAGIC.len() && bytes[..8] == MAGIC;
            return Err(if is_ours { Damage::CutOff { at: read as u64 } } else { Damage::Foreign });
        }
        let header = Header::decode(&bytes)?;
        let totals = Totals { bytes: HEADER_LEN as u64, ..Totals::default() };
        Ok(Reader { source, header, totals, chain: crc32fast::Hasher::new() })
    }

    /// The header of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the next record, or the totals at the end of the file.
    pub fn next_record(&mut self) -> Result<Result<Record, Totals>, Damage> {
        let at = self.totals.bytes;
        let header = match self.next_header()? {
            Ok(header) => header,
            Err(totals) => return Ok(Err(totals)),
        };
        let key = self.take(header.key_len)?;
        let value = self.take(header.value_len)?;
        let mut wanted = [0; 4];
        self.fill(&mut wanted)?;
        let mut content = crc32fast::Hasher::new_with_initial(header.checksum);
        content.update(&key);
        content.update(&value);
        if content.finalize().to_le_bytes() != wanted {
            return Err(Damage::Damaged { at, what: "a key or its value" });
        }
        self.chain.update(&wanted);
        self.totals.records += 1;
        Ok(Ok(Record { key, value, owner: header.owner, version: header.version }))
    }

    /// Skips the next record. Its key and value are neither read nor checked, but its checksum
    /// counts for the totals at the end of the file.
    pub fn skip_record(&mut self) -> Result<Result<(), Totals>, Damage> {
        let header = match self.next_header()? {
            Ok(header) => header,
            Err(totals) => return Ok(Err(totals)),
        };
        // The limits of both lengths keep the sum far below the largest `i64`.
        let len = (header.key_len + header.value_len) as i64;
        // This may seek beyond the end of the file; then the checksum cannot be read.
        self.source.seek_relative(len)?;
        self.totals.bytes += len as u64;
        let mut wanted = [0; 4];
        self.fill(&mut wanted)?;
        self.chain.update(&wanted);
        self.totals.records += 1;
        Ok(Ok(()))
    }

    fn next_header(&mut self) -> Result<Result<RecordHeader, Totals>, Damage> {
        let at = self.totals.bytes;
        let mut header = [0; RECORD_HEADER_LEN];
        self.fill(&mut header)?;
        let checksum = word32(&header, 28);
        if checksum != crc32fast::hash(&header[..28]) {
            return Err(Damage::Damaged { at, what: "the header of a record" });
        }
        match word32(&header, 0) {
            KIND_END => {
                let checksum = self.chain.clone().finalize();
                if (word64(&header, 12), word32(&header, 8)) != (self.totals.records, checksum) {
                    return Err(Damage::Damaged { at, what: "records are missing" });
                }
                if read_up_to(&mut self.source, &mut [0])? != 0 {
                    return Err(Damage::Damaged {
                        at: self.totals.bytes,
                        what: "more after the end",
                    });
                }
                Ok(Err(Totals { checksum, ..self.totals }))
            }
            KIND_RECORD => {
                let key_len = u64::from(word32(&header, 8));
                if key_len > KEY_LEN_MAX {
                    return Err(Damage::Damaged { at, what: "the length of a key" });
                }
                let value_len = word64(&header, 12);
                if value_len > VALUE_LEN_MAX {
                    return Err(Damage::Damaged { at, what: "the length of a value" });
                }
                Ok(Ok(RecordHeader {
                    key_len,
                    value_len,
                    owner: word32(&header, 4),
                    version: word64(&header, 20),
                    checksum,
                }))
            }
            _ => Err(Damage::Damaged { at, what: "the kind of a record" }),
        }
    }

    fn take(&mut self, len: u64) -> Result<Vec<u8>, Damage> {
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < len {
            let piece = (len - bytes.len() as u64).min(PIECE as u64) as usize;
            let begin = bytes.len();
            bytes.resize(begin + piece, 0);
            self.fill(&mut bytes[begin..])?;
        }
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Damage> {
        let read = read_up_to(&mut self.source, bytes)?;
        self.totals.bytes += read as u64;
        if read < bytes.len() { Err(Damage::CutOff { at: self.totals.bytes }) } else { Ok(()) }
    }
}

/// Fills the bytes until they are full or the source ends. Returns how many bytes were read.
fn read_up_to(source: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match source.read(&mut bytes[done..]) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header =
        Header { generation: 7, member: 2, members: 5, replicas: 3, taken_at: 1_800_000_000 };

    fn sample() -> (Vec<u8>, Vec<Record>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("part");
        let mut writer = Writer::create(&path, &HEADER).unwrap();
        let records: Vec<Record> = (0..5u64)
            .map(|number| Record {
                key: format!("key/{number}").into_bytes(),
                value: vec![number as u8; number as usize * 1000],
                owner: number as u32,
                version: number + 10,
            })
            .collect();
        for record in &records {
            writer.add(&record.key, &record.value, record.owner, record.version).unwrap();
        }
        let totals = writer.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((totals.records, totals.bytes), (5, bytes.len() as u64));
        (bytes, records)
    }

    fn open(bytes: &[u8]) -> Result<Reader<io::Cursor<&[u8]>>, Damage> {
        Reader::new(io::Cursor::new(bytes))
    }

    fn read(bytes: &[u8]) -> Result<(Vec<Record>, Totals), Damage> {
        let mut records = Vec::new();
        let mut reader = open(bytes)?;
        loop {
            match reader.next_record()? {
                Ok(record) => records.push(record),
                Err(totals) => return Ok((records, totals)),
            }
        }
    }

    fn pass_over(bytes: &[u8]) -> Result<Totals, Damage> {
        let mut reader = open(bytes)?;
        loop {
            if let Err(totals) = reader.skip_record()? {
                return Ok(totals);
            }
        }
    }

    #[test]
    fn a_part_is_read_as_it_was_written() {
        let (bytes, records) = sample();
        let (found, totals) = read(&bytes).unwrap();
        assert_eq!((found, totals.records, totals.bytes), (records, 5, bytes.len() as u64));
        assert_eq!(*open(&bytes).unwrap().header(), HEADER);
        assert_eq!(pass_over(&bytes).unwrap(), totals);
    }

    #[test]
    fn a_file_that_was_cut_off_anywhere_is_refused() {
        let (bytes, _) = sample();
        for len in 0..bytes.len() {
            match read(&bytes[..len]) {
                Err(Damage::CutOff { at }) => assert_eq!(at, len as u64),
                Err(Damage::Foreign) => assert!(len < 8),
                other => panic!("{len}: {other:?}"),
            }
            assert!(pass_over(&bytes[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found() {
        let (bytes, _) = sample();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            assert!(read(&damaged).is_err(), "byte {at}");
        }
    }

    /// A forged file has right checksums, too: an impossible length must not fill the memory.
    #[test]
    fn an_impossible_length_of_a_value_is_refused() {
        for len in [VALUE_LEN_MAX + 1, 1 << 40, u64::MAX] {
            let (mut bytes, _) = sample();
            bytes.truncate(HEADER_LEN + RECORD_HEADER_LEN);
            bytes[HEADER_LEN + 12..HEADER_LEN + 20].copy_from_slice(&len.to_le_bytes());
            let own = crc32fast::hash(&bytes[HEADER_LEN..HEADER_LEN + 28]);
            bytes[HEADER_LEN + 28..].copy_from_slice(&own.to_le_bytes());
            // A sparse file can have any length.
            bytes.resize(1 << 24, 0);
            let mut reader = open(&bytes).unwrap();
            assert!(matches!(
                reader.next_record(),
                Err(Damage::Damaged { what: "the length of a value", .. })
            ));
        }
    }

    #[test]
    fn foreign_and_newer_files_are_told_apart() {
        assert!(matches!(open(&[7; 200]), Err(Damage::Foreign)));
        assert!(matches!(open(&[]), Err(Damage::Foreign)));
        let (mut bytes, _) = sample();
        bytes[8] = 9;
        assert!(matches!(open(&bytes), Err(Damage::Newer(9))));
    }

    /// Records that were removed or swapped have right checksums of their own.
    #[test]
    fn missing_records_and_bytes_after_the_end_are_found() {
        let (bytes, _) = sample();
        let record = RECORD_HEADER_LEN + 5 + 4;
        let without = [&bytes[..HEADER_LEN], &bytes[HEADER_LEN + record..]].concat();
        assert!(matches!(read(&without), Err(Damage::Damaged { what: "records are missing", .. })));
        let longer = [&bytes[..], b"x"].concat();
        assert!(matches!(read(&longer), Err(Damage::Damaged { what: "more after the end", .. })));
    }
}
