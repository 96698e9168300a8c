//! Messages of the other members.

use crate::engine::{Engine, Message};
use crate::store::member::state::StoreState;
use crate::store::operation::message::{Note, PORT};
use crate::store::segment::layout::TOMBSTONES;
use crate::sync::lock;
use std::sync::atomic::Ordering;

impl StoreState {
    /// Takes the messages that have come.
    pub(in crate::store) fn serve_messages(&self) {
        while let Some(message) = self.job.receive(PORT) {
            self.handle(&message);
        }
    }

    fn handle(&self, message: &Message) {
        let Some(note) = Note::decode(&message.bytes) else { return };
        let from = message.from;
        match note {
            Note::Hello { root, replicas, partitions, buckets, checksums, mode } => {
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
                        "{from} opened the store with other options (copies, partitions, buckets, checksums plus 2 for salvage, mode): {theirs:?} there, {ours:?} here"
                    );
                    lock(&self.mismatch).get_or_insert(reason);
                }
                self.roots[from.index()].store(root + 1, Ordering::Release);
                let _ = self.job.ring(self.job.me());
            }
            Note::Need { class } if class as usize <= TOMBSTONES => {
                let answer = match self.carve(class as usize) {
                    Ok(()) => Note::Granted { class },
                    Err(error) => Note::Refused { class, reason: error.to_string() },
                };
                // Whoever asked and died needs no answer.
                let _ = self.job.send(from, PORT, &answer.encode());
            }
            Note::Need { .. } => {}
            Note::Granted { class } => {
                self.space.answered(from, class as usize, None);
                let _ = self.job.ring(self.job.me());
            }
            Note::Refused { class, reason } => {
                self.space.answered(from, class as usize, Some(reason));
                let _ = self.job.ring(self.job.me());
            }
            Note::Give { places } => self.take_back(from, &places),
            Note::Marked { buckets } => self.note_marked(&buckets),
            Note::Closing => {
                lock(&self.closing).insert(from);
                let _ = self.job.ring(self.job.me());
            }
            Note::Accept { partition } => self.want_acceptance(from, partition as usize),
            Note::Accepted { .. } => {
                let _ = self.job.ring(self.job.me());
            }
            Note::NotAccepted { partition, reason } => {
                self.acceptance_refused(from, partition as usize, reason);
                let _ = self.job.ring(self.job.me());
            }
            Note::Fill { partition } => self.look_at(partition as usize),
            Note::Leaving => self.note_leaving(from),
            Note::Noted => self.leaving_noted(from),
            Note::HandOver => self.hand_over(from),
            Note::Damaged { partition } => {
                self.note_damage(partition as usize);
            }
        }
    }
}
