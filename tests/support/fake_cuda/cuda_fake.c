/* A libcuda.so.1 for tests: as much of CUDA's driver API as the load of the GPU kit calls.
 *
 * The GPU is the one that CUDA_VISIBLE_DEVICES names by its UUID. A context and each allocation are
 * counted in this process's file of clients (client.h), which the fake NVML reads. A kernel is its
 * first parameter: nanoseconds for which it computes nothing.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client.h"

typedef unsigned long long u64;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_CONTEXT = 201,
    INVALID_PTX = 218,
};
enum { ALLOCATIONS = 256 };

static const u64 CONTEXT_BYTES = 300ULL << 20, PAGE = 2ULL << 20, TOTAL = 80ULL << 30;

static struct client *client;
static bool initialised;
static u64 size_of[ALLOCATIONS], ends;
static int context, module, function;

int cuInit(unsigned flags) {
    (void)flags;
    const char *state = getenv("NVML_FAKE_STATE");
    if (!state || access(state, R_OK)) return NO_DEVICE;
    initialised = true;
    return SUCCESS;
}

int cuDriverGetVersion(int *version) {
    *version = 13000;
    return SUCCESS;
}

int cuDeviceGetCount(int *count) {
    if (!initialised) return NOT_INITIALIZED;
    *count = getenv("CUDA_VISIBLE_DEVICES") ? 1 : 0;
    return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal) {
    if (!initialised) return NOT_INITIALIZED;
    *device = 0;
    return ordinal || !getenv("CUDA_VISIBLE_DEVICES") ? NO_DEVICE : SUCCESS;
}

/* The file's name is of no meaning: the pid in another namespace may be taken already. */
static int register_client(void) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s.clients", getenv("NVML_FAKE_STATE"));
    mkdir(path, 0755);
    snprintf(path, sizeof path, "%s.clients/XXXXXX", getenv("NVML_FAKE_STATE"));
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof *client) || fchmod(fd, 0644)) return NO_DEVICE;
    client = mmap(NULL, sizeof *client, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (client == MAP_FAILED) return NO_DEVICE;
    snprintf(client->uuid, sizeof client->uuid, "%s", getenv("CUDA_VISIBLE_DEVICES"));
    struct flock mine = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_SETLK, &mine) ? NO_DEVICE : SUCCESS; /* the lock needs the open file */
}

int cuDevicePrimaryCtxRetain(void **out, int device) {
    (void)device;
    if (!initialised) return NOT_INITIALIZED;
    if (!client) {
        int code = register_client();
        if (code) return code;
        client->used = CONTEXT_BYTES;
    }
    *out = &context;
    return SUCCESS;
}

int cuCtxSetCurrent(void *wanted) { return wanted == &context ? SUCCESS : INVALID_CONTEXT; }

int cuMemAlloc_v2(u64 *address, size_t size) {
    if (!client) return INVALID_CONTEXT;
    u64 pages = (size + PAGE - 1) / PAGE * PAGE;
    if (!size) return INVALID_VALUE;
    if (client->used + pages > TOTAL) return OUT_OF_MEMORY;
    for (int i = 0; i < ALLOCATIONS; i++) {
        if (size_of[i]) continue;
        size_of[i] = pages;
        client->used += pages;
        *address = (u64)(i + 1) << 40;
        return SUCCESS;
    }
    return OUT_OF_MEMORY;
}

int cuMemFree_v2(u64 address) {
    u64 place = (address >> 40) - 1;
    if (place >= ALLOCATIONS || !size_of[place]) return INVALID_VALUE;
    client->used -= size_of[place];
    size_of[place] = 0;
    return SUCCESS;
}

int cuModuleLoadData(void **out, const char *image) {
    if (!client) return INVALID_CONTEXT;
    *out = &module;
    return strstr(image, ".version") && strstr(image, ".entry") ? SUCCESS : INVALID_PTX;
}

int cuModuleGetFunction(void **out, void *from, const char *name) {
    *out = &function;
    return from == &module && *name ? SUCCESS : INVALID_VALUE;
}

int cuLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
    (void)shared, (void)stream, (void)extra;
    if (kernel != &function || !(gx && gy && gz && bx && by && bz)) return INVALID_VALUE;
    u64 now = client_now(), place = client->next++ % KERNELS;
    ends = (ends > now ? ends : now) + *(const u64 *)parameters[0];
    client->kernel[place].from = ends - *(const u64 *)parameters[0];
    client->kernel[place].until = ends;
    return SUCCESS;
}

int cuCtxSynchronize(void) {
    struct timespec until = {.tv_sec = (time_t)(ends / 1000000000ULL),
                             .tv_nsec = (long)(ends % 1000000000ULL)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL)) continue;
    return SUCCESS;
}

int cuGetErrorName(int code, const char **name) {
    static const struct {
        int code;
        const char *name;
    } NAMES[] = {
        {SUCCESS, "CUDA_SUCCESS"},
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
        {INVALID_PTX, "CUDA_ERROR_INVALID_PTX"},
    };
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (NAMES[i].code == code) {
            *name = NAMES[i].name;
            return SUCCESS;
        }
    return INVALID_VALUE;
}
