/* SPDX-License-Identifier: Apache-2.0
 *
 * A pass over the queue makes a ledger and examines each request in order; a request takes its bytes from the
 * ledger or reserves them there. No state is carried between passes, so every change in between (a lease, a pin, a
 * failed load) counts in the next one.
 *
 * How it fails: a request that is blocked and may not wait, or that no device could ever hold, is refused with the
 * figures and with what holds the memory; one for a device that is out of service, with that alone and before
 * anything is evicted for it. Without memory to choose victims, nothing is evicted.
 */
#include "daemon/resident/admission/admission.h"

#include "daemon/base/log/log.h"
#include "daemon/base/metric/metric.h"
#include "daemon/resident/admission/ledger.h"
#include "daemon/resident/hostcache/host_cache.h"
#include "daemon/resident/model_set.h"

#include <inttypes.h>
#include <string.h>

/* A device that other software uses, too. */
struct admission_device {
        struct work ask;
        struct device *device;
        struct admission *admission;
        uint64_t ceiling; /* the answer */
};

/* ---- requests ---- */

static void add_demand(struct admission_query *query, struct device *device, uint64_t bytes)
{
        for (size_t i = 0; i < query->n_demands; i++)
                if (query->demands[i].device == device) {
                        query->demands[i].bytes += bytes;
                        return;
                }
        query->demands[query->n_demands++] = (struct demand){device, bytes};
}

void admission_estimate(struct admission *admission, struct device *device, const char *name, uint64_t bytes,
                        bool evict, struct admission_outlook *outlook)
{
        struct admission_query query = {.resident = admission->resident, .name = name, .evict = evict};
        struct ledger ledger;
        add_demand(&query, device, bytes);
        ledger_make(&ledger, admission->resident);
        ledger_assess(&query, &ledger, outlook);
}

/* ---- answers ---- */

/* After the pass: callbacks may ask and withdraw. */
static void answer(struct admission_request *request)
{
        list_remove(&request->link);
        request->blocked = false;
        request->settled = true;
        list_append(&request->admission->answered, &request->link);
}

static struct admission_request *next_answered(const struct admission *admission)
{
        list_each_item (struct admission_request, request, &admission->queue, link)
                if (request->blocked && !request->told && request->waits != NULL)
                        return request;
        return NULL;
}

static void notify_blocked(struct admission *admission)
{
        struct admission_request *request;
        while ((request = next_answered(admission)) != NULL) {
                request->told = true;
                request->waits(request);
        }
}

/* The device for which evicting, where allowed, is not enough. */
static const struct demand *missing_demand(const struct admission_query *query, const struct ledger *ledger)
{
        for (size_t i = 0; i < query->n_demands; i++) {
                const struct demand *d = &query->demands[i];
                uint64_t there = ledger->unused[d->device->number] + ledger->freeing[d->device->number];
                struct admission_outlook outlook = {0};
                bool helps = d->bytes <= there ||
                             (query->evict && ledger_victims(query, d->device, d->bytes - there, &outlook));
                admission_outlook_deinit(&outlook);
                if (!helps)
                        return d;
        }
        return &query->demands[0];
}

static void report_missing(const struct admission_query *query, const struct ledger *ledger, struct error *error)
{
        const struct demand *d = missing_demand(query, ledger);
        const struct device *device = d->device;
        char who[600];
        resident_holders(query->resident, device, who, sizeof(who));
        error_set(error, STREAMER_ENOMEM,
                  "does not fit: %" PRIu64 " bytes needed, %" PRIu64 " of %" PRIu64 " free%s (%s: %s)", d->bytes,
                  ledger->unused[device->number], device_budget(device),
                  device_budget(device) < device->budget ? ", others use the device too" : "", device->name, who);
}

/* Waiting helps only where the empty device could hold it. */
static bool could_ever_fit(const struct admission_query *query)
{
        for (size_t i = 0; i < query->n_demands; i++)
                if (query->demands[i].bytes > query->demands[i].device->budget)
                        return false;
        return true;
}

/* A request before it in the queue has the same owner; `end`: of the queue. */
static bool counts_already(const struct admission_request *request, const struct list *end)
{
        for (const struct list *pos = request->link.prev; request->owner != NULL && pos != end; pos = pos->prev) {
                const struct admission_request *before = container_of(pos, struct admission_request, link);
                if (before->blocked && before->owner == request->owner)
                        return true;
        }
        return false;
}

/* Owners with blocked requests, without this one; of all users, or of its own. */
static uint64_t count_blocked(const struct admission *admission, const struct admission_request *but, bool of_user)
{
        uint64_t n = 0;
        list_each_item (const struct admission_request, request, &admission->queue, link) {
                bool own = request == but || (but->owner != NULL && request->owner == but->owner);
                bool counts = !of_user || (request->shares && request->uid == but->uid);
                n += request->blocked && counts && !own && !counts_already(request, &admission->queue);
        }
        return n;
}

static int check_blocked_limit(const struct admission *admission, const struct admission_request *request,
                               struct error *error)
{
        uint64_t half = (admission->max_blocked + 1) / 2;
        if (request->blocked)
                return 0;
        if (count_blocked(admission, request, false) >= admission->max_blocked)
                return error_set(error, STREAMER_ELIMIT, "%" PRIu64 " loads wait for memory: the limit (limits.queued)",
                                 admission->max_blocked);
        if (request->shares && count_blocked(admission, request, true) >= half)
                return error_set(error, STREAMER_ELIMIT,
                                 "uid %u has %" PRIu64 " loads that wait for memory, half of all that may "
                                 "(limits.queued)",
                                 (unsigned)request->uid, half);
        return 0;
}

static void block(struct admission_request *request, const struct admission_query *query, const struct ledger *ledger)
{
        struct admission *admission = request->admission;
        const struct device *lost = query_lost_device(query);
        if (lost != NULL) {
                device_lost_error(lost, &request->error);
                answer(request);
        } else if (!request->wait || !could_ever_fit(query)) {
                report_missing(query, ledger, &request->error);
                answer(request);
        } else if (check_blocked_limit(admission, request, &request->error) < 0) {
                answer(request);
        } else {
                request->blocked = true;
        }
}

/* ---- devices that other software uses, too ---- */

static bool asks_for_device(const struct admission *admission, const struct device *device)
{
        list_each_item (const struct admission_request, request, &admission->queue, link)
                for (size_t i = 0; i < request->n_parts; i++)
                        if (request->parts[i].generation->device == device)
                                return true;
        return false;
}

static void ask_run(struct work *work)
{
        struct admission_device *d = container_of(work, struct admission_device, ask);
        d->ceiling = d->device->ops->ceiling(d->device);
}

/* ---- a pass ---- */

static void evict(const struct admission_outlook *outlook, struct ledger *ledger, const char *for_whom)
{
        struct generation *ranks[MODEL_SET_MAX];
        for (size_t i = 0; i < outlook->n_victims; i++) {
                struct generation *g = outlook->victims[i];
                if (g->state != GENERATION_READY) /* evicted with another of its ranks */
                        continue;
                log_info("%s: evicted (generation %" PRIu64 ", %" PRIu64 " bytes of %s) for %s", generation_name(g),
                         g->number, g->charged, g->device->name, for_whom);
                metric_add(METRIC_EVICTIONS, 1);
                /* Also of its ranks on other devices; one without memory may be freed here. */
                size_t n = model_set_ranks(g, GENERATION_READY, ranks);
                for (size_t k = 0; k < n; k++)
                        ledger->freeing[ranks[k]->device->number] += ranks[k]->charged;
                if (!host_cache_add(g->resident->cache, g))
                        model_set_drop_ranks(g, GENERATION_READY);
        }
}

static void grant_or_reserve(struct admission_request *request, const struct admission_query *query,
                             struct ledger *ledger, const struct admission_outlook *outlook)
{
        request->blocked = request->told = false;
        if (outlook->outcome == ADMISSION_EVICTS)
                evict(outlook, ledger, generation_name(request->parts[0].generation));
        if (outlook->outcome == ADMISSION_FITS) {
                for (size_t i = 0; i < query->n_demands; i++)
                        ledger->unused[query->demands[i].device->number] -= query->demands[i].bytes;
                for (size_t i = 0; i < request->n_parts; i++) {
                        const struct admission_part *part = &request->parts[i];
                        require(generation_charge(part->generation, part->bytes, &request->error) == 0);
                }
                answer(request);
                return;
        }
        for (size_t i = 0; i < query->n_demands; i++)
                ledger_reserve(ledger, &query->demands[i]);
}

static void serve(struct admission_request *request, struct ledger *ledger)
{
        struct admission_outlook outlook;
        struct admission_query query = {.resident = request->admission->resident,
                                        .parts = request->parts,
                                        .n_parts = request->n_parts,
                                        .evict = request->evict};
        for (size_t i = 0; i < request->n_parts; i++)
                add_demand(&query, request->parts[i].generation->device, request->parts[i].bytes);
        ledger_assess(&query, ledger, &outlook);
        if (outlook.outcome == ADMISSION_BLOCKED)
                block(request, &query, ledger);
        else
                grant_or_reserve(request, &query, ledger, &outlook);
        admission_outlook_deinit(&outlook);
}

static void pass(struct admission *admission)
{
        struct ledger ledger;
        ledger_make(&ledger, admission->resident);
        list_each_safe (pos, &admission->queue)
                serve(container_of(pos, struct admission_request, link), &ledger);
        while (!list_empty(&admission->answered)) {
                struct admission_request *request =
                        container_of(admission->answered.next, struct admission_request, link);
                list_remove(&request->link);
                request->answered(request, &request->error);
        }
        notify_blocked(admission);
}

static void ask_done(struct work *work)
{
        struct admission_device *d = container_of(work, struct admission_device, ask);
        struct admission *admission = d->admission;
        d->device->ceiling = d->ceiling;
        if (--admission->asking > 0)
                return;
        pass(admission);
        if (admission->again)
                admission_recheck(admission);
        admission->again = false;
}

/* Changes while devices are being asked count after their answers. */
static void on_recheck(struct callback *item)
{
        struct admission *admission = container_of(item, struct admission, item);
        admission->posted = false;
        host_cache_drop_partial_ranks(admission->resident->cache);
        if (admission->asking > 0) {
                admission->again = true;
                return;
        }
        for (size_t i = 0; i < admission->resident->n_devices; i++) {
                struct admission_device *d = &admission->devices[i];
                if (d->device->ops->ceiling == NULL || !asks_for_device(admission, d->device))
                        continue;
                admission->asking++;
                work_submit(d->device->thread, WORK_LANE_CPU, &d->ask, ask_run, ask_done);
        }
        if (admission->asking == 0)
                pass(admission);
}

/* ---- life ---- */

static void on_capacity_changed(struct resident *resident)
{
        admission_recheck(resident->admission);
}

int admission_init(struct admission *admission, struct resident *resident, struct wake *wake, uint64_t max_blocked)
{
        *admission = (struct admission){.resident = resident, .wake = wake, .max_blocked = max_blocked};
        require(resident->n_devices <= ADMISSION_DEVICES);
        list_init(&admission->queue);
        list_init(&admission->answered);
        admission->item.run = on_recheck;
        admission->devices = calloc(resident->n_devices + 1, sizeof(*admission->devices));
        if (admission->devices == NULL)
                return STREAMER_ENOMEM;
        for (size_t i = 0; i < resident->n_devices; i++) {
                admission->devices[i].device = resident->devices[i];
                admission->devices[i].admission = admission;
        }
        resident->admission = admission;
        resident->capacity_changed = on_capacity_changed;
        return 0;
}

void admission_deinit(struct admission *admission)
{
        if (admission->devices == NULL)
                return;
        require(list_empty(&admission->queue));
        free(admission->devices);
        admission->devices = NULL;
}

static bool precedes(const struct admission_request *a, const struct admission_request *b)
{
        return a->priority != b->priority ? a->priority > b->priority : a->since_ns < b->since_ns;
}

static void enqueue(struct admission *admission, struct admission_request *request)
{
        struct list *before = &admission->queue;
        list_each (pos, &admission->queue)
                if (precedes(request, container_of(pos, struct admission_request, link))) {
                        before = pos;
                        break;
                }
        list_append(before, &request->link);
        admission_recheck(admission);
}

void admission_submit(struct admission *admission, struct admission_request *request)
{
        request->admission = admission;
        request->blocked = request->told = request->settled = false;
        request->error = (struct error){0};
        request->since_ns = now_ns();
        enqueue(admission, request);
}

void admission_set_priority(struct admission_request *request, uint64_t priority)
{
        request->priority = priority;
        if (request->admission == NULL || list_empty(&request->link) || request->settled)
                return;
        list_remove(&request->link);
        enqueue(request->admission, request);
}

void admission_relax(struct admission_request *request, bool evict, bool wait)
{
        request->evict = request->evict || evict;
        request->wait = request->wait || wait;
        if (request->admission != NULL && !list_empty(&request->link))
                admission_recheck(request->admission);
}

bool admission_withdraw(struct admission_request *request)
{
        if (request->admission == NULL || list_empty(&request->link))
                return false;
        list_remove(&request->link);
        admission_recheck(request->admission);
        return true;
}

void admission_recheck(struct admission *admission)
{
        if (admission == NULL || admission->posted)
                return;
        admission->posted = true;
        wake_post(admission->wake, &admission->item);
}

void admission_tick(struct admission *admission)
{
        if (!list_empty(&admission->queue))
                admission_recheck(admission);
}
