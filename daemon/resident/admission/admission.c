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
        struct admission_query query = {.resident = admission->resident,
                                        .name = name,
                                        .demands = {{device, bytes}},
                                        .n_demands = 1,
                                        .evict = evict};
        struct ledger ledger;
        ledger_make(&ledger, admission->resident);
        ledger_assess(&query, &ledger, outlook);
}

/* ---- answers ---- */

/* After the pass: callbacks may ask and withdraw. */
static void answer(struct admission_request *request)
{
        list_remove(&request->link);
        request->blocked = false;
        request->decided = true;
        list_append(&request->admission->answered, &request->link);
}

static struct admission_request *next_unnotified(const struct admission *admission)
{
        list_each_item (struct admission_request, request, &admission->queue, link)
                if (request->blocked && !request->notified && request->waits != NULL)
                        return request;
        return NULL;
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

static void block(struct admission_request *request, const struct admission_query *query, const struct ledger *ledger,
                  const struct admission_outlook *outlook)
{
        const struct admission *admission = request->admission;
        const struct demand *d = outlook->missing;
        uint64_t half = (admission->max_blocked + 1) / 2;
        if (outlook->lost != NULL)
                device_lost_error(outlook->lost, &request->error);
        else if (!request->wait || !could_ever_fit(query))
                resident_full_error(query->resident, d->device, d->bytes, ledger->unused[d->device->number],
                                    &request->error);
        else if (!request->blocked && count_blocked(admission, request, false) >= admission->max_blocked)
                error_set(&request->error, STREAMER_ELIMIT,
                          "%" PRIu64 " loads wait for memory: the limit (limits.queued)", admission->max_blocked);
        else if (!request->blocked && request->shares && count_blocked(admission, request, true) >= half)
                error_set(&request->error, STREAMER_ELIMIT,
                          "uid %u has %" PRIu64 " loads that wait for memory, half of all that may (limits.queued)",
                          (unsigned)request->uid, half);
        else
                request->blocked = true;
        if (request->error.code != 0)
                answer(request);
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
        char why[ENDED_TEXT];
        snprintf(why, sizeof(why), "its memory was needed for %s", for_whom);
        for (size_t i = 0; i < outlook->n_victims; i++) {
                struct generation *g = outlook->victims[i];
                if (g->state != GENERATION_READY) /* evicted with another of its ranks */
                        continue;
                log_info("%s: evicted (generation %" PRIu64 ", %" PRIu64 " bytes of %s) for %s", generation_name(g),
                         g->number, g->charged, g->device->name, for_whom);
                metric_add(METRIC_EVICTIONS, 1);
                /* Also of its ranks on other devices. */
                size_t n = model_set_ranks(g, GENERATION_READY, ranks);
                for (size_t k = 0; k < n; k++)
                        ledger->freeing[ranks[k]->device->number] += ranks[k]->charged;
                if (!host_cache_add(g->resident->cache, g))
                        model_set_drop_ranks(g, GENERATION_READY, END_EVICTED, why);
        }
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
        request->notified = request->notified && outlook.outcome == ADMISSION_BLOCKED;
        if (outlook.outcome == ADMISSION_BLOCKED) {
                block(request, &query, ledger, &outlook);
        } else if (outlook.outcome == ADMISSION_FITS) {
                for (size_t i = 0; i < query.n_demands; i++)
                        ledger->unused[query.demands[i].device->number] -= query.demands[i].bytes;
                for (size_t i = 0; i < request->n_parts; i++) {
                        const struct admission_part *part = &request->parts[i];
                        require(generation_charge(part->generation, part->bytes, &request->error) == 0);
                }
                answer(request);
        } else {
                request->blocked = false;
                if (outlook.outcome == ADMISSION_EVICTS)
                        evict(&outlook, ledger, generation_name(request->parts[0].generation));
                for (size_t i = 0; i < query.n_demands; i++)
                        ledger_reserve(ledger, &query.demands[i]);
        }
        admission_outlook_deinit(&outlook);
}

static void pass(struct admission *admission)
{
        struct ledger ledger;
        ledger_make(&ledger, admission->resident);
        list_each_item_safe (struct admission_request, request, &admission->queue, link)
                serve(request, &ledger);
        while (!list_empty(&admission->answered)) {
                struct admission_request *request =
                        container_of(admission->answered.next, struct admission_request, link);
                list_remove(&request->link);
                request->answered(request, &request->error);
        }
        for (struct admission_request *request; (request = next_unnotified(admission)) != NULL;) {
                request->notified = true;
                request->waits(request);
        }
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
                struct device *device = admission->resident->devices[i];
                if (device->ops->ceiling == NULL || !asks_for_device(admission, device))
                        continue;
                admission->devices[i] = (struct admission_device){.device = device, .admission = admission};
                admission->asking++;
                work_submit(device->thread, WORK_LANE_CPU, &admission->devices[i].ask, ask_run, ask_done);
        }
        if (admission->asking == 0)
                pass(admission);
}

/* ---- life ---- */

static void on_capacity_changed(struct resident *resident)
{
        admission_recheck(resident->admission);
}

void admission_init(struct admission *admission, struct resident *resident, struct wake *wake, uint64_t max_blocked)
{
        *admission = (struct admission){.resident = resident, .wake = wake, .max_blocked = max_blocked};
        require(resident->n_devices <= ADMISSION_DEVICES);
        list_init(&admission->queue);
        list_init(&admission->answered);
        admission->item.run = on_recheck;
        resident->admission = admission;
        resident->capacity_changed = on_capacity_changed;
}

static void enqueue(struct admission *admission, struct admission_request *request)
{
        struct list *before = admission->queue.next;
        for (; before != &admission->queue; before = before->next) {
                const struct admission_request *other = container_of(before, struct admission_request, link);
                if (request->priority > other->priority ||
                    (request->priority == other->priority && request->since_ns < other->since_ns))
                        break;
        }
        list_append(before, &request->link);
        admission_recheck(admission);
}

void admission_submit(struct admission *admission, struct admission_request *request)
{
        request->admission = admission;
        request->blocked = request->notified = request->decided = false;
        request->error = (struct error){0};
        request->since_ns = now_ns();
        enqueue(admission, request);
}

void admission_set_priority(struct admission_request *request, uint64_t priority)
{
        request->priority = priority;
        if (request->admission == NULL || list_empty(&request->link) || request->decided)
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
