/* SPDX-License-Identifier: Apache-2.0
 *
 * XML pulled from a text, in one pass and in place: what services answer (lists, errors, sessions)
 * and no more. No tree, no copy, no document type, no entities but the five of XML and numbers.
 *
 *   while ((e = xml_next(&xml)) == XML_OPEN || e == XML_CLOSE)
 *           if (e == XML_CLOSE && xml_is(&xml, "Key")) use(xml.text);
 *
 * An element's text is given when it closes: what stood between its last tag of whatever kind and
 * this one, so for an element that holds no others all that it holds.
 */
#ifndef DAEMON_SOURCE_XML_H
#define DAEMON_SOURCE_XML_H

#include <stdbool.h>
#include <stddef.h>

#define XML_DEPTH 16

enum xml_event { XML_OPEN, XML_CLOSE, XML_END, XML_BAD };

struct xml {
        char *at, *end;
        const char *name; /* of the element that was opened or closed, without its prefix */
        char *text;       /* at XML_CLOSE */
        const char *why;  /* at XML_BAD: what is wrong */
        unsigned depth;   /* of elements that are open */

        /* private */
        const char *open[XML_DEPTH]; /* whole names */
        bool close_next, seen_root;
};

/* The text is borrowed, changed, and has room for one more byte, a NUL, at its end. */
void xml_init(struct xml *xml, char *text, size_t size);
enum xml_event xml_next(struct xml *xml);
bool xml_is(const struct xml *xml, const char *name);

#endif
