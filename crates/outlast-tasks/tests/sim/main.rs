//! The task runtime under the simulator:
//!
//! | module | subject |
//! |---|---|
//! | `errors` | bad input, and states in which a run cannot go on |
//! | `heavy` | random programs with long values |
//! | `schedules` | schedules that broke simpler forms |
//! | `sessions` | how sessions and runs begin and end |
//! | `shapes` | tasks of unusual shapes: single, long, unwanted, in loops |
//! | `trees` | random trees with deaths and stops at any step |

mod errors;
mod heavy;
mod schedules;

mod sessions;
mod shapes;
mod trees;
