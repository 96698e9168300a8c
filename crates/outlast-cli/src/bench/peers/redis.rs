//! Redis: a server and a Redis replica for each further copy, and a client that sends SET and then
//! WAIT for all Redis replicas, in a single round trip. For failures, a Redis Cluster: three
//! masters with two Redis replicas each.

use super::server::{Place, START, Servers};
use super::{Client, Connection, Load, Peer, PeerName, find, measure_connections, version_of};
use anyhow::{Context, bail, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A server with its Redis replicas. Callers use its socket: they are on the host of the server.
struct Redis {
    socket: PathBuf,
    replicas: usize,
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection to a server.
struct Caller {
    stream: BufReader<Box<dyn Stream>>,
    replicas: usize,
}

/// An answer of a server.
enum Reply {
    Text(String),
    Number(i64),
    Bytes(Option<Vec<u8>>),
}

/// Starts `copies` servers, all but the first as Redis replicas. They keep nothing on disk.
pub(super) fn start(copies: usize, place: &Place<'_>) -> anyhow::Result<Peer> {
    let program = find("redis-server", "REDIS_SERVER", "redis/redis-server", "redis")?;
    let mut servers = Servers::new("redis")?;
    let socket = servers.folder.join("socket");
    let first = place.free(0)?;
    for number in 0..copies {
        let address = if number == 0 { first } else { place.free(number)? };
        let mut command = server(place, number, &program, address, &servers.folder)?;
        match number {
            0 => command.arg("--unixsocket").arg(&socket),
            _ => {
                let (host, port) = (first.ip().to_string(), first.port().to_string());
                command.args(["--replicaof", &host, &port])
            }
        };
        servers.add(&mut command)?;
    }
    let replicas = copies - 1;
    drop(servers.connect(&socket)?);
    let redis = Redis { socket, replicas };
    let mut caller = redis.connect()?;
    let until = Instant::now() + START;
    while caller.set(b"begun", b"1", replicas)? < replicas {
        servers.check()?;
        ensure!(
            Instant::now() < until,
            "the replicas of Redis did not find their server within {START:?}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let version = version_of(&program);
    Ok(Peer { name: PeerName::Redis, version, copies, client: Box::new(redis), servers })
}

/// A server that listens on this address and keeps nothing on disk.
fn server(
    place: &Place<'_>,
    number: usize,
    program: &Path,
    address: SocketAddr,
    folder: &Path,
) -> anyhow::Result<Command> {
    let data = folder.join(number.to_string());
    std::fs::create_dir(&data)?;
    let mut command = place.command(number, program)?;
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    command.args(["--bind", &host, "--port", &port, "--save", "", "--protected-mode", "no"]);
    command.args(["--appendonly", "no", "--repl-diskless-sync-delay", "0"]);
    // The backlog for returning replicas would count as memory of the values.
    command.args(["--repl-backlog-size", "64kb"]);
    command.args(["--loglevel", "warning", "--logfile", "/dev/stderr", "--dir"]).arg(data);
    Ok(command)
}

impl Redis {
    fn connect(&self) -> anyhow::Result<Caller> {
        let stream = UnixStream::connect(&self.socket).context("connecting to Redis")?;
        stream.set_read_timeout(Some(START))?;
        Ok(Caller { stream: BufReader::new(Box::new(stream)), replicas: self.replicas })
    }
}

impl Client for Redis {
    fn measure(&mut self, load: &Load) -> anyhow::Result<Vec<u64>> {
        measure_connections(load, || Ok(Box::new(self.connect()?)))
    }
}

/// Words as a request of Redis.
fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        request.extend(format!("${}\r\n", word.len()).as_bytes());
        request.extend(*word);
        request.extend(b"\r\n");
    }
    request
}

impl Caller {
    fn reply(&mut self) -> anyhow::Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let text = line.trim_end();
        let rest = text.get(1..).unwrap_or_default();
        match text.as_bytes().first() {
            Some(b'+') => Ok(Reply::Text(rest.to_string())),
            Some(b':') => Ok(Reply::Number(rest.parse()?)),
            Some(b'$') if rest == "-1" => Ok(Reply::Bytes(None)),
            Some(b'$') => {
                let len: usize = rest.parse()?;
                let mut bytes = vec![0; len + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(len);
                Ok(Reply::Bytes(Some(bytes)))
            }
            Some(b'-') => bail!("Redis answered: {rest}"),
            None => bail!("Redis ended the connection"),
            _ => bail!("Redis answered with {text:?}"),
        }
    }

    fn ask(&mut self, words: &[&str]) -> anyhow::Result<Reply> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.stream.get_mut().write_all(&request(&words))?;
        self.reply()
    }

    fn ask_text(&mut self, words: &[&str]) -> anyhow::Result<String> {
        match self.ask(words)? {
            Reply::Bytes(Some(bytes)) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Reply::Text(text) => Ok(text),
            _ => bail!("Redis answered {} with another kind of answer", words.join(" ")),
        }
    }

    /// Sets a key and waits until this many Redis replicas have it, in a single round trip. Returns
    /// how many have it.
    fn set(&mut self, key: &[u8], value: &[u8], wanted: usize) -> anyhow::Result<usize> {
        let count = wanted.to_string();
        let mut both = request(&[b"SET", key, value]);
        both.extend(request(&[b"WAIT", count.as_bytes(), b"1000"]));
        self.stream.get_mut().write_all(&both)?;
        let set = self.reply();
        let waited = self.reply()?;
        match (set?, waited) {
            (Reply::Text(ok), Reply::Number(count)) if ok == "OK" => Ok(count.max(0) as usize),
            _ => bail!("Redis answered SET and WAIT with other kinds of answers"),
        }
    }

    fn get_bytes(&mut self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        self.stream.get_mut().write_all(&request(&[b"GET", key]))?;
        match self.reply()? {
            Reply::Bytes(bytes) => Ok(bytes),
            _ => bail!("Redis answered GET with another kind of answer"),
        }
    }
}

impl Connection for Caller {
    fn put(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        let (all, count) = (self.replicas, self.set(key, value, self.replicas)?);
        ensure!(count == all, "only {count} of {all} replicas of Redis have it");
        Ok(())
    }

    fn get(&mut self, key: &[u8]) -> anyhow::Result<usize> {
        self.get_bytes(key)?.map(|bytes| bytes.len()).context("Redis has no value for the key")
    }
}

/// How many masters a Redis Cluster has: fewer elect nobody.
const MASTERS: usize = 3;
/// How many copies of each value it has.
const COPIES: usize = 3;
/// How many slots it divides the keys into.
const SLOTS: u16 = 16384;
/// After this time without an answer, a master counts as failed. Its default is 15 s.
pub(in crate::bench) const NODE_TIMEOUT: Duration = Duration::from_secs(2);

/// A Redis Cluster. Server 0 is a master.
pub(in crate::bench) struct RedisCluster {
    pub(in crate::bench) servers: Servers,
    pub(in crate::bench) version: String,
    addresses: Vec<SocketAddr>,
}

/// A writer's view of a cluster: which master has which slots.
pub(in crate::bench) struct ClusterCaller {
    addresses: Vec<SocketAddr>,
    masters: Vec<(std::ops::RangeInclusive<u16>, SocketAddr)>,
    connections: std::collections::HashMap<SocketAddr, Caller>,
}

/// The slot of a key without braces.
pub(in crate::bench) fn slot_of(key: &[u8]) -> u16 {
    let crc = key.iter().fold(0u16, |crc, &byte| {
        (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
            if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 }
        })
    });
    crc % SLOTS
}

/// Connects to a server of a cluster, which may be dead.
fn connect(address: SocketAddr) -> anyhow::Result<Caller> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_millis(200))?;
    stream.set_nodelay(true)?;
    // Longer than WAIT may take.
    stream.set_read_timeout(Some(Duration::from_millis(1500)))?;
    Ok(Caller { stream: BufReader::new(Box::new(stream)), replicas: COPIES - 1 })
}

impl RedisCluster {
    pub(in crate::bench) fn start() -> anyhow::Result<RedisCluster> {
        let program = find("redis-server", "REDIS_SERVER", "redis/redis-server", "redis")?;
        let mut servers = Servers::new("redis-cluster")?;
        let place = Place::Here;
        let count = MASTERS * COPIES;
        let addresses = (0..count).map(|_| place.free(0)).collect::<anyhow::Result<Vec<_>>>()?;
        let buses = (0..count).map(|_| place.free(0)).collect::<anyhow::Result<Vec<_>>>()?;
        for (number, (address, bus)) in addresses.iter().zip(&buses).enumerate() {
            let mut command = server(&place, number, &program, *address, &servers.folder)?;
            command.args(["--cluster-enabled", "yes", "--cluster-config-file", "nodes"]);
            command.args(["--cluster-port", &bus.port().to_string()]);
            command.args(["--cluster-node-timeout", &NODE_TIMEOUT.as_millis().to_string()]);
            command.args(["--cluster-require-full-coverage", "no"]);
            servers.add(&mut command)?;
        }
        let until = Instant::now() + START;
        let mut callers = Vec::new();
        for address in &addresses {
            callers.push(wait_for(&mut servers, until, "to answer", || connect(*address).ok())?);
        }
        // Slots, then acquaintance, then replicas.
        for (number, caller) in callers.iter_mut().enumerate().take(MASTERS) {
            let slots = SLOTS as usize;
            let (from, to) = (number * slots / MASTERS, (number + 1) * slots / MASTERS - 1);
            let (from, to, epoch) = (from.to_string(), to.to_string(), (number + 1).to_string());
            caller.ask(&["CLUSTER", "ADDSLOTSRANGE", &from, &to])?;
            caller.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch])?;
        }
        for (address, bus) in addresses.iter().zip(&buses).skip(1) {
            let (host, port) = (address.ip().to_string(), address.port().to_string());
            callers[0].ask(&["CLUSTER", "MEET", &host, &port, &bus.port().to_string()])?;
        }
        let known = format!("cluster_known_nodes:{count}\r");
        let ids = callers[..MASTERS].iter_mut().map(|caller| caller.ask_text(&["CLUSTER", "MYID"]));
        let ids = ids.collect::<anyhow::Result<Vec<_>>>()?;
        for caller in &mut callers {
            wait_for(&mut servers, until, "to know each other", || {
                let info = caller.ask_text(&["CLUSTER", "INFO"]).ok()?;
                info.contains(&known).then_some(())
            })?;
        }
        for (number, caller) in callers.iter_mut().enumerate().skip(MASTERS) {
            let id = &ids[number % MASTERS];
            wait_for(&mut servers, until, "to find their masters", || {
                caller.ask(&["CLUSTER", "REPLICATE", id]).ok()
            })?;
        }
        let mut caller = ClusterCaller {
            addresses: addresses.clone(),
            masters: Vec::new(),
            connections: Default::default(),
        };
        for slot in 0..MASTERS as u16 {
            let key = (0..100_000u32).map(|number| format!("begin/{number}"));
            let mut key = key.filter(|key| slot_of(key.as_bytes()) / (SLOTS / 3 + 1) == slot);
            let key = key.next().context("every slot has keys")?;
            wait_for(&mut servers, until, "to have all copies", || {
                (caller.set(key.as_bytes(), b"1", COPIES - 1).ok()? == COPIES - 1).then_some(())
            })?;
        }
        Ok(RedisCluster { servers, version: version_of(&program), addresses })
    }

    pub(in crate::bench) fn caller(&self) -> anyhow::Result<ClusterCaller> {
        let mut caller = ClusterCaller {
            addresses: self.addresses.clone(),
            masters: Vec::new(),
            connections: Default::default(),
        };
        caller.look_up()?;
        Ok(caller)
    }

    /// The slots of server 0.
    pub(in crate::bench) fn slots_of_victim(&self) -> std::ops::Range<u16> {
        0..SLOTS / MASTERS as u16
    }
}

/// Waits until a function returns something.
fn wait_for<T>(
    servers: &mut Servers,
    until: Instant,
    what: &str,
    mut found: impl FnMut() -> Option<T>,
) -> anyhow::Result<T> {
    loop {
        if let Some(found) = found() {
            return Ok(found);
        }
        servers.check()?;
        ensure!(Instant::now() < until, "waited {START:?} for the servers of Redis {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl ClusterCaller {
    /// Asks any server for the masters and their slots.
    fn look_up(&mut self) -> anyhow::Result<()> {
        let mut answer = Err(anyhow::anyhow!("no server of the cluster answers"));
        // A server that did not answer is asked last the next time.
        for _ in 0..self.addresses.len() {
            let nodes = connect(self.addresses[0])
                .and_then(|mut caller| caller.ask_text(&["CLUSTER", "NODES"]));
            if nodes.is_ok() {
                answer = nodes;
                break;
            }
            self.addresses.rotate_left(1);
        }
        self.masters = masters_of(&answer?);
        Ok(())
    }

    fn ask_master<T>(
        &mut self,
        key: &[u8],
        ask: impl FnOnce(&mut Caller) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let slot = slot_of(key);
        let found = self.masters.iter().find(|(slots, _)| slots.contains(&slot));
        let Some(&(_, address)) = found else {
            self.look_up()?;
            bail!("no master has the slot {slot}");
        };
        let caller = match self.connections.entry(address) {
            std::collections::hash_map::Entry::Occupied(entry) => Ok(entry.into_mut()),
            std::collections::hash_map::Entry::Vacant(entry) => {
                connect(address).map(|caller| entry.insert(caller))
            }
        };
        let answer = caller.and_then(ask);
        if answer.is_err() {
            self.connections.remove(&address);
            let _ = self.look_up();
        }
        answer
    }

    /// Sets a key. Returns how many Redis replicas have it.
    pub(in crate::bench) fn set(
        &mut self,
        key: &[u8],
        value: &[u8],
        wanted: usize,
    ) -> anyhow::Result<usize> {
        self.ask_master(key, |caller| caller.set(key, value, wanted))
    }

    pub(in crate::bench) fn has(&mut self, key: &[u8]) -> anyhow::Result<bool> {
        self.ask_master(key, |caller| Ok(caller.get_bytes(key)?.is_some()))
    }
}

/// The masters that have not failed, with their slots, in the answer to CLUSTER NODES.
fn masters_of(nodes: &str) -> Vec<(std::ops::RangeInclusive<u16>, SocketAddr)> {
    let mut masters = Vec::new();
    for line in nodes.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (Some(address), Some(flags)) = (words.get(1), words.get(2)) else { continue };
        if !flags.contains("master") || flags.contains("fail") {
            continue;
        }
        let address = address.split('@').next().and_then(|text| text.parse().ok());
        let Some(address) = address else { continue };
        for range in words.iter().skip(8) {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            if let (Ok(from), Ok(to)) = (from.parse(), to.parse()) {
                masters.push((from..=to, address));
            }
        }
    }
    masters
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first value is from the specification of Redis Cluster.
    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(slot_of(b"123456789"), 0x31c3 % SLOTS);
        assert_eq!(slot_of(b"foo"), 12182);
    }

    #[test]
    fn masters_are_read_with_their_slots() {
        let nodes = "a 127.0.0.1:7000@17000 myself,master - 0 0 1 connected 0-5460 5462\n\
                     b 127.0.0.1:7001@17001 master,fail - 0 0 2 connected 5461\n\
                     c 127.0.0.1:7002@17002 slave a 0 0 1 connected\n\nnonsense";
        let masters = masters_of(nodes);
        let address = "127.0.0.1:7000".parse().expect("an address");
        assert_eq!(masters, [(0..=5460, address), (5462..=5462, address)]);
    }
}
