//! Snapshots on disk.

mod file;
mod folder;

pub use file::{Damage, FORMAT, Header, Reader, Record, Totals, Writer};
pub use folder::{FolderError, Generation, Part, Unfinished, find, list, part_name, parts, read_part};
