/* What the tests in C have in common. */
#include "outlast.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPECT(wanted, call)                                                                              \
    do {                                                                                                  \
        int status = (call);                                                                              \
        if (status != (wanted)) {                                                                         \
            fprintf(stderr, "line %d: %s is %d: %s\n", __LINE__, #call, status, outlast_error());         \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

#define CHECK(condition)                                                                                  \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition);                               \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

static outlast_store *store;

/* Waits until all members are here. */
static void meet(outlast_job *job, const char *place) {
    int64_t here;
    EXPECT(OUTLAST_OK, outlast_add(store, place, strlen(place), 1, &here));
    while (here < outlast_members(job)) {
        usleep(1000);
        EXPECT(OUTLAST_OK, outlast_add(store, place, strlen(place), 0, &here));
    }
}
