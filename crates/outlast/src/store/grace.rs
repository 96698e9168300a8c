//! Waiting until everyone who was inside an operation at some moment has left it, or is dead.
//!
//! Each actor has a counter in its member's segment, odd while it is inside an operation. Whoever wants to use
//! something again that others may have seen looks at all counters after it was taken away, and then, now and then, at
//! those that were odd. An operation that begins later cannot come to see it. No call waits for this: a member
//! that is stopped inside an operation keeps memory from being reused, and nothing else.

use super::layout::{ACTORS, ACTORS_USED, LATE};
use super::open::Inner;
use crate::engine::{Engine, Epoch, Error, MemberId, Operation, Pending, Time};
use std::time::Duration;

/// Such a wait, as it stands.
pub(super) struct Grace {
    /// What is not known yet, and who has not left yet.
    open: Vec<Question>,
    /// Whose late words have still to be looked at when all have left.
    then: Vec<MemberId>,
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
            About::Late | About::StillLate(_) => store.root(member) + LATE,
        };
        let ask = || store.job.start(Epoch::ANY, member, Operation::Load { offset });
        let result = store.job.poll(self.asked.get_or_insert_with(ask))?;
        self.asked = None;
        match result {
            Ok(done) => Some(Some(done.word())),
            Err(Error::Dead { .. }) => Some(None),
            // Asked again the next time.
            Err(_) => None,
        }
    }
}

impl Grace {
    /// Begins a wait for all who are inside an operation now.
    pub(super) fn begin(store: &Inner) -> Grace {
        let view = store.current_view();
        let open = view.living().map(|member| Question::new(member, About::Actors)).collect();
        // Where all members map the memory, an operation has happened or not when its call returns.
        let then = if store.job.is_direct() { Vec::new() } else { view.living().collect() };
        let mut grace = Grace { open, then, looks: 0, due: Time(0) };
        grace.is_over(store);
        grace
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
                    let actors = 0..(used as usize).min(ACTORS);
                    self.open.extend(actors.map(|actor| Question::new(member, About::Actor(actor))));
                }
                (About::Actor(actor), Some(counter)) if counter % 2 == 1 => {
                    question.about = About::Inside(actor, counter);
                    index += 1;
                    continue;
                }
                (About::Inside(_, before) | About::StillLate(before), Some(counter)) if counter == before => {
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
                // Whoever has left with a request that may still land has said so before.
                index = 0;
                self.open.extend(self.then.drain(..).map(|member| Question::new(member, About::Late)));
            }
        }
        self.open.is_empty()
    }
}
