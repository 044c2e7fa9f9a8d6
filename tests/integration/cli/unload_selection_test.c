/* SPDX-License-Identifier: Apache-2.0
 *
 * unload selects models by pattern, all of them, or those without a lease for some time.
 */
#include "tests/integration/cli_fixture.h"

static char *a, *b, *c;

static void load_all(void)
{
        fixture_begin(NULL);
        a = fixture_write(model_mixed(1, 1 << 18), "a.safetensors");
        b = fixture_write(model_mixed(2, 1 << 18), "b.safetensors");
        c = fixture_write(model_mixed(3, 1 << 18), "c.safetensors");
        RUN(0, "load", a, "--name", "org/a");
        RUN(0, "load", b, "--name", "org/b");
        RUN(0, "load", c, "--name", "c");
}

static void lists(const char *names)
{
        struct ctl r = RUN(0, "list", "-q");
        ck_assert_str_eq(r.out, names);
}

FIXTURE(.each = {load_all, fixture_end});

TEST(a_pattern_matches_names_with_slashes)
{
        struct ctl r = RUN(0, "unload", "-q", "o*");
        ck_assert_str_eq(r.out, "org/a\norg/b\n");
        lists("c\nwitness\n");
        RUN(3, "unload", "none*");
}

TEST(a_dry_run_unloads_nothing)
{
        struct ctl r = RUN(0, "unload", "org/?", "c", "--dry-run", "-q");
        ck_assert_str_eq(r.out, "c\norg/a\norg/b\n");
        r = RUN(0, "unload", "--all", "--dry-run");
        ck_assert_ptr_nonnull(strstr(r.out, "witness  would be unloaded: "));
        lists("c\norg/a\norg/b\nwitness\n");
        json_t *o = JSON("unload", "c", "--dry-run", "--json");
        const char *state;
        UNPACK(o, "{s:s}", "state", &state);
        ck_assert_str_eq(state, "dry-run");
}

TEST(a_name_that_is_resident_is_no_pattern)
{
        RUN(0, "load", c, "--name", "[c]");
        RUN(0, "unload", "[c]", "--dry-run");
        struct ctl r = RUN(0, "unload", "-q", "[c]", "--dry-run");
        ck_assert_ptr_nonnull(strstr(r.out, "[c]\n"));
}

/* The leased model is in use: the others are unloaded all the same. */
TEST(all_are_unloaded_but_leased_ones)
{
        struct ctl r;
        streamer_client *owner = client_open(&test_daemon);
        streamer_lease *lease = client_attach(owner, "c");
        ctl(&r, test_daemon.socket, "unload", "--all", "-q", NULL);
        ck_assert_int_eq(r.code, 6);
        lists("c\n");
        streamer_detach(lease);
        client_wait_leases(owner, 0);
        RUN(0, "unload", "--all");
        lists("");
        RUN(0, "unload", "--all"); /* of none */
        RUN(0, "load", fixture_path("witness.safetensors"));
        streamer_close(owner);
}

TEST(idle_models_are_selected)
{
        struct ctl r;
        streamer_client *owner = client_open(&test_daemon);
        streamer_lease *lease = client_attach(owner, "c");
        r = RUN(0, "unload", "--idle", "1h", "-q");
        ck_assert_str_eq(r.out, "");
        r = RUN(0, "unload", "--idle", "1ms", "-q");
        ck_assert_str_eq(r.out, "org/a\norg/b\nwitness\n");
        r = RUN(0, "unload", "c", "--idle", "1ms", "-q");
        ck_assert_str_eq(r.out, "");
        RUN(0, "load", fixture_path("witness.safetensors"));
        streamer_detach(lease);
        streamer_close(owner);
}

TEST(a_selection_is_required)
{
        RUN(2, "unload");
        RUN(2, "unload", "--all", "c");
        RUN(2, "unload", "--dry-run");
}
