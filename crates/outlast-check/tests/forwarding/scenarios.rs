//! The scenarios: which members there are, what they call, and which of them may die.

use super::monitor::Call::{self, Add, Near, Put, Read};
use super::rule::Home::{self, Alone, Mate, Replica};
use super::rule::{Marks, REPLICAS, Scenario};

/// The primary, at first; the other replicas; the clients, where they are members of their own.
const PRIMARY: u8 = 1;
const SECOND: u8 = 1 << 1;
const THIRD: u8 = 1 << 2;
const FIRST_CLIENT: u8 = 1 << REPLICAS;
const SECOND_CLIENT: u8 = 2 << REPLICAS;

/// A scenario with two replicas, three blocks at each, no death and no timeout.
fn quiet(name: &'static str, clients: &[(Home, &[Call])]) -> Scenario {
    Scenario {
        name,
        replicas: 2,
        blocks: 3,
        clients: clients.iter().map(|(home, calls)| (*home, calls.to_vec())).collect(),
        deaths: Vec::new(),
        deaths_max: 0,
        impatient: 0,
        marks: Marks::Always,
        withdraws: false,
        declines: false,
        splits: false,
    }
}

/// A scenario in which one of these sets of members may die.
fn deadly(name: &'static str, clients: &[(Home, &[Call])], deaths: &[u8]) -> Scenario {
    Scenario { deaths: deaths.to_vec(), deaths_max: 1, ..quiet(name, clients) }
}

/// Each replica, the first client, and the primary with the first client.
const ANY: [u8; 4] = [PRIMARY, SECOND, FIRST_CLIENT, PRIMARY | FIRST_CLIENT];

/// The scenarios of the gate, which take some seconds together.
pub(crate) fn small() -> Vec<Scenario> {
    vec![
        quiet("three clients", &[(Alone, &[Add]), (Alone, &[Put(10)]), (Alone, &[Read])]),
        deadly("write and read", &[(Alone, &[Add]), (Alone, &[Read, Read])], &ANY),
        deadly("two writers", &[(Alone, &[Add]), (Alone, &[Add])], &ANY),
        deadly("write twice", &[(Alone, &[Add, Add]), (Alone, &[Read])], &ANY),
        Scenario {
            replicas: 3,
            ..deadly(
                "three replicas",
                &[(Alone, &[Add]), (Alone, &[Read])],
                &[PRIMARY, SECOND, THIRD, FIRST_CLIENT, PRIMARY | FIRST_CLIENT],
            )
        },
        Scenario {
            blocks: 2,
            ..quiet("two blocks", &[(Alone, &[Add, Add]), (Alone, &[Add, Add])])
        },
        Scenario {
            impatient: 1,
            ..quiet("timeout", &[(Alone, &[Put(10)]), (Alone, &[Add, Add, Read])])
        },
        Scenario {
            impatient: 1,
            ..deadly("timeout and death", &[(Alone, &[Put(10)]), (Alone, &[Add])], &ANY)
        },
        Scenario {
            marks: Marks::Maybe,
            ..deadly("unmarked", &[(Alone, &[Add]), (Alone, &[Add])], &[PRIMARY, FIRST_CLIENT])
        },
        Scenario {
            declines: true,
            ..deadly("declined", &[(Alone, &[Add]), (Alone, &[Add, Read])], &[PRIMARY])
        },
        Scenario {
            withdraws: true,
            ..deadly(
                "withdrawn",
                &[(Alone, &[Add]), (Alone, &[Add])],
                &[PRIMARY, SECOND, PRIMARY | FIRST_CLIENT],
            )
        },
        deadly("writer at the primary", &[(Replica(0), &[Add]), (Alone, &[Add, Read])], &[1, 2]),
        deadly("writer at the other", &[(Replica(1), &[Add, Add]), (Alone, &[Add])], &[1, 2]),
        Scenario {
            replicas: 3,
            ..quiet(
                "two near readers",
                &[(Alone, &[Add]), (Replica(1), &[Near]), (Replica(2), &[Near])],
            )
        },
        deadly("near reads", &[(Alone, &[Add]), (Replica(1), &[Read, Near, Near])], &ANY),
        Scenario {
            blocks: 2,
            deaths_max: 2,
            ..deadly(
                "writer, then primary",
                &[(Alone, &[Add]), (Replica(1), &[Add, Add, Near])],
                &[FIRST_CLIENT, PRIMARY],
            )
        },
        Scenario {
            blocks: 2,
            impatient: 1,
            ..deadly(
                "timeout, then primary",
                &[(Alone, &[Put(10)]), (Alone, &[Add, Add])],
                &[PRIMARY],
            )
        },
        Scenario {
            splits: true,
            blocks: 2,
            deaths_max: 2,
            ..deadly(
                "mate, writer, then primary",
                &[(Alone, &[Add]), (Mate(1), &[Add, Add, Read])],
                &[FIRST_CLIENT, PRIMARY],
            )
        },
        Scenario {
            splits: true,
            blocks: 2,
            ..deadly(
                "mapped mate",
                &[(Alone, &[Add]), (Mate(1), &[Add, Add])],
                &[FIRST_CLIENT, PRIMARY],
            )
        },
    ]
}

/// Larger scenarios, up to some ten million states each.
pub(crate) fn large() -> Vec<Scenario> {
    vec![
        deadly(
            "three clients and a death",
            &[(Alone, &[Add]), (Alone, &[Put(10)]), (Alone, &[Read])],
            &[PRIMARY, SECOND, FIRST_CLIENT, PRIMARY | FIRST_CLIENT],
        ),
        Scenario {
            impatient: 1,
            ..deadly(
                "timeout, and three calls after it",
                &[(Alone, &[Put(10)]), (Alone, &[Add, Add, Add])],
                &[PRIMARY],
            )
        },
        Scenario {
            deaths_max: 2,
            ..deadly(
                "death of the writer and of the primary",
                &[(Alone, &[Add]), (Alone, &[Add, Add, Read])],
                &[FIRST_CLIENT, PRIMARY],
            )
        },
        Scenario {
            blocks: 2,
            ..deadly("two blocks and a death", &[(Alone, &[Add, Add]), (Alone, &[Add, Add])], &ANY)
        },
        Scenario {
            deaths_max: 2,
            replicas: 3,
            ..deadly(
                "two deaths",
                &[(Alone, &[Add]), (Alone, &[Add])],
                &[PRIMARY, SECOND, THIRD, FIRST_CLIENT],
            )
        },
        Scenario {
            impatient: 3,
            blocks: 2,
            ..deadly(
                "timeouts of two writers",
                &[(Alone, &[Put(10)]), (Alone, &[Add]), (Alone, &[Add, Add])],
                &[PRIMARY],
            )
        },
        Scenario {
            impatient: 1,
            ..deadly(
                "timeout, and two calls after it",
                &[(Alone, &[Put(10)]), (Alone, &[Add, Add])],
                &[PRIMARY, FIRST_CLIENT],
            )
        },
        Scenario {
            withdraws: true,
            impatient: 1,
            replicas: 3,
            ..deadly(
                "withdrawn at three replicas",
                &[(Alone, &[Add]), (Alone, &[Add])],
                &[PRIMARY, SECOND, PRIMARY | FIRST_CLIENT],
            )
        },
        Scenario {
            impatient: 1,
            replicas: 3,
            ..deadly(
                "timeout at three replicas",
                &[(Alone, &[Put(10)]), (Alone, &[Add, Add])],
                &[PRIMARY, SECOND, FIRST_CLIENT],
            )
        },
        Scenario {
            marks: Marks::Maybe,
            impatient: 1,
            ..deadly(
                "near reads and a timeout",
                &[(Alone, &[Add]), (Replica(1), &[Read, Near]), (Alone, &[Add])],
                &[PRIMARY, FIRST_CLIENT, SECOND_CLIENT],
            )
        },
        Scenario {
            splits: true,
            blocks: 2,
            impatient: 1,
            ..deadly(
                "two mapped mates",
                &[(Alone, &[Add]), (Mate(1), &[Add, Add]), (Mate(1), &[Add])],
                &[FIRST_CLIENT, PRIMARY],
            )
        },
        Scenario {
            withdraws: true,
            declines: true,
            impatient: 1,
            marks: Marks::Maybe,
            deaths_max: 2,
            ..deadly(
                "all faults",
                &[(Alone, &[Add]), (Replica(1), &[Add, Near])],
                &[PRIMARY, SECOND, FIRST_CLIENT],
            )
        },
        Scenario {
            replicas: 3,
            blocks: 2,
            withdraws: true,
            declines: true,
            impatient: 1,
            marks: Marks::Maybe,
            deaths_max: 2,
            ..deadly(
                "all faults at three replicas",
                &[(Alone, &[Add]), (Replica(1), &[Add, Near])],
                &[PRIMARY, THIRD, FIRST_CLIENT],
            )
        },
        Scenario {
            splits: true,
            blocks: 2,
            withdraws: true,
            declines: true,
            impatient: 1,
            marks: Marks::Maybe,
            deaths_max: 2,
            ..deadly(
                "all faults and a mate",
                &[(Alone, &[Add, Add]), (Mate(1), &[Add, Read])],
                &[PRIMARY, FIRST_CLIENT],
            )
        },
    ]
}
