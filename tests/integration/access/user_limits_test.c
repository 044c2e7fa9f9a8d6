/* SPDX-License-Identifier: Apache-2.0
 *
 * A user who exhausts connections, leases, loads and requests reaches the limits per user; another user is still
 * served. Needs root.
 */
#include "tests/lib/loop_time.h"
#include "tests/lib/run_as.h"
#include "tests/lib/fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/wire.h"

#include "proto/frame.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Users that no system gives out, in the socket's group. */
enum { GREEDY = 60201, OTHER = 60202 };
#define SOCKET_GROUP 0
#define CONNECTIONS 8
#define LEASES 4
#define TRIES 64

static char *source, *large; /* large: more than the greedy one may load */

static void begin(void)
{
        if (getuid() != 0)
                return;
        char *text = format_text("devices:\n  - host=64MiB\naccess:\n  roles:\n"
                                 "    - {role: load, users: %d, connections: %d, leases: %d, loads: 2, bytes: 4MiB}\n"
                                 "    - {role: load, users: %d}\n",
                                 GREEDY, CONNECTIONS, LEASES, OTHER);

        char *config = suite_file("users.yaml", text);
        must(chmod(suite_folder(), 0755));
        fixture_begin((const char *const[]){"--config", config, NULL});
        source = fixture_write(model_mixed(2, 1 << 20), "source.safetensors");
        large = fixture_write(model_mixed(3, 8 << 20), "large.safetensors");
}

static void end(void)
{
        if (getuid() != 0)
                return;
        loop_time_print_fixture("greedy users");
        fixture_end();
}

/* ---- the greedy client: takes until refused, reports, and holds until killed ---- */

static int result_fd; /* reports its result here */

static _Noreturn void hold(char outcome)
{
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* with its parent */
        must(write(result_fd, &outcome, 1));
        for (;;)
                pause();
}

/* As many as the limit; the others get the reason. */
static size_t take_connections(struct wire wires[TRIES])
{
        struct request hello = {.verb = VERB_hello, .id = 1, .u.hello = {.min = PROTOCOL_MIN, .max = PROTOCOL_MAX}};
        size_t in = 0, refused = 0;

        for (size_t i = 0; i < TRIES; i++) {
                struct wire *w = &wires[in];
                bool ok = false;
                wire_open(w, &test_daemon);
                wire_request(w, &hello);
                if (wire_read(w) && object_bool(&w->reply.unpacked.data, "ok", &ok) && ok)
                        in++;
                else if (w->has_reply && object_str_eq(&w->reply.unpacked.data, "code", "limit"))
                        refused++;
        }
        return in + refused == TRIES ? in : 0;
}

static int take_all_connections(void)
{
        static struct wire wires[TRIES + 1];

        hold(take_connections(wires) == CONNECTIONS ? 'y' : 'n');
}

static int take_all_leases(void)
{
        size_t got = 0, refused = 0;

        for (int i = 0; i < CONNECTIONS; i++) {
                streamer_client *c = client_open(&test_daemon);
                for (int k = 0; k < TRIES; k++) {
                        streamer_lease *lease;
                        int r = streamer_attach(c, "witness", NULL, &lease);
                        got += r == 0;
                        refused += r == STREAMER_ELIMIT;
                }
        }
        hold(got == LEASES && got + refused == CONNECTIONS * TRIES ? 'y' : 'n');
}

static int take_all_memory(void)
{
        streamer_client *c = client_open(&test_daemon);
        char text[1024];

        for (int i = 0; i < TRIES; i++)
                if (client_load_result(c, large, NULL, text) != STREAMER_ELIMIT)
                        hold('n');
        hold('y');
}

/* Sends the same request on all connections until the daemon reads no more, and reads nothing. */
static int never_read(void)
{
        static struct wire wires[TRIES + 1];
        static unsigned char frames[65536];
        static const unsigned char status[] = "\x82\xa4verb\xa6status\xa2id\x02";
        size_t n = take_connections(wires), size = 0;

        while (size + FRAME_HEADER + sizeof(status) - 1 <= sizeof(frames)) {
                frame_put_header(frames + size, sizeof(status) - 1);
                memcpy(frames + size + FRAME_HEADER, status, sizeof(status) - 1);
                size += FRAME_HEADER + sizeof(status) - 1;
        }
        for (size_t i = 0; i < n; i++) {
                must(fcntl(wires[i].fd, F_SETFL, O_NONBLOCK));
                while (send(wires[i].fd, frames, size, MSG_NOSIGNAL) == (ssize_t)size)
                        ;
        }
        hold(n == CONNECTIONS ? 'y' : 'n');
}

/* ---- other users ---- */

static int is_served(void)
{
        streamer_client *c = client_open(&test_daemon);

        client_equals(c, "witness", fixture_witness);
        client_load(c, source, "other");
        client_unload(c, "other");
        return 0;
}

static pid_t begin_greedy(int (*take)(void), int *read_end)
{
        int fds[2];

        must(pipe2(fds, O_CLOEXEC));
        pid_t pid = must(fork());
        if (pid == 0) {
                result_fd = fds[1];
                _exit(run_as(GREEDY, SOCKET_GROUP, take) == 0 ? 0 : 1);
        }
        close(fds[1]);
        *read_end = fds[0];
        return pid;
}

static int (*const ways[])(void) = {take_all_connections, take_all_leases, take_all_memory, never_read};

FIXTURE(.all = {begin, end}, .timeout = 120);

TEST(a_user_at_all_limits_does_not_affect_others, EACH(ways))
{
        ROOT_ONLY();
        unsigned before = process_fds(test_daemon.pid);
        int fd;
        char outcome = '-';
        pid_t pid = begin_greedy(ways[_i], &fd);

        for (struct pollfd p = {.fd = fd, .events = POLLIN}; must(poll(&p, 1, 0)) == 0;)
                ck_assert_int_eq(run_as(OTHER, SOCKET_GROUP, is_served), 0);
        ck_assert_int_eq(read(fd, &outcome, 1), 1);
        ck_assert_int_eq(outcome, 'y');
        ck_assert_int_eq(run_as(OTHER, SOCKET_GROUP, is_served), 0);
        must(kill(pid, SIGKILL));
        must(waitpid(pid, NULL, 0));
        close(fd);
        fixture_still_serves(); /* and all leases have ended */
        ck_assert(process_wait_fds(test_daemon.pid, before + 1));
}
