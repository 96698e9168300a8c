//! A hash table over the memories of all seats: words that are inserted by compare-and-swap and
//! counted. Where a word lies depends on the interleaving, how often it is counted does not.

use super::mix;
use std::collections::BTreeMap;

/// A program that inserts words.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// How many seats there are.
    pub seats: usize,
    /// How many rounds it has.
    pub rounds: u64,
    /// The seed of its words.
    pub seed: u64,
}

/// How many words a seat inserts in a round.
const BATCH: u64 = 8;
/// The bytes of a cell: a word, and how often it was inserted.
const CELL_LEN: u64 = 16;

impl Table {
    /// How many different words there may be: about half as many as are inserted.
    fn range(&self) -> u64 {
        self.seats as u64 * self.rounds * BATCH / 2 + 1
    }

    /// The cells of a seat: twice as many as there may be words.
    fn cells_of_seat(&self) -> u64 {
        2 * self.range() / self.seats as u64 + 1
    }

    /// How many bytes a seat has.
    pub fn bytes(&self) -> u64 {
        self.cells_of_seat() * CELL_LEN
    }

    /// The words that a seat inserts in a round.
    pub fn words(&self, seat: usize, round: u64) -> Vec<u64> {
        let word = |number: u64| mix(self.seed ^ mix((seat as u64) << 40 | round << 8 | number));
        (0..BATCH).map(|number| 1 + word(number) % self.range()).collect()
    }

    /// The cells in which a word may lie, in the order in which they are tried, as the seat and the
    /// offset in its memory. The count of a cell is 8 bytes behind its word.
    pub fn cells(&self, word: u64) -> impl Iterator<Item = (usize, u64)> + use<> {
        let (own, seats) = (self.cells_of_seat(), self.seats as u64);
        let first = mix(word) % (own * seats);
        (0..own * seats).map(move |step| {
            let cell = (first + step) % (own * seats);
            ((cell / own) as usize, cell % own * CELL_LEN)
        })
    }

    /// How often each word was inserted after so many rounds.
    pub fn counts_after(&self, rounds: u64) -> BTreeMap<u64, u64> {
        let mut counts = BTreeMap::new();
        let inserts = (0..self.seats).flat_map(|seat| (0..rounds).map(move |round| (seat, round)));
        for word in inserts.flat_map(|(seat, round)| self.words(seat, round)) {
            *counts.entry(word).or_default() += 1;
        }
        counts
    }

    /// Compares the memory of all seats after so many rounds.
    pub fn judge(&self, rounds: u64, memory: &[Vec<u8>]) -> Result<(), String> {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        let mut found: BTreeMap<u64, u64> = BTreeMap::new();
        for cell in memory.iter().flat_map(|bytes| bytes.chunks_exact(CELL_LEN as usize)) {
            let (key, count) = (word(&cell[..8]), word(&cell[8..]));
            match key {
                0 if count == 0 => {}
                0 => return Err(format!("a free cell is counted {count} times")),
                key if found.contains_key(&key) => return Err(format!("word {key} lies twice")),
                key => drop(found.insert(key, count)),
            }
        }
        let expected = self.counts_after(rounds);
        let keys = expected.keys().chain(found.keys());
        match keys.into_iter().find(|key| expected.get(key) != found.get(key)) {
            None => Ok(()),
            Some(key) => Err(format!(
                "word {key} is counted {:?} times after {rounds} rounds, and was inserted {:?} \
                 times (seed {})",
                found.get(key).unwrap_or(&0),
                expected.get(key).unwrap_or(&0),
                self.seed
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays the program in plain Rust, in rounds.
    fn play(table: &Table) -> Vec<Vec<u8>> {
        let mut memory = vec![vec![0; table.bytes() as usize]; table.seats];
        for round in 0..table.rounds {
            for word in (0..table.seats).flat_map(|seat| table.words(seat, round)) {
                let free = |&(seat, at): &(usize, u64)| {
                    let found = &memory[seat][at as usize..at as usize + 8];
                    [0, word].map(u64::to_le_bytes).iter().any(|key| key == found)
                };
                let (seat, at) = table.cells(word).find(free).expect("a free cell");
                let cell = &mut memory[seat][at as usize..at as usize + 16];
                cell[..8].copy_from_slice(&word.to_le_bytes());
                let count: [u8; 8] = cell[8..].try_into().expect("8 bytes");
                cell[8..].copy_from_slice(&(u64::from_le_bytes(count) + 1).to_le_bytes());
            }
        }
        memory
    }

    #[test]
    fn the_judge_of_a_table_finds_each_wrong_cell() {
        for seats in [1, 2, 5] {
            let table = Table { seats, rounds: 6, seed: 9 };
            let memory = play(&table);
            assert_eq!(table.judge(6, &memory), Ok(()));
            assert!(table.judge(5, &memory).is_err());
            for (seat, bytes) in memory.iter().enumerate() {
                for at in (0..bytes.len()).step_by(8) {
                    let mut other = memory.clone();
                    other[seat][at] ^= 1;
                    assert!(table.judge(6, &other).is_err(), "seat {seat}, byte {at}");
                }
            }
        }
    }

    #[test]
    fn some_words_are_inserted_more_than_once() {
        let counts = Table { seats: 4, rounds: 10, seed: 2 }.counts_after(10);
        assert_eq!(counts.values().sum::<u64>(), 4 * 10 * BATCH);
        assert!(counts.values().any(|count| *count > 1));
    }
}
