//! Passes signals that the launcher receives on to the members.

use anyhow::Context;
use outlast::launch::{Control, Signal, signal_name};
use signal_hook::consts::{SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

/// Passes signals on to the members, in a thread of its own. The second signal that asks for the
/// end kills them.
pub(super) fn forward(
    mut signals: SignalsInfo<WithOrigin>,
    control: Control,
) -> anyhow::Result<()> {
    let body = move || {
        let mut asked_to_end = 0;
        for origin in signals.forever() {
            let Some(signal) = Signal::from_named_raw(origin.signal) else { continue };
            let is_final = ![SIGUSR1, SIGUSR2].contains(&origin.signal);
            asked_to_end += i32::from(is_final);
            let name = signal_name(origin.signal);
            if is_final && asked_to_end > 1 {
                eprintln!("outlast: {name} again, killing all members");
                control.signal_all(Signal::KILL);
                continue;
            }
            if is_final {
                eprintln!("outlast: {name} passed on to the members; a second one kills them");
            }
            // A signal of the terminal (Ctrl-C) goes to the whole process group: the members have
            // received it.
            if origin.cause != Cause::Kernel {
                control.signal_all(signal);
            }
            // A stopped member receives the signal only after SIGCONT.
            if is_final {
                control.signal_all(Signal::CONT);
            }
        }
    };
    std::thread::Builder::new()
        .name("outlast-signals".to_string())
        .spawn(body)
        .context("starting the thread for signals")?;
    Ok(())
}
