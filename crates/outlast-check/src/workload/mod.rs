//! Seeded random programs for the actors of a run.
//!
//! The program of an actor depends only on the seed, the actor and the [`Options`]: not on the
//! results of its calls, the other actors, or the version of any other crate. So a seed replays.
//! The random draws of a program, and their order, must not change.
//!
//! ```
//! use outlast_check::history::Actor;
//! use outlast_check::workload::{Options, Program};
//!
//! let options = Options::default();
//! let first: Vec<_> = Program::new(&options, 7, Actor::new(0, 0)).take(100).collect();
//! let again: Vec<_> = Program::new(&options, 7, Actor::new(0, 0)).take(100).collect();
//! let other: Vec<_> = Program::new(&options, 7, Actor::new(1, 0)).take(100).collect();
//! assert_eq!(first, again);
//! assert_ne!(first, other);
//! ```

mod random;

use crate::history::{Actor, Key};
use crate::value;

pub use random::Random;

/// How often each kind of call is made, relative to the other kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Reads.
    pub get: u32,
    /// Writes.
    pub put: u32,
    /// Conditional writes.
    pub put_if: u32,
    /// Deletions.
    pub delete: u32,
    /// Additions.
    pub add: u32,
    /// Waits for a newer version.
    pub wait: u32,
    /// Transactions.
    pub transaction: u32,
    /// Transfers between two accounts.
    pub transfer: u32,
    /// Moves of a task from a queue to another.
    pub steal: u32,
    /// Reads of all accounts, or all queues and tasks, at once.
    pub audit: u32,
    /// Reads of an account, a queue or a task.
    pub peek: u32,
}

impl Mix {
    /// No call at all, to build a mix on.
    pub const NOTHING: Mix = Mix {
        get: 0,
        put: 0,
        put_if: 0,
        delete: 0,
        add: 0,
        wait: 0,
        transaction: 0,
        transfer: 0,
        steal: 0,
        audit: 0,
        peek: 0,
    };
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            get: 35,
            put: 35,
            put_if: 8,
            delete: 3,
            add: 6,
            wait: 1,
            transaction: 12,
            ..Self::NOTHING
        }
    }
}

/// The options of the programs of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How often each kind of call is made.
    pub mix: Mix,
    /// Keys that all actors use, named `shared/N`.
    pub shared_keys: u32,
    /// Keys that a single actor writes, named `own/MEMBER/THREAD/N`. Other actors read them.
    pub private_keys: u32,
    /// Keys that hold numbers, named `count/N`.
    pub counters: u32,
    /// The percentage of calls that go to a shared key.
    pub shared_percent: u32,
    /// The lengths of values, each with its weight.
    pub lengths: Vec<(usize, u32)>,
    /// The most keys that a transaction touches.
    pub transaction_keys: u32,
    /// Accounts, named `account/N`; the sum of all accounts is zero.
    pub accounts: u32,
    /// Queues, named `queue/N`; each begins with [`QUEUE_TASKS`] tasks, `task/N`.
    pub queues: u32,
    /// How many members there are, so that a program can read the keys of other members.
    pub members: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mix: Mix::default(),
            shared_keys: 8,
            private_keys: 4,
            counters: 2,
            shared_percent: 60,
            lengths: vec![(0, 1), (8, 4), (24, 8), (64, 16), (100, 8), (1024, 4), (5000, 1)],
            transaction_keys: 4,
            accounts: 5,
            queues: 3,
            members: 4,
        }
    }
}

/// How many tasks a queue begins with.
pub const QUEUE_TASKS: u32 = 3;

/// What a conditional put expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// That the key is absent.
    Absent,
    /// The version that this actor saw last, or the result of a new get if it saw none.
    LastSeen,
}

impl Options {
    /// The accounts, or the queues and tasks, if the programs use them.
    pub fn special_keys(&self) -> Vec<Key> {
        let names = |kind: &'static str, count: u32| {
            (0..count).map(move |number| format!("{kind}/{number}"))
        };
        let accounts = if self.mix.transfer > 0 { self.accounts } else { 0 };
        let queues = if self.mix.steal > 0 { self.queues } else { 0 };
        let all = names("account", accounts)
            .chain(names("queue", queues))
            .chain(names("task", queues * QUEUE_TASKS));
        all.map(|name| Key::from(name.into_bytes())).collect()
    }
}

/// A step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionStep {
    /// Read the key.
    Get(Key),
    /// Write a value of this length.
    Put(Key, usize),
    /// Delete the key.
    Delete(Key),
}

/// What to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read the key.
    Get(Key),
    /// Write a value of this length.
    Put(Key, usize),
    /// Write a value of this length on a condition.
    PutIf(Key, usize, Expect),
    /// Delete the key.
    Delete(Key),
    /// Add to the number.
    Add(Key, i64),
    /// Wait for a newer version than this actor saw last, with a short deadline.
    Wait(Key),
    /// Run these steps as a transaction; a key is read before it is written, and written once.
    Transaction(Vec<TransactionStep>),
    /// Take this amount from the first account and give it to the second.
    Transfer(Key, Key, i64),
    /// Move a task from the first queue to the second; the task's own key names its queue.
    Steal(u32, u32),
    /// Read all accounts, if there are transfers, or all queues and tasks.
    Audit,
}

/// A call of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramCall {
    /// The sequence of the values that it writes: see [`value::fill`].
    pub sequence: u64,
    /// What to call.
    pub action: Action,
}

/// The endless program of an actor.
#[derive(Clone, Debug)]
pub struct Program {
    options: Options,
    actor: Actor,
    random: Random,
    count: u64,
}

impl Program {
    /// The program of this actor under this seed.
    ///
    /// # Panics
    /// If the options leave no key, no length, no member or no call to choose.
    pub fn new(options: &Options, seed: u64, actor: Actor) -> Self {
        assert!(
            options.shared_keys > 0 && options.private_keys > 0 && options.counters > 0,
            "no keys"
        );
        assert!(
            options.members > 0 && options.transaction_keys > 0,
            "no members or no transaction keys"
        );
        let stream = u64::from(actor.member) << 32 | u64::from(actor.thread);
        Self { options: options.clone(), actor, random: Random::stream(seed, stream), count: 0 }
    }

    /// The options of the programs of the run.
    pub fn options(&self) -> &Options {
        &self.options
    }

    fn call(&mut self) -> ProgramCall {
        let Mix { get, put, put_if, delete, add, wait, transaction, transfer, steal, audit, peek } =
            self.options.mix;
        let weights =
            [get, put, put_if, delete, add, wait, transaction, transfer, steal, audit, peek];
        let action = match self.random.weighted(&weights) {
            0 => Action::Get(self.readable_key()),
            1 => Action::Put(self.writable_key(), self.length()),
            2 => {
                let expect =
                    if self.random.percent(25) { Expect::Absent } else { Expect::LastSeen };
                Action::PutIf(self.writable_key(), self.length(), expect)
            }
            3 => Action::Delete(self.writable_key()),
            4 => {
                let counter = self.random.below(u64::from(self.options.counters));
                let delta = 1 + self.random.below(9) as i64;
                let delta = if self.random.percent(40) { -delta } else { delta };
                Action::Add(Key::from(format!("count/{counter}").into_bytes()), delta)
            }
            5 => Action::Wait(self.readable_key()),
            6 => self.transaction(),
            7 => {
                let (from, to) = self.two_of(self.options.accounts);
                let key = |number: u32| Key::from(format!("account/{number}").into_bytes());
                Action::Transfer(key(from), key(to), 1 + self.random.below(50) as i64)
            }
            8 => {
                let (victim, thief) = self.two_of(self.options.queues);
                Action::Steal(victim, thief)
            }
            9 => Action::Audit,
            _ => {
                let names = self.options.special_keys();
                Action::Get(names[self.random.below(names.len() as u64) as usize].clone())
            }
        };
        let sequence = value::sequence(self.actor, self.count);
        self.count += 1;
        ProgramCall { sequence, action }
    }

    /// Two different numbers below a bound of two or more.
    fn two_of(&mut self, bound: u32) -> (u32, u32) {
        let first = self.random.below(u64::from(bound)) as u32;
        let second = self.random.below(u64::from(bound) - 1) as u32;
        (first, if second < first { second } else { second + 1 })
    }

    fn transaction(&mut self) -> Action {
        let wanted = 1 + self.random.below(u64::from(self.options.transaction_keys));
        let mut keys: Vec<Key> = Vec::new();
        let mut steps = Vec::new();
        for _ in 0..wanted {
            let write = self.random.percent(60);
            let key = if write { self.writable_key() } else { self.readable_key() };
            if keys.contains(&key) {
                continue;
            }
            keys.push(key.clone());
            if !write || self.random.percent(60) {
                steps.push(TransactionStep::Get(key.clone()));
            }
            if write && self.random.percent(8) {
                steps.push(TransactionStep::Delete(key));
            } else if write {
                steps.push(TransactionStep::Put(key, self.length()));
            }
        }
        Action::Transaction(steps)
    }

    fn writable_key(&mut self) -> Key {
        if self.random.percent(self.options.shared_percent) {
            let number = self.random.below(u64::from(self.options.shared_keys));
            return Key::from(format!("shared/{number}").into_bytes());
        }
        self.private_key_of(self.actor)
    }

    fn readable_key(&mut self) -> Key {
        if self.random.percent(self.options.shared_percent) {
            return self.writable_key();
        }
        let member = self.random.below(u64::from(self.options.members)) as u32;
        self.private_key_of(Actor { member, ..self.actor })
    }

    fn private_key_of(&mut self, actor: Actor) -> Key {
        let number = self.random.below(u64::from(self.options.private_keys));
        Key::from(format!("own/{actor}/{number}").into_bytes())
    }

    fn length(&mut self) -> usize {
        let weights: Vec<u32> = self.options.lengths.iter().map(|&(_, weight)| weight).collect();
        self.options.lengths[self.random.weighted(&weights)].0
    }
}

impl Iterator for Program {
    type Item = ProgramCall;

    fn next(&mut self) -> Option<ProgramCall> {
        Some(self.call())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_stream_never_changes() {
        // The first outputs of xoshiro256** for the state 1, 2, 3, 4, as its authors' code gives
        // them.
        let mut random = Random { state: [1, 2, 3, 4] };
        assert_eq!([random.next(), random.next(), random.next()], [11520, 0, 1509978240]);
        // SplitMix64 from zero starts with this well-known number.
        assert_eq!(Random::new(0).state[0], 0xe220_a839_7b1d_cdaf);
        // The state of the generator after a thousand calls shows that the draws have not changed.
        let mut program = Program::new(&Options::default(), 1, Actor::new(2, 0));
        assert_eq!(
            program.next().map(|call| call.action),
            Some(Action::Get(Key::from("own/1/0/1")))
        );
        program.by_ref().take(999).for_each(drop);
        assert_eq!(program.random.next(), 17875959887074661816);
    }

    #[test]
    fn everything_asked_for_occurs() {
        let options = Options { members: 3, ..Options::default() };
        let mut kinds = HashSet::new();
        let mut sequences = HashSet::new();
        for call in Program::new(&options, 5, Actor::new(1, 0)).take(5000) {
            kinds.insert(std::mem::discriminant(&call.action));
            assert!(sequences.insert(call.sequence));
            if let Action::Put(key, length) = &call.action {
                let own = key.bytes().starts_with(b"own/1/0/");
                assert!(own || key.bytes().starts_with(b"shared/"));
                assert!(options.lengths.iter().any(|(allowed, _)| allowed == length));
            }
            if let Action::Transaction(steps) = &call.action {
                assert!(!steps.is_empty() && steps.len() <= 8);
            }
        }
        assert_eq!(kinds.len(), 7);
    }

    #[test]
    fn numbers_below_are_spread_evenly() {
        let mut random = Random::new(3);
        let mut counts = [0; 7];
        for _ in 0..70_000 {
            counts[random.below(7) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_500..10_500).contains(&count)), "{counts:?}");
    }

    #[test]
    fn a_weight_of_zero_is_never_chosen() {
        let mut random = Random::new(3);
        assert!((0..1000).all(|_| random.weighted(&[0, 5, 0, 1, 0]) % 2 == 1));
    }
}
