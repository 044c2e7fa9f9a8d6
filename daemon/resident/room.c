/* SPDX-License-Identifier: Apache-2.0
 *
 * A pass over the queue: a ledger is made, each request is looked at in order and takes from the
 * ledger what it gets or speaks for. Nothing is kept between passes, so whatever happened meanwhile
 * (a lease, a pin, a failed load) is seen by the next one.
 *
 * How it fails: a request that is blocked and does not want to wait, or that no device could ever
 * hold, is refused with the figures and with who has the memory; one for a device that is out of service
 * with that alone, before anybody is evicted for it. Where there is no memory to choose
 * victims among many candidates, nobody is evicted.
 */
#include "daemon/resident/room.h"

#include "daemon/base/log.h"
#include "daemon/base/metric.h"
#include "daemon/resident/group.h"
#include "daemon/resident/host_cache.h"
#include "daemon/resident/room_ledger.h"

#include <inttypes.h>
#include <string.h>

/* A device that others use too. */
struct room_device {
        struct work ask, idle;
        struct device *device;
        struct room *room;
        uint64_t ceiling; /* the answer */
        bool asked, idling;
};

/* ---- who asks ---- */

static void add_demand(struct asker *asker, struct device *device, uint64_t bytes)
{
        for (size_t i = 0; i < asker->n_demands; i++)
                if (asker->demands[i].device == device) {
                        asker->demands[i].bytes += bytes;
                        return;
                }
        asker->demands[asker->n_demands++] = (struct demand){device, bytes};
}

static void asker_of(const struct room_request *request, struct asker *asker)
{
        *asker = (struct asker){.resident = request->room->resident,
                                .parts = request->parts,
                                .n_parts = request->n_parts,
                                .evict = request->evict};
        for (size_t i = 0; i < request->n_parts; i++)
                add_demand(asker, request->parts[i].generation->device, request->parts[i].bytes);
}

void room_look(struct room *room, struct device *device, const char *name, uint64_t bytes, bool evict,
               struct room_outlook *outlook)
{
        struct asker asker = {.resident = room->resident, .name = name, .evict = evict};
        struct ledger ledger;
        add_demand(&asker, device, bytes);
        ledger_make(&ledger, room->resident);
        ledger_look(&asker, &ledger, outlook);
}

/* ---- answers ---- */

/* Told after the pass: whoever is told may ask and withdraw. */
static void answer(struct room_request *request)
{
        list_remove(&request->link);
        request->blocked = false;
        request->settled = true;
        list_append(&request->room->answered, &request->link);
}

static void tell_answered(struct room *room)
{
        while (!list_empty(&room->answered)) {
                struct room_request *request = container_of(room->answered.next, struct room_request, link);
                list_remove(&request->link);
                request->answered(request, &request->error);
        }
}

static struct room_request *untold(const struct room *room)
{
        list_each (pos, &room->queue) {
                struct room_request *request = container_of(pos, struct room_request, link);
                if (request->blocked && !request->told && request->waits != NULL)
                        return request;
        }
        return NULL;
}

static void tell_blocked(struct room *room)
{
        struct room_request *request;
        while ((request = untold(room)) != NULL) {
                request->told = true;
                request->waits(request);
        }
}

static void grant(struct room_request *request)
{
        for (size_t i = 0; i < request->n_parts; i++)
                require(generation_charge(request->parts[i].generation, request->parts[i].bytes, &request->error) == 0);
        answer(request);
}

/* The device that cannot be helped by evicting, where that is allowed. */
static const struct demand *what_is_missing(const struct asker *asker, const struct ledger *ledger)
{
        for (size_t i = 0; i < asker->n_demands; i++) {
                const struct demand *d = &asker->demands[i];
                uint64_t there = ledger->unused[d->device->number] + ledger->coming[d->device->number];
                struct room_outlook outlook = {0};
                bool helps = d->bytes <= there ||
                             (asker->evict && ledger_victims(asker, d->device, d->bytes - there, &outlook));
                room_outlook_deinit(&outlook);
                if (!helps)
                        return d;
        }
        return &asker->demands[0];
}

static void say_what_is_missing(const struct asker *asker, const struct ledger *ledger, struct error *error)
{
        const struct demand *d = what_is_missing(asker, ledger);
        const struct device *device = d->device;
        char who[600];
        resident_holders(asker->resident, device, who, sizeof(who));
        error_set(error, STREAMER_ENOMEM,
                  "does not fit: %" PRIu64 " bytes needed, %" PRIu64 " of %" PRIu64 " free%s (%s: %s)", d->bytes,
                  ledger->unused[device->number], device_budget(device),
                  device_budget(device) < device->budget ? ", others use the device too" : "", device->name, who);
}

/* Waiting can help only where the device could hold it if it were empty. */
static bool could_ever_fit(const struct asker *asker)
{
        for (size_t i = 0; i < asker->n_demands; i++)
                if (asker->demands[i].bytes > asker->demands[i].device->budget)
                        return false;
        return true;
}

/* One before it in the queue that has the same owner; `end`: the queue's. */
static bool counts_already(const struct room_request *request, const struct list *end)
{
        for (const struct list *pos = request->link.prev; request->owner != NULL && pos != end; pos = pos->prev) {
                const struct room_request *before = container_of(pos, struct room_request, link);
                if (before->blocked && before->owner == request->owner)
                        return true;
        }
        return false;
}

/* By their owners, but this one's; of all users, or of its own. */
static uint64_t count_blocked(const struct room *room, const struct room_request *but, bool of_user)
{
        uint64_t n = 0;
        list_each (pos, &room->queue) {
                const struct room_request *request = container_of(pos, struct room_request, link);
                bool own = request == but || (but->owner != NULL && request->owner == but->owner);
                bool counts = !of_user || (request->shares && request->uid == but->uid);
                n += request->blocked && counts && !own && !counts_already(request, &room->queue);
        }
        return n;
}

static int take_place_in_line(const struct room *room, const struct room_request *request, struct error *error)
{
        uint64_t half = (room->max_blocked + 1) / 2;
        if (request->blocked)
                return 0;
        if (count_blocked(room, request, false) >= room->max_blocked)
                return error_set(error, STREAMER_ELIMIT,
                                 "%" PRIu64 " loads wait for memory, no more are taken (limits.queued)",
                                 room->max_blocked);
        if (request->shares && count_blocked(room, request, true) >= half)
                return error_set(error, STREAMER_ELIMIT,
                                 "uid %u has %" PRIu64 " loads that wait for memory, half of all that may "
                                 "(limits.queued)",
                                 (unsigned)request->uid, half);
        return 0;
}

static void block(struct room_request *request, const struct asker *asker, const struct ledger *ledger)
{
        struct room *room = request->room;
        const struct device *lost = asker_lost_device(asker);
        if (lost != NULL) {
                device_lost_error(lost, &request->error);
                answer(request);
        } else if (!request->wait || !could_ever_fit(asker)) {
                say_what_is_missing(asker, ledger, &request->error);
                answer(request);
        } else if (take_place_in_line(room, request, &request->error) < 0) {
                answer(request);
        } else {
                request->blocked = true;
        }
}

/* ---- devices that others use too ---- */

static bool wants_device(const struct room *room, const struct device *device)
{
        list_each (pos, &room->queue) {
                const struct room_request *request = container_of(pos, struct room_request, link);
                for (size_t i = 0; i < request->n_parts; i++)
                        if (request->parts[i].generation->device == device)
                                return true;
        }
        return false;
}

static void ask_run(struct work *work)
{
        struct room_device *d = container_of(work, struct room_device, ask);
        d->ceiling = d->device->ops->ceiling(d->device);
}

static void idle_run(struct work *work)
{
        struct room_device *d = container_of(work, struct room_device, idle);
        d->device->ops->idle(d->device);
}

static void idle_done(struct work *work)
{
        container_of(work, struct room_device, idle)->idling = false;
}

/* Nobody of this queue allocates there now: what the question has opened may be closed. */
static void settle_devices(struct room *room)
{
        for (size_t i = 0; i < room->resident->n_devices; i++) {
                struct room_device *d = &room->devices[i];
                if (d->device->ops->idle == NULL || d->idling || !d->asked || d->device->used > 0 ||
                    wants_device(room, d->device))
                        continue;
                d->idling = true;
                d->asked = false;
                work_submit(d->device->thread, WORK_LANE_CPU, &d->idle, idle_run, idle_done);
        }
}

/* ---- a pass ---- */

/* What goes with a victim, its ranks on other devices too, is on its way; it may be gone already, if it has nothing
 * to release. */
static void add_coming(struct ledger *ledger, struct generation *victim)
{
        struct generation *ranks[GROUP_MAX];
        size_t n = group_ranks(victim, GENERATION_READY, ranks);
        for (size_t i = 0; i < n; i++)
                ledger->coming[ranks[i]->device->number] += ranks[i]->charged;
}

static void evict(const struct room_outlook *outlook, struct ledger *ledger, const char *for_whom)
{
        for (size_t i = 0; i < outlook->n_victims; i++) {
                struct generation *g = outlook->victims[i];
                if (g->state != GENERATION_READY) /* it went with another of its ranks */
                        continue;
                log_info("%s: evicted (generation %" PRIu64 ", %" PRIu64 " bytes of %s) for %s", generation_name(g),
                         g->number, g->charged, g->device->name, for_whom);
                metric_add(METRIC_EVICTIONS, 1);
                add_coming(ledger, g);
                if (!host_cache_take(g->resident->cache, g))
                        generation_drop_ranks(g, GENERATION_READY);
        }
}

static void take_place(struct room_request *request, const struct asker *asker, struct ledger *ledger,
                       const struct room_outlook *outlook)
{
        request->blocked = request->told = false;
        if (outlook->outcome == ROOM_EVICTS)
                evict(outlook, ledger, generation_name(request->parts[0].generation));
        if (outlook->outcome == ROOM_FITS) {
                for (size_t i = 0; i < asker->n_demands; i++)
                        ledger->unused[asker->demands[i].device->number] -= asker->demands[i].bytes;
                grant(request);
                return;
        }
        for (size_t i = 0; i < asker->n_demands; i++)
                ledger_speak_for(ledger, &asker->demands[i]);
}

static void serve(struct room_request *request, struct ledger *ledger)
{
        struct asker asker;
        struct room_outlook outlook;
        asker_of(request, &asker);
        ledger_look(&asker, ledger, &outlook);
        if (outlook.outcome == ROOM_BLOCKED)
                block(request, &asker, ledger);
        else
                take_place(request, &asker, ledger, &outlook);
        room_outlook_deinit(&outlook);
}

static void pass(struct room *room)
{
        struct ledger ledger;
        ledger_make(&ledger, room->resident);
        list_each_safe (pos, &room->queue)
                serve(container_of(pos, struct room_request, link), &ledger);
        tell_answered(room);
        tell_blocked(room);
        settle_devices(room);
}

static void ask_done(struct work *work)
{
        struct room_device *d = container_of(work, struct room_device, ask);
        struct room *room = d->room;
        d->device->ceiling = d->ceiling;
        if (--room->asking > 0)
                return;
        pass(room);
        if (room->again)
                room_stir(room);
        room->again = false;
}

static void ask_devices(struct room *room)
{
        for (size_t i = 0; i < room->resident->n_devices; i++) {
                struct room_device *d = &room->devices[i];
                if (d->device->ops->ceiling == NULL || !wants_device(room, d->device))
                        continue;
                d->asked = true;
                room->asking++;
                work_submit(d->device->thread, WORK_LANE_CPU, &d->ask, ask_run, ask_done);
        }
}

/* A change while devices are being asked is looked at when they have answered. */
static void on_stirred(struct errand *item)
{
        struct room *room = container_of(item, struct room, item);
        room->posted = false;
        host_cache_drop_rests(room->resident->cache);
        if (room->asking > 0) {
                room->again = true;
                return;
        }
        ask_devices(room);
        if (room->asking == 0)
                pass(room);
}

/* ---- the door ---- */

int room_init(struct room *room, struct resident *resident, struct wake *wake, uint64_t max_blocked)
{
        *room = (struct room){.resident = resident, .wake = wake, .max_blocked = max_blocked};
        require(resident->n_devices <= ROOM_DEVICES);
        list_init(&room->queue);
        list_init(&room->answered);
        room->item.run = on_stirred;
        room->devices = calloc(resident->n_devices + 1, sizeof(*room->devices));
        if (room->devices == NULL)
                return STREAMER_ENOMEM;
        for (size_t i = 0; i < resident->n_devices; i++) {
                room->devices[i].device = resident->devices[i];
                room->devices[i].room = room;
        }
        resident->room = room;
        return 0;
}

void room_deinit(struct room *room)
{
        if (room->devices == NULL)
                return;
        require(list_empty(&room->queue));
        free(room->devices);
        room->devices = NULL;
}

static bool stands_before(const struct room_request *a, const struct room_request *b)
{
        return a->priority != b->priority ? a->priority > b->priority : a->since_ns < b->since_ns;
}

static void enqueue(struct room *room, struct room_request *request)
{
        struct list *before = &room->queue;
        list_each (pos, &room->queue)
                if (stands_before(request, container_of(pos, struct room_request, link))) {
                        before = pos;
                        break;
                }
        list_append(before, &request->link);
        room_stir(room);
}

void room_ask(struct room *room, struct room_request *request)
{
        request->room = room;
        request->blocked = request->told = request->settled = false;
        request->error = (struct error){0};
        request->since_ns = now_ns();
        enqueue(room, request);
}

void room_set_priority(struct room_request *request, uint64_t priority)
{
        request->priority = priority;
        if (request->room == NULL || list_empty(&request->link) || request->settled)
                return;
        list_remove(&request->link);
        enqueue(request->room, request);
}

void room_widen(struct room_request *request, bool evict, bool wait)
{
        request->evict = request->evict || evict;
        request->wait = request->wait || wait;
        if (request->room != NULL && !list_empty(&request->link))
                room_stir(request->room);
}

bool room_withdraw(struct room_request *request)
{
        if (request->room == NULL || list_empty(&request->link))
                return false;
        list_remove(&request->link);
        room_stir(request->room);
        return true;
}

void room_stir(struct room *room)
{
        if (room == NULL || room->posted)
                return;
        room->posted = true;
        wake_post(room->wake, &room->item);
}

void room_tick(struct room *room)
{
        if (!list_empty(&room->queue))
                room_stir(room);
}
