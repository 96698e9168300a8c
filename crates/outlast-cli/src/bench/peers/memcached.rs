//! memcached: a server with a single copy of each value, over a socket of this machine. It is the
//! floor of a store that is a server.

use super::server::{Servers, command};
use super::{Call, Client, Peer, PeerName, find, repeat, version_of};
use anyhow::{Context, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

struct Memcached {
    stream: BufReader<UnixStream>,
    _servers: Servers,
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
    let stream = BufReader::new(servers.connect(&socket)?);
    let version = version_of(&program);
    let client = Box::new(Memcached { stream, _servers: servers });
    Ok(Peer { name: PeerName::Memcached, version, servers: 1, copies: 1, client })
}

impl Memcached {
    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(line.trim_end().to_string())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
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

impl Client for Memcached {
    fn measure(
        &mut self,
        call: Call,
        size: usize,
        keys: usize,
        length: Duration,
    ) -> anyhow::Result<Vec<u64>> {
        let memcached = std::cell::RefCell::new(self);
        let put = |name: &[u8], value: &[u8]| memcached.borrow_mut().set(name, value);
        repeat(call, size, keys, length, put, |name| memcached.borrow_mut().get(name))
    }
}
