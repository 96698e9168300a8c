//! Sessions: how the members agree to open the runtime, and to close it.
//!
//! A session is a number, in all its keys. The members find it under [`Keys::SESSION`]: the first
//! member to put it decides. A session belongs to this job if the board of a living member carries
//! its number. Other sessions were left by another job, whose keys a snapshot has brought back, or
//! by members that are all dead: they are deleted and replaced.
//!
//! Each member tells in a key of its own how far it is ([`WorkerInfo`]): it has opened the session,
//! has given up to wait for the others, or closes it. No member opens a session before all living
//! members have told that they do, and no member deletes it before all of them close it. A member
//! that has given up is not waited for. If it comes back, it does not open a session that others
//! close: it tells first and reads then, as members that close do, so one of them sees the other.

use crate::board::Boards;
use crate::error::Error;
use crate::options::Options;
use crate::record::{Keys, WorkerInfo, decode, encode, hash};
use crate::steps::mutant;
use outlast::engine::{Bell, Error as EngineError};
use outlast::store::{Expect, Store, StoreError, StoreResult};
use outlast::{Job, MemberId, Time};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

/// How often a member that waits for others reads their keys, if no bell rings.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How long a member pauses before it reads the keys of others again between hosts, at first and at
/// last: there the answers to what it reads ring its bell.
const PAUSE: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(10));

/// How many members of a large job have a member that reads their keys for all others.
const GROUP: usize = 32;
/// The largest job in which each member reads the keys of all others.
const SMALL: usize = 2 * GROUP;
/// How long a member of a large job leaves it to others to read the keys, and how often it then
/// reads them.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), LOOK_AGAIN);

/// The boards of the members that have told that they open the session: the offset of each board.
type Told = Vec<Option<u64>>;

/// A session, with what the members compare when they open it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Session {
    session: u64,
    /// The member that put it, and the offset of that member's board.
    creator: u32,
    board: u64,
    version: String,
    build: u32,
    tasks: Vec<String>,
    options: String,
    /// Its keys are being deleted. What is left of them says nothing.
    is_ending: bool,
}

/// A session that this member has opened.
pub(crate) struct Opened {
    pub(crate) session: u64,
    pub(crate) keys: Keys,
    pub(crate) info: WorkerInfo,
    pub(crate) boards: Boards,
}

/// Opens a session with all other living members. `board` is the offset of the own board.
pub(crate) fn open(store: &Store, options: &Options, board: u64) -> Result<Opened, Error> {
    let job = store.job();
    let deadline = job.now().after(job.time_limit());
    loop {
        let mine = new_session(job, options, board);
        let theirs = agree(store, &mine)?;
        let session = theirs.session;
        let keys = Keys::new(session);
        if theirs.is_ending && !mutant("ending-opened") {
            end(store, &keys, session)?;
            continue;
        }
        let key = keys.worker(job.me().0);
        if let Some(what) = difference(&mine, &theirs) {
            let said = format!("{} did not open: {what}", job.me());
            put_answered(store, &keys.refusal(), said.as_bytes())?;
            retreat(store, &keys, session)?;
            return Err(Error::Differs { what });
        }
        let before = info_of(store, &keys, job.me())?;
        let is_back = before.as_ref().is_some_and(|before| before.has_given_up);
        if before.is_some() && !is_back && !mutant("session-opened-twice") {
            end_closed(store, &keys, session)?;
            continue;
        }
        let info = WorkerInfo {
            board,
            slots: 0,
            run: 0,
            has_given_up: false,
            is_closing: false,
            is_clean: false,
        };
        put_answered(store, &key, &encode(&info))?;
        let is_ready = |info: Option<&WorkerInfo>| {
            info.is_some_and(|info| !(info.has_given_up || is_back && info.is_closing))
        };
        let check = || -> Result<bool, Error> {
            if let Some(what) = get_answered(store, &keys.refusal())? {
                return Err(Error::Differs { what: String::from_utf8_lossy(&what).into_owned() });
            }
            // Read after the infos: no key is deleted before the session says that it ends.
            Ok(is_open(store, session)?)
        };
        let told = match job.members() > SMALL && !is_back {
            true => gather(store, &keys, check),
            false => wait_for_all(store, &keys, is_ready, check).map(|infos| {
                infos.map(|all| all.into_iter().map(|one| one.map(|info| info.board)).collect())
            }),
        };
        match told {
            Ok(Some(told)) => {
                let told: Told = told;
                let offsets = told.into_iter().map(Option::unwrap_or_default);
                let boards = Boards::new(job, offsets.collect());
                return Ok(Opened { session, keys, info, boards });
            }
            Ok(None) if job.now() < deadline => {
                // Another member has replaced or ended the session, without this member.
                retry(job, || store.delete(&key))?;
            }
            Ok(None) => {
                let (member, limit) = (job.me(), job.time_limit());
                return Err(Error::Store(StoreError::Timeout { member, limit }));
            }
            Err(error) => {
                if matches!(error, Error::Differs { .. }) {
                    // No member has opened the session, so no member writes to this board.
                    retreat(store, &keys, session)?;
                } else {
                    let info = WorkerInfo { has_given_up: true, is_clean: true, ..info };
                    put_answered(store, &key, &encode(&info))?;
                }
                return Err(error);
            }
        }
    }
}

/// The session that this member would put.
fn new_session(job: &Job, options: &Options, board: u64) -> Session {
    Session {
        session: 0,
        creator: job.me().0,
        board,
        version: env!("CARGO_PKG_VERSION").to_string(),
        build: build(),
        tasks: options.registry.names().map(str::to_string).collect(),
        options: options.text(),
        is_ending: false,
    }
}

/// The checksum of this program's file: it tells builds apart.
fn build() -> u32 {
    static BUILD: OnceLock<u32> = OnceLock::new();
    *BUILD
        .get_or_init(|| std::fs::read("/proc/self/exe").map_or(0, |bytes| crc32fast::hash(&bytes)))
}

/// Finds the session of this job, or puts one: the first member to put it decides. The own board
/// carries its number afterwards.
fn agree(store: &Store, mine: &Session) -> Result<Session, Error> {
    let job = store.job();
    let mark = |session| Boards::mark(job, mine.board, session).map_err(StoreError::Engine);
    let deadline = job.now().after(job.time_limit());
    loop {
        let value = retry(job, || store.get(Keys::SESSION))?;
        let found = value.as_ref().and_then(|value| decode::<Session>(value.bytes()));
        let mut before = 0;
        if let Some(found) = found {
            if mutant("any-session") || is_of_this_job(store, &found)? {
                mark(found.session)?;
                return Ok(found);
            }
            before = found.session;
            delete_all(store, Keys::new(before).prefix())?;
        }
        let session = hash(&encode(&(job.now().0, job.me().0, before)));
        mark(session)?;
        let mine = Session { session, ..mine.clone() };
        let expect = value.map_or(Expect::Absent, |value| Expect::Version(value.version()));
        match store.put_if(Keys::SESSION, &encode(&mine), expect) {
            Ok(_) => return Ok(mine),
            Err(StoreError::Conflict { .. }) => {}
            // It may still happen: the next look finds it, or another session.
            Err(StoreError::Timeout { .. }) if job.now() < deadline => {}
            Err(error) => return Err(Error::Store(error)),
        }
    }
}

/// Whether the board of a living member carries the number of a session. A member that does not
/// answer is asked again, up to the job's time limit.
fn is_of_this_job(store: &Store, session: &Session) -> Result<bool, Error> {
    let job = store.job();
    let keys = Keys::new(session.session);
    let deadline = job.now().after(job.time_limit());
    loop {
        let mut silent = None;
        for member in job.view().living() {
            let of_creator = (session.creator == member.0).then_some(session.board);
            let told = info_of(store, &keys, member)?.map(|info| info.board);
            for board in of_creator.into_iter().chain(told) {
                match Boards::session_at(job, member, board) {
                    Ok(number) if number == session.session => return Ok(true),
                    Err(EngineError::Timeout { .. }) => silent = Some(member),
                    _ => {}
                }
            }
        }
        let Some(member) = silent else { return Ok(false) };
        if job.now() >= deadline || job.has_ended() {
            let limit = job.time_limit();
            return Err(Error::Store(StoreError::Timeout { member, limit }));
        }
    }
}

/// Whether the members still agree on this session.
fn is_current(store: &Store, session: u64) -> StoreResult<bool> {
    let bytes = get_answered(store, Keys::SESSION)?;
    let found = bytes.and_then(|bytes| decode::<Session>(&bytes));
    Ok(found.is_some_and(|found| found.session == session))
}

/// Whether the members still agree on this session, and none deletes its keys.
fn is_open(store: &Store, session: u64) -> StoreResult<bool> {
    let bytes = get_answered(store, Keys::SESSION)?;
    let found = bytes.and_then(|bytes| decode::<Session>(&bytes));
    let is_ending = |found: &Session| found.is_ending && !mutant("ending-opened");
    Ok(found.is_some_and(|found| found.session == session && !is_ending(&found)))
}

/// How this member differs from the member that put the session.
fn difference(mine: &Session, theirs: &Session) -> Option<String> {
    let text = |what: &str, here: &str, there: &str| {
        Some(format!("{what}: {here} here, and {there} at another member"))
    };
    if theirs.version != mine.version {
        return text("version of outlast-tasks", &mine.version, &theirs.version);
    }
    if theirs.tasks != mine.tasks {
        let only = |a: &[String], b: &[String]| {
            let only: Vec<&str> =
                a.iter().filter(|name| !b.contains(name)).map(String::as_str).collect();
            if only.is_empty() { "another order".to_string() } else { only.join(", ") }
        };
        let (here, there) = (only(&mine.tasks, &theirs.tasks), only(&theirs.tasks, &mine.tasks));
        return text("list of tasks", &here, &there);
    }
    if theirs.options != mine.options {
        return text("options", &mine.options, &theirs.options);
    }
    if theirs.build != mine.build {
        let (here, there) = (format!("{:08x}", mine.build), format!("{:08x}", theirs.build));
        return text("build of the program", &here, &there);
    }
    None
}

/// Ends a session that this member has opened before, if all living members close it or have given
/// it up. An error if not: the session may be in use.
fn end_closed(store: &Store, keys: &Keys, session: u64) -> Result<(), Error> {
    for member in store.job().view().living() {
        let info = info_of(store, keys, member)?;
        if !has_left(info.as_ref()) && info.is_some() {
            let reason = format!(
                "the task runtime is open at {member}, or was dropped there without close; close \
                 it at all members before it is opened again"
            );
            return Err(Error::Invalid { reason });
        }
    }
    end(store, keys, session)
}

/// Whether a member puts no key of the session any more.
fn has_left(info: Option<&WorkerInfo>) -> bool {
    info.is_some_and(|info| info.is_closing || info.has_given_up)
}

/// Leaves a session that this member or another member has refused to open. No member ends the
/// session before all living members have heard of it: a member that does so waits for the others,
/// and a member that comes late finds the refusal.
fn retreat(store: &Store, keys: &Keys, session: u64) -> Result<(), Error> {
    let info = WorkerInfo {
        board: 0,
        slots: 0,
        run: 0,
        has_given_up: false,
        is_closing: true,
        is_clean: true,
    };
    put_answered(store, &keys.worker(store.me().0), &encode(&info))?;
    wait_for_all(store, keys, has_left, || Ok(true))?;
    end(store, keys, session)
}

/// Tells that this member closes the session, and waits for the others. From then on no member puts
/// a task or progress of it.
pub(crate) fn begin_close(store: &Store, keys: &Keys, info: &WorkerInfo) -> Result<(), Error> {
    let info = WorkerInfo { is_closing: true, ..info.clone() };
    put_answered(store, &keys.worker(store.me().0), &encode(&info))?;
    wait_for_all(store, keys, has_left, || Ok(true))?;
    Ok(())
}

/// Ends the session when this member has deleted its own slots.
pub(crate) fn end_close(
    store: &Store,
    keys: &Keys,
    session: u64,
    info: &WorkerInfo,
) -> Result<(), Error> {
    tell_clean(store, keys, info)?;
    end(store, keys, session)
}

/// Waits until what all living members have told satisfies a condition, or until `check` fails.
/// Returns what each member told; `None` if `check` says that there is nothing to wait for.
fn wait_for_all(
    store: &Store,
    keys: &Keys,
    is_ready: impl Fn(Option<&WorkerInfo>) -> bool,
    check: impl Fn() -> Result<bool, Error>,
) -> Result<Option<Vec<Option<WorkerInfo>>>, Error> {
    let job = store.job();
    let deadline = job.now().after(job.time_limit());
    ring_all(job);
    let mut infos: Vec<Option<WorkerInfo>> = vec![None; job.members()];
    let mut pause = PAUSE.0;
    loop {
        let bell = job.bell();
        let view = job.view();
        let mut missing = None;
        for member in (0..job.members() as u32).map(MemberId) {
            if infos[member.index()].is_some() && is_ready(infos[member.index()].as_ref()) {
                continue;
            }
            infos[member.index()] = info_of(store, keys, member)?;
            if !is_ready(infos[member.index()].as_ref()) && view.is_living(member) {
                missing.get_or_insert(member);
            }
        }
        // After the keys were read: a member that refuses says so before it puts its key.
        if !check()? {
            return Ok(None);
        }
        let Some(member) = missing else { return Ok(Some(infos)) };
        if job.has_ended() {
            return Err(Error::Store(StoreError::Closed));
        }
        if job.now() >= deadline {
            return Err(Error::Store(StoreError::Timeout { member, limit: job.time_limit() }));
        }
        pause_before_look(job, bell, deadline, &mut pause);
    }
}

/// Waits until all living members of a large job have told that they open the session, or until
/// `check` fails. Returns the board of each member that has told; `None` if `check` says that there
/// is nothing to wait for.
///
/// What a member has put of others was true when it read their keys. It may be old as what this
/// member reads itself may be: a member that gives up later is gone in both cases.
fn gather(
    store: &Store,
    keys: &Keys,
    check: impl Fn() -> Result<bool, Error>,
) -> Result<Option<Told>, Error> {
    let (job, me) = (store.job(), store.me().index());
    let deadline = job.now().after(job.time_limit());
    ring_all(job);
    let groups = job.members().div_ceil(GROUP);
    let mut told: Told = vec![None; job.members()];
    let mut has_put = (false, false);
    let mut due = job.now().after(PATIENCE.0.min(job.time_limit() / 8));
    let mut pause = PAUSE.0;
    loop {
        let bell = job.bell();
        let view = job.view();
        let missing = |told: &Told, members: Range<usize>| {
            let mut living = view.living().filter(|member| members.contains(&member.index()));
            living.find(|member| told[member.index()].is_none())
        };
        let lowest = |members: Range<usize>| {
            view.living().find(|member| members.contains(&member.index())) == Some(store.me())
        };
        let read = |told: &mut Told, members: Range<usize>| -> StoreResult<()> {
            for member in members.filter(|&member| told[member].is_none()).collect::<Vec<_>>() {
                let info = info_of(store, keys, MemberId(member as u32))?;
                told[member] = info.filter(|info| !info.has_given_up).map(|info| info.board);
            }
            Ok(())
        };
        take_told(store, &keys.told_by_all(), &mut told, 0)?;
        let own = me / GROUP * GROUP..(me / GROUP * GROUP + GROUP).min(job.members());
        if lowest(own.clone()) {
            read(&mut told, own.clone())?;
            if missing(&told, own.clone()).is_none() && !has_put.0 {
                has_put.0 = put_told(store, &keys.told_by(me / GROUP), &told[own])?;
            }
        }
        if lowest(0..job.members()) {
            for group in 0..groups {
                let members = group * GROUP..(group * GROUP + GROUP).min(job.members());
                if missing(&told, members.clone()).is_some() {
                    take_told(store, &keys.told_by(group), &mut told, members.start)?;
                }
            }
        }
        if job.now() >= due {
            due = job.now().after(PATIENCE.1);
            read(&mut told, 0..job.members())?;
        }
        let missing = missing(&told, 0..job.members());
        if missing.is_none() && lowest(0..job.members()) && !has_put.1 {
            has_put.1 = put_told(store, &keys.told_by_all(), &told)?;
        }
        // After the keys were read: a member that refuses says so before it puts its key.
        if !check()? {
            return Ok(None);
        }
        let Some(member) = missing else { return Ok(Some(told)) };
        if job.has_ended() {
            return Err(Error::Store(StoreError::Closed));
        }
        if job.now() >= deadline {
            return Err(Error::Store(StoreError::Timeout { member, limit: job.time_limit() }));
        }
        pause_before_look(job, bell, deadline, &mut pause);
    }
}

/// Takes over what another member has found of the members from `first` on, if it has put that.
fn take_told(store: &Store, key: &[u8], told: &mut Told, first: usize) -> StoreResult<()> {
    let found = get_answered(store, key)?.and_then(|bytes| decode::<Told>(&bytes));
    for (mine, theirs) in told[first..].iter_mut().zip(found.unwrap_or_default()) {
        *mine = mine.or(theirs);
    }
    Ok(())
}

/// Puts what this member has found for others; returns whether it is there. They do without it if
/// there is no room or no answer.
fn put_told(store: &Store, key: &[u8], told: &[Option<u64>]) -> StoreResult<bool> {
    match store.put(key, &encode(&told)) {
        Ok(_) => {
            ring_all(store.job());
            Ok(true)
        }
        Err(StoreError::Timeout { .. } | StoreError::OutOfMemory { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Rings all members when this one has put a key, so that the others need not poll. Between hosts
/// they do not wait for the bell.
fn ring_all(job: &Job) {
    if job.is_mapped() {
        job.view().living().for_each(|member| drop(job.ring(member)));
    }
}

/// Tells that this member has deleted its own slots, unless the session has ended without it: its
/// key must not come up again.
fn tell_clean(store: &Store, keys: &Keys, info: &WorkerInfo) -> StoreResult<()> {
    let key = keys.worker(store.me().0);
    let bytes = encode(&WorkerInfo { is_closing: true, is_clean: true, ..info.clone() });
    retry(store.job(), || {
        let Some(before) = store.get(&key)? else { return Ok(()) };
        match store.put_if(&key, &bytes, Expect::Version(before.version())) {
            Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    })
}

/// Deletes all keys of a session, the session's own last. The lowest living member does it; if it
/// dies, the next one.
fn end(store: &Store, keys: &Keys, session: u64) -> Result<(), Error> {
    let job = store.job();
    let deadline = job.now().after(job.time_limit());
    let mut pause = PAUSE.0;
    loop {
        let bell = job.bell();
        if !is_current(store, session)? {
            return Ok(());
        }
        let lowest = job.view().living().next().unwrap_or(job.me());
        if lowest == job.me() {
            // A key that is gone was deleted by a lowest member that died since.
            let is_clean = |info: Option<&WorkerInfo>| info.is_none_or(|info| info.is_clean);
            match wait_for_all(store, keys, is_clean, || Ok(true)) {
                // Without a member that is stopped or was slow the rest is deleted all the same.
                Ok(_) | Err(Error::Store(StoreError::Timeout { .. })) => {}
                Err(error) => return Err(error),
            }
            // A member whose `close` has failed meanwhile may open the runtime again. It would take
            // the keys that are still there for those of a session that others have open.
            let ends = |session| Some(Session { is_ending: true, ..session });
            match change_session(store, session, ends) {
                // To delete its keys makes room.
                Ok(()) | Err(StoreError::OutOfMemory { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            delete_all(store, keys.prefix())?;
            change_session(store, session, |_| None)?;
            ring_all(job);
            continue;
        }
        if job.now() >= deadline || job.has_ended() {
            let limit = job.time_limit();
            return Err(Error::Store(StoreError::Timeout { member: lowest, limit }));
        }
        pause_before_look(job, bell, deadline, &mut pause);
    }
}

/// Waits a while before the keys of other members are read again.
fn pause_before_look(job: &Job, bell: Bell, deadline: Time, pause: &mut Duration) {
    if job.is_mapped() {
        job.park(bell, deadline.min(job.now().after(LOOK_AGAIN)));
    } else {
        job.sleep(*pause);
        *pause = (*pause * 2).min(PAUSE.1);
    }
}

/// Changes the session's own key, or deletes it, if the members still agree on this session.
fn change_session(
    store: &Store,
    session: u64,
    change: impl Fn(Session) -> Option<Session>,
) -> StoreResult<()> {
    retry(store.job(), || {
        store.transaction(|tx| {
            let found = tx.get(Keys::SESSION)?;
            let found = found.and_then(|value| decode::<Session>(&value));
            let Some(found) = found.filter(|found| found.session == session) else {
                return Ok::<(), StoreError>(());
            };
            match change(found) {
                Some(changed) => tx.put(Keys::SESSION, &encode(&changed))?,
                None => drop(tx.delete(Keys::SESSION)?),
            }
            Ok(())
        })
    })
}

/// Deletes all keys with a prefix.
fn delete_all(store: &Store, prefix: &[u8]) -> StoreResult<()> {
    retry(store.job(), || {
        for key in store.scan(prefix)? {
            store.delete(&key)?;
        }
        Ok(())
    })
}

/// Repeats a call that a living member does not answer, up to the job's time limit from the first
/// call on.
fn retry<T>(job: &Job, mut call: impl FnMut() -> StoreResult<T>) -> StoreResult<T> {
    let deadline = job.now().after(job.time_limit());
    loop {
        match call() {
            Err(StoreError::Timeout { .. }) if job.now() < deadline => {}
            other => return other,
        }
    }
}

fn put_answered(store: &Store, key: &[u8], value: &[u8]) -> StoreResult<()> {
    retry(store.job(), || store.put(key, value).map(|_| ()))
}

fn get_answered(store: &Store, key: &[u8]) -> StoreResult<Option<Vec<u8>>> {
    retry(store.job(), || Ok(store.get(key)?.map(outlast::store::Value::into_bytes)))
}

/// What a member has told, if anything.
fn info_of(store: &Store, keys: &Keys, member: MemberId) -> StoreResult<Option<WorkerInfo>> {
    let bytes = get_answered(store, &keys.worker(member.0))?;
    Ok(bytes.and_then(|bytes| decode(&bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_between_two_members_is_named() {
        let here = Session {
            session: 1,
            creator: 0,
            board: 64,
            version: "1.0.0".to_string(),
            build: 0xabc,
            tasks: vec!["fib".to_string(), "queens".to_string()],
            options: "slots 8".to_string(),
            is_ending: false,
        };
        let there = |change: fn(&mut Session)| {
            let mut there = Session { session: 2, creator: 1, board: 128, ..here.clone() };
            change(&mut there);
            difference(&here, &there)
        };
        assert_eq!(there(|_| ()), None);
        let text = |what: Option<String>| what.expect("a difference");
        assert_eq!(
            text(there(|there| there.version = "2.0.0".to_string())),
            "version of outlast-tasks: 1.0.0 here, and 2.0.0 at another member"
        );
        assert_eq!(
            text(there(|there| there.build = 0xdef)),
            "build of the program: 00000abc here, and 00000def at another member"
        );
        assert_eq!(
            text(there(|there| there.options = "slots 9".to_string())),
            "options: slots 8 here, and slots 9 at another member"
        );
        assert_eq!(
            text(there(|there| there.tasks = vec!["fib".to_string(), "uts".to_string()])),
            "list of tasks: queens here, and uts at another member"
        );
        assert!(text(there(|there| there.tasks.reverse())).contains("another order"));
    }
}
