//! A hash table on seats: each seat has a part of the cells, and all seats insert words by
//! compare-and-swap and count them. When a member dies, another one takes its seat, and all seats
//! go on from the last point: each word is counted once.
//!
//! Run it with `cargo run --example table -p outlast`, or with `-- --kill 2` behind it to see
//! member 2 die in the middle.

#[path = "../ulfm/support.rs"]
mod support;

use outlast::protect::{self, Protect, ProtectResult, Seat, Update};
use outlast::store::{Options, Store};
use outlast::{Job, launch};

const MEMBERS: usize = 4;
/// How many words each seat inserts, and how many of them between two points.
const INSERTS: u64 = 400;
const BATCH: u64 = 20;
/// The cells of a seat: a word, 0 if the cell is free, and how often it was inserted.
const CELLS: u64 = 512;
/// Where the sum of all words is added up, in the memory of seat 0.
const SUM_AT: u64 = CELLS * 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(outcome) = launch::this_program(MEMBERS)? {
        print!("{outcome}");
        std::process::exit(if outcome.survivors_ok() { 0 } else { 1 });
    }
    let job = outlast::join()?;
    let store = Store::open(&job, Options::new().replicas(2))?;
    let options = Protect::new(SUM_AT + 8).set(4).lose(1).piece(1024);
    let member = job.clone();
    let sums = protect::run(&store, options, move |seat| fill(seat, &member))?;
    // A member that took a further seat has its sum, too; all sums are equal.
    if let Some((_, sum)) = sums.first() {
        let all = (0..MEMBERS).flat_map(|seat| (0..INSERTS).map(move |number| word(seat, number)));
        support::check(&job, *sum, all.sum())?;
    }
    store.close()?;
    job.leave()?;
    Ok(())
}

/// What a seat does, from its last point on.
fn fill(seat: &Seat, job: &Job) -> ProtectResult<u64> {
    let me = seat.number();
    let mut inserted = seat.note_u64()?.unwrap_or(0);
    if seat.is_replaying() {
        println!("{} takes up seat {me} at insert {inserted}", job.me());
    }
    while inserted < INSERTS {
        for number in inserted..inserted + BATCH {
            insert(seat, word(me, number))?;
        }
        inserted += BATCH;
        seat.barrier_point(&inserted.to_le_bytes())?;
        if inserted == INSERTS / 2 && support::is_victim(job) {
            support::die(job);
        }
    }
    let mut cells = vec![0; SUM_AT as usize];
    seat.get(me, 0, &mut cells)?;
    let at = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let own: u64 = cells.chunks_exact(16).map(|cell| at(&cell[..8]) * at(&cell[8..])).sum();
    seat.accumulate(0, SUM_AT, Update::Sum, &[own])?;
    seat.barrier()?;
    seat.fetch_and_op(0, SUM_AT, Update::Keep, 0)
}

/// Counts a word, in the first cell from its own on that is free or has the word.
fn insert(seat: &Seat, word: u64) -> ProtectResult<()> {
    let cells = CELLS * seat.seats() as u64;
    let mut cell = mixed(word) % cells;
    loop {
        let (target, offset) = ((cell / CELLS) as usize, cell % CELLS * 16);
        let found = seat.compare_and_swap(target, offset, 0, word)?;
        if found == 0 || found == word {
            return seat.accumulate(target, offset + 8, Update::Sum, &[1u64]);
        }
        cell = (cell + 1) % cells;
    }
}

/// The words that a seat inserts. Several seats insert some of them.
fn word(seat: usize, number: u64) -> u64 {
    1 + mixed((seat as u64) << 32 | number) % 900
}

fn mixed(number: u64) -> u64 {
    let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (number ^ number >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
}
