/*
 * A job of C++ programs with images and seats. Each member saves an image, and the seats count in
 * the memory of their neighbours. In the middle the holder of the last seat reports that it is
 * ready to be killed. Another member takes its seat, the result is that of a run without a death,
 * and the image of the dead member is still there.
 */
#include "check.hpp"

using namespace std::chrono_literals;
using outlast::Op;
using outlast::Status;

constexpr std::uint64_t steps = 10, ready = 6, bytes = 4096;

/* In each step a seat adds the step to words of its right neighbour, and puts it there. */
static void count(const outlast::Seat &seat, const outlast::Job &job) {
    const std::uint32_t me = seat.number(), right = (me + 1) % seat.seats();
    CHECK(seat.bytes() == bytes);
    std::uint64_t step = seat.note_value<std::uint64_t>().value_or(0);
    CHECK(step == 0 || (seat.is_replaying() && seat.note()->size() == sizeof step));
    while (step < steps) {
        seat.accumulate(right, 0, Op::sum, {step});
        seat.fetch_and_op(right, 8, Op::sum, 1);
        const auto negative = -static_cast<std::int64_t>(step);
        CHECK(seat.fetch_and_op_signed(right, 32, Op::sum, -1) == negative);
        seat.accumulate_signed(right, 40, Op::min, {negative});
        CHECK(seat.compare_and_swap(right, 16, step, step + 1) == step);
        seat.lock(right, outlast::LockKind::exclusive);
        std::uint64_t number = 0;
        seat.get(right, 24, &number, sizeof number);
        number += step;
        seat.put(right, 24, outlast::bytes_of(number));
        EXPECT(Status::invalid, seat.point({}));
        seat.unlock(right);
        EXPECT(Status::not_locked, seat.unlock(right));
        seat.flush(right);
        seat.flush_all();
        if (step == ready && job.me() == 3) {
            std::puts("ready");
            std::fflush(stdout);
            for (;;) {
                pause();
            }
        }
        step++;
        if (step % 2 == 0) {
            seat.barrier();
        }
        seat.barrier_point(outlast::bytes_of(step));
    }
    EXPECT(Status::invalid, seat.put(0, bytes - 4, outlast::bytes_of(step)));
    (void)seat.is_whole();
    std::int64_t least = 0;
    seat.get(me, 40, &least, sizeof least);
    CHECK(least == 1 - static_cast<std::int64_t>(steps));
    std::uint64_t found[4];
    seat.get(me, 0, found, sizeof found);
    const std::uint64_t sum = steps * (steps - 1) / 2;
    CHECK(found[0] == sum && found[1] == steps && found[2] == steps && found[3] == sum);
}

int main() try {
    outlast::Job job = outlast::Job::join();
    outlast::Store store = outlast::Store::open(job);
    const std::uint32_t last = job.members() - 1;
    const auto options = outlast::RegionOptions().with_bytes(1 << 20).with_set(4).with_room(100);
    outlast::Images images = outlast::Images::open(store, "mine", options);
    const std::string mine = "of " + std::to_string(job.me());
    CHECK(!images.load(mine) && !images.erase(mine));
    images.save(mine, std::string(50000, 'o'), "old");
    images.save(mine, std::string(100000, static_cast<char>('a' + job.me())), "note");
    CHECK(images.holders().size() == 4);
    EXPECT(Status::invalid, images.save(std::string("a\0b", 3), "x"));
    job.barrier();

    const auto seats = outlast::SeatOptions(bytes).with_set(4).with_mtbf(1ms);
    outlast::Seat::run(store, seats, [&](const outlast::Seat &seat) { count(seat, job); });
    EXPECT(Status::seat_failed,
           outlast::Seat::run(store, outlast::SeatOptions(bytes).with_set(4),
                              [](const outlast::Seat &seat) {
                                  if (seat.number() == 1) {
                                      throw std::runtime_error("of the program");
                                  }
                              }));
    EXPECT(Status::invalid, outlast::Seat::run(store, outlast::SeatOptions(0),
                                               [](const outlast::Seat &) {}));

    const auto image = images.load("of " + std::to_string(last));
    CHECK(image && image->note == "note");
    CHECK(image->bytes == std::string(100000, static_cast<char>('a' + last)));
    char byte = 0;
    CHECK(images.read("of " + std::to_string(last), 99999, &byte, 1) && byte == image->bytes[0]);
    CHECK(!images.read("none", 0, &byte, 1));
    // Three members cannot hold four pieces apart.
    CHECK(images.missing() > 0);
    images.close();
    CHECK(!images);
    store.close();
    job.barrier();
    job.leave();
    std::puts("ok");
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
