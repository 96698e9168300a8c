//! Samples of contenders that took turns in a member of a benchmark, and the rows that they become.

use super::Row;
use crate::members::tell;
use outlast::MemberId;
use outlast::launch::Running;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// The samples of a contender, as a line of JSON of a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Samples {
    pub(super) what: String,
    pub(super) size: u64,
    pub(super) contender: String,
    /// The times, in tenths of nanoseconds.
    pub(super) tenths: Vec<u64>,
}

/// What the ratios of rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ratio {
    /// The time over the time of the floor.
    Time,
    /// The speed over the speed of the floor.
    Speed,
}

impl Samples {
    pub(super) fn new(what: &str, size: u64, contender: &str) -> Samples {
        let (what, contender) = (what.to_string(), contender.to_string());
        Samples { what, size, contender, tenths: Vec::new() }
    }

    /// Takes a sample: the mean time of so many calls in a row.
    pub(super) fn take<E>(
        &mut self,
        calls: u64,
        mut call: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let began = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        self.tenths.push(began.elapsed().as_nanos() as u64 * 10 / calls);
        Ok(())
    }

    /// Tells the command.
    pub(super) fn tell(&self) -> anyhow::Result<()> {
        tell(self)
    }
}

/// The samples that a member has told, among other lines.
pub(super) fn told(running: &Running, member: MemberId) -> Vec<Samples> {
    let output = running.output(member).stdout;
    let text = String::from_utf8_lossy(&output);
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn median(tenths: &[u64]) -> u64 {
    let mut sorted = tenths.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// The rows of these samples, with what all of them have in common. The floor of a measurement is
/// its first contender.
pub(super) fn rows(all: &[Samples], common: &Row, ratio: Ratio) -> Vec<Row> {
    all.iter()
        .map(|samples| {
            let is_other =
                |other: &&Samples| (&other.what, other.size) == (&samples.what, samples.size);
            let floor = all.iter().find(is_other).map_or(0, |floor| median(&floor.tenths)).max(1);
            let own = median(&samples.tenths).max(1);
            let row = Row {
                what: samples.what.clone(),
                size: Some(samples.size),
                contender: samples.contender.clone(),
                floor_ns: Some(floor / 10),
                ratio: Some(match ratio {
                    Ratio::Time => own as f64 / floor as f64,
                    Ratio::Speed => floor as f64 / own as f64,
                }),
                ..common.clone()
            };
            row.with_samples(samples.tenths.iter().map(|tenths| tenths / 10).collect())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_to_the_first_contender_of_the_measurement() {
        let of = |what: &str, contender: &str, tenths: &[u64]| {
            let samples = Samples::new(what, 64, contender);
            Samples { tenths: tenths.to_vec(), ..samples }
        };
        let all = [
            of("put", "memcpy", &[100, 100, 900]),
            of("put", "seat", &[250, 100, 300]),
            of("get", "memcpy", &[50]),
            of("get", "seat", &[25]),
        ];
        let ratios = |ratio: Ratio| -> Vec<f64> {
            rows(&all, &Row::default(), ratio).iter().filter_map(|row| row.ratio).collect()
        };
        assert_eq!(ratios(Ratio::Time), [1.0, 2.5, 1.0, 0.5]);
        assert_eq!(ratios(Ratio::Speed), [1.0, 0.4, 1.0, 2.0]);
        assert_eq!(rows(&all, &Row::default(), Ratio::Time)[1].p50_ns, 25);
    }
}
