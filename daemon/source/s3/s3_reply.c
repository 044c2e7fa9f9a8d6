/* SPDX-License-Identifier: Apache-2.0
 *
 * A page is accepted as a whole or not at all: missing or duplicate entries would be missing shards of a model. The
 * body of an error is parsed leniently: it is read after a failure and must not fail itself.
 */
#include "daemon/source/s3/s3_reply.h"

#include "daemon/base/hash.h"
#include "daemon/base/text/percent.h"
#include "daemon/base/util.h"
#include "daemon/source/s3/xml.h"

#include <errno.h>
#include <openssl/evp.h>

/* ---- errors ---- */

/* The first of several elements with one name counts. */
static int fault_element(void *context, const struct xml *xml)
{
        struct s3_fault *fault = context;
        const struct {
                const char *name;
                char *to;
                size_t size;
        } fields[] = {{"Code", fault->code, sizeof(fault->code)},
                      {"Message", fault->message, sizeof(fault->message)},
                      {"RequestId", fault->request_id, sizeof(fault->request_id)},
                      {"Region", fault->region, sizeof(fault->region)}};
        for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
                if (xml_is(xml, fields[i].name) && fields[i].to[0] == '\0')
                        error_escape(fields[i].to, fields[i].size, xml->text);
        return 0;
}

void s3_fault_parse(struct s3_fault *fault, const char *text, size_t size)
{
        const char *why;
        *fault = (struct s3_fault){.code = ""};
        xml_parse(text, size, fault_element, fault, &why);
}

/* ---- lists ---- */

struct parser {
        char **next;
        struct error *error;
        struct s3_entry entry; /* being read: of the elements since the last one in the list itself */
        bool has_size, truncated, encoded;
        s3_entry_fn fn;
        void *context;
};

static int bad_list(const char *why, struct error *error)
{
        return error_set(error, STREAMER_EFAILED, "the store's list of keys is not valid: %s", why);
}

static int entry_field(struct parser *p, const struct xml *xml)
{
        if (xml_is(xml, "Size")) {
                char *end;
                errno = 0;
                p->entry.size = strtoull(xml->text, &end, 10);
                p->has_size = xml->text[0] >= '0' && xml->text[0] <= '9' && *end == '\0' && errno == 0;
                return p->has_size ? 0 : bad_list("a size is not a number", p->error);
        }
        if (xml_is(xml, "ETag"))
                p->entry.etag = xml->text;
        if (!xml_is(xml, "Key"))
                return 0;
        p->entry.key = xml->text;
        return !p->encoded || percent_decode(xml->text, ' ')
                       ? 0
                       : bad_list("a key is not percent-encoded as it should be", p->error);
}

static int list_field(struct parser *p, const struct xml *xml)
{
        const struct s3_entry entry = p->entry;
        bool complete = entry.key != NULL && p->has_size;
        p->entry = (struct s3_entry){.etag = ""};
        p->has_size = false;
        if (xml_is(xml, "Contents"))
                return complete ? p->fn(p->context, &entry, p->error)
                                : bad_list("a key or its size is missing", p->error);
        if (xml_is(xml, "IsTruncated"))
                p->truncated = strcmp(xml->text, "true") == 0;
        if (!xml_is(xml, "NextContinuationToken") || *p->next != NULL)
                return 0;
        *p->next = strdup(xml->text);
        return *p->next != NULL ? 0 : error_no_memory(p->error);
}

static int list_element(void *context, const struct xml *xml)
{
        struct parser *p = context;
        if (xml->depth == 0 && !xml_is(xml, "ListBucketResult"))
                return bad_list("it is something else", p->error);
        return xml->depth == 2 ? entry_field(p, xml) : xml->depth == 1 ? list_field(p, xml) : 0;
}

int s3_page_parse(char **next, const char *text, size_t size, s3_entry_fn fn, void *context, struct error *error)
{
        static const char encoding[] = "<EncodingType>url<";
        struct parser p = {.next = next, .error = error, .entry.etag = "", .fn = fn, .context = context};
        const char *why;
        *next = NULL;
        /* The element may follow the keys. A store that does not know the encoding omits it. */
        p.encoded = memmem(text, size, encoding, sizeof(encoding) - 1) != NULL;
        int r = xml_parse(text, size, list_element, &p, &why);
        if (why != NULL)
                r = bad_list(why, error);
        if (r == 0 && p.truncated && *next == NULL)
                r = bad_list("it is truncated and names no next page", error);
        if (r < 0 || !p.truncated) {
                free(*next);
                *next = NULL;
        }
        return r;
}

bool s3_checksum_decode(const char *value, char hex[65])
{
        unsigned char digest[33];
        /* 32 bytes are 44 characters; "...=-12" is a checksum of checksums of 12 parts. */
        if (strlen(value) != 44 || value[43] != '=' ||
            EVP_DecodeBlock(digest, (const unsigned char *)value, 44) != (int)sizeof(digest))
                return false;
        hex_encode(hex, digest, 32);
        return true;
}
