/* SPDX-License-Identifier: Apache-2.0
 *
 * The ceiling of what copies and hashes: two threads that do just that.
 */
#include "tests/bench/bench.h"

#include "daemon/base/hash.h"
#include "daemon/device/host/host_private.h"
#include "tests/lib/kernel_counters.h"

#define LEAF ((size_t)1 << 20)

uint64_t cpu_with_ns(pid_t other)
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

void copy_by_two(unsigned char *to, const unsigned char *from, uint64_t size)
{
        struct copy c = {.from = from, .to = to, .size = size};
        two_threads(&c);
}

struct cost ceiling_copies(const unsigned char *from, uint64_t size, unsigned more)
{
        struct collapse_kernel kernel;
        void *map;
        int memory = must(host_memfd_seal_consume_fd(host_memfd_new(PAGES_4K), size, false, &map));
        struct copy c = {.from = from, .to = map, .size = size};
        collapse_probe(&kernel, &collapse_calls);
        if (kernel.supported)
                c.collapse = collapse_new(&kernel, c.to, memory, size, 0);
        uint64_t begin = clock_ns(), cpu = cpu_with_ns(0);
        two_threads(&c);
        c.hash = true;
        c.collapse = collapse_free(c.collapse);
        two_threads(&c);
        for (unsigned i = 0; i < more; i++)
                copy_by_two(map, from, size);
        struct cost cost = {(double)(clock_ns() - begin) / 1e9, (double)(cpu_with_ns(0) - cpu) / 1e9};
        munmap(map, size);
        close(memory);
        return cost;
}

unsigned char *copies_source(uint64_t size)
{
        unsigned char *from = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (from == MAP_FAILED)
                die("no memory");
        for (uint64_t i = 0; i < size; i += 8)
                memcpy(from + i, &(uint64_t){i * UINT64_C(0x9e3779b97f4a7c15)}, 8);
        return from;
}
