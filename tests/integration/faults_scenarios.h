/* SPDX-License-Identifier: Apache-2.0
 *
 * The client scenarios during which faults_test makes calls of the daemon fail. Each continues as far as the daemon
 * permits, and checks that every error is one that the failure may cause.
 */
#ifndef TESTS_INTEGRATION_FAULTS_SCENARIOS_H
#define TESTS_INTEGRATION_FAULTS_SCENARIOS_H

#include "tests/lib/http_exchange.h"
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

#include <sys/socket.h>

static struct model *model;
static char *source, *url; /* url: NULL without a web server */
static char *metrics, *state;

/* ---- scenarios with failures ---- */

/* What the requests of a scenario failed with, for the process that made a call fail. */
static char *reported;
#define REPORTED_SIZE 65536

static inline void report(const char *text)
{
        size_t len = strlen(reported);
        snprintf(reported + len, REPORTED_SIZE - len, "%s\n", text);
}

/* A failure must be one of ours, in words. Lost connections count: the next request works. */
static inline bool named(streamer_client *c, int r)
{
        if (r >= 0)
                return true;
        ck_assert_msg(r >= STREAMER_EOS, "%d is no code of ours", r);
        ck_assert_msg(r != STREAMER_ETIMEOUT, "no answer: %s", streamer_last_error(c));
        ck_assert(strlen(streamer_last_error(c)) > 0);
        report(streamer_last_error(c));
        return false;
}

/* NULL: the failure has prevented it. */
static inline streamer_client *try_connect(void)
{
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = test_daemon.socket, .timeout_ms = 20000};
        streamer_client *c = NULL;
        return named(NULL, streamer_connect(&opts, &c)) ? c : NULL;
}

static inline bool load(streamer_client *c, const char *from, const char *verify)
{
        streamer_load_opts opts = {.struct_size = sizeof(opts), .source = from, .name = "victim", .verify = verify};
        streamer_progress progress = {.struct_size = sizeof(progress)};
        streamer_op *op;
        if (!named(c, streamer_load(c, &opts, &op)))
                return false;
        bool ok = named(c, streamer_op_wait(op, 20000, &progress));
        streamer_op_free(op);
        return ok;
}

/* Every returned byte is right, whichever call failed. */
static inline void look(streamer_client *c)
{
        streamer_lease *lease;
        streamer_tensor t = STREAMER_TENSOR_INIT;
        if (!named(c, streamer_attach(c, "victim", NULL, &lease)))
                return;
        for (size_t i = 0; i < model->n; i++)
                if (streamer_tensor_find(lease, model->tensors[i].name, &t) == 0)
                        ck_assert_msg(model_check(model, i, t.data), "%s is wrong", model->tensors[i].name);
        streamer_detach(lease);
}

static inline bool call(streamer_client *c, const char *verb, const char *args)
{
        char *reply = NULL;
        bool ok = named(c, streamer_call(c, verb, args, &reply));
        free(reply);
        return ok;
}

static inline void live(void)
{
        streamer_client *c = try_connect();
        if (c == NULL)
                return;
        if (load(c, source, "sha256")) {
                look(c);
                call(c, "show", "{\"model\":\"victim\",\"tensors\":true}");
                call(c, "verify", "{\"model\":\"victim\"}");
        }
        call(c, "ps", "{}");
        call(c, "status", "{}");
        call(c, "pin", "{\"model\":\"victim\"}");
        named(c, streamer_unload(c, "victim", 0));
        if (url != NULL && load(c, url, NULL))
                look(c);
        named(c, streamer_unload(c, "victim", 0));
        streamer_close(c);
}

/* ---- other functions ---- */

static inline void ask(const char *method, const char *page)
{
        struct http_exchange exchange;
        http_exchange_request(&exchange, metrics, method, page);
        if (exchange.status == 0)
                report("the connection was closed without an answer");
        else if (exchange.status >= 500)
                report(exchange.body);
        http_exchange_free(&exchange);
}

static inline void live_asked(void)
{
        static const char *const pages[] = {"/metrics", "/healthz", "/readyz", "/nothing"};
        for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
                ask(i == 0 ? "PUT" : "GET", pages[i]);
                ask("GET", pages[i]);
        }
        streamer_client *c = try_connect();
        if (c == NULL)
                return;
        char *root = format_text("{\"root\":\"%s\"}", fixture_root());
        call(c, "doctor", "{}");
        call(c, "doctor", root);
        free(root);
        streamer_close(c);
}

static inline void live_by_store(void)
{
        streamer_client *c = try_connect();
        if (c == NULL)
                return;
        ck_assert(!load(c, "s3://bucket/model.safetensors", NULL));
        ck_assert(!load(c, "s3://bucket/folder/", NULL));
        streamer_close(c);
}

/* ---- the other verbs ---- */

/* The next call of a client whose connection was lost connects, and claims the lease again. */
static inline void reclaim(streamer_client *c)
{
        streamer_lease *lease;
        if (!named(c, streamer_attach(c, "witness", NULL, &lease)))
                return;
        shutdown(client_socket(c), SHUT_RDWR);
        call(c, "ping", "{}");
        streamer_detach(lease);
}

static inline void live_verbs(void)
{
        static const struct {
                const char *verb, *args;
        } calls[] = {
                {"ping", "{}"},
                {"version", "{}"},
                {"list", "{}"},
                {"whoami", "{}"},
                {"config", "{}"},
                {"reload", "{}"},
                {"metrics", "{}"},
                {"probe", "{}"},
                {"show", "{\"model\":\"victim\",\"ended\":true}"},
                {"cancel", "{\"model\":\"victim\"}"},
                {"wait", "{\"model\":\"witness\"}"},
                {"unpin", "{\"model\":\"witness\"}"},
                {"keep_alive", "{\"model\":\"witness\",\"keep_alive_ms\":0}"},
                {"subscribe", "{\"model\":\"witness\"}"},
        };
        streamer_client *c = try_connect();
        char *json;
        void *data;
        uint64_t size;
        if (c == NULL)
                return;
        for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
                call(c, calls[i].verb, calls[i].args);
        call(c, "diff", format_text("{\"model\":\"witness\",\"source\":\"%s\"}", source));
        call(c, "load", format_text("{\"source\":\"%s\",\"dry_run\":true}", source));
        if (named(c, streamer_fetch_list(c, source, &json)))
                streamer_free(json);
        if (named(c, streamer_fetch(c, source, "SHA256SUMS", &data, &size)))
                streamer_free(data);
        reclaim(c);
        streamer_close(c);
}

/* Publishes a storage, or gives it up. */
static inline void publish(streamer_client *c, bool commits)
{
        const uint64_t bytes = 100000;
        const char *key[] = {"engine=1"};
        streamer_publish_opts opts = STREAMER_PUBLISH_OPTS_INIT;
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_publication *publication = NULL;
        streamer_lease *lease;
        void *data;
        opts.name = "published";
        opts.key = key;
        opts.n_key = 1;
        if (!named(c, streamer_publish_find(c, &opts, &found, &publication)))
                return;
        streamer_free(found.differs);
        if (publication == NULL) /* it is there: an earlier run could not unload it */
                return;
        if (named(c, streamer_publish_begin(publication, &bytes, 1)) &&
            named(c, streamer_publish_storage(publication, 0, &data))) {
                memset(data, 7, bytes);
                if (commits && named(c, streamer_publish_commit(publication, &lease))) {
                        streamer_detach(lease);
                        return;
                }
        }
        streamer_publish_abort(publication);
}

/* Each on a connection of its own, because a claim whose abort fails is held until its connection ends. */
static inline void live_published(void)
{
        for (int commits = 0; commits < 2; commits++) {
                streamer_client *c = try_connect();
                if (c == NULL)
                        return;
                publish(c, commits == 1);
                if (commits == 1)
                        named(c, streamer_unload(c, "published", 0));
                streamer_close(c);
        }
}

/* Changes are persisted; a failed write is retried soon. */
static inline bool is_written(void *unused)
{
        struct stat st;
        (void)unused;
        return stat(format_text("%s/state", state), &st) == 0;
}

/* Another priority each time, because the change may have been made although its reply was lost. */
static inline void live_remembered(void)
{
        streamer_client *c = try_connect();
        if (c == NULL)
                return;
        char *change = format_text("{\"model\":\"witness\",\"priority\":%u}", 1 + (unsigned)(clock_ns() / 1000 % 9999));
        unlink(format_text("%s/state", state));
        if (call(c, "set_priority", change))
                ck_assert(eventually(is_written, NULL, 20000));
        free(change);
        streamer_close(c);
}

#endif
