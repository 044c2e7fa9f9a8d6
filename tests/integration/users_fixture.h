/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of other users to `test_daemon`, each in a process of its own: 0 or a STREAMER_E*. The text of a failure
 * must contain `text` where it is not NULL.
 */
#pragma once

#include "tests/lib/fixture.h"
#include "tests/lib/run_as.h"

#define SOCKET_GROUP 0 /* that of the daemon */

/* What the process does, which inherits them. */
static const char *expected_text, *as_verb, *as_args, *as_source, *as_name;

static inline int expect_error(const streamer_client *c, int r)
{
        const char *text = streamer_last_error(c);
        if (r != 0 && expected_text && !strstr(text, expected_text))
                die("\"%s\" does not say \"%s\"", text, expected_text);
        return r;
}

static inline int do_as(uid_t uid, int (*fn)(void), const char *text)
{
        expected_text = text;
        int r = run_as(uid, SOCKET_GROUP, fn);
        expected_text = NULL;
        return r;
}

static inline int do_connect(void)
{
        streamer_connect_opts to = {.struct_size = sizeof(to), .socket = test_daemon.socket};
        streamer_client *c;
        return expect_error(NULL, streamer_connect(&to, &c));
}

static inline int do_attach(void)
{
        client_equals(client_open(&test_daemon), "witness", fixture_witness);
        return 0;
}

static inline int do_call(void)
{
        streamer_client *c = client_open(&test_daemon);
        return expect_error(c, client_call_code(c, as_verb, as_args));
}

static inline int call_as(uid_t uid, const char *the_verb, const char *the_args, const char *text)
{
        as_verb = the_verb;
        as_args = the_args;
        return do_as(uid, do_call, text);
}

/* A request about a model. */
static inline int model_call_as(uid_t uid, const char *the_verb, const char *the_model, const char *text)
{
        return call_as(uid, the_verb, format_text("{\"model\":\"%s\"}", the_model), text);
}

static inline int do_load(void)
{
        char text[1024];
        streamer_client *c = client_open(&test_daemon);
        return expect_error(c, client_load_result(c, as_source, as_name, text));
}

static inline int load_as(uid_t uid, const char *the_source, const char *the_name, const char *text)
{
        as_source = the_source;
        as_name = the_name;
        return do_as(uid, do_load, text);
}
