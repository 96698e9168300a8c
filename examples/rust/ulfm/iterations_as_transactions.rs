//! Iterations as transactions: an agreement at the end of each iteration decides whether it counts.
//! If not, all survivors go back to the state before the iteration and repeat it.
//!
//! Four members move money between accounts that all of them keep. Each iteration has two phases; a
//! member that dies between the phases leaves the others with half an iteration. Run it with
//! `cargo run -p outlast --example iterations_as_transactions -- --kill 0`, with another member, or
//! without `--kill`.

mod support;

use outlast::rma::{Communicator, Error, Op};
use outlast::{Job, launch};

pub(crate) const MEMBERS: usize = 4;
const ITERATIONS: u64 = 16;
/// How many transfers an iteration has; the members share them.
const TRANSFERS: u64 = 10;

/// The state that is carried from iteration to iteration, equal at all members.
#[derive(Clone)]
struct Accounts {
    paid: u64,
    received: u64,
}

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
    let mut committed = Accounts { paid: 0, received: 0 };
    let mut iteration = 0;
    while iteration < ITERATIONS {
        // The iteration works on a copy, so going back is forgetting the copy.
        let mut accounts = committed.clone();
        let outcome = iterate(job, &comm, iteration, &mut accounts);
        match &outcome {
            Ok(()) => {}
            Err(Error::ProcFailed { .. } | Error::Revoked) => comm.revoke()?,
            Err(error) => return Err(error.clone().into()),
        }
        // All members that get an answer get an equal answer, whichever members die meanwhile: no
        // member commits alone.
        let agreed = comm.agree_despite_failures(u64::from(outcome.is_ok()))?;
        if agreed.flags == 1 {
            committed = accounts;
            iteration += 1;
        } else {
            println!(
                "{} goes back to the start of iteration {iteration}: {} paid, {} received",
                job.me(),
                accounts.paid - committed.paid,
                accounts.received - committed.received
            );
        }
        // A death after all members had done their part does not undo the iteration, but the next
        // iteration must not wait for the dead member.
        if agreed.flags == 0 || !agreed.failed.is_empty() {
            comm = comm.shrink()?;
        }
    }
    if committed.paid != committed.received {
        return Err(
            format!("{} was paid and {} received", committed.paid, committed.received).into()
        );
    }
    support::check(job, committed.received, (0..ITERATIONS * TRANSFERS).map(amount).sum())?;
    job.leave()?;
    Ok(())
}

/// Pays in the first phase and receives in the second; each member does its share of the transfers.
fn iterate(
    job: &Job,
    comm: &Communicator,
    iteration: u64,
    accounts: &mut Accounts,
) -> Result<(), Error> {
    let share = || {
        let first = iteration * TRANSFERS + comm.rank() as u64;
        (first..(iteration + 1) * TRANSFERS).step_by(comm.size())
    };
    let mut paid = [share().map(amount).sum()];
    comm.allreduce_u64(Op::Sum, &mut paid)?;
    accounts.paid += paid[0];
    if iteration == ITERATIONS / 2 && support::is_victim(job) {
        support::die(job);
    }
    let mut received = [share().map(amount).sum()];
    comm.allreduce_u64(Op::Sum, &mut received)?;
    accounts.received += received[0];
    Ok(())
}

/// The amount that the transfer with this number moves.
fn amount(transfer: u64) -> u64 {
    transfer * transfer % 97 + 1
}
