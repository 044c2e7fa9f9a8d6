/* SPDX-License-Identifier: Apache-2.0
 *
 * A server that knows no ranges is read from the beginning, one object after the other:
 *
 *   asleep > ticket > asked for > bytes before the block are dropped, the block's land > next ticket ...
 *              \                        \
 *               \                        \ no ticket to be had: paused until there is
 *                \_ another object, or a failure: asked for anew, from its first byte
 *
 * A load's tickets are taken by name, so that no other thread takes the block that comes next.
 */
#include "daemon/io/http_thread.h"

#include "daemon/io/http_policy.h"

#include <inttypes.h>
#include <string.h>

#define BUFFER (256u * 1024)

struct stream {
        struct list link; /* in its thread's streams */
        struct http_thread *thread;
        struct read_job *job; /* which it keeps from ending */
        struct http_transfer transfer;
        bool running; /* the transfer is in the loop */
        uint32_t file;
        uint64_t at; /* offset in the object of the next byte */

        struct ticket ticket; /* where have_ticket */
        bool have_ticket;
        unsigned char *to;
        struct fill fill;

        struct http_retry retry;
        bool waiting;
        uint64_t begun_ns;
        struct error error; /* code 0: it goes on */
};

/* ---- blocks ---- */

static bool take_ticket(struct stream *s)
{
        struct reader *reader = s->thread->reader;
        if (s->have_ticket)
                return true;
        reader_lock(reader);
        s->have_ticket = reader_try_job_locked(reader, s->job, &s->ticket);
        s->thread->n += s->have_ticket;
        reader_unlock(reader);
        if (!s->have_ticket)
                return false;
        s->begun_ns = now_ns();
        reader_fill_begin(&s->ticket, &s->fill);
        s->to = http_block_target(&s->ticket, &s->error);
        return s->to != NULL;
}

static void land(struct stream *s)
{
        struct ticket ticket = s->ticket;
        s->have_ticket = false;
        s->retry.made = 0; /* it made progress */
        http_block_done(s->thread, &ticket, s->to, now_ns() - s->begun_ns);
        http_place_gone(s->thread);
}

/* Bytes of the block at hand; the number of those taken, or dropped since nobody wants them. */
static size_t feed(struct stream *s, const unsigned char *data, size_t n)
{
        const struct plan_block *block = s->ticket.block;
        uint64_t want = block->file_off + s->fill.have;
        if (s->at < want)
                return want - s->at < n ? (size_t)(want - s->at) : n;
        uint64_t left = block->len - s->fill.have;
        size_t taken = left < n ? (size_t)left : n;
        reader_fill(&s->ticket, &s->fill, s->to, data, taken);
        return taken;
}

static enum http_sink on_bytes(struct http_transfer *t, const unsigned char *data, size_t n)
{
        struct stream *s = container_of(t, struct stream, transfer);
        size_t done = 0;
        while (done < n) {
                if (!take_ticket(s)) {
                        t->taken = done;
                        return s->error.code != 0 ? HTTP_ENOUGH : HTTP_PAUSE;
                }
                if (s->ticket.block->file != s->file)
                        return HTTP_ENOUGH;
                size_t taken = feed(s, data + done, n - done);
                http_job_moved(http_job(s->job), t->moved_ns, taken);
                s->at += taken;
                done += taken;
                if (s->fill.have == s->ticket.block->len)
                        land(s);
        }
        return HTTP_MORE;
}

/* ---- the transfer ---- */

static const struct object *object_of(const struct stream *s)
{
        return &s->job->objects[s->file];
}

static enum http_outcome on_accept(struct http_transfer *t)
{
        struct stream *s = container_of(t, struct stream, transfer);
        return remote_check_answer(object_of(s), &t->answer, &t->error) < 0 ? HTTP_FAILED : HTTP_OK;
}

/* A body whose length was not told may end anywhere. */
static bool wants_more(const struct stream *s)
{
        return s->have_ticket && s->ticket.block->file == s->file;
}

static void on_done(struct http_transfer *t, enum http_outcome outcome)
{
        struct stream *s = container_of(t, struct stream, transfer);
        s->running = false;
        if (outcome == HTTP_OK && !wants_more(s))
                return;
        if (outcome == HTTP_OK) {
                outcome = HTTP_AGAIN;
                error_set(&t->error, STREAMER_EFAILED, "short body: %" PRIu64 " of %" PRIu64 " bytes (%s)", s->at,
                          object_of(s)->version.size, object_of(s)->path);
        }
        if (http_status_slow_down(t->answer.status))
                http_slow_down(s->thread->reader, s->job);
        if (outcome == HTTP_AGAIN && http_retry(t, &s->retry, 0))
                s->waiting = true;
        else
                s->error = t->error;
}

/* From the first byte: the part of the block that came before comes again. */
static void begin(struct stream *s)
{
        struct http_transfer *t = &s->transfer;
        s->waiting = false;
        s->file = s->ticket.block->file;
        s->at = 0;
        reader_fill_begin(&s->ticket, &s->fill);
        t->http = remote_http(object_of(s));
        t->buffer_size = BUFFER;
        t->accept = on_accept;
        t->bytes = on_bytes;
        t->done = on_done;
        remote_request(object_of(s), 0, 0, &t->request);
        s->running = true;
        http_loop_add(&s->thread->loop, t);
}

/* ---- its life ---- */

int stream_new(struct http_thread *thread, struct read_job *job, struct error *error)
{
        struct stream *s = calloc(1, sizeof(*s));
        if (s != NULL)
                s->fill.hash = hash_new();
        if (s == NULL || s->fill.hash == NULL) {
                free(s);
                return error_set(error, STREAMER_ENOMEM, "no memory");
        }
        s->thread = thread;
        s->job = job;
        s->retry.known = true;
        job->limit = 0; /* nobody's to take */
        job->held++;
        http_job(job)->stream = s;
        list_append(&thread->streams, &s->link);
        return 0;
}

static void stream_free(struct stream *s)
{
        struct http_thread *self = s->thread;
        struct read_job *job = s->job;
        if (s->running)
                http_loop_remove(&self->loop, &s->transfer);
        http_transfer_deinit(&s->transfer);
        if (s->have_ticket) {
                bool failed = s->error.code != 0 || http_job_cut_short(self, job, &s->error);
                reader_give(self->reader, &s->ticket, failed ? &s->error : NULL);
                http_place_gone(self);
        }
        reader_lock(self->reader);
        list_remove(&s->link);
        reader_unlock(self->reader);
        /* One that breaks between two blocks has no ticket to say so with. */
        reader_release(self->reader, job, s->error.code != 0 ? &s->error : NULL);
        hash_free(s->fill.hash);
        free(s);
}

static bool is_over(struct stream *s)
{
        struct reader *reader = s->thread->reader;
        if (s->error.code != 0 || http_job_stopped(s->thread, s->job))
                return true;
        reader_lock(reader);
        bool over = !s->have_ticket && s->job->next == s->job->plan->n_blocks;
        reader_unlock(reader);
        return over;
}

static void tend(struct stream *s)
{
        if (is_over(s)) {
                stream_free(s);
                return;
        }
        if (s->running && !s->transfer.paused)
                return;
        if (!take_ticket(s))
                return;
        if (s->running && s->ticket.block->file == s->file) {
                http_transfer_go_on(&s->transfer);
                return;
        }
        if (s->running)
                http_loop_remove(&s->thread->loop, &s->transfer);
        s->running = false;
        if (!s->waiting || s->retry.at_ns <= now_ns())
                begin(s);
}

void streams_tend(struct http_thread *self)
{
        /* New ones are added to the list by others: it is walked with the lock held, one at a time. */
        for (size_t i = 0;; i++) {
                struct stream *s = NULL;
                size_t k = 0;
                reader_lock(self->reader);
                list_each (pos, &self->streams)
                        if (k++ == i)
                                s = container_of(pos, struct stream, link);
                reader_unlock(self->reader);
                if (s == NULL)
                        return;
                tend(s);
        }
}

bool streams_wait(const struct http_thread *self)
{
        reader_lock(self->reader);
        bool any = !list_empty(&self->streams);
        reader_unlock(self->reader);
        return any;
}
