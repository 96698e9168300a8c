//! Times, sizes and engines as users type them.

use std::time::Duration;

/// A time such as `500ms`, `2s`, `1.5s`, `3m`, `6h`, `30d` or `5y`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time; write it as 500ms, 1.5s, 3m, 6h, 30d or 5y");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        "y" => 365.25 * 86_400.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

/// A number of bytes such as `4096`, `64K`, `512M` or `2G`; the units are powers of 1024.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size; write it as 4096, 64K, 512M or 2G");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// An engine that processes can run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineName {
    Shm,
    Mpi,
}

impl std::fmt::Display for EngineName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == EngineName::Shm { "shm" } else { "mpi" })
    }
}

/// The names of the engines.
const ENGINES: &str = "shm, mpi";

/// The engine of this name.
pub(crate) fn engine(name: &str) -> Result<EngineName, String> {
    match name {
        "shm" => Ok(EngineName::Shm),
        "mpi" => Ok(EngineName::Mpi),
        "sim" => Err(format!(
            "the simulator has no processes (see `outlast sim`); this command has: {ENGINES}"
        )),
        other => Err(format!("unknown engine `{other}`; this command has: {ENGINES}")),
    }
}

/// A duration in seconds with three decimals, as all reports show it.
pub(crate) fn seconds(duration: Duration) -> String {
    format!("{:.3} s", duration.as_secs_f64())
}

/// A number of bytes in the largest fitting unit.
pub(crate) fn human_bytes(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, shift)| bytes >> shift != 0) {
        Some((unit, shift)) => format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

/// Seconds since 1970 as a date and a time of day, in UTC.
pub(crate) fn date(seconds: u64) -> String {
    // Days since 0000-03-01: the leap day is then the last day of its year.
    let days = seconds / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year_of_era + carry;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_399), "2000-02-28 23:59:59 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_798_761_599), "2026-12-31 23:59:59 UTC");
        assert_eq!(date(4_107_542_400), "2100-03-01 00:00:00 UTC");
    }

    #[test]
    fn times_are_read_as_written() {
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(time("3m"), Ok(Duration::from_secs(180)));
        assert_eq!(time("1.5h"), Ok(Duration::from_secs(5400)));
        assert_eq!(time("30d"), Ok(Duration::from_secs(30 * 86_400)));
        assert_eq!(time("4y"), Ok(Duration::from_secs(1461 * 86_400)));
        assert_eq!(
            time(&format!("{:?}", Duration::from_micros(1234))),
            Ok(Duration::from_micros(1234))
        );
        for wrong in
            ["", "2", "s", "-1s", "1.2.3s", "2 s", "5w", "NaNs", "99999999999999999999999s"]
        {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_read_as_written() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("64K"), Ok(65536));
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        assert_eq!(bytes("3mb"), Ok(3 << 20));
        for wrong in ["", "K", "-1", "1.5G", "99999999999T", "7X"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(human_bytes(3 << 29), "1.5 GiB");
        assert_eq!(human_bytes(17), "17 B");
    }
}
