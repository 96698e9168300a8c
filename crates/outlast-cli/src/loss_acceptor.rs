//! Accepts losses in runs that exceed what the store promises to survive.
//!
//! A single member at a time is the *loss acceptor*. It looks for lost partitions, reports which
//! keys are lost before it accepts the loss, and reports when nothing is lost any more. From these
//! reports the judges know when each key began anew (see [`outlast_check::loss`]). If the acceptor
//! dies, another member takes its place and reports what is still lost.

use anyhow::{Context, bail, ensure};
use outlast::store::{Store, StoreError};
use outlast::{Epoch, Job};
use outlast_check::history::Key;
use outlast_check::loss::Loss;
use outlast_check::workload::Random;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// A report of the loss acceptor.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LossNews {
    /// These keys (by their numbers) are lost, and the acceptor is about to accept that. `locked`
    /// are keys of other partitions that a lost transaction has locked.
    Lost { keys: Vec<usize>, locked: Vec<usize>, told_ns: u64, begin_ns: u64 },
    /// Nothing is lost.
    Whole { at_ns: u64 },
}

/// The losses that all acceptors have reported.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses(pub(crate) Vec<Loss>);

impl Losses {
    pub(crate) fn record(&mut self, news: LossNews, all: &[Key]) {
        match news {
            LossNews::Lost { keys, locked, told_ns, begin_ns } => {
                let named = |numbers: &[usize]| -> BTreeSet<Key> {
                    numbers.iter().filter_map(|&number| all.get(number).cloned()).collect()
                };
                // A dead acceptor may have begun to accept these keys: they belong to its open
                // loss, not to a new one.
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

/// The state of a member that accepts losses.
pub(crate) struct LossAcceptor {
    random: Random,
    /// The longest pause between the report of a loss and its acceptance.
    pause_max: Duration,
    clock: fn(&Job) -> u64,
    /// The epoch in which nothing was lost.
    whole: Option<Epoch>,
    /// Whether a request to a replica timed out: that request may still take effect at any time.
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

    /// Looks for losses, reports them through `tell`, then accepts them. `is_sole` says that no
    /// other member has been accepting losses and that no request of an acceptor may still take
    /// effect: only then can answers about lost keys be judged here.
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
        // All partitions at once, or half of them first: the other half must stay lost.
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
                        bail!("{} was answered before its loss was accepted", keys[number])
                    }
                    Err(StoreError::DataLost { .. }) if !is_lost => {
                        // A new transaction may have locked the key; otherwise its new replica must
                        // be dead as well.
                        let is_again = job.epoch() != epoch || part.is_empty();
                        let still =
                            store.lost_partitions().unwrap_or_default().contains(&partition);
                        ensure!(
                            !still || is_again,
                            "{} is still lost after its loss was accepted",
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

/// The keys in the lost partitions, and the keys of other partitions that answer `DataLost`. `None`
/// if the view or the losses are changing.
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
                bail!("{key} was answered although its partition {partition} is lost")
            }
            Ok(_) if is_lost => return Ok(None),
            Ok(_) => {}
            Err(StoreError::DataLost { .. }) if is_lost => gone.push(number),
            Err(StoreError::DataLost { partition: other }) if other != partition => {
                locked.push(number)
            }
            // A further loss, or a replica that does not answer.
            Err(StoreError::DataLost { .. } | StoreError::Timeout { .. } | StoreError::Closed) => {
                return Ok(None);
            }
            Err(error) => return Err(error).context("reading what may be lost"),
        }
    }
    Ok(Some((gone, locked)))
}
