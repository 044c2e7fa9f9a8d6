/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/stores.h"

#include "daemon/base/machine.h"
#include "daemon/base/util.h"
#include "daemon/source/hub.h"
#include "daemon/source/s3_site.h"
#include "daemon/source/web.h"

/* ---- the web ---- */

#define THREADS_MOST 4u /* that nobody asked for */

static unsigned threads_of(const struct config *config)
{
        unsigned processors = machine_processors();
        if (config->http.threads > 0)
                return config->http.threads;
        return processors < THREADS_MOST ? processors : THREADS_MOST;
}

static int make_http(const struct config *config, struct sources *sources, struct error *error)
{
        struct http_opts opts = {.connect_timeout_ns = config->http.connect_timeout_ns,
                                 .stall_ns = config->http.stall_ns,
                                 .backoff_ns = config->http.backoff_ns,
                                 .retry_after_ns = config->http.retry_after_ns,
                                 .tries = config->http.tries,
                                 .patience_ns = config->http.patience_ns,
                                 .redirects = config->http.redirects,
                                 .threads = threads_of(config),
                                 .request_max = config->http.request_max,
                                 .ca = config_text(config->http.ca),
                                 .allow_plain = (const char *const *)config->http.allow_plain,
                                 .n_allow_plain = config->http.n_allow_plain};
        return http_new(&sources->http, &opts, error);
}

static int make_web(const struct config *config, struct sources *sources, struct error *error)
{
        size_t n = config->http.n_hosts;
        cleanup_free struct web_host *hosts = calloc(n + 1, sizeof(*hosts));
        if (hosts == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        for (size_t i = 0; i < n; i++) {
                const struct config_http_host *h = &config->http.hosts[i];
                hosts[i] = (struct web_host){h->host, h->token, h->token_file, h->user, h->password, h->password_file};
        }
        return web_new(&sources->web, hosts, n, error);
}

/* ---- stores ---- */

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
                                     .public = s3->is_unsigned,
                                     .not_public = s3->is_signed};
}

static int make_s3(const struct config *config, struct sources *sources, struct error *error)
{
        struct s3_site_opts rest = site_of(&config->s3);
        cleanup_free struct s3_site_opts *sites = calloc(config->n_s3_sources + 1, sizeof(*sites));
        if (sites == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        rest.http = http_opts(sources->http);
        for (size_t i = 0; i < config->n_s3_sources; i++)
                sites[i] = site_of(&config->s3_sources[i]);
        return s3_sites_new(&sources->s3, &rest, sites, config->n_s3_sources, error);
}

/* ---- all of it ---- */

int stores_make(const struct config *config, struct sources *sources, struct error *error)
{
        const struct hub_opts hub = {.endpoint = config->hf.endpoint, .token = config->hf.token};
        int r = make_http(config, sources, error);
        if (r == 0)
                r = make_web(config, sources, error);
        if (r == 0)
                r = make_s3(config, sources, error);
        if (r == 0)
                r = hub_new(&sources->hub, &hub, error);
        return r;
}

void stores_free(struct sources *sources)
{
        sources->s3 = s3_sites_free(sources->s3);
        sources->hub = hub_free(sources->hub);
        sources->web = web_free(sources->web);
        sources->http = http_free(sources->http);
}
