//! Pins: a version that stays readable while others change the key.
//!
//! Versions are immutable, and their blocks are used again when nobody can see them any more. A pin
//! names the blocks of one version, at every replica that holds it, in a table in the pinning
//! member's own segment; whoever wants to use a block again looks at these tables after it saw all
//! operations end, and puts those that are named aside. Nothing else waits: neither writers, who
//! publish new versions as always, nor the reuse of any other block.
//!
//! | | step | true afterwards | dies or stops here |
//! |---|---|---|---|
//! | P1 | announce the slot of the table, before the operation begins | whoever looked for tables before that took its blocks away before the operation began, which cannot come to see them | the slot is empty |
//! | P2 | inside the operation: find the reconciled version, and where each replica has it | nobody who took it away since the operation began uses it before the operation ends | nothing has happened |
//! | P3 | write these places into the slot | | dead: nobody looks at its table any more, and the blocks are used again. Stopped: they stay |
//! | P4 | end the operation | whoever waits for it finds the slot | as P3 |
//! | P5 | drop: empty the slot | | as P3 |
//!
//! What a pin keeps is one block at each replica: at most [`PINS`] versions for each member. A
//! replica that dies takes its copy with it, and repair does not bring it up again: the pinned
//! version can be read while one of those replicas lives.

use crate::engine::{Epoch, Error, MemberId};
use crate::store::api::store::Store;
use crate::store::error::{StoreError, StoreResult};
use crate::store::member::state::StoreState;
use crate::store::operation::error::{OpError, OpResult, engine_error};
use crate::store::record::key::KeyRef;
use crate::store::record::state::RecordOp;
use crate::store::segment::layout::{Block, Kind, value_start};
use crate::store::value::Version;
use std::fmt;

/// A version, and where its replicas have it.
type Pinned = (Block, Vec<(MemberId, u64)>);

/// One version of a key that stays readable until this is dropped, whatever becomes of the key; see
/// [`Store::pin`].
///
/// Writers never wait for it. It ends with the death of its member. It keeps one block of memory at
/// each replica that held the version, and the version is lost when all of these have died or left.
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
    /// Pins the present version of a key, so that parts of it can be read later and for as long as
    /// needed, while others change or delete the key; `None` if the key does not exist. A member
    /// may have 64 pins at once.
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
        let (state, key) = (&self.state, self.state.key_ref(key)?);
        let slot = state.claim_pin()?;
        let pinned = state
            .announce_pins(slot)
            .and_then(|()| state.run_call(&key, |op| state.try_pin(op, &key, slot)));
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

    /// Copies the bytes from `from` on into `buffer`, which must not reach beyond the end of the
    /// value. Checksums are compared by [`Pin::to_vec`] alone, which reads all of it.
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
        for &(replica, offset) in &self.places {
            let start = offset + value_start(len) + from;
            match self.store.state.job.get(Epoch::ANY, replica, start, buffer) {
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

    /// The whole value, as a copy.
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

impl StoreState {
    /// P2 and P3.
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
            // What a transaction has in its hands holds the value somewhere else in its block, the
            // same at each replica.
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
                    // Not those that lack it still, or have a later one by now.
                    if let Some((_, head)) = op.find(config, replica, key)?
                        && let Some(offset) = head.offset()
                        && op.read_block(member, offset)?.identity() == block.identity()
                    {
                        places.push((member, offset));
                    }
                }
                self.write_pin(slot, &places)?;
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
