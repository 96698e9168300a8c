//! What the tests of the bindings share: the library under test, and a job whose last member dies.

use outlast::MemberId;
use outlast::launch::{Launch, Output};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The folder in which cargo puts the library under test.
pub(crate) fn library_folder() -> PathBuf {
    let own = std::env::current_exe().expect("own path");
    own.parent().expect("a folder").to_path_buf()
}

/// Compiles a program in C or C++ against the headers, with all warnings as errors, and links it
/// with the library. The path in the program comes before LD_LIBRARY_PATH, in which cargo names a
/// folder that may have an older library.
pub(crate) fn compile(compiler: &str, options: &[&str], source: &Path, program: &Path) {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let library = library_folder();
    let output = Command::new(compiler)
        .args(options)
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(program)
        .arg(source)
        .arg(format!("-I{}", include.display()))
        .arg(format!("-L{}", library.display()))
        .arg(format!("-Wl,--disable-new-dtags,-rpath,{}", library.display()))
        .arg("-loutlast_c")
        .output()
        .expect("a compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Starts four members, kills the last member when it is ready, and expects the survivors to
/// finish.
pub(crate) fn kill_the_last_of(launch: Launch) {
    let mut running = launch.output(Output::Capture).start().expect("started");
    let last = MemberId(3);
    let until = Instant::now() + LIMIT;
    while !running.output(last).stdout.ends_with(b"ready\n") {
        if Instant::now() >= until || running.output(last).stderr.contains(&b'\n') {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    running.kill(last).expect("killed");
    let outcome = running.wait(LIMIT);
    let said: String = outcome.members.iter().map(|end| outcome.stderr(end.member)).collect();
    assert!(outcome.survivors_ok(), "{outcome}{said}");
    assert_eq!(outcome.stdout(last), "ready\n", "{outcome}{said}");
    for member in 0..3 {
        assert_eq!(outcome.stdout(MemberId(member)), "ok\n", "{said}");
    }
}

/// Runs a program as the only member of a job, to its end.
pub(crate) fn run_alone(launch: Launch) {
    let outcome = launch.output(Output::Capture).start().expect("started").wait(LIMIT);
    assert!(outcome.survivors_ok(), "{outcome}{}", outcome.stderr(MemberId(0)));
    assert_eq!(outcome.stdout(MemberId(0)), "ok\n");
}

/// Runs a program with all kinds of bad input as the only member of a job.
pub(crate) fn check_bad(launch: Launch, folder: &Path) {
    run_alone(launch.args([plugin_of_another_mpi(folder)]));
}

/// Runs a job of two members, of which a member leaves, with several values of OUTLAST_LOG.
pub(crate) fn check_log(launch: &Launch) {
    let said = |level: &str| {
        let launch = launch.clone().env("OUTLAST_LOG", level).output(Output::Capture);
        let outcome = launch.start().expect("started").wait(LIMIT);
        let said: String = outcome.members.iter().map(|end| outcome.stderr(end.member)).collect();
        assert!(outcome.survivors_ok(), "{outcome}{said}");
        said
    };
    assert_eq!(said("off"), "");
    assert_eq!(said("error"), "");
    let told = said("info");
    assert!(told.contains("a member is leaving member=0"), "{told}");
    let refused = said("loud");
    assert!(refused.contains("OUTLAST_LOG is \"loud\"; it may be off, error"), "{refused}");
}

/// Makes a plug-in of another MPI: all functions are there, and the library is not Open MPI.
pub(crate) fn plugin_of_another_mpi(folder: &Path) -> PathBuf {
    let source = include_str!("../../../outlast-mpi-sys/src/lib.rs");
    let names = source.split("fn outlast_mpi_").skip(1).filter_map(|rest| rest.split('(').next());
    let shim = include_str!("../../../outlast-mpi-sys/shim.c").lines();
    let interface = shim.filter(|line| line.contains("SHIM_INTERFACE"));
    let interface = interface.collect::<Vec<_>>().join("\n");
    let mut code = format!(
        "#include <string.h>\n{interface}\n\
         int outlast_mpi_versions(int *major, int *minor, char *text, int room) {{\n\
         (void)room;\n*major = 5;\n*minor = 0;\n\
         strcpy(text, \"MPICH Version: 4.1\");\nreturn 0;\n}}\n",
    );
    for name in names.filter(|name| *name != "versions") {
        code += &format!("int outlast_mpi_{name}(void) {{ return 1; }}\n");
    }
    let (source, made) = (folder.join("plug-in.c"), folder.join("plug-in.so"));
    std::fs::write(&source, code).expect("written");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&made).arg(&source);
    assert!(cc.status().expect("a C compiler").success());
    made
}
