//! Contenders on Open MPI 5: small C programs of `bench/peers`, compiled with the mpicc of the
//! machine.

use super::interrupt::{OnInterrupt, on_interrupt};
use crate::hosts::Hosts;
use anyhow::{Context, bail, ensure};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a job may take beyond its measurement, for its start and its end.
const SLACK: Duration = Duration::from_secs(60);

/// The header that all programs include.
const HEADER: &str = include_str!("../../peers/openmpi.h");

/// A compiled program. It is removed when dropped.
pub(super) struct OpenMpi {
    mpirun: PathBuf,
    folder: PathBuf,
    name: &'static str,
    pub(super) version: String,
    _removed: OnInterrupt,
}

impl Drop for OpenMpi {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl OpenMpi {
    /// Finds mpicc (MPICC, PATH, or target/mpi of this folder or a folder above it), and compiles a
    /// program with it.
    pub(super) fn compile(name: &'static str, source_text: &str) -> anyhow::Result<OpenMpi> {
        let (mpicc, version) = find_mpicc()?;
        let beside = mpicc.with_file_name("mpirun");
        let mpirun = if mpicc.parent().is_some_and(|parent| !parent.as_os_str().is_empty()) {
            beside
        } else {
            PathBuf::from("mpirun")
        };
        let folder = std::env::temp_dir().join(format!("outlast-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let left = folder.clone();
        let removed = on_interrupt(move || {
            let _ = std::fs::remove_dir_all(&left);
        })?;
        let found = OpenMpi { mpirun, folder, name, version, _removed: removed };
        let source = found.program().with_extension("c");
        let header = found.folder.join("openmpi.h");
        for (path, text) in [(&source, source_text), (&header, HEADER)] {
            std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        let compiled = Command::new(&mpicc)
            .args(["-O2", "-pthread", "-o"])
            .arg(found.program())
            .arg(&source)
            .output()
            .with_context(|| format!("starting {}", mpicc.display()))?;
        let errors = String::from_utf8_lossy(&compiled.stderr);
        ensure!(
            compiled.status.success(),
            "{} cannot compile the peer:\n{errors}",
            mpicc.display()
        );
        Ok(found)
    }

    fn program(&self) -> PathBuf {
        self.folder.join(self.name)
    }

    /// Runs a job whose measurement takes `limit`. Returns the lines that it wrote, without its
    /// last line "end".
    pub(super) fn run(
        &self,
        ranks: usize,
        limit: Duration,
        args: &[String],
        hosts: Option<&Hosts>,
    ) -> anyhow::Result<String> {
        let mut command = match hosts.map(|hosts| hosts.enter(0)) {
            None => Command::new(&self.mpirun),
            Some([enter, host]) => {
                let mut command = Command::new(enter);
                command.arg(host).arg(&self.mpirun);
                command
            }
        };
        command.args([
            "--with-ft",
            "ulfm",
            "--oversubscribe",
            "--bind-to",
            "none",
            "-n",
            &ranks.to_string(),
        ]);
        command.args(hosts.map(Hosts::mpirun_options).unwrap_or_default());
        command.arg(self.program()).args(args);
        let _folder = outlast::launch::prepare(&mut command)?;
        // Open MPI is measured as it is installed.
        command.env_remove("OMPI_MCA_btl");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().with_context(|| format!("starting {}", self.mpirun.display()))?;
        let readers = [
            child.stdout.take().map(|pipe| read_all(Box::new(pipe))),
            child.stderr.take().map(|pipe| read_all(Box::new(pipe))),
        ];
        let end = Instant::now() + limit + SLACK;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() > end {
                let _ = child.kill();
                let _ = child.wait();
                bail!("Open MPI with {ranks} ranks did not end within {:?}", limit + SLACK);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let [stdout, stderr] =
            readers.map(|reader| reader.and_then(|reader| reader.join().ok()).unwrap_or_default());
        // The exit status is not checked: after a failure the survivors end without MPI_Finalize,
        // which hangs.
        let lines = stdout.strip_suffix("end\n").map(String::from);
        lines.with_context(|| format!("Open MPI with {ranks} ranks ended with {status}:\n{stderr}"))
    }
}

fn read_all(mut pipe: Box<dyn Read + Send>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn find_mpicc() -> anyhow::Result<(PathBuf, String)> {
    let candidates: Vec<PathBuf> = match std::env::var_os("MPICC") {
        Some(mpicc) => vec![mpicc.into()],
        None => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let in_path =
                std::env::split_paths(&path).map(|folder| folder.join("mpicc")).collect::<Vec<_>>();
            let here = std::env::current_dir().unwrap_or_default();
            let above = here.ancestors().map(|folder| folder.join("target/mpi/bin/mpicc"));
            in_path.into_iter().chain(above).filter(|mpicc| mpicc.is_file()).collect()
        }
    };
    let mut refused = String::new();
    for mpicc in candidates {
        match version(&mpicc) {
            Ok(version) => return Ok((mpicc, version)),
            Err(error) => refused += &format!("\n  {}: {error:#}", mpicc.display()),
        }
    }
    bail!(
        "found no Open MPI 5 or newer: set MPICC to its mpicc, add it to PATH, \
         or install it with `cargo xtask mpi`{refused}"
    )
}

/// The version of Open MPI that this compiler belongs to, if it is new enough.
fn version(mpicc: &Path) -> anyhow::Result<String> {
    let output =
        Command::new(mpicc).arg("--showme:version").output().context("cannot be started")?;
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let (_, rest) = text.split_once("Open MPI ").context("is not of Open MPI")?;
    let version = rest.split_whitespace().next().unwrap_or_default();
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    ensure!(major.is_some_and(|major| major >= 5), "is of Open MPI {version}, which has no ULFM");
    Ok(version.to_string())
}
