//! The task runtime in real processes on shm, with real kills (SIGKILL) and stops (SIGSTOP).

mod examples;
#[path = "../../../outlast/tests/support/members.rs"]
mod members;
#[path = "../../../outlast/tests/support/reexecution.rs"]
mod reexecution;
mod steps;

use members::{expect_ok, is_member};
use outlast::store::{self, Store};
use outlast::{Job, MemberId};
use outlast_tasks::{Cx, Error, Options, Stats, Task, Tasks};
use reexecution::this_test;
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Clone, Serialize, Deserialize)]
struct Fib(u32);

impl Task for Fib {
    const NAME: &'static str = "fib";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        if self.0 < 2 {
            return self.0.into();
        }
        let (a, b) = cx.join(Fib(self.0 - 1), Fib(self.0 - 2));
        a + b
    }
}

#[derive(Clone, Serialize, Deserialize)]
struct Queens {
    n: u32,
    columns: u32,
    left: u32,
    right: u32,
}

impl Queens {
    fn new(n: u32) -> Queens {
        Queens { n, columns: 0, left: 0, right: 0 }
    }
}

impl Task for Queens {
    const NAME: &'static str = "queens";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        let all = (1 << self.n) - 1;
        if self.columns == all {
            return 1;
        }
        let mut free = all & !(self.columns | self.left | self.right);
        let mut boards = Vec::new();
        while free != 0 {
            let queen = free & free.wrapping_neg();
            free ^= queen;
            boards.push(Queens {
                n: self.n,
                columns: self.columns | queen,
                left: (self.left | queen) << 1,
                right: (self.right | queen) >> 1,
            });
        }
        cx.sum(&boards)
    }
}

fn options() -> Options {
    Options::new().task::<Fib>().sums::<Queens>().attempts(100)
}

/// What a member of a test does: joins, opens, runs, closes.
fn with_tasks(options: Options, body: impl FnOnce(&Job, &Tasks)) -> Stats {
    let job = outlast::join().expect("joins");
    // As many replicas as the deaths in these tests need, however fast repair is.
    let replicas = store::Options::new().replicas(6).allow_fewer();
    let store = Store::open(&job, replicas).expect("opens");
    let tasks = Tasks::open(&store, options).expect("opens");
    body(&job, &tasks);
    let stats = tasks.stats();
    tasks.close().expect("closes");
    assert_eq!(store.scan(b"outlast-tasks/").expect("lists"), Vec::<Vec<u8>>::new());
    store.close().expect("closes");
    job.leave().expect("leaves");
    stats
}

#[test]
fn fib_and_queens_are_right() {
    let test = this_test!();
    if is_member(test) {
        let stats = with_tasks(options(), |_, tasks| {
            assert_eq!(tasks.run(Fib(22)).expect("runs"), 17711);
            assert_eq!(tasks.run(Queens::new(8)).expect("runs"), 92);
            assert_eq!(tasks.run(Fib(2)).expect("runs"), 1);
        });
        println!("{stats:?}");
        return;
    }
    let outcome = expect_ok(members::members(test, 4).start().expect("starts"));
    members::print_output(&outcome);
}

#[test]
fn a_run_alone_is_right() {
    let test = this_test!();
    if is_member(test) {
        with_tasks(options(), |_, tasks| assert_eq!(tasks.run(Queens::new(9)), Ok(352)));
        return;
    }
    expect_ok(members::members(test, 1).start().expect("starts"));
}

/// Kills members one after the other while they run, and expects the right output of the others.
fn kill_while_running(test: &str, victims: &[u32], pause: Duration) {
    if is_member(test) {
        let stats = with_tasks(options().beat(Duration::from_micros(300)), |_, tasks| {
            for _ in 0..3 {
                assert_eq!(tasks.run(Queens::new(11)), Ok(2680));
            }
        });
        println!("{stats:?}");
        return;
    }
    let running = members::members(test, 6).start().expect("starts");
    for &victim in victims {
        std::thread::sleep(pause);
        running.kill(MemberId(victim)).expect("is a member");
    }
    let outcome = expect_ok(running);
    members::print_output(&outcome);
}

#[test]
fn a_run_outlasts_the_deaths_of_two_members_and_rank_0_first() {
    kill_while_running(this_test!(), &[0, 1], Duration::from_millis(150));
}

#[test]
fn a_run_outlasts_two_deaths_at_once() {
    kill_while_running(this_test!(), &[4, 2], Duration::from_millis(0));
}

#[test]
fn all_but_one_may_die_one_after_the_other() {
    kill_while_running(this_test!(), &[0, 5, 3, 1, 4], Duration::from_millis(120));
}

#[test]
fn a_panic_is_an_error_everywhere_and_the_next_run_works() {
    #[derive(Clone, Serialize, Deserialize)]
    struct Bad(u32);
    impl Task for Bad {
        const NAME: &'static str = "bad";
        type Output = u32;
        fn run(self, cx: &mut Cx<'_>) -> u32 {
            assert_ne!(self.0, 0, "nothing is left");
            let (a, b) = cx.join(Bad(self.0 - 1), Bad(self.0 - 1));
            a + b
        }
    }
    let test = this_test!();
    if is_member(test) {
        with_tasks(options().task::<Bad>(), |_, tasks| {
            let error = tasks.run(Bad(5)).expect_err("panics");
            assert!(error.to_string().contains("nothing is left"), "{error}");
            assert!(matches!(error, Error::Task(_)), "{error:?}");
            assert_eq!(tasks.run(Fib(10)), Ok(55));
        });
        return;
    }
    expect_ok(members::members(test, 3).start().expect("starts"));
}
