//! Waiting: Python's lock is released, and a signal such as that of Ctrl-C ends the wait.
//!
//! Python runs the handlers of signals only between two of its own steps. So a call that waits
//! looks for signals every [`SLICE`]. A call that has a deadline waits in slices. A call that waits
//! for other members without a deadline of its own runs in a thread, and the caller looks for
//! signals until it ends. If a signal ends the wait, the thread goes on in the background until the
//! job's time limit at the latest.

use crate::error::{Code, failure};
use outlast::{Job, Time};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The longest time without a look for signals.
const SLICE: Duration = Duration::from_millis(50);

/// The longest wait, ten years: longer times would overflow clocks.
const LONGEST: f64 = 315_360_000.0;

/// A number of seconds, as Python gives it.
pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    if seconds.is_nan() || seconds < 0.0 {
        return Err(PyValueError::new_err(format!("{seconds} seconds; a time is 0 or more")));
    }
    Ok(Duration::from_secs_f64(seconds.min(LONGEST)))
}

/// Calls `attempt`, which waits until the moment that it is given, until it has a result or the
/// time is over. Returns what the last attempt returned.
pub(crate) fn in_slices<T: Send, E: Send + Into<PyErr>>(
    py: Python<'_>,
    job: &Job,
    limit: Duration,
    attempt: impl Fn(Time) -> Result<Option<T>, E> + Sync,
) -> PyResult<Option<T>> {
    let deadline = job.now().after(limit);
    loop {
        let slice = deadline.min(job.now().after(SLICE));
        let result = py.detach(|| attempt(slice)).map_err(Into::into)?;
        // A signal that came together with the result is Python's next step.
        if result.is_some() || job.now() >= deadline {
            return Ok(result);
        }
        py.check_signals()?;
    }
}

/// Runs a call that waits for other members.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    body: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (give, mut results) = channel();
    std::thread::Builder::new()
        .name("outlast call".into())
        .spawn(move || {
            // After a signal the result is dropped.
            let _ = give.send(body());
        })
        .map_err(|error| failure(Code::Failed, format!("cannot start a thread: {error}")))?;
    loop {
        let received = py.detach(move || {
            let received = results.recv_timeout(SLICE);
            (received, results)
        });
        results = match received {
            (Ok(result), _) => return Ok(result),
            (Err(RecvTimeoutError::Timeout), results) => results,
            (Err(RecvTimeoutError::Disconnected), _) => {
                let message = "the library panicked; its message is on standard error";
                return Err(failure(Code::Failed, message).into());
            }
        };
        py.check_signals()?;
    }
}
