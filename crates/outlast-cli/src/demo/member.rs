//! A member of the demo: a thread that writes, and a thread that watches for deaths and repairs.

use super::{CALL_LIMIT, NOTE_LEN, REPLICAS, REST, VALUE_LEN, WRITES_PER_TURN};
use crate::control::{ControlAddress, MemberControl, Phase};
use crate::members::{DeathNews, Watch, machine_ns, tell};
use anyhow::{Context, ensure};
use clap::Args;
use outlast::store::{Options, Store};
use outlast::{JoinOptions, MemberId};
use outlast_check::value;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A member of the demo; started by it
#[derive(Args)]
pub(crate) struct DemoMember {
    address: String,
}

/// What members report to the demo, each as a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DemoLine {
    /// The store is open.
    Open,
    News(DeathNews),
    /// The member has stopped writing.
    Rests,
    /// How many keys were read back, and what is wrong with them.
    ReadBack {
        keys: u64,
        wrong: Vec<String>,
    },
}

/// The key of the n-th write of a member.
fn key(member: u32, number: u64) -> Vec<u8> {
    format!("result/{member}/{number}").into_bytes()
}

fn fill(key: &[u8], number: u64) -> Vec<u8> {
    value::fill(0, key, number, VALUE_LEN)
}

impl DemoMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let address: ControlAddress =
            serde_json::from_str(&self.address).context("where the demo's memory is")?;
        let job = JoinOptions::new().time_limit(CALL_LIMIT).join()?;
        let member = MemberControl::new(address, job.me().index())?;
        let options = Options::new().replicas(REPLICAS).partitions(128).expected_keys(1 << 14);
        let store = Store::open(&job, options).context("opening the store")?;
        tell(&DemoLine::Open)?;
        let stop = Arc::new(AtomicBool::new(false));
        let writer = std::thread::spawn({
            let (store, stop, mut notes) = (store.clone(), stop.clone(), member.record(0)?);
            move || -> anyhow::Result<()> {
                let mut number = 0;
                while !stop.load(Ordering::Acquire) {
                    for _ in 0..WRITES_PER_TURN {
                        let key = key(store.me().0, number);
                        store.put(&key, &fill(&key, number)).context("a put failed")?;
                        // Acknowledged: from here on the value must not be lost.
                        notes.write_all(&machine_ns().to_le_bytes())?;
                        number += 1;
                    }
                    std::thread::sleep(REST);
                }
                Ok(())
            }
        });
        let mut watch = Watch::default();
        let mut watch_until = |phase: Phase| -> anyhow::Result<()> {
            while member.phase()? < phase {
                let bell = job.bell();
                for news in watch.poll(&job, &store)? {
                    tell(&DemoLine::News(news))?;
                }
                ensure!(phase > Phase::Rest || !writer.is_finished(), "the writer has ended early");
                job.park(bell, job.now().after(watch.patience()));
            }
            Ok(())
        };
        watch_until(Phase::Rest)?;
        stop.store(true, Ordering::Release);
        // The writer ends before the report: what is read back is what it has recorded by then. A
        // writer that panicked makes the member fail.
        while !writer.is_finished() {
            let bell = job.bell();
            job.park(bell, job.now().after(REST));
        }
        tell(&DemoLine::Rests)?;
        watch_until(Phase::ReadBack)?;
        writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        let (keys, wrong) = read_back(&job, &store, &member)?;
        let is_ok = wrong.is_empty();
        tell(&DemoLine::ReadBack { keys, wrong })?;
        while member.phase()? < Phase::End {
            let bell = job.bell();
            job.park(bell, job.now().after(REST));
        }
        store.close().context("closing the store")?;
        job.leave()?;
        Ok(is_ok)
    }
}

/// Reads back the acknowledged writes of the members whose next living member this is. Returns the
/// number of keys and what is wrong.
fn read_back(
    job: &outlast::Job,
    store: &Store,
    member: &MemberControl,
) -> anyhow::Result<(u64, Vec<String>)> {
    let view = job.view();
    let members = job.members() as u32;
    let next_living = |writer: u32| {
        let after = (1..=members).map(|step| MemberId((writer + step) % members));
        after.into_iter().find(|&candidate| view.is_living(candidate))
    };
    let (mut keys, mut wrong) = (0, Vec::new());
    for writer in (0..members).filter(|&writer| next_living(writer) == Some(job.me())) {
        let acknowledged = member.read(writer as usize, 0)?.len() / NOTE_LEN;
        for number in 0..acknowledged as u64 {
            let key = key(writer, number);
            let found = store.get(&key)?;
            keys += 1;
            let problem = match found {
                None => "is missing",
                Some(found) if found.bytes() != fill(&key, number) => "has another value",
                Some(_) => continue,
            };
            wrong.push(format!(
                "{} of {} {problem}",
                String::from_utf8_lossy(&key),
                MemberId(writer)
            ));
        }
    }
    Ok((keys, wrong))
}
