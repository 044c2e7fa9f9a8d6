/* SPDX-License-Identifier: Apache-2.0
 *
 * XML responses of services (lists, errors, sessions), element by element, parsed by libexpat. UTF-8 alone, no document
 * type (and so no entities but those of XML), XML_DEPTH levels at most.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define XML_DEPTH 16

/* An element that ends. */
struct xml {
        const char *name; /* without its prefix */
        char *text;       /* between the previous tag and the end tag */
        unsigned depth;   /* elements around it */
};

/* Negative: ends the parsing. The text may be changed; it lives until xml_parse() returns. */
typedef int (*xml_fn)(void *context, const struct xml *xml);

/* 0; the negative result of fn(); or -1 with *why: the text is not valid. *why is NULL otherwise. */
int xml_parse(const char *text, size_t size, xml_fn fn, void *context, const char **why);
bool xml_is(const struct xml *xml, const char *name);
