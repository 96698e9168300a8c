//! What the examples of this folder share: whom `--kill MEMBER` names, the killing, and the check of the result.

use outlast::{Job, MemberId};

/// Whether somebody is to be killed: `--kill MEMBER` was given.
pub(crate) fn is_killing() -> bool {
    std::env::args().any(|argument| argument == "--kill")
}

/// Whether this member is the one that `--kill MEMBER` names. Members keep their number, ranks change.
pub(crate) fn is_victim(job: &Job) -> bool {
    let victim = std::env::args().skip_while(|argument| argument != "--kill").nth(1);
    match victim.map(|text| text.parse()) {
        None if !is_killing() => false,
        Some(Ok(member)) => job.me() == MemberId(member),
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
