//! Reconciling a record: the first access under a new configuration, or to an unfinished version.

#![cfg_attr(
    outlast_pages,
    doc = include_str!("../../../../../docs/protocol/reconciling.md")
)]

use crate::store::mutant::mutant;
use crate::store::operation::configuration::Configuration;
use crate::store::operation::error::{OpError, OpResult};
use crate::store::operation::retry::RetryBudget;
use crate::store::placement::replica::{ReplicaIndex, ReplicaSet};
use crate::store::record::block_io::block_class;
use crate::store::record::key::KeyRef;
use crate::store::record::state::RecordOp;
use crate::store::segment::head::{Head, Phase};
use crate::store::segment::layout::{Block, PARTICIPANT_OUTCOME, value_start};
use crate::store::steps;

impl<'a> RecordOp<'a> {
    /// The content of the primary's head word, reconciled under this configuration. An unfinished
    /// version is finished first.
    pub(in crate::store) fn reconciled(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        word: u64,
    ) -> OpResult<Head> {
        let primary = config.primary_member();
        let mut budget = RetryBudget::default();
        loop {
            budget.check(self.store)?;
            let head = Head(self.load(primary, word)?);
            if head.config_number() > config.config_number {
                return Err(OpError::Again);
            }
            if head.config_number() == config.config_number
                && (head.is_stable() || mutant("no-help"))
            {
                return Ok(head);
            }
            self.reconcile(config, key)?;
        }
    }

    /// A single pass of *seal* to *mark_stable*. It may end early, because another operation was
    /// faster. The caller checks whether the record is reconciled afterwards.
    fn reconcile(&self, config: &Configuration, key: &KeyRef<'_>) -> OpResult<()> {
        self.find_new_replicas(config, key.partition)?;
        // *seal* the complete replicas with an older number; only read the filling replicas. A
        // replica without a record gets an empty record, so that there is a head word to seal.
        steps::enter(steps::Step::ReconcileSeal);
        let mut found: Vec<(ReplicaIndex, u64, Head, bool)> =
            Vec::with_capacity(config.replicas.len());
        let mut skipped = ReplicaSet::EMPTY;
        for replica in config.ready_replicas() {
            let member = config.member(replica);
            let is_complete = self.state(member, key.partition)?.phase() == Phase::Complete;
            let word = match self.find_or_insert(config, replica, key) {
                Ok(word) => word,
                Err(error) if self.may_skip(config, replica, key.partition, &error)? => {
                    skipped.insert(replica);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let head = loop {
                let head = Head(self.load(member, word)?);
                if head.config_number() > config.config_number {
                    return Err(OpError::Again);
                }
                if !is_complete || head.config_number() == config.config_number {
                    break head;
                }
                let sealed = head.with_config_number(config.config_number);
                if self.swap(member, word, head.0, sealed.0)? {
                    break sealed;
                }
            };
            if replica == config.primary
                && head.is_stable()
                && head.config_number() == config.config_number
            {
                return Ok(());
            }
            found.push((replica, word, head, is_complete));
        }
        // *choose* the version with the greatest counter among the complete replicas. Complete
        // replicas with equal counters hold an identical version.
        steps::enter(steps::Step::ReconcileChoose);
        let mut greatest: Option<(u64, ReplicaIndex, Head)> = None;
        for &(replica, _, head, is_complete) in &found {
            if is_complete {
                let counter = self.counter(config.member(replica), head)?;
                if greatest.is_none_or(|(other, _, _)| counter > other) {
                    greatest = Some((counter, replica, head));
                }
            }
        }
        let (counter, source, source_head) = greatest.ok_or(OpError::Again)?;
        let version = match source_head.offset() {
            None => None,
            Some(offset) => {
                let member = config.member(source);
                let block = self.read_block(member, offset)?;
                let mut value = vec![0; block.len as usize];
                self.get(member, offset + value_start(block.len), &mut value)?;
                Some((block, value))
            }
        };
        // *install* the chosen version where it is missing. Only the head words that were seen
        // above are replaced: if a word has changed, the caller starts over.
        let mut primary_head = source_head;
        for &(replica, word, head, _) in &found {
            let member = config.member(replica);
            if head.config_number() == config.config_number
                && self.counter(member, head)? == counter
            {
                if replica == config.primary {
                    primary_head = head;
                }
                continue;
            }
            if head.config_number() == config.config_number && self.counter(member, head)? > counter
            {
                // A newer version was written at this filling replica meanwhile.
                return Ok(());
            }
            let new = match &version {
                None => Head::new(config.config_number, 0),
                Some((block, value)) => match self.fill_block(member, block, value) {
                    Ok(offset) => Head::new(config.config_number, offset),
                    Err(error) if self.may_skip(config, replica, key.partition, &error)? => {
                        skipped.insert(replica);
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            steps::enter(steps::Step::ReconcileInstall);
            let swapped = self.swap(member, word, head.0, new.0);
            if !matches!(swapped, Ok(true)) {
                if let (Some(offset), Some((block, _))) = (new.offset(), &version) {
                    self.keep_unless_timed_out(
                        member,
                        block_class(block, member)?,
                        offset,
                        &swapped,
                    );
                }
                return swapped.map(|_| ());
            }
            self.retire_head(member, head);
            if replica == config.primary {
                primary_head = new;
            }
        }
        // A replica that got an index meanwhile lacks the chosen version.
        self.find_new_replicas(config, key.partition)?;
        let found_at = found.iter().map(|&(replica, ..)| replica);
        if config.has_others_than(found_at.chain(skipped.iter()).collect()) {
            return Ok(());
        }
        for replica in skipped.iter() {
            self.skip_full_replica(config, replica, key.partition)?;
        }
        // *notify_writer*: the writer must be able to learn that its version happened before any
        // operation builds on the version.
        steps::enter(steps::Step::ReconcileNotifyWriter);
        if let Some((block, _)) = &version {
            self.notify_writer(block)?;
        }
        steps::enter(steps::Step::ReconcileMarkStable);
        let (primary, word) = found
            .iter()
            .find(|(replica, ..)| *replica == config.primary)
            .map(|&(replica, word, ..)| (config.member(replica), word))
            .ok_or(OpError::Again)?;
        // The writer may be stopped, or may fail before it rings. An operation that sees the stable
        // bit rings no waiters, so this operation rings first.
        self.ring_waiters(primary, key.partition)?;
        // *mark_stable*. If the swap fails, another operation has reconciled the record, or has
        // written it.
        self.swap(primary, word, primary_head.0, primary_head.stable().0)?;
        Ok(())
    }

    /// Tells the writer of a version that it happened, if the writer lives. The outcome word only
    /// grows, so a late helper of an earlier operation takes nothing back.
    pub(in crate::store) fn notify_writer(&self, block: &Block) -> OpResult<()> {
        let view = self.store.view(self.epoch).ok_or(OpError::Again)?;
        // A version that several members may make has no writer that waits for the outcome.
        if !view.is_living(block.writer) || block.operation == 0 {
            return Ok(());
        }
        let word = self.store.root(block.writer)
            + self.store.layout.participant(block.participant)
            + PARTICIPANT_OUTCOME;
        loop {
            let outcome = self.load(block.writer, word)?;
            if outcome >= block.operation
                || self.swap(block.writer, word, outcome, block.operation)?
            {
                return Ok(());
            }
        }
    }

    /// Makes a filling replica hold the primary's version of a key, or a later version.
    pub(in crate::store) fn copy_record(
        &self,
        config: &Configuration,
        key: &KeyRef<'_>,
        target: ReplicaIndex,
    ) -> OpResult<()> {
        let primary = config.primary_member();
        let word = self.find_or_insert(config, config.primary, key)?;
        loop {
            let head = self.reconciled(config, key, word)?;
            let member = config.member(target);
            let target_word = self.find_or_insert(config, target, key)?;
            let found = Head(self.load(member, target_word)?);
            if found.config_number() > config.config_number {
                return Err(OpError::Again);
            }
            let wanted = self.counter(primary, head)?;
            let is_older = found.config_number() < config.config_number
                || self.counter(member, found)? < wanted;
            if is_older || mutant("repair-over-newer") {
                let (new, class) = match head.offset() {
                    None => (Head::new(config.config_number, 0), None),
                    Some(offset) => {
                        let block = self.read_block(primary, offset)?;
                        let mut value = vec![0; block.len as usize];
                        self.get(primary, offset + value_start(block.len), &mut value)?;
                        let filled = self.fill_block(member, &block, &value)?;
                        (
                            Head::new(config.config_number, filled),
                            Some(block_class(&block, member)?),
                        )
                    }
                };
                let swapped = self.swap(member, target_word, found.0, new.0);
                match (&swapped, new.offset().zip(class)) {
                    (Ok(true), _) => self.retire_head(member, found),
                    (_, Some((offset, class))) => {
                        self.keep_unless_timed_out(member, class, offset, &swapped)
                    }
                    (_, None) => {}
                }
                // A lost swap says nothing about what the replica holds now: a stopped writer of an
                // older configuration may have been faster. The next pass reads the head word
                // again.
                if !swapped? {
                    continue;
                }
            }
            // Starts over if the primary's version has changed meanwhile.
            if self.load(primary, word)? == head.0 || mutant("repair-over-newer") {
                return Ok(());
            }
        }
    }
}
