/*
 * Outlast for C: a key-value store in the memories of the processes of a parallel program that outlasts any of them.
 *
 *     outlast_job *job;
 *     outlast_store *store;
 *     if (outlast_join(&job) || outlast_open(job, NULL, &store)) {
 *         fprintf(stderr, "%s\n", outlast_error());
 *     }
 *     outlast_put(store, "result/9", 8, bytes, len, NULL);
 *
 * Link with -loutlast_c. Started by `outlast run -n 4 PROGRAM` a process is one of four members; alone it is a job of one.
 *
 * Every call returns OUTLAST_OK (0), OUTLAST_ABSENT where that is an answer, or a negative code; outlast_error() then says
 * what happened and what to do, for the calling thread, until its next call. What each call guarantees, and what a death
 * in the middle of it leaves, is said in the documentation of the Rust calls of the same names.
 *
 * A store may be used by several threads at once; a handle, a transaction and a lock by one thread at a time. Keys are byte strings of
 * 1 to 1024 bytes, values byte strings of any length. A pointer to no bytes may be NULL if the length is 0.
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
    /* The key does not exist, or the wait is over and it still does not. */
    OUTLAST_ABSENT = 1,
    /* outlast_wait: the named member is dead, and the key is not there. */
    OUTLAST_DIED = 2,

    /* A null pointer, a bad option, a key that is too long: nothing was changed. */
    OUTLAST_INVALID = -1,
    /* The process cannot become a member. */
    OUTLAST_NOT_JOINED = -2,
    /* All copies of the key's partition are lost; outlast_accept_loss gives them up. */
    OUTLAST_DATA_LOST = -3,
    /* A living member did not answer in time. Whether the call had an effect is unknown. */
    OUTLAST_TIMEOUT = -4,
    /* The condition does not hold. Nothing was changed. */
    OUTLAST_CONFLICT = -5,
    /* Others were faster, nothing was changed: outlast_tx_retry, and do it again. */
    OUTLAST_ABORTED = -6,
    /* The transaction is over. */
    OUTLAST_OVER = -7,
    /* The lock is held by another until after the time. */
    OUTLAST_LOCKED = -8,
    OUTLAST_OUT_OF_MEMORY = -9,
    /* The buffer is too small: the length that is needed was stored. */
    OUTLAST_TOO_SMALL = -10,
    /* The value is no number. */
    OUTLAST_WRONG_TYPE = -11,
    /* The store or the membership is over. */
    OUTLAST_CLOSED = -12,
    /* Something has written into the store's memory that is not the store. */
    OUTLAST_CORRUPT = -13,
    /* Anything else; the message says it. */
    OUTLAST_FAILED = -14,
    /* A transaction was begun inside the callback of another. */
    OUTLAST_NESTED = -15,
    /* Global mode: a member has died, or somebody called outlast_revoke; all have to recover. Whether a write that was under way
     * had an effect is unknown. */
    OUTLAST_REVOKED = -16,
    /* Global mode: the recovery was not carried out, at no member. */
    OUTLAST_RECOVERY_FAILED = -17
};

/* What the last call of this thread that failed has to say; never NULL. */
const char *outlast_error(void);

typedef struct outlast_job outlast_job;
typedef struct outlast_store outlast_store;
typedef struct outlast_handle outlast_handle;
typedef struct outlast_tx outlast_tx;
typedef struct outlast_lock_guard outlast_lock_guard;
typedef struct outlast_recovery outlast_recovery;

/* Versions of a key only grow: by counter, then by writer. */
typedef struct outlast_version {
    uint64_t counter;
    uint32_t writer;
} outlast_version;

/* ---- The job ---- */

/* Joins the job that this process was started in. */
int outlast_join(outlast_job **job);
/* The same for a program that runs under mpirun --with-ft ulfm and has called MPI_Init_thread (MPI_THREAD_MULTIPLE), in
 * builds of the library with the feature `mpi`. `comm` is the MPI_Comm whose processes are the members, of Open MPI, where it is a pointer, or
 * NULL for MPI_COMM_WORLD; a duplicate of it is used. Errors on MPI_COMM_WORLD must return (MPI_Comm_set_errhandler with
 * MPI_ERRORS_RETURN), or `set_errhandlers` is not 0 and they are made to. */
int outlast_join_mpi(void *comm, int set_errhandlers, outlast_job **job);
/* An MPI_Comm of the members that live, for the program's own use: all of them call this. */
int outlast_mpi_shrunken(const outlast_job *job, void **comm);
/* Ends this process's membership, and frees the handle whatever is returned. Close the store before. */
int outlast_leave(outlast_job *job);
uint32_t outlast_me(const outlast_job *job);
/* How many members the job began with. */
uint32_t outlast_members(const outlast_job *job);
/* How many of them live, as far as is known. */
uint32_t outlast_living(const outlast_job *job);

/* ---- The store ---- */

/* Zero means the default. Every member opens with the same. */
typedef struct outlast_options {
    uint32_t replicas;      /* copies of each value, 1 to 8; default 3 */
    uint32_t allow_fewer;   /* not 0: open with fewer copies if the job is too small */
    uint64_t expected_keys; /* how many keys the index is made for */
    uint32_t checksums;     /* not 0: values have checksums */
    uint32_t global_mode;   /* not 0: all members stop at a death and recover together */
    uint32_t salvage;       /* not 0: survivors read the memory of the dead (processes of one machine) */
} outlast_options;

/* Opens the store; all members do. options may be NULL. */
int outlast_open(const outlast_job *job, const outlast_options *options, outlast_store **store);
/* Waits, bounded, until all living members close, and frees the handle whatever is returned. */
int outlast_close(outlast_store *store);

/* Puts a value: when it returns 0, every copy holds it. version may be NULL. */
int outlast_put(const outlast_store *store, const void *key, size_t key_len, const void *value, size_t len,
                outlast_version *version);
/* The same if the key has this version, or, with NULL, if it does not exist; else OUTLAST_CONFLICT. */
int outlast_put_if(const outlast_store *store, const void *key, size_t key_len, const void *value, size_t len,
                   const outlast_version *expected, outlast_version *version);
/* Copies the value into the buffer. *len is set to the value's length, also if it is OUTLAST_TOO_SMALL. version may be NULL. */
int outlast_get(const outlast_store *store, const void *key, size_t key_len, void *buffer, size_t capacity, size_t *len,
                outlast_version *version);
/* OUTLAST_OK or OUTLAST_ABSENT. */
int outlast_exists(const outlast_store *store, const void *key, size_t key_len);
int outlast_delete(const outlast_store *store, const void *key, size_t key_len);
/* Adds to a number, which is 0 if the key does not exist. after may be NULL. */
int outlast_add(const outlast_store *store, const void *key, size_t key_len, int64_t delta, int64_t *after);
/* Sleeps until the key has a version newer than this one (NULL: until it exists), as outlast_get; OUTLAST_ABSENT when the
 * time is over; OUTLAST_DIED if member is not -1, is dead, and has not put it. */
int outlast_wait(const outlast_store *store, const void *key, size_t key_len, const outlast_version *newer_than,
                 uint64_t milliseconds, int64_t member, void *buffer, size_t capacity, size_t *len,
                 outlast_version *version);
/* Calls visit for each key that begins with the prefix; it returns 0 to go on. */
int outlast_scan(const outlast_store *store, const void *prefix, size_t prefix_len,
                 int (*visit)(void *context, const void *key, size_t key_len), void *context);
/* The same for each key that a member owns. */
int outlast_keys_of(const outlast_store *store, uint32_t member,
                    int (*visit)(void *context, const void *key, size_t key_len), void *context);
/* Makes this member the owner of a key. */
int outlast_adopt(const outlast_store *store, const void *key, size_t key_len);

/* Puts without waiting; the bytes are copied. Errors come with outlast_flush. */
int outlast_put_nb(const outlast_store *store, const void *key, size_t key_len, const void *value, size_t len);
int outlast_flush(const outlast_store *store);

/* ---- Deaths ---- */

/* Changes with each death: one load. */
uint64_t outlast_epoch(const outlast_store *store);
/* The next death since *seen, which is moved on: OUTLAST_OK, or OUTLAST_ABSENT if there is none. heir takes over from it. */
int outlast_next_death(const outlast_store *store, uint64_t *seen, uint32_t *member, uint32_t *heir);
/* Gives up all partitions of which no copy is left. How many it were; may be NULL. */
int outlast_accept_loss(const outlast_store *store, size_t *partitions);

/* ---- Handles: writing the same key again costs one write and one compare-and-swap for each copy ---- */

int outlast_handle_open(const outlast_store *store, const void *key, size_t key_len, outlast_handle **handle);
int outlast_handle_put(const outlast_handle *handle, const void *value, size_t len, outlast_version *version);
int outlast_handle_get(const outlast_handle *handle, void *buffer, size_t capacity, size_t *len, outlast_version *version);
void outlast_handle_free(outlast_handle *handle);

/* ---- Locks, which tell when their holder died ---- */

/* *abandoned is set to the dead holder that it was taken from, or to -1; may be NULL. */
int outlast_lock(const outlast_store *store, const void *key, size_t key_len, uint64_t milliseconds,
                 outlast_lock_guard **guard, int64_t *abandoned);
/* Frees the guard whatever is returned. */
int outlast_unlock(outlast_lock_guard *guard);

/* ---- Transactions ---- */

/* By handle: begin, work, commit; on OUTLAST_ABORTED outlast_tx_retry and work again. */
int outlast_tx_begin(const outlast_store *store, outlast_tx **tx);
int outlast_tx_get(outlast_tx *tx, const void *key, size_t key_len, void *buffer, size_t capacity, size_t *len);
int outlast_tx_put(outlast_tx *tx, const void *key, size_t key_len, const void *value, size_t len);
int outlast_tx_delete(outlast_tx *tx, const void *key, size_t key_len);
int outlast_tx_add(outlast_tx *tx, const void *key, size_t key_len, int64_t delta, int64_t *after);
int outlast_tx_adopt(outlast_tx *tx, const void *key, size_t key_len);
/* Carries it out, wholly or not at all. */
int outlast_tx_commit(outlast_tx *tx);
int outlast_tx_abort(outlast_tx *tx);
int outlast_tx_retry(outlast_tx *tx);
/* Frees the handle; what was not committed is aborted. */
void outlast_tx_free(outlast_tx *tx);
/* By callback, which is called again until it is carried out. If it returns anything but 0 the transaction is aborted and
 * that is returned, so let it return what the calls on tx return. It must not free, commit or abort tx. */
int outlast_transaction(const outlast_store *store, int (*body)(void *context, outlast_tx *tx), void *context);

/* ---- Global mode: all stop at the first death, and recover together ---- */

/* Stops all members, as a death does. */
int outlast_revoke(const outlast_store *store);
/* Not 0 while calls return OUTLAST_REVOKED. */
int outlast_is_revoked(const outlast_store *store);
/* All living members call it after OUTLAST_REVOKED. The store is repaired; then each member works on the recovery's transaction
 * (outlast_tx_get and so on, not commit, abort or free), and all call outlast_recover_end. OUTLAST_REVOKED from that: another
 * one died, nothing has changed, begin again.
 *
 *     do {
 *         outlast_recovery *recovery;
 *         if ((status = outlast_recover_begin(store, &recovery)) != 0) break;
 *         outlast_tx_put(outlast_recovery_tx(recovery), ...);
 *         status = outlast_recover_end(recovery);
 *     } while (status == OUTLAST_REVOKED);
 */
int outlast_recover_begin(const outlast_store *store, outlast_recovery **recovery);
/* The transaction of this member; it belongs to the recovery. */
outlast_tx *outlast_recovery_tx(outlast_recovery *recovery);
/* The deaths since the last recovery, by number from 0: OUTLAST_OK, or OUTLAST_ABSENT after the last one. */
int outlast_recovery_death(const outlast_recovery *recovery, size_t number, uint32_t *member, uint32_t *heir);
/* Carries out what all members have done, wholly or not at all, and frees the handle whatever is returned. */
int outlast_recover_end(outlast_recovery *recovery);
/* Gives the recovery up at all members, and frees the handle; outlast_recover_begin may be called again. */
int outlast_recover_fail(outlast_recovery *recovery);

#ifdef __cplusplus
}
#endif

#endif
