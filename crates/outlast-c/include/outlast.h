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
 * Compile and link with `pkg-config --cflags --libs outlast`, or with find_package(outlast) in
 * CMake. A process that `outlast run -n 4 PROGRAM` started is a member of a job of four. A process
 * that was started alone is the member of a job of one.
 *
 * Return values: a call returns OUTLAST_OK (0), another answer from 1 on (OUTLAST_ABSENT,
 * OUTLAST_DIED, OUTLAST_ABANDONED), or a negative code of an error. After an error outlast_error()
 * returns a message for the calling thread, which is valid until the thread's next call. The
 * message says what happened and what to do.
 *
 * What holds for all calls of the store:
 * - A change that returned OUTLAST_OK is at every replica. It survives as long as, since all
 *   replicas were complete, fewer members have died than there are replicas. Lost replicas are made
 *   again in the background. Beyond that, calls on lost keys return OUTLAST_DATA_LOST, and calls on
 *   all other keys go on.
 * - A single order explains the results of all calls of all members. A get returns the value of the
 *   last put before it in that order.
 * - If a member dies during its call, the change has happened as a whole or not at all, and any
 *   survivor that reads the key settles which. A call of a survivor goes on with the replicas that
 *   live; it does not fail because a member died.
 * - No call waits for ever. A call that needs a living member which does not answer, because it is
 *   stopped or starved, returns OUTLAST_TIMEOUT at the time limit of the job: 30 s, unless
 *   outlast_join_options says otherwise.
 * - A member counts as dead when the kernel says so, or between hosts a majority that has fenced it
 *   off: never because it is slow.
 *
 * Threads: several threads may use a job, a store, a communicator or a window at once, but not
 * while a call ends it. A key handle, a transaction, a lock guard, a recovery, a pin, a pending
 * get, a request and region checkpoints must be used by a single thread at a time; a seat by the
 * thread that its function was called in.
 *
 * Handles: a job that was left and a store that was closed stay valid as arguments, and calls with
 * them return OUTLAST_CLOSED. Other handles must not be used after the call that frees them. A
 * handle that is NULL is OUTLAST_INVALID. In a child that was forked after outlast_join, calls
 * return OUTLAST_FORKED: the child is no member.
 *
 * Signals: a signal whose handler returns ends no wait, except that outlast_park returns. A signal
 * handler must not make calls, nor leave them by longjmp.
 *
 * Data: a key has 1 to 1024 bytes. A value has any number of bytes. A pointer to bytes may be NULL
 * if their number is 0. A pointer to a result may be NULL where its comment says so; then the
 * result is not stored. A text is UTF-8 and ends with a null character.
 *
 * Lists: a call with `capacity` and `count` stores at most `capacity` items, and in *count, which
 * may be NULL, the number of all of them.
 *
 * Structures that begin with struct_size: set struct_size to the sizeof of the structure, and
 * fields that you do not use to 0. A program that was compiled with an older header works with a
 * newer library, and with an older library as long as it leaves the new fields 0.
 *
 * Environment: OUTLAST_LOG (off, error, warn, info, debug or trace) writes what the library does
 * about deaths and repair to standard error.
 */
#ifndef OUTLAST_H
#define OUTLAST_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. outlast_library_version returns that of the library. */
#define OUTLAST_VERSION "0.1.0"
#define OUTLAST_VERSION_MAJOR 0
#define OUTLAST_VERSION_MINOR 1
#define OUTLAST_VERSION_PATCH 0

enum outlast_status {
    OUTLAST_OK = 0,
    /* The key does not exist, or did not change before the time limit of a wait. */
    OUTLAST_ABSENT = 1,
    /* outlast_wait: the named member is dead and has not put the key. outlast_wait_count: a member
     * has died. outlast_checkpoint: a member died, and the version before stands. */
    OUTLAST_DIED = 2,
    /* outlast_window_lock and the like: the caller holds the lock now, and a member died while it
     * held the lock. The data that the lock guards may be half changed: repair it, then go on. */
    OUTLAST_ABANDONED = 3,

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
    /* The store, communicator or window was closed or freed, or the process has left the job. */
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
    OUTLAST_ALREADY_OPEN = -18,
    /* This process was forked from a member and is no member itself. Nothing was changed. */
    OUTLAST_FORKED = -19,
    /* Members that the call needs are dead. outlast_comm_get_failed has their ranks. */
    OUTLAST_PROC_FAILED = -20,
    /* A death holds the receive up, which is still active: call outlast_comm_failure_ack and wait
     * again. */
    OUTLAST_PROC_FAILED_PENDING = -21,
    /* A member ended this wait with outlast_comm_interrupt. Nothing was lost; call again to go on
     * waiting. */
    OUTLAST_INTERRUPTED = -22,
    /* The lock that this member held was taken away with outlast_window_force_unlock. The call did
     * nothing. */
    OUTLAST_LOCK_LOST = -23,
    /* The call needs a lock that this member does not hold. Nothing was changed. */
    OUTLAST_NOT_LOCKED = -24,
    /* The window is not freed: a living member holds a lock on it. The window goes on as before. */
    OUTLAST_STILL_LOCKED = -25,
    /* Another thread of this member is in a collective call on this communicator, or another
     * snapshot is being taken. Nothing was changed. */
    OUTLAST_BUSY = -26,
    /* A holder of a seat died, and all seats go back to a point. Return this code from the function
     * of the seat, which is then called again. */
    OUTLAST_ROLLED_BACK = -27,
    /* The function of a seat returned another value than 0, or the holders of the seat died too
     * often. All members get this code. */
    OUTLAST_SEAT_FAILED = -28
};

/* Returns the message of the last call of this thread that failed; never NULL. */
const char *outlast_error(void);
/* Returns the version of the library, such as "0.1.0". */
const char *outlast_library_version(void);

typedef struct outlast_job outlast_job;
typedef struct outlast_store outlast_store;
typedef struct outlast_handle outlast_handle;
typedef struct outlast_tx outlast_tx;
typedef struct outlast_lock_guard outlast_lock_guard;
typedef struct outlast_recovery outlast_recovery;
typedef struct outlast_pin outlast_pin;
typedef struct outlast_pending outlast_pending;
typedef struct outlast_snapshots outlast_snapshots;
typedef struct outlast_comm outlast_comm;
typedef struct outlast_request outlast_request;
typedef struct outlast_window outlast_window;
typedef struct outlast_window_request outlast_window_request;

/* The version of a value. The versions of a key only grow: by counter, then by writer. */
typedef struct outlast_version {
    uint64_t counter;
    uint32_t writer; /* the member that wrote the value */
} outlast_version;

/* ---- The job ---- */

/* Joins the job in which this process was started. Waits, within the time limit, until all members
 * have joined or died. A process joins once; its threads share the handle. */
int outlast_join(outlast_job **job);

/* How to join. Zero is the default of each option. */
typedef struct outlast_join_options {
    size_t struct_size;       /* sizeof(outlast_join_options) */
    uint64_t time_limit_ms;   /* how long a call waits for a living member; default 30000 */
    uint64_t segment_limit;   /* the most bytes that this member lends; default: what the launcher
                                 set aside, which is also the upper bound */
    const char *domain;       /* the failure domain of this member, such as rack3/node17; default:
                                 the variable OUTLAST_DOMAIN */
    void *mpi_communicator;   /* as comm of outlast_join_mpi; default MPI_COMM_WORLD */
    uint32_t set_errhandlers; /* as in outlast_join_mpi */
} outlast_join_options;

/* Joins with options, which may be NULL. */
int outlast_join_with(const outlast_join_options *options, outlast_job **job);
/* Joins a job of the ranks of a communicator. For programs that run under mpirun --with-ft ulfm and
 * have called MPI_Init_thread with MPI_THREAD_MULTIPLE. The library calls MPI through a plug-in,
 * which `outlast mpi setup` compiles. Without a plug-in of the program's MPI the call returns
 * OUTLAST_NOT_JOINED, and the message says what to type.
 *
 * comm is an MPI_Comm of Open MPI, where it is a pointer, or NULL for MPI_COMM_WORLD. The library
 * uses a duplicate of it. Errors on MPI_COMM_WORLD must be returned: either the program has called
 * MPI_Comm_set_errhandler with MPI_ERRORS_RETURN, or set_errhandlers is not 0 and this call does
 * so. */
int outlast_join_mpi(void *comm, int set_errhandlers, outlast_job **job);
/* Stores an MPI_Comm of the living members, for the program's own use. All of them call it. */
int outlast_mpi_shrunken(const outlast_job *job, void **comm);
/* Ends the membership of this process: the other members see it as dead, and as one that left.
 * Close the store before. Afterwards calls with the job, its stores and their handles return
 * OUTLAST_CLOSED. */
int outlast_leave(outlast_job *job);
/* Returns the number of this member, from 0; UINT32_MAX if the job is NULL or was left. */
uint32_t outlast_me(const outlast_job *job);
/* Returns the number of members with which the job began; 0 if the job is NULL or was left. */
uint32_t outlast_members(const outlast_job *job);
/* Returns how long a call waits for a living member, in milliseconds; 0 if the job is NULL or was
 * left. */
uint64_t outlast_time_limit_ms(const outlast_job *job);
/* Returns the number of members that are not known to be dead. */
uint32_t outlast_living(const outlast_job *job);
/* Lists the members that are not known to be dead, in ascending order. */
int outlast_living_members(const outlast_job *job, uint32_t *members, size_t capacity,
                           size_t *count);
/* Returns another value than 0 if the member is not known to be dead. */
int outlast_is_living(const outlast_job *job, uint32_t member);
/* Copies the failure domain of a member, such as rack3/node17, without a null character. len may
 * be NULL. */
int outlast_domain(const outlast_job *job, uint32_t member, char *buffer, size_t capacity,
                   size_t *len);
/* Makes sure that a member is dead: kills it if it lives, waits for the proof, and returns when
 * this member knows of the death. OUTLAST_TIMEOUT: there is no proof within the time. A member that
 * fences itself ends its process. */
int outlast_fence(const outlast_job *job, uint32_t member, uint64_t milliseconds);
/* Returns when all living members have called it, whichever members die meanwhile. It counts as an
 * agreement on the communicator of all members: all members call both in the same order. After
 * OUTLAST_TIMEOUT the barrier goes on; call it again for its end. */
int outlast_barrier(const outlast_job *job);

/* ---- Waiting for what comes first: a key, work or a death ----
 *
 * Each member has a bell. It rings when a member calls outlast_ring, when a member dies, and when a
 * key changes that this member waits for. A thread reads the bell, looks at everything that it
 * waits for, and parks until the bell shows another number. So it misses nothing that happens
 * between the look and the park:
 *
 *     for (;;) {
 *         uint64_t bell = outlast_bell(job);
 *         if (outlast_wait(store, future, len, NULL, 0, -1, ...) == OUTLAST_OK) break;
 *         if (outlast_epoch(store) != seen) { ... a member died ... }
 *         if (find_work()) continue;
 *         outlast_park(job, bell, 100);
 *     }
 *
 * outlast_wait with 0 milliseconds reads the key, and asks that its next change rings the bell. A
 * member that gives work to another member calls outlast_ring after the put. Park with a limit, and
 * look again: the bell of a key that a transaction changes may ring late if the member that commits
 * is stopped. */

/* Returns what this member's bell shows. The call costs a load or two. */
uint64_t outlast_bell(const outlast_job *job);
/* Sleeps until the bell shows another number than `bell`. Returns OUTLAST_ABSENT if it did not ring
 * within the time; the call may return earlier without a ring. */
int outlast_park(const outlast_job *job, uint64_t bell, uint64_t milliseconds);
/* Rings the bell of a member, also of this member. It has no effect if the member is dead. */
int outlast_ring(const outlast_job *job, uint32_t member);

/* ---- The store ---- */

/* Options of a store, equal at all members. Zero is the default of each option. */
typedef struct outlast_options {
    size_t struct_size;     /* sizeof(outlast_options) */
    uint32_t replicas;      /* replicas of each value, 1 to 8; default 3 */
    uint32_t allow_fewer;   /* not 0: open with fewer replicas if the job has too few members */
    uint64_t expected_keys; /* the number of keys for which the index is made */
    uint32_t checksums;     /* not 0: values have checksums */
    uint32_t global_mode;   /* not 0: all members stop at a death and recover together */
    uint32_t salvage;       /* not 0: survivors read the memory of the dead of their machine */
    uint32_t sole_writers;  /* not 0, with global_mode: the program writes each key through a single
                               handle between two recoveries, which makes puts cheaper */
    const char *name;       /* the name of the store, UTF-8, at most 255 bytes; NULL is "" */
    uint32_t partitions;    /* the number of partitions; default 256 for each member */
    uint32_t repair_share;  /* percent of a processor that a member spends on repair, 1 to 100;
                               default 100; may differ between members */
    uint64_t slab_len_max;  /* bytes that a replica divides into blocks at a time; default 1 MiB */
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
 * is gone. Afterwards calls with the store and its handles return OUTLAST_CLOSED. */
int outlast_close(outlast_store *store);
/* Leaves the job: hands the replicas of this member over to other members, so that nothing is lost
 * even with a single replica, and ends the membership with all its stores. Afterwards calls with
 * the job and its stores return OUTLAST_CLOSED, outlast_close and outlast_leave included.
 * OUTLAST_TIMEOUT: the replicas, or pieces of images, are not handed over yet, or another member
 * uses a store that this member has closed; this member is still part of the job; call again.
 * OUTLAST_LOCKED: another member was leaving. To end the whole job, use outlast_close and
 * outlast_leave. */
int outlast_hand_over(const outlast_store *store, uint64_t milliseconds);

/* Puts a value. When it returns 0, every replica holds the value. version may be NULL. */
int outlast_put(const outlast_store *store, const void *key, size_t key_len, const void *value,
                size_t len, outlast_version *version);
/* Puts a value that is in several parts, one after the other. count is 0 to INT_MAX. */
int outlast_putv(const outlast_store *store, const void *key, size_t key_len,
                 const struct iovec *parts, int count, outlast_version *version);
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
/* Stores the member that owns the key: the member that created it, or adopted it since. */
int outlast_owner_of(const outlast_store *store, const void *key, size_t key_len,
                     uint32_t *member);
/* Lists the members that hold the key, or are to hold it, under the current view. */
int outlast_replicas_of(const outlast_store *store, const void *key, size_t key_len,
                        uint32_t *members, size_t capacity, size_t *count);
/* Deletes a key. Returns OUTLAST_ABSENT if it did not exist. */
int outlast_delete(const outlast_store *store, const void *key, size_t key_len);
/* Adds delta to the number that the key holds, 0 if the key does not exist, and stores the sum in
 * *after, which may be NULL. A number is a value of 8 bytes, little-endian; it wraps around. */
int outlast_add(const outlast_store *store, const void *key, size_t key_len, int64_t delta,
                int64_t *after);
/* Sleeps until the key has a newer version than *newer_than, or, if newer_than is NULL, until the
 * key exists; then it copies the value as outlast_get does. Returns OUTLAST_ABSENT at the time
 * limit. Returns OUTLAST_DIED if the member `member` is dead and has not put the key; -1 is no
 * member. */
int outlast_wait(const outlast_store *store, const void *key, size_t key_len,
                 const outlast_version *newer_than, uint64_t milliseconds, int64_t member,
                 void *buffer, size_t capacity, size_t *len, outlast_version *version);
/* Sleeps until the number of a key, which outlast_add changes, is at least `count`; the number of a
 * key that does not exist is 0. *reached, which may be NULL, is the number at the end. Returns
 * OUTLAST_ABSENT at the time limit. If seen is not NULL, returns OUTLAST_DIED once outlast_epoch is
 * another number than *seen: a member died, and the count may never be reached. */
int outlast_wait_count(const outlast_store *store, const void *key, size_t key_len, int64_t count,
                       uint64_t milliseconds, const uint64_t *seen, int64_t *reached);
/* Calls visit for each key that begins with the prefix, until visit returns another value than 0.
 * A key that exists throughout the call is listed; a key that is made or deleted meanwhile may be.
 * visit may call the store. */
int outlast_scan(const outlast_store *store, const void *prefix, size_t prefix_len,
                 int (*visit)(void *context, const void *key, size_t key_len), void *context);
/* As outlast_scan, with the value and version of each key, each as of some moment during the call.
 * The pointers are valid until visit returns. */
int outlast_scan_values(const outlast_store *store, const void *prefix, size_t prefix_len,
                        int (*visit)(void *context, const void *key, size_t key_len,
                                     const void *value, size_t len,
                                     const outlast_version *version),
                        void *context);
/* Stores the number of keys that exist. The call lists all keys. */
int outlast_count(const outlast_store *store, size_t *keys);
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
/* Begins to read a key. The value is as of some moment between this call and the end of
 * outlast_pending_get. */
int outlast_get_nb(const outlast_store *store, const void *key, size_t key_len,
                   outlast_pending **pending);
/* Returns another value than 0 if outlast_pending_get would return at once. */
int outlast_pending_is_ready(const outlast_pending *pending);
/* Waits for the value and copies it as outlast_get does. A value that does not fit stays in the
 * pending get: call again with a larger buffer. OUTLAST_OVER: the result was given already. */
int outlast_pending_get(outlast_pending *pending, void *buffer, size_t capacity, size_t *len,
                        outlast_version *version);
/* Frees the pending get, at any time. */
void outlast_pending_free(outlast_pending *pending);

/* A key and a value, for outlast_put_all. */
typedef struct outlast_pair {
    const void *key;
    size_t key_len;
    const void *value;
    size_t len;
} outlast_pair;

/* A key, the buffer for its value, and the result, for outlast_get_all. */
typedef struct outlast_read {
    const void *key;
    size_t key_len;
    void *buffer;
    size_t capacity;
    size_t len; /* the length of the value, as outlast_get stores it */
    int status; /* what outlast_get would return */
} outlast_read;

/* Puts many keys, in order. Each put is a call of its own: at the first error *done puts have
 * happened, and the later puts are not tried. done may be NULL. */
int outlast_put_all(const outlast_store *store, const outlast_pair *pairs, size_t count,
                    size_t *done);
/* Gets many keys, each as of some moment during the call. Each key has its own status; the call
 * returns the first error, or OUTLAST_OK also if keys do not exist. */
int outlast_get_all(const outlast_store *store, outlast_read *reads, size_t count);

/* ---- Deaths ---- */

/* Returns a number that changes with each death. The call costs a single load. */
uint64_t outlast_epoch(const outlast_store *store);
/* Stores the next death after *seen, and advances *seen. heir is the member that takes over from
 * the dead member. Begin with 0: the number that outlast_epoch returns after outlast_open may
 * already count a member that died meanwhile, after it had put keys. Members that died before the
 * store was opened have no keys in it. Returns OUTLAST_ABSENT if there is no further death. If an
 * heir dies, the dead members that it was to take over from are stored again, with their new heir:
 * a loop that adopts the keys of each member whose heir it is adopts all keys. Compare *seen with
 * outlast_epoch only when the call has returned OUTLAST_ABSENT. member and heir may be NULL. */
int outlast_next_death(const outlast_store *store, uint64_t *seen, uint32_t *member,
                       uint32_t *heir);
/* Returns the member that takes over from a dead member, under the current view. */
uint32_t outlast_heir_of(const outlast_store *store, uint32_t member);
/* Gives up lost data: partitions of which no replica is left become empty and usable again. If
 * salvage lost only some keys of a partition, only these keys are given up. *partitions is the
 * number of partitions; partitions may be NULL. */
int outlast_accept_loss(const outlast_store *store, size_t *partitions);
/* Gives up the data of these partitions, as outlast_accept_loss does. A partition that is not lost
 * stays unchanged. */
int outlast_accept_loss_of(const outlast_store *store, const size_t *partitions, size_t count);
/* Calls visit for each lost key that survivors can still name: the keys that repair had copied when
 * the last complete replica died, and with salvage the keys with a damaged value. More keys may be
 * lost: compare outlast_partition_of with outlast_lost_partitions. */
int outlast_lost_keys(const outlast_store *store,
                      int (*visit)(void *context, const void *key, size_t key_len), void *context);
/* Registers a function that is called after each death that leaves lost partitions, with all lost
 * partitions, and with salvage the partitions with lost keys. It runs in a thread of the library
 * and may call the store, except outlast_close, outlast_hand_over and outlast_leave; repair waits
 * until it returns. The context stays valid as long as the process is a member. */
int outlast_on_loss(const outlast_store *store,
                    void (*listener)(void *context, const size_t *partitions, size_t count),
                    void *context);
/* Lists the lost partitions: no complete replica of them lives, and their loss is not accepted. */
int outlast_lost_partitions(const outlast_store *store, size_t *partitions, size_t capacity,
                            size_t *count);
/* Stores the partition of a key, which need not exist. */
int outlast_partition_of(const outlast_store *store, const void *key, size_t key_len,
                         size_t *partition);
/* Stores how many replicas are still to be made again, and how many partitions are lost, in the
 * whole job. Both places may be NULL. The call asks about every partition. */
int outlast_repair_status(const outlast_store *store, size_t *replicas_missing,
                          size_t *partitions_lost);
/* Waits until every partition that is not lost has all its replicas. Returns OUTLAST_ABSENT at the
 * time limit. */
int outlast_wait_repaired(const outlast_store *store, uint64_t milliseconds,
                          size_t *replicas_missing, size_t *partitions_lost);

/* ---- Key handles: a put through a handle costs one write and one compare-and-swap at each
 *      replica ---- */

/* Makes a handle of a key, which need not exist. */
int outlast_handle_open(const outlast_store *store, const void *key, size_t key_len,
                        outlast_handle **handle);
/* Puts a value of the handle's key, as outlast_put does. */
int outlast_handle_put(const outlast_handle *handle, const void *value, size_t len,
                       outlast_version *version);
/* Puts a value in several parts, as outlast_putv does. */
int outlast_handle_putv(const outlast_handle *handle, const struct iovec *parts, int count,
                        outlast_version *version);
/* Puts a value if the key has the version *expected, or does not exist, as outlast_put_if does. If
 * this handle wrote the key last, on one machine, it costs as much as outlast_handle_put. */
int outlast_handle_put_if(const outlast_handle *handle, const void *value, size_t len,
                          const outlast_version *expected, outlast_version *version);
/* Adds to the number of the handle's key, as outlast_add does. */
int outlast_handle_add(const outlast_handle *handle, int64_t delta, int64_t *after);
/* Stores the version of the handle's key, without copying its value. Returns OUTLAST_ABSENT if the
 * key does not exist. */
int outlast_handle_version(const outlast_handle *handle, outlast_version *version);
/* Deletes the handle's key, as outlast_delete does. The handle stays usable. */
int outlast_handle_delete(const outlast_handle *handle);
/* Copies the value of the handle's key, as outlast_get does. */
int outlast_handle_get(const outlast_handle *handle, void *buffer, size_t capacity, size_t *len,
                       outlast_version *version);
/* Frees the handle. The key and its value stay. */
void outlast_handle_free(outlast_handle *handle);

/* ---- Pins: a version that stays readable while its key changes ---- */

/* Pins the current version of a key, and stores its length and version, which may be NULL. Returns
 * OUTLAST_ABSENT if the key does not exist. A member may have 64 pins at a time. Writers never wait
 * for a pin. The pinned version is readable as long as a replica lives that held it when it was
 * pinned; then outlast_pin_read returns OUTLAST_DATA_LOST. */
int outlast_pin_open(const outlast_store *store, const void *key, size_t key_len,
                     outlast_pin **pin, uint64_t *len, outlast_version *version);
/* Copies len bytes of the pinned version from `from` on. It compares no checksum. */
int outlast_pin_read(const outlast_pin *pin, uint64_t from, void *buffer, size_t len);
/* Ends the pin and frees it. */
void outlast_pin_free(outlast_pin *pin);

/* ---- Locks: the next holder is told if the last holder died ---- */

/* Takes the lock of a key. Returns OUTLAST_LOCKED at the time limit. *abandoned is the dead member
 * that held the lock, or -1; abandoned may be NULL. */
int outlast_lock(const outlast_store *store, const void *key, size_t key_len,
                 uint64_t milliseconds, outlast_lock_guard **guard, int64_t *abandoned);
/* Stores the version of the lock's record, which grows from holder to holder: a fencing token, by
 * which another system can refuse a former holder. */
int outlast_lock_version(const outlast_lock_guard *guard, outlast_version *version);
/* Releases the lock. The guard is freed in any case. */
int outlast_unlock(outlast_lock_guard *guard);

/* ---- Transactions ---- */

/* Begins a transaction. Work with the calls below, then call outlast_tx_commit. If that returns
 * OUTLAST_ABORTED, call outlast_tx_retry and repeat the work. */
int outlast_tx_begin(const outlast_store *store, outlast_tx **tx);
/* Copies the value of a key as the transaction sees it. */
int outlast_tx_get(outlast_tx *tx, const void *key, size_t key_len, void *buffer, size_t capacity,
                   size_t *len);
/* Copies the value of a key without the changes of this transaction, and stores its version, which
 * may be NULL. */
int outlast_tx_get_before(outlast_tx *tx, const void *key, size_t key_len, void *buffer,
                          size_t capacity, size_t *len, outlast_version *version);
/* Puts a value when the transaction is committed. */
int outlast_tx_put(outlast_tx *tx, const void *key, size_t key_len, const void *value, size_t len);
/* Deletes a key when the transaction is committed. Returns OUTLAST_ABSENT if it does not exist. */
int outlast_tx_delete(outlast_tx *tx, const void *key, size_t key_len);
/* Adds to a number when the transaction is committed. after may be NULL. */
int outlast_tx_add(outlast_tx *tx, const void *key, size_t key_len, int64_t delta, int64_t *after);
/* Makes this member the owner of a key when the transaction is committed. Returns OUTLAST_ABSENT if
 * the key does not exist. */
int outlast_tx_adopt(outlast_tx *tx, const void *key, size_t key_len);
/* Makes the transaction depend on a key that has the version *expected or, where expected is NULL,
 * that does not exist. Returns OUTLAST_CONFLICT if the key is not so. If the key changes later, the
 * transaction does not commit. */
int outlast_tx_require(outlast_tx *tx, const void *key, size_t key_len,
                       const outlast_version *expected);
/* Commits: all changes take effect together, or none does. */
int outlast_tx_commit(outlast_tx *tx);
/* Stores the version that a key got by the commit. Returns OUTLAST_ABSENT if the transaction has
 * not put the key, or is not committed. */
int outlast_tx_version(const outlast_tx *tx, const void *key, size_t key_len,
                       outlast_version *version);
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

/* ---- Figures ---- */

/* The latency of calls, from a sample of every 64th call; percentiles are exact to a quarter of a
 * doubling. */
typedef struct outlast_latency {
    uint64_t samples; /* 0: nothing was timed yet */
    uint64_t p50_ns;
    uint64_t p99_ns;
    uint64_t max_ns;
} outlast_latency;

/* What this member has done since it opened the store. */
typedef struct outlast_stats {
    size_t struct_size;          /* sizeof(outlast_stats) */
    uint64_t replicas_repaired;  /* replicas of partitions that this member has made again */
    uint64_t records_repaired;   /* records that repair has checked or copied */
    uint64_t repairs_taken_over; /* repairs that this member took over from a stopped member */
    outlast_latency put;
    outlast_latency get;
} outlast_stats;

/* What the whole store holds, at some moment during the call. */
typedef struct outlast_totals {
    size_t struct_size; /* sizeof(outlast_totals) */
    uint64_t keys;      /* without the keys of lost partitions */
    uint64_t key_bytes;
    uint64_t value_bytes; /* without further replicas */
    uint64_t replicas_missing;
    uint64_t partitions_lost;
} outlast_totals;

/* What the memory that this member lends to the store is used for, in bytes. */
typedef struct outlast_memory {
    size_t struct_size; /* sizeof(outlast_memory) */
    uint64_t values;    /* with their headers and rounding */
    uint64_t records;   /* keys, and the locations of their values */
    uint64_t free;
    uint64_t held_by_living; /* kept for next writes, or until no operation reads it any more */
    uint64_t held_by_dead;   /* about to be reclaimed */
} outlast_memory;

/* Stores what this member has done. */
int outlast_get_stats(const outlast_store *store, outlast_stats *stats);
/* Stores what the store holds. The call reads all records. */
int outlast_get_totals(const outlast_store *store, outlast_totals *totals);
/* Stores the use of this member's memory. The call reads every block. */
int outlast_get_memory(const outlast_store *store, outlast_memory *memory);

/* ---- Snapshots: the store at one moment, in files ---- */

/* How snapshots are taken. Zero is the default of each option. */
typedef struct outlast_snapshot_options {
    size_t struct_size;        /* sizeof(outlast_snapshot_options) */
    uint64_t keep;             /* how many snapshots are kept; default 2 */
    uint64_t bytes_per_second; /* the most that each member writes; default: no limit */
    uint64_t freeze_limit_ms;  /* for how long writers are held up at most; default 2000 */
} outlast_snapshot_options;

/* A snapshot that was taken. */
typedef struct outlast_snapshot {
    size_t struct_size; /* sizeof(outlast_snapshot) */
    uint64_t generation;
    uint64_t records;
    uint64_t bytes;
    uint64_t frozen_ns; /* the longest time for which a member held writers up */
} outlast_snapshot;

/* Opens a folder of snapshots, which all members reach and all members open, once for each store.
 * Nothing is read or written yet. options may be NULL. */
int outlast_snapshots_open(const outlast_store *store, const char *folder,
                           const outlast_snapshot_options *options, outlast_snapshots **snapshots);
/* Takes a snapshot, at a single member, and waits until it is published. It holds all changes that
 * were acknowledged before the call, and of the changes during the call a consistent part. After an
 * error, and whichever members die, earlier snapshots stand. snapshot may be NULL. */
int outlast_snapshot_take(const outlast_snapshots *snapshots, outlast_snapshot *snapshot);
/* Frees the handle. This member takes part in the snapshots of other members until the store is
 * closed. */
void outlast_snapshots_free(outlast_snapshots *snapshots);
/* Puts the records of a snapshot into the store: the share with this number, from 0, of `shares`
 * equal shares. A single member restores share 0 of 1, or all members restore a share each. path is
 * a folder of snapshots, of which the newest is taken, or a snapshot in it. The job may have
 * another size than the job that took the snapshot. Keys that the snapshot does not have stay.
 * After an error, which names the damaged file, a part may be restored. records and bytes may be
 * NULL. */
int outlast_snapshot_restore(const outlast_store *store, const char *path, size_t share,
                             size_t shares, uint64_t *records, uint64_t *bytes);

/* ---- Region checkpoints: memory by name, saved by all members together or by none ---- */

/* Options of region checkpoints and of images, equal at all members. Zero is the default of each
 * option. */
typedef struct outlast_region_options {
    size_t struct_size;   /* sizeof(outlast_region_options) */
    uint64_t bytes;       /* bytes of a member's regions, in a smaller job too, or of its images;
                             default 16 MiB */
    uint32_t set;         /* pieces of a member's regions, each at another member; default 8 */
    uint32_t lose;        /* how many of the pieces may be lost, 1 to 3; default 1 */
    uint32_t apart_depth; /* parts of the paths in which failure domains differ; default all */
    uint32_t strict;      /* not 0: refuse to open with fewer failure domains than pieces */
    uint32_t piece;       /* bytes of a piece, a multiple of 64; default 16384 */
    uint32_t room;        /* how much more memory each member lends than is needed while all members
                             live, in percent, for the pieces of the dead; default 50 */
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
/* Calls visit for each region of each owner of the version that was saved last, with the number of
 * the owner and the length in bytes, until visit returns another value than 0. Stores the number of
 * owners. visit and owners may be NULL. */
int outlast_region_owners(const outlast_regions *regions,
                          int (*visit)(void *context, uint32_t owner, const char *name,
                                       uint64_t len),
                          void *context, uint32_t *owners);
/* Closes the checkpoints, which are gone then. All living members call it. The handle is freed in
 * any case. */
int outlast_regions_close(outlast_regions *regions);

/* ---- Images: objects in pieces in the memories of members, replaced as a whole ----
 *
 * An image is for data that one member saves when it wants to, and that any member can load after
 * the death of its owner. It has `set` pieces at as many members, of which `lose` may die at once:
 * then it is loaded from the others, and the lost pieces are made again in the background. So it
 * takes less memory than replicas of the store. If more pieces are lost, the calls return
 * OUTLAST_DATA_LOST, never older bytes. */

typedef struct outlast_images outlast_images;

/* Opens the images of a name. All living members call it with equal options, which may be NULL, and
 * lend memory for it. The call waits for them. */
int outlast_images_open(const outlast_store *store, const char *name,
                        const outlast_region_options *options, outlast_images **images);
/* Saves an image under a name, with a note. OUTLAST_OK: all its pieces are at their members. Only
 * what has changed since this member's last save of the name is written. After an error, and if
 * this member dies, the image that was saved before stands. After OUTLAST_TIMEOUT it is unknown
 * which of both stands; load the image to find out. OUTLAST_CONFLICT: another member has saved the
 * image meanwhile. No thread changes the bytes during the call. */
int outlast_image_save(const outlast_images *images, const char *name, const void *note,
                       size_t note_len, const void *bytes, size_t len);
/* Copies an image and its note as they were saved last, by any member, dead or alive. Returns
 * OUTLAST_ABSENT if there is none. Both lengths are stored also with OUTLAST_TOO_SMALL, and may be
 * NULL. */
int outlast_image_load(const outlast_images *images, const char *name, void *buffer,
                       size_t capacity, size_t *len, void *note, size_t note_capacity,
                       size_t *note_len);
/* Copies len bytes of an image from the offset on. */
int outlast_image_read(const outlast_images *images, const char *name, uint64_t offset,
                       void *buffer, size_t len);
/* Deletes an image. Returns OUTLAST_ABSENT if there was none. */
int outlast_image_delete(const outlast_images *images, const char *name);
/* Stores how many pieces are missing: their members are dead, and no other member has made them
 * again yet. */
int outlast_images_missing(const outlast_images *images, size_t *pieces);
/* Lists the members that would hold the pieces of this member's next image. *is_apart, which may be
 * NULL, is 1 if they are apart at the level that was asked for; otherwise the loss of one failure
 * domain may take several pieces of an image along. */
int outlast_images_holders(const outlast_images *images, uint32_t *members, size_t capacity,
                           size_t *count, int *is_apart);
/* Closes the images, which are gone then. All living members call it. The handle is freed in any
 * case. */
int outlast_images_close(outlast_images *images);

/* ---- Seats: ranks with memory that outlive the processes which hold them ----
 *
 * A program in the style of MPI RMA keeps what matters in the memory of its seats, and reaches the
 * memory of other seats by put, get, operations on words, locks and barriers. At points all seats
 * are saved together, in pieces in the memories of members. When the holder of a seat dies, another
 * member takes the seat, and all seats go back to the last point that all of them have saved:
 *
 *     static int body(void *context, const outlast_seat *seat) {
 *         uint64_t step = 0;
 *         outlast_seat_note(seat, &step, sizeof step, NULL);
 *         while (step < steps) {
 *             ... TRY(outlast_seat_put(seat, neighbour, offset, data, len)); ...
 *             step++;
 *             TRY(outlast_seat_barrier_point(seat, &step, sizeof step, NULL));
 *         }
 *         return 0;
 *     }
 *
 * TRY returns the code if it is not 0: every call may return OUTLAST_ROLLED_BACK, which the
 * function hands on, and is then called again, with the note of that point.
 *
 * What holds: since all pieces were last whole, up to `lose` members of a set may die at once
 * without the loss of a saved point. A deterministic program ends with the bytes that it has
 * without deaths. An operation on words counts once. A wait ends by the return of the seat, by a
 * rollback, or at the limit patience_ms. Beyond that all members get OUTLAST_DATA_LOST. */

typedef struct outlast_seat outlast_seat;

/* Options of seats, equal at all members. Zero is the default of each option but bytes. */
typedef struct outlast_seat_options {
    size_t struct_size;   /* sizeof(outlast_seat_options) */
    uint64_t bytes;       /* bytes of the memory of a seat; has no default */
    uint64_t interval_ms; /* points save after so much time since the last save; default always */
    uint64_t mtbf_ms;     /* not 0, in place of interval_ms: the mean time between two deaths in the
                             whole job, by which Daly's formula chooses the interval */
    uint64_t patience_ms; /* for how long a call waits for a seat that computes; default an hour */
    uint64_t gather_ms;   /* for how long outlast_seat_point waits for other seats; default 1000 */
    uint32_t set;         /* pieces of a seat, each at another member; default 8 */
    uint32_t lose;        /* how many of the pieces may be lost, 1 to 3; default 1 */
    uint32_t apart_depth; /* parts of the paths in which failure domains differ; default all */
    uint32_t strict;      /* not 0: refuse to begin with fewer failure domains than pieces */
    uint32_t piece;       /* bytes of a piece, a multiple of 64; default 16384 */
    uint32_t room;        /* seats of the dead that a member can take beside its own; default 1 */
    uint32_t give_up;     /* deaths of a seat's holders without a new save until it has failed;
                             default 8 */
    uint64_t logs;        /* EXPERIMENTAL. Not 0: log accesses, with so many bytes for the logs of
                             each seat, 4096 at least. The next holder of a seat then repeats what
                             the dead holder did, and the other seats notice nothing, for programs
                             of puts, gets and barriers and a single lost seat at a time; all else
                             is a rollback. Puts to other seats are done at the next barrier, and
                             outlast_seat_point saves nothing. The function makes equal calls when
                             it gets equal answers, and two accesses to a byte of which one is a
                             write have a barrier between them. docs/logged-mode.md says more. */
} outlast_seat_options;

/* Calls body once for each seat that this member holds. All members call it, spares included, which
 * wait for a seat; there are as many seats as regular members. Returns when the functions of all
 * seats have returned 0. body may be called in several threads of this process at a time, one for
 * each seat, and not in the calling thread. It is called again after a rollback: what it changes
 * outside of the memory of seats is then changed again. The store is not in global mode.
 * OUTLAST_SEAT_FAILED, at all members: body returned another value than 0 without a rollback. */
int outlast_seats_run(const outlast_store *store, const outlast_seat_options *options,
                      int (*body)(void *context, const outlast_seat *seat), void *context);
/* Returns the number of the seat, from 0; UINT32_MAX for NULL. */
uint32_t outlast_seat_number(const outlast_seat *seat);
/* Returns the number of all seats; 0 for NULL. */
uint32_t outlast_seat_count(const outlast_seat *seat);
/* Returns how many bytes the memory of a seat has; 0 for NULL. */
uint64_t outlast_seat_bytes(const outlast_seat *seat);
/* Returns another value than 0 if no point was saved since the last rollback: the function may be
 * repeating what it did. For programs that print. */
int outlast_seat_is_replaying(const outlast_seat *seat);
/* Stores whether all pieces are at living members: as many may die at once then as `lose` says. */
int outlast_seat_is_whole(const outlast_seat *seat, int *is_whole);
/* Copies the note of the point from which the function was called. Returns OUTLAST_ABSENT at the
 * very beginning, when all bytes of all seats are 0. len may be NULL. */
int outlast_seat_note(const outlast_seat *seat, void *buffer, size_t capacity, size_t *len);

/* Bytes from outside of the seats, such as the time or a key of the store. look fills the buffer,
 * stores how many bytes it has seen in *len, and returns 0; otherwise nothing is remembered, and the
 * call returns what look has returned. For looking and not for taking: after a rollback look is
 * called again. With logs, a seat that repeats what a dead holder did gets the bytes that the dead
 * holder was given, and look is not called. len of the call may be NULL. */
int outlast_seat_remember(const outlast_seat *seat,
                          int (*look)(void *context, void *buffer, size_t capacity, size_t *len),
                          void *context, void *buffer, size_t capacity, size_t *len);

/* Writes bytes to the memory of the seat `target`. They may be complete only after a flush, a lock,
 * a barrier or a point; the data can be used again at once. */
int outlast_seat_put(const outlast_seat *seat, uint32_t target, uint64_t offset, const void *data,
                     size_t len);
/* Reads bytes of the memory of a seat. Earlier puts of this seat are seen. */
int outlast_seat_get(const outlast_seat *seat, uint32_t target, uint64_t offset, void *buffer,
                     size_t len);
/* Combines the words of 8 bytes from the offset on with the values, each atomically, with an
 * outlast_op. May be complete only after a flush. */
int outlast_seat_accumulate_u64(const outlast_seat *seat, uint32_t target, uint64_t offset, int op,
                                const uint64_t *values, size_t count);
int outlast_seat_accumulate_i64(const outlast_seat *seat, uint32_t target, uint64_t offset, int op,
                                const int64_t *values, size_t count);
/* Combines a word with the value, atomically, and stores the word before in *before, which may be
 * NULL. */
int outlast_seat_fetch_and_op_u64(const outlast_seat *seat, uint32_t target, uint64_t offset,
                                  int op, uint64_t value, uint64_t *before);
int outlast_seat_fetch_and_op_i64(const outlast_seat *seat, uint32_t target, uint64_t offset,
                                  int op, int64_t value, int64_t *before);
/* Replaces a word by `desired` if it is `expected`, and stores the word before in *before, which
 * may be NULL. */
int outlast_seat_compare_and_swap(const outlast_seat *seat, uint32_t target, uint64_t offset,
                                  uint64_t expected, uint64_t desired, uint64_t *before);
/* Completes all operations of this seat on the memory of `target`, or on all seats. */
int outlast_seat_flush(const outlast_seat *seat, uint32_t target);
int outlast_seat_flush_all(const outlast_seat *seat);
/* Locks the memory of a seat against other seats that lock it, as outlast_lock_kind says. */
int outlast_seat_lock(const outlast_seat *seat, uint32_t target, int kind);
int outlast_seat_unlock(const outlast_seat *seat, uint32_t target);
/* Returns when all seats have called it. All operations of all seats from before are complete. */
int outlast_seat_barrier(const outlast_seat *seat);
/* A barrier of all seats at which they are saved together, if a save is due. After a rollback to it
 * the function is called with the note, and all seats have the bytes of now. *is_saved, which may
 * be NULL, is 1 if all seats are saved, and 0 if no save was due or it was put off. The seat holds
 * no lock. */
int outlast_seat_barrier_point(const outlast_seat *seat, const void *note, size_t note_len,
                               int *is_saved);
/* A point of this seat alone, which seats need not call together: here the seat can be taken up
 * again. If a save is due, the call waits until all seats are at a point, or for gather_ms. */
int outlast_seat_point(const outlast_seat *seat, const void *note, size_t note_len, int *is_saved);

/* ---- Communicators: groups of members that exchange messages and recover together ----
 *
 * The rules are those of ULFM. A call fails with OUTLAST_PROC_FAILED where, and only where, a death
 * keeps it from being completed; other members may have completed theirs. To go on after a death,
 * all members agree whether all of them succeeded (outlast_comm_agree), and if not, revoke and
 * shrink. A rank is the number of a member in a communicator. */

/* How two numbers are combined. */
enum outlast_op {
    OUTLAST_OP_AND = 0,
    OUTLAST_OP_OR = 1,
    OUTLAST_OP_MIN = 2,
    OUTLAST_OP_MAX = 3,
    OUTLAST_OP_SUM = 4, /* integers wrap around */
    /* For words of windows alone. KEEP only reads. */
    OUTLAST_OP_XOR = 5,
    OUTLAST_OP_REPLACE = 6,
    OUTLAST_OP_KEEP = 7
};

/* Any source, or any tag. */
#define OUTLAST_ANY (-1)

/* Gives a handle of the communicator of all members. Members that have died belong to it as failed
 * members. The call is local. */
int outlast_comm_world(const outlast_job *job, outlast_comm **comm);
/* Makes a communicator of the same members. Collective; OUTLAST_PROC_FAILED if a member is dead. */
int outlast_comm_duplicate(const outlast_comm *comm, outlast_comm **made);
/* Makes a communicator of the members that give equal colours, in the order of their keys, then of
 * their ranks. The colour OUTLAST_ANY is none: the call returns OUTLAST_ABSENT and stores NULL.
 * Collective. */
int outlast_comm_split(const outlast_comm *comm, int64_t color, int64_t key, outlast_comm **made);
/* Makes a communicator of the living members. All of them call it; it works also on a revoked
 * communicator, and if members die meanwhile. */
int outlast_comm_shrink(const outlast_comm *comm, outlast_comm **made);
/* Ends this member's use of the communicator and frees the handle in any case. Local. The
 * communicator of all members itself stays. */
int outlast_comm_free(outlast_comm *comm);
/* Returns the rank of this member; UINT32_MAX for NULL. */
uint32_t outlast_comm_rank(const outlast_comm *comm);
/* Returns the number of ranks, the dead included; 0 for NULL. */
uint32_t outlast_comm_size(const outlast_comm *comm);
/* Stores the member that has a rank. */
int outlast_comm_member(const outlast_comm *comm, uint32_t rank, uint32_t *member);
/* Stores the rank of a member. Returns OUTLAST_ABSENT if the member does not belong to the
 * communicator. */
int outlast_comm_rank_of(const outlast_comm *comm, uint32_t member, uint32_t *rank);

/* Sends a message. The bytes may be used again when the call returns. A rank that has sent several
 * megabytes which the receiver has not received waits before it sends more. A tag is below 2^31. */
int outlast_comm_send(const outlast_comm *comm, uint32_t to, uint32_t tag, const void *message,
                      size_t len);
/* Receives the oldest message from `from` with `tag`, either of which may be OUTLAST_ANY. A call
 * that fails loses no message: after OUTLAST_TOO_SMALL, which stores the length, it can be received
 * again. A receive from any source returns OUTLAST_PROC_FAILED_PENDING while a death is not
 * acknowledged. len, sender and sent_tag may be NULL. */
int outlast_comm_receive(const outlast_comm *comm, int64_t from, int64_t tag, void *buffer,
                         size_t capacity, size_t *len, uint32_t *sender, uint32_t *sent_tag);
/* Stores length, sender and tag of the message that a receive would take now, or returns
 * OUTLAST_ABSENT. */
int outlast_comm_probe(const outlast_comm *comm, int64_t from, int64_t tag, size_t *len,
                       uint32_t *sender, uint32_t *sent_tag);
/* As outlast_comm_send, as a request, which is complete at once: for programs that complete sends
 * and receives together. */
int outlast_comm_start_send(const outlast_comm *comm, uint32_t to, uint32_t tag,
                            const void *message, size_t len, outlast_request **request);
/* Starts a receive, to be completed with outlast_request_test or outlast_request_wait. */
int outlast_comm_start_receive(const outlast_comm *comm, int64_t from, int64_t tag,
                               outlast_request **request);
/* Copies the message out if it has come, otherwise returns OUTLAST_ABSENT. A message that does not
 * fit stays in the request. OUTLAST_OVER: the message was copied out already. A send gives an empty
 * message. */
int outlast_request_test(outlast_request *request, void *buffer, size_t capacity, size_t *len,
                         uint32_t *sender, uint32_t *sent_tag);
/* Waits for the message and copies it out. After OUTLAST_TIMEOUT, OUTLAST_INTERRUPTED and
 * OUTLAST_PROC_FAILED_PENDING the receive is still active. */
int outlast_request_wait(outlast_request *request, void *buffer, size_t capacity, size_t *len,
                         uint32_t *sender, uint32_t *sent_tag);
/* As outlast_request_wait, with a time limit below that of the job: OUTLAST_TIMEOUT then. */
int outlast_request_wait_within(outlast_request *request, uint64_t milliseconds, void *buffer,
                                size_t capacity, size_t *len, uint32_t *sender,
                                uint32_t *sent_tag);
/* Waits until any of the requests is complete or held up, and stores its number in the list, from
 * 0. Returns what outlast_request_wait would return for it, which then copies the message out.
 * Requests that are over are left out; OUTLAST_OVER if all are. */
int outlast_request_wait_any(outlast_request *const *requests, size_t count, size_t *index);
/* As outlast_request_wait_any, without waiting: OUTLAST_ABSENT if no request is complete. */
int outlast_request_test_any(outlast_request *const *requests, size_t count, size_t *index);
/* Waits until all requests are complete or any has failed. Stores what outlast_request_wait would
 * return for each: OUTLAST_PROC_FAILED_PENDING for requests that another request's failure left
 * incomplete. Returns the first error, or OUTLAST_OK. statuses, which may be NULL, has room for
 * `count` codes. outlast_request_test copies each message out. */
int outlast_request_wait_all(outlast_request *const *requests, size_t count, int *statuses);
/* Cancels the receive, if it is not complete, and frees the request. No message is lost, except a
 * message that outlast_request_test or outlast_request_wait found too long and that was not taken
 * since. */
void outlast_request_free(outlast_request *request);

/* Collective calls: all members of the communicator make them in the same order. They fail once a
 * member is known to be dead; buffers are unspecified then. */

/* Returns when all members have called it. outlast_barrier goes on despite deaths. */
int outlast_comm_barrier(const outlast_comm *comm);
/* Gives all members the bytes of the root. The length is equal at all members. */
int outlast_comm_broadcast(const outlast_comm *comm, uint32_t root, void *message, size_t len);
/* Combines the values of all members, element by element, with an outlast_op up to
 * OUTLAST_OP_SUM. All members get equal bits. */
int outlast_comm_allreduce_u64(const outlast_comm *comm, int op, uint64_t *values, size_t count);
int outlast_comm_allreduce_i64(const outlast_comm *comm, int op, int64_t *values, size_t count);
int outlast_comm_allreduce_f64(const outlast_comm *comm, int op, double *values, size_t count);
/* Gathers the bytes of all members, by rank, one after the other. lens, which may be NULL, has room
 * for the length of each rank's bytes, also stored with OUTLAST_TOO_SMALL. */
int outlast_comm_allgather(const outlast_comm *comm, const void *part, size_t len, void *buffer,
                           size_t capacity, size_t *lens);

/* Makes the communicator unusable for all its members, also for members that wait in it now: calls
 * return OUTLAST_REVOKED, except agree, shrink and local calls. Returns at once. */
int outlast_comm_revoke(const outlast_comm *comm);
/* Returns another value than 0 if a member has revoked the communicator. A single load, right also
 * at a member that has made no call since. */
int outlast_comm_is_revoked(const outlast_comm *comm);
/* Replaces *flags by the bitwise and of the flags of all members that contributed, among them all
 * living members: equal at all members, whichever members die. It works on a revoked communicator.
 * OUTLAST_PROC_FAILED, at all members or at none, if there are failures that a member had not
 * acknowledged; *flags is stored then, too. After OUTLAST_TIMEOUT call it again for the outcome. */
int outlast_comm_agree(const outlast_comm *comm, uint64_t *flags);
/* Acknowledges all failures that this member knows. */
int outlast_comm_failure_ack(const outlast_comm *comm);
/* Lists the ranks whose failure was acknowledged. */
int outlast_comm_get_acked(const outlast_comm *comm, uint32_t *ranks, size_t capacity,
                           size_t *count);
/* Lists the ranks that are dead, as far as this member knows. */
int outlast_comm_get_failed(const outlast_comm *comm, uint32_t *ranks, size_t capacity,
                            size_t *count);
/* Ends the wait of another member for a message, or for a lock of a window of this communicator,
 * with OUTLAST_INTERRUPTED: its current wait, or else its next. */
int outlast_comm_interrupt(const outlast_comm *comm, uint32_t rank);
/* Tells these ranks of all failures that this member knows. Dead ranks are skipped. */
int outlast_comm_notify_failures(const outlast_comm *comm, const uint32_t *ranks, size_t count);

/* ---- Windows: memory that the members of a communicator show to each other ---- */

/* How a lock is held. */
enum outlast_lock_kind {
    OUTLAST_LOCK_SHARED = 1,
    OUTLAST_LOCK_EXCLUSIVE = 2
};

/* Makes a window in which this member shows len bytes, all zero; len may differ between members.
 * Accesses need a lock on their target. Collective: all members get the window, or none does. */
int outlast_window_allocate(const outlast_comm *comm, uint64_t len, outlast_window **window);
/* Makes a window whose accesses need no lock, until outlast_window_close. Locks exclude only
 * members that take them, too. Collective. */
int outlast_window_open(const outlast_comm *comm, uint64_t len, outlast_window **window);
/* Ends the window and releases its memory. All living members call it; it works also if the window
 * is revoked. OUTLAST_STILL_LOCKED, at all members: a living member holds a lock, and the window
 * goes on. The handle is freed with OUTLAST_OK and OUTLAST_CLOSED; otherwise it stays valid. */
int outlast_window_free(outlast_window *window);
/* Completes the operations in flight, releases this member's locks, and frees the window. All
 * living members call it. The handle is freed as by outlast_window_free. */
int outlast_window_close(outlast_window *window);
/* Frees the handle alone: for a program that ends without freeing its windows. */
void outlast_window_discard(outlast_window *window);
/* Stores how many bytes the target shows. */
int outlast_window_len(const outlast_window *window, uint32_t target, uint64_t *len);

/* Writes bytes to the memory of the target. They may be complete only after a flush or unlock,
 * which reports errors; the data can be used again at once. */
int outlast_window_put(const outlast_window *window, uint32_t target, uint64_t offset,
                       const void *data, size_t len);
/* Writes bytes and returns when every get that any member begins sees them. */
int outlast_window_put_blocking(const outlast_window *window, uint32_t target, uint64_t offset,
                                const void *data, size_t len);
/* Reads bytes of the memory of the target. */
int outlast_window_get(const outlast_window *window, uint32_t target, uint64_t offset,
                       void *buffer, size_t len);
/* Combines the words of 8 bytes from the offset on with the values, each atomically, with an
 * outlast_op. The offset is a multiple of 8. May be complete only after a flush or unlock. */
int outlast_window_accumulate_u64(const outlast_window *window, uint32_t target, uint64_t offset,
                                  int op, const uint64_t *values, size_t count);
int outlast_window_accumulate_i64(const outlast_window *window, uint32_t target, uint64_t offset,
                                  int op, const int64_t *values, size_t count);
/* Combines a word with the value, atomically, and stores the word before in *before, which may be
 * NULL. */
int outlast_window_fetch_and_op_u64(const outlast_window *window, uint32_t target, uint64_t offset,
                                    int op, uint64_t value, uint64_t *before);
int outlast_window_fetch_and_op_i64(const outlast_window *window, uint32_t target, uint64_t offset,
                                    int op, int64_t value, int64_t *before);
/* Replaces a word by `desired` if it is `expected`, and stores the word before in *before, which
 * may be NULL. */
int outlast_window_compare_and_swap(const outlast_window *window, uint32_t target, uint64_t offset,
                                    uint64_t expected, uint64_t desired, uint64_t *before);
/* ---- Operations of windows as requests: several can be in flight, each with its own result ----
 *
 * The data can be used again at once. outlast_window_flush completes requests, too; their results
 * are taken with outlast_window_request_test or outlast_window_request_wait. */

/* As outlast_window_put. */
int outlast_window_start_put(const outlast_window *window, uint32_t target, uint64_t offset,
                             const void *data, size_t len, outlast_window_request **request);
/* As outlast_window_get. The result has the bytes. */
int outlast_window_start_get(const outlast_window *window, uint32_t target, uint64_t offset,
                             size_t len, outlast_window_request **request);
/* As outlast_window_accumulate_u64 and outlast_window_accumulate_i64. */
int outlast_window_start_accumulate_u64(const outlast_window *window, uint32_t target,
                                        uint64_t offset, int op, const uint64_t *values,
                                        size_t count, outlast_window_request **request);
int outlast_window_start_accumulate_i64(const outlast_window *window, uint32_t target,
                                        uint64_t offset, int op, const int64_t *values,
                                        size_t count, outlast_window_request **request);
/* As outlast_window_fetch_and_op_u64 and the like. The result is the word before, of 8 bytes. */
int outlast_window_start_fetch_and_op_u64(const outlast_window *window, uint32_t target,
                                          uint64_t offset, int op, uint64_t value,
                                          outlast_window_request **request);
int outlast_window_start_fetch_and_op_i64(const outlast_window *window, uint32_t target,
                                          uint64_t offset, int op, int64_t value,
                                          outlast_window_request **request);
int outlast_window_start_compare_and_swap(const outlast_window *window, uint32_t target,
                                          uint64_t offset, uint64_t expected, uint64_t desired,
                                          outlast_window_request **request);
/* Copies the result out if the operation is complete, otherwise returns OUTLAST_ABSENT. A result
 * that does not fit stays in the request. OUTLAST_OVER: the result was given already. */
int outlast_window_request_test(outlast_window_request *request, void *buffer, size_t capacity,
                                size_t *len);
/* Waits until the operation is complete, its target is dead, or the time limit is over, and copies
 * the result out. */
int outlast_window_request_wait(outlast_window_request *request, void *buffer, size_t capacity,
                                size_t *len);
/* Frees the request. The operation goes on, and outlast_window_flush completes it. */
void outlast_window_request_free(outlast_window_request *request);

/* Completes all operations of this member on the target, and returns the first error of a put or
 * accumulate since the last flush. OUTLAST_PROC_FAILED if the target is dead. */
int outlast_window_flush(const outlast_window *window, uint32_t target);
/* As outlast_window_flush, for all targets without those that the window was shrunk by. */
int outlast_window_flush_all(const outlast_window *window);

/* Locks the memory of the target, as outlast_lock_kind says. Waits up to the time limit of the job,
 * then returns OUTLAST_LOCKED; outlast_window_holders has the holder. OUTLAST_ABANDONED: the lock
 * is held now, and its last holder died. */
int outlast_window_lock(const outlast_window *window, uint32_t target, int kind);
/* As outlast_window_lock, with a time limit; 0 only tries. */
int outlast_window_lock_within(const outlast_window *window, uint32_t target, int kind,
                               uint64_t milliseconds);
/* Shares the locks of all members: all or none. */
int outlast_window_lock_all(const outlast_window *window);
/* Completes all operations on the target and releases its lock, which is not held afterwards,
 * whatever the result. */
int outlast_window_unlock(const outlast_window *window, uint32_t target);
/* Completes all operations and releases the locks of outlast_window_lock_all. */
int outlast_window_unlock_all(const outlast_window *window);
/* Takes the lock away from all its holders, and lists their ranks. The next call of a former holder
 * that concerns this target returns OUTLAST_LOCK_LOST, however late it comes. A put that a former
 * holder had begun may still land. */
int outlast_window_force_unlock(const outlast_window *window, uint32_t target, uint32_t *ranks,
                                size_t capacity, size_t *count);
/* Lists the ranks that hold the lock, or are about to, the dead included. */
int outlast_window_holders(const outlast_window *window, uint32_t target, uint32_t *ranks,
                           size_t capacity, size_t *count);
/* Returns OUTLAST_OK if this member still holds the lock that it took, OUTLAST_LOCK_LOST or
 * OUTLAST_NOT_LOCKED otherwise. */
int outlast_window_check_lock(const outlast_window *window, uint32_t target);

/* Makes the window unusable for all its members until all survivors call outlast_window_shrink. */
int outlast_window_revoke(const outlast_window *window);
/* Returns another value than 0 if the window is revoked. A single load. */
int outlast_window_is_revoked(const outlast_window *window);
/* Lists the ranks that are dead, as far as this member knows. */
int outlast_window_get_failed(const outlast_window *window, uint32_t *ranks, size_t capacity,
                              size_t *count);
/* Leaves the dead out of calls over all members, and lists them; ranks, memory and locks stay as
 * they are. Local, except on a revoked window, where all survivors call it. */
int outlast_window_shrink(const outlast_window *window, uint32_t *ranks, size_t capacity,
                          size_t *count);
/* Adds len bytes, all zero, to the end of this member's memory, and stores its new length in *now,
 * which may be NULL. Local. */
int outlast_window_grow(const outlast_window *window, uint64_t len, uint64_t *now);
/* Shows len further bytes as a range of their own, and stores the offset by which all members reach
 * it. Local. */
int outlast_window_attach(const outlast_window *window, uint64_t len, uint64_t *offset);
/* Takes the range away that was attached at the offset. Accesses that begin later are
 * OUTLAST_INVALID; writes of an access in progress are lost. Local. */
int outlast_window_detach(const outlast_window *window, uint64_t offset);
/* Stores how many bytes of detached ranges are not released yet, because a member might still be in
 * the middle of an access to them. Checks the members again. */
int outlast_window_bytes_aside(const outlast_window *window, uint64_t *aside);

#ifdef __cplusplus
}
#endif

#endif
