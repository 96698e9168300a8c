/*
 * A job of C++ programs: each makes every call of outlast.hpp. Then the last member reports that it
 * is ready to be killed, and the survivors take over its keys.
 */
#include "check.hpp"

using namespace std::chrono_literals;

struct Particle {
    double position[3];
    std::uint32_t id;
};

static void every_call_once(const outlast::Store &store, std::uint32_t me) {
    const std::string key = "mine/" + std::to_string(me);
    CHECK(!store.get(key) && !store.exists(key) && !store.erase(key) && !store.adopt(key));
    const outlast::Version first = store.put(key, "forty-two");
    const auto found = store.get(key);
    CHECK(found && found->bytes == "forty-two" && found->version == first);
    CHECK(!store.put_if(key, "x", std::nullopt));
    const auto second = store.put_if(key, "x", first);
    CHECK(second && first < *second && second->writer == me);
    char buffer[4];
    CHECK(store.get_into(key, buffer, sizeof buffer) == std::size_t{1} && buffer[0] == 'x');
    EXPECT(outlast::Status::too_small, store.get_into(key, buffer, 0));
    EXPECT(outlast::Status::wrong_type, store.add(key, 1));
    EXPECT(outlast::Status::invalid, store.put("", "x"));

    const std::string large(100000, 'z');
    store.put(key, large);
    CHECK(store.get(key)->bytes == large);
    const std::string zeros("a\0b", 3);
    store.put(key, zeros);
    CHECK(store.get(key)->bytes == zeros);

    store.put_value(key, Particle{{1, 2, 3}, me});
    CHECK(store.get_value<Particle>(key)->id == me);
    EXPECT(outlast::Status::wrong_type, store.get_value<std::uint32_t>(key));
    store.put_value(key, std::vector<double>{0.5, 1.5});
    CHECK((store.get_value<std::vector<double>>(key) == std::vector<double>{0.5, 1.5}));
    store.put_value(key, std::vector<double>{});
    CHECK(store.get_value<std::vector<double>>(key)->empty());
    store.put_value(key, std::string("text"));
    CHECK(store.get_value<std::string>(key) == "text");
    CHECK(!store.get_value<int>("absent"));

    std::error_code ec;
    CHECK(!store.get("absent", ec) && !ec);
    store.put("", "x", ec);
    CHECK(ec == outlast::Status::invalid && ec.message() == "an argument is invalid");
    CHECK(store.add(key + "/count", 3, ec) == 3 && !ec);

    const auto waited = store.wait(key, 1s, first);
    CHECK(waited.value && waited.value->bytes == "text" && !waited.died);
    CHECK(!store.wait(key, 1ms, waited.value->version).value);
    store.put_nb(key + "/later", "");
    store.flush();
    CHECK(store.get(key + "/later")->bytes.empty());

    const outlast::Handle handle = store.handle(key + "/handle");
    CHECK(!handle.get() && !handle.get_value<int>());
    for (int round = 0; round < 1000; round++) {
        handle.put_value(round);
    }
    CHECK(handle.get_value<int>() == 999);
    const outlast::Handle task = store.handle("task/" + key);
    CHECK(!task.version());
    const auto made = task.put_if("open", std::nullopt);
    CHECK(made && task.version() == made && !task.put_if("open", std::nullopt));
    CHECK(task.put_if("claimed", made) && !task.put_if("claimed", made));
    task.put_parts({"head", "", "er"});
    CHECK(task.get()->bytes == "header");
    CHECK(store.erase("task/" + key) && task.add(41) == 41 && task.add(1) == 42);

    {
        const auto lock = store.lock(key + "/lock", 1s);
        CHECK(lock && !lock->abandoned());
        CHECK(!store.lock(key + "/lock", 1ms));
    }
    CHECK(store.lock(key + "/lock", 1s));

    int keys = 0;
    store.scan(key, [&](std::string_view name) { keys += name.size() > 0; });
    CHECK(keys == 4);
    keys = 0;
    store.scan(key, [&](std::string_view) { return ++keys < 2; });
    CHECK(keys == 2);
    bool is_thrown = false;
    try {
        store.scan(key, [](std::string_view) { throw 5; });
    } catch (int number) {
        is_thrown = number == 5;
    }
    CHECK(is_thrown);
}

static void transactions(const outlast::Store &store, std::uint32_t me) {
    for (int round = 0; round < 50; round++) {
        store.transaction([&](outlast::Transaction &tx) {
            const auto from = tx.get_value<std::int64_t>("from").value_or(0);
            tx.put_value("from", from - me);
            tx.put_value("to", tx.get_value<std::int64_t>("to").value_or(0) + me);
        });
    }
    const std::string key = "tx/" + std::to_string(me);
    const bool existed = store.transaction([&](outlast::Transaction &tx) {
        tx.put(key, "there");
        return tx.erase(key);
    });
    CHECK(existed && !store.exists(key));
    bool is_thrown = false;
    try {
        store.transaction([&](outlast::Transaction &tx) {
            tx.put(key, "never");
            throw std::runtime_error("of the program");
        });
    } catch (const std::runtime_error &error) {
        is_thrown = std::string_view(error.what()) == "of the program";
    }
    CHECK(is_thrown && !store.exists(key));

    const auto first = store.put(key + "/read", "1");
    store.transaction([&](outlast::Transaction &tx) {
        tx.require(key + "/read", first);
        tx.require(key + "/none", std::nullopt);
        tx.put(key + "/read", "2");
    });
    EXPECT(outlast::Status::conflict, store.transaction([&](outlast::Transaction &tx) {
        tx.put(key + "/none", "x");
        tx.require(key + "/read", first);
    }));
    CHECK(store.get(key + "/read")->bytes == "2" && !store.exists(key + "/none"));

    std::error_code ec;
    store.transaction([&](outlast::Transaction &tx, std::error_code &inner) {
        tx.add(key, 7, inner);
    }, ec);
    CHECK(!ec && store.add(key, 0) == 7);
    store.transaction([&](outlast::Transaction &tx, std::error_code &inner) {
        tx.add(key, 1, inner);
        inner = std::make_error_code(std::errc::interrupted);
    }, ec);
    CHECK(ec == std::errc::interrupted && store.add(key, 0) == 7);
}

int main() try {
    outlast::Job job = outlast::Job::join(outlast::JoinOptions().with_time_limit(20s));
    outlast::Store store =
        outlast::Store::open(job, outlast::Options().with_replicas(3).with_expected_keys(1000));
    const std::uint32_t me = job.me();
    const std::uint32_t last = job.members() - 1;
    std::uint64_t seen = store.epoch();
    every_call_once(store, me);
    transactions(store, me);
    job.barrier();
    const auto sum = store.transaction([](outlast::Transaction &tx) {
        return *tx.get_value<std::int64_t>("from") + *tx.get_value<std::int64_t>("to");
    });
    CHECK(sum == 0);
    const std::uint64_t bell = job.bell();
    job.ring(me);
    CHECK(job.park(bell, 20s));
    job.barrier();
    if (me == last) {
        std::puts("ready");
        std::fflush(stdout);
        pause();
    }

    CHECK(store.wait("never", 60s, std::nullopt, last).died);
    for (const outlast::Death &death : store.deaths(seen)) {
        CHECK(death.member == last && death.heir != last);
        if (death.heir == me) {
            for (const std::string &key : store.keys_of(death.member)) {
                store.adopt(key);
            }
            store.put("adopted", "");
        }
    }
    CHECK(store.wait("adopted", 60s).value);
    CHECK(store.keys_of(last).empty());
    CHECK(store.get_value<std::string>("mine/" + std::to_string(last)) == "text");
    store.close();
    EXPECT(outlast::Status::invalid, store.put("closed", "x"));
    job.leave();
    std::puts("ok");
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
