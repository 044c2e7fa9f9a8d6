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

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct model *model;
static char *source, *url; /* url: NULL without a web server */
static char *metrics, *state;

/* ---- scenarios with failures ---- */

/* A failure must be one of ours, in words. Lost connections count: the next request works. */
static inline bool named(streamer_client *c, int r)
{
        if (r >= 0)
                return true;
        ck_assert_msg(r >= STREAMER_EOS, "%d is no code of ours", r);
        ck_assert_msg(r != STREAMER_ETIMEOUT, "no answer: %s", streamer_last_error(c));
        ck_assert(strlen(streamer_last_error(c)) > 0);
        return false;
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
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = test_daemon.socket, .timeout_ms = 20000};
        streamer_client *c;
        if (streamer_connect(&opts, &c) < 0)
                return;
        if (load(c, source, "sha256")) {
                look(c);
                call(c, "show", "{\"model\":\"victim\",\"tensors\":true}");
                call(c, "verify", "{\"model\":\"victim\"}");
        }
        call(c, "ps", "{}");
        call(c, "status", "{}");
        call(c, "pin", "{\"model\":\"victim\"}");
        streamer_unload(c, "victim", 0);
        if (url != NULL && load(c, url, NULL))
                look(c);
        streamer_unload(c, "victim", 0);
        streamer_close(c);
}

/* ---- other functions ---- */

static inline void live_asked(void)
{
        static const char *const pages[] = {"/metrics", "/healthz", "/readyz", "/nothing"};
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = test_daemon.socket, .timeout_ms = 20000};
        streamer_client *c;
        struct http_exchange exchange;
        for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
                http_exchange_request(&exchange, metrics, i == 0 ? "PUT" : "GET", pages[i]);
                http_exchange_request(&exchange, metrics, "GET", pages[i]);
                http_exchange_free(&exchange);
        }
        if (streamer_connect(&opts, &c) < 0)
                return;
        char *root = format_text("{\"root\":\"%s\"}", fixture_root());
        call(c, "doctor", "{}");
        call(c, "doctor", root);
        free(root);
        streamer_close(c);
}

static inline void live_by_store(void)
{
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = test_daemon.socket, .timeout_ms = 20000};
        streamer_client *c;
        if (streamer_connect(&opts, &c) < 0)
                return;
        ck_assert(!load(c, "s3://bucket/model.safetensors", NULL));
        ck_assert(!load(c, "s3://bucket/folder/", NULL));
        streamer_close(c);
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
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = test_daemon.socket, .timeout_ms = 20000};
        streamer_client *c;
        if (streamer_connect(&opts, &c) < 0)
                return;
        char *change = format_text("{\"model\":\"witness\",\"priority\":%u}", 1 + (unsigned)(clock_ns() / 1000 % 9999));
        unlink(format_text("%s/state", state));
        if (call(c, "set_priority", change))
                ck_assert(eventually(is_written, NULL, 20000));
        free(change);
        streamer_close(c);
}

#endif
