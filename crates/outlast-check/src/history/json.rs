//! The JSON form of a history, for checkers outside of this project. `docs/history-format.md`
//! describes it.

use super::{
    Access, AccessMode, Actor, HistoryError, KIND_NAMES, OUTCOME_NAMES, Operation, Value, Version,
};
use serde::{Deserialize, Serialize};

/// What the field `format` says.
const FORMAT: &str = "outlast-history";

/// What the field `version` says.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Document {
    format: String,
    version: u32,
    calls: Vec<Call>,
}

#[derive(Serialize, Deserialize)]
struct Call {
    process: String,
    sequence: u64,
    call: String,
    start_ns: u64,
    end_ns: Option<u64>,
    result: String,
    accesses: Vec<JsonAccess>,
}

#[derive(Serialize, Deserialize)]
struct JsonAccess {
    mode: String,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    delta: Option<i64>,
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    torn: Option<bool>,
    version: Option<(u64, u32)>,
}

pub(super) fn write(operations: &[Operation]) -> String {
    let calls = operations.iter().map(to_call).collect();
    let document = Document { format: FORMAT.into(), version: VERSION, calls };
    serde_json::to_string_pretty(&document).expect("strings and numbers are valid JSON")
}

fn to_call(operation: &Operation) -> Call {
    Call {
        process: operation.actor.to_string(),
        sequence: operation.sequence,
        call: operation.kind.to_string(),
        start_ns: operation.invoke_ns,
        end_ns: operation.return_ns,
        result: operation.outcome.to_string(),
        accesses: operation.accesses.iter().map(to_access).collect(),
    }
}

fn to_access(access: &Access) -> JsonAccess {
    let (mode, delta) = match access.mode {
        AccessMode::Ask => ("ask", None),
        AccessMode::Read => ("read", None),
        AccessMode::Write => ("write", None),
        AccessMode::Add { delta } => ("add", Some(delta)),
    };
    JsonAccess {
        mode: mode.into(),
        key: access.key.to_string(),
        delta,
        value: access.value.map(|value| format!("{:x}", value.identity)),
        torn: access.value.filter(|value| value.torn).map(|_| true),
        version: access.version.map(|version| (version.counter, version.writer)),
    }
}

pub(super) fn read(bytes: &[u8]) -> Result<Vec<Operation>, HistoryError> {
    let document: Document = serde_json::from_slice(bytes)
        .map_err(|error| HistoryError::Json { reason: error.to_string() })?;
    if (document.format.as_str(), document.version) != (FORMAT, VERSION) {
        let reason = format!("the format is {} {}", document.format, document.version);
        return Err(HistoryError::Json { reason });
    }
    let calls = document.calls.into_iter().enumerate();
    calls.map(|(index, call)| from_call(call).map_err(|reason| wrong(index, &reason))).collect()
}

fn wrong(index: usize, reason: &str) -> HistoryError {
    HistoryError::Json { reason: format!("call {index}: {reason}") }
}

fn from_call(call: Call) -> Result<Operation, String> {
    let actor = call
        .process
        .split_once('/')
        .and_then(|(member, thread)| Some(Actor::new(member.parse().ok()?, thread.parse().ok()?)));
    let kind = KIND_NAMES.iter().find(|(_, name)| *name == call.call);
    let outcome = OUTCOME_NAMES.iter().find(|(_, name)| *name == call.result);
    Ok(Operation {
        actor: actor.ok_or_else(|| format!("unknown process {:?}", call.process))?,
        sequence: call.sequence,
        kind: kind.ok_or_else(|| format!("unknown call {:?}", call.call))?.0,
        invoke_ns: call.start_ns,
        return_ns: call.end_ns,
        outcome: outcome.ok_or_else(|| format!("unknown result {:?}", call.result))?.0,
        accesses: call.accesses.into_iter().map(from_access).collect::<Result<_, _>>()?,
    })
}

fn from_access(access: JsonAccess) -> Result<Access, String> {
    let mode = match (access.mode.as_str(), access.delta) {
        ("ask", None) => AccessMode::Ask,
        ("read", None) => AccessMode::Read,
        ("write", None) => AccessMode::Write,
        ("add", Some(delta)) => AccessMode::Add { delta },
        (other, _) => return Err(format!("unknown access {other:?}, or a delta that is not due")),
    };
    let identity = access.value.map(|value| {
        u64::from_str_radix(&value, 16).map_err(|_| format!("the value {value:?} is no number"))
    });
    let torn = access.torn == Some(true);
    Ok(Access {
        key: super::text::parse_key(&access.key)?,
        mode,
        version: access.version.map(|(counter, writer)| Version::new(counter, writer)),
        value: identity.transpose()?.map(|identity| Value { identity, torn }),
    })
}
