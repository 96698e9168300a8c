//! Waiting until everyone who was inside an operation at some moment has left it, or is dead.
//!
//! Each actor has a counter in its member's segment, odd while it is inside an operation. Whoever wants to use
//! something again that others may have seen looks at all counters after it was taken away, and then, now and then, at
//! those that were odd. An operation that begins later cannot come to see it. No call waits for this: a member
//! that is stopped inside an operation keeps memory from being reused, and nothing else.
//!
//! The dead are not waited for. What they have asked another member to do in its memory goes nowhere once a request that knows of
//! the death has come there; but those who reach that memory by themselves wait until its owner is not in the middle of it.

use super::layout::{ACTORS, ACTORS_USED, LATE, PIN_WORDS, PINS, PINS_SHIFT};
use super::open::Inner;
use super::pin::pin_word;
use crate::engine::{Done, Epoch, Error, MemberId, Operation, Pending, Time};
use std::time::Duration;

/// Such a wait, as it stands.
pub(super) struct Grace {
    /// What is not known yet, and who has not left yet.
    open: Vec<Question>,
    /// The actor that is not waited for.
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
    /// How many actors the member has.
    Actors,
    /// Whether this one is inside an operation.
    Actor(usize),
    /// Whether this one is still inside the operation with this number.
    Inside(usize, u64),
    /// Whether requests of the member that timed out may still land; see `late.rs`.
    Late,
    /// Whether those may that may have been under way when the late word had this number.
    StillLate(u64),
    /// What the first slots of the member's table of pins hold.
    Pins(usize),
}

impl Question {
    fn new(member: MemberId, about: About) -> Question {
        Question { member, about, asked: None }
    }

    /// The answer, if it has come; asks first, if that was not done. `Some(None)`: the member is dead.
    fn answer(&mut self, store: &Inner) -> Option<Option<Done>> {
        let member = self.member;
        let offset = match self.about {
            About::Actors => store.root(member) + ACTORS_USED,
            About::Actor(actor) | About::Inside(actor, _) => store.counter_word(member, actor),
            About::Late | About::StillLate(_) => store.root(member) + LATE,
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

impl Grace {
    /// Begins a wait for all who are inside an operation now.
    pub(super) fn begin(store: &Inner) -> Grace {
        Grace::begin_without(store, ACTORS)
    }

    /// The same, but not for this actor of this member: its operation sees nothing any more of what is waited for.
    pub(super) fn begin_without(store: &Inner, own: usize) -> Grace {
        let (view, own) = (store.current_view(), (store.me(), own));
        let mut grace = Grace {
            open: Vec::new(),
            own,
            then: Vec::new(),
            pinned: Vec::new(),
            looks: 0,
            due: Time(0),
        };
        if store.job.is_mapped() {
            for member in view.living() {
                grace.ask_directly(store, member);
            }
            grace.ask_then();
        } else {
            grace.open = view.living().map(|member| Question::new(member, About::Actors)).collect();
            // Where all members map the memory, an operation has happened or not when its call returns.
            grace.then = view.living().map(|member| (member, About::Late)).collect();
            grace.is_over(store);
        }
        grace
    }

    /// Looks at all actors of a member where that takes no time: mostly nobody is inside, and nothing is to be noted.
    fn ask_directly(&mut self, store: &Inner, member: MemberId) {
        let load = |offset: u64| match store.job.load(Epoch::ANY, member, offset) {
            Ok(word) => Some(word),
            Err(Error::Dead { .. }) => Some(0),
            Err(_) => None,
        };
        let Some(used) = load(store.root(member) + ACTORS_USED) else {
            return self.open.push(Question::new(member, About::Actors));
        };
        let pins = ((used >> PINS_SHIFT) as usize).min(PINS);
        if pins > 0 {
            self.then.push((member, About::Pins(pins)));
        }
        for actor in
            (0..(used as u32 as usize).min(ACTORS)).filter(|&actor| (member, actor) != self.own)
        {
            match load(store.counter_word(member, actor)) {
                Some(counter) if counter % 2 == 0 => {}
                Some(counter) => {
                    self.open.push(Question::new(member, About::Inside(actor, counter)))
                }
                None => self.open.push(Question::new(member, About::Actor(actor))),
            }
        }
    }

    /// [`Grace::is_over`] for a background, which runs whenever something has happened, the answer to a question included:
    /// it looks soon at first and then ever more seldom, since somebody may be stopped; otherwise when to look again.
    pub(super) fn is_over_or_due(&mut self, store: &Inner) -> Result<(), Time> {
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

    /// When all have left: whoever has left with a request that may still land, or a pin, has said so before.
    fn ask_then(&mut self) {
        if self.open.is_empty() {
            self.open
                .extend(self.then.drain(..).map(|(member, about)| Question::new(member, about)));
        }
    }

    /// Whether nothing at all is pinned, once all have left.
    pub(super) fn has_no_pins(&self) -> bool {
        self.pinned.is_empty()
    }

    /// Whether a block is pinned, once all have left: it must not be used yet.
    pub(super) fn is_pinned(&self, home: MemberId, offset: u64) -> bool {
        !self.pinned.is_empty() && self.pinned.contains(&pin_word(home, offset))
    }

    /// Whether all of them have left. Never waits.
    pub(super) fn is_over(&mut self, store: &Inner) -> bool {
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
                (About::Actors, Some(used)) => {
                    let pins = ((used >> PINS_SHIFT) as usize).min(PINS);
                    if pins > 0 {
                        self.then.push((member, About::Pins(pins)));
                    }
                    let own = self.own;
                    let actors = (0..(used as u32 as usize).min(ACTORS))
                        .filter(|&actor| (member, actor) != own);
                    self.open
                        .extend(actors.map(|actor| Question::new(member, About::Actor(actor))));
                }
                (About::Actor(actor), Some(counter)) if counter % 2 == 1 => {
                    question.about = About::Inside(actor, counter);
                    index += 1;
                    continue;
                }
                (About::Inside(_, before) | About::StillLate(before), Some(counter))
                    if counter == before =>
                {
                    index += 1;
                    continue;
                }
                (About::Late, Some(number)) if number % 2 == 1 => {
                    question.about = About::StillLate(number);
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
        // The dead were not asked: what they were about to change may be in the middle of being changed for them.
        self.open.is_empty() && !store.job.is_serving_dead()
    }
}
