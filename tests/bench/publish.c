/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of publishing: two threads copy a model into the memory that the daemon lends, and it is committed. It is
 * compared with one copy of the same bytes by two threads into fresh pages, and hashing them: in processor time, the
 * daemon's included, and in duration.
 */
#include "tests/bench/bench.h"

#include "daemon/base/hash.h"
#include "daemon/device/host/host_private.h"
#include "tests/lib/kernel_counters.h"

#define STORAGES 64u
#define LEAF ((size_t)1 << 20)

struct cost {
        double seconds, cpu_s;
};

/* Processor time of this process and of another one (0: none). */
static uint64_t cpu_ns(pid_t other)
{
        return process_cpu_ns(getpid()) + (other > 0 ? process_cpu_ns(other) : 0);
}

struct copy {
        const unsigned char *from;
        unsigned char *to;
        uint64_t size;
        struct collapse *collapse; /* NULL: the pages are there, or are made as they are touched */
        bool hash;
        atomic_uint_fast64_t next;
        atomic_bool failed;
};

static void *copy_blocks(void *arg)
{
        struct copy *c = arg;
        unsigned char digest[DIGEST_SIZE];
        for (;;) {
                uint64_t at = atomic_fetch_add(&c->next, 2 * LEAF);
                if (at >= c->size)
                        return NULL;
                size_t n = c->size - at < 2 * LEAF ? (size_t)(c->size - at) : 2 * LEAF;
                if (c->collapse != NULL && collapse_prepare(c->collapse, at, n, &(uint64_t){0}) != 0)
                        atomic_store(&c->failed, true);
                for (size_t done = 0; c->hash && done < n; done += LEAF)
                        hash_bytes(c->to + at + done, n - done < LEAF ? n - done : LEAF, digest);
                if (!c->hash)
                        memcpy(c->to + at, c->from + at, n);
        }
}

static void two_threads(struct copy *c)
{
        pthread_t threads[2];
        atomic_store(&c->next, 0);
        for (int i = 0; i < 2; i++)
                if (pthread_create(&threads[i], NULL, copy_blocks, c))
                        die("no thread");
        for (int i = 0; i < 2; i++)
                pthread_join(threads[i], NULL);
        if (atomic_load(&c->failed))
                die("no memory to copy to");
}

/* One copy into fresh pages, and hashing. */
static struct cost ceiling_round(const unsigned char *from, uint64_t size)
{
        struct collapse_kernel kernel;
        void *map;
        int memory = must(host_memfd_seal_consume_fd(host_memfd_new(PAGES_4K), size, false, &map));
        struct copy c = {.from = from, .to = map, .size = size};
        collapse_probe(&kernel, &collapse_calls);
        if (kernel.supported)
                c.collapse = collapse_new(&kernel, c.to, memory, size, 0);
        uint64_t begin = clock_ns(), cpu = cpu_ns(0);
        two_threads(&c);
        c.hash = true;
        two_threads(&c);
        struct cost cost = {(double)(clock_ns() - begin) / 1e9, (double)(cpu_ns(0) - cpu) / 1e9};
        collapse_free(c.collapse);
        munmap(map, size);
        close(memory);
        return cost;
}

static void check(const struct bench_daemon *bd, int r)
{
        if (r != 0)
                die("publish: %s", streamer_last_error(bd->client));
}

static struct cost publish_round(const struct bench_daemon *bd, const unsigned char *from, uint64_t size)
{
        uint64_t bytes[STORAGES];
        streamer_publish_opts opts = STREAMER_PUBLISH_OPTS_INIT;
        streamer_found found = STREAMER_FOUND_INIT;
        streamer_publication *p = NULL;
        streamer_lease *lease;
        opts.name = "published";
        for (size_t i = 0; i < STORAGES; i++)
                bytes[i] = size / STORAGES;
        uint64_t begin = clock_ns(), cpu = cpu_ns(bd->d.pid);
        check(bd, streamer_publish_find(bd->client, &opts, &found, &p));
        check(bd, streamer_publish_begin(p, bytes, STORAGES));
        for (size_t i = 0; i < STORAGES; i++) {
                struct copy c = {.from = from + i * bytes[0], .size = bytes[0]};
                void *data;
                check(bd, streamer_publish_storage(p, i, &data));
                c.to = data;
                two_threads(&c);
        }
        check(bd, streamer_publish_commit(p, &lease));
        struct cost cost = {(double)(clock_ns() - begin) / 1e9, (double)(cpu_ns(bd->d.pid) - cpu) / 1e9};
        streamer_detach(lease);
        check(bd, streamer_unload(bd->client, opts.name, 0));
        return cost;
}

void rows_publish(const struct bench *b)
{
        struct bench_daemon bd;
        double ratios[ROUNDS_MAX], durations[ROUNDS_MAX];
        uint64_t size = 2 * GIB / b->shrink / (STORAGES * 2 * MIB) * (STORAGES * 2 * MIB);
        unsigned char *from = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (from == MAP_FAILED)
                die("no memory");
        for (uint64_t i = 0; i < size; i += 8)
                memcpy(from + i, &(uint64_t){i * UINT64_C(0x9e3779b97f4a7c15)}, 8);
        bench_daemon_start(&bd, b, "auto", "");
        for (unsigned i = 0; i < b->rounds; i++) {
                bench_await_ready(&bd);
                ceiling_touch(size);
                struct cost copied = ceiling_round(from, size);
                ceiling_touch(size);
                struct cost published = publish_round(&bd, from, size);
                ratios[i] = published.cpu_s / copied.cpu_s;
                durations[i] = published.seconds / copied.seconds;
                report_note("publish, round %u: %.3f s, %.3f CPU-s; copy by two threads and hashing %.3f s, %.3f CPU-s",
                            i + 1, published.seconds, published.cpu_s, copied.seconds, copied.cpu_s);
        }
        report_row(ROW_publish_vs_copy, median(ratios, b->rounds), 0);
        report_row(ROW_publish_duration_vs_copy, median(durations, b->rounds), 0);
        bench_daemon_stop(&bd);
        munmap(from, size);
}
