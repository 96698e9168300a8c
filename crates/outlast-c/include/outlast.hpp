/*
 * Outlast for C++17: a key-value store in the memories of the processes of a parallel program,
 * which outlasts the death of any of them. This header wraps outlast.h and needs nothing else.
 *
 *     outlast::Job job = outlast::Job::join();
 *     outlast::Store store = outlast::Store::open(job);
 *     store.put("result/9", "forty-two");
 *     store.put_value("grid", std::vector<double>{1.0, 2.0});
 *     store.transaction([](outlast::Transaction &tx) {
 *         tx.put("from", "");
 *         tx.put("to", "task 7");
 *     });
 *     store.close();
 *     job.leave();
 *
 * Errors: a call throws outlast::Error, or, with a std::error_code as its last argument, stores the
 * error there and returns an empty result. An absent key is no error: it is an empty std::optional
 * or false. Without exceptions (-fno-exceptions) use the overloads with a std::error_code; the
 * other calls end the program with the message of the error.
 *
 * Ends: close() and leave() report errors. The destructors of Store and Job call them where a scope
 * ends normally. Where a scope ends by an exception the destructors do neither: the process is
 * about to fail, and the other members treat it as dead when it ends.
 *
 * Threads: as in outlast.h. Several threads may use a Job, a Store, a Comm or a Window at once; a
 * Handle, a Transaction, a Lock, a Pin, a PendingGet, a Request, a WindowRequest and Regions belong
 * to a single thread at a time, a Seat to the thread of its function.
 */
#ifndef OUTLAST_HPP
#define OUTLAST_HPP

#include "outlast.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace outlast {

/* ---- Errors ---- */

/* The codes of outlast.h, as an error code of the standard library. */
enum class Status : int {
    ok = OUTLAST_OK,
    absent = OUTLAST_ABSENT,
    died = OUTLAST_DIED,
    invalid = OUTLAST_INVALID,
    not_joined = OUTLAST_NOT_JOINED,
    data_lost = OUTLAST_DATA_LOST,
    timeout = OUTLAST_TIMEOUT,
    conflict = OUTLAST_CONFLICT,
    aborted = OUTLAST_ABORTED,
    over = OUTLAST_OVER,
    locked = OUTLAST_LOCKED,
    out_of_memory = OUTLAST_OUT_OF_MEMORY,
    too_small = OUTLAST_TOO_SMALL,
    wrong_type = OUTLAST_WRONG_TYPE,
    closed = OUTLAST_CLOSED,
    corrupt = OUTLAST_CORRUPT,
    failed = OUTLAST_FAILED,
    nested = OUTLAST_NESTED,
    revoked = OUTLAST_REVOKED,
    recovery_failed = OUTLAST_RECOVERY_FAILED,
    already_open = OUTLAST_ALREADY_OPEN,
    abandoned = OUTLAST_ABANDONED,
    forked = OUTLAST_FORKED,
    proc_failed = OUTLAST_PROC_FAILED,
    proc_failed_pending = OUTLAST_PROC_FAILED_PENDING,
    interrupted = OUTLAST_INTERRUPTED,
    lock_lost = OUTLAST_LOCK_LOST,
    not_locked = OUTLAST_NOT_LOCKED,
    still_locked = OUTLAST_STILL_LOCKED,
    busy = OUTLAST_BUSY,
    rolled_back = OUTLAST_ROLLED_BACK,
    seat_failed = OUTLAST_SEAT_FAILED
};

/* The category of the codes. Its messages are short; outlast_error() and Error::what() have the
 * whole message, with what to do. */
class Category final : public std::error_category {
  public:
    const char *name() const noexcept override { return "outlast"; }
    std::string message(int code) const override {
        switch (static_cast<Status>(code)) {
        case Status::ok: return "ok";
        case Status::absent: return "the key does not exist";
        case Status::died: return "the member is dead";
        case Status::invalid: return "an argument is invalid";
        case Status::not_joined: return "the process cannot join a job";
        case Status::data_lost: return "all replicas of the key's partition are lost";
        case Status::timeout: return "a living member did not answer in time";
        case Status::conflict: return "the condition of the call does not hold";
        case Status::aborted: return "the transaction conflicts with another transaction";
        case Status::over: return "the transaction has been committed or aborted already";
        case Status::locked: return "another holder kept the lock until the time limit";
        case Status::out_of_memory: return "a member's segment has no room for the value";
        case Status::too_small: return "the buffer is too small";
        case Status::wrong_type: return "the value has another type or length";
        case Status::closed: return "the store was closed, or the process has left the job";
        case Status::corrupt: return "the memory of the store was overwritten";
        case Status::failed: return "the call failed";
        case Status::nested: return "a transaction was begun inside another transaction";
        case Status::revoked: return "a member has died: all members have to recover";
        case Status::recovery_failed: return "the recovery failed";
        case Status::already_open: return "this member has the store open already";
        case Status::abandoned: return "the last holder of the lock died";
        case Status::forked: return "this process was forked from a member and is none itself";
        case Status::proc_failed: return "members that the call needs are dead";
        case Status::proc_failed_pending: return "a death holds the receive up";
        case Status::interrupted: return "a member interrupted the wait";
        case Status::lock_lost: return "the lock was taken away by force";
        case Status::not_locked: return "this member does not hold the lock";
        case Status::still_locked: return "a member holds a lock on the window";
        case Status::busy: return "another call of this kind is under way";
        case Status::rolled_back: return "all seats are rolled back";
        case Status::seat_failed: return "a seat has failed";
        }
        return "unknown code " + std::to_string(code);
    }
};

inline const std::error_category &category() noexcept {
    static const Category instance;
    return instance;
}

inline std::error_code make_error_code(Status status) noexcept {
    return {static_cast<int>(status), category()};
}

/* An error of the store. what() says what happened, whether anything changed, and what to do. */
class Error : public std::system_error {
  public:
    Error(int code, const std::string &message)
        : std::system_error(code, category()), text_(message) {}
    const char *what() const noexcept override { return text_.c_str(); }
    Status status() const noexcept { return static_cast<Status>(code().value()); }

  private:
    std::string text_;
};

namespace detail {

/* Throws an error, or ends the program where there are no exceptions. */
[[noreturn]] inline void raise(int code, const std::string &message) {
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
    throw Error(code, message);
#else
    (void)code;
    std::fprintf(stderr, "outlast: %s\n", message.c_str());
    std::abort();
#endif
}

/* Reports a code of the C library: nothing for answers from 0 on, an error for negative codes. */
inline int report(int code, std::error_code *ec) {
    if (ec != nullptr) {
        ec->clear();
    }
    if (code >= 0) {
        return code;
    }
    if (ec == nullptr) {
        raise(code, outlast_error());
    }
    ec->assign(code, category());
    return code;
}

inline int report(int code, const std::string &message, std::error_code *ec) {
    if (ec == nullptr) {
        raise(code, message);
    }
    ec->assign(code, category());
    return code;
}

/* A text for the C library, for which a null character ends it: a text with one inside is replaced
 * by bytes that are not UTF-8, so that the library refuses it instead of cutting it off. */
inline const char *whole(const std::string &text) noexcept {
    return text.find('\0') == std::string::npos ? text.c_str() : "\xff";
}

/* What a call does with an error: it throws, or stores the error in a std::error_code. */
class OnError {
  public:
    OnError() noexcept = default;
    OnError(std::error_code &ec) noexcept : ec_(&ec) {}
    std::error_code *get() const noexcept { return ec_; }

  private:
    std::error_code *ec_ = nullptr;
};

/* Whether a scope ends by an exception that was thrown after `count` exceptions were in flight. */
inline bool is_unwinding(int count) noexcept { return std::uncaught_exceptions() > count; }

} // namespace detail

/* ---- Bytes ---- */

/* A view of bytes: a key or a value. It owns nothing, as std::string_view does. */
class Bytes {
  public:
    constexpr Bytes() noexcept = default;
    constexpr Bytes(const void *data, std::size_t len) noexcept : data_(data), len_(len) {}
    Bytes(const char *text) noexcept : Bytes(text, std::strlen(text)) {}
    Bytes(std::string_view text) noexcept : Bytes(text.data(), text.size()) {}
    Bytes(const std::string &text) noexcept : Bytes(text.data(), text.size()) {}
    template <class Item, class Allocator,
              class = std::enable_if_t<std::is_trivially_copyable_v<Item> &&
                                       !std::is_same_v<Item, bool>>>
    Bytes(const std::vector<Item, Allocator> &items) noexcept
        : Bytes(items.data(), items.size() * sizeof(Item)) {}

    constexpr const void *data() const noexcept { return data_; }
    constexpr std::size_t size() const noexcept { return len_; }
    constexpr bool empty() const noexcept { return len_ == 0; }
    std::string_view text() const noexcept { return {static_cast<const char *>(data_), len_}; }

  private:
    const void *data_ = nullptr;
    std::size_t len_ = 0;
};

/* The bytes of an object, for put(). The object must be trivially copyable. */
template <class T> Bytes bytes_of(const T &value) noexcept {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>,
                  "the bytes of this type mean nothing to another process");
    return {std::addressof(value), sizeof(T)};
}

namespace detail {

/* How a type is stored as a value: trivially copyable objects, vectors of them, and strings. */
template <class T> struct Codec {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>,
                  "only trivially copyable types, vectors of them and strings are values");
    static Bytes encode(const T &value) noexcept { return bytes_of(value); }
    static std::optional<T> decode(const std::string &bytes) {
        if (bytes.size() != sizeof(T)) {
            return std::nullopt;
        }
        T value;
        std::memcpy(std::addressof(value), bytes.data(), sizeof(T));
        return value;
    }
};

template <class Item, class Allocator> struct Codec<std::vector<Item, Allocator>> {
    static_assert(std::is_trivially_copyable_v<Item> && !std::is_same_v<Item, bool>,
                  "the items of a stored vector are trivially copyable, and not bool");
    static Bytes encode(const std::vector<Item, Allocator> &items) noexcept { return {items}; }
    static std::optional<std::vector<Item, Allocator>> decode(const std::string &bytes) {
        if (bytes.size() % sizeof(Item) != 0) {
            return std::nullopt;
        }
        std::vector<Item, Allocator> items(bytes.size() / sizeof(Item));
        if (!items.empty()) {
            std::memcpy(items.data(), bytes.data(), bytes.size());
        }
        return items;
    }
};

template <> struct Codec<std::string> {
    static Bytes encode(const std::string &text) noexcept { return {text}; }
    static std::optional<std::string> decode(const std::string &bytes) { return bytes; }
};

/* Reads a value of unknown length: `read(buffer, capacity, &len)` is a get of the C library. */
template <class Read>
std::optional<std::string> read_whole(Read read, std::error_code *ec) {
    std::string value(256, '\0');
    for (;;) {
        std::size_t len = 0;
        const int code = read(value.data(), value.size(), &len);
        if (code == OUTLAST_TOO_SMALL) {
            value.resize(len);
            continue;
        }
        if (report(code, ec) != OUTLAST_OK) {
            return std::nullopt;
        }
        value.resize(len);
        return value;
    }
}

template <class T>
std::optional<T> decode(const std::optional<std::string> &bytes, std::error_code *ec) {
    if (!bytes) {
        return std::nullopt;
    }
    std::optional<T> value = Codec<T>::decode(*bytes);
    if (!value) {
        report(OUTLAST_WRONG_TYPE,
               "the value has " + std::to_string(bytes->size()) +
                   " bytes, which is no value of the requested type",
               ec);
    }
    return value;
}

/* The visitor of a listing. An exception of the program's function ends the listing. */
template <class Visit> struct Listing {
    Visit &visit;
    std::exception_ptr thrown;

    static int call(void *context, const void *key, std::size_t len) noexcept {
        auto *self = static_cast<Listing *>(context);
        const std::string_view text(static_cast<const char *>(key), len);
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
        try {
            return self->step(text);
        } catch (...) {
            self->thrown = std::current_exception();
            return 1;
        }
#else
        return self->step(text);
#endif
    }

    int step(std::string_view key) {
        if constexpr (std::is_same_v<std::invoke_result_t<Visit &, std::string_view>, bool>) {
            return visit(key) ? 0 : 1;
        } else {
            visit(key);
            return 0;
        }
    }

    void rethrow() const {
        if (thrown) {
            std::rethrow_exception(thrown);
        }
    }
};

/* What a function that C calls fills. An exception ends the listing, and goes on afterwards. */
template <class Filled> struct Visited {
    Filled &filled;
    std::exception_ptr thrown;

    template <class Step> int run(Step step) noexcept {
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
        try {
            step(filled);
        } catch (...) {
            thrown = std::current_exception();
            return 1;
        }
#else
        step(filled);
#endif
        return 0;
    }

    void rethrow() const {
        if (thrown) {
            std::rethrow_exception(thrown);
        }
    }
};

} // namespace detail

/* Many calls take this as their last argument: nothing, or a std::error_code. */
using OnError = detail::OnError;

/* The version of a value. The versions of a key only grow. */
struct Version {
    std::uint64_t counter = 0;
    std::uint32_t writer = 0;

    friend bool operator==(const Version &a, const Version &b) noexcept {
        return a.counter == b.counter && a.writer == b.writer;
    }
    friend bool operator!=(const Version &a, const Version &b) noexcept { return !(a == b); }
    friend bool operator<(const Version &a, const Version &b) noexcept {
        return a.counter != b.counter ? a.counter < b.counter : a.writer < b.writer;
    }
};

/* A value with its version. */
struct Value {
    std::string bytes;
    Version version;
};

/* How many replicas are still to be made again, and how many partitions are lost. */
struct RepairStatus {
    std::size_t replicas_missing = 0;
    std::size_t partitions_lost = 0;
};

/* A death, and the member that takes over from the dead member. */
struct Death {
    std::uint32_t member;
    std::uint32_t heir;
};

using Milliseconds = std::chrono::milliseconds;

namespace detail {
inline outlast_version to_c(Version version) noexcept { return {version.counter, version.writer}; }
inline Version from_c(outlast_version version) noexcept {
    return {version.counter, version.writer};
}
/* The parts of a value, as the C library takes them. It only reads them. */
inline std::vector<struct iovec> to_iovec(const std::vector<Bytes> &parts) {
    std::vector<struct iovec> list;
    list.reserve(parts.size());
    for (const Bytes &part : parts) {
        list.push_back({const_cast<void *>(part.data()), part.size()});
    }
    return list;
}

inline std::uint64_t count(Milliseconds time) noexcept {
    return time.count() < 0 ? 0 : static_cast<std::uint64_t>(time.count());
}

/* A structure of the C library that begins with struct_size. */
template <class Structure> Structure sized() noexcept {
    Structure structure{};
    structure.struct_size = sizeof(Structure);
    return structure;
}

/* Calls `list(items, capacity, &count)` of the C library, and returns the items. The capacity is
 * enough for all of them. */
template <class Item, class List>
std::vector<Item> read_list(std::size_t capacity, List list, const OnError &on) {
    std::vector<Item> items(capacity);
    std::size_t count = 0;
    if (report(list(items.data(), items.size(), &count), on.get()) < 0) {
        count = 0;
    }
    items.resize(count < capacity ? count : capacity);
    return items;
}

/* Keeps an object until the process ends: a thread of the library may use it until then. */
inline void keep_forever(std::shared_ptr<void> object) {
    static std::mutex mutex;
    static auto *const kept = new std::vector<std::shared_ptr<void>>();
    const std::lock_guard<std::mutex> guard(mutex);
    kept->push_back(std::move(object));
}

/* A handle of the C library, and the function that frees it. */
template <class Raw, void (*free)(Raw *)> struct Free {
    void operator()(Raw *raw) const noexcept { free(raw); }
};
} // namespace detail

/* How to join; the fields are those of outlast.h. The text of a domain must live until join()
 * returns. */
struct JoinOptions : outlast_join_options {
    JoinOptions() noexcept : outlast_join_options() { struct_size = sizeof(outlast_join_options); }
    JoinOptions &with_time_limit(Milliseconds limit) {
        return time_limit_ms = detail::count(limit), *this;
    }
    JoinOptions &with_segment_limit(std::uint64_t bytes) { return segment_limit = bytes, *this; }
    JoinOptions &with_domain(const char *path) { return domain = path, *this; }
};

/* ---- The job ---- */

class Job {
  public:
    /* Joins the job in which this process was started. */
    static Job join() { return Job(outlast_join, nullptr); }
    static Job join(std::error_code &ec) { return Job(outlast_join, &ec); }
    static Job join(const JoinOptions &options) {
        return Job([&](outlast_job **job) { return outlast_join_with(&options, job); }, nullptr);
    }
    static Job join(const JoinOptions &options, std::error_code &ec) {
        return Job([&](outlast_job **job) { return outlast_join_with(&options, job); }, &ec);
    }

    /* Joins a job of the ranks of a communicator: `comm` is an MPI_Comm of Open MPI, or nullptr for
     * MPI_COMM_WORLD. See outlast_join_mpi. */
    static Job join_mpi(void *comm = nullptr, bool set_errhandlers = false) {
        return Job([=](outlast_job **job) { return outlast_join_mpi(comm, set_errhandlers, job); },
                   nullptr);
    }
    static Job join_mpi(void *comm, bool set_errhandlers, std::error_code &ec) {
        return Job([=](outlast_job **job) { return outlast_join_mpi(comm, set_errhandlers, job); },
                   &ec);
    }

    Job(Job &&other) noexcept : raw_(std::exchange(other.raw_, nullptr)), count_(other.count_) {}
    Job &operator=(Job &&other) noexcept {
        if (this != &other) {
            end();
            raw_ = std::exchange(other.raw_, nullptr);
            count_ = other.count_;
        }
        return *this;
    }
    Job(const Job &) = delete;
    Job &operator=(const Job &) = delete;
    ~Job() { end(); }

    /* Ends the membership of this process. Close the store before. */
    void leave() { detail::report(outlast_leave(std::exchange(raw_, nullptr)), nullptr); }
    void leave(std::error_code &ec) {
        detail::report(outlast_leave(std::exchange(raw_, nullptr)), &ec);
    }

    std::uint32_t me() const noexcept { return outlast_me(raw_); }
    std::uint32_t members() const noexcept { return outlast_members(raw_); }
    std::uint32_t living() const noexcept { return outlast_living(raw_); }
    /* How long a call waits for a living member. */
    Milliseconds time_limit() const noexcept {
        return Milliseconds(static_cast<Milliseconds::rep>(outlast_time_limit_ms(raw_)));
    }
    bool is_living(std::uint32_t member) const noexcept {
        return outlast_is_living(raw_, member) != 0;
    }

    /* Returns when all living members have called it. */
    void barrier() const { detail::report(outlast_barrier(raw_), nullptr); }
    void barrier(std::error_code &ec) const { detail::report(outlast_barrier(raw_), &ec); }

    /* The members that are not known to be dead, in ascending order. */
    std::vector<std::uint32_t> living_members(OnError on = {}) const {
        return detail::read_list<std::uint32_t>(
            members(),
            [&](std::uint32_t *list, std::size_t capacity, std::size_t *count) {
                return outlast_living_members(raw_, list, capacity, count);
            },
            on);
    }
    /* The failure domain of a member, such as rack3/node17. */
    std::string domain(std::uint32_t member, OnError on = {}) const {
        auto path = detail::read_whole(
            [&](void *buffer, std::size_t capacity, std::size_t *len) {
                return outlast_domain(raw_, member, static_cast<char *>(buffer), capacity, len);
            },
            on.get());
        return path ? std::move(*path) : std::string();
    }
    /* Makes sure that a member is dead: kills it if it lives, and waits for the proof. */
    void fence(std::uint32_t member, Milliseconds limit, OnError on = {}) const {
        detail::report(outlast_fence(raw_, member, detail::count(limit)), on.get());
    }
    /* An MPI_Comm of the living members, for the program's own use. All of them call it. */
    void *shrunken_communicator(OnError on = {}) const {
        void *comm = nullptr;
        detail::report(outlast_mpi_shrunken(raw_, &comm), on.get());
        return comm;
    }

    /* Waiting for what comes first: a key, work or a death. outlast.h has the loop. */
    std::uint64_t bell() const noexcept { return outlast_bell(raw_); }
    bool park(std::uint64_t bell, Milliseconds limit) const {
        return detail::report(outlast_park(raw_, bell, detail::count(limit)), nullptr) ==
               OUTLAST_OK;
    }
    void ring(std::uint32_t member) const { detail::report(outlast_ring(raw_, member), nullptr); }
    explicit operator bool() const noexcept { return raw_ != nullptr; }
    /* The handle of the C library, for its other calls. */
    outlast_job *get() const noexcept { return raw_; }

  private:
    template <class Join> Job(Join join, std::error_code *ec) : count_(std::uncaught_exceptions()) {
        detail::report(join(&raw_), ec);
    }
    void end() noexcept {
        if (raw_ != nullptr && !detail::is_unwinding(count_)) {
            outlast_leave(raw_);
        }
        raw_ = nullptr;
    }

    outlast_job *raw_ = nullptr;
    int count_ = 0;
};

/* ---- Key handles ---- */

/* A handle of a key: a put through a handle costs one write and one compare-and-swap at each
 * replica. */
class Handle {
  public:
    Version put(Bytes value) const { return put(value, nullptr); }
    Version put(Bytes value, std::error_code &ec) const { return put(value, &ec); }
    template <class T> Version put_value(const T &value) const {
        return put(detail::Codec<T>::encode(value), nullptr);
    }
    /* Puts the bytes of all parts, one after the other. */
    Version put_parts(const std::vector<Bytes> &parts) const {
        const auto list = detail::to_iovec(parts);
        outlast_version version{};
        detail::report(outlast_handle_putv(raw_.get(), list.data(), static_cast<int>(list.size()),
                                           &version),
                       nullptr);
        return detail::from_c(version);
    }
    /* Puts a value if the key has this version, or does not exist; std::nullopt if not. */
    std::optional<Version> put_if(Bytes value, std::optional<Version> expected) const {
        return put_if(value, expected, nullptr);
    }
    std::optional<Version> put_if(Bytes value, std::optional<Version> expected,
                                  std::error_code &ec) const {
        return put_if(value, expected, &ec);
    }
    /* Adds to the number of the key, and returns the sum. */
    std::int64_t add(std::int64_t delta) const {
        std::int64_t after = 0;
        detail::report(outlast_handle_add(raw_.get(), delta, &after), nullptr);
        return after;
    }
    /* The version of the key, if the key exists. The value is not copied. */
    std::optional<Version> version() const {
        outlast_version version{};
        const int code = detail::report(outlast_handle_version(raw_.get(), &version), nullptr);
        return code == OUTLAST_OK ? std::optional<Version>(detail::from_c(version)) : std::nullopt;
    }
    std::optional<Value> get() const { return get(nullptr); }
    std::optional<Value> get(std::error_code &ec) const { return get(&ec); }
    template <class T> std::optional<T> get_value() const {
        std::optional<Value> value = get(nullptr);
        return value ? detail::decode<T>(std::move(value->bytes), nullptr) : std::nullopt;
    }
    /* Copies the value into a buffer, and returns its length. Status::too_small is an error. */
    std::optional<std::size_t> get_into(void *buffer, std::size_t capacity) const {
        return get_into(buffer, capacity, nullptr);
    }
    std::optional<std::size_t> get_into(void *buffer, std::size_t capacity,
                                        std::error_code &ec) const {
        return get_into(buffer, capacity, &ec);
    }
    outlast_handle *get_raw() const noexcept { return raw_.get(); }

  private:
    friend class Store;
    struct Free {
        void operator()(outlast_handle *raw) const noexcept { outlast_handle_free(raw); }
    };
    explicit Handle(outlast_handle *raw) noexcept : raw_(raw) {}

    Version put(Bytes value, std::error_code *ec) const {
        outlast_version version{};
        detail::report(outlast_handle_put(raw_.get(), value.data(), value.size(), &version), ec);
        return detail::from_c(version);
    }
    std::optional<Version> put_if(Bytes value, std::optional<Version> expected,
                                  std::error_code *ec) const {
        outlast_version version{};
        outlast_version wanted{};
        if (expected) {
            wanted = detail::to_c(*expected);
        }
        const int code = outlast_handle_put_if(raw_.get(), value.data(), value.size(),
                                               expected ? &wanted : nullptr, &version);
        if (code == OUTLAST_CONFLICT) {
            if (ec != nullptr) {
                ec->clear();
            }
            return std::nullopt;
        }
        return detail::report(code, ec) == OUTLAST_OK
                   ? std::optional<Version>(detail::from_c(version))
                   : std::nullopt;
    }
    std::optional<Value> get(std::error_code *ec) const {
        outlast_version version{};
        auto bytes = detail::read_whole(
            [&](void *buffer, std::size_t capacity, std::size_t *len) {
                return outlast_handle_get(raw_.get(), buffer, capacity, len, &version);
            },
            ec);
        return bytes ? std::optional<Value>({std::move(*bytes), detail::from_c(version)})
                     : std::nullopt;
    }
    std::optional<std::size_t> get_into(void *buffer, std::size_t capacity,
                                        std::error_code *ec) const {
        std::size_t len = 0;
        const int code = outlast_handle_get(raw_.get(), buffer, capacity, &len, nullptr);
        return detail::report(code, ec) == OUTLAST_OK ? std::optional<std::size_t>(len)
                                                      : std::nullopt;
    }

    std::unique_ptr<outlast_handle, Free> raw_;
};

/* ---- Locks ---- */

/* A held lock. The destructor releases it; unlock() reports errors. */
class Lock {
  public:
    Lock(Lock &&other) noexcept
        : raw_(std::exchange(other.raw_, nullptr)), abandoned_(other.abandoned_) {}
    Lock &operator=(Lock &&other) noexcept {
        if (this != &other) {
            end();
            raw_ = std::exchange(other.raw_, nullptr);
            abandoned_ = other.abandoned_;
        }
        return *this;
    }
    Lock(const Lock &) = delete;
    Lock &operator=(const Lock &) = delete;
    ~Lock() { end(); }

    /* The dead member that held the lock before: its work under the lock may be half done. */
    std::optional<std::uint32_t> abandoned() const noexcept { return abandoned_; }
    /* The version of the lock's record, which grows from holder to holder: a fencing token. */
    Version version(OnError on = {}) const {
        outlast_version version{};
        detail::report(outlast_lock_version(raw_, &version), on.get());
        return detail::from_c(version);
    }
    void unlock() { detail::report(outlast_unlock(std::exchange(raw_, nullptr)), nullptr); }
    void unlock(std::error_code &ec) {
        detail::report(outlast_unlock(std::exchange(raw_, nullptr)), &ec);
    }

  private:
    friend class Store;
    Lock(outlast_lock_guard *raw, std::int64_t abandoned) noexcept : raw_(raw) {
        if (abandoned >= 0) {
            abandoned_ = static_cast<std::uint32_t>(abandoned);
        }
    }
    void end() noexcept {
        if (raw_ != nullptr) {
            outlast_unlock(raw_);
            raw_ = nullptr;
        }
    }

    outlast_lock_guard *raw_;
    std::optional<std::uint32_t> abandoned_;
};

/* ---- Transactions ---- */

/* The transaction inside Store::transaction. Its changes take effect together when the function
 * returns, or not at all. An Error with Status::aborted, or that code in a std::error_code, means
 * that the transaction conflicts with another transaction: let it leave the function, and the
 * function is called again. */
class Transaction {
  public:
    std::optional<std::string> get(Bytes key) { return get(key, nullptr); }
    std::optional<std::string> get(Bytes key, std::error_code &ec) { return get(key, &ec); }
    template <class T> std::optional<T> get_value(Bytes key) {
        return detail::decode<T>(get(key, nullptr), nullptr);
    }
    template <class T> std::optional<T> get_value(Bytes key, std::error_code &ec) {
        return detail::decode<T>(get(key, &ec), &ec);
    }
    /* The value of a key without the changes of this transaction, with its version. */
    std::optional<Value> get_before(Bytes key, OnError on = {}) {
        outlast_version version{};
        auto bytes = detail::read_whole(
            [&](void *buffer, std::size_t capacity, std::size_t *len) {
                return outlast_tx_get_before(raw_, key.data(), key.size(), buffer, capacity, len,
                                             &version);
            },
            on.get());
        return bytes ? std::optional<Value>({std::move(*bytes), detail::from_c(version)})
                     : std::nullopt;
    }
    void put(Bytes key, Bytes value) { put(key, value, nullptr); }
    void put(Bytes key, Bytes value, std::error_code &ec) { put(key, value, &ec); }
    template <class T> void put_value(Bytes key, const T &value) {
        put(key, detail::Codec<T>::encode(value), nullptr);
    }
    /* Returns whether the key existed. */
    bool erase(Bytes key) { return erase(key, nullptr); }
    bool erase(Bytes key, std::error_code &ec) { return erase(key, &ec); }
    std::int64_t add(Bytes key, std::int64_t delta) { return add(key, delta, nullptr); }
    std::int64_t add(Bytes key, std::int64_t delta, std::error_code &ec) {
        return add(key, delta, &ec);
    }
    /* Makes this member the owner of the key. Returns whether the key exists. */
    bool adopt(Bytes key) { return adopt(key, nullptr); }
    bool adopt(Bytes key, std::error_code &ec) { return adopt(key, &ec); }
    /* Makes the transaction depend on a key that has this version or, without a version, that does
     * not exist. Status::conflict: the key is not so. */
    void require(Bytes key, std::optional<Version> version) { require(key, version, nullptr); }
    void require(Bytes key, std::optional<Version> version, std::error_code &ec) {
        require(key, version, &ec);
    }

    Transaction(const Transaction &) = delete;
    Transaction &operator=(const Transaction &) = delete;

  private:
    friend class Store;
    explicit Transaction(outlast_tx *raw) noexcept : raw_(raw) {}

    std::optional<std::string> get(Bytes key, std::error_code *ec) {
        return detail::read_whole(
            [&](void *buffer, std::size_t capacity, std::size_t *len) {
                return outlast_tx_get(raw_, key.data(), key.size(), buffer, capacity, len);
            },
            ec);
    }
    void put(Bytes key, Bytes value, std::error_code *ec) {
        detail::report(
            outlast_tx_put(raw_, key.data(), key.size(), value.data(), value.size()), ec);
    }
    bool erase(Bytes key, std::error_code *ec) {
        return detail::report(outlast_tx_delete(raw_, key.data(), key.size()), ec) == OUTLAST_OK;
    }
    std::int64_t add(Bytes key, std::int64_t delta, std::error_code *ec) {
        std::int64_t after = 0;
        detail::report(outlast_tx_add(raw_, key.data(), key.size(), delta, &after), ec);
        return after;
    }
    bool adopt(Bytes key, std::error_code *ec) {
        return detail::report(outlast_tx_adopt(raw_, key.data(), key.size()), ec) == OUTLAST_OK;
    }
    void require(Bytes key, std::optional<Version> version, std::error_code *ec) {
        outlast_version wanted{};
        if (version) {
            wanted = detail::to_c(*version);
        }
        detail::report(
            outlast_tx_require(raw_, key.data(), key.size(), version ? &wanted : nullptr), ec);
    }

    outlast_tx *raw_;
};

/* ---- Pins ---- */

/* A version that stays readable while its key changes. The destructor ends the pin. */
class Pin {
  public:
    /* The length of the pinned value. */
    std::uint64_t size() const noexcept { return len_; }
    Version version() const noexcept { return version_; }
    /* Copies len bytes of the pinned value from `from` on. It compares no checksum. */
    void read(std::uint64_t from, void *buffer, std::size_t len, OnError on = {}) const {
        detail::report(outlast_pin_read(raw_.get(), from, buffer, len), on.get());
    }
    /* The whole pinned value; empty after an error. */
    std::string bytes(OnError on = {}) const {
        std::string bytes(static_cast<std::size_t>(len_), '\0');
        const int code = outlast_pin_read(raw_.get(), 0, bytes.data(), bytes.size());
        return detail::report(code, on.get()) == OUTLAST_OK ? bytes : std::string();
    }

  private:
    friend class Store;
    Pin(outlast_pin *raw, std::uint64_t len, Version version) noexcept
        : raw_(raw), len_(len), version_(version) {}

    std::unique_ptr<outlast_pin, detail::Free<outlast_pin, outlast_pin_free>> raw_;
    std::uint64_t len_;
    Version version_;
};

/* ---- Snapshots ---- */

/* How snapshots are taken; the fields are those of outlast.h. */
struct SnapshotOptions : outlast_snapshot_options {
    SnapshotOptions() noexcept : outlast_snapshot_options() {
        struct_size = sizeof(outlast_snapshot_options);
    }
    SnapshotOptions &with_keep(std::uint64_t count) { return keep = count, *this; }
    SnapshotOptions &with_bytes_per_second(std::uint64_t bytes) {
        return bytes_per_second = bytes, *this;
    }
};

/* What a restore has put into the store. */
struct Restored {
    std::uint64_t records = 0;
    std::uint64_t bytes = 0;
};

/* A folder of snapshots; made by Store::snapshots. */
class Snapshots {
  public:
    /* Takes a snapshot, at a single member, and waits until it is published. After an error, and
     * whichever members die, earlier snapshots stand. */
    outlast_snapshot take(OnError on = {}) const {
        auto snapshot = detail::sized<outlast_snapshot>();
        detail::report(outlast_snapshot_take(raw_.get(), &snapshot), on.get());
        return snapshot;
    }

  private:
    friend class Store;
    explicit Snapshots(outlast_snapshots *raw) noexcept : raw_(raw) {}

    std::unique_ptr<outlast_snapshots, detail::Free<outlast_snapshots, outlast_snapshots_free>>
        raw_;
};

/* ---- The store ---- */

/* Options of a store, equal at all members. The other fields are those of outlast.h. */
struct Options : outlast_options {
    Options() noexcept : outlast_options() { struct_size = sizeof(outlast_options); }
    Options &with_replicas(std::uint32_t count) { return replicas = count, *this; }
    Options &with_expected_keys(std::uint64_t count) { return expected_keys = count, *this; }
    Options &with_fewer_allowed() { return allow_fewer = 1, *this; }
    Options &with_checksums() { return checksums = 1, *this; }
    Options &with_global_mode() { return global_mode = 1, *this; }
    Options &with_salvage() { return salvage = 1, *this; }
    /* The text must live until the store is open. */
    Options &with_name(const char *text) { return name = text, *this; }
};

/* A get that was begun with Store::get_nb. */
class PendingGet {
  public:
    /* Whether wait() would return at once. */
    bool is_ready() const noexcept { return outlast_pending_is_ready(raw_.get()) != 0; }
    /* The value; std::nullopt if the key does not exist. It is given once. */
    std::optional<Value> wait(OnError on = {}) {
        outlast_version version{};
        auto bytes = detail::read_whole(
            [&](void *buffer, std::size_t capacity, std::size_t *len) {
                return outlast_pending_get(raw_.get(), buffer, capacity, len, &version);
            },
            on.get());
        return bytes ? std::optional<Value>({std::move(*bytes), detail::from_c(version)})
                     : std::nullopt;
    }

  private:
    friend class Store;
    explicit PendingGet(outlast_pending *raw) noexcept : raw_(raw) {}

    std::unique_ptr<outlast_pending, detail::Free<outlast_pending, outlast_pending_free>> raw_;
};

/* What ended a wait: a value, the death of the member that was to put it, or the time limit. */
struct WaitOutcome {
    std::optional<Value> value;
    bool died = false;
};

class Store {
  public:
    /* Opens a store, which is empty. All members call it. The job must outlive the store. A job may
     * have several stores at a time, each under its own name (Options::with_name); after close() a
     * store can be opened again. */
    static Store open(const Job &job, const Options &options = Options()) {
        return Store(job, options, nullptr);
    }
    static Store open(const Job &job, const Options &options, std::error_code &ec) {
        return Store(job, options, &ec);
    }

    Store(Store &&other) noexcept
        : raw_(std::exchange(other.raw_, nullptr)), count_(other.count_) {}
    Store &operator=(Store &&other) noexcept {
        if (this != &other) {
            end();
            raw_ = std::exchange(other.raw_, nullptr);
            count_ = other.count_;
        }
        return *this;
    }
    Store(const Store &) = delete;
    Store &operator=(const Store &) = delete;
    ~Store() { end(); }

    /* Closes the store, after waiting for a bounded time until all living members close it. */
    void close() { detail::report(outlast_close(std::exchange(raw_, nullptr)), nullptr); }
    void close(std::error_code &ec) {
        detail::report(outlast_close(std::exchange(raw_, nullptr)), &ec);
    }
    explicit operator bool() const noexcept { return raw_ != nullptr; }
    outlast_store *get_raw() const noexcept { return raw_; }

    /* Puts a value. When the call returns, every replica holds the value. */
    Version put(Bytes key, Bytes value) const { return put(key, value, nullptr); }
    Version put(Bytes key, Bytes value, std::error_code &ec) const { return put(key, value, &ec); }
    /* Puts a trivially copyable object, a vector of them, or a string. */
    template <class T> Version put_value(Bytes key, const T &value) const {
        return put(key, detail::Codec<T>::encode(value), nullptr);
    }
    template <class T> Version put_value(Bytes key, const T &value, std::error_code &ec) const {
        return put(key, detail::Codec<T>::encode(value), &ec);
    }

    /* Puts a value if the key has this version, or, with std::nullopt, if it does not exist.
     * Returns std::nullopt if the condition does not hold: nothing was changed. */
    std::optional<Version> put_if(Bytes key, Bytes value, std::optional<Version> expected) const {
        return put_if(key, value, expected, nullptr);
    }
    std::optional<Version> put_if(Bytes key, Bytes value, std::optional<Version> expected,
                                  std::error_code &ec) const {
        return put_if(key, value, expected, &ec);
    }

    std::optional<Value> get(Bytes key) const { return get(key, nullptr); }
    std::optional<Value> get(Bytes key, std::error_code &ec) const { return get(key, &ec); }
    /* Reads a value that put_value wrote. Another length is Status::wrong_type. */
    template <class T> std::optional<T> get_value(Bytes key) const {
        return get_value<T>(key, nullptr);
    }
    template <class T> std::optional<T> get_value(Bytes key, std::error_code &ec) const {
        return get_value<T>(key, &ec);
    }
    /* Copies the value into a buffer, and returns its length. Status::too_small is an error. */
    std::optional<std::size_t> get_into(Bytes key, void *buffer, std::size_t capacity) const {
        return get_into(key, buffer, capacity, nullptr);
    }
    std::optional<std::size_t> get_into(Bytes key, void *buffer, std::size_t capacity,
                                        std::error_code &ec) const {
        return get_into(key, buffer, capacity, &ec);
    }

    bool exists(Bytes key) const { return exists(key, nullptr); }
    bool exists(Bytes key, std::error_code &ec) const { return exists(key, &ec); }
    /* Deletes a key. Returns whether it existed. */
    bool erase(Bytes key) const { return erase(key, nullptr); }
    bool erase(Bytes key, std::error_code &ec) const { return erase(key, &ec); }
    /* Adds to the number that the key holds, 0 if it does not exist, and returns the sum. */
    std::int64_t add(Bytes key, std::int64_t delta) const { return add(key, delta, nullptr); }
    std::int64_t add(Bytes key, std::int64_t delta, std::error_code &ec) const {
        return add(key, delta, &ec);
    }

    /* Sleeps until the key exists, or has a newer version than `newer_than`. Also ends when
     * `member` is dead and has not put the key, and at the time limit. */
    WaitOutcome wait(Bytes key, Milliseconds limit,
                     std::optional<Version> newer_than = std::nullopt,
                     std::optional<std::uint32_t> member = std::nullopt) const {
        return wait(key, limit, newer_than, member, nullptr);
    }
    WaitOutcome wait(Bytes key, Milliseconds limit, std::optional<Version> newer_than,
                     std::optional<std::uint32_t> member, std::error_code &ec) const {
        return wait(key, limit, newer_than, member, &ec);
    }

    /* Calls visit(std::string_view) for each key with the prefix. A visit that returns bool ends
     * the listing by returning false. */
    template <class Visit> void scan(Bytes prefix, Visit &&visit) const {
        detail::Listing<std::remove_reference_t<Visit>> listing{visit, nullptr};
        const int code =
            outlast_scan(raw_, prefix.data(), prefix.size(), listing.call, &listing);
        listing.rethrow();
        detail::report(code, nullptr);
    }
    /* The keys with the prefix and their values, each as of some moment during the call. */
    std::vector<std::pair<std::string, Value>> scan_values(Bytes prefix, OnError on = {}) const {
        using Pairs = std::vector<std::pair<std::string, Value>>;
        Pairs pairs;
        detail::Visited<Pairs> visited{pairs, nullptr};
        const auto visit = [](void *context, const void *key, std::size_t key_len,
                              const void *value, std::size_t len,
                              const outlast_version *version) noexcept {
            return static_cast<detail::Visited<Pairs> *>(context)->run([&](Pairs &pairs) {
                pairs.emplace_back(std::string(Bytes(key, key_len).text()),
                                   Value{std::string(Bytes(value, len).text()),
                                         detail::from_c(*version)});
            });
        };
        const int code = outlast_scan_values(raw_, prefix.data(), prefix.size(), visit, &visited);
        visited.rethrow();
        detail::report(code, on.get());
        return pairs;
    }
    /* Calls visit(std::string_view) for each key that the member owns. */
    template <class Visit> void keys_of(std::uint32_t member, Visit &&visit) const {
        detail::Listing<std::remove_reference_t<Visit>> listing{visit, nullptr};
        const int code = outlast_keys_of(raw_, member, listing.call, &listing);
        listing.rethrow();
        detail::report(code, nullptr);
    }
    std::vector<std::string> keys_of(std::uint32_t member) const {
        std::vector<std::string> keys;
        keys_of(member, [&](std::string_view key) { keys.emplace_back(key); });
        return keys;
    }
    /* Makes this member the owner of the key. Returns whether the key exists. */
    bool adopt(Bytes key) const { return adopt(key, nullptr); }
    bool adopt(Bytes key, std::error_code &ec) const { return adopt(key, &ec); }

    /* Puts a value without waiting for the replicas; flush() waits and reports errors. */
    void put_nb(Bytes key, Bytes value) const { put_nb(key, value, nullptr); }
    void put_nb(Bytes key, Bytes value, std::error_code &ec) const { put_nb(key, value, &ec); }
    void flush() const { detail::report(outlast_flush(raw_), nullptr); }
    void flush(std::error_code &ec) const { detail::report(outlast_flush(raw_), &ec); }

    /* Begins to read a key. The value is as of some moment until PendingGet::wait returns. */
    PendingGet get_nb(Bytes key, OnError on = {}) const {
        outlast_pending *raw = nullptr;
        detail::report(outlast_get_nb(raw_, key.data(), key.size(), &raw), on.get());
        return PendingGet(raw);
    }
    /* Waits until the number of a key, which add() changes, is at least `count`. Returns false at
     * the time limit, and, if `seen` is given, once epoch() is another number: a member died. */
    bool wait_count(Bytes key, std::int64_t count, Milliseconds limit,
                    std::optional<std::uint64_t> seen = std::nullopt, OnError on = {}) const {
        const int code =
            outlast_wait_count(raw_, key.data(), key.size(), count, detail::count(limit),
                               seen ? &*seen : nullptr, nullptr);
        return detail::report(code, on.get()) == OUTLAST_OK;
    }

    /* A number that changes with each death. */
    std::uint64_t epoch() const noexcept { return outlast_epoch(raw_); }
    /* The deaths after `seen`, which is advanced. Begin with 0: epoch() may already count a member
     * that died before this member was back from open(), after it had put keys. */
    std::vector<Death> deaths(std::uint64_t &seen) const {
        std::vector<Death> deaths;
        Death death{};
        while (detail::report(outlast_next_death(raw_, &seen, &death.member, &death.heir),
                              nullptr) == OUTLAST_OK) {
            deaths.push_back(death);
        }
        return deaths;
    }
    /* How many replicas are missing, and how many partitions are lost, in the whole job. */
    RepairStatus repair_status(OnError on = {}) const {
        RepairStatus status;
        detail::report(outlast_repair_status(raw_, &status.replicas_missing,
                                             &status.partitions_lost),
                       on.get());
        return status;
    }
    /* Waits until every partition that is not lost has all its replicas. Returns whether it has. */
    bool wait_repaired(Milliseconds limit, OnError on = {}) const {
        return detail::report(
                   outlast_wait_repaired(raw_, detail::count(limit), nullptr, nullptr),
                   on.get()) == OUTLAST_OK;
    }
    /* The lost keys that survivors can still name; see outlast_lost_keys. */
    std::vector<std::string> lost_keys(OnError on = {}) const {
        std::vector<std::string> keys;
        auto collect = [&](std::string_view key) { keys.emplace_back(key); };
        detail::Listing<decltype(collect)> listing{collect, nullptr};
        const int code = outlast_lost_keys(raw_, listing.call, &listing);
        listing.rethrow();
        detail::report(code, on.get());
        return keys;
    }
    /* The partitions of which no complete replica lives, and whose loss is not accepted. */
    std::vector<std::size_t> lost_partitions(OnError on = {}) const {
        std::size_t count = 0;
        if (detail::report(outlast_lost_partitions(raw_, nullptr, 0, &count), on.get()) < 0) {
            return {};
        }
        return detail::read_list<std::size_t>(
            count,
            [&](std::size_t *partitions, std::size_t capacity, std::size_t *found) {
                return outlast_lost_partitions(raw_, partitions, capacity, found);
            },
            on);
    }
    std::size_t partition_of(Bytes key, OnError on = {}) const {
        std::size_t partition = 0;
        detail::report(outlast_partition_of(raw_, key.data(), key.size(), &partition), on.get());
        return partition;
    }
    /* Registers a function that is called, in a thread of the library, after each death that leaves
     * lost partitions. An exception that leaves it ends the program. It is kept until the process
     * ends, with all that it has captured. */
    void on_loss(std::function<void(const std::vector<std::size_t> &)> listener,
                 OnError on = {}) const {
        using Listener = std::function<void(const std::vector<std::size_t> &)>;
        auto kept = std::make_shared<Listener>(std::move(listener));
        struct Call {
            static void listen(void *context, const std::size_t *partitions,
                               std::size_t count) noexcept {
                (*static_cast<Listener *>(context))({partitions, partitions + count});
            }
        };
        const int code = outlast_on_loss(raw_, Call::listen, kept.get());
        if (detail::report(code, on.get()) == OUTLAST_OK) {
            detail::keep_forever(std::move(kept));
        }
    }
    /* Makes lost partitions usable again, without their old contents. Returns their number. */
    std::size_t accept_loss() const {
        std::size_t partitions = 0;
        detail::report(outlast_accept_loss(raw_, &partitions), nullptr);
        return partitions;
    }
    /* The same for these partitions alone. */
    void accept_loss(const std::vector<std::size_t> &partitions, OnError on = {}) const {
        const int code = outlast_accept_loss_of(raw_, partitions.data(), partitions.size());
        detail::report(code, on.get());
    }
    /* The member that takes over from a dead member, under the current view. */
    std::uint32_t heir_of(std::uint32_t member) const noexcept {
        return outlast_heir_of(raw_, member);
    }
    /* Hands the replicas of this member over to other members, and ends the membership with all its
     * stores. Until Status::timeout stops coming, call it again. */
    void hand_over(Milliseconds limit, OnError on = {}) const {
        detail::report(outlast_hand_over(raw_, detail::count(limit)), on.get());
    }

    /* Global mode: stops all members, as a death does. */
    void revoke(OnError on = {}) const { detail::report(outlast_revoke(raw_), on.get()); }
    /* Whether calls fail with Status::revoked now. */
    bool is_revoked() const noexcept { return outlast_is_revoked(raw_) != 0; }
    /* Global mode: recovers from deaths. All living members call it after Status::revoked.
     * procedure(Transaction &, const std::vector<Death> &) runs again if another member dies. The
     * changes of the procedures of all members take effect together, or none does. An exception of
     * the procedure gives the recovery up at all members, and goes on. */
    template <class Procedure> void recover(Procedure &&procedure) const {
        int code = OUTLAST_REVOKED;
        while (code == OUTLAST_REVOKED) {
            outlast_recovery *recovery = nullptr;
            detail::report(outlast_recover_begin(raw_, &recovery), nullptr);
            code = recover_once(procedure, recovery);
        }
        detail::report(code, nullptr);
    }

    /* Puts many keys, in order. Each put is a call of its own: at the first error the earlier puts
     * have happened, and the later puts are not tried. Returns how many have happened. */
    std::size_t put_all(const std::vector<std::pair<Bytes, Bytes>> &pairs, OnError on = {}) const {
        std::vector<outlast_pair> list;
        list.reserve(pairs.size());
        for (const auto &[key, value] : pairs) {
            list.push_back({key.data(), key.size(), value.data(), value.size()});
        }
        std::size_t done = 0;
        detail::report(outlast_put_all(raw_, list.data(), list.size(), &done), on.get());
        return done;
    }
    /* The values of many keys, each as of some moment during the call. */
    std::vector<std::optional<Value>> get_all(const std::vector<Bytes> &keys,
                                              OnError on = {}) const {
        std::vector<std::optional<Value>> values;
        values.reserve(keys.size());
        for (const Bytes &key : keys) {
            values.push_back(get(key, on.get()));
            if (on.get() != nullptr && *on.get()) {
                return {};
            }
        }
        return values;
    }
    /* Puts the bytes of all parts, one after the other. */
    Version put_parts(Bytes key, const std::vector<Bytes> &parts, OnError on = {}) const {
        const auto list = detail::to_iovec(parts);
        outlast_version version{};
        detail::report(outlast_putv(raw_, key.data(), key.size(), list.data(),
                                    static_cast<int>(list.size()), &version),
                       on.get());
        return detail::from_c(version);
    }
    /* The number of keys that exist. The call lists all keys. */
    std::size_t count(OnError on = {}) const {
        std::size_t keys = 0;
        detail::report(outlast_count(raw_, &keys), on.get());
        return keys;
    }
    /* The member that created the key, or adopted it since; std::nullopt if no such key exists. */
    std::optional<std::uint32_t> owner_of(Bytes key, OnError on = {}) const {
        std::uint32_t member = 0;
        const int code = outlast_owner_of(raw_, key.data(), key.size(), &member);
        return detail::report(code, on.get()) == OUTLAST_OK ? std::optional<std::uint32_t>(member)
                                                            : std::nullopt;
    }
    /* The members that hold the key, or are to hold it. */
    std::vector<std::uint32_t> replicas_of(Bytes key, OnError on = {}) const {
        return detail::read_list<std::uint32_t>(
            8,
            [&](std::uint32_t *members, std::size_t capacity, std::size_t *count) {
                return outlast_replicas_of(raw_, key.data(), key.size(), members, capacity, count);
            },
            on);
    }

    /* Pins the current version of a key; std::nullopt if the key does not exist. */
    std::optional<Pin> pin(Bytes key, OnError on = {}) const {
        outlast_pin *raw = nullptr;
        std::uint64_t len = 0;
        outlast_version version{};
        const int code = outlast_pin_open(raw_, key.data(), key.size(), &raw, &len, &version);
        if (detail::report(code, on.get()) != OUTLAST_OK) {
            return std::nullopt;
        }
        return Pin(raw, len, detail::from_c(version));
    }

    /* What this member has done since it opened the store. */
    outlast_stats stats(OnError on = {}) const {
        auto stats = detail::sized<outlast_stats>();
        detail::report(outlast_get_stats(raw_, &stats), on.get());
        return stats;
    }
    /* What the whole store holds. The call reads all records. */
    outlast_totals totals(OnError on = {}) const {
        auto totals = detail::sized<outlast_totals>();
        detail::report(outlast_get_totals(raw_, &totals), on.get());
        return totals;
    }
    /* What this member's memory is used for. The call reads every block. */
    outlast_memory memory(OnError on = {}) const {
        auto memory = detail::sized<outlast_memory>();
        detail::report(outlast_get_memory(raw_, &memory), on.get());
        return memory;
    }

    /* Opens a folder of snapshots, which all members reach and all members open. */
    Snapshots snapshots(const std::string &folder,
                        const SnapshotOptions &options = SnapshotOptions(), OnError on = {}) const {
        outlast_snapshots *raw = nullptr;
        detail::report(outlast_snapshots_open(raw_, detail::whole(folder), &options, &raw),
                       on.get());
        return Snapshots(raw);
    }
    /* Puts the records of a snapshot into the store: the share with this number of `shares` equal
     * shares. See outlast_snapshot_restore. */
    Restored restore_snapshot(const std::string &path, std::size_t share = 0,
                              std::size_t shares = 1, OnError on = {}) const {
        Restored restored;
        detail::report(outlast_snapshot_restore(raw_, detail::whole(path), share, shares,
                                                &restored.records, &restored.bytes),
                       on.get());
        return restored;
    }

    Handle handle(Bytes key) const { return handle(key, nullptr); }
    Handle handle(Bytes key, std::error_code &ec) const { return handle(key, &ec); }

    /* Takes the lock of a key. Returns std::nullopt if another holder kept it until the limit. */
    std::optional<Lock> lock(Bytes key, Milliseconds limit) const {
        return lock(key, limit, nullptr);
    }
    std::optional<Lock> lock(Bytes key, Milliseconds limit, std::error_code &ec) const {
        return lock(key, limit, &ec);
    }

    /* Runs body(Transaction &) in a transaction, commits it, and returns what body returned. body
     * runs again after each conflict. An exception of body aborts the transaction and goes on. */
    template <class Body> auto transaction(Body &&body) const {
        return transaction(std::forward<Body>(body), nullptr);
    }
    /* The form with codes: body(Transaction &, std::error_code &) returns nothing. An error that it
     * stores aborts the transaction and is the result, except that Status::aborted repeats it. */
    template <class Body> void transaction(Body &&body, std::error_code &ec) const {
        struct Context {
            std::remove_reference_t<Body> &body;
            std::error_code ec;
            static int call(void *context, outlast_tx *raw) noexcept {
                auto *self = static_cast<Context *>(context);
                self->ec.clear();
                Transaction tx(raw);
                self->body(tx, self->ec);
                if (!self->ec) {
                    return OUTLAST_OK;
                }
                return self->ec.category() == category() ? self->ec.value() : OUTLAST_FAILED;
            }
        } context{body, {}};
        const int code = outlast_transaction(raw_, Context::call, &context);
        if (context.ec && context.ec.category() != category()) {
            ec = context.ec;
            return;
        }
        detail::report(code, &ec);
    }

  private:
    Store(const Job &job, const Options &options, std::error_code *ec)
        : count_(std::uncaught_exceptions()) {
        detail::report(outlast_open(job.get(), &options, &raw_), ec);
    }
    void end() noexcept {
        if (raw_ != nullptr && !detail::is_unwinding(count_)) {
            outlast_close(raw_);
        }
        raw_ = nullptr;
    }

    /* Runs the procedure of a recovery, and ends the recovery. */
    template <class Procedure>
    static int recover_once(Procedure &procedure, outlast_recovery *recovery) {
        std::vector<Death> deaths;
        Death death{};
        while (outlast_recovery_death(recovery, deaths.size(), &death.member, &death.heir) ==
               OUTLAST_OK) {
            deaths.push_back(death);
        }
        Transaction tx(outlast_recovery_tx(recovery));
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
        try {
            procedure(tx, deaths);
        } catch (const Error &error) {
            // Another member died in the middle of the procedure.
            if (error.status() != Status::revoked) {
                outlast_recover_fail(recovery);
                throw;
            }
        } catch (...) {
            outlast_recover_fail(recovery);
            throw;
        }
#else
        procedure(tx, deaths);
#endif
        return outlast_recover_end(recovery);
    }

    Version put(Bytes key, Bytes value, std::error_code *ec) const {
        outlast_version version{};
        detail::report(outlast_put(raw_, key.data(), key.size(), value.data(), value.size(),
                                   &version),
                       ec);
        return detail::from_c(version);
    }
    std::optional<Version> put_if(Bytes key, Bytes value, std::optional<Version> expected,
                                  std::error_code *ec) const {
        outlast_version version{};
        outlast_version wanted{};
        if (expected) {
            wanted = detail::to_c(*expected);
        }
        const int code = outlast_put_if(raw_, key.data(), key.size(), value.data(), value.size(),
                                        expected ? &wanted : nullptr, &version);
        if (code == OUTLAST_CONFLICT) {
            if (ec != nullptr) {
                ec->clear();
            }
            return std::nullopt;
        }
        return detail::report(code, ec) == OUTLAST_OK
                   ? std::optional<Version>(detail::from_c(version))
                   : std::nullopt;
    }
    std::optional<Value> get(Bytes key, std::error_code *ec) const {
        outlast_version version{};
        auto bytes = detail::read_whole(
            [&](void *buffer, std::size_t capacity, std::size_t *len) {
                return outlast_get(raw_, key.data(), key.size(), buffer, capacity, len, &version);
            },
            ec);
        return bytes ? std::optional<Value>({std::move(*bytes), detail::from_c(version)})
                     : std::nullopt;
    }
    template <class T> std::optional<T> get_value(Bytes key, std::error_code *ec) const {
        std::optional<Value> value = get(key, ec);
        return value ? detail::decode<T>(std::move(value->bytes), ec) : std::nullopt;
    }
    std::optional<std::size_t> get_into(Bytes key, void *buffer, std::size_t capacity,
                                        std::error_code *ec) const {
        std::size_t len = 0;
        const int code = outlast_get(raw_, key.data(), key.size(), buffer, capacity, &len, nullptr);
        return detail::report(code, ec) == OUTLAST_OK ? std::optional<std::size_t>(len)
                                                      : std::nullopt;
    }
    bool exists(Bytes key, std::error_code *ec) const {
        return detail::report(outlast_exists(raw_, key.data(), key.size()), ec) == OUTLAST_OK;
    }
    bool erase(Bytes key, std::error_code *ec) const {
        return detail::report(outlast_delete(raw_, key.data(), key.size()), ec) == OUTLAST_OK;
    }
    std::int64_t add(Bytes key, std::int64_t delta, std::error_code *ec) const {
        std::int64_t after = 0;
        detail::report(outlast_add(raw_, key.data(), key.size(), delta, &after), ec);
        return after;
    }
    WaitOutcome wait(Bytes key, Milliseconds limit, std::optional<Version> newer_than,
                     std::optional<std::uint32_t> member, std::error_code *ec) const {
        outlast_version version{};
        outlast_version newer{};
        if (newer_than) {
            newer = detail::to_c(*newer_than);
        }
        int last = OUTLAST_OK;
        auto bytes = detail::read_whole(
            [&](void *buffer, std::size_t capacity, std::size_t *len) {
                last = outlast_wait(raw_, key.data(), key.size(), newer_than ? &newer : nullptr,
                                    detail::count(limit),
                                    member ? static_cast<std::int64_t>(*member) : -1, buffer,
                                    capacity, len, &version);
                return last;
            },
            ec);
        WaitOutcome outcome;
        outcome.died = last == OUTLAST_DIED;
        if (bytes) {
            outcome.value = Value{std::move(*bytes), detail::from_c(version)};
        }
        return outcome;
    }
    bool adopt(Bytes key, std::error_code *ec) const {
        return detail::report(outlast_adopt(raw_, key.data(), key.size()), ec) == OUTLAST_OK;
    }
    void put_nb(Bytes key, Bytes value, std::error_code *ec) const {
        detail::report(
            outlast_put_nb(raw_, key.data(), key.size(), value.data(), value.size()), ec);
    }
    Handle handle(Bytes key, std::error_code *ec) const {
        outlast_handle *raw = nullptr;
        detail::report(outlast_handle_open(raw_, key.data(), key.size(), &raw), ec);
        return Handle(raw);
    }
    std::optional<Lock> lock(Bytes key, Milliseconds limit, std::error_code *ec) const {
        outlast_lock_guard *raw = nullptr;
        std::int64_t abandoned = -1;
        const int code =
            outlast_lock(raw_, key.data(), key.size(), detail::count(limit), &raw, &abandoned);
        if (code == OUTLAST_LOCKED) {
            if (ec != nullptr) {
                ec->clear();
            }
            return std::nullopt;
        }
        if (detail::report(code, ec) != OUTLAST_OK) {
            return std::nullopt;
        }
        return Lock(raw, abandoned);
    }

    /* The body runs inside a callback of C, which no exception may leave: it is kept, the
     * transaction is aborted, and the exception goes on afterwards. */
    template <class Body> auto transaction(Body &&body, std::nullptr_t) const {
        using Result = std::invoke_result_t<Body &, Transaction &>;
        using Kept = std::conditional_t<std::is_void_v<Result>, char, std::optional<Result>>;
        struct Context {
            std::remove_reference_t<Body> &body;
            Kept kept;
            std::exception_ptr thrown;
            void run(outlast_tx *raw) {
                Transaction tx(raw);
                if constexpr (std::is_void_v<Result>) {
                    body(tx);
                } else {
                    kept = body(tx);
                }
            }
            static int call(void *context, outlast_tx *raw) noexcept {
                auto *self = static_cast<Context *>(context);
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
                try {
                    self->run(raw);
                    return OUTLAST_OK;
                } catch (const Error &error) {
                    if (error.status() == Status::aborted) {
                        return OUTLAST_ABORTED;
                    }
                    self->thrown = std::current_exception();
                } catch (...) {
                    self->thrown = std::current_exception();
                }
                return OUTLAST_FAILED;
#else
                self->run(raw);
                return OUTLAST_OK;
#endif
            }
        } context{body, {}, nullptr};
        const int code = outlast_transaction(raw_, Context::call, &context);
        if (context.thrown) {
            std::rethrow_exception(context.thrown);
        }
        detail::report(code, nullptr);
        if constexpr (!std::is_void_v<Result>) {
            return std::move(*context.kept);
        }
    }

    outlast_store *raw_ = nullptr;
    int count_ = 0;
};

/* ---- Region checkpoints ---- */

/* Options of region checkpoints, equal at all members; the fields are those of outlast.h. */
struct RegionOptions : outlast_region_options {
    RegionOptions() noexcept : outlast_region_options() {
        struct_size = sizeof(outlast_region_options);
    }
    RegionOptions &with_bytes(std::uint64_t count) { return bytes = count, *this; }
    RegionOptions &with_set(std::uint32_t pieces) { return set = pieces, *this; }
    RegionOptions &with_lose(std::uint32_t pieces) { return lose = pieces, *this; }
    RegionOptions &with_room(std::uint32_t percent) { return room = percent, *this; }
};

/* Memory by name, saved by all members together or by none. All members make the calls, except
 * protect(), note() and read(). The destructor closes the checkpoints where a scope ends normally,
 * as that of Store does. */
class Regions {
  public:
    static Regions open(const Store &store, const std::string &name,
                        const RegionOptions &options = RegionOptions(), OnError on = {}) {
        Regions regions;
        detail::report(
            outlast_regions_open(store.get_raw(), detail::whole(name), &options, &regions.raw_),
            on.get());
        return regions;
    }
    Regions(Regions &&other) noexcept
        : raw_(std::exchange(other.raw_, nullptr)), count_(other.count_) {}
    Regions &operator=(Regions &&other) noexcept {
        if (this != &other) {
            end();
            raw_ = std::exchange(other.raw_, nullptr);
            count_ = other.count_;
        }
        return *this;
    }
    Regions(const Regions &) = delete;
    Regions &operator=(const Regions &) = delete;
    ~Regions() { end(); }

    /* Makes memory a region of this member, until this is called with 0 bytes. */
    void protect(const std::string &name, void *memory, std::size_t len, OnError on = {}) const {
        detail::report(outlast_protect(raw_, detail::whole(name), memory, len), on.get());
    }
    /* Saves the regions of all members as a version. Returns false, at all members, if a member
     * died or could not do its part: the version before stands. */
    bool checkpoint(std::uint64_t version, Bytes note = {}, OnError on = {}) const {
        const int code = outlast_checkpoint(raw_, version, note.data(), note.size());
        return detail::report(code, on.get()) == OUTLAST_OK;
    }
    /* Finds the version that was saved last and fills the regions that this member protects. The
     * field version is 0 if nothing was saved yet. */
    outlast_restored restore(OnError on = {}) const {
        outlast_restored at{};
        detail::report(outlast_restore(raw_, &at), on.get());
        return at;
    }
    /* The note of this member's regions that restore() found. */
    std::string note(OnError on = {}) const {
        auto note = detail::read_whole(
            [&](void *buffer, std::size_t capacity, std::size_t *len) {
                return outlast_region_note(raw_, buffer, capacity, len);
            },
            on.get());
        return note ? std::move(*note) : std::string();
    }
    /* Reads a part of a region of the version that was saved last: of an owner, or of all owners,
     * one after the other, with OUTLAST_ALL. */
    void read(std::uint32_t owner, const std::string &name, std::uint64_t offset, void *buffer,
              std::size_t len, OnError on = {}) const {
        detail::report(outlast_region_read(raw_, owner, detail::whole(name), offset, buffer, len),
                       on.get());
    }
    /* The names and lengths of the regions of each owner of the version that was saved last. */
    std::vector<std::vector<std::pair<std::string, std::uint64_t>>> owners(OnError on = {}) const {
        using Owners = std::vector<std::vector<std::pair<std::string, std::uint64_t>>>;
        std::uint32_t count = 0;
        int code = outlast_region_owners(raw_, nullptr, nullptr, &count);
        Owners owners(detail::report(code, on.get()) == OUTLAST_OK ? count : 0);
        if (owners.empty()) {
            return owners;
        }
        detail::Visited<Owners> visited{owners, nullptr};
        const auto visit = [](void *context, std::uint32_t owner, const char *name,
                              std::uint64_t len) noexcept {
            return static_cast<detail::Visited<Owners> *>(context)->run([&](Owners &owners) {
                owners.at(owner).emplace_back(name, len);
            });
        };
        code = outlast_region_owners(raw_, visit, &visited, nullptr);
        visited.rethrow();
        detail::report(code, on.get());
        return owners;
    }
    /* Closes the checkpoints, which are gone then. */
    void close(OnError on = {}) {
        detail::report(outlast_regions_close(std::exchange(raw_, nullptr)), on.get());
    }
    explicit operator bool() const noexcept { return raw_ != nullptr; }

  private:
    Regions() noexcept : count_(std::uncaught_exceptions()) {}
    void end() noexcept {
        if (raw_ != nullptr && !detail::is_unwinding(count_)) {
            outlast_regions_close(raw_);
        }
        raw_ = nullptr;
    }

    outlast_regions *raw_ = nullptr;
    int count_ = 0;
};

/* ---- Communicators ---- */

/* How two numbers are combined. Only words of windows have bit_xor, replace and keep. */
enum class Op : int {
    bit_and = OUTLAST_OP_AND,
    bit_or = OUTLAST_OP_OR,
    min = OUTLAST_OP_MIN,
    max = OUTLAST_OP_MAX,
    sum = OUTLAST_OP_SUM,
    bit_xor = OUTLAST_OP_XOR,
    replace = OUTLAST_OP_REPLACE,
    keep = OUTLAST_OP_KEEP
};

/* Any source, or any tag. */
inline constexpr std::int64_t any = OUTLAST_ANY;

/* A message that was received. */
struct Message {
    std::string bytes;
    std::uint32_t sender = 0;
    std::uint32_t tag = 0;
};

/* The length, sender and tag of a message that waits to be received. */
struct Envelope {
    std::size_t len = 0;
    std::uint32_t sender = 0;
    std::uint32_t tag = 0;
};

/* A receive or send that was started. The destructor cancels a receive. */
class Request {
  public:
    /* The message, if it has come. */
    std::optional<Message> test(OnError on = {}) { return take(outlast_request_test, on); }
    /* Waits for the message. After Status::timeout, Status::interrupted and
     * Status::proc_failed_pending the receive is still active. */
    std::optional<Message> wait(OnError on = {}) { return take(outlast_request_wait, on); }

    /* As wait, with a time limit below that of the job: Status::timeout then. */
    std::optional<Message> wait_within(Milliseconds limit, OnError on = {}) {
        const std::uint64_t milliseconds = detail::count(limit);
        return take(
            [&](outlast_request *request, void *buffer, std::size_t capacity, std::size_t *len,
                std::uint32_t *sender, std::uint32_t *tag) {
                return outlast_request_wait_within(request, milliseconds, buffer, capacity, len,
                                                   sender, tag);
            },
            on);
    }

    /* Waits until any of the requests is complete or held up, and returns its number: wait() of it
     * then has the message. Requests whose message was taken are left out; Status::over if all
     * are. */
    static std::size_t wait_any(const std::vector<Request> &requests, OnError on = {}) {
        const auto list = raw_of(requests);
        std::size_t index = 0;
        detail::report(outlast_request_wait_any(list.data(), list.size(), &index), on.get());
        return index;
    }
    /* As wait_any, without waiting. */
    static std::optional<std::size_t> test_any(const std::vector<Request> &requests,
                                               OnError on = {}) {
        const auto list = raw_of(requests);
        std::size_t index = 0;
        const int code = outlast_request_test_any(list.data(), list.size(), &index);
        return detail::report(code, on.get()) == OUTLAST_OK ? std::optional<std::size_t>(index)
                                                            : std::nullopt;
    }
    /* Waits until all requests are complete, or any has failed, which is an error. test() of each
     * then has its message. */
    static void wait_all(const std::vector<Request> &requests, OnError on = {}) {
        const auto list = raw_of(requests);
        detail::report(outlast_request_wait_all(list.data(), list.size(), nullptr), on.get());
    }

  private:
    friend class Comm;
    explicit Request(outlast_request *raw) noexcept : raw_(raw) {}
    static std::vector<outlast_request *> raw_of(const std::vector<Request> &requests) {
        std::vector<outlast_request *> list;
        list.reserve(requests.size());
        for (const Request &request : requests) {
            list.push_back(request.raw_.get());
        }
        return list;
    }
    template <class Take> std::optional<Message> take(Take take, const OnError &on) {
        Message message;
        auto bytes = detail::read_whole(
            [&](void *buffer, std::size_t capacity, std::size_t *len) {
                return take(raw_.get(), buffer, capacity, len, &message.sender, &message.tag);
            },
            on.get());
        if (!bytes) {
            return std::nullopt;
        }
        message.bytes = std::move(*bytes);
        return message;
    }

    std::unique_ptr<outlast_request, detail::Free<outlast_request, outlast_request_free>> raw_;
};

/* A group of members that exchange messages and recover together, by the rules of ULFM: a call
 * fails with Status::proc_failed where, and only where, a death keeps it from being completed. The
 * destructor ends this member's use of the communicator. */
class Comm {
  public:
    /* The communicator of all members of the job. Local. */
    static Comm world(const Job &job, OnError on = {}) {
        return made([&](outlast_comm **raw) { return outlast_comm_world(job.get(), raw); }, on);
    }
    /* A communicator of the same members. Collective. */
    Comm duplicate(OnError on = {}) const {
        return made([&](outlast_comm **raw) { return outlast_comm_duplicate(get(), raw); }, on);
    }
    /* A communicator of the members that give equal colours, in the order of their keys. The colour
     * `any` is none: the result converts to false. Collective. */
    Comm split(std::int64_t color, std::int64_t key, OnError on = {}) const {
        return made([&](outlast_comm **raw) { return outlast_comm_split(get(), color, key, raw); },
                    on);
    }
    /* A communicator of the living members, also if this communicator is revoked. */
    Comm shrink(OnError on = {}) const {
        return made([&](outlast_comm **raw) { return outlast_comm_shrink(get(), raw); }, on);
    }
    explicit operator bool() const noexcept { return raw_ != nullptr; }
    outlast_comm *get() const noexcept { return raw_.get(); }

    std::uint32_t rank() const noexcept { return outlast_comm_rank(get()); }
    /* The number of ranks, the dead included. */
    std::uint32_t size() const noexcept { return outlast_comm_size(get()); }
    /* The member that has a rank. */
    std::uint32_t member(std::uint32_t rank, OnError on = {}) const {
        std::uint32_t member = 0;
        detail::report(outlast_comm_member(get(), rank, &member), on.get());
        return member;
    }

    /* The rank of a member; std::nullopt if it does not belong to the communicator. */
    std::optional<std::uint32_t> rank_of(std::uint32_t member, OnError on = {}) const {
        std::uint32_t rank = 0;
        const int code = outlast_comm_rank_of(get(), member, &rank);
        return detail::report(code, on.get()) == OUTLAST_OK ? std::optional<std::uint32_t>(rank)
                                                            : std::nullopt;
    }

    /* Sends a message. Its bytes may be used again when the call returns. */
    void send(std::uint32_t to, std::uint32_t tag, Bytes message, OnError on = {}) const {
        detail::report(outlast_comm_send(get(), to, tag, message.data(), message.size()),
                       on.get());
    }
    /* Receives the oldest message of a rank with a tag, either of which may be `any`. A call that
     * fails loses no message. */
    Message receive(std::int64_t from = any, std::int64_t tag = any, OnError on = {}) const {
        Message message;
        auto bytes = detail::read_whole(
            [&](void *buffer, std::size_t capacity, std::size_t *len) {
                return outlast_comm_receive(get(), from, tag, buffer, capacity, len,
                                            &message.sender, &message.tag);
            },
            on.get());
        if (bytes) {
            message.bytes = std::move(*bytes);
        }
        return message;
    }
    /* What a receive would take now. */
    std::optional<Envelope> probe(std::int64_t from = any, std::int64_t tag = any,
                                  OnError on = {}) const {
        Envelope found;
        const int code =
            outlast_comm_probe(get(), from, tag, &found.len, &found.sender, &found.tag);
        return detail::report(code, on.get()) == OUTLAST_OK ? std::optional<Envelope>(found)
                                                            : std::nullopt;
    }
    /* A send as a request, which is complete at once. */
    Request start_send(std::uint32_t to, std::uint32_t tag, Bytes message, OnError on = {}) const {
        outlast_request *raw = nullptr;
        detail::report(outlast_comm_start_send(get(), to, tag, message.data(), message.size(),
                                               &raw),
                       on.get());
        return Request(raw);
    }
    Request start_receive(std::int64_t from = any, std::int64_t tag = any, OnError on = {}) const {
        outlast_request *raw = nullptr;
        detail::report(outlast_comm_start_receive(get(), from, tag, &raw), on.get());
        return Request(raw);
    }

    /* Returns when all members have called it. Job::barrier goes on despite deaths. */
    void barrier(OnError on = {}) const {
        detail::report(outlast_comm_barrier(get()), on.get());
    }
    /* Gives all members the bytes of the root. The length is equal at all members. */
    void broadcast(std::uint32_t root, void *message, std::size_t len, OnError on = {}) const {
        detail::report(outlast_comm_broadcast(get(), root, message, len), on.get());
    }
    /* Combines the values of all members, element by element: numbers of std::uint64_t,
     * std::int64_t or double. */
    template <class Number>
    void allreduce(Op op, std::vector<Number> &values, OnError on = {}) const {
        detail::report(reduce(op, values.data(), values.size()), on.get());
    }
    template <class Number> Number allreduce(Op op, Number value, OnError on = {}) const {
        detail::report(reduce(op, &value, 1), on.get());
        return value;
    }
    /* The bytes of all members, by rank; empty after an error. */
    std::vector<std::string> allgather(Bytes part, OnError on = {}) const {
        // The lengths first, since a member cannot repeat a collective call with a larger buffer.
        const std::uint64_t len = part.size();
        std::vector<std::uint64_t> lens(size());
        int code = outlast_comm_allgather(get(), &len, sizeof len, lens.data(),
                                          lens.size() * sizeof len, nullptr);
        if (detail::report(code, on.get()) != OUTLAST_OK) {
            return {};
        }
        std::uint64_t total = 0;
        for (const std::uint64_t length : lens) {
            total += length;
        }
        std::string all(static_cast<std::size_t>(total), '\0');
        code = outlast_comm_allgather(get(), part.data(), part.size(), all.data(), all.size(),
                                      nullptr);
        if (detail::report(code, on.get()) != OUTLAST_OK) {
            return {};
        }
        std::vector<std::string> parts;
        std::size_t at = 0;
        for (const std::uint64_t length : lens) {
            parts.push_back(all.substr(at, static_cast<std::size_t>(length)));
            at += static_cast<std::size_t>(length);
        }
        return parts;
    }

    /* Makes the communicator unusable for all its members, except for agree() and shrink(). */
    void revoke(OnError on = {}) const { detail::report(outlast_comm_revoke(get()), on.get()); }
    bool is_revoked() const noexcept { return outlast_comm_is_revoked(get()) != 0; }
    /* The bitwise and of the flags of all members that contributed: equal at all members. With a
     * std::error_code the flags are returned also with Status::proc_failed: there are failures that
     * a member had not acknowledged. */
    std::uint64_t agree(std::uint64_t flags, OnError on = {}) const {
        detail::report(outlast_comm_agree(get(), &flags), on.get());
        return flags;
    }
    /* Acknowledges all failures that this member knows. */
    void failure_ack(OnError on = {}) const {
        detail::report(outlast_comm_failure_ack(get()), on.get());
    }
    /* The ranks whose failure was acknowledged. */
    std::vector<std::uint32_t> acked(OnError on = {}) const {
        return ranks(outlast_comm_get_acked, on);
    }
    /* The ranks that are dead, as far as this member knows. */
    std::vector<std::uint32_t> failed(OnError on = {}) const {
        return ranks(outlast_comm_get_failed, on);
    }
    /* Ends the wait of another member for a message or a lock with Status::interrupted. */
    void interrupt(std::uint32_t rank, OnError on = {}) const {
        detail::report(outlast_comm_interrupt(get(), rank), on.get());
    }
    /* Tells these ranks of all failures that this member knows. */
    void notify_failures(const std::vector<std::uint32_t> &ranks, OnError on = {}) const {
        detail::report(outlast_comm_notify_failures(get(), ranks.data(), ranks.size()), on.get());
    }

  private:
    struct End {
        void operator()(outlast_comm *raw) const noexcept { outlast_comm_free(raw); }
    };
    template <class Make> static Comm made(Make make, const OnError &on) {
        Comm comm;
        outlast_comm *raw = nullptr;
        detail::report(make(&raw), on.get());
        comm.raw_.reset(raw);
        return comm;
    }
    template <class List> std::vector<std::uint32_t> ranks(List list, const OnError &on) const {
        return detail::read_list<std::uint32_t>(
            size(),
            [&](std::uint32_t *ranks, std::size_t capacity, std::size_t *count) {
                return list(get(), ranks, capacity, count);
            },
            on);
    }
    int reduce(Op op, std::uint64_t *values, std::size_t count) const {
        return outlast_comm_allreduce_u64(get(), static_cast<int>(op), values, count);
    }
    int reduce(Op op, std::int64_t *values, std::size_t count) const {
        return outlast_comm_allreduce_i64(get(), static_cast<int>(op), values, count);
    }
    int reduce(Op op, double *values, std::size_t count) const {
        return outlast_comm_allreduce_f64(get(), static_cast<int>(op), values, count);
    }

    std::unique_ptr<outlast_comm, End> raw_;
};

/* ---- Windows ---- */

enum class LockKind : int { shared = OUTLAST_LOCK_SHARED, exclusive = OUTLAST_LOCK_EXCLUSIVE };

/* How a call for a lock ended. `abandoned`: the caller holds the lock, and its last holder died, so
 * that the data which the lock guards may be half changed. */
enum class Locked { no, yes, abandoned };

/* An operation on a window that was started. The destructor gives up its result, and not the
 * operation, which Window::flush completes. */
class WindowRequest {
  public:
    /* What the operation has read, if it is complete: nothing for a put or accumulate. */
    std::optional<std::string> test(OnError on = {}) {
        return take(outlast_window_request_test, on);
    }
    /* Waits for the operation. */
    std::optional<std::string> wait(OnError on = {}) {
        return take(outlast_window_request_wait, on);
    }
    /* Waits for an operation on a word, and returns the word before. */
    template <class Number> Number wait_word(OnError on = {}) {
        static_assert(std::is_integral_v<Number> && sizeof(Number) == 8, "words have 8 bytes");
        Number word = 0;
        const int code = outlast_window_request_wait(raw_.get(), &word, sizeof word, nullptr);
        detail::report(code, on.get());
        return word;
    }

  private:
    friend class Window;
    explicit WindowRequest(outlast_window_request *raw) noexcept : raw_(raw) {}
    template <class Take> std::optional<std::string> take(Take take, const OnError &on) {
        return detail::read_whole(
            [&](void *buffer, std::size_t capacity, std::size_t *len) {
                return take(raw_.get(), buffer, capacity, len);
            },
            on.get());
    }

    using Free = detail::Free<outlast_window_request, outlast_window_request_free>;
    std::unique_ptr<outlast_window_request, Free> raw_;
};

/* Memory that the members of a communicator show to each other. free() and close() end it, with all
 * living members. The destructor frees the handle alone. */
class Window {
  public:
    /* A window in which this member shows len bytes, all zero. Accesses need a lock on their
     * target. Collective. */
    static Window allocate(const Comm &comm, std::uint64_t len, OnError on = {}) {
        return made(outlast_window_allocate, comm, len, on);
    }
    /* A window whose accesses need no lock. Collective. */
    static Window open(const Comm &comm, std::uint64_t len, OnError on = {}) {
        return made(outlast_window_open, comm, len, on);
    }
    /* Ends the window. After Status::still_locked the window goes on. */
    void free(OnError on = {}) { end(outlast_window_free, on); }
    /* Completes the operations in flight, releases this member's locks, and frees the window. */
    void close(OnError on = {}) { end(outlast_window_close, on); }
    explicit operator bool() const noexcept { return raw_ != nullptr; }
    outlast_window *get() const noexcept { return raw_.get(); }

    /* How many bytes the target shows. */
    std::uint64_t len(std::uint32_t target, OnError on = {}) const {
        std::uint64_t len = 0;
        detail::report(outlast_window_len(get(), target, &len), on.get());
        return len;
    }
    /* Writes bytes. They may be complete only after a flush or unlock, which reports errors. */
    void put(std::uint32_t target, std::uint64_t offset, Bytes data, OnError on = {}) const {
        detail::report(outlast_window_put(get(), target, offset, data.data(), data.size()),
                       on.get());
    }
    /* Writes bytes and returns when every get that any member begins sees them. */
    void put_blocking(std::uint32_t target, std::uint64_t offset, Bytes data,
                      OnError on = {}) const {
        detail::report(
            outlast_window_put_blocking(get(), target, offset, data.data(), data.size()),
            on.get());
    }
    void get(std::uint32_t target, std::uint64_t offset, void *buffer, std::size_t len,
             OnError on = {}) const {
        detail::report(outlast_window_get(get(), target, offset, buffer, len), on.get());
    }
    /* Combines words of 8 bytes with the values, each atomically: numbers of std::uint64_t or
     * std::int64_t. */
    template <class Number>
    void accumulate(std::uint32_t target, std::uint64_t offset, Op op,
                    const std::vector<Number> &values, OnError on = {}) const {
        const int code = [&] {
            if constexpr (std::is_signed_v<Number>) {
                return outlast_window_accumulate_i64(get(), target, offset, static_cast<int>(op),
                                                     values.data(), values.size());
            } else {
                return outlast_window_accumulate_u64(get(), target, offset, static_cast<int>(op),
                                                     values.data(), values.size());
            }
        }();
        detail::report(code, on.get());
    }
    /* Combines a word with the value, atomically, and returns the word before. */
    template <class Number>
    Number fetch_and_op(std::uint32_t target, std::uint64_t offset, Op op, Number value,
                        OnError on = {}) const {
        Number before = 0;
        const int code = [&] {
            if constexpr (std::is_signed_v<Number>) {
                return outlast_window_fetch_and_op_i64(get(), target, offset, static_cast<int>(op),
                                                       value, &before);
            } else {
                return outlast_window_fetch_and_op_u64(get(), target, offset, static_cast<int>(op),
                                                       value, &before);
            }
        }();
        detail::report(code, on.get());
        return before;
    }
    /* Replaces a word by `desired` if it is `expected`, and returns the word before. */
    std::uint64_t compare_and_swap(std::uint32_t target, std::uint64_t offset,
                                   std::uint64_t expected, std::uint64_t desired,
                                   OnError on = {}) const {
        std::uint64_t before = 0;
        detail::report(outlast_window_compare_and_swap(get(), target, offset, expected, desired,
                                                       &before),
                       on.get());
        return before;
    }
    /* The same operations as requests: several can be in flight, each with its own result. */
    WindowRequest start_put(std::uint32_t target, std::uint64_t offset, Bytes data,
                            OnError on = {}) const {
        return started(
            [&](outlast_window_request **raw) {
                return outlast_window_start_put(get(), target, offset, data.data(), data.size(),
                                                raw);
            },
            on);
    }
    WindowRequest start_get(std::uint32_t target, std::uint64_t offset, std::size_t len,
                            OnError on = {}) const {
        return started(
            [&](outlast_window_request **raw) {
                return outlast_window_start_get(get(), target, offset, len, raw);
            },
            on);
    }
    template <class Number>
    WindowRequest start_accumulate(std::uint32_t target, std::uint64_t offset, Op op,
                                   const std::vector<Number> &values, OnError on = {}) const {
        return started(
            [&](outlast_window_request **raw) {
                const int code = static_cast<int>(op);
                if constexpr (std::is_signed_v<Number>) {
                    return outlast_window_start_accumulate_i64(get(), target, offset, code,
                                                               values.data(), values.size(), raw);
                } else {
                    return outlast_window_start_accumulate_u64(get(), target, offset, code,
                                                               values.data(), values.size(), raw);
                }
            },
            on);
    }
    template <class Number>
    WindowRequest start_fetch_and_op(std::uint32_t target, std::uint64_t offset, Op op,
                                     Number value, OnError on = {}) const {
        return started(
            [&](outlast_window_request **raw) {
                const int code = static_cast<int>(op);
                if constexpr (std::is_signed_v<Number>) {
                    return outlast_window_start_fetch_and_op_i64(get(), target, offset, code,
                                                                 value, raw);
                } else {
                    return outlast_window_start_fetch_and_op_u64(get(), target, offset, code,
                                                                 value, raw);
                }
            },
            on);
    }
    WindowRequest start_compare_and_swap(std::uint32_t target, std::uint64_t offset,
                                         std::uint64_t expected, std::uint64_t desired,
                                         OnError on = {}) const {
        return started(
            [&](outlast_window_request **raw) {
                return outlast_window_start_compare_and_swap(get(), target, offset, expected,
                                                             desired, raw);
            },
            on);
    }
    /* Completes all operations of this member on the target, or on all targets. */
    void flush(std::uint32_t target, OnError on = {}) const {
        detail::report(outlast_window_flush(get(), target), on.get());
    }
    void flush_all(OnError on = {}) const {
        detail::report(outlast_window_flush_all(get()), on.get());
    }

    /* Locks the memory of the target. Waits up to the time limit of the job. */
    Locked lock(std::uint32_t target, LockKind kind, OnError on = {}) const {
        return locked(outlast_window_lock(get(), target, static_cast<int>(kind)), on);
    }
    Locked lock_within(std::uint32_t target, LockKind kind, Milliseconds limit,
                       OnError on = {}) const {
        return locked(outlast_window_lock_within(get(), target, static_cast<int>(kind),
                                                 detail::count(limit)),
                      on);
    }
    /* Shares the locks of all members: all or none. */
    Locked lock_all(OnError on = {}) const { return locked(outlast_window_lock_all(get()), on); }
    /* Completes all operations on the target and releases its lock, whatever the result. */
    void unlock(std::uint32_t target, OnError on = {}) const {
        detail::report(outlast_window_unlock(get(), target), on.get());
    }
    void unlock_all(OnError on = {}) const {
        detail::report(outlast_window_unlock_all(get()), on.get());
    }
    /* Takes the lock away from all its holders, and returns their ranks. */
    std::vector<std::uint32_t> force_unlock(std::uint32_t target, OnError on = {}) const {
        return ranks(
            [&](std::uint32_t *ranks, std::size_t capacity, std::size_t *count) {
                return outlast_window_force_unlock(get(), target, ranks, capacity, count);
            },
            on);
    }
    /* The ranks that hold the lock, or are about to, the dead included. */
    std::vector<std::uint32_t> holders(std::uint32_t target, OnError on = {}) const {
        return ranks(
            [&](std::uint32_t *ranks, std::size_t capacity, std::size_t *count) {
                return outlast_window_holders(get(), target, ranks, capacity, count);
            },
            on);
    }
    /* An error, Status::lock_lost or Status::not_locked, unless this member holds the lock. */
    void check_lock(std::uint32_t target, OnError on = {}) const {
        detail::report(outlast_window_check_lock(get(), target), on.get());
    }

    /* Makes the window unusable for all its members until all survivors call shrink(). */
    void revoke(OnError on = {}) const { detail::report(outlast_window_revoke(get()), on.get()); }
    bool is_revoked() const noexcept { return outlast_window_is_revoked(get()) != 0; }
    /* The ranks that are dead, as far as this member knows. */
    std::vector<std::uint32_t> failed(OnError on = {}) const {
        return ranks(
            [&](std::uint32_t *ranks, std::size_t capacity, std::size_t *count) {
                return outlast_window_get_failed(get(), ranks, capacity, count);
            },
            on);
    }
    /* Leaves the dead out of calls over all members, and returns them. */
    std::vector<std::uint32_t> shrink(OnError on = {}) const {
        return ranks(
            [&](std::uint32_t *ranks, std::size_t capacity, std::size_t *count) {
                return outlast_window_shrink(get(), ranks, capacity, count);
            },
            on);
    }
    /* Adds len bytes, all zero, to the end of this member's memory, and returns its new length. */
    std::uint64_t grow(std::uint64_t len, OnError on = {}) const {
        std::uint64_t now = 0;
        detail::report(outlast_window_grow(get(), len, &now), on.get());
        return now;
    }
    /* Shows len further bytes as a range of their own, and returns its offset. */
    std::uint64_t attach(std::uint64_t len, OnError on = {}) const {
        std::uint64_t offset = 0;
        detail::report(outlast_window_attach(get(), len, &offset), on.get());
        return offset;
    }
    void detach(std::uint64_t offset, OnError on = {}) const {
        detail::report(outlast_window_detach(get(), offset), on.get());
    }
    /* How many bytes of detached ranges are not released yet. */
    std::uint64_t bytes_aside(OnError on = {}) const {
        std::uint64_t aside = 0;
        detail::report(outlast_window_bytes_aside(get(), &aside), on.get());
        return aside;
    }

  private:
    template <class Start> static WindowRequest started(Start start, const OnError &on) {
        outlast_window_request *raw = nullptr;
        detail::report(start(&raw), on.get());
        return WindowRequest(raw);
    }
    template <class Make>
    static Window made(Make make, const Comm &comm, std::uint64_t len, const OnError &on) {
        Window window;
        outlast_window *raw = nullptr;
        detail::report(make(comm.get(), len, &raw), on.get());
        window.raw_.reset(raw);
        window.size_ = comm.size();
        return window;
    }
    template <class Finish> void end(Finish finish, const OnError &on) {
        const int code = finish(get());
        if (code == OUTLAST_OK || code == OUTLAST_CLOSED) {
            raw_.release(); // the call has freed the handle
        }
        detail::report(code, on.get());
    }
    static Locked locked(int code, const OnError &on) {
        if (code == OUTLAST_LOCKED) {
            detail::report(OUTLAST_OK, on.get());
            return Locked::no;
        }
        switch (detail::report(code, on.get())) {
        case OUTLAST_OK: return Locked::yes;
        case OUTLAST_ABANDONED: return Locked::abandoned;
        default: return Locked::no;
        }
    }
    template <class List> std::vector<std::uint32_t> ranks(List list, const OnError &on) const {
        return detail::read_list<std::uint32_t>(size_, list, on);
    }

    std::unique_ptr<outlast_window, detail::Free<outlast_window, outlast_window_discard>> raw_;
    std::uint32_t size_ = 0;
};

/* ---- Images ---- */

/* An image that was loaded. */
struct Image {
    std::string bytes;
    std::string note;
};

/* Objects in pieces in the memories of members, replaced as a whole: for data that one member saves
 * when it wants to, and that any member can load after the death of its owner. The destructor
 * closes the images where a scope ends normally, as that of Store does. */
class Images {
  public:
    /* All living members call it with equal options. */
    static Images open(const Store &store, const std::string &name,
                       const RegionOptions &options = RegionOptions(), OnError on = {}) {
        Images images;
        detail::report(
            outlast_images_open(store.get_raw(), detail::whole(name), &options, &images.raw_),
            on.get());
        return images;
    }
    Images(Images &&other) noexcept
        : raw_(std::exchange(other.raw_, nullptr)), count_(other.count_) {}
    Images &operator=(Images &&other) noexcept {
        if (this != &other) {
            end();
            raw_ = std::exchange(other.raw_, nullptr);
            count_ = other.count_;
        }
        return *this;
    }
    Images(const Images &) = delete;
    Images &operator=(const Images &) = delete;
    ~Images() { end(); }

    /* Saves an image under a name. When the call returns, all its pieces are at their members.
     * Status::conflict: another member has saved the image meanwhile. */
    void save(const std::string &name, Bytes bytes, Bytes note = {}, OnError on = {}) const {
        detail::report(outlast_image_save(raw_, detail::whole(name), note.data(), note.size(),
                                          bytes.data(), bytes.size()),
                       on.get());
    }
    /* The image as it was saved last, by any member, dead or alive. */
    std::optional<Image> load(const std::string &name, OnError on = {}) const {
        Image image;
        for (;;) {
            std::size_t len = 0, note_len = 0;
            const int code = outlast_image_load(raw_, detail::whole(name), image.bytes.data(),
                                                image.bytes.size(), &len, image.note.data(),
                                                image.note.size(), &note_len);
            if (code == OUTLAST_TOO_SMALL) {
                image.bytes.resize(len);
                image.note.resize(note_len);
                continue;
            }
            if (detail::report(code, on.get()) != OUTLAST_OK) {
                return std::nullopt;
            }
            image.bytes.resize(len);
            image.note.resize(note_len);
            return image;
        }
    }
    /* Reads a part of an image. Returns whether there is such an image. */
    bool read(const std::string &name, std::uint64_t offset, void *buffer, std::size_t len,
              OnError on = {}) const {
        return detail::report(outlast_image_read(raw_, detail::whole(name), offset, buffer, len),
                              on.get()) == OUTLAST_OK;
    }
    /* Deletes an image. Returns whether it existed. */
    bool erase(const std::string &name, OnError on = {}) const {
        return detail::report(outlast_image_delete(raw_, detail::whole(name)), on.get()) ==
               OUTLAST_OK;
    }
    /* How many pieces are missing: no other member has made them again yet. */
    std::size_t missing(OnError on = {}) const {
        std::size_t pieces = 0;
        detail::report(outlast_images_missing(raw_, &pieces), on.get());
        return pieces;
    }
    /* The members that would hold the pieces of this member's next image. */
    std::vector<std::uint32_t> holders(OnError on = {}) const {
        std::size_t count = 0;
        if (detail::report(outlast_images_holders(raw_, nullptr, 0, &count, nullptr), on.get())) {
            return {};
        }
        return detail::read_list<std::uint32_t>(
            count,
            [&](std::uint32_t *members, std::size_t capacity, std::size_t *found) {
                return outlast_images_holders(raw_, members, capacity, found, nullptr);
            },
            on);
    }
    /* Closes the images, which are gone then. All living members call it. */
    void close(OnError on = {}) {
        detail::report(outlast_images_close(std::exchange(raw_, nullptr)), on.get());
    }
    explicit operator bool() const noexcept { return raw_ != nullptr; }

  private:
    Images() noexcept : count_(std::uncaught_exceptions()) {}
    void end() noexcept {
        if (raw_ != nullptr && !detail::is_unwinding(count_)) {
            outlast_images_close(raw_);
        }
        raw_ = nullptr;
    }

    outlast_images *raw_ = nullptr;
    int count_ = 0;
};

/* ---- Seats ---- */

/* Options of seats, equal at all members; the fields are those of outlast.h. bytes has no default.
 */
struct SeatOptions : outlast_seat_options {
    explicit SeatOptions(std::uint64_t seat_bytes) noexcept : outlast_seat_options() {
        struct_size = sizeof(outlast_seat_options);
        bytes = seat_bytes;
    }
    SeatOptions &with_set(std::uint32_t pieces) { return set = pieces, *this; }
    SeatOptions &with_lose(std::uint32_t pieces) { return lose = pieces, *this; }
    SeatOptions &with_room(std::uint32_t seats) { return room = seats, *this; }
    SeatOptions &with_interval(Milliseconds time) {
        return interval_ms = detail::count(time), *this;
    }
    SeatOptions &with_mtbf(Milliseconds time) { return mtbf_ms = detail::count(time), *this; }
    /* EXPERIMENTAL: logs accesses, with so many bytes for the logs of each seat. */
    SeatOptions &with_logs(std::uint64_t budget) { return logs = budget, *this; }
};

/* A rank with memory that outlives the process which holds it; outlast.h says what holds. Every
 * call may throw Status::rolled_back: let it leave the function of the seat, which is then called
 * again. */
class Seat {
  public:
    /* Calls body(const Seat &) once for each seat that this member holds, in threads of its own.
     * All members call it. If an exception other than Status::rolled_back leaves the function, the
     * seat has failed: Status::seat_failed, at all members. */
    template <class Body>
    static void run(const Store &store, const SeatOptions &options, Body &&body) {
        struct Call {
            static int body(void *context, const outlast_seat *raw) noexcept {
                auto &function = *static_cast<std::remove_reference_t<Body> *>(context);
                const Seat seat(raw);
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
                try {
                    function(seat);
                    return OUTLAST_OK;
                } catch (const Error &error) {
                    return error.code().value();
                } catch (...) {
                    return OUTLAST_FAILED;
                }
#else
                function(seat);
                return OUTLAST_OK;
#endif
            }
        };
        const void *context = std::addressof(body);
        detail::report(outlast_seats_run(store.get_raw(), &options, Call::body,
                                         const_cast<void *>(context)),
                       nullptr);
    }
    Seat(const Seat &) = delete;
    Seat &operator=(const Seat &) = delete;

    std::uint32_t number() const noexcept { return outlast_seat_number(raw_); }
    /* The number of all seats. */
    std::uint32_t seats() const noexcept { return outlast_seat_count(raw_); }
    /* How many bytes the memory of a seat has. */
    std::uint64_t bytes() const noexcept { return outlast_seat_bytes(raw_); }
    /* Whether no point was saved since the last rollback: the function may repeat what it did. */
    bool is_replaying() const noexcept { return outlast_seat_is_replaying(raw_) != 0; }
    /* Whether all pieces are at living members. */
    bool is_whole(OnError on = {}) const {
        int is_whole = 0;
        detail::report(outlast_seat_is_whole(raw_, &is_whole), on.get());
        return is_whole != 0;
    }
    /* The note of the point from which the function was called; std::nullopt at the beginning. */
    std::optional<std::string> note(OnError on = {}) const {
        return detail::read_whole(
            [&](void *buffer, std::size_t capacity, std::size_t *len) {
                return outlast_seat_note(raw_, buffer, capacity, len);
            },
            on.get());
    }
    /* The same as an object that was given to barrier_point() or point() with bytes_of(). */
    template <class T> std::optional<T> note_value(OnError on = {}) const {
        return detail::decode<T>(note(on), on.get());
    }

    /* Bytes from outside of the seats, which look() returns, at most `capacity` of them. For looking
     * and not for taking: after a rollback look is called again. With logs, a seat that repeats what
     * a dead holder did gets the bytes that the dead holder was given. If an exception leaves look,
     * nothing is remembered. */
    template <class Look>
    std::string remember(std::size_t capacity, Look &&look, OnError on = {}) const {
        struct Call {
            std::remove_reference_t<Look> &look;
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
            std::exception_ptr thrown;
#endif
            static int see(void *context, void *buffer, std::size_t capacity,
                           std::size_t *len) noexcept {
                auto &call = *static_cast<Call *>(context);
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
                try {
                    return call.copy(buffer, capacity, len);
                } catch (...) {
                    call.thrown = std::current_exception();
                    return OUTLAST_FAILED;
                }
#else
                return call.copy(buffer, capacity, len);
#endif
            }
            int copy(void *buffer, std::size_t capacity, std::size_t *len) {
                const std::string seen = look();
                *len = seen.size();
                if (seen.size() <= capacity) {
                    seen.copy(static_cast<char *>(buffer), seen.size());
                }
                return OUTLAST_OK;
            }
        };
        Call call{look};
        std::string seen(capacity, '\0');
        std::size_t len = 0;
        const int code =
            outlast_seat_remember(raw_, Call::see, &call, seen.data(), capacity, &len);
#if defined(__cpp_exceptions) || defined(__EXCEPTIONS)
        if (call.thrown) {
            std::rethrow_exception(call.thrown);
        }
#endif
        detail::report(code, on.get());
        seen.resize(len);
        return seen;
    }

    /* Writes bytes to the memory of a seat. They are complete after a flush, a lock, a barrier or a
     * point. */
    void put(std::uint32_t target, std::uint64_t offset, Bytes data, OnError on = {}) const {
        detail::report(outlast_seat_put(raw_, target, offset, data.data(), data.size()), on.get());
    }
    void get(std::uint32_t target, std::uint64_t offset, void *buffer, std::size_t len,
             OnError on = {}) const {
        detail::report(outlast_seat_get(raw_, target, offset, buffer, len), on.get());
    }
    /* Combines words of 8 bytes with the values, each atomically. */
    void accumulate(std::uint32_t target, std::uint64_t offset, Op op,
                    const std::vector<std::uint64_t> &values, OnError on = {}) const {
        detail::report(outlast_seat_accumulate_u64(raw_, target, offset, static_cast<int>(op),
                                                   values.data(), values.size()),
                       on.get());
    }
    /* Combines a word with the value, atomically, and returns the word before. */
    std::uint64_t fetch_and_op(std::uint32_t target, std::uint64_t offset, Op op,
                               std::uint64_t value, OnError on = {}) const {
        std::uint64_t before = 0;
        detail::report(outlast_seat_fetch_and_op_u64(raw_, target, offset, static_cast<int>(op),
                                                     value, &before),
                       on.get());
        return before;
    }
    /* As accumulate and fetch_and_op, for words that are numbers with a sign. */
    void accumulate_signed(std::uint32_t target, std::uint64_t offset, Op op,
                           const std::vector<std::int64_t> &values, OnError on = {}) const {
        detail::report(outlast_seat_accumulate_i64(raw_, target, offset, static_cast<int>(op),
                                                   values.data(), values.size()),
                       on.get());
    }
    std::int64_t fetch_and_op_signed(std::uint32_t target, std::uint64_t offset, Op op,
                                     std::int64_t value, OnError on = {}) const {
        std::int64_t before = 0;
        detail::report(outlast_seat_fetch_and_op_i64(raw_, target, offset, static_cast<int>(op),
                                                     value, &before),
                       on.get());
        return before;
    }
    /* Replaces a word by `desired` if it is `expected`, and returns the word before. */
    std::uint64_t compare_and_swap(std::uint32_t target, std::uint64_t offset,
                                   std::uint64_t expected, std::uint64_t desired,
                                   OnError on = {}) const {
        std::uint64_t before = 0;
        detail::report(
            outlast_seat_compare_and_swap(raw_, target, offset, expected, desired, &before),
            on.get());
        return before;
    }
    void flush(std::uint32_t target, OnError on = {}) const {
        detail::report(outlast_seat_flush(raw_, target), on.get());
    }
    void flush_all(OnError on = {}) const {
        detail::report(outlast_seat_flush_all(raw_), on.get());
    }
    /* Locks the memory of a seat against other seats that lock it. */
    void lock(std::uint32_t target, LockKind kind, OnError on = {}) const {
        detail::report(outlast_seat_lock(raw_, target, static_cast<int>(kind)), on.get());
    }
    void unlock(std::uint32_t target, OnError on = {}) const {
        detail::report(outlast_seat_unlock(raw_, target), on.get());
    }
    /* Returns when all seats have called it. */
    void barrier(OnError on = {}) const { detail::report(outlast_seat_barrier(raw_), on.get()); }
    /* A barrier at which all seats are saved together, if a save is due. Returns whether they are.
     */
    bool barrier_point(Bytes note, OnError on = {}) const {
        int is_saved = 0;
        detail::report(outlast_seat_barrier_point(raw_, note.data(), note.size(), &is_saved),
                       on.get());
        return is_saved != 0;
    }
    /* A point of this seat alone, which seats need not call together. */
    bool point(Bytes note, OnError on = {}) const {
        int is_saved = 0;
        detail::report(outlast_seat_point(raw_, note.data(), note.size(), &is_saved), on.get());
        return is_saved != 0;
    }

  private:
    explicit Seat(const outlast_seat *raw) noexcept : raw_(raw) {}

    const outlast_seat *raw_;
};

} // namespace outlast

template <> struct std::is_error_code_enum<outlast::Status> : std::true_type {};

#endif
