//! The members of `outlast bench put` and `outlast bench get`: member 0 makes the calls, the other
//! members lend memory.

use super::super::ping::{SURVIVE, survive};
use super::{GET_BY_HANDLE, MEMCPY, PUT_BY_HANDLE, keys_of};
use anyhow::Context;
use clap::Args;
use outlast::store::{KeyHandle, Mode, Options, Store};
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
        let options = Options::new().replicas(self.replicas).expected_keys(self.keys.max(1024));
        let options = options.checksums(self.checksums);
        let options = match self.sole_writers {
            true => options.mode(Mode::Global).sole_writers(true),
            false => options,
        };
        let store = Store::open(&job, options.clone())?;
        let open_grown = |keys| Store::open(&job, options.name(GROWN).expected_keys(keys));
        let grown = self.expected_keys.map(open_grown).transpose()?;
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
                    "put" => self.put(&job, &store, grown.as_ref(), size as usize, keys)?,
                    _ => self.get(&job, &store, grown.as_ref(), size as usize, keys)?,
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
        grown.map(|grown| grown.close()).transpose()?;
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

    fn put(
        &self,
        job: &Job,
        store: &Store,
        grown: Option<&Store>,
        size: usize,
        keys: usize,
    ) -> anyhow::Result<()> {
        let name = |by: &str, index: usize| format!("bench/{by}/{size}/{index}");
        let names: Vec<String> = (0..keys).map(|index| name("key", index)).collect();
        let mut sides = sides(store, grown, keys, |index| name("handle", index).into_bytes())?;
        let source = Buffer::new(size);
        let floors = self.floors(job, store)?;
        let mut at = 0;
        let mut copy = || {
            for (member, floor) in floors.iter().enumerate().take(self.replicas) {
                let offset = floor + (at * stride(size)) as u64;
                job.memcpy_in(MemberId(member as u32), offset, black_box(source.bytes()));
            }
            at = (at + 1) % keys;
        };
        let put_handle = |side: &mut Side<'_>| -> anyhow::Result<()> {
            side.handles[side.by_handle as usize].put(black_box(source.bytes()))?;
            side.by_handle = (side.by_handle + 1) % keys as u64;
            Ok(())
        };
        let put_key = |side: &mut Side<'_>| -> anyhow::Result<()> {
            side.store.put(names[side.by_key as usize].as_bytes(), black_box(source.bytes()))?;
            side.by_key = (side.by_key + 1) % keys as u64;
            Ok(())
        };
        for _ in 0..2 * keys {
            copy();
            for side in &mut sides {
                put_key(side)?;
                put_handle(side)?;
            }
        }
        let end = self.end_of_samples(grown);
        // As many calls in a row as take some microseconds, so that reading the clock does not
        // count.
        let calls = match (self.far, size > 4096) {
            (true, _) => 1,
            (false, true) => 4,
            (false, false) => 64,
        };
        let mut floor = Vec::new();
        while Instant::now() < end {
            for _ in 0..16 {
                if !self.far {
                    floor.push(measure(calls, || {
                        copy();
                        Ok(())
                    })?);
                }
                for side in &mut sides {
                    let samples =
                        [measure(calls, || put_handle(side))?, measure(calls, || put_key(side))?];
                    side.add(samples);
                }
            }
        }
        tell(size, MEMCPY, "", &floor);
        for side in &sides {
            tell(size, PUT_BY_HANDLE, side.name, &side.samples[0]);
            tell(size, "put by key", side.name, &side.samples[1]);
        }
        Ok(())
    }

    fn get(
        &self,
        job: &Job,
        store: &Store,
        grown: Option<&Store>,
        size: usize,
        keys: usize,
    ) -> anyhow::Result<()> {
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
        let mut first_puts = [Vec::new(), Vec::new()];
        for from in (0..keys).step_by(FIRST_PUTS) {
            for (store, samples) in [Some(store), grown].into_iter().flatten().zip(&mut first_puts)
            {
                let mut index = from;
                samples.push(measure(FIRST_PUTS.min(keys - from) as u64, || {
                    store.put(&name(index), target.bytes())?;
                    index += 1;
                    Ok(())
                })?);
            }
        }
        for index in 0..keys {
            let member = index % floors.len();
            job.memcpy_in(
                MemberId(member as u32),
                floors[member] + (index * stride(size)) as u64,
                target.bytes(),
            );
        }
        let mut sides = sides(store, grown, keys, |index| name(index).to_vec())?;
        for side in &sides {
            for (index, handle) in side.handles.iter().enumerate() {
                handle.get_into(target.at(0, size))?;
                side.store.get_into(&name(index), target.at(0, size))?;
            }
        }
        // All contenders use equal random orders. The next place depends on nothing that is read.
        let mut state = 0u64;
        let next = |state: &mut u64| {
            *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((*state >> 33) as usize * keys) >> 31
        };
        let end = self.end_of_samples(grown);
        let calls = if self.far { 1 } else { 64 };
        let mut floor = Vec::new();
        while Instant::now() < end {
            for _ in 0..16 {
                let copy = || {
                    let index = next(&mut state);
                    let member = index % floors.len();
                    let offset = floors[member] + (index * stride(size)) as u64;
                    job.memcpy_out(MemberId(member as u32), offset, target.at(0, size));
                    Ok(())
                };
                if !self.far {
                    floor.push(measure(calls, copy)?);
                }
                for side in &mut sides {
                    let by_key = measure(calls, || {
                        let index = next(&mut side.by_key);
                        side.store.get_into(&name(index), target.at(0, size))?;
                        Ok(())
                    })?;
                    let by_handle = measure(calls, || {
                        let index = next(&mut side.by_handle);
                        side.handles[index].get_into(target.at(0, size))?;
                        Ok(())
                    })?;
                    side.add([by_key, by_handle]);
                }
            }
        }
        tell(size, MEMCPY, "", &floor);
        for (side, first_puts) in sides.iter().zip(&first_puts) {
            tell(size, "get_into by key", side.name, &side.samples[0]);
            tell(size, GET_BY_HANDLE, side.name, &side.samples[1]);
            if grown.is_some() {
                tell(size, "first put by key", side.name, first_puts);
            }
        }
        Ok(())
    }

    /// When the samples are to end. An index that grows has time to end that before.
    fn end_of_samples(&self, grown: Option<&Store>) -> Instant {
        if grown.is_some() {
            std::thread::sleep(Duration::from_secs(2));
        }
        Instant::now() + Duration::from_secs_f64(self.seconds)
    }
}

/// The name of the store that is told to expect fewer keys.
const GROWN: &str = "grown";

/// How many first puts are measured together, in turn with the other store.
const FIRST_PUTS: usize = 256;

/// A store that is measured, and how far its contenders are.
struct Side<'s> {
    /// What its contenders are called beside their calls.
    name: &'static str,
    store: &'s Store,
    handles: Vec<KeyHandle>,
    by_handle: u64,
    by_key: u64,
    samples: [Vec<u64>; 2],
}

impl Side<'_> {
    fn add(&mut self, samples: [u64; 2]) {
        self.samples.iter_mut().zip(samples).for_each(|(all, sample)| all.push(sample));
    }
}

/// The stores that are measured, with handles of their keys.
fn sides<'s>(
    store: &'s Store,
    grown: Option<&'s Store>,
    keys: usize,
    name: impl Fn(usize) -> Vec<u8>,
) -> anyhow::Result<Vec<Side<'s>>> {
    let stores = [Some(("", store)), grown.map(|grown| (", index grown", grown))];
    let side = |(by, store): (&'static str, &'s Store)| -> anyhow::Result<Side<'s>> {
        let handles = (0..keys).map(|index| store.handle(&name(index)));
        let handles = handles.collect::<Result<Vec<_>, _>>()?;
        Ok(Side { name: by, store, handles, by_handle: 0, by_key: 0, samples: Default::default() })
    };
    stores.into_iter().flatten().map(side).collect()
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

fn tell(size: usize, contender: &str, side: &str, samples: &[u64]) {
    if !samples.is_empty() {
        let samples = samples.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
        println!("{size}\t{contender}{side}\t{samples}");
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
