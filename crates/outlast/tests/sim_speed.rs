//! How many engine steps a second the simulator takes. Not a test of time: it only prints.
//!
//! `cargo test --release -p outlast --features sim --test sim_speed -- --ignored --nocapture`
#![cfg(feature = "sim")]

use outlast::engine::sim::{self, Cost, Link, Options};
use outlast::{Engine, Epoch, Job, MemberId, Time};

/// How long this thread has had a processor, in seconds: other work on the machine does not count.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// A mix of what a store does: puts of 64 bytes, gets, compare-and-swaps, and looks at the epoch.
fn mixed(job: Job, rounds: usize) {
    job.grow(4096).unwrap();
    let members = job.members() as u32;
    for round in 0..rounds as u32 {
        let target = MemberId((job.me().0 + round) % members);
        let mut buffer = [0; 64];
        let _ = job.put(Epoch::ANY, target, 64 * u64::from(round % 16), &[round as u8; 64]);
        let _ = job.get(Epoch::ANY, target, 0, &mut buffer);
        let _ = job.compare_and_swap(job.epoch(), target, 2048, 0, 0);
    }
    // Nobody leaves before all are done, so that the measured part has no deaths unless they are planned.
    let _ = job.fetch_add(Epoch::ANY, MemberId(0), 4088, 1);
    while job.epoch() == Epoch(0)
        && job.load(Epoch::ANY, MemberId(0), 4088).is_ok_and(|done| done < u64::from(members))
    {
        let bell = job.bell();
        job.park(bell, Time(job.now().0 + 10_000_000));
    }
    job.leave().unwrap();
}

#[test]
#[ignore = "prints a speed; run it in a release build"]
fn steps_per_second() {
    let cases = [
        ("mixed, memory link", Link::Memory, 8, 40_000, None),
        ("mixed, memory link", Link::Memory, 64, 5_000, None),
        ("mixed, memory link", Link::Memory, 1024, 300, None),
        ("mixed, memory link", Link::Memory, 4096, 50, None),
        ("mixed, memory link, cost model", Link::Memory, 8, 40_000, Some(Cost::default())),
        ("mixed, network link", Link::Network, 8, 40_000, None),
        ("mixed, network link", Link::Network, 1024, 200, None),
    ];
    for (name, link, members, rounds, cost) in cases {
        let options = Options { cost, steps_max: u64::MAX, ..Options::new(members, 1).link(link) };
        let begin = processor_seconds();
        let report = sim::run(&options, move |job| mixed(job, rounds)).expect_ok();
        let seconds = processor_seconds() - begin;
        println!(
            "{name}, {members} members: {:.2} million steps/s ({} steps in {seconds:.2} s)",
            report.steps as f64 / seconds / 1e6,
            report.steps
        );
    }
    let begin = processor_seconds();
    let mut steps = 0;
    for seed in 0..10_000 {
        let options = Options::new(4, seed).random_faults(1, 1, 50);
        steps += sim::run(&options, |job| mixed(job, 5)).steps;
    }
    let seconds = processor_seconds() - begin;
    println!(
        "short runs of 4 members with a kill and a stop: {:.0} runs/s, {:.2} million steps/s",
        10_000.0 / seconds,
        steps as f64 / seconds / 1e6
    );
}
