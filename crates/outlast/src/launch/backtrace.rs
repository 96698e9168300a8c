//! Where processes are that do not end: what one wants to know of a hang before they are killed.

use std::fmt::Write as _;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a debugger may look at one process, and at all of them.
const EACH_MAX: Duration = Duration::from_secs(10);
const ALL_MAX: Duration = Duration::from_secs(30);

/// The backtraces of all threads of these processes, by gdb where it is installed and allowed to look; otherwise what each
/// thread waits for in the kernel. Those that have ended are left out. Bounded: it takes half a minute at most.
pub fn backtraces(pids: &[u32]) -> String {
    let until = Instant::now() + ALL_MAX;
    let mut text = String::new();
    for &pid in pids {
        let Some(threads) = threads(pid) else { continue };
        let found = by_gdb(pid, until.min(Instant::now() + EACH_MAX)).unwrap_or(threads);
        let _ = writeln!(text, "--- process {pid}\n{}", found.trim_end());
    }
    text
}

/// The name of each thread and where it waits in the kernel; none if the process has ended.
fn threads(pid: u32) -> Option<String> {
    let mut text = String::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let (name, place, call) = (read("comm"), read("wchan"), read("syscall"));
        let number = task.file_name();
        let _ = writeln!(
            text,
            "thread {} ({}) in {}, system call {}",
            number.display(),
            name.trim(),
            if place.is_empty() { "?" } else { place.trim() },
            call.trim()
        );
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // A process that has ended and was not waited for has nothing to show.
    let state = stat.rsplit(')').next()?.split_whitespace().next()?;
    (!matches!(state, "Z" | "X")).then_some(text)
}

fn by_gdb(pid: u32, until: Instant) -> Option<String> {
    let mut gdb = Command::new("gdb")
        .args(["-p", &pid.to_string(), "-batch", "-nx"])
        .args(["-ex", "set debuginfod enabled off", "-ex", "set print frame-arguments none"])
        .args(["-ex", "thread apply all backtrace 40"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut output = gdb.stdout.take()?;
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = output.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    while Instant::now() < until && !reader.is_finished() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = gdb.kill();
    let _ = gdb.wait();
    let text = reader.join().ok()?;
    // Without the right to look, or when it was too slow, gdb has no thread to show.
    text.contains("\n#0").then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_sleeps_is_found_where_it_sleeps() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("started");
        let text = backtraces(&[child.id()]);
        let plain = threads(child.id()).expect("it runs");
        child.kill().expect("killed");
        assert!(
            text.contains(&format!("process {}", child.id())) && text.contains("sleep"),
            "{text}"
        );
        assert!(plain.contains("(sleep) in"), "{plain}");
        // It has ended soon, and is not waited for: there is nothing to show.
        let until = Instant::now() + EACH_MAX;
        while threads(child.id()).is_some() {
            assert!(Instant::now() < until, "it does not end");
        }
        assert_eq!(backtraces(&[child.id()]), "");
        child.wait().expect("ended");
        assert_eq!(backtraces(&[child.id()]), "");
    }
}
