//! Backtraces of processes that do not end, taken before they are killed, to explain a hang.

use std::fmt::Write as _;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The longest time that a debugger may take for a process.
const EACH_MAX: Duration = Duration::from_secs(10);
/// The longest time that a debugger may take for all processes.
const ALL_MAX: Duration = Duration::from_secs(30);

/// Returns the backtraces of all threads of these processes.
///
/// They come from gdb if it is installed and may trace the processes; otherwise the text has the
/// place in the kernel where each thread waits. Ended processes are left out. It takes at most half
/// a minute.
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

/// The name of each thread and its place in the kernel; `None` if the process has ended.
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
    // A zombie has ended.
    let state = stat.rsplit(')').next()?.split_whitespace().next()?;
    (!matches!(state, "Z" | "X")).then_some(text)
}

/// The backtraces by gdb; `None` if gdb cannot give them in time.
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
    // Without the permission to trace, or out of time, gdb shows no frame.
    text.contains("\n#0").then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backtraces_show_a_sleeping_process_and_no_ended_process() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("started");
        let text = backtraces(&[child.id()]);
        let plain = threads(child.id()).expect("the process runs");
        child.kill().expect("killed");
        assert!(
            text.contains(&format!("process {}", child.id())) && text.contains("sleep"),
            "{text}"
        );
        assert!(plain.contains("(sleep) in"), "{plain}");
        // The process ends soon. Nothing reaps it: it becomes a zombie.
        let until = Instant::now() + EACH_MAX;
        while threads(child.id()).is_some() {
            assert!(Instant::now() < until, "the process does not end");
        }
        assert_eq!(backtraces(&[child.id()]), "");
        child.wait().expect("ended");
        assert_eq!(backtraces(&[child.id()]), "");
    }
}
