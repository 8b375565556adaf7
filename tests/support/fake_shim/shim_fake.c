/* A libvgpu.so for tests: what is seen of HAMi-core from outside of its process.
 *
 * When it is loaded, it takes the first slot of the region that CUDA_DEVICE_MEMORY_SHARED_CACHE
 * names, in the layout v1.2, unless CUDA_DISABLE_CONTROL is "true". It hooks nothing.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLOTS = 1856, STATUS = 1928, TRAILER = 2008896 };

__attribute__((constructor)) static void take_slot(void) {
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    const char *disabled = getenv("CUDA_DISABLE_CONTROL");
    if (!path || (disabled && !strcmp(disabled, "true"))) return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    int ids[2] = {getpid(), getpid()}, active = 1, count = 1;
    if (pwrite(fd, ids, sizeof ids, SLOTS) < 0 || pwrite(fd, &active, sizeof active, SLOTS + STATUS) < 0
        || pwrite(fd, &count, sizeof count, TRAILER) < 0)
        abort();
    close(fd);
}
