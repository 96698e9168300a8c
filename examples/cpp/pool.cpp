/*
 * A pool of tasks that survives the death of any worker. Each worker has a list of tasks in the
 * store. A steal is a transaction over three keys: the victim's list, the thief's list and the
 * lineage of the thief. A worker that dies loses nothing: the survivors steal all that it had,
 * the task that it was running included, and each result counts once.
 *
 *     outlast run -n 4 ./pool              # counts the primes below 400,000 in 400 tasks
 *     outlast run -n 4 ./pool 400 2        # worker 2 kills itself with a task in its hands
 */
#include "outlast.hpp"

#include <csignal>
#include <cstdio>
#include <thread>

using List = std::vector<std::uint32_t>;
using namespace std::chrono_literals;

static std::string key_of(const char *what, std::uint32_t worker) {
    return std::string("pool/") + what + "/" + std::to_string(worker);
}

/* The work of a task: the number of primes among a thousand numbers. */
static std::int64_t primes(std::uint32_t task) {
    std::int64_t count = 0;
    for (std::uint32_t n = task * 1000; n < (task + 1) * 1000; n++) {
        bool is_prime = n >= 2;
        for (std::uint32_t d = 2; is_prime && d * d <= n; d++) {
            is_prime = n % d != 0;
        }
        count += is_prime;
    }
    return count;
}

/* Moves the next task of the own list into the own hands, where survivors find it. */
static std::optional<std::uint32_t> take(const outlast::Store &store, std::uint32_t me) {
    return store.transaction([&](outlast::Transaction &tx) -> std::optional<std::uint32_t> {
        auto list = tx.get_value<List>(key_of("list", me)).value_or(List());
        if (list.empty()) {
            return std::nullopt;
        }
        const std::uint32_t task = list.back();
        list.pop_back();
        tx.put_value(key_of("list", me), list);
        tx.put_value(key_of("held", me), List{task});
        return task;
    });
}

/* Counts a result. It counts once: the same transaction empties the worker's hands. */
static void finish(const outlast::Store &store, std::uint32_t me, std::int64_t result) {
    store.transaction([&](outlast::Transaction &tx) {
        tx.put_value(key_of("held", me), List());
        tx.add("pool/sum", result);
        tx.add("pool/done", 1);
    });
}

/* Moves half of the victim's tasks to the thief: of a dead victim all, and what it held. */
static bool steal(const outlast::Store &store, std::uint32_t me, std::uint32_t victim,
                  bool is_dead) {
    return store.transaction([&](outlast::Transaction &tx) {
        auto theirs = tx.get_value<List>(key_of("list", victim)).value_or(List());
        if (is_dead) {
            const auto held = tx.get_value<List>(key_of("held", victim)).value_or(List());
            if (!held.empty()) {
                theirs.insert(theirs.end(), held.begin(), held.end());
                tx.put_value(key_of("held", victim), List());
            }
        }
        const std::size_t taken = is_dead ? theirs.size() : (theirs.size() + 1) / 2;
        if (taken == 0) {
            return false;
        }
        auto mine = tx.get_value<List>(key_of("list", me)).value_or(List());
        mine.insert(mine.end(), theirs.end() - taken, theirs.end());
        theirs.resize(theirs.size() - taken);
        tx.put_value(key_of("list", victim), theirs);
        tx.put_value(key_of("list", me), mine);
        tx.add(key_of("stolen", me), static_cast<std::int64_t>(taken));
        return true;
    });
}

int main(int count, char **arguments) try {
    const std::uint32_t tasks = count > 1 ? std::atoi(arguments[1]) : 400;
    const std::int64_t victim = count > 2 ? std::atoi(arguments[2]) : -1;
    outlast::Job job = outlast::Job::join();
    outlast::Store store = outlast::Store::open(job);
    const std::uint32_t me = job.me();
    std::uint64_t seen = 0;
    std::vector<bool> is_dead(job.members());
    if (me == 0) {
        List all(tasks);
        for (std::uint32_t task = 0; task < tasks; task++) {
            all[task] = task;
        }
        store.put_value(key_of("list", 0), all);
    }

    std::int64_t mine = 0;
    while (store.add("pool/done", 0) < tasks) {
        for (const outlast::Death &death : store.deaths(seen)) {
            is_dead[death.member] = true;
        }
        if (const auto task = take(store, me)) {
            if (me == victim) {
                std::raise(SIGKILL);
            }
            finish(store, me, primes(*task));
            mine++;
            continue;
        }
        bool is_stolen = false;
        for (std::uint32_t step = 1; step < job.members() && !is_stolen; step++) {
            const std::uint32_t other = (me + step) % job.members();
            is_stolen = steal(store, me, other, is_dead[other]);
        }
        if (!is_stolen) {
            std::this_thread::sleep_for(1ms);
        }
    }
    std::printf("%lld primes below %u; worker %u did %lld of %u tasks\n",
                static_cast<long long>(store.add("pool/sum", 0)), tasks * 1000, me,
                static_cast<long long>(mine), tasks);
    store.close();
    job.leave();
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
