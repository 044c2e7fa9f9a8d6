/* SPDX-License-Identifier: Apache-2.0
 *
 * Before each try the URL to be sent is signed with the present keys. A refusal has four outcomes:
 *
 *   the keys have expired    others are fetched, and the request is retried
 *   another region           stored with the endpoint; the source is opened again there
 *   not found, not allowed   final: key, status, the store's code and request id, and the source of the keys
 *   anything else            the message of the HTTP client
 *
 * A refusal of HEAD has no body: its headers are used.
 */
#include "daemon/source/s3/endpoint.h"

#include "daemon/base/util.h"
#include "daemon/source/aws/sigv4.h"
#include "daemon/source/s3/s3_reply.h"

struct s3_auth {
        struct http_access http;
        struct s3_endpoints *endpoints;
        const struct s3_endpoint *endpoint;
        char bucket[S3_BUCKET], region[S3_REGION];
};

static int authorize(struct http_access *access, const struct http_request *request, struct http_headers *more,
                     struct error *error)
{
        struct s3_auth *a = container_of(access, struct s3_auth, http);
        cleanup_with(aws_keys_deinit) struct aws_keys keys = {.access = NULL};
        if (a->endpoint->credentials == NULL)
                return 0;
        int r = aws_credentials_get(a->endpoint->credentials, &keys, error);
        if (r != 0)
                return r;
        more->by = keys.number;
        return aws_sign(more, request, a->region, time(NULL), &keys, error);
}

/* ---- refused ---- */

static void read_fault(struct s3_fault *fault, const struct http_answer *answer)
{
        const char *region = http_headers_find(&answer->headers, "x-amz-bucket-region");
        const char *id = http_headers_find(&answer->headers, "x-amz-request-id");
        *fault = (struct s3_fault){.code = ""};
        if (answer->body_len > 0)
                s3_fault_parse(fault, answer->body, answer->body_len);
        if (region != NULL)
                snprintf(fault->region, sizeof(fault->region), "%.40s", region);
        if (fault->request_id[0] == '\0' && id != NULL)
                error_escape(fault->request_id, sizeof(fault->request_id), id);
}

/* The region that the store names becomes part of a host's name, which it must not change otherwise. */
static bool note_move(struct s3_auth *a, int status, const struct s3_fault *fault)
{
        const char *region = fault->region;
        bool may = status == 301 || status == 302 || status == 307 || status == 400 || status == 403;
        if (!may || region[0] == '\0' || region[strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-")] != '\0' ||
            strcmp(region, a->region) == 0)
                return false;
        s3_endpoints_set_region(a->endpoints, a->endpoint, a->bucket, region);
        return true;
}

static bool keys_expired(struct s3_auth *a, const struct http_answer *answer, const struct s3_fault *fault)
{
        static const char *const codes[] = {"ExpiredToken",         "ExpiredTokenException", "InvalidToken",
                                            "TokenRefreshRequired", "InvalidAccessKeyId",    "RequestExpired"};
        bool expired = false;
        for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
                expired |= strcmp(fault->code, codes[i]) == 0;
        return expired && a->endpoint->credentials != NULL &&
               aws_credentials_refused(a->endpoint->credentials, answer->by);
}

static int refused(struct http_access *access, const struct http_request *request, const struct http_answer *answer,
                   struct error *error)
{
        struct s3_auth *a = container_of(access, struct s3_auth, http);
        struct s3_fault fault;
        char where[2 * S3_REGION + 40] = "", origin[512] = "";
        int status = answer->status, code = STREAMER_EFAILED;
        read_fault(&fault, answer);
        if (note_move(a, status, &fault))
                snprintf(where, sizeof(where), "the bucket is in region %s, not in %s: ", fault.region, a->region);
        else if (keys_expired(a, answer, &fault))
                return 1;
        else if (status == 404)
                code = STREAMER_ENOENT;
        else if (status == 401 || status == 403)
                code = STREAMER_EPERM;
        if (a->endpoint->credentials != NULL)
                aws_credentials_origin(a->endpoint->credentials, origin, sizeof(origin));
        const char *keys = a->endpoint->credentials == NULL ? "unsigned"
                           : origin[0] == '\0'              ? "no credentials"
                                                            : "credentials from ";
        return error_set(error, code, "%sthe store answers %d%s%s%s%s (%s%s%s, %s%s)", where, status,
                         fault.code[0] != '\0' ? " " : "", fault.code, fault.message[0] != '\0' ? ": " : "",
                         fault.message, request->shown, fault.request_id[0] != '\0' ? ", request " : "",
                         fault.request_id, keys, origin);
}

/* ---- lifecycle ---- */

static void access_free(struct http_access *access)
{
        free(container_of(access, struct s3_auth, http));
}

struct http_access *s3_auth_new(struct s3_endpoints *endpoints, const struct s3_endpoint *endpoint, const char *bucket,
                                const char *region)
{
        static const struct http_access_ops ops = {.authorize = authorize, .refused = refused, .free = access_free};
        struct s3_auth *a = calloc(1, sizeof(*a));
        if (a == NULL)
                return NULL;
        a->http = (struct http_access){.ops = &ops, .refs = 1, .ca = endpoint->ca, .no_redirects = true};
        a->endpoints = endpoints;
        a->endpoint = endpoint;
        snprintf(a->bucket, sizeof(a->bucket), "%s", bucket);
        snprintf(a->region, sizeof(a->region), "%s", region);
        return &a->http;
}
