/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection of the proxy. Each request uses a new connection to the server, and the answer is forwarded one buffer
 * at a time: the next is read when the client has accepted the last.
 *
 *   reading the request > asking the server > its head > body ... > reading the next one
 *                \_ answered here (a status) ___________/        \_ cut: reset, closed, or left as it is
 */
#include "tests/lib/proxy_conn.h"

#include "tests/lib/base.h"

#define REQUEST_MAX 65536

void bytes_add(struct bytes *b, const char *data, size_t n)
{
        while (b->n + n + 1 > b->cap) {
                b->cap = b->cap > 0 ? b->cap * 2 : 65536;
                b->data = must_realloc(b->data, b->cap);
        }
        memcpy(b->data + b->n, data, n);
        b->n += n;
        b->data[b->n] = '\0';
}

static void set_asks(struct conn *c, bool asks)
{
        struct proxy *p = c->proxy;
        if (c->asks == asks)
                return;
        c->asks = asks;
        pthread_mutex_lock(&p->mutex);
        p->asking[c->what] += asks ? 1u : -1u;
        if (p->asking[c->what] > p->most_asking[c->what])
                p->most_asking[c->what] = p->asking[c->what];
        pthread_mutex_unlock(&p->mutex);
}

/* ---- closing ---- */

static void read_request(struct conn *c);

static void on_closed(uv_handle_t *handle)
{
        struct conn *c = handle->data;
        if (--c->handles > 0)
                return;
        pace_forget(c);
        set_asks(c, false);
        pthread_mutex_lock(&c->proxy->mutex);
        c->proxy->open--;
        pthread_mutex_unlock(&c->proxy->mutex);
        free(c->request.data);
        free(c->out.data);
        free(c);
}

static void server_closed(uv_handle_t *handle)
{
        struct conn *c = handle->data;
        c->server_open = false;
        if (c->closing) {
                on_closed(handle);
                return;
        }
        c->handles--;
        if (c->again)
                read_request(c);
}

static void close_server(struct conn *c)
{
        if (c->server_open && !uv_is_closing((uv_handle_t *)&c->server))
                uv_close((uv_handle_t *)&c->server, server_closed);
}

void proxy_conn_close(struct conn *c)
{
        if (c->closing)
                return;
        c->closing = true;
        close_server(c);
        uv_close((uv_handle_t *)&c->timer, on_closed);
        if (!uv_is_closing((uv_handle_t *)&c->client))
                uv_close((uv_handle_t *)&c->client, on_closed);
}

void proxy_conn_reset(struct conn *c)
{
        if (c->closing)
                return;
        c->closing = true;
        close_server(c);
        uv_close((uv_handle_t *)&c->timer, on_closed);
        uv_tcp_close_reset(&c->client, on_closed);
}

/* ---- answering ---- */

static void read_answer(struct conn *c);

static void answer_over(struct conn *c)
{
        pace_end(c);
        set_asks(c, false);
        close_server(c);
        if (c->rule.fault == PROXY_STALL)
                return;
        if (c->rule.fault == PROXY_RESET)
                proxy_conn_reset(c);
        else if (c->rule.fault == PROXY_SHORT || (c->body != c->length && !c->bodiless))
                proxy_conn_close(c);
        else if (c->server_open)
                c->again = true; /* the next one takes the same handle */
        else
                read_request(c);
}

static void on_written(uv_write_t *write, int status)
{
        struct conn *c = write->data;
        c->writing = false;
        if (c->closing)
                return;
        if (status < 0)
                proxy_conn_close(c);
        else
                proxy_conn_pump(c);
}

static void send_available(struct conn *c, size_t n)
{
        uv_buf_t buf = uv_buf_init(c->out.data + c->sent, (unsigned)n);
        c->sent += n;
        c->writing = true;
        c->answering.data = c;
        pace_sent(c, n);
        /* Before the last byte is sent: the client may send its next request as soon as it has it. */
        if (c->body == c->length && c->sent == c->out.n)
                set_asks(c, false);
        if (uv_write(&c->answering, (uv_stream_t *)&c->client, &buf, 1, on_written) != 0)
                proxy_conn_close(c);
}

void proxy_conn_pump(struct conn *c)
{
        if (c->closing || c->writing || c->waits)
                return;
        size_t left = c->out.n - c->sent, n = pace_allows(c, left);
        if (n > 0)
                send_available(c, n);
        else if (left > 0)
                return; /* until credit is available */
        else if (c->ended || c->body == c->limit)
                answer_over(c);
        else
                read_answer(c);
}

/* ---- the server ---- */

static void on_writable(uv_handle_t *handle, size_t size, uv_buf_t *buf)
{
        struct conn *c = handle->data;
        (void)size;
        if (c->out.data == NULL)
                c->out = (struct bytes){.data = must_alloc(PROXY_AHEAD + 1), .cap = PROXY_AHEAD + 1};
        *buf = uv_buf_init(c->out.data + c->out.n, (unsigned)(c->out.cap - 1 - c->out.n));
}

static void on_head_read(struct conn *c, size_t head)
{
        const char *length = find_header(&c->out, "\r\nContent-Length: ");
        c->head = head;
        c->bodiless = strncmp(c->request.data, "HEAD", 4) == 0;
        if (length != NULL) {
                char *connection = (char *)(uintptr_t)find_header(&c->out, "\r\nConnection: close");
                c->length = strtoull(length + strlen("\r\nContent-Length: "), NULL, 10);
                /* The connection to the server ends with the answer; that to the client stays open. */
                if (connection != NULL)
                        connection[2] = 'X';
        }
        rule_for_head(c);
        rule_for_body(c, c->out.n - head);
        pace_begin(c);
        proxy_conn_pump(c);
}

static void on_answer_read(struct conn *c, size_t n)
{
        c->out.n += n;
        c->out.data[c->out.n] = '\0';
        if (c->head > 0) {
                rule_for_body(c, n);
                proxy_conn_pump(c);
                return;
        }
        const char *end = strstr(c->out.data, "\r\n\r\n");
        if (end != NULL)
                on_head_read(c, (size_t)(end + 4 - c->out.data));
        else if (c->out.n == PROXY_AHEAD)
                proxy_conn_close(c);
        else
                read_answer(c);
}

static void on_server_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        struct conn *c = stream->data;
        (void)buf;
        if (n == 0 || c->closing)
                return;
        uv_read_stop(stream);
        if (n > 0) {
                on_answer_read(c, (size_t)n);
                return;
        }
        c->ended = true;
        if (c->head == 0)
                proxy_conn_close(c);
        else
                proxy_conn_pump(c);
}

static void read_answer(struct conn *c)
{
        if (c->sent == c->out.n && c->head > 0)
                c->sent = c->out.n = 0;
        uv_read_start((uv_stream_t *)&c->server, on_writable, on_server_read);
}

static void on_asked(uv_write_t *write, int status)
{
        struct conn *c = write->data;
        if (status < 0)
                proxy_conn_close(c);
}

static void on_connected(uv_connect_t *connect, int status)
{
        struct conn *c = connect->data;
        if (c->closing)
                return;
        if (status < 0) {
                proxy_conn_close(c);
                return;
        }
        uv_buf_t buf = uv_buf_init(c->request.data, (unsigned)c->request.n);
        c->asking.data = c;
        uv_write(&c->asking, (uv_stream_t *)&c->server, &buf, 1, on_asked);
        read_answer(c);
}

static void ask_server(struct conn *c)
{
        struct sockaddr_in to;
        rule_for_request(c);
        set_asks(c, !c->repeats);
        uv_ip4_addr("127.0.0.1", (int)c->proxy->upstream, &to);
        uv_tcp_init(c->client.loop, &c->server);
        c->server.data = c;
        c->server_open = true;
        c->handles++;
        c->connecting.data = c;
        if (uv_tcp_connect(&c->connecting, &c->server, (const struct sockaddr *)&to, on_connected) != 0)
                proxy_conn_close(c);
}

/* ---- the client ---- */

static void on_alloc(uv_handle_t *handle, size_t size, uv_buf_t *buf)
{
        (void)handle;
        *buf = uv_buf_init(must_alloc(size), (unsigned)size);
}

static size_t body_length(const struct conn *c)
{
        const char *at = find_header(&c->request, "\r\nContent-Length: ");
        return at != NULL ? (size_t)strtoul(at + strlen("\r\nContent-Length: "), NULL, 10) : 0;
}

static void on_request_read(struct conn *c)
{
        c->out.n = c->sent = c->head = 0;
        c->body = 0;
        c->length = c->limit = UINT64_MAX;
        c->ended = c->bodiless = c->waits = false;
        rule_choose(c);
        if (rule_answers(c))
                proxy_conn_pump(c);
        else
                ask_server(c);
}

static void on_client_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
        struct conn *c = stream->data;
        if (n > 0)
                bytes_add(&c->request, buf->base, (size_t)n);
        free(buf->base);
        if (n < 0 || c->request.n > REQUEST_MAX) {
                proxy_conn_close(c);
                return;
        }
        const char *end = c->request.n > 0 ? strstr(c->request.data, "\r\n\r\n") : NULL;
        if (end == NULL || c->request.n < (size_t)(end + 4 - c->request.data) + body_length(c))
                return;
        uv_read_stop(stream);
        on_request_read(c);
}

static void read_request(struct conn *c)
{
        c->again = false;
        c->request.n = 0;
        uv_read_start((uv_stream_t *)&c->client, on_alloc, on_client_read);
}

void proxy_conn_accept(struct proxy_loop *own)
{
        struct proxy *p = own->proxy;
        struct conn *c = must_alloc(sizeof(*c));
        *c = (struct conn){.proxy = p, .handles = 2};
        uv_tcp_init(&own->loop, &c->client);
        uv_timer_init(&own->loop, &c->timer);
        c->client.data = c->timer.data = c;
        pthread_mutex_lock(&p->mutex);
        p->accepted++;
        if (++p->open > p->most_open)
                p->most_open = p->open;
        pthread_mutex_unlock(&p->mutex);
        if (uv_accept((uv_stream_t *)&own->listener, (uv_stream_t *)&c->client) != 0)
                proxy_conn_close(c);
        else
                read_request(c);
}
