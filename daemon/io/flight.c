/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/flight.h"

#include <string.h>

/* Room for spans at first; a block of many small tensors has more. */
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
        free(flights->spans);
        *flights = (struct flights){0};
}

/* Room for one span more. */
static int make_room(struct flights *flights, size_t n)
{
        if (n < flights->room)
                return 0;
        size_t room = flights->room > 0 ? 2 * flights->room : SPANS;
        struct device_span *spans = reallocarray(flights->spans, room, sizeof(*spans));
        if (spans == NULL)
                return -1;
        flights->spans = spans;
        flights->room = room;
        return 0;
}

/* All of the block's spans, neighbours in one. */
static int gather(struct flights *flights, const struct ticket *ticket, const struct read_target *target,
                  const unsigned char *data, size_t *n, struct error *error)
{
        struct plan_cursor cursor;
        struct plan_piece piece;
        *n = 0;
        plan_pieces_begin(ticket->block, &cursor);
        while (plan_pieces_next(ticket->job->plan, ticket->block, &cursor, &piece)) {
                struct segment *segment = &target->segments[piece.segment];
                const unsigned char *from = data + piece.in_block;
                struct device_span *last = *n > 0 ? &flights->spans[*n - 1] : NULL;
                if (last != NULL && last->segment == segment && last->offset + last->len == piece.offset &&
                    (const unsigned char *)last->from + last->len == from) {
                        last->len += piece.len;
                        continue;
                }
                if (make_room(flights, *n) < 0)
                        return error_set(error, STREAMER_ENOMEM, "no memory");
                flights->spans[(*n)++] = (struct device_span){segment, piece.offset, from, piece.len};
        }
        return 0;
}

/* A device without copiers: complete on return. */
static int put(const struct device_span *spans, size_t n, struct error *error)
{
        for (size_t i = 0; i < n; i++) {
                const struct device_span *s = &spans[i];
                int r = s->segment->device->ops->put(s->segment, s->offset, s->from, s->len, error);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* One event is behind them all: nobody waits here, for a device that may stall. */
static int copy(struct flights *flights, struct read_target *target, size_t n, struct flight_copy *copy,
                struct error *error)
{
        struct device *device = target->segments[0].device;
        struct copier *copier = copier_of(flights, device, error);
        if (copier == NULL)
                return error->code;
        *copy = (struct flight_copy){.target = target, .copier = copier};
        return device->ops->copy(copier, flights->spans, n, &copy->event, error);
}

static void start_one(struct flights *flights, struct flight *flight, struct read_target *target,
                      const unsigned char *data)
{
        struct error error = {0};
        bool copies = target->segments[0].device->ops->copy != NULL;
        size_t n;
        int r = gather(flights, &flight->ticket, target, data, &n, &error);
        if (r == 0)
                r = copies ? copy(flights, target, n, &flight->copies[flight->n], &error)
                           : put(flights->spans, n, &error);
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
