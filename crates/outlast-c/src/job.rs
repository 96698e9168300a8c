//! Joining and leaving a job, its members, and waiting for whatever comes first.

use crate::call::{
    CallResult, Shell, SizedStruct, call, close_shell, copy_out, deadline, done, failure, found,
    give_shell, invalid, opened, options_at, text, write_list, write_result,
};
use crate::status::Status;
use outlast::engine::Bell;
use outlast::rma::Communicator;
use outlast::{Job, JoinError, JoinOptions, MemberId};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Once;
use std::time::Duration;

/// `outlast_job` of the header.
pub type CJob = Shell<Job>;

/// `outlast_join_options` of the header; zero is the default of each option.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CJoinOptions {
    struct_size: usize,
    time_limit_ms: u64,
    segment_limit: u64,
    domain: *const c_char,
    mpi_communicator: *mut c_void,
    set_errhandlers: u32,
}

// SAFETY: `repr(C)`, the size first, and zero is valid for numbers and pointers.
unsafe impl SizedStruct for CJoinOptions {
    const NAME: &'static str = "outlast_join_options";
}

/// Writes the library's log of failures and repair to standard error, from the level in OUTLAST_LOG
/// on; once in a process.
fn start_log() {
    static START: Once = Once::new();
    START.call_once(|| {
        let Some(level) = std::env::var_os("OUTLAST_LOG").filter(|level| !level.is_empty()) else {
            return;
        };
        let parsed = level.to_str().and_then(|level| level.parse().ok());
        let Some(level) = parsed.map(tracing_subscriber::filter::LevelFilter::from_level) else {
            if level != "off" {
                eprintln!(
                    "outlast: OUTLAST_LOG is {level:?}; it may be off, error, warn, info, debug or \
                     trace"
                );
            }
            return;
        };
        // A program in Rust that links this library may have a log of its own.
        let _ = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(std::io::stderr)
            .try_init();
    });
}

fn join(options: JoinOptions, job: *mut *mut CJob) -> CallResult {
    start_log();
    let refused = |error: JoinError| failure(Status::NotJoined, error.to_string());
    give_shell(job, || options.join().map_err(refused))
}

/// Adds a communicator of the program to the options, unless it is null.
fn with_communicator(options: JoinOptions, comm: *mut c_void) -> JoinOptions {
    if comm.is_null() {
        return options;
    }
    // SAFETY: the header says that `comm` is a communicator of Open MPI. It is only duplicated,
    // before the call returns.
    options.communicator(unsafe { outlast::engine::mpi::Communicator::from_raw(comm) })
}

/// `outlast_join` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_join(job: *mut *mut CJob) -> c_int {
    call(|| join(JoinOptions::new(), job))
}

/// `outlast_join_with` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_join_with(options: *const CJoinOptions, job: *mut *mut CJob) -> c_int {
    call(|| {
        let mut wanted = JoinOptions::new();
        if let Some(given) = options_at(options)? {
            if given.time_limit_ms != 0 {
                wanted = wanted.time_limit(Duration::from_millis(given.time_limit_ms));
            }
            if given.segment_limit != 0 {
                wanted = wanted.segment_limit(given.segment_limit);
            }
            if !given.domain.is_null() {
                wanted = wanted.domain(text(given.domain)?);
            }
            wanted = wanted.set_errhandlers(given.set_errhandlers != 0);
            wanted = with_communicator(wanted, given.mpi_communicator);
        }
        join(wanted, job)
    })
}

/// `outlast_join_mpi` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_join_mpi(
    comm: *mut c_void,
    set_errhandlers: c_int,
    job: *mut *mut CJob,
) -> c_int {
    call(|| {
        let options = JoinOptions::new().set_errhandlers(set_errhandlers != 0);
        join(with_communicator(options, comm), job)
    })
}

/// `outlast_mpi_shrunken` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_mpi_shrunken(job: *const CJob, comm: *mut *mut c_void) -> c_int {
    call(|| {
        if comm.is_null() {
            return Err(invalid("the place for the communicator is NULL"));
        }
        write_result(comm, opened(job)?.shrunken_communicator()?.as_raw());
        Ok(Status::Ok)
    })
}

/// `outlast_leave` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_leave(job: *mut CJob) -> c_int {
    call(|| done(close_shell(job)?.leave()))
}

/// `outlast_me` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_me(job: *const CJob) -> u32 {
    opened(job).map_or(u32::MAX, |job| job.me().0)
}

/// `outlast_members` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_members(job: *const CJob) -> u32 {
    opened(job).map_or(0, |job| job.members() as u32)
}

/// `outlast_time_limit_ms` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_time_limit_ms(job: *const CJob) -> u64 {
    opened(job).map_or(0, |job| job.time_limit().as_millis() as u64)
}

/// `outlast_living` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_living(job: *const CJob) -> u32 {
    opened(job).map_or(0, |job| job.view().living().count() as u32)
}

/// `outlast_living_members` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_living_members(
    job: *const CJob,
    members: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    call(|| {
        let living: Vec<u32> = opened(job)?.view().living().map(|member| member.0).collect();
        write_list(&living, members, capacity, count)
    })
}

/// `outlast_is_living` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_is_living(job: *const CJob, member: u32) -> c_int {
    opened(job).map_or(0, |job| c_int::from(job.view().is_living(MemberId(member))))
}

/// `outlast_domain` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_domain(
    job: *const CJob,
    member: u32,
    buffer: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    call(|| {
        let domain = opened(job)?.domain(MemberId(member))?;
        copy_out(domain.as_bytes(), buffer.cast(), capacity, len)
    })
}

/// `outlast_fence` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_fence(job: *const CJob, member: u32, milliseconds: u64) -> c_int {
    call(|| {
        let job = opened(job)?;
        done(job.fence(MemberId(member), deadline(job, milliseconds)))
    })
}

/// `outlast_bell` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_bell(job: *const CJob) -> u64 {
    opened(job).map_or(0, |job| job.bell().0)
}

/// `outlast_park` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_park(job: *const CJob, bell: u64, milliseconds: u64) -> c_int {
    call(|| {
        let job = opened(job)?;
        // Refuses a forked child and a member that has ended: their bells never ring.
        job.segment_len(job.me())?;
        job.park(Bell(bell), deadline(job, milliseconds));
        found(job.bell() != Bell(bell))
    })
}

/// `outlast_ring` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_ring(job: *const CJob, member: u32) -> c_int {
    call(|| done(opened(job)?.ring(MemberId(member))))
}

/// `outlast_barrier` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_barrier(job: *const CJob) -> c_int {
    // An agreement ends at all living members, whichever members die meanwhile; a barrier of a
    // communicator fails once a member is dead.
    call(|| done(Communicator::world(opened(job)?)?.agree_despite_failures(u64::MAX)))
}
