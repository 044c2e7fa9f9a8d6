/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the load tests: see load_fixture.h.
 */
#include "tests/lib/load_fixture.h"
#include "daemon/source/local/mounts.h"

#include "daemon/resident/hostcache/host_cache.h"
#include "tests/lib/kernel_counters.h"

struct fake_device fake;
struct fake_device others[OTHERS];
static unsigned n_others;
struct device *devices[1 + OTHERS];
static struct work_pool *pool;
struct resident resident;
struct loads loads;
struct gate lane_gate;
static struct held_work lane_work[2];
unsigned arrivals;
static unsigned fds_before;

static struct admission admission;
static struct host_cache host_cache;
static uint64_t reserved; /* of the budget, not charged to any load */

static void on_arrived(struct loads *l, struct generation *g)
{
        ck_assert_ptr_eq(l, &loads);
        ck_assert_int_ge(g->manifest.fd, 0);
        ck_assert_int_ge(g->arrival.fd, 0);
        arrivals++;
}

static void begin_with(unsigned n)
{
        static const char *const names[OTHERS] = {"one", "two", "three"};
        const struct sources *sources = core_sources();
        (void)mounts_find("/"); /* the table of mounts stays open */
        fds_before = process_fds(getpid());
        gate_init(&lane_gate, false);
        fake_device_init(&fake, "fake", BUDGET, false);
        devices[0] = &fake.device;
        n_others = n;
        for (unsigned i = 0; i < n; i++) {
                fake_device_init(&others[i], names[i], BUDGET, true);
                others[i].device.number = 1 + i;
                devices[1 + i] = &others[i].device;
        }
        resident_init(&resident, core_wake, devices, 1 + n, 4);
        admission_init(&admission, &resident, 4);
        host_cache_init(&host_cache, &resident, 0);
        read_fixture_reader_begin(2, 2 * BLOCK);
        pool = work_pool_new(core_wake, "pool", 4, 1);
        loads = (struct loads){.max_running = 8,
                               .resident = &resident,
                               .sources = sources,
                               .reader = &reader,
                               .pool = pool,
                               .block_size = BLOCK,
                               .arrived = on_arrived};
        loads_init(&loads);
}

void load_fixture_begin(void)
{
        begin_with(0);
}

void load_fixture_begin_multi(void)
{
        begin_with(OTHERS);
}

/* Of a generation that is not loading; false if none is left. */
static bool drop_name(void)
{
        list_each_item (struct generation, g, &resident.generations, link) {
                if (g->state == GENERATION_LOADING || list_empty(&g->names))
                        continue;
                generation_drop_name(g, format_text("%s", generation_name(g)));
                return true;
        }
        return false;
}

void load_fixture_end(void)
{
        loads_cancel_all(&loads);
        gate_open(&lane_gate);
        while (drop_name())
                ;
        core_until(loads_empty(&loads) && list_empty(&resident.generations));
        ck_assert_uint_eq(loads.n_running, 0);
        ck_assert_uint_eq(fake.device.used, 0);
        read_fixture_reader_end();
        ck_assert(work_pool_stop(pool, now_ns() + 20 * SECOND));
        work_pool_free(pool);
        core_settle();
        ck_assert(list_empty(&admission.queue));
        fake_device_deinit(&fake);
        for (unsigned i = 0; i < n_others; i++) {
                ck_assert_uint_eq(others[i].device.used, 0);
                fake_device_deinit(&others[i]);
        }
        ck_assert_uint_eq(process_fds(getpid()), fds_before);
        /* A joined thread may be listed for a moment. */
        AWAIT(threads_named("pool") + threads_named("fake-device") == 0);
}

/* ---- loads, watched ---- */

static void on_ended(struct load_watch *watch, struct load_request *request)
{
        const struct load *load = request->load;
        struct watched *w = container_of(watch, struct watched, watch);
        ck_assert_msg(!w->ended, "told twice");
        w->ended = true;
        w->state = load_request_state(request);
        w->error = *load_request_error(request);
        w->resident = load->targets[0].resident;
        load_each_target (t, load) {
                uint64_t waits_ns;
                w->serves |= t->state == TARGET_SERVES;
                w->targets[t - load->targets] = load_target_state(t, now_ns(), &waits_ns);
        }
        w->needed = w->state == LOAD_READY ? target_needs(&load->targets[0]) : 0; /* a worker may still plan it */
        w->generation = load->targets[0].generation;
        load_progress(load, &w->progress);
        w->load = NULL;
}

int load_request(struct watched *w, const struct load_args *what)
{
        struct load_args request = *what;
        if (request.caller == NULL)
                request.caller = &core_caller;
        *w = (struct watched){0};
        int r = 0;
        if (request.name == NULL) {
                char *name;
                r = loads_default_name(&loads, request.source, NULL, &name, &w->error);
                request.name = name;
        }
        if (r < 0)
                return r;
        r = loads_begin(&loads, &request, &w->request, &w->error);
        if (r == 0) {
                w->load = w->request->load;
                load_watch(w->request, &w->watch, on_ended);
        }
        return r;
}

static void begin(struct watched *w, struct load_args what)
{
        int r = load_request(w, &what);
        ck_assert_msg(r == 0, "%s", w->error.text);
        ck_assert(!load_ended(w->load->state)); /* never inside the call that began the load */
        ck_assert(!w->ended);
}

void ask_for(struct watched *w, struct load_args what)
{
        what.name = what.name != NULL ? what.name : "m";
        begin(w, what);
}

void load_start(struct watched *w, const char *source, const char *name)
{
        begin(w, (struct load_args){.source = source, .name = name});
}

void ends(struct watched *w, enum load_state state)
{
        core_until(w->ended);
        ck_assert_msg(w->state == state, "%s: %s", load_state_name(w->state), w->error.text);
}

struct generation *load_ready(const char *source, const char *name)
{
        struct watched w;
        load_start(&w, source, name);
        ends(&w, LOAD_READY);
        return w.generation;
}

void load_fails(const char *source, const char *name, int code, const char *text)
{
        struct watched w;
        load_start(&w, source, name);
        ends(&w, LOAD_FAILED);
        ck_assert_msg(w.error.code == code && strstr(w.error.text, text) != NULL, "%d %s", w.error.code, w.error.text);
}

/* ---- models ---- */

struct model *small_model(uint64_t seed)
{
        struct model *m = model_new(seed);
        model_set_metadata(m, "{\"format\":\"pt\"}");
        model_add(m, "w", "U8", (uint64_t[]){3 * MiB + 5}, 1);
        model_add(m, "b", "BF16", (uint64_t[]){3, 7}, 2);
        model_add(m, "none", "F32", (uint64_t[]){0}, 1);
        model_add_many(m, "x", 50, 333);
        return m;
}

char *small_file(const char *name, uint64_t seed)
{
        return core_write(small_model(seed), name);
}

char *ranks_folder(size_t n)
{
        char *folder = suite_path("ranks-%d", (int)getpid());
        mkdir(folder, 0755);
        for (size_t i = 0; i < n; i++)
                model_write(small_model(50 + i), format_text("%s/r%zu.safetensors", folder, i));
        return folder;
}

void publish_sums(const char *folder, const char *const *files, size_t n)
{
        FILE *sums = fopen(format_text("%s/SHA256SUMS", folder), "we");
        for (size_t i = 0; i < n; i++) {
                char hex[65];
                file_sha256(format_text("%s/%s", folder, files[i]), hex);
                fprintf(sums, "%s  %s\n", hex, files[i]);
        }
        fclose(sums);
}

static void record_equals(const struct generation *g, const struct manifest_view *view, uint64_t i,
                          const struct model *m)
{
        const char *why = "";
        unsigned char digest[DIGEST_SIZE];
        const struct manifest_record *r = manifest_record(view, i);
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

void serves(const struct generation *g, const struct model *m)
{
        struct manifest_view view;
        const char *why = "";
        char got[33], want[33];
        ck_assert_int_eq((int)g->state, (int)GENERATION_READY);
        ck_assert_msg(manifest_open(&view, g->manifest.map, g->manifest.size, &why) == 0, "%s", why);
        ck_assert_uint_eq(view.header->n_records, m->n);
        ck_assert_uint_eq(generation_arrived(g), m->n);
        ck_assert(g->arrival.fd < 0 && g->arrival.map == NULL);
        for (uint64_t i = 0; i < m->n; i++)
                record_equals(g, &view, i, m);
        hex_encode(got, g->digest, DIGEST_SIZE);
        model_digest(m, want);
        ck_assert_str_eq(got, want);
        ck_assert_mem_eq(view.header->digest, g->digest, DIGEST_SIZE);
}

void serves_small(const struct generation *g, uint64_t seed)
{
        serves(g, small_model(seed));
}

/* ---- holding a load ---- */

void load_hold_lane(const char *path)
{
        held_work_submit(&lane_work[0], pool, source_lane(path), &lane_gate);
}

/* A load that is queued in its lane, with work behind it that holds its next step. */
static void start_held_planning(struct watched *w, const char *path)
{
        load_hold_lane(path);
        load_start(w, path, "m");
        core_until(!list_empty(&w->load->announced.link)); /* it is queued in its lane */
        held_work_submit(&lane_work[1], pool, source_lane(path), &lane_gate);
        gate_pass_more(&lane_gate, 1);
}

static void start_held_reading(struct watched *w, const char *path)
{
        gate_init(&fake.prepare, false);
        load_start(w, path, "m");
        core_until(w->load->state == LOAD_READING);
        gate_await(&fake.prepare, 1);
}

void load_start_held(struct watched *w, const char *path, enum load_state state)
{
        if (state == LOAD_OPENING)
                load_hold_lane(path);
        if (state == LOAD_QUEUED)
                fake.device.used += reserved = BUDGET; /* another load has all of the device */
        if (state == LOAD_ALLOCATING)
                gate_init(&fake.alloc, false);
        if (state == LOAD_COMPARING)
                gate_init(&fake.read, false);
        if (state == LOAD_PLANNING)
                start_held_planning(w, path);
        else if (state == LOAD_READING || state == LOAD_CHECKING)
                start_held_reading(w, path);
        else
                load_start(w, path, "m");
        if (state == LOAD_QUEUED)
                w->load->wait = true;
        if (state == LOAD_CHECKING) {
                load_hold_lane(path);
                gate_await(&lane_gate, 1);
                gate_open(&fake.prepare);
        }
        core_until(w->load->state == state);
        if (state == LOAD_ALLOCATING)
                gate_await(&fake.alloc, 1);
        if (state == LOAD_COMPARING)
                gate_await(&fake.read, 1);
}

void load_release_held(void)
{
        fake.device.used -= reserved;
        reserved = 0;
        resident_capacity_changed(&resident);
        gate_open(&lane_gate);
        gate_open(&fake.alloc);
        gate_open(&fake.prepare);
        gate_open(&fake.read);
}

/* ---- loads of several devices ---- */

void start_on(struct watched *w, const char *source, const char *const *names, size_t n, const char *pattern)
{
        ask_for(w, (struct load_args){.source = source, .devices = names, .n_devices = n, .pattern = pattern});
}

void wait_on(struct watched *w, const char *source, const char *name, const char *const *names, size_t n)
{
        ask_for(w, (struct load_args){.source = source, .name = name, .devices = names, .n_devices = n, .wait = true});
}

struct generation *on(const char *device, enum generation_state state)
{
        return resident_on(&resident, "m", state, resident_device(&resident, device, NULL));
}

void serves_on(const char *device, uint64_t seed)
{
        struct generation *g = on(device, GENERATION_READY);
        ck_assert_msg(g != NULL, "does not serve on %s", device);
        serves_small(g, seed);
}

void failed_on(const char *device, const char *says)
{
        struct generation *g = on(device, GENERATION_FAILED);
        ck_assert_msg(g != NULL, "has not failed on %s", device);
        ck_assert_msg(strstr(generation_error(g)->text, says) != NULL, "%s", generation_error(g)->text);
        ck_assert_ptr_null(on(device, GENERATION_READY));
}
