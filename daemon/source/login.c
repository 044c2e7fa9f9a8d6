/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/login.h"

#include "daemon/base/secret.h"
#include "daemon/base/util.h"

#include <openssl/evp.h>
#include <string.h>

/* Requests that were under way with the old ones are refused later than the first. */
#define ON_THEIR_WAY_NS UINT64_C(30000000000)

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

static char *copy(const char *text, bool *failed)
{
        char *copied = text != NULL ? strdup(text) : NULL;
        *failed |= text != NULL && copied == NULL;
        return copied;
}

int login_init(struct login *login, const char *user, const char *secret, const char *setting, struct error *error)
{
        bool failed = false;
        char *from_setting = NULL;
        int r = secret == NULL ? secret_read(setting, &from_setting, error) : 0;
        if (r < 0)
                return r;
        *login = (struct login){.user = copy(user, &failed),
                                .setting = copy(secret == NULL ? setting : NULL, &failed),
                                .authorization = header_value(user, secret ?: from_setting)};
        pthread_mutex_init(&login->mutex, NULL);
        secret_free(from_setting);
        if (!failed && login->authorization != NULL)
                return 0;
        login_deinit(login);
        return error_set(error, STREAMER_ENOMEM, "no memory");
}

void login_deinit(struct login *login)
{
        pthread_mutex_destroy(&login->mutex);
        secret_free(login->authorization);
        secret_free(login->setting);
        free(login->user);
}

int login_authorize(struct login *login, struct http_headers *more, struct error *error)
{
        pthread_mutex_lock(&login->mutex);
        int r = http_headers_add(more, "Authorization", login->authorization, error);
        pthread_mutex_unlock(&login->mutex);
        return r;
}

bool login_again(struct login *login)
{
        struct error error;
        char *secret = NULL;
        if (login->setting == NULL)
                return false;
        /* It is being written just now; or gone, but tries are counted. */
        if (secret_read(login->setting, &secret, &error) < 0)
                return true;
        char *value = header_value(login->user, secret);
        secret_free(secret);
        pthread_mutex_lock(&login->mutex);
        if (value != NULL && strcmp(value, login->authorization) != 0) {
                char *old = login->authorization;
                login->authorization = value;
                login->changed_ns = now_ns();
                value = old;
        }
        bool again = login->changed_ns > 0 && now_ns() - login->changed_ns < ON_THEIR_WAY_NS;
        pthread_mutex_unlock(&login->mutex);
        secret_free(value);
        return again;
}
