//! A fixed number of puts and gets by handle, for counting instructions under callgrind.
//!
//! `cargo xtask instructions` builds this example, starts four members and counts at member 0.
//! `docs/performance.md` explains the figures.

use outlast::store::{Options, Store};
use std::time::Duration;

/// How many calls are counted; xtask divides by this number.
const CALLS: u64 = 20_000;

#[inline(never)]
fn counted_puts(store: &Store, value: &[u8]) {
    let handle = store.handle(b"counted").unwrap();
    for _ in 0..CALLS {
        handle.put(value).unwrap();
    }
}

#[inline(never)]
fn counted_gets(store: &Store, buffer: &mut [u8]) {
    let handle = store.handle(b"counted").unwrap();
    for _ in 0..CALLS {
        handle.get_into(buffer).unwrap();
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let job = outlast::join()?;
    let store = Store::open(&job, Options::new().replicas(3))?;
    let mut value = [7; 64];
    if store.me().0 == 0 {
        store.put(b"counted", &value)?;
        counted_puts(&store, &value);
        counted_gets(&store, &mut value);
        store.put(b"done", b"")?;
    } else {
        while !store.exists(b"done")? {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    store.close()?;
    Ok(())
}
