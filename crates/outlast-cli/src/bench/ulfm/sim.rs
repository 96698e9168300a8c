//! Members of the benchmark in the simulator, with its cost model: virtual times and numbers of
//! messages for thousands of members.

use super::member::{Samples, UlfmPlan, WITHOUT_FAILURE, play};
use anyhow::ensure;
use outlast::engine::Fault;
use outlast::sim::{self, Cost, Link, Options, Report};
use outlast::{Job, Time};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// How long after a death its notice arrives, in virtual time. It is equal for all members, so that
/// it can be subtracted.
pub(super) const DETECTION: Duration = Duration::from_micros(10);

/// When the members leave, in virtual time: long after their last call.
const END: Time = Time(2_000_000_000_000);

/// The results for a number of members.
pub(super) struct Simulated {
    pub(super) samples: Samples,
    /// Messages per member and call, for the operations without failures.
    pub(super) messages: BTreeMap<&'static str, f64>,
}

pub(super) fn simulate(members: usize) -> anyhow::Result<Simulated> {
    // A few calls are enough, since nothing is random with the cost model. The difference of two
    // runs leaves out the messages besides the calls.
    let (few, more) = (1, if members > 1024 { 2 } else { 3 });
    let mut messages = BTreeMap::new();
    let mut samples = Samples::new();
    for operation in WITHOUT_FAILURE {
        let sent = |iterations, samples: &mut Samples| {
            run(members, UlfmPlan { only: Some(operation), ..plan(iterations, false) }, samples)
                .map(|report| {
                    report.counters.iter().map(|counters| counters.messages_sent).sum::<u64>()
                })
        };
        let before = sent(few, &mut Samples::new())?;
        let after = sent(more, &mut samples)?;
        let calls = f64::from(more - few) * members as f64;
        messages.insert(operation, after.saturating_sub(before) as f64 / calls);
    }
    let mut with_failure = Samples::new();
    run(
        members,
        UlfmPlan { only: Some(WITHOUT_FAILURE[0]), ..plan(more, true) },
        &mut with_failure,
    )?;
    with_failure.remove(WITHOUT_FAILURE[0]);
    samples.append(&mut with_failure);
    Ok(Simulated { samples, messages })
}

fn plan(iterations: u32, with_failure: bool) -> UlfmPlan {
    UlfmPlan { iterations, limit: Duration::from_secs(1000), only: None, with_failure }
}

fn run(members: usize, plan: UlfmPlan, samples: &mut Samples) -> anyhow::Result<Report> {
    let options = Options {
        cost: Some(Cost::default()),
        detection: DETECTION..=DETECTION,
        steps_max: u64::MAX,
        ..Options::new(members, 1).link(Link::Network)
    };
    let gathered = Rc::new(RefCell::new(Samples::new()));
    let errors = Rc::new(RefCell::new(Vec::new()));
    let (for_body, errors_of_body) = (gathered.clone(), errors.clone());
    let body = move |job: Job| {
        match play(&job, plan, |member| Ok(job.inject(Fault::Kill(member))?)) {
            Ok(samples) => samples.into_iter().for_each(|(what, own)| {
                for_body.borrow_mut().entry(what).or_default().extend(own);
            }),
            Err(error) => errors_of_body.borrow_mut().push(format!("{}: {error:#}", job.me())),
        }
        // All members leave at one moment. If they left in turn, each would notify all remaining
        // members, and thousands of members would read as many notices as there are pairs.
        while job.now() < END && !job.has_ended() {
            let bell = job.bell();
            job.park(bell, END);
        }
        let _ = job.leave();
    };
    let report = sim::run(&options, body);
    // The error that the killed member returned while it was unwound does not count.
    let errors: Vec<String> = errors.borrow().clone();
    let allowed = usize::from(plan.with_failure);
    ensure!(
        report.is_ok() && errors.len() <= allowed,
        "the simulated job of {members} ended as {:?}: {:?} {errors:?}",
        report.outcome,
        report.panics
    );
    for (what, own) in gathered.borrow_mut().iter_mut() {
        samples.entry(what.clone()).or_default().append(own);
    }
    Ok(report)
}
