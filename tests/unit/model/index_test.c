/* SPDX-License-Identifier: Apache-2.0
 *
 * model.safetensors.index.json: which file contains which tensor.
 */
#include "daemon/base/json/json.h"
#include "tests/lib/suite.h"
#include "tests/unit/header_text.h"

#define MAP(entries) "{'weight_map':{" entries "}}"

static struct text text;
static struct st_index parsed;

static void accept(struct text t)
{
        struct st_error error = {0};
        text = t;
        ck_assert_msg(st_index_parse(&parsed, text.s, text.size, &error) == 0, "%s", error.text);
}

static const char *file_of(const char *name)
{
        const struct st_index_entry *entry = st_index_find(&parsed, name, strlen(name));
        return entry ? st_index_file(&parsed, entry->file) : "none";
}

/* ---- accepted ---- */

TEST(tensors_are_found_in_their_files)
{
        accept(text_of(MAP("'b':'2.safetensors','a':'1.safetensors','c':'2.safetensors'")));
        ck_assert_uint_eq(parsed.n_entries, 3);
        ck_assert_str_eq(file_of("a"), "1.safetensors");
        ck_assert_str_eq(file_of("b"), "2.safetensors");
        ck_assert_str_eq(file_of("c"), "2.safetensors");
}

TEST(missing_names_are_not_found)
{
        accept(text_of(MAP("'ab':'f','abc':'g'")));
        ck_assert_ptr_null(st_index_find(&parsed, "a", 1));
        ck_assert_ptr_null(st_index_find(&parsed, "", 0));
        ck_assert_ptr_null(st_index_find(&parsed, "abcd", 4));
        ck_assert_ptr_null(st_index_find(&parsed, "ab\0", 3));
        ck_assert_ptr_nonnull(st_index_find(&parsed, "abx", 2));
        accept(text_of(MAP("")));
        ck_assert_ptr_null(st_index_find(&parsed, "a", 1));
        ck_assert_uint_eq(parsed.n_files, 0);
}

TEST(files_are_distinct_and_in_byte_order)
{
        accept(text_of(MAP("'a':'m-00002','b':'m-00010','c':'m','d':'m-00002','e':'\xc3\xa9','f':'Z','g':'\\u00e9'")));
        static const char *const files[] = {"Z", "m", "m-00002", "m-00010", "\xc3\xa9"};
        ck_assert_uint_eq(parsed.n_files, 5);
        for (size_t i = 0; i < 5; i++)
                ck_assert_str_eq(st_index_file(&parsed, i), files[i]);
        ck_assert_str_eq(file_of("g"), "\xc3\xa9");
        ck_assert_str_eq(file_of("c"), "m");
}

TEST(other_keys_are_ignored)
{
        accept(text_of("{'metadata':{'total_size':1.5e9,'weight_map':{'x':1}},'weight_map':{'a':'f'},'x':[null]} \n"));
        ck_assert_uint_eq(parsed.n_entries, 1);
        ck_assert_str_eq(file_of("a"), "f");
        accept(text_of("{'weight\\u005fmap':{'a\\n':'f'}}"));
        ck_assert_str_eq(file_of("a\n"), "f");
}

TEST(a_large_index_is_answered)
{
        accept(repeated("{'weight_map':{", 30000, "'layer.#':'shard-#',", "'last':'shard-7'}}"));
        ck_assert_uint_eq(parsed.n_entries, 30001);
        ck_assert_uint_eq(parsed.n_files, 30000);
        for (unsigned i = 0; i < 30000; i++) {
                char name[24], file[24];
                sprintf(name, "layer.%u", i);
                sprintf(file, "shard-%u", i);
                ck_assert_str_eq(file_of(name), file);
        }
        for (size_t i = 1; i < parsed.n_files; i++)
                ck_assert(strcmp(st_index_file(&parsed, i - 1), st_index_file(&parsed, i)) < 0);
        ck_assert_str_eq(file_of("last"), "shard-7");
}

/* ---- refused ---- */

static const struct {
        const char *what;
        enum st_rule rule;
        const char *text;
        const char *told; /* part of the message */
#define BAD_FILE "the file name is not relative, or has an empty, '.' or '..' component"
#define NOT_RELATIVE(tensor) "tensor '" tensor "': " BAD_FILE
} refusals[] = {
        {"an empty text", ST_NOT_JSON, "^", "the index does not begin with '{'"},
        {"bytes after the object", ST_NOT_JSON, MAP("'a':'f'") "^~", "bytes follow the object"},
        {"no weight_map", ST_BAD_ENTRY, "{'metadata':{}^}", "weight_map is missing"},
        {"a weight_map that is no object", ST_BAD_ENTRY, "{'weight_map':^[]}", "the weight_map is not an object"},
        {"a file that is no text", ST_BAD_ENTRY, MAP("'a':^1"), "tensor 'a': the file name is not a string"},
        {"an empty file name", ST_BAD_ENTRY, MAP("'a':^''"), "tensor 'a': the file name is empty"},
        {"a file by its whole path", ST_BAD_ENTRY, MAP("'a':^'/etc/passwd'"), NOT_RELATIVE("a")},
        {"an escaped slash", ST_BAD_ENTRY, MAP("'a':^'\\u002fc'"), NOT_RELATIVE("a")},
        {"an empty component", ST_BAD_ENTRY, MAP("'a':^'b//c'"), NOT_RELATIVE("a")},
        {"a slash at the end", ST_BAD_ENTRY, MAP("'a':^'b/'"), NOT_RELATIVE("a")},
        {"the folder itself", ST_BAD_ENTRY, MAP("'a':^'b/./c'"), NOT_RELATIVE("a")},
        {"a way out of a folder", ST_BAD_ENTRY, MAP("'a':^'b/../../c'"), NOT_RELATIVE("a")},
        {"the folder above", ST_BAD_ENTRY, MAP("'a':'f','b':^'..'"), NOT_RELATIVE("b")},
        {"a NUL in a file name", ST_NUL_IN_NAME, MAP("'a':^'f\\u0000'"), "tensor 'a': the file name holds a NUL"},
        {"a NUL in a tensor's name", ST_NUL_IN_NAME, MAP("^'a\\u0000':'f'"),
         "tensor 'a\\x00': a tensor's name holds a NUL"},
        {"a tensor twice, once escaped", ST_DUPLICATE_KEY, MAP("'a':'f','b':'f',^'\\u0061':'g'"),
         "the key 'a' is given twice"},
        {"two weight_maps", ST_DUPLICATE_KEY, "{'weight_map':{},^'weight_map':{}}",
         "the key 'weight_map' is given twice"},
        {"a key twice in what is ignored", ST_DUPLICATE_KEY, "{'metadata':{'k':1,^'k':1},'weight_map':{}}",
         "the key 'k' is given twice"},
        {"no UTF-8", ST_NOT_UTF8, MAP("'a':'^\xff'"), "tensor 'a': not UTF-8"},
};

TEST(refused, EACH(refusals))
{
        struct text bad = text_of(refusals[_i].text);
        struct st_index index;
        struct st_error error = {0};
        ck_assert_msg(st_index_parse(&index, bad.s, bad.size, &error) == -1, "%s is accepted", refusals[_i].what);
        ck_assert_msg(error.rule == refusals[_i].rule, "%s: %s", refusals[_i].what, error.text);
        ck_assert_msg(strstr(error.text, refusals[_i].told), "%s: %s", refusals[_i].what, error.text);
        ck_assert_msg(error.offset == bad.mark, "%s: %s, expected at %zu", refusals[_i].what, error.text, bad.mark);
        ck_assert_ptr_null(index.entries);
}

TEST(a_message_names_the_tensor)
{
        struct text bad = text_of(MAP("'a':'f','layer.7':'/f'"));
        struct st_index index;
        struct st_error error;
        ck_assert_int_eq(st_index_parse(&index, bad.s, bad.size, &error), -1);
        ck_assert_str_eq(error.text, "bad-entry: tensor 'layer.7': " BAD_FILE " (offset 33)");
}

TEST(an_index_over_a_limit_is_refused)
{
        struct st_index index;
        struct st_error error;
        ck_assert_int_eq(st_index_parse(&index, NULL, ST_HEADER_MAX + 1, &error), -1);
        ck_assert_int_eq(error.rule, ST_HEADER_TOO_LARGE);
}
