/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings are merged once, at start. An error in them keeps the daemon from starting; one in variables and files of
 * other programs is stored and returned to loads from S3, since they may not have been meant for this daemon. Regions
 * of buckets are taken from responses into a small cache: a miss costs a request.
 */
#include "daemon/source/s3/endpoint.h"

#include "daemon/base/log/log.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/aws/aws_config.h"
#include "daemon/source/aws/sigv4.h"
#include "daemon/source/s3/customer_key.h"
#include "daemon/source/store/fault.h"
#include "daemon/source/store/store.h"

#include <pthread.h>

#define SETTING "S3 endpoint"
#define REGIONS_MAX 64
#define CLOCK_TOLERANCE 60 /* seconds */

struct bucket_region {
        const struct s3_endpoint *endpoint;
        char bucket[S3_BUCKET], region[S3_REGION];
};

struct s3_endpoints {
        int64_t clock_ahead; /* atomic: seconds of a store's clock before this machine's */
        pthread_mutex_t mutex;
        struct bucket_region regions[REGIONS_MAX];
        size_t n_regions; /* ever stored: the oldest is replaced */
        size_t n;
        struct s3_endpoint all[]; /* the first is for sources that the others do not cover */
};

/* ---- configuration ---- */

/* `from`: what it is an error of, for its text. */
static int set_url(struct s3_endpoint *endpoint, const char *text, const char *from, struct error *error)
{
        char shown[REDACTED_SOURCE];
        if (text == NULL)
                return 0;
        /* A host without a scheme: https. */
        cleanup_free char *url = format_new("%s%s", strstr(text, "://") == NULL ? "https://" : "", text);
        if (url == NULL)
                return error_no_memory(error);
        url[trimmed_len(url, '/')] = '\0';
        const char *host = strncmp(url, "https://", 8) == 0 ? url + 8 : strncmp(url, "http://", 7) == 0 ? url + 7 : "";
        if (host[0] == '\0' || host[0] == '/' || strpbrk(host, "?#@ ") != NULL) {
                redact_source(shown, url);
                return error_set(error, STREAMER_EINVAL,
                                 "%s: '%s' is not http(s)://host[:port], without user and password", from, shown);
        }
        free(endpoint->url);
        endpoint->url = url;
        url = NULL;
        return 0;
}

/* A source's own settings override the environment, which overrides the settings for all sources. */
static const char *choose(const char *own, const char *variable, const char *fallback)
{
        return (own != fallback ? filled(own) : NULL) ?: variable ?: filled(fallback);
}

/* "s3 =", and below it "addressing_style = virtual", which other AWS tools read, too. */
static enum s3_addressing addressing_of(const struct aws_config *config)
{
        const char *style = aws_config_get(config, "s3.addressing_style") ?: "auto";
        return strcmp(style, "virtual") == 0 ? S3_VIRTUAL : strcmp(style, "path") == 0 ? S3_PATH : S3_AUTO;
}

/* Settings that the daemon's do not determine come from AWS's variables and files. */
static int complete(struct s3_endpoint *endpoint, const struct s3_endpoint_opts *own,
                    const struct s3_endpoint_opts *defaults, const char *profile, struct error *error)
{
        cleanup_with(aws_config_deinit) struct aws_config config;
        int r = aws_config_init(&config, profile, error);
        if (r < 0)
                return r;
        const char *variable = aws_env("AWS_ENDPOINT_URL_S3") != NULL ? "AWS_ENDPOINT_URL_S3" : "AWS_ENDPOINT_URL";
        const char *url = choose(own->endpoint, aws_env(variable), defaults->endpoint);
        const char *from = defaults->variable ?: SETTING;
        if (url == NULL)
                from = "endpoint_url of the profile";
        else if (url == aws_env(variable))
                from = variable;
        const char *region =
                choose(own->region, aws_env("AWS_REGION") ?: aws_env("AWS_DEFAULT_REGION"), defaults->region);
        const char *ca = choose(own->ca, aws_env("AWS_CA_BUNDLE"), defaults->ca);
        endpoint->addressing = own->addressing != S3_AUTO        ? own->addressing
                               : defaults->addressing != S3_AUTO ? defaults->addressing
                                                                 : addressing_of(&config);
        region = region ?: aws_config_get(&config, "region");
        ca = ca ?: aws_config_get(&config, "ca_bundle");
        snprintf(endpoint->region, sizeof(endpoint->region), "%s", region ?: "");
        endpoint->ca = ca != NULL ? strdup(ca) : NULL;
        if (ca != NULL && endpoint->ca == NULL)
                return error_no_memory(error);
        return set_url(endpoint, url ?: aws_config_endpoint(&config, "s3"), from, error);
}

static int endpoint_init(struct s3_endpoint *endpoint, const struct s3_endpoint_opts *own,
                         const struct s3_endpoint_opts *defaults, const struct http_opts *http, struct error *error)
{
        const char *profile = filled(own->profile) ?: filled(defaults->profile);
        endpoint->source = own->source;
        endpoint->sse_c_key = filled(own->sse_c_key);
        int r = own->variable == NULL ? set_url(endpoint, filled(own->endpoint), SETTING, error) : 0;
        if (r < 0)
                return r;
        r = complete(endpoint, own, defaults, profile, &endpoint->fault);
        if (r == STREAMER_ENOMEM)
                return error_no_memory(error);
        if (r < 0)
                log_warn("loads from S3 fail: %s", endpoint->fault.text);
        bool has_keys = filled(own->access_key) != NULL || filled(own->profile) != NULL;
        if (own->is_unsigned || (defaults->is_unsigned && !has_keys && !own->is_signed))
                return 0;
        const struct s3_endpoint_opts *keys = has_keys ? own : defaults;
        const struct aws_credentials_opts opts = {.profile = profile,
                                                  .access = keys->access_key,
                                                  .secret = keys->secret_key,
                                                  .token = keys->session_token,
                                                  .http = http};
        return aws_credentials_new(&endpoint->credentials, &opts, error);
}

int s3_endpoints_new(struct s3_endpoints **out, const struct s3_endpoint_opts *defaults,
                     const struct s3_endpoint_opts *opts, size_t n, const struct http_opts *http, struct error *error)
{
        struct s3_endpoints *endpoints = calloc(1, sizeof(*endpoints) + (n + 1) * sizeof(endpoints->all[0]));
        int r = 0;
        if (endpoints == NULL)
                return error_no_memory(error);
        pthread_mutex_init(&endpoints->mutex, NULL);
        for (; r == 0 && endpoints->n <= n; endpoints->n++)
                r = endpoint_init(&endpoints->all[endpoints->n], endpoints->n == 0 ? defaults : &opts[endpoints->n - 1],
                                  defaults, http, error);
        if (r < 0)
                endpoints = s3_endpoints_free(endpoints);
        *out = endpoints;
        return r;
}

struct s3_endpoints *s3_endpoints_free(struct s3_endpoints *endpoints)
{
        if (endpoints == NULL)
                return NULL;
        for (size_t i = 0; i < endpoints->n; i++) {
                renewal_free(endpoints->all[i].credentials);
                free(endpoints->all[i].url);
                free(endpoints->all[i].ca);
        }
        pthread_mutex_destroy(&endpoints->mutex);
        free(endpoints);
        return NULL;
}

/* ---- the endpoint of a source ---- */

const struct s3_endpoint *s3_endpoints_find(const struct s3_endpoints *endpoints, const char *source)
{
        const struct s3_endpoint *all = endpoints->all;
        return &all[store_find(&all[0].source, sizeof(all[0]), endpoints->n, source)];
}

/* ---- regions ---- */

static struct bucket_region *find_region(struct s3_endpoints *endpoints, const struct s3_endpoint *endpoint,
                                         const char *bucket)
{
        for (size_t i = 0; i < REGIONS_MAX; i++) {
                struct bucket_region *found = &endpoints->regions[i];
                if (found->endpoint == endpoint && strcmp(found->bucket, bucket) == 0)
                        return found;
        }
        return NULL;
}

void s3_endpoints_get_region(struct s3_endpoints *endpoints, const struct s3_endpoint *endpoint, const char *bucket,
                             char region[S3_REGION])
{
        lock_scope(&endpoints->mutex);
        const struct bucket_region *found = find_region(endpoints, endpoint, bucket);
        snprintf(region, S3_REGION, "%s", found != NULL ? found->region : filled(endpoint->region) ?: "us-east-1");
}

/* ---- hosts ---- */

/* A dot in a host's part is allowed without TLS only: a store's certificate covers one level of names. */
static bool valid_in_host(const char *bucket, bool tls)
{
        size_t len = strlen(bucket);
        return len >= 3 && len <= 63 && strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789-.") == len &&
               bucket[0] != '-' && bucket[0] != '.' && bucket[len - 1] != '-' && bucket[len - 1] != '.' &&
               (!tls || strchr(bucket, '.') == NULL);
}

int s3_endpoint_base(const struct s3_endpoint *endpoint, const char *bucket, const char *region, char **base,
                     struct error *error)
{
        char aws[128];
        if (endpoint->fault.code != 0) {
                *error = endpoint->fault;
                return error->code;
        }
        snprintf(aws, sizeof(aws), "https://s3.%s.amazonaws.com%s", region,
                 strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
        const char *url = endpoint->url ?: aws;
        size_t scheme = (size_t)(strstr(url, "://") + 3 - url);
        bool tls = strncmp(url, "https", 5) == 0, automatic = endpoint->addressing == S3_AUTO;
        bool wanted = automatic ? endpoint->url == NULL : endpoint->addressing == S3_VIRTUAL;
        bool virtual_host = wanted && valid_in_host(bucket, tls && automatic);
        if (wanted && !automatic && !virtual_host)
                return error_set(error, STREAMER_EINVAL,
                                 "bucket '%s' cannot be part of a host's name, as virtual hosts need it", bucket);
        *base = virtual_host ? format_new("%.*s%s.%s", (int)scheme, url, bucket, url + scheme)
                             : format_new("%s/%s", url, bucket);
        return *base != NULL ? 0 : error_no_memory(error);
}

/* ---- requests ---- */

/* Before each try the URL to be sent is signed with the present keys. A refusal has six outcomes:
 *
 *   the keys have expired    others are fetched, and the request is retried
 *   the time is wrong        the store's is used from then on, and the request is retried
 *   RequestTimeout           retried: the store waited for something that was sent
 *   another region           stored with the endpoint; the source is opened again there
 *   not found, not allowed   final: key, status, the store's code and request id, and the source of the keys
 *   anything else            the message of the HTTP client
 *
 * A refusal of HEAD has no body: its headers are used. */
struct s3_auth {
        struct http_access http;
        struct s3_endpoints *endpoints;
        const struct s3_endpoint *endpoint;
        struct customer_key *key; /* NULL: none */
        char bucket[S3_BUCKET], region[S3_REGION];
};

/* A list has a query, and takes no customer's key. */
static bool sends_key(const struct s3_auth *a, const struct http_request *request)
{
        return a->key != NULL && strchr(request->url, '?') == NULL;
}

static int authorize(struct http_access *access, const struct http_request *request, struct http_headers *more,
                     struct error *error)
{
        struct s3_auth *a = container_of(access, struct s3_auth, http);
        cleanup_with(credential_deinit) struct credential keys = {.access = NULL};
        int r = sends_key(a, request) ? customer_key_add(a->key, more, error) : 0;
        if (r < 0 || a->endpoint->credentials == NULL)
                return r < 0 ? r : HTTP_AUTHORIZED;
        r = renewal_get(a->endpoint->credentials, &keys, error);
        if (r != RENEWAL_READY)
                return r == RENEWAL_LATER ? HTTP_AUTHORIZED_LATER : r;
        more->credentials = keys.number;
        return aws_sign(more, request, a->region, time(NULL) + (time_t)load_relaxed(&a->endpoints->clock_ahead), &keys,
                        error);
}

static void read_fault(struct store_fault *fault, const struct http_answer *answer)
{
        const char *region = http_headers_find(&answer->headers, "x-amz-bucket-region");
        store_fault_read(fault, answer, "x-amz-request-id");
        if (region != NULL)
                snprintf(fault->region, sizeof(fault->region), "%.40s", region);
}

/* The region that the store names becomes part of a host's name, which it must not change otherwise. */
static bool note_move(struct s3_auth *a, int status, const struct store_fault *fault)
{
        const char *region = fault->region;
        bool may = status == 301 || status == 302 || status == 307 || status == 400 || status == 403;
        if (!may || region[0] == '\0' || region[strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-")] != '\0' ||
            strcmp(region, a->region) == 0)
                return false;
        struct s3_endpoints *endpoints = a->endpoints;
        lock_scope(&endpoints->mutex);
        struct bucket_region *entry = find_region(endpoints, a->endpoint, a->bucket)
                                              ?: &endpoints->regions[endpoints->n_regions++ % REGIONS_MAX];
        entry->endpoint = a->endpoint;
        snprintf(entry->bucket, sizeof(entry->bucket), "%s", a->bucket);
        snprintf(entry->region, sizeof(entry->region), "%s", region);
        return true;
}

static bool keys_expired(struct s3_auth *a, const struct http_answer *answer, const struct store_fault *fault)
{
        static const char *const codes[] = {"ExpiredToken",         "ExpiredTokenException", "InvalidToken",
                                            "TokenRefreshRequired", "InvalidAccessKeyId",    "RequestExpired"};
        bool expired = false;
        for (size_t i = 0; i < ARRAY_SIZE(codes); i++)
                expired |= strcmp(fault->code, codes[i]) == 0;
        return expired && a->endpoint->credentials != NULL &&
               renewal_refused(a->endpoint->credentials, answer->credentials);
}

/* True: the clock that the request was signed by differs from the store's, which is known now. Signatures are valid for
 * 15 minutes; less than that is no reason for the refusal. */
static bool set_clock(struct s3_auth *a, const struct http_answer *answer, const struct store_fault *fault)
{
        const char *text = http_headers_find(&answer->headers, "Date");
        time_t date = text != NULL ? http_date(text) : -1;
        if (strcmp(fault->code, "RequestTimeTooSkewed") != 0 || date < 0)
                return false;
        int64_t ahead = date - time(NULL), change = ahead - load_relaxed(&a->endpoints->clock_ahead);
        if (change > -CLOCK_TOLERANCE && change < CLOCK_TOLERANCE)
                return false;
        store_relaxed(&a->endpoints->clock_ahead, ahead);
        log_warn("the store's clock is %lld s %s this machine's: requests are signed with its time",
                 (long long)(ahead < 0 ? -ahead : ahead), ahead < 0 ? "behind" : "ahead of");
        return true;
}

/* What customers' keys have to do with a refusal. S3 answers 403 to another key than the object's, and 400 where only
 * one of request and object has a key. */
static void explain_key(const struct s3_auth *a, const struct http_request *request, int status,
                        const struct store_fault *fault, char *text, size_t size)
{
        if ((status == 400 || status == 403) && sends_key(a, request))
                snprintf(text, size, "the object may have another key than that of sse_c_key (%s), or none: ",
                         a->endpoint->sse_c_key);
        else if (status == 400 && strcasestr(fault->message, "server side encryption") != NULL)
                snprintf(text, size, "the object is encrypted with a customer's key (sse_c_key of s3.sources): ");
}

static int refused(struct http_access *access, const struct http_request *request, const struct http_answer *answer,
                   struct error *error)
{
        struct s3_auth *a = container_of(access, struct s3_auth, http);
        struct store_fault fault;
        char before[400] = "";
        int status = answer->status;
        read_fault(&fault, answer);
        bool moved = note_move(a, status, &fault);
        bool again = !moved && (keys_expired(a, answer, &fault) || set_clock(a, answer, &fault) ||
                                strcmp(fault.code, "RequestTimeout") == 0);
        explain_key(a, request, status, &fault, before, sizeof(before));
        if (moved)
                snprintf(before, sizeof(before), "the bucket is in region %s, not in %s: ", fault.region, a->region);
        int code = moved ? STREAMER_EFAILED : store_fault_code(status);
        store_fault_report(&fault, request, status, before, a->endpoint->credentials, "unsigned", code, error);
        return again ? HTTP_REFUSAL_RETRY : code;
}

static void access_free(struct http_access *access)
{
        struct s3_auth *a = container_of(access, struct s3_auth, http);
        customer_key_free(a->key);
        free(a);
}

int s3_auth_new(struct http_access **access, struct s3_endpoints *endpoints, const struct s3_endpoint *endpoint,
                const char *bucket, const char *region, const char *base, struct error *error)
{
        static const struct http_access_ops ops = {.authorize = authorize, .refused = refused, .free = access_free};
        struct customer_key *key = NULL;
        if (endpoint->sse_c_key != NULL && !customer_key_may_go(base))
                return error_set(error, STREAMER_EPERM, "sse_c_key is sent by https alone, and to this machine (%s)",
                                 endpoint->source);
        int r = endpoint->sse_c_key != NULL ? customer_key_read(&key, endpoint->sse_c_key, error) : 0;
        struct s3_auth *a = r == 0 ? calloc(1, sizeof(*a)) : NULL;
        if (a == NULL) {
                customer_key_free(key);
                return r < 0 ? r : error_no_memory(error);
        }
        *a = (struct s3_auth){.http = {.ops = &ops, .refs = 1, .ca = endpoint->ca, .no_redirects = true},
                              .endpoints = endpoints,
                              .endpoint = endpoint,
                              .key = key};
        snprintf(a->bucket, sizeof(a->bucket), "%s", bucket);
        snprintf(a->region, sizeof(a->region), "%s", region);
        *access = &a->http;
        return 0;
}
