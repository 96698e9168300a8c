//! The options with which a store is opened.

/// The longest name of a store, in bytes.
pub const NAME_LEN_MAX: usize = 255;

/// The options of a store. They are equal at all members, except [`Options::repair_share`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub(in crate::store) name: String,
    pub(in crate::store) replicas: usize,
    pub(in crate::store) allow_fewer: bool,
    pub(in crate::store) partitions: Option<usize>,
    pub(in crate::store) expected_keys: usize,
    pub(in crate::store) slab_len_max: u64,
    pub(in crate::store) repair_percent: u32,
    pub(in crate::store) checksums: bool,
    pub(in crate::store) mode: Mode,
    pub(in crate::store) sole_writers: bool,
    pub(in crate::store) salvage: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            name: String::new(),
            replicas: 3,
            allow_fewer: true,
            partitions: None,
            expected_keys: 1 << 18,
            slab_len_max: 1 << 20,
            repair_percent: 100,
            checksums: false,
            mode: Mode::Localized,
            sole_writers: false,
            salvage: false,
        }
    }
}

impl Options {
    /// The defaults: three replicas, or as many as there are members.
    pub fn new() -> Options {
        Options::default()
    }

    /// Sets the name of the store, at most [`NAME_LEN_MAX`] bytes; the
    /// empty name by default. A job may have several stores, each under its own name: they share
    /// the memory of the members, and nothing else. A library that opens a store inside of a
    /// program gives it a name of its own, so that it does not meet the store of the program.
    ///
    /// ```
    /// use outlast::store::{Options, Store};
    /// let job = outlast::join()?;
    /// let results = Store::open(&job, Options::new())?;
    /// let images = Store::open(&job, Options::new().name("images"))?;
    /// results.put(b"key", b"a result")?;
    /// assert_eq!(images.get(b"key")?, None);
    /// images.close()?;
    /// results.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Options {
        self.name = name.into();
        self
    }

    /// Sets the number of replicas of each value, 1 to
    /// [`REPLICAS_MAX`](crate::store::REPLICAS_MAX). A number above that of the members is an
    /// error, unless [`Options::allow_fewer`] follows.
    pub fn replicas(mut self, replicas: usize) -> Options {
        self.replicas = replicas;
        self.allow_fewer = false;
        self
    }

    /// Opens the store with fewer replicas if there are fewer members.
    pub fn allow_fewer(mut self) -> Options {
        self.allow_fewer = true;
        self
    }

    /// Sets the number of partitions; by default 256 for each member. More partitions spread the
    /// load better and take more memory.
    pub fn partitions(mut self, partitions: usize) -> Options {
        self.partitions = Some(partitions);
        self
    }

    /// Sets the expected number of keys, a hint: the index is made for so many keys, and grows when
    /// there are more.
    pub fn expected_keys(mut self, keys: usize) -> Options {
        self.expected_keys = keys;
        self
    }

    /// Sets the share of a processor that the background of each member may spend on repair, in
    /// percent, 1 to 100; 100 by default. A smaller share leaves more to the program, and replicas
    /// are missing for longer. The share may differ between members.
    pub fn repair_share(mut self, percent: u32) -> Options {
        self.repair_percent = percent.clamp(1, 100);
        self
    }

    /// Sets whether each value has a checksum, which also covers its key and version. Every read
    /// compares the checksum. If other code has written into the memory, the read returns
    /// [`StoreError::Corrupt`](crate::store::StoreError::Corrupt) instead of a damaged value.
    pub fn checksums(mut self, checksums: bool) -> Options {
        self.checksums = checksums;
        self
    }

    /// Sets how the members go on after a death: each member by itself, which is the default, or
    /// all members together; see [`Store::recover`](crate::store::Store::recover).
    pub fn mode(mut self, mode: Mode) -> Options {
        self.mode = mode;
        self
    }

    /// Promises that between two recoveries each key is written through a single handle
    /// ([`Store::handle`](crate::store::Store::handle)). A put through a handle then does not check
    /// whether its key was written elsewhere. The option needs [`Mode::Global`]. A broken promise
    /// is a panic in builds with debug assertions. In other builds the version of a value may then
    /// repeat.
    pub fn sole_writers(mut self, sole_writers: bool) -> Options {
        self.sole_writers = sole_writers;
        self
    }

    /// Sets whether survivors read the segments of dead members, where the engine keeps them (shm:
    /// the processes of a machine). Then even a store with a single replica of each value survives
    /// the deaths of all processes but the last.
    ///
    /// Calls on keys that only dead members held wait until the keys are salvaged. The dead
    /// segments are kept until all partitions are salvaged. The option switches
    /// [`Options::checksums`] on and costs what checksums cost: a value that was damaged with its
    /// member is lost, is listed by [`Store::lost_keys`](crate::store::Store::lost_keys), and is
    /// never returned. Salvage does not help against the loss of the machine.
    ///
    /// ```
    /// use outlast::store::{Options, Store};
    /// let job = outlast::join()?;
    /// let store = Store::open(&job, Options::new().replicas(1).salvage(true))?;
    /// store.put(b"checkpoint/3", b"state")?; // It survives kill -9 of the member that holds it.
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn salvage(mut self, salvage: bool) -> Options {
        self.salvage = salvage;
        self
    }

    /// Sets the largest number of bytes that a replica divides into blocks at a time; at least
    /// 4096.
    pub fn slab_len_max(mut self, bytes: u64) -> Options {
        self.slab_len_max = bytes.max(4096);
        self
    }
}

/// How the members go on after a death.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// No member stops: calls go on with the replicas that live, and no call is collective. This is
    /// the default.
    #[default]
    Localized,
    /// All members stop: every call of every member returns
    /// [`StoreError::Revoked`](crate::store::StoreError::Revoked) until all members have called
    /// [`Store::recover`](crate::store::Store::recover).
    Global,
}
