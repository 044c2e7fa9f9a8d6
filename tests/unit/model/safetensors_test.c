/* SPDX-License-Identifier: Apache-2.0
 *
 * Valid safetensors headers, and their parsed contents.
 */
#include "daemon/base/json/json.h"
#include "proto/manifest.h"
#include "tests/lib/suite.h"
#include "tests/unit/header_text.h"

#define BYTE "'dtype':'U8','shape':[1],'data_offsets':[0,1]"
#define NEXT "'dtype':'U8','shape':[1],'data_offsets':[1,2]"

static struct text text;
static struct st_header header;

static void accept(struct text t, uint64_t data)
{
        struct st_error error = {0};
        text = t;
        ck_assert_msg(parse_text(&header, &text, data, &error) == 0, "%s", error.text);
        ck_assert_uint_eq(header.data_start, ST_PREFIX + text.size);
}

static void check_tensor(size_t i, const char *name, uint64_t begin, uint64_t end)
{
        const struct st_tensor *t = &header.tensors[i];
        ck_assert_str_eq(st_name(&header, t), name);
        ck_assert_uint_eq(t->name_len, strlen(name));
        ck_assert_uint_eq(t->begin, begin);
        ck_assert_uint_eq(t->end, end);
}

TEST(a_header_without_tensors)
{
        accept(text_of("{}"), 0);
        ck_assert_uint_eq(header.n_tensors, 0);
        accept(text_of(" \t\r\n{ \n } \n\n   "), 0);
}

TEST(every_dtype)
{
        static const struct {
                const char *code;
                unsigned bits;
        } known[] = {
                {"BOOL", 8},        {"U8", 8},          {"I8", 8},      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},
                {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
                {"I32", 32},        {"U32", 32},        {"F32", 32},    {"I64", 64},    {"U64", 64},    {"F64", 64},
                {"C64", 64},        {"F4", 4},          {"F6_E2M3", 6}, {"F6_E3M2", 6},
        };
        ck_assert_uint_eq(sizeof(known) / sizeof(known[0]), DTYPE_END - 1);
        for (size_t i = 0; i < DTYPE_END - 1; i++) {
                char pattern[200];
                sprintf(pattern, "{'a':{'dtype':'%s','shape':[3,4],'data_offsets':[0,%u]}}", known[i].code,
                        12 * known[i].bits / 8);
                accept(text_of(pattern), 12 * known[i].bits / 8);
                ck_assert_str_eq(dtype_name(header.tensors[0].dtype), known[i].code);
        }
}

TEST(shapes_are_read_back)
{
        uint64_t dims[4];
        accept(text_of("{'a':{'shape' : [ 2 ,\n30,4\t, 1],'dtype':'U8','data_offsets':[ 0 , 240 ]},"
                       "'scalar':{'dtype':'F64','shape':[ ],'data_offsets':[240,248]}}"),
               248);
        ck_assert_uint_eq(header.tensors[0].rank, 4);
        st_shape(&header, &header.tensors[0], dims);
        ck_assert(dims[0] == 2 && dims[1] == 30 && dims[2] == 4 && dims[3] == 1);
        ck_assert_uint_eq(header.tensors[1].rank, 0);

        accept(text_of("{'a':{'dtype':'U8','shape':[0,1099511627776,1099511627776],'data_offsets':[0,0]}}"), 0);
        st_shape(&header, &header.tensors[0], dims);
        ck_assert(dims[0] == 0 && dims[1] == UINT64_C(1) << 40 && dims[2] == UINT64_C(1) << 40);

        accept(text_of("{'a':{'dtype':'U8','shape':[18446744073709551615,0],'data_offsets':[0,0]}}"), 0);
        st_shape(&header, &header.tensors[0], dims);
        ck_assert(dims[0] == UINT64_MAX && dims[1] == 0);

        accept(repeated("{'a':{'dtype':'U8','shape':[1", ST_RANK_MAX - 1, ",1", "],'data_offsets':[0,1]}}"), 1);
        ck_assert_uint_eq(header.tensors[0].rank, ST_RANK_MAX);
}

TEST(many_tensors_in_any_order)
{
        enum { N = 20011 };
        char *pattern = NULL;
        size_t size;
        FILE *f = open_memstream(&pattern, &size);
        for (size_t i = 0, k = 0; i < N; i++, k = (k + 7919) % N)
                fprintf(f, "%c'%zu':{'dtype':'I16','shape':[1],'data_offsets':[%zu,%zu]}", i == 0 ? '{' : ',', k, 2 * k,
                        2 * k + 2);
        fputs("}", f);
        fclose(f);
        accept(text_of(pattern), 2 * N);
        ck_assert_uint_eq(header.n_tensors, N);
        for (size_t i = 0; i < N; i++) {
                char name[24];
                sprintf(name, "%zu", i);
                check_tensor(i, name, 2 * i, 2 * i + 2);
        }
}

TEST(names_are_unescaped)
{
        accept(text_of("{'\\'\\\\\\/\\b\\f\\n\\r\\t|\\u00e9\\u20AC\\ud83d\\uDE00 \xf0\x9f\x98\x80 model/x':{" BYTE "},"
                       "'':{" NEXT "}}"),
               2);
        check_tensor(0, "\"\\/\b\f\n\r\t|\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \xf0\x9f\x98\x80 model/x", 0, 1);
        check_tensor(1, "", 1, 2);
}

TEST(metadata_is_parsed)
{
        accept(text_of("{'a':{" BYTE
                       "},'\\u005f_metadata__':{'format':'pt','t\\u0065xt':'a\\n\xc3\xa9','':'','n':'x\\u0000y'}}"),
               1);
        ck_assert_uint_eq(header.n_metadata, 4);
        const struct st_pair *p = header.metadata;
        ck_assert_str_eq(header.text + p[0].key, "format");
        ck_assert_str_eq(header.text + p[0].value, "pt");
        ck_assert_str_eq(header.text + p[1].key, "text");
        ck_assert_str_eq(header.text + p[1].value, "a\n\xc3\xa9");
        ck_assert_uint_eq(p[2].key_len + p[2].value_len, 0);
        ck_assert_uint_eq(p[3].value_len, 3);
        ck_assert_mem_eq(header.text + p[3].value, "x\0y", 4);

        accept(text_of("{'__metadata__':null,'a':{" BYTE "}}"), 1);
        ck_assert_uint_eq(header.n_metadata, 0);
        accept(text_of("{'__metadata__':{}}"), 0);
        ck_assert_uint_eq(header.n_metadata, 0);
}

TEST(a_header_at_its_limits_is_accepted)
{
        char *end = must_alloc(JSON_DEPTH + 100);
        memset(end, ']', JSON_DEPTH);
        strcpy(end + JSON_DEPTH, "}}");
        accept(repeated("{'a':{" BYTE ",'x':", JSON_DEPTH, "[", end), 1);
        accept(repeated("{'a':{" BYTE ",'x':{", JSON_FIELDS - 1, "'#':0,", "'more':0}}}"), 1);
        accept(repeated("{'__metadata__':{", 9999, "'#':'#',", "'':''}}"), 0);
        ck_assert_uint_eq(header.n_metadata, 10000);
}
