/* SPDX-License-Identifier: Apache-2.0
 *
 * streamerd: puts the parts together, runs the loop, takes them apart.
 *
 * The end. SIGTERM, SIGINT, exit_idle or the verb `shutdown` closes the server; the loop goes on until connections,
 * loads and models are gone, clients that do not read are cut off after a grace, and whatever hangs in the kernel after
 * the deadline is left to the end of the process.
 */
#include "daemon/base/util.h"
#include "daemon/base/commit.h"
#include "daemon/base/log/log.h"
#include "daemon/base/sys/machine.h"
#include "daemon/base/sys/systemd.h"
#include "daemon/base/thread/threads.h"
#include "daemon/config/reload.h"
#include "daemon/config/setting.h"
#include "daemon/crypt/key_memory.h"
#include "daemon/io/file/file_object.h"
#include "daemon/io/http/http.h"
#include "daemon/io/remote/http_object.h"
#include "daemon/resident/hostcache/host_cache.h"
#include "daemon/serve/monitor/monitor.h"
#include "daemon/serve/monitor/page_server.h"
#include "daemon/serve/server.h"
#include "daemon/serve/verbs/verbs.h"
#include "daemon/source/hf/hf.h"
#include "daemon/source/s3/endpoint.h"

#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <uv.h>

#define DEVICES_MAX SETTING_LIST_MAX
#define HTTP_THREADS 4 /* at most, by default */
#define WORKERS 16
#define WORKERS_PER_LANE 4
#define FLUSH_GRACE_NS (UINT64_C(2) * 1000000000) /* for clients to read what is queued */
#define THREAD_STOP_NS (UINT64_C(100) * 1000000)  /* for a thread that has nothing to do */
#define PAGES_STOP_NS SECOND
#define END_NS (UINT64_C(4) * 1000000000) /* for everything that may hang */

struct devices {
        struct device *v[DEVICES_MAX];
        size_t n;
        struct cuda *cuda; /* NULL: no CUDA device is configured */
        struct device_absence absent[DEVICES_MAX];
        size_t n_absent;
};

struct daemon {
        struct config config;
        struct listen_fds listen_fds;
        uv_loop_t loop;
        uv_signal_t signals[3];
        uv_timer_t ending;
        struct wake *wake;
        struct devices devices;
        struct sources sources;
        struct work_pool *pool;
        struct reader reader;
        struct resident resident;
        struct admission admission;
        struct host_cache cache;
        struct loads loads;
        struct server server;
        struct page_server *pages; /* NULL: no address to listen at */
        struct reload reload;
        uint64_t closing_since;
};

/* ---- set-up ---- */

static void prepare_process(void)
{
        int fd;
        /* libuv does not close handles of the standard descriptors, which a closed one would become. */
        do {
                fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        } while (fd >= 0 && fd <= STDERR_FILENO);
        if (fd >= 0)
                close(fd);
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

/* ---- devices ---- */

static int add_device(struct devices *d, struct device *device, bool optional, struct error *error)
{
        for (size_t i = 0; i < d->n; i++)
                if (strcmp(d->v[i]->uuid, device->uuid) == 0 && d->v[i]->ops == device->ops) {
                        int r = optional ? 0
                                         : error_set(error, STREAMER_EINVAL, "device %s is configured twice",
                                                     device->name);
                        device_free(device);
                        return r;
                }
        require(d->n < DEVICES_MAX);
        device->number = (unsigned)d->n;
        d->v[d->n++] = device;
        char budget[SIZE_TEXT];
        log_info("device %s: budget %s, %s pages (%s)", device->name, size_text(budget, device->budget),
                 page_kind_name(device->pages), device->uuid);
        return 0;
}

/* Notes why an optional device does not work; else the error itself. */
static int add_absence(struct devices *d, const struct config_device *c, struct error *error)
{
        if (!c->optional)
                return error->code;
        log_warn("device %s: not used: %s", c->name, error->text);
        struct device_absence *absence = &d->absent[d->n_absent++];
        snprintf(absence->name, sizeof(absence->name), "%s", c->name);
        absence->error = *error;
        *error = (struct error){0};
        return 0;
}

static int add_cuda(struct daemon *daemon, const struct config_device *c, struct error *error)
{
        const struct config *config = &daemon->config;
        struct devices *d = &daemon->devices;
        int ordinals[DEVICES_MAX];
        struct cuda_opts opts = {.budget = c->budget,
                                 .budget_percent = c->budget_percent,
                                 .handles = c->handles,
                                 .max_segment = config->cuda.segment_size,
                                 .readback = config->cuda.readback};
        int r = d->cuda != NULL ? 0 : cuda_new(&d->cuda, filled(config->cuda.library), &config->cuda.settings, error);
        int n = r < 0 ? r : cuda_find(d->cuda, c->name, ordinals, (int)(DEVICES_MAX - d->n), error);
        for (int i = 0; i < n; i++) {
                struct device *device;
                if (cuda_device_new(&device, d->cuda, ordinals[i], &opts, daemon->wake, error) < 0 ||
                    add_device(d, device, c->optional, error) < 0)
                        return add_absence(d, c, error);
        }
        return n < 0 ? add_absence(d, c, error) : 0;
}

/* Of the machine, or of the daemon's control group if that is less. */
static uint64_t machine_memory(void)
{
        uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES), group = machine_cgroup_memory();
        uint64_t memory = pages * (uint64_t)sysconf(_SC_PAGE_SIZE);
        return memory < group ? memory : group;
}

static int add_host(struct daemon *d, const struct config_device *c, struct error *error)
{
        struct host_opts opts = {.budget = c->budget, .pages = c->pages, .prefault = c->prefault};
        char budget[SIZE_TEXT], memory[SIZE_TEXT];
        struct device *device;
        if (c->budget_percent != 0)
                opts.budget = machine_memory() / 100 * c->budget_percent;
        if (opts.budget > machine_memory())
                log_warn("host: the budget of %s is more than the memory of this machine or the control group, %s",
                         size_text(budget, opts.budget), size_text(memory, machine_memory()));
        if (c->prefault != PREFAULT_AUTO && c->prefault > opts.budget)
                log_warn("host: prefaulted: %s exceeds the budget, which limits it", size_text(memory, c->prefault));
        return host_device_new(&device, &opts, d->wake, error) ?: add_device(&d->devices, device, false, error);
}

/* One entry of `devices` is one device, or several ("cuda:all"). A GPU can be named in several ways: that two entries
 * are one device is detected by their UUIDs once both exist. */
static int make_devices(struct daemon *d, struct error *error)
{
        int r = 0;
        for (size_t i = 0; r == 0 && i < d->config.n_devices; i++) {
                const struct config_device *c = &d->config.devices[i];
                r = strcmp(c->name, "host") == 0 ? add_host(d, c, error) : add_cuda(d, c, error);
        }
        if (r == 0 && d->devices.n == 0)
                r = error_set(error, STREAMER_EUNSUPPORTED, "no device works: %s: %s", d->devices.absent[0].name,
                              d->devices.absent[0].error.text);
        return r;
}

/* Where host memory sits next to all of them. */
static struct numa_choice devices_numa(const struct devices *d)
{
        int nodes[DEVICES_MAX];
        for (size_t i = 0; i < d->n; i++)
                nodes[i] = d->v[i]->numa_node;
        return numa_choose(numa_online(), nodes, d->n);
}

/* ---- storage ---- */

/* What remote sources need: the HTTP client, credentials by host, S3 endpoints, the Hub. */
static int make_stores(const struct config *config, struct sources *sources, struct error *error)
{
        struct http_opts opts = config->http.opts;
        unsigned processors = (unsigned)get_nprocs();
        if (opts.threads == 0)
                opts.threads = processors < HTTP_THREADS ? processors : HTTP_THREADS;
        opts.ca = filled(config->http.ca);
        opts.allow_plain = (const char *const *)config->http.allow_plain;
        opts.n_allow_plain = config->http.n_allow_plain;
        sources->hosts = config->http.hosts;
        sources->n_hosts = config->http.n_hosts;
        web_hosts_warn(sources->hosts, sources->n_hosts, &opts);
        struct s3_endpoint_opts s3 = config->s3;
        s3.variable = config_variable(config, "s3.endpoint");
        return http_new(&sources->http, &opts, error)
                       ?: s3_endpoints_new(&sources->s3, &s3, config->s3_sources, config->n_s3_sources,
                                           &sources->http->opts, error)
                       ?: gcs_stores_new(&sources->gcs, &config->gcs, config->gcs_sources, config->n_gcs_sources,
                                         (const char *const *)config->gcs_token_hosts, config->n_gcs_token_hosts,
                                         &sources->http->opts, error)
                       ?: azure_stores_new(&sources->azure, &config->azure, config->azure_sources,
                                           config->n_azure_sources, &sources->http->opts, error)
                       ?: hf_new(&sources->hf, config->hf.endpoint, config_variable(config, "hf.endpoint"),
                                 config->hf.token, error);
}

/* Its thread reads the folder, and the loop does not wait for it. */
static int make_disk_cache(struct daemon *d, struct error *error)
{
        const char *path = filled(d->config.disk_cache.path);
        const struct disk_limits limits = config_disk_limits(&d->config);
        if (path == NULL)
                return 0;
        d->sources.also = (const char *const *)d->config.disk_cache.also;
        d->sources.n_also = d->config.disk_cache.n_also;
        return disk_cache_new(&d->sources.disk, path, source_lane(path), &limits, error)
                       ?: disk_writer_new(&d->loads.disk_writer, d->sources.disk, &d->reader, error);
}

static void on_ring_unpinned(void *reader)
{
        reader_ring_unpinned(reader);
}

/* Beside the ring: its code, threads and tables, connections and requests. */
#define OWN_MEMORY (16 * MiB)

/* Memory that models never take: without it, the kernel kills the daemon once they fill the machine or its control
 * group. A ring of the pool's pages has its memory from the start. */
static void reserve_memory(const struct daemon *d)
{
        const struct staging *ring = &d->reader.staging;
        for (size_t i = 0; i < d->devices.n; i++)
                d->devices.v[i]->reserve = OWN_MEMORY + (ring->pages == PAGES_HUGETLB ? 0 : ring->bytes);
}

static int make_reader(struct daemon *d, struct error *error)
{
        struct config *c = &d->config;
        char numa[256];
        /* A device that copies wants two slots for each reader thread: one is filled, one is copied. */
        unsigned slots = (d->devices.cuda != NULL ? 2 * READER_THREADS_PER_BLOCK : 1) * c->io.concurrency;
        uint64_t bytes;
        int r = config_fit_ring(c, slots, machine_memory(), &bytes, error);
        if (r < 0)
                return r;
        uint64_t ring = slots * c->io.block_size;
        struct reader_opts opts = {.concurrency = c->io.concurrency,
                                   .block_size = c->io.block_size,
                                   .memory_limit = bytes,
                                   .stall_ns = c->io.stall_ns,
                                   .numa = devices_numa(&d->devices),
                                   .engines = {[READ_PREAD] = &pread_engine_ops, [READ_HTTP] = &http_engine_ops},
                                   .network_threads = d->sources.http->opts.threads,
                                   .request_max = d->sources.http->opts.request_max,
                                   .if_unpinned = d->devices.cuda != NULL ? cuda_if_unpinned : NULL,
                                   .pinning = d->devices.cuda,
                                   .idle_ns = READER_IDLE_NS};
        for (size_t i = 0; i < c->n_warnings; i++)
                log_warn("%s", c->warnings[i]);
        r = reader_init(&d->reader, &opts, d->wake, error);
        if (r < 0)
                return r;
        reserve_memory(d);
        if (d->devices.cuda != NULL)
                cuda_set_ring(d->devices.cuda, d->reader.staging.base, d->reader.staging.bytes,
                              &d->reader.staging.pinned, on_ring_unpinned, &d->reader);
        if (d->devices.cuda != NULL && c->cuda.context_at_start)
                cuda_create_contexts(d->devices.cuda);
        if (d->devices.cuda != NULL && opts.memory_limit < ring)
                log_warn(
                        "io.memory_limit: %u slots for %u reader threads, which want two each where they copy to GPUs: "
                        "loads will be slower",
                        d->reader.staging.n_slots, d->reader.engines[READ_PREAD].base);
        char block[SIZE_TEXT];
        log_info("ring: %u slots of %s on %s pages, %u reader threads%s%s", d->reader.staging.n_slots,
                 size_text(block, opts.block_size), page_kind_name(d->reader.staging.pages),
                 d->reader.engines[READ_PREAD].base, opts.numa.nodes != 0 ? ", " : "",
                 numa_text(&opts.numa, numa, sizeof(numa)));
        return 0;
}

static void make_models(struct daemon *d)
{
        const struct config *c = &d->config;
        resident_init(&d->resident, d->wake, d->devices.v, d->devices.n, c->limits.failed_kept);
        admission_init(&d->admission, &d->resident, c->limits.queued);
        uint64_t cache = c->host_cache;
        host_cache_init(&d->cache, &d->resident, host_cache_budget(cache, machine_cgroup_memory(), machine_memory()));
        if (cache > 0) {
                char budget[SIZE_TEXT];
                log_info("host cache: %s%s", size_text(budget, d->cache.budget),
                         cache > d->cache.budget
                                 ? ", half of what the machine or the cgroup allows: less than configured"
                                 : "");
                if (d->devices.cuda == NULL)
                        log_warn("host cache: not used: no GPU is configured");
        }
        loads_init(&d->loads);
        d->loads.resident = &d->resident;
        d->loads.sources = &d->sources;
        d->loads.reader = &d->reader;
        d->loads.pool = d->pool;
        d->loads.block_size = c->io.block_size;
        d->loads.defaults = (struct model_settings){.keep_alive_ns = c->residency.keep_alive_ns,
                                                    .drain_timeout_ns = c->residency.drain_timeout_ns,
                                                    .priority = PROTO_PRIORITY_DEFAULT};
}

static int make_server(struct daemon *d, struct error *error)
{
        const struct config *c = &d->config;
        struct server *s = &d->server;
        int listener;
        s->session_ops = &verbs_session_ops;
        s->roles = &d->config.access;
        s->limits = &d->config.limits;
        s->share_across_uids = c->cuda.across_uids;
        s->trust_detach = c->cuda.trust_detach;
        s->publish_across_uids = c->publish.across_uids;
        s->publish_cuda_ipc = c->publish.cuda_ipc;
        s->publish_keep = c->publish.keep;
        s->resident = &d->resident;
        s->loads = &d->loads;
        s->exit_idle_ns = c->exit_idle_ns;
        s->cuda = d->devices.cuda;
        s->cuda_library = filled(c->cuda.library);
        s->absent = d->devices.absent;
        s->n_absent = d->devices.n_absent;
        return listen_fds_take_listener(&d->listen_fds, &listener, error)
                       ?: server_init_consume_fd(s, &d->loop, c->socket, listener, error)
                       ?: persist_init(&s->persist, &d->resident, &s->leases, d->wake, fdstore_max(), error);
}

static int make_parts(struct daemon *d, struct error *error)
{
        struct config *c = &d->config;
        struct server *s = &d->server;
        const char *folder = filled(c->state);
        struct snapshot newest;
        struct keyring *keyring = NULL;
        int r = source_roots_new(&d->sources.roots, (const char *const *)c->roots, c->n_roots, error)
                        ?: roles_open(&c->access, d->sources.roots, error)
                        ?: config_keyring(c, &keyring, error)
                        ?: make_devices(d, error)
                        ?: make_stores(c, &d->sources, error)
                        ?: make_reader(d, error);
        if (r < 0)
                return r;
        d->pool = work_pool_new(d->wake, "worker", WORKERS, WORKERS_PER_LANE);
        if (d->pool == NULL)
                return error_set(error, STREAMER_ENOMEM,
                                 "no memory, or no more threads are allowed (ulimit -u, pids.max)");
        make_models(d);
        reload_set_keyring(&d->loads, keyring);
        r = make_disk_cache(d, error) ?: make_server(d, error) ?: reload_apply(&d->reload, error);
        if (r < 0)
                return r;
        /* What an earlier run has left: models at once, the pinned ones among the rest by loading them. */
        persist_recover(&s->persist, &d->listen_fds, folder, &newest);
        scrub_init(&s->scrub, &s->desired);
        desired_restore(&s->desired, &newest);
        snapshot_deinit(&newest);
        persist_start(&s->persist, d->pool, folder, desired_mark, desired_row, &s->desired);
        return 0;
}

/* ---- the end ---- */

static void on_ending(uv_timer_t *timer)
{
        struct daemon *d = timer->data;
        uint64_t since = now_ns() - d->closing_since;
        bool closed = server_release(&d->server, since > FLUSH_GRACE_NS) && loads_empty(&d->loads) &&
                      list_empty(&d->resident.generations) && list_empty(&d->cache.copies) &&
                      !persist_is_writing(&d->server.persist) && cuda_close(d->devices.cuda);
        if (closed || since > END_NS)
                uv_stop(&d->loop);
}

static void end(struct server *server, const char *why)
{
        struct daemon *d = container_of(server, struct daemon, server);
        if (d->closing_since != 0)
                return;
        log_event(LOG_LEVEL_INFO, LOG_STOPPING, NULL, "%s: shutting down", why);
        notify_state("STOPPING=1"); /* no new work is taken */
        store_relaxed(&d->sources.http->stopping, true);
        d->closing_since = now_ns();
        server_close(server);
        uv_timer_start(&d->ending, on_ending, 0, 5);
}

static void on_signal(uv_signal_t *handle, int number)
{
        struct daemon *d = handle->data;
        if (number == SIGHUP)
                reload_begin(&d->reload);
        else
                end(&d->server, number == SIGINT ? "SIGINT received" : "SIGTERM received");
}

/* Threads first: what they still post is called here, on the loop's thread. False: some hang. */
static bool stop_threads(struct daemon *d, bool *cuda_hangs)
{
        uint64_t deadline = now_ns() + UINT64_C(1000000000);
        bool all = loads_empty(&d->loads) && list_empty(&d->resident.generations) && list_empty(&d->cache.copies) &&
                   !persist_is_writing(&d->server.persist) && cuda_close(d->devices.cuda);
        bool stopped = work_pool_stop(d->pool, deadline);
        stopped = disk_writer_stop(d->loads.disk_writer, deadline) && stopped;
        stopped = persist_stop(&d->server.persist, deadline) && stopped;
        *cuda_hangs = false;
        for (size_t i = 0; i < d->devices.n; i++) {
                const struct device *device = d->devices.v[i];
                uint64_t idle = now_ns() + THREAD_STOP_NS;
                bool idles = work_pool_stop(device->thread, deadline > idle ? deadline : idle);
                /* The thread of a GPU makes CUDA's calls: if it does not stop, one of them hangs. */
                *cuda_hangs |= !idles && device->pages == PAGES_DEVICE;
                stopped = stopped && idles;
        }
        /* The last work for clients that are gone has been posted since the loop ended: each piece frees itself. */
        if (stopped && all)
                wake_drain(d->wake);
        /* Workers may use slots of the ring, and contexts register it: only now is it freed. */
        return stopped && reader_deinit(&d->reader, deadline) && all;
}

static void close_handle(uv_handle_t *handle, void *arg)
{
        if (!uv_is_closing(handle))
                uv_close(handle, NULL);
}

static void take_apart(struct daemon *d)
{
        server_deinit(&d->server);
        uv_walk(&d->loop, close_handle, NULL);
        uv_run(&d->loop, UV_RUN_DEFAULT);
        require(uv_loop_close(&d->loop) == 0);
        page_server_free(d->pages);
        require(list_empty(&d->resident.generations));
        require(list_empty(&d->admission.queue));
        work_pool_free(d->pool);
        for (size_t i = 0; i < d->devices.n; i++)
                device_free(d->devices.v[i]);
        cuda_free(d->devices.cuda);
        source_roots_free(d->sources.roots);
        disk_writer_free(d->loads.disk_writer);
        disk_cache_free(d->sources.disk);
        s3_endpoints_free(d->sources.s3);
        gcs_stores_free(d->sources.gcs);
        azure_stores_free(d->sources.azure);
        hf_free(d->sources.hf);
        http_free(d->sources.http);
        poll_set_free(d->server.polls);
        wake_free(d->wake);
        keyring_free(d->loads.keyring);
        config_deinit(&d->config);
}

/* ---- main ---- */

static int start(struct daemon *d, struct error *error)
{
        static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
        if (uv_loop_init(&d->loop) != 0 || (d->wake = wake_new(&d->loop)) == NULL ||
            (d->server.polls = poll_set_new(&d->loop)) == NULL)
                return error_set(error, STREAMER_EOS, "the event loop could not be set up");
        int r = listen_fds_init(&d->listen_fds, error) ?: make_parts(d, error);
        listen_fds_deinit(&d->listen_fds);
        if (r < 0)
                return r;
        const struct pages_opts pages = {.wake = d->wake,
                                         .metrics = filled(d->config.metrics.listen),
                                         .certificate = filled(d->config.metrics.certificate),
                                         .key = filled(d->config.metrics.key),
                                         .client_ca = filled(d->config.metrics.client_ca),
                                         .token_file = filled(d->config.metrics.token_file),
                                         .health = filled(d->config.health.listen)};
        r = pages_new(&d->pages, &d->server, &pages, error);
        if (r < 0)
                return r;
        if (!thread_raise_priority())
                log_debug("the loop has no better nice value than the rest (RLIMIT_NICE)");
        loop_cpu_start(&d->server.loop_cpu, &d->loop);
        uv_timer_init(&d->loop, &d->ending);
        d->ending.data = d;
        d->server.exit = end;
        for (size_t i = 0; i < ARRAY_SIZE(signals); i++) { /* all other threads block them (thread_start()) */
                d->signals[i].data = d;
                if (uv_signal_init(&d->loop, &d->signals[i]) != 0 ||
                    uv_signal_start(&d->signals[i], on_signal, signals[i]) != 0)
                        return error_set(error, STREAMER_EOS, "signals cannot be watched");
        }
        log_event(LOG_LEVEL_INFO, LOG_STARTED, NULL, "streamerd %s (commit %s) serves %s", STREAMERD_VERSION,
                  build_commit, d->server.listener.path);
        manager_notify_ready(&d->server);
        return 0;
}

int main(int argc, char **argv)
{
        static struct daemon d;
        struct error error = {0};
        prepare_process();
        key_memory_init();
        int r = config_load(&d.config, argc, argv, &error);
        if (r < 0) {
                fprintf(stderr, "streamerd: %s\n", error.text);
                return code_exit(error.code);
        }
        if (r == CONFIG_PRINTED)
                return 0;
        log_set_level(d.config.log.level);
        log_set_output(&(struct log_output){.format = d.config.log.format, .to_stderr = d.config.log.to_stderr});
        log_start();
        reload_init(&d.reload, &d.server, &d.config, &d.sources, argc, argv);
        if (start(&d, &error) < 0) {
                log_error("%s", error.text);
                log_stop();
                return error.code == STREAMER_EBUSY ? code_exit(STREAMER_EBUSY) : EXIT_FAILURE;
        }
        uv_run(&d.loop, UV_RUN_DEFAULT);
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all,
                        NULL); /* a second SIGTERM changes nothing, also once libuv's handlers are gone */
        bool cuda_hangs, pages_stopped = page_server_stop(d.pages, now_ns() + PAGES_STOP_NS);
        bool stopped = stop_threads(&d, &cuda_hangs) && pages_stopped;
        if (cuda_hangs)
                log_warn("a call of CUDA has not returned: ending without it");
        else if (!stopped)
                log_warn("some reads hang in the kernel%s: ending without them",
                         d.devices.cuda != NULL ? " or in CUDA" : "");
        log_flush();
        if (!stopped)
                _exit(0);
        take_apart(&d);
        log_stop();
        return 0;
}
