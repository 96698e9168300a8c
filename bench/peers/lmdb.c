/* LMDB as a contender of `outlast bench`: one copy, in shared memory, in the folder of its first
 * argument. Each line of standard input, such as `put 64 1024 500000000`, asks for a measurement:
 * the call, the size of the values, how many keys, and for how many nanoseconds. The answer is a
 * line with the time of each call in nanoseconds. Each put is a transaction, as a put of the store
 * is; nothing is synced, as the memory of a process is not. */

#include <lmdb.h>
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

int main(int argc, char **argv) {
    MDB_txn *txn, *reader;
    char call[8];
    size_t size, keys;
    uint64_t length;
    if (argc != 2) return 2;
    check(mdb_env_create(&env), "making the environment");
    check(mdb_env_set_mapsize(env, (size_t)1 << 30), "setting the size");
    check(mdb_env_open(env, argv[1], MDB_NOSYNC | MDB_WRITEMAP, 0600), "opening");
    check(mdb_txn_begin(env, NULL, 0, &txn), "beginning");
    check(mdb_dbi_open(txn, NULL, 0, &dbi), "opening the table");
    check(mdb_txn_commit(txn), "committing");
    check(mdb_txn_begin(env, NULL, MDB_RDONLY, &reader), "beginning to read");
    mdb_txn_reset(reader);
    printf("ready %d.%d.%d\n", MDB_VERSION_MAJOR, MDB_VERSION_MINOR, MDB_VERSION_PATCH);
    fflush(stdout);
    while (scanf("%7s %zu %zu %lu", call, &size, &keys, &length) == 4) {
        int is_put = strcmp(call, "put") == 0;
        char *bytes = calloc(1, size + 1), name[64];
        uint64_t random = 1, end;
        size_t next = 0;
        if (bytes == NULL || keys == 0) return 1;
        for (size_t key = 0; key < keys; key++) {
            snprintf(name, sizeof name, "bench/%zu/%zu", size, key);
            put(name, bytes, size);
        }
        end = now() + length;
        for (uint64_t begin = now(), after = begin; after < end;) {
            if (is_put) {
                next = (next + 1) % keys;
            } else {
                random = random * 6364136223846793005u + 1442695040888963407u;
                next = (size_t)(((random >> 33) * keys) >> 31);
            }
            snprintf(name, sizeof name, "bench/%zu/%zu", size, next);
            begin = now();
            if (is_put) {
                put(name, bytes, size);
            } else {
                MDB_val key = {strlen(name), name}, value;
                check(mdb_txn_renew(reader), "beginning to read");
                check(mdb_get(reader, dbi, &key, &value), "reading");
                memcpy(bytes, value.mv_data, value.mv_size);
                mdb_txn_reset(reader);
            }
            after = now();
            printf("%lu ", (unsigned long)(after - begin));
        }
        printf("\n");
        fflush(stdout);
        free(bytes);
    }
    return 0;
}
