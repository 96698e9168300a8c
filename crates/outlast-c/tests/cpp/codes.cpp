/*
 * A program without exceptions: each call that may fail stores its error in a std::error_code. It
 * is compiled with -fno-exceptions, where a call without a place for its error would end it.
 */
#include "outlast.hpp"

#include <cstdio>
#include <cstdlib>

using namespace std::chrono_literals;
using outlast::Status;

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            std::fprintf(stderr, "line %d: %s; %s\n", __LINE__, #condition, outlast_error()); \
            std::exit(1); \
        } \
    } while (0)

/* Makes a call with the code `ec`, and expects this status. */
#define EXPECT(status, call) \
    do { \
        std::error_code ec = make_error_code(std::errc::io_error); \
        (void)(call); \
        CHECK(ec == (status)); \
    } while (0)

static void without_objects(outlast::Job &job, outlast::Store &store) {
    outlast::Store none = std::move(store);
    std::swap(none, store);
    std::vector<std::size_t> partitions{1};
    std::uint64_t seen = 0;
    const auto nothing = [](std::string_view) {};
    EXPECT(Status::invalid, none.put("key", "x", ec));
    EXPECT(Status::invalid, none.put_value("key", 1, ec));
    EXPECT(Status::invalid, none.put_parts("key", {"x", "y"}, ec));
    EXPECT(Status::invalid, none.put_if("key", "x", std::nullopt, ec));
    EXPECT(Status::invalid, none.get("key", ec));
    EXPECT(Status::invalid, none.get_value<int>("key", ec));
    EXPECT(Status::invalid, none.wait("key", 1ms, std::nullopt, std::nullopt, ec));
    EXPECT(Status::invalid, none.wait_count("key", 1, 1ms, std::nullopt, ec));
    EXPECT(Status::invalid, none.scan("", nothing, ec));
    EXPECT(Status::invalid, none.scan_values("", ec));
    EXPECT(Status::invalid, none.keys_of(0, nothing, ec));
    EXPECT(Status::invalid, none.keys_of(0, ec));
    EXPECT(Status::invalid, none.deaths(seen, ec));
    EXPECT(Status::invalid, none.accept_loss(ec));
    EXPECT(Status::invalid, none.accept_loss(partitions, ec));
    EXPECT(Status::invalid, none.handle("key", ec));
    EXPECT(Status::invalid, none.lock("key", 1ms, ec));
    EXPECT(Status::invalid, none.transaction([](outlast::Transaction &, std::error_code &) {}, ec));
    EXPECT(Status::invalid,
           none.recover([](outlast::Transaction &, const std::vector<outlast::Death> &,
                           std::error_code &) {}, ec));
    EXPECT(Status::invalid, none.close(ec));
    EXPECT(Status::invalid, outlast::Regions::open(none, "cells", {}, ec));
    EXPECT(Status::invalid, outlast::Images::open(none, "images", {}, ec));
    EXPECT(Status::invalid,
           outlast::Seat::run(none, outlast::SeatOptions(64), [](const outlast::Seat &) {}, ec));

    outlast::Job other = std::move(job);
    EXPECT(Status::invalid, job.park(0, 1ms, ec));
    EXPECT(Status::invalid, job.ring(0, ec));
    EXPECT(Status::invalid, job.barrier(ec));
    EXPECT(Status::invalid, job.leave(ec));
    EXPECT(Status::invalid, outlast::Comm::world(job, ec));
    job = std::move(other);
    EXPECT(Status::invalid, job.ring(9, ec));
}

static void handles(const outlast::Store &store) {
    std::error_code ec;
    outlast::Handle handle = store.handle("handle", ec);
    CHECK(!ec && !handle.version(ec) && !ec && !handle.get_value<int>(ec) && !ec);
    const auto first = handle.put_value(7, ec);
    CHECK(!ec && handle.version(ec) == first && handle.get_value<int>(ec) == 7);
    EXPECT(Status::wrong_type, handle.get_value<double>(ec));
    EXPECT(Status::wrong_type, handle.add(1, ec));
    const auto second = handle.put_parts({"eight", " by", "tes"}, ec);
    CHECK(!ec && first < second && handle.get(ec)->bytes == "eight bytes");
    const outlast::Handle taken = std::move(handle);
    EXPECT(Status::invalid, handle.put("x", ec));
    EXPECT(Status::invalid, handle.put_value(1, ec));
    EXPECT(Status::invalid, handle.put_parts({}, ec));
    EXPECT(Status::invalid, handle.add(1, ec));
    EXPECT(Status::invalid, handle.version(ec));
    EXPECT(Status::invalid, handle.get_value<int>(ec));
}

static void transactions(const outlast::Store &store) {
    std::error_code ec;
    store.transaction([](outlast::Transaction &tx, std::error_code &inner) {
        tx.put_value("number", 5, inner);
        tx.put("", "x", inner);
    }, ec);
    CHECK(ec == Status::invalid && !store.exists("number", ec));
    store.transaction([](outlast::Transaction &tx, std::error_code &inner) {
        tx.put_value("number", 5, inner);
    }, ec);
    CHECK(!ec && store.get_value<int>("number", ec) == 5);
}

static void recoveries(const outlast::Job &job) {
    std::error_code ec;
    auto store = outlast::Store::open(
        job, outlast::Options().with_name("global").with_global_mode(), ec);
    CHECK(!ec);
    store.revoke(ec);
    CHECK(!ec);
    EXPECT(Status::revoked, store.put("key", "x", ec));
    int calls = 0;
    /* An error of the procedure gives the recovery up, and is the result. */
    store.recover([&](outlast::Transaction &tx, const std::vector<outlast::Death> &,
                      std::error_code &inner) {
        calls++;
        tx.put("key", "never", inner);
        inner = make_error_code(std::errc::io_error);
    }, ec);
    CHECK(ec == std::errc::io_error && calls == 1 && store.is_revoked());
    store.recover([&](outlast::Transaction &tx, const std::vector<outlast::Death> &deaths,
                      std::error_code &inner) {
        CHECK(deaths.empty() && !tx.get("key", inner) && !inner);
        tx.put("key", "recovered", inner);
    }, ec);
    CHECK(!ec && store.get("key", ec)->bytes == "recovered");
    store.close(ec);
    CHECK(!ec);
}

static void seats(const outlast::Store &store) {
    std::error_code ec;
    int calls = 0;
    const auto body = [&](const outlast::Seat &seat) {
        std::error_code code;
        seat.put(0, 0, "saved", code);
        if (!code) {
            calls++;
            seat.barrier_point("note", code);
        }
        return code;
    };
    outlast::Seat::run(store, outlast::SeatOptions(64), body, ec);
    CHECK(!ec && calls == 1);
    EXPECT(Status::seat_failed,
           outlast::Seat::run(store, outlast::SeatOptions(64), [](const outlast::Seat &seat) {
               std::error_code code;
               seat.put(0, 60, "too long", code);
               CHECK(code == Status::invalid);
               return code;
           }, ec));
    EXPECT(Status::seat_failed,
           outlast::Seat::run(store, outlast::SeatOptions(64), [](const outlast::Seat &) {
               return make_error_code(std::errc::io_error);
           }, ec));
}

int main() {
    std::error_code ec;
    outlast::Job job = outlast::Job::join(ec);
    CHECK(!ec);
    outlast::Store store = outlast::Store::open(job, {}, ec);
    CHECK(!ec);
    without_objects(job, store);
    handles(store);
    transactions(store);
    recoveries(job);
    seats(store);
    store.close(ec);
    CHECK(!ec);
    job.leave(ec);
    CHECK(!ec);
    std::puts("ok");
}
