//! Puts and gets of seats: against windows and memcpy, and with logs against without.

use super::super::samples::Samples;
use super::{ASKED, LIMIT, LOGS, Plan, options};
use anyhow::Context;
use outlast::protect::{self, ProtectError, ProtectResult, Seat};
use outlast::rma::{Communicator, Window};
use outlast::store::Store;
use outlast::{Epoch, Job, MemberId};
use std::hint::black_box;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The bytes of the memory that accesses go round in.
pub(super) const RANGE: u64 = 1 << 20;
/// The seat that accesses are for; the first seat makes them.
const TARGET: usize = 1;
/// In how many turns epochs without logs and with logs are measured.
const TURNS: usize = 4;

/// An error of anything that is not a call on a seat.
fn other(error: impl std::fmt::Display) -> ProtectError {
    ProtectError::Invalid { reason: error.to_string() }
}

fn tell(all: &[Samples]) -> ProtectResult<()> {
    all.iter().try_for_each(Samples::tell).map_err(other)
}

/// How many calls in a row take some microseconds, so that reading the clock does not count.
fn calls_of(size: u64, is_far: bool) -> u64 {
    match (is_far, size > 4096) {
        (true, _) => 1,
        (false, true) => 4,
        (false, false) => 64,
    }
}

/// Single accesses, without logs: memcpy, a window and a seat take turns.
pub(super) fn accesses(job: &Job, store: &Store, plan: &Plan) -> anyhow::Result<()> {
    let comm = Communicator::world(job)?;
    let window = Window::allocate(&comm, RANGE)?;
    // The floor is measured in memory of the same kind.
    let floor = job.reserve(RANGE)?;
    job.put(Epoch::ANY, job.me(), floor, &vec![1; RANGE as usize])?;
    window.put(job.me().index(), 0, &vec![1; RANGE as usize])?;
    if job.me().index() == TARGET {
        store.put(b"floor", &floor.to_le_bytes())?;
    }
    let found = store.wait(b"floor", None, job.now().after(LIMIT))?.context("a missing member")?;
    let floor = u64::from_le_bytes(found.bytes().try_into().context("an offset")?);
    let (inside, plan, accessed) = (job.clone(), plan.clone(), window.clone());
    protect::run(store, options(job.members(), RANGE).every(ASKED), move |seat| {
        seat.put(seat.number(), 0, &vec![1; RANGE as usize])?;
        seat.barrier()?;
        if seat.number() == 0 {
            for &size in &plan.sizes {
                let part = Single { seat, window: &accessed, job: &inside, floor, plan: &plan };
                part.measure(size)?;
            }
        }
        seat.barrier()
    })?;
    window.free()?;
    Ok(())
}

/// What single accesses of the first seat need.
struct Single<'a> {
    seat: &'a Seat,
    window: &'a Window,
    job: &'a Job,
    floor: u64,
    plan: &'a Plan,
}

impl Single<'_> {
    fn measure(&self, size: u64) -> ProtectResult<()> {
        let Single { seat, window, job, floor, plan } = *self;
        let of = |what: &str, contender: &str| Samples::new(what, size, contender);
        let (put, get) = ("put of a seat", "get of a seat");
        let mut all = [
            of(put, "window"),
            of(put, "seat"),
            of(put, "memcpy"),
            of(get, "window"),
            of(get, "seat"),
            of(get, "memcpy"),
        ];
        let data = vec![7; size as usize];
        let mut buffer = vec![7; size as usize];
        let places = (RANGE / size).max(1);
        let mut at = 0;
        let mut next = || {
            at = (at + 1) % places;
            at * size
        };
        let calls = calls_of(size, plan.is_far);
        let target = MemberId(TARGET as u32);
        let end = Instant::now() + Duration::from_secs_f64(plan.seconds);
        while Instant::now() < end {
            for _ in 0..16 {
                all[0].take(calls, || {
                    window.put(TARGET, next(), black_box(&data)).map_err(other)?;
                    if plan.is_far { window.flush(TARGET).map_err(other) } else { Ok(()) }
                })?;
                all[1].take(calls, || {
                    seat.put(TARGET, next(), black_box(&data))?;
                    if plan.is_far { seat.flush(TARGET) } else { Ok(()) }
                })?;
                all[3].take(calls, || {
                    window.get(TARGET, next(), black_box(&mut buffer)).map_err(other)
                })?;
                all[4].take(calls, || seat.get(TARGET, next(), black_box(&mut buffer)))?;
                if plan.is_far {
                    continue;
                }
                all[2].take(calls, || {
                    job.memcpy_in(target, floor + next(), black_box(&data));
                    Ok::<_, ProtectError>(())
                })?;
                all[5].take(calls, || {
                    job.memcpy_out(target, floor + next(), black_box(&mut buffer));
                    Ok::<_, ProtectError>(())
                })?;
            }
        }
        let taken: Vec<Samples> =
            all.into_iter().filter(|samples| !samples.tenths.is_empty()).collect();
        tell(&taken)
    }
}

/// The names of the contenders of epochs.
const MODES: [&str; 2] = ["seat", "logged seat"];
/// The kinds of epochs.
const PUTS: usize = 0;
const GETS: usize = 1;
const KINDS: [&str; 2] = ["put with its part of the release", "get with its part of the release"];
const BARRIER: &str = "barrier of seats";

/// How many accesses an epoch has: enough that they take longer than its barrier, and few enough
/// for the logs.
fn epoch_len(size: u64, is_far: bool) -> u64 {
    match (is_far, size) {
        (true, ..=4096) => 64,
        (true, _) => 8,
        (false, ..=256) => 4096,
        (false, ..=4096) => 1024,
        (false, _) => 32,
    }
}

/// The times of epochs, in nanoseconds.
#[derive(Default)]
struct Epochs {
    /// By kind, for each size.
    accesses: [Vec<Vec<u64>>; 2],
    barriers: Vec<u64>,
}

/// Epochs without logs and with logs, in turn.
pub(super) fn epochs(job: &Job, store: &Store, plan: &Plan) -> anyhow::Result<()> {
    let found: Arc<Mutex<[Epochs; 2]>> = Arc::default();
    for _ in 0..TURNS {
        for mode in 0..MODES.len() {
            let protect = options(job.members(), RANGE).every(ASKED);
            let protect = if mode == 0 { protect } else { protect.logged(LOGS) };
            let (plan, found) = (plan.clone(), found.clone());
            protect::run(store, protect, move |seat| {
                let taken = epochs_of(seat, &plan)?;
                let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                let sum = &mut found[mode];
                sum.barriers.extend(taken.barriers);
                for (kind, sizes) in taken.accesses.into_iter().enumerate() {
                    sum.accesses[kind].resize_with(sizes.len(), Vec::new);
                    for (sum, times) in sum.accesses[kind].iter_mut().zip(sizes) {
                        sum.extend(times);
                    }
                }
                Ok::<(), ProtectError>(())
            })?;
        }
    }
    if job.me() != MemberId(0) {
        return Ok(());
    }
    let found = found.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = Vec::new();
    for (mode, epochs) in MODES.into_iter().zip(&*found) {
        let tenths = epochs.barriers.iter().map(|ns| ns * 10).collect();
        all.push(Samples { tenths, ..Samples::new(BARRIER, 0, mode) });
    }
    for (kind, what) in KINDS.into_iter().enumerate() {
        for (index, &size) in plan.sizes.iter().enumerate() {
            for (mode, epochs) in MODES.into_iter().zip(&*found) {
                let barrier = median(&epochs.barriers);
                let len = epoch_len(size, plan.is_far);
                let one = |ns: &u64| ns.saturating_sub(barrier) * 10 / len;
                let tenths = epochs.accesses[kind][index].iter().map(one).collect();
                all.push(Samples { tenths, ..Samples::new(what, size, mode) });
            }
        }
    }
    all.iter().try_for_each(Samples::tell)
}

fn median(times: &[u64]) -> u64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// The epochs of a turn. The first seat makes the accesses, and all seats take part in the barriers.
fn epochs_of(seat: &Seat, plan: &Plan) -> ProtectResult<Epochs> {
    let mut found = Epochs::default();
    let is_first = seat.number() == 0;
    for kind in [PUTS, GETS] {
        for &size in &plan.sizes {
            let (data, mut buffer) = (vec![7; size as usize], vec![0; size as usize]);
            let (places, mut times) = ((RANGE / size).max(1), Vec::new());
            let length = Duration::from_secs_f64(plan.seconds / TURNS as f64);
            let began = Instant::now();
            for epoch in 0.. {
                // The first seat says whether there is a further epoch; a save comes if logs ask
                // for it, and is not measured.
                let is_last = epoch > 2 && began.elapsed() >= length;
                if is_first && is_last {
                    for target in 0..seat.seats() {
                        seat.put(target, 0, &[9])?;
                    }
                }
                seat.barrier_point(b"")?;
                let mut word = [0];
                seat.get(seat.number(), 0, &mut word)?;
                if word == [9] {
                    seat.put(seat.number(), 0, &[7])?;
                    seat.barrier()?;
                    break;
                }
                seat.barrier()?;
                let began = Instant::now();
                seat.barrier()?;
                let barrier = began.elapsed();
                let began = Instant::now();
                for at in 0..if is_first { epoch_len(size, plan.is_far) } else { 0 } {
                    let offset = (at % places) * size;
                    match kind {
                        PUTS => seat.put(TARGET, offset, black_box(&data))?,
                        _ => seat.get(TARGET, offset, black_box(&mut buffer))?,
                    }
                }
                seat.barrier()?;
                if epoch > 1 {
                    found.barriers.push(barrier.as_nanos() as u64);
                    times.push(began.elapsed().as_nanos() as u64);
                }
            }
            found.accesses[kind].push(times);
        }
    }
    Ok(found)
}
