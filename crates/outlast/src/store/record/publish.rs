//! Publishing a new version at the primary and installing it at the other replicas.

use crate::store::error::StoreError;
use crate::store::mutant::mutant;
use crate::store::operation::configuration::Config;
use crate::store::operation::error::{Halt, Step};
use crate::store::record::block_io::{Content, block_class};
use crate::store::record::key::KeyRef;
use crate::store::record::state::RecordOp;
use crate::store::record::waiters::WAITER_BITS;
use crate::store::record::write::{Before, Draft};
use crate::store::segment::head::Head;
use crate::store::segment::layout::value_start;
use crate::store::steps;

impl<'a> RecordOp<'a> {
    /// W4 to W7: fills a block at each home and publishes the draft; whether it was published.
    #[inline]
    pub(in crate::store) fn publish(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        before: &mut Before<'_>,
        draft: &mut Draft<'_>,
    ) -> Step<bool> {
        if before.is_assumed {
            return self.publish_in_series(config, key, before, draft);
        }
        steps::enter(steps::Step::WriteFill);
        let content = Content::new(&draft.block, draft.value);
        for home in config.ready_homes() {
            let member = config.homes[home];
            let offset = match self.take_block(member, draft.class) {
                Ok(offset) => offset,
                Err(halt) if self.may_omit(config, home, key.partition, &halt)? => {
                    draft.omitted |= 1 << home;
                    continue;
                }
                Err(halt) => return Err(halt),
            };
            let is_late = mutant("publish-early") && home == config.primary;
            let content = if is_late { &Content::new(&draft.block, &[]) } else { &content };
            draft.offsets[home] = self.fill(member, draft.class, offset, content)?;
        }
        // W2 for the other homes. Before anything is published: there may be no room for a record; and after the blocks, so
        // that a put that has no room for its value leaves no records behind.
        for home in config.ready_homes() {
            if home == config.primary || draft.omitted & 1 << home != 0 || before.remembers(home) {
                continue;
            }
            match self.find_or_insert(config, home, key) {
                Ok(word) => draft.words[home] = word,
                Err(halt) if self.may_omit(config, home, key.partition, &halt)? => {
                    draft.omitted |= 1 << home
                }
                Err(halt) => return Err(halt),
            }
        }
        for home in config.ready_homes().filter(|&home| draft.omitted & 1 << home != 0) {
            // Before the publication, too: whoever is about to complete it, without room for this, has to begin anew.
            self.omit(config, home, key.partition)?;
        }
        let primary = config.homes[config.primary];
        // Without the mark, also if nobody else is to hold it: whoever sees the mark rings nobody.
        let head = Head::new(config.stamp, draft.offsets[config.primary]);
        steps::enter(steps::Step::WritePublish);
        match self.swap(primary, before.word, before.head.0, head.0) {
            Ok(true) => {}
            Err(Halt::Fail(error)) => {
                // The swap may still be made.
                draft.offsets[config.primary] = 0;
                return Err(Halt::Fail(error));
            }
            not => return not,
        }
        if mutant("publish-early") && !draft.value.is_empty() {
            let offset = draft.offsets[config.primary] + value_start(draft.block.len);
            self.put(primary, offset, draft.value)?;
        }
        self.note_published(config, before, draft, head);
        self.conclude(config, key, before, draft, (head, None), Ok(1 << config.primary))
    }

    /// The primary's head names the draft.
    pub(in crate::store) fn note_published(
        &self,
        config: &Config,
        before: &mut Before<'_>,
        draft: &mut Draft<'_>,
        head: Head,
    ) {
        (draft.offsets[config.primary], draft.is_published) = (0, true);
        if let Some(memory) = &mut before.memory {
            memory.at[config.primary].head = head;
        }
    }

    /// W6 to W8 for a draft that is published under this head, and retires what it took the place of. `is_done` has a bit for
    /// each home that holds it already; with the head, who waits for a change, if that was looked at after the publication.
    pub(in crate::store) fn conclude(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        before: &mut Before<'_>,
        draft: &mut Draft<'_>,
        (head, waiters): (Head, Option<u64>),
        is_done: Step<u64>,
    ) -> Step<bool> {
        let primary = config.homes[config.primary];
        let mut finished =
            is_done.and_then(|is_done| self.finish(config, key, before, draft, is_done));
        // Before the mark: whoever builds on that tells nobody that the version happened.
        if finished.is_ok() && self.is_late() {
            finished = Err(Halt::Again);
        }
        // It was swapped out, whatever has become of the rest.
        let retired = match (before.head.offset(), &before.block) {
            (Some(offset), Some(block)) => block_class(block, primary)
                .and_then(|class| self.retire_block(primary, offset, block, class)),
            _ => Ok(()),
        };
        if finished.is_ok() {
            // The version has happened: every complete home of the configuration holds it, or something later, so no
            // failure from here on can undo it. A primary that was just late is not waited for a second time.
            let is_tidy = !matches!(retired, Err(Halt::Fail(_)))
                && self.tidy_up(config, key, before, head, waiters).is_ok();
            if !is_tidy && let Some(memory) = &mut before.memory {
                // Who waits may not have been rung: whoever reads the version, were it this handle, does that first.
                memory.forget();
            }
        }
        finished.map(|()| true)
    }

    /// W6 and W7: makes every home hold the version; `is_done` has a bit for each one that does.
    pub(in crate::store) fn finish(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        before: &mut Before<'_>,
        draft: &mut Draft<'_>,
        mut is_done: u64,
    ) -> Step<()> {
        is_done |= u64::from(mutant("ack-early")) << (config.homes.len() - 1);
        loop {
            for home in config.ready_homes() {
                if is_done & 1 << home != 0 {
                    continue;
                }
                is_done |= 1 << home;
                if mutant("skip-epoch") && !self.is_current() {
                    continue;
                }
                let is_omitted = draft.omitted & 1 << home != 0;
                if is_omitted
                    && !self.state(config.homes[home], key.partition)?.is_filling(config.stamp)
                {
                    // It was completed meanwhile.
                    draft.omitted &= !(1 << home);
                }
                let mut installed = match draft.omitted & 1 << home {
                    0 => self.install_draft(config, home, key, before, draft),
                    _ => self.omit(config, home, key.partition),
                };
                if let Err(halt) = &installed
                    && self.may_omit(config, home, key.partition, halt)?
                {
                    draft.omitted |= 1 << home;
                    installed = self.omit(config, home, key.partition);
                }
                installed?;
                if draft.omitted & 1 << home != 0 {
                    self.forget_omitted(config, home, before, draft);
                }
            }
            // W7: homes that got their index since, whoever found it out.
            if !config.are_all_ready() {
                self.find_new_homes(config, key.partition)?;
            }
            if !config.has_others_than(is_done) {
                return Ok(());
            }
        }
    }

    /// W6 for one home.
    fn install_draft(
        &self,
        config: &Config,
        home: usize,
        key: &KeyRef<'_>,
        before: &mut Before<'_>,
        draft: &mut Draft<'_>,
    ) -> Step<()> {
        let member = config.homes[home];
        let offset = match std::mem::take(&mut draft.offsets[home]) {
            0 => {
                // Repair may have brought it, to a home without room for a second one.
                if let Some((_, head)) = self.find(config, home, key)?
                    && head.stamp() == config.stamp
                    && self.counter(member, head)? >= draft.block.counter
                {
                    before.memory.iter_mut().for_each(|memory| memory.at[home].word = 0);
                    return Ok(());
                }
                self.fill_block(member, &draft.block, draft.value)?
            }
            offset => offset,
        };
        steps::enter(steps::Step::WriteInstall);
        let installed = match self.install_again(config, home, before, offset) {
            Ok(true) => return Ok(()),
            Ok(false) => self.install(config, home, key, draft, offset),
            Err(halt) => Err(halt),
        };
        let word = match installed {
            Ok(word) => word,
            Err(halt) => {
                if let Halt::Again | Halt::Fail(StoreError::OutOfMemory { .. }) = &halt {
                    // The view has changed, or there was no room for a record, and nobody has seen the block.
                    draft.offsets[home] = offset;
                }
                return Err(halt);
            }
        };
        if let Some(memory) = &mut before.memory {
            memory.at[home].word = word.unwrap_or(0);
            memory.at[home].head = Head::new(config.stamp, offset);
        }
        Ok(())
    }

    /// W6 for a home of which a handle remembers what it holds: whether it was still so, and holds the new block now.
    #[inline]
    fn install_again(
        &self,
        config: &Config,
        home: usize,
        before: &mut Before<'_>,
        offset: u64,
    ) -> Step<bool> {
        let (Some(memory), Some(block)) = (&mut before.memory, &before.block) else {
            return Ok(false);
        };
        let (member, word, old) = (config.homes[home], memory.at[home].word, memory.at[home].head);
        let new = Head::new(config.stamp, offset);
        if word == 0 || !self.swap(member, word, old.0, new.0)? {
            return Ok(false);
        }
        memory.at[home].head = new;
        if let Some(offset) = old.offset() {
            let _ = self.retire_block(member, offset, block, memory.class);
        }
        Ok(true)
    }

    /// W6 for one home: makes it hold a version, or something later. The block is used, and the head word returned, or
    /// it is kept for later.
    fn install(
        &self,
        config: &Config,
        home: usize,
        key: &KeyRef<'_>,
        draft: &Draft<'_>,
        offset: u64,
    ) -> Step<Option<u64>> {
        let (member, block) = (config.homes[home], &draft.block);
        let word = match draft.words[home] {
            0 => self.find_or_insert(config, home, key)?,
            word => word,
        };
        loop {
            let found = Head(self.load(member, word)?);
            if found.stamp() > config.stamp {
                return Err(Halt::Again);
            }
            if found.stamp() == config.stamp && self.counter(member, found)? >= block.counter {
                self.keep(member, block_class(block, member)?, offset);
                return Ok(None);
            }
            if self.swap(member, word, found.0, Head::new(config.stamp, offset).0)? {
                self.retire_head(member, found);
                return Ok(Some(word));
            }
        }
    }

    /// A home was left out: a handle knows nothing of it, and a block that was filled there is for later.
    #[cold]
    fn forget_omitted(
        &self,
        config: &Config,
        home: usize,
        before: &mut Before<'_>,
        draft: &mut Draft<'_>,
    ) {
        if let Some(memory) = &mut before.memory {
            memory.at[home].word = 0;
        }
        match std::mem::take(&mut draft.offsets[home]) {
            0 => {}
            offset => self.keep(config.homes[home], draft.class, offset),
        }
    }

    /// Whether a home may do without a version: it has no room, and is filling.
    #[cold]
    pub(in crate::store) fn may_omit(
        &self,
        config: &Config,
        home: usize,
        partition: usize,
        halt: &Halt,
    ) -> Step<bool> {
        let member = config.homes[home];
        match halt {
            Halt::Fail(StoreError::OutOfMemory { member: full, .. }) if *full == member => {
                Ok(self.state(member, partition)?.is_filling(config.stamp))
            }
            _ => Ok(false),
        }
    }

    /// Leaves a filling home out, after the version was published at the primary: whoever is filling it has to begin anew,
    /// and comes to see the version.
    #[cold]
    pub(in crate::store) fn omit(
        &self,
        config: &Config,
        home: usize,
        partition: usize,
    ) -> Step<()> {
        let member = config.homes[home];
        loop {
            let state = self.state(member, partition)?;
            if !state.is_filling(config.stamp) {
                // Complete, with or without the version; or the configuration is another.
                return Err(Halt::Again);
            }
            if self.swap_state(member, partition, state, state.with_omission())? {
                return Ok(());
            }
        }
    }

    /// W8.
    #[inline]
    fn tidy_up(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        before: &mut Before<'_>,
        head: Head,
        waiters: Option<u64>,
    ) -> Step<()> {
        let primary = config.homes[config.primary];
        steps::enter(steps::Step::WriteMarkStable);
        // Before the mark: whoever sees the mark rings nobody.
        match waiters {
            Some(waiters) if waiters & WAITER_BITS == 0 => {}
            _ => self.ring_waiters(primary, key.partition)?,
        }
        // A handle knows without the mark, and writes the same key again; whoever else comes looks for itself.
        if before.memory.is_none() {
            self.swap(primary, before.word, head.0, head.stable().0)?;
        }
        Ok(())
    }
}
