//! Handling the messages of other members: each message goes to the folder that it concerns.

use crate::engine::Message as EngineMessage;
use crate::store::member::state::StoreState;
use crate::store::operation::message::{Message, PORT};
use crate::store::segment::layout::TOMBSTONES;
use crate::sync::lock;
use std::sync::atomic::Ordering;

impl StoreState {
    /// Receives and handles all messages that have arrived.
    pub(in crate::store) fn serve_messages(&self) {
        while let Some(message) = self.job.receive(PORT) {
            self.handle(&message);
        }
    }

    fn handle(&self, message: &EngineMessage) {
        let Some(note) = Message::decode(&message.bytes) else { return };
        let from = message.from;
        match note {
            Message::Hello { root, replicas, partitions, buckets, checksums, mode } => {
                let theirs = (replicas, partitions, buckets, checksums, mode);
                let ours = (
                    self.placement.replicas as u64,
                    self.placement.partitions as u64,
                    self.bucket_count as u64,
                    self.checks(),
                    self.gate.mode() as u64,
                );
                if theirs != ours {
                    let reason = format!(
                        "{from} opened the store with other options (replicas, partitions, \
                         buckets, checksums plus 2 for salvage, mode): {theirs:?} there, {ours:?} \
                         here; all members have to open it with equal options"
                    );
                    lock(&self.mismatch).get_or_insert(reason);
                }
                self.roots[from.index()].store(root + 1, Ordering::Release);
                let _ = self.job.ring(self.job.me());
            }
            Message::Need { class } if class as usize <= TOMBSTONES => {
                let answer = match self.refill_slab(class as usize) {
                    Ok(()) => Message::Granted { class },
                    Err(error) => Message::Refused { class, reason: error.to_string() },
                };
                // An answer to a dead member is dropped.
                let _ = self.job.send(from, PORT, &answer.encode());
            }
            Message::Need { .. } => {}
            Message::Granted { class } => {
                self.allocator.answered(from, class as usize, None);
                let _ = self.job.ring(self.job.me());
            }
            Message::Refused { class, reason } => {
                self.allocator.answered(from, class as usize, Some(reason));
                let _ = self.job.ring(self.job.me());
            }
            Message::Give { places } => self.take_back(from, &places),
            Message::Marked { buckets } => self.record_marked_buckets(&buckets),
            Message::Closing => {
                lock(&self.closing).insert(from);
                let _ = self.job.ring(self.job.me());
            }
            Message::Accept { partition } => self.want_acceptance(from, partition as usize),
            Message::Accepted { .. } => {
                let _ = self.job.ring(self.job.me());
            }
            Message::NotAccepted { partition, reason } => {
                self.acceptance_refused(from, partition as usize, reason);
                let _ = self.job.ring(self.job.me());
            }
            Message::Fill { partition } => self.schedule_repair(partition as usize),
            Message::Leaving => self.record_leaver(from),
            Message::AcknowledgeLeaving => self.record_acknowledgement(from),
            Message::HandOver => self.hand_over(from),
            Message::Damaged { partition } => {
                self.record_damage(partition as usize);
            }
        }
    }
}
