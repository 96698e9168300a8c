//! How long operations of one member on another take, whichever engine the job runs on.
//!
//! - On shm: `cargo run --release --example latency -p outlast`, or under `outlast run -n 2`.
//! - On mpi: build it with the feature `mpi`, and start it with `mpirun --with-ft ulfm -n 2`.
//!
//! Member 0 measures while member 1 first waits in the engine for its messages, and then computes elsewhere; an
//! argument says how many times, once unless given. Should either die, the other says so and ends.

use outlast::engine::{Error, Message, Port};
use outlast::{Epoch, Job, MemberId, launch};
use std::time::{Duration, Instant};

const MEASURING: MemberId = MemberId(0);
const TARGET: MemberId = MemberId(1);
const LARGE: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Started by hand, this process is no member: it starts two copies of itself. Those of mpirun are members already.
    let is_under_mpirun = std::env::var_os("OMPI_COMM_WORLD_SIZE").is_some();
    if !is_under_mpirun && let Some(outcome) = launch::this_program(2)? {
        std::process::exit(if outcome.survivors_ok() { 0 } else { 1 });
    }

    let job = outlast::join()?;
    if job.members() != 2 {
        return Err(format!("two members are needed, and there are {}", job.members()).into());
    }
    job.grow(LARGE as u64)?;
    let times: usize = std::env::args().nth(1).map_or(Ok(1), |text| text.parse())?;
    let part = if job.me() == MEASURING { measure } else { serve };
    match (0..times).try_for_each(|_| part(&job)) {
        Ok(()) => {}
        // Nothing is wrong with this member, so it ends well.
        Err(Error::Dead { member }) => println!("{} ends, since {member} is dead", job.me()),
        Err(error) => return Err(error.into()),
    }
    job.leave()?;
    Ok(())
}

/// Waits for a message of the other, or for its death.
fn receive(job: &Job, from: MemberId) -> Result<Message, Error> {
    loop {
        let bell = job.bell();
        if let Some(message) = job.receive(Port::User) {
            return Ok(message);
        }
        if job.view().dead.contains(from) {
            return Err(Error::Dead { member: from });
        }
        job.park(bell, job.now().after(Duration::from_secs(1)));
    }
}

fn measure(job: &Job) -> Result<(), Error> {
    for (state, rounds) in [("waits in the engine", 20_000), ("computes elsewhere", 1_000)] {
        // The target says so when its segment is there and it is in that state.
        receive(job, TARGET)?;
        let mut buffer = [0; 64];
        let small = [1; 64];
        time(&format!("put 64 B, target {state}"), rounds, || {
            job.put(Epoch::ANY, TARGET, 0, &small)
        })?;
        time(&format!("get 64 B, target {state}"), rounds, || {
            job.get(Epoch::ANY, TARGET, 0, &mut buffer)
        })?;
        let large = vec![1; LARGE];
        time(&format!("put 1 MiB, target {state}"), rounds / 50, || {
            job.put(Epoch::ANY, TARGET, 0, &large)
        })?;
        // A target that computes elsewhere would not send anything back.
        if state.starts_with("waits") {
            time("message there and back", rounds / 20, || {
                job.send(TARGET, Port::User, b"ping")?;
                receive(job, TARGET).map(drop)
            })?;
        }
        job.send(TARGET, Port::User, b"end")?;
    }
    receive(job, TARGET).map(drop)
}

fn serve(job: &Job) -> Result<(), Error> {
    job.send(MEASURING, Port::User, b"waiting")?;
    while receive(job, MEASURING)?.bytes != b"end" {
        job.send(MEASURING, Port::User, b"pong")?;
    }
    job.send(MEASURING, Port::User, b"computing")?;
    // Outside of the engine but for a look, now and then, whether it is over.
    while job.receive(Port::User).is_none() {
        if job.view().dead.contains(MEASURING) {
            return Err(Error::Dead { member: MEASURING });
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    job.send(MEASURING, Port::User, b"done")
}

/// Prints how long an operation takes; it is repeated so often, but for no more than 2 s.
fn time(
    what: &str,
    rounds: usize,
    mut operation: impl FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    let until = Instant::now() + Duration::from_secs(2);
    let mut times_ns = Vec::with_capacity(rounds);
    while times_ns.len() < rounds && (times_ns.is_empty() || Instant::now() < until) {
        let began = Instant::now();
        operation()?;
        times_ns.push(began.elapsed().as_nanos() as u64);
    }
    times_ns.sort_unstable();
    let at_us = |percent: usize| times_ns[(times_ns.len() - 1) * percent / 100] as f64 / 1e3;
    println!("{what}: p50 {:.1} us, p99 {:.1} us, max {:.1} us", at_us(50), at_us(99), at_us(100));
    Ok(())
}
