//! Snapshots on disk: the contents of the store at one moment, taken while the job runs, with which
//! another job begins.
//!
//! Every member opens the folder, which all members must reach, and any member takes a snapshot.
//! Each member writes its part in the background. A single rename publishes the snapshot when all
//! parts are on the disk: whichever member is killed at whichever moment, the snapshot before it
//! stays whole. `docs/snapshot.md` has the file format and the guarantees.
//!
//! # Vocabulary
//! - *coordinator*: the member on which [`Snapshots::take`] was called; it gives the orders.
//! - *participant*: every living member, the coordinator included; it carries out the orders.
//! - *attempt*: the work for one snapshot in one view. A snapshot needs more than one attempt if
//!   members die.
//! - *generation*: a published snapshot in its folder; *part*: the file of one member in it.
//!
//! # Invariants
//! - A participant works for one attempt at a time, so at most one attempt writes files.
//! - Writers are held up until the consistent cut is listed, never while files are written, and
//!   never for longer than [`Options::freeze_limit`].
//! - A generation without the suffix `.unfinished` is whole.
//!
//! The module uses the public calls of the store and the consistent cut of `store/api/cut.rs`.
//! Programs call [`Snapshots`] and [`restore()`]; the command line tool reads folders and files
//! with the other public items.
//!
//! # Deaths
//! If a participant dies before its part is written, the coordinator cancels the attempt and begins
//! another one. If the coordinator dies, the participants end the attempt by themselves: they
//! unfreeze the store and drop their lists. The next snapshot removes the unfinished generation.
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
//! // In another job, of another size and with another number of replicas:
//! store.delete(b"result/9")?;
//! let restored = snapshot::restore(&store, &path)?;
//! assert_eq!(restored.records, 1);
//! assert!(store.exists(b"result/9")?);
//! # store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod coordinator;
mod file;
mod folder;
mod message;
mod participant;
mod restore;

pub use file::{Damage, FORMAT, Header, Reader, Record, Totals, Writer};
pub use folder::{
    FolderError, Generation, Part, Unfinished, find, list, part_name, parts, read_part,
};
pub use restore::{Restored, restore, restore_share};

use crate::engine::{Epoch, MemberId, Port, Time};
use crate::job::{Job, Service};
use crate::store::{Address, Store, StoreError};
use crate::sync::lock;
use message::Message;
use participant::participate;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

const PORT: Port = Port::Snapshot;

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
    /// The defaults: the two newest snapshots are kept, files are written as fast as the disk
    /// allows, and no writer waits for longer than two seconds.
    pub fn new() -> Options {
        Options::default()
    }

    /// How many snapshots are kept, at least 1. Older snapshots are removed when a new snapshot is
    /// published.
    pub fn keep(mut self, generations: usize) -> Options {
        self.keep = generations.max(1);
        self
    }

    /// The most bytes that each member writes per second, to leave the disk to the program.
    pub fn bytes_per_second(mut self, bytes: u64) -> Options {
        self.bytes_per_second = Some(bytes.max(1));
        self
    }

    /// The longest time for which writers are held up while the members list their records. If it
    /// does not suffice, no snapshot is taken. Listing takes some milliseconds for a hundred
    /// thousand keys. The limit is at most an hour.
    pub fn freeze_limit(mut self, limit: Duration) -> Options {
        self.freeze_limit = limit.min(Duration::from_secs(3600));
        self
    }
}

/// Why no snapshot was taken. Earlier snapshots are unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// A file or folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The store refused an operation.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A member could not do its part.
    #[error("{member} could not do its part: {reason}")]
    Member {
        /// The member.
        member: MemberId,
        /// The member's reason.
        reason: String,
    },
    /// A living member did not answer in time.
    #[error(
        "{member} did not answer within {limit:?}: it is stopped or starved, has not opened the \
         snapshots' folder, or has too many records to list in that time"
    )]
    Timeout {
        /// The member.
        member: MemberId,
        /// How long the call waited.
        limit: Duration,
    },
    /// This member has opened a folder for this store already.
    #[error("this member has opened a folder of snapshots of this store; use a clone of that")]
    AlreadyOpen,
    /// Another snapshot is being taken, by this member or by another.
    #[error("another snapshot is being taken; wait for it and try again")]
    Busy,
    /// Members died in every attempt.
    #[error("members died in each of {attempts} attempts; try again when fewer do")]
    Interrupted {
        /// How many attempts were made.
        attempts: usize,
    },
}

/// A snapshot that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The generation's folder.
    pub path: PathBuf,
    /// The generation's number.
    pub generation: u64,
    /// How many keys the snapshot holds.
    pub records: u64,
    /// The length of its files together.
    pub bytes: u64,
    /// The longest time for which writers were held up at a member; never longer than the limit.
    pub frozen_for: Duration,
}

/// A folder of snapshots, opened by every member of a job.
#[derive(Clone)]
pub struct Snapshots {
    shared: Arc<Shared>,
}

/// The state that the calls, the background and this member's participant share.
struct Shared {
    store: Store,
    folder: PathBuf,
    options: Options,
    /// Messages received for the coordinator at this member, with their senders.
    answers: Mutex<Vec<(MemberId, Message)>>,
    /// Messages received for the participant at this member, with their senders.
    orders: Mutex<Vec<(MemberId, Message)>>,
    /// For each coordinator its newest cancelled attempt; its earlier attempts are over, too. A
    /// cancellation is not queued with the other orders: it counts at once, even if the order to
    /// freeze, which it takes back, still waits in the queue.
    cancelled: Mutex<BTreeMap<MemberId, u64>>,
    /// The attempt for which this member works as a participant.
    participating: Mutex<Option<u64>>,
    /// Whether this member takes a snapshot.
    is_taking: Mutex<bool>,
    /// Whether the snapshot that this member takes is at the stage of writing files. This member
    /// then refuses to participate in other attempts.
    is_writing: Mutex<bool>,
    /// The number of this member's next attempt.
    next: AtomicU64,
}

/// The folders of snapshots that this member has opened, by the openings of their stores.
#[derive(Default)]
struct Folders(Mutex<BTreeMap<Address, Folder>>);

/// A folder of snapshots, as messages find it.
struct Folder {
    shared: Weak<Shared>,
    /// Messages that came before this member opened the folder, with their senders; `None` once it
    /// has opened the folder.
    early: Option<Vec<(MemberId, Message)>>,
}

/// How many messages are kept for a folder that this member has not opened. The coordinator of a
/// snapshot sends few messages before it needs an answer.
const EARLY_MAX: usize = 1024;

impl Folders {
    fn of(job: &Job) -> Arc<Folders> {
        job.layer(Folders::default).0
    }

    /// Adds a folder. Returns the messages that came before; `None` if the store has a folder.
    fn add(&self, address: Address, shared: &Arc<Shared>) -> Option<Vec<(MemberId, Message)>> {
        let mut folders = lock(&self.0);
        folders.retain(|other, _| other.store != address.store || other.opening >= address.opening);
        let early = Some(Vec::new());
        let folder = folders.entry(address).or_insert(Folder { shared: Weak::new(), early });
        let early = folder.early.take()?;
        folder.shared = Arc::downgrade(shared);
        Some(early)
    }

    /// The folder of a message. Keeps the message if this member has not opened the folder yet, and
    /// drops it if the store was closed.
    fn find(&self, address: Address, from: MemberId, message: &Message) -> Option<Arc<Shared>> {
        let mut folders = lock(&self.0);
        let is_later =
            |other: &Address| other.store == address.store && other.opening > address.opening;
        if folders.keys().any(is_later) {
            return None;
        }
        let early = Some(Vec::new());
        let folder = folders.entry(address).or_insert(Folder { shared: Weak::new(), early });
        match &mut folder.early {
            Some(early) if early.len() < EARLY_MAX => {
                early.push((from, message.clone()));
                None
            }
            Some(_) => None,
            None => folder.shared.upgrade(),
        }
    }
}

impl Snapshots {
    /// Opens a folder of snapshots of a store at this member. Every member of the job must open it,
    /// or no member can take a snapshot. Nothing is read or written yet. A member opens a folder
    /// once for each store that it has open; its threads share clones of the result. Each store has
    /// a folder of its own.
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
            cancelled: Mutex::default(),
            participating: Mutex::default(),
            is_taking: Mutex::default(),
            is_writing: Mutex::default(),
            next: AtomicU64::new(1),
        });
        // Two folders of a store would take each other's messages.
        let early = Folders::of(shared.job()).add(store.address(), &shared);
        early
            .ok_or(SnapshotError::AlreadyOpen)?
            .into_iter()
            .for_each(|(from, message)| shared.accept(from, message));
        let service = Arc::new(Background(shared.clone()));
        shared
            .job()
            .serve(service)
            .map_err(|error| SnapshotError::Store(StoreError::Engine(error)))?;
        Ok(Snapshots { shared })
    }

    /// Takes a snapshot and waits until it is published.
    ///
    /// It holds all writes that were acknowledged before the call. Of the writes during the call it
    /// holds a consistent part: if a program wrote two keys in order, or in a transaction, the
    /// second write is in the snapshot only with the first.
    pub fn take(&self) -> Result<Taken, SnapshotError> {
        let shared = &*self.shared;
        if std::mem::replace(&mut *lock(&shared.is_taking), true) {
            return Err(SnapshotError::Busy);
        }
        let result = shared.take();
        *lock(&shared.is_taking) = false;
        result
    }

    /// The folder of snapshots.
    pub fn folder(&self) -> &Path {
        &self.shared.folder
    }
}

impl Shared {
    fn job(&self) -> &Job {
        self.store.job()
    }

    /// Receives all messages, also those for the folders of the job's other stores. Coordinator and
    /// participant call it, too: the background may itself wait for the end of the write freeze.
    fn receive(&self) {
        let folders = Folders::of(self.job());
        while let Some(received) = self.job().receive(PORT) {
            let message = Address::open(&received.bytes)
                .and_then(|(address, bytes)| Some((address, Message::decode(bytes)?)));
            let Some((address, message)) = message else { continue };
            if let Some(folder) = folders.find(address, received.from, &message) {
                folder.accept(received.from, message);
            }
        }
    }

    /// Sends an order or an answer to the folder of this store at another member. A member that is
    /// dead needs neither.
    fn send(&self, to: MemberId, message: &Message) {
        let bytes = self.store.address().enclose(&message.encode());
        let _ = self.job().send(to, PORT, &bytes);
    }

    /// Queues an order or an answer, and wakes the activities of this member that wait for it.
    fn accept(&self, from: MemberId, message: Message) {
        if let Message::Cancel { id } = message {
            let mut cancelled = lock(&self.cancelled);
            let newest = cancelled.entry(from).or_default();
            *newest = id.max(*newest);
        } else if message.is_answer() {
            lock(&self.answers).push((from, message));
        } else {
            lock(&self.orders).push((from, message));
        }
        let _ = self.job().ring(self.job().me());
    }

    /// Whether the coordinator has cancelled this attempt.
    fn is_cancelled(&self, coordinator: MemberId, id: u64) -> bool {
        lock(&self.cancelled).get(&coordinator).is_some_and(|&newest| id <= newest)
    }

    /// Sends an answer to the coordinator.
    fn answer(&self, coordinator: MemberId, answer: Message) {
        if coordinator == self.job().me() {
            self.accept(coordinator, answer);
        } else {
            self.send(coordinator, &answer);
        }
    }
}

/// Lets this member take part in the next attempt when it is dropped, also by a panic.
struct EndParticipation<'a>(&'a Shared);

impl Drop for EndParticipation<'_> {
    fn drop(&mut self) {
        *lock(&self.0.participating) = None;
    }
}

/// The background's work: it receives messages and starts a participant for each order to freeze.
struct Background(Arc<Shared>);

impl Service for Background {
    fn is_over(&self) -> bool {
        self.0.store.is_closed() && lock(&self.0.participating).is_none()
    }

    fn run(&self, job: &Job) -> Time {
        let shared = &self.0;
        shared.receive();
        let is_freeze = |(_, order): &(MemberId, Message)| matches!(order, Message::Freeze { .. });
        loop {
            let freeze = {
                let mut orders = lock(&shared.orders);
                orders.iter().position(is_freeze).map(|index| orders.remove(index))
            };
            let Some((from, Message::Freeze { id, epoch, limit_ns })) = freeze else {
                if lock(&shared.participating).is_none() {
                    // The other orders belong to attempts that are over.
                    lock(&shared.orders).retain(is_freeze);
                }
                return Time::NEVER;
            };
            if shared.is_cancelled(from, id) {
                continue;
            }
            let is_busy =
                *lock(&shared.is_writing) || *lock(&shared.participating).get_or_insert(id) != id;
            if is_busy {
                shared.answer(from, Message::Busy { id });
                continue;
            }
            let participant = shared.clone();
            let limit = Duration::from_nanos(limit_ns);
            let body = move || {
                let _end = EndParticipation(&participant);
                participate(&participant, from, id, Epoch(epoch), limit);
            };
            if let Err(error) = job.spawn("snapshot", Box::new(body)) {
                *lock(&shared.participating) = None;
                shared.answer(from, Message::Failed { id, reason: error.to_string() });
            }
        }
    }
}
