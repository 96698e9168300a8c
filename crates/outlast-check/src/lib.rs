//! Histories, checkers, workloads and the ledger of acknowledged writes.
//!
//! The simulator, the chaos runs with real processes and the tests all do four things. They
//! generate a seeded program ([`workload`]), fill values that can be recognised again ([`value`]),
//! record what happened ([`history`], and [`ledger`] where a process may be killed), and judge the
//! record. The judges know nothing of the injected faults and nothing of the store: they see
//! operations, results and times. [`seats`] has programs whose results an oracle knows. This crate
//! does not depend on the library that it checks.
//!
//! | judge | question |
//! |---|---|
//! | [`register`] | is every key, taken alone, linearizable? |
//! | [`serializable`] | do all calls and transactions fit into a single order and real time? |
//! | [`durability`] | is an acknowledged write lost, torn or stale, did a call hang? |
//! | [`loss`] | was a lost key ever answered, and does an accepted loss begin anew? |
//! | [`report`] | all questions, as the counts that `outlast chaos` prints |
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
//! reader.returned(40, Outcome::Ok, vec![Access::read("a")]); // The key was absent.
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
pub mod seats;
pub mod serializable;
pub mod value;
pub mod violation;
pub mod workload;
