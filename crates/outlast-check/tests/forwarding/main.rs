//! A model checker of the rule by which a primary forwards writes to the other replicas
//! (docs/protocol/forwarding.md), in every order in which its steps can come.
//!
//! `rule.rs` has the rule as a machine, `scenarios.rs` the members, their calls and deaths,
//! `monitor.rs` judges what the calls return, and `search.rs` looks at all states. The rule must
//! hold in every state of every scenario, and each mutant, which leaves a part of the rule out,
//! must be noticed. The larger scenarios run if `OUTLAST_FORWARDING_STATES` says how many states to
//! look at in each of them:
//!
//! ```text
//! OUTLAST_FORWARDING_STATES=12000000 cargo test --release -p outlast-check --test forwarding \
//!     -- --nocapture the_rule
//! ```

mod monitor;
mod rule;
mod scenarios;
mod search;

use rule::{Model, Mutant, Scenario};

/// Far more states than a scenario of the gate has.
const STATES_MAX: usize = 1_000_000;

fn scenario(name: &str) -> Scenario {
    let is_named = |scenario: &Scenario| scenario.name == name;
    let mut all = scenarios::small().into_iter().chain(scenarios::large());
    all.find(is_named).expect("a scenario of this name")
}

/// Looks at the states of the rule, and reports the steps to a violation.
fn expect_holds(scenario: &Scenario, mutant: Option<Mutant>, states_max: usize) {
    let report = search::explore(&Model { scenario, mutant, judges_states: true }, states_max);
    println!(
        "{:<40} {:>9} states, {:>6} ends, {:>5} cut off{}",
        scenario.name,
        report.states,
        report.ends,
        report.cut,
        if report.is_whole { "" } else { ", not all" }
    );
    if let Some((what, steps)) = report.violation {
        let steps: Vec<String> = steps.iter().map(|step| format!("{step:?}\n")).collect();
        panic!("{}, {mutant:?}: {what}\n{}", scenario.name, steps.concat());
    }
    assert!(report.ends > 0, "{}: no run comes to its end", scenario.name);
    if states_max == STATES_MAX {
        assert!(report.is_whole && report.cut == 0, "{}: not all states", scenario.name);
    }
}

#[test]
fn the_rule_holds_in_every_state() {
    for scenario in scenarios::small() {
        expect_holds(&scenario, None, STATES_MAX);
    }
    if let Ok(states_max) = std::env::var("OUTLAST_FORWARDING_STATES") {
        let states_max = states_max.parse().expect("a number of states");
        for scenario in scenarios::large() {
            expect_holds(&scenario, None, states_max);
        }
    }
}

/// The results of calls show each mutant: no mutant is judged by the states themselves.
#[test]
fn every_mutant_is_noticed() {
    for (mutant, name) in [
        (Mutant::AckAtPrimary, "write twice"),
        (Mutant::MarkAtPrimary, "two writers"),
        (Mutant::ReadUnstable, "write and read"),
        (Mutant::NearUnmarked, "two near readers"),
        (Mutant::ForwardUnpublished, "two writers"),
        (Mutant::NoGuardForWriter, "writer, then primary"),
        (Mutant::NoGuardForPrimary, "two writers"),
        (Mutant::AnnounceSenderOnly, "mate, writer, then primary"),
        (Mutant::AssumeDropped, "two writers"),
        (Mutant::ClearByPrimary, "timeout, then primary"),
        (Mutant::NoStraggler, "timeout, and three calls after it"),
        (Mutant::FreeBlocksAfterTimeout, "timeout, then primary"),
        (Mutant::FillApart, "write twice"),
        (Mutant::InstallMeanwhile, "write twice"),
        (Mutant::ForwardDeclined, "declined"),
        (Mutant::WithdrawUnguarded, "withdrawn"),
        (Mutant::NoConfirm, "two writers"),
        (Mutant::NotifyNobody, "two writers"),
        (Mutant::HeadAlone, "two blocks"),
        (Mutant::CounterAlone, "two writers"),
    ] {
        let scenario = scenario(name);
        let model = Model { scenario: &scenario, mutant: Some(mutant), judges_states: false };
        let report = search::explore(&model, STATES_MAX);
        let Some((what, steps)) = report.violation else {
            panic!("{name}: {mutant:?} is not noticed in {} states", report.states);
        };
        println!(
            "{mutant:<22?} {name:<34} {:>6} states, {} steps: {what}",
            report.states,
            steps.len()
        );
    }
}

/// A replica refuses a late forwarded request for three reasons, and any two of them suffice: the
/// sender is dead, the origin is dead, or the views differ.
#[test]
fn a_forwarded_request_is_guarded_twice() {
    for mutant in [Mutant::NoOriginCheck, Mutant::NoSenderCheck, Mutant::NoViewCheck] {
        for name in ["write and read", "two writers", "timeout and death"] {
            expect_holds(&scenario(name), Some(mutant), STATES_MAX);
        }
    }
}
