/* SPDX-License-Identifier: Apache-2.0
 *
 * The stage of the tests of sources that are no files: one client, what it was told last, and the models that it
 * loads. Each test is a process of its own, so all of it is static.
 */
#ifndef TESTS_INTEGRATION_REMOTE_STAGE_H
#define TESTS_INTEGRATION_REMOTE_STAGE_H

#include "tests/lib/stage.h"
#include "tests/lib/suite.h"

#include <string.h>

static streamer_client *client;
static char text[1024]; /* of the last load that failed */

static inline void connect_client(void)
{
        client = client_open(&stage);
}

static inline void check_stage(void)
{
        streamer_close(client);
        stage_still_serves();
}

/* Under its default name, which is this one. */
static inline void load_equals(const char *source, const char *name, const struct model *m)
{
        client_load(client, source, NULL);
        client_equals(client, name, m);
        client_unload(client, name);
}

static inline void assert_fails(const char *source, int code, const char *what)
{
        ck_assert_int_eq(client_load_result(client, source, "fails", text), code);
        ck_assert_msg(strstr(text, what) != NULL, "%s", text);
        client_unload(client, "fails");
}

#endif
