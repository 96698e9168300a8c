//! Decides on the way whether the calls of a run are linearizable, and whether a dead member stays
//! silent once its death is known.
//!
//! [`Monitor`] keeps every [`Fit`]: a value that the key may have now, together with the pending
//! calls that have taken effect by then, and their results. A call that returns leaves the fits in
//! which it has taken effect with that result. If no fit is left, the calls fit no order.
//!
//! *Strict after a death.* A call that begins at a member with the death of a writer in its view
//! decides about the writer's last call: when the new call has returned, the old call has taken
//! effect or never will.

use super::rule::CLIENTS;

/// A call of a client. Results are values; a put returns 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Call {
    /// Puts this value.
    Put(u8),
    /// Adds 1, and returns the sum. Stands for every call whose result depends on the predecessor.
    Add,
    /// Reads at the primary.
    Read,
    /// Reads at the own replica if there is a near mark, otherwise at the primary.
    Near,
}

/// The value of the key, and for each client 0, or the result of its pending call plus 1 if that
/// call has taken effect.
type Fit = (u8, [u8; CLIENTS]);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Monitor {
    fits: Vec<Fit>,
    pending: [Option<Call>; CLIENTS],
    /// By client: the clients whose death its member knew when the pending call began.
    known: [u8; CLIENTS],
}

impl Monitor {
    pub(crate) fn new(value: u8) -> Monitor {
        Monitor { fits: vec![(value, [0; CLIENTS])], pending: [None; CLIENTS], known: [0; CLIENTS] }
    }

    pub(crate) fn begin(&mut self, client: usize, call: Call, known: u8) {
        self.pending[client] = Some(call);
        self.known[client] = known;
    }

    pub(crate) fn pending(&self, client: usize) -> Option<Call> {
        self.pending[client]
    }

    /// A call returns a result; whether an order is left.
    pub(crate) fn answer(&mut self, client: usize, result: u8) -> bool {
        self.close();
        self.fits.retain(|(_, taken)| taken[client] == result + 1);
        self.forget(client);
        let known = std::mem::take(&mut self.known[client]);
        for dead in (0..CLIENTS).filter(|dead| known & 1 << dead != 0) {
            if self.pending[dead].is_some() {
                self.close();
                self.forget(dead);
            }
        }
        !self.fits.is_empty()
    }

    /// Adds the fits in which further pending calls have taken effect.
    fn close(&mut self) {
        let mut at = 0;
        while at < self.fits.len() {
            let (value, taken) = self.fits[at];
            at += 1;
            for client in 0..CLIENTS {
                let Some(call) = self.pending[client].filter(|_| taken[client] == 0) else {
                    continue;
                };
                let (after, result) = match call {
                    Call::Put(put) => (put, 0),
                    Call::Add => (value + 1, value + 1),
                    Call::Read | Call::Near => (value, value),
                };
                let mut next = taken;
                next[client] = result + 1;
                if !self.fits.contains(&(after, next)) {
                    self.fits.push((after, next));
                }
            }
        }
    }

    /// The call of a client is over.
    fn forget(&mut self, client: usize) {
        self.pending[client] = None;
        self.fits.iter_mut().for_each(|(_, taken)| taken[client] = 0);
        self.fits.sort_unstable();
        self.fits.dedup();
    }
}
