//! The store against a map of the standard library: random sequences of calls, by a single member
//! or by several members in turn, under the simulator.

use outlast::sim::{self, Link, Options as SimOptions};
use outlast::store::{Expect, Options, Store, StoreError, Version};
use outlast::{Job, MemberId};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The value, the version and the owner of each key.
type Model = BTreeMap<Vec<u8>, (Vec<u8>, Version, MemberId)>;

#[derive(Clone, Debug)]
enum Call {
    Put(Vec<u8>, Vec<u8>),
    PutNb(Vec<u8>, Vec<u8>),
    PutIfRight(Vec<u8>, Vec<u8>),
    PutIfWrong(Vec<u8>),
    Delete(Vec<u8>),
    Add(Vec<u8>, i64),
    Get(Vec<u8>),
    GetInto(Vec<u8>, usize),
    Adopt(Vec<u8>),
    Handle(Vec<u8>, Vec<u8>),
    PutAll(Vec<(Vec<u8>, Vec<u8>)>),
    List(u8),
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => (0u8..6, 0u8..3).prop_map(|(prefix, rest)| vec![prefix, rest]),
        1 => (0u8..3).prop_map(|byte| vec![byte; 1024]),
        1 => (0u8..3).prop_map(|byte| vec![byte]),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    (any::<u8>(), prop_oneof![Just(0usize), 1..40usize, Just(224), Just(225), 500..3000usize])
        .prop_map(|(byte, len)| (0..len).map(|index| byte.wrapping_add(index as u8)).collect())
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        4 => (key(), value()).prop_map(|(key, value)| Call::Put(key, value)),
        1 => (key(), value()).prop_map(|(key, value)| Call::PutNb(key, value)),
        2 => (key(), value()).prop_map(|(key, value)| Call::PutIfRight(key, value)),
        1 => key().prop_map(Call::PutIfWrong),
        3 => key().prop_map(Call::Delete),
        2 => (key(), -5..5i64).prop_map(|(key, delta)| Call::Add(key, delta)),
        3 => key().prop_map(Call::Get),
        2 => (key(), 0..300usize).prop_map(|(key, len)| Call::GetInto(key, len)),
        1 => key().prop_map(Call::Adopt),
        2 => (key(), value()).prop_map(|(key, value)| Call::Handle(key, value)),
        1 => prop::collection::vec((key(), value()), 0..5).prop_map(Call::PutAll),
        1 => (0u8..7).prop_map(Call::List),
    ]
}

/// The greatest version that a key ever had, deleted or not.
type Newest = BTreeMap<Vec<u8>, Version>;

fn written(
    model: &mut Model,
    newest: &mut Newest,
    me: MemberId,
    key: &[u8],
    value: &[u8],
    version: Version,
) {
    assert!(
        newest.insert(key.to_vec(), version).is_none_or(|before| version > before),
        "{version} is no news"
    );
    let entry = model.entry(key.to_vec()).or_insert((Vec::new(), version, me));
    (entry.0, entry.1) = (value.to_vec(), version);
}

fn apply(store: &Store, call: &Call, model: &mut Model, newest: &mut Newest) {
    let me = store.me();
    let found = |model: &Model, key: &[u8]| model.get(key).map(|(_, version, _)| *version);
    match call {
        Call::Put(key, value) => {
            let version = store.put(key, value).expect("put");
            written(model, newest, me, key, value, version);
        }
        Call::PutNb(key, value) => {
            store.put_nb(key, value).expect("put");
            let seen = store.get_nb(key).wait().expect("read").expect("own earlier puts are seen");
            assert_eq!(seen.bytes(), value);
            store.flush().expect("flushed");
            written(model, newest, me, key, value, seen.version());
        }
        Call::PutIfRight(key, value) => {
            let expect = found(model, key).map_or(Expect::Absent, Expect::Version);
            let version = store.put_if(key, value, expect).expect("as expected");
            written(model, newest, me, key, value, version);
        }
        Call::PutIfWrong(key) => {
            let wrong = Version { counter: u64::MAX, writer: me };
            let conflict = StoreError::Conflict { found: found(model, key) };
            assert_eq!(store.put_if(key, b"", Expect::Version(wrong)), Err(conflict.clone()));
            if model.contains_key(key) {
                assert_eq!(store.put_if(key, b"", Expect::Absent), Err(conflict));
            }
        }
        Call::Delete(key) => assert_eq!(store.delete(key), Ok(model.remove(key).is_some())),
        Call::Add(key, delta) => {
            match model.get(key).map(|(value, _, _)| <[u8; 8]>::try_from(&value[..])) {
                Some(Err(_)) => {
                    assert!(matches!(store.add(key, *delta), Err(StoreError::WrongType { .. })));
                }
                before => {
                    let before =
                        before.map_or(0, |bytes| i64::from_le_bytes(bytes.expect("8 bytes")));
                    let sum = before.wrapping_add(*delta);
                    assert_eq!(store.add(key, *delta), Ok(sum));
                    let version = store.get(key).expect("read").expect("there").version();
                    written(model, newest, me, key, &sum.to_le_bytes(), version);
                }
            }
        }
        Call::Get(key) => {
            let value = store.get(key).expect("read");
            assert_eq!(store.exists(key), Ok(value.is_some()));
            assert_eq!(store.get_all([key]), Ok(vec![value.clone()]));
            let got = value.map(|value| (value.bytes().to_vec(), value.version(), value.owner()));
            assert_eq!(got.as_ref(), model.get(key));
        }
        Call::GetInto(key, len) => {
            let mut buffer = vec![0; *len];
            match (store.get_into(key, &mut buffer), model.get(key)) {
                (Ok(None), None) => {}
                (Ok(Some((got, version))), Some((value, expected, _))) => {
                    assert_eq!((&buffer[..got], version), (&value[..], *expected));
                }
                (Err(StoreError::BufferTooSmall { needed, given }), Some((value, ..))) => {
                    assert_eq!((needed, given), (value.len() as u64, *len as u64));
                    assert!(needed > given);
                }
                other => panic!("{other:?}"),
            }
        }
        Call::Adopt(key) => {
            assert_eq!(store.adopt(key), Ok(model.contains_key(key)));
            if let Some(entry) = model.get_mut(key) {
                let version = store.get(key).expect("read").expect("there").version();
                assert!(version > entry.1);
                (entry.1, entry.2) = (version, me);
                newest.insert(key.clone(), version);
            }
        }
        Call::Handle(key, value) => {
            let handle = store.handle(key).expect("a handle");
            let version = handle.put(value).expect("put");
            written(model, newest, me, key, value, version);
        }
        Call::PutAll(pairs) => {
            let versions =
                store.put_all(pairs.iter().map(|(key, value)| (key, value))).expect("put");
            for ((key, value), version) in pairs.iter().zip(versions) {
                written(model, newest, me, key, value, version);
            }
        }
        Call::List(prefix) => {
            let mut keys = store.scan(&[*prefix]).expect("listed");
            keys.sort();
            let expected: Vec<Vec<u8>> =
                model.keys().filter(|key| key[0] == *prefix).cloned().collect();
            assert_eq!(keys, expected);
            assert_eq!(store.len(), Ok(model.len()));
            assert_eq!(store.is_empty(), Ok(model.is_empty()));
            let mut own = store.keys_of(me).expect("listed");
            own.sort();
            let owned =
                model.iter().filter(|(_, (_, _, owner))| *owner == me).map(|(key, _)| key.clone());
            assert_eq!(own, owned.collect::<Vec<_>>());
        }
    }
}

/// The members take turns, with a call each.
fn play(job: &Job, calls: &[Call], state: &Mutex<(usize, Model, Newest)>) {
    let replicas = job.members().min(2);
    let options =
        Options::new().replicas(replicas).partitions(4).expected_keys(16).slab_len_max(32 << 10);
    let store = Store::open(job, options).expect("opened");
    loop {
        let turn = state.lock().unwrap().0;
        if turn == calls.len() {
            break;
        }
        if !job.view().dead.is_empty() {
            // A member found a difference.
            return;
        }
        if turn % job.members() != job.me().index() {
            job.park(job.bell(), job.now().after(Duration::from_micros(5)));
            continue;
        }
        let (_, mut model, mut newest) = std::mem::take(&mut *state.lock().unwrap());
        state.lock().unwrap().0 = turn;
        apply(&store, &calls[turn], &mut model, &mut newest);
        *state.lock().unwrap() = (turn + 1, model, newest);
    }
    store.close().expect("closed");
    job.leave().expect("left");
}

fn run(members: usize, link: Link, seed: u64, calls: Vec<Call>) -> Result<(), TestCaseError> {
    let shared = Arc::new((calls, Mutex::default()));
    let report = sim::run(&SimOptions::new(members, seed).link(link), move |job| {
        play(&job, &shared.0, &shared.1)
    });
    prop_assert!(report.is_ok(), "{:?} {:#?} {:#?}", report.outcome, report.panics, report.hung);
    Ok(())
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() }
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    prop::collection::vec(call(), 1..60)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_single_member_behaves_as_a_map(seed in any::<u64>(), calls in calls()) {
        run(1, Link::Memory, seed, calls)?;
    }

    #[test]
    fn several_members_behave_as_a_map(
        seed in any::<u64>(), is_network in any::<bool>(), calls in calls()
    ) {
        run(3, if is_network { Link::Network } else { Link::Memory }, seed, calls)?;
    }
}
