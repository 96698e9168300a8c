//! The number of requests of a put over a network, and that it does not grow with the number of
//! members. [`super::round_trips`] counts how often calls wait.

use outlast::sim::{self, Link, Options as SimOptions};
use outlast::store::{Options, Store};
use outlast::{Job, MemberId};

/// The requests of member 0, and the bytes that they write, in a run in which it puts a key `puts`
/// times.
fn requests(members: usize, puts: u64, by_handle: bool) -> (u64, u64) {
    let mut options = SimOptions::new(members, 1).link(Link::Network);
    options.steps_max = 200_000_000;
    let report = sim::run(&options, move |job: Job| {
        let options = Options::new().replicas(3).partitions(8).expected_keys(64);
        let store = Store::open(&job, options).expect("open");
        if job.me() == MemberId(0) {
            let handle = store.handle(b"key").expect("handle");
            for _ in 0..puts {
                match by_handle {
                    true => handle.put(&[1; 64]).expect("put"),
                    false => store.put(b"key", &[1; 64]).expect("put"),
                };
            }
        }
        store.close().expect("close");
        let _ = job.leave();
    });
    let report = report.expect_ok();
    (report.counters[0].operations, report.counters[0].operation_bytes_written)
}

/// docs/performance.md has the figures. The difference of two runs leaves out opening and closing.
#[test]
fn requests_for_a_put_do_not_grow_with_the_members() {
    let (few, more) = (512, 1536);
    for (by_handle, most) in [(true, 24.0), (false, 24.0)] {
        let mut first = None;
        for members in [8, 32, 128] {
            let (before, after) =
                (requests(members, few, by_handle), requests(members, more, by_handle));
            let each = |few_count: u64, more_count: u64| {
                (more_count - few_count) as f64 / (more - few) as f64
            };
            let (count, bytes) = (each(before.0, after.0), each(before.1, after.1));
            println!(
                "{members} members, by handle {by_handle}: \
                 {count:.1} requests, {bytes:.0} bytes written"
            );
            assert!(count < most, "{count} requests for a put with {members} members");
            let (first_count, first_bytes) = *first.get_or_insert((count, bytes));
            assert!(
                count < first_count * 1.5 + 1.0,
                "{count} requests with {members}, {first_count} with 8"
            );
            assert!(
                bytes < first_bytes * 1.1,
                "{bytes} bytes with {members}, {first_bytes} with 8"
            );
        }
    }
}
