//! The promises of the store, each as the part that a member plays: five members, three replicas
//! unless said otherwise, and deaths at random steps. `sim/promises.rs` and `shm/promises.rs` run
//! these parts.

use outlast::engine::Fault;
use outlast::store::{
    Death, Mode, Options, RepairStatus, Store, StoreError, StoreResult, Transaction,
};
use outlast::{Epoch, Job, MemberId};
use std::time::Duration;

pub(crate) const MEMBERS: usize = 5;

/// The parameters of a part.
#[derive(Clone, Copy)]
pub(crate) struct Chance {
    pub(crate) seed: u64,
    /// How many calls each member makes.
    pub(crate) calls: u32,
}

impl Chance {
    /// A number below `bound` that depends on the seed.
    fn below(self, salt: u64, bound: u64) -> u64 {
        let mixed = (self.seed << 8 ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33) % bound
    }
}

/// After a death every call ends within this time: the time until the death is known, and the time
/// of the call.
const BOUND: Duration = Duration::from_secs(10);

fn open(job: &Job, replicas: usize) -> Store {
    Store::open(job, Options::new().replicas(replicas).partitions(16).expected_keys(256))
        .expect("opened")
}

fn end(job: &Job, store: &Store) {
    store.close().expect("closed");
    job.leave().expect("left");
}

fn nap(job: &Job, until: impl Fn() -> bool, what: &str) {
    let deadline = job.now().after(Duration::from_secs(40));
    while !until() {
        assert!(job.now() < deadline, "{} waited in vain for {what}", job.me());
        job.park(job.bell(), job.now().after(Duration::from_millis(5)));
    }
}

/// Lets the members 1 and 3 die inside of one of their next calls.
fn doom(job: &Job, chance: Chance) {
    if job.me() == MemberId(1) || job.me() == MemberId(3) {
        let steps = 1 + chance.below(u64::from(job.me().0), u64::from(chance.calls) * 20);
        job.inject(Fault::DieAtStep(steps)).expect("planned");
    }
}

/// The members that are to die make calls until they are dead.
fn go_on_until_dead(job: &Job, store: &Store) {
    if job.me() == MemberId(1) || job.me() == MemberId(3) {
        for round in 0u64.. {
            store.put(format!("last/{}", job.me()).as_bytes(), &round.to_le_bytes()).expect("put");
        }
    }
}

fn repaired(job: &Job, store: &Store) {
    let status = store.wait_repaired(job.now().after(Duration::from_secs(40))).expect("known");
    assert_eq!(status, RepairStatus { replicas_missing: 0, partitions_lost: 0 });
}

/// Promise 1: Acknowledged values are there after two of the three replicas may have died, and
/// other members read them.
pub(crate) fn durable(job: Job, chance: Chance) {
    let store = open(&job, 3);
    doom(&job, chance);
    let me = job.me();
    for number in 0..chance.calls {
        store.put(format!("{me}/{}", number % 20).as_bytes(), &number.to_le_bytes()).expect("put");
        store.put(format!("count/{me}").as_bytes(), &number.to_le_bytes()).expect("put");
    }
    go_on_until_dead(&job, &store);
    nap(&job, || job.epoch() >= Epoch(2), "two deaths");
    let number = |key: String| -> Option<u32> {
        let value = store.get(key.as_bytes()).expect("read")?;
        Some(u32::from_le_bytes(value.bytes().try_into().expect("4 bytes")))
    };
    for member in (0..MEMBERS as u32).map(MemberId) {
        let Some(count) = number(format!("count/{member}")) else { continue };
        for last in count.saturating_sub(19)..=count {
            let found = number(format!("{member}/{}", last % 20)).expect("acknowledged");
            assert!(found >= last, "{member}/{}: {found} after {last} was acknowledged", last % 20);
        }
    }
    end(&job, &store);
}

/// Promise 2: A value is old or new, never a mix.
pub(crate) fn atomic(job: Job, chance: Chance) {
    let store = open(&job, 3);
    doom(&job, chance);
    for number in 0..chance.calls {
        // The length and every byte show the number of the put.
        let byte = (number % 200) as u8;
        store.put(b"shared", &vec![byte; 100 + usize::from(byte)]).expect("put");
        let value = store.get(b"shared").expect("read").expect("there");
        let first = value.bytes()[0];
        assert!(
            value.bytes().len() == 100 + usize::from(first)
                && value.bytes().iter().all(|&byte| byte == first)
        );
    }
    go_on_until_dead(&job, &store);
    nap(&job, || job.epoch() >= Epoch(2), "two deaths");
    end(&job, &store);
}

/// Promise 3: No member reads an older value after a newer value, and the additions of all members
/// form a single sequence: no sum is seen twice.
pub(crate) fn linearizable(job: Job, chance: Chance) {
    let store = open(&job, 3);
    doom(&job, chance);
    let (mut last, mut last_sum) = (None, 0);
    for number in 0..chance.calls {
        let written = store.put(b"shared", &number.to_le_bytes()).expect("put");
        assert!(Some(written) > last, "{written} after {last:?}");
        let read = store.get(b"shared").expect("read").expect("there").version();
        assert!(read >= written, "{read} read after {written} was written");
        last = Some(read);
        let sum = store.add(b"sum", 1).expect("added");
        assert!(sum > last_sum, "{sum} after {last_sum}");
        last_sum = sum;
    }
    store.add(b"done", 1).expect("added");
    go_on_until_dead(&job, &store);
    nap(&job, || job.epoch() >= Epoch(2), "two deaths");
    let number = |key: &[u8]| {
        let value = store.get(key).expect("read").expect("there");
        i64::from_le_bytes(value.bytes().try_into().expect("8 bytes"))
    };
    nap(&job, || number(b"done") >= 3, "the others");
    // Three members have made all their additions. The dead have made at most all, and each at most
    // a single addition that was not acknowledged to it.
    let sum = number(b"sum");
    let calls = i64::from(chance.calls);
    assert!(sum >= 3 * calls && sum <= 5 * calls, "{sum}");
    end(&job, &store);
}

/// Promise 4: No call takes longer than the time until a death is known, and a bound.
pub(crate) fn bounded(job: Job, chance: Chance) {
    let store = open(&job, 3);
    doom(&job, chance);
    let timed = |call: &dyn Fn()| {
        let begin = job.now();
        call();
        let took = job.now().since(begin);
        assert!(took < BOUND, "{} took {took:?}", job.me());
    };
    for number in 0..chance.calls {
        let key = format!("key/{}", number % 30);
        timed(&|| _ = store.put(key.as_bytes(), &[7; 200]).expect("put"));
        timed(&|| _ = store.get(key.as_bytes()).expect("read"));
        if number % 10 == 0 {
            timed(&|| _ = store.delete(key.as_bytes()).expect("deleted"));
            timed(&|| _ = store.scan(b"key/").expect("listed"));
        }
    }
    go_on_until_dead(&job, &store);
    // A wait for a key that no member writes ends at its deadline.
    let deadline = job.now().after(Duration::from_millis(50));
    timed(&|| assert!(store.wait(b"nobody", None, deadline).expect("waited").is_none()));
    nap(&job, || job.epoch() >= Epoch(2), "two deaths");
    end(&job, &store);
}

/// Promise 5: Lost replicas are repaired without a call, so that with two replicas two deaths in
/// turn lose nothing.
pub(crate) fn repaired_in_time(job: Job, chance: Chance) {
    let store = open(&job, 2);
    let me = job.me();
    for number in 0..20u32 {
        store.put(format!("{me}/{number}").as_bytes(), &[me.0 as u8; 300]).expect("put");
    }
    store.put(format!("ready/{me}").as_bytes(), b"").expect("put");
    for member in (0..MEMBERS as u32).map(MemberId) {
        let key = format!("ready/{member}");
        let deadline = job.now().after(Duration::from_secs(40));
        store.wait(key.as_bytes(), None, deadline).expect("waited").expect("ready");
    }
    // No member dies before all have heard of all.
    store.add(b"heard", 1).expect("added");
    let heard = || {
        store.get(b"heard").expect("read").is_some_and(|value| value.bytes()[0] == MEMBERS as u8)
    };
    nap(&job, heard, "the others");
    for victim in [MemberId(1), MemberId(3)] {
        let epoch = job.epoch();
        if me == victim {
            job.inject(Fault::DieAtStep(1 + chance.below(7, 300))).expect("planned");
            go_on_until_dead(&job, &store);
        }
        nap(&job, || job.epoch() > epoch || job.view().dead.contains(victim), "a death");
        repaired(&job, &store);
        // All survivors have seen it before the next member dies.
        let key = format!("repaired/{victim}");
        store.add(key.as_bytes(), 1).expect("added");
        let survivors = if victim == MemberId(1) { 4 } else { 3 };
        let all = || {
            store
                .get(key.as_bytes())
                .expect("read")
                .is_some_and(|value| value.bytes()[0] == survivors)
        };
        nap(&job, all, "the others");
    }
    for member in (0..MEMBERS as u32).map(MemberId) {
        for number in 0..20u32 {
            let value =
                store.get(format!("{member}/{number}").as_bytes()).expect("read").expect("there");
            assert_eq!(value.bytes(), [member.0 as u8; 300]);
        }
    }
    end(&job, &store);
}

const ACCOUNTS: u64 = 6;
const EACH: i64 = 1000;

fn account(number: u64) -> Vec<u8> {
    format!("account/{number}").into_bytes()
}

/// Moves an amount from an account to another. A third of the transfers depends on a key that it
/// does not change.
pub(crate) fn transfer(store: &Store, chance: Chance, number: u64) -> StoreResult<()> {
    let from = chance.below(number * 2, ACCOUNTS);
    let to = (from + 1 + chance.below(number * 2 + 1, ACCOUNTS - 1)) % ACCOUNTS;
    store.transaction(|tx| {
        if number.is_multiple_of(3) {
            assert!(tx.get(b"permission")?.is_some());
        }
        tx.add(&account(from), -7)?;
        tx.add(&account(to), 7)?;
        Ok(())
    })
}

fn all_accounts(store: &Store) -> Vec<i64> {
    let found: StoreResult<Vec<i64>> = store.transaction(|tx| {
        let read = |number| {
            let value = tx.get(&account(number))?.expect("there since the beginning");
            Ok(i64::from_le_bytes(value.try_into().expect("8 bytes")))
        };
        (0..ACCOUNTS).map(read).collect()
    });
    found.expect("read")
}

/// Promise 6: Transfers happen wholly or not at all, though members die in the middle, as `plan`
/// says: all members always find the expected sum.
pub(crate) fn all_or_nothing(job: Job, chance: Chance, plan: impl Fn(&Job)) {
    let store = open(&job, 3);
    let me = job.me();
    if me == MemberId(0) {
        (0..ACCOUNTS).for_each(|number| _ = store.add(&account(number), EACH).expect("added"));
        store.put(b"permission", b"").expect("put");
        store.put(b"ready", b"").expect("put");
    }
    let deadline = job.now().after(Duration::from_secs(40));
    store.wait(b"ready", None, deadline).expect("waited").expect("ready");
    plan(&job);
    let is_doomed = me == MemberId(1) || me == MemberId(3);
    for number in 0.. {
        if number >= u64::from(chance.calls) && !is_doomed {
            break;
        }
        let begin = job.now();
        transfer(&store, chance, number << 3 | u64::from(me.0)).expect("transferred");
        if number % 8 == 0 {
            assert_eq!(all_accounts(&store).iter().sum::<i64>(), EACH * ACCOUNTS as i64);
        }
        let took = job.now().since(begin);
        assert!(took < BOUND, "{me} took {took:?}");
    }
    nap(&job, || job.epoch() >= Epoch(2), "two deaths");
    store.add(b"done", 1).expect("added");
    let done = || store.get(b"done").expect("read").is_some_and(|value| value.bytes()[0] >= 3);
    nap(&job, done, "the others");
    // By a transaction, and key by key: committed values are there for all.
    let accounts = all_accounts(&store);
    assert_eq!(accounts.iter().sum::<i64>(), EACH * ACCOUNTS as i64);
    for (number, found) in accounts.iter().enumerate() {
        let value = store.get(&account(number as u64)).expect("read").expect("there");
        assert_eq!(value.bytes(), found.to_le_bytes());
        // No key stays locked.
        store.add(&account(number as u64), 0).expect("added");
    }
    end(&job, &store);
}

/// Two of the members die at a random step.
fn plan_a_death(job: &Job, chance: Chance) {
    if job.me() == MemberId(1) || job.me() == MemberId(3) {
        let steps = 1 + chance.below(u64::from(job.me().0), u64::from(chance.calls) * 200);
        job.inject(Fault::DieAtStep(steps)).expect("planned");
    }
}

/// [`all_or_nothing`] with deaths at random steps.
pub(crate) fn all_or_nothing_at_random(job: Job, chance: Chance) {
    all_or_nothing(job, chance, |job| plan_a_death(job, chance));
}

/// Promise 7: More deaths than replicas: lost keys report the loss until it is accepted, and the
/// others can be used.
pub(crate) fn honest(job: Job, _: Chance) {
    let store = open(&job, 1);
    let me = job.me();
    let keys: Vec<String> = (0..60).map(|number| format!("key/{number}")).collect();
    if me == MemberId(0) {
        for key in &keys {
            store.put(key.as_bytes(), b"value").expect("put");
        }
    }
    // The replica of a key tells with which member the key is lost. The barrier uses keys of
    // members that live.
    let held_by = |member: u32| {
        keys.iter().filter(|key| store.replicas_of(key.as_bytes()) == [MemberId(member)]).count()
    };
    assert!(held_by(1) > 0 && held_by(0) > 0, "keys are spread");
    let barrier = (0..).map(|number| format!("barrier/{number}"));
    let barrier = barrier
        .into_iter()
        .find(|key| store.replicas_of(key.as_bytes()) == [MemberId(0)])
        .expect("a key");
    let count = || {
        let value = store.get(barrier.as_bytes()).expect("read");
        value.map_or(0, |value| i64::from_le_bytes(value.bytes().try_into().expect("8 bytes")))
    };
    store.add(barrier.as_bytes(), 1).expect("added");
    nap(&job, || count() >= MEMBERS as i64, "the others");
    if me == MemberId(1) {
        job.inject(Fault::Kill(me)).expect("killed");
        nap(&job, || false, "death");
    }
    nap(&job, || job.view().dead.contains(MemberId(1)), "the death");
    let mut lost = 0;
    for key in &keys {
        match store.get(key.as_bytes()) {
            Ok(Some(value)) => assert_eq!(value.bytes(), b"value"),
            Ok(None) => panic!("{key} is said not to exist"),
            Err(StoreError::DataLost { .. }) => {
                lost += 1;
                assert!(matches!(
                    store.put(key.as_bytes(), b"new"),
                    Err(StoreError::DataLost { .. })
                ));
            }
            Err(error) => panic!("{key}: {error}"),
        }
    }
    assert!(lost > 0, "nothing was lost");
    store.add(barrier.as_bytes(), 1).expect("added");
    nap(&job, || count() >= 2 * MEMBERS as i64 - 1, "the others");
    if me == MemberId(0) {
        store.accept_loss().expect("accepted");
        for key in &keys {
            store.put(key.as_bytes(), b"new").expect("put");
        }
    }
    store.add(barrier.as_bytes(), 1).expect("added");
    nap(&job, || count() >= 3 * MEMBERS as i64 - 2, "the others");
    for key in &keys {
        assert_eq!(store.get(key.as_bytes()).expect("read").expect("there").bytes(), b"new");
    }
    end(&job, &store);
}

/// Promise 8: Members end in any way, and the store keeps no other member from ending.
pub(crate) fn clean(job: Job, chance: Chance) {
    let store = open(&job, 3);
    doom(&job, chance);
    for number in 0..chance.calls {
        store.put(format!("key/{number}").as_bytes(), &[7; 100]).expect("put");
    }
    store.put(format!("done/{}", job.me()).as_bytes(), b"").expect("put");
    go_on_until_dead(&job, &store);
    nap(&job, || job.epoch() >= Epoch(2), "two deaths");
    // No member writes any more when the next members go. When a member has gone, all had finished.
    let is_done = |member: u32| {
        store.exists(format!("done/{}", MemberId(member)).as_bytes()).unwrap_or(false)
    };
    nap(&job, || job.epoch() > Epoch(2) || [0, 2, 4].into_iter().all(is_done), "the others");
    match job.me() {
        // Leaves without closing the store, or simply ends.
        MemberId(0) => job.leave().expect("left"),
        MemberId(2) => drop(store),
        _ => {}
    }
}

// ---- Global mode.

fn open_globally(job: &Job, replicas: usize) -> Store {
    let options =
        Options::new().replicas(replicas).partitions(16).expected_keys(256).mode(Mode::Global);
    Store::open(job, options).expect("opened")
}

fn decoded(bytes: Option<&[u8]>) -> i64 {
    bytes.map_or(0, |bytes| i64::from_le_bytes(bytes.try_into().expect("8 bytes")))
}

/// Each member's part of a recovery: the counts of recoveries of all members are equal, each death
/// is adopted once, and the heir of the first dead member moves money.
fn procedure(job: &Job, tx: &mut Transaction, deaths: &[Death]) -> StoreResult<()> {
    let mut counts = Vec::new();
    for member in job.view().living() {
        counts.push(decoded(tx.get(format!("recoveries/{}", member.0).as_bytes())?.as_deref()));
    }
    assert!(
        counts.iter().all(|count| *count == counts[0]),
        "some have recovered, and some have not: {counts:?}"
    );
    tx.add(format!("recoveries/{}", job.me().0).as_bytes(), 1)?;
    for (index, death) in deaths.iter().enumerate().filter(|(_, death)| death.heir() == job.me()) {
        assert_eq!(tx.add(format!("adopted/{}", death.member.0).as_bytes(), 1)?, 1);
        if index == 0 {
            tx.add(&account(0), -1)?;
            tx.add(&account(1), 1)?;
        }
    }
    Ok(())
}

/// Recovers until calls go through.
fn recover(job: &Job, store: &Store) {
    let deadline = job.now().after(Duration::from_secs(60));
    while store.is_revoked() {
        assert!(job.now() < deadline, "{} did not recover", job.me());
        match store.recover(|tx, deaths| procedure(job, tx, deaths)) {
            Ok(()) | Err(StoreError::Timeout { .. }) => {}
            Err(error) => panic!("{}: {error}", job.me()),
        }
    }
}

/// Repeats a call until no death is in its way. The call may have taken effect before it was told
/// of a death.
fn insist<T>(job: &Job, store: &Store, mut call: impl FnMut() -> StoreResult<T>) -> T {
    loop {
        match call() {
            Ok(value) => return value,
            Err(StoreError::Revoked) => recover(job, store),
            Err(error) => panic!("{}: {error}", job.me()),
        }
    }
}

/// Promise 6 in global mode: Transfers, and the procedures of all members in a recovery, happen
/// wholly or not at all, though members die in the middle of a transfer or of a recovery.
pub(crate) fn all_or_nothing_globally(job: Job, chance: Chance, plan: impl Fn(&Job)) {
    let store = open_globally(&job, 3);
    let me = job.me();
    if me == MemberId(0) {
        (0..ACCOUNTS).for_each(|number| _ = store.add(&account(number), EACH).expect("added"));
        store.put(b"permission", b"").expect("put");
        store.put(b"ready", b"").expect("put");
    }
    let deadline = job.now().after(Duration::from_secs(40));
    store.wait(b"ready", None, deadline).expect("waited").expect("ready");
    store.add(b"all are ready", 1).expect("added");
    let all = || match store.get(b"all are ready") {
        Ok(value) => decoded(value.as_ref().map(|value| value.bytes())) == MEMBERS as i64,
        // A member has gone on already, and died.
        Err(error) => error == StoreError::Revoked,
    };
    nap(&job, all, "the others");
    plan(&job);
    let is_doomed = me == MemberId(1) || me == MemberId(3);
    for number in 0.. {
        if number >= u64::from(chance.calls) && !is_doomed {
            break;
        }
        insist(&job, &store, || transfer(&store, chance, number << 3 | u64::from(me.0)));
        if number % 8 == 0 {
            let accounts = insist(&job, &store, || sum_of_accounts(&store));
            assert_eq!(accounts, EACH * ACCOUNTS as i64);
        }
    }
    while job.epoch() < Epoch(2) || store.is_revoked() {
        recover(&job, &store);
        job.park(job.bell(), job.now().after(Duration::from_millis(1)));
    }
    // No member dies any more.
    store.add(b"done", 1).expect("added");
    nap(
        &job,
        || store.get(b"done").expect("read").is_some_and(|value| value.bytes()[0] >= 3),
        "the others",
    );
    assert_eq!(sum_of_accounts(&store).expect("read"), EACH * ACCOUNTS as i64);
    let number = |key: String| {
        decoded(store.get(key.as_bytes()).expect("read").as_ref().map(|value| value.bytes()))
    };
    let counts: Vec<i64> = [0, 2, 4].map(|member| number(format!("recoveries/{member}"))).to_vec();
    assert!(
        (1..=2).contains(&counts[0]) && counts.iter().all(|count| *count == counts[0]),
        "{counts:?}"
    );
    assert_eq!([1, 3].map(|dead| number(format!("adopted/{dead}"))), [1, 1]);
    repaired(&job, &store);
    end(&job, &store);
}

fn sum_of_accounts(store: &Store) -> StoreResult<i64> {
    store.transaction(|tx| {
        (0..ACCOUNTS).map(|number| Ok(decoded(tx.get(&account(number))?.as_deref()))).sum()
    })
}

/// [`all_or_nothing_globally`] with deaths at random steps.
pub(crate) fn all_or_nothing_globally_at_random(job: Job, chance: Chance) {
    all_or_nothing_globally(job, chance, |job| plan_a_death(job, chance));
}

/// Promise 7 in global mode: More deaths than replicas: the procedures are told that keys are lost,
/// never that they do not exist. When the loss is accepted the store recovers, and all other keys
/// are there.
pub(crate) fn honest_globally(job: Job, _: Chance) {
    let store = open_globally(&job, 1);
    let me = job.me();
    let keys: Vec<String> = (0..60).map(|number| format!("key/{number}")).collect();
    if me == MemberId(0) {
        keys.iter().for_each(|key| _ = store.put(key.as_bytes(), b"before").expect("put"));
    }
    let is_lost: Vec<bool> =
        keys.iter().map(|key| store.replicas_of(key.as_bytes()) == [MemberId(1)]).collect();
    assert!(is_lost.contains(&true) && is_lost.contains(&false), "keys are spread");
    let barrier = (0..).map(|number| format!("barrier/{number}"));
    let barrier = barrier
        .into_iter()
        .find(|key| store.replicas_of(key.as_bytes()) == [MemberId(0)])
        .expect("a key");
    store.add(barrier.as_bytes(), 1).expect("added");
    let count = || {
        store
            .get(barrier.as_bytes())
            .map(|value| decoded(value.as_ref().map(|value| value.bytes())))
    };
    // A member that is told of the death knows that all have been here.
    nap(
        &job,
        || count().is_ok_and(|count| count >= MEMBERS as i64) || store.is_revoked(),
        "the others",
    );
    if me == MemberId(1) {
        job.inject(Fault::Kill(me)).expect("killed");
        nap(&job, || false, "death");
    }
    nap(&job, || job.view().dead.contains(MemberId(1)), "the death");
    assert_eq!(store.get(keys[0].as_bytes()), Err(StoreError::Revoked));
    let is_about_loss = |error: &StoreError| {
        matches!(
            error,
            StoreError::DataLost { .. }
                | StoreError::RecoveryFailed { .. }
                | StoreError::Timeout { .. }
        )
    };
    // The procedure passes on the errors that it gets. The recovery itself may need lost data.
    let told = store.recover(|tx, _| -> StoreResult<()> {
        for (key, is_lost) in keys.iter().zip(&is_lost) {
            match tx.get(key.as_bytes()) {
                Err(StoreError::DataLost { .. }) => assert!(is_lost, "{key} has a replica"),
                Ok(value) => {
                    assert!(!is_lost && value.as_deref() == Some(b"before"), "{key}: {value:?}")
                }
                Err(error) => return Err(error),
            }
        }
        Err(StoreError::WrongType { what: "this was only to look".into() })
    });
    let told = told.expect_err("only to look");
    assert!(is_about_loss(&told) || matches!(told, StoreError::WrongType { .. }), "{told}");
    let deadline = job.now().after(Duration::from_secs(100));
    loop {
        store.accept_loss().expect("given up");
        match store.recover(|tx, _| tx.put(format!("late/{}", me.0).as_bytes(), b"")) {
            Ok(()) => break,
            Err(error) => assert!(is_about_loss(&error) && job.now() < deadline, "{error}"),
        }
    }
    for (key, is_lost) in keys.iter().zip(&is_lost) {
        let value = store.get(key.as_bytes()).expect("read");
        assert_eq!(
            value.as_ref().map(|value| value.bytes()),
            (!is_lost).then_some(&b"before"[..]),
            "{key}"
        );
    }
    assert_eq!(store.scan(b"late/").expect("listed").len(), MEMBERS - 1);
    store.add(b"done", 1).expect("added");
    nap(
        &job,
        || store.get(b"done").expect("read").is_some_and(|value| value.bytes()[0] >= 4),
        "the others",
    );
    end(&job, &store);
}
