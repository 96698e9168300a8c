//! Helpers that the examples of this folder share: the option `--kill MEMBER`, the kill itself, and
//! the check of the result.

use outlast::{Job, MemberId};

/// Whether `--kill MEMBER` was given.
pub(crate) fn is_killing() -> bool {
    std::env::args().any(|argument| argument == "--kill")
}

/// Whether `--kill MEMBER` names this member. Members keep their number; ranks change.
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

/// Ends this process as `kill -9` does: without any cleanup or notice to the others.
pub(crate) fn die(job: &Job) -> ! {
    println!("{} is killed", job.me());
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    unreachable!("SIGKILL cannot be survived")
}

/// Checks the result and prints it; a wrong result ends the member with status 1.
pub(crate) fn check(job: &Job, result: u64, expected: u64) -> Result<(), String> {
    if result != expected {
        return Err(format!("{} has {result}, which should be {expected}", job.me()));
    }
    println!("{} has {result}, which is right", job.me());
    Ok(())
}
