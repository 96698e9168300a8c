//! Publishing a new version at the primary and installing it at the other replicas: the steps
//! *fill* to *mark_stable* of docs/protocol/writing.md, on the slow path.

use crate::engine::MemberId;
use crate::store::error::StoreError;
use crate::store::mutant::mutant;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::operation::open_swaps::SwapBlocks;
use crate::store::placement::replica::{ReplicaIndex, ReplicaSet};
use crate::store::record::block_io::{BlockImage, block_class};
use crate::store::record::key::KeyRef;
use crate::store::record::state::RecordOp;
use crate::store::record::waiters::WAITER_BITS;
use crate::store::record::write::{DraftBlock, NewVersion, Predecessor, PredecessorSource};
use crate::store::segment::head::Head;
use crate::store::segment::layout::value_start;
use crate::store::segment::place::Place;
use crate::store::steps;

/// A version that the primary's head word names.
pub(in crate::store::record) struct Publication {
    /// The content of the primary's head word.
    pub(in crate::store) head: Head,
    /// The waiter word, if it was loaded after *publish*.
    pub(in crate::store) waiters: Option<u64>,
    /// The replicas that hold the version already, or why the installation there has failed.
    pub(in crate::store::record) installed: OpResult<ReplicaSet>,
}

impl<'a> RecordOp<'a> {
    /// *fill* to *mark_stable*: fills a block at each ready replica and publishes the new version.
    /// Returns whether it was published; `false` if another operation was faster, or if a cached
    /// location was not valid.
    #[inline]
    pub(in crate::store) fn publish(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        predecessor: &mut Predecessor<'_>,
        new_version: &mut NewVersion<'_>,
    ) -> OpResult<bool> {
        if predecessor.source == PredecessorSource::Cached {
            return self.publish_compound(config, key, predecessor, new_version);
        }
        steps::enter(steps::Step::WriteFill);
        if !config.are_all_ready() {
            // A replica that is found only after *publish* may have no room, and then holds up the
            // version that other members can already see.
            self.find_new_replicas(config, key.partition)?;
        }
        let image = BlockImage::new(&new_version.block, new_version.value);
        for replica in config.ready_replicas() {
            let member = config.member(replica);
            let offset = match self.take_block(member, new_version.class) {
                Ok(offset) => offset,
                Err(error) if self.may_skip(config, replica, key.partition, &error)? => {
                    new_version.skipped.insert(replica);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let is_late = mutant("publish-early") && replica == config.primary;
            let image = if is_late { &BlockImage::new(&new_version.block, &[]) } else { &image };
            let filled = self.fill(member, new_version.class, offset, image)?;
            new_version.blocks[replica] = DraftBlock::Filled(filled);
        }
        // *find* at the other replicas. Before *publish*: a replica may have no room for a record.
        // After the blocks: a put without room for its value leaves no records behind.
        for replica in config.ready_replicas() {
            if replica == config.primary
                || new_version.skipped.contains(replica)
                || predecessor.has_cached(replica)
            {
                continue;
            }
            match self.find_or_insert(config, replica, key) {
                Ok(word) => new_version.words[replica] = word,
                Err(error) if self.may_skip(config, replica, key.partition, &error)? => {
                    new_version.skipped.insert(replica);
                }
                Err(error) => return Err(error),
            }
        }
        for replica in
            config.ready_replicas().filter(|&replica| new_version.skipped.contains(replica))
        {
            // The count is raised before *publish*, too: a repairer that is about to complete the
            // replica has to start over. Otherwise a complete replica without room might have to
            // hold a version that other members can already see.
            self.skip_full_replica(config, replica, key.partition)?;
        }
        let primary = config.primary_member();
        let DraftBlock::Filled(offset) = new_version.blocks[config.primary] else {
            return Err(OpError::Again);
        };
        // Without the stable bit, with a single replica too: an operation that sees the bit rings
        // no waiters.
        let head = Head::new(config.config_number, offset);
        steps::enter(steps::Step::WritePublish);
        let blocks = || {
            let replaced = predecessor.block.and(predecessor.head.offset());
            SwapBlocks::versions(replaced, Some(Place::new(primary, new_version.class, offset)))
        };
        match self.swap_blocks(primary, predecessor.word, predecessor.head.0, head.0, blocks) {
            Ok(true) => {}
            Err(OpError::Fail(error)) => {
                // The swap may still execute, and the head word would then name the block.
                new_version.blocks[config.primary] = DraftBlock::Open;
                return Err(OpError::Fail(error));
            }
            not => return not,
        }
        if mutant("publish-early") && !new_version.value.is_empty() {
            let offset = offset + value_start(new_version.block.len);
            self.put(primary, offset, new_version.value)?;
        }
        self.record_published(config, predecessor, new_version, head);
        let publication =
            Publication { head, waiters: None, installed: Ok(ReplicaSet::only(config.primary)) };
        self.complete_publication(config, key, predecessor, new_version, publication)?;
        Ok(true)
    }

    /// Records that the new version is published: the content of the primary's head word is `head`
    /// now.
    pub(in crate::store::record) fn record_published(
        &self,
        config: &Configuration,
        predecessor: &mut Predecessor<'_>,
        new_version: &mut NewVersion<'_>,
        head: Head,
    ) {
        new_version.blocks[config.primary] = DraftBlock::Named;
        new_version.is_published = true;
        self.stay();
        if let Some(cached) = &mut predecessor.cached {
            cached.at[config.primary].head = head;
        }
    }

    /// *install*, *catch_up* and *mark_stable* for a version that is published. Retires the block
    /// that it replaced, whatever fails.
    pub(in crate::store::record) fn complete_publication(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        predecessor: &mut Predecessor<'_>,
        new_version: &mut NewVersion<'_>,
        Publication { head, waiters, installed }: Publication,
    ) -> OpResult<()> {
        let primary = config.primary_member();
        let mut finished = installed.and_then(|installed| {
            self.install_everywhere(config, key, predecessor, new_version, installed)
        });
        // The epoch is checked before the stable bit is set: an operation that finds the bit builds
        // on the version and does not report it to this writer.
        if finished.is_ok() && self.must_recheck_view() {
            finished = Err(OpError::Again);
        }
        // The primary's block was swapped out, whatever has failed since.
        let retired = match (predecessor.head.offset(), &predecessor.block) {
            (Some(offset), Some(block)) => block_class(block, primary)
                .and_then(|class| self.retire_block(primary, offset, block, class)),
            _ => Ok(()),
        };
        if finished.is_ok() {
            // The version has happened: every complete replica of the configuration holds it or a
            // later version, so no later failure can undo it. After a timeout of the primary the
            // call does not wait for it a second time.
            let is_tidy = !matches!(retired, Err(OpError::Fail(_)))
                && self.mark_stable(config, key, predecessor, head, waiters).is_ok();
            if !is_tidy && let Some(cached) = &mut predecessor.cached {
                // The waiters may not have been rung. Without the cached location the next reader,
                // this handle included, reconciles the record, and rings first.
                cached.forget();
            }
        }
        finished
    }

    /// Whether the view has changed and the version must be confirmed. That is needed only where
    /// dead segments are salvaged. All replicas of the configuration hold the version, and the
    /// living replicas keep it whatever happens. But the memory of a dead replica may have been
    /// salvaged before the version was there.
    #[inline]
    pub(in crate::store::record) fn must_recheck_view(&self) -> bool {
        self.store.salvage_is_on && !self.is_current() && !mutant("salvage-late")
    }

    /// *install* and *catch_up*: makes every ready replica hold the version. `installed`
    /// are the replicas that hold it already.
    pub(in crate::store::record) fn install_everywhere(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        predecessor: &mut Predecessor<'_>,
        new_version: &mut NewVersion<'_>,
        mut installed: ReplicaSet,
    ) -> OpResult<()> {
        if mutant("ack-early") {
            installed.insert(ReplicaIndex::new(config.replicas.len() - 1));
        }
        loop {
            for replica in config.ready_replicas() {
                if installed.contains(replica) {
                    continue;
                }
                installed.insert(replica);
                if mutant("skip-epoch") && !self.is_current() {
                    continue;
                }
                let is_skipped = new_version.skipped.contains(replica);
                if is_skipped
                    && !self
                        .state(config.member(replica), key.partition)?
                        .is_filling(config.config_number)
                {
                    // The replica was completed meanwhile, and must hold the version.
                    new_version.skipped.remove(replica);
                }
                let mut outcome = match new_version.skipped.contains(replica) {
                    false => {
                        self.install_new_version(config, replica, key, predecessor, new_version)
                    }
                    true => self.skip_full_replica(config, replica, key.partition),
                };
                if let Err(error) = &outcome
                    && self.may_skip(config, replica, key.partition, error)?
                {
                    new_version.skipped.insert(replica);
                    outcome = self.skip_full_replica(config, replica, key.partition);
                }
                outcome?;
                if new_version.skipped.contains(replica) {
                    self.forget_skipped(config, replica, predecessor, new_version);
                }
            }
            // *catch_up*: replicas that got an index since *enter*, also if another thread of this
            // member found them.
            if !config.are_all_ready() {
                self.find_new_replicas(config, key.partition)?;
            }
            if !config.has_others_than(installed) {
                return Ok(());
            }
        }
    }

    /// *install* at a replica: fills a block there if none was filled, and makes the replica hold
    /// the version.
    fn install_new_version(
        &self,
        config: &Configuration,
        replica: ReplicaIndex,
        key: &KeyRef<'_>,
        predecessor: &mut Predecessor<'_>,
        new_version: &mut NewVersion<'_>,
    ) -> OpResult<()> {
        let member = config.member(replica);
        let offset = match new_version.blocks[replica] {
            DraftBlock::Filled(offset) => offset,
            _ => {
                // Repair may have copied the version to a replica that has no room for a second
                // copy.
                if let Some((_, head)) = self.find(config, replica, key)?
                    && head.config_number() == config.config_number
                    && self.counter(member, head)? >= new_version.block.counter
                {
                    predecessor.cached.iter_mut().for_each(|cached| cached.at[replica].word = 0);
                    return Ok(());
                }
                let filled = self.fill_block(member, &new_version.block, new_version.value)?;
                new_version.blocks[replica] = DraftBlock::Filled(filled);
                filled
            }
        };
        // If that fails before the swap, no other member has seen the block: it stays filled, and
        // is kept for the next operation.
        steps::enter(steps::Step::WriteInstall);
        if self.install_cached(config, replica, predecessor, new_version, offset)? {
            return Ok(());
        }
        let word = self.install(config, replica, key, new_version, offset)?;
        if let Some(cached) = &mut predecessor.cached {
            cached.at[replica].word = word.unwrap_or(0);
            cached.at[replica].head = Head::new(config.config_number, offset);
        }
        Ok(())
    }

    /// *install* at a replica with a cached location. Returns whether the head word was as cached
    /// and names the new block now.
    #[inline]
    fn install_cached(
        &self,
        config: &Configuration,
        replica: ReplicaIndex,
        predecessor: &mut Predecessor<'_>,
        new_version: &mut NewVersion<'_>,
        offset: u64,
    ) -> OpResult<bool> {
        let (Some(cached), Some(block)) = (&mut predecessor.cached, &predecessor.block) else {
            return Ok(false);
        };
        let (member, word, old) =
            (config.member(replica), cached.at[replica].word, cached.at[replica].head);
        let new = Head::new(config.config_number, offset);
        if word == 0 || !self.swap_installed(member, word, (old, new), replica, new_version)? {
            return Ok(false);
        }
        cached.at[replica].head = new;
        if let Some(offset) = old.offset() {
            let _ = self.retire_block(member, offset, block, cached.version.class);
        }
        Ok(true)
    }

    /// *install* at a replica: makes it hold the version or a later version. Returns the offset of
    /// the head word if the block was used. Otherwise the block is kept for the next operation.
    fn install(
        &self,
        config: &Configuration,
        replica: ReplicaIndex,
        key: &KeyRef<'_>,
        new_version: &mut NewVersion<'_>,
        offset: u64,
    ) -> OpResult<Option<u64>> {
        let (member, block) = (config.member(replica), new_version.block);
        let word = match new_version.words[replica] {
            0 => self.find_or_insert(config, replica, key)?,
            word => word,
        };
        loop {
            let found = Head(self.load(member, word)?);
            if found.config_number() > config.config_number {
                return Err(OpError::Again);
            }
            if found.config_number() == config.config_number
                && self.counter(member, found)? >= block.counter
            {
                new_version.blocks[replica] = DraftBlock::None;
                self.keep(member, new_version.class, offset);
                return Ok(None);
            }
            let new = Head::new(config.config_number, offset);
            if self.swap_installed(member, word, (found, new), replica, new_version)? {
                self.retire_head(member, found);
                return Ok(Some(word));
            }
        }
    }

    /// The swap of *install*. Records what has become of the block.
    #[inline]
    fn swap_installed(
        &self,
        member: MemberId,
        word: u64,
        (old, new): (Head, Head),
        replica: ReplicaIndex,
        new_version: &mut NewVersion<'_>,
    ) -> OpResult<bool> {
        let place = || new.offset().map(|offset| Place::new(member, new_version.class, offset));
        let blocks = || SwapBlocks::versions(old.offset(), place());
        let swapped = self.swap_blocks(member, word, old.0, new.0, blocks);
        match &swapped {
            Ok(true) => new_version.blocks[replica] = DraftBlock::Named,
            // The swap may still execute, and the head word would then name the block.
            Err(OpError::Fail(_)) => new_version.blocks[replica] = DraftBlock::Open,
            Ok(false) | Err(_) => {}
        }
        swapped
    }

    /// *mark_stable*: rings the waiters and sets the stable bit. `waiters` is the waiter word, if
    /// it was loaded after *publish*.
    #[inline]
    fn mark_stable(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        predecessor: &mut Predecessor<'_>,
        head: Head,
        waiters: Option<u64>,
    ) -> OpResult<()> {
        let primary = config.primary_member();
        steps::enter(steps::Step::WriteMarkStable);
        // Before the stable bit is set: an operation that sees the bit rings no waiters.
        match waiters {
            Some(waiters) if waiters & WAITER_BITS == 0 => {}
            _ => self.ring_waiters(primary, key.partition)?,
        }
        let (word, stable) = (predecessor.word, head.stable());
        if !self.store.job.is_mapped() {
            // The request stays in flight when the operation ends. The next request of this thread
            // to the primary comes behind it, and finds the bit.
            self.start_swap(primary, word, head.0, stable.0);
            if let Some(cached) = &mut predecessor.cached {
                cached.at[config.primary].head = stable;
            }
        } else if predecessor.cached.as_ref().is_none_or(|cached| cached.is_by_key) {
            // A handle knows that the version is stable, and expects to write the key again, which
            // would clear the bit. Any other operation finds no bit and reconciles the record.
            self.swap(primary, word, head.0, stable.0)?;
        }
        Ok(())
    }

    /// Drops what the handle knows of a replica that was skipped, and keeps a block that was filled
    /// there.
    #[cold]
    fn forget_skipped(
        &self,
        config: &Configuration,
        replica: ReplicaIndex,
        predecessor: &mut Predecessor<'_>,
        new_version: &mut NewVersion<'_>,
    ) {
        if let Some(cached) = &mut predecessor.cached {
            cached.at[replica].word = 0;
        }
        if let DraftBlock::Filled(offset) = std::mem::take(&mut new_version.blocks[replica]) {
            self.keep(config.member(replica), new_version.class, offset);
        }
    }

    /// Whether a replica may be skipped: it has no room, and is filling.
    #[cold]
    pub(in crate::store::record) fn may_skip(
        &self,
        config: &Configuration,
        replica: ReplicaIndex,
        partition: usize,
        error: &OpError,
    ) -> OpResult<bool> {
        let member = config.member(replica);
        match error {
            OpError::Fail(StoreError::OutOfMemory { member: full, .. }) if *full == member => {
                Ok(self.state(member, partition)?.is_filling(config.config_number))
            }
            _ => Ok(false),
        }
    }

    /// Skips a filling replica: raises the count in its state word. A repairer that fills the
    /// replica then loses the swap that would complete it, starts over, and finds the version at
    /// the primary.
    #[cold]
    pub(in crate::store::record) fn skip_full_replica(
        &self,
        config: &Configuration,
        replica: ReplicaIndex,
        partition: usize,
    ) -> OpResult<()> {
        let member = config.member(replica);
        loop {
            let state = self.state(member, partition)?;
            if !state.is_filling(config.config_number) {
                // The replica is complete, with or without the version, or the configuration has
                // changed.
                return Err(OpError::Again);
            }
            if self.swap_state(member, partition, state, state.with_skip())? {
                return Ok(());
            }
        }
    }
}
