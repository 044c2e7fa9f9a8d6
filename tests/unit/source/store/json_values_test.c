/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON documents as values by path.
 */
#include "tests/lib/suite.h"

#include "daemon/source/store/json_values.h"

static struct json_values values;

static bool read_text(const char *text)
{
        return json_values_init(&values, format_text("%s", text), strlen(text));
}

TEST(scalars_are_found_by_their_paths)
{
        ck_assert(read_text(
                "{\"a\": {\"b\": [1, \"x\", {\"c\": true}]}, \"d\": \"e\\nf\", \"n\": null, \"empty\": \"\"}"));
        ck_assert_str_eq(json_values_get(&values, "a.b.0"), "1");
        ck_assert_str_eq(json_values_get(&values, "a.b.1"), "x");
        ck_assert_str_eq(json_values_get(&values, "a.b.2.c"), "true");
        ck_assert_str_eq(json_values_get(&values, "d"), "e\nf");
        ck_assert_str_eq(json_values_below(&values, "a.b", "1"), "x");
        ck_assert_str_eq(json_values_below(&values, "", "d"), "e\nf");
        ck_assert_ptr_null(json_values_get(&values, "n"));
        ck_assert_ptr_null(json_values_get(&values, "empty"));
        ck_assert_ptr_null(json_values_get(&values, "a"));
        json_values_deinit(&values);
}

TEST(numbers_may_be_texts)
{
        ck_assert(read_text(
                "{\"a\": 3599, \"b\": \"1790000000\", \"c\": \"soon\", \"d\": -1, \"e\": 99999999999999999999}"));
        ck_assert_uint_eq(json_values_number(&values, "a"), 3599);
        ck_assert_uint_eq(json_values_number(&values, "b"), 1790000000);
        ck_assert_uint_eq(json_values_number(&values, "c"), 0);
        ck_assert_uint_eq(json_values_number(&values, "d"), 0);
        ck_assert_uint_eq(json_values_number(&values, "e"), 0);
        ck_assert_uint_eq(json_values_number(&values, "f"), 0);
        json_values_deinit(&values);
}

static const char *const invalid[] = {
        "",
        "[]",
        "\"a\"",
        "{\"a\":1,\"a\":2}",
        "{\"a\":1}x",
        "{\"a\":",
        "{\"a\":[[[[[[[[[[1]]]]]]]]]]}",
        "{\"a\":\"\xff\"}",
};

TEST(what_is_no_small_object_is_refused, EACH(invalid))
{
        ck_assert(!read_text(invalid[_i]));
        json_values_deinit(&values);
}

TEST(the_number_of_values_is_bounded)
{
        char *text = must_alloc(16 * JSON_VALUES_MAX), *to = stpcpy(text, "{\"a\":[0");
        for (unsigned i = 1; i < JSON_VALUES_MAX; i++)
                to = stpcpy(to, ",0");
        strcpy(to, "]}");
        ck_assert(read_text(text));
        json_values_deinit(&values);
        strcpy(to, ",0]}");
        ck_assert(!read_text(text));
        json_values_deinit(&values);
}
