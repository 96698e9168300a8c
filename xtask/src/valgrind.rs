//! Finds valgrind, or unpacks it, without touching the system: for counting instructions, and for
//! checking the library for C.

use crate::gate::{Gate, cargo, minutes, workspace};
use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The package, as Debian names it.
const PACKAGE: &str = "valgrind";

/// The valgrind of the system, or else Debian's package, unpacked into `target/valgrind`.
pub(crate) fn install() -> anyhow::Result<PathBuf> {
    let of_system = PathBuf::from("valgrind");
    if runs(&of_system) {
        return Ok(of_system);
    }
    let folder = workspace().join("target/valgrind");
    let program = folder.join("valgrind");
    if runs(&program) {
        return Ok(program);
    }
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let said = "cannot run apt-get, which fetches valgrind; install valgrind";
    let download =
        Command::new("apt-get").args(["download", PACKAGE]).current_dir(&folder).status();
    ensure!(download.context(said)?.success(), "apt-get could not fetch valgrind; see above");
    for entry in std::fs::read_dir(&folder)? {
        let package = entry?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            let unpacked = Command::new("dpkg").arg("-x").arg(&package).arg(&folder).status()?;
            ensure!(unpacked.success(), "dpkg could not unpack {}", package.display());
        }
    }
    let script = format!(
        "#!/bin/sh\nVALGRIND_LIB='{0}/usr/libexec/valgrind' exec '{0}/usr/bin/valgrind' \"$@\"\n",
        folder.display()
    );
    std::fs::write(&program, script)?;
    let status = Command::new("chmod").arg("+x").arg(&program).status()?;
    ensure!(status.success() && runs(&program), "the unpacked valgrind does not run");
    Ok(program)
}

/// Runs the C programs of the tests under memcheck, with the members that die. AddressSanitizer
/// looks for leaks in the tests of `outlast-c`.
pub(crate) fn check_c(gate: &mut Gate) -> anyhow::Result<()> {
    let valgrind = install()?;
    let selection = ["--package", "outlast-c", "--features", "valgrind", "--test", "members"];
    let build = cargo(&[&["test", "--no-run"], &selection[..]].concat());
    gate.step("build of the tests of C programs", minutes(20), build)?;
    let mut check = cargo(&[&["test"], &selection[..]].concat());
    check.args(["c_programs_are_clean_under_valgrind"]).env("OUTLAST_VALGRIND", valgrind);
    gate.step("the C programs under memcheck", minutes(15), check)
}

/// Compiles a program of the tests in C, to be run with the library of this folder.
pub(crate) fn compile_c(name: &str, library: &Path, program: &Path) -> Command {
    let root = workspace().join("crates/outlast-c");
    let mut compile = Command::new("cc");
    compile
        .args(["-std=c11", "-D_DEFAULT_SOURCE", "-O2", "-g", "-o"])
        .arg(program)
        .arg(root.join(format!("tests/c/{name}.c")))
        .arg(format!("-I{}", root.join("include").display()))
        .arg(format!("-L{}", library.display()))
        // The path in the program comes before LD_LIBRARY_PATH, in which cargo names its folder
        // of the debug build.
        .arg(format!("-Wl,--disable-new-dtags,-rpath,{}", library.display()))
        .arg("-loutlast_c");
    compile
}

fn runs(program: &Path) -> bool {
    let status =
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
