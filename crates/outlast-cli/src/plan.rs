//! `outlast plan`: which images to keep on a machine, how likely they are lost, and how often to
//! save them.

use crate::plot::{Curve, Figure};
use crate::quantity;
use crate::report::file::{ReportFile, report_file};
use crate::report::page::{Page, Section, Table};
use crate::report::{print_table, say, write_json};
use clap::Args;
use outlast_plan::{Choice, Level, Machine, PlanError, Rows};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXPLANATION: &str = "\
An image of a member's memory is cut into pieces, and each member of a set holds one of them. Of
--set pieces any --lose may be gone. Sets are made of members in different elements of the level
--apart, so that a lost node takes at most one piece of each image along.

The table has a line for each choice of --set, --lose and --apart:
  memory    what images take for each byte: the newest image and the next one while it is written
  loss      the chance that more pieces of an image are gone than may be, at any time of the job
  by        which elements are down together in the most likely loss, and its chance
  interval  the time between two saves that costs the least (Daly 2006)
  overhead  the time that saves, lost work and restoring add to the program
A star marks the choice with the least memory whose loss is at most --risk. If no choice is that
safe, the exit status is 1.

Elements fail independently, at the rate 1/mtbf, and each takes all members in it along. What it
held is whole again after the time --back. Losses are exact sums over all deadly combinations of
elements, of different levels too; they hold while --back is short against --mtbf.

Examples:
  Processes that crash once a year, nodes every five years, racks every fifty:
      outlast plan --members 4096 --per node=16,rack=512 \\
          --mtbf process=1y,node=5y,rack=50y --set 4,8,16 --lose 1,2 --bytes 1GiB --job 30d
  What if one percent of 5000 nodes fails at once?
      outlast plan --members 5000 --mtbf process=5y --set 3 --lose 2 --at-once 50 --job 1d
  With figures, for people and for programs:
      outlast plan --members 256 --mtbf process=1y --job 30d --report plan.html --json -";

/// Find out how likely images are lost, what they cost, and how often to save them
#[derive(Args)]
#[command(after_help = EXPLANATION)]
pub(crate) struct Plan {
    /// How many members the job has
    #[arg(short = 'n', long, alias = "ranks", value_name = "N")]
    members: u64,
    /// How many members an element of each level above the process holds, innermost first
    #[arg(long, value_name = "LEVEL=N,...", value_delimiter = ',', value_parser = named_number)]
    per: Vec<(String, u64)>,
    /// The mean time between failures of an element of a level
    #[arg(long, value_name = "LEVEL=TIME,...", value_delimiter = ',', required = true)]
    #[arg(value_parser = named_time)]
    mtbf: Vec<(Option<String>, Duration)>,
    /// When what a failed element held is whole again: detection, restoring and healing; a time for
    /// all levels, or for each
    #[arg(long, value_name = "[LEVEL=]TIME,...", value_delimiter = ',', default_value = "1m")]
    #[arg(value_parser = named_time)]
    back: Vec<(Option<String>, Duration)>,
    /// How many pieces an image has
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "4,8,16")]
    set: Vec<u64>,
    /// How many pieces of an image may be gone
    #[arg(long, value_name = "M,...", value_delimiter = ',', default_value = "1,2")]
    lose: Vec<u64>,
    /// The level at which the pieces of an image are apart [default: the first level of --per]
    #[arg(long, value_name = "LEVEL,...", value_delimiter = ',')]
    apart: Vec<String>,
    /// The memory of a member that is saved
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = quantity::bytes)]
    bytes: u64,
    /// How many bytes a member writes per second when it saves
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = quantity::bytes)]
    rate: u64,
    /// How long a save takes, in place of --bytes and --rate
    #[arg(long, value_name = "TIME", value_parser = quantity::time)]
    save: Option<Duration>,
    /// How long the job runs
    #[arg(long, value_name = "TIME", value_parser = quantity::time)]
    job: Duration,
    /// The chance of a loss that is accepted
    #[arg(long, value_name = "P", default_value_t = 1e-3, value_parser = chance)]
    risk: f64,
    /// Also the chance of a loss if so many elements of the level --apart fail at once
    #[arg(long, value_name = "X,...", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=512))]
    at_once: Vec<u64>,
    /// Also simulate so many jobs, and compare the losses
    #[arg(long, value_name = "JOBS", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(0..=10_000_000))]
    simulate: u64,
    /// The seed of --simulate
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Write the table and its figures to this file, as a page of HTML
    #[arg(long, value_name = "FILE", value_parser = report_file)]
    report: Option<ReportFile>,
    /// Write the plan as JSON to this file; - is standard output
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

/// The innermost level.
const PROCESS: &str = "process";

#[derive(Serialize)]
struct PlanReport {
    /// Whether a choice is as safe as was asked for.
    ok: bool,
    risk: f64,
    mtbf_of_job_s: f64,
    /// The cheapest choice that is safe enough, as an index of `choices`.
    cheapest: Option<usize>,
    choices: Vec<ChoiceReport>,
    command: String,
}

#[derive(Serialize)]
struct ChoiceReport {
    set: u64,
    lose: u64,
    apart: String,
    /// The level at which sets are apart in fact, if the level `apart` has too few elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    apart_in_fact: Option<String>,
    memory: f64,
    interval_s: f64,
    /// Null if the job would never end.
    overhead: f64,
    loss: f64,
    loss_by_level: BTreeMap<String, f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    at_once: Vec<AtOnce>,
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<Simulated>,
    /// The most likely loss.
    #[serde(skip)]
    most_likely: String,
}

#[derive(Serialize)]
struct AtOnce {
    failed: u64,
    loss: f64,
}

#[derive(Serialize)]
struct Simulated {
    jobs: u64,
    losses: u64,
    loss: f64,
}

impl Plan {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let machine = self.machine().unwrap_or_else(|message| crate::usage_error("plan", message));
        let choices =
            self.choices(&machine).unwrap_or_else(|message| crate::usage_error("plan", message));
        let mut rows = Vec::new();
        for choice in choices {
            match self.look_at(&machine, choice) {
                Ok(row) => rows.push(row),
                Err(error) => crate::usage_error("plan", error),
            }
        }
        let cheapest =
            (0..rows.len()).filter(|&index| rows[index].loss <= self.risk).min_by(|&a, &b| {
                let cost = |index: usize| (rows[index].memory, rows[index].overhead);
                cost(a).partial_cmp(&cost(b)).unwrap_or(std::cmp::Ordering::Equal)
            });
        let report = PlanReport {
            ok: cheapest.is_some(),
            risk: self.risk,
            mtbf_of_job_s: 1.0 / machine.failure_rate(),
            cheapest,
            choices: rows,
            command: std::env::args().collect::<Vec<_>>().join(" "),
        };
        self.print(&machine, &report);
        if let Some(file) = &self.report {
            file.write(&self.page(&report))?;
        }
        if let Some(path) = &self.json {
            write_json(path, &report)?;
        }
        Ok(report.ok)
    }

    /// The machine that the options describe.
    fn machine(&self) -> Result<Machine, String> {
        let innermost = [(PROCESS.to_string(), 1)];
        let mut levels: Vec<Level> = innermost
            .iter()
            .chain(&self.per)
            .map(|(name, size)| Level {
                name: name.clone(),
                size: *size,
                mtbf_s: None,
                back_s: 0.0,
            })
            .collect();
        if self.per.iter().any(|(name, _)| name == PROCESS) {
            return Err(format!("--per: `{PROCESS}` always holds a single member; leave it out"));
        }
        for (name, mtbf) in &self.mtbf {
            let Some(name) = name else {
                return Err("--mtbf: name the level, as in node=5y".to_string());
            };
            let level = level_named(&mut levels, "--mtbf", name)?;
            if level.mtbf_s.replace(mtbf.as_secs_f64()).is_some() {
                return Err(format!("--mtbf: `{name}` is given twice"));
            }
        }
        for (name, back) in &self.back {
            match name {
                Some(name) => {
                    level_named(&mut levels, "--back", name)?.back_s = back.as_secs_f64();
                }
                None => levels.iter_mut().for_each(|level| level.back_s = back.as_secs_f64()),
            }
        }
        if let Some(level) = levels.iter().find(|level| level.back_s == 0.0) {
            return Err(format!("--back: no time for the level `{}`, or 0", level.name));
        }
        if self.job.is_zero() {
            return Err("--job: the job takes no time".to_string());
        }
        if self.rate == 0 || self.bytes == 0 {
            return Err("--bytes and --rate are at least 1".to_string());
        }
        Machine::new(self.members, levels).map_err(|error| error.to_string())
    }

    fn choices(&self, machine: &Machine) -> Result<Vec<Choice>, String> {
        let levels = machine.levels();
        let mut apart = Vec::new();
        for name in &self.apart {
            let index = levels.iter().position(|level| level.name == *name);
            apart.push(index.ok_or_else(|| unknown_level("--apart", name, levels))?);
        }
        if apart.is_empty() {
            apart.push(1.min(levels.len() - 1));
        }
        let mut choices = Vec::new();
        for &apart in &apart {
            for &lose in &self.lose {
                for &set in &self.set {
                    // Lists of both are combined, and some pairs of them do not exist.
                    if lose < set || self.set.len() == 1 || lose == 0 {
                        choices.push(Choice { set, lose, apart });
                    }
                }
            }
        }
        match choices.is_empty() {
            true => Err("--lose: a set has to be larger than what it may lose".to_string()),
            false => Ok(choices),
        }
    }

    fn look_at(&self, machine: &Machine, choice: Choice) -> Result<ChoiceReport, PlanError> {
        let Choice { set, lose, apart } = choice;
        let loss = outlast_plan::loss(machine, choice, self.job.as_secs_f64())?;
        let pieces = set as f64 / (set - lose) as f64;
        let save_s = self
            .save
            .map_or(self.bytes as f64 * pieces / self.rate as f64, |save| save.as_secs_f64());
        let mtbf_s = 1.0 / machine.failure_rate();
        let interval_s = outlast_plan::daly_interval(save_s, mtbf_s);
        let overhead = outlast_plan::overhead(interval_s, save_s, machine.mean_back_s(), mtbf_s);
        let names = |elements: &[usize]| combination(machine.levels(), elements);
        let most_likely = match loss.by_levels.first() {
            Some((elements, chance)) => format!("{} {}", names(elements), scientific(*chance)),
            None => String::new(),
        };
        let in_fact = machine.apart_in_fact(choice);
        let name_of = |level: usize| machine.levels()[level].name.clone();
        let domains = machine.elements(in_fact.unwrap_or(0));
        let at_once = self.at_once.iter().map(|&failed| AtOnce {
            failed,
            loss: outlast_plan::loss_at_once(Rows::new(domains, set), lose, failed),
        });
        let simulated = if self.simulate == 0 {
            None
        } else {
            let job_s = self.job.as_secs_f64();
            let losses = outlast_plan::simulate(machine, choice, job_s, self.simulate, self.seed)?;
            let loss = losses as f64 / self.simulate as f64;
            Some(Simulated { jobs: self.simulate, losses, loss })
        };
        Ok(ChoiceReport {
            set,
            lose,
            apart: name_of(apart),
            apart_in_fact: in_fact.filter(|level| *level != apart).map(name_of),
            memory: 2.0 * pieces,
            interval_s,
            overhead,
            loss: loss.whole,
            loss_by_level: loss.by_levels.iter().map(|(e, chance)| (names(e), *chance)).collect(),
            at_once: at_once.collect(),
            simulated,
            most_likely,
        })
    }

    fn print(&self, machine: &Machine, report: &PlanReport) {
        let json = self.json.as_deref();
        let of_job = human_time(report.mtbf_of_job_s);
        let line = format!("{} members, of which some fail every {of_job}", machine.members());
        say(json, line);
        print_table(json, table(report));
        self.print_remarks(json, report);
    }

    fn print_remarks(&self, json: Option<&Path>, report: &PlanReport) {
        for row in &report.choices {
            if let Some(level) = &row.apart_in_fact {
                let (set, apart) = (row.set, &row.apart);
                say(
                    json,
                    format_args!(
                        "set {set}: the level `{apart}` has too few elements; pieces are apart at \
                         the level `{level}`, and an element of `{apart}` takes several along"
                    ),
                );
            }
        }
        match report.cheapest {
            Some(_) => say(json, format_args!("* the least memory with a risk of {}", self.risk)),
            None => say(json, format_args!("no choice has a risk of at most {}", self.risk)),
        }
    }

    /// The table and its figures as a page that needs no other file.
    fn page(&self, report: &PlanReport) -> Page {
        let curves = |value: &dyn Fn(&ChoiceReport) -> f64| -> Vec<Curve> {
            let mut curves: Vec<Curve> = Vec::new();
            for row in &report.choices {
                let name = format!("{} lost, {} apart", row.lose, row.apart);
                let point = (row.set as usize, value(row));
                match curves.iter_mut().find(|curve| curve.name == name) {
                    Some(curve) => curve.points.push(point),
                    None => curves.push(Curve { name, points: vec![point] }),
                }
            }
            curves.iter_mut().for_each(|curve| curve.points.sort_by_key(|(set, _)| *set));
            curves
        };
        let figure = |title: &str, axis: &str, lines, show| Figure {
            title: title.into(),
            axis: axis.into(),
            across: "members of a set",
            lines,
            show,
        };
        let figures = [
            figure(
                "Chance that the job loses data",
                "chance of a loss",
                curves(&|row| row.loss),
                scientific,
            ),
            figure("Memory of images for each byte", "bytes", curves(&|row| row.memory), |bytes| {
                format!("{bytes:.1}")
            }),
        ];
        let mut rows = table(report).into_iter();
        let table = Table {
            header: rows.next().unwrap_or_default(),
            rows: rows.collect(),
            names: 2,
            ours: report.cheapest.into_iter().collect(),
            ..Table::default()
        };
        let lead = "How likely a job loses data, and how often to save images, for each choice of \
                    the set size and the losses that a set survives.";
        let page = Page::new(format!("Images of {} members", self.members), lead);
        let section = Section::new("All choices", "A star marks the cheapest choice.");
        let page = page.section(section.table(&table));
        figures.iter().fold(page, |page, figure| {
            page.section(Section::new(&figure.title, "").figure(&figure.svg()))
        })
    }
}

/// The table of all choices, with its header.
fn table(report: &PlanReport) -> Vec<Vec<String>> {
    let failed = report.choices.first().map_or(&[][..], |row| &row.at_once);
    let is_simulated = report.choices.iter().any(|row| row.simulated.is_some());
    let mut header: Vec<String> =
        ["", "apart", "set", "lose", "memory", "loss", "by", "interval", "overhead"]
            .map(String::from)
            .to_vec();
    header.extend(failed.iter().map(|at_once| format!("{} at once", at_once.failed)));
    header.extend(is_simulated.then(|| "simulated".to_string()));
    let row = |(index, row): (usize, &ChoiceReport)| {
        let mut cells = vec![
            if report.cheapest == Some(index) { "*" } else { "" }.to_string(),
            row.apart_in_fact.clone().unwrap_or_else(|| row.apart.clone()),
            row.set.to_string(),
            row.lose.to_string(),
            format!("{:.2}", row.memory),
            scientific(row.loss),
            row.most_likely.clone(),
            human_time(row.interval_s),
            match row.overhead < 100.0 {
                true => format!("{:.2} %", row.overhead * 100.0),
                false => "never ends".to_string(),
            },
        ];
        cells.extend(row.at_once.iter().map(|at_once| scientific(at_once.loss)));
        cells.extend(row.simulated.as_ref().map(|simulated| scientific(simulated.loss)));
        cells
    };
    std::iter::once(header).chain(report.choices.iter().enumerate().map(row)).collect()
}

/// The elements of a combination by name, such as `process+node`.
fn combination(levels: &[Level], elements: &[usize]) -> String {
    let names = levels.iter().zip(elements);
    let names = names.flat_map(|(level, &count)| std::iter::repeat_n(level.name.as_str(), count));
    names.collect::<Vec<_>>().join("+")
}

fn level_named<'a>(
    levels: &'a mut [Level],
    option: &str,
    name: &str,
) -> Result<&'a mut Level, String> {
    match levels.iter().position(|level| level.name == name) {
        Some(index) => Ok(&mut levels[index]),
        None => Err(unknown_level(option, name, levels)),
    }
}

fn unknown_level(option: &str, name: &str, levels: &[Level]) -> String {
    let known: Vec<&str> = levels.iter().map(|level| level.name.as_str()).collect();
    format!("{option}: no level `{name}`; --per names levels, and there are: {}", known.join(", "))
}

/// A level and a number, such as `node=16`.
fn named_number(text: &str) -> Result<(String, u64), String> {
    let wrong = || format!("`{text}` is not a level and a number; write it as node=16");
    let (name, number) = text.split_once('=').ok_or_else(wrong)?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    if name.is_empty() || number == 0 { Err(wrong()) } else { Ok((name.to_string(), number)) }
}

/// A time, with a level or without, such as `node=5y`.
fn named_time(text: &str) -> Result<(Option<String>, Duration), String> {
    let (name, time) = match text.split_once('=') {
        Some((name, time)) => (Some(name.to_string()), time),
        None => (None, text),
    };
    let time = quantity::time(time)?;
    match time.is_zero() {
        true => Err(format!("`{text}` is no time at all")),
        false => Ok((name, time)),
    }
}

fn chance(text: &str) -> Result<f64, String> {
    let wrong = || format!("`{text}` is not a chance; write it as 0.001 or 1e-6");
    let chance: f64 = text.parse().map_err(|_| wrong())?;
    if chance > 0.0 && chance < 1.0 { Ok(chance) } else { Err(wrong()) }
}

fn scientific(value: f64) -> String {
    if value == 0.0 { "0".to_string() } else { format!("{value:.1e}") }
}

/// A time in its largest fitting unit.
fn human_time(seconds: f64) -> String {
    let units = [("y", 365.25 * 86400.0), ("d", 86400.0), ("h", 3600.0), ("min", 60.0)];
    match units.iter().find(|(_, length)| seconds >= *length) {
        Some((unit, length)) => format!("{:.1} {unit}", seconds / length),
        None => format!("{seconds:.2} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_times_are_read_as_written() {
        assert_eq!(named_number("node=16"), Ok(("node".to_string(), 16)));
        assert_eq!(named_time("node=2s"), Ok((Some("node".to_string()), Duration::from_secs(2))));
        assert_eq!(named_time("2s"), Ok((None, Duration::from_secs(2))));
        for wrong in ["node", "node=", "=16", "node=0", "node=-1", "node=1.5"] {
            assert!(named_number(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "node=", "node=5", "0s"] {
            assert!(named_time(wrong).is_err(), "{wrong}");
        }
        for wrong in ["0", "1", "-1", "NaN", "x"] {
            assert!(chance(wrong).is_err(), "{wrong}");
        }
    }
}
