//! `outlast jobs` and `outlast top`: the running jobs of this user, and one of them as it runs.
//!
//! Both are observers ([`outlast::observe`]): they read what members publish in the memory of their
//! job, and ask nothing of them.
//!
//! | module | content |
//! |---|---|
//! | [`process`] | what the kernel tells about the process of a member |
//! | [`course`] | rates between two looks, states of members, and what happened |
//! | [`screen`] | what is drawn |
//! | [`view`] | the terminal: keys, looks and frames |
//! | [`output`] | a table, JSON, and metrics |

mod course;
mod output;
mod process;
mod screen;
mod view;

pub(crate) use view::{View, Wish, catch_signals};

use crate::quantity::time;
use crate::report::{say, write_json};
use anyhow::{Context, bail};
use clap::Args;
use course::{Course, Event, Moment, Observation};
use outlast::observe::{ObservedJob, jobs};
use output::JobRow;
use process::Process;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

const JOBS_EXAMPLES: &str = "\
A job belongs to the user that started it: the jobs of other users are not shown. On a cluster the
list has the jobs with members on this host.

Examples:
  The jobs of this user:
      outlast jobs
  For a script:
      outlast jobs --json

Exit status: 0 also if there is no job, 1 a failure, 2 wrong usage.";

const TOP_EXAMPLES: &str = "\
Members publish their figures in the memory of the job ten times a second, whether they are watched
or not: watching costs them nothing. Programs in C, C++, Fortran and Python do so, too. Under mpirun
the members of this host are shown.

Keys: q quits, s sorts by the next column, r reverses, / filters, Tab shows the next job, p pauses,
? explains.

  state    running, stopped (SIGSTOP), silent (its background does not run), joining, dead, left,
           ended (not declared dead yet), absent (on another host, or not started)
  ops/s    operations a second: a put or a get is one, other calls and repair are more
  put, get the time of calls in the last 5 s, from a sample of every 64th call
  missing  replicas to be made again, as far as the primary of their partition knows
  memory   what the member lends to the job

Examples:
  Watch the only job, or the youngest:
      outlast top
  Watch the job of process 4711:
      outlast top 4711
  Print it once, as a table or as JSON:
      outlast top --once
      outlast top --once --json
  A line of JSON each second until the job ends:
      outlast top --json
  All jobs for Prometheus, as a text file for its node exporter:
      outlast top --metrics > outlast.prom

Exit status: 0 success, also if the job ends meanwhile, 1 no such job or a failure, 2 wrong usage.";

/// List the running jobs of this user
#[derive(Args)]
#[command(after_help = JOBS_EXAMPLES)]
pub(crate) struct Jobs {
    /// Print a list of objects as JSON
    #[arg(long)]
    json: bool,
}

/// Watch a running job: its members, their load, deaths and repair
#[derive(Args)]
#[command(after_help = TOP_EXAMPLES)]
pub(crate) struct Top {
    /// The number of the job, as `outlast jobs` shows it, or of any of its processes
    #[arg(value_name = "JOB")]
    job: Option<u64>,
    /// Print the job once, and end
    #[arg(long)]
    once: bool,
    /// Print a line of JSON for each interval
    #[arg(long)]
    json: bool,
    /// Print all jobs, or the named job, in the text format of Prometheus, and end
    #[arg(long, conflicts_with_all = ["json", "once"])]
    metrics: bool,
    /// The time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
}

/// A time between two looks. Members publish every 100 ms.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = time(text)?;
    match (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&interval) {
        true => Ok(interval),
        false => Err(format!("`{text}` is not an interval; it may be 100ms to 1h")),
    }
}

impl Jobs {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let mut rows = Vec::new();
        for job in running_jobs()? {
            // A job whose processes all end meanwhile can still be read.
            let look = job.look().context("reading a job")?;
            rows.push(JobRow::new(job.id(), command(&job), job.processes(), &look));
        }
        if self.json {
            write_json(Path::new("-"), &rows)?;
        } else if rows.is_empty() {
            say(None, "no job of this user runs on this machine");
        } else {
            output::print_jobs(&rows);
        }
        Ok(true)
    }
}

impl Top {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        if self.metrics {
            return self.print_metrics();
        }
        let is_live = !self.once && !self.json && std::io::stdout().is_terminal();
        let found = self.find(!is_live)?;
        if is_live {
            let is_asked_to_end = catch_signals()?;
            let interval = self.interval.min(view::INTERVAL);
            return View::open(Some(found), interval)?.run(&is_asked_to_end).map(|()| true);
        }
        let mut watch = Watch::new(found);
        watch.look()?;
        let mut told = 0;
        loop {
            std::thread::sleep(self.interval);
            watch.look()?;
            let Some(moment) = watch.course.moment() else { return Ok(true) };
            if self.json {
                let new = watch.course.events_seen - told;
                let kept = watch.course.events.len();
                let events = watch.course.events.iter().skip(kept.saturating_sub(new)).collect();
                told = watch.course.events_seen;
                if !print_line(&JsonLine { moment: &moment, events })? {
                    return Ok(true);
                }
            } else {
                output::print_moment(&moment);
            }
            if self.once || !self.json || watch.course.has_ended() {
                return Ok(true);
            }
        }
    }

    /// The job to be watched. Without a number it is the youngest; for a script there must not be a
    /// choice.
    fn find(&self, is_script: bool) -> anyhow::Result<ObservedJob> {
        let mut found = running_jobs()?;
        let Some(wanted) = self.job else {
            if is_script && found.len() > 1 {
                let list: Vec<String> = found.iter().map(|job| job.id().to_string()).collect();
                bail!("{} jobs run; name one of them: {}", found.len(), list.join(", "));
            }
            return found.pop().context(
                "no job of this user runs on this machine; `outlast run` or `outlast demo` starts \
                 one",
            );
        };
        let has_process =
            |job: &ObservedJob| job.processes().iter().any(|&process| u64::from(process) == wanted);
        let place = found.iter().position(|job| job.id() == wanted);
        let place = place.or_else(|| found.iter().position(has_process));
        let place = place.with_context(|| {
            format!(
                "there is no job {wanted} of this user, and no job with a process {wanted}; \
                 `outlast jobs` lists them"
            )
        })?;
        Ok(found.swap_remove(place))
    }

    fn print_metrics(&self) -> anyhow::Result<bool> {
        let found = match self.job {
            Some(_) => vec![self.find(true)?],
            None => running_jobs()?,
        };
        let mut watched: Vec<Watch> = found.into_iter().map(Watch::new).collect();
        for watch in &mut watched {
            watch.look()?;
        }
        if !watched.is_empty() {
            std::thread::sleep(self.interval);
        }
        for watch in &mut watched {
            watch.look()?;
        }
        let moments: Vec<Moment> =
            watched.iter().filter_map(|watch| watch.course.moment()).collect();
        // A closed pipe is the reader's choice.
        let _ = std::io::stdout().lock().write_all(output::metrics(&moments).as_bytes());
        Ok(true)
    }
}

/// A line of JSON: the job, and what happened since the last line.
#[derive(Serialize)]
struct JsonLine<'a> {
    #[serde(flatten)]
    moment: &'a Moment,
    events: Vec<&'a Event>,
}

/// Prints a line of JSON. Returns whether there is still a reader.
fn print_line(line: &JsonLine<'_>) -> anyhow::Result<bool> {
    let mut text = serde_json::to_string(line).context("writing JSON")?;
    text.push('\n');
    let mut stdout = std::io::stdout().lock();
    Ok(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_ok())
}

fn running_jobs() -> anyhow::Result<Vec<ObservedJob>> {
    jobs().context("looking for jobs in /proc")
}

/// The command of a job: that of its youngest process that still runs, a member.
fn command(job: &ObservedJob) -> String {
    let found = job.processes().iter().rev().find_map(|&pid| process::command_line(pid));
    found.unwrap_or_else(|| "(ended)".into())
}

/// A job that is looked at again and again.
struct Watch {
    job: Option<ObservedJob>,
    course: Course,
    began: Instant,
}

impl Watch {
    fn new(job: ObservedJob) -> Watch {
        let course = Course::new(job.id(), command(&job));
        Watch { job: Some(job), course, began: Instant::now() }
    }

    /// Looks at the job. Lets go of it when it has ended, so that its memory goes.
    fn look(&mut self) -> anyhow::Result<()> {
        let Some(job) = &self.job else { return Ok(()) };
        let look = job.look().context("reading the job")?;
        let at = self.began.elapsed();
        let read = |member: &outlast::observe::ObservedMember| Process::read(member.pid?);
        let processes = look.members.iter().map(read).collect();
        self.course.add(Observation { at, look, processes });
        if self.course.has_ended() {
            self.job = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_bounds() {
        assert_eq!(interval("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["0s", "50ms", "2h", "1", ""] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
