/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests of a server's answers: a server that gives the same answer to each request, and sources that
 * read from it by HTTP.
 */
#ifndef TESTS_UNIT_ANSWER_FIXTURE_H
#define TESTS_UNIT_ANSWER_FIXTURE_H

#include "tests/lib/endpoint.h"
#include "tests/lib/suite.h"

#include "daemon/base/log/log.h"
#include "daemon/io/http/http.h"
#include "daemon/source/source.h"

#define SECOND UINT64_C(1000000000)

static struct endpoint server;
static struct sources sources;
static struct error error;

/* The answer; changed by tests. */
static int status; /* 0: 200 */
static const char *body;

static void answer(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        (void)e, (void)request;
        reply->status = status;
        reply->body = format_text("%s", body);
}

static void start_server(void)
{
        const struct http_opts opts = {.connect_timeout_ns = 60 * SECOND,
                                       .stall_ns = 60 * SECOND,
                                       .backoff_ns = SECOND / 1000,
                                       .retry_after_ns = SECOND,
                                       .tries = 2,
                                       .threads = 1};
        log_set_level(LOG_LEVEL_ERROR);
        server.answer = answer;
        endpoint_start(&server);
        ck_assert_int_eq(http_new(&sources.http, &opts, &error), 0);
}

#endif
