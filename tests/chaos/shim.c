/* Moves the wall clock of one process by what a file says, and leaves the monotonic clock alone.

   The file that CHAOS_CLOCK names holds one 64-bit number of microseconds; it is mapped, so that a
   change counts at once. Loaded with LD_PRELOAD. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

static void find(void) {
    if (real_clock_gettime) return;
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED) offset = mapped;
        close(file);
    }
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
}

static int64_t now(void) {
    struct timespec at;
    find();
    real_clock_gettime(CLOCK_REALTIME, &at);
    return at.tv_sec * 1000000LL + at.tv_nsec / 1000 + (offset ? *offset : 0);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    find();
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return real_clock_gettime(clock, at);
    int64_t micros = now();
    at->tv_sec = micros / 1000000;
    at->tv_nsec = micros % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    int64_t micros = now();
    (void)zone;
    at->tv_sec = micros / 1000000;
    at->tv_usec = micros % 1000000;
    return 0;
}

time_t time(time_t *at) {
    time_t seconds = now() / 1000000;
    if (at) *at = seconds;
    return seconds;
}
