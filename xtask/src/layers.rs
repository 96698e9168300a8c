//! The layers of the library: a module uses its own layer and lower layers, without a cycle, and
//! the methods of a type stand in the folder of the type.
//!
//! The rules read the paths in the code (`use` declarations, `crate::`, `super::` and `self::`
//! paths elsewhere, and paths that begin with a child module) and follow imports and re-exports to
//! the module that defines the name. Comments, literals and code under `#[cfg(test)]` do not count.

use crate::tidy::Finding;
use crate::tidy::tree::{File, Tree};
use std::collections::{BTreeMap, BTreeSet};

/// The layers inside a folder of the library.
struct Scope {
    /// The folder, from `src`.
    folder: &'static str,
    /// The files and folders of it, from the bottom. Members of a layer may use each other, as long
    /// as they form no cycle. `mod` is the folder's own `mod.rs`, or `lib.rs`.
    layers: &'static [&'static [&'static str]],
}

const SCOPES: &[Scope] = &[
    Scope {
        folder: "",
        layers: &[
            &["sync", "codec", "failpoint"],
            &["engine"],
            &["job"],
            &["rma", "launch", "sim"],
            &["store"],
            &["snapshot", "image", "observe"],
            &["protect"],
            &["mod"],
        ],
    },
    Scope {
        folder: "store",
        layers: &[
            &["error", "options", "steps", "mutant", "value", "key_rules"],
            &["segment"],
            &["placement"],
            &["operation"],
            &["memory"],
            &["record"],
            &["tx"],
            &["recovery"],
            &["member"],
            &["api"],
            &["mod"],
        ],
    },
];

/// Methods outside the folder of their type: the type, the folder that has them, and why.
const METHODS_ELSEWHERE: &[(&str, &str, &str)] =
    &[("JoinOptions", "job", "joining makes a job, and the engine reads the options")];

const SOURCE: &str = "crates/outlast/src/";

/// Finds uses of a higher layer, cycles inside a layer, and modules that are in no layer.
pub(crate) fn imports(tree: &Tree) -> Vec<Finding> {
    let library = Library::read(tree);
    let edges = library.edges();
    SCOPES.iter().flat_map(|scope| check_scope(scope, &library, &edges)).collect()
}

/// Finds inherent `impl` blocks outside the folder that defines the type.
pub(crate) fn impls(tree: &Tree) -> Vec<Finding> {
    let library = Library::read(tree);
    let mut findings = Vec::new();
    for (path, module) in &library.modules {
        for (line, name) in &module.impls {
            let Some(home) = library.definition(path, name) else { continue };
            let Some(definer) = library.modules.get(&home) else { continue };
            let (here, there) = (folder_of(&module.file), folder_of(&definer.file));
            let type_name = name.last().map_or("", String::as_str);
            let is_allowed = METHODS_ELSEWHERE
                .iter()
                .any(|(name, folder, _)| *name == type_name && *folder == here);
            if here != there && !is_allowed {
                let message = format!(
                    "`impl {type_name}` stands in `{here}/`, and the type in `{there}/`; give the \
                     methods to a type of this folder"
                );
                findings.push(Finding { path: module.file.clone(), line: *line, message });
            }
        }
    }
    findings
}

/// The folder of a file, from `src`.
fn folder_of(file: &str) -> &str {
    let path = file.strip_prefix(SOURCE).unwrap_or(file);
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

fn check_scope(scope: &Scope, library: &Library, edges: &[Edge]) -> Vec<Finding> {
    let prefix: Vec<String> =
        scope.folder.split('/').filter(|part| !part.is_empty()).map(str::to_string).collect();
    // The file or folder of the scope to which a module belongs.
    let unit = |module: &[String]| -> Option<String> {
        let inside = module.strip_prefix(&prefix[..])?;
        Some(inside.first().map_or("mod".to_string(), String::clone))
    };
    let title = |unit: &str| match (unit, scope.folder) {
        ("mod", "") => "lib.rs".to_string(),
        ("mod", folder) => format!("{folder}/mod.rs"),
        (unit, _) => unit.to_string(),
    };
    let level = |unit: &str| scope.layers.iter().position(|layer| layer.contains(&unit));
    let mut findings = Vec::new();
    for (path, module) in &library.modules {
        let Some(name) = unit(path) else { continue };
        if path.len() <= prefix.len() + 1 && level(&name).is_none() {
            let message =
                format!("`{name}` is in no layer; add it to SCOPES in xtask/src/layers.rs");
            findings.push(Finding { path: module.file.clone(), line: 1, message });
        }
    }
    let mut inside_layer: BTreeMap<(String, String), &Edge> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for edge in edges {
        let (Some(from), Some(to)) = (unit(&edge.from), unit(&edge.to)) else { continue };
        let (Some(own), Some(other)) = (level(&from), level(&to)) else { continue };
        if from == to || !seen.insert((edge.file.clone(), edge.line, to.clone())) {
            continue;
        }
        if other > own {
            let (from, to, path) = (title(&from), title(&to), &edge.path);
            let message = format!(
                "`{from}` uses `{path}` of `{to}`, which is a higher layer; move the name down, or \
                 the use up"
            );
            findings.push(Finding { path: edge.file.clone(), line: edge.line, message });
        } else if other == own {
            inside_layer.entry((from, to)).or_insert(edge);
        }
    }
    findings.extend(cycles(&inside_layer));
    findings
}

/// Finds the edges that close a cycle.
fn cycles(edges: &BTreeMap<(String, String), &Edge>) -> Vec<Finding> {
    let reaches = |start: &str, goal: &str| {
        let mut reached = BTreeSet::from([start.to_string()]);
        let mut queue = vec![start.to_string()];
        while let Some(unit) = queue.pop() {
            for (from, to) in edges.keys() {
                if *from == unit && reached.insert(to.clone()) {
                    queue.push(to.clone());
                }
            }
        }
        reached.contains(goal)
    };
    let closing = edges.iter().filter(|((from, to), _)| reaches(to, from));
    let find = |((from, to), edge): (&(String, String), &&Edge)| Finding {
        path: edge.file.clone(),
        line: edge.line,
        message: format!("`{from}` uses `{to}`, which uses `{from}`: a cycle; take one use out"),
    };
    closing.map(find).collect()
}

/// The modules of the library by their paths.
struct Library {
    modules: BTreeMap<Vec<String>, Module>,
}

#[derive(Default)]
struct Module {
    /// The file that holds the module.
    file: String,
    /// The names that the module defines.
    items: BTreeSet<String>,
    imports: Vec<Import>,
    /// Other paths in the code, with their lines.
    paths: Vec<(usize, Vec<String>)>,
    /// The types of inherent `impl` blocks, with their lines.
    impls: Vec<(usize, Vec<String>)>,
    /// The child modules that exist in tests only.
    test_children: BTreeSet<String>,
}

/// A name that a `use` brings in.
struct Import {
    line: usize,
    path: Vec<String>,
    /// The name in the module; `*` for a glob.
    name: String,
}

/// A use of a module by another.
struct Edge {
    file: String,
    line: usize,
    from: Vec<String>,
    to: Vec<String>,
    /// The path as it is written.
    path: String,
}

impl Library {
    fn read(tree: &Tree) -> Library {
        let mut library = Library { modules: BTreeMap::new() };
        let files = tree.files.iter().filter(|file| file.ending() == "rs");
        for file in files.filter(|file| file.path.starts_with(SOURCE)) {
            Parser::new(file, &mut library).parse();
        }
        // A file that is a module of tests only, and the modules below it.
        let tests: Vec<Vec<String>> = library
            .modules
            .iter()
            .flat_map(|(path, module)| {
                let child = |name: &String| [&path[..], std::slice::from_ref(name)].concat();
                module.test_children.iter().map(child).collect::<Vec<_>>()
            })
            .collect();
        library.modules.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));
        library
    }

    fn edges(&self) -> Vec<Edge> {
        let mut edges = Vec::new();
        for (from, module) in &self.modules {
            let imports = module.imports.iter().map(|import| (import.line, &import.path));
            let paths = module.paths.iter().map(|(line, path)| (*line, path));
            for (line, path) in imports.chain(paths) {
                if let Some((to, _)) = self.resolve(from, path, 0)
                    && to != *from
                {
                    let (file, path) = (module.file.clone(), path.join("::"));
                    edges.push(Edge { file, line, from: from.clone(), to, path });
                }
            }
        }
        edges
    }

    /// The module that defines the type of an `impl` block.
    fn definition(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let (home, item) = self.resolve(module, path, 0)?;
        let defines = self.modules.get(&home)?.items.contains(&item?);
        defines.then_some(home)
    }

    /// The module to which a path leads from a module, and the name in it, if the path goes on to
    /// a name. `None` for paths into other crates.
    fn resolve(
        &self,
        from: &[String],
        path: &[String],
        depth: usize,
    ) -> Option<(Vec<String>, Option<String>)> {
        // Imports that lead to each other.
        if depth > 16 {
            return None;
        }
        let mut at = from.to_vec();
        let mut names = path.iter().peekable();
        match path.first()?.as_str() {
            "crate" => {
                at.clear();
                names.next();
            }
            "self" => {
                names.next();
            }
            "super" => {}
            first => {
                // A path without such a start leads to another crate unless the module knows the
                // name.
                let module = self.modules.get(from)?;
                let child = [from, &[first.to_string()]].concat();
                let is_known = self.modules.contains_key(&child)
                    || module.items.contains(first)
                    || module.imports.iter().any(|import| import.name == first)
                    || self.resolve_glob(from, first, depth).is_some();
                if !is_known {
                    return None;
                }
            }
        }
        while names.next_if(|name| *name == "super").is_some() {
            at.pop()?;
        }
        for name in names {
            if name == "*" || name == "self" {
                return Some((at, None));
            }
            let child = [&at[..], std::slice::from_ref(name)].concat();
            if self.modules.contains_key(&child) {
                at = child;
                continue;
            }
            let module = self.modules.get(&at)?;
            if module.items.contains(name) {
                return Some((at, Some(name.clone())));
            }
            // Not the import that is being resolved: `use other_crate::Name` would lead to itself.
            let import = module
                .imports
                .iter()
                .find(|import| import.name == *name && !(at == from && import.path == path));
            let found = match import {
                Some(import) => self.resolve(&at, &import.path, depth + 1),
                None => match self.resolve_glob(&at, name, depth) {
                    Some(found) => Some(found),
                    None => return Some((at, Some(name.clone()))),
                },
            };
            let (module, item) = found?;
            if item.is_some() {
                return Some((module, item));
            }
            at = module;
        }
        Some((at, None))
    }

    /// The place to which a name leads that a glob brings into a module.
    fn resolve_glob(
        &self,
        at: &[String],
        name: &str,
        depth: usize,
    ) -> Option<(Vec<String>, Option<String>)> {
        let globs = self.modules.get(at)?.imports.iter().filter(|import| import.name == "*");
        for glob in globs {
            let Some((target, _)) = self.resolve(at, &glob.path, depth + 1) else { continue };
            let Some(module) = self.modules.get(&target) else { continue };
            let child = [&target[..], &[name.to_string()]].concat();
            if self.modules.contains_key(&child) {
                return Some((child, None));
            }
            if module.items.contains(name) {
                return Some((target, Some(name.to_string())));
            }
            if let Some(import) = module.imports.iter().find(|import| import.name == name) {
                return self.resolve(&target, &import.path, depth + 1);
            }
        }
        None
    }
}

/// A token of Rust code: a word, `::`, or another character.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    text: String,
    line: usize,
}

/// Reads the modules of a file into a library.
struct Parser<'a> {
    library: &'a mut Library,
    file: String,
    tokens: Vec<Token>,
    at: usize,
    /// The path of the module that is being read.
    path: Vec<String>,
    /// For each open brace, whether it opened a module.
    braces: Vec<bool>,
}

impl<'a> Parser<'a> {
    fn new(file: &File, library: &'a mut Library) -> Parser<'a> {
        let path = file.path.strip_prefix(SOURCE).and_then(|path| path.strip_suffix(".rs"));
        let mut path: Vec<String> =
            path.unwrap_or_default().split('/').map(str::to_string).collect();
        if path.last().is_some_and(|last| last == "mod" || last == "lib") {
            path.pop();
        }
        let tokens = tokenize(&file.code());
        Parser { library, file: file.path.clone(), tokens, at: 0, path, braces: Vec::new() }
    }

    fn parse(mut self) {
        // `#![cfg(test)]`: the whole file is a test.
        if self.is_test_attribute(2) && self.text(1) == "!" {
            return;
        }
        self.module();
        while self.at < self.tokens.len() {
            self.step();
        }
    }

    fn text(&self, offset: usize) -> &str {
        self.tokens.get(self.at + offset).map_or("", |token| token.text.as_str())
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).map_or(0, |token| token.line)
    }

    fn module(&mut self) -> &mut Module {
        let module = self.library.modules.entry(self.path.clone()).or_default();
        if module.file.is_empty() {
            module.file = self.file.clone();
        }
        module
    }

    /// Reads on from the next token, which may begin an item.
    fn step(&mut self) {
        let is_module_level = self.braces.last().is_none_or(|is_module| *is_module);
        let before = self.at.checked_sub(1).map(|at| self.tokens[at].text.clone());
        match self.text(0) {
            "#" if self.is_test_attribute(1) => self.skip_test_item(),
            "{" => {
                self.braces.push(false);
                self.at += 1;
            }
            "}" => {
                if self.braces.pop() == Some(true) {
                    self.path.pop();
                }
                self.at += 1;
            }
            "pub" if self.text(1) == "(" => {
                // `pub(in crate::store)` is no use.
                while self.at < self.tokens.len() && self.text(0) != ")" {
                    self.at += 1;
                }
            }
            "mod" if is_module_level && self.text(2) == "{" => {
                let name = self.text(1).to_string();
                self.path.push(name);
                self.module();
                self.braces.push(true);
                self.at += 3;
            }
            "use" => {
                self.at += 1;
                let line = self.line();
                self.use_tree(Vec::new(), line);
            }
            "impl" if is_module_level => self.impl_block(),
            "struct" | "enum" | "union" | "trait" | "type" | "fn" | "const" | "static"
                if is_module_level =>
            {
                let name = self.text(1).to_string();
                self.module().items.insert(name);
                self.at += 1;
            }
            "crate" | "super" | "self"
                if self.text(1) == "::" && before.as_deref() != Some("::") =>
            {
                self.path_in_code();
            }
            word if self.text(1) == "::" && before.as_deref() != Some("::") => {
                // The first name of the path may be a child module; `resolve` finds out.
                let is_module = word.starts_with(|letter: char| letter.is_ascii_lowercase());
                if is_module { self.path_in_code() } else { self.at += 1 }
            }
            _ => self.at += 1,
        }
    }

    /// Reads a path such as `crate::store::Store`.
    fn path_in_code(&mut self) {
        let line = self.line();
        let path = self.plain_path();
        self.module().paths.push((line, path));
    }

    fn plain_path(&mut self) -> Vec<String> {
        let mut path = vec![self.text(0).to_string()];
        self.at += 1;
        while self.text(0) == "::" && is_word(self.text(1)) {
            path.push(self.text(1).to_string());
            self.at += 2;
        }
        path
    }

    /// Reads the tree of a `use` declaration: `a::{b, c as d, e::*}`.
    fn use_tree(&mut self, prefix: Vec<String>, line: usize) {
        let mut path = prefix;
        loop {
            match self.text(0) {
                "{" => {
                    self.at += 1;
                    while !matches!(self.text(0), "}" | "") {
                        let line = self.line();
                        self.use_tree(path.clone(), line);
                        if self.text(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "::" => self.at += 1,
                "as" => {
                    let name = self.text(1).to_string();
                    self.at += 2;
                    self.module().imports.push(Import { line, path, name });
                    return;
                }
                word if is_word(word) || word == "*" => {
                    path.push(word.to_string());
                    self.at += 1;
                }
                _ => {
                    let is_self = path.last().is_some_and(|last| last == "self") && path.len() > 1;
                    let name = path.iter().rev().nth(usize::from(is_self)).cloned();
                    if let Some(name) = name {
                        self.module().imports.push(Import { line, path, name });
                    }
                    return;
                }
            }
        }
    }

    /// Reads the head of an `impl` block, and notes its type if the block implements no trait.
    fn impl_block(&mut self) {
        let line = self.line();
        self.at += 1;
        self.skip_generics();
        if !is_word(self.text(0)) {
            return;
        }
        let start = self.at;
        let path = self.plain_path();
        self.skip_generics();
        // The head is read again for the paths in it.
        let is_inherent = matches!(self.text(0), "{" | "where");
        self.at = start;
        if is_inherent {
            self.module().impls.push((line, path));
        }
    }

    fn skip_generics(&mut self) {
        if self.text(0) != "<" {
            return;
        }
        let mut depth = 0;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "<" => depth += 1,
                ">" if self.tokens[self.at - 1].text != "-" => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }

    /// Whether an attribute that begins at this offset, with its bracket, is `cfg(test)`,
    /// `cfg(doctest)` or `cfg(all(test, ..))`.
    fn is_test_attribute(&self, bracket: usize) -> bool {
        let texts: Vec<&str> = (bracket..bracket + 6).map(|offset| self.text(offset)).collect();
        matches!(
            texts[..],
            ["[", "cfg", "(", "test" | "doctest", ")", ..] | ["[", "cfg", "(", "all", "(", "test"]
        )
    }

    /// Skips an attribute and the item to which it belongs.
    fn skip_test_item(&mut self) {
        while self.text(0) == "#" {
            self.at += 1;
            self.skip_group();
        }
        if self.text(0) == "pub" {
            self.at += 1;
            if self.text(0) == "(" {
                self.skip_group();
            }
        }
        if self.text(0) == "mod" && self.text(2) == ";" {
            let name = self.text(1).to_string();
            self.module().test_children.insert(name);
        }
        let ends_with_semicolon =
            matches!(self.text(0), "use" | "static" | "const" | "type" | "let");
        let is_item = matches!(
            self.text(0),
            "fn" | "impl" | "mod" | "struct" | "enum" | "trait" | "unsafe" | "macro_rules"
        );
        while self.at < self.tokens.len() {
            match self.text(0) {
                ";" => {
                    self.at += 1;
                    return;
                }
                "," if !is_item && !ends_with_semicolon => {
                    self.at += 1;
                    return;
                }
                "}" => return,
                "{" => {
                    self.skip_group();
                    if !ends_with_semicolon {
                        return;
                    }
                }
                "(" | "[" => self.skip_group(),
                _ => self.at += 1,
            }
        }
    }

    /// Skips a group in brackets of any kind.
    fn skip_group(&mut self) {
        let mut depth = 0;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }
}

fn is_word(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_alphanumeric() || letter == '_')
}

fn tokenize(code: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_of_word = |letter: char| letter.is_alphanumeric() || letter == '_';
            let len = if is_of_word(first) {
                rest.find(|letter| !is_of_word(letter)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            tokens.push(Token { text: rest[..len].to_string(), line: index + 1 });
            rest = rest[len..].trim_start();
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::workspace;

    /// The messages about a library of these files below `src`.
    fn check(rule: fn(&Tree) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
        let paths: Vec<String> = files.iter().map(|(path, _)| format!("{SOURCE}{path}")).collect();
        let files: Vec<(&str, &str)> =
            paths.iter().zip(files).map(|(path, (_, text))| (path.as_str(), *text)).collect();
        let find = |finding: Finding| format!("{}: {}", finding.line, finding.message);
        rule(&Tree::of(&files)).into_iter().map(find).collect()
    }

    #[test]
    fn an_upward_use_is_found() {
        let found = |engine: &str| {
            check(
                imports,
                &[
                    ("lib.rs", "mod engine; mod store; pub use store::Store;"),
                    ("engine/mod.rs", engine),
                    ("store/mod.rs", "pub struct Store; use crate::engine::Engine;"),
                ],
            )
        };
        assert_eq!(found("pub trait Engine {}"), [""; 0]);
        for upward in [
            "use crate::store::Store;",
            "use crate::{store::{Store as S}};",
            "use super::store;",
            "use crate::Store;",
            "use super::*; fn f() { super::store::open() }",
            "fn f(_: &crate::store::Store) {}",
            "mod inner { use super::super::store::Store; }",
        ] {
            let found = found(upward);
            assert_eq!(found.len(), 1 + usize::from(upward.contains('*')), "{upward}: {found:?}");
            let last = &found[found.len() - 1];
            assert!(last.contains("`engine` uses") && last.contains("of `store`"), "{found:?}");
        }
    }

    #[test]
    fn an_upward_use_between_folders_of_the_store_is_found() {
        let found = check(
            imports,
            &[
                ("store/segment/mod.rs", "pub(super) struct Block;\n"),
                ("store/memory/mod.rs", "use super::segment::Block;\nuse super::record::put;\n"),
                ("store/record/mod.rs", "pub(in crate::store::memory) fn put() {}\n"),
                ("store/mod.rs", "mod memory; mod record; mod segment;"),
            ],
        );
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("2: `memory` uses `super::record::put`"), "{found:?}");
    }

    #[test]
    fn a_cycle_inside_a_layer_is_found() {
        let found = check(
            imports,
            &[("rma/mod.rs", "use crate::launch::A;"), ("launch/mod.rs", "use crate::rma::B;")],
        );
        assert_eq!(found.len(), 2);
        assert!(found[0].contains("a cycle"), "{found:?}");
        let found =
            check(imports, &[("rma/mod.rs", "use crate::launch::A;"), ("launch/mod.rs", "")]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_module_without_a_layer_is_found() {
        let found = check(imports, &[("misc.rs", "")]);
        assert!(found.len() == 1 && found[0].contains("`misc` is in no layer"), "{found:?}");
    }

    #[test]
    fn tests_comments_and_literals_may_name_any_module() {
        let engine = "// use crate::store::Store;\nconst A: &str = \"crate::store::Store\";\n\
                      #[cfg(test)]\nmod tests {\n    use crate::store::Store;\n}\n\
                      #[cfg(test)]\nuse crate::store::{Store, Options};\n\
                      #[cfg(all(test, feature = \"sim\"))]\nfn f() { crate::store::open() }\n\
                      #[cfg(test)]\npub(crate) mod testing;\nfn g() {}\n";
        let files = [
            ("engine/mod.rs", engine),
            ("engine/testing.rs", "use crate::store::Store;"),
            ("store/mod.rs", "pub struct Store;"),
        ];
        assert_eq!(check(imports, &files), [""; 0]);
    }

    #[test]
    fn methods_outside_the_folder_of_their_type_are_found() {
        let record = "use super::operation::Op;\nstruct Own;\nimpl Own {}\nimpl Op<'_> {}\n\
                      impl<'a> Drop for Op<'a> {}\nimpl<T: Fn() -> u8> Other<T> {}\n";
        let found = check(
            impls,
            &[
                ("store/operation/mod.rs", "mod op; pub use op::Op;"),
                ("store/operation/op.rs", "pub struct Op<'a>(&'a u8);"),
                ("store/operation/retry.rs", "use super::Op; impl Op<'_> {}"),
                ("store/record/mod.rs", record),
                ("store/mod.rs", "mod operation; mod record;"),
                ("engine/mod.rs", "pub struct JoinOptions;"),
                ("job/mod.rs", "use crate::engine::JoinOptions; impl JoinOptions {}"),
            ],
        );
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("4: `impl Op` stands in `store/record/`"), "{found:?}");
    }

    /// The rules see the library itself: an upward use that is added to it is found.
    #[test]
    fn an_upward_use_that_is_added_to_the_library_is_found() {
        let mut tree = Tree::read(workspace()).expect("readable");
        let before = imports(&tree).len();
        let path = format!("{SOURCE}engine/view.rs");
        let file = tree.files.iter_mut().find(|file| file.path == path).expect("a module");
        *file = File::new(&path, format!("{}\nuse crate::store::Store;\n", file.text));
        assert_eq!(imports(&tree).len(), before + 1);
    }
}
