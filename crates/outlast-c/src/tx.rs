//! Locks, transactions, and the recovery together in global mode.

use crate::call::{
    CVersion, Failure, borrow_handle, borrow_handle_mut, bytes, call, copy_out, deadline, found,
    give_handle, invalid, last_message, opened, take_handle, to_c, version_at, write_result,
};
use crate::status::Status;
use crate::store::{CStore, OpenStore};
use outlast::store::{Expect, LockGuard, Recovery, Transaction};
use std::ffi::{c_int, c_void};

/// A C function with the work of a transaction.
pub type Body = Option<unsafe extern "C" fn(context: *mut c_void, tx: *mut Transaction) -> c_int>;

/// `outlast_lock` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_lock(
    store: *const CStore,
    key: *const c_void,
    key_len: usize,
    milliseconds: u64,
    guard: *mut *mut LockGuard,
    abandoned: *mut i64,
) -> c_int {
    call(|| {
        let OpenStore { store, job } = opened(store)?;
        give_handle(guard, || {
            let locked = store.lock(bytes(key, key_len)?, deadline(job, milliseconds))?;
            write_result(abandoned, locked.abandoned_by().map_or(-1, |member| i64::from(member.0)));
            Ok(locked)
        })
    })
}

/// `outlast_lock_version` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_lock_version(guard: *const LockGuard, version: *mut CVersion) -> c_int {
    call(|| {
        write_result(version, to_c(borrow_handle(guard)?.version()));
        Ok(Status::Ok)
    })
}

/// `outlast_unlock` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_unlock(guard: *mut LockGuard) -> c_int {
    call(|| {
        take_handle(guard)?.unlock()?;
        Ok(Status::Ok)
    })
}

/// `outlast_tx_begin` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_begin(store: *const CStore, tx: *mut *mut Transaction) -> c_int {
    call(|| give_handle(tx, || Ok(opened(store)?.store.begin())))
}

/// `outlast_tx_get` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_get(
    tx: *mut Transaction,
    key: *const c_void,
    key_len: usize,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    call(|| match borrow_handle_mut(tx)?.get(bytes(key, key_len)?)? {
        Some(value) => copy_out(&value, buffer, capacity, len),
        None => Ok(Status::Absent),
    })
}

/// `outlast_tx_get_before` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_get_before(
    tx: *mut Transaction,
    key: *const c_void,
    key_len: usize,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    version: *mut CVersion,
) -> c_int {
    call(|| match borrow_handle_mut(tx)?.get_before(bytes(key, key_len)?)? {
        Some(value) => {
            write_result(version, to_c(value.version()));
            copy_out(value.bytes(), buffer, capacity, len)
        }
        None => Ok(Status::Absent),
    })
}

/// `outlast_tx_version` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_version(
    tx: *const Transaction,
    key: *const c_void,
    key_len: usize,
    version: *mut CVersion,
) -> c_int {
    call(|| {
        let (tx, key) = (borrow_handle(tx)?, bytes(key, key_len)?);
        let set = tx.versions().iter().find(|(name, _)| name == key);
        if let Some((_, set)) = set {
            write_result(version, to_c(*set));
        }
        found(set.is_some())
    })
}

/// `outlast_tx_put` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_put(
    tx: *mut Transaction,
    key: *const c_void,
    key_len: usize,
    value: *const c_void,
    len: usize,
) -> c_int {
    call(|| {
        borrow_handle_mut(tx)?.put(bytes(key, key_len)?, bytes(value, len)?)?;
        Ok(Status::Ok)
    })
}

/// `outlast_tx_delete` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_delete(
    tx: *mut Transaction,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    call(|| found(borrow_handle_mut(tx)?.delete(bytes(key, key_len)?)?))
}

/// `outlast_tx_add` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_add(
    tx: *mut Transaction,
    key: *const c_void,
    key_len: usize,
    delta: i64,
    after: *mut i64,
) -> c_int {
    call(|| {
        write_result(after, borrow_handle_mut(tx)?.add(bytes(key, key_len)?, delta)?);
        Ok(Status::Ok)
    })
}

/// `outlast_tx_adopt` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_adopt(
    tx: *mut Transaction,
    key: *const c_void,
    key_len: usize,
) -> c_int {
    call(|| found(borrow_handle_mut(tx)?.adopt(bytes(key, key_len)?)?))
}

/// `outlast_tx_require` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_require(
    tx: *mut Transaction,
    key: *const c_void,
    key_len: usize,
    expected: *const CVersion,
) -> c_int {
    call(|| {
        let expect = version_at(expected).map_or(Expect::Absent, Expect::Version);
        borrow_handle_mut(tx)?.require(bytes(key, key_len)?, expect)?;
        Ok(Status::Ok)
    })
}

/// `outlast_tx_commit` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_commit(tx: *mut Transaction) -> c_int {
    call(|| {
        borrow_handle_mut(tx)?.commit()?;
        Ok(Status::Ok)
    })
}

/// `outlast_tx_abort` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_abort(tx: *mut Transaction) -> c_int {
    call(|| {
        borrow_handle_mut(tx)?.abort();
        Ok(Status::Ok)
    })
}

/// `outlast_tx_retry` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_retry(tx: *mut Transaction) -> c_int {
    call(|| {
        borrow_handle_mut(tx)?.retry()?;
        Ok(Status::Ok)
    })
}

/// `outlast_tx_free` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_tx_free(tx: *mut Transaction) {
    drop(take_handle(tx));
}

/// `outlast_transaction` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_transaction(
    store: *const CStore,
    body: Body,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let body = body.ok_or_else(|| invalid("the body of the transaction is NULL"))?;
        opened(store)?.store.transaction(|tx| {
            // SAFETY: the caller passed the function, and the context that belongs to it. `tx`
            // lives during the call.
            match unsafe { body(context, tx) } {
                0 => Ok(Status::Ok),
                status => {
                    // The message of the call that failed inside the callback stays. A code of the
                    // callback's own has no message.
                    Err(Failure { status, message: last_message() })
                }
            }
        })
    })
}

/// `outlast_revoke` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_revoke(store: *const CStore) -> c_int {
    call(|| {
        opened(store)?.store.revoke()?;
        Ok(Status::Ok)
    })
}

/// `outlast_is_revoked` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_is_revoked(store: *const CStore) -> c_int {
    opened(store).map_or(0, |store| c_int::from(store.store.is_revoked()))
}

/// `outlast_recover_begin` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_recover_begin(
    store: *const CStore,
    recovery: *mut *mut Recovery,
) -> c_int {
    call(|| {
        let store = opened(store)?;
        give_handle(recovery, || Ok(store.store.recover_begin()?))
    })
}

/// `outlast_recovery_tx` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_recovery_tx(recovery: *mut Recovery) -> *mut Transaction {
    borrow_handle_mut(recovery).map_or(std::ptr::null_mut(), |recovery| recovery.tx())
}

/// `outlast_recovery_death` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_recovery_death(
    recovery: *const Recovery,
    number: usize,
    member: *mut u32,
    heir: *mut u32,
) -> c_int {
    call(|| {
        let Some(death) = borrow_handle(recovery)?.deaths().get(number) else {
            return Ok(Status::Absent);
        };
        write_result(member, death.member.0);
        write_result(heir, death.heir().0);
        Ok(Status::Ok)
    })
}

/// `outlast_recover_end` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_recover_end(recovery: *mut Recovery) -> c_int {
    call(|| {
        take_handle(recovery)?.end()?;
        Ok(Status::Ok)
    })
}

/// `outlast_recover_fail` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_recover_fail(recovery: *mut Recovery) -> c_int {
    call(|| {
        take_handle(recovery)?.fail("a member called outlast_recover_fail")?;
        Ok(Status::Ok)
    })
}
