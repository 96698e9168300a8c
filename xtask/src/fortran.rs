//! Installs gfortran, for the tests of the Fortran module.

use anyhow::{Context, bail, ensure};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

/// Whether gfortran is installed and runs.
pub(crate) fn is_installed() -> bool {
    let version = Command::new("gfortran").arg("--version").stderr(Stdio::null()).output();
    version.is_ok_and(|output| output.status.success())
}

/// Installs Debian's gfortran, which needs root. Does nothing if it is there already.
pub(crate) fn install() -> anyhow::Result<()> {
    if is_installed() {
        return Ok(());
    }
    if std::fs::metadata("/proc/self").map_or(0, |process| process.uid()) != 0 {
        bail!("installing gfortran needs root; type: apt-get install gfortran");
    }
    // The list of packages of a new machine may be empty or old. Errors show at the next step.
    let _ = Command::new("apt-get").args(["update", "-qq"]).stdin(Stdio::null()).status();
    let status = Command::new("apt-get")
        .args(["install", "-y", "-qq", "--no-install-recommends", "gfortran"])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .status()
        .context("cannot run apt-get; install gfortran by other means")?;
    ensure!(status.success() && is_installed(), "apt-get could not install gfortran");
    Ok(())
}
