//! The build of the shim refuses any compiler that is not of Open MPI 5 with ULFM, and says what is
//! wrong and what to type.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Builds this package with `mpicc` as its compiler wrapper, which must fail; the output of cargo.
fn refused(mpicc: &Path) -> String {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("refusals");
    let output = Command::new(env!("CARGO"))
        .args(["build", "--offline", "--quiet", "--features", "link", "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        .env("MPICC", mpicc)
        .output()
        .expect("cargo");
    assert!(!output.status.success(), "{} was taken", mpicc.display());
    String::from_utf8_lossy(&output.stderr).into_owned()
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
        let said = refused(&mpicc);
        for part in [reason, "cargo xtask mpi", "set MPICC", &*mpicc.to_string_lossy()] {
            assert!(said.contains(part), "`{part}` is not in:\n{said}");
        }
    }
}
