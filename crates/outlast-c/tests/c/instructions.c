/*
 * A fixed number of puts of 64 bytes from C, for counting instructions under callgrind, in the
 * functions counted_*. `cargo xtask instructions c` compares them with those of the example
 * `instructions` in Rust, which makes the same calls and starts this program as four members.
 */
#include "check.h"

enum { CALLS = 10000, KEYS = 1024 };

static char value[64], keys[KEYS][16];
static size_t key_lens[KEYS];

__attribute__((noinline)) static void counted_put(const outlast_handle *handle) {
    for (int call = 0; call < CALLS; call++) {
        if (outlast_handle_put(handle, value, sizeof value, NULL) != OUTLAST_OK) abort();
    }
}

__attribute__((noinline)) static void counted_put_by_key(void) {
    for (int call = 0; call < CALLS; call++) {
        const char *key = keys[call % KEYS];
        size_t len = key_lens[call % KEYS];
        if (outlast_put(store, key, len, value, sizeof value, NULL) != OUTLAST_OK) abort();
    }
}

int main(void) {
    outlast_job *job;
    EXPECT(OUTLAST_OK, outlast_join(&job));
    EXPECT(OUTLAST_OK, outlast_open(job, NULL, &store));
    if (outlast_me(job) == 0) {
        outlast_handle *handle;
        EXPECT(OUTLAST_OK, outlast_handle_open(store, "counted", 7, &handle));
        /* Calls before the counted calls take the slow path, and fill caches. */
        EXPECT(OUTLAST_OK, outlast_handle_put(handle, value, sizeof value, NULL));
        counted_put(handle);
        outlast_handle_free(handle);
        for (int number = 0; number < 2 * KEYS; number++) {
            char *key = keys[number % KEYS];
            int len = snprintf(key, sizeof keys[0], "key/%d", number % KEYS);
            key_lens[number % KEYS] = len;
            EXPECT(OUTLAST_OK, outlast_put(store, key, len, value, sizeof value, NULL));
        }
        counted_put_by_key();
    }
    EXPECT(OUTLAST_OK, outlast_close(store));
    EXPECT(OUTLAST_OK, outlast_leave(job));
    return 0;
}
