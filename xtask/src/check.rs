//! `cargo xtask check`: the quick gate, for every commit. `cargo xtask test` comes before a merge.

use crate::gate::{Gate, cargo, clippy, minutes};
use crate::test::FEATURES;
use crate::tidy;

/// Format, lints, house rules and unit tests, within 3 minutes on 2 warm cores.
pub(crate) fn check() -> anyhow::Result<()> {
    let mut gate = Gate::new(minutes(30));
    let result = run(&mut gate);
    gate.summarize("check", result)
}

fn run(gate: &mut Gate) -> anyhow::Result<()> {
    gate.step("format", minutes(2), cargo(&["fmt", "--all", "--check"]))?;
    gate.step_here("house rules", tidy::tidy)?;
    let workspace = ["--workspace", "--all-targets", "--features", FEATURES];
    gate.step("lints", minutes(15), clippy(&workspace))?;
    let packages = ["outlast", "outlast-check", "outlast-plan", "outlast-tasks", "xtask"];
    let packages = packages.map(|name| format!("--package={name}"));
    let unit_tests = ["--lib", "--bins", "--features", FEATURES];
    let mut command = cargo(&["test"]);
    command.args(packages).args(unit_tests);
    gate.step("unit tests", minutes(15), command)
}
