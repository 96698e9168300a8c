//! Insulation: a failure in a communicator leaves another communicator undisturbed.
//!
//! Six members work in two halves, the even and the odd ranks. A member dies: its half revokes its
//! communicator, shrinks and goes on. The other half works on all the while and never sees an
//! error, though all its members know of the death in the end. Run it with `cargo run -p outlast
//! --example insulation -- --kill 3`, with another member, or without `--kill`.

mod support;

use outlast::rma::{Communicator, Error, Op};
use outlast::{Job, launch};

pub(crate) const MEMBERS: usize = 6;
const ROUNDS: u64 = 50;
const NUMBERS_PER_ROUND: u64 = 12;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(outcome) = launch::this_program(MEMBERS)? {
        print!("{outcome}");
        std::process::exit(if outcome.survivors_ok() { 0 } else { 1 });
    }
    take_part(&outlast::join()?)
}

/// The program of each member.
pub(crate) fn take_part(job: &Job) -> Result<(), Box<dyn std::error::Error>> {
    let world = Communicator::world(job)?;
    let parity = world.rank() as u32 % 2;
    let mut half = world.split(Some(parity), 0)?.ok_or("a colour was given")?;
    // All members have their half before any member dies; a death right after an agreement does not
    // disturb it.
    world.agree_despite_failures(0)?;
    let is_killing = support::is_killing();
    let mut disturbances = 0;
    // How many rounds count, and their sum. Both halves add up equal numbers.
    let mut rounds = 0;
    let mut sum = 0;
    loop {
        if rounds == ROUNDS / 2 && support::is_victim(job) {
            support::die(job);
        }
        let outcome = round(&world, &half, rounds);
        match &outcome {
            Ok(_) => {}
            Err(Error::ProcFailed { .. } | Error::Revoked) => half.revoke()?,
            Err(error) => return Err(error.clone().into()),
        }
        // A round counts if it succeeded at all members of this half. The other half takes no part.
        if half.agree_despite_failures(u64::from(outcome.is_ok()))?.flags == 0 {
            disturbances += 1;
            half = half.shrink()?;
            println!("{} repeats round {rounds}; its half has {} members", job.me(), half.size());
            continue;
        }
        let (part, knows) = outcome?;
        rounds += 1;
        sum += part;
        // With `--kill`, the undisturbed half works until all its members know of the death.
        if rounds >= ROUNDS && (knows || !is_killing) {
            break;
        }
    }
    finish(job, &world, disturbances)?;
    support::check(job, sum, (0..ROUNDS * NUMBERS_PER_ROUND).sum())?;
    job.leave()?;
    Ok(())
}

/// Runs a round of a half. Returns the sum of its numbers, and whether all members of the half know
/// of a failure.
fn round(world: &Communicator, half: &Communicator, round: u64) -> Result<(u64, bool), Error> {
    let first = round.min(ROUNDS) * NUMBERS_PER_ROUND;
    let last = (round + 1).min(ROUNDS) * NUMBERS_PER_ROUND;
    let mut sum = [(first + half.rank() as u64..last).step_by(half.size()).sum()];
    half.allreduce_u64(Op::Sum, &mut sum)?;
    let mut knows = [u64::from(!world.get_failed()?.is_empty())];
    half.allreduce_u64(Op::Min, &mut knows)?;
    Ok((sum[0], knows[0] == 1))
}

/// All survivors meet and check that only the half of the dead member was disturbed.
fn finish(job: &Job, world: &Communicator, disturbances: u64) -> Result<(), String> {
    let all = world.agree_despite_failures(0).map_err(|error| error.to_string())?;
    let is_hit = all.failed.iter().any(|rank| rank % 2 == world.rank() % 2);
    if disturbances > 0 && !is_hit {
        return Err(format!("{} was disturbed {disturbances} times by {:?}", job.me(), all.failed));
    }
    println!(
        "{} was {}",
        job.me(),
        if disturbances > 0 { "disturbed and went on" } else { "undisturbed" }
    );
    Ok(())
}
