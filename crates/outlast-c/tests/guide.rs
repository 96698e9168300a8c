//! The programs of the guide in C, C++ and Fortran: they compile, and print what the guide says.
//! The programs in Rust run as examples in the documentation of `outlast`, the program in Python in
//! the tests of the package. The table of all calls is compared with the header, the modules, the
//! stubs and the source of the library.

#[path = "support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use outlast::MemberId;
use outlast::launch::{Launch, Output};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The chapter with the first programs.
const CHAPTER: &str = include_str!("../../../docs/guide/src/first-programs.md");

/// The program of a language in the chapter.
fn program(language: &str) -> &str {
    let begin = format!("```{language}\n");
    let at = CHAPTER.find(&begin).expect("a program") + begin.len();
    let len = CHAPTER[at..].find("```").expect("its end");
    &CHAPTER[at..at + len]
}

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guide");
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Compiles a program, links it with the library, and returns what it prints.
fn output_of(compiler: &str, file: &str, source: &str) -> String {
    let folder = folder();
    let (source_path, binary) = (folder.join(file), folder.join(format!("{file}.out")));
    std::fs::write(&source_path, source).expect("written");
    support::compile(compiler, &[], &source_path, &binary);
    let output = Command::new(&binary).env_remove("OUTLAST_JOB").output().expect("started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The table of all calls.
const CALLS: &str = include_str!("../../../docs/guide/src/calls.md");

/// The names in a column of the table, from 0: what, Rust, C, C++, Fortran, Python.
fn names(column: usize) -> BTreeSet<&'static str> {
    let rows = CALLS.lines().filter(|line| line.starts_with("| "));
    let cells = rows.filter_map(|row| row.trim_matches('|').split('|').nth(column));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

/// Whether a text has a word, followed by one of these letters.
fn has(text: &str, word: &str, followed_by: &[char]) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
        !text[..at].ends_with(is_part) && text[at + word.len()..].starts_with(followed_by)
    })
}

/// The text of a class: from its name to the next class.
fn class<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (at, head) = text.match_indices(&format!("\nclass {name}")).find(|(at, head)| {
        let rest = &text[at + head.len()..];
        rest.starts_with([' ', ':', '(', ';']) && !rest.starts_with(';')
    })?;
    let rest = &text[at + head.len()..];
    Some(rest.split_once("\nclass ").map_or(rest, |(own, _)| own))
}

/// The functions of the header.
fn functions_of_header() -> BTreeSet<&'static str> {
    let header = include_str!("../include/outlast.h");
    let code = header.lines().filter(|line| !line.trim_start().starts_with(['*', '/']));
    let starts = code.flat_map(|line| line.split("outlast_").skip(1).map(move |rest| (line, rest)));
    let names = starts.filter_map(|(line, rest)| {
        let name = &rest[..rest.find('(')?];
        let is_name = name.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
        let at = rest.as_ptr() as usize - line.as_ptr() as usize - "outlast_".len();
        is_name.then(|| &line[at..at + "outlast_".len() + name.len()])
    });
    names.collect()
}

#[test]
fn the_table_of_calls_has_all_functions_of_the_header_and_no_other() {
    let (header, table) = (functions_of_header(), names(2));
    assert!(header.len() > 150, "only {} functions were found", header.len());
    let missing: Vec<_> = header.difference(&table).collect();
    assert!(missing.is_empty(), "add rows to docs/guide/src/calls.md: {missing:?}");
    let unknown: Vec<_> = table.difference(&header).collect();
    assert!(unknown.is_empty(), "the header does not have: {unknown:?}");
}

#[test]
fn the_table_of_calls_names_what_exists_in_cpp_fortran_and_python() {
    let cpp = include_str!("../include/outlast.hpp");
    for name in names(3) {
        let (of, method) = name.split_once("::").expect("a class");
        assert!(class(cpp, of).is_some_and(|text| has(text, method, &['('])), "C++: {name}");
    }
    let fortran =
        concat!(include_str!("../fortran/outlast.f90"), include_str!("../fortran/outlast_mpi.f90"));
    let public: Vec<_> = fortran.lines().filter(|line| line.contains("public ::")).collect();
    for name in names(4) {
        assert!(
            public.iter().any(|line| has(&format!("{line},"), name, &[','])),
            "Fortran: {name}"
        );
    }
    let stubs = include_str!("../../../python/outlast/__init__.pyi");
    for name in names(5) {
        let is_there = match name.split_once('.') {
            Some((of, method)) => {
                class(stubs, of).is_some_and(|text| text.contains(&format!("def {method}(")))
            }
            None => {
                stubs.contains(&format!("\ndef {name}(")) || stubs.contains(&format!("\n{name}:"))
            }
        };
        assert!(is_there, "Python: {name}");
    }
}

#[test]
fn the_table_of_calls_leaves_out_no_call_of_cpp_fortran_and_python() {
    // A call of C that the header for C++ makes is there for programs in C++: a row says how.
    let cpp = include_str!("../include/outlast.hpp");
    let mut in_cpp = BTreeSet::new();
    for row in CALLS.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        if !cells[3].trim().is_empty() {
            in_cpp.extend(cells[2].split('`').skip(1).step_by(2));
        }
    }
    let missing: Vec<_> = names(2)
        .into_iter()
        .filter(|name| has(cpp, name, &['(']) && !in_cpp.contains(name))
        .collect();
    assert!(missing.is_empty(), "C++ makes these calls, and no row has a name for it: {missing:?}");
    let fortran = include_str!("../fortran/outlast.f90");
    let public = fortran.lines().filter_map(|line| line.trim().strip_prefix("public :: "));
    let public: BTreeSet<_> = public.flat_map(|names| names.split(", ")).collect();
    assert!(public.len() > 100, "only {} calls were found", public.len());
    let table = names(4);
    let missing: Vec<_> = public.difference(&table).collect();
    assert!(missing.is_empty(), "the column of Fortran has no {missing:?}");
    let missing: Vec<_> =
        methods_of_python().into_iter().filter(|name| !names(5).contains(&**name)).collect();
    assert!(missing.is_empty(), "the column of Python has no {missing:?}");
}

/// The methods in the stubs, as `Store.put`: without properties and methods that operators call.
fn methods_of_python() -> Vec<String> {
    let stubs = include_str!("../../../python/outlast/__init__.pyi");
    let (mut of, mut before, mut found) = ("", "", Vec::new());
    for line in stubs.lines() {
        if let Some(rest) = line.strip_prefix("class ") {
            of = rest.split(['(', ':']).next().expect("a name");
        }
        let method = line.strip_prefix("    def ").and_then(|rest| rest.split('(').next());
        if let Some(name) = method
            && before.trim() != "@property"
            && !name.starts_with('_')
        {
            found.push(format!("{of}.{name}"));
        }
        before = line;
    }
    assert!(found.len() > 50, "only {} methods were found", found.len());
    found
}

#[test]
fn the_table_of_calls_names_what_exists_in_rust() {
    let sources = sources();
    for name in names(1) {
        let (of, function) = name.split_once("::").expect("a type or a module");
        let is_module = of.starts_with(char::is_lowercase);
        let is_there = sources.iter().any(|text| {
            let is_of = is_module || text.contains(&format!("impl {of} {{"));
            is_of && has(text, &format!("fn {function}"), &['(', '<'])
        });
        assert!(is_there, "Rust: {name}");
    }
}

/// The types of Rust whose calls the table has.
const TYPES: [&str; 17] = [
    "Job",
    "Store",
    "KeyHandle",
    "Transaction",
    "Recovery",
    "PendingGet",
    "Pin",
    "LockGuard",
    "Regions",
    "Images",
    "Snapshots",
    "Communicator",
    "Request",
    "Window",
    "WindowRequest",
    "Seat",
    "JoinOptions",
];

/// The public methods in a source text, as `Store::put`. A method of `Job` that a macro forwards to
/// the engine has no word `pub`.
fn methods_of_rust(text: &str) -> BTreeSet<String> {
    let (mut of, mut is_hidden, mut found) = ("", false, BTreeSet::new());
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("impl") {
            of = head.trim_start_matches("<'_>").trim().strip_suffix(" {").unwrap_or("");
        } else if line == "}" {
            of = "";
        }
        let forwarded = if of == "Job" { "        fn " } else { "    pub fn " };
        let rest = line.strip_prefix("    pub fn ").or(line.strip_prefix(forwarded));
        if let Some(rest) = rest {
            let name = rest.split(['(', '<']).next().expect("a name");
            if TYPES.contains(&of) && !is_hidden {
                found.insert(format!("{of}::{name}"));
            }
            is_hidden = false;
        }
        is_hidden |= line.trim() == "#[doc(hidden)]";
    }
    found
}

#[test]
fn the_table_of_calls_leaves_out_no_call_of_rust() {
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../outlast/src");
    let methods: BTreeSet<String> =
        sources_in(library).iter().flat_map(|text| methods_of_rust(text)).collect();
    assert!(methods.len() > 250, "only {} methods were found", methods.len());
    for kind in TYPES {
        let begin = format!("{kind}::");
        assert!(methods.iter().any(|name| name.starts_with(&begin)), "no method of {kind}");
    }
    // The options of joining are fields of a structure in C.
    let is_option = |name: &str| name.starts_with("JoinOptions::") && name != "JoinOptions::join";
    let table = names(1);
    let missing: Vec<_> =
        methods.iter().filter(|name| !table.contains(&***name) && !is_option(name)).collect();
    assert!(missing.is_empty(), "add these calls to docs/guide/src/calls.md: {missing:?}");
}

/// The code blocks of a language in a chapter.
fn blocks<'a>(chapter: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("```{language}\n");
    let parts = chapter.split(&begin).skip(1);
    parts.map(|rest| rest.split("```").next().expect("its text")).collect()
}

#[test]
fn the_chapter_on_mpi_has_lines_of_the_examples() {
    let chapter = include_str!("../../../docs/guide/src/mpi-programs.md");
    for (language, example) in [
        ("c", include_str!("../../../examples/mpi/heat.c")),
        ("python", include_str!("../../../examples/mpi/heat.py")),
        ("fortran", include_str!("../../../examples/mpi/heat.f90")),
    ] {
        let blocks = blocks(chapter, language);
        assert!(!blocks.is_empty(), "{language}");
        for line in blocks.iter().flat_map(|block| block.lines()) {
            assert!(example.contains(line.trim()), "the example in {language} has no: {line}");
        }
    }
}

#[test]
fn the_batch_scripts_of_the_guide_are_scripts() {
    let chapters = [
        include_str!("../../../docs/guide/src/clusters.md"),
        include_str!("../../../docs/guide/src/replicas.md"),
        include_str!("../../../docs/guide/src/installing.md"),
    ];
    for script in chapters.iter().flat_map(|chapter| blocks(chapter, "sh")) {
        let status = Command::new("sh").args(["-n", "-c", script]).status();
        assert!(status.expect("a shell").success(), "{script}");
    }
}

/// All texts of the sources of the crates and of the package for Python.
fn sources() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    [sources_in(root.join("crates")), sources_in(root.join("python/src"))].concat()
}

/// All texts of the sources in a folder.
fn sources_in(folder: PathBuf) -> Vec<String> {
    let (mut folders, mut texts) = (vec![folder], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                texts.push(std::fs::read_to_string(&path).expect("a file"));
            }
        }
    }
    texts
}

#[test]
fn the_variables_of_the_guide_exist() {
    let chapter = include_str!("../../../docs/guide/src/environment.md");
    let sources = sources();
    let rows = chapter.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let names: Vec<_> = rows.map(|(name, _)| name).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        let quoted = format!("\"{name}\"");
        assert!(sources.iter().any(|text| text.contains(&quoted)), "no code reads {name}");
    }
}

#[test]
fn all_chapters_are_in_the_summary() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/src");
    let summary = std::fs::read_to_string(folder.join("SUMMARY.md")).expect("the summary");
    for entry in std::fs::read_dir(&folder).expect("the guide") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        assert!(name == "SUMMARY.md" || summary.contains(&format!("({name})")), "{name}");
    }
}

#[cfg(feature = "fortran")]
#[test]
fn the_program_in_fortran_runs() {
    let (folder, library) = (folder(), support::library_folder());
    let (source, binary) = (folder.join("first.f90"), folder.join("first.f90.out"));
    std::fs::write(&source, program("fortran")).expect("written");
    let status = Command::new("gfortran")
        .args(["-std=f2018", "-Wall", "-Werror", "-J"])
        .arg(&folder)
        .arg("-o")
        .arg(&binary)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("fortran/outlast.f90"))
        .arg(&source)
        .arg("-L")
        .arg(&library)
        .arg("-loutlast_c")
        .arg(format!("-Wl,--disable-new-dtags,-rpath,{}", library.display()))
        .status();
    assert!(status.expect("gfortran; type: cargo xtask fortran").success());
    let output = Command::new(&binary).env_remove("OUTLAST_JOB").output().expect("started");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "member 0: hello\n");
}

#[test]
fn the_program_in_c_runs() {
    assert_eq!(output_of("cc", "first.c", program("c")), "member 0: hello\n");
}

#[test]
fn the_programs_in_c_that_adopt_keys_run() {
    let programs = blocks(include_str!("../../../docs/guide/src/deaths.md"), "c");
    assert!(!programs.is_empty(), "no program in C");
    for (number, program) in programs.into_iter().enumerate() {
        assert_eq!(output_of("cc", &format!("deaths-{number}.c"), program), "");
    }
}

#[test]
fn the_program_in_c_that_sends_messages_runs() {
    let programs = blocks(include_str!("../../../docs/guide/src/windows.md"), "c");
    assert_eq!(programs.len(), 1, "the programs in C");
    assert_eq!(output_of("cc", "windows.c", programs[0]), "");
    // Wherever a death comes, also before the victim has joined or after its end.
    for victim in 0..4 {
        let program = folder().join("windows.c.out");
        let launch = Launch::new(4).program(program).output(Output::Capture);
        let mut running = launch.start().expect("started");
        let _ = running.kill(MemberId(victim));
        let outcome = running.wait(support::LIMIT);
        assert!(outcome.survivors_ok(), "{victim}: {outcome}");
    }
}

#[test]
fn the_program_in_cpp_runs() {
    assert_eq!(output_of("c++", "first.cpp", program("cpp")), "hello\n");
}
