//! Programs of seats, each as the part that a member plays. `protect.rs` of the tests of each
//! engine runs these parts.
#![allow(dead_code, reason = "the tests of each engine use a part")]

use outlast::engine::Fault;
use outlast::protect::{
    self, Interval, LockKind, Point, Protect, ProtectError, ProtectResult, Seat, Update,
};
use outlast::store::{self, Store};
use outlast::{Job, MemberId};
use outlast_check::seats::{Change, Combine, Program};
use std::time::Duration;

/// How many regular members the programs have, unless they say otherwise.
pub(crate) const SEATS: usize = 5;

pub(crate) fn open(job: &Job) -> Store {
    let records = store::Options::new().replicas(4).partitions(16).expected_keys(256);
    Store::open(job, records.allow_fewer()).expect("opened")
}

pub(crate) fn end(job: &Job, store: &Store) {
    store.close().expect("closed");
    job.leave().expect("left");
}

/// Small pieces, so that seats have many stripes.
pub(crate) fn options(bytes: u64, lose: usize) -> Protect {
    Protect::new(bytes).set(4).lose(lose).piece(64).room(2).patience(Duration::from_secs(300))
}

/// The note of a round: its number, and the seat that wrote it.
pub(crate) fn note(seat: &Seat, round: u64) -> Vec<u8> {
    [round.to_le_bytes(), (seat.number() as u64).to_le_bytes()].concat()
}

/// The round in the note of a seat, which must be its own.
pub(crate) fn round_of(seat: &Seat) -> u64 {
    let Some(note) = seat.note() else { return 0 };
    let word = |at: usize| u64::from_le_bytes(note[at..at + 8].try_into().expect("8 bytes"));
    assert_eq!(word(8), seat.number() as u64, "a note of another seat");
    word(0)
}

pub(crate) fn own_bytes(seat: &Seat) -> ProtectResult<Vec<u8>> {
    let mut bytes = vec![0; seat.bytes() as usize];
    seat.get(seat.number(), 0, &mut bytes)?;
    Ok(bytes)
}

/// Plays a program. At the start of a closure the memory is that of the oracle after the round in
/// its note, and so it is at the end.
pub(crate) fn play(seat: &Seat, program: Program) -> ProtectResult<u64> {
    let mut round = round_of(seat);
    // Before any seat goes on: the memory is as at the point.
    let found = own_bytes(seat)?;
    program.judge(seat.number(), round, &found).unwrap_or_else(|fault| panic!("{fault}"));
    seat.barrier()?;
    while round < program.rounds {
        let mut read = Vec::new();
        if let Some(source) = program.source(seat.number(), round) {
            read = vec![0; seat.bytes() as usize];
            seat.get(source, 0, &mut read)?;
        }
        seat.barrier()?;
        for put in program.puts(seat.number(), round, &read) {
            seat.put(put.target, put.offset, &put.bytes)?;
        }
        for change in program.sections(seat.number(), round) {
            section(seat, change)?;
        }
        for change in program.words(seat.number(), round) {
            let update = match change.combine {
                Combine::Sum => Update::Sum,
                Combine::Max => Update::Max,
                Combine::Xor => Update::Xor,
            };
            seat.accumulate(change.target, change.offset, update, &[change.value])?;
        }
        while program.has_claims() {
            let number = seat.fetch_and_op(0, program.counter_at(), Update::Sum, 1u64)?;
            let Some((target, offset)) = program.task(round, number) else { break };
            // Twice would be seen, once too few as well.
            seat.accumulate(target, offset, Update::Sum, &[1u64])?;
        }
        round += 1;
        seat.barrier_point(&note(seat, round))?;
    }
    let found = own_bytes(seat)?;
    program.judge(seat.number(), round, &found).unwrap_or_else(|fault| panic!("{fault}"));
    Ok(round)
}

/// Adds to a cell under the lock of its seat.
fn section(seat: &Seat, change: Change) -> ProtectResult<()> {
    seat.lock(change.target, LockKind::Exclusive)?;
    let mut word = [0; 8];
    seat.get(change.target, change.offset, &mut word)?;
    let new = u64::from_le_bytes(word).wrapping_add(change.value);
    seat.put(change.target, change.offset, &new.to_le_bytes())?;
    seat.unlock(change.target)
}

/// Runs a program with options; returns what `run` returned.
pub(crate) fn run_program(
    store: &Store,
    options: Protect,
    program: Program,
) -> ProtectResult<Vec<(usize, u64)>> {
    protect::run(store, options, move |seat| play(seat, program))
}

/// Each seat takes tasks from a counter and comes to points of its own; points are not aligned. The
/// state of a seat is the memory alone: each task adds 1 to its word, and what a seat has done is
/// in a word of its own.
pub(crate) fn claim_unaligned(seat: &Seat, tasks: u64) -> ProtectResult<u64> {
    let done_at = 8 + tasks * 8;
    let me = seat.number();
    let word = |at: u64| -> ProtectResult<u64> {
        let mut word = [0; 8];
        seat.get(me, at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    };
    let mut done = seat.note_u64()?.unwrap_or(0);
    assert_eq!(word(done_at)?, done, "the note of {seat:?} and its memory are of one point");
    seat.barrier()?;
    loop {
        let number = seat.fetch_and_op(0, 0, Update::Sum, 1u64)?;
        if number >= tasks {
            break;
        }
        let target = number as usize % seat.seats();
        seat.accumulate(target, 8 + number * 8, Update::Sum, &[1u64])?;
        done += 1;
        seat.put(me, done_at, &done.to_le_bytes())?;
        seat.point(&done.to_le_bytes())?;
    }
    seat.barrier()?;
    for number in (0..tasks).filter(|number| *number as usize % seat.seats() == me) {
        assert_eq!(word(8 + number * 8)?, 1, "task {number} at {seat:?}");
    }
    let mut all = [0; 8];
    seat.get(0, 0, &mut all)?;
    assert_eq!(u64::from_le_bytes(all), tasks + seat.seats() as u64, "each number was given once");
    Ok(done)
}

/// How many bytes [`claim_unaligned`] needs.
pub(crate) fn claim_bytes(tasks: u64) -> u64 {
    16 + tasks * 8
}

/// Options for points that are not aligned: each point of seat 0 calls for a save.
pub(crate) fn unaligned(bytes: u64, lose: usize) -> Protect {
    options(bytes, lose).gather(Duration::from_millis(200)).every(Interval::Always)
}

/// What a call with an argument that cannot be used says.
pub(crate) fn bad_calls(seat: &Seat) -> ProtectResult<()> {
    let (seats, bytes) = (seat.seats(), seat.bytes());
    let no_seat = Err(ProtectError::NoSuchSeat { seat: seats, seats });
    assert_eq!(seat.put(seats, 0, b"x"), no_seat);
    let beyond = seat.put(0, bytes - 1, b"xy");
    assert_eq!(beyond, Err(ProtectError::OutOfRange { seat: 0, offset: bytes - 1, len: 2, bytes }));
    let odd = seat.fetch_and_op(0, 4, Update::Sum, 1u64);
    assert_eq!(odd, Err(ProtectError::Unaligned { offset: 4 }));
    assert_eq!(seat.unlock(0), Err(ProtectError::NotLocked { seat: 0 }));
    let own = seat.number();
    seat.lock(own, LockKind::Shared)?;
    assert_eq!(seat.lock(own, LockKind::Exclusive), Err(ProtectError::AlreadyLocked { seat: own }));
    assert_eq!(seat.barrier_point(b""), Err(ProtectError::LockHeld { seat: own }));
    assert_eq!(seat.point(b""), Err(ProtectError::LockHeld { seat: own }));
    seat.unlock(own)?;
    seat.barrier()?;
    // Seat 0 is in a barrier while the others are at a point: all are told.
    let differs = if own == 0 { seat.barrier() } else { seat.barrier_point(b"").map(drop) };
    assert!(matches!(differs, Err(ProtectError::Invalid { .. })), "{differs:?}");
    seat.barrier()?;
    let word = seat.fetch_and_op(0, 0, Update::Max, own as i64)?;
    assert!(word < seats as i64);
    seat.barrier()?;
    assert_eq!(seat.compare_and_swap(0, 0, -7i64, 1)?, seats as i64 - 1);
    assert_eq!(seat.remember(|| b"seen".to_vec())?, b"seen");
    assert!(!seat.is_replaying());
    assert_eq!(seat.note_u64()?, None);
    assert_eq!(seat.barrier_point(b"1")?, Point::Saved);
    Ok(())
}

/// Kept: a seat begins at the newest round that any seat has seen saved, or at a newer one.
pub(crate) fn kept(seat: &Seat, store: &Store) -> Result<u64, Box<dyn std::error::Error>> {
    let begun = round_of(seat);
    let seen = store.get(b"saved")?.map_or(0, |value| value.bytes()[0].into());
    assert!(begun >= seen, "{seat:?} begins at {begun}, and {seen} was saved");
    let rounds = 12;
    for round in begun..rounds {
        seat.put(seat.number(), round * 8, &round.to_le_bytes())?;
        seat.barrier_point(&note(seat, round + 1))?;
        store.put(b"saved", &[round as u8 + 1])?;
        // All have put it before a seat saves the next one.
        seat.barrier()?;
    }
    Ok(rounds)
}

/// Together: after each rollback all seats begin at a single round.
pub(crate) fn together(seat: &Seat) -> ProtectResult<u64> {
    let begun = round_of(seat);
    // The words of all seats, in the memory of each.
    for target in 0..seat.seats() {
        seat.put(target, seat.number() as u64 * 8, &begun.to_le_bytes())?;
    }
    seat.barrier()?;
    for (other, word) in own_bytes(seat)?.chunks_exact(8).take(seat.seats()).enumerate() {
        let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
        assert_eq!(word, begun, "seat {other} began at {word}, and {seat:?} at {begun}");
    }
    let rounds = 12;
    for round in begun..rounds {
        seat.barrier_point(&note(seat, round + 1))?;
    }
    Ok(rounds)
}

/// Whole again: members die one after the other, each when all pieces are whole, and no seat saves
/// in between.
pub(crate) fn whole_again(seat: &Seat, job: &Job, deaths: u64) -> ProtectResult<u64> {
    let byte = seat.number() as u8 + 1;
    if seat.note().is_none() {
        seat.put(seat.number(), 100, &[byte; 300])?;
        seat.barrier_point(&note(seat, 1))?;
    }
    assert!(own_bytes(seat)?[100..400].iter().all(|found| *found == byte), "{seat:?}");
    seat.barrier()?;
    // The epoch does not change in a period, unless a holder dies.
    let dead = job.epoch().0;
    if dead == deaths {
        return Ok(dead);
    }
    loop {
        let is_next = job.me() == MemberId(dead as u32 + 1);
        if is_next && seat.is_whole()? {
            job.inject(Fault::Kill(job.me())).expect("killed");
        }
        seat.barrier()?;
        job.park(job.bell(), job.now().after(Duration::from_millis(5)));
    }
}

/// Honest: two members die at once where one may. No closure is called again with older bytes.
pub(crate) fn honest(seat: &Seat, job: &Job) -> ProtectResult<u64> {
    assert_eq!(seat.note(), None, "older bytes were returned");
    seat.put(seat.number(), 0, &[7; 100])?;
    seat.barrier_point(b"1")?;
    if job.me() == MemberId(5) {
        for victim in [1, 3] {
            job.inject(Fault::Kill(MemberId(victim))).expect("killed");
        }
    }
    loop {
        seat.barrier()?;
        job.park(job.bell(), job.now().after(Duration::from_millis(5)));
    }
}

/// Bounded: a member is stopped, and the others give up when their patience is over. They let it go
/// on then, and it finds them gone.
pub(crate) fn bounded(job: &Job) {
    let store = open(job);
    let limit = Duration::from_secs(2);
    let protect = options(256, 1).patience(limit);
    let (inside, victim) = (job.clone(), MemberId(2));
    let began = job.now();
    let ended = protect::run(&store, protect, move |seat| {
        if inside.me() == victim {
            inside.inject(Fault::StopAtStep(500)).expect("planned");
        }
        many_barriers(seat)
    });
    assert!(ended.is_err(), "without {victim}");
    if job.me() != victim {
        let waited = job.now().since(began);
        assert!(waited < Duration::from_secs(60), "{waited:?}");
        let _ = job.inject(Fault::Resume(victim));
    }
    job.leave().expect("left");
}

/// A program that would run for long.
fn many_barriers(seat: &Seat) -> ProtectResult<u64> {
    for round in 0..1_000_000u64 {
        seat.put((seat.number() + 1) % seat.seats(), 0, &round.to_le_bytes())?;
        seat.barrier()?;
    }
    Ok(0)
}

/// A seat that waits at its point is saved with what others put into its memory meanwhile: seat 1
/// is held first, seat 2 puts into it before it comes, and then a member dies.
pub(crate) fn put_while_held(seat: &Seat, job: &Job) -> ProtectResult<u64> {
    let mut byte = [0];
    if seat.note().is_none() {
        if seat.number() == 2 {
            // Time for seat 1 to be held.
            job.sleep(Duration::from_millis(300));
            seat.put(1, 0, &[7])?;
        }
        while seat.point(b"saved")? != Point::Saved {
            job.sleep(Duration::from_millis(1));
        }
        seat.barrier()?;
        if job.me() == MemberId(2) {
            job.inject(Fault::Kill(job.me())).expect("killed");
        }
        // The period ends by the death.
        seat.barrier()?;
    }
    seat.get(1, 0, &mut byte)?;
    assert_eq!(byte, [7], "of the point of all seats");
    Ok(0)
}

/// A seat dies with a lock, and all seats take that lock after the rollback.
pub(crate) fn lock_of_the_dead(seat: &Seat, job: &Job) -> ProtectResult<u64> {
    if !seat.is_replaying() {
        if seat.number() == 1 {
            seat.lock(0, LockKind::Exclusive)?;
            job.inject(Fault::Kill(job.me())).expect("killed");
        }
        // The period ends by the death.
        seat.barrier()?;
    }
    for kind in [LockKind::Exclusive, LockKind::Shared] {
        seat.lock(0, kind)?;
        seat.unlock(0)?;
    }
    Ok(0)
}

/// A seat does not come to a point before the patience of the others is over. They swallow the
/// error, and no call of theirs has an effect any more: the save may still be under way.
pub(crate) fn gone_on_after_a_timeout(seat: &Seat, job: &Job) -> ProtectResult<u64> {
    if seat.number() == 2 {
        job.sleep(Duration::from_secs(3));
    }
    match seat.barrier_point(b"1") {
        Err(ProtectError::Timeout { .. }) => {}
        other => return other.map(|_| 0),
    }
    assert_eq!(seat.put(2, 0, &[7]), Err(ProtectError::OutOfStep));
    assert_eq!(seat.barrier_point(b"2"), Err(ProtectError::OutOfStep));
    Ok(0)
}
