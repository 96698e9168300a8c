//! Counts for how long remote nodes have been silent.
//!
//! Time counts only while a question to the node is unanswered, and only while this member has a
//! lease. Without a lease this member may be the one that is cut off: if the whole network is out
//! for a while, all nodes lose their leases, and no node quarantines another for ever because of
//! it. A majority that reaches each other keeps its leases, and goes on counting.

use std::time::Duration;

/// The silence of each node.
pub(super) struct Silence {
    /// By node: for how long it has answered nothing. `None` until its first frame has arrived.
    nodes: Vec<Option<Duration>>,
}

impl Silence {
    /// No node has been heard.
    pub(super) fn new(nodes: usize) -> Silence {
        Silence { nodes: vec![None; nodes] }
    }

    /// Counts a further period. `is_heard` says whether a frame of a node has arrived in it,
    /// `is_asked` whether a question to the node is unanswered.
    pub(super) fn count(
        &mut self,
        elapsed: Duration,
        has_lease: bool,
        is_heard: impl Fn(usize) -> bool,
        is_asked: impl Fn(usize) -> bool,
    ) {
        for (number, silence) in self.nodes.iter_mut().enumerate() {
            match silence {
                _ if is_heard(number) => *silence = Some(Duration::ZERO),
                Some(silence) if has_lease && is_asked(number) => *silence += elapsed,
                _ => {}
            }
        }
    }

    /// Whether a node has been silent for at least `limit`.
    pub(super) fn is_over(&self, node: usize, limit: Duration) -> bool {
        self.nodes[node].is_some_and(|silence| silence >= limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_while_a_question_is_unanswered_and_this_member_has_a_lease() {
        let (second, limit) = (Duration::from_secs(1), Duration::from_secs(2));
        let mut silence = Silence::new(2);
        let mut count = |has_lease: bool, is_heard: bool, is_asked: bool| {
            silence.count(second, has_lease, |_| is_heard, |_| is_asked);
            silence.is_over(1, limit)
        };
        let unheard = [(); 3].map(|()| count(true, false, true));
        assert_eq!(unheard, [false; 3], "before the first frame");
        assert!(!count(true, true, true));
        let without_lease = [(); 9].map(|()| count(false, false, true));
        assert_eq!(without_lease, [false; 9]);
        let unasked = [(); 9].map(|()| count(true, false, false));
        assert_eq!(unasked, [false; 9]);
        assert_eq!([(); 2].map(|()| count(true, false, true)), [false, true]);
        assert!(!count(true, true, true), "a frame ends the silence");
    }
}
