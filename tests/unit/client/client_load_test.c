/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads in the library, against a scripted daemon; and what is sent as their source: absolute paths, and for Hub ids
 * the folders in the caller's cache.
 */
#include "client/fault.h"
#include "client/source.h"
#include "tests/unit/client_fixture.h"

#define LOAD "hello\n> load watch=true\n< op=5 name=m\n"
#define LOAD_AT_ONCE LOAD "* op op=5 state=ready bytes=100 total=100\n"

static streamer_progress p = {.struct_size = sizeof(p)};

static streamer_op *load(const char *text, unsigned flags)
{
        streamer_op *op;
        streamer_load_opts opts = {.struct_size = sizeof(opts), .source = "/m.safetensors", .flags = flags};
        client = fake_connect(&fake, text);
        int rc = streamer_load(client, &opts, &op);
        ck_assert_msg(rc == 0, "%s", streamer_last_error(client));
        return op;
}

/* ---- loads ---- */

CLIENT_FIXTURE();

TEST(a_load_is_watched_until_it_is_ready)
{
        streamer_op *op = load(LOAD "* op op=5 state=loading bytes=10 total=100\n"
                                    "* op op=6 state=failed bytes=99 total=100\n" /* another's */
                                    "pause\n"
                                    "* op op=5 state=loading bytes=50 total=100\n"
                                    "* op op=5 state=ready bytes=100 total=100\n"
                                    "* op op=5 state=loading bytes=60 total=100\n" /* no event follows the end */
                                    "end\n",
                               0);
        do {
                ck_assert_int_eq(streamer_op_wait(op, 10, &p), STREAMER_ETIMEOUT);
        } while (p.bytes == 0);
        ck_assert_str_eq(p.state, "loading");
        ck_assert_uint_eq(p.bytes, 10);
        ck_assert_uint_eq(p.total, 100);
        fake_resume(&fake);
        ck_assert_int_eq(streamer_op_wait(op, -1, &p), 0);
        ck_assert_uint_eq(p.bytes, 100);
}

TEST(a_failure_has_code_and_text)
{
        streamer_device_failure failure = {.struct_size = sizeof(failure)};
        streamer_op *op = load(LOAD "* op op=5 state=failed code=no-memory text='what: why (where)'\n", 0);
        FAILS(client, streamer_op_wait(op, -1, &p), STREAMER_ENOMEM, "what: why (where)");
        ck_assert_str_eq(p.state, "failed");
        FAILS(client, streamer_op_failure_get(op, 0, &failure), STREAMER_ENOENT, "the load has no failure 0");
}

TEST(a_lost_daemon_is_reported)
{
        streamer_op *op = load(LOAD "close\n", 0);
        FAILS(client, streamer_op_wait(op, -1, &p), STREAMER_ELOST,
              "the connection was lost, and the load is no longer watched");
        ck_assert_str_eq(p.state, "resolving");
}

TEST(a_connection_that_is_lost_before_the_lease_is_reported)
{
        streamer_op *op;
        client = fake_connect(&fake, "hello\n> load watch=true attach=true\n* op op=5 request=2 name=m\nclose\n");
        ck_assert_int_eq(streamer_open_start(client, "/m.safetensors", NULL, &op), 0);
        FAILS(client, streamer_op_lease(op, -1, &lease), STREAMER_ELOST,
              "the connection was lost before there was a lease");
}

/* Its load was ready, and the model was unloaded before it could be attached to. */
TEST(an_open_that_is_refused_after_the_load_has_the_replys_error)
{
        streamer_op *op;
        client = fake_connect(&fake, "hello\n> load watch=true attach=true\n* op op=5 request=2 name=m\n"
                                     "* op op=5 request=2 state=ready\n! not-found 'm: no such model'\n");
        ck_assert_int_eq(streamer_open_start(client, "/m.safetensors", NULL, &op), 0);
        ck_assert_int_eq(streamer_op_wait(op, -1, NULL), 0);
        for (int i = 0; i < 2; i++)
                FAILS(client, streamer_op_lease(op, -1, &lease), STREAMER_ENOENT, "'m: no such model'");
        streamer_op_free(op);
}

/* The next daemon's first load has the number of the one before. */
TEST(the_end_of_an_earlier_daemons_load_is_ignored)
{
        streamer_op *first = load(LOAD "close\n" LOAD_AT_ONCE "end\n", 0), *second;
        streamer_load_opts opts = {.struct_size = sizeof(opts), .source = "/n.safetensors"};
        ck_assert_int_eq(streamer_op_wait(first, -1, NULL), STREAMER_ELOST);
        ck_assert_int_eq(streamer_load(client, &opts, &second), 0);
        ck_assert_int_eq(streamer_op_wait(second, -1, &p), 0);
        ck_assert_str_eq(p.state, "ready");
        ck_assert_int_eq(streamer_op_wait(first, 0, &p), STREAMER_ELOST);
        ck_assert_str_eq(p.state, "resolving");
}

TEST(an_operation_outlives_its_client)
{
        streamer_op *op = load(LOAD "close\n", 0);
        disconnect();
        ck_assert_int_eq(streamer_op_wait(op, -1, &p), STREAMER_EUNREACHABLE);
}

TEST(a_detached_load_only_returns_the_name)
{
        streamer_op *op = load("hello\n> load watch=false\n< op=5 name=m\n", STREAMER_LOAD_DETACH);
        ck_assert_str_eq(streamer_op_model(op), "m");
        ck_assert_int_eq(streamer_op_wait(op, -1, &p), STREAMER_EINVAL);
}

TEST(progress_of_an_older_caller_is_filled_as_far_as_it_reaches)
{
        streamer_progress old = {.struct_size = offsetof(streamer_progress, tensors), .tensors = 77};
        streamer_op *op = load(LOAD_AT_ONCE, 0);
        ck_assert_int_eq(streamer_op_wait(op, -1, &old), 0);
        ck_assert_uint_eq(old.bytes, 100);
        ck_assert_uint_eq(old.tensors, 77);
        old.struct_size = 0;
        ck_assert_int_eq(streamer_op_wait(op, -1, &old), STREAMER_EINVAL);
}

/* ---- sources ---- */

static char *sent;

/* 0, or the code with which the library refuses it. */
static int resolve(const char *source)
{
        return source_resolve(source, &sent, NULL);
}

static void sent_is(const char *source, const char *want)
{
        ck_assert_int_eq(resolve(source), 0);
        ck_assert_str_eq(sent, want);
}

TEST(uris_and_absolute_paths_pass)
{
        sent_is("/a/b.safetensors", "/a/b.safetensors");
        sent_is("file:///a/b", "file:///a/b");
        sent_is("s3://bucket/key/", "s3://bucket/key/");
        sent_is("hf://org/name@main", "hf://org/name@main");
}

TEST(relative_paths_become_absolute)
{
        char here[PATH_SIZE];
        must(chdir(suite_folder()));
        ck_assert_ptr_nonnull(getcwd(here, sizeof(here)));
        sent_is("m.safetensors", format_text("%s/m.safetensors", here));
        sent_is("./org/name", format_text("%s/org/name", here));
        sent_is("a/b/c", format_text("%s/a/b/c", here));
        sent_is(".//a/./b/", format_text("%s/a/b", here));
        sent_is("../x", format_text("%.*s/x", (int)(strrchr(here, '/') - here), here));
        sent_is("/../..", "/");
        ck_assert_int_eq(resolve(""), STREAMER_EINVAL);
}

TEST(a_link_keeps_its_name_unless_dot_dot_follows)
{
        char *real = realpath(suite_folder(), NULL);
        file_put(suite_folder(), "deep/target/f", "");
        must(symlink(suite_path("deep/target"), suite_path("link")));
        sent_is(suite_path("link"), suite_path("link"));
        sent_is(suite_path("link/../x"), format_text("%s/deep/x", real));
}

/* A cache with two snapshots of org/name; main is the first. */
static char *make_cache(const char *name)
{
        static const char *const files[][2] = {{"refs/main", "abcd1111\n"},  {"refs/pr/1", "abcd2222"},
                                               {"refs/gone", "abcd3333"},    {"refs/evil", "../../.."},
                                               {"snapshots/abcd1111/f", ""}, {"snapshots/abcd2222/f", ""}};
        for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
                file_put(suite_folder(), format_text("%s/models--org--name/%s", name, files[i][0]), files[i][1]);
        return suite_path("%s", name);
}

TEST(a_hub_id_becomes_its_snapshot)
{
        char *cache = make_cache("hub");
        setenv("HF_HUB_CACHE", cache, 1);
        char *one = format_text("%s/models--org--name/snapshots/abcd1111", cache);
        char *two = format_text("%s/models--org--name/snapshots/abcd2222", cache);
        sent_is("org/name", one);
        sent_is("org/name@main", one);
        sent_is("org/name@pr/1", two);
        sent_is("org/name@abcd2222", two);
        sent_is("org/name@abcd2", two);
}

TEST(a_missing_or_ambiguous_hub_id_is_refused)
{
        setenv("HF_HUB_CACHE", make_cache("hub2"), 1);
        ck_assert_int_eq(resolve("org/other"), STREAMER_ENOENT);
        ck_assert_int_eq(resolve("org/name@none"), STREAMER_ENOENT);
        ck_assert_int_eq(resolve("org/name@abcd"), STREAMER_ENOENT); /* two begin so */
        ck_assert_int_eq(resolve("org/name@abc"), STREAMER_ENOENT);  /* too short to be a commit */
        ck_assert_int_eq(resolve("org/name@gone"), STREAMER_ENOENT);
        ck_assert_int_eq(resolve("org/name@evil"), STREAMER_ENOENT);
        ck_assert_int_eq(resolve("org/name@../x"), STREAMER_EINVAL);
        ck_assert_str_eq(fault_text(NULL), "org/name@../x: the id's revision or the cache's path is not valid");
        ck_assert_int_eq(resolve("org/name@"), STREAMER_EINVAL);
}

/* Where it is, by a variable that precedes those before it. */
static const char *const places[][2] = {{"HOME", "home"},
                                        {"XDG_CACHE_HOME", "home/.cache"},
                                        {"HF_HOME", "home/.cache/huggingface"},
                                        {"HUGGINGFACE_HUB_CACHE", "home/.cache/huggingface/hub"}};

TEST(the_cache_is_found_as_the_hub_tools_find_it)
{
        char *cache = make_cache(places[3][1]), *want = format_text("%s/models--org--name/snapshots/abcd1111", cache);
        unsetenv("HF_HUB_CACHE");
        for (int i = 0; i < 4; i++)
                unsetenv(places[i][0]);
        for (int i = 0; i < 4; i++) {
                setenv(places[i][0], suite_path("%s", places[i][1]), 1);
                sent_is("org/name", want);
                if (i < 3)
                        setenv(places[i][0], "/nowhere", 1);
        }
        setenv("HF_HUB_CACHE", "/nowhere", 1);
        ck_assert_int_eq(resolve("org/name"), STREAMER_ENOENT);
}
