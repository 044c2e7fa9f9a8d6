/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests of streamerctl: checks of its text and JSON output.
 */
#pragma once

#include "tests/lib/streamerctl.h"
#include "tests/lib/fuse_file.h"
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

static inline bool wants_json(const char *const *args)
{
        for (; *args; args++)
                if (strcmp(*args, "--json") == 0 || strcmp(*args, "json") == 0)
                        return true;
        return false;
}

/* One object on one line: {"schema":1,"error":{"code","text","model"}}, without other members. */
static inline json_t *error_object(const struct ctl *r)
{
        json_error_t error;
        const char *code, *text;
        int schema;
        json_t *o = json_loads(r->err, JSON_REJECT_DUPLICATES, &error), *model;

        ck_assert_msg(o != NULL, "%s: %s", error.text, r->err);
        ck_assert_msg(strchr(r->err, '\n')[1] == '\0', "%s", r->err);
        ck_assert_msg(json_unpack_ex(o, &error, JSON_STRICT, "{s:i, s:{s:s, s:s, s:o}}", "schema", &schema, "error",
                                     "code", &code, "text", &text, "model", &model) == 0,
                      "%s: %s", error.text, r->err);
        ck_assert_int_eq(schema, 1);
        ck_assert(json_is_string(model) || json_is_null(model));
        return json_object_get(o, "error");
}

/* Runs and checks the exit code; the error must be one line that begins with the program's name, or one object. */
static inline struct ctl run(int code, const char *const *args)
{
        struct ctl r;
        ctl_v(&r, test_daemon.socket, args);
        ck_assert_msg(r.code == code, "%s: exit %d instead of %d: %s", args[0], r.code, code, r.err);
        if (code != 0 && wants_json(args)) {
                error_object(&r);
                ck_assert_str_eq(r.out, "");
        } else if (code != 0) {
                char *newline = strchr(r.err, '\n');
                ck_assert_msg(strncmp(r.err, "streamerctl: ", 13) == 0, "%s", r.err);
                ck_assert_msg(code == 2 || (newline && !newline[1]), "more than one line: %s", r.err);
                ck_assert_str_eq(r.out, "");
        }
        return r;
}
#define RUN(code, ...) run((code), (const char *const[]){__VA_ARGS__, NULL})

/* The output, or the error if there is one, contains this text. */
static inline void says(int code, const char *text, const char *const *args)
{
        struct ctl r = run(code, args);
        const char *said = code == 0 ? r.out : r.err;
        ck_assert_msg(strstr(said, text) != NULL, "no '%s' in: %s", text, said);
}
#define SAYS(code, text, ...) says((code), (text), (const char *const[]){__VA_ARGS__, NULL})

/* The output is this. */
#define PRINTS(expected, ...) ck_assert_str_eq(RUN(0, __VA_ARGS__).out, (expected))

static inline json_t *run_json(const char *const *args)
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
