//! What the kernel tells about the process of a member.

/// The ticks in a second in which the kernel reports times to programs, on every architecture that
/// Rust supports.
const TICKS_PER_SECOND: u64 = 100;

/// A process at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    /// The state, as `ps` shows it: R, S, D, T, Z and others.
    pub(super) state: char,
    /// The processor time of all its threads.
    pub(super) cpu_ns: u64,
    /// The memory that it occupies, shared memory included.
    pub(super) resident: u64,
}

impl Process {
    /// Reads the state of a process; `None` if there is no process with this number.
    pub(super) fn read(pid: u32) -> Option<Process> {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
        Process::parse(&read("stat")?, &read("status").unwrap_or_default())
    }

    fn parse(stat: &str, status: &str) -> Option<Process> {
        // The name of the program comes before the last parenthesis, and may contain anything.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok());
        Some(Process {
            state: fields.first()?.chars().next()?,
            cpu_ns: (number(11)? + number(12)?) * (1_000_000_000 / TICKS_PER_SECOND),
            resident: resident.unwrap_or(0) << 10,
        })
    }

    /// Whether the process is stopped, by a signal or by a debugger.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }

    /// Whether the process has ended and waits to be reaped.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// The command line of a process; `None` if it has ended.
pub(super) fn command_line(pid: u32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = bytes.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(|word| printable(&String::from_utf8_lossy(word))).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

/// A text of another process without characters that a terminal would act on.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_process_is_read_whatever_its_name() {
        let stat = "77 (a) b ( c) T 1 77 77 0 -1 4194304 99 0 0 0 150 50 0 0 20 0 3 0 12345 \
                    9 10 18446744073709551615 1 1 0 0 0";
        let process = Process::parse(stat, "Name:\tx\nVmRSS:\t    2048 kB\nThreads:\t3\n");
        let process = process.expect("a process");
        assert!(process.is_stopped() && !process.has_ended());
        assert_eq!((process.cpu_ns, process.resident), (2_000_000_000, 2 << 20));
        assert_eq!(Process::parse("", ""), None);
        assert_eq!(Process::parse("77 (a) R 1", ""), None);
    }

    #[test]
    fn this_process_is_found_and_runs() {
        let process = Process::read(std::process::id()).expect("it runs");
        assert!(!process.is_stopped() && !process.has_ended() && process.resident > 0);
        assert!(command_line(std::process::id()).is_some());
        assert_eq!(printable("a\x1b[31mb\n"), "a?[31mb?");
    }
}
