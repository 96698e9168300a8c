//! Checkpoints in the store. Each member advances a slice of a computation and saves it after every
//! step. When a member dies, its heir adopts the slice and goes on from the last checkpoint.
//!
//! Run it with `cargo run --example checkpoint -p outlast`, or with `-- --kill 2` behind it to see
//! member 2 die in the middle.

#[path = "../ulfm/support.rs"]
mod support;

use outlast::store::{Options, Store, StoreResult};
use outlast::{Epoch, Job, launch};
use std::time::Duration;

const MEMBERS: usize = 4;
const STEPS: u64 = 200;

/// A slice of the computation, as it is saved.
#[derive(Clone, Copy)]
struct Slice {
    number: u64,
    step: u64,
    state: u64,
}

impl Slice {
    fn new(number: u64) -> Slice {
        Slice { number, step: 0, state: number }
    }

    fn key(number: u64) -> Vec<u8> {
        format!("slice/{number}").into_bytes()
    }

    fn advance(&mut self) {
        self.state = self.state.wrapping_mul(31).wrapping_add(self.step);
        self.step += 1;
    }

    fn save(&self, store: &Store) -> StoreResult<()> {
        let bytes = [self.step.to_le_bytes(), self.state.to_le_bytes()].concat();
        store.put(&Slice::key(self.number), &bytes).map(drop)
    }

    /// The last checkpoint of a slice, if there is one.
    fn load(store: &Store, number: u64) -> StoreResult<Option<Slice>> {
        let word = |bytes: &[u8], at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a checkpoint has 16 bytes"))
        };
        let value = store.get(&Slice::key(number))?;
        Ok(value.map(|value| {
            let (step, state) = (word(value.bytes(), 0), word(value.bytes(), 8));
            Slice { number, step, state }
        }))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(outcome) = launch::this_program(MEMBERS)? {
        print!("{outcome}");
        std::process::exit(if outcome.survivors_ok() { 0 } else { 1 });
    }
    let job = outlast::join()?;
    let store = Store::open(&job, Options::new().replicas(2))?;
    let result = compute(&job, &store)?;
    let mut slices: Vec<Slice> = (0..MEMBERS as u64).map(Slice::new).collect();
    slices.iter_mut().for_each(|slice| (0..STEPS).for_each(|_| slice.advance()));
    support::check(&job, result, sum(&slices))?;
    store.close()?;
    job.leave()?;
    Ok(())
}

fn sum(slices: &[Slice]) -> u64 {
    slices.iter().fold(0, |sum, slice| sum.wrapping_add(slice.state))
}

/// Advances this member's slices to their end. Returns the sum over all slices when they are done.
fn compute(job: &Job, store: &Store) -> StoreResult<u64> {
    let mut mine = vec![Slice::new(u64::from(job.me().0))];
    let mut seen = Epoch(0);
    loop {
        for slice in mine.iter_mut().filter(|slice| slice.step < STEPS) {
            while slice.step < STEPS {
                slice.advance();
                slice.save(store)?;
                if slice.step == STEPS / 2 && support::is_victim(job) {
                    support::die(job);
                }
            }
        }
        // A load tells whether a member has died since the last look.
        if store.epoch() != seen {
            seen = store.epoch();
            adopt_slices(job, store, &mut mine)?;
            continue;
        }
        let slices: Vec<Option<Slice>> = (0..MEMBERS as u64)
            .map(|number| Slice::load(store, number))
            .collect::<StoreResult<_>>()?;
        if slices.iter().all(|slice| slice.is_some_and(|slice| slice.step == STEPS)) {
            return Ok(sum(&slices.into_iter().flatten().collect::<Vec<_>>()));
        }
        // A death rings the bell and ends the wait.
        job.park(job.bell(), job.now().after(Duration::from_millis(2)));
    }
}

/// Takes over the slices of the dead members whose heir this member is. An heir that dies before it
/// has adopted leaves the slices to the next heir, which `heir_of` names then.
fn adopt_slices(job: &Job, store: &Store, mine: &mut Vec<Slice>) -> StoreResult<()> {
    for dead in job.view().dead.iter().filter(|&dead| store.heir_of(dead) == job.me()) {
        let own = Slice::key(u64::from(dead.0));
        // The member may have died before its first checkpoint.
        if !store.exists(&own)? {
            Slice::new(u64::from(dead.0)).save(store)?;
            store.adopt(&own)?;
        }
        for number in 0..MEMBERS as u64 {
            let is_new = mine.iter().all(|slice| slice.number != number);
            let key = Slice::key(number);
            let owner = store.get(&key)?.map(|value| value.owner());
            if is_new && (owner == Some(dead) || key == own) && store.adopt(&key)? {
                let slice = Slice::load(store, number)?.expect("just adopted");
                println!("{} adopts slice {number} at step {}", job.me(), slice.step);
                mine.push(slice);
            }
        }
    }
    Ok(())
}
