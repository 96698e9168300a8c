//! Pins: a version that stays readable while its key changes.
//!
//! Versions are immutable, and a block is reused when no operation can reach it any more. A pin
//! names the blocks of a version, at every replica that holds it, in a table in the pinning
//! member's own segment. A member that wants to reuse blocks reads these tables after every
//! operation that was in flight has ended, and sets the named blocks aside. Nothing else waits:
//! neither writers, which publish new versions as always, nor the reuse of any other block.
//!
//! `docs/protocol/memory.md`, "Pins", has the steps *announce*, *find*, *record*, *end* and *drop*,
//! with what happens if the member dies or stops in each of them. `memory/pins.rs` has the table:
//! *announce* and *drop*.
//!
//! A pin keeps a block at each replica, and a member has at most `PINS` pins. A replica that dies
//! takes its block with it, and repair does not bring it back: the pinned version is readable as
//! long as a replica that the pin names lives.

use crate::engine::deadline::Deadline;
use crate::engine::{Epoch, Error, MemberId};
use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::operation::error::{OpError, OpResult, engine_error};
use crate::store::record::key::KeyRef;
use crate::store::record::state::RecordOp;
use crate::store::segment::layout::{Block, Kind, value_start};
use crate::store::value::Version;
use std::fmt;

/// A version, and its location at each replica.
type Pinned = (Block, Vec<(MemberId, u64)>);

/// A version of a key that stays readable until the pin is dropped, whatever becomes of the key;
/// made by [`Store::pin`].
///
/// Writers never wait for a pin. A pin ends with the death of its member. It keeps a block of
/// memory at each replica that held the version, and the version is lost when all these replicas
/// have died or left.
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
    /// Pins the current version of a key; `None` if the key does not exist. The program can read
    /// parts of the version for as long as it keeps the pin, while other calls change or delete the
    /// key. A member may have 64 pins at a time.
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
    #[inline]
    pub fn pin(&self, key: impl AsRef<[u8]>) -> StoreResult<Option<Pin>> {
        self.pin_bytes(key.as_ref())
    }

    fn pin_bytes(&self, key: &[u8]) -> StoreResult<Option<Pin>> {
        let (state, key) = (&self.state, self.state.key_ref(key)?);
        let slot = state.claim_pin()?;
        let pinned = state
            .announce_pins(slot)
            .and_then(|()| state.run_call(&key, |op| self.try_pin(op, &key, slot)));
        match pinned {
            Ok(Some((block, places))) => {
                let (store, partition, key) = (self.clone(), key.partition, key.key.into());
                Ok(Some(Pin { store, slot, partition, key, block, places }))
            }
            nothing => {
                state.release_pin(slot);
                nothing.map(|_| None)
            }
        }
    }
}

impl Pin {
    /// The pinned version.
    pub fn version(&self) -> Version {
        self.block.version()
    }

    /// The member that owned the key when it was pinned.
    pub fn owner(&self) -> MemberId {
        self.block.owner
    }

    /// The length of the value in bytes.
    pub fn len(&self) -> u64 {
        self.block.len
    }

    /// Whether the value is empty.
    pub fn is_empty(&self) -> bool {
        self.block.len == 0
    }

    /// Copies the bytes from `from` on into `buffer`, which must not reach beyond the end of the
    /// value. It compares no checksum: only [`Pin::to_vec`], which reads the whole value, does.
    pub fn read(&self, from: u64, buffer: &mut [u8]) -> StoreResult<()> {
        let len = self.block.len;
        if from.checked_add(buffer.len() as u64).is_none_or(|end| end > len) {
            let given = buffer.len();
            let reason = format!(
                "{given} bytes from {from} on reach beyond the end of the value, which has {len} \
                 bytes; nothing was copied"
            );
            return Err(StoreError::Invalid { reason });
        }
        let (state, job) = (&self.store.state, &self.store.state.job);
        let mut result = Err(StoreError::DataLost { partition: self.partition });
        let _call = state.begin_call();
        let until = job.deadline();
        for (index, &(replica, offset)) in self.places.iter().enumerate() {
            let start = offset + value_start(len) + from;
            // The replicas share the time of the call.
            let (now, left) = (job.now(), (self.places.len() - index) as u32);
            let _share = Deadline::call_until(now.after(until.since(now) / left));
            match job.get(Epoch::ANY, replica, start, buffer) {
                Ok(()) => return Ok(()),
                Err(Error::Dead { .. }) => {}
                // Another replica may answer.
                Err(Error::Timeout { member, limit }) => {
                    result = Err(StoreError::Timeout { member, limit })
                }
                Err(error) => return Err(engine_error(error)),
            }
        }
        result
    }

    /// Returns a copy of the whole value.
    pub fn to_vec(&self) -> StoreResult<Vec<u8>> {
        let mut bytes = vec![0; self.block.len as usize];
        self.read(0, &mut bytes)?;
        let replica = self.places.first().map_or(self.store.me(), |place| place.0);
        self.store.state.check_value(&self.key, replica, &self.block, &bytes)?;
        Ok(bytes)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.store.state.release_pin(self.slot);
    }
}

impl Store {
    /// *find* and *record*: writes the locations of the current version into the slot of the table.
    fn try_pin(
        &self,
        op: &mut RecordOp<'_>,
        key: &KeyRef<'_>,
        slot: usize,
    ) -> OpResult<Option<Pinned>> {
        let config = op.config(key.partition)?;
        let primary = config.primary_member();
        let mut pinned = None;
        if let Some(head) = op.find_head(config, key, None)?
            && let Some(offset) = head.offset()
        {
            let block = op.read_block(primary, offset)?;
            // The block of a provisional or restored version holds the visible value at a place
            // that is identical at each replica.
            let (seen_at, seen) = match block.kind {
                Kind::Plain => (offset, block),
                _ => op.visible(config, key, offset, &block)?,
            };
            if !seen.is_deleted {
                let mut places = vec![(primary, offset)];
                for (replica, member) in config.enumerate() {
                    if replica == config.primary || !config.is_ready(replica) {
                        continue;
                    }
                    // A replica without the version, or with a later version, is left out.
                    if let Some((_, head)) = op.find(config, replica, key)?
                        && let Some(offset) = head.offset()
                        && op.read_block(member, offset)?.identity() == block.identity()
                    {
                        places.push((member, offset));
                    }
                }
                self.state.write_pin(slot, &places)?;
                places.iter_mut().for_each(|(_, place)| *place = *place + seen_at - offset);
                pinned = Some((seen, places));
            }
        }
        if op.is_current() || op.is_still_current(config, key.partition)? {
            Ok(pinned)
        } else {
            Err(OpError::Again)
        }
    }
}
