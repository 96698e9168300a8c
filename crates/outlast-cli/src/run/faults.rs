//! The faults of `outlast run`: which member is killed or stopped, and when.

use crate::quantity::{self, seconds};
use outlast::MemberId;
use outlast::launch::Control;
use std::time::Duration;

/// A fault: what is done to which member, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: Duration,
    pub(super) member: MemberId,
    pub(super) action: FaultAction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultAction {
    Kill,
    Stop(Duration),
    Resume,
}

fn member_id(text: &str) -> Result<MemberId, String> {
    text.parse().map(MemberId).map_err(|_| format!("`{text}` is not the number of a member"))
}

pub(super) fn kill(text: &str) -> Result<(MemberId, Duration), String> {
    let (member, time) = text
        .split_once('@')
        .ok_or_else(|| "write it as MEMBER@TIME, such as 2@1.5s".to_string())?;
    Ok((member_id(member)?, quantity::time(time)?))
}

pub(super) fn stop(text: &str) -> Result<(MemberId, Duration, Duration), String> {
    let form = || "write it as MEMBER@TIME:FOR, such as 1@500ms:2s".to_string();
    let (member, times) = text.split_once('@').ok_or_else(form)?;
    let (at, length) = times.split_once(':').ok_or_else(form)?;
    Ok((member_id(member)?, quantity::time(at)?, quantity::time(length)?))
}

/// The generator splitmix64. A seed gives the same numbers in every version of this program.
pub(super) struct SplitMix(pub(super) u64);

impl SplitMix {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// `count` different members with times up to `within`, ordered by time.
pub(super) fn random_kills(
    seed: u64,
    members: usize,
    count: usize,
    within: Duration,
) -> Vec<(MemberId, Duration)> {
    let mut random = SplitMix(seed);
    let mut candidates: Vec<MemberId> = (0..members as u32).map(MemberId).collect();
    let mut kills: Vec<_> = (0..count)
        .map(|_| {
            let member = candidates.swap_remove(random.below(candidates.len() as u64) as usize);
            let within_us = u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
            (member, Duration::from_micros(random.below(within_us.saturating_add(1))))
        })
        .collect();
    kills.sort_by_key(|&(_, at)| at);
    kills
}

pub(super) fn carry_out(fault: &Fault, control: &Control) {
    let member = fault.member;
    let (result, deed) = match fault.action {
        FaultAction::Kill => (control.kill(member), "killed"),
        FaultAction::Stop(_) => (control.stop(member), "stopped"),
        FaultAction::Resume => (control.resume(member), "resumed"),
    };
    match (result, fault.action) {
        (Ok(true), FaultAction::Stop(length)) => {
            eprintln!(
                "outlast: stopped {member} at {} for {}",
                seconds(control.elapsed()),
                seconds(length)
            );
        }
        (Ok(true), FaultAction::Resume) => {
            eprintln!("outlast: resumed {member} at {}", seconds(control.elapsed()));
        }
        // The line about the death of the member follows.
        (Ok(true), FaultAction::Kill) => {}
        (Ok(false), FaultAction::Resume) => {}
        (Ok(false), _) => {
            eprintln!(
                "outlast: {member} had ended before it was to be {deed} at {}",
                seconds(fault.at)
            );
        }
        (Err(error), _) => eprintln!("outlast: {member} could not be {deed}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_fixes_the_kills() {
        let kills = random_kills(7, 5, 4, Duration::from_secs(1));
        assert_eq!(kills, random_kills(7, 5, 4, Duration::from_secs(1)));
        let mut members: Vec<u32> = kills.iter().map(|(member, _)| member.0).collect();
        members.sort_unstable();
        members.dedup();
        assert_eq!(members.len(), 4, "no member is killed twice");
        assert!(
            kills.iter().all(|&(member, at)| member.index() < 5 && at <= Duration::from_secs(1))
        );
        assert_ne!(kills, random_kills(8, 5, 4, Duration::from_secs(1)));
    }

    #[test]
    fn faults_are_read_as_written() {
        assert_eq!(kill("2@1.5s"), Ok((MemberId(2), Duration::from_millis(1500))));
        assert_eq!(
            stop("1@500ms:2s"),
            Ok((MemberId(1), Duration::from_millis(500), Duration::from_secs(2)))
        );
        for wrong in ["2", "@1s", "x@1s", "2@", "-1@1s", "2@1"] {
            assert!(kill(wrong).is_err(), "{wrong}");
        }
        assert!(stop("1@2s").is_err());
    }
}
