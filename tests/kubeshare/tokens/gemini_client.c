/*
 * The other end of the protocol: a process with Gemini's hook, without a GPU.
 *
 *     gemini_client [-1] [-b] [-s] [-t milliseconds[,milliseconds]] [-r record] address port name
 *
 * Reads commands from standard input, one a line, and prints the answer to each, one a line:
 *
 *     limit                       -> limit USED LIMIT
 *     allocate BYTES              -> allocate VERDICT
 *     free BYTES                  -> free VERDICT
 *     quota OVERUSE_MS BURST_MS   -> quota MS  (with -1 the first one is the predicted idle window)
 *     flood NUMBER                -> flood NUMBER   (so many "limit", none of which is read)
 *     raw HEX                     -> raw            (bytes as they are; no answer is read)
 *
 * It speaks as Gemini's tag v1.0 (src/hook.cpp): one connection for its life (:245), a memory message
 * is sent five times when no answer has come within the time of -t, 10 s (:252-262); of two
 * times, the first one is that of the first attempt alone. An answer's id is not looked at
 * (comm.cpp:111), an end of the stream counts as an answer (:259), the next send is SIGPIPE (:258).
 * With -1 it speaks as branch v1.1-kubeshare: a connection for each message, which is not
 * closed (:366), and a message for the token with the burst in the place of the overuse, then the
 * predicted idle window (:501, :596). Neither attempts to connect again (five times there), nor asks
 * for a token before its first command: hook_model.py does. With -s every byte is a segment of its
 * own. -r appends what is sent (>) and received (<) to a file. With -b the receive buffer
 * is as small as the kernel has it, and segments are short, by which the peer sizes its buffer: few
 * answers that are not read fill both.
 *
 * Written from the source of the hook; it shares nothing with the daemon.
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
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { SENT = 80, GOT = 40, ATTEMPTS = 5 };

static int each_message_connects, single_bytes, small_buffer, first_ms = 10000, timeout_ms = 10000;
static FILE *record;
static struct sockaddr_in server;
static const char *name;
static int connection = -1;
static int32_t next_id;

static void note(char direction, const unsigned char *bytes, size_t size)
{
    if (!record)
        return;
    fprintf(record, "%c ", direction);
    for (size_t i = 0; i < size; i++)
        fprintf(record, "%02x", bytes[i]);
    fputc('\n', record);
    fflush(record);
}

static void connect_to_server(void)
{
    int one = 1, segment = 536;
    connection = socket(AF_INET, SOCK_STREAM, 0);
    if (small_buffer) {
        setsockopt(connection, SOL_SOCKET, SO_RCVBUF, &one, sizeof one);
        setsockopt(connection, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment);
    }
    if (connection < 0 || connect(connection, (struct sockaddr *)&server, sizeof server)) {
        int error = errno;
        fprintf(stderr, "connect: %s\n", strerror(error));
        exit(error);
    }
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void send_bytes(const unsigned char *bytes, size_t size)
{
    size_t step = single_bytes ? 1 : size;
    note('>', bytes, size);
    for (size_t at = 0; at < size;) {
        ssize_t sent = send(connection, bytes + at, step < size - at ? step : size - at, 0);
        if (sent < 0) {
            perror("send");
            exit(errno);
        }
        at += (size_t)sent;
    }
}

static size_t put(unsigned char *message, size_t at, const void *value, size_t size)
{
    memcpy(message + at, value, size);
    return at + size;
}

static size_t begin(unsigned char *message, int32_t type)
{
    uint64_t length = strlen(name);
    memset(message, 0, SENT);
    size_t at = put(message, 0, &length, 8);
    at = put(message, at, name, length + 1);
    at = put(message, at, &next_id, 4);
    next_id++;
    return put(message, at, &type, 4);
}

static void exchange(const unsigned char *message, unsigned char *answer, int attempts)
{
    if (each_message_connects || connection < 0)
        connect_to_server();
    memset(answer, 0xAA, GOT);
    for (int attempt = 0; attempt < attempts; attempt++) {
        int ms = attempts == 1 ? 0 : attempt == 0 ? first_ms : timeout_ms;
        struct timeval patience = {ms / 1000, ms % 1000 * 1000};
        setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        send_bytes(message, SENT);
        ssize_t got = recv(connection, answer, GOT, 0);
        if (got >= 0) {
            note('<', answer, (size_t)got);
            return;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            break;
    }
    exit(errno ? errno : EXIT_FAILURE);
}

static void ask_limit(unsigned char *message, unsigned char *answer)
{
    uint64_t used, limit;
    begin(message, 1);
    exchange(message, answer, ATTEMPTS);
    memcpy(&used, answer + 4, 8);
    memcpy(&limit, answer + 12, 8);
    printf("limit %llu %llu\n", (unsigned long long)used, (unsigned long long)limit);
}

static void update(unsigned char *message, unsigned char *answer, uint64_t bytes, int32_t allocate)
{
    int32_t verdict;
    size_t at = begin(message, 2);
    at = put(message, at, &bytes, 8);
    put(message, at, &allocate, 4);
    exchange(message, answer, ATTEMPTS);
    memcpy(&verdict, answer + 4, 4);
    printf("%s %d\n", allocate ? "allocate" : "free", verdict);
}

static void ask_quota(unsigned char *message, unsigned char *answer, double first, double burst)
{
    double quota;
    size_t at = begin(message, 0);
    if (each_message_connects) {
        at = put(message, at, &burst, 8);
        put(message, at, &first, 8);
    } else {
        at = put(message, at, &first, 8);
        put(message, at, &burst, 8);
    }
    exchange(message, answer, 1);
    memcpy(&quota, answer + 4, 8);
    printf("quota %.3f\n", quota);
}

static void send_raw(const char *hex)
{
    unsigned char bytes[4096];
    size_t size = 0;
    unsigned int byte;
    for (; sscanf(hex + 2 * size, "%2x", &byte) == 1 && size < sizeof bytes; size++)
        bytes[size] = (unsigned char)byte;
    if (connection < 0)
        connect_to_server();
    send_bytes(bytes, size);
    puts("raw");
}

int main(int argc, char **argv)
{
    char *line = NULL, text[8193];
    size_t room = 0;
    int option;
    unsigned char message[256], answer[GOT];
    while ((option = getopt(argc, argv, "1bst:r:")) != -1) {
        if (option == '1')
            each_message_connects = 1;
        else if (option == 'b')
            small_buffer = 1;
        else if (option == 's')
            single_bytes = 1;
        else if (option == 't')
            first_ms = timeout_ms = atoi(optarg), sscanf(optarg, "%*d,%d", &timeout_ms);
        else if (option == 'r')
            record = fopen(optarg, "a");
        else
            return 2;
    }
    if (argc - optind != 3)
        return 2;
    server.sin_family = AF_INET;
    server.sin_port = htons((uint16_t)atoi(argv[optind + 1]));
    inet_pton(AF_INET, argv[optind], &server.sin_addr);
    name = argv[optind + 2];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (getline(&line, &room, stdin) > 0) {
        unsigned long long bytes;
        double first, burst;
        int number;
        if (!strcmp(line, "limit\n"))
            ask_limit(message, answer);
        else if (sscanf(line, "allocate %llu", &bytes) == 1)
            update(message, answer, bytes, 1);
        else if (sscanf(line, "free %llu", &bytes) == 1)
            update(message, answer, bytes, 0);
        else if (sscanf(line, "quota %lf %lf", &first, &burst) == 2)
            ask_quota(message, answer, first, burst);
        else if (sscanf(line, "raw %8192s", text) == 1)
            send_raw(text);
        else if (sscanf(line, "flood %d", &number) == 1) {
            if (connection < 0)
                connect_to_server();
            for (int i = 0; i < number; i++) {
                begin(message, 1);
                send_bytes(message, SENT);
            }
            printf("flood %d\n", number);
        } else
            return 2;
    }
    free(line);
    return 0;
}
