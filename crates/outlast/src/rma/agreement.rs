//! Agreement among the living members of a communicator by dissemination: the basis of `agree`,
//! `shrink`, `duplicate` and `split`.
//!
//! Small groups on engines that can publish agree in a single round instead, see
//! [`super::one_round`]. All other groups use this module. It knows no engine: its callers deliver
//! messages and deaths, and send the messages that it lists.
//!
//! # Promise
//! Each member contributes flags, the failures that it has acknowledged, a proposal for the
//! identity of a new communicator, a colour and a key. All members that return get equal values
//! ([`AgreedValue`]), also members that die right after they returned, whichever members die at any
//! time: if a program has acted on a value, all other members get that value. A value combines the
//! contributions of all members that are not in its set of the dead. No member waits for the dead
//! or sends to them.
//!
//! # Algorithm
//! Members with equal knowledge of deaths run an *attempt* together. An attempt is named by its set
//! V of dead ranks; its participants are all other ranks of the group, in order. It consists of two
//! rounds of dissemination. In step i, each participant sends to the participant 2^i places after
//! it (if there are few participants: to all at once), and waits for the participant 2^i places
//! before it, so that after a logarithmic number of steps it has heard, directly or not, from all.
//!
//! 1. *Gather.* A participant passes on everything heard so far: the contributions, and the value
//!    of the newest attempt in which any member *accepted* a value. At the end of the round, the
//!    participant accepts a value itself: that newest accepted value if there is any, otherwise the
//!    combination of the contributions, with V as its set of the dead.
//! 2. *Confirm.* A participant passes on "I have accepted". At the end of the round, it knows that
//!    all participants have accepted, and *decides*: it returns the value.
//!
//! A member that learns of a further death leaves its attempt for good and enters the attempt that
//! its view now names. Messages carry their sender's knowledge of deaths, so a receiver's view is
//! never older than a message that it reads. Messages of attempts that the receiver has left are
//! ignored.
//!
//! A member that has decided remembers the value. When it hears from a later attempt of this
//! instance, it answers with the value, and sends the value to its partners in that attempt, once.
//! A member that receives a value this way decides, and sends it to its own partners. A member may
//! forget the value when it decides the next instance, since all other members must have entered
//! that instance and hence have returned from this instance.
//!
//! # Why all members get equal values
//! *Accepting at V requires that every rank outside V has entered V*, since a member gathers from
//! all of them, and contributions travel only in messages of that attempt.
//!
//! *The attempts in which a member accepts form a chain under inclusion.* Let x accept at V and y
//! accept at W. Suppose that y is in V and x is in W. Then y was dead before x entered V, and x was
//! dead before y entered W. So x entered V after the death of y, hence after y entered W, hence
//! after the death of x: a contradiction. So x is outside W or y is outside V; by symmetry let x be
//! outside W. Then x entered W, by the above, and V too. Its view was W at some moment and V at
//! another, and views only grow, so V contains W or W contains V. Hence the number of the dead
//! orders all attempts that matter, and "newest" is well defined.
//!
//! *Within an attempt all members accept equal values*: the value is a function of the states with
//! which all participants entered.
//!
//! *Once a member decided v at V, every later attempt W accepts v.* All participants of V accepted
//! v at V. The participants of W are among them (W contains V), and each accepted v before it
//! entered W, since a member cannot accept in an attempt that it has left. So each enters W with a
//! newest accepted value, either of V or of an attempt between V and W, and that value is v by
//! induction. An earlier attempt U, with V containing U, cannot have *decided* otherwise, by this
//! argument with U and V exchanged. Values that members pass on after deciding are decided values.
//! So all decisions are equal.
//!
//! # Why no member waits for ever
//! Suppose that no more members die, and that all living members have entered the instance and know
//! of all deaths, V. Undecided members are in attempt V. If no member had decided before entering
//! it, all take part, and the steps complete one after the other (a member that decides early by a
//! value that was passed on sends it to all participants to which it would have sent). Otherwise
//! there is an undecided member whose successor in the ring of V has decided. Entering V, it sends
//! to this successor, which answers; so the number of undecided members falls to zero. Sending the
//! value to all partners makes this logarithmic, too.
//!
//! # What a survivor finds when a member dies
//! | the member dies | the others |
//! |---|---|
//! | before it entered | go on without it in the attempt that its death names |
//! | while it sends its messages of a step | some have them, some do not; all start over in the next attempt; its contribution counts only if a member accepted |
//! | after it accepted, before it sent a confirmation | if all others accepted too, the next attempt decides that value, otherwise perhaps another value; no member can have returned |
//! | after it decided and returned | all others have accepted the returned value; the next attempt can only decide that value |
//! | after it decided by receiving the value | all others have accepted that value; the next attempt can only decide it |

use super::group::RankSet;
use super::wire::{self, Reader, Writer};
use std::sync::Arc;

/// The operation that an agreement is for. It is a part of the agreed value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgreementKind {
    Agree = 1,
    Shrink = 2,
    Duplicate = 3,
    Split = 4,
}

/// In an [`AgreedValue`]: the members called different operations.
const MIXED: u8 = 0;

/// Up to this many participants, all send to all: a single step instead of a logarithmic number.
const ALL_TO_ALL_MAX: usize = 4;

/// The place of a rank in a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SplitPlace {
    pub(crate) rank: u32,
    /// The colour plus one; zero for none.
    pub(crate) color: u64,
    pub(crate) key: i64,
}

/// The contribution of a member to an agreement.
#[derive(Clone, Debug)]
pub(crate) struct Contribution {
    pub(crate) kind: AgreementKind,
    pub(crate) flags: u64,
    /// The identity that this member proposes for a new communicator; the least proposal is chosen.
    pub(crate) id: u64,
    /// The failures that this member has acknowledged.
    pub(crate) acked: RankSet,
    pub(crate) place: Option<SplitPlace>,
}

/// The value that the members agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgreedValue {
    kind: u8,
    pub(crate) flags: u64,
    pub(crate) id: u64,
    /// The ranks that count as dead.
    pub(crate) dead: RankSet,
    /// The ranks in `dead` that some contributor has not acknowledged.
    pub(crate) unacked: RankSet,
    /// For splits: sorted by rank.
    pub(crate) places: Vec<SplitPlace>,
}

impl AgreedValue {
    /// The value of a single contribution, in an attempt.
    pub(super) fn of(own: &Contribution, dead: &RankSet) -> AgreedValue {
        AgreedValue {
            kind: own.kind as u8,
            flags: own.flags,
            id: own.id,
            dead: dead.clone(),
            unacked: dead.without(&own.acked),
            places: own.place.into_iter().collect(),
        }
    }

    /// Whether all contributors called this operation.
    pub(crate) fn is_of(&self, kind: AgreementKind) -> bool {
        self.kind == kind as u8
    }

    /// Adds a value that another participant of this attempt has gathered. Adding a value twice
    /// changes nothing.
    pub(super) fn add(&mut self, other: &AgreedValue) {
        if self.kind != other.kind {
            self.kind = MIXED;
        }
        self.flags &= other.flags;
        self.id = self.id.min(other.id);
        self.unacked.union_with(&other.unacked);
        for place in &other.places {
            if let Err(index) = self.places.binary_search_by_key(&place.rank, |mine| mine.rank) {
                self.places.insert(index, *place);
            }
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.u8(self.kind).u64(self.flags).u64(self.id).set(&self.dead).set(&self.unacked);
        writer.u32(self.places.len() as u32);
        for place in &self.places {
            writer.u32(place.rank).u64(place.color).u64(place.key as u64);
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<AgreedValue> {
        let (kind, flags, id) = (reader.u8()?, reader.u64()?, reader.u64()?);
        let (dead, unacked) = (reader.set()?, reader.set()?);
        let count = reader.u32()?;
        let mut places = Vec::new();
        for _ in 0..count {
            places.push(SplitPlace {
                rank: reader.u32()?,
                color: reader.u64()?,
                key: reader.u64()? as i64,
            });
        }
        Some(AgreedValue { kind, flags, id, dead, unacked, places })
    }
}

/// The partners of a member in an attempt.
#[derive(Debug)]
struct Schedule {
    dead: RankSet,
    /// The participants in the order of their ranks.
    living: Vec<u32>,
    /// The position of this member among the participants.
    position: usize,
    /// The distances to the partners, in the order of sending.
    distances: Vec<u32>,
    /// Per step: the number of distances used when the step ends.
    steps: Vec<u8>,
}

impl Schedule {
    fn new(size: usize, me: usize, dead: &RankSet) -> Schedule {
        let living: Vec<u32> =
            (0..size).filter(|&rank| !dead.contains(rank)).map(|rank| rank as u32).collect();
        let position = living.partition_point(|&rank| (rank as usize) < me);
        let count = living.len();
        let (mut distances, mut steps) = (Vec::new(), Vec::new());
        if count <= ALL_TO_ALL_MAX {
            distances.extend(1..count as u32);
            if count > 1 {
                steps.push(distances.len() as u8);
            }
        } else {
            let doubling = std::iter::successors(Some(1u32), |distance| Some(distance * 2));
            for distance in doubling.take_while(|&distance| (distance as usize) < count) {
                distances.push(distance);
                steps.push(distances.len() as u8);
            }
        }
        Schedule { dead: dead.clone(), living, position, distances, steps }
    }

    /// The rank this far after this member.
    fn after(&self, distance: u32) -> usize {
        self.living[(self.position + distance as usize) % self.living.len()] as usize
    }

    /// The rank this far before this member.
    fn before(&self, distance: u32) -> usize {
        let count = self.living.len();
        self.living[(self.position + count - distance as usize % count) % count] as usize
    }

    /// All ranks that this member receives from or sends to.
    fn partners(&self) -> Vec<usize> {
        let mut partners: Vec<usize> = self
            .distances
            .iter()
            .flat_map(|&distance| [self.after(distance), self.before(distance)])
            .collect();
        partners.sort_unstable();
        partners.dedup();
        partners
    }

    /// The slots of a step.
    fn slots(&self, step: usize) -> std::ops::Range<usize> {
        let begin = if step == 0 { 0 } else { self.steps[step - 1] as usize };
        begin..self.steps[step] as usize
    }
}

/// The progress of a member in a round of dissemination of an attempt.
#[derive(Debug, Default)]
struct DisseminationRound {
    /// The slots with a received message.
    heard: u64,
    /// The number of complete steps; the messages of the next step have been sent.
    steps: usize,
}

impl DisseminationRound {
    fn has_heard(&self, slots: std::ops::Range<usize>) -> bool {
        slots.into_iter().all(|slot| self.heard & (1 << slot) != 0)
    }
}

const GATHER: u8 = 0;
const CONFIRM: u8 = 1;
const DECIDED: u8 = 2;

/// An agreement at a member.
#[derive(Debug)]
struct AgreementInstance {
    number: u32,
    own: Contribution,
    schedule: Arc<Schedule>,
    gathered: AgreedValue,
    /// The newest accepted value, with the number of the dead of its attempt.
    accepted: Option<(u32, AgreedValue)>,
    gather: DisseminationRound,
    /// Whether this member has accepted in its present attempt.
    has_accepted: bool,
    confirm: DisseminationRound,
    decided: Option<Arc<AgreedValue>>,
    /// Whether the decision was taken, by the program or in place of a caller that has left.
    is_over: bool,
    /// The newest attempt for which this member has sent its partners all that they need from it.
    answered: Option<RankSet>,
}

/// A message for an instance that this member has not entered yet.
#[derive(Debug)]
struct EarlyMessage {
    from: usize,
    number: u32,
    bytes: Vec<u8>,
}

/// In place of a rank: all other ranks, by publishing.
pub(crate) const ALL: usize = usize::MAX;

/// Messages to send: the rank, or [`ALL`], and the bytes.
pub(crate) type Sends = Vec<(usize, Vec<u8>)>;

/// The agreements of a communicator at a member, one after the other.
#[derive(Debug)]
pub(crate) struct DisseminationAgreements {
    communicator: u64,
    /// Which of the two sequences of agreements of the communicator this is.
    sequence: u8,
    size: usize,
    me: usize,
    dead: RankSet,
    current: Option<AgreementInstance>,
    /// The previous instance: other members may still need its value.
    previous: Option<AgreementInstance>,
    early: Vec<EarlyMessage>,
    schedule: Option<Arc<Schedule>>,
}

impl DisseminationAgreements {
    pub(crate) fn new(
        communicator: u64,
        sequence: u8,
        size: usize,
        me: usize,
        dead: RankSet,
    ) -> DisseminationAgreements {
        DisseminationAgreements {
            communicator,
            sequence,
            size,
            me,
            dead,
            current: None,
            previous: None,
            early: Vec::new(),
            schedule: None,
        }
    }

    /// The operation of the newest instance, unless the program has taken its decision.
    pub(crate) fn unfinished(&self) -> Option<AgreementKind> {
        self.current.as_ref().filter(|instance| !instance.is_over).map(|instance| instance.own.kind)
    }

    /// Takes the decision of the newest instance, if there is any; the instance is then over.
    pub(crate) fn take_decision(&mut self) -> Option<Arc<AgreedValue>> {
        let instance = self.current.as_mut()?;
        let value = instance.decided.clone()?;
        instance.is_over = true;
        Some(value)
    }

    /// A rank that this member waits for, if any.
    pub(crate) fn waits_for(&self) -> Option<usize> {
        let instance = self.current.as_ref().filter(|instance| instance.decided.is_none())?;
        let schedule = &instance.schedule;
        let missing = |round: &DisseminationRound| {
            (0..schedule.distances.len())
                .find(|slot| round.heard & (1 << slot) == 0)
                .map(|slot| schedule.before(schedule.distances[slot]))
        };
        missing(&instance.gather).or_else(|| missing(&instance.confirm))
    }

    /// Enters the next instance. The previous instance must be decided.
    pub(crate) fn enter(&mut self, own: Contribution, sends: &mut Sends) {
        debug_assert!(self.unfinished().is_none());
        let number = self.current.as_ref().map_or(0, |instance| instance.number + 1);
        let schedule = self.schedule();
        let instance = AgreementInstance {
            number,
            gathered: AgreedValue::of(&own, &schedule.dead),
            own,
            schedule,
            accepted: None,
            gather: DisseminationRound::default(),
            has_accepted: false,
            confirm: DisseminationRound::default(),
            decided: None,
            is_over: false,
            answered: None,
        };
        self.previous = self.current.replace(instance);
        self.begin(sends);
        for early in std::mem::take(&mut self.early) {
            if early.number == number {
                self.receive(early.from, &early.bytes, sends);
            }
        }
    }

    /// The schedule of the attempt that the view names now; kept between instances.
    fn schedule(&mut self) -> Arc<Schedule> {
        match &self.schedule {
            Some(schedule) if schedule.dead == self.dead => schedule.clone(),
            _ => {
                let schedule = Arc::new(Schedule::new(self.size, self.me, &self.dead));
                self.schedule = Some(schedule.clone());
                schedule
            }
        }
    }

    /// Sets the known dead ranks. The set only grows.
    pub(crate) fn set_dead(&mut self, dead: &RankSet, sends: &mut Sends) {
        if self.dead == *dead {
            return;
        }
        self.dead = dead.clone();
        let schedule = self.schedule();
        let Some(instance) = self.current.as_mut().filter(|instance| instance.decided.is_none())
        else {
            return;
        };
        instance.gathered = AgreedValue::of(&instance.own, dead);
        instance.schedule = schedule;
        (instance.gather, instance.confirm) =
            (DisseminationRound::default(), DisseminationRound::default());
        instance.has_accepted = false;
        self.begin(sends);
    }

    /// Sends the first messages of the current attempt.
    fn begin(&mut self, sends: &mut Sends) {
        let (communicator, sequence) = (self.communicator, self.sequence);
        let Some(instance) = &mut self.current else { return };
        if !instance.schedule.steps.is_empty() {
            instance.send_step(communicator, sequence, GATHER, 0, sends);
        }
        instance.advance(communicator, sequence, sends);
    }

    /// Handles a message. `bytes` begin after the identity of the communicator.
    pub(crate) fn receive(&mut self, from: usize, bytes: &[u8], sends: &mut Sends) {
        // Messages that cannot be read are of an unknown version: ignore them.
        let _ = self.try_receive(from, bytes, sends);
    }

    fn try_receive(&mut self, from: usize, bytes: &[u8], sends: &mut Sends) -> Option<()> {
        let mut reader = Reader::new(bytes);
        let (_sequence, number) = (reader.u8()?, reader.u32()?);
        let (message_kind, slot, attempt) = (reader.u8()?, reader.u8()? as usize, reader.set()?);
        let next = self.current.as_ref().map_or(0, |instance| instance.number + 1);
        if number == next {
            self.early.push(EarlyMessage { from, number, bytes: bytes.to_vec() });
            return Some(());
        }
        let (communicator, sequence) = (self.communicator, self.sequence);
        let is_current = number + 1 == next;
        let schedule = self.schedule.clone();
        let instance = if is_current { self.current.as_mut()? } else { self.previous.as_mut()? };
        if instance.number != number {
            return None;
        }
        if let Some(value) = instance.decided.clone() {
            // The sender is in an attempt that this member never entered: it needs the value.
            let is_answered =
                instance.answered.as_ref().is_some_and(|answered| attempt.is_subset(answered));
            // A sender that has died meanwhile needs no answer.
            if message_kind != DECIDED && !is_answered && !self.dead.contains(from) {
                let bytes = decided_message(communicator, sequence, number, &value);
                let schedule = match schedule {
                    Some(schedule) if schedule.dead == self.dead => schedule,
                    _ => Arc::new(Schedule::new(self.size, self.me, &self.dead)),
                };
                sends.extend(
                    schedule.partners().into_iter().map(|partner| (partner, bytes.clone())),
                );
                if !schedule.partners().contains(&from) {
                    sends.push((from, bytes));
                }
                instance.answered = Some(self.dead.clone());
            }
            return Some(());
        }
        if message_kind == DECIDED {
            let value = AgreedValue::read(&mut reader)?;
            let bytes = decided_message(communicator, sequence, number, &value);
            let partners = instance.schedule.partners();
            sends.extend(
                partners.into_iter().filter(|&p| p != from).map(|partner| (partner, bytes.clone())),
            );
            instance.answered = Some(instance.schedule.dead.clone());
            instance.decided = Some(Arc::new(value));
            return Some(());
        }
        // Ignore messages of attempts that were left, and slots that do not belong to the sender.
        if attempt != instance.schedule.dead {
            return None;
        }
        let distance = *instance.schedule.distances.get(slot)?;
        if instance.schedule.before(distance) != from {
            return None;
        }
        if message_kind == GATHER {
            let value = AgreedValue::read(&mut reader)?;
            let accepted = match reader.u8()? {
                0 => None,
                _ => Some((reader.u32()?, AgreedValue::read(&mut reader)?)),
            };
            instance.gathered.add(&value);
            if let Some((ballot, value)) = accepted
                && instance.accepted.as_ref().is_none_or(|(mine, _)| *mine < ballot)
            {
                instance.accepted = Some((ballot, value));
            }
            instance.gather.heard |= 1 << slot;
        } else {
            instance.confirm.heard |= 1 << slot;
        }
        instance.advance(communicator, sequence, sends);
        Some(())
    }
}

impl AgreementInstance {
    /// Completes as many steps as possible.
    fn advance(&mut self, communicator: u64, sequence: u8, sends: &mut Sends) {
        let schedule = self.schedule.clone();
        while self.gather.steps < schedule.steps.len() {
            if !self.gather.has_heard(schedule.slots(self.gather.steps)) {
                return;
            }
            self.gather.steps += 1;
            if self.gather.steps < schedule.steps.len() {
                self.send_step(communicator, sequence, GATHER, self.gather.steps, sends);
            }
        }
        // All participants of the attempt have been heard: accept, once.
        if !self.has_accepted {
            self.has_accepted = true;
            let ballot = schedule.dead.len() as u32;
            let value = match self.accepted.take() {
                Some((_, value)) => value,
                None => self.gathered.clone(),
            };
            self.accepted = Some((ballot, value));
            if !schedule.steps.is_empty() {
                self.send_step(communicator, sequence, CONFIRM, 0, sends);
            }
        }
        while self.confirm.steps < schedule.steps.len() {
            if !self.confirm.has_heard(schedule.slots(self.confirm.steps)) {
                return;
            }
            self.confirm.steps += 1;
            if self.confirm.steps < schedule.steps.len() {
                self.send_step(communicator, sequence, CONFIRM, self.confirm.steps, sends);
            }
        }
        if self.decided.is_none() {
            self.decided = self.accepted.as_ref().map(|(_, value)| Arc::new(value.clone()));
            self.answered = Some(schedule.dead.clone());
        }
    }

    fn send_step(
        &self,
        communicator: u64,
        sequence: u8,
        message_kind: u8,
        step: usize,
        sends: &mut Sends,
    ) {
        for slot in self.schedule.slots(step) {
            let mut writer = message(
                communicator,
                sequence,
                self.number,
                message_kind,
                slot as u8,
                &self.schedule.dead,
                48,
            );
            if message_kind == GATHER {
                self.gathered.write(&mut writer);
                match &self.accepted {
                    None => {
                        writer.u8(0);
                    }
                    Some((ballot, value)) => {
                        writer.u8(1).u32(*ballot);
                        value.write(&mut writer);
                    }
                }
            }
            sends.push((self.schedule.after(self.schedule.distances[slot]), writer.done()));
        }
    }
}

fn message(
    communicator: u64,
    sequence: u8,
    number: u32,
    message_kind: u8,
    slot: u8,
    attempt: &RankSet,
    len: usize,
) -> Writer {
    let mut writer = Writer::new(wire::AGREEMENT, communicator, 8 + len);
    writer.u8(sequence).u32(number).u8(message_kind).u8(slot).set(attempt);
    writer
}

fn decided_message(communicator: u64, sequence: u8, number: u32, value: &AgreedValue) -> Vec<u8> {
    let mut writer = message(communicator, sequence, number, DECIDED, 0, &RankSet::default(), 48);
    value.write(&mut writer);
    writer.done()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rma::testing::Dice;
    use std::collections::VecDeque;

    /// A message in flight, with its sender's knowledge of deaths.
    type Flight = (Vec<u8>, RankSet);

    /// Members without an engine. Messages between two members keep their order; members die at any
    /// moment, even while sending, and undelivered messages may be lost; each member learns of
    /// deaths at its own time.
    struct Model {
        members: Vec<DisseminationAgreements>,
        dead: RankSet,
        views: Vec<RankSet>,
        /// By sender and receiver.
        channels: Vec<Vec<VecDeque<Flight>>>,
    }

    impl Model {
        fn new(size: usize) -> Model {
            Model {
                members: (0..size)
                    .map(|me| DisseminationAgreements::new(7, 0, size, me, RankSet::default()))
                    .collect(),
                dead: RankSet::default(),
                views: vec![RankSet::default(); size],
                channels: (0..size).map(|_| (0..size).map(|_| VecDeque::new()).collect()).collect(),
            }
        }

        /// Sends messages; if the sender dies, only the first few of them.
        fn send(&mut self, from: usize, sends: Sends, dice: &mut Dice, may_die: &mut usize) {
            let mut count = sends.len();
            if *may_die > 0 && !sends.is_empty() && dice.below(30) == 0 {
                *may_die -= 1;
                self.dead.insert(from);
                count = dice.below(sends.len() + 1);
            }
            for (to, bytes) in sends.into_iter().take(count) {
                assert!(!self.views[from].contains(to), "sent to a rank that is known to be dead");
                self.channels[from][to].push_back((bytes, self.views[from].clone()));
            }
        }

        fn learn(&mut self, member: usize, news: &RankSet, sends: &mut Sends) {
            self.views[member].union_with(news);
            let view = self.views[member].clone();
            self.members[member].set_dead(&view, sends);
        }
    }

    fn own(rank: usize, instance: usize) -> Contribution {
        let flags = !(1u64 << rank) ^ (instance as u64) << 40;
        Contribution {
            kind: AgreementKind::Agree,
            flags,
            id: rank as u64,
            acked: RankSet::default(),
            place: None,
        }
    }

    fn run(seed: u64) {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let size = 1 + dice.below(9);
        let instances = 3;
        let mut model = Model::new(size);
        let mut may_die = dice.below(size);
        let mut entered = vec![0; size];
        // All values that were ever returned, also by members that died.
        let mut returned: Vec<Vec<(usize, Arc<AgreedValue>)>> = vec![Vec::new(); instances];
        let mut idle = 0;
        while idle < 20_000 {
            let member = dice.below(size);
            idle += 1;
            if model.dead.contains(member) {
                continue;
            }
            let mut sends = Sends::new();
            match dice.below(4) {
                // The program calls, if it has the answer of the last call.
                0 if entered[member] < instances
                    && model.members[member].unfinished().is_none() =>
                {
                    model.members[member].enter(own(member, entered[member]), &mut sends);
                    entered[member] += 1;
                }
                0 => {
                    if model.members[member].unfinished().is_some()
                        && let Some(value) = model.members[member].take_decision()
                    {
                        returned[entered[member] - 1].push((member, value));
                    }
                }
                // The member learns of deaths.
                1 => {
                    let news: RankSet = model
                        .dead
                        .iter()
                        .filter(|&rank| rank != member && dice.below(3) == 0)
                        .collect();
                    model.learn(member, &news, &mut sends);
                }
                _ => {
                    let from = dice.below(size);
                    // Messages of the dead may be lost from some moment on.
                    if model.dead.contains(from) && dice.below(4) == 0 {
                        model.channels[from][member].clear();
                    }
                    if let Some((bytes, view)) = model.channels[from][member].pop_front() {
                        idle = 0;
                        model.learn(member, &view, &mut sends);
                        model.members[member].receive(from, &bytes[wire::HEADER_LEN..], &mut sends);
                    }
                }
            }
            if !sends.is_empty() {
                idle = 0;
            }
            model.send(member, sends, &mut dice, &mut may_die);
        }
        for (instance, answers) in returned.iter().enumerate() {
            let Some((_, first)) = answers.first() else { continue };
            assert!(
                answers.iter().all(|(_, value)| value == first),
                "seed {seed}, {instance}: {answers:?}"
            );
        }
        for member in (0..size).filter(|&member| !model.dead.contains(member)) {
            assert_eq!(entered[member], instances, "seed {seed}: {member} of {size} is stuck");
            let has_returned =
                returned[instances - 1].iter().any(|(returning, _)| *returning == member);
            assert!(has_returned, "seed {seed}: {member} of {size} has no answer");
            let (_, value) = &returned[instances - 1][0];
            assert_eq!(value.flags & (1 << member), 0, "seed {seed}: {member} contributed in vain");
        }
    }

    #[test]
    fn random_runs_without_an_engine_agree() {
        for seed in 0..300 {
            run(seed);
        }
    }

    #[test]
    fn every_participant_hears_of_every_other() {
        for size in 1..40 {
            let schedules: Vec<Schedule> =
                (0..size).map(|me| Schedule::new(size, me, &RankSet::default())).collect();
            let mut heard: Vec<RankSet> = (0..size).map(|me| [me].into_iter().collect()).collect();
            for step in 0..schedules[0].steps.len() {
                let before = heard.clone();
                for (me, schedule) in schedules.iter().enumerate() {
                    for slot in schedule.slots(step) {
                        let partner = schedule.before(schedule.distances[slot]);
                        assert_eq!(schedules[partner].after(schedule.distances[slot]), me);
                        heard[me].union_with(&before[partner]);
                    }
                }
            }
            assert!(heard.iter().all(|heard| heard.len() == size), "of {size}");
        }
    }

    #[test]
    fn values_are_read_as_they_were_written() {
        let place = SplitPlace { rank: 3, color: 9, key: -5 };
        let own = Contribution {
            kind: AgreementKind::Split,
            flags: 6,
            id: 1 << 50,
            acked: [1].into_iter().collect(),
            place: Some(place),
        };
        let mut value = AgreedValue::of(&own, &[1, 2].into_iter().collect());
        value.add(&AgreedValue::of(
            &Contribution {
                place: Some(SplitPlace { rank: 0, ..place }),
                flags: 3,
                id: 5,
                ..own.clone()
            },
            &[1, 2].into_iter().collect(),
        ));
        assert_eq!((value.flags, value.id, value.places.len()), (2, 5, 2));
        assert_eq!((value.unacked.to_vec(), value.places[0].rank), (vec![2], 0));
        let mut writer = Writer::new(wire::AGREEMENT, 0, 0);
        value.write(&mut writer);
        let bytes = writer.done();
        assert_eq!(
            AgreedValue::read(&mut Reader::new(&bytes[wire::HEADER_LEN..])),
            Some(value.clone())
        );
        let other = Contribution { kind: AgreementKind::Duplicate, ..own };
        value.add(&AgreedValue::of(&other, &RankSet::default()));
        assert!(!value.is_of(AgreementKind::Split) && !value.is_of(AgreementKind::Duplicate));
    }
}
