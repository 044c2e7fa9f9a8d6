/* SPDX-License-Identifier: Apache-2.0
 *
 * The library with daemons of other versions: one that supports less, one that supports more, one with another
 * protocol; and manifests with larger items.
 */
#include "tests/unit/client_fixture.h"

CLIENT_FIXTURE();

TEST(an_older_daemon_is_not_sent_what_it_does_not_support)
{
        client = fake_connect(&fake, "hello -load.attach\n> ping\n<\nend\n");
        ck_assert_int_eq(streamer_open(client, "/m", NULL, &lease), STREAMER_EUNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client),
                                     "load.attach: the daemon (0.0.fake) is older than this "
                                     "library"));
        CALL_GIVES(client, "ping", NULL, "{}");
}

TEST(an_older_daemon_that_lacks_a_verb_is_named)
{
        client = fake_connect(&fake, "hello -keep_alive\nend\n");
        FAILS(client, streamer_keep_alive(client, "m", 1000), STREAMER_EUNSUPPORTED,
              "keep_alive: the daemon (0.0.fake) is older than this library (" STREAMERD_VERSION
              ") and does not support it");
}

/* Its events may be unknown, too. */
TEST(a_verb_of_a_newer_daemon_is_sent_as_it_is)
{
        client = fake_connect(&fake, "hello +levitate\n> levitate\n* tomorrow x=1\n< later=yes\nend\n");
        CALL_GIVES(client, "levitate", NULL, "{\"later\":\"yes\"}");
}

TEST(another_protocol_version_names_the_older_side, .to = 2)
{
        streamer_client *c;
        int protocol = _i == 0 ? PROTOCOL_MIN - 1 : PROTOCOL_MAX + 1;
        fake_start(&fake, format_text("accept\n> hello\n< protocol=%d\n", protocol));
        streamer_connect_opts opts = STREAMER_CONNECT_OPTS_INIT;
        opts.socket = fake.socket;
        ck_assert_int_eq(streamer_connect(&opts, &c), STREAMER_EPROTO);
        ck_assert_ptr_nonnull(
                strstr(streamer_last_error(NULL), _i == 0 ? "the daemon is older" : "the library is older"));
        fake_finish(&fake);
}

TEST(a_lease_in_an_unknown_state_is_refused_and_released)
{
        m.state = "compacting";
        client = fake_connect(&fake, SERVE);
        ck_assert_int_eq(streamer_attach(client, "m", NULL, &lease), STREAMER_EUNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "it is older than the daemon"));
}

TEST(a_dtype_of_a_newer_daemon_is_named_and_the_others_are_read)
{
        m.records[0].dtype = 200;
        attach(SERVE, 0);
        FAILS(client, streamer_tensor_get(lease, 0, &t), STREAMER_EUNSUPPORTED,
              "tensor 0: dtype number 200 is unknown: this library (" STREAMERD_VERSION ") is older than the daemon");
        ck_assert_int_eq(streamer_tensor_get(lease, 1, &t), 0);
}

TEST(a_name_outside_the_strings_is_corrupt)
{
        const char *name = "unchanged";
        m.records[0].name_off = UINT32_MAX;
        attach(SERVE, 0);
        FAILS(client, streamer_tensor_name(lease, 0, &name), STREAMER_ECORRUPT, "tensor 0: its name is out of bounds");
        ck_assert_str_eq(name, "unchanged");
        ck_assert_int_eq(streamer_tensor_name(lease, 1, &name), 0);
        ck_assert_str_eq(name, "b");
}

TEST(larger_headers_and_items_are_stepped_over)
{
        const char *key, *value;
        fake_model_enlarge(&m);
        m.loading = true;
        fake_model_arrive(&m, 1);
        attach(SERVE, 0);
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), 0);
        ck_assert_str_eq(t.name, "b");
        ck_assert_mem_eq(t.data, "BBBBBBBB", 8);
        ck_assert_int_eq(streamer_tensor_find(lease, "a", &t), STREAMER_EBUSY);
        ck_assert_int_eq(streamer_tensor_name(lease, 0, &key), 0); /* which has not arrived */
        ck_assert_str_eq(key, "a");
        FAILS(client, streamer_tensor_name(lease, 3, &key), STREAMER_ENOENT, "no such tensor: 3");
        ck_assert_uint_eq(streamer_metadata_count(lease), 1);
        ck_assert_int_eq(streamer_has_metadata(lease), 1); /* an earlier version has no flag */
        ck_assert_int_eq(streamer_metadata_get(lease, 0, &key, &value), 0);
        ck_assert_str_eq(key, "format");
        ck_assert_str_eq(value, "pt");
        ck_assert_int_eq(streamer_metadata_get(lease, 1, &key, &value), STREAMER_ENOENT);
}

/* Loop: none; {}. */
TEST(empty_metadata_differs_from_none, .to = 2)
{
        m.manifest->n_metadata = 0;
        m.manifest->flags = _i == 1 ? MANIFEST_HAS_METADATA : 0;
        attach(SERVE, 0);
        ck_assert_uint_eq(streamer_metadata_count(lease), 0);
        ck_assert_int_eq(streamer_has_metadata(lease), _i);
}
