/*
 * The heat equation over MPI: the ranks divide the rows of a grid and exchange the rows at their
 * edges. The program outlasts the death of ranks: the survivors revoke and shrink the communicator,
 * restore the last checkpoint, divide the rows anew and go on. Lines that a program without that
 * does not have end with a plus.
 *
 *     mpirun --with-ft ulfm -n 4 heat 400          400 steps; each rank prints a checksum
 *     mpirun --with-ft ulfm -n 4 heat 400 2 130    rank 2 dies in step 130; an equal checksum
 */
#include <mpi.h>
#include <mpi-ext.h> /* + after mpi.h */
#include <outlast.h> /* + */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 48, WIDTH = 64, ROW = WIDTH * sizeof(double) };

static MPI_Comm comm = MPI_COMM_WORLD;
static MPI_Request sends[2]; /* of the step before */
static outlast_regions *saved; /* + */

/* The rows of a rank: their number, and the first of them. */
static int share(int rank, int size, int *first) {
    *first = ROWS * rank / size;
    return ROWS * (rank + 1) / size - *first;
}

static void start(double *cells, int first, int rows) {
    for (int row = 0; row < rows; row++)
        for (int at = 0; at < WIDTH; at++)
            cells[(row + 1) * WIDTH + at] = (first + row) * 37 % 101 + at * 0.5;
}

/* Exchanges the rows at the edges with the neighbours. Open MPI 5.0.11 ends the program if a send
 * fails, by a death or a revocation, after its request was freed, and waiting frees a request. So
 * the sends of a step are waited for in the next step, when the rows of the neighbours say that the
 * neighbours have them, and never after an error. */
static int exchange(double *cells, int rows, int rank, int size) {
    static double sent[2][2][WIDTH];
    static int turn;
    MPI_Request receives[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL}, now[2];
    int above = rank > 0 ? rank - 1 : MPI_PROC_NULL;
    int below = rank < size - 1 ? rank + 1 : MPI_PROC_NULL;
    double *last = cells + rows * WIDTH, (*edges)[WIDTH] = sent[turn ^= 1];
    memcpy(edges[0], cells + WIDTH, ROW);
    memcpy(edges[1], last, ROW);
    int status = MPI_Irecv(cells, WIDTH, MPI_DOUBLE, above, 0, comm, &receives[0]);
    if (!status) status = MPI_Irecv(last + WIDTH, WIDTH, MPI_DOUBLE, below, 0, comm, &receives[1]);
    if (!status) status = MPI_Isend(edges[0], WIDTH, MPI_DOUBLE, above, 0, comm, &now[0]);
    if (!status) status = MPI_Isend(edges[1], WIDTH, MPI_DOUBLE, below, 0, comm, &now[1]);
    if (!status) status = MPI_Waitall(2, receives, MPI_STATUSES_IGNORE);
    if (!status) status = MPI_Waitall(2, sends, MPI_STATUSES_IGNORE);
    if (!status) {
        memcpy(sends, now, sizeof now);
        return 0;
    }
    MPIX_Comm_revoke(comm); /* + this ends the waits of all ranks, and so the receives, */
    for (int at = 0; at < 2; at++) /* + which must not write into cells that are freed */
        if (receives[at] != MPI_REQUEST_NULL) MPI_Wait(&receives[at], MPI_STATUS_IGNORE); /* + */
    return 1;
}

/* Saves the cells as a version. All ranks agree before it that no rank has died, so that no rank
 * waits in outlast_checkpoint for a rank that waits in MPI. */
static int save(long version) { /* + */
    int is_fine = 1; /* + */
    if (MPIX_Comm_agree(comm, &is_fine) || !is_fine) return 1; /* + */
    return outlast_checkpoint(saved, version, NULL, 0); /* + */
} /* + */

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

/* Dies if the arguments name this rank of MPI_COMM_WORLD, followed by this step. */
static void die_if_named(char **named, long step) {
    int me;
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    for (; named[0] && named[1]; named += 2)
        if (atol(named[0]) == me && atol(named[1]) == step) raise(SIGKILL);
}

/* Computes with the ranks of the communicator, from `step` on. Returns 0 if all steps are done, a
 * positive number if a rank died, and a negative code of outlast.h after another error. */
static int solve(long step, long steps, int is_restored, char **named) {
    int rank, size, first, status = 0, is_fine = 0;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    sends[0] = sends[1] = MPI_REQUEST_NULL;
    int rows = share(rank, size, &first);
    double *cells = calloc(rows + 2, ROW), *next = calloc(rows + 2, ROW);
    if (!is_restored) /* + */
        start(cells, first, rows);
    else if ((status = outlast_region_read(saved, OUTLAST_ALL, "cells", /* + */
                                           first * ROW, cells + WIDTH, rows * ROW))) /* + */
        goto end; /* + */
    outlast_protect(saved, "cells", cells + WIDTH, rows * ROW); /* + */
    for (; step < steps; step++) {
        if (step % 20 == 0) /* + */
            if ((status = save(step))) goto end; /* + */
        die_if_named(named, step);
        if ((status = exchange(cells, rows, rank, size))) {
            MPIX_Comm_agree(comm, &is_fine); /* + with the ranks that are in `save` or come to it */
            goto end;
        }
        advance(cells, next, first, rows);
    }
    status = save(steps); /* + */
end:
    outlast_protect(saved, "cells", NULL, 0); /* + */
    free(cells);
    free(next);
    return status;
}

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, outlast_error());
    return 1;
}

int main(int count, char **arguments) {
    int provided, status, size, before, now = 0;
    MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &provided);
    long steps = count > 1 ? atol(arguments[1]) : 100;
    char **named = arguments + (count > 1 ? 2 : 1);
    outlast_job *job; /* + */
    outlast_store *store; /* + */
    outlast_restored at; /* + */
    outlast_options options = {sizeof options, .replicas = 3, .allow_fewer = 1}; /* + */
    outlast_region_options pieces = /* + */
        {sizeof pieces, ROWS * ROW, .set = 4, .lose = 2, .piece = 1024}; /* + */
    if (outlast_join_mpi(MPI_COMM_WORLD, 1, &job) || outlast_open(job, &options, &store)) /* + */
        return fail("joining"); /* + */
    if (outlast_regions_open(store, "heat", &pieces, &saved)) return fail("opening"); /* + */
    if ((status = outlast_restore(saved, &at)) < 0) return fail("restoring"); /* + */
    while ((status = solve(at.version, steps, status != OUTLAST_ABSENT, named)) > 0) { /* + */
        MPI_Comm old = comm; /* + a rank died */
        MPIX_Comm_revoke(old); /* + */
        if (MPIX_Comm_shrink(old, &comm)) return fail("shrinking"); /* + */
        if ((status = outlast_restore(saved, &at)) < 0) return fail("restoring"); /* + */
        MPI_Comm_size(comm, &size); /* + */
        before = now, now = at.size + size; /* + */
        if (now == before) return fail("no rank died; the error has another reason"); /* + */
    } /* + */
    if (status < 0) return fail("solving"); /* + */

    double *all = malloc(ROWS * ROW);
    uint64_t sum = 14695981039346656037u;
    if (outlast_region_read(saved, OUTLAST_ALL, "cells", 0, all, ROWS * ROW)) return fail("read");
    for (size_t byte = 0; byte < ROWS * ROW; byte++)
        sum = (sum ^ ((unsigned char *)all)[byte]) * 1099511628211u;
    printf("%016llx\n", (unsigned long long)sum);
    fflush(stdout);
    free(all);
    if (outlast_regions_close(saved) || outlast_close(store)) return fail("closing"); /* + */
    if (outlast_leave(job)) return fail("leaving"); /* + */
    /* + After a death MPI_Finalize may hang. No rank comes here before all closed the store. */
    if (comm != MPI_COMM_WORLD) _exit(0); /* + */
    MPI_Waitall(2, sends, MPI_STATUSES_IGNORE);
    return MPI_Finalize();
}
