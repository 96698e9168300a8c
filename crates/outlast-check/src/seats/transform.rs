//! A transform of a matrix whose rows are divided among seats: each round transforms each row, and
//! puts the rows as columns into the memories of all seats.

use super::mix;

/// A program that transforms and transposes.
#[derive(Clone, Copy, Debug)]
pub struct Transform {
    /// How many seats there are.
    pub seats: usize,
    /// How many rounds it has.
    pub rounds: u64,
    /// The seed of the first matrix.
    pub seed: u64,
}

/// The rows of a seat.
const ROWS: usize = 4;
/// All numbers are below this prime number: the transform is exact.
const PRIME: u64 = 65_537;

impl Transform {
    /// How many numbers a row has.
    fn width(&self) -> usize {
        ROWS * self.seats
    }

    /// The bytes of the part of a matrix that a seat has.
    fn part_len(&self) -> u64 {
        (ROWS * self.width() * 8) as u64
    }

    /// How many bytes a seat has: a matrix is read while the next one is put beside it.
    pub fn bytes(&self) -> u64 {
        2 * self.part_len()
    }

    /// Where the part of the matrix after so many rounds begins, and how long it is.
    pub fn part_at(&self, round: u64) -> (u64, u64) {
        (round % 2 * self.part_len(), self.part_len())
    }

    /// The part of the first matrix that a seat begins with.
    pub fn start(&self, seat: usize) -> Vec<u8> {
        to_bytes(&self.first_rows(seat).concat())
    }

    fn first_rows(&self, seat: usize) -> Vec<Vec<u64>> {
        let number = |row: usize, column: usize| mix(self.seed ^ mix((row << 32 | column) as u64));
        let row = |row: usize| (0..self.width()).map(|at| number(row, at) % PRIME).collect();
        (seat * ROWS..(seat + 1) * ROWS).map(row).collect()
    }

    /// What a seat puts in a round if it has this part: the seat, the offset, and the bytes.
    pub fn puts(&self, seat: usize, round: u64, part: &[u8]) -> Vec<(usize, u64, Vec<u8>)> {
        let rows: Vec<Vec<u64>> =
            part.chunks_exact(self.width() * 8).map(|row| next(&to_numbers(row))).collect();
        let (at, _) = self.part_at(round + 1);
        (0..self.width())
            .map(|column| {
                let numbers: Vec<u64> = rows.iter().map(|row| row[column]).collect();
                let offset = (column % ROWS * self.width() + seat * ROWS) * 8;
                (column / ROWS, at + offset as u64, to_bytes(&numbers))
            })
            .collect()
    }

    /// The part of a seat after so many rounds.
    pub fn part_after(&self, seat: usize, rounds: u64) -> Vec<u8> {
        let mut matrix: Vec<Vec<u64>> =
            (0..self.seats).flat_map(|seat| self.first_rows(seat)).collect();
        for _ in 0..rounds {
            let rows: Vec<Vec<u64>> = matrix.iter().map(|row| next(row)).collect();
            let column = |at: usize| rows.iter().map(|row| row[at]).collect();
            matrix = (0..self.width()).map(column).collect();
        }
        to_bytes(&matrix[seat * ROWS..(seat + 1) * ROWS].concat())
    }

    /// Compares the part of a seat after so many rounds.
    pub fn judge(&self, seat: usize, rounds: u64, found: &[u8]) -> Result<(), String> {
        let expected = self.part_after(seat, rounds);
        match expected.iter().zip(found).position(|(a, b)| a != b) {
            None if expected.len() == found.len() => Ok(()),
            at => Err(format!(
                "seat {seat} after {rounds} rounds differs from byte {at:?} on (a transform, seed \
                 {})",
                self.seed
            )),
        }
    }
}

/// The transform of a row: the values of a polynomial with these coefficients.
fn next(row: &[u64]) -> Vec<u64> {
    let value = |at: u64| row.iter().rev().fold(0, |value, number| (value * at + number) % PRIME);
    (0..row.len() as u64).map(|at| value(at + 2)).collect()
}

fn to_bytes(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn to_numbers(bytes: &[u8]) -> Vec<u64> {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    bytes.chunks_exact(8).map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puts_make_the_matrix_of_the_oracle() {
        for seats in [1, 3] {
            let program = Transform { seats, rounds: 5, seed: 4 };
            let mut memory = vec![vec![0; program.bytes() as usize]; seats];
            for (seat, bytes) in memory.iter_mut().enumerate() {
                let start = program.start(seat);
                bytes[..start.len()].copy_from_slice(&start);
            }
            for round in 0..5 {
                let (at, len) = program.part_at(round);
                let range = at as usize..(at + len) as usize;
                for seat in 0..seats {
                    assert_eq!(program.judge(seat, round, &memory[seat][range.clone()]), Ok(()));
                    let part = memory[seat][range.clone()].to_vec();
                    for (target, offset, bytes) in program.puts(seat, round, &part) {
                        let offset = offset as usize;
                        memory[target][offset..offset + bytes.len()].copy_from_slice(&bytes);
                    }
                }
            }
            let (at, len) = program.part_at(5);
            let mut part = memory[0][at as usize..(at + len) as usize].to_vec();
            assert_eq!(program.judge(0, 5, &part), Ok(()));
            part[3] ^= 1;
            assert!(program.judge(0, 5, &part).is_err());
            assert_ne!(program.part_after(0, 4), program.part_after(0, 5));
        }
    }
}
