//! Peers that are called from a program of their own: Hazelcast from inside its members' Java
//! machines, as its users run it, and LMDB from C. A program reads requests, which are lines, and
//! answers each.

use super::server::{Place, Servers, command};
use super::{Call, Client, Load, Peer, PeerName, in_target_folders};
use anyhow::{Context, bail, ensure};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

const LMDB_SOURCE: &str = include_str!("../../../peers/lmdb.c");

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

/// How long a program may take to start, and to answer beyond its measurement. Several Java
/// machines start at once on few cores.
const LIMIT: Duration = Duration::from_secs(240);
/// How long Java is warmed up with each call before the first measurement, in nanoseconds.
const WARM_UP_NS: u64 = 2_000_000_000;
/// The most backups that Hazelcast has.
const BACKUPS_MAX: usize = 6;

/// A program that answers requests.
struct Program {
    input: ChildStdin,
    lines: Receiver<std::io::Result<String>>,
}

impl Program {
    /// Starts the program as a server.
    fn start(servers: &mut Servers, mut command: Command) -> anyhow::Result<Program> {
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
        Ok(Program { input, lines })
    }

    /// Waits until the program says that it is ready. Returns its version.
    fn version(&self, servers: &mut Servers) -> anyhow::Result<String> {
        let ready = self.line(LIMIT).map_err(|error| servers.check().err().unwrap_or(error))?;
        let version = ready.strip_prefix("ready ").with_context(|| format!("it said {ready:?}"))?;
        Ok(version.to_string())
    }

    fn ask(&mut self, request: &str) -> anyhow::Result<()> {
        writeln!(self.input, "{request}")?;
        Ok(self.input.flush()?)
    }

    fn line(&self, limit: Duration) -> anyhow::Result<String> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(line?),
            Err(RecvTimeoutError::Timeout) => bail!("the program did not answer within {limit:?}"),
            Err(RecvTimeoutError::Disconnected) => bail!("the program ended by itself"),
        }
    }
}

/// Has programs carry out a load together: a single caller in the last, or all, each with as many
/// callers as its part of the members.
fn measure(programs: &mut [Program], members: &[usize], load: &Load) -> anyhow::Result<Vec<u64>> {
    let call = match load.call {
        Call::Put => "put",
        Call::Get => "get",
        Call::Mixed => "mixed",
    };
    let last = programs.len() - 1;
    programs[last].ask(&format!("fill {} {}", load.size, load.keys))?;
    let filled = programs[last].line(LIMIT)?;
    ensure!(filled == "filled", "the program said {filled:?}");
    let from = if load.callers == 1 { last } else { 0 };
    let (programs, members) = (&mut programs[from..], &members[from..]);
    let all_members: usize = members.iter().sum();
    let (mut members_before, mut first) = (0, 0);
    for (program, members) in programs.iter_mut().zip(members) {
        members_before += members;
        let callers = members_before * load.callers / all_members - first;
        let (length, all) = (load.length.as_nanos(), load.callers);
        let period = load.period.map_or(0, |period| period.as_nanos());
        let (size, keys) = (load.size, load.keys);
        let what = format!("load {call} {size} {keys} {length}");
        program.ask(&format!("{what} {callers} {first} {all} {period}"))?;
        first += callers;
    }
    let mut samples = Vec::new();
    for program in programs {
        let line = program.line(LIMIT + load.length)?;
        let times = line.split_whitespace().map(str::parse);
        let times: Result<Vec<u64>, _> = times.collect();
        samples.extend(times.context("the times that the program wrote")?);
    }
    Ok(samples)
}

/// The members of a Hazelcast cluster in their Java machines. The last machine has the caller, if
/// there is a single caller.
pub(in crate::bench) struct Hazelcast {
    programs: Vec<Program>,
    /// How many members each machine has.
    members: Vec<usize>,
    addresses: Vec<SocketAddr>,
    pub(in crate::bench) version: String,
}

/// The most Hazelcast members of which each has a Java machine of its own.
const MACHINES_MAX: usize = 4;

/// How many Java machines a Hazelcast cluster has. Many machines on few cores would measure how
/// often they interrupt each other: then there are as many as there are cores, and at least two, so
/// that members also talk between processes.
fn machines_for(members: usize, place: &Place<'_>) -> usize {
    if place.is_far() || members <= MACHINES_MAX {
        return members;
    }
    std::thread::available_parallelism().map_or(2, usize::from).clamp(2, members)
}

impl Hazelcast {
    /// Starts members in Java machines, and warms them up.
    pub(in crate::bench) fn start(
        members: usize,
        backups: usize,
        place: &Place<'_>,
    ) -> anyhow::Result<(Hazelcast, Servers)> {
        ensure!(
            backups <= BACKUPS_MAX,
            "Hazelcast has at most {} copies of a value, and {} were asked for",
            BACKUPS_MAX + 1,
            backups + 1
        );
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
        let addresses = (0..members).map(|number| place.free(number));
        // The caller is on the first host.
        let addresses: Vec<SocketAddr> = addresses.rev().collect::<anyhow::Result<_>>()?;
        let list = addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
        let machines = machines_for(members, place);
        let (mut programs, mut counts, mut first) = (Vec::new(), Vec::new(), 0);
        for machine in 0..machines {
            let end = (machine + 1) * members / machines;
            let mut command = place.command(machines - 1 - machine, &java)?;
            command.args(JAVA_OPTIONS).args(["-cp", &class_path, "peer.Member"]);
            let own = addresses[first..end].iter().map(SocketAddr::to_string);
            let own = own.collect::<Vec<_>>().join(",");
            command.args([members.to_string(), backups.to_string(), own]).arg(&list);
            programs.push(Program::start(&mut servers, command)?);
            counts.push(end - first);
            first = end;
        }
        let mut version = String::new();
        for program in &programs {
            version = program.version(&mut servers)?;
        }
        let mut hazelcast = Hazelcast { programs, members: counts, addresses, version };
        for call in [Call::Put, Call::Get] {
            let length = Duration::from_nanos(WARM_UP_NS);
            let (size, keys, callers) = (64, 1024, members);
            hazelcast.measure(&Load { call, size, keys, length, callers, period: None })?;
        }
        Ok((hazelcast, servers))
    }

    /// Has the last member write while the first is killed; see the program for the answer.
    pub(in crate::bench) fn begin_course(
        &mut self,
        writers: usize,
        length: Duration,
        period: Duration,
        size: usize,
    ) -> anyhow::Result<()> {
        let (length, period) = (length.as_nanos(), period.as_nanos());
        let victim = self.addresses[0].port();
        let last = self.programs.last_mut().context("there is a member")?;
        last.ask(&format!("course {writers} {length} {period} {size} {victim}"))?;
        let begun = last.line(LIMIT)?;
        ensure!(begun == "begun", "the program said {begun:?}");
        Ok(())
    }

    /// The next line of the last member.
    pub(in crate::bench) fn line(&self, limit: Duration) -> anyhow::Result<String> {
        self.programs.last().context("there is a member")?.line(limit)
    }
}

impl Client for Hazelcast {
    fn measure(&mut self, load: &Load) -> anyhow::Result<Vec<u64>> {
        measure(&mut self.programs, &self.members, load)
    }

    fn memory(&mut self) -> anyhow::Result<Option<u64>> {
        let mut sum = 0;
        for program in &mut self.programs {
            program.ask("memory")?;
            sum += program.line(LIMIT)?.trim().parse::<u64>().context("the bytes of a heap")?;
        }
        Ok(Some(sum))
    }
}

/// Starts a Hazelcast member for each copy. The last makes the calls, or all of them.
pub(super) fn start_hazelcast(copies: usize, place: &Place<'_>) -> anyhow::Result<Peer> {
    let (hazelcast, servers) = Hazelcast::start(copies, copies - 1, place)?;
    let version = hazelcast.version.clone();
    Ok(Peer { name: PeerName::Hazelcast, version, copies, client: Box::new(hazelcast), servers })
}

/// A program that is the only process of its peer.
struct Single([Program; 1]);

impl Client for Single {
    fn measure(&mut self, load: &Load) -> anyhow::Result<Vec<u64>> {
        measure(&mut self.0, &[1], load)
    }
}

/// Compiles the program of LMDB with the C compiler of the machine, and starts it.
pub(super) fn start_lmdb() -> anyhow::Result<Peer> {
    let mut servers = Servers::new("lmdb")?;
    let program = compile(&servers.folder)?;
    let data = servers.folder.join("data");
    std::fs::create_dir(&data)?;
    let mut command = command(&program)?;
    command.arg(&data);
    let program = Program::start(&mut servers, command)?;
    let version = program.version(&mut servers)?;
    let client = Box::new(Single([program]));
    Ok(Peer { name: PeerName::Lmdb, version, copies: 1, client, servers })
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
