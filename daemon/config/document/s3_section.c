/* SPDX-License-Identifier: Apache-2.0
 *
 * The list s3.sources: endpoints and keys for some sources. No error text repeats a value: it may be a secret given
 * under the wrong key.
 */
#include "daemon/config/document/document.h"

#include "daemon/base/util.h"

#include <string.h>

static int set_addressing(void *member, const char *value, char why[SETTING_WHY])
{
        return setting_parse_addressing(member, value, why);
}

/* The member is the entry. */
static int set_unsigned(void *member, const char *value, char why[SETTING_WHY])
{
        struct s3_endpoint_opts *s3 = member;
        s3->is_unsigned = strcmp(value, "true") == 0;
        s3->is_signed = strcmp(value, "false") == 0;
        return s3->is_unsigned || s3->is_signed ? 0 : setting_wrong(why, "neither true nor false");
}

#define TEXT(name) DOC_TEXT(struct s3_endpoint_opts, name)
static const struct doc_field fields[] = {
        TEXT(source),
        TEXT(endpoint),
        TEXT(region),
        TEXT(ca),
        TEXT(profile),
        TEXT(access_key),
        TEXT(secret_key),
        TEXT(session_token),
        {"addressing", set_addressing, offsetof(struct s3_endpoint_opts, addressing), false},
        {"unsigned", set_unsigned, 0, false},
};

static int check_source(struct doc *doc, void *entry)
{
        const struct s3_endpoint_opts *s3 = entry;
        const char *source = s3->source;
        if (source == NULL || strncmp(source, "s3://", 5) != 0 || source[5] == '\0' || source[5] == '/')
                return doc_fail(doc, "has no 'source' that begins with s3://BUCKET");
        if ((s3->access_key == NULL) != (s3->secret_key == NULL))
                return doc_fail(doc, "of access_key and secret_key one is given without the other");
        if (s3->session_token != NULL && s3->access_key == NULL)
                return doc_fail(doc, "session_token without access_key");
        if (s3->is_unsigned && s3->access_key != NULL)
                return doc_fail(doc, "unsigned, and with keys");
        for (const struct s3_endpoint_opts *other = doc->config->s3_sources; other != s3; other++)
                if (strcmp(other->source, source) == 0)
                        return doc_fail(doc, "the source is listed twice");
        return 0;
}

const struct doc_list s3_sources = {.key = "s3.sources",
                                    .fields = fields,
                                    .n_fields = ARRAY_SIZE(fields),
                                    .entry_size = sizeof(struct s3_endpoint_opts),
                                    .max = SETTING_LIST_MAX,
                                    .too_many = "too many sources",
                                    .entries = offsetof(struct config, s3_sources),
                                    .n = offsetof(struct config, n_s3_sources),
                                    .check = check_source};

bool s3_same_sources(const struct config *a, const struct config *b)
{
        bool same = a->n_s3_sources == b->n_s3_sources;
        for (size_t i = 0; same && i < a->n_s3_sources; i++) {
                const struct s3_endpoint_opts *x = &a->s3_sources[i], *y = &b->s3_sources[i];
                same = doc_same_texts(&s3_sources, x, y) && x->addressing == y->addressing &&
                       x->is_unsigned == y->is_unsigned && x->is_signed == y->is_signed;
        }
        return same;
}
