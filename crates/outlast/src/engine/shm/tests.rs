//! Tests that need unsafe code (forked children) or the inside of the engine (a process that ends
//! in the middle of a call).

use super::super::{Engine, Epoch, Error, MemberId, Port, Time};
use super::layout::{SLOT_DOMAIN_LEN, SLOTS};
use super::status::{WORD_COUNT, WORD_MAGIC, WORD_SEQUENCE, WORDS_MAX};
use super::{ENDED, JobMemory, ObservedMemory, Shm, find_jobs, sys};
use crate::{Job, JoinOptions};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Runs `body` in a forked child and returns its exit status. The child must not return into the
/// test harness.
fn in_forked_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only runs `body`, which makes no use of threads, and ends without
    // unwinding.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        let status = body();
        // SAFETY: _exit takes no pointers and does not return.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place to write to.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited, child);
    assert!(libc::WIFEXITED(status), "the child was ended by signal {}", libc::WTERMSIG(status));
    libc::WEXITSTATUS(status)
}

fn lone_job() -> Job {
    JoinOptions::new().segment_limit(1 << 20).join().expect("a job of one")
}

struct Idle;

impl crate::Service for Idle {
    fn run(&self, _: &Job) -> Time {
        Time::NEVER
    }
}

#[test]
fn a_forked_child_gets_a_clear_error_from_every_call() {
    let job = lone_job();
    let me = job.me();
    job.grow(4096).unwrap();
    job.put(Epoch::ANY, me, 0, &[5; 64]).unwrap();
    let child = job.clone();
    let status = in_forked_child(move || {
        let mut buffer = [0; 8];
        let calls = [
            child.put(Epoch::ANY, me, 0, &[6; 64]),
            child.get(Epoch::ANY, me, 0, &mut buffer),
            child.load(Epoch::ANY, me, 0).map(drop),
            child.compare_and_swap(Epoch::ANY, me, 0, 0, 1).map(drop),
            child.fetch_add(Epoch::ANY, me, 0, 1).map(drop),
            child.send(me, Port::User, b"from a child"),
            child.ring(me),
            child.grow(8192),
            child.segment_len(me).map(drop),
            child.domain(me).map(drop),
            child.fence(MemberId(0), Time::NEVER),
            child.leave(),
            child.reserve(64).map(drop),
            child.serve(Arc::new(Idle)),
            child.spawn("child", Box::new(|| {})).map(drop),
        ];
        if let Some(wrong) = calls.iter().position(|result| *result != Err(Error::Forked)) {
            return 10 + wrong as i32;
        }
        // Calls that cannot fail return at once and touch no shared memory.
        child.park(child.bell(), Time::NEVER);
        child.park_in_background(child.bell(), Time::NEVER);
        let is_quiet = child.receive(Port::User).is_none()
            && child.epoch() == Epoch(0)
            && child.view().dead.is_empty()
            && child.has_ended();
        // The child drops its last handle, which must not unmap memory that may be in other use by
        // now.
        drop(child);
        if is_quiet { 0 } else { 1 }
    });
    assert_eq!(status, 0, "10 + n: the n-th call gave another result");
    let mut bytes = [0; 64];
    job.get(Epoch::ANY, me, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 64], "the parent is a member as before");
    assert_eq!(job.epoch(), Epoch(0));
    job.leave().unwrap();
}

/// The job of this process that has this word at the beginning of its page, as an observer sees it.
fn observe(mark: u64) -> Option<ObservedMemory> {
    let has_mark = |job: &ObservedMemory| {
        let slots = job.read().expect("read").slots;
        job.processes.contains(&std::process::id())
            && slots[0].page.as_ref().is_some_and(|(_, words)| words.first() == Some(&mark))
    };
    find_jobs().expect("/proc is there").into_iter().find(has_mark)
}

#[test]
fn an_observer_refuses_pages_that_are_damaged_or_not_complete() {
    let job = lone_job();
    let (shm, mark) = (job.status_page().expect("shm has pages"), 0x6f62_7365_7276_6501);
    assert!(observe(mark).is_none());
    shm.write_status(&[mark, 7]);
    let observed = observe(mark).expect("found");
    let page = || observed.read().expect("read").slots[0].page.clone().map(|(_, words)| words);
    let word = |index: usize| shm.tables().status_word(shm.me, index);
    assert_eq!(page(), Some(vec![mark, 7]));
    // The member died while it wrote the page.
    word(WORD_SEQUENCE).fetch_add(1, Ordering::Relaxed);
    assert_eq!(page(), None);
    for index in [WORD_MAGIC, WORD_COUNT] {
        shm.write_status(&[mark, 8]);
        assert_eq!(page(), Some(vec![mark, 8]));
        word(index).store(u64::MAX, Ordering::Relaxed);
        assert_eq!(page(), None);
    }
    shm.write_status(&vec![mark; 10_000]);
    assert_eq!(page(), Some(vec![mark; WORDS_MAX]), "words beyond the page are cut off");
    // Damage in the slot and in the death log leads nowhere.
    let domain_len = shm.tables().mapping.half(SLOTS + SLOT_DOMAIN_LEN);
    domain_len.store(u32::MAX, Ordering::Relaxed);
    assert!(observed.read().expect("read").slots[0].domain.len() < 256);
    job.leave().unwrap();
    let tables = observed.read().expect("read");
    assert_eq!(tables.dead, [(MemberId(0), true)]);
}

#[test]
fn an_observer_never_sees_a_page_that_is_half_written() {
    let job = lone_job();
    let (shm, mark) = (job.status_page().expect("shm has pages"), 0x6f62_7365_7276_6502);
    shm.write_status(&[mark; 64]);
    let observed = observe(mark).expect("found");
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let pages: Vec<Vec<u64>> = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                shm.write_status(&[number; 200]);
                std::thread::sleep(Duration::from_micros(1));
            }
        });
        let looks = (0..2000).filter_map(|_| observed.read().ok()?.slots.remove(0).page);
        let pages = looks.map(|(_, words)| words).collect();
        is_over.store(true, Ordering::Relaxed);
        pages
    });
    assert!(!pages.is_empty(), "no page was whole");
    for words in pages {
        assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
    }
    job.leave().unwrap();
}

#[test]
fn a_forked_child_can_start_a_job_of_its_own() {
    let job = lone_job();
    let status = in_forked_child(|| match JoinOptions::new().segment_limit(1 << 20).join() {
        Ok(own) => own.grow(4096).map_or(2, |()| 0),
        Err(_) => 1,
    });
    assert_eq!(status, 0);
    job.leave().unwrap();
}

#[test]
fn a_single_member_job_leaves_no_threads_files_or_mappings() {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mapped =
        || std::fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:outlast").count();
    // Other tests of this binary run at the same time, so only growth over many rounds counts.
    let before = (threads(), files(), mapped());
    for _ in 0..100 {
        let job = lone_job();
        job.grow(4096).unwrap();
        job.leave().unwrap();
    }
    let until = std::time::Instant::now() + Duration::from_secs(10);
    let is_level =
        || threads() < before.0 + 20 && files() < before.1 + 20 && mapped() < before.2 + 20;
    while !is_level() {
        assert!(
            std::time::Instant::now() < until,
            "{before:?} then {:?}",
            (threads(), files(), mapped())
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Member 0 of a job of two, with its background.
fn first_of_two() -> Arc<Shm> {
    first_of(2, |_| ())
}

/// Member 0 of a job, with a background that works between its waits.
fn first_of(members: usize, work: impl Fn(&Shm) + Send + 'static) -> Arc<Shm> {
    let memory = JobMemory::create(members, 0, Some(1 << 20)).unwrap();
    let shm = Arc::new(Shm::take_place(memory, MemberId(0), 1, &JoinOptions::new()).unwrap());
    let background = shm.clone();
    let body = move || {
        while !background.has_ended() {
            work(&background);
            background.park_in_background(background.bell(), Time::NEVER);
        }
    };
    shm.start_background(Box::new(body)).unwrap();
    shm
}

fn comes_true(condition: impl Fn() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(5);
    while !condition() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    condition()
}

/// A process may die inside `leave`, when its background has ended and it has not entered the log.
/// The others would never learn of it.
#[test]
fn a_background_does_not_end_before_its_member_is_in_the_log() {
    let shm = first_of_two();
    let word = shm.tables().robust_word(shm.me);
    assert_ne!(word.load(Ordering::SeqCst), 0);
    // The first half of `leave`; the second half never comes.
    shm.guard.word().store(ENDED, Ordering::SeqCst);
    shm.tables().ring_bell(shm.me);
    assert!(comes_true(|| word.load(Ordering::SeqCst) == 0), "the background goes on");
    assert!(
        shm.tables().view().left.contains(shm.me),
        "no member will ever know that it has ended"
    );
}

/// A process that declares a death may be stopped, or be a launcher that dies, after it raised the
/// epoch and before it rang any bell.
#[test]
fn a_change_of_the_view_rings_the_own_bell() {
    let shm = first_of_two();
    let parked = shm.clone();
    let thread = std::thread::spawn(move || {
        loop {
            let bell = parked.bell();
            if parked.epoch() != Epoch(0) {
                return;
            }
            parked.park(bell, Time::NEVER);
        }
    });
    std::thread::sleep(Duration::from_millis(50));
    // What `declare_dead` does, up to the bells.
    shm.tables().death(0).store(2, Ordering::SeqCst);
    shm.tables().epoch().store(1, Ordering::SeqCst);
    let woke = comes_true(|| thread.is_finished());
    shm.leave().unwrap();
    assert!(woke, "a thread that waits for a change of the view slept through it");
}

/// A service may have to wait for a stopped member in the middle of its work, and the services of
/// all members may do so at once. Deaths are detected all the same.
#[test]
fn a_background_that_waits_for_a_receiver_sees_deaths() {
    let (silent, dying) = (MemberId(1), MemberId(2));
    // The silent member never takes a message: the ring is full after the first few.
    let shm = first_of(3, move |shm| drop(shm.send(silent, Port::User, &[0; 60_000])));
    for member in [silent, dying] {
        shm.memory.claim(member, "").unwrap();
        shm.memory.joined(member);
    }
    std::thread::sleep(Duration::from_millis(200));
    shm.tables().robust_word(dying).store(sys::OWNER_DIED, Ordering::SeqCst);
    let noticed = comes_true(|| shm.epoch() == Epoch(1));
    shm.leave().unwrap();
    assert!(noticed, "the only watcher waited for another member");
}

/// A core file of a member would hold the memory of all, and its death would not be known before
/// the file is written.
#[test]
fn the_memory_of_the_job_is_in_no_core_file() {
    let shm = first_of_two();
    // Other tests of this process map and leave jobs of their own meanwhile: only the memory of
    // this job is checked.
    let address = std::ptr::from_ref(shm.tables().mapping.word(0)) as usize;
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_here = false;
    let flags = maps.lines().find_map(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        if let Some((begin, end)) = range
            && let (Ok(begin), Ok(end)) =
                (usize::from_str_radix(begin, 16), usize::from_str_radix(end, 16))
        {
            is_here = (begin..end).contains(&address);
        }
        line.strip_prefix("VmFlags:").filter(|_| is_here)
    });
    let flags = flags.expect("the memory is mapped");
    assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}");
    shm.leave().unwrap();
}

/// The list that the kernel reads when a member dies is in memory that it does not take away
/// before.
#[test]
fn the_robust_list_is_in_shared_memory() {
    let shm = first_of_two();
    let thread = shm.tables().robust_word(shm.me).load(Ordering::SeqCst) & 0x3fff_ffff;
    let (mut head, mut len) = (0usize, 0usize);
    // SAFETY: both pointers are valid to write to.
    let status =
        unsafe { libc::syscall(libc::SYS_get_robust_list, thread, &raw mut head, &raw mut len) };
    assert_eq!(status, 0);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_inside = |line: &str| {
        let (first, rest) = line.split_once('-')?;
        let (last, rest) = rest.split_once(' ')?;
        let range = usize::from_str_radix(first, 16).ok()?..usize::from_str_radix(last, 16).ok()?;
        Some(range.contains(&head) && rest.starts_with("rw-s"))
    };
    assert!(maps.lines().any(|line| is_inside(line) == Some(true)), "the head is at {head:x}");
    shm.leave().unwrap();
}

/// A thread leaves while another thread publishes: the message is out before any member knows that
/// its sender has left, or it never comes. Members that know that the sender has left rely on
/// having received all its messages.
#[test]
fn leaving_waits_for_a_message_that_is_being_published() {
    let shm = first_of_two();
    let publishing = shm.mailboxes.publishing.lock().unwrap();
    std::thread::scope(|scope| {
        let leaving = scope.spawn(|| shm.leave());
        std::thread::sleep(Duration::from_millis(100));
        let is_early = shm.has_ended() || !shm.view().dead.is_empty();
        drop(publishing);
        leaving.join().unwrap().unwrap();
        assert!(!is_early, "it has left in the middle of a message");
    });
    assert!(shm.has_ended() && shm.view().left.contains(MemberId(0)));
    assert_eq!(shm.try_publish(&[MemberId(1)], Port::User, b"late"), Err(Error::Ended));
}
