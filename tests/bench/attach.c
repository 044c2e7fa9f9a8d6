/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of attach: from connect to the first byte of the last tensor, in a new process, which measures itself, so that
 * its start does not count. The floor is a server that sends one memfd in answer to one byte, in the same run: by the
 * library, and by messages of its own, hello and attach in one write.
 */
#include "tests/bench/bench.h"

#include "proto/codec.h"
#include "proto/frame.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#define ATTACHES 301

static int dial(const char *path)
{
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        int fd = must(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        memcpy(a.sun_path, path, strlen(path) + 1);
        must(connect(fd, (struct sockaddr *)&a, sizeof(a)));
        return fd;
}

/* The last byte of what the descriptor has. */
static void touch(int fd, size_t size)
{
        const volatile unsigned char *p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
                die_errno("mmap");
        unsigned char byte = p[size - 1];
        (void)byte;
}

/* ---- the processes that are measured ---- */

static void use_library(const char *socket, const char *model)
{
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = socket, .flags = STREAMER_CONNECT_LAZY};
        streamer_client *client;
        streamer_lease *lease;
        streamer_tensor t = STREAMER_TENSOR_INIT;
        size_t n;
        if (streamer_connect(&opts, &client) || streamer_attach(client, model, NULL, &lease) ||
            streamer_tensor_count(lease, &n) || streamer_tensor_get(lease, n - 1, &t))
                die("attach failed: %s", streamer_last_error(NULL));
        unsigned char byte = *(const volatile unsigned char *)t.data;
        (void)byte;
}

static void add_request(char *to, size_t *used, const struct request *request)
{
        msgpack_sbuffer body;
        msgpack_sbuffer_init(&body);
        if (request_encode(request, &body))
                die("no memory");
        frame_put_header((unsigned char *)to + *used, body.size);
        memcpy(to + *used + FRAME_HEADER, body.data, body.size);
        *used += FRAME_HEADER + body.size;
        msgpack_sbuffer_destroy(&body);
}

/* The table, and the segment. */
static void use_messages(const char *socket, const char *model)
{
        char out[1024], in[16384];
        size_t used = 0, got = 0, n_fds = 0;
        int fds[FRAME_FDS_MAX], fd = dial(socket);
        bool lost = false;
        const struct request hello = {.verb = VERB_hello,
                                      .id = 1,
                                      .u.hello = {.min = PROTOCOL_MIN,
                                                  .max = PROTOCOL_MAX,
                                                  .features = features_number}},
                             attach = {.verb = VERB_attach, .id = 2, .u.attach = {.model = model}};
        add_request(out, &used, &hello);
        add_request(out, &used, &attach);
        if (send(fd, out, used, 0) != (ssize_t)used)
                die_errno("send");
        while (n_fds < 2) {
                ssize_t n = frame_recv_fds(fd, in + got, sizeof(in) - got, fds, &n_fds, FRAME_FDS_MAX, &lost);
                if (n <= 0)
                        die("the daemon has not answered");
                got += (size_t)n;
        }
        for (size_t i = 0; i < 2; i++)
                touch(fds[i], (size_t)lseek(fds[i], 0, SEEK_END));
}

static void use_floor(const char *socket, const char *model)
{
        uint64_t size;
        size_t n_fds = 0;
        int memory, fd = dial(socket);
        if (send(fd, "x", 1, 0) != 1 ||
            frame_recv_fds(fd, &size, sizeof(size), &memory, &n_fds, 1, &(bool){false}) != 8)
                die("the floor's server has not answered");
        touch(memory, size);
}

static const struct {
        const char *name;
        void (*use)(const char *socket, const char *model);
} ways[] = {{"library", use_library}, {"messages", use_messages}, {"floor", use_floor}};
enum { LIBRARY, MESSAGES, FLOOR, WAYS };

int attach_child(const char *way, const char *socket, const char *model)
{
        for (size_t i = 0; i < WAYS; i++)
                if (strcmp(ways[i].name, way) == 0) {
                        uint64_t begin = clock_ns();
                        ways[i].use(socket, model);
                        printf("%llu\n", (unsigned long long)(clock_ns() - begin));
                        fflush(stdout);
                        _exit(0);
                }
        return 1;
}

/* ---- the floor's server ---- */

static pid_t floor_start(const char *path, size_t size)
{
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        int listener = must(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)),
            memory = must(memfd_create("floor", MFD_CLOEXEC));
        must(ftruncate(memory, (off_t)size));
        unsigned char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
        if (p == MAP_FAILED)
                die_errno("mmap");
        memset(p, 1, size);
        memcpy(a.sun_path, path, strlen(path) + 1);
        must(bind(listener, (struct sockaddr *)&a, sizeof(a)));
        must(listen(listener, 128));
        pid_t pid = must(fork());
        while (pid == 0) {
                uint64_t n = size;
                char byte;
                int fd = accept(listener, NULL, NULL);
                if (fd >= 0 && recv(fd, &byte, 1, 0) == 1)
                        frame_send_fds(fd, &n, sizeof(n), &memory, 1);
                close(fd);
        }
        close(listener);
        close(memory);
        munmap(p, size);
        return pid;
}

/* ---- rounds ---- */

static double attach_once(const struct bench *b, size_t way, const char *socket, const char *model)
{
        int ends[2], status;
        char text[64] = "";
        must(pipe2(ends, O_CLOEXEC));
        pid_t pid = must(fork());
        if (pid == 0) {
                must(dup2(ends[1], STDOUT_FILENO));
                execl(b->self, b->self, "--attach", ways[way].name, socket, model, (char *)NULL);
                _exit(127);
        }
        close(ends[1]);
        if (read(ends[0], text, sizeof(text) - 1) <= 0)
                text[0] = '\0';
        close(ends[0]);
        must(waitpid(pid, &status, 0));
        if (status)
                die("attach failed in a child");
        return (double)strtoull(text, NULL, 10) / 1000;
}

static struct model *resident(const struct bench *b, struct bench_daemon *bd, const char *name, size_t n)
{
        struct model *m = model_new(5);
        model_add_many(m, "model.layers.weight", n, GIB / b->shrink / n);
        const char *path = bench_file(b, m, name);
        bench_load_resident(bd, path, name);
        unlink(path);
        return m;
}

void rows_attach(const struct bench *b)
{
        double few[ATTACHES], many[ATTACHES], messages[ATTACHES], bare[ATTACHES];
        struct bench_daemon bd;
        char *path = format_text("%s/floor", b->folder);
        pid_t server = floor_start(path, 4096);
        bench_daemon_start(&bd, b, b->hugetlb ? "hugetlb" : "auto", "");
        struct model *small = resident(b, &bd, "few", 300), *large = resident(b, &bd, "many", 100000);
        bench_await_ready(&bd);
        for (size_t i = 0; i < ATTACHES; i++) {
                bare[i] = attach_once(b, FLOOR, path, "-");
                messages[i] = attach_once(b, MESSAGES, bd.d.socket, "few");
                few[i] = attach_once(b, LIBRARY, bd.d.socket, "few");
                many[i] = attach_once(b, LIBRARY, bd.d.socket, "many");
        }
        double floor = median(bare, ATTACHES);
        report_note("attach, us: floor %.1f, messages %.1f, library %.1f, of 100,000 tensors %.1f", floor,
                    median(messages, ATTACHES), median(few, ATTACHES), median(many, ATTACHES));
        report_row(ROW_attach_vs_floor, median(few, ATTACHES) / floor, 0);
        report_row(ROW_attach_messages_vs_floor, median(messages, ATTACHES) / floor, 0);
        report_row(ROW_growth_attach_tensors, median(many, ATTACHES) / median(few, ATTACHES), 0);
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
        bench_daemon_stop(&bd);
        model_free(small);
        model_free(large);
        free(path);
}
