//! Rules for documents: the map of the code, links, and the form of the changelog.

use super::Finding;
use super::tree::{File, Tree};
use std::collections::BTreeSet;

const MAP: &str = "ARCHITECTURE.md";
const SOURCE: &str = "crates/outlast/src/";
const CHANGELOG: &str = "CHANGELOG.md";

/// The groups of entries of a version in the changelog.
const GROUPS: [&str; 13] = [
    "Store",
    "Engines",
    "Communicators and windows",
    "Snapshots",
    "Launching",
    "Command",
    "C and Python",
    "Tools for development",
    "Added",
    "Changed",
    "Removed",
    "Fixed",
    "Security",
];

/// The number of lines that an entry of the changelog may take.
const ENTRY_LINES: usize = 4;

/// Finds folders of the library and crates that ARCHITECTURE.md does not name.
///
/// A folder is named by its path from `src`, or by its last part and a slash in backticks. A crate
/// is named by its path.
pub(super) fn map(tree: &Tree) -> Vec<Finding> {
    let Some(map) = tree.file(MAP) else {
        let message = "the file is missing; it names each crate and each folder of the library";
        return vec![Finding { path: MAP.to_string(), line: 1, message: message.to_string() }];
    };
    let mut findings = Vec::new();
    for folder in folders(tree) {
        let last = folder.rsplit('/').next().unwrap_or_default();
        if !has_path(&map.text, &folder) && !map.text.contains(&format!("`{last}/`")) {
            let message = format!("the map does not name the folder `{folder}/` of the library");
            findings.push(Finding::new(map, 1, message));
        }
    }
    let manifests = tree.files.iter().filter_map(|file| file.path.strip_suffix("/Cargo.toml"));
    for name in manifests.filter(|path| path.starts_with("crates/")) {
        if !has_path(&map.text, name) {
            let message = format!("the map does not name the crate `{name}`");
            findings.push(Finding::new(map, 1, message));
        }
    }
    findings
}

/// The folders below the library's `src`.
fn folders(tree: &Tree) -> BTreeSet<String> {
    let paths = tree.files.iter().filter_map(|file| file.path.strip_prefix(SOURCE));
    let parents = paths.flat_map(|path| {
        path.match_indices('/').map(|(at, _)| path[..at].to_string()).collect::<Vec<_>>()
    });
    parents.collect()
}

/// Whether a text has this path, which no further letter of a name precedes or follows.
fn has_path(text: &str, path: &str) -> bool {
    text.match_indices(path).any(|(at, _)| {
        let continues = |letter: char| letter.is_alphanumeric() || letter == '-' || letter == '_';
        let before = text[..at].chars().next_back();
        !text[at + path.len()..].starts_with(continues) && !before.is_some_and(continues)
    })
}

/// Finds links of Markdown files that lead nowhere, and paths of the workspace in prose and
/// comments that do not exist.
pub(super) fn links(tree: &Tree, exists: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        if file.ending() == "md" {
            for (line, target) in link_targets(file) {
                if let Some(problem) = problem_of(tree, file, &target, exists) {
                    findings.push(Finding::new(file, line, problem));
                }
            }
        }
        for (line, path) in mentioned_paths(file) {
            if !exists(&path) {
                let message =
                    format!("`{path}` does not exist; name the file by its path of today");
                findings.push(Finding::new(file, line, message));
            }
        }
    }
    findings
}

/// The targets of the links of a Markdown file, with their lines.
fn link_targets(file: &File) -> Vec<(usize, String)> {
    let mut targets = Vec::new();
    for (line, text) in file.prose() {
        for (at, _) in text.match_indices("](") {
            if let Some((target, _)) = text[at + 2..].split_once(')') {
                let target = target.split_whitespace().next().unwrap_or_default();
                targets.push((line, target.to_string()));
            }
        }
        // A definition: `[name]: target`.
        let definition =
            text.trim_start().strip_prefix('[').and_then(|text| text.split_once("]: "));
        if let Some((name, target)) = definition
            && !name.contains(']')
        {
            targets.push((line, target.trim().to_string()));
        }
    }
    targets
}

/// What is wrong with a link of a file.
fn problem_of(
    tree: &Tree,
    file: &File,
    target: &str,
    exists: &dyn Fn(&str) -> bool,
) -> Option<String> {
    let is_elsewhere = target.contains("://") || target.starts_with("mailto:");
    // Generics of Rust in brackets are no links.
    let is_link = target.contains(['/', '.', '#']);
    if is_elsewhere || !is_link {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() { file.path.clone() } else { join(&file.path, path) };
    if !exists(&path) {
        return Some(format!("the link `{target}` leads to `{path}`, which does not exist"));
    }
    let document = tree.file(&path).filter(|file| file.ending() == "md")?;
    if !anchor.is_empty() && !anchors(document).contains(anchor) {
        return Some(format!("the link `{target}` names a heading that `{path}` does not have"));
    }
    None
}

/// The path from the root to which a link leads.
fn join(from: &str, link: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    if link.starts_with('/') {
        parts.clear();
    }
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of a document's headings, as GitHub makes them: lower case, without punctuation,
/// with hyphens for spaces, and numbered from the second heading of a name on.
fn anchors(document: &File) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut is_fenced = false;
    for line in document.text.lines() {
        is_fenced ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        if is_fenced || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        // Of a link only the text counts.
        let mut title = title.trim().to_string();
        while let Some((start, rest)) = title.split_once("](") {
            let rest = rest.split_once(')').map_or("", |(_, rest)| rest);
            title = format!("{start}{rest}");
        }
        let letters = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor = letters.collect::<String>().to_lowercase().replace(' ', "-");
        let again = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(again).find(|it| !anchors.contains(it));
        anchors.extend(free);
    }
    anchors
}

/// The paths of files of the workspace that a file names in its prose or in its comments.
fn mentioned_paths(file: &File) -> Vec<(usize, String)> {
    const FOLDERS: [&str; 7] =
        ["docs/", "crates/", "examples/", "xtask/", "python/", "bench/", "fuzz/"];
    const ENDINGS: [&str; 6] = [".md", ".rs", ".c", ".h", ".py", ".toml"];
    let mut paths = Vec::new();
    for comment in file.comments() {
        let mut is_fenced = false;
        for (index, line) in comment.lines.iter().enumerate() {
            is_fenced ^= line.trim_start().starts_with("```");
            if is_fenced {
                continue;
            }
            // The targets of links are checked as links.
            let text: Vec<&str> =
                line.split("](").enumerate().map(|(part, text)| after_target(part, text)).collect();
            let line = text.join(" ");
            let is_of_path =
                |letter: char| letter.is_alphanumeric() || "/._-*{}<>".contains(letter);
            for word in line.split(|letter| !is_of_path(letter)) {
                let word = word.trim_end_matches('.');
                let is_path = FOLDERS.iter().any(|folder| word.starts_with(folder))
                    && ENDINGS.iter().any(|ending| word.ends_with(ending))
                    && !word.contains(['*', '{', '<']);
                if is_path {
                    paths.push((comment.line + index, word.to_string()));
                }
            }
        }
    }
    paths
}

/// A part of a line between the starts of link targets, without the target that it begins with.
fn after_target(part: usize, text: &str) -> &str {
    if part == 0 { text } else { text.split_once(')').map_or("", |(_, rest)| rest) }
}

/// Finds deviations from the form of the changelog: a title, `## Unreleased`, the versions from the
/// newest to the oldest, each with groups of known names, and entries that are short sentences.
pub(super) fn changelog(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.file(CHANGELOG) else { return Vec::new() };
    let mut findings = Vec::new();
    let mut find = |line: usize, message: &str| {
        findings.push(Finding::new(file, line, message.to_string()));
    };
    let lines: Vec<&str> = file.text.lines().collect();
    if lines.first() != Some(&"# Changelog") {
        find(1, "the first line is not `# Changelog`");
    }
    let titles = || {
        let lines = lines.iter().enumerate();
        lines.filter_map(|(index, line)| Some((index + 1, line.strip_prefix("## ")?)))
    };
    if titles().next().map(|(_, title)| title) != Some("Unreleased") {
        find(1, "the first section is not `## Unreleased`");
    }
    let mut newer: Option<[u64; 3]> = None;
    for (line, title) in titles().skip(1) {
        match version_of(title) {
            None => {
                find(line, "a version is written as `## 1.2.3 (2026-01-31)`, or `(unreleased)`");
            }
            Some(version) if newer.is_some_and(|newer| newer <= version) => {
                find(line, "the versions are not ordered from the newest to the oldest");
            }
            Some(version) => newer = Some(version),
        }
    }
    let mut group: Option<usize> = None;
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        if let Some(title) = line.strip_prefix("### ") {
            if !GROUPS.contains(&title) {
                let groups = GROUPS.join(", ");
                find(at + 1, &format!("`{title}` is not the name of a group; there are: {groups}"));
            }
            group = Some(at + 1);
        }
        let is_end = line.starts_with("## ") || line.starts_with("### ");
        let next = lines[at + 1..].iter().find(|line| !line.trim().is_empty());
        if is_end && line.starts_with("### ") && next.is_none_or(|next| !next.starts_with("- ")) {
            find(at + 1, "the group has no entry; remove it");
        }
        if line.starts_with("- ") {
            if group.is_none() {
                find(at + 1, "the entry stands in no group");
            }
            let rest = lines[at + 1..].iter().take_while(|line| line.starts_with("  ")).count();
            let last = lines[at + rest];
            if !last.ends_with('.') {
                find(at + 1, "the entry does not end with a full stop");
            }
            if rest + 1 > ENTRY_LINES {
                find(at + 1, "the entry is longer than four lines; say what users notice");
            }
        }
        if line.starts_with("## ") {
            group = None;
        }
        at += 1;
    }
    findings
}

/// The version in a title: `1.2.3 (2026-01-31)`.
fn version_of(title: &str) -> Option<[u64; 3]> {
    let (version, date) = title.strip_suffix(')')?.split_once(" (")?;
    let is_date = date.len() == 10
        && date.split('-').map(str::len).eq([4, 2, 2])
        && date.chars().all(|letter| letter.is_ascii_digit() || letter == '-');
    if !is_date && date != "unreleased" {
        return None;
    }
    let numbers: Option<Vec<u64>> = version.split('.').map(|part| part.parse().ok()).collect();
    numbers?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_and_crates_that_the_map_does_not_name_are_found() {
        let tree = |map| {
            Tree::of(&[
                ("ARCHITECTURE.md", map),
                ("crates/outlast/Cargo.toml", ""),
                ("crates/outlast-c/Cargo.toml", ""),
                ("crates/outlast/src/store/tx/mod.rs", ""),
            ])
        };
        let whole = "`crates/outlast` `crates/outlast-c` `store/` `store/tx/`";
        assert_eq!(map(&tree(whole)).len(), 0);
        assert_eq!(map(&tree("`crates/outlast` `crates/outlast-c`: `store/`, `tx/`")).len(), 0);
        assert_eq!(map(&tree("`crates/outlast` `crates/outlast-c` `restore/`")).len(), 2);
        assert_eq!(map(&tree("`crates/outlast-c` `store/tx`")).len(), 1);
        assert_eq!(map(&Tree::of(&[])).len(), 1);
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let check = |text| {
            let tree = Tree::of(&[
                ("docs/a.md", text),
                ("docs/b.md", "# A `b` head: c\n\n## Twice\n\n## Twice\n"),
                ("src/c.rs", ""),
            ]);
            links(&tree, &|path| tree.file(path).is_some() || path == "docs").len()
        };
        let good = "[b](b.md) [h](b.md#a-b-head-c) [t](b.md#twice-1) [c](../src/c.rs) \
                    [e](https://example.org/x) [m](mailto:a@b.c) [d](../docs)\n\n# Own\n\
                    [o](#own)\n";
        assert_eq!(check(good), 0);
        assert_eq!(check("[x](x.md)"), 1);
        assert_eq!(check("[x](b.md#no-head)"), 1);
        assert_eq!(check("[x](#own)"), 1);
        assert_eq!(check("[x]: b/x.md"), 1);
        assert_eq!(check("`[x](x.md)` and\n```text\n[x](x.md)\n```\n"), 0);
    }

    #[test]
    fn paths_of_the_past_are_found() {
        let tree = Tree::of(&[
            ("docs/b.md", ""),
            ("src/c.rs", "//! See docs/b.md, `docs/old.md`, docs/*.md.\nlet a = \"docs/x.md\";\n"),
        ]);
        let findings = links(&tree, &|path| tree.file(path).is_some());
        assert_eq!(findings.len(), 1);
        assert!(findings[0].message.contains("docs/old.md"));
    }

    #[test]
    fn deviations_from_the_form_of_the_changelog_are_found() {
        let check = |text: &str| changelog(&Tree::of(&[("CHANGELOG.md", text)])).len();
        let head = "# Changelog\n\n## Unreleased\n\n";
        let good = "### Changed\n- A name.\n\n## 0.2.0 (2026-01-31)\n\n### Store\n- A call,\n  \
                    in two lines.\n\n## 0.1.0 (unreleased)\n";
        assert_eq!(check(&format!("{head}{good}")), 0);
        for bad in [
            "- No group.\n",
            "### Novelties\n- An unknown group.\n",
            "### Added\n\n### Changed\n- An empty group.\n",
            "### Added\n- No full stop\n",
            "### Added\n- Too\n  many\n  lines\n  in\n  it.\n",
            "## Version 0.1.0\n",
            "## 0.1.0 (2026-01-31)\n\n## 0.2.0 (2026-01-31)\n",
        ] {
            assert_eq!(check(&format!("{head}{bad}")), 1, "{bad}");
        }
        assert_eq!(check("## Unreleased\n"), 1);
        assert_eq!(check("# Changelog\n\n## 0.1.0 (2026-01-31)\n"), 1);
    }
}
