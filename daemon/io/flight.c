/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/flight.h"

#include <string.h>

/* Spans handed to a device at once; a block of many small tensors has more. */
#define SPANS 256

static struct copier *copier_of(struct flights *flights, struct device *device, struct error *error)
{
        struct copier **copier = &flights->copiers[device->number];
        if (*copier == NULL)
                *copier = device->ops->copier_new(device, error);
        return *copier;
}

int flights_init(struct flights *flights, struct reader *reader, unsigned most)
{
        *flights = (struct flights){.reader = reader, .most = most};
        flights->oldest_first = calloc(most, sizeof(*flights->oldest_first));
        return flights->oldest_first != NULL ? 0 : -1;
}

void flights_deinit(struct flights *flights)
{
        require(flights->n == 0);
        for (size_t i = 0; i < FLIGHT_DEVICES; i++)
                if (flights->copiers[i] != NULL)
                        flights->copiers[i]->ops->copier_free(flights->copiers[i]);
        free(flights->oldest_first);
        *flights = (struct flights){0};
}

/* A block on its way to one target. */
struct way {
        const struct ticket *ticket;
        struct read_target *target;
        const unsigned char *data;
        struct plan_cursor cursor;
};

/* The block's next spans, SPANS at most, neighbours in one. */
static size_t gather(struct way *way, struct device_span *spans, bool *more)
{
        const unsigned char *data = way->data;
        struct plan_cursor *cursor = &way->cursor;
        struct plan_piece piece;
        size_t n = 0;
        for (;;) {
                struct plan_cursor before = *cursor;
                *more = plan_pieces_next(way->ticket->job->plan, way->ticket->block, cursor, &piece);
                if (!*more)
                        return n;
                struct segment *segment = &way->target->segments[piece.segment];
                struct device_span *last = n > 0 ? &spans[n - 1] : NULL;
                if (last != NULL && last->segment == segment && last->offset + last->len == piece.offset &&
                    (const unsigned char *)last->from + last->len == data + piece.in_block) {
                        last->len += piece.len;
                        continue;
                }
                if (n == SPANS) {
                        *cursor = before;
                        return n;
                }
                spans[n++] = (struct device_span){segment, piece.offset, data + piece.in_block, piece.len};
        }
}

/* A device without copiers: complete on return. */
static int put(struct way *way, struct error *error)
{
        struct device_span spans[SPANS];
        for (bool more = true; more;) {
                size_t n = gather(way, spans, &more);
                for (size_t i = 0; i < n; i++) {
                        const struct device_span *s = &spans[i];
                        int r = s->segment->device->ops->put(s->segment, s->offset, s->from, s->len, error);
                        if (r < 0)
                                return r;
                }
        }
        return 0;
}

static int copy(struct flights *flights, struct way *way, struct flight_copy *copy, struct error *error)
{
        struct device *device = way->target->segments[0].device;
        const struct device_ops *ops = device->ops;
        struct copier *copier = copier_of(flights, device, error);
        if (copier == NULL)
                return error->code;
        struct device_span spans[SPANS];
        void *event = NULL;
        for (bool more = true; more;) {
                /* Before the next part: one event a slot and device is enough to keep. */
                if (event != NULL && ops->copied(copier, event, true, error) < 0)
                        return error->code;
                size_t n = gather(way, spans, &more);
                int r = ops->copy(copier, spans, n, &event, error);
                if (r < 0)
                        return r;
        }
        *copy = (struct flight_copy){.target = way->target, .copier = copier, .event = event};
        return 0;
}

static void start_one(struct flights *flights, struct flight *flight, struct read_target *target,
                      const unsigned char *data)
{
        struct way way = {.ticket = &flight->ticket, .target = target, .data = data};
        struct error error = {0};
        bool copies = target->segments[0].device->ops->copy != NULL;
        plan_pieces_begin(flight->ticket.block, &way.cursor);
        int r = copies ? copy(flights, &way, &flight->copies[flight->n], &error) : put(&way, &error);
        if (r < 0)
                reader_lose(flights->reader, flight->ticket.job, target, &error);
        else
                flight->n += copies;
}

int flights_start(struct flights *flights, const struct ticket *ticket, const unsigned char *data)
{
        const struct read_job *job = ticket->job;
        require(!flights_full(flights));
        struct flight *flight = &flights->oldest_first[flights->n];
        flight->ticket = *ticket;
        flight->n = 0;
        for (size_t i = 0; i < job->n_targets; i++)
                if ((ticket->targets >> i & 1) != 0 && !read_target_dead(job->targets[i]))
                        start_one(flights, flight, job->targets[i], data);
        if (flight->n == 0)
                return 0;
        flights->n++;
        return 1;
}

void flights_leave_place(struct flights *flights)
{
        require(flights->n > 0);
        reader_copies(flights->reader, &flights->oldest_first[flights->n - 1].ticket);
}

/* Crosses off the copies that are done, or have failed. */
static void ask(struct flights *flights, struct flight *flight, bool wait)
{
        size_t left = 0;
        for (size_t i = 0; i < flight->n; i++) {
                const struct flight_copy c = flight->copies[i];
                struct error error = {0};
                int copied = c.copier->ops->copied(c.copier, c.event, wait, &error);
                if (copied == 0)
                        flight->copies[left++] = c;
                else if (copied < 0)
                        reader_lose(flights->reader, flight->ticket.job, c.target, &error);
        }
        flight->n = left;
}

void flights_wait(struct flights *flights)
{
        ask(flights, &flights->oldest_first[0], true);
}

void flights_reap(struct flights *flights)
{
        for (unsigned i = 0; i < flights->n;) {
                struct flight *flight = &flights->oldest_first[i];
                ask(flights, flight, false);
                if (flight->n > 0) {
                        i++;
                        continue;
                }
                struct ticket ticket = flight->ticket;
                flights->n--;
                memmove(flight, flight + 1, (flights->n - i) * sizeof(*flight));
                reader_landed(&ticket);
                reader_give(flights->reader, &ticket, NULL);
        }
}
