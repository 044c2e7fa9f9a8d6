/* SPDX-License-Identifier: Apache-2.0
 *
 * The event loop, gates, the fake device and planned files: see core.h.
 */
#include "tests/lib/core.h"

#include "daemon/base/log/log.h"
#include "daemon/base/sys/machine.h"
#include "tests/lib/kernel_counters.h"

/* ---- the loop ---- */

uv_loop_t core_loop;
struct wake *core_wake;
struct poll_set *core_polls;
const struct caller core_caller;

void core_begin(void)
{
        log_set_level(LOG_LEVEL_ERROR);
        machine_pages_set(machine_pages.small, 2 * MiB);
        must(uv_loop_init(&core_loop));
        core_wake = wake_new(&core_loop);
        core_polls = poll_set_new(&core_loop);
        ck_assert(core_wake != NULL && core_polls != NULL);
}

static void close_handle(uv_handle_t *handle, void *n)
{
        if (uv_is_closing(handle))
                return;
        uv_close(handle, NULL);
        ++*(unsigned *)n;
}

void core_end(void)
{
        unsigned n = 0;
        uv_walk(&core_loop, close_handle, &n);
        ck_assert_uint_eq(n, 4); /* those of core_wake and core_polls: the tested modules have closed theirs */
        while (uv_run(&core_loop, UV_RUN_NOWAIT) != 0)
                ;
        ck_assert_int_eq(uv_loop_close(&core_loop), 0);
        core_wake = wake_free(core_wake);
        core_polls = poll_set_free(core_polls);
}

void core_settle(void)
{
        /* An item may post another one, so the loop iterates a few times. */
        for (int i = 0; i < 8; i++)
                uv_run(&core_loop, UV_RUN_NOWAIT);
}

char *metric_text(enum metric metric)
{
        char *text = NULL;
        size_t size;
        FILE *out = open_memstream(&text, &size);
        metric_begin(out, metric);
        metric_counted(out, metric);
        must(fclose(out));
        return text;
}

/* ---- gates ---- */

void gate_init(struct gate *gate, bool open)
{
        *gate = (struct gate){.open = open};
        pthread_mutex_init(&gate->mutex, NULL);
        pthread_cond_init(&gate->changed, NULL);
}

bool (*gate_delay)(void);

void gate_pass(struct gate *gate)
{
        bool (*delay)(void) = __atomic_load_n(&gate_delay, __ATOMIC_SEQ_CST);
        if (delay != NULL && delay())
                return;
        lock_scope(&gate->mutex);
        gate->come++;
        pthread_cond_broadcast(&gate->changed);
        while (!gate->open && gate->passes == 0)
                pthread_cond_wait(&gate->changed, &gate->mutex);
        gate->passes -= !gate->open;
}

bool gate_try(struct gate *gate)
{
        lock_scope(&gate->mutex);
        bool passed = gate->open || gate->passes > 0;
        gate->come++;
        gate->passes -= passed && !gate->open;
        pthread_cond_broadcast(&gate->changed);
        return passed;
}

void gate_await(struct gate *gate, unsigned n)
{
        lock_scope(&gate->mutex);
        while (gate->come < n)
                pthread_cond_wait(&gate->changed, &gate->mutex);
}

unsigned gate_arrived(struct gate *gate)
{
        lock_scope(&gate->mutex);
        return gate->come;
}

void gate_pass_more(struct gate *gate, unsigned n)
{
        lock_scope(&gate->mutex);
        gate->passes += n;
        pthread_cond_broadcast(&gate->changed);
}

void gate_open(struct gate *gate)
{
        lock_scope(&gate->mutex);
        gate->open = true;
        pthread_cond_broadcast(&gate->changed);
}

static void held_run(struct work *work)
{
        struct held_work *held = container_of(work, struct held_work, work);
        held->ran = true;
        gate_pass(held->gate);
}

static void held_done(struct work *work)
{
        container_of(work, struct held_work, work)->done = true;
}

void held_work_submit(struct held_work *held, struct work_pool *pool, uint64_t lane, struct gate *gate)
{
        held_work_submit_for(held, pool, lane, 0, gate);
}

void held_work_submit_for(struct held_work *held, struct work_pool *pool, uint64_t lane, uint64_t user,
                          struct gate *gate)
{
        *held = (struct held_work){.gate = gate, .work.user = user};
        work_submit(pool, lane, &held->work, held_run, held_done);
}

/* ---- threads ---- */

unsigned threads_named(const char *name)
{
        unsigned asleep;
        return process_threads_named(getpid(), name, &asleep);
}

void threads_await_asleep(const char *name, unsigned n)
{
        process_threads_await_asleep(getpid(), name, n);
}

/* ---- a device ---- */

static struct fake_device *fake_of(const struct device *device)
{
        return container_of(device, struct fake_device, device);
}

unsigned char *fake_memory(const struct segment *segment)
{
        return fake_of(segment->device)->memory[segment->fd];
}

static int fake_alloc(struct device *device, uint64_t size, struct segment *segment, struct error *error)
{
        struct fake_device *fake = fake_of(device);
        gate_pass(&fake->alloc);
        *segment = (struct segment){.device = device, .size = size, .fd = -1, .pages = PAGES_DEVICE};
        unsigned n = __atomic_add_fetch(&fake->allocs, 1, __ATOMIC_SEQ_CST);
        if (n == fake->fail_alloc) {
                __atomic_sub_fetch(&fake->allocs, 1, __ATOMIC_SEQ_CST);
                return error_set(error, STREAMER_ENOMEM, "%s: segment %u fails", device->name, n);
        }
        int i = 0;
        while (fake->memory[i] != NULL)
                i++;
        unsigned char *memory = aligned_alloc(4096, size);
        if (memory == NULL)
                return error_set(error, STREAMER_ENOMEM, "%s: no memory", device->name);
        memset(memory, FAKE_POISON, size);
        fake->memory[i] = memory;
        segment->fd = i;
        segment->base = fake->hidden ? NULL : memory;
        return 0;
}

static void fake_release(struct segment *segment)
{
        struct fake_device *fake = fake_of(segment->device);
        gate_pass(&fake->release);
        if (segment->fd < 0)
                return;
        free(fake->memory[segment->fd]);
        fake->memory[segment->fd] = NULL;
        segment->fd = -1;
        segment->base = NULL;
        __atomic_add_fetch(&fake->freed, 1, __ATOMIC_SEQ_CST);
}

static int fake_prepare(struct segment *segment, uint64_t offset, uint64_t len, struct error *error)
{
        struct fake_device *fake = fake_of(segment->device);
        unsigned n = __atomic_add_fetch(&fake->prepares, 1, __ATOMIC_SEQ_CST);
        gate_pass(&fake->prepare);
        if (n == fake->fail_prepare)
                return error_set(error, STREAMER_ENOMEM, "%s: no memory at %llu", segment->device->name,
                                 (unsigned long long)offset);
        require(offset <= segment->size && len <= segment->size - offset);
        return 0;
}

static int fake_put(struct segment *segment, uint64_t offset, const void *from, uint64_t len, struct error *error)
{
        struct fake_device *fake = fake_of(segment->device);
        unsigned n = __atomic_add_fetch(&fake->puts, 1, __ATOMIC_SEQ_CST);
        gate_pass(&fake->put);
        if (n == fake->fail_put)
                return error_set(error, STREAMER_EFAILED, "%s: put %u fails", segment->device->name, n);
        require(offset <= segment->size && len <= segment->size - offset);
        if (((uintptr_t)from - offset) % 4096 != 0)
                __atomic_add_fetch(&fake->unaligned, 1, __ATOMIC_SEQ_CST);
        memcpy(fake_memory(segment) + offset, from, len);
        return 0;
}

static int fake_read(const struct segment *segment, uint64_t offset, void *to, uint64_t len, struct error *error)
{
        require(offset <= segment->size && len <= segment->size - offset);
        gate_pass(&fake_of(segment->device)->read);
        memcpy(to, fake_memory(segment) + offset, len);
        for (uint64_t i = 0; load_relaxed(&fake_of(segment->device)->lies) && i < len; i++)
                ((unsigned char *)to)[i] ^= 1;
        return 0;
}

static void fake_distrust(struct device *device, enum page_kind pages, const char *why)
{
        ck_assert_int_eq((int)pages, (int)PAGES_DEVICE);
        fake_of(device)->distrusted++;
}

static uint64_t fake_ceiling(struct device *device)
{
        __atomic_add_fetch(&fake_of(device)->asked, 1, __ATOMIC_SEQ_CST);
        gate_pass(&fake_of(device)->answer);
        return __atomic_load_n(&fake_of(device)->ceiling, __ATOMIC_SEQ_CST);
}

static void fake_free(struct device *device)
{
}

static const struct device_ops fake_ops = {
        .kind = "fake",
        .alloc = fake_alloc,
        .release = fake_release,
        .lend = fake_alloc,
        .prepare = fake_prepare,
        .put = fake_put,
        .read = fake_read,
        .distrust = fake_distrust,
        .free = fake_free,
};

void fake_device_share(struct fake_device *fake, uint64_t ceiling)
{
        static struct device_ops shared_ops;
        shared_ops = fake_ops;
        shared_ops.ceiling = fake_ceiling;
        fake->device.ops = &shared_ops;
        __atomic_store_n(&fake->ceiling, ceiling, __ATOMIC_SEQ_CST);
}

void fake_device_init(struct fake_device *fake, const char *name, uint64_t budget, bool hidden)
{
        *fake = (struct fake_device){.hidden = hidden, .device = {.ops = &fake_ops, .budget = budget}};
        struct gate *gates[] = {&fake->alloc, &fake->release, &fake->prepare, &fake->put,
                                &fake->read,  &fake->event,   &fake->answer};
        for (size_t i = 0; i < ARRAY_SIZE(gates); i++)
                gate_init(gates[i], true);
        struct device *d = &fake->device;
        snprintf(d->name, sizeof(d->name), "%s", name);
        snprintf(d->uuid, sizeof(d->uuid), "uuid-of-%s", name);
        d->handles = "fake";
        d->shared = "others use the device too";
        d->pages = PAGES_DEVICE;
        d->sample_interval = 64 * MiB;
        d->layout = hidden ? (struct plan_layout){.page = 0, .align = 256, .granularity = 2 * MiB}
                           : (struct plan_layout){.page = 4096, .align = 1, .granularity = 2 * MiB};
        d->thread = work_pool_new(core_wake, "fake-device", 1, 1);
        ck_assert_ptr_nonnull(d->thread);
}

void fake_device_deinit(struct fake_device *fake)
{
        ck_assert(work_pool_stop(fake->device.thread, now_ns() + 20 * UINT64_C(1000000000)));
        ck_assert_uint_eq(fake->allocs, fake->freed);
        device_free(&fake->device);
}

/* ---- files ---- */

const struct sources *core_sources(void)
{
        static struct sources sources;
        struct error error = {0};
        if (sources.roots == NULL &&
            source_roots_new(&sources.roots, (const char *const[]){suite_folder()}, 1, &error) < 0)
                die("%s", error.text);
        return &sources;
}

char *core_write(const struct model *model, const char *name)
{
        char *path = suite_path("%s", name);
        model_write(model, path);
        return path;
}

char *blocks_file(const char *name, size_t n)
{
        struct model *m = model_new(n);
        model_place_data(m, 4096, 0);
        model_add_many(m, "t", n, 2 * MiB);
        return core_write(m, name);
}

void core_resolve(struct resolved *resolved, const char *path, const struct plan_layout *layout, uint64_t block_size)
{
        struct error error = {0};
        *resolved = (struct resolved){.borrowed = false};
        int r = source_open(core_sources(), path, false, &resolved->set, &error);
        if (r == 0)
                r = resolve_plan(
                        resolved,
                        &(struct resolve_opts){.layout = layout, .block_size = block_size, .keyring = &keyring_none},
                        &(struct resolve_budget){.bytes = 0}, &error);
        ck_assert_msg(r == 0, "%s: %s", path, error.text);
}

size_t core_tensor(const struct resolved *resolved, const struct model *model, size_t i)
{
        const struct plan_tensor *t = &resolved->plan.tensors[i];
        const struct st_header *header = &resolved->files[t->file].header;
        return model_index(model, st_name(header, &header->tensors[t->index]));
}
