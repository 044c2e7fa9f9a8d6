/* SPDX-License-Identifier: Apache-2.0
 *
 * Models of `preload` and pinned models before their first load begins. The first of the list hangs on a server that
 * does not answer, so that the second does not begin until the test permits it.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/run_as.h"
#include "tests/lib/fixture.h"
#include "tests/lib/ports.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

#define NOBODY 60203

static char root[PATH_SIZE], state_folder[PATH_SIZE], *config, *silent;
static struct model *model;

static void configure(const char *preload)
{
        char *text = format_text("roots: [%s]\ndevices:\n  - host=64MiB\nstate: %s\n"
                                 "access: {roles: [{users: [%d], role: load}]}\n"
                                 "limits: {preload_retry: 20ms, preload_loads: 1, loads: 1000}\npreload: [%s]\n",
                                 root, state_folder, NOBODY, preload);
        file_write(config, text, strlen(text));
}

static void start(void)
{
        daemon_start(&test_daemon, (const char *const[]){"--config", config, NULL});
        client = client_open(&test_daemon);
}

/* "second" is queued behind "first", which hangs. */
static void begin(void)
{
        snprintf(root, sizeof(root), "%s", suite_path("root-%d", (int)getpid()));
        snprintf(state_folder, sizeof(state_folder), "%s", suite_path("state-%d", (int)getpid()));
        mkdir(root, 0755);
        mkdir(state_folder, 0700);
        must(chmod(suite_folder(), 0755));
        config = suite_path("config-%d.yaml", (int)getpid());
        model = model_mixed(5, 1 << 18);
        model_write(model, format_text("%s/second.safetensors", root));
        unsigned port;
        listen_on_loopback(16, &port); /* and sends nothing */
        silent = format_text("http://127.0.0.1:%u/first.safetensors", port);
        configure(format_text("{source: \"%s\", priority: 900}, {source: %s/second.safetensors, pin: true}", silent,
                              root));
        daemon_init(&test_daemon, suite_path("d-%d", (int)getpid()));
        start();
}

#define CTL(code, says, ...) ctl_says(test_daemon.socket, (code), (says), __VA_ARGS__, NULL)

static json_t *entry(const char *name)
{
        return json_find(json_at(client_call(client, "list", NULL), "models"), "name", name);
}

static void await_ready(const char *name)
{
        AWAIT(strcmp(client_state(client, name), "ready") == 0);
}

/* The first is given up: the second's turn. */
static void release_first(void)
{
        CTL(0, "", "cancel", "first");
        await_ready("second");
}

/* ---- preload ---- */

FIXTURE(.each = {begin, fixture_stop});

TEST(a_preload_not_yet_begun_is_listed_as_queued)
{
        json_t *m = entry("second");
        ck_assert_ptr_nonnull(m);
        ck_assert_str_eq(json_text(m, "state"), "queued");
        ck_assert_uint_eq(json_number(m, "generation"), 0);
        ck_assert(json_is_true(json_object_get(m, "pinned")));
        ck_assert_uint_eq(json_array_size(json_object_get(m, "devices")), 0);
        CTL(0, "second.safetensors", "show", "second");
        CTL(0, "queued", "list");
        release_first();
        ck_assert_uint_gt(json_number(entry("second"), "generation"), 0);
}

/* The maximum number of models, none begun: a reply with quadratic work would exceed the test's time. */
TEST(a_preload_list_of_maximum_length_has_each_name_once)
{
        enum { MOST = 1024 };
        char *entries;
        size_t size;
        FILE *f = open_memstream(&entries, &size);
        fprintf(f, "{source: \"%s\", priority: 900}", silent);
        for (unsigned i = 1; i < MOST; i++) /* neither in their order nor against it */
                fprintf(f, ",\n  {source: %s/none, name: n%04u}", root, i * 577 % MOST);
        fclose(f);
        configure(entries);
        CTL(0, "", "reload");
        json_t *reply = client_call(client, "list", NULL), *models = json_object_get(reply, "models");
        ck_assert_uint_eq(json_array_size(models), MOST);
        ck_assert_str_eq(json_text(json_array_get(models, 0), "name"), "first");
        for (size_t i = 1; i < MOST; i++) {
                ck_assert_str_eq(json_text(json_array_get(models, i), "name"), format_text("n%04zu", i));
                ck_assert_str_eq(json_text(json_array_get(models, i), "state"), "queued");
        }
        reply = client_call(client, "list", "{\"limit\":50,\"after\":\"n0500\"}");
        models = json_object_get(reply, "models");
        ck_assert_uint_eq(json_array_size(models), 50);
        ck_assert_str_eq(json_text(json_array_get(models, 0), "name"), "n0501");
        ck_assert_str_eq(json_text(reply, "next"), "n0550");
}

/* ---- status ---- */

static bool status_has(const char *text)
{
        char *reply;
        client_ok(client, streamer_call(client, "status", NULL, &reply), "status");
        return strstr(reply, text) != NULL;
}

/* A timer begins it. */
static void await_first(void)
{
        AWAIT(status_has("\"state\":\"resolving\""));
}

enum { LOADS = 700, NAME = 1000 };

static char *name_of(size_t i)
{
        char *name = format_text("%0*zu", NAME, i);
        ck_assert_uint_eq(strlen(name), NAME);
        return name;
}

/* More than a frame holds: all of them, and each once. */
TEST(a_status_longer_than_a_frame_is_complete)
{
        await_first();
        for (size_t i = 0; i < LOADS; i++)
                json_decref(client_call(client, "load",
                                        format_text("{\"source\":\"%s\",\"name\":\"%s\"}", silent, name_of(i))));
        json_t *reply = client_call(client, "status", NULL), *loads = json_object_get(reply, "loads");
        ck_assert_uint_eq(json_array_size(loads), 1 + LOADS);
        ck_assert_str_eq(json_text(json_array_get(loads, 0), "name"), "first");
        for (size_t i = 0; i < LOADS; i++) {
                char *name = name_of(i);
                ck_assert_str_eq(json_text(json_array_get(loads, 1 + i), "name"), name);
        }
        ck_assert_uint_eq(json_array_size(json_object_get(reply, "preload")), 2);
        ck_assert_uint_eq(json_array_size(json_object_get(reply, "devices")), 1);
        ck_assert_ptr_null(json_object_get(reply, "next"));
        char *last = name_of(LOADS - 1);
        CTL(0, last, "status");
}

static json_t *status_page(const char *args, size_t n_loads, size_t n_preload, bool first)
{
        json_t *page = client_call(client, "status", args);
        ck_assert_uint_eq(json_array_size(json_object_get(page, "loads")), n_loads);
        ck_assert_uint_eq(json_array_size(json_object_get(page, "preload")), n_preload);
        ck_assert_uint_eq(json_array_size(json_object_get(page, "restoring")), 0);
        ck_assert_int_eq(json_object_get(page, "version") != NULL, first);
        return page;
}

/* A model that ends or moves between two pages does not shift the others. */
TEST(a_long_status_is_read_page_by_page)
{
        char *args = format_text("{\"source\":\"%s\",\"name\":\"third\"}", silent);
        await_first();
        json_decref(client_call(client, "load", args));
        json_t *page = status_page("{\"limit\":1}", 1, 0, true);
        CTL(0, "", "cancel", "first");
        args = format_text("{\"limit\":1,\"after\":\"%s\"}", json_text(page, "next"));
        page = status_page(args, 1, 0, false);
        ck_assert_str_eq(json_text(page, "loads.0.name"), "third");
        ck_assert_ptr_nonnull(json_object_get(page, "next"));
        ck_assert_int_eq(client_call_code(client, "status", "{\"after\":\"0:1\"}"), STREAMER_EINVAL);
        ck_assert_int_eq(client_call_code(client, "status", "{\"after\":\"9:0:1\"}"), STREAMER_EINVAL);
        ck_assert_int_eq(client_call_code(client, "status", "{\"after\":\"0:0:1x\"}"), STREAMER_EINVAL);
        page = status_page("{\"after\":\"2:0:0\"}", 0, 0, false);
        ck_assert_ptr_null(json_object_get(page, "next"));
}

TEST(the_wait_verb_waits_for_a_queued_preload)
{
        struct ctl_running waits;
        struct ctl result;
        CTL(5, "still loading", "wait", "second", "--timeout", "0.2");
        ctl_start(&waits, test_daemon.socket, (const char *const[]){"wait", "second", NULL});
        release_first();
        ctl_finish(&waits, &result);
        ck_assert_int_eq(result.code, 0);
        CTL(3, "no such model", "wait", "third");
}

/* More of them than are looked at in one turn of the loop. */
TEST(all_waiting_attaches_are_answered)
{
        enum { CLIENTS = 60, WAITS = 60 };
        struct wire *many = must_alloc(CLIENTS * sizeof(*many));
        for (size_t i = 0; i < CLIENTS; i++) {
                wire_connect(&many[i], &test_daemon);
                for (uint64_t k = 0; k < WAITS; k++)
                        ck_assert(wire_verb(&many[i], "wait", 2 + k, "model", "second"));
        }
        release_first();
        for (size_t i = 0; i < CLIENTS; i++) {
                bool seen[WAITS] = {false};
                for (size_t k = 0; k < WAITS; k++) {
                        wire_read_ok(&many[i]);
                        uint64_t id = wire_number(&many[i], "id");
                        ck_assert(id >= 2 && id < 2 + WAITS);
                        ck_assert(!seen[id - 2]);
                        seen[id - 2] = true;
                }
                wire_close(&many[i]);
        }
}

static uint64_t lease_id(const json_t *leases, size_t i)
{
        return json_number(json_array_get(leases, i), "id");
}

TEST(leases_are_listed_page_by_page)
{
        enum { LEASES = 230 }; /* more than a page */
        release_first();
        for (size_t i = 0; i < LEASES; i++)
                client_attach(client, "second");
        json_t *reply = client_call(client, "ps", NULL), *leases = json_object_get(reply, "leases");
        ck_assert_uint_eq(json_array_size(leases), LEASES);
        for (size_t i = 1; i < LEASES; i++)
                ck_assert_uint_lt(lease_id(leases, i - 1), lease_id(leases, i));
        char *args = format_text("{\"limit\":7,\"after\":%" PRIu64 "}", lease_id(leases, LEASES - 15));
        for (size_t pages = 0; pages < 2; pages++) {
                json_t *page = client_call(client, "ps", args), *rows = json_object_get(page, "leases");
                ck_assert_uint_eq(json_array_size(rows), 7);
                ck_assert_uint_eq(lease_id(rows, 0), lease_id(leases, LEASES - 14 + 7 * pages));
                ck_assert_int_eq(json_object_get(page, "next") != NULL, pages == 0);
                args = format_text("{\"limit\":7,\"after\":%" PRIu64 "}", lease_id(rows, 6));
        }
}

/* By unload or cancel; clients that wait for it are notified. */
TEST(a_queued_preload_can_be_cancelled, .to = 2)
{
        struct ctl_running waits;
        struct ctl result;
        ctl_start(&waits, test_daemon.socket, (const char *const[]){"wait", "second", NULL});
        CTL(0, "", _i == 0 ? "unload" : "cancel", "second");
        ctl_finish(&waits, &result);
        ck_assert_int_eq(result.code, 1);
        ck_assert_ptr_nonnull(strstr(result.err, "cancelled"));
        CTL(0, "", "cancel", "first");
        ck_assert(status_has("cancelled"));
        ck_assert_str_eq(client_state(client, "second"), "failed");
        /* A reload lists the model again. */
        CTL(0, "", "reload");
        CTL(0, "", "cancel", "first");
        await_ready("second");
}

TEST(waiters_are_notified_when_a_preload_is_removed)
{
        struct ctl_running waits;
        struct ctl result;
        ctl_start(&waits, test_daemon.socket, (const char *const[]){"wait", "second", NULL});
        configure(format_text("{source: \"%s\", priority: 900}", silent));
        CTL(0, "", "reload");
        ctl_finish(&waits, &result);
        ck_assert_int_eq(result.code, 3);
}

TEST(pin_and_priority_apply_to_a_pending_load)
{
        CTL(0, "", "unpin", "second");
        CTL(0, "", "set-priority", "second", "700");
        release_first();
        json_t *m = entry("second");
        ck_assert(json_is_false(json_object_get(m, "pinned")));
        ck_assert_uint_eq(json_number(m, "priority"), 700);
}

static int change_it(void)
{
        CTL(8, "second: unload: it is to be loaded for uid 0", "unload", "second");
        CTL(8, "uid 0", "unpin", "second");
        CTL(8, "second: load: another source is to be loaded under this name for uid 0", "load", config, "--name",
            "second");
        return 0;
}

TEST(a_queued_preload_belongs_to_its_owner)
{
        ROOT_ONLY();
        must(chmod(test_daemon.socket, 0666));
        ck_assert_int_eq(run_as(NOBODY, NOBODY, change_it), 0);
}

/* ---- pinned models ---- */

static bool is_retried(uint64_t tries)
{
        const json_t *m = entry("lost");
        return strcmp(json_text(m, "state"), "failed") == 0 && json_number(m, "tries") >= tries &&
               json_number(m, "retry_in_ns") > 0;
}

/* "lost" is loaded and pinned; then its file is removed and the daemon restarted. */
static void begin_lost(void)
{
        begin();
        CTL(0, "", "cancel", "first");
        char *path = format_text("%s/lost.safetensors", root);
        model_write(model, path);
        client_load(client, path, "lost");
        CTL(0, "", "pin", "lost");
        configure("");
        fixture_stop();
        must(unlink(path));
        start();
}

/* Not while an attempt is in progress. */
static bool shows_next_attempt(const char *name)
{
        struct ctl result;
        ctl(&result, test_daemon.socket, "show", name, NULL);
        return result.code == 0 && strstr(result.out, ", next in") != NULL;
}

FIXTURE(.each = {begin_lost, fixture_stop});

TEST(a_pinned_model_that_fails_is_visible_and_survives_restarts)
{
        AWAIT(is_retried(2));
        ck_assert(status_has("{\"name\":\"lost\""));
        AWAIT(shows_next_attempt("lost"));
        CTL(1, "lost.safetensors", "wait", "lost");
        fixture_stop();
        start();
        AWAIT(is_retried(1));
        model_write(model, format_text("%s/lost.safetensors", root));
        await_ready("lost");
        client_equals(client, "lost", model);
        ck_assert_ptr_null(json_at(entry("lost"), "tries"));
}
