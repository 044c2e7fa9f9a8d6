/* SPDX-License-Identifier: Apache-2.0
 *
 * A page is accepted as a whole or not at all: missing or duplicate entries would be missing shards of a model.
 */
#include "daemon/source/s3/s3_reply.h"

#include "daemon/base/hash.h"
#include "daemon/base/text/percent.h"
#include "daemon/base/util.h"
#include "daemon/io/http/http.h"
#include "daemon/source/store/xml.h"

#include <openssl/evp.h>

/* ---- lists ---- */

static int bad_list(const char *why, struct error *error)
{
        return error_set(error, STREAMER_EFAILED, "the store's list of keys is not valid: %s", why);
}

/* A key with its fields: n elements. A store that does not know the delimiter also lists the keys of folders below.
 * If-Match requires quotes, which some stores omit in their lists. A key without an ETag has its time instead. */
static int add_entry(struct listing *list, const struct xml_element *fields, size_t n, const char *prefix, bool encoded,
                     struct error *error)
{
        const char *size = NULL, *etag = "", *modified = "";
        char *key = NULL;
        size_t len = strlen(prefix);
        uint64_t bytes;
        for (size_t i = 0; i < n; i++) {
                if (fields[i].depth != 2)
                        continue;
                if (strcmp(fields[i].name, "Key") == 0)
                        key = fields[i].text;
                else if (strcmp(fields[i].name, "Size") == 0)
                        size = fields[i].text;
                else if (strcmp(fields[i].name, "ETag") == 0)
                        etag = fields[i].text;
                else if (strcmp(fields[i].name, "LastModified") == 0)
                        modified = fields[i].text;
        }
        if (key == NULL || size == NULL)
                return bad_list("a key or its size is missing", error);
        if (http_number(size, &bytes) < 0)
                return bad_list("a size is not a number", error);
        if (encoded && !percent_decode(key, ' '))
                return bad_list("a key is not percent-encoded as it should be", error);
        if (strncmp(key, prefix, len) != 0)
                return 0;
        bool has_etag = http_etag_valid(etag);
        const char *quote = has_etag && strchr(etag, '"') == NULL ? "\"" : "";
        cleanup_free char *tag = format_new("%s%s%s", quote, has_etag ? etag : modified, quote);
        return tag != NULL ? listing_add(list, key + len, bytes, tag, error) : error_no_memory(error);
}

int s3_page_parse(char **next, const char *text, size_t size, const char *prefix, struct listing *list,
                  struct error *error)
{
        static const char encoding[] = "<EncodingType>url<";
        /* The element may follow the keys. A store that does not know the encoding omits it. */
        bool encoded = memmem(text, size, encoding, sizeof(encoding) - 1) != NULL, truncated = false;
        cleanup_with(xml_deinit) struct xml xml;
        const char *token = NULL;
        int r = 0;
        *next = NULL;
        xml_init(&xml, text, size);
        if (xml.why != NULL || strcmp(xml.elements[xml.n - 1].name, "ListBucketResult") != 0)
                return bad_list(xml.why ?: "it is something else", error);
        size_t first = 0; /* of the elements since the last one in the list itself */
        for (size_t i = 0; r == 0 && i < xml.n; i++) {
                const struct xml_element *element = &xml.elements[i];
                if (element->depth != 1)
                        continue;
                if (strcmp(element->name, "Contents") == 0)
                        r = add_entry(list, &xml.elements[first], i - first, prefix, encoded, error);
                else if (strcmp(element->name, "IsTruncated") == 0)
                        truncated = strcmp(element->text, "true") == 0;
                else if (strcmp(element->name, "NextContinuationToken") == 0)
                        token = token ?: element->text;
                first = i + 1;
        }
        if (r < 0 || !truncated)
                return r;
        if (token == NULL)
                return bad_list("it is truncated and names no next page", error);
        *next = strdup(token);
        return *next != NULL ? 0 : error_no_memory(error);
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
