/*
 * A hash table on seats, ranks with memory that outlives their processes. Each seat has a part of
 * the cells, and all seats insert words by compare-and-swap and count them. When a member dies,
 * another one takes its seat, and all seats go on from the last point: each word is counted once.
 *
 *     outlast run -n 4 table 400          400 words of each seat; each member prints their sum
 *     outlast run -n 4 table 400 2 170    member 2 kills itself at its word 170; an equal sum
 */
#include "outlast.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

/* A cell is a word, 0 if the cell is free, and how often the word was inserted. */
enum { CELLS = 2048, CELL = 2 * sizeof(uint64_t), WORDS = 900, BATCH = 20 };
/* Where the sum of all words is added up, in the memory of seat 0. */
enum { SUM_AT = CELLS * CELL, BYTES = SUM_AT + sizeof(uint64_t) };

#define TRY(call) \
    do { \
        int code = (call); \
        if (code) return code; \
    } while (0)

static outlast_job *job;
static long victim = -1, last = -1;
static uint64_t inserts, sum;

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, outlast_error());
    return 1;
}

static uint64_t mixed(uint64_t number) {
    number *= 0x9e3779b97f4a7c15u;
    return ((number ^ number >> 29) * 0xbf58476d1ce4e5b9u) >> 32;
}

/* A word that a seat inserts. Several seats insert some of them. */
static uint64_t word_of(uint32_t seat, uint64_t number) {
    return 1 + mixed((uint64_t)seat << 32 | number) % WORDS;
}

/* Counts a word, in the first cell from its own on that is free or has the word. */
static int insert(const outlast_seat *seat, uint64_t word) {
    uint64_t cells = (uint64_t)CELLS * outlast_seat_count(seat), one = 1, found;
    for (uint64_t cell = mixed(word) % cells;; cell = (cell + 1) % cells) {
        uint32_t target = (uint32_t)(cell / CELLS);
        uint64_t at = cell % CELLS * CELL;
        TRY(outlast_seat_compare_and_swap(seat, target, at, 0, word, &found));
        if (found == 0 || found == word)
            return outlast_seat_accumulate_u64(seat, target, at + 8, OUTLAST_OP_SUM, &one, 1);
    }
}

/* What a seat does, from its last point on. */
static int fill(void *context, const outlast_seat *seat) {
    uint32_t me = outlast_seat_number(seat);
    uint64_t inserted = 0, own = 0, cells[2 * CELLS];
    (void)context;
    outlast_seat_note(seat, &inserted, sizeof inserted, NULL);
    while (inserted < inserts) {
        for (uint64_t end = inserted + BATCH; inserted < end && inserted < inserts; inserted++) {
            if ((long)outlast_me(job) == victim && (long)inserted == last) raise(SIGKILL);
            TRY(insert(seat, word_of(me, inserted)));
        }
        TRY(outlast_seat_barrier_point(seat, &inserted, sizeof inserted, NULL));
    }
    TRY(outlast_seat_get(seat, me, 0, cells, sizeof cells));
    for (size_t at = 0; at < CELLS; at++) own += cells[2 * at] * cells[2 * at + 1];
    TRY(outlast_seat_accumulate_u64(seat, 0, SUM_AT, OUTLAST_OP_SUM, &own, 1));
    TRY(outlast_seat_barrier(seat));
    return outlast_seat_get(seat, 0, SUM_AT, &sum, sizeof sum);
}

int main(int argc, char **argv) {
    outlast_store *store;
    inserts = argc > 1 ? strtoull(argv[1], NULL, 10) : 400;
    if (inserts > CELLS) return fail("more words than there are cells");
    if (argc > 3) victim = atol(argv[2]), last = atol(argv[3]);
    if (outlast_join(&job) || outlast_open(job, NULL, &store)) return fail("joining");
    outlast_seat_options options = {.struct_size = sizeof options, .bytes = BYTES, .set = 4,
                                    .piece = 1024};
    if (outlast_seats_run(store, &options, fill, NULL)) return fail("inserting");
    uint64_t expected = 0;
    for (uint32_t seat = 0; seat < outlast_members(job); seat++)
        for (uint64_t number = 0; number < inserts; number++) expected += word_of(seat, number);
    if (sum != expected) return fail("a wrong sum");
    printf("%llu\n", (unsigned long long)sum);
    if (outlast_close(store)) return fail("closing");
    return outlast_leave(job);
}
