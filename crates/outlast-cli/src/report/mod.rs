//! Where reports go: JSON to standard output or to a file, text for people elsewhere, and pages for
//! a browser.
//!
//! | module | content |
//! |---|---|
//! | [`file`](mod@file) | `--report FILE`: checked before the run, written as a whole |
//! | [`page`] | a self-contained page: facts, sections, tables, machine, command |
//! | [`timeline`] | lanes of members with kills, stops, detection, stalls and repair |
//! | [`figures`] | values over time, latencies, and counts |
//! | [`picture`] | figures as a picture for documents |
//! | [`machine`] | the machine and the command of a run |
//!
//! A figure is SVG whose horizontal positions are percentages. So a page fits into every width, and
//! its text keeps its size.

pub(crate) mod figures;
pub(crate) mod file;
pub(crate) mod machine;
pub(crate) mod page;
pub(crate) mod picture;
pub(crate) mod timeline;

use anyhow::Context;
use std::io::Write;
use std::path::Path;

/// Writes a report as JSON to `path`, where `-` is standard output.
pub(crate) fn write_json(path: &Path, report: &impl serde::Serialize) -> anyhow::Result<()> {
    let text = json(report).context("writing the report as JSON")?;
    match path == Path::new("-") {
        true => std::io::stdout()
            .lock()
            .write_all(text.as_bytes())
            .context("writing to standard output"),
        false => std::fs::write(path, text).with_context(|| format!("writing {}", path.display())),
    }
}

/// A report as JSON. Each element of a list of the report is a line, so that a report is small and
/// two of them can be compared line by line.
fn json(report: &impl serde::Serialize) -> serde_json::Result<String> {
    let mut text = String::from("{\n");
    let fields = match serde_json::to_value(report)? {
        serde_json::Value::Object(fields) => fields,
        other => return Ok(format!("{other:#}\n")),
    };
    let count = fields.len();
    for (number, (name, value)) in fields.into_iter().enumerate() {
        let value = match value {
            serde_json::Value::Array(items) if !items.is_empty() => {
                let items: Vec<String> = items.iter().map(ToString::to_string).collect();
                format!("[\n    {}\n  ]", items.join(",\n    "))
            }
            value => value.to_string(),
        };
        let comma = if number + 1 < count { "," } else { "" };
        text += &format!("  \"{name}\": {value}{comma}\n");
    }
    Ok(text + "}\n")
}

/// Writes a line for people: to standard output, or to standard error if standard output is for
/// JSON.
pub(crate) fn say(json: Option<&Path>, line: impl std::fmt::Display) {
    // A closed pipe must not end the command before its report is complete.
    let _ = match json == Some(Path::new("-")) {
        true => writeln!(std::io::stderr().lock(), "{line}"),
        false => writeln!(std::io::stdout().lock(), "{line}"),
    };
}

/// Writes a table for people, as [`say`] does.
pub(crate) fn print_table(json: Option<&Path>, rows: Vec<impl AsRef<[String]>>) {
    let columns = rows.first().map_or(0, |row| row.as_ref().len());
    let mut widths = vec![0; columns];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row.as_ref()) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for row in &rows {
        // Names are aligned to the left, numbers to the right.
        let cells =
            row.as_ref().iter().zip(&widths).enumerate().map(
                |(column, (cell, width))| match column {
                    0 | 1 => format!("{cell:<width$}"),
                    _ => format!("{cell:>width$}"),
                },
            );
        say(json, cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}
