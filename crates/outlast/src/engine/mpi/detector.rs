//! Finds out which remote members may have failed, and performs what the membership state machine
//! demands (`membership.rs`).
//!
//! MPI and silence prove nothing. MPI calls a member failed when its process has ended, and also
//! when its connection was cut. Silence of a node may mean a cut link, or that all its members are
//! stopped. The word of the kernel ([`ProcessProbe`]) is proof, but it also enters here as a mere
//! suspicion: whatever the detector finds, it causes [`Event::Suspected`]. The next review, at the
//! end of [`Core::detect`], finds out for which suspects the death is settled: by the kernel, which
//! is asked again, or by a majority of the job (`quorum.rs`).
//!
//! The kernel is also asked if MPI reports nothing: MPI has its knowledge from daemons, which may
//! be stopped or cut off themselves. Once a second the pidfds of all remote members under this
//! kernel are polled, and a single member, each in turn, is checked for having replaced its memory.
//! Both are asked about suspects in every review.
//!
//! Each member observes the silence of nodes (`silence.rs`). The frames that any member of its own
//! node receives count, since the quarantine that follows holds for the whole node. Silence counts
//! only while a lease request to the silent node is open and this member has a lease, and not
//! before the first frame of that node has arrived. In a job without leases (all members under a
//! single kernel) there is no detection of silence.

use super::core::Core;
use super::membership::{self, Action, Event};
use super::silence::Silence;
use super::wire::{Deaths, Header, Kind};
use crate::engine::shm::{Shm, has_replaced_memory};
use crate::engine::{Engine, Error, MemberId, MemberSet, Time};
use outlast_mpi_sys::Request;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// The period of the detector while MPI reports no error.
pub(super) const DETECT_PERIOD: Duration = Duration::from_millis(10);

/// How often the kernel is asked for ended processes, whatever MPI says.
const PROBE_PERIOD: Duration = Duration::from_secs(1);

/// The members of a node are suspected when the node has answered nothing for this fraction of the
/// time limit. Calls that wait for the node can then still go on within their time, if the time
/// limit is above 4.5 s: [`SILENCE_MIN`] and the eviction wait of `quorum.rs`. After a partial
/// partition, which takes this long once more, it has to be above 7.5 s.
const SILENCE_FRACTION: u32 = 3;
const SILENCE_MIN: Duration = Duration::from_secs(2);

/// The most silence that is counted between two calls of [`Core::detect_silence`].
const SILENCE_STEP_MAX: Duration = Duration::from_millis(100);

/// What the kernel can say about the process of a remote member.
pub(super) enum ProcessProbe {
    /// Nothing: the process runs under another kernel. Or the member is local, and the shm engine
    /// watches it.
    Unavailable,
    /// Nothing, because `OUTLAST_MPI_WITNESS=votes` leaves the decision to a majority. This process
    /// can be signalled.
    Signals(OwnedFd),
    /// Whether this process has ended, or has called exec and thereby replaced its memory. Until
    /// then it maps the file with this inode, which is the memory of its node.
    Process { pidfd: OwnedFd, pid: u32, inode: u64 },
}

impl ProcessProbe {
    /// Whether the kernel says that the process has ended.
    fn has_ended(&self) -> bool {
        let ProcessProbe::Process { pidfd, .. } = self else { return false };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&at_once)), Ok(1))
    }

    /// Whether the kernel says that the process has ended, or that it runs another program.
    fn is_gone(&self) -> bool {
        let has_replaced = match self {
            // The end is asked for last: a process that has not ended then had this number.
            ProcessProbe::Process { pid, inode, .. } => has_replaced_memory(*pid, *inode),
            _ => false,
        };
        has_replaced || self.has_ended()
    }

    pub(super) fn is_available(&self) -> bool {
        matches!(self, ProcessProbe::Process { .. })
    }

    /// Sends the process a signal; `None` if it runs under another kernel.
    pub(super) fn signal(&self, signal: Signal) -> Option<rustix::io::Result<()>> {
        match self {
            ProcessProbe::Unavailable => None,
            ProcessProbe::Signals(pidfd) | ProcessProbe::Process { pidfd, .. } => {
                Some(pidfd_send_signal(pidfd, signal))
            }
        }
    }
}

/// What the detector of this member remembers.
pub(super) struct Detector {
    /// By member.
    pub(super) probes: Vec<ProcessProbe>,
    /// Whether MPI has reported an error since it was last asked for failed ranks.
    pub(super) has_trouble: bool,
    /// When the detector is due, also without an error.
    pub(super) detect_at: Time,
    probe_at: Time,
    /// Counts the periods of the probe.
    probe_turn: usize,
    /// The remote members that MPI calls failed, as it does for ever.
    failed: MemberSet,
    /// How many failures MPI knew when `failed` was read.
    failed_count: usize,
    /// Room for the ranks that MPI calls failed.
    failed_ranks: Vec<i32>,
    /// The members that a frame has arrived from since the last look for silent nodes.
    pub(super) heard: MemberSet,
    silence: Silence,
    silence_checked_at: Time,
}

impl Detector {
    pub(super) fn new(probes: Vec<ProcessProbe>, now: Time) -> Detector {
        let members = probes.len();
        Detector {
            probes,
            has_trouble: false,
            detect_at: Time(0),
            probe_at: Time(0),
            probe_turn: 0,
            failed: MemberSet::new(),
            failed_count: 0,
            failed_ranks: vec![0; members],
            heard: MemberSet::new(),
            silence: Silence::new(members),
            silence_checked_at: now,
        }
    }
}

impl Core {
    /// Asks MPI for failed members. It takes constant time if MPI knows of no new failure.
    fn find_failed(&mut self) -> outlast_mpi_sys::Result<()> {
        let count = self.comm.count_failed()?;
        if count == self.detector.failed_count {
            return Ok(());
        }
        let failed = self.comm.get_failed(&mut self.detector.failed_ranks)?;
        let failed = failed.iter().filter_map(|&rank| u32::try_from(rank).ok()).map(MemberId);
        // The kernel reports the deaths of local members.
        self.detector.failed = failed
            .filter(|member| member.index() < self.membership.members())
            .filter(|&member| self.membership.is_remote(member))
            .collect();
        self.detector.failed_count = count;
        self.detector.has_trouble = true;
        Ok(())
    }

    /// Whether MPI calls a remote member failed.
    pub(super) fn has_failed(&mut self, member: MemberId) -> outlast_mpi_sys::Result<bool> {
        self.find_failed()?;
        Ok(self.detector.failed.contains(member))
    }

    /// Asks MPI, and now and then the kernel, for failed members, and reviews all suspects; whether
    /// a member has died.
    pub(super) fn detect(&mut self, node: &Shm) -> bool {
        // If MPI cannot tell, it is asked again after the period.
        let _ = self.find_failed();
        self.detector.has_trouble = false;
        let mut suspected = self.detector.failed.clone();
        let now = node.now();
        if now >= self.detector.probe_at {
            self.detector.probe_at = now.after(PROBE_PERIOD);
            for member in self.membership.living_remote() {
                if self.detector.probes[member.index()].has_ended() {
                    suspected.insert(member);
                }
            }
            // Reading about its memory takes longer: a single member in each period.
            let living = self.membership.living_remote();
            self.detector.probe_turn += 1;
            if let Some(&member) = living.get(self.detector.probe_turn % living.len().max(1))
                && self.detector.probes[member.index()].is_gone()
            {
                suspected.insert(member);
            }
        }
        self.drive(node, Event::Suspected(suspected));
        let has_news = self.drive(node, Event::ReviewDue);
        // A receive that ended with an error while its member lives is posted again, at most once
        // in a period.
        for member in self.membership.living_remote() {
            if self.receives[member.index()] == Request::null() {
                self.receive_from(member.index());
            }
        }
        // An immediate further error waits for the next period: asking in a loop brings no news.
        self.detector.has_trouble = false;
        has_news
    }

    /// Suspects the members of nodes that have answered nothing for long, since MPI may take a
    /// quarter of an hour to find that a link is cut; and the members that a partial partition
    /// evicts. A single member that answers is enough for its node: the other members may be
    /// stopped, which is no death.
    pub(super) fn detect_silence(&mut self, node: &Shm) {
        let now = node.now();
        let detector = &mut self.detector;
        let checked_at = std::mem::replace(&mut detector.silence_checked_at, now);
        // A member that was itself stopped must not blame the other members.
        let elapsed = now.since(checked_at).min(SILENCE_STEP_MAX);
        self.lease.count(elapsed);
        let heard = std::mem::take(&mut detector.heard);
        let living = self.membership.living_remote();
        let mut asked = vec![false; self.membership.members()];
        for &member in &living {
            let number = self.membership.node_of(member);
            if heard.contains(member) {
                node.record_heard(number, now);
            }
            asked[number] |= self.links[member.index()].is_lease_requested;
        }
        // Frames to other members of this node count as well.
        let is_heard = |number: usize| node.heard_at(number) >= checked_at.max(Time(1));
        detector.silence.count(elapsed, self.lease.is_valid(), is_heard, |number| asked[number]);
        let limit = (node.time_limit() / SILENCE_FRACTION).max(SILENCE_MIN);
        let is_silent =
            |&member: &MemberId| detector.silence.is_over(self.membership.node_of(member), limit);
        let mut suspected: MemberSet = living.into_iter().filter(is_silent).collect();
        if let Some(quorum) = &mut self.quorum {
            let dead = self.membership.dead();
            let evicted = quorum.members_to_evict(&dead, Shm::lease_clock(), elapsed, limit);
            for member in evicted.iter() {
                // No node quarantines a member that its kernel knows to live: the kernel ends it,
                // and then proves its death. An error means that the process has ended, or that
                // another node has to do it.
                let probe = &detector.probes[member.index()];
                if probe.is_available() {
                    let _ = probe.signal(Signal::KILL);
                }
            }
            suspected.union_with(&evicted);
        }
        self.drive(node, Event::Suspected(suspected));
    }

    /// Applies the deaths in the log of this node, whichever member has entered them; whether there
    /// was a new death.
    pub(super) fn apply_deaths(&mut self, node: &Shm) -> bool {
        // Called for every frame and every request: without news it must cost a single load.
        match self.read_log(node) {
            Some(logged) => self.drive(node, logged),
            None => false,
        }
    }

    /// Enters deaths that a frame of `from` reports into the log of this node, and applies them.
    pub(super) fn merge_deaths(&mut self, node: &Shm, from: MemberId, deaths: Deaths) {
        self.drive(node, Event::Reported(deaths, from));
    }

    /// Whether a remote member is dead, by the log as it is now.
    pub(super) fn is_dead(&mut self, node: &Shm, member: MemberId) -> bool {
        self.apply_deaths(node);
        self.membership.is_dead(member)
    }

    fn drive(&mut self, node: &Shm, event: Event) -> bool {
        membership::drive(
            self,
            event,
            |core| &mut core.membership,
            |core, action| core.perform(node, action),
        )
    }

    fn perform(&mut self, node: &Shm, action: Action) -> Option<Event> {
        match action {
            Action::Quarantine => return self.quarantine(node),
            Action::ReadLog => return self.read_log(node),
            Action::CheckSuspects => return self.check_suspects(),
            Action::Fence(member) => self.fence(node, member),
            Action::DeclareDead((dead, left), reporter) => {
                let deaths = dead.iter().map(|member| (member, left.contains(member)));
                node.declare_dead(deaths, reporter);
            }
            Action::Disconnect(member) => self.disconnect(member),
            Action::RenewLease => self.renew_lease(node),
            Action::AnnounceDeaths => {
                for member in self.membership.living_remote() {
                    self.enqueue_small(node, member, Header::new(Kind::Deaths, 0, 0, [0; 3]));
                }
            }
        }
        None
    }

    /// Has this node quarantine the suspected members, except members that the kernel knows to
    /// live, and reads which members this node has quarantined.
    fn quarantine(&mut self, node: &Shm) -> Option<Event> {
        let quorum = self.quorum.as_mut()?;
        for member in self.membership.suspects() {
            let probe = &self.detector.probes[member.index()];
            if !probe.is_available() || probe.is_gone() {
                node.quarantine(member);
            }
        }
        let living = self.membership.living_remote().into_iter();
        let quarantined: MemberSet = living.filter(|&member| node.is_quarantined(member)).collect();
        // From here on no member of this node answers them: the eviction wait may run.
        quorum.record_quarantine(node.me(), &quarantined);
        Some(Event::Quarantined(quarantined))
    }

    /// The death log of this node, if it has changed.
    fn read_log(&mut self, node: &Shm) -> Option<Event> {
        if node.epoch().0 == self.membership.seen_epoch() {
            return None;
        }
        let view = node.view();
        self.has_arrivals = true;
        Some(Event::Logged { epoch: view.epoch.0, dead: view.dead })
    }

    /// The suspects whose death is settled: by the kernel, or by a quorum while this member has a
    /// lease itself.
    fn check_suspects(&mut self) -> Option<Event> {
        let suspects = self.membership.suspects();
        if suspects.is_empty() {
            return None;
        }
        let (now, dead) = (Shm::lease_clock(), self.membership.dead());
        let has_lease = self.lease.is_valid();
        let mut is_settled = |member: MemberId| {
            let probe = &self.detector.probes[member.index()];
            match &mut self.quorum {
                // Asked in any case: asking starts the eviction wait.
                Some(quorum) if !probe.is_available() => {
                    quorum.may_declare_dead(member, &dead, now) && has_lease
                }
                _ => probe.is_gone(),
            }
        };
        let settled = suspects.into_iter().filter(|&member| is_settled(member)).collect();
        Some(Event::Settled(settled))
    }

    /// Clears the link to a dead member, and fails what waits for the member.
    fn disconnect(&mut self, member: MemberId) {
        let link = &mut self.links[member.index()];
        link.queue.clear();
        link.partial = Default::default();
        self.fail_requests(|request| request.target == member, || Error::Dead { member });
        self.record_leave_ack(member);
    }
}
