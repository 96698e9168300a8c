//! The ledger of acknowledged writes, kept outside of the store so that it outlives the member.
//!
//! Each actor appends checksummed records of a fixed size to a file of its own, each operation's
//! records with a single `write` call: an *intent* for every key before the operation, an
//! *acknowledgement* (or *failure*) after it and before the next operation. Bytes that the kernel
//! has accepted survive `kill -9` of the process. An operation with an intent and no end is of
//! unknown outcome.
//!
//! ```
//! use outlast_check::history::{Access, Actor, CallKind, Outcome, Value, Version};
//! use outlast_check::ledger;
//!
//! let folder = tempfile::tempdir().unwrap();
//! let mut writer = ledger::Writer::create(folder.path(), Actor::new(0, 0), 42).unwrap();
//! let put = Access::write("a", Value::new(7));
//! writer.intent(10, CallKind::Put, std::slice::from_ref(&put)).unwrap();
//! writer.acknowledge(20, Some(Version::new(1, 0))).unwrap();
//! writer.intent(30, CallKind::Put, std::slice::from_ref(&put)).unwrap();
//! // Here the process is killed.
//!
//! let history = ledger::read_all(folder.path()).unwrap();
//! assert_eq!(history.operations()[0].outcome, Outcome::Ok);
//! assert_eq!(history.operations()[1].outcome, Outcome::Unknown);
//! ```
//!
//! A record is 96 bytes, its numbers little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 0..4 | `OLG1` |
//! | 4 | 0 start, 1 intent, 2 acknowledgement, 3 failure |
//! | 5 | kind of the operation |
//! | 6 | 0 write, 1 delete, 2 add |
//! | 7 | length of the key |
//! | 8..16 | sequence of the operation (start: the seed) |
//! | 16..24 | time in nanoseconds (start: the actor's member and thread) |
//! | 24..32 | identity of the value, or what to add |
//! | 32..44 | version: counter and writer |
//! | 44 | 1 if the version is known |
//! | 45..48 | zero |
//! | 48..88 | the key |
//! | 88..96 | checksum of the actor, the record's position and bytes 0..88 |

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::history::{
    Access, AccessMode, Actor, CallKind, History, HistoryError, KIND_NAMES, Key, Operation,
    Outcome, Value, Version,
};
use crate::value;

/// The length of a record.
pub const RECORD_BYTES: usize = 96;
/// The longest key that a record holds.
pub const KEY_BYTES_MAX: usize = 40;

const MAGIC: [u8; 4] = *b"OLG1";
const CHECKSUM_AT: usize = 88;
const KEY_AT: usize = 48;

const START: u8 = 0;
const INTENT: u8 = 1;
const ACKNOWLEDGED: u8 = 2;
const FAILED: u8 = 3;

const WRITE: u8 = 0;
const DELETE: u8 = 1;
const ADD: u8 = 2;

/// Why a ledger could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The file system refused.
    #[error("ledger {path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// The key does not fit into a record.
    #[error(
        "a key of {length} bytes does not fit into a ledger record; the limit is {KEY_BYTES_MAX}"
    )]
    KeyTooLong {
        /// The length of the key.
        length: usize,
    },
    /// The file does not begin with the start record of a ledger.
    #[error("{path} is not a ledger")]
    NotALedger {
        /// The file.
        path: PathBuf,
    },
    /// A record before the last record is damaged, so the records after it cannot be trusted.
    #[error("ledger {path} is damaged: record {record} at byte {offset}: {reason}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The record, counted from zero.
        record: usize,
        /// Where it starts.
        offset: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The ledgers do not fit together.
    #[error("the ledgers do not fit together: {0}")]
    Merge(#[from] HistoryError),
    /// The ledgers are of runs with different seeds.
    #[error("ledger {path} is of seed {found}, the others are of seed {expected}")]
    OtherSeed {
        /// The file that differs.
        path: PathBuf,
        /// Its seed.
        found: u64,
        /// The seed of the others.
        expected: u64,
    },
}

/// Writes the ledger of an actor.
#[derive(Debug)]
pub struct Writer {
    file: File,
    path: PathBuf,
    actor: Actor,
    position: u64,
    sequence: u64,
    /// Whether the operation in flight has a record: an operation without writes has none.
    has_intent: bool,
}

impl Writer {
    /// Starts the ledger of an actor in this folder; there must be none yet.
    pub fn create(folder: &Path, actor: Actor, seed: u64) -> Result<Self, LedgerError> {
        let path = folder.join(format!("{}-{}.ledger", actor.member, actor.thread));
        let file = OpenOptions::new().append(true).create_new(true).open(&path);
        let file = file.map_err(|source| LedgerError::Io { path: path.clone(), source })?;
        let mut writer = Self { file, path, actor, position: 0, sequence: 0, has_intent: false };
        let mut record = Record::new(START);
        record.set_u64(8, seed);
        record.set_u32(16, actor.member);
        record.set_u32(20, actor.thread);
        writer.append(vec![record])?;
        Ok(writer)
    }

    /// Records the writes of an operation before it is called. Reads are skipped.
    pub fn intent(
        &mut self,
        now_ns: u64,
        kind: CallKind,
        accesses: &[Access],
    ) -> Result<(), LedgerError> {
        let mut records = Vec::new();
        for access in accesses {
            let (change, content) = match (access.mode, access.value) {
                (AccessMode::Ask | AccessMode::Read, _) => continue,
                (AccessMode::Write, Some(value)) => (WRITE, value.identity),
                (AccessMode::Write, None) => (DELETE, 0),
                (AccessMode::Add { delta }, _) => (ADD, delta as u64),
            };
            let key = access.key.bytes();
            if key.len() > KEY_BYTES_MAX {
                return Err(LedgerError::KeyTooLong { length: key.len() });
            }
            let mut record = Record::new(INTENT);
            record.bytes[5] = kind_code(kind);
            record.bytes[6] = change;
            record.bytes[7] = key.len() as u8;
            record.set_u64(8, self.sequence);
            record.set_u64(16, now_ns);
            record.set_u64(24, content);
            record.bytes[KEY_AT..KEY_AT + key.len()].copy_from_slice(key);
            records.push(record);
        }
        self.has_intent = !records.is_empty();
        if self.has_intent { self.append(records) } else { Ok(()) }
    }

    /// Records that the operation was acknowledged, with the version it made if the store returned
    /// it. The version belongs to the last key of the intent.
    pub fn acknowledge(
        &mut self,
        now_ns: u64,
        version: Option<Version>,
    ) -> Result<(), LedgerError> {
        self.end(ACKNOWLEDGED, now_ns, version)
    }

    /// Records that the operation failed in a way that promises that it had no effect.
    pub fn fail(&mut self, now_ns: u64) -> Result<(), LedgerError> {
        self.end(FAILED, now_ns, None)
    }

    /// Goes on to the next operation after an operation of unknown outcome.
    pub fn abandon(&mut self) {
        self.sequence += 1;
        self.has_intent = false;
    }

    fn end(&mut self, tag: u8, now_ns: u64, version: Option<Version>) -> Result<(), LedgerError> {
        let mut record = Record::new(tag);
        record.set_u64(8, self.sequence);
        record.set_u64(16, now_ns);
        if let Some(version) = version {
            record.set_u64(32, version.counter);
            record.set_u32(40, version.writer);
            record.bytes[44] = 1;
        }
        self.sequence += 1;
        if std::mem::take(&mut self.has_intent) { self.append(vec![record]) } else { Ok(()) }
    }

    fn append(&mut self, mut records: Vec<Record>) -> Result<(), LedgerError> {
        let mut bytes = Vec::with_capacity(records.len() * RECORD_BYTES);
        for record in &mut records {
            record.seal(self.actor, self.position);
            self.position += 1;
            bytes.extend_from_slice(&record.bytes);
        }
        // A single write call, which is not repeated for a rest: a record is whole in the file, or
        // its torn tail.
        match self.file.write(&bytes) {
            Ok(written) if written == bytes.len() => Ok(()),
            Ok(_) => {
                let source =
                    io::Error::new(io::ErrorKind::StorageFull, "the record was written in part");
                Err(LedgerError::Io { path: self.path.clone(), source })
            }
            Err(source) => Err(LedgerError::Io { path: self.path.clone(), source }),
        }
    }
}

/// The ledger of an actor, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// The actor and the seed; none if the writer died before it could record them.
    pub origin: Option<(Actor, u64)>,
    /// The operations. Their accesses are their writes.
    pub operations: Vec<Operation>,
    /// How many bytes at the end are not a whole record: the writer died while it wrote.
    pub torn_tail_bytes: usize,
}

/// Reads the ledger of an actor.
pub fn read(path: &Path) -> Result<Ledger, LedgerError> {
    let bytes =
        fs::read(path).map_err(|source| LedgerError::Io { path: path.to_path_buf(), source })?;
    parse(path, &bytes)
}

/// Reads all files `*.ledger` in this folder and merges them into a history of writes.
pub fn read_all(folder: &Path) -> Result<History, LedgerError> {
    let failed = |source| LedgerError::Io { path: folder.to_path_buf(), source };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "ledger") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut operations = Vec::new();
    let mut expected = None;
    for path in paths {
        let ledger = read(&path)?;
        if let Some((_, found)) = ledger.origin {
            let expected = *expected.get_or_insert(found);
            if found != expected {
                return Err(LedgerError::OtherSeed { path, found, expected });
            }
        }
        operations.extend(ledger.operations);
    }
    Ok(History::new(operations)?)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Ledger, LedgerError> {
    let not_a_ledger = || LedgerError::NotALedger { path: path.to_path_buf() };
    let (records, tail) = bytes.as_chunks::<RECORD_BYTES>();
    let mut ledger = Ledger { origin: None, operations: Vec::new(), torn_tail_bytes: tail.len() };
    let Some((&start, records)) = records.split_first() else {
        let known = bytes.len().min(MAGIC.len());
        return if bytes[..known] == MAGIC[..known] { Ok(ledger) } else { Err(not_a_ledger()) };
    };
    let start = Record { bytes: start };
    let actor = Actor::new(start.u32(16), start.u32(20));
    if start.bytes[..4] != MAGIC || start.bytes[4] != START {
        return Err(not_a_ledger());
    }
    let corrupt = |position: usize, reason| LedgerError::Corrupt {
        path: path.to_path_buf(),
        record: position,
        offset: position * RECORD_BYTES,
        reason,
    };
    if !start.sealed(actor, 0) {
        if records.is_empty() && tail.is_empty() {
            ledger.torn_tail_bytes = RECORD_BYTES;
            return Ok(ledger);
        }
        return Err(corrupt(0, "its checksum does not fit"));
    }
    ledger.origin = Some((actor, start.u64(8)));
    for (index, &bytes) in records.iter().enumerate() {
        let position = index + 1;
        let record = Record { bytes };
        if record.bytes[..4] != MAGIC || !record.sealed(actor, position as u64) {
            if position == records.len() && tail.is_empty() {
                ledger.torn_tail_bytes = RECORD_BYTES;
                break;
            }
            return Err(corrupt(position, "its checksum does not fit"));
        }
        add_record(&mut ledger.operations, actor, &record)
            .map_err(|reason| corrupt(position, reason))?;
    }
    Ok(ledger)
}

/// Adds a record to the operations read so far.
fn add_record(
    operations: &mut Vec<Operation>,
    actor: Actor,
    record: &Record,
) -> Result<(), &'static str> {
    let sequence = record.u64(8);
    let now_ns = record.u64(16);
    let last = operations.last_mut();
    let tag = record.bytes[4];
    if tag == INTENT {
        let access = record.access()?;
        let kind = KIND_NAMES
            .get(usize::from(record.bytes[5]))
            .ok_or("its operation is of no known kind")?
            .0;
        match last {
            Some(open) if open.sequence == sequence && open.return_ns.is_none() => {
                open.accesses.push(access)
            }
            Some(ended) if ended.sequence >= sequence => {
                return Err("its sequence is out of order");
            }
            _ => operations.push(Operation {
                actor,
                sequence,
                kind,
                invoke_ns: now_ns,
                return_ns: None,
                outcome: Outcome::Unknown,
                accesses: vec![access],
            }),
        }
        return Ok(());
    }
    if tag != ACKNOWLEDGED && tag != FAILED {
        return Err("its tag is not known");
    }
    let open = last.filter(|open| open.sequence == sequence && open.return_ns.is_none());
    let open = open.ok_or("it ends an operation that did not begin")?;
    open.return_ns = Some(now_ns);
    open.outcome = if tag == ACKNOWLEDGED { Outcome::Ok } else { Outcome::Failed };
    if record.bytes[44] == 1
        && let Some(access) = open.accesses.last_mut()
    {
        access.version = Some(Version::new(record.u64(32), record.u32(40)));
    }
    Ok(())
}

fn kind_code(kind: CallKind) -> u8 {
    KIND_NAMES.iter().position(|(known, _)| *known == kind).unwrap_or(0) as u8
}

/// The bytes of a record.
struct Record {
    bytes: [u8; RECORD_BYTES],
}

impl Record {
    fn new(tag: u8) -> Self {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = tag;
        Self { bytes }
    }

    fn set_u64(&mut self, at: usize, number: u64) {
        self.bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }

    fn set_u32(&mut self, at: usize, number: u32) {
        self.bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|index| self.bytes[at + index]))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|index| self.bytes[at + index]))
    }

    /// The checksum covers actor and position, so that a record of another file, or a moved record,
    /// is detected.
    fn checksum(&self, actor: Actor, position: u64) -> u64 {
        let place = u64::from(actor.member) << 32 | u64::from(actor.thread);
        value::hash(value::scramble(place) ^ position, &self.bytes[..CHECKSUM_AT])
    }

    fn seal(&mut self, actor: Actor, position: u64) {
        self.set_u64(CHECKSUM_AT, self.checksum(actor, position));
    }

    fn sealed(&self, actor: Actor, position: u64) -> bool {
        self.u64(CHECKSUM_AT) == self.checksum(actor, position)
    }

    fn access(&self) -> Result<Access, &'static str> {
        let length = usize::from(self.bytes[7]);
        let key = self.bytes[KEY_AT..CHECKSUM_AT].get(..length).ok_or("its key is too long")?;
        let content = self.u64(24);
        match self.bytes[6] {
            WRITE => Ok(Access::write(Key::from(key), Value::new(content))),
            DELETE => Ok(Access::delete(Key::from(key))),
            ADD => Ok(Access::add(Key::from(key), content as i64)),
            _ => Err("its change is not known"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ledger with a put, a transaction of two keys, a failure and an operation without an end.
    fn sample(folder: &Path) -> (PathBuf, Vec<u8>) {
        let mut writer = Writer::create(folder, Actor::new(3, 1), 42).unwrap();
        let put = [Access::write("a", Value::new(7))];
        let both = [Access::ask("x"), Access::write("a", Value::new(8)), Access::delete("b")];
        writer.intent(10, CallKind::Put, &put).unwrap();
        writer.acknowledge(20, Some(Version::new(1, 3))).unwrap();
        writer.intent(30, CallKind::Transaction, &both).unwrap();
        writer.acknowledge(40, None).unwrap();
        writer.intent(50, CallKind::Add, &[Access::add("n", -2)]).unwrap();
        writer.fail(60).unwrap();
        writer.intent(70, CallKind::Put, &put).unwrap();
        writer.abandon();
        writer.intent(75, CallKind::Get, &[Access::ask("a")]).unwrap();
        writer.acknowledge(76, None).unwrap();
        writer.intent(80, CallKind::Delete, &[Access::delete("a")]).unwrap();
        writer.acknowledge(90, None).unwrap();
        let path = writer.path.clone();
        let bytes = fs::read(&path).unwrap();
        (path, bytes)
    }

    #[test]
    fn written_records_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let (path, bytes) = sample(folder.path());
        let ledger = read(&path).unwrap();
        assert_eq!(bytes.len(), 11 * RECORD_BYTES);
        assert_eq!(ledger.origin, Some((Actor::new(3, 1), 42)));
        assert_eq!(ledger.torn_tail_bytes, 0);
        let lines: Vec<String> = ledger.operations.iter().map(ToString::to_string).collect();
        let expected = [
            "3/1 #0 [10..20] put: write a v1.3 =7 -> ok",
            "3/1 #1 [30..40] transaction: write a =8, delete b -> ok",
            "3/1 #2 [50..60] add: add -2 to n -> failed",
            "3/1 #3 [70..never] put: write a =7 -> unknown",
            "3/1 #5 [80..90] delete: delete a -> ok",
        ];
        assert_eq!(lines, expected);
        assert_eq!(read_all(folder.path()).unwrap().operations().len(), 5);
    }

    #[test]
    fn truncation_at_every_byte_keeps_all_whole_records() {
        let folder = tempfile::tempdir().unwrap();
        let (path, bytes) = sample(folder.path());
        let whole = parse(&path, &bytes).unwrap();
        for length in 0..bytes.len() {
            let ledger = parse(&path, &bytes[..length]).unwrap();
            assert_eq!(ledger.torn_tail_bytes, length % RECORD_BYTES);
            assert!(ledger.operations.len() <= whole.operations.len());
            for (found, full) in ledger.operations.iter().zip(&whole.operations) {
                assert_eq!(found.sequence, full.sequence);
                assert!(found == full || found.outcome == Outcome::Unknown, "{length}: {found}");
            }
            // The acknowledgements are the records 2, 5 and 10.
            let records = length / RECORD_BYTES;
            let acknowledged =
                ledger.operations.iter().filter(|found| found.outcome == Outcome::Ok).count();
            assert_eq!(acknowledged, [2, 5, 10].iter().filter(|&&end| records > end).count());
        }
    }

    #[test]
    fn every_flipped_byte_is_detected_and_located() {
        let folder = tempfile::tempdir().unwrap();
        let (path, bytes) = sample(folder.path());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            match parse(&path, &damaged) {
                Err(LedgerError::Corrupt { record, offset, .. }) => {
                    assert_eq!(
                        (record, offset),
                        (at / RECORD_BYTES, at / RECORD_BYTES * RECORD_BYTES)
                    );
                }
                Err(LedgerError::NotALedger { .. }) => assert!(at < 5),
                Err(other) => panic!("byte {at}: {other}"),
                Ok(ledger) => {
                    assert_eq!(
                        at / RECORD_BYTES,
                        10,
                        "only damage to the last record is a torn tail"
                    );
                    assert_eq!(ledger.torn_tail_bytes, RECORD_BYTES);
                    assert_eq!(ledger.operations[4].outcome, Outcome::Unknown);
                }
            }
        }
    }

    #[test]
    fn moved_dropped_and_foreign_records_are_detected() {
        let folder = tempfile::tempdir().unwrap();
        let (path, bytes) = sample(folder.path());
        let mut dropped = bytes.clone();
        dropped.drain(RECORD_BYTES..2 * RECORD_BYTES);
        assert!(matches!(parse(&path, &dropped), Err(LedgerError::Corrupt { record: 1, .. })));
        let mut doubled = bytes.clone();
        doubled.splice(RECORD_BYTES..RECORD_BYTES, bytes[RECORD_BYTES..2 * RECORD_BYTES].to_vec());
        assert!(matches!(parse(&path, &doubled), Err(LedgerError::Corrupt { record: 2, .. })));
        assert!(matches!(parse(&path, b"hello, world"), Err(LedgerError::NotALedger { .. })));
    }

    #[test]
    fn misuse_is_an_error_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(folder.path(), Actor::new(0, 0), 1).unwrap();
        let error = Writer::create(folder.path(), Actor::new(0, 0), 1).unwrap_err();
        assert!(matches!(error, LedgerError::Io { .. }), "a ledger is never overwritten");
        let long = [Access::write(Key::from(vec![b'k'; 41]), Value::new(1))];
        let error = writer.intent(1, CallKind::Put, &long).unwrap_err();
        assert!(matches!(error, LedgerError::KeyTooLong { length: 41 }));
        let longest = [Access::write(Key::from(vec![b'k'; 40]), Value::new(1))];
        writer.intent(1, CallKind::Put, &longest).unwrap();
        Writer::create(folder.path(), Actor::new(1, 0), 2).unwrap();
        assert!(matches!(
            read_all(folder.path()),
            Err(LedgerError::OtherSeed { found: 2, expected: 1, .. })
        ));
    }

    proptest::proptest! {
        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>, with_start: bool) {
            let mut file = Vec::new();
            if with_start {
                let mut start = Record::new(START);
                start.seal(Actor::new(0, 0), 0);
                file.extend_from_slice(&start.bytes);
            }
            file.extend_from_slice(&bytes);
            let _ = parse(Path::new("random"), &file);
        }
    }
}
