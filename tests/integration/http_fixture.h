/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the HTTP tests: nginx with a model of BLOCKS blocks, a daemon that trusts it, and for each test a proxy
 * in front of nginx and a client.
 */
#pragma once

#include "tests/integration/remote_fixture.h"
#include "tests/lib/streamerctl.h"
#include "tests/lib/nginx.h"
#include "tests/lib/proxy.h"
#include "tests/lib/kernel_counters.h"

#define BLOCKS 12 /* of 1 MiB, as the configuration has it */
#define CONCURRENCY 8

static struct nginx web;
static struct proxy proxy;
static struct model *model;

/* Of the daemon whose requests are to stall; others wait for longer than a test. */
#define STALL (suite_short() ? "3s" : "1500ms")

static inline const char *write_config(unsigned concurrency, const char *stall)
{
        const char *text =
                format_text("io: {block_size: 1MiB, concurrency: %u}\n"
                            "http:\n"
                            "  ca: %s\n  stall: %s\n  backoff: 5ms\n  retry_after: 300ms\n  tries: 4\n  "
                            "patience: 0s\n  allow_plain: [basic.localhost]\n"
                            "  redirects: 3\n  threads: 2\n"
                            "  hosts:\n"
                            "    - {host: \"localhost:%u\", token: the-token-of-localhost}\n"
                            "    - {host: \"http://basic.localhost:%u\", user: me, password: the-password}\n",
                            concurrency, web.ca, stall, web.https, web.http);
        return suite_file(format_text("http-%u.yaml", concurrency), text);
}

static inline void begin_web(void)
{
        must(mkdir(suite_path("www"), 0755));
        nginx_start(&web, suite_path("nginx"), suite_path("www"));
        model = model_mixed(77, BLOCKS << 20);
        model_write(model, suite_path("www/m.safetensors"));
}

static inline void end_web(void)
{
        nginx_stop(&web);
}

static inline void begin(void)
{
        begin_web();
        fixture_begin(
                (const char *const[]){"--device", "host=256MiB", "--config", write_config(CONCURRENCY, STALL), NULL});
}

static inline void end(void)
{
        fixture_end();
        end_web();
}

static inline void before(void)
{
        proxy_start(&proxy, web.http);
        client = client_open(&test_daemon);
}

static inline void after(void)
{
        fixture_disconnect();
        proxy_stop(&proxy);
}

static inline const char *url(unsigned port, const char *path)
{
        return format_text("http://127.0.0.1:%u%s", port, path);
}

static inline const char *secure(const char *path)
{
        return format_text("https://localhost:%u%s", web.https, path);
}

static inline const char *through(const char *path)
{
        return proxy_url(&proxy, path);
}

static inline void redirect(const char *to)
{
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_REDIRECT, .what = PROXY_ALL, .text = to});
}

/* A daemon of the test's own. */
static struct daemon own;

static inline streamer_client *start_own(const char *name, const char *config)
{
        DAEMON_START(&own, suite_path("%s-%d", name, (int)getpid()), "--device", "host=128MiB", "--root",
                     fixture_root(), "--log-level", "debug", "--config", config);
        return client_open(&own);
}

static inline void stop_own(streamer_client *c)
{
        streamer_close(c);
        ck_assert_int_eq(daemon_stop(&own), 0);
}

static inline void serves(const char *source)
{
        client_load_equals(client, source, "m", model);
}

/* Marks the end of the log; later checks read from here. */
static inline char *log_text(void)
{
        static unsigned n;
        const char *next = format_text("said-so-far-%u", ++n);
        client_load_fails(client, url(web.http, "/nothing.safetensors"), next, STREAMER_ENOENT, NULL);
        ck_assert(log_wait_for(test_daemon.log, next));
        return file_read(test_daemon.log, NULL);
}
