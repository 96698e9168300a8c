//! Histories that are known to be wrong, which the checkers must catch, and histories that are
//! known to be right, which they must pass.

mod common;

use std::collections::BTreeMap;

use common::{Scenario, kinds, r, rv, w, wv};
use outlast_check::durability::{self, Final, Observation};
use outlast_check::history::{Access, Actor, Key, Value, Version};
use outlast_check::loss::Loss;
use outlast_check::report::{self, Run};
use outlast_check::violation::ViolationKind;
use outlast_check::{register, serializable};

/// The history is right for every checker.
#[track_caller]
fn right(scenario: &Scenario) {
    let report = report::judge(&Run::new(scenario.history()));
    assert!(report.ok(), "{report:#?}");
}

/// The register checker rejects the history and shows this many operations.
#[track_caller]
fn not_linearizable(scenario: &Scenario, shown: usize) {
    let violations = register::check(&scenario.history());
    assert_eq!(kinds(&violations), [ViolationKind::NotLinearizable], "{violations:#?}");
    assert_eq!(violations[0].operations.len(), shown, "{}", violations[0]);
}

/// The cycle search finds just this kind of cycle, with this many operations.
#[track_caller]
fn cycle(scenario: &Scenario, name: &str, shown: usize) {
    let violations = serializable::check(&scenario.history());
    assert_eq!(kinds(&violations), [ViolationKind::Cycle], "{violations:#?}");
    assert!(violations[0].explanation.starts_with(name), "{}", violations[0]);
    assert_eq!(violations[0].operations.len(), shown, "{}", violations[0]);
    assert_eq!(violations[0].cycle.len(), shown, "{}", violations[0]);
}

/// Every key by itself is linearizable.
#[track_caller]
fn each_key_is_right(scenario: &Scenario) {
    let violations = register::check(&scenario.history());
    assert!(violations.is_empty(), "{violations:#?}");
}

/// The serializability checker reports this kind among others.
#[track_caller]
fn finds(scenario: &Scenario, kind: ViolationKind) {
    let violations = serializable::check(&scenario.history());
    assert!(kinds(&violations).contains(&kind), "{violations:#?}");
}

#[test]
fn an_empty_history_is_right() {
    right(&Scenario::new());
}

#[test]
fn sequential_operations_are_right() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[r("a", 0)]).ok(0, 2..3, &[w("a", 1)]).ok(1, 4..5, &[r("a", 1)]);
    scenario.ok(1, 6..7, &[r("a", 1), w("a", 2)]).ok(0, 8..9, &[r("a", 2)]);
    right(&scenario);
}

#[test]
fn concurrent_reads_may_see_old_or_new() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("a", 1)]).ok(0, 10..20, &[w("a", 2)]);
    scenario.ok(1, 11..19, &[r("a", 2)]).ok(2, 11..19, &[r("a", 1)]).ok(3, 11..19, &[r("a", 2)]);
    right(&scenario);
}

#[test]
fn equal_times_are_concurrent() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..5, &[w("a", 1)]).ok(1, 5..6, &[r("a", 0)]);
    right(&scenario);
}

#[test]
fn an_actor_is_ordered_even_at_equal_times() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 5..5, &[w("a", 1)]).ok(0, 5..5, &[r("a", 0)]);
    not_linearizable(&scenario, 2);
    finds(&scenario, ViolationKind::Backwards);
}

#[test]
fn stale_read() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("a", 1)]).ok(0, 2..3, &[w("a", 2)]).ok(1, 4..5, &[r("a", 1)]);
    not_linearizable(&scenario, 3);
    cycle(&scenario, "stale read", 2);
    let durability = durability::check(&scenario.history(), &Observation::until(10));
    assert_eq!((durability.acked, durability.stale, durability.lost), (2, 1, 0));
}

#[test]
fn stale_read_without_versions() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[wv("a", 1)]).ok(0, 2..3, &[wv("a", 2)]).ok(1, 4..5, &[rv("a", 1)]);
    not_linearizable(&scenario, 3);
    assert_eq!(durability::check(&scenario.history(), &Observation::until(10)).stale, 1);
}

#[test]
fn stale_read_of_absence() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("a", 1)]).ok(1, 4..5, &[Access::read("a")]);
    not_linearizable(&scenario, 2);
    cycle(&scenario, "stale read", 2);
    assert_eq!(durability::check(&scenario.history(), &Observation::until(10)).stale, 1);
}

#[test]
fn absence_is_explained_by_a_deletion_only_in_time() {
    let delete = |counter| Access::delete("a").at(Version::new(counter, 0));
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("a", 1)]).ok(0, 2..3, &[delete(2)]).ok(1, 4..5, &[Access::read("a")]);
    scenario.ok(0, 6..7, &[w("a", 3)]);
    right(&scenario);
    scenario.ok(1, 8..9, &[Access::read("a")]);
    not_linearizable(&scenario, 3);
    cycle(&scenario, "stale read", 2);
    assert_eq!(durability::check(&scenario.history(), &Observation::until(10)).stale, 1);
    // A second deletion that never returned explains it.
    scenario.died(2, 0, &[Access::delete("a")]);
    right(&scenario);
}

#[test]
fn tombstones_have_versions() {
    let mut scenario = Scenario::new();
    let tombstone = Access::read("a").at(Version::new(2, 0));
    scenario.ok(0, 0..1, &[w("a", 1)]).timeout(0, 2..3, &[Access::delete("a")]);
    scenario.ok(1, 4..5, std::slice::from_ref(&tombstone)).ok(0, 6..7, &[w("a", 3)]);
    right(&scenario);
    scenario.ok(1, 8..9, &[tombstone]);
    not_linearizable(&scenario, 3);
}

#[test]
fn reads_go_back_between_actors() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("a", 1)]).ok(0, 2..20, &[w("a", 2)]);
    scenario.ok(1, 4..5, &[r("a", 2)]).ok(2, 6..7, &[r("a", 1)]);
    not_linearizable(&scenario, 4);
    cycle(&scenario, "stale read", 3);
}

#[test]
fn going_back_after_a_failover() {
    // The writer died; its write was seen, and is gone after the primary died too.
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("a", 1)]).died(0, 2, &[wv("a", 2)]);
    scenario.ok(1, 4..5, &[r("a", 2)]).ok(1, 6..7, &[r("a", 1)]);
    not_linearizable(&scenario, 4);
    finds(&scenario, ViolationKind::Backwards);
    finds(&scenario, ViolationKind::Cycle);
}

#[test]
fn lost_update_between_transactions() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..10, &[r("a", 0), w("a", 1)]).ok(1, 0..10, &[r("a", 0), w("a", 2)]);
    not_linearizable(&scenario, 2);
    cycle(&scenario, "lost update", 2);
}

#[test]
fn lost_update_between_conditional_puts_without_versions() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..10, &[Access::read("a"), wv("a", 1)]).ok(
        1,
        0..10,
        &[Access::read("a"), wv("a", 2)],
    );
    not_linearizable(&scenario, 2);
}

#[test]
fn lost_addition() {
    let sum = |number, counter| {
        Access::add("n", 1).saw(Value::number(number)).at(Version::new(counter, 0))
    };
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..10, &[sum(1, 1)]).ok(1, 0..10, &[sum(1, 2)]);
    not_linearizable(&scenario, 2);
    finds(&scenario, ViolationKind::WrongSum);
}

#[test]
fn additions_of_unknown_outcome_explain_sums() {
    let sum = |delta, number: i64| Access::add("n", delta).saw(Value::number(number));
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[sum(5, 5)]).died(1, 0, &[Access::add("n", 10)]).died(
        2,
        0,
        &[Access::add("n", 7)],
    );
    scenario.ok(0, 2..3, &[sum(-1, 11)]).ok(3, 4..5, &[Access::read("n").saw(Value::number(21))]);
    right(&scenario);
    scenario.ok(3, 6..7, &[sum(1, 23)]);
    not_linearizable(&scenario, 5);
}

#[test]
fn many_additions_of_unknown_outcome_are_quick() {
    let mut scenario = Scenario::new();
    for member in 0..60 {
        scenario.died(100 + member, 0, &[Access::add("n", if member % 2 == 0 { 1 } else { -3 })]);
    }
    for turn in 0..200 {
        let number = turn as i64 / 10;
        scenario.ok(0, turn * 10..turn * 10 + 5, &[Access::add("n", 0).saw(Value::number(number))]);
    }
    right(&scenario);
    scenario.ok(0, 5000..5001, &[Access::read("n").saw(Value::number(1000))]);
    let violations = register::check(&scenario.history());
    assert_eq!(kinds(&violations), [ViolationKind::NotLinearizable]);
}

/// Members died in additions of different amounts, one for each amount. Explaining a sum with the
/// fewest additions leaves the most for the later sums.
#[test]
fn additions_of_different_size_and_unknown_outcome_are_quick() {
    let deltas = [-2, -1, 5, 6, 7, -3, 9, 1, -7, -9, 3, 4, 3, 6, 9, -3, 3, 6, 8];
    let mut scenario = Scenario::new();
    for (member, delta) in deltas.into_iter().enumerate() {
        scenario.died(100 + member as u32, 0, &[Access::add("n", delta)]);
    }
    let mut sum = 0;
    for (turn, delta) in deltas.into_iter().enumerate() {
        sum += delta;
        let turn = turn as u64 * 10;
        scenario.ok(0, turn..turn + 5, &[Access::add("n", 0).saw(Value::number(sum))]);
    }
    right(&scenario);
}

#[test]
fn torn_value() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("a", 1)]);
    scenario.ok(1, 2..3, &[Access::read("a").at(Version::new(1, 0)).saw(Value::torn(1))]);
    finds(&scenario, ViolationKind::Torn);
    let report = report::judge(&Run::new(scenario.history()));
    assert_eq!((report.torn, report.stale, report.nonlinearizable), (1, 0, 0));
}

#[test]
fn write_skew() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("x", 1), w("y", 1)]);
    scenario.ok(1, 2..10, &[r("x", 1), r("y", 1), w("x", 2)]);
    scenario.ok(2, 2..10, &[r("x", 1), r("y", 1), w("y", 2)]);
    each_key_is_right(&scenario);
    cycle(&scenario, "write skew", 2);
}

#[test]
fn read_skew() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..10, &[w("x", 1), w("y", 1)]).ok(1, 0..10, &[r("x", 0), r("y", 1)]);
    each_key_is_right(&scenario);
    cycle(&scenario, "lost update or read skew", 2);
}

#[test]
fn half_a_transaction() {
    // The committer died between its two keys, and no member finished its work.
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("x", 1), w("y", 1)]).died(0, 2, &[wv("x", 2), wv("y", 2)]);
    scenario.ok(1, 5..6, &[r("x", 2), r("y", 1)]);
    each_key_is_right(&scenario);
    cycle(&scenario, "lost update or read skew", 2);
}

#[test]
fn half_a_transaction_on_fresh_keys() {
    let mut scenario = Scenario::new();
    scenario.died(0, 2, &[wv("x", 2), wv("y", 2)]);
    scenario.ok(1, 5..6, &[r("x", 2)]).ok(1, 7..8, &[Access::read("y")]);
    each_key_is_right(&scenario);
    cycle(&scenario, "stale read", 3);
}

#[test]
fn a_dead_committer_may_be_finished_later() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("x", 1), w("y", 1)]).died(0, 2, &[wv("x", 2), wv("y", 2)]);
    scenario.ok(1, 5..6, &[r("x", 1), r("y", 1)]).ok(1, 7..8, &[r("x", 2), r("y", 2)]);
    right(&scenario);
}

#[test]
fn circular_information_flow() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..10, &[w("x", 1), r("y", 1)]).ok(1, 0..10, &[w("y", 1), r("x", 1)]);
    each_key_is_right(&scenario);
    cycle(&scenario, "circular information flow", 2);
}

#[test]
fn dirty_write() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..10, &[w("x", 1), w("y", 2)]).ok(1, 0..10, &[w("x", 2), w("y", 1)]);
    each_key_is_right(&scenario);
    cycle(&scenario, "dirty write", 2);
}

#[test]
fn transactions_against_real_time_with_every_key_right() {
    // Each key alone has an order; together, the second reader would have to come before the first.
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..100, &[w("x", 1)]).ok(1, 0..100, &[w("y", 1)]);
    scenario.ok(2, 10..20, &[r("x", 1), r("y", 0)]).ok(3, 30..40, &[r("x", 0), r("y", 1)]);
    let violations = serializable::check(&scenario.history());
    assert_eq!(kinds(&violations), [ViolationKind::Cycle]);

    // Two transactions that share no key with each other.
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..10, &[r("z", 0), w("x", 1)]).ok(1, 20..30, &[w("z", 1), w("y", 1)]);
    scenario.ok(2, 0..50, &[r("x", 0), r("y", 1)]);
    each_key_is_right(&scenario);
    cycle(&scenario, "write skew", 3);

    // Nothing but real time links the two writers here.
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..10, &[w("x", 1)]).ok(1, 20..30, &[w("y", 1)]);
    scenario.ok(2, 0..50, &[r("x", 0), r("y", 1)]);
    each_key_is_right(&scenario);
    cycle(&scenario, "stale read", 3);
}

#[test]
fn long_fork() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..100, &[w("x", 1)]).ok(1, 0..100, &[w("y", 1)]);
    scenario.ok(2, 0..100, &[r("x", 1), r("y", 0)]).ok(3, 0..100, &[r("x", 0), r("y", 1)]);
    each_key_is_right(&scenario);
    cycle(&scenario, "write skew", 4);
}

#[test]
fn non_repeatable_read_inside_a_transaction() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("x", 1)]).ok(0, 2..10, &[w("x", 2)]);
    scenario.ok(1, 2..10, &[r("x", 1), r("x", 2)]);
    finds(&scenario, ViolationKind::NonRepeatableRead);
}

#[test]
fn non_repeatable_read_across_transactions() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("x", 1)]).ok(0, 2..20, &[w("x", 2)]);
    scenario.ok(1, 3..4, &[r("x", 2)]).ok(1, 5..6, &[r("x", 1)]);
    finds(&scenario, ViolationKind::Backwards);
    finds(&scenario, ViolationKind::Cycle);
}

#[test]
fn a_transaction_sees_its_own_writes() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[r("x", 0), wv("x", 1), rv("x", 1), wv("x", 2), rv("x", 2)]);
    scenario.ok(0, 2..3, &[rv("x", 2)]);
    right(&scenario);
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[wv("x", 1), r("x", 0)]);
    finds(&scenario, ViolationKind::NonRepeatableRead);
}

#[test]
fn intermediate_read() {
    // The first of two writes of a transaction must never be seen.
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..10, &[wv("x", 1), wv("x", 2)]).ok(1, 0..10, &[rv("x", 1)]);
    finds(&scenario, ViolationKind::NeverWritten);
}

#[test]
fn read_of_aborted() {
    let mut scenario = Scenario::new();
    scenario.failed(0, 0..1, &[wv("a", 1)]).ok(1, 2..3, &[r("a", 1)]);
    finds(&scenario, ViolationKind::ReadOfAborted);
    not_linearizable(&scenario, 1);
}

#[test]
fn failed_operations_without_readers_are_right() {
    let mut scenario = Scenario::new();
    scenario.failed(0, 0..1, &[wv("a", 1)]).ok(1, 2..3, &[r("a", 0)]).ok(1, 4..5, &[w("a", 2)]);
    right(&scenario);
}

#[test]
fn read_of_a_value_that_no_operation_wrote() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("a", 1)]).ok(1, 2..3, &[r("a", 7)]);
    finds(&scenario, ViolationKind::NeverWritten);
    not_linearizable(&scenario, 1);
}

#[test]
fn duplicate_version() {
    let mut scenario = Scenario::new();
    let version = Version::new(4, 1);
    scenario.ok(0, 0..1, &[wv("a", 1).at(version)]).ok(1, 2..3, &[wv("a", 2).at(version)]);
    finds(&scenario, ViolationKind::DuplicateVersion);
    not_linearizable(&scenario, 2);
}

#[test]
fn equal_counters_of_two_writers_are_two_versions() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..10, &[wv("a", 1).at(Version::new(4, 0))]);
    scenario.ok(1, 0..10, &[wv("a", 2).at(Version::new(4, 1))]);
    scenario.ok(1, 11..12, &[rv("a", 2).at(Version::new(4, 1))]);
    right(&scenario);
}

#[test]
fn two_values_for_a_version() {
    let mut scenario = Scenario::new();
    let version = Version::new(4, 1);
    scenario.ok(0, 0..1, &[wv("a", 1).at(version)]).ok(
        0,
        2..3,
        &[wv("a", 2).at(Version::new(5, 1))],
    );
    scenario.ok(1, 0..9, &[rv("a", 2).at(version)]);
    finds(&scenario, ViolationKind::TwoValues);

    let mut scenario = Scenario::new();
    scenario.died(0, 0, &[wv("a", 1)]).died(1, 0, &[wv("a", 2)]);
    scenario.ok(2, 0..9, &[rv("a", 1).at(version)]).ok(3, 0..9, &[rv("a", 2).at(version)]);
    finds(&scenario, ViolationKind::TwoValues);
}

#[test]
fn a_write_under_two_versions() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[wv("a", 1).at(Version::new(4, 1))]);
    scenario.ok(1, 2..3, &[rv("a", 1).at(Version::new(6, 1))]);
    finds(&scenario, ViolationKind::TwoVersions);
    not_linearizable(&scenario, 2);
}

#[test]
fn versions_against_real_time() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("a", 2)]).ok(1, 2..3, &[w("a", 1)]);
    not_linearizable(&scenario, 2);
    cycle(&scenario, "order against real time", 2);
}

#[test]
fn an_unknown_write_may_be_seen_late_or_never_but_not_early() {
    let mut scenario = Scenario::new();
    scenario.timeout(0, 0..10, &[wv("a", 1)]).timeout(0, 20..30, &[wv("a", 2)]).died(
        2,
        0,
        &[wv("a", 3)],
    );
    scenario.ok(1, 40..41, &[Access::read("a")]).ok(0, 42..43, &[w("a", 4)]).ok(
        1,
        100..101,
        &[rv("a", 1)],
    );
    right(&scenario);
    let mut scenario = Scenario::new();
    scenario.ok(1, 0..5, &[rv("a", 1)]).timeout(0, 10..20, &[wv("a", 1)]);
    not_linearizable(&scenario, 2);
}

#[test]
fn an_unknown_conditional_put_takes_effect_only_if_its_condition_held() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("a", 1)]).died(1, 2, &[r("a", 1), wv("a", 9)]);
    scenario.ok(0, 4..5, &[w("a", 2)]);
    right(&scenario);
    scenario.ok(0, 6..7, &[rv("a", 9)]);
    not_linearizable(&scenario, 4);
}

#[test]
fn a_session_orders_known_before_unknown() {
    // The actor had read version 2 before it began the write, which other actors see as overwritten
    // by version 2.
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..5, &[w("a", 2)]).ok(1, 0..5, &[r("a", 2)]).died(1, 5, &[wv("a", 1)]);
    scenario.ok(2, 0..50, &[r("a", 1)]);
    not_linearizable(&scenario, 4);
}

fn end_state(entries: &[(&str, Option<u64>)]) -> Observation {
    let read = |counter: &Option<u64>| Final::Read {
        version: counter.map(|counter| Version::new(counter, 0)),
        value: counter.map(Value::new),
    };
    let entries = entries.iter().map(|(key, counter)| (Key::from(*key), read(counter)));
    Observation { end_state: Some(entries.collect()), ..Observation::until(1_000) }
}

#[test]
fn lost_writes_are_counted() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("a", 1)]).ok(0, 2..3, &[w("a", 2)]).ok(0, 4..5, &[w("a", 3)]);
    scenario.ok(0, 6..7, &[w("b", 1)]).died(0, 8, &[wv("b", 9)]);
    let history = scenario.history();
    let lost =
        |entries: &[(&str, Option<u64>)]| durability::check(&history, &end_state(entries)).lost;
    assert_eq!(lost(&[("a", Some(3)), ("b", Some(1))]), 0);
    assert_eq!(lost(&[("a", Some(3)), ("b", Some(9))]), 0);
    assert_eq!(lost(&[("a", Some(1)), ("b", Some(1))]), 2);
    assert_eq!(lost(&[("a", None), ("b", Some(1))]), 3);
    assert_eq!(lost(&[("b", Some(1))]), 3);
    assert_eq!(lost(&[("a", Some(3)), ("b", None)]), 1);
    assert_eq!(
        lost(&[("a", Some(77)), ("b", Some(1))]),
        1,
        "an unwritten value supersedes nothing"
    );
    let observation = end_state(&[("a", Some(77)), ("b", Some(1))]);
    let run = Run { history: history.clone(), observation, losses: Vec::new() };
    assert!(report::judge(&run).nonlinearizable > 0);
}

#[test]
fn lost_without_versions() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[wv("a", 1)]).ok(0, 2..3, &[wv("a", 2)]).ok(1, 2..3, &[wv("a", 3)]);
    let find = |value| {
        let found = Final::Read { version: None, value: Some(Value::new(value)) };
        let end_state = Some(BTreeMap::from([(Key::from("a"), found)]));
        durability::check(&scenario.history(), &Observation { end_state, ..Observation::until(9) })
            .lost
    };
    assert_eq!([find(1), find(2), find(3)], [2, 0, 0]);
}

#[test]
fn torn_at_the_end_is_torn_and_lost() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("a", 1)]);
    let mut observation = end_state(&[]);
    let torn = Final::Read { version: Some(Version::new(1, 0)), value: Some(Value::torn(1)) };
    observation.end_state = Some([(Key::from("a"), torn)].into());
    let durability = durability::check(&scenario.history(), &observation);
    assert_eq!((durability.torn, durability.lost), (1, 1));
}

#[test]
fn admitted_loss_is_no_silent_loss() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("a", 1)]).ok(0, 2..3, &[w("b", 1)]);
    let mut observation = end_state(&[("b", Some(1))]);
    observation.end_state.as_mut().unwrap().insert(Key::from("a"), Final::DataLost);
    let report = report::judge(&Run {
        history: scenario.history(),
        observation: observation.clone(),
        losses: Vec::new(),
    });
    assert_eq!((report.data_lost, report.lost), (1, 0));
    assert!(report.ok(), "{report:#?}");
    // The other key is still judged.
    observation.end_state.as_mut().unwrap().remove(&Key::from("b"));
    let report =
        report::judge(&Run { history: scenario.history(), observation, losses: Vec::new() });
    assert_eq!((report.data_lost, report.lost), (1, 1));
}

/// A key is lost after a put, and the loss is accepted. The key begins anew.
#[test]
fn a_key_that_was_given_up_starts_anew() {
    let loss = |keys: &[&str]| Loss {
        keys: keys.iter().map(|&key| Key::from(key)).collect(),
        told_ns: 10,
        begin_ns: Some(20),
        end_ns: Some(30),
        ..Loss::default()
    };
    let judge = |after: &[(std::ops::Range<u64>, Access)], end: Option<u64>, keys: &[&str]| {
        let mut scenario = Scenario::new();
        scenario.ok(0, 0..1, &[w("a", 5)]);
        for (times, access) in after {
            scenario.ok(0, times.clone(), std::slice::from_ref(access));
        }
        let observation = end_state(&[("a", end)]);
        report::judge(&Run { history: scenario.history(), observation, losses: vec![loss(keys)] })
    };
    let absent = || Access::read("a");
    assert!(judge(&[(40..41, absent())], None, &["a"]).ok());
    assert!(judge(&[(40..41, w("a", 6)), (42..43, r("a", 6))], Some(6), &["a"]).ok());
    // A value from before the loss must not appear again, neither during the run nor at the end.
    assert!(!judge(&[(40..41, r("a", 5))], None, &["a"]).ok());
    assert!(!judge(&[(40..41, absent())], Some(5), &["a"]).ok());
    // A value put after the acceptance must stay.
    assert_eq!(judge(&[(40..41, w("a", 6))], None, &["a"]).lost, 1);
    // Before the loss nothing changes, and other keys are judged as ever.
    assert!(!judge(&[(2..3, absent())], None, &["a"]).ok());
    assert!(!judge(&[(40..41, absent())], None, &["b"]).ok());
    // No call may answer once the loss was reported.
    let report = judge(&[(12..13, r("a", 5))], None, &["a"]);
    assert!(
        report.violations.iter().any(|one| one.kind == ViolationKind::LostAnswered),
        "{report:?}"
    );
    // An operation in flight while the loss is accepted may belong to either life.
    assert!(judge(&[(15..25, r("a", 5))], None, &["a"]).ok());
    assert!(judge(&[(15..25, absent())], None, &["a"]).ok());
    assert!(judge(&[(15..35, w("a", 7)), (40..41, r("a", 7))], Some(7), &["a"]).ok());
    assert!(judge(&[(15..35, w("a", 7)), (40..41, absent())], None, &["a"]).ok());
}

#[test]
fn a_deletion_is_an_acknowledged_write_too() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..1, &[w("a", 1)]).ok(0, 2..3, &[Access::delete("a").at(Version::new(2, 0))]);
    let lost = |observation| durability::check(&scenario.history(), &observation).lost;
    assert_eq!(lost(end_state(&[])), 0);
    assert_eq!(lost(end_state(&[("a", Some(1))])), 1, "the deleted value came back");
}

#[test]
fn hung_calls() {
    const SECOND: u64 = 1_000_000_000;
    let mut scenario = Scenario::new();
    // Overlaps the kill at 10 s and is back 5 s later.
    scenario.ok(0, 0..15 * SECOND, &[r("a", 0)]);
    // Overlaps the kill at 10 s and is back 11 s later.
    scenario.ok(1, 0..21 * SECOND, &[r("a", 0)]);
    // Waits for a stopped member, until its time limit.
    scenario.timeout(2, 11 * SECOND..42 * SECOND, &[wv("a", 1)]);
    // Never back, and its member lives.
    scenario.died(3, 9 * SECOND, &[wv("a", 2)]);
    // Never back, for its member is dead.
    scenario.died(4, 9 * SECOND, &[wv("a", 3)]);
    // Never back, but it only just began.
    scenario.died(5, 95 * SECOND, &[wv("a", 4)]);
    let observation = Observation {
        disturbances_ns: vec![10 * SECOND],
        dead: [4].into(),
        ..Observation::until(100 * SECOND)
    };
    let durability = durability::check(&scenario.history(), &observation);
    assert_eq!(durability.hung, 2);
    let who: Vec<Actor> =
        durability.violations.iter().map(|hung| hung.operations[0].actor).collect();
    assert_eq!(who, [Actor::new(1, 0), Actor::new(3, 0)]);
}
