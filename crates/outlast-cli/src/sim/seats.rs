//! Simulated runs of programs on seats: members die and stop at any engine step, and the answer of
//! each program is that of an oracle.

use super::{JudgedRun, Sim};
use crate::program::SeatProgram;
use outlast::Job;
use outlast::protect::{self, Interval, Protect, ProtectError};
use outlast::sim::{self, Options as SimOptions};
use outlast::store::{self, Store, StoreError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How many rounds a program has.
const ROUNDS: u64 = 4;
/// About how many engine steps a member makes in a program: faults come in the first of them.
const STEPS: u64 = 6_000;
/// The most steps of a run, for each member. A member that waits for a stopped one polls.
const STEPS_MAX: u64 = 8_000_000;
/// A stop may be longer than the usual time limit, and no call gives up.
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// The budget of the logs of a seat.
const LOGS: u64 = 64 << 10;

/// What the members have recorded outside of the simulation: the seats that ended, and errors.
#[derive(Default)]
struct SeatRecord {
    ended: Vec<usize>,
    wrong: Vec<(String, String)>,
}

impl Sim {
    /// How many members may die at once in a run on seats: fewer than the store has replicas, and
    /// as many as images bear.
    pub(super) fn lose(&self) -> usize {
        (self.replicas - 1).min(3).min(usize::from(self.members) - 1)
    }

    /// Runs a program on seats and judges it.
    pub(super) fn run_seats(&self, seed: u64) -> JudgedRun {
        let (members, replicas) = (usize::from(self.members), self.replicas);
        let program = SeatProgram::new(self.programs, members, ROUNDS, seed, self.logged)
            .expect("a program of seats");
        let lose = self.lose();
        let options = Protect::new(program.bytes()).set((lose + 2).min(members)).lose(lose);
        let options = options.piece(64).room(self.kills.max(1)).patience(Duration::from_secs(300));
        let options = match (self.logged, seed / 4 % 3) {
            (false, 0) => options.every(Interval::Time(Duration::from_micros(300))),
            (false, _) => options,
            // No save unless a seat asks for it, or some.
            (true, 0) => options.logged(LOGS).every(Interval::Time(Duration::from_micros(400))),
            (true, _) => options.logged(LOGS).every(Interval::Time(Duration::from_secs(1_000_000))),
        };
        let mut simulated = SimOptions::new(members, seed).link(self.link_of(seed));
        simulated.spares = self.spares;
        // The tables of the code are made on the stack of the first member that needs them.
        simulated.stack_len = 2 << 20;
        simulated = simulated.random_faults(self.kills, self.stops, STEPS);
        simulated.time_limit = TIME_LIMIT;
        simulated.steps_max = STEPS_MAX * (members + self.spares) as u64;
        simulated.trace = self.trace;
        let record: Arc<Mutex<SeatRecord>> = Arc::default();
        let report = {
            let record = record.clone();
            sim::run(&simulated, move |job: Job| {
                if let Err((kind, text)) = play(&job, replicas, &options, program, &record) {
                    let text = format!("member {}: {text}", job.me().0);
                    lock(&record).wrong.push((kind.into(), text));
                }
                let _ = job.leave();
            })
        };
        // Standard output is for JSON.
        report.trace.iter().for_each(|line| eprintln!("{line}"));
        let mut record = lock(&record);
        let mut wrong = std::mem::take(&mut record.wrong);
        for panic in &report.panics {
            wrong.push(("panic".into(), format!("member {}: {}", panic.member.0, panic.message)));
        }
        if report.outcome != sim::Outcome::Finished {
            let hung: Vec<String> = report.hung.iter().map(ToString::to_string).collect();
            wrong.push(("hung".into(), format!("{:?}: {}", report.outcome, hung.join("; "))));
        }
        record.ended.sort_unstable();
        let is_twice = record.ended.windows(2).any(|two| two[0] == two[1]);
        let is_lost = report.kills == 0 && record.ended.len() != members;
        if wrong.is_empty() && (is_twice || is_lost) {
            wrong.push(("seats".into(), format!("these seats ended: {:?}", record.ended)));
        }
        JudgedRun {
            steps: report.steps,
            kills: report.kills,
            stops: report.stops,
            data_lost: 0,
            wrong,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a member does; returns the kind and the text of a violation.
fn play(
    job: &Job,
    replicas: usize,
    options: &Protect,
    program: SeatProgram,
    record: &Mutex<SeatRecord>,
) -> Result<(), (&'static str, String)> {
    let records = store::Options::new().replicas(replicas).partitions(8).expected_keys(128);
    let store = match Store::open(job, records.allow_fewer()) {
        Ok(store) => store,
        Err(StoreError::Closed) => return Ok(()),
        Err(error) => return Err(("opening", error.to_string())),
    };
    let ended =
        protect::run(&store, options.clone(), move |seat| program.play(seat, |_, _| Ok(())));
    match ended {
        Ok(ended) => lock(record).ended.extend(ended.into_iter().map(|(seat, _)| seat)),
        // The member is no longer part of the job.
        Err(ProtectError::Closed) if job.has_ended() => return Ok(()),
        Err(error) => return Err(("error", error.to_string())),
    }
    match store.close() {
        Ok(()) | Err(StoreError::Closed) => Ok(()),
        Err(error) => Err(("closing", error.to_string())),
    }
}
