/* SPDX-License-Identifier: Apache-2.0
 *
 * What the daemon says of models that are not resident any more: `explain`, and the error of a model that is missed.
 */
#include "tests/integration/cli_fixture.h"

static void explains(const char *name, const char *text)
{
        SAYS(0, text, "explain", name);
}

static char *write_model(const char *file, uint64_t seed)
{
        return fixture_write(model_mixed(seed, 1 << 20), file);
}

FIXTURE(.each = {fixture_begin_default, fixture_end}, .timeout = 120);

TEST(an_unload_names_the_caller)
{
        RUN(0, "load", write_model("a.safetensors", 1));
        RUN(0, "unload", "a");
        explains("a", "on host ");
        explains("a", format_text("ago: by uid %d, pid ", (int)getuid()));
        explains("a", " streamerctl\n");
        SAYS(3, format_text("a: no such model (unloaded: by uid %d, pid ", (int)getuid()), "wait", "a");
        RUN(0, "load", fixture_path("a.safetensors"));
        explains("a", "  ready, from store\n");
        RUN(0, "unload", "a");
        json_t *ended = json_at(JSON("explain", "a", "--json"), "ended");
        ck_assert_uint_eq(json_array_size(ended), 2);
        ck_assert_uint_gt(json_number(ended, "0.generation"), json_number(ended, "1.generation"));
        ck_assert_uint_le(json_number(ended, "0.age_ns"), json_number(ended, "1.age_ns"));
        ck_assert_str_eq(json_text(ended, "0.state"), "unloaded");
}

TEST(a_replacement_names_the_new_generation)
{
        RUN(0, "load", write_model("a.safetensors", 1), "--name", "m");
        RUN(0, "load", write_model("b.safetensors", 2), "--name", "m");
        int generation = (int)json_number(JSON("show", "m", "--json"), "models.0.generation");
        char *by = format_text(": by generation %d\n", generation);
        explains("m", by);
        explains("m", "replaced on ");
}

TEST(an_expiry_names_the_time_without_a_lease)
{
        RUN(0, "load", write_model("a.safetensors", 1), "--keep-alive", "1ms");
        RUN(0, "wait", "a", "--for=unloaded");
        explains("a", "expired on ");
        explains("a", "ago: no lease for ");
}

TEST(a_failure_has_its_reason)
{
        file_write(fixture_path("bad.safetensors"), "hello, world", 12);
        RUN(1, "load", fixture_path("bad.safetensors"));
        explains("bad", "  failed\n");
        explains("bad", "ago: not a safetensors file");
        RUN(0, "unload", "bad");
        explains("bad", "ago: not a safetensors file");
        RUN(1, "load", "/etc/passwd", "--name", "outside"); /* not listed either */
        RUN(3, "explain", "outside");
}

TEST(an_alias_ends_alone)
{
        RUN(0, "load", write_model("a.safetensors", 1));
        RUN(0, "load", fixture_path("a.safetensors"), "--name", "alias");
        RUN(0, "unload", "alias");
        explains("alias", "unloaded on ");
        ck_assert_uint_eq(json_array_size(json_at(JSON("explain", "a", "--json"), "ended")), 0);
}

TEST(an_unknown_name_is_not_found)
{
        struct ctl r = RUN(3, "explain", "witnes");
        ck_assert_str_eq(r.err, "streamerctl: witnes: no such model; the nearest is 'witness'\n");
        RUN(0, "explain", "witness");
}

/* The ring has 128 entries. */
TEST(the_oldest_ends_are_forgotten)
{
        char *path = write_model("a.safetensors", 1);
        streamer_client *c = client_open(&test_daemon);
        client_load(c, path, "first");
        client_load(c, path, "base");
        client_unload(c, "first");
        for (int i = 0; i < 127; i++) {
                char *name = format_text("alias-%d", i);
                client_load(c, path, name);
                client_unload(c, name);
        }
        RUN(0, "explain", "first");
        client_load(c, path, "last");
        client_unload(c, "last");
        RUN(3, "explain", "first");
        RUN(0, "explain", "alias-0");
        streamer_close(c);
}

static void begin_small(void)
{
        DAEMON_START(&test_daemon, suite_path("d-small"), "--device", "host=16MiB", "--root", suite_folder());
}

static char *write_large(const char *file, uint64_t seed)
{
        struct model *m = model_mixed(seed, 8 << 20);
        char *path = suite_path("%s", file);
        model_write(m, path);
        return path;
}

FIXTURE(.each = {begin_small, fixture_stop}, .timeout = 120);

TEST(an_eviction_names_the_load)
{
        RUN(0, "load", write_large("one.safetensors", 1));
        RUN(0, "load", write_large("two.safetensors", 2));
        explains("one", "evicted on host ");
        explains("one", "ago: its memory was needed for two\n");
        struct ctl r = RUN(3, "show", "one");
        ck_assert_str_eq(r.err, "streamerctl: one: no such model (evicted: its memory was needed for two)\n");
        ck_assert_double_eq(client_metric(client_open(&test_daemon), "streamerd_evictions_total"), 1);
}

TEST(a_load_that_does_not_fit_says_what_would_help)
{
        char *one = write_large("one.safetensors", 1), *two = write_large("two.safetensors", 2);
        RUN(0, "load", one);
        SAYS(7, "; it would if idle models were evicted (host: one ", "load", two, "--no-evict");
        RUN(0, "pin", "one");
        SAYS(7, "; unload or unpin pinned models (host: one ", "load", two);
        struct model *m = model_mixed(3, 32 << 20);
        model_write(m, suite_path("three.safetensors"));
        SAYS(7, "; more than the whole budget (host: one ", "load", suite_path("three.safetensors"));
}
