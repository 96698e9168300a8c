//! The programs of `examples/rust/ulfm` as processes: each without a death, and with each of its
//! members killed in the middle. They start their own members, check their own results and report
//! them by their status. The tests read their output, too. `sim/rma/examples.rs` runs the code of
//! the programs under the simulator.

use crate::members::{LIMIT, example};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs an example to its end, at most for `LIMIT`. Returns whether it ended well, and its output.
fn run(name: &str, arguments: &[&str]) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("output");
    let output = std::fs::File::create(&path).unwrap();
    let mut child = Command::new(example(name))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .spawn()
        .unwrap();
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > LIMIT {
            // Its members die with it.
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{name} {arguments:?} did not end:\n{}", std::fs::read_to_string(path).unwrap());
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    (status.success(), std::fs::read_to_string(path).unwrap())
}

/// Runs an example without a death, and with the death of each of its members. Every survivor must
/// have `result`. With a death, the output must contain each text of `killed` as often as said:
/// `(text, count)`.
pub(crate) fn check(
    name: &str,
    members: usize,
    result: u64,
    killed: impl Fn(usize) -> Vec<(&'static str, usize)>,
) {
    let right = format!(" has {result}, which is right");
    let (is_ok, text) = run(name, &[]);
    assert!(is_ok, "{name}:\n{text}");
    assert_eq!(text.matches(&right).count(), members, "{name}:\n{text}");
    assert!(!text.contains("is killed"), "{name}:\n{text}");
    for victim in 0..members {
        let (is_ok, text) = run(name, &["--kill", &victim.to_string()]);
        assert!(is_ok, "{name}, {victim} killed:\n{text}");
        assert_eq!(text.matches(&right).count(), members - 1, "{name}, {victim} killed:\n{text}");
        assert_eq!(text.matches("is killed").count(), 1, "{name}, {victim} killed:\n{text}");
        for (what, count) in killed(victim) {
            assert_eq!(
                text.matches(what).count(),
                count,
                "{name}, {victim} killed, `{what}`:\n{text}"
            );
        }
    }
}

#[test]
fn return_shrink_go_on() {
    let sum = 999_999 * 1_000_000 / 2;
    check("return_shrink_go_on", 5, sum, |_| vec![(" goes on as rank ", 4), (" of 4\n", 4)]);
}

#[test]
fn insulation() {
    check("insulation", 6, 599 * 600 / 2, |_| {
        vec![(" was disturbed and went on", 2), (" was undisturbed", 3)]
    });
}

#[test]
fn grid() {
    // Six members print a place, and six again after the death. The member without a place in the
    // first grid prints nothing.
    check("grid", 7, 21 * 210, |_| vec![(" is in row ", 12), (" is in row 1, column 2", 2)]);
}

#[test]
fn bag_of_tasks() {
    let sum = (0..60).map(|task| task * task).sum();
    check("bag_of_tasks", 5, sum, |victim| match victim {
        0 => vec![("has a new master, ", 4)],
        _ => vec![("has a new master, ", 0), (" again\n", 1)],
    });
}

#[test]
fn buddy_checkpoint() {
    // The example computes this in its own way.
    let mut blocks = [1u64, 2, 3, 4, 5];
    let sum = |blocks: &[u64]| blocks.iter().fold(0u64, |sum, value| sum.wrapping_add(*value));
    for _ in 0..30 {
        let all = sum(&blocks);
        for (block, value) in blocks.iter_mut().enumerate() {
            *value = value.wrapping_mul(31).wrapping_add(all ^ block as u64);
        }
    }
    check("buddy_checkpoint", 5, sum(&blocks), |_| {
        vec![(" now has the blocks ", 1), (" goes back to step 12", 4)]
    });
}

#[test]
fn iterations_as_transactions() {
    let sum = (0..160).map(|transfer| transfer * transfer % 97 + 1).sum();
    check("iterations_as_transactions", 4, sum, |_| {
        vec![("goes back to the start of iteration 8: ", 3), (" paid, 0 received", 3)]
    });
}

/// An invalid argument is refused by all members, and none is left waiting.
#[test]
fn bad_arguments_are_refused() {
    let (is_ok, text) = run("grid", &["--kill"]);
    assert!(!is_ok && text.contains("the arguments are: [--kill MEMBER]"), "{text}");
}
