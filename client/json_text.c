/* SPDX-License-Identifier: Apache-2.0 */
#include "client/json_text.h"

#include "proto/codec.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- text ---- */

static char *grow(struct text *t, size_t n)
{
        size_t capacity = 2 * t->capacity + n + 256;
        char *data = t->failed ? NULL : realloc(t->data, capacity);
        if (!data) {
                t->failed = true;
                return NULL;
        }
        t->data = data;
        t->capacity = capacity;
        return data + t->size;
}

/* Room for n more bytes; NULL: no memory. */
static inline char *reserve(struct text *t, size_t n)
{
        return t->capacity - t->size >= n && !t->failed ? t->data + t->size : grow(t, n);
}

static inline void add(struct text *t, const char *data, size_t n)
{
        char *to = reserve(t, n);
        if (!to || n == 0)
                return;
        memcpy(to, data, n);
        t->size += n;
}

void text_add(struct text *t, const char *data, size_t n)
{
        add(t, data, n);
}

void text_deinit(struct text *t)
{
        free(t->data);
        *t = (struct text){0};
}

static inline void add_char(struct text *t, char c)
{
        char *to = reserve(t, 1);
        if (!to)
                return;
        *to = c;
        t->size++;
}

/* Two digits at a time, from the last one. */
static void add_decimal(struct text *t, uint64_t n)
{
        static const char pairs[] =
                "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445"
                "46474849505152535455565758596061626364656667686970717273747576777879808182838485868788899091"
                "9293949596979899";
        enum { DIGITS = 20 };
        char digits[DIGITS];
        size_t at = DIGITS;
        for (; n >= 100; n /= 100)
                memcpy(digits + (at -= 2), pairs + n % 100 * 2, 2);
        if (n >= 10)
                memcpy(digits + (at -= 2), pairs + n * 2, 2);
        else
                digits[--at] = (char)('0' + n);
        char *to = reserve(t, DIGITS);
        if (!to)
                return;
        memcpy(to, digits + at, DIGITS - at);
        t->size += DIGITS - at;
}

static void add_u64(struct text *t, uint64_t n)
{
        bool quoted = n > INT64_MAX;
        if (quoted)
                add_char(t, '"');
        add_decimal(t, n);
        if (quoted)
                add_char(t, '"');
}

/* What may not stand in a string. */
static bool is_special(unsigned char c)
{
        return c < 0x20 || c == '"' || c == '\\';
}

static void add_special(struct text *t, unsigned char c)
{
        static const char shorts[] = "\"\"\\\\\bb\ff\nn\rr\tt";
        char escaped[8];
        for (size_t i = 0; i < sizeof(shorts) - 1; i += 2)
                if (shorts[i] == (char)c) {
                        add_char(t, '\\');
                        add_char(t, shorts[i + 1]);
                        return;
                }
        add(t, escaped, (size_t)snprintf(escaped, sizeof(escaped), "\\u%04X", c));
}

/* With what has to be escaped, or is not ASCII. */
static bool add_escaped(struct text *t, const char *data, size_t n)
{
        size_t begin = 0;
        add_char(t, '"');
        for (size_t i = 0; i < n; i++) {
                if (!is_special((unsigned char)data[i]))
                        continue;
                add(t, data + begin, i - begin);
                add_special(t, (unsigned char)data[i]);
                begin = i + 1;
        }
        add(t, data + begin, n - begin);
        add_char(t, '"');
        return codec_utf8(data, n);
}

#define EACH_BYTE(n) (UINT64_C(0x0101010101010101) * (n))

/* Not 0 if one of the eight bytes is special or not ASCII: that sets its highest bit in one of the terms, of which each
 * borrows from the next byte only where it does. */
static inline uint64_t find_special(uint64_t word)
{
        uint64_t quotes = word ^ EACH_BYTE('"'), backslashes = word ^ EACH_BYTE('\\');
        return (word | (word - EACH_BYTE(0x20)) | (quotes - EACH_BYTE(1)) | (backslashes - EACH_BYTE(1))) &
               EACH_BYTE(0x80);
}

/* Copies a word of them; what it has that is special. */
#define COPY_WORD(type, to, from)                                                                                      \
        ({                                                                                                             \
                type word_;                                                                                            \
                memcpy(&word_, (from), sizeof(word_));                                                                 \
                memcpy((to), &word_, sizeof(word_));                                                                   \
                find_special(word_);                                                                                   \
        })

/* False: a byte is special or not ASCII. The last word overlaps the one before it. */
static inline bool copy_plain(char *to, const char *from, size_t n)
{
        enum { WIDE = sizeof(uint64_t), NARROW = sizeof(uint32_t) };
        uint64_t found = 0;
        size_t i = 0;
        if (n >= WIDE) {
                for (; i < n - WIDE; i += WIDE)
                        found |= COPY_WORD(uint64_t, to + i, from + i);
                found |= COPY_WORD(uint64_t, to + n - WIDE, from + n - WIDE);
                return found == 0;
        }
        if (n >= NARROW) {
                found = COPY_WORD(uint32_t, to, from) | COPY_WORD(uint32_t, to + n - NARROW, from + n - NARROW);
                return (uint32_t)found == 0;
        }
        for (; i < n; i++) {
                to[i] = from[i];
                found |= is_special((unsigned char)from[i]) || (unsigned char)from[i] >= 0x80;
        }
        return found == 0;
}

static inline bool add_string(struct text *t, const char *data, size_t n)
{
        char *to = reserve(t, n + 2);
        if (!to)
                return true;
        to[0] = '"';
        if (!copy_plain(to + 1, data, n))
                return add_escaped(t, data, n); /* over what was written */
        to[1 + n] = '"';
        t->size += n + 2;
        return true;
}

bool text_add_string(struct text *t, const char *data, size_t n)
{
        return add_string(t, data, n);
}

static void add_hex(struct text *t, const char *data, size_t n)
{
        static const char digits[] = "0123456789abcdef";
        add_char(t, '"');
        for (size_t i = 0; i < n; i++) {
                unsigned char byte = (unsigned char)data[i];
                char pair[2] = {digits[byte >> 4], digits[byte & 15]};
                add(t, pair, sizeof(pair));
        }
        add_char(t, '"');
}

/* False: not a number, or an infinite one. */
static bool add_real(struct text *t, double real)
{
        json_t *json = json_real(real);
        char *written = json ? json_dumps(json, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        json_decref(json);
        if (!written)
                return false;
        add(t, written, strlen(written));
        free(written);
        return true;
}

static bool add_value(struct text *t, struct bytes *b, unsigned depth);

static bool add_array(struct text *t, struct bytes *b, uint64_t n, unsigned depth)
{
        add_char(t, '[');
        for (uint64_t i = 0; i < n; i++) {
                if (i > 0)
                        add_char(t, ',');
                if (!add_value(t, b, depth))
                        return false;
        }
        add_char(t, ']');
        return true;
}

static bool add_map(struct text *t, struct bytes *b, uint64_t n, unsigned depth)
{
        struct value key;
        add_char(t, '{');
        for (uint64_t i = 0; i < n; i++) {
                if (i > 0)
                        add_char(t, ',');
                if (!bytes_next(b, &key) || key.kind != VALUE_TEXT || !add_string(t, key.data, key.number))
                        return false;
                add_char(t, ':');
                if (!add_value(t, b, depth))
                        return false;
        }
        add_char(t, '}');
        return true;
}

static bool add_value(struct text *t, struct bytes *b, unsigned depth)
{
        struct value v;
        if (!bytes_next(b, &v))
                return false;
        switch (v.kind) {
        case VALUE_NIL:
        case VALUE_EXT:
                add(t, "null", 4);
                return true;
        case VALUE_BOOL:
                add(t, v.number ? "true" : "false", v.number ? 4 : 5);
                return true;
        case VALUE_U64:
                add_u64(t, v.number);
                return true;
        case VALUE_I64:
                add_char(t, '-');
                add_decimal(t, -v.number);
                return true;
        case VALUE_REAL:
                return add_real(t, v.real);
        case VALUE_TEXT:
                return add_string(t, v.data, v.number);
        case VALUE_BIN:
                add_hex(t, v.data, v.number);
                return true;
        case VALUE_ARRAY:
                return depth < CODEC_DEPTH && add_array(t, b, v.number, depth + 1);
        case VALUE_MAP:
                return depth < CODEC_DEPTH && add_map(t, b, v.number, depth + 1);
        }
        return false;
}

bool text_add_value(struct text *t, struct bytes *b)
{
        return add_value(t, b, 0);
}
