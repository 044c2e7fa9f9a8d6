/* SPDX-License-Identifier: Apache-2.0
 *
 * s3://bucket/key and s3://bucket/prefix/: the requests to S3 and stores with its interface. A bucket in another region
 * than assumed begins all of a load again, once.
 */
#include "daemon/base/log/log.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/aws/sigv4.h"
#include "daemon/source/s3/endpoint.h"
#include "daemon/source/s3/s3_reply.h"
#include "daemon/source/store/store.h"
#include "daemon/source/sums.h"

#include <strings.h>

#define SCHEME "s3://"

/* ---- URIs ---- */

static size_t key_at(const char *source)
{
        const char *slash = strchr(source + strlen(SCHEME), '/');
        return slash != NULL ? (size_t)(slash + 1 - source) : strlen(source);
}

static int s3_canonical(const char *source, char **out, struct error *error)
{
        const char *bucket = source + strlen(SCHEME);
        size_t len = strcspn(bucket, "/");
        char shown[REDACTED_SOURCE];
        redact_source(shown, source);
        if (len < 1 || len > 255 ||
            strspn(bucket, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._") < len)
                return error_set(error, STREAMER_EINVAL, "%s: not the name of a bucket", shown);
        return store_canonical(source, key_at(source), out, error);
}

static char *s3_default_name(const char *canonical, unsigned n)
{
        const char *path = canonical + strlen(SCHEME);
        return source_last_components(path, source_folder_len(path), n + 1);
}

/* ---- requests ---- */

static int enter(const struct sources *sources, struct store_place *p)
{
        const struct s3_endpoint *endpoint = s3_endpoints_find(sources->s3, p->dir.source);
        cleanup_free char *encoded = http_url_encode(p->prefix, "/");
        s3_endpoints_get_region(sources->s3, endpoint, p->bucket, p->at);
        int r = s3_endpoint_base(endpoint, p->bucket, p->at, &p->base, p->error)
                        ?: s3_auth_new(&p->dir.access, sources->s3, endpoint, p->bucket, p->at, p->base, p->error);
        if (r < 0)
                return r;
        if (endpoint->sse_c_key != NULL) /* who encrypts objects wants no plain copy of them on a disk */
                p->dir.disk = NULL;
        p->dir.url = encoded != NULL ? format_new("%s/%s", p->base, encoded) : NULL;
        return p->dir.url != NULL ? 0 : error_no_memory(p->error);
}

static bool moved(const struct sources *sources, const struct store_place *p)
{
        char named[S3_REGION];
        s3_endpoints_get_region(sources->s3, s3_endpoints_find(sources->s3, p->dir.source), p->bucket, named);
        if (strcmp(named, p->at) == 0)
                return false;
        log_info("bucket %s is in region %s", p->bucket, named);
        return true;
}

static char *list_url(const struct store_place *p, bool nested, const char *next)
{
        struct aws_param params[] = {{"list-type", "2"},
                                     {"encoding-type", "url"},
                                     {"prefix", p->prefix},
                                     {"delimiter", nested ? NULL : "/"},
                                     {"continuation-token", next}};
        cleanup_free char *query = aws_query(params, ARRAY_SIZE(params));
        return query != NULL ? format_new("%s/?%s", p->base, query) : NULL;
}

static int parse_page(const struct store_place *p, char **next, char *text, size_t size, struct listing *list,
                      struct error *error)
{
        return s3_page_parse(next, text, size, p->prefix, list, error);
}

static int take_sum(struct object *object, const struct http_headers *headers, struct error *error)
{
        const char *value = http_headers_find(headers, "x-amz-checksum-sha256");
        const char *type = http_headers_find(headers, "x-amz-checksum-type");
        char hex[65];
        bool whole = type == NULL || strcasecmp(type, "FULL_OBJECT") == 0;
        if (value == NULL || !whole || !s3_checksum_decode(value, hex))
                return 0;
        log_debug("SHA-256 as the store keeps it (%s)", object->path);
        return sums_set_digest(object, hex, "the store's checksum", error);
}

static const struct store_ops ops = {
        .key_at = key_at,
        .enter = enter,
        .moved = moved,
        .list_url = list_url,
        .parse_page = parse_page,
        .sum_header = "x-amz-checksum-mode",
        .sum_value = "ENABLED",
        .take_sum = take_sum,
        .no_sums = ", and no checksum of the store's",
};

/* ---- the source ---- */

static int s3_open(const struct sources *sources, const char *canonical, bool want_sha256, struct source_set *set,
                   struct error *error)
{
        return store_open(&ops, sources, canonical, want_sha256, set, error);
}

static int s3_reach(const struct sources *sources, const char *canonical, struct source_reach *reach,
                    struct error *error)
{
        return store_reach(&ops, sources, canonical, reach, error);
}

static int s3_list_sidecars(const struct sources *sources, const char *canonical, struct listing *list,
                            struct error *error)
{
        return store_list_sidecars(&ops, sources, canonical, list, error);
}

static int s3_open_sidecar(const struct sources *sources, const char *canonical, const char *name,
                           struct object *object, struct error *error)
{
        return store_open_sidecar(&ops, sources, canonical, name, object, error);
}

const struct source_ops source_s3 = {
        .schemes = (const char *const[]){SCHEME, NULL},
        .canonical = s3_canonical,
        .default_name = s3_default_name,
        .file_uri = store_sidecar_uri,
        .open = s3_open,
        .reach = s3_reach,
        .sidecar_uri = store_sidecar_uri,
        .list_sidecars = s3_list_sidecars,
        .open_sidecar = s3_open_sidecar,
};
