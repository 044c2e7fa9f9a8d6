/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/stores.h"

#include "daemon/base/util.h"
#include "daemon/source/hub.h"
#include "daemon/source/s3_site.h"

static enum s3_addressing addressing_of(enum config_addressing addressing)
{
        static const enum s3_addressing map[] = {[CONFIG_ADDRESSING_AUTO] = S3_AUTO,
                                                 [CONFIG_ADDRESSING_PATH] = S3_PATH,
                                                 [CONFIG_ADDRESSING_VIRTUAL] = S3_VIRTUAL};
        return map[addressing];
}

static struct s3_site_opts site_of(const struct config_s3 *s3)
{
        return (struct s3_site_opts){.source = s3->source,
                                     .endpoint = s3->endpoint,
                                     .region = s3->region,
                                     .ca = s3->ca,
                                     .profile = s3->profile,
                                     .access = s3->access_key,
                                     .secret = s3->secret_key,
                                     .token = s3->session_token,
                                     .addressing = addressing_of(s3->addressing),
                                     .public = s3->is_unsigned};
}

int stores_make(const struct config *config, struct sources *sources, struct error *error)
{
        const struct s3_site_opts rest = site_of(&config->s3);
        const struct hub_opts hub = {.endpoint = config->hf.endpoint, .token = config->hf.token};
        struct s3_site_opts *sites = calloc(config->n_s3_sources + 1, sizeof(*sites));
        if (sites == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        for (size_t i = 0; i < config->n_s3_sources; i++)
                sites[i] = site_of(&config->s3_sources[i]);
        int r = s3_sites_new(&sources->s3, &rest, sites, config->n_s3_sources, error);
        if (r == 0)
                r = hub_new(&sources->hub, &hub, error);
        free(sites);
        return r;
}

void stores_free(struct sources *sources)
{
        sources->s3 = s3_sites_free(sources->s3);
        sources->hub = hub_free(sources->hub);
}
