/*
 * A transform of a matrix on seats, as the Fourier transform of a plane: each seat has some rows. A
 * step transforms each row, and puts the rows as columns into the memory of all seats. When a member
 * dies, another one takes its seat, and all seats go on from the last point.
 *
 *     outlast run -n 4 transform 20                20 steps; each member prints a sum of the matrix
 *     outlast run -n 4 transform 20 2 7            member 2 kills itself in step 7; an equal sum
 *     outlast run -n 4 transform 20 2 7 logged     with logs, which are experimental: the other
 *                                                  seats notice nothing
 */
#include "outlast.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

/* The rows of a seat. All numbers are below a prime number: the transform is exact. */
enum { ROWS = 8, PRIME = 65537, WORD = sizeof(uint64_t), SEATS_MAX = 16 };

#define TRY(call) \
    do { \
        int code = (call); \
        if (code) return code; \
    } while (0)

static outlast_job *job;
static long victim = -1, last = -1;
static uint64_t steps, sum, width;

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, outlast_error());
    return 1;
}

static uint64_t start(uint64_t row, uint64_t column) {
    return (row * row + 7 * column) % PRIME;
}

/* A number of the transform of a row: the value of a polynomial with these coefficients. */
static uint64_t transformed(const uint64_t *row, uint64_t column) {
    uint64_t value = 0;
    for (uint64_t at = width; at-- > 0;) value = (value * (column + 2) + row[at]) % PRIME;
    return value;
}

/* A sum that tells rows and columns apart. */
static uint64_t sum_of(const uint64_t *row, uint64_t number) {
    uint64_t all = 0;
    for (uint64_t at = 0; at < width; at++) all += row[at] * (1 + number * 31 + at);
    return all;
}

/* What a seat does, from its last point on. A matrix is read while the next one is put beside it,
 * and behind them are the sums of all seats. */
static int compute(void *context, const outlast_seat *seat) {
    uint32_t me = outlast_seat_number(seat), seats = outlast_seat_count(seat);
    uint64_t rows[ROWS][ROWS * SEATS_MAX], part[ROWS], sums[SEATS_MAX], step = 0, own = 0;
    uint64_t row_len = width * WORD, matrix_len = ROWS * row_len;
    (void)context;
    if (outlast_seat_note(seat, &step, sizeof step, NULL) == OUTLAST_ABSENT) {
        for (uint64_t row = 0; row < ROWS; row++) {
            for (uint64_t at = 0; at < width; at++) rows[row][at] = start(me * ROWS + row, at);
            TRY(outlast_seat_put(seat, me, row * row_len, rows[row], row_len));
        }
    }
    for (;;) {
        for (uint64_t row = 0; row < ROWS; row++)
            TRY(outlast_seat_get(seat, me, step % 2 * matrix_len + row * row_len, rows[row],
                                 row_len));
        if (step == steps) break;
        for (uint64_t column = 0; column < width; column++) {
            /* The own part of a row of the next matrix. */
            for (uint64_t row = 0; row < ROWS; row++) part[row] = transformed(rows[row], column);
            uint64_t at = (step + 1) % 2 * matrix_len + column % ROWS * row_len + me * ROWS * WORD;
            TRY(outlast_seat_put(seat, (uint32_t)(column / ROWS), at, part, sizeof part));
        }
        if ((long)outlast_me(job) == victim && (long)step == last) raise(SIGKILL);
        step++;
        TRY(outlast_seat_barrier_point(seat, &step, sizeof step, NULL));
    }
    for (uint64_t row = 0; row < ROWS; row++) own += sum_of(rows[row], me * ROWS + row);
    TRY(outlast_seat_put(seat, 0, 2 * matrix_len + me * WORD, &own, sizeof own));
    TRY(outlast_seat_barrier(seat));
    TRY(outlast_seat_get(seat, 0, 2 * matrix_len, sums, sizeof sums));
    own = 0;
    for (uint32_t at = 0; at < seats; at++) own += sums[at];
    sum = own;
    return 0;
}

/* The sum at the end, computed without seats. */
static uint64_t expected(void) {
    uint64_t *matrix = calloc(width * width, WORD), *next = calloc(width * width, WORD), all = 0;
    for (uint64_t at = 0; at < width * width; at++) matrix[at] = start(at / width, at % width);
    for (uint64_t step = 0; step < steps; step++) {
        for (uint64_t at = 0; at < width * width; at++)
            next[at] = transformed(matrix + at % width * width, at / width);
        uint64_t *before = matrix;
        matrix = next;
        next = before;
    }
    for (uint64_t row = 0; row < width; row++) all += sum_of(matrix + row * width, row);
    free(matrix);
    free(next);
    return all;
}

int main(int argc, char **argv) {
    outlast_store *store;
    steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 20;
    if (argc > 3) victim = atol(argv[2]), last = atol(argv[3]);
    if (outlast_join(&job) || outlast_open(job, NULL, &store)) return fail("joining");
    if (outlast_members(job) > SEATS_MAX) return fail("more members than the program has room for");
    width = ROWS * (uint64_t)outlast_members(job);
    outlast_seat_options options = {.struct_size = sizeof options, .set = 4, .piece = 1024,
                                    .bytes = 2 * ROWS * width * WORD + SEATS_MAX * WORD};
    if (argc > 4) options.logs = 1 << 20, options.interval_ms = 100;
    if (outlast_seats_run(store, &options, compute, NULL)) return fail("computing");
    if (sum != expected()) return fail("a wrong sum");
    printf("%llu\n", (unsigned long long)sum);
    if (outlast_close(store)) return fail("closing");
    return outlast_leave(job);
}
