/* SPDX-License-Identifier: Apache-2.0
 *
 * Credentials by host (login.h). Nothing that is written anywhere has them.
 */
#include "daemon/source/web.h"

#include "daemon/base/secret.h"
#include "daemon/base/util.h"
#include "daemon/io/http_policy.h"
#include "daemon/source/login.h"

#include <string.h>

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

/* ---- access ---- */

struct web_access {
        struct http_access access;
        struct login login;
};

static int authorize(struct http_access *access, const struct http_request *request, struct http_headers *more,
                     struct error *error)
{
        (void)request;
        return login_authorize(&container_of(access, struct web_access, access)->login, more, error);
}

static int refused(struct http_access *access, const struct http_request *request, const struct http_answer *answer,
                   struct error *error)
{
        (void)request;
        (void)error;
        return answer->status == 401 && login_again(&container_of(access, struct web_access, access)->login);
}

static void access_free(struct http_access *access)
{
        struct web_access *own = container_of(access, struct web_access, access);
        login_deinit(&own->login);
        free(own);
}

static const struct http_access_ops ops = {.authorize = authorize, .refused = refused, .free = access_free};

/* A file, or one of the service manager's credentials by its plain name; NULL: no memory. */
static char *setting_of(const char *file)
{
        char *setting = NULL;
        return asprintf(&setting, "%s:%s", strchr(file, '/') != NULL ? "file" : "credential", file) < 0 ? NULL
                                                                                                        : setting;
}

static int access_new(const struct web_host *host, struct http_access **access, struct error *error)
{
        const char *value = host->user != NULL ? host->password : host->token;
        const char *file = host->user != NULL ? host->password_file : host->token_file;
        cleanup_free char *setting = file != NULL ? setting_of(file) : NULL;
        struct web_access *own = calloc(1, sizeof(*own));
        if (own == NULL || (file != NULL && setting == NULL)) {
                free(own);
                return error_set(error, STREAMER_ENOMEM, "no memory");
        }
        own->access = (struct http_access){.ops = &ops, .refs = 1};
        int r = login_init(&own->login, host->user, value ?: (file == NULL ? "" : NULL), setting, error);
        if (r < 0)
                free(own);
        else
                *access = &own->access;
        return r;
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
