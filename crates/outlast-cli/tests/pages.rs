//! `--report FILE`: a whole page or none, without any other file, and refused before the run if it
//! cannot be written.

mod common;

use common::outlast;

/// Runs a command with `--report`, and returns the page.
fn page(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("report.html");
    let report = ["--report", path.to_str().expect("a plain path")];
    let run = outlast(&[arguments, &report].concat());
    assert_eq!(run.code(), 0, "{run:?}");
    let files = folder.path().read_dir().expect("a folder").count();
    assert_eq!(files, 1, "nothing but the report is there");
    let page = std::fs::read_to_string(path).expect("the report was written");
    check(&page);
    let typed = format!("outlast {}", arguments.join(" "));
    assert!(page.contains(&typed), "the page has the exact command {typed}");
    page
}

/// What holds for every page.
fn check(page: &str) {
    assert!(page.starts_with("<!doctype html>\n") && page.ends_with("</html>\n"), "{page}");
    assert!(!page.contains("http:") && !page.contains("https:"), "it needs no network: {page}");
    for word in ["NaN", "infinity", "-inf", "<script src", "<link rel=\"stylesheet"] {
        assert!(!page.contains(word), "{word}: {page}");
    }
    for word in ["prefers-color-scheme: dark", "@media print", "viewport", "Processor", "Linux"] {
        assert!(page.contains(word), "{word}: {page}");
    }
    let body = &page[page.find("<main>").expect("a body")..page.find("</main>").expect("an end")];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = body;
    while let Some(begin) = rest.find('<') {
        assert!(!rest[..begin].contains('>'), "{}", &rest[..begin]);
        let end = begin + rest[begin..].find('>').expect("a tag ends");
        let tag = &rest[begin + 1..end];
        assert!(!tag.contains('<') && tag.matches('"').count().is_multiple_of(2), "<{tag}>");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "</{name}>");
        } else if !tag.ends_with('/') {
            open.push(tag.split(' ').next().expect("a name"));
        }
        rest = &rest[end + 1..];
    }
    assert_eq!(open, ["main"], "all tags are closed");
}

#[test]
fn the_page_of_the_demo_has_a_lane_for_each_member() {
    let page = page(&["demo", "-n", "5"]);
    assert!(page.contains("The store outlasted both deaths."), "{page}");
    let lane = |member: u32| {
        let name = format!("&quot;member {member}&quot;");
        page.contains(&name)
    };
    assert!((0..5).all(lane) && !lane(5), "{page}");
    for victim in [0, 2] {
        let death = format!("kill -9 of member {victim} at ");
        // The lanes, the writes of all members, and the close-up.
        assert!(page.matches(&death).count() >= 3, "{death}: {page}");
    }
    for mark in ["noticed after", "paused for", "all replicas are back after", "writes/s"] {
        assert!(page.contains(mark), "{mark}: {page}");
    }
}

#[test]
fn the_page_of_chaos_shows_stops_and_deaths() {
    let page = page(&["chaos", "-n", "4", "--kills", "1", "--stops", "1", "--seconds", "1"]);
    assert!(page.contains("The store kept all its promises."), "{page}");
    assert!(page.contains("stopped for") && page.contains("kill -9 of member"), "{page}");
    assert!(page.contains("--seed") && page.contains("--threads 2"), "it can be repeated: {page}");
}

#[test]
fn the_page_of_chaos_on_seats_has_its_programs() {
    let page =
        page(&["chaos", "-n", "3", "--programs", "table", "--kills", "1", "--seconds", "1"]);
    assert!(page.contains("The seats kept all their promises."), "{page}");
    assert!(page.contains("programs with the right answer"), "{page}");
}

#[test]
fn simulated_runs_and_benchmarks_have_pages() {
    let sim = page(&["sim", "--seeds", "0..6", "--kills", "1"]);
    assert!(sim.contains("No seed fails.") && sim.contains("memory link: "), "{sim}");
    let sim = page(&["sim", "--programs", "seats", "--seeds", "0..2", "--kills", "1"]);
    assert!(sim.contains("No seed fails.") && sim.contains("programs on seats"), "{sim}");
    let bench = page(&["bench", "sim", "--steps", "1000", "--runs", "1"]);
    assert!(bench.contains("steps/s") && bench.contains("<circle"), "{bench}");
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().to_str().expect("a plain path");
    for command in [
        &["demo"][..],
        &["chaos"],
        &["sim"],
        &["bench", "put"],
        &["tasks", "fib"],
        &["plan", "--members", "256", "--mtbf", "process=1y", "--job", "30d"],
    ] {
        for (path, why) in [
            ("/no/such/folder/report.html", "No such file or directory"),
            ("/proc/report.html", "cannot write /proc/report.html"),
            (folder, "it is a folder"),
            ("/dev/null", "not a plain file"),
            ("-", "needs a file"),
        ] {
            let run = outlast(&[command, &["--report", path]].concat());
            assert_eq!(run.code(), 2, "{command:?} {path}: {run:?}");
            assert!(run.stderr.contains(why) && run.stdout.is_empty(), "{path}: {run:?}");
        }
    }
}

#[test]
fn ctrl_c_leaves_no_report() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("report.html");
    let path = path.to_str().expect("a plain path");
    let started =
        common::start(&["chaos", "-n", "4", "--kills", "0", "--seconds", "600", "--report", path]);
    let members = started.children(4);
    common::wait_until("a member to join", || common::maps_job_memory(members[0]));
    started.signal(rustix::process::Signal::INT);
    let run = started.finish();
    assert_eq!(run.code(), 1, "{run:?}");
    assert!(members.iter().all(|&pid| common::is_over(pid)), "{run:?}");
    let files = folder.path().read_dir().expect("a folder").count();
    assert_eq!(files, 0, "there is no report and no part of one");
}
