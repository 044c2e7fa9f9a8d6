/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/monitor/monitor.h"

#include "daemon/base/sys/systemd.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

#define LOADS_NAMED 3u

/* ---- the status line ---- */

static size_t add_loads(char line[STATUS_MAX], const struct loads *loads)
{
        size_t n = 0;
        list_each_item (struct load, load, &loads->all, link) {
                if (load_ended(load->state) || load->dry_run)
                        continue;
                if (n++ >= LOADS_NAMED)
                        continue;
                struct load_progress p;
                load_progress(load, &p);
                format_append(line, STATUS_MAX, "%s%s", n == 1 ? "loading " : ", ", load->name);
                if (p.total > 0)
                        format_append(line, STATUS_MAX, " %" PRIu64 "%%",
                                      (uint64_t)(100.0 * (double)p.bytes / (double)p.total));
                if (p.stalled)
                        format_append(line, STATUS_MAX, " (stalled)");
        }
        if (n > LOADS_NAMED)
                format_append(line, STATUS_MAX, " and %zu more", n - LOADS_NAMED);
        return n;
}

/* A model that is retried counts as failed until it is ready. */
static void add_preload(char line[STATUS_MAX], const struct desired *desired)
{
        char first[REDACTED_SOURCE];
        size_t n_failed = 0;
        if (!desired_pending(desired, DESIRED_CONFIGURED))
                return;
        desired_each_from (m, desired_after(desired, DESIRED_CONFIGURED, UINT_MAX, 0))
                if (m->state != DESIRED_READY && !desired_dismissed(m) && (desired_failed(m) || m->attempts > 1) &&
                    n_failed++ == 0)
                        desired_title(first, m);
        format_append(line, STATUS_MAX, "; preload: %zu of %zu ready",
                      desired->n_in_state[DESIRED_CONFIGURED][DESIRED_READY],
                      desired_count(desired, DESIRED_CONFIGURED));
        if (n_failed > 0)
                format_append(line, STATUS_MAX, ", %zu failed (%.250s)", n_failed, first);
}

void manager_send_status(struct server *server)
{
        char line[STATUS_MAX] = "";
        size_t ready = server->resident->n_in_state[GENERATION_READY], leases = server->leases.n;
        if (!notify_manager())
                return;
        if (add_loads(line, server->loads) > 0)
                format_append(line, STATUS_MAX, "; ");
        format_append(line, STATUS_MAX, "%zu model%s resident, %zu lease%s", ready, ready == 1 ? "" : "s", leases,
                      leases == 1 ? "" : "s");
        add_preload(line, &server->desired);
        if (strcmp(line, server->last_status) != 0 && notify_status(line))
                strcpy(server->last_status, line);
}

/* ---- readiness and the watchdog ---- */

void manager_notify_ready(struct server *server)
{
        server->ready_due = !notify_ready();
}

/* A manager that misses READY=1 ends the daemon, or considers it to be reloading for ever. The loop itself sends signs
 * of life, so that the manager notices when it hangs. */
uint64_t manager_tick(struct server *server, uint64_t now)
{
        uint64_t watchdog_ns = notify_watchdog_ns();
        if (server->ready_due)
                manager_notify_ready(server);
        if (watchdog_ns != 0 && now - server->alive_ns >= watchdog_ns / 2) {
                server->alive_ns = now;
                notify_state("WATCHDOG=1");
        }
        if (server->ready_due)
                return now;
        return watchdog_ns == 0 ? UINT64_MAX : server->alive_ns + watchdog_ns / 2;
}
