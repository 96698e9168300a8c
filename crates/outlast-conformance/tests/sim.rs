//! Every scenario on the simulator, over many seeds and both links.

use outlast_conformance::{Scenario, scenarios, sim};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The number of seeds of each scenario on each link. `cargo xtask soak` runs far more.
const SEEDS: u64 = 200;

/// The number of seeds of a scenario: fewer for many members, whose runs have many steps.
fn seeds_of(scenario: &Scenario) -> u64 {
    if scenario.members > 20 { SEEDS / 20 } else { SEEDS }
}

/// Runs all scenarios with a link, on several threads: each run uses a single thread.
fn run_all(link: sim::Link) {
    let scenarios: Vec<&'static Scenario> =
        scenarios().iter().filter(|s| s.runs_on_sim()).collect();
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(2, usize::from).div_ceil(2);
    let failures: Vec<String> = std::thread::scope(|scope| {
        let work = || {
            let mut failures = Vec::new();
            // Relaxed: each number is taken once, and no other memory depends on it.
            while let Some(scenario) = scenarios.get(next.fetch_add(1, Ordering::Relaxed)) {
                let failed = (0..seeds_of(scenario))
                    .find_map(|seed| sim::run(scenario, seed, link, false).err());
                failures.extend(failed.map(|failure| format!("{}: {failure}", scenario.name)));
            }
            failures
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("a run catches its panics"))
            .collect()
    });
    assert!(failures.is_empty(), "{} scenarios failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn all_scenarios_over_memory() {
    run_all(sim::Link::Memory);
}

#[test]
fn all_scenarios_over_a_network() {
    run_all(sim::Link::Network);
}

#[test]
fn a_seed_replays_step_by_step() {
    for name in ["storm", "writer-stopped-mid-put", "sender-dies-mid-message"] {
        let scenario = outlast_conformance::scenario(name).expect("a scenario of that name");
        for link in [sim::Link::Memory, sim::Link::Network] {
            let [first, second] =
                [(); 2].map(|()| sim::run(scenario, 5, link, true).expect("it passes"));
            assert_eq!(first.digest, second.digest, "{name}");
            assert!(first.trace == second.trace && !first.trace.is_empty(), "{name}");
        }
    }
}

/// A failure is reported with the command that repeats the run.
#[test]
fn a_failure_names_its_replay() {
    fn panics(run: &outlast_conformance::Run) {
        assert!(run.id() != 1, "as planned");
        run.finish();
    }
    fn hangs(run: &outlast_conformance::Run) {
        use outlast::Time;
        loop {
            run.park(run.bell(), Time::NEVER);
        }
    }
    fn survives(run: &outlast_conformance::Run) {
        run.begin(0);
        run.finish();
    }
    let base = *outlast_conformance::scenario("lowest-dies").expect("a scenario of that name");
    for (body, expected) in [
        (panics as fn(&outlast_conformance::Run), "as planned"),
        (hangs, "a hang"),
        (survives, "0 members were killed instead of 1"),
    ] {
        let scenario =
            Box::leak(Box::new(Scenario { body, limit: Duration::from_secs(50), ..base }));
        let failure = sim::run(scenario, 3, sim::Link::Network, false).expect_err("it fails");
        assert!(failure.to_string().contains(expected), "{failure}");
        assert!(failure.replay().contains("--scenario lowest-dies --seeds 3..4 --link network"));
    }
}
