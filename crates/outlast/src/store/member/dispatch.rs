//! Handling the messages of other members: each message goes to the folder that it concerns.

use crate::engine::MemberId;
use crate::store::member::state::StoreState;
use crate::store::operation::message::Message;
use crate::store::segment::layout::TOMBSTONES;

impl StoreState {
    /// Receives and handles all messages that have arrived, also those of the job's other stores.
    pub(in crate::store) fn serve_messages(&self) {
        self.stores.serve_messages(&self.job);
    }

    /// Handles a message of this opening of the store.
    pub(in crate::store::member) fn handle(&self, from: MemberId, message: Message) {
        match message {
            // `stores.rs` handles them, since the store may not be open at this member yet.
            Message::Hello { .. } | Message::Abandoned => {}
            Message::Need { class, waits } if class as usize <= TOMBSTONES => {
                self.serve_need(from, class as usize, waits);
            }
            Message::Recall { class } if class as usize <= TOMBSTONES => {
                self.search(from, class as usize);
            }
            Message::Need { .. } | Message::Recall { .. } => {}
            Message::Returned { class } => self.record_returned(from, class as usize),
            Message::Granted { class, waits } => {
                self.allocator.answered(from, class as usize, waits, None);
                let _ = self.job.ring(self.job.me());
            }
            Message::Refused { class, waits, reason } => {
                self.allocator.answered(from, class as usize, waits, Some(reason));
                let _ = self.job.ring(self.job.me());
            }
            Message::Give { places } => self.take_back(from, &places),
            Message::Marked { hashes } => self.record_marked_hashes(&hashes),
            Message::Crowded { partition } => self.record_crowded(partition as usize),
            Message::Closing => self.record_closing(from),
            Message::Quiet => self.record_quiet(from),
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
            Message::Leaver { member } => self.hear_of_leaver(from, member),
            Message::Damaged { partition } => {
                self.record_damage(partition as usize);
            }
        }
    }
}
