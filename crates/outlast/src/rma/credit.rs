//! Credit: how many bytes of messages a rank may have at another rank that has not received them.
//!
//! The layer takes every message of its port at once, so the bounds of the engine do not bound what
//! a program leaves unreceived. Each rank therefore counts, for each other rank, what it has sent
//! and the receiver has not reported as consumed. It waits before it sends more than [`CREDIT`],
//! until the deadline of its call, and makes progress meanwhile. The receiver reports what its
//! program has consumed in large portions, by messages of the layer itself, which wait for no
//! member.
//!
//! Messages of the program and steps of collective operations have credit of their own: a rank that
//! was sent many messages, and receives them after a collective operation, can take part in it.
//! Agreements, revokes and notices need no credit: a call sends a few of them, and then waits for
//! its group.
//!
//! What arrives before its communicator is made, and the parts of a long message, count as sent and
//! not consumed, so they are bounded too: by [`CREDIT`] and a single message for each rank,
//! communicator and lane.
//!
//! A rank that frees a communicator drops what it has not received, and counts it as consumed. It
//! also drops the message of a receive that is cancelled later.
//!
//! On a death nothing is done: a dead rank sends and receives no more, and its credit is forgotten
//! with the communicator.

use super::point_to_point::{PostedReceive, Received};
use super::progress::Rma;
use super::registry::SharedCommunicator;
use super::wire::{self, Reader, Writer};
use super::{Error, Result};
use crate::Job;
use crate::engine::{MESSAGE_CREDIT, message_cost};
use crate::sync::lock;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How many bytes a rank may have sent to another rank that has not consumed them, before it sends
/// a further message.
pub(super) const CREDIT: u64 = MESSAGE_CREDIT;

/// How many bytes are consumed before they are reported. A rank that has consumed everything leaves
/// its sender with more than half of the credit.
const REPORT: u64 = CREDIT / 4;

/// What a message belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Messages of the program.
    Program = 0,
    /// Steps of collective operations.
    Collective = 1,
}

/// How many lanes there are.
const LANES: usize = 2;

/// The credit of a communicator at a member, by rank and lane.
#[derive(Default)]
pub(crate) struct Credits {
    /// What this member has sent and the receiver has not reported.
    used: Vec<[u64; LANES]>,
    /// What this member has consumed and not reported.
    unreported: Vec<[u64; LANES]>,
    /// The ranks and lanes that are to be reported.
    due: Vec<(usize, Lane)>,
}

/// The length of the message that brought this content: header, tag and bytes.
fn message_len(received: &Received) -> usize {
    wire::HEADER_LEN + 4 + received.bytes.len()
}

fn entry(list: &mut Vec<[u64; LANES]>, rank: usize, lane: Lane) -> &mut u64 {
    if list.len() <= rank {
        list.resize(rank + 1, [0; LANES]);
    }
    &mut list[rank][lane as usize]
}

impl Credits {
    /// Takes credit for a message, if there is any left.
    fn take(&mut self, to: usize, lane: Lane, len: usize) -> bool {
        let used = entry(&mut self.used, to, lane);
        let has_credit = *used < CREDIT;
        if has_credit {
            *used += message_cost(len);
        }
        has_credit
    }

    /// Gives credit back.
    fn give(&mut self, to: usize, lane: Lane, bytes: u64) {
        let used = entry(&mut self.used, to, lane);
        *used = used.saturating_sub(bytes);
    }

    /// Counts a message that the program has consumed, or that was dropped.
    pub(crate) fn consume(&mut self, from: usize, lane: Lane, len: usize) {
        let unreported = entry(&mut self.unreported, from, lane);
        let before = *unreported;
        *unreported += message_cost(len);
        if before < REPORT && *unreported >= REPORT {
            self.due.push((from, lane));
        }
    }

    /// The reports that are due, as messages of a communicator.
    pub(crate) fn take_reports(&mut self, communicator: u64) -> Vec<(usize, Vec<u8>)> {
        let report = |(from, lane): (usize, Lane), unreported: &mut Vec<[u64; LANES]>| {
            let bytes = std::mem::take(entry(unreported, from, lane));
            let mut writer = Writer::new(wire::CREDIT, communicator, 9);
            writer.u8(lane as u8).u64(bytes);
            (from, writer.done())
        };
        let due = std::mem::take(&mut self.due);
        due.into_iter().map(|which| report(which, &mut self.unreported)).collect()
    }

    /// Handles a report of a rank.
    pub(crate) fn receive_report(&mut self, from: usize, bytes: &[u8]) {
        let mut reader = Reader::new(bytes);
        if let (Some(lane), Some(bytes)) = (reader.u8(), reader.u64()) {
            let lane = if lane == Lane::Program as u8 { Lane::Program } else { Lane::Collective };
            self.give(from, lane, bytes);
        }
    }
}

impl Rma {
    /// Sends a message of the program, or a step of a collective operation: waits for credit, and
    /// then for room at the engine, until the deadline of the call. `check` says why the wait for
    /// credit is over.
    pub(crate) fn send_on_credit(
        &self,
        job: &Job,
        shared: &SharedCommunicator,
        to: usize,
        lane: Lane,
        bytes: &[u8],
        check: impl Fn() -> Result<()>,
    ) -> Result<()> {
        let take = || {
            let has_credit = lock(&shared.state).credits.take(to, lane, bytes.len());
            if has_credit { Some(Ok(())) } else { check().err().map(Err) }
        };
        self.block(job, take, |limit| shared.timeout(to, limit))?;
        self.transmit(job, shared.group.member(to), bytes).map_err(|error| {
            lock(&shared.state).credits.give(to, lane, message_cost(bytes.len()));
            Error::from_engine(error, to)
        })
    }

    /// Counts a message that the program has taken, and reports it if enough is unreported. Called
    /// without any lock.
    pub(super) fn count_consumed(
        &self,
        job: &Job,
        shared: &SharedCommunicator,
        result: &Result<Received>,
    ) {
        let Ok(received) = result else { return };
        if received.source != shared.group.me {
            let len = message_len(received);
            lock(&shared.state).credits.consume(received.source, Lane::Program, len);
            self.report_consumed(job, shared);
        }
    }

    /// Drops the messages of a freed communicator that the program has not received, and counts
    /// them as consumed: a sender that has used up its credit goes on. Called without any lock.
    pub(crate) fn drop_unreceived(&self, job: &Job, shared: &SharedCommunicator) {
        {
            let state = &mut *lock(&shared.state);
            for message in state.matcher.take_arrived() {
                if message.source != shared.group.me {
                    let len = message_len(&message);
                    state.credits.consume(message.source, Lane::Program, len);
                }
            }
        }
        self.report_consumed(job, shared);
    }

    /// Cancels a receive. A message that the program has not taken goes to the next receive, or is
    /// dropped if the communicator is freed. Called without any lock.
    pub(super) fn cancel_receive(
        &self,
        job: &Job,
        shared: &SharedCommunicator,
        posted: &Arc<PostedReceive>,
    ) {
        if !lock(&shared.state).matcher.cancel(posted) {
            return;
        }
        // Loaded after the message went back: otherwise `free` drops it.
        match shared.is_freed.load(Ordering::SeqCst) {
            true => self.drop_unreceived(job, shared),
            false => self.wake_waiters(job),
        }
    }

    /// Reports what the program has consumed, if enough of it is unreported. Called without any
    /// lock.
    pub(crate) fn report_consumed(&self, job: &Job, shared: &SharedCommunicator) {
        let reports = {
            let mut state = lock(&shared.state);
            if state.credits.due.is_empty() {
                return;
            }
            state.credits.take_reports(shared.id)
        };
        for (rank, report) in reports {
            self.post(job, shared.group.member(rank), report);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_has_consumed_everything_leaves_its_sender_credit() {
        let (mut sender, mut receiver) = (Credits::default(), Credits::default());
        for len in [0, 1 << 20, 3 << 20, 100, 9 << 20, 5] {
            assert!(sender.take(3, Lane::Program, len), "{len} bytes");
            receiver.consume(7, Lane::Program, len);
            for (rank, report) in receiver.take_reports(1) {
                assert_eq!(rank, 7);
                sender.receive_report(3, &report[wire::HEADER_LEN..]);
            }
        }
    }

    #[test]
    fn credit_ends_and_comes_back_for_each_rank_and_lane() {
        let mut credits = Credits::default();
        let count = (0..10_000).take_while(|_| credits.take(1, Lane::Program, 10_000)).count();
        assert_eq!(count as u64, CREDIT.div_ceil(message_cost(10_000)));
        assert!(credits.take(0, Lane::Program, 1) && credits.take(1, Lane::Collective, 1));
        credits.give(1, Lane::Program, 1_000_000);
        assert!(credits.take(1, Lane::Program, 1));
    }

    /// A rank frees a communicator, and has not received what another rank has sent in it, which is
    /// as much as that rank may send. The other rank is not held up by it.
    #[cfg(feature = "sim")]
    #[test]
    fn a_rank_that_frees_a_communicator_holds_no_sender_up() {
        use crate::rma::Communicator;
        use crate::sim::{self, Link, Options};
        use std::time::Duration;
        const LEN: usize = 100_000;
        const LIMIT: Duration = Duration::from_secs(1);
        for seed in 0..4 {
            let mut options = Options::new(2, seed).link(Link::of_seed(seed));
            (options.time_limit, options.steps_max) = (LIMIT, 10_000_000);
            sim::run(&options, move |job: Job| {
                let world = Communicator::world(&job).expect("made");
                let comm = world.duplicate().expect("made");
                let message = Received { source: 0, tag: 7, bytes: vec![1; LEN] };
                let count = CREDIT.div_ceil(message_cost(message_len(&message)));
                if world.rank() == 0 {
                    (0..count).for_each(|_| comm.send(1, 7, &message.bytes).expect("credit"));
                }
                world.barrier().expect("no death");
                if world.rank() == 0 {
                    let began = job.now();
                    comm.send(1, 7, &message.bytes).expect("the other rank drops it");
                    let took = job.now().since(began);
                    assert!(took < LIMIT / 4, "seed {seed}: it took {took:?}");
                } else {
                    job.sleep(LIMIT / 10 * (seed as u32 % 2));
                    comm.free().expect("freed");
                }
                world.barrier().expect("no death");
                if world.rank() == 0 {
                    comm.free().expect("freed");
                }
                let _ = job.leave();
            })
            .expect_ok();
        }
    }

    /// A receive has a message that the program has not taken when it frees the communicator, and
    /// is dropped afterwards. The message is consumed all the same.
    #[cfg(feature = "sim")]
    #[test]
    fn a_receive_that_is_dropped_after_free_holds_no_sender_up() {
        use crate::rma::Communicator;
        use crate::sim::{self, Link, Options};
        use std::time::Duration;
        const LEN: usize = 100_000;
        const LIMIT: Duration = Duration::from_secs(1);
        for seed in 0..4 {
            let mut options = Options::new(2, seed).link(Link::of_seed(seed));
            (options.time_limit, options.steps_max) = (LIMIT, 10_000_000);
            sim::run(&options, move |job: Job| {
                let world = Communicator::world(&job).expect("made");
                let comm = world.duplicate().expect("made");
                let message = Received { source: 0, tag: 7, bytes: vec![1; LEN] };
                let count = CREDIT.div_ceil(message_cost(message_len(&message)));
                let receives: Vec<_> = match world.rank() {
                    0 => Vec::new(),
                    _ => (0..count).map(|_| comm.start_receive(0, 7).expect("started")).collect(),
                };
                world.barrier().expect("no death");
                if world.rank() == 0 {
                    (0..count).for_each(|_| comm.send(1, 7, &message.bytes).expect("credit"));
                }
                world.barrier().expect("no death");
                if world.rank() == 0 {
                    let began = job.now();
                    comm.send(1, 7, &message.bytes).expect("the other rank drops it");
                    let took = job.now().since(began);
                    assert!(took < LIMIT / 4, "seed {seed}: it took {took:?}");
                } else {
                    comm.free().expect("freed");
                    drop(receives);
                }
                // The other rank may have left by then.
                let _ = world.barrier();
                if world.rank() == 0 {
                    comm.free().expect("freed");
                }
                let _ = job.leave();
            })
            .expect_ok();
        }
    }
}
