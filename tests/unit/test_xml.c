/* SPDX-License-Identifier: Apache-2.0
 *
 * The pull parser of services' answers, and what is made of lists and errors.
 */
#include "tests/lib/suite.h"

#include "daemon/base/util.h"
#include "daemon/source/s3_reply.h"
#include "daemon/source/xml.h"

#include <string.h>

/* "<name" and ">name:text" for each event, and at the end "." or "!why". */
static char *events(const char *text, size_t size)
{
        struct xml xml;
        enum xml_event event;
        char *copy = must_alloc(size + 1), *out = format_text("%s", "");
        memcpy(copy, text, size);
        xml_init(&xml, copy, size);
        while ((event = xml_next(&xml)) == XML_OPEN || event == XML_CLOSE)
                out = event == XML_OPEN ? format_text("%s<%s", out, xml.name)
                                        : format_text("%s>%s:%s", out, xml.name, xml.text);
        return event == XML_END ? format_text("%s.", out) : format_text("%s!%s", out, xml.why);
}

static const struct {
        const char *text, *events;
} valid[] = {
        {"<a/>", "<a>a:."},
        {"<?xml version=\"1.0\"?>\n<a>x</a>\n", "<a>a:x."},
        {"<a xmlns=\"http://s3/\"><b>1</b><b>2</b></a>", "<a<b>b:1<b>b:2>a:."},
        {"<a x='>'>1</a>", "<a>a:1."},
        {"<a ><b /></a >", "<a<b>b:>a:."},
        {"<n:a xmlns:n='u'>1</n:a>", "<a>a:1."},
        {"<a>&lt;&gt;&amp;&quot;&apos;</a>", "<a>a:<>&\"'."},
        {"<a>&#65;&#x42;&#xe9;&#x4e2d;&#x1f600;</a>", "<a>a:AB\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80."},
        {"<a>1<!-- <b> -->2<?pi?>3<![CDATA[<&>]]>4</a>", "<a>a:123<&>4."},
        {"<a><b>1</b>tail</a>", "<a<b>b:1>a:tail."},
};

START_TEST(valid_xml_is_read)
{
        ck_assert_str_eq(events(valid[_i].text, strlen(valid[_i].text)), valid[_i].events);
}
END_TEST

static const struct {
        const char *text, *why;
} invalid[] = {
        {"", "it ends too early"},
        {"<a>", "it ends too early"},
        {"<a", "a tag without an end"},
        {"<a><b</a>", "a tag without an end"},
        {"<a></b>", "a tag that closes another element"},
        {"</a>", "a tag that nothing opened"},
        {"<a/><b/>", "a second root"},
        {"x<a/>", "text outside the root"},
        {"<a/>x", "text outside the root"},
        {"< >", "a tag without a name"},
        {"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "a document type"},
        {"<a>&b;</a>", "an entity that is not known"},
        {"<a>&#0;</a>", "an entity that is not known"},
        {"<a>&#xd800;</a>", "an entity that is not known"},
        {"<a>&#x110000;</a>", "an entity that is not known"},
        {"<a>&#1;</a>", "an entity that is not known"},
        {"<a>&#;</a>", "an entity that is not known"},
        {"<a>& </a>", "an entity that is not known"},
        {"<a>&#99999999999;</a>", "an entity that is not known"},
        {"<a><!-- </a>", "a comment without an end"},
        {"<a><![CDATA[ </a>", "a CDATA section without an end"},
        {"<?xml <a/>", "an instruction without an end"},
        {"<a>\xff</a>", "not UTF-8, or a NUL byte"},
};

START_TEST(invalid_xml_is_refused_with_the_reason)
{
        const char *got = events(invalid[_i].text, strlen(invalid[_i].text));
        ck_assert_str_eq(strchr(got, '!') + 1, invalid[_i].why);
}
END_TEST

START_TEST(a_nul_is_refused)
{
        ck_assert_str_eq(events("<a>\0</a>", 8), "!not UTF-8, or a NUL byte");
}
END_TEST

START_TEST(depth_is_bounded)
{
        char text[512] = "";
        for (int i = 0; i < XML_DEPTH; i++)
                strcat(text, "<a>");
        ck_assert_ptr_null(strstr(events(text, strlen(text)), "levels"));
        strcat(text, "<a>");
        ck_assert_ptr_nonnull(strstr(events(text, strlen(text)), "!too many levels"));
}
END_TEST

/* ---- errors ---- */

START_TEST(an_error_tells_code_request_and_region)
{
        char text[] = "<?xml version='1.0'?><Error><Code>AuthorizationHeaderMalformed</Code><Message>wrong "
                      "region</Message><Region>eu-west-3</Region><RequestId>tx1</RequestId></Error>";
        struct s3_fault fault;
        s3_fault_parse(&fault, text, strlen(text));
        ck_assert_str_eq(fault.code, "AuthorizationHeaderMalformed");
        ck_assert_str_eq(fault.message, "wrong region");
        ck_assert_str_eq(fault.request_id, "tx1");
        ck_assert_str_eq(fault.region, "eu-west-3");
}
END_TEST

START_TEST(an_error_that_is_no_xml_tells_nothing)
{
        char text[] = "<html><br>502";
        struct s3_fault fault;
        s3_fault_parse(&fault, text, strlen(text));
        ck_assert_str_eq(fault.code, "");
        ck_assert_str_eq(fault.request_id, "");
}
END_TEST

/* ---- lists ---- */

static char *listed;

static int collect(void *context, const struct s3_entry *entry, struct error *error)
{
        (void)context;
        (void)error;
        listed = format_text("%s[%s %s %lu]", listed, entry->key, entry->etag, (unsigned long)entry->size);
        return 0;
}

static int parse_page(struct s3_page *page, const char *inside, struct error *error)
{
        char *text = format_text("<?xml version='1.0'?><ListBucketResult xmlns='x'>%s</ListBucketResult>", inside);
        listed = format_text("%s", "");
        return s3_page_parse(page, text, strlen(text), collect, NULL, error);
}

START_TEST(a_page_gives_its_keys_and_the_next)
{
        struct s3_page page;
        struct error error;
        ck_assert_int_eq(parse_page(&page,
                                    "<Prefix>p/</Prefix><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
                                    "<NextContinuationToken>1/+=</NextContinuationToken>"
                                    "<Contents><Key>p/a+b%2Bc%25</Key><ETag>&quot;e1&quot;</ETag><Size>5</Size>"
                                    "<Owner><ID>x</ID><Size>9</Size></Owner></Contents>"
                                    "<Contents><Size>18446744073709551615</Size><Key>%E4%B8%AD</Key></Contents>"
                                    "<CommonPrefixes><Prefix>p/q/</Prefix></CommonPrefixes>",
                                    &error),
                         0);
        ck_assert_str_eq(listed, "[p/a b+c% \"e1\" 5][\xe4\xb8\xad  18446744073709551615]");
        ck_assert_str_eq(page.next, "1/+=");
        ck_assert_uint_eq(page.n, 2);
}
END_TEST

START_TEST(keys_of_a_store_that_does_not_encode_are_taken_as_they_are)
{
        struct s3_page page;
        struct error error;
        ck_assert_int_eq(parse_page(&page, "<Contents><Key>a+%41&amp;b</Key><Size>1</Size></Contents>", &error), 0);
        ck_assert_str_eq(listed, "[a+%41&b  1]");
        ck_assert_ptr_null(page.next);
}
END_TEST

static const struct {
        const char *inside, *why;
} bad_pages[] = {
        {"<IsTruncated>true</IsTruncated>", "does not tell how to go on"},
        {"<Contents><Key>a</Key></Contents>", "missing"},
        {"<Contents><Size>1</Size></Contents>", "missing"},
        {"<Contents><Key>a</Key><Size>-1</Size></Contents>", "not a number"},
        {"<Contents><Key>a</Key><Size></Size></Contents>", "not a number"},
        {"<Contents><Key>a</Key><Size>18446744073709551616</Size></Contents>", "not a number"},
        {"<EncodingType>url</EncodingType><Contents><Key>%4</Key><Size>1</Size></Contents>", "percent"},
        {"<EncodingType>url</EncodingType><Contents><Key>a%00b</Key><Size>1</Size></Contents>", "percent"},
        {"<Contents><Key>a</Size></Contents>", "closes another"},
};

START_TEST(a_page_that_makes_no_sense_is_refused)
{
        struct s3_page page;
        struct error error = {0};
        ck_assert_int_eq(parse_page(&page, bad_pages[_i].inside, &error), STREAMER_EFAILED);
        ck_assert_msg(strstr(error.text, bad_pages[_i].why) != NULL, "%s", error.text);
        ck_assert_ptr_null(page.next);
}
END_TEST

START_TEST(what_is_no_list_is_refused)
{
        char text[] = "<Error><Code>x</Code></Error>";
        struct s3_page page;
        struct error error = {0};
        ck_assert_int_eq(s3_page_parse(&page, text, strlen(text), collect, NULL, &error), STREAMER_EFAILED);
}
END_TEST

int main(void)
{
        suite_begin("xml");
        TCase *xml = suite_group("xml", NULL, NULL, 20);
        LOOP(xml, valid_xml_is_read, valid);
        LOOP(xml, invalid_xml_is_refused_with_the_reason, invalid);
        tcase_add_test(xml, a_nul_is_refused);
        tcase_add_test(xml, depth_is_bounded);
        TCase *replies = suite_group("replies", NULL, NULL, 20);
        tcase_add_test(replies, an_error_tells_code_request_and_region);
        tcase_add_test(replies, an_error_that_is_no_xml_tells_nothing);
        tcase_add_test(replies, a_page_gives_its_keys_and_the_next);
        tcase_add_test(replies, keys_of_a_store_that_does_not_encode_are_taken_as_they_are);
        LOOP(replies, a_page_that_makes_no_sense_is_refused, bad_pages);
        tcase_add_test(replies, what_is_no_list_is_refused);
        return suite_run();
}
