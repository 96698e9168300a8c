//! etcd: three members, whose logs are in memory, and a client of the leader by gRPC. The client
//! speaks just enough of HTTP/2: a request at a time, headers without compression, flow control.

use super::server::{Callers, Place, START, Servers};
use super::{Client, Connection, Load, Peer, PeerName, find, measure_connections, version_of};
use anyhow::{Context, bail, ensure};
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How many members: etcd has a copy at each, and a majority acknowledges a put.
const MEMBERS: usize = 3;

/// A leader that callers connect to.
struct Leader {
    address: SocketAddr,
    callers: Callers,
}

/// Members of etcd, with the addresses for callers.
pub(in crate::bench) struct EtcdCluster {
    pub(in crate::bench) servers: Servers,
    pub(in crate::bench) version: String,
    pub(in crate::bench) addresses: Vec<SocketAddr>,
    /// The number of the leader.
    pub(in crate::bench) leader: usize,
    callers: Callers,
}

impl EtcdCluster {
    /// Starts three members, and waits until they have a leader.
    pub(in crate::bench) fn start(place: &Place<'_>) -> anyhow::Result<EtcdCluster> {
        let program = find("etcd", "ETCD", "etcd/etcd", "peers")?;
        let mut servers = Servers::new("etcd")?;
        let addresses: Vec<(SocketAddr, SocketAddr)> = (0..MEMBERS)
            .map(|number| Ok((place.free(number)?, place.free(number)?)))
            .collect::<anyhow::Result<_>>()?;
        let url = |address: SocketAddr| format!("http://{address}");
        let cluster = addresses.iter().enumerate();
        let cluster = cluster.map(|(number, (_, peer))| format!("m{number}={}", url(*peer)));
        let cluster = cluster.collect::<Vec<_>>().join(",");
        for (number, (address, peer)) in addresses.iter().enumerate() {
            let mut command = place.command(number, &program)?;
            command.args(["--name", &format!("m{number}"), "--log-level", "error", "--data-dir"]);
            command.arg(servers.folder.join(number.to_string()));
            command.args(["--listen-client-urls", &url(*address)]);
            command.args(["--advertise-client-urls", &url(*address)]);
            command.args(["--listen-peer-urls", &url(*peer)]);
            command.args(["--initial-advertise-peer-urls", &url(*peer)]);
            command.args(["--initial-cluster", &cluster, "--initial-cluster-state", "new"]);
            servers.add(&mut command)?;
        }
        let addresses: Vec<SocketAddr> = addresses.iter().map(|(address, _)| *address).collect();
        let callers = place.callers();
        let until = Instant::now() + START;
        let leader = loop {
            let is_leader = |address: &SocketAddr| {
                let grpc = callers.connect(*address).and_then(Grpc::new);
                grpc.and_then(|mut grpc| grpc.is_leader()).unwrap_or(false)
            };
            if let Some(leader) = addresses.iter().position(is_leader) {
                break leader;
            }
            servers.check()?;
            ensure!(Instant::now() < until, "the members of etcd chose no leader within {START:?}");
            std::thread::sleep(Duration::from_millis(100));
        };
        let version = version_of(&program);
        Ok(EtcdCluster { servers, version, addresses, leader, callers })
    }
}

/// Starts three members; callers connect to their leader.
pub(super) fn start(place: &Place<'_>) -> anyhow::Result<Peer> {
    let EtcdCluster { servers, version, addresses, leader, callers } = EtcdCluster::start(place)?;
    let client = Box::new(Leader { address: addresses[leader], callers });
    Ok(Peer { name: PeerName::Etcd, version, copies: MEMBERS, client, servers })
}

impl Client for Leader {
    fn measure(&mut self, load: &Load) -> anyhow::Result<Vec<u64>> {
        measure_connections(load, || {
            Ok(Box::new(self.callers.connect(self.address).and_then(Grpc::new)?))
        })
    }
}

impl Connection for Grpc {
    fn put(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        let request = [field(1, key), field(2, value)].concat();
        self.call("/etcdserverpb.KV/Put", &request).map(drop)
    }

    fn get(&mut self, key: &[u8]) -> anyhow::Result<usize> {
        self.value_len(key)?.context("etcd has no value for the key")
    }
}

/// A connection to a member.
pub(in crate::bench) struct Grpc {
    stream: BufReader<TcpStream>,
    /// The stream of the next call.
    next: u32,
    /// How many bytes the member takes: on the connection, and on a new stream.
    window: i64,
    initial_window: i64,
}

/// The kinds of frames that matter here.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// The largest frame that every peer takes.
const FRAME_MAX: usize = 16_384;
/// How many bytes this client takes at once, on the connection and on a stream.
const RECEIVE: u32 = 1 << 24;

impl Grpc {
    /// Begins to speak on a connection.
    pub(in crate::bench) fn new(stream: TcpStream) -> anyhow::Result<Grpc> {
        let stream = BufReader::with_capacity(1 << 17, stream);
        let mut grpc = Grpc { stream, next: 1, window: 65_535, initial_window: 65_535 };
        let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        // Setting 4 is the window of a new stream.
        let settings = [&4u16.to_be_bytes()[..], &RECEIVE.to_be_bytes()].concat();
        hello.extend(frame(SETTINGS, 0, 0, &settings));
        hello.extend(frame(WINDOW_UPDATE, 0, 0, &(RECEIVE - 65_535).to_be_bytes()));
        grpc.stream.get_mut().write_all(&hello)?;
        Ok(grpc)
    }

    /// Puts a key.
    pub(in crate::bench) fn set(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        self.put(key, value)
    }

    /// The length of the value of a key, read linearizably.
    pub(in crate::bench) fn value_len(&mut self, key: &[u8]) -> anyhow::Result<Option<usize>> {
        let answer = self.call("/etcdserverpb.KV/Range", &field(1, key))?;
        Ok(bytes_of(&answer, 2).map(|pair| bytes_of(pair, 5).map_or(0, <[u8]>::len)))
    }

    /// Whether this member is the leader.
    fn is_leader(&mut self) -> anyhow::Result<bool> {
        let status = self.call("/etcdserverpb.Maintenance/Status", &[])?;
        let header = bytes_of(&status, 1).context("the status has no header")?;
        let (member, leader) = (number_of(header, 2), number_of(&status, 4));
        Ok(member.is_some() && member == leader)
    }

    /// Makes a call, and returns the message of its answer.
    fn call(&mut self, path: &str, message: &[u8]) -> anyhow::Result<Vec<u8>> {
        let id = self.next;
        self.next += 2;
        let mut request = frame(HEADERS, END_HEADERS, id, &headers(path));
        let mut body = vec![0];
        body.extend((message.len() as u32).to_be_bytes());
        body.extend(message);
        let mut window = self.initial_window;
        let (mut sent, mut answer) = (0, Vec::new());
        while sent < body.len() {
            let room = self.window.min(window).clamp(0, FRAME_MAX as i64) as usize;
            let len = room.min(body.len() - sent);
            if len == 0 {
                self.stream.get_mut().write_all(&std::mem::take(&mut request))?;
                ensure!(!self.receive(id, &mut window, &mut answer)?, "etcd refused a request");
                continue;
            }
            let is_last = sent + len == body.len();
            let flags = if is_last { END_STREAM } else { 0 };
            request.extend(frame(DATA, flags, id, &body[sent..sent + len]));
            sent += len;
            self.window -= len as i64;
            window -= len as i64;
        }
        self.stream.get_mut().write_all(&request)?;
        while !self.receive(id, &mut window, &mut answer)? {}
        // An error has no message, only headers.
        ensure!(answer.len() >= 5, "etcd answered {path} with an error");
        Ok(answer.split_off(5))
    }

    /// Receives a frame. Returns whether it ends the answer.
    fn receive(&mut self, id: u32, window: &mut i64, answer: &mut Vec<u8>) -> anyhow::Result<bool> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head)?;
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (kind, flags) = (head[3], head[4]);
        let of = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        let mut payload = vec![0; len];
        self.stream.read_exact(&mut payload)?;
        let number = || payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        match kind {
            DATA if of == id => {
                answer.extend(&payload);
                // The member may send as many bytes again.
                let more = frame(WINDOW_UPDATE, 0, 0, &(len as u32).to_be_bytes());
                if len > 0 {
                    self.stream.get_mut().write_all(&more)?;
                }
            }
            SETTINGS if flags & ACK == 0 => {
                for setting in payload.as_chunks::<6>().0 {
                    if setting[..2] == [0, 4] {
                        let value =
                            u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
                        *window += i64::from(value) - self.initial_window;
                        self.initial_window = i64::from(value);
                    }
                }
                self.stream.get_mut().write_all(&frame(SETTINGS, ACK, 0, &[]))?;
            }
            PING if flags & ACK == 0 => {
                self.stream.get_mut().write_all(&frame(PING, ACK, 0, &payload))?;
            }
            WINDOW_UPDATE if of == 0 => self.window += i64::from(number()),
            WINDOW_UPDATE if of == id => *window += i64::from(number()),
            RST_STREAM if of == id => bail!("etcd ended the call with code {}", number()),
            GOAWAY => bail!("etcd ended the connection"),
            _ => {}
        }
        let ends = matches!(kind, DATA | HEADERS) && of == id && flags & END_STREAM != 0;
        Ok(ends)
    }
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(id.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The headers of a call, in HPACK: from its static table, and literals.
fn headers(path: &str) -> Vec<u8> {
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    // POST and http are whole entries. The names :path, :authority and content-type are entries 4,
    // 1 and 31; the name te is none.
    let mut headers = vec![0x83, 0x86, 0x04];
    headers.extend(text(path));
    headers.push(0x01);
    headers.extend(text("127.0.0.1"));
    headers.extend([0x0f, 0x10]);
    headers.extend(text("application/grpc"));
    headers.push(0x00);
    headers.extend(text("te"));
    headers.extend(text("trailers"));
    headers
}

/// A field of bytes of a protobuf message.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut len = bytes.len();
    while len >= 0x80 {
        field.push(len as u8 | 0x80);
        len >>= 7;
    }
    field.push(len as u8);
    field.extend(bytes);
    field
}

/// A value of a protobuf message.
enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a protobuf message, up to the first that is damaged.
fn fields(message: &[u8]) -> impl Iterator<Item = (u64, FieldValue<'_>)> {
    fn number(rest: &mut &[u8]) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, after) = rest.split_first()?;
            *rest = after;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
    let mut rest = message;
    std::iter::from_fn(move || {
        let tag = number(&mut rest)?;
        let len = match tag & 7 {
            0 => return Some((tag >> 3, FieldValue::Number(number(&mut rest)?))),
            1 => 8,
            2 => usize::try_from(number(&mut rest)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (bytes, after) = rest.split_at_checked(len)?;
        rest = after;
        Some((tag >> 3, FieldValue::Bytes(bytes)))
    })
}

fn bytes_of(message: &[u8], wanted: u64) -> Option<&[u8]> {
    fields(message).find_map(|(number, value)| match value {
        FieldValue::Bytes(bytes) if number == wanted => Some(bytes),
        _ => None,
    })
}

fn number_of(message: &[u8], wanted: u64) -> Option<u64> {
    fields(message).find_map(|(number, value)| match value {
        FieldValue::Number(value) if number == wanted => Some(value),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_written() {
        let long = vec![7; 300];
        let message = [field(1, b"key"), vec![2 << 3, 0xac, 0x02], field(5, &long)].concat();
        assert_eq!(bytes_of(&message, 1), Some(&b"key"[..]));
        assert_eq!(number_of(&message, 2), Some(300));
        assert_eq!(bytes_of(&message, 5), Some(&long[..]));
        assert_eq!(bytes_of(&message, 2), None);
        // A damaged message ends early, and nothing panics.
        for len in 0..message.len() {
            let _ = (bytes_of(&message[..len], 5), number_of(&message[..len], 9));
        }
        assert_eq!(bytes_of(&[0xff; 20], 1), None);
    }
}
