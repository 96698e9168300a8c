//! Installs packages of Debian that tests and benchmarks use.

use anyhow::{Context, bail, ensure};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

/// Whether a program is installed and runs.
pub(crate) fn runs(program: &str) -> bool {
    // Some programs, such as tmux, know only the short option.
    ["--version", "-V"].iter().any(|option| {
        let version = Command::new(program).arg(option).stderr(Stdio::null()).output();
        version.is_ok_and(|output| output.status.success())
    })
}

/// Installs a package of Debian, which needs root. Does nothing if its program is there already.
pub(crate) fn install(package: &str, program: &str) -> anyhow::Result<()> {
    if runs(program) {
        return Ok(());
    }
    if std::fs::metadata("/proc/self").map_or(0, |process| process.uid()) != 0 {
        bail!("installing {package} needs root; type: apt-get install {package}");
    }
    // The list of packages of a new machine may be empty or old. Errors show at the next step.
    let _ = Command::new("apt-get").args(["update", "-qq"]).stdin(Stdio::null()).status();
    let status = Command::new("apt-get")
        .args(["install", "-y", "-qq", "--no-install-recommends", package])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot run apt-get; install {package} by other means"))?;
    ensure!(status.success() && runs(program), "apt-get could not install {package}");
    Ok(())
}
