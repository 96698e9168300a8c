//! What the store does in the background of a member.

use crate::engine::Time;
use crate::job::{Job, Service};
use crate::store::member::state::StoreState;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How many pieces of repair are done in a row before the others of the background have their turn.
const PIECES: usize = 16;

/// The store's part of a member's background.
pub(in crate::store) struct Background(pub(in crate::store) Arc<StoreState>);

impl Service for Background {
    fn run(&self, _: &Job) -> Time {
        self.0.serve_messages();
        if !self.0.is_open.load(Ordering::Acquire) || self.0.is_closed.load(Ordering::Acquire) {
            return Time::NEVER;
        }
        self.0.set_background(true);
        // First: those who wait are to know.
        self.0.watch_gate();
        self.0.accept_some();
        let leave = self.0.leave_some();
        // Several pieces, since it costs more to come here again than to do one.
        let mut repair = self.0.repair_some();
        for _ in 0..PIECES {
            if repair > self.0.job.now() {
                break;
            }
            self.0.serve_messages();
            repair = self.0.repair_some();
        }
        let repair = repair.min(leave).min(self.0.release_orphans()).min(self.0.notify_of_loss());
        let repair = repair.min(self.0.release_dead_segments());
        let repair = repair.min(self.0.remove_some()).min(self.0.reclaim_some());
        repair
            .min(self.0.give_back_some())
            .min(self.0.clear_stragglers())
            .min(self.0.end_transactions())
    }
}
