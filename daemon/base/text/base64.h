/* SPDX-License-Identifier: Apache-2.0
 *
 * Base64 (RFC 4648).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Standard: with '+' and '/', and padded. Relaxed: also URL-safe, and without the padding. */
enum base64_form { BASE64_STANDARD, BASE64_RELAXED };

/* Decodes in place. False: it is none, or its last bits are not zero; the text may have changed. */
bool base64_decode(char *text, size_t len, enum base64_form form, size_t *decoded);
