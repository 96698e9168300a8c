//! When the calls of a caller begin: each when the last has returned (closed loop), or at a fixed
//! rate.
//!
//! At a fixed rate the time of a call counts from the moment at which it was due, also if the call
//! before it returned later. So a pause delays all calls that were due meanwhile, and each of them
//! is counted, as users would wait for each of them.

use std::time::{Duration, Instant};

/// The beginnings of the calls of a caller.
pub(super) struct Pace {
    due: Instant,
    end: Instant,
    period: Option<Duration>,
}

/// A sleep may end so much later than it should. The rest of the time is waited for without sleep.
const SLEEP_SLACK: Duration = Duration::from_micros(300);

impl Pace {
    pub(super) fn new(begin: Instant, length: Duration, period: Option<Duration>) -> Pace {
        Pace { due: begin, end: begin + length, period }
    }

    /// Waits for the next call. Returns the moment from which its time counts, or `None` at the
    /// end.
    pub(super) fn next(&mut self) -> Option<Instant> {
        let Some(period) = self.period else {
            let now = Instant::now();
            if now < self.due {
                wait_until(self.due);
                return self.next();
            }
            return (now < self.end).then_some(now);
        };
        let due = self.due;
        if due >= self.end {
            return None;
        }
        self.due += period;
        wait_until(due);
        Some(due)
    }
}

/// Waits until a moment, to the microsecond if the machine has a core for it.
pub(super) fn wait_until(moment: Instant) {
    loop {
        let left = moment.saturating_duration_since(Instant::now());
        match left {
            Duration::ZERO => return,
            left if left > SLEEP_SLACK => std::thread::sleep(left - SLEEP_SLACK),
            _ => std::thread::yield_now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that takes ten periods makes the nine calls after it late by nine to one periods.
    #[test]
    fn a_pause_counts_for_every_call_that_was_due_meanwhile() {
        let (begin, period) = (Instant::now(), Duration::from_millis(5));
        let mut pace = Pace::new(begin, 20 * period, Some(period));
        let mut late = Vec::new();
        let mut number = 0;
        while let Some(due) = pace.next() {
            assert_eq!(due, begin + number * period);
            if number == 2 {
                std::thread::sleep(10 * period);
            }
            late.push(due.elapsed());
            number += 1;
        }
        assert_eq!(number, 20);
        for (number, late) in late.iter().enumerate().skip(2).take(9) {
            assert!(*late >= period * (12 - number as u32), "call {number} counts {late:?}");
        }
    }

    #[test]
    fn a_closed_loop_begins_when_the_last_call_has_returned() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin, Duration::from_millis(20), None);
        let first = pace.next().expect("it has begun");
        std::thread::sleep(Duration::from_millis(5));
        let second = pace.next().expect("it goes on");
        assert!(second >= first + Duration::from_millis(5));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(pace.next(), None);
    }
}
