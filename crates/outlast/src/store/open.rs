//! Opening and closing a store, and what its members tell each other by messages.

use super::access::Actors;
use super::batch::Deferred;
use super::cut::Frost;
use super::global::{Global, Mode, rma_error};
use super::head::{Phase, State};
use super::hot::Hints;
use super::late::Late;
use super::layout::{MARK, PARTITION_BUCKETS, PARTITION_STATE, Root, TOMBSTONES};
use super::leave::Leaving;
use super::lock::Locks;
use super::loss::Loss;
use super::pin::Pins;
use super::placement::{Homes, Placement, REPLICAS_MAX};
use super::recall::Recall;
use super::reclaim::Reclaim;
use super::remove::Removal;
use super::repair::{Repair, Repaired};
use super::salvage::Salvage;
use super::space::{Place, Space};
use super::stats::Counts;
use super::tx::Transactions;
use super::write::Config;
use super::{PORT, Store, StoreError, StoreResult};
use crate::engine::{Epoch, Error, MemberId, MemberSet, Message, Time, View};
use crate::job::{Job, Service};
use crate::rma::Communicator;
use crate::sync::lock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// How a store is to be; the same at all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    replicas: usize,
    allow_fewer: bool,
    partitions: Option<usize>,
    expected_keys: usize,
    slab_len_max: u64,
    repair_percent: u32,
    checksums: bool,
    mode: Mode,
    sole_writers: bool,
    salvage: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            replicas: 3,
            allow_fewer: true,
            partitions: None,
            expected_keys: 1 << 18,
            slab_len_max: 1 << 20,
            repair_percent: 100,
            checksums: false,
            mode: Mode::Localized,
            sole_writers: false,
            salvage: false,
        }
    }
}

impl Options {
    /// The defaults: three copies, or as many as there are members.
    pub fn new() -> Options {
        Options::default()
    }

    /// How many copies each value has, 1 to [`REPLICAS_MAX`]. More than there are members is an error, unless
    /// [`Options::allow_fewer`] follows.
    pub fn replicas(mut self, replicas: usize) -> Options {
        self.replicas = replicas;
        self.allow_fewer = false;
        self
    }

    /// Opens with fewer copies if there are fewer members.
    pub fn allow_fewer(mut self) -> Options {
        self.allow_fewer = true;
        self
    }

    /// How many partitions there are; by default 256 for each member. More spread the load better and take more
    /// memory.
    pub fn partitions(mut self, partitions: usize) -> Options {
        self.partitions = Some(partitions);
        self
    }

    /// About how many keys there will be: the size of the index. More is possible, and slower.
    pub fn expected_keys(mut self, keys: usize) -> Options {
        self.expected_keys = keys;
        self
    }

    /// How much of a processor each member's background may spend on repair, in percent, 1 to 100; 100 by default. Less
    /// leaves more to the program and makes the time longer in which copies are missing. May differ between members.
    pub fn repair_share(mut self, percent: u32) -> Options {
        self.repair_percent = percent.clamp(1, 100);
        self
    }

    /// Whether each value has a checksum, over its key and version too, that is compared whenever the value is read: what
    /// something else has written into the memory is then [`StoreError::Corrupt`] and never taken for a value.
    pub fn checksums(mut self, checksums: bool) -> Options {
        self.checksums = checksums;
        self
    }

    /// How the members go on after a death: each by itself, which is the default, or all together; see
    /// [`Store::recover`](super::Store::recover).
    pub fn mode(mut self, mode: Mode) -> Options {
        self.mode = mode;
        self
    }

    /// Promises that between two recoveries each key is written by one handle alone ([`Store::slot`]), so that a put by
    /// handle need not look whether its key has been written by others. For [`Mode::Global`] alone. In builds with debug
    /// assertions a broken promise is a panic; in others the version of a value may then come twice.
    pub fn sole_writers(mut self, sole_writers: bool) -> Options {
        self.sole_writers = sole_writers;
        self
    }

    /// Whether survivors read the memory of the dead, where the engine keeps that (shm: the processes of one machine): then
    /// even a store with one copy of each value survives the deaths of processes, all but one of them. Calls on what only the
    /// dead had wait until it is salvaged. Switches [`Options::checksums`] on: what was damaged with its member is lost,
    /// named by [`Store::lost_keys`], and never returned. The memory of the dead is kept until all is salvaged. It does not help
    /// against the loss of the machine, and costs what checksums cost.
    ///
    /// ```
    /// use outlast::store::{Options, Store};
    /// let job = outlast::join()?;
    /// let store = Store::open(&job, Options::new().replicas(1).salvage(true))?;
    /// store.put(b"checkpoint/3", b"state")?; // Survives kill -9 of whoever holds it.
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn salvage(mut self, salvage: bool) -> Options {
        self.salvage = salvage;
        self
    }

    /// The most bytes that a home carves into blocks at once.
    pub fn slab_len_max(mut self, bytes: u64) -> Options {
        self.slab_len_max = bytes.max(4096);
        self
    }
}

/// What members tell each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// I have opened the store: my root, and what options I was given.
    Hello { root: u64, replicas: u64, partitions: u64, buckets: u64, checksums: u64, mode: u64 },
    /// I need blocks of this class at your segment.
    Need { class: u64 },
    /// There are blocks of this class now.
    Granted { class: u64 },
    /// There is no room for blocks of this class.
    Refused { class: u64, reason: String },
    /// I am done with the store.
    Closing,
    /// These blocks of yours are free again; each as in [`super::space::Place`].
    Give { places: Vec<Place> },
    /// Nodes in these buckets of yours are being removed; each is a partition and a bucket in it.
    Marked { buckets: Vec<u64> },
    /// The partition is lost, and you are its first home: give it up.
    Accept { partition: u64 },
    /// The partition lives.
    Accepted { partition: u64 },
    /// The partition could not be given up.
    NotAccepted { partition: u64, reason: String },
    /// You are a home of the partition and have no index of it.
    Fill { partition: u64 },
    /// I am leaving: other homes than me are needed.
    Leaving,
    /// I know that you are leaving, and no operation of mine does not.
    Noted,
    /// All know that I am leaving: bring up the copies that are to replace mine.
    HandOver,
    /// Keys of the partition are lost.
    Damaged { partition: u64 },
}

impl Note {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (tag, words, text): (u8, Vec<u64>, &str) = match self {
            Note::Hello { root, replicas, partitions, buckets, checksums, mode } => {
                (0, vec![*root, *replicas, *partitions, *buckets, *checksums, *mode], "")
            }
            Note::Need { class } => (1, vec![*class], ""),
            Note::Granted { class } => (2, vec![*class], ""),
            Note::Refused { class, reason } => (3, vec![*class], reason),
            Note::Closing => (4, vec![], ""),
            Note::Give { places } => (9, places.iter().map(|place| place.0).collect(), ""),
            Note::Marked { buckets } => (10, buckets.clone(), ""),
            Note::Accept { partition } => (5, vec![*partition], ""),
            Note::Accepted { partition } => (6, vec![*partition], ""),
            Note::NotAccepted { partition, reason } => (7, vec![*partition], reason),
            Note::Fill { partition } => (8, vec![*partition], ""),
            Note::Leaving => (20, vec![], ""),
            Note::Noted => (21, vec![], ""),
            Note::HandOver => (22, vec![], ""),
            Note::Damaged { partition } => (23, vec![*partition], ""),
        };
        let mut bytes = vec![tag];
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(text.as_bytes());
        bytes
    }

    /// What the bytes say; `None` if they say nothing that is known.
    pub(super) fn decode(bytes: &[u8]) -> Option<Note> {
        let (&tag, rest) = bytes.split_first()?;
        let word = |index: usize| -> Option<u64> {
            Some(u64::from_le_bytes(rest.get(index * 8..index * 8 + 8)?.try_into().ok()?))
        };
        let text = || String::from_utf8_lossy(rest.get(8..).unwrap_or_default()).into();
        Some(match tag {
            0 => Note::Hello {
                root: word(0)?,
                replicas: word(1)?,
                partitions: word(2)?,
                buckets: word(3)?,
                checksums: word(4)?,
                mode: word(5)?,
            },
            1 => Note::Need { class: word(0)? },
            2 => Note::Granted { class: word(0)? },
            3 => Note::Refused { class: word(0)?, reason: text() },
            4 => Note::Closing,
            9 => Note::Give { places: (0..rest.len() / 8).map_while(word).map(Place).collect() },
            10 => Note::Marked { buckets: (0..rest.len() / 8).map_while(word).collect() },
            5 => Note::Accept { partition: word(0)? },
            6 => Note::Accepted { partition: word(0)? },
            7 => Note::NotAccepted { partition: word(0)?, reason: text() },
            8 => Note::Fill { partition: word(0)? },
            20 => Note::Leaving,
            21 => Note::Noted,
            22 => Note::HandOver,
            23 => Note::Damaged { partition: word(0)? },
            _ => return None,
        })
    }
}

/// A store at one member.
pub(super) struct Inner {
    pub(super) job: Job,
    pub(super) placement: Placement,
    pub(super) bucket_count: usize,
    pub(super) hints: Hints,
    pub(super) recall: Recall,
    pub(super) slab_len_max: u64,
    /// Whether values have checksums.
    pub(super) checksums: bool,
    pub(super) salvage: Salvage,
    pub(super) layout: Root,
    /// Where each member's root is, plus 1; 0 while unknown.
    roots: Vec<AtomicU64>,
    pub(super) actors: Actors,
    pub(super) late: Late,
    pub(super) pins: Pins,
    pub(super) space: Space,
    /// Per partition: its order of preference, and the configurations that were entered.
    pub(super) partitions: Vec<Partition>,
    view: Mutex<Arc<View>>,
    pub(super) repair: Mutex<Repair>,
    pub(super) repaired: Repaired,
    /// How much of the background's time repair may take, 1 to 100.
    pub(super) repair_percent: u32,
    pub(super) removal: Removal,
    pub(super) reclaim: Mutex<Reclaim>,
    pub(super) locks: Locks,
    pub(super) frost: Frost,
    pub(super) global: Global,
    /// Whether each key is written by one handle alone between two recoveries.
    pub(super) sole_writers: bool,
    pub(super) loss: Loss,
    pub(super) leaving: Leaving,
    pub(super) deferred: Deferred,
    pub(super) counts: Counts,
    pub(super) transactions: Transactions,
    closing: Mutex<MemberSet>,
    /// The activity that does the background's work now, plus 1; 0 if none does.
    background: AtomicU64,
    /// The dead in the order in which this member learned of them.
    pub(super) deaths: Mutex<Vec<MemberId>>,
    /// How many they are.
    pub(super) deaths_noted: AtomicU64,
    /// Whether the roots of all members are known.
    is_open: AtomicBool,
    pub(super) is_closed: AtomicBool,
    /// What differs between the members' options.
    mismatch: Mutex<Option<String>>,
}

/// What is known of a partition. The configurations form a list that only grows: there is one for each death that
/// concerned the partition, and readers need no lock.
#[derive(Default)]
pub(super) struct Partition {
    preference: OnceLock<Vec<MemberId>>,
    pub(super) first: OnceLock<Config>,
}

impl Store {
    /// Opens the store. All living members of the job, spares included, do it once, with the same options.
    pub fn open(job: &Job, options: Options) -> StoreResult<Store> {
        let view = job.view();
        let members = job.members();
        let regulars = view.regulars;
        let invalid = |reason: String| Err(StoreError::Invalid { reason });
        if options.replicas == 0 || options.replicas > REPLICAS_MAX {
            return invalid(format!("{} copies cannot be; 1 to {REPLICAS_MAX}", options.replicas));
        }
        if options.replicas > regulars && !options.allow_fewer {
            return invalid(format!(
                "{} copies need as many members, and the job has {regulars}; allow_fewer() opens with fewer copies",
                options.replicas
            ));
        }
        if options.salvage && job.death_order().is_none() {
            return invalid(
                "salvage needs an engine on which the memory of the dead can be read, which is shm; open the store without it"
                    .into(),
            );
        }
        if options.sole_writers && options.mode != Mode::Global {
            return invalid(
                "sole_writers() needs mode(Mode::Global): in localized mode nobody knows when others take over a key".into(),
            );
        }
        let replicas = options.replicas.min(regulars);
        let partitions = options.partitions.unwrap_or(256 * regulars).clamp(1, 1 << 20);
        let bucket_count =
            (options.expected_keys / partitions).next_power_of_two().clamp(4, 1 << 20);
        let domains = (0..members as u32).map(|member| job.domain(MemberId(member)));
        let domains = domains.collect::<Result<Vec<_>, _>>().map_err(StoreError::Engine)?;
        let layout = Root { partitions };
        // Before the store's own service: what it has heard is then known when that one runs.
        let communicator = match options.mode {
            Mode::Localized => None,
            Mode::Global => Some(Communicator::everyone(job).map_err(rma_error)?),
        };
        let inner = Arc::new(Inner {
            job: job.clone(),
            placement: Placement::new(regulars, members - regulars, replicas, partitions, domains),
            bucket_count,
            hints: Hints::new(options.expected_keys),
            recall: Recall::default(),
            slab_len_max: options.slab_len_max,
            checksums: options.checksums || options.salvage,
            salvage: Salvage::new(options.salvage),
            layout,
            roots: (0..members).map(|_| AtomicU64::new(0)).collect(),
            actors: Actors::new(),
            late: Late::default(),
            pins: Pins::default(),
            space: Space::default(),
            partitions: (0..partitions).map(|_| Partition::default()).collect(),
            global: Global::new(options.mode, communicator, &view),
            sole_writers: options.sole_writers,
            view: Mutex::new(Arc::new(view)),
            repair: Mutex::default(),
            repaired: Repaired::default(),
            repair_percent: options.repair_percent,
            removal: Removal::default(),
            reclaim: Mutex::default(),
            locks: Locks::default(),
            frost: Frost::default(),
            loss: Loss::default(),
            leaving: Leaving::default(),
            deferred: Deferred::default(),
            counts: Counts::default(),
            transactions: Transactions::default(),
            closing: Mutex::default(),
            background: AtomicU64::new(0),
            deaths: Mutex::default(),
            deaths_noted: AtomicU64::new(0),
            is_open: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            mismatch: Mutex::new(None),
        });
        inner.set_up().map_err(engine_error)?;
        job.serve(Arc::new(Background(inner.clone()))).map_err(engine_error)?;
        inner.greet()?;
        inner.is_open.store(true, Ordering::Release);
        job.ring(job.me()).map_err(engine_error)?;
        Ok(Store { inner })
    }
}

pub(super) fn engine_error(error: Error) -> StoreError {
    match error {
        Error::Timeout { member, limit } => StoreError::Timeout { member, limit },
        Error::Ended => StoreError::Closed,
        other => StoreError::Engine(other),
    }
}

impl Inner {
    pub(super) fn me(&self) -> MemberId {
        self.job.me()
    }

    /// Where a member's root is. Known for all who live since the store was opened.
    #[inline(always)]
    pub(super) fn root(&self, member: MemberId) -> u64 {
        self.roots[member.index()].load(Ordering::Acquire).wrapping_sub(1)
    }

    /// Makes this member's root, and the indexes of the partitions that it is a home of.
    fn set_up(&self) -> Result<(), Error> {
        let (job, me) = (&self.job, self.job.me());
        let root = job.reserve(self.layout.len())?;
        zero(job, root, self.layout.len())?;
        let view = job.view();
        for partition in 0..self.placement.partitions {
            let homes = self.homes(partition, &view);
            if homes.members.contains(&me) {
                self.make_index(root, partition)?;
                let state = root + self.layout.partition(partition) + PARTITION_STATE;
                job.put(Epoch::ANY, me, state, &State::new(Phase::Complete, 0).0.to_ne_bytes())?;
            }
        }
        self.roots[me.index()].store(root + 1, Ordering::Release);
        // Set aside before there is anything to delete.
        self.carve(TOMBSTONES)?;
        let mark = self.layout.mark(self.bucket_count).to_ne_bytes();
        job.put(Epoch::ANY, me, root + MARK, &mark)
    }

    /// Notes where the root of a member is that did not come to say so.
    pub(super) fn learn_root(&self, member: MemberId, root: u64) {
        self.roots[member.index()].store(root + 1, Ordering::Release);
    }

    /// Whether it is known where a member's root is.
    pub(super) fn knows_root(&self, member: MemberId) -> bool {
        self.roots[member.index()].load(Ordering::Acquire) != 0
    }

    /// Makes an empty index for a partition at this member.
    pub(super) fn make_index(&self, root: u64, partition: usize) -> Result<(), Error> {
        let buckets = self.job.reserve(self.bucket_count as u64 * 8)?;
        self.put_index(root, partition, buckets)
    }

    /// Makes an empty index in this place.
    pub(super) fn put_index(&self, root: u64, partition: usize, buckets: u64) -> Result<(), Error> {
        let (job, me) = (&self.job, self.job.me());
        zero(job, buckets, self.bucket_count as u64 * 8)?;
        let word = root + self.layout.partition(partition) + PARTITION_BUCKETS;
        job.put(Epoch::ANY, me, word, &buckets.to_ne_bytes())
    }

    /// What is compared of checksums and salvage.
    fn checks(&self) -> u64 {
        u64::from(self.checksums) | u64::from(self.salvage.is_on) << 1
    }

    /// Tells all members where the root is, and waits until all who live have done the same.
    fn greet(&self) -> StoreResult<()> {
        let job = &self.job;
        let hello = Note::Hello {
            root: self.root(job.me()),
            replicas: self.placement.replicas as u64,
            partitions: self.placement.partitions as u64,
            buckets: self.bucket_count as u64,
            checksums: self.checks(),
            mode: self.global.mode() as u64,
        };
        let others: Vec<MemberId> =
            job.view().living().filter(|&member| member != job.me()).collect();
        for member in others {
            match job.send(member, PORT, &hello.encode()) {
                Ok(()) | Err(Error::Dead { .. }) => {}
                Err(error) => return Err(engine_error(error)),
            }
        }
        let limit = job.time_limit();
        let until = job.now().after(limit);
        loop {
            let bell = job.bell();
            let is_unknown =
                |member: &MemberId| self.roots[member.index()].load(Ordering::Acquire) == 0;
            let unknown = job.view().living().find(is_unknown);
            // After the roots: whoever's is known has been compared.
            if let Some(reason) = lock(&self.mismatch).clone() {
                return Err(StoreError::Invalid { reason });
            }
            let Some(member) = unknown else { return Ok(()) };
            if job.has_ended() {
                return Err(StoreError::Closed);
            }
            if job.now() >= until {
                return Err(StoreError::Timeout { member, limit });
            }
            job.park(bell, until);
        }
    }

    /// The order of preference of a partition.
    pub(super) fn preference(&self, partition: usize) -> &[MemberId] {
        self.partitions[partition].preference.get_or_init(|| self.placement.preference(partition))
    }

    /// The homes of a partition under a view.
    pub(super) fn homes(&self, partition: usize, view: &View) -> Homes {
        self.placement.homes(self.preference(partition), view, &self.leaving.members())
    }

    /// The view of an epoch, if it is the current one.
    pub(super) fn view(&self, epoch: Epoch) -> Option<Arc<View>> {
        let known = lock(&self.view).clone();
        if known.epoch == epoch {
            return Some(known);
        }
        let view = Arc::new(self.job.view());
        *lock(&self.view) = view.clone();
        (view.epoch == epoch).then_some(view)
    }

    /// The view as it is now, or was a moment ago.
    pub(super) fn current_view(&self) -> Arc<View> {
        self.view(self.job.epoch()).unwrap_or_else(|| lock(&self.view).clone())
    }

    /// Takes the messages that have come.
    pub(super) fn serve_messages(&self) {
        while let Some(message) = self.job.receive(PORT) {
            self.handle(&message);
        }
    }

    fn handle(&self, message: &Message) {
        let Some(note) = Note::decode(&message.bytes) else { return };
        let from = message.from;
        match note {
            Note::Hello { root, replicas, partitions, buckets, checksums, mode } => {
                let theirs = (replicas, partitions, buckets, checksums, mode);
                let ours = (
                    self.placement.replicas as u64,
                    self.placement.partitions as u64,
                    self.bucket_count as u64,
                    self.checks(),
                    self.global.mode() as u64,
                );
                if theirs != ours {
                    let reason = format!(
                        "{from} opened the store with other options (copies, partitions, buckets, checksums plus 2 for salvage, mode): {theirs:?} there, {ours:?} here"
                    );
                    lock(&self.mismatch).get_or_insert(reason);
                }
                self.roots[from.index()].store(root + 1, Ordering::Release);
                let _ = self.job.ring(self.job.me());
            }
            Note::Need { class } if class as usize <= super::layout::TOMBSTONES => {
                let answer = match self.carve(class as usize) {
                    Ok(()) => Note::Granted { class },
                    Err(error) => Note::Refused { class, reason: error.to_string() },
                };
                // Whoever asked and died needs no answer.
                let _ = self.job.send(from, PORT, &answer.encode());
            }
            Note::Need { .. } => {}
            Note::Granted { class } => {
                self.space.answered(from, class as usize, None);
                let _ = self.job.ring(self.job.me());
            }
            Note::Refused { class, reason } => {
                self.space.answered(from, class as usize, Some(reason));
                let _ = self.job.ring(self.job.me());
            }
            Note::Give { places } => self.take_back(from, &places),
            Note::Marked { buckets } => self.note_marked(&buckets),
            Note::Closing => {
                lock(&self.closing).insert(from);
                let _ = self.job.ring(self.job.me());
            }
            Note::Accept { partition } => self.want_acceptance(from, partition as usize),
            Note::Accepted { .. } => {
                let _ = self.job.ring(self.job.me());
            }
            Note::NotAccepted { partition, reason } => {
                self.acceptance_refused(from, partition as usize, reason);
                let _ = self.job.ring(self.job.me());
            }
            Note::Fill { partition } => self.look_at(partition as usize),
            Note::Leaving => self.note_leaving(from),
            Note::Noted => self.leaving_noted(from),
            Note::HandOver => self.hand_over(from),
            Note::Damaged { partition } => {
                self.note_damage(partition as usize);
            }
        }
    }

    /// Tells the others that this member is done, and waits until all who live are.
    pub(super) fn close(&self) -> StoreResult<()> {
        let job = &self.job;
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        lock(&self.closing).insert(job.me());
        let others: Vec<MemberId> =
            job.view().living().filter(|&member| member != job.me()).collect();
        for member in others {
            match job.send(member, PORT, &Note::Closing.encode()) {
                Ok(()) | Err(Error::Dead { .. }) => {}
                Err(error) => return Err(engine_error(error)),
            }
        }
        let limit = job.time_limit();
        let until = job.now().after(limit);
        let result = loop {
            let bell = job.bell();
            let closing = lock(&self.closing).clone();
            let Some(member) = job.view().living().find(|&member| !closing.contains(member)) else {
                break Ok(());
            };
            if job.now() >= until || job.has_ended() {
                break Err(StoreError::Timeout { member, limit });
            }
            job.park(bell, until);
        };
        self.is_closed.store(true, Ordering::SeqCst);
        self.global.close_for_ever();
        result
    }

    /// Whether this is the background at its own work: it waits for no home for long.
    pub(super) fn is_background(&self) -> bool {
        self.background.load(Ordering::Relaxed) == self.job.activity() + 1
    }

    /// Says that the calling activity does the background's work from now on, or something else.
    pub(super) fn set_background(&self, is_background: bool) {
        let activity = if is_background { self.job.activity() + 1 } else { 0 };
        self.background.store(activity, Ordering::Relaxed);
    }

    /// Whether all who live have said that they are done: then nobody brings up copies any more.
    pub(super) fn is_ending(&self) -> bool {
        let closing = lock(&self.closing).clone();
        self.job.view().living().all(|member| closing.contains(member))
    }
}

/// Writes zeros, in pieces.
fn zero(job: &Job, offset: u64, len: u64) -> Result<(), Error> {
    let zeros = [0; 4096];
    let mut at = 0;
    while at < len {
        let piece = zeros.len().min((len - at) as usize);
        job.put(Epoch::ANY, job.me(), offset + at, &zeros[..piece])?;
        at += piece as u64;
    }
    Ok(())
}

/// How many pieces of repair are done in a row before the others of the background have their turn.
const PIECES: usize = 16;

/// The store's part of a member's background.
struct Background(Arc<Inner>);

impl Service for Background {
    fn run(&self, _: &Job) -> Time {
        self.0.serve_messages();
        if !self.0.is_open.load(Ordering::Acquire) || self.0.is_closed.load(Ordering::Acquire) {
            return Time::NEVER;
        }
        self.0.set_background(true);
        // First: those who wait are to know.
        self.0.watch_gate();
        self.0.accept_some();
        let leave = self.0.leave_some();
        // Several pieces, since it costs more to come here again than to do one.
        let mut repair = self.0.repair_some();
        for _ in 0..PIECES {
            if repair > self.0.job.now() {
                break;
            }
            self.0.serve_messages();
            repair = self.0.repair_some();
        }
        let repair = repair.min(leave).min(self.0.release_orphans()).min(self.0.tell_of_loss());
        let repair = repair.min(self.0.release_remains());
        let repair = repair.min(self.0.remove_some()).min(self.0.reclaim_some());
        repair
            .min(self.0.give_back_some())
            .min(self.0.look_for_late())
            .min(self.0.end_transactions())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_survive_the_way() {
        for note in [
            Note::Hello { root: 1, replicas: 2, partitions: 3, buckets: 4, checksums: 1, mode: 1 },
            Note::Need { class: 5 },
            Note::Granted { class: 6 },
            Note::Refused { class: 7, reason: "no room".into() },
            Note::Closing,
            Note::Give { places: vec![Place(8), Place(9)] },
            Note::Marked { buckets: vec![10, 11] },
            Note::Accept { partition: 8 },
            Note::Accepted { partition: 9 },
            Note::NotAccepted { partition: 10, reason: "no room".into() },
            Note::Fill { partition: 11 },
            Note::Leaving,
            Note::Noted,
            Note::HandOver,
            Note::Damaged { partition: 12 },
        ] {
            assert_eq!(Note::decode(&note.encode()), Some(note));
        }
        assert_eq!(Note::decode(&[]), None);
        assert_eq!(Note::decode(&[0, 1, 2]), None);
        assert_eq!(Note::decode(&[99; 40]), None);
    }
}
