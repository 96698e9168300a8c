//! No compiler that is not of Open MPI 5 with ULFM compiles the plug-in, and a file that is no
//! plug-in of this version is not loaded. Each error says what is wrong and what to type.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn refused(mpicc: &Path, folder: &Path) -> String {
    let to = folder.join("plug-in/liboutlast_mpi.so");
    let said = outlast_mpi_sys::compile(&[mpicc.to_path_buf()], &to).expect_err("not taken");
    assert!(!to.exists());
    said
}

#[test]
fn compilers_without_ulfm_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
            .expect("executable");
        path
    };
    // MPICH's wrapper does not know the option, nor does the compiler behind it.
    let mpich =
        script("mpicc-mpich", "#!/bin/sh\necho 'gcc: error: unrecognized option' >&2\nexit 1\n");
    // Open MPI 4 has the header without the extension.
    std::fs::write(folder.path().join("mpi-ext.h"), "#define OMPI_HAVE_MPI_EXT_AFFINITY 1\n")
        .expect("written");
    let four = format!("#!/bin/sh\necho -I{}\n", folder.path().display());
    let cases = [
        (folder.path().join("mpicc-absent"), "No such file"),
        (mpich, "not Open MPI's compiler wrapper?"),
        (script("mpicc-4", &four), "its Open MPI has no ULFM"),
    ];
    for (mpicc, reason) in cases {
        let said = refused(&mpicc, folder.path());
        for part in [reason, "cargo xtask mpi", "set MPICC", &*mpicc.to_string_lossy()] {
            assert!(said.contains(part), "`{part}` is not in:\n{said}");
        }
    }
}

/// Compiles a shared library of this C code.
fn library(folder: &Path, name: &str, code: &str) -> PathBuf {
    let (source, made) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.so")));
    std::fs::write(&source, code).expect("written");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&made).arg(&source);
    assert!(cc.status().expect("a C compiler").success());
    made
}

/// What loading says in a process of its own, whose variable names this plug-in.
fn load(plugin: &Path) -> String {
    let output = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "a_process_that_loads", "--nocapture"])
        .env("OUTLAST_MPI_SHIM", plugin)
        .env("OUTLAST_TEST_LOADS", "1")
        .output()
        .expect("started");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The process of `load`; alone it does nothing.
#[test]
fn a_process_that_loads() {
    if std::env::var_os("OUTLAST_TEST_LOADS").is_some() {
        println!("loading: {:?}", outlast_mpi_sys::load());
    }
}

#[test]
fn files_that_are_no_plugin_of_this_version_are_not_loaded() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text.so");
    std::fs::write(&text, "no library").expect("written");
    let other = library(folder.path(), "other", "int nothing;");
    let newer = "int outlast_mpi_interface(void) { return 99; }";
    let newer = library(folder.path(), "newer", newer);
    // A plug-in of another MPI: all functions are there, and the library is not Open MPI.
    let source = include_str!("../src/lib.rs");
    let names = source.split("fn outlast_mpi_").skip(1).filter_map(|rest| rest.split('(').next());
    let mut code =
        String::from("#include <string.h>\nint outlast_mpi_interface(void) { return 2; }\n");
    for name in names.filter(|name| *name != "versions") {
        code += &format!("int outlast_mpi_{name}(void) {{ return 1; }}\n");
    }
    code += "int outlast_mpi_versions(int *major, int *minor, char *text, int room) {\n\
             (void)room;\n*major = 5;\n*minor = 0;\n\
             strcpy(text, \"MPICH Version: 4.1\");\nreturn 0;\n}\n";
    let mpich = library(folder.path(), "mpich", &code);
    let cases = [
        (folder.path().join("absent.so"), "does not exist"),
        (text, "cannot be used"),
        (other, "it is no plug-in of Outlast"),
        (newer, "of another version of Outlast (interface 99, and not 2)"),
        (mpich, "runs with another MPI (MPICH Version: 4.1)"),
    ];
    for (plugin, reason) in cases {
        let said = load(&plugin);
        for part in [reason, "outlast mpi setup", &*plugin.to_string_lossy()] {
            assert!(said.contains(part), "`{part}` is not in:\n{said}");
        }
    }
}

#[test]
fn shim_and_crate_have_the_same_number_of_the_interface() {
    let number = |text: &str, before: &str| {
        let rest = text.split_once(before).expect("the number").1;
        rest.split(|c: char| !c.is_ascii_digit()).next().map(String::from)
    };
    let shim = number(include_str!("../shim.c"), "#define SHIM_INTERFACE ");
    let own = number(include_str!("../src/plugin.rs"), "INTERFACE: c_int = ");
    assert_eq!(shim, own);
}
