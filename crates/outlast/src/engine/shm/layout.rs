//! Where things are in the memory of a job.
//!
//! All members map a file without a name. It begins with the job's own tables and goes on with a
//! segment per member, each in an address range of its own that is backed by memory as far as its
//! owner has grown it:
//!
//! ```text
//! 0        header     the size of the job, and the epoch; a page
//! 4096     slots      256 bytes per member: its process, its state, its bell
//!          death log  a word per member: the dead in the order in which they were declared
//!          pending    per receiver, a bitmap of the senders with new messages, from the 64th on
//!          status     2048 bytes per member: what it tells observers; see `status.rs`
//!          rings      per receiver, a ring per sender; backed by memory from its first message on
//!          segments   a segment per member, `segment_stride` apart
//! ```
//!
//! Numbers are in the machine's byte order: the memory never leaves the machine.

use super::super::{MemberId, Port};
use super::sys::Mapping;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The most members that a job may have on a machine.
pub const SHM_MEMBERS_MAX: usize = 1024;

pub(super) const PAGE: usize = 4096;
/// Segments begin at multiples of this length, so that the kernel may back them by large pages.
const SEGMENT_ALIGNMENT: usize = 2 << 20;

const MAGIC: u64 = u64::from_ne_bytes(*b"OUTLAST\x03");
const HEADER_MAGIC: usize = 0;
const HEADER_REGULARS: usize = 8;
const HEADER_SPARES: usize = 12;
const HEADER_SEGMENT_LIMIT: usize = 16;
const HEADER_START_NS: usize = 24;
/// The length of the part of the header that is written once.
pub(super) const HEADER_LEN: usize = 32;
/// On a cache line of its own: it is read by every operation.
pub(super) const HEADER_EPOCH: usize = 64;
/// A bit for each member, on the mpi engine: see [`Tables::quarantined`].
#[cfg(feature = "mpi")]
const HEADER_QUARANTINED: usize = 128;
#[cfg(feature = "mpi")]
const _: () = assert!(HEADER_QUARANTINED + SHM_MEMBERS_MAX / 8 <= PAGE);

pub(super) const SLOTS: usize = PAGE;
pub(super) const SLOT_LEN: usize = 256;
const SLOT_ROBUST_WORD: usize = 8;
pub(super) const SLOT_PID: usize = 16;
pub(super) const SLOT_STATE: usize = 20;
/// Three words that only the member's own kernel reads.
const SLOT_ROBUST_HEAD: usize = 24;
/// The number of the member's last published message; see `mailbox.rs`.
const SLOT_PUBLISHED: usize = 48;
const SLOT_BELL: usize = 64;
const SLOT_SLEEPERS: usize = 68;
const SLOT_BACKGROUND_BELL: usize = 72;
const SLOT_BACKGROUND_SLEEPS: usize = 76;
const SLOT_ATTENDING: usize = 80;
/// The first word of the bitmap of senders: beside the bell, which a sender rings next.
const SLOT_PENDING: usize = 96;
/// The member whose request this member executes, on the mpi engine: see [`Tables::served`].
#[cfg(feature = "mpi")]
const SLOT_SERVED: usize = 104;
/// When the node of a remote member was last heard, on the mpi engine: see [`Tables::heard`].
#[cfg(feature = "mpi")]
const SLOT_HEARD: usize = 112;
pub(super) const SLOT_SEGMENT_LEN: usize = 128;
pub(super) const SLOT_DOMAIN_LEN: usize = 136;
pub(super) const SLOT_DOMAIN: usize = 140;
/// The longest path of a failure domain, in bytes.
pub(super) const DOMAIN_LEN_MAX: usize = SLOT_LEN - SLOT_DOMAIN;

/// The length of a member's status page.
pub(super) const STATUS_LEN: usize = 2048;

/// A slot whose member has not begun to join.
pub(super) const STATE_NEW: u32 = 0;
/// Its process is known, but the kernel does not watch it yet.
pub(super) const STATE_JOINING: u32 = 1;
/// The kernel watches it: its robust word is set.
pub(super) const STATE_JOINED: u32 = 2;

/// The length of a ring's header: the sender's position, the receiver's, the words by which the
/// sender says that it waits, and the bytes that the receiver has consumed, each on a cache line of
/// its own.
pub(super) const RING_HEADER_LEN: usize = 256;
pub(super) const RING_TAIL: usize = 0;
pub(super) const RING_HEAD: usize = 64;
/// Whether the sender waits for room in the ring.
pub(super) const RING_SENDER_WAITS: usize = 128;
/// Whether activities of the sender wait until the receiver has consumed messages.
pub(super) const RING_CREDIT_WAITS: usize = 136;
/// A word for each port: the cost of all messages that were received from the port's queue.
pub(super) const RING_CONSUMED: usize = 192;
const _: () = assert!(RING_CONSUMED + Port::COUNT * 8 <= RING_HEADER_LEN);

/// The sizes and offsets of all tables, computed from the size of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) regulars: usize,
    pub(super) spares: usize,
    /// The most bytes that a segment may have.
    pub(super) segment_limit: usize,
    /// The bytes of data in a ring.
    pub(super) ring_len: usize,
    pub(super) death_log: usize,
    pending: usize,
    pending_stride: usize,
    status: usize,
    rings: usize,
    segments: usize,
    segment_stride: usize,
    pub(super) total_len: usize,
}

/// The layout and the start of a job, from the bytes of its header; an error if they are damaged,
/// or the header does not fit a file of this length.
pub(super) fn read_header(
    header: &[u8; HEADER_LEN],
    file_len: u64,
) -> Result<(Layout, u64), String> {
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte: usize| header[at + byte]));
    let half = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte: usize| header[at + byte]));
    if word(HEADER_MAGIC) != MAGIC {
        return Err("it is not the memory of a job of this version of outlast".into());
    }
    let (regulars, spares) = (half(HEADER_REGULARS) as usize, half(HEADER_SPARES) as usize);
    let segment_limit = word(HEADER_SEGMENT_LIMIT) as usize;
    match Layout::new(regulars, spares, segment_limit) {
        Some(layout) if layout.total_len as u64 == file_len => Ok((layout, word(HEADER_START_NS))),
        _ => Err(format!(
            "its header ({regulars} members, {spares} spares, segments of {segment_limit} bytes) \
             does not fit its length of {file_len} bytes"
        )),
    }
}

fn round_up(value: usize, unit: usize) -> Option<usize> {
    value.checked_next_multiple_of(unit)
}

impl Layout {
    /// The layout of a job; `None` if it does not fit into an address space.
    pub(super) fn new(regulars: usize, spares: usize, segment_limit: usize) -> Option<Layout> {
        let members = regulars.checked_add(spares)?;
        if regulars == 0 || members > SHM_MEMBERS_MAX {
            return None;
        }
        // There is a ring per pair of members, so rings are smaller in larger jobs. A ring takes
        // whole pages.
        let ring_pages = match members {
            0..=16 => 16,
            17..=64 => 8,
            _ => 2,
        };
        let ring_len = ring_pages * PAGE - RING_HEADER_LEN;
        let segment_limit = round_up(segment_limit, PAGE)?;
        let death_log = SLOTS + members * SLOT_LEN;
        let pending = round_up(death_log + members * 8, 64)?;
        let pending_stride = members.div_ceil(512) * 64;
        let status = pending + members * pending_stride;
        let rings = round_up(status + members * STATUS_LEN, PAGE)?;
        let segments = round_up(rings + members * members * ring_pages * PAGE, SEGMENT_ALIGNMENT)?;
        let segment_stride = round_up(segment_limit.max(PAGE), SEGMENT_ALIGNMENT)?;
        let total_len = segments.checked_add(segment_stride.checked_mul(members)?)?;
        // The kernel keeps half of the 48-bit address space for itself, and the program needs some.
        (total_len < 1 << 46).then_some(Layout {
            regulars,
            spares,
            segment_limit,
            ring_len,
            death_log,
            pending,
            pending_stride,
            status,
            rings,
            segments,
            segment_stride,
            total_len,
        })
    }

    pub(super) fn members(&self) -> usize {
        self.regulars + self.spares
    }

    /// The tables that are backed by memory from the start.
    pub(super) fn tables_len(&self) -> usize {
        self.rings
    }

    /// The offset of a member's status page.
    pub(super) fn status(&self, member: MemberId) -> usize {
        assert!(member.index() < self.members());
        self.status + member.index() * STATUS_LEN
    }

    /// The offset of a member's segment.
    #[inline]
    pub(super) fn segment(&self, member: MemberId) -> usize {
        self.segments + member.index() * self.segment_stride
    }

    /// The offset of the word with the length of a member's segment: equal in all jobs.
    #[cfg(feature = "mpi")]
    pub(super) fn segment_len(member: MemberId) -> usize {
        SLOTS + member.index() * SLOT_LEN + SLOT_SEGMENT_LEN
    }

    /// The range of all segments.
    pub(super) fn all_segments(&self) -> std::ops::Range<usize> {
        self.segments..self.total_len
    }

    /// The offset and the length, header included, of the ring from `sender` to `receiver`.
    pub(super) fn ring(&self, sender: MemberId, receiver: MemberId) -> (usize, usize) {
        let len = RING_HEADER_LEN + self.ring_len;
        (self.rings + (receiver.index() * self.members() + sender.index()) * len, len)
    }
}

/// The tables of a job, typed. `deaths.rs` and `mailbox.rs` say why the orderings of their words
/// suffice. The header and the failure domains are written once, before the word that publishes
/// them (magic number, length) is released.
pub(super) struct Tables {
    pub(super) mapping: Mapping,
    pub(super) layout: Layout,
    /// The moment on the monotonic clock that is the job's time 0.
    pub(super) start_ns: u64,
}

impl Tables {
    /// Writes the header of a new job.
    pub(super) fn initialize(mapping: Mapping, layout: Layout, start_ns: u64) -> Tables {
        mapping.half(HEADER_REGULARS).store(layout.regulars as u32, Ordering::Relaxed);
        mapping.half(HEADER_SPARES).store(layout.spares as u32, Ordering::Relaxed);
        mapping.word(HEADER_SEGMENT_LIMIT).store(layout.segment_limit as u64, Ordering::Relaxed);
        mapping.word(HEADER_START_NS).store(start_ns, Ordering::Relaxed);
        // Last, and released: a process that sees it sees the rest of the header.
        mapping.word(HEADER_MAGIC).store(MAGIC, Ordering::Release);
        Tables { mapping, layout, start_ns }
    }

    /// Reads the header of a job that another process has made; `first` maps at least a page of it.
    /// The layout is computed anew and compared with the length of the file, so that a damaged
    /// header is refused.
    pub(super) fn read_layout(first: &Mapping, file_len: u64) -> Result<(Layout, u64), String> {
        // Acquire: a process that sees the magic number sees the rest of the header.
        let magic = first.word(HEADER_MAGIC).load(Ordering::Acquire);
        let mut header = [0; HEADER_LEN];
        first.read(0, &mut header);
        header[HEADER_MAGIC..][..8].copy_from_slice(&magic.to_ne_bytes());
        read_header(&header, file_len)
    }

    fn slot(&self, member: MemberId, field: usize) -> usize {
        assert!(member.index() < self.layout.members());
        SLOTS + member.index() * SLOT_LEN + field
    }

    /// The number of the dead that members may act on.
    #[inline]
    pub(super) fn epoch(&self) -> &AtomicU64 {
        self.mapping.word(HEADER_EPOCH)
    }

    /// A word of the bitmap of the members of other nodes that this node has quarantined.
    #[cfg(feature = "mpi")]
    pub(super) fn quarantined(&self, word: usize) -> &AtomicU64 {
        assert!(word < SHM_MEMBERS_MAX / 64);
        self.mapping.word(HEADER_QUARANTINED + word * 8)
    }

    /// The offset of a member's robust word; its list entry is in the 8 bytes before.
    pub(super) fn robust_word_offset(&self, member: MemberId) -> usize {
        self.slot(member, SLOT_ROBUST_WORD)
    }

    /// The offset of the head of the list in which the kernel finds the robust word.
    pub(super) fn robust_head_offset(&self, member: MemberId) -> usize {
        self.slot(member, SLOT_ROBUST_HEAD)
    }

    /// The word that the kernel marks when the member dies.
    pub(super) fn robust_word(&self, member: MemberId) -> &AtomicU32 {
        self.mapping.half(self.robust_word_offset(member))
    }

    /// The member's process, 0 before it joined.
    pub(super) fn pid(&self, member: MemberId) -> &AtomicU32 {
        self.mapping.half(self.slot(member, SLOT_PID))
    }

    /// A word of the member's status page.
    pub(super) fn status_word(&self, member: MemberId, index: usize) -> &AtomicU64 {
        assert!(index < STATUS_LEN / 8);
        self.mapping.word(self.layout.status(member) + index * 8)
    }

    /// How far the member has joined.
    pub(super) fn state(&self, member: MemberId) -> &AtomicU32 {
        self.mapping.half(self.slot(member, SLOT_STATE))
    }

    /// Counts the rings of the member's bell.
    pub(super) fn bell(&self, member: MemberId) -> &AtomicU32 {
        self.mapping.half(self.slot(member, SLOT_BELL))
    }

    /// Counts the rings of the bell of the member's background.
    pub(super) fn background_bell(&self, member: MemberId) -> &AtomicU32 {
        self.mapping.half(self.slot(member, SLOT_BACKGROUND_BELL))
    }

    /// Whether the member's background sleeps.
    pub(super) fn background_sleeps(&self, member: MemberId) -> &AtomicU32 {
        self.mapping.half(self.slot(member, SLOT_BACKGROUND_SLEEPS))
    }

    /// How many of the member's threads attend to a port.
    pub(super) fn attending(&self, member: MemberId, port: Port) -> &AtomicU32 {
        self.mapping.half(self.slot(member, SLOT_ATTENDING + port as usize * 4))
    }

    /// How many of the member's threads sleep on its bell.
    pub(super) fn sleepers(&self, member: MemberId) -> &AtomicU32 {
        self.mapping.half(self.slot(member, SLOT_SLEEPERS))
    }

    /// The member of another node whose request `member` is executing, plus 1; 0 if there is none.
    #[cfg(feature = "mpi")]
    pub(super) fn served(&self, member: MemberId) -> &AtomicU32 {
        self.mapping.half(self.slot(member, SLOT_SERVED))
    }

    /// When a member of this node last had a frame of another node; in the slot of the lowest
    /// member of that node.
    #[cfg(feature = "mpi")]
    pub(super) fn heard(&self, member: MemberId) -> &AtomicU64 {
        self.mapping.word(self.slot(member, SLOT_HEARD))
    }

    /// How much of the member's segment is backed by memory.
    #[inline]
    pub(super) fn segment_len(&self, member: MemberId) -> &AtomicU64 {
        self.mapping.word(self.slot(member, SLOT_SEGMENT_LEN))
    }

    /// Records the member's failure domain, cut to [`DOMAIN_LEN_MAX`].
    pub(super) fn set_domain(&self, member: MemberId, path: &str) {
        let bytes = &path.as_bytes()[..path.len().min(DOMAIN_LEN_MAX)];
        self.mapping.write(self.slot(member, SLOT_DOMAIN), bytes);
        self.mapping
            .half(self.slot(member, SLOT_DOMAIN_LEN))
            .store(bytes.len() as u32, Ordering::Release);
    }

    /// The member's failure domain.
    pub(super) fn domain(&self, member: MemberId) -> String {
        let len =
            self.mapping.half(self.slot(member, SLOT_DOMAIN_LEN)).load(Ordering::Acquire) as usize;
        let mut bytes = vec![0; len.min(DOMAIN_LEN_MAX)];
        self.mapping.read(self.slot(member, SLOT_DOMAIN), &mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// An entry of the death log.
    pub(super) fn death(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.layout.members());
        self.mapping.word(self.layout.death_log + index * 8)
    }

    /// The number of the sender's last published message.
    pub(super) fn published(&self, sender: MemberId) -> &AtomicU64 {
        self.mapping.word(self.slot(sender, SLOT_PUBLISHED))
    }

    /// A word of the bitmap of senders that have written to `receiver`. The first word is in the
    /// receiver's slot.
    pub(super) fn pending(&self, receiver: MemberId, word: usize) -> &AtomicU64 {
        if word == 0 {
            return self.mapping.word(self.slot(receiver, SLOT_PENDING));
        }
        assert!(word * 8 < self.layout.pending_stride);
        self.mapping
            .word(self.layout.pending + receiver.index() * self.layout.pending_stride + word * 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_do_not_overlap() {
        for (regulars, spares) in [(1, 0), (2, 1), (16, 0), (40, 8), (64, 0), (1000, 24)] {
            let layout = Layout::new(regulars, spares, 1 << 20).unwrap();
            let members = layout.members();
            let last = MemberId(members as u32 - 1);
            assert!(SLOTS + members * SLOT_LEN <= layout.death_log);
            assert!(layout.death_log + members * 8 <= layout.pending);
            assert!(
                layout.pending_stride * 8 >= members && layout.pending_stride.is_multiple_of(64)
            );
            assert!(layout.pending + members * layout.pending_stride <= layout.status);
            assert!(layout.status(last).is_multiple_of(64));
            assert!(layout.status(last) + STATUS_LEN <= layout.rings);
            let (ring, len) = layout.ring(last, last);
            assert!(ring % PAGE == 0 && len % PAGE == 0 && ring + len <= layout.segments);
            assert!(layout.segment(last) + layout.segment_limit <= layout.total_len);
        }
    }

    #[test]
    fn jobs_that_do_not_fit_are_refused() {
        assert_eq!(Layout::new(0, 0, 4096), None);
        assert_eq!(Layout::new(SHM_MEMBERS_MAX, 1, 4096), None);
        assert_eq!(Layout::new(usize::MAX, 2, 4096), None);
        assert_eq!(Layout::new(4, 0, usize::MAX), None);
        assert_eq!(Layout::new(1000, 0, 1 << 40), None);
    }
}
