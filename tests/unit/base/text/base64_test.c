/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/text/base64.h"

#include "tests/lib/suite.h"

static const struct {
        const char *text, *bytes; /* NULL: refused */
        enum base64_form form;
} cases[] = {
        {"", "", BASE64_STANDARD},
        {"Zg==", "f", BASE64_STANDARD},
        {"Zm8=", "fo", BASE64_STANDARD},
        {"Zm9v", "foo", BASE64_STANDARD},
        {"Zm9vYmFy", "foobar", BASE64_STANDARD},
        {"+/+/", "\xfb\xff\xbf", BASE64_STANDARD},
        {"-_-_", "\xfb\xff\xbf", BASE64_RELAXED},
        {"+/+/", "\xfb\xff\xbf", BASE64_RELAXED},
        {"Zg", "f", BASE64_RELAXED},
        {"Zm8", "fo", BASE64_RELAXED},
        {"Zg==", "f", BASE64_RELAXED},
        {"Zg", NULL, BASE64_STANDARD},
        {"-_-_", NULL, BASE64_STANDARD},
        {"Zg=", NULL, BASE64_RELAXED},
        {"Z", NULL, BASE64_RELAXED},
        {"Z===", NULL, BASE64_RELAXED},
        {"====", NULL, BASE64_RELAXED},
        {"Zh==", NULL, BASE64_STANDARD}, /* its last bits are not zero */
        {"Zm9=", NULL, BASE64_STANDARD},
        {"Zg==Zg==", NULL, BASE64_STANDARD},
        {"Zm 9v", NULL, BASE64_RELAXED},
        {"Zm9v\n", NULL, BASE64_STANDARD},
};

TEST(base64_is_decoded_in_place, EACH(cases))
{
        char text[32];
        size_t n = 99;
        const char *bytes = cases[_i].bytes;
        strcpy(text, cases[_i].text);
        ck_assert_int_eq(base64_decode(text, strlen(text), cases[_i].form, &n), bytes != NULL);
        if (bytes != NULL) {
                ck_assert_uint_eq(n, strlen(bytes));
                ck_assert_mem_eq(text, bytes, n);
        } else {
                ck_assert_uint_eq(n, 99);
        }
}
