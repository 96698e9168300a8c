//! Checks of what the mpi engine needs: Open MPI with ULFM.

use super::{Check, Status, check, numbers, output_of, read};
use std::path::PathBuf;
use std::process::Command;

/// The programs of Open MPI that were found.
pub(super) struct OpenMpi {
    pub(super) mpirun: Option<PathBuf>,
    pub(super) mpicc: Option<PathBuf>,
    /// The output of `ompi_info`; `None` if it is missing or did not answer.
    pub(super) info: Option<String>,
}

impl OpenMpi {
    pub(super) fn find() -> OpenMpi {
        let directories = mpi_directories();
        let program =
            |name: &str| directories.iter().map(|dir| dir.join(name)).find(|path| path.is_file());
        let info = program("ompi_info").and_then(|path| output_of(Command::new(path).arg("--all")));
        OpenMpi { mpirun: program("mpirun"), mpicc: program("mpicc"), info }
    }

    fn field(&self, name: &str) -> Option<String> {
        let lines = self.info.as_deref()?.lines();
        lines
            .filter_map(|line| line.trim().split_once(':'))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.trim().to_string())
    }

    pub(super) fn checks(&self) -> Vec<Check> {
        let install = "install it with `cargo xtask mpi`, or put Open MPI 5 with ULFM on PATH";
        let mut checks: Vec<Check> = [("mpirun", &self.mpirun), ("mpicc", &self.mpicc)]
            .into_iter()
            .map(|(name, found)| match found {
                Some(path) => check("mpi", name, Status::Ok, path.display().to_string(), ""),
                None => check("mpi", name, Status::Missing, "not found", install),
            })
            .collect();
        checks.push(match self.field("Open MPI") {
            Some(version) if numbers(&version) >= (5, 0) => {
                check("mpi", "Open MPI", Status::Ok, version, "")
            }
            Some(version) => {
                check("mpi", "Open MPI", Status::Missing, version, "version 5 or newer is needed")
            }
            None => check(
                "mpi",
                "Open MPI",
                Status::Missing,
                "ompi_info not found or not answering",
                install,
            ),
        });
        checks.push(match self.field("FT MPI support") {
            Some(support) if support.starts_with("yes") => {
                check("mpi", "ULFM", Status::Ok, support, "")
            }
            Some(support) => check(
                "mpi",
                "ULFM",
                Status::Missing,
                format!("FT MPI support: {support}"),
                "Open MPI was built without fault tolerance; build it with --with-ft=ulfm",
            ),
            None => check("mpi", "ULFM", Status::Missing, "unknown", "see Open MPI"),
        });
        checks.push(self.plugin(outlast_mpi_sys::inspect()));
        checks.push(namespaces());
        checks
    }

    /// Checks the plug-in through which programs call MPI: it is there, and for the MPI of mpirun.
    pub(super) fn plugin(&self, found: Result<outlast_mpi_sys::Plugin, String>) -> Check {
        let mpicc = self.mpicc.as_ref().map_or("mpicc".into(), |path| path.display().to_string());
        let setup = format!("type: MPICC={mpicc} outlast mpi setup");
        match found {
            Ok(plugin) => {
                let text = format!("{}, for {}", plugin.path.display(), plugin.mpi);
                match self.field("Open MPI") {
                    Some(version) if !plugin.mpi.ends_with(&format!("v{version}")) => {
                        let text = format!("{text}, and mpirun is of {version}");
                        check("mpi", "plug-in", Status::Warning, text, setup)
                    }
                    _ => check("mpi", "plug-in", Status::Ok, text, ""),
                }
            }
            Err(reason) => check("mpi", "plug-in", Status::Missing, reason, setup),
        }
    }
}

/// The folders that may hold Open MPI: in this workspace, or on `PATH`.
fn mpi_directories() -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> = Vec::new();
    let current = std::env::current_dir().unwrap_or_default();
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let targets = target.into_iter().chain(current.ancestors().map(|level| level.join("target")));
    directories.extend(targets.map(|target| target.join("mpi/bin")));
    directories.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    directories
}

/// Checks whether several hosts can be made of this machine, for tests.
fn namespaces() -> Check {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    const CAP_NET_ADMIN: u64 = 1 << 12;
    let status = read("/proc/self/status");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let may = effective & CAP_SYS_ADMIN != 0 && effective & CAP_NET_ADMIN != 0;
    let has_ip = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")])
        .any(|directory| directory.join("ip").is_file());
    match (may, has_ip) {
        (true, true) => check(
            "mpi",
            "network namespaces",
            Status::Ok,
            "allowed, for tests with several hosts",
            "",
        ),
        (true, false) => check(
            "mpi",
            "network namespaces",
            Status::Warning,
            "allowed, but the command ip is missing",
            "only tests with several hosts on one machine need it: install iproute2",
        ),
        (false, _) => check(
            "mpi",
            "network namespaces",
            Status::Warning,
            "not allowed for this user",
            "only tests with several hosts on one machine need them: run those as root",
        ),
    }
}
