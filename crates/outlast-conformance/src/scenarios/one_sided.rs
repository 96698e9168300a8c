//! Put, get and the operations on words, without deaths.

use crate::{DATA, Inbox, Random, Run, pattern};
use outlast::engine::{COMPOUND_LEN_MAX, CompoundStep, Done, Operation, Pending, Port};
use outlast::{Epoch, Error, MemberId};
use std::time::Duration;

/// The length of the region that each member has at each target.
const REGION: u64 = 1024;

/// The puts of a writer to its region at a target, in order. They follow from the seed, so that the
/// target can compute the content of its own memory. Returns the final content.
fn random_region(
    run: &Run,
    writer: MemberId,
    target: MemberId,
    mut each: impl FnMut(u64, &[u8], &[u8]),
) -> Vec<u8> {
    let mut random = run.shared_random(&[u64::from(writer.0), u64::from(target.0)]);
    let mut region = vec![0; REGION as usize];
    for _ in 0..run.count(200, 12) {
        let offset = random.below(REGION + 1);
        let longest = REGION - offset;
        let len = random.below(longest + 1).min(if random.below(4) == 0 { longest } else { 40 });
        let data = random.bytes(len as usize);
        region[offset as usize..][..len as usize].copy_from_slice(&data);
        each(offset, &data, &region);
    }
    region
}

pub(crate) fn pairs(run: &Run) {
    run.begin(run.members() as u64 * REGION);
    let region_of = |member: MemberId| DATA + u64::from(member.0) * REGION;
    let mine = region_of(run.me());
    let mut at = [Epoch::ANY, run.epoch()].into_iter().cycle();
    for target in run.all() {
        let mut at = || at.next().expect("endless");
        random_region(run, run.me(), target, |offset, data, region| {
            run.put(at(), target, mine + offset, data).expect("put");
            let mut found = vec![0xAA; REGION as usize];
            run.get(at(), target, mine, &mut found).expect("get");
            assert!(
                found == region,
                "{run:?}: after a put of {} bytes at {offset} of {target}",
                data.len()
            );
        });
    }
    run.barrier("the puts of all");
    for writer in run.all() {
        let mut found = vec![0; REGION as usize];
        run.get(run.epoch(), run.me(), region_of(writer), &mut found)
            .expect("get from the own segment");
        let expected = random_region(run, writer, run.me(), |_, _, _| ());
        assert!(found == expected, "{run:?}: what {writer} wrote into this segment");
    }
    run.barrier("the checks of all");
    for target in run.all() {
        let mut at = || at.next().expect("endless");
        words(run, target, mine, &mut at);
        assert!(
            run.segment_len(target).expect("segment_len") >= DATA + run.members() as u64 * REGION
        );
        run.domain(target).expect("every member has a domain, if only an empty one");
    }
    run.check_dead(&[]);
    run.finish();
}

/// Checks the operations on words, at this member's words at `base`.
fn words(run: &Run, target: MemberId, base: u64, at: &mut dyn FnMut() -> Epoch) {
    let word = base + 16;
    let value = 0x0102_0304_0506_0700 + run.id();
    run.put(at(), target, base, &[0; 40]).expect("put");
    run.put(at(), target, word, &value.to_le_bytes()).expect("put of a word");
    assert_eq!(
        run.load(at(), target, word),
        Ok(value),
        "a load sees the little-endian bytes of a put"
    );
    assert_eq!(
        run.compare_and_swap(at(), target, word, value + 1, 5),
        Ok(value),
        "another word is expected"
    );
    assert_eq!(
        run.load(at(), target, word),
        Ok(value),
        "a compare-and-swap that fails changes nothing"
    );
    assert_eq!(run.compare_and_swap(at(), target, word, value, u64::MAX - 1), Ok(value));
    assert_eq!(run.fetch_add(at(), target, word, 3), Ok(u64::MAX - 1));
    assert_eq!(run.fetch_add(at(), target, word, 0), Ok(1), "an addition wraps");
    assert_eq!(run.fetch_add(at(), target, word, u64::MAX), Ok(1), "an addition of -1");
    assert_eq!(run.compare_and_swap(at(), target, word, 0, 0x1122_3344_5566_7788), Ok(0));
    let mut found = [0xFF; 40];
    run.get(at(), target, base, &mut found).expect("get");
    let mut expected = [0; 40];
    expected[16..24].copy_from_slice(&0x1122_3344_5566_7788u64.to_le_bytes());
    assert_eq!(found, expected, "the words beside it are untouched");
    compounds(run, target, base, at);
}

/// Checks compound operations, at this member's words at `base`.
fn compounds(run: &Run, target: MemberId, base: u64, at: &mut dyn FnMut() -> Epoch) {
    let [first, second, third] = [base, base + 8, base + 16];
    run.put(at(), target, base, &[0; 40]).expect("put");
    let mut start = |parts: &[CompoundStep<'_>]| run.wait(run.start_compound(at(), target, parts));
    let expect = |offset, word| CompoundStep::Expect { offset, word };
    let swap = |expected, new| CompoundStep::Swap { offset: second, expected, new };
    let put = |data| CompoundStep::Put { offset: third, data };
    let all = [
        expect(first, 0),
        put(b"odd".as_slice()),
        swap(0, 7),
        CompoundStep::Load { offset: second },
    ];
    assert_eq!(
        start(&all),
        Ok(Done::Compound { done: 4, word: 7 }),
        "{run:?}: all is as expected at {target}"
    );
    let stops = [expect(second, 8), put(b"no!"), swap(7, 9)];
    assert_eq!(
        start(&stops),
        Ok(Done::Compound { done: 0, word: 7 }),
        "{run:?}: another word is expected"
    );
    let stops = [put(b"yes"), swap(8, 9), expect(first, 0)];
    assert_eq!(
        start(&stops),
        Ok(Done::Compound { done: 1, word: 7 }),
        "{run:?}: a swap that fails ends the compound operation"
    );
    assert_eq!(
        start(&[]),
        Ok(Done::Compound { done: 0, word: 0 }),
        "{run:?}: an empty compound operation"
    );
    let long = vec![1; COMPOUND_LEN_MAX];
    let refused = start(&[put(&long)]);
    assert!(
        matches!(refused, Err(Error::MessageTooLong { len }) if len > COMPOUND_LEN_MAX),
        "{refused:?}"
    );
    let mut found = [0xFF; 24];
    run.get(at(), target, base, &mut found).expect("get");
    let mut expected = [0; 24];
    expected[8] = 7;
    expected[16..19].copy_from_slice(b"yes");
    assert_eq!(found, expected, "{run:?}: the words after the compound operations at {target}");
}

pub(crate) fn job_of_one(run: &Run) {
    run.begin(REGION + 64);
    assert_eq!(run.members(), 1);
    assert_eq!(run.me(), MemberId(0));
    let region = random_region(run, run.me(), run.me(), |offset, data, _| {
        run.put(Epoch(0), run.me(), DATA + offset, data).expect("put");
    });
    let mut found = vec![0; REGION as usize];
    run.get(Epoch::ANY, run.me(), DATA, &mut found).expect("get");
    assert!(found == region);
    words(run, run.me(), DATA, &mut || Epoch::ANY);
    let mut inbox = Inbox::new(run, Port::User, 0);
    for len in [0, 1, 100, 70_000] {
        inbox.send(run.me(), len);
    }
    inbox.await_from(&[run.me()], 4);
    let job = run.job().clone();
    let word = DATA + REGION;
    let activity = run
        .spawn("alone", Box::new(move || drop(job.fetch_add(Epoch::ANY, job.me(), word, 7))))
        .expect("spawn");
    run.until_rung("the activity's end", || activity.is_finished());
    assert_eq!(run.load(Epoch::ANY, run.me(), word), Ok(7));
    run.check_dead(&[]);
    run.finish();
}

pub(crate) fn order(run: &Run) {
    const PAYLOAD: usize = 512;
    const WRITER: MemberId = MemberId(0);
    const TARGET: MemberId = MemberId(1);
    let (payload, flag) = (DATA + 64, DATA);
    run.begin(64 + PAYLOAD as u64);
    let rounds = run.count(300, 12) as u16;
    let readers: Vec<MemberId> = run.all().filter(|&member| member != WRITER).collect();
    for round in 1..=rounds {
        let generation = 2 * round;
        if run.me() == WRITER {
            let first = pattern::range(payload, PAYLOAD, generation - 1);
            let second = pattern::range(payload, PAYLOAD, generation);
            let number = u64::from(round);
            let puts = [&first, &second].map(|data| {
                run.start(Epoch::ANY, TARGET, Operation::Put { offset: payload, data })
            });
            let swap =
                Operation::CompareAndSwap { offset: flag, expected: number - 1, new: number };
            let add = Operation::FetchAdd { offset: flag, delta: 1 };
            let publish = run.start(Epoch::ANY, TARGET, if round % 2 == 0 { swap } else { add });
            assert_eq!(run.wait(publish), Ok(Done::Word(number - 1)));
            for put in puts {
                assert_eq!(run.wait(put), Ok(Done::Put));
            }
            run.until_rung("what the readers saw", || {
                readers.iter().all(|reader| run.told(u64::from(reader.0)) == number)
            });
        } else {
            run.until("the flag", || {
                run.load(Epoch::ANY, TARGET, flag).expect("load of the flag") == u64::from(round)
            });
            let mut bytes = vec![0; PAYLOAD];
            run.get(Epoch::ANY, TARGET, payload, &mut bytes).expect("get of the payload");
            for found in pattern::generations(payload, &bytes) {
                assert_eq!(found, generation, "{run:?}: the payload behind flag {round}");
            }
            run.tell(WRITER, run.id(), u64::from(round));
        }
    }
    run.finish();
}

pub(crate) fn in_flight(run: &Run) {
    let depth = run.count(64, 10);
    let slots = 8 * depth;
    run.begin(slots * run.members() as u64 + 64 * run.members() as u64);
    let counters = DATA + slots * run.members() as u64;
    let mut random = run.own_random(0);
    for round in 1..=run.count(20, 2) {
        // The operations in the order in which they were started.
        let mut started: Vec<(MemberId, u64, Pending)> = Vec::new();
        for index in 0..depth {
            for target in run.all() {
                let add = Operation::FetchAdd { offset: counters + 64 * run.id(), delta: 1 };
                started.push((target, index, run.start(Epoch::ANY, target, add)));
            }
            for target in run.all() {
                let offset = DATA + slots * run.id() + 8 * index;
                let data = random.number().to_le_bytes();
                let put = run.start(run.epoch(), target, Operation::Put { offset, data: &data });
                let get = run.start(run.epoch(), target, Operation::Get { offset, len: 8 });
                assert_eq!(
                    run.wait(get),
                    Ok(Done::Get(data.to_vec())),
                    "a get after a put that is in flight"
                );
                assert_eq!(run.wait(put), Ok(Done::Put));
            }
        }
        let mut found = vec![vec![None; depth as usize]; run.members()];
        while !started.is_empty() {
            let chosen = random.below(started.len() as u64) as usize;
            let (target, index, mut pending) = started.swap_remove(chosen);
            if random.below(2) == 0 {
                let mut result = None;
                run.until("an operation that is only polled", || {
                    result = run.poll(&mut pending);
                    result.is_some()
                });
                found[target.index()][index as usize] =
                    result.map(|result| result.expect("an add").word());
                assert_eq!(run.poll(&mut pending), None, "a result is given once");
            } else {
                found[target.index()][index as usize] =
                    Some(run.wait(pending).expect("an add").word());
            }
        }
        for found in found {
            let found: Vec<u64> =
                found.into_iter().map(|word| word.expect("all were waited for")).collect();
            assert!(
                found.is_sorted_by(|word, next| word + 1 == *next),
                "adds in another order: {found:?}"
            );
        }
        for target in run.all() {
            for _ in 0..3 {
                let nothing =
                    Operation::FetchAdd { offset: counters + 64 * run.id() + 8, delta: 1 };
                drop(run.start(Epoch::ANY, target, nothing));
            }
            let forgotten =
                run.fetch_add(Epoch::ANY, target, counters + 64 * run.id() + 8, 0).expect("an add");
            assert!(
                forgotten <= 3 * round,
                "{forgotten} of {} forgotten operations happened",
                3 * round
            );
        }
    }
    run.finish();
}

pub(crate) fn atomics_add_up(run: &Run) {
    let each = run.count(2000, 15);
    let members = run.members() as u64;
    let (added, swapped, hot, seen) = (DATA, DATA + 8, DATA + 16, DATA + 64);
    // The numbers of this member's additions and swaps, in its own memory.
    let (own_hot, own_added, own_swapped) = (DATA + 24, DATA + 32, DATA + 40);
    run.begin(64 + 8 * each * members);
    // Over a network each operation takes a round trip: fewer are sufficient.
    let as_often_as = |count: u64, own: u64, act: &mut dyn FnMut()| {
        let until = run.now().after(Duration::from_secs(2));
        let done = (0..count).take_while(|_| run.now() < until).map(|_| act()).count() as u64;
        run.fetch_add(Epoch::ANY, run.me(), own, done).expect("the own memory");
    };
    let sum = |own: u64| -> u64 {
        run.all().map(|member| run.load(Epoch::ANY, member, own).expect("load")).sum()
    };
    // All members add to a single word as fast as they can: an addition that is not atomic would be
    // lost.
    as_often_as(run.count(100_000, 15), own_hot, &mut || {
        run.fetch_add(Epoch::ANY, MemberId(0), hot, 1).expect("fetch_add");
    });
    run.barrier("additions to one word");
    assert_eq!(
        run.load(Epoch::ANY, MemberId(0), hot),
        Ok(sum(own_hot)),
        "{run:?}: additions to one word"
    );
    let mut last = vec![None; run.members()];
    as_often_as(each, own_added, &mut || {
        for target in run.all() {
            let before = run.fetch_add(Epoch::ANY, target, added, 1).expect("fetch_add");
            assert!(
                last[target.index()] < Some(before),
                "{run:?}: a counter went back to {before}"
            );
            last[target.index()] = Some(before);
            assert!(before < each * members, "{run:?}: a counter is at {before}");
            let times = run.fetch_add(Epoch::ANY, target, seen + 8 * before, 1).expect("fetch_add");
            assert_eq!(times, 0, "{run:?}: two adds at {target} found {before}");
        }
    });
    let mut random = run.own_random(1);
    as_often_as(each, own_swapped, &mut || {
        let target = MemberId(random.below(2) as u32);
        let mut expected = run.load(Epoch::ANY, target, swapped).expect("load");
        loop {
            let found = run
                .compare_and_swap(Epoch::ANY, target, swapped, expected, expected + 1)
                .expect("swap");
            if found == expected {
                break;
            }
            assert!(found > expected, "{run:?}: a counter went back from {expected} to {found}");
            expected = found;
        }
    });
    run.barrier("all additions");
    assert_eq!(run.load(Epoch::ANY, run.me(), added), Ok(sum(own_added)));
    let swaps: u64 =
        run.all().map(|target| run.load(Epoch::ANY, target, swapped).expect("load")).sum();
    assert_eq!(swaps, sum(own_swapped));
    run.finish();
}

pub(crate) fn words_are_not_torn(run: &Run) {
    rewrite_and_read(run, 8);
}

pub(crate) fn words_are_not_torn_unaligned(run: &Run) {
    rewrite_and_read(run, 1);
}

/// Every member rewrites its region at each target, and reads parts of all regions at all targets.
/// Ranges begin and end at multiples of `grain`. The private memory of the copies has any
/// alignment.
fn rewrite_and_read(run: &Run, grain: u64) {
    const LEN: u64 = 600;
    run.begin(run.members() as u64 * 1024);
    let mut random = run.own_random(2);
    let range_of = |writer: u64| {
        let mut random = Random::of(&[writer]);
        let shift = random.below(16) / grain * grain;
        (DATA + 1024 * writer + shift, (LEN + random.below(200)) / grain * grain)
    };
    let rounds = run.count(5000, 12) as u16;
    let targets: Vec<MemberId> = run.all().collect();
    let mut newest = vec![0; run.members() * run.members()];
    let mut buffer = vec![0; 1024];
    for generation in 1..=rounds {
        for &target in &targets {
            let (offset, len) = range_of(run.id());
            let private = &mut buffer[random.below(16) as usize..][..len as usize];
            private.copy_from_slice(&pattern::range(offset, len as usize, generation));
            run.put(Epoch::ANY, target, offset, private).expect("put");
        }
        let (target, writer) = (random.pick(&targets), random.below(run.members() as u64));
        let (offset, len) = range_of(writer);
        let skip = random.below(len / 2) / grain * grain;
        let (offset, len) = (offset + skip, len - skip);
        let len = len - random.below(len / 2) / grain * grain;
        let private = &mut buffer[random.below(16) as usize..][..len as usize];
        run.get(Epoch::ANY, target, offset, private).expect("get");
        let newest = &mut newest[target.index() * run.members() + writer as usize];
        let found = pattern::generations(offset, private);
        for &found in &found {
            assert!(
                found <= rounds,
                "{run:?}: a word of generation {found}, which no member wrote"
            );
            assert!(
                found + 1 >= *newest,
                "{run:?}: a word of generation {found} long after {newest}"
            );
        }
        *newest = found.into_iter().fold(*newest, u16::max);
    }
    run.finish();
}
