//! A running job: signals to its members, their ends as events, and the thread that waits for them.
//!
//! The keeper thread waits on the pidfds of all processes and records each end in [`Shared`]. The
//! callers wait for changes of that state. Signals go through pidfds, too.

use super::output::{Captured, OUTPUT_LIMIT};
use super::{LaunchError, MemberEnd, Outcome, backtrace};
use crate::engine::MemberId;
use crate::sync::lock;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, pidfd_send_signal};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest wait for processes that the launcher has killed. A process ends later only if it is
/// stuck in the kernel.
const REAP_LIMIT: Duration = Duration::from_secs(10);

/// A job that was started.
///
/// Dropping it kills its processes and waits for their ends, so that a failed test leaves no
/// process behind. Call [`Running::wait`] to let them finish.
pub struct Running {
    control: Control,
    keeper: Option<JoinHandle<()>>,
}

/// Sends signals to the members of a running job. Cheap to clone, for use by other threads.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
}

/// An event of a running job.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The process of a member has ended, with or without success.
    Ended(MemberEnd),
}

/// The state that the keeper, the output thread and the callers share.
pub(super) struct Shared {
    pub(super) processes: Vec<Process>,
    began: Instant,
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

/// The process of a member.
pub(super) struct Process {
    pub(super) pid: u32,
    /// Signals go through the pidfd, so that they never reach a later process with this pid.
    pub(super) pidfd: OwnedFd,
}

/// The part of [`Shared`] that changes.
pub(super) struct State {
    /// For each member how it ended; `None` while it runs.
    ends: Vec<Option<MemberEnd>>,
    /// The number of processes that have not ended.
    pub(super) running: usize,
    /// Events that no caller has taken yet.
    events: VecDeque<Event>,
    pub(super) captured: Vec<Captured>,
    /// Whether the output thread still runs.
    pub(super) has_output: bool,
}

/// Runs `keeper` in a thread of its own and waits until it reports that the members have started.
/// The thread stays until they have ended.
pub(super) fn new_running(
    keeper: impl FnOnce(&mpsc::Sender<Result<Arc<Shared>, LaunchError>>) + Send + 'static,
) -> Result<Running, LaunchError> {
    let (report, started) = mpsc::channel();
    let keeper = std::thread::Builder::new()
        .name("outlast-launch".to_string())
        .spawn(move || keeper(&report))
        .map_err(|error| LaunchError::System { what: "starting the launcher's thread", error })?;
    let shared = match started.recv() {
        Ok(Ok(shared)) => shared,
        Ok(Err(error)) => {
            let _ = keeper.join();
            return Err(error);
        }
        Err(_) => unreachable!("the keeper reports before it ends"),
    };
    Ok(Running { control: Control { shared }, keeper: Some(keeper) })
}

/// Waits until all members have ended, without using the processor, and records each end. `end_of`
/// returns how a member ended, and whether it had joined.
pub(super) fn keep(shared: &Shared, mut end_of: impl FnMut(MemberId) -> (ExitStatus, bool)) {
    let mut left: Vec<MemberId> = (0..shared.processes.len() as u32).map(MemberId).collect();
    while !left.is_empty() {
        let mut fds: Vec<PollFd<'_>> = left
            .iter()
            .map(|member| PollFd::new(&shared.processes[member.index()].pidfd, PollFlags::IN))
            .collect();
        if poll(&mut fds, None).is_err() {
            // Interrupted, or short of kernel memory for a moment. The loop must not spin.
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let is_over: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let mut is_over = is_over.into_iter();
        left.retain(|&member| {
            if !is_over.next().expect("one answer for each") {
                return true;
            }
            let (status, joined) = end_of(member);
            let (pid, after) = (shared.processes[member.index()].pid, shared.began.elapsed());
            let end = MemberEnd { member, pid, status, after, joined };
            let mut state = shared.lock();
            state.ends[member.index()] = Some(end.clone());
            state.running -= 1;
            state.events.push_back(Event::Ended(end));
            shared.changed.notify_all();
            false
        });
    }
}

impl Control {
    /// The process numbers of the members, in the order of the members, also of ended processes.
    pub fn pids(&self) -> Vec<u32> {
        self.shared.processes.iter().map(|process| process.pid).collect()
    }

    /// How long ago the job was started.
    pub fn elapsed(&self) -> Duration {
        self.shared.began.elapsed()
    }

    /// How many processes have not ended yet.
    pub fn running(&self) -> usize {
        self.shared.lock().running
    }

    /// Sends a signal to a member. Returns whether its process had not ended.
    pub fn signal(&self, member: MemberId, signal: Signal) -> Result<bool, LaunchError> {
        let members = self.shared.processes.len();
        let process = self
            .shared
            .processes
            .get(member.index())
            .ok_or(LaunchError::UnknownMember { member, members })?;
        // Read before the call: after SIGKILL the end may be known when the call returns.
        let was_there = self.shared.lock().ends[member.index()].is_none();
        match pidfd_send_signal(&process.pidfd, signal) {
            Ok(()) => Ok(was_there),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(LaunchError::System {
                what: "sending a signal to a member",
                error: error.into(),
            }),
        }
    }

    /// Kills a member with SIGKILL, without waiting for its end. Returns whether its process had
    /// not ended.
    pub fn kill(&self, member: MemberId) -> Result<bool, LaunchError> {
        self.signal(member, Signal::KILL)
    }

    /// Stops a member with SIGSTOP, until [`Control::resume`].
    pub fn stop(&self, member: MemberId) -> Result<bool, LaunchError> {
        self.signal(member, Signal::STOP)
    }

    /// Lets a stopped member go on.
    pub fn resume(&self, member: MemberId) -> Result<bool, LaunchError> {
        self.signal(member, Signal::CONT)
    }

    /// Sends a signal to all members that have not ended.
    pub fn signal_all(&self, signal: Signal) {
        for index in 0..self.shared.processes.len() {
            // A member that ends before its signal is no error here.
            let _ = self.signal(MemberId(index as u32), signal);
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({} of {})", self.running(), self.control.shared.processes.len())
    }
}

impl std::ops::Deref for Running {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.control
    }
}

impl Running {
    /// A handle for sending signals from other threads.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Returns the events since the last call, without waiting.
    pub fn poll_events(&mut self) -> Vec<Event> {
        self.shared.lock().events.drain(..).collect()
    }

    /// Waits for the next event, at most for `limit`.
    pub fn next_event(&mut self, limit: Duration) -> Option<Event> {
        let (mut state, _) = self
            .shared
            .wait_until(Instant::now().checked_add(limit), |state| !state.events.is_empty());
        state.events.pop_front()
    }

    /// Waits until the process of `member` has ended, at most for `limit`.
    pub fn wait_for(&self, member: MemberId, limit: Duration) -> Option<MemberEnd> {
        let until = Instant::now().checked_add(limit);
        let end = |state: &State| state.ends.get(member.index()).cloned().flatten();
        let (state, _) = self.shared.wait_until(until, |state| end(state).is_some());
        end(&state)
    }

    /// The output of a member so far; empty without [`Output::Capture`](super::Output::Capture).
    pub fn output(&self, member: MemberId) -> Captured {
        self.shared.lock().captured.get(member.index()).cloned().unwrap_or_default()
    }

    /// Waits until all members have ended, at most for `limit` (`Duration::MAX`: without limit).
    ///
    /// Members that run longer are killed; the outcome then has `timed_out` and their backtraces.
    /// With a limit of 0 they are killed at once, without backtraces.
    pub fn wait(&mut self, limit: Duration) -> Outcome {
        let until = Instant::now().checked_add(limit);
        let all_ended = self.shared.wait_until(until, |state| state.running == 0).1;
        let mut backtraces = String::new();
        if !all_ended {
            if !limit.is_zero() {
                backtraces = backtrace::backtraces(&self.pids());
            }
            self.end();
        }
        let output_until = Instant::now().checked_add(OUTPUT_LIMIT);
        let (state, _) = self.shared.wait_until(output_until, |state| !state.has_output);
        let left_running = state.ends.iter().zip(0..).filter(|(end, _)| end.is_none());
        Outcome {
            members: state.ends.iter().flatten().cloned().collect(),
            timed_out: !all_ended,
            left_running: left_running.map(|(_, index)| MemberId(index)).collect(),
            output: state.captured.clone(),
            backtraces,
        }
    }

    /// Kills the processes that still run, and waits for their ends, at most for [`REAP_LIMIT`].
    fn end(&mut self) {
        self.signal_all(Signal::KILL);
        let until = Instant::now().checked_add(REAP_LIMIT);
        let all_ended = self.shared.wait_until(until, |state| state.running == 0).1;
        if let (true, Some(keeper)) = (all_ended, self.keeper.take()) {
            let _ = keeper.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

impl State {
    pub(super) fn new(members: usize) -> State {
        State {
            ends: vec![None; members],
            running: members,
            events: VecDeque::new(),
            captured: vec![Captured::default(); members],
            has_output: false,
        }
    }
}

impl Shared {
    pub(super) fn new(processes: Vec<Process>, began: Instant, state: State) -> Shared {
        Shared { processes, began, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Waits until `ready` returns true. Returns the state, and whether that happened before the
    /// time limit; `None` is no limit.
    fn wait_until<'a>(
        &'a self,
        limit: Option<Instant>,
        mut ready: impl FnMut(&mut State) -> bool,
    ) -> (MutexGuard<'a, State>, bool) {
        let mut state = self.lock();
        loop {
            if ready(&mut state) {
                return (state, true);
            }
            state = match limit.map(|limit| limit.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return (state, false),
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0
                }
                None => self.changed.wait(state).unwrap_or_else(|e| e.into_inner()),
            };
        }
    }
}
