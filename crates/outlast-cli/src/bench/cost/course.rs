//! The writes of a run, what they say, and their figure.

use super::super::Row;
use super::{Plan, WRITERS};
use crate::report::figures::{Figure, Series, time};
use crate::report::page::{Section, Table};
use serde::{Deserialize, Serialize};

/// An acknowledged write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Write {
    /// Whether the victim was responsible for the key.
    pub(super) is_affected: bool,
    pub(super) due_ns: u64,
    pub(super) acked_ns: u64,
}

/// What a run of writers is made of.
pub(super) struct Record {
    pub(super) writes: Vec<Write>,
    pub(super) killed_ns: u64,
    /// When all copies were back.
    pub(super) complete_ns: Option<u64>,
    /// How many acknowledged writes could not be read back.
    pub(super) lost: u64,
}

/// A run in which a process was killed. Times are from the kill on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::bench) struct Course {
    pub(in crate::bench) contender: String,
    processes: usize,
    acked: u64,
    lost: u64,
    /// Until the first acknowledged write of an affected key that was due after the kill.
    first_affected_ns: Option<u64>,
    /// The longest delay of the other writes, before the kill and after it.
    others_before_ns: Option<u64>,
    others_after_ns: Option<u64>,
    complete_ns: Option<u64>,
    /// The beginning and the end of the run, in seconds from the kill.
    from_s: f64,
    to_s: f64,
    /// How many writes to affected keys are due in a second, or to all keys if all are affected.
    due_per_s: f64,
    /// Acknowledged writes a second, in equal parts of the run.
    affected_per_s: Vec<f64>,
    others_per_s: Vec<f64>,
    pub(super) version: Option<(String, String)>,
    /// How the contender was set up.
    pub(super) remark: String,
    /// How many runs there were, with a kill each; the acknowledged and the lost writes of all.
    #[serde(default)]
    kills: u64,
    #[serde(default)]
    acked_in_all: u64,
    #[serde(default)]
    lost_in_all: u64,
}

/// Into how many parts the time of a figure is divided.
const PARTS: u64 = 120;

impl Course {
    pub(super) fn new(
        contender: &str,
        processes: usize,
        plan: &Plan,
        record: &Record,
        version: Option<(String, String)>,
        remark: &str,
    ) -> Course {
        let killed_ns = record.killed_ns;
        let begin_ns = record.writes.iter().map(|write| write.due_ns).min().unwrap_or(killed_ns);
        let end_ns = begin_ns + plan.length.as_nanos() as u64;
        let since = |ns: u64| (ns as f64 - killed_ns as f64) / 1e9;
        let rates = |is_affected: bool| {
            let part_ns = (plan.length.as_nanos() as u64 / PARTS).max(1);
            let mut counts = vec![0u32; PARTS as usize];
            let writes = record.writes.iter().filter(|write| write.is_affected == is_affected);
            for write in writes.filter(|write| (begin_ns..end_ns).contains(&write.acked_ns)) {
                let part = (write.acked_ns - begin_ns) / part_ns;
                counts[(part as usize).min(PARTS as usize - 1)] += 1;
            }
            let rate = |count| (f64::from(count) * 1e9 / part_ns as f64).round();
            counts.into_iter().map(rate).collect::<Vec<f64>>()
        };
        let others = |is_after: bool| {
            let writes = record.writes.iter().filter(move |write| {
                !write.is_affected && (write.acked_ns >= killed_ns) == is_after
            });
            writes.map(|write| write.acked_ns.saturating_sub(write.due_ns)).max()
        };
        let affected = record.writes.iter().filter(|write| write.is_affected);
        let has_others = record.writes.iter().any(|write| !write.is_affected);
        let writers = if has_others { WRITERS / 2 } else { WRITERS } as f64;
        let first = affected.filter(|write| write.due_ns >= killed_ns).map(|write| write.acked_ns);
        Course {
            contender: contender.into(),
            processes,
            acked: record.writes.len() as u64,
            lost: record.lost,
            first_affected_ns: first.min().map(|at_ns| at_ns - killed_ns),
            others_before_ns: others(false),
            others_after_ns: others(true),
            complete_ns: record.complete_ns.map(|at_ns| at_ns.saturating_sub(killed_ns)),
            from_s: since(begin_ns),
            to_s: since(end_ns),
            due_per_s: writers / plan.period.as_secs_f64(),
            affected_per_s: rates(true),
            others_per_s: rates(false),
            version,
            remark: remark.into(),
            kills: 1,
            acked_in_all: record.writes.len() as u64,
            lost_in_all: record.lost,
        }
    }

    /// The first run, with the counts of all runs of the contender.
    pub(super) fn first_of(courses: Vec<Course>) -> Option<Course> {
        let sum = |of: fn(&Course) -> u64| courses.iter().map(of).sum();
        let (kills, acked_in_all, lost_in_all) =
            (sum(|course| course.kills), sum(|course| course.acked), sum(|course| course.lost));
        let first = courses.into_iter().next()?;
        Some(Course { kills, acked_in_all, lost_in_all, ..first })
    }

    /// The run in a line.
    pub(super) fn line(&self) -> String {
        let after = |time: String, ns: Option<u64>| match ns {
            Some(_) => format!("after {time}"),
            None => time,
        };
        format!(
            "{}: first write of an affected key {}; longest stall of other writes: {}; \
             {} of {} acknowledged writes lost; all copies back {}",
            self.contender,
            after(self.first(), self.first_affected_ns),
            self.others(),
            self.lost,
            self.acked,
            after(self.complete(), self.complete_ns)
        )
    }

    fn first(&self) -> String {
        self.first_affected_ns.map_or("not in this run".into(), |ns| time(ns as f64))
    }

    fn others(&self) -> String {
        self.others_after_ns.map_or("all keys are affected".into(), |ns| time(ns as f64))
    }

    fn complete(&self) -> String {
        self.complete_ns.map_or("not in this run".into(), |ns| time(ns as f64))
    }

    pub(in crate::bench) fn figure(&self) -> Figure {
        let mut lines = vec![("affected keys".to_string(), self.affected_per_s.clone())];
        if self.others_after_ns.is_some() {
            lines.push(("other keys".into(), self.others_per_s.clone()));
        }
        let series = Series {
            label: format!("Acknowledged writes a second of {} around a kill", self.contender),
            from: self.from_s,
            to: self.to_s,
            unit: "s",
            of: "writes/s",
            lines,
            marks: vec![(0.0, "kill -9".into())],
            ends: self
                .complete_ns
                .map(|ns| {
                    (ns as f64 / 1e9, format!("all copies are back after {}", time(ns as f64)))
                })
                .filter(|(at, _)| *at <= self.to_s)
                .into_iter()
                .collect(),
            // Writes that were due during a pause are made up for at a much higher rate.
            most: Some(1.6 * self.due_per_s.max(1.0)),
        };
        series.figure()
    }
}

/// The rows of a contender, with a sample for each kill.
pub(super) fn rows(courses: &[Course]) -> Vec<Row> {
    let Some(first) = courses.first() else { return Vec::new() };
    let row = |what: &str, time: TimeOf| {
        let samples: Vec<u64> = courses.iter().filter_map(time).collect();
        let row = Row {
            what: format!("{FAILURE}{what}"),
            engine: if first.version.is_none() { "shm" } else { "servers" }.into(),
            members: first.processes,
            contender: first.contender.clone(),
            ..Row::default()
        };
        (!samples.is_empty()).then(|| row.with_samples(samples))
    };
    TIMES.iter().filter_map(|(what, time)| row(what, *time)).collect()
}

type TimeOf = fn(&Course) -> Option<u64>;

/// What is measured at each kill.
const TIMES: [(&str, TimeOf); 3] = [
    ("first write of an affected key", |course| course.first_affected_ns),
    ("longest stall of other writes", |course| course.others_after_ns),
    ("all copies back", |course| course.complete_ns),
];

/// What the names of these measurements begin with. A page shows them in the table of the runs.
pub(in crate::bench) const FAILURE: &str = "failure, ";

/// The runs of all contenders, as a section of a page: writes over time, one above the other. The
/// rows are those of all kills.
pub(in crate::bench) fn sections(courses: &[Course], rows: &[Row]) -> Option<Section> {
    if courses.is_empty() {
        return None;
    }
    let text = "The same load, while one process is killed at 0 s: acknowledged writes a second. \
                Half of the writers write keys that the killed process was responsible for. Times \
                count from the moment at which a write was due.";
    let mut section = Section::new("What a failure costs", text);
    for course in courses {
        section = section.headline(&course.contender).figure(&course.figure().html());
    }
    let mut table = Table::new(
        1,
        &[
            "contender",
            "processes",
            "first write of an affected key",
            "longest stall of others",
            "longest before the kill",
            "acknowledged",
            "lost",
            "all copies back",
        ],
    );
    for (index, course) in courses.iter().enumerate() {
        if course.version.is_none() {
            table.ours.push(index);
        }
        if course.lost > 0 {
            table.bad.push(index);
        }
        let before = course.others_before_ns.map_or(String::new(), |ns| time(ns as f64));
        table.rows.push(vec![
            course.contender.clone(),
            course.processes.to_string(),
            course.first(),
            course.others(),
            before,
            course.acked.to_string(),
            course.lost.to_string(),
            course.complete(),
        ]);
    }
    section = section.table(&table);
    if courses.iter().any(|course| course.kills > 1) {
        section = section.headline("All kills").table(&table_of_all(courses, rows));
    }
    Some(section)
}

/// The median and the longest time over all kills of each contender.
fn table_of_all(courses: &[Course], rows: &[Row]) -> Table {
    let mut header = vec!["contender", "kills", "acknowledged", "lost"];
    header.extend(TIMES.iter().flat_map(|(name, _)| [*name, "longest"]));
    let mut table = Table::new(1, &header);
    for (index, course) in courses.iter().enumerate() {
        if course.version.is_none() {
            table.ours.push(index);
        }
        if course.lost_in_all > 0 {
            table.bad.push(index);
        }
        let counts = [course.kills, course.acked_in_all, course.lost_in_all];
        let mut cells = vec![course.contender.clone()];
        cells.extend(counts.map(|count| count.to_string()));
        for (name, _) in TIMES {
            let is_it = |row: &&Row| {
                row.contender == course.contender && row.what.strip_prefix(FAILURE) == Some(name)
            };
            let times = rows.iter().find(is_it).map(|row| [row.p50_ns, row.max_ns]);
            let text = |ns: u64| time(ns as f64);
            cells.extend(times.map_or([String::new(), String::new()], |times| times.map(text)));
        }
        table.rows.push(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn write(is_affected: bool, due_ns: u64, acked_ns: u64) -> Write {
        Write { is_affected, due_ns, acked_ns }
    }

    #[test]
    fn a_course_counts_from_the_kill_and_from_when_a_write_was_due() {
        let plan = Plan {
            length: Duration::from_nanos(2_400),
            period: Duration::from_nanos(100),
            size: 64,
        };
        let record = Record {
            writes: vec![
                write(true, 1_000, 1_010),
                write(false, 1_000, 1_030),
                // It was due before the kill and does not count as the first after it.
                write(true, 1_590, 1_700),
                write(true, 1_620, 1_950),
                write(false, 1_610, 1_660),
                write(true, 1_800, 1_960),
            ],
            killed_ns: 1_600,
            complete_ns: Some(2_000),
            lost: 1,
        };
        let course = Course::new("a store", 4, &plan, &record, None, "");
        assert_eq!(course.first_affected_ns, Some(350));
        assert_eq!((course.others_before_ns, course.others_after_ns), (Some(30), Some(50)));
        assert_eq!((course.complete_ns, course.lost, course.acked), (Some(400), 1, 6));
        assert!((course.from_s + 6e-7).abs() < 1e-12 && (course.to_s - 1.8e-6).abs() < 1e-12);
        assert_eq!(course.affected_per_s.iter().filter(|rate| **rate > 0.0).count(), 4);
        let line = course.line();
        assert!(line.contains("1 of 6 acknowledged writes lost"), "{line}");
        assert_eq!(rows(&[course]).len(), 3);
        let never = Record { writes: Vec::new(), killed_ns: 5, complete_ns: None, lost: 0 };
        let never = Course::new("a store", 4, &plan, &never, None, "");
        assert!(never.line().contains("not in this run"), "{}", never.line());
        assert!(rows(std::slice::from_ref(&never)).is_empty());
        assert!(sections(&[never], &[]).is_some());
    }

    #[test]
    fn several_kills_are_counted_together() {
        let plan = Plan {
            length: Duration::from_nanos(2_400),
            period: Duration::from_nanos(100),
            size: 64,
        };
        let course = |acked_ns: u64, lost: u64| {
            let writes = vec![write(true, 1_700, acked_ns), write(false, 1_700, acked_ns)];
            let record = Record { writes, killed_ns: 1_600, complete_ns: None, lost };
            Course::new("a store", 4, &plan, &record, None, "")
        };
        let courses = vec![course(1_800, 0), course(1_900, 1), course(2_000, 1)];
        let rows = rows(&courses);
        let first = Course::first_of(courses).expect("there is one");
        assert_eq!((first.kills, first.acked_in_all, first.lost_in_all), (3, 6, 2));
        assert_eq!((first.first_affected_ns, first.lost), (Some(200), 0));
        let table = table_of_all(&[first], &rows);
        assert_eq!(table.rows[0][1..6], ["3", "6", "2", "300\u{a0}ns", "400\u{a0}ns"]);
        assert_eq!(table.bad, [0]);
    }
}
