/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/build/stores.h"

#include "daemon/base/sys/machine.h"
#include "daemon/base/util.h"
#include "daemon/source/hf/hf.h"
#include "daemon/source/s3/endpoint.h"

#define THREADS_MOST 4u /* by default */

static int make_http(const struct config *config, struct sources *sources, struct error *error)
{
        struct http_opts opts = config->http.opts;
        unsigned processors = machine_processors();
        if (opts.threads == 0)
                opts.threads = processors < THREADS_MOST ? processors : THREADS_MOST;
        opts.ca = filled(config->http.ca);
        opts.allow_plain = (const char *const *)config->http.allow_plain;
        opts.n_allow_plain = config->http.n_allow_plain;
        return http_new(&sources->http, &opts, error);
}

int stores_make(const struct config *config, struct sources *sources, struct error *error)
{
        sources->hosts = config->http.hosts;
        sources->n_hosts = config->http.n_hosts;
        int r = make_http(config, sources, error);
        if (r == 0)
                r = s3_endpoints_new(&sources->s3, &config->s3, config->s3_sources, config->n_s3_sources,
                                     http_opts(sources->http), error);
        if (r == 0)
                r = hf_new(&sources->hf, config->hf.endpoint, config->hf.token, error);
        return r;
}

void stores_free(struct sources *sources)
{
        sources->s3 = s3_endpoints_free(sources->s3);
        sources->hf = hf_free(sources->hf);
        sources->http = http_free(sources->http);
}
