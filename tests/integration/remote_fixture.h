/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests of remote sources: loads, and the error of the last one.
 */
#ifndef TESTS_INTEGRATION_REMOTE_FIXTURE_H
#define TESTS_INTEGRATION_REMOTE_FIXTURE_H

#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

static char text[1024]; /* of the last load that failed */

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
        if (code == STREAMER_EPERM || code == STREAMER_ENOENT) /* mostly not listed */
                streamer_unload(client, "fails", 0);
        else
                client_unload(client, "fails");
}

#endif
