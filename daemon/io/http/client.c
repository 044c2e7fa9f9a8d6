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
};

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
        /* All of it at once: a buffer that grows leaves copies in freed memory, and the body may be a secret. */
        if (a->body == NULL && (a->body = malloc(p->fetch->max_body + 1)) == NULL) {
                error_no_memory(&t->error);
                return HTTP_BROKEN;
        }
        memcpy(a->body + a->body_len, data, n);
        a->body_len += n;
        a->body[a->body_len] = '\0';
        return HTTP_MORE;
}

/* A status that the fetch accepts, such as that of a missing or an empty object. */
static bool is_fine(const struct http_fetch *fetch, const struct http_answer *a)
{
        const char *range = http_headers_find(&a->headers, "Content-Range");
        for (const int *status = fetch->fine; status != NULL && *status != 0; status++)
                if (*status == a->status)
                        return true;
        return (fetch->any_status && a->status >= 300) ||
               (fetch->empty_ok && a->status == 416 && range != NULL && strcasecmp(range, "bytes */0") == 0);
}

static void on_done(struct http_transfer *t, enum http_outcome outcome)
{
        struct part *p = container_of(t, struct part, transfer);
        struct http_fetch *fetch = p->fetch;
        p->run->under_way--;
        if (http_status_slow_down(t->answer.status))
                http_halve_concurrency(&p->run->limit, &p->run->slowed_ns, now_ns());
        if (outcome == HTTP_RETRY && http_retry(t, &p->retry))
                return;
        bool ok = outcome == HTTP_OK || is_fine(fetch, &t->answer);
        p->run->left--;
        p->run->failed = p->run->failed || !ok;
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
                        if (p->fetch == NULL || p->transfer.loop != NULL)
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
        for (size_t i = 0; i < n; i++)
                if (fetches[i].error.code != 0) {
                        *error = fetches[i].error;
                        return error->code;
                }
        return error_set(error, STREAMER_ECANCELED, "given up: cancelled, or the daemon is ending");
}
