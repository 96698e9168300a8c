//! `outlast doctor`: checks whether this machine can run each engine, and says what to do if not.

mod mpi;
mod shm;

use crate::report::{say, write_json};
use clap::Args;
use mpi::OpenMpi;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  A table for people:
      outlast doctor
  The findings as JSON; standard output gets nothing else:
      outlast doctor --json -

Exit status: 0 the default engine (shm) works here, 1 it does not, 2 wrong usage.";

/// How long a program may take to tell its version.
const PROGRAM_LIMIT: Duration = Duration::from_secs(20);

/// Check whether this machine can run each engine, and say what to do if not.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// Write the findings as JSON to this file; - is standard output
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Warning,
    Missing,
}

#[derive(Clone, Debug, Serialize)]
struct Check {
    /// The engine that needs it; `machine` if all engines do.
    engine: &'static str,
    name: &'static str,
    status: Status,
    found: String,
    /// What to do about it; empty if there is nothing to do.
    advice: String,
}

#[derive(Clone, Debug, Serialize)]
struct EngineStatus {
    engine: &'static str,
    status: Status,
    because: String,
    /// The line to type, with PROGRAM for the user's program.
    launch: String,
}

#[derive(Serialize)]
struct DoctorReport {
    ok: bool,
    version: &'static str,
    checks: Vec<Check>,
    engines: Vec<EngineStatus>,
}

impl Doctor {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let mpi = OpenMpi::find();
        let mut checks = shm::machine();
        checks.extend(shm::shm());
        checks.extend(mpi.checks());
        let engines = engine_statuses(&checks, &mpi);
        let is_ok =
            engines.iter().any(|engine| engine.engine == "shm" && engine.status != Status::Missing);
        print_table(self.json.as_deref(), &checks, &engines);
        if let Some(path) = &self.json {
            write_json(
                path,
                &DoctorReport { ok: is_ok, version: env!("CARGO_PKG_VERSION"), checks, engines },
            )?;
        }
        Ok(is_ok)
    }
}

fn print_table(json: Option<&Path>, checks: &[Check], engines: &[EngineStatus]) {
    let label = |status| match status {
        Status::Ok => "ok",
        Status::Warning => "warning",
        Status::Missing => "missing",
    };
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut section = "";
    for check in checks {
        if check.engine != section {
            section = check.engine;
            say(json, format_args!("{section}"));
        }
        say(
            json,
            format_args!("  {:<7}  {:<width$}  {}", label(check.status), check.name, check.found),
        );
        if !check.advice.is_empty() {
            say(json, format_args!("  {:<7}  {:<width$}  -> {}", "", "", check.advice));
        }
    }
    say(json, "engines");
    for engine in engines {
        say(
            json,
            format_args!(
                "  {:<7}  {:<width$}  {}",
                label(engine.status),
                engine.engine,
                engine.because
            ),
        );
        say(json, format_args!("  {:<7}  {:<width$}  $ {}", "", "", engine.launch));
    }
}

fn check(
    engine: &'static str,
    name: &'static str,
    status: Status,
    found: impl Into<String>,
    advice: impl Into<String>,
) -> Check {
    Check { engine, name, status, found: found.into(), advice: advice.into() }
}

/// A check that is `ok` with what was found, or `missing` with what to do.
fn need(
    engine: &'static str,
    name: &'static str,
    found: Result<String, rustix::io::Errno>,
    advice: &str,
) -> Check {
    match found {
        Ok(found) => check(engine, name, Status::Ok, found, ""),
        Err(error) => check(engine, name, Status::Missing, error.to_string(), advice),
    }
}

fn engine_statuses(checks: &[Check], mpi: &OpenMpi) -> Vec<EngineStatus> {
    let worst = |engine: &str| {
        let relevant =
            checks.iter().filter(|check| check.engine == engine || check.engine == "machine");
        // Only what is missing keeps an engine from running; a warning does not.
        let missing: Vec<&str> = relevant
            .filter(|check| check.status == Status::Missing)
            .map(|check| check.name)
            .collect();
        match missing.is_empty() {
            true => (Status::Ok, None),
            false => (Status::Missing, Some(format!("missing: {}", missing.join(", ")))),
        }
    };
    let (shm, shm_missing) = worst("shm");
    let (mpi_status, mpi_missing) = worst("mpi");
    let mpirun =
        mpi.mpirun.as_ref().map_or("mpirun".to_string(), |path| path.display().to_string());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let oversubscribe = if cores < 4 { " --oversubscribe" } else { "" };
    // As root, Open MPI runs only with all four variables.
    let as_root = match rustix::process::geteuid().is_root() {
        true => {
            "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
             PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        }
        false => "",
    };
    vec![
        EngineStatus {
            engine: "sim",
            status: Status::Ok,
            because: "runs everywhere: members are coroutines in one thread of a test".into(),
            launch: "cargo test -p outlast --features sim".into(),
        },
        EngineStatus {
            engine: "shm",
            status: shm,
            because: shm_missing.unwrap_or("the default: processes of this machine".into()),
            launch: "outlast run -n 4 PROGRAM ARGS...".into(),
        },
        EngineStatus {
            engine: "mpi",
            status: mpi_status,
            because: mpi_missing.unwrap_or("Open MPI with ULFM and the plug-in are here".into()),
            launch: format!("{as_root}{mpirun} --with-ft ulfm{oversubscribe} -n 4 PROGRAM ARGS..."),
        },
    ]
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

/// The first two numbers of a version.
fn numbers(version: &str) -> (u32, u32) {
    let mut parts =
        version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// What a program writes to its standard output, if it ends in time.
fn output_of(command: &mut Command) -> Option<String> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut stdout = child.stdout.take()?;
    let (text, answer) = std::sync::mpsc::channel();
    std::thread::spawn(move || text.send(std::io::read_to_string(&mut stdout).unwrap_or_default()));
    // The end of the output ends the answer. A program that keeps the pipe open longer is killed.
    let answer = answer.recv_timeout(PROGRAM_LIMIT).ok();
    if answer.is_none() {
        let _ = child.kill();
    }
    let _ = child.wait();
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert_eq!(numbers("6.18.44-fc"), (6, 18));
        assert_eq!(numbers("5.0.11"), (5, 0));
        assert_eq!(numbers("nothing"), (0, 0));
        assert!(numbers("5.4.0") < (5, 16));
    }

    #[test]
    fn a_missing_part_makes_its_engine_missing_and_a_warning_does_not() {
        let none = OpenMpi { mpirun: None, mpicc: None, info: None };
        let part = |engine, status| check(engine, "part", status, "", "");
        let status = |checks: &[Check], engine| {
            engine_statuses(checks, &none)
                .into_iter()
                .find(|v| v.engine == engine)
                .expect("an engine")
                .status
        };
        let checks = [part("shm", Status::Warning), part("mpi", Status::Missing)];
        assert_eq!(status(&checks, "shm"), Status::Ok);
        assert_eq!(status(&checks, "mpi"), Status::Missing);
        assert_eq!(status(&[part("machine", Status::Missing)], "sim"), Status::Ok);
        assert_eq!(status(&[part("machine", Status::Missing)], "shm"), Status::Missing);
    }

    #[test]
    fn open_mpi_without_ulfm_is_said_to_be_without_it() {
        let info = "  Open MPI: 4.1.4\n  FT MPI support: no\n".to_string();
        let old = OpenMpi { mpirun: Some("/usr/bin/mpirun".into()), mpicc: None, info: Some(info) };
        let checks = old.checks();
        let status = |name| checks.iter().find(|check| check.name == name).expect("a check").status;
        assert_eq!(status("mpirun"), Status::Ok);
        assert_eq!(status("Open MPI"), Status::Missing);
        assert_eq!(status("ULFM"), Status::Missing);
    }

    #[test]
    fn the_plugin_is_compared_with_the_mpi_of_mpirun() {
        let info = "  Open MPI: 5.0.11\n  FT MPI support: yes\n".to_string();
        let mpi = OpenMpi { mpirun: None, mpicc: Some("/m/mpicc".into()), info: Some(info) };
        let plugin = |version: &str| outlast_mpi_sys::Plugin {
            path: "/p/liboutlast_mpi.so".into(),
            mpi: format!("Open MPI v{version}"),
        };
        let good = mpi.plugin(Ok(plugin("5.0.11")));
        assert_eq!(good.status, Status::Ok, "{good:?}");
        assert_eq!(good.found, "/p/liboutlast_mpi.so, for Open MPI v5.0.11");
        let other = mpi.plugin(Ok(plugin("5.0.7")));
        assert_eq!(other.status, Status::Warning, "{other:?}");
        assert_eq!(other.advice, "type: MPICC=/m/mpicc outlast mpi setup");
        let none = mpi.plugin(Err("there is no plug-in".into()));
        assert_eq!((none.status, &*none.advice), (Status::Missing, &*other.advice));
    }
}
