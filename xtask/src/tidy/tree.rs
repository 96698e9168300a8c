//! The text files of the workspace, and what in each of them is code, comment, literal or prose.
//!
//! The scanners know as much of each language as the rules need: where comments and literals begin
//! and end. They do not parse.

use anyhow::Context;
use std::path::Path;

/// The text files of the workspace.
pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
}

/// A text file.
pub(crate) struct File {
    /// The path from the root of the workspace, with `/` between its parts.
    pub(crate) path: String,
    pub(crate) text: String,
    /// The class of each byte of `text`.
    classes: Vec<Class>,
}

/// What a byte of a file belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Code of a programming language, or the text of a Markdown file.
    Code,
    Comment,
    /// A literal that can be continued on another line.
    Literal,
    /// A literal in which a line break would be part of the value.
    RawLiteral,
}

/// A comment: consecutive lines that hold nothing else and have equal markers, or the end of a
/// line of code.
pub(crate) struct Comment {
    /// The number of the first line, from 1.
    pub(crate) line: usize,
    /// The text of each line, without the marker.
    pub(crate) lines: Vec<String>,
}

/// The folders that hold nothing written by hand.
const SKIPPED_FOLDERS: [&str; 5] = ["target", ".git", "__pycache__", "corpus", "artifacts"];

/// The endings of the files that the rules look at.
const ENDINGS: [&str; 6] = ["rs", "c", "h", "py", "md", "toml"];

impl Tree {
    /// Reads the files below this folder.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Tree> {
        let mut files = Vec::new();
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            let entries = std::fs::read_dir(&folder)
                .with_context(|| format!("reading the folder {}", folder.display()))?;
            for entry in entries {
                let path = entry?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if path.is_dir() && !path.is_symlink() {
                    if !SKIPPED_FOLDERS.contains(&name.as_str()) {
                        folders.push(path);
                    }
                } else if ENDINGS.contains(&ending_of(&name)) {
                    let text = std::fs::read_to_string(&path)
                        .with_context(|| format!("reading {}", path.display()))?;
                    let path = path.strip_prefix(root).unwrap_or(&path);
                    files.push(File::new(&path.to_string_lossy(), text));
                }
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Tree { files })
    }

    /// A tree of these paths and texts, for tests.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| File::new(path, text.to_string())).collect() }
    }

    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }
}

impl File {
    pub(crate) fn new(path: &str, text: String) -> File {
        let classes = match ending_of(path) {
            "rs" => classify_c_like(&text, Language::Rust),
            "c" | "h" => classify_c_like(&text, Language::C),
            "py" | "toml" => classify_hash(&text),
            _ => vec![Class::Code; text.len()],
        };
        File { path: path.to_string(), text, classes }
    }

    pub(crate) fn ending(&self) -> &str {
        ending_of(&self.path)
    }

    /// The lines with the class of each byte.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (&str, &[Class])> {
        let mut at = 0;
        self.text.split_inclusive('\n').map(move |line| {
            let classes = &self.classes[at..at + line.len()];
            at += line.len();
            let line = line.strip_suffix('\n').unwrap_or(line);
            (line, &classes[..line.len()])
        })
    }

    /// The text with comments and literals blanked. The numbers of the lines stay.
    pub(crate) fn code(&self) -> String {
        let mut bytes = self.text.clone().into_bytes();
        for (byte, class) in bytes.iter_mut().zip(&self.classes) {
            if *class != Class::Code && *byte != b'\n' {
                *byte = b' ';
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The comments; of a Markdown file, its paragraphs.
    pub(crate) fn comments(&self) -> Vec<Comment> {
        if self.ending() == "md" {
            return paragraphs(&self.text);
        }
        let mut comments: Vec<Comment> = Vec::new();
        let mut before: Option<&str> = None;
        for (index, (line, classes)) in self.lines().enumerate() {
            let Some(start) = classes.iter().position(|class| *class == Class::Comment) else {
                before = None;
                continue;
            };
            let comment = &line[start..];
            let text = comment.trim_start_matches(['/', '!', '*', '#', '"', '\'']);
            let marker = &comment[..comment.len() - text.len()];
            let is_alone = line[..start].trim().is_empty();
            if is_alone && before == Some(marker) {
                comments.last_mut().expect("has a line before").lines.push(text.to_string());
            } else {
                comments.push(Comment { line: index + 1, lines: vec![text.to_string()] });
            }
            // In a block comment each line begins with a marker of its own, or with none.
            before = is_alone.then_some(marker);
        }
        comments
    }

    /// The prose: comments and Markdown text, without code blocks and code spans, line by line with
    /// the number of each line.
    pub(crate) fn prose(&self) -> Vec<(usize, String)> {
        let mut prose = Vec::new();
        for comment in self.comments() {
            let mut is_fenced = false;
            let mut is_span = false;
            for (index, line) in comment.lines.iter().enumerate() {
                if line.trim_start().starts_with("```") {
                    is_fenced = !is_fenced;
                    continue;
                }
                if line.trim().is_empty() {
                    is_span = false;
                }
                if is_fenced {
                    continue;
                }
                let mut text = String::new();
                for (part, letters) in line.split('`').enumerate() {
                    is_span ^= part > 0;
                    if is_span {
                        text.push('`');
                    } else {
                        text += letters;
                    }
                }
                prose.push((comment.line + index, text));
            }
        }
        prose
    }
}

fn ending_of(path: &str) -> &str {
    path.rsplit_once('.').map_or("", |(_, ending)| ending)
}

/// The paragraphs of a Markdown file. A code block is a paragraph, whatever blank lines it has.
fn paragraphs(text: &str) -> Vec<Comment> {
    let mut paragraphs: Vec<Comment> = Vec::new();
    let (mut is_fenced, mut is_open) = (false, false);
    for (index, line) in text.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        if line.trim().is_empty() && !is_fenced {
            is_open = false;
            continue;
        }
        let begins = !is_open || (is_fence && !is_fenced);
        if begins {
            paragraphs.push(Comment { line: index + 1, lines: vec![line.to_string()] });
        } else if let Some(paragraph) = paragraphs.last_mut() {
            paragraph.lines.push(line.to_string());
        }
        let ends = is_fence && is_fenced;
        is_open = !ends;
        is_fenced ^= is_fence;
    }
    paragraphs
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Language {
    Rust,
    C,
}

/// Classifies Rust or C: `//` and `/* */` comments (nested in Rust), strings, raw strings, and
/// characters, which are told apart from lifetimes.
fn classify_c_like(text: &str, language: Language) -> Vec<Class> {
    let bytes = text.as_bytes();
    let mut classes = vec![Class::Code; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let (len, class) = if rest.starts_with(b"//") {
            (rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()), Class::Comment)
        } else if rest.starts_with(b"/*") {
            (block_comment_len(rest, language == Language::Rust), Class::Comment)
        } else if let Some(len) = raw_string_len(rest, at.checked_sub(1).map(|at| bytes[at])) {
            (len, Class::RawLiteral)
        } else if rest[0] == b'"' {
            (string_len(rest, b'"'), Class::Literal)
        } else if rest[0] == b'\'' && (language == Language::C || is_character(&text[at..])) {
            (string_len(rest, b'\''), Class::Literal)
        } else {
            (1, Class::Code)
        };
        classes[at..at + len].fill(class);
        at += len;
    }
    classes
}

fn block_comment_len(rest: &[u8], is_nested: bool) -> usize {
    let (mut at, mut depth) = (2, 1);
    while at < rest.len() && depth > 0 {
        if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
        } else if is_nested && rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else {
            at += 1;
        }
    }
    at
}

/// The length of a string from its opening to its closing quote.
fn string_len(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// The length of the raw string that begins here, if any: `r"..."` or `br#"..."#`.
fn raw_string_len(rest: &[u8], before: Option<u8>) -> Option<usize> {
    if before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return None;
    }
    let start = rest.iter().take(2).take_while(|byte| matches!(byte, b'b' | b'c')).count();
    let hashes = rest.get(start + 1..)?.iter().take_while(|byte| **byte == b'#').count();
    let quote = start + 1 + hashes;
    if rest.get(start) != Some(&b'r') || rest.get(quote) != Some(&b'"') {
        return None;
    }
    let end = [&b"\""[..], &b"#".repeat(hashes)].concat();
    let inner = &rest[quote + 1..];
    let len = inner.windows(end.len()).position(|window| window == end);
    Some(quote + 1 + len.map_or(inner.len(), |len| len + end.len()))
}

/// Whether a quote opens a character and not a lifetime.
fn is_character(text: &str) -> bool {
    let mut letters = text.chars().skip(1);
    let (first, second) = (letters.next(), letters.next());
    first == Some('\\') || second == Some('\'')
}

/// Classifies a language with `#` comments and strings in quotes, tripled or not: Python and TOML.
fn classify_hash(text: &str) -> Vec<Class> {
    let bytes = text.as_bytes();
    let mut classes = vec![Class::Code; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let (len, class) = if rest[0] == b'#' {
            (rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()), Class::Comment)
        } else if rest.starts_with(b"\"\"\"") || rest.starts_with(b"'''") {
            let end = rest[3..].windows(3).position(|window| window == &rest[..3]);
            // Python's documentation strings are prose.
            (end.map_or(rest.len(), |len| len + 6), Class::Comment)
        } else if rest[0] == b'"' || rest[0] == b'\'' {
            (string_len(rest, rest[0]), Class::Literal)
        } else {
            (1, Class::Code)
        };
        classes[at..at + len].fill(class);
        at += len;
    }
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_told_from_comments_and_literals() {
        let text = "let a = \"// no\"; // yes\nlet b: &'a u8 = b'\\''; /* x /* y */ z */ let c;\n\
                    let d = r#\"raw \" // no\"#; let e = 'x';\n";
        let code = File::new("a.rs", text.to_string()).code();
        assert!(!code.contains("no") && !code.contains("yes") && !code.contains('z'), "{code}");
        assert!(code.contains("&'a u8") && code.contains("let c;") && code.contains("let e"));
        assert_eq!(code.lines().count(), 3);
    }

    #[test]
    fn comments_are_runs_of_lines_with_a_marker() {
        let text = "//! Head.\n\n/// A\n/// b.\nfn f() {} // Tail.\n// Next\n";
        let file = File::new("a.rs", text.to_string());
        let comments: Vec<_> =
            file.comments().into_iter().map(|comment| (comment.line, comment.lines)).collect();
        let lines =
            |lines: &[&str]| lines.iter().map(std::string::ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            comments,
            [
                (1, lines(&[" Head."])),
                (3, lines(&[" A", " b."])),
                (5, lines(&[" Tail."])),
                (6, lines(&[" Next"]))
            ]
        );
    }

    #[test]
    fn prose_has_no_code_blocks_and_no_code_spans() {
        let text = "# Head\n\nWords `a\nb` more.\n\n```text\nnot prose\n\nnot prose\n```\nEnd.\n";
        let file = File::new("a.md", text.to_string());
        let prose: Vec<String> = file.prose().into_iter().map(|(_, text)| text).collect();
        assert_eq!(prose, ["# Head", "Words `", "` more.", "End."]);
    }
}
