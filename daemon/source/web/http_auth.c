/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/web/http_auth.h"

#include "daemon/base/log/log.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/io/http/http.h"

#include <openssl/evp.h>

#define BLANKS " \t\r\n\f\v"

static bool is_sendable(const char *value)
{
        for (const unsigned char *c = (const unsigned char *)value; *c != '\0'; c++)
                if (*c < ' ' || *c == 0x7f)
                        return false;
        return true;
}

/* NULL: no memory. */
static char *header_value(const char *user, const char *secret)
{
        if (user == NULL) {
                secret += strspn(secret, BLANKS);
                size_t len = strlen(secret);
                while (len > 0 && strchr(BLANKS, secret[len - 1]) != NULL)
                        len--;
                return format_new("Bearer %.*s", (int)len, secret);
        }
        cleanup_with(secret_free_p) char *pair = format_new("%s:%s", user, secret);
        size_t n = pair != NULL ? strlen(pair) : 0;
        char *value = pair != NULL ? calloc(1, n * 2 + 16) : NULL;
        if (value != NULL)
                EVP_EncodeBlock((unsigned char *)stpcpy(value, "Basic "), (const unsigned char *)pair, (int)n);
        return value;
}

int http_auth_new(struct http_access **access, const struct http_access_ops *ops, const char *user, const char *secret,
                  const char *setting, struct error *error)
{
        cleanup_with(secret_free_p) char *value = NULL;
        int r = setting != NULL ? secret_read(setting, &value, error) : 0;
        if (r < 0)
                return r;
        struct http_auth *auth = calloc(1, sizeof(*auth));
        if (auth == NULL)
                return error_no_memory(error);
        *auth = (struct http_auth){.access = {.ops = ops, .refs = 1},
                                   .user = user,
                                   .setting = setting != NULL ? strdup(setting) : NULL,
                                   .empty = value == NULL && secret == NULL};
        if (!auth->empty)
                auth->authorization = header_value(user, value ?: secret);
        pthread_mutex_init(&auth->mutex, NULL);
        if ((setting != NULL && auth->setting == NULL) || (!auth->empty && auth->authorization == NULL)) {
                http_auth_free(&auth->access);
                return error_no_memory(error);
        }
        if (!auth->empty && !is_sendable(auth->authorization)) {
                http_auth_free(&auth->access);
                return error_set(error, STREAMER_EFAILED,
                                 "the token has a line break or another byte that no header may hold");
        }
        *access = &auth->access;
        return 0;
}

void http_auth_free(struct http_access *access)
{
        struct http_auth *auth = container_of(access, struct http_auth, access);
        pthread_mutex_destroy(&auth->mutex);
        secret_free(auth->authorization);
        secret_free(auth->setting);
        free(auth->elsewhere);
        free(auth);
}

int http_auth_authorize(struct http_access *access, const struct http_request *request, struct http_headers *more,
                        struct error *error)
{
        struct http_auth *auth = container_of(access, struct http_auth, access);
        if (auth->empty)
                return 0;
        lock_scope(&auth->mutex);
        more->credentials = auth->number;
        return http_headers_add(more, "Authorization", auth->authorization, error);
}

bool http_auth_reread(struct http_auth *auth, const struct http_answer *answer)
{
        struct error error;
        cleanup_with(secret_free_p) char *secret = NULL;
        if (auth->setting == NULL)
                return false;
        /* The file is being replaced, or was removed; tries are limited. */
        if (secret_read(auth->setting, &secret, &error) < 0)
                return true;
        cleanup_with(secret_free_p) char *value = header_value(auth->user, secret);
        lock_scope(&auth->mutex);
        if (value != NULL && strcmp(value, auth->authorization) != 0) {
                secret_free(auth->authorization);
                auth->authorization = value;
                auth->number++;
                value = NULL;
        }
        return answer->credentials != auth->number;
}

/* ---- by host ---- */

static int refused(struct http_access *access, const struct http_request *request, const struct http_answer *answer,
                   struct error *error)
{
        struct http_auth *auth = container_of(access, struct http_auth, access);
        if (auth->elsewhere != NULL && (answer->status == 401 || answer->status == 403))
                return error_set(
                        error, STREAMER_EPERM,
                        "the server answers %d without credentials: those of http.hosts for its host are for %s "
                        "(%s)",
                        answer->status, auth->elsewhere, request->shown);
        return answer->status == 401 && http_auth_reread(auth, answer) ? HTTP_REFUSAL_RETRY : HTTP_REFUSAL_STAYS;
}

static const struct http_access_ops ops = {
        .authorize = http_auth_authorize, .refused = refused, .free = http_auth_free};

static int auth_elsewhere(const struct http_url *origin, struct http_access **access, struct error *error)
{
        char text[HTTP_ORIGIN_TEXT];
        int r = http_auth_new(access, &ops, NULL, NULL, NULL, error);
        if (r < 0)
                return r;
        http_origin_text(text, origin);
        struct http_auth *auth = container_of(*access, struct http_auth, access);
        auth->elsewhere = strdup(text);
        return 0;
}

int web_auth(const struct web_host *hosts, size_t n, const char *text, struct http_access **access, struct error *error)
{
        const struct web_host *host = NULL;
        struct http_url url, origin, elsewhere;
        bool is_elsewhere = false;
        *access = NULL;
        if (http_url_parse(&url, text) < 0)
                return 0;
        for (size_t i = 0; i < n && host == NULL; i++) {
                if (http_origin_parse(&origin, hosts[i].host) < 0)
                        continue;
                if (http_same_origin(&url, &origin)) {
                        host = &hosts[i];
                } else if (strcmp(url.host, origin.host) == 0) {
                        elsewhere = origin;
                        is_elsewhere = true;
                }
        }
        if (host == NULL)
                return is_elsewhere ? auth_elsewhere(&elsewhere, access, error) : 0;
        const char *value = host->user != NULL ? host->password : host->token;
        const char *file = host->user != NULL ? host->password_file : host->token_file;
        if (value != NULL || file == NULL)
                return http_auth_new(access, &ops, host->user, value ?: "", NULL, error);
        cleanup_free char *setting = format_new("%s:%s", strchr(file, '/') != NULL ? "file" : "credential", file);
        if (setting == NULL)
                return error_no_memory(error);
        return http_auth_new(access, &ops, host->user, NULL, setting, error);
}

void web_hosts_warn(const struct web_host *hosts, size_t n, const struct http_opts *opts)
{
        char text[HTTP_ORIGIN_TEXT];
        struct http_url origin;
        for (size_t i = 0; i < n; i++) {
                if (http_origin_parse(&origin, hosts[i].host) < 0 || strstr(hosts[i].host, "://") != NULL)
                        continue;
                bool plain = http_url_loopback(&origin);
                for (size_t k = 0; k < opts->n_allow_plain; k++)
                        plain = plain || http_host_matches(&origin, opts->allow_plain[k]);
                http_origin_text(text, &origin);
                if (plain)
                        log_warn("http.hosts: the credentials for %s are for %s alone; for plain http the entry names "
                                 "http://%s",
                                 origin.host, text, hosts[i].host);
        }
}
