//! `outlast snapshot`: lists the snapshots of a folder, verifies them, and shows their keys.

use crate::quantity::{date, human_bytes};
use crate::report::{say, write_json};
use anyhow::Context;
use clap::{Args, Subcommand};
use outlast::snapshot::{self, FolderError, Generation, Header, Part};
use serde::Serialize;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
PATH is a folder of snapshots, whose newest snapshot is taken, or the folder of a single snapshot
(generation-000042).

Examples:
  The snapshots of a folder:
      outlast snapshot list /scratch/run7
  Whether every byte is as it was written; if not, exit status 1 and the damaged files:
      outlast snapshot verify /scratch/run7
  The keys that begin with result/, with the sizes of their values:
      outlast snapshot show /scratch/run7 --prefix result/";

/// List, verify and show snapshots
#[derive(Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(Subcommand)]
enum SnapshotCommand {
    /// List the snapshots of a folder, the oldest first
    List(PathArgs),
    /// Read every byte and compare the checksums; exit status 1 if a file is damaged
    Verify(PathArgs),
    /// Show the keys of a snapshot
    Show(ShowArgs),
}

#[derive(Args)]
struct PathArgs {
    /// A folder of snapshots, or the folder of a single snapshot
    path: PathBuf,
    /// Write the report as JSON to this file; - is standard output
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

#[derive(Args)]
struct ShowArgs {
    #[command(flatten)]
    common: PathArgs,
    /// Show only keys that begin with this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: String,
    /// Show at most this many keys
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: u64,
}

/// A snapshot in a report.
#[derive(Serialize)]
struct Summary {
    generation: u64,
    path: PathBuf,
    members: u32,
    replicas: u32,
    taken_at: u64,
    records: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct VerifyReport {
    ok: bool,
    snapshot: Option<Summary>,
    damaged: Vec<String>,
}

#[derive(Serialize)]
struct Entry {
    key: String,
    bytes: u64,
    owner: u32,
    version: u64,
}

impl Snapshot {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        match self.command {
            SnapshotCommand::List(list) => list.list(),
            SnapshotCommand::Verify(verify) => verify.verify(),
            SnapshotCommand::Show(show) => show.show(),
        }
    }
}

/// Reads the header of a part, and nothing else of it.
fn header(generation: &Path, part: &Part) -> Result<Header, FolderError> {
    let path = generation.join(&part.name);
    match snapshot::Reader::open(&path) {
        Ok(reader) => Ok(*reader.header()),
        Err(damage) => Err(FolderError::Damaged { path, damage }),
    }
}

fn summary(path: &Path) -> Result<Summary, FolderError> {
    let parts = snapshot::parts(path)?;
    let first = parts.first().map(|part| header(path, part)).transpose()?;
    Ok(Summary {
        generation: first.map_or(0, |header| header.generation),
        path: path.into(),
        members: first.map_or(0, |header| header.members),
        replicas: first.map_or(0, |header| header.replicas),
        taken_at: first.map_or(0, |header| header.taken_at),
        records: parts.iter().map(|part| part.totals.records).sum(),
        bytes: parts.iter().map(|part| part.totals.bytes).sum(),
    })
}

impl PathArgs {
    fn json(&self) -> Option<&Path> {
        self.json.as_deref()
    }

    fn list(self) -> anyhow::Result<bool> {
        let mut summaries = Vec::new();
        let mut is_fine = true;
        let line = |cells: [&str; 6]| {
            let [generation, taken, members, replicas, keys, size] = cells;
            say(
                self.json(),
                format!(
                    "{generation:>10}  {taken:<23}  {members:>7}  {replicas:>8}  {keys:>10}  \
                     {size:>10}"
                )
                .trim_end(),
            );
        };
        line(["generation", "taken", "members", "replicas", "keys", "size"]);
        for Generation { number, path } in snapshot::list(&self.path)? {
            match summary(&path) {
                Ok(found) => {
                    line([
                        &number.to_string(),
                        &date(found.taken_at),
                        &found.members.to_string(),
                        &found.replicas.to_string(),
                        &found.records.to_string(),
                        &human_bytes(found.bytes),
                    ]);
                    summaries.push(found);
                }
                Err(error) => {
                    is_fine = false;
                    say(self.json(), format_args!("{number:>10}  {error}"));
                }
            }
        }
        if let Some(json) = self.json() {
            write_json(json, &summaries)?;
        }
        Ok(is_fine)
    }

    fn verify(self) -> anyhow::Result<bool> {
        let generation = snapshot::find(&self.path)?;
        let mut damaged = Vec::new();
        match snapshot::parts(&generation) {
            Err(error) => damaged.push(error.to_string()),
            Ok(parts) => {
                for part in parts {
                    if let Err(error) = snapshot::read_part(&generation, &part, |_| {}) {
                        damaged.push(error.to_string());
                    }
                }
            }
        }
        for line in &damaged {
            say(self.json(), line);
        }
        let ok = damaged.is_empty();
        let snapshot = summary(&generation).ok();
        match &snapshot {
            Some(Summary { records, bytes, .. }) if ok => {
                let size = human_bytes(*bytes);
                say(
                    self.json(),
                    format_args!("{}: whole, {records} keys, {size}", generation.display()),
                );
            }
            _ => say(
                self.json(),
                format_args!(
                    "{}: damaged; restore an older snapshot: outlast snapshot list {}",
                    generation.display(),
                    generation.parent().unwrap_or(Path::new(".")).display()
                ),
            ),
        }
        if let Some(json) = self.json() {
            write_json(json, &VerifyReport { ok, snapshot, damaged })?;
        }
        Ok(ok)
    }
}

impl ShowArgs {
    fn show(self) -> anyhow::Result<bool> {
        let json = self.common.json();
        let generation = snapshot::find(&self.common.path)?;
        let (mut entries, mut fitting) = (Vec::new(), 0u64);
        for part in snapshot::parts(&generation)? {
            snapshot::read_part(&generation, &part, |record| {
                if record.key.starts_with(self.prefix.as_bytes()) {
                    fitting += 1;
                    if fitting <= self.limit {
                        entries.push(Entry {
                            key: record.key.escape_ascii().to_string(),
                            bytes: record.value.len() as u64,
                            owner: record.owner,
                            version: record.version,
                        });
                    }
                }
            })
            .context("the snapshot is damaged, and none of it is shown")?;
        }
        entries.sort_unstable_by(|first, second| first.key.cmp(&second.key));
        let width = entries.iter().map(|entry| entry.key.len()).max().unwrap_or(3).clamp(3, 60);
        say(
            json,
            format_args!("{:<width$}  {:>10}  {:>5}  {:>7}", "key", "bytes", "owner", "version"),
        );
        for Entry { key, bytes, owner, version } in &entries {
            say(json, format_args!("{key:<width$}  {bytes:>10}  {owner:>5}  {version:>7}"));
        }
        if fitting > self.limit {
            say(
                json,
                format_args!("... and {} more keys; --limit shows them", fitting - self.limit),
            );
        }
        if let Some(path) = json {
            write_json(path, &entries)?;
        }
        Ok(true)
    }
}
