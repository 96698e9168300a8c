/* LMDB as a contender of `outlast bench`: one copy, in shared memory, in the folder of its first
 * argument. Each line of standard input is a request:
 *
 *   fill SIZE KEYS      puts all keys; the answer is the line `filled`
 *   load CALL SIZE KEYS LENGTH CALLERS FIRST ALL PERIOD
 *                       CALLERS threads make calls for LENGTH nanoseconds; they are the callers
 *                       from FIRST on, of ALL. With a PERIOD above 0 each begins a call in every
 *                       PERIOD nanoseconds, and times count from the moment at which it was due.
 *                       The answer is a line with the time of each call in nanoseconds.
 *
 * Each put is a transaction, as a put of the store is; nothing is synced, as the memory of a
 * process is not. */

#include <lmdb.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void check(int code, const char *what) {
    if (code != 0) {
        fprintf(stderr, "%s: %s\n", what, mdb_strerror(code));
        exit(1);
    }
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static MDB_env *env;
static MDB_dbi dbi;

static void put(char *name, void *bytes, size_t size) {
    MDB_txn *txn;
    MDB_val key = {strlen(name), name}, value = {size, bytes};
    check(mdb_txn_begin(env, NULL, 0, &txn), "beginning");
    check(mdb_put(txn, dbi, &key, &value, 0), "putting");
    check(mdb_txn_commit(txn), "committing");
}

struct load {
    char call[8];
    size_t size, keys;
    uint64_t begin, end, callers, first, all, period;
};

struct caller {
    pthread_t thread;
    const struct load *load;
    uint64_t number, *samples;
    size_t count, room;
};

/* Waits until a moment: in sleep at first, then awake. */
static void wait_until(uint64_t moment) {
    for (uint64_t at = now(); at < moment; at = now()) {
        if (moment - at > 300000) {
            uint64_t left = moment - at - 300000;
            struct timespec time = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
            nanosleep(&time, NULL);
        } else {
            sched_yield();
        }
    }
}

static void *make_calls(void *argument) {
    struct caller *caller = argument;
    const struct load *load = caller->load;
    char *bytes = calloc(1, load->size + 1), name[64];
    uint64_t random = 1 + caller->number, due = load->begin;
    size_t next = caller->number * load->keys / load->all;
    int is_put = strcmp(load->call, "put") == 0, is_mixed = strcmp(load->call, "mixed") == 0;
    MDB_txn *reader;
    if (bytes == NULL) exit(1);
    check(mdb_txn_begin(env, NULL, MDB_RDONLY, &reader), "beginning to read");
    mdb_txn_reset(reader);
    wait_until(load->begin);
    for (;;) {
        size_t index;
        int puts = is_put;
        uint64_t begin = now();
        if (load->period > 0) {
            if (due >= load->end) break;
            begin = due;
            due += load->period;
            wait_until(begin);
        } else if (begin >= load->end) {
            break;
        }
        if (is_put) {
            index = next;
            next = (next + 1) % load->keys;
        } else {
            random = random * 6364136223846793005u + 1442695040888963407u;
            index = (size_t)(((random >> 33) * load->keys) >> 31);
            puts = is_mixed && (random >> 32 & 1);
        }
        snprintf(name, sizeof name, "bench/%zu/%zu", load->size, index);
        if (puts) {
            put(name, bytes, load->size);
        } else {
            MDB_val key = {strlen(name), name}, value;
            check(mdb_txn_renew(reader), "beginning to read");
            check(mdb_get(reader, dbi, &key, &value), "reading");
            memcpy(bytes, value.mv_data, value.mv_size);
            mdb_txn_reset(reader);
        }
        if (caller->count == caller->room) {
            caller->room = caller->room * 2 + 1024;
            caller->samples = realloc(caller->samples, caller->room * sizeof *caller->samples);
            if (caller->samples == NULL) exit(1);
        }
        caller->samples[caller->count++] = now() - begin;
    }
    mdb_txn_abort(reader);
    free(bytes);
    return NULL;
}

static int fill(void) {
    size_t size, keys;
    char *bytes, name[64];
    if (scanf("%zu %zu", &size, &keys) != 2) return 1;
    bytes = calloc(1, size + 1);
    if (bytes == NULL) return 1;
    for (size_t key = 0; key < keys; key++) {
        snprintf(name, sizeof name, "bench/%zu/%zu", size, key);
        put(name, bytes, size);
    }
    free(bytes);
    printf("filled\n");
    return 0;
}

static int measure(void) {
    struct load load;
    struct caller *callers;
    uint64_t length;
    if (scanf("%7s %zu %zu %lu %lu %lu %lu %lu", load.call, &load.size, &load.keys, &length,
              &load.callers, &load.first, &load.all, &load.period) != 8)
        return 1;
    callers = calloc(load.callers, sizeof *callers);
    if (callers == NULL || load.keys == 0 || load.all == 0) return 1;
    load.begin = now() + 5000000;
    load.end = load.begin + length;
    for (uint64_t number = 0; number < load.callers; number++) {
        callers[number].load = &load;
        callers[number].number = load.first + number;
        check(pthread_create(&callers[number].thread, NULL, make_calls, &callers[number]),
              "starting a caller");
    }
    for (uint64_t number = 0; number < load.callers; number++) {
        pthread_join(callers[number].thread, NULL);
        for (size_t index = 0; index < callers[number].count; index++)
            printf("%lu ", (unsigned long)callers[number].samples[index]);
        free(callers[number].samples);
    }
    printf("\n");
    free(callers);
    return 0;
}

int main(int argc, char **argv) {
    MDB_txn *txn;
    char request[8];
    if (argc != 2) return 2;
    check(mdb_env_create(&env), "making the environment");
    check(mdb_env_set_mapsize(env, (size_t)1 << 30), "setting the size");
    check(mdb_env_open(env, argv[1], MDB_NOSYNC | MDB_WRITEMAP, 0600), "opening");
    check(mdb_txn_begin(env, NULL, 0, &txn), "beginning");
    check(mdb_dbi_open(txn, NULL, 0, &dbi), "opening the table");
    check(mdb_txn_commit(txn), "committing");
    printf("ready %d.%d.%d\n", MDB_VERSION_MAJOR, MDB_VERSION_MINOR, MDB_VERSION_PATCH);
    fflush(stdout);
    while (scanf("%7s", request) == 1) {
        if (strcmp(request, "fill") == 0 ? fill() : measure()) return 1;
        fflush(stdout);
    }
    return 0;
}
