/* SPDX-License-Identifier: Apache-2.0 */
#include "client/json_text.h"

#include "proto/codec.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- msgpack ---- */

/* A big-endian number. */
static bool take_number(struct bytes *b, unsigned length, uint64_t *number)
{
        uint64_t n = 0;
        if ((size_t)(b->end - b->at) < length)
                return false;
        for (unsigned i = 0; i < length; i++)
                n = n << 8 | *b->at++;
        *number = n;
        return true;
}

/* A signed one. */
static bool take_signed(struct bytes *b, unsigned length, struct value *v)
{
        uint64_t n;
        if (!take_number(b, length, &n))
                return false;
        unsigned unused = 64 - 8 * length;
        int64_t signed_number = (int64_t)(n << unused) >> unused;
        v->kind = signed_number < 0 ? VALUE_I64 : VALUE_U64;
        v->number = (uint64_t)signed_number;
        return true;
}

static bool take_real(struct bytes *b, unsigned length, struct value *v)
{
        uint64_t n;
        float small;
        if (!take_number(b, length, &n))
                return false;
        if (length == sizeof(v->real)) {
                memcpy(&v->real, &n, sizeof(v->real));
        } else {
                uint32_t bits = (uint32_t)n;
                memcpy(&small, &bits, sizeof(small));
                v->real = small;
        }
        v->kind = VALUE_REAL;
        return true;
}

/* Bytes behind their length. */
static bool take_data(struct bytes *b, struct value *v, enum value_kind kind, uint64_t n)
{
        if ((uint64_t)(b->end - b->at) < n)
                return false;
        v->kind = kind;
        v->number = n;
        v->data = (const char *)b->at;
        b->at += n;
        return true;
}

/* A tag of 0xc0 to 0xdf. */
static bool take_tagged(struct bytes *b, unsigned char tag, struct value *v)
{
        uint64_t n = 0;
        switch (tag) {
        case 0xc0:
                v->kind = VALUE_NIL;
                return true;
        case 0xc2:
        case 0xc3:
                v->kind = VALUE_BOOL;
                v->number = tag == 0xc3;
                return true;
        case 0xc4:
        case 0xc5:
        case 0xc6:
                return take_number(b, 1u << (tag - 0xc4), &n) && take_data(b, v, VALUE_BIN, n);
        case 0xc7:
        case 0xc8:
        case 0xc9:
                return take_number(b, 1u << (tag - 0xc7), &n) && take_data(b, v, VALUE_EXT, n + 1);
        case 0xca:
        case 0xcb:
                return take_real(b, 4u << (tag - 0xca), v);
        case 0xcc:
        case 0xcd:
        case 0xce:
        case 0xcf:
                v->kind = VALUE_U64;
                return take_number(b, 1u << (tag - 0xcc), &v->number);
        case 0xd0:
        case 0xd1:
        case 0xd2:
        case 0xd3:
                return take_signed(b, 1u << (tag - 0xd0), v);
        case 0xd4:
        case 0xd5:
        case 0xd6:
        case 0xd7:
        case 0xd8:
                return take_data(b, v, VALUE_EXT, (1u << (tag - 0xd4)) + 1);
        case 0xd9:
        case 0xda:
        case 0xdb:
                return take_number(b, 1u << (tag - 0xd9), &n) && take_data(b, v, VALUE_TEXT, n);
        case 0xdc:
        case 0xdd:
                v->kind = VALUE_ARRAY;
                return take_number(b, 2u << (tag - 0xdc), &v->number);
        case 0xde:
        case 0xdf:
                v->kind = VALUE_MAP;
                return take_number(b, 2u << (tag - 0xde), &v->number);
        default:
                return false;
        }
}

bool bytes_next(struct bytes *b, struct value *v)
{
        if (b->at == b->end)
                return false;
        unsigned char tag = *b->at++;
        if (tag >= 0xc0 && tag <= 0xdf)
                return take_tagged(b, tag, v);
        if (tag >= 0xa0 && tag <= 0xbf)
                return take_data(b, v, VALUE_TEXT, tag & 0x1f);
        v->kind = tag < 0x80 ? VALUE_U64 : tag < 0x90 ? VALUE_MAP : tag < 0xa0 ? VALUE_ARRAY : VALUE_I64;
        v->number = tag < 0x80 ? tag : tag < 0xa0 ? tag & 0x0f : (uint64_t)(int64_t)(int8_t)tag;
        return true;
}

static bool skip(struct bytes *b, unsigned depth)
{
        struct value v;
        if (!bytes_next(b, &v))
                return false;
        uint64_t left = v.kind == VALUE_MAP ? 2 * v.number : v.kind == VALUE_ARRAY ? v.number : 0;
        if (left > 0 && depth == CODEC_DEPTH)
                return false;
        for (; left > 0; left--)
                if (!skip(b, depth + 1))
                        return false;
        return true;
}

bool bytes_skip(struct bytes *b)
{
        return skip(b, 0);
}

bool bytes_find(struct bytes *b, uint64_t pairs, const char *key)
{
        struct value v;
        for (; pairs > 0; pairs--) {
                if (!bytes_next(b, &v) || v.kind != VALUE_TEXT)
                        return false;
                if (value_is_text(&v, key))
                        return true;
                if (!bytes_skip(b))
                        return false;
        }
        return false;
}

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

static void add_decimal(struct text *t, uint64_t n)
{
        char digits[20];
        size_t at = sizeof(digits);
        do
                digits[--at] = (char)('0' + n % 10);
        while ((n /= 10) > 0);
        add(t, digits + at, sizeof(digits) - at);
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

bool text_add_string(struct text *t, const char *data, size_t n)
{
        char *to = reserve(t, n + 2);
        if (!to)
                return true;
        to[0] = '"';
        for (size_t i = 0; i < n; i++) {
                unsigned char c = (unsigned char)data[i];
                if (is_special(c) || c >= 0x80)
                        return add_escaped(t, data, n); /* over what was written */
                to[1 + i] = data[i];
        }
        to[1 + n] = '"';
        t->size += n + 2;
        return true;
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
                if (!bytes_next(b, &key) || key.kind != VALUE_TEXT || !text_add_string(t, key.data, key.number))
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
                return text_add_string(t, v.data, v.number);
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
