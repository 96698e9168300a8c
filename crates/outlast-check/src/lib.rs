//! Histories, checkers, workloads and the ledger of acknowledged writes.
//!
//! The simulator, the chaos runs with real processes and the tests all do the same four things: they
//! generate a seeded program ([`workload`]), fill values that can be recognised again ([`value`]), record
//! what happened ([`history`], and [`ledger`] where a process may be killed), and judge the record. The
//! judges know nothing of the faults that were injected and nothing of the store: they see operations,
//! results and times.
//!
//! | judge | question |
//! |---|---|
//! | [`register`] | is every key, taken alone, linearizable? |
//! | [`serializable`] | do calls and transactions over all keys fit into one order that respects real time? |
//! | [`durability`] | is an acknowledged write lost, torn or stale, did a call hang? |
//! | [`loss`] | was anything that is lost ever answered, and does what was given up start anew? |
//! | [`report`] | all of them, as the counts that `outlast chaos` prints |
//!
//! ```
//! use outlast_check::history::{Access, Actor, History, CallKind, Log, Outcome, Value, Version};
//! use outlast_check::report::{self, Run};
//!
//! let mut writer = Log::new(Actor::new(0, 0));
//! let put = Access::write("a", Value::new(7));
//! writer.invoke(10, CallKind::Put, vec![put.clone()]);
//! writer.returned(20, Outcome::Ok, vec![put.at(Version::new(1, 0))]);
//!
//! let mut reader = Log::new(Actor::new(1, 0));
//! reader.invoke(30, CallKind::Get, vec![Access::ask("a")]);
//! reader.returned(40, Outcome::Ok, vec![Access::read("a")]); // It found nothing.
//!
//! let history = History::from_logs([writer, reader]).unwrap();
//! let report = report::judge(&Run::new(history));
//! assert_eq!(report.stale, 1);
//! assert!(!report.ok());
//! ```

#![forbid(unsafe_code)]

pub mod durability;
pub mod history;
pub mod ledger;
pub mod loss;
mod per_key;
pub mod register;
pub mod report;
pub mod serializable;
pub mod value;
pub mod violation;
pub mod workload;
