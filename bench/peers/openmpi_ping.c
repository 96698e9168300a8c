/*
 * The published way to put a value into a store on Open MPI 5, for `outlast bench put --baseline
 * ping`, which compiles and starts this program.
 *
 * For each replica rank 0 sends a ping, which a helper thread at the target answers, so that a dead
 * target gives an error code. Then it calls MPI_Put and MPI_Win_flush, which would hang. Rank 0
 * puts to ranks 1 to REPLICAS and prints the times of the puts, in nanoseconds. If a time is given
 * after which rank REPLICAS is killed, rank 0 goes on until a call returns an error, or has not
 * returned within 2 seconds, and prints "error" or "hung".
 *
 * usage: mpirun --with-ft ulfm -n N \
 *            openmpi_ping REPLICAS MILLISECONDS KILL_AFTER_MICROSECONDS|-1 SIZE...
 */
#include "openmpi.h"
#include <mpi-ext.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TAG_PING = 1, TAG_PONG = 2, TAG_END = 3 };
enum { PLACES = 1024, HUNG_MS = 2000, SAMPLES_MAX = 200000 };

static MPI_Comm pings;
/* When the put in flight began; 0 if there is none. */
static _Atomic uint64_t began;

/* Answers pings until rank 0 sends TAG_END. */
static void *answer(void *unused) {
    (void)unused;
    for (;;) {
        int word;
        int code = MPI_Recv(&word, 1, MPI_INT, 0, MPI_ANY_TAG, pings, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS || word == TAG_END) {
            return NULL;
        }
        if (MPI_Send(&word, 1, MPI_INT, 0, TAG_PONG, pings) != MPI_SUCCESS) {
            return NULL;
        }
    }
}

/* Prints "hung" and ends the process if a put does not return. */
static void *watch(void *unused) {
    (void)unused;
    for (;;) {
        usleep(10000);
        uint64_t since = atomic_load(&began);
        if (since != 0 && now_ns() - since > HUNG_MS * UINT64_C(1000000)) {
            printf("hung\nend\n");
            fflush(stdout);
            _exit(0);
        }
    }
}

/* A process to kill, and when. */
struct death {
    pid_t pid;
    long after_us;
};

static void *kill_later(void *given) {
    struct death *death = given;
    usleep((useconds_t)death->after_us);
    kill(death->pid, SIGKILL);
    return NULL;
}

/* Puts a value to all replicas. Returns the first error code. */
static int put(MPI_Win win, int replicas, const char *value, int size, MPI_Aint place) {
    for (int target = 1; target <= replicas; target++) {
        int word = TAG_PING;
        int code = MPI_Send(&word, 1, MPI_INT, target, TAG_PING, pings);
        if (code == MPI_SUCCESS) {
            code = MPI_Recv(&word, 1, MPI_INT, target, TAG_PONG, pings, MPI_STATUS_IGNORE);
        }
        if (code == MPI_SUCCESS) {
            code = MPI_Put(value, size, MPI_BYTE, target, place, size, MPI_BYTE, win);
        }
        if (code == MPI_SUCCESS) {
            code = MPI_Win_flush(target, win);
        }
        if (code != MPI_SUCCESS) {
            return code;
        }
    }
    return MPI_SUCCESS;
}

int main(int argc, char **argv) {
    int provided, rank, size, largest = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int replicas = argc > 4 ? atoi(argv[1]) : 0;
    if (provided < MPI_THREAD_MULTIPLE || replicas < 1 || replicas >= size) {
        fprintf(stderr, "openmpi_ping: needs threads, and more ranks than REPLICAS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    long milliseconds = atol(argv[2]), kill_after = atol(argv[3]);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    check(MPI_Comm_dup(MPI_COMM_WORLD, &pings), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(pings, MPI_ERRORS_RETURN);
    for (int i = 4; i < argc; i++) {
        largest = atoi(argv[i]) > largest ? atoi(argv[i]) : largest;
    }
    /* At most 64 MiB, as in the benchmark of the store. */
    size_t places = (64u << 20) / (size_t)largest < PLACES ? (64u << 20) / (size_t)largest : PLACES;
    char *memory = calloc(places, (size_t)largest);
    char *value = calloc(1, (size_t)largest);
    MPI_Win win;
    MPI_Aint memory_len = (MPI_Aint)(places * (size_t)largest);
    check(MPI_Win_create(memory, memory_len, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win),
          "MPI_Win_create");
    MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN);
    check(MPI_Win_lock_all(MPI_MODE_NOCHECK, win), "MPI_Win_lock_all");
    int pid = (int)getpid();
    int *pids = calloc((size_t)size, sizeof(int));
    check(MPI_Allgather(&pid, 1, MPI_INT, pids, 1, MPI_INT, MPI_COMM_WORLD), "MPI_Allgather");
    pthread_t helper, killer;
    if (rank != 0) {
        pthread_create(&helper, NULL, answer, NULL);
        pthread_join(helper, NULL);
        if (kill_after >= 0) {
            _exit(0);
        }
    } else {
        struct death death = {pids[replicas], kill_after};
        if (kill_after >= 0) {
            pthread_create(&helper, NULL, watch, NULL);
            pthread_create(&killer, NULL, kill_later, &death);
        }
        uint64_t *samples = calloc(SAMPLES_MAX, sizeof(uint64_t));
        for (int i = 4; i < argc; i++) {
            int bytes = atoi(argv[i]), count = 0;
            uint64_t end = now_ns() + (uint64_t)milliseconds * 1000000u;
            for (size_t place = 0; now_ns() < end; place = (place + 1) % places) {
                uint64_t begin = now_ns();
                atomic_store(&began, begin);
                int code = put(win, replicas, value, bytes, (MPI_Aint)(place * (size_t)bytes));
                atomic_store(&began, 0);
                if (code != MPI_SUCCESS && kill_after >= 0) {
                    printf("error\nend\n");
                    fflush(stdout);
                    for (int other = 1; other < size; other++) {
                        kill(pids[other], SIGKILL);
                    }
                    _exit(0);
                }
                check(code, "a put");
                if (count < SAMPLES_MAX) {
                    samples[count++] = now_ns() - begin;
                }
            }
            printf("%d", bytes);
            for (int sample = 0; sample < count; sample++) {
                printf(" %llu", (unsigned long long)samples[sample]);
            }
            printf("\n");
        }
        int word = TAG_END;
        for (int target = 1; target < size; target++) {
            MPI_Send(&word, 1, MPI_INT, target, TAG_PING, pings);
        }
        printf(kill_after >= 0 ? "unnoticed\nend\n" : "end\n");
        fflush(stdout);
        if (kill_after >= 0) {
            _exit(0);
        }
    }
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
    MPI_Finalize();
    return 0;
}
