//! The task runtime with up to thousands of simulated workers, with the cost model of a cluster
//! network: how much of the workers' time is work, without deaths and with them.

use crate::bench::Row;
use crate::tasks::programs::Node;
use anyhow::{Context, ensure};
use outlast::sim::{self, Action, Cost, Link, When};
use outlast::store::{self, Store};
use outlast::{MemberId, Time};
use outlast_tasks::{Cx, Options, Stats, Task, Tasks};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// The work of each worker.
const WORK: Duration = Duration::from_secs(1);
/// When the run begins, in virtual time: all members have opened the runtime long before.
const BEGIN: Time = Time(5_000_000_000);
/// When the members leave: all at one moment, as each leave is told to all remaining members.
const END: Time = Time(12_000_000_000);
/// The first and the last death after the begin of the run.
const DEATHS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(900));
/// How many nodes of the tree each worker has at least.
const NODES: u64 = 800;
const REPLICAS: usize = 3;
/// How many keys of the runtime a worker has, about.
const KEYS: usize = 64;

/// A node of the tree of UTS, with its share of the work.
#[derive(Clone, Serialize, Deserialize)]
struct Worked {
    node: Node,
    work_ns: u32,
}

impl Task for Worked {
    const NAME: &'static str = "worked";
    type Output = u64;

    fn run(self, cx: &mut Cx<'_>) -> u64 {
        cx.work(Duration::from_nanos(self.work_ns.into()));
        let work_ns = self.work_ns;
        let children = self.node.children().into_iter().map(|node| Worked { node, work_ns });
        1 + cx.sum(&children.collect::<Vec<_>>())
    }
}

/// What a run with simulated workers showed.
pub(super) struct Simulated {
    pub(super) members: usize,
    pub(super) deaths: usize,
    /// From the first call of `Tasks::open` to its last return.
    pub(super) opening: Duration,
    /// From the begin of the run until the last survivor had its output.
    pub(super) took: Duration,
    /// The time that the workers lived, all together.
    pub(super) lived: Duration,
    /// The work of the tree.
    pub(super) work: Duration,
    /// Puts and conditional puts of a worker for each beat: `share`, `save_left`, `claim`,
    /// `complete`.
    pub(super) calls_per_beat: f64,
    pub(super) beat: Duration,
    pub(super) saving_share: f64,
    /// The longest work that only a stack knew.
    pub(super) exposed: Duration,
    /// Tasks that were opened again, and begun again.
    pub(super) reopened: u64,
    pub(super) again: u64,
}

/// A member's times and counts.
struct Told {
    stored: Time,
    opened: Time,
    done: Time,
    stats: Stats,
}

impl Simulated {
    /// The share of the workers' time that was work of the tree, each node counted once.
    pub(super) fn efficiency(&self) -> f64 {
        self.work.as_secs_f64() / self.lived.as_secs_f64()
    }

    pub(super) fn row(&self) -> Row {
        let took = self.took.as_nanos() as u64;
        let row = Row {
            what: format!("uts, {} s of work each", WORK.as_secs()),
            engine: "sim".into(),
            members: self.members,
            replicas: Some(REPLICAS),
            contender: format!("{} deaths", self.deaths),
            floor_ns: Some((took as f64 * self.efficiency()) as u64),
            ratio: Some(1.0 / self.efficiency()),
            ..Row::default()
        };
        row.with_samples(vec![took])
    }

    pub(super) fn text(&self) -> String {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        format!(
            "{} simulated workers, {} deaths: efficiency {:.1} %; {:.2} s; {:.2} store calls a \
             beat of {:.1} ms, {:.2} % of the time for saving; exposed at most {:.1} ms; {} tasks \
             opened again, {} begun again; opening took {:.1} ms",
            self.members,
            self.deaths,
            self.efficiency() * 100.0,
            self.took.as_secs_f64(),
            self.calls_per_beat,
            ms(self.beat),
            self.saving_share * 100.0,
            ms(self.exposed),
            self.reopened,
            self.again,
            ms(self.opening)
        )
    }
}

fn nodes_of(root: &Node) -> u64 {
    1 + root.children().iter().map(nodes_of).sum::<u64>()
}

/// Runs the tree of UTS on simulated workers, of which some die one after the other.
pub(super) fn simulate(members: usize, deaths: usize) -> anyhow::Result<Simulated> {
    let sizes = (4..=12).map(|depth| (depth, nodes_of(&Node::root(depth))));
    let (depth, nodes) = sizes
        .into_iter()
        .find(|(_, nodes)| *nodes >= NODES * members as u64)
        .context("no tree is large enough")?;
    let work_ns = u32::try_from(members as u64 * WORK.as_nanos() as u64 / nodes)?;
    let mut options = sim::Options::new(members, 1).link(Link::Network);
    (options.cost, options.steps_max) = (Some(Cost::default()), u64::MAX);
    // Nine tasks on a stack, each as deep as the tree.
    options.stack_len = 4 << 20;
    let between = (DEATHS.1 - DEATHS.0) / deaths.max(1) as u32;
    let times: Vec<Duration> = (0..deaths as u32).map(|death| DEATHS.0 + between * death).collect();
    for (death, &after) in times.iter().enumerate() {
        // Far apart, with the member that begins the root not among the first.
        let victim = MemberId(((death * 997 + 5) % members) as u32);
        options = options.fault(When::At(BEGIN.after(after)), Action::Kill(victim));
    }
    let told = Rc::new(RefCell::new(Vec::new()));
    let wrong = Rc::new(RefCell::new(Vec::new()));
    let (told_of_body, wrong_of_body) = (told.clone(), wrong.clone());
    let report = sim::run(&options, move |job| {
        let part = || -> anyhow::Result<Told> {
            // The default, 256 partitions for each member, is for fewer members.
            let small = store::Options::new().replicas(REPLICAS).allow_fewer();
            let small = small.partitions(members.max(16)).expected_keys(members * KEYS);
            let store = Store::open(&job, small)?;
            let stored = job.now();
            let tasks = Tasks::open(&store, Options::new().sums::<Worked>())?;
            let opened = job.now();
            ensure!(opened < BEGIN, "the runtime was open at {opened:?}");
            job.sleep(BEGIN.since(opened));
            let output = tasks.run(Worked { node: Node::root(depth), work_ns })?;
            let done = job.now();
            ensure!(output == nodes, "{output} nodes are {nodes}");
            let told = Told { stored, opened, done, stats: tasks.stats() };
            job.sleep(END.since(job.now()));
            Ok(told)
        };
        match part() {
            Ok(told) => told_of_body.borrow_mut().push(told),
            // A dead member says nothing.
            Err(error) if !job.has_ended() => {
                wrong_of_body.borrow_mut().push(format!("{}: {error:#}", job.me()));
            }
            Err(_) => {}
        }
        let _ = job.leave();
    });
    let (told, wrong) = (told.take(), wrong.take());
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    ensure!(told.len() + deaths == members, "{} of {members} members ended", told.len());
    ensure!(report.kills == deaths as u64, "{} of {deaths} deaths came in time", report.kills);
    let end = told.iter().map(|one| one.done).max().context("a survivor")?;
    let took = end.since(BEGIN);
    let lost: Duration = times.iter().map(|&after| took.saturating_sub(after)).sum();
    let lived = took * members as u32 - lost;
    let sum = |of: fn(&Stats) -> u64| told.iter().map(|one| of(&one.stats)).sum::<u64>();
    let stats = || told.iter().map(|one| &one.stats);
    let calls = sum(|stats| stats.shared + stats.saved + 2 * stats.moved);
    let beats: f64 = stats().map(|one| took.as_secs_f64() / one.beat.as_secs_f64().max(1e-9)).sum();
    let saving: Duration = stats().map(|one| one.saving).sum();
    let stored = told.iter().map(|one| one.stored).min().context("a survivor")?;
    let opened = told.iter().map(|one| one.opened).max().context("a survivor")?;
    Ok(Simulated {
        members,
        deaths,
        opening: opened.since(stored),
        took,
        lived,
        work: Duration::from_nanos(u64::from(work_ns) * nodes),
        calls_per_beat: calls as f64 / beats,
        beat: stats().map(|one| one.beat).max().unwrap_or_default(),
        saving_share: saving.as_secs_f64() / lived.as_secs_f64(),
        exposed: stats().map(|one| one.exposed).max().unwrap_or_default(),
        reopened: sum(|stats| stats.reopened),
        again: sum(|stats| stats.again),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_workers_work_most_of_their_time_also_with_a_death() {
        for deaths in [0, 1] {
            let simulated = simulate(4, deaths).expect("runs");
            let efficiency = simulated.efficiency();
            assert!((0.85..1.0).contains(&efficiency), "{deaths} deaths: {efficiency}");
        }
    }
}
