/* SPDX-License-Identifier: Apache-2.0
 *
 * Users who repeat what costs the daemon the most, on many connections, beside one who pings, attaches, loads a small
 * model and verifies it: that one is served at once, and the daemon's memory stays within its limits. isolation_test
 * has users whose requests hang, and who do not read. Prints the times. Needs root.
 */
#include "proto/frame.h"
#include "proto/published/table.h"
#include "tests/lib/fixture.h"
#include "tests/lib/run_as.h"
#include "tests/lib/wire.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* Users that no system gives out, in the socket's group. From GREEDY on they may load; the last ones have no role. */
enum { OTHER = 60600, GREEDY = 60601, NOBODY = 60611 };
#define SOCKET_GROUP 0
#define USERS_MAX 5

#define FLOODED 300 /* connections */
#define NAMES 500
#define LINKS 40
#define HEADER ((size_t)16 << 20)
#define LARGE ((size_t)64 << 20)
#define MEASURED_NS (UINT64_C(1000) * 1000000)
#define SAMPLES_MAX 4096
/* Finds that a user waits for another one's queue, which took seconds: a busy machine has a part of one processor. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WAITS_NS_MAX (UINT64_C(40000) * 1000000)
#else
#define WAITS_NS_MAX (UINT64_C(2000) * 1000000)
#endif
/* What loads may take for headers (of one, and the parser's), and half as much. */
#define MARGIN ((uint64_t)768 << 20)

static char *small, *headers, *empty, *names_source;
static struct model *small_model;

static void write_text(const char *path, size_t n)
{
        char *text = malloc(n);
        memset(text, ' ', n);
        text[0] = '{';
        text[1] = '}';
        file_write(path, text, n);
        free(text);
}

/* A file without tensors, whose header has HEADER bytes. */
static void write_header(const char *path)
{
        char *data = malloc(8 + HEADER);
        uint64_t n = HEADER;
        memset(data, ' ', 8 + HEADER);
        memcpy(data, &n, sizeof(n));
        data[8] = '{';
        data[9] = '}';
        file_write(path, data, 8 + HEADER);
        free(data);
}

static void begin(void)
{
        char *text = format_text("devices:\n  - host=256MiB\naccess:\n  roles:\n    - {role: load, users: %d}\n"
                                 "    - {role: load, users: [\"%d\", \"%d\", \"%d\", \"%d\", \"%d\"], bytes: 64MiB}\n",
                                 OTHER, GREEDY, GREEDY + 1, GREEDY + 2, GREEDY + 3, GREEDY + 4);
        char *config = suite_file("floods.yaml", text);
        must(chmod(suite_folder(), 0755));
        fixture_begin((const char *const[]){"--config", config, NULL});
        small_model = model_mixed(2, 1 << 18);
        small = fixture_write(small_model, "small.safetensors");
        names_source = fixture_write(model_mixed(3, 1 << 16), "names.safetensors");
        write_text(fixture_path("large.json"), LARGE);
        write_text(fixture_path("medium.json"), 1 << 20);
        headers = fixture_path("headers");
        must(mkdir(headers, 0755));
        char *one = fixture_path("one.header");
        write_header(one);
        for (int i = 0; i < LINKS; i++)
                must(link(one, format_text("%s/%02d.safetensors", headers, i)));
        struct model *m = model_new(7);
        for (int i = 0; i < 20000; i++)
                model_add(m, format_text("tensor-%d", i), "U8", (uint64_t[]){0}, 1);
        empty = fixture_write(m, "empty.safetensors");
        must(chmod(empty, 0666));
        fixture_account();
}

/* ---- floods ---- */

static struct wire wires[FLOODED];

static void connect_all(size_t n)
{
        for (size_t i = 0; i < n; i++) {
                wire_connect(&wires[i], &test_daemon);
                must(fcntl(wires[i].fd, F_SETFL, O_NONBLOCK));
        }
}

/* Sends as many of these frames as the daemon takes, and reads what it has sent, on all connections. */
static void flood(const char *frames, size_t size, size_t n)
{
        static char ignored[1 << 18];
        static size_t sent[FLOODED]; /* of the frames that a connection is sent just now */
        for (size_t i = 0; i < n; i++) {
                ssize_t more = send(wires[i].fd, frames + sent[i], size - sent[i], MSG_NOSIGNAL);
                sent[i] = more > 0 ? (sent[i] + (size_t)more) % size : sent[i];
                while (recv(wires[i].fd, ignored, sizeof(ignored), 0) == (ssize_t)sizeof(ignored))
                        ;
        }
}

static void flood_with(struct request request, size_t n)
{
        size_t size;
        request.id = 2;
        char *frames = wire_frames(&request, 4, &size);
        flood(frames, size, n);
        free(frames);
}

static void no_prepare(void)
{
}

static void prepare_connections(void)
{
        connect_all(FLOODED);
}

/* A name that no model has, but many resemble. */
static void ask_for_nothing(void)
{
        static char name[64];
        memset(name, 'y', sizeof(name) - 1);
        flood_with((struct request){.verb = VERB_show, .u.show = {.model = name}}, FLOODED);
}

static void ask_for_metrics(void)
{
        flood_with((struct request){.verb = VERB_metrics}, FLOODED);
}

static void ask_for_lists(void)
{
        static bool status;
        flood_with((struct request){.verb = (status = !status) ? VERB_status : VERB_list}, FLOODED);
}

/* The names are the user's own, so that it may change their settings. */
static void prepare_names(void)
{
        streamer_client *c = client_open(&test_daemon);
        for (int i = 0; i < NAMES; i++)
                client_load(c, names_source, format_text("name-%d", i));
        streamer_close(c);
        connect_all(FLOODED);
}

static void change_settings(void)
{
        static uint64_t n;
        flood_with((struct request){.verb = VERB_keep_alive,
                                    .u.keep_alive = {.model = "name-0", .keep_alive_ms = 1000000 + n++}},
                   FLOODED);
}

/* ---- memory ---- */

static void load_headers(void)
{
        char text[1024];
        streamer_client *c = client_open(&test_daemon);
        if (client_load_result(c, headers, "headers", text) != STREAMER_ELIMIT)
                die("%s", text);
        streamer_close(c);
}

/* Manifests count: there is an end of these. */
static void load_empty_models(void)
{
        static int n;
        char text[1024];
        streamer_client *c = client_open(&test_daemon);
        must(utimensat(AT_FDCWD, empty, NULL, 0));
        int r = client_load_result(c, empty, format_text("empty-%d", n++), text);
        if (r != 0 && r != STREAMER_ELIMIT)
                die("%s", text);
        if (n > 200)
                die("200 manifests of more than a megabyte fit 64 MiB");
        streamer_close(c);
        if (r != 0)
                n--;
}

static void claim_names(void)
{
        struct request find = {.verb = VERB_publish_find, .id = 2, .u.publish_find.claim = true};
        for (int i = 0; i < 16; i++) {
                struct wire *w = &wires[i];
                wire_connect(w, &test_daemon);
                for (int k = 0; k < 64; k++) {
                        find.u.publish_find.model = format_text("claim-%d-%d", i, k);
                        wire_request(w, &find);
                        wire_reply_ok(w);
                }
        }
}

static void search_names(void)
{
        flood_with((struct request){.verb = VERB_publish_find, .u.publish_find = {.model = "claim-9-9"}}, 16);
}

/* Half of a frame on each connection, before hello and after it. */
static void send_halves(bool greeted, size_t n, size_t size)
{
        static char data[1 << 20];
        memset(data, 0xc0, sizeof(data));
        frame_put_header((unsigned char *)data, greeted ? FRAME_MAX : 4000);
        for (size_t i = 0; i < n; i++) {
                if (greeted)
                        wire_connect(&wires[i], &test_daemon);
                else
                        wire_open(&wires[i], &test_daemon);
                must(fcntl(wires[i].fd, F_SETFL, O_NONBLOCK));
                send(wires[i].fd, data, size, MSG_NOSIGNAL);
        }
        for (size_t i = 0; i < n; i++)
                wire_close(&wires[i]);
}

static void send_halves_before_hello(void)
{
        send_halves(false, FLOODED, 3000);
}

static void send_halves_after_hello(void)
{
        send_halves(true, 100, (1 << 20) - 100);
}

/* ---- connections ---- */

static void connect_without_a_role(void)
{
        const struct request hello = {.verb = VERB_hello, .id = 1, .u.hello = {.min = 1, .max = 9}};
        for (size_t i = 0; i < FLOODED; i++) {
                wire_open(&wires[i], &test_daemon);
                wire_request(&wires[i], &hello);
        }
        for (size_t i = 0; i < FLOODED; i++)
                wire_close(&wires[i]);
}

/* ---- workers ---- */

static void hold_fetches(void)
{
        struct request fetch = {
                .verb = VERB_fetch, .id = 2, .u.fetch = {.source = fixture_root(), .file = "large.json"}};
        wire_connect(&wires[0], &test_daemon);
        for (int i = 0; i < 4; i++)
                wire_request(&wires[0], &fetch);
}

static void pause_a_second(void)
{
        poll(NULL, 0, 1000);
}

static void prepare_verify(void)
{
        streamer_client *c = client_open(&test_daemon);
        client_load(c, small, "greedy");
        streamer_close(c);
        connect_all(8);
}

static void verify(void)
{
        flood_with((struct request){.verb = VERB_verify, .u.verify = {.model = "greedy"}}, 8);
}

/* A descriptor for writing, of the segment that the next reply brings. */
static int receive_segment(struct wire *w)
{
        unsigned char reply[4096];
        int fds[FRAME_FDS_MAX];
        size_t n_fds = 0;
        bool lost = false;
        if (frame_recv_fds(w->fd, reply, sizeof(reply), fds, &n_fds, FRAME_FDS_MAX, &lost) <= 0 || n_fds == 0)
                die("no segment is sent");
        while (n_fds > 1)
                close(fds[--n_fds]);
        return fds[0];
}

/* A table whose tensors all have the longest text as their name. */
static size_t put_table(unsigned char *to)
{
        static struct published_writer w;
        const struct published_storage storage = {.bytes = 4};
        const struct published_text text = {"x", "d"};
        char *value = malloc(PUBLISHED_MAX_TEXT);
        memset(value, 'n', PUBLISHED_MAX_TEXT);
        value[PUBLISHED_MAX_TEXT - 1] = '\0';
        published_add_storage(&w, &storage);
        for (int i = 0; i < 4000; i++)
                published_add_tensor(&w, &(struct published_tensor){.item = 4, .alias = 1}, &text, NULL, NULL);
        published_add_attribute(&w, "a", value);
        published_finish(&w, to);
        const struct published_header *h = (const void *)to;
        const struct published_attribute *a = (const void *)(to + h->attributes_off);
        for (uint64_t i = 0; i < h->n_tensors; i++) {
                struct published_tensor *t = (void *)(to + h->tensors_off + i * sizeof(*t));
                t->name_off = a->value_off;
                t->name_len = a->value_len;
        }
        size_t size = published_size(&w);
        published_writer_deinit(&w);
        free(value);
        return size;
}

static void publish_tables(void)
{
        struct wire w;
        const size_t size = 4 << 20;
        static int n;
        wire_connect(&w, &test_daemon);
        wire_request(&w, &(struct request){.verb = VERB_publish_find,
                                           .id = 2,
                                           .u.publish_find = {.model = format_text("table-%d-%d", (int)getuid(), n++),
                                                              .claim = true}});
        wire_reply_ok(&w);
        uint64_t claim = wire_number(&w, "claim");
        wire_request(&w, &(struct request){.verb = VERB_publish_begin,
                                           .id = 3,
                                           .u.publish_begin = {.claim = claim, .bytes = size}});
        wire_reply_ok(&w);
        uint64_t lease = wire_number(&w, "lease");
        wire_request(&w, &(struct request){.verb = VERB_publish_segment,
                                           .id = 4,
                                           .u.publish_segment = {.claim = claim, .bytes = size}});
        int fd = receive_segment(&w);
        unsigned char *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                die_errno("mmap");
        size_t used = put_table(map + 4096);
        munmap(map, size);
        close(fd);
        wire_request(&w, &(struct request){.verb = VERB_publish_commit,
                                           .id = 5,
                                           .u.publish_commit = {.claim = claim, .offset = 4096, .bytes = used}});
        wire_reply(&w);
        wire_request(&w, &(struct request){.verb = VERB_detach, .id = 6, .u.detach.lease = lease});
        wire_reply_ok(&w);
        wire_close(&w);
}

/* `users` of them, each in a process of its own, prepare and then repeat. */
static const struct {
        const char *name;
        void (*prepare)(void), (*again)(void);
        unsigned users, first;
} attacks[] = {
        {"nameless", prepare_connections, ask_for_nothing, 1, GREEDY},
        {"metrics", prepare_connections, ask_for_metrics, 1, GREEDY},
        {"lists", prepare_connections, ask_for_lists, 1, GREEDY},
        {"names", prepare_names, change_settings, 1, GREEDY},
        {"headers", no_prepare, load_headers, 1, GREEDY},
        {"manifests", no_prepare, load_empty_models, 1, GREEDY},
        {"claims", claim_names, search_names, 1, GREEDY},
        {"tables", no_prepare, publish_tables, 4, GREEDY},
        {"verify", prepare_verify, verify, 1, GREEDY},
        {"input before hello", no_prepare, send_halves_before_hello, 1, NOBODY},
        {"input after hello", no_prepare, send_halves_after_hello, 1, GREEDY},
        {"without a role", no_prepare, connect_without_a_role, 2, NOBODY},
        {"fetches", hold_fetches, pause_a_second, 4, GREEDY},
};

static int row, from_child[2];

static int be_greedy(void)
{
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        attacks[row].prepare();
        attacks[row].again();
        must(write(from_child[1], "a", 1));
        for (;;)
                attacks[row].again();
}

/* ---- the other user ---- */

enum { PING, ATTACH, LOAD, N_TIMED };
static const char *const timed_names[N_TIMED] = {"ping", "attach", "load"};

static struct times {
        size_t n;
        uint64_t ns[SAMPLES_MAX];
} * times; /* shared: of another process */

static void took(int what, uint64_t *since)
{
        uint64_t now = clock_ns();
        struct times *t = &times[what];
        if (t->n < SAMPLES_MAX)
                t->ns[t->n++] = now - *since;
        *since = now;
}

static int be_served(void)
{
        streamer_client *c = client_open(&test_daemon);
        uint64_t end = clock_ns() + MEASURED_NS;
        do {
                uint64_t at = clock_ns();
                json_decref(client_call(c, "ping", NULL));
                took(PING, &at);
                streamer_detach(client_attach(c, "witness"));
                took(ATTACH, &at);
                client_load(c, small, "other");
                took(LOAD, &at);
                client_unload(c, "other");
        } while (clock_ns() < end);
        client_load(c, small, "other");
        client_equals(c, "other", small_model);
        json_decref(client_call(c, "verify", "{\"model\":\"other\"}"));
        void *data;
        uint64_t size;
        client_ok(c, streamer_fetch(c, fixture_root(), "medium.json", &data, &size), "fetch");
        client_unload(c, "other");
        streamer_close(c);
        return 0;
}

static int compare_ns(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return (x > y) - (x < y);
}

static uint64_t percentile(struct times *t, unsigned of)
{
        qsort(t->ns, t->n, sizeof(t->ns[0]), compare_ns);
        return t->ns[(t->n - 1) * of / 100];
}

/* A load continues after its client has been killed. */
static bool only_the_witness_is_left(void)
{
        fixture_unload_others();
        streamer_client *c = client_open(&test_daemon);
        json_auto_t *status = client_call(c, "status", NULL), *list = client_call(c, "list", NULL);
        streamer_close(c);
        return json_array_size(json_at(status, "loads")) == 0 && json_array_size(json_at(list, "models")) == 1;
}

FIXTURE(.all = {begin, fixture_end}, .each = {NULL, fixture_still_serves}, .unavailable = root_unavailable,
        .timeout = 180);

TEST(another_user_is_served_during_a_flood, EACH(attacks))
{
        pid_t pids[USERS_MAX];
        char c;
        row = _i;
        times = must_share(N_TIMED * sizeof(*times));
        uint64_t before = fixture_memory();
        must(pipe2(from_child, O_CLOEXEC));
        for (unsigned i = 0; i < attacks[row].users; i++) {
                pids[i] = must(fork());
                if (pids[i] == 0)
                        _exit(run_as(attacks[row].first + i, SOCKET_GROUP, be_greedy) == 0 ? 0 : 1);
        }
        for (unsigned i = 0; i < attacks[row].users; i++) {
                struct pollfd p = {.fd = from_child[0], .events = POLLIN};
                ck_assert_msg(must(poll(&p, 1, 60000)) == 1, "%s: no report", attacks[row].name);
                must(read(from_child[0], &c, 1));
        }
        ck_assert_int_eq(run_as(OTHER, SOCKET_GROUP, be_served), 0);
        uint64_t after = fixture_memory();
        for (unsigned i = 0; i < attacks[row].users; i++)
                child_kill(pids[i]);
        printf("%s:", attacks[row].name);
        for (int i = 0; i < N_TIMED; i++)
                printf(" %s %.1f ms, %.1f ms (median, 99th percentile of %zu)", timed_names[i],
                       (double)percentile(&times[i], 50) / 1e6, (double)percentile(&times[i], 99) / 1e6, times[i].n);
        printf("; memory + %lld MiB\n", ((long long)after - (long long)before) / (1 << 20));
        for (int i = 0; i < N_TIMED; i++)
                ck_assert_msg(percentile(&times[i], 99) <= WAITS_NS_MAX, "%s: %s took %llu ms", attacks[row].name,
                              timed_names[i], (unsigned long long)(percentile(&times[i], 99) / 1000000));
        ck_assert_msg(after <= before + MARGIN, "%s: memory grew from %llu to %llu MiB", attacks[row].name,
                      (unsigned long long)before >> 20, (unsigned long long)after >> 20);
        AWAIT(only_the_witness_is_left());
}
