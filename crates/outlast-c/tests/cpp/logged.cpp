/*
 * A job of C++ programs on seats with logs. In the middle the holder of the last seat reports that
 * it is ready to be killed. Another member takes its seat and repeats what it did, and the functions
 * of all other seats go on: they are called once, and no call of theirs fails.
 */
#include "check.hpp"

#include <array>
#include <atomic>

using namespace std::chrono_literals;
using outlast::Status;

constexpr std::uint64_t steps = 20, ready = 12, bytes = 4096;
static std::array<std::atomic<int>, 4> calls;

/* In each step a seat puts what it has seen outside of the seats into its own memory and into that
 * of its neighbour. */
static void note(const outlast::Seat &seat, const outlast::Job &job) {
    const std::uint32_t me = seat.number(), right = (me + 1) % seat.seats();
    CHECK(seat.seats() == 4 && !seat.note());
    calls[me]++;
    for (std::uint64_t step = 0; step < steps; step++) {
        const std::string seen = seat.remember(64, [&] {
            const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
            return std::to_string(job.me()) + " at " + std::to_string(now);
        });
        CHECK(seen.size() < 64);
        const std::string line = seen + std::string(64 - seen.size(), ' ');
        seat.put(me, 2048 + 64 * step, line);
        seat.put(right, 64 * step, line);
        seat.barrier();
        if (step == ready && job.me() == 3) {
            std::puts("ready");
            std::fflush(stdout);
            for (;;) {
                pause();
            }
        }
    }
    std::string own(64 * steps, '-'), there = own;
    seat.get(me, 2048, own.data(), own.size());
    seat.get(right, 0, there.data(), there.size());
    CHECK(own == there);
    EXPECT(Status::invalid, seat.remember(1, [] { return std::string("too long"); }));
    try {
        seat.remember(1, []() -> std::string { throw std::runtime_error("of the program"); });
        CHECK(false);
    } catch (const std::runtime_error &error) {
        CHECK(std::string("of the program") == error.what());
    }
}

int main() try {
    outlast::Job job = outlast::Job::join();
    outlast::Store store = outlast::Store::open(job);
    const auto options = [] { return outlast::SeatOptions(bytes).with_set(4).with_interval(1000s); };
    EXPECT(Status::invalid, outlast::Seat::run(store, options().with_logs(1000),
                                               [](const outlast::Seat &) {}));
    outlast::Seat::run(store, options().with_logs(1 << 20),
                       [&](const outlast::Seat &seat) { note(seat, job); });
    CHECK(calls[job.me()] == 1);
    store.close();
    job.barrier();
    job.leave();
    std::puts("ok");
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
