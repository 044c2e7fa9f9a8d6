/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may publish, and who may attach to what was published.
 */
#include "tests/integration/published_fixture.h"

#include "tests/integration/users_fixture.h"

enum { TRAINER = 60102, OTHER = 60103, VIEWER = 60104 };

static void begin_with(const char *across)
{
        must(chmod(suite_folder(), 0755));
        daemon_begin("device: host, budget: 64MiB",
                     format_text("publish: {across_uids: %s}\naccess:\n  roles:\n    - {role: load, users: %d, models: "
                                 "2, bytes: 8MiB}\n"
                                 "    - {role: load, users: %d}\n    - {role: attach, users: %d}\n",
                                 across, TRAINER, OTHER, VIEWER));
}

static void begin(void)
{
        begin_with("false");
}

static void begin_across(void)
{
        begin_with("true");
}

static void begin_test(void)
{
        opts = options("tiny");
}

/* ---- what a user does ---- */

static int publish_it(void)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_publication *claim = NULL;
        const uint64_t bytes[] = {WEIGHT, 0, BUFFER};
        int r = streamer_publish_find(c, &opts, &found, &claim);
        if (r != 0)
                return expect_error(c, r);
        if (claim == NULL)
                return STREAMER_EBUSY;
        r = streamer_publish_begin(claim, bytes, 3);
        streamer_publish_abort(claim);
        if (r != 0)
                return expect_error(c, r);
        streamer_detach(commit_model(c, claim_of(c, &opts, "absent"), 1));
        return 0;
}

static int attach_it(void)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_lease *lease;
        int r = streamer_attach(c, "tiny", NULL, &lease);
        if (r == 0) {
                check_model(c, lease, 1);
                streamer_detach(lease);
        }
        return expect_error(c, r);
}

/* The digest of the model that was published first. */
static char digest[33];

static int attach_by_digest(void)
{
        streamer_client *c = client_open(&test_daemon);
        const streamer_attach_opts by = {.struct_size = sizeof(by), .digest = digest};
        streamer_lease *lease;
        int r = streamer_attach(c, NULL, &by, &lease);
        if (r == 0)
                streamer_detach(lease);
        return expect_error(c, r);
}

static int find_it(void)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_found found = STREAMER_FOUND_INIT;
        int r = streamer_publish_find(c, &opts, &found, NULL);
        if (r == 0 && expected_text != NULL && strcmp(found.state, expected_text) != 0)
                die("found \"%s\", not \"%s\"", found.state, expected_text);
        return expect_error(c, r);
}

static void forget(void)
{
        streamer_client *c = client_open(&test_daemon);
        client_wait_leases(c, 0);
        unload_everything(c);
        client_wait_used(c, 0);
}

/* ---- tests ---- */

FIXTURE(.all = {begin, daemon_end}, .each = {begin_test, NULL}, .unavailable = root_unavailable);

TEST(only_the_publisher_and_root_attach)
{
        ck_assert_int_eq(do_as(TRAINER, publish_it, NULL), 0);
        ck_assert_int_eq(do_as(TRAINER, attach_it, NULL), 0);
        ck_assert_int_eq(attach_it(), 0);
        ck_assert_int_eq(do_as(OTHER, attach_it, "uid 60102 published it"), STREAMER_EPERM);
        ck_assert_int_eq(do_as(VIEWER, attach_it, "publish.across_uids"), STREAMER_EPERM);
        ck_assert_int_eq(do_as(VIEWER, find_it, "hit"), 0);
        forget();
}

/* The same bytes have one digest, whoever has published them. */
TEST(an_attach_by_digest_finds_the_model_that_the_user_may_attach_to)
{
        ck_assert_int_eq(do_as(TRAINER, publish_it, NULL), 0);
        streamer_client *c = client_open(&test_daemon);
        snprintf(digest, sizeof(digest), "%s", json_text(client_show(c, "tiny"), "digest"));
        ck_assert_int_eq(do_as(OTHER, attach_by_digest, "uid 60102 published it"), STREAMER_EPERM);
        opts.name = "another";
        ck_assert_int_eq(do_as(OTHER, publish_it, NULL), 0);
        ck_assert_str_eq(json_text(client_show(c, "another"), "digest"), digest);
        ck_assert_int_eq(do_as(OTHER, attach_by_digest, NULL), 0);
        ck_assert_int_eq(do_as(TRAINER, attach_by_digest, NULL), 0);
        forget();
}

static char *public_base(const char *name)
{
        char *path = suite_path("%s", name);
        write_base(path, 5);
        must(chmod(path, 0644));
        return path;
}

/* The role attach has nothing opened: it names the base as its publisher did, or a resident model. */
TEST(another_base_is_opened_for_the_role_load_only)
{
        char *base = public_base("base.safetensors");
        opts.base = base;
        ck_assert_int_eq(do_as(TRAINER, publish_it, NULL), 0);
        ck_assert_int_eq(do_as(VIEWER, find_it, "hit"), 0);
        opts.base = public_base("other.safetensors");
        ck_assert_int_eq(
                do_as(VIEWER, find_it,
                      "publish_find: base: comparing it with the published model's requires role 'load', unless "
                      "the two are written alike; uid 60104 has role 'attach'"),
                STREAMER_EPERM);
        ck_assert_int_eq(do_as(OTHER, find_it, "mismatch"), 0);
        opts.base = "http://127.0.0.1:1/m.safetensors";
        ck_assert_int_eq(do_as(VIEWER, find_it, "requires role 'load'"), STREAMER_EPERM);
        ck_assert_int_eq(do_as(OTHER, find_it, "connect to server"), STREAMER_EFAILED);
        opts.name = "none";
        ck_assert_int_eq(do_as(VIEWER, find_it, "absent"), 0);
        forget();
}

/* Its files are those that the published model was made from. */
TEST(the_role_attach_names_a_resident_base)
{
        streamer_client *c = client_open(&test_daemon);
        opts.base = public_base("base.safetensors");
        client_load(c, opts.base, "base");
        ck_assert_int_eq(do_as(TRAINER, publish_it, NULL), 0);
        opts.base = "base";
        ck_assert_int_eq(do_as(VIEWER, find_it, "hit"), 0);
        forget();
}

TEST(publishing_requires_the_role_load)
{
        ck_assert_int_eq(do_as(VIEWER, publish_it, "requires role 'load'"), STREAMER_EPERM);
}

TEST(the_name_of_another_user_is_refused)
{
        static const char *other_key[] = {"torch=1"};
        ck_assert_int_eq(do_as(TRAINER, publish_it, NULL), 0);
        opts.key = other_key;
        opts.n_key = 1;
        ck_assert_int_eq(do_as(OTHER, publish_it, "the name belongs to uid 60102, and uid 60103 has the role load"),
                         STREAMER_EPERM);
        ck_assert_int_eq(model_call_as(OTHER, "unload", "tiny", "uid 60102"), STREAMER_EPERM);
        ck_assert_int_eq(model_call_as(TRAINER, "unload", "tiny", NULL), 0);
}

TEST(a_users_models_are_limited)
{
        opts.name = "one";
        ck_assert_int_eq(do_as(TRAINER, publish_it, NULL), 0);
        opts.name = "two";
        ck_assert_int_eq(do_as(TRAINER, publish_it, NULL), 0);
        opts.name = "three";
        ck_assert_int_eq(do_as(TRAINER, publish_it, "models"), STREAMER_ELIMIT);
        ck_assert_int_eq(do_as(OTHER, publish_it, NULL), 0);
        forget();
}

static int publish_too_much(void)
{
        streamer_client *c = client_open(&test_daemon);
        const uint64_t bytes = UINT64_C(9) << 20;
        streamer_publication *claim = claim_of(c, &opts, "absent");
        int r = expect_error(c, streamer_publish_begin(claim, &bytes, 1));
        streamer_publish_abort(claim);
        return r;
}

TEST(a_users_bytes_are_limited)
{
        ck_assert_int_eq(do_as(TRAINER, publish_too_much, "0 B of 8.0 MiB"), STREAMER_ELIMIT);
        ck_assert_int_eq(do_as(TRAINER, publish_it, NULL), 0);
        forget();
}

FIXTURE(.all = {begin_across, daemon_end}, .each = {begin_test, NULL}, .unavailable = root_unavailable);

TEST(every_user_attaches_where_configured)
{
        ck_assert_int_eq(do_as(TRAINER, publish_it, NULL), 0);
        ck_assert_int_eq(do_as(OTHER, attach_it, NULL), 0);
        ck_assert_int_eq(do_as(VIEWER, attach_it, NULL), 0);
        forget();
}
