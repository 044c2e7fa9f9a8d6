/* SPDX-License-Identifier: Apache-2.0
 *
 * The line has bytes, seconds, rate, kind of source, and how busy the reads were kept: where that is
 * near 100 %, the storage gave what it could; where it is low, something else held the load up
 * (docs/logging.md).
 */
#include "daemon/load/report.h"

#include "daemon/base/log.h"
#include "daemon/base/metric.h"
#include "daemon/base/shown.h"
#include "daemon/load/load_steps.h"

#include <inttypes.h>
#include <string.h>

#define SHOWN SHOWN_SOURCE

static bool any(const struct load_target *target)
{
        (void)target;
        return true;
}

static bool is_late(const struct load_target *target)
{
        return target_open(target) && target->late;
}

/* "cuda:0,cuda:1" */
static void device_names(char out[SHOWN], const struct load *load, bool (*which)(const struct load_target *))
{
        size_t used = 0;
        out[0] = '\0';
        for (size_t i = 0; i < load->n_targets && used < SHOWN; i++)
                if (which(&load->targets[i]))
                        used += (size_t)snprintf(out + used, SHOWN - used, "%s%s", used > 0 ? "," : "",
                                                 load->targets[i].device->name);
}

/* Once, however many devices it went to. */
struct brought {
        uint64_t bytes, tensors;
        uint64_t read_bytes;       /* none of what came from the host cache */
        uint64_t read_ns, room_ns; /* reader_job_reads() */
};

static const struct generation *first_of(const struct load_part *part)
{
        size_t i = 0;
        while (!target_lives(part->targets[i]))
                i++;
        return part->targets[i]->generation;
}

static struct brought brought_by(const struct load *load)
{
        struct brought sum = {0};
        for (size_t i = 0; i < load->n_parts; i++) {
                const struct load_part *part = &load->parts[i];
                uint64_t took, room;
                if (!part_lives(part))
                        continue;
                sum.bytes += first_of(part)->data_bytes;
                sum.tensors += first_of(part)->n_tensors;
                sum.read_bytes += part->resolved.plan.bytes;
                reader_job_reads(&part->job, &took, &room);
                sum.read_ns += took;
                sum.room_ns += room;
        }
        return sum;
}

static void report_shared(const struct load *load, const char *source)
{
        char devices[SHOWN];
        device_names(devices, load, any);
        metric_add_result(METRIC_LOADS, RESULT_SHARED, 1);
        log_event(LOG_LEVEL_INFO, LOG_MODEL_READY,
                  LOG_FIELDS(LOG_TEXT("model", load->name), LOG_NUMBER("generation", load->number),
                             LOG_TEXT("device", devices)),
                  "%s: resident already, generation %" PRIu64 " (%s)", load->name, load->number, source);
}

/* Of one round, or of the only one. */
static void report_brought(const struct load *load, const char *source, uint64_t ns)
{
        const struct brought b = brought_by(load);
        double seconds = (double)ns / 1e9;
        unsigned busy = b.room_ns > 0 ? (unsigned)(100.0 * (double)b.read_ns / (double)b.room_ns) : 0;
        const char *kind = metric_source_name(metric_source_of(load->source));
        char reads[40] = "", devices[SHOWN];
        device_names(devices, load, target_lives);
        if (load_is_cached(load))
                snprintf(reads, sizeof(reads), ", from the host cache");
        else if (b.bytes > 0)
                snprintf(reads, sizeof(reads), ", reads %u %% busy", busy);
        metric_add_source(METRIC_READ_BYTES, metric_source_of(load->source), b.read_bytes);
        metric_observe(METRIC_LOAD_SECONDS, ns);
        metric_observe(METRIC_LOAD_BYTES, b.bytes);
        metric_add(METRIC_READ_TIME, b.read_ns);
        metric_add(METRIC_READ_ROOM, b.room_ns);
        log_event(LOG_LEVEL_INFO, LOG_MODEL_READY,
                  LOG_FIELDS(LOG_TEXT("model", load->name), LOG_NUMBER("generation", load->number),
                             LOG_TEXT("device", devices), LOG_NUMBER("bytes", b.bytes), LOG_NUMBER("load_ns", ns),
                             LOG_NUMBER("read_busy_percent", busy), LOG_TEXT("source_kind", kind)),
                  "%s: ready, generation %" PRIu64 ", %" PRIu64 " bytes, %" PRIu64
                  " tensors, %.3f s, %.2f GiB/s%s (%s)",
                  load->name, load->number, b.bytes, b.tensors, seconds,
                  seconds > 0 ? (double)b.bytes / (double)GiB / seconds : 0.0, reads, source);
}

void load_report_round(const struct load *load)
{
        char source[SHOWN], late[SHOWN];
        shown_source(source, load->source);
        report_brought(load, source, now_ns() - load->started_ns);
        device_names(late, load, is_late);
        log_info("%s: waits for room on %s", load->name, late);
}

static void report_ready(const struct load *load, const char *source)
{
        metric_add_result(METRIC_LOADS, RESULT_READY, 1);
        if (load_lives(load))
                report_brought(load, source, load->ended_ns - load->started_ns);
}

/* Without the time it took, so that a client that asks again and again says the same each time. */
static void report_failed(const struct load *load)
{
        char devices[SHOWN];
        device_names(devices, load, any);
        bool cancelled = load->state == LOAD_CANCELLED;
        metric_add_result(METRIC_LOADS, cancelled ? RESULT_CANCELLED : RESULT_FAILED, 1);
        if (!cancelled)
                metric_add_code(METRIC_LOAD_ERRORS, load->error.code, 1);
        log_event(LOG_LEVEL_WARN, LOG_MODEL_FAILED,
                  LOG_FIELDS(LOG_TEXT("model", load->name), LOG_NUMBER("generation", load->number),
                             LOG_TEXT("device", devices), LOG_TEXT("code", code_wire(load->error.code)),
                             LOG_NUMBER("load_ns", load->ended_ns - load->started_ns)),
                  "%s: %s: %s", load->name, load_state_name(load->state), load->error.text);
}

void load_report(const struct load *load)
{
        char source[SHOWN];
        if (load->dry_run)
                return;
        shown_source(source, load->source);
        if (load->state == LOAD_READY && !load_lives(load) && !load->served)
                report_shared(load, source);
        else if (load->state == LOAD_READY)
                report_ready(load, source);
        else
                report_failed(load);
}
