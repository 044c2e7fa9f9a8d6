/* SPDX-License-Identifier: Apache-2.0
 *
 * Redacted sources contain no secret, and sources without secrets are complete.
 */
#include "daemon/base/text/secret.h"
#include "daemon/serve/access/role.h"
#include "daemon/source/source.h"
#include "tests/lib/suite.h"

static const struct {
        const char *source, *shown;
} sources[] = {
        {"/srv/a?b#c@d", "/srv/a?b#c@d"},
        {"/srv/x://u:p@h/y", "/srv/x://u:p@h/y"},
        {"org/name@rev", "org/name@rev"},
        {"hf://org/name@rev", "hf://org/name@rev"},
        {"s3://bucket/a@b", "s3://bucket/a@b"},
        {"s3://id:secret@bucket/a", "s3://bucket/a"},
        {"https://host/x.safetensors", "https://host/x.safetensors"},
        {"https://host/x?X-Amz-Signature=secret", "https://host/x"},
        {"https://host?secret", "https://host"},
        {"https://host/x#secret", "https://host/x"},
        {"https://me:secret@host:81/@x", "https://host:81/@x"},
        {"https://me@home:secret@host/x", "https://host/x"},
        {"HTTPS://me:secret@host/x?secret", "HTTPS://host/x"},
        {"ftp://me:secret@host", "ftp://host"},
        {"", ""},
};

TEST(a_source_without_its_secrets, EACH(sources))
{
        char shown[REDACTED_SOURCE];
        redact_source(shown, sources[_i].source);
        ck_assert_str_eq(shown, sources[_i].shown);
        char *whole = redact_source_new(sources[_i].source);
        ck_assert_str_eq(whole, sources[_i].shown);
}

TEST(a_long_source_is_cut)
{
        char shown[REDACTED_SOURCE], text[4096] = "https://me:secret@host/";
        memset(text + strlen(text), 'a', 4000);
        redact_source(shown, text);
        ck_assert_uint_eq(strlen(shown), REDACTED_SOURCE - 1);
        ck_assert(strncmp(shown, "https://host/aaa", 16) == 0);
        char *whole = redact_source_new(text);
        ck_assert_uint_eq(strlen(whole), strlen("https://host/") + 4000);
}

static const char *const refused[] = {
        "HTTPS://me:secret@host/x?secret", "https://me:secret@host/x", "ftp://me:secret@h/",
        "https://host/folder/?secret",     "s3://id:secret@bucket/x",  "hf://me:secret@org/name"};

TEST(refusals_contain_no_secrets, EACH(refused))
{
        struct error error = {0};
        char *out = NULL;
        ck_assert_int_lt(source_canonical(refused[_i], &out, &error), 0);
        ck_assert_msg(strstr(error.text, "secret") == NULL, "%s", error.text);
}

TEST(refused_sources_are_reported_without_secrets)
{
        struct role_rule rule = {.buckets = {.given = true}};
        const struct roles roles = {.rules = &rule, .n = 1, .given = true};
        struct role_grant grant = {.rule = &rule, .roles = &roles};
        struct error error = {0};
        FAILS_WITH(error, role_check_source(&grant, "https://host/x?secret", &error), STREAMER_EPERM,
                   "https://host/x: below none");
}
