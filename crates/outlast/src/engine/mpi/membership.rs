//! The state of every member as this member sees it: alive, suspected, quarantined, dead.
//!
//! [`Membership`] is a state machine without side effects. [`Membership::apply`] takes an
//! [`Event`], changes the states and returns the [`Action`]s that follow from it. [`drive`] has the
//! actions performed (by `detector.rs`), applies the events that they cause, and ends when no
//! action is left. Every change of a state goes through [`drive`], on every path: the periodic
//! review, a frame that reports deaths, an operation that finds the epoch raised.
//!
//! *This member* is always the member that observes. `mod.rs` tells the course of a death as two
//! stories, with all times.
//!
//! # Terms
//! - *Node mates* of a member: the other members of its node.
//! - *Link*: the queue of frames to a remote member, with its flow control (`link.rs`).
//! - *Death log*: the list of dead members in the memory of a node, in the order of entry. Its
//!   length is the *epoch* of the node.
//! - *Quorum*: a majority of the voting base. The voting base is all members, except the beginning
//!   of the death log of this member's node, as far as the other nodes have acknowledged it to this
//!   member (`quorum.rs`, rule 4). Quorums matter only in a job under several kernels, or if
//!   `OUTLAST_MPI_WITNESS=votes` forbids to ask the kernel. In all other jobs there are no quorums,
//!   and therefore no leases, no quarantine and no detection of silence.
//! - *Lease*: the right of a member to reveal what the memory of its node holds. A member has it
//!   while a quorum of nodes keeps granting it (`quorum.rs`, rule 2).
//! - *Proof* of a death: the word of the kernel. A quorum decides without proof.
//! - *Settled*: the question whether a suspect is dead is settled, by proof or by a quorum. This
//!   does not make the member dead yet: see below. (To *confirm* is a step of a write in the store,
//!   and no word of this engine.)
//! - *Eviction wait*: the 2.5 s for which a quorum must have had a member in quarantine before the
//!   member is declared dead. To *evict* is to declare dead in this way.
//! - *Partial partition* of the network: two nodes do not reach each other, and further nodes reach
//!   both. After some time the job keeps the largest group of nodes that reach each other, and
//!   evicts the other nodes (`quorum.rs`, rule 5).
//! - *Review*: [`Event::ReviewDue`], every 10 ms, and at once after MPI has reported an error.
//!
//! # States
//! A member only moves down this list, and may skip states:
//!
//! | state | since when | consequence |
//! |---|---|---|
//! | *alive* | from the beginning | |
//! | *suspected* | MPI calls the member failed; or the kernel says that its process has ended or runs another program; or its node has been silent for too long (`quorum.rs`, rule 1); or rule 5 has chosen its node to go | the state is known to this member alone, and proves nothing. [`Event::Suspected`] only changes the state; what follows is done by the next review |
//! | *quarantined* | a review of this member or of another local member has set the *quarantine bit* of the member in the memory of this node. Reviews set these bits only in a job with quorums, and never for a member whose process the kernel knows to live | no member of this node sends the member anything, for ever. This is this node's vote against it. The eviction wait begins as soon as a quorum has it in quarantine |
//! | *dead* | the member is in the death log of this node | its frames are dropped, requests to it fail, and its link is cleared. A member that has left is in the log too, with a flag, and counts as dead here |
//!
//! A living member can stay suspected, if the kernel knows it to live, or quarantined, if no quorum
//! has it in quarantine. A member whose process has ended stays suspected or quarantined as long as
//! the question is open for a living node mate of it ("Why the whole node" below).
//!
//! Local members, which share this member's node, go from alive to dead only: the kernel reports
//! their deaths, and the shm engine enters them into the death log. Callers never pass local
//! members to [`Event::Suspected`] or [`Event::Quarantined`].
//!
//! # What is still served for a quarantined member
//! The quarantine stops what this node *sends*. What arrives is handled until the member is in the
//! death log, because it may live and have a lease:
//!
//! | what | until the member is dead |
//! |---|---|
//! | its request for an operation | executed in this member's segment; the reply is dropped |
//! | its message | delivered; it gets no credit for further messages |
//! | the deaths that its frame reports, its leave included | entered; the leave is not acknowledged |
//! | its lease request | not answered. This is what the proof in `quorum.rs` rests on |
//! | its grant, as the late answer to an earlier request | counts. It is asked for no further grants |
//! | its announcement that its node has quarantined members | recorded |
//! | its request to kill a member of this node | done |
//! | a request of this member to it | dropped: the call ends with [`Error::Dead`](crate::engine::Error::Dead) once the member is dead, or with `Timeout` |
//! | a message of this member to it | dropped, and counted as sent while there is credit; without credit the call waits, as the call of a request does |
//!
//! # From suspicion to death
//! Declaring a member dead enters it into the death log of this node. There are two ways to it:
//!
//! - *By decision.* The member is suspected or quarantined, the question is *settled* for it, and
//!   for each of its node mates the question is settled, or the node mate is dead.
//!   - The kernel settles it if the process runs under the kernel of the deciding member: the
//!     process has ended, as a pidfd tells that was opened at joining; or it runs another program
//!     since `exec`, because the memory of its node is not among its mappings any more. This needs
//!     no quorum, no lease and no wait, also in a job under several kernels.
//!   - Otherwise a quorum settles it, after the eviction wait, and only for a deciding member that
//!     has a lease at that time. By then a member that was merely cut off has lost its own lease,
//!     and its replies are held back.
//! - *By report.* A frame carries the deaths that its sender knows. The receiver enters them
//!   without a vote and without a lease, unless the sender is itself in the receiver's log by then.
//!   The first member that reported a death had decided it, or was a node mate of the dead member.
//!   That is enough: a node mate reports a death only after its node has raised its epoch, and from
//!   then on no member of that node takes the dead member's memory for current.
//!
//! *Why the whole node.* The node mates of a failed member still map its memory. Until their view
//! has the death they may read values there that the rest of the job has replaced. So the end of a
//! single process is not enough while its node mates live. The node mates learn of the death from
//! the kernel as well, enter it into the log of their node, and report it.
//!
//! If a quorum settles the death of a member, but not of all its node mates, this member asks the
//! node mates that it still reaches to kill that member ([`Action::Fence`], once for each): they
//! then report a death of which their kernel has told them. The member itself is not asked, because
//! no frame is sent to quarantined members.
//!
//! *A living member that was declared dead* ends its process as soon as it finds itself, without
//! having left, in a frame or in its node's log. It cannot count on being told: the nodes that have
//! it in quarantine or in their log send it nothing, so it hears of its death at most by a frame
//! that was under way. As a rule its lease runs out, and it ends itself in the first call that
//! needs a lease when the member has been without a lease for the time limit (`wait.rs`). That time
//! is counted from the loss of the lease, and not from the beginning of the call.
//!
//! # What happens on a death
//! [`Event::Logged`] turns new entries of the death log into these actions:
//!
//! 1. [`Action::Disconnect`] for each member that is new in the log.
//! 2. [`Action::RenewLease`], since the voting base may have changed.
//! 3. [`Action::AnnounceDeaths`] to all remote members, if a local member is among the dead. Every
//!    local member announces the deaths, so the other nodes learn of them also if some local
//!    members die before they have done so. If no local member is left, the other nodes have to
//!    decide about this node as a whole. Other deaths reach the other nodes with the next frame to
//!    each member.
//! 4. [`Action::CheckSuspects`]: a suspect whose death is settled may have waited only for the node
//!    mates that are among the dead now. The check may declare further deaths, and so on.
//!
//! A member that dies in the midst of these actions loses nothing: the log is in the memory of its
//! node, and each local member acts on it by itself.

use super::wire::Deaths;
use crate::engine::{MemberId, MemberSet};
use std::collections::VecDeque;

/// The state of a member, as the module describes it. A later state is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    Alive,
    Suspected,
    Quarantined,
    Dead,
}

/// What this member has found out.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// These remote members may have failed.
    Suspected(MemberSet),
    /// The period of the detector is over.
    ReviewDue,
    /// This node has quarantined these remote members.
    Quarantined(MemberSet),
    /// Of the suspected and quarantined members, the deaths of exactly these are settled.
    Settled(MemberSet),
    /// A frame of this member reports these deaths.
    Reported(Deaths, MemberId),
    /// The death log of this node was read: it has this epoch and these members.
    Logged { epoch: u64, dead: MemberSet },
}

/// What has to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Set the quarantine bits of suspected members, and read the bits that other local members
    /// have set. Causes [`Event::Quarantined`].
    Quarantine,
    /// Read the death log of this node, if its epoch has risen. Causes
    /// [`Event::Logged`].
    ReadLog,
    /// Find out for which suspected and quarantined members the death is settled, by the kernel or
    /// by a quorum. Causes [`Event::Settled`].
    CheckSuspects,
    /// Ask the node mates of this remote member, as far as they are reached, to kill it.
    Fence(MemberId),
    /// Enter these deaths into the log of this node, which raises its epoch. Deaths with a reporter
    /// do not enter if the reporter is in the log already.
    DeclareDead(Deaths, Option<MemberId>),
    /// Clear the link to this member and fail the requests that wait for it.
    Disconnect(MemberId),
    /// Find out until when this member has a lease, by the log as it is now.
    RenewLease,
    /// Send the dead of this node to all living remote members.
    AnnounceDeaths,
}

/// The states of all members.
pub(super) struct Membership {
    me: MemberId,
    /// By member: the number of its node, which is the lowest member of the node.
    node_of: Vec<usize>,
    /// The members with a process that the kernel can be asked about.
    probed: MemberSet,
    states: Vec<State>,
    /// The epoch of this node's death log up to which `states` has its deaths.
    seen_epoch: u64,
    /// The members that their node mates were asked to kill.
    fenced: MemberSet,
}

impl Membership {
    /// All members are alive. `node_of` has the number of each member's node.
    pub(super) fn new(me: MemberId, node_of: Vec<usize>, probed: MemberSet) -> Membership {
        Membership {
            me,
            states: vec![State::Alive; node_of.len()],
            node_of,
            probed,
            seen_epoch: 0,
            fenced: MemberSet::new(),
        }
    }

    /// Changes the states as `event` demands. The actions are to be performed in order; see
    /// [`drive`].
    pub(super) fn apply(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::Suspected(members) => {
                self.advance(&members, State::Suspected);
                Vec::new()
            }
            // The log is read between the two others. Just before the quarantine a local member may
            // have granted a lease request of the suspect, and so have entered and acknowledged the
            // deaths that the request carried. The check must find these deaths in the log:
            // otherwise it counts the dead as voters against the suspect.
            Event::ReviewDue => vec![Action::Quarantine, Action::ReadLog, Action::CheckSuspects],
            Event::Quarantined(members) => {
                self.advance(&members, State::Quarantined);
                Vec::new()
            }
            Event::Settled(settled) => self.apply_settled(&settled),
            Event::Reported(deaths, reporter) => self.merge_deaths(deaths, Some(reporter)),
            Event::Logged { epoch, dead } => self.apply_logged(epoch, &dead),
        }
    }

    /// Moves members to a state, unless they have reached it or a later state.
    fn advance(&mut self, members: &MemberSet, to: State) {
        for member in members.iter() {
            let state = &mut self.states[member.index()];
            *state = to.max(*state);
        }
    }

    /// Declares members dead whose death is settled, if each of their node mates is settled or dead
    /// too. The other settled members are fenced, once, unless the kernel was asked about them:
    /// then their processes have ended, or run another program.
    fn apply_settled(&mut self, settled: &MemberSet) -> Vec<Action> {
        let is_gone = |member: MemberId| settled.contains(member) || self.is_dead(member);
        let (dead, partly_gone): (Vec<MemberId>, Vec<MemberId>) =
            settled.iter().partition(|&member| self.node_members(member).all(is_gone));
        let mut actions = Vec::new();
        for member in partly_gone {
            if !self.probed.contains(member) && self.fenced.insert(member) {
                actions.push(Action::Fence(member));
            }
        }
        if !dead.is_empty() {
            actions.extend(self.merge_deaths((dead.into_iter().collect(), MemberSet::new()), None));
        }
        actions
    }

    /// Has deaths entered into the log, if any of them is new, and the log read.
    fn merge_deaths(&self, deaths: Deaths, reporter: Option<MemberId>) -> Vec<Action> {
        let is_news = deaths.0.iter().any(|member| !self.is_dead(member));
        // Declaring raises the epoch, before any of the actions that follow from the deaths.
        let declare = is_news.then_some(Action::DeclareDead(deaths, reporter));
        declare.into_iter().chain([Action::ReadLog]).collect()
    }

    /// Takes over the deaths of the log, whichever local member has entered them.
    fn apply_logged(&mut self, epoch: u64, dead: &MemberSet) -> Vec<Action> {
        self.seen_epoch = epoch;
        let new: Vec<MemberId> = dead.iter().filter(|&member| !self.is_dead(member)).collect();
        let has_local = new.iter().any(|&member| !self.is_remote(member) && member != self.me);
        self.advance(dead, State::Dead);
        let mut actions: Vec<Action> = new.into_iter().map(Action::Disconnect).collect();
        actions.push(Action::RenewLease);
        if has_local {
            actions.push(Action::AnnounceDeaths);
        }
        actions.push(Action::CheckSuspects);
        actions
    }

    /// The number of members, dead members included.
    pub(super) fn members(&self) -> usize {
        self.node_of.len()
    }

    /// The number of a member's node.
    pub(super) fn node_of(&self, member: MemberId) -> usize {
        self.node_of[member.index()]
    }

    /// All members of a member's node.
    fn node_members(&self, member: MemberId) -> impl Iterator<Item = MemberId> + '_ {
        let node = self.node_of(member);
        self.all().filter(move |&other| self.node_of(other) == node)
    }

    /// Whether a member is of another node than this member.
    pub(super) fn is_remote(&self, member: MemberId) -> bool {
        self.node_of(member) != self.node_of(self.me)
    }

    /// Whether a member is in the death log, as far as this member has read it.
    pub(super) fn is_dead(&self, member: MemberId) -> bool {
        self.states[member.index()] == State::Dead
    }

    /// The dead, as far as this member has read the death log.
    pub(super) fn dead(&self) -> MemberSet {
        self.all().filter(|&member| self.is_dead(member)).collect()
    }

    /// The members of other nodes that are not dead, in ascending order.
    pub(super) fn living_remote(&self) -> Vec<MemberId> {
        self.all().filter(|&member| self.is_remote(member) && !self.is_dead(member)).collect()
    }

    /// The members that are suspected or quarantined, in ascending order.
    pub(super) fn suspects(&self) -> Vec<MemberId> {
        let is_suspect = |member: &MemberId| {
            matches!(self.states[member.index()], State::Suspected | State::Quarantined)
        };
        self.all().filter(is_suspect).collect()
    }

    /// The epoch of the death log up to which its deaths were applied.
    pub(super) fn seen_epoch(&self) -> u64 {
        self.seen_epoch
    }

    fn all(&self) -> impl Iterator<Item = MemberId> + use<> {
        (0..self.node_of.len() as u32).map(MemberId)
    }
}

/// Applies an event and performs the actions that follow, until none is left. Returns whether new
/// entries of the death log were applied on the way.
///
/// The actions of an event that an action has caused come before the remaining actions: a death
/// takes full effect before the next step relies on the states.
pub(super) fn drive<C>(
    context: &mut C,
    event: Event,
    membership: impl Fn(&mut C) -> &mut Membership,
    mut perform: impl FnMut(&mut C, Action) -> Option<Event>,
) -> bool {
    let mut has_news = false;
    let mut actions: VecDeque<Action> = VecDeque::new();
    let mut event = Some(event);
    loop {
        if let Some(event) = event.take() {
            has_news |= matches!(event, Event::Logged { .. });
            for action in membership(context).apply(event).into_iter().rev() {
                actions.push_front(action);
            }
        }
        let Some(action) = actions.pop_front() else { return has_news };
        event = perform(context, action);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(members: &[u32]) -> MemberSet {
        members.iter().copied().map(MemberId).collect()
    }

    /// The surroundings of member 0. A test controls the death log and which deaths are settled.
    struct World {
        membership: Membership,
        log: Vec<MemberId>,
        /// The members whose death the kernel or a quorum has settled.
        settled: MemberSet,
        performed: Vec<Action>,
    }

    impl World {
        fn new(node_of: &[usize], probed: &[u32]) -> World {
            World {
                membership: Membership::new(MemberId(0), node_of.to_vec(), set(probed)),
                log: Vec::new(),
                settled: MemberSet::new(),
                performed: Vec::new(),
            }
        }

        /// Drives an event to its end. Returns whether the log had news, and the actions performed.
        fn drive(&mut self, event: Event) -> (bool, Vec<Action>) {
            let has_news = drive(self, event, |world| &mut world.membership, World::perform);
            (has_news, std::mem::take(&mut self.performed))
        }

        fn perform(&mut self, action: Action) -> Option<Event> {
            self.performed.push(action.clone());
            let suspects = self.membership.suspects();
            match action {
                Action::Quarantine => Some(Event::Quarantined(suspects.into_iter().collect())),
                Action::ReadLog => {
                    let epoch = self.log.len() as u64;
                    let dead = self.log.iter().copied().collect();
                    (epoch != self.membership.seen_epoch).then_some(Event::Logged { epoch, dead })
                }
                Action::CheckSuspects => {
                    let is_settled = |member: &MemberId| self.settled.contains(*member);
                    Some(Event::Settled(suspects.into_iter().filter(is_settled).collect()))
                }
                Action::DeclareDead((dead, _), reporter) => {
                    let known: MemberSet = self.log.iter().copied().collect();
                    if !reporter.is_some_and(|reporter| known.contains(reporter)) {
                        self.log.extend(dead.iter().filter(|&member| !known.contains(member)));
                    }
                    None
                }
                _ => None,
            }
        }

        fn states(&self) -> &[State] {
            &self.membership.states
        }
    }

    fn declare(members: &[u32]) -> Action {
        Action::DeclareDead((set(members), MemberSet::new()), None)
    }

    /// What a frame of this member reports.
    fn reported(by: u32, members: &[u32]) -> Event {
        Event::Reported((set(members), set(members)), MemberId(by))
    }

    fn disconnect(member: u32) -> Action {
        Action::Disconnect(MemberId(member))
    }

    const REVIEW: [Action; 3] = [Action::Quarantine, Action::ReadLog, Action::CheckSuspects];

    #[test]
    fn a_state_is_never_left_for_an_earlier_state() {
        let mut membership = Membership::new(MemberId(0), vec![0, 1], MemberSet::new());
        let events = [
            (Event::Suspected(set(&[1])), State::Suspected),
            (Event::Quarantined(set(&[1])), State::Quarantined),
            (Event::Suspected(set(&[1])), State::Quarantined),
            (Event::Quarantined(set(&[])), State::Quarantined),
            (Event::Logged { epoch: 1, dead: set(&[1]) }, State::Dead),
            (Event::Suspected(set(&[1])), State::Dead),
            (Event::Quarantined(set(&[1])), State::Dead),
        ];
        for (event, expected) in events {
            membership.apply(event.clone());
            assert_eq!(membership.states, [State::Alive, expected], "after {event:?}");
        }
        assert!(membership.suspects().is_empty() && membership.living_remote().is_empty());
    }

    #[test]
    fn a_suspicion_without_proof_ends_in_quarantine() {
        let mut world = World::new(&[0, 1, 2], &[]);
        assert_eq!(world.drive(Event::Suspected(set(&[1]))), (false, vec![]));
        assert_eq!(world.states(), [State::Alive, State::Suspected, State::Alive]);
        assert_eq!(world.drive(Event::ReviewDue), (false, REVIEW.to_vec()));
        assert_eq!(world.states(), [State::Alive, State::Quarantined, State::Alive]);
        assert!(world.log.is_empty());
    }

    #[test]
    fn a_node_is_declared_dead_as_a_whole() {
        let mut world = World::new(&[0, 0, 2, 2, 4], &[]);
        world.drive(Event::Suspected(set(&[2, 3, 4])));
        world.settled = set(&[2, 3]);
        let (has_news, performed) = world.drive(Event::ReviewDue);
        assert!(has_news);
        assert_eq!(performed[..3], REVIEW);
        let deaths = [
            declare(&[2, 3]),
            Action::ReadLog,
            disconnect(2),
            disconnect(3),
            Action::RenewLease,
            Action::CheckSuspects,
        ];
        assert_eq!(performed[3..], deaths);
        assert_eq!(world.membership.dead(), set(&[2, 3]));
        assert_eq!(world.membership.suspects(), [MemberId(4)]);
    }

    #[test]
    fn a_settled_member_of_a_reachable_node_is_fenced_once() {
        let mut world = World::new(&[0, 1, 1, 3, 3], &[3, 4]);
        world.drive(Event::Suspected(set(&[1, 3])));
        world.settled = set(&[1, 3]);
        let (_, performed) = world.drive(Event::ReviewDue);
        // The process of member 3 has ended by the kernel's word: no member needs to kill it.
        assert_eq!(performed[3..], [Action::Fence(MemberId(1))]);
        assert_eq!(world.drive(Event::ReviewDue), (false, REVIEW.to_vec()));
        assert!(world.membership.dead().is_empty());
    }

    #[test]
    fn the_death_of_its_last_reachable_member_completes_the_death_of_a_node() {
        let mut world = World::new(&[0, 1, 1], &[]);
        world.drive(Event::Suspected(set(&[1])));
        world.settled = set(&[1]);
        world.drive(Event::ReviewDue);
        assert!(world.membership.dead().is_empty());
        let (has_news, performed) = world.drive(reported(2, &[2]));
        assert!(has_news);
        let expected = [
            Action::DeclareDead((set(&[2]), set(&[2])), Some(MemberId(2))),
            Action::ReadLog,
            disconnect(2),
            Action::RenewLease,
            Action::CheckSuspects,
            declare(&[1]),
            Action::ReadLog,
            disconnect(1),
            Action::RenewLease,
            Action::CheckSuspects,
        ];
        assert_eq!(performed, expected);
    }

    #[test]
    fn only_deaths_of_other_local_members_are_announced() {
        for (dead, is_announced) in [(0, false), (1, true), (2, false)] {
            let mut membership = Membership::new(MemberId(0), vec![0, 0, 2], MemberSet::new());
            let actions = membership.apply(Event::Logged { epoch: 1, dead: set(&[dead]) });
            assert_eq!(actions.contains(&Action::AnnounceDeaths), is_announced, "{dead}");
        }
    }

    #[test]
    fn a_reported_death_that_is_known_is_not_declared_again() {
        let mut world = World::new(&[0, 1, 2, 3], &[]);
        let by = Some(MemberId(3));
        let (has_news, performed) = world.drive(reported(3, &[1]));
        assert!(has_news && performed[0] == Action::DeclareDead((set(&[1]), set(&[1])), by));
        assert_eq!(world.drive(reported(3, &[1])), (false, vec![Action::ReadLog]));
        // With a new death all are declared: the log ignores members that it has.
        let (_, performed) = world.drive(reported(3, &[1, 2]));
        assert_eq!(performed[0], Action::DeclareDead((set(&[1, 2]), set(&[1, 2])), by));
        assert_eq!(performed[2], disconnect(2), "member 1 is disconnected already");
    }

    /// A local member has entered the death of the reporter since its frame was accepted: what the
    /// frame reports does not count, and the reporter is known to be dead afterwards.
    #[test]
    fn a_report_of_a_member_that_is_in_the_log_does_not_count() {
        let mut world = World::new(&[0, 1, 2], &[]);
        world.log = vec![MemberId(1)];
        let (has_news, _) = world.drive(reported(1, &[2]));
        assert!(has_news);
        assert_eq!(world.membership.dead(), set(&[1]));
    }

    #[test]
    fn a_death_takes_full_effect_before_the_review_goes_on() {
        let mut world = World::new(&[0, 0, 2, 2], &[]);
        world.drive(Event::Suspected(set(&[2])));
        world.settled = set(&[2]);
        // Entered by another local member; the first check declares member 2 dead because of it.
        world.log = vec![MemberId(3), MemberId(1)];
        let (_, performed) = world.drive(Event::ReviewDue);
        let expected = [
            Action::Quarantine,
            Action::ReadLog,
            disconnect(1),
            disconnect(3),
            Action::RenewLease,
            Action::AnnounceDeaths,
            Action::CheckSuspects,
            declare(&[2]),
            Action::ReadLog,
            disconnect(2),
            Action::RenewLease,
            Action::CheckSuspects,
            Action::CheckSuspects,
        ];
        assert_eq!(performed, expected);
    }
}
