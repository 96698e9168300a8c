//! System calls and raw memory: each function wraps a single call of the kernel or a single way to
//! touch shared memory, with the unsafe code that it needs.

use crate::engine::thread;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::io;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// A mapping of the job's memory. Other processes may change all of it at any time, so it is
/// accessed only through atomics and through copies that assume nothing about the content. The
/// orderings are those of the callers; the copies themselves are relaxed.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// The number of the file in its file system.
    inode: u64,
}

// SAFETY: the mapping is plain shared memory, and every access to it is atomic or a foreign copy,
// from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of a file, shared, and not inherited by forked children.
    pub(super) fn new(file: impl AsFd, len: usize) -> io::Result<Mapping> {
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let inode = rustix::fs::fstat(&file)?.st_ino;
        // SAFETY: the kernel chooses an unused address range, so that no existing memory is
        // affected.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
                file,
                0,
            )?
        };
        let base_address = NonNull::new(base.cast()).expect("mmap returned null");
        let mapping = Mapping { base: base_address, len, inode };
        // SAFETY: the range is the mapping just made. A forked child without it cannot hurt the
        // job.
        unsafe { rustix::mm::madvise(base, len, Advice::LinuxDontFork)? };
        // The kernel must not write the job's memory to a core file: the file would hold all of it,
        // with its holes filled, and the death is not announced before the file is complete.
        // SAFETY: as above.
        unsafe { rustix::mm::madvise(base, len, Advice::LinuxDontDump)? };
        Ok(mapping)
    }

    /// Cuts a range off from the other processes: when this returns, no thread of this process
    /// writes to the shared memory there any more. A thread in the middle of a copy writes the rest
    /// to a private copy.
    pub(super) fn make_private(
        &self,
        file: impl AsFd,
        range: std::ops::Range<usize>,
    ) -> io::Result<()> {
        let place = self.at(range.start, range.len());
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: the range is part of this mapping and stays mapped, readable and writable. Its
        // content may change at any time, as before, and is accessed only through atomics and
        // foreign copies.
        unsafe {
            let flags = flags | MapFlags::FIXED;
            rustix::mm::mmap(
                place.cast(),
                range.len(),
                protection,
                flags,
                file,
                range.start as u64,
            )?;
            rustix::mm::madvise(place.cast(), range.len(), Advice::LinuxDontFork)?;
            rustix::mm::madvise(place.cast(), range.len(), Advice::LinuxDontDump)?;
        }
        Ok(())
    }

    /// The number of the mapped file: see [`has_replaced_memory`].
    pub(super) fn inode(&self) -> u64 {
        self.inode
    }

    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            outside(offset, len, self.len);
        }
        // SAFETY: the range lies inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The address of the mapping, for a caller that passes it on.
    #[cfg(feature = "mpi")]
    pub(super) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The 8-byte word at this offset, which must be a multiple of 8.
    #[inline(always)]
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        // SAFETY: in range and aligned (the mapping is page-aligned); any bit pattern is valid; all
        // processes access words of the mapping atomically or by copies that tolerate changes.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// The 4-byte word at this offset, which must be a multiple of 4.
    #[inline]
    pub(super) fn half(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: as for `word`.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// Copies bytes into the mapping.
    #[inline]
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: the range was checked, and `bytes` is private memory of the same length.
        unsafe { write_untorn(to, bytes) }
    }

    /// Copies bytes out of the mapping.
    #[inline]
    pub(super) fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.at(offset, bytes.len());
        // SAFETY: the range was checked, and `bytes` is private memory of the same length.
        unsafe { read_untorn(from, bytes) }
    }

    /// The C library's memcpy into the mapping, which may tear words.
    pub(super) fn memcpy_in(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: the range was checked, and `bytes` is private memory of the same length.
        unsafe { foreign_copy(to, bytes.as_ptr(), bytes.len()) }
    }

    /// The C library's memcpy out of the mapping.
    pub(super) fn memcpy_out(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.at(offset, bytes.len());
        // SAFETY: as above.
        unsafe { foreign_copy(bytes.as_mut_ptr(), from, bytes.len()) }
    }

    /// A range that is found once and used several times; it begins at a multiple of 8.
    #[inline(always)]
    pub(super) fn range(&self, offset: usize, len: usize) -> Range<'_> {
        assert!(offset.is_multiple_of(8));
        let base = NonNull::new(self.at(offset, len)).expect("a mapping is not at null");
        Range { base, len: len as u64, mapping: PhantomData }
    }

    /// Gives the address range back. Not done on drop: a forked child does not have the range, and
    /// other memory may be mapped there by now. Only the owner knows whether it is in a forked
    /// child.
    pub(super) fn unmap(&mut self) {
        // SAFETY: the range was mapped by `new` in this process, and the owner calls this once,
        // when no borrow of it is left (`&mut self`).
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cold]
#[inline(never)]
fn outside(offset: usize, len: usize, all: usize) -> ! {
    panic!("{offset}+{len} outside {all}");
}

/// A range of the mapping. Accesses outside of it are refused; otherwise as for the mapping.
#[derive(Clone, Copy)]
pub(super) struct Range<'a> {
    base: NonNull<u8>,
    len: u64,
    mapping: PhantomData<&'a Mapping>,
}

// SAFETY: as for the mapping.
unsafe impl Send for Range<'_> {}
// SAFETY: as for the mapping.
unsafe impl Sync for Range<'_> {}

impl<'a> Range<'a> {
    #[inline(always)]
    fn at(self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        if len > self.len || offset > self.len - len {
            return None;
        }
        // SAFETY: it lies inside the range, which lies inside the mapping.
        Some(unsafe { self.base.add(offset as usize) })
    }

    /// This range without a lifetime, for an owner that keeps it together with its mapping.
    ///
    /// # Safety
    /// It is not used after the mapping was unmapped.
    pub(super) unsafe fn detached(self) -> Range<'static> {
        Range { base: self.base, len: self.len, mapping: PhantomData }
    }

    /// The length of the range.
    pub(super) fn len(self) -> u64 {
        self.len
    }

    /// The first `len` bytes of the range.
    ///
    /// # Safety
    /// The range has so many bytes.
    #[inline(always)]
    pub(super) unsafe fn first(self, len: u64) -> Range<'a> {
        Range { len, ..self }
    }

    /// The place of `count` words from `offset` on, if they are in the range and `offset` is a
    /// multiple of 8. Rotated by three bits, an offset inside of a word is beyond every range, so a
    /// single comparison checks the alignment and the bounds of a word.
    #[inline(always)]
    fn words_at(self, offset: u64, count: u64) -> Option<NonNull<u8>> {
        let (index, all) = (offset.rotate_right(3), self.len / 8);
        if index >= all || (count > 1 && all - index < count) {
            return None;
        }
        // SAFETY: it lies inside the range, which lies inside the mapping.
        Some(unsafe { self.base.add(offset as usize) })
    }

    /// Consecutive words; `offset` must be a multiple of 8.
    #[inline(always)]
    pub(super) fn words<const N: usize>(self, offset: u64) -> Option<&'a [AtomicU64; N]> {
        let place = self.words_at(offset, N as u64)?;
        // SAFETY: in range and aligned, since the range begins at a word; the rest as for
        // `Mapping::word`.
        Some(unsafe { place.cast().as_ref() })
    }

    /// Copies bytes into the range; returns whether they fit.
    #[cfg(not(feature = "faults"))]
    #[inline(always)]
    pub(super) fn write(self, offset: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.at(offset, bytes.len() as u64) else { return false };
        // SAFETY: the range was checked, and `bytes` is private memory of the same length.
        unsafe { write_untorn(to.as_ptr(), bytes) };
        true
    }

    /// Writes words at `offset`, and bytes `start` bytes behind it, which are filled up with zeros
    /// to a whole word; returns whether they fit. The range is checked once for all of them. `step`
    /// is called between the parts of the write.
    #[inline(always)]
    pub(super) fn write_block<const N: usize>(
        self,
        offset: u64,
        words: [u64; N],
        start: u64,
        bytes: &[u8],
        step: impl Fn(),
    ) -> bool {
        assert!(start.is_multiple_of(8) && start >= 8 * N as u64);
        let whole = bytes.len() & !7;
        let count = start / 8 + (bytes.len() as u64).div_ceil(8);
        let Some(place) = self.words_at(offset, count) else { return false };
        for (index, word) in words.into_iter().enumerate() {
            step();
            // SAFETY: in range, since the words end before `start`, and aligned, since the range
            // begins at a word and `offset` is whole words; the rest as for `Mapping::word`.
            unsafe { AtomicU64::from_ptr(place.add(8 * index).as_ptr().cast()) }
                .store(word, Ordering::Relaxed);
        }
        step();
        // SAFETY: in range, behind the words.
        let to = unsafe { place.add(start as usize) };
        let (body, rest) = bytes.split_at(whole);
        if whole > INLINE_BLOCK_MAX {
            // SAFETY: both ranges are valid and do not overlap, since `bytes` is a reference to
            // private memory; `to` is aligned and the length whole words.
            unsafe { write_halves(to.as_ptr(), body, &step) };
        } else {
            for (index, word) in body.chunks_exact(8).enumerate() {
                let word = u64::from_ne_bytes(word.try_into().expect("8 bytes"));
                // SAFETY: in range and aligned, as above.
                unsafe { AtomicU64::from_ptr(to.add(8 * index).as_ptr().cast()) }
                    .store(word, Ordering::Relaxed);
            }
        }
        if !rest.is_empty() {
            step();
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            // SAFETY: in range, since `count` has this word, and aligned.
            unsafe { AtomicU64::from_ptr(to.add(whole).as_ptr().cast()) }
                .store(u64::from_ne_bytes(last), Ordering::Relaxed);
        }
        step();
        true
    }

    /// Copies bytes out of the range; returns whether it has that many.
    #[inline(always)]
    pub(super) fn read(self, offset: u64, bytes: &mut [u8]) -> bool {
        let Some(from) = self.at(offset, bytes.len() as u64) else { return false };
        // SAFETY: the range was checked, and `bytes` is private memory of the same length.
        unsafe { read_untorn(from.as_ptr(), bytes) };
        true
    }

    /// Asks the processor to fetch the cache line at this offset, wherever it is.
    #[inline(always)]
    pub(super) fn prefetch(self, offset: u64) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint that reads nothing and does not fault, whatever the address.
        unsafe {
            let place = self.base.as_ptr().wrapping_add(offset as usize);
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(place.cast())
        };
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }
}

/// The longest copy that is done word by word, in line. Longer copies are done by the C library,
/// which is a foreign routine to the compiler and free to race with other processes.
const INLINE_LEN_MAX: usize = 56;

/// The longest value of a block that is written word by word, in line.
const INLINE_BLOCK_MAX: usize = 128;

/// How many bytes of a long copy from or to an odd address go through a buffer at once.
const BOUNCE_LEN: usize = 1024;

/// Copies bytes into shared memory, whose words are never torn. The accesses of the C library's
/// memcpy depend on the length and on the alignment of both sides: it moves the last bytes by a
/// move of their own, which may end in the middle of a word, and it aligns its accesses with the
/// destination, or with the source where both have nearly equal offsets in their pages. So memcpy
/// gets only whole words, and private memory that begins at a word. A word of which only a part is
/// written is exchanged as a whole.
///
/// # Safety
/// `to` points to `bytes.len()` bytes of mapped shared memory.
#[inline(always)]
unsafe fn write_untorn(to: *mut u8, bytes: &[u8]) {
    let skip = to as usize % 8;
    if skip != 0 || !bytes.len().is_multiple_of(8) {
        // SAFETY: promised by the caller.
        return unsafe { write_partial_words(to, bytes) };
    }
    if bytes.len() > INLINE_LEN_MAX {
        // SAFETY: promised by the caller.
        return unsafe { write_long(to, bytes) };
    }
    // SAFETY: promised by the caller.
    unsafe { write_words(to, bytes) }
}

/// # Safety
/// As for [`write_untorn`], and the range is whole words.
#[inline]
unsafe fn write_long(to: *mut u8, bytes: &[u8]) {
    if (bytes.as_ptr() as usize).is_multiple_of(8) {
        // SAFETY: both ranges are valid and do not overlap, since `bytes` is a reference to private
        // memory.
        return unsafe { foreign_copy(to, bytes.as_ptr(), bytes.len()) };
    }
    let mut bounce = [0u64; BOUNCE_LEN / 8];
    let mut at = to;
    for part in bytes.chunks(BOUNCE_LEN) {
        // SAFETY: the part is not longer than the buffer, nor than what is left of the range.
        unsafe {
            std::ptr::copy_nonoverlapping(part.as_ptr(), bounce.as_mut_ptr().cast(), part.len());
            foreign_copy(at, bounce.as_ptr().cast(), part.len());
            at = at.add(part.len());
        }
    }
}

/// Copies whole words, in two halves in builds in which a process may stop in between. A word may
/// be torn meanwhile: no other participant reads a block before it is published.
///
/// # Safety
/// As for [`write_untorn`], and the range is whole words.
#[inline]
unsafe fn write_halves(to: *mut u8, bytes: &[u8], step: &impl Fn()) {
    let middle = if cfg!(feature = "faults") { (bytes.len() / 2) & !7 } else { bytes.len() };
    let (first, second) = bytes.split_at(middle);
    // SAFETY: the halves follow each other inside the range; the rest is promised by the caller.
    unsafe {
        foreign_copy(to, first.as_ptr(), first.len());
        if !second.is_empty() {
            step();
            foreign_copy(to.add(middle), second.as_ptr(), second.len());
        }
    }
}

/// # Safety
/// As for [`write_untorn`], and the range is whole words.
#[inline(never)]
unsafe fn write_words(to: *mut u8, bytes: &[u8]) {
    let mut at = to;
    for word in bytes.chunks_exact(8) {
        // SAFETY: inside the range, and aligned since `to` is.
        unsafe {
            AtomicU64::from_ptr(at.cast())
                .store(u64::from_ne_bytes(word.try_into().expect("8 bytes")), Ordering::Relaxed);
            at = at.add(8);
        }
    }
}

/// # Safety
/// As for [`write_untorn`].
#[cold]
#[inline(never)]
unsafe fn write_partial_words(to: *mut u8, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(((8 - to as usize % 8) % 8).min(bytes.len()));
    let (body, tail) = rest.split_at(rest.len() & !7);
    // SAFETY: the parts follow each other inside the range; `body` begins at a word and is whole
    // words.
    unsafe {
        merge(to, head);
        if !body.is_empty() {
            write_untorn(to.add(head.len()), body);
        }
        merge(to.add(head.len() + body.len()), tail);
    }
}

/// Changes bytes inside a word, all at once.
///
/// # Safety
/// As for [`write_untorn`], and all the bytes are in a single word.
unsafe fn merge(to: *mut u8, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let skip = to as usize % 8;
    // SAFETY: the mapping is page-aligned, so the whole word is inside it.
    let word = unsafe { AtomicU64::from_ptr(to.sub(skip).cast()) };
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |found| {
        let mut found = found.to_ne_bytes();
        found[skip..skip + bytes.len()].copy_from_slice(bytes);
        Some(u64::from_ne_bytes(found))
    });
}

/// # Safety
/// `from` points to `bytes.len()` bytes of mapped shared memory.
#[inline(always)]
unsafe fn read_untorn(from: *const u8, bytes: &mut [u8]) {
    let skip = from as usize % 8;
    if skip != 0 || !bytes.len().is_multiple_of(8) {
        // SAFETY: promised by the caller.
        return unsafe { read_partial_words(from, bytes) };
    }
    if bytes.len() > INLINE_LEN_MAX {
        // SAFETY: promised by the caller.
        return unsafe { read_long(from, bytes) };
    }
    // SAFETY: promised by the caller.
    unsafe { read_words(from, bytes) }
}

/// # Safety
/// As for [`read_untorn`], and the range is whole words.
#[inline(never)]
unsafe fn read_words(from: *const u8, bytes: &mut [u8]) {
    let mut at = from.cast_mut();
    for word in bytes.chunks_exact_mut(8) {
        // SAFETY: inside the range, and aligned since `from` is.
        unsafe {
            word.copy_from_slice(
                &AtomicU64::from_ptr(at.cast()).load(Ordering::Relaxed).to_ne_bytes(),
            );
            at = at.add(8);
        }
    }
}

/// # Safety
/// As for [`read_untorn`], and the range is whole words.
#[inline]
unsafe fn read_long(from: *const u8, bytes: &mut [u8]) {
    if (bytes.as_ptr() as usize).is_multiple_of(8) {
        // SAFETY: both ranges are valid and do not overlap, since `bytes` is a reference to private
        // memory.
        return unsafe { foreign_copy(bytes.as_mut_ptr(), from, bytes.len()) };
    }
    let mut bounce = [0u64; BOUNCE_LEN / 8];
    let mut at = from;
    for part in bytes.chunks_mut(BOUNCE_LEN) {
        // SAFETY: the part is not longer than the buffer, nor than what is left of the range.
        unsafe {
            foreign_copy(bounce.as_mut_ptr().cast(), at, part.len());
            std::ptr::copy_nonoverlapping(bounce.as_ptr().cast(), part.as_mut_ptr(), part.len());
            at = at.add(part.len());
        }
    }
}

/// # Safety
/// As for [`read_untorn`].
#[cold]
#[inline(never)]
unsafe fn read_partial_words(from: *const u8, bytes: &mut [u8]) {
    let (head, rest) = bytes.split_at_mut(((8 - from as usize % 8) % 8).min(bytes.len()));
    let whole = rest.len() & !7;
    let (body, tail) = rest.split_at_mut(whole);
    // SAFETY: the parts follow each other inside the range; `body` begins at a word and is whole
    // words.
    unsafe {
        pick(from, head);
        if !body.is_empty() {
            read_untorn(from.add(head.len()), body);
        }
        pick(from.add(head.len() + body.len()), tail);
    }
}

/// Reads bytes inside a word, all at once.
///
/// # Safety
/// As for [`read_untorn`], and all the bytes are in a single word.
unsafe fn pick(from: *const u8, bytes: &mut [u8]) {
    if bytes.is_empty() {
        return;
    }
    let skip = from as usize % 8;
    // SAFETY: the mapping is page-aligned, so the whole word is inside it.
    let word = unsafe { AtomicU64::from_ptr(from.sub(skip).cast_mut().cast()) };
    let found = word.load(Ordering::Relaxed).to_ne_bytes();
    bytes.copy_from_slice(&found[skip..skip + bytes.len()]);
}

/// The C library's memcpy through a pointer that the optimizer cannot see through, so that it
/// assumes nothing about memory that other processes change.
///
/// # Safety
/// As for memcpy, except that other processes may change the source meanwhile.
#[inline]
unsafe fn foreign_copy(to: *mut u8, from: *const u8, len: usize) {
    type Copy =
        unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void;
    let copy: Copy = std::hint::black_box(libc::memcpy as Copy);
    // SAFETY: promised by the caller.
    unsafe { copy(to.cast(), from.cast(), len) };
}

/// Records a put. The fence that orders it before later loads is expensive, and most puts are
/// followed by a compare-and-swap, which orders them as well.
#[inline]
pub(super) fn owe_order() {
    thread::with(|state| state.owes_order.set(true));
}

/// Records an exchange of a word, which orders all that was before it.
#[inline]
pub(super) fn have_order() {
    thread::with(|state| state.owes_order.set(false));
}

/// Orders the puts of this thread before its next loads.
#[inline]
pub(super) fn order_puts() {
    if thread::with(|state| state.owes_order.get()) {
        fence(Ordering::SeqCst);
        thread::with(|state| state.owes_order.set(false));
    }
}

/// Orders the puts of this thread before a compare-and-swap whose result counts even if it fails.
/// On x86-64 each locked instruction is a full barrier. Elsewhere a compare-and-swap that fails is
/// only a load: on aarch64 it may be executed before an earlier put is visible.
#[inline]
pub(super) fn order_puts_before_swap() {
    if !cfg!(target_arch = "x86_64") {
        order_puts();
    }
}

/// A page of this process that a forked child finds zeroed: a process that finds it zeroed is a
/// forked child.
pub(super) struct ForkGuard {
    page: NonNull<u8>,
}

// SAFETY: the page is only reached as an atomic word.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

impl ForkGuard {
    const LEN: usize = 4096;

    pub(super) fn new() -> io::Result<ForkGuard> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an unused address range.
        let page = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                Self::LEN,
                protection,
                MapFlags::PRIVATE,
            )?
        };
        // SAFETY: the range is the page just mapped.
        unsafe { rustix::mm::madvise(page, Self::LEN, Advice::LinuxWipeOnFork)? };
        Ok(ForkGuard { page: NonNull::new(page.cast()).expect("mmap returned null") })
    }

    /// A word that is zero at first and in every forked child.
    #[inline]
    pub(super) fn word(&self) -> &AtomicU64 {
        // SAFETY: the page lives as long as the guard, is aligned, and is only reached through this
        // word.
        unsafe { AtomicU64::from_ptr(self.page.as_ptr().cast()) }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by `new`, is inherited by forked children, and no borrow of
        // it is left.
        let _ = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), Self::LEN) };
    }
}

/// Set in a robust word by the kernel when its owner died.
pub(super) const OWNER_DIED: u32 = 0x4000_0000;
/// Set in a robust word so that the kernel wakes a waiter when the owner dies.
const WAITERS: u32 = 0x8000_0000;

/// The kernel's `struct robust_list_head`, for a list with a single entry.
#[repr(C)]
struct RobustHead {
    list: *mut libc::c_void,
    futex_offset: libc::c_long,
    pending: *mut libc::c_void,
}

/// Makes the calling thread the owner of the robust word at `word_offset`, whose list entry is the
/// 8 bytes before it: when the thread ends in whatever way, the kernel sets [`OWNER_DIED`] in the
/// word and wakes a waiter.
///
/// The head is at `head_offset`, in the shared memory as well, although only this process can use
/// it: the kernel reads it at the thread's very end, and when it kills a process for want of
/// memory, it may have taken away all private memory by then.
pub(super) fn own_robust_word(
    mapping: &Mapping,
    word_offset: usize,
    head_offset: usize,
) -> io::Result<()> {
    let entry_offset = word_offset - 8;
    let entry = mapping.at(entry_offset, 16);
    let head = mapping.at(head_offset, size_of::<RobustHead>());
    // A list with a single entry, whose word is 8 bytes behind it, and no pending operation.
    mapping.word(head_offset).store(entry.addr() as u64, Ordering::Relaxed);
    mapping.word(head_offset + 8).store(8, Ordering::Relaxed);
    mapping.word(head_offset + 16).store(0, Ordering::Relaxed);
    // The list is circular: its only entry points back to the head.
    mapping.word(entry_offset).store(head.addr() as u64, Ordering::Relaxed);
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    mapping.half(word_offset).store(thread | WAITERS, Ordering::SeqCst);
    // SAFETY: the head and its entry live as long as the mapping; if that is gone at the thread's
    // end, the kernel stops walking the list. The list of the C library that this replaces is
    // empty: this thread is the engine's own and locks no robust mutexes.
    let status = unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<RobustHead>()) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Ends the ownership, so that the kernel does not mark the word when the thread ends.
pub(super) fn disown_robust_word(mapping: &Mapping, word_offset: usize) {
    let head = Box::leak(Box::new(RobustHead {
        list: std::ptr::null_mut(),
        futex_offset: 8,
        pending: std::ptr::null_mut(),
    }));
    head.list = (&raw mut *head).cast();
    // SAFETY: an empty list, which points to its own head and lives for ever.
    unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<RobustHead>()) };
    mapping.half(word_offset).store(0, Ordering::SeqCst);
}

const MEMBARRIER_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const MEMBARRIER_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

/// Registers this process for [`interrupt_all`]; returns whether the kernel can do it.
pub(super) fn register_for_interrupts() -> bool {
    membarrier(MEMBARRIER_REGISTER_GLOBAL_EXPEDITED)
}

/// Interrupts every core that runs a registered process, and returns when each has been in the
/// kernel. A thread with a deadly signal pending does not come back from there.
pub(super) fn interrupt_all() -> bool {
    membarrier(MEMBARRIER_GLOBAL_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes no pointers and changes no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// What an error says if the kernel has no `pidfd_open`.
pub(crate) const PIDFD_NEEDED: &str =
    "pidfd_open, which needs Linux 5.3 or newer and a seccomp profile that allows it,";

/// Fails if the kernel lacks what the engine cannot do without: a proof of a death, which is either
/// membarrier or a pidfd. A member that runs under valgrind 3.19 has the former alone.
pub(super) fn check_kernel() -> io::Result<()> {
    use rustix::process::{PidfdFlags, getpid, pidfd_open};
    if interrupt_all() {
        return Ok(());
    }
    pidfd_open(getpid(), PidfdFlags::empty()).map(drop).map_err(io::Error::from)
}

/// Whether a process has called exec since it mapped the file with this number: it has memory, and
/// none of it is of that file. Its threads of before have ended then, and cannot touch the file.
/// `false` if the kernel does not tell. A process that is ending has no memory to be seen.
pub(in crate::engine) fn has_replaced_memory(pid: u32, inode: u64) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let inode = inode.to_string();
    // The fifth field of a line is the number of the file. Files of other file systems may have an
    // equal number; the answer is then a wrong `false`.
    let is_of_file = |line: &str| line.split_whitespace().nth(4) == Some(inode.as_str());
    !maps.is_empty() && !maps.lines().any(is_of_file)
}

/// Sleeps until the word is not `seen`, a thread wakes it, or the monotonic clock reaches `until`.
pub(super) fn wait_on(word: &AtomicU32, seen: u32, until_ns: u64) {
    let until = timespec(until_ns);
    let any_waker = NonZeroU32::MAX;
    // An error is an early return: a changed word, a signal, the time. All callers check again.
    let _ = futex::wait_bitset(word, futex::Flags::empty(), seen, until.as_ref(), any_waker);
}

/// Sleeps until a word differs from its expected value, a thread wakes a word, or the monotonic
/// clock reaches `until`.
pub(super) fn wait_on_any(words: &[(&AtomicU32, u32)], until_ns: u64) {
    let waiters: Vec<futex::Wait> = words
        .iter()
        .map(|(word, seen)| {
            let mut wait = futex::Wait::new();
            wait.val = u64::from(*seen);
            wait.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
            // Not private: the words are shared between processes.
            wait.flags = futex::WaitFlags::SIZE_U32;
            wait
        })
        .collect();
    let until = timespec(until_ns);
    let result =
        futex::waitv(&waiters, futex::WaitvFlags::empty(), until.as_ref(), ClockId::Monotonic);
    // Any other error is an early return: a changed word, a signal, the time. All callers check
    // again. A seccomp profile may refuse the call with either of two errors.
    if matches!(result, Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM)) {
        // Before Linux 5.16: sleep on the first word, briefly, since no wakeup comes for the
        // others.
        let (word, seen) = words[0];
        wait_on(word, seen, until_ns.min(monotonic_ns() + 2_000_000));
    }
}

/// The most words that [`wait_on_any`] takes.
pub(super) const WAIT_WORDS_MAX: usize = 128;

fn timespec(ns: u64) -> Option<Timespec> {
    (ns != u64::MAX).then_some(Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    })
}

/// Wakes all threads that sleep on the word.
pub(super) fn wake_all(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// The monotonic clock, which all processes of the machine share, in nanoseconds.
#[inline]
pub(super) fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The clock that goes on while the machine is suspended, in nanoseconds. It stands still while a
/// virtual machine is paused, as all clocks of that machine do.
#[cfg(feature = "mpi")]
#[inline]
pub(super) fn boottime_ns() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Prepares a command: the process that it starts inherits `file`, and, if asked, is killed when
/// the thread that started it ends.
pub(super) fn inherit(
    command: &mut std::process::Command,
    file: std::sync::Arc<std::os::fd::OwnedFd>,
    die_with_parent: bool,
) {
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    let parent = std::process::id();
    let prepare = move || {
        let file = file.as_raw_fd();
        // SAFETY: fcntl, prctl, getppid and _exit are safe between fork and exec.
        unsafe {
            if libc::fcntl(file, libc::F_SETFD, 0) == -1 {
                return Err(io::Error::last_os_error());
            }
            if die_with_parent {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == -1 {
                    return Err(io::Error::last_os_error());
                }
                // The parent may have died before the call above.
                if libc::getppid() as u32 != parent {
                    libc::_exit(1);
                }
            }
        }
        Ok(())
    };
    // SAFETY: the closure only makes system calls that are safe between fork and exec, and
    // allocates nothing.
    unsafe { command.pre_exec(prepare) };
}

/// Prepares a command: the kernel sends the process that it starts SIGTERM when the thread that
/// started it ends.
pub(super) fn terminate_with_parent(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let parent = std::process::id();
    let prepare = move || {
        // SAFETY: prctl, getppid and _exit are safe between fork and exec.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) == -1 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the call above.
            if libc::getppid() as u32 != parent {
                libc::_exit(1);
            }
        }
        Ok(())
    };
    // SAFETY: as in `inherit`.
    unsafe { command.pre_exec(prepare) };
}

/// Ends this process at once, as if killed: no destructor and no exit handler of the program runs.
pub(super) fn end_now() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // A process that sends itself SIGKILL does not return; should it ever be refused, it exits
    // without handlers.
    // SAFETY: _exit takes no pointers and does not return.
    unsafe { libc::_exit(137) }
}

/// Writes the last words to standard error and ends this process at once. There may be no reader: a
/// closed pipe must not make it panic, and a full pipe must not make it wait.
pub(super) fn end_with(last_words: &str) -> ! {
    let error_stream = io::stderr();
    let error_stream = error_stream.as_fd();
    let mut fds = [rustix::event::PollFd::new(&error_stream, rustix::event::PollFlags::OUT)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    if let Ok(1) = rustix::event::poll(&mut fds, Some(&at_once)) {
        let _ = rustix::io::write(error_stream, last_words.as_bytes());
    }
    end_now()
}

/// Stops this process, and returns when another process resumes it. The signal is for the calling
/// thread: another thread might take a signal for the process, and the calling thread would go on
/// for a moment.
#[cfg(feature = "faults")]
pub(super) fn stop_now() {
    // SAFETY: raise takes no pointers.
    unsafe { libc::raise(libc::SIGSTOP) };
}
