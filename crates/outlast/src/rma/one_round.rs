//! Agreement in a single round, for small groups on engines that can publish (see
//! `Engine::try_publish`); and [`Agreements`], which chooses between this and [`super::agreement`].
//!
//! It keeps the promise of [`super::agreement`]. Each member publishes its contribution, once, to
//! all others: the contribution itself, the dead that it knows, and the failures that it has
//! acknowledged. A member decides when its own contribution is published and, for each other
//! member, the contribution is either here or will never come because that member is *drained*: its
//! death is known, and after that all its messages have been received. The value combines the
//! contributions that are here. Its set of the dead has the members that did not contribute, and
//! the members that a contributor knew to be dead.
//!
//! # Why all members get equal values
//! Let C be the set of members that have published their contributions to an instance at the moment
//! when no further member can. A member that decides has exactly the contributions of C:
//! - It has no others, since an unpublished contribution is received by no member.
//! - It lacks none. It has its own. Suppose that the contribution of x in C is missing; then x is
//!   drained here. But the publication of x reached all members that x did not know to be dead, and
//!   it outlives x. So after the death of x was known, the contribution was received before x
//!   became drained: a contradiction. If x knew this member to be dead, then it was dead. It did
//!   not decide after x published, since it was dead; and not before, since it lacked the
//!   contribution of x while x lived. (A member that has left counts as dead and may still run:
//!   decisions that it makes from then on are not given to its program.)
//!
//! The value is a function of the contributions alone, so all decisions are equal, also decisions
//! of members that have died since.
//!
//! # Why no member waits for ever
//! Each member contributes or dies. If some living member has no room for a contribution, it is
//! tried again until that member takes messages, or dies: an agreement waits for all living members
//! anyway.
//!
//! # What a survivor finds when a member dies
//! | the member dies | the others |
//! |---|---|
//! | before its contribution is published | go on without it, once its death is known |
//! | while it publishes | all have its contribution or none has; publishing is all or nothing |
//! | later, before or after it decided | decide with its contribution, which all of them have |

use super::agreement::{
    ALL, AgreedValue, AgreementKind, Contribution, DisseminationAgreements, Sends,
};
use super::group::RankSet;
use super::wire::{self, Reader, Writer};
use std::sync::Arc;

/// The agreements of a communicator, by the algorithm that its size and the engine allow. All
/// members make an equal choice.
#[derive(Debug)]
pub(crate) enum Agreements {
    Dissemination(Box<DisseminationAgreements>),
    OneRound(Box<OneRoundAgreements>),
}

/// The largest group that agrees in a single round, since all members write to all members. Larger
/// groups are faster with a logarithmic number of messages. Measured on two cores: a single round
/// takes half of the time with 9 to 12 members, and about equal time with 16.
const SIZE_MAX: usize = 16;

/// An agreement at a member.
#[derive(Debug)]
struct OneRoundInstance {
    kind: AgreementKind,
    /// The ranks with a contribution in `gathered`.
    heard: RankSet,
    gathered: AgreedValue,
    /// The failures that all of these ranks have acknowledged.
    acked: RankSet,
    /// Whether this member's contribution has been published.
    is_published: bool,
    decided: Option<Arc<AgreedValue>>,
    /// Whether the decision was taken, by the program or in place of a caller that has left.
    is_over: bool,
}

/// The agreements of a communicator at a member, one after the other.
#[derive(Debug)]
pub(crate) struct OneRoundAgreements {
    communicator: u64,
    sequence: u8,
    size: usize,
    me: usize,
    dead: RankSet,
    drained: RankSet,
    /// How many instances were entered, which is the number of the next instance.
    entered: u32,
    current: Option<OneRoundInstance>,
    /// Contributions to instances that this member has not entered yet: the sender, the number of
    /// the instance, the value, and the acknowledged failures.
    early: Vec<(usize, u32, AgreedValue, RankSet)>,
}

impl Agreements {
    pub(crate) fn new(
        can_publish: bool,
        communicator: u64,
        sequence: u8,
        size: usize,
        me: usize,
        dead: &RankSet,
        drained: &RankSet,
    ) -> Agreements {
        if can_publish && size <= SIZE_MAX {
            let mut one_round = OneRoundAgreements::new(communicator, sequence, size, me);
            (one_round.dead, one_round.drained) = (dead.clone(), drained.clone());
            return Agreements::OneRound(Box::new(one_round));
        }
        Agreements::Dissemination(Box::new(DisseminationAgreements::new(
            communicator,
            sequence,
            size,
            me,
            dead.clone(),
        )))
    }

    /// The operation of the newest instance, unless the program has taken its decision.
    pub(crate) fn unfinished(&self) -> Option<AgreementKind> {
        match self {
            Agreements::Dissemination(dissemination) => dissemination.unfinished(),
            Agreements::OneRound(one_round) => one_round
                .current
                .as_ref()
                .filter(|instance| !instance.is_over)
                .map(|instance| instance.kind),
        }
    }

    /// Takes the decision of the newest instance, if there is any; the instance is then over.
    pub(crate) fn take_decision(&mut self) -> Option<Arc<AgreedValue>> {
        match self {
            Agreements::Dissemination(dissemination) => dissemination.take_decision(),
            Agreements::OneRound(one_round) => {
                let instance = one_round.current.as_mut()?;
                let value = instance.decided.clone()?;
                instance.is_over = true;
                Some(value)
            }
        }
    }

    /// A rank that this member waits for, if any.
    pub(crate) fn waits_for(&self) -> Option<usize> {
        match self {
            Agreements::Dissemination(dissemination) => dissemination.waits_for(),
            Agreements::OneRound(one_round) => {
                let instance =
                    one_round.current.as_ref().filter(|instance| instance.decided.is_none())?;
                one_round.missing(instance)
            }
        }
    }

    /// Enters the next instance. The previous instance must be decided.
    pub(crate) fn enter(&mut self, own: Contribution, sends: &mut Sends) {
        match self {
            Agreements::Dissemination(dissemination) => dissemination.enter(own, sends),
            Agreements::OneRound(one_round) => one_round.enter(own, sends),
        }
    }

    /// Records that the contribution of this member has been published.
    pub(crate) fn set_published(&mut self) {
        if let Agreements::OneRound(one_round) = self {
            one_round.set_published();
        }
    }

    /// Sets the known dead ranks. The set only grows.
    pub(crate) fn set_dead(&mut self, dead: &RankSet, sends: &mut Sends) {
        match self {
            Agreements::Dissemination(dissemination) => dissemination.set_dead(dead, sends),
            Agreements::OneRound(one_round) => one_round.dead = dead.clone(),
        }
    }

    /// Sets the drained ranks, which will send no more.
    pub(crate) fn set_drained(&mut self, drained: &RankSet) {
        if let Agreements::OneRound(one_round) = self {
            one_round.drained = drained.clone();
            one_round.advance();
        }
    }

    /// Handles a message. `bytes` begin after the identity of the communicator.
    pub(crate) fn receive(&mut self, from: usize, bytes: &[u8], sends: &mut Sends) {
        match self {
            Agreements::Dissemination(dissemination) => dissemination.receive(from, bytes, sends),
            Agreements::OneRound(one_round) => {
                // Messages that cannot be read are of an unknown version: ignore them.
                let _ = one_round.receive(from, bytes);
            }
        }
    }
}

impl OneRoundAgreements {
    fn new(communicator: u64, sequence: u8, size: usize, me: usize) -> OneRoundAgreements {
        OneRoundAgreements {
            communicator,
            sequence,
            size,
            me,
            dead: RankSet::default(),
            drained: RankSet::default(),
            entered: 0,
            current: None,
            early: Vec::new(),
        }
    }

    fn enter(&mut self, own: Contribution, sends: &mut Sends) {
        let number = self.entered;
        self.entered += 1;
        let gathered = AgreedValue::of(&own, &self.dead);
        let mut writer = Writer::new(wire::AGREEMENT, self.communicator, 80);
        writer.u8(self.sequence).u32(number);
        gathered.write(&mut writer);
        writer.set(&own.acked);
        sends.push((ALL, writer.done()));
        self.current = Some(OneRoundInstance {
            kind: own.kind,
            heard: [self.me].into_iter().collect(),
            gathered,
            acked: own.acked,
            is_published: false,
            decided: None,
            is_over: false,
        });
        for (from, of, value, acked) in std::mem::take(&mut self.early) {
            if of == number {
                self.add_contribution(from, &value, &acked);
            } else {
                self.early.push((from, of, value, acked));
            }
        }
    }

    fn set_published(&mut self) {
        if let Some(instance) = &mut self.current {
            instance.is_published = true;
        }
        self.advance();
    }

    fn receive(&mut self, from: usize, bytes: &[u8]) -> Option<()> {
        let mut reader = Reader::new(bytes);
        let (_sequence, number) = (reader.u8()?, reader.u32()?);
        let (value, acked) = (AgreedValue::read(&mut reader)?, reader.set()?);
        if number >= self.entered {
            self.early.push((from, number, value, acked));
        } else if number + 1 == self.entered {
            self.add_contribution(from, &value, &acked);
            self.advance();
        }
        Some(())
    }

    fn add_contribution(&mut self, from: usize, value: &AgreedValue, acked: &RankSet) {
        let Some(instance) = &mut self.current else { return };
        instance.heard.insert(from);
        instance.gathered.add(value);
        instance.gathered.dead.union_with(&value.dead);
        instance.acked = instance.acked.without(&instance.acked.without(acked));
    }

    fn missing(&self, instance: &OneRoundInstance) -> Option<usize> {
        (0..self.size).find(|&rank| !instance.heard.contains(rank) && !self.drained.contains(rank))
    }

    /// Decides if all contributions are here or will never come.
    fn advance(&mut self) {
        let Some(instance) = &self.current else { return };
        if !instance.is_published || instance.decided.is_some() || self.missing(instance).is_some()
        {
            return;
        }
        let Some(instance) = &mut self.current else { return };
        let mut value = instance.gathered.clone();
        for rank in (0..self.size).filter(|&rank| !instance.heard.contains(rank)) {
            value.dead.insert(rank);
        }
        value.unacked = value.dead.without(&instance.acked);
        instance.decided = Some(Arc::new(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rma::testing::Dice;
    use std::collections::VecDeque;

    fn own(rank: usize, instance: usize, acked: &RankSet) -> Contribution {
        let flags = !(1u64 << rank) ^ (instance as u64) << 40;
        Contribution {
            kind: AgreementKind::Agree,
            flags,
            id: rank as u64,
            acked: acked.clone(),
            place: None,
        }
    }

    /// Members without an engine. A contribution goes to all at once or to none; members die at any
    /// moment; each member learns of deaths at its own time; a dead member becomes drained once all
    /// its messages were received.
    fn run(seed: u64) {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let (size, instances) = (1 + dice.below(SIZE_MAX), 3);
        let none = RankSet::default();
        let mut members: Vec<Agreements> =
            (0..size).map(|me| Agreements::new(true, 7, 0, size, me, &none, &none)).collect();
        let mut channels = vec![vec![VecDeque::<Vec<u8>>::new(); size]; size];
        let (mut dead, mut known) = (RankSet::default(), vec![RankSet::default(); size]);
        let (mut unpublished, mut entered) = (vec![None; size], vec![0; size]);
        let mut may_die = dice.below(size);
        // All values that were ever returned, also by members that died.
        let mut returned: Vec<Vec<Arc<AgreedValue>>> = vec![Vec::new(); instances];
        let mut idle = 0;
        while idle < 5000 {
            idle += 1;
            let me = dice.below(size);
            if dead.contains(me) {
                continue;
            }
            if may_die > 0 && dice.below(60) == 0 {
                may_die -= 1;
                dead.insert(me);
                continue;
            }
            match dice.below(5) {
                0 if members[me].unfinished().is_none() && entered[me] < instances => {
                    let mut sends = Sends::new();
                    let acked =
                        if dice.below(2) == 0 { known[me].clone() } else { RankSet::default() };
                    members[me].enter(own(me, entered[me], &acked), &mut sends);
                    entered[me] += 1;
                    unpublished[me] = sends.pop().map(|(_, bytes)| bytes);
                    assert!(
                        members[me].take_decision().is_none(),
                        "seed {seed}: decided before it was out"
                    );
                }
                1 => {
                    if let Some(bytes) = unpublished[me].take() {
                        for to in (0..size).filter(|&to| to != me && !known[me].contains(to)) {
                            channels[me][to].push_back(bytes.clone());
                        }
                        members[me].set_published();
                        idle = 0;
                    }
                }
                2 => {
                    for rank in dead.iter().filter(|&rank| rank != me && dice.below(3) == 0) {
                        known[me].insert(rank);
                    }
                    members[me].set_dead(&known[me], &mut Sends::new());
                    if known[me].iter().all(|rank| channels[rank][me].is_empty()) {
                        members[me].set_drained(&known[me]);
                    }
                }
                3 => {
                    if members[me].unfinished().is_some()
                        && let Some(value) = members[me].take_decision()
                    {
                        returned[entered[me] - 1].push(value);
                        idle = 0;
                    }
                }
                _ => {
                    let from = dice.below(size);
                    if let Some(bytes) = channels[from][me].pop_front() {
                        members[me].receive(from, &bytes[wire::HEADER_LEN..], &mut Sends::new());
                        idle = 0;
                    }
                }
            }
        }
        for (instance, answers) in returned.iter().enumerate() {
            assert!(
                answers.windows(2).all(|two| two[0] == two[1]),
                "seed {seed}, {instance}: {answers:?}"
            );
        }
        let living: Vec<usize> = (0..size).filter(|&rank| !dead.contains(rank)).collect();
        assert!(
            returned[instances - 1].len() >= living.len(),
            "seed {seed}: {living:?} of {size} have no answer"
        );
        for (member, value) in living.iter().zip(&returned[instances - 1]) {
            assert_eq!(value.flags & (1 << member), 0, "seed {seed}: {member} contributed in vain");
        }
    }

    #[test]
    fn random_runs_without_an_engine_agree() {
        for seed in 0..2000 {
            run(seed);
        }
    }

    #[test]
    fn a_death_known_to_a_contributor_counts_despite_a_contribution_of_the_dead() {
        let none = RankSet::default();
        let mut members: Vec<Agreements> =
            (0..2).map(|me| Agreements::new(true, 7, 0, 2, me, &none, &none)).collect();
        let mut sends = Sends::new();
        members[1].enter(own(1, 0, &none), &mut sends);
        // Member 1 dies, and member 0 knows, before it calls.
        let dead: RankSet = [1].into_iter().collect();
        members[0].set_dead(&dead, &mut Sends::new());
        members[0].enter(own(0, 0, &none), &mut Sends::new());
        members[0].set_published();
        assert!(members[0].take_decision().is_none(), "what it sent may still come");
        assert_eq!(members[0].waits_for(), Some(1));
        members[0].receive(1, &sends[0].1[wire::HEADER_LEN..], &mut Sends::new());
        let value = members[0].take_decision().unwrap();
        assert_eq!((value.dead.to_vec(), value.unacked.to_vec()), (vec![1], vec![1]));
        assert_eq!(value.flags & 3, 0, "both contributed");
    }
}
