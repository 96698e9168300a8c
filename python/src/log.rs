//! The log of the library: what it does about deaths and repair, on standard error.

use std::sync::Once;
use tracing_subscriber::filter::LevelFilter;

/// Writes the log from the level in OUTLAST_LOG on; once in a process.
pub(crate) fn start() {
    static START: Once = Once::new();
    START.call_once(|| {
        let Some(level) = std::env::var_os("OUTLAST_LOG").filter(|level| !level.is_empty()) else {
            return;
        };
        let parsed = level.to_str().and_then(|level| level.parse::<LevelFilter>().ok());
        let Some(level) = parsed else {
            eprintln!(
                "outlast: OUTLAST_LOG is {level:?}; it may be off, error, warn, info, debug or \
                 trace"
            );
            return;
        };
        let log = tracing_subscriber::fmt().with_max_level(level).with_ansi(false);
        // No other code of this process sets a log for this copy of the library.
        let _ = log.with_writer(std::io::stderr).try_init();
    });
}
