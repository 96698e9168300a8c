//! The list of the scenarios. Each file has the bodies for a subject.

mod activities;
mod crowd;
mod death;
mod memory;
mod messages;
mod one_sided;
mod stopped;
mod view;
mod waiting;

use crate::Need::{Fence, Growth, Kill, Launcher, Spares, Steps, Stop};
use crate::Scenario;
pub(crate) use crowd::LAUNCHER;
use std::time::Duration;

/// The limit of scenarios that wait on purpose or start many processes.
const LONG: Duration = Duration::from_secs(120);

/// All scenarios, the simplest first: if a basic promise is broken, the first failure shows it.
pub(crate) static ALL: &[Scenario] = &[
    Scenario::new(
        "job-of-one",
        "A member alone does everything with itself.",
        1,
        one_sided::job_of_one,
    ),
    Scenario::new(
        "one-sided-pairs",
        "Every member puts, gets, loads, compares and swaps, and adds at every member, itself \
         included.",
        4,
        one_sided::pairs,
    ),
    Scenario::new(
        "one-sided-order",
        "Operations started on a target take effect in order: a reader that sees the flag sees \
         the puts before it.",
        3,
        one_sided::order,
    ),
    Scenario::new(
        "one-sided-in-flight",
        "Many started operations complete in any order of polling, and forgotten operations do \
         no harm.",
        3,
        one_sided::in_flight,
    ),
    Scenario::new(
        "atomics-add-up",
        "Fetch-and-add and compare-and-swap of all members on shared words lose and repeat \
         nothing.",
        4,
        one_sided::atomics_add_up,
    ),
    Scenario::new(
        "words-are-not-torn",
        "Readers of a range of words that others rewrite see whole words.",
        4,
        one_sided::words_are_not_torn,
    ),
    Scenario::new(
        "words-are-not-torn-unaligned",
        "Words inside a range are whole also when the range begins and ends inside other words.",
        4,
        one_sided::words_are_not_torn_unaligned,
    ),
    Scenario::new(
        "messages-in-order",
        "Messages of many sizes arrive once, unchanged and in order, on each port by itself.",
        4,
        messages::in_order,
    ),
    Scenario::new(
        "messages-large-and-empty",
        "The longest messages and empty messages mix, between all pairs.",
        3,
        messages::large_and_empty,
    ),
    Scenario::new(
        "messages-to-a-busy-receiver",
        "Far more messages than any buffer holds reach a receiver that computes first.",
        3,
        messages::busy_receiver,
    ),
    Scenario::new(
        "messages-to-a-sleeping-receiver",
        "The background takes messages in without delay while the program sleeps.",
        3,
        messages::sleeping_receiver,
    ),
    Scenario::new(
        "messages-mutual-flood",
        "All members send very much to all others, and receive when there is no room: all \
         messages arrive.",
        3,
        messages::mutual_flood,
    ),
    Scenario::new(
        "messages-to-a-member-that-never-receives",
        "A member holds a bounded number of bytes of a sender for a port; further messages are \
         refused, or end with a timeout that names the member, and other ports and senders go on.",
        3,
        messages::to_a_member_that_never_receives,
    )
    .time_limit(Duration::from_secs(2)),
    Scenario::new(
        "bell-and-park",
        "A bell that has rung ends a park at once; without a ring the park lasts until its \
         time, without a busy loop.",
        2,
        waiting::bell_and_park,
    ),
    Scenario::new(
        "no-lost-wakeups",
        "Tokens, messages and many ringers at once never leave a member asleep.",
        3,
        waiting::no_lost_wakeups,
    ),
    Scenario::new(
        "grow-while-others-read",
        "A segment grows step by step while others read and write it; new bytes are zero and \
         reachable at once.",
        3,
        memory::grow_while_others_read,
    )
    .needs(&[Growth]),
    Scenario::new(
        "out-of-memory",
        "Growth beyond the limit is an error that changes nothing, and the segment still works \
         and grows.",
        2,
        memory::out_of_memory,
    )
    .needs(&[Growth])
    .segment_limit(4 << 20),
    Scenario::new(
        "bad-input",
        "Each range out of bounds, unaligned word, unknown member and too long message is an \
         error.",
        2,
        memory::bad_input,
    ),
    Scenario::new(
        "activities",
        "Several activities of a member work, wait for each other and end, all at once.",
        2,
        activities::several,
    ),
    Scenario::new(
        "services",
        "Services answer others and run by the clock while the program computes without a call.",
        3,
        activities::services,
    ),
    Scenario::new(
        "operations-after-a-death",
        "Once the view has a death, every operation on the dead member returns Dead, and all \
         else goes on.",
        3,
        death::operations_after,
    )
    .killed(1)
    .needs(&[Kill]),
    Scenario::new(
        "operations-around-a-death",
        "Operations of each kind in a loop while their target dies succeed or return Dead, and \
         none waits for ever.",
        4,
        death::operations_around,
    )
    .killed(1)
    .needs(&[Kill, Steps]),
    Scenario::new(
        "operations-pending-at-a-death",
        "Operations started before the death of their target, not yet waited for, succeed or \
         return Dead.",
        3,
        death::operations_pending,
    )
    .killed(1)
    .needs(&[Kill]),
    Scenario::new(
        "writer-dies-mid-put",
        "Writers that die at any step leave each word old or new, never torn, and nothing \
         moves after the notice.",
        6,
        death::writers_die_mid_put,
    )
    .killed(5)
    .needs(&[Kill, Steps]),
    Scenario::new(
        "adder-dies-mid-add",
        "A word operation of a member that dies took effect or did not; all operations of the \
         others count.",
        5,
        death::adders_die,
    )
    .killed(2)
    .needs(&[Kill, Steps]),
    Scenario::new(
        "messages-of-the-dead",
        "The messages of a member that died arrive whole and in order, perhaps after the notice.",
        3,
        messages::of_the_dead,
    )
    .killed(1)
    .needs(&[Kill]),
    Scenario::new(
        "sender-dies-mid-message",
        "Senders that die inside long messages leave the receiver's messages from the others \
         intact.",
        5,
        messages::sender_dies,
    )
    .killed(2)
    .needs(&[Kill, Steps]),
    Scenario::new(
        "receiver-dies-in-a-flood",
        "Senders to a member that dies without receiving go on, or are told that it is dead.",
        3,
        messages::receiver_dies,
    )
    .killed(1)
    .needs(&[Kill]),
    Scenario::new("lowest-dies", "The death of member 0 is like any other.", 4, death::lowest)
        .killed(1)
        .needs(&[Kill, Steps]),
    Scenario::new("two-deaths-at-once", "Two members die at once.", 5, death::two_at_once)
        .killed(2)
        .needs(&[Kill]),
    Scenario::new("all-but-one-die", "The last member goes on alone.", 5, death::all_but_one)
        .killed(4)
        .needs(&[Kill, Steps]),
    Scenario::new(
        "death-while-parked",
        "A death wakes survivors that only sleep and never communicated with the victim.",
        4,
        death::while_parked,
    )
    .killed(1)
    .needs(&[Kill]),
    Scenario::new(
        "ends-without-leaving",
        "A member that only ends, with status 0, is dead and did not leave.",
        3,
        death::deserter,
    ),
    Scenario::new(
        "view-rules",
        "Members die in turn: views only grow, follow from the dead alone, and become equal.",
        6,
        view::rules,
    )
    .spares(2)
    .killed(4)
    .needs(&[Kill, Spares]),
    Scenario::new(
        "stale-is-refused",
        "After a death, operations of the older view are refused and change nothing.",
        3,
        view::stale_is_refused,
    )
    .killed(1)
    .needs(&[Kill]),
    Scenario::new(
        "past-is-refused",
        "A member that knows of a death refuses operations that others still start in the \
         epoch before it.",
        4,
        view::past_is_refused,
    )
    .killed(1)
    .needs(&[Kill]),
    Scenario::new(
        "epoch-before-action",
        "A member that is told of a death, by message or by word, has the epoch already.",
        4,
        view::epoch_before_action,
    )
    .killed(1)
    .needs(&[Kill]),
    Scenario::new(
        "spares-activated",
        "Spares take the places of the dead in order; dead spares are skipped.",
        3,
        view::spares_activated,
    )
    .spares(3)
    .killed(4)
    .needs(&[Kill, Spares]),
    Scenario::new(
        "leaving",
        "A member that leaves is seen as left and not as killed, and all its later calls are \
         refused.",
        4,
        view::leaving,
    )
    .killed(1)
    .needs(&[Kill]),
    Scenario::new(
        "fence-kills-the-living",
        "A fenced member is dead in the view of each member that fenced it, even if all fence \
         it at once.",
        4,
        death::fence_living,
    )
    .killed(1)
    .needs(&[Fence]),
    Scenario::new("fence-oneself", "A member that fences itself dies.", 3, death::fence_oneself)
        .killed(1)
        .needs(&[Fence]),
    Scenario::new(
        "stopped-is-not-dead",
        "A stopped member is not declared dead; when it resumes, all goes on.",
        3,
        stopped::is_not_dead,
    )
    .needs(&[Stop]),
    Scenario::new(
        "stopped-is-not-dead-slow",
        "As stopped-is-not-dead, stopped for 10 seconds.",
        3,
        stopped::is_not_dead_slow,
    )
    .needs(&[Stop])
    .limit(LONG)
    .slow(),
    Scenario::new(
        "writer-stopped-mid-put",
        "A writer stopped inside a put hinders no reader, tears no word, and completes the put \
         when it resumes.",
        3,
        stopped::writer_mid_put,
    )
    .needs(&[Stop, Steps]),
    Scenario::new(
        "stopped-does-not-answer",
        "Calls that need a stopped member end in time, and accepted messages arrive when it \
         resumes.",
        3,
        stopped::does_not_answer,
    )
    .needs(&[Stop])
    .time_limit(Duration::from_secs(2)),
    Scenario::new(
        "fenced-while-stopped",
        "A stopped member that was fenced has no effect any more, resumed or not.",
        4,
        stopped::fenced,
    )
    .killed(1)
    .needs(&[Stop, Fence]),
    Scenario::new(
        "wakes-after-its-expected-death",
        "A member that resumes after a death learns of it, and its operations of the old epoch \
         are refused.",
        4,
        stopped::wakes_late,
    )
    .killed(1)
    .needs(&[Stop, Kill]),
    Scenario::new(
        "launcher-dies",
        "The members detect a death and finish after their launcher was killed.",
        3,
        crowd::launcher_dies,
    )
    .killed(1)
    .needs(&[Kill, Launcher]),
    Scenario::new(
        "storm",
        "Random operations on random targets while members die at random steps; acknowledged \
         effects stay.",
        8,
        crowd::storm,
    )
    .killed(3)
    .needs(&[Kill, Steps])
    .limit(LONG),
    Scenario::new(
        "forty-members",
        "Forty members, all to all; five die and the others go on.",
        40,
        crowd::forty,
    )
    .killed(5)
    .needs(&[Kill])
    .limit(LONG),
];
