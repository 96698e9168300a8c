//! What the tests under the simulator share: seeds, how a failing run is replayed, and waiting.
//!
//! `OUTLAST_SEEDS` sets how many seeds each test runs, `OUTLAST_SEED_FIRST` the first seed.

use outlast::Job;
use outlast::sim::{self, Options};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Once;
use std::time::Duration;

/// The seeds to run: `default` many from 0 on, or as the environment variables say.
pub(crate) fn seeds(default: u64) -> Range<u64> {
    seeds_in(0..default)
}

/// The seeds to run: these, or as the environment variables say.
pub(crate) fn seeds_in(default: Range<u64>) -> Range<u64> {
    part_of_seeds(1, default)
}

/// The seeds to run in a test with long runs: these, or `1 / part` of the number of seeds that the
/// environment variables ask for.
pub(crate) fn part_of_seeds(part: u64, default: Range<u64>) -> Range<u64> {
    let read = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let first = read("OUTLAST_SEED_FIRST").unwrap_or(default.start);
    let count = read("OUTLAST_SEEDS").map(|count| count.div_ceil(part));
    if let Some(count) = count {
        // The log of a soak shows by these lines how many runs it made. A test that sweeps over
        // steps prints a line for each step.
        println!("{}: {count} runs, seeds {first}..{}", test_name(), first + count);
    }
    first..first + count.unwrap_or(default.end - default.start)
}

/// The test that runs, as the test harness names its thread.
pub(crate) fn test_name() -> String {
    std::thread::current().name().unwrap_or("a test").to_string()
}

/// The command that runs a seed of a test again.
pub(crate) fn replay(test: &str, seed: u64) -> String {
    format!(
        "replay: OUTLAST_SEED_FIRST={seed} OUTLAST_SEEDS=1 \
         cargo test -p outlast --features sim,faults --test sim -- --exact {test}"
    )
}

/// The command that runs a seed of a test again and prints each engine step, for tests that read
/// `OUTLAST_TRACE`.
pub(crate) fn replay_with_trace(test: &str, seed: u64) -> String {
    replay(test, seed).replace("OUTLAST_SEED_FIRST", "OUTLAST_TRACE=1 OUTLAST_SEED_FIRST")
        + " --nocapture"
}

/// Runs a simulation in which nothing may panic, hang or take too many steps.
#[track_caller]
pub(crate) fn run_with(mut options: Options, body: impl Fn(Job) + 'static) {
    options.steps_max = 20_000_000;
    sim::run(&options, body).expect_ok();
}

/// Sleeps until the condition holds, and fails with `what` if it does not hold within two minutes
/// of simulated time.
#[track_caller]
pub(crate) fn nap(job: &Job, what: &str, until: impl Fn() -> bool) {
    let deadline = job.now().after(Duration::from_secs(120));
    while !until() {
        assert!(job.now() < deadline, "{} waited in vain for {what}", job.me());
        job.sleep(Duration::from_millis(1));
    }
}

/// Runs `body` without printing the panics of this thread, which the test expects. The panics of
/// tests in other threads are printed as ever.
pub(crate) fn without_panic_messages<T>(body: impl FnOnce() -> T) -> T {
    thread_local! {
        static IS_SILENT: Cell<bool> = const { Cell::new(false) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_SILENT.get() {
                print(info);
            }
        }));
    });
    /// Ends the silence, also if the body is unwound.
    struct Silence;
    impl Drop for Silence {
        fn drop(&mut self) {
            IS_SILENT.set(false);
        }
    }
    IS_SILENT.set(true);
    let _silence = Silence;
    body()
}
