/* SPDX-License-Identifier: Apache-2.0
 *
 * Several models on a device too small for all: who is evicted, who stays, who waits, and what
 * becomes of those who hold what is taken. Models of 8 MiB on a device that has room for three.
 */
#include "tests/lib/ctl.h"
#include "tests/lib/stage.h"
#include "tests/lib/suite.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SIZE (UINT64_C(8) << 20)

static streamer_client *client;
static uint64_t empty; /* of the device, with the witness alone */

/* The witness takes part of the first 8 MiB. */
static void begin(void)
{
        stage_begin((const char *const[]){"--device", "host=36MiB", NULL});
        streamer_client *c = client_open(&stage);
        client_ok(c, streamer_pin(c, "witness", 1), "pin");
        streamer_close(c);
}

static void connect_client(void)
{
        client = client_open(&stage);
        empty = client_used(client);
}

static void unload_all(void)
{
        static const char *const names[] = {"a", "b", "c", "d", "e"};
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
                streamer_unload(client, names[i], STREAMER_UNLOAD_DRAIN);
}

static void check_stage(void)
{
        unload_all();
        client_wait_used(client, empty);
        streamer_close(client);
        stage_still_serves();
}

/* The file of a model; the same each time. */
static struct model *model_of(const char *name, const char **path)
{
        struct model *m = model_mixed((uint64_t)name[0], SIZE);
        *path = stage_write(m, format_text("%s.safetensors", name));
        return m;
}

static struct model *load(const char *name)
{
        const char *path;
        struct model *m = model_of(name, &path);
        client_load(client, path, name);
        return m;
}

static bool stands(const char *name)
{
        return strcmp(client_state(client, name), "ready") == 0;
}

static bool is_queued(void *name)
{
        bool queued = false;
        size_t i;
        const json_t *l;
        json_t *status = client_call(client, "status", NULL);
        json_array_foreach(json_object_get(status, "loads"), i, l)
        {
                queued = queued || (strcmp(json_string_value(json_object_get(l, "model")), name) == 0 &&
                                    strcmp(json_string_value(json_object_get(l, "state")), "queued") == 0);
        }
        json_decref(status);
        return queued;
}

static bool is_gone(void *name)
{
        return client_state(client, name)[0] == '\0';
}

static uint64_t quarantined(void)
{
        json_t *status = client_call(client, "status", NULL);
        json_t *device = json_array_get(json_object_get(status, "devices"), 0);
        uint64_t n = json_number(device, "quarantined");
        json_decref(status);
        return n;
}

static streamer_op *load_with(const char *name, unsigned flags, uint64_t keep_alive_ms)
{
        const char *path;
        streamer_op *op;
        model_of(name, &path);
        streamer_load_opts opts = {.struct_size = sizeof(opts),
                                   .source = path,
                                   .name = name,
                                   .flags = flags,
                                   .keep_alive_ms = keep_alive_ms};
        client_ok(client, streamer_load(client, &opts, &op), "load");
        return op;
}

/* ---- eviction ---- */

START_TEST(the_least_recently_used_makes_room)
{
        load("a");
        load("b");
        load("c");
        streamer_detach(client_attach(client, "a"));
        struct model *d = load("d");
        ck_assert(stands("a") && stands("c") && stands("d"));
        ck_assert(is_gone("b"));
        client_equals(client, "d", d);
}
END_TEST

START_TEST(what_is_leased_or_pinned_stays_and_the_load_says_who_has_it)
{
        const char *path;
        load("a");
        load("b");
        load("c");
        streamer_lease *lease = client_attach(client, "a");
        client_ok(client, streamer_pin(client, "b", 1), "pin");
        struct model *d = load("d");
        ck_assert(stands("a") && stands("b"));
        ck_assert(is_gone("c"));
        streamer_lease *second = client_attach(client, "d");
        model_of("e", &path);
        client_load_fails(client, path, "e", STREAMER_ENOMEM, "(ready, 1 lease by 1 process)");
        client_load_fails(client, path, "e", STREAMER_ENOMEM, "(ready, pinned)");
        lease_equals(second, d);
        streamer_detach(lease);
        streamer_detach(second);
        streamer_unload(client, "e", 0);
        client_ok(client, streamer_pin(client, "b", 0), "unpin");
}
END_TEST

START_TEST(a_load_that_may_not_evict_fails)
{
        load("a");
        load("b");
        load("c");
        streamer_op *op = load_with("d", STREAMER_LOAD_NO_EVICT, 0);
        ck_assert_int_eq(streamer_op_wait(op, -1, NULL), STREAMER_ENOMEM);
        streamer_op_free(op);
        ck_assert(stands("a") && stands("b") && stands("c"));
        streamer_unload(client, "d", 0);
}
END_TEST

START_TEST(a_dry_run_names_the_victims_and_evicts_nobody)
{
        const char *path;
        struct ctl result;
        load("a");
        load("b");
        load("c");
        model_of("d", &path);
        ctl(&result, stage.socket, "load", path, "--dry-run", NULL);
        ck_assert_int_eq(result.code, 0);
        ck_assert_ptr_nonnull(strstr(result.out, "evicts   a, generation"));
        ctl_free(&result);
        ctl(&result, stage.socket, "load", path, "--dry-run", "--no-evict", NULL);
        ck_assert_ptr_nonnull(strstr(result.out, "it does not fit"));
        ctl_free(&result);
        ck_assert(stands("a") && stands("b") && stands("c"));
}
END_TEST

START_TEST(a_new_generation_does_not_evict_the_one_it_replaces)
{
        const char *path;
        load("a");
        struct model *kept = load("b");
        client_ok(client, streamer_pin(client, "a", 1), "pin");
        load("c");
        client_ok(client, streamer_pin(client, "c", 1), "pin");
        model_of("d", &path);
        client_load_fails(client, path, "b", STREAMER_ENOMEM, "b ");
        client_equals(client, "b", kept);
        streamer_unload(client, "b", 0);
        client_ok(client, streamer_pin(client, "a", 0), "unpin");
        client_ok(client, streamer_pin(client, "c", 0), "unpin");
}
END_TEST

START_TEST(a_pin_goes_on_to_the_next_generation)
{
        const char *path;
        load("a");
        client_ok(client, streamer_pin(client, "a", 1), "pin");
        model_of("b", &path);
        client_load(client, path, "a");
        load("c");
        load("d");
        load("e");
        ck_assert(stands("a"));
        client_ok(client, streamer_pin(client, "a", 0), "unpin");
}
END_TEST

/* ---- waiting ---- */

START_TEST(a_load_that_waits_is_visible_and_gets_what_becomes_free)
{
        load("a");
        load("b");
        load("c");
        streamer_lease *leases[] = {client_attach(client, "a"), client_attach(client, "b"), client_attach(client, "c")};
        streamer_op *op = load_with("d", STREAMER_LOAD_WAIT, 0);
        ck_assert(eventually(is_queued, "d", 5000));
        ck_assert_int_eq(streamer_op_wait(op, 0, NULL), STREAMER_ETIMEOUT);
        streamer_detach(leases[1]);
        client_ok(client, streamer_op_wait(op, -1, NULL), "wait");
        ck_assert(is_gone("b"));
        streamer_op_free(op);
        streamer_detach(leases[0]);
        streamer_detach(leases[2]);
}
END_TEST

START_TEST(a_load_that_waits_can_be_cancelled)
{
        load("a");
        load("b");
        load("c");
        streamer_lease *leases[] = {client_attach(client, "a"), client_attach(client, "b"), client_attach(client, "c")};
        streamer_op *op = load_with("d", STREAMER_LOAD_WAIT, 0);
        ck_assert(eventually(is_queued, "d", 5000));
        ck_assert_int_eq(client_call_code(client, "cancel", "{\"model\":\"d\"}"), 0);
        ck_assert_int_eq(streamer_op_wait(op, -1, NULL), STREAMER_ECANCELED);
        streamer_op_free(op);
        for (size_t i = 0; i < 3; i++)
                streamer_detach(leases[i]);
}
END_TEST

/* ---- time ---- */

START_TEST(a_model_goes_when_nobody_has_used_it_for_its_keep_alive)
{
        streamer_op *op = load_with("a", 0, 300);
        client_ok(client, streamer_op_wait(op, -1, NULL), "wait");
        streamer_op_free(op);
        streamer_lease *lease = client_attach(client, "a");
        op = load_with("b", 0, 1);
        streamer_op_wait(op, -1, NULL);
        streamer_op_free(op);
        ck_assert(eventually(is_gone, "b", 5000));
        ck_assert(stands("a")); /* leased */
        streamer_detach(lease);
        ck_assert(eventually(is_gone, "a", 5000));
}
END_TEST

START_TEST(a_pinned_model_does_not_expire)
{
        streamer_op *op = load_with("a", STREAMER_LOAD_PIN, 1);
        client_ok(client, streamer_op_wait(op, -1, NULL), "wait");
        streamer_op_free(op);
        op = load_with("b", 0, 1);
        streamer_op_wait(op, -1, NULL);
        streamer_op_free(op);
        ck_assert(eventually(is_gone, "b", 5000));
        ck_assert(stands("a"));
        client_ok(client, streamer_pin(client, "a", 0), "unpin");
        ck_assert(eventually(is_gone, "a", 5000));
}
END_TEST

/* ---- force ---- */

static bool is_revoked(void *lease)
{
        return streamer_lease_check(lease) == STREAMER_EREVOKED;
}

START_TEST(force_tells_the_client_and_leaves_its_memory_as_it_was)
{
        streamer_client *holder = client_open(&stage);
        struct model *a = load("a");
        streamer_lease *lease = client_attach(holder, "a");
        ck_assert_int_eq(streamer_lease_check(lease), 0);
        uint64_t used = client_used(client);
        client_ok(client, streamer_unload(client, "a", STREAMER_UNLOAD_FORCE), "unload");
        struct pollfd fd = {.fd = streamer_fd(holder), .events = POLLIN};
        ck_assert_int_eq(poll(&fd, 1, 10000), 1);
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_EREVOKED);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(holder), "unloaded by force"));
        ck_assert(!stands("a"));
        ck_assert_uint_ge(quarantined(), SIZE);
        ck_assert_uint_eq(client_used(client), used);
        struct model *b = load("b");
        load("c");
        lease_equals(lease, a);
        client_equals(client, "b", b);
        ck_assert_uint_gt(quarantined(), 0);
        streamer_detach(lease);
        ck_assert(eventually(is_gone, "a", 5000));
        ck_assert_uint_eq(quarantined(), 0);
        streamer_close(holder);
}
END_TEST

START_TEST(ps_names_who_holds_what_was_taken)
{
        streamer_client *holder = client_open(&stage);
        load("a");
        streamer_lease *lease = client_attach(holder, "a");
        client_ok(client, streamer_unload(client, "a", STREAMER_UNLOAD_FORCE), "unload");
        json_t *ps = client_call(client, "ps", NULL);
        json_t *row = json_array_get(json_object_get(ps, "leases"), 0);
        ck_assert(json_is_true(json_object_get(row, "quarantined")));
        ck_assert_str_eq(json_string_value(json_object_get(row, "device")), stage_device());
        ck_assert_int_eq((int)json_integer_value(json_object_get(row, "pid")), getpid());
        ck_assert(json_string_length(json_object_get(row, "client")) > 0);
        json_decref(ps);
        streamer_detach(lease);
        streamer_close(holder);
}
END_TEST

START_TEST(what_drains_too_long_is_taken)
{
        streamer_client *holder = client_open(&stage);
        struct model *a = load("a");
        streamer_lease *lease = client_attach(holder, "a");
        ck_assert_int_eq(client_call_code(client, "unload", "{\"model\":\"a\",\"drain\":true,\"drain_timeout_ms\":1}"),
                         0);
        ck_assert(eventually(is_revoked, lease, 10000));
        ck_assert_uint_ge(quarantined(), SIZE);
        lease_equals(lease, a);
        streamer_detach(lease);
        ck_assert(eventually(is_gone, "a", 5000));
        streamer_close(holder);
}
END_TEST

START_TEST(what_is_replaced_is_taken_when_its_time_is_over)
{
        const char *path;
        streamer_op *op;
        streamer_lease *again;
        streamer_client *holder = client_open(&stage);
        struct model *old = load("a");
        streamer_lease *lease = client_attach(holder, "a");
        struct model *new = model_of("b", &path);
        streamer_load_opts opts = {.struct_size = sizeof(opts), .source = path, .name = "a", .drain_timeout_ms = 1};
        client_ok(client, streamer_load(client, &opts, &op), "load");
        client_ok(client, streamer_op_wait(op, -1, NULL), "wait");
        streamer_op_free(op);
        client_equals(client, "a", new);
        ck_assert(eventually(is_revoked, lease, 10000));
        lease_equals(lease, old);
        streamer_attach_opts wanted = {.struct_size = sizeof(wanted), .generation = streamer_generation(lease)};
        ck_assert_int_eq(streamer_attach(client, "a", &wanted, &again), STREAMER_ENOENT);
        wanted = (streamer_attach_opts){.struct_size = sizeof(wanted), .digest = streamer_digest(lease)};
        ck_assert_int_eq(streamer_attach(client, "a", &wanted, &again), STREAMER_EDIGEST);
        streamer_detach(lease);
        streamer_close(holder);
}
END_TEST

START_TEST(without_force_a_leased_model_stays)
{
        load("a");
        streamer_lease *lease = client_attach(client, "a");
        ck_assert_int_eq(streamer_unload(client, "a", 0), STREAMER_EBUSY);
        ck_assert(stands("a"));
        streamer_detach(lease);
}
END_TEST

/* ---- events of one model ---- */

START_TEST(a_client_hears_of_the_model_it_asked_for_and_of_no_other)
{
        char *event;
        streamer_client *listener = client_open(&stage);
        client_ok(listener, streamer_subscribe(listener, "b"), "subscribe");
        load("a");
        load("b");
        client_unload(client, "a");
        client_unload(client, "b");
        do {
                client_ok(listener, streamer_event_next(listener, 10000, &event), "event");
                ck_assert_ptr_nonnull(strstr(event, "\"model\":\"b\""));
        } while (!strstr(event, "\"gone\""));
        streamer_close(listener);
}
END_TEST

int main(void)
{
        suite_begin("residency");
        TCase *evicting = suite_group("eviction", begin, stage_end, 60);
        tcase_add_checked_fixture(evicting, connect_client, check_stage);
        tcase_add_test(evicting, the_least_recently_used_makes_room);
        tcase_add_test(evicting, what_is_leased_or_pinned_stays_and_the_load_says_who_has_it);
        tcase_add_test(evicting, a_load_that_may_not_evict_fails);
        tcase_add_test(evicting, a_dry_run_names_the_victims_and_evicts_nobody);
        tcase_add_test(evicting, a_new_generation_does_not_evict_the_one_it_replaces);
        tcase_add_test(evicting, a_pin_goes_on_to_the_next_generation);
        TCase *waiting = suite_group("waiting", begin, stage_end, 60);
        tcase_add_checked_fixture(waiting, connect_client, check_stage);
        tcase_add_test(waiting, a_load_that_waits_is_visible_and_gets_what_becomes_free);
        tcase_add_test(waiting, a_load_that_waits_can_be_cancelled);
        TCase *time = suite_group("time", begin, stage_end, 60);
        tcase_add_checked_fixture(time, connect_client, check_stage);
        tcase_add_test(time, a_model_goes_when_nobody_has_used_it_for_its_keep_alive);
        tcase_add_test(time, a_pinned_model_does_not_expire);
        TCase *force = suite_group("force", begin, stage_end, 60);
        tcase_add_checked_fixture(force, connect_client, check_stage);
        tcase_add_test(force, force_tells_the_client_and_leaves_its_memory_as_it_was);
        tcase_add_test(force, ps_names_who_holds_what_was_taken);
        tcase_add_test(force, what_drains_too_long_is_taken);
        tcase_add_test(force, what_is_replaced_is_taken_when_its_time_is_over);
        tcase_add_test(force, without_force_a_leased_model_stays);
        TCase *events = suite_group("events of one model", begin, stage_end, 60);
        tcase_add_checked_fixture(events, connect_client, check_stage);
        tcase_add_test(events, a_client_hears_of_the_model_it_asked_for_and_of_no_other);
        return suite_run();
}
