/* SPDX-License-Identifier: Apache-2.0
 *
 * Unloading of leased models: drain, force and quarantine, and who is notified.
 */
#include "tests/integration/residency_fixture.h"

/* ---- force ---- */

/* "a", which is leased by its own client. */
static streamer_client *holder;
static struct model *a;
static streamer_lease *lease;

static void lease_model(void)
{
        holder = client_open(&test_daemon);
        a = load("a");
        lease = client_attach(holder, "a");
}

static void end_lease(void)
{
        streamer_detach(lease);
        ck_assert(eventually(client_is_unloaded, "a", 20000));
        streamer_close(holder);
}

FIXTURE(.all = {begin, fixture_end}, .each = {connect_client, end_test});

TEST(force_notifies_the_client_and_its_memory_stays_readable)
{
        lease_model();
        ck_assert_int_eq(streamer_lease_check(lease), 0);
        uint64_t used = client_used(client);
        client_ok(client, streamer_unload(client, "a", STREAMER_UNLOAD_FORCE), "unload");
        struct pollfd fd = {.fd = streamer_fd(holder), .events = POLLIN};
        ck_assert_int_eq(poll(&fd, 1, 10000), 1);
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_EREVOKED);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(holder), "unloaded by force"));
        ck_assert(!is_resident("a"));
        ck_assert_uint_ge(client_device_number(client, "quarantined"), SIZE);
        ck_assert_uint_eq(client_used(client), used);
        struct model *b = load("b");
        load("c");
        lease_equals(lease, a);
        client_equals(client, "b", b);
        ck_assert_uint_gt(client_device_number(client, "quarantined"), 0);
        end_lease();
        ck_assert_uint_eq(client_device_number(client, "quarantined"), 0);
}

TEST(ps_lists_holders_of_revoked_models)
{
        lease_model();
        client_ok(client, streamer_unload(client, "a", STREAMER_UNLOAD_FORCE), "unload");
        json_t *ps = client_call(client, "ps", NULL);
        json_t *row = json_array_get(json_object_get(ps, "leases"), 0);
        ck_assert(json_is_true(json_object_get(row, "quarantined")));
        ck_assert_str_eq(json_string_value(json_object_get(row, "device")), fixture_device());
        ck_assert_int_eq((int)json_integer_value(json_object_get(row, "pid")), getpid());
        ck_assert(json_string_length(json_object_get(row, "client")) > 0);
        json_decref(ps);
        end_lease();
}

/* On all devices, or on the one that has a name of its own. */
TEST(force_revokes_a_draining_model, .to = 2)
{
        const char *device = daemon_on_gpu() ? "cuda:0" : "cpu";
        char *args = _i == 0 ? "{\"model\":\"a\",\"force\":true}"
                             : format_text("{\"model\":\"a\",\"force\":true,\"device\":\"%s\"}", device);
        lease_model();
        client_ok(client, streamer_unload(client, "a", STREAMER_UNLOAD_DRAIN), "unload");
        ck_assert_int_eq(client_call_code(client, "unload", args), 0);
        ck_assert(eventually(lease_is_revoked, lease, 10000));
        ck_assert_int_eq(streamer_unload(client, "a", STREAMER_UNLOAD_FORCE), STREAMER_ENOENT);
        lease_equals(lease, a);
        end_lease();
}

TEST(force_revokes_replaced_generations_too)
{
        const char *path;
        lease_model();
        model_of("b", &path);
        client_load(client, path, "a");
        client_ok(client, streamer_unload(client, "a", STREAMER_UNLOAD_FORCE), "unload");
        ck_assert(eventually(lease_is_revoked, lease, 10000));
        end_lease();
}

TEST(a_model_is_revoked_after_its_drain_timeout)
{
        lease_model();
        ck_assert_int_eq(client_call_code(client, "unload", "{\"model\":\"a\",\"drain\":true,\"drain_timeout_ms\":1}"),
                         0);
        ck_assert(eventually(lease_is_revoked, lease, 10000));
        ck_assert_uint_ge(client_device_number(client, "quarantined"), SIZE);
        lease_equals(lease, a);
        end_lease();
}

static void load_draining(const char *path, const char *name)
{
        client_ok(client,
                  client_load_with(client, (streamer_load_opts){.source = path, .name = name, .drain_timeout_ms = 1}),
                  "load");
}

TEST(a_replaced_generation_is_revoked_after_its_drain_timeout)
{
        const char *path;
        streamer_lease *again;
        lease_model();
        struct model *new = model_of("b", &path);
        load_draining(path, "a");
        client_equals(client, "a", new);
        ck_assert(eventually(lease_is_revoked, lease, 10000));
        lease_equals(lease, a);
        streamer_attach_opts wanted = {.struct_size = sizeof(wanted), .generation = streamer_generation(lease)};
        ck_assert_int_eq(streamer_attach(client, "a", &wanted, &again), STREAMER_ENOENT);
        wanted = (streamer_attach_opts){.struct_size = sizeof(wanted), .digest = streamer_digest(lease)};
        ck_assert_int_eq(streamer_attach(client, "a", &wanted, &again), STREAMER_EDIGEST);
        streamer_detach(lease);
        streamer_close(holder);
}

TEST(a_replaced_model_is_revoked_after_its_drain_timeout)
{
        lease_model();
        load("b");
        load_draining(fixture_path("b.safetensors"), "a");
        ck_assert(eventually(lease_is_revoked, lease, 10000));
        streamer_detach(lease);
        streamer_close(holder);
}

/* It was replaced under one name and served under another, from which it is unloaded without a drain timeout. */
TEST(a_drain_timeout_ends_with_its_name)
{
        const char *path;
        lease_model();
        client_load(client, fixture_path("a.safetensors"), "d");
        model_of("b", &path);
        load_draining(path, "a");
        client_ok(client, streamer_unload(client, "d", STREAMER_UNLOAD_DRAIN), "unload");
        load("c"); /* younger generations are checked later: when this one is revoked, the other one would have been */
        streamer_lease *later = client_attach(holder, "c");
        ck_assert_int_eq(client_call_code(client, "unload", "{\"model\":\"c\",\"drain\":true,\"drain_timeout_ms\":1}"),
                         0);
        ck_assert(eventually(lease_is_revoked, later, 10000));
        ck_assert_int_eq(streamer_lease_check(lease), 0);
        streamer_detach(later);
        streamer_detach(lease);
        streamer_close(holder);
}

TEST(without_force_a_leased_model_is_not_unloaded)
{
        lease_model();
        ck_assert_int_eq(streamer_unload(client, "a", 0), STREAMER_EBUSY);
        ck_assert(is_resident("a"));
        streamer_detach(lease);
        streamer_close(holder);
}

/* ---- events of one model ---- */

FIXTURE(.all = {begin, fixture_end}, .each = {connect_client, end_test});

TEST(a_client_is_notified_of_the_subscribed_model_only)
{
        char *event;
        streamer_client *listener = client_open(&test_daemon);
        client_ok(listener, streamer_subscribe(listener, "b"), "subscribe");
        load("a");
        load("b");
        client_unload(client, "a");
        client_unload(client, "b");
        do {
                client_ok(listener, streamer_event_next(listener, 10000, &event), "event");
                ck_assert_ptr_nonnull(strstr(event, "\"model\":\"b\""));
        } while (!strstr(event, "\"unloaded\""));
        streamer_close(listener);
}

TEST(a_subscriber_of_one_name_is_notified_when_it_is_removed)
{
        char *event;
        streamer_client *listener = client_open(&test_daemon);
        client_ok(listener, streamer_subscribe(listener, "b"), "subscribe");
        load("a");
        client_load(client, fixture_path("a.safetensors"), "b");
        client_unload(client, "b");
        do {
                client_ok(listener, streamer_event_next(listener, 10000, &event), "event");
                ck_assert_msg(strstr(event, "\"model\":\"b\"") != NULL, "%s", event);
        } while (!strstr(event, "\"unloaded\""));
        ck_assert(is_resident("a"));
        streamer_close(listener);
}
