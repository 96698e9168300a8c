//! Checkpoints in the memory of a buddy: after a death the survivors go back to the last
//! checkpoint, and the buddy takes over the work of the dead member from its copy of the
//! checkpoint.
//!
//! Five members advance a block of data each; every block depends on all others. Run it with
//! `cargo run -p outlast --example buddy_checkpoint -- --kill 1`, with another member, or without
//! `--kill`.

mod support;

use outlast::rma::{Communicator, Error, Op, Update, Window, WindowError};
use outlast::{Job, launch};
use std::collections::BTreeMap;

pub(crate) const MEMBERS: usize = 5;
const STEPS: u64 = 30;
const STEPS_PER_CHECKPOINT: u64 = 4;
/// The length of a checkpoint in a window: the number of blocks, then number and value of each
/// block.
const CHECKPOINT_LEN: u64 = 8 + 16 * MEMBERS as u64;

/// The blocks that a member works on: its own, and the blocks of dead members whose buddy it was.
type Blocks = BTreeMap<u64, u64>;

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
    let mut saved = Blocks::from([(comm.rank() as u64, comm.rank() as u64 + 1)]);
    let mut window = Window::open(&comm, 2 * CHECKPOINT_LEN)?;
    // Two places take turns, so that an incomplete checkpoint leaves the previous checkpoint whole.
    let mut place = 0;
    save(&comm, &window, place, &saved)?;
    // From here on the job survives a death. A member that dies earlier may have no copy yet; then
    // this call is an error at all members.
    comm.agree(0)?;
    let mut step = 0;
    while step < STEPS {
        let until = STEPS.min(step + STEPS_PER_CHECKPOINT);
        let mut blocks = saved.clone();
        let outcome = advance(job, &comm, &mut blocks, step..until)
            .map_err(WindowError::from)
            .and_then(|()| save(&comm, &window, 1 - place, &blocks));
        match &outcome {
            Ok(()) => {}
            Err(WindowError::ProcFailed { .. } | WindowError::Revoked) => comm.revoke()?,
            Err(WindowError::Communicator(error)) if error.is_failure() => comm.revoke()?,
            Err(error) => return Err(error.clone().into()),
        }
        // A dead member may not have saved its blocks, so with a death the checkpoint does not
        // count.
        let agreed = comm.agree_despite_failures(u64::from(outcome.is_ok()))?;
        if agreed.flags == 1 && agreed.failed.is_empty() {
            (saved, step, place) = (blocks, until, 1 - place);
            continue;
        }
        // Back to the last checkpoint. The blocks of a dead member are in the memory of the next
        // rank.
        let smaller = comm.shrink()?;
        let is_dead = |rank: usize| !smaller.members().contains(&comm.members()[rank]);
        let previous = (comm.rank() + comm.size() - 1) % comm.size();
        if is_dead(previous) {
            saved.extend(load(&comm, &window, place)?);
            println!("{} now has the blocks {:?}", job.me(), saved.keys());
        }
        window.close()?;
        comm = smaller;
        window = Window::open(&comm, 2 * CHECKPOINT_LEN)?;
        save(&comm, &window, place, &saved)?;
        // The job survives a further death once the copies are complete again.
        comm.agree(0)?;
        println!("{} goes back to step {step}", job.me());
    }
    let mut sum = [saved.values().fold(0, |sum: u64, value| sum.wrapping_add(*value))];
    comm.allreduce_u64(Op::Sum, &mut sum)?;
    support::check(job, sum[0], expected())?;
    comm.agree_despite_failures(0)?;
    job.leave()?;
    Ok(())
}

fn advance(
    job: &Job,
    comm: &Communicator,
    blocks: &mut Blocks,
    steps: std::ops::Range<u64>,
) -> Result<(), Error> {
    for step in steps {
        if step == STEPS / 2 && support::is_victim(job) {
            support::die(job);
        }
        let mut sum = [blocks.values().fold(0, |sum: u64, value| sum.wrapping_add(*value))];
        comm.allreduce_u64(Op::Sum, &mut sum)?;
        blocks.iter_mut().for_each(|(&block, value)| *value = next(block, *value, sum[0]));
    }
    Ok(())
}

fn next(block: u64, value: u64, sum: u64) -> u64 {
    value.wrapping_mul(31).wrapping_add(sum ^ block)
}

/// Puts a copy of this member's blocks into the memory of the buddy, the next rank.
fn save(
    comm: &Communicator,
    window: &Window,
    place: u64,
    blocks: &Blocks,
) -> Result<(), WindowError> {
    let words = blocks.iter().flat_map(|(&block, &value)| [block, value]);
    let words = std::iter::once(blocks.len() as u64).chain(words);
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    window.put_blocking((comm.rank() + 1) % comm.size(), place * CHECKPOINT_LEN, &bytes)
}

/// Loads the checkpoint that the previous rank put into the memory of this member.
fn load(comm: &Communicator, window: &Window, place: u64) -> Result<Blocks, WindowError> {
    let word = |index: u64| {
        window.fetch_and_op(comm.rank(), place * CHECKPOINT_LEN + 8 * index, Update::Keep, 0u64)
    };
    (0..word(0)?).map(|index| Ok((word(1 + 2 * index)?, word(2 + 2 * index)?))).collect()
}

/// The expected result: the computation done by a single process.
fn expected() -> u64 {
    let mut blocks: Vec<u64> = (1..=MEMBERS as u64).collect();
    let sum = |blocks: &[u64]| blocks.iter().fold(0, |sum: u64, value| sum.wrapping_add(*value));
    for _ in 0..STEPS {
        let sum = sum(&blocks);
        blocks = (0..).zip(blocks).map(|(block, value)| next(block, value, sum)).collect();
    }
    sum(&blocks)
}
