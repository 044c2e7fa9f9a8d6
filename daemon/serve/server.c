/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/server.h"

#include "daemon/base/log/log.h"
#include "daemon/device/cuda/cuda.h"
#include "daemon/resident/hostcache/host_cache.h"
#include "daemon/resident/model.h"
#include "daemon/serve/access/access.h"
#include "daemon/serve/deferred.h"
#include "daemon/serve/events/events.h"
#include "daemon/serve/monitor/monitor.h"
#include "daemon/serve/verb_task.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/socket.h>

#define BACKLOG 4096
#define TICK_NS (UINT64_C(100) * MS)
/* Connections taken in one turn of the loop, at most. */
#define ACCEPT_TURN 64

/* ---- the socket ---- */

/* Adopts the service manager's socket (fd -1: none), or makes one. */
static int listen_at(struct server *server, int fd, const char *path, struct error *error)
{
        struct listen_address address;
        struct error cause = {0};
        int r = 0;
        if (fd >= 0)
                r = listener_adopt_consume_fd(&server->listener, fd, &cause);
        else if (listen_set_path(&address, path, &cause) < 0)
                r = error_set(&cause, STREAMER_EINVAL, "%s (%s)", cause.text, path);
        else
                r = listener_open(&server->listener, &address, BACKLOG, &cause);
        if (r < 0)
                return error_set(error, r, "socket: %s", cause.text);
        if (strcmp(server->listener.path, path) != 0)
                log_warn("socket: %s was passed by the service manager, %s is not used", server->listener.path, path);
        return 0;
}

/* ---- accepting ---- */

static void on_accept(uv_poll_t *poll, int status, int events)
{
        struct server *server = poll->data;
        server->accepts = true;
        for (unsigned i = 0; status == 0 && i < server->accept_most; i++) {
                int fd = accept4(server->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                server->n_accepted++;
                if (fd >= 0)
                        session_new_consume_fd(server, fd);
                if (fd >= 0 || errno == EINTR || errno == ECONNABORTED)
                        continue;
                /* Out of descriptors, of which some may be closed within a second: then accepting resumes. */
                if (errno != EAGAIN) {
                        log_warn("connections: %" PRIu64 " are open, the next wait: %s", server->n_conns,
                                 strerror(errno));
                        uv_poll_stop(poll);
                }
                return;
        }
}

/* One connection as a rule: to look for a second one costs the kernel a socket. Twice as many in each turn of a row. */
static void update_accept_most(struct server *server)
{
        unsigned most = server->accepts ? 2 * server->accept_most : 1;
        server->accept_most = most < ACCEPT_TURN ? most : ACCEPT_TURN;
        server->accepts = false;
}

static bool is_busy(const struct server *server)
{
        return server->n_conns > 0 || !list_empty(&server->publications.all) ||
               !list_empty(&server->leases.processes) || !loads_empty(server->loads);
}

/* ---- the timer ----
 *
 * Each task of the timer says when it is to be called again; an idle daemon has no such task, and does not wake. After
 * anything that the loop is called for, all tasks are called within a tick, and those of each second within a second.
 * So what becomes due by a change needs no call of its own; what another thread changes comes with a callback. */

static uint64_t earlier(uint64_t a, uint64_t b)
{
        return a < b ? a : b;
}

static void on_tick(uv_timer_t *timer);

/* No later than it is due already. */
static void start_timer(struct server *server, uint64_t at)
{
        uint64_t now = now_ns();
        if (at >= server->tick_at_ns || server->closing)
                return;
        server->tick_at_ns = at;
        uv_timer_start(&server->tick, on_tick, at > now ? (at - now + MS - 1) / MS : 0, 0);
}

/* When it is to exit; UINT64_MAX: not before something happens. */
static uint64_t exit_if_idle(struct server *server)
{
        bool busy = is_busy(server);
        if (busy || server->was_busy)
                server->last_active_ns = now_ns();
        server->was_busy = busy;
        if (server->exit_idle_ns == 0 || busy)
                return UINT64_MAX;
        if (now_ns() - server->last_active_ns < server->exit_idle_ns)
                return server->last_active_ns + server->exit_idle_ns;
        /* A client that has connected by now is served. One that connects before the socket is closed sees its end,
         * and may start the next daemon. */
        on_accept(&server->accept_poll, 0, UV_READABLE);
        if (!is_busy(server))
                server->exit(server, "idle (exit_idle)");
        return UINT64_MAX;
}

/* When it is to be called again. */
static uint64_t each_second(struct server *server)
{
        bool again = reader_watch(server->loads->reader);
        again |= work_pool_watch(server->loads->pool, now_ns(), server->loads->reader->opts.stall_ns);
        again |= admission_tick(server->resident->admission);
        again |= host_cache_tick(server->resident->cache, now_ns());
        again |= loads_check_prefault(server->loads);
        disk_pins_update(&server->disk_pins, &server->desired);
        again |= conns_tick(&server->turns, now_ns());
        again |= verb_tasks_tick(server, now_ns());
        again |= log_tick();
        manager_send_status(server);
        again |= server->session_ops->tick(server);
        again |= !loads_all_wait(server->loads) || !uv_is_active((uv_handle_t *)&server->accept_poll);
        uv_poll_start(&server->accept_poll, UV_READABLE, on_accept);
        uint64_t exit_at = exit_if_idle(server);
        return again ? earlier(exit_at, now_ns() + SECOND) : exit_at;
}

static void on_tick(uv_timer_t *timer)
{
        struct server *server = timer->data;
        uint64_t now = now_ns(), next = UINT64_MAX;
        server->tick_at_ns = UINT64_MAX;
        next = earlier(next, manager_tick(server, now));
        next = earlier(next, cuda_tick(server->cuda));
        next = earlier(next, resident_expire(server->resident, now));
        next = earlier(next, deferred_tick(server, now));
        next = earlier(next, desired_tick(&server->desired, now));
        next = earlier(next, persist_tick(&server->persist, now));
        if (leases_poll(&server->leases))
                next = now;
        if (events_progress(server))
                next = now;
        scrub_tick(&server->scrub);
        if (server->ending == ENDING_NOW ||
            (server->ending == ENDING_DRAINED && server->leases.n == 0 && loads_empty(server->loads))) {
                char why[64];
                snprintf(why, sizeof(why), "shutdown requested by uid %u", (unsigned)server->ended_by);
                server->exit(server, why);
                return;
        }
        if (now >= server->second_at_ns)
                server->second_at_ns = each_second(server);
        next = earlier(next, server->second_at_ns);
        if (next != UINT64_MAX)
                start_timer(server, next > now + TICK_NS ? next : now + TICK_NS);
}

/* The timer's own calls alone do not prolong it. */
static void on_about_to_wait(uv_prepare_t *about_to_wait)
{
        struct server *server = about_to_wait->data;
        update_accept_most(server);
        uint64_t n = wake_count(server->resident->wake) + poll_set_count(server->polls) + server->n_accepted;
        if (n == server->n_happened)
                return;
        server->n_happened = n;
        server->second_at_ns = earlier(server->second_at_ns, now_ns() + SECOND);
        start_timer(server, now_ns() + TICK_NS);
}

/* ---- processes that hold leases ---- */

static struct poll_set *polls_of(const struct process *process)
{
        return container_of(process->leases, struct server, leases)->polls;
}

static void on_exit_of(struct polled *poll, uint32_t events)
{
        struct process *process = container_of(poll, struct process, poll);
        poll_set_watch(polls_of(process), poll, 0); /* it stays readable */
        process_exited(process);
}

static int watch_process(struct process *process)
{
        process->poll = (struct polled){.fd = process->pidfd, .ready = on_exit_of};
        return poll_set_watch(polls_of(process), &process->poll, EPOLLIN) == 0 ? 0 : STREAMER_ENOMEM;
}

static void unwatch_process(struct process *process)
{
        poll_set_watch(polls_of(process), &process->poll, 0);
}

/* ---- life ---- */

/* These are called in the midst of a change: all they do is mark. */
static void on_changed(struct resident *resident, struct generation *generation, const char *removed)
{
        events_changed(resident->context, generation, removed);
}

static void on_name_changed(struct resident *resident, struct generation *generation, const char *name)
{
        struct server *server = resident->context;
        desired_name_changed(&server->desired, name, generation->state == GENERATION_READY);
        deferred_recheck(server, name);
}

static void on_stores(struct loads *loads)
{
        struct server *server = loads->context;
        server->disk_pins =
                (struct disk_pins){UINT64_MAX, UINT64_MAX}; /* a source may be stored under another prefix */
        disk_pins_update(&server->disk_pins, &server->desired);
}

static void on_arrived(struct loads *loads, struct generation *generation)
{
        events_mark_leases(generation);
        list_each_item (const struct model_name, name, &generation->names, link)
                deferred_recheck(loads->context, name->text);
}

static void on_arrivals(uv_timer_t *timer);

/* No later than it is due already. */
static void start_arrivals(struct server *server, uint64_t at)
{
        uint64_t now = now_ns();
        if (at >= server->arrivals_at_ns || server->closing)
                return;
        server->arrivals_at_ns = at;
        uv_timer_start(&server->arrivals, on_arrivals, at > now ? (at - now + MS - 1) / MS : 0, 0);
}

static void on_arrivals(uv_timer_t *timer)
{
        struct server *server = timer->data;
        server->arrivals_at_ns = UINT64_MAX;
        start_arrivals(server, loads_notify_arrivals(server->loads));
}

static void on_arrives_later(struct loads *loads, uint64_t at_ns)
{
        start_arrivals(loads->context, at_ns);
}

/* Requests wait for a name that is loading, too, and the end of a denied load is no change of a generation. */
static void on_load_ended(struct load *load, bool subscribed)
{
        if (subscribed)
                events_load_ended(load->loads);
        list_each_item (const struct load_request, request, &load->answers, link)
                deferred_recheck(load->loads->context, request->name);
}

static void on_desired_changed(struct desired *desired, const char *name)
{
        deferred_recheck(container_of(desired, struct server, desired), name);
}

static void on_row_due(struct desired *desired, const char *name, const char *device)
{
        persist_mark(&container_of(desired, struct server, desired)->persist, name, device);
}

static void on_publication_ended(const struct publication *publication)
{
        deferred_recheck(container_of(publication->publications, struct server, publications), publication->name);
}

static void name_settings(const struct loads *loads, const char *name, const struct device *device,
                          struct model_settings *settings)
{
        const struct server *server = loads->context;
        desired_settings(&server->desired, name, device, settings);
}

static const char *desired_source(const struct loads *loads, const char *name)
{
        const struct server *server = loads->context;
        const struct desired_model *m = desired_find(&server->desired, name);
        if (m == NULL)
                return NULL;
        return m->path != NULL ? m->path : m->spec.source;
}

static int start_handles(struct server *server, struct error *error)
{
        if (uv_poll_init(server->loop, &server->accept_poll, server->listener.fd) != 0 ||
            uv_poll_start(&server->accept_poll, UV_READABLE, on_accept) != 0)
                return error_set(error, STREAMER_EOS, "socket: cannot be polled");
        server->accept_poll.data = server;
        turns_start(&server->turns, server->loop, conn_serve);
        loop_task_init(&server->notify, server->loop, events_send_next);
        uv_timer_init(server->loop, &server->tick);
        uv_timer_init(server->loop, &server->arrivals);
        uv_prepare_init(server->loop, &server->about_to_wait);
        server->tick.data = server->arrivals.data = server->about_to_wait.data = server;
        server->tick_at_ns = server->arrivals_at_ns = UINT64_MAX;
        server->accept_most = 1;
        server->second_at_ns = now_ns() + SECOND;
        uv_prepare_start(&server->about_to_wait, on_about_to_wait);
        start_timer(server, now_ns() + TICK_NS);
        return 0;
}

int server_init_consume_fd(struct server *server, uv_loop_t *loop, const char *path, int listener, struct error *error)
{
        server->loop = loop;
        server->listener.fd = -1;
        server->started_ns = server->last_active_ns = now_ns();
        list_init(&server->conns);
        deferred_init(server);
        list_init(&server->due);
        list_init(&server->up_to_date);
        list_init(&server->watching);
        changes_init(&server->model_changes);
        list_init(&server->reloads);
        list_init(&server->queued);
        list_init(&server->started);
        server->disk_pins = (struct disk_pins){UINT64_MAX, UINT64_MAX};
        desired_init(&server->desired, server->loads, server->limits);
        server->desired.changed = on_desired_changed;
        server->desired.row_due = on_row_due;
        server->desired.allow = access_check_restored;
        quotas_init(&server->users);
        server->publications =
                (struct publications){.loads = server->loads, .users = &server->users, .ended = on_publication_ended};
        server->publications.keep = server->publish_keep;
        publications_init(&server->publications);
        leases_init(&server->leases);
        server->leases.watch = watch_process;
        server->leases.unwatch = unwatch_process;
        server->leases.users = &server->users;
        server->resident->context = server->loads->context = server;
        server->resident->changed = on_changed;
        server->resident->name_changed = on_name_changed;
        server->loads->desired_source = desired_source;
        server->loads->desired_settings = name_settings;
        server->loads->arrived = on_arrived;
        server->loads->arrives_later = on_arrives_later;
        server->loads->ended = on_load_ended;
        server->loads->stores = on_stores;
        return listen_at(server, listener, path, error) ?: start_handles(server, error);
}

void server_close(struct server *server)
{
        server->closing = true;
        /* What is unloaded from now on stays persisted. */
        persist_freeze(&server->persist);
        desired_close(&server->desired);
        uv_close((uv_handle_t *)&server->accept_poll, NULL);
        listener_close(&server->listener);
        uv_close((uv_handle_t *)&server->tick, NULL);
        uv_close((uv_handle_t *)&server->arrivals, NULL);
        uv_close((uv_handle_t *)&server->about_to_wait, NULL);
        loads_cancel_all(server->loads);
        publications_stop(&server->publications);
        loads_check_prefault(server->loads);
        list_each_item (struct conn, conn, &server->conns, link) {
                session_send(conn->context, NULL, PAIRS(kstr("event", "shutdown")));
                conn_close(conn, true);
        }
}

bool server_release(struct server *server, bool abort)
{
        list_each_item (struct conn, conn, &server->conns, link)
                if (abort)
                        conn_close(conn, false);
        if (!list_empty(&server->conns))
                return false;
        /* Leases end with the daemon: the memory that their processes have mapped stays theirs. */
        list_each_item_safe (struct process, process, &server->leases.processes, link)
                process_exited(process);
        list_each_item_safe (struct generation, g, &server->resident->generations, link)
                if (g->state != GENERATION_LOADING)
                        generation_drop_all(g);
        return true;
}

void server_deinit(struct server *server)
{
        persist_deinit(&server->persist);
        desired_deinit(&server->desired);
        changes_deinit(&server->model_changes);
        listener_deinit(&server->listener);
}
