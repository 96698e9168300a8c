//! Requests: sends, receives and operations on windows that were started, to be completed later.
//!
//! A request of the library gives its result once. A result of C that does not fit into the buffer
//! stays in the request, so that it can be taken with a larger buffer.

use crate::call::{
    CallResult, Failure, borrow_handle, borrow_handle_mut, bytes, call, copy_out, failure,
    give_handle, invalid, items, items_mut, take_handle, write_result,
};
use crate::comm::{source, tag_of};
use crate::status::Status;
use crate::window::update;
use outlast::engine::Done;
use outlast::rma::{
    self, Communicator, Received, Request, Window, WindowRequest, WindowResult, Word,
};
use std::ffi::{c_int, c_void};
use std::time::Duration;

/// A send or receive that was started, and its message until it is copied out.
pub struct CRequest {
    /// `None` while a call waits for several requests.
    request: Option<Request>,
    received: Option<Received>,
}

impl CRequest {
    fn new(request: Request) -> CRequest {
        CRequest { request: Some(request), received: None }
    }

    /// The request of the library.
    fn request(&mut self) -> Result<&mut Request, Failure> {
        self.request.as_mut().ok_or_else(|| failure(Status::Failed, "the library panicked before"))
    }
}

/// `outlast_comm_start_send` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_start_send(
    comm: *const Communicator,
    to: u32,
    tag: u32,
    message: *const c_void,
    len: usize,
    request: *mut *mut CRequest,
) -> c_int {
    call(|| {
        let (comm, message) = (borrow_handle(comm)?, bytes(message, len)?);
        give_handle(request, || Ok(CRequest::new(comm.start_send(to as usize, tag, message)?)))
    })
}

/// `outlast_comm_start_receive` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_comm_start_receive(
    comm: *const Communicator,
    from: i64,
    tag: i64,
    request: *mut *mut CRequest,
) -> c_int {
    call(|| {
        let (comm, from, tag) = (borrow_handle(comm)?, source(from)?, tag_of(tag)?);
        give_handle(request, || Ok(CRequest::new(comm.start_receive(from, tag)?)))
    })
}

/// Copies the message of a request out. A message that does not fit stays in the request.
fn deliver(
    request: &mut CRequest,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    sender: *mut u32,
    sent_tag: *mut u32,
) -> CallResult {
    let Some(received) = &request.received else { return Ok(Status::Absent) };
    write_result(sender, received.source as u32);
    write_result(sent_tag, received.tag);
    copy_out(&received.bytes, buffer, capacity, len)?;
    request.received = None;
    Ok(Status::Ok)
}

/// `outlast_request_test` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_request_test(
    request: *mut CRequest,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    sender: *mut u32,
    sent_tag: *mut u32,
) -> c_int {
    call(|| {
        let request = borrow_handle_mut(request)?;
        if request.received.is_none() {
            if request.request()?.is_over() {
                return Err(rma::Error::AlreadyTaken.into());
            }
            request.received = request.request()?.test().transpose()?;
        }
        deliver(request, buffer, capacity, len, sender, sent_tag)
    })
}

/// `outlast_request_wait` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_request_wait(
    request: *mut CRequest,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    sender: *mut u32,
    sent_tag: *mut u32,
) -> c_int {
    call(|| {
        let request = borrow_handle_mut(request)?;
        if request.received.is_none() {
            request.received = Some(request.request()?.wait()?);
        }
        deliver(request, buffer, capacity, len, sender, sent_tag)
    })
}

/// `outlast_request_wait_within` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_request_wait_within(
    request: *mut CRequest,
    milliseconds: u64,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    sender: *mut u32,
    sent_tag: *mut u32,
) -> c_int {
    call(|| {
        let request = borrow_handle_mut(request)?;
        if request.received.is_none() {
            let limit = Duration::from_millis(milliseconds);
            request.received = Some(request.request()?.wait_within(limit)?);
        }
        deliver(request, buffer, capacity, len, sender, sent_tag)
    })
}

/// `outlast_request_free` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_request_free(request: *mut CRequest) {
    drop(take_handle(request));
}

/// Several requests that C passes, in the hands of a single call. When it is dropped, the requests
/// are in their handles again.
struct Taken<'a> {
    handles: Vec<&'a mut CRequest>,
    requests: Vec<Request>,
}

impl Taken<'_> {
    fn of<'a>(requests: *const *mut CRequest, count: usize) -> Result<Taken<'a>, Failure> {
        let given = items(requests, count)?;
        let mut sorted = given.to_vec();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(invalid("a request is twice in the list"));
        }
        let mut handles: Vec<&mut CRequest> =
            given.iter().map(|request| borrow_handle_mut(*request)).collect::<Result<_, _>>()?;
        for handle in &mut handles {
            handle.request()?;
        }
        let requests = handles.iter_mut().filter_map(|handle| handle.request.take()).collect();
        Ok(Taken { handles, requests })
    }

    /// The first request whose message an earlier call has found, and which was not copied out.
    fn with_message(&self) -> Option<usize> {
        self.handles.iter().position(|handle| handle.received.is_some())
    }

    /// Keeps the message of a request that is complete.
    fn keep(&mut self, index: usize, result: rma::Result<Received>) -> CallResult {
        self.handles[index].received = Some(result?);
        Ok(Status::Ok)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for (handle, request) in self.handles.iter_mut().zip(self.requests.drain(..)) {
            handle.request = Some(request);
        }
    }
}

/// `outlast_request_wait_any` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_request_wait_any(
    requests: *const *mut CRequest,
    count: usize,
    index: *mut usize,
) -> c_int {
    call(|| {
        let mut taken = Taken::of(requests, count)?;
        let found = match taken.with_message() {
            Some(ready) => (ready, None),
            None => rma::wait_any(&mut taken.requests).map(|(at, result)| (at, Some(result)))?,
        };
        write_result(index, found.0);
        found.1.map_or(Ok(Status::Ok), |result| taken.keep(found.0, result))
    })
}

/// `outlast_request_test_any` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_request_test_any(
    requests: *const *mut CRequest,
    count: usize,
    index: *mut usize,
) -> c_int {
    call(|| {
        let mut taken = Taken::of(requests, count)?;
        let found = match taken.with_message() {
            Some(ready) => (ready, None),
            None if taken.requests.iter().all(Request::is_over) => {
                return Err(rma::Error::AlreadyTaken.into());
            }
            None => match rma::test_any(&mut taken.requests) {
                Some((at, result)) => (at, Some(result)),
                None => return Ok(Status::Absent),
            },
        };
        write_result(index, found.0);
        found.1.map_or(Ok(Status::Ok), |result| taken.keep(found.0, result))
    })
}

/// `outlast_request_wait_all` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_request_wait_all(
    requests: *const *mut CRequest,
    count: usize,
    statuses: *mut c_int,
) -> c_int {
    call(|| {
        let statuses = items_mut(statuses, if statuses.is_null() { 0 } else { count })?;
        let mut taken = Taken::of(requests, count)?;
        let results = rma::wait_all(&mut taken.requests)?;
        let mut first = Ok(Status::Ok);
        for (index, result) in results.into_iter().enumerate() {
            let result = match result {
                // A message that was found before and has not been copied out.
                Err(rma::Error::AlreadyTaken) if taken.handles[index].received.is_some() => {
                    Ok(Status::Ok)
                }
                Err(rma::Error::AlreadyTaken) => Ok(Status::Over),
                result => taken.keep(index, result),
            };
            if let Some(place) = statuses.get_mut(index) {
                *place = match &result {
                    Ok(status) => *status as c_int,
                    Err(failure) => failure.status,
                };
            }
            if result.is_err() && first.is_ok() {
                first = result;
            }
        }
        first
    })
}

/// An operation on a window that was started, and its result until it is copied out.
pub struct CWindowRequest {
    request: WindowRequest,
    /// What a get has read, or the word that an operation on a word has found.
    result: Option<Vec<u8>>,
}

/// Gives C a request of a window.
fn give_request(
    window: *const Window,
    request: *mut *mut CWindowRequest,
    start: impl FnOnce(&Window) -> Result<WindowRequest, Failure>,
) -> CallResult {
    let window = borrow_handle(window)?;
    give_handle(request, || Ok(CWindowRequest { request: start(window)?, result: None }))
}

/// `outlast_window_start_put` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_start_put(
    window: *const Window,
    target: u32,
    offset: u64,
    data: *const c_void,
    len: usize,
    request: *mut *mut CWindowRequest,
) -> c_int {
    call(|| {
        give_request(window, request, |window| {
            Ok(window.start_put(target as usize, offset, bytes(data, len)?)?)
        })
    })
}

/// `outlast_window_start_get` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_start_get(
    window: *const Window,
    target: u32,
    offset: u64,
    len: usize,
    request: *mut *mut CWindowRequest,
) -> c_int {
    call(|| {
        give_request(window, request, |window| {
            Ok(window.start_get(target as usize, offset, len)?)
        })
    })
}

fn start_accumulate<W: Word>(
    window: *const Window,
    target: u32,
    offset: u64,
    op: c_int,
    values: Result<&[W], Failure>,
    request: *mut *mut CWindowRequest,
) -> CallResult {
    let (op, values) = (update(op)?, values?);
    give_request(window, request, |window| {
        Ok(window.start_accumulate(target as usize, offset, op, values)?)
    })
}

/// `outlast_window_start_accumulate_u64` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_start_accumulate_u64(
    window: *const Window,
    target: u32,
    offset: u64,
    op: c_int,
    values: *const u64,
    count: usize,
    request: *mut *mut CWindowRequest,
) -> c_int {
    call(|| start_accumulate(window, target, offset, op, items(values, count), request))
}

/// `outlast_window_start_accumulate_i64` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_start_accumulate_i64(
    window: *const Window,
    target: u32,
    offset: u64,
    op: c_int,
    values: *const i64,
    count: usize,
    request: *mut *mut CWindowRequest,
) -> c_int {
    call(|| start_accumulate(window, target, offset, op, items(values, count), request))
}

/// `outlast_window_start_fetch_and_op_u64` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_start_fetch_and_op_u64(
    window: *const Window,
    target: u32,
    offset: u64,
    op: c_int,
    value: u64,
    request: *mut *mut CWindowRequest,
) -> c_int {
    call(|| start_accumulate(window, target, offset, op, Ok(&[value]), request))
}

/// `outlast_window_start_fetch_and_op_i64` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_start_fetch_and_op_i64(
    window: *const Window,
    target: u32,
    offset: u64,
    op: c_int,
    value: i64,
    request: *mut *mut CWindowRequest,
) -> c_int {
    call(|| start_accumulate(window, target, offset, op, Ok(&[value]), request))
}

/// `outlast_window_start_compare_and_swap` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_start_compare_and_swap(
    window: *const Window,
    target: u32,
    offset: u64,
    expected: u64,
    new: u64,
    request: *mut *mut CWindowRequest,
) -> c_int {
    call(|| {
        give_request(window, request, |window| {
            Ok(window.start_compare_and_swap(target as usize, offset, expected, new)?)
        })
    })
}

/// Keeps the result of an operation that is complete.
fn keep(request: &mut CWindowRequest, result: WindowResult<Done>) -> Result<(), Failure> {
    request.result = Some(match result? {
        Done::Get(bytes) => bytes,
        Done::Word(word) => word.to_ne_bytes().to_vec(),
        _ => Vec::new(),
    });
    Ok(())
}

/// Copies the result of an operation out. A result that does not fit stays in the request.
fn give_result(
    request: &mut CWindowRequest,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> CallResult {
    let Some(result) = &request.result else { return Ok(Status::Absent) };
    copy_out(result, buffer, capacity, len)?;
    request.result = None;
    Ok(Status::Ok)
}

/// `outlast_window_request_test` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_request_test(
    request: *mut CWindowRequest,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    call(|| {
        let request = borrow_handle_mut(request)?;
        if request.result.is_none()
            && let Some(result) = request.request.test()
        {
            keep(request, result)?;
        }
        give_result(request, buffer, capacity, len)
    })
}

/// `outlast_window_request_wait` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_request_wait(
    request: *mut CWindowRequest,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    call(|| {
        let request = borrow_handle_mut(request)?;
        if request.result.is_none() {
            let result = request.request.wait();
            keep(request, result)?;
        }
        give_result(request, buffer, capacity, len)
    })
}

/// `outlast_window_request_free` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_window_request_free(request: *mut CWindowRequest) {
    drop(take_handle(request));
}
