//! Compiles the plug-in with the compiler wrapper of an Open MPI, and says what is wrong with a
//! wrapper that does not fit.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The shim, as the plug-in is compiled from it.
const SOURCE: &str = include_str!("../shim.c");

/// The wrappers that are tried: the one that MPICC names, or else that of PATH and that of
/// `cargo xtask mpi`.
pub fn wrappers() -> Vec<PathBuf> {
    match std::env::var_os("MPICC").filter(|named| !named.is_empty()) {
        // Falling back from a named compiler to another would hide a typing error.
        Some(named) => vec![PathBuf::from(named)],
        None => {
            let installed =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mpi/bin/mpicc");
            vec![PathBuf::from("mpicc"), installed]
        }
    }
}

/// Compiles the plug-in with the first wrapper of Open MPI with ULFM, and puts it at `to`. Returns
/// the wrapper. An error names each wrapper with its reason, and says what to type.
pub fn compile(wrappers: &[PathBuf], to: &Path) -> Result<PathBuf, String> {
    let mut refusals = String::new();
    for wrapper in wrappers {
        match compile_with(wrapper, to) {
            Ok(()) => return Ok(wrapper.clone()),
            Err(reason) => refusals += &format!("  {}: {reason}\n", wrapper.display()),
        }
    }
    Err(format!(
        "the plug-in for MPI needs Open MPI 5 with ULFM, and none was found:\n{refusals}\
         To use another MPI, set MPICC to its mpicc. In a checkout, `cargo xtask mpi` installs one."
    ))
}

fn compile_with(mpicc: &Path, to: &Path) -> Result<(), String> {
    let folder = to.parent().ok_or("the plug-in needs a folder")?;
    let compile = show(mpicc, "--showme:compile")?;
    let has_ulfm = compile.iter().filter_map(|flag| flag.strip_prefix("-I")).any(|folder| {
        std::fs::read_to_string(Path::new(folder).join("mpi-ext.h"))
            .is_ok_and(|text| text.contains("OMPI_HAVE_MPI_EXT_FTMPI 1"))
    });
    if !has_ulfm {
        return Err("its Open MPI has no ULFM (no FTMPI in mpi-ext.h)".into());
    }
    let said = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(said)?;
    // Of this process alone: another process may compile at the same time.
    let name = |end: &str| folder.join(format!("outlast-mpi-{}{end}", std::process::id()));
    let (source, made) = (name(".c"), name(".so"));
    std::fs::write(&source, SOURCE).map_err(said)?;
    let mut command = Command::new(mpicc);
    command.args(["-std=c11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-o"]);
    command.arg(&made).arg(&source);
    // The library lies in the folder of an -L, so that folder is also the run path, with or without
    // an -rpath among the wrapper's own flags.
    for flag in show(mpicc, "--showme:link")? {
        if let Some(folder) = flag.strip_prefix("-L") {
            command.arg(format!("-Wl,-rpath,{folder}"));
        }
    }
    let output = command.output().map_err(|error| error.to_string());
    let _ = std::fs::remove_file(&source);
    let output = output?;
    if !output.status.success() {
        let _ = std::fs::remove_file(&made);
        return Err(format!("it failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    std::fs::rename(&made, to).map_err(said)
}

/// The words that `mpicc` prints for an option.
fn show(mpicc: &Path, what: &str) -> Result<Vec<String>, String> {
    let output = Command::new(mpicc).arg(what).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("`{what}` failed: not Open MPI's compiler wrapper?"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_string).collect())
}
