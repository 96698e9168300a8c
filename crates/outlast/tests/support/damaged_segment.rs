//! A store of three members in the simulator. The segment of a member is overwritten in the middle
//! of all members' calls. The seeded tests of damage and the fuzz target (`fuzz/`) share this.

use outlast::sim::{self, Link, Options as SimOptions, Random};
use outlast::store::{Expect, Options, Store, StoreError};
use outlast::{Epoch, Job, MemberId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// Overwrites words of a member's segment: each 16 bytes give a place and a word.
fn scribble(job: &Job, target: MemberId, damage: &[u8]) {
    // It may have finished and left.
    let Ok(len) = job.segment_len(target) else { return };
    for pair in damage.chunks_exact(16) {
        let half =
            |index: usize| u64::from_ne_bytes(pair[index..index + 8].try_into().expect("8 bytes"));
        let _ = job.put(Epoch::ANY, target, half(0) % (len / 8) * 8, &half(8).to_ne_bytes());
    }
}

/// Damage made from a seed: random places, and words that look like offsets and heads more often
/// than random words would.
pub(crate) fn damage(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + random.below(200) {
        let place = random.below(u64::MAX);
        let word = match random.below(5) {
            0 => 0,
            1 => u64::MAX,
            2 => random.below(1 << 20),
            3 => random.below(1 << 20) << 44,
            _ => random.below(u64::MAX),
        };
        bytes.extend([place, word].map(u64::to_ne_bytes).concat());
    }
    bytes
}

/// Runs a damaged store. Panics if a member crashes, if a call does not end, or, with checksums, if
/// a value is read that was never written. Returns the number of wrong checksums.
pub(crate) fn run(seed: u64, damage: &[u8], with_checksums: bool) -> u64 {
    let link = Link::of_seed(seed);
    let mut options = SimOptions::new(3, seed).link(link);
    options.steps_max = 40_000_000;
    options.time_limit = Duration::from_millis(20);
    let (written, corrupt, damage) = (Written::default(), Rc::new(Cell::new(0)), damage.to_vec());
    let counted = corrupt.clone();
    let report = sim::run(&options, move |job| match with_checksums {
        true => checked_member(&job, seed, &damage, &written, &corrupt),
        false => member(&job, seed, &damage),
    });
    report.expect_ok();
    counted.get()
}

fn member(job: &Job, seed: u64, damage: &[u8]) {
    let options = Options::new().replicas(2).partitions(4).expected_keys(16).slab_len_max(4 << 10);
    let store = Store::open(job, options).expect("open");
    let mut random = Random::new(seed << 8 | u64::from(job.me().0));
    for call in 0..60 {
        if call == 20 && job.me() == MemberId(0) {
            scribble(job, MemberId(1), damage);
        }
        let key = format!("key/{}", random.below(12));
        let key = key.as_bytes();
        // Every outcome is allowed, also an error, because destroyed data cannot be read. But each
        // call must end.
        match random.below(12) {
            0 => _ = store.get(key),
            1 => _ = store.delete(key),
            2 => _ = store.put_if(key, b"conditional", Expect::Absent),
            3 => _ = store.add(key, 1),
            4 => _ = store.keys(),
            5 => _ = store.memory_use(),
            6 => {
                _ = store
                    .handle(key)
                    .and_then(|handle| handle.put(&[7; 40]).and_then(|_| handle.get()))
            }
            7 => _ = store.pin(key).map(|pin| pin.map(|pin| pin.to_vec())),
            8 => _ = store.lock(format!("lock/{}", random.below(2)).as_bytes(), job.now()),
            9 | 10 => {
                let others =
                    [random.below(12), random.below(12)].map(|number| format!("key/{number}"));
                _ = store.transaction(|tx| {
                    let before = tx.get(others[0].as_bytes())?;
                    tx.put(others[1].as_bytes(), &before.unwrap_or_default())?;
                    tx.put(key, &vec![9; random.below(700) as usize])
                })
            }
            _ => _ = store.put(key, &vec![7; random.below(700) as usize]),
        }
    }
    let _ = store.close();
    let _ = job.leave();
}

/// All values that were ever put, with their keys. Recorded before each put.
type Written = Rc<RefCell<BTreeSet<(Vec<u8>, Vec<u8>)>>>;

/// The part of a member with checksums: every value that is read must be a value that was put for
/// its key.
fn checked_member(job: &Job, seed: u64, damage: &[u8], written: &Written, corrupt: &Cell<u64>) {
    let options = Options::new()
        .replicas(2)
        .partitions(4)
        .expected_keys(16)
        .slab_len_max(4 << 10)
        .checksums(true);
    let store = Store::open(job, options).expect("open");
    let mut random = Random::new(seed << 8 | u64::from(job.me().0));
    let check = |key: &[u8], value: &[u8]| {
        let is_known = written.borrow().contains(&(key.to_vec(), value.to_vec()));
        assert!(
            is_known,
            "seed {seed}: {} was never {} bytes {value:02x?}",
            String::from_utf8_lossy(key),
            value.len()
        );
    };
    for call in 0..100u64 {
        if call == 30 && job.me() == MemberId(0) {
            scribble(job, MemberId(1), damage);
        }
        let key = format!("key/{}", random.below(12));
        let key = key.as_bytes();
        let number = u64::from(job.me().0) << 32 | call;
        let mut value = number.to_le_bytes().repeat(1 + random.below(60) as usize);
        value.truncate(value.len() - random.below(8) as usize);
        let mut buffer = [0; 600];
        let found = match random.below(7) {
            0 | 1 => store.get(key).map(|value| value.map(|value| value.into_bytes())),
            2 => store
                .get_into(key, &mut buffer)
                .map(|found| found.map(|(len, _)| buffer[..len].to_vec())),
            3 => store.pin(key).and_then(|pin| pin.map(|pin| pin.to_vec()).transpose()),
            4 => store
                .handle(key)
                .and_then(|handle| handle.get())
                .map(|value| value.map(|value| value.into_bytes())),
            5 => store.delete(key).map(|_| None),
            _ => {
                written.borrow_mut().insert((key.to_vec(), value.clone()));
                store.put(key, &value).map(|_| None)
            }
        };
        match found {
            Ok(Some(value)) => check(key, &value),
            Ok(None) => {}
            Err(StoreError::Corrupt { what, .. }) if what.contains("checksum") => {
                corrupt.set(corrupt.get() + 1)
            }
            // Destroyed data cannot be read.
            Err(_) => {}
        }
    }
    let _ = store.close();
    let _ = job.leave();
}
