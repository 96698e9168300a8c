//! The output for files, pipes and other programs: a table, JSON, and metrics.

use super::course::{MemberRow, Moment, State, Times};
use super::screen;
use crate::quantity::human_bytes;
use crate::report::{print_table, say};
use outlast::observe::Look;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// A job in the list of all jobs.
#[derive(Clone, Debug, Serialize)]
pub(super) struct JobRow {
    pub(super) job: u64,
    pub(super) command: String,
    pub(super) age_s: f64,
    pub(super) members: usize,
    pub(super) living: usize,
    pub(super) dead: usize,
    pub(super) left: usize,
    pub(super) segment_bytes: u64,
    pub(super) replicas_missing: u64,
    pub(super) processes: Vec<u32>,
}

impl JobRow {
    pub(super) fn new(job: u64, command: String, processes: &[u32], look: &Look) -> JobRow {
        let dead = look.dead.iter().filter(|death| !death.has_left).count();
        let is_living = |member: &&outlast::observe::ObservedMember| {
            member.pid.is_some() && look.death(member.member).is_none()
        };
        let living = || look.members.iter().filter(is_living);
        let missing = living().filter_map(|member| member.page.as_ref());
        JobRow {
            job,
            command,
            age_s: look.age.as_secs_f64(),
            members: look.members.len(),
            living: living().count(),
            dead,
            left: look.dead.len() - dead,
            segment_bytes: living().map(|member| member.segment_len).sum(),
            replicas_missing: missing.map(|(_, figures)| figures.replicas_missing).sum(),
            processes: processes.to_vec(),
        }
    }
}

/// Prints a line for each job.
pub(super) fn print_jobs(jobs: &[JobRow]) {
    let head = ["job", "command", "age", "members", "living", "dead", "memory", "missing"];
    let rows = jobs.iter().map(|job| {
        [
            job.job.to_string(),
            job.command.chars().take(40).collect(),
            screen::age(Duration::from_secs_f64(job.age_s)),
            job.members.to_string(),
            job.living.to_string(),
            job.dead.to_string(),
            human_bytes(job.segment_bytes),
            job.replicas_missing.to_string(),
        ]
    });
    print_table(None, std::iter::once(head.map(String::from)).chain(rows).collect());
}

/// Prints a job as text, once.
pub(super) fn print_moment(moment: &Moment) {
    let age = screen::age(Duration::from_secs_f64(moment.age_s));
    say(None, format_args!("job {}, up {age}: {}", moment.job, moment.command));
    say(
        None,
        format_args!(
            "{} running, {} stopped, {} dead, {} left, {} elsewhere",
            moment.running, moment.stopped, moment.dead, moment.left, moment.absent
        ),
    );
    say(
        None,
        format_args!(
            "{} operations/s, {} transactions/s, {} of memory, {} replicas missing\n",
            screen::rate(moment.operations_per_s),
            screen::rate(moment.transactions_per_s),
            human_bytes(moment.segment_bytes),
            moment.replicas_missing
        ),
    );
    let head = ["member", "state", "pid", "cpu", "ops/s", "tx/s", "put p99", "get p99", "missing"];
    let rows = moment.members.iter().map(|row| {
        let time = |times: Option<Times>| {
            let time = |us: f64| screen::time(Duration::from_nanos((us * 1e3) as u64));
            times.map_or("-".into(), |times| time(times.p99_us))
        };
        [
            row.member.to_string(),
            row.state.name().to_string(),
            row.pid.map_or("-".into(), |pid| pid.to_string()),
            row.cpu.map_or("-".into(), |cpu| format!("{:.0} %", cpu * 100.0)),
            row.operations_per_s.map_or("-".into(), screen::rate),
            row.transactions_per_s.map_or("-".into(), screen::rate),
            time(row.put),
            time(row.get),
            row.replicas_missing.to_string(),
        ]
    });
    print_table(None, std::iter::once(head.map(String::from)).chain(rows).collect());
}

/// The jobs as metrics, in the text format of Prometheus.
pub(super) fn metrics(moments: &[Moment]) -> String {
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: Vec<(String, f64)>| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP outlast_{name} {help}\n# TYPE outlast_{name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(text, "outlast_{name}{{{labels}}} {value}");
        }
    };
    let jobs = |of: fn(&Moment) -> f64| -> Vec<(String, f64)> {
        moments.iter().map(|moment| (format!("job=\"{}\"", moment.job), of(moment))).collect()
    };
    let members = |of: fn(&MemberRow) -> Option<f64>| -> Vec<(String, f64)> {
        let rows = moments
            .iter()
            .flat_map(|moment| moment.members.iter().map(move |row| (moment.job, row)));
        rows.filter_map(|(job, row)| {
            Some((format!("job=\"{job}\",member=\"{}\"", row.member), of(row)?))
        })
        .collect()
    };
    family("job_age_seconds", "gauge", "How long ago the job was made.", jobs(|m| m.age_s));
    family("deaths_total", "counter", "Members that have died.", jobs(|m| m.dead as f64));
    family(
        "member_up",
        "gauge",
        "1 for a member that lives and is not stopped.",
        members(|row| Some(f64::from(u8::from(row.state == State::Running)))),
    );
    family(
        "operations_total",
        "counter",
        "Operations on open stores; a put or a get is one.",
        members(|row| row.page_age_s.map(|_| row.operations as f64)),
    );
    family(
        "transactions_total",
        "counter",
        "Transactions that calls of the member have committed.",
        members(|row| row.page_age_s.map(|_| row.transactions as f64)),
    );
    family("snapshots_total", "counter", "Consistent cuts.", jobs(|m| m.snapshots as f64));
    family(
        "replicas_missing",
        "gauge",
        "Replicas to be made again, as far as their primary knows.",
        members(|row| row.page_age_s.map(|_| row.replicas_missing as f64)),
    );
    family(
        "partitions_to_visit",
        "gauge",
        "Partitions that repair still has to visit.",
        members(|row| row.page_age_s.map(|_| row.partitions_to_visit as f64)),
    );
    family(
        "replicas_repaired_total",
        "counter",
        "Replicas that the member has made again.",
        members(|row| row.page_age_s.map(|_| row.replicas_repaired as f64)),
    );
    family(
        "segment_bytes",
        "gauge",
        "Memory that the member lends to the job.",
        members(|row| row.state.is_living().then_some(row.segment_bytes as f64)),
    );
    family(
        "resident_bytes",
        "gauge",
        "Memory that the process occupies, shared memory included.",
        members(|row| row.state.is_living().then_some(row.resident_bytes as f64)),
    );
    family("cpu", "gauge", "Processors in use.", members(|row| row.cpu));
    let help = "The time that 99 of 100 of the latest calls took at most.";
    let seconds = members(|row| row.put.map(|times| times.p99_us / 1e6));
    family("put_p99_seconds", "gauge", help, seconds);
    let seconds = members(|row| row.get.map(|times| times.p99_us / 1e6));
    family("get_p99_seconds", "gauge", help, seconds);
    text
}

#[cfg(test)]
mod tests {
    use super::super::course::Course;
    use super::super::course::tests::{kill, observation};
    use super::*;

    #[test]
    fn metrics_have_a_sample_for_each_member() {
        let mut course = Course::new(9, "p".into());
        course.add(observation(0, &[0, 0]));
        let mut look = observation(1000, &[64, 32]);
        kill(&mut look, 1);
        course.add(look);
        let text = metrics(&[course.moment().expect("looks")]);
        for line in [
            "# TYPE outlast_operations_total counter",
            "outlast_operations_total{job=\"9\",member=\"0\"} 64",
            "outlast_operations_total{job=\"9\",member=\"1\"} 32",
            "outlast_member_up{job=\"9\",member=\"0\"} 1",
            "outlast_member_up{job=\"9\",member=\"1\"} 0",
            "outlast_deaths_total{job=\"9\"} 1",
            "outlast_cpu{job=\"9\",member=\"0\"} 0.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
        }
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (_, value) = line.rsplit_once(' ').expect("a value");
            value.parse::<f64>().expect("a number");
        }
        let empty = metrics(&[]);
        assert!(empty.lines().all(|line| line.starts_with('#')), "{empty}");
    }

    #[test]
    fn the_list_of_jobs_counts_the_living() {
        let mut look = observation(0, &[0, 0, 0]).look;
        look.dead
            .push(outlast::observe::ObservedDeath { member: outlast::MemberId(0), has_left: true });
        let job = JobRow::new(3, "p".into(), &[1, 2], &look);
        assert_eq!((job.members, job.living, job.dead, job.left), (3, 2, 0, 1));
        assert_eq!(job.segment_bytes, 2 << 20);
    }
}
