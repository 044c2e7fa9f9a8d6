/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/aws/aws_credentials.h"

#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/aws/providers.h"

struct aws_provider {
        struct aws_credentials_opts opts; /* NULL instead of an empty text */
        struct service_clients clients;
};

static int from_settings(const struct aws_credentials_opts *opts, struct credential *keys, struct error *error)
{
        cleanup_with(secret_free_p) char *access = NULL;
        cleanup_with(secret_free_p) char *secret = NULL;
        cleanup_with(secret_free_p) char *token = NULL;
        int r = secret_read(opts->access, &access, error) ?: secret_read(opts->secret, &secret, error);
        if (r == 0 && opts->token != NULL)
                r = secret_read(opts->token, &token, error);
        return r ?: credential_init_keys(keys, access, secret, token, "settings", error);
}

static int fetch(void *provider, struct credential *keys, struct error *error)
{
        struct aws_provider *p = provider;
        return p->opts.access != NULL ? from_settings(&p->opts, keys, error)
                                      : aws_find_keys(&p->clients, keys, p->opts.profile, error);
}

static void stop(void *provider)
{
        struct aws_provider *p = provider;
        service_clients_stop(&p->clients);
}

static void provider_free(void *provider)
{
        struct aws_provider *p = provider;
        service_clients_deinit(&p->clients);
        free(p);
}

int aws_credentials_new(struct renewal **renewal, const struct aws_credentials_opts *opts, struct error *error)
{
        static const struct renewal_ops ops = {.fetch = fetch, .stop = stop, .free = provider_free};
        const char *access = filled(opts->access), *secret = filled(opts->secret), *token = filled(opts->token);
        if ((access == NULL) != (secret == NULL) || (token != NULL && access == NULL))
                return error_set(error, STREAMER_EINVAL, "an access key without its secret key, or the reverse");
        struct aws_provider *p = calloc(1, sizeof(*p));
        if (p == NULL)
                return error_no_memory(error);
        p->opts = (struct aws_credentials_opts){filled(opts->profile), access, secret, token, NULL};
        int r = aws_clients_init(&p->clients, opts->http, error) ?: renewal_new(renewal, &ops, p, error);
        if (r < 0)
                provider_free(p);
        return r;
}
