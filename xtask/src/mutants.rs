//! `cargo xtask mutants`: breaks the store's protocol in each known way and shows the seed or the
//! test that catches it.
//!
//! The feature `faults` compiles the mutants into the library (`mutant.rs` of the store), and the
//! environment variable `OUTLAST_MUTANT` chooses a mutant by its name. The task runtime has mutants
//! of its own (`steps.rs`), chosen by `OUTLAST_TASKS_MUTANT`; a test is named for each.

use crate::gate::{Gate, cargo, minutes};
use crate::soak::{build, outlast};
use crate::test::TASKS_FEATURES;
use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The time that the mutants may take.
const LIMIT: Duration = minutes(90);

/// The mutants: the name, and what it breaks. `cargo xtask tidy` compares the names with the
/// store's.
pub(crate) const MUTANTS: [(&str, &str); 57] = [
    ("ack-early", "acknowledge before the last replica has it"),
    ("publish-early", "publish before the value is written"),
    ("skip-epoch", "skip the epoch check"),
    ("reuse-early", "reuse a block early"),
    ("no-help", "do not complete what others published"),
    ("near-unmarked", "answer near with an unstable version"),
    ("near-older", "answer near by what an older view knew"),
    ("near-own-node", "answer near next to the primary"),
    ("grow-early", "unzip chains without a grace period"),
    ("grow-stale", "split a bucket by an older content"),
    ("grow-mark-early", "mark a new bucket before the split"),
    ("grow-insert-late", "insert into a bucket that was split"),
    ("grow-unzip-ahead", "unzip further without a grace period"),
    ("grow-again-early", "split a bucket that shares nodes"),
    ("grow-unlink-shared", "unlink a node that two chains share"),
    ("grow-retire-twice", "retire a shared node from both chains"),
    ("grow-walk-twice", "walk over a shared node in both chains"),
    ("repair-over-newer", "let repair replace a newer version"),
    ("repair-lost-swap", "take a failed copy of repair for done"),
    ("repair-uncounted", "let a write outlast a repair unseen"),
    ("trust-absent", "trust an incomplete replica"),
    ("forget-tombstone", "restart versions after a delete"),
    ("assume-version", "replace a version without reading it"),
    ("assume-condition", "put by handle without its condition"),
    ("tx-lost-update", "overwrite a key changed after its read"),
    ("tx-skip-look", "skip the validation of reads"),
    ("tx-read-past", "read past a validating transaction"),
    ("tx-apply-early", "apply before the commit"),
    ("tx-abort-late", "abort a committed transaction"),
    ("tx-drop-intent", "drop the intent before it is applied"),
    ("tx-read-older", "read past a transaction of an older view"),
    ("tx-skip-outcome", "acknowledge a change that was lost"),
    ("accept-keeps", "keep the rest of a lost partition"),
    ("recover-partly-visible", "show a part of a recovery early"),
    ("recover-skip-vote", "decide a recovery without the vote"),
    ("recover-skip-abort", "apply an aborted recovery"),
    ("salvage-torn", "salvage a torn record"),
    ("salvage-oldest", "salvage the replica that died first"),
    ("salvage-late", "acknowledge a write after the salvage"),
    ("image-commit-early", "commit an image before its last piece"),
    ("image-reuse-slot", "write into slots of the image before"),
    ("image-stale-parity", "leave the parity of a changed stripe"),
    ("image-same-domain", "put two pieces into a failure domain"),
    ("image-old-piece", "take a piece of another save"),
    ("limit-per-wait", "give each wait of a call the time limit"),
    ("background-waits", "let the background wait like a call"),
    ("region-vote-missing", "decide a checkpoint without the vote"),
    ("seat-verdict-after-rollback", "let a verdict overwrite a rollback"),
    ("seat-verdict-early", "decide a save of seats before the vote"),
    ("seat-thaw-early", "leave a point before all have saved"),
    ("seat-stage-early", "save a seat before all are at a point"),
    ("seat-rollback-one-late", "roll back to a save without a verdict"),
    ("seat-survivor-keeps", "roll back the seats of the dead alone"),
    ("seat-lock-kept", "keep locks across a rollback"),
    ("seat-step-kept", "let a seat go on that gave a point up"),
    ("seat-wrong-note", "give a seat the note of another"),
    ("seat-adopt-without-incarnation", "look for a seat where it was before"),
];

/// The mutants of the task runtime: the name, what it breaks, and the test of its simulator tests
/// that catches it. `cargo xtask tidy` compares the names with the runtime's.
pub(crate) const TASK_MUTANTS: [(&str, &str, &str); 32] = [
    ("claim-unconditional", "claim a task without a condition", "trees::trees_outlast_deaths"),
    ("complete-unconditional", "put a result without a condition", "schedules::a_late_result"),
    ("reopen-skips-heir", "leave the tasks of the dead held", "schedules::the_heir_opens"),
    ("heir-asked-once", "look after the first dead alone", "schedules::the_heir_opens"),
    ("no-walk-down", "look at the awaited task alone", "schedules::a_worker_that_waits"),
    ("waiter-does-not-reopen", "leave a held task to its heir", "schedules::an_heir_that"),
    ("past-forgotten", "forget a past holder", "trees::trees_outlast_deaths"),
    ("generation-ignored", "take a slot's last task for its next", "schedules::a_claim_without"),
    ("slot-reused-early", "use a slot before it is covered", "trees::trees_outlast_deaths"),
    ("left-under-right", "save a left half as the right one", "schedules::a_left_half"),
    ("no-bottom-rule", "wait for old children on a stack", "schedules::a_task_with_unfinished"),
    ("hints-believed", "take a hint for the state", "trees::trees_outlast_deaths"),
    ("never-poisoned", "run a task that kills for ever", "schedules::a_task_that_kills"),
    ("arguments-not-compared", "use the output of others", "schedules::an_earlier_output"),
    ("fork-number-not-restored", "count forks from zero again", "schedules::a_loop_goes_on"),
    ("part-covered-early", "forget a part of a bag early", "schedules::a_part_that_is"),
    ("share-over-records", "share over records of a life", "schedules::what_lives_below"),
    ("claim-forgotten", "forget a claim without an answer", "schedules::a_claim_without"),
    ("told-is-over", "take another run's end for the own", "sessions::the_end_of_a_later"),
    ("root-not-looked-at", "wait to be told the end", "sessions::a_worker_that_was_not_told"),
    ("fail-over-done", "fail a run that has an output", "sessions::a_run_that_is_over"),
    ("any-session", "open a session of another job", "sessions::a_session_of_another"),
    ("session-opened-twice", "open a session twice", "sessions::a_runtime_that_is_open"),
    ("single-in-strand", "run a single task in the strand", "shapes::a_single_task"),
    ("unjoined-not-withdrawn", "leave unwanted tasks open", "shapes::a_task_inside"),
    ("task-number-ignored", "use the output of another task", "shapes::an_earlier_output"),
    ("hints-once", "write no hint when there is room again", "shapes::more_open_tasks_than"),
    ("no-pause-without-room", "ask a full store all the time", "shapes::a_store_that_is_full"),
    ("ending-opened", "open a session that is deleted", "sessions::a_session_that_is_being_del"),
    ("left-holder-waited-for", "wait for who has left the run", "shapes::all_members_leave"),
    ("losing-arguments-kept", "keep arguments that no root names", "shapes::the_long_arguments"),
    ("poisoned-children-kept", "keep children of a poisoned task", "shapes::a_poisoned_task"),
];

/// The runs of the simulator that hunt a mutant, in this order. The first failing seed catches it.
const HUNTS: [(&str, u64); 15] = [
    ("--members 3 --replicas 2 --calls 100 --programs puts --link network", 300),
    ("--members 3 --replicas 3 --calls 60 --programs calls --link network", 300),
    ("--members 4 --replicas 2 --threads 4", 100),
    ("--members 3 --replicas 2 --kills 1 --stops 1 --programs calls", 600),
    ("--members 3 --replicas 2 --kills 1 --stops 1 --programs conditional", 300),
    ("--members 4 --replicas 3 --kills 2 --calls 40 --programs calls", 600),
    ("--members 4 --replicas 2 --kills 3 --calls 60 --threads 4 --programs calls", 400),
    ("--members 6 --replicas 2 --kills 5 --calls 60 --programs calls", 1_000),
    ("--members 5 --replicas 3 --kills 2 --stops 2 --threads 3 --programs calls", 600),
    ("--members 5 --replicas 3 --kills 4 --beyond --calls 60 --threads 4 --programs calls", 1_000),
    ("--members 4 --replicas 3 --kills 2 --mode global", 600),
    ("--members 3 --replicas 2 --kills 1 --stops 1 --mode global", 600),
    (
        "--members 4 --replicas 3 --kills 2 --stops 2 --threads 4 --mode global --programs calls",
        600,
    ),
    ("--members 5 --replicas 2 --kills 4 --salvage --calls 60 --programs calls", 1_000),
    ("--members 4 --replicas 1 --kills 3 --salvage --calls 60 --threads 4 --programs calls", 500),
];

/// The tests that hunt a mutant after that, for states that random programs do not reach: the
/// arguments that choose the test binary, and the filter.
const TEST_HUNTS: [(&[&str], &str); 12] = [
    (&["--lib"], "store::record::grow::"),
    (&["--lib"], "store::record::read::"),
    (&["--lib"], "store::record::reconcile::"),
    (&["--lib"], "store::recovery::repair::"),
    (&["--lib"], "store::api::transaction::"),
    (&["--lib"], "store::tx::"),
    (&["--test", "sim"], "store::salvage::"),
    (&["--test", "sim"], "store::deadlines::"),
    (&["--lib"], "image::"),
    (&["--test", "sim"], "image::"),
    (&["--lib"], "protect::"),
    (&["--test", "sim"], "protect::"),
];

/// The mutants, by the beginnings of their names, that the tests of a filter catch: these tests run
/// first, since no seed of the simulator reaches what the mutants break.
const CAUGHT_BY_TESTS: [(&str, &str); 9] = [
    ("grow-", "store::record::grow::"),
    ("near-own-node", "store::record::read::"),
    ("repair-lost-swap", "store::record::reconcile::"),
    ("repair-uncounted", "store::recovery::repair::"),
    ("tx-read-older", "store::api::transaction::"),
    ("tx-skip-outcome", "store::api::transaction::"),
    ("image-", "image::"),
    ("region-", "image::"),
    ("seat-", "protect::"),
];

/// Hunts each mutant; an error if a mutant survives, or if the unbroken store does not pass.
pub(crate) fn mutants(json: Option<&Path>) -> anyhow::Result<()> {
    let mut gate = Gate::new(LIMIT);
    let result = hunt_all(&mut gate, json);
    gate.summarize("mutants", result)
}

fn hunt_all(gate: &mut Gate, json: Option<&Path>) -> anyhow::Result<()> {
    let (program, command) = build("faults")?;
    gate.step("build with mutants", minutes(20), command)?;
    let mut rows = Vec::new();
    let mut survivors = Vec::new();
    // The unbroken store comes first: a run that catches a mutant must pass without it.
    for (name, what) in [("", "nothing is broken")].into_iter().chain(MUTANTS) {
        let began = Instant::now();
        let caught = hunt(&program, name)?;
        let seconds = began.elapsed().as_secs_f64();
        if name.is_empty() {
            if let Some(caught) = caught {
                bail!("the store fails without a mutant: {}: {}", caught.kind, caught.replay);
            }
            println!("  {what:<44} passes ({seconds:.0} s)");
            continue;
        }
        match &caught {
            Some(caught) => {
                println!(
                    "  {what:<44} caught: {} ({seconds:.0} s)\n      {}",
                    caught.kind, caught.replay
                );
            }
            None => {
                println!("  {what:<44} SURVIVES ({seconds:.0} s)");
                survivors.push(what);
            }
        }
        let (kind, replay) =
            caught.map_or((None, None), |caught| (Some(caught.kind), Some(caught.replay)));
        rows.push(json!({
            "mutant": name,
            "what": what,
            "caught": kind.is_some(),
            "kind": kind,
            "replay": replay,
            "seconds": seconds,
        }));
    }
    for (name, what, test) in TASK_MUTANTS {
        let began = Instant::now();
        if let Some(replay) = hunt_in_tasks("", test)? {
            bail!("the task runtime fails without a mutant: {replay}");
        }
        let replay = hunt_in_tasks(name, test)?;
        let seconds = began.elapsed().as_secs_f64();
        match &replay {
            Some(replay) => println!("  {what:<44} caught ({seconds:.0} s)\n      {replay}"),
            None => {
                println!("  {what:<44} SURVIVES ({seconds:.0} s)");
                survivors.push(what);
            }
        }
        rows.push(json!({
            "mutant": name,
            "what": what,
            "caught": replay.is_some(),
            "kind": replay.is_some().then(|| format!("the test {test} fails")),
            "replay": replay,
            "seconds": seconds,
        }));
    }
    if let Some(path) = json {
        let report = json!({ "ok": survivors.is_empty(), "mutants": rows });
        std::fs::write(path, serde_json::to_string_pretty(&report)? + "\n")
            .with_context(|| format!("writing {}", path.display()))?;
    }
    ensure!(survivors.is_empty(), "not caught: {}", survivors.join(", "));
    Ok(())
}

/// What caught a mutant.
struct Caught {
    kind: String,
    replay: String,
}

/// Runs everything that may catch a mutant, and returns the first catch.
fn hunt(program: &Path, mutant: &str) -> anyhow::Result<Option<Caught>> {
    let first = CAUGHT_BY_TESTS.iter().find(|(name, _)| mutant.starts_with(name));
    let first = first.map(|(_, filter)| *filter).filter(|_| !mutant.is_empty());
    let is_first = |filter: &str| Some(filter) == first;
    for (binary, filter) in TEST_HUNTS.into_iter().filter(|(_, filter)| is_first(filter)) {
        if let Some(caught) = hunt_in_tests(mutant, binary, filter)? {
            return Ok(Some(caught));
        }
    }
    for (shape, count) in HUNTS {
        // A coordinated recovery happens in global mode only. Other mutants are caught faster in
        // the other mode.
        let is_global = shape.contains("--mode global");
        if !mutant.is_empty() && is_global != mutant.starts_with("recover-") {
            continue;
        }
        if let Some(caught) = hunt_in_seeds(program, mutant, shape, count)? {
            return Ok(Some(caught));
        }
    }
    for (binary, filter) in TEST_HUNTS.into_iter().filter(|(_, filter)| !is_first(filter)) {
        if let Some(caught) = hunt_in_tests(mutant, binary, filter)? {
            return Ok(Some(caught));
        }
    }
    Ok(None)
}

/// The setting of the environment that chooses a mutant, as a prefix of a command.
fn setting(mutant: &str) -> String {
    if mutant.is_empty() { String::new() } else { format!("OUTLAST_MUTANT={mutant} ") }
}

/// Runs seeds of the simulator with a mutant.
fn hunt_in_seeds(
    program: &Path,
    mutant: &str,
    shape: &str,
    count: u64,
) -> anyhow::Result<Option<Caught>> {
    let arguments = format!("sim {shape} --seeds 0..{count} --first-failure --json -");
    let mut command = outlast(program, &arguments);
    if !mutant.is_empty() {
        command.env("OUTLAST_MUTANT", mutant);
    }
    let output = command.stdin(Stdio::null()).output().context("running outlast sim")?;
    // A mutant that ends the process is caught as well.
    let Ok(report) = serde_json::from_slice::<Value>(&output.stdout) else {
        ensure!(
            !mutant.is_empty(),
            "outlast sim gave no report: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let kind = format!("ends the simulator ({})", output.status);
        let replay = format!("{}outlast {arguments}", setting(mutant));
        return Ok(Some(Caught { kind, replay }));
    };
    Ok(report["failing"].as_array().and_then(|failing| failing.first()).map(|failing| {
        let text = |field: &str| failing[field].as_str().unwrap_or_default().to_string();
        Caught { kind: text("kind"), replay: setting(mutant) + &text("replay") }
    }))
}

/// Runs the tests of a filter with a mutant.
fn hunt_in_tests(mutant: &str, binary: &[&str], filter: &str) -> anyhow::Result<Option<Caught>> {
    let features = ["--features", "outlast/sim,outlast/faults"];
    let arguments =
        [&["test", "--package", "outlast"][..], binary, &features[..], &[filter]].concat();
    let mut command = cargo(&arguments);
    if !mutant.is_empty() {
        command.env("OUTLAST_MUTANT", mutant);
    }
    let output = command.stdin(Stdio::null()).output().context("running a test")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    // A test that cannot be built has caught nothing.
    ensure!(said.contains("test result:"), "{}", String::from_utf8_lossy(&output.stderr));
    let replay = format!("{}cargo {}", setting(mutant), arguments.join(" "));
    let kind = format!("a test of {filter} fails");
    Ok((!output.status.success()).then_some(Caught { kind, replay }))
}

/// Runs a test of the task runtime with a mutant; returns how to replay it if it fails.
fn hunt_in_tasks(mutant: &str, test: &str) -> anyhow::Result<Option<String>> {
    let package = ["test", "--package", "outlast-tasks", "--test", "sim"];
    let arguments = [&package[..], &["--features", TASKS_FEATURES, test]].concat();
    let mut command = cargo(&arguments);
    command.env("OUTLAST_TASKS_MUTANT", mutant);
    let output = command.stdin(Stdio::null()).output().context("running a test")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    // A test that cannot be built, or is not there, has caught nothing.
    ensure!(
        said.contains("running 1 test"),
        "{test}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let replay = || format!("OUTLAST_TASKS_MUTANT={mutant} cargo {}", arguments.join(" "));
    Ok((!output.status.success()).then(replay))
}

/// The names in a list of mutants: the string literals, a line each, of the constant `list`.
pub(crate) fn names_in(source: &str, list: &str) -> Vec<String> {
    let list = source.split_once(list).and_then(|(_, rest)| rest.split_once("];"));
    let lines = list.map_or("", |(list, _)| list).lines();
    let literal =
        |line: &str| Some(line.trim().strip_prefix('"')?.strip_suffix("\",")?.to_string());
    lines.filter_map(literal).collect()
}
