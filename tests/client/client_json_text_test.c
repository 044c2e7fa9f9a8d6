/* SPDX-License-Identifier: Apache-2.0
 *
 * The JSON text of a message is the text of its JSON, whatever the message has; bytes that are no message have none.
 */
#include "client/json.h"
#include "client/json_text.h"
#include "tests/lib/suite.h"

#include <math.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static uint64_t seed;

static uint64_t draw(uint64_t below)
{
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (seed >> 33) % below;
}

static void write_text(struct writer *w, bool valid)
{
        static const char *const pieces[] = {"a",  "\"",   "\\",   "/",    "\n", "\t", "\b", "\f",
                                             "\r", "\x01", "\x1f", "\x7f", "é",  "€",  "𝄞",  "model.layers.0.weight"};
        char text[700] = "";
        size_t n = draw(40);
        for (size_t i = 0; i < n; i++)
                strcat(text, pieces[draw(COUNT(pieces))]);
        if (!valid)
                strcat(text, "\xc3");
        writer_strn(w, text, strlen(text) + draw(2)); /* with its NUL, too */
}

static void write_value(struct writer *w, unsigned depth)
{
        static const uint64_t numbers[] = {0,         1,          127,       128,        255,
                                           256,       UINT16_MAX, 1u << 16,  UINT32_MAX, 1ull << 32,
                                           INT64_MAX, 1ull << 63, UINT64_MAX};
        static const int64_t negative[] = {-1, -32, -33, -128, -129, INT16_MIN, INT16_MIN - 1, INT32_MIN, INT64_MIN};
        size_t n = draw(20);
        switch (draw(depth < 4 ? 9 : 7)) {
        case 0:
                writer_str(w, NULL);
                break;
        case 1:
                writer_bool(w, draw(2));
                break;
        case 2:
                writer_u64(w, numbers[draw(COUNT(numbers))]);
                break;
        case 3:
                writer_i64(w, negative[draw(COUNT(negative))]);
                break;
        case 4:
                write_text(w, true);
                break;
        case 5:
                writer_bin(w, "\x00\x9f\xff of a digest", draw(14));
                break;
        case 6:
                msgpack_pack_double(&w->pk, (double)draw(1000) / 7);
                break;
        case 7:
                writer_array(w, n);
                for (size_t i = 0; i < n; i++)
                        write_value(w, depth + 1);
                break;
        default:
                writer_map(w, n);
                for (size_t i = 0; i < n; i++) {
                        char key[16];
                        snprintf(key, sizeof(key), "key %zu", i);
                        writer_key(w, key);
                        write_value(w, depth + 1);
                }
        }
}

static bool text_of(struct text *text, const void *data, size_t size)
{
        struct bytes bytes = {data, (const unsigned char *)data + size};
        *text = (struct text){0};
        bool ok = text_add_value(text, &bytes) && bytes.at == bytes.end;
        text_add(text, "", 1);
        ck_assert(!text->failed);
        return ok;
}

static char *text_of_tree(const struct writer *w)
{
        msgpack_unpacked unpacked;
        msgpack_unpacked_init(&unpacked);
        ck_assert_int_eq(msgpack_unpack_next(&unpacked, w->buf.data, w->buf.size, NULL), MSGPACK_UNPACK_SUCCESS);
        json_t *json = json_from_object(&unpacked.data);
        char *text = json != NULL ? json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
        json_decref(json);
        msgpack_unpacked_destroy(&unpacked);
        return text;
}

TEST(the_text_is_that_of_the_tree)
{
        for (seed = 1; seed < 3000; seed++) {
                uint64_t begin = seed;
                struct writer w;
                struct text text;
                writer_init(&w);
                writer_map(&w, 1);
                writer_key(&w, "reply");
                write_value(&w, 0);
                ck_assert(text_of(&text, w.buf.data, w.buf.size));
                char *tree = text_of_tree(&w);
                ck_assert_msg(strcmp(text.data, tree) == 0, "seed %" PRIu64 ": %s is not %s", begin, text.data, tree);
                free(tree);
                text_deinit(&text);
                writer_deinit(&w);
                seed = begin;
        }
}

/* Texts are copied by words, of which the last overlaps the one before it. */
TEST(each_byte_of_a_text_is_examined)
{
        for (size_t n = 1; n <= 20; n++)
                for (size_t at = 0; at < n; at++)
                        for (unsigned byte = 0; byte < 256; byte++) {
                                char plain[20];
                                struct writer w;
                                struct text text;
                                for (size_t i = 0; i < n; i++)
                                        plain[i] = (char)('a' + i);
                                plain[at] = (char)byte;
                                writer_init(&w);
                                writer_strn(&w, plain, n);
                                bool ok = text_of(&text, w.buf.data, w.buf.size);
                                ck_assert_int_eq(ok, byte < 0x80);
                                if (ok)
                                        ck_assert_str_eq(text.data, text_of_tree(&w));
                                text_deinit(&text);
                                writer_deinit(&w);
                        }
}

TEST(what_is_cut_short_has_no_text)
{
        for (uint64_t first = 1; first < 200; first++) {
                struct writer w;
                writer_init(&w);
                seed = first;
                writer_array(&w, 2);
                write_value(&w, 2);
                write_value(&w, 2);
                for (size_t size = 0; size < w.buf.size; size++) {
                        struct text text;
                        void *exact = memcpy(must_alloc(size + 1), w.buf.data, size);
                        ck_assert(!text_of(&text, exact, size));
                        text_deinit(&text);
                        free(exact);
                }
                writer_deinit(&w);
        }
}

static const struct {
        const char *bytes;
        size_t size;
} invalid[] = {
        {"\xc1", 1},                                                          /* no tag */
        {"\xa2\xc3\x28", 3},                                                  /* not UTF-8 */
        {"\x81\x01\x01", 3},                                                  /* a key that is no text */
        {"\xdd\xff\xff\xff\xff", 5},                                          /* more items than there are bytes */
        {"\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x01", 15}, /* too deep */
        {"\x01\x01", 2},                                                      /* more than one value */
};

TEST(invalid_bytes_have_no_text, EACH(invalid))
{
        struct text text;
        ck_assert(!text_of(&text, invalid[_i].bytes, invalid[_i].size));
        text_deinit(&text);
}
