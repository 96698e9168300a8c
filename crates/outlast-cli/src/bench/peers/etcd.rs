//! etcd: three members, whose logs are in memory, and a client of the leader by gRPC. The client
//! speaks just enough of HTTP/2: a request at a time, headers without compression, flow control.

use super::server::{START, Servers, command, free_port};
use super::{Call, Client, Peer, PeerName, find, repeat, version_of};
use anyhow::{Context, bail, ensure};
use std::io::{BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

/// How many members: etcd has a copy at each, and a majority acknowledges a put.
const MEMBERS: usize = 3;

struct Etcd {
    leader: Grpc,
    _servers: Servers,
}

/// Starts three members, and connects to their leader.
pub(super) fn start() -> anyhow::Result<Peer> {
    let program = find("etcd", "ETCD", "etcd/etcd", "peers")?;
    let mut servers = Servers::new("etcd")?;
    let ports: Vec<(u16, u16)> =
        (0..MEMBERS).map(|_| Ok((free_port()?, free_port()?))).collect::<anyhow::Result<_>>()?;
    let address = |port: u16| format!("http://127.0.0.1:{port}");
    let cluster =
        ports.iter().enumerate().map(|(number, (_, peer))| format!("m{number}={}", address(*peer)));
    let cluster = cluster.collect::<Vec<_>>().join(",");
    for (number, (port, peer)) in ports.iter().enumerate() {
        let mut command = command(&program)?;
        command.args(["--name", &format!("m{number}"), "--log-level", "error", "--data-dir"]);
        command.arg(servers.folder.join(number.to_string()));
        command.args(["--listen-client-urls", &address(*port)]);
        command.args(["--advertise-client-urls", &address(*port)]);
        command.args(["--listen-peer-urls", &address(*peer)]);
        command.args(["--initial-advertise-peer-urls", &address(*peer)]);
        command.args(["--initial-cluster", &cluster, "--initial-cluster-state", "new"]);
        servers.add(&mut command)?;
    }
    let until = Instant::now() + START;
    let leader = loop {
        let mut found = ports.iter().filter_map(|(port, _)| {
            let mut grpc = Grpc::connect(*port).ok()?;
            grpc.is_leader().ok()?.then_some(grpc)
        });
        if let Some(leader) = found.next() {
            break leader;
        }
        servers.check()?;
        ensure!(Instant::now() < until, "the members of etcd chose no leader within {START:?}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let version = version_of(&program);
    let client = Box::new(Etcd { leader, _servers: servers });
    Ok(Peer { name: PeerName::Etcd, version, servers: MEMBERS, copies: MEMBERS, client })
}

impl Client for Etcd {
    fn measure(
        &mut self,
        call: Call,
        size: usize,
        keys: usize,
        length: Duration,
    ) -> anyhow::Result<Vec<u64>> {
        let leader = std::cell::RefCell::new(&mut self.leader);
        let put = |name: &[u8], value: &[u8]| {
            let request = [field(1, name), field(2, value)].concat();
            leader.borrow_mut().call("/etcdserverpb.KV/Put", &request).map(drop)
        };
        let get = |name: &[u8]| {
            let answer = leader.borrow_mut().call("/etcdserverpb.KV/Range", &field(1, name))?;
            let pair = bytes_of(&answer, 2).context("etcd has no value for the key")?;
            Ok(bytes_of(pair, 5).map_or(0, <[u8]>::len))
        };
        repeat(call, size, keys, length, put, get)
    }
}

/// A connection to a member.
struct Grpc {
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
    fn connect(port: u16) -> anyhow::Result<Grpc> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
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
