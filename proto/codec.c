/* SPDX-License-Identifier: Apache-2.0
 *
 * msgpack, guarded. Bytes from the other side are walked before msgpack-c sees them: it allocates
 * by declared lengths, so each must first be shown to lie inside the frame. After that a message is
 * a tree that look-ups read, and a reply is written straight into a buffer.
 */
#include "proto/codec.h"
#include "proto/codes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the walk over untrusted bytes ---- */

enum tag_kind { TAG_INVALID, TAG_PLAIN, TAG_ARRAY, TAG_MAP };

/* What follows a tag of 0xc0..0xdf: a big-endian number of `length` bytes, then that many bytes (or
 * children) and `fixed` more. */
static const struct tag {
        unsigned char kind, length, fixed;
} tags[32] = {
        // clang-format off
        {TAG_PLAIN, 0, 0}, {TAG_INVALID, 0, 0},                                       /* c0 nil, c1 unused */
        {TAG_PLAIN, 0, 0}, {TAG_PLAIN, 0, 0},                                         /* c2 false, c3 true */
        {TAG_PLAIN, 1, 0}, {TAG_PLAIN, 2, 0}, {TAG_PLAIN, 4, 0},                      /* c4 bin */
        {TAG_PLAIN, 1, 1}, {TAG_PLAIN, 2, 1}, {TAG_PLAIN, 4, 1},                      /* c7 ext */
        {TAG_PLAIN, 0, 4}, {TAG_PLAIN, 0, 8},                                         /* ca float */
        {TAG_PLAIN, 0, 1}, {TAG_PLAIN, 0, 2}, {TAG_PLAIN, 0, 4}, {TAG_PLAIN, 0, 8},   /* cc unsigned */
        {TAG_PLAIN, 0, 1}, {TAG_PLAIN, 0, 2}, {TAG_PLAIN, 0, 4}, {TAG_PLAIN, 0, 8},   /* d0 signed */
        {TAG_PLAIN, 0, 2}, {TAG_PLAIN, 0, 3}, {TAG_PLAIN, 0, 5}, {TAG_PLAIN, 0, 9}, {TAG_PLAIN, 0, 17}, /* d4 fixext */
        {TAG_PLAIN, 1, 0}, {TAG_PLAIN, 2, 0}, {TAG_PLAIN, 4, 0},                      /* d9 str */
        {TAG_ARRAY, 2, 0}, {TAG_ARRAY, 4, 0}, {TAG_MAP, 2, 0}, {TAG_MAP, 4, 0},       /* dc array, de map */
        // clang-format on
};

struct walk {
        const unsigned char *p, *end;
};

static uint64_t left(const struct walk *w)
{
        return (uint64_t)(w->end - w->p);
}

/* Steps over one value's own bytes; *children is how many values follow inside it, and *container
 * whether it opens a level. A text names the fault. */
static const char *step(struct walk *w, uint64_t *children, bool *container)
{
        unsigned char b = *w->p++;
        struct tag tag = {TAG_PLAIN, 0, 0};
        uint64_t n = 0;
        if (b >= 0x80 && b <= 0x8f) {
                tag.kind = TAG_MAP;
                n = b & 0x0f;
        } else if (b >= 0x90 && b <= 0x9f) {
                tag.kind = TAG_ARRAY;
                n = b & 0x0f;
        } else if (b >= 0xa0 && b <= 0xbf) {
                n = b & 0x1f;
        } else if (b >= 0xc0 && b <= 0xdf) {
                tag = tags[b - 0xc0];
        }
        if (tag.kind == TAG_INVALID)
                return "an invalid tag";
        if (left(w) < tag.length)
                return "a value is cut short";
        for (unsigned i = 0; i < tag.length; i++)
                n = n << 8 | *w->p++;

        *container = tag.kind != TAG_PLAIN;
        *children = tag.kind == TAG_MAP ? 2 * n : tag.kind == TAG_ARRAY ? n : 0;
        uint64_t payload = *container ? 0 : n + tag.fixed;
        if (payload > left(w) || *children > left(w)) /* a child takes a byte at least */
                return "a length reaches behind the end";
        w->p += payload;
        return NULL;
}

static const char *walk_all(struct walk *w, size_t max_values)
{
        uint64_t open[CODEC_DEPTH + 1] = {1}; /* values still to come, level by level */
        size_t depth = 0;
        for (size_t n = 0;; n++) {
                while (open[depth] == 0) {
                        if (depth-- == 0)
                                return w->p == w->end ? NULL : "trailing bytes";
                }
                if (w->p == w->end)
                        return "a value is cut short";
                if (n == max_values)
                        return "too many values";
                uint64_t children;
                bool container;
                const char *fault = step(w, &children, &container);
                if (fault)
                        return fault;
                open[depth]--;
                if (!container)
                        continue;
                if (++depth > CODEC_DEPTH)
                        return "too deep";
                open[depth] = children;
        }
}

int codec_check_limited(const void *data, size_t len, size_t max_values, const char **why)
{
        struct walk w = {data, (const unsigned char *)data + len};
        const char *fault = walk_all(&w, max_values);
        if (!fault)
                return 0;
        *why = fault;
        return -1;
}

int codec_check(const void *data, size_t len, const char **why)
{
        return codec_check_limited(data, len, SIZE_MAX, why);
}

/* Bytes of the character at s, 0 if it is none. */
static size_t utf8_char(const unsigned char *s, size_t len)
{
        unsigned char b = s[0];
        if (b < 0x80)
                return 1;
        size_t n = b >= 0xf0 ? 4 : b >= 0xe0 ? 3 : 2;
        if (b < 0xc2 || b > 0xf4 || len < n)
                return 0;
        for (size_t i = 1; i < n; i++)
                if ((s[i] & 0xc0) != 0x80)
                        return 0;
        bool overlong = (b == 0xe0 && s[1] < 0xa0) || (b == 0xf0 && s[1] < 0x90);
        bool surrogate = b == 0xed && s[1] > 0x9f;
        bool beyond = b == 0xf4 && s[1] > 0x8f;
        return overlong || surrogate || beyond ? 0 : n;
}

bool codec_utf8(const char *s, size_t len)
{
        for (size_t i = 0; i < len;) {
                size_t n = utf8_char((const unsigned char *)s + i, len - i);
                if (n == 0)
                        return false;
                i += n;
        }
        return true;
}

/* ---- writing ---- */

void writer_init(struct writer *w)
{
        msgpack_sbuffer_init(&w->buf);
        msgpack_packer_init(&w->pk, &w->buf, msgpack_sbuffer_write);
        w->failed = false;
}

void writer_deinit(struct writer *w)
{
        msgpack_sbuffer_destroy(&w->buf);
}

static unsigned char *grow(struct writer *w, size_t n)
{
        msgpack_sbuffer *buf = &w->buf;
        size_t alloc = 2 * buf->alloc + n + MSGPACK_SBUFFER_INIT_SIZE;
        char *data = realloc(buf->data, alloc);
        if (data == NULL) {
                w->failed = true;
                return NULL;
        }
        buf->data = data;
        buf->alloc = alloc;
        return (unsigned char *)data + buf->size;
}

/* Room for n more bytes; NULL: no memory. A row of a list has a hundred values, so each is written in place. */
static inline unsigned char *reserve(struct writer *w, size_t n)
{
        const msgpack_sbuffer *buf = &w->buf;
        return buf->alloc - buf->size >= n && buf->data != NULL ? (unsigned char *)buf->data + buf->size : grow(w, n);
}

#define HEAD_MAX 9 /* a tag and its number */

/* A tag and a big-endian number of `bytes` bytes: how many these are. */
static inline size_t set_head(unsigned char *to, unsigned tag, uint64_t number, unsigned bytes)
{
        to[0] = (unsigned char)tag;
        for (unsigned i = bytes; i > 0; i--, number >>= 8)
                to[i] = (unsigned char)number;
        return 1 + bytes;
}

static inline void put_head(struct writer *w, unsigned tag, uint64_t number, unsigned bytes)
{
        unsigned char *to = reserve(w, HEAD_MAX);
        if (to != NULL)
                w->buf.size += set_head(to, tag, number, bytes);
}

/* Both ends of n bytes, which overlap. */
#define COPY_ENDS(type, to, from, n)                                                                                   \
        do {                                                                                                           \
                type first_, last_;                                                                                    \
                memcpy(&first_, (from), sizeof(type));                                                                 \
                memcpy(&last_, (from) + (n) - sizeof(type), sizeof(type));                                             \
                memcpy((to), &first_, sizeof(type));                                                                   \
                memcpy((to) + (n) - sizeof(type), &last_, sizeof(type));                                               \
        } while (false)

/* Most keys and texts are short: a call would cost as much as the copy. */
static inline void copy(unsigned char *to, const char *from, size_t n)
{
        if (n > 2 * sizeof(uint64_t))
                memcpy(to, from, n);
        else if (n >= sizeof(uint64_t))
                COPY_ENDS(uint64_t, to, from, n);
        else if (n >= sizeof(uint32_t))
                COPY_ENDS(uint32_t, to, from, n);
        else
                for (size_t i = 0; i < n; i++)
                        to[i] = (unsigned char)from[i];
}

static void put_bytes(struct writer *w, const void *data, size_t len)
{
        unsigned char *to = reserve(w, len);
        if (to == NULL || len == 0)
                return;
        memcpy(to, data, len);
        w->buf.size += len;
}

void writer_append(struct writer *w, const struct writer *values)
{
        w->failed |= values->failed;
        put_bytes(w, values->buf.data, values->buf.size);
}

/* Of a container: in the tag, if it is below 16. */
static void put_count(struct writer *w, unsigned small, unsigned tag, size_t n)
{
        if (n < 16)
                put_head(w, small | (unsigned)n, 0, 0);
        else if (n <= UINT16_MAX)
                put_head(w, tag, n, 2);
        else
                put_head(w, tag + 1, n, 4);
}

/* Of bytes: `tag` has one byte for it, the next two tags have two and four. */
static inline size_t set_length(unsigned char *to, unsigned tag, size_t n)
{
        return n <= UINT8_MAX    ? set_head(to, tag, n, 1)
               : n <= UINT16_MAX ? set_head(to, tag + 1, n, 2)
                                 : set_head(to, tag + 2, n, 4);
}

static inline size_t set_text_length(unsigned char *to, size_t n)
{
        return n < 32 ? set_head(to, 0xa0 | (unsigned)n, 0, 0) : set_length(to, 0xd9, n);
}

void writer_map(struct writer *w, size_t pairs)
{
        put_count(w, 0x80, 0xde, pairs);
}

void writer_array(struct writer *w, size_t n)
{
        put_count(w, 0x90, 0xdc, n);
}

void writer_key(struct writer *w, const char *key)
{
        writer_strn(w, key, strlen(key));
}

void writer_str(struct writer *w, const char *s)
{
        if (s)
                writer_strn(w, s, strlen(s));
        else
                put_head(w, 0xc0, 0, 0);
}

void writer_strn(struct writer *w, const char *s, size_t len)
{
        unsigned char *to = reserve(w, HEAD_MAX + len);
        if (to == NULL)
                return;
        size_t head = set_text_length(to, len);
        copy(to + head, s, len);
        w->buf.size += head + len;
}

void writer_bin(struct writer *w, const void *data, size_t len)
{
        unsigned char *to = reserve(w, HEAD_MAX + len);
        if (to == NULL)
                return;
        size_t head = set_length(to, 0xc4, len);
        if (len > 0)
                memcpy(to + head, data, len);
        w->buf.size += head + len;
}

void writer_u64(struct writer *w, uint64_t v)
{
        unsigned char *to = reserve(w, HEAD_MAX);
        if (to == NULL)
                return;
        w->buf.size += v < 128           ? set_head(to, (unsigned)v, 0, 0)
                       : v <= UINT8_MAX  ? set_head(to, 0xcc, v, 1)
                       : v <= UINT16_MAX ? set_head(to, 0xcd, v, 2)
                       : v <= UINT32_MAX ? set_head(to, 0xce, v, 4)
                                         : set_head(to, 0xcf, v, 8);
}

void writer_i64(struct writer *w, int64_t v)
{
        w->failed |= msgpack_pack_int64(&w->pk, v) != 0;
}

void writer_bool(struct writer *w, bool v)
{
        put_head(w, v ? 0xc3 : 0xc2, 0, 0);
}

void writer_hex(struct writer *w, const unsigned char *data, size_t len)
{
        static const char digits[] = "0123456789abcdef";
        unsigned char *to = reserve(w, HEAD_MAX + 2 * len);
        if (to == NULL)
                return;
        size_t at = set_text_length(to, 2 * len);
        for (size_t i = 0; i < len; i++) {
                to[at++] = (unsigned char)digits[data[i] >> 4];
                to[at++] = (unsigned char)digits[data[i] & 15];
        }
        w->buf.size += at;
}

static size_t put_feature(struct writer *w, const char *lacking, const char *feature)
{
        if (lacking && strcmp(feature, lacking) == 0)
                return 0;
        writer_str(w, feature);
        return 1;
}

/* Of the bytes of messages.h, by the Makefile. */
const uint64_t features_number = FEATURES_NUMBER;

size_t writer_features(struct writer *w, const char *lacking)
{
        size_t n = 0;
        char feature[64];
        for (enum verb v = 0; v < VERB_COUNT; v++) {
                const struct verb_desc *verb = verb_desc(v);
                n += put_feature(w, lacking, verb->name);
                for (size_t i = 0; i < verb->n_fields; i++) {
                        snprintf(feature, sizeof(feature), "%s.%s", verb->name, verb->fields[i].name);
                        n += put_feature(w, lacking, feature);
                }
        }
        return n;
}

static inline void put_value(struct writer *w, const struct pair *pair)
{
        switch (pair->kind) {
        case PAIR_NONE:
                break;
        case PAIR_U64:
                writer_u64(w, pair->number);
                break;
        case PAIR_BOOL:
                writer_bool(w, pair->number);
                break;
        case PAIR_TEXT:
                if (pair->number == SIZE_MAX)
                        writer_str(w, pair->text);
                else
                        writer_strn(w, pair->text, pair->number);
                break;
        case PAIR_HEX:
                writer_hex(w, pair->data, pair->number);
                break;
        case PAIR_BIN:
                writer_bin(w, pair->data, pair->number);
                break;
        case PAIR_MAP:
                writer_pairs(w, pair->data, pair->number);
                break;
        case PAIR_ITEMS:
                writer_array(w, pair->number);
                writer_append(w, pair->data);
                break;
        case PAIR_ARRAY:
                writer_array(w, pair->number);
                for (size_t i = 0; i < pair->number; i++)
                        pair->write_item(w, pair->data, i);
                break;
        case PAIR_CALL:
                pair->write(w, pair->data);
        }
}

void writer_pairs(struct writer *w, const struct pair *pairs, size_t n)
{
        size_t present = 0;
        for (size_t i = 0; i < n; i++)
                present += pairs[i].kind != PAIR_NONE;
        writer_map(w, present);
        for (size_t i = 0; i < n; i++) {
                if (pairs[i].kind == PAIR_NONE)
                        continue;
                writer_strn(w, pairs[i].key, pairs[i].key_size);
                put_value(w, &pairs[i]);
        }
}

void items_init(struct items *items)
{
        writer_init(&items->w);
        items->n = 0;
}

void items_deinit(struct items *items)
{
        writer_deinit(&items->w);
}

/* ---- reading ---- */

/* Of a reply's tree, which grows. By default 8 KiB, of which a process that attaches would touch two pages for each. */
#define TREE_LEAST 512

int message_decode(struct message *out, const void *data, size_t len)
{
        const char *why;
        *out = (struct message){0};
        if (codec_check(data, len, &why) < 0)
                return STREAMER_EPROTO;
        out->memory = malloc(len);
        if (!out->memory)
                return STREAMER_ENOMEM;
        memcpy(out->memory, data, len);
        size_t off = 0, tree = 4 * len;
        tree = tree < TREE_LEAST ? TREE_LEAST : tree < MSGPACK_ZONE_CHUNK_SIZE ? tree : MSGPACK_ZONE_CHUNK_SIZE;
        out->unpacked.zone = msgpack_zone_new(tree);
        msgpack_unpack_return rc =
                out->unpacked.zone ? msgpack_unpack(out->memory, len, &off, out->unpacked.zone, &out->unpacked.data)
                                   : MSGPACK_UNPACK_NOMEM_ERROR;
        if (rc == MSGPACK_UNPACK_SUCCESS && out->unpacked.data.type == MSGPACK_OBJECT_MAP)
                return 0;
        message_deinit(out);
        return rc == MSGPACK_UNPACK_NOMEM_ERROR ? STREAMER_ENOMEM : STREAMER_EPROTO;
}

void message_deinit(struct message *m)
{
        msgpack_unpacked_destroy(&m->unpacked);
        free(m->memory);
        *m = (struct message){0};
}

const msgpack_object *object_get(const msgpack_object *map, const char *key)
{
        if (map->type != MSGPACK_OBJECT_MAP)
                return NULL;
        size_t len = strlen(key);
        for (uint32_t i = 0; i < map->via.map.size; i++) {
                const msgpack_object_kv *kv = &map->via.map.ptr[i];
                if (kv->key.type == MSGPACK_OBJECT_STR && kv->key.via.str.size == len &&
                    memcmp(kv->key.via.str.ptr, key, len) == 0)
                        return &kv->val;
        }
        return NULL;
}

bool object_u64(const msgpack_object *map, const char *key, uint64_t *out)
{
        const msgpack_object *o = object_get(map, key);
        if (!o || o->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
                return false;
        *out = o->via.u64;
        return true;
}

bool object_bool(const msgpack_object *map, const char *key, bool *out)
{
        const msgpack_object *o = object_get(map, key);
        if (!o || o->type != MSGPACK_OBJECT_BOOLEAN)
                return false;
        *out = o->via.boolean;
        return true;
}

bool object_str(const msgpack_object *map, const char *key, const char **s, size_t *len)
{
        const msgpack_object *o = object_get(map, key);
        if (!o || o->type != MSGPACK_OBJECT_STR)
                return false;
        *s = o->via.str.ptr;
        *len = o->via.str.size;
        return true;
}

bool object_bin(const msgpack_object *map, const char *key, const char **data, size_t *len)
{
        const msgpack_object *o = object_get(map, key);
        if (!o || o->type != MSGPACK_OBJECT_BIN)
                return false;
        *data = o->via.bin.ptr;
        *len = o->via.bin.size;
        return true;
}

bool object_str_eq(const msgpack_object *map, const char *key, const char *want)
{
        const char *s;
        size_t len;
        return object_str(map, key, &s, &len) && len == strlen(want) && memcmp(s, want, len) == 0;
}
