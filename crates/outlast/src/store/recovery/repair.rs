//! Repair: filling the new replicas that replace the replicas of dead members.
//!
//! When the epoch has changed, the background of each member visits the partitions that it is a
//! replica of. A new replica makes its index. The primary reconciles every record and copies it to
//! the filling replicas, then marks them as complete. The work is done in small pieces, so that the
//! background also serves messages.
#![cfg_attr(outlast_pages, doc = include_str!("../../../../../docs/protocol/repair.md"))]

use crate::engine::deadline::Deadline;
use crate::engine::{Epoch, MemberId, MemberSet, Time};
use crate::store::error::{StoreError, StoreResult};
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::operation::message::Message;
use crate::store::placement::replica::{ReplicaIndex, ReplicaSet};
use crate::store::placement::{Assignment, REPLICA_LIST_MAX};
use crate::store::record::state::RecordOp;
use crate::store::recovery::salvage::{Fate, Salvaged};
use crate::store::recovery::state::RecoveryState;
use crate::store::segment::head::{Phase, State};
use crate::store::segment::layout::{Kind, PARTICIPANTS, PARTITION_STATE};
use crate::store::steps;
use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of buckets that a piece of work visits at most. Most buckets are empty or have a
/// single record.
const PIECE: usize = 256;

/// The number of records after which a piece of work ends.
const PIECE_RECORDS: usize = 8;

/// How long to wait for a replica that has not made its index yet, or for a stopped repairer.
const REPAIR_PAUSE: Duration = Duration::from_millis(5);

/// The longest pause between two looks at a stopped replica. Pauses double up to this.
const REPAIR_PAUSE_MAX: Duration = Duration::from_millis(100);

/// The longest pause before a replica without room is tried again. Each attempt visits all records.
const FULL_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long the operation counters of the primary may stay unchanged before the next complete
/// replica takes over its work.
const TAKEOVER: Duration = Duration::from_secs(1);

/// How long to wait for the index of a new replica before that replica is reminded.
const REMIND: Duration = Duration::from_millis(100);

/// What this member has repaired since the store was opened.
///
/// Orderings: all fields are Relaxed. The counts are for statistics. `logged` only decides which
/// thread writes a log line. No other data depends on them.
#[derive(Default)]
pub(in crate::store) struct Repaired {
    pub(in crate::store) replicas: AtomicU64,
    pub(in crate::store) records: AtomicU64,
    pub(in crate::store) takeovers: AtomicU64,
    /// The epoch whose deaths were written to the log.
    logged: AtomicU64,
}

/// The partitions that this member still has to visit.
pub(in crate::store) struct Repair {
    /// The epoch of the view for which `left` was filled; `None` to visit all partitions again.
    epoch: Option<Epoch>,
    left: VecDeque<Work>,
    /// Partitions in which another member has to act first: for example a new replica without an
    /// index.
    waiting: Vec<Work>,
    /// The pause before the next look at the waiting partitions.
    pause: Duration,
    /// When `Options::repair_share` allows the next piece of work.
    not_before: Time,
    /// Whether an activity of this member repairs, or makes an index.
    is_busy: bool,
}

impl Default for Repair {
    fn default() -> Repair {
        // When the store is opened, all replicas are complete.
        let epoch = Some(Epoch(0));
        Repair {
            epoch,
            left: VecDeque::new(),
            waiting: Vec::new(),
            pause: REPAIR_PAUSE,
            not_before: Time(0),
            is_busy: false,
        }
    }
}

impl Repair {
    /// Takes the work in a partition out of the lists.
    fn take(&mut self, partition: usize) -> Option<Work> {
        let is_it = |work: &Work| work.partition == partition;
        match self.left.iter().position(is_it) {
            Some(index) => self.left.remove(index),
            None => {
                self.waiting.iter().position(is_it).map(|index| self.waiting.swap_remove(index))
            }
        }
    }
}

/// The work in a partition, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Work {
    partition: usize,
    /// The number of buckets that were visited, over all ready replicas.
    position: usize,
    config_number: u64,
    /// The replicas that had an index when the round began. A replica that gets its index
    /// later lacks the records that were copied before, and has to wait for the next round.
    ready: ReplicaSet,
    /// The states of these replicas at that time. An operation that skips a full replica changes
    /// the replica's state, so that *complete* fails.
    states: [State; REPLICA_LIST_MAX],
    /// The replicas that have no room for a record that they lack.
    full: ReplicaSet,
    /// When to try again after a replica had no room, and the pause before that attempt.
    retry: Time,
    pause: Duration,
    /// Since when a new replica has had no index, or when it was last reminded.
    since: Option<Time>,
    /// For a partition with another member as its primary: the sum of the primary's operation
    /// counters at the last look, and since when it has not changed.
    pulse: Option<(u64, Time)>,
    /// Whether this member has taken over the work of the primary.
    is_taken_over: bool,
}

impl Work {
    fn new(partition: usize) -> Work {
        Work {
            partition,
            position: 0,
            config_number: 0,
            ready: ReplicaSet::EMPTY,
            states: [State(0); REPLICA_LIST_MAX],
            full: ReplicaSet::EMPTY,
            retry: Time(0),
            pause: REPAIR_PAUSE,
            since: None,
            pulse: None,
            is_taken_over: false,
        }
    }
}

/// How a piece of work ended.
enum Progress {
    /// Nothing is left to do in this partition.
    Done,
    /// There is more to do, from this position on.
    More(Work),
    /// Another member must act first.
    Waiting(Work),
}

impl RecoveryState {
    /// Does a piece of repair, for the background or for a call that takes its place. Returns when
    /// to go on.
    pub(in crate::store) fn repair_some(&self) -> Time {
        self.repair_or_salvage(None)
    }

    /// Does a piece of the salvage of this partition, for a call that waits for it. If another
    /// activity repairs, it salvages this partition next. Returns when to go on.
    ///
    /// The call does nothing else: the salvage needs only this member and a dead segment, and the
    /// repair of another partition may have to wait for a stopped replica.
    pub(in crate::store) fn salvage_some(&self, partition: usize) -> Time {
        // The work of the background, whoever does it: a message to a member that is stopped waits
        // for a short time.
        let _background = Deadline::background(std::iter::empty());
        self.repair_or_salvage(Some(partition))
    }

    /// Does a piece of repair, or with `only` a piece of the salvage of this partition.
    fn repair_or_salvage(&self, only: Option<usize>) -> Time {
        let (epoch, began) = (self.job.epoch(), self.job.now());
        self.log_deaths();
        let work = {
            let mut repair = lock(&self.repair);
            if repair.is_busy {
                if let Some(work) = only.and_then(|partition| repair.take(partition)) {
                    repair.left.push_front(work);
                }
                // A call that salvages its own partition may be the busy activity. It leaves the
                // other partitions to the background and rings no bell, so the background looks
                // again.
                return began.after(REPAIR_PAUSE);
            }
            if began < repair.not_before {
                return repair.not_before;
            }
            if repair.epoch != Some(epoch) {
                repair.epoch = Some(epoch);
                repair.waiting.clear();
                repair.left.clear();
                let all = 0..self.placement.partitions;
                repair.left = all.map(Work::new).collect();
            }
            if repair.left.is_empty() {
                let waiting = std::mem::take(&mut repair.waiting);
                repair.left.extend(waiting);
            }
            let work = match only {
                None => repair.left.pop_front(),
                Some(partition) => repair.take(partition),
            };
            let Some(work) = work else { return Time::NEVER };
            repair.is_busy = true;
            work
        };
        if self.is_ending() {
            lock(&self.repair).is_busy = false;
            return Time::NEVER;
        }
        let result = match RecordOp::begin(self) {
            Ok(op) if only.is_some() => self.salvage_alone(&op, work),
            Ok(op) => self.repair_piece(&op, work),
            Err(error) => Err(error),
        };
        match &result {
            Err(OpError::Lost(partition)) => {
                tracing::error!(partition, "all replicas of a partition are lost");
            }
            Err(OpError::Fail(StoreError::Timeout { member, .. })) => {
                tracing::debug!(
                    partition = work.partition,
                    member = member.0,
                    "repair waits for a replica"
                );
            }
            Err(OpError::Fail(error)) => {
                tracing::warn!(partition = work.partition, %error, "repair is held up");
            }
            _ => {}
        }
        // The engine is never called under the lock.
        let now = self.job.now();
        let rest = now.since(began) * (100 - self.repair_percent) / self.repair_percent;
        let is_done = matches!(result, Ok(Progress::Done | Progress::More(_)));
        let (is_idle, is_waiting, pause) = {
            let mut repair = lock(&self.repair);
            repair.is_busy = false;
            repair.not_before = now.after(rest);
            repair.pause = match is_done {
                true => REPAIR_PAUSE,
                false => (repair.pause * 2).min(REPAIR_PAUSE_MAX),
            };
            match result {
                Ok(Progress::Done) => {}
                Ok(Progress::More(work)) => repair.left.push_front(work),
                Ok(Progress::Waiting(work)) => repair.waiting.push(work),
                // If the view has changed, the list is made again. Otherwise another member was
                // faster, or a transaction or a freeze is in the way.
                Err(
                    OpError::Again | OpError::Needs(..) | OpError::Blocked(_) | OpError::Frozen,
                ) => repair.left.push_back(Work::new(work.partition)),
                // A lost partition and a closed store have nothing to repair. After any other
                // failure the partition is tried again. If a replica has not answered, the round
                // goes on where it was: everything before this piece is copied, as at the end of a
                // piece. Rounds from the start might never end if replicas are slow now and then.
                Err(OpError::Lost(_) | OpError::Fail(StoreError::Closed)) => {}
                Err(OpError::Fail(StoreError::Timeout { .. })) => repair.waiting.push(work),
                Err(OpError::Fail(_)) => {
                    let Work { partition, pulse, is_taken_over, .. } = work;
                    repair.waiting.push(Work { pulse, is_taken_over, ..Work::new(partition) });
                }
            }
            (repair.left.is_empty(), !repair.waiting.is_empty(), repair.pause)
        };
        match (is_idle, is_waiting) {
            // The partitions that are left are no work for the call.
            _ if only.is_some() => now.after(if is_done { rest } else { rest.max(REPAIR_PAUSE) }),
            (false, _) => now.after(rest),
            (true, true) => now.after(pause.max(rest)),
            (true, false) => Time::NEVER,
        }
    }

    /// Writes a log line for each new epoch.
    fn log_deaths(&self) {
        let epoch = self.job.epoch();
        if self.repaired.logged.swap(epoch.0, Ordering::Relaxed) == epoch.0 {
            return;
        }
        let view = self.job.view();
        tracing::warn!(member = self.me().0, epoch = epoch.0, dead = %view.dead, left = %view.left, "members are gone");
    }

    /// Claims the right to make indexes at this member, which a single activity has at a time.
    /// Returns whether the claim succeeded.
    pub(in crate::store::recovery) fn begin_indexes(&self) -> bool {
        !std::mem::replace(&mut lock(&self.repair).is_busy, true)
    }

    /// Gives up the right that [`RecoveryState::begin_indexes`] has claimed.
    pub(in crate::store::recovery) fn end_indexes(&self) {
        lock(&self.repair).is_busy = false;
        let _ = self.job.ring(self.me());
    }

    /// Schedules a visit of a partition: its replicas have changed without a change of the view.
    pub(in crate::store) fn schedule_repair(&self, partition: usize) {
        if partition < self.placement.partitions {
            lock(&self.repair).left.push_back(Work::new(partition));
            let _ = self.job.ring(self.me());
        }
    }

    /// Schedules a visit of all partitions.
    pub(in crate::store::recovery) fn schedule_all_repairs(&self) {
        lock(&self.repair).epoch = None;
        let _ = self.job.ring(self.me());
    }

    /// Counts the replicas that are not complete, in the partitions that this member is the primary
    /// of or in all partitions. Lost partitions are counted as well.
    pub(in crate::store) fn count_missing_replicas(
        &self,
        only_mine: bool,
    ) -> StoreResult<RepairStatus> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let mut status = RepairStatus { replicas_missing: 0, partitions_lost: 0 };
        let leaving = self.leavers.members();
        for partition in 0..self.placement.partitions {
            let counted = self.run_or_lost(|op| {
                let config = op.config(partition)?;
                let mut missing = 0;
                if !only_mine || config.primary_member() == self.me() {
                    for &replica in
                        config.replicas.iter().filter(|&&replica| !leaving.contains(replica))
                    {
                        missing +=
                            usize::from(op.state(replica, partition)?.phase() != Phase::Complete);
                    }
                }
                if op.is_current() { Ok(missing) } else { Err(OpError::Again) }
            });
            match counted {
                Ok(Some(count)) => status.replicas_missing += count,
                Ok(None) if self.fate(partition)? == Fate::Lost => status.partitions_lost += 1,
                // The partition is being salvaged.
                Ok(None) => status.replicas_missing += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(status)
    }
}

/// What repair has left to do at a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct RepairLeft {
    /// The partitions that this member still has to visit.
    pub(in crate::store) partitions: usize,
    /// The replicas that are known to be missing in the partitions of which it is the primary.
    pub(in crate::store) replicas: usize,
}

impl RecoveryState {
    /// What repair has left to do at this member, without any request to another member and without
    /// a wait: for the status page. It finds nothing in partitions whose configuration this member
    /// has not entered yet, which it does at its visit.
    pub(in crate::store) fn repair_left(&self) -> RepairLeft {
        let visits: Vec<usize> = {
            let repair = lock(&self.repair);
            if repair.left.is_empty() && repair.waiting.is_empty() && !repair.is_busy {
                return RepairLeft::default();
            }
            repair.left.iter().chain(&repair.waiting).map(|work| work.partition).collect()
        };
        let (epoch, leaving) = (self.job.epoch(), self.leavers.members());
        let is_missing = |replica: MemberId, partition: usize| {
            let word = self.root(replica) + self.layout.partition(partition) + PARTITION_STATE;
            let state = self.job.load(Epoch::ANY, replica, word);
            state.is_ok_and(|state| State(state).phase() != Phase::Complete)
        };
        let missing = |&partition: &usize| {
            let config = self.known_configuration(partition, epoch);
            let Some(config) = config.filter(|config| config.primary_member() == self.me()) else {
                return 0;
            };
            match self.job.is_mapped() {
                true => {
                    let replicas = config.replicas.iter().filter(|&&r| !leaving.contains(r));
                    replicas.filter(|&&replica| is_missing(replica, partition)).count()
                }
                // Over a network the states of the other replicas are not at hand.
                false => 1,
            }
        };
        RepairLeft { partitions: visits.len(), replicas: visits.iter().map(missing).sum() }
    }
}

/// The progress of repair in the whole job, at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairStatus {
    /// The number of replicas that still have to be filled. Lost partitions do not count.
    pub replicas_missing: usize,
    /// The number of lost partitions; see [`Store::accept_loss`](crate::store::Store::accept_loss).
    pub partitions_lost: usize,
}

impl RepairStatus {
    /// Whether every partition that is not lost has all its replicas: R, or as many as members
    /// live.
    pub fn is_repaired(&self) -> bool {
        self.replicas_missing == 0
    }
}

impl RecoveryState {
    /// Does a piece of the repair of a partition.
    fn repair_piece(&self, op: &RecordOp<'_>, mut work: Work) -> OpResult<Progress> {
        let store = self;
        // This member is a replica of few partitions. Placement tells that without any request.
        let view = store.view(op.epoch).ok_or(OpError::Again)?;
        let replicas = store.replicas(work.partition, &view);
        if !replicas.members.contains(&store.me()) {
            return Ok(Progress::Done);
        }
        let config = match op.config(work.partition) {
            Err(OpError::Lost(_)) if store.salvage_is_on => {
                return self.salvage_piece(op, work, &replicas);
            }
            config => config?,
        };
        if store.job.now() < work.retry {
            return Ok(Progress::Waiting(work));
        }
        if work.config_number != config.config_number {
            work = Work { config_number: config.config_number, ..Work::new(work.partition) };
        }
        let primary = config.primary_member();
        // Until `leave.hand_over` a member may still write by the old list, and does not check the
        // new replicas. Repair rests until then.
        if !store.leavers.may_fill(&config.replicas) {
            return Ok(Progress::Done);
        }
        let leaving = store.leavers.members();
        // *make_index*: this member is a new replica.
        let state = op.state(store.me(), work.partition)?;
        if state.is_absent() && !leaving.contains(store.me()) {
            steps::enter(steps::Step::RepairMakeIndex);
            op.renew_index(work.partition)?;
            let filling = State::new(Phase::Filling, config.config_number);
            if !op.swap_state(store.me(), work.partition, state, filling)? {
                return Err(OpError::Again);
            }
            tracing::debug!(partition = work.partition, "a new replica is to be filled here");
            let _ = store.job.ring(primary);
        }
        if primary != store.me() && !work.is_taken_over {
            if !self.watch(op, &mut work, config, &leaving)? {
                return Ok(Progress::Done);
            }
            if !work.is_taken_over {
                return Ok(Progress::Waiting(work));
            }
        }
        // *load_state*: each writer that publishes from now on sees the replicas that are filling
        // now.
        if work.position == 0 {
            op.find_new_replicas(config, work.partition)?;
            let ready = config.indices().filter(|&replica| config.is_ready(replica));
            let ready: ReplicaSet = ready.collect();
            if work.since.is_some() && work.ready == ready {
                // The replicas that were missing after the last round are still missing.
                return Ok(self.wait_for_replicas(op, work, config, &leaving));
            }
            (work.ready, work.full) = (ready, ReplicaSet::EMPTY);
            for replica in config.indices().filter(|&replica| ready.contains(replica)) {
                work.states[replica] = op.state(config.member(replica), work.partition)?;
            }
        }
        let ready: Vec<ReplicaIndex> =
            config.indices().filter(|&replica| work.ready.contains(replica)).collect();
        let mut filling = Vec::new();
        for &replica in &ready {
            let is_full = work.full.contains(replica);
            if !is_full
                && op.state(config.member(replica), work.partition)?.phase() == Phase::Filling
            {
                filling.push(replica);
            }
        }
        // *copy*: all buckets of all ready replicas. A record that only another replica has must be
        // reconciled, too.
        let positions = ready.len() * store.bucket_count;
        let mut end = (work.position + PIECE).min(positions);
        let mut records = 0;
        for position in work.position..end {
            let (replica, bucket) =
                (ready[position / store.bucket_count], position % store.bucket_count);
            for node in op.nodes(config, replica, work.partition, bucket)? {
                let key = store.any_key_ref(&node.key);
                let word = op.find_or_insert(config, config.primary, &key)?;
                let head = op.reconciled_or_written(config, &key, word)?;
                // *count_visit*, at each record that the primary had when the round began. A write
                // that began before the round may be about to publish there.
                if replica == config.primary && filling.iter().any(|&it| !work.full.contains(it)) {
                    op.count_visit(config, word, head)?;
                }
                for &target in &filling {
                    if work.full.contains(target) {
                        continue;
                    }
                    steps::enter(steps::Step::RepairCopy);
                    match op.copy_record(config, &key, word, target) {
                        Err(OpError::Fail(StoreError::OutOfMemory { member, reason }))
                            if member == config.member(target) =>
                        {
                            // The other replicas go on, and the full replica is tried again.
                            tracing::warn!(partition = work.partition, member = member.0, %reason, "no room for a replica");
                            work.full.insert(target);
                        }
                        copied => copied?,
                    }
                }
                // The member that deleted the key, or that left the record empty, may be dead. This
                // member has the record removed.
                match head.offset().map(|offset| op.read_block(primary, offset)).transpose()? {
                    None => store.record_tombstone(&node.key, 0),
                    // A buried intent stays until a transaction uses its record again.
                    Some(block) if block.is_deleted && block.len > 0 => {}
                    Some(block) if block.is_deleted => {
                        store.record_tombstone(&node.key, block.counter)
                    }
                    Some(block) if block.kind == Kind::Lost => {
                        self.report_damage(op, work.partition)
                    }
                    Some(_) => {}
                }
                records += 1;
            }
            if records >= PIECE_RECORDS {
                end = position + 1;
                break;
            }
        }
        if end < positions {
            return Ok(Progress::More(Work { position: end, ..work }));
        }
        if !op.is_current() {
            return Err(OpError::Again);
        }
        // *raise_floor*.
        let floor = op.floor(primary, work.partition)?;
        for &replica in &filling {
            op.raise_floor(config.member(replica), work.partition, floor)?;
        }
        // *complete*, from exactly the state that *load_state* recorded.
        let mut is_left_out = false;
        for replica in filling.into_iter().filter(|&replica| !work.full.contains(replica)) {
            steps::enter(steps::Step::RepairComplete);
            let (member, from) = (config.member(replica), work.states[replica]);
            if op.swap_state(
                member,
                work.partition,
                from,
                State::new(Phase::Complete, config.config_number),
            )? {
                tracing::debug!(
                    partition = work.partition,
                    replica = member.0,
                    "a replica is complete"
                );
                store.repaired.replicas.fetch_add(1, Ordering::Relaxed);
            } else {
                is_left_out |= op.state(member, work.partition)?.is_filling(config.config_number);
            }
        }
        if !work.full.is_empty() || is_left_out {
            // The next round starts over, after a pause.
            let pause = (work.pause * 2).min(FULL_PAUSE_MAX);
            return Ok(Progress::Waiting(Work {
                config_number: config.config_number,
                is_taken_over: work.is_taken_over,
                retry: store.job.now().after(pause),
                pause,
                ..Work::new(work.partition)
            }));
        }
        if !self.missing_replicas(op, &work, config, &leaving).is_empty() {
            return Ok(self.wait_for_replicas(op, work, config, &leaving));
        }
        Ok(Progress::Done)
    }

    /// Does a piece of the salvage of a partition, and leaves a partition to the background that
    /// needs no salvage any more.
    fn salvage_alone(&self, op: &RecordOp<'_>, work: Work) -> OpResult<Progress> {
        match op.config(work.partition) {
            Ok(_) => Ok(Progress::More(work)),
            Err(OpError::Lost(_)) => {
                let view = self.view(op.epoch).ok_or(OpError::Again)?;
                self.salvage_piece(op, work, &self.replicas(work.partition, &view))
            }
            Err(error) => Err(error),
        }
    }

    /// Does a piece of the salvage of a partition that has no complete living replica.
    fn salvage_piece(
        &self,
        op: &RecordOp<'_>,
        work: Work,
        replicas: &Assignment,
    ) -> OpResult<Progress> {
        let (store, partition) = (self, work.partition);
        let position = if work.config_number == replicas.configuration { work.position } else { 0 };
        match self.salvage(op, partition, replicas, position)? {
            Salvaged::Until(position) => {
                let config_number = replicas.configuration;
                Ok(Progress::More(Work { position, config_number, ..Work::new(partition) }))
            }
            Salvaged::All => {
                tracing::warn!(partition, "a lost partition was salvaged");
                let note = Message::Fill { partition: partition as u64 };
                for &replica in replicas.members.iter().filter(|&&replica| replica != store.me()) {
                    // Repair reminds a replica that does not get this message.
                    let _ = store.try_send(replica, &note);
                }
                Ok(Progress::More(Work::new(partition)))
            }
            Salvaged::ByAnother => Ok(Progress::Done),
            Salvaged::Nothing => Err(OpError::Lost(partition)),
        }
    }

    /// Watches the primary, as another replica. Returns whether a replica is still incomplete. If
    /// the primary's operation counters do not change for a while, the primary is stopped, and this
    /// member takes over its work. Several repairers are harmless.
    fn watch(
        &self,
        op: &RecordOp<'_>,
        work: &mut Work,
        config: &Configuration,
        leaving: &MemberSet,
    ) -> OpResult<bool> {
        let (store, me) = (self, self.me());
        let (mut is_incomplete, mut rank) = (false, 0);
        let mut own_rank = None;
        for (index, replica) in config.enumerate() {
            let is_complete = op.state(replica, work.partition)?.phase() == Phase::Complete;
            is_incomplete |= !is_complete && !leaving.contains(replica);
            if replica == me {
                own_rank = is_complete.then_some(rank);
            }
            rank += u32::from(is_complete && index != config.primary);
        }
        if !is_incomplete {
            return Ok(false);
        }
        // A replica that is not complete watches, too: it may become complete, and then have to
        // fill a replica that began later.
        let Some(rank) = own_rank else { return Ok(true) };
        let primary = config.primary_member();
        let mut pulse = 0u64;
        for participant in 0..PARTICIPANTS {
            let count = op.load(primary, store.counter_word(primary, participant))?;
            pulse = u64::wrapping_add(pulse, count);
        }
        let now = store.job.now();
        match work.pulse {
            Some((seen, since)) if seen == pulse => {
                if now.since(since) >= TAKEOVER * (1 + rank) {
                    work.is_taken_over = true;
                    tracing::info!(
                        partition = work.partition,
                        primary = primary.0,
                        "taking over a repair: the primary does nothing"
                    );
                    store.repaired.takeovers.fetch_add(1, Ordering::Relaxed);
                }
            }
            _ => work.pulse = Some((pulse, now)),
        }
        Ok(true)
    }

    /// The staying replicas that had no index when the round began.
    fn missing_replicas(
        &self,
        _op: &RecordOp<'_>,
        work: &Work,
        config: &Configuration,
        leaving: &MemberSet,
    ) -> Vec<MemberId> {
        let is_missing = |&(replica, member): &(ReplicaIndex, MemberId)| {
            !work.ready.contains(replica) && !leaving.contains(member)
        };
        config.enumerate().filter(is_missing).map(|(_, member)| member).collect()
    }

    /// Waits for the missing replicas. A replica may not have heard that it has to fill, since only
    /// a change of the view tells all members. It is reminded after a while.
    fn wait_for_replicas(
        &self,
        op: &RecordOp<'_>,
        work: Work,
        config: &Configuration,
        leaving: &MemberSet,
    ) -> Progress {
        let job = &self.job;
        let now = job.now();
        let mut since = work.since.unwrap_or(now);
        if now.since(since) >= REMIND {
            since = now;
            let note = Message::Fill { partition: work.partition as u64 };
            // A replica that is stopped may have no room for messages, and is not waited for.
            for replica in self.missing_replicas(op, &work, config, leaving) {
                let _ = self.try_send(replica, &note);
            }
        }
        Progress::Waiting(Work { position: 0, since: Some(since), ..work })
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use crate::engine::sim::{self, Cost, Link, Options as SimOptions};
    use crate::engine::{Fault, MemberId, Time};
    use crate::job::Job;
    use crate::store::record::state::RecordOp;
    use crate::store::segment::head::Phase;
    use crate::store::testing::nap;
    use crate::store::{Options, Store, StoreError};
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::time::Duration;

    /// The background waits for a single answer for a sixteenth of it.
    const LIMIT: Duration = Duration::from_secs(1);
    const SECOND: Duration = Duration::from_secs(1);

    /// The options of three members over a network with this cost.
    fn plan(seed: u64, cost: Cost) -> SimOptions {
        let mut options = SimOptions::new(3, seed).link(Link::Network);
        (options.time_limit, options.cost) = (LIMIT, Some(cost));
        options
    }

    fn run(mut options: SimOptions, body: impl Fn(Job) + 'static) {
        options.steps_max = 20_000_000;
        sim::run(&options, body).expect_ok();
    }

    fn end(job: &Job, store: &Store) {
        let _ = store.close();
        let _ = job.leave();
    }

    fn open(job: &Job) -> Store {
        let wanted = Options::new().replicas(2).partitions(4).expected_keys(1000);
        Store::open(job, wanted).expect("open")
    }

    /// Each value takes 0.2 s from a member to another, several times as long as the background
    /// waits for an answer. Its replica is made again all the same, and meanwhile the repairer
    /// serves the members that need blocks.
    #[test]
    fn repair_moves_values_that_take_longer_than_the_background_waits() {
        for seed in 0..4 {
            // 10 MB/s.
            let cost = Cost { gap_per_byte_ps: 100_000, ..Cost::default() };
            run(plan(seed, cost), move |job: Job| {
                let store = open(&job);
                if job.me() == MemberId(0) {
                    let keys: Vec<String> = (0..4).map(|number| format!("key/{number}")).collect();
                    for key in &keys {
                        store.put(key.as_bytes(), &vec![7; 2_000_000]).expect("put");
                    }
                    job.inject(Fault::Kill(MemberId(2))).expect("a fault");
                    nap(&job, "the death", || !job.view().is_living(MemberId(2)));
                    let status = store.wait_repaired(job.now().after(20 * SECOND)).expect("known");
                    assert!(status.is_repaired(), "{status:?}");
                    job.inject(Fault::Kill(MemberId(1))).expect("a fault");
                    nap(&job, "the death", || !job.view().is_living(MemberId(1)));
                    for key in &keys {
                        let found = store.get(key.as_bytes()).expect("read").expect("there");
                        assert!(found.bytes() == vec![7; 2_000_000], "{key}");
                    }
                } else {
                    nap(&job, "the end", || false);
                }
                end(&job, &store);
            });
        }
    }

    /// A member has last looked at the replicas of a partition before a new replica made its index.
    /// The new replica is complete since, and has no room for the next value: the put of that
    /// member changes nothing, and says so.
    #[test]
    fn a_put_finds_a_new_replica_without_room_before_it_publishes() {
        for seed in 0..6 {
            let is_over = Rc::new(Cell::new(false));
            let mut options = SimOptions::new(4, seed);
            options.segment_limit = 512 << 10;
            run(options, move |job: Job| {
                let wanted = Options::new().replicas(2).partitions(32).expected_keys(64);
                let store = Store::open(&job, wanted.slab_len_max(16 << 10)).expect("open");
                let key: &[u8] = b"key";
                let partition = store.partition_of(key).expect("a key");
                let order = store.state.placement.preference(partition);
                let [primary, dies, new, writer] = order[..] else { panic!("four members") };
                let get = || store.get(key).expect("read").expect("there").bytes;
                if job.me() == writer {
                    store.put(key, b"small").expect("put");
                    // The new replica and the writer are full, and the primary is not.
                    let is_elsewhere = |name: &String| {
                        let replicas = store.replicas_of(name.as_bytes());
                        !replicas.contains(&primary) && !replicas.contains(&dies)
                    };
                    let names = (0..10_000).map(|number| format!("key/{number}"));
                    let refused = names
                        .filter(is_elsewhere)
                        .map(|name| store.put(name.as_bytes(), &[7; 3000]))
                        .filter(|put| matches!(put, Err(StoreError::OutOfMemory { .. })));
                    assert_eq!(refused.take(50).count(), 50, "it is full");
                    job.inject(Fault::Stop(new)).expect("a fault");
                    job.inject(Fault::Kill(dies)).expect("a fault");
                    nap(&job, "the death", || !job.view().is_living(dies));
                    assert_eq!(get(), b"small");
                    job.inject(Fault::Resume(new)).expect("a fault");
                    let is_complete = || {
                        let state = store.state.run(|op| op.state(new, partition));
                        state.expect("loaded").phase() == Phase::Complete
                    };
                    nap(&job, "the new replica", is_complete);
                    let put = store.put(key, &[7; 3000]);
                    assert!(matches!(put, Err(StoreError::OutOfMemory { .. })), "{put:?}");
                    assert_eq!(get(), b"small");
                    store.put(key, b"other").expect("put");
                    assert_eq!(get(), b"other");
                    is_over.set(true);
                }
                nap(&job, "the end", || is_over.get() && job.me() != dies);
                end(&job, &store);
            });
        }
    }

    /// A new replica of a partition has room for all versions but the next one. The put of that
    /// version begins before the new replica has an index. Its member is stopped some time later,
    /// until the new replica is complete or a second has passed. Returns how long the put took.
    fn put_around_a_repair(seed: u64, stop: Duration) -> Duration {
        let (go_at, taken) = (Rc::new(Cell::new(Time::NEVER)), Rc::new(Cell::new(Duration::ZERO)));
        let is_over = Rc::new(Cell::new(false));
        // Over a network an operation would wait for the state of the new replica.
        let mut options = SimOptions::new(4, seed).link(Link::Memory);
        options.segment_limit = 512 << 10;
        let result = taken.clone();
        run(options, move |job: Job| {
            let wanted = Options::new().replicas(2).partitions(32).expected_keys(64);
            let store = Store::open(&job, wanted.slab_len_max(16 << 10)).expect("open");
            let key: &[u8] = b"key";
            let partition = store.partition_of(key).expect("a key");
            let order = store.state.placement.preference(partition);
            let [primary, dies, new, writer] = order[..] else { panic!("four members") };
            if job.me() == writer {
                store.put(key, b"small").expect("put");
                // The new replica and the writer are full, and the primary is not.
                let is_elsewhere = |name: &String| {
                    let replicas = store.replicas_of(name.as_bytes());
                    !replicas.contains(&primary) && !replicas.contains(&dies)
                };
                let names = (0..10_000).map(|number| format!("key/{number}"));
                let refused = names
                    .filter(is_elsewhere)
                    .map(|name| store.put(name.as_bytes(), &[7; 3000]))
                    .filter(|put| matches!(put, Err(StoreError::OutOfMemory { .. })));
                assert_eq!(refused.take(50).count(), 50, "it is full");
                job.inject(Fault::Stop(new)).expect("a fault");
                job.inject(Fault::Kill(dies)).expect("a fault");
                nap(&job, "the death", || !job.view().is_living(dies));
                assert_eq!(store.get(key).expect("read").expect("there").bytes, b"small");
                let begin = job.now().after(Duration::from_millis(5));
                go_at.set(begin);
                job.sleep(begin.since(job.now()));
                let put = store.put(key, &[9; 3000]);
                result.set(job.now().since(begin));
                let is_put = match put {
                    Ok(_) => true,
                    Err(StoreError::OutOfMemory { .. }) => false,
                    Err(error) => panic!("{error}"),
                };
                let found = store.get(key).expect("read").expect("there").bytes;
                assert_eq!(found == [9; 3000], is_put);
                store.put(key, b"other").expect("put");
                is_over.set(true);
            }
            if job.me() == primary {
                nap(&job, "the put", || go_at.get() != Time::NEVER);
                job.sleep(go_at.get().after(stop).since(job.now()));
                job.inject(Fault::Stop(writer)).expect("a fault");
                job.inject(Fault::Resume(new)).expect("a fault");
                let until = job.now().after(SECOND);
                let phase = || store.state.run(|op| op.state(new, partition)).expect("known");
                while phase().phase() != Phase::Complete && job.now() < until {
                    job.sleep(Duration::from_millis(1));
                }
                job.inject(Fault::Resume(writer)).expect("a fault");
            }
            nap(&job, "the end", || is_over.get() && job.me() != dies);
            end(&job, &store);
        });
        taken.get()
    }

    /// A put has found no index at a new replica when that replica becomes complete without the
    /// version of the put. The put has not published the version, and does not do so any more: it
    /// begins anew, and finds the replica. So no version is visible that cannot become stable.
    #[test]
    fn a_put_that_a_repair_has_overtaken_begins_anew() {
        for seed in 0..2 {
            let whole = put_around_a_repair(seed, SECOND / 100);
            for part in 1..80 {
                put_around_a_repair(seed, whole * part / 80);
            }
        }
    }

    /// A put has skipped a filling replica, and that replica becomes complete in a round that
    /// begins afterwards. The swap that would publish the version fails.
    #[test]
    fn a_put_that_has_skipped_a_replica_does_not_publish_after_a_repair() {
        for seed in 0..6 {
            let is_over = Rc::new(Cell::new(false));
            run(SimOptions::new(4, seed).link(Link::Memory), move |job: Job| {
                let store = open(&job);
                let name: &[u8] = b"key";
                let key = store.state.any_key_ref(name);
                let order = store.state.placement.preference(key.partition);
                let [primary, dies, new, writer] = order[..] else { panic!("four members") };
                if job.me() == writer {
                    store.put(name, b"value").expect("put");
                    for fault in [Fault::Stop(primary), Fault::Stop(new), Fault::Kill(dies)] {
                        job.inject(fault).expect("a fault");
                    }
                    nap(&job, "the death", || !job.view().is_living(dies));
                    job.inject(Fault::Resume(new)).expect("a fault");
                    let phase = || {
                        let state = store.state.run(|op| op.state(new, key.partition));
                        state.expect("known").phase()
                    };
                    nap(&job, "the index", || phase() == Phase::Filling);
                    // What a put does before it publishes, if the new replica has no room.
                    let op = RecordOp::begin(&store.state).expect("begun");
                    let config = op.config(key.partition).expect("entered");
                    let word = op.find_or_insert(config, config.primary, &key).expect("there");
                    let head = op.reconciled(config, &key, word).expect("reconciled");
                    let state = op.state(new, key.partition).expect("known");
                    let is_skipped = op.swap_state(new, key.partition, state, state.with_skip());
                    assert!(is_skipped.expect("swapped"), "it waits for the repairer");
                    job.inject(Fault::Resume(primary)).expect("a fault");
                    nap(&job, "the replica", || phase() == Phase::Complete);
                    let is_unchanged = op.swap(primary, word, head.0, head.0).expect("swapped");
                    assert!(!is_unchanged, "a late put would publish");
                    drop(op);
                    store.put(name, b"other").expect("put");
                    assert_eq!(store.get(name).expect("read").expect("there").bytes, b"other");
                    is_over.set(true);
                }
                nap(&job, "the end", || is_over.get() && job.me() != dies);
                end(&job, &store);
            });
        }
    }

    /// A member writes a key all the time, with this pause after each put. A replica of the key
    /// dies. The new replica stands before the primary, so that its records are visited first, and
    /// it has the record when the repair begins. Returns how many puts there are until the new
    /// replica is complete.
    fn puts_during_a_repair(link: Link, pause: Duration) -> u64 {
        let mut options = SimOptions::new(4, 0).link(link);
        (options.time_limit, options.cost) = (LIMIT, Some(Cost::default()));
        let wanted = || Options::new().replicas(2).partitions(1).expected_keys(16);
        let order: Rc<RefCell<Vec<MemberId>>> = Rc::default();
        let known = order.clone();
        run(options.clone(), move |job: Job| {
            let store = Store::open(&job, wanted()).expect("open");
            *known.borrow_mut() = store.state.preference(0).to_vec();
            end(&job, &store);
        });
        let [dies, new, primary, writer] = order.borrow()[..] else { panic!("four members") };
        // A replica in each domain.
        let domain = |member| if [dies, new].contains(&member) { "a" } else { "b" };
        options.domains = (0..4).map(|number| domain(MemberId(number)).to_string()).collect();
        let (stage, puts) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let during = Rc::new(Cell::new(u64::MAX));
        let result = during.clone();
        run(options, move |job: Job| {
            let store = Store::open(&job, wanted()).expect("open");
            if job.me() == writer {
                let handle = store.handle(b"key").expect("a handle");
                while stage.get() < 2 {
                    handle.put(&[7; 20]).expect("put");
                    puts.set(puts.get() + 1);
                    stage.set(stage.get().max(1));
                    job.sleep(pause);
                }
            }
            if job.me() == primary {
                assert_eq!(store.replicas_of(b"key"), [dies, primary]);
                nap(&job, "the writer", || stage.get() == 1);
                let is_in = |wanted: Phase| {
                    store.state.run(|op| op.state(new, 0)).expect("known").phase() == wanted
                };
                nap(&job, "the background", || store.state.begin_indexes());
                job.inject(Fault::Kill(dies)).expect("a fault");
                nap(&job, "the new replica", || is_in(Phase::Filling));
                // The writer puts the key there, too, and is on its fast path again.
                job.sleep(Duration::from_millis(5));
                assert_eq!(store.replicas_of(b"key"), [new, primary]);
                let (before, until) = (puts.get(), job.now().after(SECOND / 10));
                store.state.end_indexes();
                while !is_in(Phase::Complete) && job.now() < until {}
                if is_in(Phase::Complete) {
                    result.set(puts.get() - before);
                }
                stage.set(2);
            }
            nap(&job, "the end", || stage.get() == 2 && job.me() != dies);
            end(&job, &store);
        });
        during.get()
    }

    /// The new replica of a key becomes complete while a member writes the key without a pause, or
    /// with short pauses: the time between the versions is too short to copy one of them, or even
    /// to find it stable.
    #[test]
    fn repair_ends_while_a_member_writes_a_key_all_the_time() {
        for link in [Link::Memory, Link::Network] {
            for pause in (0..40).map(|step| Duration::from_nanos(step * 250)) {
                let puts = puts_during_a_repair(link, pause);
                eprintln!("{link:?} {pause:?}: {puts} puts");
                assert!(puts < 1000, "{puts} puts with {link:?} and a pause of {pause:?}");
            }
        }
    }

    /// A replica is stopped now and then, for longer than the background waits, and seldom goes on
    /// for as long as a round of repair takes. Repair goes on where it was, and comes to its end.
    #[test]
    fn repair_goes_on_where_it_was_when_a_replica_answers_late() {
        for seed in 0..4 {
            let cost = Cost { latency: Duration::from_micros(200), ..Cost::default() };
            let is_over = Rc::new(Cell::new(false));
            run(plan(seed, cost), move |job: Job| {
                let store = open(&job);
                let [stopped, dead] = [1, 2].map(MemberId);
                if job.me() == MemberId(0) {
                    let keys: Vec<String> =
                        (0..1000).map(|number| format!("key/{number}")).collect();
                    for key in &keys {
                        store.put(key.as_bytes(), b"value").expect("put");
                    }
                    job.inject(Fault::Kill(dead)).expect("a fault");
                    for _ in 0..100 {
                        job.inject(Fault::Stop(stopped)).expect("a fault");
                        job.sleep(LIMIT / 8);
                        job.inject(Fault::Resume(stopped)).expect("a fault");
                        job.sleep(LIMIT / 4);
                    }
                    let missing = store.replicas_missing().expect("known");
                    assert_eq!(missing, 0, "replicas are missing");
                    is_over.set(true);
                }
                nap(&job, "the end", || is_over.get() && job.me() != dead);
                end(&job, &store);
            });
        }
    }
}
