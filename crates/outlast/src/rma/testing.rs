//! Helpers that the unit tests of this folder share.

/// A simple random generator, to choose the next event in a test.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % bound as u64) as usize
    }
}

#[cfg(feature = "sim")]
pub(super) use driver::{ID, after, data, handle, make, poll};

/// Helpers to drive the steps of two activities by hand, in a chosen order, without any other
/// activity.
#[cfg(feature = "sim")]
mod driver {
    use crate::engine::{Message, Port};
    use crate::rma::group::Group;
    use crate::rma::outbox::DeferredWork;
    use crate::rma::progress::Rma;
    use crate::rma::registry::SharedCommunicator;
    use crate::rma::wire::{self, Writer};
    use crate::rma::{Result, Source, Tag};
    use crate::sim::{self, Options};
    use crate::sync::lock;
    use crate::{Job, MemberId};
    use std::sync::Arc;
    use std::time::Duration;

    pub(in crate::rma) const ID: u64 = 7;

    pub(in crate::rma) fn data(number: u8) -> Vec<u8> {
        let mut writer = Writer::new(wire::DATA, ID, 5);
        writer.u32(0).bytes(&[number]);
        writer.done()
    }

    /// Rank 0 sends these messages and leaves, and rank 1 knows it. Then rank 1 runs `rest`.
    pub(in crate::rma) fn after(
        messages: impl Fn() -> Vec<Vec<u8>> + 'static,
        rest: impl Fn(&Job, &Rma) + 'static,
    ) {
        sim::run(&Options::new(2, 1), move |job| {
            if job.me() == MemberId(0) {
                messages()
                    .iter()
                    .for_each(|bytes| job.send(MemberId(1), Port::Rma, bytes).unwrap());
            }
            job.sleep(Duration::from_secs(1 + u64::from(job.me().0)));
            if job.me() == MemberId(1) {
                rest(&job, &Rma::new(job.me(), false));
            }
            job.leave().unwrap();
        })
        .expect_ok();
    }

    pub(in crate::rma) fn make(rma: &Rma) -> Arc<SharedCommunicator> {
        let members = [0, 1].map(MemberId).to_vec();
        rma.find_or_make(ID, Arc::new(Group::new(members, MemberId(1)).unwrap()))
    }

    pub(in crate::rma) fn handle(rma: &Rma, message: Message) {
        rma.handle(message, &mut DeferredWork::default());
    }

    /// The result of a receive from rank 0.
    pub(in crate::rma) fn poll(shared: &SharedCommunicator) -> Option<Result<Vec<u8>>> {
        let posted = lock(&shared.state).matcher.post(Source::Rank(0), Tag::Any, 9);
        let found = shared.poll_receive(&posted);
        lock(&shared.state).matcher.cancel(&posted);
        found.map(|result| result.map(|received| received.bytes))
    }
}
