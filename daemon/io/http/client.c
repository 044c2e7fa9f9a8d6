/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of a worker: a loop of its own runs until all are done. The first fetch that fails finally stops the others.
 *
 * Between http_reuse_begin() and http_reuse_end() all fetches of a thread use one loop, so that later fetches reuse the
 * connections of earlier ones: over a link of 200 ms with TLS a new connection costs as much as two requests.
 */
#include "daemon/base/util.h"
#include "daemon/io/http/transfer.h"

#include <inttypes.h>
#include <strings.h>

#define TICK_NS (100 * UINT64_C(1000000)) /* how soon http.stopping is noticed */
#define BUFFER (64u * 1024)
#define BODY_LEAST 4096u

static __thread struct {
        const bool *given_up;  /* NULL: it is never abandoned */
        struct http_loop loop; /* begins with the first fetch */
        bool begun;
} work;

void http_reuse_begin(const bool *given_up)
{
        require(!work.begun);
        work.given_up = given_up;
        work.begun = true;
}

void http_reuse_end(void)
{
        http_loop_deinit(&work.loop);
        work.begun = false;
        work.given_up = NULL;
}

static bool given_up(const struct http *http)
{
        return load_relaxed(&http->stopping) || (work.given_up != NULL && load_relaxed(work.given_up));
}

/* One call of http_fetch(). */
struct run {
        struct http *http;
        struct http_loop *loop;
        size_t left;
        bool failed;
        unsigned under_way, limit; /* transfers */
        uint64_t slowed_ns;        /* when the limit was last halved; 0: never */
};

/* A fetch that is under way. */
struct part {
        struct http_transfer transfer;
        struct run *run;
        struct http_fetch *fetch; /* NULL: none any more */
        struct http_retry retry;
        size_t body_size; /* allocated for the answer's body, if it has one */
};

/* Space for n more bytes of the body and its NUL. It grows with what is received, whatever may follow. What is left
 * behind is wiped, since a body may be a secret. */
static bool reserve(struct part *p, size_t n)
{
        struct http_answer *a = &p->transfer.answer;
        size_t needed = a->body_len + n + 1, size = a->body != NULL ? p->body_size : 0;
        if (needed <= size)
                return true;
        size = 2 * size > needed ? 2 * size : needed;
        if (size < BODY_LEAST)
                size = BODY_LEAST;
        if (size > p->fetch->max_body + 1)
                size = p->fetch->max_body + 1;
        require(size >= needed);
        char *grown = malloc(size);
        if (grown == NULL)
                return false;
        if (a->body != NULL) {
                memcpy(grown, a->body, a->body_len);
                explicit_bzero(a->body, a->body_len);
                free(a->body);
        }
        a->body = grown;
        p->body_size = size;
        return true;
}

static enum http_sink on_bytes(struct http_transfer *t, const unsigned char *data, size_t n)
{
        struct part *p = container_of(t, struct part, transfer);
        if (n > p->fetch->max_body || t->received > p->fetch->max_body - n) {
                error_set(&p->transfer.error, STREAMER_EFAILED, "more than %" PRIu64 " bytes (%s)", p->fetch->max_body,
                          p->fetch->request.shown);
                return HTTP_BROKEN;
        }
        if (p->fetch->to != NULL) {
                memcpy(p->fetch->to + t->received, data, n);
                return HTTP_MORE;
        }
        struct http_answer *a = &t->answer;
        if (!reserve(p, n)) {
                error_no_memory(&t->error);
                return HTTP_BROKEN;
        }
        memcpy(a->body + a->body_len, data, n);
        a->body_len += n;
        a->body[a->body_len] = '\0';
        return HTTP_MORE;
}

bool http_accepts_any(const struct http_answer *answer)
{
        return true;
}

/* Byte 0 is not in it; a server that gives it another length contradicts itself. */
bool http_accepts_empty(const struct http_answer *answer)
{
        const char *range = http_headers_find(&answer->headers, "Content-Range");
        return answer->status == 416 && (range == NULL || strcasecmp(range, "bytes */0") == 0);
}

bool http_accepts_absent(const struct http_answer *answer)
{
        return answer->status == 404 || answer->status == 410 || http_accepts_empty(answer);
}

static void on_done(struct http_transfer *t, enum http_outcome outcome)
{
        struct part *p = container_of(t, struct part, transfer);
        struct http_fetch *fetch = p->fetch;
        p->run->under_way--;
        if (http_status_slow_down(t->answer.status))
                http_halve_concurrency(&p->run->limit, &p->run->slowed_ns, now_ns());
        bool may_retry = !fetch->probes || http_status_is_refusal(t->answer.status);
        if (outcome == HTTP_RETRY && may_retry && http_retry(t, &p->retry))
                return;
        bool ok =
                outcome == HTTP_OK || (t->answer.status >= 300 && fetch->accepts != NULL && fetch->accepts(&t->answer));
        p->run->left--;
        p->run->failed = p->run->failed || (!ok && !fetch->probes);
        fetch->error = ok ? (struct error){0} : t->error;
        fetch->got = ok && t->answer.status < 300 ? t->received : 0;
        fetch->answer = t->answer;
        t->answer = (struct http_answer){0};
        p->fetch = NULL;
        if (ok && fetch->done != NULL)
                fetch->done(fetch);
}

static void start(struct part *p)
{
        struct http_transfer *t = &p->transfer;
        p->run->under_way++;
        t->http = p->run->http;
        t->request = p->fetch->request;
        t->fresh = p->fetch->fresh || p->retry.fresh;
        t->buffer_size = BUFFER;
        t->bytes = on_bytes;
        t->done = on_done;
        http_loop_add(p->run->loop, t, NULL);
}

int http_fetch(struct http *http, struct http_fetch *fetches, size_t n, struct error *error)
{
        struct http_loop own = {.multi = NULL};
        size_t n_parts = n < HTTP_PARALLEL ? n : HTTP_PARALLEL, next = 0;
        struct run run = {.http = http, .loop = work.begun ? &work.loop : &own, .left = n, .limit = (unsigned)n_parts};
        if (n == 0)
                return 0;
        cleanup_free struct part *parts = calloc(n_parts, sizeof(*parts));
        if (parts == NULL)
                return error_no_memory(error);
        int r = run.loop->multi != NULL ? 0 : http_loop_init(run.loop, error);
        if (r < 0)
                return r;
        while (run.left > 0 && !run.failed && !given_up(http)) {
                uint64_t now = now_ns(), soonest = now + TICK_NS;
                for (struct part *p = parts; p < parts + n_parts; p++) {
                        if (p->fetch == NULL && next < n) {
                                p->fetch = &fetches[next++];
                                p->retry = (struct http_retry){0};
                                p->run = &run;
                        }
                        if (p->fetch == NULL || !http_transfer_is_idle(&p->transfer))
                                continue;
                        if (p->retry.at_ns <= now && run.under_way < run.limit)
                                start(p);
                        else if (p->retry.at_ns > now && p->retry.at_ns < soonest)
                                soonest = p->retry.at_ns;
                }
                http_loop_run(run.loop, (unsigned)((soonest - now) / 1000000));
        }
        for (size_t i = 0; i < n_parts; i++)
                http_transfer_deinit(&parts[i].transfer);
        http_loop_deinit(&own);
        if (run.left == 0 && !run.failed)
                return 0;
        const struct error *failure = NULL;
        for (size_t i = 0; i < n; i++) {
                const struct error *e = &fetches[i].error;
                if (e->code != 0 && !fetches[i].probes &&
                    (failure == NULL || (failure->unreachable && !e->unreachable)))
                        failure = e;
        }
        if (failure != NULL) {
                *error = *failure;
                return error->code;
        }
        return error_set(error, STREAMER_ECANCELED, "given up: cancelled, or the daemon is ending");
}
