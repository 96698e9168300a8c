//! Redis: a server and a Redis replica for each further copy, and a client that sends SET and then
//! WAIT for all Redis replicas, in a single round trip.

use super::server::{START, Servers, command, free_port};
use super::{Call, Client, Peer, PeerName, find, repeat, version_of};
use anyhow::{bail, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

struct Redis {
    stream: BufReader<UnixStream>,
    replicas: usize,
    _servers: Servers,
}

/// Starts `copies` servers, all but the first as Redis replicas. They listen on this machine alone
/// and keep nothing on disk.
pub(super) fn start(copies: usize) -> anyhow::Result<Peer> {
    let program = find("redis-server", "REDIS_SERVER", "redis/redis-server", "redis")?;
    let mut servers = Servers::new("redis")?;
    let socket = servers.folder.join("socket");
    let first = free_port()?;
    for number in 0..copies {
        let port = if number == 0 { first } else { free_port()? };
        let data = servers.folder.join(number.to_string());
        std::fs::create_dir(&data)?;
        servers.add(&mut server(&program, port, &data, number, first, &socket)?)?;
    }
    let stream = BufReader::new(servers.connect(&socket)?);
    let mut redis = Redis { stream, replicas: copies - 1, _servers: servers };
    let until = Instant::now() + START;
    while redis.set(b"begun", b"1")? < redis.replicas {
        ensure!(
            Instant::now() < until,
            "the replicas of Redis did not find their server within {START:?}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let version = version_of(&program);
    let client = Box::new(redis);
    Ok(Peer { name: PeerName::Redis, version, servers: copies, copies, client })
}

fn server(
    program: &Path,
    port: u16,
    data: &Path,
    number: usize,
    first: u16,
    socket: &Path,
) -> anyhow::Result<std::process::Command> {
    let mut command = command(program)?;
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", ""]);
    command.args(["--appendonly", "no", "--repl-diskless-sync-delay", "0"]);
    command.args(["--loglevel", "warning", "--dir"]).arg(data);
    match number {
        0 => command.arg("--unixsocket").arg(socket),
        _ => command.args(["--replicaof", "127.0.0.1", &first.to_string()]),
    };
    Ok(command)
}

impl Redis {
    /// Sets a key and waits until all Redis replicas have it, in a single round trip. Returns how
    /// many have it.
    fn set(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<usize> {
        let mut request = format!("*3\r\n$3\r\nSET\r\n${}\r\n", key.len()).into_bytes();
        request.extend(key);
        request.extend(format!("\r\n${}\r\n", value.len()).as_bytes());
        request.extend(value);
        let count = self.replicas.to_string();
        request.extend(
            format!("\r\n*3\r\n$4\r\nWAIT\r\n${}\r\n{count}\r\n$4\r\n1000\r\n", count.len())
                .as_bytes(),
        );
        self.stream.get_mut().write_all(&request)?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer)?;
        ensure!(answer == "+OK\r\n", "Redis answered SET with {answer:?}");
        answer.clear();
        self.stream.read_line(&mut answer)?;
        match answer.trim_end().strip_prefix(':').and_then(|count| count.parse().ok()) {
            Some(count) => Ok(count),
            None => bail!("Redis answered WAIT with {answer:?}"),
        }
    }

    /// Gets a key. Returns the length of its value.
    fn get(&mut self, key: &[u8]) -> anyhow::Result<usize> {
        let mut request = format!("*2\r\n$3\r\nGET\r\n${}\r\n", key.len()).into_bytes();
        request.extend(key);
        request.extend(b"\r\n");
        self.stream.get_mut().write_all(&request)?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer)?;
        let Some(len) = answer.trim_end().strip_prefix('$').and_then(|len| len.parse().ok()) else {
            bail!("Redis answered GET with {answer:?}");
        };
        let mut value = vec![0; len + 2];
        self.stream.read_exact(&mut value)?;
        Ok(len)
    }
}

impl Client for Redis {
    fn measure(
        &mut self,
        call: Call,
        size: usize,
        keys: usize,
        length: Duration,
    ) -> anyhow::Result<Vec<u64>> {
        let redis = std::cell::RefCell::new(self);
        let put = |name: &[u8], value: &[u8]| {
            let mut redis = redis.borrow_mut();
            let (count, all) = (redis.set(name, value)?, redis.replicas);
            ensure!(count == all, "only {count} of {all} replicas of Redis have it");
            Ok(())
        };
        repeat(call, size, keys, length, put, |name| redis.borrow_mut().get(name))
    }
}
