//! How a process becomes a member: it maps the job's memory, claims its slot, starts the background
//! thread that the kernel watches in its place, and waits for the others.
//!
//! | the process dies | what the others find |
//! |---|---|
//! | before it has claimed its slot | a slot without a process: its launcher declares it dead |
//! | before the kernel watches it | a process number in the slot, without a process behind it |
//! | afterwards | its robust word, marked by the kernel; see `deaths.rs` |

use super::access::Segment;
use super::layout::HEADER_EPOCH;
use super::mailbox::Mailboxes;
use super::memory::JobMemory;
use super::wait::{IS_BACKGROUND, SPIN_ALONE, SPIN_SHARED};
use super::{Shm, sys};
use crate::engine::{Engine, JoinError, JoinOptions, MemberId};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

impl Shm {
    /// Finds the job that this process was started in, or makes a job of a single member, and takes
    /// its place in it.
    pub(crate) fn attach(options: &JoinOptions) -> std::result::Result<Shm, JoinError> {
        let (memory, me) = match JobMemory::find()? {
            Some(found) => found,
            None => (JobMemory::create(1, 0, options.segment_limit)?, MemberId(0)),
        };
        let members = memory.tables.layout.members();
        Shm::take_place(memory, me, members, options)
    }

    /// Takes the place of member `me` in a job with `local_members` members on this machine.
    pub(in crate::engine) fn take_place(
        memory: JobMemory,
        me: MemberId,
        local_members: usize,
        options: &JoinOptions,
    ) -> std::result::Result<Shm, JoinError> {
        let domain = match &options.domain {
            Some(path) => path.clone(),
            None => std::env::var("OUTLAST_DOMAIN").unwrap_or_default(),
        };
        let guard = sys::ForkGuard::new()
            .map_err(|error| JoinError::System { what: "mapping a page that fork wipes", error })?;
        sys::register_for_interrupts();
        sys::check_kernel()
            .map_err(|error| JoinError::System { what: sys::PIDFD_NEEDED, error })?;
        memory.claim(me, &domain)?;
        guard.word().store(1, Ordering::SeqCst);
        let members = memory.tables.layout.members();
        let limit = memory.tables.layout.segment_limit as u64;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let find = |offset: usize, len: usize| {
            // SAFETY: kept in the same structure as the memory, which is unmapped when its last
            // holder is dropped, or not at all in a forked child, where no call gets past the
            // guard.
            unsafe { memory.tables.mapping.range(offset, len).detached() }
        };
        let [epoch_word] = find(HEADER_EPOCH, 8).words(0).expect("a word");
        let segment = |index: usize| memory.tables.layout.segment(MemberId(index as u32));
        let segments = (0..members)
            .map(|index| Segment {
                usable: AtomicU64::new(1),
                range: find(segment(index), limit as usize),
            })
            .collect();
        Ok(Shm {
            me,
            memory: Arc::new(memory),
            time_limit: options.time_limit,
            segment_limit: options.segment_limit.map_or(limit, |own| own.min(limit)),
            guard,
            dead: (0..members.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            epoch_word,
            segments,
            mailboxes: Mailboxes::new(members),
            spin: if local_members <= cores { SPIN_ALONE } else { SPIN_SHARED },
            waiting_senders: AtomicU32::new(0),
            growing: Mutex::new(()),
            #[cfg(feature = "faults")]
            planned: super::failpoint::Planned::default(),
        })
    }

    /// Starts the background thread, which the kernel watches from then on in place of this member.
    /// A member that cannot start it leaves, so that no other member waits for it.
    pub(crate) fn start_background(
        &self,
        body: Box<dyn FnOnce() + Send>,
    ) -> std::result::Result<(), JoinError> {
        self.try_start_background(body).inspect_err(|_| drop(self.leave()))
    }

    /// As [`Shm::start_background`], but the caller has to leave if it fails.
    pub(in crate::engine) fn try_start_background(
        &self,
        body: Box<dyn FnOnce() + Send>,
    ) -> std::result::Result<(), JoinError> {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (memory, me) = (self.memory.clone(), self.me);
        let run = move || {
            let (mapping, word) = (&memory.tables.mapping, memory.tables.robust_word_offset(me));
            let owned = sys::own_robust_word(mapping, word, memory.tables.robust_head_offset(me));
            let is_owned = owned.is_ok();
            IS_BACKGROUND.set(true);
            let _ = sender.send(owned);
            if !is_owned {
                return;
            }
            // A member without its background would live and neither hear nor answer. It ends, so
            // that all others know.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err() {
                sys::end_with(&format!(
                    "outlast: the background of {me} panicked; ending this process\n"
                ));
            }
            // The thread that leaves may not have entered the log yet. Should the process die
            // before it does, only the robust word would tell the others, and this thread is about
            // to give it up.
            memory.depart(me);
            sys::disown_robust_word(mapping, word);
        };
        std::thread::Builder::new()
            .name("outlast".into())
            .spawn(run)
            .map_err(|error| JoinError::System { what: "starting the background thread", error })?;
        receiver
            .recv()
            .unwrap_or_else(|_| Err(std::io::Error::other("the thread ended at once")))
            .map_err(|error| JoinError::System { what: "set_robust_list", error })?;
        self.memory.joined(self.me);
        Ok(())
    }

    /// Waits until every member has joined or is dead.
    pub(crate) fn wait_for_all(&self) -> std::result::Result<(), JoinError> {
        let until = self.now_time().after(self.time_limit);
        loop {
            let bell = self.bell_now();
            let view = self.tables().view();
            let missing = view.living().find(|&member| !self.tables().has_joined(member));
            let Some(member) = missing else { return Ok(()) };
            if self.now_time() >= until {
                // The job is not complete, so this call fails. It leaves, so that no other member
                // waits for it.
                let _ = self.leave();
                return Err(JoinError::Timeout { member, limit: self.time_limit });
            }
            self.park_foreground(bell, until);
        }
    }
}
