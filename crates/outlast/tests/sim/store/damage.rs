//! Arbitrary bytes in a member's segment: no member crashes, and every call ends. With checksums no
//! value is read that was never written. The fuzz target in `fuzz/` runs
//! [`crate::damaged_segment`], too.

use crate::damaged_segment;
use crate::simulation::seeds;
use outlast::sim::{self, Options as SimOptions, Random};
use outlast::store::{Options, Store, StoreError};
use outlast::{Epoch, Job};

#[test]
fn with_checksums_no_value_is_read_that_was_never_written() {
    let mut corrupt = 0;
    for seed in seeds(200) {
        let mut random = Random::new(seed ^ 0x6675_7a7a);
        let damage = (0..4).flat_map(|_| damaged_segment::damage(&mut random)).collect::<Vec<_>>();
        corrupt += damaged_segment::run(seed, &damage, true);
    }
    assert!(corrupt > 0, "no checksum was ever wrong");
}

#[test]
fn with_arbitrary_bytes_in_a_segment_no_member_crashes_and_calls_end() {
    for seed in seeds(60) {
        damaged_segment::run(
            seed,
            &damaged_segment::damage(&mut Random::new(seed ^ 0x6675_7a7a)),
            false,
        );
    }
}

/// The offset of these bytes in the segment of this member.
fn find(job: &Job, bytes: &[u8]) -> u64 {
    let mut segment = vec![0; job.segment_len(job.me()).expect("a length") as usize];
    job.get(Epoch::ANY, job.me(), 0, &mut segment).expect("read");
    segment.windows(bytes.len()).position(|found| found == bytes).expect("there") as u64
}

fn alone(body: impl Fn(&Job, &Store) + 'static) {
    let report = sim::run(&SimOptions::new(1, 5), move |job: Job| {
        let options =
            Options::new().replicas(1).partitions(1).expected_keys(4).slab_len_max(4 << 10);
        let store = Store::open(&job, options).expect("open");
        body(&job, &store);
        store.close().expect("closed");
        let _ = job.leave();
    });
    report.expect_ok();
}

/// A length that reaches beyond the segment is reported before so much memory is allocated.
#[test]
fn an_impossible_value_length_allocates_no_memory() {
    alone(|job, store| {
        let value = [0xa5; 48];
        store.put(b"key", &value).expect("put");
        let length = find(job, &value) - 16;
        let word = job.load(Epoch::ANY, job.me(), length).expect("read");
        let damaged = word & 0xffff | (3 << 30) << 16;
        job.put(Epoch::ANY, job.me(), length, &damaged.to_ne_bytes()).expect("written");
        let told = store.get(b"key");
        assert!(matches!(told, Err(StoreError::Corrupt { .. })), "{told:?}");
        job.put(Epoch::ANY, job.me(), length, &word.to_ne_bytes()).expect("written");
        assert_eq!(store.get(b"key").expect("read").expect("there").bytes(), value);
    });
}

/// A chain of records that leads back to itself is detected before listing it fills the memory.
#[test]
fn a_loop_of_records_is_detected_soon() {
    alone(|job, store| {
        let key = [0xa5; 1000];
        store.put(&key, b"value").expect("put");
        let node = find(job, &key) - 24;
        job.put(Epoch::ANY, job.me(), node, &node.to_ne_bytes()).expect("written");
        let began = job.now();
        let told = store.keys();
        assert!(matches!(told, Err(StoreError::Corrupt { .. })), "{told:?}");
        let took = job.now().since(began);
        assert!(took < std::time::Duration::from_millis(1), "{took:?}");
        job.put(Epoch::ANY, job.me(), node, &[0; 8]).expect("written");
    });
}
