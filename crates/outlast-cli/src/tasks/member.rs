//! A member of `outlast tasks`: a worker, and a thread that tells the command how it goes on.

use super::programs::{self, Program};
use crate::members::{DeathNews, Watch, tell};
use anyhow::Context;
use clap::Args;
use outlast::JoinOptions;
use outlast::store::{self, Store};
use outlast_tasks::{Stats, Tasks};
use serde::{Deserialize, Serialize};
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
    /// Die in steps of the runtime: the members that do, each with a step and a number of engine
    /// steps.
    pub(super) deaths: Vec<(u32, usize, u64)>,
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
    Begins,
    News(DeathNews),
    /// The counts so far.
    Counts(Counted),
    /// The answer, or the error in its place.
    Answer {
        answer: Option<u64>,
        error: Option<String>,
        seconds: f64,
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
        let tasks = Tasks::open(&store, order.options()).context("opening the runtime")?;
        for &(_, step, after) in order.deaths.iter().filter(|death| death.0 == job.me().0) {
            outlast_tasks::steps::die_in(step, after);
        }
        tell(&Line::Begins)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let reporter = std::thread::spawn({
            let (job, store, is_over) = (job.clone(), store.clone(), is_over.clone());
            let observer = tasks.observer();
            move || -> anyhow::Result<()> {
                let mut watch = Watch::default();
                let mut told = Instant::now();
                while !is_over.load(Ordering::Acquire) {
                    let bell = job.bell();
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
        let result = order.program.run(&tasks, order.n, order.seed);
        let seconds = began.elapsed().as_secs_f64();
        is_over.store(true, Ordering::Release);
        let _ = job.ring(job.me());
        reporter.join().map_err(|_| anyhow::anyhow!("the reporter panicked"))??;
        let (answer, error) = match result {
            Ok(answer) => (Some(answer), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let is_ok = error.is_none();
        tell(&Line::Answer { answer, error, seconds, counts: tasks.stats().into() })?;
        tasks.close().context("closing the runtime")?;
        store.close().context("closing the store")?;
        job.leave()?;
        Ok(is_ok)
    }
}
