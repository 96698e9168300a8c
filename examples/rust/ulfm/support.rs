//! What the examples of this folder share: whom `--kill MEMBER` names, the killing, and the check of the result.

use outlast::{Engine, Job};

/// Whether this member is the one that `--kill MEMBER` names. Members keep their number, ranks change.
pub(crate) fn is_victim(job: &Job) -> bool {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--kill", member] => member.parse() == Ok(job.me().0),
        _ => {
            eprintln!("the arguments are: [--kill MEMBER]");
            std::process::exit(2);
        }
    }
}

/// Ends this process as `kill -9` does: nothing is cleaned up, nobody is told.
pub(crate) fn die(job: &Job) -> ! {
    println!("{} is killed", job.me());
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    unreachable!("SIGKILL cannot be survived")
}

/// Says whether the result is right; a wrong one ends the member with status 1.
pub(crate) fn check(job: &Job, result: u64, expected: u64) -> Result<(), String> {
    if result != expected {
        return Err(format!("{} has {result}, which should be {expected}", job.me()));
    }
    println!("{} has {result}, which is right", job.me());
    Ok(())
}
