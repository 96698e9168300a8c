//! A transform of a matrix on seats, as the Fourier transform of a plane: each seat has some rows.
//! A step transforms each row, and puts the rows as columns into the memory of all seats. When a
//! member dies, another one takes its seat, and all seats go on from the last point.
//!
//! Run it with `cargo run --example transform -p outlast`, or with `-- --kill 2` behind it to see
//! member 2 die in the middle.

#[path = "../ulfm/support.rs"]
mod support;

use outlast::protect::{self, Protect, ProtectResult, Seat, Update};
use outlast::store::{Options, Store};
use outlast::{Job, launch};

const MEMBERS: usize = 4;
const STEPS: u64 = 20;
/// The rows of a seat, and the numbers of a row.
const ROWS: usize = 8;
const WIDTH: usize = ROWS * MEMBERS;
/// A matrix is read while the next one is put beside it.
const MATRIX_LEN: u64 = (ROWS * WIDTH * 8) as u64;
/// Where the sum is added up, in the memory of seat 0.
const SUM_AT: u64 = 2 * MATRIX_LEN;
/// A prime number: the transform is exact. `ROOT` has the order `WIDTH` modulo it.
const PRIME: u64 = 97;
const ROOT: u64 = 19;

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
    let mut step = match seat.note_u64()? {
        Some(step) => step,
        None => {
            let rows: Vec<Vec<u64>> = (0..ROWS).map(|row| start(me * ROWS + row)).collect();
            seat.put(me, 0, &to_bytes(&rows.concat()))?;
            0
        }
    };
    if seat.is_replaying() {
        println!("{} takes up seat {me} at step {step}", job.me());
    }
    while step < STEPS {
        let rows: Vec<Vec<u64>> = own_rows(seat, step)?.iter().map(|row| next(row)).collect();
        let other = (step + 1) % 2 * MATRIX_LEN;
        for column in 0..WIDTH {
            // The own part of a row of the next matrix.
            let part: Vec<u64> = rows.iter().map(|row| row[column]).collect();
            let at = (column % ROWS * WIDTH + me * ROWS) * 8;
            seat.put(column / ROWS, other + at as u64, &to_bytes(&part))?;
        }
        step += 1;
        seat.barrier_point(&step.to_le_bytes())?;
        if step == STEPS / 2 && support::is_victim(job) {
            support::die(job);
        }
    }
    let rows = own_rows(seat, step)?;
    let sums = rows.iter().enumerate().map(|(row, numbers)| sum(me * ROWS + row, numbers));
    seat.accumulate(0, SUM_AT, Update::Sum, &[sums.sum::<u64>()])?;
    seat.barrier()?;
    seat.fetch_and_op(0, SUM_AT, Update::Keep, 0)
}

/// The numbers that a row begins with.
fn start(row: usize) -> Vec<u64> {
    (0..WIDTH).map(|column| (row * row + 7 * column) as u64 % PRIME).collect()
}

/// The transform of a row: its values at the powers of the root, as a polynomial.
fn next(row: &[u64]) -> Vec<u64> {
    let value = |at: u64| row.iter().rev().fold(0, |value, number| (value * at + number) % PRIME);
    let powers = std::iter::successors(Some(1), |power| Some(power * ROOT % PRIME));
    powers.take(row.len()).map(value).collect()
}

/// A sum that tells rows and columns apart.
fn sum(row: usize, numbers: &[u64]) -> u64 {
    let weighted = |(column, number): (usize, &u64)| number * (1 + row * 31 + column) as u64;
    numbers.iter().enumerate().map(weighted).sum()
}

/// The rows of a seat before a step.
fn own_rows(seat: &Seat, step: u64) -> ProtectResult<Vec<Vec<u64>>> {
    let mut bytes = vec![0; MATRIX_LEN as usize];
    seat.get(seat.number(), step % 2 * MATRIX_LEN, &mut bytes)?;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let row = |bytes: &[u8]| bytes.chunks_exact(8).map(word).collect();
    Ok(bytes.chunks_exact(WIDTH * 8).map(row).collect())
}

fn to_bytes(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The sum at the end, computed without seats.
fn expected() -> u64 {
    let mut matrix: Vec<Vec<u64>> = (0..WIDTH).map(start).collect();
    for _ in 0..STEPS {
        let rows: Vec<Vec<u64>> = matrix.iter().map(|row| next(row)).collect();
        matrix = (0..WIDTH).map(|column| rows.iter().map(|row| row[column]).collect()).collect();
    }
    matrix.iter().enumerate().map(|(row, numbers)| sum(row, numbers)).sum()
}
