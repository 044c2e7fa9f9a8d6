/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings are merged once, at start. An error in them keeps the daemon from starting; one in AWS's variables and files
 * is stored and returned to loads from S3, since they may not have been meant for this daemon. Regions of buckets are
 * learnt from responses and cached, few at a time: a forgotten one costs a request.
 */
#include "daemon/source/s3/endpoint.h"

#include "daemon/base/log/log.h"
#include "daemon/base/text/redact.h"
#include "daemon/base/util.h"
#include "daemon/source/aws/aws_config.h"

#include <pthread.h>
#include <string.h>

#define LEARNT 64

struct learnt {
        const struct s3_endpoint *site;
        char bucket[256], region[S3_REGION];
};

struct s3_sites {
        struct s3_endpoint *all; /* the first is for all else */
        size_t n;
        pthread_mutex_t mutex;
        struct learnt learnt[LEARNT];
        size_t n_learnt; /* ever: the oldest is replaced */
};

/* ---- set-up ---- */

static int keep(char **field, const char *text, struct error *error)
{
        free(*field);
        *field = text != NULL ? strdup(text) : NULL;
        return text == NULL || *field != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
}

static int check_endpoint(const char *endpoint, struct error *error)
{
        const char *rest = strncmp(endpoint, "https://", 8) == 0  ? endpoint + 8
                           : strncmp(endpoint, "http://", 7) == 0 ? endpoint + 7
                                                                  : NULL;
        char shown[REDACTED_SOURCE];
        redact_source(shown, endpoint);
        if (rest == NULL || rest[0] == '\0' || rest[0] == '/' || strpbrk(rest, "?#@ ") != NULL)
                return error_set(error, STREAMER_EINVAL,
                                 "S3 endpoint '%s': not http(s)://host[:port], without user and password", shown);
        return 0;
}

static int set_endpoint(struct s3_endpoint *site, const char *endpoint, struct error *error)
{
        if (endpoint == NULL)
                return 0;
        /* A host without a scheme: https. */
        bool bare = strstr(endpoint, "://") == NULL;
        cleanup_free char *whole = format_new("%s%s", bare ? "https://" : "", endpoint);
        if (whole == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        for (size_t len = strlen(whole); len > 0 && whole[len - 1] == '/';)
                whole[--len] = '\0';
        int r = check_endpoint(whole, error);
        return r < 0 ? r : keep(&site->endpoint, whole, error);
}

/* A source's own settings override the environment, which overrides the settings for all sources. */
static const char *choose(const char *own, const char *variable, const char *rest)
{
        return (own != rest ? filled(own) : NULL) ?: variable ?: filled(rest);
}

/* What a site does not set itself comes from AWS's variables and files. */
static int complete(struct s3_endpoint *site, const struct s3_endpoint_opts *own, const struct s3_endpoint_opts *rest,
                    const char *profile, struct error *error)
{
        struct aws_config config;
        int r = aws_config_init(&config, profile, error);
        if (r < 0)
                return r;
        const char *endpoint =
                choose(own->endpoint, aws_env("AWS_ENDPOINT_URL_S3") ?: aws_env("AWS_ENDPOINT_URL"), rest->endpoint);
        const char *region = choose(own->region, aws_env("AWS_REGION") ?: aws_env("AWS_DEFAULT_REGION"), rest->region);
        const char *ca = choose(own->ca, aws_env("AWS_CA_BUNDLE"), rest->ca);
        site->addressing = own->addressing != S3_AUTO ? own->addressing : rest->addressing;
        r = set_endpoint(site, endpoint ?: aws_config_endpoint(&config, "s3"), error);
        if (r == 0)
                r = keep(&site->region, region ?: aws_config_get(&config, "region"), error);
        if (r == 0)
                r = keep(&site->ca, ca ?: aws_config_get(&config, "ca_bundle"), error);
        aws_config_deinit(&config);
        return r;
}

static int site_init(struct s3_endpoint *site, const struct s3_endpoint_opts *own, const struct s3_endpoint_opts *rest,
                     const struct http_opts *http, struct error *error)
{
        const char *profile = filled(own->profile) ?: filled(rest->profile);
        site->source = own->source;
        int r = set_endpoint(site, filled(own->endpoint), error);
        if (r < 0)
                return r;
        r = complete(site, own, rest, profile, &site->fault);
        if (r == STREAMER_ENOMEM)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        if (r < 0)
                log_warn("stores: %s", site->fault.text);
        bool keyed = filled(own->access_key) != NULL || filled(own->profile) != NULL;
        if (own->is_unsigned || (rest->is_unsigned && !keyed && !own->is_signed))
                return 0;
        const struct s3_endpoint_opts *keys = keyed ? own : rest;
        const struct aws_credentials_opts opts = {.profile = profile,
                                                  .access = keys->access_key,
                                                  .secret = keys->secret_key,
                                                  .token = keys->session_token,
                                                  .http = http};
        return aws_credentials_new(&site->credentials, &opts, error);
}

int s3_sites_new(struct s3_sites **out, const struct s3_endpoint_opts *rest, const struct s3_endpoint_opts *opts,
                 size_t n, const struct http_opts *http, struct error *error)
{
        struct s3_sites *sites = calloc(1, sizeof(*sites));
        if (sites == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        pthread_mutex_init(&sites->mutex, NULL);
        sites->all = calloc(n + 1, sizeof(*sites->all));
        int r = sites->all != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
        for (size_t i = 0; r == 0 && i <= n; i++) {
                sites->n++;
                r = site_init(&sites->all[i], i == 0 ? rest : &opts[i - 1], rest, http, error);
        }
        if (r < 0) {
                s3_sites_free(sites);
                return r;
        }
        *out = sites;
        return 0;
}

struct s3_sites *s3_sites_free(struct s3_sites *sites)
{
        if (sites == NULL)
                return NULL;
        for (size_t i = 0; i < sites->n; i++) {
                aws_credentials_free(sites->all[i].credentials);
                free(sites->all[i].endpoint);
                free(sites->all[i].region);
                free(sites->all[i].ca);
        }
        free(sites->all);
        pthread_mutex_destroy(&sites->mutex);
        free(sites);
        return NULL;
}

/* ---- finding ---- */

/* "s3://models" is that bucket and not "s3://models-2"; "s3://b/llama" may be meant for both
 * "llama/" and "llama-3/", as prefixes of keys are. */
static size_t covers(const char *prefix, const char *source)
{
        size_t len = strlen(prefix);
        if (strncmp(prefix, source, len) != 0)
                return 0;
        bool bucket_alone = strchr(prefix + strlen("s3://"), '/') == NULL;
        return bucket_alone && source[len] != '/' && source[len] != '\0' ? 0 : len;
}

const struct s3_endpoint *s3_sites_find(const struct s3_sites *sites, const char *source)
{
        const struct s3_endpoint *best = &sites->all[0];
        size_t best_len = 0;
        for (size_t i = 1; i < sites->n; i++) {
                size_t len = covers(sites->all[i].source, source);
                if (len > best_len) {
                        best = &sites->all[i];
                        best_len = len;
                }
        }
        return best;
}

/* ---- regions ---- */

static struct learnt *find_learnt(struct s3_sites *sites, const struct s3_endpoint *site, const char *bucket)
{
        size_t n = sites->n_learnt < LEARNT ? sites->n_learnt : LEARNT;
        for (size_t i = 0; i < n; i++)
                if (sites->learnt[i].site == site && strcmp(sites->learnt[i].bucket, bucket) == 0)
                        return &sites->learnt[i];
        return NULL;
}

void s3_sites_region(struct s3_sites *sites, const struct s3_endpoint *site, const char *bucket, char region[S3_REGION])
{
        pthread_mutex_lock(&sites->mutex);
        const struct learnt *learnt = find_learnt(sites, site, bucket);
        snprintf(region, S3_REGION, "%s", learnt != NULL ? learnt->region : site->region ?: "us-east-1");
        pthread_mutex_unlock(&sites->mutex);
}

void s3_sites_learn(struct s3_sites *sites, const struct s3_endpoint *site, const char *bucket, const char *region)
{
        pthread_mutex_lock(&sites->mutex);
        struct learnt *learnt = find_learnt(sites, site, bucket) ?: &sites->learnt[sites->n_learnt++ % LEARNT];
        learnt->site = site;
        snprintf(learnt->bucket, sizeof(learnt->bucket), "%s", bucket);
        snprintf(learnt->region, sizeof(learnt->region), "%s", region);
        pthread_mutex_unlock(&sites->mutex);
}

/* ---- hosts ---- */

/* Part of a host's name; a dot in it is fine without TLS alone, since certificates of stores end at it. */
static bool fits_host(const char *bucket, bool tls)
{
        size_t len = strlen(bucket);
        return len >= 3 && len <= 63 && strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789-.") == len &&
               bucket[0] != '-' && bucket[0] != '.' && bucket[len - 1] != '-' && bucket[len - 1] != '.' &&
               (!tls || strchr(bucket, '.') == NULL);
}

int s3_endpoint_base(const struct s3_endpoint *site, const char *bucket, const char *region, char **base,
                     struct error *error)
{
        char aws[128];
        if (site->fault.code != 0) {
                *error = site->fault;
                return error->code;
        }
        snprintf(aws, sizeof(aws), "https://s3.%s.amazonaws.com%s", region,
                 strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
        const char *endpoint = site->endpoint ?: aws;
        size_t scheme = (size_t)(strstr(endpoint, "://") + 3 - endpoint);
        bool tls = strncmp(endpoint, "https", 5) == 0;
        bool wanted = site->addressing == S3_VIRTUAL || (site->addressing == S3_AUTO && site->endpoint == NULL);
        bool virtual_host = wanted && fits_host(bucket, tls && site->addressing == S3_AUTO);
        if (site->addressing == S3_VIRTUAL && !virtual_host)
                return error_set(error, STREAMER_EINVAL,
                                 "bucket '%s' cannot be part of a host's name, as virtual hosts "
                                 "need it",
                                 bucket);
        *base = virtual_host ? format_new("%.*s%s.%s", (int)scheme, endpoint, bucket, endpoint + scheme)
                             : format_new("%s/%s", endpoint, bucket);
        return *base != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
}
