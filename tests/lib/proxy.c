/* SPDX-License-Identifier: Apache-2.0
 *
 * Each request goes over a connection of its own to the server, whose answer is taken whole before it is
 * sent on: what is done to it is then a change of bytes in memory.
 *
 *   reading the request > asking the server > [waiting] > answering > reading the next one
 */
#include "tests/lib/proxy.h"

#include "tests/lib/base.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <uv.h>

#define REQUEST_MAX 65536
#define DRIP_MS 10

struct proxy_loop {
        uv_loop_t loop;
        uv_tcp_t listener;
        uv_async_t stop, release, cut;
        struct conn *held; /* newest first */
        struct proxy *proxy;
};

struct bytes {
        char *data;
        size_t n, cap;
};

struct conn {
        struct proxy *proxy;
        uv_tcp_t client, server;
        uv_timer_t timer;
        uv_connect_t connecting;
        uv_write_t asking, answering;
        struct bytes request, answer;
        size_t head;  /* of the answer: up to its body */
        size_t sent;  /* of the answer, dripping */
        size_t limit; /* of the answer, to be sent */
        uint64_t window;
        struct proxy_rule rule;
        struct conn *next_held;
        unsigned handles;
        bool server_open, closing;
};

static void bytes_add(struct bytes *b, const char *data, size_t n)
{
        while (b->n + n + 1 > b->cap) {
                b->cap = b->cap > 0 ? b->cap * 2 : 65536;
                b->data = must_realloc(b->data, b->cap);
        }
        memcpy(b->data + b->n, data, n);
        b->n += n;
        b->data[b->n] = '\0';
}

/* ---- closing ---- */

static void on_closed(uv_handle_t *handle)
{
        struct conn *c = handle->data;
        if (--c->handles > 0)
                return;
        pthread_mutex_lock(&c->proxy->mutex);
        c->proxy->open--;
        pthread_mutex_unlock(&c->proxy->mutex);
        free(c->request.data);
        free(c->answer.data);
        free(c);
}

static void server_closed(uv_handle_t *handle)
{
        struct conn *c = handle->data;
        c->server_open = false;
        if (c->closing)
                on_closed(handle);
        else
                c->handles--;
}

static void close_server(struct conn *c)
{
        if (c->server_open && !uv_is_closing((uv_handle_t *)&c->server))
                uv_close((uv_handle_t *)&c->server, server_closed);
}

static void conn_close(struct conn *c)
{
        if (c->closing)
                return;
        c->closing = true;
        close_server(c);
        uv_close((uv_handle_t *)&c->timer, on_closed);
        if (!uv_is_closing((uv_handle_t *)&c->client))
                uv_close((uv_handle_t *)&c->client, on_closed);
}

static void conn_reset(struct conn *c)
{
        if (c->closing)
                return;
        c->closing = true;
        close_server(c);
        uv_close((uv_handle_t *)&c->timer, on_closed);
        uv_tcp_close_reset(&c->client, on_closed);
}

/* ---- which rule ---- */

static const char *find_header(const struct bytes *b, const char *name)
{
        const char *at = b->data != NULL ? strcasestr(b->data, name) : NULL;
        const char *end = b->data != NULL ? strstr(b->data, "\r\n\r\n") : NULL;
        return at != NULL && end != NULL && at < end ? at : NULL;
}

static enum proxy_what what_of(struct conn *c, struct proxy_asked *asked)
{
        unsigned long long first = 0, last = 0;
        const char *range = find_header(&c->request, "\r\nRange: bytes=");
        bool ranged = range != NULL && sscanf(range + strlen("\r\nRange: bytes="), "%llu-%llu", &first, &last) == 2;
        *asked = ranged ? (struct proxy_asked){first, last} : (struct proxy_asked){0, UINT64_MAX};
        if (strncmp(c->request.data, "HEAD", 4) == 0 || (ranged && last == 0))
                return PROXY_CHECKS;
        return ranged && first == 0 ? PROXY_OPENINGS : PROXY_BLOCKS;
}

static bool has_byte(const struct proxy_asked *asked, uint64_t byte)
{
        return asked->first <= byte && byte <= asked->last;
}

static bool applies(const struct proxy_rule *r, unsigned number)
{
        unsigned count = r->count > 0 ? r->count : 1;
        if (r->nth > 0)
                return number >= r->nth && number < r->nth + count;
        return r->every == 0 || number % r->every == 0;
}

static void note_authorization(struct conn *c)
{
        static const char name[] = "\r\nAuthorization: ";
        const char *at = find_header(&c->request, name);
        struct proxy *p = c->proxy;
        p->last_authorization[0] = '\0';
        if (at != NULL)
                snprintf(p->last_authorization, sizeof(p->last_authorization), "%.*s",
                         (int)strcspn(at + strlen(name), "\r"), at + strlen(name));
}

static void choose_rule(struct conn *c)
{
        struct proxy *p = c->proxy;
        struct proxy_asked asked;
        enum proxy_what what = what_of(c, &asked);
        c->rule = (struct proxy_rule){.fault = PROXY_NONE};
        pthread_mutex_lock(&p->mutex);
        if (what == PROXY_BLOCKS && p->seen[what] < PROXY_ASKED)
                p->asked[p->seen[what]] = asked;
        p->seen[what]++;
        p->seen[PROXY_ALL]++;
        note_authorization(c);
        for (unsigned i = 0; i < p->n_rules; i++) {
                struct proxy_rule *r = &p->rules[i];
                unsigned number = p->seen[r->what];
                if (r->what != what && r->what != PROXY_ALL)
                        continue;
                if (r->byte > 0 && !has_byte(&asked, r->byte))
                        continue;
                if (r->byte > 0)
                        number = ++r->matched;
                if (!applies(r, number))
                        continue;
                c->rule = *r;
                p->faults++;
                break;
        }
        pthread_mutex_unlock(&p->mutex);
}

/* ---- holding ---- */

static void note_held(struct conn *c)
{
        static const char *const whats[] = {" range", " first", " check"};
        struct proxy *p = c->proxy;
        char method[8], path[120];
        struct proxy_asked asked;
        enum proxy_what what = what_of(c, &asked);
        bool ranged = asked.last != UINT64_MAX;
        if (p->n_held == PROXY_HELD || sscanf(c->request.data, "%7s %119[^? ]", method, path) != 2)
                die("the proxy cannot hold: %.200s", c->request.data);
        size_t whole = strcspn(c->request.data + strlen(method) + 1, " ");
        snprintf(p->held[p->n_held++], sizeof(p->held[0]), "%s %s%s%s", method, path,
                 whole > strlen(path) ? "?list" : "", ranged ? whats[what] : "");
}

static void hold(struct conn *c)
{
        struct proxy *p = c->proxy;
        c->next_held = p->loop->held;
        p->loop->held = c;
        pthread_mutex_lock(&p->mutex);
        note_held(c);
        pthread_mutex_unlock(&p->mutex);
}

static void answer(struct conn *c);

static void on_release(uv_async_t *async)
{
        struct proxy_loop *own = async->data;
        struct conn *c = own->held;
        own->held = NULL;
        for (struct conn *next; c != NULL; c = next) {
                next = c->next_held;
                if (!c->closing)
                        answer(c);
        }
}

/* ---- answering ---- */

static void read_requests(struct conn *c);

static void on_answered(uv_write_t *write, int status)
{
        struct conn *c = write->data;
        if (c->closing)
                return;
        if (status < 0 || c->rule.fault == PROXY_SHORT) {
                conn_close(c);
        } else if (c->rule.fault == PROXY_RESET) {
                conn_reset(c);
        } else if (c->sent < c->limit) {
                return; /* the timer goes on */
        } else if (c->rule.fault != PROXY_STALL) {
                c->request.n = c->answer.n = 0;
                read_requests(c);
        }
}

static void send_some(struct conn *c, size_t n)
{
        uv_buf_t buf = uv_buf_init(c->answer.data + c->sent, (unsigned)n);
        c->sent += n;
        c->answering.data = c;
        if (uv_write(&c->answering, (uv_stream_t *)&c->client, &buf, 1, on_answered) != 0)
                conn_close(c);
}

static void on_drip(uv_timer_t *timer)
{
        struct conn *c = timer->data;
        bool grows = c->rule.fault == PROXY_WINDOW;
        uint64_t most = grows && c->window > 0 ? c->window : c->rule.bytes;
        size_t left = c->limit - c->sent, n = most < left ? (size_t)most : left;
        if (grows)
                c->window = most + n;
        if (n == left)
                uv_timer_stop(timer);
        send_some(c, n);
}

static void replace_answer(struct conn *c, const char *text)
{
        c->answer.n = 0;
        bytes_add(&c->answer, text, strlen(text));
        c->head = c->answer.n;
}

static void answer_status(struct conn *c, int status, const char *header, const char *body)
{
        char *text = NULL;
        if (asprintf(&text, "HTTP/1.1 %d %s\r\nContent-Length: %zu\r\n%s%s\r\n%s", status,
                     status == 503 ? "Slow Down" : "Said So", strlen(body), header, header[0] != '\0' ? "\r\n" : "",
                     body) < 0)
                die("no memory");
        replace_answer(c, text);
        free(text);
}

/* Some other text of the same length in a header's value. */
static void scramble(struct conn *c, const char *name)
{
        char *at = (char *)(uintptr_t)find_header(&c->answer, name);
        if (at == NULL)
                return;
        at += strlen(name);
        size_t digit = strcspn(at, "0123456789");
        at[digit] = at[digit] == '9' ? '8' : '9';
}

static void drop_header(struct conn *c, const char *name)
{
        char *at = (char *)(uintptr_t)find_header(&c->answer, name);
        if (at != NULL)
                at[2] = 'X'; /* "\r\nE..." */
}

static void misbehave(struct conn *c)
{
        const struct proxy_rule *r = &c->rule;
        char header[1024];
        switch (r->fault) {
        case PROXY_STATUS:
                answer_status(c, r->status, r->header ?: "", r->text ?: "");
                break;
        case PROXY_REDIRECT:
                snprintf(header, sizeof(header), "Location: %s", r->text);
                answer_status(c, 302, header, "elsewhere");
                break;
        case PROXY_WRONG_RANGE:
                scramble(c, "\r\nContent-Range: bytes ");
                break;
        case PROXY_REPLACED:
                scramble(c, "\r\nETag: \"");
                break;
        case PROXY_SHORT:
                if (r->text != NULL)
                        drop_header(c, r->text);
                break;
        case PROXY_DROP:
                drop_header(c, r->text);
                break;
        case PROXY_CORRUPT:
                if (c->head + r->bytes < c->answer.n)
                        c->answer.data[c->head + r->bytes] ^= 0x20;
                break;
        default:
                break;
        }
        c->limit = c->answer.n;
        bool cut = r->fault == PROXY_RESET || r->fault == PROXY_SHORT || r->fault == PROXY_STALL;
        if (cut && c->head + r->bytes < c->limit)
                c->limit = c->head + (size_t)r->bytes;
}

static void answer(struct conn *c)
{
        c->sent = 0;
        misbehave(c);
        if (c->rule.fault == PROXY_DRIP)
                uv_timer_start(&c->timer, on_drip, 0, DRIP_MS);
        else if (c->rule.fault == PROXY_WINDOW)
                uv_timer_start(&c->timer, on_drip, c->rule.ms, c->rule.ms);
        else
                send_some(c, c->limit);
}

static void on_waited(uv_timer_t *timer)
{
        answer(timer->data);
}

static void answer_or_wait(struct conn *c)
{
        const char *end = c->answer.data != NULL ? memmem(c->answer.data, c->answer.n, "\r\n\r\n", 4) : NULL;
        c->head = end != NULL ? (size_t)(end + 4 - c->answer.data) : c->answer.n;
        /* The connection to the server ends with its answer; the client's does not. */
        if (find_header(&c->answer, "\r\nContent-Length: ") != NULL)
                drop_header(c, "\r\nConnection: close");
        if (c->rule.fault == PROXY_LATENCY)
                uv_timer_start(&c->timer, on_waited, c->rule.ms, 0);
        else if (c->rule.fault == PROXY_HOLD)
                hold(c);
        else
                answer(c);
}

/* ---- the server ---- */

static void on_alloc(uv_handle_t *handle, size_t size, uv_buf_t *buf)
{
        (void)handle;
        *buf = uv_buf_init(must_alloc(size), (unsigned)size);
}

static void on_server_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        struct conn *c = stream->data;
        if (n > 0)
                bytes_add(&c->answer, buf->base, (size_t)n);
        free(buf->base);
        if (n >= 0 || c->closing)
                return;
        close_server(c);
        answer_or_wait(c);
}

static void on_asked(uv_write_t *write, int status)
{
        struct conn *c = write->data;
        if (status < 0)
                conn_close(c);
}

static void on_connected(uv_connect_t *connect, int status)
{
        struct conn *c = connect->data;
        if (c->closing)
                return;
        if (status < 0) {
                conn_close(c);
                return;
        }
        uv_buf_t buf = uv_buf_init(c->request.data, (unsigned)c->request.n);
        c->asking.data = c;
        uv_write(&c->asking, (uv_stream_t *)&c->server, &buf, 1, on_asked);
        uv_read_start((uv_stream_t *)&c->server, on_alloc, on_server_read);
}

/* "Connection: close", so that the answer ends with the connection; and no Range where the rule says so. */
static void rewrite_request(struct conn *c)
{
        char *at = c->rule.fault == PROXY_NO_RANGE ? (char *)(uintptr_t)find_header(&c->request, "\r\nRange: ") : NULL;
        if (at != NULL)
                memcpy(at, "\r\nX-Ask: ", 9);
        struct bytes changed = {0};
        size_t line = strcspn(c->request.data, "\r");
        bytes_add(&changed, c->request.data, line);
        bytes_add(&changed, "\r\nConnection: close", 19);
        bytes_add(&changed, c->request.data + line, c->request.n - line);
        free(c->request.data);
        c->request = changed;
}

static void ask_server(struct conn *c)
{
        struct sockaddr_in to;
        rewrite_request(c);
        uv_ip4_addr("127.0.0.1", (int)c->proxy->upstream, &to);
        uv_tcp_init(c->client.loop, &c->server);
        c->server.data = c;
        c->server_open = true;
        c->handles++;
        c->connecting.data = c;
        if (uv_tcp_connect(&c->connecting, &c->server, (const struct sockaddr *)&to, on_connected) != 0)
                conn_close(c);
}

/* ---- the client ---- */

static size_t body_length(const struct conn *c)
{
        const char *at = find_header(&c->request, "\r\nContent-Length: ");
        return at != NULL ? (size_t)strtoul(at + strlen("\r\nContent-Length: "), NULL, 10) : 0;
}

static void on_client_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        struct conn *c = stream->data;
        if (n > 0)
                bytes_add(&c->request, buf->base, (size_t)n);
        free(buf->base);
        if (n < 0 || c->request.n > REQUEST_MAX) {
                conn_close(c);
                return;
        }
        const char *end = c->request.n > 0 ? strstr(c->request.data, "\r\n\r\n") : NULL;
        if (end == NULL || c->request.n < (size_t)(end + 4 - c->request.data) + body_length(c))
                return;
        uv_read_stop(stream);
        choose_rule(c);
        if (c->rule.fault == PROXY_STATUS || c->rule.fault == PROXY_REDIRECT)
                answer(c);
        else
                ask_server(c);
}

static void read_requests(struct conn *c)
{
        uv_read_start((uv_stream_t *)&c->client, on_alloc, on_client_read);
}

static void on_accept(uv_stream_t *listener, int status)
{
        struct proxy_loop *own = listener->data;
        struct proxy *p = own->proxy;
        if (status < 0)
                return;
        struct conn *c = must_alloc(sizeof(*c));
        *c = (struct conn){.proxy = p, .handles = 2};
        uv_tcp_init(listener->loop, &c->client);
        uv_timer_init(listener->loop, &c->timer);
        c->client.data = c->timer.data = c;
        pthread_mutex_lock(&p->mutex);
        p->accepted++;
        if (++p->open > p->most_open)
                p->most_open = p->open;
        pthread_mutex_unlock(&p->mutex);
        if (uv_accept(listener, (uv_stream_t *)&c->client) != 0)
                conn_close(c);
        else
                read_requests(c);
}

/* ---- its life ---- */

static void close_one(uv_handle_t *handle, void *arg)
{
        struct proxy_loop *own = arg;
        if (handle == (uv_handle_t *)&own->listener || handle == (uv_handle_t *)&own->stop ||
            handle == (uv_handle_t *)&own->release || handle == (uv_handle_t *)&own->cut)
                uv_close(handle, NULL);
        else if (!uv_is_closing(handle))
                conn_close(handle->data);
}

static void reset_one(uv_handle_t *handle, void *arg)
{
        (void)arg;
        if (handle->type == UV_TIMER && !uv_is_closing(handle)) /* one of each connection */
                conn_reset(handle->data);
}

static void on_cut(uv_async_t *async)
{
        uv_walk(async->loop, reset_one, NULL);
}

static void on_stop(uv_async_t *async)
{
        uv_walk(async->loop, close_one, async->data);
}

static void *proxy_main(void *arg)
{
        struct proxy_loop *own = arg;
        uv_run(&own->loop, UV_RUN_DEFAULT);
        return NULL;
}

void proxy_start(struct proxy *p, unsigned upstream)
{
        struct proxy_loop *own = must_alloc(sizeof(*own));
        struct sockaddr_in at;
        int len = sizeof(at);
        *p = (struct proxy){.upstream = upstream, .loop = own};
        pthread_mutex_init(&p->mutex, NULL);
        own->proxy = p;
        uv_loop_init(&own->loop);
        uv_tcp_init(&own->loop, &own->listener);
        uv_async_init(&own->loop, &own->stop, on_stop);
        uv_async_init(&own->loop, &own->release, on_release);
        uv_async_init(&own->loop, &own->cut, on_cut);
        own->listener.data = own->stop.data = own->release.data = own;
        uv_ip4_addr("127.0.0.1", 0, &at);
        if (uv_tcp_bind(&own->listener, (const struct sockaddr *)&at, 0) != 0 ||
            uv_listen((uv_stream_t *)&own->listener, 128, on_accept) != 0)
                die("the proxy cannot listen");
        uv_tcp_getsockname(&own->listener, (struct sockaddr *)&at, &len);
        p->port = ntohs(at.sin_port);
        if (pthread_create(&p->thread, NULL, proxy_main, own) != 0)
                die("the proxy has no thread");
}

void proxy_stop(struct proxy *p)
{
        uv_async_send(&p->loop->stop);
        pthread_join(p->thread, NULL);
        uv_loop_close(&p->loop->loop);
        free(p->loop);
        p->loop = NULL;
}

void proxy_rule(struct proxy *p, const struct proxy_rule *rule)
{
        pthread_mutex_lock(&p->mutex);
        if (p->n_rules == PROXY_RULES)
                die("too many rules");
        p->rules[p->n_rules++] = *rule;
        pthread_mutex_unlock(&p->mutex);
}

void proxy_clear(struct proxy *p)
{
        pthread_mutex_lock(&p->mutex);
        p->n_rules = p->faults = p->accepted = 0;
        memset(p->seen, 0, sizeof(p->seen));
        pthread_mutex_unlock(&p->mutex);
}

unsigned proxy_asked_for(struct proxy *p, uint64_t byte)
{
        unsigned n = 0;
        pthread_mutex_lock(&p->mutex);
        for (unsigned i = 0; i < p->seen[PROXY_BLOCKS] && i < PROXY_ASKED; i++)
                n += has_byte(&p->asked[i], byte);
        pthread_mutex_unlock(&p->mutex);
        return n;
}

unsigned proxy_seen(struct proxy *p, enum proxy_what what)
{
        pthread_mutex_lock(&p->mutex);
        unsigned n = p->seen[what];
        pthread_mutex_unlock(&p->mutex);
        return n;
}

unsigned proxy_faults(struct proxy *p)
{
        pthread_mutex_lock(&p->mutex);
        unsigned n = p->faults;
        pthread_mutex_unlock(&p->mutex);
        return n;
}

unsigned proxy_accepted(struct proxy *p)
{
        pthread_mutex_lock(&p->mutex);
        unsigned n = p->accepted;
        pthread_mutex_unlock(&p->mutex);
        return n;
}

static int compare_held(const void *a, const void *b)
{
        return strcmp(a, b);
}

char *proxy_held(struct proxy *p)
{
        char *text = format_text("%s", "");
        pthread_mutex_lock(&p->mutex);
        qsort(p->held, p->n_held, sizeof(p->held[0]), compare_held);
        for (unsigned i = 0, n; i < p->n_held; i += n) {
                for (n = 1; i + n < p->n_held && strcmp(p->held[i], p->held[i + n]) == 0;)
                        n++;
                text = format_text("%s%s%s%s", text, i > 0 ? "\n" : "", p->held[i],
                                   n > 1 ? format_text(" x%u", n) : "");
        }
        pthread_mutex_unlock(&p->mutex);
        return text;
}

void proxy_release(struct proxy *p)
{
        pthread_mutex_lock(&p->mutex);
        p->n_held = 0;
        pthread_mutex_unlock(&p->mutex);
        uv_async_send(&p->loop->release);
}

void proxy_cut(struct proxy *p)
{
        uv_async_send(&p->loop->cut);
}

const char *proxy_url(const struct proxy *p, const char *path)
{
        return format_text("http://127.0.0.1:%u%s", p->port, path);
}
