//! Folders for the files of tests.

use std::path::Path;
use tempfile::TempDir;

/// A folder in memory, if there is a file system for it: a snapshot waits until its files are on
/// the disk, which may take half a minute after a large build, and no test is about that.
pub(crate) fn folder_in_memory() -> TempDir {
    let memory = Path::new("/dev/shm");
    match memory.is_dir() {
        true => tempfile::tempdir_in(memory).expect("a folder"),
        false => tempfile::tempdir().expect("a folder"),
    }
}
