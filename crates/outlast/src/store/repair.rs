//! Bringing up the copies that a death has taken: docs/protocol.md, steps R1 to R5.
//!
//! Each member's background goes through the partitions that it is a home of when the epoch has changed. A new home
//! makes its index; the primary settles every record and copies it to the homes that are filling, then says that
//! they are complete. The work is done in small pieces, so that the background also serves.

use super::access::{Halt, Op, Step};
use super::head::{Phase, State};
use super::index::KeyRef;
use super::layout::{ACTORS, Kind};
use super::open::{Inner, Note};
use super::placement::{HOMES_MAX, Homes, hash_key};
use super::salvage::{Fate, Salvaged};
use super::steps;
use super::write::Config;
use super::{PORT, Store, StoreError, StoreResult};
use crate::engine::{Epoch, MemberId, MemberSet, Time};
use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How many buckets are looked at in one piece of work at most; most of them are empty or have one record.
const PIECE: usize = 256;
/// After how many records a piece of work ends.
const PIECE_RECORDS: usize = 8;
/// How long to wait for a home that has not made its index yet, or for a stopped repairer.
const PATIENCE: Duration = Duration::from_millis(5);
/// A home that is stopped is looked at more and more seldom, down to this.
const PATIENCE_MAX: Duration = Duration::from_millis(100);

/// The same for a home that has no room: every look goes through all records.
const FULL_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long the primary may do nothing at all before the next complete home takes its work over.
const TAKEOVER: Duration = Duration::from_secs(1);
/// How long to wait before such a home is reminded.
const REMIND: Duration = Duration::from_millis(100);

/// What this member has repaired since the store was opened.
#[derive(Default)]
pub(super) struct Repaired {
    pub(super) copies: AtomicU64,
    pub(super) records: AtomicU64,
    pub(super) takeovers: AtomicU64,
    /// The epoch whose deaths are in the log.
    logged: AtomicU64,
}

/// What this member has still to look at.
pub(super) struct Repair {
    /// The epoch whose changes are in the list; `None` to look at all partitions.
    epoch: Option<Epoch>,
    left: VecDeque<Work>,
    /// Partitions whose new home has not made its index yet.
    waiting: Vec<Work>,
    /// How long to wait before the next look at those.
    pause: Duration,
    /// When the share of the machine that repair may take allows the next piece.
    not_before: Time,
    is_busy: bool,
}

impl Default for Repair {
    fn default() -> Repair {
        // At open all copies are complete.
        let epoch = Some(Epoch(0));
        Repair {
            epoch,
            left: VecDeque::new(),
            waiting: Vec::new(),
            pause: PATIENCE,
            not_before: Time(0),
            is_busy: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Work {
    partition: usize,
    /// How far it has come: the homes and buckets that were gone through, in one number.
    position: usize,
    stamp: u64,
    /// A bit for each home that had an index when the work began. One that gets its index later lacks what was copied
    /// before, so it has to wait for the next round.
    ready: u64,
    /// The states of those homes at that time: who leaves something out at one of them changes its state.
    states: [State; HOMES_MAX],
    /// A bit for each home that has no room for what it lacks.
    full: u64,
    /// When to try again after a home had no room, and how long it was waited then.
    retry: Time,
    pause: Duration,
    /// Since when a new home has had no index.
    since: Option<Time>,
    /// Of a partition whose primary is another member: how many operations that one had begun when this member looked,
    /// and since when it has not begun any.
    pulse: Option<(u64, Time)>,
    /// Whether this member has taken the work over from the primary.
    is_taken_over: bool,
}

impl Work {
    fn new(partition: usize) -> Work {
        Work {
            partition,
            position: 0,
            stamp: 0,
            ready: 0,
            states: [State(0); HOMES_MAX],
            full: 0,
            retry: Time(0),
            pause: PATIENCE,
            since: None,
            pulse: None,
            is_taken_over: false,
        }
    }
}

enum Progress {
    /// Nothing is left to do in this partition.
    Done,
    /// There is more to do, from here on.
    More(Work),
    /// Someone else must do something first.
    Waiting(Work),
}

impl Inner {
    /// Does a piece of repair; when it wants to go on.
    pub(super) fn repair_some(&self) -> Time {
        let (epoch, began) = (self.job.epoch(), self.job.now());
        self.log_deaths();
        let work = {
            let mut repair = lock(&self.repair);
            if repair.is_busy {
                return Time::NEVER;
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
            let Some(work) = repair.left.pop_front() else { return Time::NEVER };
            repair.is_busy = true;
            work
        };
        if self.is_ending() {
            lock(&self.repair).is_busy = false;
            return Time::NEVER;
        }
        let result = match Op::begin(self) {
            Ok(op) => op.repair_piece(work),
            Err(halt) => Err(halt),
        };
        match &result {
            Err(Halt::Lost(partition)) => {
                tracing::error!(partition, "all copies of a partition are lost");
            }
            Err(Halt::Fail(StoreError::Timeout { member, .. })) => {
                tracing::debug!(
                    partition = work.partition,
                    member = member.0,
                    "repair waits for a home"
                );
            }
            Err(Halt::Fail(error)) => {
                tracing::warn!(partition = work.partition, %error, "repair is held up");
            }
            _ => {}
        }
        // Nobody calls the engine under the lock.
        let now = self.job.now();
        let rest = now.since(began) * (100 - self.repair_percent) / self.repair_percent;
        let (is_idle, is_waiting, pause) = {
            let mut repair = lock(&self.repair);
            repair.is_busy = false;
            repair.not_before = now.after(rest);
            let is_waiting = matches!(result, Ok(Progress::Waiting(_)) | Err(Halt::Fail(_)));
            repair.pause = if is_waiting { (repair.pause * 2).min(PATIENCE_MAX) } else { PATIENCE };
            match result {
                Ok(Progress::Done) => {}
                Ok(Progress::More(work)) => repair.left.push_front(work),
                Ok(Progress::Waiting(work)) => repair.waiting.push(work),
                // The view has changed: the list is made anew. Or it has not, and someone was faster.
                Err(Halt::Again | Halt::Blocked(_) | Halt::Frozen) => {
                    repair.left.push_back(Work::new(work.partition))
                }
                // Lost, or closed: there is nothing to bring up. A home that does not answer is tried again.
                Err(Halt::Lost(_) | Halt::Fail(StoreError::Closed)) => {}
                Err(Halt::Fail(_)) => {
                    let Work { partition, pulse, is_taken_over, .. } = work;
                    repair.waiting.push(Work { pulse, is_taken_over, ..Work::new(partition) });
                }
            }
            (repair.left.is_empty(), !repair.waiting.is_empty(), repair.pause)
        };
        match (is_idle, is_waiting) {
            (false, _) => now.after(rest),
            (true, true) => now.after(pause.max(rest)),
            (true, false) => Time::NEVER,
        }
    }

    /// Tells the log of deaths, once each.
    fn log_deaths(&self) {
        let epoch = self.job.epoch();
        if self.repaired.logged.swap(epoch.0, Ordering::Relaxed) == epoch.0 {
            return;
        }
        let view = self.job.view();
        tracing::warn!(member = self.me().0, epoch = epoch.0, dead = %view.dead, left = %view.left, "members are gone");
    }

    /// Begins to make indexes here, which one activity does at a time; whether it may.
    pub(super) fn begin_indexes(&self) -> bool {
        !std::mem::replace(&mut lock(&self.repair).is_busy, true)
    }

    /// Ends what [`Inner::begin_indexes`] began.
    pub(super) fn end_indexes(&self) {
        lock(&self.repair).is_busy = false;
        let _ = self.job.ring(self.me());
    }

    /// Looks at a partition again: something has changed there without a change of the view.
    pub(super) fn look_at(&self, partition: usize) {
        if partition < self.placement.partitions {
            lock(&self.repair).left.push_back(Work::new(partition));
            let _ = self.job.ring(self.me());
        }
    }

    /// Looks at all partitions again.
    pub(super) fn look_at_all(&self) {
        lock(&self.repair).epoch = None;
        let _ = self.job.ring(self.me());
    }

    /// How many copies are not complete, of the partitions that this member is the primary of, or of all.
    fn count_copies(&self, only_mine: bool) -> StoreResult<RepairStatus> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let mut status = RepairStatus { copies_missing: 0, partitions_lost: 0 };
        let leaving = self.leaving.members();
        for partition in 0..self.placement.partitions {
            let counted = self.run_or_lost(|op| {
                let config = op.config(partition)?;
                let mut missing = 0;
                if !only_mine || config.homes[config.primary] == self.me() {
                    for &home in config.homes.iter().filter(|&&home| !leaving.contains(home)) {
                        missing +=
                            usize::from(op.state(home, partition)?.phase() != Phase::Complete);
                    }
                }
                if op.is_current() { Ok(missing) } else { Err(Halt::Again) }
            });
            match counted {
                Ok(Some(count)) => status.copies_missing += count,
                Ok(None) if self.fate(partition)? == Fate::Lost => status.partitions_lost += 1,
                // It is being salvaged.
                Ok(None) => status.copies_missing += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(status)
    }
}

/// How far repair is in the whole job, at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairStatus {
    /// How many copies of partitions have still to be brought up; lost partitions do not count.
    pub copies_missing: usize,
    /// How many partitions are lost; see [`Store::accept_loss`].
    pub partitions_lost: usize,
}

impl RepairStatus {
    /// Whether every partition that is not lost has all its copies: R, or as many as members live.
    pub fn is_repaired(&self) -> bool {
        self.copies_missing == 0
    }
}

impl Store {
    /// How far repair is: the number of copies that this member, as a primary, has still to bring up.
    pub fn copies_missing(&self) -> StoreResult<usize> {
        Ok(self.inner.count_copies(true)?.copies_missing)
    }

    /// How far repair is in the whole job. It asks about every partition: some milliseconds for thousands of them.
    pub fn repair_status(&self) -> StoreResult<RepairStatus> {
        self.inner.count_copies(false)
    }

    /// Waits until every partition of the job that is not lost has all its copies, or until `deadline`; how far it is then.
    pub fn wait_repaired(&self, deadline: Time) -> StoreResult<RepairStatus> {
        let job = &self.inner.job;
        loop {
            let status = self.repair_status()?;
            if status.is_repaired() || job.now() >= deadline {
                return Ok(status);
            }
            // Nothing rings when another member has completed a copy.
            let until = deadline.min(job.now().after(PATIENCE));
            while job.now() < until {
                job.park(job.bell(), until);
            }
        }
    }
}

impl Op<'_> {
    fn repair_piece(&self, mut work: Work) -> Step<Progress> {
        let store = self.store;
        // Most partitions are not this member's business; that is known without asking anyone.
        let view = store.view(self.epoch).ok_or(Halt::Again)?;
        let homes = store.homes(work.partition, &view);
        if !homes.members.contains(&store.me()) {
            return Ok(Progress::Done);
        }
        let config = match self.config(work.partition) {
            Err(Halt::Lost(_)) if store.salvage.is_on => return self.salvage_piece(work, &homes),
            config => config?,
        };
        if store.job.now() < work.retry {
            return Ok(Progress::Waiting(work));
        }
        if work.stamp != config.stamp {
            work = Work { stamp: config.stamp, ..Work::new(work.partition) };
        }
        let primary = config.homes[config.primary];
        // Whoever still writes by the lists of before a member began to leave does not look at the new homes.
        if !store.leaving.may_fill(&config.homes) {
            return Ok(Progress::Done);
        }
        let leaving = store.leaving.members();
        // R1: this member is new here.
        let state = self.state(store.me(), work.partition)?;
        if state.is_absent() && !leaving.contains(store.me()) {
            steps::enter(steps::Step::RepairMakeIndex);
            self.make_index(work.partition)?;
            let filling = State::new(Phase::Filling, config.stamp);
            if !self.swap_state(store.me(), work.partition, state, filling)? {
                return Err(Halt::Again);
            }
            tracing::debug!(partition = work.partition, "a new copy is to be filled here");
            let _ = store.job.ring(primary);
        }
        if primary != store.me() && !work.is_taken_over {
            if !self.watch(&mut work, config, &leaving)? {
                return Ok(Progress::Done);
            }
            if !work.is_taken_over {
                return Ok(Progress::Waiting(work));
            }
        }
        // R2: whoever is filling now is seen by all who publish from now on.
        if work.position == 0 {
            self.find_new_homes(config, work.partition)?;
            let ready = (0..config.homes.len()).filter(|&home| config.is_ready(home));
            let ready = ready.fold(0, |mask, home| mask | 1 << home);
            if work.since.is_some() && work.ready == ready {
                // The homes that were missing after the last round still are.
                return Ok(self.wait_for_homes(work, config, &leaving));
            }
            (work.ready, work.full) = (ready, 0);
            for home in (0..config.homes.len()).filter(|&home| ready & 1 << home != 0) {
                work.states[home] = self.state(config.homes[home], work.partition)?;
            }
        }
        let ready: Vec<usize> =
            (0..config.homes.len()).filter(|&home| work.ready & 1 << home != 0).collect();
        let mut filling = Vec::new();
        for &home in &ready {
            let is_full = work.full & 1 << home != 0;
            if !is_full && self.state(config.homes[home], work.partition)?.phase() == Phase::Filling
            {
                filling.push(home);
            }
        }
        // R3: all buckets of all homes: a record that only another home has must be settled too.
        let positions = ready.len() * store.bucket_count;
        let mut end = (work.position + PIECE).min(positions);
        let mut records = 0;
        for position in work.position..end {
            let (home, bucket) =
                (ready[position / store.bucket_count], position % store.bucket_count);
            for node in self.nodes(config, home, work.partition, bucket)? {
                let hash = hash_key(&node.key);
                let key = KeyRef { key: &node.key, hash, partition: work.partition };
                for &target in &filling {
                    if work.full & 1 << target != 0 {
                        continue;
                    }
                    steps::enter(steps::Step::RepairCopy);
                    match self.copy_record(config, &key, target) {
                        Err(Halt::Fail(StoreError::OutOfMemory { member, reason }))
                            if member == config.homes[target] =>
                        {
                            // The others go on, and this one is tried again.
                            tracing::warn!(partition = work.partition, member = member.0, %reason, "no room for a copy");
                            work.full |= 1 << target;
                        }
                        copied => copied?,
                    }
                }
                let word = self.find_or_insert(config, config.primary, &key)?;
                let head = self.settled(config, &key, word)?;
                // A tombstone whose deleter may be dead, or a record that was left empty.
                match head.offset().map(|offset| self.read_block(primary, offset)).transpose()? {
                    None => store.note_tombstone(&node.key, 0),
                    Some(block) if block.is_deleted => {
                        store.note_tombstone(&node.key, block.counter)
                    }
                    Some(block) if block.kind == Kind::Lost => self.tell_of_damage(work.partition),
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
        if !self.is_current() {
            return Err(Halt::Again);
        }
        // R4.
        let floor = self.floor(primary, work.partition)?;
        for &home in &filling {
            self.raise_floor(config.homes[home], work.partition, floor)?;
        }
        // R5.
        let mut is_left_out = false;
        for home in filling.into_iter().filter(|&home| work.full & 1 << home == 0) {
            steps::enter(steps::Step::RepairComplete);
            let (member, from) = (config.homes[home], work.states[home]);
            if self.swap_state(
                member,
                work.partition,
                from,
                State::new(Phase::Complete, config.stamp),
            )? {
                tracing::debug!(partition = work.partition, home = member.0, "a copy is complete");
                store.repaired.copies.fetch_add(1, Ordering::Relaxed);
            } else {
                is_left_out |= self.state(member, work.partition)?.is_filling(config.stamp);
            }
        }
        if work.full != 0 || is_left_out {
            // From the start, after a pause.
            let pause = (work.pause * 2).min(FULL_PAUSE_MAX);
            return Ok(Progress::Waiting(Work {
                stamp: config.stamp,
                is_taken_over: work.is_taken_over,
                retry: store.job.now().after(pause),
                pause,
                ..Work::new(work.partition)
            }));
        }
        if !self.missing_homes(&work, config, &leaving).is_empty() {
            return Ok(self.wait_for_homes(work, config, &leaving));
        }
        Ok(Progress::Done)
    }

    /// A piece of the salvage of a partition that is lost.
    fn salvage_piece(&self, work: Work, homes: &Homes) -> Step<Progress> {
        let (store, partition) = (self.store, work.partition);
        let position = if work.stamp == homes.configuration { work.position } else { 0 };
        match self.salvage(partition, homes, position)? {
            Salvaged::Until(position) => {
                let stamp = homes.configuration;
                Ok(Progress::More(Work { position, stamp, ..Work::new(partition) }))
            }
            Salvaged::All => {
                tracing::warn!(partition, "a lost partition was salvaged");
                let note = Note::Fill { partition: partition as u64 }.encode();
                for &home in homes.members.iter().filter(|&&home| home != store.me()) {
                    // Whoever does not hear it is reminded by repair.
                    let _ = store.job.send(home, PORT, &note);
                }
                Ok(Progress::More(Work::new(partition)))
            }
            Salvaged::ByAnother => Ok(Progress::Done),
            Salvaged::Nothing => Err(Halt::Lost(partition)),
        }
    }

    /// Watches the primary, as another home: whether there is something left to watch. If the primary does nothing
    /// at all for a while (it is stopped) the work is taken over; several repairers are harmless.
    fn watch(&self, work: &mut Work, config: &Config, leaving: &MemberSet) -> Step<bool> {
        let (store, me) = (self.store, self.store.me());
        let (mut is_incomplete, mut rank) = (false, 0);
        let mut own_rank = None;
        for (index, &home) in config.homes.iter().enumerate() {
            let is_complete = self.state(home, work.partition)?.phase() == Phase::Complete;
            is_incomplete |= !is_complete && !leaving.contains(home);
            if home == me {
                own_rank = is_complete.then_some(rank);
            }
            rank += u32::from(is_complete && index != config.primary);
        }
        if !is_incomplete {
            return Ok(false);
        }
        // Not complete itself: it may become so, and then have to fill another one that began later.
        let Some(rank) = own_rank else { return Ok(true) };
        let primary = config.homes[config.primary];
        let mut pulse = 0u64;
        for actor in 0..ACTORS {
            let count = self.load(primary, store.counter_word(primary, actor))?;
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

    /// The homes that had no index when the work began, and are to have one.
    fn missing_homes(&self, work: &Work, config: &Config, leaving: &MemberSet) -> Vec<MemberId> {
        let is_missing = |&(index, home): &(usize, MemberId)| {
            work.ready & 1 << index == 0 && !leaving.contains(home)
        };
        config.homes.iter().copied().enumerate().filter(is_missing).map(|(_, home)| home).collect()
    }

    /// Waits for the missing homes. Whoever has not heard that the partition is to be filled (only a change of the view
    /// tells all) is told.
    fn wait_for_homes(&self, work: Work, config: &Config, leaving: &MemberSet) -> Progress {
        let job = &self.store.job;
        let now = job.now();
        let mut since = work.since.unwrap_or(now);
        if now.since(since) >= REMIND {
            since = now;
            let note = Note::Fill { partition: work.partition as u64 }.encode();
            for home in self.missing_homes(&work, config, leaving) {
                let _ = job.send(home, PORT, &note);
            }
        }
        Progress::Waiting(Work { position: 0, since: Some(since), ..work })
    }
}
