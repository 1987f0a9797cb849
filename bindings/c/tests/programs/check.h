/* What the test programs share: a check that says where it failed. */
#ifndef CHECK_H
#define CHECK_H

#include <farandole.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "rank %d, line %d: %s does not hold; last error: %s\n", (int)farandole_rank(), __LINE__,   \
                    #condition, farandole_last_error());                                                               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* That a call succeeds. */
#define OK(call) CHECK((call) == FARANDOLE_OK)

/* That a call is refused with this status, and a text that holds these words. */
#define REFUSED(call, status, words)                                                                                   \
    do {                                                                                                               \
        CHECK((call) == (status));                                                                                     \
        CHECK(strstr(farandole_last_error(), words) != NULL);                                                          \
    } while (0)

#endif
