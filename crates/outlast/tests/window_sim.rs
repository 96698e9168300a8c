//! Windows under the simulator, over many seeds (`OUTLAST_SEEDS` sets how many, `OUTLAST_SEED_FIRST` the first one) and
//! both links. A failing run prints what replays it.

#![cfg(feature = "sim")]

mod window_scenarios;

use outlast::engine::sim::{self, Link, Options};

use outlast::Job;

use std::time::Duration;
use window_scenarios::{MEMBERS, SCENARIOS};

/// How many seeds to run where a test would run `default` many.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let read = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = read("OUTLAST_SEED_FIRST").unwrap_or(0);
    first..first + read("OUTLAST_SEEDS").unwrap_or(default)
}

/// Runs one simulation; a panic, a deadlock or a call without end in it is a failure, with what replays it.
#[track_caller]
fn simulate(test: &str, options: &Options, body: impl Fn(Job) + 'static) -> sim::Report {
    let report = sim::run(options, body);
    if !report.is_ok() {
        let hung: Vec<String> = report.hung.iter().map(ToString::to_string).collect();
        panic!(
            "seed {} on {:?}: {:?} {:#?} {hung:#?}\nreplay: OUTLAST_SEED_FIRST={} OUTLAST_SEEDS=1 cargo test -p outlast --features sim,faults --test window_sim -- --exact {test}",
            options.seed, options.link, report.outcome, report.panics, options.seed,
        );
    }
    report
}

/// Even seeds run over memory, odd ones over a network, with notices that come soon or at very different times.
fn options_for(seed: u64) -> Options {
    let mut options = Options::new(MEMBERS, seed);
    options.link = if seed % 2 == 0 { Link::Memory } else { Link::Network };
    if seed % 4 < 2 {
        options.detection = Duration::from_nanos(100)..=Duration::from_millis(2);
    }
    options
}

/// All scenarios over all seeds. A test each, so that a failure names its scenario.
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                let name = stringify!($name);
                let (_, run) = SCENARIOS.iter().find(|(other, _)| *other == name).expect("a scenario");
                for seed in seeds(60) {
                    simulate(name, &options_for(seed), |job| run(&job));
                }
            }
        )*

        #[test]
        fn every_scenario_is_a_test() {
            let names = [$(stringify!($name)),*];
            assert_eq!(names.len(), SCENARIOS.len());
        }
    };
}

scenarios!(
    operations_do_what_they_say,
    bad_input_changes_nothing,
    members_may_show_nothing,
    a_failed_creation_fails_everywhere,
    a_dead_exclusive_holder_is_taken_over_once,
    a_holder_that_dies_while_others_wait,
    a_dead_shared_holder_is_told_of,
    a_dead_holder_is_told_to_all_who_share,
    who_gives_up_leaves_the_dead_to_the_next,
    a_forced_holder_wakes_late,
    a_forced_shared_holder_wakes_late,
    a_lock_times_out_and_names_its_holder,
    an_interrupt_ends_a_lock_wait,
    a_blocking_put_is_there,
    a_target_dies_under_everything,
    a_target_dies_while_its_lock_is_waited_for,
    a_revoke_releases_those_who_wait,
    a_revoked_window_goes_on_after_a_shrink,
    a_window_shrinks_and_its_communicator_does_not,
    an_open_window_needs_no_lock,
    a_locked_window_is_not_freed,
    a_lock_of_the_dead_does_not_keep_a_window,
    others_read_while_a_member_grows,
    attached_ranges_come_and_go,
    failures_are_told_to_some,
    many_share_and_one_excludes,
);
