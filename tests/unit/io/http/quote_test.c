/* SPDX-License-Identifier: Apache-2.0
 *
 * What a server says, as it is quoted: without the secrets of the request that it repeats.
 */
#include "tests/lib/suite.h"

#include "daemon/base/util.h"
#include "daemon/io/http/transfer.h"

static const struct {
        const char *query, *said, *quoted;
} rows[] = {
        /* Queries of URLs. */
        {NULL, "<Resource>/m.safetensors?q=S3CRET</Resource>", "<Resource>/m.safetensors</Resource>"},
        {NULL, "{\"path\": \"/m?q=S3CRET&amp;x=1\"}", "{\"path\": \"/m\"}"},
        {NULL, "no https://host/m?S3CRET here, nor /x?y=1", "no https://host/m here, nor /x"},
        {NULL, "/m?a=1?b=S3CRET", "/m"},
        /* Questions, and what begins so. */
        {NULL, "Did you mean this? Or that?", "Did you mean this? Or that?"},
        {NULL, "<?xml version=\"1.0\"?><Error/>", "<?xml version=\"1.0\"?><Error/>"},
        {NULL, "", ""},
        {NULL, "?", "?"},
        /* Values, wherever they are. */
        {"q=S3CRET", "the key S3CRET is wrong, S3CRET", "the key ... is wrong, ..."},
        {"S3CRET", "the key S3CRET is wrong", "the key ... is wrong"},
        {"a=first&b=second", "secondfirst, first", "..., ..."},
        {"a=S3CRET&b=S3CRETS", "S3CRETS", "..."},
        {"a=one-two&b=two-three", "one-two-three", "..."},
        /* As the server encodes or decodes them. */
        {"q=S3%2fCR%2BET", "S3/CR+ET S3%2FCR%2BET S3%2fCR%2BET", "... ... ..."},
        {"q=S3+CRET", "S3 CRET S3+CRET S3%20CRET", "... ... ..."},
        {"q=S3/CRET", "%2Fm%3Fq%3DS3%2FCRET", "%2Fm%3Fq%3D..."},
        {"q=S3CRET%", "S3CRET%", "..."},
        /* Cut where the text ends. */
        {"q=S3CRETS3CRET", "the key S3CRETS3C", "the key ..."},
        /* What is no secret. */
        {"x=1&y=yes&=&&z=", "1 of yes", "1 of yes"},
        {"q=value#S3CRET", "S3CRET is a fragment, value is not", "S3CRET is a fragment, ... is not"},
};

TEST(secrets_of_a_request_are_not_quoted, EACH(rows))
{
        char *text = format_text("%s", rows[_i].said);
        http_quote(text, &rows[_i].query, 1);
        ck_assert_str_eq(text, rows[_i].quoted);
}

TEST(each_query_counts)
{
        const char *const queries[] = {"a=S3CRET", NULL, "b=HOPSECRET"};
        char *text = format_text("S3CRET, HOPSECRET");
        http_quote(text, queries, ARRAY_SIZE(queries));
        ck_assert_str_eq(text, "..., ...");
}
