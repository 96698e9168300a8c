//! Boards: hints about open tasks, and the workers that are hungry.
//!
//! A board is a few words in the segment of its member, which all members read and write
//! one-sidedly. Everything on it is a hint: a task is found by its record, and a hungry worker that
//! nobody rings looks again by itself. A call on the board of a member that may be stopped is given
//! up after [`PATIENCE`].

use crate::record::TaskId;
use outlast::engine::{Done, Operation, Pending};
use outlast::{Epoch, Job, MemberId};
use std::time::Duration;

/// How long a call on another board may take.
const PATIENCE: Duration = Duration::from_millis(5);

/// How many hints a board has. With them it fills six cache lines.
const HINTS: usize = 31;
/// How many lifelines a board has: one for each power of two up to the greatest number of members.
const LIFELINES: usize = 12;

/// The word that the background of a member counts up while the member is not stopped. It is 0
/// until the member has opened a session with the board.
const ALIVE: usize = 0;
/// The number of the last run that is over, as far as this member was told. It is a hint, as all
/// else: the root's record says whether a run is over.
const OVER: usize = 1;
/// The hungry workers: their number plus 1, or 0.
const HUNGRY: usize = 2;
/// The run that this member is in, or 0.
const RUN: usize = HUNGRY + LIFELINES;
/// The number of the session that the board belongs to.
const SESSION: usize = RUN + 1;
/// How often other members have woken this one.
const WOKEN: usize = SESSION + 1;
const FIRST_HINT: usize = WOKEN + 1;
const WORDS: usize = FIRST_HINT + HINTS;

/// A hint: an open task. The word has 16 bits each for the worker and the slot, and the lower half
/// of the generation. The number of the root's worker does not fit; roots have no hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hint(u64);

impl Hint {
    fn new(id: TaskId) -> Hint {
        let slot = u64::from(id.slot) + 1;
        Hint(u64::from(id.worker) << 48 | slot << 32 | id.generation & 0xffff_ffff)
    }

    pub(crate) fn worker(self) -> u32 {
        (self.0 >> 48) as u32
    }

    pub(crate) fn slot(self) -> u32 {
        (self.0 >> 32 & 0xffff) as u32 - 1
    }

    /// Whether the hint may mean this generation of its slot.
    pub(crate) fn is_generation(self, generation: u64) -> bool {
        self.0 & 0xffff_ffff == generation & 0xffff_ffff
    }
}

/// What a member reads on its own board at each look.
pub(crate) struct Look {
    pub(crate) over: u64,
    pub(crate) hungry: Vec<MemberId>,
}

/// What a member shows of itself on its board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sign {
    /// A number that grows while the member is in a run and not stopped.
    pub(crate) life: u64,
    /// The run that the member is in, or 0.
    pub(crate) run: u64,
}

/// The boards of all members, as a member reaches them.
#[derive(Clone)]
pub(crate) struct Boards {
    job: Job,
    /// The offset of each member's board.
    offsets: Vec<u64>,
}

impl Boards {
    /// Reserves the own board; returns its offset.
    pub(crate) fn reserve(job: &Job) -> outlast::engine::Result<u64> {
        let offset = job.reserve(WORDS as u64 * 8)?;
        job.put(Epoch::ANY, job.me(), offset, &[0; WORDS * 8])?;
        Ok(offset)
    }

    pub(crate) fn new(job: &Job, offsets: Vec<u64>) -> Boards {
        Boards { job: job.clone(), offsets }
    }

    /// Gives a board back that no member writes to any more. Between hosts a put that was given up
    /// may still land, so there the bytes stay reserved until the job ends.
    pub(crate) fn release(job: &Job, board: u64) {
        if job.is_mapped() {
            job.release(board, WORDS as u64 * 8);
        }
    }

    /// Writes the number of a session to the own board.
    pub(crate) fn mark(job: &Job, board: u64, session: u64) -> outlast::engine::Result<()> {
        job.put(Epoch::ANY, job.me(), board + SESSION as u64 * 8, &session.to_le_bytes())
    }

    /// Keeps that this member has opened a session with its board.
    pub(crate) fn set_open(job: &Job, board: u64) -> outlast::engine::Result<()> {
        job.put(Epoch::ANY, job.me(), board + ALIVE as u64 * 8, &1u64.to_le_bytes())
    }

    /// Whether this member has opened a session with its board.
    pub(crate) fn is_open(job: &Job, board: u64) -> outlast::engine::Result<bool> {
        let word = job.load(Epoch::ANY, job.me(), board.saturating_add(ALIVE as u64 * 8))?;
        Ok(word != 0)
    }

    /// The number of the session that a member's board belongs to. Any number or an error if there
    /// is no board at this offset.
    pub(crate) fn session_at(
        job: &Job,
        member: MemberId,
        board: u64,
    ) -> outlast::engine::Result<u64> {
        job.load(Epoch::ANY, member, board.saturating_add(SESSION as u64 * 8))
    }

    pub(crate) fn offset_of(&self, member: MemberId) -> u64 {
        self.at(member, 0)
    }

    fn at(&self, member: MemberId, word: usize) -> u64 {
        self.offsets.get(member.index()).copied().unwrap_or(0) + word as u64 * 8
    }

    /// Reads the words of the own board that matter to a worker in the middle of its work.
    pub(crate) fn look(&self) -> Look {
        let mut bytes = [0; (LIFELINES + 1) * 8];
        let me = self.job.me();
        if self.job.get(Epoch::ANY, me, self.at(me, OVER), &mut bytes).is_err() {
            return Look { over: 0, hungry: Vec::new() };
        }
        let mut words = words_of(&bytes);
        let over = words.next().unwrap_or(0);
        let hungry = words.filter(|&word| word != 0).map(|word| MemberId(word as u32 - 1));
        Look { over, hungry: hungry.collect() }
    }

    /// Wakes the hungry workers and takes them off the own board.
    pub(crate) fn wake_hungry(&self, hungry: &[MemberId]) {
        let me = self.job.me();
        if hungry.is_empty() {
            return;
        }
        let _ = self.job.put(Epoch::ANY, me, self.at(me, HUNGRY), &[0; LIFELINES * 8]);
        self.wake(hungry);
    }

    /// Wakes workers that sleep: counts up on their boards, and rings them after that. The count
    /// tells a worker why its bell has rung: between hosts each answer rings it, too.
    pub(crate) fn wake(&self, members: &[MemberId]) {
        let start = |&member: &MemberId| {
            let add = Operation::FetchAdd { offset: self.at(member, WOKEN), delta: 1 };
            self.job.start(Epoch::ANY, member, add)
        };
        self.finish(members.iter().map(start).collect());
        for &member in members {
            let _ = self.job.ring(member);
        }
    }

    /// How often other members have woken this one.
    pub(crate) fn times_woken(&self) -> u64 {
        let me = self.job.me();
        self.job.load(Epoch::ANY, me, self.at(me, WOKEN)).unwrap_or(0)
    }

    /// Writes a hint to the own board; returns whether there was room.
    pub(crate) fn advertise(&self, id: TaskId) -> bool {
        let me = self.job.me();
        let hint = Hint::new(id);
        for word in FIRST_HINT..WORDS {
            let swap = self.job.compare_and_swap(Epoch::ANY, me, self.at(me, word), 0, hint.0);
            if swap == Ok(0) {
                return true;
            }
        }
        false
    }

    /// Takes the hint about a task off the own board.
    pub(crate) fn unadvertise(&self, id: TaskId) {
        let me = self.job.me();
        for (index, hint) in self.read_hints(me) {
            if hint == Hint::new(id) {
                self.remove(me, index, hint);
            }
        }
    }

    /// The hints on a member's board, with their places. None if the member does not answer soon.
    pub(crate) fn read_hints(&self, member: MemberId) -> Vec<(usize, Hint)> {
        let operation = Operation::Get { offset: self.at(member, FIRST_HINT), len: HINTS * 8 };
        let pending = self.job.start(Epoch::ANY, member, operation);
        let Some(Done::Get(bytes)) = self.finish(vec![pending]).pop().flatten() else {
            return Vec::new();
        };
        let hints = words_of(&bytes).enumerate().filter(|(_, word)| *word != 0);
        hints.map(|(index, word)| (index, Hint(word))).collect()
    }

    /// Takes a stale hint off a board. It is not waited for.
    pub(crate) fn remove(&self, member: MemberId, index: usize, hint: Hint) {
        let offset = self.at(member, FIRST_HINT + index);
        let swap = Operation::CompareAndSwap { offset, expected: hint.0, new: 0 };
        self.finish(vec![self.job.start(Epoch::ANY, member, swap)]);
    }

    /// Says at the members at distance 1, 2, 4, ... in the ring of the living that this member is
    /// hungry; returns these members.
    pub(crate) fn ask(&self, living: &[MemberId]) -> Vec<MemberId> {
        let me = self.job.me();
        let place = living.iter().position(|&member| member == me).unwrap_or(0);
        let word = u64::from(me.0) + 1;
        let (mut pending, mut asked) = (Vec::new(), Vec::new());
        for line in (0..LIFELINES).take_while(|line| 1 << line < living.len()) {
            let member = living[(place + (1 << line)) % living.len()];
            let offset = self.at(member, HUNGRY + line);
            let put = Operation::Put { offset, data: &word.to_le_bytes() };
            pending.push(self.job.start(Epoch::ANY, member, put));
            asked.push(member);
        }
        self.finish(pending);
        asked
    }

    /// Tells the members that a run is over, and wakes them.
    pub(crate) fn tell_over(&self, living: &[MemberId], run: u64) {
        let data = run.to_le_bytes();
        let start = |&member: &MemberId| {
            let put = Operation::Put { offset: self.at(member, OVER), data: &data };
            self.job.start(Epoch::ANY, member, put)
        };
        self.finish(living.iter().map(start).collect());
        self.wake(living);
    }

    /// Counts the own sign of life up.
    pub(crate) fn show_life(&self) {
        let me = self.job.me();
        let _ = self.job.fetch_add(Epoch::ANY, me, self.at(me, ALIVE), 1);
    }

    /// Tells the run that this member is in, or 0.
    pub(crate) fn tell_run(&self, run: u64) {
        let me = self.job.me();
        let _ = self.job.put(Epoch::ANY, me, self.at(me, RUN), &run.to_le_bytes());
    }

    /// What a member shows of itself, if the member answers soon.
    pub(crate) fn sign_of(&self, member: MemberId) -> Option<Sign> {
        let operation = Operation::Get { offset: self.at(member, ALIVE), len: (RUN + 1) * 8 };
        let pending = self.job.start(Epoch::ANY, member, operation);
        let Some(Done::Get(bytes)) = self.finish(vec![pending]).pop().flatten() else {
            return None;
        };
        let mut words = words_of(&bytes);
        Some(Sign { life: words.next()?, run: words.nth(RUN - ALIVE - 1)? })
    }

    /// Polls operations until all are done, or their targets do not answer in time.
    fn finish(&self, mut pending: Vec<Pending>) -> Vec<Option<Done>> {
        let mut done: Vec<Option<Done>> = pending.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..pending.len()).collect();
        let mut until = None;
        loop {
            let bell = self.job.bell();
            open.retain(|&index| match self.job.poll(&mut pending[index]) {
                Some(result) => {
                    done[index] = result.ok();
                    false
                }
                None => true,
            });
            if open.is_empty() {
                return done;
            }
            let now = self.job.now();
            let until = *until.get_or_insert(now.after(PATIENCE));
            if now >= until || self.job.has_ended() {
                return done;
            }
            self.job.park(bell, until);
        }
    }
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_names_its_task() {
        let id = TaskId { worker: 4095, slot: 65000, generation: 0x1_0000_0007 };
        let hint = Hint::new(id);
        assert_eq!((hint.worker(), hint.slot()), (4095, 65000));
        assert!(hint.is_generation(id.generation) && !hint.is_generation(8));
    }
}
