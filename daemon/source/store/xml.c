/* SPDX-License-Identifier: Apache-2.0
 *
 * The texts and names of all elements are stored one after another in a buffer of the size of the document: with their
 * NULs they are no longer than the element's source. Responses may hold credentials, so the buffer is wiped.
 */
#include "daemon/source/store/xml.h"

#include "daemon/base/util.h"

#include <expat.h>
#include <limits.h>

struct parse {
        XML_Parser parser;
        struct xml *xml;
        unsigned depth;
        char *begin, *end; /* of the element's text */
        bool encoded;      /* the last tag that was opened is so */
};

static void stop(struct parse *p, const char *why)
{
        p->xml->why = why;
        XML_StopParser(p->parser, XML_FALSE);
}

static void on_open(void *context, const char *name, const char **attributes)
{
        struct parse *p = context;
        p->end = p->begin;
        p->depth++;
        p->encoded = false;
        for (; attributes[0] != NULL; attributes += 2)
                p->encoded =
                        p->encoded || (strcmp(attributes[0], "Encoded") == 0 && strcmp(attributes[1], "true") == 0);
}

static void on_close(void *context, const char *name)
{
        struct parse *p = context;
        struct xml *xml = p->xml;
        const char *colon = strchr(name, ':');
        if (xml->n == XML_ELEMENTS) {
                stop(p, "too many elements");
                return;
        }
        struct xml_element *elements = array_grow(xml->elements, xml->n, sizeof(*elements));
        if (elements == NULL) {
                stop(p, "no memory");
                return;
        }
        xml->elements = elements;
        *p->end = '\0';
        elements[xml->n++] = (struct xml_element){p->end + 1, p->begin, --p->depth, p->encoded};
        p->encoded = false;
        p->begin = p->end = stpcpy(p->end + 1, colon != NULL ? colon + 1 : name) + 1;
}

static void on_text(void *context, const char *text, int len)
{
        struct parse *p = context;
        memcpy(p->end, text, (size_t)len);
        p->end += len;
}

static void on_document_type(void *context, const char *name, const char *system, const char *public, int subset)
{
        stop(context, "a document type");
}

void xml_init(struct xml *xml, const char *text, size_t size)
{
        *xml = (struct xml){.texts = malloc(size + 1), .size = size + 1};
        struct parse p = {.parser = XML_ParserCreate("UTF-8"), .xml = xml, .begin = xml->texts, .end = xml->texts};
        if (xml->texts != NULL && p.parser != NULL && size <= INT_MAX) {
                XML_SetUserData(p.parser, &p);
                XML_SetElementHandler(p.parser, on_open, on_close);
                XML_SetCharacterDataHandler(p.parser, on_text);
                XML_SetStartDoctypeDeclHandler(p.parser, on_document_type);
                if (XML_Parse(p.parser, text, (int)size, 1) == XML_STATUS_ERROR && xml->why == NULL)
                        xml->why = XML_ErrorString(XML_GetErrorCode(p.parser));
        } else {
                xml->why = "no memory";
        }
        if (p.parser != NULL)
                XML_ParserFree(p.parser);
}

void xml_deinit(struct xml *xml)
{
        if (xml->texts != NULL)
                explicit_bzero(xml->texts, xml->size);
        free(xml->texts);
        free(xml->elements);
}
