/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON pulled from a text, in one pass and in place: no tree, no copy. Strings are unescaped in
 * place, and a NUL replaces their closing quote.
 *
 * Strict: RFC 8259 with duplicate keys refused, UTF-8 without surrogates, one value and white space.
 * The first fault is stored; after it every function returns false.
 */
#pragma once

#include "daemon/base/json/names.h"

#define JSON_DEPTH 128   /* levels of a value that is skipped */
#define JSON_FIELDS 4096 /* keys of an object that is skipped, or of which fields are */

/* The faults of a text. A caller numbers its own from JSON_FAULTS on. */
enum json_fault {
        JSON_OK,
        JSON_SYNTAX, /* trailing bytes, too */
        JSON_NOT_UTF8,
        JSON_DUPLICATE_KEY,
        JSON_TOO_DEEP, /* nesting of values that are skipped */
        JSON_TOO_MANY, /* keys of one object */
        JSON_NO_MEMORY,
        JSON_FAULTS
};

struct json_string {
        uint32_t at, len; /* in the text */
};

struct json {
        char *text;
        size_t size;
        size_t at; /* the next byte */
        unsigned depth;

        struct json_string *keys; /* of the objects that are open, the innermost last */
        size_t n_keys, max_keys;
        struct nameset set;

        int fault;       /* the first: enum json_fault, or the caller's; JSON_OK while there is none */
        size_t fault_at; /* in the text */
        char detail[200];
};

/* The text is borrowed; its size fits 32 bits. */
void json_init(struct json *j, char *text, size_t size);
void json_deinit(struct json *j);

/* Stores the first fault; always false. */
bool json_fail(struct json *j, int fault, size_t at, const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The text at this place violates the grammar; always false. */
bool json_unexpected(struct json *j, const char *wanted);

/* The next byte that is not white space, which becomes the position; 0 at the end. */
char json_peek(struct json *j);

/* Steps over '{' or '['; false without a fault if the next byte is another. */
bool json_open(struct json *j, char bracket);
/* Whether another item follows, past its comma, after n items; steps over the closing bracket if not. */
bool json_more(struct json *j, char bracket, size_t n);

bool json_take_string(struct json *j, struct json_string *string);
/* The text of a string, NUL-terminated; a value of another kind is skipped, and *text is unchanged. */
bool json_take_text(struct json *j, const char **text);
/* The key of the next member, past its colon; *n counts the members. False: the object has ended, or a fault. */
bool json_member(struct json *j, size_t *n, struct json_string *key);
/* A whole number that fits 64 bits; anything else is this fault. */
bool json_whole(struct json *j, int fault, uint64_t *value);
/* Any value. */
bool json_skip(struct json *j);
/* Nothing but white space is left. */
bool json_end(struct json *j);

/* Keys of one object, to be checked against each other when it ends. `begin`: n_keys when it began. */
bool json_keys_add(struct json *j, size_t begin, struct json_string key);
bool json_keys_end(struct json *j, size_t begin);
/* That n strings, each at the start of an item of `stride` bytes, are distinct. */
bool json_distinct(struct json *j, const void *strings, size_t stride, size_t n);

/* Appends an item to a caller's list, a pointer to an array of *n of them. False: a fault, at the item's place `at`, if
 * there are `max` already; `what` is the name of the items. */
bool json_append(struct json *j, void *list, size_t *n, const void *item, size_t size, size_t max, size_t at,
                 const char *what);

static inline bool json_is(const struct json *j, struct json_string string, const char *word, size_t len)
{
        return string.len == len && __builtin_memcmp(j->text + string.at, word, len) == 0;
}
#define JSON_IS(j, string, word) json_is((j), (string), (word), sizeof(word) - 1)
