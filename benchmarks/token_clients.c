/*
 * Load for a server of Gemini's messages.
 *
 *     token_clients memory PID ADDRESS PORT CONNECTIONS PACE_MS SECONDS
 *     token_clients tokens PID ADDRESS PORT GPUS TENANTS HOLD_MS VARIATION TOGETHER SECONDS
 *
 * memory: the connections of one process. Each allocates and frees one byte by turns, at once after
 * the answer, or every PACE_MS. Times are those of a message.
 *
 * tokens: a process for each of GPUS GPUs, with TENANTS tenants, whose ports are those from PORT on;
 * all have PORT if a GPU has one tenant. Each tenant asks for the token, keeps it for HOLD_MS,
 * VARIATION percent more or less, and asks again. The GPUs begin one after the other, within
 * HOLD_MS, or all at one time with TOGETHER 1; without variation they then stay in step, since the
 * second one of two is served faster. Times are those from the message that returns a token to the
 * answer with which the next tenant of the GPU gets it.
 *
 * Prints "P50 P99 CPU": times in microseconds, and the CPU of the server PID for each in nanoseconds,
 * from when all have connected to when the first one closes.
 *
 * With one process and the kernel's slack of 50 us, timers of several GPUs pass together, and
 * messages wait for each other before they are sent. Programs of several GPUs are processes of their
 * own, and their kernels do not end when a timer of others does.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 1024, SENT = 80, GOT = 40, MOST_TIMES = 4000000 };

struct client {
    int fd, gpu, allocates, has_token;
    int32_t next_id;
    size_t got;
    int64_t sent_at, due;
    char name[16];
};

static struct client clients[MOST];
static int64_t returned_at[MOST];
static int *times, *count; /* shared by all processes */

static int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void note(int64_t time)
{
    int at = __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
    if (at < MOST_TIMES)
        times[at] = (int)time;
}

static void send_request(struct client *client, int32_t type, const void *payload, size_t size)
{
    char message[SENT] = {0};
    uint64_t length = strlen(client->name);
    size_t at = 8 + length + 1 + 4;
    memcpy(message, &length, 8);
    memcpy(message + 8, client->name, length);
    memcpy(message + at - 4, &client->next_id, 4);
    client->next_id++;
    memcpy(message + at, &type, 4);
    memcpy(message + at + 4, payload, size);
    client->sent_at = now_us();
    if (send(client->fd, message, SENT, 0) != SENT)
        fail("send");
}

static void send_memory(struct client *client)
{
    struct { uint64_t bytes; int32_t allocate; } __attribute__((packed)) payload = {1, 0};
    client->allocates = !client->allocates;
    payload.allocate = client->allocates;
    send_request(client, 2, &payload, sizeof payload);
}

static void send_quota(struct client *client)
{
    double payload[2] = {0, 9000}; /* more than any quota: the token is returned */
    if (client->has_token)
        returned_at[client->gpu] = now_us();
    client->has_token = 0;
    send_request(client, 0, payload, sizeof payload);
}

/* A time of that length on average; with a variation, it differs from the last one. */
static int64_t varied(int64_t time, int percent)
{
    static uint64_t state;
    int64_t most = time * percent / 100;
    state = (state ? state : (uint64_t)getpid()) * 6364136223846793005u + 1442695040888963407u;
    return time - most + (int64_t)((state >> 33) % (uint64_t)(2 * most + 1));
}

static void sleep_until(int64_t time)
{
    for (int64_t left; (left = time - now_us()) > 0;)
        usleep((useconds_t)(left < 100000 ? left : 100000));
}

static int64_t nanoseconds(clockid_t clock)
{
    struct timespec time;
    if (clock_gettime(clock, &time))
        fail("clock_gettime");
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int by_size(const void *one, const void *other)
{
    return *(const int *)one - *(const int *)other;
}

static void *shared(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("mmap");
    return memory;
}

struct load {
    const char *address;
    int port, is_memory, gpus, each, variation, together;
    int64_t pause, begin, end;
};

/* The clients from `first` on, up to `behind`. */
static void run(const struct load *load, int first, int behind)
{
    int poll = epoll_create1(0), one = 1, number = load->gpus * load->each;
    prctl(PR_SET_TIMERSLACK, 1);
    for (int i = first; i < behind; i++) {
        struct client *client = &clients[i];
        struct sockaddr_in address = {.sin_family = AF_INET};
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        address.sin_port = htons((uint16_t)(load->each > 1 && !load->is_memory ? load->port + i : load->port));
        inet_pton(AF_INET, load->address, &address.sin_addr);
        client->gpu = i / load->each;
        snprintf(client->name, sizeof client->name, "ns/t%d", load->is_memory ? 0 : i);
        client->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(client->fd, (struct sockaddr *)&address, sizeof address))
            fail("connect");
        setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        epoll_ctl(poll, EPOLL_CTL_ADD, client->fd, &event);
        client->due = load->begin;
        if (load->is_memory)
            client->due += load->pause * i / number;
        else if (!load->together)
            client->due += load->pause * client->gpu / load->gpus;
    }
    while (now_us() < load->end) {
        int64_t next = load->end;
        for (int i = first; i < behind; i++) {
            if (clients[i].due && clients[i].due <= now_us()) {
                clients[i].due = 0;
                if (load->is_memory)
                    send_memory(&clients[i]);
                else
                    send_quota(&clients[i]);
            }
            if (clients[i].due && clients[i].due < next)
                next = clients[i].due;
        }
        struct epoll_event events[64];
        int64_t wait = next - now_us();
        struct timespec timeout = {wait / 1000000, wait % 1000000 * 1000};
        int ready = wait > 0 ? epoll_pwait2(poll, events, 64, &timeout, NULL) : 0;
        for (int i = 0; i < ready; i++) {
            struct client *client = &clients[events[i].data.u32];
            char answer[GOT];
            ssize_t got = recv(client->fd, answer, GOT - client->got, 0);
            if (got <= 0)
                fail("recv");
            client->got += (size_t)got;
            if (client->got < GOT)
                continue;
            client->got = 0;
            int64_t now = now_us();
            if (load->is_memory) {
                note(now - client->sent_at);
                client->due = load->pause ? client->sent_at + load->pause : now;
            } else {
                if (returned_at[client->gpu])
                    note(now - returned_at[client->gpu]);
                returned_at[client->gpu] = 0;
                client->has_token = 1;
                client->due = now + varied(load->pause, load->variation);
            }
        }
    }
}

int main(int argc, char **argv)
{
    int is_memory = argc == 8 && !strcmp(argv[1], "memory");
    if (!is_memory && !(argc == 11 && !strcmp(argv[1], "tokens")))
        return 2;
    struct load load = {.address = argv[3], .port = atoi(argv[4]), .is_memory = is_memory};
    load.gpus = is_memory ? 1 : atoi(argv[5]);
    load.each = atoi(argv[is_memory ? 5 : 6]);
    load.pause = (int64_t)(atof(argv[is_memory ? 6 : 7]) * 1000);
    load.variation = is_memory ? 0 : atoi(argv[8]);
    load.together = is_memory ? 0 : atoi(argv[9]);
    clockid_t server;
    if (load.gpus * load.each > MOST || clock_getcpuclockid(atoi(argv[2]), &server))
        return 2;
    times = shared(MOST_TIMES * sizeof *times);
    count = shared(sizeof *count);
    load.begin = now_us() + 100000; /* all have connected */
    load.end = load.begin + (int64_t)(atof(argv[argc - 1]) * 1e6);
    for (int gpu = 0; gpu < load.gpus; gpu++) {
        if (fork() == 0) {
            run(&load, load.each * gpu, load.each * (gpu + 1));
            return 0;
        }
    }
    sleep_until(load.begin + 100000); /* all have asked */
    int first = *(volatile int *)count;
    int64_t cpu = -nanoseconds(server);
    sleep_until(load.end - 10000);
    cpu += nanoseconds(server);
    int number = *(volatile int *)count - first;
    for (int gpu = 0, status; gpu < load.gpus; gpu++) {
        wait(&status);
        if (status)
            return 1;
    }
    int noted = *count < MOST_TIMES ? *count : MOST_TIMES;
    if (number < 1)
        return 1;
    qsort(times, (size_t)noted, sizeof *times, by_size);
    printf("%d %d %lld\n", times[noted / 2], times[noted * 99 / 100], (long long)(cpu / number));
    return 0;
}
