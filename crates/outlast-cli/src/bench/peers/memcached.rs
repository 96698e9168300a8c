//! memcached: a server with a single copy of each value, over a socket of this machine. It is the
//! floor of a store that is a server.

use super::server::{START, Servers, command};
use super::{Client, Connection, Load, Peer, PeerName, find, measure_connections, version_of};
use anyhow::{Context, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// The server, which listens on a socket.
struct Memcached {
    socket: PathBuf,
}

/// A caller's connection.
struct Caller {
    stream: BufReader<UnixStream>,
}

pub(super) fn start() -> anyhow::Result<Peer> {
    let program = find("memcached", "MEMCACHED", "memcached/memcached", "peers")?;
    let mut servers = Servers::new("memcached")?;
    let socket = servers.folder.join("socket");
    let mut command = command(&program)?;
    // The server refuses to run as root without a user. It may use more memory than all values
    // take, so that it drops none.
    command.args(["-u", "root", "-m", "1024", "-I", "8m", "-t", "1", "-s"]).arg(&socket);
    servers.add(&mut command)?;
    drop(servers.connect(&socket)?);
    let version = version_of(&program);
    let client = Box::new(Memcached { socket });
    Ok(Peer { name: PeerName::Memcached, version, copies: 1, client, servers })
}

impl Client for Memcached {
    fn measure(&mut self, load: &Load) -> anyhow::Result<Vec<u64>> {
        measure_connections(load, || {
            let stream = UnixStream::connect(&self.socket).context("connecting to memcached")?;
            stream.set_read_timeout(Some(START))?;
            Ok(Box::new(Caller { stream: BufReader::new(stream) }))
        })
    }
}

impl Caller {
    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(line.trim_end().to_string())
    }
}

impl Connection for Caller {
    fn put(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        let mut request = b"set ".to_vec();
        request.extend(key);
        request.extend(format!(" 0 0 {}\r\n", value.len()).as_bytes());
        request.extend(value);
        request.extend(b"\r\n");
        self.stream.get_mut().write_all(&request)?;
        let answer = self.line()?;
        ensure!(answer == "STORED", "memcached answered set with {answer:?}");
        Ok(())
    }

    fn get(&mut self, key: &[u8]) -> anyhow::Result<usize> {
        let request = [b"get ", key, b"\r\n"].concat();
        self.stream.get_mut().write_all(&request)?;
        let answer = self.line()?;
        let len = answer.rsplit(' ').next().and_then(|len| len.parse::<usize>().ok());
        let len = len.with_context(|| format!("memcached answered get with {answer:?}"))?;
        let mut value = vec![0; len + "\r\nEND\r\n".len()];
        self.stream.read_exact(&mut value)?;
        Ok(len)
    }
}
