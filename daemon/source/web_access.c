/* SPDX-License-Identifier: Apache-2.0
 *
 * Credentials by host. They are read where they are needed and forgotten with the load; nothing that
 * is written anywhere has them.
 */
#include "daemon/source/web.h"

#include "daemon/base/fd.h"
#include "daemon/base/util.h"
#include "daemon/io/http_policy.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <string.h>

#define SECRET_MAX (64 * KiB)

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

static void forget(const char *text)
{
        if (text != NULL)
                explicit_bzero((char *)(uintptr_t)text, strlen(text));
        free((char *)(uintptr_t)text);
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
                        forget(texts[k]);
        }
        free(web);
        return NULL;
}

/* ---- secrets ---- */

/* Without the line's end. The reason names the file alone. */
static int read_secret(const char *name, char **secret, struct error *error)
{
        const char *folder = getenv("CREDENTIALS_DIRECTORY");
        cleanup_free char *path = NULL;
        struct text text;
        int r = strchr(name, '/') == NULL && folder != NULL ? asprintf(&path, "%s/%s", folder, name)
                                                            : asprintf(&path, "%s", name);
        if (r < 0) {
                path = NULL;
                return error_set(error, STREAMER_ENOMEM, "no memory");
        }
        cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (fd < 0)
                return error_errno(error, STREAMER_EFAILED, errno, "http.hosts: %s", path);
        r = text_read_fd(&text, fd, SECRET_MAX, path, error);
        if (r < 0)
                return r;
        *secret = strndup(text.data, strcspn(text.data, "\r\n"));
        explicit_bzero(text.data, text.size);
        text_deinit(&text);
        return *secret != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
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
        char *authorization; /* the header's value */
};

static int authorize(struct http_access *access, const struct http_request *request, struct http_headers *more,
                     struct error *error)
{
        (void)request;
        return http_headers_add(more, "Authorization", container_of(access, struct web_access, access)->authorization,
                                error);
}

static void access_free(struct http_access *access)
{
        struct web_access *own = container_of(access, struct web_access, access);
        forget(own->authorization);
        free(own);
}

static const struct http_access_ops ops = {.authorize = authorize, .free = access_free};

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
        forget(pair);
        return value;
}

static char *bearer(const char *token)
{
        char *value = NULL;
        return asprintf(&value, "Bearer %s", token) < 0 ? NULL : value;
}

static int access_new(const struct web_host *host, struct http_access **access, struct error *error)
{
        char *secret = NULL;
        bool is_basic = host->user != NULL;
        int r = is_basic ? get_secret(host->password, host->password_file, &secret, error)
                         : get_secret(host->token, host->token_file, &secret, error);
        if (r < 0)
                return r;
        struct web_access *own = calloc(1, sizeof(*own));
        if (own != NULL) {
                own->access = (struct http_access){.ops = &ops, .refs = 1};
                own->authorization = is_basic ? basic(host->user, secret) : bearer(secret);
        }
        forget(secret);
        if (own == NULL || own->authorization == NULL) {
                free(own);
                return error_set(error, STREAMER_ENOMEM, "no memory");
        }
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
