/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests of resident models: two devices, of which begin() configures one, generations as a load creates
 * them, and leases.
 */
#pragma once

#include "tests/lib/core.h"

#include "daemon/resident/hostcache/host_cache.h"
#include "daemon/resident/lease.h"

#include <sys/eventfd.h>

static struct fake_device fakes[2];
static struct device *devices[2];
static struct resident resident;
static struct host_cache host_cache;
static struct leases leases;
static unsigned changes, watched, unwatched;
static bool fail_watch;

static inline void on_changed(struct resident *r, struct generation *generation, const char *removed)
{
        ck_assert_ptr_eq(r, &resident);
        ck_assert_ptr_nonnull(generation);
        changes++;
}

static inline int watch_process(struct process *process)
{
        watched++;
        return fail_watch ? STREAMER_ENOMEM : 0;
}

static inline void unwatch_process(struct process *process)
{
        unwatched++;
}

static inline void begin_with(size_t n_devices, uint64_t budget, uint64_t failed_kept)
{
        for (unsigned i = 0; i < 2; i++) {
                fake_device_init(&fakes[i], i == 0 ? "first" : "second", budget, false);
                fakes[i].device.number = i;
                devices[i] = &fakes[i].device;
        }
        resident_init(&resident, core_wake, devices, n_devices, failed_kept);
        host_cache_init(&host_cache, &resident, 0);
        resident.changed = on_changed;
        leases_init(&leases);
        leases.watch = watch_process;
        leases.unwatch = unwatch_process;
}

static inline void begin(void)
{
        begin_with(1, 64 * MiB, 2);
}

static inline void drop_all(void)
{
        list_each_item_safe (struct generation, g, &resident.generations, link) {
                if (g->state == GENERATION_LOADING) {
                        generation_fail(g, &(struct error){.code = STREAMER_ECANCELED});
                        generation_put(g);
                } else if (!list_empty(&g->names)) {
                        generation_drop_all(g);
                }
        }
}

/* Frees what a test left, as the daemon would. */
static inline void end(void)
{
        while (!list_empty(&resident.generations)) {
                drop_all();
                uv_run(&core_loop, UV_RUN_NOWAIT);
        }
        for (int i = 0; i < 2; i++) {
                ck_assert_uint_eq(fakes[i].device.used, 0);
                ck_assert_uint_eq(resident.idle[i].bytes + resident.idle[i].freeing, 0);
                fake_device_deinit(&fakes[i]);
        }
}

/* ---- generations of loads ---- */

static inline struct generation *loading_on(const char *name, int device)
{
        struct generation *g = generation_new(&resident, name, "/models/x", devices[device], 0);
        ck_assert_ptr_nonnull(g);
        generation_assign_number(g);
        return g;
}

static inline struct generation *loading(const char *name)
{
        return loading_on(name, 0);
}

static inline struct generation *charged(struct generation *g, uint64_t bytes)
{
        struct error error = {0};
        ck_assert_msg(generation_charge(g, bytes, &error) == 0, "%s", error.text);
        return g;
}

/* With its own memory: a segment and tables. */
static inline struct generation *allocated(struct generation *g, uint64_t bytes)
{
        struct error error = {0};
        charged(g, bytes);
        ck_assert_int_eq(generation_make_segments(g, 1), 0);
        ck_assert_int_eq(g->device->ops->alloc(g->device, bytes, &g->segments[0], &error), 0);
        g->n_segments = 1;
        ck_assert_int_eq(host_table_new(&g->manifest, "m", 4096, &error), 0);
        ck_assert_int_eq(host_table_new(&g->arrival, "a", 4096, &error), 0);
        return g;
}

static inline struct generation *loading_with(const char *name, uint64_t bytes)
{
        return allocated(loading(name), bytes);
}

/* The load is done with it. */
static inline struct generation *ready(struct generation *g)
{
        generation_ready(g);
        generation_put(g);
        return g;
}

static inline struct generation *failed(struct generation *g, const char *text)
{
        struct error error;
        error_set(&error, STREAMER_EFAILED, "%s", text);
        generation_fail(g, &error);
        generation_put(g);
        return g;
}

/* As a client changes them, of each of its names. */
static inline void change_settings(struct generation *g, unsigned asks, struct model_settings to)
{
        const struct settings_change change = {asks, to};
        list_each_item (struct model_name, n, &g->names, link)
                model_name_change_settings(n, &change);
}

static inline void set_pin(struct generation *g, bool pinned)
{
        change_settings(g, SETTING_PINNED, (struct model_settings){.pinned = pinned});
}

static inline struct generation *set_keep_alive(struct generation *g, uint64_t keep_alive_ns)
{
        change_settings(g, SETTING_KEEP_ALIVE, (struct model_settings){.keep_alive_ns = keep_alive_ns});
        return g;
}

static inline void set_last_used(struct generation *g, uint64_t at_ns)
{
        g->last_used_ns = at_ns;
        generation_settings_changed(g);
}

/* ---- leases ---- */

/* An eventfd replaces the pidfd, because no test waits on it. */
static inline struct process *process_of(pid_t pid)
{
        return leases_process_consume_fd(&leases, pid, 0, must(eventfd(0, EFD_CLOEXEC)), 0);
}
