/* SPDX-License-Identifier: Apache-2.0
 *
 * Before each try: the keys as they are now, a signature over the URL as it will be sent. After a
 * refusal there are four ways:
 *
 *   the keys have expired    others are fetched, and the request tried again
 *   another region           noted; whoever plans the load begins again there
 *   not there, not allowed   the end, in words: key, status, the store's code and request, whose keys
 *   anything else            the words of HTTP
 *
 * A refusal of HEAD has no body: headers must do.
 */
#include "daemon/source/s3_access.h"

#include "daemon/base/util.h"
#include "daemon/source/s3_reply.h"
#include "daemon/source/aws_sign.h"

#include <pthread.h>
#include <string.h>
#include <strings.h>

struct s3_access {
        struct http_access http;
        const struct s3_site *site;
        pthread_mutex_t mutex;
        char region[S3_REGION], moved[S3_REGION];
        char *from; /* where the keys of the last request came from */
};

/* ---- authorize ---- */

/* What a signature is made of, out of the URL. */
struct parts {
        char *host, *path;
        const char *query; /* in path's memory */
};

static int parts_init(struct parts *parts, const char *url)
{
        const char *host = strstr(url, "://") + 3;
        size_t len = strcspn(host, "/");
        *parts = (struct parts){.host = aws_host(url), .path = strdup(host + len)};
        char *query = parts->path != NULL ? strchr(parts->path, '?') : NULL;
        if (query != NULL)
                *query = '\0';
        parts->query = query != NULL ? query + 1 : "";
        return parts->host != NULL && parts->path != NULL ? 0 : -1;
}

static void parts_deinit(struct parts *parts)
{
        free(parts->host);
        free(parts->path);
}

static int add_signed(struct http_headers *headers, const struct aws_signed *out, struct error *error)
{
        int r = http_headers_add(headers, "Authorization", out->authorization, error);
        if (r == 0)
                r = http_headers_add(headers, "x-amz-content-sha256", out->digest, error);
        if (r == 0)
                r = http_headers_add(headers, "x-amz-date", out->date, error);
        if (r == 0 && out->token != NULL)
                r = http_headers_add(headers, "x-amz-security-token", out->token, error);
        return r;
}

static int sign(const struct s3_access *a, const struct http_request *request, const struct aws_keys *keys,
                struct http_headers *more, struct error *error)
{
        struct aws_signed out;
        struct parts parts;
        int r = parts_init(&parts, request->url);
        const struct aws_sign_request what = {.method = request->method ?: "GET",
                                              .host = parts.host,
                                              .path = parts.path,
                                              .query = parts.query,
                                              .region = a->region,
                                              .when = time(NULL),
                                              .checksum = request->headers != NULL &&
                                                          http_headers_find(request->headers, "x-amz-checksum-mode") !=
                                                                  NULL};
        const struct aws_sign_keys with = {keys->access, keys->secret, keys->token};
        if (r < 0 || aws_sign(&out, &what, &with) < 0) {
                parts_deinit(&parts);
                return error_set(error, STREAMER_ENOMEM, "no memory for a signature");
        }
        r = add_signed(more, &out, error);
        aws_signed_deinit(&out);
        parts_deinit(&parts);
        return r;
}

static void remember(struct s3_access *a, const struct aws_keys *keys)
{
        pthread_mutex_lock(&a->mutex);
        if (a->from == NULL || strcmp(a->from, keys->from) != 0) {
                free(a->from);
                a->from = strdup(keys->from);
        }
        pthread_mutex_unlock(&a->mutex);
}

static int authorize(struct http_access *access, const struct http_request *request, struct http_headers *more,
                     struct error *error)
{
        struct s3_access *a = container_of(access, struct s3_access, http);
        struct aws_keys keys;
        if (a->site->credentials == NULL)
                return 0;
        int r = aws_credentials_get(a->site->credentials, &keys, error);
        if (r != 0)
                return r;
        r = sign(a, request, &keys, more, error);
        more->by = keys.number;
        remember(a, &keys);
        aws_keys_deinit(&keys);
        return r;
}

/* ---- refused ---- */

static void read_fault(struct s3_fault *fault, const struct http_answer *answer)
{
        const char *region = http_headers_find(&answer->headers, "x-amz-bucket-region");
        const char *id = http_headers_find(&answer->headers, "x-amz-request-id");
        cleanup_free char *body = answer->body_len > 0 ? malloc(answer->body_len + 1) : NULL;
        *fault = (struct s3_fault){.code = ""};
        if (body != NULL) {
                memcpy(body, answer->body, answer->body_len);
                s3_fault_parse(fault, body, answer->body_len);
        }
        if (region != NULL)
                snprintf(fault->region, sizeof(fault->region), "%.40s", region);
        if (fault->request_id[0] == '\0' && id != NULL)
                error_escape(fault->request_id, sizeof(fault->request_id), id);
}

/* A region becomes part of a host's name: it is not to lead elsewhere. */
static bool is_region(const char *text)
{
        return text[0] != '\0' && strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == strlen(text);
}

static bool note_move(struct s3_access *a, int status, const struct s3_fault *fault)
{
        bool may = status == 301 || status == 302 || status == 307 || status == 400 || status == 403;
        if (!may || !is_region(fault->region) || strcmp(fault->region, a->region) == 0)
                return false;
        pthread_mutex_lock(&a->mutex);
        snprintf(a->moved, sizeof(a->moved), "%s", fault->region);
        pthread_mutex_unlock(&a->mutex);
        return true;
}

static bool keys_expired(struct s3_access *a, const struct http_answer *answer, const struct s3_fault *fault)
{
        static const char *const codes[] = {"ExpiredToken",         "ExpiredTokenException", "InvalidToken",
                                            "TokenRefreshRequired", "InvalidAccessKeyId",    "RequestExpired"};
        bool expired = false;
        for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
                expired |= strcmp(fault->code, codes[i]) == 0;
        return expired && a->site->credentials != NULL && aws_credentials_refused(a->site->credentials, answer->by);
}

static int code_of(int status)
{
        return status == 404 ? STREAMER_ENOENT : status == 401 || status == 403 ? STREAMER_EPERM : STREAMER_EFAILED;
}

static int say(struct s3_access *a, const struct http_request *request, int status, const struct s3_fault *fault,
               bool moved, struct error *error)
{
        char what[400], id[140] = "", where[2 * S3_REGION + 40] = "";
        int code = moved ? STREAMER_EFAILED : code_of(status);
        if (moved)
                snprintf(where, sizeof(where), "the bucket is in region %s, not in %s: ", fault->region, a->region);
        snprintf(what, sizeof(what), "%d %s%s%s", status, fault->code, fault->message[0] != '\0' ? ": " : "",
                 fault->message);
        if (fault->request_id[0] != '\0')
                snprintf(id, sizeof(id), ", request %s", fault->request_id);
        pthread_mutex_lock(&a->mutex);
        bool is_signed = a->site->credentials != NULL;
        error_set(error, code, "%sthe store answers %s (%s%s, %s%s)", where, what, request->shown, id,
                  is_signed ? "credentials from " : "unsigned", is_signed ? a->from ?: "nowhere" : "");
        pthread_mutex_unlock(&a->mutex);
        return code;
}

static int refused(struct http_access *access, const struct http_request *request, const struct http_answer *answer,
                   struct error *error)
{
        struct s3_access *a = container_of(access, struct s3_access, http);
        struct s3_fault fault;
        if (answer->status == 0)
                return 0;
        read_fault(&fault, answer);
        bool moved = note_move(a, answer->status, &fault);
        return !moved && keys_expired(a, answer, &fault) ? 1 : say(a, request, answer->status, &fault, moved, error);
}

/* ---- lifecycle ---- */

static void access_free(struct http_access *access)
{
        struct s3_access *a = container_of(access, struct s3_access, http);
        pthread_mutex_destroy(&a->mutex);
        free(a->from);
        free(a);
}

struct s3_access *s3_access_new(const struct s3_site *site, const char *region)
{
        static const struct http_access_ops ops = {.authorize = authorize, .refused = refused, .free = access_free};
        struct s3_access *a = calloc(1, sizeof(*a));
        if (a == NULL)
                return NULL;
        a->http = (struct http_access){.ops = &ops, .refs = 1, .ca = site->ca, .no_redirects = true};
        a->site = site;
        pthread_mutex_init(&a->mutex, NULL);
        snprintf(a->region, sizeof(a->region), "%s", region);
        return a;
}

struct http_access *s3_access_http(struct s3_access *access)
{
        return &access->http;
}

struct s3_access *s3_access_unref(struct s3_access *access)
{
        if (access != NULL)
                http_access_unref(&access->http);
        return NULL;
}

void s3_access_moved(struct s3_access *access, char region[S3_REGION])
{
        pthread_mutex_lock(&access->mutex);
        snprintf(region, S3_REGION, "%s", access->moved);
        pthread_mutex_unlock(&access->mutex);
}
