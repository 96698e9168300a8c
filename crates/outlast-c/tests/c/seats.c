/*
 * A job of C programs with images and seats. Each member saves an image, and the seats count in the
 * memory of their neighbours. In the middle the holder of the last seat reports that it is ready to
 * be killed. Another member takes its seat, the result is that of a run without a death, and the
 * image of the dead member is still there.
 */
#include "check.h"

enum { STEPS = 20, READY = 12, BYTES = 4096 };

/* Hands a code of a call on, as the function of a seat has to. */
#define TRY(call) \
    do { \
        int code = (call); \
        if (code != OUTLAST_OK) return code; \
    } while (0)

static outlast_job *job;

/* In each step a seat adds the step to a word of each seat, under a lock to a number of its right
 * neighbour, and puts the step into the neighbour's memory. */
static int body(void *context, const outlast_seat *seat) {
    CHECK(context == &job);
    uint32_t me = outlast_seat_number(seat), seats = outlast_seat_count(seat);
    uint32_t right = (me + 1) % seats;
    CHECK(outlast_seat_bytes(seat) == BYTES);
    uint64_t step = 0, before = 0, number = 0;
    size_t len = 0;
    int is_saved = 0, is_whole = -1, status = outlast_seat_note(seat, &step, sizeof step, &len);
    CHECK(status == OUTLAST_ABSENT || (status == OUTLAST_OK && len == sizeof step));
    CHECK(step == 0 || outlast_seat_is_replaying(seat));
    for (; step < STEPS; ) {
        for (uint32_t target = 0; target < seats; target++) {
            TRY(outlast_seat_accumulate_u64(seat, target, 0, OUTLAST_OP_SUM, &step, 1));
        }
        TRY(outlast_seat_fetch_and_op_u64(seat, right, 8, OUTLAST_OP_SUM, 1, &before));
        int64_t negative = -(int64_t)step, found_negative = 0;
        TRY(outlast_seat_fetch_and_op_i64(seat, right, 200, OUTLAST_OP_SUM, -1, &found_negative));
        CHECK(found_negative == negative);
        TRY(outlast_seat_accumulate_i64(seat, right, 208, OUTLAST_OP_MIN, &negative, 1));
        TRY(outlast_seat_compare_and_swap(seat, right, 16, step, step + 1, &before));
        CHECK(before == step);
        TRY(outlast_seat_lock(seat, right, OUTLAST_LOCK_EXCLUSIVE));
        TRY(outlast_seat_get(seat, right, 24, &number, sizeof number));
        number += step;
        TRY(outlast_seat_put(seat, right, 24, &number, sizeof number));
        EXPECT(OUTLAST_INVALID, outlast_seat_point(seat, NULL, 0, NULL));
        TRY(outlast_seat_unlock(seat, right));
        EXPECT(OUTLAST_NOT_LOCKED, outlast_seat_unlock(seat, right));
        TRY(outlast_seat_put(seat, right, 32 + 8 * step, &step, sizeof step));
        TRY(outlast_seat_flush(seat, right));
        TRY(outlast_seat_flush_all(seat));
        if (step == READY && outlast_me(job) == 3) {
            printf("ready\n");
            fflush(stdout);
            for (;;) pause();
        }
        step++;
        if (step % 2 == 0) {
            TRY(outlast_seat_barrier(seat));
        }
        TRY(outlast_seat_barrier_point(seat, &step, sizeof step, &is_saved));
    }
    EXPECT(OUTLAST_INVALID, outlast_seat_put(seat, seats, 0, &step, sizeof step));
    EXPECT(OUTLAST_INVALID, outlast_seat_put(seat, 0, BYTES - 4, &step, sizeof step));
    TRY(outlast_seat_is_whole(seat, &is_whole));
    CHECK(is_whole == 0 || is_whole == 1);
    uint64_t found[4], sum = STEPS * (STEPS - 1) / 2;
    TRY(outlast_seat_get(seat, me, 0, found, sizeof found));
    CHECK(found[0] == sum * seats && found[1] == STEPS && found[2] == STEPS && found[3] == sum);
    int64_t least[2];
    TRY(outlast_seat_get(seat, me, 200, least, sizeof least));
    CHECK(least[0] == -STEPS && least[1] == -(STEPS - 1));
    for (step = 0; step < STEPS; step++) {
        TRY(outlast_seat_get(seat, me, 32 + 8 * step, &number, sizeof number));
        CHECK(number == step);
    }
    return 0;
}

static int failing(void *context, const outlast_seat *seat) {
    (void)context;
    return outlast_seat_number(seat) == 1 ? 42 : 0;
}

int main(void) {
    EXPECT(OUTLAST_OK, outlast_join(&job));
    EXPECT(OUTLAST_OK, outlast_open(job, NULL, &store));
    uint32_t me = outlast_me(job), last = outlast_members(job) - 1;
    char name[16], note[8], *bytes = malloc(100000), *copy = malloc(100000);
    size_t len = 0, note_len = 0, missing = 9;
    outlast_images *images;
    outlast_region_options options = {.struct_size = sizeof options, .bytes = 1 << 20, .set = 4,
                                      .room = 100};
    EXPECT(OUTLAST_INVALID, outlast_images_open(store, NULL, &options, &images));
    EXPECT(OUTLAST_OK, outlast_images_open(store, "mine", &options, &images));
    snprintf(name, sizeof name, "of %u", me);
    memset(bytes, 'a' + (int)me, 100000);
    EXPECT(OUTLAST_ABSENT, outlast_image_load(images, name, copy, 100000, &len, NULL, 0, NULL));
    EXPECT(OUTLAST_ABSENT, outlast_image_delete(images, name));
    EXPECT(OUTLAST_OK, outlast_image_save(images, name, "old", 3, bytes, 50000));
    EXPECT(OUTLAST_OK, outlast_image_save(images, name, "note", 4, bytes, 100000));
    EXPECT(OUTLAST_TOO_SMALL, outlast_image_load(images, name, copy, 9, &len, note, 8, &note_len));
    CHECK(len == 100000 && note_len == 4);
    EXPECT(OUTLAST_OK, outlast_images_missing(images, &missing));
    uint32_t holders[8];
    int is_apart = -1;
    EXPECT(OUTLAST_OK, outlast_images_holders(images, holders, 8, &len, &is_apart));
    CHECK(len == 4 && holders[0] < 4 && (is_apart == 0 || is_apart == 1));
    EXPECT(OUTLAST_OK, outlast_barrier(job));

    outlast_seat_options seats = {.struct_size = sizeof seats, .bytes = BYTES, .set = 4};
    EXPECT(OUTLAST_INVALID, outlast_seats_run(store, NULL, body, &job));
    EXPECT(OUTLAST_INVALID, outlast_seats_run(store, &seats, NULL, &job));
    EXPECT(OUTLAST_OK, outlast_seats_run(store, &seats, body, &job));
    EXPECT(OUTLAST_SEAT_FAILED, outlast_seats_run(store, &seats, failing, NULL));
    CHECK(strstr(outlast_error(), "seat 1") != NULL && strstr(outlast_error(), "42") != NULL);

    snprintf(name, sizeof name, "of %u", last);
    memset(bytes, 'a' + (int)last, 100000);
    EXPECT(OUTLAST_OK, outlast_image_load(images, name, copy, 100000, &len, note, 8, &note_len));
    CHECK(len == 100000 && memcmp(bytes, copy, len) == 0);
    CHECK(note_len == 4 && memcmp(note, "note", 4) == 0);
    EXPECT(OUTLAST_OK, outlast_image_read(images, name, 99999, copy, 1));
    CHECK(copy[0] == bytes[0]);
    EXPECT(OUTLAST_ABSENT, outlast_image_read(images, "none", 0, copy, 1));
    EXPECT(OUTLAST_OK, outlast_images_close(images));
    EXPECT(OUTLAST_OK, outlast_close(store));
    EXPECT(OUTLAST_OK, outlast_barrier(job));
    EXPECT(OUTLAST_OK, outlast_leave(job));
    free(bytes);
    free(copy);
    printf("ok\n");
    return 0;
}
