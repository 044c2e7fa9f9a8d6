/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of metrics and its text form.
 */
#include "daemon/base/metric/metric.h"

#include "daemon/base/util.h"
#include "proto/codes.h"

#include <inttypes.h>

/* Values that a counter's label may take; codes count from -1 down. */
#define SLOTS 32
#define BUCKETS 16

static const struct metric_desc {
        const char *name, *help;
        enum metric_kind kind;
        enum metric_label label;
} metrics[] = {
#define M(id, kind, name, label, help) [METRIC_##id] = {name, help, METRIC_##kind, LABEL_##label},
        METRICS(M)
#undef M
};

static const char *const source_names[] = {[SOURCE_FILE] = "file", [SOURCE_S3] = "s3",     [SOURCE_GCS] = "gs",
                                           [SOURCE_AZURE] = "az",  [SOURCE_HTTP] = "http", [SOURCE_HF] = "hf"};
static const char *const cause_names[] = {[CAUSE_SLOW_DOWN] = "slow-down",
                                          [CAUSE_STATUS] = "status",
                                          [CAUSE_STALLED] = "stalled",
                                          [CAUSE_BROKEN] = "broken"};
static const char *const reason_names[] = {[REASON_SPACE] = "space",
                                           [REASON_IO] = "io",
                                           [REASON_VERSION] = "version",
                                           [REASON_LAYOUT] = "layout",
                                           [REASON_UNLOADED] = "unloaded"};
static const char *const result_names[] = {[RESULT_READY] = "ready",
                                           [RESULT_SHARED] = "shared",
                                           [RESULT_FAILED] = "failed",
                                           [RESULT_CANCELLED] = "cancelled"};
static const char *const stage_names[] = {
#define X(name) #name,
        STAGES(X)
#undef X
};
static const char *const code_names[] = {
#define X(wire, code, exit, text) wire,
        CODES(X)
#undef X
};
_Static_assert(ARRAY_SIZE(code_names) <= SLOTS, "a slot for each code");

/* A label of a counter has a value for each slot; without a label there is one slot. */
static const struct {
        const char *name;
        const char *const *values;
        size_t n;
} labels[] = {
        [LABEL_NONE] = {NULL, (const char *const[]){NULL}, 1},
        [LABEL_VERSION] = {"version", NULL, 0},
        [LABEL_DEVICE] = {"device", NULL, 0},
        [LABEL_STATE] = {"state", NULL, 0},
        [LABEL_SOURCE] = {"source", source_names, ARRAY_SIZE(source_names)},
        [LABEL_CODE] = {"code", code_names, ARRAY_SIZE(code_names)},
        [LABEL_RESULT] = {"result", result_names, ARRAY_SIZE(result_names)},
        [LABEL_CAUSE] = {"cause", cause_names, ARRAY_SIZE(cause_names)},
        [LABEL_STAGE] = {"stage", stage_names, ARRAY_SIZE(stage_names)},
        [LABEL_REASON] = {"reason", reason_names, ARRAY_SIZE(reason_names)},
};

/* In nanoseconds and bytes; the last bucket, +Inf, is not listed. */
static const uint64_t second_bounds[] = {10 * MS,     50 * MS,      100 * MS,     250 * MS,     500 * MS,
                                         SECOND,      2500 * MS,    5 * SECOND,   10 * SECOND,  30 * SECOND,
                                         60 * SECOND, 120 * SECOND, 300 * SECOND, 1200 * SECOND};
static const uint64_t byte_bounds[] = {16 * MiB, 64 * MiB, 256 * MiB, GiB,        4 * GiB,
                                       16 * GiB, 64 * GiB, 256 * GiB, 1024 * GiB, 4096 * GiB};
_Static_assert(ARRAY_SIZE(second_bounds) < BUCKETS && ARRAY_SIZE(byte_bounds) < BUCKETS, "a bucket for the rest");

static uint64_t counters[METRIC_COUNT][SLOTS];
static struct histogram {
        uint64_t buckets[BUCKETS]; /* each by itself; text adds them up */
        uint64_t sum;
} histograms[METRIC_COUNT];

/* ---- counting ---- */

enum metric_source metric_source_of(const char *source)
{
        if (strncmp(source, "s3://", 5) == 0)
                return SOURCE_S3;
        if (strncmp(source, "gs://", 5) == 0)
                return SOURCE_GCS;
        if (strncmp(source, "az://", 5) == 0)
                return SOURCE_AZURE;
        if (strncmp(source, "http://", 7) == 0 || strncmp(source, "https://", 8) == 0)
                return SOURCE_HTTP;
        return strncmp(source, "hf://", 5) == 0 ? SOURCE_HF : SOURCE_FILE;
}

const char *stage_name(enum stage stage)
{
        return stage_names[stage];
}

const char *stage_key(enum stage stage)
{
        static const char *const keys[] = {
#define X(name) #name "_ns",
                STAGES(X)
#undef X
        };
        return keys[stage];
}

const char *metric_source_name(enum metric_source source)
{
        return source_names[source];
}

void metric_add(enum metric metric, uint64_t n)
{
        require(metrics[metric].label == LABEL_NONE);
        add_relaxed(&counters[metric][0], n);
}

void metric_add_label(enum metric metric, unsigned value, uint64_t n)
{
        require(metrics[metric].label != LABEL_NONE && value < SLOTS);
        add_relaxed(&counters[metric][value], n);
}

void metric_add_code(enum metric metric, int code, uint64_t n)
{
        metric_add_label(metric, (unsigned)(-1 - code), n);
}

static size_t bounds_of(enum metric metric, const uint64_t **bounds)
{
        bool seconds = metrics[metric].kind == METRIC_SECONDS;
        *bounds = seconds ? second_bounds : byte_bounds;
        return seconds ? ARRAY_SIZE(second_bounds) : ARRAY_SIZE(byte_bounds);
}

void metric_observe(enum metric metric, uint64_t value)
{
        const uint64_t *bounds;
        size_t n = bounds_of(metric, &bounds), i = 0;
        while (i < n && value > bounds[i])
                i++;
        add_relaxed(&histograms[metric].buckets[i], 1);
        add_relaxed(&histograms[metric].sum, value);
}

/* ---- text ---- */

void metric_begin(FILE *out, enum metric metric)
{
        static const char *const kinds[] = {[METRIC_COUNTER] = "counter",
                                            [METRIC_COUNTER_SECONDS] = "counter",
                                            [METRIC_GAUGE] = "gauge",
                                            [METRIC_SECONDS] = "histogram",
                                            [METRIC_BYTES] = "histogram"};
        const struct metric_desc *d = &metrics[metric];
        fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", d->name, d->help, d->name, kinds[d->kind]);
}

void metric_sample(FILE *out, enum metric metric, const char *label_value, double value)
{
        const struct metric_desc *d = &metrics[metric];
        require((label_value != NULL) == (d->label != LABEL_NONE));
        fputs(d->name, out);
        if (label_value != NULL) {
                fprintf(out, "{%s=\"", labels[d->label].name);
                for (const char *c = label_value; *c != '\0'; c++)
                        fprintf(out, "%s%c", strchr("\\\"\n", *c) != NULL ? "\\" : "", *c == '\n' ? 'n' : *c);
                fputs("\"}", out);
        }
        fprintf(out, " %.17g\n", value);
}

void metric_build_sample(FILE *out, const char *version, const char *commit)
{
        fprintf(out, "%s{version=\"%s\",commit=\"%s\"} 1\n", metrics[METRIC_BUILD_INFO].name, version, commit);
}

static void put_histogram(FILE *out, enum metric metric)
{
        const char *name = metrics[metric].name;
        struct histogram *h = &histograms[metric];
        const uint64_t *bounds;
        size_t n = bounds_of(metric, &bounds);
        double unit = metrics[metric].kind == METRIC_SECONDS ? 1e9 : 1;
        uint64_t count = 0;
        for (size_t i = 0; i < n; i++) {
                count += load_relaxed(&h->buckets[i]);
                fprintf(out, "%s_bucket{le=\"%.15g\"} %" PRIu64 "\n", name, (double)bounds[i] / unit, count);
        }
        count += load_relaxed(&h->buckets[n]);
        fprintf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, count);
        fprintf(out, "%s_sum %.17g\n", name, (double)load_relaxed(&h->sum) / unit);
        fprintf(out, "%s_count %" PRIu64 "\n", name, count);
}

bool metric_is_of_device(enum metric metric)
{
        return metrics[metric].label == LABEL_DEVICE;
}

void metric_counted(FILE *out, enum metric metric)
{
        const struct metric_desc *d = &metrics[metric];
        double unit = d->kind == METRIC_COUNTER_SECONDS ? 1e9 : 1;
        if (d->kind == METRIC_SECONDS || d->kind == METRIC_BYTES)
                put_histogram(out, metric);
        else
                for (size_t i = 0; i < labels[d->label].n; i++)
                        metric_sample(out, metric, labels[d->label].values[i],
                                      (double)load_relaxed(&counters[metric][i]) / unit);
}
