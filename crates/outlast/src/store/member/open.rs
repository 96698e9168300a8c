//! Opening and closing the store at a member.
//!
//! Opening checks the options, makes the state, makes this member's root and indexes, and exchanges
//! `Hello` messages with all living members. Closing exchanges `Closing` messages. Both wait until
//! the job's time limit, and neither waits for a dead member.

use crate::engine::{Epoch, Error, MemberId};
use crate::job::Job;
use crate::rma::Communicator;
use crate::store::error::{StoreError, StoreResult};
use crate::store::member::background::Background;
use crate::store::member::counts::Counts;
use crate::store::member::state::{Deferred, StoreState};
use crate::store::memory::slab::zero;
use crate::store::memory::state::MemoryState;
use crate::store::operation::error::engine_error;
use crate::store::operation::freeze::WriteFreeze;
use crate::store::operation::gate::Gate;
use crate::store::operation::leavers::Leavers;
use crate::store::operation::message::{Message, PORT};
use crate::store::operation::participants::Participants;
use crate::store::operation::state::{OperationState, Partition};
use crate::store::operation::stragglers::Stragglers;
use crate::store::options::{Mode, Options};
use crate::store::placement::{Placement, REPLICAS_MAX};
use crate::store::record::hints::ReadHints;
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

impl StoreState {
    /// Opens the store: makes this member's root, and waits until all living members have made
    /// their roots.
    pub(in crate::store) fn open(job: &Job, options: Options) -> StoreResult<Arc<StoreState>> {
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
        let bucket_count =
            (options.expected_keys / partitions).next_power_of_two().clamp(4, 1 << 20);
        let domains = (0..members as u32).map(|member| job.domain(MemberId(member)));
        let domains = domains.collect::<Result<Vec<_>, _>>().map_err(StoreError::Engine)?;
        let layout = Root { partitions };
        // The communicator registers its service before the store does: the store's service runs
        // after it, and finds the revocations that it has received.
        let communicator = match options.mode {
            Mode::Localized => None,
            Mode::Global => Some(Communicator::everyone(job).map_err(rma_error)?),
        };
        let operation = OperationState {
            job: job.clone(),
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
            above: OnceLock::new(),
        };
        let record = RecordState {
            memory: MemoryState::new(operation, options.slab_len_max),
            hints: ReadHints::new(options.expected_keys),
            location_cache: LocationCache::default(),
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
            deferred: Deferred::default(),
            counts: Counts::default(),
            deaths: Mutex::default(),
            deaths_recorded: AtomicU64::new(0),
            is_open: AtomicBool::new(false),
            mismatch: Mutex::new(None),
        });
        let above: Weak<StoreState> = Arc::downgrade(&state);
        let _ = state.above.set(above);
        state.set_up().map_err(engine_error)?;
        job.serve(Arc::new(Background(state.clone()))).map_err(engine_error)?;
        state.greet()?;
        state.is_open.store(true, Ordering::Release);
        job.ring(job.me()).map_err(engine_error)?;
        Ok(state)
    }
}

impl StoreState {
    /// Makes this member's root, and the indexes of the partitions of which it is a replica.
    fn set_up(&self) -> Result<(), Error> {
        let (job, me) = (&self.job, self.job.me());
        let root = job.reserve(self.layout.len())?;
        zero(job, root, self.layout.len())?;
        let view = job.view();
        for partition in 0..self.placement.partitions {
            let replicas = self.replicas(partition, &view);
            if replicas.members.contains(&me) {
                self.make_index(root, partition)?;
                let state = root + self.layout.partition(partition) + PARTITION_STATE;
                job.put(Epoch::ANY, me, state, &State::new(Phase::Complete, 0).0.to_ne_bytes())?;
            }
        }
        self.roots[me.index()].store(root + 1, Ordering::Release);
        // The blocks for tombstones are set aside first, so that keys can be deleted when the
        // segment is full.
        self.refill_slab(TOMBSTONES)?;
        let magic = self.layout.magic(self.bucket_count).to_ne_bytes();
        job.put(Epoch::ANY, me, root + ROOT_MAGIC, &magic)
    }

    /// Tells all members the location of the own root, and waits until the roots of all living
    /// members are known.
    fn greet(&self) -> StoreResult<()> {
        let job = &self.job;
        let hello = Message::Hello {
            root: self.root(job.me()),
            replicas: self.placement.replicas as u64,
            partitions: self.placement.partitions as u64,
            buckets: self.bucket_count as u64,
            checksums: self.checks(),
            mode: self.gate.mode() as u64,
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
            // This check comes after the roots were loaded: the options of a member with a known
            // root have been compared.
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

    /// The word of `Hello` that says whether checksums (1) and salvage (2) are on.
    pub(in crate::store) fn checks(&self) -> u64 {
        u64::from(self.checksums) | u64::from(self.salvage_is_on) << 1
    }

    /// Tells the other members that this member closes the store, and waits until all living
    /// members close it.
    pub(in crate::store) fn close(&self) -> StoreResult<()> {
        let job = &self.job;
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        lock(&self.closing).insert(job.me());
        let others: Vec<MemberId> =
            job.view().living().filter(|&member| member != job.me()).collect();
        for member in others {
            match job.send(member, PORT, &Message::Closing.encode()) {
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
        self.gate.close_for_ever();
        result
    }
}
