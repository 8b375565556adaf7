/* A libnvidia-ml.so.1 for tests: NVML's protocol over a node that a small text file describes.
 *
 * NVML_FAKE_STATE names the state file, read again whenever its inode, size or mtime changes;
 * without one the driver is not loaded. NVML_FAKE_CALLS names a file of counters, shared memory
 * of 64-byte records (name, calls), readable at any time by any process.
 *
 * A state file has one fact per line, "kind key=value ...", values percent-encoded:
 *   driver  version= nvml= cuda= epoch= process_struct=24|32
 *           a new epoch uninitialises the library (a driver reload); R530 to R535 fill 32 bytes
 *   device  uuid= name= ... total= used= ...   numbers as in DEVICE_NUMBERS, "na": not supported
 *           with parent=<uuid> gi= ci=: a MIG instance, in index order under its card
 *   process device=<uuid> pid= used=|na type=CGM sm=|na gi= ci=
 *   sample  device=<uuid> pid= sm= at=<us>  one entry of the utilisation ring, as it is
 *   xid     device=<uuid>|? code= type=     delivered once; later files only append to the list;
 *           type is an nvmlEventType, of an XID if not told
 *   link    a=<uuid> b=<uuid> level= nvlink=  how near two cards are; 50 (SYSTEM) if not told
 *   fault   symbol=|* code= after= times= delay_ms= device=<uuid>
 *
 * Programs of the fake libcuda.so.1 (tests/support/fake_cuda) are clients: each has a file in the
 * folder NVML_FAKE_STATE with ".clients" behind it (client.h), and holds a lock on it while it lives.
 * Clients are listed after the processes of the state file, and what they hold and compute is added
 * to their GPUs. The kernel names the holder of a lock in the pid namespace of who asks: as such a
 * pid a client is listed, and not at all where it is out of sight.
 *
 * A fault skips its first `after` matching calls, then strikes `times` times (0: for ever): it
 * sleeps, then returns `code`; without a code the call goes on. Contracts follow nvml.h.
 */
#define _GNU_SOURCE
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <nvml.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "client.h"

typedef unsigned long long u64;

/* ---------------------------------------------------------------- layouts, proved */

#define AT(type, field, offset) && offsetof(type, field) == (offset)
#define LAYOUT(type, size, fields) \
    _Static_assert(sizeof(type) == (size) fields(type), "layout of " #type)

#define FIELDS(T) AT(T, total, 0) AT(T, free, 8) AT(T, used, 16)
LAYOUT(nvmlMemory_t, 24, FIELDS);
#undef FIELDS
#define FIELDS(T) \
    AT(T, version, 0) AT(T, total, 8) AT(T, reserved, 16) AT(T, free, 24) AT(T, used, 32)
LAYOUT(nvmlMemory_v2_t, 40, FIELDS);
#undef FIELDS
#define FIELDS(T) AT(T, bar1Total, 0) AT(T, bar1Free, 8) AT(T, bar1Used, 16)
LAYOUT(nvmlBAR1Memory_t, 24, FIELDS);
#undef FIELDS
#define FIELDS(T)                                                                \
    AT(T, busIdLegacy, 0) AT(T, domain, 16) AT(T, bus, 20) AT(T, device, 24)     \
    AT(T, pciDeviceId, 28) AT(T, pciSubSystemId, 32) AT(T, busId, 36)
LAYOUT(nvmlPciInfo_t, 68, FIELDS);
#undef FIELDS
#define FIELDS(T) AT(T, gpu, 0) AT(T, memory, 4)
LAYOUT(nvmlUtilization_t, 8, FIELDS);
#undef FIELDS
#define FIELDS(T) \
    AT(T, pid, 0) AT(T, usedGpuMemory, 8) AT(T, gpuInstanceId, 16) AT(T, computeInstanceId, 20)
LAYOUT(nvmlProcessInfo_t, 24, FIELDS);
#define DETAIL(T) FIELDS(T) AT(T, usedGpuCcProtectedMemory, 24)
LAYOUT(nvmlProcessDetail_v1_t, 32, DETAIL);
#undef FIELDS
#define FIELDS(T) \
    AT(T, version, 0) AT(T, mode, 4) AT(T, numProcArrayEntries, 8) AT(T, procArray, 16)
LAYOUT(nvmlProcessDetailList_t, 24, FIELDS);
#undef FIELDS
#define FIELDS(T)                                                                \
    AT(T, pid, 0) AT(T, timeStamp, 8) AT(T, smUtil, 16) AT(T, memUtil, 20)       \
    AT(T, encUtil, 24) AT(T, decUtil, 28)
LAYOUT(nvmlProcessUtilizationSample_t, 32, FIELDS);
#undef FIELDS
#define FIELDS(T)                                                                \
    AT(T, device, 0) AT(T, eventType, 8) AT(T, eventData, 16)                    \
    AT(T, gpuInstanceId, 24) AT(T, computeInstanceId, 28)
LAYOUT(nvmlEventData_t, 32, FIELDS);
#undef FIELDS
#define FIELDS(T) AT(T, version, 0) AT(T, sensorType, 4) AT(T, temperature, 8)
LAYOUT(nvmlTemperature_t, 12, FIELDS);
#undef FIELDS
#define FIELDS(T) AT(T, protectedMemSizeKib, 0) AT(T, unprotectedMemSizeKib, 8)
LAYOUT(nvmlConfComputeMemSizeInfo_t, 16, FIELDS);
#undef FIELDS
#define FIELDS(T) \
    AT(T, fieldId, 0) AT(T, scopeId, 4) AT(T, timestamp, 8) AT(T, latencyUsec, 16) \
    AT(T, valueType, 24) AT(T, nvmlReturn, 28) AT(T, value, 32)
LAYOUT(nvmlFieldValue_t, 40, FIELDS);
#undef FIELDS
_Static_assert(nvmlMemory_v2 == 0x02000028, "version word of memory v2");
_Static_assert(nvmlProcessDetailList_v1 == 0x01000018, "version word of the detail list");
_Static_assert(nvmlTemperature_v1 == 0x0100000C, "version word of the temperature");

/* ---------------------------------------------------------------- the described node */

#define NA ULLONG_MAX
#define NO_INSTANCE 0xFFFFFFFFu

/* name and default; memory in bytes, clocks in MHz, power in mW, energy in mJ, PCIe in KB/s */
#define DEVICE_NUMBERS(X)                                                                   \
    X(total, 80ULL << 30) X(used, 0) X(reserved, 0) X(bar1_total, 128ULL << 30)             \
    X(bar1_used, 1ULL << 20) X(gpu_util, 0) X(memory_util, 0) X(encoder_util, 0)            \
    X(decoder_util, 0) X(temperature, 40) X(temperature_shutdown, 92)                       \
    X(temperature_slowdown, 89) X(fan, NA) X(power, 100000) X(power_limit, 700000)          \
    X(energy, 0) X(clock_graphics, 1980) X(clock_sm, 1980) X(clock_memory, 2619)            \
    X(clock_video, 1545) X(clock_max_graphics, 1980) X(clock_max_sm, 1980)                  \
    X(clock_max_memory, 2619) X(clock_max_video, 1545) X(pstate, 0) X(clock_events, 0)      \
    X(ecc_corrected_volatile, 0) X(ecc_corrected_aggregate, 0)                              \
    X(ecc_uncorrected_volatile, 0) X(ecc_uncorrected_aggregate, 0)                          \
    X(retired_single_bit, NA) X(retired_double_bit, NA) X(retired_pending, NA)              \
    X(remapped_correctable, 0) X(remapped_uncorrectable, 0) X(remap_pending, 0)             \
    X(remap_failure, 0) X(pcie_replays, 0) X(pcie_generation, 5) X(pcie_width, 16)          \
    X(pcie_rx, 0) X(pcie_tx, 0) X(nvlinks, 18) X(nvlinks_active, 18) X(events, 1)           \
    X(ecc_events, 1) X(process_lists, 1) X(sees_all_instances, 1) X(idle_code, NVML_ERROR_NOT_FOUND)         \
    X(mig, 0) X(max_mig, 7) X(minor, NA) X(gi, NO_INSTANCE) X(ci, NO_INSTANCE) X(lost, 0)

enum number {
#define X(name, value) N_##name,
    DEVICE_NUMBERS(X)
#undef X
        NUMBERS
};
static const struct {
    const char *name;
    u64 value;
} NUMBER[NUMBERS] = {
#define X(name, value) {#name, value},
    DEVICE_NUMBERS(X)
#undef X
};

struct driver {
    char version[80], nvml[80];
    unsigned cuda, epoch;
    u64 process_struct;
};
/* A card, or a MIG instance: then parent is the card's place in the table. */
struct device {
    char uuid[96], name[96], bus[32], serial[30], vbios[32];
    int parent;
    unsigned index;
    u64 n[NUMBERS];
};
struct process {
    int device; /* a place in the table, or UNKNOWN */
    unsigned pid, gi, ci;
    u64 used, sm;
    char type[4];
};
struct sample {
    int device;
    unsigned pid, sm;
    u64 at;
};
struct xid {
    int device;
    u64 code, type;
};
struct link {
    int a, b;
    u64 level, nvlink;
};
struct fault {
    char symbol[64], device[96];
    int code;
    u64 after, times, delay_ms, calls;
};

enum { DEVICES = 96, PROCESSES = 4096, SAMPLES = 1024, XIDS = 256, LINKS = 256, FAULTS = 64 };
enum { NO_CODE = -1, UNKNOWN = -1 };

struct state {
    struct driver driver;
    int device_count, process_count, sample_count, xid_count, link_count, fault_count;
    struct device device[DEVICES];
    struct process process[PROCESSES];
    struct sample sample[SAMPLES];
    struct xid xid[XIDS];
    struct link link[LINKS];
    struct fault fault[FAULTS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct state buffers[2], *state = &buffers[0];
static int written_processes; /* those of the state file, before the clients */
static u64 client_memory[DEVICES], client_percent[DEVICES];
static struct stat seen;
static bool loaded;
static bool delivered[XIDS];
static unsigned initialised; /* NVML counts its initialisations */
static int control = -1;     /* stands for /dev/nvidiactl: open while initialised */

/* ---------------------------------------------------------------- reading the file */

static void decode(char *text) {
    char *out = text;
    for (const char *in = text; *in; in++) {
        unsigned byte;
        if (*in == '%' && sscanf(in + 1, "%2x", &byte) == 1) {
            *out++ = (char)byte;
            in += 2;
        } else {
            *out++ = *in;
        }
    }
    *out = 0;
}

static u64 number(const char *text) {
    return strcmp(text, "na") ? strtoull(text, NULL, 0) : NA;
}

static void copy(char *to, size_t size, const char *from) { snprintf(to, size, "%s", from); }

static int find(const struct state *s, const char *uuid) {
    for (int i = 0; i < s->device_count; i++)
        if (!strcmp(s->device[i].uuid, uuid)) return i;
    return UNKNOWN;
}

enum type { TEXT, U32, U64, PLACE };
#define KEY(kind, key, type) \
    {#kind, #key, type, offsetof(struct kind, key), sizeof(((struct kind *)0)->key)}
static const struct {
    const char *kind, *key;
    enum type type;
    size_t offset, size;
} KEYS[] = {
    KEY(driver, version, TEXT), KEY(driver, nvml, TEXT), KEY(driver, cuda, U32),
    KEY(driver, epoch, U32), KEY(driver, process_struct, U64),
    KEY(device, uuid, TEXT), KEY(device, name, TEXT), KEY(device, bus, TEXT),
    KEY(device, serial, TEXT), KEY(device, vbios, TEXT), KEY(device, parent, PLACE),
    KEY(process, device, PLACE), KEY(process, pid, U32), KEY(process, used, U64),
    KEY(process, sm, U64), KEY(process, gi, U32), KEY(process, ci, U32), KEY(process, type, TEXT),
    KEY(sample, device, PLACE), KEY(sample, pid, U32), KEY(sample, sm, U32), KEY(sample, at, U64),
    KEY(xid, device, PLACE), KEY(xid, code, U64), KEY(xid, type, U64),
    KEY(link, a, PLACE), KEY(link, b, PLACE), KEY(link, level, U64),
    KEY(link, nvlink, U64),
    KEY(fault, symbol, TEXT), KEY(fault, device, TEXT), KEY(fault, code, U32),
    KEY(fault, after, U64), KEY(fault, times, U64), KEY(fault, delay_ms, U64),
};

/* The next free value of a kind, with its defaults; NULL when the table is full. */
static void *add(struct state *s, const char *kind) {
    if (!strcmp(kind, "driver")) return &s->driver;
    if (!strcmp(kind, "device") && s->device_count < DEVICES) {
        struct device *d = &s->device[s->device_count++];
        *d = (struct device){.parent = UNKNOWN};
        for (int i = 0; i < NUMBERS; i++) d->n[i] = NUMBER[i].value;
        return d;
    }
    if (!strcmp(kind, "process") && s->process_count < PROCESSES) {
        struct process *p = &s->process[s->process_count++];
        *p = (struct process){.used = NA, .sm = NA, .gi = NO_INSTANCE, .ci = NO_INSTANCE,
                              .type = "C"};
        return p;
    }
    if (!strcmp(kind, "sample") && s->sample_count < SAMPLES)
        return memset(&s->sample[s->sample_count++], 0, sizeof(struct sample));
    if (!strcmp(kind, "xid") && s->xid_count < XIDS) {
        struct xid *x = &s->xid[s->xid_count++];
        *x = (struct xid){.type = nvmlEventTypeXidCriticalError};
        return x;
    }
    if (!strcmp(kind, "link") && s->link_count < LINKS) return &s->link[s->link_count++];
    if (!strcmp(kind, "fault") && s->fault_count < FAULTS) {
        struct fault *f = &s->fault[s->fault_count++];
        *f = (struct fault){.code = NO_CODE};
        return f;
    }
    return NULL;
}

static void set(const struct state *s, const char *kind, void *value, const char *key,
                const char *text) {
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        if (strcmp(KEYS[i].kind, kind) || strcmp(KEYS[i].key, key)) continue;
        void *field = (char *)value + KEYS[i].offset;
        switch (KEYS[i].type) {
            case TEXT: copy(field, KEYS[i].size, text); break;
            case U32: *(unsigned *)field = (unsigned)number(text); break;
            case U64: *(u64 *)field = number(text); break;
            case PLACE: *(int *)field = find(s, text); break;
        }
    }
    if (!strcmp(kind, "device"))
        for (int i = 0; i < NUMBERS; i++)
            if (!strcmp(key, NUMBER[i].name)) ((struct device *)value)->n[i] = number(text);
}

static void read_line(struct state *s, char *line) {
    char *rest, *kind = strtok_r(line, " \n", &rest);
    void *value = kind ? add(s, kind) : NULL;
    for (char *key; value && (key = strtok_r(NULL, " \n", &rest));) {
        char *text = strchr(key, '=');
        if (!text) continue;
        *text++ = 0;
        decode(text);
        set(s, kind, value, key, text);
    }
}

/* The pid of the process that holds the lock on a client's file, as this process sees it: 0 if it
 * is out of sight, -1 if there is none. */
static int holder_of(int fd) {
    struct flock held = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, F_GETLK, &held) || held.l_type == F_UNLCK) return -1;
    return held.l_pid;
}

static void add_client(int fd) {
    struct client client;
    int pid = holder_of(fd);
    if (pid < 0 || pread(fd, &client, sizeof client, 0) != sizeof client) return;
    int place = find(state, client.uuid);
    if (place == UNKNOWN) return;
    u64 percent = client_busy_percent(&client);
    client_memory[place] += client.used;
    client_percent[place] += percent;
    struct process *p = pid ? add(state, "process") : NULL;
    if (!p) return;
    p->device = place;
    p->pid = (unsigned)pid;
    p->used = client.used;
    p->sm = percent ? percent : NA; /* the ring has no sample of an idle process */
}

/* Those who live now. The lock is held. */
static void read_clients(const char *path) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s.clients", path);
    state->process_count = written_processes;
    memset(client_memory, 0, sizeof client_memory);
    memset(client_percent, 0, sizeof client_percent);
    DIR *clients = opendir(folder);
    if (!clients) return;
    for (struct dirent *entry; (entry = readdir(clients));) {
        int fd = openat(dirfd(clients), entry->d_name, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        add_client(fd);
        close(fd);
    }
    closedir(clients);
}

/* Read the file again if it changed. The lock is held. */
static void refresh_state(const char *path) {
    struct stat now;
    if (!path || stat(path, &now)) {
        loaded = false;
        initialised = 0;
        return;
    }
    if (loaded && now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "re");
    if (!file) return;
    struct state *next = state == &buffers[0] ? &buffers[1] : &buffers[0];
    memset(next, 0, offsetof(struct state, device));
    next->driver.process_struct = sizeof(nvmlProcessInfo_t);
    char line[4096];
    while (fgets(line, sizeof line, file)) read_line(next, line);
    fclose(file);
    unsigned cards = 0;
    for (int i = 0; i < next->device_count; i++) {
        struct device *d = &next->device[i];
        if (d->parent < 0) d->index = cards++;
        else
            for (int j = 0; j < i; j++) d->index += next->device[j].parent == d->parent;
    }
    if (loaded && next->driver.epoch != state->driver.epoch) initialised = 0;
    state = next;
    written_processes = state->process_count;
    seen = now;
    loaded = true;
}

static void refresh(void) {
    const char *path = getenv("NVML_FAKE_STATE");
    refresh_state(path);
    if (loaded) read_clients(path);
}

/* ---------------------------------------------------------------- counters and faults */

struct counter {
    char name[56];
    u64 calls;
};
enum { COUNTERS = 256 };
_Static_assert(sizeof(struct counter) == 64, "a record of the counter file");

static struct counter *counters;

static void map_counters(void) {
    const char *path = getenv("NVML_FAKE_CALLS");
    size_t size = COUNTERS * sizeof(struct counter);
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd >= 0 && ftruncate(fd, (off_t)size)) abort();
    counters = mmap(NULL, size, PROT_READ | PROT_WRITE,
                    fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (counters == MAP_FAILED) abort();
    if (fd >= 0) close(fd);
}

/* Count a call; the lock is held. `slot` is the caller's own place to remember its record. */
static void count(struct counter **slot, const char *symbol) {
    if (!counters) map_counters();
    for (int i = 0; !*slot && i < COUNTERS; i++) {
        struct counter *c = &counters[i];
        if (!c->name[0]) copy(c->name, sizeof c->name, symbol);
        if (!strcmp(c->name, symbol)) *slot = c;
    }
    if (*slot) __atomic_fetch_add(&(*slot)->calls, 1, __ATOMIC_RELAXED);
}

/* A handle is 0x10000 * (epoch + 1) + 16 * (place + 1): stale ones do not resolve. */
static nvmlDevice_t handle_of(int place) {
    uintptr_t base = 0x10000u * (uintptr_t)(state->driver.epoch + 1);
    return (nvmlDevice_t)(base + 16u * (uintptr_t)(place + 1));
}

static struct device *device_of(nvmlDevice_t handle) {
    uintptr_t place = ((uintptr_t)handle - (uintptr_t)handle_of(0)) / 16;
    return place < (uintptr_t)state->device_count && handle_of((int)place) == handle
               ? &state->device[place]
               : NULL;
}

static const struct device *card_of(const struct device *d) {
    return d->parent < 0 ? d : &state->device[d->parent];
}

/* The code of the first fault that strikes this call, its delay slept without the lock. */
static int strike(const char *symbol, const char *uuid) {
    for (int i = 0; i < state->fault_count; i++) {
        struct fault *f = &state->fault[i];
        if (strcmp(f->symbol, "*") && strcmp(f->symbol, symbol)) continue;
        if (f->device[0] && strcmp(f->device, uuid)) continue;
        u64 call = f->calls++;
        if (call < f->after || (f->times && call >= f->after + f->times)) continue;
        int code = f->code;
        if (f->delay_ms) {
            struct timespec delay = {.tv_sec = (time_t)(f->delay_ms / 1000),
                                     .tv_nsec = (long)(f->delay_ms % 1000 * 1000000)};
            pthread_mutex_unlock(&lock);
            nanosleep(&delay, NULL);
            pthread_mutex_lock(&lock);
            refresh();
        }
        if (code == NVML_ERROR_UNINITIALIZED) initialised = 0;
        return code;
    }
    return NO_CODE;
}

enum accepts { SYSTEM, CARDS, CARDS_AND_INSTANCES };

static nvmlReturn_t leave(nvmlReturn_t code) {
    pthread_mutex_unlock(&lock);
    return code;
}

/* Begin a call: count it, let faults strike, refuse what cannot be served. The lock is held
 * after a success, and leave() gives it back. */
static nvmlReturn_t enter(struct counter **slot, const char *symbol, enum accepts accepts,
                          nvmlDevice_t handle, const struct device **device) {
    pthread_mutex_lock(&lock);
    refresh();
    count(slot, symbol);
    const struct device *d = accepts == SYSTEM ? NULL : device_of(handle);
    int code = strike(symbol, d ? d->uuid : "");
    if (code != NO_CODE) return leave((nvmlReturn_t)code);
    if (!initialised) return leave(NVML_ERROR_UNINITIALIZED);
    if (accepts == SYSTEM) return NVML_SUCCESS;
    d = device_of(handle);
    if (!d) return leave(NVML_ERROR_INVALID_ARGUMENT);
    if (card_of(d)->n[N_lost]) return leave(NVML_ERROR_GPU_IS_LOST);
    if (accepts == CARDS && d->parent >= 0) return leave(NVML_ERROR_NOT_SUPPORTED);
    *device = d;
    return NVML_SUCCESS;
}

#define ENTER(handle, accepts)                                                      \
    static struct counter *slot_;                                                   \
    const struct device *d = NULL;                                                  \
    nvmlReturn_t entered_ = enter(&slot_, __func__, accepts, handle, &d);           \
    if (entered_ != NVML_SUCCESS) return entered_;                                  \
    (void)d
#define ENTER_SYSTEM() ENTER(NULL, SYSTEM)
#define LEAVE_IF(condition, code) \
    if (condition) return leave(code)

static nvmlReturn_t give_text(char *buffer, unsigned length, const char *text) {
    if (!buffer) return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) + 1 > length) return NVML_ERROR_INSUFFICIENT_SIZE;
    copy(buffer, length, text);
    return NVML_SUCCESS;
}

static nvmlReturn_t give_u32(unsigned *out, u64 value) {
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    if (value == NA) return NVML_ERROR_NOT_SUPPORTED;
    *out = (unsigned)value;
    return NVML_SUCCESS;
}

static nvmlReturn_t give_u64(u64 *out, u64 value) {
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    if (value == NA) return NVML_ERROR_NOT_SUPPORTED;
    *out = value;
    return NVML_SUCCESS;
}

/* ---------------------------------------------------------------- the library itself */

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    static struct counter *slot;
    (void)flags;
    pthread_mutex_lock(&lock);
    refresh();
    count(&slot, __func__);
    int code = loaded ? strike(__func__, "") : NVML_ERROR_DRIVER_NOT_LOADED;
    if (code != NO_CODE) return leave((nvmlReturn_t)code);
    initialised++;
    if (control < 0) control = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlShutdown(void) {
    ENTER_SYSTEM();
    if (--initialised == 0) {
        close(control);
        control = -1;
    }
    return leave(NVML_SUCCESS);
}

const char *nvmlErrorString(nvmlReturn_t result) {
    return result == NVML_SUCCESS ? "Success" : "Error of the fake driver";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    ENTER_SYSTEM();
    return leave(give_text(version, length, state->driver.version));
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    ENTER_SYSTEM();
    return leave(give_text(version, length, state->driver.nvml));
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER_SYSTEM();
    return leave(give_u32((unsigned *)version, state->driver.cuda));
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    ENTER_SYSTEM();
    return leave(give_u32((unsigned *)version, state->driver.cuda));
}

/* ---------------------------------------------------------------- handles and identity */

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out) {
    ENTER_SYSTEM();
    unsigned cards = 0;
    for (int i = 0; i < state->device_count; i++) cards += state->device[i].parent < 0;
    return leave(give_u32(out, cards));
}

static nvmlReturn_t give_handle(int place, nvmlDevice_t *out) {
    if (place < 0) return NVML_ERROR_NOT_FOUND;
    if (card_of(&state->device[place])->n[N_lost]) return NVML_ERROR_GPU_IS_LOST;
    *out = handle_of(place);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out) {
    ENTER_SYSTEM();
    for (int i = 0; i < state->device_count; i++)
        if (state->device[i].parent < 0 && state->device[i].index == index)
            return leave(give_handle(i, out));
    return leave(NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out) {
    ENTER_SYSTEM();
    return leave(give_handle(find(state, uuid), out));
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *out) {
    ENTER_SYSTEM();
    for (int i = 0; i < state->device_count; i++)
        if (state->device[i].parent < 0 && !strcasecmp(state->device[i].bus, bus))
            return leave(give_handle(i, out));
    return leave(NVML_ERROR_NOT_FOUND);
}

#define TEXT(symbol, field, accepts)                                         \
    nvmlReturn_t symbol(nvmlDevice_t device, char *buffer, unsigned length) { \
        ENTER(device, accepts);                                              \
        return leave(give_text(buffer, length, d->field));                   \
    }
TEXT(nvmlDeviceGetName, name, CARDS_AND_INSTANCES)
TEXT(nvmlDeviceGetUUID, uuid, CARDS_AND_INSTANCES)
TEXT(nvmlDeviceGetSerial, serial, CARDS)
TEXT(nvmlDeviceGetVbiosVersion, vbios, CARDS)

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *out) {
    ENTER(device, CARDS_AND_INSTANCES);
    return leave(give_u32(out, d->index));
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *out) {
    ENTER(device, CARDS);
    return leave(give_u32(out, d->n[N_minor] == NA ? d->index : d->n[N_minor]));
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    ENTER(device, CARDS);
    LEAVE_IF(!pci, NVML_ERROR_INVALID_ARGUMENT);
    memset(pci, 0, sizeof *pci);
    copy(pci->busId, sizeof pci->busId, d->bus);
    if (strlen(d->bus) > 4) copy(pci->busIdLegacy, sizeof pci->busIdLegacy, d->bus + 4);
    sscanf(d->bus, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    ENTER(device, CARDS_AND_INSTANCES);
    *major = 9;
    *minor = 0;
    return leave(NVML_SUCCESS);
}

/* Two handles of one card are INTERNAL to each other. */
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other,
                                                 nvmlGpuTopologyLevel_t *level) {
    ENTER(device, CARDS);
    const struct device *o = device_of(other);
    LEAVE_IF(!o || !level, NVML_ERROR_INVALID_ARGUMENT);
    int a = (int)(d - state->device), b = (int)(o - state->device);
    *level = a == b ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_SYSTEM;
    for (int i = 0; i < state->link_count; i++) {
        const struct link *l = &state->link[i];
        if ((l->a == a && l->b == b) || (l->a == b && l->b == a))
            *level = (nvmlGpuTopologyLevel_t)l->level;
    }
    return leave(NVML_SUCCESS);
}

/* Only whether NVLink joins two cards is known here. */
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other,
                                    nvmlGpuP2PCapsIndex_t index, nvmlGpuP2PStatus_t *status) {
    ENTER(device, CARDS);
    const struct device *o = device_of(other);
    LEAVE_IF(!o || !status, NVML_ERROR_INVALID_ARGUMENT);
    LEAVE_IF(index != NVML_P2P_CAPS_INDEX_NVLINK, NVML_ERROR_NOT_SUPPORTED);
    int a = (int)(d - state->device), b = (int)(o - state->device);
    *status = NVML_P2P_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < state->link_count; i++) {
        const struct link *l = &state->link[i];
        if (l->nvlink && ((l->a == a && l->b == b) || (l->a == b && l->b == a)))
            *status = NVML_P2P_STATUS_OK;
    }
    return leave(NVML_SUCCESS);
}

/* ---------------------------------------------------------------- readings */

#define READING(symbol, field, type, give)                 \
    nvmlReturn_t symbol(nvmlDevice_t device, type *out) {  \
        ENTER(device, CARDS);                              \
        return leave(give(out, d->n[N_##field]));          \
    }
READING(nvmlDeviceGetFanSpeed, fan, unsigned, give_u32)
READING(nvmlDeviceGetPowerUsage, power, unsigned, give_u32)
READING(nvmlDeviceGetPowerManagementLimit, power_limit, unsigned, give_u32)
READING(nvmlDeviceGetEnforcedPowerLimit, power_limit, unsigned, give_u32)
READING(nvmlDeviceGetTotalEnergyConsumption, energy, u64, give_u64)
READING(nvmlDeviceGetPerformanceState, pstate, nvmlPstates_t, give_u32)
READING(nvmlDeviceGetCurrentClocksEventReasons, clock_events, u64, give_u64)
READING(nvmlDeviceGetCurrentClocksThrottleReasons, clock_events, u64, give_u64)
READING(nvmlDeviceGetRetiredPagesPendingStatus, retired_pending, nvmlEnableState_t, give_u32)
READING(nvmlDeviceGetPcieReplayCounter, pcie_replays, unsigned, give_u32)
READING(nvmlDeviceGetCurrPcieLinkGeneration, pcie_generation, unsigned, give_u32)
READING(nvmlDeviceGetCurrPcieLinkWidth, pcie_width, unsigned, give_u32)
READING(nvmlDeviceGetMaxPcieLinkGeneration, pcie_generation, unsigned, give_u32)
READING(nvmlDeviceGetMaxPcieLinkWidth, pcie_width, unsigned, give_u32)

static u64 used_of(const struct device *d) {
    return d->n[N_used] + client_memory[d - state->device];
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    ENTER(device, CARDS_AND_INSTANCES);
    LEAVE_IF(!memory, NVML_ERROR_INVALID_ARGUMENT);
    memory->total = d->n[N_total];
    memory->used = used_of(d) + d->n[N_reserved];
    memory->free = memory->total - memory->used;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    ENTER(device, CARDS_AND_INSTANCES);
    LEAVE_IF(!memory, NVML_ERROR_INVALID_ARGUMENT);
    LEAVE_IF(memory->version != nvmlMemory_v2, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    memory->total = d->n[N_total];
    memory->used = used_of(d);
    memory->reserved = d->n[N_reserved];
    memory->free = memory->total - memory->used - memory->reserved;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    ENTER(device, CARDS_AND_INSTANCES);
    LEAVE_IF(!memory, NVML_ERROR_INVALID_ARGUMENT);
    memory->bar1Total = d->n[N_bar1_total];
    memory->bar1Used = d->n[N_bar1_used];
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    ENTER(device, CARDS);
    LEAVE_IF(!rates, NVML_ERROR_INVALID_ARGUMENT);
    LEAVE_IF(d->n[N_mig] == 1, NVML_ERROR_NOT_SUPPORTED);
    u64 clients = client_percent[d - state->device], percent = d->n[N_gpu_util];
    if (clients && percent <= 100) percent = percent + clients > 100 ? 100 : percent + clients;
    nvmlReturn_t code = give_u32(&rates->gpu, percent);
    return leave(code ? code : give_u32(&rates->memory, d->n[N_memory_util]));
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *rate, unsigned *us) {
    ENTER(device, CARDS);
    *us = 167000;
    return leave(give_u32(rate, d->n[N_encoder_util]));
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *rate, unsigned *us) {
    ENTER(device, CARDS);
    *us = 167000;
    return leave(give_u32(rate, d->n[N_decoder_util]));
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                      unsigned *out) {
    ENTER(device, CARDS);
    LEAVE_IF(sensor != NVML_TEMPERATURE_GPU, NVML_ERROR_INVALID_ARGUMENT);
    return leave(give_u32(out, d->n[N_temperature]));
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *temperature) {
    ENTER(device, CARDS);
    LEAVE_IF(!temperature, NVML_ERROR_INVALID_ARGUMENT);
    LEAVE_IF(temperature->version != nvmlTemperature_v1, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    LEAVE_IF(temperature->sensorType != NVML_TEMPERATURE_GPU, NVML_ERROR_INVALID_ARGUMENT);
    return leave(give_u32((unsigned *)&temperature->temperature, d->n[N_temperature]));
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device,
                                               nvmlTemperatureThresholds_t type, unsigned *out) {
    ENTER(device, CARDS);
    LEAVE_IF(type > NVML_TEMPERATURE_THRESHOLD_SLOWDOWN, NVML_ERROR_NOT_SUPPORTED);
    return leave(give_u32(out, d->n[N_temperature_shutdown + (int)type]));
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned *out) {
    ENTER(device, CARDS);
    LEAVE_IF(type >= NVML_CLOCK_COUNT, NVML_ERROR_INVALID_ARGUMENT);
    return leave(give_u32(out, d->n[N_clock_graphics + (int)type]));
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned *out) {
    ENTER(device, CARDS);
    LEAVE_IF(type >= NVML_CLOCK_COUNT, NVML_ERROR_INVALID_ARGUMENT);
    return leave(give_u32(out, d->n[N_clock_max_graphics + (int)type]));
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                         nvmlEccCounterType_t lifetime, u64 *out) {
    ENTER(device, CARDS);
    LEAVE_IF(type > 1 || lifetime > 1, NVML_ERROR_INVALID_ARGUMENT);
    return leave(give_u64(out, d->n[N_ecc_corrected_volatile + 2 * (int)type + (int)lifetime]));
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause,
                                       unsigned *pages, u64 *addresses) {
    ENTER(device, CARDS);
    LEAVE_IF(!pages || cause > 1, NVML_ERROR_INVALID_ARGUMENT);
    u64 retired = d->n[N_retired_single_bit + (int)cause];
    LEAVE_IF(retired == NA, NVML_ERROR_NOT_SUPPORTED);
    unsigned room = *pages;
    *pages = (unsigned)retired;
    LEAVE_IF(room < retired, NVML_ERROR_INSUFFICIENT_SIZE);
    for (u64 i = 0; addresses && i < retired; i++) addresses[i] = 4096 * i;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *correctable,
                                       unsigned *uncorrectable, unsigned *pending,
                                       unsigned *failure) {
    ENTER(device, CARDS);
    nvmlReturn_t code = give_u32(correctable, d->n[N_remapped_correctable]);
    if (!code) code = give_u32(uncorrectable, d->n[N_remapped_uncorrectable]);
    if (!code) code = give_u32(pending, d->n[N_remap_pending]);
    return leave(code ? code : give_u32(failure, d->n[N_remap_failure]));
}

/* Averages a byte counter over 20 ms, as the real one does. */
nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
                                         unsigned *out) {
    ENTER(device, CARDS);
    u64 value = d->n[counter == NVML_PCIE_UTIL_RX_BYTES ? N_pcie_rx : N_pcie_tx];
    leave(NVML_SUCCESS);
    nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    return give_u32(out, value);
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, nvmlEnableState_t *out) {
    ENTER(device, CARDS);
    LEAVE_IF(d->n[N_nvlinks] == 0, NVML_ERROR_NOT_SUPPORTED);
    LEAVE_IF(link >= d->n[N_nvlinks], NVML_ERROR_INVALID_ARGUMENT);
    *out = link < d->n[N_nvlinks_active] ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device,
                                                 nvmlConfComputeMemSizeInfo_t *info) {
    ENTER(device, CARDS);
    LEAVE_IF(!info, NVML_ERROR_INVALID_ARGUMENT);
    *info = (nvmlConfComputeMemSizeInfo_t){.unprotectedMemSizeKib = d->n[N_total] >> 10};
    return leave(NVML_SUCCESS);
}

/* No field is supported; callers ask for links that way. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int values, nvmlFieldValue_t *out) {
    ENTER(device, CARDS);
    for (int i = 0; i < values; i++) out[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    return leave(NVML_SUCCESS);
}

/* ---------------------------------------------------------------- MIG */

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    ENTER(device, CARDS);
    nvmlReturn_t code = give_u32(current, d->n[N_mig]);
    return leave(code ? code : give_u32(pending, d->n[N_mig]));
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *out) {
    ENTER(device, CARDS);
    return leave(give_u32(out, d->n[N_mig] == 1 ? d->n[N_max_mig] : 0));
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index,
                                                 nvmlDevice_t *out) {
    ENTER(device, CARDS);
    LEAVE_IF(d->n[N_mig] != 1, NVML_ERROR_NOT_SUPPORTED);
    for (int i = 0; i < state->device_count; i++) {
        const struct device *m = &state->device[i];
        if (m->parent == d - state->device && m->index == index)
            return leave(give_handle(i, out));
    }
    return leave(NVML_ERROR_NOT_FOUND);
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *out) {
    ENTER(device, CARDS_AND_INSTANCES);
    return leave(give_u32(out, d->parent >= 0));
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device,
                                                          nvmlDevice_t *out) {
    ENTER(device, CARDS_AND_INSTANCES);
    LEAVE_IF(d->parent < 0, NVML_ERROR_NOT_FOUND);
    return leave(give_handle(d->parent, out));
}

#define INSTANCE_ID(symbol, field)                               \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned *out) {    \
        ENTER(device, CARDS_AND_INSTANCES);                      \
        LEAVE_IF(d->parent < 0, NVML_ERROR_NOT_SUPPORTED);       \
        return leave(give_u32(out, d->n[N_##field]));            \
    }
INSTANCE_ID(nvmlDeviceGetGpuInstanceId, gi)
INSTANCE_ID(nvmlDeviceGetComputeInstanceId, ci)

/* ---------------------------------------------------------------- processes */

/* Whether `p` runs on `d`; on a MIG instance its ids must match, on a card all count. */
static bool runs_on(const struct process *p, const struct device *d) {
    if (p->device != card_of(d) - state->device) return false;
    return d->parent < 0 || (p->gi == d->n[N_gi] && p->ci == d->n[N_ci]);
}

static nvmlReturn_t processes(const struct device *d, char type, unsigned *found, void *infos) {
    if (!found) return NVML_ERROR_INVALID_ARGUMENT;
    if (!card_of(d)->n[N_process_lists]) return NVML_ERROR_NOT_SUPPORTED;
    if (d->n[N_mig] == 1 && !d->n[N_sees_all_instances]) return NVML_ERROR_NO_PERMISSION;
    unsigned room = *found, needed = 0;
    for (int i = 0; i < state->process_count; i++) {
        const struct process *p = &state->process[i];
        needed += runs_on(p, d) && strchr(p->type, type);
    }
    *found = needed;
    if (room < needed) return NVML_ERROR_INSUFFICIENT_SIZE;
    if (needed && !infos) return NVML_ERROR_INVALID_ARGUMENT;
    char *out = infos;
    for (int i = 0; i < state->process_count; i++) {
        const struct process *p = &state->process[i];
        if (!runs_on(p, d) || !strchr(p->type, type)) continue;
        nvmlProcessDetail_v1_t detail = {.pid = p->pid,
                                         .usedGpuMemory = p->used,
                                         .gpuInstanceId = p->gi,
                                         .computeInstanceId = p->ci};
        memcpy(out, &detail, state->driver.process_struct);
        out += state->driver.process_struct;
    }
    return NVML_SUCCESS;
}

#define PROCESS_LIST(symbol, type)                                                             \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned *found, nvmlProcessInfo_t *infos) {      \
        ENTER(device, CARDS_AND_INSTANCES);                                                    \
        return leave(processes(d, type, found, infos));                                        \
    }
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, 'C')
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G')
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M')

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                   nvmlProcessDetailList_t *list) {
    ENTER(device, CARDS_AND_INSTANCES);
    LEAVE_IF(!list, NVML_ERROR_INVALID_ARGUMENT);
    LEAVE_IF(list->version != nvmlProcessDetailList_v1, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    LEAVE_IF(list->mode > NVML_PROCESS_MODE_MPS, NVML_ERROR_INVALID_ARGUMENT);
    size_t size = state->driver.process_struct;
    state->driver.process_struct = sizeof(nvmlProcessDetail_v1_t);
    nvmlReturn_t code =
        processes(d, "CGM"[list->mode], &list->numProcArrayEntries, list->procArray);
    state->driver.process_struct = size;
    return leave(code);
}

/* The ring holds the sample lines, and for each process with an sm a sample of just now. */
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t *out,
                                             unsigned *found, u64 since) {
    ENTER(device, CARDS);
    LEAVE_IF(!found, NVML_ERROR_INVALID_ARGUMENT);
    LEAVE_IF(d->n[N_mig] == 1, NVML_ERROR_NOT_SUPPORTED);
    struct timespec clock;
    clock_gettime(CLOCK_REALTIME, &clock);
    u64 now = (u64)clock.tv_sec * 1000000 + (u64)clock.tv_nsec / 1000;
    int place = (int)(d - state->device);
    unsigned room = out ? *found : 0, needed = 0;
    for (int i = 0; i < state->sample_count; i++) {
        const struct sample *m = &state->sample[i];
        if (m->device != place || m->at <= since) continue;
        if (needed++ < room)
            out[needed - 1] = (nvmlProcessUtilizationSample_t){
                .pid = m->pid, .timeStamp = m->at, .smUtil = m->sm};
    }
    for (int i = 0; i < state->process_count; i++) {
        const struct process *p = &state->process[i];
        if (p->device != place || p->sm == NA || now <= since) continue;
        if (needed++ < room)
            out[needed - 1] = (nvmlProcessUtilizationSample_t){
                .pid = p->pid, .timeStamp = now, .smUtil = (unsigned)p->sm};
    }
    *found = needed;
    LEAVE_IF(!needed, (nvmlReturn_t)d->n[N_idle_code]);
    return leave(needed > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
}

/* ---------------------------------------------------------------- events */

struct nvmlEventSet_st {
    u64 registered[DEVICES]; /* the event types */
};

static u64 supported_events(const struct device *d) {
    if (!d->n[N_events]) return 0;
    return nvmlEventTypeXidCriticalError |
           (d->n[N_ecc_events] ? nvmlEventTypeDoubleBitEccError : 0);
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    ENTER_SYSTEM();
    LEAVE_IF(!set, NVML_ERROR_INVALID_ARGUMENT);
    *set = calloc(1, sizeof **set);
    return leave(*set ? NVML_SUCCESS : NVML_ERROR_MEMORY);
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    ENTER_SYSTEM();
    free(set);
    return leave(NVML_SUCCESS);
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, u64 *types) {
    ENTER(device, CARDS);
    return leave(give_u64(types, supported_events(d)));
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, u64 types, nvmlEventSet_t set) {
    ENTER(device, CARDS);
    LEAVE_IF(!set, NVML_ERROR_INVALID_ARGUMENT);
    LEAVE_IF(types & ~supported_events(d), NVML_ERROR_NOT_SUPPORTED);
    set->registered[d - state->device] |= types;
    return leave(NVML_SUCCESS);
}

/* The next event that `set` is to see; the lock is held. */
static bool next_event(nvmlEventSet_t set, nvmlEventData_t *data) {
    for (int i = 0; i < state->xid_count; i++) {
        const struct xid *x = &state->xid[i];
        if (delivered[i] || (x->device >= 0 && !(set->registered[x->device] & x->type))) continue;
        delivered[i] = true;
        *data = (nvmlEventData_t){
            .device = x->device >= 0 ? handle_of(x->device) : (nvmlDevice_t)(uintptr_t)0xdead0,
            .eventType = x->type,
            .eventData = x->code,
            .gpuInstanceId = NO_INSTANCE,
            .computeInstanceId = NO_INSTANCE,
        };
        return true;
    }
    return false;
}

static int milliseconds_since(const struct timespec *start) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int)((now.tv_sec - start->tv_sec) * 1000 + (now.tv_nsec - start->tv_nsec) / 1000000);
}

/* Sleeps on changes of the state file's folder, so that waiting costs nothing. */
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout) {
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    ENTER_SYSTEM();
    leave(NVML_SUCCESS);
    if (!set || !data) return NVML_ERROR_INVALID_ARGUMENT;
    char folder[PATH_MAX];
    copy(folder, sizeof folder, getenv("NVML_FAKE_STATE"));
    char *slash = strrchr(folder, '/');
    copy(slash ? slash : folder, sizeof "/.", slash ? "/." : ".");
    struct pollfd watch = {.fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK), .events = POLLIN};
    inotify_add_watch(watch.fd, folder, IN_MOVED_TO | IN_CLOSE_WRITE | IN_DELETE);
    nvmlReturn_t code = NVML_ERROR_TIMEOUT;
    for (;;) {
        pthread_mutex_lock(&lock);
        refresh();
        if (!initialised) code = NVML_ERROR_UNINITIALIZED;
        else if (next_event(set, data)) code = NVML_SUCCESS;
        pthread_mutex_unlock(&lock);
        int left = (int)timeout - milliseconds_since(&start);
        if (code != NVML_ERROR_TIMEOUT || left <= 0) break;
        poll(&watch, 1, left);
        char events[4096];
        while (read(watch.fd, events, sizeof events) > 0) continue;
    }
    close(watch.fd);
    return code;
}
