/* SPDX-License-Identifier: Apache-2.0
 *
 * Ceilings without a daemon: the disk by fio, the page cache by two threads.
 */
#include "tests/bench/bench.h"

#include "daemon/device/host/host_private.h"
#include "tests/lib/kernel_counters.h"

#include <fcntl.h>
#include <jansson.h>

#define HUGE_PAGE (UINT64_C(2) << 20)

/* ---- the disk ---- */

const char *ceiling_fio_command(const struct bench *b, const char *path)
{
        return format_text("fio --name=cold --filename=%s --readonly --rw=read --bs=8m --ioengine=io_uring --direct=1 "
                           "--iodepth=16 %s --output-format=json",
                           path, b->hugetlb ? "--mem=mmaphuge --hugepage-size=2m" : "--mem=mmap");
}

double ceiling_fio(const struct bench *b, const char *path)
{
        file_uncache(path);
        FILE *f = popen(ceiling_fio_command(b, path), "re");
        json_error_t error;
        json_t *root = f ? json_loadf(f, JSON_DISABLE_EOF_CHECK, &error) : NULL;
        json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
        json_t *rate = json_object_get(json_object_get(job, "read"), "bw_bytes");
        double r = json_number_value(rate) / (double)GIB;

        if (!f || pclose(f) != 0 || r <= 0)
                die("fio failed: %s", ceiling_fio_command(b, path));
        json_decref(root);
        return r;
}

/* ---- memory ---- */

static void *map_pages(bool hugetlb, uint64_t bytes)
{
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (hugetlb ? MAP_HUGETLB : 0);
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (p == MAP_FAILED)
                die_errno("mmap of %llu bytes", (unsigned long long)bytes);
        if (!hugetlb)
                madvise(p, bytes, MADV_HUGEPAGE);
        if (madvise(p, bytes, MADV_POPULATE_WRITE))
                die("no %llu bytes of memory in %s pages%s", (unsigned long long)bytes,
                    hugetlb ? "hugetlb" : "ordinary",
                    hugetlb ? " (did somebody else change vm.nr_overcommit_hugepages?)" : "");
        return p;
}

static uint64_t whole_pages(uint64_t bytes)
{
        return (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
}

/* A little more than the run takes, because the kernel does not only reuse recently freed pages. A host that reclaims
 * free pages does so within seconds, so this runs right before the run. */
void ceiling_touch(uint64_t bytes)
{
        bytes = whole_pages(bytes + bytes / 4);
        munmap(map_pages(false, bytes), bytes);
}

void ceiling_touch_pool(uint64_t bytes)
{
        bytes = whole_pages(bytes);
        munmap(map_pages(true, bytes), bytes);
}

/* ---- the page cache ---- */

struct shared_read {
        int fd;
        struct collapse *collapse; /* NULL: the pages are populated */
        unsigned char *to;
        uint64_t size;
        atomic_uint_fast64_t next;
        atomic_bool failed; /* seen by the caller: only it may die */
};

/* Fresh pages are made just before they are filled. */
static bool read_block(struct shared_read *s, uint64_t at, size_t len)
{
        for (size_t done = 0, n; done < len; done += n) {
                n = len - done < HUGE_PAGE ? len - done : HUGE_PAGE;
                if (s->collapse != NULL && collapse_prepare(s->collapse, at + done, n, &(uint64_t){0}) != 0)
                        return false;
                if (pread(s->fd, s->to + at + done, n, (off_t)(at + done)) != (ssize_t)n)
                        return false;
        }
        return true;
}

static void *read_blocks(void *arg)
{
        struct shared_read *s = arg;
        for (;;) {
                uint64_t at = atomic_fetch_add(&s->next, BLOCK);
                if (at >= s->size)
                        return NULL;
                size_t len = s->size - at < BLOCK ? (size_t)(s->size - at) : BLOCK;
                if (!read_block(s, at, len))
                        atomic_store(&s->failed, true);
        }
}

static double two_threads(struct shared_read *s, const char *path)
{
        pthread_t threads[2];
        uint64_t begin = clock_ns();
        for (int i = 0; i < 2; i++)
                if (pthread_create(&threads[i], NULL, read_blocks, s))
                        die("no thread");
        for (int i = 0; i < 2; i++)
                pthread_join(threads[i], NULL);
        double seconds = (double)(clock_ns() - begin) / 1e9;
        if (atomic_load(&s->failed))
                die_errno("%s: read", path);
        return (double)s->size / (double)GIB / seconds;
}

double ceiling_preads_fresh(const char *path)
{
        struct shared_read s = {.fd = must(open(path, O_RDONLY | O_CLOEXEC)), .size = file_size(path)};
        struct collapse_kernel kernel;
        void *map;
        int memory = must(host_memfd_seal_consume_fd(host_memfd_new(PAGES_4K), whole_pages(s.size), false, &map));
        collapse_probe(&kernel, &collapse_calls);
        s.to = map;
        if (kernel.supported)
                s.collapse = collapse_new(&kernel, s.to, memory, whole_pages(s.size), 0);
        double rate = two_threads(&s, path);
        collapse_free(s.collapse);
        munmap(s.to, whole_pages(s.size));
        close(memory);
        close(s.fd);
        return rate;
}

double ceiling_preads(const struct bench *b, const char *path)
{
        struct shared_read s = {.fd = must(open(path, O_RDONLY | O_CLOEXEC)), .size = file_size(path)};
        s.to = map_pages(b->hugetlb, whole_pages(s.size));
        double rate = two_threads(&s, path);
        munmap(s.to, whole_pages(s.size));
        close(s.fd);
        return rate;
}
