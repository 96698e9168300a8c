//! The callers of Outlast: members of a job, each with threads. The members that do not call lend
//! memory.

use super::super::pace::Pace;
use super::super::peers::{Call, Choice, Load, key_name};
use super::{By, histogram};
use crate::members::say_line;
use anyhow::{Context, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use outlast::store::{KeyHandle, Options, Store};
use outlast::{Job, JoinOptions};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// A member of a benchmark of loads; started by it
#[derive(Args)]
pub(crate) struct LoadBenchMember {
    #[arg(long)]
    call: String,
    #[arg(long)]
    size: usize,
    #[arg(long)]
    keys: usize,
    #[arg(long)]
    replicas: usize,
    /// How many members call
    #[arg(long)]
    calling: usize,
    /// How many threads of each call
    #[arg(long)]
    threads: usize,
    #[arg(long)]
    length_ns: u64,
    /// 0: each call begins when the last has returned
    #[arg(long)]
    period_ns: u64,
    #[arg(long)]
    by_handle: bool,
}

/// How long members wait for each other.
const LIMIT: Duration = Duration::from_secs(60);

impl LoadBenchMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let job = JoinOptions::new().time_limit(Duration::from_secs(600)).join()?;
        let options = Options::new().replicas(self.replicas).expected_keys(self.keys.max(1024));
        let store = Store::open(&job, options)?;
        let me = job.me().0 as usize;
        // The members that call fill the store together.
        let value = vec![1; self.size];
        if me < self.calling {
            for index in (me..self.keys).step_by(self.calling) {
                store.put(key_name(self.size, index).as_bytes(), &value)?;
            }
        }
        meet(&job, &store)?;
        if me < self.calling {
            self.call(&store, me)?;
        }
        store.close()?;
        job.leave()?;
        Ok(true)
    }

    fn call(&self, store: &Store, me: usize) -> anyhow::Result<()> {
        let load = &self.load();
        let begin = Instant::now() + Duration::from_millis(5);
        let found = std::thread::scope(|scope| {
            let callers: Vec<_> = (me * self.threads..(me + 1) * self.threads)
                .map(|caller| scope.spawn(move || self.repeat(store, load, caller, begin)))
                .collect();
            let mut all = histogram()?;
            for caller in callers {
                let found = caller.join().map_err(|_| anyhow::anyhow!("a caller panicked"))??;
                all.add(found).context("adding a histogram")?;
            }
            anyhow::Ok(all)
        })?;
        let pairs: Vec<String> = found
            .iter_recorded()
            .map(|step| {
                format!("{}:{}", step.value_iterated_to(), step.count_since_last_iteration())
            })
            .collect();
        if pairs.is_empty() { Ok(()) } else { say_line(&format!("times {}", pairs.join(" "))) }
    }

    fn load(&self) -> Load {
        Load {
            call: match self.call.as_str() {
                "put" => Call::Put,
                "get" => Call::Get,
                _ => Call::Mixed,
            },
            size: self.size,
            keys: self.keys,
            length: Duration::from_nanos(self.length_ns),
            callers: self.calling * self.threads,
            period: (self.period_ns > 0).then(|| Duration::from_nanos(self.period_ns)),
        }
    }

    /// Makes the calls of a caller, as those of a peer make them.
    fn repeat(
        &self,
        store: &Store,
        load: &Load,
        caller: usize,
        begin: Instant,
    ) -> anyhow::Result<Histogram<u64>> {
        let names: Vec<String> = (0..self.keys).map(|index| key_name(self.size, index)).collect();
        let by = if self.by_handle { By::Handle } else { By::Key };
        let handles: Vec<KeyHandle> = match by {
            By::Handle => {
                names.iter().map(|name| store.handle(name.as_bytes())).collect::<Result<_, _>>()?
            }
            By::Key => Vec::new(),
        };
        let (value, mut read) = (vec![1; self.size], vec![0; self.size]);
        let mut choice = Choice::new(load, caller);
        let mut times = histogram()?;
        let mut pace = Pace::new(begin, load.length, load.period);
        while let Some(begin) = pace.next() {
            let (is_put, index) = choice.next(load);
            match (is_put, handles.get(index)) {
                (true, Some(handle)) => handle.put(black_box(&value)).map(drop)?,
                (true, None) => {
                    store.put(names[index].as_bytes(), black_box(&value)).map(drop)?;
                }
                (false, Some(handle)) => {
                    black_box(handle.get_into(&mut read)?);
                }
                (false, None) => {
                    black_box(store.get_into(names[index].as_bytes(), &mut read)?);
                }
            }
            times.saturating_record(begin.elapsed().as_nanos().max(1) as u64);
        }
        Ok(times)
    }
}

/// Waits until all members are here.
fn meet(job: &Job, store: &Store) -> anyhow::Result<()> {
    store.add(b"ready", 1)?;
    let deadline = Instant::now() + LIMIT;
    while store.add(b"ready", 0)? < job.members() as i64 {
        ensure!(Instant::now() < deadline, "a member is missing");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
