//! How long the operations of a member on another member take, on any engine.
//!
//! - On shm: `cargo run --release --example latency -p outlast`, or under `outlast run -n 2`.
//! - On mpi: build it with the feature `mpi`, and start it with `mpirun --with-ft ulfm -n 2`.
//!
//! Member 0 measures while member 1 first waits in the engine for messages, and then computes
//! outside of the engine. An optional argument is the number of repetitions. If a member dies, the
//! other member reports the death and ends.

use outlast::engine::{Error, Message, Port};
use outlast::{Epoch, Job, MemberId, launch};
use std::time::{Duration, Instant};

const MEASURING: MemberId = MemberId(0);
const TARGET: MemberId = MemberId(1);
const LARGE: usize = 1 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Started by hand, this process is not a member: it starts two copies of itself. Under mpirun
    // the processes are members already.
    let is_under_mpirun = std::env::var_os("OMPI_COMM_WORLD_SIZE").is_some();
    if !is_under_mpirun && let Some(outcome) = launch::this_program(2)? {
        std::process::exit(if outcome.survivors_ok() { 0 } else { 1 });
    }

    let job = outlast::join()?;
    if job.members() != 2 {
        return Err(
            format!("this example needs two members, and there are {}", job.members()).into()
        );
    }
    job.grow(LARGE as u64)?;
    let times: usize = std::env::args().nth(1).map_or(Ok(1), |text| text.parse())?;
    let part = if job.me() == MEASURING { measure } else { serve };
    match (0..times).try_for_each(|_| part(&job)) {
        Ok(()) => {}
        // This member has not failed, so it ends with success.
        Err(Error::Dead { member }) => println!("{} ends, since {member} is dead", job.me()),
        Err(error) => return Err(error.into()),
    }
    job.leave()?;
    Ok(())
}

/// Waits for a message of the other member, or for its death.
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
        // The target sends a message when its segment is ready and it is in this state.
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
        // A target that computes outside of the engine sends nothing back.
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
    // Outside of the engine, except for a poll whether the measurement is over.
    while job.receive(Port::User).is_none() {
        if job.view().dead.contains(MEASURING) {
            return Err(Error::Dead { member: MEASURING });
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    job.send(MEASURING, Port::User, b"done")
}

/// Prints how long an operation takes, repeated this many times, but for at most 2 s.
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
