/* SPDX-License-Identifier: Apache-2.0
 *
 * A list is taken only as a whole page that makes sense: what is missing or double in it would be
 * shards that are missing in a model. An error's body is taken for what it tells: it is read after
 * something has failed, and must not fail for itself.
 */
#include "daemon/source/s3_reply.h"

#include "daemon/base/percent.h"
#include "daemon/base/util.h"
#include "daemon/source/xml.h"

#include <errno.h>
#include <string.h>

/* ---- errors ---- */

static void keep(char *to, size_t size, const char *text)
{
        if (to[0] == '\0')
                error_escape(to, size, text);
}

void s3_fault_parse(struct s3_fault *fault, char *text, size_t size)
{
        struct xml xml;
        enum xml_event event;
        *fault = (struct s3_fault){.code = ""};
        xml_init(&xml, text, size);
        while ((event = xml_next(&xml)) == XML_OPEN || event == XML_CLOSE) {
                if (event == XML_OPEN)
                        continue;
                if (xml_is(&xml, "Code"))
                        keep(fault->code, sizeof(fault->code), xml.text);
                else if (xml_is(&xml, "Message"))
                        keep(fault->message, sizeof(fault->message), xml.text);
                else if (xml_is(&xml, "RequestId"))
                        keep(fault->request_id, sizeof(fault->request_id), xml.text);
                else if (xml_is(&xml, "Region"))
                        keep(fault->region, sizeof(fault->region), xml.text);
        }
}

/* ---- lists ---- */

bool s3_decode(char *text)
{
        char *to = text;
        for (const char *from = text; *from != '\0'; from++) {
                if (*from != '%') {
                        *to++ = *from == '+' ? ' ' : *from;
                        continue;
                }
                int byte = percent_byte(from);
                if (byte < 0)
                        return false;
                *to++ = (char)byte;
                from += 2;
        }
        *to = '\0';
        return true;
}

struct parser {
        struct xml xml;
        struct s3_page *page;
        struct s3_entry entry; /* being read */
        bool is_list, in_entry, has_size, truncated, encoded;
        s3_entry_fn fn;
        void *context;
};

static int bad_list(const char *why, struct error *error)
{
        return error_set(error, STREAMER_EFAILED, "the store's list of keys is not valid: %s", why);
}

static int parse_size(struct parser *p, struct error *error)
{
        const char *text = p->xml.text;
        char *end;
        errno = 0;
        p->entry.size = strtoull(text, &end, 10);
        p->has_size = text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0;
        return p->has_size ? 0 : bad_list("a size is not a number", error);
}

static int take_entry(struct parser *p, struct error *error)
{
        p->in_entry = false;
        p->page->n++;
        if (p->entry.key == NULL || !p->has_size)
                return bad_list("a key or its size is missing", error);
        return p->fn(p->context, &p->entry, error);
}

static int entry_field(struct parser *p, struct error *error)
{
        if (p->xml.depth == 1 && xml_is(&p->xml, "Contents"))
                return take_entry(p, error);
        if (p->xml.depth != 2)
                return 0;
        if (xml_is(&p->xml, "Size"))
                return parse_size(p, error);
        if (xml_is(&p->xml, "ETag"))
                p->entry.etag = p->xml.text;
        if (!xml_is(&p->xml, "Key"))
                return 0;
        p->entry.key = p->xml.text;
        return !p->encoded || s3_decode(p->xml.text) ? 0
                                                     : bad_list("a key is not percent-encoded as it should be", error);
}

static int list_field(struct parser *p, struct error *error)
{
        if (p->xml.depth != 1)
                return 0;
        if (xml_is(&p->xml, "IsTruncated"))
                p->truncated = strcmp(p->xml.text, "true") == 0;
        if (!xml_is(&p->xml, "NextContinuationToken") || p->page->next != NULL)
                return 0;
        p->page->next = strdup(p->xml.text);
        return p->page->next != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
}

static int opened(struct parser *p, struct error *error)
{
        if (p->xml.depth == 1) {
                p->is_list = xml_is(&p->xml, "ListBucketResult");
                return p->is_list ? 0 : bad_list("it is something else", error);
        }
        if (p->xml.depth == 2 && xml_is(&p->xml, "Contents")) {
                p->in_entry = true;
                p->has_size = false;
                p->entry = (struct s3_entry){.etag = ""};
        }
        return 0;
}

static int parse_events(struct parser *p, struct error *error)
{
        for (;;) {
                enum xml_event event = xml_next(&p->xml);
                if (event == XML_END)
                        return 0;
                if (event == XML_BAD)
                        return bad_list(p->xml.why, error);
                int r = event == XML_OPEN ? opened(p, error)
                        : p->in_entry     ? entry_field(p, error)
                                          : list_field(p, error);
                if (r < 0)
                        return r;
        }
}

int s3_page_parse(struct s3_page *page, char *text, size_t size, s3_entry_fn fn, void *context, struct error *error)
{
        struct parser p = {.page = page, .fn = fn, .context = context};
        *page = (struct s3_page){.next = NULL};
        xml_init(&p.xml, text, size);
        /* It may stand behind the keys. A store that does not know the encoding does not say so. */
        p.encoded = strstr(text, "<EncodingType>url<") != NULL;
        int r = parse_events(&p, error);
        if (r == 0 && p.truncated && page->next == NULL)
                r = bad_list("it is cut and does not tell how to go on", error);
        if (r < 0 || !p.truncated) {
                free(page->next);
                page->next = NULL;
        }
        return r;
}
