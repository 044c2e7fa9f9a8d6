/* SPDX-License-Identifier: Apache-2.0
 *
 * What reaches a terminal or a log as it is, and the escapes of the rest: of the library, and so of streamerctl.
 */
#include "streamer/client.h"
#include "tests/lib/suite.h"

static const struct {
        const char *text, *printable;
} texts[] = {
        {"", ""},
        {"model-7 \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "model-7 \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"a\tb\x1b[2J\x7f", "a\\x09b\\x1b[2J\\x7f"},
        {"\xc2\x9b"
         "2J",
         "\\xc2\\x9b"
         "2J"},
        {"\xc2\xa0", "\xc2\xa0"},
        {"prod\xe2\x80\xae"
         "flow",
         "prod\\xe2\\x80\\xae"
         "flow"},
        {"\xe2\x80\xa7\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaa\xe2\x80\xaf",
         "\xe2\x80\xa7\\xe2\\x80\\xa8\\xe2\\x80\\xa9\\xe2\\x80\\xaa\xe2\x80\xaf"},
        {"\xe2\x81\xa5\xe2\x81\xa6\xe2\x81\xa9\xe2\x81\xaa", "\xe2\x81\xa5\\xe2\\x81\\xa6\\xe2\\x81\\xa9\xe2\x81\xaa"},
        {"\xd8\x9b\xd8\x9c\xe2\x80\x8d\xe2\x80\x8e\xe2\x80\x8f\xe2\x80\x90",
         "\xd8\x9b\\xd8\\x9c\xe2\x80\x8d\\xe2\\x80\\x8e\\xe2\\x80\\x8f\xe2\x80\x90"},
        {"\xff\xc3", "\\xff\\xc3"},
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"},
        {"\xe2\x82", "\\xe2\\x82"},
};

TEST(a_text_is_printable, EACH(texts))
{
        char *made = streamer_printable(texts[_i].text);
        ck_assert_str_eq(made, texts[_i].printable);
        streamer_free(made);
}

TEST(no_text_is_an_empty_one)
{
        char *made = streamer_printable(NULL);
        ck_assert_str_eq(made, "");
        streamer_free(made);
}
