//! Reconciling a record: the first touch under a new configuration.

use crate::store::mutant::mutant;
use crate::store::operation::configuration::Config;
use crate::store::operation::error::{Halt, Step};
use crate::store::operation::retry::Patience;
use crate::store::record::block_io::block_class;
use crate::store::record::key::KeyRef;
use crate::store::record::state::RecordOp;
use crate::store::segment::head::{Head, Phase};
use crate::store::segment::layout::{ACTOR_OUTCOME, Block, value_start};
use crate::store::steps;

impl<'a> RecordOp<'a> {
    /// The primary's head, settled under this configuration: whatever is unfinished is finished first.
    pub(in crate::store) fn settled(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        word: u64,
    ) -> Step<Head> {
        let primary = config.homes[config.primary];
        let mut patience = Patience::default();
        loop {
            patience.check(self.store)?;
            let head = Head(self.load(primary, word)?);
            if head.stamp() > config.stamp {
                return Err(Halt::Again);
            }
            if head.stamp() == config.stamp && (head.is_stable() || mutant("no-help")) {
                return Ok(head);
            }
            self.settle(config, key)?;
        }
    }

    /// T1 to T5, once; the caller looks whether it was enough.
    fn settle(&self, config: &Config, key: &KeyRef<'_>) -> Step<()> {
        self.find_new_homes(config, key.partition)?;
        // T1: seal the complete homes; look at the others.
        steps::enter(steps::Step::ReconcileSeal);
        let mut found: Vec<(usize, u64, Head, bool)> = Vec::with_capacity(config.homes.len());
        let mut omitted = 0;
        for home in config.ready_homes() {
            let member = config.homes[home];
            let is_complete = self.state(member, key.partition)?.phase() == Phase::Complete;
            let word = match self.find_or_insert(config, home, key) {
                Ok(word) => word,
                Err(halt) if self.may_omit(config, home, key.partition, &halt)? => {
                    omitted |= 1u64 << home;
                    continue;
                }
                Err(halt) => return Err(halt),
            };
            let head = loop {
                let head = Head(self.load(member, word)?);
                if head.stamp() > config.stamp {
                    return Err(Halt::Again);
                }
                if !is_complete || head.stamp() == config.stamp {
                    break head;
                }
                let sealed = head.restamped(config.stamp);
                if self.swap(member, word, head.0, sealed.0)? {
                    break sealed;
                }
            };
            if home == config.primary && head.is_stable() && head.stamp() == config.stamp {
                return Ok(());
            }
            found.push((home, word, head, is_complete));
        }
        // T2: the greatest version among the complete homes.
        steps::enter(steps::Step::ReconcileChoose);
        let mut greatest: Option<(u64, usize, Head)> = None;
        for &(home, _, head, is_complete) in &found {
            if is_complete {
                let counter = self.counter(config.homes[home], head)?;
                if greatest.is_none_or(|(other, _, _)| counter > other) {
                    greatest = Some((counter, home, head));
                }
            }
        }
        let (counter, source, source_head) = greatest.ok_or(Halt::Again)?;
        let version = match source_head.offset() {
            None => None,
            Some(offset) => {
                let member = config.homes[source];
                let block = self.read_block(member, offset)?;
                let mut value = vec![0; block.len as usize];
                self.get(member, offset + value_start(block.len), &mut value)?;
                Some((block, value))
            }
        };
        // T3: install it where it is not. Only what was seen above is replaced: if it has changed, look again.
        let mut primary_head = source_head;
        for &(home, word, head, _) in &found {
            let member = config.homes[home];
            if head.stamp() == config.stamp && self.counter(member, head)? == counter {
                if home == config.primary {
                    primary_head = head;
                }
                continue;
            }
            if head.stamp() == config.stamp && self.counter(member, head)? > counter {
                // Something newer was written here while this looked.
                return Ok(());
            }
            let new = match &version {
                None => Head::new(config.stamp, 0),
                Some((block, value)) => match self.fill_block(member, block, value) {
                    Ok(offset) => Head::new(config.stamp, offset),
                    Err(halt) if self.may_omit(config, home, key.partition, &halt)? => {
                        omitted |= 1 << home;
                        continue;
                    }
                    Err(halt) => return Err(halt),
                },
            };
            steps::enter(steps::Step::ReconcileInstall);
            let swapped = self.swap(member, word, head.0, new.0);
            if !matches!(swapped, Ok(true)) {
                if let (Some(offset), Some((block, _))) = (new.offset(), &version) {
                    self.keep_unless_late(member, block_class(block, member)?, offset, &swapped);
                }
                return swapped.map(|_| ());
            }
            self.retire_head(member, head);
            if home == config.primary {
                primary_head = new;
            }
        }
        // A home that got its index meanwhile lacks it.
        self.find_new_homes(config, key.partition)?;
        if config.has_others_than(found.iter().fold(omitted, |done, &(home, ..)| done | 1 << home))
        {
            return Ok(());
        }
        for home in (0..config.homes.len()).filter(|&home| omitted & 1 << home != 0) {
            self.omit(config, home, key.partition)?;
        }
        // T4: its writer must be able to know, before anyone builds on it.
        steps::enter(steps::Step::ReconcileNotifyWriter);
        if let Some((block, _)) = &version {
            self.tell_writer(block)?;
        }
        steps::enter(steps::Step::ReconcileMarkStable);
        let (primary, word) = found
            .iter()
            .find(|(home, ..)| *home == config.primary)
            .map(|&(home, word, ..)| (config.homes[home], word))
            .ok_or(Halt::Again)?;
        // Its writer may be stopped, or may not get as far as to ring: whoever sees the mark need not care.
        self.ring_waiters(primary, key.partition)?;
        // T5. If the swap fails someone else has settled it, or gone on.
        self.swap(primary, word, primary_head.0, primary_head.stable().0)?;
        Ok(())
    }

    /// Tells the writer of a version that it happened, if it lives. The word only grows: a late helper of an earlier
    /// operation takes nothing back.
    pub(in crate::store) fn tell_writer(&self, block: &Block) -> Step<()> {
        let view = self.store.view(self.epoch).ok_or(Halt::Again)?;
        // A version that several may make has no writer who wants to know.
        if !view.is_living(block.writer) || block.operation == 0 {
            return Ok(());
        }
        let word =
            self.store.root(block.writer) + self.store.layout.actor(block.actor) + ACTOR_OUTCOME;
        loop {
            let outcome = self.load(block.writer, word)?;
            if outcome >= block.operation
                || self.swap(block.writer, word, outcome, block.operation)?
            {
                return Ok(());
            }
        }
    }

    /// Makes a filling home hold what the primary has of a key, or something later.
    pub(in crate::store) fn copy_record(
        &self,
        config: &Config,
        key: &KeyRef<'_>,
        target: usize,
    ) -> Step<()> {
        let primary = config.homes[config.primary];
        let word = self.find_or_insert(config, config.primary, key)?;
        loop {
            let head = self.settled(config, key, word)?;
            let member = config.homes[target];
            let target_word = self.find_or_insert(config, target, key)?;
            let found = Head(self.load(member, target_word)?);
            if found.stamp() > config.stamp {
                return Err(Halt::Again);
            }
            let wanted = self.counter(primary, head)?;
            let is_older = found.stamp() < config.stamp || self.counter(member, found)? < wanted;
            if is_older || mutant("repair-over-newer") {
                let (new, class) = match head.offset() {
                    None => (Head::new(config.stamp, 0), None),
                    Some(offset) => {
                        let block = self.read_block(primary, offset)?;
                        let mut value = vec![0; block.len as usize];
                        self.get(primary, offset + value_start(block.len), &mut value)?;
                        let filled = self.fill_block(member, &block, &value)?;
                        (Head::new(config.stamp, filled), Some(block_class(&block, member)?))
                    }
                };
                let swapped = self.swap(member, target_word, found.0, new.0);
                match (&swapped, new.offset().zip(class)) {
                    (Ok(true), _) => self.retire_head(member, found),
                    (_, Some((offset, class))) => {
                        self.keep_unless_late(member, class, offset, &swapped)
                    }
                    (_, None) => {}
                }
                swapped?;
            }
            // Once more if the source has changed meanwhile.
            if self.load(primary, word)? == head.0 || mutant("repair-over-newer") {
                return Ok(());
            }
        }
    }
}
