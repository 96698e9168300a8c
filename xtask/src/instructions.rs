//! `cargo xtask instructions`: the instructions of a put and of a get through a handle on shm.
//!
//! The count does not depend on the load of the machine, as times do, so that two versions of the
//! library can be compared. The example `instructions` makes a fixed number of calls, and valgrind
//! counts inside the functions that make them.

use crate::gate::{Gate, cargo, minutes, target_folder};
use anyhow::{Context, bail};
use std::path::Path;
use std::process::{Command, Stdio};

/// The number of calls that each counted function of the example makes.
const CALLS: u64 = 20_000;

/// What is counted: its name, and the function of the example that makes the calls.
const COUNTED: [(&str, &str); 2] = [("put", "counted_puts"), ("get", "counted_gets")];

/// The members of the job, with three replicas of the value.
const MEMBERS: &str = "4";

/// Builds, counts, and prints the instructions of a call.
pub(crate) fn instructions() -> anyhow::Result<()> {
    let valgrind = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    if !valgrind.is_ok_and(|status| status.success()) {
        bail!("valgrind does not run; install it (Debian: apt-get install valgrind)");
    }
    let mut gate = Gate::new(minutes(60));
    let mut rows = Vec::new();
    let result = count(&mut gate, &mut rows);
    let result = gate.summarize("instructions", result);
    for (name, instructions) in rows {
        println!("{name} through a handle: {instructions:.1} instructions");
    }
    result
}

fn count(gate: &mut Gate, rows: &mut Vec<(&str, f64)>) -> anyhow::Result<()> {
    let build = |arguments: &[&str]| cargo(&[&["build", "--release"], arguments].concat());
    gate.step("build of the command", minutes(20), build(&["--package", "outlast-cli"]))?;
    // Built apart: together with the command, the library would have the features of the command.
    let example = ["--package", "outlast", "--example", "instructions"];
    gate.step("build of the example", minutes(20), build(&example))?;
    let release = target_folder().join("release");
    let folder = target_folder().join("instructions");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    for (name, function) in COUNTED {
        let mut job = Command::new(release.join("outlast"));
        let file = |kind: &str| format!("{}/{kind}.%p", folder.display());
        // valgrind warns of system calls that it does not know, again and again: into a file.
        job.args(["run", "-n", MEMBERS, "valgrind", "--tool=callgrind"])
            .arg(format!("--log-file={}", file("log")))
            .arg(format!("--callgrind-out-file={}", file(function)))
            .arg(format!("--toggle-collect=*{function}*"))
            .arg(release.join("examples/instructions"));
        gate.step(&format!("{function} under callgrind"), minutes(10), job)?;
        rows.push((name, count_in(&folder, function)? as f64 / CALLS as f64));
    }
    Ok(())
}

/// The instructions of the member that made the calls: the greatest count of all members.
fn count_in(folder: &Path, function: &str) -> anyhow::Result<u64> {
    let mut greatest = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(function) {
            let text = std::fs::read_to_string(entry.path())?;
            greatest = greatest.max(total_of(&text).unwrap_or(0));
        }
    }
    if greatest == 0 {
        bail!("valgrind counted nothing in `{function}`; see its files in {}", folder.display());
    }
    Ok(greatest)
}

/// The total of a file of callgrind, in its line `summary:` or `totals:`.
fn total_of(text: &str) -> Option<u64> {
    let total = |line: &str| {
        let counts = line.strip_prefix("summary:").or(line.strip_prefix("totals:"))?;
        counts.split_whitespace().next()?.parse().ok()
    };
    text.lines().filter_map(total).max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::workspace;

    #[test]
    fn the_total_of_a_file_is_found() {
        assert_eq!(total_of("events: Ir\nsummary: 1340\n\ntotals: 1340\n"), Some(1340));
        assert_eq!(total_of("events: Ir\n"), None);
    }

    #[test]
    fn the_example_makes_the_calls_that_are_counted() {
        let path = workspace().join("examples/rust/instructions.rs");
        let example = std::fs::read_to_string(path).expect("the example");
        assert!(example.contains("const CALLS: u64 = 20_000;") && CALLS == 20_000);
        for (_, function) in COUNTED {
            assert!(example.contains(&format!("fn {function}(")), "{function}");
        }
    }
}
