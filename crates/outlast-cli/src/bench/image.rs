//! `outlast bench image`: encoding, saving and loading images, against memcpy.

use super::samples::{Ratio, Samples, rows, told};
use super::{BenchArgs, Row, expect_ok, publish};
use crate::members::say_line;
use crate::quantity;
use crate::report::say;
use anyhow::{Context, ensure};
use clap::Args;
use outlast::image::{Images, Options, encode_all};
use outlast::launch::{Launch, Output, Running};
use outlast::store::{self, Store};
use outlast::{Epoch, Job, JoinOptions, MemberId};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Parity is computed by one thread, in stripes of 7+1, 6+2 and 5+3 pieces of 16 KiB; the floor is
memcpy of the data. Then a member saves an image while the other members lend memory that was
touched before: all of it changed, against memcpy of what is written into the memories of all
holders, and nothing changed, against memcpy of the image. Then it reads the image into a buffer,
before and after a holder of data was killed. Floor and contender take turns. The ratio is the speed
over that of memcpy: 1.00x is as fast, less is slower. The bars are 0.60x, 0.40x and 0.25x to
encode, 0.50x to save, and 0.40x to read with a piece lost.

Examples:
  64 MiB in 4 pieces, of which any may be lost:
      outlast bench image
  In 8 pieces, of which any 2 may be lost:
      outlast bench image --set 8 --lose 2";

/// Measure images against memcpy: encode, save, load
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ImageBench {
    /// The size of the image
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = quantity::bytes)]
    size: u64,
    /// How many pieces the image has, each at another process
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(2..=16))]
    set: u16,
    /// How many of the pieces may be lost
    #[arg(long, value_name = "M", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=3))]
    lose: u16,
    /// How many times each operation is measured
    #[arg(long, value_name = "N", default_value_t = 15)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    #[command(flatten)]
    pub(super) args: BenchArgs,
}

/// A member of the benchmark; started by it
#[derive(Args)]
pub(crate) struct ImageBenchMember {
    plan: String,
}

#[derive(Serialize, Deserialize)]
struct Plan {
    size: usize,
    set: usize,
    lose: usize,
    rounds: usize,
}

/// How long a job may take.
const LIMIT: Duration = Duration::from_secs(300);
/// With this word the member that measures says which other one is to be killed.
const KILL: &str = "kill ";
/// The length of a piece, the default of images.
const PIECE_LEN: usize = 16 << 10;
/// The codes that are measured: how many data pieces and parity pieces a stripe has.
const CODES: [(usize, usize); 3] = [(7, 1), (6, 2), (5, 3)];

impl ImageBench {
    pub(super) fn execute(self) -> anyhow::Result<bool> {
        let (set, lose) = (usize::from(self.set), usize::from(self.lose));
        if lose >= set {
            crate::usage_error("bench", format!("{lose} of {set} pieces may be lost; fewer"));
        }
        if !(1 << 20..=1 << 30).contains(&self.size) {
            crate::usage_error("bench", format!("an image of {} bytes; 1M to 1G", self.size));
        }
        let json = self.args.json.as_deref();
        let mut all = self.encode();
        say(json, "encoded; saving and reading");
        let plan = Plan { size: self.size as usize, set, lose, rounds: self.rounds.into() };
        let mut running = Launch::new(set)
            .program(std::env::current_exe()?)
            .args(["image-bench-member", &serde_json::to_string(&plan)?])
            .segment_limit(64 * self.size)
            .die_with_launcher(true)
            .output(Output::Capture)
            .start()?;
        running.kill(victim_of(&running)?)?;
        let outcome = running.wait(LIMIT);
        expect_ok(&outcome)?;
        all.extend(told(&running, MemberId(0)));
        let common = Row { engine: "shm".into(), members: set, ..Row::default() };
        publish(&self.args, rows(&all, &common, Ratio::Speed))?;
        Ok(true)
    }

    /// Encodes in this process.
    fn encode(&self) -> Vec<Samples> {
        let data: Vec<u8> = (0..self.size).map(|at| (at * 31 + at / 4096) as u8).collect();
        let mut copy = vec![1; data.len()];
        let mut parity = vec![1; data.len() * 2];
        let mut all = Vec::new();
        for (pieces, lose) in CODES {
            let what = format!("encode {pieces}+{lose}");
            let mut floor = Samples::new(&what, self.size, "memcpy of the data");
            let mut ours = Samples::new(&what, self.size, "Outlast");
            for _ in 0..self.rounds {
                let _ = floor.take(1, || {
                    black_box(&mut copy).copy_from_slice(black_box(&data));
                    Ok::<_, ()>(())
                });
                let _ = ours.take(1, || {
                    encode_all(pieces, lose, PIECE_LEN, black_box(&data), black_box(&mut parity));
                    Ok::<_, ()>(())
                });
            }
            all.extend([floor, ours]);
        }
        all
    }
}

/// Waits until the member that measures says which member is to be killed.
fn victim_of(running: &Running) -> anyhow::Result<MemberId> {
    let end = Instant::now() + LIMIT;
    loop {
        let output = running.output(MemberId(0));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if let Some(member) = said.lines().find_map(|line| line.strip_prefix(KILL)?.parse().ok()) {
            return Ok(MemberId(member));
        }
        let is_over = Instant::now() >= end || running.running() == 0;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(!is_over, "the member that measures did not come to a kill: {errors}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl ImageBenchMember {
    pub(crate) fn execute(self) -> anyhow::Result<bool> {
        let plan: Plan = serde_json::from_str(&self.plan).context("the plan of the run")?;
        let job = JoinOptions::new().time_limit(LIMIT).join()?;
        let store = Store::open(&job, store::Options::new().replicas(plan.lose + 1))?;
        let options = Options::new(plan.size as u64).set(plan.set).lose(plan.lose);
        let images = Images::open(&store, "bench", options)?;
        // The floor is measured in memory of the same kind: each member lends a range for it.
        let floor = job.reserve(plan.piece_bytes() as u64)?;
        let zeros = vec![0; plan.piece_bytes()];
        job.put(Epoch::ANY, job.me(), floor, &zeros)?;
        store.put(format!("floor/{}", job.me().0).as_bytes(), &floor.to_le_bytes())?;
        if job.me() == MemberId(0) {
            plan.measure(&job, &store, &images)?;
        }
        // The members that lend memory come here at once and sleep.
        images.close()?;
        store.close()?;
        job.leave()?;
        Ok(true)
    }
}

impl Plan {
    /// The bytes of an image at each of its holders.
    fn piece_bytes(&self) -> usize {
        let stripe = (self.set - self.lose) * PIECE_LEN;
        self.size.div_ceil(stripe) * PIECE_LEN
    }

    fn measure(&self, job: &Job, store: &Store, images: &Images) -> anyhow::Result<()> {
        let deadline = job.now().after(LIMIT);
        let mut floors = Vec::new();
        for member in 0..self.set {
            let key = format!("floor/{member}");
            let found = store.wait(key.as_bytes(), None, deadline)?.context("a missing member")?;
            floors.push(u64::from_le_bytes(found.bytes().try_into().context("an offset")?));
        }
        let holders = images.holders();
        // A holder of data that is another member.
        let data = &holders[..self.set - self.lose];
        let is_other = |member: &&MemberId| **member != job.me();
        let victim = data.iter().find(is_other).or(holders.iter().find(is_other));
        let victim = victim.context("another holder")?;
        let of = |what: &str, contender: &str| Samples::new(what, self.size as u64, contender);
        let shape = format!("{} pieces, {} may be lost", self.set, self.lose);
        let all_changed = format!("save, all changed, {shape}");
        let nothing = format!("save, nothing changed, {shape}");
        let mut saves = [
            of(&all_changed, "memcpy of what is written"),
            of(&all_changed, "Outlast"),
            of(&nothing, "memcpy of the image"),
            of(&nothing, "Outlast"),
        ];
        let mut bytes: Vec<u8> = (0..self.size).map(|at| (at * 31 + at / 4096) as u8).collect();
        let mut copy = vec![1; self.size];
        let stripe = (self.set - self.lose) * PIECE_LEN;
        let change = |bytes: &mut Vec<u8>| {
            bytes.iter_mut().step_by(stripe).for_each(|byte| *byte = byte.wrapping_add(1));
        };
        // The memory of two images is touched, as after the second save of any program.
        for _ in 0..3 {
            change(&mut bytes);
            images.save("image", b"note", &bytes)?;
        }
        for _ in 0..self.rounds {
            saves[0].take(1, || self.copy_pieces(job, &floors, &bytes))?;
            change(&mut bytes);
            saves[1].take(1, || images.save("image", b"note", black_box(&bytes)))?;
            saves[2].take(1, || {
                black_box(&mut copy).copy_from_slice(black_box(&bytes));
                anyhow::Ok(())
            })?;
            saves[3].take(1, || images.save("image", b"note", black_box(&bytes)))?;
        }
        self.read(images, "read, no piece lost", &bytes, &mut copy)?;
        say_line(&format!("{KILL}{}", victim.0))?;
        let until = job.now().after(LIMIT);
        while job.epoch() == Epoch(0) {
            ensure!(job.now() < until, "no member was killed");
            job.park(job.bell(), job.now().after(Duration::from_millis(5)));
        }
        saves.iter().try_for_each(Samples::tell)?;
        self.read(images, "read, a piece lost", &bytes, &mut copy)
    }

    /// Copies what a save of the image writes, in the order of a save.
    fn copy_pieces(&self, job: &Job, floors: &[u64], bytes: &[u8]) -> anyhow::Result<()> {
        let data = self.set - self.lose;
        for (stripe, pieces) in bytes.chunks(data * PIECE_LEN).enumerate() {
            let at = (stripe * PIECE_LEN) as u64;
            for (member, floor) in floors.iter().enumerate() {
                let from = (member % data) * PIECE_LEN;
                let piece = pieces.get(from..pieces.len().min(from + PIECE_LEN));
                job.memcpy_in(MemberId(member as u32), floor + at, black_box(piece.unwrap_or(&[])));
            }
        }
        Ok(())
    }

    fn read(
        &self,
        images: &Images,
        what: &str,
        bytes: &[u8],
        copy: &mut [u8],
    ) -> anyhow::Result<()> {
        let shape = format!("{} pieces, {} may be lost", self.set, self.lose);
        let what = format!("{what}, {shape}");
        let mut floor = Samples::new(&what, self.size as u64, "memcpy of the image");
        let mut ours = Samples::new(&what, self.size as u64, "Outlast");
        for _ in 0..self.rounds {
            copy.fill(0);
            floor.take(1, || {
                black_box(&mut *copy).copy_from_slice(black_box(bytes));
                anyhow::Ok(())
            })?;
            copy.fill(0);
            ours.take(1, || images.read("image", 0, black_box(&mut *copy)))?;
            ensure!(copy == bytes, "the image differs");
        }
        floor.tell()?;
        ours.tell()
    }
}
