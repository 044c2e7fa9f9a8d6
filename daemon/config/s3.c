/* SPDX-License-Identifier: Apache-2.0
 *
 * The list s3.sources: stores and keys of their own for some sources. No reason repeats a value: it may
 * be a secret that was given under the wrong key.
 */
#include "daemon/config/lists.h"

#include "daemon/base/secret.h"
#include "daemon/base/util.h"

#include <string.h>

#define TEXTS(X) X(source) X(endpoint) X(region) X(ca) X(profile) X(access_key) X(secret_key) X(session_token)

#define X(name)                                                                                                        \
        static int set_##name(void *entry, const char *value, char why[SETTING_WHY])                                   \
        {                                                                                                              \
                return setting_copy(&((struct config_s3 *)entry)->name, value, why);                                   \
        }
TEXTS(X)
#undef X

static int set_addressing(void *entry, const char *value, char why[SETTING_WHY])
{
        return setting_parse_addressing(&((struct config_s3 *)entry)->addressing, value, why);
}

static int set_unsigned(void *entry, const char *value, char why[SETTING_WHY])
{
        struct config_s3 *s3 = entry;
        s3->is_unsigned = strcmp(value, "true") == 0;
        s3->is_signed = strcmp(value, "false") == 0;
        return s3->is_unsigned || s3->is_signed ? 0 : setting_wrong(why, "neither true nor false");
}

static const struct doc_field fields[] = {
#define X(name) {#name, set_##name, false},
        TEXTS(X)
#undef X
                {"addressing", set_addressing, false},
        {"unsigned", set_unsigned, false},
};

static int check_source(struct doc *doc, const struct config_s3 *s3)
{
        const char *source = s3->source;
        if (source == NULL || strncmp(source, "s3://", 5) != 0 || source[5] == '\0' || source[5] == '/')
                return doc_fail(doc, "has no 'source' that begins with s3://BUCKET");
        if ((s3->access_key == NULL) != (s3->secret_key == NULL))
                return doc_fail(doc, "of access_key and secret_key one is given without the other");
        if (s3->session_token != NULL && s3->access_key == NULL)
                return doc_fail(doc, "session_token without access_key");
        if (s3->is_unsigned && s3->access_key != NULL)
                return doc_fail(doc, "unsigned, and with keys");
        for (const struct config_s3 *other = doc->config->s3_sources; other != s3; other++)
                if (strcmp(other->source, source) == 0)
                        return doc_fail(doc, "the source is listed twice");
        return 0;
}

static const struct doc_list sources = {.name = "s3.sources",
                                        .fields = fields,
                                        .n_fields = ARRAY_SIZE(fields),
                                        .entry_size = sizeof(struct config_s3),
                                        .max = SETTING_LIST_MAX,
                                        .too_many = "too many sources"};

static int read_source(struct doc *doc)
{
        struct config *config = doc->config;
        struct config_s3 *v = doc_grow(doc, &sources, config->s3_sources, config->n_s3_sources);
        if (v == NULL)
                return doc->error->code;
        config->s3_sources = v;
        size_t i = config->n_s3_sources++;
        int r = doc_read_entry(doc, &sources, v, i);
        return r < 0 ? r : check_source(doc, &v[i]);
}

int s3_read_sources(struct doc *doc)
{
        return doc_read_list(doc, read_source);
}

bool s3_same_sources(const struct config *a, const struct config *b)
{
        bool same = a->n_s3_sources == b->n_s3_sources;
        for (size_t i = 0; same && i < a->n_s3_sources; i++) {
                const struct config_s3 *x = &a->s3_sources[i], *y = &b->s3_sources[i];
                same = x->addressing == y->addressing && x->is_unsigned == y->is_unsigned &&
                       x->is_signed == y->is_signed;
#define X(name) same = same && setting_same_text(x->name, y->name);
                TEXTS(X)
#undef X
        }
        return same;
}

/* ---- the end ---- */

static void clear(struct config_s3 *s3)
{
#define X(name) secret_free(s3->name);
        TEXTS(X)
#undef X
        *s3 = (struct config_s3){.source = NULL};
}

void setting_clear_s3(struct config *config)
{
        for (size_t i = 0; i < config->n_s3_sources; i++)
                clear(&config->s3_sources[i]);
        free(config->s3_sources);
        config->s3_sources = NULL;
        config->n_s3_sources = 0;
        clear(&config->s3);
        secret_free(config->hf.token);
        free(config->hf.endpoint);
}
