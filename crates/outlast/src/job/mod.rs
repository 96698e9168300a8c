//! A process's membership in its job, on whichever engine.
//!
//! [`Job`] is what a program and the layers above the engine hold. It has the calls of the engine
//! (`dispatch.rs` forwards them to the engine below), a list of [`Service`]s that run in the
//! member's background, what each layer keeps once per member, and the bookkeeping of the member's
//! own segment (`segment.rs`). `join.rs` chooses the engine.
//!
//! The layers above (`rma`, `store`, `snapshot`) may call everything here; the engine knows nothing
//! of it. When a member dies, its `Job` dies with its process. A `Job` of a survivor does nothing
//! about a death by itself: each service compares the epoch when it runs, which it does after every
//! change of the view, since that rings the bell.

mod dispatch;
mod join;
mod segment;

pub(crate) use dispatch::Backend;
pub use join::join;

use crate::engine::{Activity, Port, Result, Time, deadline};
use crate::sync::lock;
use segment::Ranges;
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A piece of work that a layer does in the background of its member.
pub trait Service: Send + Sync {
    /// Does a bounded piece of work and returns when it wants to run again at the latest. It also
    /// runs whenever the member's bell has rung.
    fn run(&self, job: &Job) -> Time;

    /// Whether the service has ended: it is then dropped, and does not run again.
    fn is_over(&self) -> bool {
        false
    }

    /// Is called before the member leaves the job, for messages that must be sent before. Waits at
    /// most for the job's time limit.
    fn leaving(&self, job: &Job) {
        let _ = job;
    }
}

/// This process's membership in a job: its engine, and the services that run in its background.
///
/// Cheap to clone; all clones are the same member. Dropping it does nothing: a member ends with
/// [`Job::leave`], or by the end of its process, which the others see as a death.
///
/// A program needs few of the methods: [`Job::me`], [`Job::members`], [`Job::view`],
/// [`Job::fence`], [`Job::leave`]. The one-sided operations, messages and waits are for programs
/// that build their own layer on the [engine](crate::engine), whose module page has the rules that
/// all calls share.
#[derive(Clone)]
pub struct Job {
    inner: Arc<Inner>,
}

struct Inner {
    backend: Backend,
    services: Mutex<Vec<Arc<dyn Service>>>,
    /// Which parts of the own segment are in use.
    ranges: Mutex<Ranges>,
    /// What the layers above keep once per member.
    layers: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

impl Job {
    pub(crate) fn new(backend: Backend) -> Job {
        Job {
            inner: Arc::new(Inner {
                backend,
                services: Mutex::new(Vec::new()),
                ranges: Mutex::default(),
                layers: Mutex::default(),
            }),
        }
    }

    /// Adds a service to the background activity of this member.
    pub fn serve(&self, service: Arc<dyn Service>) -> Result<()> {
        // Refuses a forked child before it takes the lock, which it may find held for ever.
        self.segment_len(self.me())?;
        lock(&self.inner.services).push(service);
        self.ring(self.me())
    }

    /// Ends this member's part in the job, after its services have sent what they must send before.
    /// The others see this member as dead, marked as [`crate::View::left`]; all further calls
    /// return [`crate::Error::Ended`].
    pub fn leave(&self) -> Result<()> {
        let services = match self.inner.services.try_lock() {
            Ok(services) => services.clone(),
            Err(_) => {
                // Refuses a forked child before it takes the lock, which it may find held for ever.
                self.segment_len(self.me())?;
                lock(&self.inner.services).clone()
            }
        };
        services.iter().for_each(|service| service.leaving(self));
        self.leave_engine()
    }

    /// What a layer above keeps once per member, made at the first call, and whether this call made
    /// it. It must not hold on to the job, which holds on to it.
    pub(crate) fn layer<T: Send + Sync + 'static>(
        &self,
        make: impl FnOnce() -> T,
    ) -> (Arc<T>, bool) {
        let mut layers = lock(&self.inner.layers);
        if let Some(found) = layers.iter().find_map(|layer| layer.clone().downcast::<T>().ok()) {
            return (found, false);
        }
        let layer = Arc::new(make());
        layers.push(layer.clone());
        (layer, true)
    }

    /// The background activity: runs the services whenever the bell has rung, until the member
    /// ends.
    pub(crate) fn run_background(&self) {
        while !self.has_ended() {
            let bell = self.bell();
            let services = lock(&self.inner.services).clone();
            let until =
                services.iter().map(|service| service.run(self)).min().unwrap_or(Time::NEVER);
            if services.iter().any(|service| service.is_over()) {
                drop(services);
                self.drop_ended_services();
            }
            self.park_in_background(bell, until);
        }
        self.drop_services();
    }

    /// Lets go of the services that have ended.
    fn drop_ended_services(&self) {
        let mut services = lock(&self.inner.services);
        let (over, going_on) =
            services.drain(..).partition::<Vec<_>, _>(|service| service.is_over());
        *services = going_on;
        drop(services);
        // Outside the lock: the destructor of a service may call the job.
        drop(over);
    }

    /// Lets go of the services. They hold on to the job's layers, and the layers to the job: memory
    /// would never be freed otherwise.
    pub(crate) fn drop_services(&self) {
        let services = std::mem::take(&mut *lock(&self.inner.services));
        // Outside the lock: the destructor of a service may call the job.
        drop(services);
    }

    /// Attends to a port until the returned guard is dropped: the calling activity takes the port's
    /// messages whenever the bell rang, and the background leaves them to it. For the waits of the
    /// layers above.
    pub fn attend(&self, port: Port) -> Attending<'_> {
        self.set_attending(port, true);
        Attending { job: self, port }
    }

    /// A number for the activity that calls, which no other activity of this member has while it
    /// lives.
    pub(crate) fn activity(&self) -> u64 {
        #[cfg(feature = "sim")]
        if let Backend::Sim(sim) = &self.inner.backend {
            return sim.activity();
        }
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        thread_local! {
            // Relaxed: only that the numbers differ matters.
            static NUMBER: u64 = NUMBERS.fetch_add(1, Ordering::Relaxed);
        }
        NUMBER.with(|number| *number)
    }

    /// Until when the calling activity may wait for a condition.
    pub(crate) fn deadline(&self) -> Time {
        deadline::until(self.now(), self.time_limit())
    }

    /// Waits until an activity has ended, or until `until`; returns whether it has ended.
    pub fn wait_for(&self, activity: &Activity, until: Time) -> bool {
        loop {
            let bell = self.bell();
            if activity.is_finished() {
                return true;
            }
            if self.now() >= until || self.has_ended() {
                return false;
            }
            self.park(bell, until);
        }
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job({} of {}, {})", self.me(), self.members(), self.epoch())
    }
}

/// An activity that attends to a port; see [`Job::attend`].
pub struct Attending<'a> {
    job: &'a Job,
    port: Port,
}

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        self.job.set_attending(self.port, false);
    }
}
