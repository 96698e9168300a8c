//! The scenarios that the mpi engine is held to, under a real mpirun: that which `MPIRUN` names, the one that
//! `cargo xtask mpi` installed, or that of the `PATH`.

use outlast_conformance::{Scenario, mpi, scenarios};
use std::path::{Path, PathBuf};

fn mpirun() -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mpi/bin/mpirun");
    match std::env::var_os("MPIRUN") {
        Some(named) => named.into(),
        None if installed.exists() => installed,
        None => "mpirun".into(),
    }
}

/// One job after the other: on a small machine mpirun's processes take all there is.
#[test]
fn the_part_for_mpi() {
    let program = Path::new(env!("CARGO_BIN_EXE_outlast-conformance"));
    let part: Vec<&'static Scenario> = scenarios().iter().filter(|scenario| scenario.runs_on_mpi()).collect();
    assert!(!part.is_empty());
    let failures: Vec<String> = part
        .into_iter()
        .filter_map(|scenario| {
            let failure = mpi::run(&mpirun(), program, scenario, 1).err()?;
            Some(format!("{}: {failure}", scenario.name))
        })
        .collect();
    assert!(failures.is_empty(), "{} scenarios failed:\n{}", failures.len(), failures.join("\n"));
}
