//! Finds valgrind, or unpacks it, for counting instructions, without touching the system.

use crate::gate::workspace;
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

fn runs(program: &Path) -> bool {
    let status =
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
