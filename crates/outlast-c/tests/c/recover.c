/* A job of C programs in global mode: the last member is killed, and the survivors recover
 * together. */
#include "check.h"

int main(void) {
    outlast_job *job;
    outlast_options options = {sizeof options, .replicas = 2, .global_mode = 1};
    EXPECT(OUTLAST_OK, outlast_join(&job));
    uint32_t me = outlast_me(job), last = outlast_members(job) - 1;
    EXPECT(OUTLAST_OK, outlast_open(job, &options, &store));
    char key[32];
    int key_len = snprintf(key, sizeof key, "task/%u", me);
    EXPECT(OUTLAST_OK, outlast_put(store, key, key_len, "half done", 9, NULL));
    EXPECT(OUTLAST_OK, outlast_barrier(job));
    if (me == last) {
        /* Wait until the other members have left the meeting, too. */
        usleep(100000);
        printf("ready\n");
        fflush(stdout);
        /* This member is killed while it waits. */
        outlast_wait(store, "never", 5, NULL, 30000, -1, NULL, 0, NULL, NULL);
        return 1;
    }
    /* A member that only waits is told of the death, too. */
    EXPECT(OUTLAST_REVOKED, outlast_wait(store, "never", 5, NULL, 30000, -1, NULL, 0, NULL, NULL));
    CHECK(outlast_is_revoked(store));
    EXPECT(OUTLAST_REVOKED, outlast_put(store, key, key_len, "x", 1, NULL));
    outlast_recovery *recovery;
    EXPECT(OUTLAST_OK, outlast_recover_begin(store, &recovery));
    uint32_t dead, heir;
    EXPECT(OUTLAST_OK, outlast_recovery_death(recovery, 0, &dead, &heir));
    CHECK(dead == last && heir < last);
    EXPECT(OUTLAST_ABSENT, outlast_recovery_death(recovery, 1, &dead, &heir));
    outlast_tx *tx = outlast_recovery_tx(recovery);
    if (heir == me) {
        key_len = snprintf(key, sizeof key, "task/%u", last);
        char buffer[16];
        size_t len;
        EXPECT(OUTLAST_OK, outlast_tx_get(tx, key, key_len, buffer, sizeof buffer, &len));
        CHECK(len == 9);
        EXPECT(OUTLAST_OK, outlast_tx_adopt(tx, key, key_len));
    }
    char done[32];
    int done_len = snprintf(done, sizeof done, "recovered/%u", me);
    EXPECT(OUTLAST_OK, outlast_tx_put(tx, done, done_len, "", 0));
    EXPECT(OUTLAST_OK, outlast_recover_end(recovery));
    /* The changes of all members are there. */
    CHECK(!outlast_is_revoked(store));
    for (uint32_t member = 0; member < last; member++) {
        done_len = snprintf(done, sizeof done, "recovered/%u", member);
        EXPECT(OUTLAST_OK, outlast_exists(store, done, done_len));
    }
    EXPECT(OUTLAST_OK, outlast_close(store));
    EXPECT(OUTLAST_OK, outlast_leave(job));
    printf("ok\n");
    return 0;
}
