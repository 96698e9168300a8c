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
 * Threads: as in outlast.h. Several threads may use a Job or a Store at once; a Handle, a
 * Transaction and a Lock belong to a single thread at a time.
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
#include <memory>
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
    busy = OUTLAST_BUSY
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

} // namespace detail

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
    bool is_living(std::uint32_t member) const noexcept {
        return outlast_is_living(raw_, member) != 0;
    }

    /* Returns when all living members have called it. */
    void barrier() const { detail::report(outlast_barrier(raw_), nullptr); }
    void barrier(std::error_code &ec) const { detail::report(outlast_barrier(raw_), &ec); }

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

    outlast_tx *raw_;
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

    /* A number that changes with each death. */
    std::uint64_t epoch() const noexcept { return outlast_epoch(raw_); }
    /* The deaths after `seen`, which is advanced. Begin with epoch(), or with 0 for all deaths. */
    std::vector<Death> deaths(std::uint64_t &seen) const {
        std::vector<Death> deaths;
        Death death{};
        while (detail::report(outlast_next_death(raw_, &seen, &death.member, &death.heir),
                              nullptr) == OUTLAST_OK) {
            deaths.push_back(death);
        }
        return deaths;
    }
    /* Makes lost partitions usable again, without their old contents. Returns their number. */
    std::size_t accept_loss() const {
        std::size_t partitions = 0;
        detail::report(outlast_accept_loss(raw_, &partitions), nullptr);
        return partitions;
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

} // namespace outlast

template <> struct std::is_error_code_enum<outlast::Status> : std::true_type {};

#endif
