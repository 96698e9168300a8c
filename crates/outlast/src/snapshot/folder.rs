//! A folder of snapshots: generations, each published by a single rename, so that a reader sees a
//! whole generation or none.
//!
//! ```text
//! PATH/generation-000041/member-0000.part ... manifest
//! PATH/generation-000042/...
//! PATH/generation-000043.TOKEN.unfinished/...  being written, or left by members that died
//! ```
//!
//! The steps of the coordinator and the participants, and what the folder holds if all members die
//! after a step:
//!
//! | step | then | left after a death of all |
//! |---|---|---|
//! | make the folder `.unfinished` | no reader opens it | an unfinished folder |
//! | each participant writes its part and syncs it | | an unfinished folder |
//! | write the manifest, sync it and the folder | the generation is whole | an unfinished folder |
//! | rename the folder, sync the parent folder | **published** | the newest generation |
//! | remove the generations that are too old | | generations that are too old |
//!
//! The next snapshot removes unfinished folders and generations that are too old. The token in the
//! name of an unfinished folder is another one in each attempt. So a coordinator that was taken for
//! dead, and wakes up when another one writes, finds its folder gone: it publishes no parts of the
//! other, and no participant of its writes among them.
//!
//! The manifest names the parts with their lengths and checksums. A part or a manifest that does
//! not fit is an error, never read as a shorter snapshot.

use super::file::{Damage, Reader, Totals, open_regular};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

const MANIFEST: &str = "manifest";
const UNFINISHED: &str = ".unfinished";
/// Stands before [`UNFINISHED`] in the name of a folder that is being removed.
const REMOVED: &str = ".removed";
const FIRST_LINE: &str = "outlast snapshot, format 1";
/// The end of the range of generation numbers.
const NUMBERS_END: u64 = 1 << 48;
/// The longest manifest: it has room for a line for each member of the largest job.
const MANIFEST_LEN_MAX: u64 = 1 << 20;

/// A line of the manifest: a part of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The name of the file in the generation's folder.
    pub name: String,
    /// The part's records, length and checksum.
    pub totals: Totals,
}

/// A published snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// The generation's number.
    pub number: u64,
    /// The generation's folder.
    pub path: PathBuf,
}

/// Why a folder or a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The operating system refused an operation.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The folder has no snapshot.
    #[error(
        "{}: there is no snapshot; `outlast snapshot list` shows what is in a folder",
        path.display()
    )]
    None {
        /// The folder.
        path: PathBuf,
    },
    /// A file is damaged.
    #[error("{}: {damage}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        damage: Damage,
    },
    /// The manifest cannot be read, or a part is not the part that it names.
    #[error("{}: {reason}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl FolderError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> FolderError + '_ {
        move |error| FolderError::Io { path: path.into(), error }
    }
}

type Result<T> = std::result::Result<T, FolderError>;

/// The name of a member's part.
pub fn part_name(member: u32) -> String {
    format!("member-{member:04}.part")
}

fn generation_name(number: u64) -> String {
    format!("generation-{number:06}")
}

/// The published generations of a folder, the oldest first.
pub fn list(folder: &Path) -> Result<Vec<Generation>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(FolderError::io(folder))? {
        let entry = entry.map_err(FolderError::io(folder))?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("generation-"));
        let number = number.and_then(|number| number.parse().ok());
        // Only names that this library makes: after a huge number no generation would be newer.
        if let Some(number) = number.filter(|&number| name == generation_name(number).as_str())
            && number < NUMBERS_END
        {
            found.push(Generation { number, path: entry.path() });
        }
    }
    found.sort_unstable_by_key(|generation| generation.number);
    Ok(found)
}

/// The generation that a path means: the path itself, or the newest generation in the folder.
pub fn find(path: &Path) -> Result<PathBuf> {
    if path.join(MANIFEST).is_file() {
        return Ok(path.into());
    }
    let newest = list(path)?.pop();
    newest.map(|newest| newest.path).ok_or_else(|| FolderError::None { path: path.into() })
}

/// A generation that is being written.
#[derive(Debug)]
pub struct Unfinished {
    folder: PathBuf,
    number: u64,
    /// Tells the folders of two attempts at a generation apart.
    token: u64,
}

impl Unfinished {
    /// Makes the folder if it does not exist, private to its owner, removes unfinished generations,
    /// and begins a generation. The coordinator alone calls it.
    pub fn begin(folder: &Path) -> Result<Unfinished> {
        make_private(folder)?;
        for entry in fs::read_dir(folder).map_err(FolderError::io(folder))? {
            let path = entry.map_err(FolderError::io(folder))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with("generation-") && name.ends_with(UNFINISHED) {
                remove_unfinished(&path).map_err(FolderError::io(&path))?;
            }
        }
        let number = list(folder)?.last().map_or(1, |last| last.number + 1);
        let mut unfinished = Unfinished { folder: folder.into(), number, token: new_token() };
        loop {
            match make_new(&unfinished.path()) {
                Ok(()) => return Ok(unfinished),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => unfinished.token += 1,
                Err(error) => return Err(FolderError::io(&unfinished.path())(error)),
            }
        }
    }

    /// The generation that the coordinator has begun with this token, for the participants.
    pub fn at(folder: &Path, number: u64, token: u64) -> Unfinished {
        Unfinished { folder: folder.into(), number, token }
    }

    /// The generation's number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The token of this attempt.
    pub fn token(&self) -> u64 {
        self.token
    }

    fn path(&self) -> PathBuf {
        let (name, token) = (generation_name(self.number), self.token);
        self.folder.join(format!("{name}.{token:016x}{UNFINISHED}"))
    }

    /// The path of a member's part.
    pub fn part(&self, member: u32) -> PathBuf {
        self.path().join(part_name(member))
    }

    /// Publishes the generation, and removes all but the newest `keep`. Returns the path of the
    /// generation.
    pub fn publish(self, parts: &[Part], keep: usize) -> Result<PathBuf> {
        let unfinished = self.path();
        for part in parts {
            let path = unfinished.join(&part.name);
            let found = fs::metadata(&path).map_err(FolderError::io(&path))?.len();
            if found != part.totals.bytes {
                let reason =
                    format!("it has {found} bytes, and its member wrote {}", part.totals.bytes);
                return Err(FolderError::Manifest { path, reason });
            }
        }
        let manifest = unfinished.join(MANIFEST);
        let text = encode_manifest(parts);
        let write = || -> io::Result<()> {
            use std::os::unix::fs::OpenOptionsExt;
            let mut file =
                File::options().write(true).create_new(true).mode(0o600).open(&manifest)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        write().map_err(FolderError::io(&manifest))?;
        sync(&unfinished)?;
        let published = self.folder.join(generation_name(self.number));
        fs::rename(&unfinished, &published).map_err(FolderError::io(&published))?;
        sync(&self.folder)?;
        // The snapshot is taken, whether or not the old ones can be removed.
        if let Err(error) = self.remove_old(keep) {
            tracing::warn!(%error, "an old snapshot was not removed");
        }
        Ok(published)
    }

    fn remove_old(&self, keep: usize) -> Result<()> {
        let all = list(&self.folder)?;
        for old in &all[..all.len().saturating_sub(keep.max(1))] {
            fs::remove_dir_all(&old.path).map_err(FolderError::io(&old.path))?;
        }
        Ok(())
    }

    /// Removes the unfinished generation.
    pub fn discard(self) {
        let _ = fs::remove_dir_all(self.path());
    }
}

/// A number that differs in each attempt, whichever job and member makes it.
fn new_token() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanoseconds = since.map_or(0, |since| since.as_nanos() as u64);
    nanoseconds ^ u64::from(std::process::id()) << 40
}

/// Removes an unfinished folder. Under another name first: its coordinator, should it still live,
/// then publishes all of it or nothing.
fn remove_unfinished(path: &Path) -> io::Result<()> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = name.trim_end_matches(UNFINISHED).trim_end_matches(REMOVED);
    let removed = path.with_file_name(format!("{name}{REMOVED}{UNFINISHED}"));
    match fs::rename(path, &removed) {
        Ok(()) => fs::remove_dir_all(&removed),
        // It was published meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes a folder that is private to its owner, and does not exist yet.
fn make_new(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().mode(0o700).create(folder)
}

/// Makes a folder that is private to its owner, if it does not exist.
pub(super) fn make_private(folder: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(FolderError::io(folder))
}

fn sync(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(FolderError::io(folder))
}

fn encode_manifest(parts: &[Part]) -> String {
    let mut text = format!("{FIRST_LINE}\n");
    for Part { name, totals } in parts {
        let Totals { records, bytes, checksum } = totals;
        text += &format!("{name} records {records} bytes {bytes} checksum {checksum:08x}\n");
    }
    let checksum = crc32fast::hash(text.as_bytes());
    text + &format!("end checksum {checksum:08x}\n")
}

fn decode_manifest(text: &str) -> std::result::Result<Vec<Part>, String> {
    let Some(first) = text.lines().next() else { return Err("the manifest is empty".into()) };
    if first != FIRST_LINE {
        return Err(format!("the manifest begins with {first:?}, not {FIRST_LINE:?}"));
    }
    let damaged = || "the manifest is damaged".to_string();
    let part = |line: &str| -> Option<Part> {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, "records", records, "bytes", bytes, "checksum", checksum] = words[..] else {
            return None;
        };
        let is_plain = name.starts_with("member-") && !name.contains('/');
        let totals = Totals {
            records: records.parse().ok()?,
            bytes: bytes.parse().ok()?,
            checksum: u32::from_str_radix(checksum, 16).ok()?,
        };
        is_plain.then(|| Part { name: name.into(), totals })
    };
    let lines: Vec<&str> = text.lines().skip(1).collect();
    let (_, lines) = lines.split_last().ok_or_else(damaged)?;
    let parts =
        lines.iter().map(|line| part(line)).collect::<Option<Vec<_>>>().ok_or_else(damaged)?;
    // Encoding the parts must give the text again, checksum included: a manifest has one form.
    if encode_manifest(&parts) == text { Ok(parts) } else { Err(damaged()) }
}

/// The parts of a published generation, as its manifest names them.
pub fn parts(generation: &Path) -> Result<Vec<Part>> {
    let path = generation.join(MANIFEST);
    let file = open_regular(&path).map_err(FolderError::io(&path))?;
    let mut text = String::new();
    file.take(MANIFEST_LEN_MAX).read_to_string(&mut text).map_err(FolderError::io(&path))?;
    decode_manifest(&text).map_err(|reason| FolderError::Manifest { path, reason })
}

/// Reads a part of a generation, passes each record to `take`, and compares the part with the
/// manifest.
pub fn read_part(
    generation: &Path,
    part: &Part,
    take: impl FnMut(super::file::Record),
) -> Result<super::file::Header> {
    read_range(generation, part, 0..part.totals.records, take)
}

/// Reads a range of records of a part and passes each to `take`. Earlier records are skipped.
///
/// The reader of the last record compares the totals at the end of the file with the manifest. So
/// if the ranges of several readers cover all records, all records are checked.
pub(super) fn read_range(
    generation: &Path,
    part: &Part,
    range: Range<u64>,
    mut take: impl FnMut(super::file::Record),
) -> Result<super::file::Header> {
    let path = generation.join(&part.name);
    let mut read = || -> std::result::Result<_, Damage> {
        let mut reader = Reader::open(&path)?;
        for number in 0..range.end {
            let found = if number < range.start {
                reader.skip_record()?
            } else {
                reader.next_record()?.map(&mut take)
            };
            if let Err(totals) = found {
                return Ok((*reader.header(), Some(totals)));
            }
        }
        let is_last = range.end == part.totals.records;
        // A file with further records is not the file that the manifest names.
        let totals =
            if is_last { reader.skip_record()?.err().or(Some(Totals::default())) } else { None };
        Ok((*reader.header(), totals))
    };
    let (header, totals) =
        read().map_err(|damage| FolderError::Damaged { path: path.clone(), damage })?;
    if totals.is_some_and(|totals| totals != part.totals) {
        let reason =
            format!("it is whole, but not the one that the manifest names ({:?})", part.totals);
        return Err(FolderError::Manifest { path, reason });
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::super::file::{Header, Writer};
    use super::*;

    fn write_generation(folder: &Path, keep: usize) -> PathBuf {
        let unfinished = Unfinished::begin(folder).unwrap();
        let mut parts = Vec::new();
        for member in 0..2 {
            let generation = unfinished.number();
            let header = Header { generation, member, members: 2, replicas: 1, taken_at: 5 };
            let mut writer = Writer::create(&unfinished.part(member), &header).unwrap();
            writer.add(b"key", &generation.to_le_bytes(), member, generation).unwrap();
            parts.push(Part { name: part_name(member), totals: writer.finish().unwrap() });
        }
        unfinished.publish(&parts, keep).unwrap()
    }

    #[test]
    fn generations_are_kept_and_the_newest_is_found() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(find(folder.path()), Err(FolderError::None { .. })));
        for _ in 0..4 {
            write_generation(folder.path(), 2);
        }
        let numbers: Vec<u64> =
            list(folder.path()).unwrap().iter().map(|found| found.number).collect();
        assert_eq!(numbers, [3, 4]);
        let newest = find(folder.path()).unwrap();
        assert_eq!(newest, find(&newest).unwrap());
        let mut records = Vec::new();
        for part in parts(&newest).unwrap() {
            let header = read_part(&newest, &part, |record| records.push(record.version)).unwrap();
            assert_eq!(header.generation, 4);
        }
        assert_eq!(records, [4, 4]);
    }

    #[test]
    fn an_unfinished_generation_is_not_found_and_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let first = write_generation(folder.path(), 2);
        let left = Unfinished::begin(folder.path()).unwrap();
        fs::write(left.part(0), b"half").unwrap();
        assert_eq!(find(folder.path()).unwrap(), first);
        let second = write_generation(folder.path(), 2);
        assert_eq!(find(folder.path()).unwrap(), second);
        assert!(!left.path().exists());
    }

    /// A coordinator is taken for dead before it publishes, and goes on when another coordinator
    /// has begun: what it publishes is nothing, and what the other publishes is whole.
    #[test]
    fn a_coordinator_that_wakes_up_late_publishes_nothing_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let before = write_generation(folder.path(), 1);
        let write = |unfinished: &Unfinished, value: &[u8]| {
            let generation = unfinished.number();
            let header = Header { generation, member: 0, members: 1, replicas: 1, taken_at: 5 };
            let mut writer = Writer::create(&unfinished.part(0), &header).unwrap();
            writer.add(b"key", value, 0, 1).unwrap();
            [Part { name: part_name(0), totals: writer.finish().unwrap() }]
        };
        let late = Unfinished::begin(folder.path()).unwrap();
        let parts_of_late = write(&late, b"old");
        let other = Unfinished::begin(folder.path()).unwrap();
        let parts_of_other = write(&other, b"new");
        let published = late.publish(&parts_of_late, 1);
        assert!(published.is_err(), "{published:?}");
        assert_eq!(find(folder.path()).unwrap(), before);
        let newest = other.publish(&parts_of_other, 1).unwrap();
        assert_eq!(find(folder.path()).unwrap(), newest);
        let mut values = Vec::new();
        for part in parts(&newest).unwrap() {
            read_part(&newest, &part, |record| values.push(record.value)).unwrap();
        }
        assert_eq!(values, [b"new"]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    /// To open a named pipe for reading waits for a writer, which never comes.
    #[test]
    fn a_named_pipe_in_the_place_of_a_file_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = write_generation(folder.path(), 1);
        let parts_of = parts(&path).unwrap();
        let put_pipe_at = |path: &Path| {
            fs::remove_file(path).unwrap();
            let (file, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
            rustix::fs::mknodat(rustix::fs::CWD, path, file, mode, 0).unwrap();
        };
        put_pipe_at(&path.join(&parts_of[1].name));
        let error = read_part(&path, &parts_of[1], |_| {}).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
        put_pipe_at(&path.join(MANIFEST));
        let error = parts(&path).unwrap_err();
        let reason = std::error::Error::source(&error).map(ToString::to_string);
        assert!(format!("{error} {reason:?}").contains("not a regular file"), "{error}");
    }

    #[test]
    fn a_damaged_part_and_a_damaged_manifest_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = write_generation(folder.path(), 1);
        let parts_of = parts(&path).unwrap();
        let part = path.join(&parts_of[1].name);
        let mut bytes = fs::read(&part).unwrap();
        bytes[100] ^= 4;
        fs::write(&part, &bytes).unwrap();
        let error = read_part(&path, &parts_of[1], |_| {}).unwrap_err().to_string();
        assert!(
            error.contains("member-0001.part") && error.contains("damaged at byte 64"),
            "{error}"
        );
        // A whole part of another member is not the part that the manifest names.
        fs::copy(path.join(&parts_of[0].name), &part).unwrap();
        let error = read_part(&path, &parts_of[1], |_| {}).unwrap_err().to_string();
        assert!(error.contains("not the one that the manifest names"), "{error}");
        let manifest = path.join(MANIFEST);
        let text = fs::read_to_string(&manifest).unwrap();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            fs::write(&manifest, &bytes).unwrap();
            assert!(parts(&path).is_err(), "byte {at}");
            fs::write(&manifest, &text.as_bytes()[..at]).unwrap();
            assert!(parts(&path).is_err(), "cut off at {at}");
        }
    }

    /// Foreign contents of the folder: the largest number, and a manifest that fits into no memory.
    #[test]
    fn foreign_names_and_a_huge_manifest_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["generation-18446744073709551615", "generation-+7", "generation-9"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        write_generation(folder.path(), 1);
        let path = write_generation(folder.path(), 1);
        assert_eq!(list(folder.path()).unwrap(), [Generation { number: 2, path: path.clone() }]);
        File::options().write(true).open(path.join(MANIFEST)).unwrap().set_len(1 << 40).unwrap();
        assert!(matches!(parts(&path), Err(FolderError::Manifest { .. })));
    }

    #[test]
    fn an_error_names_the_folder_that_cannot_be_written() {
        let error =
            Unfinished::begin(Path::new("/proc/outlast/snapshots")).unwrap_err().to_string();
        assert!(error.contains("/proc/outlast"), "{error}");
    }
}
