/* SPDX-License-Identifier: Apache-2.0
 *
 * streamerd: puts the parts together, runs the loop, takes them apart.
 *
 * The end. SIGTERM or SIGINT closes the server; the loop goes on until connections, loads and models
 * are gone, clients that do not read are cut off after a grace, and whatever hangs in the kernel
 * after the deadline is left to the end of the process.
 */
#include "daemon/base/fdstore.h"
#include "daemon/base/inherit.h"
#include "daemon/base/log.h"
#include "daemon/base/notify.h"
#include "daemon/base/machine.h"
#include "daemon/config/reload.h"
#include "daemon/config/stores.h"
#include "daemon/device/cuda.h"
#include "daemon/resident/host_cache.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/monitor.h"
#include "daemon/serve/server.h"
#include "daemon/source/web.h"

#include <inttypes.h>
#include <malloc.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <uv.h>

#define WORKERS 16
#define WORKERS_PER_LANE 4
#define DEVICES_MAX 64
#define READY_AGAIN_MS 100
#define FLUSH_GRACE_NS (UINT64_C(2) * 1000000000) /* for clients to read what is queued */
#define END_NS (UINT64_C(4) * 1000000000)         /* for everything that may hang */

struct daemon {
        struct config config;
        struct inherit inherit;
        uv_loop_t loop;
        uv_signal_t sigterm, sigint, sighup;
        uv_timer_t ending, alive, ready;
        struct wake *wake;
        struct cuda *cuda; /* NULL: no CUDA device is configured */
        struct device *devices[DEVICES_MAX];
        size_t n_devices;
        struct sources sources;
        struct work_pool *pool;
        struct reader reader;
        struct resident resident;
        struct room room;
        struct host_cache cache;
        struct loads loads;
        struct server server;
        struct monitor *monitor; /* NULL: no address to listen at */
        struct stall_watch stall;
        struct reload reload;
        uint64_t closing_since;
};

/* ---- set-up ---- */

static void set_limits(void)
{
        /* Freed tables go back to the system at once, whatever thread they came from. */
        mallopt(M_MMAP_THRESHOLD, 128 * 1024);
        mallopt(M_TRIM_THRESHOLD, 128 * 1024);
        mallopt(M_ARENA_MAX, 2);
        struct rlimit files;
        if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
                files.rlim_cur = files.rlim_max;
                setrlimit(RLIMIT_NOFILE, &files);
        }
        signal(SIGPIPE, SIG_IGN);
}

static enum host_pages pages_of(enum config_pages pages)
{
        static const enum host_pages map[] = {[CONFIG_PAGES_AUTO] = HOST_PAGES_AUTO,
                                              [CONFIG_PAGES_HUGETLB] = HOST_PAGES_HUGETLB,
                                              [CONFIG_PAGES_THP] = HOST_PAGES_THP,
                                              [CONFIG_PAGES_4K] = HOST_PAGES_4K};
        return map[pages];
}

static int add_device(struct daemon *d, struct device *device, struct error *error)
{
        for (size_t i = 0; i < d->n_devices; i++)
                if (strcmp(d->devices[i]->uuid, device->uuid) == 0 && d->devices[i]->ops == device->ops) {
                        error_set(error, STREAMER_EINVAL, "device %s is configured twice", device->name);
                        device_free(device);
                        return error->code;
                }
        require(d->n_devices < DEVICES_MAX);
        device->number = (unsigned)d->n_devices;
        d->devices[d->n_devices++] = device;
        log_info("device %s: budget %" PRIu64 " bytes, %s pages (%s)", device->name, device->budget,
                 page_kind_name(device->pages), device->uuid);
        return 0;
}

static const char *cuda_library(const struct daemon *d)
{
        const char *library = d->config.cuda.library;
        return library != NULL && library[0] != '\0' ? library : NULL;
}

static int add_cuda(struct daemon *d, const struct config_device *c, struct error *error)
{
        int ordinals[DEVICES_MAX];
        struct cuda_opts opts = {.budget = c->budget,
                                 .budget_percent = c->budget_percent,
                                 .handles =
                                         c->handles == CONFIG_HANDLES_VMM_FD ? CUDA_HANDLES_VMM_FD : CUDA_HANDLES_IPC,
                                 .max_segment = d->config.cuda.segment_size};
        int r = d->cuda == NULL ? cuda_new(&d->cuda, cuda_library(d), error) : 0;
        int n = r < 0 ? r : cuda_find(d->cuda, c->name, ordinals, (int)(DEVICES_MAX - d->n_devices), error);
        for (int i = 0; i < n; i++) {
                struct device *device;
                r = cuda_device_new(&device, d->cuda, ordinals[i], &opts, d->wake, error);
                if (r == 0)
                        r = add_device(d, device, error);
                if (r < 0)
                        return r;
        }
        return n < 0 ? n : 0;
}

static int make_devices(struct daemon *d, struct error *error)
{
        for (size_t i = 0; i < d->config.n_devices; i++) {
                const struct config_device *c = &d->config.devices[i];
                struct device *device;
                int r;
                if (strcmp(c->name, "host") != 0)
                        r = add_cuda(d, c, error);
                else if ((r = host_device_new(&device, c->budget, pages_of(c->pages), d->wake, error)) == 0)
                        r = add_device(d, device, error);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* A device that copies wants two slots for each reader thread: one is filled, one is copied. */
static uint64_t default_ring(const struct daemon *d)
{
        uint64_t blocks = d->config.io.concurrency;
        return (d->cuda != NULL ? 2 * READER_THREADS_PER_BLOCK * blocks : blocks) * d->config.io.block_size;
}

/* Host memory that is copied to GPUs sits next to them. */
static struct numa_choice place_ring(const struct daemon *d)
{
        int nodes[DEVICES_MAX];
        for (size_t i = 0; i < d->n_devices; i++)
                nodes[i] = d->devices[i]->numa_node;
        return numa_choose(numa_online(""), nodes, d->n_devices);
}

static int make_network(struct daemon *d, struct error *error)
{
        const struct config *c = &d->config;
        struct http_opts opts = {.connect_timeout_ns = c->http.connect_timeout_ns,
                                 .stall_ns = c->http.stall_ns,
                                 .backoff_ns = c->http.backoff_ns,
                                 .retry_after_ns = c->http.retry_after_ns,
                                 .tries = c->http.tries,
                                 .redirects = c->http.redirects,
                                 .threads = c->http.threads,
                                 .ca = c->http.ca != NULL && c->http.ca[0] != '\0' ? c->http.ca : NULL,
                                 .allow_plain = (const char *const *)c->http.allow_plain,
                                 .n_allow_plain = c->http.n_allow_plain};
        struct web_host *hosts = calloc(c->http.n_hosts + 1, sizeof(*hosts));
        if (hosts == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        for (size_t i = 0; i < c->http.n_hosts; i++) {
                const struct config_http_host *h = &c->http.hosts[i];
                hosts[i] = (struct web_host){h->host, h->token, h->token_file, h->user, h->password, h->password_file};
        }
        int r = http_new(&d->sources.http, &opts, error);
        if (r == 0)
                r = web_new(&d->sources.web, hosts, c->http.n_hosts, error);
        if (r == 0)
                r = stores_make(c, &d->sources, error);
        free(hosts);
        return r;
}

static int make_reader(struct daemon *d, struct error *error)
{
        const struct config *c = &d->config;
        char numa[256];
        struct reader_opts opts = {.concurrency = c->io.concurrency,
                                   .block_size = c->io.block_size,
                                   .memory_limit = c->io.memory_limit,
                                   .stall_ns = c->io.stall_ns,
                                   .numa = place_ring(d),
                                   .http = d->sources.http};
        if (opts.memory_limit == 0)
                opts.memory_limit = default_ring(d);
        int r = reader_init(&d->reader, &opts, d->wake, error);
        if (r < 0)
                return r;
        if (d->cuda != NULL)
                cuda_set_ring(d->cuda, d->reader.staging.base, d->reader.staging.bytes);
        log_info("ring: %u slots of %" PRIu64 " bytes on %s pages, %u reader threads%s%s", d->reader.staging.n_slots,
                 opts.block_size, page_kind_name(d->reader.staging.pages), d->reader.engines[READ_PREAD].base,
                 opts.numa.nodes != 0 ? ", " : "", numa_text(&opts.numa, numa, sizeof(numa)));
        return 0;
}

static struct server_limits limits_of(const struct config_limits *l)
{
        return (struct server_limits){
                .connections = l->connections,
                .per_uid = {[USER_CONNECTIONS] = l->connections_per_uid,
                            [USER_LEASES] = l->leases_per_uid,
                            [USER_LOADS] = l->loads_per_uid,
                            [USER_BYTES] = l->bytes_per_uid},
                .leases_per_client = l->leases_per_client,
                .requests_per_client = l->requests_per_client,
                .fds_in_flight = l->fds_in_flight,
                .fds_per_client = l->fds_per_client,
                .conn = {.output = l->output_per_client, .frame_timeout_ns = l->frame_timeout_ns},
        };
}

/* What an earlier run has left: models at once, the pinned ones among the rest by loading them. */
static void take_back(struct daemon *d)
{
        struct server *s = &d->server;
        const char *folder = d->config.state != NULL && d->config.state[0] != '\0' ? d->config.state : NULL;
        keep_take_back(&s->keep, &d->inherit);
        again_init(&s->again, &d->loads, &d->resident, folder);
        remember_init(&s->remember, &d->resident, d->pool, folder, &s->again.state);
        recheck_init(&s->recheck, &d->resident, d->pool);
}

/* Pinned memory cannot be swapped: half of what there is stays for everything else. */
static void set_host_cache(struct daemon *d)
{
        uint64_t want = d->config.host_cache, limit = machine_cgroup_memory("");
        uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGE_SIZE);
        uint64_t most = (limit < memory ? limit : memory) / 2;
        if (want == 0)
                return;
        host_cache_init(&d->cache, &d->resident, want < most ? want : most);
        log_info("host cache: %" PRIu64 " bytes%s", d->cache.budget,
                 want > most ? ", half of what the machine or the cgroup allows: less than configured" : "");
        if (d->cuda == NULL)
                log_warn("host cache: there is no GPU that could use it");
}

/* What can change while the daemon runs. */
static void apply_config(struct daemon *d, struct error *error)
{
        const struct config_limits *l = &d->config.limits;
        const struct preload_opts opts = {.at_once = (unsigned)l->preload_loads, .retry_ns = l->preload_retry_ns};
        struct preload_list *preload = &d->config.preload;
        d->server.limits = limits_of(l);
        d->loads.max_running = (unsigned)l->loads;
        d->resident.failed_kept = l->failed_kept;
        preload_set_consume(&d->server.preload, preload, &opts, error);
}

static void on_reloaded(struct reload *reload)
{
        struct daemon *d = container_of(reload, struct daemon, reload);
        struct error error = {0};
        log_set_level(d->config.log.level);
        apply_config(d, &error);
        if (error.code != 0)
                log_error("reload: %s", error.text);
}

static void on_hangup(uv_signal_t *handle, int signum)
{
        struct daemon *d = handle->data;
        (void)signum;
        reload_begin(&d->reload);
}

static int make_parts(struct daemon *d, struct error *error)
{
        const struct config *c = &d->config;
        int r = source_roots_new(&d->sources.roots, (const char *const *)c->roots, c->n_roots, error);
        if (r == 0)
                r = roles_open(&d->config.access, error);
        if (r == 0)
                r = make_devices(d, error);
        if (r == 0)
                r = make_network(d, error);
        if (r == 0)
                r = make_reader(d, error);
        if (r < 0)
                return r;
        d->pool = work_pool_new(d->wake, "worker", WORKERS, WORKERS_PER_LANE);
        if (d->pool == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        resident_init(&d->resident, d->devices, d->n_devices, c->limits.failed_kept);
        if (room_init(&d->room, &d->resident, d->wake, c->limits.queued) < 0)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        loads_init(&d->loads);
        d->loads.max_running = (unsigned)c->limits.loads;
        d->loads.resident = &d->resident;
        d->loads.sources = &d->sources;
        d->loads.reader = &d->reader;
        d->loads.pool = d->pool;
        set_host_cache(d);
        d->loads.block_size = c->io.block_size;
        d->loads.keep_alive_ns = c->residency.keep_alive_ns;
        d->loads.drain_timeout_ns = c->residency.drain_timeout_ns;
        d->server.limits = limits_of(&c->limits);
        d->server.roles = &d->config.access;
        d->server.stall = &d->stall.stall;
        d->server.share_across_uids = c->cuda.across_uids;
        d->server.trust_detach = c->cuda.trust_detach;
        d->server.resident = &d->resident;
        d->server.loads = &d->loads;
        d->server.reader = &d->reader;
        d->server.pool = d->pool;
        d->server.wake = d->wake;
        d->server.cuda = d->cuda;
        d->server.cuda_library = cuda_library(d);
        int listener;
        r = inherit_take_listener(&d->inherit, &listener, error);
        if (r == 0)
                r = server_init_consume_fd(&d->server, &d->loop, c->socket, listener, error);
        if (r == 0)
                r = keep_init(&d->server.keep, &d->resident, &d->server.leases, d->wake, fdstore_max(), error);
        if (r == 0) {
                apply_config(d, error);
                r = error->code;
        }
        if (r == 0)
                take_back(d);
        return r;
}

/* ---- the end ---- */

static void cut_off(struct daemon *d)
{
        list_each_safe (pos, &d->server.conns)
                conn_close(container_of(pos, struct conn, link), false);
}

static void on_ending(uv_timer_t *timer)
{
        struct daemon *d = timer->data;
        uint64_t since = now_ns() - d->closing_since;
        if (since > FLUSH_GRACE_NS)
                cut_off(d);
        if (server_closed(&d->server))
                server_release(&d->server);
        bool gone = server_closed(&d->server) && loads_empty(&d->loads) && resident_empty(&d->resident) &&
                    remember_idle(&d->server.remember);
        if (gone || since > END_NS)
                uv_stop(&d->loop);
}

/* From the loop itself, so that a loop that hangs is what the manager notices. */
static void on_alive(uv_timer_t *timer)
{
        (void)timer;
        notify_alive();
}

static void start_watchdog(struct daemon *d)
{
        uint64_t ms = notify_watchdog_ns() / 1000000;
        uv_timer_init(&d->loop, &d->alive);
        if (ms > 0)
                uv_timer_start(&d->alive, on_alive, 0, ms / 2 > 0 ? ms / 2 : 1);
}

/* A manager that hears nothing ends a daemon that serves, or holds it to be reloading for ever. */
static void on_ready(uv_timer_t *timer)
{
        if (notify_ready())
                uv_timer_stop(timer);
}

static void tell_ready(struct daemon *d)
{
        if (!notify_ready())
                uv_timer_start(&d->ready, on_ready, READY_AGAIN_MS, READY_AGAIN_MS);
}

static void on_reload_over(struct reload *reload)
{
        tell_ready(container_of(reload, struct daemon, reload));
}

static void on_signal(uv_signal_t *handle, int signum)
{
        struct daemon *d = handle->data;
        if (d->closing_since != 0)
                return;
        log_event(LOG_LEVEL_INFO, LOG_STOPPING, NULL, "%s: ending", strsignal(signum));
        notify_stopping();
        http_stop(d->sources.http);
        d->closing_since = now_ns();
        server_close(&d->server);
        uv_timer_start(&d->ending, on_ending, 0, 5);
}

/* Threads first: what they still post is called here, on the loop's thread. False: some hang. */
static bool stop_threads(struct daemon *d)
{
        uint64_t deadline = now_ns() + UINT64_C(1000000000);
        bool all = loads_empty(&d->loads) && resident_empty(&d->resident);
        all = reader_deinit(&d->reader, deadline) && all;
        all = work_pool_stop(d->pool, deadline) && all;
        all = keep_stop(&d->server.keep, deadline) && all;
        for (size_t i = 0; i < d->n_devices; i++)
                all = work_pool_stop(d->devices[i]->thread, deadline) && all;
        return all;
}

static void close_handle(uv_handle_t *handle, void *arg)
{
        (void)arg;
        if (!uv_is_closing(handle))
                uv_close(handle, NULL);
}

static void take_apart(struct daemon *d)
{
        server_deinit(&d->server);
        uv_walk(&d->loop, close_handle, NULL);
        uv_run(&d->loop, UV_RUN_DEFAULT);
        require(uv_loop_close(&d->loop) == 0);
        monitor_free(d->monitor);
        resident_deinit(&d->resident);
        room_deinit(&d->room);
        work_pool_free(d->pool);
        for (size_t i = 0; i < d->n_devices; i++)
                device_free(d->devices[i]);
        cuda_free(d->cuda);
        source_roots_free(d->sources.roots);
        stores_free(&d->sources);
        web_free(d->sources.web);
        http_free(d->sources.http);
        wake_free(d->wake);
        config_deinit(&d->config);
}

/* ---- main ---- */

static int watch_signal(struct daemon *d, uv_signal_t *handle, uv_signal_cb cb, int signum)
{
        int r = uv_signal_init(&d->loop, handle);
        handle->data = d;
        return r < 0 ? r : uv_signal_start(handle, cb, signum);
}

static int start(struct daemon *d, struct error *error)
{
        if (uv_loop_init(&d->loop) != 0 || (d->wake = wake_new(&d->loop)) == NULL)
                return error_set(error, STREAMER_EOS, "the event loop could not be set up");
        int r = inherit_init(&d->inherit, error);
        if (r == 0)
                r = make_parts(d, error);
        inherit_deinit(&d->inherit);
        if (r < 0)
                return r;
        if (d->config.metrics.listen != NULL && d->config.metrics.listen[0] != '\0')
                r = monitor_new(&d->monitor, &d->server, d->config.metrics.listen, error);
        if (r < 0)
                return r;
        stall_watch_start(&d->stall, &d->loop);
        uv_timer_init(&d->loop, &d->ending);
        uv_timer_init(&d->loop, &d->ready);
        start_watchdog(d);
        d->ending.data = d;
        if (watch_signal(d, &d->sigterm, on_signal, SIGTERM) < 0 ||
            watch_signal(d, &d->sigint, on_signal, SIGINT) < 0 || watch_signal(d, &d->sighup, on_hangup, SIGHUP) < 0)
                return error_set(error, STREAMER_EOS, "signals cannot be watched");
        log_event(LOG_LEVEL_INFO, LOG_STARTED, NULL, "streamerd %s serves %s", STREAMERD_VERSION, d->server.path);
        tell_ready(d);
        return 0;
}

static void log_notes(char *notes)
{
        for (char *line = strtok(notes, "\n"); line != NULL; line = strtok(NULL, "\n"))
                log_info("%s", line);
}

int main(int argc, char **argv)
{
        static struct daemon d;
        static char notes[4096];
        struct error error = {0};
        enum config_action action;
        set_limits();
        if (config_load(&d.config, argc, argv, &action, notes, sizeof(notes), &error) < 0) {
                fprintf(stderr, "streamerd: %s\n", error.text);
                return code_exit(error.code);
        }
        if (action == CONFIG_EXIT) {
                config_deinit(&d.config);
                return 0;
        }
        log_init(d.config.log.level);
        log_set_output(&(struct log_output){.format = d.config.log.format, .to_stderr = d.config.log.to_stderr});
        log_notes(notes);
        reload_init(&d.reload, &d.server, &d.config, argc, argv, on_reloaded, on_reload_over);
        if (start(&d, &error) < 0) {
                log_error("%s", error.text);
                return EXIT_FAILURE;
        }
        uv_run(&d.loop, UV_RUN_DEFAULT);
        bool stopped = stop_threads(&d);
        if (!stopped)
                log_warn("some reads hang in the kernel: ending without them");
        log_flush();
        if (!stopped) {
                _exit(0);
        }
        take_apart(&d);
        return 0;
}
