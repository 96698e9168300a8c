/* What all programs on Open MPI use: the clock, and a check for calls that must not fail. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void check(int code, const char *what) {
    if (code != MPI_SUCCESS) {
        fprintf(stderr, "%s returned %d\n", what, code);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}
