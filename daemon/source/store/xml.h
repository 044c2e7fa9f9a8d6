/* SPDX-License-Identifier: Apache-2.0
 *
 * XML of stores and services, as a list of elements. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define XML_ELEMENTS (1u << 18)

struct xml_element {
        const char *name; /* without its prefix */
        char *text;       /* between the previous tag and the end tag; may be changed */
        unsigned depth;   /* elements around it */
        bool encoded;     /* its tag has Encoded="true" (Azure's names) */
};

struct xml {
        struct xml_element *elements; /* in the order of their end tags */
        size_t n;
        char *texts;
        size_t size;     /* of texts */
        const char *why; /* the text is not valid: its elements are those before the fault; NULL: it is valid */
};

/* By libexpat. Accepts only UTF-8, no document type (so only XML's predefined entities), and at most XML_ELEMENTS. */
void xml_init(struct xml *xml, const char *text, size_t size);
void xml_deinit(struct xml *xml);
