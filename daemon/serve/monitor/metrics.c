/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/monitor/metrics.h"

#include "daemon/base/log/log.h"

/* ---- looked up ---- */

static void sample(struct metric_text *t, enum metric metric, uint64_t value)
{
        metric_sample(t, metric, NULL, (double)value);
}

static void write_start_time(struct metric_text *t, const struct server *server)
{
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        uint64_t up = now_ns() - server->started_ns;
        metric_sample(t, METRIC_START_TIME, NULL, (double)now.tv_sec + (double)now.tv_nsec / 1e9 - (double)up / 1e9);
}

static uint64_t draining_bytes(const struct resident *resident, const struct device *device)
{
        uint64_t sum = 0;
        list_each_item (const struct generation, g, &resident->generations, link)
                if (g->device == device && g->state == GENERATION_DRAINING)
                        sum += g->charged;
        return sum;
}

static uint64_t small_page_bytes(const struct resident *resident, const struct device *device)
{
        uint64_t sum = 0;
        list_each_item (const struct generation, g, &resident->generations, link)
                sum += g->device == device ? generation_small_page_bytes(g) : 0;
        return sum;
}

static void write_device(struct metric_text *t, enum metric metric, const struct resident *resident)
{
        for (size_t i = 0; i < resident->n_devices; i++) {
                const struct device *d = resident->devices[i];
                uint64_t value = d->budget;
                if (metric == METRIC_DEVICE_USED)
                        value = d->used;
                else if (metric == METRIC_DEVICE_FREE)
                        value = d->budget > d->used ? d->budget - d->used : 0;
                else if (metric == METRIC_DEVICE_DRAINING)
                        value = draining_bytes(resident, d);
                else if (metric == METRIC_DEVICE_QUARANTINED)
                        value = d->quarantined;
                else if (metric == METRIC_DEVICE_PREFAULTED)
                        value = prefault_bytes(d->prefault);
                else if (metric == METRIC_DEVICE_SMALL_PAGES)
                        value = small_page_bytes(resident, d);
                metric_sample(t, metric, d->name, (double)value);
        }
}

static void write_models(struct metric_text *t, const struct resident *resident)
{
        uint64_t n[GENERATION_UNLOADED] = {0};
        list_each (pos, &resident->generations)
                n[container_of(pos, struct generation, link)->state]++;
        for (size_t i = 0; i < GENERATION_UNLOADED; i++)
                metric_sample(t, METRIC_MODELS, generation_state_name((enum generation_state)i), (double)n[i]);
}

static void write_reader(struct metric_text *t, enum metric metric, const struct reader_usage *u)
{
        if (metric == METRIC_READER_THREADS) {
                metric_sample(t, metric, "working", u->threads - u->stuck_threads);
                metric_sample(t, metric, "stuck", u->stuck_threads);
                return;
        }
        sample(t, metric,
               metric == METRIC_RING_BYTES   ? u->ring_bytes
               : metric == METRIC_RING_SLOTS ? u->slots
               : metric == METRIC_RING_USED  ? u->used_slots
                                             : u->blocks);
}

static void write_one(struct metric_text *t, enum metric metric, const struct server *server,
                      const struct reader_usage *usage)
{
        switch (metric) {
        case METRIC_BUILD_INFO:
                metric_sample(t, metric, STREAMERD_VERSION, 1);
                break;
        case METRIC_START_TIME:
                write_start_time(t, server);
                break;
        case METRIC_DEVICE_BUDGET:
        case METRIC_DEVICE_USED:
        case METRIC_DEVICE_FREE:
        case METRIC_DEVICE_DRAINING:
        case METRIC_DEVICE_QUARANTINED:
        case METRIC_DEVICE_PREFAULTED:
        case METRIC_DEVICE_SMALL_PAGES:
                write_device(t, metric, server->resident);
                break;
        case METRIC_MODELS:
                write_models(t, server->resident);
                break;
        case METRIC_LOADS_RUNNING:
                sample(t, metric, server->loads->n_running);
                break;
        case METRIC_RING_BYTES:
        case METRIC_RING_SLOTS:
        case METRIC_RING_USED:
        case METRIC_BLOCKS:
        case METRIC_READER_THREADS:
                write_reader(t, metric, usage);
                break;
        case METRIC_CLIENTS:
                sample(t, metric, server->n_conns);
                break;
        case METRIC_LEASES:
                sample(t, metric, server->leases.n);
                break;
        case METRIC_LOG_LOST:
                sample(t, metric, log_lost());
                break;
        default:
                metric_counted(t, metric);
        }
}

void metrics_write(struct metric_text *text, const struct server *server)
{
        struct reader_usage usage;
        reader_usage(server->reader, &usage);
        for (enum metric m = 0; m < METRIC_COUNT; m++) {
                metric_begin(text, m);
                write_one(text, m, server, &usage);
        }
}
