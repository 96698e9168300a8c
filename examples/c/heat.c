/*
 * The heat equation on a grid of rows, divided among the members of a job, which outlasts the death
 * of members: the survivors divide the rows anew and go on from the last checkpoint. Lines that the
 * program would not have without that end with a plus.
 *
 *     outlast run -n 4 heat 400          400 steps; each member prints a checksum of the result
 *     outlast run -n 4 heat 400 2 130    member 2 kills itself in step 130; an equal checksum
 */
#include "outlast.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 48, WIDTH = 64, ROW = WIDTH * sizeof(double) };

static outlast_job *job;
static outlast_store *store;
static uint64_t epoch; /* + */

/* The rows of a member: their number, and the first of them. */
static int share(int rank, int size, int *first) {
    *first = ROWS * rank / size;
    return ROWS * (rank + 1) / size - *first;
}

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, outlast_error());
    return 1;
}

/* Sends a row to a neighbour, by a key that names sender and step. */
static int send_row(const double *row, long step, int rank, int size, char side) {
    char key[64];
    snprintf(key, sizeof key, "halo/%d/%d/%c/%ld", size, rank, side, step - 2);
    outlast_delete(store, key, strlen(key));
    snprintf(key, sizeof key, "halo/%d/%d/%c/%ld", size, rank, side, step);
    return outlast_put(store, key, strlen(key), row, ROW, NULL);
}

static int receive_row(double *row, long step, int rank, int size, char side) {
    char key[64];
    int status;
    snprintf(key, sizeof key, "halo/%d/%d/%c/%ld", size, rank, side, step);
    do {
        status = outlast_wait(store, key, strlen(key), NULL, 20, -1, row, ROW, NULL, NULL);
        if (status == OUTLAST_ABSENT && outlast_epoch(store) != epoch) return 1; /* + */
    } while (status == OUTLAST_ABSENT);
    return status;
}

/* Exchanges the rows at the edges with the neighbours. */
static int exchange(double *cells, int rows, long step, int rank, int size) {
    if (rank > 0 && send_row(cells + WIDTH, step, rank, size, 'u')) return 1;
    if (rank < size - 1 && send_row(cells + rows * WIDTH, step, rank, size, 'd')) return 1;
    if (rank > 0 && receive_row(cells, step, rank - 1, size, 'd')) return 1;
    if (rank < size - 1) return receive_row(cells + (rows + 1) * WIDTH, step, rank + 1, size, 'u');
    return 0;
}

static void start(double *cells, int first, int rows) {
    for (int row = 0; row < rows; row++)
        for (int at = 0; at < WIDTH; at++)
            cells[(row + 1) * WIDTH + at] = (first + row) * 37 % 101 + at * 0.5;
}

static void advance(double *cells, double *next, int first, int rows) {
    for (int row = 1; row <= rows; row++) {
        for (int at = 0; at < WIDTH; at++) {
            int edge = at == 0 || at == WIDTH - 1 || first + row == 1 || first + row == ROWS;
            const double *here = cells + row * WIDTH + at;
            next[row * WIDTH + at] = edge ? *here
                : *here + 0.1 * (here[-1] + here[1] + here[-WIDTH] + here[WIDTH] - 4 * *here);
        }
    }
    memcpy(cells + WIDTH, next + WIDTH, rows * ROW);
}

int main(int count, char **arguments) {
    long steps = count > 1 ? atol(arguments[1]) : 100;
    long victim = count > 3 ? atol(arguments[2]) : -1, last = count > 3 ? atol(arguments[3]) : -1;
    outlast_options options = {sizeof options, .replicas = 3, .allow_fewer = 1};
    if (outlast_join(&job) || outlast_open(job, &options, &store)) return fail("joining");
    int status = 0, first, rows, rank, size; /* + */
    long step = 0;
    double *cells = NULL, *next = calloc((ROWS + 2) * WIDTH, sizeof *next);
    outlast_regions *saved; /* + */
    outlast_restored at; /* + */
    outlast_region_options pieces = {sizeof pieces, ROWS * ROW, .set = 4, .piece = 1024}; /* + */
    if (outlast_regions_open(store, "heat", &pieces, &saved)) return fail("opening"); /* + */
again: /* + */
    if (status < 0) return fail("going on"); /* + */
    epoch = outlast_epoch(store); /* + */
    outlast_protect(saved, "cells", NULL, 0); /* + */
    if ((status = outlast_restore(saved, &at)) < 0) return fail("restoring"); /* + */
    rank = at.rank, size = at.size; /* + */
    rows = share(rank, size, &first);
    cells = realloc(cells, (rows + 2) * ROW);
    memset(cells, 0, (rows + 2) * ROW);
    if (status == OUTLAST_ABSENT) /* + */
        start(cells, first, rows);
    else if ((status = outlast_region_read(saved, OUTLAST_ALL, "cells", /* + */
                                           first * ROW, cells + WIDTH, rows * ROW))) /* + */
        goto again; /* + */
    outlast_protect(saved, "cells", cells + WIDTH, rows * ROW); /* + */
    for (step = at.version; step < steps; step++) {
        if (step % 20 == 0) /* + */
            if ((status = outlast_checkpoint(saved, step, NULL, 0))) goto again; /* + */
        if ((long)outlast_me(job) == victim && step == last) raise(SIGKILL);
        if ((status = exchange(cells, rows, step, rank, size))) goto again; /* + */
        advance(cells, next, first, rows);
    }
    if ((status = outlast_checkpoint(saved, steps, NULL, 0))) goto again; /* + */

    double *all = malloc(ROWS * ROW);
    uint64_t sum = 14695981039346656037u;
    if (outlast_region_read(saved, OUTLAST_ALL, "cells", 0, all, ROWS * ROW)) return fail("read");
    for (size_t byte = 0; byte < ROWS * ROW; byte++)
        sum = (sum ^ ((unsigned char *)all)[byte]) * 1099511628211u;
    printf("%016llx\n", (unsigned long long)sum);
    if (outlast_regions_close(saved) || outlast_close(store)) return fail("closing");
    return outlast_leave(job);
}
