//! `cargo xtask soak seats`: many seeds of programs on seats in the simulator, with deaths and stops
//! at any step, and many kills of real processes: on shm, and under mpirun on one host and on
//! several. The record in `target/soak` has what was run, with the command that repeats each part.

use crate::gate::{Gate, cargo, minutes};
use crate::soak::{build, make_folder, outlast, output_of, read_json};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The first seed, far above the seeds of `cargo xtask test`.
pub(crate) const FIRST_SEED: u64 = 4_000_000;
/// The number of seeds in a batch.
const BATCH: u64 = 1_000;

/// The shapes of `outlast sim`, each with its number of seeds: 88,000 in all. The kind of a program,
/// the link and the interval of saves follow from the seed.
const SHAPES: [(&str, u64); 9] = [
    ("--members 5 --replicas 3 --kills 2 --stops 1 --programs seats", 25_000),
    ("--members 5 --replicas 3 --kills 2 --stops 1 --spares 1 --programs seats", 15_000),
    ("--members 4 --replicas 4 --kills 3 --spares 2 --programs seats", 8_000),
    ("--members 4 --replicas 3 --kills 2 --stops 2 --programs table", 5_000),
    ("--members 4 --replicas 3 --kills 2 --stops 2 --programs transform", 5_000),
    ("--members 5 --replicas 3 --kills 1 --programs seats --logged", 12_000),
    ("--members 5 --replicas 3 --kills 2 --stops 1 --spares 1 --programs seats --logged", 10_000),
    ("--members 4 --replicas 3 --kills 1 --stops 1 --programs table --logged", 3_000),
    ("--members 4 --replicas 3 --kills 2 --spares 1 --programs transform --logged", 5_000),
];

/// Tests of the library under the simulator with judges of their own, each with its number of
/// seeds: 12,000 in all.
const TESTS: [(&str, u64); 8] = [
    ("protect::seat_promise_1_kept", 1_500),
    ("protect::seat_promise_2_together", 1_500),
    ("protect::seat_promise_5_once", 2_000),
    ("protect::beyond_what_may_be_lost_all_survivors_end_alike", 1_000),
    ("protect_logs::seat_promise_3_unnoticed", 3_000),
    ("protect_logs::a_death_after_a_save_is_unnoticed", 1_000),
    ("protect_logs::a_death_of_the_deciding_holder_in_a_save_changes_no_byte", 1_000),
    ("protect_logs::deaths_that_logs_do_not_cover_fall_back", 1_000),
];

/// The shapes of jobs of real processes, each with its number of deaths. They run in turn until
/// there were enough; those of a whole host lose all members of it.
const CHAOS: [(&str, u64); 10] = [
    ("--engine shm --members 8 --kills 6 --stops 2 --programs seats", 6),
    ("--engine shm --members 8 --kills 6 --programs seats --logged", 6),
    ("--engine shm --members 6 --kills 4 --stops 1 --programs table", 4),
    ("--engine shm --members 6 --kills 4 --stops 1 --programs transform --logged", 4),
    ("--engine shm --members 6 --kills 4 --programs transform", 4),
    ("--engine mpi --members 6 --kills 4 --programs seats", 4),
    ("--engine mpi --members 6 --kills 4 --programs transform --logged", 4),
    ("--engine mpi --hosts 3 --members 6 --kills 3 --programs table", 3),
    ("--engine mpi --hosts 3 --members 6 --kill-host --programs seats", 2),
    ("--engine mpi --hosts 3 --members 3 --kill-host --programs transform --logged", 1),
];

/// The least number of kills.
const KILLS: u64 = 1_000;

/// What was run.
#[derive(Default)]
struct Parts {
    sim: Vec<Value>,
    chaos: Vec<Value>,
}

/// `cargo xtask soak seats`: all of it, without a limit of time.
pub(crate) fn soak_seats(first_seed: u64) -> anyhow::Result<()> {
    let mut gate = Gate::new(minutes(1_200));
    let result = run(&mut gate, first_seed, None);
    gate.summarize("soak", result)
}

/// Runs the seeds and the kills, or as many of them as there is time for, and writes the record.
pub(crate) fn run(gate: &mut Gate, first_seed: u64, until: Option<Instant>) -> anyhow::Result<()> {
    let (program, command) = build("faults,mpi")?;
    gate.step("seats: build", minutes(20), command)?;
    gate.step("seats: build the tests", minutes(20), tests(&["--no-run"]))?;
    let mut parts = Parts::default();
    let result = parts.fill(gate, &program, first_seed, until);
    parts.write(&make_folder()?.join("seats.json"), result.is_ok())?;
    result
}

impl Parts {
    fn fill(
        &mut self,
        gate: &mut Gate,
        program: &Path,
        first_seed: u64,
        until: Option<Instant>,
    ) -> anyhow::Result<()> {
        let is_time_over = || until.is_some_and(|until| Instant::now() >= until);
        for (shape, count) in SHAPES {
            for first in (first_seed..first_seed + count).step_by(BATCH as usize) {
                if is_time_over() {
                    return Ok(());
                }
                let end = (first + BATCH).min(first_seed + count);
                let arguments = format!("sim {shape} --seeds {first}..{end}");
                let part = run_outlast(gate, program, &arguments, 60);
                self.sim.push(part.0);
                part.1?;
            }
        }
        for (test, count) in TESTS {
            for first in (first_seed..first_seed + count).step_by(BATCH as usize) {
                if is_time_over() {
                    return Ok(());
                }
                let seeds = BATCH.min(first_seed + count - first);
                let words = ["--", "--exact", test];
                let mut command = tests(&words);
                command.env("OUTLAST_SEED_FIRST", first.to_string());
                command.env("OUTLAST_SEEDS", seeds.to_string());
                let began = Instant::now();
                let result =
                    gate.step(&format!("{test} {first}..{}", first + seeds), minutes(60), command);
                self.sim.push(json!({
                    "command": format!(
                        "OUTLAST_SEED_FIRST={first} OUTLAST_SEEDS={seeds} cargo {}",
                        arguments(&words).join(" ")
                    ),
                    "ok": result.is_ok(),
                    "seeds": seeds,
                    "seconds": began.elapsed().as_secs_f64(),
                }));
                result?;
            }
        }
        let mut kills = 0;
        for (round, (shape, deaths)) in CHAOS.into_iter().cycle().enumerate() {
            if kills >= KILLS || is_time_over() {
                break;
            }
            let arguments =
                format!("chaos {shape} --seconds 4 --seed {}", first_seed + round as u64);
            let part = run_outlast(gate, program, &arguments, 5);
            self.chaos.push(part.0);
            part.1?;
            kills += deaths;
        }
        Ok(())
    }

    fn write(&self, path: &Path, ok: bool) -> anyhow::Result<()> {
        let sum = |parts: &[Value], field: &str| -> u64 {
            parts.iter().filter_map(|part| part[field].as_u64()).sum()
        };
        let passed: Vec<Value> =
            self.sim.iter().filter(|part| part["ok"] == true).cloned().collect();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let record = json!({
            "ok": ok,
            "commit": output_of("git", &["rev-parse", "HEAD"]),
            "machine": { "kernel": output_of("uname", &["-sr"]), "cores": cores },
            "seeds": sum(&passed, "seeds"),
            "simulated_kills": sum(&passed, "kills"),
            "programs": sum(&self.chaos, "programs"),
            "kills": sum(&self.chaos, "kills"),
            "stops": sum(&self.chaos, "stops"),
            "sim": self.sim,
            "chaos": self.chaos,
        });
        let text = serde_json::to_string_pretty(&record)? + "\n";
        std::fs::write(path, text)?;
        println!("=== the record is in {}", path.display());
        Ok(())
    }
}

/// Runs `outlast` with these arguments. Returns its report with the command that repeats it, and how
/// it ended.
fn run_outlast(
    gate: &mut Gate,
    program: &Path,
    arguments: &str,
    limit_min: u64,
) -> (Value, anyhow::Result<()>) {
    let part = crate::gate::target_folder().join("soak/seats-part.json");
    let _ = std::fs::remove_file(&part);
    let mut command = outlast(program, arguments);
    command.arg("--json").arg(&part);
    let began = Instant::now();
    let result = gate.step(&format!("outlast {arguments}"), minutes(limit_min), command);
    let mut report = read_json(&part).unwrap_or_else(|_| json!({ "ok": false }));
    let _ = std::fs::remove_file(&part);
    report["command"] = format!("outlast {arguments}").into();
    report["seconds"] = began.elapsed().as_secs_f64().into();
    (report, result)
}

/// The tests of the library under the simulator, in a release build.
fn tests(words: &[&str]) -> Command {
    let mut command = cargo(&arguments(words));
    command.env_remove("OUTLAST_MUTANT");
    command
}

fn arguments<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let package = ["test", "--release", "--package", "outlast", "--test", "sim"];
    [&package[..], &["--features", "sim,faults"], words].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soak_of_seats_has_the_stated_number_of_seeds_and_kills() {
        let sum = |parts: &[(&str, u64)]| parts.iter().map(|(_, count)| count).sum::<u64>();
        assert_eq!((sum(&SHAPES), sum(&TESTS)), (88_000, 12_000));
        for (shape, kills) in CHAOS {
            let is_host = shape.contains("--kill-host");
            assert!(is_host || shape.contains(&format!("--kills {kills} ")), "{shape}");
        }
    }

    #[test]
    fn each_test_is_one_of_the_library() {
        let folder = crate::gate::workspace().join("crates/outlast/tests/sim");
        for (name, _) in TESTS {
            let (module, test) = name.split_once("::").expect("a module and a test");
            let source = std::fs::read_to_string(folder.join(module).with_extension("rs"));
            let source = source.expect("a module of the tests");
            assert!(source.contains(&format!("\nfn {test}() {{")), "{name}");
        }
    }
}
