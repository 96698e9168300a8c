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
