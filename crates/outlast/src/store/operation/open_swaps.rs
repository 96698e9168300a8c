//! Open swaps: what becomes of the blocks of a compare-and-swap that was not answered in time.
//!
//! Over a network the swap of a head word, of a bucket or of a free list may time out and be
//! executed later. Until its answer is there, no member knows which block it leaves without a name:
//!
//! | the swap was | the block that it was to add | the block that it was to take out |
//! |---|---|---|
//! | executed | is in use, or another operation has retired it since | belongs to this member alone |
//! | not executed | belongs to this member alone: no other member has seen it | is in use, or another operation has retired it |
//!
//! So the operation does not give the request up. It hands the request over to the stragglers of
//! its member (`stragglers.rs`), together with the places of these blocks, and the answer decides.
//! (The head word itself does not tell: another operation may have replaced the block meanwhile.)
//! docs/protocol/memory.md has the steps *keep*, *learn*, *hold* and *free*.
//!
//! A block that was taken out needs a holder, as in every retirement: the member loads the holder
//! word and swaps itself in. An operation that could only not write the holder word in time begins
//! there ([`OperationState::hold_later`]).
//!
//! *No block is freed too early.* The straggler is announced before its operation ends, and stays
//! until the block is freed here. Meanwhile no grace period of any member ends. So no member reuses
//! the block that the swap expects, or reclaims the block that it has taken out. The memory layer
//! takes the freed blocks ([`OperationState::take_freed`]) and begins a grace period for them.
//!
//! *The number of open swaps is bounded.* Each of them has a block of the replica that does not
//! answer, and a member gets no further block there as long as it does not answer.

use crate::engine::{Done, Epoch, Error, MemberId, Operation, Pending, Result};
use crate::store::operation::state::OperationState;
use crate::store::operation::stragglers::start_load;
use crate::store::segment::layout::{
    BLOCK_HOLDER, Block, HOLDER_MASK, TOMBSTONES, class_of, holder, value_start,
};
use crate::store::segment::place::Place;

/// The blocks of a swap, for the case that its answer comes late.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::store) struct SwapBlocks {
    /// The block that the word names after the swap, unless no block was taken for it.
    pub(in crate::store) added: Option<Place>,
    /// The block that the word names before the swap and not after it.
    pub(in crate::store) taken: Option<TakenBlock>,
    /// The record that the swap marks as *removed*, as partition and hash.
    pub(in crate::store) marked: Option<u64>,
}

impl SwapBlocks {
    /// The blocks of a swap of a head word: from the version at offset `old` to the version in the
    /// block `new`.
    pub(in crate::store) fn versions(old: Option<u64>, new: Option<Place>) -> SwapBlocks {
        SwapBlocks { added: new, taken: old.map(TakenBlock::version), marked: None }
    }
}

/// A block that a swap takes out of use, or off a free list.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) struct TakenBlock {
    pub(in crate::store) offset: u64,
    /// Its size class. A block with a version says its class itself.
    pub(in crate::store) class: Option<usize>,
}

impl TakenBlock {
    /// A block that holds a version.
    pub(in crate::store) fn version(offset: u64) -> TakenBlock {
        TakenBlock { offset, class: None }
    }
}

/// How the answer says that a swap was executed.
#[derive(Clone, Copy, Debug)]
pub(in crate::store) enum Proof {
    /// The swap has found this word.
    Found(u64),
    /// The compound operation has done the step with this index.
    Step(usize),
}

impl Proof {
    fn is_in(self, done: &Done) -> bool {
        match (self, done) {
            (Proof::Found(expected), Done::Word(found)) => *found == expected,
            (Proof::Step(step), Done::Compound { done, .. }) => *done > step,
            _ => false,
        }
    }
}

/// A request that may still execute, or whose answer an open swap waits for.
pub(in crate::store::operation) struct Straggler {
    pub(in crate::store::operation) request: Pending,
    pub(in crate::store::operation) about: About,
}

/// What the answer to the request of a straggler says.
pub(in crate::store::operation) enum About {
    /// That all earlier requests of the activity to the target have landed.
    Landing,
    /// Whether a swap was executed. The put that fills its block comes before it: it must not be
    /// given up as long as the swap is not.
    Swap { proof: Proof, blocks: SwapBlocks, _fill: Option<Pending> },
    /// The holder word of a block that this member has taken out of use.
    Holder(TakenBlock),
    /// Whether this member has become the holder of a block, whose holder word was as given.
    Hold(Place, u64),
}

/// What the answers of stragglers have set free.
#[derive(Default)]
pub(in crate::store::operation) struct Freed {
    /// Blocks that belong to this member. An operation in flight may still read them.
    pub(in crate::store::operation) blocks: Vec<Place>,
    /// The records that were marked as *removed*, as partition and hash, with their replicas.
    pub(in crate::store::operation) marked: Vec<(MemberId, u64)>,
}

impl Freed {
    pub(in crate::store::operation) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.marked.is_empty()
    }

    pub(in crate::store::operation) fn append(&mut self, mut other: Freed) {
        self.blocks.append(&mut other.blocks);
        self.marked.append(&mut other.marked);
    }
}

impl Straggler {
    /// A straggler that has landed when this request is answered.
    pub(in crate::store::operation) fn landing(request: Pending) -> Straggler {
        Straggler { request, about: About::Landing }
    }

    /// Looks for the answer, and acts on it. Returns whether the straggler still exists.
    pub(in crate::store::operation) fn is_open(
        &mut self,
        store: &OperationState,
        freed: &mut Freed,
    ) -> bool {
        match store.job.poll(&mut self.request) {
            None => true,
            // The replica is dead, and its memory is gone; or this member has ended.
            Some(Err(Error::Dead { .. } | Error::Ended)) => false,
            Some(result) => self.act(store, result, freed),
        }
    }

    /// *learn*, *hold* and *free*: acts on an answer. Returns whether the straggler still exists.
    fn act(&mut self, store: &OperationState, answer: Result<Done>, freed: &mut Freed) -> bool {
        let replica = self.request.target;
        match (std::mem::replace(&mut self.about, About::Landing), answer) {
            (About::Landing, Ok(_) | Err(Error::Stale { .. })) => false,
            (About::Landing, Err(_)) => {
                self.request = start_load(store, replica);
                true
            }
            // *learn*. A refused swap was not executed.
            (About::Swap { proof, blocks, .. }, Ok(done)) if proof.is_in(&done) => {
                freed.marked.extend(blocks.marked.map(|hash| (replica, hash)));
                match blocks.taken {
                    Some(taken) => {
                        *self = Straggler::of_holder(store, replica, taken);
                        true
                    }
                    None => false,
                }
            }
            (About::Swap { blocks, .. }, Ok(_) | Err(Error::Stale { .. })) => {
                freed.blocks.extend(blocks.added);
                false
            }
            // *hold*.
            (About::Holder(taken), Ok(done)) => {
                let word = done.word();
                let Some(class) = taken.class.or_else(|| class_of_version(word)) else {
                    return false;
                };
                let place = Place::new(replica, class, taken.offset);
                let held = word & !HOLDER_MASK | holder(store.me());
                if word == held {
                    freed.blocks.push(place);
                    return false;
                }
                let offset = taken.offset + BLOCK_HOLDER;
                let swap = Operation::CompareAndSwap { offset, expected: word, new: held };
                self.request = store.job.start(Epoch::ANY, replica, swap);
                self.about = About::Hold(place, word);
                true
            }
            // *free*.
            (About::Hold(place, word), Ok(done)) => {
                freed.blocks.extend((done.word() == word).then_some(place));
                false
            }
            // The memory of the replica is damaged: its blocks are left alone.
            (About::Swap { .. } | About::Holder(_) | About::Hold(..), Err(_)) => false,
        }
    }

    /// Loads the holder word of a block that this member has taken out of use.
    fn of_holder(store: &OperationState, replica: MemberId, taken: TakenBlock) -> Straggler {
        let load = Operation::Load { offset: taken.offset + BLOCK_HOLDER };
        let request = store.job.start(Epoch::ANY, replica, load);
        Straggler { request, about: About::Holder(taken) }
    }
}

/// The size class of a block with a version, by the word that names its holder.
fn class_of_version(word: u64) -> Option<usize> {
    let block = Block::from_words([0, 0, word, 0]);
    if block.is_deleted { Some(TOMBSTONES) } else { class_of(value_start(block.len) + block.len) }
}

impl OperationState {
    /// *keep*: a swap was not answered in time. Its request becomes a straggler, and its answer
    /// decides which of its blocks is free.
    pub(in crate::store::operation) fn keep_swap(
        &self,
        request: Pending,
        proof: Proof,
        blocks: SwapBlocks,
        fill: Option<Pending>,
    ) {
        let about = About::Swap { proof, blocks, _fill: fill };
        self.announce_straggler(Straggler { request, about });
    }

    /// A block was swapped out of its word, or taken off its free list, and this member could not
    /// become its holder in time: it becomes the holder later. The calling operation is in flight.
    /// The request comes behind all earlier requests of the activity to the replica, and so says
    /// that they have landed.
    #[cold]
    pub(in crate::store) fn hold_later(&self, replica: MemberId, taken: TakenBlock) {
        self.announce_straggler(Straggler::of_holder(self, replica, taken));
    }
}
