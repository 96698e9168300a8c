/*
 * The operations of `outlast bench ulfm` on Open MPI 5. Compiled and started by `outlast bench ulfm
 * --peers openmpi`.
 *
 * A job without a failure calls agree, dup + free and shrink + free in blocks that take turns, like
 * the members of Outlast. A job with a failure has rank 0 kill the last rank while the other ranks
 * are in shrink, and then calls agree with that failure unacknowledged, and acknowledged. Rank 0
 * prints a line for each operation with the times of all (living) ranks, in nanoseconds, and
 * finally "end".
 *
 * After a failure, survivors of Open MPI 5.0.11 do not return from MPI_Finalize (within 45 s, with
 * 2 and with 4 ranks), so they end without it. With 4 ranks agree goes on to report a failure that
 * all survivors have acknowledged, so its time is taken whatever it returns.
 *
 * usage: mpirun --with-ft ulfm -n N openmpi_ulfm ITERATIONS MILLISECONDS [failure]
 */
#include "openmpi.h"
#include <mpi-ext.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { AGREE, DUP, SHRINK, OPERATIONS };
enum { BLOCK = 20 };
static const char *const names[OPERATIONS] = {"agree", "dup", "shrink"};

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

/* Rank 0 prints the samples of all ranks of a communicator. */
static void print(const char *name, const uint64_t *samples, int count, MPI_Comm comm) {
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    uint64_t *all = rank == 0 ? calloc((size_t)size * ((size_t)count + 1), sizeof(uint64_t)) : NULL;
    check(MPI_Gather(samples, count, MPI_UINT64_T, all, count, MPI_UINT64_T, 0, comm),
          "MPI_Gather");
    if (rank == 0) {
        printf("%s", name);
        for (int i = 0; i < size * count; i++) {
            printf(";%llu", (unsigned long long)all[i]);
        }
        printf("\n");
    }
    free(all);
}

/* Measures the operations with a failure. Does not return. */
static void with_failure(MPI_Comm comm, int wanted) {
    int rank, size, flag = 1;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int pid = (int)getpid();
    int *pids = calloc((size_t)size, sizeof(int));
    uint64_t *samples = calloc((size_t)wanted + 1, sizeof(uint64_t));
    check(MPI_Allgather(&pid, 1, MPI_INT, pids, 1, MPI_INT, comm), "MPI_Allgather");
    check(MPIX_Comm_agree(comm, &flag), "MPIX_Comm_agree");
    uint64_t began_ns = 0;
    if (rank == 0) {
        /* By then all other ranks sleep in shrink. */
        usleep(2000);
        began_ns = now_ns();
        kill(pids[size - 1], SIGKILL);
    }
    MPI_Comm survivors = comm, next;
    int members = size;
    while (members == size) {
        check(MPIX_Comm_shrink(survivors, &next), "MPIX_Comm_shrink");
        survivors = next;
        MPI_Comm_size(survivors, &members);
    }
    uint64_t ended_ns = now_ns();
    check(MPI_Bcast(&began_ns, 1, MPI_UINT64_T, 0, survivors), "MPI_Bcast");
    samples[0] = ended_ns - began_ns;
    print("shrink, failure after discovery", samples, 1, survivors);
    for (int is_acknowledged = 0; is_acknowledged < 2; is_acknowledged++) {
        for (int i = 0; i < wanted; i++) {
            uint64_t from_ns = now_ns();
            MPIX_Comm_agree(comm, &flag);
            samples[i] = now_ns() - from_ns;
        }
        const char *name =
            is_acknowledged ? "agree, failure acknowledged" : "agree, failure unacknowledged";
        print(name, samples, wanted, survivors);
        MPIX_Comm_failure_ack(comm);
    }
    MPI_Barrier(survivors);
    if (rank == 0) {
        printf("end\n");
        fflush(stdout);
    }
    /* The other ranks wait until the launcher ends the job: a rank that ended first would be a
       failure for the rest. */
    sleep(rank == 0 ? 0 : 1);
    _exit(0);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm comm;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    check(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
    int rank;
    MPI_Comm_rank(comm, &rank);
    int wanted = argc > 1 ? atoi(argv[1]) : 100;
    uint64_t limit_ns = (argc > 2 ? (uint64_t)atoll(argv[2]) : 1000) * 1000000u;
    if (argc > 3) {
        once(AGREE, comm);
        once(SHRINK, comm);
        with_failure(comm, wanted < 100 ? wanted : 100);
    }
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
        /* All ranks stop together: agree gives the bitwise and of whether each would go on. */
        check(MPIX_Comm_agree(comm, &more), "MPIX_Comm_agree");
    }
    for (int operation = 0; operation < OPERATIONS; operation++) {
        print(names[operation], samples[operation], done, comm);
    }
    if (rank == 0) {
        printf("end\n");
    }
    fflush(stdout);
    MPI_Comm_free(&comm);
    MPI_Finalize();
    return 0;
}
