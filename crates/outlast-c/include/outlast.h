/*
 * Outlast for C: a key-value store in the memories of the processes of a parallel program, which
 * outlasts the death of any of them.
 *
 *     outlast_job *job;
 *     outlast_store *store;
 *     if (outlast_join(&job) || outlast_open(job, NULL, &store)) {
 *         fprintf(stderr, "%s\n", outlast_error());
 *     }
 *     outlast_put(store, "result/9", 8, bytes, len, NULL);
 *
 * Link with -loutlast_c. A process that `outlast run -n 4 PROGRAM` started is a member of a job of
 * four. A process that was started alone is the member of a job of one.
 *
 * Return values: a call returns OUTLAST_OK (0), another answer (OUTLAST_ABSENT, OUTLAST_DIED), or
 * a negative code of an error. After an error outlast_error() returns a message for the calling
 * thread, which is valid until the thread's next call. The message says what happened and what to
 * do. The documentation of the Rust calls (Store::put for outlast_put) says what each call
 * guarantees, and what it leaves if a member dies during the call.
 *
 * Threads: several threads may use a job or a store at once. A key handle, a transaction, a lock
 * guard and a recovery must be used by a single thread at a time.
 *
 * Data: a key has 1 to 1024 bytes. A value has any number of bytes. A pointer to bytes may be NULL
 * if their number is 0. A pointer to a result may be NULL where its comment says so; then the
 * result is not stored.
 */
#ifndef OUTLAST_H
#define OUTLAST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum outlast_status {
    OUTLAST_OK = 0,
    /* The key does not exist, or did not change before the time limit of a wait. */
    OUTLAST_ABSENT = 1,
    /* outlast_wait: the named member is dead and has not put the key. */
    OUTLAST_DIED = 2,

    /* An argument is invalid: a null pointer, a bad option, a key that is too long. Nothing was
     * changed. */
    OUTLAST_INVALID = -1,
    /* The process cannot join a job. */
    OUTLAST_NOT_JOINED = -2,
    /* All replicas of the key's partition are lost. outlast_accept_loss makes the partition usable
     * again, without its old contents. */
    OUTLAST_DATA_LOST = -3,
    /* A living member did not answer in time. The call may have had its effect or not. */
    OUTLAST_TIMEOUT = -4,
    /* The condition of the call does not hold. Nothing was changed. */
    OUTLAST_CONFLICT = -5,
    /* The transaction conflicts with another transaction. Nothing was changed. Call
     * outlast_tx_retry and repeat the work. */
    OUTLAST_ABORTED = -6,
    /* The transaction has been committed or aborted already. */
    OUTLAST_OVER = -7,
    /* Another holder kept the lock until the time limit. */
    OUTLAST_LOCKED = -8,
    /* A member's segment has no room for the value. */
    OUTLAST_OUT_OF_MEMORY = -9,
    /* The buffer is too small. The length of the value was stored. */
    OUTLAST_TOO_SMALL = -10,
    /* The value is not a number. */
    OUTLAST_WRONG_TYPE = -11,
    /* The store was closed, or the process has left the job. */
    OUTLAST_CLOSED = -12,
    /* The memory of the store was overwritten by code other than the store. */
    OUTLAST_CORRUPT = -13,
    /* Another error; see the message. */
    OUTLAST_FAILED = -14,
    /* A transaction was begun inside the callback of another transaction. */
    OUTLAST_NESTED = -15,
    /* Global mode: a member has died, or a member called outlast_revoke. All members have to
     * recover. A write that was in flight may have had its effect or not. */
    OUTLAST_REVOKED = -16,
    /* Global mode: the recovery failed. It had no effect at any member. */
    OUTLAST_RECOVERY_FAILED = -17,
    /* This member has the store of this name open already. Nothing was changed. */
    OUTLAST_ALREADY_OPEN = -18
};

/* Returns the message of the last call of this thread that failed; never NULL. */
const char *outlast_error(void);

typedef struct outlast_job outlast_job;
typedef struct outlast_store outlast_store;
typedef struct outlast_handle outlast_handle;
typedef struct outlast_tx outlast_tx;
typedef struct outlast_lock_guard outlast_lock_guard;
typedef struct outlast_recovery outlast_recovery;

/* The version of a value. The versions of a key only grow: by counter, then by writer. */
typedef struct outlast_version {
    uint64_t counter;
    uint32_t writer; /* the member that wrote the value */
} outlast_version;

/* ---- The job ---- */

/* Joins the job in which this process was started. */
int outlast_join(outlast_job **job);
/* Joins a job of the ranks of a communicator. For programs that run under mpirun --with-ft ulfm and
 * have called MPI_Init_thread with MPI_THREAD_MULTIPLE. In builds of the library with the feature
 * `mpi`.
 *
 * comm is an MPI_Comm of Open MPI, where it is a pointer, or NULL for MPI_COMM_WORLD. The library
 * uses a duplicate of it. Errors on MPI_COMM_WORLD must be returned: either the program has called
 * MPI_Comm_set_errhandler with MPI_ERRORS_RETURN, or set_errhandlers is not 0 and this call does
 * so. */
int outlast_join_mpi(void *comm, int set_errhandlers, outlast_job **job);
/* Stores an MPI_Comm of the living members, for the program's own use. All of them call it. */
int outlast_mpi_shrunken(const outlast_job *job, void **comm);
/* Ends the membership of this process. Close the store before. The handle is freed in any case. */
int outlast_leave(outlast_job *job);
/* Returns the number of this member, from 0. */
uint32_t outlast_me(const outlast_job *job);
/* Returns the number of members with which the job began. */
uint32_t outlast_members(const outlast_job *job);
/* Returns the number of members that are not known to be dead. */
uint32_t outlast_living(const outlast_job *job);

/* ---- The store ---- */

/* Options of a store, equal at all members. Zero is the default of each option. */
typedef struct outlast_options {
    uint32_t replicas;      /* replicas of each value, 1 to 8; default 3 */
    uint32_t allow_fewer;   /* not 0: open with fewer replicas if the job has too few members */
    uint64_t expected_keys; /* a hint: the index is made for so many keys, and grows */
    uint32_t checksums;     /* not 0: values have checksums */
    uint32_t global_mode;   /* not 0: all members stop at a death and recover together */
    uint32_t salvage;       /* not 0: survivors read the memory of the dead of their machine */
    const char *name;       /* the name of the store, UTF-8, at most 255 bytes; NULL is "" */
} outlast_options;

/* Opens a store, which is empty. All living members call it with equal options, and the call waits
 * for them. options may be NULL.
 *
 * A job may have several stores at a time, each under its own name. A library that opens a store
 * inside of a program gives it a name of its own. If this member has the store of that name open,
 * the call returns OUTLAST_ALREADY_OPEN at once. After outlast_close a store can be opened again
 * under its name, and is empty; a member that has died meanwhile is not waited for. If store is
 * NULL, the call returns OUTLAST_INVALID and opens nothing. */
int outlast_open(const outlast_job *job, const outlast_options *options, outlast_store **store);
/* Closes the store, after waiting for a bounded time until all living members close it. Its content
 * is gone. The handle is freed in any case. */
int outlast_close(outlast_store *store);

/* Puts a value. When it returns 0, every replica holds the value. version may be NULL. */
int outlast_put(const outlast_store *store, const void *key, size_t key_len, const void *value,
                size_t len, outlast_version *version);
/* Puts a value if the key has the version *expected, or, if expected is NULL, if the key does not
 * exist; otherwise returns OUTLAST_CONFLICT. version may be NULL. */
int outlast_put_if(const outlast_store *store, const void *key, size_t key_len, const void *value,
                   size_t len, const outlast_version *expected, outlast_version *version);
/* Copies the value into the buffer and its length to *len, the length also if the result is
 * OUTLAST_TOO_SMALL. len and version may be NULL. */
int outlast_get(const outlast_store *store, const void *key, size_t key_len, void *buffer,
                size_t capacity, size_t *len, outlast_version *version);
/* Returns OUTLAST_OK if the key exists, otherwise OUTLAST_ABSENT. */
int outlast_exists(const outlast_store *store, const void *key, size_t key_len);
/* Deletes a key. Returns OUTLAST_ABSENT if it did not exist. */
int outlast_delete(const outlast_store *store, const void *key, size_t key_len);
/* Adds delta to the number that the key holds, 0 if the key does not exist, and stores the sum in
 * *after, which may be NULL. */
int outlast_add(const outlast_store *store, const void *key, size_t key_len, int64_t delta,
                int64_t *after);
/* Sleeps until the key has a newer version than *newer_than, or, if newer_than is NULL, until the
 * key exists; then it copies the value as outlast_get does. Returns OUTLAST_ABSENT at the time
 * limit. Returns OUTLAST_DIED if the member `member` is dead and has not put the key; -1 is no
 * member. */
int outlast_wait(const outlast_store *store, const void *key, size_t key_len,
                 const outlast_version *newer_than, uint64_t milliseconds, int64_t member,
                 void *buffer, size_t capacity, size_t *len, outlast_version *version);
/* Calls visit for each key that begins with the prefix, until visit returns another value than
 * 0. */
int outlast_scan(const outlast_store *store, const void *prefix, size_t prefix_len,
                 int (*visit)(void *context, const void *key, size_t key_len), void *context);
/* Calls visit for each key that the member owns, until visit returns another value than 0. */
int outlast_keys_of(const outlast_store *store, uint32_t member,
                    int (*visit)(void *context, const void *key, size_t key_len), void *context);
/* Makes this member the owner of a key. Returns OUTLAST_ABSENT if the key does not exist. */
int outlast_adopt(const outlast_store *store, const void *key, size_t key_len);

/* Puts a value without waiting for the replicas. The bytes are copied. outlast_flush reports
 * errors. */
int outlast_put_nb(const outlast_store *store, const void *key, size_t key_len, const void *value,
                   size_t len);
/* Waits until every replica holds the values of all earlier calls of outlast_put_nb of this member.
 * Returns the first error of the calling thread since its last flush. */
int outlast_flush(const outlast_store *store);

/* ---- Deaths ---- */

/* Returns a number that changes with each death. The call costs a single load. */
uint64_t outlast_epoch(const outlast_store *store);
/* Stores the next death after *seen, and advances *seen. heir is the member that takes over from
 * the dead member. Returns OUTLAST_ABSENT if there is no further death. If an heir dies, the dead
 * members that it was to take over from are stored again, with their new heir: a loop that adopts
 * the keys of each member whose heir it is adopts all keys. Compare *seen with outlast_epoch only
 * when the call has returned OUTLAST_ABSENT. member and heir may be NULL. */
int outlast_next_death(const outlast_store *store, uint64_t *seen, uint32_t *member,
                       uint32_t *heir);
/* Returns the member that takes over from a dead member, under the current view. */
uint32_t outlast_heir_of(const outlast_store *store, uint32_t member);
/* Gives up lost data: partitions of which no replica is left become empty and usable again. If
 * salvage lost only some keys of a partition, only these keys are given up. *partitions is the
 * number of partitions; partitions may be NULL. */
int outlast_accept_loss(const outlast_store *store, size_t *partitions);

/* ---- Key handles: a put through a handle costs one write and one compare-and-swap at each
 *      replica ---- */

/* Makes a handle of a key, which need not exist. */
int outlast_handle_open(const outlast_store *store, const void *key, size_t key_len,
                        outlast_handle **handle);
/* Puts a value of the handle's key, as outlast_put does. */
int outlast_handle_put(const outlast_handle *handle, const void *value, size_t len,
                       outlast_version *version);
/* Copies the value of the handle's key, as outlast_get does. */
int outlast_handle_get(const outlast_handle *handle, void *buffer, size_t capacity, size_t *len,
                       outlast_version *version);
/* Frees the handle. The key and its value stay. */
void outlast_handle_free(outlast_handle *handle);

/* ---- Locks: the next holder is told if the last holder died ---- */

/* Takes the lock of a key. Returns OUTLAST_LOCKED at the time limit. *abandoned is the dead member
 * that held the lock, or -1; abandoned may be NULL. */
int outlast_lock(const outlast_store *store, const void *key, size_t key_len,
                 uint64_t milliseconds, outlast_lock_guard **guard, int64_t *abandoned);
/* Releases the lock. The guard is freed in any case. */
int outlast_unlock(outlast_lock_guard *guard);

/* ---- Transactions ---- */

/* Begins a transaction. Work with the calls below, then call outlast_tx_commit. If that returns
 * OUTLAST_ABORTED, call outlast_tx_retry and repeat the work. */
int outlast_tx_begin(const outlast_store *store, outlast_tx **tx);
/* Copies the value of a key as the transaction sees it. */
int outlast_tx_get(outlast_tx *tx, const void *key, size_t key_len, void *buffer, size_t capacity,
                   size_t *len);
/* Puts a value when the transaction is committed. */
int outlast_tx_put(outlast_tx *tx, const void *key, size_t key_len, const void *value, size_t len);
/* Deletes a key when the transaction is committed. Returns OUTLAST_ABSENT if it does not exist. */
int outlast_tx_delete(outlast_tx *tx, const void *key, size_t key_len);
/* Adds to a number when the transaction is committed. after may be NULL. */
int outlast_tx_add(outlast_tx *tx, const void *key, size_t key_len, int64_t delta, int64_t *after);
/* Makes this member the owner of a key when the transaction is committed. Returns OUTLAST_ABSENT if
 * the key does not exist. */
int outlast_tx_adopt(outlast_tx *tx, const void *key, size_t key_len);
/* Commits: all changes take effect together, or none does. */
int outlast_tx_commit(outlast_tx *tx);
/* Aborts: no change takes effect. */
int outlast_tx_abort(outlast_tx *tx);
/* Begins the work anew, in this transaction, after OUTLAST_ABORTED. */
int outlast_tx_retry(outlast_tx *tx);
/* Frees the transaction. It is aborted if it was not committed. */
void outlast_tx_free(outlast_tx *tx);
/* Runs body in a transaction and commits it. body is called again after each conflict. If body
 * returns another value than 0, the transaction is aborted and this call returns that value, so
 * body should pass on what the calls with tx return. body must not free, commit or abort tx. */
int outlast_transaction(const outlast_store *store, int (*body)(void *context, outlast_tx *tx),
                        void *context);

/* ---- Global mode: all members stop at the first death, and recover together ---- */

/* Stops all members, as a death does. */
int outlast_revoke(const outlast_store *store);
/* Returns another value than 0 while calls return OUTLAST_REVOKED. */
int outlast_is_revoked(const outlast_store *store);
/* Begins a recovery. All living members call it after OUTLAST_REVOKED. The store is repaired; then
 * each member works in the recovery's transaction (outlast_tx_get and so on, but not commit, abort
 * or free), and all members call outlast_recover_end. If that returns OUTLAST_REVOKED, another
 * member died, nothing was changed, and the members begin again.
 *
 *     do {
 *         outlast_recovery *recovery;
 *         if ((status = outlast_recover_begin(store, &recovery)) != 0) break;
 *         outlast_tx_put(outlast_recovery_tx(recovery), ...);
 *         status = outlast_recover_end(recovery);
 *     } while (status == OUTLAST_REVOKED);
 */
int outlast_recover_begin(const outlast_store *store, outlast_recovery **recovery);
/* Returns the transaction of this member, which the recovery owns. */
outlast_tx *outlast_recovery_tx(outlast_recovery *recovery);
/* Stores the death with this number, from 0, of the deaths since the last recovery. Returns
 * OUTLAST_ABSENT after the last death. member and heir may be NULL. */
int outlast_recovery_death(const outlast_recovery *recovery, size_t number, uint32_t *member,
                           uint32_t *heir);
/* Ends the recovery: the changes of all members take effect together, or none does. The handle is
 * freed in any case. */
int outlast_recover_end(outlast_recovery *recovery);
/* Gives the recovery up at all members, and frees the handle. outlast_recover_begin may be called
 * again. */
int outlast_recover_fail(outlast_recovery *recovery);

/* ---- Region checkpoints: memory by name, saved by all members together or by none ---- */

/* Options of region checkpoints, equal at all members. Zero is the default of each option. */
typedef struct outlast_region_options {
    uint64_t bytes;       /* bytes of a member's regions, in a smaller job too; default 16 MiB */
    uint32_t set;         /* pieces of a member's regions, each at another member; default 8 */
    uint32_t lose;        /* how many of the pieces may be lost, 1 to 3; default 1 */
    uint32_t apart_depth; /* parts of the paths in which failure domains differ; default all */
    uint32_t strict;      /* not 0: refuse to open with fewer failure domains than pieces */
    uint32_t piece;       /* bytes of a piece, a multiple of 64; default 16384 */
} outlast_region_options;

/* Where a restored program is. */
typedef struct outlast_restored {
    uint32_t rank;    /* this caller's number among the callers */
    uint32_t size;    /* the number of callers */
    uint64_t version; /* the version that was saved last, or 0 */
} outlast_restored;

typedef struct outlast_regions outlast_regions;

/* For outlast_region_read: the regions of a name of all owners, one after the other. */
#define OUTLAST_ALL UINT32_MAX

/* Opens the region checkpoints of a name. All members call it, and take part in all later calls of
 * this section except outlast_protect, outlast_region_note and outlast_region_read. options may be
 * NULL. */
int outlast_regions_open(const outlast_store *store, const char *name,
                         const outlast_region_options *options, outlast_regions **regions);
/* Makes memory a region of this member. A length of 0 ends that. The memory stays valid until then,
 * and regions do not overlap. */
int outlast_protect(outlast_regions *regions, const char *name, void *memory, size_t len);
/* Saves the regions of all members as a version. The version is equal at all members. OUTLAST_OK at
 * one member: the regions of all can be restored. OUTLAST_DIED, at all members: a member died or
 * could not do its part, and the version before stands. OUTLAST_TIMEOUT: outlast_restore says which
 * version stands. No other thread changes the regions during the call. */
int outlast_checkpoint(outlast_regions *regions, uint64_t version, const void *note,
                       size_t note_len);
/* Finds the version that was saved last and fills the regions that this member protects. All living
 * members call it, at the start and after each error. Returns OUTLAST_ABSENT if nothing was saved
 * yet. A member that divides its data anew protects no memory during the call, and calls
 * outlast_region_read after it. */
int outlast_restore(outlast_regions *regions, outlast_restored *at);
/* Copies the note of this member's regions that outlast_restore found. len may be NULL. */
int outlast_region_note(const outlast_regions *regions, void *buffer, size_t capacity, size_t *len);
/* Reads a part of a region of the version that was saved last: of the owner with this number, which
 * was its rank when it was saved, or of all owners. */
int outlast_region_read(const outlast_regions *regions, uint32_t owner, const char *name,
                        uint64_t offset, void *buffer, size_t len);
/* Closes the checkpoints, which are gone then. All living members call it. The handle is freed in
 * any case. */
int outlast_regions_close(outlast_regions *regions);

#ifdef __cplusplus
}
#endif

#endif
