//! Seeded programs on the memory of seats, and an oracle that runs them in plain Rust.
//!
//! A [`Program`] says what each seat does in each round: it reads the memory of another seat and
//! puts bytes that depend on it (*rounds*), adds to cells under locks (*sections*), takes tasks
//! from a counter (*claims*), and combines words (*words*). Whatever the interleaving, the bytes of
//! all seats are determined after each round, and [`Program::memory_after`] has them. A program
//! that was taken up again after a death ends with the same bytes, or the judge finds the first
//! byte that differs.
//!
//! Two further programs are loads of the field: a [`Table`] of words, and a [`Transform`] with
//! transpositions.

mod table;
mod transform;

pub use table::Table;
pub use transform::Transform;

/// Which parts the rounds of a program have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Gets, puts and barriers.
    Rounds,
    /// Critical sections: lock, get, put, unlock.
    Sections,
    /// Tasks that a counter gives out.
    Claims,
    /// All of them, and words that are combined.
    Mixed,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Rounds, Kind::Sections, Kind::Claims, Kind::Mixed];
}

/// How a word is combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// The sum, wrapping.
    Sum,
    /// The greater word, unsigned.
    Max,
    /// Bitwise exclusive or.
    Xor,
}

/// A program of seats.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// How many seats there are.
    pub seats: usize,
    /// How many rounds it has.
    pub rounds: u64,
    /// What its rounds have.
    pub kind: Kind,
    /// The seed of its choices.
    pub seed: u64,
}

/// A put of bytes into the memory of a seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// The seat.
    pub target: usize,
    /// Where in its memory.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// A word of the memory of a seat that is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The seat.
    pub target: usize,
    /// Where in its memory.
    pub offset: u64,
    /// How.
    pub combine: Combine,
    /// With what.
    pub value: u64,
}

/// How many bytes a seat puts to a seat.
const MESSAGE_LEN: u64 = 24;
/// How many cells a seat has that sections change.
const CELLS: u64 = 4;
/// How many tasks a round gives out.
const TASKS: u64 = 7;
/// How many words a seat has that are combined.
const WORDS: u64 = 3;

impl Program {
    fn has(&self, kind: Kind) -> bool {
        self.kind == kind || self.kind == Kind::Mixed
    }

    /// A number below `bound` that depends on the seed and on these numbers.
    fn below(&self, what: u64, seat: usize, round: u64, bound: u64) -> u64 {
        let mixed = mix(self.seed ^ mix(what ^ mix((seat as u64) << 32 | round)));
        mixed % bound
    }

    fn cells_at(&self) -> u64 {
        self.seats as u64 * MESSAGE_LEN
    }

    fn tasks_at(&self) -> u64 {
        self.cells_at() + CELLS * 8
    }

    fn words_at(&self) -> u64 {
        self.tasks_at() + self.rounds * TASKS * 8
    }

    /// Where the counter of tasks is, in the memory of seat 0.
    pub fn counter_at(&self) -> u64 {
        self.words_at() + WORDS * 8
    }

    /// How many bytes a seat has.
    pub fn bytes(&self) -> u64 {
        self.counter_at() + 8
    }

    /// The seat whose memory a seat reads in a round, before a barrier; `None` if it reads none.
    pub fn source(&self, seat: usize, round: u64) -> Option<usize> {
        self.has(Kind::Rounds).then(|| self.below(1, seat, round, self.seats as u64) as usize)
    }

    /// What a seat puts in a round, after the barrier, if it has read these bytes.
    pub fn puts(&self, seat: usize, round: u64, read: &[u8]) -> Vec<Put> {
        if !self.has(Kind::Rounds) {
            return Vec::new();
        }
        let digest = read
            .iter()
            .fold(self.seed, |digest, byte| mix(digest.wrapping_mul(257) ^ u64::from(*byte)));
        let put = |number: u64| {
            let target = self.below(2 + number, seat, round, self.seats as u64) as usize;
            let word = |at: u64| mix(digest ^ number ^ at << 8 ^ (seat as u64) << 16);
            let bytes = (0..MESSAGE_LEN / 8).flat_map(|at| word(at).to_le_bytes()).collect();
            Put { target, offset: seat as u64 * MESSAGE_LEN, bytes }
        };
        let mut puts: Vec<Put> = Vec::new();
        for put in (0..1 + self.below(9, seat, round, 3)).map(put) {
            // A seat puts to a place once in a round.
            if puts.iter().all(|other| other.target != put.target) {
                puts.push(put);
            }
        }
        puts
    }

    /// The cells to which a seat adds under the lock of their seat.
    pub fn sections(&self, seat: usize, round: u64) -> Vec<Change> {
        let section = |number: u64| Change {
            target: self.below(20 + number, seat, round, self.seats as u64) as usize,
            offset: self.cells_at() + self.below(30 + number, seat, round, CELLS) * 8,
            combine: Combine::Sum,
            value: 1 + self.below(40 + number, seat, round, 1000),
        };
        let count = if self.has(Kind::Sections) { 2 } else { 0 };
        (0..count).map(section).collect()
    }

    /// The words that a seat combines.
    pub fn words(&self, seat: usize, round: u64) -> Vec<Change> {
        let word = |number: u64| Change {
            target: self.below(50 + number, seat, round, self.seats as u64) as usize,
            offset: self.words_at() + number * 8,
            combine: [Combine::Sum, Combine::Max, Combine::Xor][number as usize],
            value: self.below(60 + number, seat, round, 1 << 40),
        };
        let count = if self.kind == Kind::Mixed { WORDS } else { 0 };
        (0..count).map(word).collect()
    }

    /// Whether seats take tasks from the counter.
    pub fn has_claims(&self) -> bool {
        self.has(Kind::Claims)
    }

    /// The word to which a seat adds 1 if the counter gave it this number in a round; `None` if the
    /// tasks of the round are used up: the seat then stops to ask.
    pub fn task(&self, round: u64, number: u64) -> Option<(usize, u64)> {
        // Each seat takes a number too many in each round.
        let first = round * (TASKS + self.seats as u64);
        let task = number.checked_sub(first).filter(|task| *task < TASKS)?;
        let target = (task as usize + round as usize) % self.seats;
        Some((target, self.tasks_at() + (round * TASKS + task) * 8))
    }

    /// The bytes of all seats after so many rounds.
    pub fn memory_after(&self, rounds: u64) -> Vec<Vec<u8>> {
        let mut memory = vec![vec![0; self.bytes() as usize]; self.seats];
        for round in 0..rounds {
            let before = memory.clone();
            for seat in 0..self.seats {
                let read = self.source(seat, round).map_or(&[][..], |source| &before[source]);
                for put in self.puts(seat, round, read) {
                    let at = put.offset as usize;
                    memory[put.target][at..at + put.bytes.len()].copy_from_slice(&put.bytes);
                }
                for change in self.sections(seat, round).iter().chain(&self.words(seat, round)) {
                    apply(&mut memory, *change);
                }
            }
            if self.has_claims() {
                let first = round * (TASKS + self.seats as u64);
                for number in first..first + TASKS {
                    let Some((target, offset)) = self.task(round, number) else { continue };
                    apply(&mut memory, Change { target, offset, combine: Combine::Sum, value: 1 });
                }
                let (target, offset) = (0, self.counter_at());
                let value = TASKS + self.seats as u64;
                apply(&mut memory, Change { target, offset, combine: Combine::Sum, value });
            }
        }
        memory
    }

    /// Compares the memory of a seat after so many rounds; says where it differs first.
    pub fn judge(&self, seat: usize, rounds: u64, found: &[u8]) -> Result<(), String> {
        let expected = &self.memory_after(rounds)[seat];
        match expected.iter().zip(found).position(|(a, b)| a != b) {
            None if expected.len() == found.len() => Ok(()),
            at => Err(format!(
                "seat {seat} after {rounds} rounds differs from byte {at:?} on ({:?}, seed {})",
                self.kind, self.seed
            )),
        }
    }
}

/// Mixes the bits of a number.
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (number ^ number >> 31).wrapping_add(0x9e37_79b9_7f4a_7c15)
}

fn apply(memory: &mut [Vec<u8>], change: Change) {
    let at = change.offset as usize;
    let word = &mut memory[change.target][at..at + 8];
    let old = u64::from_le_bytes(word.try_into().expect("8 bytes"));
    let new = match change.combine {
        Combine::Sum => old.wrapping_add(change.value),
        Combine::Max => old.max(change.value),
        Combine::Xor => old ^ change.value,
    };
    word.copy_from_slice(&new.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oracle_depends_on_the_seed_and_finds_a_changed_byte() {
        for kind in Kind::ALL {
            let program = Program { seats: 5, rounds: 4, kind, seed: 3 };
            let memory = program.memory_after(4);
            for (seat, bytes) in memory.iter().enumerate() {
                assert_eq!(program.judge(seat, 4, bytes), Ok(()));
                let mut other = bytes.clone();
                other[7] ^= 1;
                assert!(program.judge(seat, 4, &other).is_err());
            }
            assert_ne!(memory, program.memory_after(3), "{kind:?}");
            if kind != Kind::Claims {
                assert_ne!(memory, Program { seed: 4, ..program }.memory_after(4), "{kind:?}");
            }
        }
    }

    #[test]
    fn the_numbers_of_a_counter_are_tasks_once() {
        let program = Program { seats: 3, rounds: 6, kind: Kind::Claims, seed: 1 };
        let mut seen = Vec::new();
        for round in 0..6 {
            for number in 0..100 {
                seen.extend(program.task(round, number));
            }
        }
        assert_eq!(seen.len() as u64, 6 * TASKS);
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count, "each task has a word of its own");
    }
}
