//! `outlast top` and `outlast demo --watch` in a terminal: tmux draws it, presses keys, and tells
//! what is on the screen.

mod common;

use common::{LIMIT, OUTLAST, send, start, wait_until};
use rustix::process::Signal;
use std::process::Command;

/// A terminal of a tmux server of its own. The server ends when this is dropped.
struct Terminal {
    server: String,
}

impl Terminal {
    /// Runs a command in a terminal of this size.
    fn new(name: &str, (columns, rows): (u32, u32), command: &str) -> Terminal {
        let terminal = Terminal { server: format!("outlast-{name}-{}", std::process::id()) };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        // The terminal stays after the end of the command, with its status on the last line.
        let command = format!("{command}; echo status $?; sleep {}", LIMIT.as_secs());
        terminal.tmux(&["new-session", "-d", "-x", &columns, "-y", &rows, &command]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.args(["-L", &self.server, "-f", "/dev/null"]).args(arguments);
        command.env_remove("TMUX").env("LC_ALL", "C.UTF-8");
        let output = command.output().expect("tmux runs");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Waits until the screen satisfies a condition, and returns it.
    fn wait(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let mut screen = String::new();
        wait_until(what, || {
            screen = self.tmux(&["capture-pane", "-p"]);
            is_so(&screen)
        });
        screen
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.server, "kill-server"]).output();
    }
}

#[test]
fn top_shows_members_and_deaths_and_obeys_keys_in_40_columns() {
    let run = start(&["run", "-n", "3", "--memory", "16M", OUTLAST, "sample-member", "--store"]);
    let members = run.children(3);
    wait_until("the members to join", || {
        members.iter().all(|&member| common::maps_job_memory(member))
    });
    let command = format!("TERM=xterm {OUTLAST} top {}", run.pid());
    let terminal = Terminal::new("top", (40, 24), &command);
    let screen = terminal.wait("the members to be drawn", |screen| {
        screen.contains("3 running") && screen.contains("none missing")
    });
    assert!(screen.contains("member") && screen.contains("ops/s"), "{screen}");
    assert!(screen.lines().all(|line| line.chars().count() <= 40), "{screen}");
    send(members[1], Signal::KILL);
    let screen = terminal.wait("the death to be drawn", |screen| {
        screen.contains("1 dead") && screen.contains("member 1 died")
    });
    assert!(screen.contains("2 running"), "{screen}");
    terminal.press(&["/", "dead", "Enter"]);
    let rows = |screen: &str| screen.lines().filter(|line| line.contains(" running  ")).count();
    terminal.wait("the filter", |screen| screen.contains("filter: dead") && rows(screen) == 1);
    terminal.press(&["s"]);
    terminal.wait("the order", |screen| screen.contains("sort: state"));
    terminal.press(&["?"]);
    terminal.wait("the help", |screen| screen.contains("reverse the order"));
    terminal.press(&["?", "q"]);
    let screen = terminal.wait("the end", |screen| screen.contains("status "));
    assert!(screen.contains("status 0"), "{screen}");
    assert!(!screen.contains("ops/s"), "the terminal is as before: {screen}");
    run.signal(Signal::TERM);
    run.finish();
}

#[test]
fn the_demo_runs_in_the_live_view() {
    let command = format!("TERM=xterm {OUTLAST} demo -n 4 --watch");
    let terminal = Terminal::new("demo", (100, 30), &command);
    terminal.wait("the view", |screen| screen.contains("ops/s") && screen.contains("demo-member"));
    terminal.wait("a death", |screen| screen.contains("1 dead"));
    let screen = terminal.wait("the end", |screen| screen.contains("status "));
    assert!(screen.contains("acknowledged writes were read back"), "{screen}");
}

/// The processes that a process has started, and all that these have started.
fn descendants(parent: &str) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists =
        threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let mut all = Vec::new();
    for child in lists.collect::<String>().split_whitespace() {
        all.push(child.parse().expect("a process id"));
        all.extend(descendants(child));
    }
    all
}

#[test]
fn the_live_view_ends_with_its_terminal() {
    let command = format!("TERM=xterm {OUTLAST} demo -n 4 --watch");
    let terminal = Terminal::new("hang-up", (100, 30), &command);
    terminal.wait("the view", |screen| screen.contains("ops/s") && screen.contains("demo-member"));
    let shell = terminal.tmux(&["display-message", "-p", "#{pane_pid}"]);
    let processes = descendants(shell.trim());
    assert!(processes.len() >= 5, "the demo and its members: {processes:?}");
    terminal.tmux(&["kill-server"]);
    wait_until("the end of the demo and its members", || {
        processes.iter().all(|&process| common::is_over(process))
    });
}
