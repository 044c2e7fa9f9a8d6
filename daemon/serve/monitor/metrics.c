/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/monitor/monitor.h"

#include "daemon/base/log/log.h"

static uint64_t device_value(enum metric metric, const struct resident *resident, const struct device *d)
{
        uint64_t draining = 0, small_pages = 0, published = 0;
        list_each_item (const struct generation, g, &resident->generations, link) {
                if (g->device != d)
                        continue;
                draining += generation_drains(g) ? g->charged : 0;
                small_pages += generation_small_page_bytes(g);
                published += g->published != NULL ? g->charged : 0;
        }
        switch (metric) {
        case METRIC_DEVICE_USED:
                return d->used;
        case METRIC_DEVICE_FREE:
                return d->budget > d->used ? d->budget - d->used : 0;
        case METRIC_DEVICE_DRAINING:
                return draining;
        case METRIC_DEVICE_QUARANTINED:
                return d->quarantined;
        case METRIC_DEVICE_PREFAULTED:
                return prefault_bytes(d->prefault);
        case METRIC_DEVICE_SMALL_PAGES:
                return small_pages;
        case METRIC_PUBLISHED_BYTES:
                return published;
        default:
                return d->budget;
        }
}

static void write_one(FILE *out, enum metric metric, const struct server *server, const struct reader_usage *usage)
{
        const struct resident *resident = server->resident;
        uint64_t n_models[GENERATION_UNLOADED] = {0};
        const struct {
                enum metric metric;
                uint64_t value;
        } single[] = {{METRIC_LOADS_RUNNING, server->loads->n_running},
                      {METRIC_RING_BYTES, usage->ring_bytes},
                      {METRIC_RING_SLOTS, usage->slots},
                      {METRIC_RING_USED, usage->used_slots},
                      {METRIC_BLOCKS, usage->blocks},
                      {METRIC_CLIENTS, server->n_conns},
                      {METRIC_LEASES, server->leases.n},
                      {METRIC_LOG_LOST, log_lost()}};
        switch (metric) {
        case METRIC_BUILD_INFO:
                metric_sample(out, metric, STREAMERD_VERSION, 1);
                break;
        case METRIC_START_TIME:
                metric_sample(out, metric, NULL,
                              (double)(read_clock_ns(CLOCK_REALTIME) - (now_ns() - server->started_ns)) / 1e9);
                break;
        case METRIC_DEVICE_BUDGET:
        case METRIC_DEVICE_USED:
        case METRIC_DEVICE_FREE:
        case METRIC_DEVICE_DRAINING:
        case METRIC_DEVICE_QUARANTINED:
        case METRIC_DEVICE_PREFAULTED:
        case METRIC_DEVICE_SMALL_PAGES:
        case METRIC_PUBLISHED_BYTES:
                for (size_t i = 0; i < resident->n_devices; i++)
                        metric_sample(out, metric, resident->devices[i]->name,
                                      (double)device_value(metric, resident, resident->devices[i]));
                break;
        case METRIC_MODELS:
                list_each_item (const struct generation, g, &resident->generations, link)
                        n_models[generation_drains(g) ? GENERATION_DRAINING : g->state]++;
                for (enum generation_state s = 0; s < GENERATION_REVOKED; s++)
                        metric_sample(out, metric, generation_state_name(s), (double)n_models[s]);
                break;
        case METRIC_READER_THREADS:
                metric_sample(out, metric, "working", usage->threads - usage->stuck_threads);
                metric_sample(out, metric, "stuck", usage->stuck_threads);
                break;
        default:
                for (size_t i = 0; i < ARRAY_SIZE(single); i++)
                        if (single[i].metric == metric) {
                                metric_sample(out, metric, NULL, (double)single[i].value);
                                return;
                        }
                metric_counted(out, metric);
        }
}

char *metrics_text(const struct server *server)
{
        struct reader_usage usage;
        char *text = NULL;
        size_t size;
        FILE *out = open_memstream(&text, &size);
        if (out == NULL)
                return NULL;
        reader_usage(server->loads->reader, &usage);
        for (enum metric m = 0; m < METRIC_COUNT; m++) {
                metric_begin(out, m);
                write_one(out, m, server, &usage);
        }
        if (fclose(out) == 0)
                return text;
        free(text);
        return NULL;
}
