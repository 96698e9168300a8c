//! The plug-in: where it is looked for, and the checks before any of its functions is called.
//!
//! The shim is compiled on the machine of the user, by the compiler wrapper of the user's MPI, and
//! loaded when a process joins over MPI. So no library or program of Outlast is linked to an MPI,
//! and a process that does not use MPI does not load it.

use crate::Shim;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Names the plug-in. Without it the plug-in is looked for in several places.
pub const VARIABLE: &str = "OUTLAST_MPI_SHIM";

/// The name of the plug-in's file.
pub const FILE_NAME: &str = "liboutlast_mpi.so";

/// The number of the interface between the shim and this crate; `SHIM_INTERFACE` in `shim.c`.
pub(crate) const INTERFACE: c_int = 2;

/// `outlast_mpi_interface` of the shim.
type Interface = extern "C" fn() -> c_int;

/// `outlast_mpi_versions` of the shim.
type Versions = unsafe extern "C" fn(*mut c_int, *mut c_int, *mut c_char, c_int) -> c_int;

/// The functions of the plug-in, once it is loaded. It is never unloaded.
static SHIM: OnceLock<Shim> = OnceLock::new();

/// The functions of the plug-in.
pub(crate) fn loaded() -> &'static Shim {
    SHIM.get().expect("`load` comes before all other calls")
}

/// A plug-in that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// The file.
    pub path: PathBuf,
    /// The MPI that it was compiled for, and that this process runs with: `Open MPI v5.0.11`.
    pub mpi: String,
}

/// Loads the plug-in, unless that is done. An error says what is wrong and what to type.
pub fn load() -> Result<(), String> {
    static LOADING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    if SHIM.get().is_some() {
        return Ok(());
    }
    let (shim, _) = find().and_then(open).map_err(|reason| format!("{reason}; {ADVICE}"))?;
    let _ = SHIM.set(shim);
    Ok(())
}

/// The plug-in that `load` takes, or the reason for which it takes none. It is loaded for that.
pub fn inspect() -> Result<Plugin, String> {
    let (_, plugin) = find().and_then(open)?;
    Ok(plugin)
}

/// What to type to get a plug-in.
const ADVICE: &str = "type `outlast mpi setup`, which compiles it with the mpicc in PATH (in a \
                      checkout: `cargo xtask mpi-shim`), or set OUTLAST_MPI_SHIM to its file";

/// The plug-in: the file that the variable names, or else the first that exists.
fn find() -> Result<PathBuf, String> {
    if let Some(named) = std::env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        // Falling back from a named file to another would hide a typing error.
        return if named.exists() {
            Ok(named)
        } else {
            Err(format!("{VARIABLE} names {}, which does not exist", named.display()))
        };
    }
    let places = places();
    let found = places.iter().find(|path| path.exists()).cloned();
    found.ok_or_else(|| {
        let places: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
        format!("there is no plug-in for MPI at {}", places.join(", "))
    })
}

/// The places of the plug-in: beside the library or the program that has this code, in the folder
/// of libraries beside a folder of programs, in the cache of the user, and in a checkout.
fn places() -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Some(folder) = own_folder() {
        places.push(folder.join(FILE_NAME));
        places.push(folder.join("../lib").join(FILE_NAME));
    }
    places.extend(in_cache());
    places.push(in_checkout());
    places
}

/// The plug-in that `outlast mpi setup` makes: in the cache of the user, for this interface.
pub fn in_cache() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = folder("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| folder("HOME").map(|home| Path::new(&home).join(".cache")))?;
    Some(cache.join(format!("outlast/mpi-{INTERFACE}")).join(FILE_NAME))
}

/// The plug-in that `cargo xtask mpi-shim` makes, beside the Open MPI of `cargo xtask mpi`.
pub fn in_checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mpi/lib").join(FILE_NAME)
}

/// The folder of the library or program that has this code.
fn own_folder() -> Option<PathBuf> {
    // SAFETY: zero is valid for pointers and numbers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is that of a function of this library or program, and `info` is valid.
    let found = unsafe { libc::dladdr(own_folder as *const c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the name ends with a null character and lives as long as the object is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes().to_vec();
    let path = PathBuf::from(std::ffi::OsString::from_vec(name));
    // The name of a program may be that by which it was called: without its folder.
    let path = if path.is_absolute() { path } else { std::env::current_exe().ok()? };
    path.parent().map(Path::to_path_buf)
}

/// Opens the plug-in, and checks that it is of this interface and that its MPI is the one that it
/// was compiled for.
fn open(path: PathBuf) -> Result<(Shim, Plugin), String> {
    match open_checked(&path) {
        Ok((shim, mpi)) => Ok((shim, Plugin { path, mpi })),
        Err(reason) => {
            Err(format!("the plug-in for MPI {} cannot be used: {reason}", path.display()))
        }
    }
}

fn open_checked(path: &Path) -> Result<(Shim, String), String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "a null character")?;
    // SAFETY: the plug-in has no constructors of its own; those of Open MPI may run at any time.
    // Its names stay local, so that they do not get in the way of the program's own MPI.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(last_error());
    }
    let interface =
        symbol(library, c"outlast_mpi_interface").map_err(|_| "it is no plug-in of Outlast")?;
    // SAFETY: the function of this name has this type in every version of the shim.
    let interface = unsafe { std::mem::transmute::<*mut c_void, Interface>(interface) };
    let interface = interface();
    if interface != INTERFACE {
        return Err(format!(
            "it is of another version of Outlast (interface {interface}, and not {INTERFACE})"
        ));
    }
    // SAFETY: the plug-in has the interface of this crate.
    let shim = unsafe { Shim::of(library) }?;
    // A program that is linked with another MPI has brought its functions first: the plug-in would
    // call these.
    let (mut major, mut minor) = (0, 0);
    let mut text = [0 as c_char; 8192];
    let versions = symbol(library, c"outlast_mpi_versions")?;
    // SAFETY: the plug-in has the interface of this crate.
    let versions = unsafe { std::mem::transmute::<*mut c_void, Versions>(versions) };
    // SAFETY: the pointers are valid, and the text has room for that many bytes. MPI allows the
    // call before it is initialized.
    let code = unsafe { versions(&mut major, &mut minor, text.as_mut_ptr(), text.len() as c_int) };
    // SAFETY: the shim ends the text with a null character.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
    if code != 0 || !text.starts_with(&format!("Open MPI v{major}.{minor}.")) {
        let runs: String = text.lines().next().unwrap_or("").chars().take(80).collect();
        return Err(format!(
            "it was compiled for Open MPI {major}.{minor}, and this process runs with another MPI \
             ({runs}); compile it with the mpicc of that MPI"
        ));
    }
    Ok((shim, text.split(',').next().unwrap_or_default().to_string()))
}

/// The address of a function of the plug-in.
pub(crate) fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the library is open, and the name ends with a null character.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() { Err(format!("it has no {}", name.to_string_lossy())) } else { Ok(found) }
}

/// What the loader says about its last error.
fn last_error() -> String {
    // SAFETY: the text is valid until this thread calls the loader again.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gives no reason".into();
    }
    // SAFETY: as above; it ends with a null character.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
