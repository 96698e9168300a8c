//! `outlast bench show`: the JSON of a benchmark as a table, as a page and as pictures for
//! documents. Nothing is measured.

use super::{BenchReport, figure, groups, page};
use crate::report::figures::Figure;
use crate::report::file::{ReportFile, report_file};
use crate::report::picture::picture;
use crate::report::say;
use anyhow::Context;
use clap::Args;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
The file is what a benchmark has written with --json. Pictures are SVG files, one for each kind of
measurement in the file, such as put.svg; there is one for the runs in which a process was killed,
too. They follow the colours of their reader, light or dark.

Examples:
  A page for a browser, from a run of before:
      outlast bench put --peers redis --json put.json
      outlast bench show put.json --report put.html
  The pictures of the documentation:
      outlast bench show bench/records/all-2-cores.json --pictures docs/pictures";

/// Show the JSON of a benchmark again: as a table, a page or pictures
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ShowBench {
    /// What a benchmark has written with --json
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write a page for a browser to this file
    #[arg(long, value_name = "FILE", value_parser = report_file)]
    report: Option<ReportFile>,
    /// Write pictures into this folder
    #[arg(long, value_name = "DIR")]
    pictures: Option<PathBuf>,
}

impl ShowBench {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        let report = read(&self.file)?;
        report.print(None);
        report.remarks.iter().for_each(|line| say(None, line));
        if let Some(file) = &self.report {
            file.write(&page(&report))?;
            say(None, format_args!("report: {}", file.path().display()));
        }
        if let Some(folder) = &self.pictures {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("making {}", folder.display()))?;
            for (name, text) in pictures(&report) {
                let path = folder.join(name);
                std::fs::write(&path, text)
                    .with_context(|| format!("writing {}", path.display()))?;
                say(None, format_args!("picture: {}", path.display()));
            }
        }
        Ok(true)
    }
}

fn read(file: &Path) -> anyhow::Result<BenchReport> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} is not the JSON of a benchmark", file.display()))
}

/// The pictures: the beginning or the end of the name of their measurements, the name of the file,
/// and the title. The first that fits counts.
const PICTURES: [(&str, &str, &str); 11] = [
    ("poster", "poster", "Puts with 6 replicas among 40 processes"),
    ("hosts", "hosts", "Calls among several hosts"),
    ("puts a second", "rate", "Puts at a fixed rate, each from when it was due"),
    ("growth, a put", "growth", "A put in growing jobs"),
    ("growth, requests", "requests", "Requests of a put in growing simulated jobs"),
    ("put", "put", "Puts, one caller"),
    ("get", "get", "Gets in random order, one caller"),
    ("mixed", "mixed", "Puts and gets in turn"),
    ("throughput", "throughput", "Puts of more and more callers"),
    ("memory", "memory", "Memory of a key with all its copies"),
    ("tx, 3 keys, ", "tx", "Transactions over 3 keys of many members"),
];

/// The figures of a picture, one above the other, each with its headline.
type Figures = Vec<(String, Figure)>;

/// The pictures of a report, each with the name of its file.
fn pictures(report: &BenchReport) -> Vec<(String, String)> {
    let mut pictures: Vec<(&str, &str, Figures)> = Vec::new();
    for (headline, rows) in groups(&report.results) {
        let what = rows[0].what.as_str();
        let fits = |(kind, ..): &&(&str, _, _)| what.starts_with(kind) || what.ends_with(kind);
        let Some(&(_, name, title)) = PICTURES.iter().find(fits) else { continue };
        let (figure, _) = figure(&headline, &rows);
        match pictures.iter_mut().find(|(other, ..)| *other == name) {
            Some((.., figures)) => figures.push((headline, figure)),
            None => pictures.push((name, title, vec![(headline, figure)])),
        }
    }
    let courses = report.courses.iter();
    let courses: Figures =
        courses.map(|course| (course.contender.clone(), course.figure())).collect();
    if !courses.is_empty() {
        pictures.push(("failure", "Writes a second while a process is killed at 0 s", courses));
    }
    let draw = |(name, title, figures): (&str, &str, Figures)| {
        (format!("{name}.svg"), picture(title, &figures))
    };
    pictures.into_iter().map(draw).collect()
}
