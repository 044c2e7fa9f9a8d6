/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the values of a message in their order, without a tree of them in between.
 *
 * The bytes need not have been checked: a function that finds them malformed returns false.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes of msgpack that are left. */
struct bytes {
        const unsigned char *at, *end;
};

/* The head of the next value: of a map or an array, what follows are its members. */
struct value {
        enum value_kind {
                VALUE_NIL,
                VALUE_BOOL,
                VALUE_U64,
                VALUE_I64,
                VALUE_REAL,
                VALUE_TEXT,
                VALUE_BIN,
                VALUE_EXT,
                VALUE_ARRAY,
                VALUE_MAP,
        } kind;
        uint64_t number; /* the value; or its bytes, items or pairs */
        double real;
        const char *data; /* of a text or bin */
};
bool bytes_next(struct bytes *bytes, struct value *value);
/* Steps over a whole value. */
bool bytes_skip(struct bytes *bytes);
/* Behind the head of a map of `pairs`: moves to the value of this key. False: it has none. */
bool bytes_find(struct bytes *bytes, uint64_t pairs, const char *key);
static inline bool value_is_text(const struct value *value, const char *text)
{
        return value->kind == VALUE_TEXT && __builtin_strlen(text) == value->number &&
               __builtin_memcmp(text, value->data, value->number) == 0;
}
