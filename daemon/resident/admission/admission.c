/* SPDX-License-Identifier: Apache-2.0
 *
 * No state is carried between passes over the queue, so every change in between (a lease, a pin, a failed load) counts
 * in the next one.
 *
 * How it fails: a request that is blocked and may not wait, or that no device could ever hold, is refused with the
 * figures and with what holds the memory; one for a device that is out of service, with that alone and before
 * anything is evicted for it. Without memory to choose victims, nothing is evicted.
 */
#include "daemon/resident/admission/admission.h"

#include "daemon/base/log/log.h"
#include "daemon/base/metric/metric.h"
#include "daemon/base/text/text.h"
#include "daemon/resident/hostcache/host_cache.h"
#include "daemon/resident/model_set.h"
#include "daemon/resident/unload/evict.h"

#include <inttypes.h>

/* ---- the ledger of a pass ---- */

struct ledger {
        uint64_t unused[ADMISSION_DEVICES], freeing[ADMISSION_DEVICES]; /* by device number, less what is reserved */
};

static void ledger_make(struct ledger *ledger, const struct resident *resident)
{
        uint64_t now = now_ns();
        *ledger = (struct ledger){0};
        for (size_t i = 0; i < resident->n_devices; i++) {
                const struct device *device = resident->devices[i];
                ledger->unused[device->number] = device_unused(device);
                ledger->freeing[device->number] = idle_freeing(resident, device, now);
        }
}

/* Reserves a request's bytes, as many as there are, those being freed first: unused ones may satisfy a smaller request
 * at once. */
static void ledger_reserve(struct ledger *ledger, const struct admission_request *request)
{
        for (size_t i = 0; i < request->n_parts; i++) {
                const struct admission_part *part = &request->parts[i];
                uint64_t *freeing = &ledger->freeing[part->device->number],
                         *unused = &ledger->unused[part->device->number];
                uint64_t from_freeing = part->bytes < *freeing ? part->bytes : *freeing;
                uint64_t from_unused = part->bytes - from_freeing;
                *freeing -= from_freeing;
                *unused -= from_unused < *unused ? from_unused : *unused;
        }
}

/* ---- victims ---- */

/* The generation that serves a name stays until its replacement is ready, with its ranks. */
static bool is_replaced(const struct admission_request *request, const struct generation *g)
{
        if (request->name != NULL)
                return generation_matches_name(g, request->name);
        for (size_t i = 0; i < request->n_parts; i++)
                list_each_item (const struct model_name, name, &request->parts[i].generation->names, link)
                        if (generation_matches_name(g, name->text))
                                return true;
        return false;
}

/* Adds victims on one device that free `needed` bytes to the outlook; false where there are none. */
static bool add_victims(const struct admission_request *request, const struct device *device, uint64_t needed,
                        struct admission_outlook *outlook)
{
        const struct idle *idle = &request->admission->resident->idle[device->number];
        cleanup_free struct evict_candidate *candidates = NULL;
        uint64_t bytes = 0;
        size_t n = 0;
        if (idle->bytes < needed)
                return false;
        /* The least valuable that suffice: evict_choose() would spare all others first. */
        tree_each_item(struct generation, g, &idle->by_value, by_value)
        {
                require(g->device == device && generation_is_idle(g));
                if (bytes >= needed)
                        break;
                if (is_replaced(request, g))
                        continue;
                struct evict_candidate *grown = array_grow(candidates, n, sizeof(*grown));
                if (grown == NULL)
                        return false;
                candidates = grown;
                candidates[n++] = (struct evict_candidate){.bytes = g->charged,
                                                           .last_used = g->last_used_ns,
                                                           .priority = g->settings.priority,
                                                           .owner = g};
                bytes += g->charged;
        }
        if (n == 0 || !evict_choose(candidates, n, needed))
                return false;
        struct generation **victims = reallocarray(outlook->victims, outlook->n_victims + n + 1, sizeof(*victims));
        if (victims == NULL)
                return false;
        outlook->victims = victims;
        for (size_t i = 0; i < n; i++)
                if (candidates[i].chosen)
                        victims[outlook->n_victims++] = candidates[i].owner;
        return true;
}

void admission_outlook_deinit(struct admission_outlook *outlook)
{
        free(outlook->victims);
}

/* Waiting does not help: the device is out of service, or could not hold it if it were empty. */
static bool is_hopeless(const struct admission_part *part)
{
        return !device_in_service(part->device) || part->bytes > part->device->budget;
}

/* Fills in the outlook and changes nothing else. Victims are chosen only where they suffice, with the unused bytes, on
 * every device. */
static void assess(const struct admission_request *request, const struct ledger *ledger,
                   struct admission_outlook *outlook)
{
        enum admission_outcome outcome = ADMISSION_FITS;
        *outlook = (struct admission_outlook){.outcome = ADMISSION_BLOCKED};
        for (size_t i = 0; i < request->n_parts; i++)
                if (is_hopeless(&request->parts[i])) {
                        outlook->missing = &request->parts[i];
                        return;
                }
        for (size_t i = 0; i < request->n_parts; i++) {
                const struct admission_part *part = &request->parts[i];
                uint64_t unused = ledger->unused[part->device->number];
                uint64_t available = unused + ledger->freeing[part->device->number];
                if (part->bytes <= unused)
                        continue;
                if (part->bytes <= available) {
                        outcome = outcome == ADMISSION_FITS ? ADMISSION_PENDING : outcome;
                } else if (request->evict && add_victims(request, part->device, part->bytes - available, outlook)) {
                        outcome = ADMISSION_EVICTS;
                } else {
                        outlook->missing = part;
                        outlook->n_victims = 0;
                        return;
                }
        }
        outlook->outcome = outcome;
}

void admission_estimate(struct admission *admission, struct device *device, const char *name, uint64_t bytes,
                        bool evict, struct admission_outlook *outlook)
{
        const struct admission_part part = {device, bytes, NULL};
        const struct admission_request request = {
                .admission = admission, .name = name, .parts = &part, .n_parts = 1, .evict = evict};
        struct ledger ledger;
        ledger_make(&ledger, admission->resident);
        assess(&request, &ledger, outlook);
        outlook->missing = NULL; /* it was the part above */
}

/* ---- blocked requests ---- */

/* Of the generations on the device that stay until the request has replaced them. */
static uint64_t replaced_bytes(const struct admission_request *request, const struct device *device)
{
        uint64_t sum = 0;
        list_each_item (const struct generation, g, &request->admission->resident->in_state[GENERATION_READY], in_state)
                if (g->device == device && is_replaced(request, g))
                        sum += g->charged;
        return sum;
}

/* A budget that has no memory for two generations of a name: no eviction helps. */
static int two_generations_error(const struct admission_part *part, uint64_t needed, uint64_t replaced,
                                 struct error *error)
{
        const struct device *device = part->device;
        const char *name = generation_name(part->generation);
        char want[SIZE_TEXT], has[SIZE_TEXT], all[SIZE_TEXT], lacks[SIZE_TEXT];
        return error_set(error, STREAMER_ENOMEM,
                         "two generations do not fit: %s needed beside %s of the one that serves until this one is "
                         "ready, and the budget is %s, %s too few (%s: unload %s first, or raise the budget)",
                         size_text(want, needed), size_text(has, replaced), size_text(all, device->budget),
                         size_text(lacks, needed + replaced - device->budget), device->name, name);
}

/* False: it is refused. */
static bool block(struct admission_request *request, const struct ledger *ledger, const struct admission_part *missing)
{
        const struct admission *admission = request->admission;
        struct device *device = missing->device;
        uint64_t all = 0, own = 0, half = (admission->max_blocked + 1) / 2;
        uint64_t needed = missing->generation->charged + missing->bytes, replaced = replaced_bytes(request, device);
        bool hopeless = is_hopeless(missing), two = !hopeless && needed + replaced > device->budget;
        if (!request->blocked) /* else it is among them */
                list_each_item (const struct admission_request, other, &admission->queue, link) {
                        all += other->blocked;
                        own += other->blocked && other->shares && other->uid == request->uid;
                }
        request->refused = device;
        if (!device_in_service(device))
                device_lost_error(device, &request->error);
        else if (!request->wait && two)
                two_generations_error(missing, needed, replaced, &request->error);
        else if (!request->wait || hopeless)
                resident_full_error(admission->resident, device, missing->bytes, ledger->unused[device->number],
                                    &request->error);
        else if (!request->blocked && all >= admission->max_blocked)
                error_set(&request->error, STREAMER_ELIMIT,
                          "%" PRIu64 " loads wait for memory: the limit (limits.queued)", admission->max_blocked);
        else if (!request->blocked && request->shares && own >= half)
                error_set(&request->error, STREAMER_ELIMIT,
                          "uid %u has %" PRIu64 " loads that wait for memory, half of all that may (limits.queued)",
                          (unsigned)request->uid, half);
        if (request->error.code == STREAMER_ELIMIT)
                request->refused = NULL;
        request->error.hopeless = request->error.code != 0 && (hopeless || two);
        request->blocked = request->error.code == 0;
        return request->blocked;
}

/* ---- devices that other software uses, too ---- */

static bool asks_for_device(const struct admission *admission, const struct device *device)
{
        list_each_item (const struct admission_request, request, &admission->queue, link)
                for (size_t i = 0; i < request->n_parts && !request->asks_none; i++)
                        if (request->parts[i].device == device)
                                return true;
        return false;
}

static void ask_run(struct work *work)
{
        struct admission_device *d = container_of(work, struct admission_device, ask);
        d->ceiling = d->device->ops->ceiling(d->device);
}

static void ask_done(struct work *work);

/* Not while it is being asked: a device that hangs has one question in its queue. */
static void ask_if_needed(struct admission_device *d)
{
        struct admission *admission = d->admission;
        if (d->device->ops->ceiling == NULL || d->asked != d->answered || d->asked == admission->n_rechecks ||
            !asks_for_device(admission, d->device))
                return;
        d->asked = admission->n_rechecks;
        work_submit(d->device->thread, WORK_LANE_CPU, &d->ask, ask_run, ask_done);
}

static bool awaits_answer(const struct admission_request *request)
{
        if (request->asks_none)
                return false;
        for (size_t i = 0; i < request->n_parts; i++) {
                const struct device *device = request->parts[i].device;
                if (device->ops->ceiling != NULL && request->admission->devices[device->number].answered < request->due)
                        return true;
        }
        return false;
}

/* ---- a pass ---- */

static void evict(struct admission_request *request, const struct admission_outlook *outlook, struct ledger *ledger)
{
        const char *for_whom = generation_name(request->parts[0].generation);
        char why[ENDED_TEXT], size[SIZE_TEXT];
        snprintf(why, sizeof(why), "its memory was needed for %s", for_whom);
        for (size_t i = 0; i < outlook->n_victims; i++) {
                struct generation *g = outlook->victims[i];
                if (g->state != GENERATION_READY) /* evicted with another of its ranks */
                        continue;
                log_info("%s: evicted (generation %" PRIu64 ", %s of %s) for %s", generation_name(g), g->number,
                         size_text(size, g->charged), g->device->name, for_whom);
                metric_add(METRIC_EVICTIONS, 1);
                if (request->evicts != NULL)
                        request->evicts(request, g);
                /* Also of its ranks on other devices. */
                generation_each_rank(rank, g) if (rank->state == GENERATION_READY)
                        ledger->freeing[rank->device->number] += rank->charged;
                if (!host_cache_add(g->resident->cache, g))
                        model_set_drop_ranks(g, GENERATION_READY, END_EVICTED, why);
        }
}

/* True: it is granted or refused. */
static bool decide(struct admission_request *request, struct ledger *ledger)
{
        cleanup_with(admission_outlook_deinit) struct admission_outlook outlook = {.outcome = ADMISSION_FITS};
        if (awaits_answer(request)) {
                if (!request->blocked && !request->query)
                        ledger_reserve(ledger, request);
                return false;
        }
        request->due = 0;
        if (request->query)
                return true;
        assess(request, ledger, &outlook);
        if (outlook.outcome != ADMISSION_FITS && request->asks_none) { /* what its devices said last may have changed */
                request->asks_none = false;
                ledger_reserve(ledger, request);
                resident_capacity_changed(request->admission->resident);
                return false;
        }
        if (outlook.outcome == ADMISSION_BLOCKED)
                return !block(request, ledger, outlook.missing);
        request->blocked = false;
        if (outlook.outcome != ADMISSION_FITS) {
                if (outlook.outcome == ADMISSION_EVICTS)
                        evict(request, &outlook, ledger);
                ledger_reserve(ledger, request);
                return false;
        }
        for (size_t i = 0; i < request->n_parts; i++) {
                const struct admission_part *part = &request->parts[i];
                ledger->unused[part->device->number] -= part->bytes;
                require(generation_charge(part->generation, part->bytes, &request->error) == 0);
        }
        return true;
}

static void pass(struct admission *admission)
{
        struct ledger ledger;
        struct list decided;
        list_init(&decided);
        if (list_empty(&admission->queue))
                return;
        ledger_make(&ledger, admission->resident);
        list_each_item_safe (struct admission_request, request, &admission->queue, link) {
                request->decided = decide(request, &ledger);
                if (!request->decided)
                        continue;
                list_remove(&request->link);
                list_append(&decided, &request->link);
        }
        /* Now the owners may submit and withdraw requests. */
        while (!list_empty(&decided)) {
                struct admission_request *request = container_of(decided.next, struct admission_request, link);
                list_remove(&request->link);
                request->answered(request, &request->error);
        }
}

static void ask_done(struct work *work)
{
        struct admission_device *d = container_of(work, struct admission_device, ask);
        d->device->ceiling = d->ceiling;
        d->answered = d->asked;
        pass(d->admission);
        ask_if_needed(d);
}

static void on_capacity_changed(struct callback *callback)
{
        struct admission *admission = container_of(callback, struct resident, capacity_changed)->admission;
        admission->n_rechecks++;
        if (admission->resident->n_partly_cached > 0)
                host_cache_drop_partial_ranks(admission->resident->cache);
        list_each_item (struct admission_request, request, &admission->queue, link)
                if (request->due == 0)
                        request->due = admission->n_rechecks;
        for (size_t i = 0; i < admission->resident->n_devices; i++)
                ask_if_needed(&admission->devices[i]);
        pass(admission);
}

/* ---- life ---- */

void admission_init(struct admission *admission, struct resident *resident, uint64_t max_blocked)
{
        *admission = (struct admission){.resident = resident, .max_blocked = max_blocked};
        require(resident->n_devices <= ADMISSION_DEVICES);
        list_init(&admission->queue);
        for (size_t i = 0; i < resident->n_devices; i++)
                admission->devices[i] =
                        (struct admission_device){.device = resident->devices[i], .admission = admission};
        resident->admission = admission;
        resident->capacity_changed.run = on_capacity_changed;
}

static void enqueue(struct admission *admission, struct admission_request *request)
{
        struct list *before = &admission->queue;
        list_each_item (struct admission_request, other, &admission->queue, link)
                if (request->priority > other->priority ||
                    (request->priority == other->priority && request->since_ns < other->since_ns)) {
                        before = &other->link;
                        break;
                }
        list_append(before, &request->link);
        resident_capacity_changed(admission->resident);
}

void admission_submit(struct admission *admission, struct admission_request *request)
{
        request->admission = admission;
        request->blocked = request->decided = false;
        request->error = (struct error){0};
        request->since_ns = now_ns();
        request->due = admission->n_rechecks + 1;
        enqueue(admission, request);
}

static bool is_queued(const struct admission_request *request)
{
        return request->admission != NULL && !list_empty(&request->link);
}

void admission_set_priority(struct admission_request *request, uint64_t priority)
{
        request->priority = priority;
        if (!is_queued(request) || request->decided)
                return;
        list_remove(&request->link);
        enqueue(request->admission, request);
}

void admission_relax(struct admission_request *request, bool evict, bool wait)
{
        request->evict = request->evict || evict;
        request->wait = request->wait || wait;
        if (is_queued(request))
                resident_capacity_changed(request->admission->resident);
}

bool admission_withdraw(struct admission_request *request)
{
        if (!is_queued(request))
                return false;
        list_remove(&request->link);
        resident_capacity_changed(request->admission->resident);
        return true;
}

/* What it waits for changes without an event: bytes that are being freed count for a time, no kernel says when other
 * software has freed memory, and a device is lost in another thread. The rest of the budget is changed by this
 * daemon's models alone. */
static bool needs_time(const struct admission_request *request)
{
        if (!request->blocked)
                return true;
        for (size_t i = 0; i < request->n_parts; i++) {
                const struct device *device = request->parts[i].device;
                if (device_budget(device) < device->budget || !device_in_service(device))
                        return true;
        }
        return false;
}

bool admission_tick(struct admission *admission)
{
        list_each_item (const struct admission_request, request, &admission->queue, link)
                if (needs_time(request)) {
                        resident_capacity_changed(admission->resident);
                        return true;
                }
        return false;
}
