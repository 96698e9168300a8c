//! What an interrupted benchmark has to undo: hosts made of this machine, folders in memory, parts
//! that run as processes of their own. An end by SIGINT, SIGTERM or SIGHUP runs no destructors.
//!
//! Members and servers need none of it: the kernel ends them with the benchmark.

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

type Undo = Box<dyn Fn() + Send>;

/// The actions, each with its number.
struct Actions {
    next: u64,
    list: Vec<(u64, Undo)>,
    is_watching: bool,
}

static ACTIONS: Mutex<Actions> =
    Mutex::new(Actions { next: 0, list: Vec::new(), is_watching: false });

fn actions() -> MutexGuard<'static, Actions> {
    ACTIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An action that an interruption runs for as long as this lives.
pub(super) struct OnInterrupt(u64);

impl Drop for OnInterrupt {
    fn drop(&mut self) {
        actions().list.retain(|(number, _)| *number != self.0);
    }
}

/// Has an interruption run this action. Actions run in the reverse order.
pub(super) fn on_interrupt(undo: impl Fn() + Send + 'static) -> anyhow::Result<OnInterrupt> {
    let mut actions = actions();
    if !actions.is_watching {
        watch()?;
        actions.is_watching = true;
    }
    let number = actions.next;
    actions.next += 1;
    actions.list.push((number, Box::new(undo)));
    Ok(OnInterrupt(number))
}

fn watch() -> anyhow::Result<()> {
    let signals = [SIGINT, SIGTERM, SIGHUP];
    let mut signals = signal_hook::iterator::Signals::new(signals).context("catching signals")?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            eprintln!("outlast: interrupted; what the benchmark has started is ended");
            actions().list.iter().rev().for_each(|(_, undo)| undo());
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// How long a part may take to undo what it has done.
const PATIENCE: Duration = Duration::from_secs(10);

/// Ends a child process that undoes what it has done at SIGTERM, and kills it if it takes too long.
pub(super) fn end_child(child: u32) {
    let Some(pid) = i32::try_from(child).ok().and_then(Pid::from_raw) else { return };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let _ = kill_process(pid, Signal::TERM);
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    let patience = Timespec::try_from(PATIENCE).ok();
    if !poll(&mut ended, patience.as_ref()).is_ok_and(|count| count > 0) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn an_action_is_forgotten_with_its_guard() {
        let numbers = || actions().list.iter().map(|(number, _)| *number).collect::<Vec<_>>();
        let first = on_interrupt(|| {}).expect("signals can be caught");
        let second = on_interrupt(|| {}).expect("signals can be caught");
        assert!(numbers().contains(&first.0) && numbers().contains(&second.0));
        let number = first.0;
        drop(first);
        assert!(!numbers().contains(&number) && numbers().contains(&second.0));
    }

    #[test]
    fn a_child_is_asked_to_end() {
        let mut command = Command::new("sh");
        command.args(["-c", "trap 'exit 7' TERM; echo; while :; do sleep 0.01; done"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a shell");
        let mut line = [0];
        let output = child.stdout.as_mut().expect("it is piped");
        std::io::Read::read_exact(output, &mut line).expect("it has begun");
        end_child(child.id());
        assert_eq!(child.wait().expect("it ends").code(), Some(7));
    }
}
