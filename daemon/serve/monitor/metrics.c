/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/monitor/monitor.h"

#include "daemon/base/log/log.h"

struct value {
        enum metric metric;
        uint64_t value;
};

/* False: the metric is not among these. */
static bool write_value(FILE *out, enum metric metric, const char *label, const struct value *values, size_t n)
{
        for (size_t i = 0; i < n; i++)
                if (values[i].metric == metric) {
                        metric_sample(out, metric, label, (double)values[i].value);
                        return true;
                }
        return false;
}

static void write_device(FILE *out, enum metric metric, const struct resident *resident, const struct device *d)
{
        uint64_t draining = 0, small_pages = 0, published = 0;
        list_each_item (const struct generation, g, &resident->generations, link) {
                if (g->device != d)
                        continue;
                draining += generation_drains(g) ? g->charged : 0;
                small_pages += generation_small_page_bytes(g);
                published += g->published != NULL ? g->charged : 0;
        }
        const struct value values[] = {{METRIC_DEVICE_BUDGET, d->budget},
                                       {METRIC_DEVICE_USED, d->used},
                                       {METRIC_DEVICE_FREE, d->budget > d->used ? d->budget - d->used : 0},
                                       {METRIC_DEVICE_DRAINING, draining},
                                       {METRIC_DEVICE_QUARANTINED, d->quarantined},
                                       {METRIC_DEVICE_PREFAULTED, prefault_bytes(d->prefault)},
                                       {METRIC_DEVICE_SMALL_PAGES, small_pages},
                                       {METRIC_PUBLISHED_BYTES, published}};
        write_value(out, metric, d->name, values, ARRAY_SIZE(values));
}

static void write_one(FILE *out, enum metric metric, const struct server *server, const struct reader_usage *usage)
{
        const struct resident *resident = server->resident;
        uint64_t n_models[GENERATION_UNLOADED] = {0};
        const struct value single[] = {{METRIC_LOADS_RUNNING, server->loads->n_running},
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
                if (write_value(out, metric, NULL, single, ARRAY_SIZE(single)))
                        return;
                if (!metric_is_of_device(metric))
                        metric_counted(out, metric);
                for (size_t i = 0; metric_is_of_device(metric) && i < resident->n_devices; i++)
                        write_device(out, metric, resident, resident->devices[i]);
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
