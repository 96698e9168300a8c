//! Snapshots on disk: the whole store as it was at one moment, taken while the job runs, to begin another job with.
//!
//! Every member opens the folder, which all of them must reach, and any of them takes a snapshot. Each member writes its
//! part in the background; the snapshot is there when all parts are, by one rename, and not before: whoever is killed when,
//! the one before stays whole. docs/snapshot.md has the format and what is guaranteed.
//!
//! ```
//! use outlast::snapshot::{self, Options, Snapshots};
//! use outlast::store::{self, Store};
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("snapshots");
//! let job = outlast::join()?;
//! let store = Store::open(&job, store::Options::new())?;
//! let snapshots = Snapshots::open(&store, &path, Options::new())?;
//! store.put(b"result/9", b"forty-two")?;
//! let taken = snapshots.take()?;
//! assert_eq!(taken.records, 1);
//!
//! // In another job, of another size and with another number of copies:
//! store.delete(b"result/9")?;
//! let restored = snapshot::restore(&store, &path)?;
//! assert_eq!(restored.records, 1);
//! assert!(store.exists(b"result/9")?);
//! # store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod file;
mod folder;
mod note;
mod part;
mod restore;

pub use file::{Damage, FORMAT, Header, Reader, Record, Totals, Writer};
pub use folder::{
    FolderError, Generation, Part, Unfinished, find, list, part_name, parts, read_part,
};
pub use restore::{Restored, restore, restore_share};

use crate::engine::{Epoch, MemberId, MemberSet, Port, Time};
use crate::job::{Job, Service};
use crate::store::{Store, StoreError, whole_cut};
use crate::sync::lock;
use note::Note;
use part::take_part;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PORT: Port = Port::Snapshot;

/// How often a snapshot is begun anew because a member died in the middle of it.
const ATTEMPTS: usize = 8;
/// How long to wait before that, for each attempt that was made.
const PAUSE: Duration = Duration::from_millis(10);

/// How snapshots are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    keep: usize,
    bytes_per_second: Option<u64>,
    freeze_limit: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { keep: 2, bytes_per_second: None, freeze_limit: Duration::from_secs(2) }
    }
}

impl Options {
    /// The defaults: the two newest snapshots are kept, writing is as fast as the disk, and nobody waits longer than two
    /// seconds.
    pub fn new() -> Options {
        Options::default()
    }

    /// How many snapshots are kept, at least one; older ones are removed when a new one is there.
    pub fn keep(mut self, generations: usize) -> Options {
        self.keep = generations.max(1);
        self
    }

    /// The most bytes that each member writes in a second, to leave the disk to the program.
    pub fn bytes_per_second(mut self, bytes: u64) -> Options {
        self.bytes_per_second = Some(bytes.max(1));
        self
    }

    /// How long writers may be held up at most while the members list their records; if that does not suffice, there is no
    /// snapshot. Some milliseconds for a hundred thousand keys; never more than an hour.
    pub fn freeze_limit(mut self, limit: Duration) -> Options {
        self.freeze_limit = limit.min(Duration::from_secs(3600));
        self
    }
}

/// Why there is no snapshot. What was there before is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// A file or folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The store refused something.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A member could not do its part.
    #[error("{member} could not do its part: {reason}")]
    Member {
        /// Who.
        member: MemberId,
        /// What it said.
        reason: String,
    },
    /// A living member did not answer in time.
    #[error(
        "{member} did not answer within {limit:?}: it is stopped or starved, has not opened the snapshots' folder, or has too many records to list in that time"
    )]
    Timeout {
        /// Who.
        member: MemberId,
        /// How long the call waited.
        limit: Duration,
    },
    /// This member has opened a folder already.
    #[error("this member has opened a folder of snapshots already; use a clone of that")]
    AlreadyOpen,
    /// Somebody else is taking one.
    #[error("another snapshot is being taken; wait for it and try again")]
    Busy,
    /// Members died again and again.
    #[error("members died in each of {attempts} attempts; try again when fewer do")]
    Interrupted {
        /// How many attempts were made.
        attempts: usize,
    },
}

/// A snapshot that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Where it is.
    pub path: PathBuf,
    /// Its number in the folder.
    pub generation: u64,
    /// How many keys are in it.
    pub records: u64,
    /// How long its files are together.
    pub bytes: u64,
    /// For how long writers were held up at most, at any member: never longer than the limit.
    pub frozen_for: Duration,
}

/// A folder of snapshots, opened by every member of a job.
#[derive(Clone)]
pub struct Snapshots {
    shared: Arc<Shared>,
}

/// What the calls, the background and the activity that writes this member's part share.
struct Shared {
    store: Store,
    folder: PathBuf,
    options: Options,
    /// What came for the one who takes a snapshot, and for the one who does this member's part.
    answers: Mutex<Vec<(MemberId, Note)>>,
    orders: Mutex<Vec<(MemberId, Note)>>,
    /// The newest attempt of each member that came to nothing, and so did its earlier ones. No order among the others, which
    /// wait for their turn: it counts at once, also before the freeze that it takes back was looked at.
    dropped: Mutex<BTreeMap<MemberId, u64>>,
    /// The snapshot that this member does its part of.
    under_way: Mutex<Option<u64>>,
    /// Whether this member is taking one, and whether it is at the files: then it does its part of no other.
    is_taking: Mutex<bool>,
    is_writing: Mutex<bool>,
    next: AtomicU64,
}

/// A member has one when it has opened a folder.
struct Opened;

/// Why an attempt came to nothing.
enum Halt {
    /// Somebody died, or the view changed otherwise.
    Again,
    /// Somebody does its part of another one, or has not noticed yet that it came to nothing.
    Busy,
    Fail(SnapshotError),
}

impl<E: Into<SnapshotError>> From<E> for Halt {
    fn from(error: E) -> Halt {
        Halt::Fail(error.into())
    }
}

/// One attempt to take a snapshot.
struct Attempt {
    id: u64,
    epoch: Epoch,
    members: MemberSet,
}

impl Snapshots {
    /// Opens the folder at this member; every member of the job does it, with the same folder, or none of them can take a
    /// snapshot. Nothing is read or written yet. Once for each member: threads share a clone.
    pub fn open(
        store: &Store,
        folder: &Path,
        options: Options,
    ) -> Result<Snapshots, SnapshotError> {
        let shared = Arc::new(Shared {
            store: store.clone(),
            folder: folder.into(),
            options,
            answers: Mutex::default(),
            orders: Mutex::default(),
            dropped: Mutex::default(),
            under_way: Mutex::default(),
            is_taking: Mutex::default(),
            is_writing: Mutex::default(),
            next: AtomicU64::new(1),
        });
        // What comes for one of them must not be taken by another.
        if !shared.job().layer(|| Opened).1 {
            return Err(SnapshotError::AlreadyOpen);
        }
        let service = Arc::new(Background(shared.clone()));
        shared
            .job()
            .serve(service)
            .map_err(|error| SnapshotError::Store(StoreError::Engine(error)))?;
        Ok(Snapshots { shared })
    }

    /// Takes a snapshot and waits until it is published. All acknowledged writes that were made before the call are in
    /// it; of the others, what is in it fits together: whoever wrote two keys one after the other, or in a transaction,
    /// finds the second one only with the first.
    pub fn take(&self) -> Result<Taken, SnapshotError> {
        let shared = &*self.shared;
        if std::mem::replace(&mut *lock(&shared.is_taking), true) {
            return Err(SnapshotError::Busy);
        }
        let result = shared.take();
        *lock(&shared.is_taking) = false;
        result
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.shared.folder
    }
}

impl Shared {
    fn job(&self) -> &Job {
        self.store.job()
    }

    fn take(&self) -> Result<Taken, SnapshotError> {
        let job = self.job();
        let mut is_busy = false;
        for attempt in 0..ATTEMPTS {
            // Of two who are in each other's way one comes back before the other.
            let times = if is_busy { 1 + job.me().0 % 8 } else { 1 };
            job.sleep(PAUSE * attempt as u32 * times);
            self.store.await_salvages()?;
            let members: MemberSet = job.view().living().collect();
            let id = u64::from(job.me().0) << 48 | self.next.fetch_add(1, Ordering::Relaxed);
            let attempt = Attempt { id, epoch: job.epoch(), members };
            if job.view().epoch != attempt.epoch {
                continue;
            }
            match self.attempt(&attempt) {
                Ok(taken) => return Ok(taken),
                Err(halt) => {
                    // Whoever waits for more need not.
                    self.tell(&attempt, &Note::Drop { id });
                    match halt {
                        Halt::Again => is_busy = false,
                        Halt::Busy => is_busy = true,
                        Halt::Fail(error) => return Err(error),
                    }
                }
            }
        }
        Err(if is_busy {
            SnapshotError::Busy
        } else {
            SnapshotError::Interrupted { attempts: ATTEMPTS }
        })
    }

    fn attempt(&self, attempt: &Attempt) -> Result<Taken, Halt> {
        folder::make_private(&self.folder)?;
        let frozen_for = self.cut(attempt)?;
        // Every member does its part of this one now, and of no other before that is written or given up; nor does this one
        // before it is published. So nobody else is at the files, and what is unfinished was left by the dead.
        *lock(&self.is_writing) = true;
        let taken = self.write(attempt, frozen_for);
        *lock(&self.is_writing) = false;
        taken
    }

    fn write(&self, attempt: &Attempt, frozen_for: Duration) -> Result<Taken, Halt> {
        let unfinished = Unfinished::begin(&self.folder)?;
        let number = unfinished.number();
        match self.gather_parts(attempt, number) {
            Ok(parts) => {
                let records = parts.iter().map(|part| part.totals.records).sum();
                let bytes = parts.iter().map(|part| part.totals.bytes).sum();
                let path = unfinished.publish(&parts, self.options.keep)?;
                Ok(Taken { path, generation: number, records, bytes, frozen_for })
            }
            Err(halt) => {
                unfinished.discard();
                Err(halt)
            }
        }
    }

    /// C1 to C4 of `store/cut.rs`; for how long writers were held up. The members say so: this one may be stopped between
    /// their answers and the look at them.
    fn cut(&self, attempt: &Attempt) -> Result<Duration, Halt> {
        let (id, limit) = (attempt.id, self.options.freeze_limit);
        let freeze = Note::Freeze { id, epoch: attempt.epoch.0, limit_ns: limit.as_nanos() as u64 };
        self.ask(attempt, &freeze, limit, |note| matches!(note, Note::Quiet { .. }))?;
        let listed = self
            .ask(attempt, &Note::List { id }, limit, |note| matches!(note, Note::Listed { .. }))?;
        let count = |total: (u64, u64), note: &Note| match note {
            Note::Listed { partitions, sum, .. } => {
                (total.0 + partitions, total.1.wrapping_add(*sum))
            }
            _ => total,
        };
        if listed.values().fold((0, 0), count) != whole_cut(&self.store) {
            // Members that know of different ones who are leaving do not agree on who lists what.
            return Err(Halt::Again);
        }
        let thawed = self
            .ask(attempt, &Note::Thaw { id }, limit, |note| matches!(note, Note::Thawed { .. }))?;
        let mut frozen_ns_max = 0;
        for (&member, note) in &thawed {
            match note {
                Note::Thawed { in_time: true, frozen_ns, .. } => {
                    frozen_ns_max = frozen_ns_max.max(*frozen_ns)
                }
                _ => return Err(Halt::Fail(SnapshotError::Timeout { member, limit })),
            }
        }
        Ok(Duration::from_nanos(frozen_ns_max))
    }

    /// Has every member write its part.
    fn gather_parts(&self, attempt: &Attempt, number: u64) -> Result<Vec<Part>, Halt> {
        let taken_at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let taken_at = taken_at.map_or(0, |since| since.as_secs());
        let write = Note::Write { id: attempt.id, number, taken_at };
        let patience = self.options.freeze_limit + self.job().time_limit();
        let written = self.ask_slowly(attempt, &write, patience)?;
        let part = |(member, note): (MemberId, Note)| match note {
            Note::Written { records, bytes, checksum, .. } => {
                let checksum = checksum as u32;
                Some(Part {
                    name: part_name(member.0),
                    totals: Totals { records, bytes, checksum },
                })
            }
            _ => None,
        };
        Ok(written.into_iter().filter_map(part).collect())
    }

    /// Sends an order to all members of an attempt.
    fn tell(&self, attempt: &Attempt, note: &Note) {
        for member in attempt.members.iter() {
            if member == self.job().me() {
                self.order(member, note.clone());
            } else {
                // The dead need no order, and nobody waits for them.
                let _ = self.job().send(member, PORT, &note.encode());
            }
        }
    }

    /// Sends an order and waits until each member has answered; any death is the end of the attempt.
    fn ask(
        &self,
        attempt: &Attempt,
        order: &Note,
        limit: Duration,
        is_answer: impl Fn(&Note) -> bool,
    ) -> Result<BTreeMap<MemberId, Note>, Halt> {
        let job = self.job();
        self.tell(attempt, order);
        let mut until = job.now().after(limit);
        self.gather(attempt, is_answer, &mut until, limit, |epoch| epoch == attempt.epoch)
    }

    /// The same for the writing, which takes as long as it takes: each sign of life gives it more time. Who has written its
    /// part may die.
    fn ask_slowly(
        &self,
        attempt: &Attempt,
        order: &Note,
        patience: Duration,
    ) -> Result<BTreeMap<MemberId, Note>, Halt> {
        self.tell(attempt, order);
        let mut until = self.job().now().after(patience);
        self.gather(
            attempt,
            |note| matches!(note, Note::Written { .. }),
            &mut until,
            patience,
            |_| true,
        )
    }

    fn gather(
        &self,
        attempt: &Attempt,
        is_answer: impl Fn(&Note) -> bool,
        until: &mut Time,
        limit: Duration,
        is_right: impl Fn(Epoch) -> bool,
    ) -> Result<BTreeMap<MemberId, Note>, Halt> {
        let job = self.job();
        let mut answers = BTreeMap::new();
        loop {
            let bell = job.bell();
            self.receive();
            // The engine is not called under the lock.
            let came = std::mem::take(&mut *lock(&self.answers));
            for (member, note) in came {
                if note.id() != attempt.id {
                    continue;
                }
                *until = (*until).max(job.now().after(limit));
                match note {
                    Note::Failed { reason, .. } => {
                        return Err(Halt::Fail(SnapshotError::Member { member, reason }));
                    }
                    Note::Busy { .. } => return Err(Halt::Busy),
                    Note::Stale { .. } => return Err(Halt::Again),
                    note if is_answer(&note) => drop(answers.insert(member, note)),
                    _ => {}
                }
            }
            let view = job.view();
            let mut missing = attempt.members.iter().filter(|member| !answers.contains_key(member));
            let Some(member) = missing.next() else { return Ok(answers) };
            if !is_right(view.epoch)
                || !view.is_living(member)
                || missing.any(|other| !view.is_living(other))
            {
                return Err(Halt::Again);
            }
            if job.has_ended() {
                return Err(Halt::Fail(StoreError::Closed.into()));
            }
            if job.now() >= *until {
                return Err(Halt::Fail(SnapshotError::Timeout { member, limit }));
            }
            job.park(bell, *until);
        }
    }

    /// Takes the messages that have come. Not the background alone, which may itself be waiting for the end of the frost.
    fn receive(&self) {
        while let Some(message) = self.job().receive(PORT) {
            if let Some(note) = Note::decode(&message.bytes) {
                self.order(message.from, note);
            }
        }
    }

    /// An order that came, or an answer.
    fn order(&self, from: MemberId, note: Note) {
        if let Note::Drop { id } = note {
            let mut dropped = lock(&self.dropped);
            let newest = dropped.entry(from).or_default();
            *newest = id.max(*newest);
        } else if note.is_answer() {
            lock(&self.answers).push((from, note));
        } else {
            lock(&self.orders).push((from, note));
        }
        let _ = self.job().ring(self.job().me());
    }

    /// Whether the one who takes the snapshot no longer wants it.
    fn is_dropped(&self, from: MemberId, id: u64) -> bool {
        lock(&self.dropped).get(&from).is_some_and(|&newest| id <= newest)
    }

    /// Answers the one who takes the snapshot.
    fn answer(&self, to: MemberId, note: Note) {
        if to == self.job().me() {
            self.order(to, note);
        } else {
            let _ = self.job().send(to, PORT, &note.encode());
        }
    }
}

/// The background's part: messages, and beginning what takes longer as an activity of its own.
struct Background(Arc<Shared>);

impl Service for Background {
    fn run(&self, job: &Job) -> Time {
        let shared = &self.0;
        shared.receive();
        let is_freeze = |(_, note): &(MemberId, Note)| matches!(note, Note::Freeze { .. });
        loop {
            let freeze = {
                let mut orders = lock(&shared.orders);
                orders.iter().position(is_freeze).map(|index| orders.remove(index))
            };
            let Some((from, Note::Freeze { id, epoch, limit_ns })) = freeze else {
                if lock(&shared.under_way).is_none() {
                    // What is left of those that are over.
                    lock(&shared.orders).retain(is_freeze);
                }
                return Time::NEVER;
            };
            if shared.is_dropped(from, id) {
                continue;
            }
            let is_busy =
                *lock(&shared.is_writing) || *lock(&shared.under_way).get_or_insert(id) != id;
            if is_busy {
                shared.answer(from, Note::Busy { id });
                continue;
            }
            let doing = shared.clone();
            let limit = Duration::from_nanos(limit_ns);
            let body = move || {
                take_part(&doing, from, id, Epoch(epoch), limit);
                *lock(&doing.under_way) = None;
            };
            if let Err(error) = job.spawn("snapshot", Box::new(body)) {
                *lock(&shared.under_way) = None;
                shared.answer(from, Note::Failed { id, reason: error.to_string() });
            }
        }
    }
}
