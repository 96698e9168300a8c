//! Waiting until everyone who was inside an operation at some moment has left it, or is dead.
//!
//! Each participant has a counter in its member's segment, odd while it is inside an operation.
//! Whoever wants to use something again that others may have seen looks at all counters after it
//! was taken away, and then, now and then, at those that were odd. An operation that begins later
//! cannot come to see it. No call waits for this: a member that is stopped inside an operation
//! keeps memory from being reused, and nothing else.
//!
//! The dead are not waited for. What they have asked another member to do in its memory goes
//! nowhere once a request that knows of the death has come there; but those who reach that memory
//! by themselves wait until its owner is not in the middle of it.

use crate::engine::{Done, Epoch, Error, MemberId, Operation, Pending, Time};
use crate::store::operation::state::OperationState;
use crate::store::segment::layout::{
    PARTICIPANTS, PARTICIPANTS_USED, PIN_WORDS, PINS, PINS_SHIFT, STRAGGLERS,
};
use crate::store::segment::place::pin_word;
use std::time::Duration;

/// Such a wait, as it stands.
pub(in crate::store) struct GracePeriod {
    /// What is not known yet, and who has not left yet.
    open: Vec<Question>,
    /// The participant that is not waited for.
    own: (MemberId, usize),
    /// What has still to be asked when all have left.
    then: Vec<(MemberId, About)>,
    /// The blocks that are pinned; see `pin.rs`.
    pinned: Vec<u64>,
    /// How often a background has looked, and when it is to look again.
    looks: u32,
    due: Time,
}

struct Question {
    member: MemberId,
    about: About,
    asked: Option<Pending>,
}

#[derive(Clone, Copy)]
enum About {
    /// How many participants the member has.
    Participants,
    /// Whether this one is inside an operation.
    Participant(usize),
    /// Whether this one is still inside the operation with this number.
    Inside(usize, u64),
    /// Whether requests of the member that timed out may still land; see `late.rs`.
    Stragglers,
    /// Whether those may that may have been under way when the late word had this number.
    SameStragglers(u64),
    /// What the first slots of the member's table of pins hold.
    Pins(usize),
}

impl Question {
    fn new(member: MemberId, about: About) -> Question {
        Question { member, about, asked: None }
    }

    /// The answer, if it has come; asks first, if that was not done. `Some(None)`: the member is
    /// dead.
    fn answer(&mut self, store: &OperationState) -> Option<Option<Done>> {
        let member = self.member;
        let offset = match self.about {
            About::Participants => store.root(member) + PARTICIPANTS_USED,
            About::Participant(participant) | About::Inside(participant, _) => {
                store.counter_word(member, participant)
            }
            About::Stragglers | About::SameStragglers(_) => store.root(member) + STRAGGLERS,
            About::Pins(_) => store.root(member) + store.layout.pin(0),
        };
        let is_mapped = store.job.is_mapped();
        let result = match self.about {
            About::Pins(count) => {
                let operation = Operation::Get { offset, len: count * PIN_WORDS * 8 };
                let ask = || store.job.start(Epoch::ANY, member, operation);
                store.job.poll(self.asked.get_or_insert_with(ask))?
            }
            _ if is_mapped => store.job.load(Epoch::ANY, member, offset).map(Done::Word),
            _ => {
                let ask = || store.job.start(Epoch::ANY, member, Operation::Load { offset });
                store.job.poll(self.asked.get_or_insert_with(ask))?
            }
        };
        self.asked = None;
        match result {
            Ok(done) => Some(Some(done)),
            Err(Error::Dead { .. }) => Some(None),
            // Asked again the next time.
            Err(_) => None,
        }
    }
}

impl GracePeriod {
    /// Begins a wait for all who are inside an operation now.
    pub(in crate::store) fn begin(store: &OperationState) -> GracePeriod {
        GracePeriod::begin_without(store, PARTICIPANTS)
    }

    /// The same, but not for this participant of this member: its operation sees nothing any more
    /// of what is waited for.
    pub(in crate::store) fn begin_without(store: &OperationState, own: usize) -> GracePeriod {
        let (view, own) = (store.current_view(), (store.me(), own));
        let mut grace = GracePeriod {
            open: Vec::new(),
            own,
            then: Vec::new(),
            pinned: Vec::new(),
            looks: 0,
            due: Time(0),
        };
        if store.job.is_mapped() {
            for member in view.living() {
                grace.ask_mapped(store, member);
            }
            grace.ask_then();
        } else {
            grace.open =
                view.living().map(|member| Question::new(member, About::Participants)).collect();
            // Where all members map the memory, an operation has happened or not when its call
            // returns.
            grace.then = view.living().map(|member| (member, About::Stragglers)).collect();
            grace.is_over(store);
        }
        grace
    }

    /// Looks at all participants of a member where that takes no time: mostly nobody is inside, and
    /// nothing is to be noted.
    fn ask_mapped(&mut self, store: &OperationState, member: MemberId) {
        let load = |offset: u64| match store.job.load(Epoch::ANY, member, offset) {
            Ok(word) => Some(word),
            Err(Error::Dead { .. }) => Some(0),
            Err(_) => None,
        };
        let Some(used) = load(store.root(member) + PARTICIPANTS_USED) else {
            return self.open.push(Question::new(member, About::Participants));
        };
        let pins = ((used >> PINS_SHIFT) as usize).min(PINS);
        if pins > 0 {
            self.then.push((member, About::Pins(pins)));
        }
        for participant in (0..(used as u32 as usize).min(PARTICIPANTS))
            .filter(|&participant| (member, participant) != self.own)
        {
            match load(store.counter_word(member, participant)) {
                Some(counter) if counter % 2 == 0 => {}
                Some(counter) => {
                    self.open.push(Question::new(member, About::Inside(participant, counter)))
                }
                None => self.open.push(Question::new(member, About::Participant(participant))),
            }
        }
    }

    /// [`GracePeriod::is_over`] for a background, which runs whenever something has happened, the
    /// answer to a question included: it looks soon at first and then ever more seldom, since
    /// somebody may be stopped; otherwise when to look again.
    pub(in crate::store) fn is_over_or_due(&mut self, store: &OperationState) -> Result<(), Time> {
        let now = store.job.now();
        if now >= self.due {
            if self.is_over(store) {
                return Ok(());
            }
            self.looks += 1;
            self.due = now.after(Duration::from_millis(2 << self.looks.min(9)));
        }
        Err(self.due)
    }

    /// When all have left: whoever has left with a request that may still land, or a pin, has said
    /// so before.
    fn ask_then(&mut self) {
        if self.open.is_empty() {
            self.open
                .extend(self.then.drain(..).map(|(member, about)| Question::new(member, about)));
        }
    }

    /// Whether nothing at all is pinned, once all have left.
    pub(in crate::store) fn has_no_pins(&self) -> bool {
        self.pinned.is_empty()
    }

    /// Whether a block is pinned, once all have left: it must not be used yet.
    pub(in crate::store) fn is_pinned(&self, replica: MemberId, offset: u64) -> bool {
        !self.pinned.is_empty() && self.pinned.contains(&pin_word(replica, offset))
    }

    /// Whether all of them have left. Never waits.
    pub(in crate::store) fn is_over(&mut self, store: &OperationState) -> bool {
        let mut index = 0;
        while let Some(question) = self.open.get_mut(index) {
            let Some(answer) = question.answer(store) else {
                index += 1;
                continue;
            };
            let (member, about) = (question.member, question.about);
            let answer = match answer {
                Some(Done::Word(word)) => Some(word),
                Some(Done::Get(bytes)) => {
                    let words = bytes
                        .chunks_exact(8)
                        .map(|word| u64::from_ne_bytes(word.try_into().expect("8")));
                    self.pinned.extend(words.filter(|&word| word != 0));
                    None
                }
                _ => None,
            };
            match (about, answer) {
                (About::Participants, Some(used)) => {
                    let pins = ((used >> PINS_SHIFT) as usize).min(PINS);
                    if pins > 0 {
                        self.then.push((member, About::Pins(pins)));
                    }
                    let own = self.own;
                    let participants = (0..(used as u32 as usize).min(PARTICIPANTS))
                        .filter(|&participant| (member, participant) != own);
                    self.open.extend(
                        participants.map(|participant| {
                            Question::new(member, About::Participant(participant))
                        }),
                    );
                }
                (About::Participant(participant), Some(counter)) if counter % 2 == 1 => {
                    question.about = About::Inside(participant, counter);
                    index += 1;
                    continue;
                }
                (About::Inside(_, before) | About::SameStragglers(before), Some(counter))
                    if counter == before =>
                {
                    index += 1;
                    continue;
                }
                (About::Stragglers, Some(number)) if number % 2 == 1 => {
                    question.about = About::SameStragglers(number);
                    index += 1;
                    continue;
                }
                _ => {}
            }
            self.open.swap_remove(index);
            if self.open.is_empty() {
                index = 0;
                self.ask_then();
            }
        }
        // The dead were not asked: what they were about to change may be in the middle of being
        // changed for them.
        self.open.is_empty() && !store.job.is_serving_dead()
    }
}
