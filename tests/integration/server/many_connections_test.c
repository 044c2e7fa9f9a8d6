/* SPDX-License-Identifier: Apache-2.0
 *
 * Many connections that send requests, subscribe or hold leases at once do not delay another client.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

#include <sys/resource.h>

static void begin(void)
{
        static const char config[] = "devices:\n  - host=64MiB\nlimits:\n  connections: 12000\n";
        struct rlimit files;
        char *path = suite_file("crowds.yaml", config);
        must(getrlimit(RLIMIT_NOFILE, &files));
        files.rlim_cur = files.rlim_max;
        must(setrlimit(RLIMIT_NOFILE, &files));
        fixture_begin((const char *const[]){"--config", path, NULL});
}

/* For tests that stop the daemon. */
static void end_ended(void)
{
        int status = daemon_wait(&test_daemon, PATIENCE_MS);
        if (status)
                daemon_die(&test_daemon, "ended with %d", status);
        fixture_witness = model_free(fixture_witness);
}

static size_t n;
static struct wire *many;
static unsigned fds_before;

/* `make soak` sets CONNECTIONS=10000. */
static void open_many(void)
{
        fds_before = process_fds(test_daemon.pid);
        n = env_number("CONNECTIONS", 600);
        many = must_alloc(n * sizeof(*many));
        for (size_t i = 0; i < n; i++)
                wire_connect(&many[i], &test_daemon);
}

static void connect_all(void)
{
        fixture_connect();
        open_many();
}

/* As many as the descriptors that may be on their way in all allow. */
static bool attaches(size_t i)
{
        return i % 16 == 3;
}

/* All of them ask before the first answer is read. */
static void ask_all(void)
{
        static const char *const verbs[] = {"ping", "list", "status"};
        for (size_t i = 0; i < n; i++)
                if (attaches(i))
                        ck_assert(wire_verb(&many[i], "attach", 2, "model", "witness"));
                else
                        ck_assert(wire_verb(&many[i], verbs[i % 3], 2, NULL, NULL));
}

static void detach(struct wire *w)
{
        struct request request = {.verb = VERB_detach, .id = 3, .u.detach.lease = wire_number(w, "lease")};
        wire_request(w, &request);
        ck_assert(wire_read(w));
}

FIXTURE(.all = {begin, fixture_end}, .each = {connect_all, NULL}); /* leases end with each process */

TEST(connections_in_great_number)
{
        ck_assert_uint_ge(process_fds(test_daemon.pid) + 16, fds_before + n);
        ask_all();
        client_equals(client, "witness", fixture_witness);
        for (size_t i = 0; i < n; i++) {
                wire_read_ok(&many[i]);
                if (attaches(i))
                        detach(&many[i]);
        }
        for (size_t i = 0; i < n; i++)
                wire_close(&many[i]);
        client_wait_leases(client, 0);
        ck_assert(process_wait_fds(test_daemon.pid, fds_before + 1));
}

/* ---- broadcast events ---- */

static void ask(struct wire *w, const char *verb, const char *model)
{
        ck_assert(wire_verb(w, verb, 2, model != NULL ? "model" : NULL, model));
        wire_read_ok(w);
}

/* The states of "crowd" in their order. A subscriber receives the latest, and may miss some before it. */
static const char *const states[] = {"loading", "ready", "draining", "unloaded"};

static void read_states(struct wire *w)
{
        size_t last = 0;
        while (last < 3) {
                const msgpack_object *event = wire_next(w);
                ck_assert(object_str_eq(event, "event", "model") && object_str_eq(event, "model", "crowd"));
                while (!object_str_eq(event, "state", states[last]))
                        ck_assert_uint_lt(++last, 4);
        }
}

/* The last subscriber; it sends a request in the iteration in which the model changes. */
TEST(a_reply_follows_earlier_events)
{
        struct wire *last = &many[n - 1];
        client_load(client, fixture_write(fixture_witness, "crowd.safetensors"), "crowd");
        for (size_t i = 0; i < n; i++)
                ask(&many[i], "subscribe", "crowd");
        struct request unload = {.verb = VERB_unload, .id = 3, .u.unload = {.model = "crowd", .drain = true}};
        ck_assert(wire_request(last, &unload));
        const msgpack_object *event = wire_next(last);
        ck_assert(object_str_eq(event, "event", "model") && object_str_eq(event, "state", "draining"));
        for (size_t i = 0; i + 1 < n; i += 2)
                wire_close(&many[i]); /* notified or not */
        wire_read_ok(last);
        for (size_t i = 1; i + 1 < n; i += 2)
                read_states(&many[i]);
}

TEST(each_lease_holder_is_notified_of_revocation)
{
        client_load(client, fixture_write(fixture_witness, "taken.safetensors"), "taken");
        for (size_t i = 0; i < n; i++)
                ask(&many[i], "attach", "taken");
        client_ok(client, streamer_unload(client, "taken", STREAMER_UNLOAD_FORCE), "unload");
        for (size_t i = 0; i < n; i++) {
                const msgpack_object *event = wire_next(&many[i]);
                ck_assert(object_str_eq(event, "event", "lease") && object_str_eq(event, "state", "revoked"));
        }
}

/* A model that does not fit beside the witness, so its load waits. */
static char *write_large(void)
{
        uint64_t size = 61 << 20;
        struct model *m = model_new(1);
        model_add(m, "t", "U8", &size, 1);
        return fixture_write(m, "large.safetensors");
}

static uint64_t load_and_subscribe(struct wire *w, const char *path, const char *name)
{
        struct request load = {.verb = VERB_load, .id = 2};
        load.u.load.source = path;
        load.u.load.name = name;
        load.u.load.wait = load.u.load.no_evict = load.u.load.watch = true;
        ck_assert(wire_request(w, &load));
        wire_read_ok(w);
        return wire_number(w, "op");
}

/* Events of the load up to one with this state. */
static void read_op_events(struct wire *w, uint64_t op, const char *state)
{
        const msgpack_object *event;
        do {
                event = wire_next(w);
                ck_assert(object_str_eq(event, "event", "op"));
                ck_assert_uint_eq(wire_number(w, "op"), op);
        } while (!object_str_eq(event, "state", state));
}

TEST(each_watcher_receives_its_loads_last_event)
{
        uint64_t *ops = must_alloc(n * sizeof(*ops));
        char *path = write_large();
        for (size_t i = 0; i < n; i++)
                ops[i] = load_and_subscribe(&many[i], path, "large");
        for (size_t i = 0; i < n; i++)
                read_op_events(&many[i], ops[i], "queued");
        for (size_t i = 0; i < n; i += 2)
                wire_close(&many[i]); /* in the midst of it */
        json_decref(client_call(client, "cancel", "{\"model\":\"large\"}"));
        for (size_t i = 1; i < n; i += 2) {
                read_op_events(&many[i], ops[i], "cancelled");
                ask(&many[i], "ping", NULL); /* no event follows the end */
        }
}

/* Its frames about a cancelled load, without progress: "failed cancelled no ": the model fails, the load ends, and its
 * wait is answered. */
static const char *read_cancel_events(struct wire *w)
{
        static char heard[256];
        uint64_t id = 0;
        for (heard[0] = '\0'; id != 4;) {
                const msgpack_object *map = wire_next(w);
                bool model = object_str_eq(map, "event", "model"), op = object_str_eq(map, "event", "op");
                bool reply = object_u64(map, "id", &id);
                if (reply && id == 4)
                        strcat(heard, "no ");
                else if (model && object_str_eq(map, "state", "failed"))
                        strcat(heard, "failed ");
                else if (op && object_str_eq(map, "state", "cancelled"))
                        strcat(heard, "cancelled ");
                else
                        ck_assert_msg((model || op || reply) && heard[0] == '\0', "after '%s'", heard);
        }
        return heard;
}

TEST(the_last_load_event_follows_the_change_and_precedes_the_reply)
{
        char *path = write_large();
        for (size_t i = 0; i < n; i++) {
                load_and_subscribe(&many[i], path, "given_up");
                if (i % 3 > 0)
                        wire_verb(&many[i], "subscribe", 3, "model", "given_up");
                wire_verb(&many[i], "wait", 4, "model", "given_up");
        }
        json_decref(client_call(client, "cancel", "{\"model\":\"given_up\"}"));
        for (size_t i = 0; i < n; i++)
                ck_assert_str_eq(read_cancel_events(&many[i]), i % 3 > 0 ? "failed cancelled no " : "cancelled no ");
}

/* Requests that wait for a load, each with its timeout. Its deadline counts from when the daemon takes the request,
 * which is between the time before it is sent and the time after a later request is answered. */
#define WAITS 10
#define APART_NS (100 * UINT64_C(1000000))

struct waits {
        struct wire w;
        uint64_t earliest_ns[WAITS + 1], latest_ns[WAITS + 1]; /* deadlines, by id from 1 */
        uint64_t order[WAITS];                                 /* the ids of the requests that were answered */
        size_t answered;
};

/* Reads a reply, and returns its id. */
static uint64_t read_waits_reply(struct waits *waits)
{
        const msgpack_object *reply = wire_next(&waits->w);
        uint64_t id = wire_number(&waits->w, "id");
        if (id > WAITS)
                return id;
        ck_assert(object_str_eq(reply, "code", "timeout"));
        ck_assert_uint_ge(clock_ns(), waits->earliest_ns[id]);
        ck_assert_uint_lt(waits->answered, WAITS);
        waits->order[waits->answered++] = id;
        return id;
}

static void send_wait(struct waits *waits, uint64_t id)
{
        struct request wait = {
                .verb = VERB_wait, .id = id, .u.wait = {.model = "slow", .timeout_ms = APART_NS / 1000000 * id}};

        waits->earliest_ns[id] = clock_ns() + APART_NS * id;
        ck_assert(wire_request(&waits->w, &wait));
        ck_assert(wire_verb(&waits->w, "ping", WAITS + id, NULL, NULL));
        while (read_waits_reply(waits) != WAITS + id)
                ;
        waits->latest_ns[id] = clock_ns() + APART_NS * id;
}

/* The longest timeout is requested first. */
TEST(waiting_requests_are_answered_in_the_order_of_their_deadlines)
{
        struct waits waits = {.answered = 0};
        wire_connect(&waits.w, &test_daemon);
        load_and_subscribe(&many[0], write_large(), "slow");
        for (uint64_t id = WAITS; id > 0; id--)
                send_wait(&waits, id);
        while (waits.answered < WAITS)
                read_waits_reply(&waits);
        for (size_t i = 0; i < WAITS; i++)
                for (size_t k = i + 1; k < WAITS; k++)
                        ck_assert_uint_ge(waits.latest_ns[waits.order[k]], waits.earliest_ns[waits.order[i]]);
        json_decref(client_call(client, "cancel", "{\"model\":\"slow\"}"));
}

FIXTURE(.all = {begin, end_ended}, .each = {open_many, NULL});

/* They send requests during shutdown: a reply precedes the shutdown event or is not sent. */
TEST(shutdown_is_each_clients_last_event)
{
        for (size_t i = 0; i < n; i++)
                ask(&many[i], "subscribe", NULL);
        daemon_terminate(&test_daemon);
        for (size_t i = 0; i < n; i++)
                wire_verb(&many[i], "ping", 3, NULL, NULL);
        for (size_t i = 0; i < n; i++) {
                while (!object_str_eq(wire_next(&many[i]), "event", "shutdown"))
                        ;
                ck_assert(!wire_read(&many[i]));
        }
}
