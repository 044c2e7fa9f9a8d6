/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/published.h"

#include "daemon/base/util.h"
#include "proto/published/table.h"

#include <openssl/crypto.h>
#include <string.h>

#define HEX_SIZE (2 * DIGEST_SIZE + 1)

/* ---- the key ---- */

static size_t name_len(const char *field)
{
        return strcspn(field, "=");
}

/* In order of names: the text before "=". */
static int compare_names(const char *a, const char *b)
{
        size_t x = name_len(a), y = name_len(b);
        int r = memcmp(a, b, x < y ? x : y);
        return r != 0 ? r : ORDER(x, y);
}

static int by_name(const void *a, const void *b)
{
        return compare_names(*(char *const *)a, *(char *const *)b);
}

/* For up to so many fields. */
static struct published *allocate(size_t n_key)
{
        struct published *p = calloc(1, sizeof(*p));
        if (p != NULL && (p->key = calloc(n_key + 1, sizeof(*p->key))) == NULL)
                p = published_free(p);
        return p;
}

static int add_field(struct published *published, const char *field)
{
        char *copy = strdup(field);
        if (copy == NULL)
                return STREAMER_ENOMEM;
        published->key[published->n_key++] = copy;
        return 0;
}

static int sort_key(struct published *published, struct error *error)
{
        if (published->n_key > 0)
                qsort(published->key, published->n_key, sizeof(*published->key), by_name);
        for (size_t i = 0; i < published->n_key; i++) {
                const char *field = published->key[i];
                if (field[0] == '=' || strchr(field, '=') == NULL)
                        return error_set(error, STREAMER_EINVAL, "key: '%s' is not NAME=VALUE", field);
                if (i > 0 && compare_names(field, published->key[i - 1]) == 0)
                        return error_set(error, STREAMER_EINVAL, "key: '%.*s' occurs twice", (int)name_len(field),
                                         field);
        }
        return 0;
}

int published_new(struct published **out, const char *const *key, size_t n_key, struct error *error)
{
        struct published *p = allocate(n_key);
        int r = p != NULL ? 0 : STREAMER_ENOMEM;
        for (size_t i = 0; r == 0 && i < n_key; i++)
                r = add_field(p, key[i]);
        if (r < 0)
                error_no_memory(error);
        else
                r = sort_key(p, error);
        if (r < 0)
                p = published_free(p);
        *out = p;
        return r;
}

struct published *published_free(struct published *published)
{
        if (published == NULL)
                return NULL;
        for (size_t i = 0; i < published->n_key; i++)
                free(published->key[i]);
        free(published->key);
        free(published->base.source);
        free(published);
        return NULL;
}

void published_key_differs(const struct published *have, const struct published *want, published_differs_fn *differs,
                           void *context)
{
        for (size_t i = 0, k = 0; i < have->n_key || k < want->n_key;) {
                const char *a = i < have->n_key ? have->key[i] : NULL, *b = k < want->n_key ? want->key[k] : NULL;
                int order = a == NULL ? 1 : b == NULL ? -1 : compare_names(a, b);
                const char *name = order <= 0 ? a : b;
                size_t len = name_len(name);
                const char *x = order <= 0 ? a + len + 1 : NULL, *y = order >= 0 ? b + len + 1 : NULL;
                i += order <= 0;
                k += order >= 0;
                if (!same_text(x, y))
                        differs(context, name, len, x, y);
        }
}

/* ---- the manifest's metadata ---- */

void published_each_pair(const struct published *published, published_pair_fn *pair, void *context)
{
        const struct published_base *base = &published->base;
        char hex[HEX_SIZE];
        if (base->source != NULL) {
                pair(context, PUBLISHED_BASE, base->source);
                hex_encode(hex, base->identity.digest, DIGEST_SIZE);
                pair(context, PUBLISHED_BASE_IDENTITY, hex);
        }
        if (base->has_digest) {
                hex_encode(hex, base->digest, DIGEST_SIZE);
                pair(context, PUBLISHED_BASE_DIGEST, hex);
        }
        for (size_t i = 0; i < published->n_key; i++) {
                const char *field = published->key[i];
                size_t len = name_len(field);
                char name[sizeof(PUBLISHED_KEY) + 256];
                snprintf(name, sizeof(name), PUBLISHED_KEY "%.*s", (int)len, field);
                pair(context, name, field + len + 1);
        }
}

static bool hex_decode(unsigned char bytes[DIGEST_SIZE], const char *hex)
{
        size_t n;
        return OPENSSL_hexstr2buf_ex(bytes, DIGEST_SIZE, &n, hex, '\0') == 1 && n == DIGEST_SIZE;
}

static int read_pair(struct published *p, const char *key, const char *value)
{
        if (strcmp(key, PUBLISHED_BASE) == 0 && p->base.source == NULL)
                return (p->base.source = strdup(value)) != NULL ? 0 : STREAMER_ENOMEM;
        if (strcmp(key, PUBLISHED_BASE_IDENTITY) == 0)
                return hex_decode(p->base.identity.digest, value) ? 0 : STREAMER_ECORRUPT;
        if (strcmp(key, PUBLISHED_BASE_DIGEST) == 0)
                return (p->base.has_digest = hex_decode(p->base.digest, value)) ? 0 : STREAMER_ECORRUPT;
        if (strncmp(key, PUBLISHED_KEY, strlen(PUBLISHED_KEY)) != 0)
                return 0;
        cleanup_free char *field = format_new("%s=%s", key + strlen(PUBLISHED_KEY), value);
        return field != NULL ? add_field(p, field) : STREAMER_ENOMEM;
}

int published_read(struct published **out, const struct manifest_view *manifest, struct error *error)
{
        struct published *p = allocate(manifest->header->n_metadata);
        int r = p != NULL ? 0 : STREAMER_ENOMEM;
        for (uint64_t i = 0; r == 0 && i < manifest->header->n_metadata; i++) {
                const char *key, *value;
                r = manifest_pair_get(manifest, i, &key, &value) ? read_pair(p, key, value) : STREAMER_ECORRUPT;
        }
        if (r == 0 && sort_key(p, NULL) < 0)
                r = STREAMER_ECORRUPT;
        *out = r == 0 ? p : published_free(p);
        return r == 0 ? 0 : error_set(error, r, "the key and base of a published model cannot be read");
}
