/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/bytes.h"

#include "proto/codec.h"

#include <string.h>

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
