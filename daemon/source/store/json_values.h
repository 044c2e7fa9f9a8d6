/* SPDX-License-Identifier: Apache-2.0
 *
 * A small JSON document as a list of its scalars by path: {"a": {"b": [1, "x"]}} has "a.b.0" = "1" and "a.b.1" = "x".
 * For credential files and answers of services, which may hold secrets: all of it is wiped. Pure.
 */
#pragma once

#include "daemon/base/error.h"

#include <stddef.h>
#include <stdint.h>

#define JSON_VALUES_MAX 512

struct json_value {
        char *path, *text; /* of a string its contents, else the word as it is written; null is none */
};

struct json_values {
        struct json_value *v;
        size_t n;
};

/* Changes the text. False: it is no object, too deep or too large, or there is no memory; to be deinited anyway. */
bool json_values_init(struct json_values *values, char *text, size_t size);
void json_values_deinit(struct json_values *values);

/* NULL: none, or empty. */
const char *json_values_get(const struct json_values *values, const char *path);
/* Of the path "PREFIX" and this below it. */
const char *json_values_below(const struct json_values *values, const char *prefix, const char *path);
/* A whole number, also as a string; 0: it is something else. */
uint64_t json_values_number(const struct json_values *values, const char *path);
