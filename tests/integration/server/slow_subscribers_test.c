/* SPDX-License-Identifier: Apache-2.0
 *
 * Subscribers that do not read, while another client's loads fail as fast as it can request them.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

#define SUBSCRIBERS 100
#define SOURCES 16
#define NAME_SIZE 1024 /* the longest */
#define LOADS 4000

static void begin(void)
{
        fixture_begin((const char *const[]){"--device", "host=64MiB", NULL});
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
                const msgpack_object *map = wire_next(w);
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
        memset(name, 'n', NAME_SIZE);
        for (size_t i = 0; i < SOURCES; i++)
                paths[i] = fixture_path("missing-%zu.safetensors", i);
        wire_connect(&w, &test_daemon);
        ck_assert(wire_verb(&w, "subscribe", 1, NULL, NULL));
        ck_assert(wire_read(&w));
        pid_t pid = begin_requests(&w, n);
        read_ends(&w, n);
        ck_assert_int_eq(child_wait(pid), 0);
        wire_close(&w);
}

FIXTURE(.all = {begin, fixture_end}, .each = {fixture_connect, fixture_disconnect}, .timeout = 120);

/* One event at most waits for each client that does not read. */
TEST(subscribers_that_do_not_read_take_little_memory)
{
        static struct wire many[SUBSCRIBERS];
        fail_loads(LOADS / 4); /* all threads and heaps exist */
        for (size_t i = 0; i < SUBSCRIBERS; i++) {
                wire_connect(&many[i], &test_daemon);
                ck_assert(wire_verb(&many[i], "subscribe", 2, NULL, NULL));
                ck_assert(wire_read(&many[i]));
        }
        uint64_t before = fixture_memory();
        fail_loads(LOADS);
        fixture_serves();
        ck_assert_uint_lt(fixture_memory(), before + (16 << 20));
        for (size_t i = 0; i < SUBSCRIBERS; i++)
                wire_close(&many[i]);
}

/* Without reading meanwhile, it is notified of the latest state, and that others were lost. */
TEST(a_subscriber_that_reads_late_receives_the_latest_states)
{
        struct wire w;
        bool ready = false, ok = false;
        wire_connect(&w, &test_daemon);
        ck_assert(wire_verb(&w, "subscribe", 2, NULL, NULL));
        ck_assert(wire_read(&w));
        fail_loads(LOADS);
        client_load(client, fixture_write(fixture_witness, "late.safetensors"), "late");
        ck_assert(wire_verb(&w, "ping", 3, NULL, NULL));
        while (!ok) {
                const msgpack_object *map = wire_next(&w);
                if (object_str_eq(map, "model", "late"))
                        ready = object_str_eq(map, "state", "ready");
                object_bool(map, "ok", &ok);
        }
        ck_assert(ready);
        wire_close(&w);
        client_unload(client, "late");
}
