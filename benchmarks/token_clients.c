/*
 * Load for a server of Gemini's messages: many connections of one process.
 *
 *     token_clients memory  ADDRESS PORT CONNECTIONS PACE_MS SECONDS
 *     token_clients tokens  ADDRESS PORT GPUS TENANTS HOLD_MS SECONDS
 *
 * memory: every connection allocates and frees one byte by turns, at once after the answer, or
 * every PACE_MS. Prints "MESSAGES P50 P99", the times in microseconds.
 *
 * tokens: TENANTS tenants on each of GPUS GPUs, with ports from PORT on. Each asks for the token,
 * keeps it for HOLD_MS, a quarter more or less, and asks again. With equal times the GPUs fall in
 * step within seconds, since the second one of two is served faster, and then queue. Prints
 * "HANDOVERS P50 P99": the time from the message that returns a token to the answer with which the
 * next tenant of the GPU gets it.
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
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 1024, SENT = 80, GOT = 40, MOST_TIMES = 4000000 };

struct client {
    int fd, gpu, allocates;
    size_t got;
    int64_t sent_at, due;
    char name[16];
};

static struct client clients[MOST];
static int64_t returned_at[MOST];
static int times[MOST_TIMES], count;

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
    if (count < MOST_TIMES)
        times[count++] = (int)time;
}

static void send_request(struct client *client, int32_t type, const void *payload, size_t size)
{
    char message[SENT] = {0};
    uint64_t length = strlen(client->name);
    size_t at = 8 + length + 1 + 4;
    memcpy(message, &length, 8);
    memcpy(message + 8, client->name, length);
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
    returned_at[client->gpu] = now_us();
    send_request(client, 0, payload, sizeof payload);
}

/* A time of that length on average, which differs from the last one. */
static int64_t varied(int64_t time)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return time * 3 / 4 + (int64_t)((state >> 33) % (uint64_t)(time / 2 + 1));
}

static int by_size(const void *one, const void *other)
{
    return *(const int *)one - *(const int *)other;
}

int main(int argc, char **argv)
{
    int is_memory = argc == 7 && !strcmp(argv[1], "memory");
    if (!is_memory && !(argc == 8 && !strcmp(argv[1], "tokens")))
        return 2;
    int port = atoi(argv[3]), gpus = is_memory ? 1 : atoi(argv[4]);
    int each = atoi(argv[is_memory ? 4 : 5]), number = gpus * each;
    int64_t pause = (int64_t)(atof(argv[is_memory ? 5 : 6]) * 1000);
    int poll = epoll_create1(0), one = 1;
    if (number > MOST)
        return 2;
    for (int i = 0; i < number; i++) {
        struct client *client = &clients[i];
        struct sockaddr_in address = {.sin_family = AF_INET};
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        address.sin_port = htons((uint16_t)(is_memory ? port : port + i));
        inet_pton(AF_INET, argv[2], &address.sin_addr);
        client->gpu = i / each;
        snprintf(client->name, sizeof client->name, "ns/t%d", is_memory ? 0 : i);
        client->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(client->fd, (struct sockaddr *)&address, sizeof address))
            fail("connect");
        setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        epoll_ctl(poll, EPOLL_CTL_ADD, client->fd, &event);
        client->due = now_us() + (is_memory ? pause * i / number : pause * client->gpu / gpus);
    }
    int64_t end = now_us() + (int64_t)(atof(argv[argc - 1]) * 1e6);
    while (now_us() < end) {
        int64_t next = end;
        for (int i = 0; i < number; i++) {
            if (clients[i].due && clients[i].due <= now_us()) {
                clients[i].due = 0;
                if (is_memory)
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
            if (is_memory) {
                note(now - client->sent_at);
                client->due = pause ? client->sent_at + pause : now;
            } else {
                if (returned_at[client->gpu])
                    note(now - returned_at[client->gpu]);
                returned_at[client->gpu] = 0;
                client->due = now + varied(pause);
            }
        }
    }
    qsort(times, (size_t)count, sizeof *times, by_size);
    printf("%d %d %d\n", count, count ? times[count / 2] : 0, count ? times[count * 99 / 100] : 0);
    return 0;
}
