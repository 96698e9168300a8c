//! Unpacks Redis for `outlast bench put --peers redis`, without touching the system.

use crate::gate::workspace;
use anyhow::{Context, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The server and the libraries that it needs, as Debian names them.
const PACKAGES: [&str; 8] = [
    "redis-tools",
    "libatomic1",
    "libhiredis0.14",
    "libjemalloc2",
    "liblua5.1-0",
    "liblzf1",
    "lua-bitop",
    "lua-cjson",
];

/// Unpacks Debian's packages into `target/redis` and makes `target/redis/redis-server`, which runs
/// the server with the libraries beside it. Does nothing if it is there already.
pub(crate) fn install() -> anyhow::Result<PathBuf> {
    let folder = workspace().join("target/redis");
    let server = folder.join("redis-server");
    if runs(&server) {
        return Ok(server);
    }
    let packages = folder.join("packages");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&packages)
        .with_context(|| format!("cannot make {}", packages.display()))?;
    let said = "cannot run apt-get, which fetches Redis; install it and set REDIS_SERVER";
    let download = Command::new("apt-get")
        .arg("download")
        .args(PACKAGES)
        .current_dir(&packages)
        .status()
        .context(said)?;
    ensure!(
        download.success(),
        "apt-get could not fetch {}; see its message above",
        PACKAGES.join(", ")
    );
    for package in std::fs::read_dir(&packages)? {
        let package = package?.path();
        let unpacked = Command::new("dpkg").arg("-x").arg(&package).arg(&folder).status()?;
        ensure!(unpacked.success(), "dpkg could not unpack {}", package.display());
    }
    // In Debian the server and the check of its files are a single program, which looks at its
    // name.
    let bin = folder.join("usr/bin");
    let program = bin.join("redis-server");
    if !program.exists() {
        std::os::unix::fs::symlink("redis-check-rdb", &program).context("naming the server")?;
    }
    let libraries =
        std::fs::read_dir(folder.join("usr/lib"))?.filter_map(|entry| Some(entry.ok()?.path()));
    let libraries: Vec<String> = libraries.map(|path| path.display().to_string()).collect();
    let script = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH='{}' exec '{}' \"$@\"\n",
        libraries.join(":"),
        program.display()
    );
    std::fs::write(&server, script).context("writing the starter")?;
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&server, std::fs::Permissions::from_mode(0o700))?;
    if !runs(&server) {
        bail!("Redis was unpacked into {} but does not run there", folder.display());
    }
    Ok(server)
}

fn runs(server: &Path) -> bool {
    let version = Command::new(server).arg("--version").stderr(Stdio::null()).output();
    version.is_ok_and(|output| output.status.success())
}
