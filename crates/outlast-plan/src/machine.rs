//! The hierarchy of a machine, and a choice of how images are kept on it.

/// A level of the hierarchy, such as the nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Level {
    /// Its name.
    pub name: String,
    /// How many members an element of the level holds.
    pub size: u64,
    /// The mean time between failures of an element in seconds, if elements of this level fail.
    pub mtbf_s: Option<f64>,
    /// The time in seconds after which what a failed element held is whole again: detection,
    /// restoring and healing.
    pub back_s: f64,
}

/// A number of members in a hierarchy of elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    members: u64,
    levels: Vec<Level>,
}

/// How images are kept: `set` pieces, any `lose` of which may be gone, in elements of the level
/// with the index `apart` that are all different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The number of members that hold a piece of an image.
    pub set: u64,
    /// How many of them may be gone.
    pub lose: u64,
    /// The index of the level at which pieces are kept apart.
    pub apart: usize,
}

/// Why a plan is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The number of members is out of range.
    #[error("{0} members; there may be 2 to 16777216")]
    Members(u64),
    /// There is no level, or too many.
    #[error("{0} levels; there may be 1 to 6")]
    Levels(usize),
    /// The elements of a level do not divide into those of the level below.
    #[error(
        "an element of `{name}` holds {size} members, which is not a multiple of the {below} \
         members of an element of the level below it"
    )]
    Nesting {
        /// The level.
        name: String,
        /// Its size.
        size: u64,
        /// The size of the level below.
        below: u64,
    },
    /// The members do not fill the elements of a level.
    #[error("{members} members do not fill elements of `{name}` with {size} members each")]
    Filling {
        /// The level.
        name: String,
        /// Its size.
        size: u64,
        /// The number of members.
        members: u64,
    },
    /// Two levels have a common name.
    #[error("two levels have the name `{0}`")]
    Name(String),
    /// A time is not a positive number.
    #[error("a time of the level `{0}` is not positive and finite")]
    Time(String),
    /// The choice does not exist.
    #[error(
        "a set of {set} of which {lose} may be lost; a set has 2 to 256 members, and 1 to 3 of \
         them may be lost, fewer than the set has"
    )]
    Choice {
        /// The size of the set.
        set: u64,
        /// How many may be lost.
        lose: u64,
    },
    /// The set is larger than the machine.
    #[error("a set of {set} members does not fit into {members} members")]
    TooFew {
        /// The size of the set.
        set: u64,
        /// The number of members.
        members: u64,
    },
    /// There are too many combinations of elements above the level `apart` to count.
    #[error(
        "a set of {set} of which {lose} may be lost has too many combinations of elements above \
         the level at which it is apart; choose a smaller set"
    )]
    TooMany {
        /// The size of the set.
        set: u64,
        /// How many may be lost.
        lose: u64,
    },
}

impl Machine {
    /// A machine of so many members; the levels are given from the innermost.
    ///
    /// # Errors
    ///
    /// [`PlanError`] if the levels are not a hierarchy, or a time is not positive.
    pub fn new(members: u64, levels: Vec<Level>) -> Result<Machine, PlanError> {
        if !(2..=1 << 24).contains(&members) {
            return Err(PlanError::Members(members));
        }
        if !(1..=6).contains(&levels.len()) {
            return Err(PlanError::Levels(levels.len()));
        }
        let mut below = 1;
        for (index, level) in levels.iter().enumerate() {
            let name = || level.name.clone();
            if level.size == 0 || !level.size.is_multiple_of(below) {
                return Err(PlanError::Nesting { name: name(), size: level.size, below });
            }
            if !members.is_multiple_of(level.size) {
                return Err(PlanError::Filling { name: name(), size: level.size, members });
            }
            if levels[..index].iter().any(|other| other.name == level.name) {
                return Err(PlanError::Name(name()));
            }
            let is_time = |time: f64| time.is_finite() && time > 0.0;
            if !is_time(level.back_s) || level.mtbf_s.is_some_and(|mtbf_s| !is_time(mtbf_s)) {
                return Err(PlanError::Time(name()));
            }
            below = level.size;
        }
        Ok(Machine { members, levels })
    }

    /// The number of members.
    pub fn members(&self) -> u64 {
        self.members
    }

    /// The levels, from the innermost.
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// The number of elements of a level.
    pub fn elements(&self, level: usize) -> u64 {
        self.members / self.levels[level].size
    }

    /// The rate at which elements of any level fail, per second.
    pub fn failure_rate(&self) -> f64 {
        let rate = |(index, level): (usize, &Level)| {
            level.mtbf_s.map_or(0.0, |mtbf_s| self.elements(index) as f64 / mtbf_s)
        };
        self.levels.iter().enumerate().map(rate).sum()
    }

    /// The mean time in seconds after which what a failed element held is whole again.
    pub fn mean_back_s(&self) -> f64 {
        let part = |(index, level): (usize, &Level)| {
            level.mtbf_s.map_or(0.0, |mtbf_s| self.elements(index) as f64 / mtbf_s * level.back_s)
        };
        let parts: f64 = self.levels.iter().enumerate().map(part).sum();
        if parts == 0.0 { 0.0 } else { parts / self.failure_rate() }
    }

    /// The level at which the sets of a choice are apart in fact: the highest level up to `apart`
    /// that has an element for each piece. `None` stands for members, if even the innermost level
    /// has too few elements.
    pub fn apart_in_fact(&self, choice: Choice) -> Option<usize> {
        (0..=choice.apart).rev().find(|&level| self.elements(level) >= choice.set)
    }

    /// # Errors
    ///
    /// [`PlanError`] if the choice does not fit the machine.
    pub(crate) fn check(&self, choice: Choice) -> Result<(), PlanError> {
        let Choice { set, lose, .. } = choice;
        if !(2..=256).contains(&set) || !(1..=3).contains(&lose) || lose >= set {
            return Err(PlanError::Choice { set, lose });
        }
        if set > self.members {
            return Err(PlanError::TooFew { set, members: self.members });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_no_hierarchy_is_refused() {
        let level =
            |name: &str, size| Level { name: name.into(), size, mtbf_s: Some(1.0), back_s: 1.0 };
        let made = |members, levels| Machine::new(members, levels);
        assert!(made(64, vec![level("process", 1), level("node", 8)]).is_ok());
        assert!(matches!(made(1, vec![level("process", 1)]), Err(PlanError::Members(1))));
        assert!(matches!(made(8, vec![]), Err(PlanError::Levels(0))));
        assert!(matches!(
            made(48, vec![level("node", 8), level("rack", 12)]),
            Err(PlanError::Nesting { size: 12, below: 8, .. })
        ));
        assert!(matches!(made(12, vec![level("node", 8)]), Err(PlanError::Filling { .. })));
        assert!(matches!(
            made(64, vec![level("node", 8), level("node", 16)]),
            Err(PlanError::Name(_))
        ));
        let endless = Level { back_s: f64::INFINITY, ..level("node", 8) };
        assert!(matches!(made(64, vec![endless]), Err(PlanError::Time(_))));
    }

    #[test]
    fn a_choice_that_does_not_fit_is_refused() {
        let node = Level { name: "node".into(), size: 2, mtbf_s: None, back_s: 1.0 };
        let machine = Machine::new(16, vec![node]).expect("a machine");
        let check = |set, lose| machine.check(Choice { set, lose, apart: 0 });
        assert_eq!(check(8, 1), Ok(()));
        assert!(matches!(check(1, 1), Err(PlanError::Choice { .. })));
        assert!(matches!(check(3, 3), Err(PlanError::Choice { .. })));
        assert!(matches!(check(8, 4), Err(PlanError::Choice { .. })));
        assert!(matches!(check(17, 1), Err(PlanError::TooFew { .. })));
        assert_eq!(machine.apart_in_fact(Choice { set: 8, lose: 1, apart: 0 }), Some(0));
        assert_eq!(machine.apart_in_fact(Choice { set: 9, lose: 1, apart: 0 }), None);
    }
}
