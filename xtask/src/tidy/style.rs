//! Rules for the lines of single files: columns, step codes, openings of comments, module heads.

use super::Finding;
use super::tree::{Class, File, Tree};

/// The number of columns of a line, comments and documents included. rustfmt does not wrap comments
/// and literals.
const COLUMNS: usize = 100;

/// Words that look like a step code and are none.
const WORDS_LIKE_CODES: [&str; 0] = [];

/// Finds lines above 100 columns.
///
/// Exempt are rows of Markdown tables, a link or address that does not fit on a line of its own,
/// and a literal that cannot be continued on another line.
pub(super) fn columns(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (index, (line, classes)) in file.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS && !may_be_long(line, classes) {
                let advice = match (file.ending(), classes[byte_of_column(line, COLUMNS)]) {
                    ("rs", Class::Literal) => "continue the literal after a backslash",
                    (_, Class::Literal) => "shorten or divide the literal",
                    _ => "wrap it at 100 columns",
                };
                let message = format!("the line has {columns} columns; {advice}");
                findings.push(Finding::new(file, index + 1, message));
            }
        }
    }
    findings
}

fn may_be_long(line: &str, classes: &[Class]) -> bool {
    let text = line.trim_start().trim_start_matches(['/', '!', '#', '*', '>']).trim_start();
    let text = text.trim_start_matches("- ");
    if text.starts_with('|') {
        return true;
    }
    let at = byte_of_column(line, COLUMNS);
    let start = line[..at].rfind(char::is_whitespace).map_or(0, |space| space + 1);
    let end = line[at..].find(char::is_whitespace).map_or(line.len(), |space| at + space);
    let word = &line[start..end];
    let is_last = line[end..].trim().is_empty();
    match classes[at] {
        Class::RawLiteral => true,
        // Without a space there is no place for a backslash.
        Class::Literal => {
            let code = classes[..at].iter().rposition(|class| *class != Class::Literal);
            !line[code.map_or(0, |code| code + 1)..at].contains(char::is_whitespace)
        }
        Class::Code | Class::Comment => {
            let is_link = word.contains("://") || word.contains("](");
            let lead = line.len() - text.len();
            is_link && is_last && start <= lead
        }
    }
}

/// The byte at which a column begins, of a line that has this column.
fn byte_of_column(line: &str, column: usize) -> usize {
    line.char_indices().nth(column).map_or(line.len(), |(at, _)| at)
}

/// Finds step codes: a letter and a digit, where a step of a protocol has a name.
pub(super) fn step_codes(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (line, text) in file.prose() {
            for code in codes_in(&text) {
                let message = format!("`{code}` is a step code; write the name of the step");
                findings.push(Finding::new(file, line, message));
            }
        }
    }
    findings
}

fn codes_in(text: &str) -> Vec<String> {
    let letters: Vec<char> = text.chars().collect();
    let is_word = |at: usize| {
        letters.get(at).is_some_and(|letter| letter.is_alphanumeric() || *letter == '_')
    };
    let mut codes = Vec::new();
    for (at, pair) in letters.windows(2).enumerate() {
        let is_code = pair[0].is_ascii_uppercase() && ('1'..='9').contains(&pair[1]);
        let stands_alone = !is_word(at + 2) && (at == 0 || !is_word(at - 1));
        let code: String = pair.iter().collect();
        if is_code && stands_alone && !WORDS_LIKE_CODES.contains(&code.as_str()) {
            codes.push(code);
        }
    }
    codes
}

/// Finds comments that begin with "The same".
pub(super) fn openings(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.ending() != "md") {
        for comment in file.comments() {
            let text = comment.lines.iter().map(|line| line.trim()).find(|line| !line.is_empty());
            if text.is_some_and(|text| text.starts_with("The same")) {
                let message = "the comment leans on another comment; say what this item does";
                findings.push(Finding::new(file, comment.line, message.to_string()));
            }
        }
    }
    findings
}

/// Finds Rust files without a module head.
pub(super) fn module_heads(tree: &Tree) -> Vec<Finding> {
    let has_head = |file: &File| {
        let mut lines = file.text.lines().map(str::trim);
        lines.find(|line| !line.is_empty() && !line.starts_with("#!")).is_some_and(is_head)
    };
    let files = tree.files.iter().filter(|file| file.ending() == "rs" && !has_head(file));
    let message = "the file has no module head; begin it with `//!` and the purpose of the module";
    files.map(|file| Finding::new(file, 1, message.to_string())).collect()
}

fn is_head(line: &str) -> bool {
    line.strip_prefix("//!").is_some_and(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(rule: fn(&Tree) -> Vec<Finding>, path: &str, text: &str) -> usize {
        rule(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn lines_above_100_columns_are_found() {
        let words = "word ".repeat(21);
        assert_eq!(count(columns, "a.rs", &format!("// {words}\n")), 1);
        assert_eq!(count(columns, "a.md", &format!("{words}\n")), 1);
        assert_eq!(count(columns, "a.toml", &format!("# {words}\n")), 1);
        assert_eq!(count(columns, "a.rs", &format!("let a = \"{words}\";\n")), 1);
        assert_eq!(count(columns, "a.md", &format!("{}\n", "é".repeat(100))), 0);
    }

    #[test]
    fn tables_links_and_unbreakable_literals_may_be_long() {
        let words = "word ".repeat(21);
        let long = "x".repeat(101);
        assert_eq!(count(columns, "a.md", &format!("| {words} |\n")), 0);
        assert_eq!(count(columns, "a.rs", &format!("/// | {words} |\n")), 0);
        assert_eq!(count(columns, "a.md", &format!("https://{long}\n")), 0);
        assert_eq!(count(columns, "a.md", &format!("- [a]({long})\n")), 0);
        assert_eq!(count(columns, "a.rs", &format!("//! <https://{long}>\n")), 0);
        assert_eq!(count(columns, "a.rs", &format!("let a = \"{long}\";\n")), 0);
        assert_eq!(count(columns, "a.rs", &format!("let a = r\"{words}\";\n")), 0);
        // A link that fits on a line of its own belongs there.
        assert_eq!(count(columns, "a.md", &format!("{} https://a.b/c\n", "word ".repeat(18))), 1);
    }

    #[test]
    fn step_codes_are_found_in_prose_only() {
        assert_eq!(count(step_codes, "a.rs", "// After W5 and (T2).\nlet W5 = 1;\n"), 2);
        assert_eq!(count(step_codes, "a.md", "| W1 | enter |\n"), 1);
        assert_eq!(count(step_codes, "a.md", "`W1` and\n```text\nW1\n```\n"), 0);
        assert_eq!(count(step_codes, "a.rs", "// RW1, W10, W1x, w1 and W0.\n"), 0);
    }

    #[test]
    fn comments_that_lean_on_another_comment_are_found() {
        assert_eq!(count(openings, "a.rs", "/// The same with a key.\nfn f() {}\n"), 1);
        assert_eq!(count(openings, "a.rs", "let a = 1; // The same.\n"), 1);
        assert_eq!(count(openings, "a.c", "/* The same. */\n"), 1);
        assert_eq!(count(openings, "a.py", "def f():\n    \"\"\"The same.\"\"\"\n"), 1);
        assert_eq!(count(openings, "a.rs", "/// Reads a key. The same key\n/// The same.\n"), 0);
    }

    #[test]
    fn files_without_a_module_head_are_found() {
        assert_eq!(count(module_heads, "a.rs", "use b;\n//! Late.\n"), 1);
        assert_eq!(count(module_heads, "a.rs", "//!\nuse b;\n"), 1);
        assert_eq!(count(module_heads, "a.rs", "#![cfg(a)]\n\n//! Head.\n"), 0);
        assert_eq!(count(module_heads, "a.c", "int a;\n"), 0);
    }
}
