//! A small program for trying out `outlast run`, and for its tests: its members add to each other's
//! counters for some seconds and check the sums. With `--store` they write to a store until they
//! are ended, for the tests of `outlast top`.

use anyhow::Context;
use clap::Args;
use outlast::store::{Options, Store};
use outlast::{Epoch, Error, Job, JoinOptions, MemberId};
use std::io::Write;
use std::time::Duration;

/// Adds to the counters of the other members for some seconds; reports deaths and wrong sums as
/// JSON.
#[derive(Args)]
pub(crate) struct SampleMember {
    /// Open a store instead, and write to it until a signal or a minute ends it
    #[arg(long)]
    store: bool,
}

/// How long a member adds to the counters.
const WORK: Duration = Duration::from_secs(3);
/// How long a member waits for members that have not finished.
const LIMIT: Duration = Duration::from_secs(20);
/// How long a member writes to the store.
const STORE_WORK: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(1);

fn tell(line: &str) -> anyhow::Result<()> {
    std::io::stdout()
        .write_all(format!("{line}\n").as_bytes())
        .context("writing to standard output")
}

impl SampleMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let job = JoinOptions::new().time_limit(LIMIT).join()?;
        if self.store {
            return write_to_store(&job).map(|()| true);
        }
        let members = job.members() as u64;
        // A counter for each member, and a word that is set when this member has finished.
        job.grow((members + 1) * 8)?;
        let mut sample = Sample { job: &job, added: vec![0; members as usize], noticed: Epoch(0) };
        let end = job.now().after(WORK);
        while job.now() < end {
            sample.look_around()?;
            for member in 0..members as u32 {
                sample.add(MemberId(member))?;
            }
            job.park(job.bell(), job.now().after(PAUSE));
        }
        let wrong = sample.finish(members)?;
        tell(&format!("{{\"done\":{{\"wrong\":{}}}}}", serde_json::to_string(&wrong)?))?;
        job.leave()?;
        Ok(wrong.is_empty())
    }
}

/// Writes to a store, and commits a transaction now and then.
fn write_to_store(job: &Job) -> anyhow::Result<()> {
    let options = Options::new().replicas(2).allow_fewer().partitions(64).expected_keys(1024);
    let store = Store::open(job, options)?;
    let end = job.now().after(STORE_WORK);
    let mut number = 0u64;
    while job.now() < end {
        for _ in 0..64 {
            number += 1;
            let key = format!("{}/{}", job.me().0, number % 256);
            store.put(key.as_bytes(), &number.to_ne_bytes())?;
        }
        store.transaction(|tx| {
            tx.put(format!("first/{}", job.me().0).as_bytes(), &number.to_ne_bytes())?;
            tx.put(format!("second/{}", job.me().0).as_bytes(), &number.to_ne_bytes())
        })?;
        job.sleep(PAUSE);
    }
    store.close()?;
    job.leave()?;
    Ok(())
}

struct Sample<'a> {
    job: &'a Job,
    /// How many additions of this member each member has acknowledged.
    added: Vec<u64>,
    /// The epoch up to which deaths were reported.
    noticed: Epoch,
}

impl Sample<'_> {
    /// Reports the dead members whenever the view has changed.
    fn look_around(&mut self) -> anyhow::Result<()> {
        let view = self.job.view();
        if view.epoch != self.noticed {
            for member in view.dead.iter().filter(|&member| !view.left.contains(member)) {
                tell(&format!("{{\"noticed\":{{\"dead\":{}}}}}", member.0))?;
            }
            self.noticed = view.epoch;
        }
        Ok(())
    }

    fn add(&mut self, member: MemberId) -> anyhow::Result<()> {
        let offset = u64::from(self.job.me().0) * 8;
        match self.job.fetch_add(Epoch::ANY, member, offset, 1) {
            Ok(_) => self.added[member.index()] += 1,
            // The member is dead, or has not grown its segment yet.
            Err(Error::Dead { .. } | Error::OutOfRange { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Compares the acknowledged additions with the counters and returns the differences. Then
    /// waits until all living members are here.
    fn finish(&mut self, members: u64) -> anyhow::Result<Vec<String>> {
        let mut wrong = Vec::new();
        for member in self.job.view().living() {
            match self.job.load(Epoch::ANY, member, u64::from(self.job.me().0) * 8) {
                Ok(found) if found == self.added[member.index()] => {}
                Ok(found) => {
                    wrong.push(format!("{member}: {found}, not {}", self.added[member.index()]))
                }
                Err(Error::Dead { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.job.put(Epoch::ANY, self.job.me(), members * 8, &1u64.to_ne_bytes())?;
        let until = self.job.now().after(LIMIT);
        let is_working =
            |job: &Job, member: MemberId| job.load(Epoch::ANY, member, members * 8) == Ok(0);
        while self.job.now() < until
            && self.job.view().living().any(|member| is_working(self.job, member))
        {
            self.look_around()?;
            self.job.park(self.job.bell(), self.job.now().after(PAUSE));
        }
        Ok(wrong)
    }
}
