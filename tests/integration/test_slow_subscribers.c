/* SPDX-License-Identifier: Apache-2.0
 *
 * Subscribers that do not read, while another client's loads fail as fast as it can request them.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/loop_time.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SUBSCRIBERS 100
#define SOURCES 16
#define NAME_SIZE 1024 /* the longest */
#define LOADS 4000

static void begin(void)
{
        fixture_begin((const char *const[]){"--device", "host=64MiB", NULL});
}

static void end(void)
{
        loop_time_print_fixture("slow subscribers");
        fixture_end();
}

static struct wire *open_subscribers(void)
{
        struct wire *many = must_alloc(SUBSCRIBERS * sizeof(*many));

        for (size_t i = 0; i < SUBSCRIBERS; i++) {
                wire_open(&many[i], &test_daemon);
                wire_hello(&many[i]);
                ck_assert(wire_verb(&many[i], "subscribe", 2, NULL, NULL));
                ck_assert(wire_read(&many[i]));
        }
        return many;
}

static void close_subscribers(struct wire *many)
{
        for (size_t i = 0; i < SUBSCRIBERS; i++)
                wire_close(&many[i]);
        free(many);
}

static char name[NAME_SIZE + 1];
static char *paths[SOURCES];

/* A process that sends the requests, so that this one can read the answers meanwhile. */
static pid_t begin_requests(struct wire *w, unsigned n)
{
        pid_t pid = must(fork());
        if (pid > 0)
                return pid;
        for (unsigned i = 0; i < n; i++) {
                struct request load = {.verb = VERB_load, .id = 2 + i};
                load.u.load.source = paths[i % SOURCES];
                load.u.load.name = name;
                load.u.load.watch = true;
                if (!wire_request(w, &load))
                        _exit(1);
        }
        _exit(0);
}

/* Until each request is answered and each load that was accepted has failed. */
static void read_ends(struct wire *w, unsigned n)
{
        unsigned answered = 0, accepted = 0, ended = 0;

        while (answered < n || ended < accepted) {
                bool ok;
                ck_assert_msg(wire_read(w), "the daemon closed the connection");
                const msgpack_object *map = &w->reply.unpacked.data;
                if (object_bool(map, "ok", &ok)) {
                        answered++;
                        accepted += ok;
                        ck_assert(ok || object_str_eq(map, "code", "limit"));
                } else {
                        ended += object_str_eq(map, "event", "op") && object_str_eq(map, "state", "failed");
                }
        }
        ck_assert_uint_gt(accepted, 0);
}

/* Loads of several sources under one name: each failure replaces an earlier one. Their client is notified of the
 * changes, too. */
static void fail_loads(unsigned n)
{
        struct wire w;
        int status;

        memset(name, 'n', NAME_SIZE);
        for (size_t i = 0; i < SOURCES; i++)
                paths[i] = fixture_path("missing-%zu.safetensors", i);
        wire_open(&w, &test_daemon);
        wire_hello(&w);
        ck_assert(wire_verb(&w, "subscribe", 1, NULL, NULL));
        ck_assert(wire_read(&w));
        pid_t pid = begin_requests(&w, n);
        read_ends(&w, n);
        ck_assert_int_eq(must(waitpid(pid, &status, 0)), pid);
        ck_assert_int_eq(status, 0);
        wire_close(&w);
}

START_TEST(failing_loads_are_notified_to_the_end)
{
        struct wire *many = open_subscribers();

        fail_loads(LOADS);
        fixture_still_serves();
        close_subscribers(many);
}
END_TEST

int main(void)
{
        suite_begin("slow subscribers");
        TCase *tests = suite_group("subscribers", begin, end, 120);
        tcase_add_test(tests, failing_loads_are_notified_to_the_end);
        return suite_run();
}
