//! What the members of a simulated run do, and what they record of it outside of the simulation.

use super::lock;
use crate::chaos::Mode;
use crate::loss_acceptor::{LossAcceptor, Losses};
use crate::program::{self, FINAL_THREAD, RECOVERY_THREAD, Target, Worker};
use anyhow::Context;
use outlast::engine::Fault;
use outlast::store::{Options, Store, StoreError};
use outlast::{Job, MemberId};
use outlast_check::workload;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What the members of a run record for its judge, outside of the simulation.
#[derive(Default)]
pub(super) struct RunRecord {
    /// The text of each worker's record, by member and thread.
    pub(super) records: BTreeMap<(u32, u32), Arc<Mutex<Vec<u8>>>>,
    /// Errors that no call may return: a kind and a description.
    pub(super) trouble: Vec<(String, String)>,
    /// How many members ended by themselves, at the end or because the store could not be opened.
    pub(super) gone: usize,
    /// How many members were killed, or are about to be, in the waves so far.
    pub(super) struck: usize,
    /// The members that die in later waves.
    pub(super) victims: Vec<MemberId>,
    /// The members that found no replica missing after `struck` deaths.
    pub(super) complete: BTreeSet<MemberId>,
    /// The member that is accepting losses.
    pub(super) acceptor: Option<MemberId>,
    /// Whether a loss acceptor has died or was not answered: its requests may still take effect.
    pub(super) has_lost_acceptor: bool,
    pub(super) losses: Losses,
    /// The members that are ready to close the store.
    pub(super) done: BTreeSet<MemberId>,
    /// Whether a recovery reported lost data: no further recovery can succeed.
    pub(super) is_lost: bool,
}

pub(super) type SharedRecord = Arc<Mutex<RunRecord>>;

/// A record in memory, as a target to write to.
struct RecordBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for RecordBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        lock(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn clock(job: &Job) -> u64 {
    job.now().0
}

/// How long a member waits for missing replicas. A stopped member fills no replica until it is
/// resumed.
const REPAIR_LIMIT: Duration = Duration::from_secs(600);
/// How often a member polls for missing replicas.
const LOOK: Duration = Duration::from_millis(10);
/// A worker that waits for the next wave goes on making calls. After this many of them its pauses
/// double, up to the longest pause.
const PATIENT_CALLS: u64 = 30;
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The options of a run.
#[derive(Clone)]
pub(super) struct RunOptions {
    pub(super) seed: u64,
    pub(super) mode: Mode,
    pub(super) replicas: usize,
    pub(super) threads: u32,
    pub(super) calls: u64,
    pub(super) programs: workload::Options,
    pub(super) beyond: bool,
    pub(super) salvage: bool,
}

impl RunOptions {
    fn worker(
        &self,
        store: &Store,
        job: &Job,
        thread: u32,
        record: &SharedRecord,
    ) -> anyhow::Result<Worker> {
        let text = Arc::new(Mutex::new(Vec::new()));
        lock(record).records.insert((job.me().0, thread), text.clone());
        let target: Target = Box::new(RecordBuffer(text));
        let mut worker = Worker::new(store, job, &self.programs, self.seed, thread, clock, target)?;
        if self.beyond {
            worker.deaths_survived = self.replicas;
        }
        Ok(worker)
    }

    /// Records an error, or reports of lost data, that a member must not see.
    fn check(&self, job: &Job, result: anyhow::Result<()>, data_lost: u64, record: &SharedRecord) {
        let mut record = lock(record);
        if let Err(error) = result {
            record.trouble.push(("error".into(), format!("member {}: {error:#}", job.me().0)));
        }
        // If a stopped member kept others waiting at the opening or at the end, they have gone, and
        // more members are missing than were killed.
        if data_lost > 0 && record.gone == 0 && !self.beyond {
            let text = format!("member {}: {data_lost} calls said that data are lost", job.me().0);
            record.trouble.push(("data lost".into(), text));
        }
    }

    pub(super) fn member(&self, job: &Job, record: &SharedRecord) {
        // In a half of the runs few partitions have all keys. Their indexes begin with a bucket, and
        // grow.
        let (partitions, expected_keys) = if self.seed % 2 == 0 { (8, 32) } else { (3, 1) };
        let options = Options::new().replicas(self.replicas).partitions(partitions);
        let options = options.expected_keys(expected_keys);
        let options = options.slab_len_max(16 << 10).mode(self.mode.into()).salvage(self.salvage);
        match Store::open(job, options) {
            Ok(store) => {
                let result = self.play(job, &store, record);
                self.check(job, result, 0, record);
            }
            Err(StoreError::Timeout { .. } | StoreError::Closed) => {}
            Err(error) => self.check(job, Err(error).context("opening the store"), 0, record),
        }
        lock(record).gone += 1;
        let _ = job.leave();
    }

    fn play(&self, job: &Job, store: &Store, record: &SharedRecord) -> anyhow::Result<()> {
        let mut activities = Vec::new();
        for thread in 0..self.threads {
            let worker = self.worker(store, job, thread, record)?;
            let (run, store, own_job, record) =
                (self.clone(), store.clone(), job.clone(), record.clone());
            let body = move || run.work(worker, &store, &own_job, &record);
            activities.push(job.spawn("worker", Box::new(body))?);
        }
        let mut acceptor = LossAcceptor::new(self.seed, job, 20 * LOOK, clock);
        let dead_before: Vec<MemberId> = job.view().dead.iter().collect();
        let mut recoverer = self.worker(store, job, RECOVERY_THREAD, record)?;
        while !activities.iter().all(outlast::engine::Activity::is_finished) && !job.has_ended() {
            let bell = job.bell();
            self.recover(&mut recoverer, store, record)?;
            self.kill_next_wave(job, store, record)?;
            self.accept_losses(&mut acceptor, job, store, record)?;
            job.park(bell, job.now().after(LOOK));
        }
        // Missing replicas come back without any action of the program.
        let until = job.now().after(REPAIR_LIMIT);
        while !job.has_ended() {
            if is_complete(store)? && self.is_whole(store)? && !self.is_revoked(store, record) {
                break;
            }
            anyhow::ensure!(job.now() < until, "replicas are still missing after {REPAIR_LIMIT:?}");
            self.recover(&mut recoverer, store, record)?;
            let bell = job.bell();
            self.accept_losses(&mut acceptor, job, store, record)?;
            job.park(bell, job.now().after(LOOK));
        }
        // Every survivor reads all keys back.
        let mut reader = self.worker(store, job, FINAL_THREAD, record)?;
        let result = program::keys(&self.programs, self.threads)
            .iter()
            .try_for_each(|key| reader.get(key).map(drop));
        let result = result.and_then(|()| reader.audit());
        self.check(job, result, reader.data_lost, record);
        if self.mode == Mode::Global {
            self.end_together(job, store, &mut recoverer, record)?;
            recoverer.check_adoptions(&dead_before)?;
            self.check(job, Ok(()), recoverer.data_lost, record);
        }
        match store.close() {
            Ok(()) | Err(StoreError::Timeout { .. } | StoreError::Closed) => Ok(()),
            Err(error) => Err(error).context("closing the store"),
        }
    }

    /// Waits until all living members are ready to close: a recovery needs all of them.
    fn end_together(
        &self,
        job: &Job,
        store: &Store,
        recoverer: &mut Worker,
        record: &SharedRecord,
    ) -> anyhow::Result<()> {
        lock(record).done.insert(job.me());
        let until = job.now().after(REPAIR_LIMIT);
        loop {
            let bell = job.bell();
            let view = job.view();
            if job.has_ended() || view.living().all(|member| lock(record).done.contains(&member)) {
                return Ok(());
            }
            anyhow::ensure!(
                job.now() < until,
                "other members are not ready to close after {REPAIR_LIMIT:?}"
            );
            self.recover(recoverer, store, record)?;
            job.park(bell, job.now().after(LOOK));
        }
    }

    /// Whether a recovery is due.
    fn is_revoked(&self, store: &Store, record: &SharedRecord) -> bool {
        store.is_revoked() && !lock(record).is_lost
    }

    /// Recovers, if a recovery is due.
    fn recover(
        &self,
        recoverer: &mut Worker,
        store: &Store,
        record: &SharedRecord,
    ) -> anyhow::Result<()> {
        if self.is_revoked(store, record) {
            recoverer.recover(self.threads)?;
            lock(record).is_lost |= recoverer.data_lost > 0;
        }
        Ok(())
    }

    fn work(&self, mut worker: Worker, store: &Store, job: &Job, record: &SharedRecord) {
        let mut result = Ok(());
        let mut pause = 2 * LOOK;
        for call in 0.. {
            let is_enough = call >= self.calls;
            if result.is_err() || job.has_ended() || is_enough && lock(record).victims.is_empty() {
                break;
            }
            // Victims of later waves die in the middle of calls, but workers do not make all their
            // calls for them alone: they pause in between.
            if is_enough {
                let bell = job.bell();
                job.park(bell, job.now().after(pause));
                // If a member is stopped for long, further calls only wait for it.
                if call >= self.calls + PATIENT_CALLS {
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
            // The main activity recovers for all activities of the member. Until then every call
            // returns `Revoked`.
            while self.is_revoked(store, record) && !job.has_ended() {
                let bell = job.bell();
                job.park(bell, job.now().after(LOOK));
            }
            result = worker.step();
        }
        self.check(job, result, worker.data_lost, record);
    }

    /// Accepts losses, if no other living member is doing so.
    fn accept_losses(
        &self,
        acceptor: &mut LossAcceptor,
        job: &Job,
        store: &Store,
        record: &SharedRecord,
    ) -> anyhow::Result<()> {
        if !self.beyond {
            return Ok(());
        }
        let view = job.view();
        let is_sole;
        {
            let mut record = lock(record);
            if record.acceptor.is_some_and(|acceptor| view.is_living(acceptor)) {
                return Ok(());
            }
            is_sole = record.acceptor.is_none() && !record.has_lost_acceptor;
            record.has_lost_acceptor |= record.acceptor.is_some();
            record.acceptor = Some(job.me());
        }
        let keys = program::keys(&self.programs, self.threads);
        let looked = acceptor.accept_losses(job, store, &keys, is_sole, &mut |news| {
            lock(record).losses.record(news, &keys);
            Ok(())
        });
        let mut record = lock(record);
        record.has_lost_acceptor |= acceptor.is_owed;
        record.acceptor = None;
        looked
    }

    /// Whether no partition is lost. False if a member does not answer.
    fn is_whole(&self, store: &Store) -> anyhow::Result<bool> {
        match store.lost_partitions() {
            Ok(lost) => Ok(!self.beyond || lost.is_empty()),
            Err(StoreError::Timeout { .. } | StoreError::Closed) => Ok(false),
            Err(error) => Err(error).context("looking for losses"),
        }
    }

    /// Kills the next wave once all living members find no replica missing.
    fn kill_next_wave(
        &self,
        job: &Job,
        store: &Store,
        record: &SharedRecord,
    ) -> anyhow::Result<()> {
        {
            let mut record = lock(record);
            if record.gone > 0 {
                // A member has gone without opening the store: no further death is within the
                // promise.
                record.victims.clear();
            }
            // A member that found no replica missing needs not ask again before the next wave.
            if record.victims.is_empty() || record.complete.contains(&job.me()) {
                return Ok(());
            }
        }
        let view = job.view();
        let is_over = view.dead.len() == lock(record).struck
            && is_complete(store)?
            && job.epoch() == view.epoch;
        let is_over = is_over && !store.is_revoked();
        let next: Vec<MemberId> = {
            let mut record = lock(record);
            if !is_over || view.dead.len() != record.struck {
                return Ok(());
            }
            record.complete.insert(job.me());
            if !view.living().all(|member| record.complete.contains(&member)) {
                return Ok(());
            }
            let replicas = self.replicas.min(view.living().count());
            let count = record.victims.len().min(replicas - 1);
            record.complete.clear();
            record.struck += count;
            let rest = record.victims.len() - count;
            record.victims.split_off(rest)
        };
        // The killer itself dies last.
        let (me, others): (Vec<MemberId>, Vec<MemberId>) =
            next.iter().partition(|&&next| next == job.me());
        for victim in others.into_iter().chain(me) {
            let _ = job.inject(Fault::Kill(victim));
        }
        Ok(())
    }
}

/// Whether this member finds no replica missing. A member that does not answer may be stopped, and
/// is asked again.
fn is_complete(store: &Store) -> anyhow::Result<bool> {
    match store.replicas_missing() {
        Ok(missing) => Ok(missing == 0),
        Err(StoreError::Timeout { .. } | StoreError::Closed) => Ok(false),
        Err(error) => Err(error).context("looking for missing replicas"),
    }
}
