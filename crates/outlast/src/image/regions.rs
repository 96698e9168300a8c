//! Region checkpoints: plain memory by name, saved by all callers together or by none, for programs
//! that recover by themselves.
//!
//! The regions of a caller are an image of their own for each generation. A single record, the
//! *verdict*, says which generation counts: all callers try to write it, and the first one decides.
//!
//! | step of `checkpoint` | what it does | a death or stop in it |
//! |---|---|---|
//! | `enter` | all agree on the version, and that all live | nothing has happened; all are told |
//! | `encode` | pieces of what changed, in slots that the newest generation does not name | the newest generation stands |
//! | `describe` | put the descriptor: names, lengths, note | as `encode` |
//! | `vote` | all agree that all have described, and live | all are told, and no caller goes on |
//! | `verdict` | put the verdict, if it is as it was at `enter` | **it is saved** when the first caller has done it |
//!
//! | step of `restore` | what it does | a death or stop in it |
//! |---|---|---|
//! | `meet` | all survivors agree on the dead; a member in `checkpoint` is told | begins again |
//! | `choose` | write the verdict again, as a further restore: a late effect of an older call is impossible then | begins again |
//! | `fill` | check names and lengths, read the own regions; all agree that all could | begins again |

use super::descriptor::Descriptor;
use super::generation::Staged;
use super::stripe::hash_key;
use super::{ImageError, ImageResult, Images, Inner, Options};
use crate::engine::MemberId;
use crate::engine::deadline::Deadline;
use crate::rma;
use crate::store::{Expect, Store, StoreError, Version, mutant};
use crate::sync::lock;
use std::sync::{Arc, Mutex};

/// Region checkpoints of a job.
#[derive(Clone, Debug)]
pub struct Regions {
    images: Images,
    state: Arc<Mutex<State>>,
}

/// What this member knows of the checkpoints.
#[derive(Debug, Default)]
struct State {
    /// How many agreements this member has taken part in. All callers take part in all of them, so
    /// the number is the same at all, and that of `enter` names a generation.
    agreements: u64,
    /// The ranks that were dead at the last restore.
    dead: Vec<usize>,
    /// Whether a call had an unknown outcome: only `restore` may follow.
    must_restore: bool,
    /// A checkpoint whose verdict has an unknown outcome.
    unknown: Option<Staged>,
    /// The newest generation that counted, as far as this member knows. A verdict of an older one,
    /// or none, means that its partition was lost and the loss accepted.
    newest: u64,
}

/// Where a restored program is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// This caller's number among the callers.
    pub rank: usize,
    /// How many callers there are.
    pub size: usize,
    /// The version that was saved last; `None` if nothing was saved yet.
    pub version: Option<u64>,
    /// The note of this member's regions in that version; empty if this member saved none.
    pub note: Vec<u8>,
}

/// Whose regions to read: those of the callers of the checkpoint, numbered from 0 in the order of
/// their member numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The regions of a name of all owners, one after the other by number.
    All,
    /// The region of a single owner.
    Number(usize),
}

/// The phases of the agreements. Each is a bit, so that the agreement of members in different
/// phases has none.
const ENTER: u64 = 1 << 63;
const VOTE: u64 = 1 << 62;
const MEET: u64 = 1 << 61;
const FILLED: u64 = 1 << 60;
const PHASES: u64 = ENTER | VOTE | MEET | FILLED;
/// Whether the caller could do its part.
const FINE: u64 = 1;

/// The record that says which generation counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Verdict {
    /// 0 if nothing was saved yet.
    generation: u64,
    version: u64,
    /// How often `choose` has put it, so that no checkpoint that began before a restore takes it
    /// for the verdict that it has read.
    restores: u64,
    /// The callers, in the order of their numbers.
    owners: Vec<MemberId>,
}

impl Verdict {
    fn encode(&self) -> Vec<u8> {
        let owners = self.owners.iter().map(|owner| u64::from(owner.0));
        let words = [self.generation, self.version, self.restores].into_iter().chain(owners);
        words.flat_map(u64::to_le_bytes).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Verdict> {
        let mut words = bytes.chunks(8).map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
        let (generation, version) = (words.next()??, words.next()??);
        let restores = words.next()??;
        let owner = |word: Option<u64>| Some(MemberId(u32::try_from(word?).ok()?));
        let owners = words.map(owner).collect::<Option<Vec<MemberId>>>()?;
        Some(Verdict { generation, version, restores, owners })
    }
}

/// The names and lengths of the regions of an owner, and its note, as the note of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Table {
    regions: Vec<(String, u64)>,
    note: Vec<u8>,
}

impl Table {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = (self.regions.len() as u64).to_le_bytes().to_vec();
        for (name, len) in &self.regions {
            bytes.extend((name.len() as u64).to_le_bytes());
            bytes.extend(name.as_bytes());
            bytes.extend(len.to_le_bytes());
        }
        bytes.extend(&self.note);
        bytes
    }

    fn decode(mut bytes: &[u8]) -> Option<Table> {
        fn word(bytes: &mut &[u8]) -> Option<u64> {
            let (word, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            Some(u64::from_le_bytes(*word))
        }
        let count = word(&mut bytes)?;
        let mut regions = Vec::new();
        for _ in 0..count {
            let name_len = usize::try_from(word(&mut bytes)?).ok()?;
            let (name, rest) = bytes.split_at_checked(name_len)?;
            bytes = rest;
            regions.push((String::from_utf8(name.to_vec()).ok()?, word(&mut bytes)?));
        }
        Some(Table { regions, note: bytes.to_vec() })
    }

    /// Where a region begins in the image, and its length.
    fn find(&self, name: &str) -> Option<(u64, u64)> {
        let mut at = 0;
        for (region, len) in &self.regions {
            if region == name {
                return Some((at, *len));
            }
            at += len;
        }
        None
    }
}

impl Regions {
    /// Opens the region checkpoints of a name. All living members of the job call this with equal
    /// options, which say how many bytes a member may save, in a smaller job too, and how they are
    /// kept. Every member that opens takes part in all later calls.
    pub fn open(store: &Store, name: &str, options: Options) -> ImageResult<Regions> {
        let images = Images::open(store, &format!("regions of {name}"), options)?;
        Ok(Regions { images, state: Arc::default() })
    }

    fn inner(&self) -> &Inner {
        &self.images.inner
    }

    /// Saves regions by name, with a note, as a version. All callers give the same version; regions
    /// and notes may differ. `Ok` at one caller means that the regions of all callers can be
    /// restored in this version. After an error other than [`ImageError::Timeout`] the version
    /// before it stands, at all callers. In both cases call [`Regions::restore`] next.
    ///
    /// # Errors
    ///
    /// [`ImageError::MemberDied`] at all callers if a member died, or could not do its part, or
    /// waits in `restore`; at that member the error says why. [`ImageError::Timeout`] if a member
    /// does not call, or does not answer: `restore` says which version stands.
    pub fn checkpoint(
        &self,
        version: u64,
        note: &[u8],
        regions: &[(&str, &[u8])],
    ) -> ImageResult<()> {
        let inner = self.inner();
        let _call = inner.begin()?;
        let mut fault = self.fault(regions);
        let (dead, must_restore) = {
            let state = lock(&self.state);
            (state.dead.clone(), state.must_restore)
        };
        if must_restore {
            let reason = "the last call had an unknown outcome; call restore first".to_string();
            fault = Some(ImageError::Invalid { reason });
        }
        // `enter`
        let mask = (1 << 29) - 1;
        let hash = hash_key(&version.to_le_bytes()) & mask;
        let fine = u64::from(fault.is_none()) * FINE;
        let told = fine | (hash << 1) | ((!hash & mask) << 30);
        let flags = self.agree(ENTER, told, &dead)?;
        let generation = lock(&self.state).agreements;
        if let Some(fault) = fault {
            return Err(fault);
        }
        let is_equal = (flags >> 1) & mask == hash && (flags >> 30) & mask == !hash & mask;
        if flags & FINE == 0 {
            return Err(ImageError::MemberDied);
        }
        if !is_equal {
            let reason = format!("the callers gave different versions; here {version}");
            return Err(ImageError::Invalid { reason });
        }
        // `encode` and `describe`. A caller that could not votes no.
        let described = self.describe(generation, note, regions);
        // `vote`
        let voted = match mutant("region-vote-missing") {
            true => Ok(FINE),
            false => self.agree(VOTE, u64::from(described.is_ok()) * FINE, &dead),
        };
        let (staged, before) = match (described, &voted) {
            (Ok(described), Ok(flags)) if flags & FINE != 0 => described,
            (Ok((staged, _)), Err(error @ ImageError::Timeout { .. })) => {
                // The others may go on to the verdict.
                self.keep_unknown(staged);
                return Err(error.clone());
            }
            (Ok((staged, _)), _) => {
                // Not one caller writes the verdict, so nothing names these pieces any more.
                inner.discard_staged(staged)?;
                voted?;
                return Err(ImageError::MemberDied);
            }
            (Err(error), _) => return Err(error),
        };
        // `verdict`
        self.decide(generation, version, &dead, staged, &before)
    }

    /// Why regions are refused, if they are.
    fn fault(&self, regions: &[(&str, &[u8])]) -> Option<ImageError> {
        let len: u64 = regions.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let limit = self.inner().options.bytes;
        if len > limit {
            return Some(ImageError::TooLong { len, limit });
        }
        let names: Vec<&str> = regions.iter().map(|(name, _)| *name).collect();
        let twice = (1..names.len()).find(|index| names[..*index].contains(&names[*index]))?;
        let reason = format!("two regions have the name `{}`", names[twice]);
        Some(ImageError::Invalid { reason })
    }

    /// `encode` and `describe`; returns the save, and the verdict before it with its version.
    fn describe(
        &self,
        generation: u64,
        note: &[u8],
        regions: &[(&str, &[u8])],
    ) -> ImageResult<(Staged, (Verdict, Option<Version>))> {
        let before = self.verdict()?;
        self.note_newest(before.0.generation);
        let names = regions.iter().map(|(name, bytes)| (name.to_string(), bytes.len() as u64));
        let table = Table { regions: names.collect(), note: note.to_vec() }.encode();
        let len = regions.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let mut read = |at: u64, buffer: &mut [u8]| copy_regions(regions, at as usize, buffer);
        let me = self.inner().job.me().0.to_string();
        let staged = self.inner().stage(&me, generation, &table, len, &mut read)?;
        Ok((staged, before))
    }

    /// `verdict`: the first caller decides, and the others find its decision.
    fn decide(
        &self,
        generation: u64,
        version: u64,
        dead: &[usize],
        staged: Staged,
        before: &(Verdict, Option<Version>),
    ) -> ImageResult<()> {
        let inner = self.inner();
        let restores = before.0.restores;
        let verdict = Verdict { generation, version, restores, owners: self.callers(dead) };
        let mut version_before = before.1;
        let decided = loop {
            let expect = version_before.map_or(Expect::Absent, Expect::Version);
            match inner.store.put_if(&self.verdict_key(), &verdict.encode(), expect) {
                Ok(_) => break Ok(generation),
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => {
                    inner.note_late_record(self.verdict_key());
                    break Err(error.into());
                }
            }
            match self.verdict() {
                // A program has changed the owner of the record, and nothing else: no caller has
                // decided, and none restores. Each change has changed the version, so this ends.
                Ok((found, now)) if found == before.0 && now != version_before => {
                    version_before = now;
                }
                Ok((found, _)) => break Ok(found.generation),
                Err(error) => break Err(error),
            }
        };
        inner.end_of_save(&self.verdict_key())?;
        match decided {
            Ok(decided) if decided == generation => {}
            Ok(_) => {
                self.keep_unknown(staged);
                return Err(ImageError::MemberDied);
            }
            Err(error) => {
                self.keep_unknown(staged);
                return Err(error);
            }
        }
        self.note_newest(generation);
        inner.keep_staged(staged)?;
        // `free`: what the generation before named. A death here leaves records that no call reads;
        // the first caller deletes those of the dead.
        inner.forget_generation(&self.descriptor_key(inner.job.me(), before.0.generation));
        if verdict.owners.first() == Some(&inner.job.me()) {
            for owner in before.0.owners.iter().filter(|owner| !verdict.owners.contains(owner)) {
                let _ = inner.store.delete(&self.descriptor_key(*owner, before.0.generation));
            }
        }
        Ok(())
    }

    /// Finds the version that was saved last, and fills the given regions with what this member
    /// saved in it. All living members call this, at the start and after each error. A program that
    /// divides its data anew gives no regions, and calls [`Regions::read`] afterwards.
    ///
    /// # Errors
    ///
    /// [`ImageError::DataLost`] at all callers if the regions of an owner are beyond repair.
    /// [`ImageError::OtherLength`], or [`ImageError::Absent`] for an unknown name, before a byte is
    /// written; the other callers get [`ImageError::MemberDied`].
    pub fn restore(&self, regions: &mut [(&str, &mut [u8])]) -> ImageResult<Restored> {
        let inner = self.inner();
        let _call = inner.begin()?;
        loop {
            // `meet`
            let (phase, _, dead) = self.meet(MEET, FINE)?;
            if phase != MEET {
                if inner.job.now() >= inner.job.deadline() {
                    let limit = inner.job.time_limit();
                    return Err(ImageError::Timeout { member: inner.job.me(), limit });
                }
                continue;
            }
            // `choose`
            let chosen = self.choose();
            if let Ok(verdict) = &chosen {
                self.delete_old_descriptors(verdict, &dead);
            }
            // `fill`
            let filled = chosen.and_then(|verdict| Ok((self.fill(&verdict, regions)?, verdict)));
            let (phase, flags, dead_now) = self.meet(FILLED, u64::from(filled.is_ok()) * FINE)?;
            if phase != FILLED || dead_now != dead {
                continue;
            }
            let (note, verdict) = filled?;
            if flags & FINE == 0 {
                return Err(ImageError::MemberDied);
            }
            let callers = self.callers(&dead);
            let rank = callers.iter().position(|member| *member == inner.job.me());
            let mut state = lock(&self.state);
            state.dead = dead;
            state.must_restore = false;
            let version = (verdict.generation > 0).then_some(verdict.version);
            let rank = rank.ok_or(ImageError::Closed)?;
            return Ok(Restored { rank, size: callers.len(), version, note });
        }
    }

    /// A generation counts.
    fn note_newest(&self, generation: u64) {
        let mut state = lock(&self.state);
        state.newest = state.newest.max(generation);
    }

    /// An error if the verdict is older than a verdict that this member knows: the partition of the
    /// record was given up, and what was saved is lost with it.
    fn check_newest(&self, verdict: &Verdict) -> ImageResult<()> {
        match verdict.generation < lock(&self.state).newest {
            true => Err(ImageError::DataLost { name: "the verdict".to_string() }),
            false => Ok(()),
        }
    }

    /// `choose`: the verdict, written again with another number so that no late call can change it
    /// any more.
    fn choose(&self) -> ImageResult<Verdict> {
        let inner = self.inner();
        let (before, version) = self.verdict()?;
        self.check_newest(&before)?;
        let chosen = Verdict { restores: before.restores + 1, ..before };
        let expect = version.map_or(Expect::Absent, Expect::Version);
        let put = inner.store.put_if(&self.verdict_key(), &chosen.encode(), expect);
        if !matches!(put, Ok(_) | Err(StoreError::Conflict { .. })) {
            inner.note_late_record(self.verdict_key());
        }
        inner.end_of_save(&self.verdict_key())?;
        let verdict = match put {
            Ok(_) => chosen,
            // Another caller has done it, or a late call has come first.
            Err(StoreError::Conflict { .. }) => self.verdict()?.0,
            Err(error) => return Err(error.into()),
        };
        self.check_newest(&verdict)?;
        self.note_newest(verdict.generation);
        let unknown = lock(&self.state).unknown.take();
        if let Some(staged) = unknown {
            match verdict.generation == staged.generation() {
                true => inner.keep_staged(staged)?,
                false => inner.discard_staged(staged)?,
            }
        }
        Ok(verdict)
    }

    /// Deletes the descriptors of other generations, which a death or a timeout has left: as long
    /// as a record names them, the extents of the dead stay claimed. The first caller does it, in
    /// its turn between two agreements, so that no member writes a generation meanwhile.
    fn delete_old_descriptors(&self, verdict: &Verdict, dead: &[usize]) {
        let inner = self.inner();
        if self.callers(dead).first() != Some(&inner.job.me()) {
            return;
        }
        let generation = |key: &[u8]| {
            let number = key.rsplit(|byte| *byte == b'/').next()?;
            std::str::from_utf8(number).ok()?.parse::<u64>().ok()
        };
        // What cannot be deleted now is deleted by the next call. So a stopped member costs no more
        // than a short wait here.
        if inner.job.now() >= inner.job.deadline() {
            return;
        }
        let _background = Deadline::background(std::iter::empty());
        for key in inner.reachable_keys(b"d/r/").0 {
            if generation(&key) != Some(verdict.generation) {
                let _ = inner.store.delete(&key);
            }
        }
    }

    /// `fill`: the own regions; returns the own note.
    fn fill(&self, verdict: &Verdict, regions: &mut [(&str, &mut [u8])]) -> ImageResult<Vec<u8>> {
        let inner = self.inner();
        let me = inner.job.me();
        let mut own = None;
        for (number, owner) in verdict.owners.iter().enumerate() {
            let (descriptor, table) = self.described(number, *owner, verdict.generation)?;
            let view = inner.job.view();
            let lost = descriptor.places.iter().filter(|place| !view.is_living(place.member));
            if lost.count() > descriptor.lose {
                return Err(lost_regions(number));
            }
            if *owner == me {
                own = Some((number, table));
            }
        }
        let Some((number, table)) = own else {
            return match regions.first() {
                Some((name, _)) if verdict.generation > 0 => {
                    Err(ImageError::Absent { name: name.to_string() })
                }
                _ => Ok(Vec::new()),
            };
        };
        let mut places = Vec::new();
        for (name, buffer) in regions.iter() {
            let Some((at, saved)) = table.find(name) else {
                return Err(ImageError::Absent { name: name.to_string() });
            };
            let given = buffer.len() as u64;
            if given != saved {
                return Err(ImageError::OtherLength { name: name.to_string(), saved, given });
            }
            places.push(at);
        }
        for ((_, buffer), at) in regions.iter_mut().zip(places) {
            self.read_owner(number, me, verdict.generation, at, buffer)?;
        }
        Ok(table.note)
    }

    /// Fills `buffer` from an offset on with a region of the version that was saved last: of an
    /// owner, or of all owners one after the other. Any member may call it, at any time.
    pub fn read(
        &self,
        owner: Owner,
        name: &str,
        offset: u64,
        buffer: &mut [u8],
    ) -> ImageResult<()> {
        let _call = self.inner().begin()?;
        loop {
            let (verdict, version) = self.verdict()?;
            match self.read_of(&verdict, owner, name, offset, buffer) {
                // A newer generation has replaced what was being read.
                Err(_) if self.verdict()?.1 != version => {}
                other => return other,
            }
        }
    }

    fn read_of(
        &self,
        verdict: &Verdict,
        owner: Owner,
        name: &str,
        offset: u64,
        buffer: &mut [u8],
    ) -> ImageResult<()> {
        let end = offset.saturating_add(buffer.len() as u64);
        let mut passed = 0;
        let mut has_name = false;
        for (number, member) in verdict.owners.iter().enumerate() {
            if !matches!(owner, Owner::All) && owner != Owner::Number(number) {
                continue;
            }
            let (_, table) = self.described(number, *member, verdict.generation)?;
            let Some((at, len)) = table.find(name) else { continue };
            has_name = true;
            // The part of the wanted range that lies in this region.
            let from = offset.clamp(passed, passed + len);
            let to = end.clamp(passed, passed + len);
            if from < to {
                let part = &mut buffer[(from - offset) as usize..(to - offset) as usize];
                let at = at + from - passed;
                self.read_owner(number, *member, verdict.generation, at, part)?;
            }
            passed += len;
        }
        if !has_name {
            return Err(ImageError::Absent { name: name.to_string() });
        }
        if end > passed {
            let reason = format!("the bytes {offset}..{end} of the region `{name}` of {passed}");
            return Err(ImageError::Invalid { reason });
        }
        Ok(())
    }

    /// The regions of each owner of the version that was saved last: names and lengths.
    pub fn owners(&self) -> ImageResult<Vec<Vec<(String, u64)>>> {
        let _call = self.inner().begin()?;
        let (verdict, _) = self.verdict()?;
        let of = |(number, owner): (usize, &MemberId)| {
            Ok(self.described(number, *owner, verdict.generation)?.1.regions)
        };
        verdict.owners.iter().enumerate().map(of).collect()
    }

    /// Closes the checkpoints: they are gone. All living members call this.
    pub fn close(&self) -> ImageResult<()> {
        self.images.close()
    }

    /// Reads bytes of an owner's image.
    fn read_owner(
        &self,
        number: usize,
        owner: MemberId,
        generation: u64,
        at: u64,
        buffer: &mut [u8],
    ) -> ImageResult<()> {
        let key = self.descriptor_key(owner, generation);
        let range = at..at + buffer.len() as u64;
        let image =
            self.inner().load_image(&key, "", Some(range)).map_err(|error| match error {
                ImageError::DataLost { .. } | ImageError::Absent { .. } => lost_regions(number),
                other => other,
            })?;
        buffer.copy_from_slice(image.bytes());
        Ok(())
    }

    /// The descriptor of an owner in a generation, with its regions.
    fn described(
        &self,
        number: usize,
        owner: MemberId,
        generation: u64,
    ) -> ImageResult<(Descriptor, Table)> {
        let value = self.inner().store.get(&self.descriptor_key(owner, generation))?;
        let descriptor = value.and_then(|value| Descriptor::decode(value.bytes()));
        let table = |descriptor: Descriptor| {
            let table = Table::decode(&descriptor.note)?;
            Some((descriptor, table))
        };
        descriptor.and_then(table).ok_or_else(|| lost_regions(number))
    }

    /// Keeps the slots of a save until `restore` knows whether it counts.
    fn keep_unknown(&self, staged: Staged) {
        let mut state = lock(&self.state);
        state.must_restore = true;
        state.unknown = Some(staged);
    }

    fn verdict(&self) -> ImageResult<(Verdict, Option<Version>)> {
        match self.inner().store.get(&self.verdict_key())? {
            None => Ok((Verdict::default(), None)),
            Some(value) => match Verdict::decode(value.bytes()) {
                Some(verdict) => Ok((verdict, Some(value.version()))),
                None => Err(ImageError::DataLost { name: "the verdict".to_string() }),
            },
        }
    }

    fn verdict_key(&self) -> Vec<u8> {
        [&self.inner().prefix[..], b"v"].concat()
    }

    fn descriptor_key(&self, owner: MemberId, generation: u64) -> Vec<u8> {
        self.inner().generation_key(&owner.0.to_string(), generation)
    }

    /// The members that are not among these dead ranks.
    fn callers(&self, dead: &[usize]) -> Vec<MemberId> {
        let members = self.inner().comm.members().iter().enumerate();
        members.filter(|(rank, _)| !dead.contains(rank)).map(|(_, member)| *member).collect()
    }

    /// An agreement of all callers in a phase; returns the common phase or 0, the common flags, and
    /// the dead.
    fn meet(&self, phase: u64, flags: u64) -> ImageResult<(u64, u64, Vec<usize>)> {
        let comm = &self.inner().comm;
        comm.failure_ack()?;
        let agreed = match comm.agree_despite_failures(phase | flags) {
            Ok(agreed) => agreed,
            Err(error) => {
                if matches!(error, rma::Error::Timeout { .. }) {
                    lock(&self.state).must_restore = true;
                }
                return Err(error.into());
            }
        };
        lock(&self.state).agreements += 1;
        Ok((agreed.flags & PHASES & phase, agreed.flags & !PHASES, agreed.failed))
    }

    /// An agreement of a checkpoint: an error at all callers if not all are in it and live.
    fn agree(&self, phase: u64, flags: u64, dead: &[usize]) -> ImageResult<u64> {
        let (common, flags, dead_now) = self.meet(phase, flags)?;
        match common == phase && dead_now == dead {
            true => Ok(flags),
            false => Err(ImageError::MemberDied),
        }
    }
}

fn lost_regions(owner: usize) -> ImageError {
    ImageError::DataLost { name: format!("regions of owner {owner}") }
}

/// Copies bytes of regions that lie one after the other.
fn copy_regions(regions: &[(&str, &[u8])], at: usize, buffer: &mut [u8]) {
    let mut passed = 0;
    for (_, bytes) in regions {
        let from = at.clamp(passed, passed + bytes.len());
        let to = (at + buffer.len()).clamp(passed, passed + bytes.len());
        if from < to {
            buffer[from - at..to - at].copy_from_slice(&bytes[from - passed..to - passed]);
        }
        passed += bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_and_tables_are_read_as_they_were_written() {
        let owners = vec![MemberId(1), MemberId(4)];
        let verdict = Verdict { generation: 3, version: 100, restores: 2, owners };
        assert_eq!(Verdict::decode(&verdict.encode()), Some(verdict.clone()));
        assert_eq!(Verdict::decode(&verdict.encode()[..12]), None);
        let regions = vec![("cells".to_string(), 10), (String::new(), 5)];
        let table = Table { regions, note: b"note".to_vec() };
        assert_eq!(Table::decode(&table.encode()), Some(table.clone()));
        assert_eq!((table.find("cells"), table.find("")), (Some((0, 10)), Some((10, 5))));
        assert_eq!(table.find("other"), None);
        for len in 0..table.encode().len() - 4 {
            assert_eq!(Table::decode(&table.encode()[..len]), None);
        }
    }

    /// A member closes the regions after a death, and the others restore them: nothing is closed.
    /// When the member has left, the others find the version that was saved.
    #[cfg(feature = "sim")]
    #[test]
    fn a_member_that_closes_alone_deletes_nothing() {
        use crate::engine::Fault;
        use crate::engine::sim::{self, Link, Options as SimOptions};
        use crate::job::Job;
        use std::time::Duration;
        for seed in 0..8 {
            let mut plan = SimOptions::new(6, seed).link(Link::of_seed(seed));
            (plan.steps_max, plan.time_limit) = (20_000_000, Duration::from_secs(2));
            plan.stack_len = 2 << 20;
            sim::run(&plan, move |job: Job| {
                let records = crate::store::Options::new().replicas(3).partitions(8);
                let store = Store::open(&job, records.expected_keys(64)).expect("opened");
                let options = Options::new(1000).set(4).lose(2).piece(64).room(200);
                let regions = Regions::open(&store, "test", options).expect("opened");
                let mut cells = [1; 500];
                assert_eq!(regions.restore(&mut []).expect("nothing").version, None);
                regions.checkpoint(7, b"note", &[("cells", &cells)]).expect("saved");
                let (closer, victim) = (MemberId((seed % 2) as u32), MemberId(5));
                if job.me() == victim {
                    job.inject(Fault::Kill(victim)).expect("a fault");
                }
                while job.view().is_living(victim) {
                    job.sleep(Duration::from_millis(1));
                }
                let ended = regions.checkpoint(8, b"note", &[("cells", &[2; 500])]);
                assert!(ended.is_err(), "{ended:?}");
                if job.me() == closer {
                    let ended = regions.close();
                    assert!(matches!(ended, Err(ImageError::Timeout { .. })), "{ended:?}");
                    return job.leave().expect("left");
                }
                let restored = loop {
                    match regions.restore(&mut [("cells", &mut cells)]) {
                        Ok(restored) => break restored,
                        Err(ImageError::Timeout { .. } | ImageError::MemberDied) => {}
                        Err(error) => panic!("{error}"),
                    }
                };
                assert_eq!((restored.version, cells), (Some(7), [1; 500]));
                regions.close().expect("closed");
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }

    /// A thread is held up before it puts the first verdict, or puts the verdict anew in `restore`,
    /// while another thread of its member closes the regions with all other members. No record stays
    /// in the store.
    #[cfg(feature = "sim")]
    #[test]
    fn a_verdict_that_comes_after_the_close_does_not_stay() {
        use crate::engine::sim::{self, Link, Options as SimOptions};
        use crate::job::Job;
        use std::cell::Cell;
        use std::rc::Rc;
        use std::time::Duration;
        for seed in 0..8 {
            let mut plan = SimOptions::new(3, seed).link(Link::of_seed(seed));
            (plan.steps_max, plan.stack_len) = (20_000_000, 2 << 20);
            let late = Rc::new(Cell::new(0));
            sim::run(&plan, move |job: Job| {
                let records = crate::store::Options::new().replicas(2).partitions(8);
                let store = Store::open(&job, records.expected_keys(64)).expect("opened");
                let options = Options::new(1000).set(2).lose(1).piece(64).room(200);
                let regions = Regions::open(&store, "test", options).expect("opened");
                let is_late = job.me() == MemberId(0);
                let described = regions.describe(1, b"", &[("cells", &[1; 500])]).expect("put");
                regions.close().expect("closed");
                if is_late {
                    let (staged, before) = described;
                    let ended = match seed / 2 % 2 {
                        0 => regions.decide(1, 7, &[], staged, &before),
                        _ => regions.choose().map(drop),
                    };
                    assert_eq!(ended, Err(ImageError::Closed));
                    let left = store.scan(&regions.inner().prefix).expect("listed");
                    assert!(left.is_empty(), "{left:?}");
                    late.set(1);
                }
                while late.get() == 0 {
                    job.sleep(Duration::from_millis(1));
                }
                store.close().expect("closed");
                let _ = job.leave();
            })
            .expect_ok();
        }
    }

    /// A record of a generation that nobody deleted names extents. The next call deletes it.
    #[cfg(feature = "sim")]
    #[test]
    fn descriptors_of_old_generations_are_deleted() {
        use crate::engine::sim::{self, Options as SimOptions};
        use crate::job::Job;
        sim::run(&SimOptions::new(3, 1), move |job: Job| {
            let records = crate::store::Options::new().replicas(2).partitions(8);
            let store = Store::open(&job, records.expected_keys(64)).expect("opened");
            let options = Options::new(1000).set(2).lose(1).piece(64).room(200);
            let regions = Regions::open(&store, "test", options).expect("opened");
            regions.restore(&mut []).expect("nothing");
            regions.checkpoint(1, b"", &[("cells", &[1; 500])]).expect("saved");
            let (verdict, _) = regions.verdict().expect("read");
            // As a member leaves it that dies before `free`.
            if job.me() == MemberId(0) {
                let saved = regions.descriptor_key(MemberId(2), verdict.generation);
                let record = store.get(&saved).expect("read").expect("there");
                let old = regions.descriptor_key(MemberId(2), verdict.generation + 100);
                store.put(&old, record.bytes()).expect("put");
            }
            regions.restore(&mut []).expect("restored");
            let prefix = [&regions.inner().prefix[..], b"d/r/"].concat();
            assert_eq!(store.scan(&prefix).expect("read").len(), 3);
            regions.restore(&mut []).expect("restored");
            regions.close().expect("closed");
            store.close().expect("closed");
            let _ = job.leave();
        })
        .expect_ok();
    }

    #[test]
    fn regions_are_copied_as_if_they_lay_one_after_the_other() {
        let regions: [(&str, &[u8]); 3] = [("a", b"abc"), ("b", b""), ("c", b"defg")];
        for from in 0..7 {
            for to in from..=7 {
                let mut buffer = vec![0; to - from];
                copy_regions(&regions, from, &mut buffer);
                assert_eq!(buffer, b"abcdefg"[from..to]);
            }
        }
    }
}
