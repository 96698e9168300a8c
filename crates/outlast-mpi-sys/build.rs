//! Compiles the shim with the flags of `mpicc`, and says what to type if no usable `mpicc` is
//! found.

use std::path::{Path, PathBuf};
use std::process::{Command, exit};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=shim.c");
    println!("cargo::rerun-if-env-changed=MPICC");
    if std::env::var_os("CARGO_FEATURE_LINK").is_none() {
        return;
    }
    println!("cargo::rerun-if-env-changed=PATH");
    // The folder into which `cargo xtask mpi` installs, whatever CARGO_TARGET_DIR says: see
    // xtask/src/mpi.rs.
    let installed = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"))
        .join("../../target/mpi/bin/mpicc");
    println!("cargo::rerun-if-changed={}", installed.display());

    let mut refusals = Vec::new();
    let candidates: Vec<PathBuf> = match std::env::var_os("MPICC") {
        // Falling back from a named compiler to another would hide a typing error.
        Some(named) => vec![PathBuf::from(named)],
        None => vec![PathBuf::from("mpicc"), installed],
    };
    for mpicc in candidates {
        match Flags::of(&mpicc) {
            Ok(flags) => return build(&flags),
            Err(reason) => refusals.push(format!("{}: {reason}", mpicc.display())),
        }
    }
    fail(&refusals)
}

/// Ends the build, and says what was tried and what to type.
fn fail(refusals: &[String]) -> ! {
    eprintln!("outlast's feature `mpi` needs Open MPI 5 with ULFM, and none was found:");
    for refusal in refusals {
        eprintln!("  {refusal}");
    }
    eprintln!("To install one into this workspace's target/mpi, type: cargo xtask mpi");
    eprintln!("To use another one, set MPICC to its mpicc.");
    exit(1)
}

/// What `mpicc` would pass to the compiler and to the linker.
struct Flags {
    compile: Vec<String>,
    link: Vec<String>,
}

impl Flags {
    /// The flags of this `mpicc`, if it is Open MPI's and its header has ULFM.
    fn of(mpicc: &Path) -> Result<Flags, String> {
        let flags = Flags {
            compile: show(mpicc, "--showme:compile")?,
            link: show(mpicc, "--showme:link")?,
        };
        let has_ulfm =
            flags.compile.iter().filter_map(|flag| flag.strip_prefix("-I")).any(|folder| {
                let header = Path::new(folder).join("mpi-ext.h");
                std::fs::read_to_string(header)
                    .is_ok_and(|text| text.contains("OMPI_HAVE_MPI_EXT_FTMPI 1"))
            });
        if has_ulfm {
            Ok(flags)
        } else {
            Err("its Open MPI has no ULFM (no FTMPI in mpi-ext.h)".into())
        }
    }
}

/// The words that `mpicc` prints for an option.
fn show(mpicc: &Path, what: &str) -> Result<Vec<String>, String> {
    let output = Command::new(mpicc).arg(what).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("`{what}` failed: not Open MPI's compiler wrapper?"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_string).collect())
}

/// Compiles the shim, and tells cargo how to link Open MPI.
fn build(flags: &Flags) {
    let mut shim = cc::Build::new();
    shim.file("shim.c").std("c11").warnings(true).extra_warnings(true);
    for flag in &flags.compile {
        shim.flag(flag);
    }
    shim.compile("outlast_mpi_shim");
    let mut run_paths = Vec::new();
    for flag in &flags.link {
        if let Some(folder) = flag.strip_prefix("-L") {
            println!("cargo::rustc-link-search=native={folder}");
            // The library lies in the folder of an absolute -L, so that folder is also the run
            // path, with or without an -rpath among the wrapper's own flags.
            run_paths.push(folder.to_string());
        } else if let Some(library) = flag.strip_prefix("-l") {
            println!("cargo::rustc-link-lib=dylib={library}");
        }
    }
    // Link arguments reach only this package's own binaries, so dependent packages pass the run
    // path on themselves.
    println!("cargo::metadata=RPATH={}", run_paths.join(":"));
}
