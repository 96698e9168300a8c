//! The machine and the command of a run, as reports name them.

use serde::{Deserialize, Serialize};

/// The machine of a run.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) processor: String,
    pub(crate) kernel: String,
    pub(crate) memory_bytes: u64,
}

impl Machine {
    pub(crate) fn this() -> Machine {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let processor =
            cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Machine {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: processor.map_or("unknown", |(_, name)| name).to_string(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            memory_bytes: outlast::engine::shm::available_memory(),
        }
    }
}

/// The command as it was typed, for a shell.
pub(crate) fn command_line() -> String {
    let words = std::env::args().skip(1).map(|word| quoted(&word));
    std::iter::once("outlast".to_string()).chain(words).collect::<Vec<_>>().join(" ")
}

/// A word of a command line, in quotes if a shell would not take it as it is.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The date and time.
pub(crate) fn now() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    crate::quantity::date(now.map_or(0, |now| now.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_shell_are_quoted_when_they_need_it() {
        assert_eq!(quoted("--sizes=64,1K"), "--sizes=64,1K");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
