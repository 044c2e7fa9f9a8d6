/* SPDX-License-Identifier: Apache-2.0
 *
 * The proxy's thread and loop, and the requests of tests: rules, counts, held requests. Tests signal by events,
 * because connections belong to the loop.
 */
#include "tests/lib/proxy_conn.h"

#include "tests/lib/base.h"

#include <netinet/in.h>

/* ---- lifecycle ---- */

static void on_accept(uv_stream_t *listener, int status)
{
        if (status == 0)
                proxy_conn_accept(listener->data);
}

static void on_release(uv_async_t *async)
{
        pace_release(async->data);
}

static void close_one(uv_handle_t *handle, void *arg)
{
        struct proxy_loop *own = arg;
        if (handle == (uv_handle_t *)&own->listener || handle == (uv_handle_t *)&own->stop ||
            handle == (uv_handle_t *)&own->release || handle == (uv_handle_t *)&own->cut)
                uv_close(handle, NULL);
        else if (!uv_is_closing(handle))
                proxy_conn_close(handle->data);
}

static void reset_one(uv_handle_t *handle, void *arg)
{
        (void)arg;
        if (handle->type == UV_TIMER && !uv_is_closing(handle)) /* one of each connection */
                proxy_conn_reset(handle->data);
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
        memset(p->most_asking, 0, sizeof(p->most_asking));
        pthread_mutex_unlock(&p->mutex);
}

unsigned proxy_asked_for(struct proxy *p, uint64_t byte)
{
        unsigned n = 0;
        pthread_mutex_lock(&p->mutex);
        for (unsigned i = 0; i < p->seen[PROXY_BLOCKS] && i < PROXY_ASKED; i++)
                n += !p->asked[i].again && has_byte(&p->asked[i], byte);
        pthread_mutex_unlock(&p->mutex);
        return n;
}

unsigned proxy_asked_again(struct proxy *p, uint64_t byte)
{
        unsigned n = 0;
        pthread_mutex_lock(&p->mutex);
        for (unsigned i = 0; i < p->seen[PROXY_BLOCKS] && i < PROXY_ASKED; i++)
                n += p->asked[i].again && (byte == 0 || has_byte(&p->asked[i], byte));
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

unsigned proxy_most_open(struct proxy *p)
{
        pthread_mutex_lock(&p->mutex);
        unsigned n = p->most_open;
        pthread_mutex_unlock(&p->mutex);
        return n;
}

unsigned proxy_most_asking(struct proxy *p, enum proxy_what what)
{
        pthread_mutex_lock(&p->mutex);
        unsigned n = p->most_asking[what];
        p->most_asking[what] = p->asking[what];
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
        p->releases++;
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
