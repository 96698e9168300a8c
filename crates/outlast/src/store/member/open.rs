//! Opening a store at a member.
//!
//! Opening checks the options, makes the state, makes this member's root and indexes, and exchanges
//! `Hello` messages with all living members. It waits until the job's time limit, and does not wait
//! for a dead member. `docs/protocol/opening.md` has the steps.

use crate::engine::deadline::Deadline;
use crate::engine::{Epoch, Error, MemberId, Time, View};
use crate::job::Job;
use crate::rma::Communicator;
use crate::store::error::{StoreError, StoreResult};
use crate::store::member::background::Background;
use crate::store::member::close::Ending;
use crate::store::member::counts::Counts;
use crate::store::member::state::{Deferred, StoreState};
use crate::store::member::stores::{Begin, Hello, Stores};
use crate::store::memory::slab::zero;
use crate::store::memory::state::MemoryState;
use crate::store::operation::error::engine_error;
use crate::store::operation::freeze::WriteFreeze;
use crate::store::operation::gate::Gate;
use crate::store::operation::leavers::Leavers;
use crate::store::operation::message::{Address, Message};
use crate::store::operation::participants::Participants;
use crate::store::operation::state::{OperationState, Partition};
use crate::store::operation::stragglers::Stragglers;
use crate::store::options::{Mode, Options};
use crate::store::placement::{Placement, REPLICAS_MAX};
use crate::store::record::hints::ReadHints;
use crate::store::record::key_locations::KeyLocations;
use crate::store::record::location_cache::LocationCache;
use crate::store::record::lock::Locks;
use crate::store::record::remove::Removals;
use crate::store::record::state::RecordState;
use crate::store::recovery::coordinated::rma_error;
use crate::store::recovery::loss::Loss;
use crate::store::recovery::repair::Repaired;
use crate::store::recovery::salvage::Salvage;
use crate::store::recovery::state::{Coordinated, RecoveryState};
use crate::store::segment::head::{Phase, State};
use crate::store::segment::layout::{PARTITION_STATE, ROOT_MAGIC, Root, TOMBSTONES};
use crate::store::tx::state::{Transactions, TxState};
use crate::sync::lock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// The smallest and the largest number of buckets of an index.
const BUCKETS_MIN: usize = 4;
const BUCKETS_MAX: usize = 1 << 20;

/// The root and each index begin on a cache line of their own.
const LINE: u64 = 64;

impl StoreState {
    /// Opens a store: makes this member's root, and waits until all living members have made their
    /// roots. If another member has begun a later opening of the store, this member begins that
    /// opening, too. If another member has abandoned this opening, this member begins the next.
    pub(in crate::store) fn open(job: &Job, options: &Options) -> StoreResult<Arc<StoreState>> {
        let stores = Stores::of(job);
        let _call = Deadline::call(|| job.now());
        let until = job.deadline();
        loop {
            let state = match stores.begin(job, options)? {
                Begin::Again(state) => state,
                Begin::New(address) => {
                    let made = StoreState::make(job, options.clone(), address, &stores);
                    made.inspect_err(|_| stores.give_up(address))?
                }
            };
            match state.greet(until) {
                Ok(true) if stores.finish(state.address) => {
                    state.is_open.store(true, Ordering::Release);
                    job.ring(job.me()).map_err(engine_error)?;
                    return Ok(state);
                }
                Ok(_) => {
                    state.abandon();
                    stores.give_up(state.address);
                }
                Err(error) => {
                    stores.fail(state.address);
                    return Err(error);
                }
            }
        }
    }

    /// Makes the state of a new opening, with this member's root, and registers it.
    fn make(
        job: &Job,
        options: Options,
        address: Address,
        stores: &Arc<Stores>,
    ) -> StoreResult<Arc<StoreState>> {
        let view = job.view();
        let members = job.members();
        let regulars = view.regulars;
        let invalid = |reason: String| Err(StoreError::Invalid { reason });
        if options.replicas == 0 || options.replicas > REPLICAS_MAX {
            return invalid(format!(
                "number of replicas {} is outside 1..={REPLICAS_MAX}",
                options.replicas
            ));
        }
        if options.replicas > regulars && !options.allow_fewer {
            return invalid(format!(
                "{} replicas need as many members, and the job has {regulars}; \
                 Options::allow_fewer() opens the store with fewer replicas",
                options.replicas
            ));
        }
        if options.salvage && job.death_order().is_none() {
            return invalid(
                "salvage needs an engine that keeps the segments of dead members, which is shm; \
                 open the store without salvage"
                    .into(),
            );
        }
        if options.sole_writers && options.mode != Mode::Global {
            return invalid(
                "sole_writers() needs mode(Mode::Global): in localized mode a member is not told \
                 when another member takes over a key"
                    .into(),
            );
        }
        let replicas = options.replicas.min(regulars);
        let partitions = options.partitions.unwrap_or(256 * regulars).clamp(1, 1 << 20);
        let bucket_count = (options.expected_keys / partitions)
            .clamp(BUCKETS_MIN, BUCKETS_MAX)
            .next_power_of_two();
        let domains = (0..members as u32).map(|member| job.domain(MemberId(member)));
        let domains = domains.collect::<Result<Vec<_>, _>>().map_err(StoreError::Engine)?;
        let layout = Root { partitions };
        // The communicator registers its service before the store does: the store's service runs
        // after it, and finds the revocations that it has received.
        let communicator = match options.mode {
            Mode::Localized => None,
            Mode::Global => Some(Communicator::everyone(job, address.number()).map_err(rma_error)?),
        };
        let operation = OperationState {
            job: job.clone(),
            name: options.name.clone(),
            address,
            placement: Placement::new(regulars, members - regulars, replicas, partitions, domains),
            bucket_count,
            layout,
            roots: (0..members).map(|_| AtomicU64::new(0)).collect(),
            participants: Participants::new(),
            stragglers: Stragglers::default(),
            partitions: (0..partitions).map(|_| Partition::default()).collect(),
            freeze: WriteFreeze::default(),
            gate: Gate::new(options.mode, &view),
            leavers: Leavers::default(),
            salvage_is_on: options.salvage,
            view: Mutex::new(Arc::new(view)),
            background: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            late: Mutex::default(),
            above: OnceLock::new(),
        };
        let record = RecordState {
            memory: MemoryState::new(operation, options.slab_len_max),
            hints: ReadHints::new(options.expected_keys),
            location_cache: LocationCache::default(),
            key_locations: KeyLocations::new(options.expected_keys),
            checksums: options.checksums || options.salvage,
            sole_writers: options.sole_writers,
            removal: Removals::default(),
            locks: Locks::default(),
        };
        let recovery = RecoveryState {
            tx: Arc::new(TxState { record, transactions: Transactions::default() }),
            repair: Mutex::default(),
            repaired: Repaired::default(),
            repair_percent: options.repair_percent,
            reclaim: Mutex::default(),
            loss: Loss::default(),
            salvage: Salvage::default(),
            coordinated: Coordinated {
                is_recovering: AtomicBool::new(false),
                is_in_procedure: AtomicBool::new(false),
                communicator: Mutex::new(communicator),
            },
            closing: Mutex::default(),
        };
        let state = Arc::new(StoreState {
            recovery,
            options,
            stores: stores.clone(),
            ending: Ending::new(),
            deferred: Deferred::default(),
            counts: Counts::default(),
            deaths: Mutex::default(),
            deaths_recorded: AtomicU64::new(0),
            is_open: AtomicBool::new(false),
            mismatches: Mutex::default(),
        });
        let above: Weak<StoreState> = Arc::downgrade(&state);
        let _ = state.above.set(above);
        state.set_up()?;
        stores.register(&state)?;
        job.serve(Arc::new(Background(state.clone()))).map_err(engine_error)?;
        Ok(state)
    }
}

impl StoreState {
    /// Makes this member's root, and the indexes of the partitions of which it is a replica. If it
    /// fails, the memory goes back with this state, since no other member knows the root.
    fn set_up(&self) -> StoreResult<()> {
        let (job, me) = (&self.job, self.job.me());
        let view = job.view();
        let is_mine = |partition: &usize| self.replicas(*partition, &view).members.contains(&me);
        let indexes: Vec<usize> = (0..self.placement.partitions).filter(is_mine).collect();
        let root_len = self.layout.len().next_multiple_of(LINE);
        let index_len = |buckets: usize| (buckets as u64 * 8).next_multiple_of(LINE);
        let needed = |buckets| root_len + indexes.len() as u64 * index_len(buckets);
        let len = needed(self.bucket_count);
        // The length is known before any memory is taken, so that an index which does not fit is
        // refused at once.
        let room = job.reservable().map_err(engine_error)?;
        if len > room {
            let mut smaller = std::iter::successors(Some(self.bucket_count / 2), |buckets| {
                (*buckets > BUCKETS_MIN).then_some(buckets / 2)
            });
            let advice = match smaller.find(|&buckets| needed(buckets) <= room) {
                Some(buckets) => format!(
                    "Options::expected_keys() of at most {} fits",
                    buckets.saturating_mul(self.placement.partitions)
                ),
                None => "open the store with fewer partitions".into(),
            };
            let reason = format!(
                "the store's tables need {len} bytes of this member's segment, which has room for \
                 {room}: {advice}, or start the job with more memory (--memory)"
            );
            return Err(StoreError::OutOfMemory { member: me, reason });
        }
        let root = self.reserve(len).map_err(engine_error)?;
        let fill = || -> Result<(), Error> {
            zero(job, root, self.layout.len())?;
            for (number, &partition) in (0..).zip(&indexes) {
                let buckets = root + root_len + number * index_len(self.bucket_count);
                self.put_index(root, partition, buckets)?;
                let state = root + self.layout.partition(partition) + PARTITION_STATE;
                job.put(Epoch::ANY, me, state, &State::new(Phase::Complete, 0).0.to_ne_bytes())?;
            }
            self.roots[me.index()].store(root + 1, Ordering::Release);
            // The blocks for tombstones are set aside first, so that keys can be deleted when the
            // segment is full.
            self.refill_slab(TOMBSTONES)?;
            let magic = self.root_magic().to_ne_bytes();
            job.put(Epoch::ANY, me, root + ROOT_MAGIC, &magic)
        };
        fill().map_err(engine_error)
    }

    /// Tells all members the location of the own root, and waits until the roots of all living
    /// members are known. Returns `false` if a member has begun a later opening of the store, or
    /// has abandoned this one.
    fn greet(&self, until: Time) -> StoreResult<bool> {
        let job = &self.job;
        let [replicas, partitions, buckets, checksums, mode] = self.option_words();
        let hello = Message::Hello {
            root: self.root(job.me()),
            replicas,
            partitions,
            buckets,
            checksums,
            mode,
            name: self.name.clone(),
        };
        if self.ending.is_forgotten.load(Ordering::Relaxed)
            && self.stores.is_overtaken(self.address)
        {
            // Members may have said that they are quiet before this opening was registered. It ends
            // before any member knows of it.
            self.stores.forget(self.address);
            return Ok(false);
        }
        // Other members may reach the memory of this opening from now on.
        self.ending.is_forgotten.store(false, Ordering::Relaxed);
        let others: Vec<MemberId> =
            job.view().living().filter(|&member| member != job.me()).collect();
        for member in others {
            match self.send(member, &hello) {
                Ok(()) | Err(Error::Dead { .. }) => {}
                Err(error) => return Err(engine_error(error)),
            }
        }
        // Members before this one are dead, or their roots are known, and stay so: in a large job a
        // scan of all members after each greeting would take most of the time.
        let mut next = MemberId(0);
        loop {
            let bell = job.bell();
            // This may be the background: a listener of `on_loss` may open a store.
            self.serve_messages();
            let view = job.view();
            // A member whose options differ may have begun the next opening already, since it has
            // found the difference, too. The program hears of the difference first.
            if let Some(reason) = self.mismatch(&view) {
                return Err(StoreError::Invalid { reason });
            }
            if self.stores.is_overtaken(self.address) {
                return Ok(false);
            }
            while next.index() < job.members() && (!view.is_living(next) || self.knows_root(next)) {
                next = MemberId(next.0 + 1);
            }
            if next.index() == job.members() {
                return Ok(true);
            }
            if job.has_ended() {
                return Err(StoreError::Closed);
            }
            if job.now() >= until {
                return Err(StoreError::Timeout { member: next, limit: job.time_limit() });
            }
            job.park(bell, until);
        }
    }

    /// Whether all living members have opened the store since a call of `open` of this member has
    /// failed: others may use it. This member then does its part for them, and its next call of
    /// `open` takes the opening up.
    pub(in crate::store::member) fn opens_late(&self) -> bool {
        if !self.stores.has_failed(self.address) {
            return false;
        }
        let view = self.job.view();
        let is_complete =
            self.mismatch(&view).is_none() && view.living().all(|member| self.knows_root(member));
        if is_complete {
            self.is_open.store(true, Ordering::Release);
        }
        is_complete
    }

    /// Records the root of a member that opens this store, or that its options differ.
    pub(in crate::store::member) fn greeted_by(&self, member: MemberId, hello: Hello) {
        let (theirs, ours) = (hello.options, self.option_words());
        if theirs == ours {
            self.learn_root(member, hello.root);
            return;
        }
        let reason = format!(
            "{member} opened the store {:?} with other options (replicas, partitions, buckets, \
             checksums plus 2 for salvage, mode): {theirs:?} there, {ours:?} here; all members \
             have to open it with equal options",
            self.name
        );
        lock(&self.mismatches).insert(member, reason);
    }

    /// Whether a member has said that it opens this opening of the store.
    pub(in crate::store::member) fn has_greeted(&self, member: MemberId) -> bool {
        self.knows_root(member) || lock(&self.mismatches).contains_key(&member)
    }

    /// The difference between the options of a living member and the own options.
    pub(in crate::store::member) fn mismatch(&self, view: &View) -> Option<String> {
        let mismatches = lock(&self.mismatches);
        let mut living = mismatches.iter().filter(|(member, _)| view.is_living(**member));
        living.next().map(|(_, reason)| reason.clone())
    }

    /// The words of `Hello` that have to be equal at all members.
    fn option_words(&self) -> [u64; 5] {
        [
            self.placement.replicas as u64,
            self.placement.partitions as u64,
            self.bucket_count as u64,
            self.checks(),
            self.gate.mode() as u64,
        ]
    }

    /// The word of `Hello` that says whether checksums (1) and salvage (2) are on.
    fn checks(&self) -> u64 {
        u64::from(self.checksums) | u64::from(self.salvage_is_on) << 1
    }
}
