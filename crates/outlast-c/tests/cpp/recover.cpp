/*
 * A job of C++ programs with a store in global mode, and a store whose values have a single replica
 * each. The last member is killed: the survivors recover together, a listener tells them which
 * partitions are lost, and they accept the loss. Then a member makes sure that another is dead.
 */
#include "check.hpp"

#include <atomic>

using namespace std::chrono_literals;
using outlast::Status;
using Members = std::vector<std::uint32_t>;

int main() try {
    outlast::Job job =
        outlast::Job::join(outlast::JoinOptions().with_domain("rack/of/all").with_time_limit(20s));
    const std::uint32_t me = job.me(), last = job.members() - 1;
    CHECK(job.domain(last) == "rack/of/all" && job.living_members() == (Members{0, 1, 2, 3}));
    EXPECT(Status::invalid, job.domain(9));
    EXPECT(Status::failed, job.shrunken_communicator());
    outlast::Store store =
        outlast::Store::open(job, outlast::Options().with_replicas(2).with_global_mode());
    outlast::Store single =
        outlast::Store::open(job, outlast::Options().with_replicas(1).with_name("single"));
    static std::atomic<std::size_t> lost{0};
    single.on_loss([](const std::vector<std::size_t> &partitions) { lost = partitions.size(); });
    const std::string task = "task/";
    store.put(task + std::to_string(me), "half done");
    CHECK(single.lost_partitions().empty());

    /* What needs no death. */
    const std::string mine = "mine/" + std::to_string(me);
    CHECK(!single.get_nb(mine).wait());
    single.put(mine, std::string(1000, 'm'));
    outlast::PendingGet pending = single.get_nb(mine);
    CHECK(pending.is_ready() && pending.wait()->bytes == std::string(1000, 'm'));
    EXPECT(Status::over, pending.wait());
    const auto pairs = single.scan_values(mine);
    CHECK(pairs.size() == 1 && pairs[0].first == mine && pairs[0].second.version.writer == me);
    const auto before = single.transaction([&](outlast::Transaction &tx) {
        tx.put(mine, "changed");
        CHECK(!tx.get_before("none"));
        return tx.get_before(mine);
    });
    CHECK(before && before->bytes.size() == 1000 && before->version < single.get(mine)->version);
    const auto token = single.lock("lock/" + mine, 1s)->version();
    CHECK(token < single.lock("lock/" + mine, 1s)->version());
    single.add("count", 1);
    CHECK(single.wait_count("count", 4, 20s) && !single.wait_count("count", 99, 1ms));
    CHECK(single.partition_of(mine) < 4 * 256);
    job.barrier();

    if (me == last) {
        std::this_thread::sleep_for(100ms); // until the others have left the barrier
        std::puts("ready");
        std::fflush(stdout);
        for (;;) {
            pause();
        }
    }
    EXPECT(Status::revoked, store.wait("never", 30s));
    CHECK(store.is_revoked() && store.heir_of(last) < last);
    int calls = 0;
    store.recover([&](outlast::Transaction &tx, const std::vector<outlast::Death> &deaths) {
        calls++;
        CHECK(deaths.size() == 1 && deaths[0].member == last);
        if (deaths[0].heir == me) {
            CHECK(tx.get(task + std::to_string(last)) == "half done");
            tx.adopt(task + std::to_string(last));
        }
        tx.put("recovered/" + std::to_string(me), "");
    });
    CHECK(calls == 1 && !store.is_revoked());
    for (std::uint32_t member = 0; member < last; member++) {
        CHECK(store.exists("recovered/" + std::to_string(member)));
    }
    CHECK(store.keys_of(last).empty());

    while (lost == 0) {
        std::this_thread::sleep_for(1ms);
    }
    job.barrier();
    const auto partitions = single.lost_partitions();
    CHECK(partitions.size() == lost);
    job.barrier();
    single.accept_loss(partitions);
    EXPECT(Status::invalid, single.accept_loss({1u << 30}));
    CHECK(single.lost_partitions().empty());
    job.fence(last, 1s); // it is dead already
    CHECK(job.living_members() == (Members{0, 1, 2}));
    job.barrier();
    /* An exception of a procedure gives the recovery up at all members, and they begin again. */
    if (me == 0) {
        store.revoke();
    }
    while (!store.is_revoked()) {
        std::this_thread::sleep_for(1ms);
    }
    bool is_thrown = false;
    try {
        store.recover([&](outlast::Transaction &, const std::vector<outlast::Death> &) {
            if (me == 1) {
                throw std::runtime_error("of the program");
            }
        });
    } catch (const outlast::Error &error) {
        is_thrown = error.status() == Status::recovery_failed && me != 1;
    } catch (const std::runtime_error &error) {
        is_thrown = std::string_view(error.what()) == "of the program" && me == 1;
    }
    CHECK(is_thrown);
    store.recover([](outlast::Transaction &, const std::vector<outlast::Death> &) {});
    single.close();
    store.close();
    job.leave();
    std::puts("ok");
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
