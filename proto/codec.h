/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages to bytes and back. Every message is one msgpack map.
 *   request  {verb, id, field...}            unknown fields are refused (of hello: ignored)
 *   reply    {id, ok: true, field...}        unknown fields are ignored
 *            {id, ok: false, code, text}     code: a wire code of codes.h
 *   event    {event, field...}               no id
 *
 * Input is hostile: codec_check() walks the bytes first, so that msgpack-c never sees a length
 * that lies, a depth over CODEC_DEPTH or trailing bytes.
 */
#pragma once

#include "proto/messages.h"

/* Most messages are below 1 KiB. A buffer of msgpack's default, 8 KiB, takes two fresh pages of a process that
 * attaches, and leaves a hole in the daemon's heap for each reply that is queued behind it. */
#define MSGPACK_SBUFFER_INIT_SIZE 512
#include <msgpack.h>

#define CODEC_DEPTH 12

/* 0 if `data` is exactly one well-formed msgpack value, else -1 with *why. */
int codec_check(const void *data, size_t len, const char **why);

/* As codec_check, and at most max_values values in all: an unpacked value takes 24 bytes where a
 * packed one takes 1. */
int codec_check_limited(const void *data, size_t len, size_t max_values, const char **why);

/* Strict UTF-8: no overlong forms, no surrogates. */
bool codec_utf8(const char *s, size_t len);

/* 0, or a STREAMER_E* with a text (what is wrong: verb, field, type) and, as far as it could be
 * read, out->id and out->verb (VERB_COUNT if not). On success the caller calls request_deinit(). */
int request_decode(struct request *out, const void *data, size_t len, char *text, size_t text_size);
void request_deinit(struct request *request);

/* The field is sent: it is not absent, which is NULL, 0, false or empty, or it is required. */
bool request_has(const struct request *request, const struct field_desc *field);

/* Appends the request as one msgpack map; absent fields are left out. 0 or STREAMER_ENOMEM. */
int request_encode(const struct request *request, msgpack_sbuffer *out);

/* ---- writing replies and events ---- */

/* Maps and arrays are opened with their size, as msgpack requires. Memory failure is kept and asked once, at the end.
 */
struct writer {
        msgpack_sbuffer buf;
        msgpack_packer pk;
        bool failed;
};
void writer_init(struct writer *w);
void writer_deinit(struct writer *w);
void writer_map(struct writer *w, size_t pairs);
void writer_array(struct writer *w, size_t n);
void writer_key(struct writer *w, const char *key);
void writer_str(struct writer *w, const char *s); /* NULL: nil */
void writer_strn(struct writer *w, const char *s, size_t len);
void writer_bin(struct writer *w, const void *data, size_t len);
void writer_u64(struct writer *w, uint64_t v);
void writer_i64(struct writer *w, int64_t v);
void writer_bool(struct writer *w, bool v);
void writer_hex(struct writer *w, const unsigned char *data, size_t len); /* as lower-case text */
void writer_append(struct writer *w, const struct writer *values);        /* what another has written */
#define writer_kstr(w, k, v) (writer_key((w), (k)), writer_str((w), (v)))
#define writer_ku64(w, k, v) (writer_key((w), (k)), writer_u64((w), (v)))
/* Appends each verb ("load") and each of its fields ("load.source") as strings, except `lacking` (may be NULL). How
 * many. */
size_t writer_features(struct writer *w, const char *lacking);
/* The number by which "hello" names this list: of two builds that have the same number the lists are equal. Not 0. */
extern const uint64_t features_number;

/* A key of a map and its value. writer_map_of(w, pair...) writes a map of the pairs that are not left out. */
struct pair {
        const char *key;
        unsigned key_size; /* its bytes: constant where the key is */
        enum {
                PAIR_NONE,
                PAIR_U64,
                PAIR_BOOL,
                PAIR_TEXT,
                PAIR_HEX,
                PAIR_BIN,
                PAIR_MAP,
                PAIR_ITEMS,
                PAIR_ARRAY,
                PAIR_CALL,
        } kind;
        uint64_t number; /* the value, or its bytes, pairs or items */
        union {
                void (*write)(struct writer *w, const void *data);
                void (*write_item)(struct writer *w, const void *data, size_t i);
        };
        union {
                const char *text; /* NULL: nil */
                const void *data;
        };
};
#define PAIR(k, ...) ((struct pair){.key = (k), .key_size = (unsigned)__builtin_strlen(k), __VA_ARGS__})
#define ku64(k, v) PAIR(k, .kind = PAIR_U64, .number = (v))
#define kbool(k, v) PAIR(k, .kind = PAIR_BOOL, .number = (v))
#define kstr(k, v) kstrn(k, v, SIZE_MAX)
#define kstrn(k, v, n) PAIR(k, .kind = PAIR_TEXT, .text = (v), .number = (n))
#define khex(k, v, n) PAIR(k, .kind = PAIR_HEX, .data = (v), .number = (n))
#define kbin(k, v, n) PAIR(k, .kind = PAIR_BIN, .data = (v), .number = (n))
#define kmap(k, ...) PAIR(k, .kind = PAIR_MAP, .data = PAIR_LIST(__VA_ARGS__), .number = N_PAIRS(__VA_ARGS__))
/* An array of items (struct items); of n items that f(w, v, i) writes, one by one. The value that f(w, v) writes. */
#define kitems(k, v) PAIR(k, .kind = PAIR_ITEMS, .data = &(v)->w, .number = (v)->n)
#define karray(k, f, v, n) PAIR(k, .kind = PAIR_ARRAY, .write_item = (f), .data = (v), .number = (n))
#define kcall(k, f, v) PAIR(k, .kind = PAIR_CALL, .write = (f), .data = (v))
/* Left out, and not evaluated, unless the condition holds. */
#define kif(condition, p) ((condition) ? (p) : (struct pair){.kind = PAIR_NONE})

#define PAIR_LIST(...) ((const struct pair[]){__VA_ARGS__})
#define N_PAIRS(...) (sizeof(PAIR_LIST(__VA_ARGS__)) / sizeof(struct pair))
#define PAIRS(...) PAIR_LIST(__VA_ARGS__), N_PAIRS(__VA_ARGS__)
void writer_pairs(struct writer *w, const struct pair *pairs, size_t n);
#define writer_map_of(w, ...) writer_pairs(w, PAIRS(__VA_ARGS__))

/* Items of an array, which are written and counted before it. items_add(items, pair...) adds a map. */
struct items {
        struct writer w;
        size_t n;
};
void items_init(struct items *items);
void items_deinit(struct items *items);
#define items_add(items, ...) ((items)->n++, writer_map_of(&(items)->w, __VA_ARGS__))

/* {id, ok: true, pair...}; {id, ok: false, code, text, hopeless?} */
#define REPLY_PAIRS(id, ...) PAIRS(ku64("id", id), kbool("ok", true), __VA_ARGS__)
#define ERROR_PAIRS(id, error, message, hopeless)                                                                      \
        PAIRS(ku64("id", id), kbool("ok", false), kstr("code", code_wire(error)), kstr("text", message),               \
              kif(hopeless, kbool("hopeless", true)))

/* ---- reading replies and events (the client) ---- */

/* A decoded message; look-ups answer NULL/false for a missing field or a wrong type. */
struct message {
        msgpack_unpacked unpacked;
        void *memory; /* the bytes it refers to; freed with it if set */
};
/* Takes a copy of the bytes. 0, STREAMER_EPROTO or STREAMER_ENOMEM. */
int message_decode(struct message *out, const void *data, size_t len);
void message_deinit(struct message *m);
const msgpack_object *object_get(const msgpack_object *map, const char *key);
bool object_u64(const msgpack_object *map, const char *key, uint64_t *out);
bool object_bool(const msgpack_object *map, const char *key, bool *out);
bool object_str(const msgpack_object *map, const char *key, const char **s, size_t *len);
bool object_bin(const msgpack_object *map, const char *key, const char **data, size_t *len);
bool object_str_eq(const msgpack_object *map, const char *key, const char *want);
