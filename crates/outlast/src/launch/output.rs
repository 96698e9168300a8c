//! The members' standard output and standard error: passed on line by line, or captured.
//!
//! With [`Output::Prefix`] and [`Output::Capture`] the output comes through a pipe for each stream.
//! A single thread reads all pipes until they are closed, or until [`OUTPUT_LIMIT`] after the end
//! of the last member: a descendant of a member may hold a pipe open for ever.

use super::LaunchError;
use super::running::Shared;
use crate::engine::MemberId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest wait for the rest of the output once all members have ended.
pub(super) const OUTPUT_LIMIT: Duration = Duration::from_secs(2);

/// The most bytes that [`Output::Capture`] keeps of a stream of a member.
pub const CAPTURE_LEN_MAX: usize = 16 << 20;

/// A line of output longer than this is passed on in pieces.
const LINE_LEN_MAX: usize = 64 << 10;

/// Where the standard output and the standard error of the members go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// To the launcher's standard output and standard error.
    #[default]
    Inherit,
    /// To the launcher's streams, each line with the member's number in front: `[2] line`.
    Prefix,
    /// Into memory, at most [`CAPTURE_LEN_MAX`] bytes for each stream, for
    /// [`Outcome::output`](super::Outcome::output).
    Capture,
    /// To `/dev/null`.
    Discard,
}

/// The captured output of a member; see [`Output::Capture`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Captured {
    /// The standard output.
    pub stdout: Vec<u8>,
    /// The standard error.
    pub stderr: Vec<u8>,
    /// Whether a stream was longer than [`CAPTURE_LEN_MAX`] and was cut off.
    pub truncated: bool,
}

/// The reading ends of the members' pipes.
pub(super) struct Streams {
    pub(super) output: Output,
    pub(super) streams: Vec<Stream>,
}

/// The reading end of a pipe of a member.
pub(super) struct Stream {
    pipe: std::fs::File,
    member: MemberId,
    is_error: bool,
    /// The bytes since the last end of a line.
    line: Vec<u8>,
}

impl Stream {
    pub(super) fn new(pipe: OwnedFd, member: MemberId, is_error: bool) -> Stream {
        Stream { pipe: std::fs::File::from(pipe), member, is_error, line: Vec::new() }
    }
}

impl Streams {
    /// Reads all pipes in a thread of its own. The keeper must not do it: if the reader of the
    /// launcher's output does not read, the launcher must still see deaths.
    pub(super) fn start(self, shared: &Arc<Shared>) -> Result<(), LaunchError> {
        if self.streams.is_empty() {
            return Ok(());
        }
        shared.lock().has_output = true;
        let shared = shared.clone();
        std::thread::Builder::new()
            .name("outlast-output".to_string())
            .spawn(move || {
                self.pass_on(&shared);
                shared.lock().has_output = false;
                shared.changed.notify_all();
            })
            .map(|_| ())
            .map_err(|error| LaunchError::System {
                what: "starting the launcher's output thread",
                error,
            })
    }

    /// The body of the output thread.
    fn pass_on(mut self, shared: &Shared) {
        let mut buffer = vec![0; LINE_LEN_MAX];
        let mut over_since: Option<Instant> = None;
        while !self.streams.is_empty() {
            // Once all members have ended, only their descendants hold pipes: wait a little longer.
            if shared.lock().running == 0 {
                let since = *over_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= OUTPUT_LIMIT {
                    break;
                }
            }
            let mut fds: Vec<PollFd<'_>> = self
                .streams
                .iter()
                .map(|stream| PollFd::from_borrowed_fd(stream.pipe.as_fd(), PollFlags::IN))
                .collect();
            let tick = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
            if poll(&mut fds, Some(&tick)).is_err() {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let is_ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            let mut is_ready = is_ready.into_iter();
            let output = self.output;
            self.streams.retain_mut(|stream| {
                if !is_ready.next().expect("one answer for each") {
                    return true;
                }
                match stream.pipe.read(&mut buffer) {
                    Ok(0) => {
                        stream.end();
                        false
                    }
                    Ok(len) if output == Output::Capture => {
                        stream.keep(&buffer[..len], shared);
                        true
                    }
                    Ok(len) => {
                        stream.pass_lines(&buffer[..len]);
                        true
                    }
                    Err(error) => error.kind() == std::io::ErrorKind::Interrupted,
                }
            });
        }
    }
}

impl Stream {
    /// Captures bytes.
    fn keep(&self, bytes: &[u8], shared: &Shared) {
        let mut state = shared.lock();
        let captured = &mut state.captured[self.member.index()];
        let kept = if self.is_error { &mut captured.stderr } else { &mut captured.stdout };
        let room = CAPTURE_LEN_MAX - kept.len();
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        captured.truncated |= bytes.len() > room;
    }

    /// Passes whole lines on, and keeps the rest for the next call.
    fn pass_lines(&mut self, mut bytes: &[u8]) {
        let mut text = Vec::new();
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            self.line.extend_from_slice(&bytes[..end]);
            self.take_line(&mut text);
            bytes = &bytes[end + 1..];
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() > LINE_LEN_MAX {
            self.take_line(&mut text);
        }
        self.write(&text);
    }

    /// Passes the last line on, if it has no end.
    fn end(&mut self) {
        if !self.line.is_empty() {
            let mut text = Vec::new();
            self.take_line(&mut text);
            self.write(&text);
        }
    }

    /// Moves the line to `text`, with the member's number in front.
    fn take_line(&mut self, text: &mut Vec<u8>) {
        text.extend_from_slice(format!("[{}] ", self.member.0).as_bytes());
        text.append(&mut self.line);
        text.push(b'\n');
    }

    /// Writes whole lines at once. Lines that cannot be written, since their reader is gone, are
    /// dropped; the members go on.
    fn write(&self, text: &[u8]) {
        let _ = match self.is_error {
            true => std::io::stderr().lock().write_all(text),
            false => {
                let mut stdout = std::io::stdout().lock();
                stdout.write_all(text).and_then(|()| stdout.flush())
            }
        };
    }
}
