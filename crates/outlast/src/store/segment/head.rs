//! The head word of a record, and the state word of a partition at one of its replicas; see
//! docs/protocol.md.

/// A head word: `config_number << 51 | stable << 50 | offset / 16`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::store) struct Head(pub(in crate::store) u64);

const CONFIG_NUMBER_SHIFT: u32 = 51;

const STABLE: u64 = 1 << 50;

const OFFSET_MASK: u64 = (1 << 40) - 1;

/// The config_number of a record that is being removed; configurations stay below it.
const REMOVED_CONFIG_NUMBER: u64 = (1 << 13) - 1;

/// The greatest number of a configuration.
pub(in crate::store) const CONFIG_NUMBER_MAX: u64 = REMOVED_CONFIG_NUMBER - 1;

impl Head {
    /// A record that is being removed: it must be looked up again.
    pub(in crate::store) const REMOVED: Head = Head(REMOVED_CONFIG_NUMBER << CONFIG_NUMBER_SHIFT);

    /// The head that names the block at `offset`, which is a multiple of 16; 0 is no block.
    pub(in crate::store) fn new(config_number: u64, offset: u64) -> Head {
        debug_assert!(
            config_number < REMOVED_CONFIG_NUMBER
                && offset.is_multiple_of(16)
                && offset >> 4 <= OFFSET_MASK
        );
        Head(config_number << CONFIG_NUMBER_SHIFT | offset >> 4)
    }

    /// The configuration under which it was written.
    pub(in crate::store) fn config_number(self) -> u64 {
        self.0 >> CONFIG_NUMBER_SHIFT
    }

    /// Whether it is known to be stable.
    pub(in crate::store) fn is_stable(self) -> bool {
        self.0 & STABLE != 0
    }

    /// The same, known to be stable.
    pub(in crate::store) fn stable(self) -> Head {
        Head(self.0 | STABLE)
    }

    /// The same block with another config_number, not known to be stable.
    pub(in crate::store) fn with_config_number(self, config_number: u64) -> Head {
        Head(
            config_number << CONFIG_NUMBER_SHIFT
                | self.0 & ((1 << CONFIG_NUMBER_SHIFT) - 1) & !STABLE,
        )
    }

    /// Where the block is; `None` if there is none.
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

/// What a replica has of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Phase {
    /// Nothing, not even an index.
    Absent = 0,
    /// An index, and some of the records.
    Filling = 1,
    /// Everything that is stable.
    Complete = 2,
    /// Nothing, and nothing can be salvaged; otherwise as absent.
    Lost = 3,
}

/// A state word: `omissions << 32 | configuration << 2 | phase`. The configuration is the one in
/// which the phase was reached, or, for the first two, the newest one that anyone has entered: a
/// late repairer of an older one loses its swap. The omissions count how often someone has left a
/// replica out that was filling and had no room: a repairer that had passed that record loses its
/// swap, too.
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

    /// The same, after something was left out there.
    pub(in crate::store) fn with_skip(self) -> State {
        State(self.0.wrapping_add(1 << SKIPS_SHIFT))
    }

    /// Whether the replica has no index.
    pub(in crate::store) fn is_absent(self) -> bool {
        matches!(self.phase(), Phase::Absent | Phase::Lost)
    }

    /// Whether it is filling in this configuration.
    pub(in crate::store) fn is_filling(self, configuration: u64) -> bool {
        self.phase() == Phase::Filling && self.configuration() == configuration
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_keeps_what_it_is_given() {
        let head = Head::new(4096, 0xab_cdef_0120);
        assert_eq!(
            (head.config_number(), head.offset(), head.is_stable()),
            (4096, Some(0xab_cdef_0120), false)
        );
        let head = head.stable();
        assert!(head.is_stable());
        assert_eq!(head.with_config_number(4097), Head::new(4097, 0xab_cdef_0120));
        assert_eq!(Head::new(1, 0).offset(), None);
        assert_eq!(Head::REMOVED.offset(), None);
    }

    #[test]
    fn a_state_keeps_what_it_is_given() {
        for phase in [Phase::Absent, Phase::Filling, Phase::Complete, Phase::Lost] {
            let state = State::new(phase, 77);
            assert_eq!((state.phase(), state.configuration()), (phase, 77));
            let later = state.with_skip().with_skip();
            assert_eq!((later.phase(), later.configuration()), (phase, 77));
            assert_ne!(later, state.with_skip());
        }
    }
}
