/*
 * Bad input: handles without an object, wrong sizes, closed stores, use after leave, fork after
 * open, null characters, wrong types, and a plug-in that is missing or of another MPI, whose file
 * is the argument. Each is an Error with its status and a message, and changes nothing. Signals end
 * no wait.
 */
#include "check.hpp"

#include <csignal>
#include <sys/time.h>
#include <sys/wait.h>

using namespace std::chrono_literals;
using outlast::Status;

/* Joins over MPI with a file that is no plug-in for the MPI of this process. */
static void refused_plugin(const char *file, std::string_view reason) {
    setenv("OUTLAST_MPI_SHIM", file, 1);
    EXPECT(Status::not_joined, outlast::Job::join_mpi(nullptr, false));
    std::error_code ec;
    const outlast::Job none = outlast::Job::join_mpi(nullptr, false, ec);
    CHECK(ec == Status::not_joined && !none);
    const std::string_view message = outlast_error();
    CHECK(message.find(reason) != message.npos);
    CHECK(message.find("outlast mpi setup") != message.npos);
}

static void without_objects(outlast::Job &job, outlast::Store &store) {
    outlast::Store moved = std::move(store);
    CHECK(!store && moved);
    EXPECT(Status::invalid, store.put("key", "x"));
    EXPECT(Status::invalid, store.get("key"));
    EXPECT(Status::invalid, store.handle("key"));
    EXPECT(Status::invalid, store.transaction([](outlast::Transaction &) {}));
    EXPECT(Status::invalid, store.scan("", [](std::string_view) {}));
    EXPECT(Status::invalid, outlast::Regions::open(store, "regions"));
    store = std::move(moved);
    store.put("key", "value");

    outlast::Job other = std::move(job);
    CHECK(!job && job.me() == UINT32_MAX && job.members() == 0);
    EXPECT(Status::invalid, job.barrier());
    EXPECT(Status::invalid, outlast::Store::open(job));
    EXPECT(Status::invalid, outlast::Comm::world(job));
    job = std::move(other);
}

static void wrong_sizes_and_types(const outlast::Job &job, const outlast::Store &store) {
    outlast::Options options;
    options.struct_size = 3;
    EXPECT(Status::invalid, outlast::Store::open(job, options));
    EXPECT(Status::invalid,
           outlast::Store::open(job, outlast::Options().with_replicas(99).with_name("many")));
    EXPECT(Status::invalid, outlast::Store::open(job, outlast::Options().with_name("\xff")));
    EXPECT(Status::already_open, outlast::Store::open(job));
    EXPECT(Status::invalid, store.put(std::string(1025, 'k'), "x"));
    EXPECT(Status::invalid, store.put("", "x"));
    char small[2];
    EXPECT(Status::too_small, store.get_into("key", small, sizeof small));
    EXPECT(Status::wrong_type, store.get_value<int>("key"));
    EXPECT(Status::wrong_type, store.add("key", 1));
    EXPECT(Status::invalid, store.keys_of(9));
    CHECK(store.get("key")->bytes == "value");
}

static void null_characters(const outlast::Store &store) {
    const std::string key("a\0b", 3), value("v\0w", 3);
    store.put(key, value);
    CHECK(store.get(key)->bytes == value && !store.exists("a"));
    CHECK(store.transaction([&](outlast::Transaction &tx) { return tx.get(key); }) == value);
    CHECK(store.erase(key));
    /* Names and paths are texts of C, and a part of them would be another name. */
    EXPECT(Status::invalid, outlast::Regions::open(store, key));
    EXPECT(Status::invalid, store.snapshots(key));
    EXPECT(Status::invalid, store.restore_snapshot(key));
    auto regions = outlast::Regions::open(store, "regions");
    char memory[8];
    EXPECT(Status::invalid, regions.protect(key, memory, sizeof memory));
    EXPECT(Status::invalid, regions.read(0, key, 0, memory, sizeof memory));
    regions.close();
    EXPECT(Status::invalid, regions.protect("cells", memory, sizeof memory));
}

/* Another call changes both keys between two reads of a transaction: its function is called again,
 * and an error that follows from values which never existed together does not count. */
static void values_that_never_existed_together(const outlast::Store &store) {
    int calls = 0;
    const auto are_equal = [&](auto get) {
        const auto first = get("first");
        if (calls++ == 0) {
            store.put("first", "2");
            store.put("second", "2");
        }
        return first == get("second");
    };
    store.put("first", "1");
    store.put("second", "1");
    const int result = store.transaction([&](outlast::Transaction &tx) {
        if (!are_equal([&](const char *key) { return tx.get(key); })) {
            throw std::runtime_error("the values differ");
        }
        tx.put("copy", "by exceptions");
        return 7;
    });
    CHECK(result == 7 && calls == 2 && store.get("copy")->bytes == "by exceptions");

    calls = 0;
    store.put("first", "1");
    store.put("second", "1");
    std::error_code ec;
    store.transaction([&](outlast::Transaction &tx, std::error_code &inner) {
        if (are_equal([&](const char *key) { return tx.get(key, inner); })) {
            tx.put("copy", "by codes", inner);
        } else {
            inner = std::make_error_code(std::errc::io_error);
        }
    }, ec);
    CHECK(!ec && calls == 2 && store.get("copy")->bytes == "by codes");
}

static void forks(const outlast::Job &job, const outlast::Store &store) {
    const auto comm = outlast::Comm::world(job);
    auto window = outlast::Window::open(comm, 64);
    auto regions = outlast::Regions::open(store, "forked");
    auto images = outlast::Images::open(store, "forked");
    auto pin = store.pin("key");
    const pid_t child = fork();
    if (child == 0) {
        alarm(30);
        EXPECT(Status::forked, comm.send(0, 1, "child"));
        EXPECT(Status::forked, comm.receive());
        EXPECT(Status::forked, comm.barrier());
        EXPECT(Status::forked, window.put(0, 0, "child"));
        EXPECT(Status::forked, regions.checkpoint(1));
        EXPECT(Status::forked, regions.restore());
        EXPECT(Status::forked, images.save("image", "child"));
        EXPECT(Status::forked, images.load("image"));
        EXPECT(Status::forked, pin->bytes());
        EXPECT(Status::forked, job.barrier());
        EXPECT(Status::forked, store.put("fork", "child"));
        EXPECT(Status::forked, store.get("fork"));
        EXPECT(Status::forked, store.lock("fork", 20s));
        EXPECT(Status::forked, store.wait("fork", 20s));
        EXPECT(Status::forked, store.transaction([](outlast::Transaction &tx) {
            tx.put("fork", "child");
        }));
        _exit(0);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0 && !store.exists("fork"));
    CHECK(!images.load("image") && !comm.probe() && regions.restore().version == 0);
    window.free();
    regions.close();
    images.close();
}

static volatile std::sig_atomic_t signals;

static void waits_with_signals(const outlast::Store &store) {
    struct sigaction action {};
    action.sa_handler = [](int) { signals = signals + 1; };
    const itimerval often{{0, 10000}, {0, 10000}}, never{};
    CHECK(sigaction(SIGALRM, &action, nullptr) == 0);
    CHECK(setitimer(ITIMER_REAL, &often, nullptr) == 0);
    const auto began = std::chrono::steady_clock::now();
    CHECK(!store.wait("none", 200ms).value);
    CHECK(std::chrono::steady_clock::now() - began > 190ms);
    CHECK(setitimer(ITIMER_REAL, &never, nullptr) == 0 && signals > 0);
}

static void closed_and_left(outlast::Job &job, outlast::Store &store) {
    const outlast::Handle handle = store.handle("key");
    auto pin = store.pin("key");
    const auto comm = outlast::Comm::world(job);
    const auto window = outlast::Window::open(comm, 64);
    store.close();
    EXPECT(Status::invalid, store.put("key", "x"));
    EXPECT(Status::invalid, store.close());
    EXPECT(Status::closed, handle.put("x"));
    EXPECT(Status::closed, handle.get());
    store = outlast::Store::open(job);
    job.leave();
    EXPECT(Status::closed, store.put("key", "x"));
    EXPECT(Status::closed, store.transaction([](outlast::Transaction &tx) { tx.put("k", "x"); }));
    EXPECT(Status::invalid, job.barrier());
    EXPECT(Status::invalid, job.leave());
    EXPECT(Status::invalid, outlast::Store::open(job));
    CHECK(job.me() == UINT32_MAX);
    EXPECT(Status::closed, comm.send(0, 1, "x"));
    EXPECT(Status::closed, comm.receive());
    EXPECT(Status::closed, comm.barrier());
    EXPECT(Status::closed, window.put(0, 0, "x"));
    char buffer[4];
    EXPECT(Status::closed, window.get(0, 0, buffer, sizeof buffer));
}

int main(int count, char **arguments) {
    setenv("OUTLAST_ENGINE", "mpi", 1);
    refused_plugin("/nowhere/plug-in.so", "does not exist");
    if (count > 1) {
        refused_plugin(arguments[1], "runs with another MPI");
    }
    unsetenv("OUTLAST_MPI_SHIM");
    unsetenv("OUTLAST_ENGINE");
    outlast::Job job = outlast::Job::join();
    outlast::Store store = outlast::Store::open(job);
    without_objects(job, store);
    wrong_sizes_and_types(job, store);
    null_characters(store);
    values_that_never_existed_together(store);
    forks(job, store);
    waits_with_signals(store);
    closed_and_left(job, store);
    std::puts("ok");
}
