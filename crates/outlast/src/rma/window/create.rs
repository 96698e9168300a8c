//! Making a window.
//!
//! 1. *duplicate*: the members make the channel. If a member dies meanwhile, some members may have
//!    the channel and others not. Members without it return, and no member can complete a later
//!    step.
//! 2. *reserve*: each member reserves and clears its memory. No other member knows of it yet. The
//!    time that this takes is no wait, and does not count against the time limit of the call.
//! 3. *gather*: all members gather the offsets of all control blocks. A member that completes this
//!    step knows that all have the channel. If a member dies, some members may have gathered all
//!    and others not. A member that has not votes no, without waiting, releases its memory and
//!    returns.
//! 4. *agree*: all members that completed *gather* agree whether all members have, and whether all
//!    had memory. Afterwards all members have the window, or none has, and each releases its
//!    memory. A member that does not get the outcome in time keeps its memory reserved for ever:
//!    others may have the window, and use it.

use super::directory::{self, Directory, OwnMemory, WindowRange, write_block};
use super::free::release;
use super::layout::ControlLayout;
use super::{ATTACHED, PHASE_LIVE, SharedWindow, Window, WindowError, WindowResult, WindowState};
use crate::engine::deadline::Deadline;
use crate::engine::{self};
use crate::rma::Communicator;
use crate::rma::progress::begin_call;
use crate::{Epoch, Job, MemberSet};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};

/// Memory is cleared in pieces of this length.
const CLEAR_LEN: usize = 1 << 16;

impl Window {
    pub(super) fn make(comm: &Communicator, len: u64, is_open: bool) -> WindowResult<Window> {
        let (job, size) = (comm.job().clone(), comm.size());
        let _call = begin_call(&job);
        let layout = ControlLayout::new(size);
        let channel = comm.duplicate()?;
        // Clearing memory is no wait: the others may need as long for it.
        let prepared = Deadline::compute(|| job.now(), || prepare(&job, layout, len));
        let (control, word, base) = match &prepared {
            Ok((control, owned)) => {
                (*control, owned.word, owned.ranges.first().map_or(0, |base| base.place))
            }
            Err(_) => (0, 0, 0),
        };
        let give_back = |prepared: WindowResult<(u64, OwnMemory)>| {
            if let Ok((control, owned)) = prepared {
                release(&job, layout, control, owned);
            }
        };
        let offer = Offer { is_ready: prepared.is_ok(), is_open, control, word, base, len };
        let gathered = match channel.allgather(&offer.encode()) {
            Ok(all) => check_offers(&all, is_open),
            Err(error) => {
                // No member can have the window without this member's vote, so this member need not
                // wait for the outcome.
                vote_no(&job, &channel);
                give_back(prepared);
                return Err(error.into());
            }
        };
        let is_fine = prepared.is_ok() && gathered.is_ok();
        // On an error the memory stays reserved: others may have the window.
        let agreed = channel.agree_despite_failures(u64::from(is_fine))?;
        if agreed.flags & 1 == 0 {
            let _ = channel.free();
            let own_error = prepared.as_ref().err().cloned();
            give_back(prepared);
            return Err(own_error.or(gathered.err()).unwrap_or(match agreed.failed.is_empty() {
                false => WindowError::ProcFailed { ranks: agreed.failed },
                true => {
                    WindowError::Invalid { what: "another member could not make the window".into() }
                }
            }));
        }
        let (offers, (control, owned)) = (gathered?, prepared?);
        let directories = offers.iter().map(|offer| Some(Arc::new(offer.directory()))).collect();
        let mut controls: Vec<u64> = offers.iter().map(|offer| offer.control).collect();
        let me = comm.rank();
        controls[me] = control;
        let shared = SharedWindow {
            members: comm.members().to_vec(),
            comm: comm.clone(),
            channel: Mutex::new(channel),
            me,
            layout,
            controls,
            is_open,
            next_ticket: AtomicU64::new(1),
            phase: AtomicU32::new(PHASE_LIVE),
            calls: AtomicUsize::new(0),
            state: Mutex::new(WindowState { directories, ..WindowState::default() }),
            owned: Mutex::new(Some(owned)),
            dead: Mutex::new((Epoch(0), MemberSet::new())),
            job,
        };
        Ok(Window { shared: Arc::new(shared) })
    }
}

/// Votes against making a window, for members that wait for the vote. The vote runs in an activity
/// of its own: if some member has no channel, no member waits for votes and the agreement ends only
/// at the time limit.
fn vote_no(job: &Job, channel: &Communicator) {
    let voter = channel.clone();
    let vote = move || {
        let _ = voter.agree_despite_failures(0);
        let _ = voter.free();
    };
    if job.spawn("vote", Box::new(vote)).is_err() {
        let _ = channel.agree_despite_failures(0);
    }
}

/// The offsets that a member tells the others when a window is made.
struct Offer {
    is_ready: bool,
    is_open: bool,
    control: u64,
    word: u64,
    base: u64,
    len: u64,
}

impl Offer {
    fn encode(&self) -> Vec<u8> {
        let words = [
            u64::from(self.is_ready),
            u64::from(self.is_open),
            self.control,
            self.word,
            self.base,
            self.len,
        ];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Offer> {
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
            .collect();
        let [is_ready, is_open, control, word, base, len] = words[..] else { return None };
        Some(Offer { is_ready: is_ready == 1, is_open: is_open == 1, control, word, base, len })
    }

    fn directory(&self) -> Directory {
        Directory { word: self.word, ranges: base_ranges(self.base, self.len) }
    }
}

fn base_ranges(place: u64, len: u64) -> Vec<WindowRange> {
    if len == 0 { Vec::new() } else { vec![WindowRange { begin: 0, len, place }] }
}

/// The decoded offers, if all members can make a window of this type.
fn check_offers(all: &[Vec<u8>], is_open: bool) -> WindowResult<Vec<Offer>> {
    let refuse = |what: String| Err(WindowError::Invalid { what });
    let mut offers = Vec::with_capacity(all.len());
    for (rank, bytes) in all.iter().enumerate() {
        match Offer::decode(bytes) {
            None => return refuse(format!("rank {rank} does not make a window")),
            Some(offer) if !offer.is_ready => {
                return refuse(format!("rank {rank} could not reserve memory for the window"));
            }
            Some(offer) if offer.is_open != is_open => {
                return refuse(format!(
                    "rank {rank} calls Window::{}, and this member calls the other",
                    if offer.is_open { "open" } else { "allocate" }
                ));
            }
            Some(offer) => offers.push(offer),
        }
    }
    Ok(offers)
}

/// Reserves and clears a member's control block and memory.
fn prepare(job: &Job, layout: ControlLayout, len: u64) -> WindowResult<(u64, OwnMemory)> {
    if len > ATTACHED {
        return Err(too_long(len));
    }
    let control = reserve_cleared(job, layout.len())?;
    let mut owned = OwnMemory {
        ranges: Vec::new(),
        word: 0,
        block: (0, 0),
        next_attached: ATTACHED,
        detached: Vec::new(),
    };
    let filled = (|| {
        if len > 0 {
            owned.ranges = base_ranges(reserve_cleared(job, len)?, len);
        }
        write_block(job, control, &mut owned)
    })();
    match filled {
        Ok(()) => Ok((control, owned)),
        Err(error) => {
            release(job, layout, control, owned);
            Err(error)
        }
    }
}

pub(super) fn reserve_cleared(job: &Job, len: u64) -> WindowResult<u64> {
    let place = job.reserve(len)?;
    if place > directory::PLACE_MAX {
        job.release(place, len);
        return Err(too_long(len));
    }
    let zeros = vec![0; (len as usize).min(CLEAR_LEN)];
    let mut at = 0;
    while at < len {
        let piece = (len - at).min(CLEAR_LEN as u64);
        if let Err(error) = job.put(Epoch::ANY, job.me(), place + at, &zeros[..piece as usize]) {
            job.release(place, len);
            return Err(error.into());
        }
        at += piece;
    }
    Ok(place)
}

pub(super) fn too_long(len: u64) -> WindowError {
    WindowError::Engine(engine::Error::OutOfMemory {
        wanted: len,
        reason: "no window can be that long".into(),
    })
}
