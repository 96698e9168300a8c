/*
 * The failure-free half of `outlast bench ulfm` on Open MPI 5: agree, dup + free and shrink + free, in blocks that
 * take turns, as our own members do it. Rank 0 prints one line per operation with the samples of all ranks, in
 * nanoseconds. Compiled and started by `outlast bench ulfm --peers openmpi`.
 *
 * Without the half with failures: with a killed rank, Open MPI 5.0.11 on one host agreed and shrank, but the survivors
 * did not return from MPI_Finalize (within 45 s, with 2 and with 4 ranks), and with 4 ranks agree went on to report a
 * failure that all survivors had acknowledged.
 *
 * usage: mpirun --with-ft ulfm -n N openmpi_ulfm ITERATIONS MILLISECONDS
 */
#include <mpi.h>
#include <mpi-ext.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { AGREE, DUP, SHRINK, OPERATIONS };
enum { BLOCK = 20 };
static const char *const names[OPERATIONS] = {"agree", "dup", "shrink"};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void check(int code, const char *what) {
    if (code != MPI_SUCCESS) {
        fprintf(stderr, "openmpi_ulfm: %s returned %d\n", what, code);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void once(int operation, MPI_Comm comm) {
    MPI_Comm made;
    int flag = 1;
    switch (operation) {
    case AGREE:
        check(MPIX_Comm_agree(comm, &flag), "MPIX_Comm_agree");
        return;
    case DUP:
        check(MPI_Comm_dup(comm, &made), "MPI_Comm_dup");
        break;
    default:
        check(MPIX_Comm_shrink(comm, &made), "MPIX_Comm_shrink");
        break;
    }
    check(MPI_Comm_free(&made), "MPI_Comm_free");
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm comm;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    check(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int wanted = argc > 1 ? atoi(argv[1]) : 100;
    uint64_t limit_ns = (argc > 2 ? (uint64_t)atoll(argv[2]) : 1000) * 1000000u;
    uint64_t *samples[OPERATIONS];
    for (int operation = 0; operation < OPERATIONS; operation++) {
        samples[operation] = calloc((size_t)wanted + 1, sizeof(uint64_t));
        if (!samples[operation]) {
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    /* The first calls set up connections. */
    for (int operation = 0; operation < OPERATIONS; operation++) {
        once(operation, comm);
    }
    uint64_t began_ns = now_ns();
    int done = 0, more = wanted > 0;
    while (more) {
        int block = wanted - done < BLOCK ? wanted - done : BLOCK;
        for (int operation = 0; operation < OPERATIONS; operation++) {
            for (int i = 0; i < block; i++) {
                uint64_t from_ns = now_ns();
                once(operation, comm);
                samples[operation][done + i] = now_ns() - from_ns;
            }
        }
        done += block;
        more = done < wanted && now_ns() - began_ns < limit_ns;
        /* All stop together: the bitwise and of whether each would go on. */
        check(MPIX_Comm_agree(comm, &more), "MPIX_Comm_agree");
    }
    uint64_t *all = rank == 0 ? calloc((size_t)size * ((size_t)done + 1), sizeof(uint64_t)) : NULL;
    for (int operation = 0; operation < OPERATIONS; operation++) {
        check(MPI_Gather(samples[operation], done, MPI_UINT64_T, all, done, MPI_UINT64_T, 0, comm), "MPI_Gather");
        if (rank == 0) {
            printf("%s", names[operation]);
            for (int i = 0; i < size * done; i++) {
                printf(" %llu", (unsigned long long)all[i]);
            }
            printf("\n");
        }
    }
    fflush(stdout);
    MPI_Comm_free(&comm);
    MPI_Finalize();
    return 0;
}
