//! A short notation for histories, for all tests of the checkers.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use std::collections::HashMap;
use std::ops::Range;

use outlast_check::history::{
    Access, Actor, CallKind, History, Operation, Outcome, Value, Version,
};
use outlast_check::violation::{Violation, ViolationKind};

/// A history under construction. Actors are members with a single thread.
#[derive(Default)]
pub struct Scenario {
    operations: Vec<Operation>,
    sequences: HashMap<u32, u64>,
}

impl Scenario {
    pub fn new() -> Self {
        Self::default()
    }

    fn push(
        &mut self,
        member: u32,
        times: (u64, Option<u64>),
        outcome: Outcome,
        accesses: &[Access],
    ) -> &mut Self {
        let sequence = self.sequences.entry(member).or_default();
        let kind = if accesses.len() > 1 {
            CallKind::Transaction
        } else if accesses.iter().any(Access::changes) {
            CallKind::Put
        } else {
            CallKind::Get
        };
        self.operations.push(Operation {
            actor: Actor::new(member, 0),
            sequence: *sequence,
            kind,
            invoke_ns: times.0,
            return_ns: times.1,
            outcome,
            accesses: accesses.to_vec(),
        });
        *sequence += 1;
        self
    }

    /// An acknowledged operation of a member.
    pub fn ok(&mut self, member: u32, times: Range<u64>, accesses: &[Access]) -> &mut Self {
        self.push(member, (times.start, Some(times.end)), Outcome::Ok, accesses)
    }

    /// An operation of a member that failed without effect.
    pub fn failed(&mut self, member: u32, times: Range<u64>, accesses: &[Access]) -> &mut Self {
        self.push(member, (times.start, Some(times.end)), Outcome::Failed, accesses)
    }

    /// An operation of a member that timed out.
    pub fn timeout(&mut self, member: u32, times: Range<u64>, accesses: &[Access]) -> &mut Self {
        self.push(member, (times.start, Some(times.end)), Outcome::Unknown, accesses)
    }

    /// An operation of a member that never returned.
    pub fn died(&mut self, member: u32, invoke_ns: u64, accesses: &[Access]) -> &mut Self {
        self.push(member, (invoke_ns, None), Outcome::Unknown, accesses)
    }

    pub fn history(&self) -> History {
        History::new(self.operations.clone()).unwrap()
    }
}

/// A read of the `counter`-th version, with a value of that number.
pub fn r(key: &str, counter: u64) -> Access {
    let read = Access::read(key).at(Version::new(counter, 0));
    if counter == 0 { read } else { read.saw(Value::new(counter)) }
}

/// A write of the `counter`-th version, with a value of that number.
pub fn w(key: &str, counter: u64) -> Access {
    Access::write(key, Value::new(counter)).at(Version::new(counter, 0))
}

/// A read of a value with an unknown version.
pub fn rv(key: &str, value: u64) -> Access {
    Access::read(key).saw(Value::new(value))
}

/// A write of a value with an unknown version.
pub fn wv(key: &str, value: u64) -> Access {
    Access::write(key, Value::new(value))
}

/// The kinds of violations.
pub fn kinds(violations: &[Violation]) -> Vec<ViolationKind> {
    violations.iter().map(|violation| violation.kind).collect()
}
