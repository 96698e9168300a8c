//! A task queue in the store. A member takes a task with a transaction that moves its key from
//! `todo/` to `doing/`, and ends it with a transaction that moves it to `done/`. When a member
//! dies, its heir moves the tasks that the member was doing back to `todo/`. No task is lost, and
//! the result of each task counts once.
//!
//! Run it with `cargo run --example task_queue -p outlast`, or with `-- --kill 1` behind it to see
//! member 1 die in the middle of a task.

#[path = "../ulfm/support.rs"]
mod support;

use outlast::store::{Options, Store, StoreError, StoreResult};
use outlast::{Epoch, Job, launch};
use std::time::Duration;

const MEMBERS: usize = 4;
const TASKS: u64 = 40;
/// The victim dies in the middle of this task of its own.
const LAST_TASK_OF_VICTIM: usize = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(outcome) = launch::this_program(MEMBERS)? {
        print!("{outcome}");
        std::process::exit(if outcome.survivors_ok() { 0 } else { 1 });
    }
    let job = outlast::join()?;
    let store = Store::open(&job, Options::new().replicas(2).partitions(32))?;
    // Each member adds its share of the tasks.
    for task in (0..TASKS).filter(|task| task % MEMBERS as u64 == u64::from(job.me().0)) {
        store.put(&key("todo", task), b"")?;
    }
    let sum = work(&job, &store)?;
    support::check(&job, sum, (0..TASKS).map(|task| task * task).sum())?;
    store.close()?;
    job.leave()?;
    Ok(())
}

fn key(place: &str, task: u64) -> Vec<u8> {
    format!("{place}/{task}").into_bytes()
}

/// Works until the results of all tasks are there. Returns their sum.
fn work(job: &Job, store: &Store) -> StoreResult<u64> {
    let (mut seen, mut taken) = (Epoch(0), 0);
    loop {
        if store.epoch() != seen {
            seen = store.epoch();
            return_tasks(job, store)?;
        }
        while let Some(task) = take(store)? {
            taken += 1;
            if taken == LAST_TASK_OF_VICTIM && support::is_victim(job) {
                support::die(job);
            }
            std::thread::sleep(Duration::from_millis(1));
            finish(store, task, task * task)?;
        }
        let done = store.scan(b"done/")?;
        if done.len() as u64 == TASKS {
            let results: Vec<u64> =
                done.iter().map(|key| result(store, key)).collect::<StoreResult<_>>()?;
            return Ok(results.iter().sum());
        }
        // Other members are still at work. A death rings the bell and ends the wait.
        job.park(job.bell(), job.now().after(Duration::from_millis(2)));
    }
}

fn result(store: &Store, key: &[u8]) -> StoreResult<u64> {
    let value = store.get(key)?.expect("a result stays");
    Ok(u64::from_le_bytes(value.bytes().try_into().expect("a result has 8 bytes")))
}

/// Takes a task, if there is one.
fn take(store: &Store) -> StoreResult<Option<u64>> {
    for todo in store.scan(b"todo/")? {
        let task: u64 = String::from_utf8_lossy(&todo[5..]).parse().expect("a number");
        let is_taken = store.transaction(|tx| {
            // Another member may have taken it since the scan.
            let is_there = tx.get(&todo)?.is_some();
            if is_there {
                tx.delete(&todo)?;
                tx.put(&key("doing", task), b"")?;
            }
            Ok::<bool, StoreError>(is_there)
        })?;
        if is_taken {
            return Ok(Some(task));
        }
    }
    Ok(None)
}

fn finish(store: &Store, task: u64, result: u64) -> StoreResult<()> {
    store.transaction(|tx| {
        tx.delete(&key("doing", task))?;
        tx.put(&key("done", task), &result.to_le_bytes())
    })
}

/// Moves the tasks of the dead members whose heir this member is back to `todo/`, and adds the
/// tasks that a member may not have added before it died.
fn return_tasks(job: &Job, store: &Store) -> StoreResult<()> {
    for dead in job.view().dead.iter().filter(|&dead| store.heir_of(dead) == job.me()) {
        for doing in store.keys_of(dead)?.iter().filter(|key| key.starts_with(b"doing/")) {
            let task: u64 = String::from_utf8_lossy(&doing[6..]).parse().expect("a number");
            let is_returned = store.transaction(|tx| {
                // A member with an older view may have been the heir, and may have returned it.
                let is_there = tx.get(doing)?.is_some();
                if is_there {
                    tx.delete(doing)?;
                    tx.put(&key("todo", task), b"")?;
                }
                Ok::<bool, StoreError>(is_there)
            })?;
            if is_returned {
                println!("{} returns task {task} of {dead}", job.me());
            }
        }
        for task in (0..TASKS).filter(|task| task % MEMBERS as u64 == u64::from(dead.0)) {
            let places = ["todo", "doing", "done"];
            store.transaction(|tx| {
                let mut is_known = false;
                for place in places {
                    is_known |= tx.get(&key(place, task))?.is_some();
                }
                if !is_known {
                    tx.put(&key("todo", task), b"")?;
                }
                Ok::<(), StoreError>(())
            })?;
        }
    }
    Ok(())
}
