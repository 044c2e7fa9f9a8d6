/* SPDX-License-Identifier: Apache-2.0
 *
 * Invalid safetensors headers: each rule, the byte at which it is detected, and the error.
 */
#include "daemon/base/json/json.h"
#include "tests/lib/suite.h"
#include "tests/unit/header_text.h"

#define BYTE "'dtype':'U8','shape':[1],'data_offsets':[0,1]"
#define NEXT "'dtype':'U8','shape':[1],'data_offsets':[1,2]"
#define SHAPE(shape) "{'a':{'dtype':'U8','shape':" shape ",'data_offsets':[0,1]}}"
#define OFFSETS(offsets) "{'a':{'dtype':'U8','shape':[1],'data_offsets':" offsets "}}"
#define EXTRA(value) "{'a':{" BYTE ",'x':" value "}}"

static const struct refusal {
        const char *what;
        enum st_rule rule;
        const char *text;
        uint64_t data;    /* bytes after the header */
        const char *told; /* the message, after the rule and before the offset */
} refusals[] = {
        {"an empty text", ST_NOT_JSON, "^", 0, "the header does not begin with '{'"},
        {"an object that does not end", ST_NOT_JSON, "{^", 0, "the text ends where a string is expected"},
        {"bytes after the object", ST_NOT_JSON, "{} ^{}", 0, "bytes follow the object"},
        {"a comma after the last entry", ST_NOT_JSON, "{'a':{" BYTE "},^}", 1, "a string is expected"},
        {"no comma between entries", ST_NOT_JSON, "{'a':{" BYTE "} ^'b':{" NEXT "}}", 2, "',' or '}' is expected"},
        {"no colon", ST_NOT_JSON, "{'a' ^{" BYTE "}}", 1, "':' is expected"},
        {"a key without quotes", ST_NOT_JSON, "{^a:{" BYTE "}}", 1, "a string is expected"},
        {"a string that does not end", ST_NOT_JSON, "{^'abc", 0, "a string is not closed"},
        {"a control character in a string", ST_NOT_JSON, "{'ab^\x1f':{" BYTE "}}", 1,
         "a control character in a string"},
        {"a line break in a string", ST_NOT_JSON, "{'0123456789^\n':{" BYTE "}}", 1, "a control character in a string"},
        {"an unknown escape", ST_NOT_JSON, "{'a^\\q':{" BYTE "}}", 1, "an unknown escape"},
        {"a short \\u", ST_NOT_JSON, "{'a^\\u12':{" BYTE "}}", 1, "\\u wants four hex digits"},
        {"a leading zero", ST_NOT_JSON, EXTRA("^01"), 1, "tensor 'a': a number with a leading zero"},
        {"a sign alone", ST_NOT_JSON, EXTRA("-^"), 1, "tensor 'a': a value is expected"},
        {"a point without digits behind", ST_NOT_JSON, EXTRA("1.^"), 1, "tensor 'a': a digit is expected"},
        {"an exponent without digits", ST_NOT_JSON, EXTRA("1e+^"), 1, "tensor 'a': a digit is expected"},
        {"half a word", ST_NOT_JSON, EXTRA("^tru"), 1, "tensor 'a': a value is expected"},
        {"a comma after the last element", ST_NOT_JSON, EXTRA("[1,^]"), 1, "tensor 'a': a value is expected"},
        {"the wrong bracket", ST_NOT_JSON, EXTRA("[1^}"), 1, "tensor 'a': ',' or ']' is expected"},

        {"a byte that is no UTF-8", ST_NOT_UTF8, "{'a^\xff':{" BYTE "}}", 1, "not UTF-8"},
        {"a character cut short", ST_NOT_UTF8, "{'a^\xe2\x82':{" BYTE "}}", 1, "not UTF-8"},
        {"a surrogate in UTF-8", ST_NOT_UTF8, "{'a^\xed\xa0\x80':{" BYTE "}}", 1, "not UTF-8"},
        {"a high surrogate alone", ST_NOT_UTF8, "{'a^\\ud83d':{" BYTE "}}", 1, "a surrogate without its other half"},
        {"two high surrogates", ST_NOT_UTF8, "{'a^\\ud83d\\ud83d':{" BYTE "}}", 1,
         "a surrogate without its other half"},

        {"a tensor twice", ST_DUPLICATE_KEY, "{'a':{" BYTE "},^'a':{" NEXT "}}", 2, "the key 'a' is given twice"},
        {"a tensor twice, once escaped", ST_DUPLICATE_KEY, "{'a':{" BYTE "},^'\\u0061':{" NEXT "}}", 2,
         "the key 'a' is given twice"},
        {"a field twice", ST_DUPLICATE_KEY, "{'a':{" BYTE ",^'dtype':'U8'}}", 1,
         "tensor 'a': the key 'dtype' is given twice"},
        {"an ignored field twice", ST_DUPLICATE_KEY, "{'a':{" BYTE ",'x':1,^'x':2}}", 1,
         "tensor 'a': the key 'x' is given twice"},
        {"a key twice in what is ignored", ST_DUPLICATE_KEY, EXTRA("[{'y':{'k':1,^'k':1}}]"), 1,
         "tensor 'a': the key 'k' is given twice"},
        {"a key of the metadata twice", ST_DUPLICATE_KEY, "{'__metadata__':{'k':'1',^'k':'2'}}", 0,
         "the key 'k' is given twice"},
        {"two metadata", ST_DUPLICATE_KEY, "{'__metadata__':{},^'__metadata__':{}}", 0,
         "the key '__metadata__' is given twice"},

        {"a NUL in a name", ST_NUL_IN_NAME, "{^'a\\u0000b':{" BYTE "}}", 1,
         "tensor 'a\\x00b': a tensor's name holds a NUL"},
        {"a NUL in a key of the metadata", ST_NUL_IN_NAME, "{'__metadata__':{^'\\u0000':''}}", 0,
         "a key of the metadata holds a NUL"},

        {"two metadata, one null", ST_DUPLICATE_KEY, "{'__metadata__':null,^'__metadata__':{}}", 0,
         "the key '__metadata__' is given twice"},
        {"metadata that is no object", ST_BAD_METADATA, "{'__metadata__':^[]}", 0, "the metadata is not an object"},
        {"metadata that is a number", ST_BAD_METADATA, "{'__metadata__':{'k':^1}}", 0,
         "a value of the metadata is not a string"},

        {"an entry that is no object", ST_BAD_ENTRY, "{'a':^[]}", 0, "tensor 'a': the entry is not an object"},
        {"no dtype", ST_BAD_ENTRY, "{'a':{'shape':[1],'data_offsets':[0,1]^}}", 1, "tensor 'a': dtype is missing"},
        {"no shape", ST_BAD_ENTRY, "{'a':{'dtype':'U8','data_offsets':[0,1]^}}", 1, "tensor 'a': shape is missing"},
        {"no data_offsets", ST_BAD_ENTRY, "{'a':{'dtype':'U8','shape':[1]^}}", 1,
         "tensor 'a': data_offsets is missing"},
        {"a dtype that is a number", ST_BAD_ENTRY, "{'a':{'dtype':^8,'shape':[1],'data_offsets':[0,1]}}", 1,
         "tensor 'a': the dtype is not a string"},
        {"a shape that is a number", ST_BAD_ENTRY, SHAPE("^1"), 1, "tensor 'a': the shape is not an array"},
        {"data_offsets that are an object", ST_BAD_ENTRY, OFFSETS("^{}"), 1,
         "tensor 'a': the data_offsets are not an array"},

        {"an unknown dtype", ST_UNKNOWN_DTYPE, "{'a':{'dtype':^'F33'}}", 0, "tensor 'a': the dtype 'F33' is not known"},
        {"the start of a dtype", ST_UNKNOWN_DTYPE, "{'a':{'dtype':^'F8_'}}", 0,
         "tensor 'a': the dtype 'F8_' is not known"},
        {"control characters in a dtype", ST_UNKNOWN_DTYPE, "{'a':{'dtype':^'\\u0000\\n'}}", 0,
         "tensor 'a': the dtype '\\x00\\x0a' is not known"},

        {"a negative dimension", ST_BAD_SHAPE, SHAPE("[1,^-1]"), 1, "tensor 'a': a negative number"},
        {"a negative zero", ST_BAD_SHAPE, SHAPE("[^-0]"), 1, "tensor 'a': a negative number"},
        {"a fraction", ST_BAD_SHAPE, SHAPE("[^1.0]"), 1, "tensor 'a': not a whole number"},
        {"an exponent", ST_BAD_SHAPE, SHAPE("[^1e0]"), 1, "tensor 'a': not a whole number"},
        {"a dimension that is text", ST_BAD_SHAPE, SHAPE("[^'1']"), 1, "tensor 'a': not a number"},
        {"a dimension of 65 bits", ST_BAD_SHAPE, SHAPE("[^18446744073709551616]"), 1,
         "tensor 'a': a number does not fit 64 bits"},
        {"an overflow before a zero", ST_BAD_SHAPE, SHAPE("[1099511627776,^1099511627776,0]"), 1,
         "tensor 'a': the number of elements overflows"},
        {"an overflow of bits", ST_BAD_SHAPE, SHAPE("^[2305843009213693952]"), 1,
         "tensor 'a': the number of bits overflows"},

        {"one data_offset", ST_BAD_OFFSETS, OFFSETS("^[0]"), 1, "tensor 'a': fewer than two data_offsets"},
        {"three data_offsets", ST_BAD_OFFSETS, OFFSETS("[0,1,^1]"), 1, "tensor 'a': more than two data_offsets"},
        {"data_offsets that end before they begin", ST_BAD_OFFSETS, OFFSETS("^[1,0]"), 1,
         "tensor 'a': the data_offsets end before they begin"},
        {"a data_offset that is text", ST_BAD_OFFSETS, OFFSETS("[0,^'1']"), 1, "tensor 'a': not a number"},

        {"fewer bytes than the shape makes", ST_SIZE_MISMATCH,
         "{'a':{'dtype':'F32','shape':[2],'data_offsets':^[0,7]}}", 7,
         "tensor 'a': the data_offsets span 7 bytes, dtype and shape make 8"},
        {"no bytes of a scalar", ST_SIZE_MISMATCH, "{'a':{'dtype':'U8','shape':[],'data_offsets':^[0,0]}}", 0,
         "tensor 'a': the data_offsets span 0 bytes, dtype and shape make 1"},
        {"half a byte", ST_NOT_WHOLE_BYTES, "{'a':{'dtype':'F4','shape':^[3],'data_offsets':[0,2]}}", 2,
         "tensor 'a': 12 bits are no whole bytes"},

        {"a hole before the first tensor", ST_HOLE_OR_OVERLAP, "{^'a':{" NEXT "}}", 2,
         "tensor 'a': its bytes begin at 1, a hole: the tensor before it ends at 0"},
        {"a hole between tensors", ST_HOLE_OR_OVERLAP,
         "{'a':{" BYTE "},^'b':{'dtype':'U8','shape':[1],'data_offsets':[2,3]}}", 3,
         "tensor 'b': its bytes begin at 2, a hole: the tensor before it ends at 1"},
        {"tensors that overlap", ST_HOLE_OR_OVERLAP,
         "{'a':{'dtype':'U8','shape':[2],'data_offsets':[0,2]},^'b':{" NEXT "}}", 2,
         "tensor 'b': its bytes begin at 1, but the tensor before it ends at 2"},
        {"an empty tensor inside another", ST_HOLE_OR_OVERLAP,
         "{'a':{'dtype':'U8','shape':[2],'data_offsets':[0,2]},^'b':{'dtype':'U8','shape':[0],'data_offsets':[1,1]}}",
         2, "tensor 'b': its bytes begin at 1, but the tensor before it ends at 2"},
        {"a file that is too long", ST_FILE_SIZE, "{'a':{" BYTE "}}^", 2,
         "the tensors take 1 bytes, the file has 2 after its header"},
        {"a file that is too short", ST_FILE_SIZE, "{'a':{" BYTE "}}^", 0,
         "the tensors take 1 bytes, the file has 0 after its header"},
};

/* By an error of the form "RULE: TOLD (header offset N)". */
static void check_refused_with(struct text text, uint64_t data, enum st_rule rule, const char *told, const char *what)
{
        struct st_header header;
        struct st_error error = {0};
        char *expected = format_text("%s: %s (header offset ", st_rule_name(rule), told);
        ck_assert_msg(parse_text(&header, &text, data, &error) == -1, "%s is accepted", what);
        ck_assert_msg(error.rule == rule, "%s: %s", what, error.text);
        ck_assert_msg(error.offset == ST_PREFIX + text.mark, "%s: %s, expected at %zu", what, error.text, text.mark);
        ck_assert_msg(strncmp(error.text, expected, strlen(expected)) == 0, "%s, expected: %s", error.text, expected);
        ck_assert_ptr_null(header.tensors);
}

TEST(refused, EACH(refusals))
{
        const struct refusal *r = &refusals[_i];
        check_refused_with(text_of(r->text), r->data, r->rule, r->told, r->what);
}

static void check_refused(struct text text, enum st_rule rule, const char *told)
{
        check_refused_with(text, 0, rule, told, told);
}

TEST(a_header_over_a_limit_is_refused)
{
        const char *deep = "tensor 'a': a value is nested deeper than 128 levels";
        const char *wide = "tensor 'a': more than 4096 keys in an object";
        check_refused(repeated("{'a':{'x':", JSON_DEPTH, "[", "^["), ST_TOO_DEEP, deep);
        check_refused(repeated("{'a':{'x':", JSON_DEPTH, "{'k':", "^{"), ST_TOO_DEEP, deep);
        check_refused(repeated("{'a':{'x':{", JSON_FIELDS, "'#':0,", "^'more':0}"), ST_TOO_MANY, wide);
        check_refused(repeated("{'a':{", JSON_FIELDS, "'#':0,", "^'more':0}"), ST_TOO_MANY, wide);
        check_refused(repeated("{'a':{'dtype':'U8','shape':[", ST_RANK_MAX, "1,", "^1]"), ST_BAD_SHAPE,
                      "tensor 'a': more than 1024 dimensions");
        check_refused(repeated("{'__metadata__':{", 1 << 20, "'':'',", "^'more':''}}"), ST_TOO_MANY,
                      "more than 1048576 keys of metadata");
}

TEST(a_repeated_name_is_found_among_many)
{
        const char *item = "'#':{'dtype':'U8','shape':[0],'data_offsets':[0,0]},";
        check_refused(repeated("{", 5000, item, "^'4711':{'dtype':'U8','shape':[0],'data_offsets':[0,0]}}"),
                      ST_DUPLICATE_KEY, "the key '4711' is given twice");
        check_refused(repeated("{'__metadata__':{", 5000, "'#':'',", "^'4711':''}}"), ST_DUPLICATE_KEY,
                      "the key '4711' is given twice");
        check_refused(repeated("{'a':{'x':{", 4000, "'#':0,", "^'3999':0}}}"), ST_DUPLICATE_KEY,
                      "tensor 'a': the key '3999' is given twice");
}

TEST(a_message_is_one_line_of_text)
{
        struct text text = repeated("{'\\n\\u007f\\u001b\xc3\xa9", 200, "\xc3\xa9", "':^1}");
        struct st_header header;
        struct st_error error;
        ck_assert_int_eq(parse_text(&header, &text, 0, &error), -1);
        ck_assert_ptr_nonnull(strstr(error.text, "tensor '\\x0a\\x7f\\x1b\xc3\xa9"));
        ck_assert_ptr_nonnull(strstr(error.text, "\xc3\xa9...': "));
        for (const char *c = error.text; *c; c++)
                ck_assert((unsigned char)*c >= 0x20 && *c != 0x7f);
}

/* ---- the length before the header ---- */

static enum st_rule prefix_rule(uint64_t n, uint64_t file_size, uint64_t *read)
{
        unsigned char prefix[8];
        struct st_error error = {0};
        for (int i = 0; i < 8; i++)
                prefix[i] = (unsigned char)(n >> (8 * i));
        return st_parse_prefix(prefix, file_size, read, &error) == 0 ? ST_OK : error.rule;
}

TEST(the_prefix_is_checked)
{
        uint64_t n;
        ck_assert_int_eq(prefix_rule(2, 7, &n), ST_FILE_TOO_SMALL);
        ck_assert_int_eq(prefix_rule(2, 9, &n), ST_HEADER_BEYOND_FILE);
        ck_assert_int_eq(prefix_rule(0, 8, &n), ST_OK);
        ck_assert_int_eq(prefix_rule(2, 10, &n), ST_OK);
        ck_assert_uint_eq(n, 2);
        ck_assert_int_eq(prefix_rule(100000000, UINT64_MAX, &n), ST_OK);
        ck_assert_uint_eq(n, 100000000);
        ck_assert_int_eq(prefix_rule(100000001, UINT64_MAX, &n), ST_HEADER_TOO_LARGE);
        ck_assert_int_eq(prefix_rule(UINT64_MAX, UINT64_MAX, &n), ST_HEADER_TOO_LARGE);
}
