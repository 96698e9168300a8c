//! Properties of the shm engine, with real processes: how it is joined, what it does on machines
//! that lack memory or file space, and that the dead write nothing after they were declared dead.
//! The conformance suite (`outlast-conformance`) has the properties that all engines share.

use crate::members::{LIMIT, expect_ok, is_member, members, wait_until};
use crate::reexecution::{self, ROLE, this_test};
use outlast::engine::Port;
use outlast::engine::shm::JobMemory;
use outlast::launch::{Launch, Output};
use outlast::{Epoch, Error, Job, JoinError, JoinOptions, MemberId, Time};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a member waits for an event that is due soon.
const PATIENCE: Duration = Duration::from_secs(20);

const FIRST: MemberId = MemberId(0);
const SECOND: MemberId = MemberId(1);

#[test]
fn a_second_join_in_a_process_is_refused() {
    let test = this_test!();
    if !is_member(test) {
        expect_ok(members(test, 2).start().unwrap());
        return;
    }
    let job = outlast::join().unwrap();
    match outlast::join() {
        Err(JoinError::AlreadyJoined { member, pid }) => {
            assert_eq!((member, pid), (job.me(), std::process::id()));
        }
        other => panic!("{other:?}"),
    }
    // The first join is not affected.
    job.grow(4096).unwrap();
    job.put(Epoch::ANY, job.me(), 0, &[1; 8]).unwrap();
    job.leave().unwrap();
}

#[test]
fn an_invalid_job_variable_is_refused() {
    let test = this_test!();
    if is_member(test) {
        let error = outlast::join().expect_err("joined by a senseless variable");
        assert!(matches!(error, JoinError::NotAMember { .. }), "{error}");
        println!("refused: {error}");
        return;
    }
    let own = std::fs::File::open("/proc/self/exe").unwrap();
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&own);
    let me = std::process::id();
    for variable in [
        "",
        "shm",
        "shm:",
        "shm:3:1",
        "shm:3:1:0:9",
        "shm:-1:1:0",
        "shm:0:1:0",
        "shm:99999:1:0",
        "mpi:3:1:0",
        "shm:3:99999999999:0",
        "shm:\u{1F600}:1:0",
        &format!("shm:{descriptor}:{me}:0"),
    ] {
        let output = reexecution::command(test).env("OUTLAST_JOB", variable).output().unwrap();
        assert!(
            output.status.success(),
            "`{variable}`: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(String::from_utf8_lossy(&output.stdout).contains("refused: "), "`{variable}`");
    }
}

/// Without a plug-in of MPI the error says what is wrong and what to type.
#[cfg(feature = "mpi")]
#[test]
fn joining_over_mpi_without_a_plugin_says_what_to_type() {
    let test = this_test!();
    if reexecution::is_reexecuted(test) {
        println!("refused: {}", outlast::join().expect_err("there is no plug-in"));
        return;
    }
    for (plugin, reason) in
        [("/nowhere/plug-in.so", "does not exist"), ("/dev/null", "cannot be used")]
    {
        let mut join = reexecution::command(test);
        join.env_remove("OUTLAST_JOB").env("OUTLAST_ENGINE", "mpi").env("OUTLAST_MPI_SHIM", plugin);
        let said = String::from_utf8_lossy(&join.output().unwrap().stdout).into_owned();
        for part in ["refused: ", reason, plugin, "outlast mpi setup"] {
            assert!(said.contains(part), "`{part}` is not in: {said}");
        }
    }
}

#[test]
fn sizes_out_of_range_are_refused() {
    for (regulars, spares, limit) in [
        (0, 0, None),
        (0, 3, None),
        (1025, 0, None),
        (1000, 25, None),
        (usize::MAX, 1, None),
        (4, 0, Some(u64::MAX)),
    ] {
        let error =
            JobMemory::create(regulars, spares, limit).err().expect("made an impossible job");
        assert!(matches!(error, JoinError::Invalid { .. }), "{error}");
    }
    let error =
        JoinOptions::new().domain(&"x".repeat(1000)).join().expect_err("joined with a long domain");
    assert!(matches!(error, JoinError::Invalid { .. }), "{error}");
}

/// A wrapper closes all descriptors: the member fetches the job's memory from the launcher.
#[test]
fn a_wrapper_may_close_the_inherited_descriptor() {
    let test = this_test!();
    if is_member(test) {
        let job = outlast::join().unwrap();
        assert_eq!(job.members(), 2);
        job.leave().unwrap();
        return;
    }
    let close_and_run =
        "import os, sys; os.closerange(3, 100); os.execv(sys.argv[1], sys.argv[1:])";
    let launch = Launch::new(2)
        .program("python3")
        .args(["-c", close_and_run])
        .args([reexecution::binary().to_str().unwrap()])
        .args(reexecution::arguments(test))
        .env(ROLE, test)
        .output(Output::Capture);
    let outcome = expect_ok(launch.start().unwrap());
    assert!(outcome.members.iter().all(|end| end.joined), "{outcome}");
}

/// Members that end without leaving are dead, members that leave are marked as left, and exec is an
/// end like any other.
#[test]
fn every_way_to_end_is_noticed() {
    let test = this_test!();
    if !is_member(test) {
        let outcome = expect_ok(members(test, 6).start().unwrap());
        assert_eq!(outcome.deaths().count(), 2, "killed and aborted: {outcome}");
        return;
    }
    let job = outlast::join().unwrap();
    match job.me().0 {
        1 => std::process::exit(0),
        2 => {
            job.leave().unwrap();
            assert_eq!(job.put(Epoch::ANY, FIRST, 0, &[0]), Err(Error::Ended));
            assert!(job.has_ended());
        }
        3 => drop(std::os::unix::process::CommandExt::exec(&mut Command::new("true"))),
        4 => job.fence(job.me(), Time::NEVER).unwrap(),
        5 => std::process::abort(),
        _ => {
            wait_until(&job, PATIENCE, "all others ended", || job.epoch() == Epoch(5));
            assert_eq!(job.view().left.iter().collect::<Vec<_>>(), [MemberId(2)]);
            job.leave().unwrap();
        }
    }
}

/// The central property: when a death is in the view, the dead member writes nothing any more, not
/// even by a thread on another core. The victim's threads hammer words of the survivor. Once the
/// survivor sees the death, the words must not change.
#[test]
fn the_dead_write_nothing_after_the_notice() {
    let test = this_test!();
    if !is_member(test) {
        for _ in 0..15 {
            let outcome = expect_ok(members(test, 2).start().unwrap());
            assert_eq!(outcome.deaths().count(), 1, "{outcome}");
        }
        return;
    }
    let job = outlast::join().unwrap();
    if job.me() == SECOND {
        wait_until(&job, PATIENCE, "the survivor's segment", || job.segment_len(FIRST) == Ok(4096));
        let hammer = |word: u64| {
            let job = job.clone();
            move || while job.fetch_add(Epoch::ANY, FIRST, word * 8, 1).is_ok() {}
        };
        for word in 1..4 {
            job.spawn("hammer", Box::new(hammer(word))).unwrap();
        }
        hammer(0)();
        unreachable!("ended only by being killed");
    }
    job.grow(4096).unwrap();
    let words =
        || (0..4).map(|word| job.load(Epoch::ANY, FIRST, word * 8).unwrap()).collect::<Vec<_>>();
    wait_until(&job, PATIENCE, "all threads hammer", || words().iter().all(|&count| count > 1000));
    job.inject_kill(SECOND);
    while job.epoch() == Epoch(0) {
        std::hint::spin_loop();
    }
    let at_notice = words();
    for _ in 0..200 {
        std::thread::sleep(Duration::from_micros(50));
        assert_eq!(words(), at_notice, "a dead member wrote after the notice");
    }
    job.leave().unwrap();
}

/// Kills another member as `kill -9` would, from outside of the engine.
trait Kill {
    fn inject_kill(&self, member: MemberId);
}

impl Kill for Job {
    fn inject_kill(&self, member: MemberId) {
        let job = self.clone();
        // Fencing waits for the proof of the death. It runs in a thread of its own, so that the
        // caller can watch meanwhile.
        std::thread::spawn(move || job.fence(member, Time::NEVER));
    }
}

/// A stopped member is alive, however long it is stopped: no member declares it dead, and when it
/// goes on it is a member as before.
#[test]
fn a_stopped_member_is_not_dead() {
    let test = this_test!();
    if !is_member(test) {
        let running = members(test, 3).start().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        running.stop(SECOND).unwrap();
        // Nothing happens for a long time: that is the point.
        std::thread::sleep(Duration::from_millis(2500));
        running.resume(SECOND).unwrap();
        let outcome = expect_ok(running);
        assert_eq!(outcome.deaths().count(), 0, "{outcome}");
        return;
    }
    let job = outlast::join().unwrap();
    job.grow(4096).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(3) {
        // One-sided operations need no partner, so they go on while the target is stopped.
        match job.fetch_add(Epoch::ANY, SECOND, 0, 1) {
            Ok(_) | Err(Error::OutOfRange { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        assert_eq!(job.epoch(), Epoch(0), "a false alarm");
        std::thread::sleep(Duration::from_millis(1));
    }
    let counted = |job: &Job| job.load(Epoch::ANY, SECOND, 0).unwrap();
    assert!(counted(&job) > 1000, "{}", counted(&job));
    // All members stay until all have checked.
    job.fetch_add(Epoch::ANY, FIRST, 8, 1).unwrap();
    wait_until(&job, PATIENCE, "all have looked", || {
        job.load(Epoch::ANY, FIRST, 8).is_ok_and(|count| count == 3) || job.epoch() > Epoch(0)
    });
    job.leave().unwrap();
}

/// Many busy processes starve each other on few cores: no member is declared dead for that.
#[test]
fn a_starved_member_is_not_dead() {
    let test = this_test!();
    if !is_member(test) {
        let outcome = expect_ok(members(test, 12).start().unwrap());
        assert_eq!(outcome.deaths().count(), 0, "{outcome}");
        return;
    }
    let job = outlast::join().unwrap();
    job.grow(4096).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let burner = is_over.clone();
    let activity =
        job.spawn("burn", Box::new(move || while !burner.load(Ordering::Relaxed) {})).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(2) {
        assert_eq!(job.epoch(), Epoch(0), "a false alarm");
        std::hint::spin_loop();
    }
    is_over.store(true, Ordering::Relaxed);
    assert!(job.wait_for(&activity, job.now().after(LIMIT)));
    wait_until(&job, PATIENCE, "all have looked", || {
        if job.segment_len(FIRST).is_ok_and(|len| len > 0)
            && job.load(Epoch::ANY, job.me(), 8).unwrap() == 0
        {
            job.fetch_add(Epoch::ANY, job.me(), 8, 1).unwrap();
            job.fetch_add(Epoch::ANY, FIRST, 0, 1).unwrap();
        }
        job.load(Epoch::ANY, FIRST, 0).is_ok_and(|count| count == 12) || job.epoch() > Epoch(0)
    });
    job.leave().unwrap();
}

/// Runs the test as a job of a single member, under a shell that sets limits first.
fn run_limited(test: &str, shell: &str) -> (bool, String) {
    let output = Command::new("sh")
        .args(["-c", &format!("{shell}; exec \"$0\" \"$@\"")])
        .arg(reexecution::binary())
        .args(reexecution::arguments(test))
        .env(ROLE, test)
        .output()
        .unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (output.status.success(), text)
}

#[test]
fn a_low_limit_is_an_error_and_not_a_signal() {
    let test = this_test!();
    if is_member(test) {
        let error = outlast::join().expect_err("joined in spite of the limit");
        assert!(matches!(error, JoinError::NoRoom { .. }), "{error}");
        println!("refused: {error}");
        return;
    }
    for (limit, name) in [("ulimit -v 1000000", "ulimit -v"), ("ulimit -f 1000", "ulimit -f")] {
        let (ok, text) = run_limited(test, limit);
        assert!(ok && text.contains("refused: ") && text.contains(name), "{limit}: {text}");
    }
}

/// On a memory file system of 8 MiB, a request that does not fit is an error, never SIGBUS, and
/// everything that fits keeps working.
#[test]
fn a_full_memory_file_system_is_an_error_and_not_a_signal() {
    let test = this_test!();
    if is_member(test) {
        let job = outlast::join().unwrap();
        job.grow(2 << 20).unwrap();
        job.put(Epoch::ANY, job.me(), 0, &vec![7; 2 << 20]).unwrap();
        let error = job.grow(64 << 20).expect_err("grew beyond the file system");
        assert!(
            matches!(error, Error::OutOfMemory { wanted, .. } if wanted == 64 << 20),
            "{error}"
        );
        println!("refused: {error}");
        assert_eq!(job.segment_len(job.me()), Ok(2 << 20), "nothing changed");
        let mut back = vec![0; 2 << 20];
        job.get(Epoch::ANY, job.me(), 0, &mut back).unwrap();
        assert!(back.iter().all(|&byte| byte == 7));
        job.grow(3 << 20).unwrap();
        job.put(Epoch::ANY, job.me(), (3 << 20) - 8, &[1; 8]).unwrap();
        // Filled to the last page: neither a ring nor another job finds room, and both report it.
        let mut len = 3 << 20;
        while job.grow(len).is_ok() {
            len += 4096;
        }
        let error = job.send(job.me(), Port::User, b"no room for a ring").expect_err("sent");
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        let error = JobMemory::create(4, 0, Some(4096)).err().expect("made a job without room");
        assert!(matches!(error, JoinError::NoRoom { .. }), "{error}");
        job.leave().unwrap();
        return;
    }
    // A private mount, in a private namespace: as root, or where the kernel lets users have one.
    let directory = std::env::temp_dir().join(format!("outlast-full-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let path = directory.display();
    let mount = format!("mount -t tmpfs -o size=8m none {path} && export OUTLAST_SHM_DIR={path}");
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", &format!("{mount}; exec \"$0\" \"$@\"")])
        .arg(reexecution::binary())
        .args(reexecution::arguments(test))
        .env(ROLE, test)
        .output()
        .unwrap();
    std::fs::remove_dir(&directory).unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success() && text.contains("refused: "), "{}: {text}", output.status);
}

/// A process never joins: the others get an error that names it, within their time limit.
#[test]
fn a_member_that_never_joins_is_named() {
    let test = this_test!();
    if !is_member(test) {
        expect_ok(members(test, 2).start().unwrap());
        return;
    }
    if std::env::var("OUTLAST_JOB").unwrap().ends_with(":1") {
        // Alive for longer than the time limit of the other, but not joined.
        std::thread::sleep(Duration::from_secs(2));
        return;
    }
    let error =
        JoinOptions::new().time_limit(Duration::from_millis(500)).join().expect_err("joined alone");
    assert!(matches!(error, JoinError::Timeout { member: SECOND, .. }), "{error}");
}

/// A process that ends before it joins is dead, and the others do not wait for it.
#[test]
fn a_member_that_ends_before_it_joins_is_dead() {
    let test = this_test!();
    if !is_member(test) {
        expect_ok(members(test, 3).start().unwrap());
        return;
    }
    if std::env::var("OUTLAST_JOB").unwrap().ends_with(":1") {
        return;
    }
    let job = outlast::join().unwrap();
    wait_until(&job, PATIENCE, "the death of the process that never joined", || {
        job.view().dead.contains(SECOND)
    });
    job.leave().unwrap();
}

/// Two threads of a member that send to a common receiver take turns. The waiting thread is woken
/// when the other is done, in every interleaving. A missed wakeup would last until the time limit.
#[test]
fn threads_that_send_to_a_common_receiver_wake_each_other() {
    let test = this_test!();
    if !is_member(test) {
        expect_ok(members(test, 2).start().unwrap());
        return;
    }
    let job = JoinOptions::new().time_limit(Duration::from_secs(5)).join().unwrap();
    if job.me() == FIRST {
        let mut ends = 0;
        while ends < 2 && job.epoch() == Epoch(0) {
            let bell = job.bell();
            match job.receive(Port::User) {
                Some(message) => ends += usize::from(message.bytes.is_empty()),
                None => job.park(bell, job.now().after(Duration::from_millis(5))),
            }
        }
        job.leave().unwrap();
        return;
    }
    // In rounds: no thread sends again, and so wakes the other by chance, before both are done.
    let (begin, together) = (Instant::now(), Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    let over = Arc::new(AtomicBool::new(false));
    let send = |len: usize| {
        let (job, together, over, bytes) =
            (job.clone(), together.clone(), over.clone(), vec![7; len]);
        move || {
            for round in 1.. {
                if begin.elapsed() > Duration::from_secs(8) {
                    over.store(true, Ordering::SeqCst);
                }
                together.fetch_add(1, Ordering::SeqCst);
                while together.load(Ordering::SeqCst) < 2 * round && !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
                if over.load(Ordering::SeqCst) {
                    break;
                }
                let sent = Instant::now();
                job.send(FIRST, Port::User, &bytes).unwrap();
                let took = sent.elapsed();
                assert!(took < Duration::from_secs(2), "a send took {took:?}");
            }
            job.send(FIRST, Port::User, &[]).unwrap();
        }
    };
    let threads = [send(64), send(1 << 10)].map(std::thread::spawn);
    for thread in threads {
        thread.join().unwrap();
    }
    job.leave().unwrap();
}

const PAGE: usize = 4096;

fn alone(segment_len: u64) -> Job {
    let job = JoinOptions::new().segment_limit(1 << 20).join().unwrap();
    job.grow(segment_len).unwrap();
    job
}

/// The start of a range of `len` bytes in a buffer whose offset in its page is `offset`: the C
/// library chooses its way to copy by that offset, too.
fn start_in_page(buffer: &[u8], offset: usize, len: usize) -> usize {
    let start = (offset as isize - buffer.as_ptr() as isize).rem_euclid(PAGE as isize) as usize;
    assert!(start + len <= buffer.len());
    start
}

/// Calls `look` again and again while another thread fills the whole range with zeros and ones in
/// turn, from buffers that begin `misaligned_by` bytes behind the start of a page.
fn while_changing(
    job: &Job,
    offset: u64,
    len: usize,
    misaligned_by: usize,
    mut look: impl FnMut(),
) {
    // Removes what other shapes left in the words at the ends.
    job.put(Epoch::ANY, job.me(), 0, &vec![0; 1 << 16]).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let (writer, over) = (job.clone(), is_over.clone());
    let write = move || {
        let buffers = [0, 0xff].map(|byte| vec![byte; len + PAGE]);
        let parts = buffers.each_ref().map(|buffer| {
            let start = start_in_page(buffer, misaligned_by, len);
            &buffer[start..start + len]
        });
        while !over.load(Ordering::Relaxed) {
            for bytes in parts {
                writer.put(Epoch::ANY, writer.me(), offset, bytes).unwrap();
            }
        }
    };
    let activity = job.spawn("writer", Box::new(write)).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(300) {
        look();
    }
    is_over.store(true, Ordering::Relaxed);
    assert!(job.wait_for(&activity, job.now().after(LIMIT)));
}

/// For every offset, length and alignment of the caller's bytes, no word is torn.
#[test]
fn odd_ranges_tear_no_word() {
    let job = alone(1 << 18);
    let is_whole = |word: u64| word == 0 || word == u64::MAX;
    for (offset, len, misaligned_by) in [
        (4, 20, 0),
        (4, 100, 0),
        (0, 68, 0),
        (0, 250, 1),
        (3, 1000, 0),
        (0, 16384, 3),
        (4, 16384, 0),
        (16, 16384, 3),
        (4, 16384, 4093),
    ] {
        let words = (offset as u64).next_multiple_of(8)..(offset as u64 + len as u64) & !7;
        while_changing(&job, offset as u64, len, misaligned_by, || {
            for word in words.clone().step_by(8) {
                let found = job.load(Epoch::ANY, job.me(), word).unwrap();
                assert!(is_whole(found), "{found:x} at {word} by a put of {len} B at {offset}");
            }
        });
    }
    for (offset, len, misaligned_by) in [
        (4, 20, 0),
        (4, 100, 0),
        (0, 68, 0),
        (0, 100, 0),
        (0, 1024, 3),
        (0, 16384, 3),
        (4, 16384, 0),
        (16, 16384, 3),
        (4, 16384, 4093),
    ] {
        let mut buffer = vec![0; len + PAGE];
        while_changing(&job, 0, (offset + len).next_multiple_of(8), 0, || {
            let start = start_in_page(&buffer, misaligned_by, len);
            let buffer = &mut buffer[start..start + len];
            job.get(Epoch::ANY, job.me(), offset as u64, buffer).unwrap();
            for word in buffer[(8 - offset % 8) % 8..].chunks_exact(8) {
                let found = u64::from_ne_bytes(word.try_into().unwrap());
                assert!(is_whole(found), "{found:x} by a get of {len} B at {offset}");
            }
        });
    }
    job.leave().unwrap();
}

/// Puts and gets of every small shape change and return exactly their bytes.
#[test]
fn odd_ranges_are_copied_exactly() {
    let job = alone(4096);
    let me = job.me();
    let mut model = [0xaa; 400];
    job.put(Epoch::ANY, me, 0, &model).unwrap();
    let source: Vec<u8> = (0..400).map(|i| (i * 7 + 1) as u8).collect();
    for offset in 0..20 {
        for len in (0..40).chain(60..150).chain([255, 256, 300]) {
            let bytes = &source[(offset + len) % 13..][..len];
            job.put(Epoch::ANY, me, offset as u64, bytes).unwrap();
            model[offset..offset + len].copy_from_slice(bytes);
            let mut all = [0; 400];
            job.get(Epoch::ANY, me, 0, &mut all).unwrap();
            assert_eq!(all, model, "put of {len} B at {offset}");
            let mut some = [0; 400];
            let some = &mut some[offset % 5..][..len];
            job.get(Epoch::ANY, me, offset as u64, some).unwrap();
            assert_eq!(some, &model[offset..offset + len], "get of {len} B at {offset}");
        }
    }
    job.leave().unwrap();
}

/// A put is ordered before the loads that follow it: if each of two members writes its own word and
/// then loads the other's, at least one of them sees the other's write.
#[test]
fn a_put_is_ordered_before_the_loads_that_follow() {
    const ROUNDS: u64 = 300_000;
    let job = alone(1 << 14);
    let me = job.me();
    let places = [4096, 8192];
    let arrived = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let play = |side: usize| {
        let (job, arrived) = (job.clone(), arrived.clone());
        let meet = move |count: u64| {
            arrived.fetch_add(1, Ordering::SeqCst);
            while arrived.load(Ordering::SeqCst) < count {
                std::hint::spin_loop();
            }
        };
        move || -> Vec<bool> {
            let round = |round: u64| {
                meet(2 * round);
                job.put(Epoch::ANY, me, places[side], &round.to_ne_bytes()).unwrap();
                job.load(Epoch::ANY, me, places[1 - side]).unwrap() < round
            };
            (1..=ROUNDS).map(round).collect()
        }
    };
    let [first, second] =
        [play(0), play(1)].map(std::thread::spawn).map(|thread| thread.join().unwrap());
    let missed = first.iter().zip(&second).filter(|&(&first, &second)| first && second).count();
    assert_eq!(missed, 0, "in so many of {ROUNDS} rounds neither saw the other");
    job.leave().unwrap();
}

/// A member whose background panics ends, even if its standard error is a pipe without a reader. If
/// only the background ended, the others would declare the member dead while it goes on writing.
#[test]
fn a_background_that_panics_ends_its_process() {
    let test = this_test!();
    if !is_member(test) {
        let break_and_run = "import os, sys; r, w = os.pipe(); os.dup2(w, 2); \
                             os.close(r); os.close(w); os.execv(sys.argv[1], sys.argv[1:])";
        let launch = Launch::new(2)
            .program("python3")
            .args(["-c", break_and_run])
            .args([reexecution::binary().to_str().unwrap()])
            .args(reexecution::arguments(test))
            .env(ROLE, test)
            .output(Output::Capture);
        let outcome = expect_ok(launch.start().unwrap());
        assert_eq!(outcome.deaths().count(), 1, "{outcome}");
        return;
    }
    struct Panics;
    impl outlast::Service for Panics {
        fn run(&self, _: &Job) -> Time {
            panic!("as the test wants");
        }
    }
    let job = outlast::join().unwrap();
    if job.me() == SECOND {
        job.serve(Arc::new(Panics)).unwrap();
        std::thread::sleep(LIMIT);
        unreachable!("ended long before");
    }
    wait_until(&job, PATIENCE, "the end of the other", || job.view().dead.contains(SECOND));
    job.leave().unwrap();
}

/// A member leaves while another of its threads is in the middle of a long put: once the others
/// know that it has left, it writes nothing any more, like a killed member.
#[test]
fn a_member_that_has_left_writes_nothing_after_the_notice() {
    const LEN: usize = 32 << 20;
    let test = this_test!();
    if !is_member(test) {
        for _ in 0..3 {
            expect_ok(members(test, 2).start().unwrap());
        }
        return;
    }
    let job = outlast::join().unwrap();
    if job.me() == SECOND {
        wait_until(&job, PATIENCE, "the survivor's segment", || {
            job.segment_len(FIRST) == Ok(LEN as u64)
        });
        let put = |byte: u8| {
            let (job, bytes) = (job.clone(), vec![byte; LEN]);
            move || while job.put(Epoch::ANY, FIRST, 0, &bytes).is_ok() {}
        };
        let activities = [1, 2, 3].map(|byte| job.spawn("put", Box::new(put(byte))).unwrap());
        wait_until(&job, PATIENCE, "the puts", || job.load(Epoch::ANY, FIRST, 0) != Ok(0));
        std::thread::sleep(Duration::from_millis(100));
        job.leave().unwrap();
        while !activities.iter().all(|activity| activity.is_finished()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        return;
    }
    job.grow(LEN as u64).unwrap();
    wait_until(&job, PATIENCE, "the other has left", || job.epoch() == Epoch(1));
    // At places all over the segment.
    let words = || {
        (0..LEN as u64).step_by(4096).map(|at| job.load(Epoch::ANY, FIRST, at)).collect::<Vec<_>>()
    };
    let at_notice = words();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(2));
        assert!(words() == at_notice, "a member that has left wrote after the notice");
    }
    job.leave().unwrap();
}

/// A member dies at each step of publishing: when the survivors know of its death and have nothing
/// more to receive, all have received an equal number of its messages.
#[cfg(feature = "faults")]
#[test]
fn a_published_message_reaches_all_survivors_or_none() {
    use crate::members::{STEP, parameter};
    let test = this_test!();
    if !is_member(test) {
        for step in 1..=40 {
            expect_ok(members(test, 4).env(STEP, step.to_string()).start().unwrap());
        }
        return;
    }
    const LAST: MemberId = MemberId(3);
    let job = outlast::join().unwrap();
    let others: Vec<MemberId> = (0..4).map(MemberId).filter(|&member| member != job.me()).collect();
    if job.me() == LAST {
        let step = parameter(STEP);
        job.inject(outlast::engine::Fault::DieAtStep(step)).unwrap();
        for number in 0u64.. {
            // Two lengths, of which the second is not a multiple of words.
            let len = if number % 2 == 0 { 8 } else { 13 };
            job.try_publish(&others, Port::User, &[number.to_ne_bytes(), [7; 8]].concat()[..len])
                .unwrap();
        }
    }
    wait_until(&job, PATIENCE, "the death", || job.epoch() >= Epoch(1));
    let mut received = 0u64;
    while let Some(message) = job.receive(Port::User) {
        assert_eq!((message.from, &message.bytes[..8]), (LAST, &received.to_ne_bytes()[..]));
        received += 1;
    }
    // Each member sends its count to the first member, on another port.
    if job.me() == FIRST {
        let mut counts = vec![received];
        wait_until(&job, PATIENCE, "the counts of the others", || {
            let next = std::iter::from_fn(|| job.receive(Port::Store));
            counts
                .extend(next.map(|message| u64::from_ne_bytes(message.bytes.try_into().unwrap())));
            counts.len() == 3
        });
        assert!(counts.iter().all(|&count| count == received), "they received {counts:?}");
    } else {
        job.send(FIRST, Port::Store, &received.to_ne_bytes()).unwrap();
        // Leaving is a death, too: the others leave only after the first member is done.
        wait_until(&job, PATIENCE, "the end of the first member", || job.epoch() >= Epoch(2));
    }
    job.leave().unwrap();
}

/// If a receiver has no room no receiver gets the message, and the sender is told.
#[test]
fn a_message_without_room_is_not_published() {
    let test = this_test!();
    if !is_member(test) {
        expect_ok(members(test, 3).start().unwrap());
        return;
    }
    let job = outlast::join().unwrap();
    let others: Vec<MemberId> = (0..3).map(MemberId).filter(|&member| member != job.me()).collect();
    if job.me() == FIRST {
        // The others do not receive yet. Their backgrounds take in messages that are not received,
        // so that their rings are full only while the backgrounds are busy. So this member counts
        // the messages that were accepted, and the others count the messages that arrived.
        let mut sent = 0u64;
        for _ in 0..20_000 {
            if job.try_publish(&others, Port::User, &[3; 1000]).unwrap() {
                sent += 1;
            }
        }
        let long = vec![0; outlast::engine::PUBLISH_LEN_MAX + 1];
        assert!(matches!(
            job.try_publish(&others, Port::User, &long),
            Err(Error::MessageTooLong { .. })
        ));
        others.iter().for_each(|&other| job.send(other, Port::Store, &sent.to_ne_bytes()).unwrap());
        wait_until(&job, PATIENCE, "the others", || job.epoch() >= Epoch(2));
    } else {
        let (mut received, mut sent) = (0, None);
        wait_until(&job, PATIENCE, "all that was sent", || {
            received += std::iter::from_fn(|| job.receive(Port::User)).count() as u64;
            if let Some(message) = job.receive(Port::Store) {
                sent = Some(u64::from_ne_bytes(message.bytes.try_into().unwrap()));
            }
            sent.is_some_and(|sent| sent <= received)
        });
        assert_eq!(sent, Some(received));
    }
    job.leave().unwrap();
}
