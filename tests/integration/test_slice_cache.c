/* SPDX-License-Identifier: Apache-2.0
 *
 * Many daemons load one model through config/nginx-slice-cache.conf, and the origin sends its bytes once.
 */
#include "tests/lib/nginx.h"
#include "tests/lib/stage.h"
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

/* The configuration as it is documented, with what it says is to be replaced. */
static const char *cache_config(void)
{
        size_t size;
        char *text = strstr(file_read("config/nginx-slice-cache.conf", &size), "\nproxy_cache_path");
        ck_assert_ptr_nonnull(text);
        text = replaced(text, "ORIGIN", format_text("http://127.0.0.1:%u", origin.http));
        text = replaced(text, "CACHE", suite_path("cached"));
        return replaced(text, "LISTEN", format_text("127.0.0.1:%u", cache_port));
}

static void begin(void)
{
        must(mkdir(suite_path("www"), 0755));
        nginx_start(&origin, suite_path("origin"), suite_path("www"));
        cache_port = free_port();
        nginx_start_with(&cache, suite_path("cache"), cache_config(), cache_port);
}

static void end(void)
{
        nginx_stop(&cache);
        nginx_stop(&origin);
}

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
        ck_assert_uint_ge(nginx_sent(&cache), DAEMONS * file_size(path));
        ck_assert_uint_ge(nginx_sent(&origin), file_size(path));
        ck_assert_uint_lt(nginx_sent(&origin), file_size(path) + file_size(path) / 20);
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
        return suite_run();
}
