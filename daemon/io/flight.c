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

void flights_deinit(struct flights *flights)
{
        require(flights->n == 0);
        for (size_t i = 0; i < FLIGHT_DEVICES; i++)
                if (flights->copiers[i] != NULL)
                        flights->copiers[i]->ops->copier_free(flights->copiers[i]);
}

/* The block's next spans, SPANS at most, neighbours in one. */
static size_t gather(const struct ticket *ticket, struct plan_cursor *cursor, const unsigned char *data,
                     struct device_span *spans, bool *more)
{
        const struct read_job *job = ticket->job;
        struct plan_piece piece;
        size_t n = 0;
        for (;;) {
                struct plan_cursor before = *cursor;
                *more = plan_pieces_next(job->plan, ticket->block, cursor, &piece);
                if (!*more)
                        return n;
                struct segment *segment = &job->segments[piece.segment];
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
static int put(const struct ticket *ticket, const unsigned char *data, struct error *error)
{
        struct device_span spans[SPANS];
        struct plan_cursor cursor;
        plan_pieces_begin(ticket->block, &cursor);
        for (bool more = true; more;) {
                size_t n = gather(ticket, &cursor, data, spans, &more);
                for (size_t i = 0; i < n; i++) {
                        const struct device_span *s = &spans[i];
                        int r = s->segment->device->ops->put(s->segment, s->offset, s->from, s->len, error);
                        if (r < 0)
                                return r;
                }
        }
        return 0;
}

int flights_start(struct flights *flights, const struct ticket *ticket, const unsigned char *data, struct error *error)
{
        struct device *device = ticket->job->segments[0].device;
        const struct device_ops *ops = device->ops;
        if (ops->copy == NULL)
                return put(ticket, data, error);
        struct copier *copier = copier_of(flights, device, error);
        if (copier == NULL)
                return error->code;
        struct device_span spans[SPANS];
        struct plan_cursor cursor;
        void *event = NULL;
        plan_pieces_begin(ticket->block, &cursor);
        for (bool more = true; more;) {
                /* Before the next part: one event a slot is enough to keep. */
                if (event != NULL && ops->copied(copier, event, true, error) < 0)
                        return error->code;
                size_t n = gather(ticket, &cursor, data, spans, &more);
                int r = ops->copy(copier, spans, n, &event, error);
                if (r < 0)
                        return r;
        }
        require(flights->n < FLIGHTS_MAX);
        flights->oldest_first[flights->n++] = (struct flight){.ticket = *ticket, .copier = copier, .event = event};
        return 1;
}

static void ask(struct flight *flight, bool wait)
{
        if (flight->event == NULL)
                return;
        flight->copied = flight->copier->ops->copied(flight->copier, flight->event, wait, &flight->error);
        if (flight->copied != 0)
                flight->event = NULL;
}

void flights_wait(struct flights *flights)
{
        ask(&flights->oldest_first[0], true);
}

void flights_reap(struct flights *flights)
{
        for (unsigned i = 0; i < flights->n;) {
                ask(&flights->oldest_first[i], false);
                struct flight flight = flights->oldest_first[i];
                if (flight.event != NULL) {
                        i++;
                        continue;
                }
                flights->n--;
                memmove(&flights->oldest_first[i], &flights->oldest_first[i + 1],
                        (flights->n - i) * sizeof(flights->oldest_first[0]));
                struct read_job *job = flight.ticket.job;
                if (flight.copied > 0)
                        job->landed(job, flight.ticket.block);
                reader_give(flights->reader, &flight.ticket, flight.copied > 0 ? NULL : &flight.error);
        }
}
