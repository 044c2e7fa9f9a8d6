/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/monitor/monitor.h"

#include "daemon/base/commit.h"
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

/* What is counted in one walk over the models: a text is made within one turn of the loop. */
struct tally {
        uint64_t models[GENERATION_UNLOADED];
        struct tally_device {
                uint64_t draining, small_pages, published;
        } * devices; /* by number */
};

static void count_models(struct tally *tally, const struct resident *resident)
{
        list_each_item (const struct generation, g, &resident->generations, link) {
                struct tally_device *device = &tally->devices[g->device->number];
                tally->models[generation_drains(g) ? GENERATION_DRAINING : g->state]++;
                device->draining += generation_drains(g) ? g->charged : 0;
                device->small_pages += generation_small_page_bytes(g);
                device->published += g->published != NULL ? g->charged : 0;
        }
}

static void write_device(FILE *out, enum metric metric, const struct tally *tally, const struct device *d)
{
        const struct tally_device *counted = &tally->devices[d->number];
        const struct value values[] = {{METRIC_DEVICE_BUDGET, d->budget},
                                       {METRIC_DEVICE_USED, d->used},
                                       {METRIC_DEVICE_FREE, d->budget > d->used ? d->budget - d->used : 0},
                                       {METRIC_DEVICE_DRAINING, counted->draining},
                                       {METRIC_DEVICE_QUARANTINED, d->quarantined},
                                       {METRIC_DEVICE_PREFAULTED, prefault_bytes(d->prefault)},
                                       {METRIC_DEVICE_SMALL_PAGES, counted->small_pages},
                                       {METRIC_DEVICE_FAILED, !device_in_service(d)},
                                       {METRIC_PUBLISHED_BYTES, counted->published}};
        write_value(out, metric, d->name, values, ARRAY_SIZE(values));
}

static void write_desired(FILE *out, const struct desired *desired)
{
        static const char *const states[] = {"waiting", "loading", "ready", "failed"};
        unsigned n[ARRAY_SIZE(states)] = {0};
        desired_each (m, desired) {
                const char *state = desired_state_name(m);
                for (size_t i = 0; i < ARRAY_SIZE(states); i++)
                        if (strcmp(state, states[i]) == 0)
                                n[i]++;
        }
        for (size_t i = 0; i < ARRAY_SIZE(states); i++)
                metric_sample(out, METRIC_DESIRED, states[i], n[i]);
}

static void write_one(FILE *out, enum metric metric, const struct server *server, const struct tally *tally,
                      const struct reader_usage *usage)
{
        const struct resident *resident = server->resident;
        struct disk_usage disk = {.budget = 0};
        if (server->loads->sources->disk != NULL)
                disk_cache_usage(server->loads->sources->disk, &disk);
        const struct value single[] = {{METRIC_LOADS_RUNNING, server->loads->n_running},
                                       {METRIC_RING_BYTES, usage->ring_bytes},
                                       {METRIC_RING_SLOTS, usage->slots},
                                       {METRIC_RING_USED, usage->used_slots},
                                       {METRIC_BLOCKS, usage->blocks},
                                       {METRIC_CLIENTS, server->n_conns},
                                       {METRIC_LEASES, server->leases.n},
                                       {METRIC_DEVICES_ABSENT, server->n_absent},
                                       {METRIC_READY, server_is_ready(server)},
                                       {METRIC_DISK_BUDGET, disk.budget},
                                       {METRIC_DISK_USED, disk.used},
                                       {METRIC_DISK_ENTRIES, disk.entries},
                                       {METRIC_DISK_OLDEST, disk.oldest_s},
                                       {METRIC_LOG_LOST, log_lost()}};
        switch (metric) {
        case METRIC_BUILD_INFO:
                metric_build_sample(out, STREAMERD_VERSION, build_commit);
                break;
        case METRIC_START_TIME:
                metric_sample(out, metric, NULL,
                              (double)(read_clock_ns(CLOCK_REALTIME) - (now_ns() - server->started_ns)) / 1e9);
                break;
        case METRIC_MODELS:
                for (enum generation_state s = 0; s < GENERATION_REVOKED; s++)
                        metric_sample(out, metric, generation_state_name(s), (double)tally->models[s]);
                break;
        case METRIC_DESIRED:
                write_desired(out, &server->desired);
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
                        write_device(out, metric, tally, resident->devices[i]);
        }
}

char *metrics_text(const struct server *server)
{
        const struct resident *resident = server->resident;
        cleanup_free struct tally_device *devices = calloc(resident->n_devices, sizeof(*devices));
        struct tally tally = {.devices = devices};
        struct reader_usage usage;
        char *text = NULL;
        size_t size;
        FILE *out = devices != NULL ? open_memstream(&text, &size) : NULL;
        if (out == NULL)
                return NULL;
        count_models(&tally, resident);
        reader_usage(server->loads->reader, &usage);
        for (enum metric m = 0; m < METRIC_COUNT; m++) {
                metric_begin(out, m);
                write_one(out, m, server, &tally, &usage);
        }
        if (fclose(out) == 0)
                return text;
        free(text);
        return NULL;
}
