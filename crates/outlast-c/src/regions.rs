//! Region checkpoints for C: the calls of the section of that name in `include/outlast.h`.
//!
//! A program tells which memory is a region with `outlast_protect`, and keeps it valid until it
//! says otherwise. `outlast_checkpoint` reads that memory, and `outlast_restore` writes it.

use crate::call::{
    SizedStruct, borrow_handle, borrow_handle_mut, bytes, call, copy_out, done, give_handle,
    invalid, items_mut, opened, options_at, take_handle, text, write_result,
};
use crate::status::Status;
use crate::store::CStore;
use outlast::image::{ImageError, Level, Options, Owner, Regions};
use std::ffi::{CString, c_char, c_int, c_void};

/// `outlast_regions` of the header.
pub struct CRegions {
    regions: Regions,
    /// The name, address and length of each region.
    protected: Vec<(String, *mut u8, usize)>,
    /// The note that the last restore found.
    note: Vec<u8>,
}

/// `outlast_region_options` of the header; zero is the default of each option.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CRegionOptions {
    struct_size: usize,
    bytes: u64,
    set: u32,
    lose: u32,
    apart_depth: u32,
    strict: u32,
    piece: u32,
    room: u32,
}

// SAFETY: `repr(C)`, the size first, and zero is valid for numbers.
unsafe impl SizedStruct for CRegionOptions {
    const NAME: &'static str = "outlast_region_options";
}

/// The options of images and region checkpoints as the library takes them.
pub(crate) fn image_options(given: Option<CRegionOptions>) -> Options {
    let or = |value: u32, default: usize| if value == 0 { default } else { value as usize };
    let bytes = given.map_or(0, |given| given.bytes);
    let mut wanted = Options::new(if bytes == 0 { 16 << 20 } else { bytes });
    if let Some(given) = given {
        wanted = wanted.set(or(given.set, 8)).lose(or(given.lose, 1));
        wanted = wanted.piece(or(given.piece, 16 << 10));
        if given.apart_depth != 0 {
            wanted = wanted.apart(Level::Depth(given.apart_depth as usize));
        }
        if given.strict != 0 {
            wanted = wanted.strict();
        }
        if given.room != 0 {
            wanted = wanted.room(given.room);
        }
    }
    wanted
}

/// `outlast_restored` of the header.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CRestored {
    rank: u32,
    size: u32,
    version: u64,
}

/// A C function that is called for each region of each owner.
pub type VisitRegion = Option<
    unsafe extern "C" fn(context: *mut c_void, owner: u32, name: *const c_char, len: u64) -> c_int,
>;

/// `OUTLAST_ALL` of the header.
const ALL: u32 = u32::MAX;

/// `outlast_regions_open` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_regions_open(
    store: *const CStore,
    name: *const c_char,
    options: *const CRegionOptions,
    regions: *mut *mut CRegions,
) -> c_int {
    call(|| {
        let (store, wanted) = (opened(store)?, image_options(options_at(options)?));
        give_handle(regions, || {
            let opened = Regions::open(&store.store, text(name)?, wanted)?;
            Ok(CRegions { regions: opened, protected: vec![], note: vec![] })
        })
    })
}

/// `outlast_protect` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_protect(
    regions: *mut CRegions,
    name: *const c_char,
    memory: *mut c_void,
    len: usize,
) -> c_int {
    call(|| {
        let (regions, name) = (borrow_handle_mut(regions)?, text(name)?);
        if len > 0 {
            if memory.is_null() {
                return Err(invalid(format!(
                    "the memory of the region `{name}` is NULL, or an array of Fortran with gaps"
                )));
            }
            // Checks the length.
            bytes(memory, len)?;
        }
        regions.protected.retain(|(other, _, _)| other != name);
        if len > 0 {
            regions.protected.push((name.to_string(), memory.cast(), len));
        }
        Ok(Status::Ok)
    })
}

/// `outlast_checkpoint` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_checkpoint(
    regions: *mut CRegions,
    version: u64,
    note: *const c_void,
    note_len: usize,
) -> c_int {
    call(|| {
        let (regions, note) = (borrow_handle_mut(regions)?, bytes(note, note_len)?);
        let region = |(name, memory, len): &(String, *mut u8, usize)| {
            // SAFETY: the header says that the memory of a region is valid until the program ends
            // its protection, and that no thread changes it during this call.
            (name.clone(), unsafe { std::slice::from_raw_parts(memory.cast_const(), *len) })
        };
        let protected: Vec<(String, &[u8])> = regions.protected.iter().map(region).collect();
        let given: Vec<(&str, &[u8])> =
            protected.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
        match regions.regions.checkpoint(version, note, &given) {
            Ok(()) => Ok(Status::Ok),
            Err(ImageError::MemberDied) => Ok(Status::Died),
            Err(error) => Err(error.into()),
        }
    })
}

/// `outlast_restore` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_restore(regions: *mut CRegions, at: *mut CRestored) -> c_int {
    call(|| {
        let regions = borrow_handle_mut(regions)?;
        let region = |(name, memory, len): &(String, *mut u8, usize)| {
            // SAFETY: the header says that the memory of a region is valid until the program ends
            // its protection, that regions do not overlap, and that no other thread uses them
            // during this call.
            (name.clone(), unsafe { std::slice::from_raw_parts_mut(*memory, *len) })
        };
        let mut protected: Vec<(String, &mut [u8])> =
            regions.protected.iter().map(region).collect();
        let mut given: Vec<(&str, &mut [u8])> =
            protected.iter_mut().map(|(name, bytes)| (name.as_str(), &mut **bytes)).collect();
        let restored = regions.regions.restore(&mut given)?;
        let version = restored.version.unwrap_or(0);
        let (rank, size) = (restored.rank as u32, restored.size as u32);
        write_result(at, CRestored { rank, size, version });
        regions.note = restored.note;
        Ok(if restored.version.is_some() { Status::Ok } else { Status::Absent })
    })
}

/// `outlast_region_note` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_region_note(
    regions: *const CRegions,
    buffer: *mut c_void,
    capacity: usize,
    len: *mut usize,
) -> c_int {
    call(|| copy_out(&borrow_handle(regions)?.note, buffer, capacity, len))
}

/// `outlast_region_read` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_region_read(
    regions: *const CRegions,
    owner: u32,
    name: *const c_char,
    offset: u64,
    buffer: *mut c_void,
    len: usize,
) -> c_int {
    call(|| {
        let (regions, name) = (borrow_handle(regions)?, text(name)?);
        let owner = if owner == ALL { Owner::All } else { Owner::Number(owner as usize) };
        done(regions.regions.read(owner, name, offset, items_mut(buffer.cast(), len)?))
    })
}

/// `outlast_region_owners` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_region_owners(
    regions: *const CRegions,
    visit: VisitRegion,
    context: *mut c_void,
    count: *mut u32,
) -> c_int {
    call(|| {
        let owners = borrow_handle(regions)?.regions.owners()?;
        write_result(count, owners.len() as u32);
        let Some(visit) = visit else { return Ok(Status::Ok) };
        let regions = owners.iter().zip(0..).flat_map(|(owned, owner)| {
            owned.iter().map(move |(name, len)| (owner, name.as_str(), *len))
        });
        for (owner, name, len) in regions {
            let name = CString::new(name)
                .map_err(|_| invalid(format!("the name {name:?} has a null character inside")))?;
            // SAFETY: the caller passed the function, and the context that belongs to it.
            if unsafe { visit(context, owner, name.as_ptr(), len) } != 0 {
                break;
            }
        }
        Ok(Status::Ok)
    })
}

/// `outlast_regions_close` of outlast.h.
#[unsafe(no_mangle)]
pub extern "C" fn outlast_regions_close(regions: *mut CRegions) -> c_int {
    call(|| done(take_handle(regions)?.regions.close()))
}
