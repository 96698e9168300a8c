//! Transactions: several keys read and changed at one moment; docs/protocol.md, "Transactions".
//!
//! A transaction reads what it likes and keeps its changes to itself. To commit, it writes an
//! *intent*, a record of the store's own with the list of its keys; puts a *provisional* version in
//! the place of each key that it changes, which holds the value before and the one after; and then
//! decides, by a conditional write of the intent. Intents and provisional versions are written,
//! reconciled, copied and repaired like all others: what this module adds is what they mean.
//!
//! | | step | true before | true afterwards | a survivor finds, if the committer dies or is stopped here |
//! |---|---|---|---|---|
//! | X1 | put the intent: pending, with all keys that are to be changed | the intent's former transaction is over, and no key has a provisional version of it | whoever meets a provisional version finds the intent | an intent that no key names; the heir of the dead removes it |
//! | X2 | for each key to change, in the order of hashes: if it is still as the transaction has read it, put a provisional version in its place | a provisional version of another transaction was cleared away (below) | the key's value is the old one until the intent is decided, and nobody changes it | provisional versions of a pending intent: readers see the old value, whoever wants to write aborts it |
//! | X3 | if keys were read and not changed: the intent from pending to *doubt*, by a conditional write; then look at each of them again | all keys to change are provisional | all that was read was true together when the intent went into doubt: there the transaction has its place | as X2; a reader, too, waits a little and then aborts it |
//! | X4 | the intent to *committed*, by a conditional write, acknowledged by all its replicas | X2 and X3 found everything as it was read | **the transaction has happened**, wholly | readers see the new values; anyone who wants to write does X5 for its key, the heir of the dead for all |
//! | X5 | for each key: put the new value as a plain version in the place of the provisional one | the intent is decided, and stays so | that key needs the intent no longer | as X4 |
//! | X6 | the record of the intent is free for this member's next transaction | no key has a provisional version | | the heir of the dead removes the record |
//!
//! | | step, by anyone | true before | true afterwards | a survivor finds |
//! |---|---|---|---|---|
//! | Y1 | the intent from pending or doubt to aborted, by a conditional write | its member is dead, or has been in the way for long enough | X4 fails; the transaction never happens | an aborted intent: readers see the old values |
//! | Y2 | for each key: put the value before in the place of the provisional version, as a *restored* version that keeps its number (a tombstone if there was none) | as X5 | as X5 | as Y1 |
//!
//! X5 and Y2 are writes from the very provisional version that was found, and make the same version
//! whoever does it; one who comes late finds another head and loses. So they can be repeated, by
//! several at once, by the committer that wakes up, and after X6: a nonce that the intent does not
//! have any more, or a record that is not there, is looked at only after the provisional version,
//! and the write from it then fails, since X6 comes after all of X5.
//!
//! *A lost intent.* If the partition of the intent is lost, whoever needs it is told `DataLost`,
//! also for keys in other partitions. When the loss is accepted there is no such intent, and the
//! provisional versions that are left are rolled back. What had been applied stays; and if that
//! comes between X4 and X5 of a living committer, it applies what it still finds, and says
//! `DataLost` instead of `Ok` if somebody else was at one of its keys before. If the partition of a
//! key is lost and given up between X2 and X4, its new value is gone: after X4 a committer that has
//! seen the view change looks at the incarnations of its keys' partitions, and says `DataLost`,
//! too.
//!
//! *Readers.* Provisional and pending: the old value; the transaction had not happened when the
//! intent was looked at, and while it is pending the provisional version stays. Aborted: the old
//! value. Committed: the new one. None of these waits. Validating: the transaction's place may be
//! before what the reader has already seen, so neither value will do until it is decided: the
//! reader waits a little, then aborts it. Why doubt is needed: T reads y and changes x. It looks at
//! y again and finds it unchanged; W puts y, and is done; R then reads x. If R may read past T it
//! sees the old x; then T commits. R comes before T, T before W, and W had ended when R began. A
//! transaction that changes all that it reads needs no doubt: up to X4 nobody can change anything
//! of it.
//!
//! *Strict serializability.* A transaction has its place where the intent went into doubt, or,
//! without doubt, at X4; one that only reads, between its last first look and its first second
//! look. There everything that it read was true: a key's versions never repeat, and a key that does
//! not exist has a mark that grows when it is made and deleted. Both lie between the beginning and
//! the end of the call.
//!
//! *Who waits for whom.* Whoever finds an undecided transaction in its way waits 200 us, twice that
//! for each time that the other had failed before (its *rank*), up to 0.1 s, then does Y1; if the
//! other's member is dead, at once; and a transaction of a higher rank waits no longer than 200 us
//! for one of a lower. A transaction of rank 2 or more first puts provisional versions that change
//! nothing in the place of all keys that it touched the last time, and only then runs its closure:
//! nobody can change them under it. So a large transaction is aborted by small ones only a few
//! times: each time it is left alone for twice as long. A transaction that takes longer than 0.1 s
//! with its keys locked has no such guarantee. A closure is tried again until the job's time limit
//! is over.

pub(in crate::store) mod cleanup;
pub(in crate::store) mod commit;
pub(in crate::store) mod resolve;
pub(in crate::store) mod state;
pub(in crate::store) mod transaction;
