//! Accepting losses in runs that go beyond what the store promises: one member at a time, the acceptor, looks for lost
//! partitions, tells which keys are lost before it accepts that, and says when nothing is lost any more. From that the
//! judges know when each key began anew; see [`outlast_check::loss`].

use anyhow::{Context, bail, ensure};
use outlast::store::{Store, StoreError};
use outlast::{Engine, Epoch, Job};
use outlast_check::history::Key;
use outlast_check::loss::Loss;
use outlast_check::workload::Random;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// What a acceptor tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LossNews {
    /// These keys, by their numbers, are lost; those that are locked by a lost transaction are elsewhere. It is about to be
    /// accepted.
    Lost { keys: Vec<usize>, locked: Vec<usize>, told_ns: u64, begin_ns: u64 },
    /// Nothing is lost.
    Whole { at_ns: u64 },
}

/// What all acceptors have told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses(pub(crate) Vec<Loss>);

impl Losses {
    pub(crate) fn record(&mut self, news: LossNews, all: &[Key]) {
        match news {
            LossNews::Lost { keys, locked, told_ns, begin_ns } => {
                let named = |numbers: &[usize]| -> BTreeSet<Key> {
                    numbers.iter().filter_map(|&number| all.get(number).cloned()).collect()
                };
                // What a acceptor had begun to accept before it died is still the same loss.
                let open = self.0.iter().filter(|loss| loss.end_ns.is_none());
                let open: BTreeSet<Key> = open.flat_map(|loss| loss.keys.iter().cloned()).collect();
                let keys = named(&keys).difference(&open).cloned().collect();
                let (begin_ns, locked) = (Some(begin_ns), named(&locked));
                self.0.push(Loss { keys, locked, told_ns, begin_ns, end_ns: None });
            }
            LossNews::Whole { at_ns } => {
                let open = self.0.iter_mut().filter(|loss| loss.end_ns.is_none());
                open.for_each(|loss| loss.end_ns = Some(at_ns));
            }
        }
    }
}

/// A member that accepts losses.
pub(crate) struct LossAcceptor {
    random: Random,
    /// How long the loss stays, at most, before it is accepted.
    pause_max: Duration,
    clock: fn(&Job) -> u64,
    /// The epoch under which nothing was lost.
    whole: Option<Epoch>,
    /// Whether a home did not answer: what it was asked for may come true at any time.
    pub(crate) is_owed: bool,
}

impl LossAcceptor {
    pub(crate) fn new(
        seed: u64,
        job: &Job,
        pause_max: Duration,
        clock: fn(&Job) -> u64,
    ) -> LossAcceptor {
        let random = Random::stream(seed, 0x6c6f_7373 ^ u64::from(job.me().0));
        LossAcceptor { random, pause_max, clock, whole: None, is_owed: false }
    }

    /// Looks for losses and accepts them; what it finds is told before. `is_sole`: no other member has been doing so, and
    /// nothing of what it asked for can still come true.
    pub(crate) fn accept_losses(
        &mut self,
        job: &Job,
        store: &Store,
        keys: &[Key],
        is_sole: bool,
        tell: &mut dyn FnMut(LossNews) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (epoch, is_sole) = (job.epoch(), is_sole && !self.is_owed);
        if self.whole == Some(epoch) {
            return Ok(());
        }
        let lost = match store.lost_partitions() {
            Ok(lost) => lost,
            Err(StoreError::Timeout { .. } | StoreError::Closed) => return Ok(()),
            Err(error) => return Err(error).context("looking for losses"),
        };
        if lost.is_empty() {
            tell(LossNews::Whole { at_ns: (self.clock)(job) })?;
            self.whole = (job.epoch() == epoch).then_some(epoch);
            return Ok(());
        }
        let Some((gone, locked)) = find(store, keys, &lost, is_sole)? else { return Ok(()) };
        let told_ns = (self.clock)(job);
        let pause = self.random.below(self.pause_max.as_nanos() as u64);
        let until = job.now().after(Duration::from_nanos(pause));
        while job.now() < until && !job.has_ended() {
            job.park(job.bell(), until);
        }
        let begin_ns = (self.clock)(job);
        tell(LossNews::Lost { keys: gone.clone(), locked, told_ns, begin_ns })?;
        // All at once, or some first: the others stay lost.
        let first = if self.random.percent(50) { lost.len() / 2 } else { 0 };
        for (part, rest) in [(&lost[..first], &lost[first..]), (&lost[first..], &[][..])] {
            match store.accept_loss_of(part) {
                Ok(()) => {}
                Err(StoreError::Timeout { .. } | StoreError::Closed) => {
                    self.is_owed = true;
                    return Ok(());
                }
                Err(error) => return Err(error).context("accepting a loss"),
            }
            for &number in &gone {
                let partition = store.partition_of(keys[number].bytes())?;
                let answer = store.get(keys[number].bytes()).map(|found| found.is_some());
                let is_lost = rest.contains(&partition);
                match answer {
                    Ok(_) if is_lost && is_sole => {
                        bail!("{} is answered and was not accepted", keys[number])
                    }
                    Err(StoreError::DataLost { .. }) if !is_lost => {
                        // A transaction may have locked it already; otherwise its new home is dead, too.
                        let is_again = job.epoch() != epoch || part.is_empty();
                        let still =
                            store.lost_partitions().unwrap_or_default().contains(&partition);
                        ensure!(
                            !still || is_again,
                            "{} is lost after it was accepted",
                            keys[number]
                        );
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// The keys of these partitions, and those elsewhere that say that they are lost; `None` if something changes just now.
fn find(
    store: &Store,
    keys: &[Key],
    lost: &[usize],
    is_sole: bool,
) -> anyhow::Result<Option<(Vec<usize>, Vec<usize>)>> {
    let (mut gone, mut locked) = (Vec::new(), Vec::new());
    for (number, key) in keys.iter().enumerate() {
        let partition = store.partition_of(key.bytes())?;
        let is_lost = lost.contains(&partition);
        match store.get(key.bytes()) {
            Ok(_) if is_lost && is_sole => {
                bail!("{key} is answered, and its partition {partition} is lost")
            }
            Ok(_) if is_lost => return Ok(None),
            Ok(_) => {}
            Err(StoreError::DataLost { .. }) if is_lost => gone.push(number),
            Err(StoreError::DataLost { partition: other }) if other != partition => {
                locked.push(number)
            }
            // A further loss, or one who does not answer.
            Err(StoreError::DataLost { .. } | StoreError::Timeout { .. } | StoreError::Closed) => {
                return Ok(None);
            }
            Err(error) => return Err(error).context("reading what may be lost"),
        }
    }
    Ok(Some((gone, locked)))
}
