//! What only the mpi engine needs of this engine.
//!
//! The mpi engine puts the members of each node into a job of this engine, with slots for all
//! members. Members of other nodes never claim theirs; they are declared dead by the messages
//! between nodes. All words here are sequentially consistent, as the epoch is with which they are
//! ordered.

use super::death_log::Death;
use super::layout::{HEADER_EPOCH, Layout};
use super::memory::JobMemory;
use super::wait::IS_BACKGROUND;
use super::{Shm, sys};
use crate::engine::{Bell, Engine, MemberId, Port, Time};
use std::sync::atomic::Ordering;

impl Shm {
    /// Whether this process is a forked child of a member, which may not touch the job's memory.
    pub(in crate::engine) fn is_forked(&self) -> bool {
        self.guard.word().load(Ordering::SeqCst) == 0
    }

    /// Whether the member has joined on this node, now or in the past.
    pub(in crate::engine) fn has_joined(&self, member: MemberId) -> bool {
        self.tables().has_joined(member)
    }

    /// Enters deaths of members of other nodes into this node's log, each with whether the member
    /// has left, and raises its epoch. Deaths that a frame reports, from the member `reporter`, do
    /// not enter once that member is in the log; its own leave does. Ends the process if it is
    /// among the dead and has not left.
    pub(in crate::engine) fn declare_dead(
        &self,
        deaths: impl Iterator<Item = (MemberId, bool)>,
        reporter: Option<MemberId>,
    ) {
        // The leave of the reporter comes last: it must not stand before the other deaths.
        let (own, deaths): (Vec<_>, Vec<_>) =
            deaths.partition(|&(member, _)| Some(member) == reporter);
        for (member, has_left) in deaths.into_iter().chain(own) {
            self.tables().enter_death(Death { member, has_left, reporter });
        }
        let _ = self.catch_up();
    }

    /// Records that a frame of the node with this number has arrived, for all members of this node.
    pub(in crate::engine) fn record_heard(&self, node: usize, now: Time) {
        self.tables().heard(MemberId(node as u32)).fetch_max(now.0, Ordering::SeqCst);
    }

    /// When a member of this node has last recorded a frame of that node.
    pub(in crate::engine) fn heard_at(&self, node: usize) -> Time {
        Time(self.tables().heard(MemberId(node as u32)).load(Ordering::SeqCst))
    }

    /// The number of the file with this node's memory: see [`has_replaced_memory`].
    ///
    /// [`has_replaced_memory`]: super::has_replaced_memory
    pub(in crate::engine) fn memory_inode(memory: &JobMemory) -> u64 {
        memory.tables.mapping.inode()
    }

    /// The clock of leases. It goes on while the machine is suspended, which the job's clock does
    /// not.
    pub(in crate::engine) fn lease_clock() -> Time {
        Time(sys::boottime_ns())
    }

    /// Records the member whose request this member is about to execute, before it checks whether
    /// that member is dead; `None` when the request is done.
    pub(in crate::engine) fn set_served(&self, member: Option<MemberId>) {
        self.tables()
            .served(self.me)
            .store(member.map_or(0, |member| member.0 + 1), Ordering::SeqCst);
    }

    /// A member of this node that may be executing a request of a dead member.
    pub(in crate::engine) fn server_of_dead(&self) -> Option<MemberId> {
        // The view first: a server that checked its view before a death entered it had recorded the
        // requester before that.
        let view = self.tables().view();
        let is_serving =
            |server: &MemberId| match self.tables().served(*server).load(Ordering::SeqCst) {
                0 => false,
                number => view.dead.contains(MemberId(number - 1)),
            };
        view.living().find(is_serving).filter(|_| !view.dead.is_empty())
    }

    /// Quarantines a member of another node, for the whole of this node and for ever; see
    /// `quorum.rs` of the mpi engine.
    pub(in crate::engine) fn quarantine(&self, member: MemberId) {
        self.tables()
            .quarantined(member.index() / 64)
            .fetch_or(1 << (member.index() % 64), Ordering::SeqCst);
    }

    /// Whether this node has quarantined a member.
    pub(in crate::engine) fn is_quarantined(&self, member: MemberId) -> bool {
        self.tables().quarantined(member.index() / 64).load(Ordering::SeqCst)
            & (1 << (member.index() % 64))
            != 0
    }

    /// The memory through which members of other nodes may reach this member's segment and the
    /// words below: its address, its length, and the offset of the segment in it. From now on it
    /// stays mapped until the process ends: this member cannot know when the last access ends.
    pub(in crate::engine) fn expose(&self) -> (*mut u8, usize, u64) {
        std::mem::forget(self.memory.clone());
        let layout = &self.tables().layout;
        let segment = layout.segment(self.me);
        (self.tables().mapping.base(), segment + layout.segment_limit, segment as u64)
    }

    /// The offset, in the exposed memory of a member, of the word with its segment's length.
    pub(in crate::engine) fn exposed_segment_len(member: MemberId) -> u64 {
        Layout::segment_len(member) as u64
    }

    /// The offset, in the exposed memory of a member, of its epoch.
    pub(in crate::engine) const EXPOSED_EPOCH: u64 = HEADER_EPOCH as u64;

    /// Ends this process after a last line on standard error.
    pub(in crate::engine) fn end_with(last_words: &str) -> ! {
        sys::end_with(last_words)
    }

    /// Wakes the activities of this member that are in the middle of a call.
    pub(in crate::engine) fn ring_for_calls(&self) {
        self.tables().ring_foreground(self.me);
    }

    /// Rings this member's own bell for a message from another node.
    pub(in crate::engine) fn ring_for_own_message(&self, port: Port) {
        self.tables().ring_for_message(self.me, port);
    }

    /// Rings this member's own bell.
    pub(in crate::engine) fn ring_own(&self) {
        self.tables().ring_bell(self.me);
    }

    /// Whether the bell has rung since `seen`: the background's, or the foreground's.
    pub(in crate::engine) fn has_rung(&self, seen: Bell, for_background: bool) -> bool {
        match for_background {
            true => self.bell_now().0 >> 32 != seen.0 >> 32,
            false => self.bell_now().0 as u32 != seen.0 as u32,
        }
    }

    /// Sleeps until the bell rings, without polling it first: the caller has done that.
    pub(in crate::engine) fn sleep(&self, seen: Bell, until: Time, for_background: bool) {
        if for_background {
            return self.park_in_background(seen, until);
        }
        let (bell, sleepers) = (self.tables().bell(self.me), self.tables().sleepers(self.me));
        if IS_BACKGROUND.get() {
            return self.watch(bell, seen.0 as u32, sleepers, until);
        }
        // As in `park_foreground`.
        sleepers.fetch_add(1, Ordering::SeqCst);
        sys::wait_on(bell, seen.0 as u32, self.until_ns(until));
        sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}
