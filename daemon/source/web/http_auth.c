/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/web/http_auth.h"

#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"

#include <openssl/evp.h>
#include <string.h>

/* Requests that were under way with the old ones are refused later than the first. */
#define ON_THEIR_WAY_NS UINT64_C(30000000000)

static char *basic(const char *user, const char *password)
{
        char *pair = format_new("%s:%s", user, password);
        size_t n = pair != NULL ? strlen(pair) : 0;
        char *value = pair != NULL ? calloc(1, n * 2 + 16) : NULL;
        if (value != NULL) {
                memcpy(value, "Basic ", 6);
                EVP_EncodeBlock((unsigned char *)value + 6, (const unsigned char *)pair, (int)n);
        }
        secret_free(pair);
        return value;
}

/* NULL: no memory. */
static char *header_value(const char *user, const char *secret)
{
        return user != NULL ? basic(user, secret) : format_new("Bearer %s", secret);
}

int http_auth_init(struct http_auth *http_auth, const char *user, const char *secret, const char *setting,
                   struct error *error)
{
        char *from_setting = NULL;
        int r = secret == NULL ? secret_read(setting, &from_setting, error) : 0;
        if (r < 0)
                return r;
        *http_auth = (struct http_auth){.user = user,
                                        .setting = secret == NULL ? strdup(setting) : NULL,
                                        .authorization = header_value(user, secret ?: from_setting)};
        pthread_mutex_init(&http_auth->mutex, NULL);
        secret_free(from_setting);
        if (http_auth->authorization != NULL && (secret != NULL || http_auth->setting != NULL))
                return 0;
        http_auth_deinit(http_auth);
        return error_set(error, STREAMER_ENOMEM, "no memory");
}

void http_auth_deinit(struct http_auth *http_auth)
{
        pthread_mutex_destroy(&http_auth->mutex);
        secret_free(http_auth->authorization);
        secret_free(http_auth->setting);
}

int http_auth_authorize(struct http_auth *http_auth, struct http_headers *more, struct error *error)
{
        pthread_mutex_lock(&http_auth->mutex);
        int r = http_headers_add(more, "Authorization", http_auth->authorization, error);
        pthread_mutex_unlock(&http_auth->mutex);
        return r;
}

bool http_auth_reread(struct http_auth *http_auth)
{
        struct error error;
        char *secret = NULL;
        if (http_auth->setting == NULL)
                return false;
        /* It is being replaced, or was removed; tries are limited. */
        if (secret_read(http_auth->setting, &secret, &error) < 0)
                return true;
        char *value = header_value(http_auth->user, secret);
        secret_free(secret);
        pthread_mutex_lock(&http_auth->mutex);
        if (value != NULL && strcmp(value, http_auth->authorization) != 0) {
                char *old = http_auth->authorization;
                http_auth->authorization = value;
                http_auth->changed_ns = now_ns();
                value = old;
        }
        bool again = http_auth->changed_ns > 0 && now_ns() - http_auth->changed_ns < ON_THEIR_WAY_NS;
        pthread_mutex_unlock(&http_auth->mutex);
        secret_free(value);
        return again;
}
