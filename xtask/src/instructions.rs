//! `cargo xtask perf`: compares the instructions of calls of the store on shm with the recorded
//! figures in `xtask/perf.json`. `cargo xtask instructions` only prints them.
//!
//! The count does not depend on the load of the machine, as times do, so that two versions of the
//! library can be compared. The program `bench/instructions` makes a fixed number of calls, and
//! valgrind counts inside the functions that make them.

use crate::gate::{Gate, Running, cargo, minutes, target_folder, workspace};
use crate::valgrind;
use anyhow::{Context, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The number of calls that a counted function of the program makes.
const CALLS: u64 = 10_000;

/// The number of transactions that a counted function of the program makes.
const TRANSACTIONS: u64 = 1_000;

/// What is counted: its name, the function of the program that makes the calls, and their number. A
/// transaction has three keys.
const COUNTED: [(&str, &str, u64); 10] = [
    ("put through a handle", "counted_put", CALLS),
    ("get through a handle", "counted_get", CALLS),
    ("put_if through a handle", "counted_conditional_put", CALLS),
    ("add through a handle", "counted_addition", CALLS),
    ("version through a handle", "counted_version", CALLS),
    ("put_parts through a handle", "counted_parts", CALLS),
    ("put by key", "counted_put_by_key", CALLS),
    ("get by key", "counted_get_by_key", CALLS),
    ("transaction of puts", "counted_transaction", TRANSACTIONS),
    ("transaction of gets and puts", "counted_read_modify_write", TRANSACTIONS),
];

/// What is counted in the C program `instructions.c`: the function that makes the calls, the call
/// of C, the call of Rust that it makes, and the count of a program in Rust.
const COUNTED_IN_C: [[&str; 4]; 2] = [
    ["counted_put", "outlast_handle_put", "KeyHandle::put", "put through a handle"],
    ["counted_put_by_key", "outlast_put", "Store::put_bytes", "put by key"],
];

/// How many instructions a call from C may take more than the call of Rust that it makes.
const MORE_IN_C: f64 = 60.0;

/// By how much a count may be above its recorded figure.
const TOLERANCE: f64 = 0.03;

/// The instructions of a call of each kind.
type Counts = BTreeMap<String, f64>;

/// The file with the recorded figures.
fn record_path() -> PathBuf {
    workspace().join("xtask/perf.json")
}

/// Counts puts from C, and compares them with puts from Rust.
pub(crate) fn instructions_of_c() -> anyhow::Result<()> {
    let mut gate = Gate::new(minutes(60));
    let result = check_c(&mut gate);
    gate.summarize("instructions of C", result)
}

/// Builds, counts, and prints the instructions of a call of each kind.
pub(crate) fn instructions() -> anyhow::Result<()> {
    let mut gate = Gate::new(minutes(60));
    let counts = count(&mut gate);
    let (counts, result) = match counts {
        Ok(counts) => (counts, Ok(())),
        Err(error) => (Counts::new(), Err(error)),
    };
    let result = gate.summarize("instructions", result);
    for (name, instructions) in counts {
        println!("{name:<30} {instructions:>9.1} instructions");
    }
    result
}

/// Compares the counts with the recorded figures, or records them.
pub(crate) fn perf(must_record: bool) -> anyhow::Result<()> {
    let mut gate = Gate::new(minutes(60));
    let result = match must_record {
        true => count(&mut gate).and_then(|counts| record(&counts)),
        false => start_build(&mut gate).and_then(|build| check(&mut gate, build)),
    };
    gate.summarize("perf", result)
}

/// A part of the gate: an error if a count is above its recorded figure by more than the tolerance.
pub(crate) fn check(gate: &mut Gate, build: Running) -> anyhow::Result<()> {
    let path = record_path();
    let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    let recorded: Counts = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not a table of figures", path.display()))?;
    gate.finish(build)?;
    compare(&recorded, &count_built(gate)?)
}

fn record(counts: &Counts) -> anyhow::Result<()> {
    let path = record_path();
    let rounded: Counts =
        counts.iter().map(|(name, count)| (name.clone(), (count * 10.0).round() / 10.0)).collect();
    std::fs::write(&path, serde_json::to_string_pretty(&rounded)? + "\n")
        .with_context(|| format!("writing {}", path.display()))
}

fn compare(recorded: &Counts, counts: &Counts) -> anyhow::Result<()> {
    let mut slower = Vec::new();
    for (name, &count) in counts {
        let figure = *recorded
            .get(name)
            .with_context(|| format!("no figure for `{name}`; type: cargo xtask perf --record"))?;
        let change = count / figure - 1.0;
        println!("{name:<30} {count:>9.1} instructions, {:+.1} %", change * 100.0);
        if change > TOLERANCE {
            slower.push(format!("{name} takes {count:.1} instructions, {figure:.1} recorded"));
        } else if change < -TOLERANCE {
            println!("    fewer than recorded; type: cargo xtask perf --record");
        }
    }
    ensure!(slower.is_empty(), "slower than recorded in xtask/perf.json: {}", slower.join("; "));
    Ok(())
}

/// Compares puts from C with puts from Rust: an error if they take too many instructions more.
pub(crate) fn check_c(gate: &mut Gate) -> anyhow::Result<()> {
    let in_rust = count(gate)?;
    let build = ["build", "--release", "--package", "outlast-c"];
    gate.step("build of the library for C", minutes(20), cargo(&build))?;
    let (library, program) =
        (target_folder().join("release"), target_folder().join("instructions-c"));
    let compile = valgrind::compile_c("instructions", &library, &program);
    gate.step("the C program", minutes(2), compile)?;
    let text = run_counted(gate, "the C program under callgrind", Some(&program))?;
    let mut over = Vec::new();
    for [function, of_c, of_rust, name] in COUNTED_IN_C {
        let count_of = |function: &str| {
            let count = total_of(&text, function)
                .with_context(|| format!("valgrind counted nothing in `{function}` of C"))?;
            Ok::<f64, anyhow::Error>(count as f64 / CALLS as f64)
        };
        // The call of Rust itself takes more in a shared library with the mpi engine than in a
        // program in Rust without it: docs/performance.md has the parts.
        let (count, more) = (count_of(function)?, count_of(of_c)? - count_of(of_rust)?);
        let in_all = count - in_rust[name];
        println!("{name:<30} {count:>9.1} instructions in C: {in_all:.1} above a program in Rust");
        println!("{:<30} {more:>9.1} of them in the call of C", "");
        if more > MORE_IN_C {
            over.push(format!("{name} takes {more:.1} instructions more in C, not {MORE_IN_C}"));
        }
    }
    ensure!(over.is_empty(), "{}", over.join("; "));
    Ok(())
}

/// Builds the program, and counts the instructions of a call of each kind.
fn count(gate: &mut Gate) -> anyhow::Result<Counts> {
    let build = start_build(gate)?;
    gate.finish(build)?;
    count_built(gate)
}

/// Starts to build the program whose instructions are counted. Most of it is a single crate that is
/// compiled by a single thread, so that other steps can run meanwhile.
pub(crate) fn start_build(gate: &mut Gate) -> anyhow::Result<Running> {
    let build = ["build", "--release", "--package", "outlast-instructions"];
    gate.start("build of the counted program", minutes(20), cargo(&build))
}

/// Counts the instructions of a call of each kind in the program that was built.
fn count_built(gate: &mut Gate) -> anyhow::Result<Counts> {
    let text = run_counted(gate, "the counted program under callgrind", None)?;
    COUNTED
        .into_iter()
        .map(|(name, function, calls)| {
            let total = total_of(&text, function)
                .with_context(|| format!("valgrind counted nothing in `{function}`"))?;
            Ok((name.to_string(), total as f64 / calls as f64))
        })
        .collect()
}

/// Runs the counted program, or another program that it starts in its place, under callgrind, and
/// returns what callgrind wrote.
fn run_counted(gate: &mut Gate, step: &str, program: Option<&Path>) -> anyhow::Result<String> {
    let valgrind = valgrind::install()?;
    let folder = target_folder().join("instructions");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let mut job = Command::new(target_folder().join("release/outlast-instructions"));
    job.args(program).env("OUTLAST_VALGRIND", valgrind).env("OUTLAST_COUNTS", &folder);
    gate.step(step, minutes(5), job)?;
    let path = folder.join("out");
    std::fs::read_to_string(&path).with_context(|| format!("valgrind left no {}", path.display()))
}

/// The instructions of a function of the program, and of all that it called, in a file of
/// callgrind. The cost lines below the name of a function are its own costs, and behind a line
/// `calls=` the costs of the function that it called. A function has a number, and its name stands
/// only where the number is first used.
fn total_of(text: &str, function: &str) -> Option<u64> {
    let mut wanted = None;
    let mut is_inside = false;
    let mut total = None;
    for line in text.lines() {
        let named = line.strip_prefix("fn=").or(line.strip_prefix("cfn="));
        if let Some((number, name)) = named.and_then(|named| named.split_once(' '))
            && is_named(name, function)
        {
            wanted = Some(number);
        }
        if let Some(named) = line.strip_prefix("fn=") {
            is_inside = wanted.is_some() && named.split(' ').next() == wanted;
        } else if is_inside
            && line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first))
        {
            let cost: Option<u64> =
                line.split_whitespace().last().and_then(|cost| cost.parse().ok());
            total = Some(total.unwrap_or(0) + cost?);
        }
    }
    total
}

/// Whether a symbol ends with these parts, as in `Type::function`, apart from its hash.
fn is_named(symbol: &str, wanted: &str) -> bool {
    let mut parts = symbol.rsplit("::").filter(|part| !is_hash(part));
    wanted.rsplit("::").all(|part| parts.next() == Some(part))
}

/// Whether a part of a symbol is the hash that the compiler adds to it.
fn is_hash(part: &str) -> bool {
    part.len() == 17
        && part.starts_with('h')
        && part[1..].bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::workspace;

    #[test]
    fn the_total_of_a_function_has_the_functions_that_it_called() {
        let text = "events: Ir\nsummary: 99\n\nfn=(1) example::counted_put\n10 5\ncfn=(2) put\n\
                    calls=20 7\n+1 1300\n* 3\n\nfn=(2)\n7 1300\n\n\
                    fn=(3) example::counted_put_by_key::h0123456789abcdef\n1 44\n\
                    cfn=(4) example::counted_version\ncalls=1 2\n* 9\n\nfn=(4)\n2 9\n";
        assert_eq!(total_of(text, "counted_put"), Some(1308));
        assert_eq!(total_of(text, "example::counted_put"), Some(1308));
        assert_eq!(total_of(text, "other::counted_put"), None);
        assert_eq!(total_of(text, "counted_put_by_key"), Some(44 + 9));
        assert_eq!(total_of(text, "counted_version"), Some(9));
        assert_eq!(total_of(text, "counted_get"), None);
    }

    #[test]
    fn more_instructions_than_recorded_are_an_error_beyond_the_tolerance() {
        let counts = |count: f64| Counts::from([("put".to_string(), count)]);
        assert!(compare(&counts(1000.0), &counts(1029.0)).is_ok());
        assert!(compare(&counts(1000.0), &counts(500.0)).is_ok());
        let error = compare(&counts(1000.0), &counts(1031.0)).expect_err("slower").to_string();
        assert!(error.contains("put takes 1031.0 instructions, 1000.0 recorded"), "{error}");
        assert!(compare(&Counts::new(), &counts(1.0)).is_err(), "not recorded");
    }

    #[test]
    fn every_count_has_a_recorded_figure() {
        let text = std::fs::read(record_path()).expect("the figures");
        let recorded: Counts = serde_json::from_slice(&text).expect("a table");
        let names: Vec<&str> = recorded.keys().map(String::as_str).collect();
        let mut counted = COUNTED.map(|(name, _, _)| name);
        counted.sort_unstable();
        assert_eq!(names, counted);
    }

    #[test]
    fn the_program_makes_the_calls_that_are_counted() {
        let path = workspace().join("bench/instructions/src/main.rs");
        let program = std::fs::read_to_string(path).expect("the program");
        assert!(program.contains("const CALLS: u64 = 10_000;") && CALLS == 10_000);
        assert!(program.contains("const TRANSACTIONS: u64 = 1_000;") && TRANSACTIONS == 1_000);
        for (_, function, _) in COUNTED {
            assert!(program.contains(&format!("fn {function}(")), "{function}");
        }
    }
}
