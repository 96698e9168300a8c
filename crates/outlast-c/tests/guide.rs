//! The programs of the guide in C, C++ and Python: they compile, and print what the guide says. The
//! programs in Rust run as examples in the documentation of `outlast`.

#[path = "support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

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
    let (folder, library) = (folder(), support::library_folder());
    let (source_path, binary) = (folder.join(file), folder.join(format!("{file}.out")));
    std::fs::write(&source_path, source).expect("written");
    let status = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
        .arg("-o")
        .arg(&binary)
        .arg(&source_path)
        .arg("-L")
        .arg(&library)
        .arg("-loutlast_c")
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .status()
        .expect("a compiler");
    assert!(status.success(), "{file} does not compile");
    let output = Command::new(&binary).env_remove("OUTLAST_JOB").output().expect("started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_program_in_c_runs() {
    assert_eq!(output_of("cc", "first.c", program("c")), "member 0: hello\n");
}

#[test]
fn the_program_in_cpp_runs() {
    assert_eq!(output_of("c++", "first.cpp", program("cpp")), "hello\n");
}

#[test]
fn the_program_in_python_compiles() {
    let check = "import sys; compile(sys.argv[1], 'guide', 'exec')";
    let status = Command::new("python3").args(["-c", check, program("python")]).status();
    assert!(status.expect("python3").success());
}
