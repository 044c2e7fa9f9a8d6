/* SPDX-License-Identifier: Apache-2.0
 *
 * Devices: one entry of `devices` is one device, or several ("cuda:all"). A GPU can be named in several ways: that two
 * entries are one device is detected by their UUIDs once both exist.
 */
#include "daemon/config/build/build.h"

#include "daemon/base/log/log.h"
#include "daemon/base/util.h"
#include "daemon/source/hf/hf.h"
#include "daemon/source/s3/endpoint.h"

#include <inttypes.h>

#define HTTP_THREADS 4 /* at most, by default */

static int add(struct devices *d, struct device *device, bool optional, struct error *error)
{
        for (size_t i = 0; i < d->n; i++)
                if (strcmp(d->v[i]->uuid, device->uuid) == 0 && d->v[i]->ops == device->ops) {
                        int r = optional ? 0
                                         : error_set(error, STREAMER_EINVAL, "device %s is configured twice",
                                                     device->name);
                        device_free(device);
                        return r;
                }
        require(d->n < DEVICES_MAX);
        device->number = (unsigned)d->n;
        d->v[d->n++] = device;
        log_info("device %s: budget %" PRIu64 " bytes, %s pages (%s)", device->name, device->budget,
                 page_kind_name(device->pages), device->uuid);
        return 0;
}

/* Notes why an optional device does not work; else the error itself. */
static int add_absence(struct devices *d, const struct config_device *c, struct error *error)
{
        if (!c->optional)
                return error->code;
        log_warn("device %s: not used: %s", c->name, error->text);
        if (d->n_absent < DEVICES_MAX) {
                struct device_absence *absence = &d->absent[d->n_absent++];
                snprintf(absence->name, sizeof(absence->name), "%s", c->name);
                absence->error = *error;
        }
        *error = (struct error){0};
        return 0;
}

static int add_cuda(struct devices *d, const struct config *config, const struct config_device *c, struct wake *wake,
                    struct error *error)
{
        int ordinals[DEVICES_MAX];
        struct cuda_opts opts = {.budget = c->budget,
                                 .budget_percent = c->budget_percent,
                                 .handles = c->handles,
                                 .max_segment = config->cuda.segment_size};
        int r = d->cuda != NULL ? 0 : cuda_new(&d->cuda, filled(config->cuda.library), &config->cuda.settings, error);
        int n = r < 0 ? r : cuda_find(d->cuda, c->name, ordinals, (int)(DEVICES_MAX - d->n), error);
        for (int i = 0; i < n; i++) {
                struct device *device;
                if (cuda_device_new(&device, d->cuda, ordinals[i], &opts, wake, error) < 0 ||
                    add(d, device, c->optional, error) < 0)
                        return add_absence(d, c, error);
        }
        return n < 0 ? add_absence(d, c, error) : 0;
}

int devices_init(struct devices *d, const struct config *config, struct wake *wake, struct error *error)
{
        int r = 0;
        for (size_t i = 0; r == 0 && i < config->n_devices; i++) {
                const struct config_device *c = &config->devices[i];
                if (strcmp(c->name, "host") != 0) {
                        r = add_cuda(d, config, c, wake, error);
                        continue;
                }
                const struct host_opts opts = {.budget = c->budget, .pages = c->pages, .prefault = c->prefault};
                struct device *device;
                if (c->prefault != PREFAULT_AUTO && c->prefault > c->budget)
                        log_warn("host: prefaulted: %" PRIu64 " bytes exceed the budget, which limits them",
                                 c->prefault);
                r = host_device_new(&device, &opts, wake, error) ?: add(d, device, false, error);
        }
        if (r == 0 && d->n == 0)
                r = error_set(error, STREAMER_EUNSUPPORTED, "no device works: %s: %s", d->absent[0].name,
                              d->absent[0].error.text);
        return r;
}

void devices_deinit(struct devices *d)
{
        for (size_t i = 0; i < d->n; i++)
                device_free(d->v[i]);
        cuda_free(d->cuda);
}

struct numa_choice devices_numa(const struct devices *d)
{
        int nodes[DEVICES_MAX];
        for (size_t i = 0; i < d->n; i++)
                nodes[i] = d->v[i]->numa_node;
        return numa_choose(numa_online(), nodes, d->n);
}

/* ---- stores ---- */

int stores_make(const struct config *config, struct sources *sources, struct error *error)
{
        struct http_opts opts = config->http.opts;
        long processors = sysconf(_SC_NPROCESSORS_ONLN);
        if (opts.threads == 0)
                opts.threads = processors > HTTP_THREADS ? HTTP_THREADS : processors > 0 ? (unsigned)processors : 1;
        opts.ca = filled(config->http.ca);
        opts.allow_plain = (const char *const *)config->http.allow_plain;
        opts.n_allow_plain = config->http.n_allow_plain;
        sources->hosts = config->http.hosts;
        sources->n_hosts = config->http.n_hosts;
        return http_new(&sources->http, &opts, error)
                       ?: s3_endpoints_new(&sources->s3, &config->s3, config->s3_sources, config->n_s3_sources,
                                           &sources->http->opts, error)
                       ?: hf_new(&sources->hf, config->hf.endpoint, config->hf.token, error);
}

void stores_free(struct sources *sources)
{
        sources->s3 = s3_endpoints_free(sources->s3);
        sources->hf = hf_free(sources->hf);
        sources->http = http_free(sources->http);
}
