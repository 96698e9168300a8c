//! `cargo xtask tidy`: the house rules that a program can check.
//!
//! Each rule is a function from the tree of files to findings. A finding names a line and says what
//! to do. All findings of all rules are printed, with counts by rule.

mod documents;
mod style;
pub(crate) mod tree;

use crate::gate::workspace;
use crate::{layers, mutants};
use anyhow::bail;
use tree::{File, Tree};

/// A line that breaks a rule.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) path: String,
    pub(crate) line: usize,
    /// What is wrong, and what to do.
    pub(crate) message: String,
}

impl Finding {
    pub(crate) fn new(file: &File, line: usize, message: String) -> Finding {
        Finding { path: file.path.clone(), line, message }
    }
}

/// Checks all rules on the workspace; an error if a line breaks any of them.
pub(crate) fn tidy() -> anyhow::Result<()> {
    tidy_below(&[""])
}

/// Checks all rules, and reports what breaks them in files whose path begins with any of these.
pub(crate) fn tidy_below(paths: &[&str]) -> anyhow::Result<()> {
    let root = workspace();
    let tree = Tree::read(root)?;
    let mut rules = [
        ("columns", style::columns(&tree)),
        ("step codes", style::step_codes(&tree)),
        ("openings of comments", style::openings(&tree)),
        ("module heads", style::module_heads(&tree)),
        ("map of the code", documents::map(&tree)),
        ("links", documents::links(&tree, &|path| root.join(path).exists())),
        ("form of the changelog", documents::changelog(&tree)),
        ("lists of mutants", same_mutants(&tree)),
        ("lists of mutants of tasks", same_task_mutants(&tree)),
        ("layers", layers::imports(&tree)),
        ("places of impl blocks", layers::impls(&tree)),
    ];
    let mut sum = 0;
    for (rule, findings) in &mut rules {
        findings.retain(|finding| paths.iter().any(|path| finding.path.starts_with(path)));
        for Finding { path, line, message } in findings.iter() {
            println!("{path}:{line}: {rule}: {message}");
        }
        sum += findings.len();
    }
    println!();
    for (rule, findings) in &rules {
        println!("{:>6}  {rule}", findings.len());
    }
    println!("tidy: {} files, {} rules, {sum} findings", tree.files.len(), rules.len());
    if sum > 0 {
        bail!("{sum} lines break a rule of CONTRIBUTING.md; each is listed above with what to do");
    }
    Ok(())
}

/// Finds a difference between the store's list of mutants and the list that `cargo xtask mutants`
/// hunts.
fn same_mutants(tree: &Tree) -> Vec<Finding> {
    let is_list = |file: &&File| {
        file.path.starts_with("crates/outlast/src/store/") && file.path.ends_with("/mutant.rs")
    };
    let Some(file) = tree.files.iter().find(is_list) else {
        let path = "crates/outlast/src/store/mutant.rs".to_string();
        let message = "the store's list of mutants is missing".to_string();
        return vec![Finding { path, line: 1, message }];
    };
    let hunted = mutants::MUTANTS.map(|(name, _)| name.to_string());
    compare(file, &mutants::names_in(&file.text, "NAMES"), &hunted, "MUTANTS")
}

/// Finds a difference between the task runtime's list of mutants and the list that is hunted.
fn same_task_mutants(tree: &Tree) -> Vec<Finding> {
    let path = "crates/outlast-tasks/src/steps.rs";
    let Some(file) = tree.files.iter().find(|file| file.path == path) else {
        let message = "the task runtime's list of mutants is missing".to_string();
        return vec![Finding { path: path.to_string(), line: 1, message }];
    };
    let hunted = mutants::TASK_MUTANTS.map(|(name, ..)| name.to_string());
    compare(file, &mutants::names_in(&file.text, "const MUTANTS"), &hunted, "TASK_MUTANTS")
}

/// Compares a list of mutants in the code with the list of this name in `xtask/src/mutants.rs`.
fn compare(file: &File, own: &[String], hunted: &[String], list: &str) -> Vec<Finding> {
    let only_in = |these: &[String], others: &[String]| -> Vec<String> {
        these.iter().filter(|name| !others.contains(name)).cloned().collect()
    };
    let find = |name: String, advice: &str| {
        let advice = format!("{advice} {list} in xtask/src/mutants.rs");
        Finding::new(file, 1, format!("the mutant `{name}` is in one list only; {advice}"))
    };
    let unhunted = only_in(own, hunted).into_iter().map(|name| find(name, "add it to"));
    let unknown = only_in(hunted, own).into_iter().map(|name| find(name, "remove it from"));
    unhunted.chain(unknown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_in_a_single_list_is_found() {
        let names = mutants::MUTANTS.map(|(name, _)| format!("    \"{name}\",\n"));
        let list = |names: &[String]| format!("const NAMES: [&str; 9] = [\n{}];\n", names.concat());
        let check = |text: &str| {
            same_mutants(&Tree::of(&[("crates/outlast/src/store/operation/mutant.rs", text)])).len()
        };
        assert_eq!(check(&list(&names)), 0);
        assert_eq!(check(&list(&names[1..])), 1);
        assert_eq!(check(&list(&[&names[..], &["    \"new\",\n".to_string()]].concat())), 1);
        assert_eq!(same_mutants(&Tree::of(&[])).len(), 1);
    }
}
