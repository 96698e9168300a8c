//! Waiting until everyone who was inside an operation at some moment has left it, or is dead.
//!
//! Each actor has a counter in its member's segment, odd while it is inside an operation. Whoever wants to use
//! something again that others may have seen looks at all counters after it was taken away, and then, now and then, at
//! those that were odd. An operation that begins later cannot come to see it. No call waits for this: a member
//! that is stopped inside an operation keeps memory from being reused, and nothing else.

use super::layout::{ACTORS, ACTORS_USED};
use super::open::Inner;
use crate::engine::{Done, Engine, Epoch, Error, MemberId, Operation, Pending, Time};
use std::time::Duration;

/// Such a wait, as it stands.
pub(super) struct Grace {
    /// What is not known yet, and who has not left yet.
    open: Vec<Question>,
    /// The actor that is not waited for.
    own: (MemberId, usize),
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
}

impl Question {
    fn new(member: MemberId, about: About) -> Question {
        Question { member, about, asked: None }
    }

    /// The answer, if it has come; asks first, if that was not done. `Some(None)`: the member is dead.
    fn answer(&mut self, store: &Inner) -> Option<Option<u64>> {
        let member = self.member;
        let offset = match self.about {
            About::Actors => store.root(member) + ACTORS_USED,
            About::Actor(actor) | About::Inside(actor, _) => store.counter_word(member, actor),
        };
        let result = if store.job.is_direct() {
            store.job.load(Epoch::ANY, member, offset)
        } else {
            let ask = || store.job.start(Epoch::ANY, member, Operation::Load { offset });
            let result = store.job.poll(self.asked.get_or_insert_with(ask))?;
            self.asked = None;
            result.map(Done::word)
        };
        match result {
            Ok(word) => Some(Some(word)),
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
        let (view, me) = (store.current_view(), store.me());
        let mut grace = Grace { open: Vec::new(), own: (me, own), looks: 0, due: Time(0) };
        if store.job.is_direct() {
            for member in view.living() {
                grace.ask_directly(store, member);
            }
        } else {
            grace.open = view.living().map(|member| Question::new(member, About::Actors)).collect();
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
        for actor in (0..(used as usize).min(ACTORS)).filter(|&actor| (member, actor) != self.own) {
            match load(store.counter_word(member, actor)) {
                Some(counter) if counter % 2 == 0 => {}
                Some(counter) => self.open.push(Question::new(member, About::Inside(actor, counter))),
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

    /// Whether all of them have left. Never waits.
    pub(super) fn is_over(&mut self, store: &Inner) -> bool {
        let mut index = 0;
        while let Some(question) = self.open.get_mut(index) {
            let Some(answer) = question.answer(store) else {
                index += 1;
                continue;
            };
            let (member, about) = (question.member, question.about);
            match (about, answer) {
                (About::Actors, Some(used)) => {
                    let own = self.own;
                    let actors = (0..(used as usize).min(ACTORS)).filter(|&actor| (member, actor) != own);
                    self.open.extend(actors.map(|actor| Question::new(member, About::Actor(actor))));
                }
                (About::Actor(actor), Some(counter)) if counter % 2 == 1 => {
                    question.about = About::Inside(actor, counter);
                    index += 1;
                    continue;
                }
                (About::Inside(_, before), Some(counter)) if counter == before => {
                    index += 1;
                    continue;
                }
                _ => {}
            }
            self.open.swap_remove(index);
        }
        self.open.is_empty()
    }
}
