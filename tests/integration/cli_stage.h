/* SPDX-License-Identifier: Apache-2.0
 *
 * The stage of the tests of streamerctl: what it prints, as text or as JSON. Each test is a process of its
 * own, so all of it is static.
 */
#ifndef TESTS_INTEGRATION_CLI_STAGE_H
#define TESTS_INTEGRATION_CLI_STAGE_H

#include "tests/lib/ctl.h"
#include "tests/lib/hang.h"
#include "tests/lib/stage.h"
#include "tests/lib/suite.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void begin(void)
{
        stage_begin(NULL);
}

/* Runs and checks the exit code; the error must be one line that begins with the program's name. */
static struct ctl run(int code, const char *const *args)
{
        struct ctl r;

        ctl_v(&r, stage.socket, args);
        ck_assert_msg(r.code == code, "%s: exit %d instead of %d: %s", args[0], r.code, code, r.err);
        if (code != 0) {
                char *newline = strchr(r.err, '\n');
                ck_assert_msg(strncmp(r.err, "streamerctl: ", 13) == 0, "%s", r.err);
                ck_assert_msg(code == 2 || (newline && !newline[1]), "more than one line: %s", r.err);
                ck_assert_str_eq(r.out, "");
        }
        return r;
}
#define RUN(code, ...) run((code), (const char *const[]){__VA_ARGS__, NULL})

static json_t *run_json(const char *const *args)
{
        struct ctl r = run(0, args);
        json_error_t error;
        json_t *o = json_loads(r.out, JSON_REJECT_DUPLICATES, &error);

        ck_assert_msg(o != NULL, "%s: %s: %s", args[0], error.text, r.out);
        return o;
}
#define JSON(...) run_json((const char *const[]){__VA_ARGS__, NULL})

/* An object must have these members, of these types. */
#define UNPACK(o, ...)                                                                                                 \
        do {                                                                                                           \
                json_error_t unpack_error;                                                                             \
                ck_assert_msg(json_unpack_ex((o), &unpack_error, 0, __VA_ARGS__) == 0, "%s: %s", unpack_error.text,    \
                              json_dumps((o), JSON_COMPACT));                                                          \
        } while (0)

#endif
