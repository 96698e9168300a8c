//! What the examples of this folder share: whom `--kill MEMBER` names, the killing, and the check of the result.

use outlast::{Engine, Job, MemberId};

/// Whether this member is the one that `--kill MEMBER` names. Members keep their number, ranks change.
pub(crate) fn is_victim(job: &Job) -> bool {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--kill").skip(1);
    match (std::env::args().any(|argument| argument == "--kill"), arguments.next().map(|text| text.parse())) {
        (false, _) => false,
        (true, Some(Ok(member))) => job.me() == MemberId(member),
        (true, _) => {
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
