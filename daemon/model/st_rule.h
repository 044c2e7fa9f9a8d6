/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules that a safetensors header or an index can break, and the message for each: one line of printable text,
 * whatever bytes the header held.
 */
#ifndef DAEMON_MODEL_RULE_H
#define DAEMON_MODEL_RULE_H

#include "daemon/base/json/json.h"

#include <stdint.h>

/* The rules a file can break; each has a short name for messages and tests. */
#define ST_RULES(X)                                                                                                    \
        X(FILE_TOO_SMALL, "file-too-small")         /* fewer than 8 bytes */                                           \
        X(HEADER_TOO_LARGE, "header-too-large")     /* n > 100,000,000 */                                              \
        X(HEADER_BEYOND_FILE, "header-beyond-file") /* 8 + n > file size */                                            \
        X(NUL_IN_NAME, "nul-in-name")                                                                                  \
        X(BAD_METADATA, "bad-metadata") /* not string > string */                                                      \
        X(BAD_ENTRY, "bad-entry")       /* not an object, field missing or of a wrong type */                          \
        X(UNKNOWN_DTYPE, "unknown-dtype")                                                                              \
        X(BAD_SHAPE, "bad-shape")             /* negative, fraction, overflow, rank */                                 \
        X(BAD_OFFSETS, "bad-offsets")         /* not two, begin > end, overflow */                                     \
        X(SIZE_MISMATCH, "size-mismatch")     /* end - begin is not shape x bits / 8 */                                \
        X(NOT_WHOLE_BYTES, "not-whole-bytes") /* bits % 8 != 0 */                                                      \
        X(HOLE_OR_OVERLAP, "hole-or-overlap")                                                                          \
        X(FILE_SIZE, "file-size") /* 8 + n + last end != file size */

/* Those of the text itself (json.h); TOO_MANY is of tensors and pairs of metadata, too. */
#define ST_JSON_RULES(X)                                                                                               \
        X(NOT_JSON, "not-json")                                                                                        \
        X(NOT_UTF8, "not-utf8")                                                                                        \
        X(DUPLICATE_KEY, "duplicate-key")                                                                              \
        X(TOO_DEEP, "too-deep")                                                                                        \
        X(TOO_MANY, "too-many")                                                                                        \
        X(NO_MEMORY, "no-memory")

enum st_rule {
        ST_OK = JSON_OK,
        ST_NOT_JSON = JSON_SYNTAX,
        ST_NOT_UTF8 = JSON_NOT_UTF8,
        ST_DUPLICATE_KEY = JSON_DUPLICATE_KEY,
        ST_TOO_DEEP = JSON_TOO_DEEP,
        ST_TOO_MANY = JSON_TOO_MANY,
        ST_NO_MEMORY = JSON_NO_MEMORY,
        ST_LAST_OF_JSON = JSON_FAULTS - 1,
#define X(name, text) ST_##name,
        ST_RULES(X)
#undef X
};
const char *st_rule_name(enum st_rule rule);

struct st_error {
        enum st_rule rule;
        uint64_t offset; /* in the file, of the byte where it was noticed */
        char text[400];  /* "rule: tensor 'name': detail (header offset N)", control bytes escaped */
};

/* "rule: detail", for a rule that is broken before the text is read. */
void rule_refuse(struct st_error *error, enum st_rule rule, const char *detail);

/* "rule: WHAT 'name': detail (header offset N)" from the text's first fault; without the middle part
 * where name.s is NULL. The text begins `start` bytes into its file. */
void rule_report(struct st_error *error, const struct json *j, uint64_t start, const char *what, struct name name);

#endif
