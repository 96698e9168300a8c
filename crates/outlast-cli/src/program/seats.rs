//! Programs on the memory of seats, whose answer an oracle knows: what a seat does, from its last
//! point on. `outlast chaos` and `outlast sim` run them.

use super::ProgramKind;
use anyhow::{anyhow, ensure};
use outlast::protect::{LockKind, ProtectResult, Seat, Update};
use outlast_check::seats::{Change, Combine, Kind, Program, Table, Transform};

/// A program of seats.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SeatProgram {
    /// Puts, gets, locks, counters and words.
    Random(Program),
    Table(Table),
    Transform(Transform),
}

impl SeatProgram {
    /// The program of a seed; `None` for programs of the store. With logs most programs are those
    /// that logs cover.
    pub(crate) fn new(
        programs: ProgramKind,
        seats: usize,
        rounds: u64,
        seed: u64,
        is_logged: bool,
    ) -> Option<SeatProgram> {
        let kind = match seed % 4 {
            1 | 2 if is_logged => Kind::Rounds,
            number => Kind::ALL[number as usize],
        };
        Some(match programs {
            ProgramKind::Seats => SeatProgram::Random(Program { seats, rounds, kind, seed }),
            ProgramKind::Table => SeatProgram::Table(Table { seats, rounds, seed }),
            ProgramKind::Transform => SeatProgram::Transform(Transform { seats, rounds, seed }),
            _ => return None,
        })
    }

    /// How many bytes a seat has.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            SeatProgram::Random(program) => program.bytes(),
            SeatProgram::Table(table) => table.bytes(),
            SeatProgram::Transform(transform) => transform.bytes(),
        }
    }

    fn rounds(&self) -> u64 {
        match self {
            SeatProgram::Random(Program { rounds, .. })
            | SeatProgram::Table(Table { rounds, .. })
            | SeatProgram::Transform(Transform { rounds, .. }) => *rounds,
        }
    }

    /// Plays the program, and calls `each` before each round. The memory is judged where the
    /// closure begins and at the end.
    pub(crate) fn play(
        &self,
        seat: &Seat,
        each: impl Fn(&Seat, u64) -> ProtectResult<()>,
    ) -> anyhow::Result<u64> {
        let mut round = round_of(seat)?;
        if let (SeatProgram::Transform(transform), None) = (self, seat.note()) {
            seat.put(seat.number(), 0, &transform.start(seat.number()))?;
        }
        // Before any seat goes on: the memory is as at the point.
        self.judge(seat, round)?;
        seat.barrier()?;
        while round < self.rounds() {
            each(seat, round)?;
            match self {
                SeatProgram::Random(program) => play_random(program, seat, round)?,
                SeatProgram::Table(table) => {
                    for word in table.words(seat.number(), round) {
                        insert(table, seat, word)?;
                    }
                }
                SeatProgram::Transform(transform) => {
                    let part = own_part(transform, seat, round)?;
                    for (target, at, bytes) in transform.puts(seat.number(), round, &part) {
                        seat.put(target, at, &bytes)?;
                    }
                }
            }
            round += 1;
            seat.barrier_point(&note(seat, round))?;
        }
        self.judge(seat, round)?;
        // No seat ends, and makes its memory free, while another one judges.
        seat.barrier()?;
        Ok(round)
    }

    /// Compares the memory with that of the oracle. No seat changes it meanwhile.
    fn judge(&self, seat: &Seat, round: u64) -> anyhow::Result<()> {
        let bytes_of = |target: usize| -> ProtectResult<Vec<u8>> {
            let mut bytes = vec![0; seat.bytes() as usize];
            seat.get(target, 0, &mut bytes)?;
            Ok(bytes)
        };
        let me = seat.number();
        let judged = match self {
            SeatProgram::Random(program) => program.judge(me, round, &bytes_of(me)?),
            SeatProgram::Table(table) => {
                let all: ProtectResult<Vec<Vec<u8>>> = (0..seat.seats()).map(bytes_of).collect();
                table.judge(round, &all?)
            }
            SeatProgram::Transform(transform) => {
                transform.judge(me, round, &own_part(transform, seat, round)?)
            }
        };
        judged.map_err(|fault| anyhow!("a wrong answer: {fault}"))
    }
}

/// The note of a round: its number, and the seat that wrote it.
fn note(seat: &Seat, round: u64) -> Vec<u8> {
    [round.to_le_bytes(), (seat.number() as u64).to_le_bytes()].concat()
}

/// The round in the note of a seat, which must be its own.
fn round_of(seat: &Seat) -> anyhow::Result<u64> {
    let Some(note) = seat.note() else { return Ok(0) };
    let (round, number) = note.split_at_checked(8).ok_or_else(|| anyhow!("a note that is cut"))?;
    ensure!(
        number == (seat.number() as u64).to_le_bytes(),
        "a wrong answer: seat {} has the note of another seat",
        seat.number()
    );
    Ok(u64::from_le_bytes(round.try_into()?))
}

fn own_part(transform: &Transform, seat: &Seat, round: u64) -> ProtectResult<Vec<u8>> {
    let (at, len) = transform.part_at(round);
    let mut part = vec![0; len as usize];
    seat.get(seat.number(), at, &mut part)?;
    Ok(part)
}

fn play_random(program: &Program, seat: &Seat, round: u64) -> ProtectResult<()> {
    let me = seat.number();
    let mut read = Vec::new();
    if let Some(source) = program.source(me, round) {
        read = vec![0; seat.bytes() as usize];
        seat.get(source, 0, &mut read)?;
    }
    seat.barrier()?;
    for put in program.puts(me, round, &read) {
        seat.put(put.target, put.offset, &put.bytes)?;
    }
    for change in program.sections(me, round) {
        section(seat, change)?;
    }
    for change in program.words(me, round) {
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
        seat.accumulate(target, offset, Update::Sum, &[1u64])?;
    }
    Ok(())
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

/// Counts a word in the first of its cells that is free or has the word.
fn insert(table: &Table, seat: &Seat, word: u64) -> ProtectResult<()> {
    for (target, offset) in table.cells(word) {
        let found = seat.compare_and_swap(target, offset, 0, word)?;
        if found == 0 || found == word {
            return seat.accumulate(target, offset + 8, Update::Sum, &[1u64]);
        }
    }
    Ok(())
}
