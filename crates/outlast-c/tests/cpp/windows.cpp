/*
 * A job of C++ programs with communicators, windows, pins, batches, snapshots and region
 * checkpoints. Then the last member reports that it is ready to be killed, while it holds a lock,
 * and the survivors shrink the communicator and the window, restore the regions and go on. The
 * argument is a folder for snapshots.
 */
#include "check.hpp"

using namespace std::chrono_literals;
using outlast::Status;
using Ranks = std::vector<std::uint32_t>;

static void messages(const outlast::Comm &comm) {
    const std::uint32_t me = comm.rank(), size = comm.size();
    const std::uint32_t next = (me + 1) % size, before = (me + size - 1) % size;
    const std::string large(100000, 'm');
    comm.send(next, 7, large);
    while (!comm.probe(before)) {
        std::this_thread::sleep_for(1ms);
    }
    const auto envelope = comm.probe(before, outlast::any);
    CHECK(envelope && envelope->len == large.size() && envelope->sender == before);
    const outlast::Message message = comm.receive();
    CHECK(message.bytes == large && message.sender == before && message.tag == 7);
    CHECK(!comm.probe());
    outlast::Request request = comm.start_receive(before, 8);
    CHECK(!request.test());
    EXPECT(Status::timeout, request.wait_within(std::chrono::milliseconds(10)));
    comm.barrier();
    comm.send(next, 8, "later");
    const auto later = request.wait_within(std::chrono::seconds(30));
    CHECK(later && later->bytes == "later" && later->sender == before);
    EXPECT(Status::over, request.test());
    /* A member interrupts its own next wait. */
    comm.interrupt(me);
    EXPECT(Status::interrupted, comm.receive(before, 9));
    std::error_code ec;
    comm.interrupt(me, ec);
    CHECK(!ec);
    comm.receive(before, 9, ec);
    CHECK(ec == Status::interrupted);
}

/* Receives, a send and operations of a window, completed in any order. */
static void requests(const outlast::Comm &comm) {
    const std::uint32_t me = comm.rank(), size = comm.size();
    const std::uint32_t next = (me + 1) % size, before = (me + size - 1) % size;
    CHECK(comm.rank_of(next) == next && !comm.rank_of(9));
    std::vector<outlast::Request> list;
    list.push_back(comm.start_receive(before, 20));
    list.push_back(comm.start_receive(before, 21));
    CHECK(!outlast::Request::test_any(list));
    comm.barrier();
    const std::string large(1000, 'l');
    list.push_back(comm.start_send(next, 21, large));
    CHECK(list[2].wait()->bytes.empty());
    CHECK(outlast::Request::wait_any(list) == 1);
    CHECK(outlast::Request::test_any(list) == std::size_t{1} && list[1].wait()->bytes == large);
    comm.barrier();
    comm.send(next, 20, "first");
    outlast::Request::wait_all(list);
    CHECK(list[0].test()->bytes == "first");
    EXPECT(Status::over, outlast::Request::wait_any(list));

    outlast::Window window = outlast::Window::open(comm, 64);
    window.start_put(me, 0, "request!").wait();
    window.start_accumulate(me, 8, outlast::Op::sum, std::vector<std::uint64_t>{1}).wait();
    window.start_accumulate(me, 16, outlast::Op::min, std::vector<std::int64_t>{-4}).wait();
    auto add = window.start_fetch_and_op(me, 8, outlast::Op::sum, std::uint64_t{6});
    auto least = window.start_fetch_and_op(me, 16, outlast::Op::min, std::int64_t{-5});
    auto swap = window.start_compare_and_swap(me, 24, 0, 9);
    CHECK(least.wait_word<std::int64_t>() == -4 && add.wait_word<std::uint64_t>() == 1);
    CHECK(swap.wait()->size() == 8);
    EXPECT(Status::over, swap.test());
    auto get = window.start_get(me, 0, 8);
    std::optional<std::string> bytes;
    while (!bytes) {
        bytes = get.test();
    }
    CHECK(bytes == "request!");
    std::uint64_t words[3];
    window.get(me, 8, words, sizeof words);
    CHECK(words[0] == 7 && words[1] == static_cast<std::uint64_t>(-5) && words[2] == 9);
    EXPECT(Status::invalid, window.start_get(me, 60, 8));
    CHECK(window.bytes_aside() == 0);
    window.close();
}

static void collectives(const outlast::Comm &comm) {
    const std::uint32_t me = comm.rank(), size = comm.size();
    std::vector<std::uint64_t> sums{me, 1};
    comm.allreduce(outlast::Op::sum, sums);
    CHECK(sums[0] == 6 && sums[1] == size);
    CHECK(comm.allreduce(outlast::Op::min, -static_cast<std::int64_t>(me)) == -3);
    CHECK(comm.allreduce(outlast::Op::max, me * 0.5) == 1.5);
    EXPECT(Status::invalid, comm.allreduce(outlast::Op::bit_xor, sums));
    double pi = me == 1 ? 3.14 : 0;
    comm.broadcast(1, &pi, sizeof pi);
    CHECK(pi == 3.14);
    const auto parts = comm.allgather(std::string(1000 * me, static_cast<char>('a' + me)));
    CHECK(parts.size() == 4 && parts[0].empty() && parts[3] == std::string(3000, 'd'));
    const outlast::Comm half = comm.split(me / 2, -static_cast<std::int64_t>(me));
    CHECK(half.size() == 2 && half.rank() == 1 - me % 2 && half.member(half.rank()) == me);
    const outlast::Comm copy = comm.duplicate();
    const outlast::Comm some = copy.split(me == 0 ? outlast::any : 5, 0);
    CHECK(static_cast<bool>(some) == (me != 0));
    CHECK(!some || some.size() == 3);
}

static void windows(const outlast::Comm &comm) {
    const std::uint32_t me = comm.rank(), size = comm.size(), next = (me + 1) % size;
    char buffer[16] = {};
    /* Accesses of an allocated window need a lock; a locked window is not freed. */
    outlast::Window window = outlast::Window::allocate(comm, 64);
    EXPECT(Status::not_locked, window.put(next, 0, "x"));
    CHECK(window.lock(next, outlast::LockKind::exclusive) == outlast::Locked::yes);
    window.check_lock(next);
    window.put(next, 0, "mine");
    window.flush(next);
    CHECK(window.holders(next) == Ranks{me});
    EXPECT(Status::still_locked, window.free());
    window.unlock(next);
    EXPECT(Status::not_locked, window.check_lock(next));
    comm.barrier();
    CHECK(window.lock_all() == outlast::Locked::yes);
    window.get(me, 0, buffer, 4);
    CHECK(std::string(buffer, 4) == "mine");
    window.flush_all();
    window.unlock_all();
    comm.barrier();
    window.free();
    CHECK(!window);

    /* An open window: no lock, blocking puts, words, growing memory and attached ranges. */
    window = outlast::Window::open(comm, 64);
    window.accumulate(0, 0, outlast::Op::sum, std::vector<std::uint64_t>{1});
    window.accumulate(0, 8, outlast::Op::min, std::vector<std::int64_t>{-5});
    window.flush(0);
    window.put_blocking(next, 32, "saved");
    EXPECT(Status::invalid, window.put(next, 62, "saved"));
    comm.barrier();
    CHECK(window.fetch_and_op(0, 0, outlast::Op::keep, std::uint64_t{0}) == size);
    CHECK(window.fetch_and_op(0, 8, outlast::Op::keep, std::int64_t{0}) == -5);
    CHECK(window.compare_and_swap(me, 16, 0, 9) == 0);
    window.get(me, 32, buffer, 5);
    CHECK(std::string(buffer, 5) == "saved");
    CHECK(window.grow(64) == 128 && window.len(me) == 128);
    const std::uint64_t offset = window.attach(8);
    window.put_blocking(me, offset, "attached");
    window.detach(offset);
    EXPECT(Status::invalid, window.get(me, offset, buffer, 8));
    /* A lock with a time limit, and a lock that is taken away. */
    comm.barrier();
    if (me == 1) {
        CHECK(window.lock(0, outlast::LockKind::exclusive) == outlast::Locked::yes);
    }
    comm.barrier();
    if (me == 0) {
        CHECK(window.lock_within(0, outlast::LockKind::exclusive, 5ms) == outlast::Locked::no);
        CHECK(window.force_unlock(0) == Ranks{1});
    }
    comm.barrier();
    if (me == 1) {
        EXPECT(Status::lock_lost, window.unlock(0));
    }
    comm.barrier();
    window.close();
}

static void store_calls(const outlast::Job &job, const outlast::Store &store,
                        const std::string &folder) {
    const std::string mine = "mine/" + std::to_string(job.me()) + "/";
    const std::string large(5000, 'l');
    const std::string first = mine + "1", second = mine + "2";
    CHECK(store.put_all({{first, "one"}, {second, large}}) == 2);
    std::error_code ec;
    CHECK(store.put_all({{first, "eins"}, {"", "x"}, {second, "y"}}, ec) == 1);
    CHECK(ec == Status::invalid);
    const auto values = store.get_all({first, mine + "none", second});
    CHECK(values.size() == 3 && values[0]->bytes == "eins" && !values[1]);
    CHECK(values[2]->bytes == large);
    CHECK(store.owner_of(first) == job.me() && !store.owner_of(mine + "none"));
    CHECK(store.replicas_of(first).size() == 3);
    store.put_parts(first, {"e", "ins"});

    auto pin = store.pin(first);
    CHECK(pin && !store.pin(mine + "none"));
    store.put(first, "another");
    CHECK(pin->size() == 4 && pin->bytes() == "eins" && pin->version().writer == job.me());
    char part[2];
    pin->read(2, part, 2);
    CHECK(std::string(part, 2) == "ns");
    EXPECT(Status::invalid, pin->read(3, part, 2));

    const outlast_stats stats = store.stats();
    CHECK(stats.struct_size == sizeof stats && stats.replicas_repaired == 0);
    CHECK(store.totals().keys >= 2 && store.count() >= 2 && store.memory().values > 0);
    const outlast::RepairStatus repair = store.repair_status();
    CHECK(repair.replicas_missing == 0 && repair.partitions_lost == 0);
    CHECK(store.wait_repaired(10s) && store.lost_keys().empty());

    const outlast::Snapshots snapshots =
        store.snapshots(folder, outlast::SnapshotOptions().with_keep(1));
    job.barrier();
    if (job.me() == 0) {
        const outlast_snapshot taken = snapshots.take();
        CHECK(taken.generation > 0 && taken.records >= 8);
        store.put(second, "gone");
        const outlast::Restored restored = store.restore_snapshot(folder);
        CHECK(restored.records == taken.records && store.get(second)->bytes == large);
        EXPECT(Status::failed, store.restore_snapshot(folder + "/none"));
    }
    job.barrier();
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    outlast::Job job = outlast::Job::join();
    outlast::Store store = outlast::Store::open(job, outlast::Options().with_replicas(3));
    outlast::Comm comm = outlast::Comm::world(job);
    const std::uint32_t me = comm.rank(), last = comm.size() - 1;
    CHECK(comm.size() == 4 && me == job.me());
    messages(comm);
    requests(comm);
    collectives(comm);
    windows(comm);
    store_calls(job, store, argv[1]);

    std::vector<double> cells(1000, me + 0.5);
    outlast::Regions regions = outlast::Regions::open(
        store, "cells", outlast::RegionOptions().with_bytes(1 << 20).with_set(4));
    CHECK(regions.restore().version == 0);
    regions.protect("cells", cells.data(), cells.size() * sizeof(double));
    CHECK(regions.checkpoint(1, "note " + std::to_string(me)));

    outlast::Window window = outlast::Window::open(comm, 64);
    if (me == last) {
        window.lock(0, outlast::LockKind::exclusive);
    }
    // By messages: others may still be inside of a barrier that the last member has left.
    if (me == last) {
        for (std::uint32_t rank = 0; rank < last; rank++) {
            comm.receive(rank, 31);
        }
        std::printf("ready\n");
        std::fflush(stdout);
        for (;;) {
            pause();
        }
    }
    comm.send(last, 31, "");
    EXPECT(Status::proc_failed, comm.receive(last, 1));
    CHECK(comm.failed() == Ranks{last});
    EXPECT(Status::proc_failed_pending, comm.receive(outlast::any, 1));
    comm.notify_failures({0, 1, 2, last});
    comm.failure_ack();
    CHECK(comm.acked() == Ranks{last});
    CHECK(comm.agree(me == 1 ? 6 : 7) == 6);
    EXPECT(Status::proc_failed, comm.barrier());
    EXPECT(Status::proc_failed, window.flush_all());
    CHECK(window.failed() == Ranks{last} && window.shrink() == Ranks{last});
    window.flush_all();
    job.barrier();
    if (me == 0) {
        CHECK(window.lock(0, outlast::LockKind::exclusive) == outlast::Locked::abandoned);
        window.unlock(0);
        window.revoke();
        comm.revoke();
    }
    while (!window.is_revoked() || !comm.is_revoked()) {
        std::this_thread::sleep_for(1ms);
    }
    EXPECT(Status::revoked, comm.barrier());
    EXPECT(Status::revoked, window.put(0, 0, "x"));
    const outlast::Comm survivors = comm.shrink();
    CHECK(survivors.size() == 3);
    survivors.barrier();
    window.shrink();
    window.put_blocking(0, 8 * me, "x");
    window.free();

    /* The regions of all four owners are still there. */
    regions.protect("cells", nullptr, 0);
    const outlast_restored at = regions.restore();
    CHECK(at.version == 1 && at.size == 3 && regions.note().substr(0, 5) == "note ");
    double lost = 0;
    regions.read(last, "cells", 8 * 999, &lost, sizeof lost);
    const auto owners = regions.owners();
    CHECK(owners.size() == 4 && owners[last].size() == 1);
    CHECK(owners[last][0].first == "cells" && owners[last][0].second == 8000);
    CHECK(lost == last + 0.5);
    regions.close();
    CHECK(store.wait_repaired(30s));
    store.close();
    job.barrier();
    job.leave();
    std::printf("ok\n");
    return 0;
}
