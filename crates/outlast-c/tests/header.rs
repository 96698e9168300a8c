//! The headers: they compile alone, and `outlast.h` has the functions, structures, codes and
//! version of the library. A program that is made from the header calls each function with bad
//! handles.

#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use outlast::launch::Launch;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use support::{library_folder, run_alone};

/// A parameter, a field or a result: its name, and what it is in C and in Rust, such as `u32`,
/// `*char`, `**object` or `function`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    name: String,
    kind: String,
}

impl Item {
    /// Reads `const char *name`, or `int (*visit)(void *context)`.
    fn of_c(text: &str) -> Item {
        let text = text.trim();
        if let Some((_, rest)) = text.split_once("(*") {
            let name = rest.split(')').next().expect("a name").into();
            return Item { name, kind: "function".into() };
        }
        let (kind, name) = text.split_at(text.rfind([' ', '*']).map_or(0, |at| at + 1));
        Item { name: name.into(), kind: kind_of(kind) }
    }

    /// Reads `name: *const c_char`. These other names are of types of functions.
    fn of_rust(text: &str, functions: &BTreeSet<String>) -> Item {
        let (name, kind) = text.trim().split_once(':').expect("a name and a type");
        let is_function = kind.contains("fn(") || functions.contains(kind.trim());
        let kind = if is_function { "function".into() } else { kind_of(kind) };
        Item { name: name.into(), kind }
    }
}

/// What a type of C or Rust is: its pointers, and the type behind them.
fn kind_of(text: &str) -> String {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let mut words = words.filter(|word| !["", "const", "mut", "struct"].contains(word));
    let behind = match words.next_back() {
        Some("int" | "c_int") => "i32",
        Some("uint32_t" | "u32") => "u32",
        Some("int64_t" | "i64") => "i64",
        Some("uint64_t" | "u64") => "u64",
        Some("size_t" | "usize") => "usize",
        Some("double" | "f64") => "f64",
        Some("char" | "c_char") => "char",
        Some("void" | "c_void") | None => "void",
        Some(_) => "object",
    };
    "*".repeat(text.matches('*').count()) + behind
}

/// The text between the first bracket and the bracket that closes it, and the text behind that.
fn between_brackets(text: &str) -> Option<(&str, &str)> {
    let begin = text.find('(')? + 1;
    let mut depth = 1;
    let end = text[begin..].find(|letter| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        depth == 0
    })?;
    Some((&text[begin..begin + end], &text[begin + end + 1..]))
}

/// The parts of a list. The commas between brackets are those of functions.
fn parts(list: &str) -> Vec<String> {
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for letter in list.chars() {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        match letter {
            ',' if depth == 0 => parts.push(String::new()),
            _ => parts.last_mut().expect("a part").push(letter),
        }
    }
    parts.retain(|part| !["", "void"].contains(&part.trim()));
    parts
}

/// A function that the header declares.
#[derive(Debug)]
struct Function {
    returns: String,
    name: String,
    parameters: Vec<String>,
}

impl Function {
    /// Reads a declaration, as `int outlast_example(outlast_job *job, int number)`.
    fn of_declaration(code: &str) -> Option<Function> {
        let Item { name, kind } = Item::of_c(code.split_once('(')?.0);
        let (list, _) = between_brackets(code)?;
        let is_function = name.starts_with("outlast_");
        is_function.then(|| Function { returns: kind, name, parameters: parts(list) })
    }

    /// A line of C that calls the function with this number for each number, and NULL for each
    /// pointer except for handles of these types. A call that returns a code has to be refused; a
    /// function that frees, or returns something else, has to return.
    fn refusal(&self, handles: &[(&str, &str)], number: &str) -> String {
        let argument = |parameter: &String| {
            let is_place = parameter.matches('*').count() > 1;
            let given = handles.iter().find(|(kind, _)| !is_place && parameter.contains(kind));
            let other = if parameter.contains('*') { "NULL" } else { number };
            given.map_or(other, |(_, handle)| *handle)
        };
        let arguments: Vec<&str> = self.parameters.iter().map(argument).collect();
        let call = format!("{}({})", self.name, arguments.join(", "));
        let is_question = self.name.contains("_is_") && self.name != "outlast_seat_is_whole";
        // An empty list is no bad input.
        let is_of_list = ["_all", "_any", "_loss_of"].iter().any(|part| self.name.contains(part));
        if self.returns != "i32" || is_question || (is_of_list && number == "0") {
            return format!("(void){call};\n");
        }
        format!("refused(\"{call}\", {call}, __LINE__);\n")
    }
}

/// The header without comments and lines of the preprocessor.
fn header() -> String {
    let mut header = String::new();
    let mut rest = include_str!("../include/outlast.h");
    while let Some((code, comment)) = rest.split_once("/*") {
        header.push_str(code);
        rest = comment.split_once("*/").expect("the end of a comment").1;
    }
    header.push_str(rest);
    let lines: Vec<&str> = header.lines().filter(|line| !line.starts_with('#')).collect();
    lines.join(" ")
}

/// The functions that the header declares.
fn functions_of_header() -> Vec<Function> {
    header().split(';').filter_map(Function::of_declaration).collect()
}

/// The structures of the header whose fields it shows.
fn structures_of_header() -> BTreeMap<String, Vec<Item>> {
    let header = header();
    let structures = header.split("typedef struct ").skip(1).filter_map(|rest| {
        let (name, body) = rest.split_once(" {")?;
        let fields = body.split('}').next()?.split(';').filter(|field| !field.trim().is_empty());
        (!name.contains(' ')).then(|| (name.to_string(), fields.map(Item::of_c).collect()))
    });
    structures.collect()
}

/// All sources of the library for C.
fn sources() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = std::fs::read_dir(folder).expect("the sources");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(entry.expect("an entry").path()).expect("a source")
    };
    files.map(read).collect()
}

/// The names of types of functions in the sources.
fn function_types(sources: &str) -> BTreeSet<String> {
    let types = sources.split("pub type ").skip(1).filter_map(|rest| {
        let (name, kind) = rest.split_once('=')?;
        kind.split(';').next()?.contains("fn(").then(|| name.trim().to_string())
    });
    types.collect()
}

#[test]
fn the_header_compiles_alone_as_plain_c() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/outlast.h");
    for standard in ["-std=c99", "-std=c11"] {
        let output = Command::new("cc")
            .args([
                "-fsyntax-only",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pedantic",
                standard,
                "-x",
                "c",
            ])
            .arg(&header)
            .output()
            .expect("a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_header_of_cpp_compiles_with_and_without_exceptions() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    for option in ["-fexceptions", "-fno-exceptions", "-std=c++20"] {
        let output = Command::new("c++")
            .args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c++17"])
            .args([option, "-x", "c++", "-include", "outlast.hpp", "/dev/null"])
            .arg(format!("-I{}", folder.display()))
            .output()
            .expect("a C++ compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_codes_of_the_library_are_equal_to_the_codes_of_the_header() {
    use outlast_c::Status;
    let header = include_str!("../include/outlast.h");
    let codes = header.split_once("enum outlast_status {").expect("the enum").1;
    let codes = codes.split_once("};").expect("its end").0;
    let in_header: Vec<(&str, String)> = codes
        .lines()
        .filter_map(|line| line.trim().split_once(" = "))
        .map(|(name, code)| (name, code.trim_end_matches(',').to_string()))
        .collect();
    let in_library: Vec<(&str, String)> =
        Status::ALL.iter().map(|(name, status)| (*name, (*status as i32).to_string())).collect();
    assert_eq!(in_header, in_library);
}

/// The kinds of the result and of the parameters are equal in the header and in the library.
#[test]
fn the_functions_of_the_header_have_the_parameters_of_the_library() {
    let sources = sources();
    let types = function_types(&sources);
    let mut in_library = BTreeMap::new();
    for rest in sources.split("extern \"C\" fn outlast_").skip(1) {
        let name = format!("outlast_{}", rest.split('(').next().expect("a name"));
        let (list, behind) = between_brackets(rest).expect("parameters");
        let returns = behind.split('{').next().expect("a body");
        let kinds = parts(list).iter().map(|text| Item::of_rust(text, &types).kind).collect();
        in_library.insert(name, (kind_of(returns), kinds));
    }
    let in_header: BTreeMap<String, (String, Vec<String>)> = functions_of_header()
        .into_iter()
        .map(|function| {
            let kinds = function.parameters.iter().map(|text| Item::of_c(text).kind).collect();
            (function.name, (function.returns, kinds))
        })
        .collect();
    assert!(in_header.len() > 200, "only {} functions were found", in_header.len());
    for (name, declared) in &in_header {
        assert_eq!(in_library.get(name), Some(declared), "{name}");
    }
}

#[test]
fn the_structures_of_the_header_have_the_fields_of_the_library() {
    let sources = sources();
    let types = function_types(&sources);
    let structures = structures_of_header();
    assert!(structures.len() > 10, "{structures:?}");
    for (name, declared) in structures {
        let begin = format!("/// `{name}` of the header");
        let rest = sources.split_once(&begin).unwrap_or_else(|| panic!("no {name}")).1;
        let (before, rest) = rest.split_once("pub struct ").expect("a structure");
        assert!(before.contains("#[repr(C)]") && !before.contains("\n\n"), "{name}");
        let body = rest.split_once("{\n").expect("fields").1.split("\n}").next().expect("an end");
        let lines = body.lines().map(|line| line.trim().trim_start_matches("pub(crate) "));
        let lines = lines.filter(|line| !line.starts_with("//") && !line.is_empty());
        let fields: Vec<Item> = lines
            .map(|line| {
                Item::of_rust(line.trim_start_matches("pub ").trim_end_matches(','), &types)
            })
            .collect();
        assert_eq!(fields, declared, "{name}");
    }
}

#[test]
fn header_and_library_have_the_same_functions() {
    let library = library_folder().join("liboutlast_c.so");
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output();
    let output = output.expect("nm of binutils");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let symbols = String::from_utf8_lossy(&output.stdout).into_owned();
    let in_library: BTreeSet<String> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|name| name.starts_with("outlast_"))
        .map(String::from)
        .collect();
    let declared: BTreeSet<String> =
        functions_of_header().into_iter().map(|function| function.name).collect();
    assert!(declared.len() > 100, "only {} functions were found", declared.len());
    assert_eq!(declared, in_library);
}

#[test]
fn the_version_of_the_header_is_that_of_the_library() {
    let header = include_str!("../include/outlast.h");
    let line = format!("#define OUTLAST_VERSION \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(header.contains(&line), "no {line}");
    for (name, number) in [
        ("MAJOR", env!("CARGO_PKG_VERSION_MAJOR")),
        ("MINOR", env!("CARGO_PKG_VERSION_MINOR")),
        ("PATCH", env!("CARGO_PKG_VERSION_PATCH")),
    ] {
        let line = format!("#define OUTLAST_VERSION_{name} {number}\n");
        assert!(header.contains(&line), "no {line}");
    }
}

/// The program is made from the header, so that no function is left out.
#[test]
fn every_function_of_the_header_refuses_null_closed_and_left_handles() {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("handles.c"), folder.path().join("handles"));
    let functions = functions_of_header();
    let refusals = |handles: &[(&str, &str)], number: &str| -> String {
        // The store of a job that was left can still be closed.
        let is_refused = |function: &&Function| {
            !handles.contains(&("outlast_store *", "last")) || function.name != "outlast_close"
        };
        let functions = functions.iter().filter(is_refused);
        functions.map(|function| function.refusal(handles, number)).collect()
    };
    let closed = [("outlast_store *", "closed"), ("outlast_job *", "job")];
    let left = [("outlast_store *", "last"), ("outlast_job *", "job")];
    let code = format!(
        "#include \"check.h\"\n\
         static int failed;\n\
         static void refused(const char *call, int code, int line) {{\n\
         int is_refused = code == OUTLAST_INVALID || code == OUTLAST_CLOSED;\n\
         if (is_refused && *outlast_error() != 0) return;\n\
         fprintf(stderr, \"line %d: %s is %d: %s\\n\", line, call, code, outlast_error());\n\
         failed = 1;\n}}\n\
         int main(void) {{\n\
         outlast_job *job;\n\
         outlast_store *closed, *last;\n\
         {}{}\
         EXPECT(OUTLAST_OK, outlast_join(&job));\n\
         EXPECT(OUTLAST_OK, outlast_open(job, NULL, &closed));\n\
         EXPECT(OUTLAST_OK, outlast_close(closed));\n\
         {}{}\
         EXPECT(OUTLAST_OK, outlast_open(job, NULL, &last));\n\
         EXPECT(OUTLAST_OK, outlast_leave(job));\n\
         {}{}\
         if (!failed) printf(\"ok\\n\");\n\
         return failed;\n}}\n",
        refusals(&[], "0"),
        refusals(&[], "1"),
        refusals(&closed[..1], "0"),
        refusals(&closed[..1], "1"),
        refusals(&left, "0"),
        refusals(&left, "1"),
    );
    std::fs::write(&source, code).expect("written");
    let include = format!("-I{}/tests/c", env!("CARGO_MANIFEST_DIR"));
    support::compile("cc", &["-std=c11", "-D_DEFAULT_SOURCE", &include], &source, &program);
    run_alone(Launch::new(1).program(&program));
}
