//! What a member tells observers outside of the job: the words of its status page.
//!
//! The background writes the page ten times a second (`engine/shm/status.rs`), from counts that the
//! member has in any case. It asks no other member and waits for none. The words are the fields of
//! [`Figures`] in their order, after the version of this list; the two samples of calls come last.
//! Under the simulator there is no page, and this service does nothing.

use crate::engine::Time;
use crate::job::Job;
use crate::store::member::counts::CallTimes;
use crate::store::member::state::StoreState;
use crate::store::member::stores::Stores;
use crate::sync::lock;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The time between two pages.
const INTERVAL: Duration = Duration::from_millis(100);

/// The version of the list of words.
const VERSION: u64 = 1;

/// How many words come before the samples of calls.
const NUMBERS: usize = 14;

/// What a member tells observers about its open stores, all of them together. Counts begin when a
/// store is opened, and end with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The number of open stores.
    pub stores: u64,
    /// The greatest number of replicas of a value among these stores.
    pub replicas: u64,
    /// The epoch of the member's view: how many deaths it knows of.
    pub epoch: u64,
    /// The operations that have ended. A put or a get is one operation; other calls, and repair,
    /// take several.
    pub operations: u64,
    /// The transactions that calls of this member have committed.
    pub transactions: u64,
    /// The transactions that are being decided, or that the background has to end.
    pub transactions_open: u64,
    /// The consistent cuts, for snapshots, that the member took part in.
    pub cuts: u64,
    /// The number of stores in which writes are frozen at the moment, for a consistent cut.
    pub frozen: u64,
    /// The partitions that repair still has to visit here.
    pub partitions_to_visit: u64,
    /// The replicas that are known to be missing in the partitions of which it is the primary.
    pub replicas_missing: u64,
    /// The replicas of partitions that this member has repaired.
    pub replicas_repaired: u64,
    /// The records that repair has checked, and copied where they were missing.
    pub records_repaired: u64,
    /// The repairs that this member took over from a stopped member.
    pub repairs_taken_over: u64,
    /// How long puts took.
    pub put: CallTimes,
    /// How long gets took.
    pub get: CallTimes,
}

impl Figures {
    /// The words of the page.
    fn words(&self) -> Vec<u64> {
        let numbers: [u64; NUMBERS] = [
            VERSION,
            self.stores,
            self.replicas,
            self.epoch,
            self.operations,
            self.transactions,
            self.transactions_open,
            self.cuts,
            self.frozen,
            self.partitions_to_visit,
            self.replicas_missing,
            self.replicas_repaired,
            self.records_repaired,
            self.repairs_taken_over,
        ];
        numbers.into_iter().chain(self.put.words()).chain(self.get.words()).collect()
    }

    /// The figures of a page; `None` if these are the words of another version.
    pub(crate) fn of_words(words: &[u64]) -> Option<Figures> {
        let (numbers, samples) = words.split_first_chunk::<NUMBERS>()?;
        if numbers[0] != VERSION || samples.len() != 2 * CallTimes::WORDS {
            return None;
        }
        let (put, get) = samples.split_at(CallTimes::WORDS);
        let &[
            _,
            stores,
            replicas,
            epoch,
            operations,
            transactions,
            transactions_open,
            cuts,
            frozen,
            partitions_to_visit,
            replicas_missing,
            replicas_repaired,
            records_repaired,
            repairs_taken_over,
        ] = numbers;
        Some(Figures {
            stores,
            replicas,
            epoch,
            operations,
            transactions,
            transactions_open,
            cuts,
            frozen,
            partitions_to_visit,
            replicas_missing,
            replicas_repaired,
            records_repaired,
            repairs_taken_over,
            put: CallTimes::of_words(put),
            get: CallTimes::of_words(get),
        })
    }

    /// Adds the figures of a store.
    fn add(&mut self, store: &StoreState) {
        let left = store.repair_left();
        let unfinished = lock(&store.transactions.unfinished).len() as u64;
        self.stores += 1;
        self.replicas = self.replicas.max(store.placement.replicas as u64);
        self.epoch = self.epoch.max(store.job.epoch().0);
        self.operations += store.participants.operations();
        self.transactions += store.transactions.committed.load(Ordering::Relaxed);
        self.transactions_open +=
            store.transactions.committing.load(Ordering::Relaxed).max(unfinished);
        self.cuts += store.counts.cuts.load(Ordering::Relaxed);
        self.frozen += u64::from(store.freeze.is_set());
        self.partitions_to_visit += left.partitions as u64;
        self.replicas_missing += left.replicas as u64;
        self.replicas_repaired += store.repaired.replicas.load(Ordering::Relaxed);
        self.records_repaired += store.repaired.records.load(Ordering::Relaxed);
        self.repairs_taken_over += store.repaired.takeovers.load(Ordering::Relaxed);
        store.counts.put.add_to(&mut self.put);
        store.counts.get.add_to(&mut self.get);
    }
}

impl Stores {
    /// Writes the status page of this member if it is due. Returns when it is due again.
    pub(in crate::store::member) fn publish_status(&self, job: &Job) -> Time {
        let Some(page) = job.status_page() else { return Time::NEVER };
        let now = job.now();
        let mut due = lock(&self.status_due);
        if let Some(due) = *due
            && now < due
        {
            return due;
        }
        let mut figures = Figures::default();
        self.usable().for_each(|store| figures.add(&store));
        page.write_status(&figures.words());
        let next = now.after(INTERVAL);
        *due = Some(next);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_another_version_are_refused() {
        let figures = Figures {
            stores: 1,
            replicas: 3,
            operations: u64::MAX,
            repairs_taken_over: 7,
            ..Figures::default()
        };
        let words = figures.words();
        assert_eq!(Figures::of_words(&words), Some(figures));
        assert_eq!(Figures::of_words(&[]), None);
        assert_eq!(Figures::of_words(&words[..words.len() - 1]), None);
        let longer: Vec<u64> = words.iter().copied().chain([0]).collect();
        assert_eq!(Figures::of_words(&longer), None);
        let mut newer = words;
        newer[0] = VERSION + 1;
        assert_eq!(Figures::of_words(&newer), None);
    }
}
