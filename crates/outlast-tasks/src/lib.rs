//! A task runtime that outlasts its workers.
//!
//! Fork-join programs, and pools of independent tasks, run on all members of a job. Members may die
//! at any time, the member with the root task included. The others do not stop, and the output is
//! that of a run without deaths.
#![forbid(unsafe_code)]

mod background;
mod bag;
mod board;
mod claim;
mod counts;
mod cx;
mod error;
mod events;
mod frame;
mod options;
mod record;
mod resume;
mod run;
mod scope;
mod session;
mod slots;
pub mod steps;
mod task;
mod wait;
mod worker;

pub use bag::Bag;
pub use counts::{Observer, Stats};
pub use cx::Cx;
pub use error::{Error, TaskError};
pub use events::Event;
pub use options::Options;
pub use run::Tasks;
pub use scope::{Future, Scope};
pub use task::{Sum, Task};
