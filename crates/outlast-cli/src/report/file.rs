//! `--report FILE`: the file is checked when the command line is read, and written as a whole at
//! the end. A reader of the file finds a whole report or the file as it was before.

use super::page::Page;
use anyhow::Context;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A file that a report can be written to.
#[derive(Clone, Debug)]
pub(crate) struct ReportFile {
    path: PathBuf,
}

/// Reads the value of `--report`. Makes a file beside it for a moment, so that a folder without
/// permission is refused before the run, with the status of wrong usage.
pub(crate) fn report_file(text: &str) -> Result<ReportFile, String> {
    if text == "-" {
        return Err("a report is a page for a browser and needs a file, such as report.html".into());
    }
    // A link stays a link: the report replaces the file behind it.
    let path = std::fs::canonicalize(text).unwrap_or_else(|_| PathBuf::from(text));
    let cannot = |why: &dyn std::fmt::Display| format!("cannot write {text}: {why}");
    match path.metadata() {
        Ok(found) if found.is_dir() => return Err(cannot(&"it is a folder")),
        // A rename would replace a device such as /dev/null by a file.
        Ok(found) if !found.is_file() => return Err(cannot(&"it is not a plain file")),
        Ok(found) if found.permissions().readonly() => {
            return Err(cannot(&"it may not be written"));
        }
        _ if path.file_name().is_none() => return Err(cannot(&"it is not the name of a file")),
        _ => {}
    }
    let report = ReportFile { path };
    let (file, temporary) = report.make_temporary().map_err(|error| cannot(&error))?;
    drop(file);
    std::fs::remove_file(temporary).map_err(|error| cannot(&error))?;
    Ok(report)
}

impl ReportFile {
    /// Writes the page to a new file beside the report, then renames it. An error leaves no file
    /// and no part of a report behind.
    pub(crate) fn write(&self, page: &Page) -> anyhow::Result<()> {
        self.write_text(&page.html())
    }

    /// Writes a page that is a text already, in the same way.
    pub(crate) fn write_text(&self, text: &str) -> anyhow::Result<()> {
        let doing = || format!("writing the report {}", self.path.display());
        let (mut file, temporary) = self.make_temporary().with_context(doing)?;
        let written = file
            .write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| std::fs::rename(&temporary, &self.path));
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        written.with_context(doing)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The name has the id of this process, so that commands at the same time do not meet.
    fn make_temporary(&self) -> std::io::Result<(File, PathBuf)> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let temporary = self.path.with_file_name(format!(".{name}.{}.part", std::process::id()));
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&temporary)?;
        Ok((file, temporary))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        Page::new("a title", "a lead")
    }

    #[test]
    fn a_report_replaces_a_file_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report.html");
        std::fs::write(&path, "old").expect("it is written");
        let report = report_file(path.to_str().expect("a plain path")).expect("it is writable");
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "old");
        report.write(&page()).expect("it is written");
        assert!(std::fs::read_to_string(&path).expect("it is there").ends_with("</html>\n"));
        assert_eq!(folder.path().read_dir().expect("a folder").count(), 1);
    }

    #[test]
    fn a_report_that_cannot_be_renamed_leaves_no_part() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report.html");
        let report = report_file(path.to_str().expect("a plain path")).expect("it is writable");
        std::fs::create_dir(&path).expect("a folder in the way");
        assert!(report.write(&page()).is_err());
        assert_eq!(folder.path().read_dir().expect("a folder").count(), 1);
    }

    #[test]
    fn what_is_no_file_is_refused() {
        for wrong in ["-", "/", "/dev/null", "/no/such/folder/report.html", "", ".."] {
            assert!(report_file(wrong).is_err(), "{wrong:?}");
        }
        assert!(Path::new("/dev/null").exists());
    }
}
