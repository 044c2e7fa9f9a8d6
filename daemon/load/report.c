/* SPDX-License-Identifier: Apache-2.0
 *
 * What a load reports: its progress, in all and on each device; at its end the metrics and one line of the log. That
 * line has bytes, seconds, rate, kind of source, and how busy reads were: near 100 % the storage was the limit;
 * where it is low, something else was (docs/logging.md).
 */
#include "daemon/load/load_private.h"

#include "daemon/base/util.h"
#include "daemon/base/log/log.h"
#include "daemon/base/metric/metric.h"
#include "daemon/base/text/secret.h"

#include <inttypes.h>

#define SHOWN REDACTED_SOURCE

/* ---- progress ---- */

const char *load_state_name(enum load_state state)
{
        static const char *const names[] = {
                [LOAD_LOCATING] = "resolving", [LOAD_OPENING] = "resolving",  [LOAD_SAMPLING] = "resolving",
                [LOAD_AWAITING] = "resolving", [LOAD_PLANNING] = "resolving", [LOAD_QUEUED] = "queued",
                [LOAD_ALLOCATING] = "loading", [LOAD_RELEASING] = "loading",  [LOAD_COPYING] = "loading",
                [LOAD_READING] = "loading",    [LOAD_CHECKING] = "loading",   [LOAD_COMPARING] = "loading",
                [LOAD_READY] = "ready",        [LOAD_FAILED] = "failed",      [LOAD_CANCELLED] = "cancelled",
        };
        return names[state];
}

/* What parts have read. Replicas that are read twice, for devices of different layouts, count tensors that are
 * complete on all; ranks add up. */
void load_progress(const struct load *load, struct load_progress *progress)
{
        bool first = true;
        *progress =
                (struct load_progress){.state = load->state, .generation = load->number, .restarts = load->restarts};
        progress->load_ns = (load_ended(load->state) ? load->ended_ns : now_ns()) - load->started_ns;
        load_each_part (part, load) {
                const struct plan *plan = &part->resolved.plan;
                bool all = load->state == LOAD_READY;
                if (part->state == PART_IDLE || part->state == PART_FAILED)
                        continue;
                uint64_t tensors = all ? plan->n_tensors : arrivals_count(&part->arrivals);
                progress->bytes += all ? plan->bytes : load_relaxed(&part->arrivals.bytes);
                progress->total += plan->bytes;
                if (load->pattern != NULL || first) {
                        progress->tensors += tensors;
                        progress->tensors_total += plan->n_tensors;
                } else if (tensors < progress->tensors) {
                        progress->tensors = tensors;
                }
                if (part->state == PART_READING && reader_job_stalled(part_reading(part)))
                        progress->stalled = true;
                first = false;
        }
        if (!first || load->state != LOAD_READY)
                return;
        /* Resident already: the figures of its generations. */
        for (size_t i = 0; i < (load->pattern != NULL ? load->n_targets : 1); i++) {
                const struct generation *g = load->targets[i].generation;
                if (g == NULL)
                        continue;
                progress->bytes = progress->total += g->data_bytes;
                progress->tensors = progress->tensors_total += g->n_tensors;
        }
}

const char *load_target_state(const struct load_target *target, uint64_t now, uint64_t *waits_ns)
{
        const struct load *load = target->load;
        bool waits = target_lives(target) && load->state == LOAD_QUEUED;
        *waits_ns = waits && now > load->admission.since_ns ? now - load->admission.since_ns : 0;
        if (target->state == TARGET_FAILED)
                return load_state_name(LOAD_FAILED);
        return load_state_name(target->state == TARGET_SERVES ? LOAD_READY : load->state);
}

/* ---- the end ---- */

static void report_shared(const struct load *load, const char *source, const char *devices)
{
        metric_add_label(METRIC_LOADS, RESULT_SHARED, 1);
        log_event(LOG_LEVEL_INFO, LOG_MODEL_READY,
                  LOG_FIELDS(LOG_TEXT("model", load->name), LOG_NUMBER("generation", load->number),
                             LOG_TEXT("device", devices)),
                  "%s: resident already, generation %" PRIu64 " (%s)", load->name, load->number, source);
}

/* Loads of which a part was in the disk cache say nothing of either, nor do files that are not for it. */
static void note_rate(const struct load *load, uint64_t bytes, uint64_t disk_bytes)
{
        struct disk_cache *cache = load->loads->sources->disk;
        bool by_store = disk_bytes == 0 && !source_is_local(load->source) && !source_is_test(load->source);
        if (cache != NULL && !load->cached && (by_store || disk_bytes == bytes))
                disk_cache_note_load(cache, !by_store, bytes, load->ended_ns - load->started_ns);
}

/* Counted once for all devices. */
static void report_loaded(const struct load *load, const char *source, const char *devices)
{
        char size[SIZE_TEXT];
        uint64_t bytes = 0, tensors = 0, read_ns = 0, capacity_ns = 0, disk_bytes = 0,
                 ns = load->ended_ns - load->started_ns;
        enum metric_source kind = metric_source_of(load->source);
        load_each_part (part, load) {
                const struct load_target *first = part_first(part);
                uint64_t took, capacity;
                if (first == NULL)
                        continue;
                bytes += first->generation->data_bytes;
                tensors += first->generation->n_tensors;
                uint64_t of_disk = part->disk != NULL ? part->disk->bytes : 0;
                for (const struct read_job *job = &part->job; job != NULL;
                     job = job == &part->job && part->disk != NULL ? &part->disk->job : NULL) {
                        reader_job_reads(job, &took, &capacity);
                        read_ns += took;
                        capacity_ns += capacity;
                }
                metric_add_label(METRIC_READ_BYTES, kind,
                                 part->resolved.plan.bytes - of_disk); /* 0 from the host cache */
                metric_add(METRIC_DISK_READ_BYTES, of_disk);
                disk_bytes += of_disk;
                for (enum stage stage = 0; stage < STAGE_COUNT; stage++)
                        metric_add_label(METRIC_LOAD_STAGES, stage, first->generation->stages.ns[stage]);
        }
        note_rate(load, bytes, disk_bytes);
        double seconds = (double)ns / 1e9;
        unsigned busy = capacity_ns > 0 ? (unsigned)(100.0 * (double)read_ns / (double)capacity_ns) : 0;
        char reads[80] = "";
        if (load->cached)
                snprintf(reads, sizeof(reads), ", from the host cache");
        else if (bytes > 0)
                snprintf(reads, sizeof(reads), ", %sreads %u %% busy",
                         disk_bytes == bytes ? "from the disk cache, "
                         : disk_bytes > 0    ? "partly from the disk cache, "
                                             : "",
                         busy);
        metric_add_label(METRIC_LOADS, RESULT_READY, 1);
        metric_observe(METRIC_LOAD_SECONDS, ns);
        metric_observe(METRIC_LOAD_BYTES, bytes);
        metric_add(METRIC_READ_TIME, read_ns);
        metric_add(METRIC_READ_CAPACITY, capacity_ns);
        log_event(LOG_LEVEL_INFO, LOG_MODEL_READY,
                  LOG_FIELDS(LOG_TEXT("model", load->name), LOG_NUMBER("generation", load->number),
                             LOG_TEXT("device", devices), LOG_NUMBER("bytes", bytes), LOG_NUMBER("load_ns", ns),
                             LOG_NUMBER("read_busy_percent", busy), LOG_TEXT("source_kind", metric_source_name(kind))),
                  "%s: ready, generation %" PRIu64 ", %s, %" PRIu64 " tensors, %.3f s, %.2f GiB/s%s (%s)", load->name,
                  load->number, size_text(size, bytes), tensors, seconds,
                  seconds > 0 ? (double)bytes / (double)GiB / seconds : 0.0, reads, source);
}

/* Without the time, so that repeated requests log the same line. */
static void report_failed(const struct load *load, const char *devices)
{
        bool cancelled = load->state == LOAD_CANCELLED;
        metric_add_label(METRIC_LOADS, cancelled ? RESULT_CANCELLED : RESULT_FAILED, 1);
        if (!cancelled)
                metric_add_code(METRIC_LOAD_ERRORS, load->error.outside ? STREAMER_ENOENT : load->error.code, 1);
        log_event(LOG_LEVEL_WARN, LOG_MODEL_FAILED,
                  LOG_FIELDS(LOG_TEXT("model", load->name), LOG_NUMBER("generation", load->number),
                             LOG_TEXT("device", devices), LOG_TEXT("code", code_wire(load->error.code)),
                             LOG_NUMBER("load_ns", load->ended_ns - load->started_ns)),
                  "%s: %s: %s", load->name, load_state_name(load->state), load->error.text);
}

/* `streamerctl doctor` reports the rest. */
static void report_probe(const struct load *load)
{
        log_debug("%s: %s on %s: %s", load->name, load_state_name(load->state), load->targets[0].device->name,
                  load->state == LOAD_READY ? "a test model" : load->error.text);
}

void load_report(const struct load *load)
{
        char source[SHOWN], devices[SHOWN] = ""; /* "cuda:0,cuda:1" */
        bool loaded = load->state == LOAD_READY && load_has(load, TARGET_OPEN);
        if (load->dry_run || load->superseded)
                return;
        if (load->probe) {
                report_probe(load);
                return;
        }
        if (load->joined) { /* the other load reports the rest */
                metric_add_label(METRIC_LOADS, RESULT_SHARED, 1);
                return;
        }
        redact_source(source, load->source);
        load_each_target (t, load)
                if (!loaded || target_lives(t))
                        format_append(devices, SHOWN, "%s%s", devices[0] != '\0' ? "," : "", t->device->name);
        if (loaded)
                report_loaded(load, source, devices);
        else if (load->state == LOAD_READY)
                report_shared(load, source, devices);
        else
                report_failed(load, devices);
}
