//! Looks at every state that a scenario can reach, depth first, so that the steps to a violation
//! are at hand. A state is recognized by a hash of 128 bits.

use super::rule::{Label, Model, State};
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// What a search has found.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) states: usize,
    /// How many states have no further step.
    pub(crate) ends: usize,
    /// How many runs were cut off, because a client had made too many versions.
    pub(crate) cut: usize,
    /// Whether every state was looked at.
    pub(crate) is_whole: bool,
    /// What was violated, and the steps that lead there.
    pub(crate) violation: Option<(&'static str, Vec<Label>)>,
}

/// Two hashes of 64 bits over the state.
#[derive(Default)]
struct Digest(u64, u64);

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word) ^ (chunk.len() as u64) << 56);
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte) + 1);
    }

    fn write_u64(&mut self, word: u64) {
        // The multipliers are odd numbers without a pattern; the rotations differ.
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e6c_63d0_876a_68ad);
        self.1 = (self.1.rotate_left(41) ^ word).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }
}

fn digest(state: &State) -> u128 {
    let mut digest = Digest::default();
    state.hash(&mut digest);
    let mix = |word: u64| {
        let word = (word ^ word >> 32).wrapping_mul(0xaf25_1af3_b0f0_25b5);
        word ^ word >> 29
    };
    u128::from(mix(digest.0)) << 64 | u128::from(mix(digest.1))
}

/// Takes a digest for its own hash.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only digests are hashed");
    }

    fn write_u128(&mut self, digest: u128) {
        self.0 = digest as u64;
    }
}

/// Looks at all states, or at the first `states_max` of them.
pub(crate) fn explore(model: &Model<'_>, states_max: usize) -> Report {
    let mut seen: HashSet<u128, BuildHasherDefault<Identity>> = HashSet::default();
    let mut report = Report { states: 1, ends: 0, cut: 0, is_whole: true, violation: None };
    let first = model.first();
    seen.insert(digest(&first));
    let mut stack = vec![model.steps(&first)];
    let mut path: Vec<Label> = Vec::new();
    while let Some(steps) = stack.last_mut() {
        let Some((label, state, violated)) = steps.pop() else {
            stack.pop();
            path.pop();
            continue;
        };
        if let Some(what) = violated.or_else(|| model.violated(&state)) {
            path.push(label);
            report.violation = Some((what, path));
            report.is_whole = false;
            return report;
        }
        if !seen.insert(digest(&state)) {
            continue;
        }
        report.states += 1;
        if report.states >= states_max {
            report.is_whole = false;
            return report;
        }
        if model.is_cut(&state) {
            report.cut += 1;
            continue;
        }
        let next = model.steps(&state);
        report.ends += usize::from(next.is_empty());
        path.push(label);
        stack.push(next);
    }
    report
}
