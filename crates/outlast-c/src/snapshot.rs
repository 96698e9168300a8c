//! Snapshots of the store in files.

use crate::call::{
    SizedStruct, borrow_handle, call, give_handle, invalid, opened, options_at, take_handle, text,
    write_result, write_struct,
};
use crate::status::Status;
use crate::store::CStore;
use outlast::snapshot::{Options, Snapshots, restore_share};
use std::ffi::{c_char, c_int};
use std::path::Path;
use std::time::Duration;

/// `outlast_snapshot_options` of the header; zero is the default of each option.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CSnapshotOptions {
    struct_size: usize,
    keep: u64,
    bytes_per_second: u64,
    freeze_limit_ms: u64,
}

/// `outlast_snapshot` of the header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CSnapshot {
    struct_size: usize,
    generation: u64,
    records: u64,
    bytes: u64,
    frozen_ns: u64,
}

// SAFETY: `repr(C)`, the size first, and zero is valid for numbers.
unsafe impl SizedStruct for CSnapshotOptions {
    const NAME: &'static str = "outlast_snapshot_options";
}

// SAFETY: `repr(C)`, the size first, and zero is valid for numbers.
unsafe impl SizedStruct for CSnapshot {
    const NAME: &'static str = "outlast_snapshot";
}

/// `outlast_snapshots_open` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_snapshots_open(
    store: *const CStore,
    folder: *const c_char,
    options: *const CSnapshotOptions,
    snapshots: *mut *mut Snapshots,
) -> c_int {
    call(|| {
        let mut wanted = Options::new();
        if let Some(given) = options_at(options)? {
            if given.keep != 0 {
                wanted = wanted.keep(given.keep as usize);
            }
            if given.bytes_per_second != 0 {
                wanted = wanted.bytes_per_second(given.bytes_per_second);
            }
            if given.freeze_limit_ms != 0 {
                wanted = wanted.freeze_limit(Duration::from_millis(given.freeze_limit_ms));
            }
        }
        let (store, folder) = (opened(store)?, Path::new(text(folder)?));
        give_handle(snapshots, || Ok(Snapshots::open(&store.store, folder, wanted)?))
    })
}

/// `outlast_snapshot_take` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_snapshot_take(
    snapshots: *const Snapshots,
    snapshot: *mut CSnapshot,
) -> c_int {
    call(|| {
        let taken = borrow_handle(snapshots)?.take()?;
        if snapshot.is_null() {
            return Ok(Status::Ok);
        }
        let given = CSnapshot {
            struct_size: 0,
            generation: taken.generation,
            records: taken.records,
            bytes: taken.bytes,
            frozen_ns: taken.frozen_for.as_nanos() as u64,
        };
        write_struct(snapshot, &given)
    })
}

/// `outlast_snapshots_free` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_snapshots_free(snapshots: *mut Snapshots) {
    drop(take_handle(snapshots));
}

/// `outlast_snapshot_restore` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_snapshot_restore(
    store: *const CStore,
    path: *const c_char,
    share: usize,
    shares: usize,
    records: *mut u64,
    bytes: *mut u64,
) -> c_int {
    call(|| {
        if share >= shares {
            return Err(invalid("the share is not below the number of shares"));
        }
        let store = opened(store)?;
        let restored = restore_share(&store.store, Path::new(text(path)?), share, shares)?;
        write_result(records, restored.records);
        write_result(bytes, restored.bytes);
        Ok(Status::Ok)
    })
}
