//! Reading, checking, filling and retiring the block of a version.

use crate::engine::{Epoch, MemberId};
use crate::store::error::StoreError;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::operation::open_swaps::TakenBlock;
use crate::store::record::state::RecordOp;
use crate::store::segment::head::Head;
use crate::store::segment::layout::{
    BLOCK_HEADER_LEN, Block, TOMBSTONES, class_of, holder, value_start,
};
use crate::store::steps;

/// No version counter comes near this number. A greater counter in memory is damage.
pub(in crate::store) const COUNTER_MAX: u64 = 1 << 63;

/// From this length on, the length of a value is compared with the length of the segment.
pub(in crate::store::record) const LARGE_LEN: u64 = 1 << 20;

/// The longest value that is put together with its header.
const SHORT_LEN_MAX: usize = 224;

/// The bytes that a block is filled with: the header, in one piece with a short value, or the
/// header and a longer value apart.
pub(in crate::store) struct BlockImage<'v> {
    begin: [u8; BLOCK_HEADER_LEN as usize + SHORT_LEN_MAX],
    begin_len: usize,
    rest: &'v [u8],
}

impl<'v> BlockImage<'v> {
    /// Makes the image of a version.
    #[inline]
    pub(in crate::store) fn new(block: &Block, value: &'v [u8]) -> BlockImage<'v> {
        const HEADER: usize = BLOCK_HEADER_LEN as usize;
        let mut begin = [0; HEADER + SHORT_LEN_MAX];
        begin[..HEADER].copy_from_slice(&block.encode());
        if value.len() > SHORT_LEN_MAX {
            return BlockImage { begin, begin_len: HEADER, rest: value };
        }
        begin[HEADER..HEADER + value.len()].copy_from_slice(value);
        // Whole words: writing a part of a word would need an atomic exchange.
        BlockImage { begin, begin_len: (HEADER + value.len()).next_multiple_of(8), rest: &[] }
    }

    /// The parts of the image and their offsets in the segment, for a block at `offset`. The second
    /// part may be empty.
    pub(in crate::store) fn places(&self, offset: u64) -> [(u64, &[u8]); 2] {
        let begin = &self.begin[..self.begin_len];
        [(offset, begin), (offset + value_start(self.rest.len() as u64), self.rest)]
    }
}

/// The size class of a version's block. Tombstones have a class of their own.
#[inline]
pub(in crate::store) fn block_class(block: &Block, replica: MemberId) -> OpResult<usize> {
    if block.is_deleted {
        return Ok(TOMBSTONES);
    }
    class_of(value_start(block.len) + block.len).ok_or_else(|| {
        OpError::Fail(StoreError::OutOfMemory {
            member: replica,
            reason: format!("a value of {} bytes is larger than any block", block.len),
        })
    })
}

impl<'a> RecordOp<'a> {
    /// Reads and checks the header of the block at `offset`.
    pub(in crate::store) fn read_block(&self, replica: MemberId, offset: u64) -> OpResult<Block> {
        let mut bytes = [0; BLOCK_HEADER_LEN as usize];
        self.get(replica, offset, &mut bytes)?;
        let block = Block::decode(&bytes);
        self.check_block(replica, offset, &block).map(|()| block)
    }

    /// Checks the header of a block: other members have written it, and it must be possible before
    /// the operation relies on it.
    pub(in crate::store::record) fn check_block(
        &self,
        replica: MemberId,
        offset: u64,
        block: &Block,
    ) -> OpResult<()> {
        let is_possible = block.writer.index() < self.store.job.members()
            && block.counter < COUNTER_MAX
            && class_of(value_start(block.len) + block.len).is_some();
        // A value that is longer than the segment is damage: the reader would otherwise allocate
        // memory for it. The length of the segment may take a round trip, so only large values are
        // compared.
        let is_possible = is_possible
            && (block.len < LARGE_LEN
                || offset + value_start(block.len) + block.len
                    <= self.store.job.segment_len(replica)?);
        match is_possible {
            true => Ok(()),
            false => Err(OpError::Fail(StoreError::Corrupt {
                member: replica,
                what: "invalid value header",
            })),
        }
    }

    /// The version counter of the block that a head word names, 0 if it names none.
    pub(in crate::store) fn counter(&self, replica: MemberId, head: Head) -> OpResult<u64> {
        head.offset().map_or(Ok(0), |offset| self.load(replica, offset))
    }

    /// Takes a block at a replica, fills it with a version and returns its offset.
    pub(in crate::store) fn fill_block(
        &self,
        replica: MemberId,
        block: &Block,
        value: &[u8],
    ) -> OpResult<u64> {
        steps::enter(steps::Step::WriteFill);
        let class = block_class(block, replica)?;
        let block = Block { holder: holder(self.store.me()), ..*block };
        let offset = self.take_block(replica, class)?;
        self.fill(replica, class, offset, &BlockImage::new(&block, value))
    }

    /// Fills the block at `offset` and returns the offset. If that fails, the block is kept for the
    /// next operation. If the put timed out, it may still write to the block. The block is then
    /// retired: the put is a straggler, so a grace period outlasts it.
    #[inline]
    pub(in crate::store) fn fill(
        &self,
        replica: MemberId,
        class: usize,
        offset: u64,
        image: &BlockImage<'_>,
    ) -> OpResult<u64> {
        let mut places = image.places(offset).into_iter().filter(|(_, bytes)| !bytes.is_empty());
        let filled = places.try_for_each(|(offset, bytes)| self.put(replica, offset, bytes));
        match &filled {
            Ok(()) => {}
            Err(OpError::Fail(StoreError::Timeout { .. })) => self.retire(replica, class, offset),
            Err(_) => self.keep_unless_timed_out(replica, class, offset, &filled),
        }
        filled.map(|()| offset)
    }

    /// Retires the block that a head word named, after the head word was swapped. It does so under
    /// any view, because no other member retires this block. An error is ignored: the block was
    /// swapped out in any case. After a timeout it is retired later.
    pub(in crate::store) fn retire_head(&self, replica: MemberId, head: Head) {
        let Some(offset) = head.offset() else { return };
        let mut bytes = [0; BLOCK_HEADER_LEN as usize];
        let read = self.store.job.get(Epoch::ANY, replica, offset, &mut bytes);
        let taken = TakenBlock::version(offset);
        if read.map_err(|error| self.holder_error(replica, taken, error)).is_ok() {
            let block = Block::decode(&bytes);
            let _ = block_class(&block, replica)
                .and_then(|class| self.retire_block(replica, offset, &block, class));
        }
    }

    /// Retires a block that was swapped out. `block` is the header of the version that it holds.
    /// This member becomes the holder of the block. After a timeout that happens later.
    #[inline(always)]
    pub(in crate::store::record) fn retire_block(
        &self,
        replica: MemberId,
        offset: u64,
        block: &Block,
        class: usize,
    ) -> OpResult<()> {
        let me = holder(self.store.me());
        if block.holder != me {
            let (old, new) = (block.length_word(), Block { holder: me, ..*block }.length_word());
            // Under any view: only the operation that swapped the block out may take it, whatever
            // has happened since. By a swap: a request that arrives late may find that the replica
            // took the block back from its dead holder and reused it for another version. The word
            // of the dead holder never returns, so the swap then fails.
            let taken = TakenBlock { offset, class: Some(class) };
            if !self.swap_holder(replica, taken, old, new)? {
                return Ok(());
            }
        }
        self.retire(replica, class, offset);
        Ok(())
    }
}
