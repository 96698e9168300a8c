//! Figures about the store: what a member has done, what the job holds, memory, and repair.

use crate::call::{SizedStruct, call, deadline, found, opened, write_result, write_struct};
use crate::status::Status;
use crate::store::{CStore, OpenStore};
use outlast::store::{Latency, RepairStatus};
use std::ffi::c_int;

/// `outlast_latency` of the header.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CLatency {
    samples: u64,
    p50_ns: u64,
    p99_ns: u64,
    max_ns: u64,
}

/// `outlast_stats` of the header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CStats {
    struct_size: usize,
    replicas_repaired: u64,
    records_repaired: u64,
    repairs_taken_over: u64,
    put: CLatency,
    get: CLatency,
}

/// `outlast_totals` of the header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CTotals {
    struct_size: usize,
    keys: u64,
    key_bytes: u64,
    value_bytes: u64,
    replicas_missing: u64,
    partitions_lost: u64,
}

/// `outlast_memory` of the header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CMemory {
    struct_size: usize,
    values: u64,
    records: u64,
    free: u64,
    held_by_living: u64,
    held_by_dead: u64,
}

// SAFETY: `repr(C)`, the size first, and zero is valid for numbers.
unsafe impl SizedStruct for CStats {
    const NAME: &'static str = "outlast_stats";
}

// SAFETY: `repr(C)`, the size first, and zero is valid for numbers.
unsafe impl SizedStruct for CTotals {
    const NAME: &'static str = "outlast_totals";
}

// SAFETY: `repr(C)`, the size first, and zero is valid for numbers.
unsafe impl SizedStruct for CMemory {
    const NAME: &'static str = "outlast_memory";
}

fn latency(latency: Option<Latency>) -> CLatency {
    latency.map_or_else(CLatency::default, |found| CLatency {
        samples: found.samples,
        p50_ns: found.p50.as_nanos() as u64,
        p99_ns: found.p99.as_nanos() as u64,
        max_ns: found.max.as_nanos() as u64,
    })
}

/// `outlast_get_stats` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_get_stats(store: *const CStore, stats: *mut CStats) -> c_int {
    call(|| {
        let found = opened(store)?.store.stats();
        let given = CStats {
            struct_size: 0,
            replicas_repaired: found.replicas_repaired,
            records_repaired: found.records_repaired,
            repairs_taken_over: found.repairs_taken_over,
            put: latency(found.put),
            get: latency(found.get),
        };
        write_struct(stats, &given)
    })
}

/// `outlast_get_totals` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_get_totals(store: *const CStore, totals: *mut CTotals) -> c_int {
    call(|| {
        let found = opened(store)?.store.job_stats()?;
        let given = CTotals {
            struct_size: 0,
            keys: found.keys as u64,
            key_bytes: found.key_bytes,
            value_bytes: found.value_bytes,
            replicas_missing: found.repair.replicas_missing as u64,
            partitions_lost: found.repair.partitions_lost as u64,
        };
        write_struct(totals, &given)
    })
}

/// `outlast_get_memory` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_get_memory(store: *const CStore, memory: *mut CMemory) -> c_int {
    call(|| {
        let found = opened(store)?.store.memory_use()?;
        let given = CMemory {
            struct_size: 0,
            values: found.values,
            records: found.records,
            free: found.free,
            held_by_living: found.held_by_living,
            held_by_dead: found.held_by_dead,
        };
        write_struct(memory, &given)
    })
}

fn write_status(status: RepairStatus, missing: *mut usize, lost: *mut usize) {
    write_result(missing, status.replicas_missing);
    write_result(lost, status.partitions_lost);
}

/// `outlast_repair_status` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_repair_status(
    store: *const CStore,
    replicas_missing: *mut usize,
    partitions_lost: *mut usize,
) -> c_int {
    call(|| {
        write_status(opened(store)?.store.repair_status()?, replicas_missing, partitions_lost);
        Ok(Status::Ok)
    })
}

/// `outlast_wait_repaired` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_wait_repaired(
    store: *const CStore,
    milliseconds: u64,
    replicas_missing: *mut usize,
    partitions_lost: *mut usize,
) -> c_int {
    call(|| {
        let OpenStore { store, job } = opened(store)?;
        let status = store.wait_repaired(deadline(job, milliseconds))?;
        write_status(status, replicas_missing, partitions_lost);
        found(status.is_repaired())
    })
}
