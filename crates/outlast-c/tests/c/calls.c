/*
 * A job of C programs that make the calls for task runtimes, figures, pins, batches and snapshots.
 * Then the last member reports that it is ready to be killed, and the survivors learn of the death
 * by their bells. The argument is a folder for snapshots.
 */
#include "check.h"

static int sum_values(void *context, const void *key, size_t key_len, const void *value, size_t len,
                      const outlast_version *version) {
    CHECK(key_len == 6 && memcmp(key, "part/", 5) == 0);
    CHECK(len == 1 && version->counter > 0);
    *(int *)context += *(const char *)value;
    return 0;
}

static void handles_of_a_runtime(uint32_t me) {
    char key[32], buffer[16];
    size_t len = 0;
    int64_t number = 0;
    outlast_version first, second, found;
    outlast_handle *handle;
    int key_len = snprintf(key, sizeof key, "task/%u", me);
    EXPECT(OUTLAST_OK, outlast_handle_open(store, key, key_len, &handle));
    EXPECT(OUTLAST_ABSENT, outlast_handle_version(handle, &found));
    EXPECT(OUTLAST_OK, outlast_handle_put_if(handle, "open", 4, NULL, &first));
    EXPECT(OUTLAST_CONFLICT, outlast_handle_put_if(handle, "open", 4, NULL, NULL));
    EXPECT(OUTLAST_OK, outlast_handle_put_if(handle, "claimed", 7, &first, &second));
    EXPECT(OUTLAST_CONFLICT, outlast_handle_put_if(handle, "claimed", 7, &first, NULL));
    EXPECT(OUTLAST_OK, outlast_handle_version(handle, &found));
    CHECK(found.counter == second.counter && found.writer == me);
    struct iovec parts[] = {{"head", 4}, {NULL, 0}, {"er", 2}};
    EXPECT(OUTLAST_OK, outlast_handle_putv(handle, parts, 3, &found));
    EXPECT(OUTLAST_OK, outlast_handle_get(handle, buffer, sizeof buffer, &len, NULL));
    CHECK(len == 6 && memcmp(buffer, "header", 6) == 0);
    EXPECT(OUTLAST_OK, outlast_putv(store, key, key_len, parts, 1, NULL));
    EXPECT(OUTLAST_OK, outlast_get(store, key, key_len, buffer, sizeof buffer, &len, NULL));
    CHECK(len == 4 && memcmp(buffer, "head", 4) == 0);
    EXPECT(OUTLAST_OK, outlast_putv(store, key, key_len, NULL, 0, NULL));
    EXPECT(OUTLAST_OK, outlast_handle_get(handle, NULL, 0, &len, NULL));
    CHECK(len == 0);
    EXPECT(OUTLAST_OK, outlast_handle_delete(handle));
    EXPECT(OUTLAST_ABSENT, outlast_handle_delete(handle));
    EXPECT(OUTLAST_OK, outlast_handle_add(handle, 41, NULL));
    EXPECT(OUTLAST_OK, outlast_handle_add(handle, 1, &number));
    CHECK(number == 42);
    outlast_handle_free(handle);
    uint32_t owner = 99, replicas[8];
    size_t count = 0, partition = 0;
    EXPECT(OUTLAST_OK, outlast_owner_of(store, key, key_len, &owner));
    CHECK(owner == me);
    EXPECT(OUTLAST_ABSENT, outlast_owner_of(store, "none", 4, &owner));
    EXPECT(OUTLAST_OK, outlast_replicas_of(store, key, key_len, replicas, 8, &count));
    CHECK(count == 3 && replicas[0] < 4);
    EXPECT(OUTLAST_OK, outlast_replicas_of(store, key, key_len, NULL, 0, &count));
    CHECK(count == 3);
    EXPECT(OUTLAST_OK, outlast_partition_of(store, key, key_len, &partition));
}

static void pins_and_batches(uint32_t me) {
    char key[32], buffer[16];
    int key_len = snprintf(key, sizeof key, "pin/%u", me);
    uint64_t len = 0;
    outlast_version first, found;
    outlast_pin *pin;
    EXPECT(OUTLAST_ABSENT, outlast_pin_open(store, key, key_len, &pin, NULL, NULL));
    EXPECT(OUTLAST_OK, outlast_put(store, key, key_len, "first version", 13, &first));
    EXPECT(OUTLAST_OK, outlast_pin_open(store, key, key_len, &pin, &len, &found));
    CHECK(len == 13 && found.counter == first.counter);
    EXPECT(OUTLAST_OK, outlast_put(store, key, key_len, "second", 6, NULL));
    EXPECT(OUTLAST_OK, outlast_pin_read(pin, 6, buffer, 7));
    CHECK(memcmp(buffer, "version", 7) == 0);
    EXPECT(OUTLAST_INVALID, outlast_pin_read(pin, 12, buffer, 2));
    outlast_pin_free(pin);

    char other[32];
    int other_len = snprintf(other, sizeof other, "batch/%u", me);
    outlast_pair pairs[] = {{key, key_len, "one", 3}, {other, other_len, "three", 5}};
    size_t done = 9;
    EXPECT(OUTLAST_OK, outlast_put_all(store, pairs, 2, &done));
    CHECK(done == 2);
    outlast_pair bad[] = {{key, key_len, "one", 3}, {"", 0, "x", 1}, {other, other_len, "y", 1}};
    EXPECT(OUTLAST_INVALID, outlast_put_all(store, bad, 3, &done));
    CHECK(done == 1);
    char one[8], three[8], small[2];
    outlast_read reads[] = {{key, key_len, one, sizeof one, 0, 9},
                            {"nothing", 7, one, sizeof one, 0, 9},
                            {other, other_len, three, sizeof three, 0, 9},
                            {other, other_len, small, sizeof small, 0, 9}};
    EXPECT(OUTLAST_OK, outlast_get_all(store, reads, 3));
    CHECK(reads[0].status == OUTLAST_OK && reads[0].len == 3 && memcmp(one, "one", 3) == 0);
    CHECK(reads[1].status == OUTLAST_ABSENT);
    CHECK(reads[2].status == OUTLAST_OK && memcmp(three, "three", 5) == 0);
    EXPECT(OUTLAST_TOO_SMALL, outlast_get_all(store, reads, 4));
    CHECK(reads[3].status == OUTLAST_TOO_SMALL && reads[3].len == 5);
}

/* Gets that were begun, what a transaction sees and sets, and the token of a lock. */
static void begun_and_versioned(uint32_t me) {
    char key[32], buffer[16];
    int key_len = snprintf(key, sizeof key, "begun/%u", me);
    size_t len = 0;
    outlast_version put, found;
    outlast_pending *pending;
    EXPECT(OUTLAST_OK, outlast_get_nb(store, key, key_len, &pending));
    EXPECT(OUTLAST_ABSENT, outlast_pending_get(pending, buffer, sizeof buffer, &len, NULL));
    EXPECT(OUTLAST_OVER, outlast_pending_get(pending, buffer, sizeof buffer, &len, NULL));
    outlast_pending_free(pending);
    EXPECT(OUTLAST_OK, outlast_put(store, key, key_len, "value", 5, &put));
    EXPECT(OUTLAST_OK, outlast_get_nb(store, key, key_len, &pending));
    while (!outlast_pending_is_ready(pending)) usleep(1000);
    EXPECT(OUTLAST_TOO_SMALL, outlast_pending_get(pending, buffer, 2, &len, NULL));
    CHECK(len == 5);
    EXPECT(OUTLAST_OK, outlast_pending_get(pending, buffer, sizeof buffer, &len, &found));
    CHECK(len == 5 && memcmp(buffer, "value", 5) == 0 && found.counter == put.counter);
    EXPECT(OUTLAST_OVER, outlast_pending_get(pending, buffer, sizeof buffer, &len, NULL));
    outlast_pending_free(pending);
    EXPECT(OUTLAST_OK, outlast_get_nb(store, key, key_len, &pending));
    outlast_pending_free(pending);

    outlast_tx *tx;
    EXPECT(OUTLAST_OK, outlast_tx_begin(store, &tx));
    EXPECT(OUTLAST_OK, outlast_tx_put(tx, key, key_len, "changed", 7));
    EXPECT(OUTLAST_OK,
           outlast_tx_get_before(tx, key, key_len, buffer, sizeof buffer, &len, &found));
    CHECK(len == 5 && memcmp(buffer, "value", 5) == 0 && found.counter == put.counter);
    EXPECT(OUTLAST_ABSENT, outlast_tx_get_before(tx, "none", 4, buffer, 8, &len, NULL));
    EXPECT(OUTLAST_ABSENT, outlast_tx_version(tx, key, key_len, &found));
    EXPECT(OUTLAST_OK, outlast_tx_commit(tx));
    EXPECT(OUTLAST_OK, outlast_tx_version(tx, key, key_len, &found));
    CHECK(found.counter > put.counter && found.writer == me);
    EXPECT(OUTLAST_ABSENT, outlast_tx_version(tx, "none", 4, &found));
    outlast_tx_free(tx);

    outlast_lock_guard *guard;
    outlast_version first, second;
    key_len = snprintf(key, sizeof key, "lock/%u", me);
    EXPECT(OUTLAST_OK, outlast_lock(store, key, key_len, 1000, &guard, NULL));
    EXPECT(OUTLAST_OK, outlast_lock_version(guard, &first));
    EXPECT(OUTLAST_OK, outlast_unlock(guard));
    EXPECT(OUTLAST_OK, outlast_lock(store, key, key_len, 1000, &guard, NULL));
    EXPECT(OUTLAST_OK, outlast_lock_version(guard, &second));
    EXPECT(OUTLAST_OK, outlast_unlock(guard));
    CHECK(second.counter > first.counter);
}

/* Adds up the regions of all owners: each has a region of its number plus one bytes. */
static int sum_regions(void *context, uint32_t owner, const char *name, uint64_t len) {
    CHECK(strcmp(name, "cells") == 0 && len == owner + 1);
    *(uint64_t *)context += len;
    return owner == 3;
}

/* The regions of a checkpoint, as any member finds them. */
static void owners_of_regions(uint32_t me) {
    char cells[4] = {0}, cell = 0;
    outlast_regions *regions;
    outlast_region_options options = {.struct_size = sizeof options, .bytes = 1 << 16, .set = 4};
    EXPECT(OUTLAST_OK, outlast_regions_open(store, "owners", &options, &regions));
    EXPECT(OUTLAST_ABSENT, outlast_restore(regions, NULL));
    EXPECT(OUTLAST_INVALID, outlast_region_read(regions, 0, "cells", 0, &cell, 1));
    memset(cells, 'a' + (int)me, sizeof cells);
    EXPECT(OUTLAST_OK, outlast_protect(regions, "cells", cells, me + 1));
    EXPECT(OUTLAST_OK, outlast_checkpoint(regions, 1, NULL, 0));
    uint64_t sum = 0;
    uint32_t owners = 0;
    EXPECT(OUTLAST_OK, outlast_region_owners(regions, sum_regions, &sum, &owners));
    CHECK(owners == 4 && sum == 1 + 2 + 3 + 4);
    EXPECT(OUTLAST_OK, outlast_region_owners(regions, NULL, NULL, &owners));
    EXPECT(OUTLAST_OK, outlast_region_read(regions, 3, "cells", 3, &cell, 1));
    CHECK(cell == 'd');
    EXPECT(OUTLAST_OK, outlast_regions_close(regions));
}

/* What a listener was told. */
struct told {
    outlast_store *single;
    volatile size_t partitions;
};

static void note_loss(void *context, const size_t *partitions, size_t count) {
    struct told *told = context;
    size_t lost = 0;
    CHECK(count > 0 && partitions[0] <= partitions[count - 1]);
    EXPECT(OUTLAST_OK, outlast_lost_partitions(told->single, NULL, 0, &lost));
    CHECK(lost == count);
    __atomic_store_n(&told->partitions, count, __ATOMIC_SEQ_CST);
}

static void figures(void) {
    outlast_stats stats = {.struct_size = sizeof stats};
    outlast_totals totals = {.struct_size = sizeof totals};
    outlast_memory memory = {.struct_size = sizeof memory};
    EXPECT(OUTLAST_OK, outlast_get_stats(store, &stats));
    CHECK(stats.replicas_repaired == 0 && stats.struct_size == sizeof stats);
    EXPECT(OUTLAST_OK, outlast_get_totals(store, &totals));
    size_t keys = 0;
    EXPECT(OUTLAST_OK, outlast_count(store, &keys));
    CHECK(totals.keys > 0 && keys > 0 && totals.partitions_lost == 0);
    EXPECT(OUTLAST_OK, outlast_get_memory(store, &memory));
    CHECK(memory.values > 0 && memory.records > 0);
    /* A program that knows a part of the structure gets that part, and nothing behind it. */
    struct {
        size_t struct_size;
        uint64_t keys, canary;
    } part = {2 * sizeof(uint64_t), 0, 77};
    EXPECT(OUTLAST_OK, outlast_get_totals(store, (outlast_totals *)&part));
    CHECK(part.keys >= totals.keys && part.canary == 77);
    size_t missing = 9, lost = 9;
    EXPECT(OUTLAST_OK, outlast_repair_status(store, &missing, &lost));
    CHECK(missing == 0 && lost == 0);
}

/* Waits with the bell until the key exists, as the header says. */
static void wait_with_bell(outlast_job *job, const char *key) {
    for (;;) {
        uint64_t bell = outlast_bell(job);
        int status = outlast_wait(store, key, strlen(key), NULL, 0, -1, NULL, 0, NULL, NULL);
        if (status == OUTLAST_OK) return;
        CHECK(status == OUTLAST_ABSENT);
        status = outlast_park(job, bell, 30000);
        CHECK(status == OUTLAST_OK || status == OUTLAST_ABSENT);
    }
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    outlast_job *job;
    outlast_join_options join = {.struct_size = sizeof join, .time_limit_ms = 20000};
    char domain[32];
    snprintf(domain, sizeof domain, "rack/%d", (int)getpid());
    join.domain = domain;
    EXPECT(OUTLAST_OK, outlast_join_with(&join, &job));
    CHECK(strcmp(outlast_library_version(), OUTLAST_VERSION) == 0);
    outlast_options options = {sizeof options, .replicas = 3, .repair_share = 90};
    EXPECT(OUTLAST_OK, outlast_open(job, &options, &store));
    uint32_t me = outlast_me(job), members = outlast_members(job), last = members - 1;
    char buffer[64];
    size_t len = 0;
    EXPECT(OUTLAST_OK, outlast_domain(job, me, buffer, sizeof buffer, &len));
    CHECK(len == strlen(domain) && memcmp(buffer, domain, len) == 0);
    handles_of_a_runtime(me);
    pins_and_batches(me);
    begun_and_versioned(me);
    owners_of_regions(me);
    EXPECT(OUTLAST_OK, outlast_barrier(job));
    figures();
    /* A store whose values have a single replica each: a death loses some of them. */
    struct told told = {NULL, 0};
    outlast_options alone = {sizeof alone, .replicas = 1, .name = "single", .partitions = 16};
    EXPECT(OUTLAST_OK, outlast_open(job, &alone, &told.single));
    EXPECT(OUTLAST_OK, outlast_on_loss(told.single, note_loss, &told));

    /* The members put a part each; every member counts them, and reads them together. */
    char key[32], part = (char)(me + 1);
    int key_len = snprintf(key, sizeof key, "part/%u", me);
    EXPECT(OUTLAST_OK, outlast_put(store, key, key_len, &part, 1, NULL));
    EXPECT(OUTLAST_OK, outlast_add(store, "parts", 5, 1, NULL));
    int64_t reached = 0;
    EXPECT(OUTLAST_OK, outlast_wait_count(store, "parts", 5, members, 20000, NULL, &reached));
    CHECK(reached == members);
    EXPECT(OUTLAST_ABSENT, outlast_wait_count(store, "parts", 5, 99, 1, NULL, &reached));
    EXPECT(OUTLAST_WRONG_TYPE, outlast_wait_count(store, key, key_len, 9, 1, NULL, NULL));
    int sum = 0;
    EXPECT(OUTLAST_OK, outlast_scan_values(store, "part/", 5, sum_values, &sum));
    CHECK(sum == 1 + 2 + 3 + 4);

    /* A ring of futures: each member waits for the key of the member before it. */
    EXPECT(OUTLAST_OK, outlast_barrier(job));
    if (me == 0) {
        EXPECT(OUTLAST_OK, outlast_put(store, "future/0", 8, NULL, 0, NULL));
    } else {
        snprintf(key, sizeof key, "future/%u", me - 1);
        wait_with_bell(job, key);
        snprintf(key, sizeof key, "future/%u", me);
        EXPECT(OUTLAST_OK, outlast_put(store, key, strlen(key), NULL, 0, NULL));
    }
    /* A ring of a member: the bell shows another number, and a park returns at once. */
    EXPECT(OUTLAST_OK, outlast_barrier(job));
    uint64_t bell = outlast_bell(job);
    EXPECT(OUTLAST_OK, outlast_ring(job, me));
    EXPECT(OUTLAST_OK, outlast_park(job, bell, 20000));

    /* Snapshots: a single member takes one, and restores it. */
    outlast_snapshots *snapshots;
    outlast_snapshot_options how = {.struct_size = sizeof how, .keep = 1};
    EXPECT(OUTLAST_OK, outlast_snapshots_open(store, arguments[1], &how, &snapshots));
    EXPECT(OUTLAST_ALREADY_OPEN, outlast_snapshots_open(store, arguments[1], NULL, &snapshots));
    EXPECT(OUTLAST_OK, outlast_barrier(job));
    if (me == 0) {
        outlast_snapshot taken = {.struct_size = sizeof taken};
        EXPECT(OUTLAST_OK, outlast_snapshot_take(snapshots, &taken));
        CHECK(taken.records > 0 && taken.bytes > 0);
        EXPECT(OUTLAST_OK, outlast_delete(store, "parts", 5));
        uint64_t records = 0;
        EXPECT(OUTLAST_OK, outlast_snapshot_restore(store, arguments[1], 0, 1, &records, NULL));
        CHECK(records == taken.records);
        EXPECT(OUTLAST_OK, outlast_exists(store, "parts", 5));
        EXPECT(OUTLAST_INVALID, outlast_snapshot_restore(store, arguments[1], 1, 1, NULL, NULL));
        EXPECT(OUTLAST_FAILED, outlast_snapshot_restore(store, "/nothing", 0, 1, NULL, NULL));
    }
    outlast_snapshots_free(snapshots);
    uint64_t seen = outlast_epoch(store);
    EXPECT(OUTLAST_OK, outlast_barrier(job));
    if (me == last) {
        printf("ready\n");
        fflush(stdout);
        outlast_park(job, outlast_bell(job), 30000);
        for (;;) pause();
    }
    /* A death ends a wait for a count, and rings the bell. */
    EXPECT(OUTLAST_DIED, outlast_wait_count(store, "parts", 5, 99, 30000, &seen, NULL));
    while (outlast_is_living(job, last)) {
        bell = outlast_bell(job);
        if (outlast_is_living(job, last)) outlast_park(job, bell, 30000);
    }
    uint32_t living[8];
    size_t alive = 0, missing = 9, lost = 9;
    EXPECT(OUTLAST_OK, outlast_living_members(job, living, 8, &alive));
    CHECK(alive == 3 && living[0] == 0 && living[2] == 2);
    EXPECT(OUTLAST_OK, outlast_wait_repaired(store, 30000, &missing, &lost));
    CHECK(missing == 0 && lost == 0);
    while (__atomic_load_n(&told.partitions, __ATOMIC_SEQ_CST) == 0) usleep(1000);
    EXPECT(OUTLAST_OK, outlast_barrier(job));
    EXPECT(OUTLAST_OK, outlast_close(told.single));
    size_t partitions = 9;
    EXPECT(OUTLAST_OK, outlast_lost_partitions(store, NULL, 0, &partitions));
    CHECK(partitions == 0);
    EXPECT(OUTLAST_OK, outlast_accept_loss_of(store, NULL, 0));
    EXPECT(OUTLAST_OK, outlast_barrier(job));
    EXPECT(OUTLAST_OK, outlast_fence(job, last, 1000));
    EXPECT(OUTLAST_OK, outlast_close(store));
    EXPECT(OUTLAST_OK, outlast_leave(job));
    printf("ok\n");
    return 0;
}
