/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the S3 tests: a store with TLS and a proxy in front of it, and a daemon that is configured for all of
 * them.
 */
#ifndef TESTS_INTEGRATION_S3_FIXTURE_H
#define TESTS_INTEGRATION_S3_FIXTURE_H

#include "tests/integration/remote_fixture.h"
#include "tests/lib/endpoint.h"
#include "tests/lib/nginx.h"
#include "tests/lib/s3_store.h"
#include "tests/lib/suite.h"

static struct s3_store store;
static struct model *model;

static struct endpoint proxy;
static struct nginx tls;

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

/* Removes the quotes of ETags in lists, as some stores do. */
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
        endpoint_forward(request, reply, store.port);
        if (strstr(request->path, "proxy%2Fbare") != NULL)
                strip_quotes(reply);
}

/* A reverse proxy in front of the store, which passes the signed Host unchanged. */
static void start_tls(void)
{
        if (nginx_unavailable())
                return;
        nginx_start(&tls, suite_path("nginx"), suite_folder()); /* makes its certificates */
        nginx_stop(&tls);
        nginx_start_with(&tls, suite_path("nginx"),
                         nginx_tls_server(&tls, tls.https, store.port, "proxy_set_header Host $http_host;"), tls.https);
}

static void begin(void)
{
        s3_store_start(&store, "swift", suite_path("swift"));
        s3_store_do(&store, "bucket\tmodels");
        s3_store_do(&store, "bucket\tvirtual");
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
        fixture_begin((const char *const[]){"--config", config, "--device", "host=256MiB", "--block-size", "1MiB",
                                            "--log-level", "debug", NULL});
}

static void end(void)
{
        fixture_end();
        nginx_stop(&tls);
        s3_store_stop(&store);
}

/* ---- requests of the test ---- */

static void put_file(const char *key, const char *path)
{
        s3_store_do(&store, "put\tmodels\t%s\t%s", key, path);
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

static void assert_error_has(const char *what)
{
        ck_assert_msg(strstr(text, what) != NULL, "%s", text);
}

#endif
