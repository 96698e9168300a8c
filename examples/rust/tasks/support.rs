//! What the examples of this folder share: the members of a job, from start to end.

use outlast::launch;
use outlast::store::{self, Store};
use outlast_tasks::{Options, Tasks};

/// How many members an example starts. `outlast run -n N` starts it with as many as you like.
const MEMBERS: usize = 4;

/// Starts the members if this process is none. A member opens the store and the runtime, calls
/// `body`, which returns a result and what it must be, and closes everything.
pub(crate) fn run_members(
    body: impl FnOnce(&Tasks) -> Result<(u64, u64), Box<dyn std::error::Error>>,
    options: Options,
) -> Result<(), Box<dyn std::error::Error>> {
    if let Some(outcome) = launch::this_program(MEMBERS)? {
        print!("{outcome}");
        std::process::exit(if outcome.survivors_ok() { 0 } else { 1 });
    }
    let job = outlast::join()?;
    let store = Store::open(&job, store::Options::new().allow_fewer())?;
    let tasks = Tasks::open(&store, options)?;
    println!("{} begins", job.me());
    let (result, expected) = body(&tasks)?;
    if result != expected {
        return Err(format!("{} has {result}, which should be {expected}", job.me()).into());
    }
    println!("{} has {result}, which is right", job.me());
    tasks.close()?;
    store.close()?;
    Ok(job.leave()?)
}
