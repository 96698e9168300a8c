//! The jobs of this user on this machine, read by an observer: a process outside of the job.
//!
//! Each process of a job has the job's memory open. An observer finds that file among the open
//! files of this user's processes, in /proc, opens it for reading alone, and reads copies of its
//! tables by system calls. It maps nothing, so that no process can hurt it by cutting the file
//! short, and it writes nothing.
//!
//! Other processes wrote all of it. An observer checks the magic number, the size of the job
//! against the length of the file, and the bounds of every number that it uses as an index or as a
//! length.

use super::death_log;
use super::layout::{
    DOMAIN_LEN_MAX, HEADER_EPOCH, HEADER_LEN, Layout, PAGE, SLOT_DOMAIN, SLOT_DOMAIN_LEN, SLOT_LEN,
    SLOT_PID, SLOT_SEGMENT_LEN, SLOT_STATE, SLOTS, STATE_JOINED, STATUS_LEN, read_header,
};
use super::status::{
    STATUS_MAGIC, WORD_COUNT, WORD_FIRST, WORD_MAGIC, WORD_SEQUENCE, WORD_TIME, WORDS_MAX,
};
use super::sys;
use crate::engine::MemberId;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

/// How often a page is read before the observer does without it: a page is written within a
/// microsecond, unless its member was stopped or died meanwhile.
const PAGE_ATTEMPTS: usize = 16;

/// The memory of a job, opened for reading.
pub(crate) struct ObservedMemory {
    file: File,
    layout: Layout,
    start_ns: u64,
    /// The number of the file, which no other job has while this job exists.
    pub(crate) id: u64,
    /// The processes that had the memory open when it was found.
    pub(crate) processes: Vec<u32>,
}

/// The tables of a job, as they were at some moment.
pub(crate) struct ObservedTables {
    pub(crate) regulars: usize,
    pub(crate) spares: usize,
    pub(crate) segment_limit: u64,
    /// Since when the job exists, and the moment of this observation, on the monotonic clock.
    pub(crate) start_ns: u64,
    pub(crate) now_ns: u64,
    pub(crate) slots: Vec<ObservedSlot>,
    /// The dead in the order of the log, each with whether it has left.
    pub(crate) dead: Vec<(MemberId, bool)>,
}

/// The slot of a member.
pub(crate) struct ObservedSlot {
    /// The member's process; `None` before it joined, and for members of other hosts.
    pub(crate) pid: Option<u32>,
    pub(crate) has_joined: bool,
    pub(crate) segment_len: u64,
    pub(crate) domain: String,
    /// When the status page was written, and its words.
    pub(crate) page: Option<(u64, Vec<u64>)>,
}

/// Finds the jobs that processes of this user take part in, in the order of their start.
pub(crate) fn find_jobs() -> io::Result<Vec<ObservedMemory>> {
    let mut jobs: BTreeMap<(u64, u64), ObservedMemory> = BTreeMap::new();
    let mut refused = Vec::new();
    let user = rustix::process::geteuid().as_raw();
    for process in std::fs::read_dir("/proc")?.flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // Root may read the files of all users, but these are not its jobs.
        if !process.metadata().is_ok_and(|status| status.uid() == user) {
            continue;
        }
        // The process may end meanwhile.
        for file in std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            let path = file.path();
            let Some(key) = job_memory(&path) else { continue };
            if let Some(job) = jobs.get_mut(&key) {
                job.processes.push(pid);
            } else if !refused.contains(&key) {
                match ObservedMemory::open(&path) {
                    Some(mut job) => {
                        job.processes.push(pid);
                        jobs.insert(key, job);
                    }
                    None => refused.push(key),
                }
            }
        }
    }
    let mut jobs: Vec<ObservedMemory> = jobs.into_values().collect();
    for job in &mut jobs {
        job.processes.sort_unstable();
        job.processes.dedup();
    }
    jobs.sort_by_key(|job| (job.start_ns, job.id));
    Ok(jobs)
}

/// The device and number of an open file, if it may be the memory of a job: a memfd of that name,
/// or an unnamed file in the directory of the user's choice. The link is writable if the process
/// may write the file; that of an observer is not.
fn job_memory(path: &Path) -> Option<(u64, u64)> {
    if std::fs::symlink_metadata(path).ok()?.mode() & 0o200 == 0 {
        return None;
    }
    let target = std::fs::read_link(path).ok()?;
    let target = target.to_str()?;
    let is_unnamed = target.contains("/#") && target.ends_with(" (deleted)");
    if !target.starts_with("/memfd:outlast") && !is_unnamed {
        return None;
    }
    let status = std::fs::metadata(path).ok()?;
    let is_job = status.is_file() && status.len() >= PAGE as u64;
    is_job.then_some((status.dev(), status.ino()))
}

impl ObservedMemory {
    fn open(path: &Path) -> Option<ObservedMemory> {
        // The process may have opened another file under this number since: a device must not keep
        // the observer waiting.
        let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).custom_flags(flags.bits() as i32).open(path).ok()?;
        let status = file.metadata().ok().filter(|status| status.is_file())?;
        let mut header = [0; HEADER_LEN];
        file.read_exact_at(&mut header, 0).ok()?;
        let (layout, start_ns) = read_header(&header, status.len()).ok()?;
        Some(ObservedMemory { file, layout, start_ns, id: status.ino(), processes: Vec::new() })
    }

    /// Reads the tables as they are now.
    pub(crate) fn read(&self) -> io::Result<ObservedTables> {
        let members = self.layout.members();
        let epoch = self.word(HEADER_EPOCH)?;
        // The entries were made before the epoch was raised.
        fence(Ordering::Acquire);
        let log = self.words(self.layout.death_log, (epoch as usize).min(members))?;
        let dead = log.into_iter().filter(|&entry| entry & 0xffff_ffff != 0);
        let dead = dead.map(death_log::decode).filter(|(member, _)| member.index() < members);
        let slots = (0..members as u32).map(|member| self.slot(MemberId(member)));
        Ok(ObservedTables {
            regulars: self.layout.regulars,
            spares: self.layout.spares,
            segment_limit: self.layout.segment_limit as u64,
            start_ns: self.start_ns,
            dead: dead.collect(),
            slots: slots.collect::<io::Result<_>>()?,
            now_ns: sys::monotonic_ns(),
        })
    }

    fn slot(&self, member: MemberId) -> io::Result<ObservedSlot> {
        let mut slot = [0; SLOT_LEN];
        self.file.read_exact_at(&mut slot, (SLOTS + member.index() * SLOT_LEN) as u64)?;
        let half = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| slot[at + byte]));
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| slot[at + byte]));
        let domain_len = (half(SLOT_DOMAIN_LEN) as usize).min(DOMAIN_LEN_MAX);
        Ok(ObservedSlot {
            pid: Some(half(SLOT_PID)).filter(|&pid| pid != 0),
            has_joined: half(SLOT_STATE) == STATE_JOINED,
            segment_len: word(SLOT_SEGMENT_LEN).min(self.layout.segment_limit as u64),
            domain: String::from_utf8_lossy(&slot[SLOT_DOMAIN..][..domain_len]).into_owned(),
            page: self.page(member)?,
        })
    }

    /// The status page of a member: when it was written, and its words. `None` if the member has
    /// not written any, or was interrupted while it wrote.
    fn page(&self, member: MemberId) -> io::Result<Option<(u64, Vec<u64>)>> {
        let begin = self.layout.status(member);
        for _ in 0..PAGE_ATTEMPTS {
            let before = self.word(begin + WORD_SEQUENCE * 8)?;
            fence(Ordering::Acquire);
            let mut words = self.words(begin, STATUS_LEN / 8)?;
            fence(Ordering::Acquire);
            let after = self.word(begin + WORD_SEQUENCE * 8)?;
            if before == 0 {
                return Ok(None);
            }
            if before != after || before % 2 == 1 {
                std::thread::yield_now();
                continue;
            }
            let count = words[WORD_COUNT] as usize;
            if words[WORD_MAGIC] != STATUS_MAGIC || count > WORDS_MAX {
                return Ok(None);
            }
            let written_ns = words[WORD_TIME];
            words.truncate(WORD_FIRST + count);
            words.drain(..WORD_FIRST);
            return Ok(Some((written_ns, words)));
        }
        Ok(None)
    }

    fn word(&self, offset: usize) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, offset as u64)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn words(&self, offset: usize, count: usize) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; count * 8];
        self.file.read_exact_at(&mut bytes, offset as u64)?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(words.iter().map(|&word| u64::from_ne_bytes(word)).collect())
    }
}
