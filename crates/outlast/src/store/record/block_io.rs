//! Reading, checking, filling and retiring the block of a version.

use crate::engine::{Epoch, MemberId};
use crate::store::error::StoreError;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::record::state::RecordOp;
use crate::store::segment::head::Head;
use crate::store::segment::layout::{
    BLOCK_HEADER_LEN, BLOCK_HOLDER, Block, TOMBSTONES, class_of, holder, value_start,
};
use crate::store::steps;

/// No counter of a version comes near to this.
pub(in crate::store) const COUNTER_MAX: u64 = 1 << 63;

/// The length of a value from which on it is compared with the length of the segment.
const LARGE_LEN: u64 = 1 << 20;

/// Short values are put together with their header.
const SHORT_LEN_MAX: usize = 224;

/// What a block is filled with: the header, in one piece with a short value, and the value
/// otherwise.
pub(in crate::store) struct BlockImage<'v> {
    begin: [u8; BLOCK_HEADER_LEN as usize + SHORT_LEN_MAX],
    begin_len: usize,
    rest: &'v [u8],
}

impl<'v> BlockImage<'v> {
    #[inline]
    pub(in crate::store) fn new(block: &Block, value: &'v [u8]) -> BlockImage<'v> {
        const HEADER: usize = BLOCK_HEADER_LEN as usize;
        let mut begin = [0; HEADER + SHORT_LEN_MAX];
        begin[..HEADER].copy_from_slice(&block.encode());
        if value.len() > SHORT_LEN_MAX {
            return BlockImage { begin, begin_len: HEADER, rest: value };
        }
        begin[HEADER..HEADER + value.len()].copy_from_slice(value);
        // Whole words: a part of one would have to be exchanged.
        BlockImage { begin, begin_len: (HEADER + value.len()).next_multiple_of(8), rest: &[] }
    }

    /// Where in a block its parts go; the second may be empty.
    pub(in crate::store) fn places(&self, offset: u64) -> [(u64, &[u8]); 2] {
        let begin = &self.begin[..self.begin_len];
        [(offset, begin), (offset + value_start(self.rest.len() as u64), self.rest)]
    }
}

/// The size class of a version's block.
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
    pub(in crate::store) fn read_block(&self, replica: MemberId, offset: u64) -> OpResult<Block> {
        let mut bytes = [0; BLOCK_HEADER_LEN as usize];
        self.get(replica, offset, &mut bytes)?;
        let block = Block::decode(&bytes);
        self.check_block(replica, offset, &block).map(|()| block)
    }

    /// What others have written is looked at before anything is made of it.
    pub(in crate::store) fn check_block(
        &self,
        replica: MemberId,
        offset: u64,
        block: &Block,
    ) -> OpResult<()> {
        let is_possible = block.writer.index() < self.store.job.members()
            && block.counter < COUNTER_MAX
            && class_of(value_start(block.len) + block.len).is_some();
        // Nobody asks for memory for a value that is longer than the segment.
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

    /// The counter of the version that a head names; 0 if it names none.
    pub(in crate::store) fn counter(&self, replica: MemberId, head: Head) -> OpResult<u64> {
        head.offset().map_or(Ok(0), |offset| self.load(replica, offset))
    }

    /// Fills a block at a replica with a version.
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

    /// Fills this block.
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
        if filled.is_err() {
            self.keep_unless_timed_out(replica, class, offset, &filled);
        }
        filled.map(|()| offset)
    }

    /// Retires the block that a head named, after it was swapped out: under any view, since nobody
    /// else does. Whatever fails, it was swapped out all the same.
    pub(in crate::store) fn retire_head(&self, replica: MemberId, head: Head) {
        let Some(offset) = head.offset() else { return };
        let mut bytes = [0; BLOCK_HEADER_LEN as usize];
        let read = self.store.job.get(Epoch::ANY, replica, offset, &mut bytes);
        if read.map_err(|error| self.noted(replica, error)).is_ok() {
            let block = Block::decode(&bytes);
            let _ = block_class(&block, replica)
                .and_then(|class| self.retire_block(replica, offset, &block, class));
        }
    }

    /// Retires a block that was swapped out, which holds this version: this member is its holder
    /// from now on.
    #[inline(always)]
    pub(in crate::store) fn retire_block(
        &self,
        replica: MemberId,
        offset: u64,
        block: &Block,
        class: usize,
    ) -> OpResult<()> {
        let me = holder(self.store.me());
        if block.holder != me {
            let (old, new) = (block.length_word(), Block { holder: me, ..*block }.length_word());
            // Under any view: nobody else may take it, whatever has happened since. By a swap,
            // since a request that comes late may find it taken back from its dead holder, whose
            // word never comes again, and used for another version.
            if !self.swap_own(replica, offset + BLOCK_HOLDER, old, new)? {
                return Ok(());
            }
        }
        self.retire(replica, class, offset);
        Ok(())
    }
}
