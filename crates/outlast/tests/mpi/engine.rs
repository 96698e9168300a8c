//! The mpi engine under real `mpirun`, real SIGKILL and real SIGSTOP: operations by messages,
//! deaths, stops, nodes, and MPI's own one-sided operations.
//!
//! A member that has seen everything it expects writes a file that says so, because mpirun's exit
//! status means nothing after a failure. A job that is not over at its deadline is killed and fails
//! the test.

use crate::members::{self, FOLDER, folder, is_member};
use crate::ranks::{self, mpirun};
use crate::reexecution::{self, ROLE, this_test};
use outlast::engine::{CompoundStep, Done, Fault, MESSAGE_LEN_MAX, Operation, Port};
use outlast::{Epoch, Error, Job, JoinOptions, MemberId, Time};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::net::{Shutdown, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a job may take. All of them are over in a few seconds on an idle machine.
const DEADLINE: Duration = Duration::from_secs(60);

// ---- Starting jobs.

/// A job that was run to its end.
struct Ran {
    /// The report of each member that finished, `None` for the others.
    finished: Vec<Option<String>>,
    output: String,
}

impl Ran {
    /// Fails unless exactly these members finished.
    fn expect_finished(&self, members: &[usize]) {
        let finished: Vec<usize> =
            (0..self.finished.len()).filter(|&member| self.finished[member].is_some()).collect();
        assert_eq!(finished, members, "members that finished; the job wrote:\n{}", self.output);
    }
}

/// How long an mpirun may outlive the members of its job. Open MPI 5.0.11 may outlive them for ever
/// if a rank has died inside MPI_Init: its main thread then waits for a lock that it holds.
const LINGER: Duration = Duration::from_secs(10);

/// The options of mpirun for jobs that outlast deaths.
const ULFM: &[&str] = &["--with-ft", "ulfm"];

/// Runs the named test on this many members, each of which plays the part. They reach each other by
/// messages, although the members of a node could use shared memory.
fn run(test: &str, members: usize, part: fn(&Member)) -> Ran {
    run_with(test, members, ULFM, || play(part, Duration::from_secs(30)))
}

/// As [`run`], with other options of mpirun, and a part that joins by itself. It does not return in
/// a member.
fn run_with(test: &str, members: usize, options: &[&str], part: impl FnOnce()) -> Ran {
    run_by("messages", test, members, options, part)
}

/// As [`run_with`], with another OUTLAST_MPI_PATH.
fn run_by(path: &str, test: &str, members: usize, options: &[&str], part: impl FnOnce()) -> Ran {
    if is_member(test) {
        be_member(part);
    }
    let _turn = ranks::take_turn();
    let folder = tempfile::tempdir().expect("a folder for the members' reports");
    let log = std::fs::File::create(folder.path().join("log")).expect("a file for the output");
    let executable = reexecution::binary();
    let mut command = Command::new(mpirun());
    command
        .args(options)
        .args(["--oversubscribe", "-n", &members.to_string()])
        .arg(&executable)
        .args(reexecution::arguments(test))
        .env(ROLE, test)
        .env(FOLDER, folder.path())
        .env("OUTLAST_MPI_PATH", path)
        .env_remove("OUTLAST_ENGINE")
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle"))
        .stderr(log)
        .process_group(0);
    let _mpirun_folder = outlast::launch::prepare(&mut command).expect("a folder for mpirun");
    let mut child = command.spawn().expect("mpirun starts; `cargo xtask mpi` installs it");
    let is_over = wait_until_over(&mut child, folder.path(), members);
    let places = if is_over {
        String::new()
    } else {
        outlast::launch::backtraces(&pids(folder.path(), members))
    };
    // Members live in process groups of their own, so each is killed by its number. None may be
    // left in any case.
    // When Open MPI gives a job up in MPI_Init, members may still wait in `join`, which ends at its
    // time limit. Elsewhere a member that is not just exiting is left behind.
    let gives_up = test.contains("a_death_inside_mpi_init");
    let exit = Duration::from_millis(if gives_up { 8000 } else { 20 });
    let left_behind = kill_members(folder.path(), members, &executable, exit);
    let output = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
    if child.try_wait().expect("mpirun is our child").is_none() {
        let group = rustix::process::Pid::from_child(&child);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = child.wait();
    }
    if !is_over {
        panic!("{test} hung: not over after {DEADLINE:?}; it wrote:\n{output}\n{places}");
    }
    assert_eq!(
        left_behind,
        Vec::<usize>::new(),
        "members that outlived mpirun; the job wrote:\n{output}"
    );
    let read = |member: usize| {
        std::fs::read_to_string(folder.path().join(format!("finished.{member}"))).ok()
    };
    Ran { finished: (0..members).map(read).collect(), output }
}

/// Waits until mpirun has ended, or all members have ended and mpirun outlives them.
fn wait_until_over(mpirun: &mut Child, folder: &Path, members: usize) -> bool {
    let deadline = Instant::now() + DEADLINE;
    let mut last_alive = Instant::now();
    while Instant::now() < deadline {
        if mpirun.try_wait().expect("mpirun is our child").is_some() {
            return true;
        }
        let pids = pids(folder, members);
        if pids.len() < members || pids.iter().any(|&pid| is_alive(pid)) {
            last_alive = Instant::now();
        }
        if last_alive.elapsed() > LINGER {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// Whether a process exists and is no zombie.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The processes of the members.
fn pids(folder: &Path, members: usize) -> Vec<u32> {
    let read = |member| std::fs::read_to_string(folder.join(format!("pid.{member}"))).ok();
    (0..members).filter_map(|member| read(member)?.parse().ok()).collect()
}

/// Kills the members that still run after `exit`, and returns them.
fn kill_members(folder: &Path, members: usize, executable: &Path, exit: Duration) -> Vec<usize> {
    let is_running = |member: &usize| {
        let text = std::fs::read_to_string(folder.join(format!("pid.{member}"))).ok()?;
        let pid = rustix::process::Pid::from_raw(text.parse().ok()?)?;
        // The number may belong to another process by now: only processes of this executable are
        // killed.
        let is_ours =
            std::fs::read_link(format!("/proc/{text}/exe")).is_ok_and(|path| path == executable);
        is_ours
            .then(|| rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok())
            .flatten()
    };
    let is_alive = |member: usize| {
        let text =
            std::fs::read_to_string(folder.join(format!("pid.{member}"))).unwrap_or_default();
        std::fs::read_link(format!("/proc/{text}/exe")).is_ok_and(|path| path == executable)
    };
    let until = Instant::now() + exit;
    while Instant::now() < until && (0..members).any(is_alive) {
        std::thread::sleep(Duration::from_millis(5));
    }
    (0..members).filter(|member| is_running(member).is_some()).collect()
}

/// An mpirun without a folder of its own fails if an mpirun with its process number was killed
/// before. Here mpirun has the number of the shell, which leaves the files of a killed mpirun.
#[test]
fn files_of_a_killed_mpirun_do_no_harm() {
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "remains=/tmp/ompi.$$; mkdir -m 700 $remains && echo $remains && \
         : > $remains/pmix.$(hostname).tool && \
         exec \"$0\" -n 1 echo begun",
    ]);
    command.arg(mpirun()).stdin(Stdio::null());
    let folder = outlast::launch::prepare(&mut command).expect("a folder for mpirun");
    let output = command.output().expect("mpirun starts; `cargo xtask mpi` installs it");
    drop(folder);
    let said = String::from_utf8_lossy(&output.stdout);
    let remains = said.lines().next().expect("the shell says what it leaves");
    std::fs::remove_dir_all(remains).expect("what the shell left");
    assert_eq!(said, format!("{remains}\nbegun\n"), "{output:?}");
}

// ---- Being a member.

struct Member {
    job: Job,
    folder: PathBuf,
    barriers: std::cell::Cell<u64>,
}

/// The offsets in each segment.
const BARRIER: u64 = 0;
const COUNTER: u64 = 8;
const WORD: u64 = 16;
const DATA: u64 = 4096;
const SEGMENT_LEN: u64 = 8 << 20;

impl Member {
    fn me(&self) -> usize {
        self.job.me().index()
    }

    fn others(&self) -> impl Iterator<Item = MemberId> {
        let me = self.job.me();
        (0..self.job.members() as u32).map(MemberId).filter(move |&member| member != me)
    }

    /// Reports that this member has seen everything it expects.
    fn finish(&self, report: &str) {
        std::fs::write(self.folder.join(format!("finished.{}", self.me())), report)
            .expect("a report");
    }

    /// Waits until `members` members have come here. Counted at member 0, which no scenario harms.
    fn barrier(&self, members: usize) {
        self.barriers.set(self.barriers.get() + members as u64);
        loop {
            match self.job.fetch_add(Epoch::ANY, MemberId(0), BARRIER, 1) {
                Ok(_) => break,
                // Member 0 has not grown its segment yet.
                Err(Error::OutOfRange { .. }) => self.nap(),
                Err(error) => panic!("barrier: {error}"),
            }
        }
        let limit = self.job.now().after(Duration::from_secs(40));
        loop {
            assert!(self.job.now() < limit, "waited too long: a barrier");
            match self.job.load(Epoch::ANY, MemberId(0), BARRIER) {
                Ok(arrived) if arrived >= self.barriers.get() => return,
                Ok(_) => self.nap(),
                Err(error) => panic!("barrier: {error}"),
            }
        }
    }

    /// The end of a scenario for `members` members: reports that this member has finished, and
    /// leaves. Member 0 leaves last, because the others count at it.
    fn end(&self, members: usize, report: &str) {
        self.finish(report);
        if self.me() == 0 {
            self.barrier(members);
        } else {
            self.job.fetch_add(Epoch::ANY, MemberId(0), BARRIER, 1).expect("member 0 waits");
        }
        self.job.leave().expect("leaving");
    }

    /// Whether no thread of a member runs: a stop takes a moment.
    fn is_stopped(&self, member: MemberId) -> bool {
        let pid = std::fs::read_to_string(self.folder.join(format!("pid.{}", member.0)))
            .expect("its number");
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads").flatten();
        let mut states =
            tasks.map(|task| std::fs::read_to_string(task.path().join("stat")).unwrap_or_default());
        states.all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    }

    fn nap(&self) {
        self.sleep(Duration::from_micros(500));
    }

    /// Sleeps outside of the engine, as a program that computes.
    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }

    /// Waits in the engine until the condition holds, at most 20 s.
    fn wait_until(&self, what: &str, until: impl Fn() -> bool) {
        let limit = self.job.now().after(Duration::from_secs(20));
        loop {
            let bell = self.job.bell();
            if until() {
                return;
            }
            assert!(self.job.now() < limit, "waited too long: {what}");
            self.job.park(bell, limit);
        }
    }

    /// The next message on the user's port.
    fn receive(&self) -> outlast::engine::Message {
        let message = std::cell::RefCell::new(None);
        self.wait_until("a message", || {
            *message.borrow_mut() = self.job.receive(Port::User);
            message.borrow().is_some()
        });
        message.into_inner().expect("just seen")
    }

    fn expect_dead(&self, member: MemberId) {
        self.wait_until("the notice of a death", || self.job.view().dead.contains(member));
        assert!(self.job.epoch().0 >= 1);
        let dead = Err(Error::Dead { member });
        assert_eq!(self.job.put(Epoch::ANY, member, DATA, b"x"), dead);
        assert_eq!(self.job.put(self.job.epoch(), member, DATA, b"x"), dead);
        assert_eq!(self.job.load(Epoch::ANY, member, WORD).map(drop), dead);
        assert_eq!(self.job.send(member, Port::User, b"x"), dead);
        assert_eq!(self.job.ring(member), Ok(()));
    }
}

/// Plays a part as a member that joins with this time limit.
fn play(part: fn(&Member), time_limit: Duration) {
    let job =
        JoinOptions::new().time_limit(time_limit).join().unwrap_or_else(|error| panic!("{error}"));
    job.grow(SEGMENT_LEN).expect("room for the segment");
    part(&Member { job, folder: folder(), barriers: Default::default() });
}

/// Runs a member's part as the whole of this process.
fn be_member(part: impl FnOnce()) -> ! {
    let rank = std::env::var("OMPI_COMM_WORLD_RANK").expect("mpirun sets it");
    let pid = std::process::id().to_string();
    std::fs::write(folder().join(format!("pid.{rank}")), pid).expect("a file");
    // If the test itself is killed, no other process ends a member that hangs.
    std::thread::spawn(|| {
        std::thread::sleep(DEADLINE + Duration::from_secs(5));
        members::die()
    });
    // The test harness would catch a panic and go on; the job must see a death.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::exit(101);
    }));
    part();
    // Without a call of MPI, as a program would.
    std::process::exit(0)
}

// ---- The scenarios.

#[test]
fn operations_reach_every_member() {
    let test = this_test!();
    run(test, 4, operations).expect_finished(&[0, 1, 2, 3]);
}

fn operations(m: &Member) {
    let (job, me) = (&m.job, m.me());
    m.barrier(4);
    assert_eq!((job.members(), job.epoch()), (4, Epoch(0)));
    for other in m.others().chain([job.me()]) {
        assert_eq!(job.segment_len(other), Ok(SEGMENT_LEN));
        assert_eq!(
            job.domain(other),
            job.domain(job.me()),
            "a host is a failure domain by default"
        );
        // Each writer has a range of its own. 300,001 bytes go in several pieces.
        for len in [0, 1, 64, 4096, 300_001] {
            let at = DATA + (me as u64) * (1 << 20);
            let data: Vec<u8> = (0..len).map(|i| (i * 7 + me + other.index()) as u8).collect();
            job.put(Epoch(0), other, at, &data).expect("a put");
            let mut back = vec![0; len];
            job.get(Epoch(0), other, at, &mut back).expect("a get");
            assert!(back == data, "{len} bytes at {other} came back different");
        }
        job.fetch_add(Epoch(0), other, COUNTER, 1 << (8 * me)).expect("a fetch-and-add");
    }
    m.barrier(4);
    assert_eq!(job.load(Epoch(0), job.me(), COUNTER), Ok(0x0101_0101), "each member added once");

    // One of four members wins each compare-and-swap, at every target.
    for other in m.others().chain([job.me()]) {
        let before = job.compare_and_swap(Epoch(0), other, WORD, 0, me as u64 + 1).expect("a swap");
        assert!(before <= 4);
        let now = job.load(Epoch(0), other, WORD).expect("a load");
        assert!(if before == 0 { now == me as u64 + 1 } else { now == before });
    }
    // Operations on a target happen in order, with many in flight.
    let next = MemberId((me as u32 + 1) % 4);
    let mine = DATA + (5 << 20) + me as u64 * 8;
    let data = vec![me as u8; 200_000];
    let mut pending = Vec::new();
    for round in 0..100u64 {
        pending.push(job.start(
            Epoch(0),
            next,
            Operation::Put { offset: mine, data: &round.to_ne_bytes() },
        ));
        pending.push(job.start(Epoch(0), next, Operation::FetchAdd { offset: mine, delta: 1000 }));
        if round % 10 == 0 {
            pending.push(job.start(
                Epoch(0),
                next,
                Operation::Put { offset: DATA + ((me as u64) << 20), data: &data },
            ));
            pending.push(job.start(
                Epoch(0),
                next,
                Operation::Get { offset: DATA + ((me as u64) << 20), len: data.len() },
            ));
        }
    }
    let done: Vec<Done> = pending.into_iter().map(|p| job.wait(p).expect("all complete")).collect();
    let words: Vec<u64> = done
        .iter()
        .filter_map(|d| if let Done::Word(word) = d { Some(*word) } else { None })
        .collect();
    assert_eq!(words, (0..100).collect::<Vec<u64>>(), "each add found the put before it");
    assert!(
        done.iter().all(|d| !matches!(d, Done::Get(bytes) if *bytes != data)),
        "each get found the put before it"
    );

    // Bad input changes nothing and is named.
    let range = job.put(Epoch(0), next, SEGMENT_LEN - 1, b"xy");
    assert_eq!(
        range,
        Err(Error::OutOfRange {
            member: next,
            offset: SEGMENT_LEN - 1,
            len: 2,
            segment_len: SEGMENT_LEN
        })
    );
    let mut huge = vec![0; 100];
    assert!(matches!(
        job.get(Epoch(0), next, u64::MAX - 7, &mut huge),
        Err(Error::OutOfRange { .. })
    ));
    let endless = job.start(Epoch(0), next, Operation::Get { offset: 0, len: 1 << 40 });
    assert!(matches!(job.wait(endless), Err(Error::OutOfRange { .. })));
    assert_eq!(job.load(Epoch(0), next, 3), Err(Error::Unaligned { offset: 3 }));
    let unknown = Error::UnknownMember { member: MemberId(4), members: 4 };
    assert_eq!(job.load(Epoch(0), MemberId(4), 0), Err(unknown.clone()));
    assert_eq!(job.ring(MemberId(4)), Err(unknown));
    assert!(matches!(job.grow(1 << 60), Err(Error::OutOfMemory { .. })));
    assert!(matches!(outlast::join(), Err(outlast::JoinError::AlreadyJoined { .. })));

    // A segment grows without help of other members, and they reach the new part at once.
    m.barrier(4);
    job.grow(SEGMENT_LEN + 4096).expect("room");
    m.barrier(4);
    job.put(Epoch(0), next, SEGMENT_LEN, &[1; 4096]).expect("a put into the new part");

    // Several activities at once.
    let activities: Vec<_> = (0..3)
        .map(|_| {
            let job = job.clone();
            let body = move || {
                for _ in 0..200 {
                    job.clone()
                        .fetch_add(Epoch(0), next, COUNTER, 1 << 32)
                        .expect("a fetch-and-add");
                }
            };
            m.job.spawn("adder", Box::new(body)).expect("an activity")
        })
        .collect();
    for activity in &activities {
        assert!(job.wait_for(activity, job.now().after(Duration::from_secs(20))));
    }
    m.barrier(4);
    // From here on others may have left, which raises the epoch.
    assert_eq!(job.load(Epoch::ANY, job.me(), COUNTER).map(|word| word >> 32), Ok(600));
    m.end(4, "");
    assert_eq!(job.load(Epoch(0), next, 0), Err(Error::Ended));
    assert!(job.has_ended());
}

#[test]
fn large_gets_in_both_directions_complete() {
    let test = this_test!();
    run(test, 2, gets).expect_finished(&[0, 1]);
}

/// Both members ask for more than may be in flight at a time, so that the next request of each is a
/// get that waits for answers of the other.
fn gets(m: &Member) {
    let (job, me) = (&m.job, m.me());
    let len = 2 << 20;
    job.put(Epoch(0), job.me(), DATA, &vec![me as u8 + 1; len]).expect("a put into its own memory");
    m.barrier(2);
    let other = MemberId(1 - me as u32);
    for _ in 0..20 {
        let mut bytes = vec![0; len];
        job.get(Epoch(0), other, DATA, &mut bytes).expect("a get");
        assert!(
            bytes.iter().all(|&byte| usize::from(byte) == other.index() + 1),
            "bytes of {other}"
        );
    }
    m.barrier(2);
    m.end(2, "");
}

#[test]
fn large_puts_in_both_directions_complete() {
    let test = this_test!();
    run(test, 2, puts).expect_finished(&[0, 1]);
}

/// Both members have more puts in flight than the other has room for, and behind each put a word
/// operation that must not overtake it.
fn puts(m: &Member) {
    let (job, me) = (&m.job, m.me());
    let other = MemberId(1 - me as u32);
    m.barrier(2);
    for round in 1..=5u8 {
        let data = vec![round; 3 << 20];
        let puts: Vec<_> = (0..2)
            .map(|_| job.start(Epoch(0), other, Operation::Put { offset: DATA, data: &data }))
            .collect();
        let last = DATA + (3 << 20) - 8;
        let word = job.start(Epoch(0), other, Operation::Load { offset: last });
        for put in puts {
            assert_eq!(job.wait(put), Ok(Done::Put));
        }
        assert_eq!(
            job.wait(word),
            Ok(Done::Word(u64::from_ne_bytes([round; 8]))),
            "it came after both puts"
        );
    }
    m.barrier(2);
    m.end(2, "");
}

#[test]
fn a_ring_comes_after_the_operations_started_before_it() {
    let test = this_test!();
    run(test, 2, rings).expect_finished(&[0, 1]);
}

/// Member 0 rings twice while nothing goes to member 1, which is stopped, and starts a put in
/// between. A member that has heard the first ring and looks too early must hear the second ring.
fn rings(m: &Member) {
    let (job, target) = (&m.job, MemberId(1));
    m.barrier(2);
    if m.me() == 0 {
        job.inject(Fault::Stop(target)).expect("a stop");
        while !m.is_stopped(target) {
            m.nap();
        }
        let large =
            job.start(Epoch(0), target, Operation::Put { offset: DATA, data: &vec![1; 4 << 20] });
        job.ring(target).expect("a ring");
        let word = 1u64.to_ne_bytes();
        let small = job.start(Epoch(0), target, Operation::Put { offset: WORD, data: &word });
        job.ring(target).expect("a ring");
        job.inject(Fault::Resume(target)).expect("a resume");
        assert_eq!((job.wait(large), job.wait(small)), (Ok(Done::Put), Ok(Done::Put)));
    } else {
        let started = job.now();
        m.wait_until("the word", || job.load(Epoch(0), target, WORD) == Ok(1));
        // Without a ring the wait ends at its limit of 20 s.
        let took = job.now().since(started);
        assert!(took < Duration::from_secs(19), "no ring for {took:?}");
    }
    m.barrier(2);
    m.end(2, "");
}

#[test]
fn a_death_that_mpi_does_not_report_is_known_from_the_kernel() {
    let test = this_test!();
    run(test, 3, unheard).expect_finished(&[0, 1]);
}

/// MPI learns of the end of a process from its daemon, here mpirun, the parent of all members: it
/// is stopped meanwhile.
fn unheard(m: &Member) {
    let victim = MemberId(2);
    m.barrier(3);
    let mpirun = rustix::process::getppid().expect("mpirun is the parent");
    if m.me() == 0 {
        rustix::process::kill_process(mpirun, rustix::process::Signal::STOP).expect("a stop");
        m.job.inject(Fault::Kill(victim)).expect("a kill");
    }
    if m.job.me() == victim {
        m.wait_until("its own death", || false);
    }
    m.expect_dead(victim);
    m.barrier(2);
    if m.me() == 0 {
        rustix::process::kill_process(mpirun, rustix::process::Signal::CONT).expect("a resume");
    }
    m.end(2, "");
}

#[test]
fn a_death_counts_on_other_nodes_only_once_its_own_node_knows() {
    let test = this_test!();
    let ran = run_by("groups:2", test, 4, ULFM, || play(deaths_of_nodes, Duration::from_secs(30)));
    ran.expect_finished(&[0, 1, 3]);
}

/// Two nodes of two members. Member 2 dies while the only other member of its node is stopped: MPI
/// tells the other node of the death, but the stopped member might read the memory of the dead as
/// soon as it goes on. Then the whole other node dies, and the report of MPI is enough.
fn deaths_of_nodes(m: &Member) {
    let (job, me) = (&m.job, m.me());
    let (dead, neighbour) = (MemberId(2), MemberId(3));
    m.barrier(4);
    match me {
        0 => {
            job.inject(Fault::Stop(neighbour)).expect("a stop");
            // There is no ring for it. The deadline of the job bounds it.
            while !m.is_stopped(neighbour) {
                m.nap();
            }
            job.inject(Fault::Kill(dead)).expect("a kill");
            // MPI takes some milliseconds. A request to the dead member is neither answered nor
            // refused.
            let pending = job.start(Epoch::ANY, dead, Operation::Load { offset: WORD });
            m.sleep(Duration::from_millis(1500));
            assert_eq!(job.epoch(), Epoch(0), "no member of its node knows of the death");
            job.inject(Fault::Resume(neighbour)).expect("a resume");
            assert_eq!(job.wait(pending), Err(Error::Dead { member: dead }));
            assert!(job.view().dead.contains(dead));
        }
        2 => m.wait_until("its own death", || false),
        _ => m.wait_until("the notice of a death", || job.view().dead.contains(dead)),
    }
    m.barrier(3);
    if me == 3 {
        m.finish("");
        members::die();
    }
    m.wait_until("the notice of the other death", || job.view().dead.contains(neighbour));
    assert_eq!(job.epoch(), Epoch(2));
    // A member that leaves counts as a death: none leaves before the other has checked.
    m.barrier(2);
    m.end(2, "");
}

#[test]
fn messages_arrive_once_and_in_order() {
    let test = this_test!();
    run(test, 4, messages).expect_finished(&[0, 1, 2, 3]);
}

fn messages(m: &Member) {
    let job = &m.job;
    // More than the window of each receiver, so that senders wait for credit. Each member serves
    // while it waits.
    let lens: Vec<usize> =
        (0..400).map(|i| [0, 8, 1000, 70_000, 5][i % 5]).chain([MESSAGE_LEN_MAX]).collect();
    let sender = {
        let (job, lens, others) =
            (job.clone(), lens.clone(), m.others().chain([job.me()]).collect::<Vec<_>>());
        let body = move || {
            for (number, len) in lens.iter().enumerate() {
                for &other in &others {
                    let bytes =
                        [&(number as u64).to_le_bytes()[..], &vec![number as u8; *len]].concat();
                    job.send(other, Port::User, &bytes[..bytes.len().min(MESSAGE_LEN_MAX)])
                        .expect("a send");
                }
            }
        };
        m.job.spawn("sender", Box::new(body)).expect("an activity")
    };
    let mut next = [0usize; 4];
    while next.iter().any(|&count| count < lens.len()) {
        let message = m.receive();
        let number = &mut next[message.from.index()];
        assert_eq!(message.bytes[..8], (*number as u64).to_le_bytes(), "in order");
        assert_eq!(message.bytes.len(), (8 + lens[*number]).min(MESSAGE_LEN_MAX));
        assert!(message.bytes[8..].iter().all(|&byte| byte == *number as u8));
        *number += 1;
    }
    assert!(job.wait_for(&sender, job.now().after(Duration::from_secs(20))));
    assert_eq!(job.receive(Port::User), None);
    assert_eq!(job.receive(Port::Store), None);
    let long = vec![0; MESSAGE_LEN_MAX + 1];
    assert_eq!(
        job.send(MemberId(0), Port::Rma, &long),
        Err(Error::MessageTooLong { len: long.len() })
    );
    m.barrier(4);
    // A ring ends a wait.
    if m.me() == 0 {
        m.sleep(Duration::from_millis(50));
        m.others().for_each(|other| job.ring(other).expect("a ring"));
    } else {
        let (bell, started) = (job.bell(), job.now());
        while job.bell() == bell {
            job.park(bell, started.after(Duration::from_secs(10)));
            assert!(job.now().since(started) < Duration::from_secs(10), "no ring");
        }
    }
    m.end(4, "");
}

#[test]
fn survivors_of_a_kill_go_on() {
    let test = this_test!();
    let ran = run(test, 4, kill);
    ran.expect_finished(&[0, 1, 2]);
    // Not checked, because the machine may be loaded: shown with --nocapture.
    println!("detected after {:?} us", ran.finished.iter().flatten().collect::<Vec<_>>());
}

/// Member 0 kills member 3 while all hammer on all.
fn kill(m: &Member) {
    let (job, victim) = (&m.job, MemberId(3));
    m.barrier(4);
    let killed_at = std::cell::Cell::new(Time(0));
    let started = job.now();
    let mut seen_at = None;
    let mut completed = [0u64; 4];
    let mut longest = Duration::ZERO;
    let data = vec![7; 100_000];
    for round in 0u64.. {
        for other in m.others() {
            let before = job.now();
            let at = job.epoch();
            let result = match round % 4 {
                0 => job.put(at, other, DATA + ((m.me() as u64) << 20), &data),
                1 => job.get(at, other, DATA, &mut vec![0; 100_000]),
                2 => job.fetch_add(at, other, COUNTER, 1).map(drop),
                _ => job.put(Epoch::ANY, other, DATA + ((m.me() as u64) << 20), &data[..64]),
            };
            longest = longest.max(job.now().since(before));
            match result {
                Ok(()) => completed[other.index()] += 1,
                Err(Error::Dead { member }) => assert_eq!((member, other), (victim, victim)),
                Err(Error::Stale { now }) => assert!(now == Epoch(1) && at == Epoch(0)),
                Err(error) => panic!("an operation on {other}: {error}"),
            }
        }
        if m.me() == 0
            && killed_at.get() == Time(0)
            && job.now().since(started) > Duration::from_millis(100)
        {
            killed_at.set(job.now());
            job.inject(Fault::Kill(victim)).expect("a kill");
        }
        if seen_at.is_none() && job.epoch() == Epoch(1) {
            seen_at = Some(job.now());
        }
        if seen_at.is_some_and(|seen| job.now().since(seen) > Duration::from_millis(200)) {
            break;
        }
        assert!(job.now().since(started) < Duration::from_secs(20), "the notice did not come");
    }
    m.expect_dead(victim);
    assert!(job.view().left.is_empty());
    m.barrier(3);
    assert!(completed[..3].iter().sum::<u64>() > 0);
    // An operation of the old view is refused by its own caller.
    assert_eq!(
        job.put(Epoch(0), MemberId((m.me() as u32 + 1) % 3), DATA, b"x"),
        Err(Error::Stale { now: Epoch(1) })
    );
    let next = MemberId((m.me() as u32 + 1) % 3);
    job.put(Epoch(1), next, DATA, b"x").expect("the others go on");
    job.fetch_add(Epoch(1), MemberId(0), WORD, killed_at.get().0).expect("the time of the kill");
    m.barrier(3);
    let killed = job.load(Epoch::ANY, MemberId(0), WORD).expect("member 0 lives");
    let detection_us = (seen_at.expect("seen").0.saturating_sub(killed)) / 1000;
    println!(
        "{}: detected after {detection_us} us, longest call {longest:?}, completed {completed:?}",
        job.me()
    );
    m.end(3, &detection_us.to_string());
}

#[test]
fn a_connection_that_breaks_ends_no_sender() {
    let test = this_test!();
    let options = ["btl=self,tcp", "btl_tcp_if_include=lo", "btl_tcp_sndbuf=4096"];
    let options: Vec<&str> = options.iter().flat_map(|set| set.split('=')).collect();
    let options: Vec<&str> = ULFM
        .iter()
        .copied()
        .chain(options.chunks(2).flat_map(|set| ["--mca", set[0], set[1]]))
        .collect();
    let part = || play(lose_connection, Duration::from_secs(30));
    run_with(test, 3, &options, part).expect_finished(&[0, 1]);
}

/// Member 1 sends more than its connection to member 2 takes, which is stopped. Then the connection
/// breaks: MPI calls member 2 failed, although it lives. Member 1 goes on with its calls.
fn lose_connection(m: &Member) {
    let (job, lost) = (&m.job, MemberId(2));
    m.barrier(3);
    if job.me() == lost {
        m.wait_until("its own death", || false);
    }
    if m.me() == 1 {
        job.inject(Fault::Stop(lost)).expect("a stop");
        while !m.is_stopped(lost) {
            m.nap();
        }
        let data = vec![1; 1 << 20];
        let put = || job.start(Epoch::ANY, lost, Operation::Put { offset: DATA, data: &data });
        let mut pending = vec![put(), put()];
        let move_data = || assert!(job.receive(Port::User).is_none());
        // The connection takes what it has room for.
        let is_full_at = job.now().after(Duration::from_millis(100));
        while job.now() < is_full_at {
            move_data();
            m.nap();
        }
        break_connection(&std::fs::read_to_string(m.folder.join("pid.2")).expect("its number"));
        for _ in 0..400 {
            pending.push(job.start(Epoch::ANY, lost, Operation::Load { offset: WORD }));
            move_data();
            m.nap();
        }
        // Open MPI may have ended the process that it calls failed.
        let _ = job.inject(Fault::Kill(lost));
        m.wait_until("the notice of the death", || job.view().dead.contains(lost));
        let results = pending.into_iter().map(|pending| job.wait(pending));
        results.for_each(|result| assert_eq!(result, Err(Error::Dead { member: lost })));
    }
    m.wait_until("the notice of a death", || job.epoch() > Epoch(0));
    if !job.view().is_living(MemberId(1)) {
        // It is stopped, and no other member ends it.
        let _ = job.inject(Fault::Kill(lost));
        panic!("the sender has died");
    }
    m.expect_dead(lost);
    m.end(2, "");
}

/// Ends the TCP connections of this process to another process.
fn break_connection(pid: &str) {
    let tcp = std::fs::read_to_string("/proc/self/net/tcp").expect("the sockets");
    let sockets: Vec<Vec<&str>> =
        tcp.lines().skip(1).map(|line| line.split_ascii_whitespace().collect()).collect();
    // By process: the numbers of its descriptors, with the addresses of their two ends.
    let connections = |process: &str| {
        let open = std::fs::read_dir(format!("/proc/{process}/fd")).expect("its files").flatten();
        let mut found = Vec::new();
        for file in open {
            let name = std::fs::read_link(file.path()).unwrap_or_default();
            let name = name.to_string_lossy().into_owned();
            let inode = name.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
            let socket = sockets.iter().find(|socket| Some(socket[9]) == inode);
            let number = file.file_name().to_string_lossy().parse::<i32>();
            found.extend(socket.zip(number.ok()).map(|(of, number)| (number, of[1], of[2])));
        }
        found
    };
    let theirs = connections(pid);
    let this = pidfd_open(getpid(), PidfdFlags::empty()).expect("this process");
    let mut broken = 0;
    for (number, from, to) in connections("self") {
        if theirs.iter().any(|&(_, their_from, their_to)| (their_from, their_to) == (to, from)) {
            let socket = pidfd_getfd(&this, number, PidfdGetfdFlags::empty()).expect("a socket");
            TcpStream::from(socket).shutdown(Shutdown::Both).expect("a connection");
            broken += 1;
        }
    }
    assert!(broken > 0, "no connection to process {pid} in:\n{tcp}");
}

#[test]
fn a_death_at_any_step_hangs_no_survivor() {
    let test = this_test!();
    run(test, 4, die).expect_finished(&[0, 1, 2]);
}

/// Member 3 dies at a step of its own choice, in the middle of moving data.
fn die(m: &Member) {
    let (job, victim) = (&m.job, MemberId(3));
    m.barrier(4);
    if job.me() == victim {
        let step = u64::from(std::process::id() % 97) + 20;
        job.inject(Fault::DieAtStep(step)).expect("a plan");
    }
    let data = vec![3; 300_000];
    while job.epoch() == Epoch(0) {
        for other in m.others() {
            match job.put(Epoch::ANY, other, DATA + ((m.me() as u64) << 20), &data) {
                Ok(()) | Err(Error::Dead { .. }) => {}
                Err(error) => panic!("a put to {other}: {error}"),
            }
        }
    }
    assert_ne!(job.me(), victim);
    m.expect_dead(victim);
    m.end(3, "");
}

#[test]
fn a_stopped_member_is_named_in_time_and_is_not_dead() {
    let test = this_test!();
    run_with(test, 4, ULFM, || play(stop, Duration::from_secs(3))).expect_finished(&[0, 1, 2, 3]);
}

/// Member 0 stops member 1, calls it, resumes it, stops it again and fences member 2, which is
/// stopped as well.
fn stop(m: &Member) {
    let (job, stopped) = (&m.job, MemberId(1));
    let limit = job.time_limit();
    m.barrier(4);
    if m.me() == 0 {
        job.inject(Fault::Stop(stopped)).expect("a stop");
        m.sleep(Duration::from_millis(50));
        let started = job.now();
        assert_eq!(
            job.put(Epoch(0), stopped, DATA, b"late"),
            Err(Error::Timeout { member: stopped, limit })
        );
        let took = job.now().since(started);
        assert!(took >= limit && took < limit + Duration::from_secs(1), "{took:?}");
        assert_eq!(job.segment_len(stopped), Err(Error::Timeout { member: stopped, limit }));
        // Messages are accepted until the window is full. Then the sender is told.
        let message = vec![1; MESSAGE_LEN_MAX];
        let refused = (0..10).find_map(|_| job.send(stopped, Port::Store, &message).err());
        assert_eq!(refused, Some(Error::Timeout { member: stopped, limit }));
        job.put(Epoch(0), MemberId(2), DATA, b"fine").expect("the others go on");
        assert_eq!(job.epoch(), Epoch(0), "stopped is not dead");
        job.inject(Fault::Resume(stopped)).expect("a resume");
        job.put(Epoch(0), stopped, DATA, b"here").expect("it answers again");
    }
    m.barrier(4);
    if job.me() == stopped {
        let mut taken = 0;
        m.wait_until("the messages", || {
            while let Some(message) = job.receive(Port::Store) {
                assert_eq!(message.bytes.len(), MESSAGE_LEN_MAX);
            }
            job.load(Epoch(0), MemberId(0), WORD) == Ok(1)
        });
        while job.receive(Port::Store).is_some() {
            taken += 1;
        }
        assert_eq!(taken, 0);
    }
    if m.me() == 0 {
        m.sleep(Duration::from_millis(100));
        job.fetch_add(Epoch(0), MemberId(0), WORD, 1).expect("own memory");
    }
    m.barrier(4);
    m.finish("");
    if m.me() == 0 {
        m.sleep(Duration::from_millis(50));
        // Fencing proves the death of a member that does not run.
        job.inject(Fault::Stop(MemberId(2))).expect("a stop");
        let until = job.now().after(Duration::from_secs(5));
        job.fence(MemberId(2), until).expect("the proof");
        m.expect_dead(MemberId(2));
        job.fence(MemberId(2), until).expect("already dead");
    } else {
        m.expect_dead(MemberId(2));
    }
    m.end(3, "");
}

#[test]
fn an_operation_of_an_older_view_is_refused_by_its_target() {
    let test = this_test!();
    run(test, 4, stale).expect_finished(&[0, 1, 2]);
}

/// Member 2 stops between starting a put at epoch 0 and handing it to MPI. Meanwhile member 3 dies
/// and the target, member 1, learns of it. The put must be refused there.
fn stale(m: &Member) {
    let (job, word) = (&m.job, 0x1234_5678u64);
    m.barrier(4);
    match m.me() {
        0 => {
            assert_eq!(m.receive().from, MemberId(2));
            m.sleep(Duration::from_millis(300));
            job.inject(Fault::Kill(MemberId(3))).expect("a kill");
            assert_eq!(m.receive().from, MemberId(1));
            m.expect_dead(MemberId(3));
            job.inject(Fault::Resume(MemberId(2))).expect("a resume");
        }
        1 => {
            m.expect_dead(MemberId(3));
            // A target with an older view adopts the caller's view, here as soon as it goes on.
            let adopted =
                job.start(Epoch(1), MemberId(2), Operation::FetchAdd { offset: WORD, delta: 5 });
            job.send(MemberId(0), Port::User, b"seen").expect("a message");
            assert_eq!(job.wait(adopted), Ok(Done::Word(0)));
        }
        2 => {
            job.send(MemberId(0), Port::User, b"stopping").expect("a message");
            // The first step is in the call, the second between the check of the epoch and MPI.
            job.inject(Fault::StopAtStep(2)).expect("a plan");
            let result = job.put(Epoch(0), MemberId(1), WORD, &word.to_ne_bytes());
            assert_eq!(result, Err(Error::Stale { now: Epoch(1) }));
            assert!(job.view().dead.contains(MemberId(3)), "the refusal teaches");
        }
        _ => loop {
            m.nap();
        },
    }
    m.barrier(3);
    if m.me() == 1 {
        assert_eq!(job.load(Epoch::ANY, job.me(), WORD), Ok(0), "the refused put changed nothing");
    }
    m.end(3, "");
}

#[test]
fn an_exit_without_leaving_is_a_death() {
    let test = this_test!();
    run(test, 4, exit).expect_finished(&[0, 3]);
}

fn exit(m: &Member) {
    m.barrier(4);
    match m.me() {
        1 => std::process::exit(0),
        2 => std::process::exit(7),
        _ => {}
    }
    m.expect_dead(MemberId(1));
    m.expect_dead(MemberId(2));
    assert!(m.job.view().left.is_empty());
    m.barrier(2);
    // Longer than mpirun waits before it ends a job after an exit with a status other than 0.
    m.sleep(Duration::from_secs(3));
    m.end(2, "");
}

#[test]
fn a_member_may_leave_early() {
    let test = this_test!();
    run(test, 4, leave).expect_finished(&[0, 1, 2, 3]);
}

fn leave(m: &Member) {
    m.barrier(4);
    if m.me() == 1 {
        m.finish("");
        m.job.leave().expect("leaving");
        assert_eq!(m.job.leave(), Err(Error::Ended));
        // A status other than 0 after leaving does no harm to the others either.
        std::process::exit(3);
    }
    m.expect_dead(MemberId(1));
    assert!(m.job.view().left.contains(MemberId(1)));
    m.barrier(3);
    m.sleep(Duration::from_secs(3));
    assert_eq!(m.job.epoch(), Epoch(1));
    m.barrier(3);
    m.end(3, "");
}

// ---- MPI's own one-sided operations, `OUTLAST_MPI_PATH=rma`: an experiment, but no member may
// hang in it.

/// As [`run`], by MPI's one-sided operations. The watchdog's bound is 5 s.
fn run_one_sided(test: &str, members: usize, part: fn(&Member)) -> Ran {
    run_by("rma", test, members, ULFM, || play(part, Duration::from_secs(30)))
}

impl Ran {
    /// Whether the watchdog ended a member, by its own report.
    fn was_ended(&self, member: u32) -> bool {
        self.output
            .contains(&format!("outlast: {} has been inside a call of MPI", MemberId(member)))
    }
}

#[test]
fn operations_reach_every_member_one_sided() {
    let test = this_test!();
    run_one_sided(test, 3, operations_one_sided).expect_finished(&[0, 1, 2]);
}

/// As [`operations`], with fewer operations: each takes several answers of its target.
fn operations_one_sided(m: &Member) {
    let (job, me) = (&m.job, m.me());
    m.barrier(3);
    for other in m.others().chain([job.me()]) {
        for len in [0, 1, 64, 300_001] {
            let at = DATA + (me as u64) * (1 << 20);
            let data: Vec<u8> = (0..len).map(|i| (i * 7 + me + other.index()) as u8).collect();
            job.put(Epoch(0), other, at, &data).expect("a put");
            let mut back = vec![0; len];
            job.get(Epoch(0), other, at, &mut back).expect("a get");
            assert!(back == data, "{len} bytes at {other} came back different");
        }
        // One of three members wins each compare-and-swap.
        let before = job.compare_and_swap(Epoch(0), other, WORD, 0, me as u64 + 1).expect("a swap");
        let now = job.load(Epoch(0), other, WORD).expect("a load");
        assert_eq!(now, if before == 0 { me as u64 + 1 } else { before });
    }
    // Operations on a target happen in order, with many in flight.
    let next = MemberId((me as u32 + 1) % 3);
    let mine = DATA + (5 << 20) + me as u64 * 8;
    let pairs = (0..10u64).flat_map(|round| {
        let put =
            job.start(Epoch(0), next, Operation::Put { offset: mine, data: &round.to_ne_bytes() });
        [put, job.start(Epoch(0), next, Operation::FetchAdd { offset: mine, delta: 1000 })]
    });
    let done: Vec<Done> =
        pairs.collect::<Vec<_>>().into_iter().map(|p| job.wait(p).expect("all complete")).collect();
    let words = (0..10).flat_map(|round| [Done::Put, Done::Word(round)]).collect::<Vec<_>>();
    assert_eq!(done, words, "each add found the put before it");

    // Bad input changes nothing and is named.
    let (offset, segment_len) = (SEGMENT_LEN - 1, SEGMENT_LEN);
    let outside = Error::OutOfRange { member: next, offset, len: 2, segment_len };
    assert_eq!(job.put(Epoch(0), next, offset, b"xy"), Err(outside));
    assert!(matches!(
        job.get(Epoch(0), next, u64::MAX - 7, &mut [0; 100]),
        Err(Error::OutOfRange { .. })
    ));
    assert_eq!(job.load(Epoch(0), next, 3), Err(Error::Unaligned { offset: 3 }));
    let unknown = Error::UnknownMember { member: MemberId(3), members: 3 };
    assert_eq!(job.load(Epoch(0), MemberId(3), 0), Err(unknown));

    // A segment grows without help of other members, and several activities of all members add to a
    // common word.
    m.barrier(3);
    job.grow(SEGMENT_LEN + 4096).expect("room");
    m.barrier(3);
    let add_ten = |job: &Job| {
        for _ in 0..10 {
            job.fetch_add(Epoch(0), MemberId(0), SEGMENT_LEN, 1).expect("an add");
        }
    };
    let other_job = job.clone();
    let body = move || add_ten(&other_job);
    let activity = job.spawn("adder", Box::new(body)).expect("an activity");
    add_ten(job);
    assert!(job.wait_for(&activity, job.now().after(Duration::from_secs(20))));
    m.barrier(3);
    assert_eq!(
        job.load(Epoch::ANY, MemberId(0), SEGMENT_LEN),
        Ok(60),
        "all of three members added"
    );
    m.end(3, "");
    assert_eq!(job.load(Epoch(0), next, 0), Err(Error::Ended));
}

#[test]
fn a_death_hangs_no_survivor_one_sided() {
    let ran = run_one_sided(this_test!(), 3, hammer_until_a_death);
    assert_eq!(ran.finished[2], None, "member 2 was killed; the job wrote:\n{}", ran.output);
    for member in 0..2 {
        let finished = &ran.finished[member as usize];
        println!("member {member}: {}", finished.as_deref().unwrap_or("ended by the watchdog"));
        assert!(
            finished.is_some() || ran.was_ended(member),
            "member {member} neither went on nor was it ended; the job wrote:\n{}",
            ran.output
        );
    }
}

/// Member 2 is killed while all hammer on all; the others go on for a while, if they can.
fn hammer_until_a_death(m: &Member) {
    let job = &m.job;
    m.barrier(3);
    if m.me() == 2 {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            members::die()
        });
    }
    let started = job.now();
    let (mut seen_at, mut completed) = (None, 0);
    for round in 0u64.. {
        for other in m.others().chain([job.me()]) {
            let at = job.epoch();
            let place = DATA + ((m.me() as u64) << 20);
            let result = match round % 4 {
                0 => job.put(at, other, place, &[7; 1000]),
                1 => job.get(at, other, place, &mut [0; 1000]),
                2 => job.fetch_add(at, other, COUNTER, 1).map(drop),
                _ => job.compare_and_swap(Epoch::ANY, other, WORD, round, round + 1).map(drop),
            };
            match result {
                Ok(()) => completed += u64::from(seen_at.is_some()),
                Err(Error::Dead { .. } | Error::Stale { .. }) => {}
                Err(error) => panic!("an operation on {other}: {error}"),
            }
        }
        if seen_at.is_none() && job.epoch() > Epoch(0) {
            seen_at = Some(job.now());
        }
        if seen_at.is_some_and(|seen| job.now().since(seen) > Duration::from_millis(500)) {
            break;
        }
        assert!(job.now().since(started) < Duration::from_secs(20), "the notice did not come");
    }
    m.finish(&format!("went on with {completed} operations"));
    job.leave().expect("leaving");
}

#[test]
fn a_stuck_call_is_the_death_of_its_caller() {
    let ran = run_one_sided(this_test!(), 3, swap_on_one_that_is_stopped);
    ran.expect_finished(&[1]);
    assert!(
        ran.was_ended(0) && ran.was_ended(2),
        "the watchdog says so; the job wrote:\n{}",
        ran.output
    );
}

/// Member 0 makes a compare-and-swap at member 1, which is stopped, and is ended by its watchdog.
/// Member 2 then finds the lock that member 0 has left at member 1, which goes on: a cascade.
fn swap_on_one_that_is_stopped(m: &Member) {
    let (job, stopped) = (&m.job, MemberId(1));
    m.barrier(3);
    job.compare_and_swap(Epoch::ANY, stopped, WORD, 0, 1).expect("all live");
    // Not a barrier: a stopped member must not be inside of a barrier at member 0, which dies.
    if m.me() != 0 {
        job.send(MemberId(0), Port::User, b"ready").expect("all live");
    }
    let swap = || job.compare_and_swap(Epoch::ANY, stopped, WORD, 1, 2);
    match m.me() {
        0 => {
            m.receive();
            m.receive();
            job.inject(Fault::Stop(stopped)).expect("a stop");
            while !m.is_stopped(stopped) {
                m.nap();
            }
            panic!("a compare-and-swap at a stopped member came back: {:?}", swap());
        }
        1 => {
            m.wait_until("the second death", || job.epoch() == Epoch(2));
            assert_eq!(job.view().dead.iter().collect::<Vec<_>>(), [MemberId(0), MemberId(2)]);
            m.finish("");
            job.leave().expect("leaving");
        }
        _ => {
            m.wait_until("the first death", || job.view().dead.contains(MemberId(0)));
            job.inject(Fault::Resume(stopped)).expect("a resume");
            panic!(
                "a compare-and-swap at a member locked by a dead member came back: {:?}",
                swap()
            );
        }
    }
}

/// A rank that dies before all ranks are through MPI_Init leaves the others inside MPI_Init, which
/// nothing interrupts, or Open MPI ends the job, with a message or without. Joining ends within its
/// time limit all the same, and so does a second attempt; and the processes can exit. If the rank
/// dies later than that, the others join, or their joining ends with an error in time, too.
#[test]
fn a_death_inside_mpi_init_ends_joining_within_the_time_limit() {
    let test = this_test!();
    for _ in 0..3 {
        let ran = run_with(test, 4, ULFM, || {
            let rank = std::env::var("OMPI_COMM_WORLD_RANK").expect("mpirun sets it");
            let (limit, slack) = (Duration::from_secs(4), Duration::from_secs(2));
            let join = || {
                let began = Instant::now();
                let result = JoinOptions::new().time_limit(limit).join();
                assert!(began.elapsed() < limit + slack, "{:?}", began.elapsed());
                result
            };
            if rank == "3" {
                // The moment differs from run to run.
                let moment = Duration::from_millis(u64::from(std::process::id() % 30));
                std::thread::spawn(move || {
                    std::thread::sleep(moment);
                    members::die()
                });
                let _ = join();
                return std::thread::sleep(DEADLINE);
            }
            let report = match join() {
                Ok(_) => "joined".into(),
                Err(error) => {
                    let again = join().expect_err("a rank is still dead");
                    format!("{error}\n{again}")
                }
            };
            std::fs::write(folder().join(format!("finished.{rank}")), report).expect("a report");
        });
        // Open MPI ends all ranks or none.
        if ran.finished.iter().any(Option::is_some) {
            ran.expect_finished(&[0, 1, 2]);
        }
        assert!(!ran.output.contains("panicked"), "{}", ran.output);
    }
}

#[test]
fn ranks_of_a_single_host_listen_on_no_address() {
    let test = this_test!();
    run(test, 3, listen).expect_finished(&[0, 1, 2]);
}

fn listen(m: &Member) {
    // Every member has reached member 0, so that all transports are in use.
    m.barrier(3);
    let links = std::fs::read_dir("/proc/self/fd").expect("own descriptors").flatten();
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    let sockets: Vec<String> =
        targets.map(|target| target.to_string_lossy().into_owned()).collect();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (address, is_listening) = (fields[1], fields[3] == "0A");
            let is_own = sockets.contains(&format!("socket:[{}]", fields[9]));
            assert!(!(is_own && is_listening), "listens on {address} of {table}");
        }
    }
    m.end(3, "");
}

/// The members of two other nodes are stopped, so that the node of members 0 and 1 has no lease.
/// What member 1 sends to member 0 is received when the job goes on, and not before.
#[test]
fn without_a_lease_no_message_is_received() {
    let test = this_test!();
    let options = [ULFM, &["-x", "OUTLAST_MPI_WITNESS=votes"]].concat();
    let ran = run_by("groups:2", test, 5, &options, || {
        play(receive_without_lease, Duration::from_secs(30))
    });
    ran.expect_finished(&[0, 1, 2, 3, 4]);
}

fn receive_without_lease(m: &Member) {
    let job = &m.job;
    m.barrier(5);
    let others = [2, 3, 4].map(MemberId);
    match m.me() {
        0 => {
            let inject = |fault: fn(MemberId) -> Fault| {
                others.iter().for_each(|&other| job.inject(fault(other)).expect("a fault"));
            };
            inject(Fault::Stop);
            // Longer than a lease.
            m.sleep(Duration::from_secs(3));
            job.send(MemberId(1), Port::User, b"sent too").expect("a local member");
            let is_resumed = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_secs(2));
                    is_resumed.store(true, std::sync::atomic::Ordering::SeqCst);
                    inject(Fault::Resume);
                });
                let message = m.receive();
                assert_eq!(message.bytes, b"sent");
                assert!(is_resumed.load(std::sync::atomic::Ordering::SeqCst));
            });
        }
        1 => {
            while !others.iter().all(|&other| m.is_stopped(other)) {
                m.nap();
            }
            m.sleep(Duration::from_millis(3500));
            job.send(MemberId(0), Port::User, b"sent").expect("a local member");
            assert_eq!(m.receive().bytes, b"sent too");
        }
        _ => {}
    }
    m.barrier(5);
    m.end(5, "");
}

/// A node does not answer when a member of another node leaves: the leaver stays until the two
/// remaining nodes have declared the silent node dead. Otherwise the last member would be a third
/// of the votes, and end itself.
#[test]
fn a_member_leaves_only_when_no_node_is_in_doubt() {
    let test = this_test!();
    let options = [ULFM, &["-x", "OUTLAST_MPI_WITNESS=votes"]].concat();
    let ran = run_with(test, 3, &options, || play(leave_in_doubt, Duration::from_secs(9)));
    ran.expect_finished(&[0, 1]);
}

fn leave_in_doubt(m: &Member) {
    let (job, silent) = (&m.job, MemberId(2));
    m.barrier(3);
    match m.me() {
        0 => {
            job.inject(Fault::Stop(silent)).expect("a stop");
            m.wait_until("a member that left", || job.view().left.contains(MemberId(1)));
            assert!(job.view().dead.contains(silent));
            // Longer than the time limit.
            let until = job.now().after(Duration::from_secs(10));
            while job.now() < until {
                job.fetch_add(Epoch::ANY, job.me(), COUNTER, 1).expect("its own memory");
                m.sleep(Duration::from_millis(100));
            }
            job.inject(Fault::Kill(silent)).expect("a kill");
            m.finish("");
        }
        1 => {
            while !m.is_stopped(silent) {
                m.nap();
            }
            // Longer than the period in which members ask each other.
            m.sleep(Duration::from_millis(1500));
            m.finish("");
        }
        _ => m.sleep(DEADLINE),
    }
    job.leave().expect("leaving");
}

/// A member without local members runs another program: its process lives on, and the member is
/// dead all the same.
#[test]
fn a_member_that_calls_exec_is_dead_to_the_other_nodes() {
    let test = this_test!();
    run(test, 3, exec).expect_finished(&[0, 1]);
}

fn exec(m: &Member) {
    m.barrier(3);
    if m.me() == 2 {
        let error = Command::new("sleep").arg("8").exec();
        panic!("sleep does not start: {error}");
    }
    m.expect_dead(MemberId(2));
    m.end(2, "");
}

#[test]
fn a_job_without_ulfm_is_told_the_option_of_mpirun() {
    let test = this_test!();
    let ran = run_with(test, 1, &[], || {
        let error = outlast::join().expect_err("ULFM is not in force");
        std::fs::write(folder().join("finished.0"), error.to_string()).expect("a report");
    });
    ran.expect_finished(&[0]);
    assert!(ran.finished[0].as_deref().unwrap_or_default().contains("mpirun --with-ft ulfm"));
}

#[test]
fn stopped_members_end_no_other_member() {
    let options = [ULFM, &["-x", "OUTLAST_MPI_WITNESS=votes"]].concat();
    let part = || play(outlive, Duration::from_secs(9));
    run_by("groups:3", this_test!(), 6, &options, part).expect_finished(&[0, 3, 4, 5]);
}

/// Two nodes of three members, where a majority is needed. Two members of the first node die, and
/// two of the second are stopped for longer than the time limit: a single member answers member 0,
/// which is enough.
fn outlive(m: &Member) {
    let (job, dead, stopped) = (&m.job, [1, 2].map(MemberId), [4, 5].map(MemberId));
    m.barrier(6);
    if dead.contains(&job.me()) {
        m.wait_until("its own death", || false);
    }
    if m.me() == 0 {
        stopped.iter().for_each(|&member| job.inject(Fault::Stop(member)).expect("a stop"));
        dead.iter().for_each(|&member| job.inject(Fault::Kill(member)).expect("a kill"));
        let until = job.now().after(job.time_limit() + Duration::from_secs(4));
        while job.now() < until {
            job.load(Epoch::ANY, MemberId(0), WORD).expect("own memory");
            m.sleep(Duration::from_millis(10));
        }
        stopped.iter().for_each(|&member| job.inject(Fault::Resume(member)).expect("a resume"));
    }
    m.wait_until("the notice of both deaths", || job.view().dead.len() == 2);
    m.barrier(4);
    m.end(4, "");
}

/// A member is stopped in the middle of a request of a member of another node, which dies. The
/// other member of its node maps the memory, knows of the death, and can tell that the memory may
/// still change.
#[test]
fn a_local_member_can_tell_that_a_dead_member_is_still_being_served() {
    let test = this_test!();
    run_by("groups:2", test, 4, ULFM, || play(served_late, Duration::from_secs(30)))
        .expect_finished(&[0, 1, 3]);
}

fn served_late(m: &Member) {
    let (job, server, asker) = (&m.job, MemberId(1), MemberId(2));
    let wait_for = |what: &str, is_so: &dyn Fn() -> bool| {
        let limit = job.now().after(Duration::from_secs(20));
        while !is_so() {
            assert!(job.now() < limit, "waited too long: {what}");
            m.nap();
        }
    };
    let is_dead = || job.view().dead.contains(asker);
    m.barrier(4);
    match m.me() {
        0 => {
            wait_for("the stop", &|| m.is_stopped(server));
            job.inject(Fault::Kill(asker)).expect("a fault");
            wait_for("the death", &is_dead);
            let word = || job.load(Epoch::ANY, server, WORD).expect("a neighbour's word");
            let (before, is_served) = (word(), job.is_serving_dead());
            job.inject(Fault::Resume(server)).expect("a fault");
            wait_for("the end of it", &|| !job.is_serving_dead());
            m.sleep(Duration::from_millis(100));
            assert!(
                is_served || word() == before,
                "it was changed for the dead: {before}, {}",
                word()
            );
        }
        1 => {
            job.inject(Fault::StopAtStep(5000)).expect("a fault");
            wait_for("the death", &is_dead);
        }
        2 => {
            // So long that a server that stops while it serves stops in the middle of a request.
            for number in 0.. {
                let mut parts = vec![CompoundStep::Load { offset: COUNTER }; 200];
                parts.push(CompoundStep::Swap { offset: WORD, expected: number, new: number + 1 });
                job.wait(job.start_compound(Epoch::ANY, server, &parts)).expect("a series");
            }
        }
        _ => wait_for("the death", &is_dead),
    }
    m.barrier(3);
    m.end(3, "");
}
