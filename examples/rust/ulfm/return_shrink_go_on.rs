//! Return, shrink, go on: errors are returned, the survivors make a smaller communicator and repeat
//! the lost work.
//!
//! Five members add up the numbers below a million in rounds, each its share of every round. Run it
//! with `cargo run -p outlast --example return_shrink_go_on -- --kill 2`, with another member, or
//! without `--kill`.

mod support;

use outlast::rma::{Communicator, Error, Op};
use outlast::{Job, launch};

pub(crate) const MEMBERS: usize = 5;
const ROUNDS: u64 = 10;
const NUMBERS_PER_ROUND: u64 = 100_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(outcome) = launch::this_program(MEMBERS)? {
        print!("{outcome}");
        std::process::exit(if outcome.survivors_ok() { 0 } else { 1 });
    }
    take_part(&outlast::join()?)
}

/// The program of each member.
pub(crate) fn take_part(job: &Job) -> Result<(), Box<dyn std::error::Error>> {
    let mut comm = Communicator::world(job)?;
    // The sum of each round that this member has completed. Others may be a round ahead or behind
    // when a failure strikes.
    let mut sums = Vec::new();
    loop {
        let outcome = go_on(job, &comm, &mut sums);
        match &outcome {
            Ok(()) => {}
            // The others may wait for each other in a round that cannot be completed. Revoking
            // brings them all here.
            Err(Error::ProcFailed { .. } | Error::Revoked) => comm.revoke()?,
            Err(error) => return Err(error.clone().into()),
        }
        // All members come here, also members that succeeded: the others may need them again.
        if comm.agree_despite_failures(u64::from(outcome.is_ok()))?.flags == 1 {
            break;
        }
        comm = comm.shrink()?;
        println!("{} goes on as rank {} of {}", job.me(), comm.rank(), comm.size());
    }
    let last = ROUNDS * NUMBERS_PER_ROUND - 1;
    support::check(job, sums.iter().sum(), last * (last + 1) / 2)?;
    job.leave()?;
    Ok(())
}

/// Does the remaining rounds with the members of `comm`; returns the first error.
fn go_on(job: &Job, comm: &Communicator, sums: &mut Vec<u64>) -> Result<(), Error> {
    // All members continue with the first round that some member has not completed.
    let mut done = [sums.len() as u64];
    comm.allreduce_u64(Op::Min, &mut done)?;
    sums.truncate(done[0] as usize);
    for round in done[0]..ROUNDS {
        if round == ROUNDS / 2 && support::is_victim(job) {
            support::die(job);
        }
        let first = round * NUMBERS_PER_ROUND + comm.rank() as u64;
        let share = (first..(round + 1) * NUMBERS_PER_ROUND).step_by(comm.size());
        let mut sum = [share.sum()];
        comm.allreduce_u64(Op::Sum, &mut sum)?;
        sums.push(sum[0]);
    }
    Ok(())
}
