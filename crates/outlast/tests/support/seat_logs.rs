//! Programs of seats in logged mode, each as the part that a member plays, with the judge that
//! survivors notice nothing.
#![allow(dead_code, reason = "the tests of each engine use a part")]

use crate::seat_bodies;
use outlast::engine::Fault;
use outlast::protect::{
    self, Interval, LockKind, Protect, ProtectError, ProtectResult, Seat, Update,
};
use outlast::store::Store;
use outlast::{Job, MemberId};
use outlast_check::seats::Program;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How many steps the programs have.
pub(crate) const STEPS: u64 = 12;

/// How many bytes the seats of [`Kind::Ring`] and the others have.
const BYTES: u64 = 256;

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// In each step a seat reads what its left neighbour put in the step before, reads a word of
    /// another seat, and puts to its right neighbour.
    Ring,
    /// In each step a seat reads x at seat 0 and puts x + 1. A value that is read twice, after the
    /// put, is seen in the sum.
    Increments,
    /// A random program of rounds.
    Rounds(u64),
    /// What comes from outside decides what is put.
    Outside,
    /// Cells that seats add to under a lock, and words, which no log covers.
    Locked,
    /// More puts and gets between two barriers than a small log has room for.
    Much,
}

/// When the seats are saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Saves {
    /// Never, unless a seat asks for it.
    Asked,
    /// At some points.
    Often,
    /// At each point.
    Always,
}

/// Options of logged mode.
pub(crate) fn options(kind: Kind, seats: usize, saves: Saves) -> Protect {
    let every = match saves {
        Saves::Asked => Interval::Time(Duration::from_secs(1_000_000)),
        Saves::Often => Interval::Time(Duration::from_micros(400)),
        Saves::Always => Interval::Always,
    };
    let bytes = match kind {
        Kind::Rounds(seed) => program(seed, seats).bytes(),
        _ => BYTES,
    };
    seat_bodies::options(bytes, 2).logged(64 << 10).every(every)
}

fn program(seed: u64, seats: usize) -> Program {
    Program { seats, rounds: STEPS / 2, kind: outlast_check::seats::Kind::Rounds, seed }
}

/// The seat of a closure, and the error with which the closure ended.
type End = (usize, Option<ProtectError>);

/// What the closures at a member have seen.
#[derive(Clone, Default)]
pub(crate) struct Watch(Arc<Mutex<Vec<End>>>);

impl Watch {
    /// Calls a closure and notes how it ended.
    pub(crate) fn call<T>(
        &self,
        seat: &Seat,
        body: impl FnOnce(&Seat) -> ProtectResult<T>,
    ) -> ProtectResult<T> {
        let result = body(seat);
        let error = result.as_ref().err().cloned();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((seat.number(), error));
        result
    }

    /// How often the closures of this member were called.
    pub(crate) fn calls(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Unnoticed: each closure was called once, and no call of it returned an error. A closure
    /// stops at its first error, so it has made the calls of a run without deaths.
    pub(crate) fn assert_unnoticed(&self) {
        let calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (seat, error) in calls.iter() {
            assert_eq!(*error, None, "seat {seat} has noticed a death");
            let count = calls.iter().filter(|(other, _)| other == seat).count();
            assert_eq!(count, 1, "the closure of seat {seat} was called again");
        }
    }
}

/// Mixes the bits of a number.
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (number ^ number >> 31).wrapping_add(0x9e37_79b9_7f4a_7c15)
}

fn word(seat: &Seat, target: usize, offset: u64) -> ProtectResult<u64> {
    let mut bytes = [0; 8];
    seat.get(target, offset, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Plays a program from its last point on, and judges the bytes at its end.
pub(crate) fn play(seat: &Seat, kind: Kind, at_step: impl Fn(u64)) -> ProtectResult<u64> {
    match kind {
        Kind::Ring => ring(seat, at_step),
        Kind::Increments => increments(seat),
        Kind::Rounds(seed) => seat_bodies::play(seat, program(seed, seat.seats())),
        Kind::Outside => outside(seat),
        Kind::Locked => locked(seat),
        Kind::Much => much(seat),
    }
}

fn first_step(seat: &Seat) -> u64 {
    seat_bodies::round_of(seat)
}

/// A barrier, at some steps as a point.
fn end_step(seat: &Seat, step: u64) -> ProtectResult<()> {
    match step % 3 {
        2 => seat.barrier_point(&seat_bodies::note(seat, step)).map(drop),
        _ => seat.barrier(),
    }
}

fn ring_value(number: usize, step: u64, own: u64, other: u64) -> u64 {
    mix(own ^ mix(other ^ mix((number as u64) << 32 | step)))
}

/// Where the word of a step is.
fn slot(step: u64) -> u64 {
    step % 2 * 8
}

fn ring(seat: &Seat, at_step: impl Fn(u64)) -> ProtectResult<u64> {
    let (number, seats) = (seat.number(), seat.seats());
    let mut step = first_step(seat);
    while step < STEPS {
        at_step(step);
        let own = word(seat, number, slot(step + 1))?;
        let other = word(seat, (number + 2) % seats, slot(step + 1))?;
        let value = ring_value(number, step, own, other);
        let right = (number + 1) % seats;
        // Twice, so that the order of two puts is seen.
        seat.put(right, slot(step), &(!value).to_le_bytes())?;
        seat.put(right, slot(step), &value.to_le_bytes())?;
        if right != number {
            assert_eq!(word(seat, right, slot(step))?, value, "a seat reads what it wrote");
        }
        step += 1;
        end_step(seat, step)?;
    }
    let mut expected = vec![[0u64; 2]; seats];
    for step in 0..STEPS {
        let before = expected.clone();
        for number in 0..seats {
            let at = |seat: usize| before[seat % seats][(step as usize + 1) % 2];
            let value = ring_value(number, step, at(number), at(number + 2));
            expected[(number + 1) % seats][step as usize % 2] = value;
        }
    }
    for parity in 0..2 {
        let found = word(seat, number, parity * 8)?;
        assert_eq!(found, expected[number][parity as usize], "{seat:?}, word {parity}");
    }
    Ok(step)
}

fn increments(seat: &Seat) -> ProtectResult<u64> {
    let (number, seats) = (seat.number(), seat.seats());
    let mut step = first_step(seat);
    while step < STEPS {
        if number == 1 + step as usize % (seats - 1) {
            let x = word(seat, 0, 0)?;
            assert_eq!(x, step, "read by {seat:?}");
            seat.put(0, 0, &(x + 1).to_le_bytes())?;
        }
        step += 1;
        end_step(seat, step)?;
    }
    assert_eq!(word(seat, 0, 0)?, STEPS);
    Ok(step)
}

/// A counter of the process decides what is put, so that each look gives another answer. All seats
/// that have been told of an answer agree on it.
fn outside(seat: &Seat) -> ProtectResult<u64> {
    static LOOKS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let look = || {
        let count = LOOKS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        mix(count ^ u64::from(std::process::id()) << 32).to_le_bytes().to_vec()
    };
    let (number, seats) = (seat.number(), seat.seats());
    let mut step = first_step(seat);
    while step < STEPS {
        let speaker = step as usize % seats;
        if number == speaker {
            let said = seat.remember(look)?;
            // To each seat, the own included, at a place of this step.
            for target in 0..seats {
                seat.put(target, 8 + step * 8, &said)?;
            }
        }
        step += 1;
        end_step(seat, step)?;
    }
    for step in 0..STEPS {
        let own = word(seat, number, 8 + step * 8)?;
        for target in 0..seats {
            assert_eq!(word(seat, target, 8 + step * 8)?, own, "step {step}, {seat:?}, {target}");
        }
    }
    Ok(step)
}

/// A death of the first holder of a seat, so many engine steps after it has come to a step of the
/// program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Death {
    pub(crate) seat: usize,
    pub(crate) from: u64,
    pub(crate) after: u64,
}

/// Plays a program in which these holders die. Returns what the closures of this member have seen.
pub(crate) fn run(
    job: &Job,
    store: &Store,
    protect: Protect,
    kind: Kind,
    deaths: &[Death],
) -> Watch {
    let watch = Watch::default();
    let (inside, seen, deaths) = (job.clone(), watch.clone(), deaths.to_vec());
    let ended = protect::run(store, protect, move |seat| {
        seen.call(seat, |seat| {
            let me = inside.me();
            let at_step = |step: u64| {
                for death in deaths.iter().filter(|death| death.from == step) {
                    if death.seat == seat.number() && me == MemberId(death.seat as u32) {
                        inside.inject(Fault::DieAtStep(death.after)).expect("planned");
                    }
                }
            };
            if kind != Kind::Ring {
                at_step(0);
            }
            play(seat, kind, at_step)
        })
    });
    let ended = ended.expect("ended");
    assert!(ended.iter().all(|(_, steps)| *steps >= STEPS / 2), "{ended:?}");
    watch
}

/// Read x, write x + 1, die, read again: the first holder of seat 1 dies after the put, in each of
/// several steps.
pub(crate) fn read_write_die_read(seat: &Seat, job: &Job, at: u64) -> ProtectResult<u64> {
    for step in 0..6 {
        if seat.number() == 1 {
            let x = word(seat, 0, 0)?;
            assert_eq!(x, step, "x has changed between two barriers");
            seat.put(0, 0, &(x + 1).to_le_bytes())?;
            seat.flush(0)?;
            if step == at && job.me() == MemberId(1) {
                job.inject(Fault::Kill(job.me())).expect("killed");
            }
        }
        seat.barrier()?;
    }
    word(seat, 0, 0)
}

/// How many steps have neither locks nor operations on words.
const UNLOCKED: u64 = 4;

/// A seat adds to a cell under a lock, which no log covers.
fn locked(seat: &Seat) -> ProtectResult<u64> {
    let mut step = first_step(seat);
    while step < STEPS {
        // The first steps are covered by the logs.
        if step >= UNLOCKED {
            seat.lock(0, LockKind::Exclusive)?;
            let cell = word(seat, 0, 0)?;
            seat.put(0, 0, &(cell + 1).to_le_bytes())?;
            seat.unlock(0)?;
            seat.fetch_and_op(0, 8, Update::Sum, 1u64)?;
        }
        step += 1;
        end_step(seat, step)?;
    }
    let all = (STEPS - UNLOCKED) * seat.seats() as u64;
    assert_eq!((word(seat, 0, 0)?, word(seat, 0, 8)?), (all, all));
    Ok(step)
}

/// In each step a seat puts into its own part of the memory of each other seat again and again, and
/// reads its part of the step before from there.
fn much(seat: &Seat) -> ProtectResult<u64> {
    let (number, seats) = (seat.number(), seat.seats());
    let mut step = first_step(seat);
    let part = |step: u64| number as u64 * 16 + step % 2 * 8;
    while step < STEPS {
        for count in 0..40 {
            let target = (number + 1 + count % (seats - 1)) % seats;
            let before = word(seat, target, part(step + 1))?;
            assert_eq!(before, step, "{seat:?} reads what it put into the memory of {target}");
            seat.put(target, part(step), &(step + 1).to_le_bytes())?;
        }
        step += 1;
        end_step(seat, step)?;
    }
    Ok(step)
}
