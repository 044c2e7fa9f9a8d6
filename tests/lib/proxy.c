/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread for each connection, and a new connection to the server for each of its requests:
 *
 *   request, its rule > the server's head, changed > [delayed, held] > body, at its pace ... > the next request
 *                  \_ answered here (a status) ____________________________/   \_ cut: reset, closed, or left as it is
 *
 * An answer is forwarded one buffer at a time, when the client has accepted the last: a delayed one continues at the
 * server's speed, as over a long line. A rule modifies headers and bytes in place: only a cut changes a length.
 */
#include "tests/lib/proxy.h"

#include "tests/lib/base.h"
#include "tests/lib/ports.h"

#include <sys/socket.h>

#define BUFFER (256u * 1024)
#define REQUEST_MAX 65536u
#define DRIP_MS 10
#define MS UINT64_C(1000000)

struct buffer {
        char data[BUFFER + 1]; /* NUL-terminated */
        size_t n;
};

struct conn {
        struct conn *next;
        struct proxy *proxy;
        int client, server; /* -1: none */
        bool ended, reset;  /* by proxy_stop() or proxy_cut(), which resets it; under the mutex */
        struct buffer request, out;
        struct proxy_rule rule;
        enum proxy_what what;
        struct proxy_asked asked;
        bool asks;         /* a request to the server is in progress and counted */
        unsigned releases; /* of the proxy, when the request was received */
        uint64_t body;     /* bytes of it received */
        uint64_t length;   /* Content-Length; UINT64_MAX: none */
        uint64_t limit;    /* body bytes before the rule's cut; UINT64_MAX: none */
        uint64_t tick_ns;  /* the credit is renewed; 0: bytes are forwarded at once */
        uint64_t credit;   /* bytes that may be sent before */
        uint64_t window;   /* of all answers: grows by the bytes that were sent */
};

/* ---- what a rule does ---- */

static const struct {
        enum {
                PASSES_NOTHING,
                PASSES_BYTES,
                PASSES_ALL
        } passes;              /* to the client, which may ask again for the others */
        bool cuts;             /* the body, after `bytes` */
        bool drops;            /* the header `text`, if given */
        const char *scrambles; /* this header's value */
} faults[] = {
        [PROXY_NONE] = {.passes = PASSES_ALL},
        [PROXY_RESET] = {.cuts = true},
        [PROXY_SHORT] = {.passes = PASSES_BYTES, .cuts = true, .drops = true},
        [PROXY_STALL] = {.passes = PASSES_BYTES, .cuts = true},
        [PROXY_WRONG_RANGE] = {.scrambles = "\r\nContent-Range: bytes "},
        [PROXY_CORRUPT] = {.passes = PASSES_ALL},
        [PROXY_DRIP] = {.passes = PASSES_ALL},
        [PROXY_REPLACED] = {.scrambles = "\r\nETag: \""},
        [PROXY_LATENCY] = {.passes = PASSES_ALL},
        [PROXY_DROP] = {.drops = true},
        [PROXY_HOLD] = {.passes = PASSES_ALL},
        [PROXY_WINDOW] = {.passes = PASSES_ALL},
};

/* The value of a header, "\r\nName: "; NULL: there is none. */
static char *find_header(struct buffer *b, const char *name)
{
        char *at = strcasestr(b->data, name), *end = strstr(b->data, "\r\n\r\n");
        return at != NULL && end != NULL && at < end ? at + strlen(name) : NULL;
}

static uint64_t content_length(struct buffer *b, uint64_t otherwise)
{
        const char *length = find_header(b, "\r\nContent-Length: ");
        return length != NULL ? strtoull(length, NULL, 10) : otherwise;
}

/* Another header has the same length. */
static void drop_header(struct buffer *b, const char *name)
{
        char *value = find_header(b, name);
        if (value != NULL)
                value[2 - (ptrdiff_t)strlen(name)] = 'X'; /* "\r\nE..." */
}

static void change_head(struct conn *c)
{
        const struct proxy_rule *r = &c->rule;
        const char *scrambles = faults[r->fault].scrambles;
        char *value = scrambles != NULL ? find_header(&c->out, scrambles) : NULL;
        if (value != NULL) {
                value += strcspn(value, "0123456789");
                *value = *value == '9' ? '8' : '9';
        }
        if (faults[r->fault].drops && r->text != NULL)
                drop_header(&c->out, r->text);
        if (faults[r->fault].cuts)
                c->limit = r->bytes;
        /* The connection to the server ends with the answer; that to the client stays open. */
        if (c->length != UINT64_MAX)
                drop_header(&c->out, "\r\nConnection: close");
}

/* The last n bytes of the buffer are the body's next. */
static void change_body(struct conn *c, size_t n)
{
        if (n > c->limit - c->body) {
                c->out.n -= n - (size_t)(c->limit - c->body);
                n = (size_t)(c->limit - c->body);
        }
        if (c->rule.fault == PROXY_CORRUPT && c->body <= c->rule.bytes && c->rule.bytes < c->body + n)
                c->out.data[c->out.n - n + (size_t)(c->rule.bytes - c->body)] ^= 0x20;
        c->body += n;
}

/* ---- which rule ---- */

static bool has_byte(const struct proxy_asked *asked, uint64_t byte)
{
        return asked->first <= byte && byte <= asked->last;
}

static void classify(struct conn *c)
{
        unsigned long long first = 0, last = 0;
        const char *range = find_header(&c->request, "\r\nRange: bytes=");
        bool ranged = range != NULL && sscanf(range, "%llu-%llu", &first, &last) == 2;
        c->asked = (struct proxy_asked){.first = first, .last = ranged ? last : UINT64_MAX};
        if (strncmp(c->request.data, "HEAD", 4) == 0 || (ranged && last == 0))
                c->what = PROXY_CHECKS;
        else
                c->what = ranged && first == 0 ? PROXY_OPENINGS : PROXY_BLOCKS;
}

static bool applies(struct proxy_rule *r, const struct conn *c)
{
        unsigned count = r->count > 0 ? r->count : 1, number = c->proxy->seen[r->what];
        if ((r->what != c->what && r->what != PROXY_ALL) || (r->byte > 0 && !has_byte(&c->asked, r->byte)))
                return false;
        if (r->byte > 0)
                number = ++r->matched;
        if (r->nth > 0)
                return number >= r->nth && number < r->nth + count;
        return r->every == 0 || number % r->every == 0;
}

static void note_asked(struct conn *c)
{
        struct proxy *p = c->proxy;
        struct proxy_asked *asked = &c->asked;
        unsigned n = p->seen[PROXY_BLOCKS] - 1;
        uint64_t all = asked->last + 1, part = asked->first + c->rule.bytes;
        const char *path = c->request.data + strcspn(c->request.data, " \r");
        for (path += strspn(path, " "); *path != '\0' && strchr(" \r", *path) == NULL; path++)
                asked->path = asked->path * 31 + (unsigned char)*path;
        asked->until = asked->first;
        if (faults[c->rule.fault].passes == PASSES_BYTES)
                asked->until = part < all ? part : all;
        else if (faults[c->rule.fault].passes == PASSES_ALL && (c->rule.fault != PROXY_HOLD || c->rule.status == 0))
                asked->until = all;
        for (unsigned i = 0; asked->last != UINT64_MAX && i < n && i < PROXY_ASKED; i++)
                asked->again |= p->asked[i].path == asked->path && p->asked[i].first <= asked->last &&
                                asked->first < p->asked[i].until;
        if (n < PROXY_ASKED)
                p->asked[n] = *asked;
}

static void choose_rule(struct conn *c)
{
        struct proxy *p = c->proxy;
        const char *authorization = find_header(&c->request, "\r\nAuthorization: ") ?: "";
        classify(c);
        c->rule = (struct proxy_rule){.fault = PROXY_NONE};
        lock_scope(&p->mutex);
        p->seen[c->what]++;
        p->seen[PROXY_ALL]++;
        snprintf(p->last_authorization, sizeof(p->last_authorization), "%.*s", (int)strcspn(authorization, "\r"),
                 authorization);
        for (unsigned i = 0; i < p->n_rules && c->rule.fault == PROXY_NONE; i++)
                if (applies(&p->rules[i], c))
                        c->rule = p->rules[i];
        p->faults += c->rule.fault != PROXY_NONE;
        c->releases = p->releases;
        if (c->what == PROXY_BLOCKS)
                note_asked(c);
}

/* ---- answers ---- */

static void answer_status(struct conn *c, int status, const char *header, const char *body)
{
        c->out.n = (size_t)snprintf(c->out.data, BUFFER, "HTTP/1.1 %d %s\r\nContent-Length: %zu\r\n%s%s\r\n%s", status,
                                    status == 503 ? "Slow Down" : "Said So", strlen(body), header,
                                    header[0] != '\0' ? "\r\n" : "", body);
        c->body = c->length = c->limit = strlen(body);
}

/* Replaces the answer by the rule's status. */
static void answer_rule(struct conn *c)
{
        if (c->rule.fault == PROXY_REDIRECT)
                answer_status(c, 302, format_text("Location: %s", c->rule.text), "elsewhere");
        else
                answer_status(c, c->rule.status, c->rule.header ?: "", c->rule.text ?: "");
}

static void set_asks(struct conn *c, bool asks)
{
        struct proxy *p = c->proxy;
        if (c->asks == asks)
                return;
        c->asks = asks;
        lock_scope(&p->mutex);
        p->asking[c->what] += asks ? 1u : -1u;
        if (p->asking[c->what] > p->most_asking[c->what])
                p->most_asking[c->what] = p->asking[c->what];
}

static void log_held(const struct conn *c)
{
        static const char *const whats[] = {" range", " first", " check"};
        struct proxy *p = c->proxy;
        char method[8], path[120];
        if (c->asked.again)
                return;
        if (p->n_held == PROXY_HELD || sscanf(c->request.data, "%7s %119[^? ]", method, path) != 2)
                die("the proxy cannot hold: %.200s", c->request.data);
        size_t whole = strcspn(c->request.data + strlen(method) + 1, " ");
        snprintf(p->held[p->n_held++], sizeof(p->held[0]), "%s %s%s%s", method, path,
                 whole > strlen(path) ? "?list" : "", c->asked.last != UINT64_MAX ? whats[c->what] : "");
}

/* Unless it was released while the server had not begun to answer. */
static void hold(struct conn *c)
{
        struct proxy *p = c->proxy;
        lock_scope(&p->mutex);
        if (c->releases == p->releases)
                log_held(c);
        while (c->releases == p->releases && !c->ended)
                pthread_cond_wait(&p->changed, &p->mutex);
}

/* Until this time, or for ever; or until the connection is to end. */
static void pause_until(struct conn *c, uint64_t ns)
{
        const struct timespec at = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
        lock_scope(&c->proxy->mutex);
        while (!c->ended && clock_ns() < ns)
                if (ns == UINT64_MAX)
                        pthread_cond_wait(&c->proxy->changed, &c->proxy->mutex);
                else
                        pthread_cond_clockwait(&c->proxy->changed, &c->proxy->mutex, CLOCK_MONOTONIC, &at);
}

static void pace_begin(struct conn *c)
{
        c->credit = 0;
        if (c->rule.fault == PROXY_DRIP)
                c->tick_ns = clock_ns();
        else if (c->rule.fault == PROXY_WINDOW)
                c->tick_ns = clock_ns() + c->rule.ms * MS;
        else if (c->rule.fault == PROXY_LATENCY)
                pause_until(c, clock_ns() + c->rule.ms * MS);
        else if (c->rule.fault == PROXY_HOLD)
                hold(c);
}

/* How many of n bytes may be sent; waits for the tick if none may. */
static size_t take_credit(struct conn *c, size_t n)
{
        bool grows = c->rule.fault == PROXY_WINDOW;
        if (c->tick_ns == 0)
                return n;
        if (c->credit == 0) {
                pause_until(c, c->tick_ns);
                c->tick_ns += (grows ? c->rule.ms : DRIP_MS) * MS;
                if (grows && c->window == 0)
                        c->window = c->rule.bytes;
                c->credit = grows ? c->window : c->rule.bytes;
        }
        n = n < c->credit ? n : (size_t)c->credit;
        c->credit -= n;
        c->window += grows ? n : 0;
        return n;
}

static bool send_all(int fd, const char *data, size_t n)
{
        while (n > 0) {
                ssize_t sent = send(fd, data, n, MSG_NOSIGNAL);
                if (sent <= 0)
                        return false;
                data += sent;
                n -= (size_t)sent;
        }
        return true;
}

/* False: the client has closed the connection. */
static bool send_out(struct conn *c)
{
        bool sent = true;
        for (size_t at = 0, n; sent && at < c->out.n; at += n) {
                n = take_credit(c, c->out.n - at);
                /* Before the last byte is sent: the client may send its next request as soon as it has it. */
                if (c->body == c->length && at + n == c->out.n)
                        set_asks(c, false);
                sent = send_all(c->client, c->out.data + at, n);
        }
        c->out.n = 0;
        return sent;
}

/* False: there is nothing more. */
static bool receive(int fd, struct buffer *b)
{
        ssize_t n = recv(fd, b->data + b->n, BUFFER - b->n, 0);
        b->n += n > 0 ? (size_t)n : 0;
        b->data[b->n] = '\0';
        return n > 0;
}

static int set_server(struct conn *c, int fd)
{
        lock_scope(&c->proxy->mutex);
        if (c->server >= 0)
                close(c->server);
        return c->server = fd;
}

/* With "Connection: close", so that the answer ends with the connection. */
static bool ask_server(struct conn *c)
{
        static const char closes[] = "\r\nConnection: close";
        const size_t len = sizeof(closes) - 1, line = strcspn(c->request.data, "\r");
        if (c->rule.fault == PROXY_NO_RANGE)
                drop_header(&c->request, "\r\nRange: ");
        memmove(c->request.data + line + len, c->request.data + line, c->request.n + 1 - line);
        memcpy(c->request.data + line, closes, len);
        c->request.n += len;
        set_asks(c, !c->asked.again);
        int fd = set_server(c, connect_to_loopback(c->proxy->upstream));
        return fd >= 0 && send_all(fd, c->request.data, c->request.n);
}

/* False: the connection is closed. */
static bool answer(struct conn *c)
{
        const char *end = NULL;
        bool bodiless = strncmp(c->request.data, "HEAD", 4) == 0, sent = false;
        c->out.n = 0;
        c->body = c->tick_ns = 0;
        c->length = c->limit = UINT64_MAX;
        if (c->rule.fault == PROXY_STATUS || c->rule.fault == PROXY_REDIRECT) {
                answer_rule(c);
                return send_out(c);
        }
        if (ask_server(c))
                while (receive(c->server, &c->out) && (end = strstr(c->out.data, "\r\n\r\n")) == NULL)
                        ;
        if (end == NULL)
                return false;
        c->length = content_length(&c->out, UINT64_MAX);
        change_head(c);
        change_body(c, c->out.n - (size_t)(end + 4 - c->out.data));
        pace_begin(c);
        if (c->rule.fault == PROXY_HOLD && c->rule.status > 0)
                answer_rule(c);
        while ((sent = send_out(c)) && c->body < c->limit && receive(c->server, &c->out))
                change_body(c, c->out.n);
        if (sent && c->rule.fault == PROXY_STALL)
                pause_until(c, UINT64_MAX);
        return sent && c->rule.fault != PROXY_RESET && c->rule.fault != PROXY_SHORT &&
               (c->body == c->length || bodiless);
}

/* ---- connections ---- */

static bool read_request(struct conn *c)
{
        const char *end = NULL;
        c->request.n = 0;
        while (receive(c->client, &c->request) && c->request.n < REQUEST_MAX)
                if ((end = strstr(c->request.data, "\r\n\r\n")) != NULL &&
                    c->request.n >= (size_t)(end + 4 - c->request.data) + content_length(&c->request, 0))
                        return true;
        return false;
}

static void *serve(void *arg)
{
        struct conn *c = arg;
        struct proxy *p = c->proxy;
        bool open = true;
        while (open && read_request(c)) {
                choose_rule(c);
                open = answer(c);
                set_asks(c, false);
                set_server(c, -1);
        }
        lock_scope(&p->mutex);
        struct conn **at = &p->conns;
        while (*at != c)
                at = &(*at)->next;
        *at = c->next;
        p->open--;
        if (c->reset || c->rule.fault == PROXY_RESET)
                setsockopt(c->client, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
        close(c->client);
        free(c);
        pthread_cond_broadcast(&p->changed);
        return NULL;
}

static void *accept_all(void *arg)
{
        struct proxy *p = arg;
        for (int fd; (fd = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
                pthread_t thread;
                struct conn *c = must_alloc(sizeof(*c));
                lock_scope(&p->mutex);
                c->proxy = p;
                c->client = fd;
                c->server = -1;
                c->next = p->conns;
                p->conns = c;
                p->accepted++;
                if (++p->open > p->most_open)
                        p->most_open = p->open;
                if (pthread_create(&thread, NULL, serve, c) != 0)
                        die("the proxy has no thread");
                pthread_detach(thread);
        }
        return NULL;
}

/* With the mutex held. */
static void end_all(struct proxy *p)
{
        for (struct conn *c = p->conns; c != NULL; c = c->next) {
                c->ended = true;
                shutdown(c->client, SHUT_RDWR);
                if (c->server >= 0)
                        shutdown(c->server, SHUT_RDWR);
        }
        pthread_cond_broadcast(&p->changed);
}

/* ---- for tests ---- */

void proxy_start(struct proxy *p, unsigned upstream)
{
        *p = (struct proxy){.upstream = upstream};
        pthread_mutex_init(&p->mutex, NULL);
        pthread_cond_init(&p->changed, NULL);
        p->listener = listen_on_loopback(128, &p->port);
        if (pthread_create(&p->thread, NULL, accept_all, p) != 0)
                die("the proxy has no thread");
}

void proxy_stop(struct proxy *p)
{
        shutdown(p->listener, SHUT_RDWR);
        pthread_join(p->thread, NULL);
        close(p->listener);
        lock_scope(&p->mutex);
        end_all(p);
        while (p->open > 0)
                pthread_cond_wait(&p->changed, &p->mutex);
}

void proxy_rule(struct proxy *p, const struct proxy_rule *rule)
{
        lock_scope(&p->mutex);
        if (p->n_rules == PROXY_RULES)
                die("too many rules");
        p->rules[p->n_rules++] = *rule;
}

void proxy_clear(struct proxy *p)
{
        lock_scope(&p->mutex);
        p->n_rules = 0;
        p->faults = 0;
        p->accepted = 0;
        for (unsigned i = 0; i <= PROXY_ALL; i++)
                p->seen[i] = 0;
        memset(p->most_asking, 0, sizeof(p->most_asking));
}

static unsigned count_asked(struct proxy *p, uint64_t byte, bool again)
{
        unsigned n = 0;
        lock_scope(&p->mutex);
        for (unsigned i = 0; i < p->seen[PROXY_BLOCKS] && i < PROXY_ASKED; i++)
                n += p->asked[i].again == again && (byte == 0 || has_byte(&p->asked[i], byte));
        return n;
}

unsigned proxy_asked_for(struct proxy *p, uint64_t byte)
{
        return count_asked(p, byte, false);
}

unsigned proxy_asked_again(struct proxy *p, uint64_t byte)
{
        return count_asked(p, byte, true);
}

unsigned proxy_most_asking(struct proxy *p, enum proxy_what what)
{
        lock_scope(&p->mutex);
        unsigned n = p->most_asking[what];
        p->most_asking[what] = p->asking[what];
        return n;
}

static int compare_held(const void *a, const void *b)
{
        return strcmp(a, b);
}

char *proxy_held(struct proxy *p)
{
        char *text = format_text("%s", "");
        lock_scope(&p->mutex);
        qsort(p->held, p->n_held, sizeof(p->held[0]), compare_held);
        for (unsigned i = 0, n; i < p->n_held; i += n) {
                for (n = 1; i + n < p->n_held && strcmp(p->held[i], p->held[i + n]) == 0;)
                        n++;
                text = format_text("%s%s%s%s", text, i > 0 ? "\n" : "", p->held[i],
                                   n > 1 ? format_text(" x%u", n) : "");
        }
        return text;
}

void proxy_release(struct proxy *p)
{
        lock_scope(&p->mutex);
        p->n_held = 0;
        p->releases++;
        pthread_cond_broadcast(&p->changed);
}

void proxy_cut(struct proxy *p)
{
        lock_scope(&p->mutex);
        for (struct conn *c = p->conns; c != NULL; c = c->next)
                c->reset = true;
        end_all(p);
}

const char *proxy_url(const struct proxy *p, const char *path)
{
        return format_text("http://127.0.0.1:%u%s", p->port, path);
}
