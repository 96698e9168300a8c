/* The parts that the test programs in C share. */
#include "outlast.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Makes a call and expects this status. */
#define EXPECT(wanted, call) \
    do { \
        int status = (call); \
        if (status != (wanted)) { \
            fprintf(stderr, "line %d: %s is %d: %s\n", __LINE__, #call, status, outlast_error()); \
            exit(1); \
        } \
    } while (0)

/* Ends the program if the condition does not hold. */
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: it does not hold: %s\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

/* The store of this member. */
__attribute__((unused)) static outlast_store *store;

#ifdef __SANITIZE_ADDRESS__
/* Whole stacks, by which the next function names what is lost on purpose. */
const char *__asan_default_options(void) { return "fast_unwind_on_malloc=0:print_suppressions=0"; }
/* The kernel alone knows the head of the list of robust words, also after its thread has ended. */
const char *__lsan_default_suppressions(void) { return "leak:disown_robust_word\n"; }
#endif
