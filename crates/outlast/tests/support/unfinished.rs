//! Generations of snapshots that are being written.

use std::fs::DirEntry;
use std::path::{Path, PathBuf};

/// The folder of a generation that is being written.
pub(crate) fn unfinished(folder: &Path, number: u64) -> Option<PathBuf> {
    let is_wanted = |entry: &DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with(&format!("generation-{number:06}.")) && name.ends_with(".unfinished")
    };
    let entries = std::fs::read_dir(folder).ok()?;
    entries.flatten().find(is_wanted).map(|entry| entry.path())
}
