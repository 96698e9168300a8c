//! Loss: which partitions have no complete copy left, and giving them up: docs/protocol.md, "Loss".
//!
//! A lost partition is given up by its first replica, in the configuration c in which it is lost,
//! whoever asks for it:
//!
//! | | step | dies or stops here |
//! |---|---|---|
//! | A1 | enter c: look at the state of every replica and config_number it with c. One is complete: not lost, done | nothing has happened; the next who asks asks the first replica of the next configuration |
//! | A2 | own state: swap `filling(c)` for `absent(c)` | the replica has nothing, as before; what it held was incomplete |
//! | A3 | a new, empty index; raise the floor of versions to c << 48 | nobody looks at an absent replica |
//! | A4 | swap `absent(c)` for `complete(d - 1)`, where d is c without those who are leaving | **the partition lives again**, empty; the other replicas fill from it |
//!
//! A member that asks sends a message and waits; if the view changes it asks again. That all
//! replicas were asked under one view (A1) is what keeps two lives apart: of two members with
//! different views each has to ask one whom the other knows to be dead.
//!
//! A late participant of the old life can have one operation under way, at an address that it
//! learned before: the index is new, so nothing of the new life is there. The counters of the old
//! life began at a smaller configuration.

use crate::engine::{MemberId, MemberSet, Time};
use crate::store::error::{StoreError, StoreResult};
use crate::store::mutant::mutant;
use crate::store::operation::error::{OpError, OpResult, check_place, engine_error};
use crate::store::operation::message::{Message, PORT};
use crate::store::record::state::RecordOp;
use crate::store::record::version_floor::INCARNATION_SHIFT;
use crate::store::recovery::salvage::Fate;
use crate::store::recovery::state::RecoveryState;
use crate::store::segment::head::{Phase, State};
use crate::store::segment::layout::PARTITION_BUCKETS;
use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// When to look again for lost partitions if some member did not answer.
const PATIENCE: Duration = Duration::from_millis(100);

type Listener = Arc<dyn Fn(&[usize]) + Send + Sync>;

/// What a member keeps about loss.
pub(in crate::store) struct Loss {
    /// Partitions that this member, as their first replica, is asked to give up, and by whom.
    wanted: Mutex<Vec<(MemberId, usize)>>,
    /// What first replicas could not do, until the one who asked has seen it.
    refusals: Mutex<BTreeMap<usize, StoreError>>,
    pub(in crate::store) listeners: Mutex<Vec<Listener>>,
    /// The epoch under which the listeners were told last.
    told: AtomicU64,
}

impl Default for Loss {
    fn default() -> Loss {
        // At open nothing is lost.
        let told = AtomicU64::new(0);
        Loss {
            wanted: Mutex::default(),
            refusals: Mutex::default(),
            listeners: Mutex::default(),
            told,
        }
    }
}

impl RecoveryState {
    /// Whether a partition is lost.
    fn is_lost(&self, partition: usize) -> StoreResult<bool> {
        // What is being salvaged is not lost, or not yet.
        Ok(self.fate(partition)? == Fate::Lost)
    }

    pub(in crate::store) fn lost_partitions(&self) -> StoreResult<Vec<usize>> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let mut lost = Vec::new();
        for partition in 0..self.placement.partitions {
            if self.is_lost(partition)? {
                lost.push(partition);
            }
        }
        Ok(lost)
    }

    /// Asks the first replica of a lost partition to give it up, and waits until the partition
    /// lives again.
    pub(in crate::store) fn accept_loss(&self, partition: usize) -> StoreResult<()> {
        let job = &self.job;
        let limit = job.time_limit();
        let until = job.now().after(limit);
        lock(&self.loss.refusals).remove(&partition);
        let mut asked = None;
        loop {
            let bell = job.bell();
            if !self.is_lost(partition)? {
                return Ok(());
            }
            if let Some(error) = lock(&self.loss.refusals).remove(&partition) {
                return Err(error);
            }
            let view = job.view();
            let replicas = self.replicas(partition, &view);
            let &first = replicas.members.first().ok_or(StoreError::DataLost { partition })?;
            if job.now() >= until {
                return Err(StoreError::Timeout { member: first, limit });
            }
            if asked != Some(view.epoch) {
                asked = Some(view.epoch);
                if first == job.me() {
                    self.want_acceptance(first, partition);
                } else {
                    let note = Message::Accept { partition: partition as u64 };
                    match job.send(first, PORT, &note.encode()) {
                        // Its death changes the view, and the next replica is asked.
                        Ok(()) | Err(crate::engine::Error::Dead { .. }) => {}
                        Err(error) => return Err(engine_error(error)),
                    }
                }
            }
            // Whoever waits serves; a listener that accepts is itself the background.
            self.serve_messages();
            self.accept_some();
            job.park(bell, until);
        }
    }

    /// Notes that keys of a partition are lost, and has the listeners told, if it is news.
    pub(in crate::store) fn record_damage(&self, partition: usize) {
        if partition < self.placement.partitions && self.salvage.add_damaged(partition) {
            self.loss.told.store(u64::MAX, Ordering::Release);
            let _ = self.job.ring(self.me());
        }
    }

    /// The keys of a partition that are lost though it lives: none if it is lost as a whole.
    pub(in crate::store) fn keys_damaged(&self, partition: usize) -> StoreResult<Vec<Vec<u8>>> {
        match self.keys_marked(partition) {
            Err(StoreError::DataLost { .. }) => Ok(Vec::new()),
            keys => keys,
        }
    }

    /// Notes that this member is asked to give up a partition.
    pub(in crate::store) fn want_acceptance(&self, from: MemberId, partition: usize) {
        if partition < self.placement.partitions {
            lock(&self.loss.wanted).push((from, partition));
            let _ = self.job.ring(self.me());
        }
    }

    /// Notes that a first replica could not give up a partition.
    pub(in crate::store) fn acceptance_refused(
        &self,
        from: MemberId,
        partition: usize,
        reason: String,
    ) {
        let error = StoreError::OutOfMemory { member: from, reason };
        lock(&self.loss.refusals).insert(partition, error);
    }

    /// Gives up the partitions that this member was asked for. Only one activity at a time makes
    /// indexes here.
    pub(in crate::store) fn accept_some(&self) {
        loop {
            if lock(&self.loss.wanted).is_empty() || !self.begin_indexes() {
                return;
            }
            let wanted = lock(&self.loss.wanted).pop();
            let Some((from, partition)) = wanted else { return self.end_indexes() };
            let result = self.run(|op| self.accept_loss_with(op, partition));
            self.end_indexes();
            let answer = match result {
                Ok(Some(others)) => {
                    tracing::warn!(partition, "a lost partition was given up");
                    self.schedule_repair(partition);
                    let note = Message::Fill { partition: partition as u64 }.encode();
                    // Whoever does not hear it is reminded by repair.
                    others.iter().for_each(|&replica| drop(self.job.send(replica, PORT, &note)));
                    Message::Accepted { partition: partition as u64 }
                }
                // Not this member's business: whoever asked learns of the newer view and asks
                // another.
                Ok(None) => continue,
                Err(StoreError::Closed) => return,
                Err(error) => {
                    Message::NotAccepted { partition: partition as u64, reason: error.to_string() }
                }
            };
            if from != self.me() {
                let _ = self.job.send(from, PORT, &answer.encode());
            } else if let Message::NotAccepted { reason, .. } = answer {
                self.acceptance_refused(from, partition, reason);
            }
            let _ = self.job.ring(self.me());
        }
    }

    /// Tells the listeners, once for each epoch; when to run again.
    pub(in crate::store) fn notify_of_loss(&self) -> Time {
        let epoch = self.job.epoch();
        let listeners = lock(&self.loss.listeners).clone();
        if listeners.is_empty() || self.loss.told.load(Ordering::Acquire) == epoch.0 {
            return Time::NEVER;
        }
        let fates: StoreResult<Vec<Fate>> =
            (0..self.placement.partitions).map(|partition| self.fate(partition)).collect();
        let Ok(fates) = fates else { return self.job.now().after(PATIENCE) };
        if fates.contains(&Fate::Pending) {
            return self.job.now().after(PATIENCE);
        }
        // First: what is noted from here on is told the next time.
        self.loss.told.store(epoch.0, Ordering::Release);
        let mut lost: Vec<usize> =
            (0..fates.len()).filter(|&partition| fates[partition] == Fate::Lost).collect();
        for partition in self.salvage.damaged() {
            match self.keys_damaged(partition) {
                // Somebody has given them up.
                Ok(keys) if keys.is_empty() => {}
                Ok(_) => lost.push(partition),
                Err(_) => {
                    self.loss.told.store(u64::MAX, Ordering::Release);
                    return self.job.now().after(PATIENCE);
                }
            }
        }
        lost.sort_unstable();
        lost.dedup();
        if !lost.is_empty() {
            // These are the program's, and wait as long as its calls do.
            self.set_background(false);
            listeners.iter().for_each(|listener| listener(&lost));
            self.set_background(true);
        }
        if self.job.epoch() == epoch { Time::NEVER } else { self.job.now() }
    }

    /// What incomplete replicas of a partition have in their index: keys that were there at some
    /// time.
    pub(in crate::store) fn keys_left(
        &self,
        op: &RecordOp<'_>,
        partition: usize,
    ) -> OpResult<Vec<Vec<u8>>> {
        let store = self;
        let view = store.view(op.epoch).ok_or(OpError::Again)?;
        let mut keys = Vec::new();
        for replica in store.replicas(partition, &view).members {
            if op.state(replica, partition)?.phase() != Phase::Filling {
                continue;
            }
            let buckets =
                op.load(replica, op.partition_word(replica, partition, PARTITION_BUCKETS))?;
            check_place(replica, buckets)?;
            for bucket in 0..store.bucket_count as u64 {
                for node in op.nodes_of(replica, buckets + bucket * 8)? {
                    let Some(offset) = node.head.offset() else { continue };
                    if !op.read_block(replica, offset)?.is_deleted {
                        keys.push(node.key);
                    }
                }
            }
        }
        if op.is_current() { Ok(keys) } else { Err(OpError::Again) }
    }

    /// A1 to A4. The other replicas, which are to fill now; none if the partition was not lost;
    /// `None` if another one is the first replica.
    fn accept_loss_with(
        &self,
        op: &RecordOp<'_>,
        partition: usize,
    ) -> OpResult<Option<Vec<MemberId>>> {
        let (store, me) = (self, self.me());
        // A1.
        match op.config(partition) {
            Err(OpError::Lost(_)) => {}
            Ok(_) => return Ok(Some(Vec::new())),
            Err(error) => return Err(error),
        }
        let view = store.view(op.epoch).ok_or(OpError::Again)?;
        let replicas = store.replicas(partition, &view);
        let config_number = replicas.configuration;
        if replicas.members.first() != Some(&me) {
            return Ok(None);
        }
        let (absent, lost) =
            (State::new(Phase::Absent, config_number), State::new(Phase::Lost, config_number));
        let state = op.state(me, partition)?;
        if store.salvage_is_on && state != lost {
            // It is being salvaged; whoever asked looks again.
            return Ok(None);
        }
        // A2.
        if state.is_filling(config_number) || state == lost {
            if !op.swap_state(me, partition, state, absent)? {
                return Err(OpError::Again);
            }
        } else if state != absent {
            return Err(OpError::Again);
        }
        // A3.
        if !(state.is_filling(config_number) && mutant("accept-keeps")) {
            op.make_index(partition)?;
        }
        op.raise_floor(me, partition, config_number << INCARNATION_SHIFT)?;
        // A4. Complete also to those who have not heard yet who is leavers: their number is
        // smaller.
        let unaware =
            store.placement.replicas(store.preference(partition), &view, &MemberSet::new());
        let complete = State::new(Phase::Complete, unaware.configuration - 1);
        if !op.swap_state(me, partition, absent, complete)? {
            return Err(OpError::Again);
        }
        Ok(Some(replicas.members.into_iter().filter(|&replica| replica != me).collect()))
    }
}
