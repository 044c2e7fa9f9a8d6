/* SPDX-License-Identifier: Apache-2.0
 *
 * Credentials by host (http_auth.h). They never appear in logs, errors or replies.
 */
#include "daemon/source/web/web.h"

#include "daemon/base/util.h"
#include "daemon/io/http/policy.h"
#include "daemon/source/web/http_auth.h"

#include <string.h>

struct web_auth {
        struct http_access access;
        struct http_auth http_auth;
};

static int authorize(struct http_access *access, const struct http_request *request, struct http_headers *more,
                     struct error *error)
{
        (void)request;
        return http_auth_authorize(&container_of(access, struct web_auth, access)->http_auth, more, error);
}

static int refused(struct http_access *access, const struct http_request *request, const struct http_answer *answer,
                   struct error *error)
{
        (void)request;
        (void)error;
        return answer->status == 401 && http_auth_reread(&container_of(access, struct web_auth, access)->http_auth);
}

static void access_free(struct http_access *access)
{
        struct web_auth *own = container_of(access, struct web_auth, access);
        http_auth_deinit(&own->http_auth);
        free(own);
}

static const struct http_access_ops ops = {.authorize = authorize, .refused = refused, .free = access_free};

static int access_new(const struct web_host *host, struct http_access **access, struct error *error)
{
        const char *value = host->user != NULL ? host->password : host->token;
        const char *file = host->user != NULL ? host->password_file : host->token_file;
        const char *kind = file != NULL && strchr(file, '/') != NULL ? "file" : "credential";
        cleanup_free char *setting = file != NULL ? format_new("%s:%s", kind, file) : NULL;
        struct web_auth *own = calloc(1, sizeof(*own));
        if (own == NULL || (file != NULL && setting == NULL)) {
                free(own);
                return error_set(error, STREAMER_ENOMEM, "no memory");
        }
        own->access = (struct http_access){.ops = &ops, .refs = 1};
        int r = http_auth_init(&own->http_auth, host->user, value ?: (file == NULL ? "" : NULL), setting, error);
        if (r < 0)
                free(own);
        else
                *access = &own->access;
        return r;
}

int web_auth(const struct web_host *hosts, size_t n, const char *text, struct http_access **access, struct error *error)
{
        struct http_url url;
        *access = NULL;
        if (http_url_parse(&url, text) < 0)
                return 0;
        for (size_t i = 0; i < n; i++)
                if (http_host_matches(&url, hosts[i].host))
                        return access_new(&hosts[i], access, error);
        return 0;
}
