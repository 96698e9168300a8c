/* An MPI program that opens a store as a guest. It keeps its own communicator, error handler and
 * tags, loses a rank and goes on; the store keeps all values. The program prints `ok`, or the
 * reason and exits with 1. */

#include <mpi.h>
#include <outlast.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: %s; outlast says: %s\n", __FILE__, __LINE__, #what, \
                    outlast_error()); \
            exit(1); \
        } \
    } while (0)

static int sum(MPI_Comm comm, int value) {
    int all = 0;
    CHECK(MPI_Allreduce(&value, &all, 1, MPI_INT, MPI_SUM, comm) == MPI_SUCCESS);
    return all;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    int provided = 0, rank = 0, size = 0;
    int wanted = strcmp(mode, "single") ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
    CHECK(MPI_Init_thread(NULL, NULL, wanted, &provided) == MPI_SUCCESS);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    outlast_job *job = NULL;
    if (!strcmp(mode, "fatal") || !strcmp(mode, "single")) {
        /* The message names the missing call. The program goes on. */
        CHECK(outlast_join(&job) == OUTLAST_NOT_JOINED);
        printf("%s\n", outlast_error());
        MPI_Finalize();
        return 0;
    }
    MPI_Comm own;
    CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN) == MPI_SUCCESS);
    /* In the reverse order of the ranks, to see that the communicator numbers the members. */
    CHECK(MPI_Comm_split(MPI_COMM_WORLD, 0, size - rank, &own) == MPI_SUCCESS);
    CHECK(MPI_Comm_set_errhandler(own, MPI_ERRORS_ABORT) == MPI_SUCCESS);
    CHECK(sum(own, 1) == size);
    CHECK(outlast_join_mpi(own, 0, &job) == OUTLAST_OK);
    CHECK(outlast_me(job) == (uint32_t)(size - 1 - rank) && outlast_members(job) == (uint32_t)size);

    /* The program's own messages, with the tag that the engine uses inside its duplicate. */
    int to = (rank + 1) % size, from = (rank + size - 1) % size, got = -1;
    CHECK(MPI_Sendrecv(&rank, 1, MPI_INT, to, 1, &got, 1, MPI_INT, from, 1, MPI_COMM_WORLD,
                       MPI_STATUS_IGNORE) == 0);
    CHECK(got == from);
    MPI_Errhandler handler;
    MPI_Comm_get_errhandler(own, &handler);
    CHECK(handler == MPI_ERRORS_ABORT);

    outlast_store *store = NULL;
    CHECK(outlast_open(job, NULL, &store) == OUTLAST_OK);
    char key[32], value[32], found[32];
    snprintf(key, sizeof key, "result/%d", rank);
    snprintf(value, sizeof value, "of rank %d", rank);
    CHECK(outlast_put(store, key, strlen(key), value, sizeof value, NULL) == OUTLAST_OK);
    CHECK(sum(own, 1) == size);
    /* Wait until all ranks have left the collective call: a death inside it would be the program's
     * affair. */
    int64_t through = 0;
    CHECK(outlast_add(store, "through", 7, 1, &through) == OUTLAST_OK);
    while (rank == size - 1) {
        CHECK(outlast_add(store, "through", 7, 0, &through) == OUTLAST_OK);
        if (through == size)
            kill(getpid(), SIGKILL);
        usleep(1000);
    }
    for (int tries = 0; outlast_living(job) == (uint32_t)size && tries < 2000; tries++)
        usleep(5000);
    CHECK(outlast_living(job) == (uint32_t)size - 1);
    for (int other = 0; other < size; other++) {
        size_t len = 0;
        snprintf(key, sizeof key, "result/%d", other);
        snprintf(value, sizeof value, "of rank %d", other);
        CHECK(outlast_get(store, key, strlen(key), found, sizeof found, &len, NULL) == OUTLAST_OK);
        CHECK(len == sizeof found && !strcmp(found, value));
    }
    /* A communicator of the survivors, for the program. */
    void *raw = NULL;
    CHECK(outlast_mpi_shrunken(job, &raw) == OUTLAST_OK);
    CHECK(sum((MPI_Comm)raw, 1) == size - 1);
    CHECK(outlast_close(store) == OUTLAST_OK);
    CHECK(outlast_leave(job) == OUTLAST_OK);
    CHECK(sum((MPI_Comm)raw, 1) == size - 1);
    printf("ok\n");
    fflush(stdout);
    /* After a death MPI_Finalize of Open MPI 5.0 may hang; docs/mpi.md. */
    _exit(0);
}
