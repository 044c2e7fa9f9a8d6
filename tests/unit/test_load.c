/* SPDX-License-Identifier: Apache-2.0
 *
 * One load, from a source to a generation that serves, with loop, reader, pool and files as in the
 * daemon, a device that obeys, and no server: how loads go well, meet, end early and fail.
 *
 * A load is held in a state by work that blocks the lane of its file system (opening, planning,
 * checking) or by a gate of the device (allocating, reading). After every test nothing may be left:
 * no byte of the budget, no descriptor, no thread.
 */
#include "tests/lib/core.h"

#include "daemon/base/util.h"
#include "daemon/load/load.h"
#include "tests/lib/hang.h"
#include "tests/lib/storage.h"

#include <fcntl.h>
#include <openssl/sha.h>
#include <string.h>
#include <sys/stat.h>

#define SECOND UINT64_C(1000000000)
#define BLOCK (2 * MiB)
#define BUDGET (64 * MiB)

static struct fake_device fake;
static struct device *devices[2];
static struct reader reader;
static struct work_pool *pool;
static struct resident resident;
static struct loads loads;
static struct gate lane_gate;
static struct held_work lane_work;
static unsigned arrivals, fds_before;

static void on_arrived(struct loads *l, struct generation *g)
{
        ck_assert_ptr_eq(l, &loads);
        ck_assert_int_ge(g->manifest.fd, 0);
        ck_assert_int_ge(g->arrival.fd, 0);
        arrivals++;
}

static void begin(void)
{
        struct error error = {0};
        struct reader_opts opts = {.concurrency = 2, .block_size = BLOCK, .memory_limit = 2 * BLOCK};
        const struct source_roots *roots = core_roots();
        fds_before = process_fds(getpid());
        gate_init(&lane_gate, false);
        fake_device_init(&fake, "fake", BUDGET, false);
        devices[0] = &fake.device;
        resident_init(&resident, devices, 1, 4);
        ck_assert_int_eq(reader_init(&reader, &opts, core_wake, &error), 0);
        pool = work_pool_new(core_wake, "pool", 4, 1);
        loads = (struct loads){.max_running = 8,
                               .resident = &resident,
                               .roots = roots,
                               .reader = &reader,
                               .pool = pool,
                               .block_size = BLOCK,
                               .arrived = on_arrived};
        loads_init(&loads);
}

/* Takes a name from somebody who is not loading; false: there is nobody. */
static bool drop_one_name(void)
{
        list_each (pos, &resident.generations) {
                struct generation *g = container_of(pos, struct generation, link);
                if (g->state == GENERATION_LOADING || list_empty(&g->names))
                        continue;
                char *name = format_text("%s", generation_name(g));
                generation_drop_name(g, name);
                free(name);
                return true;
        }
        return false;
}

static void end(void)
{
        loads_cancel_all(&loads);
        gate_open(&lane_gate);
        while (drop_one_name())
                ;
        core_until(loads_empty(&loads) && resident_empty(&resident));
        ck_assert_uint_eq(loads.n_running, 0);
        ck_assert_uint_eq(fake.device.used, 0);
        ck_assert(reader_deinit(&reader, now_ns() + 20 * SECOND));
        ck_assert(work_pool_stop(pool, now_ns() + 20 * SECOND));
        work_pool_free(pool);
        core_settle();
        fake_device_deinit(&fake);
        ck_assert_uint_eq(process_fds(getpid()), fds_before);
        ck_assert_uint_eq(threads_named("reader") + threads_named("pool") + threads_named("fake-device"), 0);
}

/* ---- loads, watched ---- */

struct watched {
        struct load_watch watch;
        struct load *load;
        bool ended;
        enum load_state state;
        struct error error;
        struct load_progress progress;
        struct load_estimate estimate;
        struct generation *generation;
};

static void on_ended(struct load_watch *watch, struct load *load)
{
        struct watched *w = container_of(watch, struct watched, watch);
        ck_assert_msg(!w->ended, "told twice");
        w->ended = true;
        w->state = load->state;
        w->error = load->error;
        w->estimate = load->estimate;
        w->generation = load->generation;
        load_progress(load, &w->progress);
}

static int request(struct watched *w, const struct load_request *request)
{
        *w = (struct watched){0};
        int r = loads_begin(&loads, request, &w->load, &w->error);
        if (r == 0)
                load_watch(w->load, &w->watch, on_ended);
        return r;
}

static void start(struct watched *w, const char *source, const char *name)
{
        int r = request(w, &(struct load_request){.source = source, .name = name, .caller = &core_caller});
        ck_assert_msg(r == 0, "%s", w->error.text);
        ck_assert(!load_ended(w->load->state)); /* never inside the call that began it */
        ck_assert(!w->ended);
}

static void start_sha256(struct watched *w, const char *source, const char *name)
{
        int r = request(w,
                        &(struct load_request){.source = source, .name = name, .sha256 = true, .caller = &core_caller});
        ck_assert_msg(r == 0, "%s", w->error.text);
}

static struct generation *load_ready(const char *source, const char *name)
{
        struct watched w;
        start(&w, source, name);
        core_until(w.ended);
        ck_assert_msg(w.state == LOAD_READY, "%s", w.error.text);
        return w.generation;
}

static void load_fails(const char *source, const char *name, int code, const char *text)
{
        struct watched w;
        start(&w, source, name);
        core_until(w.ended);
        ck_assert_int_eq((int)w.state, (int)LOAD_FAILED);
        ck_assert_msg(w.error.code == code && strstr(w.error.text, text) != NULL, "%d %s", w.error.code, w.error.text);
}

/* ---- models ---- */

static struct model *small_model(uint64_t seed)
{
        struct model *m = model_new(seed);
        model_set_metadata(m, "{\"format\":\"pt\"}");
        model_add(m, "w", "U8", (uint64_t[]){3 * MiB + 5}, 1);
        model_add(m, "b", "BF16", (uint64_t[]){3, 7}, 2);
        model_add(m, "none", "F32", (uint64_t[]){0}, 1);
        model_add_many(m, "x", 50, 333);
        return m;
}

static char *small_file(const char *name, uint64_t seed)
{
        struct model *m = small_model(seed);
        char *path = core_write(m, name);
        model_free(m);
        return path;
}

/* A tensor a block, a segment each where the device has small ones. */
static char *blocks_file(const char *name, size_t n)
{
        struct model *m = model_new(n);
        model_place_data(m, 4096, 0);
        model_add_many(m, "t", n, BLOCK);
        char *path = core_write(m, name);
        model_free(m);
        return path;
}

static void record_equals(const struct generation *g, const struct manifest_view *view, uint64_t i,
                          const struct model *m)
{
        const char *why = "";
        unsigned char digest[DIGEST_SIZE];
        const struct manifest_record *r = &view->records[i];
        ck_assert_msg(manifest_check(view, i, &why) == 0, "%s", why);
        size_t t = model_index(m, view->strings + r->name_off);
        ck_assert_uint_lt(t, m->n);
        model_tensor_digest(m, t, digest);
        ck_assert_mem_eq(r->digest, digest, DIGEST_SIZE);
        const unsigned char *memory = g->segments[r->segment].base;
        if (memory == NULL && r->bytes > 0)
                memory = fake_memory(&g->segments[r->segment]);
        ck_assert(r->bytes == 0 || model_check(m, t, memory + r->offset));
}

/* It serves, and is the model: manifest, bytes, arrivals, digests. */
static void serves(const struct generation *g, const struct model *m)
{
        struct manifest_view view;
        const char *why = "";
        char got[33], want[33];
        ck_assert_int_eq((int)g->state, (int)GENERATION_READY);
        ck_assert_msg(manifest_open(&view, g->manifest.map, g->manifest.size, &why) == 0, "%s", why);
        ck_assert_uint_eq(view.header->n_records, m->n);
        ck_assert_uint_eq(((const struct arrival_header *)g->arrival.map)->count, m->n);
        for (uint64_t i = 0; i < m->n; i++)
                record_equals(g, &view, i, m);
        for (size_t i = 0; i < DIGEST_SIZE; i++)
                snprintf(got + 2 * i, 3, "%02x", g->digest[i]);
        model_digest(m, want);
        ck_assert_str_eq(got, want);
        ck_assert_mem_eq(view.header->digest, g->digest, DIGEST_SIZE);
}

static void serves_small(const struct generation *g, uint64_t seed)
{
        struct model *m = small_model(seed);
        serves(g, m);
        model_free(m);
}

/* ---- how it goes well ---- */

/* Loop test: in place, and through slots. */
START_TEST(a_load_becomes_a_model_that_serves)
{
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        fake.hidden = _i == 1;
        if (fake.hidden)
                fake.device.layout = (struct device_layout){.page = 0, .align = 256, .granularity = 2 * MiB};
        file_uncache(path);
        start(&w, path, "m");
        core_until(w.ended);
        ck_assert_msg(w.state == LOAD_READY, "%s", w.error.text);
        struct generation *g = resident_ready(&resident, "m");
        ck_assert_ptr_eq(g, w.generation);
        serves_small(g, 1);
        ck_assert_str_eq(g->source, path);
        ck_assert(!g->verified);
        ck_assert_uint_gt(arrivals, 0);
        ck_assert_uint_eq(fake.device.used, g->segments[0].size);
        ck_assert_uint_eq(w.progress.bytes, g->data_bytes);
        ck_assert_uint_eq(w.progress.total, g->data_bytes);
        ck_assert_uint_eq(w.progress.tensors, 53);
        ck_assert_uint_eq(w.progress.tensors_total, 53);
        ck_assert_uint_eq(w.progress.generation, g->number);
}
END_TEST

START_TEST(a_load_leaves_nothing_but_what_it_made)
{
        load_ready(small_file("small.safetensors", 1), "m");
        core_until(loads_empty(&loads));
        ck_assert_uint_eq(resident_ready(&resident, "m")->pins, 0);
        generation_drop_name(resident_ready(&resident, "m"), "m");
        core_until(resident_empty(&resident));
        ck_assert_uint_eq(fake.device.used, 0);
        ck_assert_uint_eq(fake.freed, 1);
}
END_TEST

START_TEST(a_folder_with_an_index_is_one_model)
{
        struct model *m = small_model(2);
        char *folder = suite_path("sharded");
        model_write_sharded(m, folder, 3, true);
        serves(load_ready(folder, "m"), m);
        model_free(m);
}
END_TEST

START_TEST(the_host_device_serves_it_too)
{
        struct error error = {0};
        struct device *host;
        ck_assert_int_eq(host_device_new(&host, BUDGET, HOST_PAGES_4K, core_wake, &error), 0);
        devices[0] = host;
        serves_small(load_ready(small_file("small.safetensors", 1), "m"), 1);
        core_until(loads_empty(&loads));
        while (drop_one_name())
                ;
        core_until(resident_empty(&resident));
        ck_assert_uint_eq(host->used, 0);
        devices[0] = &fake.device;
        ck_assert(work_pool_stop(host->thread, now_ns() + 20 * SECOND));
        device_free(host);
}
END_TEST

START_TEST(a_model_without_bytes_has_no_segment_and_is_ready)
{
        struct model *m = model_new(1);
        if (_i == 1)
                model_add(m, "empty", "F32", (uint64_t[]){0, 4}, 2);
        struct generation *g = load_ready(core_write(m, "none.safetensors"), "m");
        serves(g, m);
        ck_assert_uint_eq(g->n_segments, 0);
        ck_assert_uint_eq(fake.device.used, 0);
        ck_assert_uint_eq(fake.allocs, 0);
        model_free(m);
}
END_TEST

START_TEST(the_name_comes_from_the_source_where_none_is_given)
{
        load_ready(small_file("llama.safetensors", 1), NULL);
        ck_assert_ptr_nonnull(resident_ready(&resident, "llama"));
}
END_TEST

START_TEST(several_loads_at_once_each_become_their_own)
{
        struct watched w[6];
        for (size_t i = 0; i < ARRAY_SIZE(w); i++) {
                char *name = format_text("m%zu", i);
                start(&w[i], small_file(name, 10 + i), name);
                free(name);
        }
        ck_assert_uint_eq(loads.n_running, ARRAY_SIZE(w));
        for (size_t i = 0; i < ARRAY_SIZE(w); i++) {
                core_until(w[i].ended);
                ck_assert_msg(w[i].state == LOAD_READY, "%s", w[i].error.text);
                serves_small(w[i].generation, 10 + i);
        }
}
END_TEST

START_TEST(who_does_not_watch_any_more_is_not_told)
{
        struct watched w, other;
        start(&w, small_file("small.safetensors", 1), "m");
        load_watch(w.load, &other.watch, on_ended);
        other.ended = false;
        load_unwatch(&w.watch);
        load_unwatch(&w.watch);
        core_until(other.ended);
        ck_assert(!w.ended);
        load_unwatch(&other.watch); /* after the end, too */
}
END_TEST

/* ---- holding a load where it is ---- */

/* The lane of its file system: its next step there waits. */
static void hold_lane(const char *path)
{
        held_work_submit(&lane_work, pool, source_lane(path), &lane_gate);
}

/* Begins a load of `path` and stops it in this state. */
static void start_held(struct watched *w, const char *path, enum load_state state)
{
        if (state == LOAD_OPENING) {
                hold_lane(path);
                start(w, path, "m");
        } else if (state == LOAD_PLANNING) {
                start(w, path, "m");
                hold_lane(path); /* after the opening, before the planning */
        } else if (state == LOAD_ALLOCATING) {
                gate_init(&fake.alloc, false);
                start(w, path, "m");
        } else {
                gate_init(&fake.prepare, false);
                start(w, path, "m");
        }
        core_until(w->load->state == (state == LOAD_CHECKING ? LOAD_READING : state));
        if (state == LOAD_ALLOCATING)
                gate_await(&fake.alloc, 1);
        if (state >= LOAD_READING)
                gate_await(&fake.prepare, 1);
        if (state == LOAD_CHECKING) {
                hold_lane(path);
                gate_await(&lane_gate, 1);
                gate_open(&fake.prepare);
                core_until(w->load->state == LOAD_CHECKING);
        }
}

static void let_go(void)
{
        gate_open(&lane_gate);
        gate_open(&fake.alloc);
        gate_open(&fake.prepare);
}

/* Loop tests over states count from the first to the last that has not ended. */
#define FIRST_STATE LOAD_OPENING
#define STATES_END (LOAD_CHECKING + 1)

START_TEST(a_load_that_was_held_anywhere_goes_on)
{
        struct watched w;
        start_held(&w, small_file("small.safetensors", 1), (enum load_state)_i);
        ck_assert(!w.ended);
        ck_assert_ptr_eq(loads_find(&loads, "m"), w.load);
        ck_assert_ptr_null(resident_ready(&resident, "m"));
        let_go();
        core_until(w.ended);
        serves_small(w.generation, 1);
}
END_TEST

/* ---- cancelling ---- */

START_TEST(cancelling_ends_a_load_at_once_and_its_memory_follows)
{
        struct watched w;
        start_held(&w, small_file("small.safetensors", 1), (enum load_state)_i);
        load_cancel(w.load);
        ck_assert(w.ended);
        ck_assert_int_eq((int)w.state, (int)LOAD_CANCELLED);
        ck_assert_int_eq(w.error.code, STREAMER_ECANCELED);
        ck_assert_ptr_null(loads_find(&loads, "m"));
        ck_assert_ptr_nonnull(resident_failed(&resident, "m"));
        ck_assert_uint_eq(loads.n_running, 0);
        load_cancel(w.load); /* it has ended: nothing */
        core_settle();
        ck_assert_uint_eq(fake.device.used > 0, _i >= LOAD_ALLOCATING); /* what is in flight may write */
        let_go();
        core_until(loads_empty(&loads) && fake.device.used == 0);
        ck_assert_uint_eq(fake.allocs, fake.freed);
        ck_assert_ptr_null(resident_ready(&resident, "m"));
}
END_TEST

START_TEST(a_name_can_be_loaded_again_while_the_cancelled_load_comes_home)
{
        struct watched first, second;
        char *path = small_file("small.safetensors", 1);
        start_held(&first, path, LOAD_READING);
        load_cancel(first.load);
        start(&second, path, "m");
        ck_assert_ptr_ne(second.load, first.load);
        core_settle();
        let_go();
        core_until(second.ended);
        ck_assert_msg(second.state == LOAD_READY, "%s", second.error.text);
        serves_small(second.generation, 1);
        ck_assert_ptr_null(resident_failed(&resident, "m"));
}
END_TEST

START_TEST(all_loads_are_cancelled_when_the_daemon_ends)
{
        struct watched w[3];
        gate_init(&fake.prepare, false);
        for (size_t i = 0; i < 3; i++) {
                char *name = format_text("m%zu", i);
                start(&w[i], small_file(name, i), name);
                free(name);
        }
        core_until(w[0].load->state == LOAD_READING);
        loads_cancel_all(&loads);
        for (size_t i = 0; i < 3; i++)
                ck_assert_int_eq((int)w[i].state, (int)LOAD_CANCELLED);
        gate_open(&fake.prepare);
        core_until(loads_empty(&loads));
}
END_TEST

static struct hang hang;
static const char *no_hang;

/* The mount comes first: whatever is opened or started later sees it. */
static void begin_hang(void)
{
        no_hang = hang_unavailable();
        if (no_hang == NULL)
                hang_start(&hang, suite_path("hang-%d", (int)getpid()), "f.safetensors",
                           blocks_file("backing.safetensors", 4));
        begin();
}

static void end_hang(void)
{
        end();
        if (no_hang == NULL)
                hang_stop(&hang);
}

START_TEST(a_load_whose_storage_hangs_can_be_cancelled)
{
        struct watched w;
        if (no_hang != NULL)
                SKIP(no_hang);
        hang_hold(&hang, (uint64_t)_i);
        start(&w, hang.path, "m");
        core_until(w.load->state == (_i == 0 ? LOAD_PLANNING : LOAD_READING));
        hang_wait_held(&hang);
        load_cancel(w.load);
        ck_assert_int_eq((int)w.state, (int)LOAD_CANCELLED);
        core_settle();
        ck_assert(!loads_empty(&loads));
        hang_release(&hang);
        core_until(loads_empty(&loads) && fake.device.used == 0);
}
END_TEST

START_TEST(a_load_whose_storage_fails_says_so)
{
        struct watched w;
        if (no_hang != NULL)
                SKIP(no_hang);
        hang_hold(&hang, 2 * BLOCK);
        start(&w, hang.path, "m");
        core_until(w.load->state == LOAD_READING);
        hang_wait_held(&hang);
        hang_fail(&hang);
        core_until(w.ended);
        ck_assert_int_eq((int)w.state, (int)LOAD_FAILED);
        ck_assert_ptr_nonnull(strstr(w.error.text, "Input/output error"));
}
END_TEST

/* ---- loads that meet ---- */

START_TEST(the_same_load_under_way_is_joined)
{
        struct watched a, b;
        char *path = small_file("small.safetensors", 1);
        start_held(&a, path, LOAD_READING);
        start(&b, path, "m");
        ck_assert_ptr_eq(a.load, b.load);
        let_go();
        core_until(a.ended && b.ended);
        ck_assert_ptr_eq(a.generation, b.generation);
        ck_assert_uint_eq(fake.allocs, 1);
}
END_TEST

START_TEST(what_is_resident_already_is_not_read_again)
{
        char *path = small_file("small.safetensors", 1);
        struct generation *g = load_ready(path, "m");
        ck_assert_ptr_eq(load_ready(path, "m"), g);
        ck_assert_uint_eq(fake.allocs, 1);
        core_until(loads_empty(&loads));
        ck_assert_uint_eq(g->pins, 0);
        ck_assert_int_eq((int)g->state, (int)GENERATION_READY);
}
END_TEST

START_TEST(the_same_files_under_another_name_are_an_alias)
{
        char *path = small_file("small.safetensors", 1);
        struct generation *g = load_ready(path, "m");
        ck_assert_ptr_eq(load_ready(path, "n"), g);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), g);
        ck_assert_ptr_eq(resident_ready(&resident, "n"), g);
        ck_assert_uint_eq(fake.allocs, 1);
}
END_TEST

START_TEST(an_alias_of_what_is_loading_waits_for_it)
{
        struct watched a, b;
        char *path = small_file("small.safetensors", 1);
        start_held(&a, path, LOAD_READING);
        start(&b, path, "n");
        core_until(generation_has_name(a.load->generation, "n"));
        core_settle();
        ck_assert(!b.ended);
        ck_assert_ptr_eq(b.watch.load, a.load); /* who watched it watches the other now */
        ck_assert_ptr_eq(loads_find(&loads, "n"), a.load);
        let_go();
        core_until(a.ended && b.ended);
        ck_assert_ptr_eq(a.generation, b.generation);
        ck_assert_ptr_eq(resident_ready(&resident, "n"), a.generation);
        ck_assert_uint_eq(fake.allocs, 1);
}
END_TEST

START_TEST(an_alias_shares_the_failure_of_what_it_waits_for)
{
        struct watched a, b;
        char *path = small_file("small.safetensors", 1);
        start_held(&a, path, LOAD_READING);
        start(&b, path, "n");
        core_until(generation_has_name(a.load->generation, "n"));
        load_cancel(a.load);
        ck_assert(a.ended && b.ended);
        ck_assert_int_eq((int)b.state, (int)LOAD_CANCELLED);
        ck_assert_ptr_nonnull(resident_failed(&resident, "n"));
        let_go();
}
END_TEST

START_TEST(another_source_is_a_new_generation_and_the_old_serves_meanwhile)
{
        struct watched w;
        struct generation *old = load_ready(small_file("one.safetensors", 1), "m");
        core_until(loads_empty(&loads));
        start_held(&w, small_file("two.safetensors", 2), LOAD_READING);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), old);
        generation_pin(old);
        let_go();
        core_until(w.ended);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), w.generation);
        ck_assert_uint_gt(w.generation->number, old->number);
        ck_assert_int_eq((int)old->state, (int)GENERATION_DRAINING);
        serves_small(w.generation, 2);
        generation_unpin(old);
}
END_TEST

START_TEST(a_file_that_was_written_again_is_a_new_generation)
{
        struct generation *old = load_ready(small_file("small.safetensors", 1), "m");
        uint64_t number = old->number;
        struct generation *new = load_ready(small_file("small.safetensors", 2), "m");
        ck_assert_uint_gt(new->number, number);
        serves_small(new, 2);
}
END_TEST

START_TEST(what_does_not_fit_beside_the_old_fails_and_the_old_serves)
{
        fake.device.budget = 6 * MiB;
        struct generation *old = load_ready(small_file("one.safetensors", 1), "m");
        load_fails(small_file("two.safetensors", 2), "m", STREAMER_ENOMEM, "does not fit");
        ck_assert_ptr_eq(resident_ready(&resident, "m"), old);
        serves_small(old, 1);
}
END_TEST

START_TEST(a_bad_file_leaves_the_old_generation_serving)
{
        struct generation *old = load_ready(small_file("one.safetensors", 1), "m");
        char *path = suite_path("bad.safetensors");
        file_write(path, "not a header at all", 19);
        load_fails(path, "m", STREAMER_EFAILED, path);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), old);
        serves_small(old, 1);
}
END_TEST

/* ---- requests that are refused ---- */

START_TEST(only_so_many_loads_are_under_way)
{
        struct watched a, b;
        loads.max_running = 1;
        char *path = small_file("one.safetensors", 1), *other = small_file("two.safetensors", 2);
        start_held(&a, path, LOAD_READING);
        int r = request(&b, &(struct load_request){.source = other, .name = "n", .caller = &core_caller});
        ck_assert_int_eq(r, STREAMER_ELIMIT);
        start(&b, path, "m"); /* joining is no further load */
        let_go();
        core_until(a.ended && b.ended);
        load_ready(other, "n");
}
END_TEST

START_TEST(wrong_requests_are_refused_at_once)
{
        struct watched w;
        const struct caller *caller = &core_caller;
        ck_assert_int_eq(request(&w, &(struct load_request){.source = "relative", .caller = caller}), STREAMER_EINVAL);
        ck_assert_int_eq(request(&w, &(struct load_request){.source = "/a/../b", .caller = caller}), STREAMER_EINVAL);
        ck_assert_int_eq(request(&w, &(struct load_request){.source = "/x", .name = "", .caller = caller}),
                         STREAMER_EINVAL);
        ck_assert_int_eq(request(&w, &(struct load_request){.source = "/x", .device = "cuda:9", .caller = caller}),
                         STREAMER_EINVAL);
        ck_assert(loads_empty(&loads));
        ck_assert(resident_empty(&resident));
}
END_TEST

START_TEST(sources_that_are_not_there_fail_with_their_code)
{
        char *missing = suite_path("missing.safetensors");
        load_fails(missing, "m", STREAMER_ENOENT, missing);
        load_fails("/etc/passwd", "n", STREAMER_EPERM, "/etc/passwd");
        ck_assert_ptr_nonnull(resident_failed(&resident, "m"));
}
END_TEST

/* ---- dry runs ---- */

static struct load_estimate dry_run(const char *path)
{
        struct watched w;
        int r = request(&w, &(struct load_request){.source = path, .dry_run = true, .caller = &core_caller});
        ck_assert_int_eq(r, 0);
        core_until(w.ended);
        ck_assert_msg(w.state == LOAD_READY, "%s", w.error.text);
        return w.estimate;
}

START_TEST(a_dry_run_tells_and_does_nothing)
{
        struct load_estimate e = dry_run(small_file("small.safetensors", 1));
        ck_assert_uint_eq(e.files, 1);
        ck_assert_uint_eq(e.tensors, 53);
        ck_assert_uint_eq(e.bytes, 3 * MiB + 5 + 42 + 50 * 333);
        ck_assert_uint_eq(e.needed, 4 * MiB);
        ck_assert_uint_eq(e.unused, BUDGET);
        ck_assert_uint_eq(e.budget, BUDGET);
        ck_assert_uint_eq(e.segments, 1);
        ck_assert(e.fits && !e.resident);
        ck_assert(resident_empty(&resident));
        ck_assert_uint_eq(fake.allocs, 0);
}
END_TEST

START_TEST(a_dry_run_says_what_would_not_fit)
{
        fake.device.budget = 2 * MiB;
        struct load_estimate e = dry_run(small_file("small.safetensors", 1));
        ck_assert(!e.fits);
}
END_TEST

START_TEST(a_dry_run_of_what_is_resident_says_so_and_fits)
{
        char *path = small_file("small.safetensors", 1);
        load_ready(path, "m");
        fake.device.budget = fake.device.used;
        struct load_estimate e = dry_run(path);
        ck_assert(e.resident && e.fits);
}
END_TEST

START_TEST(a_dry_run_can_be_cancelled)
{
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        hold_lane(path);
        request(&w, &(struct load_request){.source = path, .dry_run = true, .caller = &core_caller});
        load_cancel(w.load);
        ck_assert_int_eq((int)w.state, (int)LOAD_CANCELLED);
        gate_open(&lane_gate);
        core_until(loads_empty(&loads));
}
END_TEST

/* ---- how it fails ---- */

START_TEST(an_allocation_that_fails_gives_the_others_back)
{
        struct watched w;
        fake.device.layout.max_segment = 2 * MiB;
        fake.fail_alloc = (unsigned)_i;
        start(&w, blocks_file("blocks.safetensors", 4), "m");
        core_until(w.ended);
        ck_assert_int_eq((int)w.state, (int)LOAD_FAILED);
        ck_assert_int_eq(w.error.code, STREAMER_ENOMEM);
        core_until(loads_empty(&loads) && fake.device.used == 0);
        ck_assert_uint_eq(fake.freed, (unsigned)_i - 1);
        ck_assert_str_eq(resident_failed(&resident, "m")->error.text, w.error.text);
}
END_TEST

START_TEST(memory_that_is_missing_while_reading_fails_the_load)
{
        fake.fail_prepare = 3;
        load_fails(blocks_file("blocks.safetensors", 6), "m", STREAMER_ENOMEM, "no memory at");
        core_until(loads_empty(&loads) && fake.device.used == 0);
}
END_TEST

START_TEST(a_model_over_the_budget_fails_with_figures)
{
        fake.device.budget = 4 * MiB;
        load_fails(blocks_file("blocks.safetensors", 6), "m", STREAMER_ENOMEM, "12582912 bytes needed");
        ck_assert_uint_eq(fake.allocs, 0);
}
END_TEST

START_TEST(a_file_cut_short_while_it_is_read_fails_the_load)
{
        struct watched w;
        char *path = blocks_file("blocks.safetensors", 6);
        start_held(&w, path, LOAD_READING);
        must(truncate(path, 4096));
        let_go();
        core_until(w.ended);
        ck_assert_int_eq((int)w.state, (int)LOAD_FAILED);
        ck_assert_ptr_nonnull(strstr(w.error.text, "cut short"));
}
END_TEST

/* Touched, written to, or grown: before the check at the end nothing is known of it. */
START_TEST(a_file_that_changes_while_it_is_read_is_never_ready)
{
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        start_held(&w, path, LOAD_READING);
        int fd = must(open(path, O_WRONLY | O_APPEND | O_CLOEXEC));
        if (_i == 0)
                must(futimens(fd, NULL));
        else if (_i == 1)
                must(fchmod(fd, 0600));
        else
                must(write(fd, "more", 4));
        close(fd);
        let_go();
        core_until(w.ended);
        ck_assert_int_eq((int)w.state, (int)LOAD_FAILED);
        ck_assert_int_eq(w.error.code, STREAMER_EFAILED);
        ck_assert_ptr_nonnull(strstr(w.error.text, "changed while it was read"));
        ck_assert_ptr_null(resident_ready(&resident, "m"));
}
END_TEST

START_TEST(a_failed_load_can_be_tried_again)
{
        char *path = small_file("small.safetensors", 1);
        fake.fail_alloc = 1;
        load_fails(path, "m", STREAMER_ENOMEM, "fails");
        fake.fail_alloc = 0;
        serves_small(load_ready(path, "m"), 1);
        ck_assert_ptr_null(resident_failed(&resident, "m"));
}
END_TEST

/* ---- published digests ---- */

/* SHA256SUMS beside the files, wrong for the file of this name. */
static void publish_sums(const char *folder, const char *const *files, size_t n, const char *wrong)
{
        char *text = format_text("%s", "");
        for (size_t i = 0; i < n; i++) {
                unsigned char digest[32];
                char hex[65];
                size_t size;
                char *path = format_text("%s/%s", folder, files[i]), *data = file_read(path, &size);
                SHA256((const unsigned char *)data, size, digest);
                digest[0] ^= wrong != NULL && strcmp(wrong, files[i]) == 0;
                for (size_t k = 0; k < 32; k++)
                        snprintf(hex + 2 * k, 3, "%02x", digest[k]);
                char *more = format_text("%s%s  %s\n", text, hex, files[i]);
                free(text);
                free(data);
                free(path);
                text = more;
        }
        char *path = format_text("%s/SHA256SUMS", folder);
        file_write(path, text, strlen(text));
        free(path);
        free(text);
}

static const char *const shards[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};

static char *published(const char *name, const char *wrong)
{
        struct model *m = small_model(3);
        char *folder = suite_path("%s", name);
        model_write_sharded(m, folder, 2, true);
        publish_sums(folder, shards, 2, wrong);
        model_free(m);
        return folder;
}

START_TEST(files_that_match_are_verified)
{
        struct watched w;
        start_sha256(&w, published("good", NULL), "m");
        core_until(w.ended);
        ck_assert_msg(w.state == LOAD_READY, "%s", w.error.text);
        ck_assert(w.generation->verified);
        serves_small(w.generation, 3);
}
END_TEST

START_TEST(of_files_that_do_not_match_nothing_is_published)
{
        struct watched w;
        char *folder = suite_path("bad-%d", _i);
        mkdir(folder, 0755);
        struct model *m = small_model(3);
        char *path = format_text("%s/only.safetensors", folder);
        model_write(m, path);
        publish_sums(folder, (const char *const[]){"only.safetensors"}, 1, "only.safetensors");
        start_sha256(&w, path, "m");
        struct generation *g = w.load->generation;
        generation_pin(g); /* to look at what it left */
        core_until(w.ended);
        ck_assert_int_eq((int)w.state, (int)LOAD_FAILED);
        ck_assert_ptr_nonnull(strstr(w.error.text, "SHA-256 differs"));
        core_until(loads_empty(&loads));
        if (g->arrival.fd >= 0)
                ck_assert_uint_eq(((const struct arrival_header *)g->arrival.map)->count, 0);
        generation_unpin(g);
        model_free(m);
        free(path);
}
END_TEST

START_TEST(one_file_that_does_not_match_fails_the_model)
{
        struct watched w;
        start_sha256(&w, published("half", shards[1]), "m");
        core_until(w.ended);
        ck_assert_int_eq((int)w.state, (int)LOAD_FAILED);
        ck_assert_ptr_nonnull(strstr(w.error.text, shards[1]));
}
END_TEST

START_TEST(a_file_without_a_published_digest_cannot_be_verified)
{
        struct watched w;
        start_sha256(&w, small_file("unpublished.safetensors", 1), "m");
        core_until(w.ended);
        ck_assert_int_eq((int)w.state, (int)LOAD_FAILED);
}
END_TEST

START_TEST(a_verified_model_without_bytes_is_ready)
{
        struct watched w;
        struct model *m = model_new(1);
        char *folder = suite_path("empty");
        mkdir(folder, 0755);
        model_add(m, "empty", "F32", (uint64_t[]){0}, 1);
        char *path = format_text("%s/only.safetensors", folder);
        model_write(m, path);
        publish_sums(folder, (const char *const[]){"only.safetensors"}, 1, NULL);
        start_sha256(&w, path, "m");
        core_until(w.ended);
        ck_assert_msg(w.state == LOAD_READY, "%s", w.error.text);
        serves(w.generation, m);
        model_free(m);
        free(path);
}
END_TEST

/* What was not held against published digests does not pass for what must be. */
START_TEST(an_unverified_model_does_not_serve_for_a_verified_one)
{
        struct watched w;
        char *folder = published("again", NULL);
        struct generation *plain = load_ready(folder, "m");
        uint64_t number = plain->number;
        start_sha256(&w, folder, "m");
        core_until(w.ended);
        ck_assert_msg(w.state == LOAD_READY, "%s", w.error.text);
        ck_assert_uint_ne(w.generation->number, number);
        ck_assert(w.generation->verified);
        struct generation *verified = w.generation;
        ck_assert_ptr_eq(load_ready(folder, "m"), verified); /* the other way round it does */
}
END_TEST

START_TEST(a_verified_load_does_not_join_an_unverified_one)
{
        struct watched a, b;
        char *folder = published("beside", NULL);
        start_held(&a, folder, LOAD_READING);
        start_sha256(&b, folder, "m");
        ck_assert_ptr_ne(a.load, b.load);
        let_go();
        core_until(a.ended && b.ended);
        ck_assert_msg(b.state == LOAD_READY, "%s", b.error.text);
        ck_assert(b.generation->verified);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), b.generation);
}
END_TEST

START_TEST(states_have_the_words_of_the_protocol)
{
        static const char *const words[] = {"resolving", "resolving", "loading", "loading",
                                            "loading",   "ready",     "failed",  "cancelled"};
        for (int i = LOAD_OPENING; i <= LOAD_CANCELLED; i++) {
                ck_assert_str_eq(load_state_name((enum load_state)i), words[i]);
                ck_assert(load_ended((enum load_state)i) == (i >= LOAD_READY));
        }
}
END_TEST

int main(void)
{
        suite_begin("load");
        TCase *good = core_group("how it goes well", begin, end);
        tcase_add_loop_test(good, a_load_becomes_a_model_that_serves, 0, 2);
        tcase_add_test(good, a_load_leaves_nothing_but_what_it_made);
        tcase_add_test(good, a_folder_with_an_index_is_one_model);
        tcase_add_test(good, the_host_device_serves_it_too);
        tcase_add_loop_test(good, a_model_without_bytes_has_no_segment_and_is_ready, 0, 2);
        tcase_add_test(good, the_name_comes_from_the_source_where_none_is_given);
        tcase_add_test(good, several_loads_at_once_each_become_their_own);
        tcase_add_test(good, who_does_not_watch_any_more_is_not_told);
        tcase_add_loop_test(good, a_load_that_was_held_anywhere_goes_on, FIRST_STATE, STATES_END);
        tcase_add_test(good, states_have_the_words_of_the_protocol);
        TCase *cancel = core_group("cancelling", begin, end);
        tcase_add_loop_test(cancel, cancelling_ends_a_load_at_once_and_its_memory_follows, FIRST_STATE, STATES_END);
        tcase_add_test(cancel, a_name_can_be_loaded_again_while_the_cancelled_load_comes_home);
        tcase_add_test(cancel, all_loads_are_cancelled_when_the_daemon_ends);
        TCase *hanging = core_group("storage that hangs", begin_hang, end_hang);
        tcase_add_loop_test(hanging, a_load_whose_storage_hangs_can_be_cancelled, 0, 1); /* its header */
        tcase_add_loop_test(hanging, a_load_whose_storage_hangs_can_be_cancelled, 2 * BLOCK,
                            2 * BLOCK + 1); /* its data */
        tcase_add_test(hanging, a_load_whose_storage_fails_says_so);
        TCase *meet = core_group("loads that meet", begin, end);
        tcase_add_test(meet, the_same_load_under_way_is_joined);
        tcase_add_test(meet, what_is_resident_already_is_not_read_again);
        tcase_add_test(meet, the_same_files_under_another_name_are_an_alias);
        tcase_add_test(meet, an_alias_of_what_is_loading_waits_for_it);
        tcase_add_test(meet, an_alias_shares_the_failure_of_what_it_waits_for);
        tcase_add_test(meet, another_source_is_a_new_generation_and_the_old_serves_meanwhile);
        tcase_add_test(meet, a_file_that_was_written_again_is_a_new_generation);
        tcase_add_test(meet, what_does_not_fit_beside_the_old_fails_and_the_old_serves);
        tcase_add_test(meet, a_bad_file_leaves_the_old_generation_serving);
        TCase *refused = core_group("requests", begin, end);
        tcase_add_test(refused, only_so_many_loads_are_under_way);
        tcase_add_test(refused, wrong_requests_are_refused_at_once);
        tcase_add_test(refused, sources_that_are_not_there_fail_with_their_code);
        tcase_add_test(refused, a_dry_run_tells_and_does_nothing);
        tcase_add_test(refused, a_dry_run_says_what_would_not_fit);
        tcase_add_test(refused, a_dry_run_of_what_is_resident_says_so_and_fits);
        tcase_add_test(refused, a_dry_run_can_be_cancelled);
        TCase *failing = core_group("how it fails", begin, end);
        tcase_add_loop_test(failing, an_allocation_that_fails_gives_the_others_back, 1, 5);
        tcase_add_test(failing, memory_that_is_missing_while_reading_fails_the_load);
        tcase_add_test(failing, a_model_over_the_budget_fails_with_figures);
        tcase_add_test(failing, a_file_cut_short_while_it_is_read_fails_the_load);
        tcase_add_loop_test(failing, a_file_that_changes_while_it_is_read_is_never_ready, 0, 3);
        tcase_add_test(failing, a_failed_load_can_be_tried_again);
        TCase *sha = core_group("published digests", begin, end);
        tcase_add_test(sha, files_that_match_are_verified);
        tcase_add_test(sha, of_files_that_do_not_match_nothing_is_published);
        tcase_add_test(sha, one_file_that_does_not_match_fails_the_model);
        tcase_add_test(sha, a_file_without_a_published_digest_cannot_be_verified);
        tcase_add_test(sha, a_verified_model_without_bytes_is_ready);
        tcase_add_test(sha, an_unverified_model_does_not_serve_for_a_verified_one);
        tcase_add_test(sha, a_verified_load_does_not_join_an_unverified_one);
        return suite_run();
}
