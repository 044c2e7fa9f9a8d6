/* SPDX-License-Identifier: Apache-2.0
 *
 * Many daemons load one model through config/nginx-slice-cache.conf, and the origin sends each byte once: from a web
 * server, and from a store.
 */
#include "tests/lib/nginx.h"
#include "tests/lib/ports.h"
#include "tests/lib/fixture.h"
#include "tests/lib/s3_store.h"
#include "tests/lib/suite.h"

#define DAEMONS 3

static struct nginx origin, cache;
static unsigned cache_port;

static char *url_of(unsigned port)
{
        return format_text("http://127.0.0.1:%u", port);
}

/* The documented configuration, with its placeholders replaced. */
static const char *cache_config(const char *url)
{
        size_t size;
        char *text = strstr(file_read("config/nginx-slice-cache.conf", &size), "\nmap ");
        ck_assert_ptr_nonnull(text);
        text = replace_text(text, "ORIGIN", url);
        text = replace_text(text, "CACHE", suite_path("cached"));
        return replace_text(text, "LISTEN", format_text("127.0.0.1:%u", cache_port));
}

static void begin(void)
{
        must(mkdir(suite_path("www"), 0755));
        nginx_start(&origin, suite_path("origin"), suite_path("www"));
        cache_port = free_port();
        nginx_start_with(&cache, suite_path("cache"), cache_config(url_of(origin.http)), cache_port);
}

static void end(void)
{
        nginx_stop(&cache);
        nginx_stop(&origin);
}

FIXTURE(.all = {begin, end}, .timeout = 90, .unavailable = nginx_unavailable);

/* nginx logs an answer after the client has received all of it. */
TEST(the_origin_sends_its_bytes_once_for_many_daemons)
{
        struct daemon daemons[DAEMONS];
        streamer_client *clients[DAEMONS];
        streamer_op *ops[DAEMONS];
        struct model *model = model_mixed(5, 40 << 20);
        char *path = suite_path("www/m.safetensors");
        model_write(model, path);
        const char *source = format_text("http://127.0.0.1:%u/m.safetensors", cache_port);
        for (int i = 0; i < DAEMONS; i++) {
                daemon_start_simple(&daemons[i], suite_path("daemon-%d", i), suite_folder(), "128MiB");
                clients[i] = client_open(&daemons[i]);
                ops[i] = client_load_begin(clients[i], source, "m");
        }
        for (int i = 0; i < DAEMONS; i++) {
                client_ok(clients[i], streamer_op_wait(ops[i], 60000, NULL), "load");
                client_equals(clients[i], "m", model);
                streamer_close(clients[i]);
                ck_assert_int_eq(daemon_stop(&daemons[i]), 0);
        }
        uint64_t whole = file_size(path);
        AWAIT(nginx_sent(&cache) >= DAEMONS * whole);
        AWAIT(nginx_sent(&origin) >= whole);
        ck_assert_uint_lt(nginx_sent(&origin), whole + whole / 20);
}

/* ---- in front of a store ---- */

static struct s3_store store;

static void begin_store(void)
{
        s3_store_start(&store, "swift", suite_path("swift"));
        s3_store_do(&store, "bucket\tmodels");
        cache_port = free_port();
        nginx_start_with(&cache, suite_path("cache-of-store"), cache_config(store.url), cache_port);
        char *text = format_text("s3: {endpoint: '%s', access_key: '%s', secret_key: '%s'}\n", url_of(cache_port),
                                 store.access, store.secret);
        char *config = suite_file("config.yaml", text);
        fixture_begin(
                (const char *const[]){"--config", config, "--device", "host=256MiB", "--block-size", "1MiB", NULL});
}

static void end_store(void)
{
        fixture_end();
        nginx_stop(&cache);
        s3_store_stop(&store);
}

static struct model *put_model(uint64_t seed, const char *key)
{
        struct model *model = model_mixed(seed, 3 << 20);
        char *path = suite_path("upload");
        model_write(model, path);
        s3_store_do(&store, "put\tmodels\t%s\t%s", key, path);
        return model;
}

static void load_equals(const char *source, const struct model *model)
{
        client_load_equals(client, source, "m", model);
}

/* Their keys differ in parts that a cache might normalise: an extra slash, an escape, the query of a list. */
static const char *const prefixes[] = {"one", "two", "a/b", "a//b", "a%2Fb", "a b", "a+b"};
#define PREFIXES (sizeof(prefixes) / sizeof(prefixes[0]))

static const char *no_store(void)
{
        const char *reason = nginx_unavailable();
        return reason ? reason : s3_store_missing("swift");
}

FIXTURE(.all = {begin_store, end_store}, .each = {fixture_connect, fixture_disconnect}, .unavailable = no_store);

TEST(each_key_and_each_list_has_its_own_slices)
{
        struct model *models[PREFIXES];
        for (size_t i = 0; i < PREFIXES; i++)
                models[i] = put_model(10 + i, format_text("%s/model.safetensors", prefixes[i]));
        for (int warm = 0; warm < 2; warm++)
                for (size_t i = 0; i < PREFIXES; i++) {
                        load_equals(format_text("s3://models/%s/", prefixes[i]), models[i]);
                        load_equals(format_text("s3://models/%s/model.safetensors", prefixes[i]), models[i]);
                }
}

TEST(a_file_added_to_a_prefix_is_found_despite_a_warm_cache)
{
        put_model(30, "grows/old/model.safetensors");
        client_load_fails(client, "s3://models/grows/", "m", STREAMER_ENOENT, "no safetensors files");
        load_equals("s3://models/grows/", put_model(31, "grows/model.safetensors"));
}

/* The store is asked by HEAD, which is signed for as such. */
TEST(a_head_request_reaches_the_store_as_signed)
{
        char text[1024];
        put_model(50, "head/model.safetensors");
        ck_assert_int_eq(client_load_sha256(client, "s3://models/head/", "m", text), STREAMER_EFAILED);
        ck_assert_msg(strstr(text, "no published SHA-256") != NULL, "%s", text);
        client_unload(client, "m");
}

/* As the documentation warns. */
TEST(a_warm_cache_needs_no_credentials)
{
        struct model *model = put_model(40, "secret/m.safetensors");
        const char *url = format_text("%s/models/secret/m.safetensors", url_of(cache_port));
        client_load_fails(client, url, "m", STREAMER_EFAILED, "the server answers 4");
        client_unload(client, "m");
        load_equals("s3://models/secret/m.safetensors", model);
        load_equals(url, model);
}
