//! Fetches the stores that `outlast bench --peers` compares with, and Open MPI, on which hosts are
//! compared. Debian's packages are unpacked below `target`, without touching the system: an
//! installed server would be started at once.

use crate::gate::workspace;
use crate::{debian, mpi};
use anyhow::{Context, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A server of Debian, and the packages that it needs.
struct Server {
    /// The folder below `target`.
    folder: &'static str,
    program: &'static str,
    packages: &'static [&'static str],
    /// Another name of the program in its package, if it has one.
    other_name: Option<&'static str>,
}

const REDIS: Server = Server {
    folder: "redis",
    program: "redis-server",
    packages: &[
        "redis-tools",
        "libatomic1",
        "libhiredis0.14",
        "libjemalloc2",
        "liblua5.1-0",
        "liblzf1",
        "lua-bitop",
        "lua-cjson",
    ],
    // In Debian the server and the check of its files are a single program, which looks at its
    // name.
    other_name: Some("redis-check-rdb"),
};

const ETCD: Server =
    Server { folder: "etcd", program: "etcd", packages: &["etcd-server"], other_name: None };

const MEMCACHED: Server = Server {
    folder: "memcached",
    program: "memcached",
    packages: &["memcached", "libevent-2.1-7", "libsasl2-2"],
    other_name: None,
};

/// Unpacks Redis alone.
pub(crate) fn install_redis() -> anyhow::Result<PathBuf> {
    install_server(&REDIS)
}

/// Fetches all peers. A peer that cannot be fetched does not hinder the others.
pub(crate) fn install() -> anyhow::Result<()> {
    let peers = [
        ("Redis", install_server(&REDIS)),
        ("etcd", install_server(&ETCD)),
        ("memcached", install_server(&MEMCACHED)),
        ("LMDB", install_lmdb()),
        ("Hazelcast", install_hazelcast()),
        ("Open MPI", mpi::install()),
    ];
    let mut missing = Vec::new();
    for (name, result) in peers {
        match result {
            Ok(path) => println!("{name} is {}", path.display()),
            Err(error) => {
                println!("{name} is missing: {error:#}");
                missing.push(name);
            }
        }
    }
    ensure!(missing.is_empty(), "could not fetch {}", missing.join(", "));
    Ok(())
}

/// Unpacks a server, and makes a script that runs it with the libraries beside it. Does nothing if
/// it is there already.
fn install_server(server: &Server) -> anyhow::Result<PathBuf> {
    let folder = workspace().join("target").join(server.folder);
    let script_path = folder.join(server.program);
    if runs(&script_path) {
        return Ok(script_path);
    }
    unpack(&folder, server.packages)?;
    let program = folder.join("usr/bin").join(server.program);
    if let (false, Some(name)) = (program.exists(), server.other_name) {
        std::os::unix::fs::symlink(name, &program).context("naming the server")?;
    }
    let libraries = std::fs::read_dir(folder.join("usr/lib")).into_iter().flatten();
    let libraries = libraries.filter_map(|entry| Some(entry.ok()?.path().display().to_string()));
    let script = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH='{}' exec '{}' \"$@\"\n",
        libraries.collect::<Vec<_>>().join(":"),
        program.display()
    );
    std::fs::write(&script_path, script).context("writing the starter")?;
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&script_path, std::fs::Permissions::from_mode(0o700))?;
    if !runs(&script_path) {
        bail!("{} was unpacked into {} but does not run", server.program, folder.display());
    }
    Ok(script_path)
}

/// Unpacks the header and the library of LMDB.
fn install_lmdb() -> anyhow::Result<PathBuf> {
    let folder = workspace().join("target/lmdb");
    if !folder.join("usr/include/lmdb.h").exists() {
        unpack(&folder, &["liblmdb-dev"])?;
    }
    Ok(folder)
}

/// Builds the program of Hazelcast with Maven, which fetches the library.
fn install_hazelcast() -> anyhow::Result<PathBuf> {
    debian::install("openjdk-17-jdk-headless", "javac")?;
    debian::install("maven", "mvn")?;
    let built = Command::new("mvn")
        .args(["--quiet", "--batch-mode", "package"])
        .current_dir(workspace().join("bench/peers/hazelcast"))
        .stdin(Stdio::null())
        .status()
        .context("cannot run mvn")?;
    ensure!(built.success(), "Maven could not build it; see its message above");
    Ok(workspace().join("target/hazelcast"))
}

/// Fetches packages of Debian, and unpacks them into a folder.
fn unpack(folder: &Path, packages: &[&str]) -> anyhow::Result<()> {
    let archives = folder.join("packages");
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(&archives)
        .with_context(|| format!("cannot make {}", archives.display()))?;
    let download = || {
        let mut command = Command::new("apt-get");
        command.args(["-qq", "download"]).args(packages).current_dir(&archives);
        command.status().context("cannot run apt-get, which fetches it")
    };
    // The list of packages of a new machine is empty.
    let is_fetched = download()?.success() || {
        let _ = Command::new("apt-get").args(["update", "-qq"]).stdin(Stdio::null()).status();
        download()?.success()
    };
    ensure!(is_fetched, "apt-get could not fetch {}; see its message above", packages.join(", "));
    for package in std::fs::read_dir(&archives)? {
        let package = package?.path();
        let unpacked = Command::new("dpkg").arg("-x").arg(&package).arg(folder).status()?;
        ensure!(unpacked.success(), "dpkg could not unpack {}", package.display());
    }
    Ok(())
}

fn runs(server: &Path) -> bool {
    let version = Command::new(server).arg("--version").stderr(Stdio::null()).output();
    version.is_ok_and(|output| output.status.success())
}
