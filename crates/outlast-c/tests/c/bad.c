/*
 * Bad input: null handles, wrong sizes, closed stores, use after leave, fork after open, and a
 * plug-in that is missing or of another MPI, whose file is the argument. Each has its own code and
 * a message, and changes nothing. Signals end no wait.
 */
#include "check.h"

#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

/* Expects a code, and a message with this text. */
#define REFUSED(wanted, words, call) \
    do { \
        EXPECT(wanted, call); \
        if (strstr(outlast_error(), words) == NULL) { \
            fprintf(stderr, "line %d: no \"%s\" in: %s\n", __LINE__, words, outlast_error()); \
            exit(1); \
        } \
    } while (0)

static int visit(void *context, const void *key, size_t len) {
    (void)context, (void)key, (void)len;
    return 0;
}

static int body(void *context, outlast_tx *tx) {
    (void)context;
    return outlast_tx_put(tx, "fork", 4, "child", 5);
}

static void null_handles(outlast_job *job) {
    char buffer[8];
    size_t count;
    uint64_t number = 0;
    REFUSED(OUTLAST_INVALID, "NULL", outlast_join(NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_leave(NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_open(NULL, NULL, &store));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_open(job, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_close(NULL));
    CHECK(outlast_me(NULL) == UINT32_MAX && outlast_members(NULL) == 0);
    CHECK(outlast_living(NULL) == 0 && outlast_is_living(NULL, 0) == 0);
    CHECK(outlast_bell(NULL) == 0 && outlast_epoch(NULL) == 0);
    CHECK(outlast_heir_of(NULL, 0) == UINT32_MAX && outlast_is_revoked(NULL) == 0);
    REFUSED(OUTLAST_INVALID, "NULL", outlast_park(NULL, 0, 1));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_ring(NULL, 0));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_barrier(NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_get(NULL, "k", 1, buffer, 8, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_get(store, NULL, 1, buffer, 8, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_get(store, "k", 1, NULL, 8, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_put(store, "k", 1, NULL, 8, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_putv(store, "k", 1, NULL, 1, NULL));
    REFUSED(OUTLAST_INVALID, "negative", outlast_putv(store, "k", 1, NULL, -1, NULL));
    struct iovec part = {NULL, 4};
    REFUSED(OUTLAST_INVALID, "NULL", outlast_putv(store, "k", 1, &part, 1, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_put_all(store, NULL, 1, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_get_all(store, NULL, 1));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_scan(NULL, "", 0, visit, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_scan(store, "", 0, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_scan_values(store, "", 0, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_lost_keys(store, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_next_death(store, NULL, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_handle_open(store, "k", 1, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_handle_put(NULL, "v", 1, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_handle_put_if(NULL, "v", 1, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_handle_add(NULL, 1, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_handle_version(NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_pin_open(store, "k", 1, NULL, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_pin_read(NULL, 0, buffer, 1));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_lock(store, "k", 1, 1, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_unlock(NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_tx_put(NULL, "k", 1, "v", 1));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_transaction(store, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_transaction(NULL, body, NULL));
    CHECK(outlast_recovery_tx(NULL) == NULL && outlast_pending_is_ready(NULL) == 0);
    REFUSED(OUTLAST_INVALID, "NULL", outlast_get_nb(store, "k", 1, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_pending_get(NULL, buffer, 8, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_on_loss(store, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_lock_version(NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_tx_version(NULL, "k", 1, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_region_owners(NULL, NULL, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_images_holders(NULL, NULL, 0, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_comm_start_send(NULL, 0, 0, "m", 1, NULL));
    outlast_request *none[] = {NULL};
    REFUSED(OUTLAST_INVALID, "NULL", outlast_request_wait_any(NULL, 1, &count));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_request_test_any(none, 1, &count));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_request_wait_all(none, 1, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_window_start_put(NULL, 0, 0, "m", 1, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_window_start_get(NULL, 0, 0, 1, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_window_request_wait(NULL, buffer, 8, NULL));
    REFUSED(OUTLAST_INVALID, "NULL",
            outlast_request_wait_within(NULL, 1, buffer, 8, NULL, NULL, NULL));
    CHECK(outlast_seat_bytes(NULL) == 0 && outlast_time_limit_ms(NULL) == 0);
    CHECK(outlast_time_limit_ms(job) == 30000);
    REFUSED(OUTLAST_INVALID, "NULL", outlast_seat_accumulate_i64(NULL, 0, 0, 4, NULL, 0));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_seat_fetch_and_op_i64(NULL, 0, 0, 4, 1, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_recover_end(NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_snapshots_open(store, NULL, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_snapshot_take(NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_regions_open(store, NULL, NULL, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_checkpoint(NULL, 1, NULL, 0));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_comm_world(job, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_comm_agree(NULL, &number));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_comm_get_failed(NULL, NULL, 0, &count));
    CHECK(outlast_comm_rank(NULL) == UINT32_MAX && outlast_comm_size(NULL) == 0);
    REFUSED(OUTLAST_INVALID, "NULL", outlast_window_open(NULL, 8, NULL));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_window_free(NULL));
    CHECK(outlast_comm_is_revoked(NULL) == 0 && outlast_window_is_revoked(NULL) == 0);
    /* The calls that free take NULL, as free does. */
    outlast_handle_free(NULL);
    outlast_pin_free(NULL);
    outlast_tx_free(NULL);
    outlast_request_free(NULL);
    outlast_window_request_free(NULL);
    outlast_pending_free(NULL);
    outlast_snapshots_free(NULL);
    outlast_window_discard(NULL);
}

static void wrong_sizes(outlast_job *job) {
    outlast_store *other;
    outlast_options options = {0};
    REFUSED(OUTLAST_INVALID, "struct_size", outlast_open(job, &options, &other));
    options.struct_size = 100000;
    REFUSED(OUTLAST_INVALID, "struct_size", outlast_open(job, &options, &other));
    outlast_totals totals = {0};
    REFUSED(OUTLAST_INVALID, "struct_size", outlast_get_totals(store, &totals));
    REFUSED(OUTLAST_INVALID, "NULL", outlast_get_totals(store, NULL));
    /* A later header may have more fields: they must be 0. */
    struct {
        outlast_options known;
        uint64_t later;
    } newer = {{sizeof newer, .replicas = 1, .name = "newer"}, 1};
    REFUSED(OUTLAST_INVALID, "does not know", outlast_open(job, &newer.known, &other));
    newer.later = 0;
    EXPECT(OUTLAST_OK, outlast_open(job, &newer.known, &other));
    EXPECT(OUTLAST_OK, outlast_close(other));
    /* An earlier header has fewer. */
    struct {
        size_t struct_size;
        uint32_t replicas;
        uint32_t allow_fewer;
    } older = {sizeof older, 3, 1};
    REFUSED(OUTLAST_ALREADY_OPEN, "open already",
            outlast_open(job, (const outlast_options *)&older, &other));
    char long_key[2000] = {1}, long_name[300];
    REFUSED(OUTLAST_INVALID, "key length",
            outlast_put(store, long_key, sizeof long_key, "v", 1, NULL));
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = 0;
    outlast_options named = {sizeof named, .name = long_name};
    EXPECT(OUTLAST_INVALID, outlast_open(job, &named, &other));
    named.name = "\xff";
    REFUSED(OUTLAST_INVALID, "UTF-8", outlast_open(job, &named, &other));
    outlast_options many = {sizeof many, .replicas = 99, .name = "many"};
    EXPECT(OUTLAST_INVALID, outlast_open(job, &many, &other));
    REFUSED(OUTLAST_INVALID, "length is impossible",
            outlast_put(store, "k", 1, "v", SIZE_MAX, NULL));
    REFUSED(OUTLAST_INVALID, "no member", outlast_wait(store, "k", 1, NULL, 1, 9, NULL, 0, NULL,
                                                      NULL));
    EXPECT(OUTLAST_INVALID, outlast_ring(job, 9));
    EXPECT(OUTLAST_INVALID, outlast_keys_of(store, 9, visit, NULL));
    size_t partition = 1 << 30;
    EXPECT(OUTLAST_INVALID, outlast_accept_loss_of(store, &partition, 1));
    /* Embedded null characters are bytes of keys and values like all others. */
    char buffer[8];
    size_t len;
    EXPECT(OUTLAST_OK, outlast_put(store, "a\0b", 3, "v\0w", 3, NULL));
    EXPECT(OUTLAST_ABSENT, outlast_exists(store, "a", 1));
    EXPECT(OUTLAST_OK, outlast_get(store, "a\0b", 3, buffer, 8, &len, NULL));
    CHECK(len == 3 && memcmp(buffer, "v\0w", 3) == 0);
}

static void forks(outlast_job *job) {
    outlast_handle *handle;
    outlast_comm *comm;
    outlast_window *window;
    outlast_regions *regions;
    outlast_images *images;
    outlast_tx *tx;
    outlast_pin *pin;
    outlast_lock_guard *guard;
    char buffer[8], cells[8] = "cells";
    EXPECT(OUTLAST_OK, outlast_handle_open(store, "fork", 4, &handle));
    EXPECT(OUTLAST_OK, outlast_comm_world(job, &comm));
    EXPECT(OUTLAST_OK, outlast_window_open(comm, 64, &window));
    EXPECT(OUTLAST_OK, outlast_regions_open(store, "fork", NULL, &regions));
    EXPECT(OUTLAST_OK, outlast_protect(regions, "cells", cells, sizeof cells));
    EXPECT(OUTLAST_OK, outlast_images_open(store, "fork", NULL, &images));
    EXPECT(OUTLAST_OK, outlast_put(store, "pinned", 6, "value", 5, NULL));
    EXPECT(OUTLAST_OK, outlast_pin_open(store, "pinned", 6, &pin, NULL, NULL));
    EXPECT(OUTLAST_OK, outlast_tx_begin(store, &tx));
    EXPECT(OUTLAST_OK, outlast_tx_put(tx, "fork", 4, "child", 5));
    pid_t child = fork();
    if (child == 0) {
        alarm(30);
        EXPECT(OUTLAST_FORKED, outlast_tx_commit(tx));
        EXPECT(OUTLAST_FORKED, outlast_pin_read(pin, 0, buffer, 1));
        EXPECT(OUTLAST_FORKED, outlast_lock(store, "fork", 4, 20000, &guard, NULL));
        EXPECT(OUTLAST_FORKED, outlast_transaction(store, body, NULL));
        EXPECT(OUTLAST_FORKED, outlast_wait(store, "none", 4, NULL, 20000, -1, NULL, 0, NULL,
                                            NULL));
        EXPECT(OUTLAST_FORKED, outlast_scan(store, "", 0, visit, NULL));
        EXPECT(OUTLAST_FORKED, outlast_comm_send(comm, 0, 1, "child", 5));
        EXPECT(OUTLAST_FORKED,
               outlast_comm_receive(comm, 0, 1, buffer, 8, NULL, NULL, NULL));
        EXPECT(OUTLAST_FORKED, outlast_comm_barrier(comm));
        EXPECT(OUTLAST_FORKED, outlast_window_put(window, 0, 0, "child", 5));
        EXPECT(OUTLAST_FORKED, outlast_window_get(window, 0, 0, buffer, 1));
        EXPECT(OUTLAST_FORKED, outlast_checkpoint(regions, 1, NULL, 0));
        EXPECT(OUTLAST_FORKED, outlast_restore(regions, NULL));
        EXPECT(OUTLAST_FORKED, outlast_image_save(images, "image", NULL, 0, "child", 5));
        EXPECT(OUTLAST_FORKED, outlast_image_load(images, "image", buffer, 8, NULL, NULL, 0, NULL));
        EXPECT(OUTLAST_FORKED, outlast_barrier(job));
        EXPECT(OUTLAST_FORKED, outlast_fence(job, 0, 20000));
        REFUSED(OUTLAST_FORKED, "forked", outlast_put(store, "fork", 4, "child", 5, NULL));
        REFUSED(OUTLAST_FORKED, "forked", outlast_handle_put(handle, "child", 5, NULL));
        EXPECT(OUTLAST_FORKED, outlast_get(store, "fork", 4, NULL, 0, NULL, NULL));
        EXPECT(OUTLAST_FORKED, outlast_park(job, outlast_bell(job), 100000));
        EXPECT(OUTLAST_FORKED, outlast_ring(job, 0));
        EXPECT(OUTLAST_FORKED, outlast_leave(job));
        _exit(0);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT(OUTLAST_ABSENT, outlast_exists(store, "fork", 4));
    EXPECT(OUTLAST_ABSENT, outlast_restore(regions, NULL));
    EXPECT(OUTLAST_ABSENT, outlast_image_load(images, "image", NULL, 0, NULL, NULL, 0, NULL));
    EXPECT(OUTLAST_OK, outlast_tx_commit(tx));
    EXPECT(OUTLAST_OK, outlast_exists(store, "fork", 4));
    EXPECT(OUTLAST_OK, outlast_window_free(window));
    EXPECT(OUTLAST_OK, outlast_regions_close(regions));
    EXPECT(OUTLAST_OK, outlast_images_close(images));
    EXPECT(OUTLAST_OK, outlast_comm_free(comm));
    outlast_handle_free(handle);
    outlast_pin_free(pin);
    outlast_tx_free(tx);
}

static volatile sig_atomic_t signals;

static void count_signal(int number) {
    (void)number;
    signals++;
}

/* Waits while signals come, every 10 ms: the waits last as long as without them. */
static void waits_with_signals(void) {
    struct sigaction action = {.sa_handler = count_signal};
    struct itimerval often = {{0, 10000}, {0, 10000}}, never = {{0, 0}, {0, 0}};
    struct timespec began, ended;
    outlast_lock_guard *guard, *other;
    EXPECT(OUTLAST_OK, outlast_lock(store, "held", 4, 1000, &guard, NULL));
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    clock_gettime(CLOCK_MONOTONIC, &began);
    EXPECT(OUTLAST_ABSENT, outlast_wait(store, "none", 4, NULL, 100, -1, NULL, 0, NULL, NULL));
    EXPECT(OUTLAST_LOCKED, outlast_lock(store, "held", 4, 100, &other, NULL));
    clock_gettime(CLOCK_MONOTONIC, &ended);
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    double seconds = ended.tv_sec - began.tv_sec + (ended.tv_nsec - began.tv_nsec) * 1e-9;
    CHECK(signals > 0 && seconds > 0.19);
    EXPECT(OUTLAST_OK, outlast_unlock(guard));
}

/* Joins over MPI with a file that is no plug-in for the MPI of this process. */
static void refused_plugin(const char *file, const char *reason) {
    outlast_job *job;
    setenv("OUTLAST_MPI_SHIM", file, 1);
    REFUSED(OUTLAST_NOT_JOINED, reason, outlast_join_mpi(NULL, 0, &job));
    CHECK(strstr(outlast_error(), "outlast mpi setup") != NULL);
}

int main(int count, char **arguments) {
    outlast_job *job;
    /* Without a plug-in for MPI the message says what to type. */
    setenv("OUTLAST_ENGINE", "mpi", 1);
    refused_plugin("/nowhere/plug-in.so", "does not exist");
    if (count > 1) {
        refused_plugin(arguments[1], "runs with another MPI");
    }
    unsetenv("OUTLAST_MPI_SHIM");
    unsetenv("OUTLAST_ENGINE");
    if (getenv("OUTLAST_JOB") != NULL) { /* a member that `outlast run` started */
        REFUSED(OUTLAST_NOT_JOINED, "not with `outlast run`", outlast_join_mpi(&job, 1, &job));
    }
    EXPECT(OUTLAST_OK, outlast_join(&job));
    EXPECT(OUTLAST_OK, outlast_open(job, NULL, &store));
    null_handles(job);
    wrong_sizes(job);
    forks(job);
    waits_with_signals();
    outlast_handle *handle;
    outlast_pin *pin;
    outlast_tx *tx;
    char buffer[8];
    EXPECT(OUTLAST_OK, outlast_put(store, "key", 3, "value", 5, NULL));
    EXPECT(OUTLAST_OK, outlast_handle_open(store, "key", 3, &handle));
    EXPECT(OUTLAST_OK, outlast_pin_open(store, "key", 3, &pin, NULL, NULL));
    EXPECT(OUTLAST_OK, outlast_tx_begin(store, &tx));
    EXPECT(OUTLAST_OK, outlast_close(store));
    /* A closed store, its handles, and a second close. */
    REFUSED(OUTLAST_CLOSED, "closed", outlast_put(store, "key", 3, "value", 5, NULL));
    REFUSED(OUTLAST_CLOSED, "closed", outlast_get(store, "key", 3, buffer, 8, NULL, NULL));
    REFUSED(OUTLAST_CLOSED, "closed", outlast_handle_put(handle, "value", 5, NULL));
    EXPECT(OUTLAST_CLOSED, outlast_handle_get(handle, buffer, 8, NULL, NULL));
    EXPECT(OUTLAST_CLOSED, outlast_tx_put(tx, "key", 3, "value", 5) == OUTLAST_OK
                               ? outlast_tx_commit(tx)
                               : OUTLAST_CLOSED);
    REFUSED(OUTLAST_CLOSED, "closed", outlast_close(store));
    CHECK(outlast_epoch(store) == 0);
    outlast_handle_free(handle);
    outlast_pin_free(pin);
    outlast_tx_free(tx);
    /* The store again, and the job after it was left. */
    outlast_store *again;
    outlast_comm *comm;
    outlast_window *window;
    outlast_regions *regions;
    outlast_images *images;
    EXPECT(OUTLAST_OK, outlast_open(job, NULL, &again));
    EXPECT(OUTLAST_OK, outlast_handle_open(again, "key", 3, &handle));
    EXPECT(OUTLAST_OK, outlast_comm_world(job, &comm));
    EXPECT(OUTLAST_OK, outlast_window_open(comm, 64, &window));
    EXPECT(OUTLAST_OK, outlast_regions_open(again, "left", NULL, &regions));
    EXPECT(OUTLAST_OK, outlast_images_open(again, "left", NULL, &images));
    EXPECT(OUTLAST_OK, outlast_leave(job));
    EXPECT(OUTLAST_CLOSED, outlast_handle_put(handle, "value", 5, NULL));
    EXPECT(OUTLAST_CLOSED, outlast_comm_send(comm, 0, 1, "x", 1));
    EXPECT(OUTLAST_CLOSED, outlast_comm_receive(comm, 0, 1, buffer, 8, NULL, NULL, NULL));
    EXPECT(OUTLAST_CLOSED, outlast_comm_barrier(comm));
    EXPECT(OUTLAST_CLOSED, outlast_window_put(window, 0, 0, "x", 1));
    EXPECT(OUTLAST_CLOSED, outlast_window_free(window));
    EXPECT(OUTLAST_CLOSED, outlast_checkpoint(regions, 1, NULL, 0));
    EXPECT(OUTLAST_CLOSED, outlast_regions_close(regions));
    EXPECT(OUTLAST_CLOSED, outlast_image_save(images, "image", NULL, 0, "x", 1));
    EXPECT(OUTLAST_CLOSED, outlast_images_close(images));
    outlast_comm_free(comm);
    outlast_handle_free(handle);
    EXPECT(OUTLAST_CLOSED, outlast_put(again, "key", 3, "value", 5, NULL));
    REFUSED(OUTLAST_CLOSED, "left", outlast_open(job, NULL, &store));
    REFUSED(OUTLAST_CLOSED, "left", outlast_leave(job));
    REFUSED(OUTLAST_CLOSED, "left", outlast_barrier(job));
    CHECK(outlast_me(job) == UINT32_MAX && outlast_members(job) == 0);
    outlast_close(again);
    EXPECT(OUTLAST_CLOSED, outlast_put(again, "key", 3, "value", 5, NULL));
    printf("ok\n");
    return 0;
}
