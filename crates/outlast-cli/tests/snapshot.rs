//! `outlast snapshot` lists, verifies and shows the snapshots of a job.

mod common;

use ::outlast::snapshot::{Header, Part, Unfinished, Writer, part_name};
use common::outlast;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A folder with two snapshots of a job of two members.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("snapshots");
    for taken_at in [1_763_164_800, 1_763_251_200] {
        let unfinished = Unfinished::begin(&path).expect("begun");
        let parts: Vec<Part> = (0..2)
            .map(|member| {
                let generation = unfinished.number();
                let header = Header { generation, member, members: 2, replicas: 2, taken_at };
                let mut writer = Writer::create(&unfinished.part(member), &header).expect("made");
                writer
                    .add(format!("result/{member}").as_bytes(), &[7; 1000], member, 3)
                    .expect("written");
                writer.add(format!("task/{member}").as_bytes(), b"", member, 1).expect("written");
                Part { name: part_name(member), totals: writer.finish().expect("written") }
            })
            .collect();
        unfinished.publish(&parts, 5).expect("published");
    }
    (folder, path)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn snapshots_are_listed_verified_and_shown() {
    let (_folder, path) = folder();
    let list = outlast(&["snapshot", "list", text(&path)]);
    assert_eq!(list.code(), 0, "{list:?}");
    assert!(
        list.stdout.contains("2025-11-15 00:00:00 UTC") && list.stdout.lines().count() == 3,
        "{list:?}"
    );
    let verify = outlast(&["snapshot", "verify", text(&path)]);
    assert_eq!(verify.code(), 0, "{verify:?}");
    assert!(verify.stdout.contains("generation-000002: whole, 4 keys"), "{verify:?}");
    let show = outlast(&["snapshot", "show", text(&path), "--prefix", "result/", "--json", "-"]);
    let entries: Value = serde_json::from_str(&show.stdout).expect("standard output is JSON alone");
    assert_eq!(entries.as_array().map(Vec::len), Some(2), "{show:?}");
    assert_eq!((&entries[1]["key"], &entries[1]["bytes"]), (&"result/1".into(), &1000.into()));
    let short = outlast(&["snapshot", "show", text(&path), "--limit", "1"]);
    assert!(short.stdout.contains("and 3 more"), "{short:?}");
}

#[test]
fn verify_names_a_damaged_snapshot_and_passes_the_previous() {
    let (_folder, path) = folder();
    let part = path.join("generation-000002").join(part_name(1));
    let mut bytes = std::fs::read(&part).expect("read");
    bytes[200] ^= 1;
    std::fs::write(&part, bytes).expect("written");
    let verify = outlast(&["snapshot", "verify", text(&path), "--json", "-"]);
    let report: Value =
        serde_json::from_str(&verify.stdout).expect("standard output is JSON alone");
    assert_eq!((verify.code(), &report["ok"]), (1, &false.into()), "{verify:?}");
    assert!(
        report["damaged"][0].as_str().is_some_and(|line| line.contains("member-0001.part")),
        "{report}"
    );
    let before = outlast(&["snapshot", "verify", text(&path.join("generation-000001"))]);
    assert_eq!(before.code(), 0, "{before:?}");
}

#[test]
fn a_folder_without_snapshots_is_refused() {
    let empty = tempfile::tempdir().expect("a folder");
    for (arguments, said) in [
        (["snapshot", "verify", text(empty.path())], "there is no snapshot"),
        (["snapshot", "show", text(empty.path())], "there is no snapshot"),
        (["snapshot", "list", "/no/such/folder"], "/no/such/folder"),
    ] {
        let run = outlast(&arguments);
        assert_eq!(run.code(), 1, "{run:?}");
        assert!(run.stderr.contains(said), "{run:?}");
    }
    assert_eq!(outlast(&["snapshot"]).code(), 2);
}
