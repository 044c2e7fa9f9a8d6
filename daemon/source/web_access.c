/* SPDX-License-Identifier: Apache-2.0
 *
 * Credentials by host. They are read where they are needed and forgotten with the load; nothing that
 * is written anywhere has them. Where a server refuses those of a file, the file is read again: who
 * wrote it may have replaced them while the load runs.
 */
#include "daemon/source/web.h"

#include "daemon/base/secret.h"
#include "daemon/base/util.h"
#include "daemon/io/http_policy.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <string.h>

#define ON_THEIR_WAY_NS UINT64_C(30000000000)

struct web {
        size_t n;
        struct web_host hosts[];
};

/* ---- settings ---- */

static int copy(const char *text, const char **out)
{
        *out = text != NULL ? strdup(text) : NULL;
        return text == NULL || *out != NULL ? 0 : -1;
}

int web_new(struct web **out, const struct web_host *hosts, size_t n, struct error *error)
{
        struct web *web = calloc(1, sizeof(*web) + n * sizeof(*hosts));
        int r = web != NULL ? 0 : -1;
        for (size_t i = 0; r == 0 && i < n; i++) {
                struct web_host *h = &web->hosts[web->n++];
                r |= copy(hosts[i].host, &h->host) | copy(hosts[i].user, &h->user);
                r |= copy(hosts[i].token, &h->token) | copy(hosts[i].token_file, &h->token_file);
                r |= copy(hosts[i].password, &h->password) | copy(hosts[i].password_file, &h->password_file);
        }
        if (r < 0) {
                web_free(web);
                return error_set(error, STREAMER_ENOMEM, "no memory");
        }
        *out = web;
        return 0;
}

struct web *web_free(struct web *web)
{
        for (size_t i = 0; web != NULL && i < web->n; i++) {
                const struct web_host *h = &web->hosts[i];
                const char *const texts[] = {h->host, h->token, h->token_file, h->user, h->password, h->password_file};
                for (size_t k = 0; k < ARRAY_SIZE(texts); k++)
                        secret_free((char *)(uintptr_t)texts[k]);
        }
        free(web);
        return NULL;
}

/* ---- secrets ---- */

/* A file, or one of the service manager's credentials by its plain name. */
static int read_secret(const char *name, char **secret, struct error *error)
{
        cleanup_free char *setting = NULL;
        if (asprintf(&setting, "%s:%s", strchr(name, '/') != NULL ? "file" : "credential", name) < 0) {
                setting = NULL;
                return error_set(error, STREAMER_ENOMEM, "no memory");
        }
        return secret_read(setting, secret, error);
}

static int get_secret(const char *value, const char *file, char **secret, struct error *error)
{
        if (value == NULL && file != NULL)
                return read_secret(file, secret, error);
        *secret = strdup(value ?: "");
        return *secret != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
}

/* ---- access ---- */

struct web_access {
        struct http_access access;
        char *user, *file; /* NULL: a bearer's; not from a file */
        pthread_mutex_t mutex;
        char *authorization; /* the header's value */
        uint64_t changed_ns; /* when it was replaced; 0: never */
};

static int authorize(struct http_access *access, const struct http_request *request, struct http_headers *more,
                     struct error *error)
{
        struct web_access *own = container_of(access, struct web_access, access);
        (void)request;
        pthread_mutex_lock(&own->mutex);
        int r = http_headers_add(more, "Authorization", own->authorization, error);
        pthread_mutex_unlock(&own->mutex);
        return r;
}

static char *basic(const char *user, const char *password)
{
        char *pair = NULL, *value = NULL;
        int n = asprintf(&pair, "%s:%s", user, password);
        if (n < 0)
                return NULL;
        value = calloc(1, (size_t)n * 2 + 16);
        if (value != NULL) {
                memcpy(value, "Basic ", 6);
                EVP_EncodeBlock((unsigned char *)value + 6, (const unsigned char *)pair, n);
        }
        secret_free(pair);
        return value;
}

/* NULL: no memory. */
static char *header_value(const char *user, const char *secret)
{
        char *value = NULL;
        if (user != NULL)
                return basic(user, secret);
        return asprintf(&value, "Bearer %s", secret) < 0 ? NULL : value;
}

/* Requests that were on their way with the old ones are refused later than the first. */
static bool replaced(struct web_access *own)
{
        struct error error;
        char *secret = NULL;
        if (own->file == NULL || read_secret(own->file, &secret, &error) < 0)
                return false;
        char *value = header_value(own->user, secret);
        secret_free(secret);
        pthread_mutex_lock(&own->mutex);
        if (value != NULL && strcmp(value, own->authorization) != 0) {
                char *old = own->authorization;
                own->authorization = value;
                own->changed_ns = now_ns();
                value = old;
        }
        bool again = own->changed_ns > 0 && now_ns() - own->changed_ns < ON_THEIR_WAY_NS;
        pthread_mutex_unlock(&own->mutex);
        secret_free(value);
        return again;
}

static int refused(struct http_access *access, const struct http_request *request, const struct http_answer *answer,
                   struct error *error)
{
        (void)request;
        (void)error;
        return answer->status == 401 && replaced(container_of(access, struct web_access, access));
}

static void access_free(struct http_access *access)
{
        struct web_access *own = container_of(access, struct web_access, access);
        pthread_mutex_destroy(&own->mutex);
        secret_free(own->authorization);
        free(own->user);
        free(own->file);
        free(own);
}

static const struct http_access_ops ops = {.authorize = authorize, .refused = refused, .free = access_free};

static struct web_access *make(const char *user, const char *file, const char *secret)
{
        struct web_access *own = calloc(1, sizeof(*own));
        if (own == NULL)
                return NULL;
        own->access = (struct http_access){.ops = &ops, .refs = 1};
        pthread_mutex_init(&own->mutex, NULL);
        own->user = user != NULL ? strdup(user) : NULL;
        own->file = file != NULL ? strdup(file) : NULL;
        own->authorization = header_value(user, secret);
        if (own->authorization != NULL && (user == NULL || own->user != NULL) && (file == NULL || own->file != NULL))
                return own;
        access_free(&own->access);
        return NULL;
}

static int access_new(const struct web_host *host, struct http_access **access, struct error *error)
{
        const char *value = host->user != NULL ? host->password : host->token;
        const char *file = host->user != NULL ? host->password_file : host->token_file;
        char *secret = NULL;
        int r = get_secret(value, file, &secret, error);
        if (r < 0)
                return r;
        struct web_access *own = make(host->user, value == NULL ? file : NULL, secret);
        secret_free(secret);
        if (own == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        *access = &own->access;
        return 0;
}

int web_access(const struct web *web, const char *text, struct http_access **access, struct error *error)
{
        struct http_url url;
        *access = NULL;
        if (web == NULL || http_url_parse(&url, text) < 0)
                return 0;
        for (size_t i = 0; i < web->n; i++)
                if (http_host_matches(&url, web->hosts[i].host))
                        return access_new(&web->hosts[i], access, error);
        return 0;
}
