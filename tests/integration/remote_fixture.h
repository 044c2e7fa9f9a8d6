/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests of sources: loads that succeed, fail and are verified, and files.
 */
#pragma once

#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

/* Under its default name, which is this one. */
static inline void load_equals(const char *source, const char *name, const struct model *m)
{
        client_load(client, source, NULL);
        client_equals(client, name, m);
        client_unload(client, name);
}

static inline void assert_fails(const char *source, int code, const char *what)
{
        client_load_fails(client, source, "fails", code, what);
        int r = streamer_unload(client, "fails", 0);
        if (code != STREAMER_EPERM && code != STREAMER_ENOENT) /* mostly not listed */
                client_ok(client, r, "unload");
}

/* Loads with a check of the SHA-256, which succeeds. */
static inline void assert_verified(const char *source, const struct model *m)
{
        char text[1024];
        ck_assert_msg(client_load_sha256(client, source, "verified", text) == 0, "%s", text);
        client_equals(client, "verified", m);
        client_unload(client, "verified");
}

/* Fails because of its SHA-256. */
static inline void assert_not_verified(const char *source, const char *what)
{
        char text[1024];
        ck_assert_int_eq(client_load_sha256(client, source, "verified", text), STREAMER_EFAILED);
        ck_assert_msg(strstr(text, what) != NULL, "%s", text);
        client_unload(client, "verified");
}

/* ---- files beside the weights ---- */

static inline void assert_fetches(const char *source, const char *file, const void *bytes, size_t n)
{
        void *data = NULL;
        uint64_t size = 0;
        client_ok(client, streamer_fetch(client, source, file, &data, &size), file);
        ck_assert_uint_eq(size, n);
        ck_assert_mem_eq(data, bytes, n);
        ck_assert_int_eq(((const char *)data)[n], 0);
}

static inline void assert_fetches_text(const char *source, const char *file, const char *content)
{
        assert_fetches(source, file, content, strlen(content));
}

static inline void assert_refuses(const char *source, const char *file, int code, const char *what)
{
        void *data = NULL;
        uint64_t size;
        int r = streamer_fetch(client, source, file, &data, &size);
        const char *said = streamer_last_error(client);
        ck_assert_msg(r == code && strstr(said, what), "%s, %s: %d, %s", source, file, r, said);
        ck_assert_ptr_null(data);
}

static inline void assert_lists(const char *source, const char *list)
{
        char *json;
        client_ok(client, streamer_fetch_list(client, source, &json), "list");
        ck_assert_str_eq(json, list);
}
