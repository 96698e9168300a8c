//! A stencil on seats. Each seat has a part of a ring of cells, and puts the cells at its ends into
//! the memory of its neighbours. When a member dies, another one takes its seat, and all seats go
//! on from the last point.
//!
//! Run it with `cargo run --example stencil -p outlast`, or with `-- --kill 2` behind it to see
//! member 2 die in the middle.

#[path = "../ulfm/support.rs"]
mod support;

use outlast::protect::{self, Protect, ProtectResult, Seat, Update};
use outlast::store::{Options, Store};
use outlast::{Job, launch};

const MEMBERS: usize = 4;
const STEPS: u64 = 40;
/// The cells of a seat, without the copies of its neighbours' cells at both ends.
const CELLS: usize = 500;
/// Where the sum of all cells is added up, in the memory of seat 0.
const SUM_AT: u64 = (CELLS as u64 + 2) * 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(outcome) = launch::this_program(MEMBERS)? {
        print!("{outcome}");
        std::process::exit(if outcome.survivors_ok() { 0 } else { 1 });
    }
    let job = outlast::join()?;
    let store = Store::open(&job, Options::new().replicas(2))?;
    let options = Protect::new(SUM_AT + 8).set(4).lose(1).piece(1024);
    let member = job.clone();
    let sums = protect::run(&store, options, move |seat| compute(seat, &member))?;
    // A member that took a further seat has its sum, too; all sums are equal.
    if let Some((_, sum)) = sums.first() {
        support::check(&job, *sum, expected())?;
    }
    store.close()?;
    job.leave()?;
    Ok(())
}

/// What a seat does, from its last point on.
fn compute(seat: &Seat, job: &Job) -> ProtectResult<u64> {
    let me = seat.number();
    let (left, right) = ((me + seat.seats() - 1) % seat.seats(), (me + 1) % seat.seats());
    let mut step = match seat.note_u64()? {
        Some(step) => step,
        None => {
            seat.put(me, 8, &to_bytes(&start(me)))?;
            0
        }
    };
    if seat.is_replaying() {
        println!("{} takes up seat {me} at step {step}", job.me());
    }
    while step < STEPS {
        let mut cells = own_cells(seat)?;
        seat.put(left, (CELLS as u64 + 1) * 8, &cells[1].to_le_bytes())?;
        seat.put(right, 0, &cells[CELLS].to_le_bytes())?;
        seat.barrier()?;
        cells = own_cells(seat)?;
        seat.put(me, 8, &to_bytes(&next(&cells)))?;
        step += 1;
        seat.barrier_point(&step.to_le_bytes())?;
        if step == STEPS / 2 && support::is_victim(job) {
            support::die(job);
        }
    }
    let own: u64 = own_cells(seat)?[1..=CELLS].iter().sum();
    seat.accumulate(0, SUM_AT, Update::Sum, &[own])?;
    seat.barrier()?;
    seat.fetch_and_op(0, SUM_AT, Update::Keep, 0)
}

/// The cells that a seat begins with.
fn start(seat: usize) -> Vec<u64> {
    (0..CELLS as u64).map(|cell| (seat as u64 * 1000 + cell) % 97).collect()
}

/// A step: each cell becomes a third of itself and its neighbours, which stand at both ends.
fn next(cells: &[u64]) -> Vec<u64> {
    cells.windows(3).map(|near| (near[0] + near[1] + near[2]) / 3 + near[1] % 5).collect()
}

/// The cells of a seat with those of its neighbours at both ends.
fn own_cells(seat: &Seat) -> ProtectResult<Vec<u64>> {
    let mut bytes = vec![0; (CELLS + 2) * 8];
    seat.get(seat.number(), 0, &mut bytes)?;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    Ok(bytes.chunks_exact(8).map(word).collect())
}

fn to_bytes(cells: &[u64]) -> Vec<u8> {
    cells.iter().flat_map(|cell| cell.to_le_bytes()).collect()
}

/// The sum of all cells at the end, computed without seats.
fn expected() -> u64 {
    let mut ring: Vec<u64> = (0..MEMBERS).flat_map(start).collect();
    for _ in 0..STEPS {
        let last = ring[ring.len() - 1];
        let around: Vec<u64> =
            [last].into_iter().chain(ring.iter().copied()).chain([ring[0]]).collect();
        ring = next(&around);
    }
    ring.iter().sum()
}
