//! Pins: a version that stays readable while others change the key.
//!
//! Versions are immutable, and their blocks are used again when nobody can see them any more. A pin names the blocks of one
//! version, at every home that holds it, in a table in the pinning member's own segment; whoever wants to use a block again
//! looks at these tables after it saw all operations end, and puts those that are named aside. Nothing else waits: neither
//! writers, who publish new versions as always, nor the reuse of any other block.
//!
//! | | step | true afterwards | dies or stops here |
//! |---|---|---|---|
//! | P1 | announce the slot of the table, before the operation begins | whoever looked for tables before that took its blocks away before the operation began, which cannot come to see them | the slot is empty |
//! | P2 | inside the operation: find the settled version, and where each home has it | nobody who took it away since the operation began uses it before the operation ends | nothing has happened |
//! | P3 | write these places into the slot | | dead: nobody looks at its table any more, and the blocks are used again. Stopped: they stay |
//! | P4 | end the operation | whoever waits for it finds the slot | as P3 |
//! | P5 | drop: empty the slot | | as P3 |
//!
//! What a pin keeps is one block at each home: at most [`PINS`] versions for each member. A home that dies takes its copy
//! with it, and repair does not bring it up again: the pinned version can be read while one of those homes lives.

use super::access::{Halt, Op, Step};
use super::index::KeyRef;
use super::layout::{Block, Kind, PIN_WORDS, PINS, PINS_SHIFT, value_start};
use super::open::Inner;
use super::{Store, StoreError, StoreResult, Version};
use crate::engine::{Epoch, Error, MemberId};
use crate::sync::lock;
use std::fmt;
use std::sync::Mutex;

/// Which slots of the own table are in use.
#[derive(Default)]
pub(super) struct Pins(Mutex<u64>);

/// A version, and where its homes have it.
type Pinned = (Block, Vec<(MemberId, u64)>);

/// Where a version is at one home, as a word of the table.
pub(super) fn pin_word(home: MemberId, offset: u64) -> u64 {
    (u64::from(home.0) + 1) << 40 | offset >> 4
}

/// One version of a key that stays readable until this is dropped, whatever becomes of the key; see [`Store::pin`].
///
/// Writers never wait for it. It ends with the death of its member. It keeps one block of memory at each home that held the
/// version, and the version is lost when all of these have died or left.
pub struct Pin {
    store: Store,
    slot: usize,
    partition: usize,
    key: Box<[u8]>,
    block: Block,
    places: Vec<(MemberId, u64)>,
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin({}, {} bytes)", self.version(), self.len())
    }
}

impl Store {
    /// Pins the present version of a key, so that parts of it can be read later and for as long as needed, while others
    /// change or delete the key; `None` if the key does not exist. A member may have 64 pins at once.
    ///
    /// ```
    /// use outlast::store::{Options, Store};
    /// let job = outlast::join()?;
    /// let store = Store::open(&job, Options::new())?;
    /// store.put(b"mesh", b"first version")?;
    /// let pin = store.pin(b"mesh")?.expect("just put");
    /// store.put(b"mesh", b"second")?;
    /// let mut part = [0; 7];
    /// pin.read(6, &mut part)?;
    /// assert_eq!(&part, b"version");
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pin(&self, key: &[u8]) -> StoreResult<Option<Pin>> {
        let (inner, key) = (&self.inner, self.inner.key_ref(key)?);
        let slot = inner.claim_pin()?;
        let pinned = inner
            .announce_pins(slot)
            .and_then(|()| inner.run_call(&key, |op| op.try_pin(&key, slot)));
        match pinned {
            Ok(Some((block, places))) => {
                let (store, partition, key) = (self.clone(), key.partition, key.key.into());
                Ok(Some(Pin { store, slot, partition, key, block, places }))
            }
            nothing => {
                inner.release_pin(slot);
                nothing.map(|_| None)
            }
        }
    }
}

impl Pin {
    /// The version.
    pub fn version(&self) -> Version {
        self.block.version()
    }

    /// The member that owned the key.
    pub fn owner(&self) -> MemberId {
        self.block.owner
    }

    /// How many bytes the value has.
    pub fn len(&self) -> u64 {
        self.block.len
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.block.len == 0
    }

    /// Copies the bytes from `from` on into `buffer`, which must not reach beyond the end of the value. Checksums are
    /// compared by [`Pin::to_vec`] alone, which reads all of it.
    pub fn read(&self, from: u64, buffer: &mut [u8]) -> StoreResult<()> {
        let len = self.block.len;
        if from.checked_add(buffer.len() as u64).is_none_or(|end| end > len) {
            let given = buffer.len();
            let reason = format!(
                "{given} bytes from {from} on reach beyond the value, which has {len} bytes"
            );
            return Err(StoreError::Invalid { reason });
        }
        let mut result = Err(StoreError::DataLost { partition: self.partition });
        for &(home, offset) in &self.places {
            let start = offset + value_start(len) + from;
            match self.store.inner.job.get(Epoch::ANY, home, start, buffer) {
                Ok(()) => return Ok(()),
                Err(Error::Dead { .. }) => {}
                // Another home may answer.
                Err(Error::Timeout { member, limit }) => {
                    result = Err(StoreError::Timeout { member, limit })
                }
                Err(error) => return Err(super::open::engine_error(error)),
            }
        }
        result
    }

    /// The whole value, as a copy.
    pub fn to_vec(&self) -> StoreResult<Vec<u8>> {
        let mut bytes = vec![0; self.block.len as usize];
        self.read(0, &mut bytes)?;
        let home = self.places.first().map_or(self.store.me(), |place| place.0);
        self.store.inner.check_value(&self.key, home, &self.block, &bytes)?;
        Ok(bytes)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.store.inner.release_pin(self.slot);
    }
}

impl Inner {
    fn claim_pin(&self) -> StoreResult<usize> {
        let mut used = lock(&self.pins.0);
        let slot = used.trailing_ones() as usize;
        if slot >= PINS {
            let reason = format!("this member has {PINS} pins already; drop some of them");
            return Err(StoreError::Invalid { reason });
        }
        *used |= 1 << slot;
        Ok(slot)
    }

    /// P5.
    fn release_pin(&self, slot: usize) {
        // The own memory fails only when this member has ended.
        let _ = self.write_pin(slot, &[]);
        *lock(&self.pins.0) &= !(1 << slot);
    }

    fn write_pin(&self, slot: usize, places: &[(MemberId, u64)]) -> Result<(), Error> {
        let mut bytes = [0; PIN_WORDS * 8];
        for (chunk, &(home, offset)) in bytes.chunks_exact_mut(8).zip(places) {
            chunk.copy_from_slice(&pin_word(home, offset).to_ne_bytes());
        }
        self.job.put(Epoch::ANY, self.me(), self.root(self.me()) + self.layout.pin(slot), &bytes)
    }

    /// P1.
    fn announce_pins(&self, slot: usize) -> StoreResult<()> {
        let (job, me, word) =
            (&self.job, self.me(), self.root(self.me()) + super::layout::ACTORS_USED);
        loop {
            let used = job.load(Epoch::ANY, me, word).map_err(super::open::engine_error)?;
            if used >> PINS_SHIFT > slot as u64 {
                return Ok(());
            }
            let wanted = used & ((1 << PINS_SHIFT) - 1) | (slot as u64 + 1) << PINS_SHIFT;
            let found = job.compare_and_swap(Epoch::ANY, me, word, used, wanted);
            found.map_err(super::open::engine_error)?;
        }
    }
}

impl Op<'_> {
    /// P2 and P3.
    fn try_pin(&mut self, key: &KeyRef<'_>, slot: usize) -> Step<Option<Pinned>> {
        let config = self.config(key.partition)?;
        let primary = config.homes[config.primary];
        let mut pinned = None;
        if let Some(head) = self.find_head(config, key, None)?
            && let Some(offset) = head.offset()
        {
            let block = self.read_block(primary, offset)?;
            // What a transaction has in its hands holds the value somewhere else in its block, the same at each home.
            let (seen_at, seen) = match block.kind {
                Kind::Plain => (offset, block),
                _ => self.visible(config, key, offset, &block)?,
            };
            if !seen.is_deleted {
                let mut places = vec![(primary, offset)];
                for (home, &member) in config.homes.iter().enumerate() {
                    if home == config.primary || !config.is_ready(home) {
                        continue;
                    }
                    // Not those that lack it still, or have a later one by now.
                    if let Some((_, head)) = self.find(config, home, key)?
                        && let Some(offset) = head.offset()
                        && self.read_block(member, offset)?.identity() == block.identity()
                    {
                        places.push((member, offset));
                    }
                }
                self.store.write_pin(slot, &places)?;
                places.iter_mut().for_each(|(_, place)| *place = *place + seen_at - offset);
                pinned = Some((seen, places));
            }
        }
        if self.is_current() || self.is_still(config, key.partition)? {
            Ok(pinned)
        } else {
            Err(Halt::Again)
        }
    }
}
