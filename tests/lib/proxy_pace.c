/* SPDX-License-Identifier: Apache-2.0
 *
 * When the bytes of an answer are forwarded. A delayed answer is not read any further, so the proxy buffers only one
 * block, and the answer continues at the server's speed, as over a long line.
 *
 *   head received > [delayed, held] > bytes, limited by a credit that each tick renews > end
 */
#include "tests/lib/proxy_conn.h"

#define DRIP_MS 10

/* ---- later ---- */

static void resume(struct conn *c)
{
        c->waits = false;
        proxy_conn_pump(c);
}

static void on_waited(uv_timer_t *timer)
{
        resume(timer->data);
}

static void released(struct conn *c)
{
        if (c->rule.fault == PROXY_HOLD && c->rule.status > 0)
                rule_answer_status(c);
        resume(c);
}

/* Unless it was released while the server had not begun to answer. */
static void hold(struct conn *c)
{
        struct proxy *p = c->proxy;
        pthread_mutex_lock(&p->mutex);
        c->waits = c->releases == p->releases;
        if (c->waits) {
                c->next_held = p->loop->held;
                p->loop->held = c;
                rule_log_held(c);
        }
        pthread_mutex_unlock(&p->mutex);
        if (!c->waits)
                released(c);
}

void pace_release(struct proxy_loop *own)
{
        struct proxy *p = own->proxy;
        struct conn *c = own->held;
        pthread_mutex_lock(&p->mutex);
        unsigned releases = p->releases;
        pthread_mutex_unlock(&p->mutex);
        own->held = NULL;
        for (struct conn *next; c != NULL; c = next) {
                next = c->next_held;
                c->next_held = NULL;
                if (c->releases != releases) {
                        released(c);
                        continue;
                }
                /* Received after the release. */
                c->next_held = own->held;
                own->held = c;
        }
}

void pace_forget(struct conn *c)
{
        struct conn **at = &c->proxy->loop->held;
        while (*at != NULL && *at != c)
                at = &(*at)->next_held;
        if (*at == c)
                *at = c->next_held;
}

/* ---- a few at a time ---- */

static void on_tick(uv_timer_t *timer)
{
        struct conn *c = timer->data;
        if (c->rule.fault == PROXY_WINDOW && c->window == 0)
                c->window = c->rule.bytes;
        c->credit = c->rule.fault == PROXY_WINDOW ? c->window : c->rule.bytes;
        proxy_conn_pump(c);
}

size_t pace_allows(const struct conn *c, size_t n)
{
        return c->metered && n > c->credit ? (size_t)c->credit : n;
}

/* The window grows by the bytes that were sent. */
void pace_sent(struct conn *c, size_t n)
{
        if (!c->metered)
                return;
        c->credit -= n;
        if (c->rule.fault == PROXY_WINDOW)
                c->window += n;
}

/* ---- an answer ---- */

void pace_begin(struct conn *c)
{
        c->metered = c->rule.fault == PROXY_DRIP || c->rule.fault == PROXY_WINDOW;
        c->credit = 0;
        if (c->rule.fault == PROXY_DRIP)
                uv_timer_start(&c->timer, on_tick, 0, DRIP_MS);
        else if (c->rule.fault == PROXY_WINDOW)
                uv_timer_start(&c->timer, on_tick, c->rule.ms, c->rule.ms);
        else if (c->rule.fault == PROXY_HOLD)
                hold(c);
        else if (c->rule.fault == PROXY_LATENCY) {
                c->waits = true;
                uv_timer_start(&c->timer, on_waited, c->rule.ms, 0);
        }
}

void pace_end(struct conn *c)
{
        uv_timer_stop(&c->timer);
        c->metered = false;
}
