/* SPDX-License-Identifier: Apache-2.0
 *
 * A user who does its worst with every verb (never reads, never closes, repeats, has servers that never answer) beside
 * one who loads, attaches, fetches, verifies and lists: the second one is served while the first one's requests still
 * hang, no later than twice the time that it takes alone and a second, and the daemon's memory stays bounded. Needs
 * root.
 */
#include "tests/lib/endpoint.h"
#include "tests/lib/fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/ports.h"
#include "tests/lib/run_as.h"
#include "tests/lib/wire.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>

/* Users that no system gives out, in the socket's group. */
enum { GREEDY = 60401, OTHER = 60402 };
#define SOCKET_GROUP 0
#define PORTS 16
#define UNANSWERED 60 /* requests of one connection; the daemon reads no more than 64 */
#define LOADS 32
#define SLACK_NS UINT64_C(1000000000) /* finds hangs; it measures no performance */
#define LARGE ((size_t)64 << 20)
#define MARGIN ((uint64_t)96 << 20) /* of memory: a user's share of fetched bytes, and half as much */

static char *source;
static struct model *source_model;
static char *source_data; /* the file's bytes, which a server has, too */
static size_t source_size;
static unsigned ports[PORTS]; /* of servers that accept and never answer */
static struct endpoint slow, prompt;

/* The beginning of a large file, and nothing after it. */
static void answer_slowly(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        const char *range = endpoint_header(request, "Range");
        if (range == NULL || strncmp(range, "bytes=0-", 8) != 0) {
                reply->hang = true;
                return;
        }
        char *data = calloc(1, LARGE);
        reply->headers = format_text("ETag: \"1\"\r\n");
        endpoint_range(request, reply, data, LARGE);
        free(data);
}

static void answer_promptly(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        reply->headers = format_text("ETag: \"1\"\r\n");
        endpoint_range(request, reply, source_data, source_size);
}

static void begin(void)
{
        char *text = format_text("devices:\n  - host=128MiB\n"
                                 "http: {stall: 1h, tries: 1}\nlimits: {fds_in_flight: 512}\naccess:\n  roles:\n"
                                 "    - {role: load, users: %d, bytes: 8MiB}\n"
                                 "    - {role: load, users: %d}\n",
                                 GREEDY, OTHER);
        char *config = suite_file("isolation.yaml", text);
        for (size_t i = 0; i < PORTS; i++)
                listen_on_loopback(1024, &ports[i]);
        slow.answer = answer_slowly;
        endpoint_start(&slow);
        must(chmod(suite_folder(), 0755));
        fixture_begin((const char *const[]){"--config", config, NULL});
        source_model = model_mixed(2, 1 << 20);
        source = fixture_write(source_model, "source.safetensors");
        source_data = file_read(source, &source_size);
        prompt.answer = answer_promptly;
        endpoint_start(&prompt);
        int fd = must(open(fixture_path("large.json"), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
        must(ftruncate(fd, (off_t)LARGE));
        close(fd);
        file_write(fixture_path("small.json"), "{}", 2);
        char *medium = calloc(1, 2 << 20);
        file_write(fixture_path("medium.json"), medium, 2 << 20);
}

/* ---- the greedy user ---- */

static struct wire wires[512];
static size_t n_wires;

static struct wire *connect_one(void)
{
        struct wire *w = &wires[n_wires++];
        wire_connect(w, &test_daemon);
        return w;
}

/* The daemon has read all requests. */
static void await_taken(const struct wire *w)
{
        int unread;
        AWAIT(must(ioctl(w->fd, SIOCOUTQ, &unread)) == 0 && unread == 0);
}

static char *silent(size_t i)
{
        return format_text("http://127.0.0.1:%u/%zu/m.safetensors", ports[i % PORTS], i);
}

static struct request fetch_of(const char *from, const char *file)
{
        return (struct request){.verb = VERB_fetch, .u.fetch = {.source = from, .file = file}};
}

static struct request fetch_silent(size_t i)
{
        return fetch_of(silent(i), "config.json");
}

static struct request fetch_slow(size_t i)
{
        return fetch_of(format_text("%s/%zu/m.safetensors", slow.url, i), "large.json");
}

static struct request fetch_large(size_t i)
{
        return fetch_of(fixture_root(), "large.json");
}

static struct request find_silent(size_t i)
{
        return (struct request){.verb = VERB_publish_find,
                                .u.publish_find = {.model = format_text("found-%zu", i), .base = silent(i)}};
}

static struct request attach_witness(size_t i)
{
        return (struct request){.verb = VERB_attach, .u.attach = {.model = "witness"}};
}

static struct request probe(size_t i)
{
        return (struct request){.verb = VERB_probe};
}

static struct request diff(size_t i)
{
        return (struct request){.verb = VERB_diff,
                                .u.diff = {.model = "witness", .source = i % 2 == 0 ? source : silent(i)}};
}

static struct request work(size_t i)
{
        static const enum verb verbs[] = {VERB_ps, VERB_doctor, VERB_verify};
        struct request request = {.verb = verbs[i % 3]};
        if (request.verb == VERB_verify)
                request.u.verify.model = "witness";
        return request;
}

/* Of another user's model, which it may only see. */
static struct request refused(size_t i)
{
        static const struct request requests[] = {
                {.verb = VERB_show, .u.show = {.model = "witness", .tensors = true}},
                {.verb = VERB_pin, .u.pin = {.model = "witness"}},
                {.verb = VERB_unpin, .u.pin = {.model = "witness"}},
                {.verb = VERB_keep_alive, .u.keep_alive = {.model = "witness", .keep_alive_ms = 1}},
                {.verb = VERB_set_priority, .u.set_priority = {.model = "witness", .priority = 1}},
                {.verb = VERB_unload, .u.unload = {.model = "witness", .force = true}},
                {.verb = VERB_cancel, .u.cancel = {.model = "witness"}},
                {.verb = VERB_detach, .u.detach = {.lease = 1}},
                {.verb = VERB_reclaim,
                 .u.reclaim = {.token = "00000000000000000000000000000000", .generation = 1, .digest = ""}},
                {.verb = VERB_publish_commit, .u.publish_commit = {.claim = 1, .bytes = 1}},
                {.verb = VERB_publish_abort, .u.publish_abort = {.claim = 1}},
                {.verb = VERB_hello},
                {.verb = VERB_reload},
                {.verb = VERB_shutdown},
        };
        return requests[i % (sizeof(requests) / sizeof(requests[0]))];
}

static void send_all(struct wire *w, struct request (*make)(size_t i), size_t n)
{
        for (size_t i = 0; i < n; i++) {
                struct request request = make(i);
                request.id = 2 + i;
                wire_request(w, &request);
        }
}

static void fetches_of_closed_connections(void)
{
        struct wire closed[400];
        for (size_t i = 0; i < sizeof(closed) / sizeof(closed[0]); i++) {
                wire_connect(&closed[i], &test_daemon);
                send_all(&closed[i], fetch_silent, UNANSWERED);
        }
        for (size_t i = 0; i < sizeof(closed) / sizeof(closed[0]); i++)
                wire_close(&closed[i]);
}

static void loads_that_hang(void)
{
        struct wire *w = connect_one(), *waits = connect_one();
        for (size_t i = 0; i < LOADS; i++) {
                char *name = format_text("hung-%zu", i);
                wire_request(w, &(struct request){.verb = VERB_load,
                                                  .id = 2 + i,
                                                  .u.load = {.source = silent(i), .name = name, .watch = true}});
                wire_request(waits, &(struct request){.verb = VERB_wait, .id = 2 + i, .u.wait = {.model = name}});
        }
        await_taken(w);
        await_taken(waits);
}

/* Memory is admitted, as much as its share has, and nothing is committed. */
static void publications_that_never_end(void)
{
        for (uint64_t i = 0; i < 32; i++) {
                struct wire *w = connect_one();
                char *name = format_text("claimed-%d", (int)i);
                wire_request(w, &(struct request){.verb = VERB_publish_find,
                                                  .id = 2,
                                                  .u.publish_find = {.model = name, .claim = true}});
                ck_assert(wire_read(w));
                uint64_t claim = wire_number(w, "claim");
                wire_request(w, &(struct request){.verb = VERB_publish_begin,
                                                  .id = 3,
                                                  .u.publish_begin = {.claim = claim, .bytes = 2 << 20}});
                for (uint64_t k = 0; k < UNANSWERED; k++)
                        wire_request(w, &(struct request){.verb = VERB_publish_segment,
                                                          .id = 4 + k,
                                                          .u.publish_segment = {.claim = claim, .bytes = 1 << 20}});
                await_taken(w);
        }
}

/* Each load that fails is an event for all of them. */
static void subscribers_that_do_not_read(void)
{
        for (int k = 0; k < 200; k++) {
                struct wire *w = connect_one();
                wire_request(w, &(struct request){.verb = VERB_subscribe, .id = 2});
                await_taken(w);
        }
        struct wire *w = connect_one();
        for (uint64_t i = 0; i < 1000; i++) {
                char *name = format_text("fails-%d", (int)(i % 16));
                wire_request(w, &(struct request){.verb = VERB_load,
                                                  .id = 2 + i,
                                                  .u.load = {.source = fixture_path("small.json"), .name = name}});
                wire_read(w);
        }
}

/* As many requests as the daemon reads. */
static void replies_that_are_not_read(void)
{
        static const enum verb verbs[] = {VERB_metrics, VERB_status, VERB_list,   VERB_whoami,
                                          VERB_config,  VERB_ping,   VERB_version};
        for (size_t k = 0; k < 120; k++) {
                struct wire *w = connect_one();
                size_t n;
                const char *frame = wire_frames(&(struct request){.verb = verbs[k % 7], .id = 2}, 1, &n);
                must(fcntl(w->fd, F_SETFL, O_NONBLOCK));
                for (int sent = 0; sent < 4000 && send(w->fd, frame, n, MSG_NOSIGNAL) == (ssize_t)n;)
                        sent++;
        }
}

/* Connections that send so many requests each and read nothing, or a function. At the end none of the first `n_hung`
 * connections may have a reply. */
static const struct {
        struct request (*request)(size_t i);
        size_t connections, requests, n_hung;
        void (*other)(void);
} attacks[] = {
        {fetch_silent, 1, UNANSWERED, 1, NULL},
        {find_silent, 1, UNANSWERED, 1, NULL},
        {fetch_slow, 1, 4, 1, NULL},
        {fetch_large, 2, UNANSWERED, 0, NULL},
        {attach_witness, 20, 120, 0, NULL},
        {probe, 64, 1, 0, NULL},
        {work, 8, UNANSWERED, 0, NULL},
        {diff, 8, UNANSWERED, 0, NULL},
        {refused, 8, UNANSWERED, 0, NULL},
        {.other = publications_that_never_end},
        {.other = fetches_of_closed_connections},
        {.other = loads_that_hang},
        {.other = subscribers_that_do_not_read},
        {.other = replies_that_are_not_read},
};
#define ATTACKS ((int)(sizeof(attacks) / sizeof(attacks[0])))

/* ---- between this process and the greedy one ---- */

static int row, to_child[2], from_child[2]; /* row: of the table; ATTACKS: all of them at once */

/* Attacks, reports, and reports again when asked: how many replies have come that should not. */
static int be_greedy(void)
{
        char c;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int i = 0; i < ATTACKS; i++) {
                if (row != i && row != ATTACKS)
                        continue;
                if (attacks[i].other != NULL)
                        attacks[i].other();
                for (size_t k = 0; k < attacks[i].connections; k++) {
                        struct wire *w = connect_one();
                        send_all(w, attacks[i].request, attacks[i].requests);
                        await_taken(w);
                }
        }
        must(write(from_child[1], "a", 1));
        must(read(to_child[0], &c, 1));
        for (size_t i = 0; row < ATTACKS && i < attacks[row].n_hung; i++) {
                struct pollfd p = {.fd = wires[i].fd, .events = POLLIN};
                if (must(poll(&p, 1, 0)) > 0)
                        c = 'n';
        }
        must(write(from_child[1], &c, 1));
        for (;;)
                pause();
}

static char report(void)
{
        struct pollfd p = {.fd = from_child[0], .events = POLLIN};
        char c = '-';
        ck_assert_msg(must(poll(&p, 1, 60000)) == 1, "the greedy user does not report");
        must(read(from_child[0], &c, 1));
        return c;
}

/* ---- the other user ---- */

static void fetches(streamer_client *c, const char *file, uint64_t bytes)
{
        void *data;
        uint64_t size;
        client_ok(c, streamer_fetch(c, fixture_root(), file, &data, &size), file);
        if (size != bytes)
                die("%s has %llu bytes", file, (unsigned long long)size);
}

enum { LOADING, ATTACHING, FETCHING, DIFFING, N_TIMED };
static const char *const timed_names[N_TIMED] = {"load", "attach", "fetch", "diff"};

static uint64_t *took; /* of the user's process: shared */

static int is_served(void)
{
        streamer_client *c = client_open(&test_daemon);
        uint64_t times[N_TIMED + 1], *at = times;
        client_equals(c, "witness", fixture_witness);
        *at++ = clock_ns();
        client_load(c, source, "other");
        *at++ = clock_ns();
        client_equals(c, "other", source_model);
        *at++ = clock_ns();
        fetches(c, "small.json", 2);
        fetches(c, "medium.json", 2 << 20);
        *at++ = clock_ns();
        json_decref(client_call(c, "diff", format_text("{\"model\":\"other\",\"source\":\"%s\"}", source)));
        *at = clock_ns();
        for (int i = 0; i < N_TIMED; i++)
                took[i] = times[i + 1] - times[i];
        json_decref(client_call(c, "verify", "{\"model\":\"other\"}"));
        json_decref(client_call(c, "ps", NULL));
        json_decref(client_call(c, "doctor", NULL));
        json_decref(client_call(c, "status", NULL));
        json_decref(client_call(c, "probe", NULL));
        client_unload(c, "other");
        client_load_equals(c, format_text("%s/remote.safetensors", prompt.url), "remote", source_model);
        streamer_close(c);
        return 0;
}

/* ---- afterwards ---- */

static bool ends_loads(streamer_client *c)
{
        bool ended = true;
        for (size_t i = 0; i < LOADS; i++)
                ended = client_call_code(c, "cancel", format_text("{\"model\":\"hung-%zu\"}", i)) != 0 && ended;
        return ended;
}

FIXTURE(.all = {begin, fixture_end}, .unavailable = root_unavailable, .timeout = 180);

TEST(another_user_is_served_meanwhile, .to = ATTACKS + 1)
{
        row = _i;
        uint64_t alone[N_TIMED], least[N_TIMED];
        took = must_share(sizeof(alone));
        ck_assert_int_eq(run_as(OTHER, SOCKET_GROUP, is_served), 0);
        memcpy(alone, took, sizeof(alone));
        uint64_t before = fixture_memory();
        unsigned fds = process_fds(test_daemon.pid) + 4;
        must(pipe2(to_child, O_CLOEXEC));
        must(pipe2(from_child, O_CLOEXEC));
        pid_t pid = must(fork());
        if (pid == 0)
                _exit(run_as(GREEDY, SOCKET_GROUP, be_greedy) == 0 ? 0 : 1);
        ck_assert_int_eq(report(), 'a');
        uint64_t most = fixture_memory();
        for (int i = 0; i < 2; i++) {
                ck_assert_int_eq(run_as(OTHER, SOCKET_GROUP, is_served), 0);
                for (int k = 0; k < N_TIMED; k++)
                        least[k] = i == 0 || took[k] < least[k] ? took[k] : least[k];
        }
        uint64_t after = fixture_memory();
        most = after > most ? after : most;
        must(write(to_child[1], "y", 1));
        ck_assert_int_eq(report(), 'y');
        for (int k = 0; k < N_TIMED; k++)
                ck_assert_msg(least[k] <= 2 * alone[k] + SLACK_NS, "%s took %llu ms, alone %llu ms", timed_names[k],
                              (unsigned long long)(least[k] / 1000000), (unsigned long long)(alone[k] / 1000000));
        ck_assert_msg(most <= 2 * before + MARGIN, "memory grew from %llu to %llu MiB",
                      (unsigned long long)before >> 20, (unsigned long long)most >> 20);
        child_kill(pid);
        streamer_client *c = client_open(&test_daemon);
        AWAIT(ends_loads(c));
        streamer_close(c);
        ck_assert(process_wait_fds(test_daemon.pid, fds));
        fixture_still_serves();
}
