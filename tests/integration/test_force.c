/* SPDX-License-Identifier: Apache-2.0
 *
 * Models that are unloaded while they are held: drained, taken by force, in quarantine; and who hears of it.
 */
#include "tests/integration/residency_stage.h"

static uint64_t quarantined(void)
{
        json_t *status = client_call(client, "status", NULL);
        json_t *device = json_array_get(json_object_get(status, "devices"), 0);
        uint64_t n = json_number(device, "quarantined");
        json_decref(status);
        return n;
}

/* ---- force ---- */

/* "a", which is held by a client of its own. */
static streamer_client *holder;
static struct model *a;
static streamer_lease *lease;

static void hold(void)
{
        holder = client_open(&stage);
        a = load("a");
        lease = client_attach(holder, "a");
}

static void let_go(void)
{
        streamer_detach(lease);
        ck_assert(eventually(is_gone, "a", 20000));
        streamer_close(holder);
}

static bool is_revoked(void *of)
{
        return streamer_lease_check(of) == STREAMER_EREVOKED;
}

START_TEST(force_tells_the_client_and_leaves_its_memory_as_it_was)
{
        hold();
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
        let_go();
        ck_assert_uint_eq(quarantined(), 0);
}
END_TEST

START_TEST(ps_names_who_holds_what_was_taken)
{
        hold();
        client_ok(client, streamer_unload(client, "a", STREAMER_UNLOAD_FORCE), "unload");
        json_t *ps = client_call(client, "ps", NULL);
        json_t *row = json_array_get(json_object_get(ps, "leases"), 0);
        ck_assert(json_is_true(json_object_get(row, "quarantined")));
        ck_assert_str_eq(json_string_value(json_object_get(row, "device")), stage_device());
        ck_assert_int_eq((int)json_integer_value(json_object_get(row, "pid")), getpid());
        ck_assert(json_string_length(json_object_get(row, "client")) > 0);
        json_decref(ps);
        let_go();
}
END_TEST

START_TEST(what_drains_already_is_taken_by_force)
{
        hold();
        client_ok(client, streamer_unload(client, "a", STREAMER_UNLOAD_DRAIN), "unload");
        client_ok(client, streamer_unload(client, "a", STREAMER_UNLOAD_FORCE), "unload");
        ck_assert(eventually(is_revoked, lease, 10000));
        ck_assert_int_eq(streamer_unload(client, "a", STREAMER_UNLOAD_FORCE), STREAMER_ENOENT);
        lease_equals(lease, a);
        let_go();
}
END_TEST

START_TEST(what_was_replaced_is_taken_by_force_with_what_serves)
{
        const char *path;
        hold();
        model_of("b", &path);
        client_load(client, path, "a");
        client_ok(client, streamer_unload(client, "a", STREAMER_UNLOAD_FORCE), "unload");
        ck_assert(eventually(is_revoked, lease, 10000));
        let_go();
}
END_TEST

START_TEST(what_drains_too_long_is_taken)
{
        hold();
        ck_assert_int_eq(client_call_code(client, "unload", "{\"model\":\"a\",\"drain\":true,\"drain_timeout_ms\":1}"),
                         0);
        ck_assert(eventually(is_revoked, lease, 10000));
        ck_assert_uint_ge(quarantined(), SIZE);
        lease_equals(lease, a);
        let_go();
}
END_TEST

static void load_draining(const char *path, const char *name)
{
        streamer_op *op;
        streamer_load_opts opts = {.struct_size = sizeof(opts), .source = path, .name = name, .drain_timeout_ms = 1};
        client_ok(client, streamer_load(client, &opts, &op), "load");
        client_ok(client, streamer_op_wait(op, -1, NULL), "wait");
        streamer_op_free(op);
}

START_TEST(what_is_replaced_is_taken_when_its_time_is_over)
{
        const char *path;
        streamer_lease *again;
        hold();
        struct model *new = model_of("b", &path);
        load_draining(path, "a");
        client_equals(client, "a", new);
        ck_assert(eventually(is_revoked, lease, 10000));
        lease_equals(lease, a);
        streamer_attach_opts wanted = {.struct_size = sizeof(wanted), .generation = streamer_generation(lease)};
        ck_assert_int_eq(streamer_attach(client, "a", &wanted, &again), STREAMER_ENOENT);
        wanted = (streamer_attach_opts){.struct_size = sizeof(wanted), .digest = streamer_digest(lease)};
        ck_assert_int_eq(streamer_attach(client, "a", &wanted, &again), STREAMER_EDIGEST);
        streamer_detach(lease);
        streamer_close(holder);
}
END_TEST

START_TEST(what_a_resident_model_replaces_is_taken_when_its_time_is_over)
{
        hold();
        load("b");
        load_draining(stage_path("b.safetensors"), "a");
        ck_assert(eventually(is_revoked, lease, 10000));
        streamer_detach(lease);
        streamer_close(holder);
}
END_TEST

/* It was replaced under one name and served under another, from which it is unloaded without a time. */
START_TEST(a_time_to_drain_is_over_with_the_name_it_was_for)
{
        const char *path;
        hold();
        client_load(client, stage_path("a.safetensors"), "d");
        model_of("b", &path);
        load_draining(path, "a");
        client_ok(client, streamer_unload(client, "d", STREAMER_UNLOAD_DRAIN), "unload");
        load("c"); /* what is younger is looked at later: when this one is taken, that one would have been */
        streamer_lease *later = client_attach(holder, "c");
        ck_assert_int_eq(client_call_code(client, "unload", "{\"model\":\"c\",\"drain\":true,\"drain_timeout_ms\":1}"),
                         0);
        ck_assert(eventually(is_revoked, later, 10000));
        ck_assert_int_eq(streamer_lease_check(lease), 0);
        streamer_detach(later);
        streamer_detach(lease);
        streamer_close(holder);
}
END_TEST

START_TEST(without_force_a_leased_model_stays)
{
        hold();
        ck_assert_int_eq(streamer_unload(client, "a", 0), STREAMER_EBUSY);
        ck_assert(stands("a"));
        streamer_detach(lease);
        streamer_close(holder);
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

START_TEST(who_asked_for_one_name_of_two_hears_when_it_goes)
{
        char *event;
        streamer_client *listener = client_open(&stage);
        client_ok(listener, streamer_subscribe(listener, "b"), "subscribe");
        load("a");
        client_load(client, stage_path("a.safetensors"), "b");
        client_unload(client, "b");
        do {
                client_ok(listener, streamer_event_next(listener, 10000, &event), "event");
                ck_assert_msg(strstr(event, "\"model\":\"b\"") != NULL, "%s", event);
        } while (!strstr(event, "\"gone\""));
        ck_assert(stands("a"));
        streamer_close(listener);
}
END_TEST

int main(void)
{
        suite_begin("force");
        TCase *force = suite_group("force", begin, stage_end, 60);
        tcase_add_checked_fixture(force, connect_client, check_stage);
        tcase_add_test(force, force_tells_the_client_and_leaves_its_memory_as_it_was);
        tcase_add_test(force, ps_names_who_holds_what_was_taken);
        tcase_add_test(force, what_drains_already_is_taken_by_force);
        tcase_add_test(force, what_was_replaced_is_taken_by_force_with_what_serves);
        tcase_add_test(force, what_drains_too_long_is_taken);
        tcase_add_test(force, what_is_replaced_is_taken_when_its_time_is_over);
        tcase_add_test(force, what_a_resident_model_replaces_is_taken_when_its_time_is_over);
        tcase_add_test(force, a_time_to_drain_is_over_with_the_name_it_was_for);
        tcase_add_test(force, without_force_a_leased_model_stays);
        TCase *events = suite_group("events of one model", begin, stage_end, 60);
        tcase_add_checked_fixture(events, connect_client, check_stage);
        tcase_add_test(events, a_client_hears_of_the_model_it_asked_for_and_of_no_other);
        tcase_add_test(events, who_asked_for_one_name_of_two_hears_when_it_goes);
        return suite_run();
}
