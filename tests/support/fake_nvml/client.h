/* What a program of the fake libcuda.so.1 tells the fake driver: a file of this struct, with a
 * write lock by fcntl as long as the program lives. Times are CLOCK_MONOTONIC in nanoseconds.
 */
#ifndef FAKE_CLIENT_H
#define FAKE_CLIENT_H

#include <time.h>

enum { KERNELS = 64 };

struct client {
    char uuid[96];           /* of its GPU */
    unsigned long long used; /* bytes, with its context */
    unsigned long long next; /* place of the next kernel in the ring */
    struct {
        unsigned long long from, until;
    } kernel[KERNELS];
};

static inline unsigned long long client_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000ULL + (unsigned long long)now.tv_nsec;
}

/* The part of the last second in which a kernel ran, in percent. */
static inline unsigned long long client_busy_percent(const struct client *client) {
    const unsigned long long second = 1000000000ULL, now = client_now();
    const unsigned long long begin = now > second ? now - second : 0;
    unsigned long long busy = 0;
    for (int i = 0; i < KERNELS; i++) {
        unsigned long long from = client->kernel[i].from, until = client->kernel[i].until;
        if (from < begin) from = begin;
        if (until > now) until = now;
        if (from < until) busy += until - from;
    }
    return (100 * busy + second / 2) / second;
}

#endif
