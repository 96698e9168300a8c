//! Real deaths inside of each step of the runtime.

use crate::members::{STEP, expect_ok, is_member, members, parameter};
use crate::reexecution::this_test;
use crate::{Queens, options, with_tasks};
use outlast::MemberId;
use outlast::failpoint::{AVAILABLE, LAST_WORDS};
use outlast_tasks::steps;
use std::time::Duration;

/// For each step, members die inside of it while the program runs, and the others have the output.
/// The steps that open a task again and resume it come after a death, so a member is killed first.
#[test]
fn members_die_in_each_step_and_the_others_have_the_output() {
    let test = this_test!();
    if is_member(test) {
        with_tasks(options().beat(Duration::from_micros(300)), |job, tasks| {
            let me = u64::from(job.me().0);
            if me % 2 == 1 {
                // The first, second and third engine step inside of the step.
                steps::die_in(parameter(STEP), 1 + me / 2);
            }
            for _ in 0..3 {
                assert_eq!(tasks.run(Queens::new(11)), Ok(2680));
            }
        });
        return;
    }
    if !AVAILABLE {
        return;
    }
    for (step, name) in steps::NAMES.iter().enumerate() {
        let running = members(test, 6).env(STEP, step.to_string()).start().expect("starts");
        std::thread::sleep(Duration::from_millis(150));
        running.kill(MemberId(2)).expect("is a member");
        let outcome = expect_ok(running);
        let last_words = format!("{LAST_WORDS}{name} at ");
        let said = |member| outcome.stderr(member).contains(&last_words);
        let died: Vec<MemberId> =
            outcome.members.iter().map(|end| end.member).filter(|&member| said(member)).collect();
        assert!(!died.is_empty(), "no member died in {name}: {outcome}");
        println!("{name}: {died:?} died inside of it");
    }
}
