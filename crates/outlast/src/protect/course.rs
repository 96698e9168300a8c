//! The course: the record that says which generation counts and which member holds each seat.
//!
//! All changes are conditional puts of this single record: the verdict of a save, the assignment of
//! a rollback, and a fault that ends the run. Of two of them one wins, however late the other
//! wakes up.

use super::{ProtectError, ProtectResult};
use crate::codec::{self, Encoded};
use crate::engine::MemberId;
use crate::store::{Expect, Store, StoreError, Version, mutant};

/// Which generation counts, and which member holds each seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Course {
    /// The number of the rollback; 0 before the beginning, which counts as a rollback.
    pub(super) rollback: u64,
    /// 0 if nothing was saved yet.
    pub(super) generation: u64,
    pub(super) seats: Vec<Holder>,
    /// What ends the run.
    pub(super) fault: Option<Fault>,
}

/// The holder of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) member: MemberId,
    /// How many holders have died since the generation that counts.
    pub(super) deaths: u64,
}

/// Why a run ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Failed { seat: usize, reason: String },
    Lost { seat: usize },
}

impl From<Fault> for ProtectError {
    fn from(fault: Fault) -> ProtectError {
        match fault {
            Fault::Failed { seat, reason } => ProtectError::SeatFailed { seat, reason },
            Fault::Lost { seat } => ProtectError::SeatLost { seat },
        }
    }
}

const NO_FAULT: u8 = 1;
const FAILED: u8 = 2;
const LOST: u8 = 3;

/// How many words stand before the holders.
const HEAD: usize = 4;

impl Course {
    /// Before the beginning: each seat belongs to the regular member of its number.
    pub(super) fn first(seats: usize) -> Course {
        let holder = |seat: usize| Holder { member: MemberId(seat as u32), deaths: 0 };
        let seats = (0..seats).map(holder).collect();
        Course { rollback: 0, generation: 0, seats, fault: None }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let (tag, seat, text) = match &self.fault {
            None => (NO_FAULT, 0, ""),
            Some(Fault::Failed { seat, reason }) => (FAILED, *seat, reason.as_str()),
            Some(Fault::Lost { seat }) => (LOST, *seat, ""),
        };
        let mut words = vec![self.seats.len() as u64, self.rollback, self.generation, seat as u64];
        for holder in &self.seats {
            words.extend([u64::from(holder.member.0), holder.deaths]);
        }
        codec::encode(tag, &words, text)
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Course> {
        let encoded = Encoded::new(bytes)?;
        let words: Vec<u64> = encoded.words().collect();
        let [count, rollback, generation, seat, ..] = words[..] else { return None };
        let count = usize::try_from(count).ok()?;
        let held = words[HEAD..].chunks_exact(2).take(count);
        let holder = |words: &[u64]| {
            let member = MemberId(u32::try_from(words[0]).ok()?);
            Some(Holder { member, deaths: words[1] })
        };
        let seats = held.map(holder).collect::<Option<Vec<Holder>>>()?;
        if seats.len() != count {
            return None;
        }
        let seat = usize::try_from(seat).ok()?;
        let fault = match encoded.tag() {
            NO_FAULT => None,
            FAILED => Some(Fault::Failed { seat, reason: encoded.text_after(HEAD + 2 * count) }),
            LOST => Some(Fault::Lost { seat }),
            _ => return None,
        };
        Some(Course { rollback, generation, seats, fault })
    }

    /// The course of the next rollback: the seats of the dead go to spares without a seat, then to
    /// the members with the fewest seats that have room. `living` has the members that take part,
    /// in ascending order; those from `regulars` on are spares. All members compute it from equal
    /// arguments.
    pub(super) fn assign(
        &self,
        living: &[MemberId],
        regulars: usize,
        room: usize,
        give_up: u64,
    ) -> Course {
        let mut next = Course { rollback: self.rollback + 1, ..self.clone() };
        for seat in 0..next.seats.len() {
            if living.contains(&next.seats[seat].member) {
                continue;
            }
            let deaths = next.seats[seat].deaths + 1;
            if deaths >= give_up {
                let reason = format!(
                    "{deaths} members that held the seat have died since the last generation; no \
                     further member takes it"
                );
                next.fault = Some(Fault::Failed { seat, reason });
                return next;
            }
            let count =
                |member: &MemberId| next.seats.iter().filter(|held| held.member == *member).count();
            let is_spare = |member: &MemberId| member.index() >= regulars;
            let spare = living.iter().find(|member| is_spare(member) && count(member) == 0);
            let heir = || {
                let has_room = |member: &&MemberId| count(member) < 1 + room;
                living.iter().filter(has_room).min_by_key(|member| (count(member), member.0))
            };
            let Some(&member) = spare.or_else(heir) else {
                let reason = format!(
                    "no living member has room for the seat; each may take {room} beside its own"
                );
                next.fault = Some(Fault::Failed { seat, reason });
                return next;
            };
            next.seats[seat] = Holder { member, deaths };
        }
        next
    }

    /// The course after a save of all seats.
    pub(super) fn saved(&self, generation: u64) -> Course {
        let mut next = Course { generation, ..self.clone() };
        next.seats.iter_mut().for_each(|held| held.deaths = 0);
        next
    }

    /// The seats of a member.
    pub(super) fn seats_of(&self, member: MemberId) -> Vec<usize> {
        let held = self.seats.iter().enumerate();
        held.filter(|(_, held)| held.member == member).map(|(seat, _)| seat).collect()
    }
}

/// The record of the course in the store.
#[derive(Debug)]
pub(super) struct CourseRecord {
    store: Store,
    key: Vec<u8>,
    seats: usize,
}

impl CourseRecord {
    pub(super) fn new(store: &Store, key: Vec<u8>, seats: usize) -> CourseRecord {
        CourseRecord { store: store.clone(), key, seats }
    }

    pub(super) fn read(&self) -> ProtectResult<(Course, Expect)> {
        let Some(value) = self.store.get(&self.key)? else {
            return Ok((Course::first(self.seats), Expect::Absent));
        };
        let version: Version = value.version();
        match Course::decode(value.bytes()) {
            Some(course) => Ok((course, Expect::Version(version))),
            None => {
                let reason = "the record of the course of this run is damaged".to_string();
                Err(ProtectError::Invalid { reason })
            }
        }
    }

    /// Puts the course if the record is as it was read; returns whether it was.
    fn replace(&self, course: &Course, expect: Expect) -> ProtectResult<bool> {
        match self.store.put_if(&self.key, &course.encode(), expect) {
            Ok(_) => Ok(true),
            Err(StoreError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// `verdict`: this generation counts from now on, unless a rollback or a fault came first;
    /// returns whether it counts. Only the holder of seat 0 calls it.
    pub(super) fn decide(&self, rollback: u64, generation: u64) -> ProtectResult<bool> {
        loop {
            let (before, expect) = self.read()?;
            let after = before.saved(generation);
            if mutant("seat-verdict-after-rollback") {
                self.store.put(&self.key, &after.encode())?;
                return Ok(true);
            }
            if before.rollback != rollback || before.fault.is_some() {
                return Ok(false);
            }
            // Otherwise a program has adopted the record, which changes its version and no more.
            // Each change has changed the version, so this ends.
            if self.replace(&after, expect)? {
                return Ok(true);
            }
        }
    }

    /// `assign`: the course of the rollback that follows `rollback`. All members call it with equal
    /// arguments, and the first one decides. A course with a fault stays as it is.
    pub(super) fn assign(
        &self,
        rollback: u64,
        next: impl Fn(&Course) -> Course,
    ) -> ProtectResult<Course> {
        loop {
            let (before, expect) = self.read()?;
            if before.fault.is_some() || before.rollback > rollback {
                return Ok(before);
            }
            if before.rollback < rollback {
                // The partition of the record was given up. From the beginning would be from older
                // bytes.
                let reason = "the record of the course of this run is lost".to_string();
                return Err(ProtectError::Invalid { reason });
            }
            let after = next(&before);
            if self.replace(&after, expect)? {
                return Ok(after);
            }
        }
    }

    /// `adopt`: gives the seats of the dead to their next holders, in the rollback and the
    /// generation of now. All members call it with equal arguments, and the first one decides.
    /// `None` if no member may take them, or if the course is another one.
    pub(super) fn adopt(
        &self,
        rollback: u64,
        generation: u64,
        next: impl Fn(&Course) -> Course,
    ) -> ProtectResult<Option<Course>> {
        loop {
            let (before, expect) = self.read()?;
            let is_other = before.rollback != rollback || before.generation != generation;
            if is_other || before.fault.is_some() {
                return Ok(None);
            }
            let after = Course { rollback, ..next(&before) };
            if after.fault.is_some() {
                return Ok(None);
            }
            if after == before || self.replace(&after, expect)? {
                return Ok(Some(after));
            }
        }
    }

    /// Puts a fault into the course of a rollback, or into that of any, unless it has one.
    pub(super) fn fail(&self, rollback: Option<u64>, fault: &Fault) -> ProtectResult<()> {
        loop {
            let (before, expect) = self.read()?;
            let is_other = rollback.is_some_and(|rollback| rollback != before.rollback);
            if before.fault.is_some() || is_other {
                return Ok(());
            }
            let after = Course { fault: Some(fault.clone()), ..before };
            if self.replace(&after, expect)? {
                return Ok(());
            }
        }
    }
}

/// The record of a seat: where its memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SeatRecord {
    /// The rollback in which the holder loaded the seat.
    pub(super) rollback: u64,
    pub(super) member: MemberId,
    /// Where the memory begins in the segment of the holder.
    pub(super) offset: u64,
}

impl SeatRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        codec::encode(1, &[self.rollback, u64::from(self.member.0), self.offset], "")
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<SeatRecord> {
        let encoded = Encoded::new(bytes)?;
        let member = MemberId(u32::try_from(encoded.word(1)?).ok()?);
        Some(SeatRecord { rollback: encoded.word(0)?, member, offset: encoded.word(2)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(numbers: &[u32]) -> Vec<MemberId> {
        numbers.iter().map(|number| MemberId(*number)).collect()
    }

    fn holders(course: &Course) -> Vec<u32> {
        course.seats.iter().map(|held| held.member.0).collect()
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let mut course = Course::first(3);
        for fault in [
            None,
            Some(Fault::Lost { seat: 2 }),
            Some(Fault::Failed { seat: 1, reason: "no bread".to_string() }),
        ] {
            course = Course { rollback: 7, generation: 5, fault, ..course };
            assert_eq!(Course::decode(&course.encode()), Some(course.clone()));
        }
        let bytes = course.encode();
        for len in 0..bytes.len() - "no bread".len() {
            assert_eq!(Course::decode(&bytes[..len]), None, "{len} bytes");
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                let _ = Course::decode(&damaged);
            }
        }
        let record = SeatRecord { rollback: 3, member: MemberId(4), offset: 640 };
        assert_eq!(SeatRecord::decode(&record.encode()), Some(record));
        assert_eq!(SeatRecord::decode(&record.encode()[..20]), None);
    }

    #[test]
    fn seats_of_the_dead_go_to_spares_and_then_to_the_members_with_the_fewest() {
        let first = Course::first(4);
        // Member 4 is a spare.
        let assigned = first.assign(&members(&[0, 2, 4]), 4, 1, 8);
        assert_eq!(holders(&assigned), [0, 4, 2, 0]);
        assert_eq!((assigned.rollback, assigned.fault.clone()), (1, None));
        let again = assigned.assign(&members(&[2, 4]), 4, 1, 8);
        assert_eq!(holders(&again), [2, 4, 2, 4]);
        assert_eq!(again.seats.iter().map(|held| held.deaths).collect::<Vec<_>>(), [1, 1, 0, 2]);
        let full = again.assign(&members(&[2]), 4, 1, 8);
        assert!(matches!(full.fault, Some(Fault::Failed { seat: 1, .. })), "{full:?}");
        assert_eq!(again.seats_of(MemberId(4)), [1, 3]);
        assert_eq!(again.assign(&members(&[2, 4]), 4, 1, 8).seats, again.seats);
    }

    #[test]
    fn a_seat_whose_holders_die_too_often_has_failed() {
        let mut course = Course::first(2);
        for number in 0..8 {
            // The holder of seat 0 dies each time.
            let holder = course.seats[0].member;
            let living: Vec<MemberId> =
                (0..9).map(MemberId).filter(|member| *member != holder).collect();
            course = course.assign(&living, 2, 1, 3);
            match course.fault {
                None => assert!(number < 2),
                Some(Fault::Failed { seat: 0, .. }) => return assert_eq!(number, 2),
                Some(fault) => panic!("{fault:?}"),
            }
        }
        panic!("never given up");
    }

    #[test]
    fn a_save_forgets_the_deaths_before_it() {
        let course = Course::first(2).assign(&members(&[1]), 2, 1, 8);
        assert_eq!(course.seats[0].deaths, 1);
        let saved = course.saved(9);
        assert_eq!((saved.generation, saved.seats[0].deaths, saved.rollback), (9, 0, 1));
    }

    /// A verdict that comes after a rollback, however late, changes nothing.
    #[test]
    fn a_verdict_after_a_rollback_does_not_count() {
        let job = crate::join().expect("alone");
        let store = Store::open(&job, crate::store::Options::new()).expect("opened");
        let record = CourseRecord::new(&store, b"course".to_vec(), 2);
        let living = members(&[0, 1]);
        let next = |course: &Course| course.assign(&living, 2, 1, 8);
        assert_eq!(record.assign(0, next).expect("assigned").rollback, 1);
        assert_eq!(record.decide(1, 33), Ok(true));
        assert_eq!(record.assign(1, next).expect("assigned").generation, 33);
        assert_eq!(record.decide(1, 34), Ok(false), "of the rollback before");
        assert_eq!(record.read().expect("read").0.generation, 33);
        assert_eq!(record.decide(2, 35), Ok(true));
        let fault = Fault::Lost { seat: 1 };
        record.fail(Some(2), &fault).expect("put");
        assert_eq!(record.decide(2, 36), Ok(false), "after a fault");
        let course = record.assign(2, next).expect("read");
        assert_eq!((course.fault, course.rollback, course.generation), (Some(fault), 2, 35));
        store.close().expect("closed");
    }

    /// The first member that adopts decides, and the number of the rollback stays.
    #[test]
    fn a_seat_is_adopted_once_and_in_the_rollback_of_now() {
        let job = crate::join().expect("alone");
        let store = Store::open(&job, crate::store::Options::new()).expect("opened");
        let record = CourseRecord::new(&store, b"course".to_vec(), 2);
        let next = |course: &Course| course.assign(&members(&[0, 2]), 2, 1, 3);
        let all = |course: &Course| course.assign(&members(&[0, 1, 2]), 2, 1, 3);
        record.assign(0, all).expect("assigned");
        let adopted = record.adopt(1, 0, next).expect("adopted").expect("a holder");
        assert_eq!((holders(&adopted), adopted.rollback), (vec![0, 2], 1));
        assert_eq!(record.adopt(1, 0, next), Ok(Some(adopted)), "by another member");
        assert_eq!(record.adopt(2, 0, next), Ok(None), "of another rollback");
        assert_eq!(record.adopt(1, 7, next), Ok(None), "of another generation");
        let none = |course: &Course| course.assign(&members(&[0]), 2, 0, 3);
        assert_eq!(record.adopt(1, 0, none), Ok(None), "no member has room");
        assert_eq!(record.read().expect("read").0.seats[1].deaths, 1);
        store.close().expect("closed");
    }

    /// A store whose partition was given up has no course any more: no seat begins anew.
    #[test]
    fn a_course_that_is_lost_is_no_beginning() {
        let job = crate::join().expect("alone");
        let store = Store::open(&job, crate::store::Options::new()).expect("opened");
        let record = CourseRecord::new(&store, b"course".to_vec(), 1);
        let next = |course: &Course| course.assign(&members(&[0]), 1, 1, 8);
        assert_eq!(record.assign(0, next).expect("assigned").rollback, 1);
        store.delete(b"course").expect("deleted");
        let lost = record.assign(1, next);
        assert!(matches!(lost, Err(ProtectError::Invalid { .. })), "{lost:?}");
        store.close().expect("closed");
    }
}
