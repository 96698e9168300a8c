//! A member of a chaos run: workers that make random calls, a thread that recovers, and a thread
//! that watches and reports.

use super::{Mode, seats};
use crate::control::{ControlAddress, MemberControl, Phase};
use crate::loss_acceptor::{LossAcceptor, LossNews};
use crate::members::{DeathNews, Watch, machine_ns, tell};
use crate::program::{self, FINAL_THREAD, Found, ProgramKind, RECOVERY_THREAD, Worker};
use anyhow::{Context, bail, ensure};
use clap::Args;
use outlast::failpoint;
use outlast::store::{Options, Store};
use outlast::{Job, JoinOptions, MemberId};
use outlast_check::history;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A member of a chaos run; started by it
#[derive(Args)]
pub(crate) struct ChaosMember {
    plan: String,
}

/// The instructions of the command to its members.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) replicas: usize,
    pub(super) threads: u32,
    pub(super) shared_keys: u32,
    pub(super) private_keys: u32,
    pub(super) programs: ProgramKind,
    pub(super) mode: Mode,
    pub(super) seed: u64,
    /// Whether more members may die than the store promises to survive.
    pub(super) beyond: bool,
    /// Whether survivors read the memory of the dead.
    pub(super) salvage: bool,
    /// The time limit of calls.
    pub(super) time_limit_s: u64,
    /// Whether a further thread reads keys that need no member of another host.
    pub(super) reads_near: bool,
    /// With programs of seats: how many failure domains there are.
    pub(super) domains: usize,
    /// With programs of seats: whether they log their accesses.
    pub(super) logged: bool,
    /// The most calls of a worker in a second.
    pub(super) calls_per_second: u64,
    pub(super) address: ControlAddress,
}

impl Plan {
    pub(super) fn options(&self, members: usize) -> outlast_check::workload::Options {
        program::options(members, self.shared_keys, self.private_keys, self.programs)
    }
}

/// What members report to the command, each as a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ChaosLine {
    /// The store is open.
    Open,
    /// The members with the replicas of each key, while this many members are dead.
    Replicas {
        dead: u64,
        replicas: Vec<Vec<u32>>,
    },
    News(DeathNews),
    /// A report of the loss acceptor.
    Loss(LossNews),
    /// All workers have stopped.
    Rests,
    /// The final value of each key, as this member read it.
    Found(Vec<FoundLine>),
    /// A program of seats has ended, and these seats at this member.
    Ended {
        lap: u64,
        seats: Vec<usize>,
    },
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FoundLine {
    Absent,
    Value { counter: u64, writer: u32, identity: u64, torn: bool },
    DataLost,
    Unknown,
}

/// How long workers may take to stop: a call that needs a stopped member ends at its time limit.
const REST_LIMIT: Duration = Duration::from_secs(60);
/// The longest time that a loss is left before it is accepted.
const LOST_FOR: Duration = Duration::from_millis(300);
/// The thread number of reads on the own host, and the pause after each read.
const NEAR_THREAD: u32 = 61;
const NEAR_PAUSE: Duration = Duration::from_millis(10);
/// How many calls a worker makes between two rests.
const BURST: u64 = 25;

fn clock(_: &Job) -> u64 {
    machine_ns()
}

impl ChaosMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let plan: Plan = serde_json::from_str(&self.plan).context("the plan of the run")?;
        let job = JoinOptions::new().time_limit(Duration::from_secs(plan.time_limit_s)).join()?;
        let member = MemberControl::new(plan.address.clone(), job.me().index())?;
        let options = Options::new().replicas(plan.replicas).partitions(64).expected_keys(1024);
        let options = options.mode(plan.mode.into()).salvage(plan.salvage);
        let store = Store::open(&job, options).context("opening the store")?;
        if plan.programs.is_of_seats() {
            seats::play(&plan, &job, &store, &member)?;
            store.close().context("closing the store")?;
            job.leave()?;
            return Ok(true);
        }
        let keys = program::keys(&plan.options(job.members()), plan.threads);
        tell(&ChaosLine::Open)?;

        let stop = Arc::new(AtomicBool::new(false));
        let trouble: Arc<Mutex<Option<String>>> = Arc::default();
        let hurry = Arc::new(AtomicBool::new(false));
        let mut workers = Vec::new();
        for thread in 0..plan.threads {
            let target = Box::new(member.record(thread as usize)?);
            let mut worker = Worker::new(
                &store,
                &job,
                &plan.options(job.members()),
                plan.seed,
                thread,
                clock,
                target,
            )?;
            if plan.beyond {
                worker.deaths_survived = plan.replicas;
            }
            let (stop, trouble, hurry) = (stop.clone(), trouble.clone(), hurry.clone());
            let pause = Duration::from_secs(BURST) / plan.calls_per_second.max(1) as u32;
            let (store, may_lose) = (store.clone(), plan.beyond);
            let body = move || {
                if let Err(error) = work(worker, &store, &stop, &hurry, pause, may_lose) {
                    trouble
                        .lock()
                        .unwrap_or_else(|e| e.into_inner())
                        .get_or_insert(format!("{error:#}"));
                }
            };
            workers.push(job.spawn("chaos", Box::new(body))?);
        }
        if plan.reads_near {
            let target = Box::new(member.record(plan.threads as usize + 2)?);
            let options = plan.options(job.members());
            let reader =
                Worker::new(&store, &job, &options, plan.seed, NEAR_THREAD, clock, target)?;
            let (store, own_job, keys, stop, trouble) =
                (store.clone(), job.clone(), keys.clone(), stop.clone(), trouble.clone());
            let body = move || {
                if let Err(error) = read_near(reader, &store, &own_job, &keys, &stop) {
                    trouble
                        .lock()
                        .unwrap_or_else(|e| e.into_inner())
                        .get_or_insert(format!("{error:#}"));
                }
            };
            workers.push(job.spawn("near", Box::new(body))?);
        }
        let target = Box::new(member.record(plan.threads as usize + 1)?);
        let recoverer = Worker::new(
            &store,
            &job,
            &plan.options(job.members()),
            plan.seed,
            RECOVERY_THREAD,
            clock,
            target,
        )?;
        let is_over = Arc::new(AtomicBool::new(false));
        let recovering = {
            let (store, own_job, is_over, threads) =
                (store.clone(), job.clone(), is_over.clone(), plan.threads);
            let body = move || {
                if let Err(error) = recover(recoverer, &store, &own_job, &is_over, threads) {
                    // Nothing else that this member does can be trusted.
                    eprintln!("{error:#}");
                    std::process::exit(1);
                }
            };
            job.spawn("recovery", Box::new(body))?
        };
        let mut watcher = Watcher {
            watch: Watch::default(),
            is_armed: false,
            hurry: &hurry,
            job: &job,
            store: &store,
            keys: &keys,
            acceptor: plan.beyond.then(|| LossAcceptor::new(plan.seed, &job, LOST_FOR, clock)),
        };
        watcher.tell_replicas()?;
        watcher.until(Phase::Rest, &member)?;
        stop.store(true, Ordering::Release);
        let until = job.now().after(REST_LIMIT);
        for worker in &workers {
            ensure!(job.wait_for(worker, until), "a worker did not stop within {REST_LIMIT:?}");
        }
        if let Some(trouble) = trouble.lock().unwrap_or_else(|e| e.into_inner()).take() {
            bail!(trouble);
        }
        tell(&ChaosLine::Rests)?;
        watcher.until(Phase::ReadBack, &member)?;
        let target = Box::new(member.record(plan.threads as usize)?);
        let options = plan.options(job.members());
        let mut reader =
            Worker::new(&store, &job, &options, plan.seed, FINAL_THREAD, clock, target)?;
        if plan.beyond {
            reader.deaths_survived = plan.replicas;
        }
        let until = job.now().after(REST_LIMIT);
        let found = loop {
            while store.is_revoked() {
                ensure!(job.now() < until, "the store has not recovered within {REST_LIMIT:?}");
                job.park(job.bell(), job.now().after(Duration::from_millis(1)));
            }
            let found: anyhow::Result<Vec<FoundLine>> =
                keys.iter().map(|key| Ok(found_line(reader.get(key)?))).collect();
            reader.audit()?;
            if !store.is_revoked() {
                break found;
            }
        };
        tell(&ChaosLine::Found(found?))?;
        watcher.until(Phase::End, &member)?;
        is_over.store(true, Ordering::Release);
        job.ring(job.me())?;
        ensure!(job.wait_for(&recovering, job.now().after(REST_LIMIT)), "a recovery did not end");
        store.close().context("closing the store")?;
        job.leave()?;
        Ok(true)
    }
}

fn found_line(found: Found) -> FoundLine {
    match found {
        Found::Read(None) => FoundLine::Absent,
        Found::Read(Some((
            history::Version { counter, writer },
            history::Value { identity, torn },
        ))) => FoundLine::Value { counter, writer, identity, torn },
        Found::DataLost => FoundLine::DataLost,
        Found::Unknown => FoundLine::Unknown,
    }
}

/// Recovers whenever the store is revoked, until the run is over.
fn recover(
    mut recoverer: Worker,
    store: &Store,
    job: &Job,
    is_over: &AtomicBool,
    threads: u32,
) -> anyhow::Result<()> {
    let dead_before: Vec<MemberId> = job.view().dead.iter().collect();
    while !is_over.load(Ordering::Acquire) {
        let bell = job.bell();
        if store.is_revoked() {
            recoverer.recover(threads)?;
        }
        job.park(bell, job.now().after(Duration::from_millis(10)));
    }
    ensure!(recoverer.data_lost == 0, "{} calls said that data are lost", recoverer.data_lost);
    if store.mode() == outlast::store::Mode::Global {
        recoverer.check_adoptions(&dead_before)?;
    }
    Ok(())
}

fn work(
    mut worker: Worker,
    store: &Store,
    stop: &AtomicBool,
    hurry: &AtomicBool,
    pause: Duration,
    may_lose: bool,
) -> anyhow::Result<()> {
    while !stop.load(Ordering::Acquire) {
        let began = std::time::Instant::now();
        for _ in 0..BURST {
            // Every call returns `Revoked` until the recovery thread has recovered.
            if store.is_revoked() {
                std::thread::sleep(Duration::from_millis(1));
            } else {
                worker.step()?;
            }
        }
        // Data must not be reported lost, not even for a while.
        ensure!(
            may_lose || worker.data_lost == 0,
            "{} calls said that data are lost",
            worker.data_lost
        );
        // Rests bound the record, which is judged as a whole. A member that is armed for a step
        // inside a call does not rest: it reaches the step only in a call.
        if !hurry.load(Ordering::Acquire) {
            std::thread::sleep(pause.saturating_sub(began.elapsed()));
        }
    }
    Ok(())
}

/// Reads keys whose first replica is on this member's own host, until the run is over. A cut-off
/// member still reaches these replicas, and must not answer once the other members go on without
/// it.
fn read_near(
    mut reader: Worker,
    store: &Store,
    job: &Job,
    keys: &[history::Key],
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let own = job.domain(job.me())?;
    while !stop.load(Ordering::Acquire) {
        for key in keys.iter().take_while(|_| !stop.load(Ordering::Acquire)) {
            let replicas = store.replicas_of(key.bytes());
            if replicas
                .first()
                .is_some_and(|&replica| job.domain(replica).is_ok_and(|domain| domain == own))
            {
                reader.get(key)?;
                std::thread::sleep(NEAR_PAUSE);
            }
        }
    }
    Ok(())
}

/// The thread that watches for deaths, repairs and orders, and reports.
struct Watcher<'a> {
    watch: Watch,
    is_armed: bool,
    /// Keeps the workers from resting.
    hurry: &'a AtomicBool,
    job: &'a Job,
    store: &'a Store,
    keys: &'a [history::Key],
    /// With `--beyond`: accepts losses while this member is the lowest living member.
    acceptor: Option<LossAcceptor>,
}

impl Watcher<'_> {
    /// Reports deaths and repairs until the command has reached this phase.
    fn until(&mut self, phase: Phase, member: &MemberControl) -> anyhow::Result<()> {
        loop {
            let bell = self.job.bell();
            let news = self.watch.poll(self.job, self.store)?;
            let is_new_death = news.iter().any(|news| matches!(news, DeathNews::Noticed { .. }));
            for news in news {
                tell(&ChaosLine::News(news))?;
            }
            if is_new_death {
                self.tell_replicas()?;
            }
            if let Some(acceptor) = &mut self.acceptor
                && self.job.view().living().next() == Some(self.job.me())
            {
                let is_sole = self.job.me() == MemberId(0);
                acceptor.accept_losses(self.job, self.store, self.keys, is_sole, &mut |news| {
                    tell(&ChaosLine::Loss(news))
                })?;
            }
            if let (false, Some((step, after))) = (self.is_armed, member.death()?) {
                self.is_armed = true;
                self.hurry.store(true, Ordering::Release);
                failpoint::die_in(step, u64::from(after));
            }
            if member.phase()? >= phase {
                return Ok(());
            }
            self.job.park(bell, self.job.now().after(self.watch.patience()));
        }
    }

    /// The lowest living member reports where the replicas are.
    fn tell_replicas(&self) -> anyhow::Result<()> {
        if self.job.view().living().next() != Some(self.job.me()) {
            return Ok(());
        }
        let replicas = |key: &history::Key| {
            self.store.replicas_of(key.bytes()).iter().map(|replica| replica.0).collect()
        };
        tell(&ChaosLine::Replicas {
            dead: self.watch.dead(),
            replicas: self.keys.iter().map(replicas).collect(),
        })
    }
}
