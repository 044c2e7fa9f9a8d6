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
        PRINTS(names, "list", "-q");
}

FIXTURE(.each = {load_all, fixture_end});

TEST(a_pattern_matches_names_with_slashes)
{
        PRINTS("org/a\norg/b\n", "unload", "-q", "o*");
        lists("c\nwitness\n");
        RUN(3, "unload", "none*");
}

TEST(a_dry_run_unloads_nothing)
{
        PRINTS("c\norg/a\norg/b\n", "unload", "org/?", "c", "--dry-run", "-q");
        SAYS(0, "witness  would be unloaded: ", "unload", "--all", "--dry-run");
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
        SAYS(0, "[c]\n", "unload", "-q", "[c]", "--dry-run");
}

TEST(a_model_with_another_name_stays_under_it)
{
        const char *state, *stays_as;
        streamer_client *owner = client_open(&test_daemon);
        RUN(0, "load", c, "--name", "other");
        RUN(0, "load", c, "--name", "third");
        streamer_lease *lease = client_attach(owner, "c");
        PRINTS("c  unloaded (the model stays as other)\n", "unload", "c", "--force");
        ck_assert_int_eq(streamer_lease_check(lease), 0);
        UNPACK(JSON("unload", "other", "--json"), "{s:s, s:s}", "state", &state, "stays_as", &stays_as);
        ck_assert_str_eq(state, "unloaded");
        ck_assert_str_eq(stays_as, "third");
        PRINTS("third  draining\n", "unload", "third", "--drain");
        streamer_detach(lease);
        client_wait_leases(owner, 0);
        streamer_close(owner);
}

/* The leased model is in use: the others are unloaded all the same. */
TEST(all_are_unloaded_but_leased_ones)
{
        streamer_client *owner = client_open(&test_daemon);
        streamer_lease *lease = client_attach(owner, "c");
        ctl_says(test_daemon.socket, 6, "", "unload", "--all", "-q", NULL);
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
        streamer_client *owner = client_open(&test_daemon);
        streamer_lease *lease = client_attach(owner, "c");
        PRINTS("", "unload", "--idle", "1h", "-q");
        PRINTS("org/a\norg/b\nwitness\n", "unload", "--idle", "1ms", "-q");
        PRINTS("", "unload", "c", "--idle", "1ms", "-q");
        RUN(0, "load", fixture_path("witness.safetensors"));
        streamer_detach(lease);
        streamer_close(owner);
}
