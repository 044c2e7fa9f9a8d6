/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients that are notified of much and do not read: subscribers, while another client's loads fail as fast as it can
 * request them, and a client that watches one load many times.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/fuse_file.h"
#include "tests/lib/loop_time.h"
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

FIXTURE(.all = {begin, end}, .each = {fixture_connect, fixture_disconnect}, .timeout = 120);

TEST(failing_loads_are_notified_to_the_end)
{
        struct wire *many = open_subscribers();

        fail_loads(LOADS);
        fixture_serves();
        close_subscribers(many);
}

/* One event at most waits for each client that does not read. */
TEST(subscribers_that_do_not_read_take_little_memory)
{
        fail_loads(LOADS / 4); /* all threads and heaps exist */
        struct wire *many = open_subscribers();
        uint64_t before = fixture_memory();

        fail_loads(LOADS);
        ck_assert_uint_lt(fixture_memory(), before + (16 << 20));
        close_subscribers(many);
}

/* Without reading meanwhile, it is notified of the latest state, and that others were lost. */
TEST(a_subscriber_that_reads_late_receives_the_latest_states)
{
        struct wire w;
        bool ready = false, ok = false;

        wire_open(&w, &test_daemon);
        wire_hello(&w);
        ck_assert(wire_verb(&w, "subscribe", 2, NULL, NULL));
        ck_assert(wire_read(&w));
        fail_loads(LOADS);
        client_load(client, fixture_write(fixture_witness, "late.safetensors"), "late");
        ck_assert(wire_verb(&w, "ping", 3, NULL, NULL));
        while (!ok) {
                ck_assert(wire_read(&w));
                const msgpack_object *map = &w.reply.unpacked.data;
                if (object_str_eq(map, "model", "late"))
                        ready = object_str_eq(map, "state", "ready");
                object_bool(map, "ok", &ok);
        }
        ck_assert(ready);
        wire_close(&w);
        client_unload(client, "late");
}

/* ---- one load, watched many times ---- */

#define WATCHED 256 /* docs/protocol.md */

static struct fuse_file file;
static const char *no_file;

static void begin_held(void)
{
        no_file = fuse_file_unavailable();
        if (no_file != NULL) {
                must(mkdir(suite_path("held"), 0755));
        } else {
                char *backing = suite_path("backing.safetensors");
                model_write(model_mixed(5, 1 << 20), backing);
                fuse_file_start(&file, suite_path("held"), "held.safetensors", backing);
        }
        fixture_begin((const char *const[]){"--device", "host=64MiB", "--root", suite_path("held"), NULL});
}

static void end_held(void)
{
        end();
        if (no_file == NULL)
                fuse_file_stop(&file);
}

static void request_watched(struct wire *w, uint64_t id)
{
        struct request load = {.verb = VERB_load, .id = id};

        load.u.load.source = file.path;
        load.u.load.name = "held";
        load.u.load.watch = true;
        ck_assert(wire_request(w, &load));
}

/* Reads to the reply of the request; whether it was accepted. */
static bool read_accepted(struct wire *w, uint64_t id)
{
        uint64_t answered;
        bool ok = false;

        do
                ck_assert(wire_read(w));
        while (!object_u64(&w->reply.unpacked.data, "id", &answered));
        ck_assert_uint_eq(answered, id);
        ck_assert(object_bool(&w->reply.unpacked.data, "ok", &ok));
        ck_assert(ok || object_str_eq(&w->reply.unpacked.data, "code", "limit"));
        return ok;
}

/* Each load that was accepted, once. */
static void read_cancelled(struct wire *w, size_t n)
{
        bool *ended = must_alloc((WATCHED * 8 + 1) * sizeof(*ended));
        uint64_t op;

        for (size_t i = 0; i < n;) {
                ck_assert(wire_read(w));
                const msgpack_object *map = &w->reply.unpacked.data;
                ck_assert(object_str_eq(map, "event", "op") && object_u64(map, "op", &op));
                if (!object_str_eq(map, "state", "cancelled"))
                        continue;
                ck_assert(op <= WATCHED * 8 && !ended[op]);
                ended[op] = true;
                i++;
        }
        free(ended);
}

FIXTURE(.all = {begin_held, end_held}, .each = {fixture_connect, fixture_disconnect});

TEST(a_connection_watches_a_limited_number_of_loads)
{
        struct wire w, other;

        if (no_file != NULL)
                SKIP(no_file);
        fuse_file_hold(&file, 0);
        wire_open(&w, &test_daemon);
        wire_hello(&w);
        for (uint64_t i = 0; i < 2 * WATCHED; i++) {
                request_watched(&w, 2 + i);
                ck_assert_int_eq(read_accepted(&w, 2 + i), i < WATCHED);
        }
        wire_open(&other, &test_daemon); /* others are not affected */
        wire_hello(&other);
        request_watched(&other, 2);
        ck_assert(read_accepted(&other, 2));
        json_decref(client_call(client, "cancel", "{\"model\":\"held\"}"));
        read_cancelled(&w, WATCHED);
        read_cancelled(&other, 1);
        request_watched(&w, 2); /* none is left */
        ck_assert(read_accepted(&w, 2));
        json_decref(client_call(client, "cancel", "{\"model\":\"held\"}"));
        read_cancelled(&w, 1);
        fuse_file_release(&file);
        wire_close(&w);
        wire_close(&other);
}
