//! The communicator (first form: the calls and their types).

#![allow(clippy::unimplemented, unused_variables, missing_docs, dead_code)]

use super::group::Group;
use super::{Error, Result};
use crate::{Job, MemberId};
use std::sync::Arc;

#[derive(Clone)]
pub struct Communicator {
    job: Job,
    group: Arc<Group>,
}

/// Whom to receive from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Rank(usize),
    Any,
}

impl From<usize> for Source {
    fn from(rank: usize) -> Source {
        Source::Rank(rank)
    }
}

/// Which tag to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    Is(u32),
    Any,
}

impl From<u32> for Tag {
    fn from(tag: u32) -> Tag {
        Tag::Is(tag)
    }
}

/// How a reduction combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    And,
    Or,
    Min,
    Max,
    Sum,
}

/// A message as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub source: usize,
    pub tag: u32,
    pub bytes: Vec<u8>,
}

/// A send or receive that was started.
pub struct Request {
    comm: Communicator,
}

impl Request {
    /// The result if it is complete.
    pub fn test(&mut self) -> Option<Result<Received>> {
        unimplemented!()
    }
    pub fn wait(&mut self) -> Result<Received> {
        unimplemented!()
    }
    /// Gives up on a receive.
    pub fn cancel(self) {
        unimplemented!()
    }
}

/// Waits until one is complete; which, and its result.
pub fn wait_any(requests: &mut [Request]) -> Result<(usize, Result<Received>)> {
    unimplemented!()
}
/// Waits until at least one is complete.
pub fn wait_some(requests: &mut [Request]) -> Result<Vec<(usize, Result<Received>)>> {
    unimplemented!()
}
/// Waits until all are complete, or one failed: then those that are not complete say `ProcFailedPending`.
pub fn wait_all(requests: &mut [Request]) -> Result<Vec<Result<Received>>> {
    unimplemented!()
}

impl Communicator {
    pub fn world(job: &Job) -> Result<Communicator> {
        unimplemented!()
    }
    pub fn job(&self) -> &Job {
        &self.job
    }
    pub fn rank(&self) -> usize {
        self.group.me
    }
    pub fn size(&self) -> usize {
        self.group.size()
    }
    /// The members in the order of their ranks.
    pub fn members(&self) -> &[MemberId] {
        self.group.members()
    }
    pub fn member(&self, rank: usize) -> Result<MemberId> {
        unimplemented!()
    }
    pub fn rank_of(&self, member: MemberId) -> Option<usize> {
        self.group.rank_of(member)
    }
    /// An identity that no other communicator of the job has or will ever have.
    pub fn id(&self) -> u64 {
        unimplemented!()
    }

    pub fn send(&self, to: usize, tag: u32, bytes: &[u8]) -> Result<()> {
        unimplemented!()
    }
    pub fn start_send(&self, to: usize, tag: u32, bytes: &[u8]) -> Result<Request> {
        unimplemented!()
    }
    pub fn receive(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Received> {
        unimplemented!()
    }
    /// Source, tag and length of what was received.
    pub fn receive_into(
        &self,
        from: impl Into<Source>,
        tag: impl Into<Tag>,
        buffer: &mut [u8],
    ) -> Result<(usize, u32, usize)> {
        unimplemented!()
    }
    pub fn start_receive(&self, from: impl Into<Source>, tag: impl Into<Tag>) -> Result<Request> {
        unimplemented!()
    }

    pub fn barrier(&self) -> Result<()> {
        unimplemented!()
    }
    pub fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<()> {
        unimplemented!()
    }
    pub fn allreduce_u64(&self, op: Op, values: &mut [u64]) -> Result<()> {
        unimplemented!()
    }
    pub fn allreduce_i64(&self, op: Op, values: &mut [i64]) -> Result<()> {
        unimplemented!()
    }
    pub fn allreduce_f64(&self, op: Op, values: &mut [f64]) -> Result<()> {
        unimplemented!()
    }
    /// Everyone's bytes, of any length each, by rank.
    pub fn allgather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        unimplemented!()
    }

    pub fn duplicate(&self) -> Result<Communicator> {
        unimplemented!()
    }
    /// `None` as colour: belongs to no new communicator.
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Communicator>> {
        unimplemented!()
    }
    pub fn free(&self) -> Result<()> {
        unimplemented!()
    }

    pub fn revoke(&self) -> Result<()> {
        unimplemented!()
    }
    /// Local; also right at a member that made no call since.
    pub fn is_revoked(&self) -> bool {
        unimplemented!()
    }
    pub fn shrink(&self) -> Result<Communicator> {
        unimplemented!()
    }
    /// The bitwise and of what all contribute, the same everywhere.
    pub fn agree(&self, flags: u64) -> Result<u64> {
        unimplemented!()
    }
    pub fn failure_ack(&self) -> Result<()> {
        unimplemented!()
    }
    pub fn failure_get_acked(&self) -> Result<Vec<usize>> {
        unimplemented!()
    }
    pub fn get_failed(&self) -> Result<Vec<usize>> {
        unimplemented!()
    }

    pub fn interrupt(&self, rank: usize) -> Result<()> {
        unimplemented!()
    }
    pub fn notify_failures(&self, ranks: &[usize]) -> Result<()> {
        unimplemented!()
    }

    // ---- For windows.

    /// Waits until `look` has something, making progress meanwhile. Ends with `Revoked`, `Interrupted`, or `Timeout`
    /// naming `whom()`.
    pub(crate) fn wait_until<T>(
        &self,
        whom: impl Fn() -> usize,
        look: impl FnMut() -> Option<Result<T>>,
    ) -> Result<T> {
        unimplemented!()
    }
}
