/* SPDX-License-Identifier: Apache-2.0
 *
 * XML of services.
 */
#include "tests/lib/suite.h"

#include "daemon/source/store/xml.h"

/* "depth name:text " for each element, and at the end "." or "!why". */
static char *elements(const char *text, size_t size)
{
        struct xml xml;
        char *seen = format_text("%s", "");
        xml_init(&xml, text, size);
        for (size_t i = 0; i < xml.n; i++)
                seen = format_text("%s%u %s:%s ", seen, xml.elements[i].depth, xml.elements[i].name,
                                   xml.elements[i].text);
        seen = format_text("%s%s%s", seen, xml.why == NULL ? "." : "!", xml.why ?: "");
        return seen;
}

static const struct {
        const char *text, *elements;
} valid[] = {
        {"<?xml version=\"1.0\"?>\n<a>x</a>\n", "0 a:x ."},
        {"<n:a xmlns:n='u'><b>1</b><b />tail</n:a>", "1 b:1 1 b: 0 a:tail ."},
        {"<a>&lt;&gt;&amp;&quot;&apos;&#65;&#x4e2d;&#x1f600;</a>", "0 a:<>&\"'A\xe4\xb8\xad\xf0\x9f\x98\x80 ."},
        {"<a>1<!-- <b> -->2<?pi?>3<![CDATA[<&>]]>4</a>", "0 a:123<&>4 ."},
};

TEST(valid_xml_is_read, EACH(valid))
{
        ck_assert_str_eq(elements(valid[_i].text, strlen(valid[_i].text)), valid[_i].elements);
}

static const char *const invalid[] = {
        "",           "<a>",         "<a></b>",     "<a/><b/>",
        "<a>&b;</a>", "<a>&#1;</a>", "<a>\xff</a>", "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
};

TEST(invalid_xml_is_refused, EACH(invalid))
{
        const char *got = elements(invalid[_i], strlen(invalid[_i]));
        ck_assert_ptr_nonnull(strchr(got, '!'));
        ck_assert_str_ne(strchr(got, '!'), "!");
}

TEST(a_document_type_is_refused_with_the_reason)
{
        ck_assert_str_eq(elements("<!DOCTYPE a><a/>", 16), "!a document type");
}

TEST(what_precedes_a_fault_is_read)
{
        const char text[] = "<a><b>1</b><c>2</d></a>";
        ck_assert_str_eq(elements(text, strlen(text)), "1 b:1 !mismatched tag");
}

TEST(a_nul_is_refused)
{
        ck_assert_ptr_nonnull(strchr(elements("<a>\0</a>", 8), '!'));
}

TEST(the_number_of_elements_is_bounded)
{
        char *text = must_alloc(XML_ELEMENTS * 4 + 8), *to = stpcpy(text, "<a>");
        struct xml xml;
        for (unsigned i = 0; i < XML_ELEMENTS; i++)
                to = stpcpy(to, "<b/>");
        strcpy(to, "</a>");
        xml_init(&xml, text, strlen(text));
        ck_assert_uint_eq(xml.n, XML_ELEMENTS);
        ck_assert_str_eq(xml.why, "too many elements");
}
