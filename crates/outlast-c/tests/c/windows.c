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
    EXPECT(OUTLAST_TIMEOUT, outlast_request_wait_within(request, 10, buffer, sizeof buffer, &len,
                                                        NULL, NULL));
    EXPECT(OUTLAST_OK, outlast_comm_barrier(comm));
    EXPECT(OUTLAST_OK, outlast_comm_send(comm, next, 8, "later", 5));
    EXPECT(OUTLAST_TOO_SMALL,
           outlast_request_wait_within(request, 30000, buffer, 1, &len, NULL, NULL));
    EXPECT(OUTLAST_OK, outlast_request_wait(request, buffer, sizeof buffer, &len, &sender, NULL));
    CHECK(len == 5 && sender == before && memcmp(buffer, "later", 5) == 0);
    EXPECT(OUTLAST_OVER, outlast_request_test(request, buffer, sizeof buffer, &len, NULL, NULL));
    outlast_request_free(request);
    /* A member interrupts its own next wait. */
    EXPECT(OUTLAST_OK, outlast_comm_interrupt(comm, me));
    EXPECT(OUTLAST_INTERRUPTED,
           outlast_comm_receive(comm, before, 9, buffer, sizeof buffer, &len, NULL, NULL));
}

static void requests(uint32_t me, uint32_t size) {
    char buffer[16];
    size_t len = 0, index = 9;
    uint32_t sender = 99, rank = 99, next = (me + 1) % size, before = (me + size - 1) % size;
    EXPECT(OUTLAST_OK, outlast_comm_rank_of(comm, next, &rank));
    CHECK(rank == next);
    EXPECT(OUTLAST_ABSENT, outlast_comm_rank_of(comm, size, &rank));
    /* Of two receives and a send the send is complete first, then what comes. */
    outlast_request *list[3], *twice[2];
    EXPECT(OUTLAST_OK, outlast_comm_start_receive(comm, before, 20, &list[0]));
    EXPECT(OUTLAST_OK, outlast_comm_start_receive(comm, before, 21, &list[1]));
    EXPECT(OUTLAST_ABSENT, outlast_request_test_any(list, 2, &index));
    EXPECT(OUTLAST_OK, outlast_comm_barrier(comm));
    EXPECT(OUTLAST_OK, outlast_comm_start_send(comm, next, 21, "second", 6, &list[2]));
    EXPECT(OUTLAST_OK, outlast_request_wait(list[2], buffer, sizeof buffer, &len, &sender, NULL));
    CHECK(len == 0 && sender == me);
    EXPECT(OUTLAST_OK, outlast_request_wait_any(list, 3, &index));
    CHECK(index == 1);
    /* A message that does not fit stays, and is found again. */
    EXPECT(OUTLAST_TOO_SMALL, outlast_request_wait(list[1], buffer, 3, &len, NULL, NULL));
    EXPECT(OUTLAST_OK, outlast_request_test_any(list, 3, &index));
    CHECK(index == 1 && len == 6);
    EXPECT(OUTLAST_OK, outlast_request_wait(list[1], buffer, sizeof buffer, &len, &sender, NULL));
    CHECK(len == 6 && sender == before && memcmp(buffer, "second", 6) == 0);
    EXPECT(OUTLAST_OK, outlast_comm_barrier(comm));
    EXPECT(OUTLAST_OK, outlast_comm_send(comm, next, 20, "first", 5));
    int statuses[3] = {9, 9, 9};
    EXPECT(OUTLAST_OK, outlast_request_wait_all(list, 3, statuses));
    CHECK(statuses[0] == OUTLAST_OK);
    CHECK(statuses[1] == OUTLAST_OVER && statuses[2] == OUTLAST_OVER);
    EXPECT(OUTLAST_OK, outlast_request_wait_all(list, 3, statuses));
    CHECK(statuses[0] == OUTLAST_OK);
    EXPECT(OUTLAST_OK, outlast_request_test(list[0], buffer, sizeof buffer, &len, NULL, NULL));
    CHECK(len == 5 && memcmp(buffer, "first", 5) == 0);
    EXPECT(OUTLAST_OVER, outlast_request_wait_any(list, 3, &index));
    EXPECT(OUTLAST_OVER, outlast_request_test_any(list, 3, &index));
    twice[0] = twice[1] = list[0];
    EXPECT(OUTLAST_INVALID, outlast_request_wait_any(twice, 2, &index));
    for (int at = 0; at < 3; at++) outlast_request_free(list[at]);
}

/* Operations of a window as requests, with results of their own. */
static void operations(outlast_window *window, uint32_t me) {
    enum { PUT, SUM, LEAST, ADD, LOWER, SWAP, REQUESTS };
    outlast_window_request *list[REQUESTS], *get;
    uint64_t one = 1, word = 9, found[3] = {0, 0, 0}, aside = 9;
    int64_t minus = -4, least = 9;
    size_t len = 9;
    char buffer[8];
    EXPECT(OUTLAST_OK, outlast_window_start_put(window, me, 0, "request", 8, &list[PUT]));
    EXPECT(OUTLAST_OK, outlast_window_start_accumulate_u64(window, me, 8, OUTLAST_OP_SUM, &one, 1,
                                                           &list[SUM]));
    EXPECT(OUTLAST_OK, outlast_window_start_accumulate_i64(window, me, 16, OUTLAST_OP_MIN, &minus,
                                                           1, &list[LEAST]));
    for (int at = 0; at <= LEAST; at++) {
        EXPECT(OUTLAST_OK, outlast_window_request_wait(list[at], buffer, sizeof buffer, &len));
    }
    EXPECT(OUTLAST_OK, outlast_window_start_fetch_and_op_u64(window, me, 8, OUTLAST_OP_SUM, 6,
                                                             &list[ADD]));
    EXPECT(OUTLAST_OK, outlast_window_start_fetch_and_op_i64(window, me, 16, OUTLAST_OP_MIN, -5,
                                                             &list[LOWER]));
    EXPECT(OUTLAST_OK,
           outlast_window_start_compare_and_swap(window, me, 24, 0, 9, &list[SWAP]));
    EXPECT(OUTLAST_TOO_SMALL, outlast_window_request_wait(list[ADD], &word, 4, &len));
    EXPECT(OUTLAST_OK, outlast_window_request_test(list[ADD], &word, sizeof word, &len));
    CHECK(len == sizeof word && word == 1);
    EXPECT(OUTLAST_OK, outlast_window_request_wait(list[LOWER], &least, sizeof least, NULL));
    CHECK(least == -4);
    EXPECT(OUTLAST_OK, outlast_window_request_wait(list[SWAP], &word, sizeof word, NULL));
    CHECK(word == 0);
    EXPECT(OUTLAST_OVER, outlast_window_request_test(list[SWAP], &word, sizeof word, NULL));
    EXPECT(OUTLAST_OVER, outlast_window_request_wait(list[SWAP], &word, sizeof word, NULL));
    for (int at = 0; at < REQUESTS; at++) outlast_window_request_free(list[at]);
    EXPECT(OUTLAST_OK, outlast_window_start_get(window, me, 8, sizeof found, &get));
    int status;
    do status = outlast_window_request_test(get, found, sizeof found, &len);
    while (status == OUTLAST_ABSENT);
    CHECK(status == OUTLAST_OK && len == sizeof found);
    CHECK(found[0] == 7 && (int64_t)found[1] == -5 && found[2] == 9);
    outlast_window_request_free(get);
    /* A request that is given up goes on, and a flush completes it. */
    EXPECT(OUTLAST_OK, outlast_window_start_put(window, me, 0, "given up", 8, &get));
    outlast_window_request_free(get);
    EXPECT(OUTLAST_OK, outlast_window_flush(window, me));
    EXPECT(OUTLAST_OK, outlast_window_get(window, me, 0, buffer, sizeof buffer));
    CHECK(memcmp(buffer, "given up", 8) == 0);
    EXPECT(OUTLAST_INVALID, outlast_window_start_get(window, me, 60, 8, &get));
    EXPECT(OUTLAST_INVALID, outlast_window_start_fetch_and_op_u64(window, me, 4, OUTLAST_OP_SUM, 1,
                                                                  &get));
    EXPECT(OUTLAST_OK, outlast_window_bytes_aside(window, &aside));
    CHECK(aside == 0);
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
    requests(me, size);
    collectives(me, size);
    windows(me, size);
    outlast_window *window;
    EXPECT(OUTLAST_OK, outlast_window_open(comm, 64, &window));
    operations(window, me);
    EXPECT(OUTLAST_OK, outlast_comm_barrier(comm));
    outlast_request *last_request[2];
    outlast_window_request *lost;
    if (me != last) {
        EXPECT(OUTLAST_OK, outlast_comm_start_receive(comm, last, 30, &last_request[0]));
        EXPECT(OUTLAST_OK, outlast_comm_start_receive(comm, (me + 1) % last, 30, &last_request[1]));
    }
    if (me == last) {
        EXPECT(OUTLAST_OK, outlast_window_lock(window, 0, OUTLAST_LOCK_EXCLUSIVE));
    }
    /* By messages: others may still be inside of a barrier that the last member has left. */
    char buffer[8];
    if (me == last) {
        for (uint32_t rank = 0; rank < last; rank++)
            EXPECT(OUTLAST_OK,
                   outlast_comm_receive(comm, rank, 31, buffer, 8, NULL, NULL, NULL));
        printf("ready\n");
        fflush(stdout);
        for (;;) pause();
    }
    EXPECT(OUTLAST_OK, outlast_comm_send(comm, last, 31, NULL, 0));
    int statuses[2] = {9, 9};
    EXPECT(OUTLAST_PROC_FAILED, outlast_request_wait_all(last_request, 2, statuses));
    CHECK(statuses[0] == OUTLAST_PROC_FAILED && statuses[1] == OUTLAST_PROC_FAILED_PENDING);
    for (int at = 0; at < 2; at++) outlast_request_free(last_request[at]);
    EXPECT(OUTLAST_PROC_FAILED, outlast_window_start_put(window, last, 0, "x", 1, &lost));
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
