//! A simulated run leaves no memory behind. The test runs in a process of its own, because it
//! counts the memory of the whole process.

use crate::reexecution::{self, is_reexecuted, this_test};
use outlast::engine::{Operation, Port};
use outlast::sim::{self, Link, Options};
use outlast::{Epoch, Job, MemberId, Service, Time};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// The standard allocator, with a count of the bytes in use.
struct Counting;

static IN_USE: AtomicI64 = AtomicI64::new(0);

/// Whether bytes are counted. They are counted only in the process of this test, so that the other
/// tests of the binary do not contend for the counter.
static IS_COUNTING: AtomicBool = AtomicBool::new(false);

fn count(bytes: i64) {
    if IS_COUNTING.load(Ordering::Relaxed) {
        IN_USE.fetch_add(bytes, Ordering::Relaxed);
    }
}

// SAFETY: all calls go to the standard allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`, and `System.alloc` has no other.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller keeps the contract of `dealloc`, and `System.dealloc` has no other.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A service that holds on to the job, as the layers above do.
struct Keeper(#[allow(dead_code)] Job, #[allow(dead_code)] Vec<u8>);

impl Service for Keeper {
    fn run(&self, job: &Job) -> Time {
        let _ = job.receive(Port::Store);
        Time::NEVER
    }
}

fn busy(job: Job) {
    let _ = job.grow(100_000);
    let _ = job.serve(Arc::new(Keeper(job.clone(), vec![1; 1000])));
    let inner = job.clone();
    let further = move || {
        let _ = inner.put(Epoch::ANY, MemberId(0), 0, &[1; 100]);
    };
    let _ = job.spawn("further", Box::new(further));
    for round in 0..10 {
        let target = MemberId(round % 3);
        let _ = job.send(target, Port::Store, &[1; 50]);
        let _ = job.send(target, Port::User, &[1; 50]);
        // Some requests are dropped, some are waited for.
        let pending = job.start(job.epoch(), target, Operation::Get { offset: 8, len: 64 });
        if round % 2 == 0 {
            let _ = job.wait(pending);
        }
    }
    if job.me() != MemberId(1) {
        let _ = job.leave();
    }
}

/// Resident memory, which includes the stacks.
fn resident_pages() -> i64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn memory_stays_level_over_ten_thousand_runs() {
    let test = this_test!();
    if !is_reexecuted(test) {
        let output = reexecution::command(test).output().unwrap();
        let (stdout, stderr) = (output.stdout, output.stderr);
        let text = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
        reexecution::expect_ran(test, &text);
        assert!(output.status.success(), "{text}");
        return;
    }
    let runs = |seeds: std::ops::Range<u64>| {
        for seed in seeds {
            let link = Link::of_seed(seed);
            let options = Options { steps_max: 5000, ..Options::new(3, seed).link(link) };
            sim::run(&options.random_faults(1, 1, 60), busy);
        }
    };
    IS_COUNTING.store(true, Ordering::Relaxed);
    runs(0..2000);
    let before = (IN_USE.load(Ordering::Relaxed), resident_pages());
    runs(2000..10_000);
    let after = (IN_USE.load(Ordering::Relaxed), resident_pages());
    // The pool of stacks may have grown by an entry. A word leaked by each run would be 64,000
    // bytes.
    assert!(after.0 < before.0 + 4096, "{} bytes became {}", before.0, after.0);
    assert!(after.1 < before.1 + 500, "{} pages became {}", before.1, after.1);
}
