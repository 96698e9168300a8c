//! Messages between two members of a communicator, and requests for them.
//!
//! A message is sent at once and kept at its receiver until it is received: sending completes
//! locally. A rank that has sent much to a rank that receives nothing waits before it sends more
//! (`credit.rs`). A receive takes the oldest message that matches it; a message goes to the oldest
//! receive that it matches. A waiting call finds failures as follows:
//!
//! - A receive from a rank that is known to be dead fails, unless the message has arrived.
//! - A receive from any source, with an unacknowledged death in the group, returns
//!   [`Error::ProcFailedPending`] and stays active: the dead member may or may not have been its
//!   sender.
//! - If a request of a set failed, the incomplete requests of the set return
//!   [`Error::ProcFailedPending`] too, and stay active.

use super::progress::Rma;
use super::registry::{CommunicatorState, SharedCommunicator};
use super::{Error, Result};
use crate::Job;
use crate::engine::deadline::Deadline;
use crate::engine::{self};
use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The rank to receive from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From this rank.
    Rank(usize),
    /// From the rank that sends first.
    Any,
}

impl From<usize> for Source {
    fn from(rank: usize) -> Source {
        Source::Rank(rank)
    }
}

/// Which messages to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Messages with this tag.
    Is(u32),
    /// All messages.
    Any,
}

impl From<u32> for Tag {
    fn from(tag: u32) -> Tag {
        Tag::Is(tag)
    }
}

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The rank that sent it.
    pub source: usize,
    /// Its tag.
    pub tag: u32,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// A receive that was started.
pub(crate) struct PostedReceive {
    source: Source,
    tag: Tag,
    len_max: usize,
    result: Mutex<Option<Result<Received>>>,
    /// The number of the arrival of the message in `result`.
    arrival: AtomicU64,
}

impl PostedReceive {
    fn takes(&self, source: usize, tag: u32) -> bool {
        (self.source == Source::Any || self.source == Source::Rank(source))
            && (self.tag == Tag::Any || self.tag == Tag::Is(tag))
    }
}

/// The messages and receives of a communicator that have not been matched.
#[derive(Default)]
pub(crate) struct MessageMatcher {
    posted: VecDeque<Arc<PostedReceive>>,
    /// Messages without a matching receive, in the order of their arrival.
    arrived: VecDeque<(u64, Received)>,
    arrivals: u64,
}

impl MessageMatcher {
    /// Delivers a message that has arrived.
    pub(crate) fn deliver(&mut self, source: usize, tag: u32, bytes: Vec<u8>) {
        self.arrivals += 1;
        self.match_or_keep(self.arrivals, Received { source, tag, bytes });
    }

    /// Starts a receive.
    pub(crate) fn post(&mut self, source: Source, tag: Tag, len_max: usize) -> Arc<PostedReceive> {
        let posted = Arc::new(PostedReceive {
            source,
            tag,
            len_max,
            result: Mutex::new(None),
            arrival: AtomicU64::new(0),
        });
        let found =
            self.arrived.iter().position(|(_, message)| posted.takes(message.source, message.tag));
        match found {
            None => self.posted.push_back(posted.clone()),
            Some(index) if self.arrived[index].1.bytes.len() > len_max => {
                let len = self.arrived[index].1.bytes.len();
                *lock(&posted.result) = Some(Err(Error::Truncated { len, buffer_len: len_max }));
            }
            Some(index) => {
                let (arrival, message) = self.arrived.remove(index).expect("found just now");
                posted.arrival.store(arrival, Ordering::Relaxed);
                *lock(&posted.result) = Some(Ok(message));
            }
        }
        posted
    }

    /// Takes all messages that no receive has taken.
    pub(crate) fn take_arrived(&mut self) -> impl Iterator<Item = Received> + use<> {
        std::mem::take(&mut self.arrived).into_iter().map(|(_, message)| message)
    }

    /// Source, tag and length of the oldest message that a receive would take.
    pub(crate) fn peek(&self, source: Source, tag: Tag) -> Option<(usize, u32, usize)> {
        let probe = PostedReceive {
            source,
            tag,
            len_max: 0,
            result: Mutex::new(None),
            arrival: AtomicU64::new(0),
        };
        let (_, message) =
            self.arrived.iter().find(|(_, message)| probe.takes(message.source, message.tag))?;
        Some((message.source, message.tag, message.bytes.len()))
    }

    /// Cancels a receive. If it has a message that was not taken, the message goes to the next
    /// receive that takes it, or back to its place. Returns whether it had a message, so that the
    /// caller wakes waiters.
    pub(crate) fn cancel(&mut self, posted: &Arc<PostedReceive>) -> bool {
        self.remove(posted);
        let result = lock(&posted.result).take();
        match result {
            Some(Ok(message)) => {
                self.match_or_keep(posted.arrival.load(Ordering::Relaxed), message);
                true
            }
            _ => false,
        }
    }

    /// Gives a message to the oldest receive that takes it, or keeps it in the order of arrival.
    fn match_or_keep(&mut self, arrival: u64, received: Received) {
        let mut index = 0;
        while let Some(posted) = self.posted.get(index) {
            if !posted.takes(received.source, received.tag) {
                index += 1;
                continue;
            }
            let posted = self.posted.remove(index).expect("looked at just now");
            if received.bytes.len() <= posted.len_max {
                posted.arrival.store(arrival, Ordering::Relaxed);
                *lock(&posted.result) = Some(Ok(received));
                return;
            }
            // Too long for this receive, which is over. The next receive may take the message.
            let error = Error::Truncated { len: received.bytes.len(), buffer_len: posted.len_max };
            *lock(&posted.result) = Some(Err(error));
        }
        let place = self.arrived.partition_point(|(other, _)| *other < arrival);
        self.arrived.insert(place, (arrival, received));
    }

    fn remove(&mut self, posted: &Arc<PostedReceive>) {
        self.posted.retain(|other| !Arc::ptr_eq(other, posted));
    }
}

impl SharedCommunicator {
    /// The result of a receive, or the reason why it is over or held up, if there is any yet.
    pub(crate) fn poll_receive(&self, posted: &Arc<PostedReceive>) -> Option<Result<Received>> {
        let mut state = lock(&self.state);
        if let Some(result) = lock(&posted.result).take() {
            return Some(result);
        }
        let error = self.receive_error(&state, posted)?;
        if !matches!(error, Error::ProcFailedPending { .. }) {
            state.matcher.remove(posted);
        }
        Some(Err(error))
    }

    fn receive_error(&self, state: &CommunicatorState, posted: &PostedReceive) -> Option<Error> {
        if self.is_freed.load(Ordering::SeqCst) {
            return Some(Error::Freed);
        }
        if self.is_revoked.load(Ordering::SeqCst) {
            return Some(Error::Revoked);
        }
        if state.drained.contains(self.group.me) {
            // A member that is dead in its own view has left the job.
            return Some(Error::Engine(engine::Error::Ended));
        }
        match posted.source {
            Source::Rank(rank) if state.drained.contains(rank) => {
                Some(Error::ProcFailed { ranks: vec![rank] })
            }
            Source::Any
                if state.drained.len() + 1 == self.group.size()
                    && state.drained.is_subset(&state.acked) =>
            {
                // No living member is left to send.
                (self.group.size() > 1).then(|| Error::ProcFailed { ranks: state.drained.to_vec() })
            }
            Source::Any if !state.drained.is_subset(&state.acked) => {
                Some(Error::ProcFailedPending {
                    ranks: state.drained.without(&state.acked).to_vec(),
                })
            }
            _ => None,
        }
    }

    /// The rank that a wait for this receive waits for: its source, or the first other living rank.
    pub(crate) fn waited_for(&self, posted: &PostedReceive) -> usize {
        match posted.source {
            Source::Rank(rank) => rank,
            Source::Any => {
                let state = lock(&self.state);
                let others = (0..self.group.size()).filter(|&rank| rank != self.group.me);
                others.into_iter().find(|&rank| !state.dead.contains(rank)).unwrap_or(self.group.me)
            }
        }
    }

    /// Takes an interrupt, if a member has sent any.
    pub(crate) fn take_interrupt(&self) -> Option<Error> {
        lock(&self.state).interrupted_by.take().map(|by| Error::Interrupted { by })
    }

    pub(crate) fn timeout(&self, rank: usize, limit: std::time::Duration) -> Error {
        Error::Timeout { rank, member: self.group.member(rank), limit }
    }
}

enum StartedRequest {
    Receive(Arc<PostedReceive>),
    /// A send is complete when it is started.
    Send,
    /// The result was taken.
    Over,
}

/// A started send or receive. Its result can be taken once, by any of the tests and waits.
/// [`Error::ProcFailedPending`] does not count as a result: the request is still active and can be
/// waited for again.
///
/// Dropping a receive cancels it. If it already had a message, the message goes to the next
/// matching receive.
#[must_use = "dropping a request gives it up"]
pub struct Request {
    job: Job,
    rma: Arc<Rma>,
    shared: Arc<SharedCommunicator>,
    started: StartedRequest,
    tag: u32,
    /// A result that has not been taken.
    result: Option<Result<Received>>,
}

impl Request {
    pub(crate) fn receive(
        job: &Job,
        rma: &Arc<Rma>,
        shared: &Arc<SharedCommunicator>,
        posted: Arc<PostedReceive>,
    ) -> Request {
        Request {
            job: job.clone(),
            rma: rma.clone(),
            shared: shared.clone(),
            started: StartedRequest::Receive(posted),
            tag: 0,
            result: None,
        }
    }

    pub(crate) fn sent(
        job: &Job,
        rma: &Arc<Rma>,
        shared: &Arc<SharedCommunicator>,
        tag: u32,
    ) -> Request {
        Request {
            job: job.clone(),
            rma: rma.clone(),
            shared: shared.clone(),
            started: StartedRequest::Send,
            tag,
            result: None,
        }
    }

    /// Whether the result was taken, so that there is nothing left to wait for.
    pub fn is_over(&self) -> bool {
        matches!(self.started, StartedRequest::Over)
    }

    /// The result if the request is complete or held up. A completed send gives an empty message
    /// from this member.
    pub fn test(&mut self) -> Option<Result<Received>> {
        self.rma.progress(&self.job);
        self.poll();
        self.take()
    }

    /// Waits until the request is complete or held up. After [`Error::Timeout`] and
    /// [`Error::Interrupted`] it is still active.
    pub fn wait(&mut self) -> Result<Received> {
        let outcome = wait_for(std::slice::from_mut(self), |requests| requests[0].result.is_some());
        outcome.and_then(|()| self.take().unwrap_or(Err(Error::AlreadyTaken)))
    }

    /// Waits as [`Request::wait`] does, but no longer than for `limit`: [`Error::Timeout`] then.
    pub fn wait_within(&mut self, limit: Duration) -> Result<Received> {
        let _deadline = Deadline::call_until(self.job.now().after(limit));
        self.wait().map_err(|error| match error {
            Error::Timeout { rank, member, limit: longest } => {
                Error::Timeout { rank, member, limit: limit.min(longest) }
            }
            other => other,
        })
    }

    /// Cancels the request, as dropping it does.
    pub fn cancel(self) {}

    /// Keeps the result of the request, if there is any yet.
    fn poll(&mut self) {
        // A request that is held up has no result: the failure may have been acknowledged since,
        // and a message may have come.
        if matches!(self.result, None | Some(Err(Error::ProcFailedPending { .. }))) {
            self.result = match &self.started {
                StartedRequest::Receive(posted) => self.shared.poll_receive(posted),
                StartedRequest::Send => Some(Ok(Received {
                    source: self.shared.group.me,
                    tag: self.tag,
                    bytes: Vec::new(),
                })),
                StartedRequest::Over => Some(Err(Error::AlreadyTaken)),
            };
        }
    }

    /// Takes what [`Request::poll`] kept. The request stays active if it is only held up.
    fn take(&mut self) -> Option<Result<Received>> {
        let result = self.result.take()?;
        self.rma.count_consumed(&self.job, &self.shared, &result);
        if !matches!(result, Err(Error::ProcFailedPending { .. })) {
            self.started = StartedRequest::Over;
        }
        Some(result)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let StartedRequest::Receive(posted) = &self.started {
            if let Some(Ok(message)) = self.result.take() {
                *lock(&posted.result) = Some(Ok(message));
            }
            self.rma.cancel_receive(&self.job, &self.shared, posted);
        }
    }
}

/// Waits until any request whose result was not taken yet is complete or held up. Returns its index
/// and result, and leaves the others as they are. [`Error::AlreadyTaken`] if all results were
/// taken.
pub fn wait_any(requests: &mut [Request]) -> Result<(usize, Result<Received>)> {
    let is_open = |request: &Request| !request.is_over();
    if !requests.iter().any(is_open) {
        return Err(Error::AlreadyTaken);
    }
    let is_ready = |request: &Request| is_open(request) && request.result.is_some();
    wait_for(requests, |requests| requests.iter().any(is_ready))?;
    Ok(take_ready(requests).next().expect("a request is ready"))
}

/// [`wait_any`] without waiting: `None` if no request is complete or held up.
pub fn test_any(requests: &mut [Request]) -> Option<(usize, Result<Received>)> {
    poll_all(requests);
    take_ready(requests).next()
}

/// Waits until at least a single request whose result was not taken yet is complete or held up.
/// Returns all requests that are. If any of them failed, the incomplete requests are listed too, as
/// [`Error::ProcFailedPending`], and are still active.
pub fn wait_some(requests: &mut [Request]) -> Result<Vec<(usize, Result<Received>)>> {
    let is_open = |request: &Request| !request.is_over();
    if !requests.iter().any(is_open) {
        return Ok(Vec::new());
    }
    let is_ready = |request: &Request| is_open(request) && request.result.is_some();
    wait_for(requests, |requests| requests.iter().any(is_ready))?;
    Ok(take_some(requests))
}

/// [`wait_some`] without waiting.
pub fn test_some(requests: &mut [Request]) -> Vec<(usize, Result<Received>)> {
    poll_all(requests);
    take_some(requests)
}

/// Waits until all requests whose results were not taken yet are complete, or any of them failed.
/// Returns a result for each request. If any failed, the incomplete requests return
/// [`Error::ProcFailedPending`] and are still active. Requests with results that were taken earlier
/// return [`Error::AlreadyTaken`].
pub fn wait_all(requests: &mut [Request]) -> Result<Vec<Result<Received>>> {
    wait_for(requests, |requests| {
        requests.iter().all(|request| request.result.is_some()) || requests.iter().any(has_failed)
    })?;
    Ok(take_all(requests))
}

/// [`wait_all`] without waiting: `None`, and all requests stay active, if it would wait.
pub fn test_all(requests: &mut [Request]) -> Option<Vec<Result<Received>>> {
    poll_all(requests);
    let is_enough =
        requests.iter().all(|request| request.result.is_some()) || requests.iter().any(has_failed);
    is_enough.then(|| take_all(requests))
}

/// Polls all requests until `is_enough` holds.
fn wait_for(requests: &mut [Request], is_enough: impl Fn(&[Request]) -> bool) -> Result<()> {
    let Some(first) = requests.first() else { return Ok(()) };
    let (job, rma) = (first.job.clone(), first.rma.clone());
    let mut last = Vec::new();
    let requests = std::cell::RefCell::new(requests);
    let poll = || {
        let mut requests = requests.borrow_mut();
        requests.iter_mut().for_each(Request::poll);
        if is_enough(&requests) {
            return Some(Ok(()));
        }
        // A member may have interrupted the wait on any communicator of the set.
        last.clear();
        for request in requests.iter() {
            if !last.contains(&request.shared.id) {
                last.push(request.shared.id);
                if let Some(error) = request.shared.take_interrupt() {
                    return Some(Err(error));
                }
            }
        }
        None
    };
    rma.block(&job, poll, |limit| {
        let requests = requests.borrow();
        let open = requests.iter().find(|request| request.result.is_none());
        match open.map(|request| (&request.shared, &request.started)) {
            Some((shared, StartedRequest::Receive(posted))) => {
                shared.timeout(shared.waited_for(posted), limit)
            }
            _ => Error::AlreadyTaken,
        }
    })
}

fn has_failed(request: &Request) -> bool {
    matches!(&request.result, Some(Err(error)) if error.is_failure() || *error == Error::Revoked)
}

/// The dead that the failed requests of the set name.
fn dead_of(requests: &[Request]) -> Vec<usize> {
    let named = requests.iter().filter_map(|request| match &request.result {
        Some(Err(Error::ProcFailed { ranks } | Error::ProcFailedPending { ranks })) => {
            Some(ranks.clone())
        }
        _ => None,
    });
    let mut ranks: Vec<usize> = named.flatten().collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

fn poll_all(requests: &mut [Request]) {
    if let Some(first) = requests.first() {
        first.rma.progress(&first.job);
    }
    requests.iter_mut().for_each(Request::poll);
}

fn take_ready(requests: &mut [Request]) -> impl Iterator<Item = (usize, Result<Received>)> + '_ {
    let open = requests.iter_mut().enumerate().filter(|(_, request)| !request.is_over());
    open.filter_map(|(index, request)| Some((index, request.take()?)))
}

fn take_some(requests: &mut [Request]) -> Vec<(usize, Result<Received>)> {
    let dead = requests.iter().any(has_failed).then(|| dead_of(requests));
    let mut taken = Vec::new();
    for (index, request) in
        requests.iter_mut().enumerate().filter(|(_, request)| !request.is_over())
    {
        match (request.take(), &dead) {
            (Some(result), _) => taken.push((index, result)),
            (None, Some(dead)) => {
                taken.push((index, Err(Error::ProcFailedPending { ranks: dead.clone() })))
            }
            (None, None) => {}
        }
    }
    taken
}

fn take_all(requests: &mut [Request]) -> Vec<Result<Received>> {
    let dead = dead_of(requests);
    let pending = || Err(Error::ProcFailedPending { ranks: dead.clone() });
    requests.iter_mut().map(|request| request.take().unwrap_or_else(pending)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(posted: &PostedReceive) -> Option<Result<Received>> {
        lock(&posted.result).clone()
    }

    #[test]
    fn messages_and_receives_match_in_order() {
        let mut matcher = MessageMatcher::default();
        matcher.deliver(1, 7, vec![1]);
        matcher.deliver(1, 8, vec![2]);
        matcher.deliver(2, 7, vec![3]);
        let first = matcher.post(Source::Any, Tag::Is(8), 100);
        assert_eq!(result(&first).unwrap().unwrap().bytes, [2]);
        let second = matcher.post(Source::Rank(2), Tag::Any, 100);
        assert_eq!(result(&second).unwrap().unwrap().bytes, [3]);
        let third = matcher.post(Source::Any, Tag::Any, 100);
        assert_eq!(result(&third).unwrap().unwrap().bytes, [1]);
        let (fourth, fifth) =
            (matcher.post(Source::Any, Tag::Any, 9), matcher.post(Source::Rank(0), Tag::Any, 9));
        matcher.deliver(0, 1, vec![4]);
        matcher.deliver(0, 1, vec![5]);
        assert_eq!(result(&fourth).unwrap().unwrap().bytes, [4]);
        assert_eq!(result(&fifth).unwrap().unwrap().bytes, [5]);
    }

    #[test]
    fn a_message_that_is_too_long_is_not_lost() {
        let mut matcher = MessageMatcher::default();
        let (short, long) =
            (matcher.post(Source::Any, Tag::Any, 2), matcher.post(Source::Any, Tag::Any, 3));
        matcher.deliver(0, 0, vec![9; 3]);
        assert_eq!(result(&short), Some(Err(Error::Truncated { len: 3, buffer_len: 2 })));
        assert_eq!(result(&long).unwrap().unwrap().bytes, [9; 3]);
        matcher.deliver(0, 0, vec![8; 3]);
        let short = matcher.post(Source::Any, Tag::Any, 0);
        assert!(matches!(result(&short), Some(Err(Error::Truncated { .. }))));
        assert_eq!(matcher.peek(Source::Any, Tag::Any), Some((0, 0, 3)));
    }

    #[test]
    fn a_cancelled_receive_returns_its_message() {
        let mut matcher = MessageMatcher::default();
        let posted = matcher.post(Source::Any, Tag::Any, 9);
        matcher.deliver(0, 0, vec![1]);
        matcher.deliver(0, 0, vec![2]);
        matcher.cancel(&posted);
        let posted = matcher.post(Source::Any, Tag::Any, 9);
        assert_eq!(result(&posted).unwrap().unwrap().bytes, [1]);
    }

    #[test]
    fn a_returned_message_goes_to_the_next_receive() {
        let mut matcher = MessageMatcher::default();
        let first = matcher.post(Source::Rank(0), Tag::Any, 9);
        let second = matcher.post(Source::Rank(0), Tag::Any, 9);
        matcher.deliver(0, 0, vec![1]);
        assert!(matcher.cancel(&first));
        assert_eq!(result(&second).unwrap().unwrap().bytes, [1]);
    }

    #[test]
    fn returned_messages_keep_their_order() {
        let mut matcher = MessageMatcher::default();
        let posted: Vec<_> = (0..3).map(|_| matcher.post(Source::Any, Tag::Any, 9)).collect();
        for number in 1..=4 {
            matcher.deliver(0, 0, vec![number]);
        }
        for posted in &posted {
            matcher.cancel(posted);
        }
        for number in 1..=4 {
            let posted = matcher.post(Source::Any, Tag::Any, 9);
            assert_eq!(result(&posted).unwrap().unwrap().bytes, [number]);
        }
    }
}
