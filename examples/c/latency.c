/*
 * How long a direct allreduce of four bytes takes, called from C; crates/farandole/examples/latency.rs measures the same
 * from Rust. docs/c.md has the commands and the figures.
 */
#define _POSIX_C_SOURCE 200809L
#include <farandole.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 31, CALLS = 20000 };

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e9 * (double)time.tv_sec + (double)time.tv_nsec;
}

static int ascending(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

int main(void) {
    if (farandole_init(NULL) != FARANDOLE_OK) {
        fprintf(stderr, "no job: %s\n", farandole_last_error());
        return 1;
    }
    double rounds[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        double begun = now_ns();
        for (int call = 0; call < CALLS; call++) {
            float value = 1.0f;
            if (farandole_allreduce(&value, 1, FARANDOLE_FLOAT32, FARANDOLE_SUM) != FARANDOLE_OK) {
                fprintf(stderr, "no sum: %s\n", farandole_last_error());
                return 1;
            }
        }
        rounds[round] = (now_ns() - begun) / CALLS;
    }
    qsort(rounds, ROUNDS, sizeof rounds[0], ascending);
    if (farandole_rank() == 0) {
        printf("C: %.0f ns a call (median of %d rounds; the fastest %.0f)\n", rounds[ROUNDS / 2], ROUNDS, rounds[0]);
    }
    farandole_shutdown();
    return 0;
}
