/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/monitor/manager.h"

#include "daemon/base/sys/systemd.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define LOADS_NAMED 3u
#define READY_AGAIN_MS 100

/* ---- the status line ---- */

struct text_line {
        char *at;
        size_t left;
};

static void add(struct text_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct text_line *line, const char *format, ...)
{
        va_list args;
        va_start(args, format);
        int n = vsnprintf(line->at, line->left, format, args);
        va_end(args);
        size_t used = n < 0 ? 0 : (size_t)n < line->left ? (size_t)n : line->left - 1;
        line->at += used;
        line->left -= used;
}

static size_t add_loads(struct text_line *line, const struct loads *loads)
{
        size_t n = 0;
        list_each_item (struct load, load, &loads->all, link) {
                if (load_ended(load->state) || load->dry_run)
                        continue;
                if (n++ >= LOADS_NAMED)
                        continue;
                struct load_progress p;
                load_progress(load, &p);
                add(line, "%s%s", n == 1 ? "loading " : ", ", load->name);
                if (p.total > 0)
                        add(line, " %" PRIu64 "%%", (uint64_t)(100.0 * (double)p.bytes / (double)p.total));
                if (p.stalled)
                        add(line, " (stalled)");
        }
        if (n > LOADS_NAMED)
                add(line, " and %zu more", n - LOADS_NAMED);
        return n;
}

/* A model that is retried counts as failed until it is ready. */
static void add_preload(struct text_line *line, const struct desired *desired)
{
        char first[REDACTED_SOURCE];
        size_t n = 0, n_ready = 0, n_failed = 0;
        list_each_item (const struct desired_model, m, &desired->models, link) {
                if (m->origin != DESIRED_CONFIGURED)
                        continue;
                n++;
                if (m->state == DESIRED_READY)
                        n_ready++;
                else if ((desired_failed(m) || m->attempts > 1) && n_failed++ == 0)
                        desired_title(first, m);
        }
        if (n_ready == n)
                return;
        add(line, "; preload: %zu of %zu ready", n_ready, n);
        if (n_failed > 0)
                add(line, ", %zu failed (%.250s)", n_failed, first);
}

void manager_send_status(struct server *server)
{
        char text[sizeof(server->last_status)];
        struct text_line line = {text, sizeof(text)};
        size_t ready = 0, leases = server->leases.n;
        if (!notify_manager())
                return;
        list_each_item (const struct generation, g, &server->resident->generations, link)
                ready += g->state == GENERATION_READY;
        if (add_loads(&line, server->loads) > 0)
                add(&line, "; ");
        add(&line, "%zu model%s resident, %zu lease%s", ready, ready == 1 ? "" : "s", leases, leases == 1 ? "" : "s");
        add_preload(&line, &server->desired);
        if (strcmp(text, server->last_status) != 0 && notify_status("%s", text))
                strcpy(server->last_status, text);
}

/* ---- readiness and the watchdog ---- */

/* Sent by the loop itself, so that the manager notices a loop that hangs. */
static void on_alive(uv_timer_t *timer)
{
        (void)timer;
        notify_alive();
}

void manager_start(struct manager *manager, uv_loop_t *loop)
{
        uint64_t ms = notify_watchdog_ns() / 1000000;
        uv_timer_init(loop, &manager->ready);
        uv_timer_init(loop, &manager->alive);
        if (ms > 0)
                uv_timer_start(&manager->alive, on_alive, 0, ms / 2 > 0 ? ms / 2 : 1);
}

/* A manager that misses READY=1 ends the daemon, or considers it to be reloading for ever. */
static void on_ready(uv_timer_t *timer)
{
        if (notify_ready())
                uv_timer_stop(timer);
}

void manager_notify_ready(struct manager *manager)
{
        if (!notify_ready())
                uv_timer_start(&manager->ready, on_ready, READY_AGAIN_MS, READY_AGAIN_MS);
}
