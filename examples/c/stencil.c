/*
 * A stencil on seats, ranks with memory that outlives their processes. Each seat has a part of a
 * ring of cells, and puts the cells at its ends into the memory of its neighbours. When a member
 * dies, another one takes its seat, and all seats go on from the last point. Lines that the program
 * would not have without that end with a plus.
 *
 *     outlast run -n 4 stencil 40                40 steps; each member prints the sum of all cells
 *     outlast run -n 4 stencil 40 2 17           member 2 kills itself in step 17; an equal sum
 *     outlast run -n 4 stencil 40 2 17 logged    with logs, which are experimental: the other
 *                                                seats notice nothing
 */
#include "outlast.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { CELLS = 500, WORD = sizeof(uint64_t), SEATS_MAX = 64 };
/* Where the sums of the seats are, in the memory of seat 0. */
enum { SUMS_AT = (CELLS + 2) * WORD, BYTES = SUMS_AT + SEATS_MAX * WORD };

#define TRY(call) \
    do { \
        int code = (call); \
        if (code) return code; \
    } while (0)

static outlast_job *job;
static long victim = -1, last = -1;
static uint64_t steps, sum;

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, outlast_error());
    return 1;
}

/* The cells that a seat begins with. */
static void start(uint64_t *cells, uint32_t seat) {
    for (uint64_t cell = 0; cell < CELLS; cell++) cells[cell] = (seat * 1000 + cell) % 97;
}

/* A step of so many cells, which have their neighbours at both ends. */
static void advance(const uint64_t *cells, uint64_t *next, size_t count) {
    for (size_t at = 0; at < count; at++)
        next[at] = (cells[at] + cells[at + 1] + cells[at + 2]) / 3 + cells[at + 1] % 5;
}

/* What a seat does, from its last point on. */
static int compute(void *context, const outlast_seat *seat) {
    uint32_t me = outlast_seat_number(seat), seats = outlast_seat_count(seat);
    uint32_t left = (me + seats - 1) % seats, right = (me + 1) % seats;
    uint64_t cells[CELLS + 2], next[CELLS], sums[SEATS_MAX], step = 0, own = 0;
    (void)context;
    if (outlast_seat_note(seat, &step, sizeof step, NULL) == OUTLAST_ABSENT) { /* + */
        start(next, me);
        TRY(outlast_seat_put(seat, me, WORD, next, sizeof next));
    }
    while (step < steps) {
        TRY(outlast_seat_get(seat, me, WORD, next, sizeof next));
        TRY(outlast_seat_put(seat, left, (CELLS + 1) * WORD, &next[0], WORD));
        TRY(outlast_seat_put(seat, right, 0, &next[CELLS - 1], WORD));
        TRY(outlast_seat_barrier(seat));
        TRY(outlast_seat_get(seat, me, 0, cells, sizeof cells));
        advance(cells, next, CELLS);
        TRY(outlast_seat_put(seat, me, WORD, next, sizeof next));
        if ((long)outlast_me(job) == victim && (long)step == last) raise(SIGKILL);
        step++;
        TRY(outlast_seat_barrier_point(seat, &step, sizeof step, NULL)); /* was: a barrier */
    }
    TRY(outlast_seat_get(seat, me, WORD, next, sizeof next));
    for (size_t at = 0; at < CELLS; at++) own += next[at];
    TRY(outlast_seat_put(seat, 0, SUMS_AT + me * WORD, &own, sizeof own));
    TRY(outlast_seat_barrier(seat));
    TRY(outlast_seat_get(seat, 0, SUMS_AT, sums, sizeof sums));
    own = 0;
    for (uint32_t at = 0; at < seats; at++) own += sums[at];
    sum = own;
    return 0;
}

/* The sum at the end, computed without seats. */
static uint64_t expected(uint32_t seats) {
    size_t count = (size_t)seats * CELLS;
    uint64_t *cells = calloc(count + 2, WORD), *next = calloc(count, WORD), all = 0;
    for (uint32_t seat = 0; seat < seats; seat++) start(cells + 1 + seat * CELLS, seat);
    for (uint64_t step = 0; step < steps; step++) {
        cells[0] = cells[count];
        cells[count + 1] = cells[1];
        advance(cells, next, count);
        for (size_t at = 0; at < count; at++) cells[at + 1] = next[at];
    }
    for (size_t at = 0; at < count; at++) all += cells[at + 1];
    free(cells);
    free(next);
    return all;
}

int main(int argc, char **argv) {
    outlast_store *store;
    steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 40;
    if (argc > 3) victim = atol(argv[2]), last = atol(argv[3]);
    if (outlast_join(&job) || outlast_open(job, NULL, &store)) return fail("joining");
    outlast_seat_options options = {.struct_size = sizeof options, .bytes = BYTES, .set = 4,
                                    .piece = 1024};
    if (argc > 4) options.logs = 1 << 20, options.interval_ms = 100;
    if (outlast_seats_run(store, &options, compute, NULL)) return fail("computing");
    if (sum != expected(outlast_members(job))) return fail("a wrong sum");
    printf("%llu\n", (unsigned long long)sum);
    if (outlast_close(store)) return fail("closing");
    return outlast_leave(job);
}
