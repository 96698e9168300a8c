//! From a kill -9 of a seat's holder until all seats are through a barrier again.

use super::super::failure::wait_for_line;
use super::{LIMIT, LOGS, expect_ok, options};
use crate::members::{machine_ns, say_line};
use anyhow::Context;
use outlast::launch::Running;
use outlast::protect::{self, Interval, ProtectError, ProtectResult, Seat};
use outlast::store::Store;
use outlast::{Epoch, Job, MemberId};
use std::time::Duration;

/// The member that is killed.
const VICTIM: u32 = 1;
/// The pause between two barriers.
const PAUSE: Duration = Duration::from_millis(1);

/// Starts a job, kills a holder, and returns the time until the last seat goes on, in nanoseconds.
pub(super) fn kill_one(
    members: usize,
    start: impl FnOnce(usize) -> anyhow::Result<Running>,
) -> anyhow::Result<u64> {
    let mut running = start(members)?;
    for member in 0..members as u32 {
        wait_for_line(&running, MemberId(member), "ready")?;
    }
    std::thread::sleep(Duration::from_millis(50));
    let killed_ns = machine_ns();
    running.kill(MemberId(VICTIM))?;
    let outcome = running.wait(LIMIT);
    expect_ok(&outcome)?;
    let mut last = 0;
    for member in 0..=members as u32 {
        let output = running.output(MemberId(member)).stdout;
        let text = String::from_utf8_lossy(&output);
        let through = text.lines().filter_map(|line| line.strip_prefix("through ")?.parse().ok());
        last = through.fold(last, u64::max);
    }
    last.checked_sub(killed_ns).context("no seat went on")
}

/// What a member does.
pub(super) fn play(job: &Job, store: &Store, bytes: u64, is_logged: bool) -> anyhow::Result<()> {
    let protect = options(job.members() - 1, bytes).every(Interval::Always);
    let protect = if is_logged { protect.logged(LOGS) } else { protect };
    let inside = job.clone();
    protect::run(store, protect, move |seat| until_a_death(seat, &inside))?;
    Ok(())
}

/// Saves the memory, and then comes to barriers until a member has died and all seats go on.
fn until_a_death(seat: &Seat, job: &Job) -> ProtectResult<()> {
    let me = seat.number();
    if seat.note().is_none() {
        let block: Vec<u8> = (0..1 << 20).map(|at| (at * 7 + me) as u8).collect();
        for at in (0..seat.bytes()).step_by(block.len()) {
            let len = block.len().min((seat.bytes() - at) as usize);
            seat.put(me, at, &block[..len])?;
        }
        seat.barrier_point(b"saved")?;
        say_line("ready").map_err(other)?;
    }
    let mut is_told = false;
    loop {
        let is_dead = job.epoch() != Epoch(0);
        seat.barrier()?;
        if is_dead && !is_told {
            say_line(&format!("through {}", machine_ns())).map_err(other)?;
            is_told = true;
        }
        // The first seat ends the run for all.
        if is_told && me == 0 {
            for target in 0..seat.seats() {
                seat.put(target, 0, &END)?;
            }
        }
        seat.barrier()?;
        let mut word = [0; 8];
        seat.get(me, 0, &mut word)?;
        if word == END {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
}

/// The word that ends a run.
const END: [u8; 8] = *b"the end!";

fn other(error: impl std::fmt::Display) -> ProtectError {
    ProtectError::Invalid { reason: error.to_string() }
}
