/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads of real files into a fake device: see read_fixture.h.
 */
#include "tests/lib/read_fixture.h"

#include "daemon/io/file/file_object.h"
#include "daemon/io/remote/http_object.h"
#include "tests/lib/kernel_counters.h"

struct reader reader;
static bool running;

void read_fixture_reader_begin(unsigned concurrency, uint64_t memory_limit)
{
        struct error error = {0};
        struct reader_opts opts = {.concurrency = concurrency,
                                   .block_size = BLOCK,
                                   .memory_limit = memory_limit,
                                   .idle_ns = READER_IDLE_NS,
                                   .engines = {[READ_PREAD] = &pread_engine_ops, [READ_HTTP] = &http_engine_ops}};
        ck_assert_msg(reader_init(&reader, &opts, core_wake, &error) == 0, "%s", error.text);
        reader.processors = concurrency;
        running = true;
}

static bool settled(void)
{
        pthread_mutex_lock(&reader.mutex);
        bool work = reader_has_work_locked(&reader, READ_PREAD);
        unsigned alive = reader.engines[READ_PREAD].alive, asleep;
        pthread_mutex_unlock(&reader.mutex);
        return !work && process_threads_named(getpid(), "reader", &asleep) == alive && asleep == alive;
}

void read_fixture_settle(void)
{
        AWAIT(settled());
}

void read_fixture_reader_abandon(void)
{
        ck_assert(!reader_deinit(&reader, now_ns() + SECOND / 50));
        running = false;
}

void read_fixture_watch(void)
{
        reader_watch(&reader);
        pthread_mutex_lock(&reader.mutex);
        pthread_mutex_unlock(&reader.mutex);
}

/* Each is subtracted after its job's end is posted. */
static bool no_engine_has_jobs(void)
{
        unsigned jobs = 0;
        lock_scope(&reader.mutex);
        for (size_t i = 0; i < READ_ENGINES; i++)
                jobs += reader.engines[i].jobs;
        return jobs == 0;
}

void read_fixture_reader_end(void)
{
        if (running) {
                AWAIT(no_engine_has_jobs());
                ck_assert(reader_deinit(&reader, now_ns() + 20 * SECOND));
        }
        running = false;
        /* A joined thread may be listed for a moment. */
        AWAIT(threads_named("reader") == 0);
}

/* ---- without threads ---- */

static void no_wake(struct reader *bare)
{
}

void read_fixture_bare_begin(struct reader *bare, unsigned concurrency, unsigned slots, unsigned alive)
{
        static const struct engine_ops no_threads = {.wake = no_wake};
        struct error error = {0};
        *bare = (struct reader){.opts = {.concurrency = concurrency, .block_size = BLOCK}, .wake = core_wake};
        ck_assert_int_eq(staging_init(&bare->staging, slots * BLOCK, BLOCK, &error), 0);
        pthread_mutex_init(&bare->mutex, NULL);
        list_init(&bare->jobs);
        list_init(&bare->announced);
        for (size_t i = 0; i < READ_ENGINES; i++)
                bare->engines[i] = (struct engine){.ops = &no_threads, .alive = alive, .capacity = 1};
}

void read_fixture_bare_end(struct reader *bare)
{
        staging_deinit(&bare->staging);
}

/* ---- the reads of a load ---- */

static void on_written(struct read_job *job, const struct plan_block *block)
{
        struct read_fixture *r = container_of(job, struct read_fixture, job);
        __atomic_add_fetch(&r->landed[block - r->resolved.plan.blocks], 1, __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&r->n_landed, 1, __ATOMIC_SEQ_CST);
}

/* The job's end says it too, where it was the only one. */
static void on_died(struct callback *item)
{
        ck_assert(container_of(item, struct read_target, died)->dead);
}

static void on_idle(struct callback *item)
{
        ck_assert(container_of(item, struct read_target, idle)->dead);
}

static void on_ended(struct callback *item)
{
        struct read_fixture *r = container_of(item, struct read_fixture, job.ended);
        ck_assert_msg(!r->ended, "ended twice");
        r->ended = true;
}

void read_fixture_plan(struct read_fixture *r, const char *path, bool hidden)
{
        struct error error = {0};
        *r = (struct read_fixture){0};
        fake_device_init(&r->device, "fake", 1024 * MiB, hidden);
        core_resolve(&r->resolved, path, &r->device.device.layout, BLOCK);
        const struct plan *plan = &r->resolved.plan;
        for (size_t i = 0; i < plan->n_segments; i++)
                ck_assert_int_eq(
                        r->device.device.ops->alloc(&r->device.device, plan->segments[i], &r->segments[i], &error), 0);
        r->target = (struct read_target){.segments = r->segments, .died.run = on_died, .idle.run = on_idle};
        r->landed = must_alloc(plan->n_blocks * sizeof(*r->landed));
        r->job = (struct read_job){.plan = plan,
                                   .objects = r->resolved.set.objects,
                                   .targets = {&r->target},
                                   .n_targets = 1,
                                   .leaves = must_alloc((plan->n_leaves + 1) * DIGEST_SIZE),
                                   .landed = on_written,
                                   .ended.run = on_ended};
}

void read_fixture_begin(struct read_fixture *r, const char *path, bool hidden)
{
        read_fixture_plan(r, path, hidden);
        r->image = (unsigned char *)file_read(path, &r->image_size);
}

bool segments_match(const struct read_fixture *r, const struct plan_block *blocks, size_t n)
{
        bool same = true;
        for (size_t s = 0; s < r->resolved.plan.n_segments; s++) {
                cleanup_free unsigned char *want = must_alloc(r->segments[s].size);
                memset(want, FAKE_POISON, r->segments[s].size);
                for (size_t i = 0; i < n; i++) {
                        struct plan_cursor cursor;
                        struct plan_piece p;
                        plan_pieces_begin(&blocks[i], &cursor);
                        while (plan_pieces_next(&r->resolved.plan, &blocks[i], &cursor, &p))
                                if (p.segment == s)
                                        memcpy(want + p.offset, r->image + blocks[i].file_off + p.in_block, p.len);
                }
                same = same && memcmp(want, fake_memory(&r->segments[s]), r->segments[s].size) == 0;
        }
        return same;
}

bool leaf_digests_match(const struct read_fixture *r)
{
        const struct plan *plan = &r->resolved.plan;
        for (size_t i = 0; i < plan->n_tensors; i++) {
                const struct plan_tensor *t = &plan->tensors[i];
                for (uint64_t at = 0; at < t->bytes; at += PLAN_LEAF) {
                        unsigned char want[DIGEST_SIZE];
                        hash_bytes(r->image + t->file_off + at, t->bytes - at < PLAN_LEAF ? t->bytes - at : PLAN_LEAF,
                                   want);
                        if (memcmp(want, r->job.leaves[t->leaf + at / PLAN_LEAF], DIGEST_SIZE) != 0)
                                return false;
                }
        }
        return true;
}

void read_all(struct read_fixture *r)
{
        reader_start(&reader, &r->job);
        core_until(r->ended);
}

void read_fixture_hang(struct read_fixture *r, const char *path, unsigned blocks)
{
        read_fixture_begin(r, path, false);
        gate_init(&r->device.prepare, false);
        reader_start(&reader, &r->job);
        gate_await(&r->device.prepare, blocks);
}

void read_fixture_resume(struct read_fixture *r)
{
        gate_open(&r->device.prepare);
        core_until(r->ended);
}

void all_read_once(const struct read_fixture *r)
{
        for (size_t i = 0; i < r->resolved.plan.n_blocks; i++)
                ck_assert_uint_eq(r->landed[i], 1);
}

/* ---- files ---- */

char *odd_file(const char *name, uint64_t residue)
{
        struct model *m = model_new(residue + 1);
        model_place_data(m, 4096, residue);
        model_add(m, "a", "U8", (uint64_t[]){1}, 1);
        model_add(m, "b", "U8", (uint64_t[]){4097}, 1);
        model_add(m, "c", "U8", (uint64_t[]){5 * MiB + 123}, 1);
        model_add(m, "d", "U8", (uint64_t[]){0, 3}, 2);
        model_add_many(m, "e", 300, 77);
        model_add(m, "f", "BF16", (uint64_t[]){3, MiB / 2 + 1}, 2);
        model_add(m, "g", "U8", (uint64_t[]){2 * MiB}, 1);
        model_add(m, "h", "U8", (uint64_t[]){13}, 1);
        return core_write(m, name);
}

void cache_or_not(const char *path, bool cached)
{
        if (cached)
                file_cache(path);
        else
                file_uncache(path);
}
