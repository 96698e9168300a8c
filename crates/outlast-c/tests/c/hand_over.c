/*
 * A job of two C programs with a single replica of each value. The first member hands its replicas
 * over and leaves, and the second member has all values.
 */
#include "check.h"

#define KEYS 100

int main(void) {
    outlast_job *job;
    outlast_options options = {sizeof options, .replicas = 1};
    EXPECT(OUTLAST_OK, outlast_join(&job));
    EXPECT(OUTLAST_OK, outlast_open(job, &options, &store));
    if (outlast_me(job) == 0) {
        for (int key = 0; key < KEYS; key++) {
            EXPECT(OUTLAST_OK, outlast_put(store, &key, sizeof key, "value", 5, NULL));
        }
        EXPECT(OUTLAST_OK, outlast_barrier(job));
        EXPECT(OUTLAST_OK, outlast_hand_over(store, 20000));
        EXPECT(OUTLAST_CLOSED, outlast_put(store, "key", 3, "value", 5, NULL));
        EXPECT(OUTLAST_CLOSED, outlast_close(store));
        EXPECT(OUTLAST_CLOSED, outlast_leave(job));
        printf("ok\n");
        return 0;
    }
    EXPECT(OUTLAST_OK, outlast_barrier(job));
    while (outlast_is_living(job, 0)) {
        uint64_t bell = outlast_bell(job);
        if (outlast_is_living(job, 0)) outlast_park(job, bell, 20000);
    }
    for (int key = 0; key < KEYS; key++) {
        EXPECT(OUTLAST_OK, outlast_exists(store, &key, sizeof key));
    }
    EXPECT(OUTLAST_OK, outlast_close(store));
    EXPECT(OUTLAST_OK, outlast_leave(job));
    printf("ok\n");
    return 0;
}
