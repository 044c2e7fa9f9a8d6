/* SPDX-License-Identifier: Apache-2.0
 *
 * The texts of all elements are stored one after another in a buffer of the size of the document: a text with its NUL
 * is no longer than its source with the tag that follows. Responses may hold credentials, so the buffer is wiped.
 */
#include "daemon/source/s3/xml.h"

#include "daemon/base/util.h"

#include <expat.h>
#include <limits.h>

struct parse {
        XML_Parser parser;
        struct xml xml;
        xml_fn fn;
        void *context;
        char *texts, *begin, *end; /* of the element's text */
        const char *why;
        int result;
};

bool xml_is(const struct xml *xml, const char *name)
{
        return strcmp(xml->name, name) == 0;
}

static void stop(struct parse *p, int result, const char *why)
{
        p->result = result;
        p->why = why;
        XML_StopParser(p->parser, XML_FALSE);
}

static void on_open(void *context, const char *name, const char **attributes)
{
        struct parse *p = context;
        p->end = p->begin;
        if (p->xml.depth++ == XML_DEPTH)
                stop(p, -1, "too many levels");
}

/* After a stop in a start tag, Expat may still report the end tag of the same element. */
static void on_close(void *context, const char *name)
{
        struct parse *p = context;
        const char *colon = strchr(name, ':');
        *p->end = '\0';
        p->xml.name = colon != NULL ? colon + 1 : name;
        p->xml.text = p->begin;
        p->begin = ++p->end;
        p->xml.depth--;
        int r = p->result == 0 ? p->fn(p->context, &p->xml) : 0;
        if (r < 0)
                stop(p, r, NULL);
}

static void on_text(void *context, const char *text, int len)
{
        struct parse *p = context;
        memcpy(p->end, text, (size_t)len);
        p->end += len;
}

static void on_document_type(void *context, const char *name, const char *system, const char *public, int subset)
{
        stop(context, -1, "a document type");
}

int xml_parse(const char *text, size_t size, xml_fn fn, void *context, const char **why)
{
        struct parse p = {.fn = fn, .context = context};
        *why = "no memory";
        p.texts = p.begin = p.end = malloc(size + 1);
        p.parser = XML_ParserCreate("UTF-8");
        if (p.texts != NULL && p.parser != NULL && size <= INT_MAX) {
                XML_SetUserData(p.parser, &p);
                XML_SetElementHandler(p.parser, on_open, on_close);
                XML_SetCharacterDataHandler(p.parser, on_text);
                XML_SetStartDoctypeDeclHandler(p.parser, on_document_type);
                if (XML_Parse(p.parser, text, (int)size, 1) == XML_STATUS_ERROR && p.result == 0)
                        stop(&p, -1, XML_ErrorString(XML_GetErrorCode(p.parser)));
                *why = p.why;
        } else {
                p.result = -1;
        }
        if (p.parser != NULL)
                XML_ParserFree(p.parser);
        if (p.texts != NULL)
                explicit_bzero(p.texts, size + 1);
        free(p.texts);
        return p.result;
}
