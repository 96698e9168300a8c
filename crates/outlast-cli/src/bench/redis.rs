//! Redis as a contender of `outlast bench put`: a server and a Redis replica for each further
//! replica of the store, on this machine, and a client that sends SET and then WAIT for all Redis
//! replicas.

use anyhow::{Context, bail, ensure};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the servers may take to start and to connect to each other.
const START: Duration = Duration::from_secs(30);

/// The servers. They are ended when dropped.
pub(super) struct Redis {
    servers: Vec<Child>,
    folder: PathBuf,
    client: BufReader<UnixStream>,
    replicas: usize,
}

impl Drop for Redis {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The path of redis-server: from REDIS_SERVER, from PATH, or from `target/redis`, where `cargo
/// xtask redis` installs it.
fn find() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("REDIS_SERVER").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join("redis-server"));
    let here = std::env::current_dir().unwrap_or_default();
    let above = here.ancestors().map(|folder| folder.join("target/redis/redis-server"));
    let runs = |server: &PathBuf| {
        Command::new(server).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let found =
        named.map_or_else(|| in_path.chain(above).find(runs), |named| Some(named).filter(runs));
    found.context(
        "found no redis-server that runs: set REDIS_SERVER, add it to PATH, \
         or install it with `cargo xtask redis`",
    )
}

/// A port that no process listens on.
fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

impl Redis {
    /// Starts `count` servers, all but the first as Redis replicas. They listen on this machine
    /// alone and keep nothing on disk.
    pub(super) fn start(count: usize) -> anyhow::Result<Redis> {
        let program = find()?;
        let folder = std::env::temp_dir().join(format!("outlast-redis-{}", std::process::id()));
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("making {}", folder.display()))?;
        let socket = folder.join("socket");
        let mut servers = Vec::new();
        let begun = Self::start_servers(&program, &folder, &socket, count, &mut servers);
        let client = begun.and_then(|()| connect(&socket));
        let (stream, failure) = match client {
            Ok(stream) => (Some(stream), None),
            Err(error) => (None, Some(error)),
        };
        let Some(stream) = stream else {
            for server in &mut servers {
                let _ = server.kill();
                let _ = server.wait();
            }
            let _ = std::fs::remove_dir_all(&folder);
            return Err(failure.expect("no stream"));
        };
        let client = BufReader::new(stream);
        let mut redis = Redis { servers, folder, client, replicas: count - 1 };
        let until = Instant::now() + START;
        while redis.set(b"begun", b"1")? < redis.replicas {
            ensure!(
                Instant::now() < until,
                "the replicas of Redis did not find their server within {START:?}"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(redis)
    }

    fn start_servers(
        program: &Path,
        folder: &Path,
        socket: &Path,
        count: usize,
        servers: &mut Vec<Child>,
    ) -> anyhow::Result<()> {
        let first = free_port()?;
        for number in 0..count {
            let port = if number == 0 { first } else { free_port()? };
            let data = folder.join(number.to_string());
            std::fs::create_dir(&data)?;
            let mut command = Command::new(program);
            command.args([
                "--bind",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--save",
                "",
                "--appendonly",
                "no",
            ]);
            command
                .args(["--repl-diskless-sync-delay", "0", "--loglevel", "warning", "--dir"])
                .arg(&data);
            match number {
                0 => command.arg("--unixsocket").arg(socket),
                _ => command.args(["--replicaof", "127.0.0.1", &first.to_string()]),
            };
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            servers
                .push(command.spawn().with_context(|| format!("starting {}", program.display()))?);
        }
        Ok(())
    }

    /// Sets a key and waits until all Redis replicas have it, in a single round trip. Returns how
    /// many have it.
    pub(super) fn set(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<usize> {
        let mut request = format!("*3\r\n$3\r\nSET\r\n${}\r\n", key.len()).into_bytes();
        request.extend(key);
        request.extend(format!("\r\n${}\r\n", value.len()).as_bytes());
        request.extend(value);
        let count = self.replicas.to_string();
        request.extend(
            format!("\r\n*3\r\n$4\r\nWAIT\r\n${}\r\n{count}\r\n$4\r\n1000\r\n", count.len())
                .as_bytes(),
        );
        self.client.get_mut().write_all(&request)?;
        let mut answer = String::new();
        self.client.read_line(&mut answer)?;
        ensure!(answer == "+OK\r\n", "Redis answered SET with {answer:?}");
        answer.clear();
        self.client.read_line(&mut answer)?;
        match answer.trim_end().strip_prefix(':').and_then(|count| count.parse().ok()) {
            Some(count) => Ok(count),
            None => bail!("Redis answered WAIT with {answer:?}"),
        }
    }

    /// Sets values of this size for this long, over all keys in turn. Returns the time of each
    /// call, in tenths of nanoseconds.
    pub(super) fn measure(
        &mut self,
        size: usize,
        keys: usize,
        length: Duration,
    ) -> anyhow::Result<Vec<u64>> {
        let value = vec![1; size];
        let names: Vec<String> = (0..keys).map(|index| format!("bench/{size}/{index}")).collect();
        let (mut samples, end) = (Vec::new(), Instant::now() + length);
        for name in names.iter().cycle() {
            let begin = Instant::now();
            let count = self.set(name.as_bytes(), &value)?;
            samples.push(begin.elapsed().as_nanos() as u64 * 10);
            ensure!(
                count == self.replicas,
                "only {count} of {} replicas of Redis have it",
                self.replicas
            );
            if Instant::now() >= end {
                break;
            }
        }
        Ok(samples)
    }
}

fn connect(socket: &Path) -> anyhow::Result<UnixStream> {
    let until = Instant::now() + START;
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => {
                // An answer that takes longer fails the measurement.
                stream.set_read_timeout(Some(START))?;
                return Ok(stream);
            }
            Err(error) if Instant::now() >= until => {
                return Err(error).context("Redis did not open its socket");
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
