//! A grid of row and column communicators that is built again after a failure.
//!
//! Six of the seven members make a grid of two rows and three columns; a member is left over. When
//! a member dies, the others shrink, and the member that was left over takes a place. Run it with
//! `cargo run -p outlast --example grid -- --kill 4`, with another member, or without `--kill`.

mod support;

use outlast::rma::{Communicator, Error, Op};
use outlast::{Job, launch};

pub(crate) const MEMBERS: usize = 7;
const ROWS: usize = 2;
const COLUMNS: usize = 3;
const STEPS: u64 = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(outcome) = launch::this_program(MEMBERS)? {
        print!("{outcome}");
        std::process::exit(if outcome.survivors_ok() { 0 } else { 1 });
    }
    take_part(&outlast::join()?)
}

/// The program of each member.
pub(crate) fn take_part(job: &Job) -> Result<(), Box<dyn std::error::Error>> {
    let mut all = Communicator::world(job)?;
    let mut grid = None;
    let mut total = 0;
    let mut step = 0;
    while step < STEPS {
        let outcome = advance(job, &all, &mut grid, step);
        match &outcome {
            Ok(_) => {}
            Err(Error::ProcFailed { .. } | Error::Revoked) => {
                // Members that wait for this member in its row or column may share neither row nor
                // column with the dead member, so revoke these communicators too.
                all.revoke()?;
                if let Some(Grid { row, column }) = &grid {
                    row.revoke()?;
                    column.revoke()?;
                }
            }
            Err(error) => return Err(error.clone().into()),
        }
        let agreed = all.agree_despite_failures(u64::from(outcome.is_ok()))?;
        if agreed.flags == 1 {
            step += 1;
            // A member without a place in the grid computes nothing, but it counts the steps.
            total += outcome?.unwrap_or(total_of(step - 1));
        }
        if agreed.flags == 0 || !agreed.failed.is_empty() {
            all = all.shrink()?;
            grid = None;
        }
    }
    if all.size() < ROWS * COLUMNS {
        return Err("too few members are left for the grid".into());
    }
    support::check(job, total, (0..STEPS).map(total_of).sum())?;
    job.leave()?;
    Ok(())
}

/// The communicators of the row and the column that a member belongs to.
struct Grid {
    row: Communicator,
    column: Communicator,
}

impl Grid {
    /// Builds the grid. Called by all members; members without a place get `None`.
    fn build(job: &Job, all: &Communicator) -> Result<Option<Grid>, Error> {
        let rank = all.rank();
        let has_place = rank < ROWS * COLUMNS;
        let row = all.split(has_place.then_some((rank / COLUMNS) as u32), 0)?;
        let column = all.split(has_place.then_some((rank % COLUMNS) as u32), 0);
        if let (Err(_), Some(row)) = (&column, &row) {
            // Other members may have their column, and would wait in the row for this member.
            row.revoke()?;
        }
        match row.zip(column?) {
            Some((row, column)) => {
                println!("{} is in row {}, column {}", job.me(), column.rank(), row.rank());
                Ok(Some(Grid { row, column }))
            }
            None => Ok(None),
        }
    }
}

/// Runs a step: each cell has a value of its own; the sums of the rows are added up along the
/// columns.
fn advance(
    job: &Job,
    all: &Communicator,
    grid: &mut Option<Grid>,
    step: u64,
) -> Result<Option<u64>, Error> {
    let mut has_grid = [u64::from(grid.is_some())];
    all.allreduce_u64(Op::Max, &mut has_grid)?;
    if has_grid == [0] {
        *grid = Grid::build(job, all)?;
    }
    if step == STEPS / 2 && support::is_victim(job) {
        support::die(job);
    }
    let Some(Grid { row, column }) = grid else { return Ok(None) };
    let mut sum = [cell(column.rank(), row.rank(), step)];
    row.allreduce_u64(Op::Sum, &mut sum)?;
    column.allreduce_u64(Op::Sum, &mut sum)?;
    Ok(Some(sum[0]))
}

fn cell(row: usize, column: usize, step: u64) -> u64 {
    (row * COLUMNS + column + 1) as u64 * (step + 1)
}

fn total_of(step: u64) -> u64 {
    (0..ROWS).flat_map(|row| (0..COLUMNS).map(move |column| cell(row, column, step))).sum()
}
