//! The requests of a logged put in simulated jobs over a network.

use super::options;
use outlast::Job;
use outlast::protect::{self, Interval, ProtectError};
use outlast::sim::{self, Link, Options as SimOptions};
use outlast::store::{Options, Store};

/// The size of a put.
pub(super) const SIZE: usize = 64;
/// How many puts an epoch has.
const PUTS: u64 = 512;

/// The requests that a put of a logged seat sends: those of a seat that makes an epoch of puts,
/// without those of an epoch that has none.
pub(super) fn requests_of_a_logged_put(seats: usize) -> f64 {
    let with = operations(seats, PUTS);
    let without = operations(seats, 0);
    with.saturating_sub(without) as f64 / PUTS as f64
}

/// The requests of the first member, which makes so many puts.
fn operations(seats: usize, puts: u64) -> u64 {
    let mut simulated = SimOptions::new(seats, 1).link(Link::Network);
    simulated.steps_max = u64::MAX;
    let report = sim::run(&simulated, move |job: Job| {
        let records = Options::new().replicas(2).partitions(8).expected_keys(256);
        let store = Store::open(&job, records).expect("a simulated store opens");
        let protect = options(job.members(), 4096).every(Interval::Always).piece(1024);
        let protect = protect.logged(256 << 10);
        let ended = protect::run(&store, protect, move |seat| {
            let target = seat.seats() / 2;
            for number in 0..if seat.number() == 0 { puts } else { 0 } {
                seat.put(target, number % 32 * SIZE as u64, &[7; SIZE])?;
            }
            seat.barrier()?;
            Ok::<(), ProtectError>(())
        });
        ended.expect("the seats end");
        store.close().expect("a simulated store closes");
        let _ = job.leave();
    });
    report.expect_ok().counters[0].operations
}
