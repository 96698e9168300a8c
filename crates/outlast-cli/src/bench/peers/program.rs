//! Peers that are called from a program of their own: Hazelcast from inside a member's Java
//! machine, as its users run it, and LMDB from C. The program reads a line for each measurement and
//! answers with the times of its calls.

use super::server::{START, Servers, command, free_port};
use super::{Call, Client, Peer, PeerName, in_target_folders};
use anyhow::{Context, bail, ensure};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

const LMDB_SOURCE: &str = include_str!("../../../../../bench/peers/lmdb.c");

/// The options of Java that Hazelcast recommends.
const JAVA_OPTIONS: [&str; 9] = [
    "--add-modules=java.se",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.management/sun.management=ALL-UNNAMED",
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
    "-Xms256m",
    "-Xmx512m",
    "-XX:+UseParallelGC",
];

/// A program that measures when it is asked.
struct Program {
    input: ChildStdin,
    lines: Receiver<std::io::Result<String>>,
    _servers: Servers,
}

impl Program {
    /// Starts the program as the last of the servers, and waits until it says that it is ready.
    /// Returns it with its version.
    fn start(mut servers: Servers, mut command: Command) -> anyhow::Result<(Program, String)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = servers.add(&mut command)?;
        let input = child.stdin.take().context("it is piped")?;
        let output = child.stdout.take().context("it is piped")?;
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let program = Program { input, lines, _servers: servers };
        let ready = program.line(START)?;
        let version = ready.strip_prefix("ready ").with_context(|| format!("it said {ready:?}"))?;
        let version = version.to_string();
        Ok((program, version))
    }

    fn line(&self, limit: Duration) -> anyhow::Result<String> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(line?),
            Err(RecvTimeoutError::Timeout) => bail!("the program did not answer within {limit:?}"),
            Err(RecvTimeoutError::Disconnected) => bail!("the program ended by itself"),
        }
    }
}

impl Client for Program {
    fn measure(
        &mut self,
        call: Call,
        size: usize,
        keys: usize,
        length: Duration,
    ) -> anyhow::Result<Vec<u64>> {
        let call = if call == Call::Put { "put" } else { "get" };
        writeln!(self.input, "{call} {size} {keys} {}", length.as_nanos())?;
        self.input.flush()?;
        let samples = self.line(START + length)?;
        let samples = samples.split_whitespace().map(str::parse);
        samples.collect::<Result<_, _>>().context("the times that the program wrote")
    }
}

/// Starts a Hazelcast member for each copy, each a Java machine. The last makes the calls.
pub(super) fn start_hazelcast(copies: usize) -> anyhow::Result<Peer> {
    let java = std::env::var_os("JAVA_HOME").map(|home| PathBuf::from(home).join("bin/java"));
    let java = java.unwrap_or_else(|| "java".into());
    let version = Command::new(&java).arg("-version").output();
    ensure!(
        version.is_ok_and(|output| output.status.success()),
        "found no Java that runs: set JAVA_HOME, or install it with `cargo xtask peers`"
    );
    let folder = std::env::var_os("HAZELCAST_PEER").map(PathBuf::from).into_iter();
    let folder = folder
        .chain(in_target_folders("hazelcast"))
        .find(|folder| folder.join("hazelcast-peer-1.jar").is_file())
        .context(
            "found no Hazelcast: install it with `cargo xtask peers`, or set HAZELCAST_PEER",
        )?;
    let class_path = format!("{0}/hazelcast-peer-1.jar:{0}/lib/*", folder.display());
    let mut servers = Servers::new("hazelcast")?;
    let ports: Vec<u16> = (0..copies).map(|_| free_port()).collect::<Result<_, _>>()?;
    let list = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    let member = |port: u16| -> anyhow::Result<Command> {
        let mut command = command(&java)?;
        command.args(JAVA_OPTIONS).args(["-cp", &class_path, "peer.Member"]);
        command.args([copies.to_string(), port.to_string(), (copies - 1).to_string()]).arg(&list);
        Ok(command)
    };
    let (last, others) = ports.split_last().context("there is a copy")?;
    for &port in others {
        // A member ends with its standard input.
        servers.add(member(port)?.stdin(Stdio::piped()))?;
    }
    let (program, version) = Program::start(servers, member(*last)?)?;
    let client = Box::new(program);
    Ok(Peer { name: PeerName::Hazelcast, version, servers: copies, copies, client })
}

/// Compiles the program of LMDB with the C compiler of the machine, and starts it.
pub(super) fn start_lmdb() -> anyhow::Result<Peer> {
    let servers = Servers::new("lmdb")?;
    let program = compile(&servers.folder)?;
    let data = servers.folder.join("data");
    std::fs::create_dir(&data)?;
    let mut command = command(&program)?;
    command.arg(&data);
    let (program, version) = Program::start(servers, command)?;
    let client = Box::new(program);
    Ok(Peer { name: PeerName::Lmdb, version, servers: 1, copies: 1, client })
}

fn compile(folder: &Path) -> anyhow::Result<PathBuf> {
    let (source, program) = (folder.join("lmdb.c"), folder.join("lmdb"));
    std::fs::write(&source, LMDB_SOURCE)?;
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-O2", "-pthread", "-o"]).arg(&program).arg(&source);
    // The unpacked package has its library in a folder for the processor.
    let unpacked = in_target_folders("lmdb/usr").find(|usr| usr.join("include/lmdb.h").is_file());
    if let Some(usr) = unpacked {
        command.arg("-I").arg(usr.join("include"));
        let folders = std::fs::read_dir(usr.join("lib")).into_iter().flatten().flatten();
        for folder in folders {
            command.arg("-L").arg(folder.path());
        }
    }
    command.args(["-Wl,-Bstatic", "-llmdb", "-Wl,-Bdynamic"]);
    let compiled = command.output().context("found no C compiler; set CC")?;
    ensure!(
        compiled.status.success(),
        "cannot compile with LMDB, whose header `cargo xtask peers` installs:\n{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    Ok(program)
}
