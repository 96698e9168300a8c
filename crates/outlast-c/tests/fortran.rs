//! Fortran programs, compiled with gfortran against the module, as the members of a job.

#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use outlast::launch::Launch;
use std::path::Path;
use std::process::Command;
use support::{check_bad, kill_the_last_of, library_folder};

/// Runs gfortran with all warnings as errors, except for comparisons of reals: the tests compare
/// bit for bit.
fn compile(folder: &Path, arguments: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = library_folder();
    let output = Command::new("gfortran")
        .args(["-std=f2018", "-Wall", "-Wextra", "-Wno-compare-reals", "-Werror", "-J"])
        .arg(folder)
        .args(["-fcheck=bounds,mem,pointer", "-g", "-o"])
        .arg(folder.join("program"))
        .arg(root.join("fortran/outlast.f90"))
        .args(arguments.iter().map(|name| root.join(name)))
        .arg(format!("-L{}", library.display()))
        .arg(format!("-Wl,--disable-new-dtags,-rpath,{}", library.display()))
        .arg("-loutlast_c")
        .output()
        .expect("gfortran; type: cargo xtask fortran");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn fortran_programs_outlast_a_member() {
    let folder = tempfile::tempdir().expect("a folder");
    compile(folder.path(), &["tests/fortran/members.f90"]);
    kill_the_last_of(Launch::new(4).program(folder.path().join("program")));
}

#[test]
fn fortran_programs_shrink_communicators_and_windows_after_a_death() {
    let folder = tempfile::tempdir().expect("a folder");
    compile(folder.path(), &["tests/fortran/windows.f90"]);
    let program = folder.path().join("program");
    let launch = Launch::new(4).program(program).args([folder.path().join("snapshots")]);
    kill_the_last_of(launch.env("OUTLAST_DOMAIN", "rack3/node17"));
}

#[test]
fn bad_input_in_fortran_has_a_code_and_a_message() {
    let folder = tempfile::tempdir().expect("a folder");
    compile(folder.path(), &["tests/fortran/bad.f90"]);
    let program = folder.path().join("program");
    check_bad(Launch::new(1).program(&program), folder.path());
}

/// The functions of the library that the module declares exist, by the names in `bind(C)`.
#[test]
fn the_functions_of_the_module_are_those_of_the_header() {
    let header = include_str!("../include/outlast.h");
    let module = include_str!("../fortran/outlast.f90");
    let bound = module.split("bind(C, name=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let bound: Vec<&str> = bound.filter(|name| name.starts_with("outlast_")).collect();
    assert!(bound.len() > 100, "only {} functions were found", bound.len());
    for name in bound {
        assert!(header.contains(&format!("{name}(")), "the header has no {name}");
    }
}

#[test]
fn the_module_for_mpi_compiles() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("gfortran")
        .args(["-std=f2018", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-J"])
        .arg(folder.path())
        .arg(root.join("fortran/outlast.f90"))
        .arg(root.join("fortran/outlast_mpi.f90"))
        .output()
        .expect("gfortran; type: cargo xtask fortran");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_codes_of_the_module_are_equal_to_the_codes_of_the_header() {
    let header = include_str!("../include/outlast.h");
    let module = include_str!("../fortran/outlast.f90");
    let codes = header.split_once("enum outlast_status {").expect("the enum").1;
    let codes = codes.split_once("};").expect("its end").0;
    let codes = codes.lines().filter_map(|line| {
        let (name, code) = line.trim().strip_prefix("OUTLAST_")?.split_once(" = ")?;
        Some((name.to_lowercase(), code.trim_end_matches(',')))
    });
    let mut count = 0;
    for (name, code) in codes {
        let line = format!("integer, parameter, public :: outlast_{name} = {code}");
        assert!(module.contains(&format!("{line}\n")), "the module has no line: {line}");
        count += 1;
    }
    assert!(count >= 20, "only {count} codes were found in the header");
}
