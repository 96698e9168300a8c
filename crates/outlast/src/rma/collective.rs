//! Collective operations: all members of a communicator call them in a common order.
//!
//! Each call has a number, equal at all members, and a signature (operation, root, length), which
//! all its messages carry. A member that sees another signature under the number of its call tells
//! all members, and all return [`Error::Mismatched`]. In debug builds each operation begins with a
//! barrier that compares the signatures, since some mismatches (two members that both act as the
//! root) cause no unexpected message otherwise.
//!
//! A barrier is a dissemination. A broadcast is a binomial tree. A reduction is recursive doubling
//! (the ranks beyond the largest power of two first give their values to a partner, and get the
//! result from it). Gathering from all is a dissemination with growing messages. All have
//! logarithmic depth.
//!
//! # Deaths
//! A member that knows of a death in the group leaves a collective operation with an error as soon
//! as it would have to wait, whichever rank it waits for: that rank may have left the operation
//! because of the death, too. All members learn of every death, so no member waits for ever;
//! members that had all they needed before return success. After a death, all collective operations
//! of the communicator fail; shrink it.
//!
//! A member that has left the job on purpose is different. It had done its part in every operation
//! that it took part in, and others may leave a while later, for example at the end of a program
//! after its last barrier. So only these members fail: a member that waits for the member that
//! left, has data to send to it, or calls an operation in which it can no longer take part. A
//! failing member tells all others, which fail in this operation or in their next operation, also
//! if that is a `duplicate` or a `split`. (A member that took part to the end has been sent all its
//! data.)

use super::credit::Lane;
use super::group::RankSet;
use super::progress::{Rma, begin_call};
use super::registry::SharedCommunicator;
use super::wire::{self, Reader, Writer};
use super::{Error, Result};
use crate::Job;
use crate::engine::deadline::Deadline;
use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a reduction combines two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// The smaller value.
    Min,
    /// The larger value.
    Max,
    /// The sum; integers wrap.
    Sum,
}

/// A call's operation and arguments, which must be equal at all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    kind: CollectiveKind,
    detail: u8,
    root: u32,
    len: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollectiveKind {
    Barrier,
    Broadcast,
    ReduceUnsigned,
    ReduceSigned,
    ReduceFloat,
    Gather,
}

const COLLECTIVE_KINDS: [CollectiveKind; 6] = [
    CollectiveKind::Barrier,
    CollectiveKind::Broadcast,
    CollectiveKind::ReduceUnsigned,
    CollectiveKind::ReduceSigned,
    CollectiveKind::ReduceFloat,
    CollectiveKind::Gather,
];

impl Signature {
    pub(crate) fn new(kind: CollectiveKind, detail: u8, root: usize, len: usize) -> Signature {
        Signature { kind, detail, root: root as u32, len: len as u64 }
    }

    fn write(&self, writer: &mut Writer) {
        writer.u8(self.kind as u8).u8(self.detail).u32(self.root).u64(self.len);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Signature> {
        let kind = *COLLECTIVE_KINDS.get(reader.u8()? as usize)?;
        Some(Signature { kind, detail: reader.u8()?, root: reader.u32()?, len: reader.u64()? })
    }
}

struct ArrivedStep {
    number: u64,
    slot: u8,
    from: usize,
    signature: Signature,
    bytes: Vec<u8>,
}

impl ArrivedStep {
    /// The length of the message that brought the step: header, number, slot, signature and bytes.
    fn message_len(&self) -> usize {
        wire::HEADER_LEN + 8 + 1 + 14 + self.bytes.len()
    }
}

/// The collective operations of a communicator at a member.
#[derive(Default)]
pub(crate) struct Collectives {
    /// The number of the next call.
    next: u64,
    arrived: VecDeque<ArrivedStep>,
    /// The first call that a member left because members had left the job, and the ranks that left.
    broken: Option<(u64, RankSet)>,
    /// The last call that a member found to be mismatched, with its description.
    aborted: Option<(u64, String)>,
}

impl Collectives {
    /// Keeps a step that another member has sent.
    pub(crate) fn deliver(&mut self, from: usize, bytes: &[u8]) {
        let mut reader = Reader::new(bytes);
        let mut read = || Some((reader.u64()?, reader.u8()?, Signature::read(&mut reader)?));
        if let Some((number, slot, signature)) = read() {
            self.arrived.push_back(ArrivedStep {
                number,
                slot,
                from,
                signature,
                bytes: reader.rest().to_vec(),
            });
        }
    }

    /// Records that another member has left a call because members had left the job.
    pub(crate) fn break_off(&mut self, bytes: &[u8]) {
        let mut reader = Reader::new(bytes);
        if let (Some(number), Some(ranks)) = (reader.u64(), reader.set())
            && self.broken.as_ref().is_none_or(|(first, _)| number < *first)
        {
            self.broken = Some((number, ranks));
        }
    }

    /// The members that had left, if because of them some member left a call that is over here:
    /// that member will not take part in the next calls.
    pub(crate) fn broken_before(&self) -> Option<&RankSet> {
        self.broken.as_ref().filter(|(number, _)| *number < self.next).map(|(_, ranks)| ranks)
    }

    /// Records that another member has found a mismatch.
    pub(crate) fn abort(&mut self, from: usize, bytes: &[u8]) {
        let mut reader = Reader::new(bytes);
        if let Some(number) = reader.u64()
            && self.aborted.as_ref().is_none_or(|(newest, _)| *newest < number)
        {
            let said = String::from_utf8_lossy(reader.rest()).into_owned();
            self.aborted = Some((number, format!("rank {from} has found: {said}")));
        }
    }
}

/// Marks that a thread is inside a call that only a single thread of a member may make at a time.
pub(crate) struct SingleCallGuard<'a>(&'a AtomicBool);

impl<'a> SingleCallGuard<'a> {
    pub(crate) fn take(flag: &'a AtomicBool) -> Result<SingleCallGuard<'a>> {
        if flag.swap(true, Ordering::Acquire) {
            Err(Error::Busy)
        } else {
            Ok(SingleCallGuard(flag))
        }
    }
}

impl Drop for SingleCallGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A call of a collective operation.
pub(crate) struct CollectiveCall<'a> {
    job: &'a Job,
    rma: &'a Rma,
    shared: &'a Arc<SharedCommunicator>,
    signature: Signature,
    number: u64,
    me: usize,
    size: usize,
    _guard: SingleCallGuard<'a>,
    /// The deadline that all steps share.
    _deadline: Deadline,
}

/// The slots of messages before and after the doubling of a reduction, and the first slot of the
/// check in debug builds.
const FOLD: u8 = 64;
const UNFOLD: u8 = 65;
const CHECK: u8 = 128;

impl<'a> CollectiveCall<'a> {
    pub(crate) fn begin(
        job: &'a Job,
        rma: &'a Rma,
        shared: &'a Arc<SharedCommunicator>,
        signature: Signature,
    ) -> Result<CollectiveCall<'a>> {
        let deadline = begin_call(job);
        let guard = SingleCallGuard::take(&shared.in_collective)?;
        let number = {
            let mut state = lock(&shared.state);
            let number = state.collectives.next;
            state.collectives.next += 1;
            // Steps of calls that this member has left with an error.
            let state = &mut *state;
            let arrived = std::mem::take(&mut state.collectives.arrived);
            let (stale, kept): (VecDeque<_>, _) =
                arrived.into_iter().partition(|step| step.number < number);
            state.collectives.arrived = kept;
            for step in stale {
                state.credits.consume(step.from, Lane::Collective, step.message_len());
            }
            number
        };
        let (me, size) = (shared.group.me, shared.group.size());
        let call = CollectiveCall {
            job,
            rma,
            shared,
            signature,
            number,
            me,
            size,
            _guard: guard,
            _deadline: deadline,
        };
        call.check(None)?;
        if cfg!(debug_assertions) && signature.kind != CollectiveKind::Barrier {
            call.disseminate(CHECK)?;
        }
        Ok(call)
    }

    pub(crate) fn barrier(&self) -> Result<()> {
        self.disseminate(0)
    }

    pub(crate) fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<()> {
        // Places are counted from the root; the parent of a place is the place without its lowest
        // bit.
        let place = (self.me + self.size - root) % self.size;
        let rank_at = |place: usize| (place + root) % self.size;
        let lowest =
            if place == 0 { self.size.next_power_of_two() } else { place & place.wrapping_neg() };
        if place != 0 {
            let received = self.receive(rank_at(place - lowest), 0)?;
            if received.len() != bytes.len() {
                return Err(Error::Mismatched {
                    what: format!("a broadcast of {} bytes", received.len()),
                });
            }
            bytes.copy_from_slice(&received);
        }
        let mut bit = lowest / 2;
        let mut result = Ok(());
        while bit > 0 {
            if place + bit < self.size {
                // The other children get their data even if a child is dead.
                result = result.and(self.send(rank_at(place + bit), 0, bytes));
            }
            bit /= 2;
        }
        result
    }

    /// Reduces words; `combine` must be associative and commutative.
    pub(crate) fn reduce(
        &self,
        words: &mut [u64],
        combine: impl Fn(u64, u64) -> u64,
    ) -> Result<()> {
        let pack =
            |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let unpack = |bytes: &[u8]| -> Vec<u64> {
            bytes.as_chunks::<8>().0.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect()
        };
        let power =
            if self.size.is_power_of_two() { self.size } else { self.size.next_power_of_two() / 2 };
        let extra = self.size - power;
        // Of the first 2 * extra ranks, each odd rank gives its values to the even rank before it.
        if self.me < 2 * extra && self.me % 2 == 1 {
            self.send(self.me - 1, FOLD, &pack(words))?;
            words.copy_from_slice(&unpack(&self.receive(self.me - 1, UNFOLD)?));
            return Ok(());
        }
        if self.me < 2 * extra {
            let theirs = unpack(&self.receive(self.me + 1, FOLD)?);
            words.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine = combine(*mine, theirs));
        }
        let place = if self.me < 2 * extra { self.me / 2 } else { self.me - extra };
        let rank_at = |place: usize| if place < extra { place * 2 } else { place + extra };
        let (mut bit, mut slot) = (1, 0);
        while bit < power {
            let partner = rank_at(place ^ bit);
            self.send(partner, slot, &pack(words))?;
            let theirs = unpack(&self.receive(partner, slot)?);
            // Both partners put the value of the lower place first, so that both round equally.
            let swap = place & bit != 0;
            for (mine, theirs) in words.iter_mut().zip(theirs) {
                *mine = if swap { combine(theirs, *mine) } else { combine(*mine, theirs) };
            }
            (bit, slot) = (bit * 2, slot + 1);
        }
        if self.me < 2 * extra {
            self.send(self.me + 1, UNFOLD, &pack(words))?;
        }
        Ok(())
    }

    /// The bytes of every member, by rank.
    pub(crate) fn gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut known: Vec<Option<Vec<u8>>> = vec![None; self.size];
        known[self.me] = Some(bytes.to_vec());
        let (mut distance, mut slot) = (1, 0);
        while distance < self.size {
            let mut packed = Vec::new();
            for (rank, bytes) in known.iter().enumerate() {
                if let Some(bytes) = bytes {
                    packed.extend_from_slice(&(rank as u32).to_le_bytes());
                    packed.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
                    packed.extend_from_slice(bytes);
                }
            }
            self.send((self.me + distance) % self.size, slot, &packed)?;
            let received = self.receive((self.me + self.size - distance) % self.size, slot)?;
            let mut reader = Reader::new(&received);
            while let (Some(rank), Some(len)) = (reader.u32(), reader.u64()) {
                if let (Some(place), Some(bytes)) =
                    (known.get_mut(rank as usize), reader.bytes(len as usize))
                {
                    place.get_or_insert_with(|| bytes.to_vec());
                }
            }
            (distance, slot) = (distance * 2, slot + 1);
        }
        Ok(known.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// Returns when all members have come here.
    fn disseminate(&self, first_slot: u8) -> Result<()> {
        let mut distance = 1;
        let mut slot = first_slot;
        while distance < self.size {
            self.send((self.me + distance) % self.size, slot, &[])?;
            self.receive((self.me + self.size - distance) % self.size, slot)?;
            distance *= 2;
            slot += 1;
        }
        Ok(())
    }

    fn send(&self, to: usize, slot: u8, bytes: &[u8]) -> Result<()> {
        let mut writer = Writer::new(wire::COLLECTIVE, self.shared.id, 24 + bytes.len());
        writer.u64(self.number).u8(slot);
        self.signature.write(&mut writer);
        writer.bytes(bytes);
        let bytes = writer.done();
        let check = || self.check(Some(to));
        let lane = Lane::Collective;
        let sent = self.rma.send_on_credit(self.job, self.shared, to, lane, &bytes, check);
        sent.map_err(|error| match error {
            Error::ProcFailed { .. } => self.break_off([to].into_iter().collect()),
            other => other,
        })
    }

    /// Waits for a step from a member.
    fn receive(&self, from: usize, slot: u8) -> Result<Vec<u8>> {
        let poll = || {
            let state = &mut *lock(&self.shared.state);
            let arrived = &mut state.collectives.arrived;
            let other =
                arrived.iter().find(|a| a.number == self.number && a.signature != self.signature);
            if let Some(other) = other {
                return Some(Err((other.from, other.signature)));
            }
            let wanted =
                |a: &ArrivedStep| a.number == self.number && a.slot == slot && a.from == from;
            let found = arrived.iter().position(wanted)?;
            let step = arrived.remove(found)?;
            state.credits.consume(step.from, Lane::Collective, step.message_len());
            Some(Ok(step.bytes))
        };
        let mut mismatch = None;
        let result = self.rma.block(
            self.job,
            || match poll() {
                Some(Ok(bytes)) => Some(Ok(bytes)),
                Some(Err((from, theirs))) => {
                    let what = format!("here {:?}, at rank {from} {theirs:?}", self.signature);
                    mismatch = Some(what.clone());
                    Some(Err(Error::Mismatched { what }))
                }
                None => self.check(Some(from)).err().map(Err),
            },
            |limit| self.shared.timeout(from, limit),
        );
        self.rma.report_consumed(self.job, self.shared);
        if let Some(what) = mismatch {
            let mut writer = Writer::new(wire::ABORT, self.shared.id, 8 + what.len());
            writer.u64(self.number).bytes(what.as_bytes());
            self.tell_all(&writer.done());
        }
        result
    }

    /// The error that ends the call, if any: at its beginning, or while it waits for a rank.
    fn check(&self, waits_for: Option<usize>) -> Result<()> {
        if self.shared.is_freed.load(Ordering::SeqCst) {
            return Err(Error::Freed);
        }
        if self.shared.is_revoked.load(Ordering::SeqCst) {
            return Err(Error::Revoked);
        }
        let state = lock(&self.shared.state);
        let collectives = &state.collectives;
        if let Some((number, said)) = &collectives.aborted
            && *number == self.number
        {
            return Err(Error::Mismatched { what: said.clone() });
        }
        if let Some((number, ranks)) = &collectives.broken
            && *number <= self.number
        {
            return Err(Error::ProcFailed { ranks: ranks.to_vec() });
        }
        if !state.drained.is_subset(&state.left) {
            return Err(Error::ProcFailed { ranks: state.drained.to_vec() });
        }
        let is_harmless = match waits_for {
            None => state.drained.is_empty(),
            Some(rank) => !state.drained.contains(rank),
        };
        if is_harmless {
            return Ok(());
        }
        let ranks = state.drained.clone();
        drop(state);
        Err(self.break_off(ranks))
    }

    /// Leaves the call because of these ranks, and tells all members: others may wait for this
    /// member in it.
    fn break_off(&self, ranks: RankSet) -> Error {
        {
            let broken = &mut lock(&self.shared.state).collectives.broken;
            if broken.as_ref().is_none_or(|(first, _)| self.number < *first) {
                *broken = Some((self.number, ranks.clone()));
            }
        }
        let mut writer = Writer::new(wire::BROKEN, self.shared.id, 0);
        writer.u64(self.number).set(&ranks);
        self.tell_all(&writer.done());
        Error::ProcFailed { ranks: ranks.to_vec() }
    }

    /// Sends all other members a message that ends the call. Otherwise they might wait for this
    /// member.
    fn tell_all(&self, bytes: &[u8]) {
        for rank in (0..self.size).filter(|&rank| rank != self.me) {
            self.rma.post(self.job, self.shared.group.member(rank), bytes.to_vec());
        }
    }
}

/// How an operation combines unsigned words.
pub(crate) fn unsigned(op: Op) -> impl Fn(u64, u64) -> u64 {
    move |a, b| match op {
        Op::And => a & b,
        Op::Or => a | b,
        Op::Min => a.min(b),
        Op::Max => a.max(b),
        Op::Sum => a.wrapping_add(b),
    }
}

/// How an operation combines signed words.
pub(crate) fn signed(op: Op) -> impl Fn(u64, u64) -> u64 {
    move |a, b| match op {
        Op::Min => (a as i64).min(b as i64) as u64,
        Op::Max => (a as i64).max(b as i64) as u64,
        _ => unsigned(op)(a, b),
    }
}

/// How an operation combines floating-point numbers, given by their bits; `None` for bitwise
/// operations.
pub(crate) fn float(op: Op) -> Option<impl Fn(u64, u64) -> u64> {
    let combine: fn(f64, f64) -> f64 = match op {
        Op::And | Op::Or => return None,
        Op::Min => f64::min,
        Op::Max => f64::max,
        Op::Sum => |a, b| a + b,
    };
    Some(move |a, b| combine(f64::from_bits(a), f64::from_bits(b)).to_bits())
}
