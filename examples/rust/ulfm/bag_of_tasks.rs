//! A bag of tasks: a master hands out tasks, workers do them. Every task is done, whichever member
//! dies.
//!
//! When a worker dies, the master gives its task to another worker, and the other workers see no
//! error. When the master dies, the workers shrink the communicator, the lowest rank becomes the
//! new master, and the others report their results to it. Run it with `cargo run -p outlast
//! --example bag_of_tasks -- --kill 3`, with another member (0 is the master), or without `--kill`.

mod support;

use outlast::rma::{Communicator, Error, Source, Tag};
use outlast::{Job, launch};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub(crate) const MEMBERS: usize = 5;
const TASKS: u64 = 60;

// The tags of the messages.
const REPORT: u32 = 1;
const TASK: u32 = 2;
const END: u32 = 3;

/// The known results, by task.
type Results = BTreeMap<u64, u64>;

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
    let mut results = Results::new();
    let sum = loop {
        let is_master = comm.rank() == 0;
        let outcome =
            if is_master { lead(job, &comm, &mut results) } else { work(job, &comm, &mut results) };
        if let Err(error) = &outcome
            && !error.is_failure()
        {
            return Err(error.clone().into());
        }
        // Only the death of the master is a failure. Every worker comes here at its next wait for
        // the master.
        if comm.agree_despite_failures(u64::from(outcome.is_ok()))?.flags == 1 {
            break outcome?;
        }
        comm = comm.shrink()?;
        println!("{} has a new master, {}", job.me(), comm.members()[0]);
    };
    support::check(job, sum, (0..TASKS).map(|task| task * task).sum())?;
    job.leave()?;
    Ok(())
}

/// Does a task; it takes a moment.
fn solve(job: &Job, task: u64) -> u64 {
    job.park(job.bell(), job.now().after(Duration::from_millis(1)));
    task * task
}

/// The master: gives tasks to workers until it has all results, and sends their sum to all workers.
fn lead(job: &Job, comm: &Communicator, results: &mut Results) -> Result<u64, Error> {
    let mut idle: VecDeque<usize> = VecDeque::new();
    // The workers report first, with all results that they know: after the death of a master no
    // other copy is left.
    for worker in 1..comm.size() {
        match comm.receive(worker, REPORT) {
            Ok(report) => {
                results.extend(decode(&report.bytes));
                idle.push_back(worker);
            }
            Err(error) if error.is_failure() => {}
            Err(error) => return Err(error),
        }
    }
    let mut bag: VecDeque<u64> = (0..TASKS).filter(|task| !results.contains_key(task)).collect();
    let mut given: BTreeMap<usize, u64> = BTreeMap::new();
    while results.len() < TASKS as usize {
        while let (Some(&task), Some(worker)) = (bag.front(), idle.pop_front()) {
            // A worker that died meanwhile gets no task, and is no longer idle.
            if comm.send(worker, TASK, &task.to_le_bytes()).is_ok() {
                given.insert(worker, task);
                bag.pop_front();
            }
        }
        if given.is_empty() {
            // No worker is left.
            results.extend(bag.drain(..).map(|task| (task, solve(job, task))));
            continue;
        }
        match comm.receive(Source::Any, REPORT) {
            Ok(report) => {
                results.extend(decode(&report.bytes));
                given.remove(&report.source);
                idle.push_back(report.source);
            }
            Err(Error::ProcFailedPending { .. }) => {
                // Acknowledge, so that the next receive waits for the others again. This may
                // acknowledge more deaths than the error names; those will not be reported again,
                // so take all acknowledged ranks.
                comm.failure_ack()?;
                let dead = comm.failure_get_acked()?;
                idle.retain(|worker| !dead.contains(worker));
                for task in dead.iter().filter_map(|worker| given.remove(worker)) {
                    println!("{} gives task {task} again", job.me());
                    bag.push_front(task);
                }
            }
            Err(error) => return Err(error),
        }
        if results.len() > TASKS as usize / 2 && support::is_victim(job) {
            support::die(job);
        }
    }
    let sum: u64 = results.values().sum();
    for worker in 1..comm.size() {
        // An error means that the worker is dead and needs no answer.
        let _ = comm.send(worker, END, &sum.to_le_bytes());
    }
    Ok(sum)
}

/// A worker: reports and gets a task, until the master sends the end.
fn work(job: &Job, comm: &Communicator, results: &mut Results) -> Result<u64, Error> {
    let mut report = encode(results);
    loop {
        comm.send(0, REPORT, &report)?;
        let message = comm.receive(0, Tag::Any)?;
        let number = decode_word(&message.bytes);
        if message.tag == END {
            return Ok(number);
        }
        if support::is_victim(job) {
            support::die(job);
        }
        results.insert(number, solve(job, number));
        report = encode(&Results::from([(number, results[&number])]));
    }
}

fn encode(results: &Results) -> Vec<u8> {
    results
        .iter()
        .flat_map(|(task, result)| [task.to_le_bytes(), result.to_le_bytes()].concat())
        .collect()
}

fn decode(bytes: &[u8]) -> Results {
    bytes.chunks_exact(16).map(|pair| (decode_word(pair), decode_word(&pair[8..]))).collect()
}

fn decode_word(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}
