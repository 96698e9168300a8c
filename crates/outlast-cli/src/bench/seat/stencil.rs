//! A stencil on windows, and on seats that are saved at Daly's interval.

use super::super::samples::Samples;
use super::{LOGS, options};
use crate::members::say_line;
use outlast::Job;
use outlast::protect::{self, Interval, Point, ProtectError, ProtectResult, Seat};
use outlast::rma::{Communicator, Window};
use outlast::store::Store;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a reader of the figures has to know.
pub(super) const REMARK: &str = "The stencil has 4 MiB in each window or seat, reads and writes them by gets and puts in each \
     step, and puts 8 KiB to each neighbour. Saves are those of Daly's interval for a death an \
     hour, the first of them at the first point; seats with logs save when the logs ask for it, \
     too.";

/// The cells of a window or a seat, without the rows of the neighbours at both ends.
const ROWS: usize = 512;
const WIDTH: usize = 1024;
const ROW_LEN: u64 = WIDTH as u64 * 8;
const BYTES: u64 = (ROWS as u64 + 2) * ROW_LEN;
/// In how many turns the contenders run.
const ROUNDS: usize = 3;
/// How often a member of the job dies, for Daly's formula.
const MTBF: Duration = Duration::from_secs(3600);

/// The contenders of whole programs.
const WINDOW: &str = "windows";
const SEATS: [&str; 2] = ["seats", "logged seats"];

/// The accesses of a step.
trait Accesses {
    fn put(&self, target: usize, offset: u64, data: &[u8]) -> ProtectResult<()>;
    fn get_own(&self, offset: u64, buffer: &mut [u8]) -> ProtectResult<()>;
    fn barrier(&self) -> ProtectResult<()>;
    fn point(&self, step: u64) -> ProtectResult<()>;
}

fn other(error: impl std::fmt::Display) -> ProtectError {
    ProtectError::Invalid { reason: error.to_string() }
}

/// The window of a rank, and its communicator.
struct OfWindow<'a>(&'a Window, &'a Communicator);

impl Accesses for OfWindow<'_> {
    fn put(&self, target: usize, offset: u64, data: &[u8]) -> ProtectResult<()> {
        self.0.put(target, offset, data).map_err(other)
    }

    fn get_own(&self, offset: u64, buffer: &mut [u8]) -> ProtectResult<()> {
        self.0.get(self.1.rank(), offset, buffer).map_err(other)
    }

    fn barrier(&self) -> ProtectResult<()> {
        self.0.flush_all().map_err(other)?;
        self.1.barrier().map_err(other)
    }

    fn point(&self, _: u64) -> ProtectResult<()> {
        self.barrier()
    }
}

/// A seat, with the number of its saves.
struct OfSeat<'a>(&'a Seat, &'a AtomicU64);

impl Accesses for OfSeat<'_> {
    fn put(&self, target: usize, offset: u64, data: &[u8]) -> ProtectResult<()> {
        self.0.put(target, offset, data)
    }

    fn get_own(&self, offset: u64, buffer: &mut [u8]) -> ProtectResult<()> {
        self.0.get(self.0.number(), offset, buffer)
    }

    fn barrier(&self) -> ProtectResult<()> {
        self.0.barrier()
    }

    fn point(&self, step: u64) -> ProtectResult<()> {
        if self.0.barrier_point(&step.to_le_bytes())? == Point::Saved {
            // Relaxed: a number for people.
            self.1.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Makes so many steps; returns how long they took.
fn run(me: usize, all: usize, steps: u64, accesses: &impl Accesses) -> ProtectResult<Duration> {
    let (above, below) = ((me + all - 1) % all, (me + 1) % all);
    let mut bytes: Vec<u8> = Vec::with_capacity(BYTES as usize);
    for cell in 0..(ROWS + 2) * WIDTH {
        bytes.extend(((cell * 31 + me) as f64 % 97.0).to_le_bytes());
    }
    accesses.put(me, 0, &bytes)?;
    accesses.barrier()?;
    let mut cells = vec![0.0; (ROWS + 2) * WIDTH];
    let began = Instant::now();
    for step in 0..steps {
        let inner = ROW_LEN..ROW_LEN * (ROWS as u64 + 1);
        accesses.get_own(inner.start, &mut bytes[inner.start as usize..inner.end as usize])?;
        let row = |row: usize| &bytes[row * ROW_LEN as usize..(row + 1) * ROW_LEN as usize];
        accesses.put(above, inner.end, row(1))?;
        accesses.put(below, 0, row(ROWS))?;
        accesses.barrier()?;
        accesses.get_own(0, &mut bytes)?;
        for (cell, bytes) in cells.iter_mut().zip(bytes.chunks_exact(8)) {
            *cell = f64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        }
        for at in WIDTH + 1..(ROWS + 1) * WIDTH - 1 {
            let sum = cells[at - WIDTH] + cells[at + WIDTH] + cells[at - 1] + cells[at + 1];
            let next = 0.5 * cells[at] + 0.125 * sum;
            bytes[at * 8..at * 8 + 8].copy_from_slice(&next.to_le_bytes());
        }
        accesses.put(me, inner.start, &bytes[inner.start as usize..inner.end as usize])?;
        accesses.point(step)?;
    }
    Ok(began.elapsed())
}

/// What a member does: the contenders in turn.
pub(super) fn play(job: &Job, store: &Store, seconds: f64) -> anyhow::Result<()> {
    let comm = Communicator::world(job)?;
    let window = Window::allocate(&comm, BYTES)?;
    let on_window = |steps: u64| run(comm.rank(), comm.size(), steps, &OfWindow(&window, &comm));
    // As many steps as the windows make in the given time.
    on_window(20)?;
    let mut steps = (seconds * 100.0 / on_window(100)?.as_secs_f64()).max(20.0).to_le_bytes();
    comm.broadcast(0, &mut steps)?;
    let steps = f64::from_le_bytes(steps) as u64;
    let what = "stencil, a step";
    let mut all =
        [WINDOW, SEATS[0], SEATS[1]].map(|contender| Samples::new(what, BYTES, contender));
    let mut saved = [0; 2];
    for _ in 0..ROUNDS {
        let one = |took: Duration| took.as_nanos() as u64 * 10 / steps;
        all[0].tenths.push(one(on_window(steps)?));
        for mode in 0..SEATS.len() {
            let protect = options(job.members(), BYTES).every(Interval::Daly { mtbf: MTBF });
            let protect = if mode == 0 { protect } else { protect.logged(LOGS) };
            let (took, saves) = (Arc::new(Mutex::new(Duration::ZERO)), Arc::new(AtomicU64::new(0)));
            let (told, counted) = (took.clone(), saves.clone());
            protect::run(store, protect, move |seat| {
                let took = run(seat.number(), seat.seats(), steps, &OfSeat(seat, &counted))?;
                *told.lock().unwrap_or_else(PoisonError::into_inner) = took;
                Ok::<(), ProtectError>(())
            })?;
            all[1 + mode].tenths.push(one(*took.lock().unwrap_or_else(PoisonError::into_inner)));
            saved[mode] += saves.load(Ordering::Relaxed);
        }
    }
    window.free()?;
    if comm.rank() == 0 {
        all.iter().try_for_each(Samples::tell)?;
        for (contender, saves) in SEATS.iter().zip(saved) {
            say_line(&format!("saves {contender}: {saves} in {ROUNDS} runs of {steps} steps"))?;
        }
    }
    Ok(())
}
