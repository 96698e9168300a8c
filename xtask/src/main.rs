//! `cargo xtask`: the single tool for working on Outlast. This file parses the arguments.

mod check;
mod debian;
mod gate;
mod install;
mod instructions;
mod layers;
mod mpi;
mod mutants;
mod packages;
mod peers;
mod soak;
mod soak_seats;
mod soak_tasks;
mod test;
mod tidy;
mod valgrind;

use anyhow::{Context, bail};
use std::path::Path;
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask TASK

  check                the quick gate: format, house rules, lints and unit tests; below 3 minutes
                       on 2 warm cores
  tidy [PATH ...]      the house rules alone: columns, step codes, module heads, links, layers and
                       more; lists all lines that break a rule, or the lines in files below PATH,
                       with counts by rule
  test [--full]        everything that has to be green: format, house rules, lints, tests,
                       documentation, Open MPI and its tests, a report in a browser (installs
                       Debian's Chromium); below 13 minutes on 2 cores. --full also checks what a
                       release needs: all reports in a browser, an installation, with C and C++
                       programs built against it, the guide as a book (installs mdBook), the
                       library for C under valgrind, each published crate compiled from its
                       package, the Python package as pip installs it, and the licenses of the
                       dependencies where cargo deny is installed
  release [PART]       what `test --full` adds to `test`, or a part of it: python, install, guide,
                       valgrind, instructions, browser, packages or licenses
  soak [--minutes M]   the long form (60 minutes unless said): the store over 237,500 seeds and
                       1,000 kills, with a record in target/soak/store.json; then the scenarios of
                       communicators and windows over 100,000 seeds and more, the conformance
                       suite on sim and on shm, and all tests in between, with new seeds in every
                       round, until the time is over or a step fails
  soak store [--first-seed X | --after N]
                       the store's part alone, without a limit of time; --after skips the first
                       N shapes of the simulator
  soak tasks [--first-seed X]
                       100,000 seeds of the task runtime's random programs, with a record in
                       target/soak/tasks.json
  soak seats [--first-seed X]
                       100,000 seeds of programs on seats, and 1,000 kills on shm, under mpirun, and
                       on hosts made of network namespaces (root), with a record in
                       target/soak/seats.json
  soak --engine mpi [--first-seed X]
                       500 kills under mpirun, on one host and on hosts made of network
                       namespaces (root), with a record in target/soak/mpi.json
  mutants [--json PATH]
                       breaks the store's protocol in each known way and shows the seed that
                       catches it; status 1 if a mutant survives
  instructions         counts the instructions of puts, gets and transactions on shm, for comparing
                       two versions of the library; needs valgrind, and unpacks it if it is missing
  instructions c       counts those of puts from C; fails if a put takes 60 more than the call of
                       Rust that it makes
  perf [--record]      fails if a call takes 3 % more instructions than xtask/perf.json says; a part
                       of `test`. --record writes the figures of this version
  hosts N -- COMMAND   makes N hosts of this machine, out of network namespaces, and runs the
                       command on the first of them (root); `outlast hosts` does it too
  install [--debug] --prefix DIR
                       builds and installs headers, libraries, command, man pages and completions
                       below DIR, to be found by pkg-config and by find_package of CMake
  mpi                  installs Open MPI with ULFM into target/mpi, for the feature `mpi`
  mpi-shim             compiles the plug-in through which Outlast calls MPI, with that Open MPI or
                       with the mpicc in PATH; `mpi` does it, too
  fortran              installs Debian's gfortran (root), for the tests of the Fortran module
  peers                fetches the stores that `outlast bench put --peers` compares with: Redis,
                       etcd, memcached and LMDB (Debian's packages, unpacked below target),
                       Hazelcast (Java 17 and Maven, installed by root if they are missing), and
                       Open MPI as `mpi` does
  redis                unpacks Redis alone into target/redis
  help                 this text

A step that fails, or that takes longer than its bound, ends the task with status 1. Nothing is
retried.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["test"] => test::test(false),
        ["test", "--full"] => test::test(true),
        ["release"] => test::release(None),
        ["release", part] if test::PARTS_OF_RELEASE.iter().any(|(name, _)| *name == part) => {
            test::release(Some(part))
        }
        ["release", part] => return usage(&format!("`{part}` is no part of a release")),
        ["check"] => check::check(),
        ["tidy"] => tidy::tidy(),
        ["tidy", ..] => tidy::tidy_below(&words[1..]),
        ["soak"] => soak::soak(60),
        ["soak", "--minutes", minutes] => match minutes.parse() {
            Ok(minutes) if (1..=10_000).contains(&minutes) => soak::soak(minutes),
            _ => return usage(&format!("`{minutes}` is not a number of minutes from 1 to 10000")),
        },
        ["soak", "store"] => soak::soak_store(soak::STORE_FIRST_SEED, 0),
        ["soak", "store", "--first-seed", seed] => match seed.parse() {
            Ok(seed) => soak::soak_store(seed, 0),
            Err(_) => return usage(&format!("`{seed}` is not a seed")),
        },
        ["soak", "store", "--after", shapes] => match shapes.parse() {
            Ok(shapes) => soak::soak_store(soak::STORE_FIRST_SEED, shapes),
            Err(_) => return usage(&format!("`{shapes}` is not a number of shapes")),
        },
        ["soak", "tasks"] => soak_tasks::soak_tasks(soak_tasks::FIRST_SEED),
        ["soak", "tasks", "--first-seed", seed] => match seed.parse() {
            Ok(seed) => soak_tasks::soak_tasks(seed),
            Err(_) => return usage(&format!("`{seed}` is not a seed")),
        },
        ["soak", "seats"] => soak_seats::soak_seats(soak_seats::FIRST_SEED),
        ["soak", "seats", "--first-seed", seed] => match seed.parse() {
            Ok(seed) => soak_seats::soak_seats(seed),
            Err(_) => return usage(&format!("`{seed}` is not a seed")),
        },
        ["soak", "--engine", "mpi"] => soak::soak_mpi(soak::MPI_FIRST_SEED),
        ["soak", "--engine", "mpi", "--first-seed", seed] => match seed.parse() {
            Ok(seed) => soak::soak_mpi(seed),
            Err(_) => return usage(&format!("`{seed}` is not a seed")),
        },
        ["hosts", count, "--", ..] if words.len() > 3 => hosts(count, &words[3..]),
        ["hosts", ..] => return usage("write it as: hosts N -- COMMAND"),
        ["mutants"] => mutants::mutants(None),
        ["mutants", "--json", path] => mutants::mutants(Some(Path::new(path))),
        ["instructions"] => instructions::instructions(),
        ["instructions", "c"] => instructions::instructions_of_c(),
        ["perf"] => instructions::perf(false),
        ["perf", "--record"] => instructions::perf(true),
        ["install", "--prefix", prefix] => {
            install::install(Path::new(prefix), install::Profile::Release)
        }
        ["install", "--debug", "--prefix", prefix] => {
            install::install(Path::new(prefix), install::Profile::Debug)
        }
        ["install", ..] => return usage("write it as: install [--debug] --prefix DIR"),
        ["mpi"] => {
            mpi::install().map(|folder| println!("Open MPI with ULFM is in {}", folder.display()))
        }
        ["mpi-shim"] => {
            mpi::compile_shim().map(|path| println!("the plug-in is {}", path.display()))
        }
        ["fortran"] => {
            debian::install("gfortran", "gfortran").map(|()| println!("gfortran is installed"))
        }
        ["peers"] => peers::install(),
        ["redis"] => peers::install_redis().map(|server| println!("Redis is {}", server.display())),
        ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            Ok(())
        }
        [] => return usage("which task?"),
        _ => return usage(&format!("`{}` is unknown", words.join(" "))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(1)
        }
    }
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("xtask: {problem}\n\n{HELP}");
    ExitCode::from(2)
}

/// Runs a command on the first of several hosts.
fn hosts(count: &str, command: &[&str]) -> anyhow::Result<()> {
    let outlast = ["run", "--quiet", "--package", "outlast-cli", "--", "hosts", count, "--"];
    let arguments = [&outlast[..], command].concat();
    let status = gate::cargo(&arguments).status().context("cannot run cargo")?;
    if !status.success() {
        bail!("the command on the hosts failed ({status})");
    }
    Ok(())
}
