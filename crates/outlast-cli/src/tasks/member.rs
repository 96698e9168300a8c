//! A member of `outlast tasks`: a worker, and a thread that tells the command how it goes on.

use super::programs::{self, Program};
use super::timeline::Recorded;
use crate::control::{ControlAddress, MemberControl, Phase};
use crate::members::{DeathNews, Watch, decide_together, machine_ns, tell};
use anyhow::Context;
use clap::Args;
use outlast::JoinOptions;
use outlast::store::{self, Store};
use outlast_tasks::{Stats, Tasks};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A member of `outlast tasks`; started by it
#[derive(Args)]
pub(crate) struct TasksMember {
    order: String,
}

/// What the members run, equal at all of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) program: Program,
    pub(super) n: u32,
    pub(super) seed: u64,
    pub(super) replicas: usize,
    pub(super) price: f64,
    pub(super) plain: bool,
    pub(super) limit_s: u64,
    /// Where events go, and where orders to die come from.
    pub(super) control: Option<ControlAddress>,
}

impl Order {
    pub(super) fn options(&self) -> outlast_tasks::Options {
        let options = programs::options().price(self.price).resilient(!self.plain);
        options.attempts(100).deadline(Duration::from_secs(self.limit_s))
    }
}

/// The counts of a worker, for the command.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Counted {
    pub(super) forks: u64,
    pub(super) shared: u64,
    pub(super) moved: u64,
    pub(super) reopened: u64,
    pub(super) again: u64,
    pub(super) found: u64,
    pub(super) diverged: u64,
    pub(super) poisoned: u64,
    pub(super) exposed_ms: f64,
    pub(super) saving_ms: f64,
    pub(super) beat_us: f64,
}

impl From<Stats> for Counted {
    fn from(stats: Stats) -> Counted {
        Counted {
            forks: stats.forks,
            shared: stats.shared,
            moved: stats.moved,
            reopened: stats.reopened,
            again: stats.again,
            found: stats.found,
            diverged: stats.diverged,
            poisoned: stats.poisoned,
            exposed_ms: stats.exposed.as_secs_f64() * 1e3,
            saving_ms: stats.saving.as_secs_f64() * 1e3,
            beat_us: stats.beat.as_secs_f64() * 1e6,
        }
    }
}

/// What members report, each as a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// The run begins.
    Begins {
        at_ns: u64,
    },
    News(DeathNews),
    /// The counts so far.
    Counts(Counted),
    /// The answers of all runs, and the error that ended the last run.
    Answer {
        answers: Vec<u64>,
        error: Option<String>,
        seconds: f64,
        at_ns: u64,
        counts: Counted,
    },
}

impl TasksMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let order: Order = serde_json::from_str(&self.order).context("what to run")?;
        let job = JoinOptions::new().join()?;
        let options = store::Options::new().replicas(order.replicas).allow_fewer();
        let store =
            Store::open(&job, options.expected_keys(1 << 14)).context("opening the store")?;
        let me = job.me().index();
        let control = order.control.clone().map(|address| MemberControl::new(address, me));
        let control = control.transpose()?.map(Arc::new);
        let mut options = order.options();
        if let Some(control) = &control {
            let file = control.record(0)?;
            options = options.events(move |_, event| {
                if let Some(bytes) = (Recorded { at_ns: machine_ns(), event }).encode() {
                    // A report without an event is better than a run that fails.
                    let _ = (&file).write_all(&bytes);
                }
            });
        }
        let tasks = Tasks::open(&store, options).context("opening the runtime")?;
        tell(&Line::Begins { at_ns: machine_ns() })?;
        let is_over = Arc::new(AtomicBool::new(false));
        let reporter = std::thread::spawn({
            let (job, store, is_over) = (job.clone(), store.clone(), is_over.clone());
            let observer = tasks.observer();
            let mut control = control.clone();
            move || -> anyhow::Result<()> {
                let mut watch = Watch::default();
                let mut told = Instant::now();
                while !is_over.load(Ordering::Acquire) {
                    let bell = job.bell();
                    if let Some((step, after)) =
                        control.as_ref().map_or(Ok(None), |control| control.death())?
                    {
                        outlast_tasks::steps::die_in(step as usize, u64::from(after));
                        control = None;
                    }
                    for news in watch.poll(&job, &store)? {
                        tell(&Line::News(news))?;
                    }
                    if told.elapsed() >= Duration::from_millis(200) {
                        told = Instant::now();
                        tell(&Line::Counts(observer.stats().into()))?;
                    }
                    job.park(bell, job.now().after(watch.patience().max(Duration::from_millis(5))));
                }
                Ok(())
            }
        });
        let began = Instant::now();
        let (mut answers, mut error) = (Vec::new(), None);
        while error.is_none() {
            match order.program.run(&tasks, order.n, order.seed) {
                Ok(answer) => answers.push(answer),
                Err(failed) => error = Some(failed.to_string()),
            }
            if !is_run_again(&store, answers.len(), control.as_deref())? {
                break;
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        is_over.store(true, Ordering::Release);
        let _ = job.ring(job.me());
        reporter.join().map_err(|_| anyhow::anyhow!("the reporter panicked"))??;
        let is_ok = error.is_none();
        let (at_ns, counts) = (machine_ns(), tasks.stats().into());
        tell(&Line::Answer { answers, error, seconds, at_ns, counts })?;
        tasks.close().context("closing the runtime")?;
        store.close().context("closing the store")?;
        job.leave()?;
        Ok(is_ok)
    }
}

/// Whether the members run the program again, because the command has not done all its kills and
/// stops. The first member to get here decides for all.
fn is_run_again(
    store: &Store,
    runs: usize,
    control: Option<&MemberControl>,
) -> anyhow::Result<bool> {
    let Some(control) = control else { return Ok(false) };
    let is_again = control.phase()? == Phase::Work;
    decide_together(store, &format!("outlast-cli/runs/{runs}"), is_again)
}
