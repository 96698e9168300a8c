//! The head word of a record, and the state word of a partition at a replica.
//! docs/protocol/placement.md shows both, and says how the protocols use them.

/// A head word: `config_number << 51 | stable << 50 | visits << 40 | offset / 16`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::store) struct Head(pub(in crate::store) u64);

const CONFIG_NUMBER_SHIFT: u32 = 51;

const STABLE: u64 = 1 << 50;

const VISITS_SHIFT: u32 = 40;

const VISITS_MASK: u64 = (1 << 10) - 1;

const OFFSET_MASK: u64 = (1 << 40) - 1;

/// The configuration number in the head word of a record that is being removed. The numbers of
/// configurations stay below it.
const REMOVED_CONFIG_NUMBER: u64 = (1 << 13) - 1;

/// The greatest configuration number.
pub(in crate::store) const CONFIG_NUMBER_MAX: u64 = REMOVED_CONFIG_NUMBER - 1;

impl Head {
    /// The head word of a record that is being removed. An operation that finds it looks the key up
    /// again.
    pub(in crate::store) const REMOVED: Head = Head(REMOVED_CONFIG_NUMBER << CONFIG_NUMBER_SHIFT);

    /// The head word that names the block at `offset`, a multiple of 16. Offset 0 names no block:
    /// the record has no value.
    pub(in crate::store) fn new(config_number: u64, offset: u64) -> Head {
        debug_assert!(
            config_number < REMOVED_CONFIG_NUMBER
                && offset.is_multiple_of(16)
                && offset >> 4 <= OFFSET_MASK
        );
        Head(config_number << CONFIG_NUMBER_SHIFT | offset >> 4)
    }

    /// The number of the configuration under which the head word was written.
    pub(in crate::store) fn config_number(self) -> u64 {
        self.0 >> CONFIG_NUMBER_SHIFT
    }

    /// Whether the version is known to be stable.
    pub(in crate::store) fn is_stable(self) -> bool {
        self.0 & STABLE != 0
    }

    /// This head word with the stable bit set.
    pub(in crate::store) fn stable(self) -> Head {
        Head(self.0 | STABLE)
    }

    /// The head word that names this block with another configuration number, without the stable
    /// bit, and with visit count 0.
    pub(in crate::store) fn with_config_number(self, config_number: u64) -> Head {
        Head(config_number << CONFIG_NUMBER_SHIFT | self.0 & OFFSET_MASK)
    }

    /// This head word with the next visit count: repair has visited the record. After the greatest
    /// count comes 0.
    pub(in crate::store) fn with_visit(self) -> Head {
        let visits = ((self.0 >> VISITS_SHIFT) + 1) & VISITS_MASK;
        Head(self.0 & !(VISITS_MASK << VISITS_SHIFT) | visits << VISITS_SHIFT)
    }

    /// The offset of the block, or `None` if the head word names no block.
    pub(in crate::store) fn offset(self) -> Option<u64> {
        let offset = (self.0 & OFFSET_MASK) << 4;
        (offset != 0).then_some(offset)
    }
}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stable = if self.is_stable() { " stable" } else { "" };
        write!(f, "Head({:?} config_number {}{stable})", self.offset(), self.config_number())
    }
}

/// How much of a partition a replica holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Phase {
    /// The replica has no index.
    Absent = 0,
    /// The replica has an index and some of the records.
    Filling = 1,
    /// The replica holds everything that is stable.
    Complete = 2,
    /// The replica has no index, and nothing of the partition can be salvaged. In all other
    /// respects this phase counts as absent.
    Lost = 3,
}

/// A state word: `skips << 32 | configuration << 2 | phase`.
///
/// For a complete replica the configuration is the number in which it became complete. For an
/// absent or filling replica it is the newest number that any member has entered, so that the swap
/// of a late repairer of an older configuration fails. The skips count how often a writer left out
/// this replica while it was filling and had no room. They make the swap of a repairer that had
/// already passed the skipped record fail, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct State(pub(in crate::store) u64);

const CONFIGURATION_MASK: u64 = (1 << 30) - 1;

const SKIPS_SHIFT: u32 = 32;

impl State {
    pub(in crate::store) fn new(phase: Phase, configuration: u64) -> State {
        State(configuration << 2 | phase as u64)
    }

    pub(in crate::store) fn phase(self) -> Phase {
        match self.0 & 3 {
            0 => Phase::Absent,
            1 => Phase::Filling,
            2 => Phase::Complete,
            _ => Phase::Lost,
        }
    }

    pub(in crate::store) fn configuration(self) -> u64 {
        self.0 >> 2 & CONFIGURATION_MASK
    }

    /// This state with an additional skip: a version was left out at the replica.
    pub(in crate::store) fn with_skip(self) -> State {
        State(self.0.wrapping_add(1 << SKIPS_SHIFT))
    }

    /// Whether the replica has no index.
    pub(in crate::store) fn is_absent(self) -> bool {
        matches!(self.phase(), Phase::Absent | Phase::Lost)
    }

    /// Whether the replica is filling in this configuration.
    pub(in crate::store) fn is_filling(self, configuration: u64) -> bool {
        self.phase() == Phase::Filling && self.configuration() == configuration
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_word_returns_the_fields_it_was_made_of() {
        let head = Head::new(4096, 0xab_cdef_0120);
        assert_eq!(
            (head.config_number(), head.offset(), head.is_stable()),
            (4096, Some(0xab_cdef_0120), false)
        );
        let head = head.stable();
        assert!(head.is_stable());
        assert_eq!(head.with_config_number(4097), Head::new(4097, 0xab_cdef_0120));
        let visited = head.with_visit();
        assert_eq!(
            (visited.config_number(), visited.offset(), visited.is_stable()),
            (4096, Some(0xab_cdef_0120), true)
        );
        assert_eq!(visited.with_config_number(4097), Head::new(4097, 0xab_cdef_0120));
        let counts = std::iter::successors(Some(head), |head| Some(head.with_visit()));
        let again = counts.skip(1).position(|visited| visited == head);
        assert_eq!(again, Some(1023));
        assert_eq!(Head::new(1, 0).offset(), None);
        assert_eq!(Head::REMOVED.offset(), None);
    }

    #[test]
    fn a_state_word_returns_the_fields_it_was_made_of() {
        for phase in [Phase::Absent, Phase::Filling, Phase::Complete, Phase::Lost] {
            let state = State::new(phase, 77);
            assert_eq!((state.phase(), state.configuration()), (phase, 77));
            let later = state.with_skip().with_skip();
            assert_eq!((later.phase(), later.configuration()), (phase, 77));
            assert_ne!(later, state.with_skip());
        }
    }
}
