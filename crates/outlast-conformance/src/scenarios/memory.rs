//! Growth of segments, its limits, and input that must be refused.

use crate::{DATA, Inbox, Run, pattern};
use outlast::engine::{CompoundStep, Done, Fault, MESSAGE_LEN_MAX, Operation, Port};
use outlast::{Epoch, Error, MemberId};

pub(crate) fn grow_while_others_read(run: &Run) {
    const OWNER: MemberId = MemberId(0);
    const STEP: u64 = 12_345;
    run.begin(0);
    let steps = run.count(300, 10);
    let len_after = |step: u64| DATA + step * STEP;
    if run.me() == OWNER {
        for step in 1..=steps {
            run.grow(len_after(step)).expect("growing within the limit");
            let len = run.segment_len(OWNER).expect("the own segment");
            assert!(
                len >= len_after(step),
                "{run:?}: the segment has {len} bytes after step {step}"
            );
            // Growing to a smaller length has no effect.
            run.grow(DATA).expect("growing to less");
            assert_eq!(run.segment_len(OWNER), Ok(len));
            let offset = len_after(step - 1);
            let mut bytes = vec![1; STEP as usize];
            run.get(Epoch::ANY, OWNER, offset, &mut bytes).expect("get of the new bytes");
            assert!(
                bytes.iter().all(|&byte| byte == 0),
                "{run:?}: new bytes of step {step} are not zero"
            );
            run.put(Epoch::ANY, OWNER, offset, &pattern::range(offset, STEP as usize, step as u16))
                .expect("put into the new bytes");
            for other in run.others() {
                run.tell(other, 0, step);
            }
            // After some steps the owner waits for the readers, which then write into the newest
            // bytes.
            if step % 5 == 0 {
                for other in run.others() {
                    run.until_rung("a reader's write", || run.told(u64::from(other.0)) == step);
                }
            }
        }
    } else {
        let (mut known, mut last_len) = (0, DATA);
        while known < steps {
            run.until_rung("growth", || run.told(0) > known);
            known = run.told(0);
            let len = run.segment_len(OWNER).expect("the owner's segment");
            assert!(
                len >= len_after(known) && len >= last_len,
                "{run:?}: {len} bytes after {last_len}"
            );
            last_len = len;
            let mut random = run.own_random(known);
            for _ in 0..3 {
                let step = 1 + random.below(known);
                let offset = len_after(step - 1) + 16;
                let mut bytes = vec![0; STEP as usize - 16];
                run.get(Epoch::ANY, OWNER, offset, &mut bytes)
                    .expect("get of bytes that are there");
                let generations = pattern::generations(offset, &bytes);
                assert!(
                    generations.iter().all(|&generation| u64::from(generation) == step),
                    "{run:?}: the bytes of step {step} changed when the segment grew"
                );
            }
            // All bytes below the length can be read, even if the owner has not announced them yet.
            let mut byte = [0];
            run.get(Epoch::ANY, OWNER, len - 1, &mut byte).expect("get of the last byte");
            if known % 5 == 0 {
                // The expected word is wrong: the swap changes nothing, and shows that the word can
                // be reached.
                let word = (len_after(known) / 8 - 1) * 8;
                run.compare_and_swap(Epoch::ANY, OWNER, word, u64::MAX, 1)
                    .expect("a swap in the new bytes");
                run.tell(OWNER, run.id(), known);
            }
        }
    }
    run.barrier("the last growth");
    let mut all = vec![0; (len_after(steps) - DATA) as usize];
    run.get(Epoch::ANY, OWNER, DATA, &mut all).expect("get of everything");
    for step in 1..=steps {
        let offset = len_after(step - 1);
        let bytes = &all[(offset - DATA) as usize..][..STEP as usize];
        assert!(
            bytes == pattern::range(offset, STEP as usize, step as u16),
            "{run:?}: the bytes of step {step}"
        );
    }
    run.finish();
}

pub(crate) fn out_of_memory(run: &Run) {
    run.begin(64);
    run.put(Epoch::ANY, run.me(), DATA, &[7; 64]).expect("put");
    run.barrier("what must stay");
    let before = run.segment_len(run.me()).expect("the own segment");
    let is_refused = |len: u64| {
        let error = run.grow(len).expect_err("growing beyond the limit");
        assert!(
            matches!(error, Error::OutOfMemory { wanted, .. } if wanted == len),
            "{run:?}: {error:?}"
        );
    };
    for len in [u64::MAX, u64::MAX - 7, u64::MAX - 4095, 1 << 63, 1 << 62, 1 << 48, (4 << 20) + 1] {
        is_refused(len);
        assert_eq!(
            run.segment_len(run.me()),
            Ok(before),
            "{run:?}: after growing to {len} was refused"
        );
    }
    // The segment still grows up to the limit, and not beyond it.
    let mut len = before;
    while len < 4 << 20 {
        len = (2 * len).min(4 << 20);
        run.grow(len).expect("growing within the limit");
    }
    assert_eq!(run.segment_len(run.me()), Ok(4 << 20));
    is_refused((4 << 20) + 1);
    is_refused(u64::MAX);
    run.barrier("full segments");
    for target in run.all() {
        let mut found = [0; 64];
        run.get(Epoch::ANY, target, DATA, &mut found).expect("get");
        assert_eq!(found, [7; 64]);
        run.fetch_add(Epoch::ANY, target, (4 << 20) - 8 * (1 + run.id()), 1)
            .expect("the last words");
    }
    run.finish();
}

/// A wrong operation, and whether it is out of range or unaligned. If it is both, either error is
/// right.
struct Wrong {
    operation: Operation<'static>,
    out_of_range: bool,
    unaligned: bool,
}

fn wrong_operations(len: u64) -> Vec<Wrong> {
    let mut wrong = Vec::new();
    let mut add = |operation, out_of_range, unaligned| {
        wrong.push(Wrong { operation, out_of_range, unaligned });
    };
    const BYTES: &[u8] = &[0xEE; 32];
    for offset in [len - 31, len, len + 1, 1 << 32, 1 << 63, u64::MAX - 31, u64::MAX - 8, u64::MAX]
    {
        add(Operation::Put { offset, data: BYTES }, true, false);
        add(Operation::Get { offset, len: 32 }, true, false);
    }
    for (offset, len) in
        [(0, usize::MAX), (8, usize::MAX - 7), (u64::MAX, usize::MAX), (len - 1, 1 << 62)]
    {
        add(Operation::Get { offset, len }, true, false);
    }
    for offset in [len + 1, u64::MAX] {
        add(Operation::Put { offset, data: &[] }, true, false);
        add(Operation::Get { offset, len: 0 }, true, false);
    }
    let last = len - len % 8;
    for (offset, out_of_range) in [
        (last, true),
        (last + 8, true),
        (1 << 63, true),
        (u64::MAX - 7, true),
        (u64::MAX, true),
        (DATA + 1, false),
        (DATA + 4, false),
        (DATA + 7, false),
        (len - 4, true),
    ] {
        let unaligned = offset % 8 != 0;
        add(Operation::Load { offset }, out_of_range, unaligned);
        add(
            Operation::CompareAndSwap { offset, expected: 0, new: u64::MAX },
            out_of_range,
            unaligned,
        );
        add(Operation::FetchAdd { offset, delta: u64::MAX }, out_of_range, unaligned);
    }
    wrong
}

pub(crate) fn bad_input(run: &Run) {
    const LEN: u64 = 200;
    run.begin(LEN);
    let len = run.segment_len(run.me()).expect("the own segment");
    let content = run.shared_random(&[]).bytes((len - DATA) as usize);
    run.put(Epoch::ANY, run.me(), DATA, &content).expect("put");
    run.barrier("what must stay");
    for target in run.all() {
        assert_eq!(run.segment_len(target), Ok(len), "both segments are alike");
        for Wrong { operation, out_of_range, unaligned } in wrong_operations(len) {
            for at in [Epoch::ANY, run.epoch()] {
                match run.wait(run.start(at, target, operation)) {
                    Err(Error::OutOfRange { member, offset, len: asked, segment_len })
                        if out_of_range =>
                    {
                        let (expected, bytes) = operation.range();
                        assert_eq!((member, offset, asked), (target, expected, bytes as u64));
                        assert_eq!(
                            segment_len, len,
                            "{run:?}: the length that {operation:?} was told"
                        );
                    }
                    Err(Error::Unaligned { offset }) if unaligned => {
                        assert_eq!(offset, operation.range().0)
                    }
                    other => panic!("{run:?}: {operation:?} at {target} gave {other:?}"),
                }
            }
        }
        let beyond = [CompoundStep::Load { offset: len - len % 8 }];
        let refused = run.wait(run.start_compound(Epoch::ANY, target, &beyond));
        assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{run:?}: {refused:?}");
        let odd = [CompoundStep::Swap { offset: DATA + 4, expected: 0, new: 0 }];
        let refused = run.wait(run.start_compound(Epoch::ANY, target, &odd));
        assert_eq!(refused, Err(Error::Unaligned { offset: DATA + 4 }), "{run:?}");
        // An empty range is valid unless it begins beyond the end.
        for offset in [0, DATA + 3, len] {
            assert_eq!(run.put(Epoch::ANY, target, offset, &[]), Ok(()));
            assert_eq!(
                run.wait(run.start(Epoch::ANY, target, Operation::Get { offset, len: 0 })),
                Ok(Done::Get(vec![]))
            );
        }
    }
    for member in
        [run.members() as u32, run.members() as u32 + 1, 4095, 4096, u32::MAX].map(MemberId)
    {
        let unknown = Error::UnknownMember { member, members: run.members() };
        let word = DATA;
        for operation in [
            Operation::Put { offset: word, data: &[1] },
            Operation::Get { offset: word, len: 1 },
            Operation::Load { offset: word },
            Operation::CompareAndSwap { offset: word, expected: 0, new: 1 },
            Operation::FetchAdd { offset: word, delta: 1 },
        ] {
            assert_eq!(
                run.wait(run.start(Epoch::ANY, member, operation)),
                Err(unknown.clone()),
                "{operation:?}"
            );
        }
        assert_eq!(run.put(Epoch::ANY, member, word, &[1]), Err(unknown.clone()));
        assert_eq!(run.get(Epoch::ANY, member, word, &mut [0]), Err(unknown.clone()));
        assert_eq!(run.load(Epoch::ANY, member, word), Err(unknown.clone()));
        assert_eq!(run.compare_and_swap(Epoch::ANY, member, word, 0, 1), Err(unknown.clone()));
        assert_eq!(run.fetch_add(Epoch::ANY, member, word, 1), Err(unknown.clone()));
        assert_eq!(run.send(member, Port::User, &[1]), Err(unknown.clone()));
        assert_eq!(run.ring(member), Err(unknown.clone()));
        assert_eq!(run.segment_len(member), Err(unknown.clone()));
        assert_eq!(run.domain(member), Err(unknown.clone()));
        assert_eq!(run.fence(member, run.now()), Err(unknown.clone()));
        for fault in [Fault::Kill(member), Fault::Stop(member), Fault::Resume(member)] {
            assert_eq!(run.inject(fault), Err(unknown.clone()), "{fault:?}");
        }
    }
    let mut inbox = Inbox::new(run, Port::User, 0);
    for target in run.all() {
        for len in [MESSAGE_LEN_MAX + 1, 2 * MESSAGE_LEN_MAX] {
            assert_eq!(
                run.send(target, Port::User, &vec![9; len]),
                Err(Error::MessageTooLong { len })
            );
        }
        inbox.send(target, 12);
    }
    let all: Vec<MemberId> = run.all().collect();
    inbox.await_from(&all, 1);
    run.barrier("all that is wrong");
    for target in run.all() {
        let mut found = vec![0; content.len()];
        run.get(Epoch::ANY, target, DATA, &mut found).expect("get");
        assert!(found == content, "{run:?}: wrong operations changed the segment of {target}");
    }
    run.check_dead(&[]);
    run.finish();
}
