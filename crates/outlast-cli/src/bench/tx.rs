//! `outlast bench tx`: transactions over 1 to 64 keys against a put of as many bytes, and
//! transactions of many members at once.

use super::{BenchArgs, Row, expect_ok, publish};
use crate::quantity;
use crate::report::say;
use anyhow::{Context, ensure};
use clap::Args;
use outlast::launch::{Launch, Output};
use outlast::store::{Options, Store, StoreError};
use outlast::{Job, JoinOptions, MemberId};
use std::hint::black_box;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
First a single member: a transaction that puts several keys, and a transaction that reads each key
before it puts it, against a put of as many bytes to a single key. All take turns in one run. Then
2 to 16 members at once, each with transactions over three keys, of which all members share none,
one, or all three: the time of a transaction, and how many commit in a second.

Examples:
  All measurements:
      outlast bench tx
  Three keys of 1 KiB, a single member:
      outlast bench tx --keys 3 --size 1K --members 0";

/// Measure transactions on this machine against puts
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct TxBench {
    /// How many keys a transaction has
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,3,8,16,64")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    keys: Vec<u16>,
    /// The size of each value
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = quantity::bytes)]
    size: u64,
    /// How many members work at once in the second part; 0 skips it
    #[arg(short = 'n', long, value_name = "N", value_delimiter = ',', default_value = "2,4,8,16")]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=64))]
    members: Vec<u16>,
    /// How many replicas each value has
    #[arg(long, value_name = "R", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=8))]
    replicas: u8,
    /// How long each measurement takes
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    seconds: f64,
    #[command(flatten)]
    pub(super) args: BenchArgs,
}

/// A member of the benchmark; started by it
#[derive(Args)]
pub(crate) struct TxBenchMember {
    /// In the first part: how many keys a transaction has. In the second part: how many are shared
    #[arg(long, value_delimiter = ',')]
    keys: Vec<u16>,
    #[arg(long)]
    is_crowd: bool,
    #[arg(long)]
    size: usize,
    #[arg(long)]
    replicas: usize,
    #[arg(long)]
    seconds: f64,
}

/// How many keys a transaction of the second part has.
const CROWD_KEYS: u16 = 3;

impl TxBench {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        ensure!(self.seconds > 0.0 && self.seconds <= 600.0, "--seconds must be between 0 and 600");
        let json = self.args.json.as_deref();
        let mut rows = Vec::new();
        let members = usize::from(self.replicas).max(4);
        for (keys, contender, samples) in self.start(members, &self.keys, false)?.0 {
            let bytes = u64::from(keys) * self.size;
            let row = Row {
                size: Some(bytes),
                contender,
                ..self.row(&format!("tx, {keys} keys"), members)
            };
            rows.push(row.with_samples(samples));
        }
        for index in 0..rows.len() {
            let floor =
                rows.iter().find(|row| row.what == rows[index].what && row.contender == "put");
            let floor = floor.map_or(0, |row| row.p50_ns).max(1);
            rows[index].ratio = Some(rows[index].p50_ns as f64 / floor as f64);
            rows[index].floor_ns = Some(floor);
        }
        for &members in self.members.iter().filter(|&&members| members > 0) {
            let members = usize::from(members).max(usize::from(self.replicas));
            for shared in [0, 1, CROWD_KEYS] {
                let (found, commits) = self.start(members, &[shared], true)?;
                let samples = found.into_iter().flat_map(|(_, _, samples)| samples).collect();
                let row =
                    self.row(&format!("tx, {CROWD_KEYS} keys, {shared} shared by all"), members);
                say(
                    json,
                    format_args!(
                        "{members} members, {shared} of {CROWD_KEYS} keys shared: \
                         {:.0} transactions a second",
                        commits as f64 / self.seconds
                    ),
                );
                let row = Row {
                    size: Some(u64::from(CROWD_KEYS) * self.size),
                    contender: "transaction".into(),
                    ..row
                };
                rows.push(row.with_samples(samples));
            }
        }
        publish(&self.args, rows)?;
        Ok(true)
    }

    fn row(&self, what: &str, members: usize) -> Row {
        let replicas = Some(usize::from(self.replicas));
        Row { what: what.into(), engine: "shm".into(), members, replicas, ..Row::default() }
    }

    /// Runs a job of this many members. Returns their samples, in nanoseconds, and the number of
    /// transactions that they committed.
    #[allow(clippy::type_complexity, reason = "used in a single place")]
    fn start(
        &self,
        members: usize,
        keys: &[u16],
        is_crowd: bool,
    ) -> anyhow::Result<(Vec<(u16, String, Vec<u64>)>, u64)> {
        let keys: Vec<String> = keys.iter().map(u16::to_string).collect();
        let mut running = Launch::new(members)
            .program(std::env::current_exe()?)
            .args(["tx-bench-member", "--keys", &keys.join(",")])
            .args(["--size", &self.size.to_string(), "--replicas", &self.replicas.to_string()])
            .args(["--seconds", &self.seconds.to_string()])
            .args(is_crowd.then_some("--is-crowd"))
            .die_with_launcher(true)
            .output(Output::Capture)
            .start()?;
        let outcome =
            running.wait(Duration::from_secs_f64(60.0 + 4.0 * self.seconds * keys.len() as f64));
        expect_ok(&outcome)?;
        let (mut found, mut commits) = (Vec::new(), 0);
        for member in 0..members as u32 {
            let output = running.output(MemberId(member));
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                let fields: Vec<&str> = line.split('\t').collect();
                let [keys, contender, count, samples] = fields[..] else { continue };
                commits += count.parse::<u64>().context("a count")?;
                let samples: Result<Vec<u64>, _> = samples.split(' ').map(str::parse).collect();
                found.push((
                    keys.parse()?,
                    contender.to_string(),
                    samples.context("a member's samples")?,
                ));
            }
        }
        Ok((found, commits))
    }
}

impl TxBenchMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let job = JoinOptions::new().time_limit(Duration::from_secs(3600)).join()?;
        let store =
            Store::open(&job, Options::new().replicas(self.replicas).expected_keys(16_384))?;
        if self.is_crowd {
            self.crowd(&job, &store)?;
        } else if job.me() == MemberId(0) {
            for &keys in &self.keys {
                self.alone(&store, keys)?;
            }
        }
        store.close()?;
        job.leave()?;
        Ok(true)
    }

    /// The first part, by a single member: transactions against a put.
    fn alone(&self, store: &Store, keys: u16) -> anyhow::Result<()> {
        // Over several sets of keys in turn.
        let sets = 1024 / usize::from(keys).max(1);
        let names: Vec<Vec<String>> = (0..sets.max(1))
            .map(|set| (0..keys).map(|key| format!("bench/{keys}/{set}/{key}")).collect())
            .collect();
        let whole: Vec<String> =
            (0..names.len()).map(|set| format!("bench/{keys}/{set}")).collect();
        let (value, all) = (vec![1; self.size], vec![1; self.size * usize::from(keys)]);
        let mut at = [0; 3];
        let mut next = |of: usize| {
            at[of] = (at[of] + 1) % names.len();
            at[of]
        };
        let put = |set: usize| store.put(whole[set].as_bytes(), black_box(&all)).map(|_| ());
        let write = |set: usize| -> Result<(), StoreError> {
            store.transaction(|tx| {
                names[set].iter().try_for_each(|key| tx.put(key.as_bytes(), black_box(&value)))
            })
        };
        let change = |set: usize| -> Result<(), StoreError> {
            store.transaction(|tx| {
                names[set].iter().try_for_each(|key| {
                    black_box(tx.get(key.as_bytes())?);
                    tx.put(key.as_bytes(), black_box(&value))
                })
            })
        };
        for _ in 0..2 * names.len() {
            put(next(0))?;
            write(next(1))?;
            change(next(2))?;
        }
        let calls = (64 / u64::from(keys)).max(1);
        let mut samples = [Vec::new(), Vec::new(), Vec::new()];
        let end = Instant::now() + Duration::from_secs_f64(self.seconds);
        while Instant::now() < end {
            for _ in 0..16 {
                samples[0].push(measure(calls, || put(next(0)))?);
                samples[1].push(measure(calls, || write(next(1)))?);
                samples[2].push(measure(calls, || change(next(2)))?);
            }
        }
        for (contender, samples) in
            ["put", "transaction of puts", "transaction of gets and puts"].iter().zip(samples)
        {
            tell(keys, contender, 0, &samples);
        }
        Ok(())
    }

    /// The second part, by all members at once.
    fn crowd(&self, job: &Job, store: &Store) -> anyhow::Result<()> {
        let shared = self.keys.first().copied().unwrap_or(0);
        let keys: Vec<String> =
            (0..CROWD_KEYS)
                .map(|key| {
                    if key < shared {
                        format!("hot/{key}")
                    } else {
                        format!("{}/{key}", job.me().0)
                    }
                })
                .collect();
        let value = vec![1; self.size];
        let change = || -> Result<(), StoreError> {
            store.transaction(|tx| {
                keys.iter().try_for_each(|key| {
                    black_box(tx.get(key.as_bytes())?);
                    tx.put(key.as_bytes(), black_box(&value))
                })
            })
        };
        change()?;
        // All members begin together.
        store.add(b"ready", 1)?;
        let deadline = Instant::now() + Duration::from_secs(30);
        while store.add(b"ready", 0)? < job.members() as i64 {
            ensure!(Instant::now() < deadline, "a member is missing");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut samples = Vec::new();
        let end = Instant::now() + Duration::from_secs_f64(self.seconds);
        while Instant::now() < end {
            samples.push(measure(1, change)?);
        }
        let count = samples.len() as u64;
        // Enough samples for the percentiles.
        let step = samples.len().div_ceil(20_000).max(1);
        let some: Vec<u64> = samples.into_iter().step_by(step).collect();
        tell(shared, "transaction", count, &some);
        Ok(())
    }
}

/// The mean time of a call over several calls, in nanoseconds.
fn measure(calls: u64, mut call: impl FnMut() -> Result<(), StoreError>) -> anyhow::Result<u64> {
    let begin = Instant::now();
    for _ in 0..calls {
        call()?;
    }
    Ok(begin.elapsed().as_nanos() as u64 / calls)
}

fn tell(keys: u16, contender: &str, count: u64, samples: &[u64]) {
    let samples = samples.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
    println!("{keys}\t{contender}\t{count}\t{samples}");
}
