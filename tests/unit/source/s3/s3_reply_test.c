/* SPDX-License-Identifier: Apache-2.0
 *
 * The parsing of lists.
 */
#include "tests/lib/suite.h"

#include "daemon/base/util.h"
#include "daemon/source/s3/s3_reply.h"

static struct error error;

static char *listed;

static int parse_text(char **next, const char *text)
{
        struct listing list = {.shown = "a list", .sidecars = true};
        int r = s3_page_parse(next, text, strlen(text), "p/", &list, &error);
        listed = format_text("%s", "");
        for (size_t i = 0; i < list.n; i++)
                listed = format_text("%s[%s %s %lu]", listed, list.v[i].name, list.v[i].tag,
                                     (unsigned long)list.v[i].bytes);
        return r;
}

static int parse_page(char **next, const char *inside)
{
        return parse_text(
                next, format_text("<?xml version='1.0'?><ListBucketResult xmlns='x'>%s</ListBucketResult>", inside));
}

TEST(a_page_has_its_keys_and_the_next_marker)
{
        char *next;
        ck_assert_int_eq(parse_page(&next,
                                    "<Prefix>p/</Prefix><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
                                    "<NextContinuationToken>1/+=</NextContinuationToken>"
                                    "<Contents><Key>p/a+b%2Bc%25</Key><ETag>&quot;e1&quot;</ETag><Size>5</Size>"
                                    "<Owner><ID>x</ID><Size>9</Size></Owner></Contents>"
                                    "<Contents><Size>18446744073709551615</Size><Key>p/%E4%B8%AD</Key></Contents>"
                                    "<Contents><Key>q/d</Key><Size>5</Size></Contents>"
                                    "<CommonPrefixes><Prefix>p/q/</Prefix></CommonPrefixes>"),
                         0);
        ck_assert_str_eq(listed, "[a b+c% \"e1\" 5][\xe4\xb8\xad  18446744073709551615]");
        ck_assert_str_eq(next, "1/+=");
}

TEST(unencoded_keys_are_used_literally)
{
        char *next;
        ck_assert_int_eq(
                parse_page(&next, "<Contents><Key>p/a+%41&amp;b</Key><ETag>e1</ETag><Size>1</Size></Contents>"), 0);
        ck_assert_str_eq(listed, "[a+%41&b \"e1\" 1]");
        ck_assert_ptr_null(next);
}

TEST(a_key_without_an_etag_has_its_time)
{
        static const char page[] = "<Contents><Key>p/a</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>%s"
                                   "<Size>1</Size></Contents>";
        char *next;
        ck_assert_int_eq(parse_page(&next, format_text(page, "")), 0);
        ck_assert_str_eq(listed, "[a 2024-01-01T00:00:00.000Z 1]");
        ck_assert_int_eq(parse_page(&next, format_text(page, "<ETag>&quot;&quot;</ETag>")), 0);
        ck_assert_str_eq(listed, "[a 2024-01-01T00:00:00.000Z 1]");
        ck_assert_int_eq(parse_page(&next, format_text(page, "<ETag>W/&quot;1&quot;</ETag>")), 0);
        ck_assert_str_eq(listed, "[a W/\"1\" 1]");
}

static const struct {
        const char *inside, *why;
} bad_pages[] = {
        {"<IsTruncated>true</IsTruncated>", "names no next page"},
        {"<Contents><Key>a</Key></Contents>", "missing"},
        {"<Contents><Size>1</Size></Contents>", "missing"},
        {"<Contents><Key>a</Key><Size>-1</Size></Contents>", "not a number"},
        {"<Contents><Key>a</Key><Size></Size></Contents>", "not a number"},
        {"<Contents><Key>a</Key><Size>18446744073709551616</Size></Contents>", "not a number"},
        {"<EncodingType>url</EncodingType><Contents><Key>%4</Key><Size>1</Size></Contents>", "percent"},
        {"<EncodingType>url</EncodingType><Contents><Key>a%00b</Key><Size>1</Size></Contents>", "percent"},
        {"<Contents><Key>a</Size></Contents>", "mismatched"},
};

TEST(an_inconsistent_page_is_refused, EACH(bad_pages))
{
        char *next;
        FAILS_WITH(error, parse_page(&next, bad_pages[_i].inside), STREAMER_EFAILED, bad_pages[_i].why);
        ck_assert_ptr_null(next);
}

TEST(an_invalid_list_is_refused)
{
        char text[] = "<Error><Code>x</Code></Error>";
        char *next;
        FAILS_SAYING(error, parse_text(&next, text), STREAMER_EFAILED,
                     "the store's list of keys is not valid: it is something else");
}
