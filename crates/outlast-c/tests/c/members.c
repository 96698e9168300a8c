/*
 * A job of C programs: each makes every call. Then the last member reports that it is ready to be
 * killed, and the survivors take over its keys.
 */
#include "check.h"

static int count_keys(void *context, const void *key, size_t len) {
    CHECK(key != NULL && len > 0);
    ++*(int *)context;
    return 0;
}

static int adopt_key(void *context, const void *key, size_t len) {
    EXPECT(OUTLAST_OK, outlast_adopt(store, key, len));
    ++*(int *)context;
    return 0;
}

static int transfer(void *context, outlast_tx *tx) {
    int status = outlast_tx_add(tx, "from", 4, -*(int64_t *)context, NULL);
    return status != 0 ? status : outlast_tx_add(tx, "to", 2, *(int64_t *)context, NULL);
}

static int refuse(void *context, outlast_tx *tx) {
    (void)context;
    EXPECT(OUTLAST_OK, outlast_tx_put(tx, "refused", 7, "x", 1));
    return 77;
}

static void every_call_once(uint32_t me) {
    char key[32], buffer[64];
    size_t len = 0;
    int64_t number = 0;
    outlast_version first, second, found;
    int key_len = snprintf(key, sizeof key, "mine/%u", me);
    EXPECT(OUTLAST_ABSENT, outlast_get(store, key, key_len, buffer, sizeof buffer, &len, NULL));
    EXPECT(OUTLAST_OK, outlast_put(store, key, key_len, "forty-two", 9, &first));
    EXPECT(OUTLAST_OK, outlast_get(store, key, key_len, buffer, sizeof buffer, &len, &found));
    CHECK(len == 9 && memcmp(buffer, "forty-two", 9) == 0);
    CHECK(found.counter == first.counter && found.writer == me);
    EXPECT(OUTLAST_TOO_SMALL, outlast_get(store, key, key_len, buffer, 3, &len, NULL));
    CHECK(len == 9);
    EXPECT(OUTLAST_CONFLICT, outlast_put_if(store, key, key_len, "x", 1, NULL, NULL));
    EXPECT(OUTLAST_OK, outlast_put_if(store, key, key_len, "x", 1, &first, &second));
    CHECK(second.counter > first.counter);
    EXPECT(OUTLAST_OK, outlast_wait(store, key, key_len, &first, 1000, -1, buffer, sizeof buffer,
                                    &len, NULL));
    EXPECT(OUTLAST_ABSENT, outlast_wait(store, key, key_len, &second, 1, -1, buffer, sizeof buffer,
                                        &len, NULL));
    EXPECT(OUTLAST_OK, outlast_exists(store, key, key_len));
    EXPECT(OUTLAST_WRONG_TYPE, outlast_add(store, key, key_len, 1, NULL));
    EXPECT(OUTLAST_OK, outlast_put_nb(store, "later", 5, NULL, 0));
    EXPECT(OUTLAST_OK, outlast_flush(store));
    EXPECT(OUTLAST_OK, outlast_get(store, "later", 5, NULL, 0, &len, NULL));
    CHECK(len == 0);

    outlast_handle *handle;
    key_len = snprintf(key, sizeof key, "handle/%u", me);
    EXPECT(OUTLAST_OK, outlast_handle_open(store, key, key_len, &handle));
    for (int round = 0; round < 1000; round++) {
        EXPECT(OUTLAST_OK, outlast_handle_put(handle, &round, sizeof round, NULL));
    }
    int round = 0;
    EXPECT(OUTLAST_OK, outlast_handle_get(handle, &round, sizeof round, &len, NULL));
    CHECK(round == 999 && len == sizeof round);
    outlast_handle_free(handle);
    EXPECT(OUTLAST_OK, outlast_delete(store, key, key_len));
    EXPECT(OUTLAST_ABSENT, outlast_delete(store, key, key_len));

    outlast_lock_guard *guard, *other;
    int64_t abandoned = 0;
    key_len = snprintf(key, sizeof key, "lock/%u", me);
    EXPECT(OUTLAST_OK, outlast_lock(store, key, key_len, 1000, &guard, &abandoned));
    CHECK(abandoned == -1);
    EXPECT(OUTLAST_LOCKED, outlast_lock(store, key, key_len, 1, &other, NULL));
    EXPECT(OUTLAST_OK, outlast_unlock(guard));

    outlast_tx *tx;
    int status;
    EXPECT(OUTLAST_OK, outlast_tx_begin(store, &tx));
    do {
        EXPECT(OUTLAST_OK, outlast_tx_add(tx, "from", 4, -10, &number));
        EXPECT(OUTLAST_OK, outlast_tx_add(tx, "to", 2, 10, NULL));
        status = outlast_tx_commit(tx);
        if (status == OUTLAST_ABORTED) {
            EXPECT(OUTLAST_OK, outlast_tx_retry(tx));
        }
    } while (status == OUTLAST_ABORTED);
    EXPECT(OUTLAST_OK, status);
    EXPECT(OUTLAST_OVER, outlast_tx_commit(tx));
    outlast_tx_free(tx);
    number = 5;
    EXPECT(OUTLAST_OK, outlast_transaction(store, transfer, &number));
    EXPECT(77, outlast_transaction(store, refuse, NULL));
    EXPECT(OUTLAST_ABSENT, outlast_exists(store, "refused", 7));
    key_len = snprintf(key, sizeof key, "required/%u", me);
    EXPECT(OUTLAST_OK, outlast_put(store, key, key_len, "read", 4, &first));
    EXPECT(OUTLAST_OK, outlast_tx_begin(store, &tx));
    EXPECT(OUTLAST_OK, outlast_tx_require(tx, key, key_len, &first));
    EXPECT(OUTLAST_OK, outlast_tx_require(tx, "refused", 7, NULL));
    EXPECT(OUTLAST_OK, outlast_tx_put(tx, key, key_len, "kept", 4));
    EXPECT(OUTLAST_OK, outlast_tx_commit(tx));
    outlast_tx_free(tx);
    EXPECT(OUTLAST_OK, outlast_tx_begin(store, &tx));
    EXPECT(OUTLAST_CONFLICT, outlast_tx_require(tx, key, key_len, &first));
    EXPECT(OUTLAST_CONFLICT, outlast_tx_require(tx, key, key_len, NULL));
    outlast_tx_free(tx);

    /* Invalid arguments: there is a message, and nothing is changed. */
    EXPECT(OUTLAST_INVALID, outlast_put(store, NULL, 4, "x", 1, NULL));
    CHECK(strstr(outlast_error(), "NULL") != NULL);
    EXPECT(OUTLAST_INVALID, outlast_put(NULL, "key", 3, "x", 1, NULL));
    EXPECT(OUTLAST_INVALID, outlast_put(store, "", 0, "x", 1, NULL));
    EXPECT(OUTLAST_INVALID, outlast_scan(store, "", 0, NULL, NULL));
    EXPECT(OUTLAST_INVALID, outlast_tx_begin(store, NULL));
    EXPECT(OUTLAST_INVALID, outlast_wait(store, "key", 3, NULL, 1, 99, NULL, 0, NULL, NULL));
}

int main(void) {
    outlast_job *job;
    outlast_options options = {sizeof options, .replicas = 3};
    EXPECT(OUTLAST_OK, outlast_join(&job));
    uint32_t me = outlast_me(job), members = outlast_members(job);
    CHECK(members == 4 && me < members);
    EXPECT(OUTLAST_OK, outlast_open(job, &options, &store));
    uint64_t seen = outlast_epoch(store);
    every_call_once(me);
    EXPECT(OUTLAST_OK, outlast_barrier(job));
    int64_t from = 0, to = 0;
    EXPECT(OUTLAST_OK, outlast_add(store, "from", 4, 0, &from));
    EXPECT(OUTLAST_OK, outlast_add(store, "to", 2, 0, &to));
    CHECK(from == -15 * (int64_t)members && to == -from);
    int count = 0;
    EXPECT(OUTLAST_OK, outlast_scan(store, "mine/", 5, count_keys, &count));
    CHECK(count == (int)members);
    EXPECT(OUTLAST_OK, outlast_barrier(job));
    uint32_t last = members - 1;
    if (me == last) {
        printf("ready\n");
        fflush(stdout);
        /* This member is killed while it waits. */
        outlast_wait(store, "never", 5, NULL, 30000, -1, NULL, 0, NULL, NULL);
        return 1;
    }
    char buffer[8];
    size_t len;
    EXPECT(OUTLAST_DIED, outlast_wait(store, "never", 5, NULL, 30000, last, buffer, sizeof buffer,
                                      &len, NULL));
    CHECK(outlast_living(job) == members - 1 && outlast_epoch(store) != seen);
    uint32_t dead, heir;
    EXPECT(OUTLAST_OK, outlast_next_death(store, &seen, &dead, &heir));
    CHECK(dead == last && heir < last);
    EXPECT(OUTLAST_ABSENT, outlast_next_death(store, &seen, &dead, &heir));
    if (heir == me) {
        count = 0;
        EXPECT(OUTLAST_OK, outlast_keys_of(store, last, adopt_key, &count));
        CHECK(count > 0);
    }
    char key[32];
    int key_len = snprintf(key, sizeof key, "mine/%u", last);
    EXPECT(OUTLAST_OK, outlast_get(store, key, key_len, buffer, sizeof buffer, &len, NULL));
    CHECK(len == 1 && buffer[0] == 'x');
    size_t lost = 1;
    EXPECT(OUTLAST_OK, outlast_accept_loss(store, &lost));
    CHECK(lost == 0);
    /* A second store beside the first, and the first again after it was closed. */
    outlast_options named = {sizeof named, .replicas = 2, .name = "second"};
    outlast_store *second;
    EXPECT(OUTLAST_INVALID, outlast_open(job, &named, NULL));
    EXPECT(OUTLAST_OK, outlast_open(job, &named, &second));
    EXPECT(OUTLAST_ALREADY_OPEN, outlast_open(job, NULL, &second));
    EXPECT(OUTLAST_ABSENT, outlast_exists(second, key, key_len));
    EXPECT(OUTLAST_OK, outlast_close(second));
    EXPECT(OUTLAST_OK, outlast_exists(store, key, key_len));
    EXPECT(OUTLAST_OK, outlast_close(store));
    EXPECT(OUTLAST_OK, outlast_open(job, NULL, &store));
    EXPECT(OUTLAST_ABSENT, outlast_exists(store, key, key_len));
    EXPECT(OUTLAST_OK, outlast_close(store));
    EXPECT(OUTLAST_OK, outlast_leave(job));
    printf("ok\n");
    return 0;
}
