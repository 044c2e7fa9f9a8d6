/* SPDX-License-Identifier: Apache-2.0
 *
 * What users are told of eviction, forced unloads and what drains. The model checker has their rules, on a device with
 * capacity for few models.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

/* Of a model that takes about 10 MiB, in pages of 2 MiB as well as of 16 or 64 KiB. */
#define SIZE ((UINT64_C(10) << 20) - (32 << 10))

static struct model *models[4];

/* The witness takes part of the first 6 MiB; "a", "b" and "c" the rest, and "d" has to evict one. */
static void begin(void)
{
        fixture_begin((const char *const[]){"--device", "host=36MiB", NULL});
        fixture_pin_witness();
}

static char *path_of(const char *name)
{
        return fixture_path("%s.safetensors", name);
}

static void fill(void)
{
        fixture_connect();
        for (size_t i = 0; i < 4; i++) {
                const char name[] = {"abcd"[i], '\0'};
                models[i] = model_mixed(i, SIZE);
                model_write(models[i], path_of(name));
                if (i < 3)
                        client_load(client, path_of(name), name);
        }
}

static void unload_all(void)
{
        static const char *const names[] = {"a", "b", "c", "d"};
        for (size_t i = 0; i < 4; i++)
                streamer_unload(client, names[i], STREAMER_UNLOAD_DRAIN);
        fixture_disconnect();
}

FIXTURE(.all = {begin, fixture_end}, .each = {fill, unload_all});

TEST(a_refused_load_names_the_holders)
{
        streamer_lease *leases[] = {client_attach(client, "a"), client_attach(client, "c")};
        char *comm = file_read("/proc/self/comm", NULL);
        client_ok(client, streamer_pin(client, "b", 1), "pin");
        client_load_fails(client, path_of("d"), "d", STREAMER_ENOMEM,
                          format_text("(ready, 1 lease by 1 process: pid %d uid %u %.*s)", (int)getpid(),
                                      (unsigned)getuid(), (int)strcspn(comm, "\n"), comm));
        client_load_fails(client, path_of("d"), "d", STREAMER_ENOMEM, "(ready, pinned)");
        streamer_detach(leases[0]);
        streamer_detach(leases[1]);
}

TEST(a_dry_run_lists_the_victims_and_evicts_none)
{
        ctl_says(test_daemon.socket, 0, "evicts   a, generation", "load", path_of("d"), "--dry-run", NULL);
        ctl_says(test_daemon.socket, 7, "d: the load would fail: insufficient memory", "load", path_of("d"),
                 "--dry-run", "--no-evict", NULL);
        ctl_says(test_daemon.socket, 0, "insufficient memory", "load", path_of("d"), "--dry-run", "--no-evict",
                 "--queue", NULL);
        char *args = format_text("{\"source\":\"%s\",\"dry_run\":true}", path_of("a"));
        json_t *resident = client_call(client, "load", args);
        ck_assert(json_is_true(json_at(resident, "resident")) && json_is_true(json_at(resident, "fits")));
        ck_assert_str_eq(client_state(client, "a"), "ready");
}

TEST(a_load_names_the_models_that_were_evicted_for_it)
{
        struct ctl r;
        uint64_t generation = json_number(client_show(client, "a"), "generation"), bytes;
        char *size =
                format_text("%.1f MiB of %s", (double)json_number(client_show(client, "a"), "devices.0.bytes") / MIB,
                            fixture_device());
        ctl(&r, test_daemon.socket, "load", path_of("d"), NULL);
        ck_assert_msg(r.code == 0, "%s", r.err);
        ck_assert_str_eq(r.err, format_text("streamerctl: d: evicted for it: a (%s)\n", size));
        ctl(&r, test_daemon.socket, "load", path_of("d"), NULL);
        ck_assert_str_eq(r.err, "");
        ctl(&r, test_daemon.socket, "load", "--json", path_of("a"), NULL);
        const json_t *loaded = json_loads(r.out, 0, NULL);
        ck_assert_uint_eq(json_array_size(json_at(loaded, "evicted")), 1);
        ck_assert_str_eq(json_text(loaded, "evicted.0.name"), "b");
        ck_assert_str_eq(json_text(loaded, "evicted.0.device"), fixture_device());
        bytes = json_number(loaded, "evicted.0.bytes");
        ck_assert_uint_ge(bytes, SIZE);
        ck_assert_uint_gt(json_number(loaded, "evicted.0.generation"), generation);

        streamer_op *op = NULL;
        streamer_eviction e = STREAMER_EVICTION_INIT;
        const streamer_load_opts opts = {.struct_size = sizeof(opts), .source = path_of("b"), .name = "b"};
        client_ok(client, streamer_load(client, &opts, &op), "load");
        client_ok(client, streamer_op_wait(op, -1, NULL), "wait");
        ck_assert_uint_eq(streamer_op_eviction_count(op), 1);
        client_ok(client, streamer_op_eviction_get(op, 0, &e), "op_eviction_get");
        ck_assert_str_eq(e.model, "c");
        ck_assert_str_eq(e.device, fixture_device());
        ck_assert_uint_eq(e.bytes, bytes);
        client_fails(client, streamer_op_eviction_get(op, 1, &e), STREAMER_ENOENT,
                     "the load evicted fewer than 2 models");
        streamer_op_free(op);
        ck_assert(log_wait_for(test_daemon.log,
                               format_text("c: evicted (generation %" PRIu64 ", %s) for b", e.generation, size)));
}

TEST(force_notifies_the_client_and_ps_lists_it_until_it_detaches)
{
        streamer_client *holder = client_open(&test_daemon);
        streamer_lease *lease = client_attach(holder, "a");
        ck_assert_str_eq(json_text(client_call(client, "unload", "{\"model\":\"a\",\"force\":true}"), "state"),
                         "draining");
        struct pollfd fd = {.fd = streamer_fd(holder), .events = POLLIN};
        ck_assert_int_eq(poll(&fd, 1, 10000), 1);
        client_fails(holder, streamer_lease_check(lease), STREAMER_EREVOKED, "unloaded by force");
        ck_assert_uint_ge(client_device_number(client, "quarantined"), SIZE);
        const json_t *row = json_at(client_call(client, "ps", NULL), "leases.0");
        ck_assert(json_is_true(json_object_get(row, "quarantined")));
        ck_assert_str_eq(json_text(row, "device"), fixture_device());
        ck_assert_int_eq((int)json_number(row, "pid"), getpid());
        char host[64] = "";
        gethostname(host, sizeof(host) - 1);
        ck_assert_str_eq(json_text(row, "client"), format_text("%s@%s (libstreamer-client " STREAMERD_VERSION ")",
                                                               program_invocation_short_name, host));
        ctl_says(test_daemon.socket, 0, format_text("%s@%s", program_invocation_short_name, host), "ps", "-o", "wide",
                 NULL);
        lease_equals(lease, models[0]);
        streamer_detach(lease);
        streamer_close(holder);
}

static bool is_gone(const char *name)
{
        return client_call_code(client, "show", format_text("{\"model\":\"%s\"}", name)) == STREAMER_ENOENT;
}

/* It drains under the name that it had last, whatever other names it had. */
TEST(a_model_that_drains_has_the_source_of_its_last_name)
{
        unlink(path_of("second"));
        must(symlink(path_of("a"), path_of("second")));
        client_load(client, path_of("second"), "second");
        ck_assert_uint_eq(json_number(client_show(client, "second"), "generation"),
                          json_number(client_show(client, "a"), "generation"));
        streamer_lease *lease = client_attach(client, "second");
        client_unload(client, "a");
        client_ok(client, streamer_unload(client, "second", STREAMER_UNLOAD_DRAIN), "unload");
        ck_assert_str_eq(json_text(client_show(client, "second"), "state"), "draining");
        ck_assert_str_eq(json_text(client_show(client, "second"), "source"), path_of("second"));
        streamer_detach(lease);
}

/* Both would expire in one turn of the loop. */
TEST(a_pinned_model_does_not_expire)
{
        client_ok(client, streamer_pin(client, "b", 1), "pin");
        client_ok(client, streamer_keep_alive(client, "b", 1), "keep_alive");
        client_ok(client, streamer_keep_alive(client, "a", 1), "keep_alive");
        AWAIT(is_gone("a"));
        ck_assert_str_eq(client_state(client, "b"), "ready");
        client_ok(client, streamer_pin(client, "b", 0), "unpin");
        AWAIT(is_gone("b"));
}
