/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/store/service.h"

#include "daemon/base/text/percent.h"
#include "daemon/base/util.h"

#include <strings.h>

#define ANSWER_MAX (64 * KiB)

int service_clients_init(struct service_clients *clients, const struct http_opts *http, uint64_t timeout_ns,
                         unsigned tries, struct error *error)
{
        const struct http_opts metadata = {.connect_timeout_ns = timeout_ns,
                                           .stall_ns = timeout_ns,
                                           .backoff_ns = SECOND / 10,
                                           .retry_after_ns = SECOND,
                                           .tries = tries,
                                           .threads = 1};
        /* All tries end before callers of renewal_get() get an error. */
        const struct http_opts others = {.connect_timeout_ns = 5 * SECOND,
                                         .stall_ns = 5 * SECOND,
                                         .backoff_ns = SECOND / 2,
                                         .retry_after_ns = 2 * SECOND,
                                         .tries = 4,
                                         .threads = 1,
                                         .ca = http != NULL ? http->ca : NULL,
                                         .allow_plain = http != NULL ? http->allow_plain : NULL,
                                         .n_allow_plain = http != NULL ? http->n_allow_plain : 0};
        *clients = (struct service_clients){.metadata = NULL};
        int r = http_new(&clients->metadata, &metadata, error) ?: http_new(&clients->others, &others, error);
        if (r < 0)
                service_clients_deinit(clients);
        return r;
}

void service_clients_stop(struct service_clients *clients)
{
        store_relaxed(&clients->metadata->stopping, true);
        store_relaxed(&clients->others->stopping, true);
}

void service_clients_deinit(struct service_clients *clients)
{
        clients->metadata = http_free(clients->metadata);
        clients->others = http_free(clients->others);
}

int service_fetch(struct http *http, struct http_fetch *fetch, struct error *error)
{
        require(http->opts.redirects == 0);
        fetch->max_body = ANSWER_MAX;
        fetch->accepts = http_accepts_any;
        int r = http_fetch(http, fetch, 1, error);
        if (r == 0 && fetch->answer.body == NULL && (fetch->answer.body = strdup("")) == NULL)
                r = error_no_memory(error);
        return r;
}

int service_get(struct http *http, const struct http_request *request, const char *name, const char *value,
                struct http_answer *answer, struct error *error)
{
        cleanup_with(http_headers_deinit) struct http_headers headers = {.n = 0};
        struct http_fetch fetch = {.request = *request};
        fetch.request.headers = &headers;
        fetch.request.plain_ok = strncasecmp(request->url, "http://", 7) == 0;
        fetch.request.direct = true;
        int r = value != NULL ? http_headers_add(&headers, name, value, error) : 0;
        r = r ?: service_fetch(http, &fetch, error);
        *answer = fetch.answer;
        return r;
}

int service_post(struct http *http, const char *url, const char *shown, const char *type, const char *body,
                 const char *authorization, struct http_answer *answer, struct error *error)
{
        cleanup_with(http_headers_deinit) struct http_headers headers = {.n = 0};
        struct http_fetch fetch = {.request = {.method = "POST",
                                               .url = url,
                                               .shown = shown,
                                               .headers = &headers,
                                               .body = body,
                                               .body_len = strlen(body),
                                               .direct = true}};
        int r = http_headers_add(&headers, "Content-Type", type, error);
        if (r == 0 && authorization != NULL)
                r = http_headers_add(&headers, "Authorization", authorization, error);
        r = r ?: service_fetch(http, &fetch, error);
        *answer = fetch.answer;
        return r;
}

/* A value may be a secret: it is written to its place at once, without a copy. */
char *service_form(const struct service_param *params, size_t n)
{
        size_t size = 1;
        for (size_t i = 0; i < n; i++)
                if (params[i].value != NULL)
                        size += strlen(params[i].name) + 3 * strlen(params[i].value) + 2;
        char *text = calloc(1, size), *to = text;
        if (text == NULL)
                return NULL;
        for (size_t i = 0; i < n; i++) {
                if (params[i].value == NULL)
                        continue;
                to = stpcpy(stpcpy(stpcpy(to, to != text ? "&" : ""), params[i].name), "=");
                to = percent_encode(to, params[i].value, "");
        }
        return text;
}

int service_failed(struct error *error, int status)
{
        error->unreachable = http_status_is_outage(status);
        return error->code;
}

int service_pause(struct http *http, uint64_t ns, struct error *error)
{
        static const struct timespec step = {.tv_nsec = 20 * 1000000};
        for (uint64_t until = now_ns() + ns; now_ns() < until;) {
                if (load_relaxed(&http->stopping))
                        return error_set(error, STREAMER_ECANCELED, "given up: the daemon is ending");
                nanosleep(&step, NULL);
        }
        return 0;
}
