//! A fixed number of calls of each kind, for counting instructions under callgrind.
//!
//! `cargo xtask perf` builds and starts this program. The program starts itself as four members, of
//! which member 0 runs under callgrind if `OUTLAST_VALGRIND` names valgrind. callgrind counts in
//! the functions `counted_...`, and leaves its file in the folder `OUTLAST_COUNTS`.
//! `docs/performance.md` explains the figures.

use outlast::MemberId;
use outlast::launch::Launch;
use outlast::store::{Expect, KeyHandle, Options, Store, StoreError};
use std::time::Duration;

/// How many calls are counted; xtask divides by this number.
const CALLS: u64 = 10_000;

/// How many transactions are counted.
const TRANSACTIONS: u64 = 1_000;

/// The number of keys that the calls by key use in turn.
const KEYS: usize = 1024;

#[inline(never)]
fn counted_put(handle: &KeyHandle, value: &[u8]) {
    for _ in 0..CALLS {
        handle.put(value).unwrap();
    }
}

#[inline(never)]
fn counted_get(handle: &KeyHandle, buffer: &mut [u8]) {
    for _ in 0..CALLS {
        handle.get_into(buffer).unwrap();
    }
}

#[inline(never)]
fn counted_conditional_put(handle: &KeyHandle, value: &[u8]) {
    let mut version = handle.version().unwrap().unwrap();
    for _ in 0..CALLS {
        version = handle.put_if(value, Expect::Version(version)).unwrap();
    }
}

#[inline(never)]
fn counted_addition(handle: &KeyHandle) {
    for _ in 0..CALLS {
        handle.add(1).unwrap();
    }
}

#[inline(never)]
fn counted_version(handle: &KeyHandle) {
    for _ in 0..CALLS {
        handle.version().unwrap();
    }
}

#[inline(never)]
fn counted_parts(handle: &KeyHandle, value: &[u8]) {
    let (first, second) = value.split_at(24);
    for _ in 0..CALLS {
        handle.put_parts(&[first, second]).unwrap();
    }
}

#[inline(never)]
fn counted_put_by_key(store: &Store, keys: &[String], value: &[u8]) {
    for call in 0..CALLS as usize {
        store.put(keys[call % KEYS].as_bytes(), value).unwrap();
    }
}

#[inline(never)]
fn counted_get_by_key(store: &Store, keys: &[String], buffer: &mut [u8]) {
    for call in 0..CALLS as usize {
        store.get_into(keys[call % KEYS].as_bytes(), buffer).unwrap();
    }
}

#[inline(never)]
fn counted_transaction(store: &Store, keys: &[String], value: &[u8]) {
    for call in 0..TRANSACTIONS as usize {
        store
            .transaction(|tx| {
                for key in 0..3 {
                    tx.put(keys[(call + key) % KEYS].as_bytes(), value)?;
                }
                Ok::<(), StoreError>(())
            })
            .unwrap();
    }
}

#[inline(never)]
fn counted_read_modify_write(store: &Store, keys: &[String], value: &[u8]) {
    for call in 0..TRANSACTIONS as usize {
        store
            .transaction(|tx| {
                for key in 0..3 {
                    let key = keys[(call + key) % KEYS].as_bytes();
                    tx.get(key)?;
                    tx.put(key, value)?;
                }
                Ok::<(), StoreError>(())
            })
            .unwrap();
    }
}

/// Starts a member: under callgrind if it is member 0, which makes the calls. The other members
/// only wait.
const MEMBER: &str = r#"case "$OUTLAST_JOB" in
    *:0) exec ${OUTLAST_VALGRIND:-env} ${OUTLAST_VALGRIND:+--tool=callgrind \
        --log-file="$OUTLAST_COUNTS/log" --callgrind-out-file="$OUTLAST_COUNTS/out" \
        --toggle-collect='*counted_*'} "$0" ;;
    *) exec "$0" ;;
esac"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::var_os("OUTLAST_JOB").is_none() {
        // An argument is the program in another language that makes the calls.
        let this = std::env::current_exe()?.into_os_string();
        let program = std::env::args_os().nth(1).unwrap_or(this);
        let mut job =
            Launch::new(4).program("sh").args(["-c".into(), MEMBER.into(), program]).start()?;
        let outcome = job.wait(Duration::from_secs(300));
        return if outcome.survivors_ok() { Ok(()) } else { Err(outcome.to_string().into()) };
    }
    let job = outlast::join()?;
    let store = Store::open(&job, Options::new().replicas(3))?;
    let mut value = [7; 64];
    if store.me().0 == 0 {
        let handle = store.handle(b"counted")?;
        // Calls before the counted calls take the slow path, and fill caches.
        handle.put(&value)?;
        counted_put(&handle, &value);
        counted_conditional_put(&handle, &value);
        counted_parts(&handle, &value);
        // A read by another caller sets the stable bit.
        store.get(b"counted")?;
        counted_get(&handle, &mut value);
        counted_version(&handle);
        let number = store.handle(b"number")?;
        number.put(&[0; 8])?;
        counted_addition(&number);
        let keys: Vec<String> = (0..KEYS).map(|number| format!("key/{number}")).collect();
        for _ in 0..2 {
            for key in &keys {
                store.put(key.as_bytes(), &value)?;
            }
        }
        counted_put_by_key(&store, &keys, &value);
        for key in &keys {
            store.get_into(key.as_bytes(), &mut value)?;
        }
        counted_get_by_key(&store, &keys, &mut value);
        counted_transaction(&store, &keys, &value);
        counted_read_modify_write(&store, &keys, &value);
        store.put(b"done", b"")?;
    } else {
        while !store.exists(b"done")? {
            if job.view().dead.contains(MemberId(0)) {
                return Err("member 0, which makes the calls, is dead".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    store.close()?;
    Ok(())
}
