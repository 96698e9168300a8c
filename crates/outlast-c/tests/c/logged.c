/*
 * A job of C programs on seats with logs. In the middle the holder of the last seat reports that it
 * is ready to be killed. Another member takes its seat and repeats what it did, with the numbers
 * that it had seen outside of the seats, and the functions of all other seats go on: they are
 * called once, and no call of theirs fails.
 */
#include "check.h"
#include <time.h>

enum { STEPS = 20, READY = 12, BYTES = 4096, SEATS = 4 };

/* Hands a code of a call on, as the function of a seat has to. */
#define TRY(call) \
    do { \
        int code = (call); \
        if (code != OUTLAST_OK) return code; \
    } while (0)

static outlast_job *job;
static int calls[SEATS];

/* A number that no other look sees. */
static int look(void *context, void *buffer, size_t capacity, size_t *len) {
    CHECK(context == &job && capacity >= 8);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t seen = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    memcpy(buffer, &seen, sizeof seen);
    *len = sizeof seen;
    return 0;
}

static int look_too_far(void *context, void *buffer, size_t capacity, size_t *len) {
    (void)context;
    (void)buffer;
    *len = capacity + 1;
    return 0;
}

static int look_in_vain(void *context, void *buffer, size_t capacity, size_t *len) {
    (void)context;
    (void)buffer;
    (void)capacity;
    (void)len;
    return 77;
}

/* In each step a seat puts what it has seen into its own memory and into that of its neighbour, and
 * reads what its other neighbour has put. */
static int body(void *context, const outlast_seat *seat) {
    CHECK(context == &job);
    uint32_t me = outlast_seat_number(seat), seats = outlast_seat_count(seat);
    uint32_t right = (me + 1) % seats;
    CHECK(seats == SEATS && outlast_seat_note(seat, NULL, 0, NULL) == OUTLAST_ABSENT);
    calls[me]++;
    uint64_t seen[STEPS], found[STEPS], there = 0;
    size_t len = 0;
    for (uint64_t step = 0; step < STEPS; step++) {
        TRY(outlast_seat_remember(seat, look, &job, &seen[step], sizeof seen[step], &len));
        CHECK(len == sizeof seen[step]);
        TRY(outlast_seat_put(seat, me, 1024 + 8 * step, &seen[step], sizeof seen[step]));
        TRY(outlast_seat_put(seat, right, 8 * step, &seen[step], sizeof seen[step]));
        TRY(outlast_seat_barrier(seat));
        TRY(outlast_seat_get(seat, right, 8 * step, &there, sizeof there));
        CHECK(there == seen[step]);
        if (step == READY && outlast_me(job) == SEATS - 1) {
            printf("ready\n");
            fflush(stdout);
            for (;;) pause();
        }
        TRY(outlast_seat_barrier(seat));
    }
    TRY(outlast_seat_get(seat, me, 1024, found, sizeof found));
    CHECK(memcmp(found, seen, sizeof seen) == 0);
    TRY(outlast_seat_get(seat, right, 0, found, sizeof found));
    CHECK(memcmp(found, seen, sizeof seen) == 0);
    EXPECT(77, outlast_seat_remember(seat, look_in_vain, NULL, seen, 8, NULL));
    EXPECT(OUTLAST_INVALID, outlast_seat_remember(seat, look_too_far, NULL, seen, 8, NULL));
    EXPECT(OUTLAST_INVALID, outlast_seat_remember(seat, NULL, NULL, seen, 8, NULL));
    return 0;
}

int main(void) {
    EXPECT(OUTLAST_OK, outlast_join(&job));
    EXPECT(OUTLAST_OK, outlast_open(job, NULL, &store));
    uint32_t me = outlast_me(job);
    outlast_seat_options options = {.struct_size = sizeof options, .bytes = BYTES, .set = SEATS,
                                    .interval_ms = 1000000, .logs = 1000};
    EXPECT(OUTLAST_INVALID, outlast_seats_run(store, &options, body, &job));
    CHECK(strstr(outlast_error(), "4096") != NULL);
    options.logs = 1 << 20;
    EXPECT(OUTLAST_OK, outlast_seats_run(store, &options, body, &job));
    CHECK(calls[me] == 1);
    EXPECT(OUTLAST_OK, outlast_close(store));
    EXPECT(OUTLAST_OK, outlast_barrier(job));
    EXPECT(OUTLAST_OK, outlast_leave(job));
    printf("ok\n");
    return 0;
}
