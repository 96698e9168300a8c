//! A wait for a key as a future (feature `async`), for any executor.
//!
//! A blocking wait sleeps on the bell of its member. A future must not sleep, so the background of
//! the member, which wakes up at every ring of the bell anyway, wakes the tasks of the futures:
//!
//! 1. *enter*: a poll enters the waker of its task into the list of the member.
//! 2. *look*: the poll announces the member as a waiter and reads the key, as a blocking wait does.
//! 3. *arm*: if the key is not there yet, the poll enters when it wants to look again, and rings
//!    the bell of its own member if the background would sleep for longer.
//! 4. *wake*: the background takes the wakers after each ring, and at the earliest time in the
//!    list, and wakes them. Their tasks poll again.
//!
//! No wake-up is lost, since *enter* comes before *look*: a change after *look* rings the bell, and
//! the background finds the waker in the list. A change before *look* is seen by *look*. The time
//! of a future stays in the list while its task is being woken, so that its next *arm* rings no
//! bell.
//!
//! A wait always ends. A death and the closing of the store ring the bell, and the next *look* then
//! returns the outcome or the error. When this member leaves the job, its background drops the
//! service, which wakes all tasks; a waker that is entered later belongs to a poll whose *look*
//! finds that the membership has ended.

use crate::engine::{MemberId, Time};
use crate::job::{Job, Service};
use crate::store::api::store::Store;
use crate::store::api::wait::{Look, WaitOutcome, Wanted};
use crate::store::error::StoreResult;
use crate::store::operation::error::engine_error;
use crate::store::value::Version;
use crate::sync::lock;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// The tasks of a member that wait for keys.
struct Waiters {
    /// Relaxed is enough: a number only has to be unique.
    next: AtomicU64,
    list: Mutex<List>,
}

struct List {
    /// By the numbers of their futures.
    waiters: BTreeMap<u64, Waiter>,
    /// Until when the background sleeps at most, as far as this list is concerned.
    armed: Time,
}

struct Waiter {
    /// `None` while the task is being woken.
    waker: Option<Waker>,
    /// When the future wants to look again, also if the bell does not ring.
    until: Time,
}

impl Waiters {
    fn new() -> Waiters {
        let list = List { waiters: BTreeMap::new(), armed: Time::NEVER };
        Waiters { next: AtomicU64::new(0), list: Mutex::new(list) }
    }

    /// The list of this member, which its background serves.
    fn of(job: &Job) -> StoreResult<Arc<Waiters>> {
        let (waiters, is_new) = job.layer(Waiters::new);
        if is_new {
            job.serve(Arc::new(WakeService(waiters.clone()))).map_err(engine_error)?;
        }
        Ok(waiters)
    }

    /// *enter*.
    fn enter(&self, number: u64, waker: Waker) {
        let mut list = lock(&self.list);
        let none = Waiter { waker: None, until: Time::NEVER };
        let waiter = list.waiters.entry(number).or_insert(none);
        let before = waiter.waker.replace(waker);
        drop(list);
        // Outside the lock, as the destructor of a waker may do anything.
        drop(before);
    }

    /// *arm*. Returns whether the background has to be told.
    fn arm(&self, number: u64, until: Time) -> bool {
        let mut list = lock(&self.list);
        if let Some(waiter) = list.waiters.get_mut(&number) {
            waiter.until = until;
        }
        until < list.armed
    }

    /// *wake*. Returns the earliest time in the list that is after `now`. A time that has come
    /// needs no other run: its task is awake.
    fn wake(&self, now: Time) -> Time {
        let mut list = lock(&self.list);
        let wakers: Vec<Waker> =
            list.waiters.values_mut().filter_map(|waiter| waiter.waker.take()).collect();
        let times = list.waiters.values().map(|waiter| waiter.until);
        let armed = times.filter(|&until| until > now).min().unwrap_or(Time::NEVER);
        list.armed = armed;
        drop(list);
        // Outside the lock, as a waker may poll its future.
        wakers.into_iter().for_each(Waker::wake);
        armed
    }
}

/// The service that wakes the tasks.
struct WakeService(Arc<Waiters>);

impl Service for WakeService {
    fn run(&self, job: &Job) -> Time {
        self.0.wake(job.now())
    }
}

impl Drop for WakeService {
    fn drop(&mut self) {
        self.0.wake(Time::NEVER);
    }
}

/// A wait for a key that a task awaits; made by [`Store::wait_async`].
///
/// It can be dropped at any time. A poll reads the key, and so may take as long as
/// [`Store::get`] does while a member does not answer.
#[must_use = "a future does nothing unless it is polled"]
pub struct WaitFuture {
    store: Store,
    key: Box<[u8]>,
    wanted: Wanted,
    /// The number in the list of the member; `None` before the first poll and after the end.
    entered: Option<(Arc<Waiters>, u64)>,
}

impl fmt::Debug for WaitFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WaitFuture({:?})", String::from_utf8_lossy(&self.key))
    }
}

impl Store {
    /// Returns a future that ends when [`Store::wait`] would return, for any executor. Its output
    /// is a [`WaitOutcome`]. Many tasks of a thread can wait at a time: the background of this
    /// member wakes all of them whenever its bell rings.
    ///
    /// ```
    /// # use outlast::store::{Options, Store, WaitOutcome};
    /// # use std::future::Future;
    /// # use std::pin::pin;
    /// # use std::task::{Context, Poll, Waker};
    /// # use std::time::Duration;
    /// # let job = outlast::join()?;
    /// # let store = Store::open(&job, Options::new())?;
    /// store.put("result", b"42")?;
    /// let deadline = job.now().after(Duration::from_secs(10));
    /// let wait = store.wait_async("result", None, deadline);
    /// # let outcome = match pin!(wait).poll(&mut Context::from_waker(Waker::noop())) {
    /// #     Poll::Ready(outcome) => outcome?,
    /// #     Poll::Pending => unreachable!("the key exists"),
    /// # };
    /// # /*
    /// let outcome = wait.await?;
    /// # */
    /// assert!(matches!(outcome, WaitOutcome::Value(value) if value.bytes() == b"42"));
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_async(
        &self,
        key: impl AsRef<[u8]>,
        newer_than: Option<Version>,
        deadline: Time,
    ) -> WaitFuture {
        let wanted = Wanted { newer_than, deadline, member: None };
        WaitFuture { store: self.clone(), key: key.as_ref().into(), wanted, entered: None }
    }
}

impl WaitFuture {
    /// Ends the wait also when `member` is dead and has not put the key; see
    /// [`Store::wait_or_death`].
    pub fn or_death(mut self, member: MemberId) -> WaitFuture {
        self.wanted.member = Some(member);
        self
    }

    /// *enter*, *look* and *arm*; `None` if the wait has not ended.
    fn look(&mut self, waker: &Waker) -> StoreResult<Option<WaitOutcome>> {
        let job = self.store.job();
        let (waiters, number) = match &self.entered {
            Some((waiters, number)) => (waiters.clone(), *number),
            None => {
                let waiters = Waiters::of(job)?;
                let number = waiters.next.fetch_add(1, Ordering::Relaxed);
                self.entered = Some((waiters.clone(), number));
                (waiters, number)
            }
        };
        waiters.enter(number, waker.clone());
        match self.store.look_for(&self.key, &self.wanted)? {
            Look::Over(outcome) => Ok(Some(outcome)),
            Look::Again(until) => {
                if waiters.arm(number, until) {
                    job.ring(job.me()).map_err(engine_error)?;
                }
                Ok(None)
            }
        }
    }

    fn withdraw(&mut self) {
        if let Some((waiters, number)) = self.entered.take() {
            let waiter = lock(&waiters.list).waiters.remove(&number);
            // Outside the lock, as the destructor of a waker may do anything.
            drop(waiter);
        }
    }
}

impl Future for WaitFuture {
    type Output = StoreResult<WaitOutcome>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = self.look(context.waker());
        match outcome.transpose() {
            None => Poll::Pending,
            Some(outcome) => {
                self.withdraw();
                Poll::Ready(outcome)
            }
        }
    }
}

impl Drop for WaitFuture {
    fn drop(&mut self) {
        self.withdraw();
    }
}
