//! How a store is to be opened.

/// How a store is to be; the same at all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
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
    /// The defaults: three copies, or as many as there are members.
    pub fn new() -> Options {
        Options::default()
    }

    /// How many copies each value has, 1 to [`REPLICAS_MAX`]. More than there are members is an
    /// error, unless [`Options::allow_fewer`] follows.
    pub fn replicas(mut self, replicas: usize) -> Options {
        self.replicas = replicas;
        self.allow_fewer = false;
        self
    }

    /// Opens with fewer copies if there are fewer members.
    pub fn allow_fewer(mut self) -> Options {
        self.allow_fewer = true;
        self
    }

    /// How many partitions there are; by default 256 for each member. More spread the load better
    /// and take more memory.
    pub fn partitions(mut self, partitions: usize) -> Options {
        self.partitions = Some(partitions);
        self
    }

    /// About how many keys there will be: the size of the index. More is possible, and slower.
    pub fn expected_keys(mut self, keys: usize) -> Options {
        self.expected_keys = keys;
        self
    }

    /// How much of a processor each member's background may spend on repair, in percent, 1 to 100;
    /// 100 by default. Less leaves more to the program and makes the time longer in which copies
    /// are missing. May differ between members.
    pub fn repair_share(mut self, percent: u32) -> Options {
        self.repair_percent = percent.clamp(1, 100);
        self
    }

    /// Whether each value has a checksum, over its key and version too, that is compared whenever
    /// the value is read: what something else has written into the memory is then
    /// [`StoreError::Corrupt`] and never taken for a value.
    pub fn checksums(mut self, checksums: bool) -> Options {
        self.checksums = checksums;
        self
    }

    /// How the members go on after a death: each by itself, which is the default, or all together;
    /// see [`Store::recover`](crate::store::Store::recover).
    pub fn mode(mut self, mode: Mode) -> Options {
        self.mode = mode;
        self
    }

    /// Promises that between two recoveries each key is written by one handle alone
    /// ([`Store::slot`]), so that a put by handle need not look whether its key has been written by
    /// others. For [`Mode::Global`] alone. In builds with debug assertions a broken promise is a
    /// panic; in others the version of a value may then come twice.
    pub fn sole_writers(mut self, sole_writers: bool) -> Options {
        self.sole_writers = sole_writers;
        self
    }

    /// Whether survivors read the memory of the dead, where the engine keeps that (shm: the
    /// processes of one machine): then even a store with one copy of each value survives the deaths
    /// of processes, all but one of them. Calls on what only the dead had wait until it is
    /// salvaged. Switches [`Options::checksums`] on: what was damaged with its member is lost,
    /// named by [`Store::lost_keys`], and never returned. The memory of the dead is kept until all
    /// is salvaged. It does not help against the loss of the machine, and costs what checksums
    /// cost.
    ///
    /// ```
    /// use outlast::store::{Options, Store};
    /// let job = outlast::join()?;
    /// let store = Store::open(&job, Options::new().replicas(1).salvage(true))?;
    /// store.put(b"checkpoint/3", b"state")?; // Survives kill -9 of whoever holds it.
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn salvage(mut self, salvage: bool) -> Options {
        self.salvage = salvage;
        self
    }

    /// The most bytes that a replica carves into blocks at once.
    pub fn slab_len_max(mut self, bytes: u64) -> Options {
        self.slab_len_max = bytes.max(4096);
        self
    }
}

/// How the members go on after a death.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Nobody stops: calls go on with the copies that are left, and no call is collective. The
    /// default.
    #[default]
    Localized,
    /// Everybody stops: all calls of all members say [`StoreError::Revoked`] until all have come to
    /// [`Store::recover`].
    Global,
}
