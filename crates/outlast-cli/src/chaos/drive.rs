//! The course of a chaos run: the members open the store, make calls under faults, stop, repair the
//! replicas, read everything back, and end.

use super::faults::Faults;
use super::observations::Observations;
use super::{Chaos, PATIENCE};
use crate::control::{CommandControl, Phase};
use crate::hosts;
use crate::loss_acceptor::LossNews;
use crate::members::{Lines, describe};
use anyhow::bail;
use outlast::MemberId;
use outlast::launch::Running;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

impl Chaos {
    /// Drives the members through the run.
    pub(super) fn run(
        &self,
        running: &mut Running,
        hosts: Option<&hosts::Hosts>,
        control: &CommandControl,
        observed: &mut Observations,
        interrupted: &AtomicBool,
    ) -> anyhow::Result<()> {
        let members = u32::from(self.members);
        let mut lines = Lines::new(usize::from(self.members));
        wait_until("open the store", running, &mut lines, observed, interrupted, |observed| {
            observed.open.len() == members as usize
        })?;
        eprintln!(
            "{:7.3} s  {} members, {} replicas, {} threads each; seed {}",
            running.elapsed().as_secs_f64(),
            self.members,
            self.replicas,
            self.threads,
            self.seed.unwrap_or_default()
        );
        let began = Instant::now();
        let mut faults = Faults::new(self);
        let length = Duration::from_secs_f64(self.seconds);
        while !(faults.is_over() && began.elapsed() >= length) {
            observed.listen(&mut lines, running)?;
            if interrupted.load(Ordering::Acquire) {
                bail!("interrupted");
            }
            // Before the ends are checked: this records the deaths that were ordered.
            let has_acted = faults.act(began.elapsed(), observed, running, hosts, control)?;
            check_ends(observed, running)?;
            if !has_acted {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        control.set_phase(Phase::Rest)?;
        wait_until("stop making calls", running, &mut lines, observed, interrupted, |observed| {
            observed.living(members).is_subset(&observed.rests)
        })?;
        if self.programs.is_of_seats() {
            return control.set_phase(Phase::End);
        }
        if self.beyond {
            wait_until(
                "accept what is lost",
                running,
                &mut lines,
                observed,
                interrupted,
                |observed| {
                    matches!(observed.losses.last(), Some(LossNews::Whole { .. }))
                        && observed.kills.iter().all(|kill| {
                            observed.living(members).iter().all(|&member| {
                                observed.noticed.contains_key(&(member, kill.member))
                            })
                        })
                },
            )?;
        } else {
            wait_until(
                "repair all replicas",
                running,
                &mut lines,
                observed,
                interrupted,
                |observed| {
                    let dead = observed.kills.len() as u64;
                    dead == 0 || observed.complete_at(dead, members).is_some()
                },
            )?;
        }
        control.set_phase(Phase::ReadBack)?;
        wait_until(
            "read everything back",
            running,
            &mut lines,
            observed,
            interrupted,
            |observed| {
                observed.living(members).iter().all(|member| observed.found.contains_key(member))
            },
        )?;
        eprintln!("{:7.3} s  all keys are read back; judging", running.elapsed().as_secs_f64());
        control.set_phase(Phase::End)
    }
}

/// An error if a member ended without a kill of this run.
fn check_ends(observed: &Observations, running: &Running) -> anyhow::Result<()> {
    let killed = observed.killed();
    let own = observed.ended.iter().find(|(member, _)| !killed.contains(member));
    match own {
        None => Ok(()),
        Some((&member, end)) => {
            let said = running.output(MemberId(member)).stderr;
            bail!("a member ended by itself: {}", describe(end, &String::from_utf8_lossy(&said)))
        }
    }
}

fn wait_until(
    what: &str,
    running: &mut Running,
    lines: &mut Lines,
    observed: &mut Observations,
    interrupted: &AtomicBool,
    is_so: impl Fn(&Observations) -> bool,
) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        observed.listen(lines, running)?;
        if is_so(observed) {
            return Ok(());
        }
        check_ends(observed, running)?;
        if interrupted.load(Ordering::Acquire) {
            bail!("interrupted");
        }
        if Instant::now() >= until {
            bail!("the members did not {what} within {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
