//! Grace periods: waiting until every operation that was in flight at some moment has ended, or its
//! member is dead.
//!
//! Each participant has an operation counter in its member's segment, odd while an operation is in
//! flight. A member that wants to reuse a block first makes it unreachable, then reads all counters
//! once, and then polls the counters that were odd. An operation that begins later cannot reach the
//! block. No call waits for a grace period: a member that is stopped inside an operation keeps
//! memory from being reused, and delays nothing else.
//!
//! Dead members are not waited for. A request of a dead member is dropped once its target has
//! learned of the death. Members that map the target's memory directly must also wait until no
//! member of their node is executing a request of a dead member.
//!
//! When all these operations have ended, the grace period reads the straggler words (over a
//! network), and the pin tables. An operation that ends with a straggler or a pin has recorded it
//! before its counter became even. docs/protocol/memory.md has the reasons.

use crate::engine::{Done, Epoch, Error, MemberId, Operation, Pending, Time};
use crate::store::operation::state::OperationState;
use crate::store::operation::stragglers::have_landed;
use crate::store::segment::layout::{
    PARTICIPANTS, PARTICIPANTS_USED, PIN_WORDS, PINS, PINS_SHIFT, STRAGGLERS,
};
use crate::store::segment::place::pin_word;
use std::time::Duration;

/// The longest pause between two looks of the background.
const PAUSE_MAX: Duration = Duration::from_millis(1024);

/// A grace period that has begun.
pub(in crate::store) struct GracePeriod {
    /// The words that are not read yet, and the operations that have not ended yet.
    open: Vec<Question>,
    /// The participant that is not waited for.
    own: (MemberId, usize),
    /// What is read when all operations have ended.
    then: Vec<(MemberId, About)>,
    /// The blocks that are pinned, as words of the pin tables; see `memory/pins.rs`.
    pinned: Vec<u64>,
    /// How often the background has checked.
    looks: u32,
    /// When the background is to check again.
    due: Time,
}

/// A word, or a pin table, that is to be read from a member.
struct Question {
    member: MemberId,
    about: About,
    asked: Option<Pending>,
}

/// What a question asks for.
#[derive(Clone, Copy)]
enum About {
    /// How many participants and pins the member has.
    Participants,
    /// Whether this participant has an operation in flight.
    Participant(usize),
    /// Whether the operation of this participant with this number is still in flight.
    Inside(usize, u64),
    /// Whether a straggler of the member may exist; see `stragglers.rs`.
    Stragglers,
    /// Whether a straggler may still exist that may have existed when the straggler word had this
    /// number.
    SameStragglers(u64),
    /// The contents of the first slots of the member's pin table.
    Pins(usize),
}

impl Question {
    fn new(member: MemberId, about: About) -> Question {
        Question { member, about, asked: None }
    }

    /// The answer, if it has arrived. Sends the request first, if that was not done. `Some(None)`
    /// means that the member is dead.
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
            // The next call sends the request again.
            Err(_) => None,
        }
    }
}

impl GracePeriod {
    /// Begins a grace period for all operations that are in flight now.
    pub(in crate::store) fn begin(store: &OperationState) -> GracePeriod {
        GracePeriod::begin_without(store, PARTICIPANTS)
    }

    /// Begins a grace period that does not wait for this participant of this member: its operation
    /// cannot reach the retired blocks any more.
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
            // Only requests leave stragglers. Where all members map the memory, an operation on it
            // has taken effect or never will when its call returns.
            grace.then = view.living().map(|member| (member, About::Stragglers)).collect();
            grace.is_over(store);
        }
        grace
    }

    /// Reads the counters of all participants of a member in mapped memory, which takes no time.
    /// Mostly no operation is in flight, and nothing is added to `open`.
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

    /// [`GracePeriod::is_over`] for the background, which runs after every event, the answer to a
    /// question included. It checks soon at first and then ever more seldom, since a member may be
    /// stopped inside an operation. If the grace period is not over, returns when to check again.
    pub(in crate::store) fn is_over_or_due(&mut self, store: &OperationState) -> Result<(), Time> {
        self.is_over_or_due_after(store, Duration::from_millis(4))
    }

    /// [`GracePeriod::is_over_or_due`] with this pause after the first look.
    pub(in crate::store) fn is_over_or_due_after(
        &mut self,
        store: &OperationState,
        first: Duration,
    ) -> Result<(), Time> {
        let now = store.job.now();
        if now >= self.due {
            if self.is_over(store) {
                return Ok(());
            }
            self.due = now.after((first * (1 << self.looks.min(20))).min(PAUSE_MAX));
            self.looks += 1;
        }
        Err(self.due)
    }

    /// When all operations have ended, asks for stragglers and pins: an operation that ends with a
    /// straggler or a pin has recorded it before.
    fn ask_then(&mut self) {
        if self.open.is_empty() {
            self.open
                .extend(self.then.drain(..).map(|(member, about)| Question::new(member, about)));
        }
    }

    /// Whether no block at all is pinned. Valid when the grace period is over.
    pub(in crate::store) fn has_no_pins(&self) -> bool {
        self.pinned.is_empty()
    }

    /// Whether a block is pinned and must not be reused yet. Valid when the grace period is over.
    pub(in crate::store) fn is_pinned(&self, replica: MemberId, offset: u64) -> bool {
        !self.pinned.is_empty() && self.pinned.contains(&pin_word(replica, offset))
    }

    /// Whether the grace period is over. Never waits.
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
                (About::Inside(_, before), Some(counter)) if counter == before => {
                    index += 1;
                    continue;
                }
                (About::SameStragglers(before), Some(number)) if !have_landed(before, number) => {
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
        // Dead members were not asked: a member of this node may still be executing a request of a
        // dead member.
        self.open.is_empty() && !store.job.is_serving_dead()
    }
}
