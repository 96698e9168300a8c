/*
 * The floor of all calls that wait for another host: a message to rank 1 and the same bytes back,
 * by MPI_Send and MPI_Recv. Rank 0 prints the times of the round trips, in nanoseconds. Compiled
 * and started by `outlast bench put --engine mpi --hosts H`.
 *
 * usage: mpirun -n N openmpi_pong MILLISECONDS SIZE
 */
#include "openmpi.h"
#include <stdlib.h>

enum { TAG_BYTES = 1, TAG_END = 2, SAMPLES_MAX = 200000 };

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 3 || size < 2) {
        fprintf(stderr, "openmpi_pong: needs two ranks, a time and a size\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int bytes = atoi(argv[2]);
    char *value = calloc(1, (size_t)bytes);
    if (rank == 1) {
        for (;;) {
            MPI_Status status;
            check(MPI_Recv(value, bytes, MPI_BYTE, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status),
                  "MPI_Recv");
            if (status.MPI_TAG == TAG_END) {
                break;
            }
            check(MPI_Send(value, bytes, MPI_BYTE, 0, TAG_BYTES, MPI_COMM_WORLD), "MPI_Send");
        }
    } else if (rank == 0) {
        uint64_t *samples = calloc(SAMPLES_MAX, sizeof(uint64_t));
        int count = 0;
        uint64_t end = now_ns() + (uint64_t)atol(argv[1]) * 1000000u;
        while (count < SAMPLES_MAX && now_ns() < end) {
            uint64_t begin = now_ns();
            check(MPI_Send(value, bytes, MPI_BYTE, 1, TAG_BYTES, MPI_COMM_WORLD), "MPI_Send");
            check(MPI_Recv(value, bytes, MPI_BYTE, 1, TAG_BYTES, MPI_COMM_WORLD, MPI_STATUS_IGNORE),
                  "MPI_Recv");
            samples[count++] = now_ns() - begin;
        }
        check(MPI_Send(value, 0, MPI_BYTE, 1, TAG_END, MPI_COMM_WORLD), "MPI_Send");
        printf("%d", bytes);
        for (int sample = 0; sample < count; sample++) {
            printf(" %llu", (unsigned long long)samples[sample]);
        }
        printf("\nend\n");
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
