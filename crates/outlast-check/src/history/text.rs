//! The line-based text form of a history. [`super::History::to_text`] describes it.

use std::collections::HashMap;
use std::fmt::{self, Write};

use super::{
    Access, AccessMode, Actor, HistoryError, KIND_NAMES, Key, OUTCOME_NAMES, Operation, Outcome,
    Value, Version,
};

/// The first line of every text.
pub(crate) const HEADER: &str = "outlast-history 1\n";

/// Writing to a `String` cannot fail, so the result of `write!` is not an error.
const INFALLIBLE: &str = "writing to a string does not fail";

pub(crate) fn write_key(out: &mut impl Write, key: &Key) -> fmt::Result {
    for &byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"/_-.".contains(&byte) {
            out.write_char(char::from(byte))?;
        } else {
            write!(out, "%{byte:02x}")?;
        }
    }
    Ok(())
}

pub(crate) fn write_invoke(out: &mut String, operation: &Operation) {
    let Operation { actor, sequence, invoke_ns, kind, .. } = operation;
    write!(out, "i {actor} {sequence} {invoke_ns} {kind}").expect(INFALLIBLE);
    write_accesses(out, &operation.accesses);
}

pub(crate) fn write_return(out: &mut String, operation: &Operation) {
    let Operation { actor, sequence, outcome, .. } = operation;
    let return_ns = operation.return_ns.unwrap_or(operation.invoke_ns);
    write!(out, "r {actor} {sequence} {return_ns} {outcome}").expect(INFALLIBLE);
    write_accesses(out, &operation.accesses);
}

fn write_accesses(out: &mut String, accesses: &[Access]) {
    for access in accesses {
        write_access(out, access).expect(INFALLIBLE);
    }
    out.push('\n');
}

fn write_access(out: &mut String, access: &Access) -> fmt::Result {
    match access.mode {
        AccessMode::Ask => out.push_str(" q:"),
        AccessMode::Read => out.push_str(" r:"),
        AccessMode::Write => out.push_str(" w:"),
        AccessMode::Add { delta } => write!(out, " a{delta}:")?,
    }
    write_key(out, &access.key)?;
    match access.version {
        Some(version) => write!(out, ":{}.{}:", version.counter, version.writer)?,
        None => out.push_str(":-:"),
    }
    match access.value {
        Some(value) => write!(out, "{:x}{}", value.identity, if value.torn { "!" } else { "" }),
        None => out.write_char('-'),
    }
}

pub(crate) fn parse(bytes: &[u8]) -> Result<Vec<Operation>, HistoryError> {
    let mut operations: Vec<Operation> = Vec::new();
    let mut places: HashMap<(Actor, u64), usize> = HashMap::new();
    // A killed writer may leave a part of a line behind the last line end.
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    for (index, line) in bytes[..whole].split_inclusive(|&byte| byte == b'\n').enumerate() {
        let outcome = if index == 0 {
            if line == HEADER.as_bytes() {
                Ok(())
            } else {
                Err("not a history of a known format; the first line must be `outlast-history 1`"
                    .to_string())
            }
        } else {
            parse_line(&line[..line.len() - 1], &mut operations, &mut places)
        };
        outcome.map_err(|reason| HistoryError::Line { line: index + 1, reason })?;
    }
    Ok(operations)
}

fn parse_line(
    line: &[u8],
    operations: &mut Vec<Operation>,
    places: &mut HashMap<(Actor, u64), usize>,
) -> Result<(), String> {
    let line = std::str::from_utf8(line).map_err(|_| "not UTF-8".to_string())?;
    let mut fields = line.split(' ');
    let mut field = |what: &str| fields.next().ok_or_else(|| format!("the {what} is missing"));
    let tag = field("tag")?;
    if tag != "i" && tag != "r" {
        return Err(format!("unknown tag {tag:?}"));
    }
    let (member, thread) = pair(field("actor")?, '/', "actor")?;
    let actor = Actor::new(number(member, "member")?, number(thread, "thread")?);
    let sequence = number(field("sequence")?, "sequence")?;
    let time_ns = number(field("time")?, "time")?;
    let word = field("kind or outcome")?;
    let accesses = fields.map(parse_access).collect::<Result<Vec<_>, _>>()?;
    if tag == "i" {
        let kind = KIND_NAMES.iter().find(|(_, name)| *name == word);
        let (kind, _) = *kind.ok_or_else(|| format!("unknown kind {word:?}"))?;
        if places.insert((actor, sequence), operations.len()).is_some() {
            return Err(format!("actor {actor} invokes operation #{sequence} a second time"));
        }
        let outcome = Outcome::Unknown;
        operations.push(Operation {
            actor,
            sequence,
            kind,
            invoke_ns: time_ns,
            return_ns: None,
            outcome,
            accesses,
        });
        return Ok(());
    }
    let outcome = OUTCOME_NAMES.iter().find(|(_, name)| *name == word);
    let (outcome, _) = *outcome.ok_or_else(|| format!("unknown outcome {word:?}"))?;
    let place = places.get(&(actor, sequence));
    let place = *place
        .ok_or_else(|| format!("actor {actor} returns from #{sequence} without an invocation"))?;
    let operation = &mut operations[place];
    if operation.return_ns.is_some() {
        return Err(format!("actor {actor} returns from #{sequence} a second time"));
    }
    if time_ns < operation.invoke_ns {
        return Err(format!("actor {actor} returns from #{sequence} before it was invoked"));
    }
    operation.return_ns = Some(time_ns);
    operation.outcome = outcome;
    operation.accesses = accesses;
    Ok(())
}

fn parse_access(field: &str) -> Result<Access, String> {
    let mut parts = field.split(':');
    let (Some(mode), Some(key), Some(version), Some(value), None) =
        (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(format!("the access {field:?} is not MODE:KEY:VERSION:VALUE"));
    };
    let mode = match mode {
        "q" => AccessMode::Ask,
        "r" => AccessMode::Read,
        "w" => AccessMode::Write,
        _ => match mode.strip_prefix('a') {
            Some(delta) => AccessMode::Add { delta: number(delta, "amount to add")? },
            None => return Err(format!("unknown access mode {mode:?}")),
        },
    };
    let version = match version {
        "-" => None,
        _ => {
            let (counter, writer) = pair(version, '.', "version")?;
            Some(Version::new(
                number(counter, "version counter")?,
                number(writer, "version writer")?,
            ))
        }
    };
    let value = match value {
        "-" => None,
        _ => {
            let digits = value.strip_suffix('!').unwrap_or(value);
            let identity =
                u64::from_str_radix(digits, 16).map_err(|_| format!("bad value {value:?}"))?;
            Some(Value { identity, torn: digits.len() < value.len() })
        }
    };
    Ok(Access { key: parse_key(key)?, mode, version, value })
}

pub(super) fn parse_key(text: &str) -> Result<Key, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(
            byte.ok_or_else(|| {
                format!("the key {text:?} has a `%` without two hexadecimal digits")
            })?,
        );
        rest = &rest[2..];
    }
    Ok(Key::from(bytes))
}

fn pair<'a>(text: &'a str, separator: char, what: &str) -> Result<(&'a str, &'a str), String> {
    text.split_once(separator).ok_or_else(|| format!("the {what} {text:?} lacks its `{separator}`"))
}

fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("the {what} {text:?} is not a number in range"))
}
