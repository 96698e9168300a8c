//! `outlast demo`: real processes, real kills, survivors who notice and go on.
//!
//! Every member keeps adding to counters in the segments of all others, one counter for each writer, and sends them
//! messages that say how far it has come. Two members are killed in the middle. At the end every survivor tells the
//! others what it was told is done, and each one compares that with its own segment.

use crate::quantity;
use crate::report::{say, write_json};
use crate::usage_error;
use anyhow::{Context, bail, ensure};
use clap::Args;
use outlast::engine::{Message, Port};
use outlast::launch::{Launch, MemberEnd, Output, Running};
use outlast::{Engine, Epoch, Error, Job, JoinOptions, MemberId, MemberSet, Time};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  Watch six processes lose two of them:
      outlast demo
  The same for programs; standard output gets nothing but the report:
      outlast demo --json -

Exit status: 0 the survivors went on and everything adds up, 1 it does not, 2 wrong usage.";

/// When the members stop working, counted from the moment when all have joined.
const WORK: Duration = Duration::from_millis(3500);
/// When members are killed, counted in the same way.
const KILLS_AT: [Duration; 2] = [Duration::from_millis(1000), Duration::from_millis(2200)];
/// How many additions a member makes before it rests. Resting keeps the demo honest on few cores: a pause is then
/// due to a death, not to a crowd of busy processes.
const ADDITIONS_PER_TURN: u64 = 200;
/// How long a member rests after each turn.
const REST: Duration = Duration::from_millis(1);
/// How long a call of the engine may wait for a living member.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// When the whole demo counts as hung.
const HUNG_AFTER: Duration = Duration::from_secs(30);
/// A survivor that stands still for longer than this has not gone on.
const PAUSE_MAX_MS: f64 = 2000.0;

/// Show real processes that are killed, and survivors who notice and go on, in about five seconds.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Demo {
    /// How many processes to start; two of them are killed
    #[arg(short = 'n', long = "members", value_name = "N", default_value_t = 6)]
    members: usize,
    /// Write the report as JSON to this file; - is standard output
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// The engine below the job
    #[arg(long, value_name = "NAME", value_parser = quantity::engine, default_value = "shm")]
    engine: String,
}

/// A member of the demo; started by it.
#[derive(Args)]
pub(crate) struct DemoMember {}

/// The clock that all processes of a machine share, in nanoseconds.
fn machine_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What members write to the demo, one JSON object a line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    /// All have joined.
    Joined { at_ns: u64 },
    /// The death of a member was noticed.
    Noticed { dead: u32, at_ns: u64 },
    /// The member has finished.
    Done(Tally),
}

/// What a survivor did and found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Tally {
    additions: u64,
    messages: u64,
    longest_pause_ms: f64,
    /// How many counters of its segment it compared.
    counters: u64,
    /// What does not add up; empty if all is well.
    wrong: Vec<String>,
}

// ---- The member.

impl DemoMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let job = JoinOptions::new().time_limit(CALL_LIMIT).join()?;
        let mut worker = Worker::new(&job)?;
        worker.work()?;
        worker.exchange_finals()?;
        worker.compare()?;
        let is_ok = worker.tally.wrong.is_empty();
        tell(&Line::Done(worker.tally.clone()))?;
        job.leave()?;
        Ok(is_ok)
    }
}

fn tell(line: &Line) -> anyhow::Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    std::io::stdout().write_all(text.as_bytes()).context("writing to the demo")
}

struct Worker<'a> {
    job: &'a Job,
    /// How many of its additions to each member were acknowledged.
    acknowledged: Vec<u64>,
    /// How many additions to this member each other one had announced, by its last message.
    announced: Vec<u64>,
    /// Who has said that its announcement is the last one.
    finals: MemberSet,
    noticed: MemberSet,
    tally: Tally,
}

impl<'a> Worker<'a> {
    fn new(job: &'a Job) -> anyhow::Result<Worker<'a>> {
        let members = job.members();
        job.grow(members as u64 * 8)?;
        let mut worker = Worker {
            job,
            acknowledged: vec![0; members],
            announced: vec![0; members],
            finals: MemberSet::new(),
            noticed: MemberSet::new(),
            tally: Tally::default(),
        };
        worker.wait_for_segments()?;
        tell(&Line::Joined { at_ns: machine_ns() })?;
        Ok(worker)
    }

    fn others(&self) -> Vec<MemberId> {
        let view = self.job.view();
        view.living().filter(|&member| member != self.job.me()).collect()
    }

    /// Waits until every living member's segment has room for the counters.
    fn wait_for_segments(&mut self) -> anyhow::Result<()> {
        let until = self.job.now().after(CALL_LIMIT);
        loop {
            let bell = self.job.bell();
            let is_ready = |&member: &MemberId| {
                self.job.segment_len(member).map_or(true, |len| len >= self.job.members() as u64 * 8)
            };
            if self.others().iter().all(is_ready) {
                return Ok(());
            }
            ensure!(self.job.now() < until, "some member did not make room for the counters");
            self.job.park(bell, self.job.now().after(REST));
        }
    }

    fn work(&mut self) -> anyhow::Result<()> {
        let end = self.job.now().after(WORK);
        let mut last_addition: Option<Time> = None;
        while self.job.now() < end {
            for turn in 0..ADDITIONS_PER_TURN {
                self.look_around()?;
                let others = self.others_for(turn);
                let Some(target) = others else { continue };
                if self.add(target)? {
                    let now = self.job.now();
                    let pause = last_addition.map_or(Duration::ZERO, |last| now.since(last));
                    let pause_ms = pause.as_secs_f64() * 1e3;
                    self.tally.longest_pause_ms = self.tally.longest_pause_ms.max(pause_ms);
                    last_addition = Some(now);
                }
            }
            self.announce(false)?;
            let bell = self.job.bell();
            self.receive()?;
            self.job.park(bell, self.job.now().after(REST));
        }
        Ok(())
    }

    /// The members take turns as targets; the dead are passed over.
    fn others_for(&self, turn: u64) -> Option<MemberId> {
        let members = self.job.members() as u64;
        let me = u64::from(self.job.me().0);
        let target = MemberId(((me + 1 + turn % (members - 1)) % members) as u32);
        (!self.noticed.contains(target)).then_some(target)
    }

    /// Adds 1 to this member's counter at `target`; whether that was acknowledged.
    fn add(&mut self, target: MemberId) -> anyhow::Result<bool> {
        let offset = u64::from(self.job.me().0) * 8;
        match self.job.fetch_add(Epoch::ANY, target, offset, 1) {
            Ok(before) => {
                if before != self.acknowledged[target.index()] {
                    let expected = self.acknowledged[target.index()];
                    self.tally.wrong.push(format!(
                        "the counter at {target} was {before} where {expected} additions had been acknowledged"
                    ));
                }
                self.acknowledged[target.index()] = before + 1;
                self.tally.additions += 1;
                Ok(true)
            }
            Err(Error::Dead { .. }) => Ok(false),
            Err(error) => Err(error).with_context(|| format!("adding to the counter at {target}")),
        }
    }

    /// Notices deaths: one load unless there is one.
    fn look_around(&mut self) -> anyhow::Result<()> {
        if self.job.epoch().0 == self.noticed.len() as u64 {
            return Ok(());
        }
        let at_ns = machine_ns();
        for dead in self.job.view().dead.iter() {
            if self.noticed.insert(dead) {
                tell(&Line::Noticed { dead: dead.0, at_ns })?;
            }
        }
        Ok(())
    }

    /// Tells every other living member how many additions to it are acknowledged.
    fn announce(&mut self, is_final: bool) -> anyhow::Result<()> {
        for target in self.others() {
            let mut bytes = self.acknowledged[target.index()].to_le_bytes().to_vec();
            bytes.push(u8::from(is_final));
            match self.job.send(target, Port::User, &bytes) {
                Ok(()) => self.tally.messages += 1,
                Err(Error::Dead { .. }) => {}
                Err(error) => return Err(error).with_context(|| format!("sending to {target}")),
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        while let Some(Message { from, bytes, .. }) = self.job.receive(Port::User) {
            let Some((count, &[is_final])) = bytes.split_first_chunk::<8>() else {
                bail!("a message of {} bytes from {from}", bytes.len());
            };
            let count = u64::from_le_bytes(*count);
            if count < self.announced[from.index()] || self.finals.contains(from) {
                self.tally.wrong.push(format!("the messages of {from} came out of order"));
            }
            self.announced[from.index()] = count;
            if is_final == 1 {
                self.finals.insert(from);
            }
        }
        Ok(())
    }

    /// Tells everyone the last counts, and waits for the last counts of all who live.
    fn exchange_finals(&mut self) -> anyhow::Result<()> {
        self.announce(true)?;
        let until = self.job.now().after(CALL_LIMIT);
        loop {
            let bell = self.job.bell();
            // The view first: whoever left since then has sent its last counts before.
            let view = self.job.view();
            self.receive()?;
            let me = self.job.me();
            let missing = view.living().find(|&member| member != me && !self.finals.contains(member));
            let Some(missing) = missing else { return Ok(()) };
            ensure!(self.job.now() < until, "{missing} lives but did not send its last counts");
            self.job.park(bell, until);
        }
    }

    /// Compares the counters in this member's segment with what the others were acknowledged.
    fn compare(&mut self) -> anyhow::Result<()> {
        let me = self.job.me();
        for writer in (0..self.job.members() as u32).map(MemberId).filter(|&member| member != me) {
            let found = self.job.load(Epoch::ANY, me, u64::from(writer.0) * 8)?;
            let announced = self.announced[writer.index()];
            // One who died may have added more than it could announce, never less.
            let is_right = if self.finals.contains(writer) { found == announced } else { found >= announced };
            if !is_right {
                self.tally.wrong.push(format!(
                    "{writer} was acknowledged {announced} additions to {me}, whose counter shows {found}"
                ));
            }
            self.tally.counters += 1;
        }
        Ok(())
    }
}

// ---- The demo.

#[derive(Serialize)]
struct Report {
    ok: bool,
    members: usize,
    survivors: usize,
    kills: Vec<Kill>,
    additions: u64,
    messages: u64,
    counters_compared: u64,
    longest_pause_ms: f64,
    hung: usize,
    wrong: Vec<String>,
    left_behind: Vec<String>,
    seconds: f64,
}

#[derive(Serialize)]
struct Kill {
    member: u32,
    at_s: f64,
    first_noticed_ms: Option<f64>,
    all_noticed_ms: Option<f64>,
}

/// What the demo has heard from its members so far.
struct Heard {
    /// How much of each member's output has been read.
    read: Vec<usize>,
    joined: BTreeMap<u32, u64>,
    /// Who noticed whose death, and when.
    noticed: BTreeMap<(u32, u32), u64>,
    done: BTreeMap<u32, Tally>,
}

impl Heard {
    fn listen(&mut self, running: &Running) -> anyhow::Result<()> {
        for member in 0..self.read.len() {
            let output = running.output(MemberId(member as u32)).stdout;
            let new = &output[self.read[member]..];
            // Whole lines only; the rest comes later.
            let Some(end) = new.iter().rposition(|&byte| byte == b'\n') else { continue };
            for line in new[..end].split(|&byte| byte == b'\n') {
                match serde_json::from_slice(line).context("a line of a member of the demo")? {
                    Line::Joined { at_ns } => drop(self.joined.insert(member as u32, at_ns)),
                    Line::Noticed { dead, at_ns } => {
                        self.noticed.insert((member as u32, dead), at_ns);
                    }
                    Line::Done(tally) => drop(self.done.insert(member as u32, tally)),
                }
            }
            self.read[member] += end + 1;
        }
        Ok(())
    }

    /// Milliseconds from `at_ns` until the first and the last of `survivors` noticed that `dead` is dead.
    fn detection_ms(&self, dead: u32, at_ns: u64, survivors: &BTreeSet<u32>) -> (Option<f64>, Option<f64>) {
        let times: Option<Vec<f64>> = survivors
            .iter()
            .map(|&member| self.noticed.get(&(member, dead)))
            .map(|noticed| noticed.map(|&noticed_ns| noticed_ns.saturating_sub(at_ns) as f64 / 1e6))
            .collect();
        let seen = |pick: fn(f64, f64) -> f64| times.clone().and_then(|times| times.into_iter().reduce(pick));
        (seen(f64::min), seen(f64::max))
    }
}

impl Demo {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        if !(3..=64).contains(&self.members) {
            usage_error("demo", format!("{} members; the demo kills two and takes 3 to 64", self.members));
        }
        let json = self.json.as_deref();
        let before = shared_memory_names();
        let mut running = Launch::new(self.members)
            .program(std::env::current_exe().context("finding this program's own path")?)
            .args(["demo-member"])
            .env("OUTLAST_ENGINE", &self.engine)
            .segment_limit(1 << 20)
            .die_with_launcher(true)
            .output(Output::Capture)
            .start()?;
        let pids = running.pids();
        let mut heard = Heard {
            read: vec![0; self.members],
            joined: BTreeMap::new(),
            noticed: BTreeMap::new(),
            done: BTreeMap::new(),
        };
        self.line(&running, format_args!("started {} processes: pids {}", self.members, list(&pids)));
        self.wait_for(&mut running, &mut heard, |heard| heard.joined.len() == self.members)?;
        let all_joined = running.elapsed();
        self.line(&running, "all have joined; each adds to counters in the memory of all others");

        // The lowest member dies too: nobody is special.
        let victims = [self.members as u32 / 2, 0];
        let mut survivors: BTreeSet<u32> = (0..self.members as u32).collect();
        let mut kills = Vec::new();
        for (victim, at) in victims.into_iter().zip(KILLS_AT) {
            std::thread::sleep((all_joined + at).saturating_sub(running.elapsed()));
            let at_s = running.elapsed().as_secs_f64();
            let at_ns = machine_ns();
            let was_running = running.kill(MemberId(victim))?;
            ensure!(was_running, "member {victim} had ended before it was killed");
            survivors.remove(&victim);
            self.line(&running, format_args!("kill -9 of member {victim} (pid {})", pids[victim as usize]));
            self.wait_for(&mut running, &mut heard, |heard| {
                survivors.iter().all(|&member| heard.noticed.contains_key(&(member, victim)))
            })?;
            let (first, all) = heard.detection_ms(victim, at_ns, &survivors);
            kills.push(Kill { member: victim, at_s, first_noticed_ms: first, all_noticed_ms: all });
            if let (Some(first), Some(all)) = (first, all) {
                let count = survivors.len();
                self.line(
                    &running,
                    format_args!("first survivor noticed after {first:.2} ms, all {count} after {all:.2} ms"),
                );
            }
        }
        self.line(&running, "the survivors go on, and compare their counters at the end");
        let outcome = running.wait(HUNG_AFTER.saturating_sub(running.elapsed()));
        heard.listen(&running)?;
        let seconds = running.elapsed().as_secs_f64();
        drop(running);

        let mut wrong: Vec<String> = heard.done.values().flat_map(|tally| tally.wrong.clone()).collect();
        for end in outcome.members.iter().filter(|end| survivors.contains(&end.member.0)) {
            if !end.is_ok() {
                wrong.push(describe(end, &outcome.stderr(end.member)));
            }
        }
        let longest_pause_ms = heard.done.values().map(|tally| tally.longest_pause_ms).fold(0.0, f64::max);
        if longest_pause_ms > PAUSE_MAX_MS {
            wrong.push(format!("a survivor stood still for {longest_pause_ms:.0} ms"));
        }
        let left_behind = left_behind(&before, &pids);
        let hung = if outcome.timed_out { survivors.len() - heard.done.len() } else { 0 };
        let sum = |field: fn(&Tally) -> u64| heard.done.values().map(field).sum();
        let report = Report {
            ok: wrong.is_empty()
                && left_behind.is_empty()
                && hung == 0
                && heard.done.len() == survivors.len()
                && kills.iter().all(|kill| kill.all_noticed_ms.is_some()),
            members: self.members,
            survivors: heard.done.len(),
            kills,
            additions: sum(|tally| tally.additions),
            messages: sum(|tally| tally.messages),
            counters_compared: sum(|tally| tally.counters),
            longest_pause_ms,
            hung,
            wrong,
            left_behind,
            seconds,
        };
        self.print(&report);
        if let Some(path) = json {
            write_json(path, &report)?;
        }
        Ok(report.ok)
    }

    /// Waits until the members have said something; an error if it does not come, or if nobody is left to say it.
    fn wait_for(
        &self,
        running: &mut Running,
        heard: &mut Heard,
        is_there: impl Fn(&Heard) -> bool,
    ) -> anyhow::Result<()> {
        loop {
            heard.listen(running)?;
            if is_there(heard) {
                return Ok(());
            }
            let failed = running.poll_events().into_iter().find_map(|event| match event {
                outlast::launch::Event::Ended(end) if !end.is_ok() && !end.is_death() => Some(end),
                _ => None,
            });
            if let Some(end) = failed {
                let stderr = running.output(end.member).stderr;
                bail!(describe(&end, &String::from_utf8_lossy(&stderr)));
            }
            ensure!(
                running.elapsed() < HUNG_AFTER && running.running() > 0,
                "the members did not answer; is everything on this machine as `outlast doctor` wants it?"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn line(&self, running: &Running, text: impl std::fmt::Display) {
        say(self.json.as_deref(), format_args!("{:6.3} s  {text}", running.elapsed().as_secs_f64()));
    }

    fn print(&self, report: &Report) {
        let json = self.json.as_deref();
        let mark = |is_ok: bool| if is_ok { "ok" } else { "WRONG" };
        say(json, "");
        say(
            json,
            format_args!(
                "  {:<6} {} of {} survived and finished their work: {} additions, {} messages",
                mark(report.survivors == report.members - report.kills.len()),
                report.survivors,
                report.members,
                report.additions,
                report.messages
            ),
        );
        say(
            json,
            format_args!(
                "  {:<6} every acknowledged addition is there: {} counters compared",
                mark(report.wrong.is_empty()),
                report.counters_compared
            ),
        );
        for wrong in &report.wrong {
            say(json, format_args!("         {wrong}"));
        }
        say(
            json,
            format_args!(
                "  {:<6} nobody hung; the longest pause of a survivor was {:.1} ms",
                mark(report.hung == 0),
                report.longest_pause_ms
            ),
        );
        say(
            json,
            format_args!(
                "  {:<6} nothing is left behind: no process, no shared memory",
                mark(report.left_behind.is_empty())
            ),
        );
        for left in &report.left_behind {
            say(json, format_args!("         {left}"));
        }
        let verdict = if report.ok { "The job outlasted both deaths." } else { "Something is wrong." };
        say(json, format_args!("\n{verdict} ({:.1} s)", report.seconds));
    }
}

fn describe(end: &MemberEnd, stderr: &str) -> String {
    let said = stderr.trim();
    if said.is_empty() { end.to_string() } else { format!("{end}: {said}") }
}

fn list(pids: &[u32]) -> String {
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

/// The names in /dev/shm. The engine makes none.
fn shared_memory_names() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// What the job has left behind: processes, and new names in /dev/shm that are its own. Other programs may make
/// names meanwhile, so that only those count that carry ours or one of our pids.
fn left_behind(before: &BTreeSet<String>, pids: &[u32]) -> Vec<String> {
    let processes = pids.iter().filter(|pid| std::path::Path::new(&format!("/proc/{pid}")).exists());
    let mut left: Vec<String> = processes.map(|pid| format!("process {pid}")).collect();
    let is_ours = |name: &&String| {
        name.contains("outlast")
            || name
                .split(|c: char| !c.is_ascii_digit())
                .any(|part| pids.iter().any(|pid| part == pid.to_string()))
    };
    left.extend(
        shared_memory_names().difference(before).filter(is_ours).map(|name| format!("/dev/shm/{name}")),
    );
    left
}
