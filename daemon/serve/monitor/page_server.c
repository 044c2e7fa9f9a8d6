/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/monitor/page_server.h"

#include "daemon/base/log/log.h"
#include "daemon/base/sys/listen.h"
#include "daemon/base/thread/threads.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/eventfd.h>

#define BACKLOG 128
#define CONNECTIONS 16                  /* of a listener */
#define ACCEPTED_AT_ONCE 4              /* before the requests of those that are accepted are read */
#define LIFE_NS (5 * SECOND)            /* of a connection */
#define ACCEPT_PAUSE_NS (100 * MS)      /* without a descriptor for another connection */
#define DRAINED_MAX ((size_t)64 * 1024) /* bytes that a client may send after its request */
#define TICK_MS 1000

enum page_state { PAGE_FREE, PAGE_HANDSHAKE, PAGE_READING, PAGE_ASKING, PAGE_WRITING, PAGE_DRAINING };

struct connection {
        struct page_listener *of;
        enum page_state state;
        int fd; /* -1: FREE, or ASKING for a client that is closed */
        SSL *tls;
        uint64_t since_ns;
        short events; /* what it waits for */
        char *head;   /* PAGE_HEAD_MAX + 1 bytes */
        size_t n_head;
        struct page_request request; /* parts of the head */
        struct callback ask;
        struct page_answer answer;
        bool answered; /* atomic: by the loop */
        char *out;
        size_t out_size, out_done;
        size_t drained;
};

struct page_listener {
        struct page_server *server;
        struct listener listener;
        struct page_guard *guard;
        bool health_only;
        uint64_t accept_after_ns;
        struct connection connections[CONNECTIONS];
};

struct page_server {
        struct page_server_opts opts;
        struct page_listener listeners[PAGE_LISTENERS_MAX];
        size_t n_listeners;
        pthread_t thread;
        sem_t ended;
        bool started;
        bool stopping; /* atomic */
        int event;     /* an answer is complete, or `stopping` */
};

/* ---- the life of a connection ---- */

static void set_state(struct connection *c, enum page_state next)
{
        static const unsigned allowed[] = {
                [PAGE_FREE] = 1u << PAGE_HANDSHAKE | 1u << PAGE_READING,
                [PAGE_HANDSHAKE] = 1u << PAGE_READING | 1u << PAGE_FREE,
                [PAGE_READING] = 1u << PAGE_ASKING | 1u << PAGE_WRITING | 1u << PAGE_FREE,
                [PAGE_ASKING] = 1u << PAGE_WRITING | 1u << PAGE_FREE,
                [PAGE_WRITING] = 1u << PAGE_DRAINING | 1u << PAGE_FREE,
                [PAGE_DRAINING] = 1u << PAGE_FREE,
        };
        require(allowed[c->state] & 1u << next);
        c->state = next;
}

static void hang_up(struct connection *c)
{
        SSL_free(c->tls);
        c->tls = NULL;
        close_p(&c->fd);
        c->fd = -1;
}

static void connection_close(struct connection *c)
{
        require(c->state != PAGE_ASKING || __atomic_load_n(&c->answered, __ATOMIC_ACQUIRE));
        hang_up(c);
        /* A token is a secret. */
        explicit_bzero(c->head, c->n_head);
        free(c->head);
        free(c->answer.owned);
        free(c->out);
        set_state(c, PAGE_FREE);
        *c = (struct connection){.of = c->of, .fd = -1};
}

/* ---- bytes ---- */

/* Of a call of OpenSSL that has failed: -1, and c->events is what it waits for; 0: the connection is at its end. */
static int tls_wait(struct connection *c, int r)
{
        int why = SSL_get_error(c->tls, r);
        c->events = why == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN;
        if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
                return -1;
        if (c->state == PAGE_HANDSHAKE && why == SSL_ERROR_SSL)
                log_debug("metrics: a TLS handshake has failed: %s", ERR_reason_error_string(ERR_peek_error()) ?: "");
        ERR_clear_error();
        return 0;
}

/* The same of a socket. */
static int plain_wait(struct connection *c, ssize_t r, short events)
{
        c->events = events;
        return r < 0 && (errno == EAGAIN || errno == EINTR) ? -1 : 0;
}

/* Bytes, or as tls_wait(). */
static int receive(struct connection *c, char *to, size_t size)
{
        ERR_clear_error();
        if (c->tls != NULL) {
                int n = SSL_read(c->tls, to, (int)size);
                return n > 0 ? n : tls_wait(c, n);
        }
        ssize_t n = recv(c->fd, to, size, MSG_DONTWAIT);
        return n > 0 ? (int)n : plain_wait(c, n, POLLIN);
}

static int transmit(struct connection *c, const char *from, size_t size)
{
        ERR_clear_error();
        if (c->tls != NULL) {
                int n = SSL_write(c->tls, from, (int)size);
                return n > 0 ? n : tls_wait(c, n);
        }
        ssize_t n = send(c->fd, from, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        return n > 0 ? (int)n : plain_wait(c, n, POLLOUT);
}

/* ---- responses ---- */

static const char *reason_of(unsigned status)
{
        switch (status) {
        case 200:
                return "OK";
        case 400:
                return "Bad Request";
        case 401:
                return "Unauthorized";
        case 404:
                return "Not Found";
        case 405:
                return "Method Not Allowed";
        case 431:
                return "Request Header Fields Too Large";
        default:
                return "Service Unavailable";
        }
}

static const char *more_fields(unsigned status)
{
        return status == 401 ? "WWW-Authenticate: Bearer\r\n" : status == 405 ? "Allow: GET, HEAD\r\n" : "";
}

/* False: no memory, and the connection is closed. */
static bool respond(struct connection *c, const struct page_answer *answer)
{
        size_t size = strlen(answer->text);
        bool body = c->request.method != PAGE_HEAD;
        c->out = format_new("HTTP/1.1 %u %s\r\nContent-Type: %s; charset=utf-8\r\nContent-Length: %zu\r\n"
                            "Connection: close\r\n%s\r\n%s",
                            answer->status, reason_of(answer->status), answer->type ?: "text/plain", size,
                            more_fields(answer->status), body ? answer->text : "");
        if (c->out == NULL) {
                connection_close(c);
                return false;
        }
        c->out_size = strlen(c->out);
        set_state(c, PAGE_WRITING);
        return true;
}

static bool refuse(struct connection *c, unsigned status, const char *text)
{
        return respond(c, &(struct page_answer){.status = status, .text = text});
}

/* On the loop's thread. The connection may be closed meanwhile; its memory stays. */
static void on_ask(struct callback *callback)
{
        struct connection *c = container_of(callback, struct connection, ask);
        struct page_server *server = c->of->server;
        require(c->state == PAGE_ASKING);
        if (load_relaxed(&server->stopping))
                return;
        server->opts.answer(server->opts.context, &c->request, &c->answer);
        require(c->answer.text != NULL);
        __atomic_store_n(&c->answered, true, __ATOMIC_RELEASE);
        eventfd_write(server->event, 1);
}

/* False: it waits for the loop. */
static bool decide(struct connection *c)
{
        const struct page_listener *listener = c->of;
        bool health = page_request_is_health(&c->request);
        if (c->request.method == PAGE_OTHER)
                return refuse(c, 405, "GET and HEAD only\n");
        if (!health && listener->health_only)
                return refuse(c, 404, "/livez, /readyz, /startupz\n");
        if (!health && !page_guard_permits(listener->guard, c->tls, c->request.token))
                return refuse(c, 401, "a client certificate or a bearer token is required\n");
        set_state(c, PAGE_ASKING);
        c->events = 0;
        wake_post(listener->server->opts.wake, &c->ask);
        return false;
}

/* ---- states ---- */

/* Each returns true if the next state may continue at once. */

static bool shake_hands(struct connection *c)
{
        ERR_clear_error();
        int r = SSL_accept(c->tls);
        if (r == 1) {
                set_state(c, PAGE_READING);
                return true;
        }
        if (tls_wait(c, r) == 0)
                connection_close(c);
        return false;
}

static bool read_head(struct connection *c)
{
        int n = receive(c, c->head + c->n_head, PAGE_HEAD_MAX - c->n_head);
        if (n == 0)
                connection_close(c);
        if (n <= 0)
                return false;
        c->n_head += (size_t)n;
        switch (page_request_parse(&c->request, c->head, c->n_head)) {
        case PAGE_COMPLETE:
                return decide(c);
        case PAGE_INVALID:
                return refuse(c, 400, "not a request of HTTP/1.1\n");
        case PAGE_INCOMPLETE:
                break;
        }
        return c->n_head < PAGE_HEAD_MAX || refuse(c, 431, "the request is longer than 16 KiB\n");
}

static bool write_out(struct connection *c)
{
        int n = transmit(c, c->out + c->out_done, c->out_size - c->out_done);
        if (n == 0)
                connection_close(c);
        if (n <= 0)
                return false;
        c->out_done += (size_t)n;
        if (c->out_done < c->out_size)
                return true;
        if (c->tls != NULL)
                SSL_shutdown(c->tls);
        shutdown(c->fd, SHUT_WR);
        set_state(c, PAGE_DRAINING);
        return true;
}

/* A socket that is closed with unread bytes resets the connection, and the client may lose the response. */
static bool drain(struct connection *c)
{
        char bytes[4096];
        ssize_t n = recv(c->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
        if (n > 0)
                c->drained += (size_t)n;
        if (n > 0 && c->drained < DRAINED_MAX)
                return true;
        if (n > 0 || plain_wait(c, n, POLLIN) == 0)
                connection_close(c);
        return false;
}

static void advance(struct connection *c)
{
        static bool (*const steps[])(struct connection *) = {[PAGE_HANDSHAKE] = shake_hands,
                                                             [PAGE_READING] = read_head,
                                                             [PAGE_WRITING] = write_out,
                                                             [PAGE_DRAINING] = drain};
        while (c->state != PAGE_FREE && c->state != PAGE_ASKING && steps[c->state](c))
                ;
}

/* Continues one whose answer is complete. */
static void take_answer(struct connection *c)
{
        if (!__atomic_load_n(&c->answered, __ATOMIC_ACQUIRE))
                return;
        if (c->fd < 0)
                connection_close(c);
        else if (respond(c, &c->answer))
                advance(c);
}

/* ---- connections ---- */

/* Else the loop makes the answers of all, and new clients wait in the socket's queue. */
static bool has_place(const struct page_listener *listener)
{
        for (size_t i = 0; i < CONNECTIONS; i++)
                if (listener->connections[i].state != PAGE_ASKING)
                        return true;
        return false;
}

/* A free one; else the oldest, which is closed. */
static struct connection *make_place(struct page_listener *listener)
{
        struct connection *oldest = NULL;
        for (size_t i = 0; i < CONNECTIONS; i++) {
                struct connection *c = &listener->connections[i];
                if (c->state == PAGE_FREE)
                        return c;
                if (c->state != PAGE_ASKING && (oldest == NULL || c->since_ns < oldest->since_ns))
                        oldest = c;
        }
        require(oldest != NULL); /* has_place() */
        connection_close(oldest);
        return oldest;
}

static void begin_consume_fd(struct page_listener *listener, int fd, uint64_t now)
{
        struct connection *c = make_place(listener);
        char *head = malloc(PAGE_HEAD_MAX + 1);
        bool has_tls = page_guard_has_tls(listener->guard);
        SSL *tls = has_tls && head != NULL ? page_guard_accept(listener->guard, fd) : NULL;
        if (head == NULL || (has_tls && tls == NULL)) {
                free(head);
                close(fd);
                return;
        }
        *c = (struct connection){.of = listener,
                                 .fd = fd,
                                 .tls = tls,
                                 .since_ns = now,
                                 .events = POLLIN,
                                 .head = head,
                                 .ask.run = on_ask};
        set_state(c, has_tls ? PAGE_HANDSHAKE : PAGE_READING);
        advance(c);
}

static void accept_some(struct page_listener *listener, uint64_t now)
{
        for (int i = 0; i < ACCEPTED_AT_ONCE && has_place(listener); i++) {
                int fd = accept4(listener->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                if (fd < 0) {
                        bool pause = errno != EAGAIN && errno != ECONNABORTED && errno != EINTR;
                        listener->accept_after_ns = pause ? now + ACCEPT_PAUSE_NS : 0;
                        return;
                }
                page_guard_refresh(listener->guard);
                begin_consume_fd(listener, fd, now);
        }
}

/* ---- the thread ---- */

#define POLLED (1 + PAGE_LISTENERS_MAX * (1 + CONNECTIONS))

/* What is polled is at a fixed place: -1, which poll() ignores, where there is nothing. */
static int prepare(struct page_server *server, struct pollfd polled[POLLED], uint64_t now)
{
        int wait = -1;
        *polled++ = (struct pollfd){server->event, POLLIN, 0};
        for (size_t i = 0; i < server->n_listeners; i++) {
                struct page_listener *listener = &server->listeners[i];
                bool pauses = listener->accept_after_ns > now;
                if (pauses)
                        wait = (int)(ACCEPT_PAUSE_NS / MS);
                *polled++ = (struct pollfd){pauses || !has_place(listener) ? -1 : listener->listener.fd, POLLIN, 0};
                for (size_t k = 0; k < CONNECTIONS; k++) {
                        const struct connection *c = &listener->connections[k];
                        bool waits = c->state != PAGE_FREE && c->state != PAGE_ASKING;
                        if (c->state != PAGE_FREE && wait < 0)
                                wait = TICK_MS;
                        *polled++ = (struct pollfd){waits ? c->fd : -1, c->events, 0};
                }
        }
        return wait;
}

static void serve_connection(struct connection *c, bool due, uint64_t now)
{
        if (c->state == PAGE_FREE)
                return;
        if (now - c->since_ns > LIFE_NS) {
                if (c->state == PAGE_ASKING)
                        hang_up(c);
                else
                        connection_close(c);
        }
        if (c->state == PAGE_ASKING)
                take_answer(c);
        else if (due)
                advance(c);
}

static void serve(struct page_server *server, const struct pollfd polled[POLLED], uint64_t now)
{
        polled++;
        for (size_t i = 0; i < server->n_listeners; i++) {
                struct page_listener *listener = &server->listeners[i];
                bool due = polled++->revents != 0;
                for (size_t k = 0; k < CONNECTIONS; k++)
                        serve_connection(&listener->connections[k], polled++->revents != 0, now);
                if (due)
                        accept_some(listener, now);
        }
}

static void *thread_main(void *arg)
{
        struct page_server *server = arg;
        struct pollfd polled[POLLED];
        thread_begin("pages");
        while (!load_relaxed(&server->stopping)) {
                int wait = prepare(server, polled, now_ns());
                eventfd_t n;
                if (poll(polled, 1 + server->n_listeners * (1 + CONNECTIONS), wait) < 0)
                        continue;
                eventfd_read(server->event, &n);
                serve(server, polled, now_ns());
        }
        sem_post(&server->ended);
        return NULL;
}

/* ---- life ---- */

int page_server_new(struct page_server **out, const struct page_server_opts *opts, struct error *error)
{
        struct page_server *server = calloc(1, sizeof(*server));
        if (server == NULL)
                return error_no_memory(error);
        server->opts = *opts;
        sem_init(&server->ended, 0, 0);
        server->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (server->event < 0) {
                int why = errno;
                free(server);
                return error_errno(error, STREAMER_EOS, why, "eventfd");
        }
        *out = server;
        return 0;
}

int page_server_listen(struct page_server *server, const struct page_listener_opts *opts, struct error *error)
{
        require(server->n_listeners < PAGE_LISTENERS_MAX && !server->started);
        struct page_listener *listener = &server->listeners[server->n_listeners++];
        struct listen_address where;
        struct error cause = {0};
        char text[LISTEN_TEXT];
        *listener = (struct page_listener){
                .server = server, .listener.fd = -1, .guard = opts->guard, .health_only = opts->health_only};
        for (size_t i = 0; i < CONNECTIONS; i++)
                listener->connections[i] = (struct connection){.of = listener, .fd = -1};
        if (listen_parse(opts->address, &where, &cause) < 0)
                return error_set(error, STREAMER_EINVAL, "%s: %s", opts->setting, cause.text);
        if (listener_open(&listener->listener, &where, BACKLOG, &cause) < 0)
                return error_set(error, cause.code == STREAMER_EBUSY ? STREAMER_EFAILED : cause.code, "%s: %s (%s)",
                                 opts->setting, cause.text, opts->address);
        listen_text(listener->listener.fd, page_guard_has_tls(opts->guard) ? "https" : "http", text);
        log_info("%s: served at %s", opts->setting, text);
        return 0;
}

int page_server_start(struct page_server *server, struct error *error)
{
        require(!server->started);
        int r = thread_start(&server->thread, NULL, thread_main, server);
        server->started = r == 0;
        return r == 0 ? 0 : error_errno(error, STREAMER_EOS, r, "pthread_create");
}

bool page_server_stop(struct page_server *server, uint64_t deadline_ns)
{
        if (server == NULL)
                return true;
        store_relaxed(&server->stopping, true);
        eventfd_write(server->event, 1);
        struct timespec deadline = timespec_of(deadline_ns);
        if (server->started && sem_clockwait(&server->ended, CLOCK_MONOTONIC, &deadline) != 0)
                return false;
        if (server->started)
                pthread_join(server->thread, NULL);
        server->started = false;
        for (size_t i = 0; i < server->n_listeners; i++)
                listener_close(&server->listeners[i].listener);
        return true;
}

struct page_server *page_server_free(struct page_server *server)
{
        if (server == NULL)
                return NULL;
        require(!server->started);
        for (size_t i = 0; i < server->n_listeners; i++) {
                struct page_listener *listener = &server->listeners[i];
                for (size_t k = 0; k < CONNECTIONS; k++) {
                        struct connection *c = &listener->connections[k];
                        __atomic_store_n(&c->answered, true, __ATOMIC_RELAXED);
                        if (c->state != PAGE_FREE)
                                connection_close(c);
                }
                listener_deinit(&listener->listener);
                page_guard_free(listener->guard);
        }
        close_p(&server->event);
        sem_destroy(&server->ended);
        free(server);
        return NULL;
}
