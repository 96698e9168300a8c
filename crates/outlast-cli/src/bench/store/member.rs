//! The members of `outlast bench put` and `outlast bench get`: member 0 makes the calls, the other
//! members lend memory.

use super::super::ping::{SURVIVE, survive};
use super::{GET_BY_HANDLE, MEMCPY, PUT_BY_HANDLE, keys_of};
use anyhow::Context;
use clap::Args;
use outlast::store::{Mode, Options, Store};
use outlast::{Epoch, Job, JoinOptions, MemberId};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// A member of the benchmark; started by it
#[derive(Args)]
pub(crate) struct StoreBenchMember {
    #[arg(long)]
    what: String,
    #[arg(long)]
    keys: usize,
    #[arg(long)]
    expected_keys: Option<usize>,
    #[arg(long)]
    replicas: usize,
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<u64>,
    #[arg(long)]
    seconds: f64,
    #[arg(long)]
    checksums: bool,
    #[arg(long)]
    sole_writers: bool,
    /// Members are on several hosts: a call takes long enough to be measured alone
    #[arg(long)]
    far: bool,
    #[arg(long)]
    computing: bool,
}

impl StoreBenchMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let job = JoinOptions::new().time_limit(Duration::from_secs(3600)).join()?;
        let expected = self.expected_keys.unwrap_or(self.keys.max(1024));
        let options = Options::new().replicas(self.replicas).expected_keys(expected);
        let options = options.checksums(self.checksums);
        let options = match self.sole_writers {
            true => options.mode(Mode::Global).sole_writers(true),
            false => options,
        };
        let store = Store::open(&job, options)?;
        // The floor is measured in memory of the same kind: each member lends a range for it.
        let floor_len =
            self.sizes.iter().map(|&size| keys_of(self.keys, size) * stride(size as usize)).max();
        let floor = job.reserve(floor_len.unwrap_or(0) as u64)?;
        let zeros = vec![0; 1 << 20];
        for offset in (0..floor_len.unwrap_or(0)).step_by(zeros.len()) {
            let len = zeros.len().min(floor_len.unwrap_or(0) - offset);
            job.put(Epoch::ANY, job.me(), floor + offset as u64, &zeros[..len])?;
        }
        store.put(format!("floor/{}", job.me().0).as_bytes(), &floor.to_le_bytes())?;
        if job.me() == MemberId(0) {
            for &size in &self.sizes {
                let keys = keys_of(self.keys, size);
                match self.what.as_str() {
                    SURVIVE => survive(&job, &store, size, keys, self.seconds)?,
                    "put" => self.put(&job, &store, size as usize, keys)?,
                    _ => self.get(&job, &store, size as usize, keys)?,
                }
            }
        }
        if job.me() == MemberId(0) {
            store.put(b"over", b"")?;
        }
        // This member makes a call now and then; its background thread answers the measured calls.
        let mut sum = 0u64;
        while self.computing && store.get(b"over")?.is_none() {
            let end = Instant::now() + Duration::from_millis(100);
            while Instant::now() < end {
                sum = black_box(sum.wrapping_mul(5).wrapping_add(1));
            }
        }
        // The members that lend memory come here at once and sleep.
        store.close()?;
        job.leave()?;
        Ok(true)
    }

    /// The offset of the range that each member has lent.
    fn floors(&self, job: &Job, store: &Store) -> anyhow::Result<Vec<u64>> {
        let deadline = job.now().after(Duration::from_secs(30));
        (0..job.members())
            .map(|member| {
                let name = format!("floor/{member}");
                let found =
                    store.wait(name.as_bytes(), None, deadline)?.context("a member is missing")?;
                Ok(u64::from_le_bytes(found.bytes().try_into().context("an offset")?))
            })
            .collect()
    }

    fn put(&self, job: &Job, store: &Store, size: usize, keys: usize) -> anyhow::Result<()> {
        let name = |by: &str, index: usize| format!("bench/{by}/{size}/{index}");
        let handles = (0..keys).map(|index| store.handle(name("handle", index).as_bytes()));
        let handles = handles.collect::<Result<Vec<_>, _>>()?;
        let names: Vec<String> = (0..keys).map(|index| name("key", index)).collect();
        let source = Buffer::new(size);
        let floors = self.floors(job, store)?;
        let (mut by_handle, mut by_key) = (0, 0);
        let mut at = 0;
        let mut copy = || {
            for (member, floor) in floors.iter().enumerate().take(self.replicas) {
                let offset = floor + (at * stride(size)) as u64;
                job.memcpy_in(MemberId(member as u32), offset, black_box(source.bytes()));
            }
            at = (at + 1) % keys;
        };
        let mut put_handle = || -> anyhow::Result<()> {
            handles[by_handle].put(black_box(source.bytes()))?;
            by_handle = (by_handle + 1) % keys;
            Ok(())
        };
        let mut put_key = || -> anyhow::Result<()> {
            store.put(names[by_key].as_bytes(), black_box(source.bytes()))?;
            by_key = (by_key + 1) % keys;
            Ok(())
        };
        for _ in 0..2 * keys {
            copy();
            put_key()?;
            put_handle()?;
        }
        let end = Instant::now() + Duration::from_secs_f64(self.seconds);
        // As many calls in a row as take some microseconds, so that reading the clock does not
        // count.
        let calls = match (self.far, size > 4096) {
            (true, _) => 1,
            (false, true) => 4,
            (false, false) => 64,
        };
        let mut samples = [Vec::new(), Vec::new(), Vec::new()];
        while Instant::now() < end {
            for _ in 0..16 {
                if !self.far {
                    samples[0].push(measure(calls, || {
                        copy();
                        Ok(())
                    })?);
                }
                samples[1].push(measure(calls, &mut put_handle)?);
                samples[2].push(measure(calls, &mut put_key)?);
            }
        }
        tell(size, [MEMCPY, PUT_BY_HANDLE, "put by key"], &samples);
        Ok(())
    }

    fn get(&self, job: &Job, store: &Store, size: usize, keys: usize) -> anyhow::Result<()> {
        // Names are computed, as the floor's addresses are: reading them from an array would be
        // measured, too.
        let name = |index: usize| -> [u8; 16] {
            let mut name = *b"get/size........";
            name[4..8].copy_from_slice(&(size as u32).to_be_bytes());
            name[8..].copy_from_slice(&index.to_be_bytes());
            name
        };
        // Records are spread over all members, and so are the places of the floor.
        let floors = self.floors(job, store)?;
        let mut target = Buffer::new(size);
        for index in 0..keys {
            store.put(&name(index), target.bytes())?;
            let member = index % floors.len();
            job.memcpy_in(
                MemberId(member as u32),
                floors[member] + (index * stride(size)) as u64,
                target.bytes(),
            );
        }
        let handles =
            (0..keys).map(|index| store.handle(&name(index))).collect::<Result<Vec<_>, _>>()?;
        for (index, handle) in handles.iter().enumerate() {
            handle.get_into(target.at(0, size))?;
            store.get_into(&name(index), target.at(0, size))?;
        }
        // All contenders use equal random orders. The next place depends on nothing that is read.
        let mut states = [1u64; 3];
        let next = |state: &mut u64| {
            *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((*state >> 33) as usize * keys) >> 31
        };
        let end = Instant::now() + Duration::from_secs_f64(self.seconds);
        let calls = if self.far { 1 } else { 64 };
        let mut samples = [Vec::new(), Vec::new(), Vec::new()];
        while Instant::now() < end {
            for _ in 0..16 {
                let [a, b, c] = &mut states;
                let copy = || {
                    let index = next(a);
                    let member = index % floors.len();
                    let offset = floors[member] + (index * stride(size)) as u64;
                    job.memcpy_out(MemberId(member as u32), offset, target.at(0, size));
                    Ok(())
                };
                if !self.far {
                    samples[0].push(measure(calls, copy)?);
                }
                samples[1].push(measure(calls, || {
                    store.get_into(&name(next(b)), target.at(0, size))?;
                    Ok(())
                })?);
                samples[2].push(measure(calls, || {
                    handles[next(c)].get_into(target.at(0, size))?;
                    Ok(())
                })?);
            }
        }
        tell(size, [MEMCPY, "get_into by key", GET_BY_HANDLE], &samples);
        Ok(())
    }
}

fn stride(size: usize) -> usize {
    size.next_multiple_of(64)
}

/// The mean time of a call over several calls, in tenths of nanoseconds.
fn measure(calls: u64, mut call: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<u64> {
    let begin = Instant::now();
    for _ in 0..calls {
        call()?;
    }
    Ok(begin.elapsed().as_nanos() as u64 * 10 / calls)
}

fn tell(size: usize, contenders: [&str; 3], samples: &[Vec<u64>; 3]) {
    for (contender, samples) in
        contenders.iter().zip(samples).filter(|(_, samples)| !samples.is_empty())
    {
        let samples = samples.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        println!("{size}\t{contender}\t{samples}");
    }
}

/// A buffer whose address is a multiple of 64.
struct Buffer {
    bytes: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Buffer {
    fn new(len: usize) -> Buffer {
        let bytes = vec![1; len + 64];
        let begin = bytes.as_ptr().align_offset(64);
        Buffer { bytes, begin, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.begin..self.begin + self.len]
    }

    fn at(&mut self, offset: usize, len: usize) -> &mut [u8] {
        &mut self.bytes[self.begin + offset..self.begin + offset + len]
    }
}
