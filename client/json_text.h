/* SPDX-License-Identifier: Apache-2.0
 *
 * The JSON text of a message's bytes, without a tree of either in between: a list may have ten thousands of rows. It is
 * the text that jansson would write of json_from_object(), whose rules for numbers and bytes hold here, too (json.h).
 *
 * The bytes need not have been checked: a function that finds them malformed returns false.
 */
#pragma once

#include "proto/bytes.h"

/* It grows; `failed`: there was no memory. Zeroed, it is empty. */
struct text {
        char *data;
        size_t size, capacity;
        bool failed;
};
void text_add(struct text *text, const char *data, size_t n);
void text_deinit(struct text *text);
/* The next value. False: it is malformed, or has a text that is not UTF-8. */
bool text_add_value(struct text *text, struct bytes *bytes);
/* In quotes. */
bool text_add_string(struct text *text, const char *data, size_t n);
