//! `cargo xtask soak tasks`: many seeds of the task runtime's random programs, with deaths and
//! stops at any step, on both links. The record in `target/soak` has what was run, with the command
//! that repeats each batch.

use crate::gate::{Gate, cargo, minutes};
use crate::soak::{make_folder, output_of};
use crate::test::TASKS_FEATURES;
use anyhow::Context;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The first seed, far above the seeds of `cargo xtask test`.
pub(crate) const FIRST_SEED: u64 = 3_000_000;
/// The number of seeds in a batch.
const BATCH: u64 = 1_000;

/// The shapes of programs and faults, as tests of the task runtime under the simulator, each with
/// its number of seeds: 100,000 in all.
const SHAPES: [(&str, u64); 6] = [
    // 2 to 5 members, up to 2 deaths and 2 stops: trees of joins, sums, scopes, loops that save,
    // bags and panics; two runs in each job.
    ("trees::trees_outlast_deaths_and_stops_at_any_step", 80_000),
    // 5 to 8 members, of which more die than there are replicas, at once or with repair between.
    ("trees::trees_outlast_more_deaths_than_replicas_or_say_what_is_lost", 8_000),
    // 4 members and 2 deaths: pools whose slots are soon used again.
    ("schedules::no_part_of_a_bag_is_lost_or_merged_twice", 6_000),
    // 4 members, 2 deaths and a stop: trees with long outputs and few slots.
    ("shapes::a_left_half_that_was_forgotten_is_computed_again_with_what_was_inside_it", 2_000),
    // 4 members, a death and 2 stops: unwanted tasks with long outputs.
    ("schedules::a_late_holder_of_an_unwanted_task_does_not_overwrite_a_long_output", 2_000),
    // 5 members and 2 deaths, while the program adopts the keys of the dead.
    ("schedules::a_program_that_adopts_the_keys_of_the_dead_does_not_disturb", 2_000),
];

/// `cargo xtask soak tasks`: all shapes, without a limit of time.
pub(crate) fn soak_tasks(first_seed: u64) -> anyhow::Result<()> {
    let mut gate = Gate::new(minutes(600));
    let result = run(&mut gate, first_seed, None);
    gate.summarize("soak", result)
}

/// Runs the seeds of all shapes, or as many of them as there is time for, and writes the record.
pub(crate) fn run(gate: &mut Gate, first_seed: u64, until: Option<Instant>) -> anyhow::Result<()> {
    let mut build = tests(&["--no-run"]);
    build.env_remove("OUTLAST_TASKS_MUTANT");
    gate.step("tasks: build", minutes(20), build)?;
    let mut batches = Vec::new();
    let result = run_batches(gate, first_seed, until, &mut batches);
    write(&make_folder()?.join("tasks.json"), result.is_ok(), &batches)?;
    result
}

fn run_batches(
    gate: &mut Gate,
    first_seed: u64,
    until: Option<Instant>,
    batches: &mut Vec<Value>,
) -> anyhow::Result<()> {
    for (test, count) in SHAPES {
        for first in (first_seed..first_seed + count).step_by(BATCH as usize) {
            if until.is_some_and(|until| Instant::now() >= until) {
                return Ok(());
            }
            let seeds = BATCH.min(first_seed + count - first);
            let (began, words) = (Instant::now(), ["--", "--exact", test]);
            let mut command = tests(&words);
            command.env_remove("OUTLAST_TASKS_MUTANT");
            command.env("OUTLAST_SEED_FIRST", first.to_string());
            command.env("OUTLAST_SEEDS", seeds.to_string());
            let name = format!("{test} {first}..{}", first + seeds);
            let result = gate.step(&name, minutes(60), command);
            batches.push(json!({
                "test": test,
                "first_seed": first,
                "seeds": seeds,
                "ok": result.is_ok(),
                "seconds": began.elapsed().as_secs_f64(),
                "command": format!(
                    "OUTLAST_SEED_FIRST={first} OUTLAST_SEEDS={seeds} cargo {}",
                    arguments(&words).join(" ")
                ),
            }));
            result?;
        }
    }
    Ok(())
}

/// The tests of the task runtime under the simulator, in a release build.
fn tests(words: &[&str]) -> Command {
    cargo(&arguments(words))
}

fn arguments<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let package = ["test", "--release", "--package", "outlast-tasks", "--test", "sim"];
    [&package[..], &["--features", TASKS_FEATURES], words].concat()
}

fn write(path: &Path, ok: bool, batches: &[Value]) -> anyhow::Result<()> {
    let passed = batches.iter().filter(|batch| batch["ok"] == true);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let record = json!({
        "ok": ok,
        "commit": output_of("git", &["rev-parse", "HEAD"]),
        "machine": { "kernel": output_of("uname", &["-sr"]), "cores": cores },
        "seeds": passed.filter_map(|batch| batch["seeds"].as_u64()).sum::<u64>(),
        "batches": batches,
    });
    let text = serde_json::to_string_pretty(&record)? + "\n";
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    println!("=== the record is in {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soak_of_tasks_has_the_stated_number_of_seeds() {
        assert_eq!(SHAPES.iter().map(|(_, count)| count).sum::<u64>(), 100_000);
    }

    #[test]
    fn each_shape_is_a_test_of_the_runtime() {
        let folder = crate::gate::workspace().join("crates/outlast-tasks/tests/sim");
        for (shape, _) in SHAPES {
            let (module, test) = shape.split_once("::").expect("a module and a test");
            let source = std::fs::read_to_string(folder.join(module).with_extension("rs"));
            let source = source.expect("a module of the tests");
            assert!(source.contains(&format!("\nfn {test}() {{")), "{shape}");
        }
    }
}
