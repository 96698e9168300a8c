/*
 * A job of C programs with communicators and windows. Then the last member reports that it is ready
 * to be killed, while it holds a lock, and the survivors shrink both and go on.
 */
#include "check.h"

static outlast_comm *comm;

static void messages(uint32_t me, uint32_t size) {
    char buffer[64];
    size_t len = 0;
    uint32_t sender = 99, tag = 99, next = (me + 1) % size, before = (me + size - 1) % size;
    EXPECT(OUTLAST_OK, outlast_comm_send(comm, next, 7, "hello", 5));
    EXPECT(OUTLAST_TOO_SMALL,
           outlast_comm_receive(comm, before, 7, buffer, 2, &len, NULL, NULL));
    CHECK(len == 5);
    EXPECT(OUTLAST_OK, outlast_comm_probe(comm, before, OUTLAST_ANY, &len, &sender, &tag));
    CHECK(len == 5 && sender == before && tag == 7);
    EXPECT(OUTLAST_OK, outlast_comm_receive(comm, OUTLAST_ANY, OUTLAST_ANY, buffer, sizeof buffer,
                                            &len, &sender, &tag));
    CHECK(len == 5 && sender == before && tag == 7 && memcmp(buffer, "hello", 5) == 0);
    EXPECT(OUTLAST_ABSENT, outlast_comm_probe(comm, OUTLAST_ANY, OUTLAST_ANY, NULL, NULL, NULL));
    outlast_request *request;
    EXPECT(OUTLAST_OK, outlast_comm_start_receive(comm, before, 8, &request));
    EXPECT(OUTLAST_ABSENT, outlast_request_test(request, buffer, sizeof buffer, &len, NULL, NULL));
    EXPECT(OUTLAST_OK, outlast_comm_barrier(comm));
    EXPECT(OUTLAST_OK, outlast_comm_send(comm, next, 8, "later", 5));
    EXPECT(OUTLAST_TOO_SMALL, outlast_request_wait(request, buffer, 1, &len, NULL, NULL));
    EXPECT(OUTLAST_OK, outlast_request_wait(request, buffer, sizeof buffer, &len, &sender, NULL));
    CHECK(len == 5 && sender == before && memcmp(buffer, "later", 5) == 0);
    EXPECT(OUTLAST_OVER, outlast_request_test(request, buffer, sizeof buffer, &len, NULL, NULL));
    outlast_request_free(request);
    /* A member interrupts its own next wait. */
    EXPECT(OUTLAST_OK, outlast_comm_interrupt(comm, me));
    EXPECT(OUTLAST_INTERRUPTED,
           outlast_comm_receive(comm, before, 9, buffer, sizeof buffer, &len, NULL, NULL));
}

static void collectives(uint32_t me, uint32_t size) {
    uint64_t sums[2] = {me, 1};
    EXPECT(OUTLAST_OK, outlast_comm_allreduce_u64(comm, OUTLAST_OP_SUM, sums, 2));
    CHECK(sums[0] == 6 && sums[1] == size);
    int64_t least = -(int64_t)me;
    EXPECT(OUTLAST_OK, outlast_comm_allreduce_i64(comm, OUTLAST_OP_MIN, &least, 1));
    CHECK(least == -3);
    double most = me * 0.5;
    EXPECT(OUTLAST_OK, outlast_comm_allreduce_f64(comm, OUTLAST_OP_MAX, &most, 1));
    CHECK(most == 1.5);
    EXPECT(OUTLAST_INVALID, outlast_comm_allreduce_u64(comm, OUTLAST_OP_XOR, sums, 2));
    char word[8] = {0}, all[64];
    if (me == 1) strcpy(word, "root");
    EXPECT(OUTLAST_OK, outlast_comm_broadcast(comm, 1, word, sizeof word));
    CHECK(strcmp(word, "root") == 0);
    size_t lens[4];
    EXPECT(OUTLAST_OK, outlast_comm_allgather(comm, "abcd", me, all, sizeof all, lens));
    CHECK(lens[0] == 0 && lens[3] == 3 && memcmp(all, "aababc", 6) == 0);
    outlast_comm *half, *copy, *none = comm;
    EXPECT(OUTLAST_OK, outlast_comm_split(comm, me / 2, -(int64_t)me, &half));
    CHECK(outlast_comm_size(half) == 2 && outlast_comm_rank(half) == 1 - me % 2);
    uint32_t member = 99;
    EXPECT(OUTLAST_OK, outlast_comm_member(half, outlast_comm_rank(half), &member));
    CHECK(member == me);
    EXPECT(OUTLAST_OK, outlast_comm_free(half));
    EXPECT(OUTLAST_OK, outlast_comm_duplicate(comm, &copy));
    if (me == 0) {
        EXPECT(OUTLAST_ABSENT, outlast_comm_split(copy, OUTLAST_ANY, 0, &none));
        CHECK(none == NULL);
    } else {
        EXPECT(OUTLAST_OK, outlast_comm_split(copy, 5, 0, &none));
        CHECK(outlast_comm_size(none) == 3);
        EXPECT(OUTLAST_OK, outlast_comm_free(none));
    }
    EXPECT(OUTLAST_OK, outlast_comm_free(copy));
}

static void windows(uint32_t me, uint32_t size) {
    uint32_t next = (me + 1) % size, ranks[4];
    char buffer[16];
    size_t count = 9;
    uint64_t before = 0, len = 0, offset = 0;
    int64_t signed_before = 0;
    outlast_window *window;
    /* Accesses of an allocated window need a lock; a locked window is not freed. */
    EXPECT(OUTLAST_OK, outlast_window_allocate(comm, 64, &window));
    EXPECT(OUTLAST_NOT_LOCKED, outlast_window_put(window, next, 0, "x", 1));
    EXPECT(OUTLAST_OK, outlast_window_lock(window, next, OUTLAST_LOCK_EXCLUSIVE));
    EXPECT(OUTLAST_OK, outlast_window_check_lock(window, next));
    EXPECT(OUTLAST_OK, outlast_window_put(window, next, 0, "mine", 4));
    EXPECT(OUTLAST_OK, outlast_window_flush(window, next));
    EXPECT(OUTLAST_OK, outlast_window_holders(window, next, ranks, 4, &count));
    CHECK(count == 1 && ranks[0] == me);
    EXPECT(OUTLAST_STILL_LOCKED, outlast_window_free(window));
    EXPECT(OUTLAST_OK, outlast_window_unlock(window, next));
    EXPECT(OUTLAST_NOT_LOCKED, outlast_window_check_lock(window, next));
    EXPECT(OUTLAST_OK, outlast_comm_barrier(comm));
    EXPECT(OUTLAST_OK, outlast_window_lock_all(window));
    EXPECT(OUTLAST_OK, outlast_window_get(window, me, 0, buffer, 4));
    CHECK(memcmp(buffer, "mine", 4) == 0);
    EXPECT(OUTLAST_OK, outlast_window_flush_all(window));
    EXPECT(OUTLAST_OK, outlast_window_unlock_all(window));
    EXPECT(OUTLAST_INVALID, outlast_window_lock(window, next, 0));
    EXPECT(OUTLAST_OK, outlast_comm_barrier(comm));
    EXPECT(OUTLAST_OK, outlast_window_free(window));

    /* An open window: no lock, blocking puts, words, growing memory and attached ranges. */
    EXPECT(OUTLAST_OK, outlast_window_open(comm, 64, &window));
    uint64_t one = 1;
    int64_t minus = -5;
    EXPECT(OUTLAST_OK, outlast_window_accumulate_u64(window, 0, 0, OUTLAST_OP_SUM, &one, 1));
    EXPECT(OUTLAST_OK, outlast_window_accumulate_i64(window, 0, 8, OUTLAST_OP_MIN, &minus, 1));
    EXPECT(OUTLAST_OK, outlast_window_flush(window, 0));
    EXPECT(OUTLAST_OK, outlast_window_put_blocking(window, next, 32, "saved", 5));
    EXPECT(OUTLAST_INVALID, outlast_window_put(window, next, 62, "saved", 5));
    EXPECT(OUTLAST_INVALID, outlast_window_fetch_and_op_u64(window, 0, 4, OUTLAST_OP_SUM, 1, NULL));
    EXPECT(OUTLAST_OK, outlast_comm_barrier(comm));
    EXPECT(OUTLAST_OK,
           outlast_window_fetch_and_op_u64(window, 0, 0, OUTLAST_OP_KEEP, 0, &before));
    EXPECT(OUTLAST_OK,
           outlast_window_fetch_and_op_i64(window, 0, 8, OUTLAST_OP_KEEP, 0, &signed_before));
    CHECK(before == size && signed_before == -5);
    EXPECT(OUTLAST_OK, outlast_window_compare_and_swap(window, me, 16, 0, 9, &before));
    CHECK(before == 0);
    EXPECT(OUTLAST_OK, outlast_window_get(window, me, 32, buffer, 5));
    CHECK(memcmp(buffer, "saved", 5) == 0);
    EXPECT(OUTLAST_OK, outlast_window_grow(window, 64, &len));
    CHECK(len == 128);
    EXPECT(OUTLAST_OK, outlast_window_len(window, me, &len));
    CHECK(len == 128);
    EXPECT(OUTLAST_OK, outlast_window_attach(window, 8, &offset));
    EXPECT(OUTLAST_OK, outlast_window_put_blocking(window, me, offset, "attached", 8));
    EXPECT(OUTLAST_OK, outlast_window_detach(window, offset));
    EXPECT(OUTLAST_INVALID, outlast_window_get(window, me, offset, buffer, 8));
    /* A lock with a time limit, and a lock that is taken away. */
    EXPECT(OUTLAST_OK, outlast_comm_barrier(comm));
    if (me == 1) EXPECT(OUTLAST_OK, outlast_window_lock(window, 0, OUTLAST_LOCK_EXCLUSIVE));
    EXPECT(OUTLAST_OK, outlast_comm_barrier(comm));
    if (me == 0) {
        EXPECT(OUTLAST_LOCKED,
               outlast_window_lock_within(window, 0, OUTLAST_LOCK_EXCLUSIVE, 5));
        EXPECT(OUTLAST_OK, outlast_window_force_unlock(window, 0, ranks, 4, &count));
        CHECK(count == 1 && ranks[0] == 1);
    }
    EXPECT(OUTLAST_OK, outlast_comm_barrier(comm));
    if (me == 1) EXPECT(OUTLAST_LOCK_LOST, outlast_window_unlock(window, 0));
    EXPECT(OUTLAST_OK, outlast_comm_barrier(comm));
    EXPECT(OUTLAST_OK, outlast_window_close(window));
}

int main(void) {
    outlast_job *job;
    EXPECT(OUTLAST_OK, outlast_join(&job));
    EXPECT(OUTLAST_OK, outlast_comm_world(job, &comm));
    uint32_t me = outlast_comm_rank(comm), size = outlast_comm_size(comm), last = size - 1;
    CHECK(size == 4 && me == outlast_me(job));
    messages(me, size);
    collectives(me, size);
    windows(me, size);
    outlast_window *window;
    EXPECT(OUTLAST_OK, outlast_window_open(comm, 64, &window));
    if (me == last) {
        EXPECT(OUTLAST_OK, outlast_window_lock(window, 0, OUTLAST_LOCK_EXCLUSIVE));
    }
    EXPECT(OUTLAST_OK, outlast_comm_barrier(comm));
    char buffer[8];
    if (me == last) {
        printf("ready\n");
        fflush(stdout);
        for (;;) pause();
    }
    EXPECT(OUTLAST_PROC_FAILED, outlast_comm_receive(comm, last, 1, buffer, 8, NULL, NULL, NULL));
    uint32_t ranks[4];
    size_t count = 0;
    EXPECT(OUTLAST_OK, outlast_comm_get_failed(comm, ranks, 4, &count));
    CHECK(count == 1 && ranks[0] == last);
    EXPECT(OUTLAST_PROC_FAILED_PENDING,
           outlast_comm_receive(comm, OUTLAST_ANY, 1, buffer, 8, NULL, NULL, NULL));
    uint32_t others[] = {0, 1, 2, last};
    EXPECT(OUTLAST_OK, outlast_comm_notify_failures(comm, others, 4));
    EXPECT(OUTLAST_OK, outlast_comm_failure_ack(comm));
    EXPECT(OUTLAST_OK, outlast_comm_get_acked(comm, ranks, 4, &count));
    CHECK(count == 1 && ranks[0] == last);
    uint64_t flags = me == 1 ? 6 : 7;
    EXPECT(OUTLAST_OK, outlast_comm_agree(comm, &flags));
    CHECK(flags == 6);
    EXPECT(OUTLAST_PROC_FAILED, outlast_comm_barrier(comm));
    /* The window goes on on its old communicator; the lock of the dead member is told of. */
    EXPECT(OUTLAST_PROC_FAILED, outlast_window_flush_all(window));
    EXPECT(OUTLAST_OK, outlast_window_get_failed(window, ranks, 4, &count));
    CHECK(count == 1 && ranks[0] == last);
    EXPECT(OUTLAST_OK, outlast_window_shrink(window, ranks, 4, &count));
    CHECK(count == 1 && ranks[0] == last);
    EXPECT(OUTLAST_OK, outlast_window_flush_all(window));
    EXPECT(OUTLAST_OK, outlast_barrier(job));
    if (me == 0) {
        EXPECT(OUTLAST_ABANDONED, outlast_window_lock(window, 0, OUTLAST_LOCK_EXCLUSIVE));
        EXPECT(OUTLAST_OK, outlast_window_unlock(window, 0));
        EXPECT(OUTLAST_OK, outlast_window_revoke(window));
        EXPECT(OUTLAST_OK, outlast_comm_revoke(comm));
    }
    while (!outlast_window_is_revoked(window) || !outlast_comm_is_revoked(comm)) usleep(1000);
    EXPECT(OUTLAST_REVOKED, outlast_comm_barrier(comm));
    EXPECT(OUTLAST_REVOKED, outlast_window_put(window, 0, 0, "x", 1));
    outlast_comm *survivors;
    EXPECT(OUTLAST_OK, outlast_comm_shrink(comm, &survivors));
    CHECK(outlast_comm_size(survivors) == 3);
    EXPECT(OUTLAST_OK, outlast_comm_barrier(survivors));
    EXPECT(OUTLAST_OK, outlast_window_shrink(window, NULL, 0, NULL));
    EXPECT(OUTLAST_OK, outlast_window_put_blocking(window, 0, 8 * me, "x", 1));
    EXPECT(OUTLAST_OK, outlast_window_free(window));
    EXPECT(OUTLAST_OK, outlast_comm_free(survivors));
    EXPECT(OUTLAST_OK, outlast_comm_free(comm));
    EXPECT(OUTLAST_OK, outlast_barrier(job));
    EXPECT(OUTLAST_OK, outlast_leave(job));
    printf("ok\n");
    return 0;
}
