/* SPDX-License-Identifier: Apache-2.0
 *
 * Between JSON and msgpack. Integers keep all 64 bits: those over 2^63 - 1, which JSON readers tend
 * to round, are written as strings. Binary values become hexadecimal text.
 */
#pragma once

#include "proto/codec.h"

#include <jansson.h>

json_t *json_from_object(const msgpack_object *o); /* NULL: no memory, or text that is not UTF-8 */
void json_write(struct writer *w, const json_t *value);
