/* SPDX-License-Identifier: Apache-2.0
 *
 * Many daemons load one model through config/nginx-slice-cache.conf, and the origin sends its bytes once: a web
 * server, and a store, each key of which has slices of its own.
 */
#include "tests/lib/nginx.h"
#include "tests/lib/ports.h"
#include "tests/lib/stage.h"
#include "tests/lib/store.h"
#include "tests/lib/suite.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DAEMONS 3

static struct nginx origin, cache;
static unsigned cache_port;

static char *replaced(const char *text, const char *word, const char *by)
{
        const char *at;
        char *out = format_text("%s", text);
        while ((at = strstr(out, word)) != NULL)
                out = format_text("%.*s%s%s", (int)(at - out), out, by, at + strlen(word));
        return out;
}

static char *url_of(unsigned port)
{
        return format_text("http://127.0.0.1:%u", port);
}

/* The configuration as it is documented, with what it says is to be replaced. */
static const char *cache_config(const char *url)
{
        size_t size;
        char *text = strstr(file_read("config/nginx-slice-cache.conf", &size), "\nmap ");
        ck_assert_ptr_nonnull(text);
        text = replaced(text, "ORIGIN", url);
        text = replaced(text, "CACHE", suite_path("cached"));
        return replaced(text, "LISTEN", format_text("127.0.0.1:%u", cache_port));
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

static uint64_t whole; /* bytes of the file */

static bool the_cache_has_told(void *arg)
{
        (void)arg;
        return nginx_sent(&cache) >= DAEMONS * whole;
}

static bool the_origin_has_told(void *arg)
{
        (void)arg;
        return nginx_sent(&origin) >= whole;
}

/* nginx tells of an answer after the client has had all of it. */
START_TEST(the_origin_sends_its_bytes_once_for_many_daemons)
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
                streamer_op_free(ops[i]);
                streamer_close(clients[i]);
                ck_assert_int_eq(daemon_stop(&daemons[i]), 0);
        }
        whole = file_size(path);
        ck_assert(eventually(the_cache_has_told, NULL, 20000));
        ck_assert(eventually(the_origin_has_told, NULL, 20000));
        ck_assert_uint_lt(nginx_sent(&origin), whole + whole / 20);
}
END_TEST

/* ---- in front of a store ---- */

static struct store store;
static streamer_client *client;

static void begin_store(void)
{
        store_start(&store, "swift", suite_path("swift"));
        store_do(&store, "bucket\tmodels");
        cache_port = free_port();
        nginx_start_with(&cache, suite_path("cache-of-store"), cache_config(store.url), cache_port);
        char *text = format_text("s3: {endpoint: '%s', access_key: '%s', secret_key: '%s'}\n", url_of(cache_port),
                                 store.access, store.secret);
        char *config = suite_file("config.yaml", text);
        stage_begin((const char *const[]){"--config", config, "--device", "host=256MiB", "--block-size", "1MiB", NULL});
}

static void end_store(void)
{
        stage_end();
        nginx_stop(&cache);
        store_stop(&store);
}

static void connect_client(void)
{
        client = client_open(&stage);
}

static void check_stage(void)
{
        streamer_close(client);
        stage_still_serves();
}

static struct model *put_model(uint64_t seed, const char *key)
{
        struct model *model = model_mixed(seed, 3 << 20);
        char *path = suite_path("upload");

        model_write(model, path);
        store_do(&store, "put\tmodels\t%s\t%s", key, path);
        return model;
}

static void load_equals(const char *source, const struct model *model)
{
        client_load(client, source, "m");
        client_equals(client, "m", model);
        client_unload(client, "m");
}

/* Their keys differ in what a cache may take for the same: a slash more, an escape, the query of a list. */
static const char *const prefixes[] = {"one", "two", "a/b", "a//b", "a%2Fb", "a b", "a+b"};
#define PREFIXES (sizeof(prefixes) / sizeof(prefixes[0]))

START_TEST(each_key_and_each_list_is_its_own)
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
END_TEST

START_TEST(what_is_added_to_a_prefix_is_found_behind_a_warm_cache)
{
        put_model(30, "grows/old/model.safetensors");
        client_load_fails(client, "s3://models/grows/", "m", STREAMER_ENOENT, "no safetensors files");
        client_unload(client, "m");
        load_equals("s3://models/grows/", put_model(31, "grows/model.safetensors"));
}
END_TEST

/* The store is asked by HEAD, which is signed for as such. */
START_TEST(a_head_reaches_the_store_as_it_was_signed)
{
        char text[1024];

        put_model(50, "head/model.safetensors");
        ck_assert_int_eq(client_load_sha256(client, "s3://models/head/", "m", text), STREAMER_EFAILED);
        ck_assert_msg(strstr(text, "no published SHA-256") != NULL, "%s", text);
        client_unload(client, "m");
}
END_TEST

/* As the documentation warns. */
START_TEST(a_warm_cache_serves_who_has_no_credentials)
{
        struct model *model = put_model(40, "secret/m.safetensors");
        const char *url = format_text("%s/models/secret/m.safetensors", url_of(cache_port));

        client_load_fails(client, url, "m", STREAMER_EFAILED, "the server answers 4");
        client_unload(client, "m");
        load_equals("s3://models/secret/m.safetensors", model);
        load_equals(url, model);
}
END_TEST

int main(void)
{
        suite_begin("slice cache");
        if (nginx_unavailable() != NULL) {
                skip("slice cache", nginx_unavailable());
                return suite_run();
        }
        TCase *t = suite_group("slice cache", begin, end, 90);
        tcase_add_test(t, the_origin_sends_its_bytes_once_for_many_daemons);
        if (store_missing("swift") != NULL) {
                skip("slice cache of a store", store_missing("swift"));
                return suite_run();
        }
        t = suite_group("slice cache of a store", begin_store, end_store, 60);
        tcase_add_checked_fixture(t, connect_client, check_stage);
        tcase_add_test(t, each_key_and_each_list_is_its_own);
        tcase_add_test(t, what_is_added_to_a_prefix_is_found_behind_a_warm_cache);
        tcase_add_test(t, a_head_reaches_the_store_as_it_was_signed);
        tcase_add_test(t, a_warm_cache_serves_who_has_no_credentials);
        return suite_run();
}
