/* SPDX-License-Identifier: Apache-2.0
 *
 * The stage of the tests of S3: a store with TLS and with a proxy before it, and a daemon whose settings lead to all
 * of them. Each test is a process of its own, so all of it is static.
 */
#ifndef TESTS_INTEGRATION_S3_STAGE_H
#define TESTS_INTEGRATION_S3_STAGE_H

#include "tests/integration/remote_stage.h"
#include "tests/lib/endpoint.h"
#include "tests/lib/nginx.h"
#include "tests/lib/store.h"
#include "tests/lib/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct store store;
static struct model *model;

/* Set by each fault's test: which request (of objects, from 1) it is about. */
static struct endpoint proxy;
static struct nginx tls;
static unsigned gets;
static char *replacement;

static char *settings(void)
{
        return format_text(
                "http:\n"
                "  allow_plain: ['virtual.s3.localhost:%u']\n"
                "  backoff: 10ms\n"
                "s3:\n"
                "  sources:\n"
                "    - {source: 's3://models/not-mine/', access_key: 'test:tester', secret_key: notthesecret}\n"
                "    - {source: 's3://models/nobody/', access_key: nobody, secret_key: notthesecret}\n"
                "    - {source: 's3://models/region/', region: nowhere-1, access_key: 'test:tester',\n"
                "       secret_key: 'file:%s'}\n"
                "    - {source: 's3://virtual', endpoint: 'http://s3.localhost:%u', addressing: virtual,\n"
                "       access_key: 'test:tester', secret_key: 'credential:store'}\n"
                "    - {source: 's3://models/tls/', endpoint: 'https://localhost:%u', ca: '%s',\n"
                "       access_key: 'test:tester', secret_key: storesecret}\n"
                "    - {source: 's3://models/no-ca/', endpoint: 'https://localhost:%u',\n"
                "       access_key: 'test:tester', secret_key: storesecret}\n"
                "    - {source: 's3://models/proxy/', endpoint: '%s', access_key: 'test:tester',\n"
                "       secret_key: storesecret}\n",
                store.port, suite_path("secret"), store.port, tls.https, tls.ca, tls.https, proxy.url);
}

/* Of the ETags of a list, as some stores have them. */
static void strip_quotes(struct endpoint_reply *reply)
{
        for (char *at = reply->body; (at = strstr(at, "<ETag>")) != NULL; at++) {
                static const char *const quotes[] = {"&quot;", "&#34;", "\""};
                for (size_t i = 0; i < 3; i++)
                        for (char *q; (q = strstr(at, quotes[i])) != NULL && q < strstr(at, "</ETag>");) {
                                size_t n = strlen(quotes[i]);
                                memmove(q, q + n, (size_t)(reply->body + reply->size + 1 - (q + n)));
                                reply->size -= n;
                        }
        }
}

static void answer_proxy(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        (void)e;
        bool object = strstr(request->path, ".safetensors") != NULL && strcmp(request->method, "GET") == 0;
        unsigned n = object ? __atomic_add_fetch(&gets, 1, __ATOMIC_SEQ_CST) : 0;
        if (n == 3)
                store_do(&store, "put\tmodels\tproxy/replaced.safetensors\t%s", replacement);
        endpoint_forward(request, reply, store.port);
        if (strstr(request->path, "proxy%2Fbare") != NULL)
                strip_quotes(reply);
}

/* In front of the store, as operators put it: the signed Host goes through as it came. */
static void start_tls(void)
{
        if (nginx_unavailable())
                return;
        nginx_start(&tls, suite_path("nginx"), suite_folder()); /* makes its certificates */
        nginx_stop(&tls);
        nginx_start_with(&tls, suite_path("nginx"),
                         format_text("server { listen 127.0.0.1:%u ssl; ssl_certificate %s/cert.pem; "
                                     "ssl_certificate_key %s/key.pem; location / { proxy_pass http://127.0.0.1:%u; "
                                     "proxy_set_header Host $http_host; proxy_http_version 1.1; } }\n",
                                     tls.https, tls.folder, tls.folder, store.port),
                         tls.https);
}

static void begin(void)
{
        store_start(&store, "swift", suite_path("swift"));
        store_do(&store, "bucket\tmodels");
        store_do(&store, "bucket\tvirtual");
        replacement = suite_path("replacement");
        proxy.answer = answer_proxy;
        endpoint_start(&proxy);
        start_tls();
        file_write(suite_path("secret"), "storesecret\n", 12);
        file_write(suite_path("store"), "storesecret\n", 12);
        char *config = suite_file("config.yaml", settings());
        setenv("CREDENTIALS_DIRECTORY", suite_folder(), 1);
        setenv("AWS_ACCESS_KEY_ID", store.access, 1);
        setenv("AWS_SECRET_ACCESS_KEY", store.secret, 1);
        setenv("AWS_ENDPOINT_URL_S3", store.url, 1);
        stage_begin((const char *const[]){"--config", config, "--device", "host=256MiB", "--block-size", "1MiB",
                                          "--log-level", "debug", NULL});
}

static void end(void)
{
        stage_end();
        nginx_stop(&tls);
        store_stop(&store);
}

/* ---- what tests say ---- */

static void put_file(const char *key, const char *path)
{
        store_do(&store, "put\tmodels\t%s\t%s", key, path);
}

static void put_model(const struct model *m, const char *key)
{
        char *path = suite_path("upload");

        model_write(m, path);
        put_file(key, path);
}

static void put_text(const char *key, const char *content)
{
        char *path = suite_file("upload", content);
        put_file(key, path);
}

static void assert_says(const char *what)
{
        ck_assert_msg(strstr(text, what) != NULL, "%s", text);
}

#endif
