//! `cargo xtask install --prefix DIR`: the headers, libraries, command and pages of Outlast in the
//! layout of Unix, found by pkg-config and CMake. Nothing in the files names the prefix, so that
//! the folder can be moved.

use crate::gate::{Gate, cargo, minutes, target_folder, workspace};
use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The libraries of the system that the static library needs.
const SYSTEM_LIBRARIES: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";

/// The version of the workspace, and the part of it that a change which breaks programs raises.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    whole: String,
    compatible: String,
}

impl Version {
    /// Before 1.0 the second number is raised by changes that break programs; then the first.
    fn of(whole: &str) -> Version {
        let numbers: Vec<&str> = whole.split('.').collect();
        let kept = if numbers[0] == "0" { 2 } else { 1 };
        Version { whole: whole.into(), compatible: numbers[..kept].join(".") }
    }

    fn soname(&self) -> String {
        format!("liboutlast.so.{}", self.compatible)
    }
}

/// How the libraries and the command are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Optimized.
    Release,
    /// Not optimized: for trying the installation out.
    Debug,
}

/// Builds and installs everything below a prefix, which is made if it is not there.
pub(crate) fn install(prefix: &Path, profile: Profile) -> anyhow::Result<()> {
    let prefix = std::path::absolute(prefix).context("the prefix")?;
    install_into(&prefix, profile)?;
    println!("Outlast is in {}; for C and C++ type:", prefix.display());
    println!("  export PKG_CONFIG_PATH={}/lib/pkgconfig", prefix.display());
    println!("  cc program.c $(pkg-config --cflags --libs outlast)");
    println!("or in CMake, with CMAKE_PREFIX_PATH={}:", prefix.display());
    println!("  find_package(outlast REQUIRED)");
    println!("  target_link_libraries(program outlast::outlast)");
    Ok(())
}

fn install_into(prefix: &Path, profile: Profile) -> anyhow::Result<()> {
    let version = Version::of(env!("CARGO_PKG_VERSION"));
    let built = build(&version, profile)?;
    let source = workspace().join("crates/outlast-c");
    for header in ["outlast.h", "outlast.hpp"] {
        copy(&source.join("include").join(header), &prefix.join("include").join(header))?;
    }
    for module in ["outlast.f90", "outlast_mpi.f90"] {
        let to = prefix.join("share/outlast/fortran").join(module);
        copy(&source.join("fortran").join(module), &to)?;
    }
    let library = format!("liboutlast.so.{}", version.whole);
    copy(&built.join("liboutlast_c.so"), &prefix.join("lib").join(&library))?;
    link(&library, &prefix.join("lib").join(version.soname()))?;
    link(&version.soname(), &prefix.join("lib/liboutlast.so"))?;
    copy(&built.join("liboutlast_c.a"), &prefix.join("lib/liboutlast.a"))?;
    copy(&built.join("outlast"), &prefix.join("bin/outlast"))?;
    write(&prefix.join("lib/pkgconfig/outlast.pc"), &pkg_config(&version))?;
    let package = prefix.join("lib/cmake/outlast");
    write(&package.join("outlastConfig.cmake"), &cmake_config(&version))?;
    write(&package.join("outlastConfigVersion.cmake"), &cmake_version(&version))?;
    let module = prefix.join("share/modulefiles/outlast").join(&version.whole);
    copy(&workspace().join("packaging/modulefile"), &module)?;
    for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&workspace().join(license), &prefix.join("share/doc/outlast").join(license))?;
    }
    let pages = Command::new(prefix.join("bin/outlast")).arg("pages").arg(prefix).status();
    ensure!(pages.context("the new command")?.success(), "the man pages could not be written");
    Ok(())
}

/// Builds the libraries and the command, in a folder of their own: the libraries have another name
/// for the loader than those of the tests, in files of equal names. Returns the folder in which
/// they are.
fn build(version: &Version, profile: Profile) -> anyhow::Result<PathBuf> {
    let target = target_folder().join("install");
    let options: &[&str] = if profile == Profile::Release { &["--release"] } else { &[] };
    let mut command = cargo(&[&["build", "--package", "outlast-cli"], options].concat());
    command.env("CARGO_TARGET_DIR", &target);
    ensure!(command.status().context("cargo")?.success(), "the command could not be built");
    let mut libraries = cargo(&[&["rustc", "--package", "outlast-c", "--lib"], options].concat());
    // The name under which programs look for the library when they start.
    libraries.arg("--").arg(format!("-Clink-arg=-Wl,-soname,{}", version.soname()));
    libraries.env("CARGO_TARGET_DIR", &target);
    ensure!(libraries.status().context("cargo")?.success(), "the libraries could not be built");
    Ok(target.join(if profile == Profile::Release { "release" } else { "debug" }))
}

fn make_folder_of(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().context("a path below the prefix")?;
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    make_folder_of(to)?;
    // A program that runs keeps the file that it has: the new file takes its place.
    let new = to.with_extension("new");
    std::fs::copy(from, &new)
        .and_then(|_| std::fs::rename(&new, to))
        .with_context(|| format!("copying {} to {}", from.display(), to.display()))
}

fn write(to: &Path, text: &str) -> anyhow::Result<()> {
    make_folder_of(to)?;
    std::fs::write(to, text).with_context(|| format!("writing {}", to.display()))
}

fn link(target: &str, path: &Path) -> anyhow::Result<()> {
    if path.is_symlink() {
        std::fs::remove_file(path).with_context(|| format!("replacing {}", path.display()))?;
    }
    std::os::unix::fs::symlink(target, path).with_context(|| format!("linking {}", path.display()))
}

fn pkg_config(version: &Version) -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\
         fortrandir=${{prefix}}/share/outlast/fortran\n\
         \n\
         Name: outlast\n\
         Description: a key-value store that outlasts the processes of a parallel program\n\
         Version: {}\n\
         Cflags: -I${{includedir}}\n\
         Libs: -L${{libdir}} -Wl,-rpath,${{libdir}} -loutlast\n\
         Libs.private: {SYSTEM_LIBRARIES}\n",
        version.whole
    )
}

fn cmake_config(version: &Version) -> String {
    format!(
        "# The targets outlast::outlast (shared), outlast::static, and outlast::fortran with the\n\
         # Fortran modules, which the compiler of the project compiles.\n\
         get_filename_component(OUTLAST_PREFIX \"${{CMAKE_CURRENT_LIST_DIR}}/../../..\" ABSOLUTE)\n\
         set(OUTLAST_FORTRAN_DIR \"${{OUTLAST_PREFIX}}/share/outlast/fortran\")\n\
         if(NOT TARGET outlast::outlast)\n  \
           add_library(outlast::outlast SHARED IMPORTED)\n  \
           set_target_properties(outlast::outlast PROPERTIES\n    \
             IMPORTED_LOCATION \"${{OUTLAST_PREFIX}}/lib/liboutlast.so.{whole}\"\n    \
             IMPORTED_SONAME \"{soname}\"\n    \
             INTERFACE_INCLUDE_DIRECTORIES \"${{OUTLAST_PREFIX}}/include\")\n  \
           add_library(outlast::static STATIC IMPORTED)\n  \
           set_target_properties(outlast::static PROPERTIES\n    \
             IMPORTED_LOCATION \"${{OUTLAST_PREFIX}}/lib/liboutlast.a\"\n    \
             INTERFACE_LINK_LIBRARIES \"{libraries}\"\n    \
             INTERFACE_INCLUDE_DIRECTORIES \"${{OUTLAST_PREFIX}}/include\")\n\
         endif()\n\
         get_property(OUTLAST_LANGUAGES GLOBAL PROPERTY ENABLED_LANGUAGES)\n\
         if(OUTLAST_LANGUAGES MATCHES \"Fortran\" AND NOT TARGET outlast_fortran)\n  \
           add_library(outlast_fortran STATIC EXCLUDE_FROM_ALL\n    \
             \"${{OUTLAST_FORTRAN_DIR}}/outlast.f90\"\n    \
             \"${{OUTLAST_FORTRAN_DIR}}/outlast_mpi.f90\")\n  \
           set(OUTLAST_MODULE_DIR \"${{CMAKE_CURRENT_BINARY_DIR}}/outlast_fortran\")\n  \
           set_target_properties(outlast_fortran PROPERTIES\n    \
             Fortran_MODULE_DIRECTORY \"${{OUTLAST_MODULE_DIR}}\")\n  \
           target_include_directories(outlast_fortran INTERFACE \"${{OUTLAST_MODULE_DIR}}\")\n  \
           target_link_libraries(outlast_fortran PUBLIC outlast::outlast)\n  \
           add_library(outlast::fortran ALIAS outlast_fortran)\n\
         endif()\n",
        whole = version.whole,
        soname = version.soname(),
        libraries = SYSTEM_LIBRARIES.replace(' ', ";"),
    )
}

fn cmake_version(version: &Version) -> String {
    format!(
        "# A wanted version fits if it is not newer, and programs of it work with this version.\n\
         set(PACKAGE_VERSION \"{whole}\")\n\
         if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION\n   \
            OR PACKAGE_FIND_VERSION VERSION_LESS \"{compatible}\")\n  \
           set(PACKAGE_VERSION_COMPATIBLE FALSE)\n\
         else()\n  \
           set(PACKAGE_VERSION_COMPATIBLE TRUE)\n  \
           if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)\n    \
             set(PACKAGE_VERSION_EXACT TRUE)\n  \
           endif()\n\
         endif()\n",
        whole = version.whole,
        compatible = version.compatible,
    )
}

/// The programs in C and C++ that the check builds against the installation: source, language,
/// whether the static library is linked, and the arguments by which member 2 dies.
const PROGRAMS: [(&str, &str, bool, &[&str]); 3] = [
    ("examples/c/heat.c", "C", false, &["100", "2", "37"]),
    ("examples/c/heat.c", "C", true, &["100", "2", "37"]),
    ("examples/cpp/pool.cpp", "CXX", false, &["100", "2"]),
];

/// The program in Fortran: the first program of the guide.
fn fortran_program(folder: &Path) -> anyhow::Result<PathBuf> {
    let chapter = workspace().join("docs/guide/src/first-programs.md");
    let text = std::fs::read_to_string(chapter).context("the guide")?;
    let rest = text.split_once("```fortran\n").context("a program in Fortran")?.1;
    let path = folder.join("first.f90");
    write(&path, rest.split("```").next().context("its end")?)?;
    Ok(path)
}

/// Installs into a new folder, and builds and runs the examples in C and C++, and a program in
/// Fortran, by pkg-config and by CMake. Leaves the parts out whose programs this machine does not
/// have.
pub(crate) fn check(gate: &mut Gate) -> anyhow::Result<()> {
    let folder = target_folder().join("tmp/install");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).context("the folder of an earlier check")?;
    }
    let first = folder.join("first");
    let mut install = Command::new(std::env::current_exe().context("the path of this program")?);
    install.arg("install").arg("--prefix").arg(&first);
    gate.step("installation", minutes(30), install)?;
    // The folder can be moved.
    let prefix = folder.join("moved");
    std::fs::rename(&first, &prefix).context("moving the installation")?;
    gate.step_here("build by pkg-config", || by_pkg_config(&folder, &prefix))?;
    gate.step_here("build by CMake", || by_cmake(&folder, &prefix))
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output();
    let is_there = found.is_ok_and(|output| output.status.success());
    if !is_there {
        println!("=== left out: {program} is not installed");
    }
    is_there
}

fn by_pkg_config(folder: &Path, prefix: &Path) -> anyhow::Result<()> {
    if !has("pkg-config") {
        return Ok(());
    }
    for (number, (source, language, is_static, deadly)) in PROGRAMS.into_iter().enumerate() {
        let mut arguments = vec!["--cflags", "--libs", "outlast"];
        arguments.extend(is_static.then_some("--static"));
        let mut flags = flags_of(prefix, &arguments)?;
        if is_static {
            flags = flags.replace("-loutlast", "-l:liboutlast.a");
        }
        let program = folder.join(format!("program-{number}"));
        let compiler = if language == "C" { "cc" } else { "c++" };
        let mut compile = Command::new(compiler);
        compile.arg(workspace().join(source)).arg("-o").arg(&program);
        compile.args((language == "C").then_some("-D_DEFAULT_SOURCE"));
        compile.args((language == "CXX").then_some("-std=c++17"));
        compile.args(flags.split_whitespace());
        ensure!(compile.status()?.success(), "{source} was not compiled: {compile:?}");
        run(prefix, &program, deadly)?;
    }
    if has("gfortran") {
        let program = folder.join("program-fortran");
        let mut compile = Command::new("gfortran");
        compile.arg("-J").arg(folder).arg(prefix.join("share/outlast/fortran/outlast.f90"));
        compile.arg(fortran_program(folder)?).arg("-o").arg(&program);
        compile.args(flags_of(prefix, &["--libs", "outlast"])?.split_whitespace());
        ensure!(compile.status()?.success(), "the program was not compiled: {compile:?}");
        run(prefix, &program, &[])?;
    }
    Ok(())
}

/// What pkg-config says of the installation.
fn flags_of(prefix: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let mut ask = Command::new("pkg-config");
    let output = ask.args(arguments).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).output();
    let output = output.context("pkg-config")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).context("flags")
}

fn by_cmake(folder: &Path, prefix: &Path) -> anyhow::Result<()> {
    if !has("cmake") {
        return Ok(());
    }
    let version = Version::of(env!("CARGO_PKG_VERSION"));
    let has_fortran = has("gfortran");
    let mut project = format!(
        "cmake_minimum_required(VERSION 3.13)\n\
         project(programs C CXX {})\n\
         set(CMAKE_CXX_STANDARD 17)\n\
         find_package(outlast {} REQUIRED)\n",
        if has_fortran { "Fortran" } else { "" },
        version.whole
    );
    for (number, (source, _, is_static, _)) in PROGRAMS.into_iter().enumerate() {
        let target = if is_static { "static" } else { "outlast" };
        project += &format!(
            "add_executable(program-{number} {})\n\
             target_compile_definitions(program-{number} PRIVATE _DEFAULT_SOURCE)\n\
             target_link_libraries(program-{number} outlast::{target})\n",
            workspace().join(source).display()
        );
    }
    if has_fortran {
        project += &format!(
            "add_executable(program-fortran {})\n\
             target_link_libraries(program-fortran outlast::fortran)\n",
            fortran_program(folder)?.display()
        );
    }
    let source = folder.join("project");
    write(&source.join("CMakeLists.txt"), &project)?;
    let build = folder.join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&source).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    ensure!(configure.status()?.success(), "CMake did not find the package");
    ensure!(Command::new("cmake").arg("--build").arg(&build).status()?.success(), "CMake failed");
    for (number, (.., deadly)) in PROGRAMS.into_iter().enumerate() {
        run(prefix, &build.join(format!("program-{number}")), deadly)?;
    }
    if has_fortran { run(prefix, &build.join("program-fortran"), &[]) } else { Ok(()) }
}

/// Runs a program as four members, by the command of the installation. With arguments a member
/// dies, and the survivors have to print what a single member prints.
fn run(prefix: &Path, program: &Path, deadly: &[&str]) -> anyhow::Result<()> {
    let mut alone = Command::new("timeout");
    alone.arg("60").arg(program).args(deadly.first());
    let mut launched = Command::new("timeout");
    launched.arg("60").arg(prefix.join("bin/outlast")).args(["run", "-n", "4"]);
    launched.arg(program).args(deadly);
    let said = |mut command: Command| {
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?} failed ({}): {errors}", output.status);
        Ok(said)
    };
    let (alone, launched) = (said(alone)?, said(launched)?);
    if let [_, _, ..] = deadly {
        // The rest of a line is about the work of a member.
        let results = |said: &str| -> Vec<String> {
            said.lines().filter_map(|line| line.split(';').next().map(String::from)).collect()
        };
        let (wanted, found) = (results(&alone), results(&launched));
        let is_equal = found.iter().all(|result| wanted == [result.clone()]);
        ensure!(is_equal && found.len() >= 3, "alone: {alone}with a death: {launched}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_library_changes_with_versions_that_break_programs() {
        assert_eq!(Version::of("0.1.7").soname(), "liboutlast.so.0.1");
        assert_eq!(Version::of("2.3.4").soname(), "liboutlast.so.2");
    }

    #[test]
    fn the_files_for_build_tools_have_the_version_and_no_prefix() {
        let version = Version::of("0.1.7");
        let texts = [pkg_config(&version), cmake_config(&version), cmake_version(&version)];
        for text in texts {
            assert!(text.contains("0.1.7"), "{text}");
            assert!(!text.contains("/usr") && !text.contains("{{"), "{text}");
        }
    }
}
