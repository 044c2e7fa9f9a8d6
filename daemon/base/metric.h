/* SPDX-License-Identifier: Apache-2.0
 *
 * What the daemon counts, as one table. From it follow the counters and histograms below, which any
 * thread may move, the text that Prometheus reads, and docs/metrics.md, which a test compares.
 *
 * A metric has one label at the most, and a label takes values from a fixed set (codes, kinds of
 * sources, states, the configured devices): no client can make a new series. That is why no metric
 * carries a model's name; /readyz?model=NAME answers for one model.
 */
#ifndef DAEMON_BASE_METRIC_H
#define DAEMON_BASE_METRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
        LABEL_CAUSE
};

// clang-format off
#define METRICS(M) \
        M(BUILD_INFO,      GAUGE,   "streamerd_build_info",                VERSION, "1, with the version as its label") \
        M(START_TIME,      GAUGE,   "streamerd_start_time_seconds",        NONE,    "When the daemon started, in seconds since 1970") \
        M(DEVICE_BUDGET,   GAUGE,   "streamerd_device_budget_bytes",       DEVICE,  "Bytes that models may take on the device") \
        M(DEVICE_USED,     GAUGE,   "streamerd_device_used_bytes",         DEVICE,  "Bytes of the budget that are taken") \
        M(DEVICE_FREE,     GAUGE,   "streamerd_device_free_bytes",         DEVICE,  "Bytes of the budget that are free") \
        M(DEVICE_DRAINING, GAUGE,   "streamerd_device_draining_bytes",     DEVICE,  "Bytes of models that were dropped and are still held by leases") \
        M(DEVICE_QUARANTINED, GAUGE, "streamerd_device_quarantined_bytes", DEVICE, "Bytes of models that were taken from clients who still map them") \
        M(DEVICE_SPARE,    GAUGE,   "streamerd_device_spare_bytes",        DEVICE,  "Bytes that are made ready for the next model, beside the used ones") \
        M(MODELS,          GAUGE,   "streamerd_models",                    STATE,   "Generations of models by state") \
        M(LOADS_RUNNING,   GAUGE,   "streamerd_loads_running",             NONE,    "Loads that run or wait") \
        M(LOADS,           COUNTER, "streamerd_loads_total",               RESULT,  "Loads that have ended, by result; shared: resident already") \
        M(LOAD_ERRORS,     COUNTER, "streamerd_load_errors_total",         CODE,    "Loads that have failed, by code") \
        M(LOAD_SECONDS,    SECONDS, "streamerd_load_seconds",              NONE,    "Duration of loads that became ready") \
        M(LOAD_BYTES,      BYTES,   "streamerd_load_bytes",                NONE,    "Size of loads that became ready") \
        M(READ_BYTES,      COUNTER, "streamerd_read_bytes_total",          SOURCE,  "Bytes of weights that have landed and were hashed, by kind of source") \
        M(READ_TIME,       COUNTER_SECONDS, "streamerd_read_seconds_total", NONE,   "Time that blocks of loads that became ready were being read") \
        M(READ_ROOM,       COUNTER_SECONDS, "streamerd_read_room_seconds_total", NONE, "Time that they could have been: length times depth of these loads") \
        M(RETRIES,         COUNTER, "streamerd_retries_total",             CAUSE,   "Requests to a web server or a store that were made again, by what became of the one before") \
        M(PAUSES,          COUNTER, "streamerd_pauses_total",              NONE,    "Times that a request to a web server or a store was not read on for want of a free slot of the staging ring") \
        M(RING_BYTES,      GAUGE,   "streamerd_ring_bytes",                NONE,    "Bytes of the staging ring") \
        M(RING_SLOTS,      GAUGE,   "streamerd_ring_slots",                NONE,    "Slots of the staging ring") \
        M(RING_USED,       GAUGE,   "streamerd_ring_used_slots",           NONE,    "Slots of the staging ring that are in use") \
        M(READER_THREADS,  GAUGE,   "streamerd_reader_threads",            STATE,   "Reader threads by state; stuck: in storage that does not answer") \
        M(BLOCKS,          GAUGE,   "streamerd_blocks_in_flight",          NONE,    "Blocks that are being read or copied") \
        M(CLIENTS,         GAUGE,   "streamerd_clients",                   NONE,    "Open connections") \
        M(LEASES,          GAUGE,   "streamerd_leases",                    NONE,    "Leases, orphans included") \
        M(ATTACHES,        COUNTER, "streamerd_attaches_total",            NONE,    "Attaches that were granted") \
        M(REQUEST_ERRORS,  COUNTER, "streamerd_request_errors_total",      CODE,    "Requests that were answered with an error, by code") \
        M(EVICTIONS,       COUNTER, "streamerd_evictions_total",           NONE,    "Models that gave way to others, to the host cache or for good") \
        M(LOOP_STALL,      SECONDS, "streamerd_loop_stall_seconds",        NONE,    "How long turns of the event loop kept everybody waiting; shorter than 10 ms are not counted") \
        M(LOOP_READY,      COUNTER_SECONDS, "streamerd_loop_ready_seconds_total", NONE, "Time that the event loop had something to do and no processor to do it on") \
        M(LOG_LOST,        COUNTER, "streamerd_log_lost_total",            NONE,    "Log lines that nobody took")
// clang-format on

enum metric {
#define M(id, kind, name, label, help) METRIC_##id,
        METRICS(M)
#undef M
                METRIC_COUNT
};

enum metric_source { SOURCE_FILE, SOURCE_S3, SOURCE_HTTP, SOURCE_HF };
/* Of a retry: the server asked for a pause, or answered with another status; no byte came for too long;
 * the connection or the answer broke. */
enum metric_cause { CAUSE_SLOW_DOWN, CAUSE_STATUS, CAUSE_STALLED, CAUSE_BROKEN };
enum metric_result { RESULT_READY, RESULT_SHARED, RESULT_FAILED, RESULT_CANCELLED };

/* The kind of a canonical source. */
enum metric_source metric_source_of(const char *source);
const char *metric_source_name(enum metric_source source);

/* ---- counting, from any thread ---- */

void metric_add(enum metric metric, uint64_t n); /* a counter without label */
void metric_add_source(enum metric metric, enum metric_source source, uint64_t n);
void metric_add_result(enum metric metric, enum metric_result result, uint64_t n);
void metric_add_cause(enum metric metric, enum metric_cause cause, uint64_t n);
void metric_add_code(enum metric metric, int code, uint64_t n); /* STREAMER_E* */
void metric_observe(enum metric metric, uint64_t value);        /* a histogram: nanoseconds or bytes */

/* ---- text, in Prometheus' format ---- */

struct metric_text {
        char *data; /* NULL: nothing yet, or no memory */
        size_t len, cap;
        bool failed;
};

void metric_text_deinit(struct metric_text *text);
/* HELP and TYPE. */
void metric_begin(struct metric_text *text, enum metric metric);
/* One sample; label_value NULL where the metric has no label. */
void metric_sample(struct metric_text *text, enum metric metric, const char *label_value, double value);
/* All samples of a metric that is counted here. */
void metric_counted(struct metric_text *text, enum metric metric);

#endif
