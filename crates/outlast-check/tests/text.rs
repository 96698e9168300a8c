//! The text form of a history: what a killed writer leaves behind, and malformed text.

mod common;

use std::io::Write;

use common::{Scenario, r, w, wv};
use outlast_check::history::{
    Access, Actor, CallKind, History, HistoryError, Key, LogWriter, Outcome, Value, Version,
};
use proptest::prelude::*;

fn sample() -> History {
    let mut scenario = Scenario::new();
    let odd_key = Key::from(b"\x00 :%\n\xff".as_slice());
    scenario.ok(0, 0..5, &[w("a", 1)]).ok(
        1,
        2..9,
        &[r("a", 1), Access::ask("b"), Access::delete("c")],
    );
    scenario.failed(0, 6..7, &[wv("a", 2)]).timeout(0, 8..20, &[Access::add("n", -5)]);
    scenario.ok(
        1,
        10..11,
        &[Access::add("n", i64::MIN).saw(Value::number(-1)).at(Version::new(u64::MAX, u32::MAX))],
    );
    scenario.ok(2, 1..2, &[Access::read(odd_key).saw(Value::torn(u64::MAX)), Access::read("")]);
    scenario.died(2, 30, &[wv("a", 3)]);
    scenario.history()
}

#[test]
fn the_text_is_as_documented() {
    let mut scenario = Scenario::new();
    scenario.ok(0, 0..5, &[w("ck/1", 17)]).died(0, 6, &[Access::ask("b c"), Access::add("n", -5)]);
    let expected = "outlast-history 1\n\
                    i 0/0 0 0 put w:ck/1:17.0:11\n\
                    r 0/0 0 5 ok w:ck/1:17.0:11\n\
                    i 0/0 1 6 transaction q:b%20c:-:- a-5:n:-:-\n";
    assert_eq!(scenario.history().to_text(), expected);
}

#[test]
fn the_text_form_keeps_the_whole_history() {
    assert_eq!(History::parse(sample().to_text().as_bytes()).unwrap(), sample());
    assert_eq!(History::parse(b"").unwrap(), History::default());
}

#[test]
fn a_text_cut_at_any_byte_keeps_its_whole_lines() {
    let text = sample().to_text();
    let whole = sample();
    for length in 0..text.len() {
        let cut = History::parse(&text.as_bytes()[..length]).unwrap();
        for operation in cut.operations() {
            let full = whole
                .operations()
                .iter()
                .find(|full| full.actor == operation.actor && full.sequence == operation.sequence)
                .unwrap();
            assert_eq!(operation.invoke_ns, full.invoke_ns);
            assert!(
                operation == full || operation.outcome == Outcome::Unknown,
                "{operation} of {full}"
            );
        }
        let invoked = text[..length]
            .split_inclusive('\n')
            .filter(|line| line.starts_with("i ") && line.ends_with('\n'));
        assert_eq!(cut.operations().len(), invoked.count());
    }
}

#[test]
fn a_killed_writer_leaves_an_unknown_outcome() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let mut log = LogWriter::new(std::fs::File::create(&path).unwrap(), Actor::new(3, 1)).unwrap();
    let put = [Access::write("a", Value::new(1))];
    log.invoke(1, CallKind::Put, &put).unwrap();
    log.returned(2, Outcome::Ok, &put).unwrap();
    log.invoke(3, CallKind::Put, &put).unwrap();
    drop(log);
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"r 3/1 1 4 o").unwrap();
    let history = History::parse(&std::fs::read(&path).unwrap()).unwrap();
    let outcomes: Vec<Outcome> =
        history.operations().iter().map(|operation| operation.outcome).collect();
    assert_eq!(outcomes, [Outcome::Ok, Outcome::Unknown]);
    assert_eq!(history.operations()[1].accesses, put);
}

#[test]
fn damage_is_named_with_its_line() {
    let cases = [
        ("hello\n", 1, "not a history"),
        ("outlast-history 2\n", 1, "not a history"),
        ("outlast-history 1\n\n", 2, "unknown tag"),
        ("outlast-history 1\nx 0/0 0 0 put\n", 2, "unknown tag"),
        ("outlast-history 1\ni 0/0 0 0 put\ni 0/0 0 0 put\n", 3, "second time"),
        ("outlast-history 1\ni 0 0 0 put\n", 2, "actor"),
        ("outlast-history 1\ni 0/x 0 0 put\n", 2, "thread"),
        ("outlast-history 1\ni 0/0 0 0 jump\n", 2, "unknown kind"),
        ("outlast-history 1\ni 0/0 0\n", 2, "time is missing"),
        ("outlast-history 1\ni 0/0 0 99999999999999999999 put\n", 2, "not a number in range"),
        ("outlast-history 1\ni 0/0 0 0 put w:a:1.0\n", 2, "MODE:KEY:VERSION:VALUE"),
        ("outlast-history 1\ni 0/0 0 0 put w:a:1:5\n", 2, "version"),
        ("outlast-history 1\ni 0/0 0 0 put w:a:-:xyz\n", 2, "bad value"),
        ("outlast-history 1\ni 0/0 0 0 put w:%4:-:1\n", 2, "hexadecimal"),
        ("outlast-history 1\ni 0/0 0 0 put z:a:-:1\n", 2, "access mode"),
        ("outlast-history 1\ni 0/0 0 0 add a1.5:a:-:1\n", 2, "amount"),
        ("outlast-history 1\nr 0/0 0 0 ok\n", 2, "without an invocation"),
        ("outlast-history 1\ni 0/0 0 5 put\nr 0/0 0 4 ok\n", 3, "before it was invoked"),
        ("outlast-history 1\ni 0/0 0 5 put\nr 0/0 0 6 fine\n", 3, "unknown outcome"),
        ("outlast-history 1\ni 0/0 0 5 put\nr 0/0 0 6 ok\nr 0/0 0 6 ok\n", 4, "second time"),
    ];
    for (text, line, part) in cases {
        match History::parse(text.as_bytes()) {
            Err(HistoryError::Line { line: found, reason }) => {
                assert_eq!(found, line, "{text}");
                assert!(reason.contains(part), "{text}: {reason}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    let not_text = History::parse(b"outlast-history 1\n\xff\xfe\n");
    assert_eq!(not_text, Err(HistoryError::Line { line: 2, reason: "not UTF-8".into() }));
}

#[test]
fn impossible_histories_are_refused() {
    let parse = |text: &str| History::parse(format!("outlast-history 1\n{text}").as_bytes());
    let overlap = parse("i 0/0 0 0 put\nr 0/0 0 9 ok\ni 0/0 1 5 put\n");
    assert_eq!(overlap, Err(HistoryError::Overlap { actor: Actor::new(0, 0), sequence: 1 }));
    let part = parse("i 0/0 0 0 put\n").unwrap();
    let merged = History::merge([part.clone(), part]);
    assert_eq!(merged, Err(HistoryError::Duplicate { actor: Actor::new(0, 0), sequence: 0 }));
    let merged =
        History::merge([parse("i 0/0 0 0 put\n").unwrap(), parse("i 1/0 0 0 put\n").unwrap()]);
    assert_eq!(merged.unwrap().operations().len(), 2);
    let mut impossible = parse("i 0/0 0 0 put\n").unwrap().into_operations();
    impossible[0].outcome = Outcome::Ok;
    let expected = HistoryError::OutcomeWithoutReturn { actor: Actor::new(0, 0), sequence: 0 };
    assert_eq!(History::new(impossible.clone()), Err(expected));
    impossible[0].invoke_ns = 7;
    impossible[0].return_ns = Some(6);
    let expected = HistoryError::TimeBackwards { actor: Actor::new(0, 0), sequence: 0 };
    assert_eq!(History::new(impossible), Err(expected));
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(4000)
    })]

    #[test]
    fn random_bytes_never_panic(bytes: Vec<u8>) {
        let _ = History::parse(&bytes);
        let with_header = [b"outlast-history 1\n".as_slice(), &bytes, b"\n"].concat();
        let _ = History::parse(&with_header);
    }

    #[test]
    fn random_lines_never_panic(
        lines in "(([ir] [0-9]/[0-9] [0-9] [0-9]{1,3} (put|ok|unknown|add))\
                  ( [qrwa]-?[0-9]{0,2}:[a-z%é]{0,3}:(-|[0-9].[0-9]):(-|[0-9a-f]!?)){0,3}\n){0,6}"
    ) {
        let text = format!("outlast-history 1\n{lines}");
        if let Ok(history) = History::parse(text.as_bytes()) {
            prop_assert_eq!(History::parse(history.to_text().as_bytes()).unwrap(), history);
        }
    }

    #[test]
    fn damaged_texts_never_panic(at: prop::sample::Index, byte: u8) {
        let mut text = sample().to_text().into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        let _ = History::parse(&text);
    }
}
