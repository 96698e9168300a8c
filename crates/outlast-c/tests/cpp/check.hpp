/* The parts that the test programs in C++ share. */
#include "outlast.hpp"

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <unistd.h>

/* Ends the program if the condition does not hold. */
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            std::fprintf(stderr, "line %d: it does not hold: %s\n", __LINE__, #condition); \
            std::exit(1); \
        } \
    } while (0)

/* Makes a call and expects an Error with this status. */
template <class Call> void expect(outlast::Status status, int line, Call call) {
    try {
        call();
    } catch (const outlast::Error &error) {
        if (error.status() == status && *error.what() != '\0') {
            return;
        }
        std::fprintf(stderr, "line %d: %s\n", line, error.what());
        std::exit(1);
    }
    std::fprintf(stderr, "line %d: no error\n", line);
    std::exit(1);
}
#define EXPECT(status, call) expect(status, __LINE__, [&] { call; })
