//! Images for C: erasure-coded objects in the memories of members, replaced as a whole.

use crate::call::{
    CallResult, borrow_handle, bytes, call, copy_out, done, failure, give_handle, items_mut,
    opened, options_at, take_handle, text, write_list, write_result,
};
use crate::regions::{CRegionOptions, image_options};
use crate::status::Status;
use crate::store::CStore;
use outlast::image::{ImageError, ImageResult, Images};
use std::ffi::{c_char, c_int, c_void};

/// The answer of a call on an image that need not exist.
fn found(result: ImageResult<()>) -> CallResult {
    match result {
        Err(ImageError::Absent { .. }) => Ok(Status::Absent),
        other => done(other),
    }
}

/// `outlast_images_open` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_images_open(
    store: *const CStore,
    name: *const c_char,
    options: *const CRegionOptions,
    images: *mut *mut Images,
) -> c_int {
    call(|| {
        let (store, options) = (opened(store)?, image_options(options_at(options)?));
        give_handle(images, || Ok(Images::open(&store.store, text(name)?, options)?))
    })
}

/// `outlast_image_save` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_image_save(
    images: *const Images,
    name: *const c_char,
    note: *const c_void,
    note_len: usize,
    data: *const c_void,
    len: usize,
) -> c_int {
    call(|| {
        let (images, name) = (borrow_handle(images)?, text(name)?);
        done(images.save(name, bytes(note, note_len)?, bytes(data, len)?))
    })
}

/// `outlast_image_load` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_image_load(
    images: *const Images,
    name: *const c_char,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
    note: *mut c_void,
    note_capacity: usize,
    note_len: *mut usize,
) -> c_int {
    call(|| {
        let image = match borrow_handle(images)?.load(text(name)?) {
            Ok(image) => image,
            Err(ImageError::Absent { .. }) => return Ok(Status::Absent),
            Err(error) => return Err(error.into()),
        };
        write_result(len, image.bytes().len());
        write_result(note_len, image.note().len());
        // Both lengths are told before either buffer is found too small.
        if image.bytes().len() > capacity || image.note().len() > note_capacity {
            let message = format!(
                "the image has {} bytes and a note of {}, and the buffers have {capacity} and \
                 {note_capacity}",
                image.bytes().len(),
                image.note().len()
            );
            return Err(failure(Status::TooSmall, message));
        }
        copy_out(image.note(), note, note_capacity, std::ptr::null_mut())?;
        copy_out(image.bytes(), buffer, capacity, std::ptr::null_mut())
    })
}

/// `outlast_image_read` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_image_read(
    images: *const Images,
    name: *const c_char,
    offset: u64,
    buffer: *mut c_void,
    len: usize,
) -> c_int {
    call(|| {
        let (images, name) = (borrow_handle(images)?, text(name)?);
        found(images.read(name, offset, items_mut(buffer.cast(), len)?))
    })
}

/// `outlast_image_delete` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_image_delete(images: *const Images, name: *const c_char) -> c_int {
    call(|| {
        let existed = borrow_handle(images)?.delete(text(name)?)?;
        Ok(if existed { Status::Ok } else { Status::Absent })
    })
}

/// `outlast_images_missing` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_images_missing(images: *const Images, pieces: *mut usize) -> c_int {
    call(|| {
        write_result(pieces, borrow_handle(images)?.pieces_missing()?);
        Ok(Status::Ok)
    })
}

/// `outlast_images_holders` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_images_holders(
    images: *const Images,
    members: *mut u32,
    capacity: usize,
    count: *mut usize,
    is_apart: *mut c_int,
) -> c_int {
    call(|| {
        let images = borrow_handle(images)?;
        write_result(is_apart, c_int::from(images.is_apart_as_asked()));
        let holders: Vec<u32> = images.holders().iter().map(|member| member.0).collect();
        write_list(&holders, members, capacity, count)
    })
}

/// `outlast_images_close` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_images_close(images: *mut Images) -> c_int {
    call(|| done(take_handle(images)?.close()))
}
