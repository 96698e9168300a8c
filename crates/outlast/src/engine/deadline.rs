//! Deadlines: how long the calls of an activity may wait.
//!
//! A call of a layer above may make many requests, and wait for several conditions. All of them
//! share the deadline of the call, which travels with the activity that makes the call: every wait
//! of an engine, and every loop that parks, asks this module how long it may last. So no path of a
//! call can forget its deadline, and a call inside another call has the deadline of the outer call.
//!
//! | the activity is | a wait for a member lasts until |
//! |---|---|
//! | in no call | the time limit, from the beginning of the wait |
//! | in a call ([`Deadline::call`], [`Deadline::call_until`]) | the deadline of the call |
//! | in a closure of the program, inside a call ([`Deadline::program`]) | as in no call; a call in the closure shares the deadline of the outer call, unless that is over |
//! | in the background ([`Deadline::background`]) | [`background_wait`], from the beginning of the wait |
//!
//! *The beginning.* The time limit of a call is counted from its first wait: a call that waits for
//! nothing reads no clock.
//!
//! *The slack.* When its deadline is over, a call still has to give back what it has taken: blocks,
//! locks, its place in a queue. It may wait for members that have answered so far, for [`slack`]
//! beyond the deadline and not longer. A request to a member that has not answered in time is sent
//! and not waited for. So a call returns within its limit and the slack.
//!
//! *The background* reaches for many things, each of which it can do later. A member that did not
//! answer a request is *late*: for the rest of the [`Deadline::background`], no further request is
//! sent to it.
//!
//! An activity is a thread, or a coroutine of the simulator, which exchanges the deadlines whenever
//! it resumes a coroutine ([`Activity::exchange`]).

use super::{Error, MEMBERS_MAX, MemberId, MemberSet, Time, thread};
use std::cell::RefCell;
use std::time::Duration;

/// How many late members a call remembers. A further member takes the place of the first, which
/// then costs the slack again. The background remembers all late members.
const LATE_MAX: usize = 4;

/// How long a call may wait beyond its deadline, for members that have answered so far: an eighth
/// of the time limit, at most a second.
pub(crate) fn slack(limit: Duration) -> Duration {
    (limit / 8).min(Duration::from_secs(1))
}

/// How long the background waits for the answer to a request: a sixteenth of the time limit, but
/// not so short that a busy member, or a large value, is taken for a stopped member.
pub(crate) fn background_wait(limit: Duration) -> Duration {
    (limit / 16).max(Duration::from_millis(20)).min(limit)
}

/// What an activity is doing, as far as its waits are concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Nothing,
    Call,
    Program,
    Background,
}

/// The deadline of an activity. It is small, since each call on the slow path copies it.
#[derive(Clone, Copy)]
pub(crate) struct Current {
    doing: Doing,
    /// The deadline; [`UNKNOWN`] before the first wait.
    until: Time,
    late: Late,
}

/// The members that did not answer a request in time: their numbers plus 1, the last first.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Late([u16; LATE_MAX]);
const _: () = assert!(MEMBERS_MAX < u16::MAX as usize);

/// The deadline of a call that has not waited yet.
const UNKNOWN: Time = Time(0);

thread_local! {
    /// The members that did not answer a request of the background in time. Apart from the
    /// deadline, which each call copies. No borrow lasts beyond a function of this module.
    static LATE_IN_BACKGROUND: RefCell<MemberSet> = RefCell::default();
}

/// The deadline of the calling activity.
#[inline(always)]
fn current() -> Current {
    thread::with(|state| state.deadline.get())
}

#[inline(always)]
fn set_current(current: Current) {
    thread::with(|state| state.deadline.set(current));
}

impl Current {
    /// The deadline of an activity that is in no call.
    pub(super) const NOTHING: Current =
        Current { doing: Doing::Nothing, until: UNKNOWN, late: Late::NONE };

    /// Puts this deadline in the place of the thread's deadline, which it returns.
    fn exchange(self) -> Current {
        thread::with(|state| state.deadline.replace(self))
    }

    /// Whether `member` did not answer a request of this activity in time.
    fn is_late(&self, member: MemberId) -> bool {
        match self.doing {
            Doing::Background => LATE_IN_BACKGROUND.with_borrow(|late| late.contains(member)),
            Doing::Nothing | Doing::Call | Doing::Program => self.late.contains(member),
        }
    }
}

/// Everything that this module knows of an activity.
#[cfg(feature = "sim")]
#[derive(Clone)]
pub(crate) struct Activity {
    current: Current,
    late_in_background: MemberSet,
}

#[cfg(feature = "sim")]
impl Default for Activity {
    /// An activity that is in no call.
    fn default() -> Activity {
        Activity { current: Current::NOTHING, late_in_background: MemberSet::new() }
    }
}

#[cfg(feature = "sim")]
impl Activity {
    /// Puts this activity in the place of the thread's activity, which it returns.
    pub(crate) fn exchange(self) -> Activity {
        Activity {
            current: self.current.exchange(),
            late_in_background: LATE_IN_BACKGROUND.replace(self.late_in_background),
        }
    }
}

impl Late {
    const NONE: Late = Late([0; LATE_MAX]);

    fn contains(self, member: MemberId) -> bool {
        self.0.iter().any(|&number| u32::from(number) == member.0 + 1)
    }

    fn insert(&mut self, member: MemberId) {
        if !self.contains(member) {
            self.0.rotate_right(1);
            self.0[0] = member.0 as u16 + 1;
        }
    }
}

/// The deadline of the calling activity, from its making until it is dropped.
#[must_use = "the deadline holds until it is dropped"]
pub(crate) struct Deadline(Outer);

/// What becomes of the outer deadline when this deadline is dropped.
enum Outer {
    /// This deadline is the outer deadline.
    Same,
    /// The outer deadline goes on with what this call has waited for.
    Shared(Doing),
    /// It comes back as it was.
    Apart(Current),
}

/// The deadline of work in the background. A type of its own: calls have no set of members to drop.
#[must_use = "the deadline holds until it is dropped"]
pub(crate) struct BackgroundDeadline {
    _deadline: Deadline,
    /// The members that were late in the background before.
    late_before: MemberSet,
}

impl Deadline {
    /// Begins a call, whose time limit is counted from its first wait. Inside another call it is a
    /// part of that call.
    #[inline]
    pub(crate) fn call(now: impl FnOnce() -> Time) -> Deadline {
        let previous = current();
        match previous.doing {
            Doing::Call | Doing::Background => Deadline(Outer::Same),
            Doing::Program if previous.until == UNKNOWN || now() < previous.until => {
                set_current(Current { doing: Doing::Call, ..previous });
                Deadline(Outer::Shared(previous.doing))
            }
            Doing::Nothing => {
                set_current(Current { doing: Doing::Call, ..previous });
                Deadline(Outer::Apart(Current::NOTHING))
            }
            Doing::Program => {
                set_current(Current { doing: Doing::Call, ..Current::NOTHING });
                Deadline(Outer::Apart(previous))
            }
        }
    }

    /// Begins a call that ends at `until`, or at the deadline of the outer call if that is earlier.
    /// A single wait of the call lasts no longer than the time limit.
    pub(crate) fn call_until(until: Time) -> Deadline {
        let previous = current();
        let has_outer = previous.doing == Doing::Call && previous.until != UNKNOWN;
        let until = if has_outer { previous.until.min(until) } else { until };
        let until = until.max(Time(UNKNOWN.0 + 1));
        set_current(Current { doing: Doing::Call, until, ..Current::NOTHING });
        Deadline(Outer::Apart(previous))
    }

    /// Runs a closure of the program, inside a call. If the closure has taken so long that the
    /// deadline is over, although all members have answered, the time limit is counted anew.
    pub(crate) fn program<T>(now: impl FnOnce() -> Time, body: impl FnOnce() -> T) -> T {
        let previous = current();
        set_current(Current { doing: Doing::Program, ..previous });
        let program = Deadline(Outer::Shared(previous.doing));
        let result = body();
        drop(program);
        let current = current();
        if current.until != UNKNOWN && current.late == Late::NONE && now() >= current.until {
            restart();
        }
        result
    }

    /// Begins work in the background. `late` has members that are late already.
    pub(crate) fn background(late: impl Iterator<Item = MemberId>) -> BackgroundDeadline {
        let mut members = MemberSet::new();
        late.for_each(|member| _ = members.insert(member));
        let current = Current { doing: Doing::Background, ..Current::NOTHING };
        BackgroundDeadline {
            _deadline: Deadline(Outer::Apart(current.exchange())),
            late_before: LATE_IN_BACKGROUND.replace(members),
        }
    }

    /// Begins work of the program in the background: its calls have their own deadlines.
    pub(crate) fn listener() -> Deadline {
        Deadline(Outer::Apart(Current::NOTHING.exchange()))
    }

    /// Ends a part of a call whose other part, a call of its own, follows at once: the fast path
    /// has waited, and the slow path goes on with its deadline.
    #[cold]
    pub(crate) fn carry_over(self) {
        let current = current();
        let is_outermost = match &self.0 {
            Outer::Apart(outer) => outer.doing == Doing::Nothing,
            Outer::Same | Outer::Shared(_) => false,
        };
        drop(self);
        if is_outermost {
            set_current(Current { doing: Doing::Nothing, ..current });
        }
    }
}

impl BackgroundDeadline {
    /// Begins work in the background whose waits have the whole time limit: what a mutant does.
    pub(crate) fn unbounded() -> BackgroundDeadline {
        let late_before = LATE_IN_BACKGROUND.take();
        BackgroundDeadline { _deadline: Deadline::listener(), late_before }
    }

    /// The members that are late in the background.
    pub(crate) fn late(&self) -> MemberSet {
        LATE_IN_BACKGROUND.with_borrow(MemberSet::clone)
    }
}

impl Drop for Deadline {
    #[inline]
    fn drop(&mut self) {
        match self.0 {
            Outer::Same => {}
            Outer::Shared(doing) => set_current(Current { doing, ..current() }),
            Outer::Apart(previous) => set_current(previous),
        }
    }
}

impl Drop for BackgroundDeadline {
    fn drop(&mut self) {
        LATE_IN_BACKGROUND.set(std::mem::take(&mut self.late_before));
    }
}

/// Counts the time limit of a call anew: a call that works through many records has made a step,
/// and the members that it needs have answered.
pub(crate) fn restart() {
    let current = current();
    if current.doing == Doing::Call {
        set_current(Current { until: UNKNOWN, ..current });
    }
}

/// Whether the calling activity is at the work of a background, and in no closure or listener of
/// the program.
pub(crate) fn is_background() -> bool {
    current().doing == Doing::Background
}

/// Until when the calling activity may wait for a condition that is not the answer of a member.
pub(crate) fn until(now: Time, limit: Duration) -> Time {
    let current = current();
    match current.doing {
        Doing::Nothing | Doing::Program => now.after(limit),
        Doing::Background => now.after(background_wait(limit)),
        Doing::Call if current.until != UNKNOWN => current.until.min(now.after(limit)),
        Doing::Call => {
            let until = now.after(limit);
            set_current(Current { until, ..current });
            until
        }
    }
}

/// Until when the calling activity may wait for an answer of `member`.
pub(crate) fn until_answer(now: Time, limit: Duration, member: MemberId) -> Time {
    let until = until(now, limit);
    let current = current();
    match current.doing {
        Doing::Call if now >= until && !current.is_late(member) => until.after(slack(limit)),
        Doing::Background if current.is_late(member) => now,
        _ => until,
    }
}

/// Records that `member` did not answer in time, and returns the error that says so.
#[cold]
pub(crate) fn timeout(member: MemberId, limit: Duration) -> Error {
    let mut current = current();
    match current.doing {
        Doing::Nothing => {}
        Doing::Background => {
            LATE_IN_BACKGROUND.with_borrow_mut(|late| late.insert(member));
        }
        Doing::Call | Doing::Program => {
            current.late.insert(member);
            set_current(current);
        }
    }
    Error::Timeout { member, limit }
}

/// An error if the background must not send a request to `member`, which is late. The limit of the
/// error is zero: no request was sent.
pub(crate) fn check_late(member: MemberId) -> Result<(), Error> {
    let current = current();
    match current.doing == Doing::Background && current.is_late(member) {
        true => Err(Error::Timeout { member, limit: Duration::ZERO }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(8);
    const ONE: MemberId = MemberId(1);
    const TWO: MemberId = MemberId(2);

    fn at(seconds: u64) -> Time {
        Time(0).after(Duration::from_secs(seconds))
    }

    #[test]
    fn the_waits_of_a_call_share_its_deadline() {
        assert_eq!(until(at(5), LIMIT), at(13), "outside of a call");
        let call = Deadline::call(|| at(5));
        assert_eq!(until(at(10), LIMIT), at(18), "counted from the first wait");
        {
            let _inner = Deadline::call(|| at(12));
            assert_eq!(until(at(13), LIMIT), at(18), "a call inside it");
            let _sooner = Deadline::call_until(at(15));
            assert_eq!(until(at(14), LIMIT), at(15), "a call with a deadline of its own");
        }
        assert_eq!(until(at(16), LIMIT), at(18));
        assert_eq!(until_answer(at(18), LIMIT, ONE), at(19), "the slack");
        let _ = timeout(ONE, LIMIT);
        assert_eq!(until_answer(at(18), LIMIT, ONE), at(18), "it is late");
        assert_eq!(until_answer(at(18), LIMIT, TWO), at(19), "the other member is not");
        assert_eq!(until_answer(at(30), LIMIT, TWO), at(19));
        drop(call);
        assert_eq!(until(at(30), LIMIT), at(38), "the next call");
        let part = Deadline::call(|| at(31));
        assert_eq!(until(at(31), LIMIT), at(39));
        part.carry_over();
        let rest = Deadline::call(|| at(33));
        assert_eq!(until(at(33), LIMIT), at(39), "the rest of the call");
        drop(rest);
        let _call = Deadline::call(|| at(31));
        assert_eq!(until(at(33), LIMIT), at(41), "a carried deadline holds for a single call");
    }

    /// A closure that takes long does not use up the time of the calls in it, and a call in it that
    /// has waited has used up the time of the outer call.
    #[test]
    fn the_time_of_a_closure_is_not_a_wait() {
        let _call = Deadline::call(|| at(0));
        let end = |seconds| move || at(seconds);
        Deadline::program(end(2), || {
            assert_eq!(until(at(1), LIMIT), at(9));
            let _inner = Deadline::call(|| at(2));
            assert_eq!(until(at(2), LIMIT), at(10));
        });
        assert_eq!(until(at(3), LIMIT), at(10), "shared with the call in the closure");
        Deadline::program(end(60), || {
            let inner = Deadline::call(|| at(50));
            assert_eq!(until(at(50), LIMIT), at(58), "the closure has taken long");
            drop(inner);
            let _inner = Deadline::call(|| at(9));
            assert_eq!(until(at(9), LIMIT), at(10));
        });
        assert_eq!(until(at(60), LIMIT), at(68), "counted anew");
        Deadline::program(end(80), || timeout(ONE, LIMIT));
        assert_eq!(until(at(80), LIMIT), at(68), "a member is late");
    }

    #[test]
    fn the_background_waits_for_a_late_member_once() {
        let background = Deadline::background([TWO].into_iter());
        assert_eq!(until_answer(at(1), LIMIT, ONE), at(1).after(LIMIT / 16));
        assert_eq!(until_answer(at(1), LIMIT, TWO), at(1));
        let _ = timeout(ONE, LIMIT);
        assert_eq!(until_answer(at(2), LIMIT, ONE), at(2));
        assert_eq!(background.late().iter().collect::<Vec<_>>(), [ONE, TWO]);
        assert!(is_background());
        {
            let _listener = Deadline::listener();
            let _call = Deadline::call(|| at(3));
            assert_eq!(until_answer(at(3), LIMIT, ONE), at(11));
            assert!(!is_background());
        }
        let _part = Deadline::call(|| at(4));
        assert_eq!(until_answer(at(4), LIMIT, ONE), at(4), "a call of the background itself");
    }

    /// However many members are stopped, the background waits for each of them once.
    #[test]
    fn the_background_remembers_all_late_members() {
        let background = Deadline::background(std::iter::empty());
        let members: Vec<MemberId> = (0..20).map(MemberId).collect();
        for &member in &members {
            assert_eq!(until_answer(at(1), LIMIT, member), at(1).after(LIMIT / 16), "{member}");
            let _ = timeout(member, LIMIT);
        }
        members.iter().for_each(|&member| assert_eq!(until_answer(at(2), LIMIT, member), at(2)));
        assert_eq!(background.late().iter().collect::<Vec<_>>(), members);
        {
            let inner = Deadline::background([ONE].into_iter());
            assert_eq!(inner.late().len(), 1);
        }
        assert_eq!(background.late().len(), members.len());
    }
}
