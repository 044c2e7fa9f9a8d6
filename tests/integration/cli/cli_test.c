/* SPDX-License-Identifier: Apache-2.0
 *
 * The output, the JSON and the exit codes of each verb of streamerctl.
 */
#include "tests/integration/cli_fixture.h"

/* ---- shapes ---- */

/* json_test has the types of all members. */
static void check_model_object(const json_t *o, const char *name, const struct model *m)
{
        const json_t *device = json_array_get(json_object_get(o, "devices"), 0);
        char digest[33];
        model_digest(m, digest);
        ck_assert_str_eq(json_text(o, "name"), name);
        ck_assert_str_eq(json_text(o, "digest"), digest);
        ck_assert_str_eq(json_text(o, "state"), "ready");
        ck_assert_str_eq(json_text(device, "device"), fixture_device());
        ck_assert_uint_gt(json_number(o, "generation"), 0);
        ck_assert_uint_eq(json_number(o, "bytes"), m->bytes);
        ck_assert_uint_eq(json_number(o, "tensors"), m->n);
        ck_assert_uint_ge(json_number(device, "bytes"), m->bytes);
        ck_assert_uint_eq(json_number(o, "leases"), 0);
        ck_assert_uint_gt(json_number(o, "load_ns"), 0);
        ck_assert_uint_eq(json_number(o, "priority"), 100);
}

FIXTURE(.all = {fixture_begin_default, fixture_end});

TEST(list_names_every_model_with_its_figures)
{
        struct model *m = model_mixed(1, 1 << 18);
        RUN(0, "load", fixture_write(m, "one.safetensors"));
        json_t *models = json_object_get(JSON("list", "--json"), "models");

        ck_assert_uint_eq(json_array_size(models), 2);
        check_model_object(json_array_get(models, 0), "one", m);
        check_model_object(json_array_get(models, 1), "witness", fixture_witness);
}

TEST(show_lists_the_tensors_in_byte_order_of_their_names)
{
        json_t *reply = JSON("show", "witness", "--tensors", "-o", "json");
        json_t *list = json_object_get(reply, "tensor_list"), *t;
        const char *last = "";
        check_model_object(json_array_get(json_object_get(reply, "models"), 0), "witness", fixture_witness);
        ck_assert_uint_eq(json_array_size(list), fixture_witness->n);
        for (size_t i = 0; (t = json_array_get(list, i)); i++) {
                const char *name = json_text(t, "name");
                const struct model_tensor *want = &fixture_witness->tensors[model_index(fixture_witness, name)];
                ck_assert_str_gt(name, last);
                ck_assert_str_eq(json_text(t, "dtype"), want->dtype);
                ck_assert_uint_eq(json_array_size(json_object_get(t, "shape")), want->rank);
                ck_assert_uint_eq(json_number(t, "bytes"), want->bytes);
                ck_assert_uint_eq(strlen(json_text(t, "digest")), 32);
                last = name;
        }
        ck_assert(!json_object_get(JSON("--json", "show", "witness"), "tensor_list"));
}

TEST(show_lists_the_times_of_the_phases_of_a_load)
{
        struct ctl r = RUN(0, "show", "witness", "-o", "wide");
        ck_assert_msg(strstr(r.out, "stages      begin ") != NULL && strstr(r.out, ", end ") != NULL, "%s", r.out);
        ck_assert_ptr_null(strstr(RUN(0, "show", "witness").out, "stages"));
}

TEST(ps_lists_each_lease_holder_and_model)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_lease *lease = client_attach(c, "witness");
        json_t *leases = json_object_get(JSON("ps", "--json"), "leases"), *row = json_array_get(leases, 0);
        ck_assert_uint_eq(json_array_size(leases), 1);
        ck_assert_str_eq(json_text(row, "model"), "witness");
        ck_assert_uint_eq(json_number(row, "pid"), (uint64_t)getpid());
        ck_assert_uint_eq(json_number(row, "uid"), getuid());
        ck_assert_str_eq(json_text(row, "comm"), "cli");
        ck_assert_uint_ge(json_number(row, "bytes"), fixture_witness->bytes);
        ck_assert(json_is_false(json_object_get(row, "orphan")));
        streamer_detach(lease);
        client_wait_leases(c, 0);
        ck_assert_uint_eq(json_array_size(json_object_get(JSON("ps", "--json"), "leases")), 0);
}

TEST(cat_writes_only_the_bytes_of_a_tensor)
{
        for (size_t i = 0; i < fixture_witness->n; i++) {
                const struct model_tensor *t = &fixture_witness->tensors[i];
                struct ctl r = RUN(0, "cat", "witness", t->name);
                ck_assert_uint_eq(r.out_size, t->bytes);
                ck_assert(model_check(fixture_witness, i, r.out));
                ck_assert_str_eq(r.err, "");
        }
        RUN(2, "cat", "witness", "step", "-o", "json");
        RUN(3, "cat", "witness", "no such tensor");
}

TEST(verify_rebuilds_the_digest_from_memory)
{
        char digest[33];
        model_digest(fixture_witness, digest);
        ck_assert_str_eq(json_string_value(json_object_get(JSON("verify", "witness", "--json"), "digest")), digest);
        ck_assert_ptr_nonnull(strstr(RUN(0, "verify", "witness").out, digest));
}
