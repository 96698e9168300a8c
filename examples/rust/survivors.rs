//! Four processes increment counters in each other's memory. Kill any of them (`kill -9 PID`): the
//! other processes notice the death and go on.
//!
//! Run it with `cargo run --example survivors -p outlast`.

use outlast::engine::Error;
use outlast::{Epoch, launch};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Started by hand, this process is not a member: it starts four copies of itself and prints how
    // they ended.
    if let Some(outcome) = launch::this_program(4)? {
        print!("{outcome}");
        std::process::exit(if outcome.survivors_ok() { 0 } else { 1 });
    }

    let job = outlast::join()?;
    job.grow(8)?;
    println!("{} is process {}", job.me(), std::process::id());
    // The epoch before the first death: a member may have died already.
    let mut seen = Epoch(0);
    for _beat in 0..40 {
        for member in job.view().living() {
            match job.fetch_add(Epoch::ANY, member, 0, 1) {
                // The member may have died since the view was read, or may not have grown its
                // segment yet. In both cases the call returns at once.
                Ok(_) | Err(Error::Dead { .. } | Error::OutOfRange { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // A single load tells whether a member has died.
        if job.epoch() != seen {
            let view = job.view();
            seen = view.epoch;
            println!("{} goes on without {}; {} live", job.me(), view.dead, view.living().count());
        }
        // Sleeps. A death rings the bell and ends the wait.
        let bell = job.bell();
        job.park(bell, job.now().after(Duration::from_millis(50)));
    }
    println!("{} counted {} beats", job.me(), job.load(Epoch::ANY, job.me(), 0)?);
    job.leave()?;
    Ok(())
}
