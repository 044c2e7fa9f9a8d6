/* SPDX-License-Identifier: Apache-2.0
 *
 * The metrics, as one table, which docs/metrics.md lists. A metric has at most one label (but that of the build), with
 * values from a fixed set (codes, kinds of sources, states, configured devices): clients cannot create series.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The time that each stage of a load takes. The times of all threads are summed, so that they may be longer than the
 * load. */
/*        name     what took the time */
#define STAGES(X)                                                                                                      \
        X(begin)      /* from the request until the first block may be read: opening, planning, memory */              \
        X(storage)    /* threads: direct reads, and blocks of the network from request to last byte */                 \
        X(read)       /* threads: reads from the page cache */                                                         \
        X(memory)     /* threads: finding pages of host memory */                                                      \
        X(hash)       /* threads: hashing blocks of files */                                                           \
        X(copy)       /* threads: waiting for copies to devices */                                                     \
        X(slot)       /* a block was due and no slot of the ring was free */                                           \
        X(spot_check) /* of the end: reading samples of the resident bytes back */                                     \
        X(end)        /* from the last block until the model serves: digests, the source's version, samples */

enum stage {
#define X(name) STAGE_##name,
        STAGES(X)
#undef X
                STAGE_COUNT
};

struct stages {
        uint64_t ns[STAGE_COUNT]; /* atomic while the load reads */
};

const char *stage_name(enum stage stage);
const char *stage_key(enum stage stage); /* of its nanoseconds in a reply: "read_ns" */

static inline void stages_add(struct stages *stages, enum stage of, uint64_t ns)
{
        __atomic_add_fetch(&stages->ns[of], ns, __ATOMIC_RELAXED);
}

enum metric_kind {
        METRIC_COUNTER,
        METRIC_COUNTER_SECONDS, /* moved by nanoseconds */
        METRIC_GAUGE,
        METRIC_SECONDS, /* histograms */
        METRIC_BYTES,
};
enum metric_label {
        LABEL_NONE,
        LABEL_VERSION,
        LABEL_DEVICE,
        LABEL_STATE,
        LABEL_SOURCE,
        LABEL_CODE,
        LABEL_RESULT,
        LABEL_CAUSE,
        LABEL_STAGE,
        LABEL_REASON
};

// clang-format off
#define METRICS(M) \
        M(BUILD_INFO,      GAUGE,   "streamerd_build_info",                VERSION, "1, with the version and the commit as its labels") \
        M(START_TIME,      GAUGE,   "streamerd_start_time_seconds",        NONE,    "Start time of the daemon, in seconds since 1970") \
        M(DEVICE_BUDGET,   GAUGE,   "streamerd_device_budget_bytes",       DEVICE,  "Bytes that models may use on the device") \
        M(DEVICE_USED,     GAUGE,   "streamerd_device_used_bytes",         DEVICE,  "Bytes of the budget in use") \
        M(DEVICE_FREE,     GAUGE,   "streamerd_device_free_bytes",         DEVICE,  "Free bytes of the budget") \
        M(DEVICE_DRAINING, GAUGE,   "streamerd_device_draining_bytes",     DEVICE,  "Bytes of draining models") \
        M(DEVICE_QUARANTINED, GAUGE, "streamerd_device_quarantined_bytes", DEVICE, "Bytes of models that were unloaded by force and are still mapped") \
        M(DEVICE_PREFAULTED, GAUGE,   "streamerd_device_prefaulted_bytes",  DEVICE,  "Bytes prefaulted for the next model, in addition to the used ones") \
        M(DEVICE_SMALL_PAGES, GAUGE, "streamerd_device_small_page_bytes",  DEVICE,  "Bytes of models that got small pages because the kernel found no huge page") \
        M(DEVICE_FAILED,   GAUGE,   "streamerd_device_out_of_service",     DEVICE,  "1 if the device's context failed, which a restart of the daemon repairs") \
        M(DEVICES_ABSENT,  GAUGE,   "streamerd_devices_absent",            NONE,    "Configured optional devices that did not work at start") \
        M(READY,           GAUGE,   "streamerd_ready",                     NONE,    "1 if /readyz answers 200") \
        M(DESIRED,         GAUGE,   "streamerd_desired_models",            STATE,   "Models to preload, or to restore since they are pinned, by state") \
        M(COLLAPSE_STOPPED, COUNTER, "streamerd_collapse_stopped_total",   NONE,    "Segments whose remaining pages are small because memory was fragmented") \
        M(MODELS,          GAUGE,   "streamerd_models",                    STATE,   "Generations of models by state") \
        M(LOADS_RUNNING,   GAUGE,   "streamerd_loads_running",             NONE,    "Running and waiting loads") \
        M(LOADS,           COUNTER, "streamerd_loads_total",               RESULT,  "Completed loads, by result; shared: the model was resident already") \
        M(LOAD_ERRORS,     COUNTER, "streamerd_load_errors_total",         CODE,    "Failed loads, by code; outside the roots: not-found") \
        M(LOAD_SECONDS,    SECONDS, "streamerd_load_seconds",              NONE,    "Duration of loads that became ready") \
        M(LOAD_STAGES,     COUNTER_SECONDS, "streamerd_load_stage_seconds_total", STAGE, "Time of loads that became ready, by stage, summed over threads") \
        M(LOAD_BYTES,      BYTES,   "streamerd_load_bytes",                NONE,    "Size of loads that became ready") \
        M(READ_BYTES,      COUNTER, "streamerd_read_bytes_total",          SOURCE,  "Bytes of weights loaded and hashed, by kind of source") \
        M(READ_TIME,       COUNTER_SECONDS, "streamerd_read_seconds_total", NONE,   "Time that blocks were being read, of loads that became ready") \
        M(READ_CAPACITY,       COUNTER_SECONDS, "streamerd_read_capacity_seconds_total", NONE, "Time that blocks could have been read: duration times concurrency of these loads") \
        M(DISK_BUDGET,     GAUGE,   "streamerd_disk_cache_budget_bytes",   NONE,    "Bytes that the disk cache may use; 0: there is none") \
        M(DISK_USED,       GAUGE,   "streamerd_disk_cache_used_bytes",     NONE,    "Bytes of entries of the disk cache, with those that are being written") \
        M(DISK_ENTRIES,    GAUGE,   "streamerd_disk_cache_entries",        NONE,    "Entries of the disk cache") \
        M(DISK_OLDEST,     GAUGE,   "streamerd_disk_cache_oldest_seconds", NONE,    "Time since the least recently used entry of the disk cache was used") \
        M(DISK_HITS,       COUNTER, "streamerd_disk_cache_hits_total",     NONE,    "Objects of stores that were opened in the disk cache") \
        M(DISK_MISSES,     COUNTER, "streamerd_disk_cache_misses_total",   NONE,    "Objects of stores that the disk cache did not have in their version") \
        M(DISK_EVICTIONS,  COUNTER, "streamerd_disk_cache_evictions_total", NONE,   "Entries that were evicted from the disk cache") \
        M(DISK_DAMAGED,    COUNTER, "streamerd_disk_cache_damaged_total",  NONE,    "Entries that were removed from the disk cache because their bytes were damaged or could not be read") \
        M(DISK_NOT_STORED, COUNTER, "streamerd_disk_cache_not_stored_total", REASON, "Objects that were not stored in the disk cache, by reason") \
        M(DISK_WRITTEN_BYTES, COUNTER, "streamerd_disk_cache_written_bytes_total", NONE, "Bytes of objects that were stored in the disk cache") \
        M(DISK_READ_BYTES, COUNTER, "streamerd_disk_cache_read_bytes_total", NONE,  "Bytes of weights that loads have read from the disk cache") \
        M(RETRIES,         COUNTER, "streamerd_retries_total",             CAUSE,   "Retried requests to a web server or a store, by cause") \
        M(PAUSES,          COUNTER, "streamerd_pauses_total",              NONE,    "Times that reading from a web server or a store paused because no slot of the staging ring was free") \
        M(RING_BYTES,      GAUGE,   "streamerd_ring_bytes",                NONE,    "Bytes of the staging ring") \
        M(RING_SLOTS,      GAUGE,   "streamerd_ring_slots",                NONE,    "Slots of the staging ring") \
        M(RING_USED,       GAUGE,   "streamerd_ring_used_slots",           NONE,    "Slots of the staging ring in use") \
        M(READER_THREADS,  GAUGE,   "streamerd_reader_threads",            STATE,   "Reader threads by state; stuck: blocked in storage that does not answer") \
        M(BLOCKS,          GAUGE,   "streamerd_blocks_in_flight",          NONE,    "Blocks being read or copied") \
        M(CLIENTS,         GAUGE,   "streamerd_clients",                   NONE,    "Open connections") \
        M(LEASES,          GAUGE,   "streamerd_leases",                    NONE,    "Leases, including orphans") \
        M(ATTACHES,        COUNTER, "streamerd_attaches_total",            NONE,    "Successful attaches") \
        M(REQUEST_ERRORS,  COUNTER, "streamerd_request_errors_total",      CODE,    "Requests answered with an error, by code") \
        M(PUBLICATIONS,    COUNTER, "streamerd_publications_total",        RESULT,  "Models that clients began to publish, by result") \
        M(PUBLISHED_BYTES, GAUGE,   "streamerd_published_bytes",           DEVICE,  "Bytes of models that clients have published, or are publishing") \
        M(EVICTIONS,       COUNTER, "streamerd_evictions_total",           NONE,    "Models evicted, to the host cache or entirely") \
        M(LOOP_CPU,        SECONDS, "streamerd_loop_cpu_seconds",          NONE,    "Processor time of event loop iterations of 1 ms or more") \
        M(LOG_LOST,        COUNTER, "streamerd_log_lost_total",            NONE,    "Dropped log lines")
// clang-format on

enum metric {
#define M(id, kind, name, label, help) METRIC_##id,
        METRICS(M)
#undef M
                METRIC_COUNT
};

enum metric_source { SOURCE_FILE, SOURCE_S3, SOURCE_GCS, SOURCE_AZURE, SOURCE_HTTP, SOURCE_HF };
/* Reasons of a retry: the server asked for a pause, or returned an error status; no byte arrived for too long; the
 * connection or the response broke. */
enum metric_cause { CAUSE_SLOW_DOWN, CAUSE_STATUS, CAUSE_STALLED, CAUSE_BROKEN };
enum metric_result { RESULT_READY, RESULT_SHARED, RESULT_FAILED, RESULT_CANCELLED };

/* Why an object is not in the disk cache: no space within its limits; an error of the disk; a version that cannot be
 * trusted; encrypted, or not read as a whole; its model was unloaded before it was written. */
enum metric_reason { REASON_SPACE, REASON_IO, REASON_VERSION, REASON_LAYOUT, REASON_UNLOADED };

/* The kind of a canonical source. */
enum metric_source metric_source_of(const char *source);
const char *metric_source_name(enum metric_source source);

/* ---- counting, from any thread ---- */

void metric_add(enum metric metric, uint64_t n); /* a counter without label */
/* A counter with a label; `value` is of the label's enum: a source, result, cause or stage. */
void metric_add_label(enum metric metric, unsigned value, uint64_t n);
void metric_add_code(enum metric metric, int code, uint64_t n); /* STREAMER_E* */
void metric_observe(enum metric metric, uint64_t value);        /* a histogram: nanoseconds or bytes */

/* ---- text, in Prometheus' format ---- */

/* HELP and TYPE. */
void metric_begin(FILE *out, enum metric metric);
/* One sample; label_value NULL where the metric has no label. */
void metric_sample(FILE *out, enum metric metric, const char *label_value, double value);
void metric_build_sample(FILE *out, const char *version, const char *commit);
bool metric_is_of_device(enum metric metric); /* which then is not counted here */
/* All samples of a metric that is counted here. */
void metric_counted(FILE *out, enum metric metric);
