//! The background services of the store, in the order in which they run.
//!
//! The background runs this list whenever the bell of the member has rung, or a service is due. A
//! death rings the bell. Each service compares the epoch or the view with what it has seen, and
//! acts on a death by itself:
//!
//! | service | what it does | on a death |
//! |---|---|---|
//! | `serve_messages` | handles the messages of other members | |
//! | `end_some` | after `close`, instead of all others: gives the memory back | does not wait for the dead |
//! | `watch_gate` | global mode: checks for deaths and revocations | closes the gate |
//! | `accept_some` | accepts losses, as the first replica | |
//! | `leave_some` | answers leavers, and announces the own leaving | stops waiting for the dead |
//! | `repair_some` | fills new replicas, and salvages partitions | checks all partitions anew |
//! | `release_orphans` | releases locks that calls with an unknown outcome left | |
//! | `notify_of_loss` | calls the listeners of `on_loss` | reports the lost partitions |
//! | `release_dead_segments` | salvage: gives dead segments back | waits until all is salvaged |
//! | `remove_some` | removes the records of deleted keys | |
//! | `reclaim_some` | takes back blocks | takes the blocks that the dead held |
//! | `give_back_some` | returns large blocks to their replicas | |
//! | `recall_some` | returns blocks that replicas recall, answers members that need blocks | stops waiting for the dead |
//! | `watch_stragglers` | checks which stragglers have landed | drops stragglers to the dead |
//! | `end_transactions` | ends unfinished transactions | as heir, ends orphaned intents |
//! | `publish_status` | writes the status page for observers, also after `close` | |
//!
//! A service that reaches for a member waits for it for a short time only, and a member that has
//! not answered is sent no further request until it answers the requests that it has (see
//! `engine/deadline.rs`). So a stopped replica holds up its own repair, and nothing else. While all
//! participants of this member are in use, a run of the background waits for a participant for a
//! short time, once for all services, and they come back later.
//!
//! Calls act on a death without the background: the next operation uses the configuration of the
//! new view, and a caller takes over the lock of a dead holder.

use crate::engine::Time;
use crate::job::{Job, Service};
use crate::store::member::state::StoreState;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The number of pieces of repair that are done in a row before the other services run.
const PIECES: usize = 16;

/// The service of the store in the background of a member.
pub(in crate::store) struct Background(pub(in crate::store) Arc<StoreState>);

impl Service for Background {
    fn run(&self, _: &Job) -> Time {
        let store = &self.0;
        let work = store.begin_background_work();
        store.serve_messages();
        let status = store.stores.publish_status(&store.job);
        if store.is_closed.load(Ordering::Acquire) {
            let answers = store.refuse_recalls();
            return store.end_some().min(status).min(answers);
        }
        if !store.is_open.load(Ordering::Acquire) && !store.opens_late() {
            return status;
        }
        store.begin_background();
        // The gate comes first, so that waiting calls return `Revoked` at once.
        store.watch_gate();
        // Each of the other services returns when it wants to run again.
        let acceptance = store.accept_some();
        let leaving = store.leave_some();
        let repair = self.repair();
        let orphaned_locks = store.release_orphans();
        let loss = store.notify_of_loss();
        let dead_segments = store.release_dead_segments();
        store.discard_dead_segments();
        let removal = store.remove_some();
        let reclaiming = store.reclaim_some();
        let large_blocks = store.give_back_some();
        let recalls = store.recall_some();
        let stragglers = store.watch_stragglers();
        let transactions = store.end_transactions();
        store.end_background_work(&work);
        acceptance
            .min(leaving)
            .min(repair)
            .min(orphaned_locks)
            .min(loss)
            .min(dead_segments)
            .min(removal)
            .min(reclaiming)
            .min(large_blocks)
            .min(recalls)
            .min(stragglers)
            .min(transactions)
            .min(status)
    }

    fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

impl StoreState {
    /// With salvage: gives the dead segments back when no store of the job needs them.
    fn discard_dead_segments(&self) {
        let view = self.current_view();
        if self.salvage_is_on && self.has_released(view.epoch) {
            self.stores.discard_dead_segments(&self.job, &view);
        }
    }
}

impl Background {
    /// Does several pieces of repair in a row, since another run of the background costs more than
    /// a piece. Messages are served between the pieces.
    fn repair(&self) -> Time {
        let store = &self.0;
        let mut due = store.repair_some();
        for _ in 0..PIECES {
            if due > store.job.now() {
                break;
            }
            store.serve_messages();
            due = store.repair_some();
        }
        due
    }
}
